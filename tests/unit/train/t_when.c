/* t_when - the interval between checkpoints, medians and spikes, what the loop remembers; time
 * limits, starts without progress, faults to order. */
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
}

static bool step(struct tc_train *t, double loss)
{
  struct tc_step_report s = { .loss = loss, .grad_norm = 1 };
  return tc_rollback_bad(t, &s);
}

/* What a validation may bring, and what is said of it. */
static void test_validation(void)
{
  struct tc_config c = { .train_rollback = 0 };
  struct tc_task task[2] = { { .name = tc_strdup("a"), .not_finite = 0 }, { .name = tc_strdup("b"), .not_finite = 0 } };
  struct tc_train t = { .run = { .cfg = &c }, .ckpt = { .dir = tc_strdup("d") } };
  struct tc_step_report s = { .step = 7, .loss = 2, .grad_norm = 1, .validated = true, .val_loss = 3 };
  const double bad[] = { NAN, -NAN, INFINITY, -INFINITY };
  struct tc_err err;
  int64_t step;
  ok(!tc_rollback_bad(&t, &s) && !tc_rollback_bad_validation(&t, &s), "a good validation");
  t.tasks.task = task, t.tasks.n = 2;
  ok(!tc_rollback_bad_validation(&t, &s), "... with tasks");
  for (int i = 0; i < 4; i++) {
    s.val_loss = bad[i];
    ok(!tc_rollback_bad(&t, &s) && tc_rollback_bad_validation(&t, &s), "a validation loss of %g is bad", bad[i]);
  }
  is_int(tc_rollback_go(&t, &s, &step, &err), TC_EDIVERGED, "... ends the run");
  is_str(err.text, "step 7: loss 2, gradient norm 1, validation loss -inf: training diverged. Try a lower train.lr, a longer "
         "train.warmup, train.clip, or train.rollback", "... with a sentence");
  s.val_loss = 3, task[1].not_finite = 4, t.ckpt.start_step = 6;
  ok(tc_rollback_bad_validation(&t, &s), "answers without a finite loss are bad");
  is_int(tc_rollback_go(&t, &s, &step, &err), TC_EDIVERGED, "... in the first step of a start");
  is_str(err.text, "step 7, the first of this start: loss 2, gradient norm 1, validation loss 3, 4 answers of b without a "
         "finite loss: the weights that it began with may have diverged before they were saved: `tercio ckpt tensors d` "
         "shows NaNs and infinities; ckpt.resume = STEP goes on from an older checkpoint", "... which says what to look at");
  free(task[0].name);
  free(task[1].name);
  free(t.ckpt.dir);
}

static void test_spike(void)
{
  struct tc_config c = { .train_spike = 3 };
  struct tc_train t = { .run.cfg = &c }, u = { .run.cfg = &c };
  struct tc_err err = { 0 };
  bool early = false;
  for (int i = 0; i < 8; i++) early |= step(&t, i == 3 ? 100 : 1 + i / 16.0);
  ok(!early, "no spike while fewer than 8 losses are known");
  ok(!step(&t, 3.5), "three times the median, not more, is none");
  ok(step(&t, 4.5), "more is one");
  is_int(t.rollback.n_losses, 9, "a spike is not counted in");
  ok(step(&t, NAN) && step(&t, INFINITY), "what is no number is bad");
  ok(tc_rollback_bad(&t, &(struct tc_step_report){ .loss = 1, .grad_norm = INFINITY }) &&
     tc_rollback_bad(&t, &(struct tc_step_report){ .loss = 1, .grad_norm = NAN }), "... a gradient norm, too");
  for (int i = 0; i < 40; i++) step(&t, 0.1 + i / 3.0 / 64);
  is_int(t.rollback.n_losses, TC_ROLLBACK_LOSSES, "as many losses as are kept");
  t.rollback.skipped = 12;
  t.rollback.rollbacks = 2;
  char *text = tc_rollback_text(&t);
  is_int(tc_rollback_parse(&u, text, &err), 0, "read back");
  bool same = u.rollback.skipped == 12 && u.rollback.rollbacks == 2 &&
              u.rollback.n_losses == t.rollback.n_losses;
  for (int i = 0; same && i < t.rollback.n_losses; i++) same = u.rollback.loss[i] == t.rollback.loss[i];
  ok(same, "what the loop remembers comes back to the last bit");
  free(text);
  is_int(tc_rollback_parse(&u, "skipped 1 rollbacks 2 losses 1.5 nan 3", &err), 0, "a loss that is no number");
  ok(u.rollback.n_losses == 1 && u.rollback.skipped == 1, "... is not remembered, nor those after it");
  is_int(tc_rollback_parse(&u, "", &err), 0, "nothing to remember");
  ok(u.rollback.skipped == 0 && u.rollback.n_losses == 0, "... forgets what was");
  ok(tc_rollback_parse(&u, "skipped -1 rollbacks 0 losses", &err) == TC_EUSER, "nonsense is refused");
  ok(tc_rollback_parse(&u, "skipped 1", &err) == TC_EUSER, "half of it too");
}

/* Beside a naive one: spikes are left out, the median is of the last good losses, sorted. */
static int by_size(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void test_median(void)
{
  enum { STEPS = 1000 };
  struct tc_config c = { .train_spike = 1.5 };
  struct tc_train t = { .run.cfg = &c };
  double good[STEPS], sorted[TC_ROLLBACK_LOSSES];
  int n = 0, spikes = 0;
  uint32_t x = 1;
  bool same = true;
  for (int i = 0; i < STEPS && same; i++) {
    x = x * 1664525u + 1013904223u;
    const double v = 1 + (x >> 8) * 0x1p-23;     /* 1 to 3 */
    const int kept = n < TC_ROLLBACK_LOSSES ? n : TC_ROLLBACK_LOSSES;
    memcpy(sorted, good + n - kept, (size_t)kept * sizeof *good);
    qsort(sorted, (size_t)kept, sizeof *sorted, by_size);
    const double mid = kept ? (sorted[(kept - 1) / 2] + sorted[kept / 2]) / 2 : 0;
    const bool bad = kept >= 8 && v > 1.5 * mid;
    same = step(&t, v) == bad;
    spikes += bad;
    if (!bad) good[n++] = v;
    const int now = n < TC_ROLLBACK_LOSSES ? n : TC_ROLLBACK_LOSSES;
    same &= t.rollback.n_losses == now &&
            !memcmp(t.rollback.loss, good + n - now, (size_t)now * sizeof *good);
  }
  ok(same && spikes > 10, "%d steps, %d of them spikes: against the median of the last good ones",
     STEPS, spikes);
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

/* ---- starts without progress ---- */

static void test_guard(void)
{
  char dir[] = "/tmp/t_when-XXXXXX";
  if (!ok(mkdtemp(dir) != NULL, "a folder")) return;
  struct tc_config c = { .ckpt_max_restarts_without_progress = 3 };
  struct tc_ranks r = { .job = "17" };
  struct tc_train t = { .run.cfg = &c, .run.ranks = &r, .ckpt.dir = dir };
  struct tc_err err = { 0 };
  for (int i = 0; i < 4; i++) is_int(tc_train_guard(&t, 8, &err), 0, "start %d from step 8", i);
  is_int(tc_train_guard(&t, 8, &err), TC_NOPROGRESS, "one too many");
  ok(strstr(err.text, "the last 4 starts from step 8 made no new checkpoint") && strstr(err.text,
                                                            dir),
     "... %s", err.text);
  is_int(tc_train_guard(&t, 8, &err), TC_NOPROGRESS, "... and again");
  is_int(tc_train_guard(&t, 9, &err), 0, "a new checkpoint: they count anew");
  for (int i = 0; i < 3; i++) tc_train_guard(&t, 9, &err);
  strcpy(r.job, "18");
  is_int(tc_train_guard(&t, 9, &err), 0, "another job too");
  for (int i = 0; i < 3; i++) tc_train_guard(&t, 9, &err);
  tc_train_guard_clear(&t);
  for (int i = 0; i < 4; i++) is_int(tc_train_guard(&t, 9, &err), 0, "cleared: start %d", i);
  *r.job = 0;
  is_int(tc_train_guard(&t, 9, &err), 0, "by hand: as often as one likes");
  tc_train_guard_clear(&t);
  is_int(rmdir(dir), 0, "nothing is left");
  strcpy(r.job, "19");
  is_int(tc_train_guard(&t, 9, &err), TC_EUSER, "a folder that is not there");
}

static void put(const char *path, const char *text)
{
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* What lies in the folder before a start (NULL: nothing), and after it. */
static void test_guard_file(void)
{
  static const struct { const char *before; int64_t step; int rc; const char *after; } c[] = {
    { NULL, -1, 0, "17 -1 0\n" }, { "17 8 0\n", 8, 0, "17 8 1\n" }, { "17 8 2\n", 8, 0, "17 8 3\n" },
    { "17 8 3\n", 8, TC_NOPROGRESS, "17 8 3\n" }, { "17 -1 3\n", -1, TC_NOPROGRESS, "17 -1 3\n" },
    { "17 7 3\n", 8, 0, "17 8 0\n" }, { "16 8 3\n", 8, 0, "17 8 0\n" }, { "17 8\n", 8, 0, "17 8\n" },
    { "17 x 3\n", 8, 0, "17 x 3\n" }, { "", 8, 0, "17 8 0\n" } };
  char dir[] = "/tmp/t_when-XXXXXX";
  if (!ok(mkdtemp(dir) != NULL, "a folder")) return;
  struct tc_config cfg = { .ckpt_max_restarts_without_progress = 3 };
  struct tc_ranks r = { .job = "17" };
  struct tc_train t = { .run.cfg = &cfg, .run.ranks = &r, .ckpt.dir = dir };
  char *path = tc_sprintf("%s/.starts", dir), *want;
  struct tc_err err = { 0 };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    char text[100] = "";
    unlink(path);
    if (c[i].before) put(path, c[i].before);
    is_int(tc_train_guard(&t, c[i].step, &err), c[i].rc, "start %zu from step %d", i, (int)c[i].step);
    FILE *f = fopen(path, "r");
    if (f && !fgets(text, sizeof text, f)) *text = 0;
    if (f) fclose(f);
    is_str(text, c[i].after, "... is written down");
    if (!c[i].rc) continue;
    want = tc_sprintf("the last 4 starts from step %d made no new checkpoint: giving up. Look at what ended them, "
                      "then remove %s to try again", c[i].step < 0 ? 0 : 8, path);
    is_str(err.text, want, "... is reported");
    free(want);
  }
  put(path, "mine\n");
  tc_train_guard_clear(&t);
  is_int(unlink(path), 0, "another file of that name stays at a new checkpoint");
  put(path, "");
  tc_train_guard_clear(&t);
  is_int(rmdir(dir), 0, "nothing is left");
  is_int(tc_train_guard(&t, 9, &err), TC_EUSER, "a folder that is not there");
  char *up = tc_folder_of(path);
  want = tc_sprintf("%s can't be written: there is no folder %s", path, up);
  free(up);
  is_str(err.text, want, "... is reported");
  free(want);
  free(path);
}

/* What the loop's note may be, and what is reported of another. */
static void test_note(void)
{
  static const char *const bad[] = { "skipped -1 rollbacks 0 losses", "skipped 0 rollbacks -1 losses", "skipped 1",
                                     "skipped 1 rollbacks 2", "x" };
  struct tc_train t = { .run.rank = 0 };
  struct tc_err err = { 0 };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char *want = tc_sprintf("the checkpoint's note on the training loop makes no sense: \"%s\"", bad[i]);
    is_int(tc_rollback_parse(&t, bad[i], &err), TC_EUSER, "a note that is none");
    is_str(err.text, want, "... is reported");
    free(want);
  }
  is_int(tc_rollback_parse(&t, "skipped 3 rollbacks 2 losses 1.5 0.25 x 7", &err), 0, "a note");
  ok(t.rollback.skipped == 3 && t.rollback.rollbacks == 2 && t.rollback.n_losses == 2 && t.rollback.loss[0] == 1.5 &&
     t.rollback.loss[1] == 0.25, "... is read up to what is no number");
  char *text = tc_rollback_text(&t);
  is_str(text, "skipped 3 rollbacks 2 losses 1.5 0.25", "... and written");
  free(text);
  t.rollback = (struct tc_rollback){ .skipped = 0 };
  text = tc_rollback_text(&t);
  is_str(text, "", "nothing to note");
  free(text);
  near_f(tc_daly_s(10, 3600), sqrt(2 * 10 * 3600.) * (1 + sqrt(10 / 7200.) / 3 + 10 / 7200. / 9) - 10, 1e-12,
         "Daly's interval");
}

/* ---- faults to order ---- */

static void test_fault(void)
{
  static const struct { const char *text; int kind, rank; int64_t step; } good[] = {
    { "", TC_FAULT_NONE, 3, 0 },         { "hang@5", TC_FAULT_HANG, 3, 5 },
    { "slow@1:0", TC_FAULT_SLOW, 0, 1 }, { "nan@12", TC_FAULT_NAN, 3, 12 },
    { "spike@7:3", TC_FAULT_SPIKE, 3, 7 },
  };
  static const char *const bad[] = {
    "hang", "hang@", "hang@0", "hang@5:", "hang@5:4", "hang@5:-1", "hang@5x", "hangs@5", "han@5",
    "@5", "crawl@5", "hang@5:1:2",
  };
  struct tc_err err;
  struct tc_fault f;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    is_int(tc_fault_parse(&f, good[i].text, 4, &err), 0, "run.fault = %s", good[i].text);
    ok(f.kind == good[i].kind && f.rank == good[i].rank && f.step == good[i].step, "... is read");
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    is_int(tc_fault_parse(&f, bad[i], 4, &err), TC_EUSER, "run.fault = %s is refused", bad[i]);
  struct tc_train t = { .fault = { TC_FAULT_SPIKE, 0, 7 } };
  struct tc_step_report s = { .step = 6, .loss = 2 };
  tc_fault_fire(&t, &s);
  ok(s.loss == 2, "a spike comes at its step");
  s.step = 7;
  tc_fault_fire(&t, &s);
  ok(s.loss == 2000, "... a thousand times the loss");
  tc_fault_fire(&t, &s);
  ok(s.loss == 2000, "... once");
  t.fault.kind = TC_FAULT_SPIKE;
  s.step = 8;                                    /* a run that goes on after the fault's step */
  tc_fault_fire(&t, &s);
  ok(s.loss == 2000, "... and not after it");
  tc_fault_end(&(struct tc_fault){ TC_FAULT_SLOW, 1, 3 }, 0, 5, INT64_C(1000000000000));
  tc_fault_end(&(struct tc_fault){ TC_FAULT_SLOW, 1, 3 }, 1, 2, INT64_C(1000000000000));
  tc_fault_end(&(struct tc_fault){ TC_FAULT_HANG, 1, 3 }, 1, 3, INT64_C(1000000000000));
  tc_fault_begin(&(struct tc_fault){ TC_FAULT_HANG, 1, 3 }, 0, 3);
  tc_fault_begin(&(struct tc_fault){ TC_FAULT_HANG, 1, 3 }, 1, 4);
  tc_fault_begin(&(struct tc_fault){ TC_FAULT_SLOW, 1, 3 }, 1, 3);
  int64_t t0 = tc_now_ns();
  tc_fault_end(&(struct tc_fault){ TC_FAULT_SLOW, 1, 3 }, 1, 3, 5000000);
  ok(tc_now_ns() - t0 >= 15000000, "a slow rank takes four times as long, the others do not");
}

int main(void)
{
  test_daly();
  test_walltime();
  test_spike();
  test_validation();
  test_median();
  test_due();
  test_default();
  test_cost();
  test_limit();
  test_near();
  test_guard();
  test_guard_file();
  test_note();
  test_fault();
  return done_testing();
}
