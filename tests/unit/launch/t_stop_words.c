/* t_stop_words.c - requests to stop, one after the other, with a clock of the test's own: what is
 * asked for after each, what is reported, which ends the process. Real signals are t_stop's. */
#include "src/base/base.h"
#include "tests/unit/tap.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

static int64_t now_ns;
static char logged[300];
static int ended;
static jmp_buf end;

static int64_t clock_ns(void) { return now_ns; }

TAP_FORMAT(1, 2)
static void note(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(logged, sizeof logged, fmt, ap);
  va_end(ap);
}

/* Its default action is restored by now, and it is let through. */
static int die(int number)
{
  struct sigaction a;
  sigset_t blocked;
  sigaction(number, NULL, &a);
  pthread_sigmask(SIG_BLOCK, NULL, &blocked);
  ended = a.sa_handler == SIG_DFL && !sigismember(&blocked, number) ? number : -1;
  longjmp(end, 1);
}

#define tc_now_ns clock_ns
#define tc_log note
#define raise die
#include "src/launch/stop.c"

#define SAVES ": saving and stopping after this step"
#define ENDS " again: ending at once; the newest checkpoint stays"

/* "T3" is SIGTERM 3 s after the first; "a" that the end was agreed on. */
static const struct {
  const char *what;
  bool say;
  int asked;
  bool late;
  int ended;
  const char *logged;
} rows[] = {
  { "T0", true, TC_STOP_END, false, 0, "SIGTERM" SAVES },
  { "U0", true, TC_STOP_REQUEUE, false, 0, "SIGUSR2" SAVES },
  { "H0", true, TC_STOP_END, false, 0, "SIGHUP" SAVES },
  { "I0", true, TC_STOP_END, false, 0, "SIGINT" SAVES },
  { "T0", false, TC_STOP_END, false, 0, "" },
  { "aI0", true, TC_STOP_END, false, 0, "" },
  { "aT0", true, TC_STOP_NONE, false, 0, "" },
  { "T0T9", true, TC_STOP_END, false, 0, "" },
  { "U0T9", true, TC_STOP_END, false, 0, "" },
  { "T0U9", true, TC_STOP_END, false, 0, "" },
  { "U0U9", true, TC_STOP_REQUEUE, false, 0, "" },
  { "T0T10", true, TC_STOP_END, false, SIGTERM, "SIGTERM" ENDS },
  { "T0I10", true, TC_STOP_END, false, SIGINT, "SIGINT" ENDS },
  { "T0H10", false, TC_STOP_END, false, SIGHUP, "" },
  { "T0U10", true, TC_STOP_END, false, 0, "" },
  { "U0T10", true, TC_STOP_REQUEUE, true, 0, "" },
  { "U0T10T19", true, TC_STOP_REQUEUE, true, 0, "" },
  { "U0T10T20", true, TC_STOP_REQUEUE, true, SIGTERM, "SIGTERM" ENDS },
  { "U0U10", true, TC_STOP_REQUEUE, false, 0, "" },
  { "U0U10T11", true, TC_STOP_REQUEUE, true, 0, "" },
  { "T0aT30", true, TC_STOP_END, false, 0, "" },
  { "T0aI30", true, TC_STOP_END, false, SIGINT, "SIGINT" ENDS },
};

static void get(struct tc_stop *s, char letter, int64_t after_s)
{
  static const struct {
    char letter;
    int number;
  } of[] = { { 'T', SIGTERM }, { 'U', SIGUSR2 }, { 'H', SIGHUP }, { 'I', SIGINT } };
  int number = 0;
  for (size_t k = 0; k < sizeof of / sizeof *of; k++)
    if (of[k].letter == letter) number = of[k].number;
  now_ns = (1000 + after_s) * INT64_C(1000000000);
  for (int k = 0; k < N_SIGNALS; k++)
    if (signals[k].number == number) receive(s, k);
}

/* Back at the end of it, or of the process. */
static void play(struct tc_stop *s, const char *what)
{
  ended = 0;
  if (setjmp(end)) return;
  while (*what) {
    const char letter = *what++;
    logged[0] = 0;
    if (letter == 'a')
      tc_stop_agreed(s);
    else
      get(s, letter, strtoll(what, (char **)&what, 10));
  }
}

int main(void)
{
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_stop s = { .say = rows[i].say };
    play(&s, rows[i].what);
    is_int(tc_stop_asked(&s), rows[i].asked, "%s: what is asked for", rows[i].what);
    is_int(s.late, rows[i].late, "... whether the end was asked for later");
    is_int(ended, rows[i].ended, "... what it is ended by");
    is_str(logged, rows[i].logged, "... what is reported of the last");
  }
  is_int(tc_stop_asked(NULL), TC_STOP_NONE, "no request");
  tc_stop_agreed(NULL);
  tc_stop_free(NULL);
  return done_testing();
}
