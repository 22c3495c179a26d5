/* optim.h - the update, as nodes of the program, and the learning rate's schedule. */
#ifndef TC_OPTIM_H
#define TC_OPTIM_H

#include "src/graph/graph.h"

/* Local. Appends the U nodes after tc_grad: squared norms of the final gradients, clip scale,
 * AdamW (Loshchilov and Hutter, 2019) or SGD, the cast into the compute type. adamw adds the
 * states optim.m.*, optim.v.* at the parameters' `update` placement. */
void tc_optim_build(struct tc_graph *g, bool adamw);

/* Local. Appends nodes that initialise every saved state tensor (weights from the seed, Adam's
 * moments 0) and cast the weights: the init program, on a graph that holds the parameters. */
void tc_optim_init(struct tc_graph *g, bool adamw);

/* Local. Only the nodes that make the weights again from their masters: after a load. */
void tc_optim_refresh(struct tc_graph *g);

/* Learning rate of a step (from 1): linear warm-up, then decay by `schedule` to min_lr at `steps`. */
double tc_lr(enum tc_lr_schedule schedule, int64_t step, int64_t steps, int64_t warmup, double lr,
             double min_lr);

#endif
