/* impl.h - what files of this folder share: the list of actions as it is built (actions.c), tensors within one
 * storage (views.c), and live ranges with their places (arena.c, arena_place.c).
 *
 * Local and pure. */
#ifndef TC_SCHEDULE_IMPL_H
#define TC_SCHEDULE_IMPL_H

#include "src/schedule/actions.h"
#include "src/schedule/arena.h"
#include "src/schedule/pipeline.h"

/* ---- the simulation ---------------------------------------------------------------------- */

/* simulate.c: a simulation in which nothing has run; and makespan and bubble from what each rank has done. */
struct tc_simulation *tc_simulation_new(const struct tc_pipeline *s);      /* owned by the caller */
void tc_simulation_sum(struct tc_simulation *sim);

/* ---- the list of actions --------------------------------------------------------------- */

static inline bool tc_is_stage_send(const struct tc_node *n)
{
  return n->op == TC_OP_RESHARD && n->coll == TC_SEND && n->axes == TC_ON_PP;
}

/* Between stages in every micro-batch; the others are of a tied weight, once a step. */
static inline bool tc_sends_each_mb(const struct tc_node *n)
{
  return tc_is_stage_send(n) && !n->once_a_step;
}

/* Whether a node is in the list of this rank: it is of its stage, of all, or a transfer from or to it. */
static inline bool tc_is_here(const struct tc_graph *g, const struct tc_actions_opts *o, const struct tc_node *n)
{
  if (o->pp <= 1 || n->on_all_stages) return true;
  if (tc_is_stage_send(n)) return n->root == o->at || n->from_root == o->at;
  return g->unit[n->unit].at == o->at;
}

/* What a list is made of. */
struct step {
  const struct tc_graph *g;
  struct tc_actions_opts o;
  bool backward;                 /* the program has a backward pass */
  struct tc_pipeline *pipeline;  /* NULL: none */
  struct tc_transfers *cross;    /* between its stages */
};
/* Local. TC_ELAYOUT: the pipeline's schedule can't be. */
int tc_step_init(struct step *st, const struct tc_graph *g, const struct tc_actions_opts *o, struct tc_err *err);
void tc_step_done(struct step *st);

/* A node in a micro-batch. item: of the pipeline's schedule; -2: before all of them, -1: after them. */
struct task { int32_t node, mb, item; };
struct tasks { struct task *task; int32_t n, cap; };     /* task: owned by who has the struct */

/* The three walks, each from the list of the one before. actions_order.c: the nodes of this rank, by the items of the
 * schedule and in each item by the program's order; without what is sent between stages in every micro-batch. */
void tc_order(struct tasks *out, const struct step *st);
/* actions_hoist.c: adds those, and moves gathers of weights and transfers of activations ahead. TC_ELAYOUT: a transfer skips
 * a stage. */
int tc_hoist(struct tasks *out, const struct step *st, const struct tasks *in, struct tc_err *err);
/* actions_wait.c: issues transfers, waits for each as late as its results are needed, or as storage is. */
void tc_place_waits(struct tc_actions *out, const struct step *st, const struct tasks *in);

/* ---- tensors that share storage ----------------------------------------------------- */

/* One storage for all micro-batches, not one for each. */
static inline bool tc_made_once(const struct tc_graph *g, int32_t root)
{
  const int32_t maker = g->tensor[root].node;
  return maker < 0 || g->node[maker].once_a_step;
}

/* What a tensor that is no view and no version of another takes in its region. */
static inline int64_t tc_stored_bytes(const struct tc_graph *g, const struct tc_mesh *m,
                                      const int32_t coord[TC_AXES], int32_t t)
{
  return tc_round_up(tc_tensor_local_bytes(&g->tensor[t], m, coord), TC_ARENA_ALIGN);
}

/* views.c. Of each tensor, on the rank at `coord`: where it begins in the storage that it shares
 * (tc_tensor_root), and its length, in bytes; whether the rank has it, be it empty, not at(k) elsewhere. */
struct tc_views { int64_t *off, *bytes; bool *here; };
struct tc_views *tc_views_new(const struct tc_graph *g, const struct tc_mesh *m,
                              const int32_t coord[TC_AXES]);           /* owned by the caller */
void tc_views_free(struct tc_views *v);

/* ---- memory ---------------------------------------------------------------------------- */

/* A live range: positions in the list, first and last. */
struct tc_range { int32_t first, last; };
/* A tensor's live ranges in the micro-batches slot, slot + step, ... n = 0: no scratch of its own. */
struct tc_object {
  int32_t t, n, slot, step;
  struct tc_range *in;           /* [n], step apart; borrowed from ranges.all */
  int64_t bytes, off;
};

/* Objects with an offset, in the order of their offsets. */
struct tc_placed;
struct tc_placed *tc_placed_new(void);           /* owned by the caller */
void tc_placed_free(struct tc_placed *p);
/* The lowest offset at which l overlaps nothing that is placed and live at the same time. */
int64_t tc_placed_lowest(struct tc_placed *p, const struct tc_object *l);
/* Puts l where its `off` says; l is borrowed. */
void tc_placed_add(struct tc_placed *p, const struct tc_object *l);
/* How many objects, and nodes above them, all searches looked at. */
int64_t tc_placed_looked(const struct tc_placed *p);

#endif
