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

enum { FENCE_S = 300, GET_S = 60, ABORT_S = 10 };

#define SLURM_SPACE "slurm.pmix."

static const char *space(void) { return tc_env("PMIX_NAMESPACE"); }

void tc_pmix_version(char *text, size_t size) { snprintf(text, size, "%s", PMIx_Get_version()); }

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

/* Waits for all ranks of the step (but see tc_pmix_get), and collects what they put: under Slurm a
 * fence that collects nothing waits for the ranks of the own node alone (seen with 22.05). After
 * the deadline the struct is left to the callback that may still come. */
static int fence_all(struct tc_err *err)
{
  struct fence *f = tc_calloc(1, sizeof *f);
  pmix_info_t info;
  bool collect = true;
  int64_t until_ns = tc_now_ns() + INT64_C(1000000000) * FENCE_S;
  PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
  pmix_status_t rc = PMIx_Fence_nb(NULL, 0, &info, 1, fence_done, f);
  if (rc != PMIX_SUCCESS)          /* done at once, or never begun: no callback will come */
    fence_done(rc == PMIX_OPERATION_SUCCEEDED ? PMIX_SUCCESS : rc, f);
  while (!atomic_load(&f->done)) {
    if (tc_now_ns() > until_ns)
      return tc_fail(err, TC_EPEER, "not all ranks of the step have started after %d s: a rank "
                     "died or hangs before this point; look for its message, or its node's "
                     "state", FENCE_S);
    tc_sleep_ns(500000);
  }
  rc = f->status;
  free(f);
  return rc == PMIX_SUCCESS ? TC_OK : pmix_fail("PMIx_Fence", rc, err);
}

int tc_pmix_put(const char *key, const void *p, size_t bytes, struct tc_err *err)
{
  pmix_value_t value;
  pmix_byte_object_t object = { .bytes = (char *)(uintptr_t)p, .size = bytes };
  PMIX_VALUE_LOAD(&value, &object, PMIX_BYTE_OBJECT);
  pmix_status_t rc = PMIx_Put(PMIX_GLOBAL, key, &value);
  PMIX_VALUE_DESTRUCT(&value);
  if (rc == PMIX_SUCCESS) rc = PMIx_Commit();
  return rc == PMIX_SUCCESS ? fence_all(err) : pmix_fail("PMIx_Put", rc, err);
}

/* With PMIxCollFence=tree Slurm's fence waits for no other node (22.05): then what is put late is
 * found only by asking that node anew. */
int tc_pmix_get(int rank, const char *key, void *p, size_t bytes, struct tc_err *err)
{
  pmix_proc_t peer;
  pmix_info_t info[2];
  pmix_value_t *got = NULL;
  size_t n = 1;
  int timeout_s = GET_S;
  int64_t until_ns = tc_now_ns() + INT64_C(1000000000) * FENCE_S;
  PMIX_LOAD_PROCID(&peer, space(), (pmix_rank_t)rank);
  PMIX_INFO_LOAD(&info[0], PMIX_TIMEOUT, &timeout_s, PMIX_INT);
#ifdef PMIX_GET_REFRESH_CACHE
  bool anew = true;
  PMIX_INFO_LOAD(&info[1], PMIX_GET_REFRESH_CACHE, &anew, PMIX_BOOL);
#endif
  for (pmix_status_t rc; (rc = PMIx_Get(&peer, key, info, n, &got)) != PMIX_SUCCESS;) {
    if (tc_now_ns() > until_ns)
      return tc_fail(err, TC_EPEER, "rank %d has sent nothing for %d s: %s; does it run "
                     "this same program?", rank, FENCE_S, PMIx_Error_string(rc));
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
