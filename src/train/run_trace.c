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

/* ---- what the file may not be ---- */

struct kept { struct tc_output_kept *file; int n, cap; struct tc_pool *pool; };

static void keep(struct kept *k, const char *path, const char *what)
{
  TC_APPEND(k->file, k->n, k->cap, (struct tc_output_kept){ tc_pool_strdup(k->pool, path), what });
}

static void keep_in(struct kept *k, const char *folder, const char *name, const char *what)
{
  char *path = tc_sprintf("%s/%s", folder, name);
  keep(k, path, what);
  free(path);
}

static void keep_data(struct kept *k, const struct tc_data *d, const char *what)
{
  for (int s = 0; d && s < tc_data_sources(d); s++)
    for (int i = 0; i < tc_data_files(d, s); i++) keep(k, tc_data_file(d, s, i)->name, what);
}

/* All that the run reads, and what other parts of it write. */
static void keep_all(struct kept *k, const struct tc_train *t)
{
  const struct tc_config *c = t->run.cfg;
  const char *name, *path;
  keep_data(k, t->batches.train, "training data of this run");
  keep_data(k, t->batches.val, "validation data of this run");
  keep(k, t->ckpt.dir, "the folder of checkpoints");
  keep_in(k, t->out, "run.json", "the run.json of this run");
  keep_in(k, t->out, "metrics.jsonl", "the metrics of this run");
  keep_in(k, t->out, TC_REQUEST_FILE, "the request of tercio save");
  keep_in(k, t->out, TC_REQUEST_TAKEN, "the request of tercio save");
  for (int r = 1; c->run_all_ranks && r < t->run.mesh->world; r++) {
    char file[40];
    snprintf(file, sizeof file, "metrics.%d.jsonl", r);
    keep_in(k, t->out, file, "the metrics of this run");
  }
  if (*c->file) keep(k, c->file, "the run file");
  for (int i = 0; i < c->train_eval_tasks.n; i++) keep(k, c->train_eval_tasks.item[i], "a file of train.eval_tasks");
  for (int i = 0; (i = tc_config_next_path(c, i, &name, &path)) >= 0; i++)
    if (strcmp(name, "run.trace") != 0 && strcmp(name, "run.out") != 0) keep(k, path, name);
}

int tc_train_trace_open(struct tc_train *t, struct tc_err *err)
{
  if (!t->trace) return 0;
  const struct tc_actions *s = t->run.prog[TC_TRAIN]->actions;
  /* An event for each action, another for the work of each transfer, and some between steps. */
  int64_t a_step = s->n + 64;
  for (int32_t i = 0; i < s->n; i++) a_step += s->action[i].kind == TC_ISSUE;
  tc_trace_reserve(t->trace, a_step * TC_MIN(t->run.cfg->run_trace_steps, 1 << 20));
  struct kept k = { .pool = tc_pool_new() };
  keep_all(&k, t);
  const int rc = tc_trace_open(t->trace, k.file, k.n, err);
  free(k.file);
  tc_pool_free(k.pool);
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
