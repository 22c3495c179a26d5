/* attn_order.h - in which order the blocks of attention's kernels of the `cuda` device start.
 *
 * A block has some rows of one head of one sequence. A GPU starts blocks in the order of their numbers, each as soon as
 * there is room. With a causal mask blocks have unequal work: if those with most work start last, a few of them run alone
 * at the end. If they start first over all heads, the blocks that run together read the keys and values of more heads
 * than the cache holds. So the heads of all sequences are divided into sections, whose keys and values the cache
 * holds together. Sections start one after the other; within a section, the blocks with most work of each head come
 * first, then the next ones of each head. The order depends on shapes alone, and no result depends on it.
 *
 * Plain C, for the kernels and for the test that simulates what the order is worth (t_attn_order.c). */
#ifndef TC_ATTN_ORDER_H
#define TC_ATTN_ORDER_H

#include "src/base/arith.h"

#ifdef __CUDACC__
#define TC_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TC_HOST_DEVICE inline
#endif

enum { TC_ATTN_CACHE_BYTES = 24 << 20 };         /* of keys and values: half of an H100's L2 cache */

/* In how many parts the G heads of each of K groups are computed by backward's kernel for keys, of which there are
 * [sequences T]. A block of keys has the queries of all heads of its group: with few groups there are too few blocks for a GPU,
 * of very unequal work. So each part has blocks of its own, whose sums are added up in their order; fewer than `few` blocks are
 * too few. By shapes alone, since the bits of the sums depend on it. */
enum { TC_ATTN_LEAST_ROWS = 64, TC_ATTN_FEW_BLOCKS = 512 };
static inline uint32_t tc_attn_parts(int64_t T, int64_t sequences, int64_t K, int64_t G, int64_t few)
{
  const int64_t blocks = tc_ceil_div(T, TC_ATTN_LEAST_ROWS) * sequences * K;
  return blocks > 0 && blocks < few ? (uint32_t)TC_MIN(G, tc_ceil_div(few, blocks)) : 1;
}

/* A head here is what a block belongs to: of keys' kernels, a part of a group of heads that share a key. */
struct tc_attn_order {
  uint32_t turns;                /* blocks of a head */
  uint32_t heads;                /* of a sequence */
  uint32_t section, all;         /* heads of a section, but the last one may have fewer; heads of all sequences */
};
struct tc_attn_block {
  uint32_t turn;                 /* 0: the block with most work of its head; turns - 1: that with least */
  uint32_t head, sequence;
};

/* The order of blocks of `rows` rows, T rows of size D a head; heads / groups of them read the same keys and values,
 * which are bf16. */
static inline struct tc_attn_order tc_attn_order_of(int64_t T, int64_t D, int64_t rows, int64_t sequences, int64_t heads,
                                                    int64_t groups)
{
  const int64_t all = heads * sequences, bytes = T * D * 2 * 2;
  const int64_t most = TC_MAX(1, TC_ATTN_CACHE_BYTES / bytes) * (heads / groups);
  struct tc_attn_order o;
  o.turns = (uint32_t)tc_ceil_div(T, rows), o.heads = (uint32_t)heads, o.all = (uint32_t)all;
  o.section = (uint32_t)tc_ceil_div(all, tc_ceil_div(all, most));
  return o;
}

/* What block number i is, of turns * all. In 32 bits: a division of 64 is a call, which costs the kernels registers. */
static TC_HOST_DEVICE struct tc_attn_block tc_attn_block_of(struct tc_attn_order o, uint32_t i)
{
  const uint32_t section = i / (o.turns * o.section), within = i - section * (o.turns * o.section);
  const uint32_t first = section * o.section, here = TC_MIN(o.section, o.all - first);
  struct tc_attn_block b;
  b.turn = within / here;
  const uint32_t head = first + within % here;
  b.head = head % o.heads, b.sequence = head / o.heads;
  return b;
}

#endif
