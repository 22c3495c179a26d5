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

#include "src/base/arith.h"

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
  for (char *c = text; *c; c++)   /* names come from files: no line breaks, no terminal escapes */
    if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
  err->status = status;
  memcpy(err->text, text, sizeof text);
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

__attribute__((format(printf, 2, 0)))
static void log_line(const char *kind, const char *fmt, va_list ap)
{
  char line[2048];
  int n = log_rank >= 0 ? snprintf(line, sizeof line, "tercio[%d]: %s", log_rank, kind)
                        : snprintf(line, sizeof line, "tercio: %s", kind);
  int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
  if (m > 0) n = TC_MIN(n + m, (int)sizeof line - 2);
  line[n++] = '\n';
  /* A failure to log can't be reported anywhere. */
  ssize_t unused = write(STDERR_FILENO, line, (size_t)n);
  (void)unused;
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
