/* timings.h - the times of a program's actions, from traces of its runs, and the prices of ops that they give. */
#ifndef TC_CALIBRATE_TIMINGS_H
#define TC_CALIBRATE_TIMINGS_H

#include "src/plan/plan.h"

/* One timing of an action. */
struct tc_timing { struct tc_op_sample s; int32_t run, rank, node; };

/* Those of all runs; to be freed by tc_timings_done. */
struct tc_timings {
  struct tc_timing *t; int n, cap;
  double *issue; int n_issues, cap_issues;       /* seconds, of transfers */
  uint32_t fuses;                                /* bits 1 << enum tc_fusion_id: groups that ran as one call */
};
void tc_timings_done(struct tc_timings *x);

/* Local. Adds the trace at `path`, of run number `run` with configuration c, whose calls were not fused: steps 2 to
 * steps - 1. *step_s: the median of rank 0's steps. TC_EUSER: it does not match the program. */
int tc_timings_take(struct tc_timings *x, const char *path, const struct tc_config *c, int run, int steps,
                    double *step_s, struct tc_err *err);
/* Local. Adds the groups that the trace of a run with fused calls shows. */
int tc_timings_take_fused(struct tc_timings *x, const char *path, struct tc_err *err);
/* Local. The median step time of a metrics.jsonl, from step `first` to `last`, seconds; 0: none of them is in it. */
double tc_metrics_step_s(const char *path, int first, int last);
/* Local. The samples of d: for each shape the median of each node, averaged over the nodes. Raises d's rates of
 * products and of memory to what was reached. */
void tc_timings_reduce(struct tc_timings *x, struct tc_plan_device *d);

#endif
