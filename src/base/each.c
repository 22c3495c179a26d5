/* each.c - work that is cut into numbered parts, by several threads: each takes the next part.
 *
 * Parts are begun in the order of their numbers, and none after one that has failed. So when the threads have ended, all
 * parts before the first that failed are done, and which one that is does not depend on the threads. */
#include <stdatomic.h>
#include <stdlib.h>

#include "src/base/base.h"

struct each {
  tc_each_fn *fn;
  void *ctx;
  atomic_llong next, end;         /* end: the number of parts, or the first that failed */
  pthread_mutex_t lock;
  int rc;                         /* what part `end` returned, and its sentence; under the lock */
  struct tc_err err;
};

struct worker { struct each *all; int number; pthread_t thread; };

static void note_failure(struct each *e, int64_t part, int rc, const struct tc_err *err)
{
  pthread_mutex_lock(&e->lock);
  if (part < atomic_load(&e->end)) {
    atomic_store(&e->end, part);
    e->rc = rc;
    e->err = *err;
  }
  pthread_mutex_unlock(&e->lock);
}

static void *work(void *arg)
{
  const struct worker *w = arg;
  struct each *e = w->all;
  for (int64_t part; (part = atomic_fetch_add(&e->next, 1)) < atomic_load(&e->end);) {
    struct tc_err err = { 0 };
    const int rc = e->fn(e->ctx, part, w->number, &err);
    if (rc < 0) note_failure(e, part, rc, &err);
  }
  return NULL;
}

int tc_each(int64_t n, int jobs, tc_each_fn *fn, void *ctx, struct tc_err *err)
{
  struct each e = { .fn = fn, .ctx = ctx, .lock = PTHREAD_MUTEX_INITIALIZER };
  const int most = (int)TC_MAX(1, TC_MIN(n, jobs));
  struct worker *w = tc_calloc((size_t)most, sizeof *w);
  int started = 1;
  atomic_init(&e.next, 0);
  atomic_init(&e.end, n);
  for (int i = 0; i < most; i++) w[i] = (struct worker){ .all = &e, .number = i };
  while (started < most && tc_thread_start(&w[started].thread, work, &w[started], NULL) == 0) started++;
  work(&w[0]);
  for (int i = 1; i < started; i++) pthread_join(w[i].thread, NULL);
  free(w);
  if (e.rc < 0) *err = e.err;
  return e.rc;
}
