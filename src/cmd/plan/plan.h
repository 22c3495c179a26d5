/* plan.h - shared by the files of `tercio plan`.
 *
 * Files in reading order: plan.c (the command), args.c (flags into a job), slurm.c (a partition), slurm_words.c (what
 * Slurm says of a node); print.c and table.c (one layout, many), forward.c (of eval or sample), head.c (what both begin
 * and end with); checks.c, paths.c and emit.c (a job to submit); calibrate.c. */
#ifndef TC_CMD_PLAN_H
#define TC_CMD_PLAN_H

#include "src/config/config.h"
#include "src/plan/plan.h"

#include <jansson.h>

/* Nodes of a partition that a plan leaves out: down or drained, of another kind, with GPUs that are too old, in a state
 * that is not known. */
enum tc_slurm_why { TC_SLURM_DOWN, TC_SLURM_OTHER, TC_SLURM_OLD, TC_SLURM_UNKNOWN };
struct tc_slurm_kind {
  enum tc_slurm_why why;                         /* OLD: Tercio does not support their GPUs */
  int nodes, gpus, cpus;                         /* gpus, cpus: of a node; 0 if down or not known */
  char gpu[64], state[64];                       /* state: the word that is not known */
};
enum { TC_SLURM_KINDS = 16 };

/* Slurm's data of a partition: the usable nodes of the kind with most devices. */
struct tc_slurm_part {
  char name[64];
  int nodes, gpus, sockets, cpus;                /* gpus .. cpus: of a node */
  struct tc_slurm_kind left_out[TC_SLURM_KINDS]; int n_left_out;   /* the last one counts all further kinds */
  int most_nodes;                                /* of a job; 0: no limit */
  bool mixed;                                    /* the partition has other GPUs, too, which must not be allocated */
  char gpu[64];                                  /* their type in Gres; "" if it has none */
  double memory_bytes, walltime_s;               /* of a node; 0: no time limit */
  int switches, switch_nodes;                    /* their leaf switches; nodes of the median switch */
};

struct tc_plan_job {
  struct tc_config *cfg;         /* owned */
  struct tc_cluster cluster;     /* owned */
  int world;
  bool json, search, costs;      /* costs: a flag asks for those of the run */
  enum tc_use use;               /* --for */
  int sequences;                 /* --batch; 0: the default of the use */
  unsigned fixed;                 /* bits of enum tc_plan_key: fixed by flags */
  int top;
  double tokens, walltime_s, restart_s;
  double own_bytes;              /* memory of the device without --memory */
  /* Where figures of the cluster come from ("--device", "Slurm"); NULL: assumed. */
  const char *device_from, *memory_from, *host_from, *nodes_from, *devices_from, *time_from;
  const char *emit, *into, *template, *partition;  /* borrowed from cfg */
  bool from_slurm;
  struct tc_slurm_part slurm;
};

/* args.c. Local; runs scontrol for --from-slurm. The command line into *j, which has its defaults and must be freed by
 * tc_plan_job_done even after an error; *calibrate and *tables: what was asked for instead of a plan. TC_EUSER: a
 * flag is malformed or has no effect beside the others. */
int tc_plan_job_new(struct tc_plan_job *j, int argc, char **argv, const char **calibrate, bool *tables,
                    struct tc_err *err);
void tc_plan_job_done(struct tc_plan_job *j);

/* head.c. Local. What the plan is of, and where each of it came from; as text and as JSON (owned by the caller). */
void tc_plan_head_print(FILE *f, const struct tc_plan_job *j);
json_t *tc_plan_head_json(const struct tc_plan_job *j);
/* What a run of the layout costs: checkpoints, steps, hours. */
void tc_plan_run_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p);
/* The same of several layouts, a row for each. */
void tc_plan_runs_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan_row *row, int n);
/* Where the layout leaves less than a tenth of the device's memory to driver, libraries and kernels: the percentage
 * that it takes, and a --memory that leaves a tenth, into memory[size]; else, and with a --memory below the device's,
 * 0. */
int tc_plan_headroom(const struct tc_plan_job *j, const struct tc_plan *p, char *memory, size_t size);
/* Advice where that is so. */
void tc_plan_headroom_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p);
/* Local. "" or "s", as in "1 node" and "4 nodes". */
const char *tc_plan_plural(int64_t n);
/* Local. Seconds as text, "90 s" or "25 h". Returns buf. */
char *tc_plan_span(char *buf, size_t size, double s);

/* print.c. Local. One layout as text, and as JSON (owned by the caller). */
void tc_plan_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p);
json_t *tc_plan_json(const struct tc_plan_job *j, const struct tc_plan *p);
/* Local. TC_ELAYOUT: the layout exceeds the memory of a device, or that of a node's host. */
int tc_plan_fits(const struct tc_plan_job *j, const struct tc_plan *p, struct tc_err *err);

/* forward.c. Local. Prints what j->use takes, other than training. TC_ELAYOUT: it exceeds the memory of a device. */
int tc_plan_use(const struct tc_plan_job *j, struct tc_err *err);
extern const char *const tc_plan_uses[];         /* by enum tc_use: "train", "eval", "sample" */

/* slurm_words.c. Local. Whether jobs can start on a node, now or after others, by its state as Slurm prints it
 * ("IDLE+CLOUD", "DOWN*"). UNKNOWN: a word of it, which is copied to word[size], is not known. */
enum tc_slurm_state { TC_SLURM_STATE_GOOD, TC_SLURM_STATE_BAD, TC_SLURM_STATE_UNKNOWN };
enum tc_slurm_state tc_slurm_state_of(const char *state, char *word, size_t size);
/* Local. The first entry of a list of generic resources such as "gpu:a100:8(S:0-1),shard:32"; type is "" if it has
 * none, and count 1. Returns the rest of the list, or NULL. */
struct tc_slurm_gres { char name[64], type[64]; double count; };
const char *tc_slurm_gres_next(const char *list, struct tc_slurm_gres *out);

/* slurm.c. Local; runs scontrol. partition NULL: the default one. TC_EUSER: no Slurm, no
 * such partition (the nearest is named), no node in it that can be used, numbers that no node has. */
int tc_slurm_read(struct tc_slurm_part *out, const char *partition, struct tc_err *err);
void tc_slurm_print(FILE *f, const struct tc_slurm_part *s);
json_t *tc_slurm_json(const struct tc_slurm_part *s);

/* checks.c. What a person must decide before an emitted job is submitted. */
struct tc_plan_check {
  bool job;                                      /* stands in job.sbatch, else in run.ini */
  const char *name;                              /* the option above which it stands: "train.lr", or sbatch's "mem" */
  char comment[248];                             /* "CHECK " and the text */
  const char *text;                              /* within comment */
};
enum { TC_PLAN_CHECKS = 32 };
/* Local. The list for the run file `c`, which job `j` plans with plan `p`; returns its length. The list must stay where
 * it is. rate: c's learning rate is from the table; NULL: it is not. */
int tc_plan_checks(struct tc_plan_check *list, const struct tc_plan_job *j, const struct tc_config *c,
                   const struct tc_plan *p, const struct tc_plan_rate *rate);

/* paths.c. Local. Files and folders that were given relative to the current folder become absolute paths, whose strings
 * belong to the configuration. TC_EUSER: the name of the current folder cannot stand in a run file. */
int tc_plan_absolute(struct tc_config *c, struct tc_err *err);

/* emit.c. Local. The CPUs of each task of the job; 0: those of the batch script's template. */
int tc_plan_task_cpus(const struct tc_plan_job *j);
enum { TC_PLAN_GPU_CPUS = 4 };                   /* that a rank of a GPU needs at least (slurm/train.sbatch) */

/* emit.c. Local. Writes the layout as run.ini, device.ini and job.sbatch into j->into, and prints what to check. */
int tc_plan_emit(const struct tc_plan_job *j, const struct tc_config *layout,
                 const struct tc_plan *p,
                 struct tc_err *err);

/* calibrate.c. Local; starts child processes. Times this machine's ops and links with
 * short trainings of the configuration's model, and writes a device file. */
int tc_plan_calibrate(const struct tc_plan_job *j, const char *path, struct tc_err *err);

/* table.c. Local. The result of a search. Flags, in addition to the job's, and JSON are
 * owned by the caller. */
char *tc_plan_flags(const struct tc_plan_job *j, const struct tc_config *c);
/* TC_ELAYOUT; the error explains why no row was found. */
int tc_plan_nothing(const struct tc_plan_job *j, const struct tc_plan_found *found,
                    struct tc_err *err);
void tc_plan_table_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan_found *found);
json_t *tc_plan_table_json(const struct tc_plan_job *j, const struct tc_plan_found *found);

#endif
