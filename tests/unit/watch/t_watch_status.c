/* t_watch_status.c - what threads and blocked_calls say of a rank, word by word, and which thread hangs. */
#include "tests/unit/watch/watchdog.h"

static void is_text(struct tc_thread_status *l, const char *want)
{
  char text[300] = "";
  tc_thread_status_text(l, text, sizeof text);
  is_str(text, want, "a thread: %s", want);
}

/* ---- threads ---------------------------------------------------------------------------------- */

static void test_thread_status(void)
{
  struct tc_standing s;
  make(0, 2, 2);
  ok(!tc_watch_standing(&s) && s.rank == -1 && s.step == 0 && !*s.thread && !*s.word[0] &&
         !*s.word[1] && !*s.word[2],
     "without a thread there is no place");
  tc_at("a", "b", "c", 1);
  tc_at_again();
  tc_at_step(3);
  tc_thread_status_waits(NULL);
  tc_watch_allow(3);
  tc_watch_leave(0, NULL);
  ok(!tc_thread_status_new("x") && !tc_thread_status_mine() && !tc_blocked_call_new(), "... nor is anything made");
  tc_watch_enter(&w, 1);
  struct tc_thread_status *l = tc_thread_status_mine();
  ok(l && l->of_rank == &local[1] && !local[0].threads && local[1].threads == l, "a thread of rank 1");
  is_str(l->name, "main", "... the main one");
  is_text(l, "starting");
  ok(!l->rests, "... which works");
  uint64_t marks = l->marks;
  tc_at("forward", "matmul", "h.3", 2);
  is_int((int64_t)(l->marks - marks), 1, "a mark is counted");
  is_text(l, "forward matmul of h.3, micro-batch 2");
  tc_at("forward", "matmul", "", 0);
  is_text(l, "forward matmul, micro-batch 0");
  tc_at("forward", NULL, "h.3", -1);
  is_text(l, "forward of h.3");
  tc_at_step(12);
  is_int((int64_t)(l->marks - marks), 4, "a step is one, too");
  is_text(l, "step 12, forward of h.3");
  ok(tc_watch_standing(&s) && s.rank == 1 && s.step == 12, "where it stands");
  is_str(s.thread, "main", "... in its thread");
  ok(!strcmp(s.word[0], "forward") && !strcmp(s.word[1], "h.3") && !*s.word[2],
     "... with the words that there are");
  tc_at("a", "", "c", 0);
  ok(tc_watch_standing(&s) && !strcmp(s.word[0], "a") && !strcmp(s.word[1], "c") && !*s.word[2],
     "... without empty ones");
  tc_at_file("fsync", "/x");
  is_text(l, "step 12, fsync of /x");
  ok(tc_watch_standing(&s) && !strcmp(s.word[0], "fsync of /x") && !*s.word[1],
     "... or with a file's");
  tc_at_again();
  is_int((int64_t)(l->marks - marks), 7, "each mark is counted");
  tc_at_step(0);
  is_text(l, "fsync of /x");
  tc_at_rest();
  ok(l->rests, "at rest");
  is_text(l, "idle");
  tc_at("forward", NULL, NULL, -1);
  ok(!l->rests, "... until the next mark");
  is_text(l, "forward");
  tc_at_rest();
  tc_at_phase("open");
  ok(!l->rests, "... which may be a phase");
  is_text(l, "open");
  tc_watch_allow(2.5);
  is_int(l->least_ns, 2500000000, "it is allowed more time");
  local[1].world = 1;
  ok(tc_watch_standing(&s) && s.rank == -1, "one rank alone has no number");
  ok(!tc_thread_status_helps(l), "a thread that helped no other");
  tc_thread_status_use(NULL);
  ok(tc_watch_standing(&s) && !strcmp(s.thread, "of OpenMP") && !strcmp(s.word[0], "open"),
     "a thread of OpenMP");
  ok(tc_thread_status_helps(NULL), "... that did");
  ok(!tc_thread_status_helps(NULL) && !tc_watch_standing(&s), "... and no longer does");
  done();
}

/* Which of a rank's threads tells where it stands, and what a thread leaves behind. */
static void test_report(void)
{
  struct report r;
  make(5, 1, W);
  tc_rank_status_report(local, names, &r);
  ok(r.rank == 5 && r.state == BUSY && r.n == 0 && r.for_ns == 0, "a rank before its thread");
  is_str(r.text, "not started", "... has not started");
  tc_watch_enter(&w, 5);
  ok(!tc_rank_status_left(local), "the own thread is not counted as left");
  struct tc_thread_status *main = tc_thread_status_mine(), *other = tc_thread_status_new("writer");
  is_str(other->name, "writer", "another thread");
  tc_rank_status_report(local, names, &r);
  is_str(r.text, "starting", "another thread at rest tells nothing");
  ok(!tc_rank_status_left(local), "... and may stay");
  tc_thread_status_use(other);
  tc_at_file("writing", "x");
  ok(tc_rank_status_left(local), "... one that works may not");
  tc_thread_status_use(main);
  tc_rank_status_report(local, names, &r);
  is_str(r.text, "starting", "the rank's own tells");
  other->quiet_ns = SECOND - 1;
  tc_rank_status_report(local, names, &r);
  is_str(r.text, "starting", "... unless another hangs: not yet");
  other->quiet_ns = SECOND;
  tc_rank_status_report(local, names, &r);
  is_str(r.text, "writing of x", "... now");
  is_int(r.for_ns, SECOND, "... for so long");
  main->quiet_ns = SECOND + 1;
  tc_rank_status_report(local, names, &r);
  ok(!strcmp(r.text, "starting") && r.for_ns == SECOND + 1 && r.state == BUSY,
     "of two that hang the one that does longer");
  main->quiet_ns = other->quiet_ns = 0;
  tc_at_rest();
  tc_rank_status_report(local, names, &r);
  is_str(r.text, "writing of x", "one that rests tells less than one that works");
  struct tc_blocked_call *s = tc_blocked_call_new();
  ok(local->blocked_calls == s && s->of_rank == local, "a blocked call");
  tc_at("forward", NULL, NULL, -1);
  tc_thread_status_waits(s);
  tc_rank_status_report(local, names, &r);
  ok(r.state == WAITING && r.n == 0, "it waits, for no known rank yet");
  is_str(r.text, "forward; communicates", "... and says so");
  int32_t late[TC_SUSPECTS + 2];
  for (int i = 0; i < TC_SUSPECTS + 2; i++) late[i] = i;
  tc_blocked_call_set(s, "recv on axis pp", 1.5, late + 2, 2);
  now_ns += SECOND;
  tc_rank_status_report(local, names, &r);
  is_str(r.text, "forward; waits for recv on axis pp from r2, r3", "for whom");
  ok(r.n == 2 && r.late[0] == 2 && r.late[1] == 3 && r.for_ns == 2500000000, "... for how long");
  tc_blocked_call_set(s, "x", 0, late, TC_SUSPECTS + 2);
  tc_rank_status_report(local, names, &r);
  ok(r.n == TC_SUSPECTS && r.late[TC_SUSPECTS - 1] == TC_SUSPECTS - 1, "... for so many at most");
  tc_blocked_call_clear(s);
  tc_rank_status_report(local, names, &r);
  is_str(r.text, "forward; communicates", "... for none any more");
  tc_thread_status_waits(NULL);
  tc_rank_status_report(local, names, &r);
  ok(r.state == BUSY && !strcmp(r.text, "forward"), "it goes on");
  tc_blocked_call_set(NULL, "x", 0, late, 1);
  tc_blocked_call_clear(NULL);
  struct tc_err err = { 0 };
  tc_fail(&err, TC_ENOCKPT, "no file");
  tc_watch_leave(TC_ENOCKPT, &err);
  tc_rank_status_report(local, names, &r);
  ok(r.state == ENDED && !strcmp(r.text, "status 5: no file") && main->rests,
     "it has ended, with its last words");
  tc_watch_leave(0, NULL);
  tc_rank_status_report(local, names, &r);
  is_str(r.text, "its work is done", "... or well");
  done();
}

/* Which thread has stood still for longer than it may. */
static void test_quiet(void)
{
  static const struct {
    const char *what;
    bool rests, waits, moves;
    double least_s;
    int64_t want_ns;
    bool hangs;
  } rows[] = { { "stands still", false, false, false, 0, 11 * SECOND, true },
               { "rests", true, false, false, 0, 0, false },
               { "waits", false, true, false, 0, 0, false },
               { "moves", false, false, true, 0, 0, false },
               { "is allowed more", false, false, false, 11, 11 * SECOND, false },
               { "is allowed less", false, false, false, 3, 11 * SECOND, true } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    make(0, 2, 2);
    tc_watch_enter(&w, 0);
    tc_at_rest();
    tc_watch_enter(&w, 1);
    struct tc_thread_status *l = tc_thread_status_mine();
    tc_watch_allow(rows[i].least_s);
    if (rows[i].rests) tc_at_rest();
    if (rows[i].waits) tc_thread_status_waits(tc_blocked_call_new());
    ok(!find_hanging_thread(&w, 5 * SECOND) && l->quiet_ns == 0, "a thread that %s: the first look",
       rows[i].what);
    ok(!find_hanging_thread(&w, 10 * SECOND), "... 10 s later: not longer than the deadline");
    if (rows[i].moves) tc_at_again();
    ok(find_hanging_thread(&w, SECOND) == (rows[i].hangs ? l : NULL), "... 11 s");
    is_int(l->quiet_ns, rows[i].want_ns, "... so long quiet");
    done();
  }
}

int main(void)
{
  test_thread_status();
  test_report();
  test_quiet();
  return done_testing();
}
