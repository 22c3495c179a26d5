/* mesh.h - the mesh laid over the cluster: axes (axis.def), coordinates, groups, and which groups
 * leave their node. Pure: a function of the sizes and of the rank -> node map, no MPI, no clock.
 *
 * A group of an axis whose automatic size is a node's (tp) stays inside a node for any order of the ranks, since each
 * node's ranks are listed together before coordinates are assigned. */
#ifndef TC_MESH_H
#define TC_MESH_H

#include "src/base/base.h"
#include "src/config/choices.h"

#define AXIS(id, name, role, if_auto) TC_##id,
enum tc_axis {
#include "src/graph/axis.def"
  TC_AXES
};
#undef AXIS
enum { TC_FIRST_AXIS = TC_MB + 1 };                /* of those with groups: the ones after it have them, too */
extern const char *const tc_axis_name[TC_AXES];
enum tc_axis_role { TC_ROLE_TIME, TC_ROLE_STAGE, TC_ROLE_BATCH, TC_ROLE_MODEL };
extern const uint8_t tc_axis_role[TC_AXES];        /* enum tc_axis_role */

struct tc_mesh {
  int32_t world;                  /* ranks: the product of the sizes but for TC_MB's */
  int32_t size[TC_AXES];          /* size[TC_MB]: micro-batches per step */
  int32_t stride[TC_AXES];        /* distance in `at` between neighbours on an axis */
  int32_t n_nodes;
  enum tc_order order;            /* not TC_ORDER_AUTO */
  int32_t *node;                  /* [world] node of each rank; owned */
  int32_t *coord;                 /* [world][TC_AXES]; owned; coord[.][TC_MB] = 0 */
  int32_t *at;                    /* [world] ranks, node by node; owned. A rank's index in it
                                   * is the sum of its coordinates times the strides */
};

struct tc_mesh_want {
  int32_t size[TC_AXES];          /* 0: auto, as axis.def says; that of TC_MB is not read */
  int32_t devices_per_node;       /* for an axis that has a node's; 0: the smallest number of ranks on a node */
  bool tp_across_nodes;
  enum tc_order order;            /* of the axes, from adjacent ranks to distant ones; not TC_ORDER_AUTO */
};

/* Local. *out is owned by the caller. node_of_rank[world] is copied. An impossible layout
 * fails with TC_ELAYOUT and an error that suggests one that fits: world is not the product of the sizes, tp that
 * leaves its node (or nodes whose rank counts tp does not divide). */
int tc_mesh_new(struct tc_mesh **out, int world, const int32_t *node_of_rank,
                const struct tc_mesh_want *want, struct tc_err *err);
void tc_mesh_free(struct tc_mesh *m);

/* A mesh of one rank. */
struct tc_mesh *tc_mesh_one(void);

/* The coordinate of `rank` on `axis`. */
static inline int32_t tc_mesh_coord(const struct tc_mesh *m, int rank, int axis)
{
  return m->coord[(size_t)rank * TC_AXES + (size_t)axis];
}
/* Local. The axis whose neighbours are i-th nearest in `at`, from 0 to TC_AXES - TC_FIRST_AXIS - 1. */
int tc_mesh_nearest(const struct tc_mesh *m, int i);
/* Local. The ranks whose coordinates differ from rank's only on `axis`, in coordinate order,
 * into ranks[size[axis]]. */
void tc_mesh_group(const struct tc_mesh *m, int rank, int axis, int32_t *ranks);
/* Local. The number of nodes that the group of `rank` on `axis` spans. */
int tc_mesh_group_nodes(const struct tc_mesh *m, int rank, int axis);

/* mesh_text.c. Local, pure. n: the sizes of the axes, or a rank's coordinates. */
enum { TC_MESH_TEXT = 96, TC_MAX_WORLD = 1 << 24 };    /* more ranks than any cluster has */
/* With "" and " ": "pp1 dp4 tp2", as checkpoints say it; with " " and " x ": "pp 1 x dp 4 x tp 2". Returns buf. */
char *tc_mesh_text(char buf[TC_MESH_TEXT], const int32_t n[TC_AXES], const char *equals, const char *between);
/* Reads the sizes from a text of the first kind. An axis that it does not name is 1: an older text cannot name a newer
 * axis. False: it is not such a text. */
bool tc_mesh_parse(const char *text, int32_t n[TC_AXES]);
/* "dp`between`tp": the axes that rows may place something on, those that split neither time nor layers. Returns buf. */
char *tc_mesh_placing(char buf[TC_MESH_TEXT], const char *between);
/* {"pp": 1, "dp": 4, "tp": 2}; owned by the caller. */
struct json_t *tc_mesh_json(const int32_t n[TC_AXES]);

/* Local. A synthetic cluster from text: "32 nodes x 8", "3:4,4,2" (nodes:ranks on each),
 * with order "block" or "cyclic". *node_of_rank is owned by the caller. Returns the number
 * of ranks, or a negative status. */
int tc_mesh_synthetic(const char *text, const char *order, int32_t **node_of_rank,
                      struct tc_err *err);

#endif
