/* impl.h - what the algorithms' lists are made of (flow.h), one sentence each. */
#ifndef TC_COLL_IMPL_H
#define TC_COLL_IMPL_H

#include "src/coll/flow.h"

/* A collective, as a member sees it. */
struct tc_call { int coll, size, coord, root; const struct tc_nodes *nodes; };

/* Each appends one member's flows. */
#define ALGORITHM(name, function, collectives, wholes, traits, messages, bytes) \
  void tc_list_##function(struct tc_flows *l, const struct tc_call *m);
#include "src/coll/algorithm.def"
#undef ALGORITHM
/* What each member has comes to all in log2 N rounds, or nothing, in a barrier. */
void tc_list_doubled(struct tc_flows *l, const struct tc_call *m, int at, int phase);

static inline void add(struct tc_flows *l, struct tc_flow f)
{
  TC_GROW(l->flow, l->n, l->cap);
  l->flow[l->n++] = f;
}

/* With all others, beginning with the next one, so that not all send to the same member first. */
static inline struct tc_flow with_others(const struct tc_call *m, int kind, int at)
{
  return (struct tc_flow){ .kind = (uint8_t)kind, .at = (uint8_t)at, .peer = (m->coord + 1) % m->size, .peers = m->size - 1 };
}
/* With one, which always gets a message. */
static inline struct tc_flow with_one(int kind, int at, int peer)
{
  return (struct tc_flow){ .kind = (uint8_t)kind, .at = (uint8_t)at, .peer = peer, .peers = 1, .always = true };
}
/* What the member does by itself: a sum or a copy. */
static inline struct tc_flow alone(int kind, int from, int to)
{
  return (struct tc_flow){ .kind = (uint8_t)kind, .at = (uint8_t)from, .to = (uint8_t)to, .peers = 1, .always = true };
}

/* Its blocks: these; the member's own; those of each peer; all. */
static inline struct tc_flow blocks(int first, int n, struct tc_flow f)
{
  f.first = first, f.n = n;
  return f;
}
static inline struct tc_flow mine(const struct tc_call *m, struct tc_flow f) { return blocks(m->coord, 1, f); }
static inline struct tc_flow theirs(struct tc_flow f)
{
  f.shift = 1;
  return blocks(f.peer, 1, f);
}
static inline struct tc_flow all(const struct tc_call *m, struct tc_flow f) { return blocks(0, m->size, f); }

static inline struct tc_flow always(struct tc_flow f)
{
  f.always = true;
  return f;
}
static inline struct tc_flow wide(struct tc_flow f)
{
  f.wide = true;
  return f;
}
static inline struct tc_flow in_phase(int phase, struct tc_flow f)
{
  f.phase = (uint8_t)phase;
  return f;
}
static inline struct tc_flow after(struct tc_flow f, int when, int flow)
{
  f.when = (uint8_t)when, f.after = flow;
  return f;
}
/* When all that the list has so far is done. */
static inline struct tc_flow then(const struct tc_flows *l, struct tc_flow f) { return after(f, TC_AFTER_FIRST, l->n); }

#endif
