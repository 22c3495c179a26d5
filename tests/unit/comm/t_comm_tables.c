/* t_comm_tables.c - ranks that are threads, with drawn tables of algorithms: all results are right and the bytes are those that
 * are predicted, by whichever algorithms; and ranks that have read different tables. */
#include <pthread.h>

#include "src/comm/comm.h"
#include "src/comm/hub.h"
#include "tests/unit/coll/drawn_table.h"
#include "tests/unit/comm/comm_check.h"
#include "tests/unit/tap.h"

#include <math.h>

enum { LEAST = 4, MOST = 7, CALLS = 40 };
static const char *const who[MOST] = { "rank 0 on node1", "rank 1 on node1", "rank 2 on node2", "rank 3 on node2",
                                       "rank 4 on node3", "rank 5 on node4", "rank 6 on node4" };

/* What all ranks of a case do. */
struct plan {
  int world;
  int32_t members[MOST], node[MOST];
  bool partial;
  const struct tc_selection *selection[MOST];
  struct cc_call call[CALLS];
};
struct job {
  struct cc_env env;
  const struct plan *plan;
  bool taken[TC_ALGORITHMS];
  int rc;
  struct tc_err err;
};

static struct tc_comm *join(struct job *j)
{
  const struct plan *p = j->plan;
  const struct tc_comm_opts o = { .name = "dp", .deadline_s = 60, .rank_names = who, .node = p->node,
                                  .partial_sums = p->partial, .selection = p->selection[j->env.rank] };
  return tc_comm_thread(j->env.ctx, 0, j->env.rank, p->members, p->world, &o);
}

static void *call_all(void *arg)
{
  struct job *j = arg;
  tc_log_set_rank(j->env.rank);
  struct tc_comm *c = join(j);
  for (int i = 0; i < CALLS; i++) {
    const struct cc_call *k = &j->plan->call[i];
    struct tc_part part[CC_PARTS];
    const struct tc_coll_args a = { .coll = k->coll, .dtype = k->dtype, .n_parts = k->n_parts, .parts = part };
    for (int p = 0; p < k->n_parts; p++) part[p] = (struct tc_part){ .count = k->count[p], .block = k->block[p] };
    j->taken[tc_algorithm_of(&a, tc_comm_members(c))] = true;
    cc_one(&j->env, c, k);
  }
  tc_comm_free(c);
  return NULL;
}

static void *compare(void *arg)
{
  struct job *j = arg;
  char names[MOST][20], *name[MOST];
  for (int i = 0; i < MOST; i++) snprintf(names[i], sizeof names[i], "%.15s", who[i]), name[i] = names[i];
  struct tc_comm *c = join(j);
  j->rc = tc_comm_same_selection(c, name, j->plan->selection[j->env.rank], "my.txt", &j->err);
  tc_comm_free(c);
  return NULL;
}

static void run(struct job job[MOST], const struct plan *p, void *(*body)(void *))
{
  pthread_t thread[MOST];
  struct tc_hub *hub = tc_hub_new(p->world);
  for (int r = 0; r < p->world; r++) {
    job[r] = (struct job){ .env = { .rank = r, .world = p->world, .ctx = hub, .who = who }, .plan = p };
    pthread_create(&thread[r], NULL, body, &job[r]);
  }
  for (int r = 0; r < p->world; r++) pthread_join(thread[r], NULL);
  tc_hub_free(hub);
}

/* Sums and others, of one part or of two, of a size from none to some pieces. */
static struct cc_call draw_call(int world)
{
  static const int dtypes[] = { TC_F32, TC_BF16, TC_F64, TC_I32 };
  int coll = 0;
  do coll = (int)draw(TC_FIRST_COLL, TC_COLLS - 1);
  while (coll == TC_SEND || coll == TC_RECV);
  struct cc_call k = cc_call(coll, dtypes[draw(0, 3)], draw(0, 9) ? (int64_t)exp2(uniform() * 16) - 1 : draw(0, 300000), world);
  k.algorithm = TC_ALGORITHM_AUTO;
  k.root = (int)draw(0, world - 1);
  k.red = draw(0, 3) ? TC_SUM : TC_MAX_OP;
  k.in_place = draw(0, 1) && coll != TC_ALL_TO_ALL && coll != TC_BROADCAST && coll != TC_SCATTER && coll != TC_GATHER;
  if (coll == TC_BARRIER) k.n_parts = 0;
  if (coll < TC_REDUCE && draw(0, 2) == 0) k.count[k.n_parts] = draw(0, 100), k.block[k.n_parts++] = tc_ceil_div(100, world);
  return k;
}

static void draw_plan(struct plan *p, const struct tc_selection *s)
{
  const int kind = (int)draw(0, 3);
  *p = (struct plan){ .world = (int)draw(LEAST, MOST), .partial = draw(0, 3) > 0 };
  for (int i = 0; i < p->world; i++) {
    p->members[i] = i;
    p->node[i] = kind == 0 ? 0 : kind == 1 ? i : kind == 2 ? i / 2 : (int32_t)draw(0, 2);
    p->selection[i] = s;
  }
  for (int i = 0; i < CALLS; i++) p->call[i] = draw_call(p->world);
}

static void right_results(int cases)
{
  bool taken[TC_ALGORITHMS] = { false };
  int wrong = 0;
  for (int i = 0; i < cases; i++) {
    struct drawn_table t;
    struct tc_selection *s;
    struct tc_err err = { .text = "" };
    struct job job[MOST];
    struct plan p;
    draw_table(&t, false);
    TC_ASSERT(parse_table(&s, t.text, &err) == 0);
    draw_plan(&p, s);
    run(job, &p, call_all);
    int fails = 0;
    for (int r = p.world - 1; r >= 0; r--) {
      if (job[r].env.fails && !fails) printf("# table %d, rank %d of %d: %s\n%s\n", i, r, p.world, job[r].env.first, t.text);
      fails += job[r].env.fails;
      for (int a = 0; a < TC_ALGORITHMS; a++) taken[a] |= job[r].taken[a];
    }
    wrong += fails > 0;
    tc_selection_free(s);
  }
  is_int(wrong, 0, "%d drawn tables, 4 to 7 ranks, %d calls with each", cases, CALLS);
  for (int a = TC_ALGORITHM_AUTO + 1; a < TC_ALGORITHMS; a++) ok(taken[a], "... some by %s", tc_algorithm_name[a]);
}

/* Rank `other` has another table, which takes other algorithms for this very call. -1: none has. */
static void one_table(int world, int other)
{
  struct tc_selection *a, *b;
  struct tc_err err = { .text = "" };
  struct job job[MOST];
  struct plan p = { .world = world };
  int wrong = 0;
  char want[200];
  TC_ASSERT(parse_table(&a, "all_gather any any any doubling", &err) == 0);
  TC_ASSERT(parse_table(&b, "all_gather any any any exchange", &err) == 0);
  for (int i = 0; i < world; i++) p.members[i] = i, p.selection[i] = i == other ? b : a;
  run(job, &p, compare);
  snprintf(want, sizeof want, "run.collectives = my.txt has other rows on %s than on %s: all ranks need the same file",
           other ? who[TC_MAX(other, 0)] : who[1], who[0]);
  for (int i = 0; i < world; i++)
    wrong += job[i].rc != (other < 0 ? 0 : TC_EUSER) || (other >= 0 && strcmp(job[i].err.text, want));
  is_int(wrong, 0, "%d ranks, rank %d with another table: %s", world, other, job[0].err.text);
  tc_selection_free(a);
  tc_selection_free(b);
}

int main(int argc, char **argv)
{
  const int cases = begin_cases(argc, argv, 60);
  for (int other = -1; other < LEAST; other++) one_table(LEAST, other);
  one_table(MOST, MOST - 1);
  right_results(cases);
  return done_testing();
}
