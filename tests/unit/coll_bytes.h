/* coll_bytes.h - tc_coll_bytes of a call with one part of 4-byte elements, by the direct algorithm. */
#ifndef TC_TEST_COLL_BYTES_H
#define TC_TEST_COLL_BYTES_H

#include "src/coll/flow.h"

static inline int64_t coll_bytes(int coll, int size, int coord, int root, int64_t count, int64_t block)
{
  const struct tc_part part = { .count = count, .block = block };
  const struct tc_coll_args a = { .coll = coll, .algorithm = tc_algorithm_direct(coll), .dtype = TC_F32, .root = root,
                                  .n_parts = 1, .parts = &part };
  const struct tc_members m = tc_members_of(size, coord);
  return tc_coll_bytes(&a, &m);
}

#endif
