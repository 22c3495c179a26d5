/* pmix.c - what ranks ask of their launcher, and send each other through it: the only file
 * that includes <pmix.h>.
 *
 * PMIx is initialised only where a launcher put PMIX_NAMESPACE and PMIX_RANK into the environment,
 * and after MPI (launch.c says why). Each wait has a deadline. */
#include "src/launch/pmix.h"
#include "src/launch/ranks.h"

#include <pmix.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GET_S = 60, ABORT_S = 10, LOOK_S = 5, MOST_NAMED = 8 };
#define WAITS_KEY "tercio.waits"

#define SLURM_SPACE "slurm.pmix."

static const char *space(void) { return tc_env("PMIX_NAMESPACE"); }

void tc_pmix_version(char *text, size_t size) { snprintf(text, size, "%s", PMIx_Get_version()); }

int tc_pmix_server(struct tc_err *err)
{
  char version[100];
  tc_pmix_version(version, sizeof version);
  return tc_server_answers(version, err);
}

/* Whether PMIX_* is left over from an outer Slurm step: srun without PMIx, started in a step with PMIx, passes
 * on what it got. Slurm names the job and the step, "slurm.pmix.7.0", also in a heterogeneous job's
 * components; what the environment does not say is not compared. */
static bool of_another_step(void)
{
  const char *job = tc_env("SLURM_JOB_ID"), *step = tc_env("SLURM_STEP_ID");
  if (strncmp(space(), SLURM_SPACE, strlen(SLURM_SPACE)) != 0) return false;
  if (!*job) job = tc_env("SLURM_JOBID");
  const char *its_job = space() + strlen(SLURM_SPACE), *its_step = its_job + strcspn(its_job, ".");
  if (*job && (strlen(job) != (size_t)(its_step - its_job) || strncmp(job, its_job, strlen(job)) != 0)) return true;
  return *step && strcmp(its_step + (*its_step == '.'), step) != 0;
}

bool tc_pmix_launched(void)
{
  return *space() && *tc_env("PMIX_RANK") && !of_another_step();
}

static int pmix_fail(const char *what, pmix_status_t rc, struct tc_err *err)
{
  return tc_fail(err, TC_EPEER, "%s failed: %s; does the launcher's PMIx fit, and are all ranks "
                 "alive?", what, PMIx_Error_string(rc));
}

static int job_size(int *world, struct tc_err *err)
{
  pmix_proc_t job;
  pmix_value_t *got = NULL;
  PMIX_LOAD_PROCID(&job, space(), PMIX_RANK_WILDCARD);
  pmix_status_t rc = PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &got);
  bool good = rc == PMIX_SUCCESS && got->type == PMIX_UINT32 && got->data.uint32 >= 1;
  *world = good ? (int)got->data.uint32 : 0;
  if (rc == PMIX_SUCCESS) PMIX_VALUE_RELEASE(got);
  return good ? TC_OK : pmix_fail("asking PMIx for the number of ranks", rc, err);
}

void tc_pmix_forget(void) { unsetenv("PMIX_NAMESPACE"); }

const char *const tc_topology_env[TC_TOPOLOGY_ENV] = { "HWLOC_XMLFILE", "HWLOC_SYNTHETIC" };

struct tc_kept_env tc_topology_env_hide(void)
{
  struct tc_kept_env kept = { { NULL } };
  for (int i = 0; i < TC_TOPOLOGY_ENV; i++) {
    const char *value = getenv(tc_topology_env[i]);
    if (value) kept.value[i] = tc_strdup(value);
    unsetenv(tc_topology_env[i]);
  }
  return kept;
}

void tc_topology_env_restore(struct tc_kept_env *kept)
{
  for (int i = 0; i < TC_TOPOLOGY_ENV; i++) {
    if (kept->value[i]) setenv(tc_topology_env[i], kept->value[i], 1);
    free(kept->value[i]);
  }
}

int tc_pmix_start(int *rank, int *world, struct tc_err *err)
{
  pmix_proc_t me;
  if (!PMIx_Initialized()) TC_TRY(tc_pmix_server(err));       /* not by MPI */
  struct tc_kept_env env = tc_topology_env_hide();
  pmix_status_t rc = PMIx_Init(&me, NULL, 0);
  tc_topology_env_restore(&env);
  if (rc != PMIX_SUCCESS) {
    tc_fail(err, TC_EPEER, "the launcher can't be reached (PMIx_Init: %s, PMIX_NAMESPACE = %s): "
            "start with srun --mpi=pmix or Open MPI's mpirun, or without PMIX_* in the "
            "environment", PMIx_Error_string(rc), space());
    tc_pmix_forget();
    return TC_EPEER;
  }
  *rank = (int)me.rank;
  return job_size(world, err);
}

struct fence {
  atomic_bool done;
  pmix_status_t status;
};

static void fence_done(pmix_status_t status, void *ctx)
{
  struct fence *f = ctx;
  f->status = status;
  atomic_store(&f->done, true);
}

/* ---- who is missing --------------------------------------------------------------------- */

/* The launcher may never answer, so its answers come by threads and callbacks, to which the structs are left: the process
 * is about to end. */
struct look {
  const char *key;
  int world;                       /* the fields below exist once it is known */
  atomic_bool *here;               /* [world] has put something under the key */
  char **node;                     /* [world] NULL: not known */
  atomic_bool asked, complete;
};

static void is_here(pmix_status_t status, pmix_value_t *value, void *here)
{
  (void)value;
  if (status == PMIX_SUCCESS) atomic_store((atomic_bool *)here, true);
}

/* Which rank is on which node; mpirun does not say. */
static void find_nodes(struct look *l)
{
  char *list = NULL;
  if (PMIx_Resolve_nodes(space(), &list) != PMIX_SUCCESS || !list) return;
  for (char *rest = list, *node; (node = strtok_r(rest, ",", &rest));) {
    pmix_proc_t *procs = NULL;
    size_t n = 0;
    if (PMIx_Resolve_peers(node, space(), &procs, &n) != PMIX_SUCCESS) continue;
    for (size_t i = 0; i < n; i++)
      if (procs[i].rank < (pmix_rank_t)l->world) l->node[procs[i].rank] = node;
  }
}

static void *look_for_ranks(void *look)
{
  struct look *l = look;
  struct tc_err err;
  int timeout_s = LOOK_S;
  pmix_proc_t peer;
  pmix_info_t *info = tc_calloc(1, sizeof *info);
  if (job_size(&l->world, &err) < 0) return NULL;
  l->here = tc_calloc((size_t)l->world, sizeof *l->here);
  l->node = tc_calloc((size_t)l->world, sizeof *l->node);
  PMIX_INFO_LOAD(info, PMIX_TIMEOUT, &timeout_s, PMIX_INT);
  for (int r = 0; r < l->world; r++) {
    PMIX_LOAD_PROCID(&peer, space(), (pmix_rank_t)r);
    PMIx_Get_nb(&peer, l->key, info, 1, is_here, &l->here[r]);
  }
  atomic_store(&l->asked, true);
  find_nodes(l);
  atomic_store(&l->complete, true);
  return NULL;
}

static void missing(const char *key, char *text, size_t size)
{
  pthread_t thread;
  struct look *l = tc_calloc(1, sizeof *l);
  const int64_t until_ns = tc_now_ns() + INT64_C(1000000000) * LOOK_S;
  int n = 0;
  *text = 0;
  l->key = key;
  if (!PMIx_Initialized() || tc_thread_start(&thread, look_for_ranks, l, NULL) < 0) return;
  pthread_detach(thread);
  while (tc_now_ns() < until_ns) tc_sleep_ns(50000000);
  for (int r = 0; atomic_load(&l->asked) && r < l->world; r++) {
    if (atomic_load(&l->here[r]) || n++ >= MOST_NAMED) continue;
    const char *node = atomic_load(&l->complete) ? l->node[r] : NULL;
    tc_text_add(text, size, "%srank %d%s%s", n > 1 ? ", " : "", r, node ? " on " : "", node ? node : "");
  }
  if (n > MOST_NAMED) tc_text_add(text, size, " and %d more", n - MOST_NAMED);
  if (n == l->world) *text = 0;                    /* this rank too, so it is the launcher that does not answer */
}

static void *tell_waits(void *unused)
{
  (void)unused;
  pmix_value_t value;
  bool yes = true;
  PMIX_VALUE_LOAD(&value, &yes, PMIX_BOOL);
  if (PMIx_Put(PMIX_GLOBAL, WAITS_KEY, &value) == PMIX_SUCCESS) PMIx_Commit();
  return NULL;
}

void tc_pmix_waits(void)
{
  pthread_t thread;
  if (PMIx_Initialized() && tc_thread_start(&thread, tell_waits, NULL, NULL) == 0) pthread_detach(thread);
}

void tc_pmix_missing(char *text, size_t size) { missing(WAITS_KEY, text, size); }

/* ---- the exchange ----------------------------------------------------------------------- */

/* Waits for all ranks of the step (but see tc_pmix_get), and collects what they put under the key: under Slurm a
 * fence that collects nothing waits for the ranks of the own node alone (seen with 22.05). After
 * the deadline the struct is left to the callback that may still come. */
static int fence_all(const char *key, double deadline_s, struct tc_err *err)
{
  struct fence *f = tc_calloc(1, sizeof *f);
  pmix_info_t info;
  bool collect = true;
  char who[400];
  int64_t until_ns = tc_now_ns() + (int64_t)(1e9 * deadline_s);
  PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
  pmix_status_t rc = PMIx_Fence_nb(NULL, 0, &info, 1, fence_done, f);
  if (rc != PMIX_SUCCESS)          /* done at once, or never begun: no callback will come */
    fence_done(rc == PMIX_OPERATION_SUCCEEDED ? PMIX_SUCCESS : rc, f);
  while (!atomic_load(&f->done)) {
    if (tc_now_ns() > until_ns) {
      missing(key, who, sizeof who);
      return tc_fail(err, TC_EPEER, "not all ranks of the step have started after %g s (deadline run.deadline): %s died "
                     "or hangs before this point; look for its message, or its node's state", deadline_s,
                     *who ? who : "a rank");
    }
    tc_sleep_ns(500000);
  }
  rc = f->status;
  free(f);
  return rc == PMIX_SUCCESS ? TC_OK : pmix_fail("PMIx_Fence", rc, err);
}

int tc_pmix_put(const char *key, const void *p, size_t bytes, double deadline_s, struct tc_err *err)
{
  pmix_value_t value;
  pmix_byte_object_t object = { .bytes = (char *)(uintptr_t)p, .size = bytes };
  PMIX_VALUE_LOAD(&value, &object, PMIX_BYTE_OBJECT);
  pmix_status_t rc = PMIx_Put(PMIX_GLOBAL, key, &value);
  PMIX_VALUE_DESTRUCT(&value);
  if (rc == PMIX_SUCCESS) rc = PMIx_Commit();
  return rc == PMIX_SUCCESS ? fence_all(key, deadline_s, err) : pmix_fail("PMIx_Put", rc, err);
}

/* With PMIxCollFence=tree Slurm's fence waits for no other node (22.05): then what is put late is
 * found only by asking that node anew. */
int tc_pmix_get(int rank, const char *key, void *p, size_t bytes, double deadline_s, struct tc_err *err)
{
  pmix_proc_t peer;
  pmix_info_t info[2];
  pmix_value_t *got = NULL;
  size_t n = 1;
  int timeout_s = (int)TC_MAX(1, TC_MIN(deadline_s, GET_S));
  int64_t until_ns = tc_now_ns() + (int64_t)(1e9 * deadline_s);
  PMIX_LOAD_PROCID(&peer, space(), (pmix_rank_t)rank);
  PMIX_INFO_LOAD(&info[0], PMIX_TIMEOUT, &timeout_s, PMIX_INT);
#ifdef PMIX_GET_REFRESH_CACHE
  bool anew = true;
  PMIX_INFO_LOAD(&info[1], PMIX_GET_REFRESH_CACHE, &anew, PMIX_BOOL);
#endif
  for (pmix_status_t rc; (rc = PMIx_Get(&peer, key, info, n, &got)) != PMIX_SUCCESS;) {
    if (tc_now_ns() > until_ns)
      return tc_fail(err, TC_EPEER, "rank %d has sent nothing for %g s (deadline run.deadline): %s; does it run "
                     "this same program?", rank, deadline_s, PMIx_Error_string(rc));
#ifdef PMIX_GET_REFRESH_CACHE
    n = 2;
#endif
    tc_sleep_ns(1000000);
  }
  bool same = got->type == PMIX_BYTE_OBJECT && got->data.bo.size == bytes;
  if (same) memcpy(p, got->data.bo.bytes, bytes);
  PMIX_VALUE_RELEASE(got);
  return same ? TC_OK : 1;
}

int tc_pmix_leader(void)
{
  pmix_proc_t job;
  pmix_value_t *got = NULL;
  int lowest = -1;
  PMIX_LOAD_PROCID(&job, space(), PMIX_RANK_WILDCARD);
  if (PMIx_Get(&job, PMIX_LOCAL_PEERS, NULL, 0, &got) != PMIX_SUCCESS) return -1;
  for (const char *at = got->type == PMIX_STRING ? got->data.string : ""; *at;) {
    int rank = atoi(at);
    if (lowest < 0 || rank < lowest) lowest = rank;
    at += strcspn(at, ",");
    at += *at == ',';
  }
  PMIX_VALUE_RELEASE(got);
  return lowest;
}

void tc_ranks_finish(void)
{
  if (tc_pmix_launched() && PMIx_Initialized()) PMIx_Finalize(NULL, 0);
}

static void *exit_late(void *exit_status)
{
  tc_sleep_ns(INT64_C(1000000000) * ABORT_S);
  _exit((int)(intptr_t)exit_status);
}

_Noreturn void tc_ranks_abort(int exit_status, const char *why)
{
  tc_warn("%s; ending all ranks with status %d", why, exit_status);
  if (tc_pmix_launched() && PMIx_Initialized()) {
    pthread_t watchdog;          /* the launcher may have ended and never answer */
    (void)pthread_create(&watchdog, NULL, exit_late, (void *)(intptr_t)exit_status);
    PMIx_Abort(exit_status, why, NULL, 0);
  }
  _exit(exit_status);
}
