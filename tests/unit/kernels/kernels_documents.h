/* kernels_documents.h - t_kernels.c's cases of documents within a sequence: attention, rotary and learned positions. */
#ifndef TC_KERNELS_DOCUMENTS_H
#define TC_KERNELS_DOCUMENTS_H

#include "tests/unit/kernels/t_kernels.h"

/* Where documents begin in rows [n0, n0 + N) of sequences of T tokens: at one token in `each`, drawn; 1: at every
 * one. */
static void input_starts(struct test *t, int64_t N, int64_t n0, int64_t T, int64_t each)
{
  struct tc_view *v = input(t, TC_I32, DIMS(N), POSITIVE);
  v->off[0] = n0;
  for (int64_t n = 0; n < N; n++) {
    const int64_t at = (n0 + n) % T;
    const bool begins = at == 0 || uniform() * (double)each < 1;
    /* The first row may be in the middle of a document. */
    const double before = n ? get(v, n - 1) : (double)(int64_t)(uniform() * (double)at);
    put(v, n, begins ? (double)at : before);
  }
}

/* Rows [n0, n0 + N) of sequences of T. */
static void document_positions(int dtype, int64_t N, int64_t C, int64_t T, int64_t n0, int64_t each, int acc)
{
  struct test t = new_test(TC_OP_POS, "documents of %lld, N%lld C%lld T%lld from %lld %s", (long long)each, (long long)N,
                           (long long)C, (long long)T, (long long)n0, tc_dtype_name(dtype));
  input(&t, dtype, DIMS(N, C), NORMALISH)->off[0] = n0;
  input(&t, dtype, DIMS(T, C), NORMALISH);
  input_starts(&t, N, n0, T, each);
  output(&t, dtype, DIMS(N, C))->off[0] = n0;
  check(&t);
  t = new_test(TC_OP_POS_BWD, "documents of %lld, N%lld C%lld T%lld from %lld %s%s", (long long)each, (long long)N,
               (long long)C, (long long)T, (long long)n0, tc_dtype_name(dtype), acc ? " acc" : "");
  input(&t, dtype, DIMS(N, C), NORMALISH)->off[0] = n0;
  input_starts(&t, N, n0, T, each);
  output(&t, TC_F32, DIMS(T, C));
  t.c.acc = (uint8_t)acc;
  if (each == 1) t.tol = 2e-5;   /* all rows of dy are added to one of dw, and the others leave it a small mean */
  check(&t);
}

static void document_ropes(int dtype, int64_t N, int64_t n0, int64_t T, int64_t each)
{
  enum { K = 2, G = 3, D = 64 };
  float freq[D / 2];
  for (int i = 0; i < D / 2; i++) freq[i] = 1.f / powf(500000.f, (float)(2 * i) / D);
  for (int back = 0; back < 2; back++) {
    struct test t = new_test(back ? TC_OP_ROPE_BWD : TC_OP_ROPE, "documents of %lld, rows %lld + %lld of T%lld %s",
                             (long long)each, (long long)n0, (long long)N, (long long)T, tc_dtype_name(dtype));
    input(&t, dtype, DIMS(N, K, G + 2, D), NORMALISH)->off[0] = n0;
    input_starts(&t, N, n0, T, each);
    output(&t, dtype, DIMS(N, K, G + 2, D))->off[0] = n0;
    t.c.k[0] = T;
    t.c.freq = freq;
    check(&t);
  }
}

/* B sequences of a cache of M rows with S new tokens each, at drawn positions; rows behind them are NaN. */
static void cached_attention(int dtype, int64_t B, int64_t S, int64_t M, int64_t K, int64_t G, int64_t D)
{
  struct test t = new_test(TC_OP_ATTN_CACHE, "B%lld S%lld M%lld K%lld G%lld D%lld %s", (long long)B, (long long)S,
                           (long long)M, (long long)K, (long long)G, (long long)D, tc_dtype_name(dtype));
  input(&t, dtype, DIMS(B * S, K, G + 2, D), NORMALISH)->off[0] = 3;
  const struct tc_view *cache = input(&t, dtype, DIMS(B, K, M, 2 * D), NORMALISH);
  const struct tc_view *starts = input(&t, TC_I32, DIMS(B * S), POSITIVE);
  for (int64_t b = 0; b < B; b++) {
    const int64_t at = (int64_t)(uniform() * (double)(M - S + 1));
    for (int64_t i = 0; i < S; i++) put(starts, b * S + i, (double)((3 + b * S + i) % M - (at + i)));
    for (int64_t k = 0; k < K; k++)
      for (int64_t i = (b * K + k) * M + at; i < (b * K + k + 1) * M; i++)
        for (int64_t j = 0; j < 2 * D; j++) put(cache, i * 2 * D + j, (double)NAN);
  }
  output(&t, dtype, DIMS(B * S, K * G, D));
  output(&t, dtype, DIMS(B, K, M, 2 * D)), t.over[1] = 1;
  t.c.k[0] = M;
  check(&t);
}

static void document_cases(int dtype)
{
  cached_attention(dtype, 1, 1, 1, 1, 1, 1);
  cached_attention(dtype, 3, 1, 40, 2, 1, 64);
  cached_attention(dtype, 2, 5, 300, 1, 3, 80);
  cached_attention(dtype, 1, 130, 140, 2, 2, 7);
  cached_attention(dtype, 2, 1, 700, 1, 1, 256);
  document_positions(dtype, 30, 33, 10, 0, 3, 0);
  document_positions(dtype, 30, 1030, 20, 70, 9, 1);
  document_positions(dtype, 700, 24, 350, 0, 1, 1);        /* all at position 0 */
  document_positions(dtype, 7, 40, 64, 20, 5, 0);          /* few rows of a sequence */
  document_ropes(dtype, 30, 0, 10, 4);
  document_ropes(dtype, 7, 5, 10, 2);
  document_ropes(dtype, 9, 8000, 8192, 3);
}

#endif
