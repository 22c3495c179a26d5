/* t_order.c - where samples start, beside the formula in order.h computed another way. */
#include "src/base/base.h"
#include "src/data/order.h"
#include "tests/unit/tap.h"

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

int main(void)
{
  test_formula();
  test_windows();
  return done_testing();
}
