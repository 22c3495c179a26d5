/* rows.c - texts whose lines are rows of words. */
#include "src/files/rows.h"
#include "src/base/base.h"

#include <string.h>

#define BLANKS " \t\r\n\v\f"

/* Splits the line into words, in place. */
static int split(char *line, char *word[TC_ROW_WORDS])
{
  char *save = NULL;
  int n = 0;
  line[strcspn(line, "#")] = '\0';
  for (char *w = strtok_r(line, BLANKS, &save); w; w = strtok_r(NULL, BLANKS, &save)) {
    if (n < TC_ROW_WORDS) word[n] = w;
    n++;
  }
  return n;
}

int tc_read_rows(char *text, size_t bytes, const char *path, const char *forms, tc_row_fn *row, void *ctx, struct tc_err *err)
{
  struct tc_row_at at = { path, 0, err };
  char *word[TC_ROW_WORDS], *next;
  bool any = false;
  if (memchr(text, '\0', bytes)) return tc_fail(err, TC_EUSER, "%.300s: contains a byte 0: not a text file", path);
  for (char *line = text; line < text + bytes; line = next) {
    next = line + strcspn(line, "\n") + 1;
    next[-1] = '\0';
    at.line++;
    const int n = split(line, word);
    if (n > 0) TC_TRY(row(ctx, word, n, &at));
    any |= n > 0;
  }
  return any ? 0 : tc_fail(err, TC_EUSER, "%.300s: no row in this file; rows are %s", path, forms);
}
