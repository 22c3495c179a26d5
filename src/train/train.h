/* train.h - `tercio train` on one rank.
 *
 * In go a configuration and what the launcher found; out come checkpoints, metrics.jsonl, run.json
 * and an exit status.
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

/* ---- request.c: how `tercio save` asks a run for a checkpoint: a file in the run's folder ----
 *
 * The file holds one word of tc_request_word; an empty one asks for a checkpoint. Rank 0 looks for
 * it once a second, takes it by renaming it, and removes it when the checkpoint is committed. A
 * start removes what an earlier one left. */

#define TC_REQUEST_FILE "save"
#define TC_REQUEST_TAKEN ".save-taken"

/* The greater of two requests counts. */
enum tc_request { TC_ASK_NONE, TC_ASK_SAVE, TC_ASK_REQUEUE, TC_ASK_END, TC_ASKS };

extern const char *const tc_request_word[TC_ASKS];   /* "", "checkpoint", "requeue", "stop" */

/* A request that was sent by `tercio save`. */
struct tc_sent_request {
  const char *out, *ckpt_dir;          /* folders of the run and of its checkpoints; borrowed */
  int kind;                            /* enum tc_request */
  int64_t newest, made;                /* steps of the newest checkpoint before and after; -1: none */
  char *file, *taken;                  /* owned */
};
/* Local. Writes the request. TC_EUSER: no run is in progress, the file can't be made. To be freed even after an error. */
int tc_request_send(struct tc_sent_request *a, const char *out, const char *ckpt_dir, int kind, struct tc_err *err);
/* Local. Returns when the checkpoint is complete. TC_EUSER: not within wait_s, or the run has ended. */
int tc_request_await(struct tc_sent_request *a, double wait_s, struct tc_err *err);
void tc_request_done(struct tc_sent_request *a);

#endif
