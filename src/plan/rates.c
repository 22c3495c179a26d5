/* rates.c - a learning rate and a warm-up for the size of a model, from the runs of GPT-3: T. Brown et al., "Language
 * Models are Few-Shot Learners", 2020. Table 2.1 has sizes, batches and peak rates; appendix B the warm-up over 375
 * million tokens, and the cosine decay to a tenth of the peak. All with AdamW. */
#include "src/plan/plan.h"

#include <math.h>

static const struct tc_plan_rate table[] = {
  /* parameters, tokens per step, peak */
  { 125e6, 0.5e6, 6.0e-4 }, { 350e6, 0.5e6, 3.0e-4 }, { 760e6, 0.5e6, 2.5e-4 }, { 1.3e9, 1e6, 2.0e-4 },
  { 2.7e9, 1e6, 1.6e-4 },   { 6.7e9, 2e6, 1.2e-4 },   { 13e9, 2e6, 1.0e-4 },    { 175e9, 3.2e6, 0.6e-4 },
};
enum { ROWS = sizeof table / sizeof *table };

const struct tc_plan_rate *tc_plan_rate(double parameters)
{
  const struct tc_plan_rate *best = table;
  for (int i = 1; i < ROWS; i++)
    if (fabs(log(parameters / table[i].parameters)) < fabs(log(parameters / best->parameters))) best = &table[i];
  return best;
}

int64_t tc_plan_warmup(double tokens_per_step, int64_t steps)
{
  const double tokens = 375e6;
  return (int64_t)TC_MIN(ceil(tokens / tokens_per_step), (double)(steps / 20));
}
