/* t_when.c - when a run saves, and when it stops: intervals between checkpoints and time limits. */
#include <fcntl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "src/plan/plan.h"
#include "src/train/parts.h"
#include "tests/unit/stderr_text.h"
#include "tests/unit/tap.h"

/* The wall clock, which may be set, in place of the C library's. */
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
  near_f(tc_daly_s(10, 3600), sqrt(2 * 10 * 3600.) * (1 + sqrt(10 / 7200.) / 3 + 10 / 7200. / 9) - 10, 1e-12,
         "Daly's interval");
}

static void test_due(void)
{
  struct tc_config c = { .ckpt_every = 4 };
  struct tc_train t = { .run.cfg = &c, .ckpt.begun_ns = tc_now_ns(), .ckpt.start_step = 10 };
  ok(tc_interval_due(&t, 12) && !tc_interval_due(&t, 13), "every 4 steps");
  c.ckpt_every = 0;
  ok(!tc_interval_due(&t, 12), "never");
  c.ckpt_every_minutes = 1;
  ok(!tc_interval_due(&t, 12), "not yet a minute");
  t.ckpt.begun_ns -= INT64_C(61000000000);
  ok(tc_interval_due(&t, 12), "a minute");
  t.ckpt.begun_ns = tc_now_ns();
  c.ckpt_every_minutes = TC_AUTO;
  ok(!tc_interval_due(&t, 11) && tc_interval_due(&t, 12), "auto: the first after two steps");
  t.ckpt.begun = true;
  ok(!tc_interval_due(&t, 13), "auto: none more until its cost is known");
  t.interval.every_s = 30;
  ok(!tc_interval_due(&t, 13), "auto: not before the interval");
  t.ckpt.begun_ns -= INT64_C(31000000000);
  ok(tc_interval_due(&t, 13), "auto: after it");
}

/* The default interval, and the line that reports it. Auto shows by a checkpoint after two steps. */
static void test_default(void)
{
  static const char at_end[] = "tercio: checkpoints: only at the end and on request (tercio save); ckpt.every or "
                               "ckpt.every_minutes sets an interval\n";
  static const char by_cost[] = "tercio: checkpoints: after 2 steps, then at intervals from their cost and "
                                "ckpt.mtbf_hours = 24, and at the end\n";
  static const struct {
    const char *what;
    double minutes;
    int64_t every;
    bool mpi;
    const char *job, *says;
    bool due;
  } row[] = {
    { "one process", TC_DEFAULT, 0, false, "", at_end, false },
    { "several processes", TC_DEFAULT, 0, true, "", by_cost, true },
    { "a job", TC_DEFAULT, 0, false, "7", by_cost, true },
    { "a job that saves by steps", TC_DEFAULT, 5, true, "7", "tercio: checkpoints: every 5 steps, and at the end\n", false },
    { "a job that saves by stages", TC_DEFAULT, TC_STAGE, false, "7",
      "tercio: checkpoints: after each stage, after 2 steps, then at intervals from their cost and ckpt.mtbf_hours = 24, and at the "
      "end\n", true },
    { "one process that does", TC_DEFAULT, TC_STAGE, false, "", "tercio: checkpoints: after each stage, and at the end\n", false },
    { "a job that never saves", 0, 0, true, "7", at_end, false },
    { "auto in one process", TC_AUTO, 0, false, "", by_cost, true },
    { "minutes and steps", 7.5, 9, false, "", "tercio: checkpoints: every 9 steps, every 7.5 minutes, and at the end\n",
      false },
  };
  FILE *to = tmpfile();
  const int keep = dup(STDERR_FILENO);
  TC_ASSERT(to && fcntl(fileno(to), F_SETFL, O_APPEND) == 0 && dup2(fileno(to), STDERR_FILENO) >= 0);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_config c = { .ckpt_every_minutes = row[i].minutes, .ckpt_every = row[i].every, .ckpt_mtbf_hours = 24 };
    struct tc_ranks ranks = { .world = 1 };
    snprintf(ranks.job, sizeof ranks.job, "%s", row[i].job);
    struct tc_train t = { .run = { .cfg = &c, .ranks = &ranks, .mpi = row[i].mpi }, .ckpt.begun_ns = tc_now_ns() };
    ok(tc_interval_due(&t, 2) == row[i].due, "%s: %s checkpoint after two steps", row[i].what, row[i].due ? "a" : "no");
    tc_interval_say(&t);
    is_str(stderr_text(), row[i].says, "... said");
  }
  dup2(keep, STDERR_FILENO);
  close(keep);
  fclose(to);
}

static int64_t now_s(void)
{
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  return ts.tv_sec;
}

/* A run in a job that ends in so many seconds and began so many ago (0: not known). */
static struct tc_train in_job(const struct tc_config *c, int64_t end_s, int64_t began_s)
{
  char text[32];
  struct tc_train t = { .run.cfg = c };
  snprintf(text, sizeof text, "%lld", (long long)(now_s() + end_s));
  setenv("SLURM_JOB_END_TIME", text, 1);
  snprintf(text, sizeof text, "%lld", (long long)(now_s() - began_s));
  if (began_s) setenv("SLURM_JOB_START_TIME", text, 1);
  else unsetenv("SLURM_JOB_START_TIME");
  tc_time_limit_begin(&t);
  return t;
}

static void test_walltime(void)
{
  const struct tc_config hour = { .run_walltime = 60 }, automatic = { .run_walltime = TC_AUTO };
  struct tc_train t = { .run.cfg = &hour };
  tc_time_limit_begin(&t);
  is_int(tc_time_limit_near(&t), TC_TIME_LIMIT_FAR, "run.walltime = an hour: far");
  wall_s = 86400;
  is_int(tc_time_limit_near(&t), TC_TIME_LIMIT_FAR, "... also when the clock is set a day ahead");
  wall_s = -86400;
  is_int(tc_time_limit_near(&t), TC_TIME_LIMIT_FAR, "... and a day back");
  t.limit.end_ns -= INT64_C(3600000000000);
  is_int(tc_time_limit_near(&t), TC_TIME_LIMIT_NEAR, "an hour later: near");
  is_int(t.limit.end_ns - tc_time_limit_last_save(&t), 1000000000, "the last save may begin as long as a save before the end");
  t.interval.cost_s = 7;
  is_int(t.limit.end_ns - tc_time_limit_last_save(&t), 7000000000, "... as saves have taken");
  wall_s = 0;
  t = in_job(&automatic, 3600, 60);
  near_f(t.limit.limit_s, 3600, 1e-3, "a job of an hour");
  is_int(tc_time_limit_near(&t), TC_TIME_LIMIT_FAR, "... far");
  wall_s = 86400;
  is_int(tc_time_limit_near(&t), TC_TIME_LIMIT_FAR, "... also when the clock is set a day ahead");
  wall_s = 0;
  t = in_job(&automatic, 2, 60);
  is_int(tc_time_limit_near(&t), TC_TIME_LIMIT_NEAR, "a job's last seconds: near");
  t = in_job(&automatic, -100, 3600);
  is_int(tc_time_limit_near(&t), TC_TIME_LIMIT_FAR, "a job's end in the past is none");
  static const char *const odd[] = { "nan", "inf", "-5", "0", "soon", "12x", "", "1e400" };
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    t = (struct tc_train){ .run.cfg = &automatic };
    setenv("SLURM_JOB_END_TIME", odd[i], 1);
    tc_time_limit_begin(&t);
    is_int(tc_time_limit_near(&t), TC_TIME_LIMIT_FAR, "SLURM_JOB_END_TIME = '%s' is none", odd[i]);
  }
}

/* Auto: the cost is the mean of the last and those before, the interval is Daly's. */
static void test_cost(void)
{
  struct tc_config c = { .ckpt_every_minutes = TC_AUTO, .ckpt_mtbf_hours = 24 };
  struct tc_train t = { .run.cfg = &c, .run.rank = 1, .end.copy_ns = 500000000 };
  tc_interval_cost(&t, 3500000000);
  near_f(t.interval.cost_s, 4, 1e-12, "the copy and the writing");
  near_f(t.interval.every_s, tc_daly_s(4, 86400), 1e-12, "their interval");
  tc_interval_cost(&t, 9500000000);
  near_f(t.interval.cost_s, 7, 1e-12, "half of it is the last one");
  near_f(t.interval.every_s, tc_daly_s(7, 86400), 1e-12, "their interval");
  c.ckpt_every_minutes = 5;
  t.interval.every_s = 0;
  tc_interval_cost(&t, 6500000000);
  ok(t.interval.every_s == 0 && fabs(t.interval.cost_s - 7) < 1e-12, "not auto: no interval");
}

/* ---- time limits: margins of 50 s and more, so that a slow machine changes nothing ---- */

static void put_env(const char *name, double s)
{
  char text[32];
  snprintf(text, sizeof text, "%.0f", s);
  if (s > 0) setenv(name, text, 1);
  else unsetenv(name);
}

static void test_limit(void)
{
  static const struct { const char *what; double minutes, began, ends, limit; bool late; } c[] = {
    { "none", TC_AUTO, 0, 0, 0, true },     { "0: none, whatever the job's", 0, -100, 500, 0, false },
    { "minutes", 20, -9000, 500, 1200, false },
    { "the job's, begun now", TC_AUTO, -100, 900, 900, false },
    { "the job's, more than half is over", TC_AUTO, -900, 700, 700, true },
    { "the job's, without its start", TC_AUTO, 0, 700, 700, true },
  };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    struct tc_config cfg = { .run_walltime = c[i].minutes };
    struct tc_train t = { .run.cfg = &cfg };
    put_env("SLURM_JOB_START_TIME", c[i].began ? (double)now_s() + c[i].began : 0);
    put_env("SLURM_JOB_END_TIME", c[i].ends ? (double)now_s() + c[i].ends : 0);
    tc_time_limit_begin(&t);
    double left = t.limit.end_ns ? (double)(t.limit.end_ns - tc_now_ns()) * 1e-9 : 0;
    ok(fabs(left - c[i].limit) < 50, "limit, %s: in %g s", c[i].what, left);
    ok(!c[i].limit || fabs(t.limit.limit_s - c[i].limit) < 50, "... from the start on");
    ok(!c[i].limit || t.limit.late == c[i].late, "... %s", c[i].late ? "late" : "not late");
  }
  unsetenv("SLURM_JOB_START_TIME");
  unsetenv("SLURM_JOB_END_TIME");
}

/* Twice a step and a save, and 2 s: then it is time. */
static void test_near(void)
{
  static const struct {
    const char *what;
    double step_s, slow_s, cost_s, gb, left_s;
    int steps;
    bool late;
    int want;
  } c[] = {
    { "no limit", 100, 0, 100, 0, 0, 5, false, TC_TIME_LIMIT_FAR },
    { "step and save fit", 100, 0, 400, 0, 1100, 5, false, TC_TIME_LIMIT_FAR },
    { "they do not", 100, 0, 400, 0, 900, 5, false, TC_TIME_LIMIT_NEAR },
    { "the step before was slower", 1, 1000, 100, 0, 1950, 5, false, TC_TIME_LIMIT_NEAR },
    { "... but counts less", 1, 1000, 100, 0, 2100, 5, false, TC_TIME_LIMIT_FAR },
    { "no save yet: 100 MB a second", 100, 0, 0, 40, 900, 5, false, TC_TIME_LIMIT_NEAR },
    { "... which fits", 100, 0, 0, 40, 1100, 5, false, TC_TIME_LIMIT_FAR },
    { "the second step", 100, 0, 400, 0, 900, 1, false, TC_TIME_LIMIT_SHORT },
    { "the third", 100, 0, 400, 0, 900, 2, false, TC_TIME_LIMIT_NEAR },
    { "the second, started late in a job", 100, 0, 400, 0, 900, 1, true, TC_TIME_LIMIT_NEAR },
  };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    struct tc_train t = { .ckpt.bytes = (int64_t)(c[i].gb * 1e9) };
    t.interval.cost_s = c[i].cost_s;
    t.limit = (struct tc_time_limit){ .longest_s = c[i].slow_s, .steps = c[i].steps, .late = c[i].late,
                                      .limit_s = 5000 };
    t.limit.boundary_ns = tc_now_ns() - (int64_t)(c[i].step_s * 1e9);
    if (c[i].left_s) t.limit.end_ns = tc_now_ns() + (int64_t)(c[i].left_s * 1e9);
    is_int(tc_time_limit_near(&t), c[i].want, "near, %s", c[i].what);
    is_int(t.limit.steps, c[i].steps + 1, "... a step more");
    near_f(t.limit.longest_s, fmax(c[i].step_s, 0.9 * c[i].slow_s), c[i].step_s < 50 ? 1e-9 : 0.3,
           "... the slowest");
    ok(tc_now_ns() - t.limit.boundary_ns < INT64_C(50000000000), "... which ended now");
  }
  struct tc_train t = { .ckpt.bytes = 0 };
  tc_time_limit_near(&t);
  ok(t.limit.longest_s == 0 && t.limit.boundary_ns > 0, "the first step has no length");
}

static void test_last_step(void)
{
  static const struct {
    int64_t steps, stop_at, want;
  } row[] = { { 10, 0, 10 }, { 10, 1, 1 }, { 10, 9, 9 }, { 10, 10, 10 }, { 10, 11, 10 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    const struct tc_config c = { .train_steps = row[i].steps, .train_stop_at = row[i].stop_at };
    is_int(tc_last_step(&c), row[i].want, "%lld steps, stop at %lld", (long long)row[i].steps,
           (long long)row[i].stop_at);
  }
}

int main(void)
{
  test_last_step();
  test_daly();
  test_walltime();
  test_due();
  test_default();
  test_cost();
  test_limit();
  test_near();
  return done_testing();
}
