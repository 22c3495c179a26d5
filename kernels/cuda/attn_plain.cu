/* attn_plain.cu - causal attention in fp32 arithmetic: for fp32, and for head sizes that do not suit tensor
 * cores. By blocks of keys with a running maximum, like attn_fwd.cu.
 *
 * A warp owns one row: a query or, for the gradients of k and v, a key. The block iterates over the
 * other rows in tiles of 32, in shared memory: first a lane has one of them, for its score; then
 * a lane has columns, for the sums. No sum spans warps. */
#include "kernels/cuda/dev.h"

enum { WARPS = 8, TILE = 32, COLS = 8 };         /* COLS * 32: the largest head */

/* Shared memory: own rows [WARPS][2][D], tiles [2][TILE][D + 1], a warp's weights [WARPS][2][TILE],
 * the tile's lse and delta [2][TILE]. */
struct shared { float *own, *tile, *weight, *stat; };

static __device__ __forceinline__ struct shared carve(float *p, int D)
{
  struct shared s;
  s.own = p, p += WARPS * 2 * D;
  s.tile = p, p += 2 * TILE * (D + 1);
  s.weight = p, p += WARPS * 2 * TILE;
  s.stat = p;
  return s;
}

static size_t shared_bytes(int64_t D)
{
  return (size_t)(WARPS * 2 * D + 2 * TILE * (D + 1) + WARPS * 2 * TILE + 2 * TILE) * sizeof(float);
}

/* The index in x[N,H,3,D] or x[N,H,D] (e < 0) at which token n's row begins. */
static __device__ __forceinline__ int64_t row_at(const struct tc_attn &a, int64_t n, int64_t h,
                                                 int e)
{
  return e < 0 ? (n * a.H + h) * a.D : ((n * a.H + h) * 3 + e) * a.D;
}

/* A tile of rows [t0, t0 + TILE) of the sequence, 0 past its end. */
static __device__ void load_tile(float *tile, const struct tc_attn &a, struct tc_arr x, int e,
                             int64_t n0, int64_t h, int64_t t0)
{
  const int D = (int)a.D;
  for (int i = (int)(threadIdx.y * 32 + threadIdx.x); i < TILE * D; i += WARPS * 32) {
    const int r = i / D, j = i % D;
    tile[r * (D + 1) + j] = t0 + r < a.T ? tc_get(x, row_at(a, n0 + t0 + r, h, e) + j) : 0.f;
  }
}

static __device__ __forceinline__ float dot(const float *x, const float *y, int D)
{
  float sum = 0;
  for (int j = 0; j < D; j++) sum += x[j] * y[j];
  return sum;
}

/* acc[i] += sum over the tile's rows r of weight[r] tile[r][lane + 32 i]. */
static __device__ __forceinline__ void add_rows(float acc[COLS], const float *weight,
                                                const float *tile, int D, int lane)
{
  for (int r = 0; r < TILE; r++) {
#pragma unroll
    for (int i = 0; i < COLS; i++)
      if (lane + 32 * i < D) acc[i] += weight[r] * tile[r * (D + 1) + lane + 32 * i];
  }
}

static __global__ void __launch_bounds__(WARPS * 32) forward(struct tc_attn a)
{
  TC_DYNAMIC_SHARED(float, memory);
  const int D = (int)a.D, lane = (int)threadIdx.x, w = (int)threadIdx.y;
  const struct shared s = carve(memory, D);
  const int64_t h = blockIdx.y, n0 = blockIdx.z * a.T;
  const int64_t first = (int64_t)blockIdx.x * WARPS, q = first + w, n = n0 + q;
  float *own = s.own + w * D, *tile_v = s.tile + TILE * (D + 1), *weight = s.weight + w * TILE;
  float acc[COLS] = { 0 }, max = -INFINITY, sum = 0;
  for (int j = lane; j < D; j += 32) own[j] = q < a.T ? tc_get(a.qkv, row_at(a, n, h, 0) + j) : 0.f;
  for (int64_t k0 = 0; k0 < TC_MIN(first + WARPS, a.T); k0 += TILE) {
    __syncthreads();
    load_tile(s.tile, a, a.qkv, 1, n0, h, k0);
    load_tile(tile_v, a, a.qkv, 2, n0, h, k0);
    __syncthreads();
    float score = dot(own, s.tile + lane * (D + 1), D) * a.scale;
    if (k0 + lane > q) score = -INFINITY;
    const float high = fmaxf(max, tc_warp_max(score)), shrink = expf(max - high);
    const float p = expf(score - high);
    sum = sum * shrink + tc_warp_sum(p);
    max = high;
    weight[lane] = p;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < COLS; i++) acc[i] *= shrink;
    add_rows(acc, weight, tile_v, D, lane);
  }
  if (q >= a.T) return;
#pragma unroll
  for (int i = 0; i < COLS; i++)
    if (lane + 32 * i < D) tc_put(a.y, row_at(a, n, h, -1) + lane + 32 * i, acc[i] / sum);
  if (lane == 0) a.lse[n * a.H + h] = max + logf(sum);
}

/* KV: the warp's row is a key, the others are queries; else the other way round. */
template <bool KV> static __global__ void __launch_bounds__(WARPS * 32) backward(struct tc_attn a)
{
  TC_DYNAMIC_SHARED(float, memory);
  const int D = (int)a.D, lane = (int)threadIdx.x, w = (int)threadIdx.y;
  const struct shared s = carve(memory, D);
  const int64_t h = blockIdx.y, n0 = blockIdx.z * a.T;
  const int64_t first = (int64_t)blockIdx.x * WARPS, own_t = first + w, n = n0 + own_t;
  const bool here = own_t < a.T;
  float *own1 = s.own + w * 2 * D, *own2 = own1 + D, *tile2 = s.tile + TILE * (D + 1);
  float *weight = s.weight + w * 2 * TILE;
  float acc1[COLS] = { 0 }, acc2[COLS] = { 0 };
  for (int j = lane; j < D; j += 32) {
    own1[j] = here ? tc_get(a.qkv, row_at(a, n, h, KV ? 1 : 0) + j) : 0.f;
    own2[j] = !here ? 0.f : KV ? tc_get(a.qkv, row_at(a, n, h, 2) + j)
                               : tc_get(a.dy, row_at(a, n, h, -1) + j);
  }
  const float own_lse = here ? a.lse[n * a.H + h] : 0.f;
  const float own_delta = here ? a.delta[n * a.H + h] : 0.f;
  const int64_t begin = KV ? first / TILE * TILE : 0, end = KV ? a.T : TC_MIN(first + WARPS, a.T);
  for (int64_t t0 = begin; t0 < end; t0 += TILE) {
    __syncthreads();
    load_tile(s.tile, a, a.qkv, KV ? 0 : 1, n0, h, t0);
    if (KV) load_tile(tile2, a, a.dy, -1, n0, h, t0);
    else load_tile(tile2, a, a.qkv, 2, n0, h, t0);
    if (w == 0) {
      const int64_t at = (n0 + t0 + lane) * a.H + h;
      s.stat[lane] = t0 + lane < a.T ? a.lse[at] : 0.f;
      s.stat[TILE + lane] = t0 + lane < a.T ? a.delta[at] : 0.f;
    }
    __syncthreads();
    const int64_t t = t0 + lane, query = KV ? t : own_t, key = KV ? own_t : t;
    const bool pair = here && t < a.T && key <= query;
    const float score = dot(own1, s.tile + lane * (D + 1), D) * a.scale;
    const float dp = dot(own2, tile2 + lane * (D + 1), D);
    const float p = pair ? expf(score - (KV ? s.stat[lane] : own_lse)) : 0.f;
    weight[lane] = p * (dp - (KV ? s.stat[TILE + lane] : own_delta));
    weight[TILE + lane] = p;
    __syncwarp();
    add_rows(acc1, weight, s.tile, D, lane);
    if (KV) add_rows(acc2, weight + TILE, tile2, D, lane);
  }
  if (!here) return;
#pragma unroll
  for (int i = 0; i < COLS; i++) {
    const int j = lane + 32 * i;
    if (j >= D) continue;
    tc_put(a.dqkv, row_at(a, n, h, KV ? 1 : 0) + j, acc1[i] * a.scale);
    if (KV) tc_put(a.dqkv, row_at(a, n, h, 2) + j, acc2[i]);
  }
}

static dim3 grid_of(const struct tc_attn *a)
{
  return dim3((unsigned)tc_ceil_div(a->T, WARPS), (unsigned)a->H,
              (unsigned)(a->N / a->T));
}

void tc_cuda_attn_plain(struct tc_device *d, const struct tc_attn *a)
{
  const size_t bytes = shared_bytes(a->D);
  if (bytes > 48 << 10)
    cudaFuncSetAttribute(forward, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
  TC_LAUNCH(forward, grid_of(a), dim3(32, WARPS), bytes, tc_stream(d), *a);
}

void tc_cuda_attn_plain_bwd(struct tc_device *d, const struct tc_attn *a)
{
  const size_t bytes = shared_bytes(a->D);
  if (bytes > 48 << 10) {
    cudaFuncSetAttribute(backward<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    cudaFuncSetAttribute(backward<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
  }
  TC_LAUNCH(backward<false>, grid_of(a), dim3(32, WARPS), bytes, tc_stream(d), *a);
  TC_LAUNCH(backward<true>, grid_of(a), dim3(32, WARPS), bytes, tc_stream(d), *a);
}
