/* cpu_head.c - the loss head: x[N,V] may be a block of the vocabulary that starts at x.off[1];
 * columns at or past k[0] (padding) don't count. Rows are processed in tiles of TC_BLOCK. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

#include <string.h>

/* The largest of max and x[0..n-1]. Each lane keeps a maximum of its own: as a reduction the loop
 * is half as fast with gcc, and clang does not vectorize it. */
TC_CLONES static float max_of(const float *x, int64_t n, float max)
{
  enum { LANES = 16 };
  float lane[LANES];
  for (int k = 0; k < LANES; k++) lane[k] = max;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
#pragma omp simd
    for (int k = 0; k < LANES; k++) lane[k] = x[i + k] > lane[k] ? x[i + k] : lane[k];
  }
  for (; i < n; i++) lane[0] = x[i] > lane[0] ? x[i] : lane[0];
  for (int k = 0; k < LANES; k++) max = lane[k] > max ? lane[k] : max;
  return max;
}

TC_CLONES static float sum_exp(const float *x, int64_t n, float m)
{
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += tc_expf(x[i] - m);
  return sum;
}

TC_CLONES static void scaled_exp(float *y, const float *x, int64_t n, float m, float scale)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = scale * tc_expf(x[i] - m);
}

int tc_cpu_rowmax(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  const int64_t N = x->dim[0], V = x->dim[1], live = tc_live_columns(c, x);
  float *out = tc_cpu_f32(&c->out[0]);
#pragma omp parallel for num_threads(tc_cpu_threads(d, N * V)) schedule(static)
  for (int64_t n = 0; n < N; n++) {
    float max = -INFINITY, buf[TC_BLOCK];
    for (int64_t v = 0; v < live; v += TC_BLOCK) {
      int64_t w = TC_MIN(TC_BLOCK, live - v);
      max = max_of(tc_cpu_in(x, n * V + v, w, buf), w, max);
    }
    out[n] = max;
  }
  return 0;
}

int tc_cpu_sumexp(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  const int64_t N = x->dim[0], V = x->dim[1], live = tc_live_columns(c, x);
  const float *m = tc_cpu_f32(&c->in[1]);
  float *out = tc_cpu_f32(&c->out[0]);
#pragma omp parallel for num_threads(tc_cpu_threads(d, N * V)) schedule(static)
  for (int64_t n = 0; n < N; n++) {
    double sum = 0;
    float buf[TC_BLOCK];
    for (int64_t v = 0; v < live; v += TC_BLOCK) {
      int64_t w = TC_MIN(TC_BLOCK, live - v);
      sum += sum_exp(tc_cpu_in(x, n * V + v, w, buf), w, m[n]);
    }
    out[n] = (float)sum;
  }
  return 0;
}

int tc_cpu_sumexp_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const int64_t N = x->dim[0], V = x->dim[1], live = tc_live_columns(c, x);
  const float *m = tc_cpu_f32(&c->in[1]), *ds = tc_cpu_f32(&c->in[2]);
#pragma omp parallel for num_threads(tc_cpu_threads(d, N * V)) schedule(static)
  for (int64_t n = 0; n < N; n++) {
    float buf[TC_BLOCK], out[TC_BLOCK];
    for (int64_t v = 0; v < V; v += TC_BLOCK) {
      int64_t w = TC_MIN(TC_BLOCK, V - v), use = TC_MAX(0, TC_MIN(w, live - v));
      float *py = tc_cpu_out(y, n * V + v, w, out, false);
      scaled_exp(py, tc_cpu_in(x, n * V + v, w, buf), use, m[n], ds[n]);
      memset(py + use, 0, (size_t)(w - use) * sizeof *py);
      tc_cpu_put(y, n * V + v, w, py);
    }
  }
  return 0;
}

int tc_cpu_pick(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  const int64_t N = x->dim[0], V = x->dim[1];
  const int32_t *target = tc_cpu_i32(&c->in[1]);
  for (int64_t n = 0; n < N; n++) {
    float y = 0, buf;
    int64_t v = target[n] - x->off[1];
    if (v >= 0 && v < V) y = *tc_cpu_in(x, n * V + v, 1, &buf);
    float *out = tc_cpu_out(&c->out[0], n, 1, &buf, false);
    *out = y;
    tc_cpu_put(&c->out[0], n, 1, out);
  }
  return 0;
}

int tc_cpu_pick_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dx = &c->in[0], *y = &c->out[0];
  const int64_t N = y->dim[0], V = y->dim[1];
  const int32_t *target = tc_cpu_i32(&c->in[1]);
  const float *dp = tc_cpu_f32(&c->in[2]);
  TC_ASSERT(dx->dtype == y->dtype && dx->elems == y->elems);
  if (y->data != dx->data)
    d->ops->copy(d, y->data, dx->data, y->elems * (int64_t)tc_dtype_bytes(y->dtype));
  for (int64_t n = 0; n < N; n++) {
    float buf;
    int64_t v = target[n] - y->off[1];
    if (v < 0 || v >= V) continue;
    float *at = tc_cpu_out(y, n * V + v, 1, &buf, true);
    *at += dp[n];
    tc_cpu_put(y, n * V + v, 1, at);
  }
  return 0;
}

int tc_cpu_nll(struct tc_device *d, const struct tc_call *c)
{
  const float *m = tc_cpu_f32(&c->in[0]), *s = tc_cpu_f32(&c->in[1]), *p = tc_cpu_f32(&c->in[2]);
  const int32_t *target = c->in[3].data;
  float *out = tc_cpu_f32(&c->out[0]);
  for (int64_t n = 0; n < c->out[0].elems; n++) {
    const float lse = m[n] + logf(s[n]), l = lse - p[n];
    out[n] = target[n] < 0 ? 0 : c->f[0] > 0 ? l + c->f[0] * lse * lse : l;
  }
  return 0;
}

int tc_cpu_nll_bwd(struct tc_device *d, const struct tc_call *c)
{
  const float *dl = tc_cpu_f32(&c->in[0]), *s = tc_cpu_f32(&c->in[1]);
  const int32_t *target = c->in[2].data;
  float *ds = tc_cpu_f32(&c->out[0]), *dp = tc_cpu_f32(&c->out[1]);
  for (int64_t n = 0; n < c->out[0].elems; n++) {
    float g = target[n] < 0 ? 0 : dl[n];
    ds[n] = g / s[n];
    if (c->f[0] > 0) ds[n] *= 1 + 2 * c->f[0] * (tc_cpu_f32(&c->in[3])[n] + logf(s[n]));
    dp[n] = -g;
  }
  return 0;
}

int tc_cpu_sum(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  float buf[TC_BLOCK], *y = tc_cpu_f32(&c->out[0]);
  double sum = 0;
  for (int64_t i = 0; i < x->elems; i += TC_BLOCK) {
    int64_t n = TC_MIN(TC_BLOCK, x->elems - i);
    const float *p = tc_cpu_in(x, i, n, buf);
    for (int64_t j = 0; j < n; j++) sum += (double)p[j];
  }
  sum *= (double)c->f[0];
  *y = (float)(c->acc & 1 ? sum + (double)*y : sum);
  return 0;
}
