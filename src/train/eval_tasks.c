/* eval_tasks.c - train.eval_tasks: files of questions, which the model answers at each validation.
 *
 * The files are read and checked before the first step. The losses of the answers are made by the program TC_TASKS on
 * the ranks of the training, by the code of `tercio eval` (src/forward). It changes nothing of the training's state. */
#include "src/train/parts.h"
#include "src/token/token.h"
#include "src/watch/watch.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading ----------------------------------------------------------------------------------- */

/* The name of a file without its folder and .jsonl or .bin. Owned by the caller. */
static char *name_of(const char *path)
{
  const char *slash = strrchr(path, '/'), *base = slash && slash[1] ? slash + 1 : path;
  const size_t cut = tc_ends_with(base, ".jsonl") ? 6 : tc_ends_with(base, ".bin") ? 4 : 0;
  return tc_sprintf("%.*s", (int)(strlen(base) - cut), base);
}

static int fail_tokenizer(const char *path, uint64_t is, const char *file, uint64_t hash, struct tc_err *err)
{
  char have[TC_TOKENS_TEXT];
  return tc_fail(err, TC_EUSER, "%s is tokenizer %016" PRIx64 ", but data file '%s' has %s: the questions would be "
                 "other text to the model; train.eval_tokenizer = the tokenizer.json of the data would fit%s", path, is,
                 file, tc_tokens_text(have, hash), hash ? "" : ", or none for bytes");
}

/* train.eval_tokenizer, else the tokenizer.json beside the training data; NULL: a token is a byte, as the headers say
 * or, where they say nothing and no tokenizer.json is there, a vocabulary of 256. It must be the one that the headers
 * say. */
static int load_tokenizer(const struct tc_train *t, const char *task, struct tc_tokenizer **out, struct tc_err *err)
{
  const char *given = t->run.cfg->train_eval_tokenizer;
  const int64_t vocab = t->run.opts.model.vocab;
  uint64_t hash, is;
  const char *known = tc_data_tokenizer(t->batches.train, &hash);
  *out = NULL;
  if (!*given && known && !hash) return 0;
  char *folder = tc_folder_of(tc_data_first_file(t->batches.train));
  char *path = *given ? tc_strdup(given) : tc_sprintf("%s/" TC_TOKENIZER_FILE, folder);
  const bool missing = !*given && !tc_is_there(path);
  int rc = 0;
  if (missing && (known || vocab != 256))
    rc = tc_fail(err, TC_EUSER, "%s is text, the tokens of the training data are not bytes, and their folder (%s) has "
                 "no tokenizer.json: train.eval_tokenizer = FILE would fit", task, folder);
  if (rc == 0 && !missing) rc = tc_tokenizer_load(out, path, err);
  if (*out && known && (is = tc_tokenizer_hash(*out)) != hash) rc = fail_tokenizer(path, is, known, hash, err);
  TC_FREE(folder, path);
  return rc;
}

static int read_task(struct tc_train *t, struct tc_task *task, struct tc_tokenizer **tokenizer, struct tc_err *err)
{
  const struct tc_model *m = &t->run.opts.model;
  int64_t context = m->context;                  /* the shortest of all stages */
  for (int k = 0; k < t->run.n_stages; k++) context = TC_MIN(context, t->run.stages[k].context);
  if (tc_ends_with(task->path, ".bin"))
    return tc_choices_hellaswag(&task->questions, task->path, context, m->vocab, err);
  if (!t->tasks.text) TC_TRY(load_tokenizer(t, task->path, tokenizer, err));
  t->tasks.text = true;
  t->tasks.tokenizer = *tokenizer ? tc_tokenizer_hash(*tokenizer) : 0;
  return tc_choices_jsonl(&task->questions, task->path, *tokenizer, context, m->vocab, err);
}

static int read_tasks(struct tc_train *t, struct tc_tokenizer **tokenizer, struct tc_err *err)
{
  const struct tc_list *list = &t->run.cfg->train_eval_tasks;
  struct tc_tasks *x = &t->tasks;
  x->task = tc_calloc((size_t)list->n, sizeof *x->task);
  for (; x->n < list->n; x->n++) {
    struct tc_task *task = &x->task[x->n];
    *task = (struct tc_task){ .path = list->item[x->n], .name = name_of(list->item[x->n]) };
    for (int i = 0; i < x->n; i++) {
      if (strcmp(task->name, x->task[i].name)) continue;
      free(task->name);
      return tc_fail(err, TC_EUSER, "%s and %s have one name in metrics.jsonl: rename one of them", x->task[i].path,
                     list->item[x->n]);
    }
    const int rc = read_task(t, task, tokenizer, err);
    if (rc == 0) continue;
    x->n++;                                      /* to be freed */
    return rc;
  }
  return 0;
}

int tc_tasks_open(struct tc_train *t, struct tc_err *err)
{
  struct tc_tokenizer *tokenizer = NULL;
  if (t->run.cfg->train_eval_tasks.n == 0) return 0;
  tc_at_phase("reading train.eval_tasks");
  const int rc = read_tasks(t, &tokenizer, err);
  if (tokenizer) tc_tokenizer_free(tokenizer);
  return rc == 0 ? 0 : tc_fail(err, rc, "train.eval_tasks: %s", err->text);
}

int tc_tasks_of_tokenizer(const struct tc_train *t, uint64_t hash, const char *path, struct tc_err *err)
{
  const struct tc_tasks *x = &t->tasks;
  char is[TC_TOKENS_TEXT];
  if (!x->text || !hash || x->tokenizer == hash) return 0;
  return tc_fail(err, TC_EUSER, "train.eval_tasks: the questions were read as %s, but the model in %s is of tokenizer "
                 "%016" PRIx64 ": train.eval_tokenizer = its tokenizer.json would fit",
                 tc_tokens_text(is, x->tokenizer), path, hash);
}

void tc_tasks_close(struct tc_train *t)
{
  struct tc_tasks *x = &t->tasks;
  tc_forward_free(x->forward, false);
  for (int i = 0; i < x->n; i++) {
    tc_choices_free(&x->task[i].questions);
    free(x->task[i].name);
  }
  free(x->task);
  *x = (struct tc_tasks){ 0 };
}

static uint64_t add_hash(uint64_t h, int64_t x) { return tc_hash64_add(h, (uint64_t)x); }

static uint64_t hash_tasks(const struct tc_tasks *x)
{
  uint64_t h = TC_HASH64;
  for (int i = 0; i < x->n; i++) {
    const struct tc_choices *c = &x->task[i].questions;
    h = add_hash(add_hash(h, c->n), c->n_answers);
    for (int64_t k = 0; k < c->n; k++) h = add_hash(add_hash(h, c->question[k].context.n), c->question[k].label);
    for (int64_t k = 0; k < c->n_answers; k++) h = add_hash(h, c->answer[k].n);
    for (int64_t k = 0; k < c->n_tokens; k++) h = add_hash(h, c->token[k]);
  }
  return h;
}

int tc_tasks_same(struct tc_train *t, struct tc_err *err)
{
  const int world = t->run.mesh->world;
  const int64_t mine = (int64_t)hash_tasks(&t->tasks);
  if (t->tasks.n == 0) return 0;
  int64_t *all = tc_malloc((size_t)world * sizeof *all);
  int rc = tc_comm_all_i64(t->run.world, &mine, 1, all, err);
  for (int r = 1; r < world && rc == 0; r++)
    if (all[r] != all[0])
      rc = tc_fail(err, TC_EUSER, "train.eval_tasks: %s and %s read different questions: every node needs the same "
                   "files",
                   t->run.rank_names[r], t->run.rank_names[0]);
  free(all);
  return rc;
}

/* ---- asking ------------------------------------------------------------------------------------ */

void tc_tasks_ready(struct tc_train *t)
{
  tc_forward_free(t->tasks.forward, false);      /* of another stage's programs */
  t->tasks.forward = NULL;
  if (t->tasks.n) tc_forward_of_training(&t->tasks.forward, &t->run);
}

static void take(struct tc_task *task, const struct tc_choices_result *r)
{
  const struct tc_choices *c = &task->questions;
  double nats = 0;
  for (int64_t i = 0; i < c->n; i++) nats += r->nats[c->question[i].first_answer + c->question[i].label];
  task->right = (double)r->raw / (double)c->n;
  task->by_length = (double)r->by_length / (double)c->n;
  task->loss = nats / (double)c->n;
  task->not_finite = r->not_finite;
}

int tc_tasks_ask(struct tc_train *t, int64_t step, struct tc_err *err)
{
  struct tc_tasks *x = &t->tasks;
  for (int i = 0; i < x->n; i++) {
    struct tc_choices_result r;
    x->asking = true;
    const int rc = tc_choices_run(&r, x->forward, &x->task[i].questions, x->task[i].name, err);
    x->asking = false;
    if (rc == 0) take(&x->task[i], &r);
    free(r.nats);
    if (rc < 0) return rc;
  }
  x->step = step;
  return 0;
}

void tc_tasks_text(const struct tc_train *t, int64_t step, char *text, size_t size)
{
  const struct tc_tasks *x = &t->tasks;
  for (int i = 0; i < x->n && x->step == step; i++)
    tc_text_add(text, size, "  %s %.4f, by length %.4f", x->task[i].name, x->task[i].right, x->task[i].by_length);
}
