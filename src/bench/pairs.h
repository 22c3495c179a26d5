/* pairs.h - `tercio comm --pairs`: each node with each other node, point to point.
 *
 * One rank of a node takes part; where there is one node only, all its ranks do. Pairs are measured in
 * rounds of a round-robin tournament: pairs of a round have no node in common and run at once. */
#ifndef TC_PAIRS_H
#define TC_PAIRS_H

#include "src/bench/bench.h"
#include "src/launch/launch.h"

#define TC_COMM_BUDGET_S 30.0     /* what `tercio comm` takes, about, if it may choose how much to measure */

struct tc_pairs_opts {
  const struct tc_launch *launch;
  const char *link;               /* "MPI", ...; for JSON "mpi" */
  int64_t bytes;                  /* of a message; at most what the bench was made for, as are iters */
  int iters;
  int rounds;                     /* 0: as many as the time allows, of those there are */
  bool adapt_iters, adapt_bytes;  /* fewer and smaller where the link is slow */
  bool json;
};

/* Collective over world, on which the bench was made. Rank 0 prints. TC_EUSER: data is wrong; TC_EPEER:
 * a pair did not answer within the deadline; either sentence names the pair. */
int tc_pairs_run(const struct tc_pairs_opts *o, struct tc_bench *b, struct tc_comm *world, int rank,
                 struct tc_err *err);

#endif
