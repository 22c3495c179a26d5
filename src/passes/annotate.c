/* annotate.c - reads a file of annotations: rows that place tensors, one per line.
 *
 * This file reports errors that need no program: unknown words, and placements where they have no
 * meaning. tc_annotate checks whether patterns match tensors, and whether rows agree.
 * Errors begin with file:line, as a compiler's do, so that editors find the line. */
#include "src/passes/systems.h"
#include "src/files/input.h"
#include "src/files/rows.h"

#include <stdlib.h>
#include <string.h>

#define FORMS "'PATTERN AXIS PLACE' or 'PATTERN AXIS STORE USE ACC UPDATE [KEEP]'"
enum { MOST_WORDS = 3 + TC_PLACES, MOST_FILE_BYTES = 16 << 20 };
_Static_assert((int)MOST_WORDS <= (int)TC_ROW_WORDS, "all fields of a row are kept");

static int read_axes(unsigned *axes, const char *word, const struct tc_row_at *at)
{
  char names[TC_MESH_TEXT];
  tc_mesh_placing(names, " or ");
  *axes = tc_axes_named(word);
  if (!strcmp(word, tc_axis_name[TC_MB]))
    return TC_ROW_FAIL(at, "axis %s is time, which annotations cannot split: %s", word, names);
  return *axes ? 0 : TC_ROW_FAIL(at, "'%.60s' is not an axis: %s", word, names);
}

/* "NAME(n)" -> n. False if that is not its form; numbers beyond long become the nearest long. */
static bool argument(const char *word, const char *name, long *n)
{
  size_t len = strlen(name);
  if (strncmp(word, name, len) || word[len] != '(') return false;
  word += len + 1;
  char *end;
  if (!strchr("-0123456789", *word)) return false;
  *n = strtol(word, &end, 10);
  return !strcmp(end, ")");
}

static int read_place(struct tc_place *p, const char *word, const struct tc_row_at *at)
{
  long n;
  *p = (struct tc_place){ TC_R, 0, 0, 0 };
  if (!strcmp(word, "R")) return 0;
  if (!strcmp(word, "P")) {
    p->kind = TC_P;                   /* a sum: op 0 */
  } else if (!strcmp(word, "S(*)")) {
    p->kind = TC_FLAT;
  } else if (argument(word, "S", &n)) {
    if (n < 0 || n >= TC_DIMS)
      return TC_ROW_FAIL(at, "%.60s: a tensor is split along a dimension from 0 to %d", word,
                  TC_DIMS - 1);
    p->kind = TC_S;
    p->dim = (uint8_t)n;
  } else if (argument(word, "at", &n)) {
    if (n < 0 || n > INT32_MAX)
      return TC_ROW_FAIL(at, "%.60s: a coordinate on the axis is 0 or more", word);
    p->kind = TC_AT;
    p->at = (int32_t)n;
  } else {
    return TC_ROW_FAIL(at, "'%.60s' is not a placement: R, S(d), S(*), P or at(k)", word);
  }
  return 0;
}

static int read_after(enum tc_reshard_after *after, const char *word, const struct tc_row_at *at)
{
  for (*after = TC_AFTER_USE; *after <= TC_AFTER_STEP; ++*after)
    if (!strcmp(word, tc_word_parallel_keep(*after))) return 0;
  return TC_ROW_FAIL(at, "'%.60s' does not say when a gathered weight is resharded: use, mb or step", word);
}

/* One placement for all four; one that only some of the four can have is an error. */
static int read_short(struct tc_annotation *a, const char *word, const struct tc_row_at *at)
{
  TC_TRY(read_place(&a->place[0], word, at));
  if (a->place[0].kind == TC_P)
    return TC_ROW_FAIL(at, "%s is not possible as a single placement: only ops make partial tensors; R, "
                "S(d) or at(k)", word);
  char on[TC_AXES_TEXT];
  if (a->place[0].kind == TC_FLAT)
    return TC_ROW_FAIL(at, "%s is for storage only and needs the long form: '%.60s %s %s R %s %s'", word,
                a->pattern, tc_axes_text(on, a->axes), word, word, word);
  return 0;
}

static int read_long(struct tc_annotation *a, char **word, const char *after, const struct tc_row_at *at)
{
  static const char *const name[] = { [TC_STORE] = "store", [TC_USE] = "use", [TC_ACC] = "acc",
                                      [TC_UPDATE] = "update" };
  for (int k = 0; k < TC_PLACES; k++) {
    TC_TRY(read_place(&a->place[k], word[k], at));
    if (a->place[k].kind == TC_P && k != TC_ACC)
      return TC_ROW_FAIL(at, "%s as %s: only acc can be partial; R, S(d), S(*) or at(k)", word[k],
                  name[k]);
  }
  a->four = true;
  a->reshard_after = TC_AFTER_AUTO;
  return after ? read_after(&a->reshard_after, after, at) : 0;
}

static int read_row(struct tc_annotation *a, char **word, int n, const struct tc_row_at *at)
{
  if (n != 3 && n != 2 + TC_PLACES && n != MOST_WORDS)
    return TC_ROW_FAIL(at, "a row has 3, 6 or 7 fields, not %d: " FORMS, n);
  const bool optional = word[0][0] == '-' && word[0][1];
  *a = (struct tc_annotation){ .pattern = word[0] + optional, .line = at->line, .optional = optional };
  TC_TRY(read_axes(&a->axes, word[1], at));
  if (n == 3) return read_short(a, word[2], at);
  return read_long(a, word + 2, n == MOST_WORDS ? word[MOST_WORDS - 1] : NULL, at);
}

/* The rows so far, and one that ends them. */
struct rows { struct tc_annotation *row; int n, cap; };

static int add_row(void *rows, char **word, int n, const struct tc_row_at *at)
{
  struct rows *x = rows;
  struct tc_annotation row;
  TC_TRY(read_row(&row, word, n, at));
  row.pattern = tc_strdup(row.pattern);
  TC_GROW(x->row, x->n + 1, x->cap);
  x->row[x->n++] = row;
  x->row[x->n] = (struct tc_annotation){ .pattern = NULL };
  return 0;
}

int tc_annotations_read(struct tc_annotation **out, const char *path, struct tc_err *err)
{
  *out = NULL;
  char *text;
  size_t bytes;
  TC_TRY(tc_read_text(&text, &bytes, path, "annotations", MOST_FILE_BYTES, err));
  struct rows x = { .n = 0 };
  int rc = tc_read_rows(text, bytes, path, FORMS, add_row, &x, err);
  free(text);
  if (rc < 0) tc_annotations_free(x.row);
  else *out = x.row;
  return rc;
}

void tc_annotations_free(struct tc_annotation *a)
{
  for (struct tc_annotation *x = a; x && x->pattern; x++) free((char *)(uintptr_t)x->pattern);
  free(a);
}
