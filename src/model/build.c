/* build.c - a model's program so far: tensors, parameters and nodes that are added to it. */
#include "src/model/impl.h"

#include <stdlib.h>
#include <string.h>

int32_t tc_build_act(struct tc_build *b, const char *name, int dtype, int rank, const int64_t *dim)
{
  int32_t t = tc_tensor_new(b->g, name, dtype, rank, dim);
  if (b->pad_v != b->V && !strcmp(name, "logits")) {
    b->g->tensor[t].pad_dim = (int8_t)(rank - 1);
    b->g->tensor[t].pad_to = b->pad_v;
  }
  return t;
}

int32_t tc_build_state(struct tc_build *b, const char *prefix, const char *name, int dtype, int cls,
                     int rank, const int64_t *dim, int32_t param)
{
  char *full = tc_sprintf("%s%s", prefix, name);
  int32_t t = tc_tensor_new(b->g, full, dtype, rank, dim);
  free(full);
  struct tc_tensor *x = &b->g->tensor[t];
  x->state = true;
  x->annotated = true;
  x->cls = (uint8_t)cls;
  x->param = param;
  if (b->pad_v != b->V && (!strcmp(name, "wte.weight") || !strcmp(name, "lm_head.weight"))) {
    x->pad_dim = 0;
    x->pad_to = b->pad_v;
  }
  return t;
}

int32_t tc_build_param(struct tc_build *b, const char *layer, const char *name, int rank,
                     const int64_t *dim, float std, float value)
{
  struct tc_graph *g = b->g;
  TC_GROW(g->param, g->n_params, g->cap_params);
  int32_t id = g->n_params++;
  char *full = tc_sprintf("%s%s", layer, name);
  struct tc_param p = { .init_std = std, .init_value = value, .decay = rank > 1, .lr = 1, .width = 1,
                        .unit = g->cur_unit, .state_dtype = (uint8_t)b->o->state_dtype };
  p.store = p.use = p.acc_lay = p.update = tc_layout_r();
  const bool base = b->o->lora.rank > 0 && !b->adapter;
  const bool only = b->o->dtype == TC_F64 || b->o->inference || (base && !(b->o->lora.base_copy && b->o->dtype == TC_BF16));
  p.base = p.frozen = base;
  p.master = tc_build_state(b, "", full, only ? b->o->dtype : TC_F32, TC_CLS_PARAM, rank, dim, id);
  p.weight = p.master;
  if (b->o->dtype == TC_BF16 && !only) {
    p.weight = tc_build_state(b, "use.", full, TC_BF16, TC_CLS_PARAM, rank, dim, id);
    g->tensor[p.master].cls = TC_CLS_OPT;
  }
  g->tensor[p.master].saved = !base || b->o->lora.saves_base;
  p.state[0] = p.state[1] = p.acc = p.grad = p.tied_acc = p.tied_grad = -1;
  p.name = g->tensor[p.master].name;
  g->param[id] = p;
  free(full);
  return p.weight;
}

int32_t tc_build_node(struct tc_build *b, int op, int n_in, const int32_t *in, const char *name,
                     int dtype, int rank, const int64_t *dim)
{
  int32_t out = tc_build_act(b, name, dtype, rank, dim);
  tc_node_new(b->g, op, n_in, in, 1, &out);
  return out;
}

struct tc_build_inputs tc_build_with_starts(const struct tc_build *b, int n_in, const int32_t *in, const char *rule)
{
  struct tc_build_inputs x = { .n = n_in };
  memcpy(x.in, in, (size_t)n_in * sizeof *in);
  if (b->g->starts < 0) return x;
  x.in[x.n++] = b->g->starts;
  x.rule = rule;
  return x;
}

int32_t tc_build_gain(struct tc_build *b, const char *layer, const char *name, int rank, const int64_t *dim)
{
  char *full = tc_sprintf("%s.weight", name);
  const int32_t t = tc_build_param(b, layer, full, rank, dim, 0, 1 - tc_build_shift(b));
  b->g->param[b->g->tensor[t].param].decay = 0;
  free(full);
  return t;
}

/* An RMS norm has no bias and no mean. */
int32_t tc_build_norm(struct tc_build *b, int32_t x, const char *layer, const char *name)
{
  const bool rms = b->m->norm != TC_LAYER_NORM;
  char *bias = tc_sprintf("%s.bias", name), *yn = tc_sprintf("%s%s", layer, name);
  int32_t in[3] = { x, tc_build_gain(b, layer, name, 1, &b->C) }, out[3];
  int n = 0;
  if (!rms) in[2] = tc_build_param(b, layer, bias, 1, &b->C, 0, 0);
  out[n++] = tc_build_act(b, yn, b->o->dtype, 2, (int64_t[]){ b->N, b->C });
  if (!rms) out[n++] = tc_build_act(b, "mean", tc_build_stats(b), 1, &b->N);
  out[n++] = tc_build_act(b, "rstd", tc_build_stats(b), 1, &b->N);
  struct tc_attr *attr = &tc_node_new(b->g, rms ? TC_OP_RMSNORM : TC_OP_LAYERNORM, n, in, n, out)->attr;
  attr->eps = b->m->norm_eps;
  attr->shift = tc_build_shift(b);
  TC_FREE(bias, yn);
  return out[0];
}

int32_t tc_build_named(struct tc_build *b, int op, int n_in, const int32_t *in, const char *layer,
                     const char *name, int rank, const int64_t *dim)
{
  char *full = tc_sprintf("%s%s", layer, name);
  int32_t y = tc_build_node(b, op, n_in, in, full, b->o->dtype, rank, dim);
  free(full);
  return y;
}
