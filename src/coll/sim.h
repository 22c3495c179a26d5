/* sim.h - the state of a simulation (simulate.h), for sim.c, which moves it, and sim_sum.c, which looks at it. */
#ifndef TC_SIM_H
#define TC_SIM_H

#include "src/coll/simulate.h"

/* A send or a receive with one peer. */
struct tc_sim_flow {
  int32_t member, peer, entry, mate;             /* mate: of a send its receive, and the other way; -1: not looked for yet */
  int64_t bytes, messages;
  double at;                                     /* when it was posted, */
  int64_t number;                                /* ... and as which: a link takes what may leave at one time in this order */
  bool send, posted, done;
  uint8_t phase;
};
/* An entry of a member's list: its flows stand together; a sum has none. */
struct tc_sim_entry { struct tc_flow of; int32_t member, flow, peers, open, terms; bool free; };
/* open: entries that are not done; wholes: receives of whole contributions that are not. */
struct tc_sim_member {
  int32_t entry, n, first_open, wholes, open;
  int64_t *receives;             /* [n_receives] keys of its receives, in order; in the call's `key` */
  int n_receives;
  double busy_until;
};
struct tc_sim_event { double at; int64_t number; int32_t of; int kind; };

struct tc_sim_counts { int64_t messages[2], bytes[2]; };   /* [RECV], [SEND] */

struct tc_sim {
  struct tc_sim_net net;
  struct tc_members m;
  int32_t *node;                 /* [size] */
  int n_nodes;
  double *at;                    /* [size] when it is done with all calls so far */
  struct tc_sim_counts *count, *across; /* [size]; [nodes] to and from other nodes */
  uint8_t *met;                  /* [size][tc_sim_met_row] bits */

  /* the call */
  struct tc_sim_member *member;
  struct tc_sim_entry *entry; int n_entries, cap_entries;
  struct tc_sim_flow *flow; int n_flows, cap_flows;
  int64_t *key; int cap_keys;
  double (*member_free)[2], (*node_free)[2];     /* when a link is free: out, in */
  struct tc_sim_event *heap; int n_events, cap_events;
  int64_t number;
  double now;
  int lost;                      /* -1: none */
};

/* Bytes of a member's bits, one for each other member. */
static inline size_t tc_sim_met_row(const struct tc_sim *s) { return ((size_t)s->m.size + 7) / 8; }
/* Runs a call on all members but `lost`, to its end, or until nothing moves. */
void tc_sim_run(struct tc_sim *s, const struct tc_coll_args *a);
/* The member's flows: from *first to *end. */
static inline void tc_sim_flows(const struct tc_sim *s, const struct tc_sim_member *m, int *first, int *end)
{
  const struct tc_sim_entry *e = m->n ? &s->entry[m->entry] : NULL;
  *first = e ? e->flow : 0;
  *end = e ? e[m->n - 1].flow + e[m->n - 1].peers : 0;
}

#endif
