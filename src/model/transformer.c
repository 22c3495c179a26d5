/* transformer.c - a model as a tensor program. Shapes: N = batch * T tokens, C hidden, H heads of D, K groups
 * of G = H / K heads that share a key and a value, F width of the MLP, V vocabulary. Weights are [out, in].
 * qkv is [K, G + 2, D, C] (queries of a group, its key, its value), so that a split by groups is a split of
 * dimension 0; the gated MLP's first product is [2, F, C]. Without shared keys the shapes are [H, 3, D, C]
 * and [N, H, D]. The head is separate ops (max, pick, sum of exponentials, loss), so that a split vocabulary
 * needs no gathered logits. */
#include "src/model/impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int32_t dropout(struct tc_build *b, int32_t x)
{
  uint32_t site = b->drops++;
  if (b->o->dropout <= 0) return x;
  int32_t y = tc_build_node(b, TC_OP_DROPOUT, 1, &x, "dropout", b->o->dtype, 2,
                    (int64_t[]){ b->N, b->C });
  tc_build_last(b)->attr.rate = b->o->dropout;
  tc_build_last(b)->attr.site = site;
  return y;
}

static int32_t add(struct tc_build *b, int32_t x, int32_t y, const char *layer, const char *name)
{
  return tc_build_named(b, TC_OP_ADD, 2, (int32_t[]){ x, y }, layer, name, 2, (int64_t[]){ b->N, b->C });
}

/* A unit is what is gathered and reduced together: a layer, or (nested) its two halves within it. */
static int32_t unit(struct tc_graph *g, const char *prefix, const char *name, int32_t parent,
                    int32_t layer)
{
  char *full = tc_sprintf("%s%s", prefix, name);
  TC_GROW(g->unit, g->n_units, g->cap_units);
  g->unit[g->n_units] = (struct tc_unit){ tc_pool_strdup(g->pool, full), parent, layer, 0, -1 };
  free(full);
  return g->cur_unit = g->n_units++;
}

/* ---- MLP ---- */

/* Each enum tc_activation's tensor name, and the function that the op computes. */
static const struct activation { const char *name; bool gated; int fn; } activations[] = {
  [TC_ACT_GELU] = { "mlp.gelu", false, TC_FN_GELU_TANH }, [TC_ACT_GELU_EXACT] = { "mlp.gelu", false, TC_FN_GELU },
  [TC_ACT_RELU2] = { "mlp.relu2", false, TC_FN_RELU2 }, [TC_ACT_SWIGLU] = { "mlp.swiglu", true, TC_FN_GATE_SILU },
  [TC_ACT_GEGLU] = { "mlp.geglu", true, TC_FN_GATE_GELU_TANH } };

static int32_t mlp(struct tc_build *b, int32_t x, const char *layer, float std_out)
{
  const int64_t N = b->N, C = b->C, F = b->F;
  const struct tc_product up = { "nc,fc->nf", "nf,f->nf", 2, 1, 2, { F, C }, { N, F }, 0 };
  const struct tc_product gate_up = { "nc,ufc->nuf", "nuf,uf->nuf", 3, 2, 3, { 2, F, C }, { N, 2, F }, 1 };
  const struct tc_product down = { "nf,cf->nc", "nc,c->nc", 2, 1, 2, { C, F }, { N, C }, 0 };
  const struct activation *a = &activations[b->m->act];
  const bool biased = tc_bias_of_mlp(b->m);
  int32_t f = a->gated ? tc_build_linear(b, x, layer, "mlp.gate_up", &gate_up, biased, 0.02f)
                       : tc_build_linear(b, x, layer, "mlp.fc", &up, biased, 0.02f);
  f = tc_build_named(b, a->gated ? TC_OP_GLU : TC_OP_ACT, 1, &f, layer, a->name, 2, (int64_t[]){ N, F });
  tc_build_last(b)->attr.act = a->fn;
  return tc_build_linear(b, f, layer, "mlp.proj", &down, biased, std_out);
}

/* y * factor. */
static int32_t scale(struct tc_build *b, int32_t y, float factor, const char *layer, const char *name)
{
  if (factor == 1) return y;
  y = tc_build_named(b, TC_OP_SCALE, 1, &y, layer, name, 2, (int64_t[]){ b->N, b->C });
  tc_build_last(b)->attr.factor = factor;
  return y;
}

/* The end of a half of a layer, attention or MLP: y, what it gives, goes to the residual x. */
static int32_t end_half(struct tc_build *b, int32_t x, int32_t y, const char *layer, const char *half)
{
  char *after = tc_sprintf("%s.post_norm", half), *scaled = tc_sprintf("%s.scaled", half), *sum = tc_sprintf("%s.residual", half);
  if (b->m->norm_at != TC_NORM_BEFORE) y = tc_build_norm(b, y, layer, after);
  y = scale(b, dropout(b, y), b->m->residual_scale, layer, scaled);
  x = add(b, x, y, layer, sum);
  TC_FREE(after, scaled, sum);
  return x;
}

static int32_t block(struct tc_build *b, int32_t x, int64_t layer)
{
  struct tc_graph *g = b->g;
  char *pre = tc_sprintf("h.%lld.", (long long)layer), *name = tc_sprintf("h.%lld", (long long)layer);
  int32_t layer_unit = unit(g, "", name, -1, (int32_t)layer);
  free(name);
  const float std_out = 0.02f / sqrtf(2.0f * (float)b->m->layers);
  const struct tc_layer_kind kind = tc_model_layer(b->m, layer);
  const bool before = b->m->norm_at != TC_NORM_AFTER;
  int32_t y = before ? tc_build_norm(b, x, pre, "ln_1") : x;
  if (b->o->nest) unit(g, pre, "attn", layer_unit, (int32_t)layer);
  y = tc_build_attention(b, kind, y, pre, std_out);
  g->cur_unit = layer_unit;
  x = end_half(b, x, y, pre, "attn");
  y = before ? tc_build_norm(b, x, pre, "ln_2") : x;
  if (b->o->nest) unit(g, pre, "mlp", layer_unit, (int32_t)layer);
  y = mlp(b, y, pre, std_out);
  g->cur_unit = layer_unit;
  x = end_half(b, x, y, pre, "mlp");
  free(pre);
  return x;
}

/* The loss head; every node is labelled, so that passes/loss_chunks.c can cut it into chunks of tokens. */
static void head(struct tc_build *b, int32_t x, int32_t w)
{
  struct tc_graph *g = b->g;
  int32_t first = g->n_nodes;
  int64_t N = b->N, V = b->V;
  int st = tc_build_stats(b);
  int32_t lg = tc_build_node(b, TC_OP_MATMUL, 2, (int32_t[]){ x, w }, "logits", b->o->dtype, 2,
                     (int64_t[]){ N, V });
  tc_node_rule(g, tc_build_last(b), "nc,vc->nv");
  if (b->m->logit_cap > 0) {
    const int32_t raw = lg;
    lg = tc_build_node(b, TC_OP_SOFTCAP, 1, &raw, "logits", b->o->dtype, 2, (int64_t[]){ N, V });
    tc_build_last(b)->attr.cap = b->m->logit_cap;
    g->tensor[lg].overwrites = raw;
  }
  g->logits = lg;
  if (b->o->new_tokens) return;
  int32_t mx = tc_build_node(b, TC_OP_ROWMAX, 1, &lg, "max", st, 1, &N);
  tc_build_last(b)->attr.vocab = V;
  int32_t pk = tc_build_node(b, TC_OP_PICK, 2, (int32_t[]){ lg, g->targets }, "pick", st, 1, &N);
  int32_t se = tc_build_node(b, TC_OP_SUMEXP, 2, (int32_t[]){ lg, mx }, "sumexp", st, 1, &N);
  tc_build_last(b)->attr.vocab = V;
  int32_t l = tc_build_node(b, TC_OP_NLL, 4, (int32_t[]){ mx, se, pk, g->targets }, "nll", st, 1, &N);
  tc_build_last(b)->attr.z = b->o->z_loss;
  int32_t acc = tc_build_state(b, "", "loss.acc", st, TC_CLS_GRAD, 0, NULL, -1);
  g->tensor[acc].annotated = false;
  int32_t loss = tc_tensor_new(g, "loss", st, 0, NULL);
  g->tensor[loss].overwrites = acc;
  struct tc_node *s = tc_node_new(g, TC_OP_SUM, 1, &l, 1, &loss);
  s->attr.factor = 1.0f / (float)N;
  s->acc = 1;
  s->acc_first = true;
  g->loss = loss;
  if (b->o->losses) g->nll = l;
  for (int32_t i = first; i < g->n_nodes; i++) g->node[i].head = true;
}

/* The inputs of a micro-batch: every stage has them. */
static void data(struct tc_build *b)
{
  struct tc_graph *g = b->g;
  int n = 0;
  int32_t out[3];
  out[n++] = g->tokens = tc_tensor_new(g, "tokens", TC_I32, 1, &b->N);
  out[n++] = g->targets = tc_tensor_new(g, "targets", TC_I32, 1, &b->N);
  if (b->o->documents) out[n++] = g->starts = tc_tensor_new(g, "starts", TC_I32, 1, &b->N);
  tc_node_new(g, TC_OP_DATA, 0, NULL, n, out)->on_all_stages = true;
  if (b->o->documents) tc_node_rule(g, tc_build_last(b), "->n,n,n");
}

/* Gemma's classes have sqrt(hidden) in the working type. */
static float embed_scale(const struct tc_build *b)
{
  const float scale = b->m->embed_scale;
  return b->o->dtype == TC_BF16 && scale == sqrtf((float)b->C) ? tc_bf16_to_f32(tc_f32_to_bf16(scale)) : scale;
}

/* The learned embedding of each token's position, added to x. */
static int32_t positions(struct tc_build *b, int32_t x, int32_t wpe)
{
  const struct tc_build_inputs in = tc_build_with_starts(b, 2, (int32_t[]){ x, wpe }, "nc,tc,n->nc");
  x = tc_build_node(b, TC_OP_POS, in.n, in.in, "pos", b->o->dtype, 2, (int64_t[]){ b->N, b->C });
  if (in.rule) tc_node_rule(b->g, tc_build_last(b), in.rule);
  return x;
}

/* Frequencies of rotary positions, in the graph's pool; NULL: the model has none. */
static const float *frequencies(struct tc_graph *g, const struct tc_model *m, float theta, const struct tc_rope_scaling *s)
{
  if (theta <= 0) return NULL;
  float *freq = tc_pool_alloc(g->pool, (size_t)m->rotary_dim / 2 * sizeof *freq);
  tc_rope_frequencies(freq, m->rotary_dim, theta, s);
  return freq;
}

int64_t tc_stored_vocab(int64_t vocab, int64_t tp) { return tc_round_up(vocab, (vocab >= 4096 ? 128 : 1) * TC_MAX(tp, 1)); }

void tc_model_build(struct tc_graph *g, const struct tc_model *model, const struct tc_build_opts *o)
{
  const struct tc_model m = tc_model_complete(model);
  struct tc_build b = { .g = g, .m = &m, .o = o, .N = o->batch * (o->new_tokens ? o->new_tokens : m.context),
                     .C = m.hidden, .K = m.kv_heads, .G = m.heads / m.kv_heads, .D = m.head_dim, .F = m.ffn,
                     .V = m.vocab, .freq = { frequencies(g, &m, m.rope_theta, &m.rope_scaling),
                              frequencies(g, &m, m.sliding_theta, &m.sliding_scaling) } };
  b.pad_v = tc_stored_vocab(b.V, o->tp);
  g->cur_mark = TC_F;
  unit(g, "", "embed", -1, -1);
  data(&b);
  int32_t wte = tc_build_param(&b, "", "wte.weight", 2, (int64_t[]){ b.V, b.C }, 0.02f, 0);
  int32_t wpe = m.rope_theta > 0 ? -1 : tc_build_param(&b, "", "wpe.weight", 2, (int64_t[]){ m.context, b.C }, 0.02f, 0);
  int32_t x = tc_build_node(&b, TC_OP_EMBED, 2, (int32_t[]){ g->tokens, wte }, "embed", o->dtype, 2,
                    (int64_t[]){ b.N, b.C });
  x = scale(&b, x, embed_scale(&b), "", "embed.scaled");
  if (wpe >= 0) x = positions(&b, x, wpe);
  x = dropout(&b, x);
  for (int64_t l = 0; l < m.layers; l++) x = block(&b, x, l);
  unit(g, "", "head", -1, -1);
  x = scale(&b, tc_build_norm(&b, x, "", "ln_f"), 1 / (m.logit_divisor * tc_model_width(&m)), "", "ln_f.scaled");
  if (m.tied != TC_ON) wte = tc_build_param(&b, "", "lm_head.weight", 2, (int64_t[]){ b.V, b.C }, 0.02f, 0);
  head(&b, x, wte);
}
