/* shard_impl.h - what shard.c (which layout) and shard_place.c (how it gets there) share. */
#ifndef TC_SHARD_IMPL_H
#define TC_SHARD_IMPL_H

#include "src/shard.h"

/* A transition of `from` that later readers share: those of the same phase and unit. */
struct made { int32_t from, to, phase, unit; uint8_t space; struct tc_layout lay; };

struct sctx {
  struct tc_graph *g;
  const struct tc_mesh *m;
  struct tc_err *err;
  bool regather;                 /* what the backward pass needs whole is gathered again */
  int32_t *now;                  /* tensor -> what stands for it after transitions */
  int32_t *heir;                 /* tensor -> the one that overwrites it; -1 */
  int32_t *tail;                 /* parameter -> its gradient so far in a micro-batch, made apart */
  int32_t n_old;                 /* tensors before the pass */
  struct made *made; int n_made, cap_made;
};

static inline bool tc_is_acc(const struct tc_node *n, int k) { return n->acc >> k & 1; }

/* The tensor whose layout an output must have: itself if annotated, or the state it overwrites;
 * NULL: none. */
const struct tc_tensor *tc_shard_pinned(const struct tc_graph *g, int32_t t);

/* Brings input i of a node to the layout that the node needs. */
int tc_shard_input(struct sctx *s, int32_t node, int i, const struct tc_layout *need);

/* Takes output k, which the node makes as `made`, to where it belongs. before[]: the node's inputs
 * as they were before transitions. */
int tc_shard_output(struct sctx *s, int32_t node, int k, const struct tc_layout *made,
                    const int32_t *before);

#endif
