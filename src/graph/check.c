/* check.c - the invariants of a program, verified after every pass.
 *
 * Order: a tensor is produced before it is read, by one node; an overwritten tensor is
 * not read afterwards. Gradients: check_grad.c. Placements (once they are fixed): on each axis a node
 * splits one subscript of its rule, in all tensors; unsplittable ones are not split; partial inputs go
 * only into linear ops; a RESHARD changes the placement on its own axes only, by its collective. */
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
  TC_FREE(next, block, made, over, ran);
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
      struct tc_place to = n->to;
      to.at = b->lay.on[x].at;
      if (!(n->axes >> x & 1)) {
        if (tc_place_equal(&a->lay.on[x], &b->lay.on[x])) continue;
        return bad(c, n, a->id, "changes its placement on another axis");
      }
      if (tc_coll_between(&a->lay.on[x], &b->lay.on[x]) != n->coll)
        return bad(c, n, a->id, "is not the collective between its placements");
      if (n->n_in == 1 && !tc_place_equal(&to, &b->lay.on[x]))
        return bad(c, n, b->id, "does not lead to its placement");
    }
  }
  return 0;
}

/* The subscript ('*' for a flat shard; below 0: the coordinate) that a tensor has on an axis; 0: none. */
static int splits(const struct tc_place *p, const char *subs)
{
  if (p->kind == TC_S) return subs[p->dim];
  if (p->kind == TC_FLAT) return '*';
  if (p->kind == TC_AT) return -1 - p->at;
  return 0;
}

/* A node on one axis: the subscript that its inputs split there (0: none), and whether one of them is partial. */
struct on_axis {
  const struct tc_graph *g;
  const struct tc_node *n;
  int axis, split;
  bool partial;
  char subs[TC_RULE_MAX][TC_DIMS + 1];           /* of each operand, by the node's rule */
  const struct tc_place *place[TC_RULE_MAX];     /* of each operand, and the subscript that it splits */
  int by[TC_RULE_MAX];
};

/* Whether operand k has the subscript that the inputs split. */
static bool has_split(const struct on_axis *x, int k)
{
  return x->split >= 'a' && strchr(x->subs[k], x->split);
}

static bool is_summed(const struct on_axis *x, int k)
{
  return x->split >= 'a' && !strchr(x->subs[k], x->split);
}

static bool is_not_linear(const struct on_axis *x, int k)
{
  return x->place[k]->kind == TC_P && !(tc_op_info[x->n->op].flags & TC_OPF_LINEAR);
}

static bool splits_another(const struct on_axis *x, int k)
{
  return x->by[k] && x->by[k] != x->split;
}

static bool is_unsplittable(const struct on_axis *x, int k)
{
  (void)k;
  return x->split > 0 && strchr(tc_op_info[x->n->op].unsplittable, x->split);
}

static bool is_not_split(const struct on_axis *x, int k)
{
  return has_split(x, k) && x->by[k] != x->split;
}

static bool is_elsewhere(const struct on_axis *x, int k)
{
  return x->n->n_in && (x->split < 0 || x->place[k]->kind == TC_AT) && x->by[k] != x->split;
}

static bool is_whole(const struct on_axis *x, int k)
{
  const bool adds_up = x->axis == TC_MB && (x->n->acc >> (k - x->n->n_in) & 1);        /* in time */
  return is_summed(x, k) && x->place[k]->kind != TC_P && !adds_up;
}

static bool is_partial(const struct on_axis *x, int k)
{
  return x->place[k]->kind == TC_P && !is_summed(x, k) && !x->partial && x->split != '*';
}

/* What must not be, on each axis, of a node or of an operand. Rows of one kind that follow each other are
 * asked together, operand by operand. */
enum asked { INPUT, NODE, OUTPUT };
static const struct {
  enum asked of;
  bool (*is_broken)(const struct on_axis *x, int k);       /* k: the operand (tc_operand) */
  const char *what;
} invariant[] = {
  { INPUT, is_not_linear, "a partial input of an op that is not linear" },
  { INPUT, splits_another, "two subscripts are split on one axis" },
  { NODE, is_unsplittable, "an unsplittable subscript is split" },
  { INPUT, is_not_split, "is not split as the other inputs are" },
  { OUTPUT, is_elsewhere, "is not where the inputs are" },
  { OUTPUT, is_not_split, "does not follow the split of the inputs" },
  { OUTPUT, is_whole, "should be partial" },
  { OUTPUT, is_partial, "is partial for no reason" },
};
enum { INVARIANTS = sizeof invariant / sizeof *invariant };

const char *tc_check_invariant(int i) { return i < INVARIANTS ? invariant[i].what : NULL; }

static int check_axis(const struct chk *c, const struct on_axis *x)
{
  const struct tc_node *n = x->n;
  for (int i = 0, next; i < INVARIANTS; i = next) {
    const enum asked of = invariant[i].of;
    const int first = of == OUTPUT ? n->n_in : 0;
    const int end = of == NODE ? 1 : of == INPUT ? n->n_in : n->n_in + n->n_out;
    for (next = i; next < INVARIANTS && invariant[next].of == of;) next++;
    for (int k = first; k < end; k++)
      for (int r = i; r < next; r++)
        if (invariant[r].is_broken(x, k))
          return bad(c, n, of == NODE ? -1 : tc_operand(x->g, n, k), invariant[r].what);
  }
  return 0;
}

/* Whether a subscript that is split on axes a and b has its blocks in the same order in all operands. */
static bool nest_alike(const struct chk *c, const struct tc_node *n, int a, int b)
{
  unsigned inside = 0;
  for (int k = 0; k < n->n_in + n->n_out; k++) {
    const struct tc_layout *l = &c->g->tensor[tc_operand(c->g, n, k)].lay;
    const bool both = l->on[a].kind == TC_S && l->on[b].kind == TC_S && l->on[a].dim == l->on[b].dim;
    if (both) inside |= 1u << tc_nests_inside(a, b, l->on[a].dim);
  }
  return inside != 3;
}

static int check_nesting(const struct chk *c, const struct tc_node *n)
{
  for (int a = 0; a < TC_AXES; a++)
    for (int b = a + 1; b < TC_AXES; b++)
      if (!nest_alike(c, n, a, b)) return bad(c, n, -1, "a subscript's blocks on two axes nest otherwise in another operand");
  return 0;
}

static int check_places(const struct chk *c, const struct tc_node *n)
{
  struct on_axis x = { .g = c->g, .n = n };
  if (n->n_in + n->n_out > TC_RULE_MAX) return 0;
  for (int k = 0; k < n->n_in + n->n_out; k++) {
    int32_t t = tc_operand(c->g, n, k);
    if (c->g->tensor[t].space != n->space) return bad(c, n, t, "is in another space");
  }
  for (x.axis = 0; x.axis < TC_AXES; x.axis++) {
    bool placed = false;
    tc_rule_on(x.subs, tc_rule_parse(c->g, n, x.subs), x.axis);
    x.split = 0;
    x.partial = false;
    for (int k = 0; k < n->n_in + n->n_out; k++) {
      x.place[k] = &c->g->tensor[tc_operand(c->g, n, k)].lay.on[x.axis];
      x.by[k] = splits(x.place[k], x.subs[k]);
      placed |= x.place[k]->kind != TC_R;
      if (k >= n->n_in) continue;
      x.partial |= x.place[k]->kind == TC_P;
      if (!x.split) x.split = x.by[k];
    }
    if (placed) TC_TRY(check_axis(c, &x));
  }
  return check_nesting(c, n);
}

/* A sum of squares has any number of inputs: its output is partial where all of them are split. */
static int check_square_norm(const struct chk *c, const struct tc_node *n)
{
  const struct tc_graph *g = c->g;
  for (int k = 0; k < n->n_in; k++)
    for (int a = 0; a < TC_AXES; a++) {
      const struct tc_tensor *x = &g->tensor[tc_in(g, n, k)];
      const int kind = x->lay.on[a].kind, sum = g->tensor[tc_out(g, n, 0)].lay.on[a].kind;
      if (kind == TC_P || tc_is_split(kind) != (sum == TC_P))
        return bad(c, n, x->id, "is not counted once");
    }
  return 0;
}

int tc_graph_check(const struct tc_graph *g, const struct tc_mesh *m, const char *pass,
                   struct tc_err *err)
{
  struct chk c = { g, m, pass, err };
  const char *const before[] = { "build", "stages", "systems", "grad", "update" };
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
