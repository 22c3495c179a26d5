/* muon.cu - Muon's update (kernels/muon.h): products by cuBLASLt, what is between them by kernels of one element a thread.
 *
 * The scratch is the products' workspace, then one partial sum a block, then the factor of the first X. */
#include "kernels/cuda/dev.h"
#include "kernels/muon.h"

enum { THREADS = 256, NORM_BLOCKS = 1024 };

/* A matrix in a weight. */
struct shape { int64_t n, m, run, step, first; };
static struct shape shape_of(const struct tc_matrix *x)
{
  const struct shape s = { x->n, x->m, x->run, x->step, x->first };
  return s;
}
/* The place in the weight of element i of a matrix. */
static __device__ __forceinline__ int64_t place_of(const struct shape &s, int64_t i)
{
  const int64_t r = i / s.m;
  return (s.first + r / s.run * s.step + r % s.run) * s.m + i % s.m;
}

/* Element `at` of the weight's state, which is all here; in bf16 rounded as op.def says. */
static __device__ __forceinline__ void put_state(struct tc_arr m, int64_t at, float x, const struct tc_now *now, uint32_t stream)
{
  const uint32_t u = __float_as_uint(x);
  if (m.bf16 && (u & 0x7f800000u) != 0x7f800000u) {
    uint32_t word[4];
    tc_draw(word, now->seed, (uint64_t)at / 4, (uint64_t)stream << 32 | (uint32_t)now->step);
    x = __uint_as_float((u + (tc_word(word, at) & 0xffffu)) & 0xffff0000u);
  }
  tc_put(m, at, x);
}

/* part[block]: squares of the update; the average of gradients is written. */
static __global__ void __launch_bounds__(THREADS)
average(struct shape s, struct tc_arr m, struct tc_arr m0, struct tc_arr g, const float *scale, const struct tc_now *now,
        uint32_t stream, double *part)
{
  const float mu = now->muon_momentum, rest = (float)((1 - (double)mu) * (double)*scale);
  double sum = 0;
  for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < s.n * s.m; i += (int64_t)gridDim.x * THREADS) {
    const int64_t at = place_of(s, i);
    const float e = rest * tc_get(g, at);
    put_state(m, at, mu * tc_get(m0, at) + e, now, stream);
    const float u = mu * tc_get(m, at) + e;
    sum += (double)(u * u);
  }
  sum = tc_block_sum(sum);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS) inverse_norm(float *y, const double *part, int64_t n)
{
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += THREADS) sum += part[i];
  sum = sqrt(tc_block_sum(sum));
  if (threadIdx.x == 0) *y = (float)(1 / (sum < TC_MUON_LEAST ? TC_MUON_LEAST : sum));
}

static __global__ void __launch_bounds__(THREADS)
first_x(struct shape s, struct tc_arr x, struct tc_arr m, struct tc_arr g, const float *scale, const struct tc_now *now,
        const float *size)
{
  const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= s.n * s.m) return;
  const float mu = now->muon_momentum, rest = (float)((1 - (double)mu) * (double)*scale);
  const int64_t at = place_of(s, i);
  tc_put(x, i, *size * (mu * tc_get(m, at) + rest * tc_get(g, at)));
}

/* y, A A so far, becomes a I + b A + c y. */
static __global__ void __launch_bounds__(THREADS) bracket(struct tc_arr y, struct tc_arr a, int64_t s)
{
  const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= s * s) return;
  const float x = (float)TC_MUON_B * tc_get(a, i) + (float)TC_MUON_C * tc_get(y, i);
  tc_put(y, i, x + (i / s == i % s ? (float)TC_MUON_A : 0.f));
}

static __global__ void __launch_bounds__(THREADS)
move(struct shape s, struct tc_arr w, struct tc_arr w0, struct tc_arr x, float decay, float factor, float lr,
     const struct tc_now *now)
{
  const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i >= s.n * s.m) return;
  const int64_t at = place_of(s, i);
  const float keep = (float)(1 - now->decay * (double)lr * (double)decay);
  tc_put(w, at, tc_get(w0, at) * keep - now->lr * lr * factor * tc_get(x, i));
}

/* ---- the op ------------------------------------------------------------------------------------ */

static int64_t norm_blocks(const struct tc_matrix *x)
{
  return TC_MAX((int64_t)1, TC_MIN((int64_t)NORM_BLOCKS, tc_ceil_div(x->n * x->m, (int64_t)THREADS * 8)));
}

/* The workspace of all products. */
static int64_t workspace(struct tc_device *d, const struct tc_call *c)
{
  int64_t bytes = 0;
  for (int i = 0; i < tc_muon_matrices(c) * TC_MUON_PRODUCTS; i++) {
    const struct tc_matrix x = tc_muon_matrix(c, i / TC_MUON_PRODUCTS);
    struct tc_view view[3];
    struct tc_call p;
    tc_muon_product(&p, view, c, &x, i % TC_MUON_PRODUCTS);
    bytes = TC_MAX(bytes, tc_cuda_matmul_scratch(d, &p));
  }
  return tc_round_up(bytes, 256);
}

int64_t tc_cuda_muon_scratch(struct tc_device *d, const struct tc_call *c)
{
  return c->out[0].elems ? workspace(d, c) + (NORM_BLOCKS + 1) * (int64_t)sizeof(double) : 0;
}

int tc_cuda_muon_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err)
{
  c->plan = NULL;
  for (int i = 0; i < tc_muon_matrices(c) * TC_MUON_PRODUCTS && c->out[0].elems; i++) {
    const struct tc_matrix x = tc_muon_matrix(c, i / TC_MUON_PRODUCTS);
    struct tc_view view[3];
    struct tc_call p;
    tc_muon_product(&p, view, c, &x, i % TC_MUON_PRODUCTS);
    TC_TRY(tc_cuda_matmul_prepare(d, &p, err));
  }
  return 0;
}

/* A matrix in the call's last output. */
static struct tc_arr place(const struct tc_call *c, const struct tc_matrix *x, int k)
{
  struct tc_arr a = tc_arr_of(&c->out[2]);
  a.p += tc_muon_place(x, k) * (int64_t)tc_dtype_bytes(c->out[2].dtype);
  return a;
}

static int multiply(struct tc_device *d, const struct tc_call *c, const struct tc_matrix *x, int k, int step)
{
  struct tc_view view[3];
  struct tc_call p;
  tc_muon_product(&p, view, c, x, k);
  tc_muon_take(&p, c, x, k, step);
  return tc_cuda_matmul(d, &p);
}

static int update_matrix(struct tc_device *d, const struct tc_call *c, const struct tc_matrix *x, double *part)
{
  const struct shape s = shape_of(x);
  const struct tc_now *now = tc_cuda_now(d, c->rt);
  const struct tc_arr g = tc_arr_of(&c->in[0]), m = tc_arr_of(&c->out[1]);
  const float *scale = tc_f32_of(&c->in[1]);
  const dim3 all = tc_blocks(x->n * x->m, THREADS), threads(THREADS);
  const int64_t small = TC_MIN(x->n, x->m), blocks = norm_blocks(x);
  float *size = (float *)(part + NORM_BLOCKS);
  TC_LAUNCH(average, dim3((unsigned)blocks), threads, 0, tc_stream(d), s, m, tc_arr_of(&c->in[3]), g, scale, now,
            (uint32_t)c->k[0], part);
  TC_LAUNCH(inverse_norm, dim3(1), threads, 0, tc_stream(d), size, (const double *)part, blocks);
  TC_LAUNCH(first_x, all, threads, 0, tc_stream(d), s, place(c, x, 0), m, g, scale, now, (const float *)size);
  for (int k = 0; k < TC_MUON_STEPS; k++) {
    TC_TRY(multiply(d, c, x, TC_MUON_OWN, k));
    TC_TRY(multiply(d, c, x, TC_MUON_SQUARE, k));
    TC_LAUNCH(bracket, tc_blocks(small * small, THREADS), threads, 0, tc_stream(d), place(c, x, 3), place(c, x, 2), small);
    TC_TRY(multiply(d, c, x, TC_MUON_NEXT, k));
  }
  TC_LAUNCH(move, all, threads, 0, tc_stream(d), s, tc_arr_of(&c->out[0]), tc_arr_of(&c->in[2]), place(c, x, TC_MUON_STEPS % 2),
            c->f[0], (float)tc_muon_scale(x, c->rt->muon_scale), c->f[1], now);
  return 0;
}

int tc_cuda_muon(struct tc_device *d, const struct tc_call *c)
{
  if (c->out[0].elems == 0) return 0;            /* another rank's */
  double *part = (double *)((char *)c->scratch + workspace(d, c));
  for (int i = 0; i < tc_muon_matrices(c); i++) {
    const struct tc_matrix x = tc_muon_matrix(c, i);
    TC_TRY(update_matrix(d, c, &x, part));
  }
  return tc_cuda_launched(d, "muon");
}

void tc_cuda_load_muon(struct tc_device *d) { tc_load_kernels(d, average, inverse_norm, first_x, bracket, move); }
