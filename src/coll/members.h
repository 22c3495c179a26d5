/* members.h - who takes part in a collective, and on which nodes they are. Pure. */
#ifndef TC_MEMBERS_H
#define TC_MEMBERS_H

#include "src/base/base.h"

/* The members of a group, node by node: a row a node, in the order of its first member, and in it its members in the order
 * of their coordinates. Rows are as long as the longest; -1 is nobody. */
struct tc_nodes {
  int n, most;                    /* nodes, members of the largest */
  int32_t *size;                  /* [n] members; owned, as all below */
  int32_t *at;                    /* [n][most] coordinate */
  int32_t *row, *column;          /* [members] */
};

/* Local. node[size]: the node of each coordinate, any numbers. NULL if it matters to no algorithm: all are on one node, or
 * each on its own. */
struct tc_nodes *tc_nodes_new(const int32_t *node, int size);
/* Local. The same of `n` nodes with `each` members in the order of coordinates. */
struct tc_nodes *tc_nodes_even(int n, int each);
void tc_nodes_free(struct tc_nodes *x);

/* A group as one of its members sees it. Borrows. */
struct tc_members {
  int size, coord;
  const struct tc_nodes *nodes;   /* NULL: one node, or one member on each */
  bool partial;                   /* sums may be made of partial sums (run.sums = nodes), else in the order of coordinates */
};

static inline struct tc_members tc_members_of(int size, int coord)
{
  return (struct tc_members){ .size = size, .coord = coord };
}

#endif
