/* time_limit.c - ends a run in time: run.walltime, or the end of the Slurm job. */
#include "src/train/impl.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

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
