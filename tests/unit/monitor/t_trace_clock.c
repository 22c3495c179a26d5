/* t_trace_clock.c - how ranks compare their clocks for a trace (trace.c), with messages and a clock of the
 * test's own. */
#include "src/comm/comm.h"
#include "tests/unit/tap.h"

static int64_t now_ns, trips[12], sent[12];
static int n_trips, n_sent, fail_at, n_runs;
static char calls[2000];

static int64_t clock_ns(void) { return now_ns; }

/* Rank 0 answers in the middle of the round trip; its clock is 500 ns ahead, and 30 of a late answer more. */
static int pass_on(struct tc_comm *c, const struct tc_coll_args *a, struct tc_err *err)
{
  (void)c;
  if (n_runs++ == fail_at) return tc_fail(err, TC_EPEER, "fault");
  if (a->dtype != TC_U8 || !a->ctl || strcmp(a->what, "clocks") || a->n_parts != 1 ||
      a->parts->count != 8 || a->parts->block != 8)
    strcat(calls, "?");
  snprintf(calls + strlen(calls), sizeof calls - strlen(calls), "%s%d ", tc_coll_name[a->coll],
           a->root);
  if (a->coll == TC_SEND) {
    memcpy(&sent[n_sent++ % 12], a->parts->src, 8);
    return 0;
  }
  const int64_t trip = trips[n_trips++ % 12], x = now_ns + trip / 2 + 500 + (trip > 40 ? 30 : 0);
  now_ns += trip;
  memcpy(a->parts->dst, &x, 8);
  return 0;
}

#define tc_now_ns clock_ns
#define tc_comm_run pass_on
#include "src/monitor/trace.c"

static struct tc_trace trace;
static void set_up(void)
{
  trace = (struct tc_trace){ .o = { .world = 3 } };
  now_ns = 1000;
  n_trips = n_sent = n_runs = 0;
  fail_at = -1;
  *calls = 0;
  for (int i = 0; i < 12; i++) trips[i] = 100 + i;
}

/* The shortest round trip counts, the first of these. */
static void test_ask(void)
{
  struct moment m = { 0, 0, 0 };
  struct tc_err err = { 0 };
  set_up();
  trips[5] = trips[7] = 21;
  is_int(ask_time(&trace, NULL, &m, &err), 0, "the time is asked for");
  is_str(
      calls,
      "send0 recv0 send0 recv0 send0 recv0 send0 recv0 send0 recv0 send0 recv0 send0 recv0 send0 recv0 "
      "send0 recv0 send0 recv0 send0 recv0 send0 recv0 ",
      "... twelve times");
  is_int(m.at_ns, 1000 + 510 + 10, "... when: the middle of the sixth");
  is_int(m.offset_ns, 500, "... what it is there");
  is_int(m.error_ns, 11, "... give or take");
  for (int i = 0; i < 2; i++) {
    set_up();
    fail_at = i;
    is_int(ask_time(&trace, NULL, &m, &err), TC_EPEER, "message %d fails", i);
    is_int(n_runs, i + 1, "... the last");
  }
}

static void test_tell(void)
{
  struct tc_err err = { 0 };
  int wrong = 0;
  set_up();
  trace.o.skew_ns = 7;
  trace.o.drift = 0.5;
  is_int(send_time(&trace, NULL, 2, &err), 0, "the time is sent");
  is_str(
      calls,
      "recv2 send2 recv2 send2 recv2 send2 recv2 send2 recv2 send2 recv2 send2 recv2 send2 recv2 send2 "
      "recv2 send2 recv2 send2 recv2 send2 recv2 send2 ",
      "... twelve times");
  for (int64_t i = 0, t = 1000; i < 12; i++) {
    t += trips[i];
    wrong += sent[i] != t + 7 + t / 2;
  }
  is_int(wrong, 0, "... as it is then");
  for (int i = 0; i < 2; i++) {
    set_up();
    fail_at = i;
    is_int(send_time(&trace, NULL, 2, &err), TC_EPEER, "message %d fails", i);
    is_int(n_runs, i + 1, "... the last");
  }
}

/* Rank 0 asks each of the others in turn; an error ends it. */
static void test_sync(void)
{
  struct tc_err err = { 0 };
  set_up();
  trace.n_syncs = 1; /* all count from one moment already */
  is_int(tc_trace_sync(&trace, NULL, &err), 0, "rank 0");
  is_int(n_runs, 48, "... tells two ranks");
  ok(!strncmp(calls, "recv1 send1 recv1", 17) && strstr(calls, "recv2 send2"),
     "... one after the other");
  is_int(trace.n_syncs, 2, "... once more");
  is_int(trace.sync[1].at_ns, 1000, "... at its own time");
  ok(trace.sync[1].offset_ns == 0 && trace.sync[1].error_ns == 0, "... which is right");
  is_int(trace.sync[0].at_ns, 0, "... the first time stays");
  set_up();
  trace.o.rank = 2;
  trace.n_syncs = 1;
  is_int(tc_trace_sync(&trace, NULL, &err), 0, "rank 2");
  is_int(n_runs, 24, "... asks rank 0 alone");
  is_int(trace.sync[1].error_ns, 51, "... and keeps what it heard");
  for (int rank = 0; rank < 3; rank += 2) {
    set_up();
    trace.o.rank = rank;
    trace.n_syncs = 1;
    fail_at = 0;
    is_int(tc_trace_sync(&trace, NULL, &err), TC_EPEER, "a fault of rank %d", rank);
    is_int(trace.n_syncs, 1, "... is no moment");
  }
  is_int(tc_trace_sync(NULL, NULL, &err), 0, "no trace");
}

/* Offsets between and beyond the two moments; offsets within their errors count as 0. */
static void test_common(void)
{
  static const struct {
    struct moment a, b;
    int n;
    int64_t ns, want;
  } rows[] = { { { 100, 50, 5 }, { 300, 90, 5 }, 0, 200, 200 },
               { { 100, 50, 5 }, { 300, 90, 5 }, 1, 200, 250 },
               { { 100, 50, 5 }, { 300, 90, 5 }, 2, 200, 270 },
               { { 100, 50, 5 }, { 300, 90, 5 }, 2, 400, 510 },
               { { 100, 50, 5 }, { 300, 90, 5 }, 2, 0, 30 },
               { { 100, 50, 50 }, { 300, -90, 90 }, 2, 200, 200 },
               { { 100, 50, 50 }, { 300, 90, 89 }, 2, 200, 270 },
               { { 100, -50, 49 }, { 300, 90, 90 }, 2, 100, 50 },
               { { 100, 50, 5 }, { 100, 90, 5 }, 2, 200, 250 } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    set_up();
    trace.sync[0] = rows[i].a;
    trace.sync[1] = rows[i].b;
    trace.n_syncs = rows[i].n;
    is_int(tc_trace_common_ns(&trace, rows[i].ns), rows[i].want, "a moment on rank 0's clock, %zu",
           i);
  }
}

int main(void)
{
  test_ask();
  test_tell();
  test_sync();
  test_common();
  return done_testing();
}
