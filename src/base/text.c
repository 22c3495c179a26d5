/* text.c - strings: formatting, paths, "did you mean". */
#include "src/base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/arith.h"
#include "src/base/mem.h"

const char *tc_env(const char *name)
{
  const char *v = getenv(name);
  return v ? v : "";
}

char *tc_sprintf(const char *fmt, ...)
{
  char *s;
  va_list ap;
  va_start(ap, fmt);
  int n = vasprintf(&s, fmt, ap);
  va_end(ap);
  if (n < 0) tc_out_of_memory(0);
  return s;
}

char *tc_shell_word(const char *text)
{
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
  const char *here = *text == '-' ? "./" : "";
  if (*text && !text[strspn(text, plain)]) return tc_sprintf("%s%s", here, text);
  char *word = tc_malloc(4 * strlen(text) + 5), *to = stpcpy(stpcpy(word, "'"), here);
  for (; *text; text++)
    if (*text == '\'') to = stpcpy(to, "'\\''");
    else *to++ = *text;
  strcpy(to, "'");
  return word;
}

char *tc_folder_of(const char *path)
{
  char *p = tc_strdup(path);
  size_t n = strlen(p);
  while (n > 1 && p[n - 1] == '/') p[--n] = '\0';
  char *slash = strrchr(p, '/');
  if (!slash) {
    free(p);
    return tc_strdup(".");
  }
  if (slash == p) slash++;
  *slash = '\0';
  return p;
}

const char *tc_base_name(const char *path)
{
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

bool tc_ends_with(const char *text, const char *ending)
{
  const size_t n = strlen(text), k = strlen(ending);
  return n > k && strcmp(text + n - k, ending) == 0;
}

void tc_text_add(char *text, size_t size, const char *fmt, ...)
{
  size_t at = strlen(text);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text + at, size - at, fmt, ap);
  va_end(ap);
}

/* Optimal string alignment: insert, delete, replace, or swap two neighbours. */
static int edit_distance(const char *a, const char *b)
{
  enum { MAX = 63 };                         /* only the first MAX characters are compared */
  int d[MAX + 1][MAX + 1];
  int la = (int)strnlen(a, MAX), lb = (int)strnlen(b, MAX);
  for (int i = 0; i <= la; i++) d[i][0] = i;
  for (int j = 0; j <= lb; j++) d[0][j] = j;
  for (int i = 1; i <= la; i++) {
    for (int j = 1; j <= lb; j++) {
      int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      best = TC_MIN(best, TC_MIN(d[i - 1][j], d[i][j - 1]) + 1);
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        best = TC_MIN(best, d[i - 2][j - 2] + 1);
      d[i][j] = best;
    }
  }
  return d[la][lb];
}

int tc_word_index(const char *word, const char *const *list, int n)
{
  for (int i = 0; i < n; i++)
    if (!strcmp(word, list[i])) return i;
  return -1;
}

int tc_nearest(const char *word, const char *const *list, int n)
{
  int best = -1, least = TC_MAX(1, ((int)strlen(word) + 1) / 3) + 1;
  for (int i = 0; i < n; i++) {
    int d = edit_distance(word, list[i]);
    if (d >= least) continue;
    least = d;
    best = i;
  }
  return best;
}
