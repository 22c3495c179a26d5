/* attn.h - what the kernels of attention share: their operands, and where the tokens of a sequence are.
 *
 * attn.cu chooses; attn_plain.cu: any type and head size; attn_fwd.cu and attn_bwd.cu: bf16 on tensor cores, head sizes 32,
 * 64, 80, 96, 128.
 *
 * Keys are numbered by their positions in the sequence; queries by the order of their positions, of those that are here.
 * In the natural order of rows all three are the same. Under context parallelism (graph/row_order.h) a sequence lies in
 * runs of consecutive positions and rows, and a block's queries are of all parts of their sequences, or of one: a place says
 * where a query or a key is, and what follows it in its run is behind it. */
#ifndef TC_CUDA_ATTN_H
#define TC_CUDA_ATTN_H

#include "kernels/attn_order.h"
#include "kernels/cuda/dev.h"

/* Rows of a block on tensor cores, at least; of runs just so many: where they divide a run, no block and no tile has rows of
 * two. */
enum { TC_ATTN_ROWS = TC_ATTN_LEAST_ROWS };

struct tc_attn {
  int64_t T, D, N;               /* positions of a sequence, head size; tokens whose queries are here */
  int64_t here;                  /* queries of a sequence that are here */
  int64_t K, G, H;               /* K groups, here, of G heads that share a key and a value; heads in all */
  uint32_t pieces, piece;        /* the groups here are i pieces + piece of all (op.def) */
  int64_t step;                  /* elements from token to token in qkv */
  int64_t kv_step, kv_group, kv_first;     /* from token to token in kv, from group to group, to the first group's key */
  float scale, cap;              /* of scores; cap 0: none */
  struct tc_arr qkv, dqkv;       /* [N,K,G+2,D]: G queries, their key, their value */
  struct tc_arr kv, dkv;         /* the same, or, apart, those of the groups here, [sequences T,K,2,D] */
  struct tc_arr y, dy;           /* [N,H,D] */
  float *lse, *delta;            /* [N,H]; delta = sum of dy y over D */
  const int32_t *first;          /* [N]: the first key that a token's query sees; NULL: that of its sequence */
  uint32_t run, runs;            /* positions of a run; runs of a part; runs 0: the natural order */
  uint32_t cp, sequences, part;  /* of a block of rows; which part the queries are, if not all */
  uint32_t parts;                /* of a group's heads, with blocks of keys of their own; see tc_attn_parts */
  float *sums;                   /* [K,parts][sequences T][2,D]: dk and dv of each part; NULL: of one */
  struct tc_attn_order order;    /* of the blocks of the kernel that is launched (attn_fwd.cu, attn_bwd.cu) */
};

/* Sets the order of blocks of `rows` of the `all` rows of each head, or group; how many blocks there are. */
static inline dim3 tc_attn_blocks(struct tc_attn *a, int64_t rows, int64_t all, int64_t heads)
{
  a->order = tc_attn_order_of(a->T, a->D, rows, a->N / a->here, heads, a->K);
  a->order.turns = (uint32_t)tc_ceil_div(all, rows);
  return dim3(a->order.turns * a->order.all);
}

/* A token's position in its sequence, and its row. */
struct tc_attn_place { int64_t at, row; };

/* RUNS: false where the order is the natural one and keys are behind their queries, of all groups; the kernels on tensor cores
 * are compiled for either. CAP: of capped scores, for which only those with RUNS are, which take any order. */

/* The first position of run 0 or 1 of the part that has the queries. */
static __device__ __forceinline__ uint32_t tc_run_at(const struct tc_attn &a, uint32_t run)
{
  return (run ? 2 * a.cp - 1 - a.part : a.part) * a.run;
}

/* The key at a position, 0 <= t < T. */
template <bool RUNS>
static __device__ __forceinline__ struct tc_attn_place tc_key_place(const struct tc_attn &a, int64_t sequence, int64_t t)
{
  if (!RUNS || !a.runs) return { t, sequence * a.T + t };
  const uint32_t run = (uint32_t)t / a.run, within = (uint32_t)t % a.run, block = (uint32_t)sequence / a.sequences;
  const bool second = a.runs > 1 && run >= a.cp;
  const int64_t part = second ? 2 * a.cp - 1 - run : run;
  const int64_t row = (block * a.cp + part) * a.sequences + (uint32_t)sequence % a.sequences;
  return { t, (row * a.runs + second) * a.run + within };
}

/* Query q, 0 <= q < here. */
template <bool RUNS>
static __device__ __forceinline__ struct tc_attn_place tc_query_place(const struct tc_attn &a, int64_t sequence, int64_t q)
{
  if (!RUNS || a.here == a.T) return tc_key_place<RUNS>(a, sequence, q);
  const uint32_t run = (uint32_t)q / a.run;
  return { tc_run_at(a, run) + (uint32_t)q % a.run, sequence * a.here + q };
}

/* How many queries are before position t. */
template <bool RUNS>
static __device__ __forceinline__ int64_t tc_queries_before(const struct tc_attn &a, int64_t t)
{
  if (!RUNS || a.here == a.T) return t;
  int64_t n = 0;
  for (uint32_t run = 0; run < a.runs; run++)
    n += TC_MAX((int64_t)0, TC_MIN(t - (int64_t)tc_run_at(a, run), (int64_t)a.run));
  return n;
}

/* The first key that the query at position t sees. `by`: the place of a query of the same run; t may be beyond the sequence's
 * end if it has one run. Never falls with t. */
static __device__ __forceinline__ int64_t tc_first_key(const struct tc_attn &a, struct tc_attn_place by, int64_t t)
{
  return a.first ? a.first[by.row + TC_MIN(t, a.T - 1) - by.at] : 0;
}

/* The first query that does not see key t, nor any before it: of those from `from` on. */
template <bool RUNS>
static __device__ __forceinline__ int64_t tc_end_of_queries(const struct tc_attn &a, int64_t sequence, int64_t t,
                                                            int64_t from)
{
  int64_t end = a.here;
  while (a.first && from < end) {
    const int64_t middle = (from + end) / 2;
    if (a.first[tc_query_place<RUNS>(a, sequence, middle).row] > t) end = middle;
    else from = middle + 1;
  }
  return end;
}

/* Which of all heads is head i of those here, or, of groups, the first one of group i. In 32 bits: a division of 64 is a call,
 * which costs the kernels registers. */
template <bool RUNS>
static __device__ __forceinline__ int64_t tc_head(const struct tc_attn &a, uint32_t i, bool groups)
{
  const uint32_t G = (uint32_t)a.G;
  if (groups) return (RUNS ? i * a.pieces + a.piece : i) * G;
  return RUNS ? (i / G * a.pieces + a.piece) * G + i % G : i;
}

/* Heads from h on, n of them: all of one group. */
struct tc_attn_heads { int64_t h; int n; };
/* The heads of block i: of queries one; of keys, number i of K parts, a part of those of its group. */
template <bool RUNS, bool KV>
static __device__ __forceinline__ struct tc_attn_heads tc_heads_of(const struct tc_attn &a, uint32_t i)
{
  if (!KV) return { tc_head<RUNS>(a, i, false), 1 };
  const uint32_t G = (uint32_t)a.G, part = i % a.parts, first = part * G / a.parts;
  return { tc_head<RUNS>(a, i / a.parts, true) + first, (int)((part + 1) * G / a.parts - first) };
}

/* Where head h of row n, one of all, has its query in qkv, and where its group has the key in kv. */
static __device__ __forceinline__ int64_t tc_query_at(const struct tc_attn &a, int64_t n, int64_t h)
{
  return n * a.step + (h + (unsigned)h / (unsigned)a.G * 2) * a.D;
}
template <bool RUNS>
static __device__ __forceinline__ int64_t tc_key_at(const struct tc_attn &a, int64_t n, int64_t h)
{
  if (!RUNS) return n * a.step + ((unsigned)h / (unsigned)a.G * (a.G + 2) + a.G) * a.D;
  return n * a.kv_step + (unsigned)h / ((unsigned)a.G * a.pieces) * a.kv_group + a.kv_first;
}
template <bool RUNS> static __device__ __forceinline__ int64_t tc_kv_step(const struct tc_attn &a)
{
  return RUNS ? a.kv_step : a.step;
}

void tc_cuda_attn_plain(struct tc_device *d, const struct tc_attn *a);
void tc_cuda_attn_plain_bwd(struct tc_device *d, const struct tc_attn *a);
void tc_cuda_attn_fwd(struct tc_device *d, const struct tc_attn *a);
void tc_cuda_attn_bwd_bf16(struct tc_device *d, const struct tc_attn *a);

#endif
