/* interval.c - when to save: every so many steps or minutes, or by Daly's interval for what
 * checkpoints have cost so far. */
#include "src/train/impl.h"
#include "src/plan/plan.h"

#include <math.h>

void tc_interval_cost(struct tc_train *t, int64_t write_ns)
{
  struct tc_interval *r = &t->interval;
  double s = (double)(write_ns + t->end.copy_ns) * 1e-9;
  r->cost_s = r->cost_s > 0 ? (r->cost_s + s) / 2 : s;
  if (t->run.cfg->ckpt_every_minutes >= 0) return;
  double every = tc_daly_s(r->cost_s, t->run.cfg->ckpt_mtbf_hours * 3600);
  if (t->run.rank == 0 && fabs(every - r->logged_s) > 0.1 * r->logged_s) {
    tc_log("ckpt.every_minutes = auto: %.3g minutes between checkpoints (one costs %.3g s, "
           "ckpt.mtbf_hours = %g)", every / 60, r->cost_s, t->run.cfg->ckpt_mtbf_hours);
    r->logged_s = every;
  }
  r->every_s = every;
}

bool tc_interval_due(const struct tc_train *t, int64_t step)
{
  const struct tc_config *c = t->run.cfg;
  double since_s = (double)(tc_now_ns() - t->ckpt.begun_ns) * 1e-9;
  if (c->ckpt_every > 0 && step % c->ckpt_every == 0) return true;
  if (c->ckpt_every_minutes > 0) return since_s > c->ckpt_every_minutes * 60;
  if (c->ckpt_every_minutes == 0) return false;
  if (t->interval.every_s > 0) return since_s > t->interval.every_s;
  /* auto: the first soon, to measure its cost; if that failed, another after a minute. */
  return t->ckpt.begun ? since_s > 60 : step >= t->ckpt.start_step + 2;
}
