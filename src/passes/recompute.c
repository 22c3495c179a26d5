/* recompute.c - clones forward nodes into the backward pass: those that the user asks for, and, always, ops that op.def marks
 * with what is gathered from them.
 *
 * A backward node that reads a tensor made by a forward node of its own layer reads a clone's output
 * instead; clones are placed directly before their first reader, inputs first. Tensors from outside the
 * layer (its input, weights) are not recomputed, so recomputation does not cascade through the layers.
 * Only nodes whose outputs are read are cloned: the layer's last reshard, for example, is not. */
#include "src/passes/passes.h"
#include "src/graph/rule.h"

#include <string.h>

struct rctx {
  struct tc_graph *g;
  enum tc_recompute what;
  bool *layer;                   /* unit: outermost, has attention in it */
  int32_t *copy;                 /* tensor -> its clone; -1 */
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
    return n->op == TC_OP_ATTN || n->op == TC_OP_GELU || n->op == TC_OP_SWIGLU;
  if (n->op == TC_OP_RESHARD && n->axes == TC_ON_PP) return false;         /* a receive is not repeated */
  int32_t p = n->op == TC_OP_RESHARD ? c->g->tensor[tc_in(c->g, n, 0)].param : -1;
  return p < 0 || c->g->param[p].reshard_after == TC_AFTER_USE;
}

/* The tensor that replaces t in the backward pass of a layer; clones the nodes that make it. */
static int32_t recompute_tensor(struct rctx *c, int32_t t, int32_t layer)
{
  struct tc_graph *g = c->g;
  if (c->copy[t] >= 0) return c->copy[t];
  int32_t maker = g->tensor[t].node;
  if (maker < 0 || !is_candidate(c, &g->node[maker]) ||
      outermost(g, g->node[maker].unit) != layer) return t;
  struct tc_node n = g->node[maker];
  int32_t in[TC_RULE_MAX], out[TC_RULE_MAX];
  TC_ASSERT(n.n_in <= TC_RULE_MAX && n.n_out <= TC_RULE_MAX);
  for (int i = 0; i < n.n_in; i++) in[i] = recompute_tensor(c, tc_in(g, &n, i), layer);
  for (int i = 0; i < n.n_out; i++) {
    const int32_t old = tc_out(g, &n, i);
    out[i] = c->copy[old] = tc_tensor_clone(g, old);
    if (g->tensor[old].overwrites >= 0) g->tensor[out[i]].overwrites = c->copy[g->tensor[old].overwrites];
  }
  tc_node_clone(g, maker, in, out)->mark = TC_B;
  return c->copy[t];
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
  int32_t n_order = g->n_order, n_old = g->n_nodes;
  bool any = what != TC_RECOMPUTE_NONE;
  for (int32_t i = 0; i < n_order && !any; i++) any = tc_op_info[g->node[g->order[i]].op].flags & TC_OPF_AGAIN;
  if (!any) return;
  int32_t *order = tc_malloc((size_t)n_order * sizeof *order);
  memcpy(order, g->order, (size_t)n_order * sizeof *order);
  struct rctx c = { .g = g, .what = what };
  c.layer = tc_calloc((size_t)g->n_units, 1);
  size_t n_tensors = (size_t)g->n_tensors * 2;  /* clones have no clones */
  c.copy = tc_no_indices(n_tensors);
  for (int32_t i = 0; i < n_order; i++)
    if (g->node[order[i]].op == TC_OP_ATTN)
      c.layer[outermost(g, g->node[order[i]].unit)] = true;
  g->n_order = 0;
  for (int32_t i = 0; i < n_order; i++) {
    int32_t id = order[i];
    bool backward = (g->node[id].mark == TC_B || g->node[id].mark == TC_W) && !g->node[id].head;
    int32_t layer = outermost(g, g->node[id].unit);
    for (int k = 0; backward && k < g->node[id].n_in; k++) {
      int32_t t = recompute_tensor(&c, tc_in(g, &g->node[id], k), layer);
      g->arg[g->node[id].in + k] = t;
    }
    if (backward && gathered_again(&c, &g->node[id], n_old)) continue;
    TC_APPEND(g->order, g->n_order, g->cap_order, id);
  }
  TC_FREE(order, c.layer, c.copy);
}
