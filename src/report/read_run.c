/* read_run.c - run.json and metrics.jsonl, read back and checked. */
#include "src/report/report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_RANKS = 1 << 20 };   /* a larger number can't be a rank, so the line is damaged */
enum { MOST_RUN_BYTES = 1 << 28 };

int64_t tc_json_int(const json_t *o, const char *key)
{
  return json_integer_value(json_object_get(o, key));
}

const char *tc_json_text(const json_t *o, const char *key)
{
  const char *s = json_string_value(json_object_get(o, key));
  return s ? s : "";
}

/* ---- series ------------------------------------------------------------------------------ */

static void series_add(struct tc_series *s, double x, const json_t *y)
{
  if (!json_is_number(y) || !isfinite(json_number_value(y))) return;
  TC_GROW(s->x, s->n, s->cap_x);
  TC_GROW(s->y, s->n, s->cap_y);
  s->x[s->n] = x;
  s->y[s->n++] = json_number_value(y);
}

void tc_series_free(struct tc_series *s)
{
  TC_FREE(s->x, s->y);
  memset(s, 0, sizeof *s);
}

/* Keeps the lowest and the highest point of each group of neighbours, in their order, and the last point. */
void tc_series_thin(struct tc_series *s, int most)
{
  int groups = most / 2, n = 0, last = s->n - 1;
  if (s->n <= most) return;
  for (int g = 0; g < groups; g++) {
    int a = (int)((int64_t)last * g / groups), b = (int)((int64_t)last * (g + 1) / groups);
    int lo = a, hi = a;
    for (int i = a; i < b; i++) {
      if (s->y[i] < s->y[lo]) lo = i;
      if (s->y[i] > s->y[hi]) hi = i;
    }
    const int keep[2] = { TC_MIN(lo, hi), TC_MAX(lo, hi) };
    for (int k = 0; k < 1 + (lo != hi); k++) {   /* n never exceeds the index that is read */
      s->x[n] = s->x[keep[k]];
      s->y[n++] = s->y[keep[k]];
    }
  }
  s->x[n] = s->x[last];
  s->y[n++] = s->y[last];
  s->n = n;
}

struct tc_series tc_series_thinned(const struct tc_series *s)
{
  enum { MOST = 600 };
  struct tc_series copy = { .x = tc_calloc((size_t)s->n + 1, sizeof *s->x),
                            .y = tc_calloc((size_t)s->n + 1, sizeof *s->y), .n = s->n };
  for (int i = 0; i < s->n; i++) copy.x[i] = s->x[i], copy.y[i] = s->y[i];
  tc_series_thin(&copy, MOST);
  return copy;
}

double tc_series_recent(const struct tc_series *s, int64_t after, int64_t last)
{
  double recent[50];
  int n = 0, end = s->n;
  while (end > 0 && s->x[end - 1] > (double)last) end--;
  while (n < TC_MIN(end, 50) && s->x[end - 1 - n] > (double)after) n++;
  if (!n) return NAN;
  memcpy(recent, s->y + end - n, (size_t)n * sizeof *recent);
  return tc_median(recent, n);
}

/* ---- metrics.jsonl ----------------------------------------------------------------------- */

/* The figures that are kept of all steps. */
static const struct { enum tc_metric metric; size_t at; } curves[] = {
  { TC_METRIC_LOSS, offsetof(struct tc_metrics, loss) }, { TC_METRIC_VAL_LOSS, offsetof(struct tc_metrics, val) },
  { TC_METRIC_LR, offsetof(struct tc_metrics, lr) },
  { TC_METRIC_GRAD_NORM, offsetof(struct tc_metrics, norm) }, { TC_METRIC_TOKENS_PER_S, offsetof(struct tc_metrics, rate) },
  { TC_METRIC_STEP_MS, offsetof(struct tc_metrics, ms) }, { TC_METRIC_BUBBLE, offsetof(struct tc_metrics, bubble) },
};
enum { CURVES = sizeof curves / sizeof *curves };

static struct tc_series *curve_of(struct tc_metrics *m, int i)
{
  return (struct tc_series *)(void *)((char *)m + curves[i].at);
}

static void take_slowest(struct tc_metrics *m, const json_t *line)
{
  const int64_t rank = json_integer_value(tc_metric_in(line, TC_METRIC_SLOWEST_RANK));
  const double work = json_number_value(tc_metric_in(line, TC_METRIC_SLOWEST_WORK_MS));
  const double median = json_number_value(tc_metric_in(line, TC_METRIC_SLOWEST_MEDIAN_MS));
  const char *host = json_string_value(tc_metric_in(line, TC_METRIC_SLOWEST_HOST));
  if (rank < 0 || rank >= MOST_RANKS || median <= 0) return;
  while (m->n_slow <= rank)
    TC_APPEND(m->slow, m->n_slow, m->cap_slow, (struct tc_straggler_tally){ .steps = 0 });
  struct tc_straggler_tally *s = &m->slow[rank];
  s->steps++;
  s->times += work / median;
  snprintf(s->host, sizeof s->host, "%s", host ? host : "");
  m->slow_steps++;
}

int tc_metrics_slowest(const struct tc_metrics *m)
{
  int worst = -1;
  for (int r = 0; r < m->n_slow; r++)
    if (m->slow[r].steps && (worst < 0 || m->slow[r].steps > m->slow[worst].steps)) worst = r;
  return worst;
}

/* Another layout begins: its figures are its own. */
static void drop_figures(struct tc_metrics *m)
{
  json_decref(m->comm);
  m->comm = NULL;
  m->comm_step = m->first_stage = m->slow_steps = m->n_slow = 0;
}

static void keep_last(json_t **kept, json_t *now)
{
  if (!json_is_array(now)) return;
  json_decref(*kept);
  *kept = json_incref(now);
}

/* The curve of that name, made if it is new. */
static struct tc_task_curve *find_task(struct tc_metrics *m, const char *name)
{
  for (int i = 0; i < m->n_tasks; i++)
    if (!strcmp(m->task[i].name, name)) return &m->task[i];
  TC_APPEND(m->task, m->n_tasks, m->cap_tasks, (struct tc_task_curve){ .name = tc_strdup(name) });
  return &m->task[m->n_tasks - 1];
}

static void take_tasks(struct tc_metrics *m, double at, const json_t *tasks)
{
  const json_t *task;
  size_t i;
  json_array_foreach(tasks, i, task) {
    const char *name = json_string_value(tc_metric_of(task, TC_METRIC_TASKS_NAME));
    if (!name) continue;
    struct tc_task_curve *t = find_task(m, name);
    t->questions = json_integer_value(tc_metric_of(task, TC_METRIC_TASKS_QUESTIONS));
    series_add(&t->right, at, tc_metric_of(task, TC_METRIC_TASKS_ACCURACY));
    series_add(&t->by_length, at, tc_metric_of(task, TC_METRIC_TASKS_ACCURACY_BY_LENGTH));
  }
}

/* Keeps a figure at the top of the line, with a null by its reason, if it is there. */
static void keep_figure(struct tc_at_step *kept, int64_t at, const json_t *line, enum tc_metric metric)
{
  const json_t *v = tc_metric_in(line, metric);
  const char *why = json_string_value(json_object_get(tc_metric_in(line, TC_METRIC_NOT_FINITE), tc_metric_row[metric].key));
  if (json_is_number(v)) *kept = (struct tc_at_step){ json_number_value(v), at };
  else if (why) *kept = (struct tc_at_step){ strtod(why, NULL), at };       /* "nan", "inf", "-inf" */
}

static void take_step(void *ctx, json_t *o)
{
  struct tc_metrics *m = ctx;
  const json_t *val = tc_metric_in(o, TC_METRIC_VAL_LOSS);
  const int64_t at = json_integer_value(tc_metric_in(o, TC_METRIC_STEP));
  if (at > m->after && m->steps.last <= m->after) drop_figures(m);
  m->tokens = json_number_value(tc_metric_in(o, TC_METRIC_TOKENS));
  m->seconds += json_number_value(tc_metric_in(o, TC_METRIC_STEP_MS)) * 1e-3;
  for (int i = 0; i < CURVES; i++) series_add(curve_of(m, i), (double)at, tc_metric_in(o, curves[i].metric));
  keep_figure(&m->last_loss, at, o, TC_METRIC_LOSS);
  keep_figure(&m->last_val, at, o, TC_METRIC_VAL_LOSS);
  take_slowest(m, o);
  take_tasks(m, (double)at, tc_metric_in(o, TC_METRIC_TASKS_NAME));
  keep_last(&m->sources, tc_metric_in(o, TC_METRIC_SOURCES_NAME));
  keep_last(&m->val_sources, tc_metric_in(o, TC_METRIC_VAL_SOURCES_NAME));
  if (json_integer_value(tc_metric_in(o, TC_METRIC_STAGE)) > 1) {
    m->stages = true;
    return;
  }
  m->first_stage = at;
  if (!m->comm || !json_is_number(val)) {        /* a step with an evaluation sends other bytes */
    json_decref(m->comm);
    m->comm = json_incref(tc_metric_in(o, TC_METRIC_COMM_CALLS));
    m->comm_step = at;
  }
}

int tc_metrics_read(struct tc_metrics *m, const char *path, int64_t after, struct tc_err *err)
{
  memset(m, 0, sizeof *m);
  m->after = after;
  const int rc = tc_steps_each(&m->steps, path, take_step, m, err);
  if (m->steps.last <= after) drop_figures(m);
  if (rc < 0) tc_metrics_free(m);
  return rc;
}

void tc_metrics_free(struct tc_metrics *m)
{
  for (int i = 0; i < CURVES; i++) tc_series_free(curve_of(m, i));
  json_decref(m->comm);
  json_decref(m->sources);
  json_decref(m->val_sources);
  for (int i = 0; i < m->n_tasks; i++) {
    free(m->task[i].name);
    tc_series_free(&m->task[i].right);
    tc_series_free(&m->task[i].by_length);
  }
  TC_FREE(m->task, m->slow);
  memset(m, 0, sizeof *m);
}

/* ---- run.json ---------------------------------------------------------------------------- */

int tc_run_folder(const char *path, struct tc_err *err)
{
  struct stat st;
  if (stat(path, &st) != 0) return tc_fail(err, TC_EUSER, "folder '%s' cannot be read: %s", path, strerror(errno));
  if (S_ISDIR(st.st_mode)) return 0;
  return tc_fail(err, TC_EUSER, "'%s' is not a folder; name the run's (its run.out)", path);
}

int tc_run_read(json_t **out, const char *path, struct tc_err *err)
{
  TC_TRY(tc_read_json(out, path, "run.json", MOST_RUN_BYTES, 0, NULL, err));
  if (json_is_string(json_object_get(*out, "config")) && json_is_object(json_object_get(*out, "mesh")) &&
      json_array_size(json_object_get(*out, "ranks"))) return 0;
  json_decref(*out);
  *out = NULL;
  return tc_fail(err, TC_EUSER, "%s has no config, mesh or ranks; is it a run.json of tercio train?", path);
}
