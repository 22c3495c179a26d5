/* cpu_cache.c - attention of new tokens over the keys and values of a sequence so far.
 *
 * A thread processes a (group of heads that share a key, sequence): it puts the new keys and values into the cache,
 * which it then reads once, in blocks of EDGE tokens, for all new tokens and all queries of the group. As in cpu_attn.c
 * only one block of scores exists at a time. A sampled token has few queries, and memory is what limits it: each is
 * multiplied by the keys and values where they are. A prompt has many: keys are transposed, so that the products are
 * those of cpu_tile.c. Position p is in row p mod M, so blocks also end where the rows do; with a window the first one begins
 * with the first token that the first new one sees. No sum spans two (group, sequence) pairs: results don't depend on threads. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { EDGE = 64, FEW = 16 };             /* tokens of a block; most queries that are multiplied one by one */

/* Sizes of a call: S new tokens of each of B sequences, K groups of G queries of D, a cache of M tokens; R = S * G
 * queries; ld: D rounded up to 16; window: 0: none. */
struct sizes { int64_t B, S, K, G, D, M, R, ld, window; float cap; };

static struct sizes sizes_of(const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *cache = &c->in[1];
  struct sizes s = { .B = cache->dim[0], .S = x->dim[0] / cache->dim[0], .K = x->dim[1], .G = x->dim[2] - 2,
                     .D = x->dim[3], .M = cache->dim[2], .ld = tc_round_up(x->dim[3], 16), .window = c->k[2],
                     .cap = c->f[1] };
  s.R = s.S * s.G;
  TC_ASSERT(cache->dim[1] == s.K && cache->dim[3] == 2 * s.D && s.D <= TC_BLOCK);
  return s;
}

/* The position of new token n in its sequence. */
static int64_t position(const struct tc_call *c, int64_t n)
{
  return tc_call_row(c, &c->in[0], n) % c->k[0] - tc_cpu_i32(&c->in[2])[n];
}

/* A thread's scratch. Of each query (rows of ld, zeros after D): it, its output, the largest score so far and the sum
 * of exponentials; then a block of scores [EDGE][EDGE] and a block of the cache: as fp32 [EDGE][2 D], its keys
 * transposed [D][EDGE], its values [EDGE][ld]. */
struct work { float *q, *o, *max, *sum, *score, *pairs, *kt, *v; };

/* Returns how many floats it takes. */
static int64_t carve(struct work *w, float *at, const struct sizes *s)
{
  const struct { float **part; int64_t floats; } part[] = {
    { &w->q, s->R * s->ld }, { &w->o, s->R * s->ld }, { &w->max, s->R }, { &w->sum, s->R }, { &w->score, EDGE * EDGE },
    { &w->pairs, EDGE * 2 * s->D }, { &w->kt, s->D * EDGE }, { &w->v, EDGE * s->ld } };
  int64_t n = 0;
  for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
    *part[i].part = at ? at + n : NULL;
    n += tc_round_up(part[i].floats, 16);
  }
  return n;
}

int64_t tc_cpu_attn_cache_scratch(struct tc_device *d, const struct tc_call *c)
{
  const struct sizes s = sizes_of(c);
  struct work w;
  return d->threads * carve(&w, NULL, &s) * (int64_t)sizeof(float);
}

/* ---- few queries ------------------------------------------------------------------------ */

/* A key and a value: `pairs` are rows of 2 D. Four of them at a time; those past the last are row 0 of the four. */
#define FOUR_ROWS(p, m, n, D)                                                                 \
  const float *r0 = (p) + (m) * 2 * (D), *r1 = (m) + 1 < (n) ? r0 + 2 * (D) : r0,             \
              *r2 = (m) + 2 < (n) ? r0 + 4 * (D) : r0, *r3 = (m) + 3 < (n) ? r0 + 6 * (D) : r0

/* score[n, rounded up to 4] = q . keys. */
TC_CLONES static void scores_of(float *score, const float *q, const float *pairs, int64_t n, int64_t D)
{
  for (int64_t m = 0; m < n; m += 4) {
    FOUR_ROWS(pairs, m, n, D);
    float a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
    for (int64_t j = 0; j < D; j++) {
      a += q[j] * r0[j];
      b += q[j] * r1[j];
      c += q[j] * r2[j];
      d += q[j] * r3[j];
    }
    score[m] = a, score[m + 1] = b, score[m + 2] = c, score[m + 3] = d;
  }
}

/* o += p[n] . values; p is 0 up to the next multiple of 4. */
TC_CLONES static void add_values(float *o, const float *p, const float *pairs, int64_t n, int64_t D)
{
  for (int64_t m = 0; m < n; m += 4) {
    FOUR_ROWS(pairs + D, m, n, D);
    const float a = p[m], b = p[m + 1], c = p[m + 2], d = p[m + 3];
#pragma omp simd
    for (int64_t j = 0; j < D; j++) o[j] = o[j] + a * r0[j] + b * r1[j] + c * r2[j] + d * r3[j];
  }
}

/* Tokens of a block that a query sees; none: end <= from. */
struct live { int64_t from, end; };

/* The scores of query r for a block as weights. */
TC_CLONES static void weights_of(float *score, struct live l, const struct sizes *s, const struct work *w, int64_t r)
{
  if (s->cap > 0) tc_cap_scores(score, EDGE, s->cap);
  for (int64_t m = 0; m < l.from; m++) score[m] = -INFINITY;
  for (int64_t m = l.end; m < EDGE; m++) score[m] = -INFINITY;
  tc_softmax_next(score, EDGE, &w->max[r], &w->sum[r], w->o + r * s->ld, s->ld);
}

/* A block of the cache for the sequence whose first new token is n0: tokens [at, at + n), keys and values as fp32. */
struct block { int64_t n0, at, n; const float *pairs; };

/* The first token that the query at position p sees. */
static int64_t first_seen(const struct sizes *s, int64_t p) { return s->window > 0 ? TC_MAX(0, p + 1 - s->window) : 0; }

static struct live live(const struct tc_call *c, const struct sizes *s, const struct block *b, int64_t r)
{
  const int64_t p = position(c, b->n0 + r / s->G);
  return (struct live){ TC_MAX(0, first_seen(s, p) - b->at), TC_MIN(b->n, p + 1 - b->at) };
}

static void attend_few(const struct tc_call *c, const struct sizes *s, const struct work *w, const struct block *b)
{
  for (int64_t r = 0; r < s->R; r++) {
    const struct live l = live(c, s, b, r);
    if (l.end <= l.from) continue;
    scores_of(w->score, w->q + r * s->ld, b->pairs, l.end, s->D);
    weights_of(w->score, l, s, w, r);
    add_values(w->o + r * s->ld, w->score, b->pairs, l.end, s->D);
  }
}

/* ---- many queries ----------------------------------------------------------------------- */

/* kt[D][EDGE], zeros after n, and v[n][ld], zeros after D. */
static void pack(const struct work *w, const struct sizes *s, const struct block *b)
{
  memset(w->kt, 0, (size_t)(s->D * EDGE) * sizeof *w->kt);
  memset(w->v, 0, (size_t)(b->n * s->ld) * sizeof *w->v);
  for (int64_t m = 0; m < b->n; m++) {
    const float *key = b->pairs + m * 2 * s->D;
    for (int64_t j = 0; j < s->D; j++) w->kt[j * EDGE + m] = key[j];
    memcpy(w->v + m * s->ld, key + s->D, (size_t)s->D * sizeof *w->v);
  }
}

/* Tokens are in order: of EDGE queries the last one sees the latest token, and the first one the earliest. */
static void attend_many(struct tc_cpu *x, const struct tc_call *c, const struct sizes *s, const struct work *w,
                        const struct block *b)
{
  pack(w, s, b);
  for (int64_t r0 = 0; r0 < s->R; r0 += EDGE) {
    const int64_t rows = TC_MIN((int64_t)EDGE, s->R - r0);
    if (live(c, s, b, r0 + rows - 1).end <= 0 || live(c, s, b, r0).from >= b->n) continue;
    x->tile(&(struct tc_tile){ .m = rows, .n = EDGE, .k = s->D, .a = w->q + r0 * s->ld, .a_row = s->ld, .a_col = 1,
                               .b = w->kt, .ldb = EDGE, .c = w->score, .ldc = EDGE });
    for (int64_t r = 0; r < rows; r++) {
      const struct live l = live(c, s, b, r0 + r);
      if (l.from < l.end) weights_of(w->score + r * EDGE, l, s, w, r0 + r);
      else memset(w->score + r * EDGE, 0, EDGE * sizeof *w->score);
    }
    x->tile(&(struct tc_tile){ .m = rows, .n = s->ld, .k = b->n, .a = w->score, .a_row = EDGE, .a_col = 1, .b = w->v,
                               .ldb = s->ld, .c = w->o + r0 * s->ld, .ldc = s->ld, .acc = true });
  }
}

/* ---- a group of a sequence --------------------------------------------------------------- */

/* q <- the queries of group k, scaled; nothing is summed yet. */
static void begin(const struct tc_call *c, const struct sizes *s, const struct work *w, int64_t n0, int64_t k)
{
  const float scale = tc_call_scale(c, s->D);
  float buf[TC_BLOCK];
  memset(w->q, 0, (size_t)(s->R * s->ld) * sizeof *w->q);
  memset(w->o, 0, (size_t)(s->R * s->ld) * sizeof *w->o);
  for (int64_t r = 0; r < s->R; r++) {
    const int64_t at = ((n0 + r / s->G) * s->K + k) * (s->G + 2) + r % s->G;
    const float *q = tc_cpu_in(&c->in[0], at * s->D, s->D, buf);
    for (int64_t j = 0; j < s->D; j++) w->q[r * s->ld + j] = scale * q[j];
    w->max[r] = -INFINITY, w->sum[r] = 0;
  }
}

/* The keys and values of new tokens go to the group's rows of the cache, which begin at `rows`. */
static void put(const struct tc_call *c, const struct sizes *s, int64_t n0, int64_t k, int64_t rows)
{
  const size_t elem = tc_dtype_bytes(c->in[0].dtype), pair = (size_t)(2 * s->D) * elem;
  const char *from = c->in[0].data;
  char *to = c->out[1].data;
  for (int64_t n = n0; n < n0 + s->S; n++)
    memcpy(to + (size_t)(rows + position(c, n) % s->M) * pair,
           from + (size_t)((n * s->K + k) * (s->G + 2) + s->G) * (size_t)s->D * elem, pair);
}

static void end(const struct tc_call *c, const struct sizes *s, const struct work *w, int64_t n0, int64_t k)
{
  const struct tc_view *y = &c->out[0];
  float buf[TC_BLOCK];
  for (int64_t r = 0; r < s->R; r++) {
    const int64_t at = (((n0 + r / s->G) * s->K + k) * s->G + r % s->G) * s->D;
    const float scale = 1.f / w->sum[r], *o = w->o + r * s->ld;
    float *to = tc_cpu_out(y, at, s->D, buf, false);
    for (int64_t j = 0; j < s->D; j++) to[j] = scale * o[j];
    tc_cpu_put(y, at, s->D, to);
  }
}

int tc_cpu_attn_cache(struct tc_device *d, const struct tc_call *c)
{
  const struct sizes s = sizes_of(c);
  struct work none;
  const int64_t floats = carve(&none, NULL, &s);
  TC_ASSERT(tc_call_cache_holds(c));
#pragma omp parallel for num_threads(d->threads) schedule(static)
  for (int64_t i = 0; i < s.K * s.B; i++) {
    const int64_t k = i % s.K, rows = i * s.M, n0 = i / s.K * s.S, all = position(c, n0 + s.S - 1) + 1;
    struct work w;
    carve(&w, (float *)c->scratch + omp_get_thread_num() * floats, &s);
    begin(c, &s, &w, n0, k);
    put(c, &s, n0, k, rows);
    for (struct block b = { .n0 = n0, .at = first_seen(&s, position(c, n0)) }; b.at < all; b.at += b.n) {
      b.n = TC_MIN(TC_MIN((int64_t)EDGE, all - b.at), s.M - b.at % s.M);
      b.pairs = tc_cpu_in(&c->out[1], (rows + b.at % s.M) * 2 * s.D, b.n * 2 * s.D, w.pairs);
      if (s.R > FEW) attend_many(tc_cpu_of(d), c, &s, &w, &b);
      else attend_few(c, &s, &w, &b);
    }
    end(c, &s, &w, n0, k);
  }
  return 0;
}
