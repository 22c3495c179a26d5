/* timings.c - see timings.h.
 *
 * The events of a rank's step are in the order of its list of actions (exec/exec.c): they are matched one to one, and a
 * trace that does not match is an error. Where the device has a clock of its own its events come after those of the
 * host, which are the batches: these have an order of their own. */
#include "src/calibrate/timings.h"
#include "src/monitor/trace.h"
#include "src/program/collective.h"
#include "src/schedule/fusion.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void tc_timings_done(struct tc_timings *x)
{
  TC_FREE(x->t, x->issue);
}

/* Whether the executor traces this action on the compute track (exec/timing.c, event_of). */
static bool traced(const struct tc_program *p, const struct tc_mesh *m, int rank,
                   const struct tc_action *a, struct tc_op_cost *cost, bool *travels)
{
  const struct tc_node *n = &p->graph->node[a->node];
  bool none;
  tc_op_cost(cost, p->graph, n, m, rank, &none);
  *travels = false;
  if (n->op != TC_OP_RESHARD) return !none;
  if (n->coll == TC_COPY) return false;
  if (tc_coll_is_local(n->coll) || tc_mesh_size(m, n->axes) == 1) return a->kind != TC_WAIT;
  *travels = true;
  return tc_collective_coll(n, tc_mesh_index(m, rank, n->axes)) != TC_COLLS;
}

/* The events of one rank's step, or those of them with one clock: microseconds, in order. */
struct events { double *dur; const char **name; int n, at; };

/* Takes the timings of one rank's step. */
static int take_step(struct tc_timings *x, const struct tc_program *p, const struct tc_mesh *m, int rank, int run,
                     struct events *batches, struct events *rest, struct tc_err *err)
{
  for (int32_t i = 0; i < p->actions->n; i++) {
    const struct tc_action *a = &p->actions->action[i];
    const struct tc_node *n = &p->graph->node[a->node];
    struct events *e = n->op == TC_OP_DATA ? batches : rest;
    struct tc_op_cost cost;
    bool travels;
    if (!traced(p, m, rank, a, &cost, &travels)) continue;
    if (e->at >= e->n || (n->op != TC_OP_RESHARD && strcmp(e->name[e->at], tc_op_info[n->op].name)))
      return tc_fail(err, TC_EUSER, "calibrating: the trace does not match the program at action %d (%s, %s)", i,
                     tc_op_info[n->op].name, e->at < e->n ? e->name[e->at] : "nothing");
    double s = e->dur[e->at++] * 1e-6;
    if (travels) {
      if (a->kind == TC_ISSUE) TC_APPEND(x->issue, x->n_issues, x->cap_issues, s);
      continue;
    }
    TC_GROW(x->t, x->n, x->cap);
    struct tc_timing *t = &x->t[x->n++];
    *t = (struct tc_timing){ { .op = n->op, .ranks = cost.ranks, .seconds = s }, run, rank, n->id };
    tc_op_key(&cost, t->s.key);
  }
  const int left = batches->n - batches->at + rest->n - rest->at;
  return left == 0 ? 0 : tc_fail(err, TC_EUSER, "calibrating: the trace of rank %d has %d more events than the program",
                                 rank, left);
}

static int64_t step_of(json_t *event)
{
  return json_integer_value(json_object_get(json_object_get(event, "args"), "step"));
}

static int take_rank(struct tc_timings *x, json_t *events, const struct tc_program *p, const struct tc_mesh *m,
                     int rank, int run, int steps, struct tc_err *err)
{
  const size_t all = json_array_size(events) + 1;
  struct events part[2];
  int rc = 0;
  for (int i = 0; i < 2; i++)
    part[i] = (struct events){ tc_calloc(all, sizeof *part->dur), tc_calloc(all, sizeof *part->name), 0, 0 };
  for (int step = 2; step < steps && !rc; step++) {   /* the first is a warm-up, the last evaluates */
    size_t i;
    json_t *e;
    part[0].n = part[0].at = part[1].n = part[1].at = 0;
    json_array_foreach(events, i, e) {
      const char *ph = json_string_value(json_object_get(e, "ph"));
      const char *name = json_string_value(json_object_get(e, "name"));
      if (!ph || strcmp(ph, "X") || !name || json_integer_value(json_object_get(e, "pid")) != rank
          || json_integer_value(json_object_get(e, "tid")) != TC_TRACK_COMPUTE || step_of(e) != step)
        continue;
      struct events *to = &part[strcmp(name, tc_op_info[TC_OP_DATA].name) != 0];      /* batches, the rest */
      to->dur[to->n] = json_number_value(json_object_get(e, "dur"));
      to->name[to->n++] = name;
    }
    rc = take_step(x, p, m, rank, run, &part[0], &part[1], err);
  }
  for (int i = 0; i < 2; i++) TC_FREE(part[i].dur, part[i].name);
  return rc;
}

static double middle_step_s(json_t *events, int steps)
{
  double *s = tc_calloc((size_t)steps, sizeof *s);
  int n = 0;
  size_t i;
  json_t *e;
  json_array_foreach(events, i, e) {
    const char *name = json_string_value(json_object_get(e, "name"));
    if (name && !strcmp(name, "step") && json_integer_value(json_object_get(e, "pid")) == 0 && step_of(e) > 1
        && n < steps)
      s[n++] = json_number_value(json_object_get(e, "dur")) * 1e-6;
  }
  const double middle = n ? tc_median(s, n) : 0;
  free(s);
  return middle;
}

static int read_trace(json_t **events, json_t **whole, const char *path, struct tc_err *err)
{
  const int rc = tc_read_json(whole, path, "trace", SIZE_MAX / 2, 0, NULL, err);
  *events = json_object_get(*whole, "traceEvents");
  return rc;
}

int tc_timings_take(struct tc_timings *x, const char *path, const struct tc_config *c, int run, int steps,
                    double *step_s, struct tc_err *err)
{
  const int world = (int)c->run_ranks;
  int32_t *node = tc_calloc((size_t)world, sizeof *node);
  struct tc_mesh *m = NULL;
  struct tc_program_opts opts;
  struct tc_annotation *rows = NULL;
  json_t *o, *events;
  int rc = read_trace(&events, &o, path, err);
  if (!rc) rc = tc_setup_mesh(&m, c, world, node, 0, err);
  if (!rc) rc = tc_setup_program(&opts, c, m, &rows, err);
  *step_s = middle_step_s(events, steps);
  for (int r = 0; r < world && !rc; r++) {
    struct tc_program *p = NULL;
    rc = tc_program_new(&p, &opts, m, r, NULL, NULL, err);
    if (!rc) rc = take_rank(x, events, p, m, r, run, steps, err);
    tc_program_free(p);
  }
  tc_annotations_free(rows);
  tc_mesh_free(m);
  free(node);
  json_decref(o);
  return rc;
}

int tc_timings_take_fused(struct tc_timings *x, const char *path, struct tc_err *err)
{
  json_t *o, *events, *e;
  size_t i;
  TC_TRY(read_trace(&events, &o, path, err));
  json_array_foreach(events, i, e) {
    const char *name = json_string_value(json_object_get(e, "name"));
    for (int k = 0; name && k < TC_FUSIONS; k++)
      if (!strcmp(name, tc_fusion_rule[k].name)) x->fuses |= UINT32_C(1) << k;
  }
  json_decref(o);
  return 0;
}

double tc_metrics_step_s(const char *path, int first, int last)
{
  double *s = tc_calloc((size_t)(last - first) + 1, sizeof *s), ms;
  char *line;
  struct tc_err err = { 0 };
  struct tc_lines *f = NULL;
  int n = 0;
  if (tc_lines_open(&f, path, "metrics", &err) < 0) tc_warn("%s", err.text);
  while (f && n <= last - first && tc_lines_next(f, &line, NULL, &err) == 1) {
    json_t *o = json_loads(line, 0, NULL);
    const int step = (int)json_integer_value(json_object_get(o, "step"));
    ms = json_number_value(json_object_get(o, "step_ms"));
    if (step >= first && step <= last && ms > 0) s[n++] = ms * 1e-3;
    json_decref(o);
  }
  tc_lines_close(f);
  ms = n ? tc_median(s, n) : 0;
  free(s);
  return ms;
}

static int by_node(const void *a, const void *b)
{
  const struct tc_timing *x = a, *y = b;
  if (x->s.op != y->s.op) return x->s.op < y->s.op ? -1 : 1;
  if (x->s.ranks != y->s.ranks) return x->s.ranks < y->s.ranks ? -1 : 1;
  int k = memcmp(x->s.key, y->s.key, sizeof x->s.key);
  if (k) return k;
  if (x->run != y->run) return x->run < y->run ? -1 : 1;
  if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
  if (x->node != y->node) return x->node < y->node ? -1 : 1;
  return x->s.seconds < y->s.seconds ? -1 : x->s.seconds > y->s.seconds;
}

static bool same_shape(const struct tc_timing *a, const struct tc_timing *b)
{
  return a->s.op == b->s.op && a->s.ranks == b->s.ranks &&
         !memcmp(a->s.key, b->s.key, sizeof a->s.key);
}

static void raise_rates(struct tc_plan_device *d, const struct tc_op_sample *s)
{
  double *flops = &d->flops[(int)s->key[3] / 4 == TC_BF16 ? TC_BF16 : TC_F32];
  if (s->op == TC_OP_MATMUL) *flops = TC_MAX(*flops, 2 * s->key[0] * s->key[1] * s->key[2] / s->seconds);
  if (s->op == TC_OP_ADD && s->key[0] > 1e5) d->bytes_per_s = TC_MAX(d->bytes_per_s, s->key[0] / s->seconds);
}

void tc_timings_reduce(struct tc_timings *x, struct tc_plan_device *d)
{
  qsort(x->t, (size_t)x->n, sizeof *x->t, by_node);
  for (int i = 0; i < x->n;) {
    double sum = 0;
    int nodes = 0, first = i;
    while (i < x->n && same_shape(&x->t[i], &x->t[first])) {
      int j = i;
      while (j < x->n && same_shape(&x->t[j], &x->t[i]) && x->t[j].run == x->t[i].run &&
             x->t[j].rank == x->t[i].rank && x->t[j].node == x->t[i].node)
        j++;
      sum += x->t[i + (j - i) / 2].s.seconds;
      nodes++;
      i = j;
    }
    TC_GROW(d->sample, d->n_samples, d->cap_samples);
    struct tc_op_sample *s = &d->sample[d->n_samples++];
    *s = x->t[first].s;
    s->seconds = sum / nodes;
    raise_rates(d, s);
  }
}
