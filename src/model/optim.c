/* optim.c - the U part of the program: norms, clipping, AdamW and SGD, weights cast again from their masters.
 *
 * The norm is computed from final gradients. Where they are split, a node's sum of squares is
 * partial; a node's gradients have equal placements, so that replicated ones are counted once. */
#include "src/model/optim.h"

#include <math.h>
#include <stdlib.h>

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
    if (done[i]) continue;
    int k = 0;
    for (int32_t j = i; j < g->n_params; j++) {
      if (done[j] || g->param[j].unit != g->param[i].unit ||
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

static int32_t moment(struct tc_graph *g, int32_t param, const char *prefix)
{
  struct tc_tensor w = g->tensor[g->param[param].master];
  char *name = tc_sprintf("optim.%s.%s", prefix, g->param[param].name);
  int32_t t = tc_tensor_new(g, name, w.dtype, w.rank, w.dim);
  free(name);
  struct tc_tensor *x = &g->tensor[t];
  x->state = x->saved = x->annotated = true;
  x->cls = TC_CLS_OPT;
  x->param = param;
  x->lay = g->param[param].update;
  x->space = g->param[param].offload ? TC_HOST : TC_DEVICE;
  x->pad_dim = w.pad_dim;
  x->pad_to = w.pad_to;
  return t;
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

void tc_optim_build(struct tc_graph *g, bool adamw)
{
  g->cur_mark = TC_U;
  int st = g->tensor[g->loss].dtype;
  int32_t *sum = tc_malloc((size_t)g->n_params * sizeof *sum);
  int n = square_norms(g, sum, st);
  g->grad_norm = scalar(g, "grad_norm", st);
  g->grad_scale = scalar(g, "grad_scale", st);
  tc_node_new(g, TC_OP_CLIP, n, sum, 2, (int32_t[]){ g->grad_norm, g->grad_scale })->on_all_stages = true;
  free(sum);
  for (int32_t i = 0; i < g->n_params; i++) {
    if (adamw) {
      int32_t m = moment(g, i, "m"), v = moment(g, i, "v");
      g->param[i].m = m;
      g->param[i].v = v;
    }
    struct tc_param p = g->param[i];
    int32_t in[5] = { p.grad, g->grad_scale, p.master, p.m, p.v };
    int32_t out[3] = { next(g, p.master), -1, -1 };
    if (adamw) {
      out[1] = next(g, p.m);
      out[2] = next(g, p.v);
    }
    struct tc_node *u = adamw ? tc_node_new(g, TC_OP_ADAMW, 5, in, 3, out)
                              : tc_node_new(g, TC_OP_SGD, 3, in, 1, out);
    u->attr.decay = p.decay ? 1 : 0;
    update_node(g, i, u);
    refresh_weight(g, i, out[0]);
  }
}

/* The stream of random numbers of a parameter, from its name: the same for every layout, whatever other
 * tensors the program has. */
static int64_t stream(const char *name) { return (int64_t)tc_hash32(name); }

void tc_optim_refresh(struct tc_graph *g)
{
  g->cur_mark = TC_U;
  for (int32_t i = 0; i < g->n_params; i++) refresh_weight(g, i, g->param[i].master);
}

void tc_optim_init(struct tc_graph *g, bool adamw)
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
    if (random) n->attr.std = g->param[i].init_std;
    else n->attr.factor = g->param[i].init_value;
    n->attr.stream = stream(g->param[i].name);
    n->attr.rows = rows;
    refresh_weight(g, i, w);
    for (int k = 0; adamw && k < 2; k++) {
      int32_t s = moment(g, i, k ? "v" : "m");
      if (k) g->param[i].v = s;
      else g->param[i].m = s;
      int32_t z = next(g, s);
      update_node(g, i, tc_node_new(g, TC_OP_FILL, 0, NULL, 1, &z));
    }
  }
}

double tc_lr(enum tc_lr_schedule schedule, int64_t step, int64_t steps, int64_t warmup, double lr,
             double min_lr)
{
  if (step <= warmup) return lr * (double)step / (double)warmup;
  double span = (double)TC_MAX(steps - warmup, 1);
  double x = (double)(step - warmup) / span;
  if (x > 1) x = 1;
  if (schedule == TC_LR_COSINE) return min_lr + (lr - min_lr) * 0.5 * (1 + cos(M_PI * x));
  if (schedule == TC_LR_LINEAR) return lr + (min_lr - lr) * x;
  return lr;
}
