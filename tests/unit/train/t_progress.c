/* t_progress.c - the line of progress: when it comes, and what it says. The clock and the terminal are the test's. */
#include <fcntl.h>
#include <math.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "src/train/parts.h"
#include "tests/unit/ckpt_fixture.h"
#include "tests/unit/stderr_text.h"

static int64_t now_ns; /* 0: the true time */
static bool terminal;

int clock_gettime(clockid_t id, struct timespec *ts)
{
  if (!now_ns || id != CLOCK_MONOTONIC) return (int)syscall(SYS_clock_gettime, id, ts);
  ts->tv_sec = now_ns / 1000000000;
  ts->tv_nsec = now_ns % 1000000000;
  return 0;
}

int isatty(int fd) { return terminal && fd == STDERR_FILENO; }

static void test_progress(void)
{
  static const int64_t S = 1000000000;
  static const struct {
    int rank, tty;
    int64_t step, stop_at, last_ns;
    double val, rate;
    const char *want;
    int64_t steps, first_ns;     /* before this one */
  } row[] = {
    { 0, 0, 1, 0, 0, NAN, 100,
      "step 1/10  loss 2.5000  norm 1.500  lr 1.00e-03  100 tok/s  left 0:00:09\n", 0, 0 },
    { 1, 0, 1, 0, 0, NAN, 100, "", 0, 0 },
    { 1, 0, 10, 0, 0, 1, 100, "", 0, 0 },
    { 0, 0, 2, 0, 98 * S + 1, NAN, 100, "", 0, 0 },
    { 0, 0, 2, 0, 98 * S, NAN, 0.01,
      "step 2/10  loss 2.5000  norm 1.500  lr 1.00e-03  0 tok/s  left 22:13:20\n", 0, 0 },
    { 0, 0, 2, 0, 99 * S, 3.14159, 0,
      "step 2/10  loss 2.5000  val 3.1416  norm 1.500  lr 1.00e-03  0 tok/s  left 0:00:00\n", 0, 0 },
    { 0, 0, 10, 0, 99 * S, NAN, 1,
      "step 10/10  loss 2.5000  norm 1.500  lr 1.00e-03  1 tok/s  left 0:00:00\n", 0, 0 },
    { 0, 0, 4, 5, 99 * S, NAN, 1, "", 0, 0 },
    { 0, 0, 5, 5, 99 * S, NAN, 1,
      "step 5/5  loss 2.5000  norm 1.500  lr 1.00e-03  1 tok/s  left 0:00:00\n", 0, 0 },
    { 0, 0, 5, 1, 0, NAN, 50,
      "step 5/1  loss 2.5000  norm 1.500  lr 1.00e-03  50 tok/s  left 0:00:-8\n", 0, 0 },
    { 0, 0, 5, 20, 0, NAN, 7,
      "step 5/10  loss 2.5000  norm 1.500  lr 1.00e-03  7 tok/s  left 0:01:11\n", 0, 0 },
    /* 40 s for four steps, with what was between them; 2000 s for one. */
    { 0, 0, 5, 0, 0, NAN, 100,
      "step 5/10  loss 2.5000  norm 1.500  lr 1.00e-03  100 tok/s  left 0:00:50\n", 4, 60 * S },
    { 0, 0, 6, 0, 0, 3, 100,
      "step 6/10  loss 2.5000  val 3.0000  norm 1.500  lr 1.00e-03  100 tok/s  left 2:13:20\n", 1, -1900 * S },
    { 0, 1, 3, 0, 100 * S - 200000000, NAN, 100,
      "\rstep 3/10  loss 2.5000  norm 1.500  lr 1.00e-03  100 tok/s  left 0:00:07\033[K", 0, 0 },
    { 0, 1, 3, 0, 100 * S - 199999999, NAN, 100, "", 0, 0 },
    { 0, 1, 3, 0, 0, 2, 100,
      "\rstep 3/10  loss 2.5000  val 2.0000  norm 1.500  lr 1.00e-03  100 tok/s  left 0:00:07\033[K\n", 0, 0 },
    { 0, 1, 10, 0, 0, NAN, 100,
      "\rstep 10/10  loss 2.5000  norm 1.500  lr 1.00e-03  100 tok/s  left 0:00:00\033[K\n", 0, 0 },
  };
  now_ns = 100 * S;
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_config c = { .train_steps = 10, .train_stop_at = row[i].stop_at };
    const struct tc_train t = { .run.cfg = &c, .run.rank = row[i].rank };
    const struct tc_step_report r = { .step = row[i].step,
                                      .tokens = 100,
                                      .loss = 2.5,
                                      .lr = 1e-3,
                                      .val_loss = row[i].val, .validated = !isnan(row[i].val),
                                      .grad_norm = 1.5 };
    struct tc_progress p = { .shown_ns = row[i].last_ns, .steps = row[i].steps, .first_ns = row[i].first_ns };
    terminal = row[i].tty;
    tc_progress(&t, &r, &p, row[i].rate);
    is_str(stderr_text(), row[i].want, "progress %zu", i);
    is_int(p.shown_ns, *row[i].want ? now_ns : row[i].last_ns, "... %s",
           *row[i].want ? "now" : "not now");
    is_int(p.steps, row[i].steps + 1, "... a step more");
    is_int(p.first_ns, row[i].steps ? row[i].first_ns : now_ns, "... the first was then");
  }
  terminal = false;
  now_ns = 0;
}

int main(void)
{
  const int keep = dup(STDERR_FILENO),
            to = chdir(fx_folder()) == 0 ? open("stderr", O_RDWR | O_CREAT | O_APPEND, 0600) : -1;
  if (to < 0 || dup2(to, STDERR_FILENO) < 0) return 1;
  test_progress();
  dup2(keep, STDERR_FILENO);
  if (chdir("/") == 0) fx_clean();
  return done_testing();
}
