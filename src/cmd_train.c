/* cmd_train.c - `tercio train`: finds out how many ranks there are, starts them, and turns
 * their common status into the exit status. */
#include "src/config.h"
#include "src/train.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct start {
  pthread_t thread;
  struct tc_train train;
  struct tc_err err;
  int rc;
};

static void *run_thread(void *arg)
{
  struct start *s = arg;
  s->rc = tc_train(&s->train, &s->err);
  if (s->rc < 0 && s->train.hub) tc_hub_leave(s->train.hub, s->train.rank);
  return NULL;
}

/* The rank that the launcher gave this process, before anything else is known; 0 alone. */
static int launcher_rank(void)
{
  const char *const key[] = { "PMIX_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK" };
  for (size_t i = 0; i < sizeof key / sizeof key[0]; i++)
    if (getenv(key[i])) return atoi(getenv(key[i]));
  return 0;
}

/* Whether a launcher started more than one of us. */
static bool launched(void)
{
  const char *const key[] = { "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE" };
  for (size_t i = 0; i < sizeof key / sizeof key[0]; i++)
    if (getenv(key[i]) && atoi(getenv(key[i])) > 1) return true;
  return false;
}

/* A status that all ranks share is said by rank 0 alone; a missing peer by whoever sees it. */
static int say(int rank, int rc, const struct tc_err *err)
{
  if (rc < 0 && (rank == 0 || rc == TC_EPEER)) return tc_cmd_fail(err);
  return -rc;
}

/* USR2 asks to save and stop. It is blocked here, before any thread starts, and read from a
 * descriptor between steps. */
static int stop_descriptor(void)
{
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

static int run_threads(const struct tc_config *c, int stop_fd)
{
  struct tc_err err = { 0 };
  int n = (int)c->run_ranks;
  struct tc_ranks *ranks;
  if (launched())
    return say(launcher_rank(), tc_fail(&err, TC_EUSER, "run.ranks = %d are threads of one "
               "process, but a launcher started several: leave run.ranks, or start one", n), &err);
  if (n < 1 || n > 4096) {
    tc_fail(&err, TC_EUSER, "run.ranks = %lld: give 1 to 4096", (long long)c->run_ranks);
    return tc_cmd_fail(&err);
  }
  if (tc_ranks_threads(&ranks, n, &err) < 0) return tc_cmd_fail(&err);
  char **who = tc_ranks_names(ranks);
  struct tc_hub *hub = tc_hub_new(n);
  struct start *s = tc_calloc((size_t)n, sizeof *s);
  for (int r = 0; r < n; r++) {
    int threads = c->run_threads == TC_AUTO ? tc_ranks_threads_each(ranks, r)
                                            : (int)c->run_threads;
    s[r].train = (struct tc_train){ .cfg = c, .ranks = ranks, .who = who, .rank = r, .hub = hub,
                                    .threads = TC_MAX(1, threads), .stop_fd = stop_fd };
    if (pthread_create(&s[r].thread, NULL, run_thread, &s[r])) {
      fprintf(stderr, "tercio: cannot start a thread for rank %d\n", r);
      exit(2);
    }
  }
  int status = 0;
  for (int r = 0; r < n; r++) pthread_join(s[r].thread, NULL);
  for (int r = 0; r < n; r++) {                  /* each sentence once */
    bool said = false;
    for (int q = 0; q < r; q++) said |= s[q].rc < 0 && !strcmp(s[q].err.text, s[r].err.text);
    if (s[r].rc < 0 && !said) tc_cmd_fail(&s[r].err);
    if (s[r].rc < 0 && (!status || s[r].rc != TC_EPEER)) status = -s[r].rc;
  }
  tc_hub_free(hub);
  for (int r = 0; r < n; r++) free(who[r]);
  free(who);
  tc_ranks_free(ranks);
  free(s);
  return status;
}

static int run_process(const struct tc_config *c, int stop_fd)
{
  struct tc_err err = { 0 };
  struct tc_ranks *ranks;
  int rc = tc_ranks_discover(&ranks, &err);
  if (rc < 0) return say(launcher_rank(), rc, &err);
  bool mpi = ranks->world > 1;
  int rank = ranks->rank, world = ranks->world;
  if (mpi) rc = tc_mpi_start(&rank, &world, &err);
  if (!rc && (rank != ranks->rank || world != ranks->world))
    rc = tc_fail(&err, TC_EUSER, "MPI says rank %d of %d, PMIx %d of %d: is this Open MPI built "
                 "for the launcher's PMIx?", rank, world, ranks->rank, ranks->world);
  if (rc < 0) return say(ranks->rank, rc, &err);
  char **who = tc_ranks_names(ranks);
  int threads = c->run_threads == TC_AUTO ? tc_ranks_threads_each(ranks, rank)
                                          : (int)c->run_threads;
  struct tc_train t = { .cfg = c, .ranks = ranks, .who = who, .rank = rank, .mpi = mpi,
                        .threads = TC_MAX(1, threads), .stop_fd = stop_fd };
  rc = tc_train(&t, &err);
  int status = say(rank, rc, &err);
  if (rc == TC_EPEER && mpi) tc_mpi_abort(-TC_EPEER);   /* a peer is gone: no orderly end */
  if (mpi) tc_mpi_finish();
  for (int r = 0; r < world; r++) free(who[r]);
  free(who);
  tc_ranks_free(ranks);
  tc_ranks_finish();
  return status;
}

int tc_cmd_train(int argc, char **argv)
{
  const char *const extra[] = { NULL };
  struct tc_err err = { 0 };
  struct tc_config *c = NULL;
  int rc = tc_config_new(&c, argc, argv, extra, NULL, &err);
  if (rc < 0) return say(launcher_rank(), rc, &err);
  int stop_fd = stop_descriptor();
  if (c->run_ranks > 1 && !strcmp(c->run_comm, "mpi")) {
    tc_fail(&err, TC_EUSER, "run.ranks = %lld are threads, which run.comm = mpi excludes: leave one",
            (long long)c->run_ranks);
    return say(launcher_rank(), TC_EUSER, &err);
  }
  bool threads = c->run_ranks > 1 || !strcmp(c->run_comm, "thread");
  int status = threads ? run_threads(c, stop_fd) : run_process(c, stop_fd);
  if (stop_fd >= 0) close(stop_fd);
  tc_config_free(c);
  return status;
}
