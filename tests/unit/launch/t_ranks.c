/* t_ranks.c - ranks without a launcher: alone, as threads, refused. The CPUs are compared with
 * sched_getaffinity, devices with what the environment says; node maps and who takes which device,
 * which need several nodes or GPUs, are tables for the functions inside ranks.c. */
#include "src/launch/ranks.c"
#include "tests/unit/stderr_text.h"
#include "tests/unit/tap.h"

#include <pmix.h>
#include <sched.h>
#include <sys/wait.h>

extern char **environ;

/* No launcher, no job, no GPUs, whatever the test itself was started by. */
static void clean_env(void)
{
  static const char *const prefix[] = { "SLURM", "PMI", "OMPI_", "MV2_", "CUDA_VISIBLE" };
  for (char **e = environ; *e;) {
    char name[128];
    bool drop = false;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
    for (size_t i = 0; i < sizeof prefix / sizeof *prefix; i++)
      drop |= strncmp(name, prefix[i], strlen(prefix[i])) == 0;
    if (drop && unsetenv(name) == 0) e = environ;
    else e++;
  }
}

/* ---- CPUs ------------------------------------------------------------------------------ */

static void test_alone(void)
{
  struct tc_ranks *r = NULL;
  struct tc_err err = { 0 };
  cpu_set_t set;
  char host[64] = "";
  clean_env();
  if (!is_int(tc_ranks_discover(&r, NULL, &err), TC_OK, "alone %s", err.text)) return;
  ok(r->rank == 0 && r->world == 1 && r->n_nodes == 1, "one rank on one node");
  is_str(r->launcher, "alone", "launcher");
  ok(r->job[0] == 0 && r->restart == 0, "no job");
  gethostname(host, sizeof host - 1);
  is_str(r->info[0].host, host, "host");
  ok(r->info[0].local_rank == 0 && r->info[0].local_size == 1 && r->node_of_rank[0] == 0, "local");
  sched_getaffinity(0, sizeof set, &set);
  is_int(r->info[0].n_cpus, CPU_COUNT(&set), "CPUs: %s", r->info[0].cpuset);
  is_int(tc_ranks_threads_each(r, 0), CPU_COUNT(&set), "a thread a CPU");
  char **name = tc_ranks_names(r), *want = tc_sprintf("rank 0 on %s", host);
  is_str(name[0], want, "its name");
  free(name[0]);
  free(name);
  free(want);
  tc_ranks_free(r);
  ok(!PMIx_Initialized(), "PMIx was left alone");
  tc_ranks_finish();
  tc_ranks_free(NULL);
}

/* Settings of CUDA and NCCL that Tercio needs; what the user set stays. */
static void test_settings(void)
{
  static const struct { const char *name, *value; } rows[] = {
    { "CUDA_DEVICE_ORDER", "PCI_BUS_ID" }, { "CUDA_DEVICE_MAX_CONNECTIONS", "32" },
    { "NCCL_RUNTIME_CONNECT", "0" }, { "NCCL_LAUNCH_ORDER_IMPLICIT", "1" } };
  for (int given = 0; given < 2; given++) {
    struct tc_ranks *r = NULL;
    struct tc_err err = { 0 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
      unsetenv(rows[i].name);
      if (given) setenv(rows[i].name, "7", 1);
    }
    is_int(tc_ranks_discover(&r, NULL, &err), TC_OK, "ranks with%s settings", given ? " the user's" : "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
      is_str(getenv(rows[i].name), given ? "7" : rows[i].value, "%s", rows[i].name);
      unsetenv(rows[i].name);
    }
    tc_ranks_free(r);
    tc_ranks_finish();
  }
}

static void test_bound(void)
{
  struct tc_ranks *r = NULL;
  struct tc_err err = { 0 };
  cpu_set_t before, one;
  int cpu = 0;
  char text[16];
  sched_getaffinity(0, sizeof before, &before);
  for (int c = 0; c < CPU_SETSIZE; c++)
    if (CPU_ISSET(c, &before)) cpu = c;                  /* the last one */
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof one, &one);
  snprintf(text, sizeof text, "%d", cpu);
  setenv("SLURM_JOB_ID", "77", 1);
  setenv("SLURM_RESTART_COUNT", "2", 1);
  is_int(tc_ranks_threads(&r, 3, NULL, &err), TC_OK, "three threads bound to CPU %d", cpu);
  sched_setaffinity(0, sizeof before, &before);
  for (int i = 0; i < 3; i++) {
    is_str(r->info[i].cpuset, text, "  CPUs of rank %d", i);
    ok(r->info[i].local_rank == i && r->info[i].local_size == 3 && r->info[i].n_cpus == 1 &&
       r->info[i].numa >= 0 && r->node_of_rank[i] == 0, "  and its place");
    is_int(tc_ranks_threads_each(r, i), 1, "  never less than a thread");
  }
  ok(strcmp(r->job, "77") == 0 && r->restart == 2 && r->world == 3 && r->n_nodes == 1, "the job");
  tc_ranks_free(r);
  is_int(tc_ranks_threads(&r, 0, NULL, &err), TC_EUSER, "no threads: %s", err.text);
}

static void *its_cpus(void *set)
{
  sched_getaffinity(0, sizeof(cpu_set_t), set);
  return NULL;
}

/* A rank that is to be bound is, and so are the threads it starts; one that is not stays. */
static void test_bind(void)
{
  cpu_set_t before, now, child;
  pthread_t thread;
  int cpu = 0;
  struct tc_rank_info info[2] = { { .bound = true }, { .cpuset = "0" } };
  const struct tc_ranks r = { .world = 2, .info = info };
  sched_getaffinity(0, sizeof before, &before);
  for (int c = 0; c < CPU_SETSIZE; c++)
    if (CPU_ISSET(c, &before)) cpu = c;
  snprintf(info[0].cpuset, sizeof info[0].cpuset, "%d", cpu);
  tc_ranks_bind(&r, 1);
  sched_getaffinity(0, sizeof now, &now);
  ok(CPU_EQUAL(&now, &before), "a rank that is not bound keeps its CPUs");
  tc_ranks_bind(&r, 0);
  sched_getaffinity(0, sizeof now, &now);
  ok(pthread_create(&thread, NULL, its_cpus, &child) == 0 && pthread_join(thread, NULL) == 0 &&
     CPU_COUNT(&now) == 1 && CPU_ISSET(cpu, &now) && CPU_EQUAL(&now, &child), "a bound one is on %d",
     cpu);
  sched_setaffinity(0, sizeof before, &before);
}

static void test_threads_each(void)
{
  static const struct { const char *cpus[4]; int node[4], want[4]; bool shared[4]; } rows[] = {
    { { "0-3", "0-3", "0-3", "0-3" }, { 0, 0, 0, 0 }, { 1, 1, 1, 1 }, { false } },
    { { "0-1", "2-3", "4-7", "8" }, { 0, 0, 0, 0 }, { 2, 2, 4, 1 }, { false } },
    { { "0-3", "0-1", "9,11", "9,11" }, { 0, 0, 0, 0 }, { 3, 1, 1, 1 }, { false } },
    { { "0-3", "0-3", "0-3", "0-3" }, { 0, 1, 0, 1 }, { 2, 2, 2, 2 }, { false } },
    { { "0-2", "0-2", "0-2", "64-127" }, { 0, 0, 0, 0 }, { 1, 1, 1, 64 }, { false } },
    { { "0-5", "0-5", "0-5", "" }, { 0, 0, 0, 0 }, { 2, 2, 2, 1 }, { false, false, false, true } },
    { { "0-1", "0-1", "0-1", "2" }, { 0, 0, 0, 0 }, { 1, 1, 1, 1 }, { true, true, true, false } },
    { { "0", "0-1", "2", "2" }, { 0, 0, 1, 0 }, { 1, 1, 1, 1 }, { true, false, false, false } },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_rank_info info[4] = { 0 };
    int32_t node[4];
    const struct tc_ranks r = { .world = 4, .info = info, .node_of_rank = node };
    for (int k = 0; k < 4; k++) {
      strcpy(info[k].cpuset, rows[i].cpus[k]);
      node[k] = rows[i].node[k];
    }
    for (int k = 0; k < 4; k++) {
      const int want = rows[i].want[k];
      is_int(tc_ranks_threads_each(&r, k), want, "row %d: threads of rank %d on %s", (int)i, k, info[k].cpuset);
      ok(tc_ranks_own_cpus(&r, k, want) == !rows[i].shared[k] && !tc_ranks_own_cpus(&r, k, want + 1),
         "... whether so many have CPUs of their own, and one more does not");
    }
  }
}

/* ---- devices --------------------------------------------------------------------------- */

/* Slurm's GPUs may be any device files, so these need no GPU. */
static void test_fake_gpus(void)
{
  static const struct {
    const char *cuda, *step, *job, *count;
    int n_ranks, n_visible, n_node, device[4];
    const char *name[4];
  } rows[] = {
    { "0,1", "0,1", "0,1", "2", 2, 2, 2, { 0, 1 }, { "gpu0", "gpu1" } },
    { "0,1", "0,1", NULL, NULL, 3, 2, 2, { 0, 1, 0 }, { "gpu0", "gpu1", "gpu0" } },
    { "1", "0,1", "0,1", NULL, 1, 1, 2, { 0 }, { "gpu1" } },            /* --gpus-per-task */
    { "0,1,2,3", NULL, NULL, "4", 4, 4, 4, { 0, 1, 2, 3 }, { "gpu0", "gpu1", "gpu2", "gpu3" } },
    { "2,3", NULL, "0-3", NULL, 2, 2, 4, { 0, 1 }, { "gpu2", "gpu3" } },
    { "1,-1,2", "0-2", NULL, NULL, 1, 1, 3, { 0 }, { "gpu1" } },
    { "NoDevFiles", NULL, NULL, "2", 1, 0, 2, { -1 }, { "" } },
    { "", "0,1", NULL, NULL, 2, 0, 2, { -1, -1 }, { "", "" } },
    { "GPU-12345678,MIG-9", "0,1", NULL, NULL, 2, 2, 2, { 0, 1 }, { "GPU-12345678", "MIG-9" } },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_ranks *r = NULL;
    struct tc_err err = { 0 };
    clean_env();
    setenv("CUDA_VISIBLE_DEVICES", rows[i].cuda, 1);
    if (rows[i].step) setenv("SLURM_STEP_GPUS", rows[i].step, 1);
    if (rows[i].job) setenv("SLURM_JOB_GPUS", rows[i].job, 1);
    if (rows[i].count) setenv("SLURM_GPUS_ON_NODE", rows[i].count, 1);
    is_int(tc_ranks_threads(&r, rows[i].n_ranks, NULL, &err), TC_OK, "CUDA_VISIBLE_DEVICES=%s",
           rows[i].cuda);
    is_int(r->info[0].n_visible, rows[i].n_visible, "  visible");
    is_int(r->info[0].n_node_devices, rows[i].n_node, "  on the node");
    for (int k = 0; k < rows[i].n_ranks; k++) {
      is_int(r->info[k].device, rows[i].device[k], "  device of rank %d", k);
      is_str(r->info[k].dev.name, rows[i].name[k], "  its name");
    }
    tc_ranks_free(r);
  }
}

/* Without Slurm an index must be a real GPU. */
static void test_stale_variable(void)
{
  struct tc_ranks *r = NULL;
  struct tc_err err = { 0 };
  clean_env();
  if (access("/dev/nvidia0", F_OK) == 0) {
    skip("this machine has a GPU");
    return;
  }
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  is_int(tc_ranks_threads(&r, 1, NULL, &err), TC_OK, "CUDA_VISIBLE_DEVICES without GPUs");
  ok(r->info[0].n_visible == 0 && r->info[0].device == -1 && r->info[0].n_node_devices == 0,
     "  gives none");
  tc_ranks_free(r);
}

/* ---- the node map ---------------------------------------------------------------------- */

static void test_nodes(void)
{
  static const struct {
    int world, leader[6];
    const char *host[6];
    int n_nodes, node[6], local[6];
    const char *what;
  } rows[] = {
    { 4, { 0, 0, 2, 2 }, { "a", "a", "b", "b" }, 2, { 0, 0, 1, 1 }, { 0, 1, 0, 1 }, "block" },
    { 4, { 0, 1, 0, 1 }, { "a", "b", "a", "b" }, 2, { 0, 1, 0, 1 }, { 0, 0, 1, 1 }, "cyclic" },
    { 6, { 0, 1, 2, 0, 1, 0 }, { "a", "b", "c", "a", "b", "a" }, 3, { 0, 1, 2, 0, 1, 0 },
      { 0, 0, 0, 1, 1, 2 }, "uneven" },
    { 4, { 0, 1, 0, 1 }, { "x", "x", "x", "x" }, 2, { 0, 1, 0, 1 }, { 0, 0, 1, 1 },
      "nodes of one name: PMIx knows better" },
    { 4, { -1, -1, -1, -1 }, { "b", "a", "a", "b" }, 2, { 0, 1, 1, 0 }, { 0, 0, 1, 1 },
      "no map: host names" },
    { 4, { 0, 0, -1, 2 }, { "a", "b", "a", "b" }, 2, { 0, 1, 0, 1 }, { 0, 0, 1, 1 },
      "half a map is none" },
    { 4, { 0, 0, 1, 2 }, { "a", "b", "a", "b" }, 2, { 0, 1, 0, 1 }, { 0, 0, 1, 1 },
      "a map that contradicts itself is none" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct blob all[6] = { 0 };
    struct tc_ranks *r = ranks_make(0, rows[i].world, "srun");
    for (int k = 0; k < rows[i].world; k++) {
      all[k].leader = rows[i].leader[k];
      strcpy(all[k].info.host, rows[i].host[k]);
      all[k].info.n_node_devices = k;
      r->info[k] = all[k].info;
    }
    set_nodes(r, all);
    is_int(r->n_nodes, rows[i].n_nodes, "%s: nodes", rows[i].what);
    for (int k = 0; k < rows[i].world; k++) {
      int size = 0, most = 0;
      for (int j = 0; j < rows[i].world; j++)
        if (rows[i].node[j] == rows[i].node[k]) {
          size++;
          most = j;
        }
      ok(r->node_of_rank[k] == rows[i].node[k] && r->info[k].node == rows[i].node[k] &&
         r->info[k].local_rank == rows[i].local[k] && r->info[k].local_size == size &&
         r->info[k].n_node_devices == most, "%s: rank %d", rows[i].what, k);
    }
    tc_ranks_free(r);
  }
}

/* ---- launchers ------------------------------------------------------------------------- */

/* Where a process may find itself under Slurm, by the variables that Slurm sets there: is it one of several, which must
 * be joined? */
static void test_slurm_environments(void)
{
  FILE *log = tmpfile();
  const int own = dup(STDERR_FILENO);
  static const struct { const char *where, *vars; int status; const char *said; } rows[] = {
    { "a batch script of 4 tasks", "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_PROCID=0 SLURM_LOCALID=0 "
      "SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2(x2)", TC_OK, "one rank in the batch script of a job of 4 tasks" },
    { "a batch script of one", "SLURM_JOB_ID=7 SLURM_NTASKS=1 SLURM_PROCID=0", TC_OK, "" },
    { "a batch script without --ntasks", "SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_TASKS_PER_NODE=1", TC_OK, "" },
    { "a task of 4", "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0", TC_EUSER, "" },
    { "the last task of 4", "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3",
      TC_EUSER, "" },
    { "a step of one task in a job of 4", "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=1 "
      "SLURM_PROCID=0", TC_OK, "" },
    { "a task whose step does not say its size", "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_PROCID=0",
      TC_EUSER, "" },
    { "a shell of salloc", "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_NPROCS=4", TC_OK, "" },
    { "the interactive step of salloc", "SLURM_JOB_ID=7 SLURM_STEP_ID=4294967290 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=1 "
      "SLURM_PROCID=0", TC_OK, "" } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_ranks *r = NULL;
    struct tc_err err = { 0 };
    char *vars = tc_strdup(rows[i].vars), *rest;
    clean_env();
    for (char *v = strtok_r(vars, " ", &rest); v; v = strtok_r(NULL, " ", &rest)) {
      v[strcspn(v, "=")] = 0;
      setenv(v, v + strlen(v) + 1, 1);
    }
    TC_ASSERT(log && dup2(fileno(log), STDERR_FILENO) >= 0);
    const int rc = tc_ranks_discover(&r, NULL, &err);
    const char *said = stderr_text();
    TC_ASSERT(dup2(own, STDERR_FILENO) >= 0);
    is_int(rc, rows[i].status, "%s", rows[i].where);
    ok(*rows[i].said ? strstr(said, rows[i].said) != NULL : !*said, "... says: %s%s", said, err.text);
    tc_ranks_free(r);
    free(vars);
  }
  fclose(log);
  close(own);
  clean_env();
}

static void test_refused(void)
{
  static const struct { const char *name, *value, *name2, *value2; int status; } rows[] = {
    { "SLURM_STEP_NUM_TASKS", "4", NULL, NULL, TC_EUSER },
    { "SLURM_NTASKS", "4", "SLURM_PROCID", "3", TC_EUSER },
    { "OMPI_COMM_WORLD_SIZE", "2", NULL, NULL, TC_EUSER },
    { "PMI_SIZE", "2", NULL, NULL, TC_EUSER },
    { "SLURM_STEP_NUM_TASKS", "1", NULL, NULL, TC_OK },
    { "SLURM_NTASKS", "4", NULL, NULL, TC_OK },               /* a shell of salloc */
    { "SLURM_STEP_NUM_TASKS", "1", "SLURM_NTASKS", "4", TC_OK },
    { "PMI_SIZE", "1", NULL, NULL, TC_OK },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_ranks *r = NULL;
    struct tc_err err = { 0 };
    clean_env();
    setenv(rows[i].name, rows[i].value, 1);
    if (rows[i].name2) setenv(rows[i].name2, rows[i].value2, 1);
    is_int(tc_ranks_discover(&r, NULL, &err), rows[i].status, "%s=%s", rows[i].name, rows[i].value);
    if (rows[i].status != TC_OK)
      ok(r == NULL && strstr(err.text, "srun --mpi=pmix"), "  says: %s", err.text);
    tc_ranks_free(r);
  }
  clean_env();
}

/* PMIx's environment of an outer step says nothing about this one. */
static void test_outer_step(void)
{
  static const struct { const char *space, *job, *step, *het; bool launched; } rows[] = {
    { "slurm.pmix.7.0", "7", "0", NULL, true },
    { "slurm.pmix.7.0", "7", "1", NULL, false },
    { "slurm.pmix.7.0", "8", "0", NULL, false },
    { "slurm.pmix.7.0", "7", NULL, NULL, true },               /* a batch script */
    { "slurm.pmix.7.0", "8", NULL, NULL, false },              /* ... of another job, submitted in a step */
    { "slurm.pmix.77.0", "7", NULL, NULL, false },
    { "slurm.pmix.7.0", "77", NULL, NULL, false },
    { "slurm.pmix.7", "7", NULL, NULL, true },
    { "slurm.pmix.7", "7", "0", NULL, false },
    { "slurm.pmix.7.1", "7", "1", "2", true },                 /* a heterogeneous job */
    { "slurm.pmix.7.0", "7", "1", "2", false },
    { "slurm.pmix.7.0", NULL, "0", NULL, true },               /* no job's id is there */
    { "slurm.pmix.7.0", NULL, "1", NULL, false },
    { "prterun-node-12@1", "7", "1", NULL, true },
    { "", "7", "1", NULL, false },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    clean_env();
    setenv("PMIX_RANK", "0", 1);
    setenv("PMIX_NAMESPACE", rows[i].space, 1);
    if (rows[i].job) setenv("SLURM_JOB_ID", rows[i].job, 1);
    if (rows[i].step) setenv("SLURM_STEP_ID", rows[i].step, 1);
    if (rows[i].het) setenv("SLURM_HET_SIZE", rows[i].het, 1);
    ok(tc_pmix_launched() == rows[i].launched, "%s in step %s.%s", rows[i].space, rows[i].job ? rows[i].job : "?",
       rows[i].step ? rows[i].step : "batch");
  }
  clean_env();
  setenv("PMIX_RANK", "0", 1);
  setenv("PMIX_NAMESPACE", "slurm.pmix.7.0", 1);
  setenv("SLURM_STEP_ID", "0", 1);
  setenv("SLURM_JOBID", "8", 1);
  ok(!tc_pmix_launched(), "the job's id under its other name");
  setenv("SLURM_STEP_NUM_TASKS", "2", 1);
  setenv("PMIX_NAMESPACE", "slurm.pmix.7.0", 1);
  setenv("SLURM_STEP_ID", "1", 1);
  struct tc_ranks *r = NULL;
  struct tc_err err = { 0 };
  is_int(tc_ranks_discover(&r, NULL, &err), TC_EUSER, "two tasks of a step without PMIx");
  ok(strstr(err.text, "srun --mpi=pmix"), "  says: %s", err.text);
  clean_env();
}

/* What ends a run ends with its status, with and without a launcher that answers. */
static void test_abort(void)
{
  int status = 0;
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) tc_ranks_abort(7, "a test");
  waitpid(pid, &status, 0);
  is_int(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 7, "abort ends with its status");
}

/* In a child: PMIx stays broken in the process. */
static void test_stale_launcher(void)
{
  int status = 0;
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    struct tc_ranks *r = NULL;
    struct tc_err err = { 0 };
    setenv("PMIX_NAMESPACE", "gone", 1);
    setenv("PMIX_RANK", "0", 1);
    alarm(600);
    int rc = tc_ranks_discover(&r, NULL, &err);
    tc_ranks_finish();
    _exit(rc == TC_EPEER && !r && strstr(err.text, "gone") ? 0 : 1);
  }
  waitpid(pid, &status, 0);
  is_int(status, 0, "a launcher that is gone: a sentence, no crash, no endless wait");
}

int main(void)
{
  test_alone();
  test_settings();
  test_bound();
  test_bind();
  test_threads_each();
  test_fake_gpus();
  test_stale_variable();
  test_nodes();
  test_slurm_environments();
  test_refused();
  test_outer_step();
  test_abort();
  test_stale_launcher();
  return done_testing();
}
