/* t_order.c - where samples start, beside the formula in order.h computed another way; permutations and blends by
 * counting. */
#include "src/base/base.h"
#include "src/data/order.h"
#include "tests/unit/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* floor(x * n / 2^64) by halves of 32 bits. */
static int64_t by_hand(uint64_t x, uint64_t n)
{
  const uint64_t low = UINT64_C(0xffffffff), xl = x & low, xh = x >> 32, nl = n & low, nh = n >> 32;
  const uint64_t middle = xh * nl + (xl * nl >> 32), other = xl * nh + (middle & low);
  return (int64_t)(xh * nh + (middle >> 32) + (other >> 32));
}

static void test_formula(void)
{
  static const struct { int64_t tokens, context; } of[] = {
    { 9, 8 }, { 10, 8 }, { 1000, 1 }, { 30000, 1024 }, { INT64_C(1) << 33, 2048 }, { INT64_MAX, 1 } };
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    const int64_t n = of[i].tokens - of[i].context;
    int wrong = 0, outside = 0;
    for (int k = 0; k < 1000; k++) {
      const uint64_t seed = (uint64_t)k % 7 * UINT64_C(0x9e3779b97f4a7c15);
      const int64_t step = k + 1, b = k * INT64_C(3);
      uint32_t r[4];
      tc_philox(r, seed, (uint64_t)step, (uint64_t)b);
      const int64_t start = tc_order_draw(seed, step, b, of[i].tokens, of[i].context);
      wrong += start != by_hand((uint64_t)r[1] << 32 | r[0], (uint64_t)n);
      outside += start < 0 || start >= n;
    }
    is_int(wrong, 0, "%lld tokens, samples of %lld: as Philox says", (long long)of[i].tokens,
           (long long)of[i].context);
    is_int(outside, 0, "... within the list");
  }
}

static void test_windows(void)
{
  static const struct { int64_t tokens, context, windows; } of[] = {
    { 9, 8, 1 }, { 16, 8, 1 }, { 17, 8, 2 }, { 2, 1, 1 }, { 100, 33, 3 } };
  for (size_t i = 0; i < sizeof of / sizeof *of; i++)
    is_int(tc_order_windows(of[i].tokens, of[i].context), of[i].windows, "windows of %lld in %lld tokens",
           (long long)of[i].context, (long long)of[i].tokens);
}

/* ---- permutation ------------------------------------------------------------------------- */

/* How often each window occurs in an epoch: 1. */
static bool is_permutation(uint64_t seed, int64_t epoch, int64_t windows, uint8_t *seen)
{
  for (int64_t i = 0; i < windows; i++) seen[i] = 0;
  for (int64_t i = 0; i < windows; i++) {
    const int64_t w = tc_order_window(seed, 0, epoch, i, windows);
    if (w < 0 || w >= windows || seen[w]++) return false;
  }
  return true;
}

static void test_permutation(void)
{
  static const int64_t sizes[] = { 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 64, 97, 255, 256, 1000, 4096, 65536, 65537,
                                   1000000, 1048576, 1000003 };
  uint8_t *seen = malloc(2000000);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    ok(is_permutation(7, 0, sizes[i], seen) && is_permutation(8, 3, sizes[i], seen),
       "%lld windows: each once an epoch", (long long)sizes[i]);
  free(seen);
  int64_t same = 0, next = 0, source = 0, seed = 0;
  enum { N = 100000 };
  for (int64_t i = 0; i < N; i++) {
    const int64_t w = tc_order_window(1, 0, 0, i, N);
    same += w == i;
    next += tc_order_window(1, 0, 1, i, N) == w;
    source += tc_order_window(1, 1, 0, i, N) == w;
    seed += tc_order_window(2, 0, 0, i, N) == w;
  }
  ok(same < 20 && next < 20 && source < 20 && seed < 20, "order, epochs, sources and seeds have nothing in common "
     "(%d %d %d %d places of %d)", (int)same, (int)next, (int)source, (int)seed, N);
  const int64_t most = INT64_C(1) << 61;
  bool far = true;
  for (int64_t i = 0; i < 1000; i++) {
    const int64_t w = tc_order_window(5, 0, 2, i * 1234567891234567, most);
    far &= w >= 0 && w < most;
  }
  ok(far, "as many windows as there may be");
}

/* Whether the chi-square of counts is that of a uniform distribution: five standard deviations of it. */
static void is_uniform(const int *count, int cells, double total, const char *what)
{
  double chi = 0;
  const double expected = total / cells;
  for (int i = 0; i < cells; i++) chi += (count[i] - expected) * (count[i] - expected) / expected;
  const double z = (chi - (cells - 1)) / sqrt(2.0 * (cells - 1));
  ok(fabs(z) < 5, "%s: uniform (z = %.2f)", what, z);
}

/* Each place of an epoch gets each window equally often: over seeds in small data sets, over places in a large one. */
static void test_uniform(void)
{
  static const int sizes[] = { 2, 3, 5, 12, 16, 33 };
  enum { SEEDS = 20000, CELLS = 100, LARGE = 1000000 };
  for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
    const int n = sizes[k];
    int *place = calloc((size_t)n * (size_t)n, sizeof *place), *pair = calloc((size_t)n * (size_t)n, sizeof *pair);
    for (int seed = 0; seed < SEEDS; seed++) {
      int64_t w[33];
      for (int i = 0; i < n; i++) w[i] = tc_order_window((uint64_t)seed, 0, seed % 3, i, n);
      for (int i = 0; i < n; i++) place[i * n + w[i]]++;
      pair[w[0] * n + w[1]]++;
    }
    bool fair = true;
    for (int i = 0; i < n; i++) {
      double chi = 0;
      for (int w = 0; w < n; w++) {
        const double d = place[i * n + w] - (double)SEEDS / n;
        chi += d * d / ((double)SEEDS / n);
      }
      fair &= (chi - (n - 1)) / sqrt(2.0 * (n - 1)) < 7;
    }
    ok(fair, "%d windows: each place has each equally often", n);
    double chi = 0;
    const double expected = (double)SEEDS / (n * (n - 1));
    for (int i = 0; i < n * n; i++)
      if (i / n != i % n) chi += (pair[i] - expected) * (pair[i] - expected) / expected;
    const double z = (chi - (n * (n - 1) - 1)) / sqrt(2.0 * TC_MAX(n * (n - 1) - 1, 1));
    ok(z < 7, "... and so has each first pair (z = %.2f)", z);
    free(place);
    free(pair);
  }
  int where[CELLS] = { 0 }, step[CELLS] = { 0 };
  int64_t before = 0;
  for (int64_t i = 0; i < LARGE / 10; i++) {
    const int64_t w = tc_order_window(11, 0, 0, i, LARGE);
    where[w * CELLS / LARGE]++;
    step[(w - before + LARGE) % LARGE * CELLS / LARGE]++;
    before = w;
  }
  is_uniform(where, CELLS, LARGE / 10, "where the first tenth of an epoch lies");
  is_uniform(step, CELLS, LARGE / 10, "... and the way from one window to the next");
}

/* ---- blends ------------------------------------------------------------------------------ */

/* Every prefix has each source's share to within one; the closed forms are what counting gives. */
static void check_blend(const double *weight, int n, double off)
{
  struct tc_blend b;
  double sum = 0, worst = 0, share_off = 0;
  if (!is_int(tc_blend_new(&b, weight, n), -1, "a blend of %d", n)) return;
  int64_t *taken = calloc((size_t)n, sizeof *taken);
  const int64_t samples = 2 * b.period + b.period / 3;
  bool same = b.period <= TC_BLEND_PERIOD;
  for (int s = 0; s < n; s++) sum += weight[s];
  for (int s = 0; s < n; s++) share_off = fmax(share_off, fabs((double)b.count[s] / b.period - weight[s] / sum));
  for (int64_t i = 0; i < samples; i++) {
    int source;
    same &= tc_blend_at(&b, i, &source) == taken[source];
    taken[source]++;
    for (int s = 0; s < n; s++)
      worst = fmax(worst, fabs((double)taken[s] - (double)(i + 1) * b.count[s] / b.period));
    if (i % 97 == 0) same &= tc_blend_taken(&b, (int)(i % n), i + 1) == taken[i % n];
  }
  ok(same, "... a sample's number is what counting gives");
  ok(worst < 1, "... no source is off its share by a sample (%.4f), period %d", worst, b.period);
  ok(share_off <= off, "... shares are the weights (%.2g)", share_off);
  free(taken);
  tc_blend_free(&b);
}

static void test_blend(void)
{
  static const double weights[][6] = { { 1 }, { 0.7, 0.3 }, { 1, 2 }, { 1, 1, 1 }, { 0.5, 0.25, 0.125, 0.125 },
                                       { 97, 1, 1, 1 }, { 0.9999, 0.0001 }, { 12, 34, 56, 78, 90, 11 } };
  static const double odd[][6] = { { 0.3141592653589793, 0.7 }, { 1.4142135623, 1.7320508, 2.2360679, 2.6457513 },
                                   { 1, 1e-4, 1e-3, 0.12345678 } };
  for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
    int n = 0;
    while (n < 6 && weights[i][n] > 0) n++;
    check_blend(weights[i], n, 1e-12);
  }
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    int n = 0;
    while (n < 6 && odd[i][n] > 0) n++;
    check_blend(odd[i], n, 1.0 / TC_BLEND_PERIOD);
  }
  double many[300];
  uint32_t x = 1;
  for (int i = 0; i < 300; i++) many[i] = 1 + (x = x * 1664525 + 1013904223) % 100;
  check_blend(many, 20, 1.0 / TC_BLEND_PERIOD);
  struct tc_blend b;
  is_int(tc_blend_new(&b, (double[]){ 1, 1e-6, 1 }, 3), 1, "a share below one sample in a period is refused");
}

int main(void)
{
  test_formula();
  test_windows();
  test_permutation();
  test_uniform();
  test_blend();
  return done_testing();
}
