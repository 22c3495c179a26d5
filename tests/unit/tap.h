/* tap.h - tests that print TAP (the Test Anything Protocol), for one .c file each.
 *
 *   ok(cond, "what %d", i)   is_int(got, want, "what")   is_str(got, want, "what")
 *   near_f(got, want, reltol, "what")   skip("why")   skip_all("why")
 *   return done_testing();
 *
 * Checks may be called by several threads. They return whether they passed. */
#ifndef TC_TAP_H
#define TC_TAP_H

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAP_UNUSED __attribute__((unused))
#define TAP_FORMAT(a, b) __attribute__((unused, format(printf, a, b)))

static int tap_count, tap_failed;

/* One line under stdout's lock, so that a number belongs to one check. What is buffered goes out first, so that the
 * line is written at once: messages on stderr are in the same file. */
TAP_FORMAT(2, 0)
static void tap_line(bool pass, const char *fmt, va_list ap)
{
  fflush(stdout);
  if (!pass) tap_failed++;
  printf("%sok %d - ", pass ? "" : "not ", ++tap_count);
  vprintf(fmt, ap);
  printf("\n");
}

TAP_FORMAT(2, 3)
static bool ok(bool pass, const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  flockfile(stdout);
  tap_line(pass, fmt, ap);
  fflush(stdout);
  funlockfile(stdout);
  va_end(ap);
  return pass;
}

TAP_FORMAT(3, 4)
static bool is_int(int64_t got, int64_t want, const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  flockfile(stdout);
  tap_line(got == want, fmt, ap);
  if (got != want) printf("#   got %" PRId64 ", want %" PRId64 "\n", got, want);
  fflush(stdout);
  funlockfile(stdout);
  va_end(ap);
  return got == want;
}

TAP_FORMAT(3, 4)
static bool is_str(const char *got, const char *want, const char *fmt, ...)
{
  bool pass = got && want ? strcmp(got, want) == 0 : got == want;
  va_list ap;
  va_start(ap, fmt);
  flockfile(stdout);
  tap_line(pass, fmt, ap);
  if (!pass)
    printf("#   got  \"%s\"\n#   want \"%s\"\n", got ? got : "(null)", want ? want : "(null)");
  fflush(stdout);
  funlockfile(stdout);
  va_end(ap);
  return pass;
}

/* |got - want| <= reltol * |want|; where want is 0: |got| <= reltol. NaN is near nothing. */
TAP_FORMAT(4, 5)
static bool near_f(double got, double want, double reltol, const char *fmt, ...)
{
  double diff = fabs(got - want), limit = want == 0 ? reltol : reltol * fabs(want);
  bool pass = got == want || diff <= limit;
  va_list ap;
  va_start(ap, fmt);
  flockfile(stdout);
  tap_line(pass, fmt, ap);
  if (!pass)
    printf("#   got %.9g, want %.9g: off by %.3g, allowed %.3g\n", got, want, diff, limit);
  fflush(stdout);
  funlockfile(stdout);
  va_end(ap);
  return pass;
}

/* In place of one check that can't run here. */
TAP_FORMAT(1, 2)
static void skip(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  flockfile(stdout);
  printf("ok %d # SKIP ", ++tap_count);
  vprintf(fmt, ap);
  printf("\n");
  fflush(stdout);
  funlockfile(stdout);
  va_end(ap);
}

/* Before the first check: the whole program can't run here. Does not return. */
TAP_UNUSED
_Noreturn static void skip_all(const char *reason)
{
  printf("1..0 # SKIP %s\n", reason);
  exit(0);
}

/* The plan, last. Returns main's status. */
TAP_UNUSED
static int done_testing(void)
{
  printf("1..%d\n", tap_count);
  if (tap_failed) printf("# %d of %d failed\n", tap_failed, tap_count);
  fflush(stdout);                     /* a sanitizer's report at exit would drop it */
  return tap_failed || tap_count == 0;
}

#endif
