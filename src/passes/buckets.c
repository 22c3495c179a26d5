/* buckets.c - merges the reshards of a unit into one RESHARD with many parts: weights are gathered, and
 * gradients reduced, together.
 *
 * The order stays topological. */
#include "src/passes/impl.h"

#include <stdlib.h>
#include <string.h>

struct group { int32_t *member, n, ready, needed; };   /* indices into the order */

/* The program while its reshards are merged. A merged node depends on the makers of all of its inputs, and a
 * node that waits for it moves after it, so positions no longer show what depends on what. */
struct merging {
  struct tc_graph *g;
  bool *drop;                    /* nodes that were merged into another one */
  int32_t *into;                 /* node -> the node into which it was merged, or itself */
  int32_t *at;                   /* node -> its position in the order */
  int32_t *reader;               /* tensor -> the position of its first reader that does not wait; n_order: none */
  struct readers readers;        /* all of them */
  int32_t last;                  /* the last position of a merged node: no node after it precedes any of them */
  int32_t *seen, *stack, round;  /* nodes that the search of this round has reached */
};

static int phase_of(const struct tc_node *n) { return n->mark == TC_W ? TC_B : n->mark; }

static bool same_stage(const struct tc_graph *g, const struct tc_node *a, const struct tc_node *b)
{
  return a->on_all_stages == b->on_all_stages && (a->on_all_stages ||
                                            g->unit[a->unit].at == g->unit[b->unit].at);
}

static bool joins(const struct tc_graph *g, const struct tc_node *a, const struct tc_node *b)
{
  bool scalars = b->control && b->mark == TC_U;      /* of the update: in any unit */
  return b->op == TC_OP_RESHARD && b->coll == a->coll && b->axes == a->axes &&
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
static void find_group(const struct merging *m, int32_t i, const int32_t *next, struct group *u)
{
  const struct tc_graph *g = m->g;
  const struct tc_node *a = &g->node[g->order[i]];
  u->n = 0;
  u->ready = -1;
  u->needed = g->n_order;
  for (int32_t j = i; j < g->n_order; j = next[j]) {
    const struct tc_node *b = &g->node[g->order[j]];
    if (m->drop[b->id] || !joins(g, a, b)) continue;
    u->member[u->n++] = b->id;
    int32_t maker = g->tensor[tc_in(g, b, 0)].node;
    if (maker >= 0) u->ready = TC_MAX(u->ready, m->at[maker]);
    u->needed = TC_MIN(u->needed, m->reader[tc_out(g, b, 0)]);
  }
}

/* Whether a member depends on another one: one node can't then do the work of both. */
static bool depends_on_itself(struct merging *m, const struct group *u, int32_t into)
{
  const struct tc_graph *g = m->g;
  const int32_t last = TC_MAX(m->last, m->at[into]);
  int32_t n = 0;
  m->round += 2;
  for (int p = 0; p < u->n; p++) m->seen[m->stack[n++] = u->member[p]] = m->round + 1;
  while (n > 0) {
    const struct tc_node *x = &g->node[m->stack[--n]];
    for (int k = 0; k < x->n_out; k++)
      for (int32_t r = m->readers.first[tc_out(g, x, k)]; r < m->readers.first[tc_out(g, x, k) + 1]; r++) {
        const int32_t y = m->into[g->order[m->readers.at[r]]];
        if (m->seen[y] == m->round + 1) return true;
        if (m->seen[y] == m->round || m->at[y] > last) continue;
        m->seen[y] = m->round;
        m->stack[n++] = y;
      }
  }
  return false;
}

/* Merges all parts into the member `into`. */
static void merge_group(struct merging *m, const struct group *u, int32_t into)
{
  struct tc_graph *g = m->g;
  int32_t first = g->n_args;
  for (int side = 0; side < 2; side++)
    for (int p = 0; p < u->n; p++) {
      const struct tc_node *b = &g->node[u->member[p]];
      int32_t t = side ? tc_out(g, b, 0) : tc_in(g, b, 0);
      TC_APPEND(g->arg, g->n_args, g->cap_args, t);
      if (side) g->tensor[t].node = into;
    }
  for (int p = 0; p < u->n; p++) {
    m->drop[u->member[p]] = u->member[p] != into;
    m->into[u->member[p]] = into;
  }
  m->last = TC_MAX(m->last, m->at[into]);
  struct tc_node *k = &g->node[into];
  k->in = first;
  k->out = first + u->n;
  k->n_in = k->n_out = u->n;
}

/* Whether b is a gather of the unit and phase of a, which is one. */
static bool is_gather_of(const struct tc_node *a, const struct tc_node *b)
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
        if (put[b->id] || !is_gather_of(a, b)) continue;
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
  TC_FREE(order, next, put);
}

/* Whether a node depends on the unit's gradient reshards: sums into accumulators, and a gradient's second
 * reshard. */
static bool waits(const struct tc_node *n)
{
  return n->op == TC_OP_ACCUM || (n->op == TC_OP_RESHARD && n->role == TC_ROLE_GRAD);
}

/* Moves readers of a reshard that was merged into a later one to after that one. */
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
  TC_FREE(order, late, put);
}

static struct merging merging_new(struct tc_graph *g)
{
  const size_t nodes = (size_t)g->n_nodes;
  struct merging m = { .g = g, .drop = tc_calloc(nodes, sizeof *m.drop), .into = tc_malloc(nodes * sizeof *m.into),
                       .at = tc_order_positions(g), .readers = tc_order_readers(g), .last = -1,
                       .reader = tc_malloc((size_t)g->n_tensors * sizeof *m.reader),
                       .seen = tc_calloc(nodes, sizeof *m.seen), .stack = tc_malloc(nodes * sizeof *m.stack) };
  for (int32_t k = 0; k < g->n_nodes; k++) m.into[k] = k;
  for (int32_t t = 0; t < g->n_tensors; t++) m.reader[t] = g->n_order;
  for (int32_t i = g->n_order - 1; i >= 0; i--) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_in && !waits(n); k++) m.reader[tc_in(g, n, k)] = i;
  }
  return m;
}

static void merging_free(struct merging *m)
{
  TC_FREE(m->drop, m->into, m->at, m->reader, m->readers.first, m->readers.at, m->seen, m->stack);
}

void tc_buckets(struct tc_graph *g)
{
  hoist_gathers(g);
  struct merging m = merging_new(g);
  int32_t *next = chain_reshards(g, true);
  struct group u = { .member = tc_malloc((size_t)g->n_order * sizeof *u.member) };
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *a = &g->node[g->order[i]];
    if (m.drop[a->id] || !joins(g, a, a)) continue;
    find_group(&m, i, next, &u);
    int32_t into = -1;                           /* the first place where all inputs exist */
    for (int p = 0; p < u.n && into < 0; p++)
      if (m.at[u.member[p]] > u.ready) into = u.member[p];
    if (u.n > 1 && into >= 0 && m.at[into] < u.needed && !depends_on_itself(&m, &u, into))
      merge_group(&m, &u, into);
  }
  tc_graph_drop(g, m.drop);
  sink_waiting(g);
  merging_free(&m);
  TC_FREE(next, u.member);
}
