/* cpu_attn_pack.c - what the attention of training shares (attn.h): a call's shape, the tokens of a sequence, packed operands. */
#include "kernels/cpu/attn.h"

#include <string.h>

typedef uint16_t __attribute__((may_alias)) bf16_alias;

struct shape tc_attn_shape(struct tc_device *d, const struct tc_call *c, int qkv, int more, bool bf16)
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
  TC_ASSERT(x->dtype == s.kv->dtype);
  bf16 = bf16 && x->dtype == TC_BF16 && tc_cpu_of(d)->bf16;
  s.per = bf16 ? 2 : 1, s.edge = EDGE / s.per;
  s.words = words_of(&s, s.D), s.row = s.ld / s.per;
  s.tile = bf16 ? tc_cpu_of(d)->tile_bf16 : tc_cpu_of(d)->tile;
  s.scale = tc_call_scale(c, s.D), s.cap = c->f[1];
  s.on_q = bf16 ? 1.f : s.scale, s.on_scores = bf16 ? s.scale : 1.f;
  return s;
}

/* ---- the tokens of a sequence ---------------------------------------------------------- */

int64_t tc_attn_carve_tokens(struct tokens *t, float *at, const struct shape *s)
{
  int32_t *p = (int32_t *)at;
  t->row = p, p += s->most;
  t->at = p, p += s->most;
  t->begins = p, p += s->most;
  t->key = p, p += s->T;
  return tc_round_up(p - (int32_t *)at, 16);
}

void tc_attn_find_tokens(struct tokens *t, const struct shape *s, int64_t sequence, const int32_t *starts)
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

struct seen tc_attn_seen(const struct shape *s, const struct tokens *t, int64_t qb, int64_t kb)
{
  struct seen x = { .rows = TC_MIN((int64_t)EDGE, t->n - qb * EDGE), .cols = TC_MIN((int64_t)EDGE, s->T - kb * EDGE),
                    .first = kb * EDGE, .at = t->at + qb * EDGE };
  const int32_t *begins = t->begins + qb * EDGE;
  x.triangle = x.at[0] == x.first && x.at[x.rows - 1] - x.at[0] == x.rows - 1;
  if (begins[x.rows - 1] > x.first) x.begins = begins;
  return x;
}

/* ---- packing --------------------------------------------------------------------------- */

enum { AHEAD = 16 };                      /* rows that are prefetched, which are short and far apart */

#define SAME(x) (x)

/* Row t of y, of ld numbers, = scale * row t of x, D numbers, and zeros. */
#define DEFINE_PACK(name, to, from, convert)                                                                          \
  TC_CLONES static void name(to *y, int64_t ld, const struct rows *x, int64_t D, float scale)                         \
  {                                                                                                                   \
    for (int64_t t = 0; t < x->n; t++, y += ld) {                                                                     \
      const from *const data = (const from *)x->v->data + x->at, *const row = data + x->row[t] * x->step;             \
      if (t + AHEAD < x->n) tc_cpu_prefetch(data + x->row[t + AHEAD] * x->step, D * (int64_t)sizeof *data);           \
      _Pragma("omp simd")                                                                                             \
      for (int64_t j = 0; j < D; j++) y[j] = convert(row[j]);                                                         \
      for (int64_t j = D; j < ld; j++) y[j] = 0;                                                                      \
    }                                                                                                                 \
  }
#define SCALED(x) (scale * (x))
#define SCALED_BF16(x) (scale * tc_bf16_to_f32(x))
DEFINE_PACK(pack_f32, float, float, SCALED)
DEFINE_PACK(pack_bf16, float, uint16_t, SCALED_BF16)
DEFINE_PACK(copy_bf16, bf16_alias, uint16_t, SAME)

void tc_attn_pack(float *y, const struct shape *s, const struct rows *x, float scale)
{
  TC_ASSERT(x->v->dtype == TC_F32 || x->v->dtype == TC_BF16);
  if (s->per == 2) copy_bf16((bf16_alias *)y, s->ld, x, s->D, 1.f);
  else if (x->v->dtype == TC_F32) pack_f32(y, s->ld, x, s->D, scale);
  else pack_bf16(y, s->ld, x, s->D, scale);
}

void tc_attn_transpose(float *y, const struct shape *s, const float *x)
{
  enum { STEP = 16 };                     /* a column of cache lines at a time */
  for (int64_t b = 0; b < s->blocks; b++, y += s->words * EDGE) {
    int64_t rows = TC_MIN((int64_t)EDGE, s->T - b * EDGE);
    if (rows < EDGE) memset(y, 0, (size_t)(s->words * EDGE) * sizeof *y);
    for (int64_t j0 = 0; j0 < s->words; j0 += STEP)
      for (int64_t t = 0; t < rows; t++)
        for (int64_t j = j0; j < TC_MIN(j0 + STEP, s->words); j++)
          y[j * EDGE + t] = x[(b * EDGE + t) * s->row + j];
  }
}

/* y[n / 2, rounded up][ld]: rows 2 t and 2 t + 1 of x[n][ld], one in the lower halves, one in the upper ones. */
TC_CLONES static void pair_up(tc_word *y, const bf16_alias *x, int64_t n, int64_t ld)
{
  for (int64_t t = 0; t < n; t += 2, y += ld, x += 2 * ld) {
    const uint32_t other = t + 1 < n ? 0xffff0000u : 0;
    const bf16_alias *next = other ? x + ld : x;
#pragma omp simd
    for (int64_t j = 0; j < ld; j++) y[j] = x[j] | ((uint32_t)next[j] << 16 & other);
  }
}

void tc_attn_pair(float *y, const struct shape *s, const float *x, int64_t n)
{
  if (s->per == 2) pair_up((tc_word *)y, (const bf16_alias *)x, n, s->ld);
}

float *tc_attn_carve_pairs(float **p, const struct shape *s, int64_t n, float *rows)
{
  float *const pairs = *p;
  if (s->per == 1) return rows;
  *p += tc_ceil_div(n, 2) * s->ld;
  return pairs;
}

/* Row t of y, D numbers, = scale * row t of x[n][ld]. */
#define DEFINE_UNPACK(name, to, convert)                                                                              \
  TC_CLONES static void name(const struct rows *y, const float *x, int64_t ld, int64_t D, float scale)                \
  {                                                                                                                   \
    for (int64_t t = 0; t < y->n; t++, x += ld) {                                                                     \
      to *row = (to *)y->v->data + y->row[t] * y->step + y->at;                                                       \
      _Pragma("omp simd")                                                                                             \
      for (int64_t j = 0; j < D; j++) row[j] = convert(scale * x[j]);                                                 \
    }                                                                                                                 \
  }
DEFINE_UNPACK(unpack_f32, float, SAME)
DEFINE_UNPACK(unpack_bf16, uint16_t, tc_f32_to_bf16)

void tc_attn_unpack(const struct rows *y, const struct shape *s, const float *x, float scale)
{
  static const float zeros[TC_BLOCK];
  TC_ASSERT(s->D <= TC_BLOCK && (y->v->dtype == TC_F32 || y->v->dtype == TC_BF16));
  (y->v->dtype == TC_F32 ? unpack_f32 : unpack_bf16)(y, x ? x : zeros, x ? s->ld : 0, s->D, scale);
}

TC_CLONES void tc_attn_bf16_dots(float *dot, const struct rows *x, const struct rows *y, int64_t D)
{
  for (int64_t t = 0; t < x->n; t++) {
    const uint16_t *a = (const uint16_t *)x->v->data + x->row[t] * x->step + x->at;
    const uint16_t *const data = (const uint16_t *)y->v->data + y->at, *const b = data + y->row[t] * y->step;
    float sum = 0;
    if (t + AHEAD < x->n) tc_cpu_prefetch(data + y->row[t + AHEAD] * y->step, D * (int64_t)sizeof *b);
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < D; j++) sum += tc_bf16_to_f32(a[j]) * tc_bf16_to_f32(b[j]);
    dot[t] = sum;
  }
}
