/* passes.h - the passes that rewrite a program, in the order in which src/program/program.c runs them.
 *
 * In: the forward pass as for one device and the whole batch (src/model/transformer.h). Out: the program of a
 * training step, or of another kind, with a placement for every tensor, and with RESHARD nodes where
 * placements change. src/model/optim.h makes the update, after tc_grad.
 * Files in reading order: stages.c; systems.[ch] with annotate.c; offload.c; grad.c; infer.c, which
 * chooses placements, with place.c and reshard.[ch], which make the nodes that lead there (impl.h);
 * recompute.c; fuse_ops.c; loss_chunks.c; bucket.c. All are Local and pure. */
#ifndef TC_PASSES_H
#define TC_PASSES_H

#include "src/graph/graph.h"
#include "src/passes/systems.h"

/* 1. In: units of layers. Out: each unit's virtual stage, and its coordinate on pp (-1 without a
 * pipeline). Layers go to pp * virtual_stages stages in order, balanced by the operations of products and
 * attention, the embedding's with the first, the loss head's with the last; or as `by_hand` says ("auto",
 * or ranges of layers: "0-3,4-11"). TC_ELAYOUT says what would fit. */
int tc_stages(struct tc_graph *g, int pp, int virtual_stages, const char *by_hand, struct tc_err *err);

/* 2. In: parameters and batch without placements. Out: the four placements of each parameter by the
 * system's row; tokens and targets split in time, and on dp as the row says. */
int tc_system_apply(struct tc_graph *g, const struct tc_system *s, struct tc_err *err);
/* ... and by rows until pattern NULL, in place of where earlier calls and the system placed the same
 * tensor on the same axis. TC_EUSER: a pattern that names no tensor, or two rows of the list that place
 * one tensor differently on one axis. */
int tc_annotate(struct tc_graph *g, const struct tc_annotation *a, struct tc_err *err);
/* ... and in host space, what `offload` says. TC_EUSER if there is nothing to put there. */
int tc_offload(struct tc_graph *g, enum tc_offload offload, bool adamw, struct tc_err *err);

/* 3. In: the forward pass up to g->loss. Out: the backward pass behind it; parameters get `acc`
 * tensors, of type grad_dtype. */
int tc_grad(struct tc_graph *g, int grad_dtype, struct tc_err *err);

/* 4. In: annotated parameters and tensors. Out: a layout for every tensor, and RESHARD nodes where a
 * node needs an input elsewhere than it is. Preferences flow up from annotations, then each node is placed
 * by its index rule. regather: what the backward pass needs gathered is gathered again, not kept.
 * TC_ELAYOUT names the tensors and the op. */
int tc_infer(struct tc_graph *g, const struct tc_mesh *m, bool regather, struct tc_err *err);

/* 5. In: a backward pass that reads what the forward pass made. Out: one that reads what is made again,
 * reshards too: nothing; attention and GELU; everything of a layer but its input. */
void tc_recompute(struct tc_graph *g, enum tc_recompute what);

/* 6. In: products with biases after them, gradients of a residual beside a layer norm's. Out: one node
 * each. w_apart: gradients of weights are made later than those of inputs, so what they read can't be
 * overwritten. */
void tc_fuse_ops(struct tc_graph *g, bool w_apart);

/* 7. In: the loss head (nodes labelled head) over all tokens of a micro-batch. Out: chunks of at most
 * max_rows local rows, so that only a chunk's logits exist at once; marked B, since the backward pass of
 * a chunk follows its forward pass. A program without backward pass is cut alike and stays F. */
void tc_loss_chunks(struct tc_graph *g, const struct tc_mesh *m, int64_t max_rows);
/* A program has nodes for each chunk. Where a batch needs more chunks than this, they grow instead. */
enum { TC_LOSS_CHUNKS = 16384 };
/* The fewest rows of a chunk so that there aren't more chunks. */
int64_t tc_loss_chunk_least(const struct tc_graph *g, const struct tc_mesh *m);
/* The rows that keep a chunk's logits within `bytes`, where TC_LOSS_CHUNKS allows it. */
int64_t tc_loss_chunk_rows(const struct tc_graph *g, const struct tc_mesh *m, int64_t bytes);

/* 8. In: a RESHARD a tensor. Out: those of one unit, kind and axis that run once a step as one RESHARD
 * with many parts (a bucket), where all inputs exist and no output is needed yet. */
void tc_bucket(struct tc_graph *g);

#endif
