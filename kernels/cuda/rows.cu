/* rows.cu - layer norm, and sums over rows.
 *
 * Layer norm forward: a warp has a row, in registers where it fits. Backward: a block has rows
 * r, r + blocks, ...; a thread has columns, the same in all of them, and so keeps their part of
 * dg and db in registers. Sums over rows are made in two steps: a block's partial sums, then
 * those added in order. Their number depends only on the shape. */
#include "kernels/cuda/dev.h"

/* ---- the second step ---------------------------------------------------------------------- */

enum { SUM_X = 32, SUM_Y = 32 };

/* out[cols] (+)= part[0][cols] + ... + part[parts-1][cols], part rows `stride` apart. */
static __global__ void __launch_bounds__(SUM_X *SUM_Y)
sum_parts(struct tc_arr out, bool acc, const float *part, int parts, int64_t cols, int64_t stride)
{
  __shared__ float sums[SUM_Y][SUM_X + 1];
  const int64_t j = (int64_t)blockIdx.x * SUM_X + threadIdx.x;
  float sum = 0;
  if (j < cols)
    for (int p = (int)threadIdx.y; p < parts; p += SUM_Y) sum += part[p * stride + j];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || j >= cols) return;
  sum = 0;
  for (int y = 0; y < SUM_Y; y++) sum += sums[y][threadIdx.x];
  tc_put(out, j, acc ? tc_get(out, j) + sum : sum);
}

static void add_parts(struct tc_device *d, const struct tc_view *out, bool acc, const float *part,
                      int64_t parts, int64_t cols, int64_t stride)
{
  TC_LAUNCH(sum_parts, tc_blocks(cols, SUM_X), dim3(SUM_X, SUM_Y), 0, tc_stream(d), tc_arr_of(out),
            acc, part, (int)parts, cols, stride);
}

/* ---- bias gradients: the sums of columns --------------------------------------------------- */

enum { COLS = 256, GROUPS = 8 };                 /* a block: columns, and rows at a time */

static __global__ void __launch_bounds__(COLS)
column_sums(float *part, struct tc_arr x, int64_t rows, int64_t cols, int64_t each, bool wide)
{
  __shared__ float sums[GROUPS][COLS];
  const int lane = (int)threadIdx.x % 32, group = (int)threadIdx.x / 32;
  const int64_t j = (int64_t)blockIdx.x * COLS + lane * 8, first = (int64_t)blockIdx.y * each;
  const int64_t end = TC_MIN(first + each, rows);
  float sum[8] = { 0 }, v[8];
  for (int64_t r = first + group; r < end; r += GROUPS) {
    tc_load(v, x, r * cols + j, cols - j, wide);
#pragma unroll
    for (int k = 0; k < 8; k++) sum[k] += v[k];
  }
#pragma unroll
  for (int k = 0; k < 8; k++) sums[group][lane * 8 + k] = sum[k];
  __syncthreads();
  const int64_t col = (int64_t)blockIdx.x * COLS + threadIdx.x;
  if (col >= cols) return;
  float total = 0;
  for (int g = 0; g < GROUPS; g++) total += sums[g][threadIdx.x];
  part[(int64_t)blockIdx.y * cols + col] = total;
}

static int64_t column_parts(int64_t rows) { return TC_MAX(1, TC_MIN(256, rows / 64)); }

int64_t tc_cuda_bias_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  (void)d;
  const int64_t cols = c->out[0].elems, rows = cols ? c->in[0].elems / cols : 0;
  return column_parts(rows) * cols * (int64_t)sizeof(float);
}

int tc_cuda_bias_bwd(struct tc_device *d, const struct tc_call *c)
{
  const int64_t cols = c->out[0].elems, rows = cols ? c->in[0].elems / cols : 0;
  const int64_t parts = column_parts(rows), each = tc_ceil_div(rows, parts);
  float *part = (float *)c->scratch;
  if (cols == 0) return 0;
  TC_LAUNCH(column_sums, dim3((unsigned)tc_ceil_div(cols, COLS), (unsigned)parts), dim3(COLS), 0,
            tc_stream(d), part, tc_arr_of(&c->in[0]), rows, cols, each,
            tc_wide(cols, &c->in[0], NULL, NULL));
  add_parts(d, &c->out[0], (c->acc & 1) != 0, part, parts, cols, cols);
  return tc_cuda_launched(d, "bias_bwd");
}

/* ---- layer norm ----------------------------------------------------------------------------- */

enum { NORM_ROWS = 4 };                          /* warps, and so rows, of a block */

/* Row n, 8 columns at a time: NV groups per lane in registers, or (NV = 0) read three times. */
template <int NV> static __global__ void __launch_bounds__(32 * NORM_ROWS)
norm(struct tc_arr y, float *mean_out, float *rstd_out, struct tc_arr x, struct tc_arr g,
     struct tc_arr b, int64_t N, int64_t C, float eps, bool wide)
{
  enum { KEPT = NV ? NV : 1 };
  const int64_t n = (int64_t)blockIdx.x * NORM_ROWS + threadIdx.y;
  if (n >= N) return;
  const int lane = (int)threadIdx.x;
  const int groups = NV ? NV : (int)((C + 255) / 256);
  float v[KEPT][8], sum = 0, sq = 0, gain[8], shift[8];
#pragma unroll
  for (int q = 0; q < groups; q++) {
    const int64_t j = q * 256 + lane * 8;
    float *at = v[NV ? q : 0];
    tc_load(at, x, n * C + j, C - j, wide);
#pragma unroll
    for (int k = 0; k < 8; k++) sum += at[k];
  }
  const float mean = tc_warp_sum(sum) / (float)C;
#pragma unroll
  for (int q = 0; q < groups; q++) {
    const int64_t j = q * 256 + lane * 8;
    float *at = v[NV ? q : 0];
    if (NV == 0) tc_load(at, x, n * C + j, C - j, wide);
#pragma unroll
    for (int k = 0; k < 8; k++) sq += j + k < C ? (at[k] - mean) * (at[k] - mean) : 0.f;
  }
  const float rstd = 1.f / sqrtf(tc_warp_sum(sq) / (float)C + eps);
#pragma unroll
  for (int q = 0; q < groups; q++) {
    const int64_t j = q * 256 + lane * 8;
    float *at = v[NV ? q : 0];
    if (NV == 0) tc_load(at, x, n * C + j, C - j, wide);
    tc_load(gain, g, j, C - j, wide);
    tc_load(shift, b, j, C - j, wide);
#pragma unroll
    for (int k = 0; k < 8; k++) at[k] = (at[k] - mean) * rstd * gain[k] + shift[k];
    tc_store(y, n * C + j, C - j, wide, at);
  }
  if (lane == 0) mean_out[n] = mean, rstd_out[n] = rstd;
}

int tc_cuda_layernorm(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const int64_t C = c->in[1].elems, N = c->out[1].elems, nv = tc_ceil_div(C, 256);
  TC_ASSERT(x->elems == N * C && y->elems == N * C);
  if (N * C == 0) return 0;
  const bool wide = tc_wide(C, x, y, &c->in[1]) && tc_wide(C, &c->in[2], NULL, NULL);
  auto kernel = nv == 1 ? norm<1> : nv == 2 ? norm<2> : nv == 3 ? norm<3> : nv == 4 ? norm<4>
              : nv <= 6 ? norm<6> : nv <= 8 ? norm<8> : norm<0>;
  TC_LAUNCH(kernel, tc_blocks(N, NORM_ROWS), dim3(32, NORM_ROWS), 0, tc_stream(d), tc_arr_of(y),
            tc_f32_of(&c->out[1]), tc_f32_of(&c->out[2]), tc_arr_of(x), tc_arr_of(&c->in[1]),
            tc_arr_of(&c->in[2]), N, C, c->f[0], wide);
  return tc_cuda_launched(d, "layernorm");
}

struct norm_grad {
  struct tc_arr dx, dy, x, g;
  const float *mean, *rstd;
  float *part;                   /* [blocks][2][C]: dg, db */
  int64_t N, C;
  bool wide, acc;
};

enum { BWD_THREADS = 256, BWD_MOST = 512, BWD_WARPS = BWD_MOST / 32 };

/* The sums over a row that dx needs, from 8 columns: those of e = dy gain and of e xhat. */
static __device__ __forceinline__ void row_sums(float s[2], const struct norm_grad &a, int64_t n,
                                                int64_t j, float mean, float rstd)
{
  const int64_t left = a.C - j;
  float e[8], x[8], gain[8];
  tc_load(e, a.dy, n * a.C + j, left, a.wide);
  tc_load(x, a.x, n * a.C + j, left, a.wide);
  tc_load(gain, a.g, j, left, a.wide);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    e[k] *= gain[k];
    s[0] += e[k];
    s[1] += k < left ? e[k] * (x[k] - mean) * rstd : 0.f;
  }
}

/* NV groups of 8 columns per thread; ROWS rows at a time, whose sums are computed together. Rows that are
 * wider than a block has registers for are several blocks' (grid.y): each has its columns, and
 * reads the others for the sums alone. So dx lies over neither dy nor x. */
template <int NV, int ROWS, int THREADS> static __global__ void __launch_bounds__(THREADS)
norm_bwd(struct norm_grad a)
{
  TC_DYNAMIC_SHARED(float, sums);                /* [2][BWD_WARPS][ROWS][2], in turns */
  const int t = (int)threadIdx.x, T = (int)blockDim.x, warps = T / 32;
  enum { SHARED_ROW = THREADS == BWD_MOST };
  const int64_t C = a.C, width = (int64_t)NV * T * 8, first = SHARED_ROW ? blockIdx.y * width : 0;
  float dg[NV][8], db[NV][8];
  int turn = 0;
#pragma unroll
  for (int q = 0; q < NV; q++)
#pragma unroll
    for (int k = 0; k < 8; k++) dg[q][k] = db[q][k] = 0;
  for (int64_t n0 = (int64_t)blockIdx.x * ROWS; n0 < a.N; n0 += (int64_t)gridDim.x * ROWS) {
    float e[ROWS][NV][8], xhat[ROWS][NV][8], gain[8], s[ROWS][2];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int64_t n = n0 + r;
      const bool there = n < a.N;
      const float mean = there ? a.mean[n] : 0.f, rstd = there ? a.rstd[n] : 0.f;
      s[r][0] = s[r][1] = 0;
#pragma unroll
      for (int q = 0; q < NV; q++) {
        const int64_t j = first + (q * T + t) * 8, left = there ? C - j : 0;
        tc_load(e[r][q], a.dy, n * C + j, left, a.wide);
        tc_load(xhat[r][q], a.x, n * C + j, left, a.wide);
        tc_load(gain, a.g, j, left, a.wide);
#pragma unroll
        for (int k = 0; k < 8; k++) {
          xhat[r][q][k] = k < left ? (xhat[r][q][k] - mean) * rstd : 0.f;
          dg[q][k] += e[r][q][k] * xhat[r][q][k];
          db[q][k] += e[r][q][k];
          e[r][q][k] *= gain[k];
          s[r][0] += e[r][q][k];
          s[r][1] += e[r][q][k] * xhat[r][q][k];
        }
      }
      for (int64_t j = t * 8; SHARED_ROW && there && j < C; j += T * 8)
        if (j < first || j >= first + width) row_sums(s[r], a, n, j, mean, rstd);
      s[r][0] = tc_warp_sum(s[r][0]);
      s[r][1] = tc_warp_sum(s[r][1]);
    }
    float *mine = sums + turn * (BWD_WARPS * ROWS * 2);
    turn ^= 1;
    if (t % 32 == 0)
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        mine[(t / 32 * ROWS + r) * 2] = s[r][0];
        mine[(t / 32 * ROWS + r) * 2 + 1] = s[r][1];
      }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int64_t n = n0 + r;
      float s1 = 0, s2 = 0;
      if (n >= a.N) continue;
      for (int w = 0; w < warps; w++) {
        s1 += mine[(w * ROWS + r) * 2];
        s2 += mine[(w * ROWS + r) * 2 + 1];
      }
      s1 /= (float)C, s2 /= (float)C;
      const float rstd = a.rstd[n];
#pragma unroll
      for (int q = 0; q < NV; q++) {
        const int64_t j = first + (q * T + t) * 8;
#pragma unroll
        for (int k = 0; k < 8; k++) e[r][q][k] = rstd * (e[r][q][k] - s1 - xhat[r][q][k] * s2);
        tc_add_to(a.dx, n * C + j, C - j, a.wide, a.acc, e[r][q]);
      }
    }
  }
  const struct tc_arr part = { (char *)(a.part + (int64_t)blockIdx.x * 2 * C), false };
#pragma unroll
  for (int q = 0; q < NV; q++) {
    const int64_t j = first + (q * T + t) * 8;
    tc_store(part, j, C - j, C % 8 == 0, dg[q]);
    tc_store(part, C + j, C - j, C % 8 == 0, db[q]);
  }
}

static int64_t norm_parts(int64_t rows) { return TC_MAX(1, TC_MIN(512, rows / 4)); }

int64_t tc_cuda_layernorm_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  (void)d;
  return norm_parts(c->in[3].elems) * 2 * c->in[2].elems * (int64_t)sizeof(float);
}

int tc_cuda_layernorm_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0];
  const int64_t C = c->in[2].elems, N = c->in[3].elems, parts = norm_parts(N);
  TC_ASSERT(x->elems == N * C && dy->elems == N * C);
  if (N * C == 0) return 0;
  const int64_t groups = tc_ceil_div(C, 8);
  const int most = groups > 4 * BWD_THREADS ? BWD_MOST : BWD_THREADS;
  const int threads = (int)TC_MIN((int64_t)most, tc_round_up(groups, 32));
  const int64_t nv = tc_ceil_div(groups, threads);
  const int64_t blocks = most == BWD_MOST ? tc_ceil_div(groups, 2 * BWD_MOST) : 1;   /* of a row */
  struct norm_grad a;
  a.dx = tc_arr_of(dx), a.dy = tc_arr_of(dy), a.x = tc_arr_of(x), a.g = tc_arr_of(&c->in[2]);
  a.mean = tc_f32_of(&c->in[3]), a.rstd = tc_f32_of(&c->in[4]);
  a.part = (float *)c->scratch;
  a.N = N, a.C = C, a.acc = (c->acc & 1) != 0;
  a.wide = tc_wide(C, dx, dy, x) && tc_wide(C, &c->in[2], NULL, NULL);
  auto kernel = most == BWD_MOST ? norm_bwd<2, 1, BWD_MOST> : nv == 1 ? norm_bwd<1, 2, BWD_THREADS>
              : nv == 2 ? norm_bwd<2, 2, BWD_THREADS> : norm_bwd<4, 1, BWD_THREADS>;
  TC_LAUNCH(kernel, dim3((unsigned)parts, (unsigned)blocks), dim3((unsigned)threads),
            2 * BWD_WARPS * 2 * 2 * sizeof(float), tc_stream(d), a);
  add_parts(d, &c->out[1], (c->acc >> 1 & 1) != 0, a.part, parts, C, 2 * C);
  add_parts(d, &c->out[2], (c->acc >> 2 & 1) != 0, a.part + C, parts, C, 2 * C);
  return tc_cuda_launched(d, "layernorm_bwd");
}
