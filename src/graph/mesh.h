/* mesh.h - the mesh pp x dp x tp laid over the cluster: axes, coordinates, groups, the node
 * boundary. Pure: a function of the sizes and of the rank -> node map, no MPI, no clock.
 *
 * tp is inside a node whatever the order of the ranks, since each node's ranks are taken
 * together before coordinates are given out. mb (micro-batches) is the axis in time: every
 * rank walks all its coordinates, so it has no groups. */
#ifndef TC_MESH_H
#define TC_MESH_H

#include "src/base/base.h"
#include "src/config/choices.h"

enum tc_axis { TC_MB, TC_PP, TC_DP, TC_TP, TC_AXES };
extern const char *const tc_axis_name[TC_AXES];   /* "mb", "pp", "dp", "tp" */

struct tc_mesh {
  int32_t world;                  /* ranks = pp * dp * tp */
  int32_t size[TC_AXES];          /* size[TC_MB]: micro-batches a step */
  int32_t stride[TC_AXES];        /* places in `at` between neighbours on an axis */
  int32_t n_nodes;
  enum tc_order order;            /* not TC_ORDER_AUTO */
  int32_t *node;                  /* [world] node of each rank; owned */
  int32_t *coord;                 /* [world][TC_AXES]; owned; coord[.][TC_MB] = 0 */
  int32_t *at;                    /* [world] ranks, node after node; owned. A rank's place in it
                                   * is the sum of its coordinates times the strides */
};

struct tc_mesh_want {
  int32_t pp, dp, tp;             /* 0: auto (tp: the node's devices; dp: what is left) */
  int32_t devices_per_node;       /* for tp = auto; 0: the smallest number of ranks on a node */
  bool tp_across_nodes;
  enum tc_order order;            /* of the axes, from adjacent ranks to distant ones; not TC_ORDER_AUTO */
};

/* Local. *out is owned by the caller. node_of_rank[world] is copied. A layout that can't be
 * fails with TC_ELAYOUT and a sentence that says what would fit: world != pp*dp*tp, tp that
 * leaves its node (or nodes whose rank counts tp does not divide). */
int tc_mesh_new(struct tc_mesh **out, int world, const int32_t *node_of_rank,
                const struct tc_mesh_want *want, struct tc_err *err);
void tc_mesh_free(struct tc_mesh *m);

/* One rank alone (pp = dp = tp = 1). */
struct tc_mesh *tc_mesh_one(void);

/* The coordinate of `rank` on `axis`. */
static inline int32_t tc_mesh_coord(const struct tc_mesh *m, int rank, int axis)
{
  return m->coord[(size_t)rank * TC_AXES + (size_t)axis];
}
/* Local. The ranks whose coordinates differ from rank's only on `axis`, in coordinate order,
 * into ranks[size[axis]]. */
void tc_mesh_group(const struct tc_mesh *m, int rank, int axis, int32_t *ranks);
/* Local. How many nodes the group of `rank` on `axis` touches. */
int tc_mesh_group_nodes(const struct tc_mesh *m, int rank, int axis);

/* Local. A synthetic cluster from text: "32 nodes x 8", "3:4,4,2" (nodes:ranks on each),
 * with order "block" or "cyclic". *node_of_rank is owned by the caller. Returns the number
 * of ranks, or a negative status. */
int tc_mesh_synthetic(const char *text, const char *order, int32_t **node_of_rank,
                      struct tc_err *err);

#endif
