/* samples.h - samples of figures (src/metrics), for tests that write them out: initializers of struct tc_sample. */
#ifndef TC_TEST_SAMPLES_H
#define TC_TEST_SAMPLES_H

#include "src/metrics/metrics.h"

#define INT(m, n) { .metric = TC_METRIC_##m, .there = TC_THERE, .type = TC_METRIC_INT, .integer = n }
#define REAL(m, at, x) { .metric = TC_METRIC_##m, .member = at, .there = TC_THERE, .type = TC_METRIC_REAL, .real = x }
#define TEXT(m, at, x) { .metric = TC_METRIC_##m, .member = at, .there = TC_THERE, .type = TC_METRIC_TEXT, .text = x }
#define WORD(m, a, b, n) \
  { .metric = TC_METRIC_##m, .there = TC_THERE, .type = TC_METRIC_INT, .integer = n, .word = { a, b } }
#define NOT(m, a, b, how) { .metric = TC_METRIC_##m, .there = how, .word = { a, b } }

#endif
