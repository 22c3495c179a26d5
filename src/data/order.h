/* order.h - where in a list of tokens the samples of a step, and of a validation, start.
 *
 * Pure functions, without state. Invariants:
 * - sequence b of step s starts at floor(x * n / 2^64), where x is the first 64 bits of
 *   Philox(key = seed, counter = (s, b)) and n = tokens - context is the number of places at which a
 *   whole sample (context + 1 tokens) fits. No start's probability is off by more than 2^-64;
 * - so a start depends on the seed, the step and the place in the global batch, and on no rank, mesh or
 *   micro-batch: every layout trains on the same samples, and a resumed run needs no state of an order;
 * - validation reads the list once, in windows of `context` tokens that do not overlap. */
#ifndef TC_ORDER_H
#define TC_ORDER_H

#include <stdint.h>

/* Local. The first token of sequence b of the global batch of `step` (from 1), in
 * 0 .. tokens - context - 1. tokens > context. */
int64_t tc_order_train(uint64_t seed, int64_t step, int64_t b, int64_t tokens, int64_t context);
/* Local. The number of validation windows, each with its targets; window i starts at i * context. */
int64_t tc_order_windows(int64_t tokens, int64_t context);

#endif
