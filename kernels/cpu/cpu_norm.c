/* cpu_norm.c - layer norm: x[N,C], a row at a time while it is in L1.
 *
 * Backward makes dx and the column sums dg, db in one pass over dy and x: each block of rows
 * (by shape alone) has its partial sums in scratch. */
#include "kernels/cpu/cpu.h"

#include <omp.h>
#include <string.h>

/* y[C], *mean, *rstd from x[C]. */
TC_CLONES static void norm_row(float *y, const float *x, const float *g, const float *b,
                               int64_t C, float eps, float *mean, float *rstd)
{
  double sum = 0, sq = 0;
  for (int64_t from = 0; from < C; from += TC_CPU_RUN) {
    const int64_t to = TC_MIN(from + TC_CPU_RUN, C);
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t j = from; j < to; j++) part += x[j];
    sum += (double)part;
  }
  const float m = (float)sum / (float)C;
  for (int64_t from = 0; from < C; from += TC_CPU_RUN) {
    const int64_t to = TC_MIN(from + TC_CPU_RUN, C);
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t j = from; j < to; j++) part += (x[j] - m) * (x[j] - m);
    sq += (double)part;
  }
  const float r = 1.f / sqrtf((float)sq / (float)C + eps);
#pragma omp simd
  for (int64_t j = 0; j < C; j++) y[j] = (x[j] - m) * r * g[j] + b[j];
  *mean = m;
  *rstd = r;
}

struct norm_grad { float *dx, *dg, *db; const float *dy, *x, *g; float mean, rstd; bool acc; };

TC_CLONES static void norm_row_bwd(const struct norm_grad *a, int64_t C)
{
  float *dx = a->dx, *dg = a->dg, *db = a->db;
  const float *dy = a->dy, *x = a->x, *g = a->g;
  const float mean = a->mean, rstd = a->rstd, keep = a->acc ? 1.f : 0.f;
  float s1 = 0, s2 = 0;
#pragma omp simd reduction(+ : s1, s2)
  for (int64_t j = 0; j < C; j++) {
    float e = dy[j], xhat = (x[j] - mean) * rstd;
    dg[j] += e * xhat;
    db[j] += e;
    s1 += e * g[j];
    s2 += e * g[j] * xhat;
  }
  const float m1 = s1 / (float)C, m2 = s2 / (float)C;
  if (keep != 0.f) {
#pragma omp simd
    for (int64_t j = 0; j < C; j++)
      dx[j] += rstd * (dy[j] * g[j] - m1 - (x[j] - mean) * rstd * m2);
  } else {
#pragma omp simd
    for (int64_t j = 0; j < C; j++)
      dx[j] = rstd * (dy[j] * g[j] - m1 - (x[j] - mean) * rstd * m2);
  }
}

/* Scratch: two rows for g and b, then three rows per thread; rows start on cache lines. */
int64_t tc_cpu_layernorm_scratch(struct tc_device *d, const struct tc_call *c)
{
  return (2 + 3 * d->threads) * tc_cpu_row_stride(c->in[1].elems) * (int64_t)sizeof(float);
}

int tc_cpu_layernorm(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const int64_t C = c->in[1].elems, N = c->out[1].elems, stride = tc_cpu_row_stride(C);
  float *rows = c->scratch, *mean = tc_cpu_f32(&c->out[1]), *rstd = tc_cpu_f32(&c->out[2]);
  const float *g = tc_cpu_in(&c->in[1], 0, C, rows);
  const float *b = tc_cpu_in(&c->in[2], 0, C, rows + stride);
  TC_ASSERT(x->elems == N * C);
#pragma omp parallel for num_threads(tc_cpu_threads(d, N * C)) schedule(static)
  for (int64_t n = 0; n < N; n++) {
    float *buf = rows + (2 + 3 * omp_get_thread_num()) * stride;
    const float *px = tc_cpu_in(x, n * C, C, buf);
    float *py = tc_cpu_out(y, n * C, C, buf + stride, false);
    norm_row(py, px, g, b, C, c->f[0], &mean[n], &rstd[n]);
    tc_cpu_put(y, n * C, C, py);
  }
  return 0;
}

int64_t tc_cpu_layernorm_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  return tc_cpu_layernorm_scratch(d, &(struct tc_call){ .in = c->in + 1 })
         + 2 * tc_cpu_row_blocks(c->in[3].elems) * tc_cpu_row_stride(c->in[2].elems)
           * (int64_t)sizeof(float);
}

int tc_cpu_layernorm_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0];
  const int64_t C = c->in[2].elems, N = c->in[3].elems, stride = tc_cpu_row_stride(C);
  const int64_t nb = tc_cpu_row_blocks(N);
  const float *mean = tc_cpu_f32(&c->in[3]), *rstd = tc_cpu_f32(&c->in[4]);
  float *rows = c->scratch, *part = rows + (2 + 3 * d->threads) * stride;
  const float *g = tc_cpu_in(&c->in[2], 0, C, rows);
  const bool acc = c->acc & 1;
  TC_ASSERT(x->elems == N * C && dy->elems == N * C);
#pragma omp parallel for num_threads(tc_cpu_threads(d, N * C)) schedule(static)
  for (int64_t k = 0; k < nb; k++) {
    float *buf = rows + (2 + 3 * omp_get_thread_num()) * stride;
    float *dg = part + k * 2 * stride, *db = dg + stride;
    memset(dg, 0, 2 * (size_t)stride * sizeof *dg);
    for (int64_t n = k * N / nb; n < (k + 1) * N / nb; n++) {
      struct norm_grad a = { .dg = dg, .db = db, .g = g, .mean = mean[n], .rstd = rstd[n],
                             .acc = acc };
      a.dy = tc_cpu_in(dy, n * C, C, buf);
      a.x = tc_cpu_in(x, n * C, C, buf + stride);
      a.dx = tc_cpu_out(dx, n * C, C, buf + 2 * stride, acc);
      norm_row_bwd(&a, C);
      tc_cpu_put(dx, n * C, C, a.dx);
    }
  }
  tc_cpu_sum_parts(d, &c->out[1], c->acc >> 1 & 1, part, nb, 2 * stride);
  tc_cpu_sum_parts(d, &c->out[2], c->acc >> 2 & 1, part + stride, nb, 2 * stride);
  return 0;
}
