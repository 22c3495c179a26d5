/* accumulate.c - the contributions to a parameter's gradient become one sum, whatever their placements.
 *
 * tc_grad has chained them: each is added to the version of the accumulator before it. That remains where a node makes its
 * contribution with the accumulator's placement. Other contributions are added to an open sum, a tensor beside the
 * accumulator, as long as their placements are equal. An open sum is closed, which reshards it and adds it to the
 * accumulator: before a contribution of another placement, and after the last one, or the last of a micro-batch. */
#include "src/passes/impl.h"

void tc_sums_find(struct sctx *s, const int32_t *order, int32_t n_order)
{
  const struct tc_graph *g = s->g;
  for (int32_t t = 0; t < s->n_old; t++)
    s->sum[t] = (struct sum){ .version = -1, .open = -1 };
  for (int32_t i = 0; i < n_order; i++) {
    const struct tc_node *n = &g->node[order[i]];
    for (int k = 0; k < n->n_out; k++) {
      int32_t v = tc_out(g, n, k), root = tc_tensor_root(g, v);
      if (!tc_is_acc(n, k) || g->tensor[v].param < 0 || !g->tensor[root].state) continue;
      struct sum *x = &s->sum[root];
      x->version = root;
      x->last = v;
      x->left++;
      x->in_mb += n->op != TC_OP_ACCUM;          /* another stage's sum is received once per step */
    }
  }
}

struct sum *tc_sum_of(struct sctx *s, int32_t node, int k)
{
  const struct tc_graph *g = s->g;
  int32_t v = tc_out(g, &g->node[node], k);
  if (!tc_is_acc(&g->node[node], k) || g->tensor[v].param < 0) return NULL;
  struct sum *x = &s->sum[tc_tensor_root(g, v)];
  return x->version >= 0 ? x : NULL;
}

/* Gives an accumulator without a placement that of its first contribution, v. */
static void settle(struct tc_graph *g, const struct tc_tensor *v)
{
  struct tc_tensor *acc = &g->tensor[v->overwrites];
  if (!acc->state) return;                       /* not the first contribution */
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    if (acc->lay.on[a].kind == TC_R && v->lay.on[a].kind == TC_P) acc->lay.on[a] = v->lay.on[a];
  if (acc->id == g->param[v->param].acc) g->param[v->param].acc_lay = acc->lay;
}

/* Makes v, an output of n, the accumulator's next version. */
static void add_version(struct sctx *s, struct sum *x, struct tc_node *n, int32_t v)
{
  s->g->tensor[v].overwrites = x->version;
  n->acc_first = s->g->tensor[x->version].state;
  s->now[x->last] = x->version = v;
}

/* Reshards the open sum to the accumulator's placement and adds it; if it is the only one of a step, it is written. */
static int close_open(struct sctx *s, struct sum *x)
{
  struct tc_graph *g = s->g;
  const int32_t root = tc_tensor_root(g, x->version), open = x->open, maker = g->tensor[open].node;
  struct tc_layout to = g->tensor[root].lay;
  to.on[TC_MB] = g->tensor[open].lay.on[TC_MB];
  const bool once = to.on[TC_MB].kind == TC_R;
  x->open = -1;
  const int32_t there = tc_place_move(s, open, &to, g->tensor[root].space, maker, TC_ROLE_GRAD);
  if (there < 0) return there;
  if (once && x->version == root) {
    tc_place_make_instead(g, there, x->next);
    g->tensor[x->next].overwrites = root;
    s->now[x->last] = x->version = x->next;
    return 0;
  }
  struct tc_node *n = tc_node_new(g, TC_OP_ACCUM, 1, &there, 1, &x->next);
  n->unit = g->node[maker].unit;
  n->mark = g->node[maker].mark;
  n->once_a_step = once;
  n->acc = 1;
  n->space = g->tensor[x->next].space = g->tensor[root].space;
  g->tensor[x->next].lay = g->tensor[root].lay;
  add_version(s, x, n, x->next);
  return 0;
}

/* Adds output k, whose placement is not the accumulator's, to the open sum, or opens one with it. */
static int add_to_open(struct sctx *s, int32_t node, int k, struct sum *x)
{
  struct tc_graph *g = s->g;
  int32_t v = tc_out(g, &g->node[node], k), own = tc_place_replace(s, node, k);
  struct tc_node *n = &g->node[node];
  const bool timed = n->op != TC_OP_ACCUM && s->m->size[TC_MB] > 1;
  const bool alone = !(n->acc & (n->acc - 1));   /* acc_first is of all of its contributions */
  if (timed) g->tensor[own].lay.on[TC_MB] = (struct tc_place){ TC_P, 0, 0, 0 };
  if (x->open >= 0 && alone && tc_layout_equal(&g->tensor[x->open].lay, &g->tensor[own].lay) &&
      g->tensor[x->open].space == g->tensor[own].space) {
    g->tensor[own].overwrites = x->open;
    n->acc_first = false;
  } else if (x->open >= 0) {
    TC_TRY(close_open(s, x));
  }
  x->open = own;
  x->next = v;
  return 0;
}

/* Whether t is a version of the accumulator of a tied weight, whose sum is added to another stage's. */
static bool is_tied(const struct tc_graph *g, int32_t t)
{
  int32_t p = g->tensor[t].param;
  return p >= 0 && g->param[p].tied_acc >= 0 && tc_tensor_root(g, t) == g->param[p].tied_acc;
}

int tc_sum_add(struct sctx *s, int32_t node, int k, struct sum *x)
{
  struct tc_graph *g = s->g;
  struct tc_node *n = &g->node[node];
  const struct tc_tensor *v = &g->tensor[tc_out(g, n, k)];
  settle(g, v);
  const struct tc_tensor *acc = &g->tensor[tc_tensor_root(g, v->id)];
  const bool direct = tc_layout_equal(&acc->lay, &v->lay) && acc->space == v->space;
  x->left--;
  x->in_mb -= n->op != TC_OP_ACCUM;
  if (direct) add_version(s, x, n, v->id);
  else TC_TRY(add_to_open(s, node, k, x));
  if (x->open >= 0 && (x->in_mb == 0 || x->left == 0)) TC_TRY(close_open(s, x));
  /* A sum that is resharded already is resolved by the update; another stage's, by its owner's update. */
  if (x->left || !direct || is_tied(g, x->version)) return 0;
  return tc_place_resolve(s, node, x->version, x->last);
}
