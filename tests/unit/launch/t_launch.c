/* t_launch.c - ranks as threads: each runs once, a failure is reported once and ends the others, the
 * exit status is the cause's and not the echo's. What a launcher does to it is m_train's. */
#include "src/launch/launch.h"
#include "src/comm/mpi.h"
#include "tests/unit/tap.h"

#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 3 };

struct run {
  struct tc_launch launch;
  struct tc_config *cfg;
  int fails;                      /* the rank that fails by itself; -1 none, N all */
  atomic_int ran[N];
};

static int body(int rank, void *ctx, struct tc_err *err)
{
  struct run *r = ctx;
  const int32_t members[N] = { 0, 1, 2 };
  const struct tc_comm_opts o = { .name = "world", .deadline_s = 60,
                                  .rank_names = (const char *const *)r->launch.rank_names };
  atomic_fetch_add(&r->ran[rank], 1);
  if (r->fails == rank || r->fails == N) return tc_fail(err, TC_ENOCKPT, "rank broken");
  struct tc_comm *c = tc_comm_thread(r->launch.hub, 0, rank, members, N, &o);
  int rc = tc_comm_run(c, &(struct tc_coll_args){ .coll = TC_BARRIER }, err);
  tc_comm_free(c);
  return rc;
}

/* Starts the ranks, or (NULL) says err. What comes on stderr meanwhile, into logged[size]; returns
 * the exit status. */
static int run(struct run *r, int fails, const struct tc_err *err, char *logged, size_t size)
{
  FILE *f = tmpfile();
  int old = dup(STDERR_FILENO);
  dup2(fileno(f), STDERR_FILENO);
  if (r) r->fails = fails;
  int status = r ? tc_launch_run(&r->launch, body, r) : tc_launch_say(&(struct tc_launch){ .cfg = NULL }, err->status, err);
  dup2(old, STDERR_FILENO);
  close(old);
  rewind(f);
  logged[fread(logged, 1, size - 1, f)] = 0;
  fclose(f);
  return status;
}

static int count(const char *text, const char *word)
{
  int n = 0;
  for (const char *s = text; (s = strstr(s, word)); s++) n++;
  return n;
}

static int no_answer(int rank, void *ctx, struct tc_err *err)
{
  (void)rank, (void)ctx;
  return tc_fail(err, TC_EPEER, "no answer");
}

/* The one rank of a process with MPI misses a peer: MPI is aborted, with the status of that. */
static void test_abort(void)
{
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    struct tc_launch l = { .mpi = false };
    struct tc_config *cfg = NULL;
    struct tc_err err = { 0 };
    char *args[] = { "train", "--run.threads=1" };
    if (!freopen("/dev/null", "w", stderr) || tc_config_new(&cfg, 2, args, &err) < 0 ||
        tc_launch_find(&l, cfg, &err) < 0 ||
        tc_mpi_start(&l.mpi_rank, &l.mpi_world, &err) < 0) _exit(99);
    l.mpi = true;
    l.mpi_world = 2;
    tc_launch_run(&l, no_answer, NULL);
    _exit(98);                                  /* it does not return */
  }
  int status = 0;
  waitpid(child, &status, 0);
  is_int(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 8, "a process that misses a peer: status 8");
}

/* srun --cpus-per-task where Slurm binds no CPUs. */
static void test_threads_of_a_task(struct run *r)
{
  char *all = tc_strdup(r->launch.ranks->info[1].cpuset);
  r->cfg->run_threads = TC_AUTO;
  for (int i = 0; i < N; i++) strcpy(r->launch.ranks->info[i].cpuset, "0-17");
  setenv("SLURM_CPUS_PER_TASK", "6", 1);
  is_int(tc_launch_threads(r->cfg, r->launch.ranks, 1), 6, "three ranks on 18 CPUs, in no step of srun");
  setenv("SLURM_STEP_ID", "0", 1);
  is_int(tc_launch_threads(r->cfg, r->launch.ranks, 1), 2, "... in one with 6 CPUs for the three threads");
  setenv("SLURM_CPUS_PER_TASK", "2", 1);
  is_int(tc_launch_threads(r->cfg, r->launch.ranks, 1), 1, "... with 2");
  setenv("SLURM_CPUS_PER_TASK", "36", 1);
  is_int(tc_launch_threads(r->cfg, r->launch.ranks, 1), 6, "... with more than there are");
  unsetenv("SLURM_CPUS_PER_TASK");
  is_int(tc_launch_threads(r->cfg, r->launch.ranks, 1), 6, "... not said with how many");
  unsetenv("SLURM_STEP_ID");
  for (int i = 0; i < N; i++) strcpy(r->launch.ranks->info[i].cpuset, all);
  r->cfg->run_threads = 2;
  free(all);
}

int main(void)
{
  char logged[4000], *args[] = { "train", "--run.ranks=3", "--run.threads=2" };
  struct run r = { .cfg = NULL };
  struct tc_err err = { 0 };
  const char *const launchers[] = { "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE" };
  for (size_t i = 0; i < 3; i++) unsetenv(launchers[i]);
  test_abort();
  if (!is_int(tc_config_new(&r.cfg, 3, args, &err), 0, "configured %s", err.text))
    return done_testing();
  is_int(tc_launch_find(&r.launch, r.cfg, &err), 0, "found %s", err.text);
  ok(r.launch.hub && !r.launch.mpi && r.launch.ranks->world == N, "three threads");
  is_int(tc_launch_threads(r.cfg, r.launch.ranks, 1), 2, "run.threads");
  test_threads_of_a_task(&r);

  is_int(run(&r, -1, NULL, logged, sizeof logged), 0, "all well: status 0");
  is_str(logged, "", "all well: nothing reported");
  for (int i = 0; i < N; i++) is_int(r.ran[i], 1, "rank %d ran once", i);

  is_int(run(&r, N, NULL, logged, sizeof logged), 5, "all fail alike: their status");
  is_str(logged, "tercio: rank broken\n", "all fail alike: reported once");
  tc_launch_free(&r.launch);

  for (int who = 0; who < N; who++) {         /* a hub that was left is used up: a new one */
    int64_t start = tc_now_ns();
    tc_launch_find(&r.launch, r.cfg, &err);
    is_int(run(&r, who, NULL, logged, sizeof logged), 5, "rank %d fails: its status", who);
    ok(tc_now_ns() - start < INT64_C(20000000000), "rank %d fails: the others don't wait", who);
    is_int(count(logged, "rank broken\n"), 1, "rank %d fails: reported", who);
    is_int(count(logged, "has left the run"), count(logged, "\n") - 1, "the others name the leaver");
    tc_launch_free(&r.launch);
  }

  setenv("PMI_SIZE", "2", 1);
  is_int(tc_launch_find(&r.launch, r.cfg, &err), TC_EUSER, "threads under a launcher of several");
  ok(strstr(err.text, "a launcher started several"), "... are refused");
  tc_launch_free(&r.launch);
  setenv("PMIX_NAMESPACE", "job", 1);
  setenv("PMIX_RANK", "1", 1);
  is_int(run(NULL, 0, &err, logged, sizeof logged), 2, "process 1 of several: status 2");
  is_str(logged, "", "... but what all find is not its to say");
  tc_fail(&err, TC_EPEER, "no answer");
  is_int(run(NULL, 0, &err, logged, sizeof logged), 8, "process 1 misses a peer: status 8");
  is_str(logged, "tercio: no answer\n", "... and says so");
  tc_config_free(r.cfg);
  return done_testing();
}
