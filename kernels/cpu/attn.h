/* attn.h - what the attention of training shares forward and backward: shapes, the tokens of a sequence, and operands
 * packed for the products of cpu_tile.c. Include cpu.h first.
 *
 * A product's operands are rows of words: a word is a float, or two bf16 numbers that follow each other along the sum.
 * Queries, keys, values and gradients that are bf16 stay so where the CPU multiplies bf16; softmax and sums are in fp32. */
#ifndef TC_CPU_ATTN_H
#define TC_CPU_ATTN_H

#include "kernels/cpu/cpu.h"

enum { EDGE = 64, LANES = 16 };           /* rows and columns of a block of scores; columns are computed so many at a time */

struct shape {
  const struct tc_call *c;
  const struct tc_view *x, *kv;           /* queries; keys and values: behind them or apart */
  int64_t T, H, D, blocks;                /* blocks of EDGE keys */
  int64_t sequences, K, G;                /* K groups, here, of G heads that share a key and a value; H heads in all */
  int64_t step, kv_step, key, y_step;     /* elements from token to token in qkv, in kv, to a group's key there; in the output */
  int64_t most;                           /* queries of a sequence, at most */
  int64_t ld;                             /* floats from row to row of a result: D rounded up to 16 */
  int64_t per, edge;                      /* numbers in a word; words of EDGE numbers */
  int64_t words, row;                     /* words of D numbers; from packed row to packed row */
  float scale, on_q, on_scores, cap;      /* scale = on_q on_scores: bf16 queries stay as they are */
  void (*tile)(const struct tc_tile *t);
};

/* qkv: its place among the inputs, of the same type as kv; more: where kv or starts would be. bf16: whether the other
 * operands of products are bf16. */
struct shape tc_attn_shape(struct tc_device *d, const struct tc_call *c, int qkv, int more, bool bf16);

/* Head g of group k, of all; where the group has its first query in the qkv of a token; its key and value in kv. */
static inline int64_t head_of(const struct shape *s, int64_t k, int64_t g)
{
  return tc_call_group(s->c, s->x, s->kv, k) * s->G + g;
}
static inline int64_t group_at(const struct shape *s, int64_t k)
{
  return tc_call_group(s->c, s->x, s->kv, k) * (s->G + 2) * s->D;
}
static inline int64_t key_at(const struct shape *s, int64_t k)
{
  return k * (s->kv == s->x ? s->G + 2 : 2) * s->D + s->key;
}
/* Words of a sum of n terms. */
static inline int64_t words_of(const struct shape *s, int64_t n) { return tc_ceil_div(n, s->per); }

/* ---- the tokens of a sequence ---------------------------------------------------------- */

/* The n queries of a sequence that are here, by position: row in qkv, position, the first key that it sees; and the rows of
 * its T keys. */
struct tokens { int32_t *row, *at, *begins, *key; int64_t n; };

/* Sets the pointers into memory from `at` on. Returns the floats that they take. */
int64_t tc_attn_carve_tokens(struct tokens *t, float *at, const struct shape *s);
void tc_attn_find_tokens(struct tokens *t, const struct shape *s, int64_t sequence, const int32_t *starts);

/* A block of queries and a block of keys: which of these a query sees. */
struct seen {
  int64_t rows, cols;
  int64_t first;                 /* position of the first key */
  const int32_t *at, *begins;    /* [rows]; begins: NULL where all begin before these keys */
  bool triangle;                 /* query r sees no key after r */
};
struct seen tc_attn_seen(const struct shape *s, const struct tokens *t, int64_t qb, int64_t kb);

/* Query r sees the keys [from, end) of the block, in the groups of LANES columns [first, last); none: all are 0. */
struct range { int from, end, first, last; };
static inline __attribute__((always_inline)) struct range range_of(const struct seen *x, int64_t r)
{
  const int64_t end = TC_MIN(x->at[r] + 1 - x->first, x->cols), from = x->begins ? TC_MAX(0, x->begins[r] - x->first) : 0;
  if (from >= end) return (struct range){ 0, 0, 0, 0 };
  return (struct range){ (int)from, (int)end, (int)from & -LANES, ((int)end + LANES - 1) & -LANES };
}

/* ---- packing --------------------------------------------------------------------------- */

/* An address that is not read: scratch is carved from it only to add up the sizes. */
#define TC_ATTN_SIZES_ALONE ((float *)(uintptr_t)64)

/* n rows of v, of `step` elements each: D numbers of each, from element `at` of it. */
struct rows { const struct tc_view *v; const int32_t *row; int64_t n, at, step; };

/* y[n][row] = scale * x, zeros behind the D numbers of a row. bf16: scale is 1. */
void tc_attn_pack(float *y, const struct shape *s, const struct rows *x, float scale);
/* y[blocks][words][EDGE] = x[T][row] transposed block by block, zeros past T. */
void tc_attn_transpose(float *y, const struct shape *s, const float *x);
/* Packed rows for a product whose sum goes over rows: each word of y[ceil(n / 2)][ld] has numbers of two rows of x[n][row]; an
 * odd last row is paired with zeros. In fp32 such a product takes the rows x as they are, and nothing is done. */
void tc_attn_pair(float *y, const struct shape *s, const float *x, int64_t n);
/* Where the pairs of n rows that are packed at `rows` go: at *p, which is moved. */
float *tc_attn_carve_pairs(float **p, const struct shape *s, int64_t n, float *rows);
/* y = scale * x[n][ld]; x NULL: 0. */
void tc_attn_unpack(const struct rows *y, const struct shape *s, const float *x, float scale);
/* dot[n]: of each row of x and that of y, both bf16. */
void tc_attn_bf16_dots(float *dot, const struct rows *x, const struct rows *y, int64_t D);

/* ---- scores in bf16 (cpu_bf16.c) --------------------------------------------------------- */

/* As exp_scores of cpu_attn.c, of scores that are multiplied by `scale`. P[rows][EDGE] is bf16 and may be where S is: rows
 * are processed from the first to the last, each read before it is written. */
void tc_bf16_exp_scores(float *P, const float *S, const struct seen *x, float scale, float cap, float *max, float *sum,
                        float *o, int64_t ld);
/* As probabilities of cpu_attn_bwd.c, of scores that are multiplied by `scale`: P and dS by pairs of queries, P2 and dSt
 * [rows / 2, rounded up][EDGE] words, and dS2[rows, rounded up to 2][EDGE] bf16. */
void tc_bf16_probabilities(float *P2, float *dSt, float *dS2, const float *S, const float *dP, const struct seen *x,
                           float scale, float cap, const float *lse, const float *delta);

#endif
