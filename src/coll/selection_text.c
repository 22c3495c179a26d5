/* selection_text.c - a table of rows read from a file of run.collectives, and printed as one.
 *
 * What is kept of a file, before the compiled rows: each row once, and of a collective none after one that is for every call.
 * So tables that select alike by the same rows are equal, and a table that was printed and read is the one that was printed. */
#include "src/coll/selection.h"
#include "src/files/input.h"
#include "src/files/rows.h"

#include <stdlib.h>
#include <string.h>

#define FORM "COLLECTIVE MEMBERS PLACE BYTES ALGORITHM, such as 'all_reduce 2-8 one 64K exchange'"
enum { FIELDS = 5, MOST_ROWS = 1000, MOST_FILE_BYTES = 1 << 20, LIST = 400 };

static const char *const place_name[TC_SELECTION_PLACES] = { "any", "one", "spread", "nodes" };
/* The limits of bytes, as they end, and where they are in a row. */
static const struct { const char *end; size_t field; } limits[] = {
  { "", offsetof(struct tc_selection_row, array) },
  { "/member", offsetof(struct tc_selection_row, each) },
  { "/all", offsetof(struct tc_selection_row, all) } };
enum { LIMITS = sizeof limits / sizeof *limits };

static int64_t limit_of(const struct tc_selection_row *r, int i)
{
  return *(const int64_t *)((const char *)r + limits[i].field);
}

/* ---- a table that grows -------------------------------------------------------------------- */

struct table { struct { struct tc_selection_row *row; int n, cap; } of[TC_COLLS]; int n; };

static bool same(const struct tc_selection_row *a, const struct tc_selection_row *b)
{
  return a->least == b->least && a->most == b->most && a->place == b->place && a->algorithm == b->algorithm &&
         a->array == b->array && a->each == b->each && a->all == b->all;
}

/* For every call that there is. */
static bool is_for_all(const struct tc_selection_row *r, int coll)
{
  for (int i = 0; i < LIMITS; i++)
    if (limit_of(r, i) != TC_SELECTION_ANY) return false;
  return r->least == 1 && r->most == TC_SELECTION_MANY && r->place == TC_PLACE_ANY && tc_algorithm_does_all(r->algorithm, coll);
}

static void add_row(struct table *t, int coll, const struct tc_selection_row *r)
{
  for (int i = 0; i < t->of[coll].n; i++)
    if (same(&t->of[coll].row[i], r) || is_for_all(&t->of[coll].row[i], coll)) return;
  TC_APPEND(t->of[coll].row, t->of[coll].n, t->of[coll].cap, *r);
}

static struct tc_selection *finish(struct table *t)
{
  struct tc_selection *s = tc_calloc(1, sizeof *s);
  for (int coll = TC_FIRST_COLL; coll < TC_COLLS; coll++) {
    const struct tc_selection_rows *x = &tc_selection_compiled.of[coll];
    for (int i = 0; i < x->n; i++) add_row(t, coll, &x->row[i]);
    s->of[coll] = (struct tc_selection_rows){ t->of[coll].row, t->of[coll].n };
  }
  return s;
}

void tc_selection_free(struct tc_selection *s)
{
  for (int coll = 0; s && coll < TC_COLLS; coll++) free((void *)(uintptr_t)s->of[coll].row);
  free(s);
}

/* ---- reading ------------------------------------------------------------------------------- */

/* Appends the next name of a list to its text: "a", "a, b". */
static void list(char text[LIST], const char *name) { tc_text_add(text, LIST, "%s%s", *text ? ", " : "", name); }

static int read_coll(int *coll, const char *word, const struct tc_row_at *at)
{
  char all[LIST] = "";
  *coll = tc_coll_named(word);
  for (int i = TC_FIRST_COLL; i < TC_COLLS; i++) list(all, tc_coll_name[i]);
  return *coll >= 0 ? 0 : TC_ROW_FAIL(at, "'%.60s' is not a collective; there are %s", word, all);
}

/* A number that a text begins with; false: none, or one that does not fit. */
static bool read_number(int32_t *n, const char **text)
{
  const char *end;
  const int64_t x = tc_parse_whole(*text, 1, "", &end);
  *n = (int32_t)x;
  *text = end;
  return x >= 1 && x < TC_SELECTION_MANY;
}

static int read_members(struct tc_selection_row *r, const char *word, const struct tc_row_at *at)
{
  const char *s = word;
  r->least = 1, r->most = TC_SELECTION_MANY;
  if (!strcmp(word, "any")) return 0;
  bool good = read_number(&r->least, &s);
  if (good && !*s) r->most = r->least;
  else good = good && *s++ == '-' && (!*s || (read_number(&r->most, &s) && !*s));
  if (!good)
    return TC_ROW_FAIL(at, "'%.60s' is not a number of members: give one such as 8, a range such as 2-8 or 9-, or any", word);
  if (r->least > r->most)
    return TC_ROW_FAIL(at, "no number of members is in %.60s: %d-%d would fit", word, r->most, r->least);
  return 0;
}

static int read_place(struct tc_selection_row *r, const char *word, const struct tc_row_at *at)
{
  for (r->place = 0; r->place < TC_SELECTION_PLACES; r->place++)
    if (!strcmp(word, place_name[r->place])) return 0;
  return TC_ROW_FAIL(at, "'%.60s' is not a place of members: one (node), spread (each on a node of its own), nodes (several, of which "
              "some have several members) or any", word);
}

/* One limit, up to the next comma. False: it is none, or one of this kind was there before. */
static bool read_limit(struct tc_selection_row *r, const char **text)
{
  const bool less = **text == '<';
  const char *s = *text + less;
  int64_t n = tc_parse_whole(s, 1024, "KMG", &s);
  const size_t len = strcspn(s, ",");
  *text = s + len;
  if (n < less || n == INT64_MAX) return false;
  for (int i = 0; i < LIMITS; i++) {
    int64_t *to = (int64_t *)((char *)r + limits[i].field);
    if (strlen(limits[i].end) != len || strncmp(limits[i].end, s, len)) continue;
    if (*to != TC_SELECTION_ANY) return false;
    *to = n - less;
    return true;
  }
  return false;
}

static int read_bytes(struct tc_selection_row *r, const char *word, const struct tc_row_at *at)
{
  const char *s = word;
  r->array = r->each = r->all = TC_SELECTION_ANY;
  if (!strcmp(word, "any")) return 0;
  while (read_limit(r, &s))
    if (!*s++) return 0;
  return TC_ROW_FAIL(at, "'%.60s' does not say how many bytes an array has at most: give, say, 64K, <64K, 64K/member or 8K/all, one "
              "of each joined by commas, or any", word);
}

static int read_algorithm(struct tc_selection_row *r, int coll, const char *word, const struct tc_row_at *at)
{
  char fit[LIST] = "";
  r->algorithm = tc_algorithm_named(word);
  if (r->algorithm > 0 && tc_algorithm_does(r->algorithm, coll)) return 0;
  for (int a = TC_ALGORITHM_AUTO + 1; a < TC_ALGORITHMS; a++)
    if (tc_algorithm_does(a, coll)) list(fit, tc_algorithm_name[a]);
  return TC_ROW_FAIL(at, "'%.60s' is not an algorithm %s %s; what does it: %s", word, r->algorithm > 0 ? "that does" : "of",
              tc_coll_name[coll], fit);
}

static int read_row(void *table, char **word, int n, const struct tc_row_at *at)
{
  struct table *t = table;
  struct tc_selection_row row;
  int coll;
  if (n != FIELDS) return TC_ROW_FAIL(at, "a row has %d fields, not %d: " FORM, FIELDS, n);
  if (t->n++ == MOST_ROWS) return TC_ROW_FAIL(at, "a table has at most %d rows", MOST_ROWS);
  TC_TRY(read_coll(&coll, word[0], at));
  TC_TRY(read_members(&row, word[1], at));
  TC_TRY(read_place(&row, word[2], at));
  TC_TRY(read_bytes(&row, word[3], at));
  TC_TRY(read_algorithm(&row, coll, word[4], at));
  add_row(t, coll, &row);
  return 0;
}

int tc_selection_parse(struct tc_selection **out, char *text, size_t bytes, const char *path, struct tc_err *err)
{
  struct table t = { .n = 0 };
  const int rc = tc_read_rows(text, bytes, path, FORM, read_row, &t, err);
  *out = NULL;
  if (rc == 0) *out = finish(&t);
  else
    for (int coll = 0; coll < TC_COLLS; coll++) free(t.of[coll].row);
  return rc;
}

int tc_selection_read(struct tc_selection **out, const char *path, struct tc_err *err)
{
  char *text;
  size_t bytes;
  *out = NULL;
  TC_TRY(tc_read_text(&text, &bytes, path, "table of collectives", MOST_FILE_BYTES, err));
  const int rc = tc_selection_parse(out, text, bytes, path, err);
  free(text);
  return rc;
}

/* ---- printing ------------------------------------------------------------------------------ */

#define COLUMNS "%-15s %-9s %-7s %-15s %s\n"
static const char heading[] =
  "# Which algorithm a collective takes: the first row that has its members, their place and its bytes, and whose\n"
  "# algorithm suits them. This is also the form of a file of run.collectives, whose rows go before the compiled ones.\n"
  "#\n"
  "#   members    a number, a range such as 2-8 or 9-, or any\n"
  "#   place      one: on one node; spread: each on a node of its own; nodes: on several, of which some have several\n"
  "#              members; any\n"
  "#   bytes      of the array, at most: 64K, or <64K for less; 64K/member: of the array divided by the members; 8K/all:\n"
  "#              of what all members give together: of a sum each gives an array, else they give one; several joined by\n"
  "#              commas; any\n"
  "#   algorithm  what a member sends, of N, for an array of S bytes in fp32:\n"
  "#\n";

static void print_members(char *to, size_t size, const struct tc_selection_row *r)
{
  if (r->most < TC_SELECTION_MANY) snprintf(to, size, r->least < r->most ? "%d-%d" : "%d", r->least, r->most);
  else if (r->least > 1) snprintf(to, size, "%d-", r->least);
  else snprintf(to, size, "any");
}

/* One less than a round number is printed as less than that. */
static void add_limit(char *to, size_t size, int64_t n, const char *end)
{
  static const char unit[] = "\0KMG";
  const bool less = n % 1024 == 1023;
  int u = 0;
  for (n += less; n && n % 1024 == 0 && u < 3; u++) n /= 1024;
  tc_text_add(to, size, "%s%s%lld%.1s%s", *to ? "," : "", less ? "<" : "", (long long)n, &unit[u], end);
}

static void print_row(FILE *f, int coll, const struct tc_selection_row *r)
{
  char members[32], bytes[120] = "";
  print_members(members, sizeof members, r);
  for (int i = 0; i < LIMITS; i++)
    if (limit_of(r, i) != TC_SELECTION_ANY) add_limit(bytes, sizeof bytes, limit_of(r, i), limits[i].end);
  fprintf(f, COLUMNS, tc_coll_name[coll], members, place_name[r->place], *bytes ? bytes : "any",
          tc_algorithm_name[r->algorithm]);
}

void tc_selection_print(FILE *f, const struct tc_selection *s)
{
  if (!s) s = &tc_selection_compiled;
  fputs(heading, f);
  for (int a = TC_ALGORITHM_AUTO + 1; a < TC_ALGORITHMS; a++)
    fprintf(f, "#   %-9s  messages: %s\n#   %-9s  bytes of the busiest: %s\n", tc_algorithm_name[a], tc_algorithm_messages(a),
            "", tc_algorithm_bytes(a));
  fprintf(f, "\n" COLUMNS, "# collective", "members", "place", "bytes", "algorithm");
  for (int coll = TC_FIRST_COLL; coll < TC_COLLS; coll++)
    for (int i = 0; i < s->of[coll].n; i++) print_row(f, coll, &s->of[coll].row[i]);
}
