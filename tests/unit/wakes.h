/* wakes.h - counts what the source included behind it does with conditions: signals, broadcasts,
 * and conditions made for timed waits. */
#ifndef TC_WAKES_H
#define TC_WAKES_H

#include <pthread.h>
#include <stdatomic.h>

#include "src/base/thread.h"

static atomic_int signals, broadcasts, monotonic;

static void new_cond(pthread_cond_t *c)
{
  monotonic++;
  tc_cond_init(c);
}

static int wake_one(pthread_cond_t *c)
{
  signals++;
  return pthread_cond_signal(c);
}

static int wake_all(pthread_cond_t *c)
{
  broadcasts++;
  return pthread_cond_broadcast(c);
}

#define tc_cond_init new_cond
#define pthread_cond_signal wake_one
#define pthread_cond_broadcast wake_all

#endif
