/* t_watch_thread.c - the watchdog's thread: when it ends a run, which questions it answers, how it is
 * made, and that it leaves nothing behind. */
#include "tests/unit/leak.h"
#include "tests/unit/wakes.h"
#include "tests/unit/watch/watchdog.h"

/* ---- channel with one question in it ------------------------------------------------------------- */

static bool came;
static void channel_send(struct tc_channel *m, int to, const void *buf, int bytes)
{
  const struct message *l = buf;
  TC_ASSERT(m && bytes == sizeof *l);
  tc_text_add(logged, sizeof logged, " %s %d>%d %s\n", l->kind == TELL ? "TELL" : "?", l->from, to,
              l->report.text);
}
static bool channel_poll(struct tc_channel *m, void *buf, int bytes)
{
  const struct message ask = { .kind = ASK, .from = 9, .about = 0 };
  TC_ASSERT(m && bytes == sizeof ask);
  if (came) return false;
  memcpy(buf, &ask, sizeof ask);
  return came = true;
}
static void channel_free(struct tc_channel *m) { (void)m; }
static struct tc_channel channel = { channel_send, channel_poll, channel_free };

/* ---- the thread ------------------------------------------------------------------------------- */

static void quit(void) { w.quit = true; }

/* Runs the watchdog here, until its clock has been read so often; each time it goes on by ns. */
static void turn(int until, int64_t ns)
{
  pthread_cond_init(&w.wake, NULL);
  pthread_cond_init(&w.answered, NULL);
  tick_ns = ns;
  looks = until;
  on_tick = quit;
  watchdog(&w);
  tick_ns = 0;
  on_tick = NULL;
}

static int halves;
static void half(void) { halves++; }

/* Half of the deadline is told once. */
static void test_half(void)
{
  static const struct { int looks, halves; } rows[] = { { 5, 0 }, { 45, 1 } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    make(0, 1, W);
    tc_watch_enter(&w, 0);
    w.o.half = half;
    halves = 0;
    turn(rows[i].looks, SECOND);
    is_int(halves, rows[i].halves, "%d looks at the clock: half of the deadline has passed", rows[i].looks);
    done();
  }
}

/* A run that was given up is ended after ten seconds, and not before; one that hangs, after the
 * deadline, for which half a second at most counts of the time between two looks. */
static void test_thread(void)
{
  static const struct { int looks; const char *want; } rows[] = {
    { 9, "" }, { 12, " end 8: the run was given up\n" } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    make(0, 1, W);
    w.given_up_ns = now_ns;
    turn(rows[i].looks, SECOND);
    is_str(logged, rows[i].want, "given up, %d looks at the clock", rows[i].looks);
    done();
  }
  make(0, 1, W);
  tc_watch_enter(&w, 0);
  turn(45, SECOND);
  is_str(logged,
         "[0] r0 has stood still for 10.5 s (deadline run.deadline) at starting\n"
         "[0] r0 stands at starting, for 10.5 s\n[-1] end 8: a rank hangs\n", "a rank hangs");
  done();
  make(0, 1, W);
  tc_watch_enter(&w, 0);
  turn(9, SECOND / 10);
  is_int(tc_thread_status_mine()->quiet_ns, 4 * SECOND / 5, "a thread is quiet from its last mark on");
  done();
  make(0, 1, W);
  tc_watch_channel(&w, &channel);
  turn(2, SECOND);
  is_str(logged, " TELL 0>9 not started\n", "messages are read meanwhile");
  done();
}

/* In place of the watchdog: answers the questions there are. */
static void *serve_once(void *arg)
{
  pthread_mutex_lock(&w.lock);
  while (!w.requests) pthread_cond_wait(&w.wake, &w.lock);
  for (struct request *r = w.requests; r; r = r->next) {
    *r->out = (struct tc_diagnosis){ .n = r->n == 2 && r->late[0] == 2 && r->late[1] == 4 ? 1 : 9 };
    snprintf(r->out->suspects, sizeof r->out->suspects, "r%d", r->from);
    r->done = true;
  }
  w.requests = NULL;
  pthread_cond_broadcast(&w.answered);
  pthread_mutex_unlock(&w.lock);
  return arg;
}

static void test_served(void)
{
  struct tc_diagnosis b = { .n = 5 };
  const int32_t late[] = { 2, 4 };
  pthread_t t;
  make(1, 1, W);
  now_ns = INT64_C(4000000000) * SECOND; /* the wait for an answer does not end by itself */
  tc_cond_init(&w.wake);
  tc_cond_init(&w.answered);
  tc_watch_enter(&w, 1);
  struct tc_blocked_call *s = tc_blocked_call_new();
  tc_blocked_call_set(s, "recv", 1, late, 2);
  TC_ASSERT(pthread_create(&t, NULL, serve_once, NULL) == 0);
  signals = 0;
  ok(tc_blocked_call_diagnose(s, &b), "a question is answered");
  is_int(signals, 1, "... the watchdog is woken");
  pthread_join(t, NULL);
  ok(b.n == 1 && !strcmp(b.suspects, "r1"), "... for its rank and those that are late");
  tc_rank_status_clear(&local[0]);
  tc_thread_status_use(NULL);
}

/* Ranks 3 and 4. */
static const struct tc_watch_opts two_ranks = {
  .world = W, .first = 3, .n_local = 2, .rank_names = names, .end = no_end
};

static void test_new(void)
{
  static const struct { double s; int64_t ns; } deadline[] = {
    { 0, 600 * SECOND }, { -1, 600 * SECOND }, { 2.5, 2500000000 },
    { 1e30, INT64_C(1000000000) * SECOND } };
  struct tc_watch *made = &w;
  struct tc_err err = { 0 };
  no_thread = 1;
  is_int(tc_watch_new(&made, &two_ranks, &err), TC_ENOCKPT, "a watchdog that can't have a thread");
  ok(!made && !strcmp(err.text, "no more threads"), "... is not made");
  no_thread = 0;
  for (size_t i = 0; i < sizeof deadline / sizeof *deadline; i++) {
    struct tc_watch_opts with = two_ranks;
    with.deadline_s = deadline[i].s;
    signals = monotonic = 0;
    is_int(tc_watch_new(&made, &with, &err), 0, "a watchdog with a deadline of %g s",
           deadline[i].s);
    is_int(made->deadline_ns, deadline[i].ns, "... in ns");
    for (int k = 0; k < 2; k++)
      ok(made->local[k].watch == made && made->local[k].rank == 3 + k && made->local[k].world == W,
         "... of its rank %d", k);
    tc_watch_enter(made, 4);
    is_int(monotonic, 2, "... both waits are by the monotonic clock");
    tc_watch_free(made);
    is_int(signals, 1, "... its end wakes it");
    ok(!tc_thread_status_mine(), "... this thread has no thread any more");
  }
  make(0, 1, W);
  tc_watch_enter(&w, 0);
  struct tc_thread_status *mine = tc_thread_status_mine();
  tc_watch_new(&made, &two_ranks, &err);
  tc_thread_status_use(NULL);
  tc_watch_enter(made, 3);
  tc_thread_status_use(mine);
  tc_watch_free(made);
  ok(tc_thread_status_mine() == mine, "a thread of another watchdog stays");
  tc_rank_status_clear(&local[0]);
  tc_watch_free(NULL);
}

/* A thread that is still at work keeps its thread. */
static void test_kept(void)
{
  struct tc_watch *made;
  struct tc_err err;
  TC_ASSERT(tc_watch_new(&made, &two_ranks, &err) == 0);
  tc_watch_enter(made, 4);
  struct tc_thread_status *main = tc_thread_status_mine(), *writer = tc_thread_status_new("writer");
  tc_thread_status_use(writer);
  tc_at_file("writing", "x");
  const int64_t before = in_use();
  tc_watch_free(made);
  ok(in_use() > before - (int64_t)sizeof *made, "a watchdog with a thread that works is not freed");
  tc_at_rest();
  tc_thread_status_use(main);
  ok(writer->rests && main->of_rank == &made->local[1], "... nor are its threads");
  for (int i = 0; i < 2; i++) tc_rank_status_clear(&made->local[i]);
  free(made->local);
  free(made);
}

/* With a thread and without. */
static void make_and_free(void)
{
  struct tc_watch *made;
  struct tc_err err;
  for (no_thread = 0; no_thread < 2; no_thread++) {
    if (tc_watch_new(&made, &two_ranks, &err) < 0) continue;
    tc_watch_enter(made, 4);
    tc_thread_status_new("x");
    tc_blocked_call_new();
    tc_blocked_call_new();
    tc_watch_free(made);
  }
  no_thread = 0;
}

int main(void)
{
  test_half();
  test_thread();
  test_served();
  test_new();
  test_kept();
  leaves_nothing("a watchdog", make_and_free, 200);
  return done_testing();
}
