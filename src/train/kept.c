/* kept.c - what a file that an option names may not be: all that the run reads, and what other parts of it write. */
#include "src/train/parts.h"

#include <stdlib.h>
#include <string.h>

static void keep(struct tc_kept *k, const char *path, const char *what)
{
  TC_APPEND(k->file, k->n, k->cap, (struct tc_output_kept){ tc_pool_strdup(k->pool, path), what });
}

static void keep_in(struct tc_kept *k, const char *folder, const char *name, const char *what)
{
  char *path = tc_sprintf("%s/%s", folder, name);
  keep(k, path, what);
  free(path);
}

static void keep_data(struct tc_kept *k, const struct tc_data *d, const char *what)
{
  for (int s = 0; d && s < tc_data_sources(d); s++)
    for (int i = 0; i < tc_data_files(d, s); i++) keep(k, tc_data_file(d, s, i)->name, what);
}

/* Whether the option names a folder in which other files may be made. */
static bool is_shared(const char *name) { return !strcmp(name, "run.out") || !strcmp(name, "run.tensorboard"); }

void tc_kept_of(struct tc_kept *k, const struct tc_train *t, const char *option)
{
  const struct tc_config *c = t->run.cfg;
  const char *name, *path;
  *k = (struct tc_kept){ .pool = tc_pool_new() };
  for (int s = 0; s < t->run.n_stages && t->batches.stage; s++) {
    keep_data(k, t->batches.stage[s].train, "training data of this run");
    keep_data(k, t->batches.stage[s].val, "validation data of this run");
  }
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
    if (strcmp(name, option) != 0 && !is_shared(name)) keep(k, path, name);
}

void tc_kept_free(struct tc_kept *k)
{
  free(k->file);
  tc_pool_free(k->pool);
}
