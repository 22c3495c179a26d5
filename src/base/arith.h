/* arith.h - minimum, maximum, rounding up, divisors, comparison functions for qsort, and medians. */
#ifndef TC_ARITH_H
#define TC_ARITH_H

#include <stdint.h>

#define TC_MIN(a, b) ((a) < (b) ? (a) : (b))
#define TC_MAX(a, b) ((a) > (b) ? (a) : (b))
static inline int64_t tc_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t tc_round_up(int64_t a, int64_t b) { return tc_ceil_div(a, b) * b; }

/* Local. The largest divisor of n > 0 that is at most `most`; 0: none. */
int64_t tc_divisor(int64_t n, int64_t most);
/* Local. Comparison functions for qsort: double, int64_t and char * in ascending order. */
int tc_order_double(const void *a, const void *b);
int tc_order_i64(const void *a, const void *b);
int tc_order_text(const void *a, const void *b);
/* Local. The median of x[n], n > 0; sorts x. For an even n the mean of the two middle elements; of
 * integers, the lower one. */
double tc_median(double *x, int n);
int64_t tc_median_i64(int64_t *x, int n);

#endif
