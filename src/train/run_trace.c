/* run_trace.c - run.trace: which steps are traced, and when the file is written.
 *
 * The file is written as soon as the traced steps are over, or at the end of the run if that is
 * earlier: so it can be read during a long run, and the clocks of the ranks are compared shortly
 * before and after the traced steps. If it cannot be written, the run continues without it. */
#include "src/train/parts.h"

#include <stdlib.h>
#include <string.h>

void tc_train_trace_new(struct tc_train *t)
{
  const struct tc_config *c = t->run.cfg;
  if (!*c->run_trace || !strcmp(c->run_trace, "no") || c->run_trace_steps <= 0) return;
  char process[300], at[TC_MESH_TEXT];
  snprintf(process, sizeof process, "%.200s, %s", t->run.rank_names[t->run.rank],
           tc_mesh_place(at, t->run.mesh, t->run.rank, " ", " "));
  struct tc_trace_opts o = { .file = c->run_trace, .process = process, .rank = t->run.rank,
                             .world = t->run.mesh->world, .steps = c->run_trace_steps };
  t->trace = tc_trace_new(&o);
}

/* The events of a step: one for each action, another for the work of each transfer, and some between steps. */
static int64_t events_of(const struct tc_actions *s)
{
  int64_t n = s->n + 64;
  for (int32_t i = 0; i < s->n; i++) n += s->action[i].kind == TC_ISSUE;
  return n;
}

int tc_train_trace_open(struct tc_train *t, struct tc_err *err)
{
  if (!t->trace) return 0;
  int64_t a_step = 0;                            /* of the stage that has most: any may be traced */
  for (int k = 0; k < t->run.n_stages; k++) a_step = TC_MAX(a_step, events_of(t->run.stage[k].prog[TC_TRAIN]->actions));
  tc_trace_reserve(t->trace, a_step * TC_MIN(t->run.cfg->run_trace_steps, 1 << 20));
  struct tc_kept k;
  tc_kept_of(&k, t, "run.trace");
  const int rc = tc_trace_open(t->trace, k.file, k.n, err);
  tc_kept_free(&k);
  return rc;
}

static int write_trace(struct tc_train *t, struct tc_err *err)
{
  struct tc_err mine = { 0 };
  int rc = tc_trace_write(t->trace, t->run.world, &mine);
  if (rc == TC_EPEER) *err = mine;
  else if (rc < 0) tc_warn("%s", mine.text);
  return rc == TC_EPEER ? rc : 0;
}

int tc_train_trace_step(struct tc_train *t, int64_t step, struct tc_err *err)
{
  if (!t->trace) return 0;
  if (step == t->ckpt.start_step + 1) TC_TRY(tc_trace_sync(t->trace, t->run.world, err));
  return tc_trace_step(t->trace, step) ? 0 : write_trace(t, err);
}

int tc_train_trace_end(struct tc_train *t, int rc, struct tc_err *err)
{
  if (!t->trace || (rc != 0 && rc != TC_STOPPED && rc != TC_ENDED)) return rc;
  int wrote = write_trace(t, err);
  return wrote < 0 ? wrote : rc;
}
