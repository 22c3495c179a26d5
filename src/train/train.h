/* train.h - `tercio train` on one rank.
 *
 * In go a configuration and what the launcher found; out come checkpoints, metrics.jsonl, run.json
 * and an exit status. How `tercio save` asks a run for a checkpoint is in request.h.
 *
 * Files, in reading order: impl.h (the state of a run), parts.h (what each file does, from the bottom up), end_of_step.c
 * (what follows a step), loop.c (from start to end). */
#ifndef TC_TRAIN_H
#define TC_TRAIN_H

#include "src/base/base.h"

struct tc_config;
struct tc_ranks;
struct tc_stop;
struct tc_hub;

/* One rank of the run. All is borrowed. */
struct tc_train_args {
  const struct tc_config *cfg;
  const struct tc_ranks *ranks;
  char *const *rank_names;       /* [world] "rank 3 on node2" */
  int rank, threads;
  struct tc_stop *stop;          /* signals, which ask to save and stop from the first step on */
  struct tc_hub *hub;            /* ranks are threads of this process; else NULL */
  bool mpi;                      /* ranks are several processes */
};

/* Collective over the run. Returns 0, TC_STOPPED, TC_ENDED, or a negative status, the same on all
 * ranks unless it is TC_EPEER. */
int tc_train(const struct tc_train_args *args, struct tc_err *err);

#endif
