/* flow.c - the flows of each algorithm (algorithm.def). */
#include "src/coll/flow.h"

#include <string.h>

enum {
  FEW = 8, MANY = 32,                                           /* members */
  WHOLE_BYTES = 256, ALL_WHOLES_BYTES = 8 << 10,                /* of contributions that all come together: of one; of all */
  MOST_WHOLES_BYTES = 256 << 20,                                /* where it is asked for */
  SCATTER_BYTES = 256 << 10                                     /* of a broadcast */
};

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
/* With one, which always gets a message. */
static struct tc_flow with_one(int kind, int at, int peer)
{
  return (struct tc_flow){ .kind = (uint8_t)kind, .at = (uint8_t)at, .peer = peer, .peers = 1, .always = true };
}
/* What the member does by itself: a sum or a copy. */
static struct tc_flow alone(int kind, int from, int to)
{
  return (struct tc_flow){ .kind = (uint8_t)kind, .at = (uint8_t)from, .to = (uint8_t)to, .peers = 1, .always = true };
}

/* Its blocks: these; the member's own; those of each peer; all. */
static struct tc_flow blocks(int first, int n, struct tc_flow f)
{
  f.first = first, f.n = n;
  return f;
}
static struct tc_flow mine(const struct member *m, struct tc_flow f) { return blocks(m->coord, 1, f); }
static struct tc_flow theirs(struct tc_flow f)
{
  f.shift = 1;
  return blocks(f.peer, 1, f);
}
static struct tc_flow all(const struct member *m, struct tc_flow f) { return blocks(0, m->size, f); }

static struct tc_flow always(struct tc_flow f)
{
  f.always = true;
  return f;
}
static struct tc_flow in_phase(int phase, struct tc_flow f)
{
  f.phase = (uint8_t)phase;
  return f;
}
static struct tc_flow after(struct tc_flow f, int when, int flow)
{
  f.when = (uint8_t)when, f.after = (uint8_t)flow;
  return f;
}
/* When all that the list has so far is done. */
static struct tc_flow then(const struct tc_flows *l, struct tc_flow f) { return after(f, TC_AFTER_FIRST, l->n); }

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
    add(l, in_phase(1, theirs(after(with_others(m, TC_FLOW_RECV, TC_AT_DST), TC_AFTER_PIECE, 1))));
    add(l, in_phase(1, mine(m, after(with_others(m, TC_FLOW_SEND, TC_AT_DST), TC_AFTER_PIECE, 2))));
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

static void star(struct tc_flows *l, const struct member *m)
{
  const bool root = m->coord == m->root;
  switch (m->coll) {
  case TC_BROADCAST:
    if (root) add(l, always(all(m, with_others(m, TC_FLOW_SEND, TC_AT_SRC))));
    else add(l, all(m, with_one(TC_FLOW_RECV, TC_AT_DST, m->root)));
    break;
  case TC_REDUCE:
    if (!root) {
      add(l, all(m, with_one(TC_FLOW_SEND, TC_AT_SRC, m->root)));
      break;
    }
    add(l, always(all(m, after(with_others(m, TC_FLOW_RECV, TC_AT_TERMS), TC_IN_SLOTS, 1))));
    add(l, all(m, alone(TC_FLOW_SUM, TC_AT_SRC, TC_AT_DST)));
    break;
  case TC_SCATTER:
    if (!root) {
      add(l, mine(m, with_one(TC_FLOW_RECV, TC_AT_OWN_DST, m->root)));
      break;
    }
    add(l, mine(m, alone(TC_FLOW_COPY, TC_AT_SRC, TC_AT_OWN_DST)));
    add(l, always(theirs(with_others(m, TC_FLOW_SEND, TC_AT_SRC))));
    break;
  case TC_GATHER:
    if (!root) {
      add(l, mine(m, with_one(TC_FLOW_SEND, TC_AT_OWN_SRC, m->root)));
      break;
    }
    add(l, mine(m, alone(TC_FLOW_COPY, TC_AT_OWN_SRC, TC_AT_DST)));
    add(l, always(theirs(with_others(m, TC_FLOW_RECV, TC_AT_DST))));
    break;
  case TC_SEND: add(l, all(m, with_one(TC_FLOW_SEND, TC_AT_SRC, m->root))); break;
  default: add(l, all(m, with_one(TC_FLOW_RECV, TC_AT_DST, m->root)));
  }
}

/* ---- by doubling: after round r a member has what 2^r members from it on gave (Bruck et al., "Efficient algorithms for
 * all-to-all communications", 1997, section 3) --------------------------------------------------- */

static void doubling(struct tc_flows *l, const struct member *m)
{
  const int at = m->coll == TC_ALL_REDUCE ? TC_AT_WHOLES : TC_AT_DST, N = m->size;
  if (m->coll == TC_ALL_REDUCE) add(l, all(m, alone(TC_FLOW_COPY, TC_AT_SRC, TC_AT_WHOLES)));
  if (m->coll == TC_ALL_GATHER) add(l, mine(m, alone(TC_FLOW_COPY, TC_AT_OWN_SRC, TC_AT_DST)));
  for (int have = 1; have < N; have *= 2) {
    const int n = m->coll == TC_BARRIER ? 0 : TC_MIN(have, N - have);
    const int from = (m->coord + have) % N, to = (m->coord - have + N) % N;
    add(l, then(l, blocks(m->coord, n, with_one(TC_FLOW_SEND, at, to))));
    add(l, blocks(from, n, with_one(TC_FLOW_RECV, at, from)));
  }
  if (m->coll == TC_ALL_REDUCE) add(l, all(m, alone(TC_FLOW_SUM, TC_AT_WHOLES, TC_AT_DST)));
}

/* ---- a binomial tree: of n counted from the root, the parent is n without its lowest bit ---------- */

/* A member's place in it: its number from the root on, its parent, and how many members from n on hang on it, itself among
 * them. Its children are n + far for each power of two `far` below that, if there are so many members. */
struct place { int n, parent, below; };

static struct place place_of(const struct member *m, int root)
{
  struct place p = { .n = (m->coord - root + m->size) % m->size, .below = 1 };
  while (p.below < m->size && !(p.n & p.below)) p.below *= 2;
  p.parent = (p.n - p.below + root + m->size) % m->size;
  return p;
}

/* Members that hang on number n + far: up to `below`, if there are so many. */
static int hang_on(const struct member *m, const struct place *p, int far, int below)
{
  return TC_MIN(below, m->size - p->n - far);
}

/* What hangs on the member goes up: of each of its children, then to its parent. any: a block of each, else nothing. */
static void up(struct tc_flows *l, const struct member *m, const struct place *p, int at, bool any)
{
  for (int far = p->below / 2; far > 0; far /= 2) {
    const int child = (m->coord + far) % m->size;
    if (p->n + far < m->size)
      add(l, blocks(child, any ? hang_on(m, p, far, far) : 0, with_one(TC_FLOW_RECV, at, child)));
  }
  if (p->n) add(l, then(l, blocks(m->coord, any ? hang_on(m, p, 0, p->below) : 0, with_one(TC_FLOW_SEND, at, p->parent))));
}

/* The whole array goes down, or nothing, to one child after the other, first to the one with most below it. The root's
 * first send, from `at`, goes when `when` and `which` say. */
static void down(struct tc_flows *l, const struct member *m, const struct place *p, int at, int when, int which, bool any)
{
  const int n = any ? m->size : 0, first = l->n;
  if (p->n) add(l, then(l, in_phase(1, blocks(0, n, with_one(TC_FLOW_RECV, TC_AT_DST, p->parent)))));
  for (int far = p->below / 2; far > 0; far /= 2) {
    const struct tc_flow f = with_one(TC_FLOW_SEND, p->n ? TC_AT_DST : at, (m->coord + far) % m->size);
    if (p->n + far >= m->size) continue;
    const bool begins = l->n == first;
    add(l, in_phase(1, blocks(0, n, after(f, begins ? when : TC_AFTER_PIECE, begins ? which : l->n - 1))));
  }
}

static void tree(struct tc_flows *l, const struct member *m)
{
  const bool rooted = m->coll == TC_BROADCAST || m->coll == TC_REDUCE;
  const struct place p = place_of(m, rooted ? m->root : 0);
  switch (m->coll) {
  case TC_BROADCAST: down(l, m, &p, TC_AT_SRC, TC_AT_ONCE, 0, true); break;
  case TC_ALL_GATHER:
    add(l, mine(m, alone(TC_FLOW_COPY, TC_AT_OWN_SRC, TC_AT_DST)));
    up(l, m, &p, TC_AT_DST, true);
    down(l, m, &p, TC_AT_DST, TC_AFTER_FIRST, l->n, true);
    break;
  case TC_BARRIER:
    up(l, m, &p, TC_AT_DST, false);
    down(l, m, &p, TC_AT_DST, TC_AFTER_FIRST, l->n, false);
    break;
  default:
    add(l, all(m, alone(TC_FLOW_COPY, TC_AT_SRC, TC_AT_WHOLES)));
    up(l, m, &p, TC_AT_WHOLES, true);
    if (p.n == 0) add(l, all(m, alone(TC_FLOW_SUM, TC_AT_WHOLES, TC_AT_DST)));
    if (m->coll == TC_ALL_REDUCE) down(l, m, &p, TC_AT_DST, TC_AFTER_PIECE, l->n - 1, true);
  }
}

/* ---- a block to each by a tree, then all blocks to all (van de Geijn, "On global combine operations", 1994) ------------ */

/* A send ends when the network has the data, of which it may keep megabytes on a slow link, and what is sent next would
 * share the link with it. So each is answered by an empty message once it has arrived, and the next one waits for that. */
static void send_answered(struct tc_flows *l, struct tc_flow f)
{
  add(l, f);
  add(l, in_phase(f.phase + 2, with_one(TC_FLOW_RECV, f.at, f.peer)));
}
static void answer(struct tc_flows *l, struct tc_flow f)
{
  add(l, f);
  add(l, in_phase(f.phase + 2, after(with_one(TC_FLOW_SEND, f.at, f.peer), TC_AFTER_FLOW, l->n - 1)));
}

static void scattered(struct tc_flows *l, const struct member *m)
{
  const struct place p = place_of(m, m->root);
  const int N = m->size, at = p.n ? TC_AT_DST : TC_AT_SRC;
  if (p.n) answer(l, blocks(m->coord, hang_on(m, &p, 0, p.below), with_one(TC_FLOW_RECV, TC_AT_DST, p.parent)));
  for (int far = p.below / 2; far > 0; far /= 2) {
    const int child = (m->coord + far) % N;
    if (p.n + far < N) send_answered(l, then(l, blocks(child, hang_on(m, &p, far, far), with_one(TC_FLOW_SEND, at, child))));
  }
  const int gone = l->n;                         /* what is received from here on lies where that was sent from */
  if (N <= MANY) {                               /* each sends its block to all but the root, which has them */
    struct tc_flow send = in_phase(1, always(mine(m, with_others(m, TC_FLOW_SEND, at))));
    if (p.n) add(l, after(in_phase(1, always(theirs(with_others(m, TC_FLOW_RECV, TC_AT_DST)))), TC_AFTER_FIRST, gone));
    if (p.n) send.peers = (m->root - m->coord + N) % N - 1;
    add(l, after(send, TC_AFTER_FIRST, gone));
    if (p.n) send.peer = (m->root + 1) % N, send.peers = N - 2 - send.peers;
    if (p.n) add(l, after(send, TC_AFTER_FIRST, gone));
    return;
  }
  for (int have = 1; have < N; have *= 2) {
    const int n = TC_MIN(have, N - have), from = (m->coord + have) % N, to = (m->coord - have + N) % N;
    if (to != m->root) send_answered(l, then(l, in_phase(1, blocks(m->coord, n, with_one(TC_FLOW_SEND, at, to)))));
    if (p.n) answer(l, after(in_phase(1, blocks(from, n, with_one(TC_FLOW_RECV, TC_AT_DST, from))), TC_AFTER_FIRST, gone));
  }
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define ON(coll) (1u << TC_##coll)
static const struct row {
  void (*list)(struct tc_flows *l, const struct member *m);
  unsigned collectives, wholes;
} rows[TC_ALGORITHMS] = {
  { NULL, 0, 0 },
#define ALGORITHM(name, function, collectives, wholes) { function, collectives, wholes },
#include "src/coll/algorithm.def"
#undef ALGORITHM
};
const char *const tc_algorithm_name[TC_ALGORITHMS] = {
  "auto",
#define ALGORITHM(name, function, collectives, wholes) #function,
#include "src/coll/algorithm.def"
#undef ALGORITHM
};

bool tc_algorithm_does(int algorithm, int coll) { return rows[algorithm].collectives >> coll & 1; }

int tc_algorithm_named(const char *name)
{
  for (int a = 0; a < TC_ALGORITHMS; a++)
    if (!strcmp(tc_algorithm_name[a], name)) return a;
  return -1;
}

int tc_algorithm_direct(int coll)
{
  return tc_algorithm_does(TC_ALGORITHM_EXCHANGE, coll) ? TC_ALGORITHM_EXCHANGE : TC_ALGORITHM_STAR;
}

void tc_flows_of(struct tc_flows *out, int algorithm, int coll, int size, int coord, int root)
{
  const struct member m = { coll, size, coord, root };
  TC_ASSERT(tc_algorithm_does(algorithm, coll) && coord >= 0 && coord < size);
  out->n = 0;
  rows[algorithm].list(out, &m);
}

/* What all members give comes together: so many bytes times their number. */
static bool is_small(int64_t bytes, int size) { return bytes <= WHOLE_BYTES || bytes <= ALL_WHOLES_BYTES / size; }

/* Among few members the direct algorithm is best, which has the fewest rounds; among more, what is small goes by a tree. */
static int by_size(int coll, int64_t bytes, int size)
{
  const bool scatters = coll == TC_BROADCAST && size > 2 && bytes >= SCATTER_BYTES;
  const int64_t given = coll == TC_ALL_GATHER ? bytes / size : coll == TC_BROADCAST ? 0 : bytes;      /* by each member */
  if (scatters) return TC_ALGORITHM_SCATTERED;
  return size > FEW && tc_algorithm_does(TC_ALGORITHM_TREE, coll) && is_small(given, size) ? TC_ALGORITHM_TREE
                                                                                       : tc_algorithm_direct(coll);
}

int tc_algorithm_of(const struct tc_coll_args *a, int size)
{
  int64_t bytes = 0;
  for (int i = 0; i < a->n_parts; i++) bytes += a->parts[i].count * (int64_t)tc_dtype_bytes(a->dtype);
  const bool too_large = rows[a->algorithm].wholes >> a->coll & 1 && bytes > MOST_WHOLES_BYTES / size;
  return tc_algorithm_does(a->algorithm, a->coll) && !too_large ? a->algorithm : by_size(a->coll, bytes, size);
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
  if (f->at == TC_AT_WHOLES) return (int64_t)f->peers * f->n * count;
  if (f->shift == 0) return f->peers * tc_blocks_elems(count, block, size, f->first, f->n);
  TC_ASSERT(f->shift == 1 && f->n == 1);                       /* one after the other */
  return tc_blocks_elems(count, block, size, f->first, f->peers);
}

/* The busiest member is the root or, in some lists, the last one; without a root all do as much. */
double tc_busiest_share(int algorithm, int coll, int size)
{
  double most = 0;
  for (int i = 0; i < 2; i++) {
    const int coord = i * (size - 1), root = coll == TC_SEND || coll == TC_RECV ? (coord + 1) % size : 0;
    double moved[2] = { 0 };                     /* [RECV], [SEND] */
    struct tc_flows l;
    tc_flows_of(&l, algorithm, coll, size, coord, root);
    for (int k = 0; k < l.n; k++)
      if (l.flow[k].kind <= TC_FLOW_SEND) moved[l.flow[k].kind] += (double)tc_flow_elems(&l.flow[k], size, 1, size);
    most = TC_MAX(most, TC_MAX(moved[0], moved[1]) / (double)size);
  }
  return most;
}
