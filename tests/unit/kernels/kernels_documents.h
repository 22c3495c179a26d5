/* kernels_documents.h - t_kernels.c's cases of documents within a sequence: where they begin, and rotary and learned positions. */
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

static void document_cases(int dtype)
{
  document_positions(dtype, 30, 33, 10, 0, 3, 0);
  document_positions(dtype, 30, 1030, 20, 70, 9, 1);
  document_positions(dtype, 700, 24, 350, 0, 1, 1);        /* all at position 0 */
  document_positions(dtype, 7, 40, 64, 20, 5, 0);          /* few rows of a sequence */
  document_ropes(dtype, 30, 0, 10, 4);
  document_ropes(dtype, 7, 5, 10, 2);
  document_ropes(dtype, 9, 8000, 8192, 3);
}

#endif
