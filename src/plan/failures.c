/* failures.c - the cost of checkpoints and failures, and the duration of a run including them.
 *
 * The interval is Daly's (J. T. Daly, "A higher order estimate of the optimum checkpoint interval
 * for restart dumps", FGCS 22, 2006), which is Young's sqrt(2 d M) - d if a checkpoint's time d is small
 * compared with the mean time between failures M of all nodes together. A fraction d / (T + d) of the time
 * is then spent on checkpoints; each failure costs half an interval and the restart.
 *
 * Jobs also end by other failures than those of nodes, so a run fails at least as often as ckpt.mtbf_hours says. */
#include "src/plan/plan.h"

#include <math.h>

double tc_daly_s(double cost_s, double mtbf_s)
{
  if (cost_s <= 0) return 0;
  if (cost_s >= 2 * mtbf_s) return mtbf_s;       /* 0: never fails, so only one checkpoint at the end */
  double x = cost_s / (2 * mtbf_s);
  return sqrt(2 * cost_s * mtbf_s) * (1 + sqrt(x) / 3 + x / 9) - cost_s;
}

void tc_plan_run(struct tc_plan_run *out, const struct tc_plan *p, const struct tc_config *c,
                 const struct tc_cluster *k, double tokens, double walltime_s, double restart_s)
{
  struct tc_plan_run r = { .ckpt_bytes = p->saved_bytes };
  int nodes = (p->world + k->devices - 1) / TC_MAX(k->devices, 1);
  r.ckpt_s = r.ckpt_bytes / k->disk_bytes_per_s;
  r.mtbf_s = k->mtbf_s > 0 ? TC_MIN(k->mtbf_s / nodes, c->ckpt_mtbf_hours * 3600) : 0;
  r.interval_s = tc_daly_s(r.ckpt_s, r.mtbf_s);
  if (r.interval_s > 0) {
    double write = r.ckpt_s / (r.interval_s + r.ckpt_s);
    double fail = ((r.interval_s + r.ckpt_s) / 2 + restart_s) / r.mtbf_s;
    r.lost = TC_MIN(1 - (1 - write) * (1 - TC_MIN(fail, 1)), 1);
  }
  r.steps = tokens > 0 ? ceil(tokens / (double)p->tokens) : (double)c->train_steps;
  double work_s = r.steps * p->time.step_s;
  double all_s = r.lost < 1 ? work_s / (1 - r.lost) : INFINITY;
  if (walltime_s > 0) {    /* each job saves at its end and loads at its start */
    double useful = walltime_s - 2 * r.ckpt_s - restart_s;
    double jobs = useful > 0 ? TC_MAX(ceil(all_s / useful), 1) : INFINITY;
    r.requeues = isfinite(jobs) && jobs < 1e9 ? (int)jobs - 1 : -1;
    if (r.requeues > 0) all_s += r.requeues * (2 * r.ckpt_s + restart_s);
  }
  r.hours = all_s / 3600;
  r.node_hours = r.hours * nodes;
  *out = r;
}
