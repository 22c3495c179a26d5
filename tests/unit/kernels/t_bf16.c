/* t_bf16.c - cpu_bf16.c: activations and gates of all 65,536 bf16 numbers beside formulas in double, and of any number of
 * numbers, beyond which nothing is written. */
#include "kernels/cpu/cpu.h"
#include "tests/unit/tap.h"

#include <stdlib.h>
#include <string.h>

enum { ALL = 65536, MOST = 50 };

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double inner(double v) { return 1.5957691216057308 * v * (1 + 0.044715 * v * v); }        /* 2 sqrt(2 / pi) */
/* slope: of value, for v that is not huge. */
static double gelu(double v) { return isinf(v) ? v > 0 ? v : 0 : v * sigmoid(inner(v)); }
static double gelu_slope(double v)
{
  const double s = sigmoid(inner(v)), rest = sigmoid(-inner(v));
  if (fabs(v) > 1e6) return v > 0;
  return s + v * s * rest * 1.5957691216057308 * (1 + 3 * 0.044715 * v * v);
}
static double silu(double v) { return isinf(v) ? v > 0 ? v : 0 : v * sigmoid(v); }
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
 * may be 0. An infinite number has no slope. */
static int64_t wrong(const uint16_t *got, double (*want)(double), const char *name)
{
  int64_t n = 0;
  for (int i = 0; i < ALL; i++) {
    const double v = (double)tc_bf16_to_f32(x[i]), a = (double)tc_bf16_to_f32(got[i]), b = want(v);
    if (isnan(v) ? isnan(a) : a == b || isinf(v) || fabs(a - b) <= 1.0 / 250 * fabs(b) + 1e-4 * (fabs(b) > 1e-3) + 1e-36) continue;
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
  uint16_t few[MOST + 16], other[MOST + 16];
  for (int i = 0; i < MOST; i++) x[i] = tc_f32_to_bf16((float)i / 10 - 2), one[i] = tc_f32_to_bf16((float)(i % 7) - 3);
  for (int r = 0; r < ROWS; r++) {
    bool good = true;
    rows[r].fn(y, z, one, x, one, MOST);
    for (int64_t n = 0; n <= MOST; n++) {
      memset(few, 0x5a, sizeof few);
      memset(other, 0x5a, sizeof other);
      rows[r].fn(few, other, one, x, one, n);
      good = good && !memcmp(few, y, (size_t)n * 2) && (!rows[r].z || !memcmp(other, z, (size_t)n * 2));
      for (int64_t i = n; i < MOST + 16; i++) good = good && few[i] == 0x5a5a && other[i] == 0x5a5a;
    }
    ok(good, "%s: 0 to %d numbers, and none beyond", rows[r].name, MOST);
  }
}

int main(void)
{
  if (!tc_cpu_tile_bf16()) return printf("1..0 # SKIP this CPU has no AVX512_BF16\n"), 0;
  values();
  lengths();
  return done_testing();
}
