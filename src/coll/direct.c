/* direct.c - the algorithms without a way round: each with each, the root with each. */
#include "src/coll/impl.h"

/* ---- each with each ----------------------------------------------------------------------- */

/* Terms of my block come, mine go to their owners, and my block is summed up. */
static void to_owners(struct tc_flows *l, const struct tc_call *m, int result)
{
  add(l, always(mine(m, after(with_others(m, TC_FLOW_RECV, TC_AT_TERMS), TC_IN_SLOTS, 2))));
  add(l, always(theirs(with_others(m, TC_FLOW_SEND, TC_AT_SRC))));
  add(l, mine(m, alone(TC_FLOW_SUM, TC_AT_SRC, result)));
}

void tc_list_exchange(struct tc_flows *l, const struct tc_call *m)
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

void tc_list_star(struct tc_flows *l, const struct tc_call *m)
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
