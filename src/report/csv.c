/* csv.c - all figures of all steps as CSV, by RFC 4180 with lines that end as in other text files of Unix.
 *
 * Which columns there are is known when all lines have been read, so the file is read twice, and nothing of a line is kept.
 * The file may grow meanwhile: lines after the last one of the first time, and columns that only they have, are left out. */
#include "src/report/report.h"

#include <stdlib.h>
#include <string.h>

struct column { char *name; enum tc_metric metric; int first; };   /* owned; its row of metrics.def; which one came first */
struct table {
  struct column *column; int n, cap;
  json_t *index;                 /* of a name: the number of its column, from 0 */
  char **cell;                   /* [n] of the present line; owned; NULL: empty */
  int64_t left;                  /* lines to write */
  FILE *f;
};

/* ---- figures of a line ------------------------------------------------------------------- */

/* A number with the digits that a line has: those of tc_metrics_json_text or, of another program, all. Owned. */
static char *number_text(const json_t *v)
{
  char *text = NULL;
  for (size_t digits = TC_METRIC_DIGITS; digits <= 17; digits++) {
    free(text);
    text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
    if (!text) tc_out_of_memory(0);
    if (strtod(text, NULL) == json_number_value(v)) break;
  }
  return text;
}

/* NULL: an empty cell. Owned. */
static char *cell_text(const json_t *v)
{
  if (json_is_null(v)) return NULL;
  if (json_is_string(v)) return tc_strdup(json_string_value(v));
  return json_is_real(v) ? number_text(v) : json_dumps(v, JSON_ENCODE_ANY);
}

/* The figure `name` at a place in the line, as tc_metric_at takes it. The first time makes its column. */
static void take_figure(struct table *t, const char *name, const char *place, const json_t *v)
{
  const json_t *at = json_object_get(t->index, name);
  if (t->cell && at) {
    char **cell = &t->cell[json_integer_value(at)];
    free(*cell);
    *cell = cell_text(v);
  } else if (!t->cell && !at) {
    json_object_set_new(t->index, name, json_integer(t->n));
    TC_APPEND(t->column, t->n, t->cap, (struct column){ tc_strdup(name), tc_metric_at(place), t->n });
  }
}

/* The name of a list's member: its "name", with its place from 1 after it if one before has it, too; or its number. Owned. */
static char *member_name(const json_t *list, size_t i)
{
  const char *name = json_string_value(json_object_get(json_array_get(list, i), "name"));
  bool same = false;
  for (size_t k = 0; k < i && name; k++) {
    const char *other = json_string_value(json_object_get(json_array_get(list, k), "name"));
    same |= other && !strcmp(other, name);
  }
  if (!name) return tc_sprintf("%zu", i);
  return same ? tc_sprintf("%s (%zu)", name, i + 1) : tc_strdup(name);
}

/* Owned. */
static char *joined(const char *before, const char *key) { return tc_sprintf("%s%s%s", before, *before ? "." : "", key); }

/* A value and all that is in it. Of not_finite the place is the same in all objects. */
static void take_value(struct table *t, const char *name, const char *place, json_t *v)
{
  const char *key;
  json_t *part;
  size_t i;
  if (json_is_object(v)) {
    json_object_foreach(v, key, part) {
      if (tc_ends_with(place, "[]") && !strcmp(key, "name") && json_is_string(part)) continue;   /* it is in `name` */
      char *longer = joined(name, key), *there = joined(strcmp(key, "not_finite") ? place : "", key);
      take_value(t, longer, there, part);
      TC_FREE(longer, there);
    }
  } else if (json_is_array(v)) {
    char *there = tc_sprintf("%s[]", place);
    json_array_foreach(v, i, part) {
      char *member = member_name(v, i), *longer = joined(name, member);
      take_value(t, longer, there, part);
      TC_FREE(member, longer);
    }
    free(there);
  } else {
    take_figure(t, name, place, v);
  }
}

/* ---- the table --------------------------------------------------------------------------- */

static void put_cell(FILE *f, const char *text, bool first)
{
  if (!first) fputc(',', f);
  if (!text[strcspn(text, ",\"\r\n")]) {
    fputs(text, f);
    return;
  }
  fputc('"', f);
  for (; *text; text++) fputs(*text == '"' ? "\"\"" : (char[]){ *text, '\0' }, f);
  fputc('"', f);
}

static void find_columns(void *ctx, json_t *line)
{
  take_value(ctx, "", "", line);
}

static void put_row(void *ctx, json_t *line)
{
  struct table *t = ctx;
  if (t->left-- <= 0) return;
  take_value(t, "", "", line);
  for (int i = 0; i < t->n; i++) {
    put_cell(t->f, t->cell[i] ? t->cell[i] : "", i == 0);
    free(t->cell[i]);
    t->cell[i] = NULL;
  }
  fputc('\n', t->f);
}

static int order_columns(const void *a, const void *b)
{
  const struct column *x = a, *y = b;
  return x->metric != y->metric ? (x->metric > y->metric) - (x->metric < y->metric) : x->first - y->first;
}

int tc_csv_write(FILE *f, struct tc_csv *c, const char *path, struct tc_err *err)
{
  struct table t = { .index = json_object(), .f = f };
  struct tc_steps again;
  int rc = tc_steps_each(&c->steps, path, find_columns, &t, err);
  if (!rc) {
    qsort(t.column, (size_t)t.n, sizeof *t.column, order_columns);
    for (int i = 0; i < t.n; i++) {
      json_object_set_new(t.index, t.column[i].name, json_integer(i));
      put_cell(f, t.column[i].name, i == 0);
    }
    fputc('\n', f);
    t.cell = tc_calloc((size_t)t.n, sizeof *t.cell);
    t.left = c->steps.lines - c->steps.broken;
    rc = tc_steps_each(&again, path, put_row, &t, err);
  }
  c->columns = t.n;
  for (int i = 0; i < t.n; i++) free(t.column[i].name);
  TC_FREE(t.column, t.cell);
  json_decref(t.index);
  return rc;
}
