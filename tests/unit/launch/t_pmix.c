/* t_pmix.c - what ranks tell each other through their launcher (pmix.c, ranks.c), with a
 * made-up launcher and a clock of the test's own. Real ones are tests/mpi's. */
#include "src/coll/flow.h"
#include "src/comm/comm.h"
#include "src/launch/pmix.h"
#include "src/launch/ranks.h"
#include "tests/unit/tap.h"

#include <errno.h>
#include <hwloc.h>
#include <limits.h>
#include <pmix.h>
#include <pthread.h>
#include <stdatomic.h>

static struct {
  pmix_status_t init, put, commit, fence, fenced, get;
  const char *local;              /* the ranks of this node; NULL: not to be had */
  int rank, size, type;           /* of the job's size */
  int failures, world;            /* of Get, before what is sent; how many ranks there are */
  bool late, short_of;            /* the fence never ends; what is sent is a byte short */
  int puts, fences, gets, anew, finalized, bad;
  unsigned asked;                 /* a bit for each rank */
  char key[64];
  char blob[1 << 16];
  size_t bytes;
  void (*change)(int rank, void *blob);
  void *fence_ctx;
  void *look;                     /* of the thread that looks for ranks */
  int here;                       /* a bit for each rank that has put something */
  pmix_status_t resolve;
  bool off;                       /* PMIx is not initialised */
} pmix;
static int64_t now_ns;

static int64_t clock_ns(void) { return now_ns; }
static void pass(int64_t ns) { now_ns += ns; }

static pmix_status_t f_init(pmix_proc_t *me, pmix_info_t *info, size_t n)
{
  pmix.bad += info || n;
  me->rank = (pmix_rank_t)pmix.rank;
  return pmix.init;
}

static pmix_status_t f_put(pmix_scope_t scope, const char *key, pmix_value_t *v)
{
  pmix.puts++;
  snprintf(pmix.key, sizeof pmix.key, "%s", key);
  pmix.bad += scope != PMIX_GLOBAL;
  if (v->type == PMIX_BOOL) return pmix.put;
  pmix.bad += v->type != PMIX_BYTE_OBJECT || v->data.bo.size > sizeof pmix.blob;
  pmix.bytes = v->data.bo.size;
  memcpy(pmix.blob, v->data.bo.bytes, pmix.bytes);
  return pmix.put;
}

static pmix_status_t f_commit(void) { return pmix.commit; }

static pmix_status_t f_fence(const pmix_proc_t *p, size_t n, const pmix_info_t *info, size_t n_info,
                             pmix_op_cbfunc_t done, void *ctx)
{
  pmix.fences++;
  pmix.fence_ctx = ctx;
  pmix.bad +=
      p || n || n_info != 1 || strcmp(info->key, PMIX_COLLECT_DATA) || !info->value.data.flag;
  if (pmix.fence == PMIX_SUCCESS && !pmix.late) done(pmix.fenced, ctx);
  return pmix.fence;
}

/* The job's size, the ranks of this node, or what `rank` sent: what this one did, changed. */
static pmix_status_t f_get(const pmix_proc_t *p, const char *key, const pmix_info_t *info, size_t n,
                           pmix_value_t **out)
{
  pmix_value_t *v;
  pmix.bad += strcmp(p->nspace, "job") != 0;
  if (pmix.get != PMIX_SUCCESS) return pmix.get;
  const bool size = !strcmp(key, PMIX_JOB_SIZE), local = !strcmp(key, PMIX_LOCAL_PEERS);
  if (local && !pmix.local) return PMIX_ERR_NOT_FOUND;
  if (!size && !local) {
    pmix.gets++;
    pmix.asked |= 1u << p->rank;
    pmix.anew += n == 2;
    pmix.bad +=
        strcmp(key, pmix.key) || strcmp(info->key, PMIX_TIMEOUT) || info->value.data.integer != 60;
    pmix.bad += n == 2 && (strcmp(info[1].key, PMIX_GET_REFRESH_CACHE) || !info[1].value.data.flag);
    if (pmix.failures && pmix.failures--) return PMIX_ERR_NOT_FOUND;
  } else {
    pmix.bad += p->rank != PMIX_RANK_WILDCARD;
  }
  PMIX_VALUE_CREATE(v, 1);
  if (size) {
    v->type = (pmix_data_type_t)pmix.type;
    v->data.uint32 = (uint32_t)pmix.size;
  } else if (local) {
    if (pmix.type != PMIX_INT) PMIX_VALUE_LOAD(v, pmix.local, PMIX_STRING);
  } else {
    static char sent[sizeof pmix.blob];
    memcpy(sent, pmix.blob, pmix.bytes);
    if (pmix.change) pmix.change((int)p->rank, sent);
    pmix_byte_object_t o = { .bytes = sent, .size = pmix.bytes - pmix.short_of };
    PMIX_VALUE_LOAD(v, &o, PMIX_BYTE_OBJECT);
  }
  *out = v;
  return PMIX_SUCCESS;
}

static int f_initialized(void) { return !pmix.off; }

/* A rank that has put nothing is not answered for. */
static pmix_status_t f_get_nb(const pmix_proc_t *p, const char *key, const pmix_info_t *info, size_t n,
                              pmix_value_cbfunc_t done, void *ctx)
{
  pmix.bad += strcmp(key, pmix.key) || n != 1 || strcmp(info->key, PMIX_TIMEOUT) || strcmp(p->nspace, "job");
  if (pmix.here >> p->rank & 1) done(PMIX_SUCCESS, NULL, ctx);
  else if (p->rank % 2) done(PMIX_ERR_TIMEOUT, NULL, ctx);
  return PMIX_SUCCESS;
}

static pmix_status_t f_resolve_nodes(const char *space, char **list)
{
  *list = pmix.resolve ? NULL : strdup("node0,node1");
  pmix.bad += strcmp(space, "job") != 0;
  return pmix.resolve;
}

/* Ranks 0, 1 and 2, 3. */
static pmix_status_t f_resolve_peers(const char *node, const char *space, pmix_proc_t **procs, size_t *n)
{
  pmix.bad += strcmp(space, "job") != 0;
  *n = 2;
  PMIX_PROC_CREATE(*procs, 2);
  for (pmix_rank_t i = 0; i < 2; i++) (*procs)[i].rank = i + 2 * !strcmp(node, "node1");
  return PMIX_SUCCESS;
}

static int f_thread(pthread_t *t, void *(*fn)(void *), void *arg, struct tc_err *err)
{
  (void)t, (void)err;
  if (arg) pmix.look = arg;
  fn(arg);
  return 0;
}
static int f_detach(pthread_t t) { (void)t; return 0; }
static pmix_status_t f_finalize(const pmix_info_t *info, size_t n)
{
  pmix.bad += info || n;
  pmix.finalized++;
  return PMIX_SUCCESS;
}

static int load_errno = -1;       /* of a load that fails; 0: it leaves errno alone; -1: it succeeds */

static int f_load(hwloc_topology_t topo)
{
  if (load_errno < 0) return hwloc_topology_load(topo);
  if (load_errno > 0) errno = load_errno;
  return -1;
}

/* MPI's ranks, which gather what each sends: what this one did, changed. */
static struct { int rank, world, calls, bad; int64_t foreign; bool fails; } mpi;

static int f_comm_coord(const struct tc_comm *c) { return mpi.bad += c != (struct tc_comm *)&mpi, mpi.rank; }
static int f_comm_size(const struct tc_comm *c) { return mpi.bad += c != (struct tc_comm *)&mpi, mpi.world; }

static int f_all_bytes(struct tc_comm *c, int algorithm, const void *mine, int64_t bytes, void *all, const char *what,
                       struct tc_err *err)
{
  mpi.bad += c != (struct tc_comm *)&mpi || algorithm != TC_ALGORITHM_DOUBLING || !*what;
  const bool sizes = ++mpi.calls % 2;           /* first how much, then that */
  mpi.bad += sizes != (bytes == 8);
  if (mpi.fails) return tc_fail(err, TC_EPEER, "a rank is late");
  for (int r = 0; r < mpi.world; r++) {
    char *to = memcpy((char *)all + r * bytes, mine, (size_t)bytes);
    if (sizes && mpi.foreign == r) ++*to;
    if (!sizes && pmix.change) pmix.change(r, to);
  }
  if (!sizes) snprintf(pmix.key, sizeof pmix.key, "tercio.device");
  return 0;
}

#define tc_comm_coord f_comm_coord
#define tc_comm_size f_comm_size
#define tc_comm_all_bytes f_all_bytes
#define hwloc_topology_load f_load
#define tc_now_ns clock_ns
#define tc_sleep_ns pass
#define PMIx_Init f_init
#define PMIx_Put f_put
#define PMIx_Commit f_commit
#define PMIx_Fence_nb f_fence
#define PMIx_Get f_get
#define PMIx_Get_nb f_get_nb
#define PMIx_Resolve_nodes f_resolve_nodes
#define PMIx_Resolve_peers f_resolve_peers
#define tc_thread_start f_thread
#define pthread_detach f_detach
#define PMIx_Initialized f_initialized
#define PMIx_Finalize f_finalize
#include "src/launch/pmix.c"
#include "src/launch/meet.c"
#include "src/launch/ranks.c"

static void make(int rank, int size)
{
  static const char *const none[] = {
    "HWLOC_XMLFILE",        "HWLOC_SYNTHETIC",
    "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID",   "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",         "SLURM_JOB_ID",   "SLURM_GPUS_ON_NODE",
    "SLURM_STEP_GPUS",      "SLURM_JOB_GPUS", "PMI_SIZE",
    "SLURM_RESTART_COUNT"
  };
  memset(&pmix, 0, sizeof pmix);
  pmix.rank = rank;
  pmix.size = size;
  pmix.type = PMIX_UINT32;
  mpi.rank = rank, mpi.world = size, mpi.calls = mpi.bad = 0, mpi.foreign = -1, mpi.fails = false;
  now_ns = 0;
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) unsetenv(none[i]);
  setenv("CUDA_VISIBLE_DEVICES", "", 1); /* whatever this machine has */
  setenv("PMIX_NAMESPACE", "job", 1);
  setenv("PMIX_RANK", "0", 1);
}

/* ---- the launcher's answers ----------------------------------------------------------------- */

#define FITS "; does the launcher's PMIx fit, and are all ranks alive?"

static void is_fail(int rc, const struct tc_err *err, const char *before, pmix_status_t why,
                    const char *after)
{
  char want[500];
  snprintf(want, sizeof want, "%s%s%s", before, PMIx_Error_string(why), after);
  is_int(rc, TC_EPEER, "... a peer's status");
  is_str(err->text, want, "... the sentence");
}

static void test_start(void)
{
  struct tc_err err = { 0 };
  int rank = -1, world = -1;
  make(3, 7);
  ok(tc_pmix_launched(), "started by a launcher");
  is_int(tc_pmix_start(&rank, &world, &err), 0, "a launcher that answers");
  ok(rank == 3 && world == 7, "... rank and ranks");
  pmix.size = 1;
  is_int(tc_pmix_start(&rank, &world, &err), 0, "... one rank alone");
  is_int(world, 1, "... is one");
  static const struct {
    int size, type;
    pmix_status_t get;
  } rows[] = { { 0, PMIX_UINT32, PMIX_SUCCESS },
               { 7, PMIX_INT, PMIX_SUCCESS },
               { 7, PMIX_UINT32, PMIX_ERR_TIMEOUT } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    pmix.size = rows[i].size;
    pmix.type = rows[i].type;
    pmix.get = rows[i].get;
    world = -1;
    is_fail(tc_pmix_start(&rank, &world, &err), &err,
            "asking PMIx for the number of ranks "
            "failed: ",
            rows[i].get, FITS);
    is_int(world, 0, "... no ranks");
  }
  ok(tc_pmix_launched(), "the launcher stays");
  tc_ranks_finish();
  is_int(pmix.finalized, 1, "... until the end");
  make(0, 1);
  pmix.init = PMIX_ERR_UNREACH;
  is_fail(tc_pmix_start(&rank, &world, &err), &err,
          "the launcher can't be reached (PMIx_Init: ", PMIX_ERR_UNREACH,
          ", PMIX_NAMESPACE = job): start with srun --mpi=pmix or Open MPI's mpirun, or without "
          "PMIX_* in the environment");
  ok(!tc_pmix_launched(), "a launcher that is gone is none any more");
  tc_ranks_finish();
  is_int(pmix.finalized, 0, "... and not called again");
  setenv("PMIX_NAMESPACE", "job", 1);
  unsetenv("PMIX_RANK");
  ok(!tc_pmix_launched(), "without a rank there is none");
  is_int(pmix.bad, 0, "all as PMIx wants it");
}

static void test_tell(void)
{
  static const struct {
    const char *what;
    pmix_status_t put, commit, fence, fenced;
    bool late;
    const char *text;
    pmix_status_t why;
    int fences;
  } rows[] = {
    { "well", 0, 0, 0, 0, false, NULL, 0, 1 },
    { "well, at once", 0, 0, PMIX_OPERATION_SUCCEEDED, 0, false, NULL, 0, 1 },
    { "no room", PMIX_ERR_NOMEM, 0, 0, 0, false, "PMIx_Put failed: ", PMIX_ERR_NOMEM, 0 },
    { "no commit", 0, PMIX_ERR_UNREACH, 0, 0, false, "PMIx_Put failed: ", PMIX_ERR_UNREACH, 0 },
    { "no fence", 0, 0, PMIX_ERR_NOT_SUPPORTED, 0, false,
      "PMIx_Fence failed: ", PMIX_ERR_NOT_SUPPORTED, 1 },
    { "a fence that breaks", 0, 0, 0, PMIX_ERR_TIMEOUT, false,
      "PMIx_Fence failed: ", PMIX_ERR_TIMEOUT, 1 },
  };
  struct tc_err err = { 0 };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    make(0, 2);
    pmix.put = rows[i].put;
    pmix.commit = rows[i].commit;
    pmix.fence = rows[i].fence;
    pmix.fenced = rows[i].fenced;
    int rc = tc_pmix_put("key", "hello", 6, 300, &err);
    ok(!rc == !rows[i].text, "%s", rows[i].what);
    if (rc) is_fail(rc, &err, rows[i].text, rows[i].why, FITS);
    is_int(pmix.fences, rows[i].fences, "... fences");
    ok(!strcmp(pmix.key, "key") && pmix.bytes == 6 && !strcmp(pmix.blob, "hello"),
       "... what was put");
    is_int(pmix.bad, 0, "... as PMIx wants it");
  }
  make(0, 2);
  pmix.late = true;
  pmix.here = 1;
  is_int(tc_pmix_put("key", "", 1, 300, &err), TC_EPEER, "a rank that never comes");
  is_str(err.text,
         "not all ranks of the step have started after 300 s (deadline run.deadline): rank 1 on node0 died or hangs "
         "before this point; look for its message, or its node's state",
         "... is reported");
  is_int(now_ns, INT64_C(305000500000), "... after so long, and as long as the launcher may take to say who it is");
  free(pmix.fence_ctx); /* left to the callback, which never comes */
}

/* Who is missing in MPI's start, by what the others put. */
static void test_missing(void)
{
  static const struct { int size, here; pmix_status_t resolve; const char *text; } rows[] = {
    { 4, 1, 0, "rank 1 on node0, rank 2 on node1, rank 3 on node1" }, { 4, 11, 0, "rank 2 on node1" }, { 4, 15, 0, "" },
    { 6, 31, 0, "rank 5" }, { 4, 11, PMIX_ERR_NOT_SUPPORTED, "rank 2" },
    { 11, 0, PMIX_ERR_NOT_SUPPORTED, "" },
    { 11, 1024, PMIX_ERR_NOT_SUPPORTED, "rank 0, rank 1, rank 2, rank 3, rank 4, rank 5, rank 6, rank 7 and 2 more" } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char who[400] = "old";
    make(0, rows[i].size);
    pmix.here = rows[i].here;
    pmix.resolve = rows[i].resolve;
    tc_pmix_waits();
    is_int(pmix.puts, 1, "a rank that waits says so");
    tc_pmix_missing(who, sizeof who);
    is_str(who, rows[i].text, "... who does not");
    is_int(now_ns, INT64_C(5000000000), "... within 5 s");
    is_int(pmix.bad, 0, "... as PMIx wants it");
  }
  char who[400] = "old";
  make(0, 2);
  pmix.type = PMIX_INT;
  tc_pmix_missing(who, sizeof who);
  is_str(who, "", "a launcher that does not know how many ranks there are");
  make(0, 2);
  pmix.off = true;
  tc_pmix_waits();
  tc_pmix_missing(who, sizeof who);
  is_str(who, "", "before PMIx is there");
  is_int(pmix.puts + now_ns, 0, "... nothing is asked");
}

static void test_hear(void)
{
  struct tc_err err = { 0 };
  char got[6] = "";
  make(0, 2);
  tc_pmix_put("key", "hello", 6, 300, &err);
  is_int(tc_pmix_get(1, "key", got, 6, 300, &err), 0, "another rank is heard");
  is_str(got, "hello", "... what it sent");
  ok(pmix.gets == 1 && pmix.anew == 0 && now_ns == 0, "... at once");
  pmix.failures = 3;
  is_int(tc_pmix_get(1, "key", got, 6, 300, &err), 0, "one that is late");
  ok(pmix.gets == 5 && now_ns == 3000000, "... is asked again each millisecond");
#ifdef PMIX_GET_REFRESH_CACHE
  is_int(pmix.anew, 3, "... anew");
#endif
  snprintf(got, sizeof got, "old");
  pmix.short_of = true;
  is_int(tc_pmix_get(1, "key", got, 6, 300, &err), 1, "one that sent other bytes");
  is_str(got, "old", "... which are not taken");
  is_int(tc_pmix_get(1, "key", got, 5, 300, &err), 0, "... unless they are as many");
  make(0, 2);
  snprintf(pmix.key, sizeof pmix.key, "key");
  pmix.get = PMIX_ERR_NOT_FOUND;
  is_fail(tc_pmix_get(7, "key", got, 6, 300, &err), &err,
          "rank 7 has sent nothing for 300 s (deadline run.deadline): ",
          PMIX_ERR_NOT_FOUND, "; does it run this same program?");
  is_int(now_ns, INT64_C(300001000000), "... after so long");
}

static void test_leader(void)
{
  static const struct { const char *local; int leader; } rows[] = {
    { "0,1,2", 0 }, { "5,4,12", 4 }, { "7", 7 }, { "12,9", 9 }, { "", -1 }, { NULL, -1 } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    make(0, 4);
    pmix.local = rows[i].local;
    is_int(tc_pmix_leader(), rows[i].leader, "the lowest rank of a node of %s", rows[i].local);
    is_int(pmix.bad, 0, "... all as PMIx wants it");
  }
  pmix.local = "3";
  pmix.type = PMIX_INT;
  is_int(tc_pmix_leader(), -1, "no text");
}

/* ---- ranks that meet ------------------------------------------------------------------------- */

enum { MINE = 2, RANKS = 4 };
static bool foreign, devices;
static int unreadable = -1;       /* a rank whose node can't be read */

/* As other ranks say it: where they are, and in the second exchange what they took. */
static void change(int rank, void *at)
{
  struct blob *b = at;
  if (rank == MINE) return;
  if (pmix.bytes == sizeof b->magic && !mpi.calls) return;      /* only that it is there */
  if (foreign && rank == 3) b->magic++;
  b->leader = rank % 2;
  snprintf(b->info.host, sizeof b->info.host, "host%d", rank % 2);
  b->status = 0;
  if (rank == unreadable) {
    b->status = TC_EUSER;
    snprintf(b->problem, sizeof b->problem, "no topology");
  }
  if (!strcmp(pmix.key, "tercio.rank")) b->info.n_visible = devices;
  if (!strcmp(pmix.key, "tercio.device")) b->info.device = 10 + rank;
}

/* by_mpi: ranks tell each other through MPI what they know, else through PMIx. */
static void test_meet(bool by_mpi)
{
  static const struct {
    const char *mpirun, *slurm, *tasks;
    bool bind, devices;
    const char *launcher;
    int puts;
  } rows[] = { { "4", NULL, NULL, false, false, "mpirun", 1 },
               { NULL, NULL, NULL, false, false, "mpirun", 1 },
               { NULL, "2", NULL, false, false, "srun", 1 },
               { NULL, "2", "4", true, false, "srun", 2 },
               { "4", "2", "3", false, true, "mpirun", 2 } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_ranks *r = NULL;
    struct tc_err err = { 0 };
    make(MINE, RANKS);
    foreign = false;
    devices = rows[i].devices;
    pmix.change = change;
    pmix.local = "0,2";
    if (rows[i].mpirun) setenv("OMPI_COMM_WORLD_SIZE", rows[i].mpirun, 1);
    if (rows[i].slurm) setenv("SLURM_PROCID", rows[i].slurm, 1);
    if (rows[i].tasks) setenv("SLURM_STEP_NUM_TASKS", rows[i].tasks, 1);
    setenv("SLURM_JOB_ID", "a job", 1);
    setenv("SLURM_RESTART_COUNT", i == 1 ? "x" : i == 2 ? "-1" : "7", 1);
    const struct tc_ranks_request want = { .bind = rows[i].bind, .comm = by_mpi ? (struct tc_comm *)&mpi : NULL };
    if (!is_int(tc_ranks_discover(&r, by_mpi || rows[i].bind ? &want : NULL, &err), 0,
                "ranks meet%s, row %d: %s", by_mpi ? " by MPI" : "", (int)i, err.text))
      continue;
    ok(r->rank == MINE && r->world == RANKS && r->n_nodes == 2, "... two nodes");
    is_str(r->launcher, rows[i].launcher, "... by this launcher");
    is_str(r->job, "a job", "... in this job");
    is_int(r->restart, i == 1 || i == 2 ? 0 : 7, "... started so often again");
    for (int k = 0; k < RANKS; k++) {
      char host[16];
      snprintf(host, sizeof host, "host%d", k % 2);
      ok(r->node_of_rank[k] == k % 2 && (k == MINE || !strcmp(r->info[k].host, host)),
         "... rank %d is on %s", k, host);
      if (k != MINE)
        is_int(r->info[k].device, rows[i].puts == 2 ? 10 + k : -1, "... and has this device");
      if (rows[i].puts == 1)
        ok(r->info[k].node == k % 2 && r->info[k].local_rank == k / 2 && r->info[k].local_size == 2,
           "... its place");
    }
    is_int(by_mpi ? mpi.calls / 2 : pmix.puts, rows[i].puts, "... after so many exchanges");
    if (by_mpi)
      ok(pmix.puts == 1 && pmix.gets == 2 && pmix.asked == (1u << 1 | 1u << 0), "... PMIx is asked for the ranks to which it sends");
    ok(pmix.bad == 0 && mpi.bad == 0, "... all as PMIx and MPI want it");
    tc_ranks_free(r);
  }
}

static void test_mpi_fails(void)
{
  static const struct { const char *what; bool short_of; int rank, world, foreign, fails, status; const char *text; } rows[] = {
    { "a build that meets otherwise", true, MINE, RANKS, -1, 0, TC_EUSER, "rank 1 runs another build of tercio than rank 2" },
    { "a build that knows more", false, MINE, RANKS, 1, 0, TC_EUSER, "rank 1 runs another build of tercio than rank 2" },
    { "a late rank", false, MINE, RANKS, -1, 1, TC_EPEER, "a rank is late" },
    { "another world", false, MINE, 5, -1, 0, TC_EUSER, "MPI says rank 2 of 5, PMIx 2 of 4: is this Open MPI built for the" },
    { "another rank", false, 0, RANKS, -1, 0, TC_EUSER, "MPI says rank 0 of 4, PMIx 2 of 4: is this Open MPI built for the" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct tc_ranks_request want = { .comm = (struct tc_comm *)&mpi };
    struct tc_ranks *r = NULL;
    struct tc_err err = { 0 };
    make(MINE, RANKS);
    pmix.change = change;
    pmix.short_of = rows[i].short_of;
    mpi.rank = rows[i].rank, mpi.world = rows[i].world, mpi.foreign = rows[i].foreign, mpi.fails = rows[i].fails;
    setenv("SLURM_PROCID", "2", 1);
    is_int(tc_ranks_discover(&r, &want, &err), rows[i].status, "ranks do not meet by MPI: %s", rows[i].what);
    ok(!strncmp(err.text, rows[i].text, strlen(rows[i].text)), "... %s", err.text);
    ok(!r && mpi.bad == 0 && (mpi.world == RANKS || mpi.calls == 0), "... and there are none");
  }
}

static void test_meet_fails(void)
{
  static const struct {
    const char *what;
    bool foreign, short_of;
    const char *tasks;
    pmix_status_t init, fenced, get;
    int type, status;
    const char *text;
  } rows[] = {
    { "another build", true, false, NULL, 0, 0, 0, PMIX_UINT32, TC_EUSER,
      "rank 3 runs another build of tercio than rank 2; install the same one on all nodes" },
    { "another size", false, true, NULL, 0, 0, 0, PMIX_UINT32, TC_EUSER,
      "rank 0 runs another build of tercio than rank 2; install the same one on all nodes" },
    { "another step", false, false, "3", 0, 0, 0, PMIX_UINT32, TC_EUSER,
      "PMIx knows 4 ranks, but this step has 3 tasks: start with srun --mpi=pmix" },
    { "no launcher", false, false, NULL, PMIX_ERR_UNREACH, 0, 0, PMIX_UINT32, TC_EPEER,
      "the launcher can't be reached" },
    { "no size", false, false, NULL, 0, 0, 0, PMIX_INT, TC_EPEER,
      "asking PMIx for the number of ranks failed" },
    { "no fence", false, false, NULL, 0, PMIX_ERR_TIMEOUT, 0, PMIX_UINT32, TC_EPEER,
      "PMIx_Fence failed" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_ranks *r = (struct tc_ranks *)&pmix;
    struct tc_err err = { 0 };
    make(MINE, RANKS);
    pmix.change = change;
    pmix.short_of = rows[i].short_of;
    pmix.init = rows[i].init;
    pmix.fenced = rows[i].fenced;
    pmix.type = rows[i].type;
    foreign = rows[i].foreign;
    devices = false;
    setenv("SLURM_PROCID", "2", 1);
    if (rows[i].tasks) setenv("SLURM_STEP_NUM_TASKS", rows[i].tasks, 1);
    is_int(tc_ranks_discover(&r, NULL, &err), rows[i].status, "ranks do not meet: %s",
           rows[i].what);
    ok(!strncmp(err.text, rows[i].text, strlen(rows[i].text)), "... %s", err.text);
    ok(!r, "... and there are none");
  }
  foreign = false;
}

/* A node that can't be read: all ranks know it, say the same and end, whichever rank it is. */
static void test_unreadable(void)
{
#define SORRY ": hwloc can't read this node's topology: "
  static const struct { const char *name, *value; int load_errno, other; const char *rank, *text; } rows[] = {
    { NULL, NULL, -1, 3, "rank 3 on host1", ": no topology" },
    { NULL, NULL, -1, 0, "rank 0 on host0", ": no topology" },
    { "HWLOC_XMLFILE", "/x/bad.xml", 0, -1, "rank 2 on ", SORRY "HWLOC_XMLFILE = /x/bad.xml is set; unset or correct it" },
    { "HWLOC_SYNTHETIC", "pu:x", ENOMEM, -1, "rank 2 on ", SORRY "HWLOC_SYNTHETIC = pu:x is set; unset or correct it" },
    { NULL, NULL, ENOMEM, -1, "rank 2 on ", SORRY "Cannot allocate memory" },
    { NULL, NULL, 0, -1, "rank 2 on ", SORRY "lstopo may say why" },
    { NULL, NULL, 0, 3, "rank 2 on ", SORRY "lstopo may say why" },           /* the lowest one */
    { NULL, NULL, 0, 1, "rank 1 on host1", ": no topology" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_ranks *r = (struct tc_ranks *)&pmix;
    struct tc_err err = { 0 };
    make(MINE, RANKS);
    pmix.change = change;
    unreadable = rows[i].other;
    load_errno = rows[i].load_errno;
    if (rows[i].name) setenv(rows[i].name, rows[i].value, 1);
    errno = EBADF;                /* of an earlier call */
    is_int(tc_ranks_discover(&r, NULL, &err), TC_EUSER, "a node that can't be read, row %d", (int)i);
    ok(!strncmp(err.text, rows[i].rank, strlen(rows[i].rank)) && strstr(err.text, rows[i].text), "... %s", err.text);
    is_int(pmix.puts, 1, "... after one exchange");
    ok(!r, "... and there are no ranks");
    if (rows[i].name) unsetenv(rows[i].name);
  }
  unreadable = load_errno = -1;
}

int main(void)
{
  test_start();
  test_tell();
  test_missing();
  test_hear();
  test_leader();
  test_meet(false);
  test_meet(true);
  test_mpi_fails();
  test_meet_fails();
  test_unreadable();
  return done_testing();
}
