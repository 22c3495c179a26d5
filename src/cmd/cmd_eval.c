/* cmd_eval.c - `tercio eval`: the loss of a trained model on files, and its answers to questions. */
#include "src/cmd/cmd.h"
#include "src/cmd/out.h"
#include "src/forward/evaluate.h"
#include "src/program/setup.h"
#include "io/ckpt/h5.h"

#include <math.h>
#include <stdlib.h>

struct eval {
  struct tc_trained m;
  bool json;
  int64_t batch;                       /* sequences per rank; 0: as many as the default */
  struct tc_eval run;
};

/* ---- the command line ------------------------------------------------------------------------ */

/* The first flags are those of enum tc_eval_kind. */
static int add_task(void *eval, const struct tc_flag *f, const char *path, struct tc_err *err)
{
  struct eval *e = eval;
  (void)err;
  e->run.task[e->run.n_tasks++] = (struct tc_eval_task){ .kind = (enum tc_eval_kind)(f - tc_flags_eval), .path = path };
  return !*path;
}

const struct tc_flag tc_flags_eval[] = {
  [TC_EVAL_DATA] = { "--data FILE ...", "text (of a model whose tokens are bytes), or shards and folders of tokens, "
    "each with a row of its own; e.g. --data val.txt other.txt", "one or more files", TC_FLAG_CALL, .set = add_task },
  [TC_EVAL_CHOICES] = { "--choices FILE ...", "questions, a line of JSON each: {\"context\": TEXT, \"choices\": "
    "[TEXT, ...], \"label\": N}; e.g. --choices piqa.jsonl", "one or more files", TC_FLAG_CALL, .set = add_task },
  [TC_EVAL_HELLASWAG] = { "--hellaswag FILE ...", "HellaSwag as llm.c's dev/data/hellaswag.py writes it, for GPT-2's "
    "vocabulary; e.g. --hellaswag hellaswag_val.bin", "one or more files", TC_FLAG_CALL, .set = add_task },
  TC_CMD_MODEL_FLAGS(eval, "the model's tokenizer.json (default: the checkpoint's or FOLDER's): for --choices, and to "
    "count bytes"),
  { "--batch N", "sequences at once on a data-parallel rank (default: 2048 tokens); e.g. --batch 8",
    "the sequences of a rank at once, 1 or more", TC_FLAG_WHOLE, .field = offsetof(struct eval, batch), 1, 1 << 20 },
  { "--json", "print a JSON object, with the loss of each answer; e.g. --json > eval.json", .kind = TC_FLAG_YES,
    .field = offsetof(struct eval, json) },
  { .form = NULL }
};
static const struct tc_flags flags = TC_FLAGS_MODEL(tc_flags_eval, "eval");

/* ---- output ---------------------------------------------------------------------------------- */

/* The answer that the model prefers; less than 0: none, since a loss is not finite. */
static json_t *answers_json(const struct tc_eval_task *t)
{
  json_t *answers = json_array();
  for (int64_t i = 0; i < t->questions.n; i++) {
    const struct tc_question *q = &t->questions.question[i];
    json_t *o = tc_out_object("label=%d raw?=%d by_length?=%d", q->label,
                              tc_choices_pick(&t->questions, q, t->answers.nats, false),
                              tc_choices_pick(&t->questions, q, t->answers.nats, true));
    tc_figures(o, "nats", t->answers.nats + q->first_answer, q->n_answers);
    json_array_append_new(answers, o);
  }
  return answers;
}

static const char data_form[] = "file=%-32s tokens=%12lld loss=%10.6f perplexity=%12.6g bits_per_byte?:bits/byte=%10.5f",
  answers_form[] = "file:questions=%-32s questions:number=%12lld accuracy:right=%10.4f accuracy_by_length:by length=%12.4f"
                   "{ answers=%p}";

static void print_task(json_t *list, const struct tc_eval_task *t)
{
  const struct tc_corpus_loss *l = &t->loss;
  const struct tc_choices_result *r = &t->answers;
  const double mean = l->nats / (double)l->tokens;
  if (t->kind == TC_EVAL_DATA)
    tc_out_row(list, data_form, t->path, (long long)l->tokens, mean, exp(mean),
               l->bytes ? l->nats / log(2) / (double)l->bytes : -1);
  else
    tc_out_row(list, answers_form, t->path, (long long)r->questions, (double)r->raw / (double)r->questions,
               (double)r->by_length / (double)r->questions, (void *)(list ? answers_json(t) : NULL));
}

static void print_json(const struct eval *e)
{
  const struct tc_exec_memory *m = &e->run.memory;
  json_t *list = json_array();
  for (int i = 0; i < e->run.n_tasks; i++) print_task(list, &e->run.task[i]);
  const char *adapter = !e->m.cfg->train_lora ? NULL : e->m.adapter ? e->m.adapter : e->m.path;
  tc_out_json(tc_out_object("checkpoint=%s step=%lld adapter?=%s ranks=%d memory=%p results=%p", e->m.path,
    (long long)e->m.step, adapter, e->run.launch.ranks->world, tc_out_object("state=%lld scratch=%lld staging=%lld",
    (long long)m->region[TC_STATE], (long long)m->region[TC_SCRATCH], (long long)m->staging), (void *)list), JSON_INDENT(1));
}

static void print_tables(const struct eval *e)
{
  for (int questions = 0; questions < 2; questions++)
    for (int i = 0, n = 0; i < e->run.n_tasks; i++) {
      if ((e->run.task[i].kind != TC_EVAL_DATA) != questions) continue;
      if (n++ == 0) tc_out_head(questions ? answers_form : data_form);
      print_task(NULL, &e->run.task[i]);
    }
}

/* ---- the command ----------------------------------------------------------------------------- */

static int prepare(struct eval *e, int argc, char **argv, struct tc_err *err)
{
  TC_TRY(tc_args_model(&e->m, &flags, e, argc, argv, err));
  if (!e->run.n_tasks)
    return tc_fail(err, TC_EUSER, "nothing to evaluate: give --data FILES, --choices FILE.jsonl or --hellaswag FILE");
  tc_h5_start();
  TC_TRY(tc_trained_open(&e->m, err));
  e->run.model = &e->m;
  e->run.tells = !e->json;
  for (int i = 0; i < e->run.n_tasks; i++)
    if (e->run.task[i].kind != TC_EVAL_DATA) TC_TRY(tc_eval_questions(&e->m, &e->run.task[i], err));
  return 0;
}

/* The losses are figures of the model, so they are printed; that they say nothing of it is the exit status. */
static int judge(const struct eval *e, bool first)
{
  struct tc_err err;
  for (int i = 0; i < e->run.n_tasks; i++) {
    const struct tc_eval_task *t = &e->run.task[i];
    if (t->kind == TC_EVAL_DATA ? isfinite(t->loss.nats) : !t->answers.not_finite) continue;
    tc_fail(&err, TC_EDIVERGED, "%.300s: the model's losses are not finite (%s): a diverged run's checkpoint? tercio ckpt "
            "tensors shows its weights", t->path, t->kind == TC_EVAL_DATA ? tc_not_finite(t->loss.nats) : "of answers");
    return first ? tc_say_failure(&err) : -err.status;
  }
  return 0;
}

static void eval_free(struct eval *e)
{
  for (int i = 0; i < e->run.n_tasks; i++) {
    tc_choices_free(&e->run.task[i].questions);
    free(e->run.task[i].answers.nats);
  }
  tc_trained_free(&e->m);
  free(e->run.task);
}

int tc_cmd_eval(int argc, char **argv)
{
  struct tc_err err = { 0 };
  struct eval e = { 0 };
  e.run.task = tc_calloc((size_t)argc + 1, sizeof *e.run.task);
  int rc = prepare(&e, argc, argv, &err);
  if (rc == 0) rc = tc_launch_find(&e.run.launch, e.m.cfg, &err);
  const struct tc_ranks *k = e.run.launch.ranks;
  if (rc == 0)
    rc = tc_setup_evaluation(e.m.cfg, e.batch, k->world, k->node_of_rank, tc_ranks_node_devices(k), &err);
  int status = rc < 0 ? tc_launch_say(&e.run.launch, rc, &err) : tc_launch_run(&e.run.launch, tc_eval_rank, &e.run);
  const bool first = e.run.launch.ranks && e.run.launch.ranks->rank == 0;
  if (status == 0 && first) (e.json ? print_json : print_tables)(&e);
  if (status == 0) status = judge(&e, first);
  tc_launch_free(&e.run.launch);
  eval_free(&e);
  return status;
}
