/* simulate.c - a pipeline's schedule run on simulated ranks, and the order of its transfers.
 *
 * Why the order of tc_pipeline_transfers never deadlocks, without buffers, with one serial queue a
 * rank: let X be the first transfer in the global order that never completes. All before it
 * complete, so it gets to the head of both its queues. The item that makes X ended, in simulation,
 * at X's time; it and the items before it on its rank started before that (they take time), so
 * their inputs were made before X, came in transfers before X, which complete. So the item runs, X
 * is made, and completes. And when all transfers complete, so do all items. */
#include "src/schedule/impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char work_letter[TC_WORKS] = { 'F', 'B', 'W' };

/* ---- the simulation ------------------------------------------------------------------- */

/* One run of the simulation. A rank is visited when it may go on: at first, and whenever an input of
 * it arrives. Times are maxima and sums of times already known, so the order of visits changes nothing. */
struct run {
  const struct tc_pipeline *s;
  const struct tc_pipeline_cost *cost;
  int32_t n_cost;
  const struct tc_transfers *t;  /* NULL: transfers don't wait for each other */
  struct tc_simulation *sim;
  double *done, *there;          /* [F, B][p * v][m]: when made, when at the neighbour; -1: not yet */
  int32_t *at, *head;            /* [p]: next item; next in the queue */
  double *wire_free_at;          /* [p] */
  int32_t *todo, n_todo;         /* ranks to visit, each once */
  bool *in_todo;                 /* [p] */
};

static size_t slot(const struct tc_pipeline *s, int work, int32_t stage, int32_t mb)
{
  size_t stages = (size_t)s->p * (size_t)s->v;
  return ((size_t)work * stages + (size_t)stage) * (size_t)s->m + (size_t)mb;
}

/* The stage that what F or B makes goes to; -1 if nowhere. */
static int32_t next_stage(const struct tc_pipeline *s, int work, int32_t stage)
{
  if (work == TC_WORK_F) return stage + 1 < s->p * s->v ? stage + 1 : -1;
  return work == TC_WORK_B ? stage - 1 : -1;
}

static const struct tc_pipeline_cost *cost_of(const struct run *u, int32_t stage)
{
  return &u->cost[u->n_cost == 1 ? 0 : stage];
}

static void visit_later(struct run *u, int32_t rank)
{
  if (u->in_todo[rank]) return;
  u->in_todo[rank] = true;
  u->todo[u->n_todo++] = rank;
}

struct input { int work; int32_t stage; };

/* When all inputs of an item are there; -1 if one is not, which *lacks then is. */
static double inputs_at(const struct run *u, int32_t rank, struct tc_item x, struct input *lacks)
{
  int32_t stage = tc_pipeline_stage(u->s, rank, x.virtual_stage);
  struct input in[2];
  int n = 0;
  if (x.work == TC_WORK_F && stage > 0) in[n++] = (struct input){ TC_WORK_F, stage - 1 };
  if (x.work == TC_WORK_B) in[n++] = (struct input){ TC_WORK_F, stage };
  if (x.work == TC_WORK_B && stage + 1 < u->s->p * u->s->v)
    in[n++] = (struct input){ TC_WORK_B, stage + 1 };
  if (x.work == TC_WORK_W) in[n++] = (struct input){ TC_WORK_B, stage };
  double at = 0;
  for (int i = 0; i < n; i++) {
    size_t k = slot(u->s, in[i].work, in[i].stage, x.mb);
    double t = tc_pipeline_rank(u->s, in[i].stage) == rank ? u->done[k] : u->there[k];
    *lacks = in[i];
    if (t < 0) return -1;
    at = TC_MAX(at, t);
  }
  return at;
}

/* The rank's items until one lacks an input. */
static void run_items(struct run *u, int32_t r)
{
  const struct tc_pipeline *s = u->s;
  struct input lacks;
  for (; u->at[r] < s->n_items[r]; u->at[r]++) {
    struct tc_item x = s->item[r][u->at[r]];
    double start = inputs_at(u, r, x, &lacks);
    if (start < 0) return;
    int32_t stage = tc_pipeline_stage(s, r, x.virtual_stage), next = next_stage(s, x.work, stage);
    const struct tc_pipeline_cost *c = cost_of(u, stage);
    double takes = x.work == TC_WORK_F ? c->f : x.work == TC_WORK_W ? c->w
                 : c->b + (s->split ? 0 : c->w);
    start = TC_MAX(start, u->sim->free_at[r]);
    u->sim->start[r][u->at[r]] = start;
    u->sim->end[r][u->at[r]] = u->sim->free_at[r] = start + takes;
    u->sim->busy[r] += takes;
    if (x.work == TC_WORK_W) continue;
    size_t k = slot(s, x.work, stage, x.mb);
    u->done[k] = start + takes;
    if (next < 0 || tc_pipeline_rank(s, next) == r || u->t) continue;
    u->there[k] = u->done[k] + c->send;
    visit_later(u, tc_pipeline_rank(s, next));
  }
}

/* Completes the transfer at the head of a rank's queue if it can. */
static bool run_head(struct run *u, int32_t r)
{
  if (!u->t || u->head[r] == u->t->n_queue[r]) return false;
  int32_t id = u->t->queue[r][u->head[r]];
  const struct tc_transfer *t = &u->t->t[id];
  size_t k = slot(u->s, t->work, t->stage_from, t->mb);
  int32_t peer = r == t->from ? t->to : t->from;
  if (u->done[k] < 0 || u->head[peer] == u->t->n_queue[peer] ||
      u->t->queue[peer][u->head[peer]] != id)
    return false;
  double start = TC_MAX(u->done[k], TC_MAX(u->wire_free_at[r], u->wire_free_at[peer]));
  u->there[k] = start + cost_of(u, t->stage_from)->send;
  u->wire_free_at[r] = u->wire_free_at[peer] = u->there[k];
  u->head[r]++;
  u->head[peer]++;
  visit_later(u, peer);
  return true;
}

/* A sentence on the first rank that did not come to its end, if there is one. */
static int check_ended(const struct run *u, struct tc_err *err)
{
  const struct tc_pipeline *s = u->s;
  for (int32_t r = 0; r < s->p; r++) {
    char queue[200] = "";
    if (u->t && u->head[r] < u->t->n_queue[r]) {
      const struct tc_transfer *t = &u->t->t[u->t->queue[r][u->head[r]]];
      snprintf(queue, sizeof queue, "; next in its queue is %c of micro-batch %d from rank %d to rank %d",
               work_letter[t->work], t->mb, t->from, t->to);
    }
    if (u->at[r] < s->n_items[r]) {
      struct tc_item x = s->item[r][u->at[r]];
      struct input lacks = { TC_WORK_F, 0 };
      inputs_at(u, r, x, &lacks);
      return tc_fail(err, TC_ELAYOUT, "schedule %s, %d ranks, %d micro-batches: deadlock: rank %d at its "
                     "item %d, %c of micro-batch %d on virtual stage %d, waits for %c of stage %d on rank %d%s",
                     s->name, s->p, s->m, r, u->at[r], work_letter[x.work], x.mb, x.virtual_stage,
                     work_letter[lacks.work], lacks.stage, tc_pipeline_rank(s, lacks.stage), queue);
    }
    if (queue[0])
      return tc_fail(err, TC_ELAYOUT, "schedule %s, %d ranks, %d micro-batches: deadlock: rank %d has run "
                     "its items%s", s->name, s->p, s->m, r, queue);
  }
  return TC_OK;
}

static int run_all(struct run *u, struct tc_err *err)
{
  size_t p = (size_t)u->s->p, n = 2 * p * (size_t)u->s->v * (size_t)u->s->m;
  u->done = tc_malloc(n * sizeof *u->done);
  u->there = tc_malloc(n * sizeof *u->there);
  for (size_t k = 0; k < n; k++) u->done[k] = u->there[k] = -1;
  u->at = tc_calloc(p, sizeof *u->at);
  u->head = tc_calloc(p, sizeof *u->head);
  u->wire_free_at = tc_calloc(p, sizeof *u->wire_free_at);
  u->todo = tc_calloc(p, sizeof *u->todo);
  u->in_todo = tc_calloc(p, sizeof *u->in_todo);
  for (int32_t r = 0; r < u->s->p; r++) visit_later(u, r);
  while (u->n_todo) {
    int32_t r = u->todo[--u->n_todo];
    u->in_todo[r] = false;
    do run_items(u, r);
    while (run_head(u, r));
  }
  int rc = check_ended(u, err);
  TC_FREE(u->done, u->there, u->at, u->head, u->wire_free_at, u->todo, u->in_todo);
  return rc;
}

/* ---- the result ------------------------------------------------------------------------ */

static int check_costs(const struct tc_pipeline *s, const struct tc_pipeline_cost *cost,
                       int32_t n_cost, struct tc_err *err)
{
  TC_ASSERT(n_cost == 1 || n_cost == s->p * s->v);
  for (int32_t i = 0; i < n_cost; i++) {
    const double each[] = { cost[i].f, cost[i].b, cost[i].w, cost[i].send };
    for (int k = 0; k < 4; k++)
      if (!isfinite(each[k]) || each[k] < 0)
        return tc_fail(err, TC_EUSER, "schedule %s: the %s of stage %d can't take %g", s->name,
                       (const char *const[]){ "F", "B", "W", "send" }[k], i, each[k]);
  }
  return TC_OK;
}

/* [p][n_items[rank]], one block. */
static double **times_new(const struct tc_pipeline *s)
{
  size_t n = 0;
  for (int32_t r = 0; r < s->p; r++) n += (size_t)s->n_items[r];
  double **x = tc_calloc((size_t)s->p, sizeof *x);
  x[0] = tc_malloc(n * sizeof **x);
  for (int32_t r = 1; r < s->p; r++) x[r] = x[r - 1] + s->n_items[r - 1];
  return x;
}

struct tc_simulation *tc_simulation_new(const struct tc_pipeline *s)
{
  size_t p = (size_t)s->p, v = (size_t)s->v;
  int last = s->split ? TC_WORK_W : TC_WORK_B;
  struct tc_simulation *sim = tc_calloc(1, sizeof *sim);
  sim->p = s->p;
  sim->v = s->v;
  sim->busy = tc_calloc(p, sizeof *sim->busy);
  sim->free_at = tc_calloc(p, sizeof *sim->free_at);
  sim->start = times_new(s);
  sim->end = times_new(s);
  sim->peak_rank = tc_calloc(p, sizeof *sim->peak_rank);
  sim->peak = tc_calloc(p, sizeof *sim->peak);
  sim->peak[0] = tc_calloc(p * v, sizeof **sim->peak);
  for (int32_t r = 0; r < s->p; r++) {
    sim->peak[r] = sim->peak[0] + (size_t)r * v;
    for (int32_t c = 0; c < s->v; c++) sim->peak[r][c] = tc_pipeline_peak(s, r, c, TC_WORK_F, last);
    sim->peak_rank[r] = tc_pipeline_peak(s, r, -1, TC_WORK_F, last);
  }
  return sim;
}

void tc_simulation_sum(struct tc_simulation *sim)
{
  double busy = 0;
  for (int32_t r = 0; r < sim->p; r++) {
    busy += sim->busy[r];
    sim->makespan = TC_MAX(sim->makespan, sim->free_at[r]);
  }
  if (sim->makespan > 0) sim->bubble = 1 - busy / (sim->makespan * sim->p);
}

void tc_simulation_free(struct tc_simulation *sim)
{
  if (!sim) return;
  TC_FREE(sim->busy, sim->free_at, sim->start[0], sim->start, sim->end[0], sim->end, sim->peak[0], sim->peak, sim->peak_rank, sim);
}

int tc_pipeline_simulate(struct tc_simulation **out, const struct tc_pipeline *s,
                         const struct tc_pipeline_cost *cost, int32_t n_cost,
                         const struct tc_transfers *t, struct tc_err *err)
{
  TC_TRY(check_costs(s, cost, n_cost, err));
  TC_TRY(tc_pipeline_check(s, err));
  struct run u = { .s = s, .cost = cost, .n_cost = n_cost, .t = t, .sim = tc_simulation_new(s) };
  int rc = run_all(&u, err);
  if (rc < 0) {
    tc_simulation_free(u.sim);
    return rc;
  }
  tc_simulation_sum(u.sim);
  *out = u.sim;
  return TC_OK;
}

/* ---- transfers ------------------------------------------------------------------------ */

/* A stage makes one at a time. */
static int compare(const void *va, const void *vb)
{
  const struct tc_transfer *a = va, *b = vb;
  if (a->time != b->time) return a->time < b->time ? -1 : 1;
  if (a->work != b->work) return a->work < b->work ? -1 : 1;
  return (a->stage_from > b->stage_from) - (a->stage_from < b->stage_from);
}

static void collect(struct tc_transfers *t, const struct tc_pipeline *s,
                    const struct tc_simulation *sim)
{
  for (int32_t r = 0; r < s->p; r++)
    for (int32_t i = 0; i < s->n_items[r]; i++) {
      struct tc_item x = s->item[r][i];
      int32_t stage = tc_pipeline_stage(s, r, x.virtual_stage), next = next_stage(s, x.work, stage);
      if (next < 0 || tc_pipeline_rank(s, next) == r) continue;
      t->t[t->n++] = (struct tc_transfer){ x.work, stage, next, x.mb, r, tc_pipeline_rank(s, next),
                                           sim->end[r][i] };
    }
  qsort(t->t, (size_t)t->n, sizeof *t->t, compare);
}

static void fill_queues(struct tc_transfers *t)
{
  size_t p = (size_t)t->p;
  t->n_queue = tc_calloc(p, sizeof *t->n_queue);
  t->queue = tc_calloc(p, sizeof *t->queue);
  t->queue[0] = tc_malloc(2 * (size_t)t->n * sizeof **t->queue);
  for (int32_t i = 0; i < t->n; i++) {
    t->n_queue[t->t[i].from]++;
    t->n_queue[t->t[i].to]++;
  }
  for (int32_t r = 1; r < t->p; r++) t->queue[r] = t->queue[r - 1] + t->n_queue[r - 1];
  memset(t->n_queue, 0, p * sizeof *t->n_queue);
  for (int32_t i = 0; i < t->n; i++) {
    int32_t from = t->t[i].from, to = t->t[i].to;
    t->queue[from][t->n_queue[from]++] = i;
    t->queue[to][t->n_queue[to]++] = i;
  }
}

int tc_pipeline_transfers(struct tc_transfers **out, const struct tc_pipeline *s,
                          const struct tc_pipeline_cost *cost, int32_t n_cost, struct tc_err *err)
{
  const struct tc_pipeline_cost even = { 1, 1, 1, 0 };
  struct tc_simulation *sim;
  if (!cost) {
    cost = &even;
    n_cost = 1;
  }
  for (int32_t i = 0; i < n_cost; i++)
    if (cost[i].f <= 0 || cost[i].b <= 0 || cost[i].w <= 0)
      return tc_fail(err, TC_EUSER, "schedule %s: work on stage %d takes no time, so transfers have no "
                     "order", s->name, i);
  TC_TRY(tc_pipeline_simulate(&sim, s, cost, n_cost, NULL, err));
  struct tc_transfers *t = tc_calloc(1, sizeof *t);
  t->p = s->p;
  t->t = tc_malloc(2 * (size_t)s->p * (size_t)s->v * (size_t)s->m * sizeof *t->t);
  collect(t, s, sim);
  fill_queues(t);
  tc_simulation_free(sim);
  int rc = tc_pipeline_simulate(&sim, s, cost, n_cost, t, err);
  if (rc < 0) {
    tc_transfers_free(t);
    return rc;
  }
  tc_simulation_free(sim);
  *out = t;
  return TC_OK;
}

void tc_transfers_free(struct tc_transfers *t)
{
  if (!t) return;
  TC_FREE(t->t, t->queue[0], t->queue, t->n_queue, t);
}
