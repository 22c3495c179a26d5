/* launch.c - ranks as threads or processes, from finding them to the exit
 * status.
 *
 * Invariants:
 * - what can be found wrong before ranks start is found by every process alike and reported once;
 * - processes start MPI first, and PMIx after it: Open MPI 5 finds no local rank where PMIx was
 *   initialised before, 4.1 none where it was initialised and finalised;
 * - after tc_mpi_start MPI is finished, or aborted if a peer is missing (no orderly end);
 * - the hub learns that a thread's rank has left only if it failed: the others must not wait;
 * - each rank's thread has a status from its first moment to its last: a rank that hangs anywhere
 *   is ended by the watchdog. */
#include "src/launch/launch.h"
#include "src/comm/hub.h"
#include "src/comm/mpi.h"
#include "ac_config.h"
#include "src/launch/pmix.h"
#include "src/watch/watch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 4096, MAX_RANK = 1 << 24, SPACE_BYTES = 256 };

#define START_S 10.0              /* ranks may come to MPI's start so much later than others, whatever run.deadline */
#define LINGER_NS INT64_C(300000000)   /* for the others to report where they are */
#define FIRST_NS INT64_C(2000000000)   /* for rank 0 to report what all have found wrong */
#define JOIN_NS INT64_C(30000000000)   /* ... and MPI may start so much later there */

/* The threads of ranks wait here until it is known whether all could be started. */
enum { SHUT, OPEN, CLOSED };
struct gate { pthread_mutex_t lock; pthread_cond_t changed; int state; };

struct rank_thread {
  pthread_t thread;
  const struct tc_launch *launch;
  struct gate *gate;
  struct tc_watch *watch;
  tc_launch_body *body;
  void *ctx;
  int rank, rc;
  struct tc_err err;
};

/* ---- rank, number of ranks, requests ---------------------------------------------------- */

int tc_launch_rank(void)
{
  const char *const key[] = { "PMIX_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK" };
  for (size_t i = tc_pmix_launched() ? 0 : 1; i < sizeof key / sizeof key[0]; i++)
    if (getenv(key[i])) return TC_MAX(0, TC_MIN(atoi(getenv(key[i])), MAX_RANK));
  return 0;
}

/* How many ranks the launcher started; 0: it does not say. An mpirun may have been started in a Slurm step. */
static int launched(void)
{
  const char *const key[] = { "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE" };
  for (size_t i = 0; i < sizeof key / sizeof key[0]; i++)
    if (getenv(key[i])) return TC_MAX(0, atoi(getenv(key[i])));
  return 0;
}

bool tc_launch_alone(void) { return !tc_pmix_launched() && launched() == 0; }

/* With device = auto the CPUs that GPUs leave idle are lost only where GPUs can be used. */
static bool works_on_gpus(const struct tc_config *c)
{
#ifdef TC_CUDA
  const bool built = true;
#else
  const bool built = false;
#endif
  return c->run_device == TC_DEVICE_CUDA || (built && c->run_device == TC_DEVICE_AUTO);
}

struct tc_ranks_request tc_launch_request(const struct tc_config *c)
{
  static const char *const set_by_user[] = { "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY" };
  struct tc_ranks_request w = { .bind = c->run_bind == TC_BIND_AUTO, .gpus = works_on_gpus(c) };
  w.deadline_s = TC_MAX(c->run_deadline > 0 ? TC_MIN(c->run_deadline, 1e9) : 600, START_S);
  if (c->run_threads != TC_AUTO) w.threads = (int)TC_MIN(c->run_threads, INT32_MAX);
  for (size_t i = 0; i < sizeof set_by_user / sizeof set_by_user[0]; i++) w.bind &= getenv(set_by_user[i]) == NULL;
  return w;
}

/* MPI's start has not ended within the deadline: this rank does not hang, it waits. */
static void end_start(int status, const char *why)
{
  char who[400], text[600] = "";
  tc_pmix_missing(who, sizeof who);
  if (*who) snprintf(text, sizeof text, "MPI's start waits for %s: stopped, dead, or not to be reached; see its message, or "
                     "its node", who);
  tc_ranks_abort(status, *text ? text : why);
}

/* Starts MPI under a watchdog that knows this rank only: the others are not known yet. */
static int start_mpi(struct tc_launch *l, struct tc_err *err)
{
  const int rank = l->rank;
  char host[64] = "", name[100];
  if (gethostname(host, sizeof host - 1) != 0) strcpy(host, "unknown");
  snprintf(name, sizeof name, "rank %d on %s", rank, host);
  const char **rank_names = tc_calloc((size_t)rank + 1, sizeof *rank_names);
  rank_names[rank] = name;
  const struct tc_watch_opts o = { .deadline_s = l->cfg->run_deadline, .world = rank + 1, .first = rank, .n_local = 1,
                                   .end = end_start, .half = tc_pmix_waits, .rank_names = rank_names };
  struct tc_watch *w;
  int rc = tc_watch_new(&w, &o, err);
  if (rc < 0) tc_ranks_abort(-rc, err->text);          /* the others would wait in MPI_Init */
  tc_watch_enter(w, rank);
  tc_watch_allow(START_S);
  tc_at_phase("starting MPI, which waits for all ranks");
  struct tc_kept_env env = tc_topology_env_hide();
  rc = tc_mpi_start(&l->mpi_rank, &l->mpi_world, err);
  tc_topology_env_restore(&env);
  l->mpi = rc == 0;
  if (rc < 0) tc_pmix_forget();        /* MPI may have left it half-initialised */
  tc_watch_leave(rc, err);
  tc_watch_free(w);
  free(rank_names);
  return rc;
}

/* Where MPI can't use the launcher's PMIx, it starts each process as rank 0 of 1 without an error, by a PMIx
 * server of its own or by none. In tc_ranks_discover these ranks would wait for those that have seen it. */
static int join_by_mpi(struct tc_launch *l, struct tc_err *err)
{
  const int n = launched();
  char space[SPACE_BYTES], of_n[32] = "";
  snprintf(space, sizeof space, "%s", tc_env("PMIX_NAMESPACE"));
  if (n > 0) snprintf(of_n, sizeof of_n, " of %d", n);
  TC_TRY(tc_pmix_server(err));
  TC_TRY(start_mpi(l, err));
  const bool own_server = strcmp(space, tc_env("PMIX_NAMESPACE")) != 0;
  const bool all_see_it = own_server || l->mpi_world < n;
  if (!all_see_it && l->mpi_rank == l->rank) return 0;
  tc_fail(err, TC_EUSER, "MPI has not joined the ranks: it says rank %d of %d, but the launcher started "
          "rank %d%s (PMIX_NAMESPACE = %s): is this Open MPI built for the launcher's PMIx?", l->mpi_rank,
          l->mpi_world, l->rank, of_n, space);
  if (own_server) tc_pmix_forget();    /* it knows this process alone: the launcher sees the exit status */
  if (all_see_it && l->rank > 0) tc_sleep_ns(JOIN_NS);   /* rank 0 reports it and ends the step */
  tc_ranks_abort(-err->status, err->text);
  return err->status;
}

/* Ranks tell each other through MPI where they are. */
static int discover_by_mpi(struct tc_launch *l, struct tc_ranks_request *request, struct tc_err *err)
{
  const int n = l->mpi_world;
  int32_t *members = tc_malloc((size_t)n * sizeof *members);
  char (*name)[16] = tc_malloc((size_t)n * sizeof *name);
  const char **names = tc_malloc((size_t)n * sizeof *names);
  const struct tc_comm_opts o = { .name = "start", .deadline_s = request->deadline_s, .rank_names = names };
  struct tc_comm *world = NULL;
  for (int i = 0; i < n; i++) {
    members[i] = i;
    snprintf(name[i], sizeof name[i], "rank %d", i);
    names[i] = name[i];
  }
  int rc = tc_comm_mpi(&world, TC_MPI_START_ID, members, n, &o, err);
  if (!rc) {
    request->comm = world;
    rc = tc_ranks_discover(&l->ranks, request, err);
    tc_comm_free(world);
  }
  TC_FREE(members, name, names);
  return rc;
}

static int find_processes(struct tc_launch *l, struct tc_ranks_request *request,
                          struct tc_err *err)
{
  tc_ranks_prepare();
  if (tc_pmix_launched()) TC_TRY(join_by_mpi(l, err));
  /* In both all ranks meet before the first message: under Slurm MPI_Init may be over here while it has hardly begun on
   * another node. */
  return l->mpi ? discover_by_mpi(l, request, err) : tc_ranks_discover(&l->ranks, request, err);
}

int tc_launch_find(struct tc_launch *l, const struct tc_config *c, struct tc_err *err)
{
  const long long n = c->run_ranks;
  const bool threads = n > 1 || c->run_comm == TC_COMM_THREAD;
  *l = (struct tc_launch){ .cfg = c, .rank = tc_launch_rank() };
  if (n > 1 && c->run_comm == TC_COMM_MPI)
    return tc_fail(err, TC_EUSER, "run.ranks = %lld are threads, which run.comm = mpi excludes: "
                   "leave one", n);
  if (threads && launched() > 1)
    return tc_fail(err, TC_EUSER, "run.ranks = %lld are threads of one process, but a launcher "
                   "started several: leave run.ranks, or start one", n);
  if (threads && (n < 1 || n > MAX_THREADS))
    return tc_fail(err, TC_EUSER, "run.ranks = %lld: give 1 to %d", n, MAX_THREADS);
  struct tc_ranks_request request = tc_launch_request(c);
  l->found = threads ? tc_ranks_threads(&l->ranks, (int)n, &request, err)
                     : find_processes(l, &request, err);
  if (l->found < 0) return l->found;
  if (threads) l->hub = tc_hub_new((int)n);
  l->rank_names = tc_ranks_names(l->ranks);
  return 0;
}

int tc_launch_say(struct tc_launch *l, int rc, const struct tc_err *err)
{
  const int rank = l->ranks ? l->ranks->rank : l->cfg ? l->rank : tc_launch_rank();
  if (rc < 0 && (rank == 0 || rc == TC_EPEER)) return tc_say_failure(err);
  if (rc < 0) l->unsaid = *err;
  /* Where MPI, by which the others wait for rank 0, is not there: launchers end all ranks when one fails. */
  if (rc < 0 && !l->mpi && launched() > 1) tc_sleep_ns(FIRST_NS);
  return -rc;
}

/* What srun --cpus-per-task gave to this process, which may be allowed more CPUs than that (Slurm without task/affinity
 * or task/cgroup); 0: not known. In the batch script itself, which is no step, the number is that of the tasks to
 * come. */
static int cpus_of_task(void)
{
  const char *step = tc_env("SLURM_STEP_ID"), *n = tc_env("SLURM_CPUS_PER_TASK");
  return *step ? TC_MAX(atoi(n), 0) : 0;
}

int tc_launch_threads(const struct tc_config *c, const struct tc_ranks *r, int rank)
{
  if (c->run_threads != TC_AUTO) return (int)TC_MAX(1, TC_MIN(c->run_threads, INT32_MAX));
  const int each = tc_ranks_threads_each(r, rank), given = cpus_of_task() / (int)TC_MAX(c->run_ranks, 1);
  return cpus_of_task() ? TC_MAX(TC_MIN(each, given), 1) : each;
}

bool tc_launch_on_gpus(const struct tc_config *c, const struct tc_ranks *r)
{
  if (c->run_device != TC_DEVICE_AUTO) return c->run_device == TC_DEVICE_CUDA;
  for (int i = 0; i < r->world; i++)
    if (r->info[i].device < 0) return false;
  return true;
}

/* ---- starting them --------------------------------------------------------------------- */

static int new_watch(struct tc_watch **out, const struct tc_launch *l, struct tc_err *err)
{
  const struct tc_watch_opts o = {
    .deadline_s = l->cfg->run_deadline, .world = l->ranks->world, .end = tc_ranks_abort,
    .first = l->hub ? 0 : l->ranks->rank, .n_local = l->hub ? l->ranks->world : 1,
    .rank_names = (const char *const *)l->rank_names };
  return tc_watch_new(out, &o, err);
}

/* Ranks begin when all threads are there, or none does. */
static bool may_begin(struct gate *g)
{
  pthread_mutex_lock(&g->lock);
  while (g->state == SHUT) pthread_cond_wait(&g->changed, &g->lock);
  bool open = g->state == OPEN;
  pthread_mutex_unlock(&g->lock);
  return open;
}

static void set_gate(struct gate *g, int state)
{
  pthread_mutex_lock(&g->lock);
  g->state = state;
  pthread_cond_broadcast(&g->changed);
  pthread_mutex_unlock(&g->lock);
}

static void *run_rank_thread(void *arg)
{
  struct rank_thread *s = arg;
  if (!may_begin(s->gate)) return NULL;
  tc_watch_enter(s->watch, s->rank);
  tc_ranks_bind(s->launch->ranks, s->rank);
  s->rc = s->body(s->rank, s->ctx, &s->err);
  tc_watch_leave(s->rc, &s->err);
  if (s->rc < 0) tc_hub_leave(s->launch->hub, s->rank);
  return NULL;
}

/* Each sentence once. */
static int say_all(const struct rank_thread *s, int n)
{
  int status = 0;
  for (int r = 0; r < n; r++) {
    bool reported = false;
    for (int q = 0; q < r; q++) reported |= s[q].rc < 0 && !strcmp(s[q].err.text, s[r].err.text);
    if (s[r].rc < 0 && !reported) tc_say_failure(&s[r].err);
    if (s[r].rc < 0 && (!status || s[r].rc != TC_EPEER)) status = -s[r].rc;
  }
  return status;
}

static int run_threads(const struct tc_launch *l, tc_launch_body *body, void *ctx)
{
  int n = l->ranks->world, started = 0;
  struct gate gate = { .state = SHUT };
  struct tc_watch *w;
  struct tc_err err = { 0 };
  if (new_watch(&w, l, &err) < 0) return tc_say_failure(&err);
  pthread_mutex_init(&gate.lock, NULL);
  pthread_cond_init(&gate.changed, NULL);
  struct rank_thread *s = tc_calloc((size_t)n, sizeof *s);
  int rc = 0;
  for (int r = 0; r < n && !rc; r++) {
    s[r] = (struct rank_thread){ .launch = l, .watch = w, .gate = &gate, .body = body, .ctx = ctx,
                          .rank = r };
    rc = tc_thread_start(&s[r].thread, run_rank_thread, &s[r], &err);
    started += rc == 0;
  }
  set_gate(&gate, rc == 0 ? OPEN : CLOSED);
  for (int r = 0; r < started; r++) pthread_join(s[r].thread, NULL);
  int status = rc < 0 ? tc_say_failure(&err) : say_all(s, n);
  tc_watch_free(w);
  pthread_mutex_destroy(&gate.lock);
  pthread_cond_destroy(&gate.changed);
  free(s);
  return status;
}

/* Back when all ranks have reached the end; if one does not, the step is ended, and what this rank had left to rank 0 to print
 * is printed. */
static void await_end(struct tc_launch *l, int rc)
{
  struct tc_err err;
  if (rc != TC_EPEER && tc_mpi_meet(l->cfg->run_deadline, &err) < 0) {
    if (l->unsaid.status) tc_say_failure(&l->unsaid);
    tc_launch_say(l, rc = TC_EPEER, &err);
  }
  if (rc != TC_EPEER || l->mpi_world == 1) return;
  tc_sleep_ns(LINGER_NS);
  tc_mpi_abort(-TC_EPEER);
}

static int run_process(struct tc_launch *l, tc_launch_body *body, void *ctx)
{
  struct tc_err err = { 0 };
  const struct tc_ranks *r = l->ranks;
  struct tc_watch *w;
  if (new_watch(&w, l, &err) < 0) {
    if (l->mpi) tc_ranks_abort(-err.status, err.text);   /* the others would wait for this rank */
    return tc_say_failure(&err);
  }
  tc_watch_enter(w, r->rank);
  if (l->mpi) tc_watch_channel(w, tc_mpi_channel());
  tc_ranks_bind(r, r->rank);           /* MPI's own threads, which came before, stay free */
  int rc = body(r->rank, ctx, &err);
  tc_watch_leave(rc, &err);
  int status = tc_launch_say(l, rc, &err);
  if (l->mpi) await_end(l, rc);
  tc_watch_channel(w, NULL);
  tc_watch_free(w);
  if (l->mpi) tc_mpi_finish();
  l->mpi = false;
  return status;
}

int tc_launch_run(struct tc_launch *l, tc_launch_body *body, void *ctx)
{
  return l->hub ? run_threads(l, body, ctx) : run_process(l, body, ctx);
}

void tc_launch_free(struct tc_launch *l)
{
  if (l->mpi) {                        /* something was wrong before ranks could run */
    await_end(l, l->found);
    tc_mpi_finish();
  }
  for (int r = 0; l->rank_names && r < l->ranks->world; r++) free(l->rank_names[r]);
  free(l->rank_names);
  tc_hub_free(l->hub);
  tc_ranks_free(l->ranks);
  tc_ranks_finish();
}
