/* actions_wait.c - the third walk: transfers are issued in the order given, and waited for before what needs them. */
#include "src/schedule/impl.h"

#include <string.h>

struct waits {
  const struct step *st;
  const struct tc_graph *g;
  struct tc_actions *s;          /* what is built */
  struct task *in_flight; int32_t n_in_flight, cap_in_flight;      /* in the order they were issued */
  int32_t *times_in_flight;      /* [node] */
  int32_t *busy;                 /* [root]: transfers in flight that touch it, and deferred sums */
  struct task *deferred; int32_t n_deferred, cap_deferred;         /* sums of transfers in flight */
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

static void complete(struct waits *c, int32_t i)
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
static void need(struct waits *c, int32_t t, bool writes, int32_t mb)
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

static bool sends(const struct waits *c, const struct tc_node *n)
{
  return tc_sends_each_mb(n) && n->from_root == c->st->o.at;
}

/* At most `prefetch` transfers (at least one) may keep scratch from being used again. */
static void bound_in_flight(struct waits *c, const struct tc_node *n)
{
  bool bounded = (n->role != TC_ROLE_NONE && n->role != TC_ROLE_GATHER) || sends(c, n);
  if (!bounded || !takes_scratch(c->g, n)) return;
  int32_t alike_in_flight = 0;
  for (int32_t i = c->n_in_flight - 1; i >= 0; i--) {
    const struct tc_node *f = &c->g->node[c->in_flight[i].node];
    bool alike = sends(c, n) ? sends(c, f) : f->role == n->role && takes_scratch(c->g, f);
    if (alike && ++alike_in_flight >= TC_MAX(c->st->o.prefetch, 1)) complete(c, i);
  }
}

static void emit(struct waits *c, struct task x)
{
  const struct tc_graph *g = c->g;
  const struct tc_node *n = &g->node[x.node];
  int32_t maker = n->op == TC_OP_ACCUM ? g->tensor[tc_in(g, n, 0)].node : -1;
  if (maker >= 0 && c->times_in_flight[maker]) {
    TC_APPEND(c->deferred, c->n_deferred, c->cap_deferred, x);
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
  TC_APPEND(c->in_flight, c->n_in_flight, c->cap_in_flight, x);
  c->times_in_flight[x.node]++;
  count_busy(c, n, 1);
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
