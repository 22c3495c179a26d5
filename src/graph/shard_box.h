/* shard_box.h - the boxes of a global tensor that a rank stores and writes. Local and pure. */
#ifndef TC_SHARD_BOX_H
#define TC_SHARD_BOX_H

#include "src/graph/graph.h"

/* The boxes of a saved tensor that a rank writes, such that all ranks together write each element once:
 * replicas divide a box by rows of dimension 0. Returns the number of boxes. */
enum { TC_BOXES = 8 };
struct tc_box { int64_t start[TC_DIMS], count[TC_DIMS]; };
int tc_owned_boxes(const struct tc_tensor *t, const struct tc_mesh *m, int rank,
                   struct tc_box box[TC_BOXES]);
/* The boxes of a tensor that a rank stores, without padding, in storage order. */
int tc_stored_boxes(const struct tc_tensor *t, const struct tc_mesh *m, int rank,
                    struct tc_box box[TC_BOXES]);

#endif
