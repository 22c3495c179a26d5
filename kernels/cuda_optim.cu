/* cuda_optim.cu - squared norms, clipping and the optimizers' updates. */
#include "kernels/cuda_dev.h"

enum { THREADS = 256, NORM_ELEMS = THREADS * 8 * 8, NORM_BLOCKS = 1024, SCALARS = 64 };

/* ---- the squared norm --------------------------------------------------------------------- */

static int64_t norm_blocks(int64_t elems)
{
  return TC_MAX(1, TC_MIN((int64_t)NORM_BLOCKS, tc_ceil_div(elems, NORM_ELEMS)));
}

/* part[block] = the sum over its elements; a thread's are summed in fp32, 64 at most, then fp64. */
static __global__ void __launch_bounds__(THREADS)
squares(double *part, struct tc_arr x, int64_t n, bool wide)
{
  double sum = 0;
  const int64_t step = (int64_t)gridDim.x * THREADS * 8;
  for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8; i < n; i += step) {
    float v[8], s = 0;
    tc_load(v, x, i, n - i, wide);
#pragma unroll
    for (int k = 0; k < 8; k++) s += v[k] * v[k];
    sum += (double)s;
  }
  sum = tc_block_sum(sum);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS)
add_up(float *y, const double *part, int64_t n)
{
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += THREADS) sum += part[i];
  sum = tc_block_sum(sum);
  if (threadIdx.x == 0) *y = (float)sum;
}

int64_t tc_cuda_sqnorm_scratch(struct tc_device *d, const struct tc_call *c)
{
  (void)d;
  int64_t blocks = 0;
  for (int k = 0; k < c->n_in; k++) blocks += norm_blocks(c->in[k].elems);
  return blocks * (int64_t)sizeof(double);
}

int tc_cuda_sqnorm(struct tc_device *d, const struct tc_call *c)
{
  double *part = (double *)c->scratch;
  int64_t n = 0;
  for (int k = 0; k < c->n_in; k++) {
    const struct tc_view *x = &c->in[k];
    const int64_t blocks = norm_blocks(x->elems);
    TC_LAUNCH(squares, tc_blocks(blocks, 1), dim3(THREADS), 0, tc_stream(d), part + n,
              tc_arr_of(x), x->elems, tc_wide(0, x, NULL, NULL));
    n += blocks;
  }
  TC_LAUNCH(add_up, dim3(1), dim3(THREADS), 0, tc_stream(d), tc_f32_of(&c->out[0]),
            (const double *)part, n);
  return tc_cuda_launched(d, "sqnorm");
}

/* ---- clipping ------------------------------------------------------------------------------ */

struct scalars { const float *p[SCALARS]; int n; bool first, last; };

/* One thread, so many scalars a launch. torch.nn.utils.clip_grad_norm_'s formula. */
static __global__ void clip(struct scalars x, double *sum, float *norm_out, float *scale_out,
                            double most)
{
  double all = x.first ? 0 : *sum;
  for (int k = 0; k < x.n; k++) all += (double)*x.p[k];
  if (!x.last) {
    *sum = all;
    return;
  }
  const double norm = sqrt(all);
  double scale = most / (norm + 1e-6);
  if (most == 0 || scale > 1) scale = 1;       /* a NaN norm gives a NaN scale */
  *norm_out = (float)norm;
  *scale_out = (float)scale;
}

int64_t tc_cuda_clip_scratch(struct tc_device *d, const struct tc_call *c)
{
  (void)d;
  (void)c;
  return (int64_t)sizeof(double);
}

int tc_cuda_clip(struct tc_device *d, const struct tc_call *c)
{
  int k = 0;
  do {
    struct scalars x;
    memset(&x, 0, sizeof x);
    x.first = k == 0;
    for (; k < c->n_in && x.n < SCALARS; k++) x.p[x.n++] = tc_f32_of(&c->in[k]);
    x.last = k == c->n_in;
    TC_LAUNCH(clip, dim3(1), dim3(1), 0, tc_stream(d), x, (double *)c->scratch,
              tc_f32_of(&c->out[0]), tc_f32_of(&c->out[1]), (double)c->rt->clip);
  } while (k < c->n_in);
  return tc_cuda_launched(d, "clip");
}

/* ---- updates -------------------------------------------------------------------------------- */

struct adamw {
  struct tc_arr g, w0, m0, v0, w, m, v;
  const float *scale;
  float decay, b1, b2, c1, c2, size, inv_root, eps;
  int64_t n;
  bool wide;
};

static __global__ void __launch_bounds__(THREADS) adamw_step(struct adamw a)
{
  const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8, left = a.n - i;
  if (left <= 0) return;
  const float scale = *a.scale;
  float g[8], w[8], m[8], v[8];
  tc_load(g, a.g, i, left, a.wide);
  tc_load(w, a.w0, i, left, a.wide);
  tc_load(m, a.m0, i, left, a.wide);
  tc_load(v, a.v0, i, left, a.wide);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const float e = g[k] * scale;
    m[k] = a.b1 * m[k] + a.c1 * e;
    v[k] = a.b2 * v[k] + a.c2 * e * e;
    w[k] = w[k] * a.decay - a.size * m[k] / (sqrtf(v[k]) * a.inv_root + a.eps);
  }
  tc_store(a.w, i, left, a.wide, w);
  tc_store(a.m, i, left, a.wide, m);
  tc_store(a.v, i, left, a.wide, v);
}

/* Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, as in
 * torch.optim.AdamW; the constants of a step are made in double. */
int tc_cuda_adamw(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_runtime *rt = c->rt;
  const double b1 = rt->beta1, b2 = rt->beta2, lr = rt->lr, t = (double)rt->step;
  struct adamw a;
  a.g = tc_arr_of(&c->in[0]), a.scale = tc_f32_of(&c->in[1]);
  a.w0 = tc_arr_of(&c->in[2]), a.m0 = tc_arr_of(&c->in[3]), a.v0 = tc_arr_of(&c->in[4]);
  a.w = tc_arr_of(&c->out[0]), a.m = tc_arr_of(&c->out[1]), a.v = tc_arr_of(&c->out[2]);
  a.decay = (float)(1 - lr * (double)rt->weight_decay * (double)c->f[0]);
  a.b1 = rt->beta1, a.b2 = rt->beta2, a.c1 = (float)(1 - b1), a.c2 = (float)(1 - b2);
  a.size = (float)(lr / (1 - pow(b1, t)));
  a.inv_root = (float)(1 / sqrt(1 - pow(b2, t)));
  a.eps = rt->eps;
  a.n = c->out[0].elems;
  a.wide = tc_wide(0, &c->in[0], &c->in[2], &c->in[3]) && tc_wide(0, &c->in[4], &c->out[0], NULL)
           && tc_wide(0, &c->out[1], &c->out[2], NULL);
  if (a.n == 0) return 0;
  TC_LAUNCH(adamw_step, tc_blocks(a.n, THREADS * 8), dim3(THREADS), 0, tc_stream(d), a);
  return tc_cuda_launched(d, "adamw");
}

static __global__ void __launch_bounds__(THREADS)
sgd_step(struct tc_arr y, struct tc_arr g, struct tc_arr w, const float *scale, float lr,
         float decay, int64_t n, bool wide)
{
  const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
  if (i >= n) return;
  const float rate = lr * *scale;
  float a[8], b[8];
  tc_load(a, g, i, n - i, wide);
  tc_load(b, w, i, n - i, wide);
#pragma unroll
  for (int k = 0; k < 8; k++) b[k] -= rate * a[k] + decay * b[k];
  tc_store(y, i, n - i, wide, b);
}

int tc_cuda_sgd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *y = &c->out[0];
  const float lr = c->rt->lr, decay = lr * c->f[0] * c->rt->weight_decay;
  if (y->elems == 0) return 0;
  TC_LAUNCH(sgd_step, tc_blocks(y->elems, THREADS * 8), dim3(THREADS), 0, tc_stream(d),
            tc_arr_of(y), tc_arr_of(&c->in[0]), tc_arr_of(&c->in[2]),
            (const float *)tc_f32_of(&c->in[1]), lr, decay, y->elems,
            tc_wide(0, y, &c->in[0], &c->in[2]));
  return tc_cuda_launched(d, "sgd");
}
