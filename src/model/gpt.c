/* gpt.c - GPT-2 as a tensor program. Shapes: N = batch * T tokens, C hidden, H heads of D,
 * F = 4 C, V vocabulary. Weights are [out, in]; qkv is [H, 3, D, C], so that a split by heads
 * is a split of dimension 0. The head is separate ops (max, pick, sum of exponentials, loss),
 * so that a split vocabulary needs no gathered logits. */
#include "src/model/gpt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct tc_model tc_presets[] = {
  { "tiny", 4, 128, 4, 128, 256 },
  { "small", 6, 384, 6, 256, 256 },
  { "gpt2-124m", 12, 768, 12, 1024, 50257 },
  { "gpt2-350m", 24, 1024, 16, 1024, 50257 },
  { "gpt2-774m", 36, 1280, 20, 1024, 50257 },
  { "gpt2-1558m", 48, 1600, 25, 1024, 50257 },
  { "gpt3-125m", 12, 768, 12, 2048, 50257 },
  { "gpt3-350m", 24, 1024, 16, 2048, 50257 },
  { "gpt3-760m", 24, 1536, 16, 2048, 50257 },
  { "gpt3-1.3b", 24, 2048, 16, 2048, 50257 },
  { "gpt3-2.7b", 32, 2560, 32, 2048, 50257 },
  { "gpt3-6.7b", 32, 4096, 32, 2048, 50257 },
  { "gpt3-13b", 40, 5120, 40, 2048, 50257 },
  { "gpt3-175b", 96, 12288, 96, 2048, 50257 },
  { "bert-large", 24, 1024, 16, 512, 30522 },
  { "turing-17b", 78, 4256, 28, 1024, 50257 },
  { NULL, 0, 0, 0, 0, 0 }
};

/* The error names a preset with a similar name, else the most common ones. */
static int unknown_preset(const char *name, struct tc_err *err)
{
  enum { MOST = 64 };
  const char *names[MOST];
  int n = 0;
  for (const struct tc_model *p = tc_presets; p->preset && n < MOST; p++) names[n++] = p->preset;
  int near = tc_nearest(name, names, n);
  if (near >= 0)
    return tc_fail(err, TC_EUSER, "model.preset = %s is not known; did you mean %s?", name,
                   names[near]);
  return tc_fail(err, TC_EUSER, "model.preset = %s is not known; try tiny, small, gpt2-124m, "
                 "gpt2-350m, gpt2-774m or gpt2-1558m", name);
}

int tc_model_resolve(struct tc_model *m, struct tc_err *err)
{
  if (m->preset && *m->preset) {
    const struct tc_model *p = tc_presets;
    while (p->preset && strcmp(p->preset, m->preset)) p++;
    if (!p->preset) return unknown_preset(m->preset, err);
    if (!m->layers) m->layers = p->layers;
    if (!m->hidden) m->hidden = p->hidden;
    if (!m->heads) m->heads = p->heads;
    if (!m->context) m->context = p->context;
    if (!m->vocab) m->vocab = p->vocab;
  }
  const struct { const char *key; int64_t v; } need[] = {
    { "layers", m->layers }, { "hidden", m->hidden }, { "heads", m->heads },
    { "context", m->context }, { "vocab", m->vocab } };
  for (size_t i = 0; i < sizeof need / sizeof need[0]; i++)
    if (need[i].v <= 0 || need[i].v > 1 << 24)
      return tc_fail(err, TC_EUSER, "model.%s = %lld: give a positive number, or a model.preset",
                     need[i].key, (long long)need[i].v);
  if (m->hidden % m->heads) {
    int64_t fit = m->heads;
    while (m->hidden % fit) fit--;
    return tc_fail(err, TC_EUSER, "model.heads = %lld does not divide model.hidden = %lld; "
                   "heads = %lld would", (long long)m->heads, (long long)m->hidden,
                   (long long)fit);
  }
  return 0;
}

int64_t tc_model_params(const struct tc_model *m)
{
  int64_t c = m->hidden;
  return (m->vocab + m->context) * c + m->layers * (12 * c * c + 13 * c) + 2 * c;
}

char *tc_model_text(const struct tc_model *m)
{
  return tc_sprintf("layers %lld hidden %lld heads %lld context %lld vocab %lld",
                    (long long)m->layers, (long long)m->hidden, (long long)m->heads,
                    (long long)m->context, (long long)m->vocab);
}

/* ---- building --------------------------------------------------------------------- */

struct build {
  struct tc_graph *g;
  const struct tc_model *m;
  const struct tc_gpt_opts *o;
  int64_t N, C, H, D, F, V;
  int64_t pad_v;                 /* the vocabulary as stored */
  uint32_t drops;                /* dropout sites so far: the number is the key of the mask */
};

static int32_t act(struct build *b, const char *name, int dtype, int rank, const int64_t *dim)
{
  int32_t t = tc_tensor_new(b->g, name, dtype, rank, dim);
  if (b->pad_v != b->V && !strcmp(name, "logits")) {
    b->g->tensor[t].pad_dim = (int8_t)(rank - 1);
    b->g->tensor[t].pad_to = b->pad_v;
  }
  return t;
}

static int32_t state(struct build *b, const char *prefix, const char *name, int dtype, int cls,
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
  if (b->pad_v != b->V && !strcmp(name, "wte.weight")) {
    x->pad_dim = 0;
    x->pad_to = b->pad_v;
  }
  return t;
}

/* A parameter: N(0, std), or `value` where std is 0. */
static int32_t param(struct build *b, const char *layer, const char *name, int rank,
                     const int64_t *dim, float std, float value)
{
  struct tc_graph *g = b->g;
  TC_GROW(g->param, g->n_params, g->cap_params);
  int32_t id = g->n_params++;
  char *full = tc_sprintf("%s%s", layer, name);
  struct tc_param p = { .init_std = std, .init_value = value, .decay = rank > 1,
                        .unit = g->cur_unit };
  p.store = p.use = p.acc_lay = p.update = tc_layout_r();
  p.master = state(b, "", full, TC_F32, TC_CLS_PARAM, rank, dim, id);
  if (b->o->dtype == TC_F64) g->tensor[p.master].dtype = TC_F64;
  p.weight = p.master;
  if (b->o->dtype == TC_BF16) {
    p.weight = state(b, "use.", full, TC_BF16, TC_CLS_PARAM, rank, dim, id);
    g->tensor[p.master].cls = TC_CLS_OPT;
  }
  g->tensor[p.master].saved = true;
  p.m = p.v = p.acc = p.grad = p.tied_acc = p.tied_grad = -1;
  p.name = g->tensor[p.master].name;
  g->param[id] = p;
  free(full);
  return p.weight;
}

static int32_t node1(struct build *b, int op, int n_in, const int32_t *in, const char *name,
                     int dtype, int rank, const int64_t *dim)
{
  int32_t out = act(b, name, dtype, rank, dim);
  tc_node_new(b->g, op, n_in, in, 1, &out);
  return out;
}

static struct tc_node *last(struct build *b) { return &b->g->node[b->g->n_nodes - 1]; }

/* y = x w^T + bias. The product and the bias are two ops, since a partial product must be summed first. */
static int32_t linear(struct build *b, int32_t x, const char *layer, const char *name, int w_rank,
                      const int64_t *w_dim, int b_rank, const char *rule, const char *bias_rule,
                      int out_rank, const int64_t *out_dim, float std)
{
  char *wn = tc_sprintf("%s.weight", name), *bn = tc_sprintf("%s.bias", name);
  int32_t w = param(b, layer, wn, w_rank, w_dim, std, 0);
  int32_t bias = param(b, layer, bn, b_rank, w_dim, 0, 0);
  b->g->param[b->g->tensor[bias].param].decay = false;
  char *yn = tc_sprintf("%s%s", layer, name);
  int32_t y = node1(b, TC_OP_MATMUL, 2, (int32_t[]){ x, w }, yn, b->o->dtype, out_rank, out_dim);
  tc_node_rule(b->g, last(b), rule);
  int32_t z = node1(b, TC_OP_BIAS, 2, (int32_t[]){ y, bias }, yn, b->o->dtype, out_rank, out_dim);
  tc_node_rule(b->g, last(b), bias_rule);
  free(wn);
  free(bn);
  free(yn);
  return z;
}

static int stat_type(const struct build *b) { return b->o->dtype == TC_F64 ? TC_F64 : TC_F32; }

static int32_t layernorm(struct build *b, int32_t x, const char *layer, const char *name)
{
  char *gn = tc_sprintf("%s.weight", name), *bn = tc_sprintf("%s.bias", name);
  int32_t gain = param(b, layer, gn, 1, &b->C, 0, 1);
  int32_t bias = param(b, layer, bn, 1, &b->C, 0, 0);
  char *yn = tc_sprintf("%s%s", layer, name);
  int32_t out[3] = { act(b, yn, b->o->dtype, 2, (int64_t[]){ b->N, b->C }),
                     act(b, "mean", stat_type(b), 1, &b->N),
                     act(b, "rstd", stat_type(b), 1, &b->N) };
  tc_node_new(b->g, TC_OP_LAYERNORM, 3, (int32_t[]){ x, gain, bias }, 3, out)->attr.eps = 1e-5f;
  free(gn);
  free(bn);
  free(yn);
  return out[0];
}

static int32_t dropout(struct build *b, int32_t x)
{
  uint32_t site = b->drops++;
  if (b->o->dropout <= 0) return x;
  int32_t y = node1(b, TC_OP_DROPOUT, 1, &x, "dropout", b->o->dtype, 2,
                    (int64_t[]){ b->N, b->C });
  last(b)->attr.rate = b->o->dropout;
  last(b)->attr.site = site;
  return y;
}

/* A node named LAYER + name. */
static int32_t named(struct build *b, int op, int n_in, const int32_t *in, const char *layer,
                     const char *name, int rank, const int64_t *dim)
{
  char *full = tc_sprintf("%s%s", layer, name);
  int32_t y = node1(b, op, n_in, in, full, b->o->dtype, rank, dim);
  free(full);
  return y;
}

static int32_t add(struct build *b, int32_t x, int32_t y, const char *layer, const char *name)
{
  return named(b, TC_OP_ADD, 2, (int32_t[]){ x, y }, layer, name, 2, (int64_t[]){ b->N, b->C });
}

/* A unit's tensors are gathered and reduced together: a layer or, nested in it, attention and MLP. */
static int32_t unit(struct tc_graph *g, const char *prefix, const char *name, int32_t parent,
                    int32_t layer)
{
  char *full = tc_sprintf("%s%s", prefix, name);
  TC_GROW(g->unit, g->n_units, g->cap_units);
  g->unit[g->n_units] = (struct tc_unit){ tc_pool_strdup(g->pool, full), parent, layer, 0, -1 };
  free(full);
  return g->cur_unit = g->n_units++;
}

static int32_t block(struct build *b, int32_t x, int64_t layer)
{
  struct tc_graph *g = b->g;
  char *pre = tc_sprintf("h.%lld.", (long long)layer), *name = tc_sprintf("h.%lld", (long long)layer);
  int32_t layer_unit = unit(g, "", name, -1, (int32_t)layer);
  free(name);
  const float std = 0.02f, std_res = 0.02f / sqrtf(2.0f * (float)b->m->layers);
  int64_t N = b->N, C = b->C, H = b->H, D = b->D, F = b->F;
  int32_t a = layernorm(b, x, pre, "ln_1");
  if (b->o->nest) unit(g, pre, "attn", layer_unit, (int32_t)layer);
  int32_t qkv = linear(b, a, pre, "attn.qkv", 4, (int64_t[]){ H, 3, D, C }, 3,
                       "nc,hedc->nhed", "nhed,hed->nhed", 4, (int64_t[]){ N, H, 3, D }, std);
  char *out = tc_sprintf("%sattn.out", pre);
  int32_t att[2] = { act(b, out, b->o->dtype, 3, (int64_t[]){ N, H, D }),
                     act(b, "lse", stat_type(b), 2, (int64_t[]){ N, H }) };
  free(out);
  tc_node_new(g, TC_OP_ATTN, 1, &qkv, 2, att)->attr.sequence = b->m->context;
  int32_t p = linear(b, att[0], pre, "attn.proj", 3, (int64_t[]){ C, H, D }, 1,
                     "nhd,chd->nc", "nc,c->nc", 2, (int64_t[]){ N, C }, std_res);
  g->cur_unit = layer_unit;
  x = add(b, x, dropout(b, p), pre, "attn.residual");
  int32_t l = layernorm(b, x, pre, "ln_2");
  if (b->o->nest) unit(g, pre, "mlp", layer_unit, (int32_t)layer);
  int32_t f = linear(b, l, pre, "mlp.fc", 2, (int64_t[]){ F, C }, 1, "nc,fc->nf", "nf,f->nf", 2,
                     (int64_t[]){ N, F }, std);
  int32_t u = named(b, TC_OP_GELU, 1, &f, pre, "mlp.gelu", 2, (int64_t[]){ N, F });
  int32_t q = linear(b, u, pre, "mlp.proj", 2, (int64_t[]){ C, F }, 1, "nf,cf->nc", "nc,c->nc",
                     2, (int64_t[]){ N, C }, std_res);
  g->cur_unit = layer_unit;
  x = add(b, x, dropout(b, q), pre, "mlp.residual");
  free(pre);
  return x;
}

/* The loss head; all its nodes are labelled, so that passes/loss_chunks.c can cut it into chunks of tokens. */
static void head(struct build *b, int32_t x, int32_t wte)
{
  struct tc_graph *g = b->g;
  int32_t first = g->n_nodes;
  int64_t N = b->N, V = b->V;
  int st = stat_type(b);
  int32_t lg = node1(b, TC_OP_MATMUL, 2, (int32_t[]){ x, wte }, "logits", b->o->dtype, 2,
                     (int64_t[]){ N, V });
  tc_node_rule(g, last(b), "nc,vc->nv");
  int32_t mx = node1(b, TC_OP_ROWMAX, 1, &lg, "max", st, 1, &N);
  last(b)->attr.vocab = V;
  int32_t pk = node1(b, TC_OP_PICK, 2, (int32_t[]){ lg, g->targets }, "pick", st, 1, &N);
  int32_t se = node1(b, TC_OP_SUMEXP, 2, (int32_t[]){ lg, mx }, "sumexp", st, 1, &N);
  last(b)->attr.vocab = V;
  int32_t l = node1(b, TC_OP_NLL, 4, (int32_t[]){ mx, se, pk, g->targets }, "nll", st, 1, &N);
  int32_t acc = state(b, "", "loss.acc", st, TC_CLS_GRAD, 0, NULL, -1);
  g->tensor[acc].annotated = false;
  int32_t loss = tc_tensor_new(g, "loss", st, 0, NULL);
  g->tensor[loss].overwrites = acc;
  struct tc_node *s = tc_node_new(g, TC_OP_SUM, 1, &l, 1, &loss);
  s->attr.factor = 1.0f / (float)N;
  s->acc = 1;
  s->acc_first = true;
  g->logits = lg;
  g->loss = loss;
  for (int32_t i = first; i < g->n_nodes; i++) g->node[i].head = true;
}

void tc_gpt_build(struct tc_graph *g, const struct tc_model *m, const struct tc_gpt_opts *o)
{
  struct build b = { .g = g, .m = m, .o = o, .N = o->batch * m->context, .C = m->hidden,
                     .H = m->heads, .D = m->hidden / m->heads, .F = 4 * m->hidden,
                     .V = m->vocab };
  b.pad_v = tc_round_up(b.V, (b.V >= 4096 ? 128 : 1) * TC_MAX(o->tp, 1));
  g->cur_mark = TC_F;
  unit(g, "", "embed", -1, -1);
  g->tokens = tc_tensor_new(g, "tokens", TC_I32, 1, &b.N);
  g->targets = tc_tensor_new(g, "targets", TC_I32, 1, &b.N);
  tc_node_new(g, TC_OP_DATA, 0, NULL, 2, (int32_t[]){ g->tokens, g->targets })->on_all_stages = true;
  int32_t wte = param(&b, "", "wte.weight", 2, (int64_t[]){ b.V, b.C }, 0.02f, 0);
  int32_t wpe = param(&b, "", "wpe.weight", 2, (int64_t[]){ m->context, b.C }, 0.02f, 0);
  int32_t x = node1(&b, TC_OP_EMBED, 2, (int32_t[]){ g->tokens, wte }, "embed", o->dtype, 2,
                    (int64_t[]){ b.N, b.C });
  x = node1(&b, TC_OP_POS, 2, (int32_t[]){ x, wpe }, "pos", o->dtype, 2,
            (int64_t[]){ b.N, b.C });
  x = dropout(&b, x);
  for (int64_t l = 0; l < m->layers; l++) x = block(&b, x, l);
  unit(g, "", "head", -1, -1);
  x = layernorm(&b, x, "", "ln_f");
  head(&b, x, wte);
}
