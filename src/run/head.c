/* head.c - the rows of a loss chunk where parallel.head_chunk is auto: on GPUs more than elsewhere, if they fit.
 *
 * The choice is the planner's (plan.h), for the least memory of a rank's GPU, so that it is the same on all ranks. What
 * other processes have taken of a GPU counts only where the run would not fit beside it: two runs with the same settings
 * on the same GPUs have the same chunks, and so the same bits. A run of several stages has those of other devices: the planner
 * knows the memory of one stage. */
#include "src/plan/plan.h"
#include "src/run/impl.h"
#include "src/watch/watch.h"

/* Bytes of the rank's GPU, of which the programs may take TC_PLAN_FULL; 0: it has none. */
static int64_t room(const struct tc_run *r)
{
  struct tc_device *d = r->device;
  int64_t left = 0, total = 0;
  if (!d->ops->separate || !d->ops->memory) return 0;
  d->ops->memory(d, &left, &total);
  left -= tc_run_for_others(total);
  return TC_MIN(total, (int64_t)((double)TC_MAX(left, 0) / TC_PLAN_FULL));
}

int tc_run_head_chunk(struct tc_run *r, double planned_bytes, struct tc_err *err)
{
  const struct tc_ranks *x = r->ranks;
  struct tc_config c = *r->cfg;
  if (r->opts.head_chunk > 0 || r->n_stages > 1 || r->opts.gpt.dtype != TC_BF16 || !tc_run_may_have_gpu(r)) return 0;
  int64_t least = room(r);
  if (planned_bytes > 0) least = TC_MIN(least, (int64_t)planned_bytes);
  least = -least;
  tc_at_phase("choosing loss chunks");
  TC_TRY(tc_comm_max_i64(r->world, &least, 1, err));
  c.train_precision = TC_BF16;
  int64_t rows = -tc_plan_head_chunk(&c, x->world, x->node_of_rank, tc_ranks_node_devices(x), (double)-least);
  TC_TRY(tc_comm_max_i64(r->world, &rows, 1, err));      /* each has read the annotation file by itself */
  r->opts.head_chunk = -rows;
  return 0;
}
