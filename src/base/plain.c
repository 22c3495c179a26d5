/* plain.c - text of others on a terminal.
 *
 * stdout is a stream of the C library whose writes come here, so that no printf can be forgotten. A character whose
 * bytes come in two writes is kept until it is whole. */
#include "src/base/plain.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/arith.h"

enum { MOST_OUT = 6 };           /* bytes that a unit, a character or a byte that is none, is printed as */

/* ---- a unit ---------------------------------------------------------------------------- */

int tc_utf8(const char *text, size_t n, uint32_t *code)
{
  static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
  const unsigned char *s = (const unsigned char *)text;
  const int want = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
  *code = want == 1 ? s[0] : s[0] & (0xffu >> (want + 1));
  for (int i = 1; i < want; i++) {
    if ((size_t)i == n) return -1;
    if ((s[i] & 0xc0) != 0x80) return 0;
    *code = *code << 6 | (s[i] & 0x3fu);
  }
  return *code < least[want] || (*code >= 0xd800 && *code < 0xe000) || *code > 0x10ffff ? 0 : want;
}

static bool is_control(uint32_t c, bool lines)
{
  if (c == '\n' || c == '\t') return !lines;
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x061c || c == 0x200e || c == 0x200f || c == 0xfeff ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

static void hex(char *to, int digits, uint32_t x)
{
  for (int i = digits - 1; i >= 0; i--, x >>= 4) to[i] = "0123456789abcdef"[x & 15];
}

/* The bytes of text[n] that the next unit takes, and what it is printed as; 0: more bytes are needed, unless `all` are
 * there. n > 0. By hand, since a signal handler cannot call printf. */
static int unit(const char *text, size_t n, bool all, bool lines, char out[MOST_OUT], int *n_out)
{
  uint32_t code;
  const int bytes = tc_utf8(text, n, &code);
  if (bytes < 0 && !all) return 0;
  if (bytes > 0 && !is_control(code, lines)) {
    memcpy(out, text, (size_t)bytes);
    *n_out = bytes;
    return bytes;
  }
  memcpy(out, bytes > 0 ? "\\u" : "\\x", 2);
  hex(out + 2, bytes > 0 ? 4 : 2, bytes > 0 ? code : (unsigned char)*text);
  *n_out = bytes > 0 ? 6 : 4;
  return TC_MAX(bytes, 1);
}

char *tc_plain(char *to, size_t size, const char *text, bool lines)
{
  const size_t n = strlen(text);
  size_t at = 0, done = 0;
  char out[MOST_OUT];
  for (int n_out; at < n; done += (size_t)n_out) {
    at += (size_t)unit(text + at, n - at, true, lines, out, &n_out);
    if (done + (size_t)n_out >= size) break;
    memcpy(to + done, out, (size_t)n_out);
  }
  to[done] = 0;
  return to;
}

/* ---- stdout ---------------------------------------------------------------------------- */

struct filter { char kept[4]; size_t n_kept; };     /* the begin of a character */

static bool write_all(const char *text, size_t n)
{
  while (n > 0) {
    const ssize_t done = write(STDOUT_FILENO, text, n);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    text += done;
    n -= (size_t)done;
  }
  return true;
}

/* A cookie_write_function_t. */
static ssize_t write_plain(void *filter, const char *text, size_t n)
{
  struct filter *f = filter;
  const size_t all = f->n_kept + n;
  char *in = malloc((MOST_OUT + 1) * all + 1), *out = in + all;      /* not tc_malloc: mem.c logs by err.c, which needs this file */
  if (!in) return 0;
  memcpy(in, f->kept, f->n_kept);
  memcpy(in + f->n_kept, text, n);
  size_t at = 0, done = 0;
  for (int took, n_out; at < all; at += (size_t)took, done += (size_t)n_out) {
    took = unit(in + at, all - at, false, true, out + done, &n_out);
    if (!took) break;
  }
  f->n_kept = all - at;
  memcpy(f->kept, in + at, f->n_kept);
  const bool good = write_all(out, done);
  const int why = errno;
  free(in);
  errno = why;
  return good ? (ssize_t)n : 0;
}

void tc_plain_stdout(void)
{
  static _Thread_local struct filter filter;     /* of the main thread, which lives as long as the stream */
  FILE *f = fopencookie(&filter, "w", (cookie_io_functions_t){ .write = write_plain });
  if (!f) return;                /* without memory nothing is printed but a sentence on stderr */
  if (isatty(STDOUT_FILENO)) setvbuf(f, NULL, _IOLBF, 0);
  stdout = f;
}
