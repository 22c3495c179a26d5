/* pipe.c - from the program's order to a step's list of actions.
 *
 * Invariants: a transfer is issued after all its inputs are made and waited for before any
 * reader of its outputs and before the step ends; every rank of a class has the same list, so
 * the transfers of an axis are issued in the same order everywhere. */
#include "src/pipe.h"

#include <stdlib.h>
#include <string.h>

static void push(struct tc_schedule *s, int kind, int32_t node, int32_t mb)
{
  TC_GROW(s->action, s->n, s->cap);
  s->action[s->n++] = (struct tc_action){ (uint8_t)kind, node, mb };
}

struct step { int32_t node, mb; };

struct sched {
  const struct tc_graph *g;
  struct tc_schedule *s;
  struct tc_schedule_opts o;
  bool *late;                    /* a once-node that depends on micro-batches */
  struct step *step; int32_t n_steps, cap_steps; /* the nodes as they follow each other */
  int32_t *fetch, n_fetch;       /* steps that bring weights, in groups of a unit's */
  int32_t *free_at;              /* step after which what each brings may be written; parallel */
  int32_t *group, n_groups;      /* first index in fetch[] of each group */
  int32_t fetched, reached;      /* groups issued; groups whose place was reached */
  struct step *flying; int32_t n_flying, cap_flying;       /* in the order they were issued */
  struct step *lazy; int32_t n_lazy, cap_lazy;   /* sums that run when their transfer lands */
};

static void find_late(struct sched *c)
{
  const struct tc_graph *g = c->g;
  bool *timed = tc_calloc((size_t)TC_MAX(g->n_tensors, 1), 1);   /* made from what micro-batches make */
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    bool t = !n->once;
    for (int k = 0; k < n->n_in; k++) t |= timed[tc_in(g, n, k)];
    c->late[n->id] = t;
    for (int k = 0; k < n->n_out; k++) timed[tc_out(g, n, k)] = t;
  }
  free(timed);
}

/* ---- the steps ------------------------------------------------------------------------ */

static void phase(struct sched *c, int32_t mb, unsigned marks)
{
  const struct tc_graph *g = c->g;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (!(marks >> n->mark & 1)) continue;
    if (n->once && n->mark != TC_U && mb != (c->late[n->id] ? c->o.n_mb - 1 : 0)) continue;
    TC_GROW(c->step, c->n_steps, c->cap_steps);
    c->step[c->n_steps++] = (struct step){ n->id, mb };
  }
}

/* Weights are brought for a unit at a time: consecutive ones of one unit, phase and micro-batch
 * are a group. Local slices count as ordinary nodes. */
static bool is_fetch(const struct tc_node *n)
{
  return n->op == TC_OP_MOVE && n->role == TC_ROLE_FETCH && !tc_step_is_local(n->step);
}

static void find_groups(struct sched *c)
{
  const struct tc_graph *g = c->g;
  int32_t *read = tc_malloc((size_t)TC_MAX(g->n_nodes, 1) * sizeof *read);   /* last so far */
  memset(read, -1, (size_t)g->n_nodes * sizeof *read);
  c->free_at = tc_malloc((size_t)TC_MAX(c->n_steps, 1) * sizeof *c->free_at);
  c->fetch = tc_malloc((size_t)TC_MAX(c->n_steps, 1) * sizeof *c->fetch);
  c->group = tc_malloc((size_t)(c->n_steps + 1) * sizeof *c->group);
  for (int32_t i = 0; i < c->n_steps; i++) {
    const struct tc_node *n = &g->node[c->step[i].node];
    for (int k = 0; k < n->n_in; k++)
      if (g->tensor[tc_in(g, n, k)].node >= 0) read[g->tensor[tc_in(g, n, k)].node] = i;
    if (!is_fetch(n)) continue;
    c->free_at[c->n_fetch] = read[n->id];
    const struct step *last = c->n_fetch ? &c->step[c->fetch[c->n_fetch - 1]] : NULL;
    const struct tc_node *b = last ? &c->g->node[last->node] : NULL;
    bool f = n->mark == TC_F, same = last && b->unit == n->unit && last->mb == c->step[i].mb &&
             (b->mark == TC_F) == f && (b->mark == TC_U) == (n->mark == TC_U);
    if (!same) c->group[c->n_groups++] = c->n_fetch;
    c->fetch[c->n_fetch++] = i;
  }
  c->group[c->n_groups] = c->n_fetch;
  free(read);
}

/* Whether what a group brought the time before has been read, at step `at`. */
static bool is_free(const struct sched *c, int32_t group, int32_t at)
{
  for (int32_t i = c->group[group]; i < c->group[group + 1]; i++)
    if (c->free_at[i] >= at) return false;
  return true;
}

/* ---- the actions ---------------------------------------------------------------------- */

static void land(struct sched *c, int32_t i)
{
  struct step x = c->flying[i];
  push(c->s, TC_WAIT, x.node, x.mb);
  c->n_flying--;
  memmove(c->flying + i, c->flying + i + 1, (size_t)(c->n_flying - i) * sizeof x);
  for (int32_t k = 0; k < c->n_lazy; k++) {
    const struct tc_node *n = &c->g->node[c->lazy[k].node];
    if (c->g->tensor[tc_in(c->g, n, 0)].node != x.node) continue;
    push(c->s, TC_RUN, c->lazy[k].node, c->lazy[k].mb);
    c->n_lazy--;
    memmove(c->lazy + k, c->lazy + k + 1, (size_t)(c->n_lazy - k) * sizeof x);
    k--;
  }
}

/* Waits for what is in flight into the storage of tensor t (t itself, rows of it, a sum that
 * follows); and, if t is going to be written, for what is still read from there. */
static void need(struct sched *c, int32_t t, bool writes)
{
  const struct tc_graph *g = c->g;
  int32_t root = tc_tensor_root(g, t);
  for (int32_t i = 0; i < c->n_flying; i++) {
    const struct tc_node *n = &g->node[c->flying[i].node];
    bool hit = false;
    for (int k = 0; k < n->n_out && !hit; k++)
      hit = tc_tensor_root(g, tc_out(g, n, k)) == root ||
            (writes && tc_tensor_root(g, tc_in(g, n, k)) == root);
    for (int32_t k = 0; k < c->n_lazy && !hit; k++) {
      const struct tc_node *z = &g->node[c->lazy[k].node];
      hit = g->tensor[tc_in(g, z, 0)].node == n->id &&
            tc_tensor_root(g, tc_out(g, z, 0)) == root;
    }
    if (hit) land(c, i--);
  }
}

static bool takes_scratch(const struct tc_graph *g, const struct tc_node *n)
{
  for (int k = 0; k < n->n_in; k++)
    if (!g->tensor[tc_tensor_root(g, tc_in(g, n, k))].state) return true;
  return false;
}

/* Few transfers may keep scratch from being used again. */
static void bound_flying(struct sched *c, const struct tc_node *n)
{
  if ((n->role != TC_ROLE_GRAD && n->role != TC_ROLE_STORE) || !takes_scratch(c->g, n)) return;
  int32_t under_way = 0;
  for (int32_t i = c->n_flying - 1; i >= 0; i--) {
    const struct tc_node *f = &c->g->node[c->flying[i].node];
    if (f->role == n->role && takes_scratch(c->g, f) && ++under_way > c->o.depth) land(c, i);
  }
}

static bool is_flying(const struct sched *c, int32_t node)
{
  for (int32_t i = 0; i < c->n_flying; i++)
    if (c->flying[i].node == node) return true;
  return false;
}

static void emit(struct sched *c, struct step x)
{
  const struct tc_graph *g = c->g;
  const struct tc_node *n = &g->node[x.node];
  int32_t maker = n->op == TC_OP_ACCUM ? g->tensor[tc_in(g, n, 0)].node : -1;
  if (maker >= 0 && is_flying(c, maker)) {
    TC_GROW(c->lazy, c->n_lazy, c->cap_lazy);
    c->lazy[c->n_lazy++] = x;
    return;
  }
  for (int k = 0; k < n->n_in; k++) need(c, tc_in(g, n, k), false);
  for (int k = 0; k < n->n_out; k++) need(c, tc_out(g, n, k), true);
  if (n->op != TC_OP_MOVE || tc_step_is_local(n->step)) {
    push(c->s, TC_RUN, x.node, x.mb);
    return;
  }
  bound_flying(c, n);
  push(c->s, TC_ISSUE, x.node, x.mb);
  TC_GROW(c->flying, c->n_flying, c->cap_flying);
  c->flying[c->n_flying++] = x;
  if (!c->o.overlap) land(c, c->n_flying - 1);
}

/* At the place of a group of fetches: its own and those ahead are under way. */
static void reach_group(struct sched *c, int32_t at)
{
  int32_t upto = TC_MIN(c->reached + 1 + c->o.depth, c->n_groups);
  for (; c->fetched < upto && is_free(c, c->fetched, at); c->fetched++)
    for (int32_t i = c->group[c->fetched]; i < c->group[c->fetched + 1]; i++)
      emit(c, c->step[c->fetch[i]]);
  c->reached++;
}

void tc_schedule_new(struct tc_schedule **out, const struct tc_graph *g,
                     const struct tc_schedule_opts *o)
{
  struct tc_schedule *s = tc_calloc(1, sizeof *s);
  struct sched c = { .g = g, .s = s, .o = *o };
  c.late = tc_calloc((size_t)TC_MAX(g->n_nodes, 1), 1);
  find_late(&c);
  s->n_mb = o->n_mb;
  s->opts = *o;
  for (int mb = 0; mb < o->n_mb; mb++) {
    phase(&c, mb, 1u << TC_F);
    phase(&c, mb, 1u << TC_B | 1u << TC_W);
  }
  phase(&c, o->n_mb - 1, 1u << TC_U);
  find_groups(&c);
  for (int32_t i = 0; i < c.n_steps; i++) {
    if (!is_fetch(&g->node[c.step[i].node])) emit(&c, c.step[i]);
    else if (c.reached < c.n_groups && c.fetch[c.group[c.reached]] == i) reach_group(&c, i);
  }
  while (c.n_flying) land(&c, 0);
  s->body = tc_malloc((size_t)TC_MAX(g->n_order, 1) * sizeof *s->body);
  bool *in = c.late;                             /* done with: now, what the body has */
  memset(in, 0, (size_t)TC_MAX(g->n_nodes, 1));
  for (int32_t i = 0; i < s->n; i++) {
    if (in[s->action[i].node]) continue;
    in[s->action[i].node] = true;
    s->body[s->n_body++] = s->action[i].node;
  }
  free(c.late);
  free(c.step);
  free(c.fetch);
  free(c.free_at);
  free(c.group);
  free(c.flying);
  free(c.lazy);
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
