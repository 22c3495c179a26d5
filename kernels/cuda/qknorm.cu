/* qknorm.cu - RMS norms of each query and key in qkv[N,K,E,D]: E - 2 queries of a group, their key, their
 * value, which is copied.
 *
 * A row is D elements; as few lanes of a warp as it fills have one, so that a warp has several. Backward
 * a lane has the same columns in all rows of its block, and so keeps their part of both gains' gradients
 * in registers. */
#include "kernels/cuda/dev.h"

enum { THREADS = 256 };

struct qk {
  struct tc_arr y, dy, x, gain_q, gain_k;        /* backward y is dx */
  float *rstd, *part;                            /* [N,K,E-1]; [blocks][2][D]: gradients of the gains */
  unsigned rows, E, D;                           /* rows: N K E */
  float eps;
  bool wide, acc;
};

/* Where the scale of row i, which is not a value, is in rstd. */
static __device__ __forceinline__ unsigned rstd_at(const struct qk &a, unsigned i)
{
  return i / a.E * (a.E - 1) + i % a.E;
}

template <int LANES> static __global__ void __launch_bounds__(THREADS) qknorm_forward(struct qk a)
{
  const unsigned i = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES, e = i % a.E;
  const int64_t j = threadIdx.x % LANES * 8, at = (int64_t)i * a.D + j, left = i < a.rows ? a.D - j : 0;
  float x[8], gain[8], sum = 0;
  tc_load(x, a.x, at, left, a.wide);
#pragma unroll
  for (int k = 0; k < 8; k++) sum += x[k] * x[k];
  const float rstd = 1.f / sqrtf(tc_warp_sum<LANES>(sum) / (float)a.D + a.eps);
  if (e < a.E - 1) {
    tc_load(gain, e < a.E - 2 ? a.gain_q : a.gain_k, j, left, a.wide);
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] *= rstd * gain[k];
    if (j == 0 && left > 0) a.rstd[rstd_at(a, i)] = rstd;
  }
  tc_store(a.y, at, left, a.wide, x);
}

/* sums[2][8] of all threads that have the same columns, to the block's part, in the order of threads. */
template <int LANES>
static __device__ __forceinline__ void put_part(const struct qk &a, const float sums[2][8])
{
  TC_DYNAMIC_SHARED(float, memory);              /* [THREADS / LANES][2][LANES * 8] */
  enum { COLS = LANES * 8 };
  const int r = (int)threadIdx.x / LANES, j = (int)threadIdx.x % LANES * 8;
#pragma unroll
  for (int g = 0; g < 2; g++)
#pragma unroll
    for (int k = 0; k < 8; k++) memory[(r * 2 + g) * COLS + j + k] = sums[g][k];
  __syncthreads();
  for (int i = (int)threadIdx.x; i < 2 * COLS; i += THREADS) {
    float sum = 0;
    for (int row = 0; row < THREADS / LANES; row++) sum += memory[row * 2 * COLS + i];
    if (i % COLS < (int)a.D) a.part[(blockIdx.x * 2 + i / COLS) * (int64_t)a.D + i % COLS] = sum;
  }
}

/* dx = rstd (e - xhat mean(e xhat)), e = dy gain, xhat = x rstd. */
template <int LANES> static __global__ void __launch_bounds__(THREADS) qknorm_backward(struct qk a)
{
  enum { AT_ONCE = THREADS / LANES };
  const int64_t j = threadIdx.x % LANES * 8;
  float dg[2][8] = { { 0 } };
  for (unsigned i0 = blockIdx.x * AT_ONCE; i0 < a.rows; i0 += gridDim.x * AT_ONCE) {
    const unsigned i = i0 + threadIdx.x / LANES, e = i % a.E;
    const bool normed = i < a.rows && e < a.E - 1;
    const int64_t at = (int64_t)i * a.D + j, left = i < a.rows ? a.D - j : 0;
    const float rstd = normed ? a.rstd[rstd_at(a, i)] : 0.f;
    float dy[8], x[8], gain[8], sum = 0;
    tc_load(dy, a.dy, at, left, a.wide);
    tc_load(x, a.x, at, normed ? left : 0, a.wide);
    tc_load(gain, e < a.E - 2 ? a.gain_q : a.gain_k, j, normed ? left : 0, a.wide);
#pragma unroll
    for (int k = 0; k < 8; k++) {
      x[k] *= rstd;
      dg[0][k] += e < a.E - 2 ? dy[k] * x[k] : 0.f;
      dg[1][k] += e < a.E - 2 ? 0.f : dy[k] * x[k];
      sum += dy[k] * gain[k] * x[k];
    }
    const float mean = tc_warp_sum<LANES>(sum) / (float)a.D;
#pragma unroll
    for (int k = 0; k < 8; k++) dy[k] = normed ? rstd * (dy[k] * gain[k] - x[k] * mean) : dy[k];
    tc_add_to(a.y, at, left, a.wide, a.acc, dy);
  }
  put_part<LANES>(a, dg);
}

/* Larger heads are refused by attention's prepare. */
static struct qk qk_of(const struct tc_view *x, const struct tc_view *y, const struct tc_view *gain)
{
  struct qk a;
  const int64_t rows = x->dim[0] * x->dim[1] * x->dim[2], D = x->dim[3];
  memset(&a, 0, sizeof a);
  TC_ASSERT(x->rank == 4 && x->dim[2] >= 3 && D <= TC_CUDA_HEAD_MAX && rows <= INT32_MAX);
  a.x = tc_arr_of(x), a.y = tc_arr_of(y), a.gain_q = tc_arr_of(&gain[0]), a.gain_k = tc_arr_of(&gain[1]);
  a.rows = (unsigned)rows, a.E = (unsigned)x->dim[2], a.D = (unsigned)D;
  a.wide = tc_wide(D, x, y, NULL) && tc_wide(D, &gain[0], &gain[1], NULL);
  return a;
}

static int lanes_of(int64_t D) { return D <= 64 ? 8 : D <= 128 ? 16 : 32; }

int tc_cuda_qknorm(struct tc_device *d, const struct tc_call *c)
{
  struct qk a = qk_of(&c->in[0], &c->out[0], &c->in[1]);
  const int lanes = lanes_of(a.D);
  a.rstd = tc_f32_of(&c->out[1]), a.eps = c->f[0];
  if (a.rows * a.D == 0) return 0;
  auto kernel = lanes == 8 ? qknorm_forward<8> : lanes == 16 ? qknorm_forward<16> : qknorm_forward<32>;
  TC_LAUNCH(kernel, tc_blocks(a.rows, THREADS / lanes), dim3(THREADS), 0, tc_stream(d), a);
  return tc_cuda_launched(d, "qknorm");
}

static int64_t parts_of(const struct tc_view *x)
{
  return TC_MAX(1, TC_MIN(512, x->dim[0] * x->dim[1] * x->dim[2] / 128));
}

int64_t tc_cuda_qknorm_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  (void)d;
  return parts_of(&c->in[1]) * 2 * c->in[1].dim[3] * (int64_t)sizeof(float);
}

int tc_cuda_qknorm_bwd(struct tc_device *d, const struct tc_call *c)
{
  struct qk a = qk_of(&c->in[1], &c->out[0], &c->in[2]);
  const int lanes = lanes_of(a.D);
  const int64_t parts = parts_of(&c->in[1]), D = a.D;
  a.dy = tc_arr_of(&c->in[0]), a.rstd = tc_f32_of(&c->in[4]), a.part = (float *)c->scratch;
  a.wide = a.wide && tc_wide(D, &c->in[0], NULL, NULL);
  a.acc = (c->acc & 1) != 0;
  if (a.rows * a.D == 0) return 0;
  auto kernel = lanes == 8 ? qknorm_backward<8> : lanes == 16 ? qknorm_backward<16> : qknorm_backward<32>;
  TC_LAUNCH(kernel, dim3((unsigned)parts), dim3(THREADS), THREADS * 2 * 8 * sizeof(float), tc_stream(d), a);
  for (int k = 0; k < 2; k++)
    tc_cuda_add_parts(d, &c->out[1 + k], (c->acc >> (1 + k) & 1) != 0, a.part + k * D, parts, D, 2 * D);
  return tc_cuda_launched(d, "qknorm_bwd");
}

void tc_cuda_load_qknorm(struct tc_device *d)
{
  tc_load_kernels(d, qknorm_forward<8>, qknorm_forward<16>, qknorm_forward<32>, qknorm_backward<8>, qknorm_backward<16>,
                  qknorm_backward<32>);
}
