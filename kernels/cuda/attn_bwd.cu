/* attn_bwd.cu - causal attention on tensor cores, backward, without atomics: the same kernel
 * twice, once for queries, once for keys and values.
 *
 * A block of 4 warps owns 64 M rows of a head and walks the other rows in tiles of BN; a warp owns
 * 16 M. With M = 2 a warp reads half as much from shared memory per product, which bounds the kernel; registers
 * suffice for heads of 32, and for the queries of heads of 64 and 128. The queries' own rows then stay in registers, too,
 * but for heads of 128: a block then takes 104 KB of shared memory, which not all GPUs have twice.
 * With (X1, X2) the own rows and (Y1, Y2) the others', both make
 *   S = X1 Y1^T, dP = X2 Y2^T, P = exp(scale S - lse), dS = P (dP - delta)
 * and      queries: X = (q, dy), Y = (k, v):  dq = scale dS Y1
 *             keys: X = (k, v), Y = (q, dy):  dk = scale dS Y1, dv = P Y2
 * (for keys S and the others are transposed, which changes nothing here but which thread has which lse).
 * The block that owns keys and values which a group of heads shares processes the queries of each head in turn; or, where
 * that would be few blocks, of a part of them: then another kernel adds up the parts.
 * With documents or a window, tiles of which no pair is within them are left out. The scores are computed twice; in return
 * each sum is computed by one warp, in a fixed order. */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/ptx.h"

enum { WARPS = 4, THREADS = 32 * WARPS };

template <bool RUNS>
static __device__ __forceinline__ struct tc_attn_place place(const struct tc_attn &a, bool queries, int64_t sequence, int64_t t)
{
  return queries ? tc_query_place<RUNS>(a, sequence, t) : tc_key_place<RUNS>(a, sequence, t);
}

/* Where queries' q and dy, or keys' k and v, are, from the row on that position 0 would have in the run of x. */
struct operands { const uint16_t *one, *two; int64_t step, step_two; };

template <int D, bool RUNS>
static __device__ __forceinline__ struct operands operands_of(const struct tc_attn &a, bool queries, struct tc_attn_place x,
                                                              int64_t h)
{
  const int64_t n0 = x.row - x.at, narrow = a.H * D;
  const uint16_t *key = (const uint16_t *)(RUNS ? a.kv : a.qkv).p + tc_key_at<RUNS>(a, n0, h);
  if (!queries) return { key, key + D, tc_kv_step<RUNS>(a), tc_kv_step<RUNS>(a) };
  return { (const uint16_t *)a.qkv.p + tc_query_at(a, n0, h), (const uint16_t *)a.dy.p + n0 * narrow + h * D, a.step, narrow };
}

/* What a tile of other rows needs, from x on, in one run: Y1, Y2, head g of theirs, and for keys the queries' lse (as a
 * power of 2) and delta (past the end an infinite lse: P is 0). */
template <int D, int BN, bool KV>
static __device__ __forceinline__ void fetch(uint16_t *y, float *stat, const struct tc_attn &a, const struct operands &theirs,
                                             int g, struct tc_attn_place x, int64_t h)
{
  tc_tile_fetch<D, BN, THREADS>(y, theirs.one + g * D, x.at, a.T, theirs.step);
  tc_tile_fetch<D, BN, THREADS>(y + BN * (D + 8), theirs.two + g * D, x.at, a.T, theirs.step_two);
  tc_copies_commit();
  if (KV && threadIdx.x < BN) {
    const int64_t t = x.at + threadIdx.x, at = (x.row + threadIdx.x) * a.H + h;
    stat[threadIdx.x] = t < a.T ? a.lse[at] * TC_LOG2_E : INFINITY;
    stat[BN + threadIdx.x] = t < a.T ? a.delta[at] : 0.f;
  }
}

/* Scores of keys after their queries become -infinity. ahead: the first of 16 rows, from the tile's start. One comparison
 * a score, with a constant: no branches. */
template <int BN, bool KV> static __device__ __forceinline__ void mask(float S[BN / 8][4], int ahead, int lane)
{
  ahead += lane / 4 - lane % 4 * 2;                              /* this lane's first row less its first column */
#pragma unroll
  for (int n = 0; n < BN / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int behind = n * 8 + i % 2 - i / 2 * 8;              /* so much more is the column less the row */
      if (KV ? ahead > behind : behind > ahead) S[n][i] = -INFINITY;
    }
}

/* So do scores of keys before the first that their query sees. Apart from the above, since memory says which that is. A lane
 * has two rows, and two columns of each 8: a row, or a column, is one query. `queries`: the first of the block's, or of the
 * tile. */
template <int BN, bool KV>
static __device__ __forceinline__ void mask_early(float S[BN / 8][4], const struct tc_attn &a,
                                                  struct tc_attn_place queries, int64_t own, int64_t t0, int lane)
{
  enum { EIGHTS = BN / 8, OUTER = KV ? EIGHTS : 1, INNER = KV ? 1 : EIGHTS };    /* of columns; for queries, for keys */
#pragma unroll
  for (int o = 0; o < OUTER; o++)
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const int64_t query = KV ? t0 + o * 8 + lane % 4 * 2 + k : own + lane / 4 + k * 8;
      const int seen = (int)(tc_first_key(a, queries, query) - (KV ? own : t0));      /* the first key, as `key` below */
#pragma unroll
      for (int n = o; n < o + INNER; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const int key = KV ? lane / 4 + j * 8 : n * 8 + lane % 4 * 2 + j;
          if (key < seen) S[n][KV ? j * 2 + k : k * 2 + j] = -INFINITY;
        }
    }
}

/* Both, of a warp's 16 M rows from position `own` on and the tile at t0. */
template <int BN, int M, bool KV>
static __device__ __forceinline__ void mask_all(float S[M][BN / 8][4], const struct tc_attn &a, struct tc_attn_place queries,
                                                int64_t own, int64_t t0, int lane)
{
  const int ahead = (int)(own - t0);
  const bool later = KV ? ahead > 1 - 16 * M : ahead < BN - 1;   /* some keys are later than some queries */
  const int64_t last = KV ? t0 + BN - 1 : own + 16 * M - 1;      /* its first key is after the first key of the pairs */
  const bool early = a.first && tc_first_key(a, queries, last) > (KV ? own : t0);
#pragma unroll
  for (int m = 0; m < M; m++) {
    if (later) mask<BN, KV>(S[m], ahead + 16 * m, lane);
    if (early) mask_early<BN, KV>(S[m], a, queries, own + 16 * m, t0, lane);
  }
}

/* S, dP -> P, dS in place. lse is for powers of 2. CAP: S are capped scores, dS is of those before. */
template <int BN, bool KV, bool CAP>
static __device__ __forceinline__ void weigh(float S[BN / 8][4], float dP[BN / 8][4],
                                             const float lse[2], const float delta[2],
                                             const float *stat, const struct tc_attn &a, int lane)
{
  const float scale = (CAP ? 1.f : a.scale) * TC_LOG2_E, by = CAP ? 1.f / a.cap : 0.f;
#pragma unroll
  for (int n = 0; n < BN / 8; n++) {
    float2 l = { 0, 0 }, e = { 0, 0 };           /* of the two columns; in one load each */
    if (KV) l = *(const float2 *)(stat + n * 8 + lane % 4 * 2), e = *(const float2 *)(stat + BN + n * 8 + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float p = tc_exp2(S[n][i] * scale - (!KV ? lse[i / 2] : i % 2 ? l.y : l.x));
      const float part = CAP ? fmaxf(S[n][i] * by, -1.f) : 0.f;  /* -1: masked */
      S[n][i] = p;
      dP[n][i] = p * (dP[n][i] - (!KV ? delta[i / 2] : i % 2 ? e.y : e.x));
      if (CAP) dP[n][i] *= (1.f - part) * (1.f + part);
    }
  }
}

/* Loads lse, as a power of 2, and delta of the queries in this lane's rows, so many behind their positions. Past the end P is
 * to be 0. */
template <int M>
static __device__ __forceinline__ void load_stats(float lse[M][2], float delta[M][2], const struct tc_attn &a,
                                                  int64_t own, int64_t behind, int64_t h, int lane)
{
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int64_t row = own + m * 16 + half * 8 + lane / 4, at = (behind + row) * a.H + h;
      lse[m][half] = row < a.T ? a.lse[at] * TC_LOG2_E : INFINITY;
      delta[m][half] = row < a.T ? a.delta[at] : 0.f;
    }
}

/* acc of this lane's rows, times f, to out[T][stride]. */
template <int D, int M>
static __device__ __forceinline__ void put_rows(uint16_t *out, int64_t stride, const float acc[M][D / 8][4], float f,
                                                int64_t own, int64_t T, int lane)
{
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int64_t row = own + m * 16 + half * 8 + lane / 4;
      if (row >= T) continue;
      uint32_t *y = (uint32_t *)(out + row * stride) + lane % 4;
#pragma unroll
      for (int n = 0; n < D / 8; n++)
        y[n * 4] = tc_pack_bf16(acc[m][n][2 * half] * f, acc[m][n][2 * half + 1] * f);
    }
}

/* The same in fp32, to out[T][2 D]. */
template <int D, int M>
static __device__ __forceinline__ void put_sums(float *out, const float acc[M][D / 8][4], float f, int64_t own, int64_t T, int lane)
{
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int64_t row = own + m * 16 + half * 8 + lane / 4;
      if (row >= T) continue;
      float2 *y = (float2 *)(out + row * 2 * D) + lane % 4;
#pragma unroll
      for (int n = 0; n < D / 8; n++) y[n * 4] = { acc[m][n][2 * half] * f, acc[m][n][2 * half + 1] * f };
    }
}

/* dk and dv of part `part` of all, or all there is of its group, of which h is a head; rows are so many behind their positions. */
template <int D, int M, bool RUNS>
static __device__ __forceinline__ void put_keys(const struct tc_attn &a, const float dk[M][D / 8][4], const float dv[M][D / 8][4],
                                                uint32_t part, int64_t h, int64_t behind, int64_t own, int lane)
{
  if (a.sums) {
    float *sums = a.sums + (part * (a.N / a.here * a.T) + behind) * 2 * D;
    put_sums<D, M>(sums, dk, a.scale, own, a.T, lane);
    put_sums<D, M>(sums + D, dv, 1.f, own, a.T, lane);
    return;
  }
  uint16_t *out = (uint16_t *)(RUNS ? a.dkv : a.dqkv).p + tc_key_at<RUNS>(a, behind, h);
  put_rows<D, M>(out, tc_kv_step<RUNS>(a), dk, a.scale, own, a.T, lane);
  put_rows<D, M>(out + D, tc_kv_step<RUNS>(a), dv, 1.f, own, a.T, lane);
}

/* Once they have come, a warp's own rows from `first` on; those of X2 are `apart` from those of X1. */
template <class OWN_ROWS>
static __device__ __forceinline__ void load_both(OWN_ROWS &x1, OWN_ROWS &x2, const uint16_t *x, int apart, int first, int lane)
{
  tc_copies_wait<0>();
  __syncthreads();
  tc_load_own(x1, x, first, lane);
  tc_load_own(x2, x + apart, first, lane);
}

/* Rows of a tile and, in 16, of a warp in the kernel for keys of heads of 64. TC_WIDE_KEYS: a variant to be timed on a GPU, with
 * the same bits. It reads two thirds as much from shared memory per product, but spills registers, and two of its blocks fit a
 * multiprocessor instead of three. */
#ifdef TC_WIDE_KEYS
enum { TILE_64 = 32, M_64 = 2 };
#else
enum { TILE_64 = 64, M_64 = 1 };
#endif

/* Blocks of a multiprocessor at a time. Three share the registers and, on sm_90, the shared memory; two, where a warp's
 * sums have 2 x 128 columns, or 32 rows. */
static constexpr int blocks_at_once(int D, int M, bool KV) { return M == 2 || (KV && D == 128) ? 2 : 3; }

template <int D, int BN, int M, bool KV, bool RUNS, bool CAP>
static __global__ void __launch_bounds__(THREADS, blocks_at_once(D, M, KV)) attn_backward(struct tc_attn a)
{
  enum { ROWS = 16 * M * WARPS, LD = D + 8, OWN = ROWS * LD, TILE = BN * LD };
  constexpr bool HELD = M == 2 && !KV && D < 128;        /* the own rows stay in registers */
  TC_DYNAMIC_SHARED(uint16_t, memory);           /* X1, X2, [2 turns][Y1, Y2], [2 turns][stat] */
  uint16_t *x = memory, *y = x + 2 * OWN;
  float *stat = (float *)(y + 4 * TILE);
  const int lane = (int)threadIdx.x % 32, w = (int)threadIdx.x / 32;
  const struct tc_attn_block block = tc_attn_block_of(a.order, blockIdx.x);
  const struct tc_attn_heads whose = tc_heads_of<RUNS, KV>(a, block.head);
  const int64_t h = whose.h, sequence = block.sequence;
  /* Most work first. */
  const struct tc_attn_place rows = place<RUNS>(a, !KV, sequence, (KV ? block.turn : a.order.turns - 1 - block.turn) * ROWS);
  const int64_t r0 = rows.at, behind = rows.row - rows.at;
  const int64_t own = r0 + w * 16 * M, rows_end = TC_MIN(r0 + ROWS, a.T);
  const int64_t from = KV ? tc_queries_before<RUNS>(a, r0) : tc_first_key(a, rows, r0);
  const int64_t upto = KV ? tc_end_of_queries<RUNS>(a, sequence, rows_end - 1, from) : rows_end;
  const int begin = (int)(from / BN), end = (int)((upto + BN - 1) / BN);
  const int heads = !RUNS || begin < end ? whose.n : 0;    /* 0: all queries that are here are before the keys */
  const auto tile_at = [&](int t) { return place<RUNS>(a, KV, sequence, (int64_t)t * BN); };
  struct tc_attn_place next = tile_at(begin);
  float acc1[M][D / 8][4], acc2[KV ? M : 1][KV ? D / 8 : 1][4], S[M][BN / 8][4], dP[M][BN / 8][4];
  float lse[M][2] = {}, delta[M][2] = {};
  tc_own_rows<D, HELD ? M : 1> x1, x2;
  tc_clear<M, D / 8>(acc1);
  if constexpr (KV) tc_clear<M, D / 8>(acc2);
  else load_stats<M>(lse, delta, a, own, behind, h, lane);
  const struct operands mine = operands_of<D, RUNS>(a, !KV, rows, h);
  struct operands theirs = operands_of<D, RUNS>(a, KV, next, h);
  if (heads) {
    tc_tile_fetch<D, ROWS, THREADS>(x, mine.one, r0, a.T, mine.step);
    tc_tile_fetch<D, ROWS, THREADS>(x + OWN, mine.two, r0, a.T, mine.step_two);
    fetch<D, BN, KV>(y, stat, a, theirs, 0, next, h);
  }
  if constexpr (HELD) load_both(x1, x2, x, OWN, w * 16 * M, lane);
  for (int t = begin, g = 0, turn = 0; g < heads; turn ^= 1) {
    const struct tc_attn_place tile = RUNS || KV ? next : tile_at(t);    /* queries have no registers to keep it */
    const int64_t t0 = tile.at;
    const uint16_t *now = y + turn * 2 * TILE;
    tc_copies_wait<0>();
    __syncthreads();                             /* all have this tile, none needs the last */
    if (++t == end) t = begin, g++;
    next = tile_at(t);
    if constexpr (RUNS) theirs = operands_of<D, RUNS>(a, KV, next, h);
    if (g < heads)
      fetch<D, BN, KV>(y + (turn ^ 1) * 2 * TILE, stat + (turn ^ 1) * 2 * BN, a, theirs, g, next, h + g);
    const int ahead = (int)(own - t0);           /* this warp's first row, from the tile's start */
    if (KV ? ahead >= BN : ahead <= -16 * M) continue;           /* all keys are later than the queries */
    tc_product<D, BN, M, HELD>(S, x1, x, w * 16 * M, now, lane);
    if constexpr (CAP) tc_cap_scores<M, BN / 8>(S, a.scale, a.cap);
    tc_product<D, BN, M, HELD>(dP, x2, x + OWN, w * 16 * M, now + TILE, lane);
    mask_all<BN, M, KV>(S, a, KV ? tile : rows, own, t0, lane);
#pragma unroll
    for (int m = 0; m < M; m++)
      weigh<BN, KV, CAP>(S[m], dP[m], lse[m], delta[m], stat + turn * 2 * BN, a, lane);
    tc_add_product<D, BN, M>(acc1, dP, now, lane);
    if constexpr (KV) tc_add_product<D, BN, M>(acc2, S, now + TILE, lane);
  }
  if constexpr (KV) put_keys<D, M, RUNS>(a, acc1, acc2, block.head, h, behind, own, lane);
  else put_rows<D, M>((uint16_t *)a.dqkv.p + tc_query_at(a, behind, h), a.step, acc1, a.scale, own, a.T, lane);
}

/* dk and dv: the parts' sums, in their order. A thread has four columns of a row of a group. */
enum { SUM_THREADS = 256 };
static __global__ void __launch_bounds__(SUM_THREADS) sum_heads(struct tc_attn a)
{
  const int64_t i = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x, each = a.D / 2, rows = a.N / a.here * a.T;
  const int64_t j = i % each * 4, n = i / each % rows, group = i / each / rows;
  if (group >= a.K) return;
  const float4 *part = (const float4 *)(a.sums + (group * a.parts * rows + n) * 2 * a.D + j);
  float4 sum = part[0];
  for (uint32_t p = 1; p < a.parts; p++) {
    const float4 x = part[p * rows * each];
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
  }
  uint16_t *to = (uint16_t *)a.dkv.p + tc_key_at<true>(a, n, tc_head<true>(a, (uint32_t)group, true)) + j;
  *(uint2 *)to = { tc_pack_bf16(sum.x, sum.y), tc_pack_bf16(sum.z, sum.w) };
}

/* Shared memory of a block. */
template <int D, int BN, int M>
static constexpr int BLOCK_BYTES = (2 * 16 * M * WARPS + 4 * BN) * (D + 8) * 2 + 4 * BN * 4;

template <int D, int BN, int M, bool KV, bool RUNS, bool CAP> static void launch(struct tc_device *d, const struct tc_attn *a)
{
  static_assert(!RUNS || (16 * M * WARPS == TC_ATTN_ROWS && TC_ATTN_ROWS % BN == 0), "within a run");
  const size_t bytes = BLOCK_BYTES<D, BN, M>;
  struct tc_attn with = *a;
  const dim3 grid = tc_attn_blocks(&with, 16 * M * WARPS, KV ? a->T : a->here, a->K * (KV ? a->parts : a->G));
  auto kernel = attn_backward<D, BN, M, KV, RUNS, CAP>;
  tc_allow_shared(d, kernel, bytes);
  TC_LAUNCH(kernel, grid, dim3(THREADS), bytes, tc_stream(d), with);
}

/* Queries, then keys. */
template <int D, int BN_QUERIES, int M_QUERIES, int BN_KEYS, int M_KEYS, bool RUNS = false, bool CAP = false>
static void launch_both(struct tc_device *d, const struct tc_attn *a)
{
  launch<D, BN_QUERIES, M_QUERIES, false, RUNS, CAP>(d, a);
  launch<D, BN_KEYS, M_KEYS, true, RUNS, CAP>(d, a);
  if (a->parts > 1)
    TC_LAUNCH(sum_heads, tc_blocks(a->K * (a->N / a->here * a->T) * (a->D / 2), SUM_THREADS), dim3(SUM_THREADS), 0, tc_stream(d),
              *a);
}

/* Rows in runs, or any. */
template <bool CAP> static void launch_runs(struct tc_device *d, const struct tc_attn *a)
{
  switch (a->D) {
  case 32: launch_both<32, 32, 1, 32, 1, true, CAP>(d, a); break;
  case 64: launch_both<64, 32, 1, 32, 1, true, CAP>(d, a); break;
  case 80: launch_both<80, 32, 1, 32, 1, true, CAP>(d, a); break;
  case 96: launch_both<96, 32, 1, 32, 1, true, CAP>(d, a); break;
  default: launch_both<128, 32, 1, 32, 1, true, CAP>(d, a);
  }
}

void tc_cuda_attn_bwd_bf16(struct tc_device *d, const struct tc_attn *a)
{
  if (a->runs || a->cap > 0) {
    if (a->cap > 0) launch_runs<true>(d, a);
    else launch_runs<false>(d, a);
    return;
  }
  switch (a->D) {
  case 32: launch_both<32, 32, 2, 32, 2>(d, a); break;
  case 64: launch_both<64, 32, 2, TILE_64, M_64>(d, a); break;
  case 80: launch_both<80, 32, 1, 32, 1>(d, a); break;
  case 96: launch_both<96, 32, 1, 32, 1>(d, a); break;
  default:                                       /* the bits are the same */
    if (tc_two_blocks_fit(d, BLOCK_BYTES<128, 32, 2>)) launch_both<128, 32, 2, 32, 1>(d, a);
    else launch_both<128, 32, 1, 32, 1>(d, a);
  }
}

template <bool KV, bool CAP> static void load_runs(struct tc_device *d)
{
  tc_load_kernels(d, attn_backward<32, 32, 1, KV, true, CAP>, attn_backward<64, 32, 1, KV, true, CAP>,
                  attn_backward<80, 32, 1, KV, true, CAP>, attn_backward<96, 32, 1, KV, true, CAP>,
                  attn_backward<128, 32, 1, KV, true, CAP>);
}

void tc_cuda_load_attn_bwd(struct tc_device *d)
{
  tc_load_kernels(d, attn_backward<32, 32, 2, false, false, false>, attn_backward<64, 32, 2, false, false, false>,
                  attn_backward<80, 32, 1, false, false, false>, attn_backward<96, 32, 1, false, false, false>,
                  attn_backward<128, 32, 1, false, false, false>, attn_backward<128, 32, 2, false, false, false>);
  tc_load_kernels(d, attn_backward<32, 32, 2, true, false, false>, attn_backward<64, TILE_64, M_64, true, false, false>,
                  attn_backward<80, 32, 1, true, false, false>, attn_backward<96, 32, 1, true, false, false>,
                  attn_backward<128, 32, 1, true, false, false>, sum_heads);
  load_runs<false, false>(d);
  load_runs<true, false>(d);
  load_runs<false, true>(d);
  load_runs<true, true>(d);
}
