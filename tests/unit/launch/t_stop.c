/* t_stop - what signals ask for: each scenario in a process of its own, with a clock that jumps. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "src/launch/stop.h"
#include "tests/unit/tap.h"

static _Atomic int64_t jump_s;

/* The monotonic clock, with its jumps, in place of the C library's. */
int clock_gettime(clockid_t id, struct timespec *ts)
{
  int rc = (int)syscall(SYS_clock_gettime, id, ts);
  if (id == CLOCK_MONOTONIC) ts->tv_sec += atomic_load(&jump_s);
  return rc;
}

static void send(int number)
{
  sigset_t left;
  kill(getpid(), number);
  do {
    usleep(100);
    sigpending(&left);
  } while (sigismember(&left, number));
}

/* One letter for each signal: U(SR2), T(ERM), H(UP), I(NT). "+" is 11 s later, "-" 9 s; "A": the
 * status is agreed on; "s", at the beginning: until "r" nothing is there to be saved; "j": the ranks meet; "w": until the
 * process ends. Returns what was asked for, or does not return. */
static int play(const char *scene)
{
  static const struct { char letter; int number; } letters[] = {
    { 'U', SIGUSR2 }, { 'T', SIGTERM }, { 'H', SIGHUP }, { 'I', SIGINT } };
  struct tc_stop *s;
  bool agreed = false;
  const struct tc_stop_opts o = { .requests = true };
  TC_ASSERT(tc_stop_new(&s, &o, NULL) == 0);
  if (*scene != 's') tc_stop_run(s, NULL);
  for (const char *at = scene; *at; at++) {
    if (*at == '+') atomic_fetch_add(&jump_s, 11);
    if (*at == '-') atomic_fetch_add(&jump_s, 9);
    if (*at == 'A') tc_stop_agreed(s), agreed = true;
    if (*at == 'j') tc_stop_join(s);
    if (*at == 'r') tc_stop_run(s, NULL);
    if (*at == 'w') pause();
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++) {
      if (letters[i].letter != *at) continue;
      send(letters[i].number);
      /* It was received, but may not have had its effect yet. A second USR2, which changes nothing
       * once something was asked for, is received only after that. */
      for (int k = 0; k < 100000 && !tc_stop_asked(s) && !agreed; k++) usleep(100);
      send(SIGUSR2);
    }
  }
  return tc_stop_asked(s);
}

static void check(const char *scene, int ignored, int want_asked, int want_signal, const char *what)
{
  int status = -1;
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    for (int n = 1; n < 32; n++)
      if (n != SIGKILL && n != SIGSTOP && n != SIGALRM) signal(n, n == ignored ? SIG_IGN : SIG_DFL);
    tc_stop_block();
    if (ignored < 0) kill(getpid(), -ignored);   /* before main, by a wrapper that blocked it */
    if (ignored > 0) kill(getpid(), ignored);        /* without an effect */
    _exit(play(scene));
  }
  waitpid(pid, &status, 0);
  int got = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ok(got == want_signal && (got || WEXITSTATUS(status) == want_asked),
     "%s: %s (asked %d, ended by signal %d)", scene, what, got ? -1 : WEXITSTATUS(status), got);
}

int main(void)
{
  static const struct {
    const char *scene;
    int ignored, asked, signal;
    const char *what;
  } rows[] = {
    { "U", 0, TC_STOP_REQUEUE, 0, "requeue" },
    { "T", 0, TC_STOP_END, 0, "no requeue" },
    { "H", 0, TC_STOP_END, 0, "no requeue" },
    { "I", 0, TC_STOP_END, 0, "no requeue" },
    { "TTT-TIH", 0, TC_STOP_END, 0, "within 10 s the same request" },
    { "UT", 0, TC_STOP_END, 0, "within 10 s: no requeue is stronger" },
    { "TU", 0, TC_STOP_END, 0, "in either order" },
    { "T+T", 0, 0, SIGTERM, "later: ended at once" },
    { "H+I", 0, 0, SIGINT, "... by that signal" },
    { "I+H", 0, 0, SIGHUP, "... whichever it is" },
    { "T+U", 0, TC_STOP_END, 0, "a later USR2 ends nothing" },
    { "U+U+U", 0, TC_STOP_REQUEUE, 0, "however often" },
    { "U+T", 0, TC_STOP_REQUEUE, 0, "a time limit that was announced: still a requeue" },
    { "U+TIT", 0, TC_STOP_REQUEUE, 0, "... with what comes along" },
    { "U+T+T", 0, 0, SIGTERM, "... but then ended at once" },
    { "UT+T", 0, 0, SIGTERM, "... as after a TERM in the window" },
    { "TA+T+T", 0, TC_STOP_END, 0, "a status that is agreed on: TERM does not hide it" },
    { "TA+I", 0, 0, SIGINT, "... but others end what hangs" },
    { "sT", 0, 0, SIGTERM, "before there is something to save: ended at once" },
    { "sH", 0, 0, SIGHUP, "... by each of them" },
    { "sI", 0, 0, SIGINT, "... of the three" },
    { "sU", 0, -TC_STOPPED, 0, "... and by USR2 with 85" },
    { "srT", 0, TC_STOP_END, 0, "from then on a request" },
    { "sjTr", 0, TC_STOP_END, 0, "while the ranks meet, too" },
    { "sjT+w", 0, 0, SIGTERM, "... but ended if they do not" },
    { "sjU+w", 0, -TC_STOPPED, 0, "... by USR2 with 85" },
    { "sAT", 0, 0, 0, "a status that is agreed on before: TERM does not hide it" },
    { "sAU", 0, 0, 0, "... nor does USR2" },
    { "sAI", 0, 0, SIGINT, "... but others end what hangs" },
    { "sw", -SIGUSR2, -TC_STOPPED, 0, "a signal that was pending when the process began" },
    { "sw", -SIGTERM, 0, SIGTERM, "... of any kind" },
    { "T", SIGHUP, TC_STOP_END, 0, "HUP ignored (nohup) has no effect" },
    { "sT", SIGHUP, 0, SIGTERM, "... before there is something to save" },
    { "U", SIGTERM, TC_STOP_REQUEUE, 0, "nor an ignored TERM" },
  };
  sigset_t none;                   /* a shell may have blocked some */
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    check(rows[i].scene, rows[i].ignored, rows[i].asked, rows[i].signal, rows[i].what);
  return done_testing();
}
