/* qknorm.cu - RMS norms of each query and key in qkv[N,K,E,D]: E - 2 queries of a group, their key, their
 * value, which is copied.
 *
 * A row is D elements; as few lanes of a warp as it fills have one, so that a warp has several. Backward
 * a lane has the same columns in all rows of its block, and so keeps their part of both gains' gradients
 * in registers.
 *
 * And RMS norms of all queries of a token together, and of all its keys, of which qk_squares has made the sums of squares.
 * There a block has a token, but for the gains' gradients: it has columns then, of many tokens (rows.cu). */
#include "kernels/cuda/dev.h"

enum { THREADS = 256 };

struct qk {
  struct tc_arr y, dy, x, gain_q, gain_k;        /* backward y is dx */
  float *rstd, *part;                            /* [N,K,E-1]; [blocks][2][D]: gradients of the gains */
  unsigned rows, E, D;                           /* rows: N K E */
  float eps, shift;
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
    for (int k = 0; k < 8; k++) x[k] *= rstd * (gain[k] + a.shift);
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
      gain[k] += a.shift;
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
  a.rstd = tc_f32_of(&c->out[1]), a.eps = c->f[0], a.shift = c->f[1];
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
  a.acc = (c->acc & 1) != 0, a.shift = c->f[1];
  if (a.rows * a.D == 0) return 0;
  auto kernel = lanes == 8 ? qknorm_backward<8> : lanes == 16 ? qknorm_backward<16> : qknorm_backward<32>;
  TC_LAUNCH(kernel, dim3((unsigned)parts), dim3(THREADS), THREADS * 2 * 8 * sizeof(float), tc_stream(d), a);
  for (int k = 0; k < 2; k++)
    tc_cuda_add_parts(d, &c->out[1 + k], (c->acc >> (1 + k) & 1) != 0, a.part + k * D, parts, D, 2 * D);
  return tc_cuda_launched(d, "qknorm_bwd");
}

/* ---- of all queries, and of all keys --------------------------------------------------------- */

struct whole {
  struct tc_arr y, dy, x, gain_q, gain_k;        /* backward y is dx */
  const float *s, *ds;                           /* [N,2]: sums of squares, and their gradient */
  float *sums, *part;                            /* [N,2]: made; [parts][columns]: gradients of the gains, queries' first */
  int64_t N;
  int K, E, D, groups;                           /* groups: of 8 elements, of a row of D */
  float eps, shift, count_q, count_k;            /* count: elements of all queries, of all keys */
  bool wide, acc, acc_sums;
};

/* 8 elements of a token: the row that they are in, of K E; their place in the token, and in their gain. */
struct eight { int e, left; int64_t at, gain; };

static __device__ __forceinline__ struct eight eight_of(const struct whole &a, int i)
{
  const int row = i / a.groups, j = i % a.groups * 8, k = row / a.E, e = row % a.E;
  struct eight g;
  g.e = e, g.left = a.D - j, g.at = (int64_t)row * a.D + j;
  g.gain = (int64_t)(e < a.E - 2 ? k * (a.E - 2) + e : k) * a.D + j;
  return g;
}

/* The scale of token n's queries (0) or keys (1). */
static __device__ __forceinline__ float scale_of(const struct whole &a, int64_t n, int k)
{
  return 1.f / sqrtf(a.s[2 * n + k] / (k ? a.count_k : a.count_q) + a.eps);
}

/* The sum over the block, of queries (thread 0 gets it) or of keys (thread 1). */
static __device__ __forceinline__ double sum_of_either(float queries, float keys)
{
  const double q = tc_block_sum((double)queries);
  __syncthreads();
  const double k = tc_block_sum((double)keys);
  return threadIdx.x == 0 ? q : k;
}

static __global__ void __launch_bounds__(THREADS) qk_squares(struct whole a)
{
  const int64_t n = blockIdx.x, first = n * a.K * a.E * a.D;
  float queries = 0, keys = 0, x[8];
  for (int i = (int)threadIdx.x; i < a.K * a.E * a.groups; i += THREADS) {
    const struct eight g = eight_of(a, i);
    if (g.e == a.E - 1) continue;
    tc_load(x, a.x, first + g.at, g.left, a.wide);
    float part = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) part += x[k] * x[k];
    queries += g.e < a.E - 2 ? part : 0.f;
    keys += g.e < a.E - 2 ? 0.f : part;
  }
  const double all = sum_of_either(queries, keys);
  if (threadIdx.x < 2) a.sums[2 * n + threadIdx.x] = (float)all;
}

static __global__ void __launch_bounds__(THREADS) qk_squares_backward(struct whole a)
{
  const int64_t n = blockIdx.x, first = n * a.K * a.E * a.D;
  float d[8], x[8];
  for (int i = (int)threadIdx.x; i < a.K * a.E * a.groups; i += THREADS) {
    const struct eight g = eight_of(a, i);
    const float by = g.e < a.E - 1 ? 2.f * a.ds[2 * n + (g.e == a.E - 2)] : 0.f;
    tc_load(d, a.dy, first + g.at, g.left, a.wide);
    tc_load(x, a.x, first + g.at, g.left, a.wide);
#pragma unroll
    for (int k = 0; k < 8; k++) d[k] += x[k] * by;
    tc_store(a.y, first + g.at, g.left, a.wide, d);
  }
}

static __global__ void __launch_bounds__(THREADS) qk_scale_forward(struct whole a)
{
  const int64_t n = blockIdx.x, first = n * a.K * a.E * a.D;
  const float r_q = scale_of(a, n, 0), r_k = scale_of(a, n, 1);
  float x[8], gain[8];
  for (int i = (int)threadIdx.x; i < a.K * a.E * a.groups; i += THREADS) {
    const struct eight g = eight_of(a, i);
    const bool query = g.e < a.E - 2;
    tc_load(x, a.x, first + g.at, g.left, a.wide);
    if (g.e < a.E - 1) {
      tc_load(gain, query ? a.gain_q : a.gain_k, g.gain, g.left, a.wide);
#pragma unroll
      for (int k = 0; k < 8; k++) x[k] *= (query ? r_q : r_k) * (gain[k] + a.shift);
    }
    tc_store(a.y, first + g.at, g.left, a.wide, x);
  }
}

/* dx and ds. With r = (s / M + eps)^(-1/2) of M elements, dr/ds = -r^3 / (2 M). */
static __global__ void __launch_bounds__(THREADS) qk_scale_backward(struct whole a)
{
  const int64_t n = blockIdx.x, first = n * a.K * a.E * a.D;
  const float r_q = scale_of(a, n, 0), r_k = scale_of(a, n, 1);
  float queries = 0, keys = 0, dy[8], x[8], gain[8];
  for (int i = (int)threadIdx.x; i < a.K * a.E * a.groups; i += THREADS) {
    const struct eight g = eight_of(a, i);
    const bool query = g.e < a.E - 2;
    tc_load(dy, a.dy, first + g.at, g.left, a.wide);
    if (g.e < a.E - 1) {
      float part = 0;
      tc_load(x, a.x, first + g.at, g.left, a.wide);
      tc_load(gain, query ? a.gain_q : a.gain_k, g.gain, g.left, a.wide);
#pragma unroll
      for (int k = 0; k < 8; k++) {
        dy[k] *= gain[k] + a.shift;
        part += dy[k] * x[k];
        dy[k] *= query ? r_q : r_k;
      }
      queries += query ? part : 0.f;
      keys += query ? 0.f : part;
    }
    tc_add_to(a.y, first + g.at, g.left, a.wide, a.acc, dy);
  }
  const double all = sum_of_either(queries, keys);
  if (threadIdx.x >= 2) return;
  const float r = threadIdx.x ? r_k : r_q, count = threadIdx.x ? a.count_k : a.count_q;
  const double e = -0.5 * all * (double)(r * r * r) / (double)count;
  float *ds = &a.sums[2 * n + threadIdx.x];
  *ds = (float)(a.acc_sums ? e + (double)*ds : e);
}

enum { SUM_TURNS = 8, SUM_COLS = 256 };          /* a block: tokens at a time, and columns */

/* Parts of the gains' gradients: the sums of dy x r over `each` tokens. */
static __global__ void __launch_bounds__(SUM_COLS) qk_gain_sums(struct whole a, int64_t each)
{
  __shared__ float sums[SUM_TURNS][SUM_COLS];
  const int lane = (int)threadIdx.x % 32, turn = (int)threadIdx.x / 32, all = a.K * a.E * a.groups;
  const int i = (int)blockIdx.x * 32 + lane;
  const struct eight g = eight_of(a, TC_MIN(i, all - 1));
  const int64_t begin = (int64_t)blockIdx.y * each, end = TC_MIN(begin + each, a.N);
  const int left = i < all && g.e < a.E - 1 ? g.left : 0;
  float sum[8] = { 0 }, dy[8], x[8];
  for (int64_t n = begin + turn; n < end; n += SUM_TURNS) {
    const int64_t at = n * a.K * a.E * a.D + g.at;
    const float r = scale_of(a, n, g.e == a.E - 2);
    tc_load(dy, a.dy, at, left, a.wide);
    tc_load(x, a.x, at, left, a.wide);
#pragma unroll
    for (int k = 0; k < 8; k++) sum[k] += dy[k] * x[k] * r;
  }
#pragma unroll
  for (int k = 0; k < 8; k++) sums[turn][lane * 8 + k] = sum[k];
  __syncthreads();
  const int mine = (int)blockIdx.x * 32 + (int)threadIdx.x / 8, k = (int)threadIdx.x % 8;
  const struct eight to = eight_of(a, TC_MIN(mine, all - 1));
  if (mine >= all || to.e == a.E - 1 || k >= to.left) return;
  float total = 0;
  for (int w = 0; w < SUM_TURNS; w++) total += sums[w][threadIdx.x];
  const int64_t columns = (int64_t)a.K * (a.E - 1) * a.D, keys = (int64_t)a.K * (a.E - 2) * a.D;
  a.part[blockIdx.y * columns + (to.e == a.E - 2 ? keys : 0) + to.gain + k] = total;
}

/* gain: of queries, then of keys; NULL: none. */
static struct whole whole_of(const struct tc_call *c, const struct tc_view *x, const struct tc_view *gain)
{
  struct whole a;
  memset(&a, 0, sizeof a);
  TC_ASSERT(x->rank == 4 && x->dim[2] >= 3 && x->dim[1] * x->dim[2] * x->dim[3] <= INT32_MAX);
  a.x = tc_arr_of(x), a.N = x->dim[0], a.K = (int)x->dim[1], a.E = (int)x->dim[2], a.D = (int)x->dim[3];
  a.groups = (a.D + 7) / 8;
  a.count_q = (float)tc_call_qk_elems(x, false), a.count_k = (float)tc_call_qk_elems(x, true);
  a.wide = tc_wide(a.D, x, gain, gain ? &gain[1] : NULL);
  if (gain) a.gain_q = tc_arr_of(&gain[0]), a.gain_k = tc_arr_of(&gain[1]), a.eps = c->f[0], a.shift = c->f[1];
  return a;
}

int tc_cuda_qk_squares(struct tc_device *d, const struct tc_call *c)
{
  struct whole a = whole_of(c, &c->in[0], NULL);
  a.sums = tc_f32_of(&c->out[0]);
  if (a.N == 0) return 0;
  TC_LAUNCH(qk_squares, tc_blocks(a.N, 1), dim3(THREADS), 0, tc_stream(d), a);
  return tc_cuda_launched(d, "qk_squares");
}

int tc_cuda_qk_squares_bwd(struct tc_device *d, const struct tc_call *c)
{
  struct whole a = whole_of(c, &c->in[1], NULL);
  a.dy = tc_arr_of(&c->in[0]), a.y = tc_arr_of(&c->out[0]), a.ds = tc_f32_of(&c->in[2]);
  a.wide = a.wide && tc_wide(a.D, &c->in[0], &c->out[0], NULL);
  if (c->in[1].elems == 0) return 0;
  TC_LAUNCH(qk_squares_backward, tc_blocks(a.N, 1), dim3(THREADS), 0, tc_stream(d), a);
  return tc_cuda_launched(d, "qk_squares_bwd");
}

int tc_cuda_qk_scale(struct tc_device *d, const struct tc_call *c)
{
  struct whole a = whole_of(c, &c->in[0], &c->in[2]);
  a.s = tc_f32_of(&c->in[1]), a.y = tc_arr_of(&c->out[0]), a.wide = a.wide && tc_wide(a.D, &c->out[0], NULL, NULL);
  if (c->in[0].elems == 0) return 0;
  TC_LAUNCH(qk_scale_forward, tc_blocks(a.N, 1), dim3(THREADS), 0, tc_stream(d), a);
  return tc_cuda_launched(d, "qk_scale");
}

static int64_t whole_parts(const struct tc_view *x) { return TC_MAX(1, TC_MIN(256, x->dim[0] / 64)); }

int64_t tc_cuda_qk_scale_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  (void)d;
  return whole_parts(&c->in[1]) * (c->in[3].elems + c->in[4].elems) * (int64_t)sizeof(float);
}

int tc_cuda_qk_scale_bwd(struct tc_device *d, const struct tc_call *c)
{
  const int64_t parts = whole_parts(&c->in[1]), queries = c->in[3].elems, keys = c->in[4].elems;
  struct whole a = whole_of(c, &c->in[1], &c->in[3]);
  a.dy = tc_arr_of(&c->in[0]), a.s = tc_f32_of(&c->in[2]), a.y = tc_arr_of(&c->out[0]);
  a.sums = tc_f32_of(&c->out[1]), a.part = (float *)c->scratch;
  a.acc = (c->acc & 1) != 0, a.acc_sums = (c->acc & 2) != 0;
  a.wide = a.wide && tc_wide(a.D, &c->in[0], &c->out[0], NULL);
  if (c->in[1].elems == 0) return 0;
  TC_LAUNCH(qk_scale_backward, tc_blocks(a.N, 1), dim3(THREADS), 0, tc_stream(d), a);
  const dim3 grid((unsigned)tc_ceil_div(a.K * a.E * a.groups, 32), (unsigned)parts);
  TC_LAUNCH(qk_gain_sums, grid, dim3(SUM_COLS), 0, tc_stream(d), a, tc_ceil_div(a.N, parts));
  tc_cuda_add_parts(d, &c->out[2], (c->acc >> 2 & 1) != 0, a.part, parts, queries, queries + keys);
  tc_cuda_add_parts(d, &c->out[3], (c->acc >> 3 & 1) != 0, a.part + queries, parts, keys, queries + keys);
  return tc_cuda_launched(d, "qk_scale_bwd");
}

void tc_cuda_load_qknorm(struct tc_device *d)
{
  tc_load_kernels(d, qk_squares, qk_squares_backward, qk_scale_forward, qk_scale_backward, qk_gain_sums);
  tc_load_kernels(d, qknorm_forward<8>, qknorm_forward<16>, qknorm_forward<32>, qknorm_backward<8>, qknorm_backward<16>,
                  qknorm_backward<32>);
}
