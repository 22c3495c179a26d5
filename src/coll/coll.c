/* coll.c - names of collectives, and the bytes that one sends. */
#include "src/coll/coll.h"

#include <string.h>

const char *const tc_coll_name[TC_COLLS] = {
  "slice", "drop", "zero", "copy",
  "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter",
  "gather", "all_to_all", "send", "recv", "barrier"
};

int tc_coll_named(const char *name)
{
  for (int i = TC_FIRST_COLL; i < TC_COLLS; i++)
    if (!strcmp(tc_coll_name[i], name)) return i;
  return -1;
}

/* Symmetric collectives send as much as a ring algorithm; rooted ones are flat: a broadcast's root sends
 * the whole array to each of the others. */
int64_t tc_coll_bytes(int coll, int size, int coord, int root, int64_t count, int64_t block,
                      int64_t elem_bytes)
{
  int64_t own = tc_block_start(count, block, coord + 1, size) -
                tc_block_start(count, block, coord, size);
  int64_t n = 0, others = size - 1;
  bool am_root = coord == root;
  if (size == 1) return 0;
  switch (coll) {
    case TC_ALL_REDUCE:     n = count - own + own * others; break;
    case TC_REDUCE_SCATTER: n = count - own; break;
    case TC_ALL_GATHER:     n = own * others; break;
    case TC_BROADCAST:      n = am_root ? count * others : 0; break;
    case TC_REDUCE:         n = am_root ? 0 : count; break;
    case TC_SCATTER:        n = am_root ? count - own : 0; break;
    case TC_GATHER:         n = am_root ? 0 : own; break;
    case TC_ALL_TO_ALL:     n = count - own; break;
    case TC_SEND:           n = count; break;
    case TC_RECV: case TC_BARRIER: break;
    default: TC_ASSERT(false);
  }
  return n * elem_bytes;
}
