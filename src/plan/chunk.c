/* chunk.c - larger loss chunks for a layout that leaves memory. Each chunk adds to the gradient of the head's weights
 * in fp32, and its products fill a GPU only in part at their end: fewer chunks cost less of both. */
#include "src/plan/impl.h"

static const int64_t chunk_bytes = INT64_C(2) << 30;      /* the logits of a chunk, at most */

void tc_plan_chunk(struct tc_plan *p, struct tc_config *c, const struct tc_cluster *k)
{
  const int64_t row_bytes = 2 * tc_ceil_div(p->model.vocab, p->tp);
  struct tc_config larger = *c;
  struct tc_plan q;
  struct tc_err err = { 0 };
  if (c->parallel_head_chunk != TC_AUTO || tc_config_source(c, "parallel.head_chunk") != TC_FROM_DEFAULT
      || c->train_precision != TC_BF16 || tc_plan_is_cpu(&k->device)
      || p->micro * p->model.context * row_bytes <= tc_head_bytes(TC_BF16))
    return;
  for (larger.parallel_head_chunk = 1; 2 * larger.parallel_head_chunk * row_bytes <= chunk_bytes;)
    larger.parallel_head_chunk *= 2;
  if (tc_plan_layout(&q, &larger, p->world, k, p->exact, &err) < 0) return;
  const double bytes = (double)q.cls[q.worst].memory.bytes[TC_DEVICE];
  if (bytes > TC_PLAN_FULL * k->device.memory_bytes || q.time.step_s >= p->time.step_s) return;
  *p = q;
  *c = larger;
}
