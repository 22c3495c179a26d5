/* rollback.c - what keeps a run going by itself, or ends it in time: going back from a loss
 * that is not a number, how often to save, the time limit, the guard against crash loops.
 *
 * Going back leaves samples out. From a bad step B the run returns to the checkpoint of step S;
 * with the same samples it would only come to B again. So from then on step s takes the samples of
 * step s + skipped, where skipped grew by B - S: those of S+1 ... B are seen no more, and
 * everything else (rates, dropout, steps) goes by the step as before. Nothing of this is chance:
 * skipped, the number of returns and the losses that the median is taken of lie in the checkpoint,
 * so that a run that is killed and resumed decides as one that was not, where both have the same
 * checkpoints (a stop makes one more; by time, or left out as busy, there may be others).
 *
 * All ranks see the same losses and so take the same way without asking. */
#include "src/plan/plan.h"
#include "src/train/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LEAST_LOSSES = 8 };            /* that a median is taken of */

/* ---- what the loop remembers --------------------------------------------------------- */

char *tc_rollback_text(const struct tc_train *t)
{
  const struct tc_recover *r = &t->recover;
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  TC_ASSERT(f);
  if (r->skipped || r->rollbacks || r->n_losses)
    fprintf(f, "skipped %lld rollbacks %lld losses", (long long)r->skipped,
            (long long)r->rollbacks);
  for (int i = 0; i < r->n_losses; i++) fprintf(f, " %.17g", r->loss[i]);
  if (fclose(f) != 0) TC_ASSERT(!"out of memory for the loop's text");
  return text;
}

int tc_rollback_parse(struct tc_train *t, const char *text, struct tc_err *err)
{
  struct tc_recover *r = &t->recover;
  long long skipped = 0, rollbacks = 0;
  int at = 0;
  r->n_losses = 0;
  if (*text && (sscanf(text, "skipped %lld rollbacks %lld losses%n", &skipped, &rollbacks, &at) != 2 ||
                !at || skipped < 0 || rollbacks < 0))
    return tc_fail(err, TC_EUSER, "the checkpoint's note on the training loop makes no sense: "
                   "\"%.100s\"", text);
  r->skipped = skipped;
  r->rollbacks = rollbacks;
  for (const char *s = text + at; *s && r->n_losses < TC_ROLLBACK_LOSSES;) {
    char *end;
    double x = strtod(s, &end);
    if (end == s) break;
    r->loss[r->n_losses++] = x;
    s = end;
  }
  return 0;
}

/* Of the losses kept. */
static double median(const struct tc_recover *r)
{
  double by[TC_ROLLBACK_LOSSES];
  memcpy(by, r->loss, (size_t)r->n_losses * sizeof *by);
  return tc_median(by, r->n_losses);
}

bool tc_rollback_bad(struct tc_train *t, const struct tc_step_report *s)
{
  struct tc_recover *r = &t->recover;
  if (!isfinite(s->loss) || !isfinite(s->grad_norm)) return true;
  if (t->run.cfg->train_spike <= 0) return false;
  if (r->n_losses >= LEAST_LOSSES &&
      s->loss > t->run.cfg->train_spike * median(r)) return true;
  if (r->n_losses == TC_ROLLBACK_LOSSES)
    memmove(r->loss, r->loss + 1, (size_t)--r->n_losses * sizeof *r->loss);
  r->loss[r->n_losses++] = s->loss;
  return false;
}

/* ---- going back ------------------------------------------------------------------------ */

int tc_rollback_go(struct tc_train *t, const struct tc_step_report *s, int64_t *step,
                        struct tc_err *err)
{
  const int64_t bad = s->step, most = t->run.cfg->train_rollback;
  struct tc_recover *r = &t->recover;
  if (r->rollbacks >= most)
    return tc_fail(err, TC_EDIVERGED, "step %lld: loss %g, gradient norm %g: training diverged%s. "
                   "Try a lower train.lr, a longer train.warmup, %s", (long long)bad, s->loss,
                   s->grad_norm, most ? ", and train.rollback is used up" : "",
                   most ? "or train.clip" : "train.clip, or train.rollback");
  /* Bad at once: then it may be the checkpoint that is, or its samples; take one before it. */
  int64_t before = r->back_to >= 0 && bad == r->back_to + 1 ? r->back_to : bad;
  int64_t rollbacks = r->rollbacks, skipped = r->skipped;
  if (t->run.rank == 0)
    tc_warn("step %lld: loss %g, gradient norm %g: going back, %lld of %lld times", (long long)bad,
            s->loss, s->grad_norm, (long long)rollbacks + 1, (long long)most);
  TC_TRY(tc_train_go_back(t, before, step, err));
  r->rollbacks = rollbacks + 1;
  r->skipped = skipped + bad - *step;
  r->back_to = *step;
  if (t->run.rank == 0)
    tc_log("went back to step %lld: the samples of steps %lld to %lld are left out",
           (long long)*step, (long long)(*step + skipped + 1), (long long)(bad + skipped));
  tc_metrics_back(t, *step);
  return 0;
}

/* ---- a fault to order (run.fault) ------------------------------------------------------ */

void tc_fault_fire(struct tc_train *t, struct tc_step_report *s)
{
  int kind = t->fault.kind;
  if ((kind != TC_FAULT_NAN && kind != TC_FAULT_SPIKE) || s->step != t->fault.step) return;
  t->fault.kind = TC_FAULT_NONE;               /* once */
  if (kind == TC_FAULT_SPIKE) {
    s->loss *= 1000;
    return;
  }
  tc_train_poison(t);
  s->loss = NAN;
}

/* ---- how often to save ----------------------------------------------------------------- */

void tc_interval_cost(struct tc_train *t, int64_t write_ns)
{
  struct tc_recover *r = &t->recover;
  double s = (double)(write_ns + t->copy_ns) * 1e-9;
  r->cost_s = r->cost_s > 0 ? (r->cost_s + s) / 2 : s;
  if (t->run.cfg->ckpt_every_minutes >= 0) return;
  double every = tc_daly_s(r->cost_s, t->run.cfg->ckpt_mtbf_hours * 3600);
  if (t->run.rank == 0 && fabs(every - r->said_s) > 0.1 * r->said_s) {
    tc_log("ckpt.every_minutes = auto: %.3g minutes between checkpoints (one costs %.3g s, "
           "ckpt.mtbf_hours = %g)", every / 60, r->cost_s, t->run.cfg->ckpt_mtbf_hours);
    r->said_s = every;
  }
  r->every_s = every;
}

bool tc_interval_due(const struct tc_train *t, int64_t step)
{
  const struct tc_config *c = t->run.cfg;
  double since_s = (double)(tc_now_ns() - t->last_ckpt_ns) * 1e-9;
  if (c->ckpt_every > 0 && step % c->ckpt_every == 0) return true;
  if (c->ckpt_every_minutes > 0) return since_s > c->ckpt_every_minutes * 60;
  if (c->ckpt_every_minutes == 0) return false;
  if (t->recover.every_s > 0) return since_s > t->recover.every_s;
  /* auto: the first soon, to see what one costs; if it failed, another after a minute. */
  return t->recover.begun ? since_s > 60 : step >= t->start_step + 2;
}

/* ---- the time limit -------------------------------------------------------------------- */

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

/* The wall clock is asked here alone: it may be set while the run goes on.
 *
 * Ranks that crashed late in a job are started again with little of its time; a requeue has all
 * of it again. So a limit is too short only where this process had more than half. */
void tc_time_limit_begin(struct tc_train *t)
{
  const char *slurm = tc_env("SLURM_JOB_END_TIME");
  double minutes = t->run.cfg->run_walltime, now = real_s(), began;
  struct tc_recover *r = &t->recover;
  if (minutes > 0) r->limit_s = minutes * 60;
  else if (minutes < 0 && *slurm) r->limit_s = job_left_s(t, slurm, now);
  r->limit_s = TC_MIN(r->limit_s, 1e9);
  if (r->limit_s > 0) r->end_ns = tc_now_ns() + (int64_t)(r->limit_s * 1e9);
  r->late = minutes < 0 && (!epoch_s(tc_env("SLURM_JOB_START_TIME"), &began) ||
                            now - began > r->limit_s);
}

int tc_time_limit_near(struct tc_train *t)
{
  enum { FACTOR = 2, MARGIN_S = 2, FEW_STEPS = 3 };
  struct tc_recover *r = &t->recover;
  int64_t now = tc_now_ns();
  double step_s = r->boundary_ns ? (double)(now - r->boundary_ns) * 1e-9 : 0;
  r->boundary_ns = now;
  r->slow_s = TC_MAX(step_s, 0.9 * r->slow_s);     /* the slowest of late, evaluations and all */
  r->steps++;
  if (!r->end_ns) return TC_TIME_LIMIT_FAR;
  /* Nothing was measured yet: a slow disk is assumed. */
  double save_s = r->cost_s > 0 ? r->cost_s : 1 + (double)t->ckpt_bytes / 100e6;
  double left_s = (double)(r->end_ns - now) * 1e-9;
  double need_s = FACTOR * (r->slow_s + save_s) + MARGIN_S;
  if (left_s > need_s) return TC_TIME_LIMIT_FAR;
  tc_log("%.0f s are left before the time limit, %.3g s after this start, and %.1f s are set apart "
         "for a step (%.3g s) and a checkpoint (%.3g s): saving and stopping", TC_MAX(left_s, 0),
         r->limit_s, need_s, r->slow_s, save_s);
  return r->steps < FEW_STEPS && !r->late ? TC_TIME_LIMIT_SHORT : TC_TIME_LIMIT_NEAR;
}

/* ---- crash loops ----------------------------------------------------------------------- */

int tc_train_guard(struct tc_train *t, int64_t newest_step, struct tc_err *err)
{
  if (!*t->run.ranks->job) return 0;                 /* by hand: nobody starts it again by itself */
  char *path = tc_sprintf("%s/.starts", t->ckpt_dir), *tmp = tc_sprintf("%s.tmp", path);
  char job[64] = "";
  long long last = -2, starts = 0;
  FILE *f = fopen(path, "r");
  if (f) {
    if (fscanf(f, "%63s %lld %lld", job, &last, &starts) != 3) *job = 0;
    fclose(f);
  }
  bool again = !strcmp(job, t->run.ranks->job) && last == newest_step;
  starts = again ? starts + 1 : 0;
  int rc = 0;
  if (starts > t->run.cfg->ckpt_max_restarts_without_progress) {
    rc = tc_fail(err, TC_NOPROGRESS, "the last %lld starts from step %lld made no new checkpoint: "
                 "giving up. Look at what ended them, then remove %s to try again", starts,
                 (long long)TC_MAX(newest_step, 0), path);
  } else {
    f = fopen(tmp, "w");
    bool bad = !f || fprintf(f, "%s %lld %lld\n", t->run.ranks->job,
                              (long long)newest_step, starts) < 0;
    if (f && fclose(f)) bad = true;
    if (bad || rename(tmp, path))
      rc = tc_fail(err, TC_EUSER, "cannot write %s: is the checkpoint folder writable?", path);
  }
  free(path);
  free(tmp);
  return rc;
}

void tc_train_guard_clear(struct tc_train *t)
{
  char *path = tc_sprintf("%s/.starts", t->ckpt_dir);
  unlink(path);
  free(path);
}
