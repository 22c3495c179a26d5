/* stop.c - the thread that receives signals, and what they ask for.
 *
 * Invariants:
 * - the signals are blocked in every thread, so that each is taken by this one's sigwait;
 * - since_ns and late belong to the thread; others read `asked`, which only grows. */
#include "src/launch/stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

struct tc_stop {
  pthread_t thread;
  sigset_t set;                   /* those that are received */
  bool say;
  atomic_int asked;
  atomic_bool agreed, quit;
  int64_t since_ns;               /* the begin of the window */
  bool late;                      /* the window is that of the signal that enforces a USR2 */
};

static const struct { int number; const char *name; int kind; } signals[] = {
  { SIGUSR2, "SIGUSR2", TC_STOP_REQUEUE }, { SIGTERM, "SIGTERM", TC_STOP_END },
  { SIGHUP, "SIGHUP", TC_STOP_END }, { SIGINT, "SIGINT", TC_STOP_END },
};
enum { N_SIGNALS = sizeof signals / sizeof *signals };

void tc_stop_block(void)
{
  sigset_t set;
  struct sigaction now;
  sigemptyset(&set);
  for (int i = 0; i < N_SIGNALS; i++)
    if (sigaction(signals[i].number, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
      sigaddset(&set, signals[i].number);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
}

void tc_stop_unblock(void)
{
  sigset_t set;
  sigemptyset(&set);
  for (int i = 0; i < N_SIGNALS; i++) sigaddset(&set, signals[i].number);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* Those that are blocked. The others were ignored when the process began, and are again. */
static sigset_t handled_signals(void)
{
  sigset_t set, blocked;
  sigemptyset(&set);
  pthread_sigmask(SIG_BLOCK, NULL, &blocked);
  for (int i = 0; i < N_SIGNALS; i++)
    if (sigismember(&blocked, signals[i].number)) sigaddset(&set, signals[i].number);
    else signal(signals[i].number, SIG_IGN);
  return set;
}

/* By the default action, so that the status tells which signal it was. */
static void end_at_once(int number)
{
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  signal(number, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &one, NULL);
  raise(number);
  _exit(128 + number);            /* the first process of a container outlives it */
}

static void receive(struct tc_stop *s, int i)
{
  const int64_t now = tc_now_ns();
  const int kind = signals[i].kind, before = atomic_load(&s->asked);
  if (atomic_load(&s->agreed) && signals[i].number == SIGTERM) return;
  if (!before) {
    atomic_store(&s->asked, kind);
    s->since_ns = now;
    if (s->say && !atomic_load(&s->agreed))
      tc_log("%s: saving and stopping after this step", signals[i].name);
  } else if (now - s->since_ns < TC_STOP_WINDOW_NS) {
    if (!s->late) atomic_store(&s->asked, TC_MAX(before, kind));
  } else if (before == TC_STOP_REQUEUE && kind == TC_STOP_END && !s->late) {
    s->since_ns = now;
    s->late = true;
  } else if (kind == TC_STOP_END) {
    if (s->say) tc_log("%s again: ending at once; the newest checkpoint stays", signals[i].name);
    end_at_once(signals[i].number);
  }
}

static void *wait_for_signals(void *arg)
{
  struct tc_stop *s = arg;
  sigset_t set = s->set;
  int number;
  sigaddset(&set, SIGUSR2);       /* tc_stop_free wakes this thread by it */
  while (sigwait(&set, &number) == 0 && !atomic_load(&s->quit))
    for (int i = 0; i < N_SIGNALS; i++)
      if (signals[i].number == number && sigismember(&s->set, number)) receive(s, i);
  return NULL;
}

int tc_stop_new(struct tc_stop **out, bool say, struct tc_err *err)
{
  struct tc_stop *s = tc_calloc(1, sizeof *s);
  *out = NULL;
  s->set = handled_signals();
  s->say = say;
  atomic_init(&s->asked, TC_STOP_NONE);
  atomic_init(&s->agreed, false);
  atomic_init(&s->quit, false);
  int rc = tc_thread_start(&s->thread, wait_for_signals, s, err);
  if (rc < 0) free(s);
  else *out = s;
  return rc;
}

int tc_stop_asked(const struct tc_stop *s) { return s ? atomic_load(&s->asked) : TC_STOP_NONE; }

void tc_stop_agreed(struct tc_stop *s)
{
  if (s) atomic_store(&s->agreed, true);
}

void tc_stop_free(struct tc_stop *s)
{
  if (!s) return;
  atomic_store(&s->quit, true);
  pthread_kill(s->thread, SIGUSR2);
  pthread_join(s->thread, NULL);
  free(s);
}
