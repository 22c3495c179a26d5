/* attn_plain.cu - causal attention in fp32 arithmetic: fp32, and head sizes that tensor cores
 * don't take. By blocks of keys with a running maximum, as attn_fwd.cu.
 *
 * A warp owns one row: a query, or for the gradients of k and v a key. The block walks the
 * other rows in tiles of 32, in shared memory: first a lane has one of them, for its score; then
 * a lane has columns, for the sums. No sum crosses warps. The block that owns keys and values
 * which a group of heads shares processes the queries of each head in turn. With documents, tiles that no row of the
 * block sees are left out. */
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

/* A tile of rows of x, which are `step` elements apart: `rows` of them from element `at` on, then 0. */
static __device__ void fetch(float *tile, struct tc_arr x, int64_t at, int64_t step, int64_t rows, int D)
{
  for (int i = (int)(threadIdx.y * 32 + threadIdx.x); i < TILE * D; i += WARPS * 32) {
    const int r = i / D, j = i % D;
    tile[r * (D + 1) + j] = r < rows ? tc_get(x, at + r * step + j) : 0.f;
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

static __global__ void __launch_bounds__(WARPS * 32) attn_plain_forward(struct tc_attn a)
{
  TC_DYNAMIC_SHARED(float, memory);
  const int D = (int)a.D, lane = (int)threadIdx.x, w = (int)threadIdx.y;
  const struct shared s = carve(memory, D);
  const int64_t h = blockIdx.y, n0 = blockIdx.z * a.T;
  const int64_t first = (int64_t)blockIdx.x * WARPS, q = first + w, n = n0 + q;
  float *own = s.own + w * D, *tile_v = s.tile + TILE * (D + 1), *weight = s.weight + w * TILE;
  float acc[COLS] = { 0 }, max = -INFINITY, sum = 0;
  const int64_t query = tc_query_at(a, n, h), key = tc_key_at(a, n0, h), seen = tc_first_key(a, n0, q);
  for (int j = lane; j < D; j += 32) own[j] = q < a.T ? tc_get(a.qkv, query + j) : 0.f;
  for (int64_t k0 = tc_first_key(a, n0, first) / TILE * TILE; k0 < TC_MIN(first + WARPS, a.T); k0 += TILE) {
    __syncthreads();
    fetch(s.tile, a.qkv, key + k0 * a.step, a.step, a.T - k0, D);
    fetch(tile_v, a.qkv, key + D + k0 * a.step, a.step, a.T - k0, D);
    __syncthreads();
    float score = dot(own, s.tile + lane * (D + 1), D) * a.scale;
    if (k0 + lane > q || k0 + lane < seen) score = -INFINITY;
    const float high = fmaxf(max, tc_warp_max(score)), base = high == -INFINITY ? 0.f : high;
    const float shrink = expf(max - base), p = expf(score - base);
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
    if (lane + 32 * i < D) tc_put(a.y, (n * a.H + h) * D + lane + 32 * i, acc[i] / sum);
  if (lane == 0) a.lse[n * a.H + h] = max + logf(sum);
}

/* Weights of a tile, whose rows begin at t0: lane's p (dp - delta) and, after all of those, p. */
template <bool KV>
static __device__ __forceinline__ void weigh(float *weight, const struct shared &s, const float *own1,
                                             const float *own2, int D, float scale, float lse, float delta,
                                             bool pair, int lane)
{
  const float score = dot(own1, s.tile + lane * (D + 1), D) * scale;
  const float dp = dot(own2, s.tile + (TILE + lane) * (D + 1), D);
  const float p = pair ? expf(score - (KV ? s.stat[lane] : lse)) : 0.f;
  weight[lane] = p * (dp - (KV ? s.stat[TILE + lane] : delta));
  weight[TILE + lane] = p;
}

/* KV: the warp's row is a key, the others are queries of its group's heads; else the other way round. */
template <bool KV> static __global__ void __launch_bounds__(WARPS * 32) attn_plain_backward(struct tc_attn a)
{
  TC_DYNAMIC_SHARED(float, memory);
  const int D = (int)a.D, lane = (int)threadIdx.x, w = (int)threadIdx.y;
  const struct shared s = carve(memory, D);
  const int64_t h0 = blockIdx.y * (KV ? a.G : 1), n0 = blockIdx.z * a.T;
  const int64_t first = (int64_t)blockIdx.x * WARPS, own_t = first + w, n = n0 + own_t;
  const int64_t key0 = tc_key_at(a, n0, h0), key = key0 + own_t * a.step;
  const int64_t query = tc_query_at(a, n, h0);
  const bool here = own_t < a.T;
  float *own1 = s.own + w * 2 * D, *own2 = own1 + D, *tile2 = s.tile + TILE * (D + 1);
  float *weight = s.weight + w * 2 * TILE;
  float acc1[COLS] = { 0 }, acc2[COLS] = { 0 };
  for (int j = lane; j < D; j += 32) {
    own1[j] = here ? tc_get(a.qkv, (KV ? key : query) + j) : 0.f;
    own2[j] = !here ? 0.f : KV ? tc_get(a.qkv, key + D + j) : tc_get(a.dy, (n * a.H + h0) * D + j);
  }
  const float own_lse = here ? a.lse[n * a.H + h0] : 0.f;
  const float own_delta = here ? a.delta[n * a.H + h0] : 0.f;
  const int64_t begin = (KV ? first : tc_first_key(a, n0, first)) / TILE * TILE;
  const int64_t end = KV ? tc_end_of_queries(a, n0, TC_MIN(first + WARPS, a.T) - 1, first) : TC_MIN(first + WARPS, a.T);
  const int64_t seen = tc_first_key(a, n0, own_t);
  for (int64_t h = h0; h < h0 + (KV ? a.G : 1); h++)
    for (int64_t t0 = begin; t0 < end; t0 += TILE) {
      const int64_t rows = a.T - t0, t = t0 + lane, at = (n0 + t) * a.H + h;
      __syncthreads();
      fetch(s.tile, a.qkv, KV ? tc_query_at(a, n0 + t0, h) : key0 + t0 * a.step, a.step, rows, D);
      if (KV) fetch(tile2, a.dy, ((n0 + t0) * a.H + h) * D, a.H * D, rows, D);
      else fetch(tile2, a.qkv, key0 + D + t0 * a.step, a.step, rows, D);
      if (w == 0) {
        s.stat[lane] = lane < rows ? a.lse[at] : 0.f;
        s.stat[TILE + lane] = lane < rows ? a.delta[at] : 0.f;
      }
      __syncthreads();
      weigh<KV>(weight, s, own1, own2, D, a.scale, own_lse, own_delta,
                here && lane < rows && (KV ? own_t <= t && own_t >= tc_first_key(a, n0, t)
                                           : t <= own_t && t >= seen), lane);
      __syncwarp();
      add_rows(acc1, weight, s.tile, D, lane);
      if (KV) add_rows(acc2, weight + TILE, tile2, D, lane);
    }
  if (!here) return;
#pragma unroll
  for (int i = 0; i < COLS; i++) {
    const int j = lane + 32 * i;
    if (j >= D) continue;
    tc_put(a.dqkv, (KV ? key : query) + j, acc1[i] * a.scale);
    if (KV) tc_put(a.dqkv, key + D + j, acc2[i]);
  }
}

static dim3 grid_of(const struct tc_attn *a, int64_t heads)
{
  return dim3((unsigned)tc_ceil_div(a->T, WARPS), (unsigned)heads, (unsigned)(a->N / a->T));
}

void tc_cuda_attn_plain(struct tc_device *d, const struct tc_attn *a)
{
  const size_t bytes = shared_bytes(a->D);
  tc_allow_shared(d, attn_plain_forward, bytes);
  TC_LAUNCH(attn_plain_forward, grid_of(a, a->H), dim3(32, WARPS), bytes, tc_stream(d), *a);
}

void tc_cuda_attn_plain_bwd(struct tc_device *d, const struct tc_attn *a)
{
  const size_t bytes = shared_bytes(a->D);
  tc_allow_shared(d, attn_plain_backward<false>, bytes);
  tc_allow_shared(d, attn_plain_backward<true>, bytes);
  TC_LAUNCH(attn_plain_backward<false>, grid_of(a, a->H), dim3(32, WARPS), bytes, tc_stream(d), *a);
  TC_LAUNCH(attn_plain_backward<true>, grid_of(a, a->K), dim3(32, WARPS), bytes, tc_stream(d), *a);
}

void tc_cuda_load_attn_plain(struct tc_device *d)
{
  tc_load_kernels(d, attn_plain_forward, attn_plain_backward<false>, attn_plain_backward<true>);
}
