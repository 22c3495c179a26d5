/* script.h - for tests of a source whose calls are replaced (with #define, after its headers):
 * each call is recorded as a line of text, and one of those that may fail does. digest.h compares
 * the text of a scene that ran without a failure and with each call failing in turn. */
#ifndef TC_SCRIPT_H
#define TC_SCRIPT_H

#include "src/base/base.h"
#include "tests/unit/digest.h"

static struct {
  FILE *out;
  int at, status;              /* call `at`, from 1, fails with this status; 0: none fails */
  int n;                       /* calls so far that may fail */
  int64_t now;
  bool hit;                    /* call `at` was made */
} script;

TAP_FORMAT(1, 0)
static void record(const char *fmt, va_list ap)
{
  fputs("  ", script.out);
  vfprintf(script.out, fmt, ap);
  fputc('\n', script.out);
}

/* Records a call that cannot fail, or a result. */
TAP_FORMAT(1, 2)
static int note(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  record(fmt, ap);
  va_end(ap);
  return 0;
}

/* Records a call that may fail; its status. */
TAP_FORMAT(2, 3)
static int call(struct tc_err *err, const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  record(fmt, ap);
  va_end(ap);
  if (++script.n != script.at) return 0;
  script.hit = true;
  return tc_fail(err, script.status, "call %d failed", script.n);
}

/* A clock that advances by another amount each time it is read. */
static inline int64_t script_now(void)
{
  return script.now += 1000000 + script.now % 977 * 1001;
}

/* Runs a scene without a failure, then with each of its calls failing, in four ways; where calls
 * are many, with some of them. The text is owned by the caller. */
static char *script_play(void (*scene)(void *), void *ctx)
{
  static const int how[] = { TC_EUSER, TC_EPEER, TC_STOPPED, TC_ENDED };
  char *text = NULL;
  size_t bytes = 0;
  int all = 0;
  script.out = open_memstream(&text, &bytes);
  for (int h = 0; h < 4; h++)
    for (int at = h > 0; at <= 1 || script.hit; at += at < 12 ? 1 : 1 + all / 256 * 16) {
      script.at = at, script.status = how[h], script.n = 0, script.hit = false, script.now = 5;
      fprintf(script.out, "call %d fails with %d\n", at, how[h]);
      scene(ctx);
      if (!at) all = script.n;
    }
  fclose(script.out);
  return text;
}

#endif
