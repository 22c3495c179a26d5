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

struct tc_selection;

/* A group as one of its members sees it. */
struct tc_members {
  int size, coord;
  struct tc_nodes *nodes;         /* owned; NULL: all are on one node, or each on its own */
  bool spread;                    /* they are on several nodes */
  bool partial;                   /* sums may be made of partial sums (run.sums = nodes), else in the order of coordinates */
  const struct tc_selection *selection;      /* of algorithms (selection.h); borrowed; NULL: the compiled table */
};

/* Local. All on one node; sums in the order of coordinates. */
struct tc_members tc_members_of(int size, int coord);
/* Local. node[size]: the node of each coordinate, any numbers from 0 on; NULL: all are on one. To be freed with
 * tc_members_done, which may be called twice. */
struct tc_members tc_members_on(const int32_t *node, int size, int coord, bool partial);
/* Local. The same on nodes with `each` members in the order of coordinates. */
struct tc_members tc_members_even(int size, int each, int coord, bool partial);
void tc_members_done(struct tc_members *m);

#endif
