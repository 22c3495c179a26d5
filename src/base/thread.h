/* thread.h - threads that leave signals to the program's own, and stacks for signal handlers. */
#ifndef TC_THREAD_H
#define TC_THREAD_H

#include <pthread.h>

#include "src/base/err.h"

/* Local. Starts a thread that runs fn(arg), with all signals blocked except those of a crash, with
 * the caller's log rank and a signal stack. TC_EUSER if it can't be started; err may be NULL. */
int tc_thread_start(pthread_t *t, void *(*fn)(void *), void *arg, struct tc_err *err);
/* Local. A stack for the calling thread's signal handlers, so that the overflow of its stack
 * can be reported; NULL without memory, which _free takes. Freed by the same thread. */
void *tc_signal_stack_new(void);
void tc_signal_stack_free(void *stack);

#endif
