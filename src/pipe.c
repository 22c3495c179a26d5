/* pipe.c - from the program's order to a step's list of actions.
 *
 * Invariants: a transfer is issued after all its inputs are made and waited for before any
 * reader of its outputs and before the step ends; every rank of a class has the same list, so
 * the transfers of an axis are issued in the same order everywhere. */
#include "src/pipe.h"

#include <stdlib.h>
#include <string.h>

bool tc_move_is_transfer(const struct tc_node *n, const struct tc_mesh *m)
{
  return n->op == TC_OP_MOVE && !tc_step_is_local(n->step) && m->size[n->axis] > 1;
}

static void push(struct tc_schedule *s, int kind, int32_t node, int32_t mb)
{
  TC_GROW(s->action, s->n, s->cap);
  s->action[s->n++] = (struct tc_action){ (uint8_t)kind, node, mb };
}

struct sched {
  const struct tc_graph *g;
  struct tc_schedule *s;
  bool overlap;
  bool *late;                    /* a once-node that depends on micro-batches */
  int32_t *flying, n_flying;     /* MOVEs in flight, in the order they were issued */
};

static void find_late(struct sched *c)
{
  const struct tc_graph *g = c->g;
  bool *timed = tc_calloc((size_t)g->n_tensors, 1);   /* made from what micro-batches make */
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    bool t = !n->once;
    for (int k = 0; k < n->n_in; k++) t |= timed[tc_in(g, n, k)];
    c->late[n->id] = t;
    for (int k = 0; k < n->n_out; k++) timed[tc_out(g, n, k)] = t;
  }
  free(timed);
}

static void land(struct sched *c, int32_t i, int32_t mb)
{
  push(c->s, TC_WAIT, c->flying[i], mb);
  c->n_flying--;
  memmove(c->flying + i, c->flying + i + 1, (size_t)(c->n_flying - i) * sizeof *c->flying);
}

/* Waits for what is in flight into the storage of tensor t (t itself, or rows of it); and, if t
 * is going to be written, for what is still read from there. */
static void need(struct sched *c, int32_t t, bool writes, int32_t mb)
{
  int32_t root = tc_tensor_root(c->g, t);
  for (int32_t i = 0; i < c->n_flying; i++) {
    const struct tc_node *n = &c->g->node[c->flying[i]];
    bool hit = false;
    for (int k = 0; k < n->n_out && !hit; k++)
      hit = tc_tensor_root(c->g, tc_out(c->g, n, k)) == root ||
            (writes && tc_tensor_root(c->g, tc_in(c->g, n, k)) == root);
    if (hit) land(c, i--, mb);
  }
}

static void emit(struct sched *c, int32_t id, int32_t mb)
{
  const struct tc_graph *g = c->g;
  const struct tc_node *n = &g->node[id];
  for (int k = 0; k < n->n_in; k++) need(c, tc_in(g, n, k), false, mb);
  for (int k = 0; k < n->n_out; k++)
    if (g->tensor[tc_out(g, n, k)].overwrites >= 0) need(c, tc_out(g, n, k), true, mb);
  if (n->op != TC_OP_MOVE || tc_step_is_local(n->step)) {
    push(c->s, TC_RUN, id, mb);
    return;
  }
  push(c->s, TC_ISSUE, id, mb);
  c->flying[c->n_flying++] = id;
  if (!c->overlap) land(c, c->n_flying - 1, mb);
}

static void phase(struct sched *c, int32_t mb, int32_t n_mb, unsigned marks)
{
  const struct tc_graph *g = c->g;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (!(marks >> n->mark & 1)) continue;
    if (n->once && n->mark != TC_U && mb != (c->late[n->id] ? n_mb - 1 : 0)) continue;
    emit(c, n->id, mb);
  }
}

void tc_schedule_new(struct tc_schedule **out, const struct tc_graph *g, int n_mb, bool overlap)
{
  struct tc_schedule *s = tc_calloc(1, sizeof *s);
  struct sched c = { .g = g, .s = s, .overlap = overlap };
  c.late = tc_calloc((size_t)g->n_nodes, 1);
  c.flying = tc_malloc((size_t)TC_MAX(g->n_nodes, 1) * sizeof *c.flying);
  find_late(&c);
  s->n_mb = n_mb;
  for (int mb = 0; mb < n_mb; mb++) {
    phase(&c, mb, n_mb, 1u << TC_F);
    phase(&c, mb, n_mb, 1u << TC_B | 1u << TC_W);
  }
  phase(&c, n_mb - 1, n_mb, 1u << TC_U);
  while (c.n_flying) land(&c, 0, n_mb - 1);
  s->body = tc_malloc((size_t)TC_MAX(g->n_order, 1) * sizeof *s->body);
  const unsigned marks[] = { 1u << TC_F, 1u << TC_B | 1u << TC_W, 1u << TC_U };
  for (int p = 0; p < 3; p++)
    for (int32_t i = 0; i < g->n_order; i++)
      if (marks[p] >> g->node[g->order[i]].mark & 1) s->body[s->n_body++] = g->order[i];
  free(c.late);
  free(c.flying);
  *out = s;
}

/* What is known while the list is walked. */
struct walk {
  const struct tc_graph *g;
  const struct tc_schedule *s;
  int32_t *made;                 /* tensor -> the last micro-batch it was made in; -1 */
  int32_t *times;                /* tensor -> how often */
  bool *flying;                  /* node */
};

/* True if a transfer in flight writes where tensor t lives. */
static bool in_flight(const struct walk *w, int32_t t)
{
  int32_t root = tc_tensor_root(w->g, t);
  for (int32_t i = 0; i < w->g->n_order; i++) {
    const struct tc_node *n = &w->g->node[w->g->order[i]];
    for (int k = 0; w->flying[n->id] && k < n->n_out; k++)
      if (tc_tensor_root(w->g, tc_out(w->g, n, k)) == root) return true;
  }
  return false;
}

static const char *fault(struct walk *w, const struct tc_action *a)
{
  const struct tc_node *n = &w->g->node[a->node];
  if (a->kind == TC_WAIT) {
    if (!w->flying[a->node]) return "waits for what was not issued";
    w->flying[a->node] = false;
    return NULL;
  }
  if (w->flying[a->node]) return "runs again while it is in flight";
  for (int k = 0; k < n->n_in; k++) {
    int32_t t = tc_in(w->g, n, k);
    while (w->made[t] < 0 && w->g->tensor[t].base >= 0) t = w->g->tensor[t].base;   /* rows of it */
    int32_t maker = w->g->tensor[t].node;
    if (maker >= 0 && w->made[t] < 0) return "reads what is not made yet";
    if (maker >= 0 && !n->once && !w->g->node[maker].once && w->made[t] != a->mb)
      return "reads what another micro-batch made";
    if (maker >= 0 && n->once && !w->g->node[maker].once && w->times[t] != w->s->n_mb)
      return "reads what not all micro-batches made";
    if (in_flight(w, t)) return "reads what is in flight";
  }
  for (int k = 0; k < n->n_out; k++) {
    int32_t t = tc_out(w->g, n, k), base = w->g->tensor[t].base;
    int32_t old = w->g->tensor[t].overwrites;
    int32_t before = old >= 0 ? w->g->tensor[old].node : -1;
    if (before >= 0 && (w->made[old] < 0 || (!n->once && !w->g->node[before].once &&
                                             w->made[old] != a->mb)))
      return "overwrites what is not made yet";
    w->made[t] = a->mb;
    w->times[t]++;
    if (base >= 0) w->made[base] = a->mb;
  }
  if (a->kind == TC_ISSUE) w->flying[a->node] = true;
  return NULL;
}

int tc_schedule_check(const struct tc_schedule *s, const struct tc_graph *g, struct tc_err *err)
{
  struct walk w = { .g = g, .s = s };
  w.made = tc_malloc((size_t)TC_MAX(g->n_tensors, 1) * sizeof *w.made);
  memset(w.made, -1, (size_t)g->n_tensors * sizeof *w.made);
  w.times = tc_calloc((size_t)TC_MAX(g->n_tensors, 1), sizeof *w.times);
  w.flying = tc_calloc((size_t)TC_MAX(g->n_nodes, 1), 1);
  int rc = 0;
  for (int32_t i = 0; i < s->n && !rc; i++) {
    const char *what = fault(&w, &s->action[i]);
    if (what)
      rc = tc_fail(err, TC_EUSER, "schedule: action %d, node %d %s, micro-batch %d: %s", i,
                   s->action[i].node, tc_op_info[g->node[s->action[i].node].op].name,
                   s->action[i].mb, what);
  }
  for (int32_t i = 0; i < g->n_nodes && !rc; i++)
    if (w.flying[i]) rc = tc_fail(err, TC_EUSER, "schedule: node %d is never waited for", i);
  free(w.made);
  free(w.times);
  free(w.flying);
  return rc;
}

void tc_schedule_free(struct tc_schedule *s)
{
  if (!s) return;
  free(s->action);
  free(s->body);
  free(s);
}
