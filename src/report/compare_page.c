/* compare_page.c - the page of several runs: which is best in one sentence, figures, options that differ, curves.
 *
 * A run is told by its colour and dashes, the same in all charts and tables: 7 colours for 6 kinds of dashes, then again. */
#include "src/report/report.h"

#include <stdlib.h>

enum { COLOURS = 7, DASHES = 6 };

/* The classes of run i's lines, and `more`. */
static const char *css_of(char *buf, size_t size, int i, const char *more)
{
  snprintf(buf, size, "run%s c%d d%d", more, i % COLOURS, i / COLOURS % DASHES);
  return buf;
}

static void put_lead(FILE *f, const struct tc_comparison *c)
{
  const struct tc_compared *best = &c->run[0];
  fprintf(f, "<p class=\"lead\">");
  if (best->best.step) {
    fprintf(f, "Of %d runs <b>", c->n);
    tc_html(f, best->name);
    fprintf(f, "</b> has the lowest validation loss, <b>%.5g</b> at step %lld.", best->best.value, (long long)best->best.step);
  } else {
    fprintf(f, "None of %d runs has a validation loss.", c->n);
  }
  fprintf(f, "</p>\n");
}

/* A table, with the look of each run before its name. */
static void put_table(FILE *f, const struct tc_cells *t)
{
  char css[32];
  fprintf(f, "<div class=\"wide\"><table>\n");
  for (int i = 0; i < t->rows; i++) {
    fprintf(f, "<tr>");
    for (int k = 0; k < t->columns; k++) {
      const char *tag = i ? "td" : "th";
      const int run = (t->runs_are_rows ? i : k) - 1;
      fprintf(f, "<%s>", tag);
      if (run >= 0 && (t->runs_are_rows ? k : i) == 0) tc_swatch_svg(f, css_of(css, sizeof css, run, ""));
      tc_html(f, t->cell[i * t->columns + k]);
      fprintf(f, "</%s>", tag);
    }
    fprintf(f, "</tr>\n");
  }
  fprintf(f, "</table></div>\n");
}

/* ---- curves ------------------------------------------------------------------------------ */

/* The lines of a chart: copies that are thinned, their classes and their names. */
struct lines { struct tc_line *line; struct tc_series *s; char (*css)[32]; int n; };

static struct lines new_lines(int most)
{
  return (struct lines){ tc_calloc((size_t)most, sizeof(struct tc_line)), tc_calloc((size_t)most, sizeof(struct tc_series)),
                         tc_calloc((size_t)most, sizeof(char[32])), 0 };
}

static void add_line(struct lines *l, const struct tc_series *s, const char *name, int run, const char *more)
{
  l->s[l->n] = tc_series_thinned(s);
  l->line[l->n] = (struct tc_line){ &l->s[l->n], name, css_of(l->css[l->n], sizeof *l->css, run, more) };
  l->n++;
}

static void put_chart(FILE *f, const char *title, struct lines *l)
{
  tc_chart_svg(f, &(struct tc_chart){ title, "", l->line, l->n, .wide = true });
  for (int i = 0; i < l->n; i++) tc_series_free(&l->s[i]);
  TC_FREE(l->line, l->s, l->css);
}

static void put_charts(FILE *f, const struct tc_comparison *c)
{
  struct lines losses = new_lines(2 * c->n), rates = new_lines(c->n);
  for (int i = 0; i < c->n; i++) {
    const struct tc_metrics *m = &c->run[i].r.m;
    add_line(&losses, &m->loss, m->val.n ? NULL : c->run[i].name, i, " pale");
    add_line(&rates, &m->lr, NULL, i, "");
  }
  for (int i = 0; i < c->n; i++)                 /* above those of training */
    add_line(&losses, &c->run[i].r.m.val, c->run[i].name, i, "");
  fprintf(f, "<h2>Training</h2>\n");
  put_chart(f, "Loss", &losses);
  fprintf(f, "<p class=\"note\">Strong lines: validation. Thin lines: training. Numbers: the last value, of the validation where "
          "there is one.</p>\n");
  put_chart(f, "Learning rate", &rates);
}

void tc_compare_page(FILE *f, const struct tc_comparison *c)
{
  struct tc_cells figures = tc_compare_figures(c), options = tc_compare_options(c);
  char title[40];
  snprintf(title, sizeof title, "%d runs", c->n);
  tc_page_begin(f, title);
  put_lead(f, c);
  put_table(f, &figures);
  fprintf(f, "<p class=\"note\">Sorted by the lowest validation loss. tokens/s: the median of the last 50 steps. time: of the "
          "steps, without validations and checkpoints.</p>\n");
  fprintf(f, "<h2 id=\"options\">Options that differ</h2>\n");
  if (json_object_size(c->run[0].options)) put_table(f, &options);
  else fprintf(f, "<p class=\"note\">None.</p>\n");
  put_charts(f, c);
  tc_page_end(f, NULL);
  tc_cells_free(&figures);
  tc_cells_free(&options);
}
