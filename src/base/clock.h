/* clock.h - the monotonic clock, and the time of day as text. */
#ifndef TC_CLOCK_H
#define TC_CLOCK_H

#include <stddef.h>
#include <stdint.h>

int64_t tc_now_ns(void);                          /* monotonic */
void tc_sleep_ns(int64_t ns);

/* Local. The time of day in UTC, by ISO 8601: "2024-05-31T12:34:56Z" into text[size]. */
void tc_iso_time(char *text, size_t size);

#endif
