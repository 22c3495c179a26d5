/* compare_runs.c - several runs beside each other: what their figures are, which of their options differ, as JSON and as
 * tables of texts.
 *
 * A figure that is not finite never wins: the best validation loss is a finite one, and a run without one comes last. */
#include "src/report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ----------------------------------------------------------------------------- */

static size_t without_slashes(const char *path)
{
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') n--;
  return n;
}

/* Bytes of the folder that all paths begin with, its "/" included. */
static size_t common_folder(const struct tc_comparison *c)
{
  const char *first = c->run[0].r.folder;
  size_t same = 0;
  for (size_t i = 0; i < without_slashes(first); i++) {
    for (int k = 1; k < c->n; k++)
      if (i >= without_slashes(c->run[k].r.folder) || c->run[k].r.folder[i] != first[i]) return same;
    if (first[i] == '/') same = i + 1;
  }
  return same;
}

static struct tc_at_step lowest(const struct tc_series *s)
{
  struct tc_at_step best = { .step = 0 };
  for (int i = 0; i < s->n; i++)
    if (!best.step || s->y[i] < best.value) best = (struct tc_at_step){ s->y[i], (int64_t)s->x[i] };
  return best;
}

/* The value to sort by: infinity if it is missing or not finite. */
static double rank_of(struct tc_at_step a) { return a.step && isfinite(a.value) ? a.value : (double)INFINITY; }

static int order_runs(const void *a, const void *b)
{
  const struct tc_compared *x = a, *y = b;
  const double of[2][2] = { { rank_of(x->best), rank_of(y->best) }, { rank_of(x->r.m.last_loss), rank_of(y->r.m.last_loss) } };
  for (int i = 0; i < 2; i++)
    if (of[i][0] != of[i][1]) return of[i][0] < of[i][1] ? -1 : 1;
  return strcmp(x->r.folder, y->r.folder);
}

int tc_compare_read(struct tc_comparison *c, const char *const *folder, int n, struct tc_err *err)
{
  struct tc_err unread = { 0 };
  *c = (struct tc_comparison){ .run = tc_calloc((size_t)n, sizeof *c->run), .n = n };
  for (int i = 0; i < n; i++) TC_TRY(tc_run_open(&c->run[i].r, folder[i], err));
  for (int i = 0; i < n; i++) {
    struct tc_compared *r = &c->run[i];
    if (tc_run_metrics(&r->r, &unread) < 0) tc_warn("%s; the run is compared without figures", unread.text);
    r->best = lowest(&r->r.m.val);
  }
  const size_t same = common_folder(c);
  for (int i = 0; i < n; i++)
    c->run[i].name = tc_sprintf("%.*s", (int)(without_slashes(folder[i]) - same), folder[i] + same);
  qsort(c->run, (size_t)n, sizeof *c->run, order_runs);
  const json_t **run = tc_calloc((size_t)n, sizeof *run);
  json_t **options = tc_calloc((size_t)n, sizeof *options);
  for (int i = 0; i < n; i++) run[i] = c->run[i].r.run;
  tc_run_differences(options, run, n);
  for (int i = 0; i < n; i++) c->run[i].options = options[i];
  TC_FREE(run, options);
  return 0;
}

void tc_compare_free(struct tc_comparison *c)
{
  for (int i = 0; i < c->n; i++) {
    tc_run_close(&c->run[i].r);
    free(c->run[i].name);
    json_decref(c->run[i].options);
  }
  free(c->run);
}

/* ---- figures ----------------------------------------------------------------------------- */

/* The GPUs, of which one may have several ranks; on CPUs each rank counts. */
static int count_devices(const json_t *run)
{
  const json_t *ranks = json_object_get(run, "ranks");
  json_t *seen = json_object();
  for (size_t i = 0; i < json_array_size(ranks); i++) {
    const char *uuid = tc_json_text(json_array_get(ranks, i), "uuid");
    char *rank = tc_sprintf("rank %zu", i);
    json_object_set_new(seen, *uuid ? uuid : rank, json_true());
    free(rank);
  }
  const int n = (int)json_object_size(seen);
  json_decref(seen);
  return n;
}

static void put_figure(json_t *o, const char *key, struct tc_at_step a)
{
  if (a.step) tc_figure(o, key, a.value);
  else json_object_set_new(o, key, json_null());
}

static json_t *figures_of(const struct tc_compared *r)
{
  const struct tc_metrics *m = &r->r.m;
  const double rate = tc_series_recent(&m->rate, m->after, m->steps.last);      /* of finite ones */
  char text[32];
  const double lr = strtod(tc_run_key(r->r.run, "train", "lr", text, sizeof text), NULL);
  json_t *o = json_pack("{s:s}", "folder", r->r.folder);
  tc_figure(o, "lr", lr);
  json_object_set_new(o, "steps", json_integer(m->steps.last));
  json_object_set_new(o, "of_steps", json_integer(strtoll(tc_run_key(r->r.run, "train", "steps", text, sizeof text), NULL, 10)));
  put_figure(o, "loss", m->last_loss);
  put_figure(o, "val_loss", m->last_val);
  put_figure(o, "best_val_loss", r->best);
  json_object_set_new(o, "best_step", r->best.step ? json_integer(r->best.step) : json_null());
  json_object_set_new(o, "tokens", m->steps.last ? json_integer((json_int_t)m->tokens) : json_null());
  put_figure(o, "tokens_per_s", (struct tc_at_step){ rate, isfinite(rate) });
  put_figure(o, "seconds", (struct tc_at_step){ m->seconds, m->steps.last });
  json_object_set_new(o, "devices", json_integer(count_devices(r->r.run)));
  json_object_set_new(o, "device", json_string(tc_json_text(r->r.run, "device")));
  json_object_set_new(o, "broken_lines", json_integer(m->steps.broken));
  json_object_set(o, "options", r->options);
  return o;
}

json_t *tc_compare_json(const struct tc_comparison *c)
{
  json_t *list = json_array();
  for (int i = 0; i < c->n; i++) json_array_append_new(list, figures_of(&c->run[i]));
  return json_pack("{s:o}", "runs", list);
}

/* ---- tables ------------------------------------------------------------------------------ */

static struct tc_cells new_cells(int rows, int columns, bool runs_are_rows)
{
  return (struct tc_cells){ tc_calloc((size_t)rows * (size_t)columns, sizeof(char *)), rows, columns, runs_are_rows };
}

void tc_cells_free(struct tc_cells *t)
{
  for (int i = 0; i < t->rows * t->columns; i++) free(t->cell[i]);
  free(t->cell);
}

/* "-": there is none. Owned. */
static char *loss_text(struct tc_at_step a) { return a.step ? tc_sprintf("%.5g", tc_unsigned_nan(a.value)) : tc_strdup("-"); }

static void put_figures(char **cell, const struct tc_compared *r)
{
  const struct tc_metrics *m = &r->r.m;
  const json_t *run = r->r.run;
  const double rate = tc_series_recent(&m->rate, m->after, m->steps.last);
  char a[32], of[32];
  tc_run_key(run, "train", "steps", of, sizeof of);
  *cell++ = tc_strdup(r->name);
  *cell++ = tc_strdup(tc_run_key(run, "train", "lr", a, sizeof a));
  *cell++ = m->steps.last == strtoll(of, NULL, 10) ? tc_strdup(of) : tc_sprintf("%lld of %s", (long long)m->steps.last, of);
  *cell++ = loss_text(m->last_loss);
  *cell++ = loss_text(m->last_val);
  *cell++ = loss_text(r->best);
  *cell++ = r->best.step ? tc_sprintf("%lld", (long long)r->best.step) : tc_strdup("-");
  *cell++ = tc_strdup(m->steps.last ? tc_si(a, sizeof a, m->tokens) : "-");
  *cell++ = tc_strdup(isfinite(rate) ? tc_si(a, sizeof a, rate) : "-");
  *cell++ = tc_strdup(m->steps.last ? tc_human_seconds(a, sizeof a, m->seconds) : "-");
  *cell++ = tc_sprintf("%d %s", count_devices(run), tc_json_text(run, "device"));
}

struct tc_cells tc_compare_figures(const struct tc_comparison *c)
{
  static const char *const head[] = { "run", "lr", "steps", "loss", "val loss", "best val", "at step", "tokens", "tokens/s", "time",
                                      "devices" };
  const int columns = sizeof head / sizeof *head;
  const struct tc_cells t = new_cells(c->n + 1, columns, true);
  for (int k = 0; k < columns; k++) t.cell[k] = tc_strdup(head[k]);
  for (int i = 0; i < c->n; i++) put_figures(t.cell + (i + 1) * columns, &c->run[i]);
  return t;
}

/* Rows become columns. */
static struct tc_cells turned(struct tc_cells t)
{
  const struct tc_cells u = new_cells(t.columns, t.rows, !t.runs_are_rows);
  for (int i = 0; i < t.rows; i++)
    for (int k = 0; k < t.columns; k++) u.cell[k * u.columns + i] = t.cell[i * t.columns + k];
  free(t.cell);
  return u;
}

struct tc_cells tc_compare_options(const struct tc_comparison *c)
{
  enum { MOST_ACROSS = 8 };
  const int columns = c->n + 1;
  const struct tc_cells t = new_cells((int)json_object_size(c->run[0].options) + 1, columns, false);
  const char *name;
  json_t *v;
  char **cell = t.cell;
  *cell++ = tc_strdup(c->n > MOST_ACROSS ? "run" : "option");
  for (int i = 0; i < c->n; i++) *cell++ = tc_strdup(c->run[i].name);
  json_object_foreach(c->run[0].options, name, v) {
    *cell++ = tc_strdup(name);
    for (int i = 0; i < c->n; i++) {
      const char *text = json_string_value(json_object_get(c->run[i].options, name));
      *cell++ = tc_strdup(!text ? "-" : *text ? text : "\"\"");
    }
  }
  return c->n > MOST_ACROSS ? turned(t) : t;
}
