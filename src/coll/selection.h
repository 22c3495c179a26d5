/* selection.h - which algorithm a call takes: a table of rows, of which the first that fits it wins. Pure but for
 * tc_selection_read.
 *
 * The compiled table is selection.def. A user's (run.collectives) goes before it: what none of its rows fits is selected by the
 * compiled ones, so that there is a row for every call. All members of a group need the same table. */
#ifndef TC_SELECTION_H
#define TC_SELECTION_H

#include "src/coll/flow.h"

#include <stdio.h>

enum tc_selection_place { TC_PLACE_ANY, TC_PLACE_ONE, TC_PLACE_SPREAD, TC_PLACE_NODES, TC_SELECTION_PLACES };
#define TC_SELECTION_ANY INT64_MAX               /* bytes */
enum { TC_SELECTION_MANY = INT32_MAX };          /* members: any number more */

/* The columns are explained in selection.def. */
struct tc_selection_row {
  int32_t least, most, place, algorithm;
  int64_t array, each, all;
};
struct tc_selection { struct tc_selection_rows { const struct tc_selection_row *row; int n; } of[TC_COLLS]; };
extern const struct tc_selection tc_selection_compiled;

/* Local. The algorithm of a call: a->algorithm, if that suits, else by m->selection and the bytes of a->parts, whose addresses
 * are not looked at. */
int tc_algorithm_of(const struct tc_coll_args *a, const struct tc_members *m);

/* Local. What the rows are, as a number that is the same for tables which say the same of the same collectives; sums: only of
 * those that add. NULL: the compiled table, as in all below. */
uint64_t tc_selection_hash(const struct tc_selection *s, bool sums);

/* selection_text.c. Local. The table in a file of run.collectives, or in a text of `bytes` bytes with a 0 after them, which is
 * changed; path: its name in errors. *out is owned by the caller; NULL after an error, TC_EUSER, with the line. */
int tc_selection_read(struct tc_selection **out, const char *path, struct tc_err *err);
int tc_selection_parse(struct tc_selection **out, char *text, size_t bytes, const char *path, struct tc_err *err);
void tc_selection_free(struct tc_selection *s);
/* Local. All rows in the form of such a file, below comments that explain the columns and the algorithms. */
void tc_selection_print(FILE *f, const struct tc_selection *s);

#endif
