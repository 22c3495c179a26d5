/* optim.h - the update, as nodes of the program. */
#ifndef TC_OPTIM_H
#define TC_OPTIM_H

#include "src/graph/graph.h"

/* How a parameter is updated: a row of update.def. */
enum tc_update {
#define UPDATE(id, ...) TC_UPDATE_##id,
#include "src/model/update.def"
  TC_UPDATES
};
struct tc_update_row {
  enum tc_optimizer optimizer;
  bool momentum;
  int op, states;
  bool smooth, matrices;
  float mup;
  const char *state[TC_UPDATE_STATES];
};
extern const struct tc_update_row tc_update_row[TC_UPDATES];

/* That of train.optimizer and train.momentum. */
enum tc_update tc_update_of(enum tc_optimizer o, double momentum);
/* How many states a parameter has. */
int tc_update_states(const struct tc_param *p);
/* By what muP divides a parameter's rate, and multiplies its weight decay; 1 without it. */
float tc_update_width(const struct tc_param *p);
/* Local. Gives all parameters this one. */
void tc_optim_choose(struct tc_graph *g, enum tc_update u);

/* Local. Appends the U nodes after tc_grad: squared norms of the final gradients, clip scale, the update of each parameter with
 * its states optim.NAME.* at the parameter's `update` placement, the cast into the compute type. products: the type in which an
 * update of whole matrices multiplies. */
void tc_optim_build(struct tc_graph *g, int products);

/* Local. Appends nodes that initialise every saved state tensor (weights from the seed, the updates'
 * states 0) and cast the weights: the init program, on a graph that holds the parameters. */
void tc_optim_init(struct tc_graph *g);

/* Local. Appends only the nodes that cast the weights from their masters: for use after a load. */
void tc_optim_refresh(struct tc_graph *g);

#endif
