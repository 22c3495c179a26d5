/* impl.h - what infer.c (which placement) and place.c (which reshards lead there) share. */
#ifndef TC_PASSES_IMPL_H
#define TC_PASSES_IMPL_H

#include "src/passes/passes.h"
#include "src/passes/reshard.h"

/* Where each node is in the order, [n_nodes]; owned by the caller. */
int32_t *tc_order_positions(const struct tc_graph *g);

/* What a node does on an axis: splits one subscript of its rule (or rows), is at one coordinate,
 * or is done in full at each coordinate (TC_R). */
struct choice { uint8_t kind; char sub; int32_t at; };

/* An accumulator while its contributions are added up. Those that are made as it is placed are added
 * to it where they are made; others are summed in a partial sum, as long as they are made alike, which
 * is moved and added. */
struct sum {
  int32_t version;               /* the accumulator so far: itself (state), or its last version */
  int32_t last;                  /* the tensor that later nodes read as the complete sum */
  int32_t partial;               /* the open partial sum; -1: none */
  int32_t next;                  /* the tensor that becomes the accumulator's next version */
  int32_t left, in_mb;           /* contributions to come; of them in every micro-batch */
};

/* A reshard of `from` that later readers share: those of the same phase and unit. */
struct made { int32_t from, to, phase, unit; uint8_t space; struct tc_layout lay; };

struct sctx {
  struct tc_graph *g;
  const struct tc_mesh *m;
  struct tc_err *err;
  bool regather;                 /* what the backward pass needs gathered is gathered again */
  int32_t *now;                  /* tensor -> what stands for it after reshards */
  int32_t *next_version;         /* tensor -> the one that overwrites it; -1 */
  struct sum *sum;               /* of accumulators, by their tensor; .version = -1: not an accumulator */
  struct choice (*choice)[TC_AXES];              /* node -> what it does; of nodes before the pass */
  int32_t n_old;                 /* tensors before the pass */
  struct made *made; int n_made, cap_made;
};

static inline bool tc_is_acc(const struct tc_node *n, int k) { return n->acc >> k & 1; }

/* The tensor whose layout an output must have: itself if annotated, or the state it overwrites;
 * NULL: none. */
const struct tc_tensor *tc_place_required(const struct tc_graph *g, int32_t t);

/* Finds the accumulators and how many contributions each gets; before the first node. */
void tc_place_find_sums(struct sctx *s, const int32_t *order, int32_t n_order);

/* TC_ELAYOUT unless tensor t of node n is split into even blocks; the sentence says what would fit. */
int tc_place_even(const struct sctx *s, const struct tc_node *n, int32_t t);

/* Reshards input i of a node to the layout that the node needs. */
int tc_place_input(struct sctx *s, int32_t node, int i, const struct tc_layout *need);

/* A node that works in place overwrites its input as it was resharded. before[]: as below. */
void tc_place_in_place(struct sctx *s, int32_t node, const int32_t *before);

/* Takes output k, which the node makes as `made`, to where it belongs. before[]: the node's inputs
 * as they were before reshards. */
int tc_place_output(struct sctx *s, int32_t node, int k, const struct tc_layout *made,
                    const int32_t *before);

#endif
