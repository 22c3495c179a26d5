/* bucket.c - merges the reshards of a unit into one RESHARD with many parts: weights are gathered, and
 * gradients reduced, together.
 *
 * The order stays topological. */
#include "src/passes/impl.h"

#include <stdlib.h>
#include <string.h>

struct group { int32_t *member, n, ready, needed; };   /* indices into the order */

static int phase_of(const struct tc_node *n) { return n->mark == TC_W ? TC_B : n->mark; }

static bool same_stage(const struct tc_graph *g, const struct tc_node *a, const struct tc_node *b)
{
  return a->on_all_stages == b->on_all_stages && (a->on_all_stages ||
                                            g->unit[a->unit].at == g->unit[b->unit].at);
}

static bool joins(const struct tc_graph *g, const struct tc_node *a, const struct tc_node *b)
{
  bool scalars = b->control && b->mark == TC_U;      /* of the update: in any unit */
  return b->op == TC_OP_RESHARD && b->coll == a->coll && b->axis == a->axis &&
         (b->unit == a->unit || scalars) && same_stage(g, a, b) && b->control == a->control &&
         (!b->control || scalars) &&
         phase_of(b) == phase_of(a) && b->red == a->red && b->root == a->root &&
         b->once_a_step == a->once_a_step && (b->once_a_step || b->role) && b->n_in == 1 &&
         !tc_coll_is_local(b->coll) &&
         b->role == a->role && b->space == a->space &&
         g->tensor[tc_in(g, b, 0)].dtype == g->tensor[tc_in(g, a, 0)].dtype;
}

/* For each RESHARD the next one of its unit in the order; g->n_order: none. `scalars`: control
 * traffic is a unit of its own. */
static int32_t *chain_reshards(const struct tc_graph *g, bool scalars)
{
  int32_t *next = tc_malloc((size_t)g->n_order * sizeof *next);
  int32_t *first = tc_malloc((size_t)(g->n_units + 1) * sizeof *first);
  for (int32_t u = 0; u <= g->n_units; u++) first[u] = g->n_order;
  for (int32_t i = g->n_order - 1; i >= 0; i--) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (n->op != TC_OP_RESHARD) continue;
    int32_t u = scalars && n->control ? g->n_units : n->unit;
    next[i] = first[u];
    first[u] = i;
  }
  free(first);
  return next;
}

/* The RESHARD nodes that are merged with the one at position i; where their inputs are all ready and where the
 * first output is needed. */
static void find_group(const struct tc_graph *g, int32_t i, const int32_t *next, const int32_t *at,
                       const int32_t *reader, const bool *drop, struct group *u)
{
  const struct tc_node *a = &g->node[g->order[i]];
  u->n = 0;
  u->ready = -1;
  u->needed = g->n_order;
  for (int32_t j = i; j < g->n_order; j = next[j]) {
    const struct tc_node *b = &g->node[g->order[j]];
    if (drop[b->id] || !joins(g, a, b)) continue;
    u->member[u->n++] = b->id;
    int32_t maker = g->tensor[tc_in(g, b, 0)].node;
    if (maker >= 0) u->ready = TC_MAX(u->ready, at[maker]);
    u->needed = TC_MIN(u->needed, reader[tc_out(g, b, 0)]);
  }
}

/* Merges all parts into the member `into`. */
static void merge_group(struct tc_graph *g, const struct group *u, int32_t into, bool *drop)
{
  int32_t first = g->n_args;
  for (int side = 0; side < 2; side++)
    for (int p = 0; p < u->n; p++) {
      const struct tc_node *b = &g->node[u->member[p]];
      int32_t t = side ? tc_out(g, b, 0) : tc_in(g, b, 0);
      TC_GROW(g->arg, g->n_args, g->cap_args);
      g->arg[g->n_args++] = t;
      if (side) g->tensor[t].node = into;
    }
  for (int p = 0; p < u->n; p++) drop[u->member[p]] = u->member[p] != into;
  struct tc_node *k = &g->node[into];
  k->in = first;
  k->out = first + u->n;
  k->n_in = k->n_out = u->n;
}

static bool same_gather(const struct tc_node *a, const struct tc_node *b)
{
  return b->op == TC_OP_RESHARD && b->role == TC_ROLE_GATHER && b->unit == a->unit &&
         b->once_a_step == a->once_a_step && phase_of(b) == phase_of(a);
}

/* Moves the gathers of a unit and phase to where the first of them is: their first collectives
 * come first, so that they can be merged (a copy from the host, then the all-gather). */
static void hoist_gathers(struct tc_graph *g)
{
  int32_t *order = tc_malloc((size_t)g->n_order * sizeof *order), n = 0;
  int32_t *next = chain_reshards(g, false);
  bool *put = tc_calloc((size_t)g->n_nodes, 1);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *a = &g->node[g->order[i]];
    if (put[a->id]) continue;
    for (bool more = a->op == TC_OP_RESHARD && a->role == TC_ROLE_GATHER; more;) {
      more = false;
      int32_t from = n;
      for (int32_t k = i; k < g->n_order; k = next[k]) {
        const struct tc_node *b = &g->node[g->order[k]];
        if (put[b->id] || !same_gather(a, b)) continue;
        int32_t maker = g->tensor[tc_in(g, b, 0)].node;
        bool ready = maker < 0 || put[maker];
        for (int32_t q = from; q < n; q++) ready &= order[q] != maker;   /* the collective after it */
        if (!ready) continue;
        order[n++] = b->id;
        more = true;
      }
      for (int32_t q = from; q < n; q++) put[order[q]] = true;
    }
    if (put[a->id]) continue;
    put[a->id] = true;
    order[n++] = a->id;
  }
  TC_ASSERT(n == g->n_order);
  memcpy(g->order, order, (size_t)n * sizeof *order);
  free(order);
  free(next);
  free(put);
}

/* Whether a node depends on the unit's gradient reshards: sums into accumulators, and a gradient's second
 * reshard. */
static bool waits(const struct tc_node *n)
{
  return n->op == TC_OP_ACCUM || (n->op == TC_OP_RESHARD && n->role == TC_ROLE_GRAD);
}

/* Moves readers of a reshard that was merged into a later one behind that one. */
static void sink_waiting(struct tc_graph *g)
{
  int32_t *order = tc_malloc((size_t)g->n_order * sizeof *order);
  int32_t n = 0, *late = tc_malloc((size_t)g->n_order * sizeof *late), n_late = 0;
  bool *put = tc_calloc((size_t)g->n_nodes, 1);
  for (int32_t i = 0; i < g->n_nodes; i++) put[i] = true;
  for (int32_t i = 0; i < g->n_order; i++) put[g->order[i]] = false;
  for (int32_t i = 0; i < g->n_order; i++) {
    late[n_late++] = g->order[i];
    for (bool more = true; more;) {
      more = false;
      for (int32_t k = 0; k < n_late; k++) {
        const struct tc_node *x = &g->node[late[k]];
        bool ready = true;
        for (int q = 0; q < x->n_in; q++) {
          int32_t maker = g->tensor[tc_in(g, x, q)].node;
          ready &= maker < 0 || put[maker];
        }
        if (!ready) continue;
        put[x->id] = more = true;
        order[n++] = x->id;
        memmove(late + k, late + k + 1, (size_t)(--n_late - k) * sizeof *late);
        k--;
      }
    }
  }
  TC_ASSERT(n == g->n_order && n_late == 0);
  memcpy(g->order, order, (size_t)n * sizeof *order);
  free(order);
  free(late);
  free(put);
}

void tc_bucket(struct tc_graph *g)
{
  hoist_gathers(g);
  bool *drop = tc_calloc((size_t)g->n_nodes, sizeof *drop);
  int32_t *at = tc_order_positions(g), *next = chain_reshards(g, true);
  int32_t *reader = tc_malloc((size_t)g->n_tensors * sizeof *reader);
  for (int32_t t = 0; t < g->n_tensors; t++) reader[t] = g->n_order;
  for (int32_t i = g->n_order - 1; i >= 0; i--) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_in && !waits(n); k++) reader[tc_in(g, n, k)] = i;
  }
  struct group u = { .member = tc_malloc((size_t)g->n_order * sizeof *u.member) };
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *a = &g->node[g->order[i]];
    if (drop[a->id] || !joins(g, a, a)) continue;
    find_group(g, i, next, at, reader, drop, &u);
    int32_t into = -1;                           /* the first place where all inputs exist */
    for (int p = 0; p < u.n && into < 0; p++)
      if (at[u.member[p]] > u.ready) into = u.member[p];
    if (u.n > 1 && into >= 0 && at[into] < u.needed) merge_group(g, &u, into, drop);
  }
  tc_graph_drop(g, drop);
  sink_waiting(g);
  free(drop);
  free(at);
  free(next);
  free(reader);
  free(u.member);
}
