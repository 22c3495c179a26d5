/* plan.h - shared by the files of `tercio plan`.
 *
 * Files in reading order: cmd_plan.c (the command), plan_flags.c (flags into a job), plan_print.c and plan_table.c (one
 * layout, many), plan_kinds.c (kinds of nodes), plan_for.c (of eval or sample), plan_like.c (measured runs), plan_start.c (control traffic), plan_head.c (what
 * both begin and end with). */
#ifndef TC_CMD_PLAN_H
#define TC_CMD_PLAN_H

#include "src/cmd/out.h"
#include "src/emit/emit.h"

#define TC_PLAN_JSON (JSON_INDENT(1) | JSON_REAL_PRECISION(9))

/* plan_flags.c. Local; runs scontrol for --from-slurm. The command line into *j, which has its defaults and must be
 * freed by tc_plan_job_done even after an error; *instead: what was asked for instead of a plan. TC_EUSER:
 * a flag is malformed or has no effect beside the others. */
struct tc_plan_instead { const char *calibrate, *like, *device; bool tables; };
int tc_plan_job_new(struct tc_plan_job *j, int argc, char **argv, struct tc_plan_instead *instead, struct tc_err *err);
void tc_plan_job_done(struct tc_plan_job *j);

/* plan_head.c. Local. What the plan is of, and where each of it came from; as text and as JSON (owned by the caller). */
void tc_plan_head_print(FILE *f, const struct tc_plan_job *j);
json_t *tc_plan_head_json(const struct tc_plan_job *j);
/* Slurm's data of a partition, as JSON. */
json_t *tc_slurm_json(const struct tc_slurm_part *s);
/* What a run of the layout costs: checkpoints, steps, hours. */
void tc_plan_run_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p);
/* The same of several layouts, a row for each. */
void tc_plan_runs_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan_row *row, int n);
/* Advice where a layout leaves less than a tenth of the device's memory. */
void tc_plan_headroom_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p);

/* plan_print.c. Local. One layout as text, and as JSON (owned by the caller). */
void tc_plan_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p);
/* What --calibrate has measured, for the device file `path`. */
struct tc_calibrated;
void tc_plan_print_calibrated(FILE *f, const char *path, const struct tc_calibrated *x);
json_t *tc_plan_json(const struct tc_plan_job *j, const struct tc_plan *p);

/* plan_kinds.c. Local; runs scontrol. The best layouts of the partition's other kinds of nodes beside the one that was found, by
 * the same arguments: printed or, with j->json, returned (owned by the caller). NULL: printed, or there is one kind alone. */
json_t *tc_plan_kinds(const struct tc_plan_job *j, const struct tc_plan_found *found, int argc, char *const *argv);

/* plan_for.c. Local. Prints what j->use takes, other than training. TC_ELAYOUT: it exceeds the memory of a device. */
int tc_plan_use(const struct tc_plan_job *j, struct tc_err *err);
extern const char *const tc_plan_uses[];         /* by enum tc_use: "train", "eval", "sample" */

/* plan_like.c. Local. Prints measured runs, of tables and folders, beside the plan (--like). TC_EUSER; TC_ELAYOUT: a row cannot be
 * planned. */
int tc_plan_like(const char *paths, const char *device, bool json, struct tc_err *err);

/* plan_start.c. Local. Simulates control traffic (--simulate-start) and prints it. TC_EUSER: --ranks is not valid. */
int tc_plan_simulate_start(const struct tc_plan_job *j, struct tc_err *err);

/* plan_table.c. Local. TC_ELAYOUT; the error explains why no row was found. */
int tc_plan_nothing(const struct tc_plan_job *j, const struct tc_plan_found *found,
                    struct tc_err *err);
/* The result of a search, as text and as JSON (owned by the caller). */
void tc_plan_table_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan_found *found);
json_t *tc_plan_table_json(const struct tc_plan_job *j, const struct tc_plan_found *found);

#endif
