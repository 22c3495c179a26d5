/* trees.c - the algorithms with log2 N rounds, or with the members in a row. */
#include "src/coll/impl.h"

enum { MANY = 32 };                /* members */

/* ---- by doubling: after round r a member has what 2^r members from it on gave (Bruck et al., "Efficient algorithms for
 * all-to-all communications", 1997, section 3) --------------------------------------------------- */

void tc_list_doubled(struct tc_flows *l, const struct tc_call *m, int at, int phase)
{
  const int N = m->size;
  for (int have = 1; have < N; have *= 2) {
    const int n = m->coll == TC_BARRIER ? 0 : TC_MIN(have, N - have);
    const int from = (m->coord + have) % N, to = (m->coord - have + N) % N;
    add(l, then(l, in_phase(phase, blocks(m->coord, n, with_one(TC_FLOW_SEND, at, to)))));
    add(l, in_phase(phase, blocks(from, n, with_one(TC_FLOW_RECV, at, from))));
  }
}

void tc_list_doubling(struct tc_flows *l, const struct tc_call *m)
{
  if (m->coll == TC_ALL_REDUCE) add(l, all(m, alone(TC_FLOW_COPY, TC_AT_SRC, TC_AT_WHOLES)));
  if (m->coll == TC_ALL_GATHER) add(l, mine(m, alone(TC_FLOW_COPY, TC_AT_OWN_SRC, TC_AT_DST)));
  tc_list_doubled(l, m, m->coll == TC_ALL_REDUCE ? TC_AT_WHOLES : TC_AT_DST, 0);
  if (m->coll == TC_ALL_REDUCE) add(l, all(m, alone(TC_FLOW_SUM, TC_AT_WHOLES, TC_AT_DST)));
}

/* ---- a binomial tree: of n counted from the root, the parent is n without its lowest bit ---------- */

/* A member's place in it: its number from the root on, its parent, and how many members from n on hang on it, itself among
 * them. Its children are n + far for each power of two `far` below that, if there are so many members. */
struct place { int n, parent, below; };

static struct place place_of(const struct tc_call *m, int root)
{
  struct place p = { .n = (m->coord - root + m->size) % m->size, .below = 1 };
  while (p.below < m->size && !(p.n & p.below)) p.below *= 2;
  p.parent = (p.n - p.below + root + m->size) % m->size;
  return p;
}

/* Members that hang on number n + far: up to `below`, if there are so many. */
static int hang_on(const struct tc_call *m, const struct place *p, int far, int below)
{
  return TC_MIN(below, m->size - p->n - far);
}

/* What hangs on the member goes up: of each of its children, then to its parent. any: a block of each, else nothing. */
static void up(struct tc_flows *l, const struct tc_call *m, const struct place *p, int at, bool any)
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
static void down(struct tc_flows *l, const struct tc_call *m, const struct place *p, int at, int when, int which, bool any)
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

void tc_list_tree(struct tc_flows *l, const struct tc_call *m)
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

/* Each adds what its children sent to its own term; the root's sum goes down. */
void tc_list_sumtree(struct tc_flows *l, const struct tc_call *m)
{
  const struct place p = place_of(m, m->coll == TC_REDUCE ? m->root : 0);
  int children = 0;
  for (int far = p.below / 2; far > 0; far /= 2) children += p.n + far < m->size;
  const int sum = 1 + children;
  add(l, all(m, alone(TC_FLOW_COPY, TC_AT_SRC, TC_AT_WIDE)));
  for (int far = p.below / 2; far > 0; far /= 2) {
    const int child = (m->coord + far) % m->size;
    if (p.n + far < m->size) add(l, all(m, after(wide(with_one(TC_FLOW_RECV, TC_AT_TERMS, child)), TC_IN_SLOTS, sum)));
  }
  add(l, all(m, alone(TC_FLOW_SUM, TC_AT_WIDE, p.n ? TC_AT_WIDE : TC_AT_DST)));
  if (p.n) add(l, all(m, after(wide(with_one(TC_FLOW_SEND, TC_AT_WIDE, p.parent)), TC_AFTER_PIECE, sum)));
  if (m->coll == TC_ALL_REDUCE) down(l, m, &p, TC_AT_DST, TC_AFTER_PIECE, sum, true);
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

void tc_list_scattered(struct tc_flows *l, const struct tc_call *m)
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

/* ---- from the root on from one to the next, piece by piece; a node's members stand together, so that its link carries the
 * array once each way ------------------------------------------------------------------------------------- */

/* The member `by` places after the root; by < 0: this member's place. */
static int in_chain(const struct tc_call *m, int by)
{
  const struct tc_nodes *x = m->nodes;
  if (!x) return by < 0 ? (m->coord - m->root + m->size) % m->size : (m->root + by) % m->size;
  const int begin = x->row[m->root];
  for (int r = 0, at = 0; r < x->n; r++) {
    const int row = (begin + r) % x->n, n = x->size[row], first = r == 0 ? x->column[m->root] : 0;
    if (by < 0 && row == x->row[m->coord]) return at + (x->column[m->coord] - first + n) % n;
    if (by >= at && by < at + n) return x->at[row * x->most + (first + by - at) % n];
    at += n;
  }
  TC_ASSERT(false);
  return -1;
}

void tc_list_chain(struct tc_flows *l, const struct tc_call *m)
{
  const int place = in_chain(m, -1);
  if (place > 0) add(l, all(m, with_one(TC_FLOW_RECV, TC_AT_DST, in_chain(m, place - 1))));
  if (place == m->size - 1) return;
  const struct tc_flow f = all(m, with_one(TC_FLOW_SEND, place ? TC_AT_DST : TC_AT_SRC, in_chain(m, place + 1)));
  add(l, place ? after(f, TC_AFTER_PIECE, 0) : f);
}
