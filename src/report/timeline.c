/* timeline.c - reads one step of a trace that monitor/trace.c wrote.
 *
 * The file has one event per line, so it is read line by line, twice: first the steps' lengths, then
 * the events of the step that is drawn. A trace may be far larger than that step. */
#include "src/report/report.h"

#include <stdlib.h>
#include <string.h>

struct bounds { double begin_us, end_us; int ranks; };   /* of a step, over all ranks */

struct reading {
  struct tc_timeline *t;
  const char *path;
  struct bounds *step;           /* [n_steps], from step `base` on */
  int64_t base; int n_steps;
  int cap_names;
  char **name;                   /* [cap_names] processes' names */
  bool whole;                    /* the file has its last line */
};

/* Calls take() for each event. */
static int each_line(struct reading *r, void (*take)(struct reading *, const json_t *),
                     struct tc_err *err)
{
  struct tc_lines *f;
  char *line;
  size_t len;
  int rc;
  TC_TRY(tc_lines_open(&f, r->path, "trace", err));
  while ((rc = tc_lines_next(f, &line, &len, err)) == 1) {
    const char *tail = "\"otherData\":";
    bool last = !strncmp(line, tail, strlen(tail));
    const char *from = last ? line + strlen(tail) : line;
    size_t n = len - (size_t)(from - line);
    while (n && (from[n - 1] == '\n' || from[n - 1] == ',')) n--;
    if (last && n) n--;                          /* the enclosing object */
    if (!n || *from != '{' || from[n - 1] != '}') continue;
    json_t *o = json_loadb(from, n, 0, NULL);
    if (o && last) {
      r->whole = true;
      r->t->first_step = tc_json_int(o, "first_step");
      r->t->last_step = tc_json_int(o, "last_step");
      r->t->events = tc_json_int(o, "events");
      r->t->dropped = tc_json_int(o, "dropped");
      r->t->clock_error_us = json_number_value(json_object_get(o, "clock_error_us"));
    } else if (o) {
      take(r, o);
    }
    json_decref(o);
  }
  tc_lines_close(f);
  return rc;
}

static int kind_of(const json_t *o)
{
  const char *cat = tc_json_text(o, "cat");
  int k = 0;
  while (k < TC_EV_KINDS && strcmp(cat, tc_event_kind_name[k])) k++;
  return k;
}

static void take_name(struct reading *r, const json_t *o, int64_t pid)
{
  const char *what = tc_json_text(o, "name");
  const char *name = tc_json_text(json_object_get(o, "args"), "name");
  int64_t tid = tc_json_int(o, "tid");
  if (!strcmp(what, "thread_name") && tid >= 0 && tid < 256 && !r->t->track[tid])
    r->t->track[tid] = tc_strdup(name);
  if (strcmp(what, "process_name")) return;
  if (pid >= r->cap_names) {
    int cap = (int)TC_MAX(pid + 1, 2 * r->cap_names);
    r->name = tc_realloc(r->name, (size_t)cap * sizeof *r->name);
    memset(r->name + r->cap_names, 0, (size_t)(cap - r->cap_names) * sizeof *r->name);
    r->cap_names = cap;
  }
  if (!r->name[pid]) r->name[pid] = tc_strdup(name);
  r->t->n_ranks = (int)TC_MAX(r->t->n_ranks, pid + 1);
}

/* First pass: the ranks, and the time of each step. */
static void take_step(struct reading *r, const json_t *o)
{
  int64_t pid = tc_json_int(o, "pid"), step = tc_json_int(json_object_get(o, "args"), "step");
  if (pid < 0 || pid >= 1 << 24) return;
  if (!strcmp(tc_json_text(o, "ph"), "M")) take_name(r, o, pid);
  if (kind_of(o) != TC_EV_STEP) return;
  double begin = json_number_value(json_object_get(o, "ts"));
  double end = begin + json_number_value(json_object_get(o, "dur"));
  if (r->n_steps == 0) r->base = step;           /* rank 0's events come first, in order */
  int64_t at = step - r->base;
  if (at < 0 || at > r->n_steps) return;
  if (at == r->n_steps) {
    r->step = tc_realloc(r->step, (size_t)(r->n_steps + 1) * sizeof *r->step);
    r->step[r->n_steps++] = (struct bounds){ begin, end, 0 };
  }
  struct bounds *b = &r->step[at];
  b->begin_us = TC_MIN(b->begin_us, begin);
  b->end_us = TC_MAX(b->end_us, end);
  b->ranks++;
}

static double length(const struct bounds *b) { return b->end_us - b->begin_us; }

/* The step of median length; the first, a warm-up step, only if there is no other. */
static int median_step(const struct reading *r)
{
  int best = -1, n = 0;
  for (int i = 0; i < r->n_steps; i++) n += r->step[i].ranks == r->t->n_ranks;
  for (int i = 0; i < r->n_steps && best < 0; i++) {
    int shorter = 0, others = 0;
    if (r->step[i].ranks != r->t->n_ranks || (n > 1 && i == 0)) continue;
    for (int k = n > 1; k < r->n_steps; k++) {
      if (r->step[k].ranks != r->t->n_ranks) continue;
      others++;
      double d = length(&r->step[k]) - length(&r->step[i]);
      shorter += d < 0 || (d == 0 && k < i);
    }
    if (shorter == others / 2) best = i;
  }
  return best;
}

/* Second pass: the events of the step. */
static void take_span(struct reading *r, const json_t *o)
{
  struct tc_timeline *t = r->t;
  const json_t *args = json_object_get(o, "args"), *mb = json_object_get(args, "mb");
  int64_t pid = tc_json_int(o, "pid"), tid = tc_json_int(o, "tid");
  int kind = kind_of(o), lane = 0;
  if (kind == TC_EV_KINDS || kind == TC_EV_STEP || tid < 0 || tid > 255 ||
      strcmp(tc_json_text(o, "ph"), "X") || tc_json_int(args, "step") != t->step)
    return;
  while (lane < t->n_lanes && t->lane[lane].rank != pid) lane++;
  if (lane == t->n_lanes) return;
  double begin = json_number_value(json_object_get(o, "ts"));
  double end = begin + json_number_value(json_object_get(o, "dur"));
  if (begin >= t->end_us || end <= t->begin_us) return;    /* events between steps */
  end = TC_MIN(end, t->end_us);
  t->lane[lane].busy_us[kind] += end - begin;
  TC_APPEND(t->span, t->n_spans, t->cap_spans, (struct tc_span){
    begin, end, json_is_integer(mb) ? (int32_t)json_integer_value(mb) : -1, (int16_t)lane,
    (uint8_t)tid, (uint8_t)kind });
}

static int in_time(const void *a, const void *b)
{
  const struct tc_span *x = a, *y = b;
  if (x->lane != y->lane) return x->lane - y->lane;
  if (x->track != y->track) return x->track - y->track;
  return (x->begin_us > y->begin_us) - (x->begin_us < y->begin_us);
}

static int choose_step(struct reading *r, int64_t want, struct tc_err *err)
{
  struct tc_timeline *t = r->t;
  int at = want ? (int)TC_MAX(-1, TC_MIN(want - r->base, r->n_steps)) : median_step(r);
  if (!r->whole || !t->n_ranks)
    return tc_fail(err, TC_EUSER, "trace %s is %s", r->path,
                   t->n_ranks ? "truncated: its last line is missing"
                              : "not one that tercio train wrote");
  if (at < 0 || at >= r->n_steps || r->step[at].ranks != t->n_ranks)
    return tc_fail(err, TC_EUSER, want ? "trace %s has no step %lld of all ranks; it has %lld to %lld"
                                       : "trace %s has no step of all ranks", r->path,
                   (long long)want, (long long)t->first_step, (long long)t->last_step);
  t->step = r->base + at;
  t->begin_us = r->step[at].begin_us;
  t->end_us = TC_MAX(r->step[at].end_us, t->begin_us + 1e-3);
  t->n_lanes = TC_MIN(t->n_ranks, TC_LANES);
  for (int i = 0; i < t->n_lanes; i++) {
    int rank = (int)((int64_t)i * t->n_ranks / t->n_lanes);
    t->lane[i].rank = rank;
    t->lane[i].name = tc_strdup(r->name[rank] ? r->name[rank] : "");
  }
  return 0;
}

int tc_timeline_read(struct tc_timeline *t, const char *path, int64_t step, struct tc_err *err)
{
  struct reading r = { .t = t, .path = path };
  memset(t, 0, sizeof *t);
  int rc = each_line(&r, take_step, err);
  if (!rc) rc = choose_step(&r, step, err);
  if (!rc) rc = each_line(&r, take_span, err);
  if (t->n_spans) qsort(t->span, (size_t)t->n_spans, sizeof *t->span, in_time);
  for (int i = 0; i < r.cap_names; i++) free(r.name[i]);
  TC_FREE(r.name, r.step);
  if (rc < 0) tc_timeline_free(t);
  return rc;
}

void tc_timeline_free(struct tc_timeline *t)
{
  for (int i = 0; i < TC_LANES; i++) free(t->lane[i].name);
  for (int i = 0; i < 256; i++) free(t->track[i]);
  free(t->span);
  memset(t, 0, sizeof *t);
}
