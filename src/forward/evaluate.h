/* evaluate.h - a trained model on files of tokens and of questions. */
#ifndef TC_FORWARD_EVALUATE_H
#define TC_FORWARD_EVALUATE_H

#include "src/data/data.h"
#include "src/forward/questions.h"
#include "src/launch/launch.h"
#include "src/run/trained.h"

/* The loss of a whole file of tokens. Every token but the first is predicted once, from at most `context` tokens before
 * it: sequence i begins at token i * context, and the last one may be shorter. */
struct tc_corpus_loss {
  int64_t tokens;                /* predicted */
  int64_t bytes;                 /* that those tokens stand for; 0: not known */
  double nats;                   /* the sum of their losses */
};

/* What is evaluated: a file of tokens, or of questions; and what came of it. */
enum tc_eval_kind { TC_EVAL_DATA, TC_EVAL_CHOICES, TC_EVAL_HELLASWAG };
struct tc_eval_task {
  enum tc_eval_kind kind;
  const char *path;
  struct tc_choices questions;
  struct tc_corpus_loss loss;
  struct tc_choices_result answers;
};

struct tc_eval {
  const struct tc_trained *model;      /* borrowed */
  struct tc_eval_task *task;           /* [n_tasks] borrowed */
  int n_tasks;
  bool tells;                          /* progress of each file on stderr */
  struct tc_launch launch;             /* owned by its caller */
  struct tc_exec_memory memory;        /* of rank 0 */
};

/* Local. Reads the questions of a task that has some, to be freed by tc_choices_free. TC_EUSER: not for this model. */
int tc_eval_questions(const struct tc_trained *m, struct tc_eval_task *t, struct tc_err *err);
/* Collective; a tc_launch_body whose ctx is a struct tc_eval. Runs all tasks; rank 0, or each process, keeps what came
 * of them. */
int tc_eval_rank(int rank, void *eval, struct tc_err *err);

#endif
