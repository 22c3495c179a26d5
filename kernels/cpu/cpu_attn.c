/* cpu_attn.c - causal attention by blocks of queries and keys, as in Dao et al.,
 * "FlashAttention", NeurIPS 2022: only one block of scores exists at a time.
 *
 * Forward a thread processes a (sequence, head), backward a (sequence, group of heads that share a key): it packs
 * q, k, v as dense fp32 rows of `ld` columns (D rounded up to 16, zeros), and k^T (backward: v^T too) as blocks
 * [D][EDGE]; then the products are those of cpu_tile.c. Forward stores the log of the sum of exponentials of each row,
 * from which backward recomputes the probabilities. No sum spans two (sequence, group) pairs: results don't
 * depend on threads.
 *
 * With documents a query's keys begin at starts[query], which never falls within a sequence: blocks in which no query
 * sees a key are left out, and of the others the columns before a query's first key are masked. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

#include <omp.h>
#include <string.h>

enum { EDGE = 64 };                       /* rows and columns of a block of scores */

struct shape {
  int64_t T, H, D, ld, blocks;            /* blocks of EDGE tokens */
  int64_t sequences, K, G;                /* K groups of G heads that share a key and a value */
  int64_t step, y_step;                   /* elements from token to token in qkv, in the output */
  float scale;
};

static struct shape shape_of(const struct tc_view *qkv, int64_t T)
{
  TC_ASSERT(T > 0 && qkv->rank == 4 && qkv->dim[2] >= 3 && qkv->dim[0] % T == 0);
  struct shape s = { .T = T, .K = qkv->dim[1], .G = qkv->dim[2] - 2, .D = qkv->dim[3] };
  s.H = s.K * s.G;
  s.step = s.K * (s.G + 2) * s.D;
  s.y_step = s.H * s.D;
  s.ld = tc_round_up(s.D, 16);
  s.blocks = tc_ceil_div(T, EDGE);
  s.sequences = qkv->dim[0] / T;
  s.scale = 1.f / sqrtf((float)s.D);
  return s;
}

/* Where group k of the token that begins at n0 has its first query in qkv; its key follows its G queries. */
static int64_t group_at(const struct shape *s, int64_t n0, int64_t k)
{
  return n0 * s->step + k * (s->G + 2) * s->D;
}

/* Documents of one sequence: starts[T]; NULL: there are none. The first block of keys that query block qb sees, ... */
static int64_t first_block(const int32_t *starts, int64_t qb) { return starts ? starts[qb * EDGE] / EDGE : 0; }

/* ... and, where some of its queries begin later than that of key block kb, their starts. */
static const int32_t *starts_within(const struct shape *s, const int32_t *starts, int64_t qb, int64_t kb)
{
  const int64_t last = TC_MIN((qb + 1) * EDGE, s->T) - 1;
  return starts && starts[last] > kb * EDGE ? starts + qb * EDGE : NULL;
}

/* The first column of key block kb that row r sees. */
static inline int first_column(const int32_t *starts, int64_t r, int64_t kb)
{
  return starts ? (int)TC_MAX(0, TC_MIN(starts[r] - kb * EDGE, (int64_t)EDGE)) : 0;
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

/* y[T][ld] = scale * D elements of v from `at`, one token per `step` elements. */
static void pack_rows(float *y, const struct shape *s, const struct tc_view *v, int64_t at,
                      int64_t step, float scale)
{
  if (v->dtype == TC_F32) {
    scale_rows(y, s->ld, tc_cpu_f32(v) + at, step, s->T, s->D, s->ld, scale);
    return;
  }
  for (int64_t t = 0; t < s->T; t++) tc_cpu_in(v, at + t * step, s->D, y + t * s->ld);
  scale_rows(y, s->ld, y, s->ld, s->T, s->D, s->ld, scale);
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

/* D elements of v from `at`, a token every `step`, = scale * x[T][ld]. */
static void unpack_rows(const struct tc_view *v, int64_t at, int64_t step, const struct shape *s,
                        int64_t rows, const float *x, float scale)
{
  float buf[TC_BLOCK];
  TC_ASSERT(s->D <= TC_BLOCK);
  if (v->dtype == TC_F32) {
    scale_rows(tc_cpu_f32(v) + at, step, x, s->ld, rows, s->D, s->D, scale);
    return;
  }
  for (int64_t t = 0; t < rows; t++, x += s->ld, at += step) {
    scale_rows(buf, 0, x, 0, 1, s->D, s->D, scale);
    tc_cpu_put(v, at, s->D, buf);
  }
}

/* ---- forward ------------------------------------------------------------------------- */

/* One block of scores S[rows][EDGE] becomes exp(S - max so far); the running max, sum and
 * output rows o[rows][ld] are rescaled. On the diagonal row r uses columns 0..r, the
 * others are ignored; `cols` columns exist. starts: see starts_within. */
TC_CLONES static void exp_scores(float *S, int64_t rows, int64_t cols, bool diagonal, const int32_t *starts,
                             int64_t kb, float *max, float *sum, float *o, int64_t ld)
{
  for (int64_t r = 0; r < rows; r++, S += EDGE, o += ld) {
    const int live = (int)(diagonal ? TC_MIN(r + 1, cols) : cols), from = first_column(starts, r, kb);
    if (from >= live) {
      for (int j = 0; j < EDGE; j++) S[j] = 0;
      continue;
    }
    for (int j = 0; j < from; j++) S[j] = -INFINITY;
    for (int j = live; j < EDGE; j++) S[j] = -INFINITY;
    tc_softmax_next(S, EDGE, &max[r], &sum[r], o, ld);
  }
}

/* q, k, v in the layout above; kt [blocks][D][EDGE]; one block of scores and output. */
struct forward { float *q, *v, *kt, *S, *o, *max, *sum; };

static int64_t forward_carve(struct forward *f, float *at, const struct shape *s)
{
  float *p = at;
  f->q = p, p += s->T * s->ld;            /* k is packed here first, for its transpose */
  f->v = p, p += s->T * s->ld;
  f->kt = p, p += s->blocks * s->D * EDGE;
  f->S = p, p += EDGE * EDGE;
  f->o = p, p += EDGE * s->ld;
  f->max = p, p += EDGE;
  f->sum = p, p += EDGE;
  return tc_round_up(p - at, 16);
}

int64_t tc_cpu_attn_scratch(struct tc_device *d, const struct tc_call *c)
{
  struct shape s = shape_of(&c->in[0], c->k[0]);
  int64_t floats = (2 * s.T + EDGE) * s.ld + s.blocks * s.D * EDGE + EDGE * EDGE + 2 * EDGE;
  return tc_round_up(floats, 16) * d->threads * (int64_t)sizeof(float);
}

/* The output rows of query block `qb`, not yet divided by their sums. */
static void forward_block(struct tc_cpu *x, const struct shape *s, const struct forward *f, const int32_t *starts,
                          int64_t qb)
{
  int64_t rows = TC_MIN((int64_t)EDGE, s->T - qb * EDGE);
  memset(f->o, 0, (size_t)(rows * s->ld) * sizeof *f->o);
  for (int64_t r = 0; r < rows; r++) f->max[r] = -INFINITY, f->sum[r] = 0;
  for (int64_t kb = first_block(starts, qb); kb <= qb; kb++) {
    bool diagonal = kb == qb;
    int64_t cols = TC_MIN((int64_t)EDGE, s->T - kb * EDGE);
    x->tile(&(struct tc_tile){ .m = rows, .n = EDGE, .k = s->D, .a = f->q + qb * EDGE * s->ld,
                               .a_row = s->ld, .a_col = 1, .b = f->kt + kb * s->D * EDGE,
                               .ldb = EDGE, .c = f->S, .ldc = EDGE,
                               .tri = diagonal ? TC_TRI_N : TC_TRI_NONE });
    exp_scores(f->S, rows, cols, diagonal, starts_within(s, starts, qb, kb), kb, f->max, f->sum, f->o, s->ld);
    x->tile(&(struct tc_tile){ .m = rows, .n = s->ld, .k = cols, .a = f->S, .a_row = EDGE,
                               .a_col = 1, .b = f->v + kb * EDGE * s->ld, .ldb = s->ld,
                               .c = f->o, .ldc = s->ld, .acc = true,
                               .tri = diagonal ? TC_TRI_K_UPTO : TC_TRI_NONE });
  }
}

int tc_cpu_attn(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *qkv = &c->in[0];
  const struct shape s = shape_of(qkv, c->k[0]);
  const int32_t *starts = tc_call_starts(c, 1);
  float *lse = tc_cpu_f32(&c->out[1]);
#pragma omp parallel for num_threads(d->threads) schedule(static)
  for (int64_t pair = 0; pair < s.sequences * s.H; pair++) {
    struct forward f;
    const int64_t n0 = pair / s.H * s.T, h = pair % s.H, group = group_at(&s, n0, h / s.G);
    const int64_t query = group + h % s.G * s.D, key = group + s.G * s.D;
    float *mine = c->scratch;
    mine += omp_get_thread_num() * forward_carve(&f, mine, &s);
    forward_carve(&f, mine, &s);
    pack_rows(f.q, &s, qkv, key, s.step, 1.f);
    transpose(f.kt, &s, f.q);
    pack_rows(f.q, &s, qkv, query, s.step, s.scale);
    pack_rows(f.v, &s, qkv, key + s.D, s.step, 1.f);
    for (int64_t qb = 0; qb < s.blocks; qb++) {
      int64_t t0 = qb * EDGE, rows = TC_MIN((int64_t)EDGE, s.T - t0);
      forward_block(tc_cpu_of(d), &s, &f, starts ? starts + n0 : NULL, qb);
      for (int64_t r = 0; r < rows; r++) {
        int64_t n = (n0 + t0 + r) * s.H + h;
        unpack_rows(&c->out[0], n * s.D, 0, &s, 1, f.o + r * s.ld, 1.f / f.sum[r]);
        lse[n] = f.max[r] + logf(f.sum[r]);
      }
    }
  }
  return 0;
}

/* ---- backward ------------------------------------------------------------------------ */

/* Makes P = exp(S - lse) and dS = P (dP - delta) of scores S and dP = dO V^T, all [rows][EDGE], each
 * in place; 0 for pairs that causality or documents exclude. starts: see starts_within. */
TC_CLONES static void probabilities(float *S, float *dP, int64_t rows, int64_t cols, bool diagonal,
                                    const int32_t *starts, int64_t kb, const float *lse, const float *delta)
{
  for (int64_t r = 0; r < rows; r++, S += EDGE, dP += EDGE) {
    const int live = (int)(diagonal ? TC_MIN(r + 1, cols) : cols), from = first_column(starts, r, kb);
    const float l = lse[r], e = delta[r];
#pragma omp simd
    for (int j = 0; j < EDGE; j++) {
      float p = tc_expf(S[j] - l), ds = p * (dP[j] - e);
      S[j] = j >= from && j < live ? p : 0.f;
      dP[j] = j >= from && j < live ? ds : 0.f;
    }
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
struct backward { float *q, *k, *g, *dq, *kt, *vt, *S, *dP, *dk, *dv, *lse, *delta; };

static int64_t key_rows(const struct shape *s) { return s->G > 1 ? s->blocks * EDGE : EDGE; }

static int64_t backward_carve(struct backward *b, float *at, const struct shape *s)
{
  float *p = at;
  b->q = p, p += s->T * s->ld;
  b->k = p, p += s->T * s->ld;
  b->g = p, p += s->T * s->ld;
  b->dq = p, p += s->T * s->ld;           /* v, then the output, are packed here first */
  b->kt = p, p += s->blocks * s->D * EDGE;
  b->vt = p, p += s->blocks * s->D * EDGE;
  b->S = p, p += EDGE * EDGE;
  b->dP = p, p += EDGE * EDGE;
  b->dk = p, p += key_rows(s) * s->ld;
  b->dv = p, p += key_rows(s) * s->ld;
  b->lse = p, p += tc_round_up(s->T, 16);
  b->delta = p, p += tc_round_up(s->T, 16);
  return tc_round_up(p - at, 16);
}

int64_t tc_cpu_attn_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  struct shape s = shape_of(&c->in[1], c->k[0]);
  int64_t floats = (4 * s.T + 2 * key_rows(&s)) * s.ld + 2 * s.blocks * s.D * EDGE + 2 * EDGE * EDGE
                   + 2 * tc_round_up(s.T, 16);
  return tc_round_up(floats, 16) * d->threads * (int64_t)sizeof(float);
}

/* What all heads of a group share. */
static void pack_keys(const struct shape *s, const struct backward *b, const struct tc_view *qkv, int64_t key)
{
  pack_rows(b->k, s, qkv, key, s->step, 1.f);
  transpose(b->kt, s, b->k);
  pack_rows(b->dq, s, qkv, key + s->D, s->step, 1.f);
  transpose(b->vt, s, b->dq);
}

/* Head h, whose query is at `query`. */
static void pack_query(const struct shape *s, const struct backward *b, const struct tc_call *c, int64_t n0,
                       int64_t h, int64_t query)
{
  const struct tc_view *dy = &c->in[0], *qkv = &c->in[1], *y = &c->in[2];
  const float *lse = tc_cpu_f32(&c->in[3]);
  const int64_t y_at = n0 * s->y_step + h * s->D;
  pack_rows(b->q, s, qkv, query, s->step, s->scale);
  pack_rows(b->g, s, dy, y_at, s->y_step, 1.f);
  pack_rows(b->dq, s, y, y_at, s->y_step, 1.f);
  row_dots(b->delta, b->g, b->dq, s->T, s->ld);
  for (int64_t t = 0; t < s->T; t++) b->lse[t] = lse[(n0 + t) * s->H + h];
  memset(b->dq, 0, (size_t)(s->T * s->ld) * sizeof *b->dq);
}

/* Adds the contributions of query block qb and key block kb to dq, dk and dv. */
static void backward_block(struct tc_cpu *x, const struct shape *s, const struct backward *b, const int32_t *starts,
                           int64_t qb, int64_t kb)
{
  const int64_t rows = TC_MIN((int64_t)EDGE, s->T - qb * EDGE), ld = s->ld;
  const int64_t cols = TC_MIN((int64_t)EDGE, s->T - kb * EDGE);
  const bool diagonal = qb == kb;
  float *q = b->q + qb * EDGE * ld, *g = b->g + qb * EDGE * ld;
  struct tc_tile t = { .m = rows, .n = EDGE, .k = s->D, .a = q, .a_row = ld, .a_col = 1,
                       .b = b->kt + kb * s->D * EDGE, .ldb = EDGE, .c = b->S, .ldc = EDGE,
                       .tri = diagonal ? TC_TRI_N : TC_TRI_NONE };
  x->tile(&t);                                             /* S = q k^T */
  t.a = g, t.b = b->vt + kb * s->D * EDGE, t.c = b->dP;
  x->tile(&t);                                             /* dP = dO v^T */
  probabilities(b->S, b->dP, rows, cols, diagonal, starts_within(s, starts, qb, kb), kb, b->lse + qb * EDGE,
                b->delta + qb * EDGE);
  t = (struct tc_tile){ .m = cols, .n = ld, .k = rows, .a = b->S, .a_row = 1, .a_col = EDGE,
                        .b = g, .ldb = ld, .c = b->dv, .ldc = ld, .acc = true,
                        .tri = diagonal ? TC_TRI_K_FROM : TC_TRI_NONE };
  x->tile(&t);                                             /* dv += P^T dO */
  t.a = b->dP, t.b = q, t.c = b->dk;
  x->tile(&t);                                             /* dk += dS^T q */
  t = (struct tc_tile){ .m = rows, .n = ld, .k = cols, .a = b->dP, .a_row = EDGE, .a_col = 1,
                        .b = b->k + kb * EDGE * ld, .ldb = ld, .c = b->dq + qb * EDGE * ld,
                        .ldc = ld, .acc = true,
                        .tri = diagonal ? TC_TRI_K_UPTO : TC_TRI_NONE };
  x->tile(&t);                                             /* dq += dS k */
}

/* Head g of a group: its dq, and what it adds to the group's dk and dv, which the last head writes. */
static void backward_head(struct tc_device *d, const struct tc_call *c, const struct shape *s,
                          const struct backward *all, int64_t n0, int64_t k, int64_t g)
{
  const struct tc_view *dqkv = &c->out[0];
  const int64_t query = group_at(s, n0, k) + g * s->D, key = group_at(s, n0, k) + s->G * s->D;
  const int32_t *starts = tc_call_starts(c, 4) ? tc_call_starts(c, 4) + n0 : NULL;
  pack_query(s, all, c, n0, k * s->G + g, query);
  for (int64_t kb = 0; kb < s->blocks; kb++) {
    const int64_t t0 = kb * EDGE, rows = TC_MIN((int64_t)EDGE, s->T - t0), at = t0 * s->step;
    struct backward b = *all;
    if (s->G > 1) {
      b.dk += t0 * s->ld;
      b.dv += t0 * s->ld;
    }
    if (g == 0) {
      memset(b.dk, 0, (size_t)(EDGE * s->ld) * sizeof *b.dk);
      memset(b.dv, 0, (size_t)(EDGE * s->ld) * sizeof *b.dv);
    }
    for (int64_t qb = kb; qb < s->blocks && first_block(starts, qb) <= kb; qb++)
      backward_block(tc_cpu_of(d), s, &b, starts, qb, kb);
    if (g < s->G - 1) continue;
    unpack_rows(dqkv, key + at, s->step, s, rows, b.dk, 1.f);
    unpack_rows(dqkv, key + s->D + at, s->step, s, rows, b.dv, 1.f);
  }
  unpack_rows(dqkv, query, s->step, s, s->T, all->dq, s->scale);
}

int tc_cpu_attn_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct shape s = shape_of(&c->in[1], c->k[0]);
#pragma omp parallel for num_threads(d->threads) schedule(static)
  for (int64_t pair = 0; pair < s.sequences * s.K; pair++) {
    struct backward b;
    const int64_t n0 = pair / s.K * s.T, k = pair % s.K;
    float *mine = c->scratch;
    mine += omp_get_thread_num() * backward_carve(&b, mine, &s);
    backward_carve(&b, mine, &s);
    pack_keys(&s, &b, &c->in[1], group_at(&s, n0, k) + s.G * s.D);
    for (int64_t g = 0; g < s.G; g++) backward_head(d, c, &s, &b, n0, k, g);
  }
  return 0;
}
