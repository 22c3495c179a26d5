/* t_launch_calls.c - how ranks are started and ended (launch.c), step by step, with MPI, a watchdog
 * and a launcher of the test's own that write down their calls. */
#include "src/launch/launch.h"
#include "src/comm/hub.h"
#include "src/comm/mpi.h"
#include "src/watch/watch.h"
#include "tests/unit/tap.h"

#include <pthread.h>

static struct {
  char log[1200];
  int server, start, end, discover, found, rank, world, watch, body, threads;
  bool launched, own_server;        /* MPI starts as a run of its own, by a PMIx server of its own */
  struct tc_watch_opts o;
} fake;

TAP_FORMAT(1, 2)
static int put(const char *fmt, ...)
{
  char line[300];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  tc_text_add(fake.log, sizeof fake.log, "%s%s", *fake.log ? ", " : "", line);
  return 0;
}

static int answer(int rc, const char *what, struct tc_err *err)
{
  put("%s", what);
  return rc < 0 ? tc_fail(err, rc, "%s fails", what) : rc;
}

static int f_start(int *rank, int *world, struct tc_err *err)
{
  *rank = fake.rank;
  *world = fake.world;
  if (fake.own_server) {
    setenv("PMIX_NAMESPACE", "own", 1);
    setenv("PMIX_RANK", "0", 1);
  }
  return answer(fake.start, "start", err);
}

static int f_end(double deadline_s, struct tc_err *err)
{
  put("%g s", deadline_s);
  return answer(fake.end, "end", err);
}

/* The communicator of all that MPI has joined. */
static int f_comm(struct tc_comm **c, int id, const int32_t *members, int size, const struct tc_comm_opts *o,
                  struct tc_err *err)
{
  int wrong = id != TC_MPI_START_ID || o->deadline_s != 10;
  for (int i = 0; i < size; i++) wrong += members[i] != i;
  (void)err;
  *c = (struct tc_comm *)&fake;
  return put("join %d%s", size, wrong ? "?" : "");
}
static bool f_comm_free(struct tc_comm *c) { return put("part%s", c == (struct tc_comm *)&fake ? "" : "?"), true; }

/* This process is rank fake.found of three. */
static int f_discover(struct tc_ranks **r, const struct tc_ranks_request *want, struct tc_err *err)
{
  if (want->comm != (fake.launched ? (struct tc_comm *)&fake : NULL)) put("?");
  *r = NULL;
  if (fake.discover == 0) {
    *r = tc_calloc(1, sizeof **r);
    (*r)->rank = fake.found;
    (*r)->world = fake.launched ? 3 : 1;
    (*r)->info = tc_calloc(3, sizeof *(*r)->info);
  }
  return answer(fake.discover, "discover", err);
}

static bool f_launched(void) { return fake.launched; }
static int f_server(struct tc_err *err) { return answer(fake.server, "server", err); }
static void f_forget(void) { put("forget"); }
static void f_prepare(void) { put("prepare"); }
static void f_ranks_finish(void) { put("leave PMIx"); }
static struct tc_channel *f_mail(void) { return (struct tc_channel *)&fake; }
static void f_finish(void) { put("finish"); }
static void f_abort(int status) { put("abort %d", status); }
static void f_ranks_abort(int status, const char *why) { put("abort all %d (%s)", status, why); }
static int f_fail(const struct tc_err *err) { return put("'%s'", err->text), -err->status; }
static const char *missing = "";
static void f_missing(char *text, size_t size) { snprintf(text, size, "%s", missing); }
static void f_sleep(int64_t ns) { put("sleep %lld ms", (long long)ns / 1000000); }

static int f_watch(struct tc_watch **w, const struct tc_watch_opts *o, struct tc_err *err)
{
  fake.o = *o;
  *w = NULL;
  return answer(fake.watch, "watch", err);
}
static void f_watch_free(struct tc_watch *w) { put("unwatch%s", w ? "?" : ""); }
static void f_watch_mail(struct tc_watch *w, struct tc_channel *m)
{
  put("%s%s", m ? "mail" : "no mail", w ? "?" : "");
}
static void f_enter(struct tc_watch *w, int rank) { put("enter %d%s", rank, w ? "?" : ""); }
static void f_leave(int rc, const struct tc_err *err) { (void)err, put("leave %d", rc); }
static void f_allow(double s) { put("allow %g", s); }
static void f_bind(const struct tc_ranks *r, int rank) { (void)r, put("bind %d", rank); }
static void f_hub_leave(struct tc_hub *h, int rank) { put("%s gone %d", h ? "hub:" : "?", rank); }
static void f_at(const char *doing) { put("'%s'", doing); }

/* As many threads as may be started, each at its end before the next. */
static int f_thread(pthread_t *t, void *(*run)(void *), void *arg, struct tc_err *err)
{
  if (fake.threads-- <= 0) return tc_fail(err, TC_EUSER, "no more threads");
  return pthread_create(t, NULL, run, arg);
}

#define tc_mpi_start f_start
#define tc_comm_mpi f_comm
#define tc_comm_free f_comm_free
#define tc_ranks_discover f_discover
#define tc_ranks_prepare f_prepare
#define tc_ranks_finish f_ranks_finish
#define tc_pmix_launched f_launched
#define tc_pmix_forget f_forget
#define tc_pmix_missing f_missing
#define tc_pmix_server f_server
#define tc_mpi_meet f_end
#define tc_mpi_channel f_mail
#define tc_mpi_finish f_finish
#define tc_mpi_abort f_abort
#define tc_ranks_abort f_ranks_abort
#define tc_say_failure f_fail
#define tc_sleep_ns f_sleep
#define tc_watch_new f_watch
#define tc_watch_free f_watch_free
#define tc_watch_channel f_watch_mail
#define tc_watch_enter f_enter
#define tc_watch_leave f_leave
#define tc_watch_allow f_allow
#define tc_ranks_bind f_bind
#define tc_hub_leave f_hub_leave
#define tc_at_phase f_at
#define tc_thread_start f_thread
#include "src/launch/launch.c"

static int body(int rank, void *ctx, struct tc_err *err)
{
  put("body %d%s", rank, ctx == &fake ? "" : "?");
  return fake.body < 0 ? tc_fail(err, fake.body, "body fails") : fake.body;
}

static void clean(void)
{
  static const char *const name[] = { "PMIX_RANK",
                                      "PMIX_NAMESPACE",
                                      "SLURM_PROCID",
                                      "SLURM_NTASKS",
                                      "OMPI_COMM_WORLD_RANK",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "SLURM_STEP_NUM_TASKS",
                                      "PMI_SIZE",
                                      "MV2_COMM_WORLD_SIZE",
                                      "OMP_PROC_BIND",
                                      "OMP_PLACES",
                                      "GOMP_CPU_AFFINITY" };
  for (size_t i = 0; i < sizeof name / sizeof *name; i++) unsetenv(name[i]);
}

/* ---- a process ------------------------------------------------------------------------------- */

#define MPI_OF(r) "prepare, server, watch, enter " #r ", allow 10, 'starting MPI, which waits for all ranks', start, "
#define MPI MPI_OF(1)
#define ABORT(says, started) "abort all 2 (MPI has not joined the ranks: it says rank " says ", but the launcher " \
  "started rank " started " (PMIX_NAMESPACE = job): is this Open MPI built for the launcher's PMIx?)"
#define RUN "watch, enter 1, mail, bind 1, body 1, "
#define OVER "9 s, end, no mail, unwatch, finish"

/* Finding the ranks: MPI, then PMIx. own: this rank as the launcher counts; tasks: how many, as it says. */
static void test_find_process(void)
{
  static const struct { const char *name; bool launched; int server, start, discover, rank, world, status;
                        const char *log; int own; const char *tasks; bool own_server; } rows[] = {
    { "well", true, 0, 0, 0, 1, 3, 0, MPI "leave 0, unwatch, join 3, discover, part", 1, NULL, false },
    { "no launcher", false, 0, 0, 0, 0, 0, 0, "prepare, discover", 1, NULL, false },
    { "without MPI", true, 0, TC_EPEER, 0, 1, 3, TC_EPEER, MPI "forget, leave -8, unwatch", 1, NULL, false },
    { "no server", true, TC_EPEER, 0, 0, 1, 3, TC_EPEER, "prepare, server", 1, NULL, false },
    { "a rank does not come", true, 0, 0, TC_EPEER, 1, 3, TC_EPEER, MPI "leave 0, unwatch, join 3, discover, part", 1, NULL,
      false },
    { "more ranks than this step's tasks", true, 0, 0, 0, 1, 4, 0, MPI "leave 0, unwatch, join 4, discover, part", 1, "3",
      false },
    { "one rank", true, 0, 0, 0, 0, 1, 0, MPI_OF(0) "leave 0, unwatch, join 1, discover, part", 0, "1", false },
    { "another rank", true, 0, 0, 0, 2, 3, TC_EUSER, MPI "leave 0, unwatch, " ABORT("2 of 3", "1 of 3"), 1, "3", false },
    { "alone, rank 1", true, 0, 0, 0, 0, 1, TC_EUSER,
      MPI "leave 0, unwatch, sleep 30000 ms, " ABORT("0 of 1", "1 of 3"), 1, "3", false },
    { "alone, rank 0", true, 0, 0, 0, 0, 1, TC_EUSER, MPI_OF(0) "leave 0, unwatch, " ABORT("0 of 1", "0 of 3"),
      0, "3", false },
    { "alone, rank 1 of unknown number", true, 0, 0, 0, 0, 1, TC_EUSER, MPI "leave 0, unwatch, " ABORT("0 of 1", "1"),
      1, NULL, false },
    { "by MPI's own server, rank 1", true, 0, 0, 0, 0, 1, TC_EUSER,
      MPI "leave 0, unwatch, forget, sleep 30000 ms, " ABORT("0 of 1", "1"), 1, NULL, true },
    { "by MPI's own server, rank 0", true, 0, 0, 0, 0, 1, TC_EUSER,
      MPI_OF(0) "leave 0, unwatch, forget, " ABORT("0 of 1", "0"), 0, NULL, true },
  };
  struct tc_config cfg = { .run_deadline = 9, .run_ranks = 1, .run_threads = 1,
                           .run_comm = TC_COMM_AUTO, .run_bind = TC_BIND_NO,
                           .run_device = TC_DEVICE_CPU };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_launch l;
    struct tc_err err = { 0 };
    char own[8];
    memset(&fake, 0, sizeof fake);
    fake.launched = rows[i].launched;
    fake.own_server = rows[i].own_server;
    clean();
    snprintf(own, sizeof own, "%d", rows[i].own);
    setenv("PMIX_RANK", own, 1);
    setenv("PMIX_NAMESPACE", "job", 1);
    if (rows[i].tasks) setenv("SLURM_STEP_NUM_TASKS", rows[i].tasks, 1);
    fake.server = rows[i].server;
    fake.start = rows[i].start;
    fake.discover = rows[i].discover;
    fake.rank = rows[i].rank;
    fake.world = rows[i].world;
    fake.found = rows[i].own;
    is_int(tc_launch_find(&l, &cfg, &err), rows[i].status, "a process is found, %s", rows[i].name);
    is_str(fake.log, rows[i].log, "... what it does");
    ok(l.mpi == (rows[i].launched && !rows[i].server && !rows[i].start) && l.found == rows[i].status, "... what runs then");
    is_int(l.rank, rows[i].launched ? rows[i].own : 0, "... its rank, whatever MPI has changed");
    if (rows[i].launched && !rows[i].server)
      ok(fake.o.deadline_s == 9 && fake.o.world == rows[i].own + 1 && fake.o.first == rows[i].own &&
         fake.o.n_local == 1 && fake.o.end == end_start && fake.o.half == tc_pmix_waits, "... its watchdog");
    fake.log[0] = 0;
    tc_launch_free(&l);
    is_str(fake.log, !l.mpi ? "leave PMIx" : rows[i].status != TC_EPEER ? "9 s, end, finish, leave PMIx"
           : "sleep 300 ms, abort 8, finish, leave PMIx", "... how it ends, if nothing runs");
  }
  struct tc_ranks r = { .rank = 0, .world = 1 };
  struct tc_launch l = { .cfg = &cfg, .ranks = &r, .mpi = true, .mpi_world = 1, .found = TC_EPEER };
  memset(&fake, 0, sizeof fake);
  await_end(&l, TC_EPEER);
  is_str(fake.log, "", "a rank alone ends no other");
  for (int said = 0; said < 2; said++) {         /* rank 1 of two, which rank 0 does not follow to the end */
    struct tc_err why = { 0 };
    memset(&fake, 0, sizeof fake);
    fake.end = TC_EPEER;
    r = (struct tc_ranks){ .rank = 1, .world = 2 };
    l = (struct tc_launch){ .cfg = &cfg, .ranks = &r, .mpi = true, .mpi_world = 2 };
    tc_fail(&why, TC_EUSER, "no such file");
    if (said) tc_launch_say(&l, TC_EUSER, &why);
    await_end(&l, said ? TC_EUSER : 0);
    is_str(fake.log, said ? "9 s, end, 'no such file', 'end fails', sleep 300 ms, abort 8"
           : "9 s, end, 'end fails', sleep 300 ms, abort 8",
           "what this rank found is said where rank 0 has found something else");
  }
  memset(&fake, 0, sizeof fake);
  r = (struct tc_ranks){ .rank = 0, .world = 1 };
  fake.watch = TC_EUSER;
  struct tc_err err = { 0 };
  l.mpi = false;
  start_mpi(&l, &err);
  ok(!strncmp(fake.log, "watch, abort all 2 (watch fails)", 32), "no watchdog for MPI: all end: %s", fake.log);
  fake.log[0] = 0;
  end_start(8, "why");
  is_str(fake.log, "abort all 8 (why)", "MPI's start does not end, and the launcher knows no more");
  fake.log[0] = 0;
  missing = "rank 1 on node1";
  end_start(8, "why");
  is_str(fake.log, "abort all 8 (MPI's start waits for rank 1 on node1: stopped, dead, or not to be reached; see its "
         "message, or its node)", "... it does");
}

static void test_process(void)
{
  static const struct { const char *name; bool mpi; int watch, body, end, status; const char *log; } rows[] = {
    { "well", true, 0, 0, 0, 0, RUN "leave 0, " OVER },
    { "alone", false, 0, 0, 0, 0, "watch, enter 1, bind 1, body 1, leave 0, no mail, unwatch" },
    { "without a watchdog", true, TC_EUSER, 0, 0, 2, "watch, abort all 2 (watch fails), 'watch fails'" },
    { "alone without one", false, TC_EUSER, 0, 0, 2, "watch, 'watch fails'" },
    { "its work fails", true, 0, TC_ENOCKPT, 0, 5, RUN "leave -5, " OVER },
    { "its work misses a peer", true, 0, TC_EPEER, 0, 8,
      RUN "leave -8, 'body fails', sleep 300 ms, abort 8, no mail, unwatch, finish" },
    { "the others do not end", true, 0, 0, TC_EPEER, 0,        /* a real abort does not return */
      RUN "leave 0, 9 s, end, 'end fails', sleep 300 ms, abort 8, no mail, unwatch, finish" },
    { "its work has a status", true, 0, -85, 0, 85, RUN "leave -85, " OVER },
  };
  struct tc_config cfg = { .run_deadline = 9 };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_ranks r = { .rank = 1, .world = 3 };
    char *who[] = { NULL };
    struct tc_launch l = { .cfg = &cfg, .ranks = &r, .mpi = rows[i].mpi, .rank_names = who, .mpi_world = 3 };
    memset(&fake, 0, sizeof fake);
    fake.watch = rows[i].watch;
    fake.body = rows[i].body;
    fake.end = rows[i].end;
    is_int(tc_launch_run(&l, body, &fake), rows[i].status, "a process, %s", rows[i].name);
    is_str(fake.log, rows[i].log, "... what it does");
    ok(fake.o.deadline_s == 9 && fake.o.world == 3 && fake.o.first == 1 && fake.o.n_local == 1 &&
       fake.o.rank_names == (const char *const *)who && fake.o.end == tc_ranks_abort, "... its watchdog");
    ok(!l.mpi || rows[i].watch, "... MPI has ended");
  }
}

/* ---- threads ---------------------------------------------------------------------------------- */

static void test_threads(void)
{
  static const struct {
    const char *name;
    int threads, body, watch, status;
    const char *log;
  } rows[] = { { "well", 1, 0, 0, 0, "watch, enter 0, bind 0, body 0, leave 0, unwatch" },
               { "its work fails", 1, TC_ENOCKPT, 0, 5,
                 "watch, enter 0, bind 0, body 0, leave -5, hub: "
                 "gone 0, 'body fails', unwatch" },
               { "no thread", 0, 0, 0, 2, "watch, 'no more threads', unwatch" },
               { "no watchdog", 1, 0, TC_EUSER, 2, "watch, 'watch fails'" } };
  struct tc_config cfg = { .run_deadline = 7 };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_ranks r = { .rank = 0, .world = 1 };
    struct tc_launch l = { .cfg = &cfg, .ranks = &r, .hub = tc_hub_new(1) };
    memset(&fake, 0, sizeof fake);
    fake.threads = rows[i].threads;
    fake.body = rows[i].body;
    fake.watch = rows[i].watch;
    is_int(tc_launch_run(&l, body, &fake), rows[i].status, "a thread, %s", rows[i].name);
    is_str(fake.log, rows[i].log, "... what it does");
    ok(fake.o.deadline_s == 7 && fake.o.world == 1 && fake.o.first == 0 && fake.o.n_local == 1,
       "... its watchdog");
    tc_hub_free(l.hub);
  }
  struct tc_ranks r = { .rank = 0, .world = 5 };
  struct tc_launch l = { .cfg = &cfg, .ranks = &r, .hub = tc_hub_new(5) };
  memset(&fake, 0, sizeof fake);
  fake.threads = 3;
  is_int(tc_launch_run(&l, body, &fake), 2, "three threads of five");
  is_str(fake.log, "watch, 'no more threads', unwatch", "... none of them begins");
  is_int(fake.o.n_local, 5, "... all would have been watched");
  tc_hub_free(l.hub);
}

static void test_say_all(void)
{
  static const struct {
    int rc[3];
    const char *text[3];
    int status;
    const char *log;
  } rows[] = { { { 0, 0, 0 }, { "", "", "" }, 0, "" },
               { { TC_EUSER, TC_EUSER, TC_EUSER }, { "a", "a", "a" }, 2, "'a'" },
               { { 0, TC_EUSER, TC_ENOCKPT }, { "b", "a", "b" }, 5, "'a', 'b'" },
               { { TC_EPEER, TC_ENOCKPT, TC_EPEER }, { "a", "b", "c" }, 5, "'a', 'b', 'c'" },
               { { TC_ENOCKPT, TC_EPEER, 0 }, { "a", "b", "c" }, 5, "'a', 'b'" },
               { { TC_EPEER, TC_EPEER, 0 }, { "a", "b", "" }, 8, "'a', 'b'" },
               { { 1, 2, 3 }, { "a", "b", "c" }, 0, "" } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct rank_thread s[3] = { { .rank = 0 } };
    for (int k = 0; k < 3; k++) {
      s[k].rc = s[k].err.status = rows[i].rc[k];
      snprintf(s[k].err.text, sizeof s[k].err.text, "%s", rows[i].text[k]);
    }
    memset(&fake, 0, sizeof fake);
    is_int(say_all(s, 3), rows[i].status, "three ranks, row %d: status", (int)i);
    is_str(fake.log, rows[i].log, "... and sentences");
  }
}

/* ---- who runs, who speaks ------------------------------------------------------------------------ */

static void test_environment(void)
{
  static const struct {
    const char *name, *value, *name2, *value2;
    bool pmix;
    int rank, ranks;
    bool bind;
  } rows[] = { { NULL, NULL, NULL, NULL, false, 0, 0, true },
               { "PMIX_RANK", "3", "SLURM_PROCID", "4", true, 3, 0, true },
               { "PMIX_RANK", "3", "SLURM_PROCID", "4", false, 4, 0, true },    /* of an outer step */
               { "PMIX_RANK", "3", NULL, NULL, false, 0, 0, true },
               { "PMIX_RANK", "-3", NULL, NULL, true, 0, 0, true },
               { "PMIX_RANK", "2147483647", NULL, NULL, true, MAX_RANK, 0, true },
               { "SLURM_PROCID", "4", "OMPI_COMM_WORLD_RANK", "5", false, 4, 0, true },
               { "OMPI_COMM_WORLD_RANK", "5", NULL, NULL, false, 5, 0, true },
               { "OMPI_COMM_WORLD_SIZE", "2", NULL, NULL, false, 0, 2, true },
               { "OMPI_COMM_WORLD_SIZE", "2", "SLURM_STEP_NUM_TASKS", "4", false, 0, 2, true },
               { "SLURM_STEP_NUM_TASKS", "2", NULL, NULL, false, 0, 2, true },
               { "PMI_SIZE", "2", NULL, NULL, false, 0, 2, true },
               { "PMI_SIZE", "-2", NULL, NULL, false, 0, 0, true },
               { "PMI_SIZE", "3", "SLURM_STEP_NUM_TASKS", "1", false, 0, 1, true },
               { "OMP_PROC_BIND", "x", NULL, NULL, false, 0, 0, false },
               { "OMP_PLACES", "x", NULL, NULL, false, 0, 0, false },
               { "GOMP_CPU_AFFINITY", "x", NULL, NULL, false, 0, 0, false } };
  struct tc_config c = { .run_bind = TC_BIND_AUTO,
                         .run_device = TC_DEVICE_CPU,
                         .run_threads = 7 };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    clean();
    if (rows[i].name) setenv(rows[i].name, rows[i].value, 1);
    if (rows[i].name2) setenv(rows[i].name2, rows[i].value2, 1);
    fake.launched = rows[i].pmix;
    is_int(tc_launch_rank(), rows[i].rank, "%s: rank", rows[i].name ? rows[i].name : "nothing");
    is_int(launched(), rows[i].ranks, "... of so many");
    const struct tc_ranks_request w = tc_launch_request(&c);
    ok(w.bind == rows[i].bind && w.threads == 7 && !w.gpus && !w.ask, "... what is wanted");
  }
  clean();
  c.run_bind = TC_BIND_NO;
  c.run_device = TC_DEVICE_CUDA;
  c.run_threads = TC_AUTO;
  const struct tc_ranks_request w = tc_launch_request(&c);
  ok(!w.bind && w.gpus && w.threads == 0, "GPUs, no binding, any number of threads");
  c.run_threads = INT64_C(1) << 40;
  ok(tc_launch_request(&c).threads == INT32_MAX && tc_launch_threads(&c, NULL, 0) == INT32_MAX,
     "very many threads");
  c.run_threads = 1;
  is_int(tc_launch_threads(&c, NULL, 0), 1, "one thread");
  c.run_threads = 0;
  is_int(tc_launch_threads(&c, NULL, 0), 1, "... is the least");
}

static void test_find(void)
{
  static const struct {
    int64_t ranks;
    enum tc_comm_kind comm;
    bool several;
    int status;
    bool hub;
    int world;
    const char *text;
  } rows[] = { { 1, TC_COMM_AUTO, false, 0, false, 1, "" },
               { 1, TC_COMM_THREAD, false, 0, true, 1, "" },
               { 2, TC_COMM_AUTO, false, 0, true, 2, "" },
               { 1, TC_COMM_MPI, false, 0, false, 1, "" },
               { 2, TC_COMM_MPI, false, TC_EUSER, false, 0,
                 "run.ranks = 2 are threads, which run.comm = mpi "
                 "excludes: leave one" },
               { 2, TC_COMM_AUTO, true, TC_EUSER, false, 0,
                 "run.ranks = 2 are threads of one process, but a "
                 "launcher started several: leave "
                 "run.ranks, or start one" },
               { 0, TC_COMM_THREAD, false, TC_EUSER, false, 0, "run.ranks = 0: give 1 to 4096" },
               { 4096, TC_COMM_AUTO, false, 0, true, 4096, "" },
               { 4097, TC_COMM_AUTO, false, TC_EUSER, false, 0, "run.ranks = 4097: give 1 to 4096" } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_config c = { .run_bind = TC_BIND_NO,
                           .run_device = TC_DEVICE_CPU,
                           .run_ranks = rows[i].ranks,
                           .run_comm = rows[i].comm,
                           .run_threads = 1 };
    struct tc_launch l;
    struct tc_err err = { 0 };
    clean();
    if (rows[i].several) setenv("PMI_SIZE", "2", 1);
    is_int(tc_launch_find(&l, &c, &err), rows[i].status, "run.ranks = %d, run.comm = %s",
           (int)rows[i].ranks, tc_word_run_comm(rows[i].comm));
    is_str(err.text, rows[i].text, "... the sentence");
    ok(l.cfg == &c && !l.mpi && !l.hub == !rows[i].hub, "... threads or not");
    is_int(l.ranks ? l.ranks->world : 0, rows[i].world, "... so many");
    ok(!l.rank_names == !l.ranks, "... with names");
    if (l.ranks) tc_launch_free(&l);
  }
  clean();
}

static void test_say(void)
{
  static const struct {
    int rank, rc, status;
    bool logged;
  } rows[] = { { 0, 0, 0, false },
               { 0, TC_EUSER, 2, true },
               { 1, TC_EUSER, 2, false },
               { 1, TC_EPEER, 8, true },
               { 2, 0, 0, false } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_ranks r = { .rank = rows[i].rank };
    const struct tc_config cfg = { .run_ranks = 1 };
    struct tc_err err = { 0 };
    char rank[8];
    /* What is known: nothing, the rank before MPI started (now its variables are MPI's), or the ranks. */
    struct tc_launch l[] = { { .cfg = NULL }, { .cfg = &cfg, .rank = rows[i].rank }, { .cfg = &cfg, .ranks = &r } };
    for (int known = 0; known < 3; known++) {
      memset(&fake, 0, sizeof fake);
      fake.launched = true;
      if (rows[i].rc) tc_fail(&err, rows[i].rc, "why");
      snprintf(rank, sizeof rank, "%d", known ? 0 : rows[i].rank);
      setenv("PMIX_RANK", rank, 1);
      is_int(tc_launch_say(&l[known], rows[i].rc, &err), rows[i].status,
             "rank %d ends with %d, known %d", rows[i].rank, rows[i].rc, known);
      is_str(fake.log, rows[i].logged ? "'why'" : "", "... and its sentence");
    }
  }
  struct tc_err err = { 0 };
  setenv("PMIX_RANK", "1", 1);
  setenv("PMI_SIZE", "2", 1);
  memset(&fake, 0, sizeof fake);
  fake.launched = true;
  tc_fail(&err, TC_EUSER, "why");
  is_int(tc_launch_say(&(struct tc_launch){ .cfg = NULL }, TC_EUSER, &err), 2, "rank 1 of two, before the ranks know each other");
  is_str(fake.log, "sleep 2000 ms", "... gives rank 0 the time to say why");
  clean();
}

int main(void)
{
  clean();
  test_find_process();
  clean();
  test_process();
  test_threads();
  test_say_all();
  test_environment();
  test_find();
  test_say();
  return done_testing();
}
