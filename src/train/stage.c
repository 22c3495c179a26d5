/* stage.c - the stages of a run: what changes at the border of two of them.
 *
 * Weights, optimizer and schedule go on. A stage is a function of the step, so that a run that resumes, or goes back, is in the
 * same one. */
#include "src/model/model.h"
#include "src/train/parts.h"

static void say_stage(const struct tc_train *t, int k, int64_t step)
{
  const struct tc_stage *s = &t->run.stages[k];
  char text[300];
  const char *changes = tc_stage_changes(t->run.cfg, k + 1, text, sizeof text);
  if (t->run.rank) return;
  tc_log("stage %d of %d, from step %lld on (%s): %lld sequences of %lld tokens, rate %.3g", k + 1, t->run.n_stages,
         (long long)s->first, *changes ? changes : "no change", (long long)s->c.train_global_batch,
         (long long)s->context, tc_rate_at(&t->rate, step));
}

void tc_train_stage(struct tc_train *t, int64_t step)
{
  const int k = tc_stages_at(t->run.stages, t->run.n_stages, step);
  if (k == t->run.at) return;
  tc_train_data_stage(t, k);     /* first: after a rollback, threads may be reading for the stage that ends here */
  tc_run_stage(&t->run, k);
  t->rate = tc_rate_of(&t->run.stages[k].c);
  tc_tasks_ready(t);
  say_stage(t, k, step);
}

int64_t tc_train_tokens(const struct tc_train *t, int64_t step)
{ return tc_stages_tokens(t->run.stages, t->run.n_stages, step); }

static double work(const struct tc_train *t, int k)
{
  const struct tc_program_opts *o = &t->run.stage[k].opts;
  return (tc_model_flops(&o->model) + t->plan.flops) * (double)(o->gpt.batch * o->model.context);
}

double tc_train_peak_s(const struct tc_train *t)
{ return t->run.at == 0 ? t->plan.peak_s : t->plan.peak_s * work(t, t->run.at) / work(t, 0); }
