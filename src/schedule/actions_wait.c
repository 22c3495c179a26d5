/* actions_wait.c - the third walk: transfers are issued in the order given, and waited for before what needs them. */
#include "src/schedule/impl.h"

#include <string.h>

/* A sum, or a further reduction, of what the transfer `after` reduces: nobody waits for that before it. */
struct deferred { struct task x; int32_t after; };

struct waits {
  const struct step *st;
  const struct tc_graph *g;
  struct tc_actions *s;          /* what is built */
  struct task *in_flight; int32_t n_in_flight, cap_in_flight;      /* in the order they were issued */
  int32_t *times_in_flight;      /* [node] from the place in the order to the wait */
  int32_t *busy;                 /* [root]: transfers in flight that touch it, and what is deferred */
  struct deferred *deferred; int32_t n_deferred, cap_deferred;     /* in the order of the list */
};

static void push(struct tc_actions *s, int kind, int32_t node, int32_t mb)
{
  TC_APPEND(s->action, s->n, s->cap, (struct tc_action){ (uint8_t)kind, node, mb });
}

/* Counts the storage that transfers in flight touch: most of what an action needs is not in flight. */
static void count_busy(struct waits *c, const struct tc_node *n, int by)
{
  for (int k = 0; k < n->n_in; k++) c->busy[tc_tensor_root(c->g, tc_in(c->g, n, k))] += by;
  for (int k = 0; k < n->n_out; k++) c->busy[tc_tensor_root(c->g, tc_out(c->g, n, k))] += by;
}

static void issue(struct waits *c, struct task x)
{
  push(c->s, TC_ISSUE, x.node, x.mb);
  TC_APPEND(c->in_flight, c->n_in_flight, c->cap_in_flight, x);
  count_busy(c, &c->g->node[x.node], 1);
}

static bool travels(const struct tc_node *n) { return n->op == TC_OP_RESHARD && !tc_coll_is_local(n->coll); }

/* The transfer in flight that a sum into an accumulator, or a further reduction of gradients, follows, without anyone having
 * to wait here; -1: none. */
static int32_t follows_one(const struct waits *c, const struct tc_node *n)
{
  const bool reduces = c->st->o.overlap && travels(n) && n->role == TC_ROLE_GRAD;
  int32_t one = -1;
  for (int k = 0; k < n->n_in && (reduces || (n->op == TC_OP_ACCUM && k == 0)); k++) {
    const int32_t maker = c->g->tensor[tc_in(c->g, n, k)].node;
    if (maker < 0 || !c->times_in_flight[maker] || maker == one) continue;
    if (one >= 0) return -1;
    one = maker;
  }
  return one;
}

static void bound_in_flight(struct waits *c, const struct tc_node *n);

/* A node that others follow has ended: they run, or travel in turn, for which others may have to end first (complete). Each call
 * takes one from what is deferred or in flight, so this ends. */
static void release(struct waits *c, int32_t node)
{
  for (int32_t k = 0; k < c->n_deferred; k++) {
    const struct task x = c->deferred[k].x;
    if (c->deferred[k].after != node) continue;
    c->n_deferred--;
    memmove(c->deferred + k, c->deferred + k + 1, (size_t)(c->n_deferred - k) * sizeof *c->deferred);
    count_busy(c, &c->g->node[x.node], -1);
    if (travels(&c->g->node[x.node])) {
      bound_in_flight(c, &c->g->node[x.node]);
      issue(c, x);
    } else {
      push(c->s, TC_RUN, x.node, x.mb);
      c->times_in_flight[x.node]--;
      release(c, x.node);
    }
    k = -1;                                      /* deferred[] is another one */
  }
}

/* in_flight[] is another one then. */
static void complete(struct waits *c, int32_t i)
{
  const struct task x = c->in_flight[i];
  push(c->s, TC_WAIT, x.node, x.mb);
  c->times_in_flight[x.node]--;
  count_busy(c, &c->g->node[x.node], -1);
  c->n_in_flight--;
  memmove(c->in_flight + i, c->in_flight + i + 1, (size_t)(c->n_in_flight - i) * sizeof x);
  release(c, x.node);
}

/* Whether what is deferred as the k-th waits for this transfer, or for what waits for it. */
static bool leads_to(const struct waits *c, int32_t transfer, int32_t k)
{
  int32_t after = c->deferred[k].after;
  for (int32_t i = k; i >= 0 && after != transfer; i--)    /* it was deferred after those */
    if (c->deferred[i].x.node == after) after = c->deferred[i].after;
  return after == transfer;
}

static bool touches(const struct tc_graph *g, const struct tc_node *n, int32_t root, bool writes)
{
  bool hit = false;
  for (int k = 0; k < n->n_out && !hit; k++) hit = tc_tensor_root(g, tc_out(g, n, k)) == root;
  for (int k = 0; k < n->n_in && writes && !hit; k++) hit = tc_tensor_root(g, tc_in(g, n, k)) == root;
  return hit;
}

/* Waits for transfers in flight into the storage of tensor t (t itself, rows of it, a sum that
 * follows); and, if t is going to be written, for those that still read from it. */
static void need(struct waits *c, int32_t t, bool writes, int32_t mb)
{
  const struct tc_graph *g = c->g;
  int32_t root = tc_tensor_root(g, t);
  for (int32_t i = 0; i < c->n_in_flight && c->busy[root]; i++) {
    const struct tc_node *n = &g->node[c->in_flight[i].node];
    const bool other_slot = tc_sends_each_mb(n) && c->in_flight[i].mb != mb;
    bool hit = !other_slot && touches(g, n, root, writes);
    for (int32_t k = 0; k < c->n_deferred && !hit; k++)
      hit = touches(g, &g->node[c->deferred[k].x.node], root, writes) && leads_to(c, n->id, k);
    if (!hit) continue;
    complete(c, i);
    i = -1;
  }
}

static bool takes_scratch(const struct tc_graph *g, const struct tc_node *n)
{
  for (int k = 0; k < n->n_in; k++)
    if (!g->tensor[tc_tensor_root(g, tc_in(g, n, k))].state) return true;
  return false;
}

static bool sends(const struct waits *c, const struct tc_node *n)
{
  return tc_sends_each_mb(n) && n->from_root == c->st->o.at;
}

/* Whether another transfer is deferred until this one has ended. */
static bool is_followed(const struct waits *c, const struct tc_node *f)
{
  for (int32_t k = 0; k < c->n_deferred; k++)
    if (c->deferred[k].after == f->id && travels(&c->g->node[c->deferred[k].x.node])) return true;
  return false;
}

/* At most `prefetch` transfers alike (at least one) may be under way: reductions on the same axes that keep scratch from being
 * used again, or that others follow, and sends of the same tensor to another stage, of different micro-batches. */
static bool are_alike(const struct waits *c, const struct tc_node *n, const struct tc_node *f)
{
  if (sends(c, n)) return f == n;
  return f->role == n->role && f->axes == n->axes && (takes_scratch(c->g, f) || is_followed(c, f));
}

static void bound_in_flight(struct waits *c, const struct tc_node *n)
{
  const bool reduces = n->role != TC_ROLE_NONE && n->role != TC_ROLE_GATHER;
  const bool bounded = n->role == TC_ROLE_GRAD || ((reduces || sends(c, n)) && takes_scratch(c->g, n));
  for (int32_t i = bounded ? c->n_in_flight - 1 : -1, alike = 0; i >= 0; i--) {
    if (!are_alike(c, n, &c->g->node[c->in_flight[i].node]) || ++alike < TC_MAX(c->st->o.prefetch, 1)) continue;
    complete(c, i);
    i = c->n_in_flight;
    alike = 0;
  }
}

/* Waits until a node is neither in flight nor deferred. */
static void finish(struct waits *c, int32_t node)
{
  for (int32_t i = 0; i < c->n_in_flight && c->times_in_flight[node]; i++) {
    bool hit = c->in_flight[i].node == node;
    for (int32_t k = 0; k < c->n_deferred && !hit; k++) hit = c->deferred[k].x.node == node && leads_to(c, c->in_flight[i].node, k);
    if (!hit) continue;
    complete(c, i);
    i = -1;
  }
}

static void emit(struct waits *c, struct task x)
{
  const struct tc_graph *g = c->g;
  const struct tc_node *n = &g->node[x.node];
  int32_t after = follows_one(c, n);
  if (after >= 0) {                              /* one of it at a time, and sums in their order */
    const int32_t old = n->op == TC_OP_ACCUM ? g->tensor[tc_out(g, n, 0)].overwrites : -1;
    finish(c, x.node);
    if (old >= 0 && g->tensor[old].node >= 0) finish(c, g->tensor[old].node);
    after = follows_one(c, n);
  }
  if (after >= 0) {
    TC_APPEND(c->deferred, c->n_deferred, c->cap_deferred, (struct deferred){ x, after });
    count_busy(c, n, 1);
    c->times_in_flight[x.node]++;
    return;
  }
  for (int k = 0; k < n->n_in; k++) need(c, tc_in(g, n, k), false, x.mb);
  for (int k = 0; k < n->n_out; k++) need(c, tc_out(g, n, k), true, x.mb);
  if (!travels(n)) {
    push(c->s, TC_RUN, x.node, x.mb);
    return;
  }
  bound_in_flight(c, n);
  c->times_in_flight[x.node]++;
  issue(c, x);
  if (!c->st->o.overlap) complete(c, c->n_in_flight - 1);
}

void tc_place_waits(struct tc_actions *out, const struct step *st, const struct tasks *in)
{
  struct waits c = { .st = st, .g = st->g, .s = out };
  c.times_in_flight = tc_calloc((size_t)st->g->n_nodes, sizeof *c.times_in_flight);
  c.busy = tc_calloc((size_t)st->g->n_tensors, sizeof *c.busy);
  for (int32_t i = 0; i < in->n; i++) emit(&c, in->task[i]);
  while (c.n_in_flight) complete(&c, 0);
  TC_FREE(c.in_flight, c.times_in_flight, c.busy, c.deferred);
}
