/* cpu_attn_bwd.c - the gradient of cpu_attn.c's attention.
 *
 * A thread processes a (sequence, group of heads that share a key): it packs what a forward thread packs, v^T and the gradient
 * of the output, and recomputes the probabilities block by block. In bf16 these and the gradients of scores are rounded for
 * their products. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/math.h"

#include <omp.h>
#include <string.h>

/* slope[n]: of capped scores, which S becomes, over those before. */
static inline __attribute__((always_inline)) void cap_row(float *slope, float *S, int n, float cap)
{
  const float by = 1.f / cap;
  tc_cap_scores(S, n, cap);
#pragma omp simd
  for (int j = 0; j < n; j++) slope[j] = (1.f - S[j] * by) * (1.f + S[j] * by);
}

/* Makes P = exp(S - lse) and dS = P (dP - delta) of scores S and dP = dO V^T, all [rows][EDGE], each
 * in place; 0 where a query does not see a key. With cap > 0 P is of capped scores, and dS of those before. */
TC_CLONES static void probabilities(float *S, float *dP, const struct seen *x, float cap, const float *lse,
                                    const float *delta)
{
  float slope[EDGE] = { 0 };
  for (int64_t r = 0; r < x->rows; r++, S += EDGE, dP += EDGE) {
    const struct range k = range_of(x, r);
    const float l = lse[r], e = delta[r];
    if (cap > 0) cap_row(slope + k.first, S + k.first, k.last - k.first, cap);
    for (int j = 0; j < k.first; j++) S[j] = dP[j] = 0;
    for (int j = k.last; j < EDGE; j++) S[j] = dP[j] = 0;
#pragma omp simd
    for (int j = k.first; j < k.last; j++) {
      float p = tc_expf(S[j] - l), ds = p * (dP[j] - e);
      S[j] = j >= k.from && j < k.end ? p : 0.f;
      dP[j] = j >= k.from && j < k.end ? ds : 0.f;
    }
    for (int j = k.from; j < k.end && cap > 0; j++) dP[j] *= slope[j];
  }
}

/* delta[t] = sum over j of a[t][j] b[t][j]. */
TC_CLONES static void row_dots(float *delta, const float *a, const float *b, int64_t rows,
                               int64_t ld)
{
  for (int64_t t = 0; t < rows; t++, a += ld, b += ld) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < ld; j++) sum += a[j] * b[j];
    delta[t] = sum;
  }
}

/* Packed rows of q, k and g, which is dO; what sums over these rows take of them (q2, k2, g2); the gradient of q, and before,
 * in the same place (any), v and in fp32 the output; k^T and v^T. A block of P and of dS, in fp32 and as operands of products: by
 * queries (dS2) and by pairs of queries (P2, dSt). dk and dv are of one block of keys, or, where several heads add to them,
 * of all. */
struct backward {
  struct tokens t;
  float *q, *k, *g, *q2, *k2, *g2, *dq, *any, *kt, *vt, *S, *dP, *P2, *dS2, *dSt, *dk, *dv, *lse, *delta;
};

static int64_t key_rows(const struct shape *s) { return s->G > 1 ? s->blocks * EDGE : EDGE; }

static int64_t backward_carve(struct backward *b, float *at, const struct shape *s)
{
  float *p = at + tc_attn_carve_tokens(&b->t, at, s);
  b->q = p, p += s->most * s->row;
  b->k = p, p += s->T * s->row;
  b->g = p, p += s->most * s->row;
  b->q2 = tc_attn_carve_pairs(&p, s, s->most, b->q);
  b->k2 = tc_attn_carve_pairs(&p, s, s->T, b->k);
  b->g2 = tc_attn_carve_pairs(&p, s, s->most, b->g);
  b->dq = b->any = p, p += s->T * s->ld;
  b->kt = p, p += s->blocks * s->words * EDGE;
  b->vt = p, p += s->blocks * s->words * EDGE;
  b->S = b->P2 = p, p += EDGE * EDGE;
  b->dP = b->dS2 = b->dSt = p, p += EDGE * EDGE;
  if (s->per == 2) {
    b->P2 = p, p += EDGE * s->edge;
    b->dS2 = p, p += EDGE * s->edge;
    b->dSt = p, p += EDGE * s->edge;
  }
  b->dk = p, p += key_rows(s) * s->ld;
  b->dv = p, p += key_rows(s) * s->ld;
  b->lse = p, p += tc_round_up(s->most, 16);
  b->delta = p, p += tc_round_up(s->most, 16);
  return tc_round_up(p - at, 16);
}

static struct shape backward_shape(struct tc_device *d, const struct tc_call *c)
{
  return tc_attn_shape(d, c, 1, 4, c->in[0].dtype == TC_BF16 && c->in[2].dtype == TC_BF16);
}

int64_t tc_cpu_attn_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  const struct shape s = backward_shape(d, c);
  struct backward b;
  return backward_carve(&b, TC_ATTN_SIZES_ALONE, &s) * d->threads * (int64_t)sizeof(float);
}

/* What all heads of a group share. */
static void pack_keys(const struct shape *s, const struct backward *b, int64_t k)
{
  struct rows kv = { s->kv, b->t.key, s->T, key_at(s, k), s->kv_step };
  tc_attn_pack(b->k, s, &kv, 1.f);
  tc_attn_transpose(b->kt, s, b->k);
  tc_attn_pair(b->k2, s, b->k, s->T);
  kv.at += s->D;
  tc_attn_pack(b->any, s, &kv, 1.f);
  tc_attn_transpose(b->vt, s, b->any);
}

/* Head h, whose query is at `query`; delta[t] is the sum of g times the output. */
static void pack_query(const struct shape *s, const struct backward *b, int64_t h, int64_t query)
{
  const float *lse = tc_cpu_f32(&s->c->in[3]);
  const struct tokens *t = &b->t;
  const struct rows q = { s->x, t->row, t->n, query, s->step };
  const struct rows g = { &s->c->in[0], t->row, t->n, h * s->D, s->y_step }, y = { &s->c->in[2], t->row, t->n, g.at, g.step };
  tc_attn_pack(b->q, s, &q, s->on_q);
  tc_attn_pack(b->g, s, &g, 1.f);
  tc_attn_pair(b->q2, s, b->q, t->n);
  tc_attn_pair(b->g2, s, b->g, t->n);
  if (s->per == 2) {
    tc_attn_bf16_dots(b->delta, &g, &y, s->D);
  } else {
    tc_attn_pack(b->any, s, &y, 1.f);
    row_dots(b->delta, b->g, b->any, t->n, s->ld);
  }
  for (int64_t i = 0; i < t->n; i++) b->lse[i] = lse[t->row[i] * s->H + h];
  memset(b->dq, 0, (size_t)(t->n * s->ld) * sizeof *b->dq);
}

/* Adds the contributions of query block qb and key block kb to dq, dk and dv. */
static void backward_block(const struct shape *s, const struct backward *b, const struct seen *block, int64_t qb, int64_t kb)
{
  const int64_t rows = block->rows, cols = block->cols, ld = s->ld, edge = s->edge;
  const bool triangle = block->triangle;
  struct tc_tile t = { .m = rows, .n = EDGE, .k = s->words, .a = b->q + qb * EDGE * s->row, .a_row = s->row, .a_col = 1,
                       .b = b->kt + kb * s->words * EDGE, .ldb = EDGE, .c = b->S, .ldc = EDGE,
                       .tri = triangle ? TC_TRI_N : TC_TRI_NONE };
  s->tile(&t);                                             /* S = q k^T */
  t.a = b->g + qb * EDGE * s->row, t.b = b->vt + kb * s->words * EDGE, t.c = b->dP;
  s->tile(&t);                                             /* dP = dO v^T */
  const float *lse = b->lse + qb * EDGE, *delta = b->delta + qb * EDGE;
  if (s->per == 2) tc_bf16_probabilities(b->P2, b->dSt, b->dS2, b->S, b->dP, block, s->on_scores, s->cap, lse, delta);
  else probabilities(b->S, b->dP, block, s->cap, lse, delta);
  t = (struct tc_tile){ .m = cols, .n = ld, .k = words_of(s, rows), .a = b->P2, .a_row = 1, .a_col = EDGE,
                        .b = b->g2 + qb * edge * ld, .ldb = ld, .c = b->dv, .ldc = ld, .acc = true,
                        .tri = triangle ? TC_TRI_K_FROM : TC_TRI_NONE };
  s->tile(&t);                                             /* dv += P^T dO */
  t.a = b->dSt, t.b = b->q2 + qb * edge * ld, t.c = b->dk;
  s->tile(&t);                                             /* dk += dS^T q */
  t = (struct tc_tile){ .m = rows, .n = ld, .k = words_of(s, cols), .a = b->dS2, .a_row = edge, .a_col = 1,
                        .b = b->k2 + kb * edge * ld, .ldb = ld, .c = b->dq + qb * EDGE * ld,
                        .ldc = ld, .acc = true,
                        .tri = triangle ? TC_TRI_K_UPTO : TC_TRI_NONE };
  s->tile(&t);                                             /* dq += dS k */
}

/* Head g of group k: its dq, and what it adds to the group's dk and dv, which the last head writes. */
static void backward_head(const struct shape *s, const struct backward *all, int64_t k, int64_t g)
{
  const struct tokens *t = &all->t;
  const struct tc_view *dqkv = &s->c->out[0], *dkv = &s->c->out[s->kv != s->x];
  const int64_t query = group_at(s, k) + g * s->D, key = key_at(s, k);
  int64_t from = 0, end = 0;                               /* the queries that see a key of the block */
  pack_query(s, all, head_of(s, k, g), query);
  for (int64_t kb = 0; kb < s->blocks; kb++) {
    const int64_t t0 = kb * EDGE, rows = TC_MIN((int64_t)EDGE, s->T - t0);
    struct backward b = *all;
    while (from < t->n && t->at[from] < t0) from++;
    while (end < t->n && t->begins[end] < t0 + rows) end++;
    if (s->G > 1) {
      b.dk += t0 * s->ld;
      b.dv += t0 * s->ld;
    }
    if (g == 0) {
      memset(b.dk, 0, (size_t)(EDGE * s->ld) * sizeof *b.dk);
      memset(b.dv, 0, (size_t)(EDGE * s->ld) * sizeof *b.dv);
    }
    for (int64_t qb = from / EDGE; from < end && qb * EDGE < end; qb++) {
      const struct seen block = tc_attn_seen(s, t, qb, kb);
      backward_block(s, &b, &block, qb, kb);
    }
    if (g < s->G - 1) continue;
    struct rows y = { dkv, t->key + t0, rows, key, s->kv_step };
    tc_attn_unpack(&y, s, b.dk, s->on_scores);
    y.at += s->D;
    tc_attn_unpack(&y, s, b.dv, 1.f);
  }
  struct rows y = { dqkv, t->row, t->n, query, s->step };
  tc_attn_unpack(&y, s, all->dq, s->scale);
  for (int i = 0; i < 2 && g == 0 && dkv != dqkv; i++) {   /* these are elsewhere */
    y.at = group_at(s, k) + (s->G + i) * s->D;
    tc_attn_unpack(&y, s, NULL, 0);
  }
}

int tc_cpu_attn_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct shape s = backward_shape(d, c);
  const int32_t *starts = tc_call_starts(c, 4 + (s.kv != s.x));
#pragma omp parallel for num_threads(d->threads) schedule(static)
  for (int64_t pair = 0; pair < s.sequences * s.K; pair++) {
    struct backward b;
    const int64_t k = pair % s.K;
    float *mine = c->scratch;
    mine += omp_get_thread_num() * backward_carve(&b, mine, &s);
    backward_carve(&b, mine, &s);
    tc_attn_find_tokens(&b.t, &s, pair / s.K, starts);
    pack_keys(&s, &b, k);
    for (int64_t g = 0; g < s.G; g++) backward_head(&s, &b, k, g);
  }
  return 0;
}
