/* comm_impl.h - what comm.c asks of a backend. Private to comm*.c. */
#ifndef TC_COMM_IMPL_H
#define TC_COMM_IMPL_H

#include <stdatomic.h>

#include "src/comm.h"
#include "src/watch.h"

struct tc_comm_ops {
  /* Runs one call to its end, on the worker thread (or on the caller's where size is 1).
   * *bytes <- bytes handed to the network. Gives up soon after *stop becomes true. */
  int (*run)(void *impl, const struct tc_coll_args *a, const atomic_bool *stop,
             int64_t *bytes, struct tc_err *err);
  void (*free)(void *impl);
};

/* Local. Takes impl over. stall is what impl says of its waits; may be NULL. */
struct tc_comm *tc_comm_new(const struct tc_comm_ops *ops, void *impl, int coord, int size,
                            const struct tc_comm_opts *o, struct tc_stall *stall);

/* The deadline in force, in seconds. */
static inline double tc_comm_deadline_s(const struct tc_comm_opts *o)
{
  return o->deadline_s > 0 ? TC_MIN(o->deadline_s, 1e9) : 600.0;
}

/* Where coordinate i's block starts, in elements; i = n: the end of the last block. The last
 * coordinate has whatever is left, be it less or more than a block. */
static inline int64_t tc_block_start(int64_t count, int64_t block, int i, int n)
{
  if (i >= n) return count;
  return i > 0 && block > count / i ? count : i * block;
}

#endif
