/* attn_fwd.cu - causal attention on tensor cores, forward, as in Dao, "FlashAttention-2",
 * ICLR 2024: only one block of scores exists at a time.
 *
 * A block of 4 warps has 64 MT queries of one head; a warp 16 MT of them, whose output stays in registers. So does q, or
 * in shared memory where registers do not suffice. With MT = 2 a warp reads half as much from shared memory per product,
 * which bounds the kernel for heads of 128; a block then takes 104 KB of it, which not all GPUs have twice.
 * Tiles of 64 keys and values are loaded into shared memory, the next one while this one is used. Scores become
 * probabilities in the registers of the product, which is where the next product needs them. Sums are fp32; no sum spans
 * warps. With documents or a window, tiles that no query of the block sees are left out. */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/ptx.h"

enum { WARPS = 4, THREADS = 32 * WARPS, BN = 64 };

/* Scores become exp(scale (S - max so far)); O and the sums are rescaled where a maximum has grown. A lane
 * has rows g and g + 8 of each 16; four lanes share a row, `sum` is a lane's own part. */
template <int D, int MT>
static __device__ __forceinline__ void exp_scores(float S[MT][BN / 8][4], float O[MT][D / 8][4],
                                              float max[MT][2], float sum[MT][2], float scale_log2)
{
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float high = max[m][half];
#pragma unroll
      for (int n = 0; n < BN / 8; n++)
        high = fmaxf(high, fmaxf(S[m][n][2 * half], S[m][n][2 * half + 1]));
      high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
      high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
      const float finite = high == -INFINITY ? 0.f : high;           /* no key so far */
      const float shrink = tc_exp2((max[m][half] - finite) * scale_log2), base = finite * scale_log2;
      float add = 0;
#pragma unroll
      for (int n = 0; n < BN / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) {
          S[m][n][i] = tc_exp2(S[m][n][i] * scale_log2 - base);
          add += S[m][n][i];
        }
      sum[m][half] = sum[m][half] * shrink + add;
      max[m][half] = high;
#pragma unroll
      for (int n = 0; n < D / 8; n++) {
        O[m][n][2 * half] *= shrink;
        O[m][n][2 * half + 1] *= shrink;
      }
    }
}

/* Writes y and lse of this lane's rows, if they exist: so many rows behind their positions. max is before the scale. */
template <int D, int MT>
static __device__ __forceinline__ void finish(const struct tc_attn &a, float O[MT][D / 8][4],
                                              const float max[MT][2], float sum[MT][2], float scale, int64_t behind,
                                              int64_t h, int64_t first, int lane)
{
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float all = sum[m][half];
      all += __shfl_xor_sync(0xffffffffu, all, 1);
      all += __shfl_xor_sync(0xffffffffu, all, 2);
      const int64_t q = first + m * 16 + half * 8 + lane / 4, at = (behind + q) * a.H + h;
      if (q >= a.T) continue;
      const float inv = 1.f / all;
      uint32_t *y = (uint32_t *)((uint16_t *)a.y.p + at * D) + lane % 4;
#pragma unroll
      for (int n = 0; n < D / 8; n++)
        y[n * 4] = tc_pack_bf16(O[m][n][2 * half] * inv, O[m][n][2 * half + 1] * inv);
      if (lane % 4 == 0) a.lse[at] = max[m][half] * scale + logf(all);
    }
}

/* Scores of keys before the first that a query sees. `first`: the warp's first query, in the run of `own`; k0: the tile's first
 * key. */
template <int MT>
static __device__ __forceinline__ void mask_early(float S[MT][BN / 8][4], const struct tc_attn &a,
                                                  struct tc_attn_place own, int64_t first, int64_t k0, int lane)
{
#pragma unroll
  for (int m = 0; m < MT; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int seen = (int)(tc_first_key(a, own, first + m * 16 + half * 8 + lane / 4) - k0);
#pragma unroll
      for (int n = 0; n < BN / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++)
          if (n * 8 + lane % 4 * 2 + i % 2 < seen) S[m][n][i] = -INFINITY;
    }
}

/* The keys of a head, from the row on that position 0 would have in the run of position t. */
template <bool RUNS>
static __device__ __forceinline__ const uint16_t *keys_from(const struct tc_attn &a, int64_t sequence, int64_t h, int64_t t)
{
  const struct tc_attn_place x = tc_key_place<RUNS>(a, sequence, t);
  return (const uint16_t *)(RUNS ? a.kv : a.qkv).p + tc_key_at<RUNS>(a, x.row - x.at, h);
}

/* Loads the keys and values of a tile from position t on, which is in one run. */
template <int D, bool RUNS>
static __device__ __forceinline__ void fetch_keys(uint16_t *to, const struct tc_attn &a, const uint16_t *key, int64_t t)
{
  const int64_t stride = tc_kv_step<RUNS>(a);
  tc_tile_fetch<D, BN, THREADS>(to, key, t, a.T, stride);
  tc_tile_fetch<D, BN, THREADS>(to + BN * (D + 8), key + D, t, a.T, stride);
  tc_copies_commit();
}

/* q stays in registers; else in shared memory. */
template <int D, int MT> static constexpr bool HELD = D * MT <= 128;

/* Shared memory of a block: two turns of k and v; q, which is in the second turn's at first if it is held. */
template <int D, int MT> static constexpr int BLOCK_BYTES = (4 * BN + (HELD<D, MT> ? 0 : 64 * MT)) * (D + 8) * 2;

template <int D, int MT, bool RUNS, bool CAP>
static __global__ void __launch_bounds__(THREADS, 2) attn_forward(struct tc_attn a)
{
  enum { LD = D + 8, ROWS = 64 * MT, TILE = BN * LD };
  TC_DYNAMIC_SHARED(uint16_t, memory);           /* [2 turns][k, v][BN][LD], and q: BLOCK_BYTES */
  const int lane = (int)threadIdx.x % 32, w = (int)threadIdx.x / 32;
  const struct tc_attn_block block = tc_attn_block_of(a.order, blockIdx.x);
  const int64_t h = tc_head<RUNS>(a, block.head, false), sequence = block.sequence;
  /* The last rows have most keys. */
  const struct tc_attn_place rows = tc_query_place<RUNS>(a, sequence, (int64_t)(a.order.turns - 1 - block.turn) * ROWS);
  const int64_t q0 = rows.at, behind = rows.row - rows.at;
  const int64_t first = q0 + w * 16 * MT;        /* this warp's first query */
  const int tiles = (int)((TC_MIN(q0 + ROWS, a.T) + BN - 1) / BN), begin = (int)(tc_first_key(a, rows, q0) / BN);
  tc_own_rows<D, HELD<D, MT> ? MT : 1> q;
  float O[MT][D / 8][4], S[MT][BN / 8][4], max[MT][2], sum[MT][2];
  uint16_t *own = memory + (HELD<D, MT> ? (begin + 1) % 2 * 2 : 4) * TILE, *other = memory + begin % 2 * 2 * TILE;
  tc_tile_fetch<D, ROWS, THREADS>(own, (const uint16_t *)a.qkv.p + tc_query_at(a, behind, h), q0, a.T, a.step);
  tc_copies_commit();
  const uint16_t *key = keys_from<RUNS>(a, sequence, h, (int64_t)begin * BN);
  fetch_keys<D, RUNS>(other, a, key, (int64_t)begin * BN);
  if constexpr (HELD<D, MT>) {
    tc_copies_wait<1>();                         /* q; k and v of the first tile are still to come */
    __syncthreads();
    tc_load_own(q, own, w * 16 * MT, lane);
  }
  tc_clear<MT, D / 8>(O);
#pragma unroll
  for (int m = 0; m < MT; m++) {
    max[m][0] = max[m][1] = -INFINITY;
    sum[m][0] = sum[m][1] = 0;
  }
  for (int t = begin; t < tiles; t++) {
    const uint16_t *k = memory + t % 2 * 2 * TILE;
    tc_copies_wait<0>();
    __syncthreads();                             /* all threads have this tile; none needs the previous one, or q's */
    if (t + 1 < tiles) {
      if constexpr (RUNS) key = keys_from<RUNS>(a, sequence, h, (int64_t)(t + 1) * BN);
      fetch_keys<D, RUNS>(memory + (t + 1) % 2 * 2 * TILE, a, key, (int64_t)(t + 1) * BN);
    }
    const int ahead = (int)first - t * BN;       /* the first query, from the tile's start */
    if (ahead <= -16 * MT) continue;             /* all keys are later than the queries */
    tc_product<D, BN, MT, HELD<D, MT>>(S, q, own, w * 16 * MT, k, lane);
    if constexpr (CAP) tc_cap_scores<MT, BN / 8>(S, a.scale, a.cap);
    if (ahead < BN - 1) {                        /* some keys are later than some queries */
#pragma unroll
      for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < BN / 8; n++)
#pragma unroll
          for (int i = 0; i < 4; i++)
            if (n * 8 + lane % 4 * 2 + i % 2 > ahead + m * 16 + lane / 4 + i / 2 * 8)
              S[m][n][i] = -INFINITY;
    }
    if (a.first && tc_first_key(a, rows, first + 16 * MT - 1) > (int64_t)t * BN)
      mask_early<MT>(S, a, rows, first, (int64_t)t * BN, lane);
    exp_scores<D, MT>(S, O, max, sum, (CAP ? 1.f : a.scale) * TC_LOG2_E);
    tc_add_product<D, BN, MT>(O, S, k + TILE, lane);
  }
  finish<D, MT>(a, O, max, sum, CAP ? 1.f : a.scale, behind, h, first, lane);
}

template <int D, int MT, bool RUNS = false, bool CAP = false> static void launch(struct tc_device *d, const struct tc_attn *a)
{
  static_assert(!RUNS || (64 * MT == TC_ATTN_ROWS && TC_ATTN_ROWS % BN == 0), "within a run");
  const size_t bytes = BLOCK_BYTES<D, MT>;
  struct tc_attn with = *a;
  const dim3 grid = tc_attn_blocks(&with, 64 * MT, a->here, a->K * a->G);
  auto kernel = attn_forward<D, MT, RUNS, CAP>;
  tc_allow_shared(d, kernel, bytes);
  TC_LAUNCH(kernel, grid, dim3(THREADS), bytes, tc_stream(d), with);
}

/* Rows in runs, or any. */
template <bool CAP> static void launch_runs(struct tc_device *d, const struct tc_attn *a)
{
  switch (a->D) {
  case 32: launch<32, 1, true, CAP>(d, a); break;
  case 64: launch<64, 1, true, CAP>(d, a); break;
  case 80: launch<80, 1, true, CAP>(d, a); break;
  case 96: launch<96, 1, true, CAP>(d, a); break;
  default: launch<128, 1, true, CAP>(d, a);
  }
}

void tc_cuda_attn_fwd(struct tc_device *d, const struct tc_attn *a)
{
  if (a->runs || a->cap > 0) {
    if (a->cap > 0) launch_runs<true>(d, a);
    else launch_runs<false>(d, a);
    return;
  }
  switch (a->D) {
  case 32: launch<32, 2>(d, a); break;
  case 64: launch<64, 2>(d, a); break;
  case 80: launch<80, 1>(d, a); break;
  case 96: launch<96, 1>(d, a); break;
  default:                                       /* the bits are the same */
    if (tc_two_blocks_fit(d, BLOCK_BYTES<128, 2>)) launch<128, 2>(d, a);
    else launch<128, 1>(d, a);
  }
}

template <bool CAP> static void load_runs(struct tc_device *d)
{
  tc_load_kernels(d, attn_forward<32, 1, true, CAP>, attn_forward<64, 1, true, CAP>, attn_forward<80, 1, true, CAP>,
                  attn_forward<96, 1, true, CAP>, attn_forward<128, 1, true, CAP>);
}

void tc_cuda_load_attn_fwd(struct tc_device *d)
{
  tc_load_kernels(d, attn_forward<32, 2, false, false>, attn_forward<64, 2, false, false>,
                  attn_forward<80, 1, false, false>, attn_forward<96, 1, false, false>,
                  attn_forward<128, 1, false, false>, attn_forward<128, 2, false, false>);
  load_runs<false>(d);
  load_runs<true>(d);
}
