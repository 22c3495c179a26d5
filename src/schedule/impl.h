/* impl.h - what files of this folder share: the list of actions as it is built (actions.c, actions_order.c), tensors
 * within one storage (views.c), and live ranges with their places (arena.c, arena_place.c).
 *
 * Local and pure. */
#ifndef TC_SCHEDULE_IMPL_H
#define TC_SCHEDULE_IMPL_H

#include "src/schedule/actions.h"
#include "src/schedule/arena.h"
#include "src/schedule/pipeline.h"

/* ---- the list of actions --------------------------------------------------------------- */

static inline bool tc_is_stage_send(const struct tc_node *n)
{
  return n->op == TC_OP_RESHARD && n->coll == TC_SEND && n->axis == TC_PP;
}

/* Between stages in every micro-batch; the others are of a tied weight, once a step. */
static inline bool tc_sends_each_mb(const struct tc_node *n)
{
  return tc_is_stage_send(n) && !n->once_a_step;
}

/* A node in a micro-batch. item: of the pipeline's schedule; -2: before all of them, -1: after them. */
struct task { int32_t node, mb, item; };

/* A send between stages in every micro-batch, and its place in the global order of transfers. */
struct stage_send { int32_t node, from, to; uint8_t work; };

struct builder {
  const struct tc_graph *g;
  struct tc_actions *s;          /* what is built */
  struct tc_actions_opts o;
  bool backward;                 /* the program has a backward pass */
  /* Of nodes. */
  bool *feeds;                   /* a local reshard of a weight, whose result is transferred */
  bool *after_mbs;               /* runs once a step and depends on what micro-batches made */
  bool *tied;                    /* ... on the gradient of a tied weight of another stage */
  int32_t *times_in_flight;      /* how many of a transfer are in flight */
  /* The pipeline. */
  const struct tc_pipeline *pipeline;            /* NULL: none */
  const struct tc_transfers *cross;
  struct stage_send *stage_send; int32_t n_stage_sends, cap_stage_sends;
  int32_t head;                  /* of this rank's queue of transfers: the next to issue */
  int32_t *made;                 /* [stage][work]: the last micro-batch made here; -1 */
  int32_t *of_kind, *kind_at;    /* nodes by kind of item; [kind]: the first of each in of_kind */
  struct task *task; int32_t n_tasks, cap_tasks; /* in the order of the program and of the items */
  /* All-gathers of weights. */
  int32_t *gather, n_gather;     /* their tasks, in groups of a unit's */
  int32_t *free_at;              /* task after which the result of each may be overwritten; parallel */
  int32_t *group, n_groups;      /* first index in gather[] of each group */
  int32_t prefetched, reached;   /* groups issued; groups whose place in the order was reached */
  /* Transfers. */
  struct task *in_flight; int32_t n_in_flight, cap_in_flight;      /* in the order they were issued */
  int32_t *busy;                 /* [root]: transfers in flight that touch it, and deferred sums */
  struct task *deferred; int32_t n_deferred, cap_deferred;         /* sums of transfers in flight */
};

/* Makes the tasks, their groups of gathers, and what is known of each node (feeds, after_mbs, tied). */
void tc_tasks_make(struct builder *c);
/* An all-gather of a weight, or a local reshard whose result such an all-gather reads: they are issued
 * for a unit at a time, ahead of their use. */
bool tc_is_gather(const struct builder *c, const struct tc_node *n);

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
