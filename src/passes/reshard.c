/* reshard.c - makes the RESHARD nodes that lead from one placement to another. */
#include "src/passes/reshard.h"

/* Whether a block by `to` of a tensor is contiguous in the block that the other axes leave. */
static bool in_one_piece(const struct tc_place *to)
{
  return to->kind == TC_FLAT || (to->kind == TC_S && to->dim == 0);
}

static int32_t reshard_tensor(struct tc_graph *g, int32_t t)
{
  int32_t d = tc_tensor_like(g, t);
  struct tc_tensor *y = &g->tensor[d];
  if (y->cls != TC_CLS_GRAD && y->cls != TC_CLS_OPT) y->cls = TC_CLS_COMM;
  y->lay = g->tensor[t].lay;
  return d;
}

static struct tc_node *reshard_node(struct tc_graph *g, int32_t t, int32_t d, int kind, int32_t like)
{
  struct tc_node *n = tc_node_new(g, TC_OP_RESHARD, 1, &t, 1, &d);
  const struct tc_tensor *x = &g->tensor[t];
  n->coll = (uint8_t)kind;
  n->control = x->rank == 0;
  n->once_a_step = x->lay.on[TC_MB].kind == TC_R;
  n->space = x->space;
  if (like >= 0) {
    const struct tc_node *l = &g->node[like];
    n->unit = l->unit;
    n->on_all_stages = l->on_all_stages;
    n->head = l->head;
    n->mark = l->mark;
  }
  return n;
}

/* Appends one collective of t on one axis; returns the new tensor. */
static int32_t reshard_axis(struct tc_graph *g, int32_t t, int axis, const struct tc_place *to,
                    int32_t like)
{
  struct tc_place from = g->tensor[t].lay.on[axis];
  int kind = tc_coll_between(&from, to);
  TC_ASSERT(kind >= 0);
  int32_t d = reshard_tensor(g, t);
  struct tc_tensor *y = &g->tensor[d];
  y->lay.on[axis] = *to;
  if (kind == TC_ALL_REDUCE || kind == TC_REDUCE) y->overwrites = t;   /* in place */
  bool block = kind == TC_SLICE || kind == TC_REDUCE_SCATTER;
  if (block && g->tensor[tc_tensor_root(g, t)].state && in_one_piece(to)) {
    y->base = t;
    y->block = true;
  }
  struct tc_node *n = reshard_node(g, t, d, kind, like);
  n->axis = (uint8_t)axis;
  n->to = *to;
  n->red = from.kind == TC_P ? from.op : TC_SUM;
  n->root = to->kind == TC_AT ? to->at : from.at;
  n->from_root = from.at;
  return d;
}

int32_t tc_reshard_space(struct tc_graph *g, int32_t t, int space, int32_t like)
{
  int32_t d = reshard_tensor(g, t);
  g->tensor[d].space = (uint8_t)space;
  reshard_node(g, t, d, TC_COPY, like)->axis = TC_MB;
  return d;
}

/* The order of collectives: slices, then reductions and sends, then gathers. */
static int order_class(int kind)
{
  switch (kind) {
  case TC_SLICE: case TC_DROP: case TC_ZERO: return 0;
  case TC_ALL_GATHER: case TC_GATHER: return 2;
  default: return 1;
  }
}

/* Whether two placements split the same dimension; a flat shard divides the block that all other axes
 * leave, so all dimensions. */
static bool cuts_same(const struct tc_place *a, const struct tc_place *other)
{
  if (!tc_is_split(a->kind) || !tc_is_split(other->kind)) return false;
  return a->kind == TC_FLAT || other->kind == TC_FLAT || a->dim == other->dim;
}

/* Whether axis a is split inside axis b's blocks: a flat shard is innermost, else the later axis. */
static bool is_inside(const struct tc_place *pa, int a, const struct tc_place *pb, int b)
{
  if (pa->kind == TC_FLAT) return true;
  return pb->kind != TC_FLAT && a > b;
}

/* Blocks nest, so a split can be made or undone on an axis only while no axis is split inside it; and
 * before one is made, the splits that enclose it must exist. */
static bool may_reshard(const struct tc_layout *now, const struct tc_layout *goal, int a)
{
  const struct tc_place *from = &now->on[a], *to = &goal->on[a];
  for (int b = 0; b < TC_AXES; b++) {
    const struct tc_place *x = &now->on[b], *y = &goal->on[b];
    if (b == a) continue;
    if ((cuts_same(x, from) && is_inside(x, b, from, a)) ||
        (cuts_same(x, to) && is_inside(x, b, to, a))) return false;
    if (tc_place_equal(x, y)) continue;
    if ((cuts_same(x, to) && !is_inside(x, b, to, a)) ||
        (cuts_same(y, to) && !is_inside(y, b, to, a))) return false;
  }
  return true;
}

/* The axis of the next collective towards the goal; -1: none is possible yet. A stage send comes first,
 * since all later collectives run on the receiving stage. */
static int next_axis(const struct tc_layout *now, const struct tc_layout *goal)
{
  if (!tc_place_equal(&now->on[TC_PP], &goal->on[TC_PP]) && may_reshard(now, goal, TC_PP)) return TC_PP;
  for (int cls = 0; cls < 3; cls++)
    for (int k = 0; k < TC_AXES; k++) {
      int a = cls == 2 ? TC_AXES - 1 - k : k;
      if (tc_place_equal(&now->on[a], &goal->on[a])) continue;
      if (order_class(tc_coll_between(&now->on[a], &goal->on[a])) == cls && may_reshard(now, goal, a))
        return a;
    }
  return -1;
}

/* The axis of the innermost split, which blocks the others; -1: nothing is split. */
static int innermost_split(const struct tc_layout *now)
{
  int in = -1;
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    if (tc_is_split(now->on[a].kind) && (in < 0 || is_inside(&now->on[a], a, &now->on[in], in))) in = a;
  return in;
}

int32_t tc_reshard(struct tc_graph *g, int32_t t, const struct tc_layout *to, int32_t like,
                struct tc_err *err)
{
  const struct tc_place r = { 0 };
  struct tc_layout mid = *to;                    /* intermediate layout of axes that go through R */
  int rows = 0;
  for (int a = 0; a < TC_AXES; a++) rows += to->on[a].kind == TC_FLAT;
  TC_ASSERT(rows <= 1);
  for (int a = 0; a < TC_AXES; a++) {
    const struct tc_place *f = &g->tensor[t].lay.on[a];
    if (tc_place_equal(f, &to->on[a])) continue;
    if (a == TC_MB)
      return tc_fail(err, TC_ELAYOUT, "%s can't change its placement in time",
                     g->tensor[t].name);
    if (tc_coll_between(f, &to->on[a]) < 0) mid.on[a] = r;
  }
  for (int round = 0; round < 2; round++) {
    const struct tc_layout *goal = round ? to : &mid;
    while (!tc_layout_equal(&g->tensor[t].lay, goal)) {
      struct tc_layout now = g->tensor[t].lay;
      int a = next_axis(&now, goal);
      if (a >= 0) {
        t = reshard_axis(g, t, a, &goal->on[a], like);
        continue;
      }
      a = innermost_split(&now);                   /* it is gathered, and split again afterwards */
      TC_ASSERT(a >= 0);
      t = reshard_axis(g, t, a, &r, like);
    }
  }
  return t;
}
