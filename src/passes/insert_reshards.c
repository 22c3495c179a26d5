/* insert_reshards.c - reshards a node's inputs to the layouts that it needs, and its outputs to their placements.
 *
 * Readers share reshards. Partial outputs are resolved where they are produced; an output that the node
 * makes with another placement than required is made as a separate tensor and resharded; gradients whose
 * placement differs from their accumulator's are summed separately within a micro-batch. */
#include "src/passes/impl.h"
#include "src/graph/rule.h"

#include <string.h>

const struct tc_tensor *tc_place_required(const struct tc_graph *g, int32_t t)
{
  if (g->tensor[t].annotated) return &g->tensor[t];
  int32_t root = tc_tensor_root(g, t);
  return root != t && g->tensor[root].state && g->tensor[root].annotated ? &g->tensor[root] : NULL;
}

/* The readers that share a reshard: of a weight until it is freed, of the update among
 * themselves, of an activation in the backward pass too unless it is gathered again (what another stage
 * has sent is not sent again). The loss head is one phase, since its backward pass follows its
 * forward pass. */
static void phase_of(const struct sctx *s, const struct tc_node *n, const struct tc_param *p,
                     struct made *key)
{
  bool sent = !tc_place_equal(&s->g->tensor[key->from].lay.on[TC_PP], &key->lay.on[TC_PP]);
  int part = n->head ? 2 : n->mark == TC_F ? 0 : 1;
  key->phase = key->unit = -1;
  if (n->mark == TC_U) {
    key->phase = 3;
  } else if (p && p->reshard_after == TC_AFTER_USE) {
    key->phase = part;
    key->unit = n->unit;
  } else if (!p && s->regather && !sent) {
    key->phase = part;
  }
}

/* Whether a RESHARD changes which rank has which rows. */
static bool reshards_rows(const struct tc_graph *g, const struct tc_node *n)
{
  const struct tc_place *from = &g->tensor[tc_in(g, n, 0)].lay.on[n->axis];
  const struct tc_place *to = &g->tensor[tc_out(g, n, 0)].lay.on[n->axis];
  return n->coll != TC_COPY && ((from->kind == TC_S && from->dim == 0) ||
                                     (to->kind == TC_S && to->dim == 0));
}

/* Reshards t to a layout in a space; the new nodes take the role. */
static int32_t reshard_to(struct sctx *s, int32_t t, const struct tc_layout *to, int space,
                     int32_t like, int role)
{
  struct tc_graph *g = s->g;
  int32_t first = g->n_nodes;
  if (g->tensor[t].space == TC_HOST && space == TC_DEVICE) {
    struct tc_layout there = g->tensor[t].lay;             /* the stage send precedes the copy */
    there.on[TC_PP] = to->on[TC_PP];
    t = tc_reshard(g, t, &there, like, s->err);
    if (t < 0) return t;
    t = tc_reshard_space(g, t, space, like);
  }
  t = tc_reshard(g, t, to, like, s->err);
  if (t >= 0 && g->tensor[t].space != space) t = tc_reshard_space(g, t, space, like);
  for (int32_t i = first; i < g->n_nodes; i++) {
    struct tc_node *n = &g->node[i];
    n->role = (uint8_t)role;
    if (!role && n->mark == TC_W) n->mark = TC_B;          /* since its first reader may be a W */
    if (role || reshards_rows(g, n)) n->head = false;         /* not repeated for each chunk of the head's rows */
  }
  return t;
}

/* The reshard that readers with this key share; -1: none yet. */
static int find_made(const struct sctx *s, const struct made *key)
{
  for (int k = s->n_made - 1; k >= 0; k--) {
    const struct made *x = &s->made[k];
    if (x->from == key->from && x->phase == key->phase && x->unit == key->unit &&
        x->space == key->space && tc_layout_equal(&x->lay, &key->lay)) return k;
  }
  return -1;
}

int tc_place_input(struct sctx *s, int32_t node, int i, const struct tc_layout *need)
{
  struct tc_graph *g = s->g;
  const struct tc_node *n = &g->node[node];
  int32_t was = tc_in(g, n, i), t = s->now[was];
  const struct tc_tensor *x = &g->tensor[t];
  struct made key = { .from = t, .space = n->space, .lay = *need };
  if (!tc_layout_equal(&x->lay, need) || x->space != key.space) {
    bool weight = x->state && x->param >= 0 && n->mark != TC_U;
    const struct tc_param *p = weight ? &g->param[x->param] : NULL;
    phase_of(s, n, p, &key);
    int k = find_made(s, &key);
    if (k < 0) {
      int32_t first = g->n_nodes;
      bool gather = weight || (x->state && x->space != key.space);
      key.to = reshard_to(s, t, need, key.space, node, gather ? TC_ROLE_GATHER : TC_ROLE_NONE);
      if (key.to < 0) return key.to;
      for (int32_t j = first; j < g->n_nodes && weight; j++) {
        bool sent = g->node[j].axis == TC_PP;    /* to another stage: once per step */
        g->node[j].once_a_step = p->reshard_after == TC_AFTER_STEP || sent;
        if (sent) g->node[j].role = TC_ROLE_NONE;
      }
      for (int32_t j = first; j < g->n_nodes; j++) {
        int32_t d = tc_out(g, &g->node[j], 0);   /* made in place, in t's storage */
        if (tc_tensor_root(g, d) == tc_tensor_root(g, t) && g->node[j].coll != TC_SLICE)
          s->now[was] = s->now[t] = d;
      }
      TC_GROW(s->made, s->n_made, s->cap_made);
      k = s->n_made++;
      s->made[k] = key;
    }
    t = s->made[k].to;
  }
  g->arg[g->node[node].in + i] = t;
  return 0;
}

static int64_t divisor_below(int64_t n, int64_t most)
{
  while (most > 1 && n % most) most--;
  return most;
}

int tc_place_even(const struct sctx *s, const struct tc_node *n, int32_t tensor)
{
  const struct tc_tensor *t = &s->g->tensor[tensor];
  int64_t dim[TC_DIMS];
  for (int d = 0; d < t->rank; d++) dim[d] = tc_stored_dim(t, d);
  for (int a = 0; a < TC_AXES; a++) {
    if (t->lay.on[a].kind != TC_S) continue;
    int d = t->lay.on[a].dim;
    if (dim[d] % s->m->size[a])
      return tc_fail(s->err, TC_ELAYOUT, "%s of op %s: dimension %d has %lld elements, which %s = "
                     "%d does not divide; %s = %lld would fit", t->name, tc_op_info[n->op].name, d,
                     (long long)dim[d], tc_axis_name[a], s->m->size[a], tc_axis_name[a],
                     (long long)divisor_below(dim[d], s->m->size[a]));
    dim[d] /= s->m->size[a];
  }
  return 0;
}

void tc_place_in_place(struct sctx *s, int32_t node, const int32_t *before)
{
  struct tc_graph *g = s->g;
  const struct tc_node *n = &g->node[node];
  for (int k = 0; k < n->n_out; k++) {
    struct tc_tensor *y = &g->tensor[tc_out(g, n, k)];
    if (y->overwrites < 0 || tc_is_acc(n, k) || tc_place_required(g, y->id)) continue;
    for (int i = 0; i < n->n_in && i < TC_RULE_MAX; i++) {
      int32_t now = tc_in(g, n, i);
      if (before[i] != y->overwrites || now == before[i]) continue;
      y->overwrites = now;
      for (int m = s->n_made - 1; m >= 0; m--)   /* it is overwritten: other readers can't share it */
        if (s->made[m].to == now) s->made[m] = s->made[--s->n_made];
    }
  }
}

/* Replaces output k of the node by a new tensor. */
static int32_t replace_output(struct sctx *s, int32_t node, int k)
{
  struct tc_graph *g = s->g;
  int32_t v = tc_out(g, &g->node[node], k);
  struct tc_tensor x = g->tensor[v];
  int32_t tmp = tc_tensor_new(g, x.name, x.dtype, x.rank, x.dim);
  struct tc_tensor *y = &g->tensor[tmp];
  y->lay = x.lay;
  y->pad_dim = x.pad_dim;
  y->pad_to = x.pad_to;
  y->primal = x.primal;
  y->param = x.param;
  y->cls = x.cls;
  y->node = node;
  y->space = g->node[node].space;
  g->arg[g->node[node].out + k] = tmp;
  g->tensor[v].node = -1;
  return tmp;
}

/* Changes the node that makes `last` to make v instead. */
static void make_instead(struct tc_graph *g, int32_t last, int32_t v)
{
  struct tc_node *n = &g->node[g->tensor[last].node];
  for (int k = 0; k < n->n_out; k++)
    if (tc_out(g, n, k) == last) g->arg[n->out + k] = v;
  g->tensor[v].lay = g->tensor[last].lay;
  g->tensor[v].space = g->tensor[last].space;
  g->tensor[v].node = n->id;
  g->tensor[last].node = -1;
}

/* Reshards an output whose required placement is not the one that the node makes: the node makes a new
 * tensor, which is resharded. If the output overwrites an input that was resharded, the new tensor overwrites
 * that. before[]: the inputs before they were resharded. */
static int reshard_output(struct sctx *s, int32_t node, int k, const struct tc_layout *to, int space,
                   const int32_t *before)
{
  struct tc_graph *g = s->g;
  int32_t v = tc_out(g, &g->node[node], k), tmp = replace_output(s, node, k);
  for (int i = 0; i < g->node[node].n_in && i < TC_RULE_MAX; i++) {
    int32_t now = tc_in(g, &g->node[node], i);
    if (g->tensor[v].overwrites >= 0 && before[i] == g->tensor[v].overwrites && now != before[i])
      g->tensor[tmp].overwrites = now;
  }
  struct made key = { .from = v, .to = tmp, .space = g->tensor[tmp].space,
                      .lay = g->tensor[tmp].lay };
  int32_t last = reshard_to(s, tmp, to, space, node,
                       g->node[node].mark == TC_U ? TC_ROLE_STORE : TC_ROLE_NONE);
  if (last < 0) return last;
  if (last == tmp)
    return tc_fail(s->err, TC_ELAYOUT, "op %s can't make %s with the placement that it must have",
                   tc_op_info[g->node[node].op].name, g->tensor[v].name);
  make_instead(g, last, v);
  const struct tc_node *n = &g->node[node];
  phase_of(s, n, NULL, &key);                    /* for readers that need it as it was made */
  TC_GROW(s->made, s->n_made, s->cap_made);
  s->made[s->n_made++] = key;
  return 0;
}

/* Gives an accumulator without a placement that of its first contribution. */
static void settle_acc(struct sctx *s, int32_t node, int k)
{
  struct tc_graph *g = s->g;
  const struct tc_tensor *v = &g->tensor[tc_out(g, &g->node[node], k)];
  if (!tc_is_acc(&g->node[node], k) || v->param < 0) return;
  struct tc_tensor *acc = &g->tensor[v->overwrites];
  if (!acc->state) return;                       /* not the first contribution */
  for (int a = TC_PP; a < TC_AXES; a++)
    if (acc->lay.on[a].kind == TC_R && v->lay.on[a].kind == TC_P) acc->lay.on[a] = v->lay.on[a];
  if (acc->id == g->param[v->param].acc) g->param[v->param].acc_lay = acc->lay;
}

/* Whether t is a version of the accumulator of a tied weight, whose sum is added to another stage's. */
static bool is_tied(const struct tc_graph *g, int32_t t)
{
  int32_t p = g->tensor[t].param;
  return p >= 0 && g->param[p].tied_acc >= 0 && tc_tensor_root(g, t) == g->param[p].tied_acc;
}

/* The preferred placement on an axis; l has those of the other axes. Several readers have preferences, and a
 * tensor can be a flat shard on one axis only. */
static struct tc_place preferred_place(const struct tc_layout *l, const struct tc_layout *preferred, int axis)
{
  for (int a = 0; a < TC_AXES && preferred->on[axis].kind == TC_SROWS; a++)
    if (a != axis && l->on[a].kind == TC_SROWS) return (struct tc_place){ 0 };
  return preferred->on[axis];
}

/* Resolves the partial axes of t, which node has made: to the preferred placement, else to R. */
static int32_t resolve(struct sctx *s, int32_t node, int32_t t, const struct tc_layout *preferred)
{
  struct tc_graph *g = s->g;
  struct tc_layout to = g->tensor[t].lay;
  bool any = false;
  for (int a = 0; a < TC_AXES; a++) {
    if (to.on[a].kind != TC_P) continue;
    if (a == TC_MB)
      return tc_fail(s->err, TC_ELAYOUT, "%s of op %s is partial in time", g->tensor[t].name,
                     tc_op_info[g->node[node].op].name);
    any = true;
    to.on[a] = preferred_place(&to, preferred, a);
  }
  if (!any) return t;
  bool grad = g->tensor[t].param >= 0;
  return reshard_to(s, t, &to, g->tensor[t].space, node, grad ? TC_ROLE_GRAD : TC_ROLE_NONE);
}

/* Partial outputs are resolved where they are produced. */
static int resolve_output(struct sctx *s, int32_t node, int32_t t)
{
  if (t < s->n_old && s->next_version[t] >= 0) return 0;           /* its next version is resolved instead */
  const struct tc_layout preferred = s->g->tensor[t].preferred;
  int32_t d = resolve(s, node, t, &preferred);
  if (d >= 0) s->now[t] = d;
  return d < 0 ? d : 0;
}

/* ---- accumulators ------------------------------------------------------------------- */

void tc_place_find_sums(struct sctx *s, const int32_t *order, int32_t n_order)
{
  const struct tc_graph *g = s->g;
  for (int32_t t = 0; t < s->n_old; t++)
    s->sum[t] = (struct sum){ .version = -1, .partial = -1 };
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

/* The sum to which output k of a node from before the pass contributes; NULL: none. */
static struct sum *sum_of(struct sctx *s, const struct tc_node *n, int k)
{
  const struct tc_graph *g = s->g;
  int32_t v = tc_out(g, n, k);
  if (!tc_is_acc(n, k) || g->tensor[v].param < 0) return NULL;
  struct sum *x = &s->sum[tc_tensor_root(g, v)];
  return x->version >= 0 ? x : NULL;
}

/* Makes v, an output of node, the accumulator's next version. */
static void add_version(struct sctx *s, struct sum *x, struct tc_node *n, int32_t v)
{
  s->g->tensor[v].overwrites = x->version;
  n->acc_first = s->g->tensor[x->version].state;
  s->now[x->last] = x->version = v;
}

/* Reshards the partial sum to the accumulator's placement and adds it. */
static int close_partial(struct sctx *s, struct sum *x)
{
  struct tc_graph *g = s->g;
  const struct tc_tensor *acc = &g->tensor[tc_tensor_root(g, x->version)];
  struct tc_layout to = acc->lay;
  int32_t tmp = x->partial, like = g->tensor[tmp].node, root = acc->id;
  x->partial = -1;
  to.on[TC_MB] = g->tensor[tmp].lay.on[TC_MB];
  bool once = to.on[TC_MB].kind == TC_R;
  int32_t resharded = reshard_to(s, tmp, &to, acc->space, like, TC_ROLE_GRAD);
  if (resharded < 0) return resharded;
  if (once && x->version == root) {              /* the first: written directly */
    make_instead(g, resharded, x->next);
    g->tensor[x->next].overwrites = root;
    s->now[x->last] = x->version = x->next;
    return 0;
  }
  struct tc_node *a = tc_node_new(g, TC_OP_ACCUM, 1, &resharded, 1, &x->next);
  a->unit = g->node[like].unit;
  a->mark = g->node[like].mark;
  a->once_a_step = once;
  a->acc = 1;
  g->tensor[x->next].lay = g->tensor[root].lay;
  g->tensor[x->next].space = g->tensor[root].space;
  a->space = g->tensor[root].space;
  add_version(s, x, a, x->next);
  return 0;
}

/* Adds output k, a contribution whose placement differs from its accumulator's, to the partial sum. */
static int add_to_partial(struct sctx *s, int32_t node, int k, struct sum *x)
{
  struct tc_graph *g = s->g;
  int32_t v = tc_out(g, &g->node[node], k), tmp = replace_output(s, node, k);
  bool timed = g->node[node].op != TC_OP_ACCUM && s->m->size[TC_MB] > 1;
  bool alone = !(g->node[node].acc & (g->node[node].acc - 1));     /* its only such output */
  if (timed) g->tensor[tmp].lay.on[TC_MB] = (struct tc_place){ TC_P, 0, 0, 0 };
  const struct tc_tensor *open = x->partial >= 0 ? &g->tensor[x->partial] : NULL;
  bool same = open && alone && tc_layout_equal(&open->lay, &g->tensor[tmp].lay) &&
              open->space == g->tensor[tmp].space;
  if (same) {
    g->tensor[tmp].overwrites = x->partial;
    g->node[node].acc_first = false;
  } else if (open) {
    TC_TRY(close_partial(s, x));
  }
  x->partial = tmp;
  x->next = v;
  return 0;
}

static int contribute(struct sctx *s, int32_t node, int k, struct sum *x)
{
  struct tc_graph *g = s->g;
  struct tc_node *n = &g->node[node];
  int32_t v = tc_out(g, n, k);
  const struct tc_tensor *acc = &g->tensor[tc_tensor_root(g, v)];
  x->left--;
  x->in_mb -= n->op != TC_OP_ACCUM;
  bool direct = tc_layout_equal(&acc->lay, &g->tensor[v].lay) && acc->space == g->tensor[v].space;
  if (direct) add_version(s, x, n, v);
  else TC_TRY(add_to_partial(s, node, k, x));
  if (x->partial >= 0 && (x->in_mb == 0 || x->left == 0)) TC_TRY(close_partial(s, x));
  /* A sum that is resharded already is resolved by the update; another stage's, by its owner's update. */
  if (x->left || !direct || is_tied(g, x->version)) return 0;
  const struct tc_layout preferred = g->tensor[x->last].preferred;
  int32_t d = resolve(s, node, x->version, &preferred);
  if (d >= 0) s->now[x->last] = d;
  return d < 0 ? d : 0;
}

/* Gives an output its placement, whatever the node made it as. An annotation does not constrain the
 * axes that it leaves at R. */
int tc_place_output(struct sctx *s, int32_t node, int k, const struct tc_layout *made,
                    const int32_t *before)
{
  struct tc_graph *g = s->g;
  const struct tc_node *n = &g->node[node];
  struct tc_tensor *t = &g->tensor[tc_out(g, n, k)];
  const struct tc_tensor *pin = tc_place_required(g, t->id);
  bool own = pin == t;
  struct tc_layout asked = t->lay;
  t->lay = *made;
  t->space = n->space;
  settle_acc(s, node, k);
  struct sum *sum = sum_of(s, n, k);
  if (sum) return contribute(s, node, k, sum);
  if (!pin) return resolve_output(s, node, t->id);
  int space = own ? t->space : pin->space;
  if (!own) asked = pin->lay;
  for (int a = 0; own && a < TC_AXES; a++)
    if (asked.on[a].kind == TC_R)
      asked.on[a] = made->on[a].kind == TC_P ? t->preferred.on[a] : made->on[a];
  if (tc_layout_equal(&asked, &t->lay) && space == t->space)
    return resolve_output(s, node, t->id);
  return reshard_output(s, node, k, &asked, space, before);
}
