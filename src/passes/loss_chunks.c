/* loss_chunks.c - cuts the loss head into chunks of tokens, so that only one chunk's logits exist at a time.
 *
 * A chunk uses views, rows of the tensors that the head reads and makes, so that nothing is copied. The order stays
 * topological. The losses are summed after the gradient of the logits: a device can then run cross-entropy and that
 * gradient as one call. Every program with a backward pass has this order, whether its device does so or not. */
#include "src/passes/passes.h"
#include "src/graph/rule.h"

#include <stdlib.h>
#include <string.h>

static struct tc_local logits_of(const struct tc_graph *g, const struct tc_mesh *m)
{
  const int32_t zero[TC_AXES] = { 0 };
  struct tc_local l;
  tc_tensor_local(&g->tensor[g->logits], m, zero, &l);
  return l;
}

int64_t tc_loss_chunk_least(const struct tc_graph *g, const struct tc_mesh *m)
{
  return tc_ceil_div(TC_MAX(logits_of(g, m).dim[0], 1), TC_LOSS_CHUNKS);
}

int64_t tc_loss_chunk_rows(const struct tc_graph *g, const struct tc_mesh *m, int64_t bytes)
{
  const struct tc_local l = logits_of(g, m);
  const int64_t row = l.dim[1] * (int64_t)tc_dtype_bytes(g->tensor[g->logits].dtype);
  return TC_MAX(tc_loss_chunk_least(g, m), bytes / TC_MAX(1, row));
}

/* Chunks are equal. Where no suitable number divides the rows there are up to 8 times as many chunks as
 * requested or, if that is too many, fewer; else the head is not cut. */
static int64_t count_chunks(int64_t rows, int64_t max_rows)
{
  const int64_t wanted = tc_ceil_div(rows, TC_MIN(TC_MAX(max_rows, 1), TC_MAX(rows, 1)));
  int64_t k = wanted;
  while (k <= 8 * wanted && k <= TC_LOSS_CHUNKS && rows % k) k++;
  if (k > TC_LOSS_CHUNKS)
    for (k = TC_LOSS_CHUNKS; rows % k;) k--;
  return k <= 8 * wanted && k <= rows ? k : 1;
}

struct cut {
  struct tc_graph *g;
  int64_t N, rows, K;            /* global rows, local rows, chunks */
  int32_t *map;                  /* tensor -> the one that replaces it in this chunk; -1 */
  int32_t n_old;
  bool *inside;                  /* tensors made inside the head */
  bool *outside_use;             /* ... and read outside of it */
};

static bool by_rows(const struct cut *c, const struct tc_tensor *t)
{
  return t->rank > 0 && t->dim[0] == c->N && t->param < 0;
}

/* The tensor that replaces t in chunk k. */
static int32_t chunk_tensor(struct cut *c, int32_t t, int64_t k)
{
  struct tc_graph *g = c->g;
  if (c->map[t] >= 0) return c->map[t];
  struct tc_tensor x = g->tensor[t];
  if (!by_rows(c, &x) && !c->inside[t]) return t;
  int32_t d = tc_tensor_clone(g, t);
  struct tc_tensor *y = &g->tensor[d];
  if (by_rows(c, &x)) y->dim[0] = c->N / c->K;
  if (by_rows(c, &x) && (!c->inside[t] || c->outside_use[t])) {
    y->base = t;
    y->base_row = k * (c->rows / c->K);
    y->overwrites = -1;
    if (!c->inside[t]) y->node = x.node;
  } else if (x.overwrites >= 0) {
    y->overwrites = c->map[x.overwrites] >= 0 ? c->map[x.overwrites] : x.overwrites;
  }
  return c->map[t] = d;
}

/* Makes the clone of node n for chunk k. The first chunk writes the accumulators, the others add to them.
 * The last chunk makes the original outputs of accumulation, so that later nodes read those.
 * last_version[]: of each accumulator, the version made by the previous chunk; -1: none. */
static void chunk_node(struct cut *c, int32_t id, int64_t k, int32_t *last_version)
{
  struct tc_graph *g = c->g;
  struct tc_node n = g->node[id];
  int32_t in[TC_RULE_MAX], out[TC_RULE_MAX];
  for (int i = 0; i < n.n_in; i++) in[i] = chunk_tensor(c, tc_in(g, &n, i), k);
  for (int i = 0; i < n.n_out; i++) {
    int32_t t = tc_out(g, &n, i);
    if (n.acc >> i & 1) {
      int32_t prev = last_version[t] >= 0 ? last_version[t] : g->tensor[t].overwrites;
      out[i] = k == c->K - 1 ? t : tc_tensor_clone(g, t);
      g->tensor[out[i]].node = -1;
      g->tensor[out[i]].overwrites = prev;
      last_version[t] = out[i];
    } else {
      out[i] = chunk_tensor(c, t, k);
    }
  }
  struct tc_node *m = tc_node_clone(g, id, in, out);
  if (m->acc && k > 0) m->acc_first = false;
  for (int i = 0; i < n.n_out; i++) {            /* the base of row views is complete with the last view */
    int32_t t = tc_out(g, &n, i);
    if (c->outside_use[t] && by_rows(c, &g->tensor[t])) g->tensor[t].node = m->id;
  }
}

static void cut_head(struct cut *c, const int32_t *head, int32_t n_head)
{
  struct tc_graph *g = c->g;
  size_t n_old = (size_t)g->n_tensors;
  c->map = tc_malloc(n_old * sizeof *c->map);
  int32_t *last_version = tc_no_indices(n_old);
  for (int64_t k = 0; k < c->K; k++) {
    memset(c->map, -1, n_old * sizeof *c->map);
    for (int32_t i = 0; i < n_head; i++) chunk_node(c, head[i], k, last_version);
  }
  TC_FREE(c->map, last_version);
}

/* Whether tensor t has the same rows as the logits. */
static bool has_their_rows(const struct cut *c, int32_t t)
{
  const struct tc_tensor *x = &c->g->tensor[t], *logits = &c->g->tensor[c->g->logits];
  for (int a = TC_FIRST_AXIS; a < TC_AXES && by_rows(c, x); a++) {
    if (tc_axis_role[a] == TC_ROLE_STAGE) continue;
    const struct tc_place *p = &x->lay.on[a], *q = &logits->lay.on[a];
    const bool cut = p->kind == TC_S && p->dim == 0, theirs = q->kind == TC_S && q->dim == 0;
    if (cut != theirs || (p->kind == TC_AT) != (q->kind == TC_AT) || p->kind == TC_FLAT) return false;
  }
  return true;
}

/* A chunk is the same rows of every tensor of the head, so a reshard in the head must not redistribute rows. */
static bool is_of_rows(const struct cut *c)
{
  const struct tc_graph *g = c->g;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (!n->head || n->once_a_step) continue;
    for (int k = 0; k < n->n_in; k++)
      if (!has_their_rows(c, tc_in(g, n, k))) return false;
    for (int k = 0; k < n->n_out; k++)
      if (!has_their_rows(c, tc_out(g, n, k))) return false;
  }
  return true;
}

/* How a node or a tensor depends on the head: not at all; as a part of it; as what follows it. */
enum { BEFORE, HEAD, BEHIND };

/* Finds that of each node, [n_nodes]. False if the head depends on a node that follows it: all chunks can't then
 * be before that node, or after it. */
static bool find_behind(const struct tc_graph *g, const int32_t *order, int32_t n_order, uint8_t *where)
{
  uint8_t *made = tc_calloc((size_t)g->n_tensors, 1);
  bool whole = true;
  for (int32_t i = 0; i < n_order; i++) {
    const struct tc_node *n = &g->node[order[i]];
    int most = BEFORE;
    for (int k = 0; k < n->n_in; k++) most = TC_MAX(most, made[tc_in(g, n, k)]);
    for (int k = 0; k < n->n_out; k++) {
      int32_t o = g->tensor[tc_out(g, n, k)].overwrites;
      if (o >= 0) most = TC_MAX(most, made[o]);
    }
    const bool in_head = n->head && !n->once_a_step;
    if (in_head && most == BEHIND) whole = false;
    where[n->id] = in_head ? HEAD : most == BEFORE ? BEFORE : BEHIND;
    for (int k = 0; k < n->n_out; k++) made[tc_out(g, n, k)] = where[n->id];
  }
  free(made);
  return whole;
}

/* Orders the chunks in the place of the head. Other nodes between the head's go before them, or after them if
 * they depend on the head. */
static void place_chunks(struct cut *c, const int32_t *order, int32_t n_order, const uint8_t *where,
                         const int32_t *head, int32_t n_head)
{
  struct tc_graph *g = c->g;
  bool done = false;
  int32_t last = 0, n_old = n_order;
  for (int32_t i = 0; i < n_order; i++)
    if (g->node[order[i]].head && !g->node[order[i]].once_a_step) last = i;
  g->n_order = 0;
  for (int behind = 0; behind < 2; behind++) {
    for (int32_t i = 0; i < n_old; i++) {
      const struct tc_node *n = &g->node[order[i]];
      if (n->head && !n->once_a_step) continue;
      if ((i > last || where[n->id] == BEHIND) != behind) continue;
      TC_APPEND(g->order, g->n_order, g->cap_order, n->id);
    }
    if (!done) cut_head(c, head, n_head);
    done = true;
  }
}

/* Finds the nodes of the head, in order, the tensors that they make, and which of those are read outside of the head.
 * Returns the number of nodes. */
static int32_t find_head(struct cut *c, const int32_t *order, int32_t n_order, int32_t *head)
{
  const struct tc_graph *g = c->g;
  int32_t n_head = 0;
  for (int32_t i = 0; i < n_order; i++) {
    const struct tc_node *n = &g->node[order[i]];
    const bool in_head = n->head && !n->once_a_step;
    if (in_head) head[n_head++] = order[i];
    for (int k = 0; in_head && k < n->n_out; k++) c->inside[tc_out(g, n, k)] = true;
    for (int k = 0; !in_head && k < n->n_in; k++) c->outside_use[tc_in(g, n, k)] = true;
  }
  if (g->nll >= 0) c->outside_use[g->nll] = true;     /* by the run's caller */
  return n_head;
}

/* If there is a backward pass, the head, and the nodes that depend on it, become part of it. */
static void mark_backward(struct tc_graph *g, const int32_t *order, int32_t n_order)
{
  bool backward = false;
  for (int32_t i = 0; i < n_order; i++) backward |= g->node[order[i]].mark == TC_B;
  for (int32_t i = 0; backward && i < n_order; i++) {
    struct tc_node *n = &g->node[order[i]];
    bool after = n->head;                        /* the head, or depends on it */
    for (int k = 0; k < n->n_in; k++) {
      int32_t maker = g->tensor[tc_in(g, n, k)].node;
      after |= maker >= 0 && g->node[maker].mark == TC_B;
    }
    if (after && n->mark == TC_F) n->mark = TC_B;
  }
}

/* Moves the sum of the losses, and what depends on it (its all-reduce), after the gradient of the logits. */
static void sum_behind(struct tc_graph *g)
{
  int32_t from = -1, to = -1, n_moved = 0, at;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (n->head && n->op == TC_OP_SUM) from = i;
    if (n->head && n->op == TC_OP_PICK_BWD) to = i;
  }
  if (from < 0 || to < from) return;
  int32_t *moved = tc_malloc((size_t)(to - from + 1) * sizeof *moved);
  bool *late = tc_calloc((size_t)g->n_tensors, sizeof *late);
  at = from;
  for (int32_t i = from; i <= to; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    bool behind = i == from;
    for (int k = 0; k < n->n_in; k++) behind |= late[tc_in(g, n, k)];
    for (int k = 0; k < n->n_out; k++) late[tc_out(g, n, k)] = behind;
    if (behind) moved[n_moved++] = n->id;
    else g->order[at++] = n->id;
  }
  memcpy(g->order + at, moved, (size_t)n_moved * sizeof *moved);
  TC_FREE(late, moved);
}

void tc_loss_chunks(struct tc_graph *g, const struct tc_mesh *m, int64_t max_rows)
{
  sum_behind(g);
  struct cut c = { .g = g, .N = g->tensor[g->logits].dim[0], .rows = logits_of(g, m).dim[0],
                   .K = 1 };
  const int32_t n_order = g->n_order;
  uint8_t *where = tc_calloc((size_t)g->n_nodes, 1);
  if (find_behind(g, g->order, n_order, where) && is_of_rows(&c)) c.K = count_chunks(c.rows, max_rows);
  int32_t *order = tc_malloc((size_t)n_order * sizeof *order);
  int32_t *head = tc_malloc((size_t)n_order * sizeof *head);
  memcpy(order, g->order, (size_t)n_order * sizeof *order);
  c.inside = tc_calloc((size_t)g->n_tensors, 1);
  c.outside_use = tc_calloc((size_t)g->n_tensors, 1);
  const int32_t n_head = find_head(&c, order, n_order, head);
  mark_backward(g, order, n_order);
  if (c.K > 1) place_chunks(&c, order, n_order, where, head, n_head);
  TC_FREE(where, order, head, c.inside, c.outside_use);
}
