/* t_comm.c - communicators of ranks that are threads: the shared cases for 1 to 5 ranks, the
 * figures of tc_coll_bytes, and what becomes of the others when a rank leaves. */
#include <pthread.h>

#include "src/comm/comm.h"
#include "src/comm/link.h"
#include "src/comm/hub.h"
#include "src/bench/bench.h"
#include "src/comm/impl.h"
#include "tests/unit/coll_bytes.h"
#include "tests/unit/comm/comm_cases.h"
#include "tests/unit/tap.h"

enum { MAX_WORLD = 7, EACH_WORLD = 5 };

struct job { struct cc_env env; void (*run)(struct cc_env *e); struct tc_watch *watch; };

static struct tc_comm *make(struct cc_env *e, int id, const int32_t *members, int size,
                            const struct tc_comm_opts *o)
{
  if (size == 1 && e->world == 1) return tc_comm_self(o);
  return tc_comm_thread(e->ctx, id, e->rank, members, size, o);
}

static void *run_job(void *arg)
{
  struct job *j = arg;
  struct tc_err none = { 0 };
  tc_log_set_rank(j->env.rank);
  if (j->watch) tc_watch_enter(j->watch, j->env.rank);
  j->run(&j->env);
  if (j->watch) tc_watch_leave(0, &none);
  return NULL;
}

static void never(int status, const char *why)
{
  printf("Bail out! %d: %s\n", status, why);
  exit(1);
}

/* Under a watchdog, threads that wait for a call run it themselves, if they can. */
static struct tc_watch *watch_all(int world, const char *const *who)
{
  const struct tc_watch_opts o = { .deadline_s = 600, .world = world, .n_local = world, .rank_names = who, .end = never };
  struct tc_watch *w = NULL;
  struct tc_err err;
  TC_ASSERT(tc_watch_new(&w, &o, &err) == 0);
  return w;
}

/* Returns whether a rank wants it again. */
static bool run_once(int world, int number, const char *name, void (*run)(struct cc_env *e))
{
  static const char *const who[MAX_WORLD] = { "rank 0 on node1", "rank 1 on node1",
                                              "rank 2 on node2", "rank 3 on node2",
                                              "rank 4 on node3", "rank 5 on node4", "rank 6 on node4" };
  struct tc_hub *hub = tc_hub_new(world);
  struct job job[MAX_WORLD];
  pthread_t thread[MAX_WORLD];
  struct tc_watch *watch = world % 2 ? watch_all(world, who) : NULL;
  int fails = 0;
  bool again = false;
  for (int r = 0; r < world; r++) {
    job[r] = (struct job) { .env = { .rank = r, .world = world, .make = make, .ctx = hub,
                                     .who = who, .run = number, .repeats = true }, .run = run, .watch = watch };
    pthread_create(&thread[r], NULL, run_job, &job[r]);
  }
  for (int r = 0; r < world; r++) {
    pthread_join(thread[r], NULL);
    fails += job[r].env.fails;
    again |= job[r].env.again;
  }
  if (!again || fails) ok(fails == 0, "%d rank%s: %s", world, world > 1 ? "s" : "", name);
  for (int r = 0; r < world; r++)
    if (job[r].env.fails)
      printf("#   rank %d: %d failed, first: %s\n", r, job[r].env.fails, job[r].env.first);
  if (watch) tc_watch_free(watch);
  tc_hub_free(hub);
  return again && !fails;
}

static void run_world(int world, const char *name, void (*run)(struct cc_env *e))
{
  for (int i = 0; i < CC_RUNS && run_once(world, i, name, run); i++) { }
}

/* The last rank takes part in one call, then leaves in the middle of the next. Those that find out leave, too: in a tree
 * others wait for them. */
static void leave_during(struct cc_env *e, int algorithm)
{
  struct tc_comm *c = cc_world(e, 0, "dp", 60);
  int last = e->world - 1;
  float x = 1;
  struct tc_part p = { &x, &x, 1, 1 };
  struct tc_coll_args a = { .coll = TC_ALL_REDUCE, .algorithm = algorithm, .dtype = TC_F32, .n_parts = 1, .parts = &p,
                            .what = "norm" };
  struct tc_err err = { 0 };
  const bool direct = algorithm == TC_ALGORITHM_EXCHANGE;
  cc_check(e, tc_comm_run(c, &a, &err) == 0, "%s", err.text);
  if (e->rank == last) {
    tc_sleep_ns(100000000);
    tc_hub_leave(e->ctx, last);
    tc_comm_free(c);
    return;
  }
  int64_t start_ns = tc_now_ns();
  int rc = tc_comm_run(c, &a, &err);
  double s = (double)(tc_now_ns() - start_ns) * 1e-9;
  cc_check(e, rc == TC_EPEER && (!direct || strstr(err.text, e->who[last])) && strstr(err.text, "'norm'"),
           "status %d: %s", rc, err.text);
  tc_hub_leave(e->ctx, e->rank);
  for (int i = 0; i < last && direct; i++)
    cc_check(e, !strstr(err.text, e->who[i]), "blames another: %s", err.text);
  cc_check(e, s < 30, "noticed after %g s", s);
  tc_comm_free(c);
}

static void leave(struct cc_env *e) { leave_during(e, TC_ALGORITHM_EXCHANGE); }
static void leave_tree(struct cc_env *e) { leave_during(e, TC_ALGORITHM_TREE); }
static void leave_doubling(struct cc_env *e) { leave_during(e, TC_ALGORITHM_DOUBLING); }

/* A rank that has done its part may go while the others still work on what it sent. */
static void leave_well(struct cc_env *e)
{
  struct tc_comm *c = cc_world(e, 0, "dp", 60);
  struct cc_call k = cc_call(TC_ALL_REDUCE, TC_F32, 300001, e->world);
  for (int i = 0; i < 5; i++) cc_one(e, c, &k);
  tc_hub_leave(e->ctx, e->rank);
  tc_comm_free(c);
}

static void bytes_table(void)
{
  static const struct { int coll, size, coord, root; int64_t count, block, want; } t[] = {
    { TC_ALL_REDUCE, 2, 0, 0, 1000, 500, 4000 },       /* 2 * count * (N-1)/N */
    { TC_ALL_REDUCE, 4, 3, 0, 1000, 250, 6000 },
    { TC_ALL_REDUCE, 3, 0, 0, 1024, 342, 5464 },       /* (1024 - 342 + 2 * 342) * 4 */
    { TC_ALL_REDUCE, 3, 2, 0, 1024, 342, 5456 },
    { TC_ALL_REDUCE, 5, 4, 0, 3, 1, 12 },              /* an empty block */
    { TC_ALL_REDUCE, 1, 0, 0, 1000, 1000, 0 },
    { TC_REDUCE_SCATTER, 4, 1, 0, 1000, 250, 3000 },
    { TC_ALL_GATHER, 4, 1, 0, 1000, 250, 3000 },
    { TC_ALL_GATHER, 3, 2, 0, 1024, 342, 2720 },
    { TC_BROADCAST, 4, 2, 2, 1000, 250, 12000 },
    { TC_BROADCAST, 4, 1, 2, 1000, 250, 0 },
    { TC_REDUCE, 4, 2, 2, 1000, 250, 0 },
    { TC_REDUCE, 4, 1, 2, 1000, 250, 4000 },
    { TC_SCATTER, 4, 0, 0, 1000, 250, 3000 },
    { TC_SCATTER, 4, 1, 0, 1000, 250, 0 },
    { TC_GATHER, 4, 1, 0, 1000, 250, 1000 },
    { TC_GATHER, 4, 0, 0, 1000, 250, 0 },
    { TC_ALL_TO_ALL, 4, 1, 0, 1000, 250, 3000 },
    { TC_SEND, 4, 1, 0, 1000, 1000, 4000 },
    { TC_RECV, 4, 1, 0, 1000, 1000, 0 },
    { TC_BARRIER, 4, 1, 0, 1000, 1000, 0 },
    { TC_ALL_REDUCE, 1000, 7, 0, INT64_C(175000000000), 175000000, INT64_C(1398600000000) },
  };
  for (size_t i = 0; i < sizeof t / sizeof *t; i++)
    is_int(coll_bytes(t[i].coll, t[i].size, t[i].coord, t[i].root, t[i].count, t[i].block),
           t[i].want, "bytes of %s, %d of %d", tc_coll_name[t[i].coll], t[i].coord, t[i].size);
}

/* A backend that gets each call by `start`, and refuses the third. */
struct refusing { atomic_int started, run; };

static int refusing_start(void *impl, const struct tc_coll_args *a, tc_ticket t, struct tc_err *err)
{
  (void)a, (void)t;
  struct refusing *r = impl;
  return atomic_fetch_add(&r->started, 1) < 2 ? 0 : tc_fail(err, TC_EPEER, "the third is refused");
}

static int refusing_run(void *impl, const struct tc_coll_args *a, const atomic_bool *stop, struct tc_sent *sent,
                        struct tc_err *err)
{
  (void)a, (void)stop, (void)err;
  struct refusing *r = impl;
  sent->bytes = 5;
  atomic_fetch_add(&r->run, 1);
  return 0;
}

static void refusing_free(void *impl) { (void)impl; }

static void refused_start(int size)
{
  static const struct tc_comm_ops ops = { .run = refusing_run, .free = refusing_free, .start = refusing_start,
                                          .depth = 1 };
  struct refusing r = { 0 };
  struct tc_comm *c = tc_comm_new(&ops, &r, &(struct tc_members){ .size = size }, &(struct tc_comm_opts){ .name = "dp", .deadline_s = 60 }, NULL);
  const struct tc_coll_args a = { .coll = TC_BARRIER };
  struct tc_err err = { 0 };
  tc_ticket t = 0;
  for (int i = 0; i < 4; i++) {
    int rc = tc_comm_start(c, &a, &t, &err);
    if (i < 2) is_int(rc, 0, "size %d: call %d starts", size, i);
    else ok(rc == TC_EPEER && !strcmp(err.text, "the third is refused"), "... call %d does not: %s", i, err.text);
  }
  is_int(atomic_load(&r.started), 3, "... nothing is started after it");
  tc_comm_free(c);
  is_int(atomic_load(&r.run), 2, "... nor run");
}

/* A backend whose copies are wrong from element `from` on, every `each` elements; from -1: none is made.
 * It says that it sent `more` bytes than it should. */
struct spoiling { int64_t from, each, more; };

static int spoiling_run(void *impl, const struct tc_coll_args *a, const atomic_bool *stop, struct tc_sent *sent,
                        struct tc_err *err)
{
  (void)stop, (void)err;
  const struct spoiling *s = impl;
  sent->bytes = 4 * (a->parts[0].count - a->parts[0].block) + s->more;      /* the other rank's half */
  for (int i = 0; s->from >= 0 && i < a->n_parts; i++) {
    float *dst = a->parts[i].dst;
    memcpy(dst, a->parts[i].src, (size_t)a->parts[i].block * sizeof *dst);
    for (int64_t k = s->from; k < a->parts[i].block; k += s->each) dst[k] += 1;
  }
  return 0;
}

/* A link on which all is done at once, and the largest of what came. */
struct quick { int64_t most; };

static int quick_post(void *link, bool is_send, int peer, void *buf, int64_t bytes, int tag)
{
  (void)peer, (void)tag;
  struct quick *q = link;
  if (is_send) return 0;
  q->most = TC_MAX(q->most, bytes);
  memset(buf, 0, (size_t)bytes);
  return 0;
}

static int quick_test(void *link, int request)
{
  (void)link, (void)request;
  return 1;
}

static void quick_cancel(void *link, int request) { (void)link, (void)request; }
static void quick_free(void *link) { (void)link; }

/* Memory for what is added up is bounded, 16 MiB with two pieces of each other member: pieces of these
 * collectives are smaller than those that are only moved. */
static void sizes_of_pieces(void)
{
  static const struct tc_link_ops ops = { .post = quick_post, .test = quick_test, .cancel = quick_cancel, .free = quick_free };
  static const struct { int coll, size; int64_t block, most; } row[] = {
    { TC_ALL_REDUCE, 4, 5 << 18, 1 << 20 }, { TC_REDUCE_SCATTER, 4, 5 << 18, 1 << 20 },
    { TC_REDUCE, 4, 5 << 18, 1 << 20 }, { TC_ALL_REDUCE, 65, 1 << 16, 1 << 17 },
    { TC_ALL_REDUCE, 2, 1000, 4000 }, { TC_ALL_GATHER, 4, 5 << 18, 4 << 20 },
    { TC_BROADCAST, 4, 5 << 18, 4 << 20 }, { TC_ALL_TO_ALL, 4, 5 << 18, 4 << 20 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    const int64_t count = row[i].size * row[i].block;
    const int last = row[i].size - 1, at = row[i].coll == TC_BROADCAST ? last : 0;   /* who receives */
    int32_t members[65];
    for (int k = 0; k < row[i].size; k++) members[k] = k;
    struct quick q = { 0 };
    struct tc_err err = { 0 };
    struct tc_comm *c = tc_comm_p2p(&ops, &q, at, members, row[i].size,
                                    &(struct tc_comm_opts){ .name = "dp", .deadline_s = 60 });
    float *src = calloc((size_t)count, sizeof *src), *dst = calloc((size_t)count, sizeof *dst);
    const struct tc_part part = { src, dst, count, row[i].block };
    is_int(tc_comm_run(c, &(struct tc_coll_args){ .coll = row[i].coll, .dtype = TC_F32, .red = TC_SUM, .n_parts = 1,
                                                  .parts = &part, .what = "pieces" }, &err), 0,
           "%s of %d: %s", tc_coll_name[row[i].coll], row[i].size, err.text);
    tc_comm_free(c);
    is_int(q.most, row[i].most, "... in pieces of at most %lld bytes", (long long)row[i].most);
    free(src);
    free(dst);
  }
}

/* What `tercio comm` checks: the first wrong element, and how many there are; and the bytes sent. */
static void wrong_results(void)
{
  static const struct tc_comm_ops ops = { .run = spoiling_run, .free = refusing_free };
  static const struct { int64_t from, each, more; const char *want, *end; } row[] = {
    { 100, 1, 0, "", "" },
    { 37, 100, 0, "scatter of 400 bytes is wrong on rank 0: index 37: got ", "; wrong elements of this rank: 1" },
    { 5, 10, 0, "scatter of 400 bytes is wrong on rank 0: index 5: got ", "; wrong elements of this rank: 5" },
    { -1, 1, 0, "scatter of 400 bytes is wrong on rank 0: index 0: got nothing, expected ",
      "; wrong elements of this rank: 50" },
    { 100, 1, 8, "scatter of 400 bytes: the counter of scatter on rank 0 grew by 4 calls and 832 bytes, "
      "predicted were 4 and 800", "" } };
  const struct tc_comm_opts o = { .name = "dp" };
  const int32_t members[] = { 0, 1 };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct spoiling s = { row[i].from, row[i].each, row[i].more };
    struct tc_comm *world = tc_comm_self(&o), *group = tc_comm_new(&ops, &s, &(struct tc_members){ .size = 2 }, &o, NULL);
    struct tc_bench *b = tc_bench_new(group, world, members, 0, 400, 2, NULL);
    struct tc_bench_row got = { 0 };
    struct tc_err err = { 0 };
    int rc = tc_bench_run(b, TC_BENCH_SCATTER, 400, &got, &err);
    is_int(rc, *row[i].want ? TC_EUSER : 0, "copies that are wrong from %d on, %d bytes too many",
           (int)row[i].from, (int)row[i].more);
    const size_t n = strlen(err.text), tail = strlen(row[i].end);
    ok(!strncmp(err.text, row[i].want, strlen(row[i].want)) && n >= tail && !strcmp(err.text + n - tail, row[i].end),
       "... are reported: %s", err.text);
    is_int(got.size_bytes, 400, "... with a row");
    tc_comm_free(group);
    tc_comm_free(world);
    tc_bench_free(b);
  }
}

int main(void)
{
  bytes_table();
  wrong_results();
  sizes_of_pieces();
  refused_start(1);
  refused_start(2);
  for (int world = 1; world <= EACH_WORLD; world++)
    for (int i = 0; i < CC_CASES; i++)
      if (world >= cc_cases[i].min_world) run_world(world, cc_cases[i].name, cc_cases[i].run);
  run_world(7, "nodes of 4, 1 and 2 ranks", cc_ragged);
  for (int world = 2; world <= 4; world++) {
    run_world(world, "a rank leaves", leave);
    run_world(world, "a rank leaves a tree", leave_tree);
    run_world(world, "a rank leaves in rounds", leave_doubling);
    run_world(world, "ranks leave when done", leave_well);
  }
  return done_testing();
}
