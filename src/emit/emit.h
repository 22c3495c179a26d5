/* emit.h - a job from a plan: the run file, the device file and the batch script of a layout.
 *
 * In: what is planned, on which cluster (struct tc_plan_job), a layout and its plan. Out: a folder that can be submitted,
 * and a list of what a person must check before. Files in reading order: choose.c (which layout), checks.c (what to
 * check), paths.c (names that hold in any folder), share.c (the script to fill in), emit.c. */
#ifndef TC_EMIT_H
#define TC_EMIT_H

#include "src/launch/slurm.h"
#include "src/plan/plan.h"

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
  const char *emit, *into, *template, *partition;  /* borrowed from argv */
  bool from_slurm, kinds, start; /* kinds: of nodes, of which none was chosen; start: --simulate-start */
  const char *ranks;             /* --ranks; borrowed from argv */
  double fence_s;
  int64_t record_bytes;
  struct tc_slurm_part slurm;
};

/* choose.c. Local. TC_ELAYOUT: the layout exceeds the memory of a device, or that of a node's host. */
int tc_emit_fits(const struct tc_plan_job *j, const struct tc_plan *p, struct tc_err *err);

/* Where the layout leaves less than a tenth of the device's memory to driver, libraries and kernels: the percentage
 * that it takes, and a --memory that leaves a tenth, into memory[size]; else, and with a --memory below the device's,
 * 0. */
int tc_emit_headroom(const struct tc_plan_job *j, const struct tc_plan *p, char *memory, size_t size);

/* Local. The row of a search that a job is written of: the first that fits with all programs of a run and all ranks, of
 * those that leave a tenth of a device's memory, else of all. full: the first row that was passed over because it leaves
 * less; -1: none was. TC_ELAYOUT: no row fits. */
struct tc_emit_choice { int row, full; struct tc_plan plan; };
int tc_emit_choose(struct tc_emit_choice *out, const struct tc_plan_job *j, const struct tc_plan_found *f,
                   struct tc_err *err);

/* checks.c. What a person must decide before an emitted job is submitted. */
struct tc_emit_check {
  bool job;                                      /* stands in job.sbatch, else in run.ini */
  const char *name;                              /* the option above which it stands: "train.lr", or sbatch's "mem" */
  char comment[248];                             /* "CHECK " and the text */
  const char *text;                              /* within comment */
};
enum { TC_EMIT_CHECKS = 32 };
/* Local. The list for the run file `c`, which job `j` plans with plan `p`; returns its length. The list must stay where
 * it is. rate: c's learning rate is from the table; NULL: it is not. */
int tc_emit_checks(struct tc_emit_check *list, const struct tc_plan_job *j, const struct tc_config *c,
                   const struct tc_plan *p, const struct tc_plan_rate *rate);
/* Local. The CPUs of each task of the job; 0: those of the batch script's template. */
int tc_emit_task_cpus(const struct tc_plan_job *j);
enum { TC_EMIT_GPU_CPUS = 4 };                   /* that a rank of a GPU needs at least (slurm/train.sbatch) */

/* paths.c. Local. Files and folders that were given relative to the current folder become absolute paths, whose strings
 * belong to the configuration. TC_EUSER: the name of the current folder cannot stand in a run file. */
int tc_emit_absolute(struct tc_config *c, struct tc_err *err);

/* emit.c. Local. Writes the layout as run.ini, device.ini and job.sbatch into j->into. *out: the folder's full name, to be
 * freed, and what to check, of which check[i].text is within *out. TC_EUSER: a file or the folder can't be made; then
 * nothing is left behind. */
struct tc_emitted { char *dir; struct tc_emit_check check[TC_EMIT_CHECKS]; int n_checks; };
int tc_emit(struct tc_emitted *out, const struct tc_plan_job *j, const struct tc_config *layout, const struct tc_plan *p,
            struct tc_err *err);

/* share.c. Local. The program's own path, "" if it is not known; owned by the caller. */
char *tc_share_program(void);
/* Local. The folder of train.sbatch, where an installed program also has its examples; NULL: not found.
 * Owned by the caller. */
char *tc_share_folder(void);

#endif
