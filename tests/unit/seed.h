/* seed.h - the seed of what a test draws: SEED of the environment, which tests/run --fresh sets; else 1, so that
 * `make check` draws the same every time, or in a long form (--full) one of the clock. */
#ifndef TC_TEST_SEED_H
#define TC_TEST_SEED_H
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

static inline uint64_t test_seed(bool long_form)
{
  const char *given = getenv("SEED");
  if (given && *given) return strtoull(given, NULL, 10);
  struct timespec now = { 0 };
  if (long_form) clock_gettime(CLOCK_REALTIME, &now);
  return 1 + (uint64_t)now.tv_nsec / 1000;
}

#endif
