/* eval.c - `tercio eval`: the loss of a trained model on files, and its answers to questions. */
#include "src/cmd/cmd.h"
#include "src/cmd/model.h"
#include "src/forward/questions.h"
#include "src/forward/corpus.h"
#include "src/data/documents.h"
#include "src/launch/launch.h"
#include "src/program/setup.h"
#include "io/ckpt/h5.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What is evaluated: a file of tokens, or of questions. */
enum kind { DATA, CHOICES, HELLASWAG };
struct task {
  enum kind kind;
  const char *path;
  struct tc_choices questions;
  struct tc_corpus_loss loss;
  struct tc_choices_result answers;
};

struct eval {
  struct tc_cmd_model m;
  bool json;
  int64_t batch;                       /* sequences per rank; 0: as many as the default */
  struct task *task;
  int n_tasks;
  struct tc_launch launch;
  struct tc_exec_memory memory;        /* of rank 0 */
};

/* ---- the command line ------------------------------------------------------------------------ */

/* The first flags are those of enum kind. */
static bool add_task(void *eval, const struct tc_flag *f, const char *path)
{
  struct eval *e = eval;
  e->task[e->n_tasks++] = (struct task){ .kind = (enum kind)(f - tc_flags_eval), .path = path };
  return *path != '\0';
}

const struct tc_flag tc_flags_eval[] = {
  [DATA] = { "--data FILE ...", "text (of a model whose tokens are bytes), or shards and folders of tokens, each with "
    "a row of its own; e.g. --data val.txt other.txt", "one or more files", TC_FLAG_CALL, 0, 0, 0, add_task },
  [CHOICES] = { "--choices FILE ...", "questions, a line of JSON each: {\"context\": TEXT, \"choices\": [TEXT, ...], "
    "\"label\": N}; e.g. --choices piqa.jsonl", "one or more files", TC_FLAG_CALL, 0, 0, 0, add_task },
  [HELLASWAG] = { "--hellaswag FILE ...", "HellaSwag as llm.c's dev/data/hellaswag.py writes it, for GPT-2's "
    "vocabulary; e.g. --hellaswag hellaswag_val.bin", "one or more files", TC_FLAG_CALL, 0, 0, 0, add_task },
  TC_CMD_MODEL_FLAGS(eval, "the model's tokenizer.json (default: the checkpoint's or FOLDER's): for --choices, and to "
    "count bytes"),
  { "--batch N", "sequences at once on a data-parallel rank (default: 2048 tokens); e.g. --batch 8",
    "the sequences of a rank at once, 1 or more", TC_FLAG_WHOLE, offsetof(struct eval, batch), 1, 1 << 20, NULL },
  { "--json", "print a JSON object, with the loss of each answer; e.g. --json > eval.json", NULL, TC_FLAG_YES,
    offsetof(struct eval, json), 0, 0, NULL },
  { NULL, NULL, NULL, TC_FLAG_HELP, 0, 0, 0, NULL }
};

static int parse(struct eval *e, int argc, char **argv, struct tc_err *err)
{
  for (int i = 1; i < argc; i++) {
    const int known = tc_flags_read(tc_flags_eval, e, argc, argv, &i, "eval", err);
    if (known < 0) return known;
    if (!known) TC_TRY(tc_cmd_model_arg(&e->m, argc, argv, &i, err));
  }
  if (!e->m.path)
    return tc_fail(err, TC_EUSER, "name a checkpoint, a folder of checkpoints or one of Hugging Face's; see tercio "
                   "eval --help");
  if (!e->n_tasks)
    return tc_fail(err, TC_EUSER, "nothing to evaluate: give --data FILES, --choices FILE.jsonl or --hellaswag FILE");
  return 0;
}

/* ---- setting up ------------------------------------------------------------------------------ */

static int read_questions(struct eval *e, struct task *t, struct tc_err *err)
{
  const int64_t context = e->m.cfg->model_context, vocab = e->m.cfg->model_vocab;
  if (t->kind == HELLASWAG) return tc_choices_hellaswag(&t->questions, t->path, context, vocab, err);
  if (!e->m.tokenizer && !tc_cmd_model_bytes(&e->m))
    return tc_fail(err, TC_EUSER, "%s is text, and the model's tokens are not bytes: give --tokenizer tokenizer.json",
                   t->path);
  return tc_choices_jsonl(&t->questions, t->path, e->m.tokenizer, context, vocab, err);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

/* Whether a token of the data is a byte, where there is no tokenizer: as their headers say, else as the model's. */
static bool is_bytes(const struct eval *e, const struct tc_data *d)
{
  uint64_t hash;
  return tc_cmd_model_bytes(&e->m) && (!tc_data_tokenizer(d, &hash) || !hash);
}

static void warn_of_text(const struct eval *e, const struct tc_data *d, int64_t vocab)
{
  uint64_t hash;
  const char *file = tc_data_tokenizer(d, &hash);
  if (file && !hash && vocab != 256 && !e->m.tokenizer_hash)
    tc_warn("a token of %s is a byte, and the model has a vocabulary of %lld: if its tokens are not bytes, the "
            "loss means nothing; make shards with its tokenizer.json (tercio data --tokenizer)", file,
            (long long)vocab);
}

static int run_data(struct eval *e, struct tc_forward *x, struct task *t, struct tc_corpus_loss *out,
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
  if (rc == 0) rc = tc_data_of_tokenizer(d, e->m.tokenizer_hash, e->m.path, err);
  if (rc == 0 && r->cfg->data_documents == TC_DOCUMENTS_MASK)
    rc = tc_documents_end(&end, r->cfg->data_end_token, d, err);
  rc = tc_run_agree(r, rc, err);
  if (rc == 0 && r->rank == 0) warn_of_text(e, d, m->vocab);
  if (rc == 0) rc = tc_corpus_loss(out, x, d, end, e->m.tokenizer, is_bytes(e, d), e->json ? NULL : t->path, err);
  if (d) tc_data_free(d);
  free(path);
  return rc;
}

static bool asks_questions(const struct eval *e)
{
  for (int i = 0; i < e->n_tasks; i++)
    if (e->task[i].kind != DATA) return true;
  return false;
}

static int run_rank(int rank, void *eval, struct tc_err *err)
{
  struct eval *e = eval;
  const struct tc_launch *l = &e->launch;
  const struct tc_forward_args args = {
    .cfg = l->cfg, .ranks = l->ranks, .rank_names = l->rank_names, .rank = rank, .hub = l->hub, .path = e->m.path,
    .foreign = e->m.foreign, .use = TC_TO_EVALUATE,
    .documents = asks_questions(e), .mpi = l->mpi && l->mpi_world > 1,
    .threads = tc_launch_threads(l->cfg, l->ranks, rank) };
  struct tc_forward *x = NULL;
  int rc = tc_forward_new(&x, &args, err);
  if (rank == 0 && rc == 0) e->memory = tc_exec_memory(tc_forward_run(x)->exec);
  for (int i = 0; i < e->n_tasks && rc == 0; i++) {
    struct task *t = &e->task[i];
    struct tc_corpus_loss loss;
    struct tc_choices_result answers = { 0 };
    if (t->kind == DATA) rc = run_data(e, x, t, &loss, err);
    else rc = tc_choices_run(&answers, x, &t->questions, e->json ? NULL : t->path, err);
    const bool keeps = rank == 0 || !l->hub;                    /* of threads, rank 0 alone writes here */
    if (keeps && rc == 0 && t->kind == DATA) t->loss = loss;
    if (keeps && t->kind != DATA) t->answers = answers;
    else free(answers.nats);
  }
  tc_forward_free(x, rc == TC_EPEER);
  return rc;
}

/* ---- output ---------------------------------------------------------------------------------- */

static void print_data(const struct task *t, bool first)
{
  const struct tc_corpus_loss *l = &t->loss;
  const double mean = l->nats / (double)l->tokens;
  if (first) printf("%-32s %12s %10s %12s %10s\n", "file", "tokens", "loss", "perplexity", "bits/byte");
  printf("%-32s %12lld %10.6f %12.6g", t->path, (long long)l->tokens,
         tc_unsigned_nan(mean), tc_unsigned_nan(exp(mean)));
  if (l->bytes) printf(" %10.5f\n", tc_unsigned_nan(l->nats / log(2) / (double)l->bytes));
  else printf(" %10s\n", "-");
}

static void print_answers(const struct task *t, bool first)
{
  const struct tc_choices_result *r = &t->answers;
  if (first) printf("%-32s %12s %10s %12s\n", "questions", "number", "right", "by length");
  printf("%-32s %12lld %10.4f %12.4f\n", t->path, (long long)r->questions, (double)r->raw / (double)r->questions,
         (double)r->by_length / (double)r->questions);
}

/* The answer that the model prefers; null: none, since a loss is not finite. */
static json_t *pick_json(const struct task *t, const struct tc_question *q, bool by_length)
{
  const int pick = tc_choices_pick(&t->questions, q, t->answers.nats, by_length);
  return pick < 0 ? json_null() : json_integer(pick);
}

static json_t *task_json(const struct task *t)
{
  const struct tc_corpus_loss *l = &t->loss;
  const struct tc_choices_result *r = &t->answers;
  if (t->kind == DATA) {
    const double mean = l->nats / (double)l->tokens;
    json_t *o = json_pack("{s:o, s:I, s:n, s:n, s:n}", "file", tc_text_json(t->path), "tokens",
                          (json_int_t)l->tokens, "loss", "perplexity", "bits_per_byte");
    tc_figure(o, "loss", mean);
    tc_figure(o, "perplexity", exp(mean));
    if (l->bytes) tc_figure(o, "bits_per_byte", l->nats / log(2) / (double)l->bytes);
    return o;
  }
  json_t *picks = json_array();
  for (int64_t i = 0; i < t->questions.n; i++) {
    const struct tc_question *q = &t->questions.question[i];
    json_t *o = json_pack("{s:i, s:o, s:o}", "label", q->label, "raw", pick_json(t, q, false), "by_length",
                          pick_json(t, q, true));
    tc_figures(o, "nats", r->nats + q->first_answer, q->n_answers);
    json_array_append_new(picks, o);
  }
  json_t *o = json_pack("{s:o, s:I}", "file", tc_text_json(t->path), "questions", (json_int_t)r->questions);
  tc_figure(o, "accuracy", (double)r->raw / (double)r->questions);
  tc_figure(o, "accuracy_by_length", (double)r->by_length / (double)r->questions);
  json_object_set_new(o, "answers", picks);
  return o;
}

static void print_results(const struct eval *e)
{
  if (e->json) {
    json_t *list = json_array();
    for (int i = 0; i < e->n_tasks; i++) json_array_append_new(list, task_json(&e->task[i]));
    const struct tc_exec_memory *m = &e->memory;
    json_t *top = json_pack("{s:o, s:I, s:i, s:{s:I, s:I, s:I}, s:o}", "checkpoint", tc_text_json(e->m.path), "step",
                            (json_int_t)e->m.step, "ranks", e->launch.ranks->world, "memory", "state",
                            (json_int_t)m->region[TC_STATE], "scratch", (json_int_t)m->region[TC_SCRATCH], "staging",
                            (json_int_t)m->staging, "results", list);
    json_dumpf(top, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(top);
    return;
  }
  for (int questions = 0; questions < 2; questions++) {
    bool first = true;
    for (int i = 0; i < e->n_tasks; i++) {
      if ((e->task[i].kind != DATA) != questions) continue;
      if (questions) print_answers(&e->task[i], first);
      else print_data(&e->task[i], first);
      first = false;
    }
  }
}

/* ---- the command ----------------------------------------------------------------------------- */

static int prepare(struct eval *e, int argc, char **argv, struct tc_err *err)
{
  TC_TRY(parse(e, argc, argv, err));
  tc_h5_start();
  TC_TRY(tc_cmd_model_open(&e->m, err));
  for (int i = 0; i < e->n_tasks; i++)
    if (e->task[i].kind != DATA) TC_TRY(read_questions(e, &e->task[i], err));
  return 0;
}

/* The losses are figures of the model, so they are printed; that they say nothing of it is the exit status. */
static int judge(const struct eval *e, bool first)
{
  struct tc_err err;
  for (int i = 0; i < e->n_tasks; i++) {
    const struct task *t = &e->task[i];
    if (t->kind == DATA ? isfinite(t->loss.nats) : !t->answers.not_finite) continue;
    tc_fail(&err, TC_EDIVERGED, "%.300s: the model's losses are not finite (%s): a diverged run's checkpoint? tercio ckpt "
            "tensors shows its weights", t->path, t->kind == DATA ? tc_not_finite(t->loss.nats) : "of answers");
    return first ? tc_say_failure(&err) : -err.status;
  }
  return 0;
}

static void eval_free(struct eval *e)
{
  for (int i = 0; i < e->n_tasks; i++) {
    tc_choices_free(&e->task[i].questions);
    free(e->task[i].answers.nats);
  }
  tc_cmd_model_free(&e->m);
  free(e->task);
}

int tc_cmd_eval(int argc, char **argv)
{
  struct tc_err err = { 0 };
  struct eval e = { 0 };
  e.task = tc_calloc((size_t)argc + 1, sizeof *e.task);
  int rc = prepare(&e, argc, argv, &err);
  if (rc == 0) rc = tc_launch_find(&e.launch, e.m.cfg, &err);
  const struct tc_ranks *k = e.launch.ranks;
  if (rc == 0)
    rc = tc_setup_evaluation(e.m.cfg, e.batch, k->world, k->node_of_rank, tc_ranks_node_devices(k), &err);
  int status = rc < 0 ? tc_launch_say(&e.launch, rc, &err) : tc_launch_run(&e.launch, run_rank, &e);
  const bool first = e.launch.ranks && e.launch.ranks->rank == 0;
  if (status == 0 && first) print_results(&e);
  if (status == 0) status = judge(&e, first);
  tc_launch_free(&e.launch);
  eval_free(&e);
  return status;
}
