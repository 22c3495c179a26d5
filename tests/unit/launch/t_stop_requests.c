/* t_stop_requests.c - requests to stop, one after the other, with a clock of the test's own: what is
 * asked for after each, what is reported, which ends the process. Real signals are t_stop's. */
#include "src/base/base.h"
#include "tests/unit/tap.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

static int64_t now_ns;
static char logged[300];
static int ended;
static jmp_buf end;

static int64_t clock_ns(void) { return now_ns; }

static short readable;                           /* what poll answers: whether stderr takes a line */

static int ask(struct pollfd *p, unsigned long n, int ms)
{
  p->revents = readable;
  return n == 1 && ms == 0 && p->fd == STDERR_FILENO && readable;
}

static ssize_t note(int fd, const void *line, size_t bytes)
{
  const char *begin = "tercio: ", *text = line;
  const size_t skip = strlen(begin);
  if (bytes <= skip || strncmp(text, begin, skip) != 0) return -1;
  snprintf(logged, sizeof logged, "%.*s", (int)(bytes - skip) - 1, text + skip);     /* without the line's end */
  return fd == STDERR_FILENO ? (ssize_t)bytes : -1;
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

static _Noreturn void leave(int status)
{
  ended = 1000 + status;
  longjmp(end, 1);
}

static int removed;                /* how often unfinished files were */
static void remove_files(void) { removed++; }

#define tc_output_remove_unfinished remove_files
#define tc_now_ns clock_ns
#define poll ask
#define write note
#define raise die
#define _exit leave
#include "src/launch/stop.c"
#undef _exit

#define SAYING "saving and stopping after this step"
#define SAVES ": " SAYING
#define ENDS " again: ending at once; the newest checkpoint stays"
#define AGAIN "; Ctrl-C again ends at once"
#define NOTHING ": there is nothing new to save yet; exit status 85: run the same command again"

/* "T3" is SIGTERM 3 s after the first; "t" that 3 s have passed; "a" that the end was agreed on, "j" that the ranks meet
 * before the first step, "r" that it begins: without one of these at its beginning a row begins there. "s": a row
 * begins before that. "A": no launcher started the process; "Q": stderr takes no line; "d": the command takes no
 * requests. 1085: the process ends with status 85. */
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
  { "U0aU0", true, TC_STOP_REQUEUE, false, 0, "" },
  { "QT0", true, TC_STOP_END, false, 0, "" },
  { "QT0T10", true, TC_STOP_END, false, SIGTERM, "" },
  /* starting */
  { "sT0", true, TC_STOP_NONE, false, SIGTERM, "" },
  { "sH0", true, TC_STOP_NONE, false, SIGHUP, "" },
  { "sI0", true, TC_STOP_NONE, false, SIGINT, "" },
  { "sU0", true, TC_STOP_NONE, false, 1085, "SIGUSR2" NOTHING },
  { "sU0", false, TC_STOP_NONE, false, 1085, "" },
  { "sQU0", true, TC_STOP_NONE, false, 1085, "" },
  { "sdU0", true, TC_STOP_NONE, false, SIGUSR2, "" },
  { "saT0", true, TC_STOP_NONE, false, 0, "" },
  { "saU0", true, TC_STOP_NONE, false, 0, "" },
  { "saI0", true, TC_STOP_NONE, false, SIGINT, "" },
  { "srT0", true, TC_STOP_END, false, 0, "SIGTERM" SAVES },
  /* while ranks meet */
  { "sjT0", true, TC_STOP_END, false, 0, "" },
  { "sjT0t1", true, TC_STOP_END, false, 0, "" },
  { "sjT0t2", true, TC_STOP_END, false, SIGTERM, "" },
  { "sjU0t2", true, TC_STOP_REQUEUE, false, 1085, "SIGUSR2" NOTHING },
  { "sjT0rt1", true, TC_STOP_END, false, 0, "SIGTERM" SAVES },
  { "sjT0rt2", true, TC_STOP_END, false, 0, "SIGTERM" SAVES },
  { "sjT0at2", true, TC_STOP_END, false, 0, "" },
  { "sjT0rt1T10", true, TC_STOP_END, false, SIGTERM, "SIGTERM" ENDS },
  /* a person */
  { "AI0", true, TC_STOP_END, false, 0, "SIGINT" SAVES AGAIN },
  { "AI0I0", true, TC_STOP_END, false, 0, "" },
  { "AI0I1", true, TC_STOP_END, false, SIGINT, "SIGINT" ENDS },
  { "I0I1", true, TC_STOP_END, false, 0, "" },
  { "AT0T1", true, TC_STOP_END, false, 0, "" },
  { "AT0I1", true, TC_STOP_END, false, 0, "" },
  { "AT0I1I2", true, TC_STOP_END, false, SIGINT, "SIGINT" ENDS },
  { "AU0I1", true, TC_STOP_END, false, 0, "" },
  { "AU0I1I2", true, TC_STOP_END, false, SIGINT, "SIGINT" ENDS },
  { "AU0I11", true, TC_STOP_REQUEUE, true, 0, "" },
  { "AU0I11I12", true, TC_STOP_REQUEUE, true, SIGINT, "SIGINT" ENDS },
  { "AI0U1", true, TC_STOP_END, false, 0, "" },
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
  ended = removed = 0;
  readable = POLLOUT;
  logged[0] = 0;
  if (setjmp(end)) return;
  if (*what == 's') what++;
  else tc_stop_run(s, SAYING);
  while (*what) {
    const char letter = *what++;
    if (strchr("aTUHI", letter)) logged[0] = 0;
    switch (letter) {
    case 'A': s->o.alone = true; break;
    case 'Q': readable = 0; break;
    case 'd': s->o.requests = false; break;
    case 'a': tc_stop_agreed(s); break;
    case 'j': tc_stop_join(s); break;
    case 'r': tc_stop_run(s, SAYING); break;
    case 't':
      now_ns = (1000 + strtoll(what, (char **)&what, 10)) * INT64_C(1000000000);
      if (s->joining >= 0) look_at_joining(s);
      break;
    default: get(s, letter, strtoll(what, (char **)&what, 10));
    }
  }
}

int main(void)
{
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_stop s = { .o = { .say = rows[i].say, .requests = true }, .joining = -1 };
    play(&s, rows[i].what);
    is_int(tc_stop_asked(&s), rows[i].asked, "%s: what is asked for", rows[i].what);
    is_int(s.late, rows[i].late, "... whether the end was asked for later");
    is_int(ended, rows[i].ended, "... what it is ended by");
    is_int(removed, rows[i].ended != 0, "... unfinished files are removed then");
    is_str(logged, rows[i].logged, "... what is reported of the last");
  }
  is_int(tc_stop_asked(NULL), TC_STOP_NONE, "no request");
  tc_stop_agreed(NULL);
  tc_stop_join(NULL);
  tc_stop_run(NULL, NULL);
  return done_testing();
}
