/* straggler.h - straggler detection: which rank works longest, and a warning when it is one rank
 * that slows all others down.
 *
 * A rank's work is its step without the waits for transfers. Ranks of one stage do the same work,
 * so each is compared with the median of its stage; the only rank of a stage is compared with its
 * own fastest window of steps. */
#ifndef TC_STRAGGLER_H
#define TC_STRAGGLER_H

#include "src/base/base.h"

struct tc_straggler;

struct tc_straggler_opts {
  int world;
  const int32_t *stage, *node;   /* [world]; copied */
  const char *const *who;        /* [world] "rank 3 on node2"; borrowed */
  int min_steps;                 /* of a window of steps that are looked at together; 0: 20 */
  int64_t min_ns;                /* ... and its work; 0: 2 s */
};

/* Local. */
struct tc_straggler *tc_straggler_new(const struct tc_straggler_opts *o);
void tc_straggler_free(struct tc_straggler *s);

/* The rank that worked longest in one step, for its stage: the largest work / median. */
struct tc_slowest { int rank; int64_t work_ns, median_ns; };

/* Local. One step's work of each rank, work_ns[world]. After two windows in which a rank took more
 * than 1.5 times its stage's median, and when it is over, returns a sentence (borrowed until the
 * next call), once a change and seldom; else NULL. */
const char *tc_straggler_step(struct tc_straggler *s, int64_t step, const int64_t *work_ns,
                         struct tc_slowest *slowest);

#endif
