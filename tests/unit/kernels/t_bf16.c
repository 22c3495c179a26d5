/* t_bf16.c - cpu_bf16.c: activations and gates of all 65,536 bf16 numbers beside formulas in double, and of any number of
 * numbers, beyond which nothing is written; blocks of scores that a query sees in part. */
#include "kernels/cpu/attn.h"
#include "tests/unit/tap.h"

#include <stdlib.h>
#include <string.h>

enum { ALL = 65536, MOST = 50 };

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double inner(double v) { return 1.5957691216057308 * v * (1 + 0.044715 * v * v); }        /* 2 sqrt(2 / pi) */
/* slope: of value, for v that is not huge. */
static double gelu(double v) { return v * sigmoid(inner(v)); }
static double gelu_slope(double v)
{
  const double s = sigmoid(inner(v)), rest = sigmoid(-inner(v));
  if (fabs(v) > 1e6) return v > 0;
  return s + v * s * rest * 1.5957691216057308 * (1 + 3 * 0.044715 * v * v);
}
static double silu(double v) { return v * sigmoid(v); }
static double silu_slope(double v)
{
  if (fabs(v) > 1e6) return v > 0;
  return sigmoid(v) * (1 + v * sigmoid(-v));
}

/* Functions with g = 1 and b = 1. z: what backward gives for b; NULL: nothing. */
static const struct { const char *name; tc_cpu_bf16_fn *fn; double (*y)(double), (*z)(double); } rows[] = {
  { "gelu", tc_bf16_gelu_tanh, gelu, NULL }, { "gelu's gradient", tc_bf16_gelu_tanh_bwd, gelu_slope, NULL },
  { "a gate by silu", tc_bf16_silu_gate, silu, NULL }, { "its gradients", tc_bf16_silu_gate_bwd, silu_slope, silu },
  { "a gate by gelu", tc_bf16_gelu_gate, gelu, NULL }, { "its gradients", tc_bf16_gelu_gate_bwd, gelu_slope, gelu },
};
enum { ROWS = sizeof rows / sizeof *rows };

static uint16_t x[ALL], one[ALL], y[ALL], z[ALL];

/* Rounded once, with some error more where a value is the small sum of large ones; numbers too small for bf16's exponents
 * may be 0. At infinite numbers only that nothing crashes: these formulas, too, multiply infinity by 0. */
static int64_t wrong(const uint16_t *got, double (*want)(double), const char *name)
{
  int64_t n = 0;
  for (int i = 0; i < ALL; i++) {
    const double v = (double)tc_bf16_to_f32(x[i]), a = (double)tc_bf16_to_f32(got[i]), b = want(v);
    const double allowed = 1.0 / 250 * fabs(b) + 1e-4 * (fabs(b) > 1e-3) + 1e-36;
    if (isnan(v) ? isnan(a) : a == b || isinf(v) || fabs(a - b) <= allowed) continue;
    if (n++ < 5) printf("# %s of %g: got %g, want %g\n", name, v, a, b);
  }
  return n;
}

static void values(void)
{
  for (int i = 0; i < ALL; i++) x[i] = (uint16_t)i, one[i] = tc_f32_to_bf16(1.f);
  for (int r = 0; r < ROWS; r++) {
    rows[r].fn(y, z, one, x, one, ALL);
    is_int(wrong(y, rows[r].y, rows[r].name), 0, "%s of all bf16 numbers", rows[r].name);
    if (rows[r].z) is_int(wrong(z, rows[r].z, rows[r].name), 0, "... and the other's");
  }
}

static void lengths(void)
{
  uint16_t few[MOST + 16], other[MOST + 16], b[MOST];
  for (int i = 0; i < MOST; i++) {
    x[i] = tc_f32_to_bf16((float)i / 10 - 2);
    one[i] = tc_f32_to_bf16((float)(i % 7) - 3);
    b[i] = tc_f32_to_bf16((float)(i % 5) - 1);
  }
  for (int r = 0; r < ROWS; r++) {
    bool good = true;
    rows[r].fn(y, z, one, x, b, MOST);
    for (int64_t n = 0; n <= MOST; n++) {
      memset(few, 0x5a, sizeof few);
      memset(other, 0x5a, sizeof other);
      rows[r].fn(few, other, one, x, b, n);
      good = good && !memcmp(few, y, (size_t)n * 2) && (!rows[r].z || !memcmp(other, z, (size_t)n * 2));
      for (int64_t i = n; i < MOST + 16; i++) good = good && few[i] == 0x5a5a && other[i] == 0x5a5a;
    }
    ok(good, "%s: 0 to %d numbers, and none beyond", rows[r].name, MOST);
  }
}

/* ---- scores ---- */

enum { LD = 16 };
static const int32_t at[5] = { 70, 71, 95, 150, 151 }, begins[5] = { 0, 69, 80, 66, 140 };
static double number(int64_t i) { return (double)((i * 37 + i / 7) % 101) / 25 - 2; }
static double bf16_at(const float *words, int64_t i) { return (double)tc_bf16_to_f32(((const uint16_t *)words)[i]); }
static bool is_seen(int r, int j) { return j < 60 && 64 + j <= at[r] && 64 + j >= begins[r]; }
static bool near(double a, double b) { return fabs(a - b) <= 1.0 / 200 * fabs(b) + 1e-6; }

/* Five queries and 60 keys from position 64 on, of which each query sees others; scores are halved, and capped. */
static void scores(float cap)
{
  const struct seen block = { .rows = 5, .cols = 60, .first = 64, .at = at, .begins = begins };
  _Alignas(64) static float S[EDGE * EDGE], o[5 * LD], dP[5 * EDGE], P2[3 * EDGE], dSt[3 * EDGE], dS2[6 * EDGE / 2];
  float max[5], sum[5], delta[5] = { 0.25f, NAN, -1, 0.5f, 0 }, lse[5] = { 1, 2, 0, 1, 3 };
  double score[5][EDGE], want_max, want_sum;
  bool good = true, back = true;
  for (int i = 0; i < 5 * EDGE; i++) {
    const double half = number(i) / 2;
    S[i] = (float)number(i), dP[i] = (float)number(3 * i + 1);
    score[i / EDGE][i % EDGE] = cap > 0 ? (double)cap * tanh(half / (double)cap) : half;
  }
  for (int i = 0; i < 5 * LD; i++) o[i] = 1;
  for (int r = 0; r < 5; r++) max[r] = -0.5f, sum[r] = 2;
  tc_bf16_probabilities(P2, dSt, dS2, S, dP, &block, 0.5f, cap, lse, delta);
  for (int r = 0; r < 6; r++)
    for (int j = 0; j < EDGE; j++) {
      const bool seen = r < 5 && is_seen(r, j);
      const double s = seen ? score[r][j] : 0, p = seen ? exp(s - (double)lse[r]) : 0;
      const double slope = cap > 0 ? 1 - s * s / (double)cap / (double)cap : 1;
      const double ds = seen ? p * ((double)dP[r * EDGE + j] - (double)delta[r]) * slope : 0;
      const int64_t in_pair = (r / 2 * EDGE + j) * 2 + r % 2;
      const double got = bf16_at(dSt, in_pair), by_rows = bf16_at(dS2, r * EDGE + j);
      back = back && near(bf16_at(P2, in_pair), p) && (isnan(ds) ? isnan(got) : near(got, ds)) && !memcmp(&got, &by_rows, sizeof got);
    }
  ok(back, "P and dS%s: 0 where a query does not see a key, whatever delta is", cap > 0 ? " of capped scores" : "");
  tc_bf16_exp_scores(S, S, &block, 0.5f, cap, max, sum, o, LD);
  for (int r = 0; r < 5; r++) {
    want_max = -0.5;
    for (int j = 0; j < EDGE; j++) want_max = is_seen(r, j) ? fmax(want_max, score[r][j]) : want_max;
    want_sum = 2 * exp(-0.5 - want_max);
    for (int j = 0; j < EDGE; j++) {
      const double p = is_seen(r, j) ? exp(score[r][j] - want_max) : 0;
      want_sum += p;
      good = good && near(bf16_at(S, r * EDGE + j), p) && (p > 0 || bf16_at(S, r * EDGE + j) == 0);
    }
    good = good && fabs((double)max[r] - want_max) < 1e-6 && fabs((double)sum[r] / want_sum - 1) < 1e-5;
    for (int j = 0; j < LD; j++) good = good && fabs((double)o[r * LD + j] - exp(-0.5 - want_max)) < 1e-6;
  }
  ok(good, "a softmax that goes on%s: exponentials in place, largest, sum and outputs", cap > 0 ? ", of capped scores" : "");
}

int main(void)
{
  if (!tc_cpu_tile_bf16()) return printf("1..0 # SKIP this CPU has no AVX512_BF16\n"), 0;
  values();
  lengths();
  scores(0);
  scores(1.5f);
  return done_testing();
}
