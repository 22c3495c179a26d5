/* drawn_table.h - tables of run.collectives, drawn: right ones, and ones with a row that is wrong in a way that is known. */
#ifndef TC_DRAWN_TABLE_H
#define TC_DRAWN_TABLE_H

#include "src/coll/selection.h"
#include "tests/unit/random.h"

enum { DRAWN_LINES = 24, DRAWN_TEXT = 4096, DRAWN_WORD = 80, DRAWN_FIELDS = 5 };
struct drawn_table {
  char text[DRAWN_TEXT];
  int wrong_line;                /* 0: none */
  const char *says;              /* what its error has to say */
};

static inline const char *one_of(const char *const *list)
{
  int n = 0;
  while (list[n]) n++;
  return list[draw(0, n - 1)];
}

static inline int drawn_algorithm(int coll, bool does)
{
  int a = 0;
  do a = (int)draw(TC_ALGORITHM_AUTO + 1, TC_ALGORITHMS - 1);
  while (tc_algorithm_does(a, coll) != does);
  return a;
}

static inline void draw_members(char *to)
{
  const int least = (int)draw(1, 12), kind = (int)draw(0, 4);
  if (kind == 0) snprintf(to, DRAWN_WORD, "%d", least);
  else if (kind == 1) snprintf(to, DRAWN_WORD, "%d-", least);
  else if (kind == 2) snprintf(to, DRAWN_WORD, "%d-%d", least, least + (int)draw(0, 60));
  else snprintf(to, DRAWN_WORD, "any");
}

static inline void draw_bytes(char *to)
{
  static const char *const end[] = { "", "/member", "/all" };
  static const char *const unit[] = { "", "", "K", "k", "M", "G", NULL };
  *to = '\0';
  for (int i = 0, at = (int)draw(0, 2); i < 3; i++, at = (at + 1) % 3)
    if (draw(0, 2) == 0)
      tc_text_add(to, DRAWN_WORD, "%s%s%d%s%s", *to ? "," : "", draw(0, 3) ? "" : "<", (int)draw(1, 2000), one_of(unit),
                  end[at]);
  if (!*to) strcpy(to, "any");
}

static inline void draw_row(char word[DRAWN_FIELDS][DRAWN_WORD])
{
  static const char *const place[] = { "one", "spread", "nodes", "any", "any", NULL };
  const int coll = (int)draw(TC_FIRST_COLL, TC_COLLS - 1);
  strcpy(word[0], tc_coll_name[coll]);
  draw_members(word[1]);
  strcpy(word[2], one_of(place));
  draw_bytes(word[3]);
  strcpy(word[4], tc_algorithm_name[drawn_algorithm(coll, true)]);
}

/* Makes one field of the row wrong, or their number. Returns what the error says. */
static inline const char *damage(char word[DRAWN_FIELDS][DRAWN_WORD], int *fields)
{
  static const char *const coll[] = { "all_reduec", "ALL_REDUCE", "slice", "copy", "-", "all", NULL };
  static const char *const members[] = { "0", "-4", "2..8", "x", "99999999999", "2147483647", "2-8-9", "+2", "2-0", "3-x", "-",
                                         "Any", NULL };
  static const char *const none[] = { "8-2", "3-1", NULL };
  static const char *const place[] = { "ONE", "node", "two", "1", NULL };
  static const char *const bytes[] = { "64KB", "-1", "<0", "<", "64K/", "64K/members", "1K,2K", "1K,", ",1K", "any,1K", "1.5K",
                                       "9223372036854775807", "99999999999999999999G", "1K/all,2/all", "K", "1 K", NULL };
  static const char *const algorithm[] = { "ring", "auto", "TREE", "library", NULL };
  switch (draw(0, 7)) {
    case 0: *fields = (int)draw(1, DRAWN_FIELDS - 1); return "a row has 5 fields, not ";
    case 1: *fields = DRAWN_FIELDS + 1; return "a row has 5 fields, not 6";
    case 2: strcpy(word[0], one_of(coll)); return "is not a collective; there are all_reduce, ";
    case 3: strcpy(word[1], one_of(members)); return "is not a number of members: give one such as 8";
    case 4: strcpy(word[1], one_of(none)); return "no number of members is in ";
    case 5: strcpy(word[2], one_of(place)); return "is not a place of members: one (node)";
    case 6:
      strcpy(word[3], one_of(bytes));
      return strchr(word[3], ' ') ? "a row has 5 fields, not 6" : "does not say how many bytes an array has at most";
    default:
      strcpy(word[4], draw(0, 1) ? one_of(algorithm) : tc_algorithm_name[drawn_algorithm(tc_coll_named(word[0]), false)]);
      return "is not an algorithm ";
  }
}

static inline void draw_table(struct drawn_table *t, bool wrong)
{
  static const char *const blanks[] = { " ", "  ", "\t", NULL }, *const end[] = { "\n", "\n", " \r\n", " # why\n", NULL };
  const int lines = (int)draw(1, DRAWN_LINES), at = (int)draw(1, lines);
  *t = (struct drawn_table){ .wrong_line = wrong ? at : 0 };
  for (int i = 1; i <= lines; i++) {
    char word[DRAWN_FIELDS][DRAWN_WORD];
    int fields = DRAWN_FIELDS;
    if (i != at && draw(0, 3) == 0) {
      tc_text_add(t->text, sizeof t->text, "%s", draw(0, 1) ? "\n" : " # all_reduce 2 any any\n");
      continue;
    }
    draw_row(word);
    if (wrong && i == at) t->says = damage(word, &fields);
    for (int k = 0; k < fields; k++)
      tc_text_add(t->text, sizeof t->text, "%s%s", k < DRAWN_FIELDS ? word[k] : "more", one_of(blanks));
    tc_text_add(t->text, sizeof t->text, "%s", i < lines ? one_of(end) : "");
  }
}

/* tc_selection_parse of a text that stays as it is. */
static inline int parse_table(struct tc_selection **s, const char *text, struct tc_err *err)
{
  char *copy = tc_strdup(text);
  const int rc = tc_selection_parse(s, copy, strlen(copy), "my.txt", err);
  free(copy);
  return rc;
}

#endif
