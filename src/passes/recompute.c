/* recompute.c - clones forward nodes into the backward pass: those that the user asks for, and, always, ops that op.def marks
 * with what is gathered from them.
 *
 * A backward node that reads a tensor made by a forward node of its own layer reads a clone's output
 * instead; clones are placed directly before their first reader, in the order of the forward pass. Tensors from outside the
 * layer (its input, weights) are not recomputed, so recomputation does not cascade through the layers.
 * Only nodes whose outputs are read are cloned: the layer's last reshard, for example, is not.
 * Of several ops that are always made again the next one is cloned with the one that is read: its gather can be under way
 * while the node runs that reads this one. */
#include "src/passes/passes.h"
#include "src/graph/rule.h"

#include <string.h>

struct rctx {
  struct tc_graph *g;
  enum tc_recompute what;
  bool *layer;                   /* unit: outermost, has attention in it */
  int32_t *copy;                 /* tensor -> its clone; -1 */
  int32_t *order, n_order;       /* before clones are added */
  int32_t *at;                   /* [node] its place in that order */
  bool *wanted;                  /* [node] to be cloned; between these places: */
  int32_t first, last;
};

static int32_t outermost(const struct tc_graph *g, int32_t unit)
{
  while (g->unit[unit].parent >= 0) unit = g->unit[unit].parent;
  return unit;
}

/* A node that op.def marks as made again, or the reshard of what one makes. */
static bool is_made_again(const struct tc_graph *g, const struct tc_node *n)
{
  while (n->op == TC_OP_RESHARD && n->n_in == 1 && g->tensor[tc_in(g, n, 0)].node >= 0)
    n = &g->node[g->tensor[tc_in(g, n, 0)].node];
  return tc_op_info[n->op].flags & TC_OPF_AGAIN;
}

static bool is_candidate(const struct rctx *c, const struct tc_node *n)
{
  if (n->mark != TC_F || n->head || !c->layer[outermost(c->g, n->unit)]) return false;
  if (is_made_again(c->g, n)) return true;
  if (c->what == TC_RECOMPUTE_NONE) return false;
  if (c->what == TC_RECOMPUTE_SELECTIVE)
    return n->op == TC_OP_ATTN || n->op == TC_OP_ACT || n->op == TC_OP_GLU;
  if (n->op == TC_OP_RESHARD && n->axes == TC_ON_PP) return false;         /* a receive is not repeated */
  int32_t p = n->op == TC_OP_RESHARD ? c->g->tensor[tc_in(c->g, n, 0)].param : -1;
  return p < 0 || c->g->param[p].reshard_after == TC_AFTER_USE;
}

/* Wants the nodes whose clones make t in the backward pass of a layer. */
static void want(struct rctx *c, int32_t t, int32_t layer)
{
  const struct tc_graph *g = c->g;
  const int32_t maker = g->tensor[t].node;
  if (c->copy[t] >= 0 || maker < 0 || !is_candidate(c, &g->node[maker]) || c->wanted[maker] ||
      outermost(g, g->node[maker].unit) != layer) return;
  c->wanted[maker] = true;
  c->first = TC_MIN(c->first, c->at[maker]);
  c->last = TC_MAX(c->last, c->at[maker]);
  for (int i = 0; i < g->node[maker].n_in; i++) want(c, tc_in(g, &g->node[maker], i), layer);
}

/* What replaces t in the backward pass. */
static int32_t copy_of(const struct rctx *c, int32_t t) { return c->copy[t] >= 0 ? c->copy[t] : t; }

static void clone_node(struct rctx *c, int32_t id)
{
  struct tc_graph *g = c->g;
  const struct tc_node n = g->node[id];
  int32_t in[TC_RULE_MAX], out[TC_RULE_MAX];
  TC_ASSERT(n.n_in <= TC_RULE_MAX && n.n_out <= TC_RULE_MAX);
  for (int i = 0; i < n.n_in; i++) in[i] = copy_of(c, tc_in(g, &n, i));
  for (int i = 0; i < n.n_out; i++) {
    const int32_t old = tc_out(g, &n, i);
    out[i] = c->copy[old] = tc_tensor_clone(g, old);
    if (g->tensor[old].overwrites >= 0) g->tensor[out[i]].overwrites = c->copy[g->tensor[old].overwrites];
  }
  tc_node_clone(g, id, in, out)->mark = TC_B;
}

static void clone_wanted(struct rctx *c)
{
  for (int32_t i = c->first; i <= c->last; i++) {
    if (c->wanted[c->order[i]]) clone_node(c, c->order[i]);
    c->wanted[c->order[i]] = false;
  }
  c->first = c->n_order, c->last = -1;
}

/* What is always made again that node n reads, before it is gathered; -1: nothing, or, unless `cloned`, nothing that is yet to
 * be cloned. */
static int32_t read_again(const struct rctx *c, const struct tc_node *n, bool cloned)
{
  const struct tc_graph *g = c->g;
  for (int k = 0; k < n->n_in; k++) {
    int32_t t = tc_in(g, n, k), maker = g->tensor[t].node;
    if (maker < 0 || !is_candidate(c, &g->node[maker]) || !is_made_again(g, &g->node[maker])) continue;
    if (c->copy[t] >= 0 && !cloned) continue;
    for (; g->node[maker].op == TC_OP_RESHARD; maker = g->tensor[t].node) t = tc_in(g, &g->node[maker], 0);
    return t;
  }
  return -1;
}

static bool is_backward(const struct tc_node *n) { return (n->mark == TC_B || n->mark == TC_W) && !n->head; }

/* Clones what the node at place i reads, and what is to be there for the next one that reads what is always made again. */
static void clone_for(struct rctx *c, int32_t i)
{
  struct tc_graph *g = c->g;
  const int32_t id = c->order[i], layer = outermost(g, g->node[id].unit);
  const bool again = read_again(c, &g->node[id], true) >= 0;
  for (int k = 0; k < g->node[id].n_in; k++) want(c, tc_in(g, &g->node[id], k), layer);
  clone_wanted(c);
  for (int k = 0; k < g->node[id].n_in; k++) g->arg[g->node[id].in + k] = copy_of(c, tc_in(g, &g->node[id], k));
  for (int32_t j = i + 1; again && j < c->n_order; j++) {
    const struct tc_node *n = &g->node[c->order[j]];
    if (outermost(g, n->unit) != layer) return;
    const int32_t t = is_backward(n) ? read_again(c, n, false) : -1;
    if (t < 0) continue;
    want(c, t, layer);
    clone_wanted(c);
    return;
  }
}

/* Whether node n gathers a weight for the backward pass that a clone gathers already. */
static bool gathered_again(struct rctx *c, const struct tc_node *n, int32_t n_old)
{
  struct tc_graph *g = c->g;
  if (n->op != TC_OP_RESHARD || n->role != TC_ROLE_GATHER || n->mark == TC_F || n->mark == TC_U)
    return false;
  for (int32_t i = n_old; i < g->n_nodes; i++) {
    const struct tc_node *m = &g->node[i];
    if (m->op != TC_OP_RESHARD || m->role != TC_ROLE_GATHER || m->unit != n->unit ||
        tc_in(g, m, 0) != tc_in(g, n, 0)) continue;
    int32_t a = tc_out(g, m, 0), b = tc_out(g, n, 0);
    if (!tc_layout_equal(&g->tensor[a].lay, &g->tensor[b].lay) ||
        g->tensor[a].space != g->tensor[b].space) continue;
    c->copy[b] = a;
    return true;
  }
  return false;
}

void tc_recompute(struct tc_graph *g, enum tc_recompute what)
{
  const int32_t n_order = g->n_order, n_old = g->n_nodes;
  bool any = what != TC_RECOMPUTE_NONE;
  for (int32_t i = 0; i < n_order && !any; i++) any = tc_op_info[g->node[g->order[i]].op].flags & TC_OPF_AGAIN;
  if (!any) return;
  struct rctx c = { .g = g, .what = what, .n_order = n_order, .first = n_order, .last = -1 };
  c.order = tc_malloc((size_t)n_order * sizeof *c.order);
  memcpy(c.order, g->order, (size_t)n_order * sizeof *c.order);
  c.layer = tc_calloc((size_t)g->n_units, 1);
  c.copy = tc_no_indices((size_t)g->n_tensors * 2);      /* clones have no clones */
  c.at = tc_no_indices((size_t)n_old);
  c.wanted = tc_calloc((size_t)n_old, 1);
  for (int32_t i = 0; i < n_order; i++) {
    const struct tc_node *n = &g->node[c.order[i]];
    c.at[n->id] = i;
    if (n->op == TC_OP_ATTN) c.layer[outermost(g, n->unit)] = true;
  }
  g->n_order = 0;
  for (int32_t i = 0; i < n_order; i++) {
    const int32_t id = c.order[i];
    const bool backward = is_backward(&g->node[id]);
    if (backward) clone_for(&c, i);
    if (backward && gathered_again(&c, &g->node[id], n_old)) continue;
    TC_APPEND(g->order, g->n_order, g->cap_order, id);
  }
  TC_FREE(c.order, c.layer, c.copy, c.at, c.wanted);
}
