/* t_comm_calls.c - the queue of a communicator (comm.c) with a backend and a clock of the test's
 * own: calls that may not be, a library that does not come back, a thread that can't be started. */
#include "src/comm/impl.h"
#include "tests/unit/coll_bytes.h"
#include "tests/unit/leak.h"
#include "tests/unit/locks.h"
#include "tests/unit/tap.h"
#include "tests/unit/wakes.h"

#include <pthread.h>
#include <stdatomic.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static int64_t now_ns, tick_ns;
static int looks, no_thread;
static char warned[200];
static void (*on_look)(void);

static int64_t clock_ns(void)
{
  looks++;
  if (on_look) on_look();
  return now_ns += tick_ns;
}

TAP_FORMAT(1, 2)
static void note(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(warned, sizeof warned, fmt, ap);
  va_end(ap);
}

static int start_thread(pthread_t *t, void *(*run)(void *), void *arg, struct tc_err *err)
{
  if (no_thread) return tc_fail(err, TC_EUSER, "no more threads");
  return pthread_create(t, NULL, run, arg);
}

static bool guarded;
static int waits, own_runs;
static struct tc_thread_status *mine(void) { return guarded ? (struct tc_thread_status *)&guarded : NULL; }
static void is_waiting(struct tc_blocked_call *b) { waits += b != NULL; }
static void is_running(struct tc_blocked_call *b) { own_runs += b != NULL; }

#define tc_thread_status_mine mine
#define tc_thread_status_waits is_waiting
#define tc_thread_status_runs is_running
#define tc_now_ns clock_ns
#define tc_warn note
#define tc_thread_start start_thread
#include "src/comm/comm.c"

static int runs, frees, leaves, fails;
static int b_run(void *impl, const struct tc_coll_args *a, const atomic_bool *stop, struct tc_sent *sent,
                 struct tc_err *err)
{
  (void)impl, (void)a, (void)stop;
  runs++;
  sent->bytes = 10;
  return fails ? tc_fail(err, TC_ENOCKPT, "it broke") : 0;
}
static void b_free(void *impl) { frees += impl == &runs; }
static void b_leave(void *impl) { leaves += impl == &runs; }
static int b_start(void *impl, const struct tc_coll_args *a, tc_ticket t, struct tc_err *err)
{
  (void)impl, (void)a, (void)t;
  return fails == 1 ? tc_fail(err, TC_ENOCKPT, "it broke") : 0;
}
static const struct tc_comm_ops ops = { .run = b_run, .free = b_free, .leave = b_leave }, device = {
  .run = b_run, .free = b_free, .start = b_start, .depth = 3
};

static struct tc_comm *make(const struct tc_comm_ops *o, int size)
{
  runs = frees = leaves = fails = 0;
  tick_ns = 0;
  return tc_comm_new(o, &runs, &(struct tc_members){ .size = size }, &(struct tc_comm_opts){ .name = "dp", .deadline_s = 3 },
                     NULL);
}

/* ---- calls that may not be ---------------------------------------------------------------- */

static void test_refused(void)
{
  static const struct {
    const char *what;
    struct tc_coll_args a;
    struct tc_part p;
    bool dies;
  } rows[] = {
    { "well", { .coll = TC_ALL_REDUCE, .n_parts = 1 }, { .count = 4, .block = 2 }, false },
    { "nothing", { .coll = TC_ALL_REDUCE, .n_parts = 1 }, { .count = 0, .block = 0 }, false },
    { "no collective", { .coll = TC_COLLS }, { .count = 0 }, true },
    { "none below", { .coll = -1 }, { .count = 0 }, true },
    { "a barrier of anything",
      { .coll = TC_BARRIER, .dtype = -1, .n_parts = -1 },
      { .count = 0 },
      false },
    { "no type", { .coll = TC_ALL_GATHER, .dtype = TC_DTYPES }, { .count = 0 }, true },
    { "no type below", { .coll = TC_ALL_GATHER, .dtype = -1 }, { .count = 0 }, true },
    { "fewer parts than none", { .coll = TC_ALL_GATHER, .n_parts = -1 }, { .count = 0 }, true },
    { "a sum of bytes", { .coll = TC_ALL_REDUCE, .dtype = TC_U8 }, { .count = 0 }, true },
    { "a scattered sum of bytes",
      { .coll = TC_REDUCE_SCATTER, .dtype = TC_U8 },
      { .count = 0 },
      true },
    { "a root's sum of bytes", { .coll = TC_REDUCE, .dtype = TC_U8 }, { .count = 0 }, true },
    { "gathered bytes", { .coll = TC_ALL_GATHER, .dtype = TC_U8 }, { .count = 0 }, false },
    { "neither sum nor maximum", { .coll = TC_ALL_REDUCE, .red = 2 }, { .count = 0 }, true },
    { "a maximum", { .coll = TC_ALL_REDUCE, .red = TC_MAX_OP }, { .count = 0 }, false },
    { "no root", { .coll = TC_BROADCAST, .root = 2 }, { .count = 0 }, true },
    { "no root below", { .coll = TC_REDUCE, .root = -1 }, { .count = 0 }, true },
    { "no root of a scatter", { .coll = TC_SCATTER, .root = 2 }, { .count = 0 }, true },
    { "no root of a gather", { .coll = TC_GATHER, .root = 2 }, { .count = 0 }, true },
    { "no rank to send to", { .coll = TC_SEND, .root = 2 }, { .count = 0 }, true },
    { "no rank to receive from", { .coll = TC_RECV, .root = 2 }, { .count = 0 }, true },
    { "a send to itself", { .coll = TC_SEND, .root = 0 }, { .count = 0 }, true },
    { "a receive from itself", { .coll = TC_RECV, .root = 0 }, { .count = 0 }, true },
    { "a send", { .coll = TC_SEND, .root = 1 }, { .count = 0 }, false },
    { "a root where there is none", { .coll = TC_ALL_GATHER, .root = 9 }, { .count = 0 }, false },
    { "less than nothing", { .coll = TC_ALL_GATHER, .n_parts = 1 }, { .count = -1 }, true },
    { "blocks of less than nothing",
      { .coll = TC_ALL_GATHER, .n_parts = 1 },
      { .count = 1, .block = -1 },
      true },
    { "blocks that are not all",
      { .coll = TC_ALL_TO_ALL, .n_parts = 1 },
      { .count = 5, .block = 2 },
      true },
    { "blocks that are all",
      { .coll = TC_ALL_TO_ALL, .n_parts = 1 },
      { .count = 4, .block = 2 },
      false },
  };
  const struct tc_comm c = { .m.size = 2 };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_coll_args a = rows[i].a;
    int status = 0;
    a.parts = &rows[i].p;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
      if (!freopen("/dev/null", "w", stderr)) _exit(1);
      signal(SIGABRT, SIG_DFL);
      check_args(&c, &a);
      _exit(0);
    }
    waitpid(pid, &status, 0);
    ok(rows[i].dies ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: %s",
       rows[i].what, rows[i].dies ? "a fault" : "well");
  }
}

/* ---- bytes ---------------------------------------------------------------------------------- */

/* 10 elements in blocks of 4 among three: 4, 4 and 2. */
static void test_bytes(void)
{
  static const struct {
    int coll, want[3];
  } rows[] = { { TC_ALL_REDUCE, { 14, 14, 12 } }, { TC_REDUCE_SCATTER, { 6, 6, 8 } },
               { TC_ALL_GATHER, { 8, 8, 4 } },    { TC_BROADCAST, { 0, 20, 0 } },
               { TC_REDUCE, { 10, 0, 10 } },      { TC_SCATTER, { 0, 6, 0 } },
               { TC_GATHER, { 4, 0, 2 } },        { TC_ALL_TO_ALL, { 6, 6, 8 } },
               { TC_SEND, { 10, 10, 10 } },       { TC_RECV, { 0, 0, 0 } },
               { TC_BARRIER, { 0, 0, 0 } } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    for (int k = 0; k < 3; k++) {
      is_int(coll_bytes(rows[i].coll, 3, k, 1, 10, 4), 4 * rows[i].want[k],
             "%s: what %d of three sends", tc_coll_name[rows[i].coll], k);
      is_int(coll_bytes(rows[i].coll, 1, 0, 0, 10, 4), 0, "... alone nothing");
    }
}

/* ---- waits ---------------------------------------------------------------------------------- */

static struct tc_comm *watched;
static void beats(void)
{
  if (looks == 9) watched->heartbeat++;
}

/* No sign of life for the deadline and ten seconds more. */
static void test_stuck(void)
{
  for (int alive = 0; alive < 2; alive++) {
    no_thread = 0;
    struct tc_comm *c = make(&ops, 1);
    struct tc_err err = { 0 };
    now_ns = looks = 0;
    tick_ns = TICK_NS / 2;
    watched = c;
    on_look = alive ? beats : NULL;
    c->last = 1;
    broadcasts = 0;
    pthread_mutex_lock(&c->lock);
    is_int(wait_here(c, 1, &err), TC_EPEER, "a library that does not come back%s",
           alive ? ", after a sign of life" : "");
    pthread_mutex_unlock(&c->lock);
    on_look = NULL;
    is_int(broadcasts, 1, "... which wakes all other threads that wait");
    char want[200];
    snprintf(want, sizeof want,
             "axis dp: a call of the communication library has not returned for %.0f "
             "s; check the network and "
             "the other ranks' logs",
             14.0);
    is_str(err.text, want, "... is reported");
    ok(c->failed && c->failure.status == TC_EPEER, "... and all fails from then on");
    is_int(looks, alive ? 37 : 29, "... after so many looks");
    is_int(tc_comm_usable(c, &err), TC_EPEER, "... alike");
    is_str(err.text, want, "... in the same words");
    tick_ns = 0;
    tc_comm_free(c);
  }
}

static void test_no_thread(void)
{
  struct tc_err err = { 0 };
  tc_ticket t = 5;
  no_thread = 1;
  struct tc_comm *c = make(&ops, 2);
  no_thread = 0;
  is_int(tc_comm_usable(c, &err), TC_EUSER, "a thread that can't be started");
  is_int(tc_comm_start(c, &(struct tc_coll_args){ .coll = TC_BARRIER }, &t, &err), TC_EUSER,
         "... fails each call");
  is_str(err.text, "no more threads", "... with why");
  is_int(t, 0, "... and no ticket");
  is_int(tc_comm_settle(c, &err), 0, "... nothing is to be waited for");
  ok(tc_comm_free(c) && frees == 1 && leaves == 1 && runs == 0, "... and it is freed");
}

/* A group of one runs its calls at once; what a device fails with, it fails with from then on. */
static void test_alone(void)
{
  struct tc_err err = { 0 };
  tc_ticket t;
  struct tc_comm *c = make(&ops, 1);
  const struct tc_coll_args data = { .coll = TC_BARRIER },
                            ctl = { .coll = TC_BARRIER, .ctl = true };
  for (int i = 1; i <= 3; i++) {
    is_int(tc_comm_start(c, i == 2 ? &ctl : &data, &t, &err), 0, "call %d alone", i);
    ok(t == i && runs == i && tc_comm_test(c, t, &err) == 1 && !c->head && c->spare &&
           !c->spare->next,
       "... is done");
  }
  const struct tc_comm_counters *n = tc_comm_counters(c);
  ok(n->data[TC_BARRIER].calls == 2 && n->data[TC_BARRIER].bytes == 20 &&
         n->ctl[TC_BARRIER].calls == 1 && n->ctl[TC_BARRIER].bytes == 10,
     "... and counted");
  tc_comm_free(c);
  c = make(&device, 1);
  is_int(tc_comm_run(c, &data, &err), 0, "a device's call");
  fails = 1;
  is_int(tc_comm_start(c, &data, &t, &err), TC_ENOCKPT, "one that it can't begin");
  fails = 0;
  is_int(tc_comm_start(c, &data, &t, &err), TC_ENOCKPT, "... is the last");
  is_str(err.text, "it broke", "... in its words");
  ok(runs == 1 && tc_comm_counters(c)->data[TC_BARRIER].calls == 1, "... and not counted");
  tc_comm_free(c);
  is_int(frees, 1, "freed once");
  c = make(&device, 1);
  fails = 2;
  is_int(tc_comm_start(c, &data, &t, &err), TC_ENOCKPT, "one that begins, then fails");
  ok(t == 1 && runs == 1 && tc_comm_usable(c, &err) == TC_ENOCKPT, "... is the last one, too");
  is_int(tc_comm_wait(c, t, &err), TC_ENOCKPT, "... waiting for it fails");
  ok(c->spare && !c->spare->next, "... it is kept to be used again");
  tc_comm_free(c);
}

static void *hang(void *arg)
{
  pause();
  return arg;
}

/* A worker that hangs is left behind, after five seconds for all together. */
static void test_left_behind(void)
{
  static struct tc_comm hangs[2];
  for (int i = 0; i < 2; i++) {
    hangs[i] = (struct tc_comm){ .ops = &ops, .threaded = true, .name = tc_strdup("tp") };
    pthread_mutex_init(&hangs[i].lock, NULL);
    pthread_cond_init(&hangs[i].work, NULL);
    pthread_cond_init(&hangs[i].ended, NULL);
    pthread_create(&hangs[i].thread, NULL, hang, NULL);
  }
  struct tc_comm *const all[] = { &hangs[0], NULL, &hangs[1] };
  frees = 0;
  now_ns = 0;
  tick_ns = TICK_NS / 10;
  ok(!tc_comms_free(all, 3), "two that hang are left behind");
  tick_ns = 0;
  is_str(warned, "axis tp: the communication thread does not return; left behind",
         "... as is reported");
  ok(hangs[0].stop && hangs[1].stop && frees == 0, "... asked to leave, and not freed");
  ok(now_ns >= LEAVE_NS && now_ns < LEAVE_NS + TICK_NS, "... after %.1f s for both",
     (double)now_ns * 1e-9);
  ok(tc_comms_free(all + 1, 1) && tc_comm_free(NULL), "none is freed at once");
}

/* A call wakes the worker and its end wakes the threads that wait; tc_comm_free wakes both. */
static void test_wakes(void)
{
  for (int broken = 0; broken < 2; broken++) {
    struct tc_err err = { 0 };
    tc_ticket t;
    signals = broadcasts = monotonic = 0;
    struct tc_comm *c = make(&ops, 2);
    is_int(monotonic, 2, "both conditions are waited for by the monotonic clock");
    fails = broken;
    tc_comm_start(c, &(struct tc_coll_args){ .coll = TC_BARRIER }, &t, &err);
    is_int(tc_comm_wait(c, t, &err), broken ? TC_ENOCKPT : 0, "a call of two");
    ok(signals == 1 && broadcasts == 1, "... wakes the worker, then the thread that waits");
    ok(c->heartbeat == 2 && !c->head && !c->tail && c->spare, "... two signs of life, nothing queued");
    ok(tc_comm_free(c), "... it is freed");
    is_int(broadcasts, 3, "... which wakes the worker, and at its end the thread that waits");
    ok(frees == 1 && leaves == 1, "... the backend leaves, then is freed");
  }
  struct tc_err err = { 0 };
  struct tc_comm *c = make(&device, 2);
  fails = 1;
  broadcasts = 0;
  is_int(tc_comm_run(c, &(struct tc_coll_args){ .coll = TC_BARRIER }, &err), TC_ENOCKPT,
         "a device's call that can't begin");
  is_int(broadcasts, 1, "... wakes the threads that wait");
  tc_comm_free(c);
}

/* Under a watchdog a thread runs the call that it waits for, if no other is before it; the worker hears of the others. */
static void test_runs_itself(void)
{
  static const struct { int soon, later, wait_for; bool guarded, fails; int own_runs, signals; } rows[] = {
    { 1, 0, 1, true, false, 1, 0 }, { 1, 0, 1, true, true, 1, 0 }, { 1, 0, 1, false, false, 0, 1 },
    { 2, 0, 1, true, false, 1, 1 }, { 2, 0, 2, true, false, 0, 1 }, { 1, 1, 2, true, false, 0, 1 } };
  const struct tc_coll_args later = { .coll = TC_BARRIER }, soon = { .coll = TC_BARRIER, .soon = true };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_err err = { 0 };
    runs = frees = leaves = fails = 0;
    tick_ns = 0;
    struct tc_comm *c = tc_comm_new(&ops, &runs, &(struct tc_members){ .size = 2 },
                                    &(struct tc_comm_opts){ .name = "dp", .deadline_s = 3 }, (struct tc_blocked_call *)&runs);
    tc_comm_start(c, &later, NULL, &err);
    TC_ASSERT(tc_comm_wait(c, 1, &err) == 0);           /* from now on the worker sleeps */
    guarded = rows[i].guarded, fails = rows[i].fails, runs = 0;
    signals = own_runs = waits = 0;
    for (int k = 0; k < rows[i].soon; k++) tc_comm_start(c, &soon, NULL, &err);
    is_int(signals, 0, "row %d: calls that are waited for soon wake nobody", (int)i);
    for (int k = 0; k < rows[i].later; k++) tc_comm_start(c, &later, NULL, &err);
    is_int(tc_comm_wait(c, 1 + rows[i].wait_for, &err), fails ? TC_ENOCKPT : 0, "... are waited for");
    if (rows[i].later == 0) is_int(own_runs, rows[i].own_runs, "... by running one, or not");
    is_int(signals, rows[i].signals, "... the worker is told of the others");
    is_int(tc_comm_settle(c, &err), fails ? TC_ENOCKPT : 0, "... all end");
    is_int(runs, rows[i].soon + rows[i].later, "... all have run");
    guarded = false;
    tc_comm_free(c);
  }
  struct tc_err err = { 0 };
  struct tc_comm *c = make(&device, 2);
  int bad = 0;
  signals = 0;
  for (int k = 0; k < 10; k++) bad += tc_comm_run(c, &soon, &err) != 0;      /* more than are in flight at once */
  is_int(bad, 0, "calls of a device are for the worker, which polls them");
  is_int(signals, 10, "... and hears of each");
  tc_comm_free(c);
  c = make(&ops, 2);
  tc_ticket t;
  TC_ASSERT(tc_comm_start(c, &soon, &t, &err) == 0);
  int done = 0;
  for (int k = 0; k < 100000 && !done; k++) {
    done = tc_comm_test(c, t, &err);
    tc_sleep_ns(100000);
  }
  is_int(done, 1, "one that is asked for is run, too");
  tc_comm_free(c);
}

/* A call that ended is used again, and its array of parts made longer where it is too short. */
static void one_after_another(void)
{
  static const struct tc_part part[5];
  struct tc_err err = { 0 };
  struct tc_comm *c = make(&ops, 1);
  for (int n = 1; n <= 5; n += 2) {
    const struct tc_coll_args a = { .coll = TC_ALL_GATHER, .n_parts = n, .parts = part };
    tc_comm_run(c, &a, &err);
  }
  tc_comm_free(c);
}

int main(void)
{
  alarm(300);
  test_refused();
  test_bytes();
  test_stuck();
  test_no_thread();
  test_alone();
  test_wakes();
  test_runs_itself();
  leaves_nothing("a communicator of one", one_after_another, 20);
  ok(locks == 0 && least_locks == 0, "each lock that was taken was released");
  test_left_behind();
  const int status = done_testing();
  fflush(stdout);
  _Exit(status); /* threads hang, as they should */
}
