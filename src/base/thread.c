/* thread.c - starting threads, alternate stacks for signal handlers, and timed waits.
 *
 * Signals that request something are handled by the program's own threads, so every thread started here
 * blocks them. Crash signals stay unblocked: a blocked one would end the process without its error
 * line. Waits use the monotonic clock, so that setting the time of day neither shortens nor lengthens
 * them. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "src/base/base.h"

enum { STACK_BYTES = 64 * 1024 };

struct start { void *(*fn)(void *); void *arg; int rank; };

static size_t stack_bytes(void)
{
  long least = sysconf(_SC_MINSIGSTKSZ);         /* depends on the size of the CPU's vector registers */
  return TC_MAX((size_t)STACK_BYTES, (size_t)TC_MAX(least, 0) + STACK_BYTES / 2);
}

void *tc_signal_stack_new(void)
{
  void *p = mmap(NULL, stack_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  stack_t s = { .ss_sp = p, .ss_size = stack_bytes() };
  if (sigaltstack(&s, NULL) == 0) return p;
  munmap(p, stack_bytes());
  return NULL;
}

void tc_signal_stack_free(void *stack)
{
  const stack_t none = { .ss_flags = SS_DISABLE };
  if (!stack) return;
  sigaltstack(&none, NULL);
  munmap(stack, stack_bytes());
}

static void *run(void *arg)
{
  struct start s = *(struct start *)arg;
  free(arg);
  tc_log_set_rank(s.rank);
  void *stack = tc_signal_stack_new();
  void *result = s.fn(s.arg);
  tc_signal_stack_free(stack);
  return result;
}

int tc_thread_start(pthread_t *t, void *(*fn)(void *), void *arg, struct tc_err *err)
{
  static const int crash[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS };
  sigset_t all, old;
  struct start *s = tc_malloc(sizeof *s);
  *s = (struct start){ fn, arg, tc_log_rank() };
  sigfillset(&all);
  for (size_t i = 0; i < sizeof crash / sizeof *crash; i++) sigdelset(&all, crash[i]);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int rc = pthread_create(t, NULL, run, s);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (rc == 0) return 0;
  free(s);
  return tc_fail(err, TC_EUSER, "cannot start a thread: %s: a limit on processes or on memory is "
                 "too low (ulimit -u, pids.max, ulimit -v)", strerror(rc));
}

int tc_cpus(void)
{
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return TC_MAX(1, (int)sysconf(_SC_NPROCESSORS_ONLN));       /* more CPUs than the set holds */
}

void tc_cond_init(pthread_cond_t *c)
{
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(c, &attr);
  pthread_condattr_destroy(&attr);
}

int tc_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, int64_t until_ns)
{
  const struct timespec t = { (time_t)(until_ns / 1000000000), (long)(until_ns % 1000000000) };
  return pthread_cond_timedwait(c, lock, &t);
}
