/* pipeline.h - pipeline schedules: which rank works on which micro-batch when, as pure functions; and
 * their simulation.
 *
 * In: a program with placements, and options. Out: a rank's list of actions, the groups of them that a device
 * may run as one, and an offset for every buffer. Files in reading order: pipeline.[ch], simulate.c and channels.c (the
 * ranks of a pipeline); actions.[ch] with actions_order.c, actions_hoist.c, actions_wait.c (a rank's list, in three
 * walks), actions_check.c; fusion.[ch] with fusion.def, views.c (groups); arena.[ch] with arena_place.c, arena_check.c
 * (memory); impl.h.
 *
 * p ranks hold v virtual stages each: p * v stages in all, each with a forward (F) and a backward (B) per micro-batch.
 * Zero-bubble schedules compute the gradients of weights (W) separately; in all others B is B and W.
 * A schedule is one list of items per rank, which the rank works through in that order. */
#ifndef TC_PIPELINE_H
#define TC_PIPELINE_H

#include "src/base/base.h"
#include "src/config/choices.h"

enum tc_work { TC_WORK_F, TC_WORK_B, TC_WORK_W, TC_WORKS };
struct tc_item {
  uint8_t work;
  int32_t virtual_stage, mb;
};

struct tc_pipeline {
  const char *name;              /* static: the word of its enum tc_schedule */
  int32_t p, v, m;               /* ranks; virtual stages per rank; micro-batches per step */
  bool split;                    /* W is separate from B */
  struct tc_item **item;         /* [p][n_items[rank]] in the order they run; one block, item[0] */
  int32_t *n_items;              /* [p] */
};

/* Local. Whether the schedule has W separate from B. */
bool tc_pipeline_splits(enum tc_schedule kind);

/* Local. *out is owned by the caller. The kinds (parallel.schedule) are
 *   naive        one micro-batch after the other through all stages and back;
 *   gpipe        all forwards, then all backwards;
 *   1f1b         as few forwards ahead as fill the pipeline, then one forward, one backward;
 *   interleaved  the same with v >= 2 virtual stages per rank; p must divide m;
 *   zb           1f1b with W separate and delayed, in the peak memory of 1f1b's first rank.
 * Every virtual stage takes its micro-batches in ascending order in each kind of work, so those in flight in a
 * virtual stage are consecutive: micro-batch mb may use slot mb % (tc_pipeline_peak of the virtual stage).
 * TC_ELAYOUT: p, v, m impossible, with what would fit. */
int tc_pipeline_new(struct tc_pipeline **out, enum tc_schedule kind, int p, int v, int m,
                    struct tc_err *err);
void tc_pipeline_free(struct tc_pipeline *s);

/* Local. The stage of a rank's virtual stage, in 0 .. p * v - 1, and the rank of a stage. */
static inline int32_t tc_pipeline_stage(const struct tc_pipeline *s, int32_t rank, int32_t virtual_stage)
{
  return virtual_stage * s->p + rank;
}
static inline int32_t tc_pipeline_rank(const struct tc_pipeline *s, int32_t stage)
{
  return stage % s->p;
}

/* Local. Each rank has each item of its virtual stages exactly once, F before B before W. TC_ELAYOUT with
 * rank and item if not. Says nothing of other ranks: tc_pipeline_simulate does. */
int tc_pipeline_check(const struct tc_pipeline *s, struct tc_err *err);

/* Local. The most micro-batches of a rank's virtual stage (-1: of all its virtual stages together) whose `from` has
 * run and whose `to` has not ended, at any time: slots for what goes from F to B, F to W, B to W. */
int32_t tc_pipeline_peak(const struct tc_pipeline *s, int32_t rank, int32_t virtual_stage, int from,
                         int to);

/* Any unit of time. */
struct tc_pipeline_cost {
  double f, b, w;                /* b without w; where W is not separate, B takes b + w */
  double send;                   /* of what F or B makes, to another rank */
};

/* A tensor sent from a stage to the next, on another rank. */
struct tc_transfer {
  uint8_t work;                  /* F: activations; B: their gradients */
  int32_t stage_from, stage_to, mb;
  int32_t from, to;              /* ranks */
  double time;                   /* when it is made, in simulation */
};
struct tc_transfers {
  int32_t p, n;
  struct tc_transfer *t;         /* [n], by time; ties by work, stage */
  int32_t **queue;               /* [p][n_queue[rank]]: a rank's own, in the order it issues them */
  int32_t *n_queue;              /* [p]; the queues are one block, queue[0] */
};

struct tc_simulation {
  int32_t p, v;
  double makespan;
  double bubble;                 /* the part of the ranks' time that is idle: 1 - mean busy / makespan */
  double *busy;                  /* [p] */
  double *free_at;               /* [p] when the rank has ended */
  double **start, **end;         /* [p][n_items[rank]]; one block each */
  int32_t **peak;                /* [p][v]: tc_pipeline_peak from F to the last work, B or W */
  int32_t *peak_rank;            /* [p]: the same of all virtual stages together */
};

/* Local. Checks s, then runs its simulation: each simulated rank runs its items in order; an item starts when its rank
 * is free and its inputs are there: for F the F of the stage before; for B its own F and the B of the stage after; for
 * W its own B. cost[n_cost] is borrowed, n_cost is 1 (for all stages) or p * v. If t is NULL, transfers don't wait for
 * each other. Else each rank has one serial queue and no buffers: a transfer runs when it is made and is at the head of
 * both ranks' queues. *out is owned by the caller. Memory is linear in the items; so is time (peaks: a pass per virtual
 * stage). TC_ELAYOUT: not as tc_pipeline_check requires it, or a deadlock (names rank, item, and what it waits for).
 * TC_EUSER: costs that are no durations. */
int tc_pipeline_simulate(struct tc_simulation **out, const struct tc_pipeline *s,
                         const struct tc_pipeline_cost *cost, int32_t n_cost,
                         const struct tc_transfers *t, struct tc_err *err);
void tc_simulation_free(struct tc_simulation *sim);

/* Local. *out (owned by the caller) is all transfers in the order in which they are made where
 * costs are as given (cost NULL: F, B and W take 1 each, send nothing) and transfers don't wait for
 * each other; with each rank's queue in that order. f, b and w must be above 0.
 * Whatever the costs really are, ranks that issue in this order never deadlock, even without
 * buffers: simulate.c has the proof, and the simulation is run once more with the transfers.
 * TC_ELAYOUT, TC_EUSER: as tc_pipeline_simulate. */
int tc_pipeline_transfers(struct tc_transfers **out, const struct tc_pipeline *s,
                          const struct tc_pipeline_cost *cost, int32_t n_cost, struct tc_err *err);
void tc_transfers_free(struct tc_transfers *t);

/* The work of a stage, in more detail. */
struct tc_stage_cost {
  double f, b, w;                /* as above */
  double sent[2];                /* to send what F, B makes to another rank */
  double tail[2];                /* of F, B: what is left of them when that is made */
  /* Transfers of this rank alone after the last micro-batch's last work, one after the other: they begin when this part of it is
   * done, last so long, and take that part of what the rank computes meanwhile. Nothing waits for them. */
  double from, beside, slows;
};
/* What transfers that go on for so many seconds beside it take from work: the part `slows` of what is done meanwhile. work may be
 * below 0, where a node has what a fused call saves. */
static inline double tc_lost_s(double work, double beside, double slows)
{
  return beside > 0 && slows > 0 ? TC_MIN(slows * beside, work * slows / (1 - slows)) : 0;
}
/* How ranks issue transfers. */
struct tc_channels {
  int32_t ahead;                 /* parallel.prefetch: sends of one virtual stage under way, at least 1; receives ahead, less 1;
                                  * -1: none is issued before its item */
  bool two_ways;                 /* transfers to lower ranks do not wait for the others (nccl.c) */
};
/* channels.c. Local. The same simulation as tc_pipeline_simulate's, but ranks issue the transfers as their lists of actions do
 * (actions.h), and a transfer runs when both have issued it. cost[p * v]; t: of this schedule. *out is owned by the caller.
 * TC_ELAYOUT: a deadlock. */
int tc_pipeline_play(struct tc_simulation **out, const struct tc_pipeline *s, const struct tc_stage_cost *cost,
                     const struct tc_transfers *t, const struct tc_channels *channels, struct tc_err *err);

#endif
