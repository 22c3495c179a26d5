/* drawn.c - other layouts of a model and world, drawn. */
#include "src/prove/prove.h"

#include <stddef.h>
#include <string.h>

struct draws { uint64_t seed; uint32_t number, next; };

static int64_t below(struct draws *d, int64_t n)
{
  uint32_t r[4];
  tc_philox(r, d->seed, d->number, d->next++);
  return (int64_t)(r[0] % (uint64_t)TC_MAX(n, 1));
}

static bool chance(struct draws *d, int64_t in) { return below(d, in) == 0; }

/* A divisor of n, each as likely. */
static int64_t divisor(struct draws *d, int64_t n)
{
  int64_t count = 0, at = 0;
  for (int64_t k = 1; k <= n; k++) count += n % k == 0;
  const int64_t pick = below(d, count);
  for (int64_t k = 1; k <= n; k++)
    if (n % k == 0 && at++ == pick) return k;
  return 1;
}

static void draw_mesh(struct draws *d, struct tc_config *c, int64_t world)
{
  c->mesh_tp = divisor(d, world);
  c->mesh_cp = chance(d, 2) ? 1 : divisor(d, world / c->mesh_tp);
  c->mesh_pp = chance(d, 2) ? 1 : divisor(d, world / c->mesh_tp / c->mesh_cp);
  c->mesh_dp = world / c->mesh_tp / c->mesh_cp / c->mesh_pp;
  c->mesh_shard = chance(d, 3) ? divisor(d, c->mesh_dp) : TC_AUTO;
  c->mesh_tp_across_nodes = true;
  c->mesh_order = chance(d, 2) ? TC_TP_DP_PP : TC_TP_PP_DP;
  c->parallel_schedule = (int)below(d, TC_SCHEDULE_ZB + 1);
  c->parallel_context = chance(d, 2) ? TC_CONTEXT_KEYS : TC_CONTEXT_HEADS;
  c->parallel_zigzag = !chance(d, 4);
}

void tc_draw_layout(struct tc_config *out, const struct tc_config *cfg, int world, uint64_t seed, uint32_t number)
{
  struct draws d = { .seed = seed, .number = number };
  *out = *cfg;
  draw_mesh(&d, out, world);
  out->parallel_data = (int)below(&d, TC_DATA_ZERO3 + 1);
  out->parallel_sequence = out->mesh_tp > 1 && chance(&d, 2);
  out->train_recompute = chance(&d, 2) ? TC_RECOMPUTE_NONE : (int)below(&d, TC_RECOMPUTE_FULL + 1);
  out->parallel_offload = chance(&d, 4) ? (int)below(&d, TC_OFFLOAD_UPDATE + 1) : TC_OFFLOAD_NO;
  out->parallel_regather = chance(&d, 4);
  out->parallel_reduce = chance(&d, 4) ? TC_REDUCE_STEP : TC_REDUCE_AUTO;
  out->parallel_keep = chance(&d, 4) ? (int)below(&d, TC_AFTER_STEP + 1) : TC_AFTER_AUTO;
  out->parallel_unit = chance(&d, 4) ? TC_UNIT_BLOCK : TC_UNIT_LAYER;
  out->parallel_overlap = !chance(&d, 4);
  out->parallel_prefetch = below(&d, 4);
  const int64_t local = cfg->train_global_batch / out->mesh_dp;
  out->train_micro_batch = local > 0 && chance(&d, 2) ? divisor(&d, local) : 0;
}
