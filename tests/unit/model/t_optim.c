/* t_optim.c - the learning rate's schedules, beside their definitions. */
#include "src/model/optim.h"
#include "tests/unit/tap.h"

enum { STEPS = 100, WARMUP = 20 };
static const double LR = 3e-4, MIN_LR = 2e-5;

static double lr(enum tc_lr_schedule schedule, int64_t step)
{
  return tc_lr(schedule, step, STEPS, WARMUP, LR, MIN_LR);
}

/* Straight from 0 to lr, whatever comes then. */
static void test_warmup(void)
{
  for (enum tc_lr_schedule k = TC_LR_COSINE; k <= TC_LR_CONSTANT; k++) {
    const char *const name = tc_word_train_schedule(k);
    double worst = 0;
    for (int s = 0; s <= WARMUP; s++) worst = fmax(worst, fabs(lr(k, s) - s * LR / WARMUP));
    ok(worst < 1e-12 * LR, "%s: the warm-up is a straight line from 0 to train.lr", name);
    ok(lr(k, WARMUP + 1) <= LR, "%s: its end is the highest", name);
    near_f(tc_lr(k, 1, STEPS, 0, LR, LR), LR, 1e-12, "%s: none, min_lr = lr", name);
  }
}

/* Half a period of a cosine, by turning a vector by equal angles; a line; nothing. */
static void test_decay(void)
{
  const double a = acos(-1) / (STEPS - WARMUP), mid = (LR + MIN_LR) / 2, half = (LR - MIN_LR) / 2;
  double x = 1, y = 0, cosine = 0, linear = 0, constant = 0;
  for (int s = WARMUP; s <= STEPS; s++) {
    cosine = fmax(cosine, fabs(lr(TC_LR_COSINE, s) - (mid + half * x)));
    linear = fmax(linear, fabs(lr(TC_LR_LINEAR,
                                  s) - (LR - (LR - MIN_LR) * (s - WARMUP) / (STEPS - WARMUP))));
    constant = fmax(constant, fabs(lr(TC_LR_CONSTANT, s) - LR));
    const double turned = x * cos(a) - y * sin(a);
    y = x * sin(a) + y * cos(a);
    x = turned;
  }
  ok(cosine < 1e-12 * LR, "cosine: half a period from lr to min_lr");
  ok(linear < 1e-12 * LR, "linear: a line from lr to min_lr");
  ok(constant == 0, "constant: lr");
  for (int s = STEPS; s < STEPS + 3; s++) {
    near_f(lr(TC_LR_COSINE, s), MIN_LR, 1e-12, "cosine: min_lr at step %d of %d and after", s, STEPS);
    near_f(lr(TC_LR_LINEAR, s), MIN_LR, 1e-12, "linear: min_lr at step %d of %d and after", s, STEPS);
  }
  near_f(tc_lr(TC_LR_COSINE, 3, 2, 2, LR, MIN_LR), MIN_LR, 1e-12,
         "nothing between warm-up and end: min_lr");
}

int main(void)
{
  test_warmup();
  test_decay();
  return done_testing();
}
