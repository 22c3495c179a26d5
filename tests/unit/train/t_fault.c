/* t_fault.c - run.fault: what may be written, and when a fault comes; sleep is the test's own. */
#include "src/base/base.h"
#include "src/watch/watch.h"
#include "tests/unit/tap.h"

#include <setjmp.h>

static int64_t slept_ns;
static int sleeps;
static char at[40];
static jmp_buf awake;

static void doze(int64_t ns)
{
  slept_ns += ns;
  if (++sleeps >= 3) longjmp(awake, 1);
}
static void mark(const char *doing) { snprintf(at, sizeof at, "%s", doing); }

#define tc_sleep_ns doze
#define tc_at_phase mark
#include "src/train/fault.c"

static void test_parse(void)
{
  static const struct {
    const char *text;
    int kind, rank;
    int64_t step;
  } good[] = { { "", TC_FAULT_NONE, 3, 0 },
               { "hang@1", TC_FAULT_HANG, 3, 1 },
               { "hang@12:0", TC_FAULT_HANG, 0, 12 },
               { "slow@7:3", TC_FAULT_SLOW, 3, 7 },
               { "nan@5", TC_FAULT_NAN, 3, 5 },
               { "spike@5:1", TC_FAULT_SPIKE, 1, 5 },
               { "slow@1:0", TC_FAULT_SLOW, 0, 1 },
               { "spike@7:3", TC_FAULT_SPIKE, 3, 7 },
               { "pace@1", TC_FAULT_PACE, 3, 1 },
               { "slow@5000000000", TC_FAULT_SLOW, 3, 5000000000 } };
  static const char *const bad[] = { "hang",      "hang@",      "hang@0",    "hang@-1",   "hang@x",
                                     "hang@5:",   "hang@5:4",   "hang@5:-1", "hang@5:1x", "hang@5x",
                                     "hang@5 :1", "@5",         "hangs@5",   "han@5",     "Hang@5",
                                     "x",         "slow@5:1:2", "hang@5: 1", "hang@5:1:2", "crawl@5" };
  struct tc_fault f;
  struct tc_err err = { 0 };
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    is_int(tc_fault_parse(&f, good[i].text, 4, &err), 0, "run.fault = %s", good[i].text);
    ok(f.kind == good[i].kind && f.rank == good[i].rank && f.step == good[i].step,
       "... kind %d of rank %d at %d", f.kind, f.rank, (int)f.step);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char *want = tc_sprintf("run.fault = %s: give nan@STEP, row@STEP, spike@STEP, pace@STEP, hang@STEP or slow@STEP, "
                            "the last two with :RANK "
                            "(0 to 3) after it or without",
                            bad[i]);
    is_int(tc_fault_parse(&f, bad[i], 4, &err), TC_EUSER, "run.fault = %s", bad[i]);
    is_str(err.text, want, "... is refused");
    free(want);
  }
}

/* Rank 1, step 3. */
static void test_comes(void)
{
  static const struct {
    int kind, rank;
    int64_t step;
    bool hangs, slow;
  } rows[] = { { TC_FAULT_HANG, 1, 3, true, false },  { TC_FAULT_HANG, 0, 3, false, false },
               { TC_FAULT_HANG, 1, 2, false, false }, { TC_FAULT_HANG, 1, 4, false, false },
               { TC_FAULT_SLOW, 1, 3, false, true },  { TC_FAULT_SLOW, 0, 3, false, false },
               { TC_FAULT_SLOW, 1, 2, false, false }, { TC_FAULT_SLOW, 1, 4, false, true },
               { TC_FAULT_NAN, 1, 3, false, false },
               { TC_FAULT_PACE, 0, 2, false, false }, { TC_FAULT_PACE, 0, 3, false, true },
               { TC_FAULT_PACE, 1, 9, false, true } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct tc_fault f = { rows[i].kind, 1, 3 };
    sleeps = 0;
    slept_ns = 0;
    at[0] = 0;
    if (!setjmp(awake)) tc_fault_begin(&f, rows[i].rank, rows[i].step);
    is_int(sleeps, rows[i].hangs ? 3 : 0, "kind %d, rank %d, step %d: hangs", f.kind, rows[i].rank,
           (int)rows[i].step);
    is_int(slept_ns, rows[i].hangs ? 3000000000 : 0, "... asleep");
    is_str(at, rows[i].hangs ? "hanging on purpose" : "", "... and says so");
    sleeps = 0;
    slept_ns = 0;
    tc_fault_end(&f, rows[i].rank, rows[i].step, 11);
    is_int(slept_ns, !rows[i].slow ? 0 : f.kind == TC_FAULT_PACE ? PACE_NS : 33, "... is slow");
  }
}

/* A spike comes once, at its step. */
static void test_fire(void)
{
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
}

int main(void)
{
  test_parse();
  test_comes();
  test_fire();
  return done_testing();
}
