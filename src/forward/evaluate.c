/* evaluate.c - the files of tokens and of questions that a trained model is evaluated on, one after the other. */
#include "src/forward/evaluate.h"
#include "src/data/documents.h"
#include "src/program/setup.h"

#include <stdlib.h>

int tc_eval_questions(const struct tc_trained *m, struct tc_eval_task *t, struct tc_err *err)
{
  const int64_t context = m->cfg->model_context, vocab = m->cfg->model_vocab;
  if (t->kind == TC_EVAL_HELLASWAG) return tc_choices_hellaswag(&t->questions, t->path, context, vocab, err);
  if (!m->tokenizer && !tc_trained_bytes(m))
    return tc_fail(err, TC_EUSER, "%s is text, and the model's tokens are not bytes: give --tokenizer tokenizer.json",
                   t->path);
  return tc_choices_jsonl(&t->questions, t->path, m->tokenizer, context, vocab, err);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

/* Whether a token of the data is a byte, where there is no tokenizer: as their headers say, else as the model's. */
static bool is_bytes(const struct tc_eval *e, const struct tc_data *d)
{
  uint64_t hash;
  return tc_trained_bytes(e->model) && (!tc_data_tokenizer(d, &hash) || !hash);
}

static void warn_of_text(const struct tc_eval *e, const struct tc_data *d, int64_t vocab)
{
  uint64_t hash;
  const char *file = tc_data_tokenizer(d, &hash);
  if (file && !hash && vocab != 256 && !e->model->tokenizer_hash)
    tc_warn("a token of %s is a byte, and the model has a vocabulary of %lld: if its tokens are not bytes, the "
            "loss means nothing; make shards with its tokenizer.json (tercio data --tokenizer)", file,
            (long long)vocab);
}

static int run_data(struct tc_eval *e, struct tc_forward *x, struct tc_eval_task *t, struct tc_corpus_loss *out,
                    struct tc_err *err)
{
  const struct tc_run *r = tc_forward_run(x);
  const struct tc_model *m = &r->opts.model;
  struct tc_data *d = NULL;
  char *path = tc_strdup(t->path);
  int32_t end = -1;
  const struct tc_data_opts o = { .word = &path, .n = 1, .format = r->cfg->data_format, .context = m->context,
                                  .vocab = m->vocab, .shorter = true };
  int rc = tc_data_open(&d, &o, err);
  if (rc == 0) rc = tc_data_of_tokenizer(d, e->model->tokenizer_hash, e->model->path, err);
  if (rc == 0 && r->cfg->data_documents == TC_DOCUMENTS_MASK)
    rc = tc_documents_end(&end, r->cfg->data_end_token, d, err);
  rc = tc_run_agree(r, rc, err);
  if (rc == 0 && r->rank == 0) warn_of_text(e, d, m->vocab);
  if (rc == 0) rc = tc_corpus_loss(out, x, d, end, e->model->tokenizer, is_bytes(e, d), e->tells ? t->path : NULL, err);
  if (d) tc_data_free(d);
  free(path);
  return rc;
}

static bool asks_questions(const struct tc_eval *e)
{
  for (int i = 0; i < e->n_tasks; i++)
    if (e->task[i].kind != TC_EVAL_DATA) return true;
  return false;
}

int tc_eval_rank(int rank, void *eval, struct tc_err *err)
{
  struct tc_eval *e = eval;
  const struct tc_launch *l = &e->launch;
  const struct tc_forward_args args = {
    .cfg = l->cfg, .ranks = l->ranks, .rank_names = l->rank_names, .rank = rank, .hub = l->hub, .path = e->model->path,
    .foreign = e->model->foreign, .use = TC_TO_EVALUATE,
    .documents = asks_questions(e), .mpi = l->mpi && l->mpi_world > 1,
    .threads = tc_launch_threads(l->cfg, l->ranks, rank) };
  struct tc_forward *x = NULL;
  int rc = tc_forward_new(&x, &args, err);
  if (rank == 0 && rc == 0) e->memory = tc_exec_memory(tc_forward_run(x)->exec);
  for (int i = 0; i < e->n_tasks && rc == 0; i++) {
    struct tc_eval_task *t = &e->task[i];
    struct tc_corpus_loss loss;
    struct tc_choices_result answers = { 0 };
    if (t->kind == TC_EVAL_DATA) rc = run_data(e, x, t, &loss, err);
    else rc = tc_choices_run(&answers, x, &t->questions, e->tells ? t->path : NULL, err);
    const bool keeps = rank == 0 || !l->hub;                    /* of threads, rank 0 alone writes here */
    if (keeps && rc == 0 && t->kind == TC_EVAL_DATA) t->loss = loss;
    if (keeps && t->kind != TC_EVAL_DATA) t->answers = answers;
    else free(answers.nats);
  }
  tc_forward_free(x, rc == TC_EPEER);
  return rc;
}
