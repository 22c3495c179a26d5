/* transformer.c - a model as a tensor program. Shapes: N = batch * T tokens, C hidden, H heads of D, K groups
 * of G = H / K heads that share a key and a value, F width of the MLP, V vocabulary. Weights are [out, in].
 * qkv is [K, G + 2, D, C] (queries of a group, its key, its value), so that a split by groups is a split of
 * dimension 0; the gated MLP's first product is [2, F, C]. Without shared keys the shapes are [H, 3, D, C]
 * and [N, H, D]. The head is separate ops (max, pick, sum of exponentials, loss), so that a split vocabulary
 * needs no gathered logits. */
#include "src/model/transformer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- building --------------------------------------------------------------------- */

struct build {
  struct tc_graph *g;
  const struct tc_model *m;      /* complete */
  const struct tc_build_opts *o;
  int64_t N, C, K, G, D, F, V;
  const float *freq;             /* of rotary positions; NULL: none */
  int64_t pad_v;                 /* the vocabulary as stored */
  uint32_t drops;                /* dropout sites so far: the key of each one's mask */
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
  if (b->pad_v != b->V && (!strcmp(name, "wte.weight") || !strcmp(name, "lm_head.weight"))) {
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
  const bool only = b->o->dtype == TC_F64 || b->o->inference;
  p.master = state(b, "", full, only ? b->o->dtype : TC_F32, TC_CLS_PARAM, rank, dim, id);
  p.weight = p.master;
  if (b->o->dtype == TC_BF16 && !only) {
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

/* The inputs of an op that depends on documents: in[n_in] and, if there are any, starts, with a rule of its own. */
struct inputs { int n; int32_t in[3]; const char *rule; };

static struct inputs with_starts(const struct build *b, int n_in, const int32_t *in, const char *rule)
{
  struct inputs x = { .n = n_in };
  memcpy(x.in, in, (size_t)n_in * sizeof *in);
  if (b->g->starts < 0) return x;
  x.in[x.n++] = b->g->starts;
  x.rule = rule;
  return x;
}

/* Shapes and index rules of a product y = x w^T and of its bias, which has w's first dimensions. */
struct product {
  const char *rule, *bias_rule;
  int w_rank, b_rank, y_rank;
  int64_t w[TC_DIMS], y[TC_DIMS];
};

/* The product and the bias are two ops: a partial product is summed first. */
static int32_t linear(struct build *b, int32_t x, const char *layer, const char *name,
                      const struct product *p, float std)
{
  char *wn = tc_sprintf("%s.weight", name), *bn = tc_sprintf("%s.bias", name);
  char *yn = tc_sprintf("%s%s", layer, name);
  const bool biased = b->m->bias == TC_ON;
  const int32_t w = param(b, layer, wn, p->w_rank, p->w, std, 0);
  const int32_t bias = biased ? param(b, layer, bn, p->b_rank, p->w, 0, 0) : -1;
  if (biased) b->g->param[b->g->tensor[bias].param].decay = false;
  int32_t y = node1(b, TC_OP_MATMUL, 2, (int32_t[]){ x, w }, yn, b->o->dtype, p->y_rank, p->y);
  tc_node_rule(b->g, last(b), p->rule);
  if (biased) {
    y = node1(b, TC_OP_BIAS, 2, (int32_t[]){ y, bias }, yn, b->o->dtype, p->y_rank, p->y);
    tc_node_rule(b->g, last(b), p->bias_rule);
  }
  TC_FREE(wn, bn, yn);
  return y;
}

static int stat_type(const struct build *b) { return b->o->dtype == TC_F64 ? TC_F64 : TC_F32; }

static int32_t gain(struct build *b, const char *layer, const char *name, int64_t n)
{
  char *full = tc_sprintf("%s.weight", name);
  const int32_t t = param(b, layer, full, 1, &n, 0, 1);
  free(full);
  return t;
}

/* An RMS norm has no bias and no mean. */
static int32_t norm(struct build *b, int32_t x, const char *layer, const char *name)
{
  const bool rms = b->m->norm == TC_RMS_NORM;
  char *bias = tc_sprintf("%s.bias", name), *yn = tc_sprintf("%s%s", layer, name);
  int32_t in[3] = { x, gain(b, layer, name, b->C) }, out[3];
  int n = 0;
  if (!rms) in[2] = param(b, layer, bias, 1, &b->C, 0, 0);
  out[n++] = act(b, yn, b->o->dtype, 2, (int64_t[]){ b->N, b->C });
  if (!rms) out[n++] = act(b, "mean", stat_type(b), 1, &b->N);
  out[n++] = act(b, "rstd", stat_type(b), 1, &b->N);
  tc_node_new(b->g, rms ? TC_OP_RMSNORM : TC_OP_LAYERNORM, n, in, n, out)->attr.eps = b->m->norm_eps;
  TC_FREE(bias, yn);
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

/* ---- attention ---- */

/* Norms of queries and keys, over each head. */
static int32_t qk_norm(struct build *b, int32_t qkv, const char *layer, const int64_t dim[4])
{
  const int32_t q = gain(b, layer, "attn.q_norm", b->D), k = gain(b, layer, "attn.k_norm", b->D);
  char *name = tc_sprintf("%sattn.qk_norm", layer);
  const int64_t stats[3] = { b->N, b->K, b->G + 1 };
  const int32_t out[2] = { act(b, name, b->o->dtype, 4, dim), act(b, "rstd", stat_type(b), 3, stats) };
  tc_node_new(b->g, TC_OP_QKNORM, 3, (int32_t[]){ qkv, q, k }, 2, out)->attr.eps = b->m->norm_eps;
  free(name);
  return out[0];
}

/* The output of attention, K groups of G heads: [N, K, D], or [N, K, G, D] in a model with shared keys. */
static int32_t attn_out(struct build *b, const char *layer, int64_t K, int64_t G)
{
  char *name = tc_sprintf("%sattn.out", layer);
  const int32_t y = b->G > 1 ? act(b, name, b->o->dtype, 4, (int64_t[]){ b->N, K, G, b->D })
                             : act(b, name, b->o->dtype, 3, (int64_t[]){ b->N, K, b->D });
  free(name);
  return y;
}

/* Keys and values by themselves, of one piece of all groups. */
static int32_t keys_of(struct build *b, int32_t qkv, const char *layer, int64_t groups, int64_t piece)
{
  const int64_t dim[4] = { b->N, groups / TC_MAX(1, b->o->key_pieces), 2, b->D };
  const int32_t kv = named(b, TC_OP_KV, 1, &qkv, layer, "attn.kv", 4, dim);
  last(b)->attr.piece = piece;
  return kv;
}

/* Attention's outputs. */
struct attended { int32_t y, lse; };

static struct attended outputs(struct build *b, const char *layer, int64_t K, int64_t G)
{
  return (struct attended){ attn_out(b, layer, K, G),
                            act(b, "lse", stat_type(b), b->G > 1 ? 3 : 2, (int64_t[]){ b->N, K, G }) };
}

/* Writes `out`: of all groups, or of one piece of them, whose keys and values are `kv` (-1: they are behind the queries);
 * then `before` is what the pieces from 0 on have written, and stays in the others' groups. */
static void attend_piece(struct build *b, int32_t qkv, int32_t kv, int64_t piece, const struct attended *before,
                         const struct attended *out)
{
  const bool starts = b->g->starts >= 0;
  const char *all = b->G > 1 ? "nhgd,nhg" : "nhd,nh";
  int32_t in[5] = { qkv }, n_in = 1;
  if (kv >= 0) in[n_in++] = kv;
  if (starts) in[n_in++] = b->g->starts;
  if (piece > 0) {
    b->g->tensor[out->y].overwrites = in[n_in++] = before->y;
    b->g->tensor[out->lse].overwrites = in[n_in++] = before->lse;
  }
  struct tc_node *n = tc_node_new(b->g, TC_OP_ATTN, n_in, in, 2, (int32_t[]){ out->y, out->lse });
  n->attr.sequence = b->m->context;
  n->attr.piece = piece;
  char *rule = tc_sprintf("nhed%s%s%s%s->%s", kv >= 0 ? ",Nhud" : "", starts ? ",n" : "", piece > 0 ? "," : "",
                          piece > 0 ? all : "", all);
  if (n_in > 1 || b->G > 1) tc_node_rule(b->g, n, rule);
  free(rule);
}

/* The keys of each piece are there a piece before it: so it is in the backward pass, too, whose order this one turns round. */
static int32_t attend(struct build *b, int32_t qkv, const char *layer)
{
  const int64_t copies = TC_MAX(1, b->o->key_copies), K = b->K * copies, G = b->G / copies;
  const int64_t pieces = TC_MAX(1, b->o->key_pieces);
  if (copies > 1) qkv = named(b, TC_OP_SPREAD, 1, &qkv, layer, "attn.spread", 4, (int64_t[]){ b->N, K, G + 2, b->D });
  int32_t kv = b->o->keys ? keys_of(b, qkv, layer, K, 0) : -1;
  struct attended before = { -1, -1 };
  for (int64_t p = 0; p < pieces; p++) {
    const int32_t next = p + 1 < pieces ? keys_of(b, qkv, layer, K, p + 1) : -1;
    const struct attended out = outputs(b, layer, K, G);
    attend_piece(b, qkv, kv, p, &before, &out);
    kv = next;
    before = out;
  }
  return before.y;
}

/* Attention of new tokens over the cache and themselves. */
static int32_t attend_cache(struct build *b, int32_t qkv, const char *layer)
{
  struct tc_graph *g = b->g;
  const int64_t dim[4] = { b->o->batch, b->K, b->m->context, 2 * b->D };
  const int32_t cache = state(b, layer, "attn.cache", b->o->dtype, TC_CLS_ACT, 4, dim, -1);
  const int32_t y = attn_out(b, layer, b->K, b->G), next = tc_tensor_new(g, g->tensor[cache].name, b->o->dtype, 4, dim);
  g->tensor[next].overwrites = cache;
  struct tc_node *n = tc_node_new(g, TC_OP_ATTN_CACHE, 3, (int32_t[]){ qkv, cache, g->starts }, 2,
                                  (int32_t[]){ y, next });
  n->attr.sequence = b->m->context;
  tc_node_rule(g, n, b->G > 1 ? "nhed,nhmf,n->nhgd,nhmf" : "nhed,nhmf,n->nhd,nhmf");
  return y;
}

static int32_t attention(struct build *b, int32_t x, const char *layer, float std_out)
{
  const int64_t N = b->N, C = b->C, K = b->K, G = b->G, D = b->D, qkv_dim[4] = { N, K, G + 2, D };
  const struct product in = { "nc,hedc->nhed", "nhed,hed->nhed", 4, 3, 4, { K, G + 2, D, C },
                              { N, K, G + 2, D } };
  int32_t qkv = linear(b, x, layer, "attn.qkv", &in, 0.02f);
  if (b->m->qk_norm == TC_ON) qkv = qk_norm(b, qkv, layer, qkv_dim);
  if (b->freq) {
    const struct inputs x = with_starts(b, 1, &qkv, "nked,n->nked");
    qkv = named(b, TC_OP_ROPE, x.n, x.in, layer, "attn.rope", 4, qkv_dim);
    if (x.rule) tc_node_rule(b->g, last(b), x.rule);
    last(b)->attr.sequence = b->m->context;
    last(b)->attr.freq = b->freq;
  }
  const bool grouped = G > 1;
  const struct product out = { "nhd,chd->nc", "nc,c->nc", 3, 1, 2, { C, K, D }, { N, C } };
  const struct product out_grouped = { "nhgd,chgd->nc", "nc,c->nc", 4, 1, 2, { C, K, G, D }, { N, C } };
  const int32_t y = b->o->new_tokens ? attend_cache(b, qkv, layer) : attend(b, qkv, layer);
  return linear(b, y, layer, "attn.proj", grouped ? &out_grouped : &out, std_out);
}

/* ---- MLP ---- */

static int32_t mlp(struct build *b, int32_t x, const char *layer, float std_out)
{
  const int64_t N = b->N, C = b->C, F = b->F;
  const struct product up = { "nc,fc->nf", "nf,f->nf", 2, 1, 2, { F, C }, { N, F } };
  const struct product gate_up = { "nc,ufc->nuf", "nuf,uf->nuf", 3, 2, 3, { 2, F, C }, { N, 2, F } };
  const struct product down = { "nf,cf->nc", "nc,c->nc", 2, 1, 2, { C, F }, { N, C } };
  const bool gated = b->m->act == TC_ACT_SWIGLU;
  int32_t f = gated ? linear(b, x, layer, "mlp.gate_up", &gate_up, 0.02f)
                    : linear(b, x, layer, "mlp.fc", &up, 0.02f);
  f = gated ? named(b, TC_OP_GLU, 1, &f, layer, "mlp.swiglu", 2, (int64_t[]){ N, F })
            : named(b, TC_OP_ACT, 1, &f, layer, "mlp.gelu", 2, (int64_t[]){ N, F });
  return linear(b, f, layer, "mlp.proj", &down, std_out);
}

static int32_t block(struct build *b, int32_t x, int64_t layer)
{
  struct tc_graph *g = b->g;
  char *pre = tc_sprintf("h.%lld.", (long long)layer), *name = tc_sprintf("h.%lld", (long long)layer);
  int32_t layer_unit = unit(g, "", name, -1, (int32_t)layer);
  free(name);
  const float std_out = 0.02f / sqrtf(2.0f * (float)b->m->layers);
  int32_t a = norm(b, x, pre, "ln_1");
  if (b->o->nest) unit(g, pre, "attn", layer_unit, (int32_t)layer);
  int32_t p = attention(b, a, pre, std_out);
  g->cur_unit = layer_unit;
  x = add(b, x, dropout(b, p), pre, "attn.residual");
  int32_t l = norm(b, x, pre, "ln_2");
  if (b->o->nest) unit(g, pre, "mlp", layer_unit, (int32_t)layer);
  int32_t q = mlp(b, l, pre, std_out);
  g->cur_unit = layer_unit;
  x = add(b, x, dropout(b, q), pre, "mlp.residual");
  free(pre);
  return x;
}

/* The loss head; every node is labelled, so that passes/loss_chunks.c can cut it into chunks of tokens. */
static void head(struct build *b, int32_t x, int32_t w)
{
  struct tc_graph *g = b->g;
  int32_t first = g->n_nodes;
  int64_t N = b->N, V = b->V;
  int st = stat_type(b);
  int32_t lg = node1(b, TC_OP_MATMUL, 2, (int32_t[]){ x, w }, "logits", b->o->dtype, 2,
                     (int64_t[]){ N, V });
  tc_node_rule(g, last(b), "nc,vc->nv");
  g->logits = lg;
  if (b->o->new_tokens) return;
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
  g->loss = loss;
  if (b->o->losses) g->nll = l;
  for (int32_t i = first; i < g->n_nodes; i++) g->node[i].head = true;
}

/* The inputs of a micro-batch: every stage has them. */
static void data(struct build *b)
{
  struct tc_graph *g = b->g;
  int n = 0;
  int32_t out[3];
  out[n++] = g->tokens = tc_tensor_new(g, "tokens", TC_I32, 1, &b->N);
  out[n++] = g->targets = tc_tensor_new(g, "targets", TC_I32, 1, &b->N);
  if (b->o->documents) out[n++] = g->starts = tc_tensor_new(g, "starts", TC_I32, 1, &b->N);
  tc_node_new(g, TC_OP_DATA, 0, NULL, n, out)->on_all_stages = true;
  if (b->o->documents) tc_node_rule(g, last(b), "->n,n,n");
}

/* The learned embedding of each token's position, added to x. */
static int32_t positions(struct build *b, int32_t x, int32_t wpe)
{
  const struct inputs in = with_starts(b, 2, (int32_t[]){ x, wpe }, "nc,tc,n->nc");
  x = node1(b, TC_OP_POS, in.n, in.in, "pos", b->o->dtype, 2, (int64_t[]){ b->N, b->C });
  if (in.rule) tc_node_rule(b->g, last(b), in.rule);
  return x;
}

/* Frequencies of rotary positions, in the graph's pool; NULL: the model has none. */
static const float *frequencies(struct tc_graph *g, const struct tc_model *m)
{
  if (m->rope_theta <= 0) return NULL;
  float *freq = tc_pool_alloc(g->pool, (size_t)m->head_dim / 2 * sizeof *freq);
  tc_model_rope(freq, m);
  return freq;
}

int64_t tc_stored_vocab(int64_t vocab, int64_t tp) { return tc_round_up(vocab, (vocab >= 4096 ? 128 : 1) * TC_MAX(tp, 1)); }

void tc_model_build(struct tc_graph *g, const struct tc_model *model, const struct tc_build_opts *o)
{
  const struct tc_model m = tc_model_complete(model);
  struct build b = { .g = g, .m = &m, .o = o, .N = o->batch * (o->new_tokens ? o->new_tokens : m.context),
                     .C = m.hidden, .K = m.kv_heads, .G = m.heads / m.kv_heads, .D = m.head_dim, .F = m.ffn,
                     .V = m.vocab, .freq = frequencies(g, &m) };
  b.pad_v = tc_stored_vocab(b.V, o->tp);
  g->cur_mark = TC_F;
  unit(g, "", "embed", -1, -1);
  data(&b);
  int32_t wte = param(&b, "", "wte.weight", 2, (int64_t[]){ b.V, b.C }, 0.02f, 0);
  int32_t wpe = b.freq ? -1 : param(&b, "", "wpe.weight", 2, (int64_t[]){ m.context, b.C }, 0.02f, 0);
  int32_t x = node1(&b, TC_OP_EMBED, 2, (int32_t[]){ g->tokens, wte }, "embed", o->dtype, 2,
                    (int64_t[]){ b.N, b.C });
  if (wpe >= 0) x = positions(&b, x, wpe);
  x = dropout(&b, x);
  for (int64_t l = 0; l < m.layers; l++) x = block(&b, x, l);
  unit(g, "", "head", -1, -1);
  x = norm(&b, x, "", "ln_f");
  if (m.tied != TC_ON) wte = param(&b, "", "lm_head.weight", 2, (int64_t[]){ b.V, b.C }, 0.02f, 0);
  head(&b, x, wte);
}
