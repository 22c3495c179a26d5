/* clock.c - the monotonic clock, and the time of day as text. */
#include "src/base/clock.h"

#include <errno.h>
#include <time.h>

int64_t tc_now_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void tc_sleep_ns(int64_t ns)
{
  if (ns <= 0) return;
  struct timespec t = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
  while (clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR)
    continue;
}

void tc_iso_time(char *text, size_t size)
{
  time_t t = time(NULL);
  struct tm tm;
  strftime(text, size, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
}
