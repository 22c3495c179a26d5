/* pairs.h - `tercio comm --pairs`: each node with each other node, point to point.
 *
 * One rank of a node takes part; where there is one node only, all its ranks do. Pairs are measured in
 * rounds of a round-robin tournament: pairs of a round have no node in common and run at once. */
#ifndef TC_PAIRS_H
#define TC_PAIRS_H

#include "src/bench/bench.h"

#define TC_PAIRS_SLOW 0.7          /* of the median rate: what is below it is slow */

struct tc_pair { int a, b, round; double us, gbs; int measured; };   /* members a < b; one message one way; how often */
struct tc_pair_member { int rank, pairs; char name[80]; double gbs; bool slow; };

struct tc_pairs {                  /* what was measured, on rank 0 */
  const char *of;                  /* "node" or, of one node, "rank" */
  struct tc_pair_member *m; int n;               /* owned, as the pairs, slowest first */
  struct tc_pair *pair; int n_pairs, cap_pairs;
  int rounds, all_rounds;
  int64_t bytes;                   /* of a message */
  int crowd, cpus;                 /* one node: so many ranks share fewer CPUs, so none is called slow; 0: none do */
  double median_gbs;
};

struct tc_pairs_opts {
  const struct tc_launch *launch;
  int64_t bytes;                  /* of a message; at most what the bench was made for, as are iters */
  int iters;
  int rounds;                     /* 0: as many as the time allows, of those there are */
  bool adapt_iters, adapt_bytes;  /* fewer and smaller where the link is slow */
};

/* Collective over world, on which the bench was made. *out is to be freed by tc_pairs_done even after an error.
 * TC_EUSER: data is wrong; TC_EPEER: a pair did not answer within the deadline; either sentence names the pair. */
int tc_pairs_run(struct tc_pairs *out, const struct tc_pairs_opts *o, struct tc_bench *b, struct tc_comm *world,
                 int rank, struct tc_err *err);
/* Local. Whether a pair is slow, by itself or because one of its members is. */
bool tc_pair_is_slow(const struct tc_pairs *s, const struct tc_pair *p);
void tc_pairs_done(struct tc_pairs *p);

#endif
