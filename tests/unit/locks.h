/* locks.h - counts the locks that the source included behind it takes and lets go. */
#ifndef TC_LOCKS_H
#define TC_LOCKS_H

#include <pthread.h>
#include <stdatomic.h>

#include "src/base/base.h"

/* Locks held now, and the fewest at any time: below 0 if one was unlocked that was not held. */
static atomic_int locks, least_locks;

static int lock(pthread_mutex_t *m)
{
  locks++;
  return pthread_mutex_lock(m);
}

static int unlock(pthread_mutex_t *m)
{
  locks--;
  least_locks = TC_MIN(least_locks, locks);
  return pthread_mutex_unlock(m);
}

#define pthread_mutex_lock lock
#define pthread_mutex_unlock unlock

#endif
