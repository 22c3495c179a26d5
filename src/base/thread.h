/* thread.h - threads with signals blocked, stacks for signal handlers, condition variables whose waits are timed by the
 * monotonic clock, and work that several threads share. */
#ifndef TC_THREAD_H
#define TC_THREAD_H

#include <pthread.h>
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

/* Local. The CPUs that this process may use. */
int tc_cpus(void);
/* Does part `part`; below 0, with the sentence in err: it failed. `thread` tells the threads apart that do so at the same
 * time: 0 is the one that called tc_each, all are below its `jobs`. */
typedef int tc_each_fn(void *ctx, int64_t part, int thread, struct tc_err *err);
/* Local. each.c. Calls fn(ctx, part, ...) for the parts 0 to n - 1, by up to `jobs` threads, of which the caller is one:
 * each takes the next part; by fewer where threads can't be started. Returns when all have ended: TC_OK, or what the
 * first part that failed returned, the first by its number. No part after it is begun once it has failed. */
int tc_each(int64_t n, int jobs, tc_each_fn *fn, void *ctx, struct tc_err *err);

#endif
