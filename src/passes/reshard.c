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

/* The index in a group of the set that the layout's at(k) on each of its axes name. */
static int32_t index_of(const struct tc_mesh *m, const struct tc_layout *l, unsigned axes)
{
  int32_t at[TC_AXES];
  for (int a = 0; a < TC_AXES; a++) at[a] = l->on[a].at;
  return tc_axes_index(m, at, axes);
}

/* Appends the collective of t on a set of axes that leads to their placements in `goal`; returns the new tensor. */
static int32_t reshard_axes(struct tc_graph *g, const struct tc_mesh *m, int32_t t, unsigned axes,
                            const struct tc_layout *goal, int32_t like)
{
  const struct tc_layout was = g->tensor[t].lay;
  const struct tc_place from = *tc_place_on(&was, axes), to = *tc_place_on(goal, axes);
  int kind = tc_coll_between(&from, &to);
  TC_ASSERT(kind >= 0);
  int32_t d = reshard_tensor(g, t);
  struct tc_tensor *y = &g->tensor[d];
  for (int a = 0; a < TC_AXES; a++)
    if (axes >> a & 1) y->lay.on[a] = goal->on[a];
  if (kind == TC_ALL_REDUCE || kind == TC_REDUCE) y->overwrites = t;   /* in place */
  bool block = kind == TC_SLICE || kind == TC_REDUCE_SCATTER;
  if (block && g->tensor[tc_tensor_root(g, t)].state && in_one_piece(&to)) {
    y->base = t;
    y->block = true;
  }
  struct tc_node *n = reshard_node(g, t, d, kind, like);
  n->axes = (uint8_t)axes;
  n->to = to;
  n->red = from.kind == TC_P ? from.op : TC_SUM;
  n->from_root = index_of(m, &was, axes);
  n->root = to.kind == TC_AT ? index_of(m, goal, axes) : n->from_root;
  return d;
}

int32_t tc_reshard_space(struct tc_graph *g, int32_t t, int space, int32_t like)
{
  int32_t d = reshard_tensor(g, t);
  g->tensor[d].space = (uint8_t)space;
  reshard_node(g, t, d, TC_COPY, like);
  return d;
}

/* The order of collectives: slices, then reductions that leave a part and sends, then all-reduces, then gathers. */
enum { GATHERS = 3, CLASSES };
static int order_class(int kind)
{
  switch (kind) {
  case TC_SLICE: case TC_DROP: case TC_ZERO: return 0;
  case TC_ALL_REDUCE: return 2;
  case TC_ALL_GATHER: case TC_GATHER: return GATHERS;
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

/* Whether axis a is split inside axis b's blocks: a flat shard is innermost. */
static bool is_inside(const struct tc_place *pa, int a, const struct tc_place *pb, int b)
{
  if (pa->kind == TC_FLAT) return true;
  return pb->kind != TC_FLAT && tc_nests_inside(a, b, pa->dim);
}

/* Axis a, and those that change with it: one flat shard is cut by all of its axes. */
static unsigned with_flat(const struct tc_layout *now, const struct tc_layout *goal, int a)
{
  unsigned axes = 1u << a;
  if (now->on[a].kind == TC_FLAT) axes |= tc_layout_axes(now, TC_FLAT);
  if (goal->on[a].kind == TC_FLAT) axes |= tc_layout_axes(goal, TC_FLAT);
  return axes;
}

/* Blocks nest, so a split can be made or undone on axes only while no other axis is split inside it; and
 * before one is made, the splits that enclose it must exist. */
static bool may_reshard(const struct tc_layout *now, const struct tc_layout *goal, unsigned axes)
{
  for (int k = 0; k < TC_AXES * TC_AXES; k++) {
    const int a = k / TC_AXES, b = k % TC_AXES;
    if (!(axes >> a & 1) || axes >> b & 1) continue;
    const struct tc_place *from = &now->on[a], *to = &goal->on[a], *x = &now->on[b], *y = &goal->on[b];
    if ((cuts_same(x, from) && is_inside(x, b, from, a)) ||
        (cuts_same(x, to) && is_inside(x, b, to, a))) return false;
    if (tc_place_equal(x, y)) continue;
    if ((cuts_same(x, to) && !is_inside(x, b, to, a)) ||
        (cuts_same(y, to) && !is_inside(y, b, to, a))) return false;
  }
  return true;
}

/* The axes of the next collective towards the goal; 0: none is possible yet. A stage send comes first,
 * since all later collectives run on the receiving stage. */
static unsigned next_axes(const struct tc_layout *now, const struct tc_layout *goal)
{
  if (!tc_place_equal(&now->on[TC_PP], &goal->on[TC_PP]) && may_reshard(now, goal, 1u << TC_PP)) return 1u << TC_PP;
  for (int cls = 0; cls < CLASSES; cls++)
    for (int k = 0; k < TC_AXES; k++) {
      int a = cls == GATHERS ? TC_AXES - 1 - k : k;
      if (tc_place_equal(&now->on[a], &goal->on[a])) continue;
      if (order_class(tc_coll_between(&now->on[a], &goal->on[a])) == cls && may_reshard(now, goal, with_flat(now, goal, a)))
        return with_flat(now, goal, a);
    }
  return 0;
}

/* Whether one collective makes the change of placement on both axes: it is the same, and both split the batch or its
 * sequences. */
static bool is_one_change(const struct tc_layout *now, const struct tc_layout *goal, int a, int b)
{
  struct tc_place was = now->on[b], to = goal->on[b];
  was.at = now->on[a].at;
  to.at = goal->on[a].at;
  const unsigned rows = tc_axes_of(TC_ROLE_BATCH) | tc_axes_of(TC_ROLE_TOKENS);
  return rows >> a & 1 && rows >> b & 1 && tc_place_equal(&was, &now->on[a]) &&
         tc_place_equal(&to, &goal->on[a]);
}

/* The next collective's axes: as many as have the same change, one after the other, and a name together. */
static unsigned next_set(const struct tc_mesh *m, const struct tc_layout *now, const struct tc_layout *goal)
{
  struct tc_layout l = *now;
  unsigned next = next_axes(&l, goal), axes = 0, found = next;
  const int first = next ? __builtin_ctz(next) : 0;
  while (next && is_one_change(now, goal, first, __builtin_ctz(next))) {
    axes |= next;
    if (tc_mesh_find(m, axes) >= 0) found = axes;
    for (int a = 0; a < TC_AXES; a++)
      if (next >> a & 1) l.on[a] = goal->on[a];
    next = next_axes(&l, goal);
  }
  return found;
}

/* Whether the split on axis a is inside one that has yet to be made or undone. */
static bool blocks_one(const struct tc_layout *now, const struct tc_layout *goal, int a)
{
  const struct tc_place *pa = &now->on[a];
  for (int b = TC_FIRST_AXIS; b < TC_AXES; b++) {
    const struct tc_place *from = &now->on[b], *to = &goal->on[b];
    if (b == a || tc_place_equal(from, to)) continue;
    if ((cuts_same(pa, from) && is_inside(pa, a, from, b)) || (cuts_same(pa, to) && is_inside(pa, a, to, b))) return true;
  }
  return false;
}

/* The axes of the innermost of the splits that block others. Where none does, two or more wait for each other, such as two
 * that change places: the last axis that changes. */
static unsigned blocking_axes(const struct tc_layout *now, const struct tc_layout *goal)
{
  int in = -1;
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++)
    if (tc_is_split(now->on[a].kind) && blocks_one(now, goal, a) &&
        (in < 0 || (cuts_same(&now->on[a], &now->on[in]) && is_inside(&now->on[a], a, &now->on[in], in)))) in = a;
  for (int a = TC_AXES - 1; in < 0 && a >= TC_FIRST_AXIS; a--)
    if (tc_is_split(now->on[a].kind) && !tc_place_equal(&now->on[a], &goal->on[a])) in = a;
  TC_ASSERT(in >= 0);
  return now->on[in].kind == TC_FLAT ? tc_layout_axes(now, TC_FLAT) : 1u << in;
}

/* A flat shard is made, or undone, by one collective: its axes go through R unless they all stay, or all change alike. */
static void change_flat_alike(const struct tc_layout *now, const struct tc_layout *goal, struct tc_layout *mid, unsigned flat)
{
  const int first = flat ? tc_coll_between(tc_place_on(now, flat), tc_place_on(goal, flat)) : -1;
  bool stay = true, alike = first >= 0;
  for (int a = 0; a < TC_AXES; a++) {
    if (!(flat >> a & 1)) continue;
    stay &= tc_place_equal(&now->on[a], &goal->on[a]);
    alike &= tc_coll_between(&now->on[a], &goal->on[a]) == first;
  }
  for (int a = 0; a < TC_AXES && !stay && !alike; a++)
    if (flat >> a & 1) mid->on[a] = (struct tc_place){ 0 };
}

int32_t tc_reshard(struct tc_graph *g, const struct tc_mesh *m, int32_t t, const struct tc_layout *to, int32_t like,
                   struct tc_err *err)
{
  const struct tc_layout r = tc_layout_r(), from = g->tensor[t].lay;
  struct tc_layout mid = *to;                    /* intermediate layout of axes that go through R */
  for (int a = 0; a < TC_AXES; a++) {
    if (tc_place_equal(&from.on[a], &to->on[a])) continue;
    if (a == TC_MB)
      return tc_fail(err, TC_ELAYOUT, "%s can't change its placement in time",
                     g->tensor[t].name);
    if (tc_coll_between(&from.on[a], &to->on[a]) < 0) mid.on[a] = r.on[a];
  }
  change_flat_alike(&from, to, &mid, tc_layout_axes(&from, TC_FLAT));
  change_flat_alike(&from, to, &mid, tc_layout_axes(to, TC_FLAT));
  for (int round = 0; round < 2; round++) {
    const struct tc_layout *goal = round ? to : &mid;
    while (!tc_layout_equal(&g->tensor[t].lay, goal)) {
      const struct tc_layout now = g->tensor[t].lay;
      unsigned axes = next_set(m, &now, goal);
      if (axes) {
        t = reshard_axes(g, m, t, axes, goal, like);
        continue;
      }
      axes = blocking_axes(&now, goal);          /* its blocks are gathered, and split again afterwards */
      t = reshard_axes(g, m, t, axes, &r, like);
    }
  }
  return t;
}
