/* t_rate.c - the learning rate of each step, beside the definitions of warm-ups, schedules and cooldowns written another
 * way: a cosine by turning a vector, lines by equal differences, drawn numbers by a plain second reading of the docs. */
#include "src/recipe/recipe.h"
#include "tests/unit/seed.h"
#include "tests/unit/tap.h"

#include <math.h>

enum { STEPS = 100, WARMUP = 20 };
static const double LR = 3e-4, MIN_LR = 2e-5;

static struct tc_rate numbers(enum tc_lr_schedule schedule)
{ return (struct tc_rate){ .schedule = schedule, .steps = STEPS, .warmup = WARMUP, .lr = LR, .min_lr = MIN_LR }; }

static double lr(enum tc_lr_schedule schedule, int64_t step)
{
  const struct tc_rate r = numbers(schedule);
  return tc_rate_at(&r, step);
}

/* Straight from 0 to lr, whatever comes then. */
static void test_warmup(void)
{
  for (enum tc_lr_schedule k = TC_LR_COSINE; k <= TC_LR_INVERSE_SQRT; k++) {
    const char *const name = tc_word_train_schedule(k);
    struct tc_rate none = numbers(k);
    double worst = 0;
    none.warmup = 0;
    none.min_lr = LR;
    for (int s = 0; s <= WARMUP; s++) worst = fmax(worst, fabs(lr(k, s) - s * LR / WARMUP));
    ok(worst < 1e-12 * LR, "%s: the warm-up is a straight line from 0 to train.lr", name);
    ok(lr(k, WARMUP + 1) <= LR, "%s: its end is the highest", name);
    near_f(tc_rate_at(&none, 1), LR, 1e-12, "%s: none, min_lr = lr", name);
  }
}

/* Half a period of a cosine, by turning a vector by equal angles; a line; nothing. */
static void test_decay(void)
{
  const double a = acos(-1) / (STEPS - WARMUP), mid = (LR + MIN_LR) / 2, half = (LR - MIN_LR) / 2;
  double x = 1, y = 0, cosine = 0, linear = 0, constant = 0, root = 0;
  for (int s = WARMUP; s <= STEPS; s++) {
    cosine = fmax(cosine, fabs(lr(TC_LR_COSINE, s) - (mid + half * x)));
    linear = fmax(linear, fabs(lr(TC_LR_LINEAR,
                                  s) - (LR - (LR - MIN_LR) * (s - WARMUP) / (STEPS - WARMUP))));
    constant = fmax(constant, fabs(lr(TC_LR_CONSTANT, s) - LR));
    root = fmax(root, fabs(pow(lr(TC_LR_INVERSE_SQRT, s) / LR, 2) * s - WARMUP));
    const double turned = x * cos(a) - y * sin(a);
    y = x * sin(a) + y * cos(a);
    x = turned;
  }
  ok(cosine < 1e-12 * LR, "cosine: half a period from lr to min_lr");
  ok(linear < 1e-12 * LR, "linear: a line from lr to min_lr");
  ok(constant == 0, "constant: lr");
  ok(root < 1e-12 * WARMUP, "inverse_sqrt: its square times the step stays");
  for (int s = STEPS; s < STEPS + 3; s++) {
    near_f(lr(TC_LR_COSINE, s), MIN_LR, 1e-12, "cosine: min_lr at step %d of %d and after", s, STEPS);
    near_f(lr(TC_LR_LINEAR, s), MIN_LR, 1e-12, "linear: min_lr at step %d of %d and after", s, STEPS);
  }
  const struct tc_rate short_run = { TC_LR_COSINE, .steps = 2, .warmup = 2, .lr = LR, .min_lr = MIN_LR };
  near_f(tc_rate_at(&short_run, 3), MIN_LR, 1e-12, "nothing between warm-up and end: min_lr");
}

/* The configuration with these flags. */
static struct tc_config *config(int n, char **flag)
{
  struct tc_config *c = NULL;
  struct tc_err err;
  char *argv[12] = { "train" };
  for (int i = 0; i < n; i++) argv[i + 1] = flag[i];
  TC_ASSERT(tc_config_new(&c, n + 1, argv, &err) == 0);
  return c;
}

struct row { const char *what; char *flag[5]; int64_t cooldown; const char *refused; };

/* What train.cooldown comes to, or why it is refused. */
static void test_options(void)
{
  static struct row row[] = {
    { "wsd: a fifth", { "--train.schedule=wsd" }, 200, NULL },
    { "constant: none", { "--train.schedule=constant" }, 0, NULL },
    { "a share", { "--train.schedule=inverse_sqrt", "--train.cooldown=0.05" }, 50, NULL },
    { "steps", { "--train.schedule=constant", "--train.cooldown=300" }, 300, NULL },
    { "one step", { "--train.schedule=wsd", "--train.cooldown=1" }, 1, NULL },
    { "none of wsd", { "--train.schedule=wsd", "--train.cooldown=0" }, 0, NULL },
    { "all but the warm-up", { "--train.schedule=wsd", "--train.cooldown=900", "--train.warmup=100" }, 900, NULL },
    { "too long", { "--train.schedule=wsd", "--train.cooldown=901", "--train.warmup=100" }, 901, "do not fit" },
    { "no number of steps", { "--train.schedule=wsd", "--train.cooldown=1.5" }, 2, "neither whole steps" },
    { "cosine", { "--train.cooldown=0.1" }, 100, "train.schedule = wsd would take it" },
    { "linear", { "--train.schedule=linear", "--train.cooldown=10" }, 10, "train.schedule = wsd would take it" },
    { "cosine without one", { "--train.cooldown=0" }, 0, NULL } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    char *flag[8] = { "--train.steps=1000" };
    int n = 1;
    for (int k = 0; k < 5 && row[i].flag[k]; k++) flag[n++] = row[i].flag[k];
    struct tc_config *c = config(n, flag);
    struct tc_err err = { 0 };
    const int rc = tc_rate_check(c, &err);
    is_int(tc_rate_of(c).cooldown, row[i].cooldown, "%s: its steps", row[i].what);
    ok(row[i].refused ? rc == TC_EUSER && strstr(err.text, row[i].refused) : rc == 0, "%s: %s", row[i].what,
       rc ? err.text : "accepted");
    tc_config_free(c);
  }
}

/* ---- drawn numbers ------------------------------------------------------------------------- */

/* A second reading: which part of [from, to] is done, and a shape's height there. */
static double part(double at, double from, double to) { return at >= to ? 1 : (at - from) / (to - from); }
static double height(enum tc_lr_shape shape, double x)
{ return shape == TC_SHAPE_LINEAR ? x : shape == TC_SHAPE_SQRT ? pow(x, 0.5) : pow(sin(acos(-1) / 2 * x), 2); }

static double expected(const struct tc_rate *r, double step)
{
  const double turn = (double)(r->steps - r->cooldown), warmup = (double)r->warmup, at = r->cooldown ? fmin(step, turn) : step;
  double rate = r->lr;
  if (r->warmup && at <= warmup) rate = r->lr * height(r->warmup_shape, part(at, 0, warmup));
  else if (r->schedule == TC_LR_INVERSE_SQRT) rate = fmax(r->lr / sqrt(fmax(at, 1) / fmax(warmup, 1)), r->min_lr);
  else if (r->schedule == TC_LR_LINEAR || r->schedule == TC_LR_COSINE) {
    const double x = warmup >= (double)r->steps ? 1 : part(at, warmup, (double)r->steps);
    const double left = r->schedule == TC_LR_LINEAR ? 1 - x : 1 - height(TC_SHAPE_COSINE, x);
    rate = r->min_lr + (r->lr - r->min_lr) * left;
  }
  if (at >= step) return rate;
  const double x = part(step, turn, (double)r->steps);
  const double down = r->cooldown_shape == TC_SHAPE_COSINE ? pow(cos(acos(-1) / 2 * x), 2) : 1 - height(r->cooldown_shape, x);
  return r->min_lr + (rate - r->min_lr) * down;
}

static uint64_t drawn(uint64_t seed, uint64_t i, uint64_t below)
{
  uint32_t x[4];
  tc_philox(x, seed, i, 7);
  return (((uint64_t)x[1] << 32) | x[0]) % below;
}

static void test_drawn(void)
{
  enum { RUNS = 3000 };
  const uint64_t seed = test_seed(false);
  double worst = 0;
  int jumps = 0;
  for (uint64_t i = 0; i < RUNS; i++) {
    struct tc_rate r = { .schedule = (enum tc_lr_schedule)drawn(seed, 8 * i, 5), .lr = 1e-3,
                         .warmup_shape = (enum tc_lr_shape)drawn(seed, 8 * i + 1, 3),
                         .cooldown_shape = (enum tc_lr_shape)drawn(seed, 8 * i + 2, 3),
                         .steps = 1 + (int64_t)drawn(seed, 8 * i + 3, 400),
                         .min_lr = 1e-4 * (double)drawn(seed, 8 * i + 4, 11) };
    r.warmup = (int64_t)drawn(seed, 8 * i + 5, (uint64_t)r.steps + 1);
    if (r.schedule != TC_LR_COSINE && r.schedule != TC_LR_LINEAR)
      r.cooldown = (int64_t)drawn(seed, 8 * i + 6, (uint64_t)(r.steps - r.warmup) + 1);
    for (int64_t s = 1; s <= r.steps + 2; s++) {
      const double is = tc_rate_at(&r, s), want = expected(&r, (double)s);
      worst = fmax(worst, fabs(is - want) / 1e-3);
      jumps += r.cooldown && s >= r.steps && is != r.min_lr;
    }
  }
  ok(worst < 1e-12, "%d drawn runs: every step's rate is that of a second reading (off by %.2g of train.lr)", RUNS, worst);
  is_int(jumps, 0, "... after a cooldown the rate is min_lr");
}

int main(void)
{
  test_warmup();
  test_decay();
  test_options();
  test_drawn();
  return done_testing();
}
