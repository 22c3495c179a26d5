/* flow_model.h - what t_flow.c's members should have in the end, and send: by what algorithm.def and docs/collectives.md say
 * of each algorithm, not by its list of flows. */
#ifndef TC_FLOW_MODEL_H
#define TC_FLOW_MODEL_H

#include "src/coll/flow.h"

enum { MOST = 64 };

/* From first to end, past the end of the array from its begin on; of blocks in turns, its turn and its number in its block. */
struct piece { int64_t first, end; int turn, round; };
struct flow {
  const struct tc_flow *of;
  int peer, gate;                /* gate: the flow that `after` means; -1: none */
  int64_t done, total;
  struct piece *piece;           /* [total] */
  uint32_t *term;                /* [count] received for a sum; NULL: not */
};
struct member {
  struct tc_flows list;
  struct flow *flow;             /* sums and copies among them */
  int n_flows, *last;            /* of each entry; -1: none */
  uint32_t *src, *dst, *own;     /* [count], [count]; own block apart; src may be dst */
  uint32_t *wide, *partial;      /* [count] */
  uint32_t *whole[MOST];         /* [count]; each member's contribution */
};
struct world { int coll, size, root; int64_t count, block; struct member *m; const struct tc_nodes *nodes; int algorithm; };

static uint32_t value(int coord, int64_t i) { return (uint32_t)(coord * 1009 + i * 7 + 1); }
/* A sum that shows its order. */
static uint32_t plus(uint32_t sum, uint32_t x) { return sum * 31u + x * 7u + 5u; }
static int64_t start_of(const struct world *w, int block) { return tc_block_start(w->count, w->block, block, w->size); }
static struct tc_members seen_by(const struct world *w, int coord)
{
  return (struct tc_members){ .size = w->size, .coord = coord, .nodes = (struct tc_nodes *)(uintptr_t)w->nodes, .spread = w->nodes,
                              .partial = true };
}

static uint32_t sum_of(const uint32_t *term, int n)
{
  uint32_t sum = term[0];
  for (int i = 1; i < n; i++) sum = plus(sum, term[i]);
  return sum;
}

/* ---- results ------------------------------------------------------------------ */

static int owner_of(const struct world *w, int64_t i)
{
  int c = 0;
  while (start_of(w, c + 1) <= i) c++;
  return c;
}

/* By halving: what member c has of a sum for member `to` after the round in which it sent as far as `far`. */
static uint32_t halved(const struct world *w, int c, int to, int far, int64_t i)
{
  const int N = w->size, n = TC_MIN(far, N - far);
  if (far >= N) return value(c, i);
  const uint32_t before = halved(w, c, to, 2 * far, i);
  if ((to - c + N) % N >= n) return before;
  const int from = (c - far + N) % N;
  const uint32_t other = halved(w, from, to, 2 * far, i);
  return from < c ? plus(other, before) : plus(before, other);
}

/* By nodes: each adds its members' terms; these sums are added in the order of those who made them, of which the one on node
 * r works for column j of `owner` if it is number j, modulo the node's size. */
static uint32_t by_nodes(const struct world *w, int owner, int64_t i)
{
  const struct tc_nodes *x = w->nodes;
  uint32_t made[MOST], term[MOST];
  bool has[MOST] = { false };
  int n = 0;
  for (int r = 0; r < x->n; r++) {
    const int agent = x->at[r * x->most + x->column[owner] % x->size[r]];
    n = 0;
    for (int c = 0; c < w->size; c++)
      if (x->row[c] == r) term[n++] = value(c, i);
    made[agent] = sum_of(term, n), has[agent] = true;
  }
  n = 0;
  for (int c = 0; c < w->size; c++)
    if (has[c]) term[n++] = made[c];
  return sum_of(term, n);
}

/* By a tree: the n-th from the root on adds its children's sums and its own, in the order of coordinates. */
static uint32_t by_tree(const struct world *w, int root, int n, int64_t i)
{
  uint32_t of[MOST], term[MOST] = { 0 };
  bool has[MOST] = { false };
  const int me = (n + root) % w->size;
  int terms = 0;
  of[me] = value(me, i), has[me] = true;
  for (int far = 1; n + far < w->size && !(n & far); far *= 2) {
    const int child = (n + far + root) % w->size;
    of[child] = by_tree(w, root, n + far, i), has[child] = true;
  }
  for (int c = 0; c < w->size; c++)
    if (has[c]) term[terms++] = of[c];
  return sum_of(term, terms);
}

static uint32_t summed(const struct world *w, int64_t i)
{
  uint32_t term[MOST] = { 0 };
  if (w->algorithm == TC_ALGORITHM_SUMTREE) return by_tree(w, w->coll == TC_REDUCE ? w->root : 0, 0, i);
  if (w->algorithm == TC_ALGORITHM_HALVING) return halved(w, owner_of(w, i), owner_of(w, i), 1, i);
  if (w->algorithm == TC_ALGORITHM_NODES) return by_nodes(w, owner_of(w, i), i);
  for (int c = 0; c < w->size; c++) term[c] = value(c, i);
  return sum_of(term, w->size);
}

/* What coordinate `coord` should have of element i; false: nothing. */
static bool wanted(const struct world *w, int coord, int64_t i, uint32_t *want, uint32_t *got)
{
  const struct member *m = &w->m[coord];
  const bool mine = owner_of(w, i) == coord, root = coord == w->root;
  *got = m->dst[i];
  switch (w->coll) {
  case TC_ALL_REDUCE: *want = summed(w, i); return true;
  case TC_REDUCE: *want = summed(w, i); return root;
  case TC_REDUCE_SCATTER: *want = summed(w, i), *got = m->own[i]; return mine;
  case TC_ALL_GATHER: *want = value(owner_of(w, i), i); return true;
  case TC_GATHER: *want = value(owner_of(w, i), i); return root;
  case TC_SCATTER: *want = value(w->root, i), *got = m->own[i]; return mine;
  case TC_BROADCAST: *want = value(w->root, i); return !root;
  case TC_SEND: *want = value(0, i); return root;
  case TC_ALL_TO_ALL: *want = value(owner_of(w, i), coord * w->block + i % w->block); return true;
  default: return false;
  }
}

static int64_t wrong_elements(const struct world *w)
{
  int64_t wrong = 0;
  uint32_t want, got;
  for (int c = 0; c < w->size; c++)
    for (int64_t i = 0; i < w->count; i++)
      if (wanted(w, c, i, &want, &got)) wrong += want != got;
  return wrong;
}

/* Each round sends what there is to the member so far before: of the last one what it lacks. */
static int64_t doubling_formula(const struct world *w, int coord)
{
  int64_t elems = 0;
  if (w->coll == TC_ALL_REDUCE) return w->count * (w->size - 1);
  for (int have = 1; have < w->size && w->coll == TC_ALL_GATHER; have *= 2)
    for (int i = 0; i < have && i < w->size - have; i++) {
      const int block = (coord + i) % w->size;
      elems += start_of(w, block + 1) - start_of(w, block);
    }
  return elems;
}

/* A member with number n from the root on has a child for each power of two below its lowest bit. */
static int64_t tree_formula(const struct world *w, int coord)
{
  const bool rooted = w->coll == TC_BROADCAST || w->coll == TC_REDUCE;
  const int n = rooted ? (coord - w->root + w->size) % w->size : coord;
  int children = 0, all = 1;                     /* all: that hang on it */
  for (int far = 1; far < w->size && !(n & far); far *= 2) children += n + far < w->size, all = TC_MIN(2 * far, w->size - n);
  const int64_t down = children * w->count, up = n ? all * w->count : 0;
  int64_t own = 0;
  for (int i = 0; i < all && n; i++) {
    const int block = (coord + i) % w->size;
    own += start_of(w, block + 1) - start_of(w, block);
  }
  switch (w->coll) {
  case TC_BROADCAST: return down;
  case TC_REDUCE: return up;
  case TC_ALL_REDUCE: return up + down;
  case TC_ALL_GATHER: return own + down;
  default: return 0;
  }
}

static int64_t blocks_from(const struct world *w, int coord, int n)
{
  int64_t elems = 0;
  for (int i = 0; i < n; i++) {
    const int block = (coord + i) % w->size;
    elems += start_of(w, block + 1) - start_of(w, block);
  }
  return elems;
}

/* To each child what hangs on it; then its block to all but the root, of many members as by doubling. */
static int64_t scattered_formula(const struct world *w, int coord)
{
  const int n = (coord - w->root + w->size) % w->size;
  int64_t elems = 0;
  for (int far = 1; far < w->size && !(n & far); far *= 2)
    if (n + far < w->size) elems += blocks_from(w, (coord + far) % w->size, TC_MIN(far, w->size - n - far));
  if (w->size <= 32) return elems + blocks_from(w, coord, 1) * (n ? w->size - 2 : w->size - 1);
  for (int have = 1; have < w->size; have *= 2)
    if (n != have) elems += blocks_from(w, coord, TC_MIN(have, w->size - have));
  return elems;
}

/* To each round's member what is left for it and those after it, in the sums' type; then as by doubling. */
static int64_t halving_bytes(const struct world *w, int coord)
{
  int64_t bytes = 0;
  for (int far = 1; far < w->size; far *= 2) {
    const int n = TC_MIN(far, w->size - far);
    bytes += 4 * blocks_from(w, (coord + far) % w->size, n);
    if (w->coll == TC_ALL_REDUCE) bytes += 2 * blocks_from(w, coord, n);
  }
  return bytes;
}

/* Its sum to the parent, in the sums' type, unless it is the root; the whole to each child. */
static int64_t sumtree_bytes(const struct world *w, int coord)
{
  const int n = w->coll == TC_REDUCE ? (coord - w->root + w->size) % w->size : coord;
  int children = 0;
  for (int far = 1; far < w->size && !(n & far); far *= 2) children += n + far < w->size;
  return (n ? 4 * w->count : 0) + (w->coll == TC_REDUCE ? 0 : 2 * w->count * children);
}

/* Elements of the blocks for which a member of this column works on a node of `each`. */
static int64_t works_for(const struct world *w, int column, int each)
{
  int64_t elems = 0;
  for (int c = 0; c < w->size; c++)
    if (w->nodes->column[c] % each == column) elems += blocks_from(w, c, 1);
  return elems;
}

/* To each mate what it works for, and of that it works for itself all but its own block to the owners, in the sums' type; the
 * own block to each other node, and what it works for to each mate. */
static int64_t nodes_bytes(const struct world *w, int coord)
{
  const struct tc_nodes *x = w->nodes;
  const int each = x->size[x->row[coord]], mine = x->column[coord];
  const int64_t own = blocks_from(w, coord, 1), all = works_for(w, mine, each);
  const int64_t down = 2 * (w->count - all) + 4 * (all - own), up = 2 * (own * (x->n - 1) + all * (each - 1));
  return w->coll == TC_REDUCE_SCATTER ? down : w->coll == TC_ALL_GATHER ? up : down + up;
}

/* All but the last one in the chain, which is the root's mate before it, or the last member of the node before its node. */
static int64_t chain_bytes(const struct world *w, int coord)
{
  const struct tc_nodes *x = w->nodes;
  int last = (w->root + w->size - 1) % w->size;
  if (x) {
    const int row = (x->row[w->root] + x->n - 1) % x->n;
    last = x->at[row * x->most + x->size[row] - 1];
  }
  return coord == last ? 0 : 2 * w->count;
}

/* What a member sends in elements by the direct algorithms. */
static int64_t direct_formula(const struct world *w, int coord)
{
  const int64_t own = start_of(w, coord + 1) - start_of(w, coord), others = w->size - 1;
  const bool root = coord == w->root;
  if (w->size == 1) return 0;
  switch (w->coll) {
  case TC_ALL_REDUCE: return w->count - own + own * others;
  case TC_REDUCE_SCATTER: case TC_ALL_TO_ALL: return w->count - own;
  case TC_ALL_GATHER: return own * others;
  case TC_BROADCAST: return root ? w->count * others : 0;
  case TC_REDUCE: return root ? 0 : w->count;
  case TC_SCATTER: return root ? w->count - own : 0;
  case TC_GATHER: return root ? 0 : own;
  case TC_SEND: return coord == 0 ? w->count : 0;
  default: return 0;
  }
}

/* What it sends of bf16 in bytes, by the formula of its algorithm; partial sums are fp32. */
static int64_t formula(const struct world *w, int coord)
{
  if (w->size == 1) return 0;
  switch (w->algorithm) {
  case TC_ALGORITHM_HALVING: return halving_bytes(w, coord);
  case TC_ALGORITHM_NODES: return nodes_bytes(w, coord);
  case TC_ALGORITHM_SUMTREE: return sumtree_bytes(w, coord);
  case TC_ALGORITHM_CHAIN: return chain_bytes(w, coord);
  case TC_ALGORITHM_DOUBLING: return 2 * doubling_formula(w, coord);
  case TC_ALGORITHM_TREE: return 2 * tree_formula(w, coord);
  case TC_ALGORITHM_SCATTERED: return 2 * scattered_formula(w, coord);
  default: return 2 * direct_formula(w, coord);
  }
}

#endif
