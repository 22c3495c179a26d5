/* impl.h - shared by infer.c, which chooses placements, accumulate.c, which adds gradients up, and insert_reshards.c, which
 * makes the reshards. */
#ifndef TC_PASSES_IMPL_H
#define TC_PASSES_IMPL_H

#include "src/passes/passes.h"
#include "src/passes/reshard.h"

/* The position of each node in the order, [n_nodes]; owned by the caller. */
int32_t *tc_order_positions(const struct tc_graph *g);

/* The positions at which each tensor is read, ascending: at[first[t]] to at[first[t + 1] - 1]. Both arrays are
 * owned by the caller. */
struct readers { int32_t *first, *at; };
struct readers tc_order_readers(const struct tc_graph *g);

/* The placement of a node's work on an axis: it splits one subscript of its rule (or is on a flat shard), runs at one
 * coordinate, or runs in full at each coordinate (TC_R). */
struct choice { uint8_t kind; char sub; int32_t at; };

/* An accumulator while its contributions are added (accumulate.c). */
struct sum {
  int32_t version;               /* the accumulator so far: itself (state), or its last version */
  int32_t last;                  /* the tensor that later nodes read as the complete sum */
  int32_t open;                  /* the open sum, of contributions with another placement; -1: none */
  int32_t next;                  /* the tensor that becomes the accumulator's next version when that is closed */
  int32_t left, in_mb;           /* contributions still to be made; those of them made in every micro-batch */
};

/* An entry of the reshard cache: a reshard of `from` that later readers in the same phase and unit share. */
struct cached { int32_t from, to, phase, unit; uint8_t space; struct tc_layout lay; };

struct sctx {
  struct tc_graph *g;
  const struct tc_mesh *m;
  struct tc_err *err;
  bool regather;                 /* gathered activations are not stored: the backward pass gathers them again */
  int32_t *now;                  /* tensor -> the tensor that replaces it after reshards */
  int32_t *next_version;         /* tensor -> the one that overwrites it; -1 */
  bool *read;                    /* tensor -> a node reads it, or it is a result; for tensors that existed before the pass */
  struct sum *sum;               /* by the accumulator's tensor; .version = -1: not an accumulator */
  struct choice (*choice)[TC_AXES];              /* node -> its choice; for nodes that existed before the pass */
  int32_t n_old;                 /* number of tensors before the pass */
  struct cached *cached; int n_cached, cap_cached;
};

static inline bool tc_is_acc(const struct tc_node *n, int k) { return n->acc >> k & 1; }

/* The tensor whose layout an output must have: itself if annotated, or the state that it overwrites;
 * NULL: no layout is required. */
const struct tc_tensor *tc_place_required(const struct tc_graph *g, int32_t t);

/* TC_ELAYOUT unless tensor t of node n is split into even blocks; the error suggests a size that fits. */
int tc_place_even(const struct sctx *s, const struct tc_node *n, int32_t t);

/* Reshards input i of a node to the layout that the node needs. */
int tc_place_input(struct sctx *s, int32_t node, int i, const struct tc_layout *need);

/* An in-place node overwrites its resharded input. before[]: as below. */
void tc_place_in_place(struct sctx *s, int32_t node, const int32_t *before);

/* Gives output k, which the node makes with the layout and in the space that it has now, its placement: that of the
 * tensor that it overwrites, or what is asked for, its own before; a sum is completed. before[]: the node's inputs
 * before they were resharded. */
int tc_place_output(struct sctx *s, int32_t node, int k, const struct tc_layout *asked, const int32_t *before);

/* Reshards t to a layout in a space, by nodes like `like` of this role. Returns the last tensor, or a negative status. */
int32_t tc_place_move(struct sctx *s, int32_t t, const struct tc_layout *to, int space, int32_t like, int role);

/* The node makes a new tensor in place of its output k. Returns the new one; no node makes the old one then. */
int32_t tc_place_replace(struct sctx *s, int32_t node, int k);

/* The node that makes `last` makes v instead, with that layout. */
void tc_place_make_instead(struct tc_graph *g, int32_t last, int32_t v);

/* Completes t, which the node has made: axes on which it is partial get the placement that readers of read_as prefer, else
 * R. They read the result. */
int tc_place_resolve(struct sctx *s, int32_t node, int32_t t, int32_t read_as);

/* accumulate.c. Finds the accumulators and how many contributions each gets; before the first node. */
void tc_sums_find(struct sctx *s, const int32_t *order, int32_t n_order);
/* The sum to which output k of a node contributes; NULL: none. */
struct sum *tc_sum_of(struct sctx *s, int32_t node, int k);
/* Adds output k, which the node makes with the layout that it has now. */
int tc_sum_add(struct sctx *s, int32_t node, int k, struct sum *x);

#endif
