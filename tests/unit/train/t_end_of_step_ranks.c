/* t_end_of_step_ranks.c - the control reduction that ends a step (end_of_step.c), on ranks that are threads: every rank
 * has the greatest of each flag, and rank 0 knows which rank worked longest. */
#include "src/train/parts.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

enum { MOST = 4, FLAGS = 3 };
static char *const who[MOST] = { "rank 0 on a", "rank 1 on a", "rank 2 on b", "rank 3 on b" };
static int32_t node[MOST] = { 0, 0, 1, 1 };
static const int64_t flags[MOST][FLAGS] = {
  { 1, 0, -5 }, { 0, 2, -4 }, { 3, 1, -6 }, { 2, 2, -7 }
};
static const int64_t step_ns[MOST] = { 1000, 900, 1200, 1000 },
                     wait_ns[MOST] = { 600, 500, 200, 700 };

struct job {
  struct tc_slowest slowest;
  bool slow[MOST];
  int bad;
};

static void body(struct fx_rank *r)
{
  struct job *j = r->ctx;
  const struct tc_ranks ranks = { .node_of_rank = node };
  struct tc_train t = { .run.rank = r->rank,
                        .run.mesh = r->mesh,
                        .run.ranks = &ranks,
                        .run.rank_names = who,
                        .run.world = r->comm[TC_SET_DP] ? r->comm[TC_SET_DP] : r->comm[TC_SET_PP] };
  struct tc_step_report s = { .step = 5, .step_ns = step_ns[r->rank], .wait_ns = wait_ns[r->rank] };
  struct tc_comm_opts self = { .name = "world" };
  if (!t.run.world) t.run.world = tc_comm_self(&self);
  struct tc_err err = { 0 };
  int64_t flag[FLAGS + 1];
  for (int step = 0; step < 2; step++) {
    int64_t want[FLAGS];
    memcpy(flag, flags[r->rank], sizeof flags[0]);
    flag[FLAGS] = 77;
    memcpy(want, flags[0], sizeof want);
    for (int i = 1; i < r->mesh->world; i++)
      for (int k = 0; k < FLAGS; k++) want[k] = TC_MAX(want[k], flags[i][k]);
    const int rc = tc_train_control(&t, flag, FLAGS, &s, &err);
    ok(rc == 0 && !memcmp(flag, want, sizeof want) && flag[FLAGS] == 77,
       "rank %d of %d: the greatest of each flag", r->rank, r->mesh->world);
  }
  if (r->rank == 0) j->slowest = s.slowest;
  j->slow[r->rank] = t.end.straggler != NULL;
  tc_straggler_free(t.end.straggler);
  if (r->mesh->world == 1) tc_comm_free(t.run.world);
}

int main(void)
{
  static const struct {
    int pp, dp, rank;
    int64_t work, median;
  } row[] = {
    { 1, 1, 0, 0, 0 }, { 1, 3, 2, 1000, 400 }, { 1, 4, 2, 1000, 400 }, { 3, 1, 0, 400, 0 }
  }; /* stages of one rank */
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct job j = { .bad = 0 };
    struct tc_mesh *m = fx_mesh(1, row[i].pp, row[i].dp, 1);
    fx_run(m, "ref", body, &j);
    is_int(j.slowest.rank, row[i].rank, "pp %d dp %d: the slowest rank", row[i].pp, row[i].dp);
    is_int(j.slowest.work_ns, row[i].work, "... its work");
    is_int(j.slowest.median_ns, row[i].median, "... and the median of its stage");
    ok(j.slow[0] == (m->world > 1) && !j.slow[1] && !j.slow[2] && !j.slow[3],
       "... which rank 0 of several keeps");
    tc_mesh_free(m);
  }
  return done_testing();
}
