/* straggler.c - the control reduction that ends a step, and the slow ranks that it tells of. */
#include <stdlib.h>
#include <string.h>

#include "src/train/train.h"

static struct tc_straggler *new_slow(const struct tc_train *t)
{
  int world = t->run.mesh->world;
  int32_t *stage = tc_malloc((size_t)world * sizeof *stage);
  for (int r = 0; r < world; r++) stage[r] = tc_mesh_coord(t->run.mesh, r, TC_PP);
  const struct tc_straggler_opts o = { .world = world, .stage = stage, .node = t->run.ranks->node_of_rank,
                                  .who = (const char *const *)t->run.who };
  struct tc_straggler *s = tc_straggler_new(&o);
  free(stage);
  return s;
}

int tc_train_control(struct tc_train *t, int64_t *flag, int n, struct tc_step_report *r,
                     struct tc_err *err)
{
  int world = t->run.mesh->world, each = n + 1;
  int64_t *mine = tc_malloc((size_t)each * sizeof *mine);
  int64_t *all = tc_malloc((size_t)(world * each) * sizeof *all);
  memcpy(mine, flag, (size_t)n * sizeof *mine);
  mine[n] = r->step_ns - r->wait_ns;
  int rc = tc_comm_all_i64(t->run.world, mine, each, all, err);
  for (int i = 0; rc == 0 && i < world * each; i++)
    if (i % each < n) flag[i % each] = TC_MAX(flag[i % each], all[i]);
  if (rc == 0 && t->run.rank == 0 && world > 1) {
    if (!t->slow) t->slow = new_slow(t);
    for (int i = 0; i < world; i++) all[i] = all[i * each + n];   /* never before it is read */
    const char *said = tc_straggler_step(t->slow, r->step, all, &r->slowest);
    if (said) tc_warn("%s", said);
  }
  free(mine);
  free(all);
  return rc;
}
