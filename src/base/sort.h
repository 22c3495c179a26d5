/* sort.h - orders for qsort, and medians. */
#ifndef TC_SORT_H
#define TC_SORT_H

#include <stdint.h>

/* Local. For qsort: double, int64_t and char * in rising order. */
int tc_order_double(const void *a, const void *b);
int tc_order_i64(const void *a, const void *b);
int tc_order_text(const void *a, const void *b);
/* Local. The median of x[n], which is sorted by this; n > 0. Of two in the middle their mean; of
 * integers the lower. */
double tc_median(double *x, int n);
int64_t tc_median_i64(int64_t *x, int n);

#endif
