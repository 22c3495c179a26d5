/* order.h - which samples a step takes, and where a validation reads.
 *
 * Pure functions of seed, step and place in the global batch, and of no rank, mesh or micro-batch: every
 * layout trains on the same samples, and a resumed run needs no state of an order. Invariants:
 * - a window is context + 1 tokens; window w of a stream starts at w * context. A validation reads the windows
 *   in their order;
 * - permutation: epoch e of a source is a bijection of its windows, keyed by (seed, source, e), so each
 *   window occurs once in an epoch: a Feistel network over the least power of two, whose values beyond the
 *   last window are mapped again until they are windows (cycle walking);
 * - draws: sequence b of step s starts at floor(x * n / 2^64), where x is the first 64 bits of
 *   Philox(key = seed, counter = (s, b)) and n = tokens - context is the number of places at which a
 *   whole sample fits. No start's probability is off by more than 2^-64;
 * - in a blend, sample i of the run (counted over all steps) belongs to the source that entry i mod period of a
 *   table names. After any number of samples each source has its share of them to within one. */
#ifndef TC_ORDER_H
#define TC_ORDER_H

#include <stdint.h>

/* Local, as all of these. The first token of sequence b of the global batch of `step` (from 1), in
 * 0 .. tokens - context - 1. tokens > context. */
int64_t tc_order_draw(uint64_t seed, int64_t step, int64_t b, int64_t tokens, int64_t context);
/* The window, 0 .. windows - 1, in place i (0 .. windows - 1) of an epoch. */
int64_t tc_order_window(uint64_t seed, int source, int64_t epoch, int64_t i, int64_t windows);
/* The number of windows of context + 1 tokens. */
int64_t tc_order_windows(int64_t tokens, int64_t context);

enum { TC_BLEND_PERIOD = 65536 };          /* at most */
struct tc_blend {
  int n, period;
  int32_t *count;                /* [n] samples of each source in a period; owned */
  int32_t *source, *before;      /* [period] of each sample: its source, and how many of it come before; owned */
};
/* Shares are the weights (> 0) over their sum, rounded to multiples of 1 / period where no period makes them
 * exact. Returns -1, or the first source whose share is too small for any sample in a period. */
int tc_blend_new(struct tc_blend *b, const double *weight, int n);
void tc_blend_free(struct tc_blend *b);
/* The source of sample i of the run (from 0); returns its number among the samples of this source. */
int64_t tc_blend_at(const struct tc_blend *b, int64_t i, int *source);
/* How many of the first n samples are of the source. */
int64_t tc_blend_taken(const struct tc_blend *b, int source, int64_t n);

#endif
