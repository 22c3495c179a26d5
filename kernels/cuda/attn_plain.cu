/* attn_plain.cu - causal attention in fp32 arithmetic: fp32, and head sizes that tensor cores
 * don't take. By blocks of keys with a running maximum, as attn_fwd.cu.
 *
 * A warp owns one row: a query, or for the gradients of k and v a key. The block walks the
 * other rows in tiles of 32, in shared memory: first a lane has one of them, for its score; then
 * a lane has columns, for the sums. No sum crosses warps. The block that owns keys and values
 * which a group of heads shares processes the queries of each head in turn. With documents or a window, tiles that no row of
 * the block sees are left out. */
#include "kernels/cuda/attn.h"

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

/* A tile of rows of x: `rows` of them, of which row r begins at element at(r), then 0. */
template <typename At> static __device__ __forceinline__ void fetch(float *tile, struct tc_arr x, int64_t rows, int D, At at)
{
  for (int i = (int)(threadIdx.y * 32 + threadIdx.x); i < TILE * D; i += WARPS * 32) {
    const int r = i / D, j = i % D;
    tile[r * (D + 1) + j] = r < rows ? tc_get(x, at(r) + j) : 0.f;
  }
}

/* The same of the keys from position t on, as of their values, which are behind them. */
static __device__ __forceinline__ void fetch_keys(float *tile, const struct tc_attn &a, int64_t sequence, int64_t h, int64_t t,
                                                  int64_t behind, int D)
{
  fetch(tile, a.kv, a.T - t, D,
        [&](int r) { return tc_key_at<true>(a, tc_key_place<true>(a, sequence, t + r).row, h) + behind; });
}

/* What the scale makes of a product; a cap c makes c tanh(x / c) of it. */
static __device__ __forceinline__ float score_of(const struct tc_attn &a, float product)
{
  const float x = product * a.scale;
  return a.cap > 0.f ? a.cap * tanhf(x / a.cap) : x;
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
  const int64_t h = tc_head<true>(a, blockIdx.y, false), sequence = blockIdx.z;
  const int64_t first = (int64_t)blockIdx.x * WARPS, q = first + w, last = TC_MIN(first + WARPS, a.here) - 1;
  const struct tc_attn_place begin = tc_query_place<true>(a, sequence, first);
  const struct tc_attn_place mine = tc_query_place<true>(a, sequence, TC_MIN(q, last));
  const int64_t n = mine.row, end = tc_query_place<true>(a, sequence, last).at + 1;
  float *own = s.own + w * D, *tile_v = s.tile + TILE * (D + 1), *weight = s.weight + w * TILE;
  float acc[COLS] = { 0 }, max = -INFINITY, sum = 0;
  const int64_t query = tc_query_at(a, n, h), seen = tc_first_key(a, mine, mine.at);
  for (int j = lane; j < D; j += 32) own[j] = tc_get(a.qkv, query + j);
  for (int64_t k0 = tc_first_key(a, begin, begin.at) / TILE * TILE; k0 < end; k0 += TILE) {
    __syncthreads();
    fetch_keys(s.tile, a, sequence, h, k0, 0, D);
    fetch_keys(tile_v, a, sequence, h, k0, D, D);
    __syncthreads();
    float score = score_of(a, dot(own, s.tile + lane * (D + 1), D));
    if (k0 + lane > mine.at || k0 + lane < seen) score = -INFINITY;
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
  if (q > last) return;
#pragma unroll
  for (int i = 0; i < COLS; i++)
    if (lane + 32 * i < D) tc_put(a.y, (n * a.H + h) * D + lane + 32 * i, acc[i] / sum);
  if (lane == 0) a.lse[n * a.H + h] = max + logf(sum);
}

/* Weights of a tile: lane's p (dp - delta), times 1 - (score / cap)^2 where scores are capped, and, after all of those, p. */
template <bool KV>
static __device__ __forceinline__ void weigh(float *weight, const struct shared &s, const struct tc_attn &a,
                                             const float *own1, const float *own2, int D, float lse, float delta,
                                             bool pair, int lane)
{
  const float score = score_of(a, dot(own1, s.tile + lane * (D + 1), D));
  const float dp = dot(own2, s.tile + (TILE + lane) * (D + 1), D);
  const float p = pair ? expf(score - (KV ? s.stat[lane] : lse)) : 0.f;
  const float ds = p * (dp - (KV ? s.stat[TILE + lane] : delta)), part = a.cap > 0.f ? score / a.cap : 0.f;
  weight[lane] = a.cap > 0.f ? ds * ((1.f - part) * (1.f + part)) : ds;
  weight[TILE + lane] = p;
}

/* Queries from the t-th on, and gradients of what they give. */
static __device__ __forceinline__ void fetch_queries(float *q, float *dy, const struct tc_attn &a, int64_t sequence, int64_t h,
                                                     int64_t t, int D)
{
  fetch(q, a.qkv, a.here - t, D, [&](int r) { return tc_query_at(a, tc_query_place<true>(a, sequence, t + r).row, h); });
  fetch(dy, a.dy, a.here - t, D, [&](int r) { return (tc_query_place<true>(a, sequence, t + r).row * a.H + h) * a.D; });
}

/* The queries that see a key from `first` to `last`, or the keys that such queries see, and some more. */
struct range { int64_t from, end; };

template <bool KV>
static __device__ struct range others_of(const struct tc_attn &a, int64_t sequence, int64_t first, int64_t last)
{
  if (KV) {
    const int64_t from = tc_queries_before<true>(a, first);
    return { from, tc_end_of_queries<true>(a, sequence, last, from) };
  }
  const struct tc_attn_place begin = tc_query_place<true>(a, sequence, first);
  return { tc_first_key(a, begin, begin.at), tc_query_place<true>(a, sequence, last).at + 1 };
}

/* KV: the warp's row is a key, the others are queries of its group's heads; else the other way round. */
template <bool KV> static __global__ void __launch_bounds__(WARPS * 32) attn_plain_backward(struct tc_attn a)
{
  TC_DYNAMIC_SHARED(float, memory);
  const int D = (int)a.D, lane = (int)threadIdx.x, w = (int)threadIdx.y;
  const struct shared s = carve(memory, D);
  const int64_t h0 = tc_head<true>(a, blockIdx.y, KV), sequence = blockIdx.z;
  const int64_t first = (int64_t)blockIdx.x * WARPS, all = KV ? a.T : a.here, last = TC_MIN(first + WARPS, all) - 1;
  const bool here = first + w <= last;
  const struct tc_attn_place mine = KV ? tc_key_place<true>(a, sequence, TC_MIN(first + w, last))
                                       : tc_query_place<true>(a, sequence, TC_MIN(first + w, last));
  const int64_t n = mine.row, key = tc_key_at<true>(a, n, h0), query = tc_query_at(a, n, h0);
  float *own1 = s.own + w * 2 * D, *own2 = own1 + D, *tile2 = s.tile + TILE * (D + 1);
  float *weight = s.weight + w * 2 * TILE;
  float acc1[COLS] = { 0 }, acc2[COLS] = { 0 };
  for (int j = lane; j < D; j += 32) {
    own1[j] = KV ? tc_get(a.kv, key + j) : tc_get(a.qkv, query + j);
    own2[j] = KV ? tc_get(a.kv, key + D + j) : tc_get(a.dy, (n * a.H + h0) * D + j);
  }
  const float own_lse = KV ? 0.f : a.lse[n * a.H + h0];
  const float own_delta = KV ? 0.f : a.delta[n * a.H + h0];
  const struct range others = others_of<KV>(a, sequence, first, last);
  const int64_t seen = KV ? 0 : tc_first_key(a, mine, mine.at);
  for (int64_t h = h0; h < h0 + (KV ? a.G : 1); h++)
    for (int64_t t0 = others.from / TILE * TILE; t0 < others.end; t0 += TILE) {
      const int64_t rows = (KV ? a.here : a.T) - t0, t = t0 + TC_MIN((int64_t)lane, rows - 1);
      const struct tc_attn_place other = KV ? tc_query_place<true>(a, sequence, t) : tc_key_place<true>(a, sequence, t);
      __syncthreads();
      if (KV) fetch_queries(s.tile, tile2, a, sequence, h, t0, D);
      else fetch_keys(s.tile, a, sequence, h, t0, 0, D), fetch_keys(tile2, a, sequence, h, t0, D, D);
      if (w == 0 && KV) {
        s.stat[lane] = a.lse[other.row * a.H + h];
        s.stat[TILE + lane] = a.delta[other.row * a.H + h];
      }
      __syncthreads();
      const bool pair = KV ? mine.at <= other.at && mine.at >= tc_first_key(a, other, other.at)
                           : other.at <= mine.at && other.at >= seen;
      weigh<KV>(weight, s, a, own1, own2, D, own_lse, own_delta, here && lane < rows && pair, lane);
      __syncwarp();
      add_rows(acc1, weight, s.tile, D, lane);
      if (KV) add_rows(acc2, weight + TILE, tile2, D, lane);
    }
  if (!here) return;
#pragma unroll
  for (int i = 0; i < COLS; i++) {
    const int j = lane + 32 * i;
    if (j >= D) continue;
    tc_put(KV ? a.dkv : a.dqkv, (KV ? key : query) + j, acc1[i] * a.scale);
    if (KV) tc_put(a.dkv, key + D + j, acc2[i]);
  }
}

static dim3 grid_of(const struct tc_attn *a, int64_t rows, int64_t heads)
{
  return dim3((unsigned)tc_ceil_div(rows, WARPS), (unsigned)heads, (unsigned)(a->N / a->here));
}

void tc_cuda_attn_plain(struct tc_device *d, const struct tc_attn *a)
{
  const size_t bytes = shared_bytes(a->D);
  tc_allow_shared(d, attn_plain_forward, bytes);
  TC_LAUNCH(attn_plain_forward, grid_of(a, a->here, a->K * a->G), dim3(32, WARPS), bytes, tc_stream(d), *a);
}

void tc_cuda_attn_plain_bwd(struct tc_device *d, const struct tc_attn *a)
{
  const size_t bytes = shared_bytes(a->D);
  tc_allow_shared(d, attn_plain_backward<false>, bytes);
  tc_allow_shared(d, attn_plain_backward<true>, bytes);
  TC_LAUNCH(attn_plain_backward<false>, grid_of(a, a->here, a->K * a->G), dim3(32, WARPS), bytes, tc_stream(d), *a);
  TC_LAUNCH(attn_plain_backward<true>, grid_of(a, a->T, a->K), dim3(32, WARPS), bytes, tc_stream(d), *a);
}

void tc_cuda_load_attn_plain(struct tc_device *d)
{
  tc_load_kernels(d, attn_plain_forward, attn_plain_backward<false>, attn_plain_backward<true>);
}
