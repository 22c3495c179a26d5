/* t_p2p.c - collectives over a link (p2p.c), message by message: with a link that writes down
 * what it is asked for, and a clock of the test's own. What arrives is t_comm's. */
#include "src/comm/impl.h"
#include "src/comm/link.h"
#include "tests/unit/coll_bytes.h"
#include "tests/unit/tap.h"

#include <sched.h>

static struct {
  char log[2500], logged[200];
  int requests, at_most, under_way, tests, cancels;
  int slow; /* each message is done when it was tested so often */
  int deaf, broken, refuses; /* peers: whose messages never are done; fail; are refused */
  int only; /* of the messages of the deaf peer, so many are done */
  int mute; /* a peer that takes messages, and sends none */
  bool comes[200];
  int peer[200], tried[200];
  int64_t now_ns, tick_ns, slept_ns;
  int yields, clears, says;
  const char *src, *dst;
  char *const *stage;
  int64_t span; /* bytes of dst */
} net;

static int64_t clock_ns(void) { return net.now_ns += net.tick_ns; }
static void count_sleep(int64_t ns) { net.slept_ns += ns; }
static int count_yield(void) { return net.yields++; }
static void count_clear(struct tc_blocked_call *s) { net.clears += s == NULL; }

static void note_late(const struct tc_late *l, const struct tc_coll_args *a, int64_t age_ns,
                      const int *late, int n)
{
  (void)l, (void)a;
  net.says++;
  net.logged[0] = 0;
  tc_text_add(net.logged, sizeof net.logged, "%.2f s:", (double)age_ns * 1e-9);
  for (int i = 0; i < n; i++) tc_text_add(net.logged, sizeof net.logged, " %d", late[i]);
}

#define tc_now_ns clock_ns
#define tc_sleep_ns count_sleep
#define sched_yield count_yield
#define tc_blocked_call_clear count_clear
#define tc_late_say note_late
static int marks;
#define tc_at_again() (marks++)
#include "src/comm/p2p.c"

/* ---- a link ---------------------------------------------------------------------------- */

/* ">2 src+4 8 #3": to 2, from byte 4 of src, 8 bytes, tag 3. */
static int ask(char dir, int peer, const void *buf, int64_t bytes, int tag)
{
  const char *b = buf, *in = !b                                        ? "-"
                             : b >= net.dst && b <= net.dst + net.span ? "dst"
                             : b >= net.src && b <= net.src + net.span ? "src"
                                                                       : "stage";
  int64_t at = !b ? 0 : *in == 'd' ? b - net.dst : in[1] == 'r' ? b - net.src : b - *net.stage;
  tc_text_add(net.log, sizeof net.log, "%s%c%d %s+%lld %lld #%d", *net.log ? ", " : "", dir, peer,
              in, (long long)at, (long long)bytes, tag);
  if (peer == net.refuses) return -1;
  net.peer[net.requests] = peer;
  net.comes[net.requests] = dir == '<';
  net.under_way++;
  net.at_most = TC_MAX(net.at_most, net.under_way);
  return net.requests++;
}

enum { FIRST_RANK = 4 };            /* of the members, who are in the log by their coordinates */

static int n_post(void *link, bool is_send, int rank, void *buf, int64_t bytes, int tag)
{
  const int peer = rank - FIRST_RANK;
  (void)link;
  for (int64_t i = 0; !is_send && net.span && i < bytes / 4; i++) ((int32_t *)buf)[i] = 100 * (peer + 1);
  return ask(is_send ? '>' : '<', peer, buf, bytes, tag);
}

static int n_test(void *link, int request)
{
  (void)link;
  net.tests++;
  if (net.peer[request] == net.broken) return -1;
  if (net.peer[request] == net.mute && net.comes[request]) return 0;
  if (net.peer[request] == net.deaf && net.only-- <= 0) return 0;
  if (net.tried[request]++ < net.slow) return 0;
  net.under_way--;
  return 1;
}

static void n_cancel(void *link, int request)
{
  (void)link;
  net.cancels++;
  tc_text_add(net.log, sizeof net.log, ", x%d", request);
}

static void n_free(void *link) { (void)link; }

static const struct tc_link_ops ops = { .post = n_post, .test = n_test, .cancel = n_cancel, .free = n_free };
static const char *const who[] = { "rank 4 on a", "rank 5 on b", "rank 6 on c" };

static int64_t bytes_of(const struct tc_coll_args *a)
{
  const struct tc_members m = { .size = 3, .coord = 1 };
  return tc_coll_bytes(a, &m);
}

/* One call of coordinate 1 of three; its status. */
static int run(const struct tc_coll_args *a, double deadline_s, struct tc_sent *sent, struct tc_err *err)
{
  static const int32_t members[] = { FIRST_RANK, FIRST_RANK + 1, FIRST_RANK + 2 };
  struct tc_comm_opts o = { .name = "dp", .deadline_s = deadline_s, .rank_names = who };
  atomic_bool stop = a->what && !strcmp(a->what, "stop");
  struct p2p x = { .ops = &ops,
                   .m = { .size = 3, .coord = 1 },
                   .arrived = tc_calloc(3, sizeof *x.arrived),
                   .open = tc_calloc(3, sizeof *x.open),
                   .met = tc_calloc(3, sizeof *x.met),
                   .term = tc_calloc(3, sizeof *x.term) };
  static char axis[] = "dp";
  x.name = axis;
  net.stage = &x.stage;
  x.late = (struct tc_late){
    .axis = axis, .rank_names = who, .members = members, .deadline_s = tc_comm_deadline_s(&o)
  };
  int rc = p2p_run(&x, a, &stop, sent, err);
  TC_FREE(x.met, x.open, x.arrived, x.term);
  tc_p2p_done(&x);
  return rc;
}

static void make(void)
{
  memset(&net, 0, sizeof net);
  net.deaf = net.broken = net.refuses = net.mute = -1;
}

/* ---- which messages ------------------------------------------------------------------------ */

static int32_t src[7] = { 1, 2, 3, 4, 5, 6, 7 }, dst[7];

struct row { int coll, root, count, block; const char *log, *dst; };

/* Each row's call, by that algorithm; AUTO: by the direct one. */
static void test_rows(const struct row *rows, size_t n, int algorithm)
{
  for (size_t i = 0; i < n; i++) {
    const struct tc_part part = { src, dst, rows[i].count, rows[i].block };
    const struct tc_coll_args a = { .coll = rows[i].coll,
                                    .dtype = TC_I32,
                                    .root = rows[i].root,
                                    .algorithm = algorithm ? algorithm : tc_algorithm_direct(rows[i].coll),
                                    .n_parts = rows[i].coll != TC_BARRIER,
                                    .parts = &part };
    struct tc_err err = { 0 };
    struct tc_sent sent = { .bytes = -1 };
    char got[80] = "";
    make();
    net.src = (const char *)src;
    net.dst = (const char *)dst;
    net.span = sizeof dst;
    memset(dst, 0, sizeof dst);
    is_int(run(&a, 60, &sent, &err), 0, "%s, root %d", tc_coll_name[a.coll], a.root);
    is_str(net.log, rows[i].log, "... its messages");
    is_int(sent.bytes,
           a.coll == TC_BARRIER ? 0
                                : bytes_of(&a),
           "... the bytes that it sent");
    is_int(net.under_way, 0, "... all are done");
    for (int k = 0; k < 7; k++) tc_text_add(got, sizeof got, "%s%d", k ? " " : "", (int)dst[k]);
    is_str(got, rows[i].dst, "... and what it has then");
  }
}

static void test_messages(void)
{
  static const struct row rows[] = {
    { TC_ALL_REDUCE, 0, 7, 3,
      "<2 stage+64 12 #0, >2 src+24 4 #0, <0 stage+0 12 #0, >0 src+0 12 "
      "#0, <2 dst+24 4 #1, "
      "<0 dst+0 12 #1, >2 dst+12 12 #1, >0 dst+12 12 #1",
      "100 100 100 404 405 406 300" },
    { TC_REDUCE_SCATTER, 0, 7, 3,
      "<2 stage+64 12 #4, >2 src+24 4 #4, <0 stage+0 12 #4, >0 src+0 "
      "12 #4",
      "404 405 406 0 0 0 0" },
    { TC_ALL_GATHER, 0, 7, 3, "<2 dst+24 4 #8, >2 src+0 12 #8, <0 dst+0 12 #8, >0 src+0 12 #8",
      "100 100 100 1 2 3 300" },
    { TC_BROADCAST, 0, 7, 3, "<0 dst+0 28 #12", "100 100 100 100 100 100 100" },
    { TC_BROADCAST, 1, 7, 3, ">2 src+0 28 #12, >0 src+0 28 #12", "0 0 0 0 0 0 0" },
    { TC_REDUCE, 0, 7, 3, ">0 src+0 28 #16", "0 0 0 0 0 0 0" },
    { TC_REDUCE, 1, 7, 3, "<2 stage+64 28 #16, <0 stage+0 28 #16", "401 402 403 404 405 406 407" },
    { TC_SCATTER, 0, 7, 3, "<0 dst+0 12 #20", "100 100 100 0 0 0 0" },
    { TC_SCATTER, 1, 7, 3, ">2 src+24 4 #20, >0 src+0 12 #20", "4 5 6 0 0 0 0" },
    { TC_GATHER, 0, 7, 3, ">0 src+0 12 #24", "0 0 0 0 0 0 0" },
    { TC_GATHER, 1, 7, 3, "<2 dst+24 4 #24, <0 dst+0 12 #24", "100 100 100 1 2 3 300" },
    { TC_ALL_TO_ALL, 0, 6, 2, "<2 dst+16 8 #28, >2 src+16 8 #28, <0 dst+0 8 #28, >0 src+0 8 #28",
      "100 100 3 4 300 300 0" },
    { TC_SEND, 0, 7, 3, ">0 src+0 28 #32", "0 0 0 0 0 0 0" },
    { TC_SEND, 2, 7, 3, ">2 src+0 28 #32", "0 0 0 0 0 0 0" },
    { TC_RECV, 0, 7, 3, "<0 dst+0 28 #32", "100 100 100 100 100 100 100" },
    { TC_RECV, 2, 7, 3, "<2 dst+0 28 #32", "300 300 300 300 300 300 300" },
    { TC_BARRIER, 0, 7, 3, "<2 -+0 0 #40, >2 -+0 0 #40, <0 -+0 0 #40, >0 -+0 0 #40",
      "0 0 0 0 0 0 0" },
  };
  static const struct row doubling[] = {
    { TC_ALL_REDUCE, 0, 7, 3, ">0 stage+28 28 #0, <2 stage+56 28 #0, <0 stage+0 28 #0, >2 stage+28 28 #0",
      "401 402 403 404 405 406 407" },
    { TC_ALL_GATHER, 0, 7, 3, ">0 dst+12 12 #8, <2 dst+24 4 #8, <0 dst+0 12 #8, >2 dst+12 12 #8",
      "100 100 100 1 2 3 300" },
    { TC_BARRIER, 0, 7, 3, ">0 -+0 0 #40, <2 -+0 0 #40, <0 -+0 0 #40, >2 -+0 0 #40", "0 0 0 0 0 0 0" },
  };
  static const struct row tree[] = {
    { TC_BROADCAST, 0, 7, 3, "<0 dst+0 28 #13", "100 100 100 100 100 100 100" },
    { TC_BROADCAST, 2, 7, 3, "<2 dst+0 28 #13", "300 300 300 300 300 300 300" },
    { TC_BROADCAST, 1, 7, 3, ">0 src+0 28 #13, >2 src+0 28 #13", "0 0 0 0 0 0 0" },
    { TC_REDUCE, 2, 7, 3, ">2 stage+28 28 #16", "0 0 0 0 0 0 0" },
    { TC_REDUCE, 1, 7, 3, "<0 stage+0 28 #16, <2 stage+56 28 #16", "401 402 403 404 405 406 407" },
    { TC_ALL_REDUCE, 0, 7, 3, ">0 stage+28 28 #0, <0 dst+0 28 #1", "100 100 100 100 100 100 100" },
    { TC_ALL_GATHER, 0, 7, 3, ">0 dst+12 12 #8, <0 dst+0 28 #9", "100 100 100 100 100 100 100" },
    { TC_BARRIER, 0, 7, 3, ">0 -+0 0 #40, <0 -+0 0 #41", "0 0 0 0 0 0 0" },
  };
  test_rows(rows, sizeof rows / sizeof *rows, TC_ALGORITHM_AUTO);
  test_rows(doubling, sizeof doubling / sizeof *doubling, TC_ALGORITHM_DOUBLING);
  test_rows(tree, sizeof tree / sizeof *tree, TC_ALGORITHM_TREE);
}

/* What is only moved goes in pieces of 4 MiB, what is reduced in such of 1 MiB, four of them under
 * way, two where they wait to be added. */
static void test_pieces(void)
{
  enum { N = 6 << 20 };
  static const struct {
    int coll, count, block, slow, at_most;
    int64_t each, last;
    int requests;
  } rows[] = {
    { TC_SEND, N, N, 0, 2, 4 << 20, 0, 6 },
    { TC_SEND, N, N, 9, 4, 4 << 20, 0, 6 },
    { TC_RECV, N - 1, N - 1, 9, 4, 4 << 20, 4, 6 },
    { TC_REDUCE, 3 << 18, 3 << 18, 9, 4, 1 << 20, 0, 6 },
  };
  char *mem = tc_calloc(2, N * 4 + 64);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct tc_part part = { mem, mem + N * 4 + 64, rows[i].count, rows[i].block };
    const bool reduce = rows[i].coll == TC_REDUCE;
    const struct tc_coll_args a = {
      .coll = rows[i].coll, .algorithm = tc_algorithm_direct(rows[i].coll), .dtype = TC_F32, .root = reduce ? 1 : 2,
      .n_parts = 1,
      .parts = &part
    };
    struct tc_err err = { 0 };
    struct tc_sent sent = { .bytes = -1 };
    make();
    net.slow = rows[i].slow;
    is_int(run(&a, 60, &sent, &err), 0, "%s of %d, each done after %d looks", tc_coll_name[a.coll],
           rows[i].count, rows[i].slow);
    is_int(net.requests, rows[i].requests, "... in so many pieces");
    if (rows[i].slow) is_int(net.at_most, rows[i].at_most, "... of which so many are under way");
    if (reduce)
      is_str(net.log,
             "<2 stage+1048576 1048576 #16, <2 stage+3145728 1048576 #16, <0 stage+0 1048576 #16, "
             "<0 stage+2097152 1048576 #16, <2 stage+1048576 1048576 #16, <0 stage+0 1048576 #16",
             "... two places for each, by turns");
    char each[40];
    snprintf(each, sizeof each, " %lld #", (long long)rows[i].each);
    int n = 0;
    for (const char *s = net.log; (s = strstr(s, each)); s++) n++;
    is_int(n, rows[i].last ? rows[i].requests - 1 : rows[i].requests,
           "... all of them as large, but for the last");
    is_int(sent.bytes, rows[i].coll == TC_SEND ? N * 4 : 0, "... the bytes that it sent");
  }
  free(mem);
}

/* ---- what goes wrong ----------------------------------------------------------------------- */

static void test_failures(void)
{
#define GONE " has left the run or can no longer be reached; see its log"
#define LATE " after 1 s (deadline run.deadline): find out what stopped it, or raise the deadline"
  static const struct {
    const char *name;
    int coll, root, deaf, only, broken, refuses;
    const char *what, *text;
    int says;
    int cancels;
  } rows[] = {
    { "deaf", TC_ALL_REDUCE, 0, 2, 0, -1, -1, "h.1",
      "all_reduce 'h.1' on axis dp: no answer "
      "from rank 6 on c" LATE,
      4, 2 },
    { "both deaf", TC_BARRIER, 0, -2, 0, -1, -1, NULL,
      "barrier on axis dp: no answer from rank "
      "4 on a, rank 6 on c" LATE,
      4, 4 },
    { "half deaf", TC_ALL_REDUCE, 0, 0, 1, -1, -1, NULL,
      "all_reduce on axis dp: no answer from "
      "rank 4 on a" LATE,
      4, 2 },
    { "broken", TC_ALL_GATHER, 0, -1, 0, 2, -1, NULL, "all_gather on axis dp: rank 6 on c" GONE, 0,
      4 },
    { "refused", TC_SEND, 2, -1, 0, -1, 2, NULL, "send on axis dp: rank 6 on c" GONE, 0, 0 },
    { "refused later", TC_BARRIER, 0, -1, 0, -1, 0, NULL, "barrier on axis dp: rank 4 on a" GONE, 0,
      2 },
    { "stopped", TC_RECV, 0, 0, 0, -1, -1, "stop", "the communicator of axis dp was freed", 0, 1 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct tc_part part = { src, dst, 7, 3 };
    const struct tc_coll_args a = { .coll = rows[i].coll,
                                    .algorithm = tc_algorithm_direct(rows[i].coll),
                                    .dtype = TC_I32,
                                    .root = rows[i].root,
                                    .n_parts = 1,
                                    .parts = &part,
                                    .what = rows[i].what };
    struct tc_err err = { 0 };
    struct tc_sent sent = { .bytes = -1 };
    make();
    net.deaf = rows[i].deaf;
    net.only = rows[i].only;
    net.broken = rows[i].broken;
    net.refuses = rows[i].refuses;
    net.slow = rows[i].deaf == -2 ? 1 << 20 : 0;
    net.tick_ns = SAY_NS / 2 + 1;
    is_int(run(&a, 1, &sent, &err), TC_EPEER, "%s %s", tc_coll_name[a.coll], rows[i].name);
    is_str(err.text, rows[i].text, "... the sentence");
    is_int(net.says, rows[i].says, "... so often the watchdog was informed: %s", net.logged);
    is_int(net.cancels, rows[i].cancels, "... so many messages are given up");
    is_int(net.clears, 0, "... nothing is well again");
  }
}

/* Nothing comes from the root: it alone is named, not a member from which a block would come later. */
static void test_named(void)
{
  const struct tc_part part = { src, dst, 7, 3 };
  const struct tc_coll_args a = { .coll = TC_BROADCAST, .algorithm = TC_ALGORITHM_SCATTERED, .dtype = TC_I32, .root = 2,
                                  .n_parts = 1, .parts = &part };
  struct tc_err err = { 0 };
  struct tc_sent sent = { .bytes = -1 };
  make();
  net.deaf = 2;
  net.tick_ns = SAY_NS / 2 + 1;
  is_int(run(&a, 1, &sent, &err), TC_EPEER, "a block that does not come");
  is_str(err.text, "broadcast on axis dp: no answer from rank 6 on c" LATE, "... the sentence");
  is_int(net.cancels, 1, "... one message is given up");
}

/* A call that was late, and in the end is not; how it waits meanwhile. */
static void test_waits(void)
{
  const struct tc_part part = { src, dst, 7, 7 };
  const struct tc_coll_args a = {
    .coll = TC_SEND, .dtype = TC_I32, .root = 2, .n_parts = 1, .parts = &part
  };
  struct tc_err err = { 0 };
  struct tc_sent sent = { .bytes = -1 };
  make();
  net.slow = 200;
  marks = 0;
  is_int(run(&a, 1, &sent, &err), 0, "a message that is done after 200 looks");
  ok(net.clears == 0 && net.says == 0, "... no time passed");
  ok(marks >= 200, "... each look is a sign of life for the watchdog of a thread that runs the call itself");
  is_int(net.yields, YIELDS, "... it yields");
  int64_t want = 0;
  for (int slept = 0; slept < 200 - YIELDS; slept++) want += INT64_C(20000) << TC_MIN(slept / 4, 6);
  is_int(net.slept_ns, want, "... then sleeps longer and longer");
  make();
  net.slow = 6;
  net.tick_ns = SAY_NS / 4;
  is_int(run(&a, 2, &sent, &err), 0, "one that is late");
  ok(net.says == 1 && net.clears == 1, "... is reported, and that it came");
  is_str(net.logged, "0.31 s: 2", "... when, and who");
  make();
  net.slow = 6;
  net.tick_ns = INT64_C(100000000000);
  is_int(run(&a, 8, &sent, &err), 0,
         "a process that is stopped between looks grows older by a "
         "second each");
  is_int(sent.bytes, 28, "... and sends what it should");
}

/* Of those that a call waits for, the watchdog is informed of those that have sent nothing, if there are any. */
static void test_late(void)
{
  static const struct { int mute, deaf, only; const char *late; } rows[] = {
    { 0, 2, 2, " 0" }, { 2, 0, 2, " 2" }, { -1, 0, 2, " 0" }, { 0, 2, 0, " 0 2" } };
  const struct tc_part part = { src, dst, 7, 3 };
  const struct tc_coll_args a = { .coll = TC_ALL_REDUCE, .algorithm = TC_ALGORITHM_EXCHANGE, .dtype = TC_I32, .n_parts = 1,
                                  .parts = &part };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_err err = { 0 };
    struct tc_sent sent = { .bytes = -1 };
    make();
    net.mute = rows[i].mute;
    net.deaf = rows[i].deaf;
    net.only = rows[i].only;
    net.tick_ns = SAY_NS / 4;
    is_int(run(&a, 2, &sent, &err), TC_EPEER, "peers %d and %d do not answer", rows[i].mute, rows[i].deaf);
    is_str(strchr(net.logged, ' ') + 3, rows[i].late, "... who is late");
  }
}

int main(void)
{
  test_messages();
  test_late();
  test_pieces();
  test_failures();
  test_named();
  test_waits();
  return done_testing();
}
