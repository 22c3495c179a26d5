/* check_grad.c - every contribution to a gradient reaches its parameter's update exactly once.
 *
 * The backward pass makes one contribution for each use of a weight, and records it in the graph. Later
 * passes split contributions into chunks, sum them separately, reshard them and reorder them. This file
 * simulates the program with the contributions that each tensor contains: their number, and the sum of a
 * hash of each, so that a missing one is detected even if another is counted twice. An update must receive
 * all of them.
 *
 * A partial tensor contains what the coordinates contribute together, and check.c verifies that placements
 * change only by legal collectives, so a contribution that is counted once is counted once on all
 * coordinates. Time is checked here: a sum over micro-batches is not taken from the last one only. */
#include "src/graph/check.h"

#include <stdlib.h>
#include <string.h>

struct content { int32_t n; uint64_t sum; };

struct walk {
  const struct tc_graph *g;
  const struct tc_mesh *m;
  bool placed;
  int32_t *root;                 /* of each tensor: the one that owns its storage */
  uint8_t *makes;                /* origin node -> its outputs that are contributions, one bit each */
  struct content *has;           /* of each tensor */
  struct content *all;           /* of each parameter */
  bool *updated;                 /* parameter */
};

static uint64_t hash(int32_t node, int k)
{
  uint64_t x = ((uint64_t)node << 3) + (uint64_t)k + 1;
  x = (x ^ (x >> 31)) * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
  return x ^ (x >> 32);
}

static void add(struct content *to, const struct content *x)
{
  to->n += x->n;
  to->sum += x->sum;
}

static bool same(const struct content *a, const struct content *b)
{
  return a->n == b->n && a->sum == b->sum;
}

static bool contributes(const struct walk *w, const struct tc_node *n, int k)
{
  return n->op != TC_OP_RESHARD && (w->makes[n->origin] >> k & 1);
}

static bool same_place(const struct tc_tensor *a, const struct tc_tensor *b)
{
  for (int x = TC_FIRST_AXIS; x < TC_AXES; x++)
    if (!tc_place_equal(&a->lay.on[x], &b->lay.on[x])) return false;
  return a->space == b->space;
}

/* Whether a tensor is computed once per step: state (accumulators), or made by a node that runs once per step. */
static bool is_once(const struct walk *w, int32_t t)
{
  int32_t maker = w->g->tensor[t].node;
  return w->g->tensor[w->root[t]].state || maker < 0 || w->g->node[maker].once_a_step;
}

/* Computes the contributions in output k of node n; returns what is wrong, or NULL. */
static const char *set_content(const struct walk *w, const struct tc_node *n, int k)
{
  const struct tc_graph *g = w->g;
  const struct tc_tensor *t = &g->tensor[tc_out(g, n, k)];
  struct content c = { 0 };
  if (contributes(w, n, k)) {
    c = (struct content){ 1, hash(n->id, k) };
  } else if (n->op == TC_OP_RESHARD || n->op == TC_OP_ACCUM) {
    c = w->has[tc_in(g, n, k)];
    if (c.n && w->placed && w->m->size[TC_MB] > 1 && n->once_a_step != is_once(w, tc_in(g, n, k)))
      return "mixes what one micro-batch contributes with what all of them contribute";
  } else {
    return NULL;
  }
  const struct tc_tensor *old = t->overwrites >= 0 ? &g->tensor[t->overwrites] : NULL;
  if (c.n && old && (n->acc >> k & 1)) {
    bool state = g->tensor[w->root[t->id]].state;
    if (w->placed && !same_place(t, old)) return "is added to a sum with another placement";
    if (state && n->acc_first != old->state)
      return old->state ? "is added to the previous step's sum"
                        : "is written over earlier contributions";
    if (!old->state) add(&c, &w->has[old->id]);
  }
  w->has[t->id] = c;
  return NULL;
}

/* Whether a node that reads final gradients receives all contributions; *t: the tensor that is wrong. */
static bool finds_all(struct walk *w, const struct tc_node *n, int32_t *t)
{
  const struct tc_graph *g = w->g;
  const int32_t updates = tc_updates(g, n);
  int count = updates >= 0 ? 1 : n->op == TC_OP_SQNORM ? n->n_in : 0;
  for (int i = 0; i < count; i++) {
    *t = tc_in(g, n, i);
    int32_t p = updates >= 0 ? updates : g->tensor[*t].param;
    if (p < 0 || !same(&w->has[*t], &w->all[p])) return false;
    if (updates < 0) continue;
    if (w->updated[p]) return false;
    w->updated[p] = true;
  }
  return true;
}

/* Identifies a chunk: the first row that it reads of the whole tensor or, where it reads a tensor that the
 * chunk itself has made, that tensor. -1: it is not a chunk of n. */
static int64_t chunk_of(const struct tc_graph *g, const struct tc_node *n, int32_t chunks)
{
  const int64_t rows = g->logits >= 0 ? g->tensor[g->logits].dim[0] : 0;
  for (int i = 0; i < n->n_in; i++) {
    const struct tc_tensor *x = &g->tensor[tc_in(g, n, i)];
    if (x->base >= 0 && !x->block && x->dim[0] * chunks == g->tensor[x->base].dim[0])
      return x->base_row;
  }
  const struct tc_tensor *x = n->n_in ? &g->tensor[tc_in(g, n, 0)] : NULL;
  return x && x->rank && x->dim[0] * chunks == rows ? x->id : -1;
}

/* Whether the chunks of a contribution, the nodes `at[n]`, have different rows. */
static bool covers(const struct tc_graph *g, const int32_t *at, int32_t n)
{
  int64_t *chunk = tc_malloc((size_t)n * sizeof *chunk);
  bool good = n > 0;
  for (int32_t i = 0; i < n && n > 1 && good; i++)
    good = (chunk[i] = chunk_of(g, &g->node[at[i]], n)) >= 0;
  if (n > 1 && good) qsort(chunk, (size_t)n, sizeof *chunk, tc_order_i64);
  for (int32_t i = 1; i < n && good; i++) good = chunk[i] != chunk[i - 1];
  free(chunk);
  return good;
}

/* Finds all recorded contributions in the program, complete, and computes the sums that updates must receive. */
static int32_t find_all(struct walk *w)
{
  const struct tc_graph *g = w->g;
  int32_t *at = tc_malloc((size_t)g->n_order * sizeof *at), missing = -1;
  int32_t *count = tc_calloc((size_t)g->n_nodes + 1, sizeof *count);
  for (int32_t i = 0; i < g->n_contributions; i++)
    w->makes[g->contribution[i].node] |= (uint8_t)(1u << g->contribution[i].out);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (n->op != TC_OP_RESHARD && w->makes[n->origin]) count[n->origin + 1]++;
  }
  for (int32_t i = 0; i < g->n_nodes; i++) count[i + 1] += count[i];
  int32_t *next = tc_malloc((size_t)(g->n_nodes + 1) * sizeof *next);
  memcpy(next, count, (size_t)(g->n_nodes + 1) * sizeof *next);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (n->op != TC_OP_RESHARD && w->makes[n->origin]) at[next[n->origin]++] = n->id;
  }
  for (int32_t i = 0; i < g->n_contributions && missing < 0; i++) {
    const struct tc_contribution *x = &g->contribution[i];
    const int32_t *from = at + count[x->node], n = count[x->node + 1] - count[x->node];
    if (!covers(g, from, n)) missing = i;
    for (int32_t j = 0; j < n; j++)
      add(&w->all[x->param], &(struct content){ 1, hash(from[j], x->out) });
  }
  TC_FREE(next, count, at);
  return missing;
}

/* Whether a node other than an update writes a master weight; a RESHARD may store an update's result there. */
static bool changes_master(const struct tc_graph *g, const struct tc_node *n)
{
  for (int k = 0; k < n->n_out && n->op != TC_OP_RESHARD && tc_updates(g, n) < 0; k++) {
    const struct tc_tensor *t = &g->tensor[tc_out(g, n, k)];
    const int32_t old = t->overwrites;
    if (old >= 0 && t->param >= 0 && g->param[t->param].master == old) return true;
  }
  return false;
}

static int check(struct walk *w, const char *pass, struct tc_err *err)
{
  const struct tc_graph *g = w->g;
  int32_t missing = find_all(w), t = -1;
  bool updates = false;
  if (missing >= 0)
    return tc_fail(err, TC_EUSER, "program after %s: a contribution to the gradient of %s is "
                   "missing, or some of its chunks are", pass, g->param[g->contribution[missing].param].name);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_out; k++) {
      const char *what = set_content(w, n, k);
      if (what)
        return tc_fail(err, TC_EUSER, "program after %s: node %d %s: a contribution to %s %s", pass,
                       n->id, tc_op_info[n->op].name, g->tensor[tc_out(g, n, k)].name, what);
    }
    if (!finds_all(w, n, &t))
      return tc_fail(err, TC_EUSER, "program after %s: node %d %s: the gradient %s does not contain each "
                     "contribution once", pass, n->id, tc_op_info[n->op].name, g->tensor[t].name);
    if (changes_master(g, n))
      return tc_fail(err, TC_EUSER, "program after %s: node %d %s changes a parameter but is not an "
                     "optimizer op (op.def)", pass, n->id, tc_op_info[n->op].name);
    updates |= tc_updates(g, n) >= 0;
  }
  for (int32_t p = 0; p < g->n_params && updates; p++)
    if (w->updated[p] == g->param[p].frozen)
      return tc_fail(err, TC_EUSER, "program after %s: %s is %s", pass, g->param[p].name,
                     g->param[p].frozen ? "frozen, but updated" : "not updated");
  return 0;
}

int tc_check_gradients(const struct tc_graph *g, const struct tc_mesh *m, bool placed,
                       const char *pass, struct tc_err *err)
{
  if (!g->n_contributions) return 0;
  struct walk w = { .g = g, .m = m, .placed = placed };
  w.root = tc_graph_roots(g);
  w.makes = tc_calloc((size_t)g->n_nodes, 1);
  w.has = tc_calloc((size_t)g->n_tensors, sizeof *w.has);
  w.all = tc_calloc((size_t)g->n_params, sizeof *w.all);
  w.updated = tc_calloc((size_t)g->n_params, 1);
  int rc = check(&w, pass, err);
  TC_FREE(w.root, w.makes, w.has, w.all, w.updated);
  return rc;
}
