/* cpu_attn.c - causal attention by blocks of queries and keys, as in Dao et al.,
 * "FlashAttention", NeurIPS 2022: only one block of scores exists at a time.
 *
 * Forward a thread processes a (sequence, head), backward a (sequence, group of heads that share a key): it packs
 * q, k, v as dense fp32 rows of `ld` columns (D rounded up to 16, zeros), and k^T (backward: v^T too) as blocks
 * [D][EDGE]; then the products are those of cpu_tile.c. Forward stores the log of the sum of exponentials of each row,
 * from which backward recomputes the probabilities. No sum spans two (sequence, group) pairs: results don't
 * depend on threads.
 *
 * The queries of a sequence that are here, and the keys, are taken in the order of their positions, wherever their rows are
 * (graph/row_order.h). Groups are all, or those of a piece (op.def). With documents or a window a query's keys do not begin
 * with the sequence's, but where they begin never falls within it. Blocks in which no query sees a key are left out, and of
 * the others the columns that a query does not see are masked. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

#include <omp.h>
#include <string.h>

enum { EDGE = 64 };                       /* rows and columns of a block of scores */

struct shape {
  const struct tc_call *c;
  const struct tc_view *x, *kv;           /* queries; keys and values: behind them or apart */
  int64_t T, H, D, ld, blocks;            /* blocks of EDGE keys */
  int64_t sequences, K, G;                /* K groups, here, of G heads that share a key and a value; H heads in all */
  int64_t step, kv_step, key, y_step;     /* elements from token to token in qkv, in kv, to a group's key there; in the output */
  int64_t most;                           /* queries of a sequence, at most */
  float scale, cap;
};

/* qkv: its place among the inputs; more: where kv or starts would be. */
static struct shape shape_of(const struct tc_call *c, int qkv, int more)
{
  const struct tc_view *x = &c->in[qkv], *kv = tc_call_kv(c, more);
  struct shape s = { .c = c, .x = x, .kv = kv ? kv : x, .T = c->k[0], .G = x->dim[2] - 2, .D = x->dim[3] };
  TC_ASSERT(s.T > 0 && x->rank == 4 && x->dim[2] >= 3 && s.kv->dim[0] % s.T == 0);
  s.K = s.kv->dim[1];
  s.H = x->dim[1] * s.G;
  s.step = x->dim[1] * (s.G + 2) * s.D;
  s.kv_step = kv ? s.K * 2 * s.D : s.step;
  s.key = kv ? 0 : s.G * s.D;
  s.y_step = s.H * s.D;
  s.ld = tc_round_up(s.D, 16);
  s.blocks = tc_ceil_div(s.T, EDGE);
  s.sequences = s.kv->dim[0] / s.T;
  s.most = TC_MIN(s.T, x->dim[0]);
  s.scale = tc_call_scale(c, s.D), s.cap = c->f[1];
  return s;
}

/* Head g of group k, of all; where the group has its first query in the qkv of a token; its key and value in kv. */
static int64_t head_of(const struct shape *s, int64_t k, int64_t g) { return tc_call_group(s->c, s->x, s->kv, k) * s->G + g; }
static int64_t group_at(const struct shape *s, int64_t k) { return tc_call_group(s->c, s->x, s->kv, k) * (s->G + 2) * s->D; }
static int64_t key_at(const struct shape *s, int64_t k) { return k * (s->kv == s->x ? s->G + 2 : 2) * s->D + s->key; }

/* An address that is not read: scratch is carved from it only to add up the sizes. */
static float *const sizes_alone = (float *)(uintptr_t)64;

/* ---- the tokens of a sequence ---------------------------------------------------------- */

/* The n queries of a sequence that are here, by position: row in qkv, position, the first key that it sees; and the rows of
 * its T keys. */
struct tokens { int32_t *row, *at, *begins, *key; int64_t n; };

static int64_t tokens_carve(struct tokens *t, float *at, const struct shape *s)
{
  int32_t *p = (int32_t *)at;
  t->row = p, p += s->most;
  t->at = p, p += s->most;
  t->begins = p, p += s->most;
  t->key = p, p += s->T;
  return tc_round_up(p - (int32_t *)at, 16);
}

static void find_tokens(struct tokens *t, const struct shape *s, int64_t sequence, const int32_t *starts)
{
  const struct tc_row_order *o = &s->c->rows;
  const int64_t first = tc_natural_row(o, s->kv->off[0]) / s->T + sequence, window = s->c->k[2];
  t->n = 0;
  for (int64_t p = 0; p < s->T; p++) {
    const bool natural = o->cp <= 1;             /* then rows need not begin with a sequence's number */
    const int64_t row = natural ? s->kv->off[0] + sequence * s->T + p : tc_row_of(o, first * s->T + p);
    const int64_t n = row - s->x->off[0];
    t->key[p] = (int32_t)(row - s->kv->off[0]);
    if (n < 0 || n >= s->x->dim[0]) continue;
    t->row[t->n] = (int32_t)n;
    t->at[t->n] = (int32_t)p;
    t->begins[t->n++] = TC_MAX(starts ? starts[n] : 0, window > 0 ? (int32_t)TC_MAX(0, p - window + 1) : 0);
  }
}

/* A block of queries and a block of keys: which of these a query sees. */
struct seen {
  int64_t rows, cols;
  int64_t first;                 /* position of the first key */
  const int32_t *at, *begins;    /* [rows]; begins: NULL where all begin before these keys */
  bool triangle;                 /* query r sees no key after r */
};

static struct seen seen_of(const struct shape *s, const struct tokens *t, int64_t qb, int64_t kb)
{
  struct seen x = { .rows = TC_MIN((int64_t)EDGE, t->n - qb * EDGE), .cols = TC_MIN((int64_t)EDGE, s->T - kb * EDGE),
                    .first = kb * EDGE, .at = t->at + qb * EDGE };
  const int32_t *begins = t->begins + qb * EDGE;
  x.triangle = x.at[0] == x.first && x.at[x.rows - 1] - x.at[0] == x.rows - 1;
  if (begins[x.rows - 1] > x.first) x.begins = begins;
  return x;
}

/* Query r sees the keys [*from, *end) of the block. */
static inline void range_of(const struct seen *x, int64_t r, int *from, int *end)
{
  *end = (int)TC_MAX(0, TC_MIN(x->at[r] + 1 - x->first, x->cols));
  *from = x->begins ? (int)TC_MAX(0, TC_MIN(x->begins[r] - x->first, (int64_t)EDGE)) : 0;
}

/* No query sees a key: the first that is not before them all begins after them. */
static bool none_seen(const struct seen *x)
{
  int64_t r = 0;
  while (r < x->rows && x->at[r] < x->first) r++;
  return r == x->rows || (x->begins && x->begins[r] >= x->first + x->cols);
}

/* ---- packing ------------------------------------------------------------------------- */

/* y[rows][to] = scale * x[rows][from], n columns; other columns of y, up to `pad`, are set to 0. */
TC_CLONES static void scale_rows(float *y, int64_t to, const float *x, int64_t from, int64_t rows,
                                 int64_t n, int64_t pad, float scale)
{
  for (int64_t t = 0; t < rows; t++, y += to, x += from) {
#pragma omp simd
    for (int64_t j = 0; j < n; j++) y[j] = scale * x[j];
    for (int64_t j = n; j < pad; j++) y[j] = 0;
  }
}

/* Whether a block's rows are side by side, and floats. */
static bool is_plain(const struct shape *s, const struct tc_view *v) { return v->dtype == TC_F32 && s->c->rows.cp <= 1; }

/* y[n][ld] = scale * D elements from `at` of these rows of v, which have `step` elements. */
static void pack_rows(float *y, const struct shape *s, const struct tc_view *v, const int32_t *row, int64_t n, int64_t at,
                      int64_t step, float scale)
{
  if (is_plain(s, v) && n > 0) {
    scale_rows(y, s->ld, tc_cpu_f32(v) + row[0] * step + at, step, n, s->D, s->ld, scale);
    return;
  }
  for (int64_t t = 0; t < n; t++, y += s->ld) {
    if (v->dtype == TC_F32) {
      scale_rows(y, s->ld, tc_cpu_f32(v) + row[t] * step + at, step, 1, s->D, s->ld, scale);
    } else {
      tc_cpu_in(v, row[t] * step + at, s->D, y);
      scale_rows(y, s->ld, y, s->ld, 1, s->D, s->ld, scale);
    }
  }
}

/* y[blocks][D][EDGE] = x[T][ld] transposed block by block, zeros past T. */
static void transpose(float *y, const struct shape *s, const float *x)
{
  enum { STEP = 16 };                     /* a column of cache lines at a time */
  for (int64_t b = 0; b < s->blocks; b++, y += s->D * EDGE) {
    int64_t rows = TC_MIN((int64_t)EDGE, s->T - b * EDGE);
    if (rows < EDGE) memset(y, 0, (size_t)(s->D * EDGE) * sizeof *y);
    for (int64_t j0 = 0; j0 < s->D; j0 += STEP)
      for (int64_t t = 0; t < rows; t++)
        for (int64_t j = j0; j < TC_MIN(j0 + STEP, s->D); j++)
          y[j * EDGE + t] = x[(b * EDGE + t) * s->ld + j];
  }
}

/* D elements from `at` of these rows of v, which have `step` elements, = scale * x[n][ld]; x NULL: 0. */
static void unpack_rows(const struct tc_view *v, const int32_t *row, int64_t n, int64_t at, int64_t step,
                        const struct shape *s, const float *x, float scale)
{
  float buf[TC_BLOCK] = { 0 };
  TC_ASSERT(s->D <= TC_BLOCK);
  if (is_plain(s, v) && n > 0 && x) {
    scale_rows(tc_cpu_f32(v) + row[0] * step + at, step, x, s->ld, n, s->D, s->D, scale);
    return;
  }
  for (int64_t t = 0; t < n; t++) {
    const int64_t to = row[t] * step + at;
    float *y = v->dtype == TC_F32 ? tc_cpu_f32(v) + to : buf;
    if (x) scale_rows(y, 0, x + t * s->ld, 0, 1, s->D, s->D, scale);
    else memset(y, 0, (size_t)s->D * sizeof *y);
    if (y == buf) tc_cpu_put(v, to, s->D, buf);
  }
}

/* ---- forward ------------------------------------------------------------------------- */

/* One block of scores S[rows][EDGE], capped if cap > 0, becomes exp(S - max so far), 0 where a query does not see a key; the
 * running max, sum and output rows o[rows][ld] are rescaled. */
TC_CLONES static void exp_scores(float *S, const struct seen *x, float cap, float *max, float *sum, float *o, int64_t ld)
{
  for (int64_t r = 0; r < x->rows; r++, S += EDGE, o += ld) {
    int from, end;
    range_of(x, r, &from, &end);
    if (from >= end) {
      for (int j = 0; j < EDGE; j++) S[j] = 0;
      continue;
    }
    if (cap > 0) tc_cap_scores(S, EDGE, cap);
    for (int j = 0; j < from; j++) S[j] = -INFINITY;
    for (int j = end; j < EDGE; j++) S[j] = -INFINITY;
    tc_softmax_next(S, EDGE, &max[r], &sum[r], o, ld);
  }
}

/* q, k, v in the layout above; kt [blocks][D][EDGE]; one block of scores and output. */
struct forward { struct tokens t; float *q, *k, *v, *kt, *S, *o, *max, *sum; };

static int64_t forward_carve(struct forward *f, float *at, const struct shape *s)
{
  float *p = at + tokens_carve(&f->t, at, s);
  f->q = p, p += s->most * s->ld;
  f->v = f->k = p, p += s->T * s->ld;     /* k is packed here first, for its transpose */
  f->kt = p, p += s->blocks * s->D * EDGE;
  f->S = p, p += EDGE * EDGE;
  f->o = p, p += EDGE * s->ld;
  f->max = p, p += EDGE;
  f->sum = p, p += EDGE;
  return tc_round_up(p - at, 16);
}

int64_t tc_cpu_attn_scratch(struct tc_device *d, const struct tc_call *c)
{
  const struct shape s = shape_of(c, 0, 1);
  struct forward f;
  return forward_carve(&f, sizes_alone, &s) * d->threads * (int64_t)sizeof(float);
}

/* The output rows of query block `qb`, not yet divided by their sums. */
static void forward_block(struct tc_cpu *x, const struct shape *s, const struct forward *f, int64_t qb, int64_t rows)
{
  const int64_t last = f->t.at[qb * EDGE + rows - 1] / EDGE;
  memset(f->o, 0, (size_t)(rows * s->ld) * sizeof *f->o);
  for (int64_t r = 0; r < rows; r++) f->max[r] = -INFINITY, f->sum[r] = 0;
  for (int64_t kb = f->t.begins[qb * EDGE] / EDGE; kb <= last; kb++) {
    const struct seen block = seen_of(s, &f->t, qb, kb);
    if (none_seen(&block)) continue;
    x->tile(&(struct tc_tile){ .m = rows, .n = EDGE, .k = s->D, .a = f->q + qb * EDGE * s->ld,
                               .a_row = s->ld, .a_col = 1, .b = f->kt + kb * s->D * EDGE,
                               .ldb = EDGE, .c = f->S, .ldc = EDGE,
                               .tri = block.triangle ? TC_TRI_N : TC_TRI_NONE });
    exp_scores(f->S, &block, s->cap, f->max, f->sum, f->o, s->ld);
    x->tile(&(struct tc_tile){ .m = rows, .n = s->ld, .k = block.cols, .a = f->S, .a_row = EDGE,
                               .a_col = 1, .b = f->v + kb * EDGE * s->ld, .ldb = s->ld,
                               .c = f->o, .ldc = s->ld, .acc = true,
                               .tri = block.triangle ? TC_TRI_K_UPTO : TC_TRI_NONE });
  }
}

int tc_cpu_attn(struct tc_device *d, const struct tc_call *c)
{
  const struct shape s = shape_of(c, 0, 1);
  const int32_t *starts = tc_call_starts(c, 1 + (s.kv != s.x));
  float *lse = tc_cpu_f32(&c->out[1]);
#pragma omp parallel for num_threads(d->threads) schedule(static)
  for (int64_t pair = 0; pair < s.sequences * s.K * s.G; pair++) {
    struct forward f;
    const int64_t g = pair % s.G, k = pair / s.G % s.K, h = head_of(&s, k, g);
    float *mine = c->scratch;
    mine += omp_get_thread_num() * forward_carve(&f, mine, &s);
    forward_carve(&f, mine, &s);
    find_tokens(&f.t, &s, pair / s.G / s.K, starts);
    pack_rows(f.k, &s, s.kv, f.t.key, s.T, key_at(&s, k), s.kv_step, 1.f);
    transpose(f.kt, &s, f.k);
    pack_rows(f.q, &s, s.x, f.t.row, f.t.n, group_at(&s, k) + g * s.D, s.step, s.scale);
    pack_rows(f.v, &s, s.kv, f.t.key, s.T, key_at(&s, k) + s.D, s.kv_step, 1.f);
    for (int64_t q0 = 0; q0 < f.t.n; q0 += EDGE) {
      const int64_t rows = TC_MIN((int64_t)EDGE, f.t.n - q0);
      forward_block(tc_cpu_of(d), &s, &f, q0 / EDGE, rows);
      for (int64_t r = 0; r < rows; r++) {
        const int32_t *row = &f.t.row[q0 + r];
        unpack_rows(&c->out[0], row, 1, h * s.D, s.y_step, &s, f.o + r * s.ld, 1.f / f.sum[r]);
        lse[*row * s.H + h] = f.max[r] + logf(f.sum[r]);
      }
    }
  }
  return 0;
}

/* ---- backward ------------------------------------------------------------------------ */

/* slope[EDGE]: of capped scores, which S becomes, over those before. */
static inline __attribute__((always_inline)) void cap_row(float *slope, float *S, float cap)
{
  const float by = 1.f / cap;
  tc_cap_scores(S, EDGE, cap);
#pragma omp simd
  for (int j = 0; j < EDGE; j++) slope[j] = (1.f - S[j] * by) * (1.f + S[j] * by);
}

/* Makes P = exp(S - lse) and dS = P (dP - delta) of scores S and dP = dO V^T, all [rows][EDGE], each
 * in place; 0 where a query does not see a key. With cap > 0 P is of capped scores, and dS of those before. */
TC_CLONES static void probabilities(float *S, float *dP, const struct seen *x, float cap, const float *lse,
                                    const float *delta)
{
  float slope[EDGE] = { 0 };
  for (int64_t r = 0; r < x->rows; r++, S += EDGE, dP += EDGE) {
    int from, end;
    range_of(x, r, &from, &end);
    const float l = lse[r], e = delta[r];
    if (cap > 0) cap_row(slope, S, cap);
#pragma omp simd
    for (int j = 0; j < EDGE; j++) {
      float p = tc_expf(S[j] - l), ds = p * (dP[j] - e);
      S[j] = j >= from && j < end ? p : 0.f;
      dP[j] = j >= from && j < end ? ds : 0.f;
    }
    for (int j = from; j < end && cap > 0; j++) dP[j] *= slope[j];
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

/* q is scaled; g is dO; dk, dv are of one block of keys, or, where several heads add to them, of all. */
struct backward { struct tokens t; float *q, *k, *g, *dq, *any, *kt, *vt, *S, *dP, *dk, *dv, *lse, *delta; };

static int64_t key_rows(const struct shape *s) { return s->G > 1 ? s->blocks * EDGE : EDGE; }

static int64_t backward_carve(struct backward *b, float *at, const struct shape *s)
{
  float *p = at + tokens_carve(&b->t, at, s);
  b->q = p, p += s->most * s->ld;
  b->k = p, p += s->T * s->ld;
  b->g = p, p += s->most * s->ld;
  b->dq = b->any = p, p += s->T * s->ld;  /* v, then the output, are packed here first */
  b->kt = p, p += s->blocks * s->D * EDGE;
  b->vt = p, p += s->blocks * s->D * EDGE;
  b->S = p, p += EDGE * EDGE;
  b->dP = p, p += EDGE * EDGE;
  b->dk = p, p += key_rows(s) * s->ld;
  b->dv = p, p += key_rows(s) * s->ld;
  b->lse = p, p += tc_round_up(s->most, 16);
  b->delta = p, p += tc_round_up(s->most, 16);
  return tc_round_up(p - at, 16);
}

int64_t tc_cpu_attn_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  const struct shape s = shape_of(c, 1, 4);
  struct backward b;
  return backward_carve(&b, sizes_alone, &s) * d->threads * (int64_t)sizeof(float);
}

/* What all heads of a group share. */
static void pack_keys(const struct shape *s, const struct backward *b, int64_t k)
{
  pack_rows(b->k, s, s->kv, b->t.key, s->T, key_at(s, k), s->kv_step, 1.f);
  transpose(b->kt, s, b->k);
  pack_rows(b->any, s, s->kv, b->t.key, s->T, key_at(s, k) + s->D, s->kv_step, 1.f);
  transpose(b->vt, s, b->any);
}

/* Head h, whose query is at `query`. */
static void pack_query(const struct shape *s, const struct backward *b, int64_t h, int64_t query)
{
  const struct tc_view *dy = &s->c->in[0], *y = &s->c->in[2];
  const float *lse = tc_cpu_f32(&s->c->in[3]);
  const struct tokens *t = &b->t;
  pack_rows(b->q, s, s->x, t->row, t->n, query, s->step, s->scale);
  pack_rows(b->g, s, dy, t->row, t->n, h * s->D, s->y_step, 1.f);
  pack_rows(b->any, s, y, t->row, t->n, h * s->D, s->y_step, 1.f);
  row_dots(b->delta, b->g, b->any, t->n, s->ld);
  for (int64_t i = 0; i < t->n; i++) b->lse[i] = lse[t->row[i] * s->H + h];
  memset(b->dq, 0, (size_t)(t->n * s->ld) * sizeof *b->dq);
}

/* Adds the contributions of query block qb and key block kb to dq, dk and dv. */
static void backward_block(struct tc_cpu *x, const struct shape *s, const struct backward *b, const struct seen *block,
                           int64_t qb, int64_t kb)
{
  const int64_t rows = block->rows, cols = block->cols, ld = s->ld;
  const bool triangle = block->triangle;
  float *q = b->q + qb * EDGE * ld, *g = b->g + qb * EDGE * ld;
  struct tc_tile t = { .m = rows, .n = EDGE, .k = s->D, .a = q, .a_row = ld, .a_col = 1,
                       .b = b->kt + kb * s->D * EDGE, .ldb = EDGE, .c = b->S, .ldc = EDGE,
                       .tri = triangle ? TC_TRI_N : TC_TRI_NONE };
  x->tile(&t);                                             /* S = q k^T */
  t.a = g, t.b = b->vt + kb * s->D * EDGE, t.c = b->dP;
  x->tile(&t);                                             /* dP = dO v^T */
  probabilities(b->S, b->dP, block, s->cap, b->lse + qb * EDGE, b->delta + qb * EDGE);
  t = (struct tc_tile){ .m = cols, .n = ld, .k = rows, .a = b->S, .a_row = 1, .a_col = EDGE,
                        .b = g, .ldb = ld, .c = b->dv, .ldc = ld, .acc = true,
                        .tri = triangle ? TC_TRI_K_FROM : TC_TRI_NONE };
  x->tile(&t);                                             /* dv += P^T dO */
  t.a = b->dP, t.b = q, t.c = b->dk;
  x->tile(&t);                                             /* dk += dS^T q */
  t = (struct tc_tile){ .m = rows, .n = ld, .k = cols, .a = b->dP, .a_row = EDGE, .a_col = 1,
                        .b = b->k + kb * EDGE * ld, .ldb = ld, .c = b->dq + qb * EDGE * ld,
                        .ldc = ld, .acc = true,
                        .tri = triangle ? TC_TRI_K_UPTO : TC_TRI_NONE };
  x->tile(&t);                                             /* dq += dS k */
}

/* Head g of group k: its dq, and what it adds to the group's dk and dv, which the last head writes. */
static void backward_head(struct tc_device *d, const struct shape *s, const struct backward *all, int64_t k, int64_t g)
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
      const struct seen block = seen_of(s, t, qb, kb);
      backward_block(tc_cpu_of(d), s, &b, &block, qb, kb);
    }
    if (g < s->G - 1) continue;
    unpack_rows(dkv, t->key + t0, rows, key, s->kv_step, s, b.dk, 1.f);
    unpack_rows(dkv, t->key + t0, rows, key + s->D, s->kv_step, s, b.dv, 1.f);
  }
  unpack_rows(dqkv, t->row, t->n, query, s->step, s, all->dq, s->scale);
  for (int i = 0; i < 2 && g == 0 && dkv != dqkv; i++)     /* these are elsewhere */
    unpack_rows(dqkv, t->row, t->n, group_at(s, k) + (s->G + i) * s->D, s->step, s, NULL, 0);
}

int tc_cpu_attn_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct shape s = shape_of(c, 1, 4);
  const int32_t *starts = tc_call_starts(c, 4 + (s.kv != s.x));
#pragma omp parallel for num_threads(d->threads) schedule(static)
  for (int64_t pair = 0; pair < s.sequences * s.K; pair++) {
    struct backward b;
    const int64_t k = pair % s.K;
    float *mine = c->scratch;
    mine += omp_get_thread_num() * backward_carve(&b, mine, &s);
    backward_carve(&b, mine, &s);
    find_tokens(&b.t, &s, pair / s.K, starts);
    pack_keys(&s, &b, k);
    for (int64_t g = 0; g < s.G; g++) backward_head(d, &s, &b, k, g);
  }
  return 0;
}
