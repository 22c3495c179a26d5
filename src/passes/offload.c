/* offload.c - places the optimizer's state, and weights whose store and use placements differ, in host memory: also where
 * they differ on axes of one rank alone, so that a single rank has less on its device.
 * The copies for their use are made where placements are inferred (insert_reshards.c). */
#include "src/passes/passes.h"
#include "src/model/optim.h"

int tc_offload(struct tc_graph *g, enum tc_offload offload, struct tc_err *err)
{
  bool any = false;
  for (int32_t i = 0; i < g->n_params && offload; i++) {
    struct tc_param *p = &g->param[i];
    bool elsewhere = p->apart || !tc_layout_equal(&p->store, &p->use);
    p->offload = (uint8_t)offload;
    any |= tc_update_states(p) > 0 || elsewhere || p->master != p->weight;
    if (p->master != p->weight) g->tensor[p->master].space = TC_HOST;
    if (elsewhere) g->tensor[p->weight].space = TC_HOST;
  }
  if (offload && !any)
    return tc_fail(err, TC_EUSER, "parallel.offload: there is nothing to offload: weights are "
                   "stored where they are used and train.optimizer keeps no state; "
                   "parallel.data = zero3 stores weights elsewhere");
  return 0;
}
