/* actions.c - from the program's order to a step's list of actions.
 *
 * Invariants: a transfer is issued after all its inputs are made and waited for before any
 * reader of its outputs and before the step ends; every rank of a class has the same list, so
 * the transfers of an axis are issued in the same order everywhere. */
#include "src/schedule/actions.h"
#include "src/schedule/pipeline.h"

#include <stdlib.h>
#include <string.h>

static void push(struct tc_schedule *s, int kind, int32_t node, int32_t mb)
{
  TC_GROW(s->action, s->n, s->cap);
  s->action[s->n++] = (struct tc_action){ (uint8_t)kind, node, mb };
}

struct step { int32_t node, mb, item; };         /* item -2: before all items, -1: behind them */

/* A RESHARD from stage to stage in every micro-batch, and its part in the global order. */
struct crossing { int32_t node, from, to; uint8_t work; };

struct sched {
  const struct tc_graph *g;
  struct tc_schedule *s;
  struct tc_schedule_opts o;
  bool backward;                 /* the program has a backward pass */
  bool *feeds;                   /* a local step of a weight that is transferred then */
  bool *late;                    /* a once-node that depends on micro-batches */
  bool *lent;                    /* ... on the gradient of a weight that another stage has used */
  const struct tc_sched *sched;  /* the pipeline's; NULL: none */
  const struct tc_transfers *cross;
  struct crossing *crossing; int32_t n_crossings, cap_crossings;
  int32_t head;                  /* of this rank's queue of transfers: the next to issue */
  int32_t *made;                 /* [stage][work]: the last micro-batch made here; -1 */
  int32_t *of_kind, *kind_at;    /* nodes by kind of item; [kind]: the first of each in of_kind */
  struct step *step; int32_t n_steps, cap_steps; /* the nodes as they follow each other */
  int32_t *fetch, n_fetch;       /* steps that bring weights, in groups of a unit's */
  int32_t *free_at;              /* step after which what each brings may be written; parallel */
  int32_t *group, n_groups;      /* first index in fetch[] of each group */
  int32_t fetched, reached;      /* groups issued; groups whose place was reached */
  struct step *flying; int32_t n_flying, cap_flying;       /* in the order they were issued */
  int32_t *in_flight;            /* [node]: how many of it are */
  int32_t *busy;                 /* [root]: transfers in flight that touch it, and sums that wait */
  struct step *lazy; int32_t n_lazy, cap_lazy;   /* sums that run when their transfer lands */
};

static bool is_stage_send(const struct tc_node *n)
{
  return n->op == TC_OP_RESHARD && n->coll == TC_SEND && n->axis == TC_PP;
}

/* From stage to stage in every micro-batch; else of a weight that two stages use, once a step. */
static bool is_crossing(const struct tc_node *n) { return is_stage_send(n) && !n->once; }

static void find_late(struct sched *c)
{
  const struct tc_graph *g = c->g;
  size_t n_tensors = (size_t)g->n_tensors;
  bool *timed = tc_calloc(n_tensors, 1);         /* made from what micro-batches make */
  bool *lent = tc_calloc(n_tensors, 1);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    bool t = !n->once, l = false;
    for (int k = 0; k < n->n_in; k++) {
      t |= timed[tc_in(g, n, k)];
      l |= lent[tc_in(g, n, k)];
    }
    c->late[n->id] = t;
    c->lent[n->id] = l || (t && is_stage_send(n) && n->once);
    for (int k = 0; k < n->n_out; k++) {
      timed[tc_out(g, n, k)] = t;
      lent[tc_out(g, n, k)] = c->lent[n->id];
    }
  }
  free(timed);
  free(lent);
}

/* ---- the steps ------------------------------------------------------------------------ */

static bool is_here(const struct sched *c, const struct tc_node *n)
{
  return n->everywhere || c->o.pp <= 1 || c->g->unit[n->unit].at == c->o.at;
}

/* The kind of item a node runs in. The head's gradients of weights stay with its chunks; what takes
 * gradients away follows all of them. */
static int work_of(const struct sched *c, const struct tc_node *n)
{
  if (n->mark == TC_F) return TC_WORK_F;
  bool split = c->sched && c->sched->split;
  bool after = n->role == TC_ROLE_GRAD || n->op == TC_OP_ACCUM || (n->once && c->late[n->id]);
  return split && (after || (n->mark == TC_W && !n->head)) ? TC_WORK_W : TC_WORK_B;
}

static void add_step(struct sched *c, int32_t node, int32_t mb, int32_t item)
{
  TC_GROW(c->step, c->n_steps, c->cap_steps);
  c->step[c->n_steps++] = (struct step){ node, mb, item };
}

/* In which kind of item a node of this rank runs, by virtual stage and work; -1: in none. */
static int32_t kind_of(const struct sched *c, const struct tc_node *n)
{
  int32_t chunk = n->everywhere || c->o.pp <= 1 ? 0 : c->g->unit[n->unit].stage / c->o.pp;
  if (n->mark == TC_U || chunk >= TC_MAX(c->o.chunks, 1)) return -1;
  if (!is_here(c, n) || is_stage_send(n) || c->lent[n->id]) return -1;
  return chunk * TC_WORKS + work_of(c, n);
}

/* The nodes of each kind of item, in their order. */
static void find_kinds(struct sched *c)
{
  const struct tc_graph *g = c->g;
  const int32_t kinds = TC_MAX(c->o.chunks, 1) * TC_WORKS;
  c->kind_at = tc_calloc((size_t)kinds + 2, sizeof *c->kind_at);
  c->of_kind = tc_malloc((size_t)g->n_order * sizeof *c->of_kind);
  for (int32_t i = 0; i < g->n_order; i++) c->kind_at[kind_of(c, &g->node[g->order[i]]) + 2]++;
  c->kind_at[1] = 0;                             /* those of none */
  for (int32_t k = 0; k < kinds; k++) c->kind_at[k + 2] += c->kind_at[k + 1];
  for (int32_t i = 0; i < g->n_order; i++) {
    int32_t kind = kind_of(c, &g->node[g->order[i]]);
    if (kind >= 0) c->of_kind[c->kind_at[kind + 1]++] = g->order[i];
  }
}

static void add_item(struct sched *c, const struct tc_item *x, int32_t item)
{
  const int32_t kind = x->chunk * TC_WORKS + x->work;
  for (int32_t i = c->kind_at[kind]; i < c->kind_at[kind + 1]; i++) {
    const struct tc_node *n = &c->g->node[c->of_kind[i]];
    if (!n->once || x->mb == (c->late[n->id] ? c->o.n_mb - 1 : 0)) add_step(c, n->id, x->mb, item);
  }
}

/* Outside of the items: before them the weight that another stage uses is sent to it; behind them
 * its gradient is sent back, with all that waits for it, and the update. */
static void add_rest(struct sched *c, bool behind)
{
  const struct tc_graph *g = c->g;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    bool mine = is_here(c, n), update = n->mark == TC_U;
    if (is_stage_send(n)) mine = n->root == c->o.at || n->from_root == c->o.at;
    bool early = !update && !behind && is_stage_send(n) && n->once && !c->late[n->id];
    bool late = behind && (update || c->lent[n->id]);
    if (mine && (early || late))
      add_step(c, n->id, early ? 0 : c->o.n_mb - 1, early ? -2 : -1);
  }
}

static void add_steps(struct sched *c)
{
  find_kinds(c);
  add_rest(c, false);
  if (c->sched) {
    const struct tc_item *item = c->sched->item[c->o.at];
    for (int32_t i = 0; i < c->sched->n_items[c->o.at]; i++)
      if (c->backward || item[i].work == TC_WORK_F) add_item(c, &item[i], i);
  } else {
    for (int32_t i = 0; i < 2 * c->o.n_mb; i++) {
      const struct tc_item x = { i % 2 ? TC_WORK_B : TC_WORK_F, 0, i / 2 };
      add_item(c, &x, i);
    }
  }
  add_rest(c, true);
}

/* Weights are gathered for a unit at a time: consecutive ones of one unit, phase and micro-batch
 * are a group. A local step counts as an ordinary node unless a transfer of the group reads it. */
static bool is_fetch(const struct sched *c, const struct tc_node *n)
{
  return n->op == TC_OP_RESHARD && n->role == TC_ROLE_FETCH &&
         (!tc_coll_is_local(n->coll) || c->feeds[n->id]);
}

/* Local steps of weights whose result is transferred. */
static void find_feeds(struct sched *c)
{
  const struct tc_graph *g = c->g;
  for (int32_t i = g->n_order - 1; i >= 0; i--) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_in && is_fetch(c, n); k++) {
      int32_t maker = g->tensor[tc_in(g, n, k)].node;
      if (maker >= 0 && tc_coll_is_local(g->node[maker].coll)) c->feeds[maker] = true;
    }
  }
}

static void find_groups(struct sched *c)
{
  const struct tc_graph *g = c->g;
  int32_t *read = tc_malloc((size_t)g->n_nodes * sizeof *read);   /* last so far */
  memset(read, -1, (size_t)g->n_nodes * sizeof *read);
  c->free_at = tc_malloc((size_t)c->n_steps * sizeof *c->free_at);
  c->fetch = tc_malloc((size_t)c->n_steps * sizeof *c->fetch);
  c->group = tc_malloc((size_t)(c->n_steps + 1) * sizeof *c->group);
  for (int32_t i = 0; i < c->n_steps; i++) {
    const struct tc_node *n = &g->node[c->step[i].node];
    for (int k = 0; k < n->n_in; k++)
      if (g->tensor[tc_in(g, n, k)].node >= 0) read[g->tensor[tc_in(g, n, k)].node] = i;
    if (!is_fetch(c, n)) continue;
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

/* Keeps count of what is touched: most of what a step needs is not in flight. */
static void count_busy(struct sched *c, const struct tc_node *n, int by)
{
  for (int k = 0; k < n->n_in; k++) c->busy[tc_tensor_root(c->g, tc_in(c->g, n, k))] += by;
  for (int k = 0; k < n->n_out; k++) c->busy[tc_tensor_root(c->g, tc_out(c->g, n, k))] += by;
}

static void land(struct sched *c, int32_t i)
{
  struct step x = c->flying[i];
  push(c->s, TC_WAIT, x.node, x.mb);
  c->in_flight[x.node]--;
  count_busy(c, &c->g->node[x.node], -1);
  c->n_flying--;
  memmove(c->flying + i, c->flying + i + 1, (size_t)(c->n_flying - i) * sizeof x);
  for (int32_t k = 0; k < c->n_lazy; k++) {
    const struct tc_node *n = &c->g->node[c->lazy[k].node];
    if (c->g->tensor[tc_in(c->g, n, 0)].node != x.node) continue;
    push(c->s, TC_RUN, c->lazy[k].node, c->lazy[k].mb);
    count_busy(c, n, -1);
    c->n_lazy--;
    memmove(c->lazy + k, c->lazy + k + 1, (size_t)(c->n_lazy - k) * sizeof x);
    k--;
  }
}

/* Waits for what is in flight into the storage of tensor t (t itself, rows of it, a sum that
 * follows); and, if t is going to be written, for what is still read from there. */
static void need(struct sched *c, int32_t t, bool writes, int32_t mb)
{
  const struct tc_graph *g = c->g;
  int32_t root = tc_tensor_root(g, t);
  for (int32_t i = 0; i < c->n_flying && c->busy[root]; i++) {
    const struct tc_node *n = &g->node[c->flying[i].node];
    bool hit = false, apart = is_crossing(n) && c->flying[i].mb != mb;   /* in another slot */
    for (int k = 0; k < n->n_out && !hit && !apart; k++)
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

static bool sends(const struct sched *c, const struct tc_node *n)
{
  return is_crossing(n) && n->from_root == c->o.at;
}

/* Few transfers may keep scratch from being used again. */
static void bound_flying(struct sched *c, const struct tc_node *n)
{
  bool bounded = n->role == TC_ROLE_GRAD || n->role == TC_ROLE_STORE || sends(c, n);
  if (!bounded || !takes_scratch(c->g, n)) return;
  int32_t under_way = 0;
  for (int32_t i = c->n_flying - 1; i >= 0; i--) {
    const struct tc_node *f = &c->g->node[c->flying[i].node];
    bool alike = sends(c, n) ? sends(c, f) : f->role == n->role && takes_scratch(c->g, f);
    if (alike && ++under_way >= TC_MAX(c->o.depth, 1)) land(c, i);
  }
}

static void emit(struct sched *c, struct step x)
{
  const struct tc_graph *g = c->g;
  const struct tc_node *n = &g->node[x.node];
  int32_t maker = n->op == TC_OP_ACCUM ? g->tensor[tc_in(g, n, 0)].node : -1;
  if (maker >= 0 && c->in_flight[maker]) {
    TC_GROW(c->lazy, c->n_lazy, c->cap_lazy);
    c->lazy[c->n_lazy++] = x;
    count_busy(c, n, 1);
    return;
  }
  for (int k = 0; k < n->n_in; k++) need(c, tc_in(g, n, k), false, x.mb);
  for (int k = 0; k < n->n_out; k++) need(c, tc_out(g, n, k), true, x.mb);
  if (n->op != TC_OP_RESHARD || tc_coll_is_local(n->coll)) {
    push(c->s, TC_RUN, x.node, x.mb);
    return;
  }
  bound_flying(c, n);
  push(c->s, TC_ISSUE, x.node, x.mb);
  TC_GROW(c->flying, c->n_flying, c->cap_flying);
  c->flying[c->n_flying++] = x;
  c->in_flight[x.node]++;
  count_busy(c, n, 1);
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

/* ---- from stage to stage --------------------------------------------------------------- */

static int find_crossings(struct sched *c, struct tc_err *err)
{
  const struct tc_graph *g = c->g;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (!is_crossing(n)) continue;
    const struct tc_tensor *x = &g->tensor[tc_in(g, n, 0)];
    struct crossing y = { n->id, g->unit[g->node[x->node].unit].stage, g->unit[n->unit].stage,
                          n->mark == TC_F ? TC_WORK_F : TC_WORK_B };
    if (y.to - y.from != (n->mark == TC_F ? 1 : -1))
      return tc_fail(err, TC_ELAYOUT, "%s goes from stage %d to stage %d; only neighbours exchange "
                     "tensors", x->name, y.from, y.to);
    TC_GROW(c->crossing, c->n_crossings, c->cap_crossings);
    c->crossing[c->n_crossings++] = y;
  }
  return 0;
}

/* The transfer at the head of this rank's queue; without a backward pass its transfers are none. */
static const struct tc_transfer *at_head(struct sched *c)
{
  for (; c->head < c->cross->n_queue[c->o.at]; c->head++) {
    const struct tc_transfer *t = &c->cross->t[c->cross->queue[c->o.at][c->head]];
    if (c->backward || t->work == TC_WORK_F) return t;
  }
  return NULL;
}

/* The MOVEs of the transfer at the head of the queue. */
static void issue_head(struct sched *c)
{
  const struct tc_transfer *t = at_head(c);
  for (int32_t i = 0; t && i < c->n_crossings; i++) {
    const struct crossing *x = &c->crossing[i];
    if (x->work == t->work && x->from == t->stage_from && x->to == t->stage_to)
      emit(c, (struct step){ x->node, t->mb, 0 });
  }
  c->head++;
}

/* Before an item: what it receives is under way, and what stands before that in the queue. */
static void receive(struct sched *c, const struct tc_item *item)
{
  int32_t stage = tc_sched_stage(c->sched, c->o.at, item->chunk), last = -1;
  for (int32_t i = c->head; i < c->cross->n_queue[c->o.at] && last < 0; i++) {
    const struct tc_transfer *t = &c->cross->t[c->cross->queue[c->o.at][i]];
    if (t->to == c->o.at && t->work == item->work && t->stage_to == stage && t->mb == item->mb)
      last = i;
  }
  while (at_head(c) && c->head <= last) issue_head(c);
}

/* Behind an item: what is made is sent, and the next receive is posted. */
static void send(struct sched *c, const struct tc_item *item)
{
  int32_t stage = tc_sched_stage(c->sched, c->o.at, item->chunk), posted = 0;
  c->made[stage * TC_WORKS + item->work] = item->mb;       /* micro-batches come in order */
  for (int32_t i = 0; i < c->n_flying; i++) {
    const struct tc_node *f = &c->g->node[c->flying[i].node];
    posted += is_crossing(f) && f->root == c->o.at;
  }
  for (const struct tc_transfer *t; (t = at_head(c));) {
    if (t->from == c->o.at && c->made[t->stage_from * TC_WORKS + t->work] < t->mb) return;
    if (t->to == c->o.at && (!c->o.overlap || posted++ > c->o.depth)) return;
    issue_head(c);
  }
}

/* ---- the list ------------------------------------------------------------------------- */

static void emit_all(struct sched *c)
{
  const struct tc_graph *g = c->g;
  const struct tc_item *items = c->sched ? c->sched->item[c->o.at] : NULL;
  for (int32_t i = 0; i < c->n_steps; i++) {
    const struct step *x = &c->step[i];
    bool first = i == 0 || c->step[i - 1].item != x->item;
    bool last = i == c->n_steps - 1 || c->step[i + 1].item != x->item;
    if (items && first && x->item >= 0) receive(c, &items[x->item]);
    if (!is_fetch(c, &g->node[x->node])) emit(c, *x);
    else if (c->reached < c->n_groups && c->fetch[c->group[c->reached]] == i) reach_group(c, i);
    if (items && last && x->item >= 0) send(c, &items[x->item]);
  }
  while (c->n_flying) land(c, 0);
}

static void make_body(struct tc_schedule *s, const struct tc_graph *g)
{
  bool *in = tc_calloc((size_t)g->n_nodes, 1);
  s->body = tc_malloc((size_t)g->n_order * sizeof *s->body);
  for (int32_t i = 0; i < s->n; i++) {
    if (in[s->action[i].node]) continue;
    in[s->action[i].node] = true;
    s->body[s->n_body++] = s->action[i].node;
  }
  free(in);
}

static void count_most(struct tc_schedule *s, const struct tc_graph *g)
{
  int32_t *now = tc_calloc((size_t)g->n_nodes, sizeof *now);
  s->most = tc_calloc((size_t)g->n_nodes, sizeof *s->most);
  for (int32_t i = 0; i < s->n; i++) {
    const struct tc_action *a = &s->action[i];
    now[a->node] += a->kind == TC_ISSUE ? 1 : a->kind == TC_WAIT ? -1 : 0;
    s->most[a->node] = TC_MAX(s->most[a->node], now[a->node]);
  }
  free(now);
}

int tc_schedule_new(struct tc_schedule **out, const struct tc_graph *g,
                    const struct tc_schedule_opts *o, struct tc_err *err)
{
  struct tc_sched *sched = NULL;
  struct tc_transfers *cross = NULL;
  bool backward = false, forward = false;        /* has a pass */
  for (int32_t i = 0; i < g->n_order; i++) {
    backward |= g->node[g->order[i]].mark == TC_B;
    forward |= g->node[g->order[i]].mark == TC_F;
  }
  if (o->pp > 1 && forward) {
    const char *name = o->name ? o->name : "naive";
    TC_TRY(tc_sched_new(&sched, name, o->pp, TC_MAX(o->chunks, 1), o->n_mb, err));
    int rc = tc_sched_transfers(&cross, sched, NULL, 0, err);
    if (rc < 0) {
      tc_sched_free(sched);
      return rc;
    }
  }
  struct tc_schedule *s = tc_calloc(1, sizeof *s);
  struct sched c = { .g = g, .s = s, .o = *o, .sched = sched, .cross = cross, .backward = backward };
  c.feeds = tc_calloc((size_t)g->n_nodes, 1);
  c.late = tc_calloc((size_t)g->n_nodes, 1);
  c.lent = tc_calloc((size_t)g->n_nodes, 1);
  c.in_flight = tc_calloc((size_t)g->n_nodes, sizeof *c.in_flight);
  c.busy = tc_calloc((size_t)g->n_tensors, sizeof *c.busy);
  s->n_mb = o->n_mb;
  s->opts = *o;
  int rc = 0;
  find_late(&c);
  if (sched) {
    size_t n = (size_t)(sched->p * sched->v) * TC_WORKS;
    c.made = tc_malloc(n * sizeof *c.made);
    memset(c.made, -1, n * sizeof *c.made);
    rc = find_crossings(&c, err);
  }
  if (!rc) {
    add_steps(&c);
    find_feeds(&c);
    find_groups(&c);
    emit_all(&c);
    make_body(s, g);
    count_most(s, g);
  }
  tc_transfers_free(cross);
  tc_sched_free(sched);
  void *const made[] = { c.feeds, c.late, c.lent, c.made, c.crossing, c.of_kind, c.kind_at, c.step,
                         c.fetch, c.free_at, c.group, c.in_flight, c.busy, c.flying, c.lazy };
  for (size_t i = 0; i < sizeof made / sizeof *made; i++) free(made[i]);
  if (rc < 0) {
    tc_schedule_free(s);
    return rc;
  }
  *out = s;
  return 0;
}

int32_t tc_schedule_most(const struct tc_schedule *s, int32_t node)
{
  return TC_MAX(s->most[node], 1);
}

void tc_schedule_free(struct tc_schedule *s)
{
  if (!s) return;
  free(s->action);
  free(s->body);
  free(s->most);
  free(s);
}
