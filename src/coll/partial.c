/* partial.c - the algorithms that add partial sums, so that less is sent, or in fewer messages. */
#include "src/coll/impl.h"

/* ---- by halving: in each round a member gives half of what it has left to add to the member that is as far as that, and
 * gets as much. It is `doubling` backwards, for any number of members: J. L. Traeff, "Optimal, non-pipelined reduce-scatter
 * and allreduce algorithms", 2024 ------------------------------------------------------------------------------ */

void tc_list_halving(struct tc_flows *l, const struct tc_call *m)
{
  const int N = m->size, result = m->coll == TC_ALL_REDUCE ? TC_AT_DST : TC_AT_OWN_DST;
  int have = 1;
  while (2 * have < N) have *= 2;
  add(l, all(m, alone(TC_FLOW_COPY, TC_AT_SRC, N > 1 ? TC_AT_WIDE : result)));
  for (; have >= 1 && N > 1; have /= 2) {
    const int n = TC_MIN(have, N - have), begin = l->n;
    const int to = (m->coord + have) % N, from = (m->coord - have + N) % N;
    add(l, then(l, wide(blocks(to, n, with_one(TC_FLOW_SEND, TC_AT_WIDE, to)))));
    add(l, after(wide(blocks(m->coord, n, with_one(TC_FLOW_RECV, TC_AT_TERMS, from))), TC_IN_SLOTS, l->n + 1));
    add(l, after(blocks(m->coord, n, alone(TC_FLOW_SUM, TC_AT_WIDE, have > 1 ? TC_AT_WIDE : result)), TC_AFTER_FIRST, begin));
  }
  if (m->coll == TC_ALL_REDUCE) tc_list_doubled(l, m, TC_AT_DST, 1);
}

/* ---- by nodes: a node's members add its part of a sum, and one of them sends it on -------------------------------------
 *
 * Members stand in rows, a node each. One in column j of a row of k works for the blocks of columns j, j + k, ...: of all
 * rows if the nodes are alike, these are the members with its number on each node. So a node sends 2 S (M - 1) / M of an
 * array S among M nodes, however many members it has. */

struct spot { const struct tc_nodes *x; int row, column, each, turns; };

static struct spot spot_of(const struct tc_call *m)
{
  const struct tc_nodes *x = m->nodes;
  struct spot s = { .x = x, .row = x->row[m->coord], .column = x->column[m->coord] };
  s.each = x->size[s.row];
  s.turns = x->n * tc_ceil_div(x->most - s.column, s.each);
  return s;
}

/* The blocks that a member of this row works for, of the next row first, and of its own last. */
static struct tc_flow in_turns(const struct spot *s, int column, struct tc_flow f)
{
  f.first = (s->row + 1) % s->x->n, f.column = column, f.step = s->each;
  f.n = s->x->n * (int)tc_ceil_div(s->x->most - column, s->each);
  return f;
}
static struct tc_flow turn(int t, struct tc_flow f)
{
  f.turn = t;
  return f;
}

/* The i-th mate on the node, from the next one on: its coordinate and column. */
static int mate(const struct spot *s, int i, int *column)
{
  *column = (s->column + 1 + i) % s->each;
  return s->x->at[s->row * s->x->most + *column];
}
/* Who works for this member's block on the i-th node, from the next one on. */
static int agent(const struct spot *s, int i)
{
  const int row = (s->row + 1 + i) % s->x->n;
  return s->x->at[row * s->x->most + s->column % s->x->size[row]];
}

/* The node's terms of the blocks that this member works for come and are added up; those of the others' go to them. Returns
 * the entry of the sum. */
static int add_in_node(struct tc_flows *l, const struct spot *s)
{
  const int mates = s->each - 1, sum = l->n + mates;
  int column;
  for (int i = 0; i < mates; i++) {
    const int from = mate(s, i, &column);
    add(l, in_turns(s, s->column, after(with_one(TC_FLOW_RECV, TC_AT_TERMS, from), TC_IN_SLOTS, sum)));
  }
  add(l, in_turns(s, s->column, alone(TC_FLOW_SUM, TC_AT_SRC, TC_AT_PARTIAL)));
  for (int i = 0; i < mates; i++) {
    const int to = mate(s, i, &column);
    add(l, in_turns(s, column, with_one(TC_FLOW_SEND, TC_AT_SRC, to)));
  }
  return sum;
}

/* Partial sums go to the owners of their blocks; those of this member's own come, for the sum that is `next` entries on. */
static void add_across(struct tc_flows *l, const struct tc_call *m, const struct spot *s, const struct tc_flow *turns, int made,
                       int next)
{
  for (int t = 0; t < s->turns; t++) {
    const int to = tc_flow_block(turns, s->x, t);
    if (to < 0 || to == m->coord) continue;
    add(l, turn(t, after(wide(blocks(to, 1, with_one(TC_FLOW_SEND, TC_AT_PARTIAL, to))), TC_AFTER_TURN, made)));
  }
  const int others = s->x->n - 1, sum = l->n + others + next;
  for (int i = 0; i < others; i++) add(l, mine(m, after(wide(with_one(TC_FLOW_RECV, TC_AT_TERMS, agent(s, i))), TC_IN_SLOTS, sum)));
}

/* From their owners, on other nodes, come the blocks that this member works for; each entry, of which one is made for each
 * turn, goes after the sum `made` of it, if there is one. Its own block comes by `own`. Then all goes to the mates. */
static void pass_round(struct tc_flows *l, const struct tc_call *m, const struct spot *s, const struct tc_flow *turns,
                       struct tc_flow own, int made)
{
  const int come = l->n, mates = s->each - 1;
  int column;
  for (int t = 0; t < s->turns; t++) {
    const int from = tc_flow_block(turns, s->x, t);
    struct tc_flow f = in_phase(1, blocks(from, 1, with_one(TC_FLOW_RECV, TC_AT_DST, from)));
    if (from < 0) f = (struct tc_flow){ .kind = TC_FLOW_RECV };
    else if (from == m->coord) f = own;
    else if (made >= 0) f = turn(t, after(f, TC_AFTER_TURN, made));
    add(l, f);
  }
  const int last = come + s->x->n - 1;           /* its own */
  for (int i = 0; i < mates; i++) {
    const int from = mate(s, i, &column);
    const struct tc_flow f = in_phase(1, in_turns(s, column, with_one(TC_FLOW_RECV, TC_AT_DST, from)));
    add(l, made < 0 ? f : after(f, TC_AFTER_PIECE, made + 1 + i));
  }
  for (int i = 0; i < s->x->n - 1; i++) {
    const struct tc_flow f = in_phase(1, mine(m, with_one(TC_FLOW_SEND, TC_AT_DST, agent(s, i))));
    add(l, made < 0 ? f : after(f, TC_AFTER_PIECE, last));
  }
  for (int i = 0; i < mates; i++) {
    const int to = mate(s, i, &column);
    add(l, in_phase(1, in_turns(s, s->column, after(with_one(TC_FLOW_SEND, TC_AT_DST, to), TC_AFTER_EACH, come))));
  }
}

void tc_list_nodes(struct tc_flows *l, const struct tc_call *m)
{
  const struct spot s = spot_of(m);
  const struct tc_flow turns = in_turns(&s, s.column, alone(TC_FLOW_SUM, TC_AT_SRC, TC_AT_PARTIAL));
  if (m->coll == TC_ALL_GATHER) {
    pass_round(l, m, &s, &turns, mine(m, alone(TC_FLOW_COPY, TC_AT_OWN_SRC, TC_AT_DST)), -1);
    return;
  }
  const bool back = m->coll == TC_ALL_REDUCE;
  const int made = add_in_node(l, &s), own = s.x->n - 1;       /* the turn of its own block */
  const struct tc_flow sum = turn(own, after(mine(m, alone(TC_FLOW_SUM, TC_AT_PARTIAL, back ? TC_AT_DST : TC_AT_OWN_DST)),
                                             TC_AFTER_TURN, made));
  add_across(l, m, &s, &turns, made, back ? own : 0);
  if (back) pass_round(l, m, &s, &turns, sum, made);
  else add(l, sum);
}
