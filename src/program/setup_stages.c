/* setup_stages.c - the stages of a run: which steps are each one's, and what it trains on. Pure. */
#include "src/program/setup.h"

#include <stdlib.h>
#include <string.h>

/* The first step of stage number i + 1 (i from 1), by what stands in its section. */
static int64_t first_step(const struct tc_config_stage *s, const struct tc_stage *before)
{
  if (!s->tokens) return s->from;
  const int64_t each = before->c.train_global_batch * before->context;
  return before->first + (s->from <= before->tokens ? 0 : tc_ceil_div(s->from - before->tokens, each));
}

static int check_stage(const struct tc_stage *s, const struct tc_stage *before, const struct tc_config *c, int number,
                       struct tc_err *err)
{
  const long long first = s->first, steps = c->train_steps;
  if (s->first <= before->first)
    return tc_fail(err, TC_EUSER, "stage %d would begin with step %lld, but stage %d begins with step %lld: a later "
                   "from would fit", number, first, number - 1, (long long)before->first);
  if (s->first > c->train_steps)
    return tc_fail(err, TC_EUSER, "stage %d would begin with step %lld, after the last one: an earlier from, or more "
                   "train.steps than %lld, would fit", number, first, steps);
  if (tc_stage_has(c, number, "data.train") && c->data_val.n == 0)
    return tc_fail(err, TC_EUSER, "stage %d has another data.train, so the last 5 %% of the training data can't be the "
                   "validation data of all stages: name files in data.val", number);
  if (s->c.train_min_lr > s->c.train_lr)
    return tc_fail(err, TC_EUSER, "stage %d has train.min_lr = %g above train.lr = %g", number, s->c.train_min_lr,
                   s->c.train_lr);
  return 0;
}

static int add_stage(struct tc_stage *list, int i, const struct tc_config *c, struct tc_err *err)
{
  struct tc_stage *s = &list[i];
  struct tc_model m;
  tc_config_at_stage(&s->c, c, i);
  TC_TRY(tc_setup_model(&s->c, &m, err));
  s->context = m.context;
  s->first = 1;
  if (i == 0) return 0;
  const struct tc_stage *before = s - 1;
  if (m.context != before->context && !(m.rope_theta > 0))
    return tc_fail(err, TC_EUSER, "stage %d has model.context = %lld instead of %lld, but the model's positions are learned, "
                   "each by itself; a model with rotary positions can change its context", i + 1, (long long)m.context,
                   (long long)before->context);
  s->first = first_step(&c->stage[i - 1], before);
  TC_TRY(check_stage(s, before, c, i + 1, err));
  s->tokens = tc_stages_tokens(list, i, s->first - 1);
  return 0;
}

int tc_setup_stages(struct tc_stage **out, const struct tc_config *c, struct tc_err *err)
{
  struct tc_stage *list = tc_calloc((size_t)c->n_stages + 1, sizeof *list);
  int rc = 0;
  *out = NULL;
  if (c->n_stages && c->data_epochs > 0)
    rc = tc_fail(err, TC_EUSER, "data.epochs = %g counts passes over the data of one stage, but the run has %d: give "
                 "train.steps", c->data_epochs, c->n_stages + 1);
  for (int i = 0; i <= c->n_stages && rc == 0; i++) rc = add_stage(list, i, c, err);
  if (rc < 0) free(list);
  else *out = list;
  return rc;
}

int tc_stages_at(const struct tc_stage *list, int n, int64_t step)
{
  int i = n - 1;
  while (i > 0 && list[i].first > step) i--;
  return i;
}

int64_t tc_stages_tokens(const struct tc_stage *list, int n, int64_t step)
{
  const struct tc_stage *s = &list[tc_stages_at(list, n, step)];
  return s->tokens + (step - s->first + 1) * s->c.train_global_batch * s->context;
}
