/* evaluate.c - the files of tokens and of questions that a trained model is evaluated on, one after the other. */
#include "src/forward/evaluate.h"
#include "src/forward/impl.h"
#include "src/program/setup.h"

#include <stdlib.h>
#include <string.h>

int tc_eval_questions(const struct tc_trained *m, struct tc_eval_task *t, struct tc_err *err)
{
  const int64_t context = m->cfg->model_context, vocab = m->cfg->model_vocab;
  if (t->kind == TC_EVAL_HELLASWAG) return tc_choices_hellaswag(&t->questions, t->path, context, vocab, err);
  if (!m->tokenizer && !tc_trained_bytes(m))
    return tc_fail(err, TC_EUSER, "%s is text, and the model's tokens are not bytes: give --tokenizer tokenizer.json",
                   t->path);
  return tc_choices_jsonl(&t->questions, t->path, m->tokenizer, context, vocab, err);
}

/* ---- a file of tokens, a batch of sequences at a time ---------------------------------------- */

/* One pass over the file. */
struct pass {
  struct tc_forward *x;
  struct tc_data *d;
  const struct tc_tokenizer *tokenizer;
  int64_t B, T, n;               /* n: tokens of the file, or, packed, those of its windows and one */
  bool packed;                   /* data.documents = pack: a sequence is a window of whole samples */
  int32_t end;                   /* of a document; -1: sequences are whole, or packed */
  int32_t *tokens, *targets, *starts;   /* [B * T] */
  float *loss;                   /* [B * T] */
};

/* Sequences [at / T, at / T + B) of the file; what lies beyond its end counts for nothing. */
static int read_batch(struct pass *p, int64_t at, struct tc_err *err)
{
  const int64_t rows = p->B * p->T, have = TC_MIN(rows, p->n - 1 - at);
  memset(p->tokens, 0, (size_t)rows * sizeof *p->tokens);
  memset(p->targets, -1, (size_t)rows * sizeof *p->targets);
  memset(p->starts, 0, (size_t)rows * sizeof *p->starts);
  for (int64_t i = 0; i < have && p->packed; i += p->T)
    TC_TRY(tc_data_window(p->d, NULL, 0, (at + i) / p->T, &(struct tc_batch){ p->tokens + i, p->targets + i, p->starts + i }, err));
  if (p->packed) return TC_OK;
  TC_TRY(tc_data_read(p->d, NULL, 0, at, have, p->tokens, err));
  if (p->end >= 0) tc_documents_starts(p->tokens, rows, p->T, p->end, p->starts);
  TC_TRY(tc_data_read(p->d, NULL, 0, at + 1, have, p->targets, err));
  return tc_data_mask(p->d, NULL, 0, at + 1, have, p->targets, err);
}

static int64_t bytes_of(const struct pass *p, int32_t id)
{
  size_t bytes = 1;
  if (p->tokenizer && !tc_tokenizer_bytes(p->tokenizer, (uint32_t)id, &bytes)) return 0;
  return (int64_t)bytes;
}

static void add_batch(const struct pass *p, struct tc_corpus_loss *out)
{
  for (int64_t i = 0; i < p->B * p->T; i++) {
    if (p->targets[i] < 0) continue;
    out->tokens++;
    out->bytes += bytes_of(p, p->targets[i]);
    out->nats += (double)p->loss[i];
  }
}

static int pass_over(struct pass *p, const char *name, struct tc_corpus_loss *out, struct tc_err *err)
{
  const struct tc_run *r = tc_forward_run(p->x);
  struct tc_forward_progress progress = tc_forward_begin(name, "tokens", p->n);
  for (int64_t at = 0; at < p->n - 1; at += p->B * p->T) {
    TC_TRY(tc_run_agree(r, read_batch(p, at, err), err));
    const struct tc_forward_batch batch = { p->tokens, p->targets, p->packed || p->end >= 0 ? p->starts : NULL };
    TC_TRY(tc_forward_losses(p->x, &batch, p->loss, err));
    add_batch(p, out);
    tc_forward_show(p->x, &progress, TC_MIN(at + p->B * p->T, p->n));
  }
  return out->tokens ? TC_OK : tc_fail(err, TC_EUSER, "%s: none of its tokens counts, so there is no loss",
                                       tc_data_source_name(p->d, 0));
}

/* Collective. `d`: the same tokens on all ranks. end: the token that ends a document, if texts are masked from each
 * other (data.documents = mask); -1: they are joined. tokenizer: whose tokens they are; NULL: a token is a byte if
 * `bytes`, else unknown. name: for the progress line, which rank 0 writes; NULL: none. */
static int corpus_loss(struct tc_corpus_loss *out, struct tc_forward *x, struct tc_data *d, int32_t end,
                       const struct tc_tokenizer *tokenizer, bool bytes, const char *name, struct tc_err *err)
{
  struct pass p = { .x = x, .d = d, .tokenizer = tokenizer, .end = end, .B = tc_forward_sequences(x),
                    .T = tc_forward_context(x), .n = tc_data_tokens(d), .packed = tc_data_packed(d) };
  const size_t rows = (size_t)(p.B * p.T);
  p.tokens = tc_malloc(3 * rows * sizeof *p.tokens);
  p.targets = p.tokens + rows;
  p.starts = p.targets + rows;
  p.loss = tc_malloc(rows * sizeof *p.loss);
  if (p.packed) p.n = tc_data_windows(d, 0) * p.T + 1;
  *out = (struct tc_corpus_loss){ 0 };
  const int rc = pass_over(&p, name, out, err);
  if (!tokenizer && !bytes) out->bytes = 0;
  TC_FREE(p.tokens, p.loss);
  return rc;
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
  struct tc_data_opts o = tc_data_opts_of(r->cfg, false);
  o.word = &path, o.n = 1, o.part = 0;
  o.context = m->context, o.vocab = m->vocab, o.shorter = true;
  int rc = tc_run_data(r, &d, &o, err);
  if (rc == 0) rc = tc_data_of_tokenizer(d, e->model->tokenizer_hash, e->model->path, err);
  if (rc == 0 && r->cfg->data_documents == TC_DOCUMENTS_MASK)
    rc = tc_documents_end(&end, r->cfg->data_end_token, d, err);
  if (rc == 0 && r->rank == 0) warn_of_text(e, d, m->vocab);
  if (rc == 0 && r->rank == 0 && e->tells) tc_data_say_packed(d, "evaluation");
  if (rc == 0) rc = corpus_loss(out, x, d, end, e->model->tokenizer, is_bytes(e, d), e->tells ? t->path : NULL, err);
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
    .foreign = e->model->foreign, .adapter = e->model->adapter, .peft = e->model->peft, .use = TC_TO_EVALUATE,
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
