/* check.c - the invariants of a program, verified after every pass.
 *
 * Order: a tensor is produced before it is read, by one node; an overwritten tensor is
 * not read afterwards. Gradients: check_grad.c. Placements (once they are fixed): on each axis a node
 * splits one subscript of its rule, in all tensors; unsplittable ones are not split; partial inputs go
 * only into linear ops; a RESHARD changes the placement on its own axis only, by its collective. */
#include "src/graph/check.h"
#include "src/graph/rule.h"

#include <stdlib.h>
#include <string.h>

struct chk {
  const struct tc_graph *g;
  const struct tc_mesh *m;
  const char *pass;
  struct tc_err *err;
};

static int bad(const struct chk *c, const struct tc_node *n, int32_t t, const char *what)
{
  return tc_fail(c->err, TC_EUSER, "program after %s: node %d %s, tensor %d %s: %s", c->pass,
                 n->id, tc_op_info[n->op].name, t, t >= 0 ? c->g->tensor[t].name : "-", what);
}

/* Marks all tensors that share t's storage, except t, as overwritten. next[]: the tensors of one storage as a ring. */
static void end_others(const struct tc_graph *g, int32_t t, const int32_t *next, const bool *made,
                       bool *over)
{
  for (int32_t x = next[t]; x != t; x = next[x])
    if (made[x] && !g->tensor[x].state) over[x] = true;
}

/* The tensors of each storage as a ring; owned by the caller. */
static int32_t *rings(const struct tc_graph *g)
{
  int32_t *root = tc_graph_roots(g);
  int32_t *next = tc_malloc((size_t)g->n_tensors * sizeof *next);
  for (int32_t t = 0; t < g->n_tensors; t++) next[t] = t;
  for (int32_t t = 0; t < g->n_tensors; t++) {
    if (root[t] == t) continue;
    next[t] = next[root[t]];
    next[root[t]] = t;
  }
  free(root);
  return next;
}

static int check_order(const struct chk *c)
{
  const struct tc_graph *g = c->g;
  int32_t *next = rings(g);
  size_t n_t = (size_t)g->n_tensors;
  bool *made = tc_calloc(n_t, 1), *over = tc_calloc(n_t, 1), *block = tc_calloc(n_t, 1);
  bool *ran = tc_calloc((size_t)g->n_nodes, 1);
  int rc = 0;
  for (int32_t t = 0; t < g->n_tensors; t++) made[t] = g->tensor[t].state;
  for (int32_t i = 0; i < g->n_order && !rc; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (ran[n->id]) rc = bad(c, n, -1, "runs twice");
    ran[n->id] = true;
    for (int k = 0; k < n->n_in && !rc; k++) {
      int32_t t = tc_in(g, n, k), b = t;
      while (g->tensor[b].base >= 0 && !made[b]) b = g->tensor[b].base;
      if (!made[b]) rc = bad(c, n, t, "is read before it is made");
      if (over[t]) rc = bad(c, n, t, "is read after it was overwritten");
    }
    for (int k = 0; k < n->n_out && !rc; k++) {
      int32_t t = tc_out(g, n, k), o = g->tensor[t].overwrites;
      if (made[t]) rc = bad(c, n, t, "is made by two nodes");
      if (g->tensor[t].base < 0 && g->tensor[t].node != n->id) rc = bad(c, n, t, "names another node as its producer");
      if (o >= 0 && !made[o]) rc = bad(c, n, o, "is overwritten before it is made");
      made[t] = true;
      if (g->tensor[t].base >= 0) made[g->tensor[t].base] = true;
    }
    for (int k = 0; k < n->n_out && !rc; k++) {
      int32_t t = tc_out(g, n, k);
      const int32_t o = g->tensor[t].overwrites;
      if (o >= 0) over[o] = true;
      /* A view of a block of a larger tensor, which others may still read; a slice copies the block. */
      block[t] = (g->tensor[t].base >= 0 && g->tensor[t].block) || (o >= 0 && block[o]);
      if (block[t] && !(n->op == TC_OP_RESHARD && n->coll == TC_SLICE))
        end_others(g, t, next, made, over);
    }
  }
  free(next);
  free(block);
  free(made);
  free(over);
  free(ran);
  return rc;
}

static int check_reshard(const struct chk *c, const struct tc_node *n)
{
  const struct tc_graph *g = c->g;
  if (n->n_in != n->n_out) return bad(c, n, -1, "parts don't match");
  for (int k = 0; k < n->n_in; k++) {
    const struct tc_tensor *a = &g->tensor[tc_in(g, n, k)], *b = &g->tensor[tc_out(g, n, k)];
    bool copy = n->coll == TC_COPY;
    if ((a->space != b->space) != copy) return bad(c, n, a->id, "changes its space");
    if (copy && !tc_layout_equal(&a->lay, &b->lay)) return bad(c, n, a->id, "changes its placement");
    if (copy) continue;
    for (int x = 0; x < TC_AXES; x++) {
      if (x != n->axis && !tc_place_equal(&a->lay.on[x], &b->lay.on[x]))
        return bad(c, n, a->id, "changes its placement on another axis");
    }
    if (tc_coll_between(&a->lay.on[n->axis], &b->lay.on[n->axis]) != n->coll)
      return bad(c, n, a->id, "is not the collective between its placements");
    if (n->n_in == 1 && !tc_place_equal(&n->to, &b->lay.on[n->axis]))
      return bad(c, n, b->id, "does not lead to its placement");
  }
  return 0;
}

/* The subscript ('*' for a flat shard; below 0: the coordinate) that a tensor has on an axis; 0: none. */
static int splits(const struct tc_layout *l, int axis, const char *subs)
{
  const struct tc_place *p = &l->on[axis];
  if (p->kind == TC_S) return subs[p->dim];
  if (p->kind == TC_SROWS) return '*';
  if (p->kind == TC_AT) return -1 - p->at;
  return 0;
}

static int check_places(const struct chk *c, const struct tc_node *n)
{
  const struct tc_graph *g = c->g;
  const struct tc_op_info *op = &tc_op_info[n->op];
  char l[TC_RULE_MAX][TC_DIMS + 1];
  if (n->n_in + n->n_out > TC_RULE_MAX) return 0;
  tc_rule_parse(g, n, l);
  for (int k = 0; k < n->n_in + n->n_out; k++) {
    int32_t t = k < n->n_in ? tc_in(g, n, k) : tc_out(g, n, k - n->n_in);
    if (g->tensor[t].space != n->space) return bad(c, n, t, "is in another space");
  }
  for (int a = 0; a < TC_AXES; a++) {
    int sub = 0;
    bool partial = false;
    for (int k = 0; k < n->n_in; k++) {
      int32_t t = tc_in(g, n, k);
      struct tc_layout lay = g->tensor[t].lay;
      int s = splits(&lay, a, l[k]);
      if (lay.on[a].kind == TC_P && !(op->flags & TC_OPF_LINEAR))
        return bad(c, n, t, "a partial input of an op that is not linear");
      partial |= lay.on[a].kind == TC_P;
      if (s && sub && s != sub) return bad(c, n, t, "two subscripts are split on one axis");
      if (s) sub = s;
    }
    if (sub > 0 && *op->unsplittable && strchr(op->unsplittable, sub))
      return bad(c, n, -1, "an unsplittable subscript is split");
    for (int k = 0; k < n->n_in; k++) {          /* a split subscript is split in every input */
      int32_t t = tc_in(g, n, k);
      if (sub >= 'a' && strchr(l[k], sub) && splits(&g->tensor[t].lay, a, l[k]) != sub)
        return bad(c, n, t, "is not split as the other inputs are");
    }
    for (int k = 0; k < n->n_out; k++) {
      int32_t t = tc_out(g, n, k);
      const struct tc_place *p = &g->tensor[t].lay.on[a];
      const char *lo = l[n->n_in + k];
      if (n->n_in && (sub < 0 || p->kind == TC_AT) && splits(&g->tensor[t].lay, a, lo) != sub)
        return bad(c, n, t, "is not where the inputs are");
      if (sub >= 'a' && strchr(lo, sub) && splits(&g->tensor[t].lay, a, lo) != sub)
        return bad(c, n, t, "does not follow the split of the inputs");
      bool summed = sub >= 'a' && !strchr(lo, sub);
      bool timed = a == TC_MB && (n->acc >> k & 1);
      if (summed && p->kind != TC_P && !timed) return bad(c, n, t, "should be partial");
      if (p->kind == TC_P && !summed && !partial && sub != '*')
        return bad(c, n, t, "is partial for no reason");
    }
  }
  return 0;
}

/* A sum of squares has any number of inputs: its output is partial where all of them are split. */
static int check_square_norm(const struct chk *c, const struct tc_node *n)
{
  const struct tc_graph *g = c->g;
  for (int k = 0; k < n->n_in; k++)
    for (int a = 0; a < TC_AXES; a++) {
      const struct tc_tensor *x = &g->tensor[tc_in(g, n, k)];
      const int kind = x->lay.on[a].kind, sum = g->tensor[tc_out(g, n, 0)].lay.on[a].kind;
      const bool split = kind == TC_S || kind == TC_SROWS;
      if (kind == TC_P || split != (sum == TC_P))
        return bad(c, n, x->id, "is not counted once");
    }
  return 0;
}

int tc_graph_check(const struct tc_graph *g, const struct tc_mesh *m, const char *pass,
                   struct tc_err *err)
{
  struct chk c = { g, m, pass, err };
  const char *const before[] = { "build", "label", "systems", "grad", "optim" };
  bool placed = true;
  for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) placed &= strcmp(pass, before[i]) != 0;
  TC_TRY(check_order(&c));
  TC_TRY(tc_check_gradients(g, m, placed, pass, err));
  for (int32_t i = 0; i < g->n_order && placed; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    TC_TRY(n->op == TC_OP_RESHARD ? check_reshard(&c, n) : check_places(&c, n));
    if (n->op == TC_OP_SQNORM) TC_TRY(check_square_norm(&c, n));
  }
  return 0;
}
