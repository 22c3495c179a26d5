/* flow.h - who sends what to whom in a collective: what one member does, as a short list. Pure.
 *
 * A flow is a send, a receive or a sum of some blocks, as a row of pieces in order; several alike, with one peer after the
 * other, are one entry. From the same list come what a backend does (comm/p2p.c), the bytes that are predicted, the busiest
 * member of a plan, and the members that one waits for. */
#ifndef TC_FLOW_H
#define TC_FLOW_H

#include "src/coll/coll.h"

enum tc_algorithm {
  TC_ALGORITHM_AUTO,
#define ALGORITHM(name, function, collectives, wholes) TC_ALGORITHM_##name,
#include "src/coll/algorithm.def"
#undef ALGORITHM
  TC_ALGORITHMS
};
extern const char *const tc_algorithm_name[TC_ALGORITHMS];        /* "auto", "exchange", ... */
/* Local. Whether it computes the collective. */
bool tc_algorithm_does(int algorithm, int coll);
/* Local. The algorithm of that name; -1: none. */
int tc_algorithm_named(const char *name);
/* Local. The one in which members exchange with each other, or of a rooted collective with the root. */
int tc_algorithm_direct(int coll);

enum tc_flow_kind { TC_FLOW_RECV, TC_FLOW_SEND, TC_FLOW_SUM, TC_FLOW_COPY };
/* Where blocks are. */
enum tc_flow_at {
  TC_AT_SRC, TC_AT_DST,          /* in src or dst, which has all blocks */
  TC_AT_OWN_SRC, TC_AT_OWN_DST,  /* in src or dst, which has this member's alone */
  TC_AT_TERMS,                   /* terms of a sum, of which each peer sends one */
  TC_AT_WHOLES                   /* whole contributions: block c is all of coordinate c's src */
};
/* When piece i of a flow may go. */
enum tc_flow_when {
  TC_AT_ONCE,
  TC_AFTER_FIRST,                /* when the first `after` entries of the list are done */
  TC_AFTER_FLOW,                 /* when entry `after` is done */
  TC_AFTER_PIECE,                /* when its piece i has gone: of the flow with the same peer, if it has one for each */
  TC_IN_SLOTS                    /* when piece i - slots of the sum `after` was made, since terms wait in so few places */
};

/* A sum is of all terms in the order of coordinates: of this member's blocks at `at` and the terms that the list receives,
 * a piece when all its terms are there; or of all contributions, when all are there. Copies are made before all else.
 * `after`: an entry before this one that has as many peers or one, or the sum. */
struct tc_flow {
  uint8_t kind, at, when, after;
  uint8_t to;                    /* of a sum or a copy: where the result is */
  uint8_t phase;                 /* below TC_PHASES: between two members there is at most one flow each way in each */
  bool always;                   /* at least one message, empty if there is nothing: it says that the member is there */
  int32_t peer, peers;           /* with coordinates peer, peer + 1, ... modulo the size, so many */
  int32_t first, n, shift;       /* blocks first, first + 1, ... modulo the size, n of them, with the first peer; with each
                                    further one they begin `shift` later */
};

enum { TC_FLOWS_MOST = 128, TC_PHASES = 4 };     /* enough for 2^21 members */
struct tc_flows { int n; struct tc_flow flow[TC_FLOWS_MOST]; };

/* Local. What coordinate `coord` of `size` members does; root: of rooted collectives, and the peer of SEND and RECV. */
void tc_flows_of(struct tc_flows *out, int algorithm, int coll, int size, int coord, int root);

/* Local. The algorithm of a call: a->algorithm, if that does it, else by the bytes of a->parts, whose addresses are not
 * looked at. */
int tc_algorithm_of(const struct tc_coll_args *a, int size);

/* Local. Elements of n blocks from `first` on, modulo the size, of an array of `count` in blocks of `block`. */
int64_t tc_blocks_elems(int64_t count, int64_t block, int size, int first, int n);

/* Local. Elements that a flow moves of one array, with all its peers: of whole contributions, each is the array. */
int64_t tc_flow_elems(const struct tc_flow *f, int64_t count, int64_t block, int size);

/* Local. What the busiest member sends or receives, as a part of the array, whose blocks are of one size. */
double tc_busiest_share(int algorithm, int coll, int size);

#endif
