/* interval.c - when to save: every so many steps or minutes, or by Daly's interval for what
 * checkpoints have cost so far. */
#include "src/train/impl.h"
#include "src/plan/plan.h"

#include <math.h>

enum { FIRST_STEPS = 2 };        /* auto: after so many steps the first save, which measures the cost */

/* ckpt.every_minutes of this run: minutes, 0 (never) or TC_AUTO. By default a job, and a run of several processes, do
 * not lose all their steps when a rank fails; one process, which is mostly a short trial, does not write more than its
 * end. */
static double every_minutes(const struct tc_train *t)
{
  const struct tc_config *c = t->run.cfg;
  if (c->ckpt_every_minutes != TC_DEFAULT) return c->ckpt_every_minutes;
  return c->ckpt_every == 0 && (t->run.mpi || *t->run.ranks->job) ? TC_AUTO : 0;
}

void tc_interval_say(const struct tc_train *t)
{
  const struct tc_config *c = t->run.cfg;
  const double minutes = every_minutes(t);
  char when[200] = "";
  if (c->ckpt_every > 0) tc_text_add(when, sizeof when, "every %lld steps, ", (long long)c->ckpt_every);
  if (minutes > 0) tc_text_add(when, sizeof when, "every %g minutes, ", minutes);
  if (minutes == TC_AUTO)
    tc_text_add(when, sizeof when, "after %d steps, then at intervals from their cost and ckpt.mtbf_hours = %g, ",
                FIRST_STEPS, c->ckpt_mtbf_hours);
  if (*when) tc_log("checkpoints: %sand at the end", when);
  else
    tc_log("checkpoints: only at the end and on request (tercio save); ckpt.every or ckpt.every_minutes sets an "
           "interval");
}

void tc_interval_cost(struct tc_train *t, int64_t write_ns)
{
  struct tc_interval *r = &t->interval;
  double s = (double)(write_ns + t->end.copy_ns) * 1e-9;
  r->cost_s = r->cost_s > 0 ? (r->cost_s + s) / 2 : s;
  if (every_minutes(t) != TC_AUTO) return;
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
  const double minutes = every_minutes(t);
  double since_s = (double)(tc_now_ns() - t->ckpt.begun_ns) * 1e-9;
  if (c->ckpt_every > 0 && step % c->ckpt_every == 0) return true;
  if (minutes != TC_AUTO) return minutes > 0 && since_s > minutes * 60;
  if (t->interval.every_s > 0) return since_s > t->interval.every_s;
  /* If the first failed, another after a minute. */
  return t->ckpt.begun ? since_s > 60 : step >= t->ckpt.start_step + FIRST_STEPS;
}
