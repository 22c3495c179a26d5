/* m_comm.c - communicators of ranks that are MPI processes: the cases of t_comm.c. Rank 0
 * prints TAP. Run it under a launcher with any number of ranks, or alone.
 *
 *   m_comm late    the last rank sleeps past a deadline of 1 s; the others print the
 *                  sentence and end the step with exit status 8
 *   m_comm stop    the same, the last rank stopped by SIGSTOP in the middle of a transfer */
#include <signal.h>

#include "src/comm/comm.h"
#include "src/comm/mpi.h"
#include "src/watch/watch.h"
#include "tests/unit/comm/comm_cases.h"
#include "tests/unit/tap.h"

enum { MAX_WORLD = 64, RESULTS = 250, LATE = 251 };

static struct tc_comm *make(struct cc_env *e, int id, const int32_t *members, int size,
                            const struct tc_comm_opts *o)
{
  struct tc_comm *c = NULL;
  struct tc_err err = { 0 };
  int rc = tc_comm_mpi(&c, id, members, size, o, &err);
  cc_check(e, rc == 0, "%s", err.text);
  return c;
}

/* All ranks' fails, and one of the sentences. */
static void report(struct cc_env *e, struct tc_comm *results, const char *name)
{
  struct tc_err err = { 0 };
  int64_t worst = e->fails, bytes[MAX_WORLD];
  void *all = NULL;
  int64_t len = (int64_t)strlen(e->first);
  if (tc_comm_max_i64(results, &worst, 1, &err) < 0 ||
      tc_comm_bytes_gather(results, 0, e->first, len, &all, bytes, &err) < 0) {
    fprintf(stderr, "rank %d: %s\n", e->rank, err.text);
    tc_mpi_abort(8);
  }
  if (e->rank == 0) {
    const char *at = all;
    ok(worst == 0, "%d ranks: %s", e->world, name);
    for (int i = 0; i < e->world; at += bytes[i++])
      if (bytes[i]) printf("#   rank %d, first: %.*s\n", i, (int)bytes[i], at);
  }
  free(all);
}

static void give_up(int status, const char *why)
{
  fprintf(stderr, "%s\n", why);
  tc_mpi_abort(status);
}

static void be_late(struct cc_env *e, bool stop)
{
  const struct tc_watch_opts o = { .deadline_s = 60, .world = e->world, .first = e->rank,
                                   .n_local = 1, .rank_names = e->who, .end = give_up };
  struct tc_watch *w;
  TC_ASSERT(tc_watch_new(&w, &o, NULL) == 0);
  tc_watch_enter(w, e->rank);
  tc_watch_channel(w, tc_mpi_channel());
  struct tc_comm *c = cc_world(e, LATE, "dp", 1);
  int64_t count = 8000000;
  float *x = tc_calloc((size_t)count, sizeof *x);
  struct tc_part p = { x, x, count, tc_ceil_div(count, e->world) };
  struct tc_coll_args a = { .coll = TC_ALL_REDUCE, .dtype = TC_F32, .n_parts = 1, .parts = &p,
                            .what = "grad layer 3" };
  struct tc_err err = { 0 };
  bool last = e->rank == e->world - 1;
  tc_ticket t = 0;
  if (last && !stop) tc_sleep_ns(INT64_C(30000000000));
  int rc = 0;
  for (int i = 0; rc == 0 && i < 100000; i++) {
    if (last && i == 3) {
      rc = tc_comm_start(c, &a, &t, &err);
      tc_sleep_ns(3000000);
      raise(SIGSTOP);
    }
    rc = tc_comm_run(c, &a, &err);
  }
  fprintf(stderr, "rank %d: %s\n", e->rank, err.text);
  tc_sleep_ns(500000000);         /* let all others say it too */
  tc_mpi_abort(-rc);
}

int main(int argc, char **argv)
{
  struct cc_env e = { .make = make, .repeats = true };
  struct tc_err err = { 0 };
  char names[MAX_WORLD][32];
  const char *who[MAX_WORLD];
  if (tc_mpi_start(&e.rank, &e.world, &err) < 0) {
    fprintf(stderr, "%s\n", err.text);
    return 2;
  }
  TC_ASSERT(e.world <= MAX_WORLD);
  tc_log_set_rank(e.rank);
  for (int i = 0; i < e.world; i++) {
    snprintf(names[i], sizeof names[i], "rank %d on node%d", i, i / 2 + 1);
    who[i] = names[i];
  }
  e.who = who;
  if (argc > 1) be_late(&e, strcmp(argv[1], "stop") == 0);
  struct tc_comm *results = cc_world(&e, RESULTS, "world", 60);
  for (int i = 0; i < CC_CASES; i++) {
    if (e.world < cc_cases[i].min_world) continue;
    e.fails = 0;
    e.first[0] = 0;
    int64_t again = 1;
    for (e.run = 0; again && e.run < CC_RUNS; e.run++) {
      e.again = false;
      cc_cases[i].run(&e);
      again = e.again;
      if (tc_comm_max_i64(results, &again, 1, &err) < 0) tc_mpi_abort(8);
    }
    report(&e, results, cc_cases[i].name);
  }
  tc_comm_free(results);
  int rc = e.rank == 0 ? done_testing() : 0;
  if (tc_mpi_meet(60, &err) < 0) tc_mpi_abort(8);
  tc_mpi_finish();
  return rc;
}
