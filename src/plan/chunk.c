/* chunk.c - the rows of a loss chunk where parallel.head_chunk is auto, on GPUs in bf16. Each chunk adds to the gradient
 * of the head's weights in fp32, and its products fill a GPU only in part at their end: fewer chunks cost less of both.
 *
 * A run and its plan choose alike: both call tc_plan_head_chunk, with the same bytes of memory. */
#include "src/plan/impl.h"

#include <math.h>
#include <stdlib.h>

static const int64_t chunk_bytes = INT64_C(2) << 30;      /* the logits of a chunk on a rank, at most */

/* tokens: of a micro-batch on a rank; row_bytes: of a token's logits on a rank of tp. Without making a program. */
static int find_sizes(int64_t *tokens, int64_t *row_bytes, const struct tc_config *c, int world,
                      const int32_t *node_of_rank, int devices_per_node)
{
  struct tc_err err = { 0 };
  struct tc_model model;
  struct tc_mesh *m;
  TC_TRY(tc_setup_model(c, &model, &err));
  TC_TRY(tc_setup_axes(&m, c, world, node_of_rank, devices_per_node, &err));
  *tokens = (c->train_micro_batch > 0 ? c->train_micro_batch : c->train_global_batch / tc_mesh_size(m, TC_ON_DP)) *
            model.context / tc_mesh_size(m, TC_ON_CP);
  *row_bytes = 2 * tc_ceil_div(model.vocab, tc_mesh_size(m, TC_ON_TP));
  tc_mesh_free(m);
  return 0;
}

static bool leaves_room(const struct tc_plan *p, double memory_bytes)
{ return (double)p->cls[p->worst].memory.bytes[TC_DEVICE] <= TC_PLAN_FULL * memory_bytes; }

/* The same with times if k is there; then *out is the layout with that chunk. */
static int64_t choose(struct tc_plan *out, const struct tc_config *c, int world, const int32_t *node_of_rank,
                      int devices_per_node, const struct tc_cluster *k, double memory_bytes)
{
  struct tc_config larger = *c;
  struct tc_err err = { 0 };
  int64_t tokens, row_bytes, rows = 1;
  if (c->parallel_head_chunk != TC_AUTO || c->train_precision != TC_BF16
      || find_sizes(&tokens, &row_bytes, c, world, node_of_rank, devices_per_node) < 0
      || tokens * row_bytes <= tc_head_bytes(TC_BF16))
    return 0;
  while (rows < tokens && 2 * rows * row_bytes <= chunk_bytes) rows *= 2;
  for (; rows * row_bytes > tc_head_bytes(TC_BF16); rows /= 2) {
    larger.parallel_head_chunk = rows;
    if (tc_plan_layout_on(out, &larger, world, node_of_rank, devices_per_node, k, false, &err) < 0) return 0;
    if (leaves_room(out, memory_bytes)) return rows;
  }
  return 0;
}

int64_t tc_plan_head_chunk(const struct tc_config *c, int world, const int32_t *node_of_rank, int devices_per_node,
                           double memory_bytes)
{
  struct tc_plan p;
  return choose(&p, c, world, node_of_rank, devices_per_node, NULL, memory_bytes);
}

/* A layout that does not fit with small chunks has no larger ones: so either may be tried first. Of one that seems to have room for
 * the large ones, by `guess_bytes`, these. */
static int plan_estimated(struct tc_plan *out, const struct tc_config *c, int world, const int32_t *node, int each,
                          const struct tc_cluster *k, double guess_bytes, int64_t *rows, struct tc_err *err)
{
  const double memory = k->device.memory_bytes;
  const bool large_first = guess_bytes + 3 * (double)chunk_bytes <= TC_PLAN_FULL * memory;
  struct tc_plan larger;
  if (large_first && (*rows = choose(out, c, world, node, each, k, memory)) > 0) return 0;
  TC_TRY(tc_plan_layout_on(out, c, world, node, each, k, false, err));
  if (large_first || !leaves_room(out, memory)) return 0;
  *rows = choose(&larger, c, world, node, each, k, memory);
  if (*rows > 0) *out = larger;
  return 0;
}

static int plan_layout(struct tc_plan *out, const struct tc_config *c, int world, const struct tc_cluster *k, bool exact,
                       double guess_bytes, struct tc_err *err)
{
  const int each = k ? TC_MAX(k->devices, 1) : world;
  const bool gpu = k && !tc_plan_is_cpu(&k->device);
  struct tc_config own = *c;
  int64_t rows = 0;
  int32_t *node = tc_calloc((size_t)world, sizeof *node);
  int rc;
  for (int i = 0; i < world; i++) node[i] = i / each;
  if (gpu && !exact) {
    rc = plan_estimated(out, c, world, node, each, k, guess_bytes, &rows, err);
  } else {
    if (gpu) rows = tc_plan_head_chunk(c, world, node, each, k->device.memory_bytes);
    if (rows > 0) own.parallel_head_chunk = rows;
    rc = tc_plan_layout_on(out, &own, world, node, each, k, exact, err);
  }
  out->head_chunk = rows > 0 ? rows : TC_MAX(c->parallel_head_chunk, 0);
  free(node);
  return rc;
}

int tc_plan_layout(struct tc_plan *out, const struct tc_config *c, int world, const struct tc_cluster *k, bool exact,
                   struct tc_err *err)
{
  return plan_layout(out, c, world, k, exact, INFINITY, err);
}

int tc_plan_layout_guessed(struct tc_plan *out, const struct tc_config *c, int world, const struct tc_cluster *k,
                           double guess_bytes, struct tc_err *err)
{
  return plan_layout(out, c, world, k, false, guess_bytes, err);
}
