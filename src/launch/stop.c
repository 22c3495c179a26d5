/* stop.c - the thread that receives signals, and what they do.
 *
 * Invariants:
 * - the signals are blocked in every thread, so that each is taken by this one's sigwait;
 * - `phase` and `asked` only grow; the fields after `agreed` belong to the thread;
 * - the thread waits for nothing but signals: no lock, no reader of its messages. */
#include "src/files/output.h"
#include "src/launch/stop.h"

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum phase { STARTING, JOINING, RUNNING, ENDING };    /* ENDING: no rank goes on */

struct tc_stop {
  struct tc_stop_opts o;
  sigset_t set;                   /* those that are received */
  atomic_int phase, asked;
  atomic_bool agreed;
  _Atomic(const char *) saying;
  int64_t since_ns, int_ns;       /* the begin of the window; the first INT, 0: none */
  bool late;                      /* the window is that of the signal that enforces a USR2 */
  int joining;                    /* index of a signal that came while ranks met; -1: none */
};

static const struct { int number; const char *name; int kind; } signals[] = {
  { SIGUSR2, "SIGUSR2", TC_STOP_REQUEUE }, { SIGTERM, "SIGTERM", TC_STOP_END },
  { SIGHUP, "SIGHUP", TC_STOP_END }, { SIGINT, "SIGINT", TC_STOP_END },
};
enum { N_SIGNALS = sizeof signals / sizeof *signals, TICK_NS = 50000000, REMOVE_S = 3 };

/* Blocked then means: not ignored when the process began. */
void tc_stop_block(void)
{
  sigset_t taken, ignored;
  struct sigaction now;
  sigemptyset(&taken);
  sigemptyset(&ignored);
  for (int i = 0; i < N_SIGNALS; i++)
    if (sigaction(signals[i].number, NULL, &now) == 0)
      sigaddset(now.sa_handler == SIG_IGN ? &ignored : &taken, signals[i].number);
  pthread_sigmask(SIG_BLOCK, &taken, NULL);
  pthread_sigmask(SIG_UNBLOCK, &ignored, NULL);
}

void tc_stop_unblock(void)
{
  sigset_t set;
  sigemptyset(&set);
  for (int i = 0; i < N_SIGNALS; i++) sigaddset(&set, signals[i].number);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* Those that are blocked. The others were ignored when the process began, and are again: a library may have taken
 * them. */
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

/* By the default action, so that the status tells which signal it was. A dead file system may hold up what comes
 * before: another such signal (unless there is a status), or an alarm, ends the process meanwhile. */
_Noreturn void tc_stop_end(int number, int status)
{
  sigset_t open;
  sigemptyset(&open);
  sigaddset(&open, SIGALRM);
  signal(SIGALRM, SIG_DFL);
  if (status <= 0) {              /* else another one must not take the status away */
    sigaddset(&open, number);
    signal(number, SIG_DFL);
  }
  pthread_sigmask(SIG_UNBLOCK, &open, NULL);
  alarm(REMOVE_S);
  tc_output_remove_unfinished();
  if (status > 0) _exit(status);
  raise(number);
  _exit(128 + number);            /* the first process of a container outlives it */
}

/* A line on stderr, if it can be written without waiting: a full pipe may be why the run is to end. */
__attribute__((format(printf, 2, 3)))
static void tell(const struct tc_stop *s, const char *fmt, ...)
{
  char line[200];
  struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };
  if (!s->o.say || poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT)) return;
  va_list ap;
  va_start(ap, fmt);
  const int n = vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  ssize_t unused = write(STDERR_FILENO, line, (size_t)TC_MIN(n, (int)sizeof line - 1));
  (void)unused;
}

/* Ends the process, unless it has left `phase` meanwhile. */
static void end_start(struct tc_stop *s, int i, int phase)
{
  if (!atomic_compare_exchange_strong(&s->phase, &phase, ENDING)) return;
  const bool requeue = s->o.requests && signals[i].kind == TC_STOP_REQUEUE;
  if (requeue)
    tell(s, "tercio: %s: there is nothing new to save yet; exit status %d: run the same command again\n",
         signals[i].name, -TC_STOPPED);
  tc_stop_end(signals[i].number, requeue ? -TC_STOPPED : 0);
}

static void tell_request(const struct tc_stop *s, int i)
{
  const bool person = s->o.alone && signals[i].number == SIGINT;
  const char *saying = atomic_load(&s->saying);
  if (saying && !atomic_load(&s->agreed))
    tell(s, "tercio: %s: %s%s\n", signals[i].name, saying, person ? "; Ctrl-C again ends at once" : "");
}

/* A person's second Ctrl-C; a terminal and a wrapper may both deliver the first. */
static bool is_second_int(struct tc_stop *s, int i, int64_t now)
{
  if (!s->o.alone || signals[i].number != SIGINT) return false;
  if (!s->int_ns) s->int_ns = now;
  return now - s->int_ns >= TC_STOP_AGAIN_NS;
}

static void receive(struct tc_stop *s, int i)
{
  const int64_t now = tc_now_ns();
  const int kind = signals[i].kind, before = atomic_load(&s->asked);
  const bool second = is_second_int(s, i, now);
  if (atomic_load(&s->agreed) && (signals[i].number == SIGTERM || kind == TC_STOP_REQUEUE)) return;
  end_start(s, i, STARTING);
  if (!before) {
    atomic_store(&s->asked, kind);
    s->since_ns = now;
    if (atomic_load(&s->phase) == JOINING) s->joining = i;
    else tell_request(s, i);
  } else if (now - s->since_ns < TC_STOP_WINDOW_NS && !second) {
    if (kind > before && s->joining >= 0) s->joining = i;      /* which ends the start, if ranks do not meet */
    if (!s->late) atomic_store(&s->asked, TC_MAX(before, kind));
  } else if (before == TC_STOP_REQUEUE && kind == TC_STOP_END && !s->late && !second) {
    s->since_ns = now;
    s->late = true;
  } else if (kind == TC_STOP_END) {
    tell(s, "tercio: %s again: ending at once; the newest checkpoint stays\n", signals[i].name);
    tc_stop_end(signals[i].number, 0);
  }
}

/* A signal came while ranks met: have they? */
static void look_at_joining(struct tc_stop *s)
{
  if (atomic_load(&s->phase) == JOINING && tc_now_ns() - s->since_ns < TC_STOP_JOIN_NS) return;
  if (!atomic_load(&s->agreed)) end_start(s, s->joining, JOINING);
  tell_request(s, s->joining);
  s->joining = -1;
}

static void *wait_for_signals(void *arg)
{
  struct tc_stop *s = arg;
  const struct timespec tick = { 0, TICK_NS };
  for (;;) {
    const int number = s->joining < 0 ? sigwaitinfo(&s->set, NULL) : sigtimedwait(&s->set, NULL, &tick);
    for (int i = 0; i < N_SIGNALS; i++)
      if (signals[i].number == number) receive(s, i);
    if (s->joining >= 0) look_at_joining(s);
  }
  return NULL;
}

int tc_stop_new(struct tc_stop **out, const struct tc_stop_opts *o, struct tc_err *err)
{
  pthread_t thread;
  struct tc_stop *s = tc_calloc(1, sizeof *s);
  *out = NULL;
  s->o = *o;
  s->set = handled_signals();
  s->joining = -1;
  atomic_init(&s->phase, STARTING);
  atomic_init(&s->asked, TC_STOP_NONE);
  atomic_init(&s->agreed, false);
  atomic_init(&s->saying, NULL);
  int rc = tc_thread_start(&thread, wait_for_signals, s, err);
  if (rc < 0) free(s);
  else pthread_detach(thread), *out = s;
  return rc;
}

/* Threads of one process may come here in any order; none returns where a signal ends the process. */
static void reach(struct tc_stop *s, int phase)
{
  int now = s ? atomic_load(&s->phase) : RUNNING;
  while (now < phase && !atomic_compare_exchange_weak(&s->phase, &now, phase)) { }
  while (now == ENDING) pause();
}

void tc_stop_join(struct tc_stop *s) { reach(s, JOINING); }

void tc_stop_run(struct tc_stop *s, const char *saying)
{
  if (s) atomic_store(&s->saying, saying);
  reach(s, RUNNING);
}

int tc_stop_asked(const struct tc_stop *s) { return s ? atomic_load(&s->asked) : TC_STOP_NONE; }

void tc_stop_agreed(struct tc_stop *s)
{
  if (s) atomic_store(&s->agreed, true);
}
