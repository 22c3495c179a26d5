/* actions.h - what a rank does in a step, as one flat list of actions.
 *
 * Pure. An action runs a node for a micro-batch, issues a transfer, or waits for one. */
#ifndef TC_ACTIONS_H
#define TC_ACTIONS_H

#include "src/graph/graph.h"

enum tc_act { TC_RUN, TC_ISSUE, TC_WAIT };
struct tc_action {
  uint8_t kind;
  int32_t node;                  /* the node, or the RESHARD that is waited for */
  int32_t mb;
};

struct tc_actions_opts {
  int n_mb;                      /* micro-batches a step */
  int prefetch;                  /* units whose weights are gathered ahead of their use */
  bool overlap;                  /* wait for a transfer where it is needed, not at once */
  int pp, at;                    /* coordinates on pp, and this rank's; pp = 0: 1 */
  int virtual_stages;                    /* virtual stages a rank; 0: 1 */
  enum tc_schedule schedule;     /* of the pipeline (pipeline.h) */
};

struct tc_actions {
  struct tc_action *action; int32_t n, cap;
  int32_t n_mb;
  struct tc_actions_opts opts;
  int32_t *body; int32_t n_body; /* the nodes, each once, in the order they run first */
  int32_t *most;                 /* [n_nodes] in flight at once, of transfers */
};

/* Local. Without a pipeline F then B of each micro-batch in turn, U at the end; with one what the
 * schedule gives this coordinate. A node that runs once a step runs in the last
 * micro-batch if it depends on what micro-batches made, else in the first.
 * Transfers are issued as soon as their inputs exist, those of weights `prefetch` units ahead, also
 * into the next micro-batch; with `overlap` they are waited for before their first reader (or at
 * the end), else at once. Of transfers that take gradients out of scratch at most `prefetch` (one
 * at least) are in flight on the same axes; their sums into the accumulator run, and further reductions of them are issued,
 * when they are complete. Sends and receives between stages are issued in one order on all ranks (tc_pipeline_transfers), so
 * nothing deadlocks: a send as soon as what it sends is made, at most `prefetch` (one at least) of a tensor at once.
 * TC_ELAYOUT: the pipeline's schedule can't be. */
int tc_actions_new(struct tc_actions **out, const struct tc_graph *g,
                    const struct tc_actions_opts *o, struct tc_err *err);
/* Local. How many of a RESHARD are in flight at once, in different micro-batches; at least 1. */
int32_t tc_actions_most(const struct tc_actions *s, int32_t node);
void tc_actions_free(struct tc_actions *s);

/* Local. Walks the list: inputs that are here are made, in this micro-batch, before they are read;
 * nothing in flight is read; each transfer is waited for once. A check independent of the making. */
int tc_actions_check(const struct tc_actions *s, const struct tc_graph *g, struct tc_err *err);
/* The sentence of invariant i, which ends the error of a list that breaks it; NULL: there are fewer. For tests, which break
 * each. */
const char *tc_actions_invariant(int i);

#endif
