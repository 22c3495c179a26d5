/* page.c - the page of a run: a summary in one sentence, then facts, curves, the timeline, memory and bytes. */
#include "src/graph/mesh.h"
#include "src/report/report.h"

#include <stdlib.h>
#include <string.h>

/* ---- the head ---------------------------------------------------------------------------- */

static void fact(FILE *f, const char *what, const char *value)
{
  if (!*value) return;
  fprintf(f, "<dt>%s</dt><dd>", what);
  tc_html(f, value);
  fprintf(f, "</dd>\n");
}

static int64_t mesh_of(const struct tc_page *p, const char *axis)
{
  return TC_MAX(1, tc_json_int(json_object_get(p->run, "mesh"), axis));
}

static int count_nodes(const json_t *ranks)
{
  int64_t most = 0;
  for (size_t i = 0; i < json_array_size(ranks); i++)
    most = TC_MAX(most, tc_json_int(json_array_get(ranks, i), "node"));
  return (int)most + 1;
}

static void put_lead(FILE *f, const struct tc_page *p)
{
  char a[32], b[32], steps[32];
  const struct tc_metrics *m = p->m;
  const json_t *ranks = json_object_get(p->run, "ranks");
  int n = (int)json_array_size(ranks), nodes = count_nodes(ranks);
  int64_t of = strtoll(tc_run_key(p->run, "train", "steps", steps, sizeof steps), NULL, 10);
  fprintf(f, "<p class=\"lead\">A model of %s parameters was trained ",
          tc_si(a, sizeof a, (double)tc_json_int(p->run, "parameters")));
  if (m->steps.last == of) fprintf(f, "for all %lld steps", (long long)of);
  else fprintf(f, "to step %lld of %lld", (long long)m->steps.last, (long long)of);
  fprintf(f, " (%s tokens) on %d rank%s of %d node%s", tc_si(b, sizeof b, m->tokens), n,
          tc_plural(n), nodes, tc_plural(nodes));
  if (m->loss.n) {
    double from = m->loss.y[0], to = m->loss.y[m->loss.n - 1];
    if (m->loss.n == 1) fprintf(f, "; the loss is <b>%.4g</b>", to);
    else fprintf(f, "; the loss %s from %.4g to <b>%.4g</b>", to < from ? "fell" : "went", from, to);
    if (m->val.n) fprintf(f, ", the validation loss is <b>%.4g</b>", m->val.y[m->val.n - 1]);
  } else {
    fprintf(f, "; <b>the loss is not a number</b>");
  }
  if (m->steps.last <= m->after) {
    fprintf(f, ". No step has ended on the present layout yet.</p>\n");
    return;
  }
  fprintf(f, ". It ran at <b>%s tokens/s</b>, %s ms per step",
          tc_si(a, sizeof a, tc_series_recent(&m->rate, m->after, m->steps.last)),
          tc_si(b, sizeof b, tc_series_recent(&m->ms, m->after, m->steps.last)));
  if (m->after >= m->steps.first) fprintf(f, ", on the present layout (from step %lld)", (long long)m->after + 1);
  fprintf(f, ".</p>\n");
}

/* "node1, node2, node3 and 29 more" */
static void put_hosts(char *buf, size_t size, const json_t *ranks)
{
  int shown = 0, nodes = count_nodes(ranks);
  int64_t before = -1;
  *buf = 0;
  for (size_t i = 0; i < json_array_size(ranks); i++) {
    const json_t *r = json_array_get(ranks, i);
    if (tc_json_int(r, "node") <= before) continue;
    before = tc_json_int(r, "node");
    if (shown++ < 4) tc_text_add(buf, size, "%s%s", *buf ? ", " : "", tc_json_text(r, "host"));
  }
  if (nodes > 4) tc_text_add(buf, size, " and %d more", nodes - 4);
}

/* The last changes of layout. */
static void put_changes(FILE *f, const struct tc_layouts *l)
{
  enum { SHOWN = 5 };
  const int first = TC_MAX(l->n - SHOWN, 0);
  if (!l->n) return;
  fprintf(f, "<dt>Changes</dt><dd>");
  if (first) fprintf(f, "%d earlier ones; ", first);
  for (int i = first; i < l->n; i++) {
    fprintf(f, "%sfrom step %lld: ", i > first ? "; " : "", (long long)l->change[i].after_step + 1);
    tc_html(f, l->change[i].text);
  }
  fprintf(f, "</dd>\n");
}

static void put_facts(FILE *f, const struct tc_page *p)
{
  char v[500], a[64], b[64], c[TC_MESH_TEXT];
  const json_t *ranks = json_object_get(p->run, "ranks");
  const struct tc_metrics *m = p->m;
  fprintf(f, "<dl>\n");
  fact(f, "Model", tc_json_text(p->run, "model"));
  int32_t of_set[TC_SETS], size[TC_AXES], batches = (int32_t)mesh_of(p, "mb");
  for (int k = 0; k < TC_SETS; k++) of_set[k] = (int32_t)tc_json_int(json_object_get(p->run, "mesh"), tc_set_name[k]);
  tc_axes_from_sets(size, of_set);
  snprintf(v, sizeof v, "%s, %d micro-batch%s per step", tc_mesh_text(c, size, " ", " \xc3\x97 "), batches,
           batches == 1 ? "" : "es");
  fact(f, "Mesh", v);
  tc_run_key(p->run, "parallel", "schedule", a, sizeof a);
  bool pipe = mesh_of(p, "pp") > 1 && *a;
  snprintf(v, sizeof v, "%s%s%s%s%s", tc_json_text(p->run, "system"), pipe ? ", schedule " : "",
           pipe ? a : "", mesh_of(p, "tp") > 1 ? ", tensor parallel" : "",
           strcmp(tc_run_key(p->run, "parallel", "sequence", b, sizeof b), "yes") ? ""
                                                                    : ", sequence parallel");
  fact(f, "System", v);
  char hosts[300];
  put_hosts(hosts, sizeof hosts, ranks);
  snprintf(v, sizeof v, "%s: %d rank%s of %lld thread%s, %s, %s", hosts, (int)json_array_size(ranks),
           tc_plural(json_array_size(ranks)), (long long)tc_json_int(p->run, "threads"),
           tc_plural(tc_json_int(p->run, "threads")), tc_json_text(p->run, "device"),
           tc_json_text(p->run, "launcher"));
  fact(f, "Machine", v);
  char batch[150], lr[150];
  snprintf(v, sizeof v, "%s sequences; %s, %s, highest learning rate %s",
           tc_run_key_of_stages(p->run, "train", "global_batch", batch, sizeof batch),
           tc_run_key(p->run, "train", "optimizer", b, sizeof b),
           tc_run_key(p->run, "train", "precision", c, sizeof c),
           tc_run_key_of_stages(p->run, "train", "lr", lr, sizeof lr));
  fact(f, "Global batch", v);
  snprintf(v, sizeof v, "%lld to %lld in %.4g s; the last start was from step %lld",
           (long long)m->steps.first, (long long)m->steps.last, m->seconds,
           (long long)tc_json_int(p->run, "start_step"));
  fact(f, "Steps", v);
  put_changes(f, p->layouts);
  if (m->steps.broken) {
    snprintf(v, sizeof v, "%lld line%s of metrics.jsonl, which cannot be read (the first is line "
             "%lld)", (long long)m->steps.broken, tc_plural(m->steps.broken), (long long)m->steps.first_broken);
    fact(f, "Left out", v);
  }
  const int slow = tc_metrics_slowest(m);
  if (slow >= 0) {
    const struct tc_straggler_tally *s = &m->slow[slow];
    snprintf(v, sizeof v, "rank %d on %s, in %lld of %lld steps: %.3g times the median of its stage",
             slow, s->host, (long long)s->steps, (long long)m->slow_steps,
             s->times / (double)s->steps);
    fact(f, "Slowest rank", v);
  }
  fprintf(f, "</dl>\n");
}

static void put_charts(FILE *f, const struct tc_page *p)
{
  const struct tc_metrics *m = p->m;
  const struct tc_layouts *l = p->layouts;
  struct tc_series loss = tc_series_thinned(&m->loss), val = tc_series_thinned(&m->val),
                   norm = tc_series_thinned(&m->norm), rate = tc_series_thinned(&m->rate);
  fprintf(f, "<h2>Training</h2>\n<div class=\"charts\">\n");
  const struct tc_line losses[] = { { &loss, "training", "l-a" }, { &val, "validation", "l-b" } };
  const struct tc_line norms = { &norm, "last", "l-a" }, rates = { &rate, "last", "l-a" };
  tc_chart_svg(f, &(struct tc_chart){ "Loss", "", losses, 2, .layouts = l });
  tc_chart_svg(f, &(struct tc_chart){ "Norm of the gradients", "", &norms, 1, .layouts = l });
  tc_chart_svg(f, &(struct tc_chart){ "Speed", " tokens/s", &rates, 1, .from_zero = true, .layouts = l });
  fprintf(f, "</div>\n");
  if (l->n) fprintf(f, "<p class=\"note\">Dashed lines: changes of layout, batch or number of ranks.</p>\n");
  tc_series_free(&loss);
  tc_series_free(&val);
  tc_series_free(&norm);
  tc_series_free(&rate);
}

/* ---- the data ---------------------------------------------------------------------------- */

/* A row for each source: its name, and these figures. */
static void put_sources(FILE *f, const json_t *list, enum tc_metric name, const enum tc_metric *metric, int n)
{
  const json_t *source;
  size_t i;
  json_array_foreach(list, i, source) {
    fprintf(f, "<tr><td>");
    const char *text = json_string_value(tc_metric_of(source, name));
    tc_html(f, text ? text : "");
    for (int k = 0; k < n; k++) fprintf(f, "</td><td>%.5g", json_number_value(tc_metric_of(source, metric[k])));
    fprintf(f, "</td></tr>\n");
  }
}

/* Each source's share and epoch, and its validation loss, where there is a blend. */
static void put_data(FILE *f, const struct tc_page *p)
{
  static const enum tc_metric train[] = { TC_METRIC_SOURCES_SHARE, TC_METRIC_SOURCES_EPOCH },
                              val[] = { TC_METRIC_VAL_SOURCES_LOSS };
  if (!p->m->sources && !p->m->val_sources) return;
  fprintf(f, "<h2>Data</h2>\n");
  if (p->m->sources) {
    fprintf(f, "<table><tr><th>training data</th><th>share of the samples</th><th>epoch</th></tr>\n");
    put_sources(f, p->m->sources, TC_METRIC_SOURCES_NAME, train, 2);
    fprintf(f, "</table>\n");
  }
  if (!p->m->val_sources) return;
  fprintf(f, "<table><tr><th>validation data</th><th>last loss</th></tr>\n");
  put_sources(f, p->m->val_sources, TC_METRIC_VAL_SOURCES_NAME, val, 1);
  fprintf(f, "</table>\n");
}

/* ---- the timeline ------------------------------------------------------------------------ */

static void put_timeline(FILE *f, const struct tc_page *p)
{
  const struct tc_timeline *t = p->t;
  const struct { const char *css, *name, *axis; } key[] = {
    { "ev-f", "forward", NULL }, { "ev-b", "backward", NULL }, { "ev-w", "gradients of weights", NULL },
    { "ev-u", "update", NULL }, { "ev-none", "waiting", NULL }, { "ev-pp", "sends on pp", "pp" },
    { "ev-dp", "collectives on dp", "dp" }, { "ev-tp", "collectives on tp", "tp" } };
  fprintf(f, "<h2 id=\"timeline\">Timeline of a step</h2>\n");
  if (!t) {
    fprintf(f, "<p class=\"note\">");
    tc_html(f, p->trace_note);
    fprintf(f, "</p>\n");
    return;
  }
  double all = 0, part[TC_EV_KINDS] = { 0 };
  for (int i = 0; i < t->n_lanes; i++) {
    all += (t->end_us - t->begin_us) * 1e-2;
    for (int k = 0; k < TC_EV_KINDS; k++) part[k] += t->lane[i].busy_us[k];
  }
  if (t->step <= p->m->after)
    fprintf(f, "<p class=\"note\">This trace is from before the last change of layout.</p>\n");
  fprintf(f, "<p>Step %lld of the traced %lld to %lld took %.4g ms. The ranks computed <b>%.1f %%</b> of "
          "it (forward %.1f %%, backward %.1f %%, update %.1f %%) and waited for transfers %.1f %%. "
          "Numbers are micro-batches.</p>\n<p>", (long long)t->step, (long long)t->first_step,
          (long long)t->last_step, (t->end_us - t->begin_us) * 1e-3,
          (part[TC_EV_FORWARD] + part[TC_EV_BACKWARD] + part[TC_EV_WEIGHT] + part[TC_EV_UPDATE]) / all,
          part[TC_EV_FORWARD] / all, (part[TC_EV_BACKWARD] + part[TC_EV_WEIGHT]) / all,
          part[TC_EV_UPDATE] / all, part[TC_EV_WAIT] / all);
  for (size_t i = 0; i < sizeof key / sizeof *key; i++)
    if (!key[i].axis || mesh_of(p, key[i].axis) > 1)
      fprintf(f, "<span class=\"key\"><i class=\"%s\"></i>%s</span>", key[i].css, key[i].name);
  fprintf(f, "</p>\n");
  tc_timeline_svg(f, t);
  fprintf(f, "<p class=\"note\">At the right: computing, and waiting for transfers, as parts of the "
          "step. ");
  if (t->n_lanes < t->n_ranks)
    fprintf(f, "%d of %d ranks are drawn. ", t->n_lanes, t->n_ranks);
  if (t->dropped)
    fprintf(f, "The trace lacks %lld events, which did not fit into its buffers. ",
            (long long)t->dropped);
  if (t->clock_error_us > 0)
    fprintf(f, "Clocks of the nodes agree within %.0f \xc2\xb5s. ", t->clock_error_us);
  fprintf(f, "The trace opens in Perfetto and chrome://tracing.</p>\n");
}

/* ---- memory ------------------------------------------------------------------------------ */

static const char *const memory_keys[] = { "predicted_bytes", "predicted_host_bytes" };

static double class_sum(const json_t *classes)
{
  double sum = 0;
  const char *key;
  json_t *v;
  json_object_foreach((json_t *)classes, key, v) sum += json_number_value(v);
  return sum;
}

static bool same_memory(const json_t *a, const json_t *b)
{
  const char *const keys[] = { "predicted_bytes", "predicted_host_bytes", "allocated_bytes",
                               "predicted_total_bytes" };
  for (int i = 0; i < 4; i++)
    if (!json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i]))) return false;
  return true;
}

/* One row for ranks a..b-1, whose memory is equal. */
static void put_memory_row(FILE *f, const json_t *ranks, size_t a, size_t b, int space, double most)
{
  const json_t *m = json_object_get(json_array_get(ranks, a), "memory");
  const json_t *classes = json_object_get(m, memory_keys[space]);
  const json_t *got = json_object_get(m, "allocated_bytes");
  char h[32], g[32], r[32];
  const char *key;
  json_t *v;
  int k = 0;
  double peak = 0;
  for (size_t i = a; i < b; i++) {
    const json_t *mi = json_object_get(json_array_get(ranks, i), "memory");
    peak = TC_MAX(peak, json_number_value(json_object_get(json_object_get(mi, "resident_bytes"),
                                                          "peak")));
  }
  fprintf(f, "<tr><td>rank%s %zu", tc_plural((int64_t)(b - a)), a);
  if (b - a > 1) fprintf(f, "\xe2\x80\x93%zu", b - 1);
  fprintf(f, "%s</td><td class=\"fill\"><div class=\"bar\">", space ? ", host" : "");
  json_object_foreach((json_t *)classes, key, v) {
    double bytes = json_number_value(v);
    if (bytes > 0)
      fprintf(f, "<i class=\"m%d\" style=\"width:%.2f%%\" title=\"%s %s\"></i>", k % 6,
              100 * bytes / most, key, tc_human_bytes(h, sizeof h, bytes));
    k++;
  }
  int64_t want = tc_json_int(m, space ? "predicted_host_total_bytes" : "predicted_total_bytes");
  int64_t have = tc_json_int(got, space ? "host_state" : "state") +
                 tc_json_int(got, space ? "host_scratch" : "scratch") +
                 (space ? tc_json_int(got, "host_staging") : 0);
  fprintf(f, "</div></td><td>%s</td><td>%s%s</td><td>%s</td></tr>\n",
          tc_human_bytes(h, sizeof h, (double)want), tc_human_bytes(g, sizeof g, (double)have),
          want == have ? " =" : "", space ? "" : tc_human_bytes(r, sizeof r, peak));
}

static void put_memory(FILE *f, const struct tc_page *p)
{
  const json_t *ranks = json_object_get(p->run, "ranks");
  size_t n = json_array_size(ranks), rows = 0;
  double most = 1, host = 0;
  for (size_t i = 0; i < n; i++) {
    const json_t *m = json_object_get(json_array_get(ranks, i), "memory");
    most = TC_MAX(most, class_sum(json_object_get(m, memory_keys[0])));
    host = TC_MAX(host, class_sum(json_object_get(m, memory_keys[1])));
  }
  most = TC_MAX(most, host);
  fprintf(f, "<h2 id=\"memory\">Memory</h2>\n<p>");
  const char *key;
  json_t *v;
  int k = 0;
  const json_t *m0 = json_object_get(json_array_get(ranks, 0), "memory");
  json_object_foreach(json_object_get(m0, memory_keys[0]), key, v)
    fprintf(f, "<span class=\"key\"><i class=\"m%d\"></i>%s</span>", k++ % 6, key);
  fprintf(f, "</p>\n<table><tr><th>ranks</th><th></th><th>predicted</th><th>allocated</th>"
          "<th>process, peak</th></tr>\n");
  for (size_t a = 0, b; a < n && rows < 2 * TC_LANES; a = b) {
    const json_t *m = json_object_get(json_array_get(ranks, a), "memory");
    for (b = a + 1; b < n; b++)
      if (!same_memory(m, json_object_get(json_array_get(ranks, b), "memory"))) break;
    put_memory_row(f, ranks, a, b, 0, most);
    if (host > 0) put_memory_row(f, ranks, a, b, 1, most);
    rows += 1 + (host > 0);
  }
  fprintf(f, "</table>\n<p class=\"note\">Bars: the predicted bytes of state by class, and of the buffers at the "
          "peak of a step by class. =: allocated as predicted, to the byte. The process's total includes "
          "libraries%s.</p>\n", rows >= 2 * TC_LANES ? ". Not all ranks are shown" : "");
}

/* ---- bytes ------------------------------------------------------------------------------- */

static void put_bytes_row(FILE *f, const char *axis, const char *kind, const json_t *counted,
                          const json_t *predicted, double most)
{
  char a[32], b[32];
  double got = json_number_value(tc_metric_of(counted, TC_METRIC_COMM_BYTES));
  double want = json_number_value(tc_metric_of(predicted, TC_METRIC_COMM_BYTES));
  bool ctl = !strcmp(axis, "ctl");               /* stop requests are not part of the program */
  fprintf(f, "<tr><td>%s %s</td><td class=\"fill\"><div class=\"bar\"><i class=\"%s%s\" "
          "style=\"width:%.2f%%\"></i></div></td><td>%lld</td><td>%s</td><td>%s</td><td>%s</td></tr>\n",
          ctl ? "control" : axis, kind, ctl ? "ev-world" : "ev-", ctl ? "" : axis,
          100 * TC_MAX(got, want) / most, (long long)json_integer_value(tc_metric_of(counted, TC_METRIC_COMM_CALLS)),
          tc_human_bytes(a, sizeof a, got), ctl ? "" : tc_human_bytes(b, sizeof b, want),
          ctl ? "" : got == want ? "=" : "differs");
}

static void put_bytes(FILE *f, const struct tc_page *p)
{
  const json_t *want = json_object_get(json_array_get(json_object_get(p->run, "ranks"), 0),
                                       "predicted_comm");
  enum { n_axes = TC_SETS + 1 };
  const char *axes[n_axes];
  memcpy(axes, tc_set_name, sizeof tc_set_name);
  axes[TC_SETS] = "ctl";
  double most = 1;
  const char *kind;
  json_t *v;
  int rows = 0;
  for (int i = 0; i < n_axes; i++) {
    json_object_foreach(json_object_get(p->m->comm, axes[i]), kind, v)
      most = TC_MAX(most, json_number_value(tc_metric_of(v, TC_METRIC_COMM_BYTES)));
    json_object_foreach(json_object_get(want, axes[i]), kind, v)
      most = TC_MAX(most, json_number_value(tc_metric_of(v, TC_METRIC_COMM_BYTES)));
  }
  fprintf(f, "<h2 id=\"bytes\">Bytes that rank 0 sends per step</h2>\n");
  if (!p->m->comm) {
    fprintf(f, "<p class=\"note\">No step%s has ended on the present layout yet.</p>\n",
            p->m->stages ? " of the first stage, for which bytes are predicted," : "");
    return;
  }
  fprintf(f, "<table><tr><th>axis and kind</th>"
          "<th></th><th>calls</th><th>counted in step %lld</th><th>predicted</th><th></th></tr>\n",
          (long long)p->m->comm_step);
  for (int i = 0; i < n_axes; i++) {
    const json_t *got = json_object_get(p->m->comm, axes[i]), *say = json_object_get(want, axes[i]);
    json_object_foreach((json_t *)got, kind, v) {
      put_bytes_row(f, axes[i], kind, v, json_object_get(say, kind), most);
      rows++;
    }
    json_object_foreach((json_t *)say, kind, v) {
      if (json_object_get(got, kind)) continue;
      put_bytes_row(f, axes[i], kind, NULL, v, most);
      rows++;
    }
  }
  if (!rows) fprintf(f, "<tr><td>nothing: there is only one rank</td></tr>\n");
  fprintf(f, "</table>\n<p class=\"note\">Symmetric collectives count as a ring algorithm, those with a root as flat. "
          "Control: control traffic, such as agreeing on a stop.</p>\n");
}

void tc_page_write(FILE *f, const struct tc_page *p)
{
  tc_page_begin(f, p->folder);
  put_lead(f, p);
  put_facts(f, p);
  put_charts(f, p);
  tc_report_tasks(f, p);
  put_data(f, p);
  put_timeline(f, p);
  tc_report_plan_table(f, p);
  put_memory(f, p);
  put_bytes(f, p);
  fprintf(f, "<details><summary>The complete configuration</summary><pre>");
  tc_html(f, tc_json_text(p->run, "config"));
  fprintf(f, "</pre></details>\n");
  tc_page_end(f, tc_json_text(p->run, "version"));
}
