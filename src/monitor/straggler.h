/* straggler.h - straggler detection: finds the rank that computes longest, and warns if a single rank
 * slows all others down.
 *
 * A rank's work time is its step time without waits for transfers. Ranks of one stage have equal work,
 * so each is compared with the median of its stage; the only rank of a stage is compared with its
 * own fastest window of steps. */
#ifndef TC_STRAGGLER_H
#define TC_STRAGGLER_H

#include "src/base/base.h"

struct tc_straggler;

struct tc_straggler_opts {
  int world;
  const int32_t *stage, *node;   /* [world]; copied */
  const char *const *rank_names; /* [world] "rank 3 on node2"; borrowed */
  int min_steps;                 /* the minimum length of a window of steps; 0: 20 */
  int64_t min_ns;                /* ... and of its work time; 0: 2 s */
};

/* Local. */
struct tc_straggler *tc_straggler_new(const struct tc_straggler_opts *o);
void tc_straggler_free(struct tc_straggler *s);

/* The rank with the largest ratio of its work time to its stage's median, in one step. */
struct tc_slowest { int rank; int64_t work_ns, median_ns; };

/* Local. work_ns[world]: each rank's work time in one step. After two windows in which a rank took more than
 * 1.5 times its stage's median, and when this ends, returns a sentence (borrowed until the
 * next call), once per change and at a limited rate; else NULL. */
const char *tc_straggler_step(struct tc_straggler *s, int64_t step, const int64_t *work_ns,
                         struct tc_slowest *slowest);

#endif
