/* t_thread.c - threads that are started here (src/base/thread.c): their signals and rank, the stack of
 * their signal handlers, which is given back, and what is left when one of the calls fails. */
#include "src/base/base.h"
#include "tests/unit/tap.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

/* Mappings there are; calls of free. */
static _Atomic int maps, freed;
/* Which call fails; how many bytes signals need at least, where not 0. */
static struct { bool map, alt, create; int64_t least; } fails;
static size_t mapped, unmapped; /* bytes, the last time */
static void *at, *given;        /* their addresses */

static void *map(void *p, size_t bytes, int prot, int flags, int fd, off_t off)
{
  if (fails.map) return MAP_FAILED;
  maps++;
  mapped = bytes;
  return at = mmap(p, bytes, prot, flags, fd, off);
}

static int unmap(void *p, size_t bytes)
{
  maps--;
  given = p;
  unmapped = bytes;
  return munmap(p, bytes);
}

static int alternate(const stack_t *s, stack_t *old)
{
  return fails.alt ? -1 : sigaltstack(s, old);
}

static int create(pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg)
{
  return fails.create ? EAGAIN : pthread_create(t, a, fn, arg);
}

static long limit(int what)
{
  return fails.least && what == _SC_MINSIGSTKSZ ? (long)fails.least : sysconf(what);
}

static void drop(void *p)
{
  freed += p != NULL;
  free(p);
}

#define mmap map
#define munmap unmap
#define sigaltstack alternate
#define pthread_create create
#define sysconf limit
#define free drop
#include "src/base/thread.c"
#undef sigaltstack
#undef free

struct seen {
  int rank, maps;
  sigset_t blocked;
  stack_t stack;
};

static void *look(void *arg)
{
  struct seen *s = arg;
  s->rank = tc_log_rank();
  s->maps = maps;
  pthread_sigmask(SIG_BLOCK, NULL, &s->blocked);
  sigaltstack(NULL, &s->stack);
  return &s->rank;
}

static bool disabled(void)
{
  stack_t now;
  sigaltstack(NULL, &now);
  return now.ss_flags == SS_DISABLE;
}

static void test_stack(void)
{
  static const struct { int64_t least; size_t bytes; } row[] = {
    { 1, 65536 }, { 32768, 65536 }, { 32769, 65537 }, { 200000, 232768 }, { -1, 65536 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    fails.least = row[i].least;
    void *p = tc_signal_stack_new();
    stack_t now;
    sigaltstack(NULL, &now);
    ok(p && now.ss_sp == p && now.ss_size == row[i].bytes && mapped == row[i].bytes &&
           !now.ss_flags,
       "a stack where signals need %lld bytes", (long long)row[i].least);
    tc_signal_stack_free(p);
    ok(disabled() && maps == 0 && given == p && unmapped == mapped, "... is given back");
  }
  fails.least = 0;
  void *p = tc_signal_stack_new();
  tc_signal_stack_free(NULL);
  ok(!disabled() && maps == 1, "no stack, nothing to give back");
  tc_signal_stack_free(p);
  fails.map = true;
  ok(!tc_signal_stack_new() && maps == 0 && disabled(), "no memory, no stack");
  fails.map = false;
  fails.alt = true;
  ok(!tc_signal_stack_new() && maps == 0 && given == at && unmapped == mapped,
     "a stack that is refused");
  fails.alt = false;
}

static void test_thread(void)
{
  static const int let_through[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS };
  struct seen s = { .rank = -9 };
  struct tc_err err = { 0 };
  pthread_t t;
  sigset_t before, now;
  void *result = NULL;
  sigemptyset(&before);
  sigaddset(&before, SIGUSR1);
  sigaddset(&before, SIGSEGV);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  tc_log_set_rank(7);
  is_int(tc_thread_start(&t, look, &s, &err), 0, "a thread");
  pthread_join(t, &result);
  ok(result == &s.rank && s.rank == 7,
     "... has what it was given, its starter's rank, and a result");
  ok(s.maps == 1 && s.stack.ss_sp && !s.stack.ss_flags && maps == 0,
     "... and a stack for its handlers while it runs");
  is_int(freed, 1, "... what it was started with is freed");
  int wrong = 0;
  for (int n = 1; n < 32; n++) {
    bool crash = false;
    for (size_t i = 0; i < sizeof let_through / sizeof *let_through; i++)
      crash |= n == let_through[i];
    wrong += n != SIGKILL && n != SIGSTOP && sigismember(&s.blocked, n) != !crash;
  }
  is_int(wrong, 0, "... all signals are blocked in it but those of crashes");
  pthread_sigmask(SIG_BLOCK, NULL, &now);
  ok(!memcmp(&before, &now, 8), "... and in its starter none besides");
  fails.create = true;
  is_int(tc_thread_start(&t, look, &s, &err), TC_EUSER, "one that cannot be started");
  is_str(err.text, "cannot start a thread: Resource temporarily unavailable: a limit on processes or "
         "on memory is too low (ulimit -u, pids.max, ulimit -v)", "... this is the error");
  is_int(freed, 2, "... nothing is left");
  pthread_sigmask(SIG_BLOCK, NULL, &now);
  ok(!memcmp(&before, &now, 8), "... and the signals are as before");
}

int main(void)
{
  const char *sanitized = getenv("TC_SANITIZED");
  if (sanitized && !strcmp(sanitized, "yes")) skip_all("sanitizers have such stacks of their own");
  alarm(300);
  test_stack();
  test_thread();
  return done_testing();
}
