/* watchdog.h - the watchdog without its thread: with a clock, a log and an end of the test's
 * own. Included once by a test, in place of the watchdog's objects. */
#ifndef TC_TEST_WATCHDOG_H
#define TC_TEST_WATCHDOG_H

#include "src/watch/impl.h"
#include "tests/unit/locks.h"
#include "tests/unit/tap.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Atomic int64_t now_ns, tick_ns; /* read by threads, too */
static void (*on_tick)(void); /* called once, after so many looks at the clock */
static int looks;
static char logged[2000];

static int64_t clock_ns(void)
{
  if (on_tick && looks-- == 0) {
    void (*f)(void) = on_tick;
    on_tick = NULL;
    f();
  }
  const int64_t tick = tick_ns;
  return atomic_fetch_add(&now_ns, tick) + tick;
}
static void pass(int64_t ns) { now_ns += ns; }
static void no_rank(int rank) { tc_text_add(logged, sizeof logged, "[%d]", rank); }

TAP_FORMAT(1, 2)
static void note(const char *fmt, ...)
{
  char line[1000];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  tc_text_add(logged, sizeof logged, " %s\n", line);
}

static int no_thread;
static int start_thread(pthread_t *t, void *(*run)(void *), void *arg, struct tc_err *err)
{
  if (no_thread) return tc_fail(err, TC_ENOCKPT, "no more threads");
  return pthread_create(t, NULL, run, arg);
}

#define tc_thread_start start_thread
#define tc_now_ns clock_ns
#define tc_sleep_ns pass
#define tc_log note
#define tc_warn note
#define tc_log_set_rank no_rank
#include "src/watch/watchdog.c"
#include "src/watch/status.c"

enum { W = 12 };
static const char *const names[W] = { "r0", "r1", "r2", "r3", "r4",  "r5",
                                      "r6", "r7", "r8", "r9", "r10", "r11" };
static struct tc_watch w;
static struct rank_status local[W];

static void no_end(int status, const char *why)
{
  tc_text_add(logged, sizeof logged, " end %d: %s\n", status, why);
}

/* A watchdog of ranks first .. first + n - 1 of `world`, without a thread; the clock at 1000 s. */
static void make(int first, int n, int world)
{
  memset(&w, 0, sizeof w);
  memset(local, 0, sizeof local);
  w.o = (struct tc_watch_opts){
    .world = world, .first = first, .n_local = n, .rank_names = names, .end = no_end
  };
  w.deadline_ns = 10 * SECOND;
  w.local = local;
  pthread_mutex_init(&w.lock, NULL);
  pthread_mutex_init(&w.channel_lock, NULL);
  for (int i = 0; i < n; i++) {
    local[i] = (struct rank_status){ .watch = &w, .rank = first + i, .world = world };
    pthread_mutex_init(&local[i].lock, NULL);
  }
  now_ns = 1000 * SECOND;
  logged[0] = 0;
}

static void done(void)
{
  for (int i = 0; i < w.o.n_local; i++) tc_rank_status_clear(&local[i]);
  tc_thread_status_use(NULL);
  ok(locks == 0 && least_locks == 0, "all locks are let go");
}

#endif
