/* plan.h - shared by the files of `tercio plan`. */
#ifndef TC_CMD_PLAN_H
#define TC_CMD_PLAN_H

#include "src/config/config.h"
#include "src/plan/plan.h"

#include <jansson.h>

/* Slurm's data of a partition: the usable nodes of the most common kind. */
struct tc_slurm_part {
  char name[64];
  int nodes, gpus, sockets, cpus;                /* gpus .. cpus: of a node */
  int left_out, other_kinds;                     /* nodes that are down or drained; of other kinds */
  int old_gpus;                                  /* nodes whose GPUs Tercio does not support */
  bool mixed;                                    /* the partition has other GPUs, too, which must not be allocated */
  char gpu[64];                                  /* their type in Gres; "" if it has none */
  double memory_bytes, walltime_s;               /* of a node; 0: no time limit */
  int switches, switch_nodes;                    /* their leaf switches; nodes of the median switch */
};

struct tc_plan_job {
  struct tc_config *cfg;         /* owned */
  struct tc_cluster cluster;     /* owned */
  int world;
  bool json, search;
  unsigned hold;                 /* bits of enum tc_plan_key: fixed by flags */
  int top;
  double tokens, walltime_s, restart_s;
  const char *emit, *into, *template, *partition;  /* borrowed from cfg */
  bool from_slurm;
  struct tc_slurm_part slurm;
};

/* print.c. Local. One layout as text, and as JSON (owned by the caller). */
void tc_plan_print(FILE *f, const struct tc_plan_job *j, const struct tc_plan *p);
json_t *tc_plan_json(const struct tc_plan_job *j, const struct tc_plan *p);

/* slurm.c. Local; runs scontrol. partition NULL: the default one. TC_EUSER: no Slurm, no
 * such partition (the nearest is named), no node in it that can be used. */
int tc_slurm_read(struct tc_slurm_part *out, const char *partition, struct tc_err *err);
void tc_slurm_print(FILE *f, const struct tc_slurm_part *s);

/* emit.c. Local. Writes the layout as run.ini and job.sbatch into j->into. */
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
