/* shard.h - placements: inference over the program, transitions, and what a rank owns.
 *
 * The vocabulary of transitions is design table "from -> to"; each is a RESHARD node on one axis. */
#ifndef TC_SHARD_H
#define TC_SHARD_H

#include "src/graph/graph.h"
#include "src/graph/mesh.h"

/* Local. Fixes the layout of every tensor: wants flow up from annotations, then each node is
 * fixed by its index rule, and mismatches become RESHARD nodes. A program built by gpt, systems,
 * grad and optim goes in. regather: what the backward pass needs whole again is gathered again,
 * not kept. TC_ELAYOUT names the tensors and the op. */
int tc_shard(struct tc_graph *g, const struct tc_mesh *m, bool regather, struct tc_err *err);

/* Local. Appends RESHARD nodes that bring tensor t to layout `to`, one axis each: slices first,
 * then reductions and sends, then gathers, innermost first. Returns the last tensor (t itself
 * if nothing differs), or a negative status if no reshard makes it so. At most one axis of `to`
 * is S(*), which systems.c and infer.c see to. The nodes take unit
 * and mark of the current node `like` (an id, or -1). A rank's block of state that lies in one
 * piece is a view of it. */
int32_t tc_reshard(struct tc_graph *g, int32_t t, const struct tc_layout *to, int32_t like,
                struct tc_err *err);

/* Local. Appends a RESHARD that copies t into the other space; returns the copy. */
int32_t tc_reshard_space(struct tc_graph *g, int32_t t, int space, int32_t like);

#endif
