/* passes.h - the passes that rewrite a program, in the order in which src/program/program.c runs them.
 *
 * In: the forward pass, for one device and the whole batch (src/model/transformer.h). Out: the program of a
 * training step, or of another kind, with a placement for every tensor, and with RESHARD nodes where
 * placements change. src/model/optim.h appends the update after tc_grad.
 * Files in reading order: stages.c; systems.[ch] with annotate.c; offload.c; grad.c; infer.c, which chooses placements, with
 * insert_reshards.c and reshard.[ch], which make the RESHARD nodes, and accumulate.c, which adds up gradients (impl.h);
 * share_init.c; recompute.c; merge.c; loss_chunks.c; buckets.c. All are Local and pure. tests/unit/passes has a table of cases for
 * each. */
#ifndef TC_PASSES_H
#define TC_PASSES_H

#include "src/graph/graph.h"
#include "src/passes/systems.h"

/* 1. In: units of layers. Out: each unit's virtual stage, and its coordinate on pp (-1 without a
 * pipeline). Layers go to pp * virtual_stages virtual stages in order, balanced by the operations of products and
 * attention, the embedding's with the first, the loss head's with the last; or as given in `by_hand` ("auto",
 * or ranges of layers: "0-3,4-11"). TC_ELAYOUT: the error suggests stages that fit. */
int tc_stages(struct tc_graph *g, int pp, int virtual_stages, const char *by_hand, struct tc_err *err);

/* 2. Rows for parameters (train.rows): factors of rate, weight decay and initial deviation, updates, which are frozen; "" for none.
 * momentum: that of rows with an optimizer that may have one. TC_EUSER: what is no row, a pattern that matches no parameter, all
 * frozen, model.mup with an update that is not for it. */
int tc_param_rows(struct tc_graph *g, const char *rows, double momentum, struct tc_err *err);
/* ... In: parameters and batch without placements. Out: the four placements of each parameter by the system's rows;
 * tokens and targets are split in time, and by the rows. On an axis of one rank everything is R. reshard_after: TC_AFTER_AUTO: as the system says;
 * reduce_once: accumulators that the system splits are partial, and reduced once a step. */
int tc_system_apply(struct tc_graph *g, const struct tc_mesh *m, const struct tc_system *s,
                    enum tc_reshard_after reshard_after, bool reduce_once, struct tc_err *err);
/* ... then by rows up to pattern NULL, which replace the placements of the same tensor on the same axis by
 * earlier calls and the system. TC_EUSER: a pattern matches no tensor, or two rows of the list place
 * one tensor differently on one axis. */
int tc_annotate(struct tc_graph *g, const struct tc_mesh *m, const struct tc_annotation *a, struct tc_err *err);
/* ... a parameter's placements become those of its tensors. */
void tc_place_param(struct tc_graph *g, const struct tc_param *p);
/* ... then gives each update of whole matrices that rows would split to one rank. _work: how much that is (matrices.h). */
void tc_owners(struct tc_graph *g, const struct tc_mesh *m);
double tc_owner_work(const struct tc_graph *g, const struct tc_param *p);
/* ... then moves to host space what `offload` selects. TC_EUSER if that is nothing. */
int tc_offload(struct tc_graph *g, enum tc_offload offload, struct tc_err *err);

/* 3. In: the forward pass up to g->loss. Out: the backward pass after it; parameters get `acc`
 * tensors, of type grad_dtype. */
int tc_grad(struct tc_graph *g, int grad_dtype, struct tc_err *err);

/* 4. In: annotated parameters and tensors. Out: a layout for every tensor, and RESHARD nodes where a
 * node needs an input in another layout. Preferences propagate up from annotations, then each node is placed
 * by its index rule. regather: gathered activations are gathered again in the backward pass instead of
 * stored. TC_ELAYOUT names the tensors and the op. */
int tc_infer(struct tc_graph *g, const struct tc_mesh *m, bool regather, struct tc_err *err);
/* ... then, of the program of initial weights: random values that several ranks would compute alike are computed by the
 * first of them on each axis, and reach the others by broadcasts (run.init = broadcast). */
int tc_share_init(struct tc_graph *g, const struct tc_mesh *m, struct tc_err *err);

/* 5. In: a backward pass that reads the forward pass's tensors. Out: one that recomputes some of them,
 * with their reshards: none; attention and the MLP's activation; everything of a layer except its input. */
void tc_recompute(struct tc_graph *g, enum tc_recompute what);

/* 6. In: products followed by biases, gradients of a residual and of a layer norm. Out: one merged
 * node each. w_split: gradients of weights are computed later than those of inputs, so that their inputs
 * can't be overwritten. */
void tc_merge(struct tc_graph *g, bool w_split);

/* 7. In: the loss head (nodes labelled head) over all tokens of a micro-batch. Out: chunks of at most
 * max_rows local rows, so that only one chunk's logits exist at a time; marked B, since the backward pass of
 * a chunk follows its forward pass, and its losses are summed after the gradient of its logits. A program without
 * backward pass is cut equally and stays F. */
void tc_loss_chunks(struct tc_graph *g, const struct tc_mesh *m, int64_t max_rows);
/* The most chunks, since each has nodes of its own. A batch that would need more has larger chunks. */
enum { TC_LOSS_CHUNKS = 16384 };
/* The smallest number of rows per chunk that TC_LOSS_CHUNKS allows. */
int64_t tc_loss_chunk_least(const struct tc_graph *g, const struct tc_mesh *m);
/* The number of rows per chunk whose logits need at most `bytes`, if TC_LOSS_CHUNKS allows it. */
int64_t tc_loss_chunk_rows(const struct tc_graph *g, const struct tc_mesh *m, int64_t bytes);

/* 8. In: one RESHARD per tensor. Out: those of one unit, kind and axis that run once per
 * step merged into one with many parts (a bucket), where all inputs exist and no output is needed yet. */
void tc_buckets(struct tc_graph *g);

#endif
