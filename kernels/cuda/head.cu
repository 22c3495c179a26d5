/* head.cu - the loss head: x[N,V] may be a block of the vocabulary that starts at x.off[1];
 * columns at or past k[0] (padding) don't count. One block per row. */
#include "kernels/cuda/dev.h"

enum { THREADS = 256, SPAN = THREADS * 8, COLUMN_BLOCKS = 16 };

static __global__ void __launch_bounds__(THREADS)
rowmax(float *m, struct tc_arr x, int64_t V, int64_t live, bool wide)
{
  const int64_t n = blockIdx.x;
  float max = -INFINITY, v[8];
  for (int64_t j = threadIdx.x * 8; j < live; j += SPAN) {
    tc_load(v, x, n * V + j, live - j, wide);
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (j + k < live) max = fmaxf(max, v[k]);
  }
  max = tc_block_max(max);
  if (threadIdx.x == 0) m[n] = max;
}

int tc_cuda_rowmax(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  const int64_t N = x->dim[0], V = x->dim[1];
  if (N == 0) return 0;
  TC_LAUNCH(rowmax, tc_blocks(N, 1), dim3(THREADS), 0, tc_stream(d), tc_f32_of(&c->out[0]),
            tc_arr_of(x), V, tc_live_columns(c, x), tc_wide(V, x, NULL, NULL));
  return tc_cuda_launched(d, "rowmax");
}

/* A thread's terms are summed in fp32, the threads' sums in fp64. */
static __global__ void __launch_bounds__(THREADS)
sumexp(float *s, struct tc_arr x, const float *m, int64_t V, int64_t live, bool wide)
{
  const int64_t n = blockIdx.x;
  const float max = m[n];
  float sum = 0, v[8];
  for (int64_t j = threadIdx.x * 8; j < live; j += SPAN) {
    tc_load(v, x, n * V + j, live - j, wide);
#pragma unroll
    for (int k = 0; k < 8; k++) sum += j + k < live ? expf(v[k] - max) : 0.f;
  }
  const double all = tc_block_sum((double)sum);
  if (threadIdx.x == 0) s[n] = (float)all;
}

int tc_cuda_sumexp(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  const int64_t N = x->dim[0], V = x->dim[1];
  if (N == 0) return 0;
  TC_LAUNCH(sumexp, tc_blocks(N, 1), dim3(THREADS), 0, tc_stream(d), tc_f32_of(&c->out[0]),
            tc_arr_of(x), (const float *)tc_f32_of(&c->in[1]), V, tc_live_columns(c, x),
            tc_wide(V, x, NULL, NULL));
  return tc_cuda_launched(d, "sumexp");
}

static __global__ void __launch_bounds__(THREADS)
sumexp_bwd(struct tc_arr y, struct tc_arr x, const float *m, const float *ds, int64_t V,
           int64_t live, bool wide)
{
  const int64_t n = blockIdx.x;
  const float max = m[n], scale = ds[n];
  float v[8];
  for (int64_t j = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * 8; j < V;
       j += (int64_t)gridDim.y * SPAN) {
    tc_load(v, x, n * V + j, V - j, wide);
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = j + k < live ? scale * expf(v[k] - max) : 0.f;
    tc_store(y, n * V + j, V - j, wide, v);
  }
}

int tc_cuda_sumexp_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const int64_t N = x->dim[0], V = x->dim[1];
  if (N * V == 0) return 0;
  const dim3 grid((unsigned)N, (unsigned)TC_MIN(tc_ceil_div(V, SPAN), (int64_t)COLUMN_BLOCKS));
  TC_LAUNCH(sumexp_bwd, grid, dim3(THREADS), 0, tc_stream(d), tc_arr_of(y), tc_arr_of(x),
            (const float *)tc_f32_of(&c->in[1]), (const float *)tc_f32_of(&c->in[2]), V,
            tc_live_columns(c, x), tc_wide(V, x, y, NULL));
  return tc_cuda_launched(d, "sumexp_bwd");
}

/* ---- one element per row ------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS)
pick(struct tc_arr p, struct tc_arr x, const int32_t *target, int64_t first, int64_t N, int64_t V)
{
  const int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (n >= N) return;
  const int64_t v = target[n] - first;
  tc_put(p, n, v >= 0 && v < V ? tc_get(x, n * V + v) : 0.f);
}

int tc_cuda_pick(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  const int64_t N = x->dim[0];
  if (N == 0) return 0;
  TC_LAUNCH(pick, tc_blocks(N, THREADS), dim3(THREADS), 0, tc_stream(d), tc_arr_of(&c->out[0]),
            tc_arr_of(x), tc_i32_of(&c->in[1]), x->off[1], N, x->dim[1]);
  return tc_cuda_launched(d, "pick");
}

static __global__ void __launch_bounds__(THREADS)
pick_bwd(struct tc_arr dx, const int32_t *target, const float *dp, int64_t first, int64_t N,
         int64_t V)
{
  const int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (n >= N) return;
  const int64_t v = target[n] - first;
  if (v >= 0 && v < V) tc_put(dx, n * V + v, tc_get(dx, n * V + v) + dp[n]);
}

int tc_cuda_pick_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dx = &c->in[0], *y = &c->out[0];
  const int64_t N = y->dim[0];
  TC_ASSERT(dx->dtype == y->dtype && dx->elems == y->elems);
  if (N == 0) return 0;
  if (y->data != dx->data)
    d->ops->copy(d, y->data, dx->data, y->elems * (int64_t)tc_dtype_bytes(y->dtype));
  TC_LAUNCH(pick_bwd, tc_blocks(N, THREADS), dim3(THREADS), 0, tc_stream(d), tc_arr_of(y),
            tc_i32_of(&c->in[1]), (const float *)tc_f32_of(&c->in[2]), y->off[1], N, y->dim[1]);
  return tc_cuda_launched(d, "pick_bwd");
}

static __global__ void __launch_bounds__(THREADS)
nll(float *l, const float *m, const float *s, const float *p, const int32_t *target, int64_t N, float z)
{
  const int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (n < N) l[n] = target[n] < 0 ? 0.f : tc_nll(m[n] + logf(s[n]), p[n], z);
}

int tc_cuda_nll(struct tc_device *d, const struct tc_call *c)
{
  const int64_t N = c->out[0].elems;
  if (N == 0) return 0;
  TC_LAUNCH(nll, tc_blocks(N, THREADS), dim3(THREADS), 0, tc_stream(d), tc_f32_of(&c->out[0]),
            (const float *)tc_f32_of(&c->in[0]), (const float *)tc_f32_of(&c->in[1]),
            (const float *)tc_f32_of(&c->in[2]), tc_i32_of(&c->in[3]), N, c->f[0]);
  return tc_cuda_launched(d, "nll");
}

static __global__ void __launch_bounds__(THREADS)
nll_bwd(float *ds, float *dp, const float *dl, const float *s, const int32_t *target, const float *m, int64_t N, float z)
{
  const int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (n >= N) return;
  const float g = target[n] < 0 ? 0.f : dl[n];
  ds[n] = tc_nll_slope(g, s[n], z > 0.f ? m[n] : 0.f, z);
  dp[n] = -g;
}

int tc_cuda_nll_bwd(struct tc_device *d, const struct tc_call *c)
{
  const int64_t N = c->out[0].elems;
  if (N == 0) return 0;
  TC_LAUNCH(nll_bwd, tc_blocks(N, THREADS), dim3(THREADS), 0, tc_stream(d),
            tc_f32_of(&c->out[0]), tc_f32_of(&c->out[1]), (const float *)tc_f32_of(&c->in[0]),
            (const float *)tc_f32_of(&c->in[1]), tc_i32_of(&c->in[2]),
            (const float *)(c->f[0] > 0 ? tc_f32_of(&c->in[3]) : NULL), N, c->f[0]);
  return tc_cuda_launched(d, "nll_bwd");
}

/* One block: the losses of a micro-batch's tokens. */
static __global__ void __launch_bounds__(1024)
sum(float *y, struct tc_arr x, int64_t n, float scale, bool acc)
{
  double all = 0;
  for (int64_t i = threadIdx.x; i < n; i += 1024) all += (double)tc_get(x, i);
  all = tc_block_sum(all) * (double)scale;
  if (threadIdx.x == 0) *y = (float)(acc ? all + (double)*y : all);
}

int tc_cuda_sum(struct tc_device *d, const struct tc_call *c)
{
  TC_LAUNCH(sum, dim3(1), dim3(1024), 0, tc_stream(d), tc_f32_of(&c->out[0]),
            tc_arr_of(&c->in[0]), c->in[0].elems, c->f[0], (c->acc & 1) != 0);
  return tc_cuda_launched(d, "sum");
}

void tc_cuda_load_head(struct tc_device *d)
{
  tc_load_kernels(d, rowmax, sumexp, sumexp_bwd, pick, pick_bwd, nll, nll_bwd, sum);
}
