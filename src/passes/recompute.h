/* recompute.h - activations made again in the backward pass instead of kept.
 *
 * Chen et al., "Training deep nets with sublinear memory cost", 2016; selective: Korthikanti et
 * al., "Reducing activation recomputation in large transformer models", 2022. */
#ifndef TC_RECOMPUTE_H
#define TC_RECOMPUTE_H

#include "src/graph/graph.h"

/* Nothing; attention and GELU; everything of a layer but its input. */
enum tc_recompute { TC_RECOMPUTE_NONE, TC_RECOMPUTE_SELECTIVE, TC_RECOMPUTE_FULL };

/* Local. After tc_shard, so that transitions are made again too. */
void tc_recompute(struct tc_graph *g, int what);

#endif
