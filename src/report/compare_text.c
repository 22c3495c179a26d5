/* compare_text.c - several runs on a terminal: the tables of compare_runs.c. A table of more columns than a line has room for
 * is printed in parts, each with its first column. */
#include "src/report/report.h"

#include <string.h>

enum { LINE = 120, GAP = 2 };

/* Letters of a text in UTF-8. */
static int letters(const char *s)
{
  int n = 0;
  for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
  return n;
}

static int width_of(const struct tc_cells *t, int column)
{
  int most = 0;
  for (int i = 0; i < t->rows; i++) most = TC_MAX(most, letters(t->cell[i * t->columns + column]));
  return most;
}

/* The first column and those from `from` to `to`. */
static void put_part(FILE *f, const struct tc_cells *t, int from, int to)
{
  for (int i = 0; i < t->rows; i++) {
    const char *const *cell = (const char *const *)&t->cell[i * t->columns];
    fprintf(f, "%s%*s", cell[0], width_of(t, 0) - letters(cell[0]), "");
    for (int k = from; k < to; k++) fprintf(f, "%*s%s", GAP + width_of(t, k) - letters(cell[k]), "", cell[k]);
    fputc('\n', f);
  }
}

static void put_table(FILE *f, const struct tc_cells *t)
{
  for (int from = 1, to; from < t->columns; from = to) {
    int wide = width_of(t, 0) + GAP + width_of(t, from);
    for (to = from + 1; to < t->columns && (wide += GAP + width_of(t, to)) <= LINE; to++) {}
    if (from > 1) fputc('\n', f);
    put_part(f, t, from, to);
  }
}

void tc_compare_text(FILE *f, const struct tc_comparison *c)
{
  struct tc_cells figures = tc_compare_figures(c), options = tc_compare_options(c);
  put_table(f, &figures);
  fputc('\n', f);
  if (json_object_size(c->run[0].options)) put_table(f, &options);
  else fprintf(f, "no option differs\n");
  tc_cells_free(&figures);
  tc_cells_free(&options);
}
