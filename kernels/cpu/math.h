/* math.h - exp, tanh, the normal distribution, square root and a step of a softmax that compilers can vectorise. Include
 * cpu.h first.
 *
 * They are branch-free, so that a loop over them under `omp simd` is vectorised; libm's may set errno
 * and can't be. NaN is propagated: every comparison with it is false. */
#ifndef TC_CPU_MATH_H
#define TC_CPU_MATH_H

#include <math.h>
#include <stdint.h>

union tc_bits { float f; int32_t i; };

#define TC_GELU_C 1.59576912160573f       /* 2 sqrt(2 / pi) */

/* e^x, relative error below 2e-7; 0 below -104, infinity above 88.73.
 * x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for e^r, then 2^n in two factors, since
 * n = 128 and subnormal results have no single one. */
static inline float tc_expf(float x)
{
  const float round = 12582912.f;              /* 1.5 * 2^23: adding it rounds to an integer */
  x = x < -104.f ? -104.f : x;
  x = x > 89.f ? 89.f : x;
  union tc_bits t = { .f = x * 1.44269504088896341f + round };
  float n = t.f - round;
  float r = x - n * 0.693145751953125f;        /* ln 2 in two parts; the first is exact times n */
  r = r - n * 1.42860682030941723e-6f;
  float p = 1.9875691500e-4f;                  /* minimax on [-ln 2 / 2, ln 2 / 2] */
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  int32_t k = t.i - 0x4b400000, half = k >> 1;
  union tc_bits a = { .i = (int32_t)((uint32_t)(half + 127) << 23) };
  union tc_bits b = { .i = (int32_t)((uint32_t)(k - half + 127) << 23) };
  return p * a.f * b.f;
}

/* tanh(x), relative error below 3e-7: a polynomial near 0, elsewhere 1 - 2 / (e^2|x| + 1). */
static inline float tc_tanhf(float x)
{
  const float a = x < 0.f ? -x : x, z = x * x;
  float p = -5.70498872745e-3f;                /* minimax on [-0.625, 0.625] */
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float far = 1.f - 2.f / (tc_expf(2.f * a) + 1.f);
  return a < 0.625f ? p * z * x + x : x < 0.f ? -far : far;
}

/* The normal distribution's probability of less than x, erfc(-x / sqrt(2)) / 2, relative error below 1e-6 (x^2 times that of
 * e at large -x). e: e^(-x^2/2). erfc(z) e^(z^2) is a polynomial in 1 / (1 + 0.4 z), minimax of relative errors. */
static inline float tc_normal_below(float x, float e)
{
  const float a = x < 0.f ? -x : x, t = 1.f / (1.f + 0.282842712474619010f * a);        /* 0.4 / sqrt(2) */
  float p = 4.16128933e-2f;
  p = p * t - 1.42081827e-1f;
  p = p * t + 8.76573548e-2f;
  p = p * t + 8.37326273e-2f;
  p = p * t + 8.27034116e-2f;
  p = p * t + 1.92127675e-1f;
  p = p * t + 2.02213958e-1f;
  p = p * t + 2.26397023e-1f;
  p = p * t + 2.25636959e-1f;
  const float tail = 0.5f * e * t * p;
  return x < 0.f ? tail : 1.f - tail;
}

/* sqrt(x) for x >= 0 (0 below the smallest normal number), to about one unit in the last
 * place: Newton steps on 1/sqrt from an estimate by the exponent, then one on the root. */
static inline float tc_sqrtf(float x)
{
  union tc_bits t = { .f = x };
  t.i = 0x5f3759df - (t.i >> 1);
  float y = t.f, h = 0.5f * x;
  y = y * (1.5f - h * y * y);
  y = y * (1.5f - h * y * y);
  y = y * (1.5f - h * y * y);
  float s = x * y;
  s = s + 0.5f * y * (x - s * s);
  return x < 1.17549435e-38f ? 0.f : s;
}

/* n scores become cap tanh(S / cap). */
static inline __attribute__((always_inline)) void tc_cap_scores(float *S, int64_t n, float cap)
{
  const float by = 1.f / cap;
#pragma omp simd
  for (int64_t j = 0; j < n; j++) S[j] = cap * tc_tanhf(S[j] * by);
}

/* The next n scores S of a row become exp(S - max), where max is the largest so far; the row's sum of them and its
 * output o[ld], a sum with these weights, are rescaled where max grows. A score of -INFINITY counts for nothing; max is
 * -INFINITY before the first scores, one of which is finite. */
static inline __attribute__((always_inline)) void tc_softmax_next(float *S, int n, float *max, float *sum, float *o,
                                                                  int64_t ld)
{
  float m = *max, add = 0;
#pragma omp simd reduction(max : m)
  for (int j = 0; j < n; j++) m = S[j] > m ? S[j] : m;
#pragma omp simd reduction(+ : add)
  for (int j = 0; j < n; j++) {
    float p = tc_expf(S[j] - m);
    S[j] = p;
    add += p;
  }
  if (m != *max) {
    const float shrink = tc_expf(*max - m);
    *sum *= shrink;
#pragma omp simd
    for (int64_t j = 0; j < ld; j++) o[j] *= shrink;
    *max = m;
  }
  *sum += add;
}

#endif
