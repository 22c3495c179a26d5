/* order.c - see order.h. */
#include "src/data/order.h"

#include <math.h>
#include <stdlib.h>

#include "src/base/base.h"

int64_t tc_order_draw(uint64_t seed, int64_t step, int64_t b, int64_t tokens, int64_t context)
{
  __extension__ typedef unsigned __int128 u128;
  uint32_t r[4];
  tc_philox(r, seed, (uint64_t)step, (uint64_t)b);
  const uint64_t x = (uint64_t)r[1] << 32 | r[0];
  return (int64_t)((u128)x * (uint64_t)(tokens - context) >> 64);
}

int64_t tc_order_windows(int64_t tokens, int64_t context)
{
  return (tokens - 1) / context;
}

/* ---- permutation ------------------------------------------------------------------------- */

/* Rounds of the network: each changes one half by a function of the other. Four make a permutation that cannot
 * be distinguished from a random one where halves are large; twelve are for data sets of a few windows. */
enum { ROUNDS = 12, LEAST_BITS = 4 };

static uint64_t mix(uint64_t key, int round, uint64_t half)
{
  uint32_t r[4];
  tc_philox(r, key, half, (uint64_t)round);
  return (uint64_t)r[1] << 32 | r[0];
}

int64_t tc_order_window(uint64_t seed, int source, int64_t epoch, int64_t i, int64_t windows)
{
  int bits = LEAST_BITS;
  while (bits < 62 && windows > INT64_C(1) << bits) bits++;
  const int low_bits = bits / 2;
  const uint64_t low_mask = (UINT64_C(1) << low_bits) - 1, high_mask = (UINT64_C(1) << (bits - low_bits)) - 1;
  uint32_t k[4];
  tc_philox(k, seed ^ UINT64_C(0x6f72646572), (uint64_t)epoch, (uint64_t)source);
  const uint64_t key = (uint64_t)k[1] << 32 | k[0];
  uint64_t x = (uint64_t)i;
  do {
    uint64_t low = x & low_mask, high = x >> low_bits;
    for (int r = 0; r < ROUNDS; r += 2) {
      low ^= mix(key, r, high) & low_mask;
      high ^= mix(key, r + 1, low) & high_mask;
    }
    x = high << low_bits | low;
  } while (x >= (uint64_t)windows);
  return (int64_t)x;
}

/* ---- blends ------------------------------------------------------------------------------ */

/* Whether shares are whole multiples of 1 / period, to the precision of a double's sum. */
static bool is_exact(const double *share, int n, int period)
{
  for (int s = 0; s < n; s++) {
    const double c = share[s] * period;
    if (fabs(c - round(c)) > 1e-12 * period || round(c) < 1) return false;
  }
  return true;
}

/* Samples of each source in a period, by largest remainders; their sum is the period. */
static void share_out(int32_t *count, const double *share, int n, int period)
{
  int left = period;
  for (int s = 0; s < n; s++) left -= count[s] = (int32_t)floor(share[s] * period + 1e-6);
  for (; left > 0; left--) {
    int most = 0;
    for (int s = 1; s < n; s++)
      if (share[s] * period - count[s] > share[most] * period - count[most]) most = s;
    count[most]++;
  }
}

/* Sample j (from 0) of a source with `count` of `period` samples has to be in places [j * period / count,
 * (j + 1) * period / count), rounded outwards: then the source is never one sample off its share. Such an order
 * exists for all shares, and the earliest deadline first finds it (Baruah et al., "Proportionate progress",
 * Algorithmica 1996). */
static void fill_table(struct tc_blend *b)
{
  int32_t *given = tc_calloc((size_t)b->n, sizeof *given);
  for (int at = 0; at < b->period; at++) {
    int best = -1;
    int64_t deadline = 0;
    for (int s = 0; s < b->n; s++) {
      if (given[s] == b->count[s] || (int64_t)given[s] * b->period / b->count[s] > at) continue;
      const int64_t d = tc_ceil_div(((int64_t)given[s] + 1) * b->period, b->count[s]);
      if (best < 0 || d < deadline) best = s, deadline = d;
    }
    TC_ASSERT(best >= 0 && deadline > at);
    b->source[at] = best;
    b->before[at] = given[best]++;
  }
  free(given);
}

int tc_blend_new(struct tc_blend *b, const double *weight, int n)
{
  double sum = 0, *share = tc_malloc((size_t)n * sizeof *share);
  int small = -1;
  for (int s = 0; s < n; s++) sum += weight[s];
  for (int s = 0; s < n; s++) share[s] = weight[s] / sum;
  *b = (struct tc_blend){ .n = n, .period = n };
  while (b->period < TC_BLEND_PERIOD && !is_exact(share, n, b->period)) b->period++;
  b->count = tc_calloc((size_t)n, sizeof *b->count);
  share_out(b->count, share, n, b->period);
  for (int s = n - 1; s >= 0; s--)
    if (!b->count[s]) small = s;
  b->source = tc_calloc((size_t)b->period, sizeof *b->source);
  b->before = tc_calloc((size_t)b->period, sizeof *b->before);
  if (small < 0) fill_table(b);
  else tc_blend_free(b);
  free(share);
  return small;
}

void tc_blend_free(struct tc_blend *b)
{
  TC_FREE(b->count, b->source, b->before);
  *b = (struct tc_blend){ 0 };
}

int64_t tc_blend_at(const struct tc_blend *b, int64_t i, int *source)
{
  const int64_t at = i % b->period;
  *source = b->source[at];
  return i / b->period * b->count[*source] + b->before[at];
}

int64_t tc_blend_taken(const struct tc_blend *b, int source, int64_t n)
{
  int64_t taken = n / b->period * b->count[source];
  for (int64_t at = 0; at < n % b->period; at++) taken += b->source[at] == source;
  return taken;
}
