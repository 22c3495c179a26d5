/* predicted.c - predictions compared with measurements: as rows of the page, and as an object
 * for `tercio report --json`. Memory and bytes are the program's own predictions, which every run.json
 * has; times only if the run had a device to plan with (run.plan_device). */
#include "src/graph/mesh.h"
#include "src/report/report.h"

#include <math.h>
#include <string.h>

/* Memory of the rank that needs most. */
static double memory_of(const json_t *run, bool predicted)
{
  const json_t *ranks = json_object_get(run, "ranks");
  double most = 0;
  for (size_t i = 0; i < json_array_size(ranks); i++) {
    const json_t *m = json_object_get(json_array_get(ranks, i), "memory");
    const json_t *got = json_object_get(m, "allocated_bytes");
    int64_t bytes = predicted ? tc_json_int(m, "predicted_total_bytes")
                              : tc_json_int(got, "state") + tc_json_int(got, "scratch") +
                                tc_json_int(got, "staging");
    most = TC_MAX(most, (double)bytes);
  }
  return most;
}

/* The bytes on each axis, summed over all collectives. */
static json_t *bytes_of(const json_t *comm)
{
  json_t *o = json_object(), *v;
  const char *kind;
  for (int s = 0; s < TC_SETS; s++) {
    json_int_t sum = 0;
    json_t *on = json_object_get(comm, tc_set_name[s]);
    if (!on && !tc_set_is_always(s)) continue;
    json_object_foreach(on, kind, v)
      sum += json_integer_value(tc_metric_of(v, TC_METRIC_COMM_BYTES));
    json_object_set_new(o, tc_set_name[s], json_integer(sum));
  }
  return o;
}

static json_t *changes_of(const struct tc_layouts *l)
{
  json_t *list = json_array();
  for (int i = 0; i < l->n; i++)
    json_array_append_new(list, json_pack("{s:I,s:s}", "from_step", (json_int_t)l->change[i].after_step + 1,
                                          "changed", l->change[i].text));
  return list;
}

/* The median of the last points of the first stage, for which predictions are, times `unit`; null: there are none. */
static void put_median(json_t *o, const char *key, const struct tc_series *s, const struct tc_metrics *m, double unit)
{
  const double x = tc_series_recent(s, m->after, m->first_stage);       /* of finite ones */
  if (isfinite(x)) tc_figure(o, key, x * unit);
  else json_object_set_new(o, key, json_null());
}

json_t *tc_report_plan(const struct tc_page *p)
{
  const json_t *predicted = json_object_get(p->run, "predicted");
  const json_t *rank0 = json_array_get(json_object_get(p->run, "ranks"), 0);
  const int64_t after = p->m->after;
  json_t *want = json_object(), *got = json_object();
  tc_figure(want, "device_bytes", memory_of(p->run, true));
  json_object_set_new(want, "bytes", bytes_of(json_object_get(rank0, "predicted_comm")));
  tc_figure(got, "device_bytes", memory_of(p->run, false));
  json_object_set_new(got, "bytes", p->m->comm ? bytes_of(p->m->comm) : json_null());
  const char *const keys[] = { "device", "step_s", "tokens_per_s", "mfu", "bubble", "terms_s", "terms_from", "not_finite" };
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (json_object_get(predicted, keys[i]))
      json_object_set(want, keys[i], json_object_get(predicted, keys[i]));
  put_median(got, "step_s", &p->m->ms, p->m, 1e-3);
  put_median(got, "tokens_per_s", &p->m->rate, p->m, 1);
  put_median(got, "bubble", &p->m->bubble, p->m, 1);
  const int slow = tc_metrics_slowest(p->m);
  if (slow >= 0) {
    const struct tc_straggler_tally *s = &p->m->slow[slow];
    json_t *o = json_pack("{s:i,s:s,s:I,s:I}", "rank", slow, "host", s->host, "steps",
                          (json_int_t)s->steps, "of_steps", (json_int_t)p->m->slow_steps);
    tc_figure(o, "times_median", s->times / (double)s->steps);
    json_object_set_new(got, "slowest", o);
  }
  json_t *o = json_pack("{s:I,s:I,s:I,s:I,s:o,s:o,s:o}", "first_step", (json_int_t)p->m->steps.first, "last_step",
                        (json_int_t)p->m->steps.last, "layout_since", (json_int_t)TC_MAX(after + 1, p->m->steps.first),
                        "broken_lines", (json_int_t)p->m->steps.broken, "changes", changes_of(p->layouts), "predicted",
                        want, "measured", got);
  return o;
}

enum unit { MS, RATE, PERCENT, BYTES };

static void put_value(FILE *f, const json_t *v, int unit)
{
  char a[32];
  double x = json_number_value(v);
  fprintf(f, "<td>");
  if (!json_is_number(v)) fprintf(f, "\xe2\x80\x93");
  else if (unit == MS) fprintf(f, "%s ms", tc_si(a, sizeof a, x * 1e3));
  else if (unit == RATE) fprintf(f, "%s", tc_si(a, sizeof a, x));
  else if (unit == PERCENT) fprintf(f, "%.1f %%", 100 * x);
  else fprintf(f, "%s", tc_human_bytes(a, sizeof a, x));
  fprintf(f, "</td>");
}

static void put_row(FILE *f, const char *name, const json_t *want, const json_t *got, int unit)
{
  double a = json_number_value(want), b = json_number_value(got);
  fprintf(f, "<tr><td>%s</td>", name);
  put_value(f, want, unit);
  put_value(f, got, unit);
  fprintf(f, "<td>");
  if (!json_is_number(want) || !json_is_number(got)) fprintf(f, " ");
  else if (a == b) fprintf(f, "=");
  else if (unit == PERCENT) fprintf(f, "%+.1f points", 100 * (a - b));
  else if (b > 0) fprintf(f, "%+.1f %%", 100 * (a / b - 1));
  fprintf(f, "</td></tr>\n");
}

/* What a predicted step's time is made of, with bars, and where each figure comes from. */
static void put_terms(FILE *f, const json_t *want)
{
  json_t *terms = json_object_get(want, "terms_s"), *s;
  const double step_s = json_number_value(json_object_get(want, "step_s"));
  const char *name;
  char a[32];
  if (!json_object_size(terms) || step_s <= 0) return;
  fprintf(f, "<table><tr><th>the predicted time</th><th>seconds</th><th></th><th>figures</th></tr>\n");
  json_object_foreach(terms, name, s) {
    const double x = json_number_value(s), percent = 100 * x / step_s;
    fprintf(f, "<tr><td>");
    tc_html(f, name);
    fprintf(f, "</td><td>%s</td><td class=\"fill\"><div class=\"bar\"><i class=\"m0\" style=\"width:%.1f%%\"></i></div></td><td>",
            tc_human_seconds(a, sizeof a, x), percent);
    tc_html(f, tc_json_text(json_object_get(want, "terms_from"), name));
    fprintf(f, "</td></tr>\n");
  }
  fprintf(f, "</table>\n");
}

void tc_report_plan_table(FILE *f, const struct tc_page *p)
{
  const struct { const char *name, *key; int unit; } row[] = {
    { "time of a step", "step_s", MS }, { "tokens per second", "tokens_per_s", RATE },
    { "bubble of the pipeline", "bubble", PERCENT },
    { "memory of the largest rank", "device_bytes", BYTES } };
  json_t *o = tc_report_plan(p);
  const json_t *want = json_object_get(o, "predicted"), *got = json_object_get(o, "measured");
  const char *device = tc_json_text(want, "device");
  bool piped = tc_json_int(json_object_get(p->run, "mesh"), "pp") > 1;
  fprintf(f, "<h2 id=\"plan\">Predicted and measured</h2>\n<table><tr><th></th><th>predicted</th>"
          "<th>measured</th><th>error of the prediction</th></tr>\n");
  for (size_t i = 0; i < sizeof row / sizeof *row; i++)
    if (piped || row[i].unit != PERCENT)
      put_row(f, row[i].name, json_object_get(want, row[i].key), json_object_get(got, row[i].key),
              row[i].unit);
  for (int s = 0; s < TC_SETS; s++) {
    char name[64];
    const json_t *x = json_object_get(json_object_get(want, "bytes"), tc_set_name[s]);
    const json_t *y = json_object_get(json_object_get(got, "bytes"), tc_set_name[s]);
    snprintf(name, sizeof name, "sent by rank 0 on %s per step", tc_set_name[s]);
    if (json_number_value(x) > 0 || json_number_value(y) > 0) put_row(f, name, x, y, BYTES);
  }
  fprintf(f, "</table>\n<p class=\"note\">Measured: the median of the last 50 steps%s%s. ",
          p->m->stages ? " of the first stage, for which predictions are," : "", p->layouts->n ? " on the present layout" : "");
  if (*device) {
    fprintf(f, "Predicted for the device ");
    tc_html(f, device);
    fprintf(f, ".");
  } else {
    fprintf(f, "No time was predicted: run.plan_device names a device, or a file that tercio plan "
            "--calibrate wrote.");
  }
  fprintf(f, "</p>\n");
  put_terms(f, want);
  json_decref(o);
}
