/* optim.c - the U part of the program: norms, clipping, updates, weights cast again from their masters.
 *
 * The norm is computed from final gradients. Where they are split, a node's sum of squares is
 * partial; a node's gradients have equal placements, so that replicated ones are counted once. Frozen parameters have none. */
#include "src/model/optim.h"

#include "src/graph/matrices.h"

#include <math.h>
#include <stdlib.h>

#define IS_THERE(name) (sizeof (name) > 1)
const struct tc_update_row tc_update_row[TC_UPDATES] = {
#define UPDATE(id, optimizer, momentum, op, smooth, mup, matrices, first, second) \
  { optimizer, momentum, op, IS_THERE(first) + IS_THERE(second), smooth, matrices, mup, { first, second } },
#include "src/model/update.def"
};

enum tc_update tc_update_of(enum tc_optimizer o, double momentum)
{
  int found = TC_UPDATES;
  for (int u = 0; u < TC_UPDATES; u++)
    if (tc_update_row[u].optimizer == o && (momentum > 0 || !tc_update_row[u].momentum)) found = u;
  TC_ASSERT(found < TC_UPDATES);
  return (enum tc_update)found;
}

int tc_update_states(const struct tc_param *p) { return p->frozen ? 0 : tc_update_row[p->kind].states; }

void tc_optim_choose(struct tc_graph *g, enum tc_update u)
{
  for (int32_t i = 0; i < g->n_params; i++) {
    struct tc_param *p = &g->param[i];
    p->kind = (uint8_t)(tc_update_row[u].matrices && !p->outputs ? 0 : u);
  }
}

static int32_t scalar(struct tc_graph *g, const char *name, int dtype)
{
  return tc_tensor_new(g, name, dtype, 0, NULL);
}

/* Whether both parameters' gradients have the same placements, as accumulated and at the update. */
static bool placed_alike(const struct tc_param *a, const struct tc_param *b)
{
  return tc_layout_equal(&a->acc_lay, &b->acc_lay) && tc_layout_equal(&a->update, &b->update);
}

/* One sum of squares per unit and placement; writes their ids to sum[] and returns their number. */
static int square_norms(struct tc_graph *g, int32_t *sum, int dtype)
{
  int n = 0;
  bool *done = tc_calloc((size_t)g->n_params, sizeof *done);
  int32_t *in = tc_malloc((size_t)g->n_params * sizeof *in);
  for (int32_t i = 0; i < g->n_params; i++) {
    if (done[i] || g->param[i].frozen) continue;
    int k = 0;
    for (int32_t j = i; j < g->n_params; j++) {
      if (done[j] || g->param[j].frozen || g->param[j].unit != g->param[i].unit ||
          !placed_alike(&g->param[j], &g->param[i])) continue;
      done[j] = true;
      in[k++] = g->param[j].grad;
    }
    sum[n] = scalar(g, "sqnorm", dtype);
    tc_node_new(g, TC_OP_SQNORM, k, in, 1, &sum[n])->unit = g->param[i].unit;
    n++;
  }
  TC_FREE(in, done);
  return n;
}

/* State k of the parameter's update, which it then has. */
static int32_t state(struct tc_graph *g, int32_t param, int k)
{
  const char *prefix = tc_update_row[g->param[param].kind].state[k];
  struct tc_tensor w = g->tensor[g->param[param].master];
  char *name = tc_sprintf("optim.%s.%s", prefix, g->param[param].name);
  int32_t t = tc_tensor_new(g, name, w.dtype == TC_F32 ? g->param[param].state_dtype : w.dtype, w.rank, w.dim);
  free(name);
  struct tc_tensor *x = &g->tensor[t];
  x->state = x->saved = x->annotated = true;
  x->cls = TC_CLS_OPT;
  x->param = param;
  x->lay = g->param[param].update;
  x->space = g->param[param].offload ? TC_HOST : TC_DEVICE;
  x->pad_dim = w.pad_dim;
  x->pad_to = w.pad_to;
  return g->param[param].state[k] = t;
}

/* The version of t that an update makes. */
static int32_t next(struct tc_graph *g, int32_t t)
{
  int32_t d = tc_tensor_like(g, t);
  g->tensor[d].overwrites = t;
  return d;
}

/* Labels a node with the parameter's unit and the space of its update. */
static void update_node(struct tc_graph *g, int32_t param, struct tc_node *n)
{
  n->unit = g->param[param].unit;
  n->space = g->param[param].offload == TC_OFFLOAD_UPDATE ? TC_HOST : TC_DEVICE;
}

/* weight = cast(master), if they are different tensors. */
static void refresh_weight(struct tc_graph *g, int32_t param, int32_t master)
{
  struct tc_param *p = &g->param[param];
  if (p->weight == p->master) return;
  int32_t w = next(g, p->weight);
  update_node(g, param, tc_node_new(g, TC_OP_CAST, 1, &master, 1, &w));
}

/* The stream of random numbers of a parameter, from its name: the same for every layout, whatever other
 * tensors the program has. */
static int64_t stream(const char *name) { return (int64_t)tc_hash32(name); }

/* An update of whole matrices: what it is computed in, and its rule, in which nothing can be split. */
static int32_t room_of_matrices(struct tc_graph *g, const struct tc_param *p, int dtype)
{
  const struct tc_tensor *w = &g->tensor[p->master];
  int64_t room = 0;
  for (int i = 0; i < tc_matrices(w->dim, p->cut); i++) {
    const struct tc_matrix x = tc_matrix_of(w->dim, w->rank, p->outputs, p->cut, i);
    room = TC_MAX(room, tc_matrix_room(&x));
  }
  return tc_tensor_new(g, "matrices", dtype, 1, &room);
}

static void set_matrices(struct tc_graph *g, const struct tc_param *p, struct tc_node *n)
{
  char subs[TC_DIMS + 1] = "abcdef";
  subs[g->tensor[p->master].rank] = 0;
  char *rule = tc_sprintf("%s,,%s,%s->%s,%s,w", subs, subs, subs, subs, subs);
  tc_node_rule(g, n, rule);
  free(rule);
  n->attr.outputs = p->outputs;
  n->attr.cut = p->cut;
}

float tc_update_width(const struct tc_param *p) { return powf(p->width, tc_update_row[p->kind].mup); }

static void update(struct tc_graph *g, int32_t param, int products)
{
  const struct tc_update_row *u = &tc_update_row[g->param[param].kind];
  for (int k = 0; k < u->states; k++) state(g, param, k);
  const struct tc_param p = g->param[param];
  int32_t in[3 + TC_UPDATE_STATES] = { p.grad, g->grad_scale, p.master }, out[2 + TC_UPDATE_STATES] = { next(g, p.master) };
  for (int k = 0; k < u->states; k++) {
    in[3 + k] = p.state[k];
    out[1 + k] = next(g, p.state[k]);
  }
  if (u->matrices) out[1 + u->states] = room_of_matrices(g, &p, products);
  struct tc_node *n = tc_node_new(g, u->op, 3 + u->states, in, 1 + u->states + u->matrices, out);
  if (u->matrices) set_matrices(g, &p, n);
  n->attr.decay = p.decay * tc_update_width(&p);
  n->attr.lr = p.lr / tc_update_width(&p);
  if (u->states > 0 && g->tensor[p.state[0]].dtype == TC_BF16) n->attr.stream = stream(p.name);
  update_node(g, param, n);
  refresh_weight(g, param, out[0]);
}

void tc_optim_build(struct tc_graph *g, int products)
{
  g->cur_mark = TC_U;
  int st = g->tensor[g->loss].dtype;
  int32_t *sum = tc_malloc((size_t)g->n_params * sizeof *sum);
  int n = square_norms(g, sum, st);
  g->grad_norm = scalar(g, "grad_norm", st);
  g->grad_scale = scalar(g, "grad_scale", st);
  tc_node_new(g, TC_OP_CLIP, n, sum, 2, (int32_t[]){ g->grad_norm, g->grad_scale })->on_all_stages = true;
  free(sum);
  for (int32_t i = 0; i < g->n_params; i++)
    if (!g->param[i].frozen) update(g, i, products);
}

void tc_optim_refresh(struct tc_graph *g)
{
  g->cur_mark = TC_U;
  for (int32_t i = 0; i < g->n_params; i++) refresh_weight(g, i, g->param[i].master);
}

void tc_optim_init(struct tc_graph *g)
{
  g->cur_mark = TC_U;
  for (int32_t i = 0; i < g->n_params; i++) {
    struct tc_param *p = &g->param[i];
    int32_t w = next(g, p->master);
    const struct tc_tensor *t = &g->tensor[p->master];
    bool random = p->init_std > 0;
    int64_t rows = t->pad_dim == 0 ? t->dim[0] : 0;
    struct tc_node *n = tc_node_new(g, random ? TC_OP_NORMAL : TC_OP_FILL, 0, NULL, 1, &w);
    update_node(g, i, n);
    if (random) n->attr.std = g->param[i].init_std, n->attr.uniform = g->param[i].uniform;
    else n->attr.factor = g->param[i].init_value;
    n->attr.stream = stream(g->param[i].name);
    n->attr.rows = rows;
    refresh_weight(g, i, w);
    for (int k = 0; k < tc_update_states(&g->param[i]); k++) {
      int32_t z = next(g, state(g, i, k));
      update_node(g, i, tc_node_new(g, TC_OP_FILL, 0, NULL, 1, &z));
    }
  }
}
