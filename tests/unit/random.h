/* random.h - random numbers for tests, the same for a seed on every machine. */
#ifndef TC_TEST_RANDOM_H
#define TC_TEST_RANDOM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/base.h"
#include "tests/unit/seed.h"

static uint64_t random_state = 1;

/* In [0, 1). */
static inline double uniform(void)
{
  random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (double)(random_state >> 11) / 9007199254740992.0;
}

static inline int64_t draw(int64_t least, int64_t most)
{
  return least + (int64_t)(uniform() * (double)(most - least + 1));
}

/* --cases N and --seed N of the command line: sets and prints the seed, by default test_seed's. Returns the number
 * of cases, by default `cases`. */
static inline int begin_cases(int argc, char **argv, int cases)
{
  uint64_t seed = test_seed(false);
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!strcmp(argv[i], "--cases")) cases = atoi(argv[i + 1]);
    if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[i + 1], NULL, 10);
  }
  printf("# --seed %llu\n", (unsigned long long)seed);
  random_state = seed * 2 + 1;
  for (int i = 0; i < 20; i++) uniform();
  return cases;
}

#endif
