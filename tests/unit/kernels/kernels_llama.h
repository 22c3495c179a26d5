/* kernels_llama.h - t_kernels.c's cases of RMS norms, rotary positions, gates and grouped attention. */
#ifndef TC_KERNELS_LLAMA_H
#define TC_KERNELS_LLAMA_H

#include "tests/unit/kernels/t_kernels.h"

#include <math.h>

/* shift: what is added to the gain. */
static void shifted_rms_norms(int dtype, int64_t N, int64_t C, int acc, float shift)
{
  char more[40] = "";
  if (shift != 0) snprintf(more, sizeof more, " shift %g", (double)shift);
  struct test t = new_test(TC_OP_RMSNORM, "N%lld C%lld %s%s", (long long)N, (long long)C, tc_dtype_name(dtype), more);
  input(&t, dtype, DIMS(N, C), NORMALISH);
  input(&t, dtype, DIMS(C), POSITIVE);
  output(&t, dtype, DIMS(N, C));
  output(&t, TC_F32, DIMS(N));
  t.c.f[0] = 1e-5f, t.c.f[1] = shift;
  check(&t);
  t = new_test(TC_OP_RMSNORM_BWD, "N%lld C%lld %s acc %d%s", (long long)N, (long long)C, tc_dtype_name(dtype), acc, more);
  input(&t, dtype, DIMS(N, C), NORMALISH);
  input(&t, dtype, DIMS(N, C), NORMALISH);
  input(&t, dtype, DIMS(C), POSITIVE);
  input(&t, TC_F32, DIMS(N), POSITIVE);
  output(&t, dtype, DIMS(N, C));
  output(&t, TC_F32, DIMS(C));
  t.c.acc = (uint8_t)acc, t.c.f[1] = shift;
  t.tol = 4e-6;                  /* two sums of a row in fp32 */
  check(&t);
}

static void rms_norms(int dtype, int64_t N, int64_t C, int acc) { shifted_rms_norms(dtype, N, C, acc, 0); }

/* Groups of G queries, a key and a value. */
static void shifted_qk_norms(int dtype, int64_t N, int64_t K, int64_t G, int64_t D, int acc, float shift)
{
  char more[40] = "";
  if (shift != 0) snprintf(more, sizeof more, " shift %g", (double)shift);
  struct test t = new_test(TC_OP_QKNORM, "N%lld K%lld G%lld D%lld %s%s", (long long)N, (long long)K,
                           (long long)G, (long long)D, tc_dtype_name(dtype), more);
  input(&t, dtype, DIMS(N, K, G + 2, D), NORMALISH);
  for (int k = 0; k < 2; k++) input(&t, dtype, DIMS(D), POSITIVE);
  output(&t, dtype, DIMS(N, K, G + 2, D));
  output(&t, TC_F32, DIMS(N, K, G + 1));
  t.c.f[0] = 1e-6f, t.c.f[1] = shift;
  check(&t);
  t = new_test(TC_OP_QKNORM_BWD, "N%lld K%lld G%lld D%lld %s acc %d%s", (long long)N, (long long)K,
               (long long)G, (long long)D, tc_dtype_name(dtype), acc, more);
  for (int k = 0; k < 2; k++) input(&t, dtype, DIMS(N, K, G + 2, D), NORMALISH);
  for (int k = 0; k < 2; k++) input(&t, dtype, DIMS(D), POSITIVE);
  input(&t, TC_F32, DIMS(N, K, G + 1), POSITIVE);
  output(&t, dtype, DIMS(N, K, G + 2, D));
  for (int k = 0; k < 2; k++) output(&t, TC_F32, DIMS(D));
  t.c.acc = (uint8_t)acc, t.c.f[1] = shift;
  t.tol = 4e-6;
  check(&t);
}

static void qk_norms(int dtype, int64_t N, int64_t K, int64_t G, int64_t D, int acc)
{
  shifted_qk_norms(dtype, N, K, G, D, acc, 0);
}

/* The rows [n0, n0 + N) of sequences of T tokens; the first `rotary` elements of each head turn (0: all). */
static void partial_ropes(int dtype, int64_t N, int64_t n0, int64_t T, const int64_t kgd[3], int64_t rotary, float factor)
{
  float freq[128];
  char more[60] = "";
  const int64_t K = kgd[0], G = kgd[1], D = kgd[2], r = rotary ? rotary : D;
  if (rotary || factor != 0) snprintf(more, sizeof more, " rotary %d factor %g", (int)rotary, (double)factor);
  for (int64_t i = 0; i < r / 2; i++) freq[i] = 1.f / powf(500000.f, (float)(2 * i) / (float)r);
  for (int back = 0; back < 2; back++) {
    struct test t = new_test(back ? TC_OP_ROPE_BWD : TC_OP_ROPE, "rows %lld + %lld of T%lld K%lld G%lld D%lld %s%s",
                             (long long)n0, (long long)N, (long long)T, (long long)K, (long long)G,
                             (long long)D, tc_dtype_name(dtype), more);
    input(&t, dtype, DIMS(N, K, G + 2, D), NORMALISH)->off[0] = n0;
    output(&t, dtype, DIMS(N, K, G + 2, D))->off[0] = n0;
    t.c.k[0] = T, t.c.k[2] = rotary, t.c.f[0] = factor;
    t.c.freq = freq;
    check(&t);
  }
}

static void ropes(int dtype, int64_t N, int64_t n0, int64_t T, int64_t K, int64_t G, int64_t D)
{
  partial_ropes(dtype, N, n0, T, (int64_t[]){ K, G, D }, 0, 0);
}

/* act: enum tc_act_fn. */
static void gates_of(int dtype, int64_t N, int64_t F, int act)
{
  const char *more = act ? " gelu" : "";
  struct test t = new_test(TC_OP_GLU, "N%lld F%lld %s%s", (long long)N, (long long)F, tc_dtype_name(dtype), more);
  input(&t, dtype, DIMS(N, 2, F), LOGITS);
  output(&t, dtype, DIMS(N, F));
  t.c.k[2] = act;
  check(&t);
  t = new_test(TC_OP_GLU_BWD, "N%lld F%lld %s%s", (long long)N, (long long)F, tc_dtype_name(dtype), more);
  input(&t, dtype, DIMS(N, F), NORMALISH);
  input(&t, dtype, DIMS(N, 2, F), LOGITS);
  output(&t, dtype, DIMS(N, 2, F));
  t.c.k[2] = act;
  check(&t);
}

static void gates(int dtype, int64_t N, int64_t F) { gates_of(dtype, N, F, TC_FN_GATE_SILU); }

static void llama(int dtype)
{
  rms_norms(dtype, 3, 5, 0);
  rms_norms(dtype, 37, 33, 3);
  rms_norms(dtype, 203, 384, 2);
  rms_norms(dtype, 9, 2304, 3);
  rms_norms(dtype, 3, 8448, 0);
  qk_norms(dtype, 3, 1, 1, 6, 0);
  qk_norms(dtype, 37, 2, 4, 64, 6);
  qk_norms(dtype, 130, 3, 2, 128, 7);
  ropes(dtype, 6, 0, 6, 1, 1, 2);
  ropes(dtype, 30, 0, 10, 2, 3, 64);
  ropes(dtype, 7, 5, 10, 3, 1, 80);              /* across the end of a sequence */
  ropes(dtype, 64, 960, 1024, 2, 4, 128);
  ropes(dtype, 9, 8000, 8192, 1, 2, 128);        /* the error of an angle grows with the position */
  gates(dtype, 3, 5);
  gates(dtype, 37, 1100);
  gates(dtype, 130, 256);
}

/* Columns for each kernel of a norm on GPUs: 8 a lane at a time; 768 is gpt2-124m's. */
static const int64_t per_lane[] = { 64, 512, 768, 1024, 1536, 2048, 5000 };

/* Rows of as many columns as no other case has; called last, so that the others keep their inputs. */
static void wide_rows(int dtype)
{
  rms_norms(dtype, 5, 5000, 1);
  qk_norms(dtype, 5, 1, 3, 200, 1);
  for (size_t i = 0; i < sizeof per_lane / sizeof *per_lane; i++) rms_norms(dtype, 5, per_lane[i], 0);
}

#endif
