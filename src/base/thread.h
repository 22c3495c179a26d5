/* thread.h - threads with signals blocked, stacks for signal handlers, and condition variables
 * whose waits are timed by the monotonic clock. */
#ifndef TC_THREAD_H
#define TC_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "src/base/err.h"

/* Local. Starts a thread that runs fn(arg), with all signals blocked except those of a crash, and with
 * the caller's log rank and a signal stack. TC_EUSER if it can't be started; err may be NULL. */
int tc_thread_start(pthread_t *t, void *(*fn)(void *), void *arg, struct tc_err *err);
/* Local. An alternate stack for the calling thread's signal handlers, so that a stack overflow can be
 * reported; NULL if out of memory, which _free accepts. The same thread must free it. */
void *tc_signal_stack_new(void);
void tc_signal_stack_free(void *stack);

/* Local. Initialises a condition variable for timed waits. */
void tc_cond_init(pthread_cond_t *c);
/* Local. Waits with *lock held until the condition is signalled or the clock (clock.h) shows
 * until_ns; may return earlier. Returns 0, or ETIMEDOUT where the time has passed. */
int tc_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, int64_t until_ns);

#endif
