/* cut.h - what a micro-batch's attention is cut into for cuDNN: calls of one graph. Plain C, so that it is tested without
 * cuDNN (t_cudnn_cut).
 *
 * A graph computes `batch` sequences at once, or so many groups of heads of one sequence: over several groups of several
 * queries heads are not evenly spaced, so these always go by groups. Within a group nothing is cut. Calls may overlap:
 * what two compute is computed whole by each, and the later one's stays. */
#ifndef TC_CUDNN_CUT_H
#define TC_CUDNN_CUT_H

#include <stdint.h>

#include "kernels/cudnn/attention.h"

struct tc_cudnn_cut {
  int groups;                    /* of one sequence; else whole sequences */
  int64_t batch;                 /* of these, in a call */
  int64_t parts, calls;          /* calls of a sequence's groups, or of all sequences; of the micro-batch */
};

/* Few calls of equal size with a workspace of at most s->workspace where one head needs head_bytes; of one sequence or
 * group it may be more. */
static inline struct tc_cudnn_cut tc_cudnn_cut_of(const struct tc_cudnn_shape *s, int64_t head_bytes)
{
  const int64_t sequence = s->groups * s->queries * head_bytes;
  struct tc_cudnn_cut c;
  c.groups = s->groups > 1 && (s->queries > 1 || sequence > s->workspace);
  const int64_t all = c.groups ? s->groups : s->batch, each = c.groups ? s->queries * head_bytes : sequence;
  const int64_t fit = each > 0 && s->workspace / each < all ? (s->workspace / each > 1 ? s->workspace / each : 1) : all;
  c.parts = (all + fit - 1) / fit;
  c.batch = (all + c.parts - 1) / c.parts;
  c.calls = c.parts * (c.groups ? s->batch : 1);
  return c;
}

/* The first sequence and group of call i. */
static inline void tc_cudnn_first(const struct tc_cudnn_shape *s, const struct tc_cudnn_cut *c, int64_t i,
                                  int64_t *sequence, int64_t *group)
{
  const int64_t all = c->groups ? s->groups : s->batch, part = i % c->parts * c->batch;
  const int64_t at = part + c->batch <= all ? part : all - c->batch;
  *sequence = c->groups ? i / c->parts : at;
  *group = c->groups ? at : 0;
}

#endif
