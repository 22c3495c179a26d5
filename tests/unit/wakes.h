/* wakes.h - counts what the source included behind it does with conditions: signals, broadcasts,
 * and conditions made to wait by the monotonic clock. */
#ifndef TC_WAKES_H
#define TC_WAKES_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static atomic_int signals, broadcasts, monotonic;

static int new_cond(pthread_cond_t *c, const pthread_condattr_t *attr)
{
  clockid_t clock = CLOCK_REALTIME;
  if (attr) pthread_condattr_getclock(attr, &clock);
  monotonic += clock == CLOCK_MONOTONIC;
  return pthread_cond_init(c, attr);
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

#define pthread_cond_init new_cond
#define pthread_cond_signal wake_one
#define pthread_cond_broadcast wake_all

#endif
