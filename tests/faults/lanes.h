/* lanes.h - saves whose calls the shim counts for each rank; for drivers that are linked with it. */
#ifndef TC_LANES_H
#define TC_LANES_H

#include "tests/faults/shim.h"
#include "tests/unit/ckpt_fixture.h"

/* A rank of fx_threads whose calls are counted in a lane of its own. */
TAP_UNUSED static void *fx_lane_save(void *arg)
{
  shim_lane(((struct fx_rank *)arg)->rank);
  return fx_rank_save(arg);
}

#endif
