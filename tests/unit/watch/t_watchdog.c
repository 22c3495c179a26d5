/* t_watchdog.c - the watchdog's messages, its search and its diagnoses, one by one. Its threads are
 * t_watch's. */
#include "tests/unit/watch/watchdog.h"

/* ---- messages -------------------------------------------------------------------------------- */

static struct message in[8], reply[W]; /* those that came; what ranks answer when they are asked */
static int n_in, at_in;
static int64_t arrives_ns; /* no message before */
static char sent[600];

static void channel_send(struct tc_channel *m, int to, const void *buf, int bytes)
{
  const struct message *l = buf;
  static const char *const kind[] = { "?", "ASK", "TELL", "GIVE_UP" };
  (void)m;
  tc_text_add(sent, sizeof sent, "%s%s %d>%d %d", *sent ? ", " : "",
              kind[bytes == sizeof *l ? l->kind : 0], l->from, to, l->about);
  if (l->kind == TELL) tc_text_add(sent, sizeof sent, " %s", l->report.text);
  if (l->kind == ASK && reply[to].kind) in[n_in++] = reply[to];
}

static bool channel_poll(struct tc_channel *m, void *buf, int bytes)
{
  (void)m;
  if (at_in == n_in || now_ns < arrives_ns || bytes != sizeof *in) return false;
  memcpy(buf, &in[at_in++], sizeof *in);
  return true;
}

static int freed;
static void channel_free(struct tc_channel *m) { freed += m != NULL; }
static struct tc_channel channel = { channel_send, channel_poll, channel_free };

static void post_office(void)
{
  n_in = at_in = 0;
  arrives_ns = 0;
  sent[0] = logged[0] = 0;
  memset(reply, 0, sizeof reply);
  tc_watch_channel(&w, &channel);
}

static struct message answer(int about, int state, int64_t for_ns, const char *text, int late)
{
  struct message l = {
    .kind = TELL,
    .from = about,
    .about = about,
    .report = { .rank = about, .state = state, .for_ns = for_ns, .n = late >= 0, .late = { late } }
  };
  snprintf(l.report.text, sizeof l.report.text, "%s", text);
  return l;
}

static void test_messages(void)
{
  static const struct {
    int first, n, world;
    const char *sent;
  } rows[] = { { 0, 1, 12, "GIVE_UP 0>1 0, GIVE_UP 0>2 0, GIVE_UP 0>4 0, GIVE_UP 0>8 0" },
               { 10, 1, 12, "GIVE_UP 10>11 0, GIVE_UP 10>0 0, GIVE_UP 10>2 0, GIVE_UP 10>6 0" },
               { 1, 1, 2, "GIVE_UP 1>0 0" },
               { 0, 4, 4, "" },
               { 0, 1, 1, "" },
               { 2, 1, 4, "GIVE_UP 2>3 0, GIVE_UP 2>0 0" } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char want[300] = "";
    make(rows[i].first, rows[i].n, rows[i].world);
    post_office();
    give_up(&w);
    is_str(sent, rows[i].sent, "rank %d of %d gives up", rows[i].first, rows[i].world);
    for (int r = rows[i].first; r < rows[i].first + rows[i].n; r++)
      tc_text_add(want, sizeof want, "[%d] r%d stands at not started, for 0.0 s\n",
                  rows[i].world > 1 ? r : -1, r);
    tc_text_add(want, sizeof want, "[%d]", tc_log_rank());
    is_str(logged, want, "... and says where it stands");
    is_int(w.given_up_ns, now_ns, "... the time of it");
    now_ns++;
    give_up(&w);
    is_str(sent, rows[i].sent, "... once");
    done();
  }
  make(4, 2, 12);
  post_office();
  tc_watch_enter(&w, 5);
  in[n_in++] = (struct message){ .kind = ASK, .from = 9, .about = 5 };
  in[n_in++] = (struct message){ .kind = ASK, .from = 9, .about = 6 };
  in[n_in++] = (struct message){ .kind = ASK, .from = 9, .about = 3 };
  in[n_in++] = (struct message){ .kind = ASK, .from = 8, .about = 4 };
  read_messages(&w);
  is_str(sent, "TELL 4>9 5 starting, TELL 4>8 4 not started",
         "questions about its own ranks are "
         "answered");
  ok(!w.given_up_ns, "... and no more");
  in[n_in++] = (struct message){ .kind = GIVE_UP, .from = 9 };
  read_messages(&w);
  is_int(w.given_up_ns, now_ns, "who hears of it gives up");
  w.n_suspects = 2;
  w.suspect[0] = (struct suspect){ .rank = 7 };
  w.suspect[1] = (struct suspect){ .rank = 8 };
  in[n_in++] = answer(8, BUSY, 3, "x", -1);
  in[n_in++] = answer(8, BUSY, 4, "y", -1);
  read_messages(&w);
  ok(!w.suspect[0].answered && w.suspect[1].answered && w.suspect[1].report.for_ns == 3,
     "an answer counts once");
  is_int(freed, 0, "the channel is open");
  tc_watch_channel(&w, NULL);
  is_int(freed, 1, "... and freed");
  ok(!next_message(&w, &in[0]), "without a channel there are no messages");
  send_message(&w, 3, &in[0]);
  done();
}

/* ---- the search ----------------------------------------------------------------------------- */

static void test_leads(void)
{
  make(0, 1, W);
  add_suspect(&w, -1, 0);
  add_suspect(&w, W, 0);
  is_int(w.n_suspects, 0, "no such ranks");
  add_suspect(&w, W - 1, 3);
  add_suspect(&w, W - 1, 4);
  add_suspect(&w, 0, 5);
  ok(w.n_suspects == 2 && w.suspect[0].rank == W - 1 && w.suspect[0].via == 3 &&
         w.suspect[0].asked_ns == now_ns && w.suspect[1].rank == 0 && w.suspect[1].via == 5,
     "each rank once");
  w.o.world = 1000;
  for (int r = 100; r < 1000; r++) add_suspect(&w, r, 0);
  is_int(w.n_suspects, TC_MOST_SUSPECTS, "so many at most");
  done();
}

/* Rank 0 (here, with 1 and 2) waits for 1 and 6; 1 for 2; 6 for 7; 7 works. */
static void test_gather(void)
{
  static const struct {
    const char *name;
    bool seven;
    int64_t arrives_s, took_ms;
    const char *who, *why;
  } rows[] = {
    { "who answers", true, 0, 2, "r7", "it stands at forward, for 9.0 s; r6 waits for it" },
    { "who answers late", true, 1, 1002, "r7", "it stands at forward, for 9.0 s; r6 waits for it" },
    { "who does not answer", false, 0, 2000, "r7",
      "it gives no sign of life: it was stopped, "
      "has died, or cannot be "
      "reached; see its node; r6 waits for it" },
    { "none who answers", false, 100, 2000, "r6",
      "it gives no sign of life: it was stopped, "
      "has died, or cannot be "
      "reached; see its node" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_diagnosis b;
    struct request r = { .from = 0, .n = 2, .late = { 1, 6 } };
    const int32_t two = 2;
    make(0, 3, W);
    post_office();
    tc_watch_enter(&w, 2);
    tc_watch_enter(&w, 1);
    struct tc_blocked_call *s = tc_blocked_call_new();
    tc_blocked_call_set(s, "recv", 1, &two, 1);
    tc_thread_status_waits(s);
    reply[6] = answer(6, WAITING, 1, "w", 7);
    if (rows[i].seven) reply[7] = answer(7, BUSY, 9 * SECOND, "forward", -1);
    const int64_t began = now_ns;
    arrives_ns = now_ns + rows[i].arrives_s * SECOND;
    gather_reports(&w, &r);
    name_suspects(&w, &b);
    is_str(b.suspects, rows[i].who, "%s: is blamed", rows[i].name);
    is_str(b.why, rows[i].why, "... why");
    is_int(b.n, 1, "... alone");
    is_int(now_ns - began, rows[i].took_ms * 1000000, "... after so long");
    is_str(sent, rows[i].arrives_s < 100 ? "ASK 0>6 6, ASK 0>7 7" : "ASK 0>6 6",
           "... who was asked");
    done();
  }
}

static void test_name_suspects(void)
{
#define L(r, v, a, s, ns)                                                                          \
  {                                                                                                \
    .rank = r, .via = v, .answered = a, .report = {                                                \
      .state = s,                                                                                  \
      .for_ns = (ns)*SECOND,                                                                       \
      .text = "x"                                                                                  \
    }                                                                                              \
  }
  static const struct {
    struct suspect suspect[6];
    int n, blamed;
    const char *who, *why;
  } rows[] = {
    { { L(0, -1, true, WAITING, 0), L(1, 0, true, WAITING, 1) },
      2,
      0,
      "",
      "it waits itself, and so do all that it waits for: "
      "a message was lost, or the ranks do not run the same program" },
    { { L(0, -1, true, BUSY, 0) },
      1,
      0,
      "",
      "it waits itself, and so do all that it waits for: "
      "a message was lost, or the "
      "ranks do not run the same program" },
    { { L(0, -1, true, WAITING, 0), L(1, 0, true, BUSY, 1), L(2, 0, true, BUSY, 3),
        L(3, 2, true, BUSY, 2) },
      4,
      1,
      "r2",
      "it stands at x, for 3.0 s" },
    { { L(0, -1, true, WAITING, 0), L(1, 0, true, BUSY, 3), L(2, 0, true, BUSY, 3) },
      3,
      1,
      "r1",
      "it stands at x, for 3.0 s" },
    { { L(0, -1, true, WAITING, 0), L(1, 0, true, BUSY, 9), L(2, 1, true, ENDED, 0),
        L(3, 0, true, ENDED, 0) },
      4,
      2,
      "r2, r3",
      "it has ended: x; r1 waits for it" },
    { { L(0, -1, true, WAITING, 0), L(1, 0, true, ENDED, 0), L(2, 0, false, BUSY, 0),
        L(3, 0, true, WAITING, 0), L(4, 1, false, BUSY, 0) },
      5,
      2,
      "r2, r4",
      "it gives no sign of life: it was stopped, "
      "has died, or cannot be "
      "reached; see its node" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_diagnosis b;
    make(0, 1, W);
    memcpy(w.suspect, rows[i].suspect, sizeof rows[i].suspect);
    w.n_suspects = rows[i].n;
    name_suspects(&w, &b);
    is_str(b.suspects, rows[i].who, "diagnosis %d: suspects", (int)i);
    is_str(b.why, rows[i].why, "... why");
    is_int(b.n, rows[i].blamed, "... so many");
    done();
  }
  struct tc_diagnosis b;
  make(0, 1, W);
  for (int i = 0; i < W; i++) w.suspect[i] = (struct suspect){ .rank = i };
  w.n_suspects = W;
  name_suspects(&w, &b);
  is_int(b.n, TC_SUSPECTS, "so many at most");
  is_str(b.suspects, "r1, r2, r3, r4, r5, r6, r7, r8", "... by name");
  done();
}

/* ---- requests --------------------------------------------------------------------------------- */

static struct request other, another;
static void come(void)
{
  other.next = w.requests;
  w.requests = &other;
}
static void leave(void) { w.requests = other.next; }

/* A request that is not served is given up and withdrawn after 8 s. */
static void test_unserved(void)
{
  struct tc_diagnosis b = { .n = 5 };
  const int32_t late = 2;
  make(0, 1, W);
  pthread_cond_init(&w.wake, NULL);
  pthread_cond_init(&w.answered, NULL);
  tc_watch_enter(&w, 0);
  struct tc_blocked_call *s = tc_blocked_call_new();
  tc_blocked_call_set(s, "recv", 1, &late, 1);
  memset(&another, 0, sizeof another);
  w.requests = &another;
  tick_ns = SECOND;
  on_tick = come;
  looks = 1;
  int64_t began = now_ns;
  ok(!tc_blocked_call_diagnose(s, &b) && b.n == 0 && !*b.suspects && !*b.why, "no thread serves: no answer");
  is_int(now_ns - began, DIAGNOSE_NS + SECOND, "... after 8 s");
  tick_ns = 0;
  ok(w.requests == &other && other.next == &another && !another.next,
     "... the question is taken back");
  b.n = 3;
  ok(!tc_blocked_call_diagnose(NULL, &b) && b.n == 0, "without a blocked call there is no diagnosis");
  done();
}

static void test_serve(void)
{
  struct tc_diagnosis found[2] = { { .n = 7 }, { .n = 7 } };
  make(0, 2, W);
  post_office();
  pthread_cond_init(&w.answered, NULL);
  tc_watch_enter(&w, 1);
  another = (struct request){ .from = 0, .n = 1, .late = { 1 }, .out = &found[1] };
  other = (struct request){ .next = &another, .from = 1, .n = 1, .late = { 0 }, .out = &found[0] };
  w.requests = &other;
  pthread_mutex_lock(&w.lock);
  serve_requests(&w);
  pthread_mutex_unlock(&w.lock);
  ok(!w.requests && other.done && another.done && w.given_up_ns, "two questions are answered");
  is_str(found[0].why, "it stands at not started, for 0.0 s", "... the first");
  is_str(found[1].why, "it stands at starting, for 0.0 s", "... the second");
  other = (struct request){ .from = 1, .n = 1, .late = { 0 }, .out = &found[0] };
  found[0] = (struct tc_diagnosis){ .n = 7 };
  w.requests = &other;
  on_tick = leave; /* while it is looked into */
  looks = 0;
  pthread_mutex_lock(&w.lock);
  serve_requests(&w);
  pthread_mutex_unlock(&w.lock);
  ok(!w.requests && !other.done && found[0].n == 7, "who has stopped waiting gets nothing");
  done();
}

/* ---- a rank that hangs ------------------------------------------------------------------------ */

static void test_hang(void)
{
  static const struct {
    const char *thread;
    double allowed_s;
    int world;
    const char *want;
  } rows[] = {
    { "main", 0, 2,
      "[1] r1 has stood still for 12.5 s (deadline run.deadline) at step 7, forward\n"
      "[0] r0 stands at not started, for 0.0 s\n[1] r1 stands at step 7, forward, for 12.5 "
      "s\n[-1] end 8: a rank hangs\n" },
    { "writer", 12, 2,
      "[1] r1 has stood still for 12.5 s at writer: step 7, forward\n"
      "[0] r0 stands at not started, for 0.0 s\n[1] r1 stands at step 7, forward, for 12.5 "
      "s\n[-1] end 8: a rank hangs\n" },
    { "main", 0, 1,
      "[-1] r1 has stood still for 12.5 s (deadline run.deadline) at step 7, forward\n"
      "[-1] r0 stands at not started, for 0.0 s\n[-1] r1 stands at step 7, forward, for 12.5 "
      "s\n[-1] end 8: a rank hangs\n" },
    { "main", 10, 2,
      "[1] r1 has stood still for 12.5 s (deadline run.deadline) at step 7, "
      "forward\n"
      "[0] r0 stands at not started, for 0.0 s\n[1] r1 stands at step 7, forward, for 12.5 "
      "s\n[-1] end 8: a rank hangs\n" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    make(0, 2, rows[i].world);
    tc_thread_status_use(tc_thread_status_add(&local[1], rows[i].thread));
    tc_at_step(7);
    tc_at("forward", NULL, NULL, -1);
    tc_watch_allow(rows[i].allowed_s);
    struct tc_thread_status *l = tc_thread_status_mine();
    l->quiet_ns = 12500000000;
    int64_t began = now_ns;
    end_hang(&w, l);
    is_str(logged, rows[i].want, "a rank that hangs in %s", rows[i].thread);
    is_int(now_ns - began, LINGER_NS, "... the others have half a second for their lines");
    done();
  }
}

int main(void)
{
  test_messages();
  test_leads();
  test_gather();
  test_name_suspects();
  test_unserved();
  test_serve();
  test_hang();
  return done_testing();
}
