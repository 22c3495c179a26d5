/* actions.c - from the program's order to a step's list of actions.
 *
 * Invariants: a transfer is issued after all its inputs are made and waited for before any
 * reader of its outputs and before the step ends; every rank of a class has the same list, so
 * the transfers of an axis are issued in the same order on all ranks. */
#include "src/schedule/impl.h"

#include <stdlib.h>
#include <string.h>

static void push(struct tc_actions *s, int kind, int32_t node, int32_t mb)
{
  TC_GROW(s->action, s->n, s->cap);
  s->action[s->n++] = (struct tc_action){ (uint8_t)kind, node, mb };
}

/* ---- the actions ---------------------------------------------------------------------- */

/* Counts the storage that transfers in flight touch: most of what an action needs is not in flight. */
static void count_busy(struct builder *c, const struct tc_node *n, int by)
{
  for (int k = 0; k < n->n_in; k++) c->busy[tc_tensor_root(c->g, tc_in(c->g, n, k))] += by;
  for (int k = 0; k < n->n_out; k++) c->busy[tc_tensor_root(c->g, tc_out(c->g, n, k))] += by;
}

static void complete(struct builder *c, int32_t i)
{
  struct task x = c->in_flight[i];
  push(c->s, TC_WAIT, x.node, x.mb);
  c->times_in_flight[x.node]--;
  count_busy(c, &c->g->node[x.node], -1);
  c->n_in_flight--;
  memmove(c->in_flight + i, c->in_flight + i + 1, (size_t)(c->n_in_flight - i) * sizeof x);
  for (int32_t k = 0; k < c->n_deferred; k++) {
    const struct tc_node *n = &c->g->node[c->deferred[k].node];
    if (c->g->tensor[tc_in(c->g, n, 0)].node != x.node) continue;
    push(c->s, TC_RUN, c->deferred[k].node, c->deferred[k].mb);
    count_busy(c, n, -1);
    c->n_deferred--;
    memmove(c->deferred + k, c->deferred + k + 1, (size_t)(c->n_deferred - k) * sizeof x);
    k--;
  }
}

/* Waits for transfers in flight into the storage of tensor t (t itself, rows of it, a sum that
 * follows); and, if t is going to be written, for those that still read from it. */
static void need(struct builder *c, int32_t t, bool writes, int32_t mb)
{
  const struct tc_graph *g = c->g;
  int32_t root = tc_tensor_root(g, t);
  for (int32_t i = 0; i < c->n_in_flight && c->busy[root]; i++) {
    const struct tc_node *n = &g->node[c->in_flight[i].node];
    bool hit = false, other_slot = tc_sends_each_mb(n) && c->in_flight[i].mb != mb;
    for (int k = 0; k < n->n_out && !hit && !other_slot; k++)
      hit = tc_tensor_root(g, tc_out(g, n, k)) == root ||
            (writes && tc_tensor_root(g, tc_in(g, n, k)) == root);
    for (int32_t k = 0; k < c->n_deferred && !hit; k++) {
      const struct tc_node *z = &g->node[c->deferred[k].node];
      hit = g->tensor[tc_in(g, z, 0)].node == n->id &&
            tc_tensor_root(g, tc_out(g, z, 0)) == root;
    }
    if (hit) complete(c, i--);
  }
}

static bool takes_scratch(const struct tc_graph *g, const struct tc_node *n)
{
  for (int k = 0; k < n->n_in; k++)
    if (!g->tensor[tc_tensor_root(g, tc_in(g, n, k))].state) return true;
  return false;
}

static bool sends(const struct builder *c, const struct tc_node *n)
{
  return tc_sends_each_mb(n) && n->from_root == c->o.at;
}

/* At most `prefetch` transfers (at least one) may keep scratch from being used again. */
static void bound_in_flight(struct builder *c, const struct tc_node *n)
{
  bool bounded = n->role == TC_ROLE_GRAD || n->role == TC_ROLE_STORE || sends(c, n);
  if (!bounded || !takes_scratch(c->g, n)) return;
  int32_t alike_in_flight = 0;
  for (int32_t i = c->n_in_flight - 1; i >= 0; i--) {
    const struct tc_node *f = &c->g->node[c->in_flight[i].node];
    bool alike = sends(c, n) ? sends(c, f) : f->role == n->role && takes_scratch(c->g, f);
    if (alike && ++alike_in_flight >= TC_MAX(c->o.prefetch, 1)) complete(c, i);
  }
}

static void emit(struct builder *c, struct task x)
{
  const struct tc_graph *g = c->g;
  const struct tc_node *n = &g->node[x.node];
  int32_t maker = n->op == TC_OP_ACCUM ? g->tensor[tc_in(g, n, 0)].node : -1;
  if (maker >= 0 && c->times_in_flight[maker]) {
    TC_GROW(c->deferred, c->n_deferred, c->cap_deferred);
    c->deferred[c->n_deferred++] = x;
    count_busy(c, n, 1);
    return;
  }
  for (int k = 0; k < n->n_in; k++) need(c, tc_in(g, n, k), false, x.mb);
  for (int k = 0; k < n->n_out; k++) need(c, tc_out(g, n, k), true, x.mb);
  if (n->op != TC_OP_RESHARD || tc_coll_is_local(n->coll)) {
    push(c->s, TC_RUN, x.node, x.mb);
    return;
  }
  bound_in_flight(c, n);
  push(c->s, TC_ISSUE, x.node, x.mb);
  TC_GROW(c->in_flight, c->n_in_flight, c->cap_in_flight);
  c->in_flight[c->n_in_flight++] = x;
  c->times_in_flight[x.node]++;
  count_busy(c, n, 1);
  if (!c->o.overlap) complete(c, c->n_in_flight - 1);
}

/* Whether all readers of what a group gathered the time before are tasks before `at`. */
static bool is_free(const struct builder *c, int32_t group, int32_t at)
{
  for (int32_t i = c->group[group]; i < c->group[group + 1]; i++)
    if (c->free_at[i] >= at) return false;
  return true;
}

/* At the place of a group of gathers: issues it, and the groups up to `prefetch` ahead. */
static void prefetch_groups(struct builder *c, int32_t at)
{
  int32_t upto = TC_MIN(c->reached + 1 + c->o.prefetch, c->n_groups);
  for (; c->prefetched < upto && is_free(c, c->prefetched, at); c->prefetched++)
    for (int32_t i = c->group[c->prefetched]; i < c->group[c->prefetched + 1]; i++)
      emit(c, c->task[c->gather[i]]);
  c->reached++;
}

/* ---- from stage to stage --------------------------------------------------------------- */

static int find_stage_sends(struct builder *c, struct tc_err *err)
{
  const struct tc_graph *g = c->g;
  size_t n = (size_t)(c->pipeline->p * c->pipeline->v) * TC_WORKS;
  c->made = tc_malloc(n * sizeof *c->made);
  memset(c->made, -1, n * sizeof *c->made);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (!tc_sends_each_mb(n)) continue;
    const struct tc_tensor *x = &g->tensor[tc_in(g, n, 0)];
    struct stage_send y = { n->id, g->unit[g->node[x->node].unit].stage, g->unit[n->unit].stage,
                          n->mark == TC_F ? TC_WORK_F : TC_WORK_B };
    if (y.to - y.from != (n->mark == TC_F ? 1 : -1))
      return tc_fail(err, TC_ELAYOUT, "%s goes from stage %d to stage %d; only neighbours exchange "
                     "tensors", x->name, y.from, y.to);
    TC_GROW(c->stage_send, c->n_stage_sends, c->cap_stage_sends);
    c->stage_send[c->n_stage_sends++] = y;
  }
  return 0;
}

/* The transfer at the head of this rank's queue; those of the backward pass only if there is one. */
static const struct tc_transfer *at_head(struct builder *c)
{
  for (; c->head < c->cross->n_queue[c->o.at]; c->head++) {
    const struct tc_transfer *t = &c->cross->t[c->cross->queue[c->o.at][c->head]];
    if (c->backward || t->work == TC_WORK_F) return t;
  }
  return NULL;
}

/* Issues the sends of the transfer at the head of the queue. */
static void issue_head(struct builder *c)
{
  const struct tc_transfer *t = at_head(c);
  for (int32_t i = 0; t && i < c->n_stage_sends; i++) {
    const struct stage_send *x = &c->stage_send[i];
    if (x->work == t->work && x->from == t->stage_from && x->to == t->stage_to)
      emit(c, (struct task){ x->node, t->mb, 0 });
  }
  c->head++;
}

/* Before an item: issues what it receives, and what comes before that in the queue. */
static void receive(struct builder *c, const struct tc_item *item)
{
  int32_t stage = tc_pipeline_stage(c->pipeline, c->o.at, item->virtual_stage), last = -1;
  for (int32_t i = c->head; i < c->cross->n_queue[c->o.at] && last < 0; i++) {
    const struct tc_transfer *t = &c->cross->t[c->cross->queue[c->o.at][i]];
    if (t->to == c->o.at && t->work == item->work && t->stage_to == stage && t->mb == item->mb)
      last = i;
  }
  while (at_head(c) && c->head <= last) issue_head(c);
}

/* After an item: what it made is sent, and the next receive is issued. */
static void send(struct builder *c, const struct tc_item *item)
{
  int32_t stage = tc_pipeline_stage(c->pipeline, c->o.at, item->virtual_stage), issued = 0;
  c->made[stage * TC_WORKS + item->work] = item->mb;       /* micro-batches come in order */
  for (int32_t i = 0; i < c->n_in_flight; i++) {
    const struct tc_node *f = &c->g->node[c->in_flight[i].node];
    issued += tc_sends_each_mb(f) && f->root == c->o.at;
  }
  for (const struct tc_transfer *t; (t = at_head(c));) {
    if (t->from == c->o.at && c->made[t->stage_from * TC_WORKS + t->work] < t->mb) return;
    if (t->to == c->o.at && (!c->o.overlap || issued++ > c->o.prefetch)) return;
    issue_head(c);
  }
}

/* ---- the list ------------------------------------------------------------------------- */

static void emit_all(struct builder *c)
{
  const struct tc_graph *g = c->g;
  const struct tc_item *items = c->pipeline ? c->pipeline->item[c->o.at] : NULL;
  for (int32_t i = 0; i < c->n_tasks; i++) {
    const struct task *x = &c->task[i];
    bool first = i == 0 || c->task[i - 1].item != x->item;
    bool last = i == c->n_tasks - 1 || c->task[i + 1].item != x->item;
    if (items && first && x->item >= 0) receive(c, &items[x->item]);
    if (!tc_is_gather(c, &g->node[x->node])) emit(c, *x);
    else if (c->reached < c->n_groups && c->gather[c->group[c->reached]] == i) prefetch_groups(c, i);
    if (items && last && x->item >= 0) send(c, &items[x->item]);
  }
  while (c->n_in_flight) complete(c, 0);
}

/* The nodes in the order they run first, and how many of each are in flight at once. */
static void summarize(struct tc_actions *s, const struct tc_graph *g)
{
  bool *seen = tc_calloc((size_t)g->n_nodes, 1);
  int32_t *now = tc_calloc((size_t)g->n_nodes, sizeof *now);
  s->body = tc_malloc((size_t)g->n_order * sizeof *s->body);
  s->most = tc_calloc((size_t)g->n_nodes, sizeof *s->most);
  for (int32_t i = 0; i < s->n; i++) {
    const struct tc_action *a = &s->action[i];
    if (!seen[a->node]) s->body[s->n_body++] = a->node;
    seen[a->node] = true;
    now[a->node] += a->kind == TC_ISSUE ? 1 : a->kind == TC_WAIT ? -1 : 0;
    s->most[a->node] = TC_MAX(s->most[a->node], now[a->node]);
  }
  free(seen);
  free(now);
}

/* The pipeline's schedule and the order of its transfers; NULL where there is no pipeline. */
static int make_pipeline(struct tc_pipeline **out, struct tc_transfers **cross,
                         const struct tc_actions_opts *o, struct tc_err *err)
{
  *out = NULL;
  *cross = NULL;
  if (o->pp <= 1) return 0;
  TC_TRY(tc_pipeline_new(out, o->schedule, o->pp, TC_MAX(o->virtual_stages, 1), o->n_mb, err));
  int rc = tc_pipeline_transfers(cross, *out, NULL, 0, err);
  if (rc < 0) tc_pipeline_free(*out);
  return rc;
}

int tc_actions_new(struct tc_actions **out, const struct tc_graph *g,
                   const struct tc_actions_opts *o, struct tc_err *err)
{
  struct tc_pipeline *pipeline = NULL;
  struct tc_transfers *cross = NULL;
  bool backward = false, forward = false;        /* has a pass */
  for (int32_t i = 0; i < g->n_order; i++) {
    backward |= g->node[g->order[i]].mark == TC_B;
    forward |= g->node[g->order[i]].mark == TC_F;
  }
  if (forward) TC_TRY(make_pipeline(&pipeline, &cross, o, err));
  struct tc_actions *s = tc_calloc(1, sizeof *s);
  struct builder c = { .g = g, .s = s, .o = *o, .pipeline = pipeline, .cross = cross,
                       .backward = backward };
  c.times_in_flight = tc_calloc((size_t)g->n_nodes, sizeof *c.times_in_flight);
  c.busy = tc_calloc((size_t)g->n_tensors, sizeof *c.busy);
  s->n_mb = o->n_mb;
  s->opts = *o;
  int rc = pipeline ? find_stage_sends(&c, err) : 0;
  if (!rc) {
    tc_tasks_make(&c);
    emit_all(&c);
    summarize(s, g);
  }
  tc_transfers_free(cross);
  tc_pipeline_free(pipeline);
  void *const made[] = { c.feeds, c.after_mbs, c.tied, c.made, c.stage_send, c.of_kind, c.kind_at,
                         c.task, c.gather, c.free_at, c.group, c.times_in_flight, c.busy, c.in_flight,
                         c.deferred };
  for (size_t i = 0; i < sizeof made / sizeof *made; i++) free(made[i]);
  if (rc < 0) tc_actions_free(s);
  else *out = s;
  return rc;
}

int32_t tc_actions_most(const struct tc_actions *s, int32_t node)
{
  return TC_MAX(s->most[node], 1);
}

void tc_actions_free(struct tc_actions *s)
{
  if (!s) return;
  free(s->action);
  free(s->body);
  free(s->most);
  free(s);
}
