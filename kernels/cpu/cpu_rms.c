/* cpu_rms.c - RMS norms: of rows x[N,C], and of each query and key in qkv[N,K,E,D].
 *
 * A row is normalised while it is in L1. Backward makes dx and the sums over rows in one pass: each block
 * of rows (by shape alone) has its partial sums in scratch. */
#include "kernels/cpu/cpu.h"

#include <omp.h>
#include <string.h>

TC_CLONES static void shifted(float *y, const float *g, int64_t n, float shift)
{
#pragma omp simd
  for (int64_t j = 0; j < n; j++) y[j] = g[j] + shift;
}

const float *tc_cpu_gain(const struct tc_call *c, int k, float *row)
{
  const int64_t n = c->in[k].elems;
  const float *g = tc_cpu_in(&c->in[k], 0, n, row);
  if (c->f[1] == 0) return g;
  shifted(row, g, n, c->f[1]);
  return row;
}

/* y = x rstd g; returns rstd = 1 / sqrt(mean of x^2 + eps). */
TC_CLONES static float rms_row(float *y, const float *x, const float *g, int64_t C, float eps)
{
  const float r = 1.f / sqrtf((float)tc_sum_of_squares(x, C) / (float)C + eps);
#pragma omp simd
  for (int64_t j = 0; j < C; j++) y[j] = x[j] * r * g[j];
  return r;
}

/* dx (+)= rstd (dy g - xhat mean(dy g xhat)), dg += dy xhat, where xhat = x rstd. */
TC_CLONES static void rms_row_bwd(float *dx, float *dg, const float *dy, const float *x, const float *g,
                                  float rstd, int64_t C, bool acc)
{
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < C; j++) {
    const float e = dy[j] * x[j] * rstd;
    dg[j] += e;
    sum += e * g[j];
  }
  const float mean = sum / (float)C;
  if (acc) {
#pragma omp simd
    for (int64_t j = 0; j < C; j++) dx[j] += rstd * (dy[j] * g[j] - x[j] * rstd * mean);
  } else {
#pragma omp simd
    for (int64_t j = 0; j < C; j++) dx[j] = rstd * (dy[j] * g[j] - x[j] * rstd * mean);
  }
}

/* ---- of the hidden dimension ------------------------------------------------------------ */

/* A row for g, then three rows per thread. */
static int64_t rms_floats(const struct tc_device *d, int64_t C) { return (1 + 3 * d->threads) * tc_cpu_row_stride(C); }

int64_t tc_cpu_rmsnorm_scratch(struct tc_device *d, const struct tc_call *c)
{
  return rms_floats(d, c->in[1].elems) * (int64_t)sizeof(float);
}

int tc_cpu_rmsnorm(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const int64_t C = c->in[1].elems, N = c->out[1].elems, stride = tc_cpu_row_stride(C);
  float *rows = c->scratch, *rstd = tc_cpu_f32(&c->out[1]);
  const float *g = tc_cpu_gain(c, 1, rows);
  TC_ASSERT(x->elems == N * C);
#pragma omp parallel for num_threads(tc_cpu_threads(d, N * C)) schedule(static)
  for (int64_t n = 0; n < N; n++) {
    float *buf = rows + (1 + 3 * omp_get_thread_num()) * stride;
    const float *px = tc_cpu_in(x, n * C, C, buf);
    float *py = tc_cpu_out(y, n * C, C, buf + stride, false);
    rstd[n] = rms_row(py, px, g, C, c->f[0]);
    tc_cpu_put(y, n * C, C, py);
  }
  return 0;
}

int64_t tc_cpu_rmsnorm_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  const int64_t C = c->in[2].elems, blocks = tc_cpu_row_blocks(c->in[3].elems);
  return (rms_floats(d, C) + blocks * tc_cpu_row_stride(C)) * (int64_t)sizeof(float);
}

int tc_cpu_rmsnorm_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0];
  const int64_t C = c->in[2].elems, N = c->in[3].elems, stride = tc_cpu_row_stride(C);
  const int64_t nb = tc_cpu_row_blocks(N);
  const float *rstd = tc_cpu_f32(&c->in[3]);
  float *rows = c->scratch, *part = rows + rms_floats(d, C);
  const float *g = tc_cpu_gain(c, 2, rows);
  const bool acc = c->acc & 1;
  TC_ASSERT(x->elems == N * C && dy->elems == N * C);
#pragma omp parallel for num_threads(tc_cpu_threads(d, N * C)) schedule(static)
  for (int64_t k = 0; k < nb; k++) {
    float *buf = rows + (1 + 3 * omp_get_thread_num()) * stride, *dg = part + k * stride;
    memset(dg, 0, (size_t)stride * sizeof *dg);
    for (int64_t n = k * N / nb; n < (k + 1) * N / nb; n++) {
      const float *pdy = tc_cpu_in(dy, n * C, C, buf), *px = tc_cpu_in(x, n * C, C, buf + stride);
      float *pdx = tc_cpu_out(dx, n * C, C, buf + 2 * stride, acc);
      rms_row_bwd(pdx, dg, pdy, px, g, rstd[n], C, acc);
      tc_cpu_put(dx, n * C, C, pdx);
    }
  }
  tc_cpu_sum_parts(d, &c->out[1], c->acc >> 1 & 1, part, nb, stride);
  return 0;
}

/* ---- of queries and keys ------------------------------------------------------------------ */

/* Two rows for the gains, then three rows per thread. */
static int64_t qk_floats(const struct tc_device *d, int64_t D) { return (2 + 3 * d->threads) * tc_cpu_row_stride(D); }

int64_t tc_cpu_qknorm_scratch(struct tc_device *d, const struct tc_call *c)
{
  return qk_floats(d, c->in[1].elems) * (int64_t)sizeof(float);
}

int tc_cpu_qknorm(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const int64_t E = x->dim[2], D = x->dim[3], groups = x->dim[0] * x->dim[1], stride = tc_cpu_row_stride(D);
  float *rows = c->scratch, *rstd = tc_cpu_f32(&c->out[1]);
  const float *gain[2] = { tc_cpu_gain(c, 1, rows), tc_cpu_gain(c, 2, rows + stride) };
#pragma omp parallel for num_threads(tc_cpu_threads(d, groups * E * D)) schedule(static)
  for (int64_t k = 0; k < groups; k++) {
    float *buf = rows + (2 + 3 * omp_get_thread_num()) * stride;
    for (int64_t e = 0; e < E; e++) {
      const int64_t at = (k * E + e) * D;
      const float *px = tc_cpu_in(x, at, D, buf);
      float *py = tc_cpu_out(y, at, D, buf + stride, false);
      if (e == E - 1) memcpy(py, px, (size_t)D * sizeof *py);
      else rstd[k * (E - 1) + e] = rms_row(py, px, gain[e == E - 2], D, c->f[0]);
      tc_cpu_put(y, at, D, py);
    }
  }
  return 0;
}

int64_t tc_cpu_qknorm_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[1];
  const int64_t blocks = tc_cpu_row_blocks(x->dim[0] * x->dim[1]);
  return (qk_floats(d, x->dim[3]) + 2 * blocks * tc_cpu_row_stride(x->dim[3])) * (int64_t)sizeof(float);
}

int tc_cpu_qknorm_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0];
  const int64_t E = x->dim[2], D = x->dim[3], groups = x->dim[0] * x->dim[1], stride = tc_cpu_row_stride(D);
  const int64_t nb = tc_cpu_row_blocks(groups);
  const float *rstd = tc_cpu_f32(&c->in[4]);
  float *rows = c->scratch, *part = rows + qk_floats(d, D);
  const float *gain[2] = { tc_cpu_gain(c, 2, rows), tc_cpu_gain(c, 3, rows + stride) };
  const bool acc = c->acc & 1;
#pragma omp parallel for num_threads(tc_cpu_threads(d, groups * E * D)) schedule(static)
  for (int64_t b = 0; b < nb; b++) {
    float *buf = rows + (2 + 3 * omp_get_thread_num()) * stride, *dg = part + b * 2 * stride;
    memset(dg, 0, 2 * (size_t)stride * sizeof *dg);
    for (int64_t k = b * groups / nb; k < (b + 1) * groups / nb; k++)
      for (int64_t e = 0; e < E; e++) {
        const int64_t at = (k * E + e) * D;
        const float *pdy = tc_cpu_in(dy, at, D, buf), *px = tc_cpu_in(x, at, D, buf + stride);
        float *pdx = tc_cpu_out(dx, at, D, buf + 2 * stride, acc);
        if (e == E - 1) tc_cpu_accum(pdx, pdy, D, acc);
        else rms_row_bwd(pdx, dg + (e == E - 2) * stride, pdy, px, gain[e == E - 2],
                         rstd[k * (E - 1) + e], D, acc);
        tc_cpu_put(dx, at, D, pdx);
      }
  }
  tc_cpu_sum_parts(d, &c->out[1], c->acc >> 1 & 1, part, nb, 2 * stride);
  tc_cpu_sum_parts(d, &c->out[2], c->acc >> 2 & 1, part + stride, nb, 2 * stride);
  return 0;
}
