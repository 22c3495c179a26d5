/* sort.h - comparison functions for qsort, and medians. */
#ifndef TC_SORT_H
#define TC_SORT_H

#include <stdint.h>

/* Local. Comparison functions for qsort: double, int64_t and char * in ascending order. */
int tc_order_double(const void *a, const void *b);
int tc_order_i64(const void *a, const void *b);
int tc_order_text(const void *a, const void *b);
/* Local. The median of x[n], n > 0; sorts x. For an even n the mean of the two middle elements; of
 * integers, the lower one. */
double tc_median(double *x, int n);
int64_t tc_median_i64(int64_t *x, int n);

#endif
