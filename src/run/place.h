/* place.h - where the ranks of a run are, by the same discovery, mesh and rules as a training's, but without
 * MPI_Init. */
#ifndef TC_RUN_PLACE_H
#define TC_RUN_PLACE_H

#include "src/config/config.h"
#include "src/launch/launch.h"

struct tc_run_place {                  /* zeroed by its owner */
  struct tc_config *cfg;           /* borrowed; train.precision as on these ranks */
  struct tc_ranks *ranks;          /* owned */
  struct tc_mesh *mesh;            /* owned */
  bool simulated, traffic;         /* traffic: sent_bytes is known */
  int64_t sent_bytes[TC_SETS];     /* per rank and step */
  int *threads;                    /* [world], of each rank; owned */
  struct tc_warnings warnings;     /* owned */
};

/* Collective over the job step, as tc_ranks_discover; Local with a cluster, "2 nodes x 4", whose ranks are simulated,
 * dealt to nodes in this order ("block", "cyclic"; NULL: the first). Threads and warnings are rank 0's. To be freed by
 * tc_run_place_done even after an error; cfg is borrowed until then, and gets the precision that fits the ranks. */
int tc_run_place_find(struct tc_run_place *p, struct tc_config *cfg, const char *cluster, const char *order,
                      struct tc_err *err);
void tc_run_place_done(struct tc_run_place *p);

#endif
