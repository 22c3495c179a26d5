/* cpu_bf16.c - what CPUs with AVX512_BF16 compute otherwise where tensors are bf16: activations, and the scores of attention
 * on their way from one product to the next.
 *
 * Results are rounded to 8 bits of precision, so that exponentials of 17 bits and reciprocals of 13 are enough. Sums of
 * exponentials, and their logarithms, are fp32, and off by some 1e-6. */
#include "kernels/cpu/attn.h"
#include "kernels/cpu/math.h"

#ifdef TC_BF16_TARGET
#include <immintrin.h>

#define INLINE static inline TC_BF16_TARGET __attribute__((always_inline))

INLINE __mmask16 lanes(int64_t n) { return n >= LANES ? 0xffff : (__mmask16)((1u << TC_MAX(n, 0)) - 1); }

/* The first min(n, 16) numbers of p; others are 0. Masks that are not needed cost as much as the formula. */
INLINE __m512 load(const uint16_t *p, int64_t n)
{
  const __m256i x = n >= LANES ? _mm256_loadu_si256((const __m256i *)p) : _mm256_maskz_loadu_epi16(lanes(n), p);
  return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16);
}
INLINE void store(uint16_t *p, int64_t n, __m512 x)
{
  const __m256i y = (__m256i)_mm512_cvtneps_pbh(x);
  if (n >= LANES) _mm256_storeu_si256((__m256i *)p, y);
  else _mm256_mask_storeu_epi16(p, lanes(n), y);
}

INLINE __m512 of(float x) { return _mm512_set1_ps(x); }

/* e^x, relative error below 1e-5: 2^t = 2^n 2^f, n the nearest integer, with a minimax polynomial for 2^f. NaN stays, since it
 * is the second operand of the limits. */
INLINE __m512 exp_of(__m512 x)
{
  const __m512 t = _mm512_max_ps(of(-200.f), _mm512_min_ps(of(200.f), x * 1.44269504088896341f));
  const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = t - n;
  __m512 p = of(9.5701019081e-3f);
  p = p * f + 5.5917860319e-2f;
  p = p * f + 2.4024744828e-1f;
  p = p * f + 6.9312181474e-1f;
  p = p * f + 9.9999926145e-1f;
  return _mm512_scalef_ps(p, n);
}

/* 1 / (1 + e^-x), relative error below 1e-4. */
INLINE __m512 sigmoid(__m512 x) { return _mm512_rcp14_ps(1.f + exp_of(-x)); }

/* ---- activations: the formulas of cpu_act.c ---------------------------------------------- */

INLINE __m512 gelu_of(__m512 v) { return v * sigmoid(TC_GELU_C * v * (1.f + 0.044715f * v * v)); }

INLINE __m512 gelu_slope(__m512 v)
{
  const __m512 q = _mm512_min_ps(of(1e30f), v * v), s = sigmoid(TC_GELU_C * v * (1.f + 0.044715f * q));
  return s + v * (s * (1.f - s)) * (TC_GELU_C * (1.f + 3.f * 0.044715f * q));
}

#define ARGS uint16_t *y, uint16_t *z, const uint16_t *g, const uint16_t *x, const uint16_t *b, int64_t n

TC_BF16_TARGET void tc_bf16_gelu_tanh(ARGS)
{
  for (int64_t i = 0; i < n; i += LANES) store(y + i, n - i, gelu_of(load(x + i, n - i)));
}

TC_BF16_TARGET void tc_bf16_gelu_tanh_bwd(ARGS)
{
  for (int64_t i = 0; i < n; i += LANES) store(y + i, n - i, load(g + i, n - i) * gelu_slope(load(x + i, n - i)));
}

TC_BF16_TARGET void tc_bf16_silu_gate(ARGS)
{
  for (int64_t i = 0; i < n; i += LANES) {
    const __m512 v = load(x + i, n - i);
    store(y + i, n - i, v * sigmoid(v) * load(b + i, n - i));
  }
}

TC_BF16_TARGET void tc_bf16_silu_gate_bwd(ARGS)
{
  for (int64_t i = 0; i < n; i += LANES) {
    const __m512 v = load(x + i, n - i), s = sigmoid(v), dy = load(g + i, n - i);
    store(y + i, n - i, dy * load(b + i, n - i) * s * (1.f + v * (1.f - s)));
    store(z + i, n - i, dy * v * s);
  }
}

TC_BF16_TARGET void tc_bf16_gelu_gate(ARGS)
{
  for (int64_t i = 0; i < n; i += LANES) store(y + i, n - i, gelu_of(load(x + i, n - i)) * load(b + i, n - i));
}

TC_BF16_TARGET void tc_bf16_gelu_gate_bwd(ARGS)
{
  for (int64_t i = 0; i < n; i += LANES) {
    const __m512 v = load(x + i, n - i), dy = load(g + i, n - i);
    store(y + i, n - i, dy * load(b + i, n - i) * gelu_slope(v));
    store(z + i, n - i, dy * gelu_of(v));
  }
}

/* ---- scores of attention ----------------------------------------------------------------- */

/* The columns from j on, of 16, that query r sees. */
INLINE __mmask16 seen_lanes(const struct range *k, int j)
{
  return lanes(k->end - j) & (__mmask16)~lanes(k->from - j);
}

/* 16 scores s become cap tanh(s / cap). */
INLINE __m512 capped(__m512 s, float cap)
{
  float x[LANES];
  _mm512_storeu_ps(x, s);
  tc_cap_scores(x, LANES, cap);
  return _mm512_loadu_ps(x);
}

TC_BF16_TARGET void tc_bf16_exp_scores(float *P, const float *S, const struct seen *x, float scale, float cap, float *max,
                                       float *sum, float *o, int64_t ld)
{
  for (int64_t r = 0; r < x->rows; r++, P += EDGE / 2, S += EDGE, o += ld) {
    const struct range k = range_of(x, r);
    __m512 v[EDGE / LANES], m = of(max[r]), add = of(0);
    for (int j = k.first; j < k.last; j += LANES) {
      v[j / LANES] = _mm512_loadu_ps(S + j) * scale;
      if (cap > 0) v[j / LANES] = capped(v[j / LANES], cap);
      m = _mm512_mask_max_ps(m, seen_lanes(&k, j), m, v[j / LANES]);
    }
    /* Only here, since the row may be where S is. */
    for (int j = 0; j < EDGE; j += LANES) _mm256_storeu_si256((__m256i *)(P + j / 2), _mm256_setzero_si256());
    if (k.first == k.last) continue;
    const float top = _mm512_reduce_max_ps(m);
    for (int j = k.first; j < k.last; j += LANES) {
      const __m512 p = _mm512_maskz_mov_ps(seen_lanes(&k, j), exp_of(v[j / LANES] - top));
      _mm256_storeu_si256((__m256i *)(P + j / 2), (__m256i)_mm512_cvtneps_pbh(p));
      add += p;
    }
    if (top != max[r]) {
      const float shrink = tc_expf(max[r] - top);
      for (int64_t j = 0; j < ld; j += LANES) _mm512_storeu_ps(o + j, _mm512_loadu_ps(o + j) * shrink);
      sum[r] *= shrink;
      max[r] = top;
    }
    sum[r] += _mm512_reduce_add_ps(add);
  }
}

/* P and dS of the 16 columns from j on of a row. */
struct grads { __m512 p, ds; };
INLINE struct grads grads_of(const float *S, const float *dP, const struct range *k, int j, float scale, float cap, float lse,
                             float delta)
{
  const __mmask16 seen = j >= k->first && j < k->last ? seen_lanes(k, j) : 0;
  __m512 s = _mm512_maskz_loadu_ps(seen, S + j) * scale, slope = of(1.f);
  if (cap > 0) s = capped(s, cap), slope = (1.f - s / cap) * (1.f + s / cap);
  struct grads g = { .p = _mm512_maskz_mov_ps(seen, exp_of(s - lse)) };
  g.ds = _mm512_maskz_mov_ps(seen, g.p * (_mm512_maskz_loadu_ps(seen, dP + j) - delta) * slope);      /* delta may be NaN */
  return g;
}

/* Words of the numbers of a, in their lower halves, and of b. */
INLINE __m512i words_of_two(__m512 a, __m512 b)
{
  return _mm512_or_si512(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(a)),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(b)), 16));
}

TC_BF16_TARGET void tc_bf16_probabilities(float *P2, float *dSt, float *dS2, const float *S, const float *dP,
                                          const struct seen *x, float scale, float cap, const float *lse, const float *delta)
{
  for (int64_t r = 0; r < x->rows; r += 2) {
    const bool two = r + 1 < x->rows;
    const struct range k = range_of(x, r), next = two ? range_of(x, r + 1) : (struct range){ 0, 0, 0, 0 };
    for (int j = 0; j < EDGE; j += LANES) {
      const struct grads a = grads_of(S, dP, &k, j, scale, cap, lse[r], delta[r]);
      const struct grads b = grads_of(S + EDGE, dP + EDGE, &next, j, scale, cap, two ? lse[r + 1] : 0, two ? delta[r + 1] : 0);
      _mm512_storeu_si512(P2 + j, words_of_two(a.p, b.p));
      _mm512_storeu_si512(dSt + j, words_of_two(a.ds, b.ds));
      _mm256_storeu_si256((__m256i *)(dS2 + j / 2), (__m256i)_mm512_cvtneps_pbh(a.ds));
      _mm256_storeu_si256((__m256i *)(dS2 + EDGE / 2 + j / 2), (__m256i)_mm512_cvtneps_pbh(b.ds));
    }
    S += 2 * EDGE, dP += 2 * EDGE, P2 += EDGE, dSt += EDGE, dS2 += EDGE;
  }
}
#else
/* No CPU of another kind is asked. */
#define NONE(name, ...) void name(__VA_ARGS__) { TC_ASSERT(!#name); }
#define NONE_ACT(name) NONE(name, uint16_t *y, uint16_t *z, const uint16_t *g, const uint16_t *x, const uint16_t *b, int64_t n)
NONE_ACT(tc_bf16_gelu_tanh)
NONE_ACT(tc_bf16_gelu_tanh_bwd)
NONE_ACT(tc_bf16_silu_gate)
NONE_ACT(tc_bf16_silu_gate_bwd)
NONE_ACT(tc_bf16_gelu_gate)
NONE_ACT(tc_bf16_gelu_gate_bwd)
NONE(tc_bf16_exp_scores, float *P, const float *S, const struct seen *x, float scale, float cap, float *max, float *sum, float *o,
     int64_t ld)
NONE(tc_bf16_probabilities, float *P2, float *dSt, float *dS2, const float *S, const float *dP, const struct seen *x,
     float scale, float cap, const float *lse, const float *delta)
#endif
