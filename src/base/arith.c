/* arith.c - divisors, comparison functions for qsort, and medians. */
#include "src/base/arith.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/err.h"

int64_t tc_divisor(int64_t n, int64_t most)
{
  int64_t q = most > 0 ? tc_ceil_div(n, most) : n + 1, k;
  for (; q <= n / q; q++)
    if (n % q == 0) return n / q;
  for (k = TC_MIN(n / q, most); k > 0 && n % k; k--) { }
  return k;
}

int tc_order_double(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return isnan(x) || isnan(y) ? !!isnan(x) - !!isnan(y) : (x > y) - (x < y);
}

int tc_order_i64(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

int tc_order_text(const void *a, const void *b)
{
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

double tc_median(double *x, int n)
{
  TC_ASSERT(n > 0);
  qsort(x, (size_t)n, sizeof *x, tc_order_double);
  return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

int64_t tc_median_i64(int64_t *x, int n)
{
  TC_ASSERT(n > 0);
  qsort(x, (size_t)n, sizeof *x, tc_order_i64);
  return x[(n - 1) / 2];
}
