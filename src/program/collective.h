/* collective.h - a RESHARD as a collective call: kind, root, parts. Pure, so that the executor
 * and the prediction of bytes are made of the same numbers. */
#ifndef TC_COLLECTIVE_H
#define TC_COLLECTIVE_H

#include "src/coll/flow.h"
#include "src/graph/graph.h"

/* For the calls of a training step, whose rooted collectives are those of systems in which one rank serves all (`server`,
 * `dataparallel`): a star on purpose, since that is what they show. Others go by size. */
enum { TC_STEP_ALGORITHM = TC_ALGORITHM_STAR };
/* That of a RESHARD: initial values, which many ranks get, go by size. */
static inline int tc_collective_algorithm(const struct tc_node *n)
{
  return n->role == TC_ROLE_INITIAL ? TC_ALGORITHM_AUTO : TC_STEP_ALGORITHM;
}

/* Local. The collective (enum tc_coll) that a RESHARD is for the rank at `coord` of its axis;
 * TC_COLLS if this rank has no part in it (another's send). */
int tc_collective_coll(const struct tc_node *n, int coord);
/* Local. Its root, or the peer of a send or receive. */
int tc_collective_root(const struct tc_node *n, int coord);

/* Local. part[n->n_in] come with src and dst set (addresses, or numbers that stand for them);
 * fills count and block in elements. Parts of an all-reduce that are state and lie side by side
 * on every rank become one, so that all ranks have the same parts.
 * Returns the number of parts. */
int tc_collective_parts(const struct tc_graph *g, const struct tc_node *n, const struct tc_mesh *m,
                      int rank, struct tc_part *part);

/* Local. Bytes of staging that part k needs: its blocks along an inner dimension are packed before
 * (pack_dim) or unpacked after (unpack_dim; -1: not). */
int64_t tc_collective_packs(const struct tc_graph *g, const struct tc_node *n, int k,
                          const struct tc_mesh *m, int rank, int *pack_dim, int *unpack_dim);

#endif
