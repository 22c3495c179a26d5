/* counters.h - saves whose calls the shim counts for each rank; for drivers that are linked with it. */
#ifndef TC_COUNTERS_H
#define TC_COUNTERS_H

#include "tests/faults/shim.h"
#include "tests/unit/ckpt_fixture.h"

/* A rank of fx_threads whose calls are counted by a counter of its own. */
TAP_UNUSED static void *fx_counted_save(void *arg)
{
  shim_counter(((struct fx_rank *)arg)->rank);
  return fx_rank_save(arg);
}

#endif
