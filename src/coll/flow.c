/* flow.c - the flows of each algorithm (algorithm.def). */
#include "src/coll/flow.h"

#include <string.h>

/* ---- lists ------------------------------------------------------------------------------ */

/* A member of a collective. */
struct member { int coll, size, coord, root; };

static void add(struct tc_flows *l, struct tc_flow f)
{
  TC_ASSERT(l->n < TC_FLOWS_MOST);
  l->flow[l->n++] = f;
}

/* With all others, beginning with the next one, so that not all send to the same member first. */
static struct tc_flow with_others(const struct member *m, int kind, int at)
{
  return (struct tc_flow){ .kind = (uint8_t)kind, .at = (uint8_t)at, .peer = (m->coord + 1) % m->size, .peers = m->size - 1 };
}

/* Its blocks: the member's own; those of each peer; all. */
static struct tc_flow mine(const struct member *m, struct tc_flow f)
{
  f.first = m->coord, f.n = 1;
  return f;
}
static struct tc_flow theirs(struct tc_flow f)
{
  f.first = f.peer, f.n = f.shift = 1;
  return f;
}
static struct tc_flow all(const struct member *m, struct tc_flow f)
{
  f.first = 0, f.n = m->size;
  return f;
}
static struct tc_flow always(struct tc_flow f)
{
  f.always = true;
  return f;
}
/* What the member does by itself. */
static struct tc_flow alone(int kind, int from, int to)
{
  return (struct tc_flow){ .kind = (uint8_t)kind, .at = (uint8_t)from, .to = (uint8_t)to, .peers = 1, .always = true };
}
static struct tc_flow after(struct tc_flow f, int when, int flow)
{
  f.when = (uint8_t)when, f.after = (uint8_t)flow;
  return f;
}

/* ---- each with each ----------------------------------------------------------------------- */

/* Terms of my block come, mine go to their owners, and my block is summed up. */
static void to_owners(struct tc_flows *l, const struct member *m, int result)
{
  add(l, always(mine(m, after(with_others(m, TC_FLOW_RECV, TC_AT_TERMS), TC_IN_SLOTS, 2))));
  add(l, always(theirs(with_others(m, TC_FLOW_SEND, TC_AT_SRC))));
  add(l, mine(m, alone(TC_FLOW_SUM, TC_AT_SRC, result)));
}

static void exchange(struct tc_flows *l, const struct member *m)
{
  switch (m->coll) {
  case TC_ALL_REDUCE:
    to_owners(l, m, TC_AT_DST);
    /* dst may be src: a block is received over one that was sent. */
    add(l, theirs(after(with_others(m, TC_FLOW_RECV, TC_AT_DST), TC_AFTER_PIECE, 1)));
    add(l, mine(m, after(with_others(m, TC_FLOW_SEND, TC_AT_DST), TC_AFTER_PIECE, 2)));
    l->flow[3].phase = l->flow[4].phase = 1;
    break;
  case TC_REDUCE_SCATTER: to_owners(l, m, TC_AT_OWN_DST); break;
  case TC_ALL_GATHER:
    add(l, mine(m, alone(TC_FLOW_COPY, TC_AT_OWN_SRC, TC_AT_DST)));
    add(l, always(theirs(with_others(m, TC_FLOW_RECV, TC_AT_DST))));
    add(l, always(mine(m, with_others(m, TC_FLOW_SEND, TC_AT_OWN_SRC))));
    break;
  case TC_ALL_TO_ALL:
    add(l, mine(m, alone(TC_FLOW_COPY, TC_AT_SRC, TC_AT_DST)));
    add(l, always(theirs(with_others(m, TC_FLOW_RECV, TC_AT_DST))));
    add(l, always(theirs(with_others(m, TC_FLOW_SEND, TC_AT_SRC))));
    break;
  default:
    add(l, always(with_others(m, TC_FLOW_RECV, TC_AT_DST)));
    add(l, always(with_others(m, TC_FLOW_SEND, TC_AT_SRC)));
  }
}

/* ---- the root with each ------------------------------------------------------------------- */

static struct tc_flow with_root(const struct member *m, int kind, int at)
{
  return (struct tc_flow){ .kind = (uint8_t)kind, .at = (uint8_t)at, .peer = m->root, .peers = 1, .always = true };
}

static void star(struct tc_flows *l, const struct member *m)
{
  const bool root = m->coord == m->root;
  switch (m->coll) {
  case TC_BROADCAST:
    if (root) add(l, always(all(m, with_others(m, TC_FLOW_SEND, TC_AT_SRC))));
    else add(l, all(m, with_root(m, TC_FLOW_RECV, TC_AT_DST)));
    break;
  case TC_REDUCE:
    if (!root) {
      add(l, all(m, with_root(m, TC_FLOW_SEND, TC_AT_SRC)));
      break;
    }
    add(l, always(all(m, after(with_others(m, TC_FLOW_RECV, TC_AT_TERMS), TC_IN_SLOTS, 1))));
    add(l, all(m, alone(TC_FLOW_SUM, TC_AT_SRC, TC_AT_DST)));
    break;
  case TC_SCATTER:
    if (!root) {
      add(l, mine(m, with_root(m, TC_FLOW_RECV, TC_AT_OWN_DST)));
      break;
    }
    add(l, mine(m, alone(TC_FLOW_COPY, TC_AT_SRC, TC_AT_OWN_DST)));
    add(l, always(theirs(with_others(m, TC_FLOW_SEND, TC_AT_SRC))));
    break;
  case TC_GATHER:
    if (!root) {
      add(l, mine(m, with_root(m, TC_FLOW_SEND, TC_AT_OWN_SRC)));
      break;
    }
    add(l, mine(m, alone(TC_FLOW_COPY, TC_AT_OWN_SRC, TC_AT_DST)));
    add(l, always(theirs(with_others(m, TC_FLOW_RECV, TC_AT_DST))));
    break;
  case TC_SEND: add(l, all(m, with_root(m, TC_FLOW_SEND, TC_AT_SRC))); break;
  default: add(l, all(m, with_root(m, TC_FLOW_RECV, TC_AT_DST)));
  }
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define ON(coll) (1u << TC_##coll)
static const struct row {
  void (*list)(struct tc_flows *l, const struct member *m);
  unsigned collectives;
} rows[TC_ALGORITHMS] = {
#define ALGORITHM(name, function, collectives, help) { function, collectives },
#include "src/coll/algorithm.def"
#undef ALGORITHM
};
const char *const tc_algorithm_name[TC_ALGORITHMS] = {
#define ALGORITHM(name, function, collectives, help) #function,
#include "src/coll/algorithm.def"
#undef ALGORITHM
};

bool tc_algorithm_does(int algorithm, int coll) { return rows[algorithm].collectives >> coll & 1; }

void tc_flows_of(struct tc_flows *out, int algorithm, int coll, int size, int coord, int root)
{
  const struct member m = { coll, size, coord, root };
  TC_ASSERT(tc_algorithm_does(algorithm, coll) && coord >= 0 && coord < size);
  out->n = 0;
  rows[algorithm].list(out, &m);
}

int tc_algorithm_of(const struct tc_coll_args *a, int size)
{
  (void)size;
  return tc_algorithm_does(TC_ALGORITHM_EXCHANGE, a->coll) ? TC_ALGORITHM_EXCHANGE : TC_ALGORITHM_STAR;
}

int64_t tc_blocks_elems(int64_t count, int64_t block, int size, int first, int n)
{
  const int end = first + n;
  int64_t elems = tc_block_start(count, block, TC_MIN(end, size), size) - tc_block_start(count, block, first, size);
  if (end > size) elems += tc_block_start(count, block, end - size, size);
  return elems;
}

int64_t tc_flow_elems(const struct tc_flow *f, int64_t count, int64_t block, int size)
{
  if (f->shift == 0) return f->peers * tc_blocks_elems(count, block, size, f->first, f->n);
  TC_ASSERT(f->shift == 1 && f->n == 1);                       /* one after the other */
  return tc_blocks_elems(count, block, size, f->first, f->peers);
}

/* Roots are the busiest members, or the last ones, and where there is none all are alike. */
double tc_busiest_share(int algorithm, int coll, int size)
{
  const int64_t block = 1 << 20, all = block * size;
  double most = 0;
  for (int i = 0; i < 2; i++) {
    const int coord = i * (size - 1), root = coll == TC_SEND || coll == TC_RECV ? (coord + 1) % size : 0;
    double moved[2] = { 0 };                     /* [RECV], [SEND] */
    struct tc_flows l;
    tc_flows_of(&l, algorithm, coll, size, coord, root);
    for (int k = 0; k < l.n; k++)
      if (l.flow[k].kind <= TC_FLOW_SEND) moved[l.flow[k].kind] += (double)tc_flow_elems(&l.flow[k], all, block, size);
    most = TC_MAX(most, TC_MAX(moved[0], moved[1]) / (double)all);
  }
  return most;
}
