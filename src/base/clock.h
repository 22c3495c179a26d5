/* clock.h - the monotonic clock. */
#ifndef TC_CLOCK_H
#define TC_CLOCK_H

#include <stdint.h>

int64_t tc_now_ns(void);                          /* monotonic */
void tc_sleep_ns(int64_t ns);

#endif
