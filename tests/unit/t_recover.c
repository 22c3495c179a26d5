/* t_recover - the interval between checkpoints, medians and spikes, what the loop remembers. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "src/train.h"
#include "tests/unit/tap.h"

/* The wall clock, which somebody sets, in place of the C library's. */
static int64_t wall_s;

int clock_gettime(clockid_t id, struct timespec *ts)
{
  int rc = (int)syscall(SYS_clock_gettime, id, ts);
  if (id == CLOCK_REALTIME) ts->tv_sec += wall_s;
  return rc;
}

/* The time a run of work W loses at interval tau (Daly's model, exponential failures, restart
 * cost 0), up to a factor that doesn't depend on tau: found by looking, not by the formula. */
static double loss(double tau, double cost, double mtbf)
{
  return (exp((tau + cost) / mtbf) - 1) / tau;
}

static void test_daly(void)
{
  static const struct { double cost, mtbf; } rows[] = {
    { 1, 86400 }, { 10, 86400 }, { 60, 86400 }, { 60, 3600 }, { 300, 3600 }, { 0.03, 0.36 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    double d = rows[i].cost, m = rows[i].mtbf, best = 0, least = INFINITY;
    for (double t = d / 10; t < 20 * sqrt(d * m); t *= 1.0005)
      if (loss(t, d, m) < least) least = loss(t, d, m), best = t;
    near_f(tc_daly_s(d, m), best, 0.01, "cost %g s, MTBF %g s: %g s", d, m, best);
  }
  near_f(tc_daly_s(1, 0.4), 0.4, 1e-9, "a checkpoint that costs more than the MTBF: the MTBF");
  ok(tc_daly_s(0, 100) == 0, "no cost: always");
}

static bool step(struct tc_train *t, double loss)
{
  struct tc_step_report s = { .loss = loss, .grad_norm = 1 };
  return tc_recover_bad(t, &s);
}

static void test_spike(void)
{
  struct tc_config c = { .train_spike = 3 };
  struct tc_train t = { .cfg = &c }, u = { .cfg = &c };
  struct tc_err err = { 0 };
  bool early = false;
  for (int i = 0; i < 8; i++) early |= step(&t, i == 3 ? 100 : 1 + i / 16.0);
  ok(!early, "no spike while fewer than 8 losses are known");
  ok(!step(&t, 3.5), "three times the median, not more, is none");
  ok(step(&t, 4.5), "more is one");
  is_int(t.recover.n_losses, 9, "a spike is not counted in");
  ok(step(&t, NAN) && step(&t, INFINITY), "what is no number is bad");
  for (int i = 0; i < 40; i++) step(&t, 0.1 + i / 3.0 / 64);
  is_int(t.recover.n_losses, TC_RECOVER_LOSSES, "as many losses as are kept");
  t.recover.skipped = 12;
  t.recover.rollbacks = 2;
  char *text = tc_recover_text(&t);
  is_int(tc_recover_parse(&u, text, &err), 0, "read back");
  bool same = u.recover.skipped == 12 && u.recover.rollbacks == 2 &&
              u.recover.n_losses == t.recover.n_losses;
  for (int i = 0; same && i < t.recover.n_losses; i++) same = u.recover.loss[i] == t.recover.loss[i];
  ok(same, "what the loop remembers comes back to the last bit");
  free(text);
  is_int(tc_recover_parse(&u, "", &err), 0, "nothing to remember");
  ok(u.recover.skipped == 0 && u.recover.n_losses == 0, "... forgets what was");
  ok(tc_recover_parse(&u, "skipped -1 rollbacks 0 losses", &err) == TC_EUSER, "nonsense is refused");
  ok(tc_recover_parse(&u, "skipped 1", &err) == TC_EUSER, "half of it too");
}

static void test_due(void)
{
  struct tc_config c = { .ckpt_every = 4 };
  struct tc_train t = { .cfg = &c, .last_ckpt_ns = tc_now_ns(), .start_step = 10 };
  ok(tc_recover_due(&t, 12) && !tc_recover_due(&t, 13), "every 4 steps");
  c.ckpt_every = 0;
  ok(!tc_recover_due(&t, 12), "never");
  c.ckpt_every_minutes = 1;
  ok(!tc_recover_due(&t, 12), "not yet a minute");
  t.last_ckpt_ns -= INT64_C(61000000000);
  ok(tc_recover_due(&t, 12), "a minute");
  t.last_ckpt_ns = tc_now_ns();
  c.ckpt_every_minutes = -1;
  ok(!tc_recover_due(&t, 11) && tc_recover_due(&t, 12), "auto: the first after two steps");
  t.recover.begun = true;
  ok(!tc_recover_due(&t, 13), "auto: none more until its cost is known");
  t.recover.every_s = 30;
  ok(!tc_recover_due(&t, 13), "auto: not before the interval");
  t.last_ckpt_ns -= INT64_C(31000000000);
  ok(tc_recover_due(&t, 13), "auto: after it");
}

static int64_t now_s(void)
{
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  return ts.tv_sec;
}

/* In a job that ends in so many seconds and began so many ago (0: not known). */
static struct tc_train in_job(const struct tc_config *c, int64_t end_s, int64_t began_s)
{
  char text[32];
  struct tc_train t = { .cfg = c };
  snprintf(text, sizeof text, "%lld", (long long)(now_s() + end_s));
  setenv("SLURM_JOB_END_TIME", text, 1);
  snprintf(text, sizeof text, "%lld", (long long)(now_s() - began_s));
  if (began_s) setenv("SLURM_JOB_START_TIME", text, 1);
  else unsetenv("SLURM_JOB_START_TIME");
  tc_walltime_begin(&t);
  return t;
}

static void test_walltime(void)
{
  const struct tc_config hour = { .run_walltime = 60 }, automatic = { .run_walltime = -1 };
  struct tc_train t = { .cfg = &hour };
  tc_walltime_begin(&t);
  is_int(tc_walltime_near(&t), TC_WALLTIME_FAR, "run.walltime = an hour: far");
  wall_s = 86400;
  is_int(tc_walltime_near(&t), TC_WALLTIME_FAR, "... also when the clock is set a day ahead");
  wall_s = -86400;
  is_int(tc_walltime_near(&t), TC_WALLTIME_FAR, "... and a day back");
  t.recover.end_ns -= INT64_C(3600000000000);
  is_int(tc_walltime_near(&t), TC_WALLTIME_NEAR, "an hour later: near");
  wall_s = 0;
  t = in_job(&automatic, 3600, 60);
  near_f(t.recover.limit_s, 3600, 1e-3, "a job of an hour");
  is_int(tc_walltime_near(&t), TC_WALLTIME_FAR, "... far");
  wall_s = 86400;
  is_int(tc_walltime_near(&t), TC_WALLTIME_FAR, "... also when the clock is set a day ahead");
  wall_s = 0;
  t = in_job(&automatic, 2, 60);
  is_int(tc_walltime_near(&t), TC_WALLTIME_NEAR, "a job's last seconds: near");
  t = in_job(&automatic, -100, 3600);
  is_int(tc_walltime_near(&t), TC_WALLTIME_FAR, "a job's end in the past is none");
  static const char *const odd[] = { "nan", "inf", "-5", "0", "soon", "12x", "", "1e400" };
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    t = (struct tc_train){ .cfg = &automatic };
    setenv("SLURM_JOB_END_TIME", odd[i], 1);
    tc_walltime_begin(&t);
    is_int(tc_walltime_near(&t), TC_WALLTIME_FAR, "SLURM_JOB_END_TIME = '%s' is none", odd[i]);
  }
}

int main(void)
{
  test_daly();
  test_walltime();
  test_spike();
  test_due();
  return done_testing();
}
