/* rate.c - the learning rate of a step: warm-up, schedule, cooldown. Seeds. */
#include "src/recipe/recipe.h"

#include <math.h>

/* A schedule's properties; its rates are in scheduled(). */
static const struct { bool ends; double cooldown; } schedules[] = {
#define SCHEDULE(enumerator, ends, cooldown, rate) [enumerator] = { ends, cooldown },
#define SHAPE(...)
#include "src/recipe/schedule.def"
};

struct tc_rate tc_rate_of(const struct tc_config *c)
{
  const double steps = (double)c->train_steps, given = c->train_cooldown;
  const double cooldown = given == TC_AUTO ? schedules[c->train_schedule].cooldown : given;
  return (struct tc_rate){
    .schedule = c->train_schedule, .warmup_shape = c->train_warmup_shape, .cooldown_shape = c->train_cooldown_shape,
    .steps = c->train_steps, .lr = c->train_lr, .min_lr = c->train_min_lr,
    .warmup = c->train_warmup == TC_AUTO ? TC_MIN(c->train_steps / 20, 2000) : c->train_warmup,
    .cooldown = llround(cooldown < 1 ? cooldown * steps : cooldown) };
}

int tc_rate_check(const struct tc_config *c, struct tc_err *err)
{
  const struct tc_rate r = tc_rate_of(c);
  const double given = c->train_cooldown;
  if (given > 0 && schedules[r.schedule].ends)
    return tc_fail(err, TC_EUSER, "train.schedule = %s comes down to train.min_lr by itself, so train.cooldown = %g has no place; "
                   "train.schedule = wsd would take it", tc_word_train_schedule(r.schedule), given);
  if (given > 1 && given != floor(given))
    return tc_fail(err, TC_EUSER, "train.cooldown = %g is neither whole steps nor, below 1, a share of train.steps", given);
  if (r.cooldown > 0 && r.warmup + r.cooldown > r.steps)
    return tc_fail(err, TC_EUSER, "a warm-up of %lld steps and a cooldown of %lld do not fit into train.steps = %lld: less "
                   "train.warmup or train.cooldown, or more train.steps, would fit", (long long)r.warmup,
                   (long long)r.cooldown, (long long)r.steps);
  return 0;
}

int64_t tc_last_step(const struct tc_config *c)
{ return c->train_stop_at > 0 ? TC_MIN(c->train_stop_at, c->train_steps) : c->train_steps; }

void tc_seeds_fill(struct tc_config *c)
{
  int64_t *const seed[] = { &c->train_seed_weights, &c->train_seed_data, &c->train_seed_dropout };
  for (size_t i = 0; i < sizeof seed / sizeof *seed; i++)
    if (*seed[i] == TC_AUTO) *seed[i] = c->train_seed;
}

/* ---- the rate ------------------------------------------------------------------------------ */

static double rise(enum tc_lr_shape shape, double x)
{
  switch (shape) {
#define SCHEDULE(...)
#define SHAPE(enumerator, rise, fall) case enumerator: return rise;
#include "src/recipe/schedule.def"
  }
  return x;
}

static double fall(enum tc_lr_shape shape, double x)
{
  switch (shape) {
#define SCHEDULE(...)
#define SHAPE(enumerator, rise, fall) case enumerator: return fall;
#include "src/recipe/schedule.def"
  }
  return 1 - x;
}

/* The schedule's rate after the warm-up. */
static double scheduled(const struct tc_rate *r, double step)
{
  const double lr = r->lr, min = r->min_lr, warmup = (double)r->warmup;
  const double x = fmin((step - warmup) / (double)TC_MAX(r->steps - r->warmup, 1), 1);
  switch (r->schedule) {
#define SCHEDULE(enumerator, ends, cooldown, rate) case enumerator: return rate;
#define SHAPE(...)
#include "src/recipe/schedule.def"
  }
  return lr;
}

static double before_cooldown(const struct tc_rate *r, int64_t step)
{
  if (r->warmup == 0 || step > r->warmup) return scheduled(r, (double)step);
  return r->lr * rise(r->warmup_shape, (double)step / (double)r->warmup);
}

double tc_rate_at(const struct tc_rate *r, int64_t step)
{
  const int64_t turn = r->steps - r->cooldown;
  if (r->cooldown == 0 || step <= turn) return before_cooldown(r, step);
  const double x = fmin((double)(step - turn) / (double)r->cooldown, 1);
  return r->min_lr + (before_cooldown(r, turn) - r->min_lr) * fall(r->cooldown_shape, x);
}

const char *tc_rate_phase(const struct tc_rate *r, int64_t step)
{
  if (step < r->warmup) return "warmup";
  return r->cooldown > 0 && step > r->steps - r->cooldown ? "cooldown" : tc_word_train_schedule(r->schedule);
}
