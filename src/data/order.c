/* order.c - see order.h. */
#include "src/data/order.h"

#include "src/base/base.h"

int64_t tc_order_train(uint64_t seed, int64_t step, int64_t b, int64_t tokens, int64_t context)
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
