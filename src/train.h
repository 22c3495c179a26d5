/* train.h - one rank of a training run: the loop, what it writes, how it stops. */
#ifndef TC_TRAIN_H
#define TC_TRAIN_H

#include "src/comm.h"
#include "src/config.h"
#include "src/data.h"
#include "src/exec.h"
#include "src/program.h"
#include "src/ranks.h"

enum { TC_P_TRAIN, TC_P_EVAL, TC_P_INIT, TC_P_REFRESH, TC_N_PROGS };

/* One rank. cmd_train.c fills the first part; tc_train does the rest. */
struct tc_train {
  const struct tc_config *cfg;   /* borrowed */
  const struct tc_ranks *ranks;  /* borrowed */
  char *const *who;              /* [world] "rank 3 on node2"; borrowed */
  int rank, threads, stop_fd;    /* stop_fd: becomes readable on a stop request (SIGUSR2) */
  struct tc_hub *hub;            /* ranks are threads of this process; else NULL */
  bool mpi;

  struct tc_mesh *mesh;
  struct tc_comm *world, *comm[TC_AXES];
  const char **names[TC_AXES + 1];   /* who is in each communicator; the last: the world */
  struct tc_device *device;
  struct tc_program_opts opts;
  struct tc_annotation *rows;    /* that opts borrows */
  struct tc_program *prog[TC_N_PROGS];
  struct tc_exec *exec;
  struct tc_trace *trace;        /* NULL: run.trace = no */
  struct tc_data *data, *val;
  int64_t start_step;            /* steps done by the checkpoint that was loaded */
  int64_t eval_batch;            /* >= 0: fill from the validation windows of this batch */
  char *out, *ckpt_dir;
  FILE *metrics;                 /* rank 0, or all_ranks */
  int64_t base_rss_bytes;        /* resident before the arenas were taken */
  int64_t last_ckpt_step, last_ckpt_ns;
  struct tc_comm_counters said[TC_AXES + 1];   /* counters when the last line was written */
};

/* Collective over the run. Returns 0, TC_STOPPED, or a negative status, the same on all ranks
 * unless it is TC_EPEER. */
int tc_train(struct tc_train *t, struct tc_err *err);

/* Collective. Makes one status of the ranks': the lowest failing rank's, with its sentence. */
int tc_agree(const struct tc_train *t, int rc, struct tc_err *err);

/* ---- train_ckpt.c: state to and from checkpoints ---- */
/* Collective. step: steps done. On failure older checkpoints stay. */
int tc_train_save(struct tc_train *t, int64_t step, struct tc_err *err);
/* Collective. Loads the newest good checkpoint (or as ckpt.resume says) and sets start_step, or
 * initialises the weights. */
int tc_train_restore(struct tc_train *t, struct tc_err *err);
/* Local, rank 0. Counts starts of one job that follow a start without a new checkpoint;
 * TC_NOPROGRESS when there were too many. _clear: the run ended well, or was ended by hand: forget. */
int tc_train_guard(struct tc_train *t, int64_t newest_step, struct tc_err *err);
void tc_train_guard_clear(struct tc_train *t);

/* ---- train_trace.c: run.trace ---- */
void tc_train_trace_new(struct tc_train *t);     /* Local. Before the communicators are made */
int tc_train_trace_open(struct tc_train *t, struct tc_err *err);   /* Local. After the programs */
/* Collective. Before each step; at the run's end, with its status, which it returns. */
int tc_train_trace_step(struct tc_train *t, int64_t step, struct tc_err *err);
int tc_train_trace_end(struct tc_train *t, int rc, struct tc_err *err);

/* ---- train_log.c: metrics.jsonl, run.json, the progress line ---- */
struct tc_step_report {
  int64_t step, tokens, step_ns;
  int64_t wait_ns, pp_wait_ns;                   /* for transfers; of those on pp */
  double loss, val_loss, lr, grad_norm;          /* val_loss: NAN if there is none */
};
int tc_metrics_open(struct tc_train *t, struct tc_err *err);   /* cuts lines after start_step */
int tc_metrics_write(struct tc_train *t, const struct tc_step_report *r, struct tc_err *err);
void tc_counters_read(const struct tc_train *t, struct tc_comm_counters c[TC_AXES + 1]);
int tc_run_json(struct tc_train *t, struct tc_err *err);         /* Collective */
void tc_progress(const struct tc_train *t, const struct tc_step_report *r, int64_t *last_ns,
                 double tokens_per_s);
int64_t tc_rss_bytes(bool peak);

#endif
