/* threads.c - preloaded into the program: no more than TC_THREADS_MAX threads at a time besides the
 * first, as under a limit on processes; what is beyond fails with EAGAIN. With TC_TAKES_HUP it takes
 * SIGHUP for itself when it is loaded, as UCX does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

static atomic_int running;

struct start { void *(*fn)(void *); void *arg; };

static void *run(void *arg)
{
  struct start s = *(struct start *)arg;
  free(arg);
  void *result = s.fn(s.arg);
  atomic_fetch_sub(&running, 1);
  return result;
}

int pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
  int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  const char *most = getenv("TC_THREADS_MAX");
  struct start *s = malloc(sizeof *s);
  *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
  if (!s || (most && atomic_fetch_add(&running, 1) >= atoi(most))) {
    if (s) atomic_fetch_sub(&running, 1);
    free(s);
    return EAGAIN;
  }
  *s = (struct start){ fn, arg };
  const int rc = real(t, attr, run, s);
  if (rc != 0) {
    atomic_fetch_sub(&running, 1);
    free(s);
  }
  return rc;
}

static void nothing(int number) { (void)number; }

__attribute__((constructor)) static void take_hup(void)
{
  if (getenv("TC_TAKES_HUP")) signal(SIGHUP, nothing);
}
