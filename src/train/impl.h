/* impl.h - the state of one rank's run.
 *
 * Each part of struct tc_train belongs to the file that its comment names, and members to another where it says so;
 * other files read it and call that file's functions (parts.h). loop.c sets the initial values of all parts and frees what they
 * hold. */
#ifndef TC_TRAIN_IMPL_H
#define TC_TRAIN_IMPL_H

#include "src/config/config.h"
#include "src/data/data.h"
#include "src/files/files.h"
#include "src/forward/questions.h"
#include "src/metrics/metrics.h"
#include "src/monitor/straggler.h"
#include "src/recipe/recipe.h"
#include "src/run/run.h"
#include "src/run/writer.h"
#include "src/train/train.h"

struct json_t;                   /* jansson's */

/* batches.c. The data of a stage; its data sets may be those of an earlier one. */
struct tc_stage_data {
  struct tc_data *train, *val;
  struct tc_data_stage order;    /* of `train`; its origins are owned */
  struct tc_data_identity id;    /* of `train` */
  int64_t *val_counted;          /* of each source of `val`: targets of a validation that count; owned */
  uint64_t begin;                /* a hash of which earlier stages its sources go on after */
  int32_t end_token;             /* ends a document, for data.documents = mask */
};

/* batches.c */
struct tc_batches {
  struct tc_stage_data *stage;   /* [run.n_stages]; owned */
  struct tc_data *train, *val;   /* of the present stage, as the token below */
  struct tc_prefetch *train_prefetch, *val_prefetch;   /* NULL before the first batch */
  int32_t end_token;             /* ends a document, for data.documents = mask */
  int64_t eval_batch;            /* >= 0: the next batch is this one of the validation data */
  double *val_loss;              /* of each source of `val`, by the last validation; owned */
  int64_t waited_ns;             /* for training batches since the last line */
  struct json_t *hashes;         /* data.hashes: of the sequences since the last line, by number; owned; or NULL */
  struct tc_err err;             /* status < 0: why a batch of this rank could not be read */
};

/* eval_tasks.c: train.eval_tasks */
struct tc_task {
  char *name;                    /* in metrics.jsonl; owned */
  const char *path;
  struct tc_choices questions;
  double right, by_length;       /* parts of the questions, when last asked */
  double loss;                   /* of the labelled answers, the mean in nats */
  int64_t not_finite;            /* answers whose loss is not */
};
struct tc_tasks {
  struct tc_task *task;
  int n;
  struct tc_forward *forward;
  bool asking;                   /* batches are those of `forward` */
  bool text;                     /* a task is text, with tokens of the tokenizer with the next hash */
  uint64_t tokenizer;            /* 0: a token is a byte */
  int64_t step;                  /* after which they were last asked */
};

/* save_state.c, restore.c; owner and lease: folders.c */
struct tc_ckpts {
  char *dir;
  struct tc_owner *owner;        /* rank 0: of that folder */
  char *lease;                   /* its lease folder in there: a later owner removes it */
  struct tc_writer *writer;
  struct tc_train_state *state;  /* what the writer borrows */
  int64_t bytes;                 /* of a checkpoint's tensors, all ranks' */
  int64_t start_step;            /* steps done by the checkpoint that was loaded */
  char *loaded;                  /* which that was; owned; NULL: none */
  int64_t loaded_step;           /* of the run that saved it */
  bool weights_alone;            /* all else of it was left (ckpt.from_state) */
  bool imported;                 /* it has weights alone: the optimizer's state began at zero */
  char *base;                    /* with adapters: which weights are beside them (tc_base_note); owned; NULL: random ones */
  char *tuned;                   /* what its run's devices chose by time (tc_run_tune); NULL: none was loaded */
  bool borrowed;                 /* which was another run's (ckpt.from) */
  int64_t saved_step;            /* of the last checkpoint that was committed or loaded; -1 */
  bool diverged;                 /* a save has found that the state is not finite; all ranks act on it at the next step */
  bool failed_alone;             /* the last one failed on this rank alone, before the ranks met */
  bool begun;                    /* a save was begun in this process */
  int64_t begun_ns;              /* when the last one was, or the run */
};

/* tokenizer.c: the model's tokenizer */
struct tc_train_tokenizer {
  uint64_t hash;                 /* 0: a token is a byte, or it is not known */
  bool is_bytes;                 /* a token is a byte */
  int64_t end;                   /* the token that ends a document, as shards or checkpoint say; below 0: they don't */
  char *text;                    /* rank 0: its tokenizer.json, which each checkpoint takes along; owned; NULL: none */
  size_t bytes;
  char *beside;                  /* rank 0: the same of TC_BESIDE_FILE, which the checkpoint has that was loaded */
  int64_t beside_bytes;
};

/* rollback.c: skipped, rollbacks and losses, which are saved in checkpoints; restore.c sets them as a checkpoint has them,
 * and back_to. */
enum { TC_ROLLBACK_LOSSES = 32 };
struct tc_rollback {
  int64_t skipped, rollbacks;
  double loss[TC_ROLLBACK_LOSSES];   /* of the last good steps, oldest first; if train.spike */
  int n_losses;
  int64_t back_to;               /* the step this process went back to; -1 */
};

/* when.c: saves */
struct tc_interval {
  double cost_s;                 /* of a checkpoint; 0: not known */
  double every_s, logged_s;      /* between two checkpoints, and the last value that was logged */
};

/* when.c: the time limit */
struct tc_time_limit {
  int64_t end_ns;                /* the limit by tc_now_ns; 0: none */
  double limit_s;                /* from this process's start to it */
  bool late;                     /* half of the job's time was over, or its start is not known */
  int steps;                     /* done in this process */
  double longest_s;              /* the longest step recently */
  int64_t boundary_ns;           /* the last step's end */
};

/* Rank 0, request.c: what `tercio save` asked for. */
struct tc_request_state {
  int kind;                      /* enum tc_request */
  int64_t step;                  /* after which it came; a checkpoint of it or later answers it */
  int64_t looked_ns, begun_ns;   /* the last look for a file; the last save for this one */
  int64_t failed_ns;             /* when its name could not be changed, which was warned of; 0: it could */
};

/* end_of_step.c */
struct tc_end_of_step {
  int64_t copy_ns;               /* of the last save: how long its copy took, where one is made */
  bool left_out;                 /* a save was left out since the last was begun; logged */
  struct tc_straggler *straggler;   /* rank 0 of several; else NULL */
  int stage;                     /* of which it knows the times */
};

/* measure.c: the files, and what was reported since its last line. */
struct tc_log_save { int64_t step, write_ns; };   /* a save that ended; step 0: none */
enum { TC_METRICS_OUTS = 2 };
struct tc_log {
  struct tc_metrics_file file;
  struct tc_metrics_out other[TC_METRICS_OUTS];  /* rank 0: files of other programs */
  int64_t stall_ns;              /* how long training waited for saves */
  bool copied;                   /* the state was copied */
  struct tc_log_save saved;
  struct tc_comm_counters counted[TC_COMMS], now[TC_COMMS];   /* counters as of the last line, and of this one */
  struct tc_comm_counters begun[TC_COMMS];       /* ... and before the first step; 0 until then */
};

/* run_json.c, rank 0: what the planner predicts. */
struct tc_prediction {
  struct json_t *predicted;      /* of a step; NULL: nothing */
  double peak_s;                 /* a step at the devices' peak; 0: not known */
  double flops;                  /* of a token, beside the model's (struct tc_parameter_sums) */
};

/* fault.c: run.fault, faults that tests ask for, KIND@STEP[:RANK]. Those of the loss (nan, spike)
 * are of all ranks alike. */
enum tc_fault_kind {
  TC_FAULT_NONE, TC_FAULT_HANG, TC_FAULT_SLOW, TC_FAULT_PACE, TC_FAULT_NAN, TC_FAULT_SPIKE, TC_FAULT_ROW, TC_FAULT_KINDS
};
struct tc_fault { int kind, rank; int64_t step; };   /* without :RANK the last rank */

/* One rank. */
struct tc_train {
  struct tc_config own;          /* the configuration, with train.steps by data.epochs, data.order by the checkpoint, seeds,
                                    train.precision by the device */
  bool precision_by_device;      /* train.precision was auto */
  struct tc_stop *stop;
  char *out;                     /* run.out */
  struct tc_rate rate;           /* of the present stage's steps, when the data are open */
  struct tc_run run;             /* mesh, programs, device, communicators; src/run changes it */
  struct tc_batches batches;
  struct tc_tasks tasks;
  struct tc_ckpts ckpt;
  struct tc_train_tokenizer tokenizer;
  struct tc_rollback rollback;
  struct tc_stop_if stop_if;
  struct tc_interval interval;
  struct tc_time_limit limit;
  struct tc_request_state request;
  struct tc_end_of_step end;
  struct tc_log log;
  struct tc_trace *trace;        /* run_trace.c; NULL: run.trace = no */
  struct tc_prediction plan;
  struct tc_fault fault;
};

struct tc_step_report {
  int64_t step, tokens, step_ns;
  int64_t counted;                               /* of its targets, those that the loss counts */
  char time[24];                                 /* when it ended, by tc_iso_time */
  int64_t wait_ns, pp_wait_ns;                   /* for transfers; of those on pp */
  struct tc_slowest slowest;                     /* rank 0 of several */
  double loss, val_loss, lr, grad_norm;
  bool validated;                                /* there was a validation: val_loss and the tasks are of this step */
  int64_t trained;                               /* tokens of all steps so far */
};

#endif
