/* mesh.h - the mesh laid over the cluster: axes and sets of them (axis.def), coordinates, groups, and which groups
 * leave their node. Pure: a function of the sizes and of the rank -> node map, no MPI, no clock.
 *
 * A set of axes is a bit mask, bit a for axis a. A group of a set is the ranks whose coordinates differ on these axes only,
 * in the order of their coordinates, the last axis first. A group of a set whose automatic size is a node's (tp) stays
 * inside a node for any order of the ranks, since each node's ranks are listed together before coordinates are assigned. */
#ifndef TC_MESH_H
#define TC_MESH_H

#include "src/base/base.h"
#include "src/coll/members.h"
#include "src/config/choices.h"

#define AXIS(id, name, role) TC_##id,
enum tc_axis {
#include "src/graph/axis.def"
  TC_AXES
};
#define SET(id, name, axes, if_auto, within, shown) TC_SET_##id,
enum tc_set {
#include "src/graph/axis.def"
  TC_SETS
};
#define SET(id, name, axes, if_auto, within, shown) TC_ON_##id = axes,
enum tc_on {                                       /* their axes */
#include "src/graph/axis.def"
  TC_ON_MB = 1u << TC_MB
};
enum { TC_FIRST_AXIS = TC_MB + 1 };                /* of those with groups: the ones after it have them, too */
enum tc_axis_role { TC_ROLE_TIME, TC_ROLE_STAGE, TC_ROLE_BATCH, TC_ROLE_TOKENS, TC_ROLE_MODEL };
extern const uint8_t tc_axis_role[TC_AXES];        /* enum tc_axis_role */
extern const char *const tc_axis_name[TC_AXES];
extern const char *const tc_set_name[TC_SETS];
extern const uint8_t tc_set_axes[TC_SETS];
/* The axes of this role. */
uint8_t tc_axes_of(enum tc_axis_role role);
/* The axes of the set of this name, or of several sets, "dp+cp"; 0: no such name. */
uint8_t tc_axes_named(const char *text);
enum { TC_AXES_TEXT = 48 };
/* The names of sets that have these axes between them, joined by +. Returns buf. */
char *tc_axes_text(char buf[TC_AXES_TEXT], unsigned axes);

/* What a set is in a mesh: its axes of more than one rank, the ranks of a group, and whether these axes are called by this
 * set: it is always shown, or has axes, which no set above it has, too. */
struct tc_group { uint8_t axes; bool named; int32_t size; };

struct tc_mesh {
  int32_t world;                  /* ranks: the product of the sizes but for TC_MB's */
  int32_t size[TC_AXES];          /* size[TC_MB]: micro-batches per step */
  int32_t stride[TC_AXES];        /* distance in `at` between neighbours on an axis */
  struct tc_group group[TC_SETS];
  int32_t n_nodes;
  enum tc_order order;            /* not TC_ORDER_AUTO */
  int32_t *node;                  /* [world] node of each rank; owned */
  int32_t *coord;                 /* [world][TC_AXES]; owned; coord[.][TC_MB] = 0 */
  bool partial_sums;              /* collectives may add sums of nodes (run.sums); false unless it is set */
  struct tc_selection *selection; /* of the collectives' algorithms (run.collectives); owned; NULL: the compiled one */
  int32_t *at;                    /* [world] ranks, node by node; owned. A rank's index in it
                                   * is the sum of its coordinates times the strides */
};

struct tc_mesh_want {
  int32_t size[TC_SETS];          /* 0: auto, as axis.def says; only of sets with such an option */
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
/* Local. The number of ranks in a group of the set. */
int32_t tc_mesh_size(const struct tc_mesh *m, unsigned axes);
/* Local. The index of these coordinates in a group of the set: what a rank at them has. */
int32_t tc_axes_index(const struct tc_mesh *m, const int32_t coord[TC_AXES], unsigned axes);
/* Local. The index of `rank` in its group. */
int32_t tc_mesh_index(const struct tc_mesh *m, int rank, unsigned axes);
/* Local. The rank of this index in the group of `rank`; all of them, into ranks[tc_mesh_size]. */
int32_t tc_mesh_member(const struct tc_mesh *m, int rank, unsigned axes, int32_t index);
void tc_mesh_group(const struct tc_mesh *m, int rank, unsigned axes, int32_t *ranks);
/* Local. The number of nodes that the group of `rank` spans. */
int tc_mesh_group_nodes(const struct tc_mesh *m, int rank, unsigned axes);
/* Local. The group as collectives see it, with the mesh's table of algorithms; to be freed with tc_members_done. */
struct tc_members tc_mesh_members(const struct tc_mesh *m, int rank, unsigned axes);
/* Local. The set by which these axes are called, of which those of one rank do not matter; -1: they have no name, or all are
 * of one rank. */
int tc_mesh_find(const struct tc_mesh *m, unsigned axes);
/* Local. The name of that group; of axes of one rank, that of the first set which has them. */
const char *tc_mesh_name(const struct tc_mesh *m, unsigned axes);

/* mesh_text.c. Local, pure. */
enum { TC_MESH_TEXT = 96, TC_MAX_WORLD = 1 << 24 };    /* more ranks than any cluster has */
/* The sizes that options give, without those that are the default. With "" and " ": "pp1 dp4 tp2", as checkpoints say it;
 * with " " and " x ": "pp 1 x dp 4 x tp 2". Returns buf. */
char *tc_mesh_text(char buf[TC_MESH_TEXT], const int32_t size[TC_AXES], const char *equals, const char *between);
/* The coordinates of a rank likewise. */
char *tc_mesh_place(char buf[TC_MESH_TEXT], const struct tc_mesh *m, int rank, const char *equals, const char *between);
/* Reads the sizes from a text of the first kind. A set that it does not name has its default: an older text cannot name a
 * newer axis. False: it is not such a text. */
bool tc_mesh_parse(const char *text, int32_t size[TC_AXES]);
/* "dp`between`tp": the sets that rows may place something on and that are always shown. Returns buf. */
char *tc_mesh_placing(char buf[TC_MESH_TEXT], const char *between);
/* {"pp": 1, "dp": 4, "tp": 2}, as tc_mesh_text and tc_mesh_place; owned by the caller. */
struct json_t *tc_mesh_json(const int32_t size[TC_AXES]);
struct json_t *tc_mesh_place_json(const struct tc_mesh *m, int rank);
/* The size of a set by those of the axes. */
int32_t tc_axes_size(const int32_t size[TC_AXES], unsigned axes);
/* The groups of a mesh of these sizes. */
void tc_mesh_groups(struct tc_group group[TC_SETS], const int32_t size[TC_AXES]);
/* Whether there is an option mesh.NAME of the set; and whether a mesh of these sizes names the set's in texts. */
bool tc_set_has_option(int set);
/* Whether the ranks are the product of its size and those of others like it. */
bool tc_set_is_factor(int set);
bool tc_set_is_shown(const int32_t size[TC_AXES], int set);
/* Whether every mesh names the set in texts. */
bool tc_set_is_always(int set);
/* Characters of a column with its name and ranks' indices. */
int tc_set_width(int set);
/* The sizes of axes from those of the sets with an option (0: the default). False: one does not divide that of which it is a part. */
bool tc_axes_from_sets(int32_t size[TC_AXES], const int32_t of_set[TC_SETS]);

/* Local. A synthetic cluster from text: "32 nodes x 8", "3:4,4,2" (nodes:ranks on each),
 * with order "block" or "cyclic". *node_of_rank is owned by the caller. Returns the number
 * of ranks, or a negative status. */
int tc_mesh_synthetic(const char *text, const char *order, int32_t **node_of_rank,
                      struct tc_err *err);

#endif
