/* few.c - products y[m,n] = x[m,k] w[n,k]^T (+ bias[n]) of few rows: new tokens of a text that is sampled.
 *
 * Such a product takes as long as its weights take to be read, so each thread reads a range of them once, four rows at a
 * time, and multiplies them by all rows of x. bf16 needs no instructions of its own: an element becomes fp32 by a shift. */
#include "kernels/cpu/cpu.h"

#include <omp.h>

enum { ROWS = 4, STEP = 4 };             /* most rows of x; rows of w at a time */

bool tc_cpu_is_few(const struct tc_call *c)
{
  const int type = c->in[0].dtype;
  return c->gemm.m >= 1 && c->gemm.m <= ROWS && !c->gemm.ta && c->gemm.tb && !(c->acc & 1)
         && (type == TC_F32 || type == TC_BF16) && c->in[1].dtype == type && c->out[0].dtype == type;
}

/* x as fp32. */
int64_t tc_cpu_few_scratch(const struct tc_call *c)
{
  return c->in[0].dtype == TC_F32 ? 0 : c->gemm.m * c->gemm.k * (int64_t)sizeof(float);
}

/* sum[i] = w[i] x for n <= STEP rows of w, k elements apart. */
TC_CLONES static void dot_f32(float sum[STEP], const float *w, int64_t n, const float *x, int64_t k)
{
  const float *w0 = w, *w1 = w + (n > 1 ? k : 0), *w2 = w + (n > 2 ? 2 * k : 0), *w3 = w + (n > 3 ? 3 * k : 0);
  float a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
  for (int64_t i = 0; i < k; i++) {
    a += w0[i] * x[i];
    b += w1[i] * x[i];
    c += w2[i] * x[i];
    d += w3[i] * x[i];
  }
  sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;
}

TC_CLONES static void dot_bf16(float sum[STEP], const uint16_t *w, int64_t n, const float *x, int64_t k)
{
  const uint16_t *w0 = w, *w1 = w + (n > 1 ? k : 0), *w2 = w + (n > 2 ? 2 * k : 0), *w3 = w + (n > 3 ? 3 * k : 0);
  float a = 0, b = 0, c = 0, d = 0;
#pragma omp simd reduction(+ : a, b, c, d)
  for (int64_t i = 0; i < k; i++) {
    a += tc_bf16_to_f32(w0[i]) * x[i];
    b += tc_bf16_to_f32(w1[i]) * x[i];
    c += tc_bf16_to_f32(w2[i]) * x[i];
    d += tc_bf16_to_f32(w3[i]) * x[i];
  }
  sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;
}

int tc_cpu_few(struct tc_device *d, const struct tc_call *c)
{
  const int64_t m = c->gemm.m, n = c->gemm.n, k = c->gemm.k;
  const struct tc_view *w = &c->in[1], *y = &c->out[0], *bias = c->n_in > 2 ? &c->in[2] : NULL;
  const float *x = tc_cpu_in(&c->in[0], 0, m * k, c->scratch);
#pragma omp parallel for num_threads(tc_cpu_threads(d, n * k)) schedule(static)
  for (int64_t j = 0; j < n; j += STEP) {
    const int64_t rows = TC_MIN(n - j, (int64_t)STEP);
    for (int64_t i = 0; i < m; i++) {
      float sum[STEP];
      if (w->dtype == TC_F32) dot_f32(sum, tc_cpu_f32(w) + j * k, rows, x + i * k, k);
      else dot_bf16(sum, (const uint16_t *)w->data + j * k, rows, x + i * k, k);
      float buf[STEP], more[STEP], *to = tc_cpu_out(y, i * n + j, rows, buf, false);
      const float *b = bias ? tc_cpu_in(bias, j, rows, more) : NULL;
      for (int64_t r = 0; r < rows; r++) to[r] = sum[r] + (b ? b[r] : 0);
      tc_cpu_put(y, i * n + j, rows, to);
    }
  }
  return 0;
}
