/* t_nccl.c - communicators over a device's library (nccl.c), step by step: with a made-up
 * library whose calls are written down, and a clock that the test sets. What a GPU does with them
 * is t_comm_nccl's. */
#include "src/comm/impl.h"
#include "src/comm/hub.h"
#include "src/comm/nccl.h"
#include "tests/unit/coll_bytes.h"
#include "tests/unit/tap.h"

#include <pthread.h>
#include <sched.h>

static struct {
  int64_t now_ns, tick_ns; /* each look at the clock takes a tick */
  int sleeps, yields, says, clears, waits, locks;
  int64_t reported_ns;
  int late[TC_SUSPECTS], n_late;
} world;

static int64_t clock_ns(void) { return world.now_ns += world.tick_ns; }
static void count_sleep(int64_t ns) { world.sleeps += ns == 100000; }
static int count_yield(void) { return world.yields++; }
static void count_clear(struct tc_blocked_call *s) { world.clears += s == NULL; }
static void count_wait(struct tc_blocked_call *s) { world.waits += s == NULL; }

static void note_late(const struct tc_late *l, const struct tc_coll_args *a, int64_t age_ns, const int *late, int n)
{
  (void)l, (void)a;
  world.says++;
  world.reported_ns = age_ns;
  world.n_late = n;
  memcpy(world.late, late, (size_t)TC_MIN(n, TC_SUSPECTS) * sizeof *late);
}

static int lock(pthread_mutex_t *m)
{
  world.locks++;
  return pthread_mutex_lock(m);
}

static int unlock(pthread_mutex_t *m)
{
  world.locks = world.locks > 0 ? world.locks - 1 : -100;
  return pthread_mutex_unlock(m);
}

#define pthread_mutex_lock lock
#define pthread_mutex_unlock unlock
#define tc_now_ns clock_ns
#define tc_sleep_ns count_sleep
#define sched_yield count_yield
#define tc_late_say note_late
#define tc_blocked_call_clear count_clear
#define tc_thread_status_waits count_wait
#include "src/comm/nccl.c"

#include "tests/unit/comm/fake_nccl.h"

/* Rank 1 of three on axis dp, with both ways; the clock at 5 s. */
static const char *const who[] = { "rank 4 on a", "rank 5 on b", "rank 6 on c" };
static int32_t members[] = { 4, 5, 6 };

static void make(struct nccl *x, struct tc_nccl *up, struct tc_nccl *down)
{
  static char axis[] = "dp";
  *up = (struct tc_nccl){ .name = "up" };
  *down = (struct tc_nccl){ .name = "down" };
  memset(x, 0, sizeof *x);
  x->ops = &ops;
  x->way[0] = up;
  x->way[1] = down;
  x->n_ways = 2;
  x->m = tc_members_of(3, 1);
  x->name = axis;
  x->late = (struct tc_late){ .axis = axis, .rank_names = who, .members = members, .deadline_s = 1 };
  pthread_mutex_init(&x->lock, NULL);
  memset(&world, 0, sizeof world);
  world.now_ns = 5 * TICK_NS;
}

/* ---- its parts -------------------------------------------------------------------------- */

static void test_late(void)
{
  static const struct {
    int coll, root, coord, size, n, late[3];
  } rows[] = {
    { TC_SEND, 2, 0, 3, 1, { 2 } },          { TC_RECV, 1, 2, 3, 1, { 1 } },
    { TC_ALL_REDUCE, 0, 0, 3, 2, { 1, 2 } }, { TC_BARRIER, 0, 1, 3, 2, { 2, 0 } },
    { TC_BROADCAST, 2, 2, 3, 2, { 0, 1 } },  { TC_ALL_GATHER, 0, 1, 2, 1, { 0 } },
    { TC_REDUCE, 0, 0, 1, 0, { 0 } },        { TC_ALL_TO_ALL, 0, 98, 100, 99, { 99, 0, 1 } },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct nccl x = { .m = { .size = rows[i].size, .coord = rows[i].coord } };
    struct tc_coll_args a = { .coll = rows[i].coll, .root = rows[i].root };
    int late[TC_SUSPECTS + 1];
    late[TC_SUSPECTS] = -7;
    is_int(find_late(&x, &a, late), rows[i].n, "%s of %d: so many are waited for", tc_coll_name[a.coll], x.m.size);
    for (int k = 0; k < TC_MIN(rows[i].n, 3); k++)
      is_int(late[k], rows[i].late[k], "... the next of them");
    if (rows[i].n > TC_SUSPECTS)
      is_int(late[TC_SUSPECTS - 1], (98 + TC_SUSPECTS) % 100, "... the last that is named");
    is_int(late[TC_SUSPECTS], -7, "... no more");
  }
}

static void test_ways(void)
{
  static const struct {
    int coll, root, ways, want;
  } rows[] = {
    { TC_SEND, 2, 2, 0 },       { TC_SEND, 0, 2, 1 },       { TC_RECV, 2, 2, 1 },
    { TC_RECV, 0, 2, 0 },       { TC_SEND, 0, 1, 0 },       { TC_RECV, 2, 1, 0 },
    { TC_ALL_REDUCE, 0, 2, 0 }, { TC_ALL_REDUCE, 2, 2, 0 }, { TC_BROADCAST, 2, 2, 0 },
    { TC_SEND, 1, 2, 1 },       { TC_RECV, 1, 2, 1 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct nccl x = { .m = { .size = 3, .coord = 1 }, .n_ways = rows[i].ways };
    struct tc_coll_args a = { .coll = rows[i].coll, .root = rows[i].root };
    is_int(way_of(&x, &a), rows[i].want, "%s of 1 and %d, %d ways: its way", tc_coll_name[a.coll], a.root, x.n_ways);
  }
  const struct tc_part part[] = { { .count = 90, .block = 30 }, { .count = 7, .block = 3 } };
  struct tc_coll_args a = {
    .coll = TC_SEND, .root = 2, .dtype = TC_BF16, .n_parts = 2, .parts = part
  };
  const struct tc_members m = tc_members_of(3, 1);
  is_int(tc_coll_bytes(&a, &m), 194, "bytes of a send");
  a.coll = TC_ALL_REDUCE, a.algorithm = TC_ALGORITHM_EXCHANGE;
  a.dtype = TC_F32;
  is_int(tc_coll_bytes(&a, &m), coll_bytes(TC_ALL_REDUCE, 3, 1, 2, 90, 30) +
             coll_bytes(TC_ALL_REDUCE, 3, 1, 2, 7, 3),
         "... of an all-reduce");
}

/* How a wait goes on: the clock, who is named when, when it ends. */
static void test_waits(void)
{
  static const struct tc_coll_args a = { .coll = TC_ALL_REDUCE, .what = "h.1" };
  struct nccl x;
  struct tc_nccl up, down;
  struct tc_err err = { 0 };
  atomic_bool stop = false;
  make(&x, &up, &down);
  x.late.deadline_s = 3;
  struct patience p = { .last_ns = world.now_ns, .say_ns = SAY_NS };
  world.tick_ns = SAY_NS;
  is_int(wait_on(&x, &a, &p, &stop, &err), 0, "a quarter of a second");
  ok(world.says == 0 && p.age_ns == SAY_NS && p.last_ns == world.now_ns, "... nothing is reported yet");
  wait_on(&x, &a, &p, &stop, &err);
  ok(world.says == 1 && world.reported_ns == 2 * SAY_NS && p.say_ns == 3 * SAY_NS, "a half: reported");
  ok(world.n_late == 2 && world.late[0] == 2 && world.late[1] == 0, "... who is waited for");
  wait_on(&x, &a, &p, &stop, &err);
  is_int(world.says, 1, "three quarters: not again");
  wait_on(&x, &a, &p, &stop, &err);
  is_int(world.says, 2, "a second: again");
  world.tick_ns = 100 * TICK_NS;
  wait_on(&x, &a, &p, &stop, &err);
  is_int(p.age_ns, 2 * TICK_NS, "a process that was stopped grows older by a second at most");
  is_int(p.idle, 5, "five looks");
  world.tick_ns = TICK_NS;
  is_int(wait_on(&x, &a, &p, &stop, &err), 0, "at the deadline it still waits");
  world.tick_ns = 1;
  is_int(wait_on(&x, &a, &p, NULL, &err), TC_EPEER, "after it no more");
  is_str(err.text, "all_reduce 'h.1' on axis dp: no answer from rank 6 on c, rank 4 on a after 3 s (deadline "
         "run.deadline): find out what stopped it, or raise the deadline",
         "... who, of what, how long");
  is_int(world.says, 4, "... with no more words before");
  p.age_ns = 0;
  stop = true;
  is_int(wait_on(&x, &a, &p, &stop, &err), TC_EPEER, "a communicator that is freed");
  is_str(err.text, "the communicator of axis dp was freed", "... says so");
  struct patience q = { .idle = 0 };
  world.sleeps = world.yields = 0;
  for (int i = 0; i < 2 * SPINS; i++) back_off(&q);
  ok(world.yields == YIELDS - 1 && world.sleeps == 1, "it spins, then yields (%d), then sleeps (%d)", world.yields, world.sleeps);
}

/* The host sleeps in a start that takes a millisecond or more, not in a shorter one; in a transfer it soon does, but if it
 * is the last that was started: after 10 ms, also where the device has not reached it. */
static void test_naps(void)
{
  static const struct tc_coll_args a = { .coll = TC_ALL_REDUCE };
  static const int rows[][2] = { { 200, 0 }, { 998, 0 }, { 1100, 102 } };   /* us, sleeps in a start */
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct nccl x;
    struct tc_nccl up, down;
    make(&x, &up, &down);
    world.tick_ns = 1000, up.not_ready = rows[i][0] + 1, up.runs = rows[i][0];
    ok(be_ready(&x, 0, &a, NULL) == 0 && world.sleeps == rows[i][1], "sleeps in a start of %d us", rows[i][0]);
    struct tc_sent sent = { 0 };
    world.sleeps = 0;
    x.started = 2;
    ok(nccl_run(&x, &a, NULL, &sent, NULL) == 0 && world.sleeps == rows[i][0] + 1 - SPINS - YIELDS, "... in one");
  }
  for (int queued = 0; queued < 2; queued++)
    for (int us = 9000; us <= 11000; us += 2000) {
      struct nccl x;
      struct tc_nccl up, down;
      struct tc_sent sent = { 0 };
      make(&x, &up, &down);
      x.started = 1;
      world.sleeps = 0, world.tick_ns = 1000, *(queued ? &up.queued : &up.runs) = us;
      is_int(nccl_run(&x, &a, NULL, &sent, NULL), 0, "the last one, %s %d us", queued ? "reached after" : "of", us);
      is_int(world.sleeps, us > 10000 ? us - 10000 + 1 : 0, "... as many sleeps");
    }
}

/* ---- a call ------------------------------------------------------------------------------ */

static void test_calls(void)
{
  static const struct {
    int coll, root;
    tc_ticket t;
    const char *up, *down;
  } rows[] = {
    { TC_ALL_REDUCE, 0, 1, "start 1 ready mark 1", "" },
    { TC_SEND, 0, TC_NCCL_SLOTS - 1, "", "start 63 ready mark 63" },
    { TC_SEND, 2, TC_NCCL_SLOTS, "start 0 ready mark 0", "" },
    { TC_RECV, 2, 2 * TC_NCCL_SLOTS + 5, "", "start 5 ready mark 5" },
  };
  struct nccl x;
  struct tc_nccl up, down;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct tc_part part = { .count = 10, .block = 10 };
    struct tc_coll_args a = {
      .coll = rows[i].coll, .root = rows[i].root, .dtype = TC_F32, .n_parts = 1, .parts = &part
    };
    struct tc_err err = { 0 };
    struct tc_sent sent = { .bytes = -1 };
    make(&x, &up, &down);
    x.seen = rows[i].t - 1;
    up.not_ready = down.not_ready = 3;
    is_int(nccl_start(&x, &a, rows[i].t, &err), 0, "%s, ticket %d", tc_coll_name[a.coll], (int)rows[i].t);
    is_str(up.log, rows[i].up, "... the calls of way 0");
    is_str(down.log, rows[i].down, "... and way 1");
    is_int(x.started, rows[i].t, "... it is started");
    ok(world.waits == 2 && world.clears == 0, "... the thread waited and continued");
    up.log[0] = down.log[0] = 0;
    up.runs = down.runs = 2;
    is_int(nccl_run(&x, &a, NULL, &sent, &err), 0, "... it ends");
    is_int(x.seen, rows[i].t, "... and is seen");
    is_int(sent.bytes, tc_coll_bytes(&a, &x.m), "... with its bytes");
    is_int(nccl_join(&x, rows[i].t, &err), 0, "... the device goes on after it");
    char want[40] = "";
    if (*rows[i].up || *rows[i].down)
      snprintf(want, sizeof want, "test %d wait_for %d", (int)(rows[i].t % TC_NCCL_SLOTS), (int)(rows[i].t % TC_NCCL_SLOTS));
    is_str(*rows[i].up ? up.log : down.log, want, "... asked by its slot");
    is_str(*rows[i].up ? down.log : up.log, "", "... of its way alone");
  }
}

/* What fails, in which call, with what; both ways are aborted, and it fails alike from then on. */
static void test_failures(void)
{
  static const struct {
    const char *fails;
    bool late;
    int status;
    const char *log, *text;
  } rows[] = {
    { "start", false, TC_ENOCKPT, "start 3 abort", "send 'h.1' on axis dp: start broke" },
    { "ready", false, TC_ENOCKPT, "start 3 ready abort", "send 'h.1' on axis dp: ready broke" },
    { "mark", false, TC_ENOCKPT, "start 3 ready mark 3 abort",
      "send 'h.1' on axis dp: mark broke" },
    { "test", false, TC_ENOCKPT, "start 3 ready mark 3 test 3 abort",
      "send 'h.1' on axis dp: test broke" },
    { NULL, true, TC_EPEER, "start 3 abort",
      "send 'h.1' on axis dp: no answer from rank 6 on c after 1 s (deadline "
      "run.deadline): find out what stopped it, or raise the deadline" },
    { NULL, false, 0, "start 3 ready mark 3 test 3", "" },
  };
  static const struct tc_coll_args a = { .coll = TC_SEND, .root = 2, .what = "h.1" };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct nccl x;
    struct tc_nccl up, down;
    struct tc_err err = { 0 };
    struct tc_sent sent = { 0 };
    make(&x, &up, &down);
    x.seen = x.started = 2;
    up.fails = rows[i].fails;
    up.not_ready = rows[i].late ? 1000 : 0;
    world.tick_ns = TICK_NS / 8;
    int rc = nccl_start(&x, &a, 3, &err);
    if (!rc) rc = nccl_run(&x, &a, NULL, &sent, &err);
    is_int(rc, rows[i].status, "fails: %s", rows[i].fails  ? rows[i].fails
           : rows[i].late ? "late"
                          : "nothing");
    is_str(up.log, rows[i].log, "... the calls of way 0");
    is_str(down.log, rc < 0 ? "abort" : "", "... and way 1");
    is_str(rc < 0 ? err.text : "", rows[i].text, "... the sentence");
    is_int(x.started, strstr(rows[i].log, "mark") && strcmp(rows[i].fails ? rows[i].fails : "", "mark") ? 3
                                                                                             : 2,
           "... whether it is started");
    is_int(x.seen, rc < 0 ? 2 : 3, "... whether it is seen");
    is_int(world.locks, 0, "... no lock is held");
    if (!rc) continue;
    tc_fail(&err, TC_EUSER, "another");
    is_int(give_up(&x, &a, true, &err), rows[i].status, "... a second failure has the status of the first");
    is_str(err.text, rows[i].text, "... and its sentence");
    nccl_leave(&x);
    ok(!x.way[0] && !x.way[1], "... both ways are freed");
    is_str(down.log, x.started == 3 ? "abort abort abort free 0" : "abort abort free 1", "... once");
  }
}

/* Its time runs from when the device has come to it. */
static void test_queued(void)
{
  static const struct {
    int queued, runs;
    bool stop;
    int status, says;
  } rows[] = { { 40, 0, false, 0, 0 },
               { 40, 3, false, 0, 1 },
               { 0, 9, false, TC_EPEER, 2 },
               { 40, 9, false, TC_EPEER, 2 },
               { 5, 0, true, TC_EPEER, 0 } };
  static const struct tc_coll_args a = { .coll = TC_BARRIER };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct nccl x;
    struct tc_nccl up, down;
    struct tc_err err = { 0 };
    struct tc_sent sent = { 0 };
    atomic_bool stop = rows[i].stop;
    make(&x, &up, &down);
    up.queued = rows[i].queued;
    up.runs = rows[i].runs;
    world.tick_ns = SAY_NS - 1;
    is_int(nccl_run(&x, &a, &stop, &sent, &err), rows[i].status, "queued for %d looks, runs for %d", rows[i].queued, rows[i].runs);
    is_str(err.text, !rows[i].status ? ""
           : rows[i].stop  ? "the communicator of axis dp was freed"
                           : "barrier on axis dp: no answer from rank 6 on c, rank 4 on a after 1 s "
                             "(deadline run.deadline): find out what stopped it, or raise the deadline",
           "... its error");
    is_int(world.says, rows[i].says, "... so often late ranks are reported");
    is_int(world.clears, rows[i].says && !rows[i].status, "... and that none is late any more");
    is_int(x.seen, rows[i].status == 0, "... whether it is seen");
  }
}

/* ---- joining ----------------------------------------------------------------------------- */

static void test_alone(void)
{
  static const struct {
    const char *fails, *log, *text;
  } rows[] = {
    { NULL, "id join 10 ready start 1 ready mark 1 test 1 free 1", "" },
    { "id", "id", "id broke" },
    { "join", "id join 10 abort free 1", "join broke" },
    { "ready", "id join 10 ready abort abort free 1",
      "barrier 'joining NCCL' on axis world: ready broke" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_nccl d = { .fails = rows[i].fails };
    struct tc_comm_opts o = { .deadline_s = 60 };
    struct tc_comm *host = tc_comm_self(&o), *c = host;
    struct tc_err err = { 0 };
    const int32_t me = 0;
    memset(&world, 0, sizeof world);
    int rc = tc_comm_nccl(&c, &ops, &d, host, NULL, &me, true, &o, &err);
    is_int(rc, rows[i].fails ? TC_ENOCKPT : 0, "one rank, fails: %s", rows[i].fails ? rows[i].fails : "nothing");
    if (!rc)
      is_int(tc_comm_run(c, &(struct tc_coll_args){ .coll = TC_BARRIER }, &err), 0, "... a barrier");
    else
      ok(!c, "... no communicator");
    if (!rc) tc_comm_free(c);
    is_str(rc < 0 ? err.text : "", rows[i].text, "... the sentence");
    is_str(d.log, rows[i].log, "... the calls of the library");
    tc_comm_free(host);
  }
}

/* Each send has its receive on the same way, of neighbours in a ring; a failure aborts both ways. */
static void test_neighbours(void)
{
  static const struct { int size, coord; const char *fails, *up, *down; } rows[] = {
    { 2, 0, NULL, "meet >1 ready", "meet <1 ready" },
    { 2, 1, NULL, "meet <0 ready", "meet >0 ready" },
    { 3, 0, NULL, "meet >1 >2 ready", "meet <1 <2 ready" },
    { 3, 1, NULL, "meet >2 <0 ready", "meet >0 <2 ready" },
    { 3, 2, NULL, "meet <1 <0 ready", "meet >1 >0 ready" },
    { 8, 4, NULL, "meet >5 <3 ready", "meet >3 <5 ready" },
    { 3, 0, "meet", "meet >1 >2 abort", "abort" },
    { 3, 0, "ready", "meet >1 >2 ready abort", "abort" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct nccl x;
    struct tc_nccl up, down;
    struct tc_err err = { 0 };
    make(&x, &up, &down);
    x.m = tc_members_of(rows[i].size, rows[i].coord);
    up.fails = rows[i].fails;
    int rc = 0;
    for (int w = 0; w < 2 && !rc; w++) rc = meet_neighbours(&x, w, &err);
    is_int(rc, rows[i].fails ? TC_ENOCKPT : 0, "member %d of %d, fails: %s", rows[i].coord, rows[i].size,
           rows[i].fails ? rows[i].fails : "nothing");
    is_str(up.log, rows[i].up, "... whom it meets on way 0");
    is_str(down.log, rows[i].down, "... and on way 1");
    if (rc) ok(strstr(err.text, "'meeting neighbours over NCCL' on axis dp"), "... %s", err.text);
  }
}

/* A rank whose deadline has passed skips the agreement: the deadlines of the others pass, too. */
static void test_meet(void)
{
  struct nccl x = { .m = { .size = 2 } };
  struct tc_err err = { .text = "as it was" };
  is_int(agree(&x, TC_EPEER, NULL, &err), TC_EPEER, "a rank that waited too long does not meet the others");
  is_str(err.text, "as it was", "... and keeps its own error");
}

/* ---- whether ----------------------------------------------------------------------------- */

enum { FINE, NO_DEVICE, WITHOUT, BREAKS, SAME };

struct rank_thread {
  struct tc_hub *hub;
  int rank, n, kind;
  enum tc_comm_kind want;
  const char *no_device;
  bool use, names;
  int rc;
  struct tc_err err;
};

static void *sit(void *arg)
{
  static const struct tc_nccl_ops without = { 0 };
  static const char *const gpu[] = { "bus 1", "bus 2" };
  struct rank_thread *s = arg;
  const int32_t all[] = { 0, 1 };
  struct tc_comm_opts o = { .name = "world", .deadline_s = 60 };
  struct tc_nccl d = { .gpu = gpu[s->kind == SAME ? 0 : s->rank],
                       .fails = s->kind == BREAKS ? "look" : NULL };
  struct tc_comm *c = s->n == 1 ? tc_comm_self(&o) : tc_comm_thread(s->hub, 0, s->rank, all, 2, &o);
  s->use = true;
  s->rc = tc_comm_nccl_agree(&s->use, s->want, s->kind == NO_DEVICE ? NULL
                             : s->kind == WITHOUT ? &without
                                                  : &ops,
                             &d, s->no_device, c, s->names ? (char *const *)(uintptr_t)who : NULL,
                             &s->err);
  tc_comm_free(c);
  return NULL;
}

static void test_agree(void)
{
#define NONE                                                                                       \
  "NCCL transfers data between GPUs, but run.device is not a GPU; set run.comm = mpi, or run.device = cuda"
#define BUILT                                                                                      \
  "this build's tercio-cuda.so has no NCCL (its header was missing when it was built); set " \
  "run.comm = mpi, or build with nccl.h"
#define SHARE                                                                                      \
  " share a GPU, which NCCL does not support; give each rank a GPU of its own, or set run.comm = mpi"
  static const struct {
    enum tc_comm_kind want;
    int n, kind[2];
    const char *no_device;
    bool anonymous;
    int status;
    bool use;
    const char *text;
  } rows[] = {
    { TC_COMM_NCCL, 2, { FINE, FINE }, NULL, false, 0, true, "" },
    { TC_COMM_AUTO, 2, { FINE, FINE }, NULL, false, 0, true, "" },
    { TC_COMM_MPI, 2, { FINE, FINE }, NULL, false, 0, false, "" },
    { TC_COMM_AUTO, 1, { FINE }, NULL, false, 0, false, "" },
    { TC_COMM_NCCL, 1, { FINE }, NULL, false, 0, true, "" },
    { TC_COMM_NCCL,
      1,
      { NO_DEVICE },
      NULL,
      false,
      TC_EUSER,
      false,
      "run.comm = nccl: rank 4 on a: " NONE },
    { TC_COMM_NCCL,
      2,
      { FINE, NO_DEVICE },
      "no driver",
      false,
      TC_EUSER,
      false,
      "run.comm = nccl: rank 5 on b: no driver" },
    { TC_COMM_AUTO, 2, { NO_DEVICE, NO_DEVICE }, NULL, false, 0, false, "rank 4 on a: " NONE },
    { TC_COMM_NCCL,
      2,
      { FINE, WITHOUT },
      "no driver",
      true,
      TC_EUSER,
      false,
      "run.comm = nccl: a rank: " BUILT },
    { TC_COMM_AUTO, 2, { FINE, BREAKS }, NULL, false, 0, false, "rank 5 on b: look broke" },
    { TC_COMM_NCCL,
      2,
      { SAME, SAME },
      NULL,
      false,
      TC_EUSER,
      false,
      "run.comm = nccl: rank 4 on a and rank 5 on b" SHARE },
    { TC_COMM_AUTO, 2, { SAME, SAME }, NULL, true, 0, false, "a rank and another" SHARE },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_hub *hub = tc_hub_new(2);
    struct rank_thread s[2];
    pthread_t thread[2];
    for (int r = 0; r < rows[i].n; r++) {
      s[r] = (struct rank_thread){ .hub = hub,
                            .rank = r,
                            .n = rows[i].n,
                            .kind = rows[i].kind[r],
                            .want = rows[i].want,
                            .no_device = rows[i].no_device,
                            .names = !rows[i].anonymous };
      snprintf(s[r].err.text, sizeof s[r].err.text, "old");
      if (pthread_create(&thread[r], NULL, sit, &s[r])) abort();
    }
    for (int r = 0; r < rows[i].n; r++) {
      pthread_join(thread[r], NULL);
      is_int(s[r].rc, rows[i].status, "run.comm = %s, row %d, rank %d", tc_word_run_comm(rows[i].want), (int)i, r);
      is_int(s[r].use, rows[i].use, "... used");
      is_str(s[r].err.text, rows[i].text, "... why");
    }
    tc_hub_free(hub);
  }
}

int main(void)
{
  test_late();
  test_ways();
  test_waits();
  test_naps();
  test_calls();
  test_failures();
  test_queued();
  test_alone();
  test_neighbours();
  test_meet();
  test_agree();
  return done_testing();
}
