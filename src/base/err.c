/* err.c - error sentences, log lines and assertions.
 *
 * The rank that the log lines of a thread begin with is thread-local, since ranks may be threads
 * of one process. A line is written by one call, so that lines of different ranks never mix. */
#include "src/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/plain.h"

static _Thread_local int log_rank = -1;

int tc_fail(struct tc_err *err, int status, const char *fmt, ...)
{
  TC_ASSERT(status < 0);
  if (!err) return status;
  /* Formatted into a buffer first, since the arguments may point into err->text. */
  char text[sizeof err->text];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  tc_plain(err->text, sizeof err->text, text, false);
  err->status = status;
  return status;
}

int tc_say_failure(const struct tc_err *err)
{
  TC_ASSERT(err->status < 0);
  tc_log("%s", err->text);
  return -err->status;
}

void tc_log_set_rank(int rank)
{
  log_rank = rank;
}

int tc_log_rank(void)
{
  return log_rank;
}

enum { LINE = 2048, ENDS = 64 };

/* One write of all of it. */
static void put_line(const char *begin, const char *text, const char *end)
{
  char line[LINE];
  const size_t n = (size_t)snprintf(line, ENDS, "%s", begin), n_end = strnlen(end, ENDS);
  tc_plain(line + n, sizeof line - n - n_end, text, false);
  const size_t n_text = strlen(line + n);
  memcpy(line + n + n_text, end, n_end);
  /* A failure to log can't be reported anywhere. */
  ssize_t unused = write(STDERR_FILENO, line, n + n_text + n_end);
  (void)unused;
}

__attribute__((format(printf, 2, 0)))
static void log_line(const char *kind, const char *fmt, va_list ap)
{
  char text[LINE], begin[ENDS];
  if (log_rank >= 0) snprintf(begin, sizeof begin, "tercio[%d]: %s", log_rank, kind);
  else snprintf(begin, sizeof begin, "tercio: %s", kind);
  vsnprintf(text, sizeof text, fmt, ap);
  put_line(begin, text, "\n");
}

void tc_say(const char *begin, const char *end, const char *fmt, ...)
{
  char text[LINE];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  put_line(begin, text, end);
}

void tc_log(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  log_line("", fmt, ap);
  va_end(ap);
}

void tc_warn(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  log_line("warning: ", fmt, ap);
  va_end(ap);
}

_Noreturn void tc_assert_fail(const char *cond, const char *file, int line)
{
  fflush(stdout);
  tc_log("bug: %s:%d: assertion failed: %s", file, line, cond);
  abort();
}
