/* recipe.h - what a run's steps are made of: the learning rate of each, and seeds.
 *
 * In: a configuration. Out: pure functions of a step's number, counted from 1, so that every rank and every resumed run
 * agrees without a message. A schedule and a shape are rows of schedule.def; rate.c computes them. All functions are Local. */
#ifndef TC_RECIPE_H
#define TC_RECIPE_H

#include "src/config/config.h"

/* The learning rate's numbers, in steps. The warm-up rises from 0 to lr in its last step; then the schedule's rate; the last
 * `cooldown` steps fall from there to min_lr. */
struct tc_rate {
  enum tc_lr_schedule schedule;
  enum tc_lr_shape warmup_shape, cooldown_shape;
  int64_t steps, warmup, cooldown;
  double lr, min_lr;
};

/* What is auto or a share comes out in steps. */
struct tc_rate tc_rate_of(const struct tc_config *c);
/* TC_EUSER: a cooldown that the schedule can't have, is no number of steps or does not fit. */
int tc_rate_check(const struct tc_config *c, struct tc_err *err);
/* The rate of a step; after the last one that of the last. */
double tc_rate_at(const struct tc_rate *r, int64_t step);
/* Why it is so: "warmup", "cooldown", or the schedule's name. */
const char *tc_rate_phase(const struct tc_rate *r, int64_t step);

/* ---- seeds ---- */

/* That of one thing: train.seed_THING, or train.seed. */
static inline uint64_t tc_seed_of(const struct tc_config *c, int64_t own)
{ return (uint64_t)(own == TC_AUTO ? c->train_seed : own); }

#endif
