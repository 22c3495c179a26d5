/* flow.h - who sends what to whom in a collective: what one member does, as a short list. Pure.
 *
 * A flow is a send, a receive or a sum of some blocks, as a row of pieces in order; several alike, with one peer after the
 * other, are one entry. From the same list come what a backend does (comm/p2p.c), the bytes that are predicted, the busiest
 * member of a plan, and the members that one waits for. */
#ifndef TC_FLOW_H
#define TC_FLOW_H

#include "src/coll/coll.h"

enum tc_algorithm {
#define ALGORITHM(name, function, collectives, help) TC_ALGORITHM_##name,
#include "src/coll/algorithm.def"
#undef ALGORITHM
  TC_ALGORITHMS
};
extern const char *const tc_algorithm_name[TC_ALGORITHMS];        /* "exchange", ... */
/* Local. Whether it computes the collective. */
bool tc_algorithm_does(int algorithm, int coll);

enum tc_flow_kind { TC_FLOW_RECV, TC_FLOW_SEND, TC_FLOW_SUM, TC_FLOW_COPY };
/* Where blocks are: src or dst with all blocks; with this member's alone; terms of a sum, of which each peer sends one. A
 * sum is of all terms that its list receives, and of this member's own blocks in src, in the order of coordinates. */
enum tc_flow_at { TC_AT_SRC, TC_AT_DST, TC_AT_OWN_SRC, TC_AT_OWN_DST, TC_AT_TERMS };
/* When a flow's piece i may go: at once; when piece i of flow `after` has gone: of the one with the same peer, if it has one
 * for each; when piece i - slots was summed up, since terms wait in so few places. */
enum tc_flow_when { TC_AT_ONCE, TC_AFTER_PIECE, TC_IN_SLOTS };

struct tc_flow {
  uint8_t kind, at, when, after;
  uint8_t to;                    /* of a sum and a copy, which is made first: where the result is */
  uint8_t phase;                 /* 0 or 1: between two members there is at most one flow each way in each */
  bool always;                   /* at least one message, empty if there is nothing: it says that the member is there */
  int32_t peer, peers;           /* with coordinates peer, peer + 1, ... modulo the size, so many */
  int32_t first, n, shift;       /* blocks first, first + 1, ... modulo the size, n of them, with the first peer; with each
                                    further one they begin `shift` later */
};

enum { TC_FLOWS_MOST = 8 };
struct tc_flows { int n; struct tc_flow flow[TC_FLOWS_MOST]; };

/* Local. What coordinate `coord` of `size` members does; root: of rooted collectives, and the peer of SEND and RECV. */
void tc_flows_of(struct tc_flows *out, int algorithm, int coll, int size, int coord, int root);

/* Local. The algorithm of a call, of the bytes of a->parts, whose addresses are not looked at. */
int tc_algorithm_of(const struct tc_coll_args *a, int size);

/* Local. Elements of n blocks from `first` on, modulo the size, of an array of `count` in blocks of `block`. */
int64_t tc_blocks_elems(int64_t count, int64_t block, int size, int first, int n);

/* Local. Elements that a flow moves of one array, with all its peers. */
int64_t tc_flow_elems(const struct tc_flow *f, int64_t count, int64_t block, int size);

/* Local. What the busiest member sends or receives, as a part of the array, whose blocks are of one size. */
double tc_busiest_share(int algorithm, int coll, int size);

#endif
