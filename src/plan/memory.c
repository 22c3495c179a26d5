/* memory.c - the memory of a rank: the arenas' sizes, as a run allocates them. The programs of a run share
 * state; scratch is the maximum over programs; each program's transfers have their own staging. */
#include "src/plan/plan.h"
#include "src/program/predict.h"

#include <string.h>

void tc_plan_memory(struct tc_plan_memory *out, struct tc_program *const *programs, int n, int rank)
{
  const struct tc_arena *a = programs[0]->arena;
  int64_t scratch[TC_REGIONS] = { 0 };
  memset(out, 0, sizeof *out);
  memcpy(out->by_class, a->by_class, sizeof out->by_class);
  for (int i = 0; i < n; i++) {
    if (!programs[i]) continue;
    for (int r = 0; r < TC_REGIONS; r++)
      scratch[r] = TC_MAX(scratch[r], programs[i]->arena->bytes[r]);
    out->staging_bytes += tc_program_staging(programs[i], programs[i]->mesh, rank);
  }
  out->by_class[TC_DEVICE][TC_CLS_ACT] += scratch[TC_SCRATCH] - a->bytes[TC_SCRATCH];
  out->by_class[TC_DEVICE][TC_CLS_STAGING] += out->staging_bytes;
  out->state_bytes = a->bytes[TC_STATE];
  out->scratch_bytes = scratch[TC_SCRATCH];
  out->bytes[TC_DEVICE] = out->state_bytes + out->scratch_bytes + out->staging_bytes;
  out->bytes[TC_HOST] = a->bytes[TC_HOST_STATE] + scratch[TC_HOST_SCRATCH];
}
