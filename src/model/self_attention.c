/* self_attention.c - a layer's attention: queries, keys and values, their norms and positions, attention over a sequence or over a
 * cache, the product after it. Shapes are those of transformer.c. */
#include "src/model/impl.h"

#include <stdlib.h>

/* Norms of queries and keys, over each head. */
static int32_t qk_norm_heads(struct tc_build *b, int32_t qkv, const char *layer, const int64_t dim[4])
{
  const int32_t q = tc_build_gain(b, layer, "attn.q_norm", 1, &b->D), k = tc_build_gain(b, layer, "attn.k_norm", 1, &b->D);
  char *name = tc_sprintf("%sattn.qk_norm", layer);
  const int64_t stats[3] = { b->N, b->K, b->G + 1 };
  const int32_t out[2] = { tc_build_act(b, name, b->o->dtype, 4, dim), tc_build_act(b, "rstd", tc_build_stats(b), 3, stats) };
  tc_node_new(b->g, TC_OP_QKNORM, 3, (int32_t[]){ qkv, q, k }, 2, out);
  free(name);
  return out[0];
}

/* ... over all queries of a token, and over all its keys: two ops, since tensor parallelism divides the heads. */
static int32_t qk_norm_whole(struct tc_build *b, int32_t qkv, const char *layer, const int64_t dim[4])
{
  const int32_t q = tc_build_gain(b, layer, "attn.q_norm_whole", 3, (int64_t[]){ b->K, b->G, b->D });
  const int32_t k = tc_build_gain(b, layer, "attn.k_norm_whole", 2, (int64_t[]){ b->K, b->D });
  const int32_t squares = tc_build_node(b, TC_OP_QK_SQUARES, 1, &qkv, "squares", tc_build_stats(b), 2, (int64_t[]){ b->N, 2 });
  return tc_build_named(b, TC_OP_QK_SCALE, 4, (int32_t[]){ qkv, squares, q, k }, layer, "attn.qk_norm", 4, dim);
}

static int32_t qk_norm(struct tc_build *b, int32_t qkv, const char *layer, const int64_t dim[4])
{
  if (b->m->qk_norm == TC_QK_NONE) return qkv;
  qkv = b->m->qk_norm == TC_QK_HEAD ? qk_norm_heads(b, qkv, layer, dim) : qk_norm_whole(b, qkv, layer, dim);
  tc_build_last(b)->attr.eps = b->m->norm_eps;
  tc_build_last(b)->attr.shift = tc_build_shift(b);
  return qkv;
}

/* The output of attention, K groups of G heads: [N, K, D], or [N, K, G, D] in a model with shared keys. */
static int32_t attn_out(struct tc_build *b, const char *layer, int64_t K, int64_t G)
{
  char *name = tc_sprintf("%sattn.out", layer);
  const int32_t y = b->G > 1 ? tc_build_act(b, name, b->o->dtype, 4, (int64_t[]){ b->N, K, G, b->D })
                             : tc_build_act(b, name, b->o->dtype, 3, (int64_t[]){ b->N, K, b->D });
  free(name);
  return y;
}

/* Keys and values by themselves, of one piece of all groups. */
static int32_t keys_of(struct tc_build *b, int32_t qkv, const char *layer, int64_t groups, int64_t piece)
{
  const int64_t dim[4] = { b->N, groups / TC_MAX(1, b->o->key_pieces), 2, b->D };
  const int32_t kv = tc_build_named(b, TC_OP_KV, 1, &qkv, layer, "attn.kv", 4, dim);
  tc_build_last(b)->attr.piece = piece;
  return kv;
}

/* Attention's outputs. */
struct attended { int32_t y, lse; };

/* What all of attention's nodes say: the window is of layers that slide. */
static void set_attention(struct tc_build *b, struct tc_layer_kind kind)
{
  struct tc_attr *attr = &tc_build_last(b)->attr;
  attr->sequence = b->m->context;
  attr->window = kind.sliding && b->m->window < b->m->context ? b->m->window : 0;
  attr->scale = b->m->attn_scale > 0 ? b->m->attn_scale : 0;
  attr->cap = b->m->attn_cap > 0 ? b->m->attn_cap : 0;
}

static struct attended outputs(struct tc_build *b, const char *layer, int64_t K, int64_t G)
{
  return (struct attended){ attn_out(b, layer, K, G),
                            tc_build_act(b, "lse", tc_build_stats(b), b->G > 1 ? 3 : 2, (int64_t[]){ b->N, K, G }) };
}

/* Writes `out`: of all groups, or of one piece of them, whose keys and values are `kv` (-1: they are behind the queries);
 * then `before` is what the pieces from 0 on have written, and stays in the others' groups. */
static void attend_piece(struct tc_build *b, struct tc_layer_kind kind, int32_t qkv, int32_t kv, int64_t piece,
                         const struct attended *before, const struct attended *out)
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
  set_attention(b, kind);
  n->attr.piece = piece;
  char *rule = tc_sprintf("nhed%s%s%s%s->%s", kv >= 0 ? ",Nhud" : "", starts ? ",n" : "", piece > 0 ? "," : "",
                          piece > 0 ? all : "", all);
  if (n_in > 1 || b->G > 1) tc_node_rule(b->g, n, rule);
  free(rule);
}

/* The keys of each piece are there a piece before it: so it is in the backward pass, too, whose order this one turns round. */
static int32_t attend(struct tc_build *b, struct tc_layer_kind kind, int32_t qkv, const char *layer)
{
  const int64_t copies = TC_MAX(1, b->o->key_copies), K = b->K * copies, G = b->G / copies;
  const int64_t pieces = TC_MAX(1, b->o->key_pieces);
  if (copies > 1) qkv = tc_build_named(b, TC_OP_SPREAD, 1, &qkv, layer, "attn.spread", 4, (int64_t[]){ b->N, K, G + 2, b->D });
  int32_t kv = b->o->keys ? keys_of(b, qkv, layer, K, 0) : -1;
  struct attended before = { -1, -1 };
  for (int64_t p = 0; p < pieces; p++) {
    const int32_t next = p + 1 < pieces ? keys_of(b, qkv, layer, K, p + 1) : -1;
    const struct attended out = outputs(b, layer, K, G);
    attend_piece(b, kind, qkv, kv, p, &before, &out);
    kv = next;
    before = out;
  }
  return before.y;
}

/* Attention of new tokens over the cache and themselves. */
static int32_t attend_cache(struct tc_build *b, struct tc_layer_kind kind, int32_t qkv, const char *layer)
{
  struct tc_graph *g = b->g;
  const int64_t seen = kind.sliding ? TC_MIN(b->m->context, b->m->window + b->o->most_new - 1) : b->m->context;
  const int64_t dim[4] = { b->o->batch, b->K, seen, 2 * b->D };
  const int32_t cache = tc_build_state(b, layer, "attn.cache", b->o->dtype, TC_CLS_ACT, 4, dim, -1);
  const int32_t y = attn_out(b, layer, b->K, b->G), next = tc_tensor_new(g, g->tensor[cache].name, b->o->dtype, 4, dim);
  g->tensor[next].overwrites = cache;
  struct tc_node *n = tc_node_new(g, TC_OP_ATTN_CACHE, 3, (int32_t[]){ qkv, cache, g->starts }, 2,
                                  (int32_t[]){ y, next });
  set_attention(b, kind);
  tc_node_rule(g, n, b->G > 1 ? "nhed,nhmf,n->nhgd,nhmf" : "nhed,nhmf,n->nhd,nhmf");
  return y;
}

static int32_t rotate(struct tc_build *b, struct tc_layer_kind kind, int32_t qkv, const char *layer, const int64_t dim[4])
{
  const struct tc_rope_scaling *s = kind.sliding ? &b->m->sliding_scaling : &b->m->rope_scaling;
  const struct tc_build_inputs x = tc_build_with_starts(b, 1, &qkv, "nked,n->nked");
  qkv = tc_build_named(b, TC_OP_ROPE, x.n, x.in, layer, "attn.rope", 4, dim);
  if (x.rule) tc_node_rule(b->g, tc_build_last(b), x.rule);
  struct tc_attr *attr = &tc_build_last(b)->attr;
  attr->sequence = b->m->context;
  attr->freq = b->freq[kind.sliding];
  attr->rotary = b->m->rotary_dim < b->D ? b->m->rotary_dim : 0;
  attr->factor = s->kind == TC_ROPE_YARN ? s->attention : 0;
  return qkv;
}

int32_t tc_build_attention(struct tc_build *b, struct tc_layer_kind kind, int32_t x, const char *layer, float std_out)
{
  const int64_t N = b->N, C = b->C, K = b->K, G = b->G, D = b->D, qkv_dim[4] = { N, K, G + 2, D };
  const struct tc_product in = { "nc,hedc->nhed", "nhed,hed->nhed", 4, 3, 4, { K, G + 2, D, C },
                              { N, K, G + 2, D }, 2 };
  int32_t qkv = tc_build_linear(b, x, layer, "attn.qkv", &in, tc_bias_of_qkv(b->m), 0.02f);
  qkv = qk_norm(b, qkv, layer, qkv_dim);
  if (kind.rotary) qkv = rotate(b, kind, qkv, layer, qkv_dim);
  const bool grouped = G > 1;
  const struct tc_product out = { "nhd,chd->nc", "nc,c->nc", 3, 1, 2, { C, K, D }, { N, C }, 0 };
  const struct tc_product out_grouped = { "nhgd,chgd->nc", "nc,c->nc", 4, 1, 2, { C, K, G, D }, { N, C }, 0 };
  const int32_t y = b->o->new_tokens ? attend_cache(b, kind, qkv, layer) : attend(b, kind, qkv, layer);
  return tc_build_linear(b, y, layer, "attn.proj", grouped ? &out_grouped : &out, tc_bias_of_proj(b->m), std_out);
}
