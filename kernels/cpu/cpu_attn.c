/* cpu_attn.c - causal attention by blocks of queries and keys, as in Dao et al.,
 * "FlashAttention", NeurIPS 2022: only one block of scores exists at a time.
 *
 * A thread processes a (sequence, head): it packs q, k, v as dense rows (D rounded up to 16, zeros), and k^T by blocks of
 * EDGE keys; the products are those of cpu_tile.c, of fp32 or of bf16 numbers (attn.h). In bf16 the probabilities are rounded
 * for their product. The log of the sum of exponentials of each row is stored, from which cpu_attn_bwd.c recomputes the
 * probabilities. No sum spans two pairs of a sequence and a head: results don't depend on threads.
 *
 * The queries of a sequence that are here, and the keys, are taken in the order of their positions, wherever their rows are
 * (graph/row_order.h). Groups are all, or those of a piece (op.def). With documents or a window a query's keys do not begin
 * with the sequence's, but where they begin never falls within it. Blocks in which no query sees a key are left out, and of
 * the others the columns that a query does not see are masked. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/math.h"

#include <omp.h>
#include <string.h>

/* No query sees a key: the first that is not before them all begins after them. */
static bool none_seen(const struct seen *x)
{
  int64_t r = 0;
  while (r < x->rows && x->at[r] < x->first) r++;
  return r == x->rows || (x->begins && x->begins[r] >= x->first + x->cols);
}

/* ---- forward ------------------------------------------------------------------------- */

/* One block of scores S[rows][EDGE], capped if cap > 0, becomes exp(S - max so far), 0 where a query does not see a key; the
 * running max, sum and output rows o[rows][ld] are rescaled. */
TC_CLONES static void exp_scores(float *S, const struct seen *x, float cap, float *max, float *sum, float *o, int64_t ld)
{
  for (int64_t r = 0; r < x->rows; r++, S += EDGE, o += ld) {
    const struct range k = range_of(x, r);
    const int n = k.last - k.first;
    for (int j = 0; j < k.first; j++) S[j] = 0;
    for (int j = k.last; j < EDGE; j++) S[j] = 0;
    if (n == 0) continue;
    if (cap > 0) tc_cap_scores(S + k.first, n, cap);
    for (int j = k.first; j < k.from; j++) S[j] = -INFINITY;
    for (int j = k.end; j < k.last; j++) S[j] = -INFINITY;
    tc_softmax_next(S + k.first, n, &max[r], &sum[r], o, ld);
  }
}

/* Packed rows of q, and of k and then v; v for sums over its rows; k^T; one block of scores, which
 * become the probabilities, in bf16 if operands are; and one of output. */
struct forward { struct tokens t; float *q, *rows, *v, *kt, *S, *o, *max, *sum; };

static int64_t forward_carve(struct forward *f, float *at, const struct shape *s)
{
  float *p = at + tc_attn_carve_tokens(&f->t, at, s);
  f->q = p, p += s->most * s->row;
  f->rows = p, p += s->T * s->row;
  f->v = tc_attn_carve_pairs(&p, s, s->T, f->rows);
  f->kt = p, p += s->blocks * s->words * EDGE;
  f->S = p, p += EDGE * EDGE;
  f->o = p, p += EDGE * s->ld;
  f->max = p, p += EDGE;
  f->sum = p, p += EDGE;
  return tc_round_up(p - at, 16);
}

int64_t tc_cpu_attn_scratch(struct tc_device *d, const struct tc_call *c)
{
  const struct shape s = tc_attn_shape(d, c, 0, 1, true);
  struct forward f;
  return forward_carve(&f, TC_ATTN_SIZES_ALONE, &s) * d->threads * (int64_t)sizeof(float);
}

/* The output rows of query block `qb`, not yet divided by their sums. */
static void forward_block(const struct shape *s, const struct forward *f, int64_t qb, int64_t rows)
{
  const int64_t last = f->t.at[qb * EDGE + rows - 1] / EDGE;
  memset(f->o, 0, (size_t)(rows * s->ld) * sizeof *f->o);
  for (int64_t r = 0; r < rows; r++) f->max[r] = -INFINITY, f->sum[r] = 0;
  for (int64_t kb = f->t.begins[qb * EDGE] / EDGE; kb <= last; kb++) {
    const struct seen block = tc_attn_seen(s, &f->t, qb, kb);
    if (none_seen(&block)) continue;
    s->tile(&(struct tc_tile){ .m = rows, .n = EDGE, .k = s->words, .a = f->q + qb * EDGE * s->row,
                               .a_row = s->row, .a_col = 1, .b = f->kt + kb * s->words * EDGE,
                               .ldb = EDGE, .c = f->S, .ldc = EDGE,
                               .tri = block.triangle ? TC_TRI_N : TC_TRI_NONE });
    if (s->per == 2) tc_bf16_exp_scores(f->S, f->S, &block, s->on_scores, s->cap, f->max, f->sum, f->o, s->ld);
    else exp_scores(f->S, &block, s->cap, f->max, f->sum, f->o, s->ld);
    s->tile(&(struct tc_tile){ .m = rows, .n = s->ld, .k = words_of(s, block.cols), .a = f->S, .a_row = s->edge,
                               .a_col = 1, .b = f->v + kb * s->edge * s->ld, .ldb = s->ld,
                               .c = f->o, .ldc = s->ld, .acc = true,
                               .tri = block.triangle ? TC_TRI_K_UPTO : TC_TRI_NONE });
  }
}

/* o[rows][ld] over the row's sum. */
TC_CLONES static void divide_rows(float *o, const float *sum, int64_t rows, int64_t ld)
{
  for (int64_t r = 0; r < rows; r++, o += ld) {
    const float by = 1.f / sum[r];
#pragma omp simd
    for (int64_t j = 0; j < ld; j++) o[j] *= by;
  }
}

int tc_cpu_attn(struct tc_device *d, const struct tc_call *c)
{
  const struct shape s = tc_attn_shape(d, c, 0, 1, true);
  const int32_t *starts = tc_call_starts(c, 1 + (s.kv != s.x));
  float *lse = tc_cpu_f32(&c->out[1]);
#pragma omp parallel for num_threads(d->threads) schedule(static)
  for (int64_t pair = 0; pair < s.sequences * s.K * s.G; pair++) {
    struct forward f;
    const int64_t g = pair % s.G, k = pair / s.G % s.K, h = head_of(&s, k, g);
    float *mine = c->scratch;
    mine += omp_get_thread_num() * forward_carve(&f, mine, &s);
    forward_carve(&f, mine, &s);
    tc_attn_find_tokens(&f.t, &s, pair / s.G / s.K, starts);
    const struct rows q = { s.x, f.t.row, f.t.n, group_at(&s, k) + g * s.D, s.step };
    struct rows kv = { s.kv, f.t.key, s.T, key_at(&s, k), s.kv_step }, y = { &c->out[0], f.t.row, 0, h * s.D, s.y_step };
    tc_attn_pack(f.rows, &s, &kv, 1.f);
    tc_attn_transpose(f.kt, &s, f.rows);
    tc_attn_pack(f.q, &s, &q, s.on_q);
    kv.at += s.D;
    tc_attn_pack(f.rows, &s, &kv, 1.f);
    tc_attn_pair(f.v, &s, f.rows, s.T);
    for (int64_t q0 = 0; q0 < f.t.n; q0 += EDGE) {
      const int64_t rows = TC_MIN((int64_t)EDGE, f.t.n - q0);
      forward_block(&s, &f, q0 / EDGE, rows);
      divide_rows(f.o, f.sum, rows, s.ld);
      y.row = &f.t.row[q0], y.n = rows;
      tc_attn_unpack(&y, &s, f.o, 1.f);
      for (int64_t r = 0; r < rows; r++) lse[y.row[r] * s.H + h] = f.max[r] + logf(f.sum[r]);
    }
  }
  return 0;
}
