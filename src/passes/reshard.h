/* reshard.h - from one placement to another, as RESHARD nodes: each is one collective on a set of axes. */
#ifndef TC_RESHARD_H
#define TC_RESHARD_H

#include "src/graph/graph.h"

/* Local. Appends RESHARD nodes that lead from the layout of tensor t to layout `to`, each one collective on a set of axes
 * that has a name: slices first, then reductions and sends, then gathers, innermost first. Returns the last tensor (t itself
 * if nothing differs), or a negative status if no collectives lead there. The axes of a flat shard have a name, which
 * systems.c and infer.c ensure. The nodes take unit and mark of the node
 * `like` (an id, or -1). A contiguous block of state is a view of it. */
int32_t tc_reshard(struct tc_graph *g, const struct tc_mesh *m, int32_t t, const struct tc_layout *to, int32_t like,
                   struct tc_err *err);

/* Local. Appends a RESHARD that copies t into the other space; returns the copy. */
int32_t tc_reshard_space(struct tc_graph *g, int32_t t, int space, int32_t like);

#endif
