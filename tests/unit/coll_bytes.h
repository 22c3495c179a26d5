/* coll_bytes.h - the algorithms in which each exchanges with each, or the root with each, whose bytes simple formulas say;
 * tc_coll_bytes by them of a call with one part of 4-byte elements. */
#ifndef TC_TEST_COLL_BYTES_H
#define TC_TEST_COLL_BYTES_H

#include "src/coll/flow.h"

static inline int direct_algorithm(int coll)
{
  return tc_algorithm_does(TC_ALGORITHM_EXCHANGE, coll) ? TC_ALGORITHM_EXCHANGE : TC_ALGORITHM_STAR;
}

static inline int64_t coll_bytes(int coll, int size, int coord, int root, int64_t count, int64_t block)
{
  const struct tc_part part = { .count = count, .block = block };
  const struct tc_coll_args a = { .coll = coll, .algorithm = direct_algorithm(coll), .dtype = TC_F32, .root = root,
                                  .n_parts = 1, .parts = &part };
  return tc_coll_bytes(&a, size, coord);
}

#endif
