/* bins.h - samples into windows, so that few of them are needed: bin packing.
 *
 * Best fit decreasing (Johnson et al., "Worst-case performance bounds for simple one-dimensional packing algorithms", SIAM J.
 * Comput. 3, 1974): from the largest sample to the smallest, each goes into the window in which least room is left behind it. A
 * pure function: every rank finds the same windows. */
#ifndef TC_DATA_BINS_H
#define TC_DATA_BINS_H

#include <stdint.h>

struct tc_bins {
  int64_t n;                      /* windows */
  int64_t *begin;                 /* [n + 1] where each one's samples begin; owned */
  int32_t *sample;                /* [begin[n]] their numbers, in a window the largest first; owned */
};

/* Local. size[n], each from 1 to room; n < 2^31. Takes O(n) steps, each of log64(room). */
void tc_bins_fill(struct tc_bins *b, const int32_t *size, int64_t n, int64_t room);
void tc_bins_free(struct tc_bins *b);

#endif
