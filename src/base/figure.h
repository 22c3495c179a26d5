/* figure.h - figures and texts in JSON, and what is not a number.
 *
 * A float is finite, or "nan", "inf" or "-inf". What is not finite is never left out, never taken for "there is none",
 * and never wins a comparison: whoever compares, averages or saves figures asks isfinite() first. */
#ifndef TC_FIGURE_H
#define TC_FIGURE_H

#include <stdint.h>

struct json_t;                   /* jansson's */

/* "nan", "inf" or "-inf"; NULL: x is finite. */
const char *tc_not_finite(double x);
/* x, but a NaN without its sign, which printf would print. */
double tc_unsigned_nan(double x);

/* Local. object[key] = x, in place where the key is there already. JSON has no word for what is not finite: it is
 * null, and object.not_finite[key] says which. This makes all floats of all JSON that the program writes, so that a
 * null without a reason always means "there is none". */
void tc_figure(struct json_t *object, const char *key, double x);
/* Local. object[key] = x[n], an array; reasons have keys like "nats[2]". */
void tc_figures(struct json_t *object, const char *key, const double *x, int64_t n);

/* Local. A text of others as a JSON string; NULL is "". Of text that is not UTF-8 all bytes beyond ASCII become '?'.
 * Owned by the caller. */
struct json_t *tc_text_json(const char *s);

/* Local. The first of n elements of a type (dtype.h) that is not finite; -1: none. */
int64_t tc_first_not_finite(const void *data, int dtype, int64_t n);

#endif
