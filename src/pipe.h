/* pipe.h - schedules: one flat list of actions a step.
 *
 * Pure. An action runs a node for a micro-batch, issues a transfer, or waits for one. */
#ifndef TC_PIPE_H
#define TC_PIPE_H

#include "src/graph.h"

enum tc_act { TC_RUN, TC_ISSUE, TC_WAIT };
struct tc_action {
  uint8_t kind;
  int32_t node;                  /* the node, or the MOVE that is waited for */
  int32_t mb;
};

struct tc_schedule {
  struct tc_action *action; int32_t n, cap;
  int32_t n_mb;
  /* The order a step is laid out in for memory: each node once. */
  int32_t *body; int32_t n_body;
};

/* Local. Naive: F then B of each micro-batch in turn, U at the end. A node that runs once a step
 * runs in the last micro-batch if it depends on what micro-batches made, else in the first.
 * Transfers are issued as soon as their inputs exist; with `overlap` they are waited for before
 * their first reader (or at the end), else at once. */
void tc_schedule_new(struct tc_schedule **out, const struct tc_graph *g, int n_mb, bool overlap);
void tc_schedule_free(struct tc_schedule *s);

/* Local. Walks the list: inputs are made, in this micro-batch, before they are read; nothing in
 * flight is read; each transfer is waited for once. A check independent of the making. */
int tc_schedule_check(const struct tc_schedule *s, const struct tc_graph *g, struct tc_err *err);

/* Local. True if the MOVE needs the network (its axis has more than one rank). */
bool tc_move_is_transfer(const struct tc_node *n, const struct tc_mesh *m);

#endif
