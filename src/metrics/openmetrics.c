/* openmetrics.c - run.openmetrics: the figures of the last step as a text file in OpenMetrics' format, for node_exporter's
 * textfile collector.
 *
 * - A figure is a gauge. Its name is tercio_ and the names in its key; words in capitals and members of lists are labels.
 *   The figures of a row of metrics.def come together, so a gauge stands once.
 * - The form is also one of Prometheus' older text format, which node_exporter reads: UNIT and EOF are comments there.
 * - The file is replaced by a complete one at most once a second, and at the end of the run. It is not flushed to disk
 *   (fsync): it is of no use after a loss of power, and a flush may have to wait behind that of a checkpoint. A start that
 *   has lost its folder to a later one writes no more. */
#include "src/metrics/metrics.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "src/files/files.h"

#define EVERY_NS INT64_C(1000000000)

static const struct tc_output_kind figures = { "figures of tercio train in OpenMetrics' format", { "# HELP tercio_step " } };

/* ---- text -------------------------------------------------------------------------------- */

/* A text within quotes, or a help. */
static void put_escaped(FILE *f, const char *text)
{
  for (; *text; text++) {
    if (*text == '\\' || *text == '"') fputc('\\', f);
    fputs(*text == '\n' ? "\\n" : (char[]){ *text, '\0' }, f);
  }
}

static void put_label(FILE *f, const char *begin, const char *name, const char *value)
{
  fprintf(f, "%s%s=\"", begin, name);
  put_escaped(f, value);
  fputc('"', f);
}

/* "tasks[].loss": tercio_tasks_loss */
static void name_of(char *name, size_t size, const char *key)
{
  struct tc_metric_name n = { .last = false };
  snprintf(name, size, "tercio");
  while (!n.last) {
    n = tc_metric_name(&key);
    if (!n.word) tc_text_add(name, size, "_%s", n.text);
  }
}

/* A unit has a line where it ends the name, as OpenMetrics wants it. */
static void put_family(FILE *f, const char *name, const struct tc_metric_row *row)
{
  char unit[32];
  snprintf(unit, sizeof unit, "_%s", row->unit);
  fprintf(f, "# HELP %s %s%s%s", name, *row->unit ? "(" : "", row->unit, *row->unit ? ") " : "");
  put_escaped(f, row->help);
  fprintf(f, "\n# TYPE %s gauge\n", name);
  if (tc_ends_with(name, unit)) fprintf(f, "# UNIT %s %s\n", name, row->unit);
}

/* A word's label is its name, AXIS's axis; a member's is its list's last word, without the plural: val_sources' source. */
static void put_labels(FILE *f, const struct tc_sample *s, const char *member)
{
  const char *at = tc_metric_row[s->metric].key, *const *word = s->word;
  struct tc_metric_name n = { .last = false };
  while (!n.last) {
    n = tc_metric_name(&at);
    const char *label = n.list && strchr(n.text, '_') ? strrchr(n.text, '_') + 1 : n.text;
    if (n.list) n.text[strlen(n.text) - 1] = '\0';
    for (char *p = n.text; *p; p++) *p = (char)tolower((unsigned char)*p);
    if (n.list || n.word) put_label(f, ",", label, n.list ? member : *word++);
  }
}

static void put_real(FILE *f, double x)
{
  const char *word = tc_not_finite(x);
  if (!word) fprintf(f, "%.12g\n", x);
  else fputs(*word == 'n' ? "NaN\n" : *word == 'i' ? "+Inf\n" : "-Inf\n", f);
}

static void figure(struct tc_metrics_out *o, const struct tc_sample *s, const char *member)
{
  FILE *f = o->figures;
  char name[200];
  json_t *run = tc_text_json(o->run);
  name_of(name, sizeof name, tc_metric_row[s->metric].key);
  if (s->metric != o->page.family) put_family(f, name, &tc_metric_row[s->metric]);
  o->page.family = s->metric;
  fputs(name, f);
  put_label(f, "{", "run", json_string_value(run));
  put_labels(f, s, member);
  fputs("} ", f);
  if (s->type == TC_METRIC_REAL) put_real(f, s->real);
  else fprintf(f, "%lld\n", (long long)s->integer);
  json_decref(run);
}

/* ---- the file ------------------------------------------------------------------------------ */

static int begin(struct tc_metrics_out *o, int64_t step, struct tc_err *err)
{
  const struct tc_output_opts opts = { .kind = &figures, .zeros = true, .flag = o->form->option, .kept = o->kept,
                                       .n_kept = o->n_kept };
  (void)step;
  o->page.family = TC_METRICS;
  return tc_output_check(o->path, &opts, err);
}

static int write_page(struct tc_metrics_out *o, struct tc_err *err)
{
  const struct tc_output_opts opts = { .kind = &figures, .zeros = true, .flag = o->form->option, .unsynced = true };
  struct tc_output *f;
  o->page.waits = false;
  if (tc_is_there(o->lease) == 0) return 0;
  TC_TRY(tc_output_new(&f, o->path, &opts, err));
  fprintf(tc_output_stream(f), "%.*s# EOF\n", (int)o->bytes, o->text);
  return tc_output_end(f, 0, err);
}

static int step(struct tc_metrics_out *o, int64_t at, const char *time, struct tc_err *err)
{
  const int64_t now = tc_now_ns();
  (void)at;
  (void)time;
  o->page.family = TC_METRICS;
  o->page.waits = o->page.wrote_ns && now - o->page.wrote_ns < EVERY_NS;
  if (o->page.waits) return 0;
  o->page.wrote_ns = now;
  return write_page(o, err);
}

static int end(struct tc_metrics_out *o, struct tc_err *err) { return o->page.waits ? write_page(o, err) : 0; }

const struct tc_metrics_form tc_openmetrics = {
  .option = "run.openmetrics", .begin = begin, .figure = figure, .step = step, .end = end
};
