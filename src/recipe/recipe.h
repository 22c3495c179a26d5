/* recipe.h - what a run's steps are made of and when they end: the learning rate of each, an early end, seeds.
 *
 * In: a configuration. Out: pure functions of a step's number, counted from 1, so that every rank and every resumed run
 * agrees without a message. Schedules and shapes are rows of schedule.def; rate.c computes them; stop_if.c decides whether a
 * run ends early. All functions are Local. */
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

/* With warm-up and cooldown in steps, where they are auto or a share of train.steps. */
struct tc_rate tc_rate_of(const struct tc_config *c);
/* TC_EUSER: a cooldown that the schedule can't have, is no number of steps or does not fit. */
int tc_rate_check(const struct tc_config *c, struct tc_err *err);
/* The rate of a step; after the last one that of the last. */
double tc_rate_at(const struct tc_rate *r, int64_t step);
/* The phase that a step belongs to: "warmup", "cooldown", or the schedule's name. */
const char *tc_rate_phase(const struct tc_rate *r, int64_t step);

/* The step that the run ends with: train.steps or train.stop_at. */
int64_t tc_last_step(const struct tc_config *c);

/* ---- stop_if.c: train.stop_if, an end by validations ---- */

struct tc_stop_if {
  int64_t most;                  /* validations that may be no better; 0: any number */
  double below;                  /* the loss that is enough; 0: none */
  double best;                   /* the least validation loss; infinite: none yet */
  int64_t best_step, stale;      /* its step, and the validations since */
};
/* TC_EUSER: the option has none of the valid forms, or the run makes no validations before its last step. */
int tc_stop_if_read(struct tc_stop_if *s, const struct tc_config *c, struct tc_err *err);
/* Counts a validation. */
void tc_stop_if_validated(struct tc_stop_if *s, int64_t step, double loss);
/* Whether the run ends. */
bool tc_stop_if_met(const struct tc_stop_if *s);
/* The part of a checkpoint's note on the training loop that is about it, which comes last; owned by the caller. _parse takes
 * the whole note, "" for none. */
char *tc_stop_if_text(const struct tc_stop_if *s);
void tc_stop_if_parse(struct tc_stop_if *s, const char *loop);

/* ---- seeds ---- */

/* train.seed_weights, _data and _dropout become train.seed where they are auto. */
void tc_seeds_fill(struct tc_config *c);

#endif
