/* cache.cu - attention of new tokens over the keys and values of a sequence so far. Simple: a block per token and head.
 *
 * The new keys and values are put into the cache by a kernel of their own, since blocks of later tokens read them. Position p
 * is in row p mod M. */
#include "kernels/cuda/dev.h"

enum { CACHE_THREADS = 128, CACHE_COLS = TC_CUDA_HEAD_MAX / CACHE_THREADS };

struct cache {
  struct tc_arr y, qkv, cache;
  const int32_t *starts;         /* [N] */
  int64_t first, T;              /* the first row's global number; rows of a sequence */
  int64_t S, K, G, D, M;         /* new tokens of a sequence; groups of G queries of D; rows of a cache */
  int64_t window;                /* 0: none */
  float scale, cap;
};

static __device__ __forceinline__ int64_t position(const struct cache &a, int64_t n)
{
  return (a.first + n) % a.T - a.starts[n];
}

/* The first row of group k in the cache of token n's sequence. */
static __device__ __forceinline__ int64_t cache_row(const struct cache &a, int64_t n, int64_t k)
{
  return (n / a.S * a.K + k) * a.M;
}

static __global__ void __launch_bounds__(CACHE_THREADS) put(struct cache a)
{
  const int64_t n = blockIdx.x, k = blockIdx.y;
  const int64_t from = ((n * a.K + k) * (a.G + 2) + a.G) * a.D, to = (cache_row(a, n, k) + position(a, n) % a.M) * 2 * a.D;
  for (int64_t j = threadIdx.x; j < 2 * a.D; j += CACHE_THREADS) tc_put(a.cache, to + j, tc_get(a.qkv, from + j));
}

/* A thread has a key for the scores, then columns for the sums; keys in tiles, with a running maximum. */
static __global__ void __launch_bounds__(CACHE_THREADS) attend(struct cache a)
{
  __shared__ float query[TC_CUDA_HEAD_MAX], weight[CACHE_THREADS];
  const int64_t n = blockIdx.x, h = blockIdx.y, k = h / a.G, seen = position(a, n) + 1;
  const int64_t q = ((n * a.K + k) * (a.G + 2) + h % a.G) * a.D, row0 = cache_row(a, n, k);
  const int t = (int)threadIdx.x;
  float acc[CACHE_COLS] = { 0 }, max = -INFINITY, sum = 0;
  for (int64_t j = t; j < a.D; j += CACHE_THREADS) query[j] = tc_get(a.qkv, q + j);
  __syncthreads();
  for (int64_t m0 = a.window > 0 ? TC_MAX((int64_t)0, seen - a.window) : 0; m0 < seen; m0 += CACHE_THREADS) {
    const int keys = (int)TC_MIN(seen - m0, (int64_t)CACHE_THREADS);
    const int64_t first = m0 % a.M, wrap = a.M - first;  /* token i of the tile: row first + i, from `wrap` on M less */
    float score = -INFINITY;
    if (t < keys) {
      score = 0;
      const int64_t at = (row0 + first + t - (t < wrap ? 0 : a.M)) * 2 * a.D;
      for (int64_t j = 0; j < a.D; j++) score += query[j] * tc_get(a.cache, at + j);
      score *= a.scale;
      if (a.cap > 0.f) score = a.cap * tanhf(score / a.cap);
    }
    const float now = fmaxf(max, tc_block_max(score)), old = expf(max - now);
    weight[t] = expf(score - now);
    __syncthreads();
    sum *= old;
    for (int i = 0; i < keys; i++) sum += weight[i];
#pragma unroll
    for (int c = 0; c < CACHE_COLS; c++) {
      const int64_t j = t + c * CACHE_THREADS;
      acc[c] *= old;
      for (int i = 0; i < keys && j < a.D; i++)
        acc[c] += weight[i] * tc_get(a.cache, ((row0 + first + i - (i < wrap ? 0 : a.M)) * 2 + 1) * a.D + j);
    }
    max = now;
    __syncthreads();
  }
#pragma unroll
  for (int c = 0; c < CACHE_COLS; c++)
    if (t + c * CACHE_THREADS < a.D) tc_put(a.y, (n * a.K * a.G + h) * a.D + t + c * CACHE_THREADS, acc[c] / sum);
}

int tc_cuda_attn_cache_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err)
{
  (void)d;
  if (c->in[0].dim[3] <= TC_CUDA_HEAD_MAX) return 0;
  return tc_fail(err, TC_EUSER, "heads of size %lld: on a GPU attention takes up to %d", (long long)c->in[0].dim[3],
                 TC_CUDA_HEAD_MAX);
}

int tc_cuda_attn_cache(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *cache = &c->out[1];
  struct cache a;
  memset(&a, 0, sizeof a);
  a.y = tc_arr_of(&c->out[0]), a.qkv = tc_arr_of(x), a.cache = tc_arr_of(cache);
  a.starts = tc_call_starts(c, 2), a.first = x->off[0], a.T = c->k[0];
  a.S = x->dim[0] / cache->dim[0], a.K = x->dim[1], a.G = x->dim[2] - 2, a.D = x->dim[3], a.M = cache->dim[2];
  a.window = c->k[2], a.scale = tc_call_scale(c, a.D), a.cap = c->f[1];
  if (x->elems == 0) return 0;
  TC_ASSERT(tc_call_cache_holds(c) && a.qkv.bf16 == a.cache.bf16 && a.qkv.bf16 == a.y.bf16);
  TC_LAUNCH(put, dim3((unsigned)x->dim[0], (unsigned)a.K), dim3(CACHE_THREADS), 0, tc_stream(d), a);
  TC_LAUNCH(attend, dim3((unsigned)x->dim[0], (unsigned)(a.K * a.G)), dim3(CACHE_THREADS), 0, tc_stream(d), a);
  return tc_cuda_launched(d, "attn_cache");
}

void tc_cuda_load_cache(struct tc_device *d) { tc_load_kernels(d, put, attend); }
