/* when.c - why a run ends early; when it saves: every so many steps or minutes, or by Daly's
 * interval for what checkpoints have cost so far; and when it must stop to end in time: run.walltime, or the end of the
 * Slurm job. */
#include "src/plan/plan.h"
#include "src/train/parts.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

/* ---- an early end ---- */

void tc_stop_if_say(const struct tc_train *t, int64_t step)
{
  const struct tc_stop_if *s = &t->stop_if;
  if (t->run.rank) return;
  if (s->best < s->below)
    tc_log("train.stop_if: the validation loss of step %lld, %.6g, is below %g: the run ends after step %lld",
           (long long)s->best_step, s->best, s->below, (long long)step);
  else
    tc_log("train.stop_if: the last %lld validations have not improved on the loss of step %lld, %.6g: the run ends after step "
           "%lld", (long long)s->stale, (long long)s->best_step, s->best, (long long)step);
}

/* ---- when to save ---- */

enum { FIRST_STEPS = 2 };        /* auto: after so many steps the first save, which measures the cost */

/* ckpt.every_minutes of this run: minutes, 0 (never) or TC_AUTO. By default a job, and a run of several processes, do
 * not lose all their steps when a rank fails, nor those of a stage or a pass over the data; one process, which is mostly a short
 * trial, does not write more than its end. */
static double every_minutes(const struct tc_train *t)
{
  const struct tc_config *c = t->run.cfg;
  if (c->ckpt_every_minutes != TC_DEFAULT) return c->ckpt_every_minutes;
  return c->ckpt_every <= 0 && (t->run.mpi || *t->run.ranks->job) ? TC_AUTO : 0;
}

void tc_interval_say(const struct tc_train *t)
{
  const struct tc_config *c = t->run.cfg;
  const double minutes = every_minutes(t);
  char when[200] = "";
  if (c->ckpt_every == TC_EPOCH) tc_text_add(when, sizeof when, "after each pass over a source of the data, ");
  if (c->ckpt_every == TC_STAGE) tc_text_add(when, sizeof when, "after each stage, ");
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

/* ---- when to stop ---- */

static double real_s(void)
{
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static bool epoch_s(const char *text, double *s)
{
  char *end;
  *s = strtod(text, &end);
  return end != text && !*end && isfinite(*s) && *s > 0;
}

/* Seconds to the end of the Slurm job; 0: no limit. An end that has passed belongs to another job,
 * or Slurm lets this one go on; saving at once would only have it requeued after each step. */
static double job_left_s(const struct tc_train *t, const char *end, double now)
{
  double end_s;
  if (epoch_s(end, &end_s) && end_s > now) return end_s - now;
  if (t->run.rank == 0)
    tc_warn("SLURM_JOB_END_TIME = %.40s is %s: no time limit is kept; run.walltime sets one", end,
            epoch_s(end, &end_s) ? "in the past" : "no time");
  return 0;
}

/* The wall clock is read here alone: it may be set during the run.
 *
 * Ranks that crashed late in a job are started again with little of its time left; a requeue has
 * all of it again. So a limit is too short only where this process had more than half of it. */
void tc_time_limit_begin(struct tc_train *t)
{
  const char *slurm = tc_env("SLURM_JOB_END_TIME");
  double minutes = t->run.cfg->run_walltime, now = real_s(), began;
  struct tc_time_limit *r = &t->limit;
  if (minutes > 0) r->limit_s = minutes * 60;
  else if (minutes == TC_AUTO && *slurm) r->limit_s = job_left_s(t, slurm, now);
  r->limit_s = TC_MIN(r->limit_s, 1e9);
  if (r->limit_s > 0) r->end_ns = tc_now_ns() + (int64_t)(r->limit_s * 1e9);
  r->late = minutes == TC_AUTO && (!epoch_s(tc_env("SLURM_JOB_START_TIME"), &began) ||
                            now - began > r->limit_s);
}

void tc_time_limit_first_step(struct tc_train *t) { t->limit.boundary_ns = tc_now_ns(); }

enum { FACTOR = 2, MARGIN_S = 2, FEW_STEPS = 3 };

/* What a checkpoint takes. Without a measured cost a slow disk is assumed. */
static double save_time_s(const struct tc_train *t)
{
  return t->interval.cost_s > 0 ? t->interval.cost_s : 1 + (double)t->ckpt.bytes / 100e6;
}

int64_t tc_time_limit_last_save(const struct tc_train *t)
{
  if (!t->limit.end_ns) return 0;
  return t->limit.end_ns - (int64_t)(save_time_s(t) * 1e9);
}

int tc_time_limit_near(struct tc_train *t)
{
  struct tc_time_limit *r = &t->limit;
  int64_t now = tc_now_ns();
  double step_s = r->boundary_ns ? (double)(now - r->boundary_ns) * 1e-9 : 0;
  r->boundary_ns = now;
  r->longest_s = TC_MAX(step_s, 0.9 * r->longest_s);   /* evaluations included */
  r->steps++;
  if (!r->end_ns) return TC_TIME_LIMIT_FAR;
  const double save_s = save_time_s(t);
  double left_s = (double)(r->end_ns - now) * 1e-9;
  double need_s = FACTOR * (r->longest_s + save_s) + MARGIN_S;
  if (left_s > need_s) return TC_TIME_LIMIT_FAR;
  tc_log("%.0f s are left before the time limit, %.3g s after this start, and %.1f s are set apart "
         "for a step (%.3g s) and a checkpoint (%.3g s): saving and stopping", TC_MAX(left_s, 0),
         r->limit_s, need_s, r->longest_s, save_s);
  return r->steps < FEW_STEPS && !r->late ? TC_TIME_LIMIT_SHORT : TC_TIME_LIMIT_NEAR;
}
