/* random.c - random numbers that depend only on key and counter, and one for file names. */
#include "src/base/random.h"

#include <math.h>
#include <sys/random.h>

#include "src/base/clock.h"

void tc_philox(uint32_t out[4], uint64_t key, uint64_t c0, uint64_t c1)
{
  uint32_t x0 = (uint32_t)c0, x1 = (uint32_t)(c0 >> 32);
  uint32_t x2 = (uint32_t)c1, x3 = (uint32_t)(c1 >> 32);
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * x0, p1 = (uint64_t)0xCD9E8D57u * x2;
    x0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
    x2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
    x1 = (uint32_t)p1;
    x3 = (uint32_t)p0;
    k0 += 0x9E3779B9u;               /* the Weyl sequence: golden ratio and sqrt(3) - 1 */
    k1 += 0xBB67AE85u;
  }
  out[0] = x0, out[1] = x1, out[2] = x2, out[3] = x3;
}

float tc_uniform(uint64_t seed, uint32_t a, uint32_t b, uint64_t i)
{
  uint32_t x[4];
  tc_philox(x, seed, i, (uint64_t)a << 32 | b);
  return (float)(x[0] >> 8) * 0x1p-24f;
}

float tc_normal(uint64_t seed, uint32_t a, uint32_t b, uint64_t i)
{
  uint32_t x[4];
  tc_philox(x, seed, i, (uint64_t)a << 32 | b);
  /* In double, so that a difference in libm's last bit seldom changes the float; u1 is in (0, 1]. */
  double u1 = ((double)((uint64_t)x[0] << 21 | x[1] >> 11) + 1) * 0x1p-53;
  double u2 = (double)((uint64_t)x[2] << 21 | x[3] >> 11) * 0x1p-53;
  return (float)(sqrt(-2 * log(u1)) * cos(6.283185307179586476925 * u2));
}

uint32_t tc_bits(uint64_t seed, uint32_t a, uint32_t b, uint64_t i)
{
  uint32_t x[4];
  tc_philox(x, seed, i / 4, (uint64_t)a << 32 | b);
  return x[i % 4];
}

uint32_t tc_random_name(void)
{
  uint32_t x = 0;
  if (getrandom(&x, sizeof x, 0) != sizeof x) x = (uint32_t)tc_now_ns();
  return x;
}
