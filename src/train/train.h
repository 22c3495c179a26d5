/* train.h - one rank of a training run: the loop, what it writes, how it stops. */
#ifndef TC_TRAIN_H
#define TC_TRAIN_H

#include "src/data/data.h"
#include "src/train/fault.h"
#include "src/monitor/straggler.h"
#include "src/run/run.h"
#include "src/run/writer.h"

enum { TC_ROLLBACK_LOSSES = 32 };

/* rollback.c: what it keeps between steps. */
struct tc_recover {
  int64_t skipped, rollbacks;      /* in the checkpoint, with the losses: see rollback.c */
  double loss[TC_ROLLBACK_LOSSES];  /* of the last good steps, oldest first; if train.spike */
  int n_losses;
  int64_t back_to;                 /* the step this process went back to; -1 */
  bool begun;                      /* a save was begun in this process */
  double cost_s, every_s, said_s;  /* of a checkpoint; between two, and what was said of it */
  int64_t end_ns;                  /* time limit by tc_now_ns; 0: none */
  double limit_s;                  /* from this process's start to it */
  bool late;                       /* the job had used up half its time by then, or its start is not known */
  int steps;                       /* done in this process */
  double slow_s;                   /* the slowest step of late */
  int64_t boundary_ns;             /* the last step's end */
};

/* Rank 0, request.c: what `tercio save` asked for. */
struct tc_request_state {
  int kind;                        /* enum tc_request */
  int64_t step;                    /* after which it came; a checkpoint of it or later is the answer */
  int64_t looked_ns, begun_ns;     /* the last look for a file; the last save for this one */
  bool warned;
};

struct tc_metrics_out {            /* metrics.c */
  int fd;                          /* -1: not open */
  bool wanted;                     /* rank 0, or all_ranks */
  bool paused, warned;             /* since a line could not be written; a warning was given */
};

struct tc_ckpt_report { int64_t step, write_ns; };   /* of a save that ended; step 0: none */

/* One rank. cmd/train.c fills `stop` and the first part of `run`; tc_train does the rest. */
struct json_t;                   /* jansson's */
struct tc_train {
  const struct tc_stop *stop;    /* signals that ask to save and stop; borrowed */
  struct tc_run run;             /* mesh, programs, device, communicators; src/run changes it */
  struct tc_trace *trace;        /* NULL: run.trace = no */
  struct tc_data *data, *val;
  struct tc_data_identity data_id;   /* rank 0: of `data` */
  struct tc_err data_err;        /* status < 0: why a batch of this rank could not be read */
  int64_t start_step;            /* steps done by the checkpoint that was loaded */
  bool borrowed;                 /* which was another run's (ckpt.from) */
  int64_t eval_batch;            /* >= 0: fill from the validation windows of this batch */
  char *out, *ckpt_dir;
  struct tc_metrics_out metrics;
  struct tc_owner *owner;        /* rank 0: of the checkpoints' folder */
  char *home;                    /* its folder in there: a later owner removes it */
  struct tc_writer *writer;
  struct tc_train_state *state;  /* what the writer borrows */
  struct tc_recover recover;
  int64_t ckpt_bytes;            /* of a checkpoint's tensors, all ranks' */
  int64_t saved_step;            /* of the last checkpoint that was committed or loaded; -1 */
  int64_t last_ckpt_ns;          /* when the last one was begun */
  int64_t copy_ns, stall_ns;     /* the last save's copy; all stalls that no line has told */
  bool copied;                   /* since the last line */
  struct tc_request_state request;
  bool left_out;                 /* rank 0 said so since the last save was begun */
  struct tc_ckpt_report ckpt_said;             /* since the last line */
  struct tc_fault fault;
  struct json_t *predicted;      /* rank 0: what the planner says of a step; NULL: nothing */
  double peak_s;                 /* ... and a step at the devices' peak; 0: not known */
  struct tc_straggler *slow;          /* rank 0 of several; else NULL */
  struct tc_comm_counters said[TC_COMMS];      /* counters when the last line was written */
};

/* Collective over the run. Returns 0, TC_STOPPED, TC_ENDED, or a negative status, the same on all ranks
 * unless it is TC_EPEER. */
int tc_train(struct tc_train *t, struct tc_err *err);

struct tc_step_report {
  int64_t step, tokens, step_ns;
  int64_t wait_ns, pp_wait_ns;                   /* for transfers; of those on pp */
  struct tc_slowest slowest;                     /* rank 0 of several */
  double loss, val_loss, lr, grad_norm;          /* val_loss: NAN if there is none */
};

/* ---- ckpt.c: state to and from checkpoints ---- */
/* Collective. The folder is this run's from now on (io/ckpt/owner.h), or TC_EUSER says whose it is. */
int tc_train_own(struct tc_train *t, struct tc_err *err);
/* Collective. Loads the newest good checkpoint (or as ckpt.resume says) and sets start_step, or
 * initialises the weights. */
int tc_train_restore(struct tc_train *t, struct tc_err *err);
/* Collective; nothing may be being saved. The state of the newest good checkpoint below `before`,
 * or, where nothing was ever saved, the initial one: *step (0). Later ones are set aside.
 * TC_ENOCKPT where none is whole, TC_EDIVERGED where none lies before. */
int tc_train_go_back(struct tc_train *t, int64_t before, int64_t *step, struct tc_err *err);
/* Local, after the state is there. _close: false if the writer was left behind (tc_writer_free). */
int tc_train_writer_open(struct tc_train *t, struct tc_err *err);
bool tc_train_writer_close(struct tc_train *t, bool abandon);
/* Local. What the writer's staging memory has to be, from the placements alone. */
int64_t tc_train_staging_bytes(const struct tc_train *t);
/* Collective. Lets the writer write what it copied (or, without ckpt.async, writes). */
void tc_train_save_begin(struct tc_train *t, int64_t step);
/* Local, or with `wait` collective. Looks what became of the last save: 0, also if there is nothing
 * new. On failure older checkpoints stay; rank 0 says so unless `last`. */
int tc_train_save_end(struct tc_train *t, bool wait, bool last, struct tc_err *err);
/* Local. Makes every saved element of this rank NaN. */
void tc_train_poison(struct tc_train *t);

/* ---- resume.c: settings and data that differ from the checkpoint's ---- */
/* Local. TC_EUSER if an option has a value that the saved state cannot be used with; path is the
 * checkpoint's. */
struct tc_ckpt_meta;
int tc_resume_check(const struct tc_train *t, const struct tc_ckpt_meta *meta, const char *path,
                    struct tc_err *err);
/* Local, rank 0. Warns of each option, and of data, that change samples, learning rate or arithmetic
 * from here on. */
void tc_resume_warn(const struct tc_train *t, const struct tc_ckpt_meta *meta);
/* Local, rank 0. What a checkpoint says of the data; owned by the caller. */
char *tc_resume_data(const struct tc_train *t);
/* Local. The learning rate of a step, counted from 1. */
double tc_train_lr(const struct tc_config *c, int64_t step);

/* ---- rollback.c: going back, intervals, time limit, crash loops ---- */
/* Local. What goes into a checkpoint (owned by the caller) and comes out of it. */
char *tc_rollback_text(const struct tc_train *t);
int tc_rollback_parse(struct tc_train *t, const char *text, struct tc_err *err);
/* Local, once a step. Whether the step's loss is not a number or a spike. */
bool tc_rollback_bad(struct tc_train *t, const struct tc_step_report *s);
/* Collective; nothing may be being saved. After a bad step: goes back to *step, or fails with
 * TC_EDIVERGED because train.rollback doesn't allow it (again). */
int tc_rollback_go(struct tc_train *t, const struct tc_step_report *s, int64_t *step,
                        struct tc_err *err);
void tc_fault_fire(struct tc_train *t, struct tc_step_report *s);
/* Local. A save took so long (and copy_ns besides). */
void tc_interval_cost(struct tc_train *t, int64_t write_ns);
/* Local, rank 0. Whether a checkpoint is due after this step. */
bool tc_interval_due(const struct tc_train *t, int64_t step);
/* Local, rank 0. _near: once a step; whether the time left is just enough to save and leave, and,
 * TC_TIME_LIMIT_SHORT, came to that so soon that a start with the whole time would fare no better. */
enum { TC_TIME_LIMIT_FAR, TC_TIME_LIMIT_NEAR, TC_TIME_LIMIT_SHORT };
void tc_time_limit_begin(struct tc_train *t);
int tc_time_limit_near(struct tc_train *t);
/* Local, rank 0. Counts starts of one job that follow a start without a new checkpoint;
 * TC_NOPROGRESS when there were too many. _clear: the run ended well, or was ended by hand: forget. */
int tc_train_guard(struct tc_train *t, int64_t newest_step, struct tc_err *err);
void tc_train_guard_clear(struct tc_train *t);

/* ---- trace.c: run.trace ---- */
void tc_train_trace_new(struct tc_train *t);     /* Local. Before the communicators are made */
int tc_train_trace_open(struct tc_train *t, struct tc_err *err);   /* Local. After the programs */
/* Collective. Before each step; at the run's end, with its status, which it returns. */
int tc_train_trace_step(struct tc_train *t, int64_t step, struct tc_err *err);
int tc_train_trace_end(struct tc_train *t, int rc, struct tc_err *err);

/* ---- end_of_step.c ---- */
/* Local. The step that the run ends with: train.steps or train.stop_at. */
int64_t tc_train_last_step(const struct tc_config *c);
/* Collective, before the first step. TC_STOPPED or TC_ENDED if that was asked for by now. */
int tc_train_asked_before(struct tc_train *t, struct tc_err *err);
/* Collective, after a good step: what the ranks agree on (end_of_step.c has their names). TC_EUSER
 * where the folder was lost or the data changed. */
enum { TC_FLAGS = 4 };
int tc_train_read_flags(struct tc_train *t, struct tc_step_report *r, int64_t flag[TC_FLAGS],
                        struct tc_err *err);
/* Collective, then: saves, writes the line. *stop: leave the loop with what is returned. */
int tc_train_finish_step(struct tc_train *t, struct tc_step_report *r,
                         const int64_t flag[TC_FLAGS], bool *stop, struct tc_err *err);

/* ---- request.c: tercio save; Local, rank 0 ---- */
/* Removes requests from before this start. */
void tc_request_begin(struct tc_train *t);
/* Once a step. What to do after it (enum tc_request): looks for a file at most once a second,
 * and after the last step. */
int tc_request_look(struct tc_train *t, int64_t step, bool last);
/* If what was asked for is committed: says so and removes the file. */
void tc_request_end(struct tc_train *t);

/* ---- batches.c: batches, and data that change or fail under a run ---- */
/* Local. */
int tc_train_data_open(struct tc_train *t, struct tc_err *err);
/* Collective. TC_EUSER unless all ranks read the same tokens. */
int tc_train_data_same(struct tc_train *t, struct tc_err *err);
/* Local; a tc_fill_fn, ctx: the tc_train. A batch that cannot be read becomes zeros, and data_err
 * says why: the step ends on all ranks, and the run before anything of it is saved. */
void tc_train_fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                   int32_t *tokens, int32_t *targets);
/* Collective. TC_EUSER if a rank could not read a batch, or finds a file changed since the start:
 * what was trained since the last checkpoint may then be of other data. Waits for a save in progress. */
int tc_train_data_check(struct tc_train *t, struct tc_err *err);

/* ---- straggler.c ---- */
/* Collective. flag[n] <- the ranks' maximum; rank 0 hears how long each worked, fills r->slowest
 * and says who is slow. */
int tc_train_control(struct tc_train *t, int64_t *flag, int n, struct tc_step_report *r,
                     struct tc_err *err);

/* ---- plan.c: run.plan_device ---- */
/* Local, rank 0, when mesh and device are there. TC_EUSER: the device or its file is not known. A
 * layout that the planner has no time for is no failure. */
int tc_train_plan(struct tc_train *t, struct tc_err *err);

/* ---- metrics.c: the file metrics.jsonl; Local ---- */
/* Cuts the lines after `step` and opens the file for more. TC_EUSER, naming the file, which is then
 * as it was. */
int tc_metrics_open(struct tc_train *t, int64_t step, struct tc_err *err);
void tc_metrics_close(struct tc_train *t);
/* The same as _open within a run: what goes wrong is a warning. */
void tc_metrics_back(struct tc_train *t, int64_t step);
/* Adds the line of a step; one that cannot be written is missing, with a warning. */
void tc_metrics_add(struct tc_train *t, const struct tc_step_report *r);
/* Before the line of `step`: opens the file again if it was removed or renamed. */
void tc_metrics_look(struct tc_train *t, int64_t step);

/* ---- log.c: lines of metrics.jsonl, run.json, the progress line ---- */
/* Local. With its newline; owned by the caller. */
char *tc_metrics_line(struct tc_train *t, const struct tc_step_report *r);
void tc_counters_read(const struct tc_train *t, struct tc_comm_counters c[TC_COMMS]);
int tc_train_run_json(struct tc_train *t, struct tc_err *err);         /* Collective */
void tc_progress(const struct tc_train *t, const struct tc_step_report *r, int64_t *last_ns,
                 double tokens_per_s);

#endif
