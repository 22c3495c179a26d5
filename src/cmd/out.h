/* out.h - what a command prints: a row, as columns or as a JSON object, by one description.
 *
 * A description is a format of printf with a key before each value, so that the compiler checks the values:
 *
 *   "rank=%5d  node?=%-12s  dtype:type=%-5s{ slow!=%d }  {bytes=%lld}:size=%9s"
 *
 *   KEY=%5d        a value: KEY is its name in JSON, and the heading of its column
 *   KEY:HEADING=   with another heading; :HEADING= is in columns only
 *   KEY?=          less than 0, NULL or "" mean that it is not known: null, and "-" in columns
 *   KEY!=          true or false
 *   {...}          in JSON only: other units, and what has no column
 *
 * Values are %d, %lld, %f, %g, %s (NULL is "", and "-" in columns) and %p, which is JSON that the row takes over. A width
 * may be "-*". Floats go through tc_figure; why some are not finite comes last in an object. */
#ifndef TC_CMD_OUT_H
#define TC_CMD_OUT_H

#include <jansson.h>

/* Local. Prints the headings; the arguments are the widths that are "-*". */
void tc_out_head(const char *form, ...);
/* Local. Prints a row, or appends it to `list` unless that is NULL. */
void tc_out_row(json_t *list, const char *form, ...) __attribute__((format(printf, 2, 3)));
/* Local. A row as a json_t, owned by the caller; without its type, so that it may be a value of another one. */
void *tc_out_object(const char *form, ...) __attribute__((format(printf, 1, 2)));
/* Local. Prints the value as a JSON text and frees it; flags are those of json_dumpf. */
void tc_out_json(json_t *j, size_t flags);

#endif
