/* rows.h - texts whose lines are rows of words, as of annotations and of tables of collectives: `#` begins a comment. */
#ifndef TC_ROWS_H
#define TC_ROWS_H

#include <stddef.h>

#include "src/base/err.h"

enum { TC_ROW_WORDS = 8 };        /* that are kept of a row; more are only counted */

/* Where a row is, for sentences. */
struct tc_row_at { const char *path; int line; struct tc_err *err; };

/* Begins with file:line, as a compiler's messages do, so that editors find it. Words come from the file: formats limit their
 * length, so that the end of the sentence is not truncated. */
#define TC_ROW_FAIL(at, fmt, ...) \
  tc_fail((at)->err, TC_EUSER, "%.300s:%d: " fmt, (at)->path, (at)->line, __VA_ARGS__)

/* Local. Calls row for each line with words, n of them, until it fails. text: `bytes` bytes and a 0 after them; is changed, and
 * has the words. forms: of a row, for the sentence that there is none. TC_EUSER: that, or a byte 0; or row's status. */
typedef int tc_row_fn(void *ctx, char **word, int n, const struct tc_row_at *at);
int tc_read_rows(char *text, size_t bytes, const char *path, const char *forms, tc_row_fn *row, void *ctx, struct tc_err *err);

#endif
