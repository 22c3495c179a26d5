/* trace.c - run.trace: which steps are traced, and when the file is written.
 *
 * The file is written as soon as the traced steps are over, or at the run's end if that is
 * sooner: so it can be looked at while a long run goes on, and the clocks' two comparisons lie
 * close around it. A trace that cannot be written costs the trace, not the run. */
#include "src/train/train.h"

#include <string.h>

void tc_train_trace_new(struct tc_train *t)
{
  const struct tc_config *c = t->cfg;
  if (!*c->run_trace || !strcmp(c->run_trace, "no") || c->run_trace_steps <= 0) return;
  char process[300];
  const int32_t *at = t->mesh->coord + (size_t)t->rank * TC_AXES;
  snprintf(process, sizeof process, "%.200s, pp %d dp %d tp %d", t->who[t->rank], at[TC_PP],
           at[TC_DP], at[TC_TP]);
  struct tc_trace_opts o = { .file = c->run_trace, .process = process, .rank = t->rank,
                             .world = t->mesh->world, .steps = c->run_trace_steps };
  t->trace = tc_trace_new(&o);
}

int tc_train_trace_open(struct tc_train *t, struct tc_err *err)
{
  if (!t->trace) return 0;
  const struct tc_actions *s = t->prog[TC_P_TRAIN]->actions;
  /* Each action once, a transfer's work on its own track besides, and what is between steps. */
  int64_t a_step = s->n + 64;
  for (int32_t i = 0; i < s->n; i++) a_step += s->action[i].kind == TC_ISSUE;
  tc_trace_reserve(t->trace, a_step * TC_MIN(t->cfg->run_trace_steps, 1 << 20));
  return tc_trace_open(t->trace, err);
}

static int write_trace(struct tc_train *t, struct tc_err *err)
{
  struct tc_err mine = { 0 };
  int rc = tc_trace_write(t->trace, t->world, &mine);
  if (rc == TC_EPEER) *err = mine;
  else if (rc < 0) tc_warn("%s", mine.text);
  return rc == TC_EPEER ? rc : 0;
}

int tc_train_trace_step(struct tc_train *t, int64_t step, struct tc_err *err)
{
  if (!t->trace) return 0;
  if (step == t->start_step + 1) TC_TRY(tc_trace_sync(t->trace, t->world, err));
  return tc_trace_step(t->trace, step) ? 0 : write_trace(t, err);
}

int tc_train_trace_end(struct tc_train *t, int rc, struct tc_err *err)
{
  if (!t->trace || (rc != 0 && rc != TC_STOPPED && rc != TC_ENDED)) return rc;
  int wrote = write_trace(t, err);
  return wrote < 0 ? wrote : rc;
}
