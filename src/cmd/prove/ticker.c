/* ticker.c - a line of progress each second. */
#include "src/cmd/prove/prove.h"

#include <string.h>
#include <unistd.h>

static void *tick(void *arg)
{
  struct tc_ticker *t = arg;
  pthread_mutex_lock(&t->lock);
  for (int64_t next = t->begin_ns; !t->stop;) {
    next += INT64_C(1000000000);
    while (!t->stop && tc_now_ns() < next) tc_cond_wait_until(&t->stopped, &t->lock, next);
    if (t->stop) break;
    const long long s = (long long)((tc_now_ns() - t->begin_ns) / 1000000000);
    tc_say(t->terminal ? "\r" : "", t->terminal ? "\033[K" : "\n", "%lld s: %s", s, t->what);
  }
  pthread_mutex_unlock(&t->lock);
  return NULL;
}

int tc_ticker_start(struct tc_ticker *t, struct tc_err *err)
{
  *t = (struct tc_ticker){ .terminal = isatty(STDERR_FILENO), .begin_ns = tc_now_ns(), .what = "reading the run" };
  pthread_mutex_init(&t->lock, NULL);
  tc_cond_init(&t->stopped);
  return tc_thread_start(&t->thread, tick, t, err);
}

void tc_ticker_stop(struct tc_ticker *t)
{
  pthread_mutex_lock(&t->lock);
  t->stop = true;
  pthread_cond_signal(&t->stopped);
  pthread_mutex_unlock(&t->lock);
  pthread_join(t->thread, NULL);
  tc_ticker_clear(t);
}

void tc_ticker_clear(struct tc_ticker *t)
{
  if (t->terminal) tc_say("\r", "\033[K", "%s", "");
}

void tc_ticker_say(void *ticker, const char *what)
{
  struct tc_ticker *t = ticker;
  pthread_mutex_lock(&t->lock);
  snprintf(t->what, sizeof t->what, "%s", what);
  pthread_mutex_unlock(&t->lock);
}
