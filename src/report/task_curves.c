/* task_curves.c - the part of the page on train.eval_tasks: a chart for each file of questions, and the last answers. */
#include "src/report/report.h"

static double last_of(const struct tc_series *s) { return s->y[s->n - 1]; }

static void put_chart(FILE *f, const struct tc_page *p, const struct tc_task_curve *t)
{
  struct tc_series right = tc_series_thinned(&t->right), by_length = tc_series_thinned(&t->by_length);
  const struct tc_line line[] = { { &right, "right", "l-a" }, { &by_length, "by length", "l-b" } };
  tc_chart_svg(f, &(struct tc_chart){ t->name, "", line, 2, .layouts = p->layouts });
  tc_series_free(&right);
  tc_series_free(&by_length);
}

void tc_report_tasks(FILE *f, const struct tc_page *p)
{
  const struct tc_metrics *m = p->m;
  if (!m->n_tasks) return;
  fprintf(f, "<h2 id=\"questions\">Questions</h2>\n<div class=\"charts\">\n");
  for (int i = 0; i < m->n_tasks; i++) put_chart(f, p, &m->task[i]);
  fprintf(f, "</div>\n<table><tr><th>questions</th><th>number</th><th>step</th><th>right</th><th>by "
          "length</th></tr>\n");
  for (int i = 0; i < m->n_tasks; i++) {
    const struct tc_task_curve *t = &m->task[i];
    fprintf(f, "<tr><td>");
    tc_html(f, t->name);
    fprintf(f, "</td><td>%lld", (long long)t->questions);
    if (t->right.n && t->by_length.n)              /* else the line was not ours */
      fprintf(f, "</td><td>%.0f</td><td>%.4f</td><td>%.4f", t->right.x[t->right.n - 1], last_of(&t->right),
              last_of(&t->by_length));
    fprintf(f, "</td></tr>\n");
  }
  fprintf(f, "</table>\n<p class=\"note\">Parts of the questions whose answer is right: that with the smallest sum of "
          "losses, or with the smallest loss per token.</p>\n");
}
