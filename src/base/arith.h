/* arith.h - minimum, maximum and rounding up. */
#ifndef TC_ARITH_H
#define TC_ARITH_H

#include <stdint.h>

#define TC_MIN(a, b) ((a) < (b) ? (a) : (b))
#define TC_MAX(a, b) ((a) > (b) ? (a) : (b))
static inline int64_t tc_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t tc_round_up(int64_t a, int64_t b) { return tc_ceil_div(a, b) * b; }

#endif
