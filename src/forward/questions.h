/* questions.h - questions with several answers: which one does the model find most likely?
 *
 * In: a file of questions. Out: the loss of each answer, and how many questions are answered as they should be, by
 * the smallest sum of losses (raw) and by the smallest loss a token (by length).
 *
 *   JSON lines  {"context": "...", "choices": ["...", "..."], "label": 1}. An answer's tokens are those of context
 *               and answer together, from the number of tokens of the context alone (without blanks at its
 *               end) on, as in the Language Model Evaluation Harness.
 *   .bin        llm.c's HellaSwag: 256 int32 {20240522, 1, questions, ...}, then uint16 of GPT-2's tokens. */
#ifndef TC_QUESTIONS_H
#define TC_QUESTIONS_H

#include "src/forward/forward.h"
#include "src/token/token.h"

enum { TC_CHOICES_MOST = 256 };        /* answers of a question */

struct tc_answer { int64_t first, n; };          /* its tokens in tc_choices.token */
struct tc_question {
  struct tc_answer context;
  int64_t first_answer;
  int n_answers, label;
};
struct tc_choices {
  struct tc_question *question;
  int64_t n, cap;
  struct tc_answer *answer;
  int64_t n_answers, cap_answers;
  int32_t *token;
  int64_t n_tokens, cap_tokens;
};

/* Local. tokenizer NULL: a token is a byte. context, vocab: the model's. TC_EUSER names the line or the question
 * that is wrong, or a question whose answers do not fit into the context. To be freed also after a failure. */
int tc_choices_jsonl(struct tc_choices *out, const char *path, const struct tc_tokenizer *tokenizer,
                     int64_t context, int64_t vocab, struct tc_err *err);
int tc_choices_hellaswag(struct tc_choices *out, const char *path, int64_t context, int64_t vocab,
                         struct tc_err *err);
void tc_choices_free(struct tc_choices *c);

struct tc_choices_result {
  int64_t questions, raw, by_length;   /* all; right ones */
  int64_t not_finite;                  /* answers whose loss is not finite: their questions are not right */
  double *nats;                        /* [n_answers] the sum of the losses of each answer's tokens; owned */
};

/* Local. Of a question's answers the one with the smallest loss: its number. The first of equal ones; -1 if the loss
 * of any is not finite, since then no answer was found more likely than another. */
int tc_choices_pick(const struct tc_choices *c, const struct tc_question *q, const double *nats, bool by_length);

/* Collective. The same questions on all ranks; x was made with `documents`. name: for the progress line; NULL: none.
 * out->nats is to be freed. */
int tc_choices_run(struct tc_choices_result *out, struct tc_forward *x, const struct tc_choices *c, const char *name,
                   struct tc_err *err);

#endif
