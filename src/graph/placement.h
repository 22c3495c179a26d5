/* placement.h - the placement of a tensor on each axis of the mesh, and the collective that leads from one placement
 * to another. */
#ifndef TC_PLACEMENT_H
#define TC_PLACEMENT_H

#include "src/coll/coll.h"
#include "src/graph/mesh.h"

/* Placements: one per axis. See docs/placements.md. */
enum tc_kind { TC_R, TC_S, TC_FLAT, TC_P, TC_AT };
struct tc_place { uint8_t kind, dim, op; int32_t at; };   /* op: enum tc_reduce for TC_P */
struct tc_layout { struct tc_place on[TC_AXES]; };
/* Whether axis a is split inside the blocks of axis b, where both split dimension d. */
bool tc_nests_inside(int a, int b, int d);
static inline bool tc_is_split(int kind) { return kind == TC_S || kind == TC_FLAT; }

struct tc_layout tc_layout_r(void);                           /* R on every axis */
bool tc_place_equal(const struct tc_place *a, const struct tc_place *b);
bool tc_layout_equal(const struct tc_layout *a, const struct tc_layout *b);
/* "mb:S(0) dp:P(sum)": axes of one rank are left out, those of one placement have the name of the largest set of them. */
char *tc_layout_text(char *buf, size_t size, const struct tc_layout *l, const struct tc_mesh *m);
/* The axes on which it is of this kind. */
uint8_t tc_layout_axes(const struct tc_layout *l, enum tc_kind kind);

/* The placement on a set of axes that is not empty, all of one kind. */
static inline const struct tc_place *tc_place_on(const struct tc_layout *l, unsigned axes)
{ return &l->on[__builtin_ctz(axes)]; }

/* The collective between two placements on a set of axes (local kinds too), or -1 if it needs two (through R). */
int tc_coll_between(const struct tc_place *from, const struct tc_place *to);

#endif
