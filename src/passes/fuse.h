/* fuse.h - passes after shard that join nodes or cut them. */
#ifndef TC_FUSE_H
#define TC_FUSE_H

#include "src/graph/graph.h"

/* Local. Biases into the products before them; the residual's gradient into the layer norm
 * backward that adds to it. w_apart: gradients of weights are made later than those of inputs, so
 * what they read can't be overwritten. */
void tc_fuse(struct tc_graph *g, bool w_apart);

/* Local. Cuts the loss head (nodes labelled head) into K chunks of tokens, so that only
 * rows / K rows of the logits exist at once, and marks it B: the backward pass of a chunk
 * follows its forward pass. max_rows: most local rows of a chunk. A program without backward
 * pass is cut alike and stays F. */
void tc_fuse_head(struct tc_graph *g, const struct tc_mesh *m, int64_t max_rows);

/* A program has nodes for each chunk: those of a batch that needs more of them grow instead. */
enum { TC_HEAD_CHUNKS = 16384 };
/* Local. The fewest rows of a chunk so that there aren't more chunks. */
int64_t tc_head_least_rows(const struct tc_graph *g, const struct tc_mesh *m);
/* Local. The rows for tc_fuse_head that keep a chunk's logits within `bytes`, where
 * TC_HEAD_CHUNKS allows it. */
int64_t tc_head_rows(const struct tc_graph *g, const struct tc_mesh *m, int64_t bytes);

/* Local. Joins the transitions of one unit, kind and axis that run once a step into one RESHARD with
 * many parts (a bucket), where all inputs exist and no output is needed yet. */
void tc_units(struct tc_graph *g);

/* Local. Where each node is in the order, [n_nodes]; owned by the caller. */
int32_t *tc_fuse_positions(const struct tc_graph *g);

#endif
