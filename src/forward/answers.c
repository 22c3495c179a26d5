/* answers.c - the losses of answers: each answer is one sequence, its context before it. */
#include "src/forward/questions.h"

#include <stdlib.h>
#include <string.h>

#define SHOW_NS INT64_C(5000000000)

void tc_choices_free(struct tc_choices *c)
{
  free(c->question);
  free(c->answer);
  free(c->token);
  *c = (struct tc_choices){ 0 };
}

int tc_choices_pick(const struct tc_choices *c, const struct tc_question *q, const double *nats, bool by_length)
{
  int best = 0;
  double least = 0;
  for (int i = 0; i < q->n_answers; i++) {
    const int64_t a = q->first_answer + i;
    const double loss = by_length ? nats[a] / (double)c->answer[a].n : nats[a];
    if (i > 0 && !(loss < least)) continue;
    best = i;
    least = loss;
  }
  return best;
}

/* Puts answer a of question q into a row: context and answer without its last token, whose targets are the
 * answer's tokens. What does not fit is left out at the beginning of the context. */
static void put_answer(const struct tc_choices *c, const struct tc_question *q, const struct tc_answer *a,
                       int64_t T, int32_t *tokens, int32_t *targets)
{
  const int64_t all = q->context.n + a->n, skip = TC_MAX(all - 1 - T, 0);
  memset(tokens, 0, (size_t)T * sizeof *tokens);
  memset(targets, -1, (size_t)T * sizeof *targets);
  for (int64_t i = skip; i < all; i++) {
    const int32_t id = i < q->context.n ? c->token[q->context.first + i] : c->token[a->first + i - q->context.n];
    if (i < all - 1) tokens[i - skip] = id;
    if (i >= q->context.n) targets[i - skip - 1] = id;
  }
}

static void show(const struct tc_forward *x, const char *name, int64_t done, int64_t n, int64_t begin_ns,
                 int64_t *shown_ns)
{
  const int64_t now = tc_now_ns();
  if (!name || tc_forward_run(x)->rank != 0 || now - *shown_ns < SHOW_NS) return;
  const double s = (double)(now - begin_ns) * 1e-9;
  tc_log("%s: %lld of %lld answers, %.0f s left", name, (long long)done, (long long)n,
         s * (double)(n - done) / (double)done);
  *shown_ns = now;
}

/* nats[n_answers] of all answers, a batch at a time. */
static int score(struct tc_forward *x, const struct tc_choices *c, double *nats, const char *name, struct tc_err *err)
{
  const int64_t B = tc_forward_batch(x), T = tc_forward_context(x), begin = tc_now_ns();
  int32_t *tokens = tc_calloc((size_t)(2 * B * T), sizeof *tokens), *targets = tokens + B * T;
  float *loss = tc_malloc((size_t)(B * T) * sizeof *loss);
  int64_t shown = begin, q = 0;
  int rc = 0;
  for (int64_t a = 0; a < c->n_answers && rc == 0; a += B) {
    const int64_t n = TC_MIN(B, c->n_answers - a);
    memset(targets, -1, (size_t)(B * T) * sizeof *targets);
    for (int64_t i = 0; i < n; i++) {
      while (a + i >= c->question[q].first_answer + c->question[q].n_answers) q++;
      put_answer(c, &c->question[q], &c->answer[a + i], T, tokens + i * T, targets + i * T);
    }
    rc = tc_forward_losses(x, tokens, targets, loss, err);
    for (int64_t i = 0; i < n && rc == 0; i++) {
      nats[a + i] = 0;
      for (int64_t k = 0; k < T; k++) nats[a + i] += (double)loss[i * T + k];
    }
    if (rc == 0) show(x, name, a + n, c->n_answers, begin, &shown);
  }
  free(tokens);
  free(loss);
  return rc;
}

int tc_choices_run(struct tc_choices_result *out, struct tc_forward *x, const struct tc_choices *c, const char *name,
                   struct tc_err *err)
{
  *out = (struct tc_choices_result){ .questions = c->n };
  out->nats = tc_calloc((size_t)TC_MAX(c->n_answers, 1), sizeof *out->nats);
  TC_TRY(score(x, c, out->nats, name, err));
  for (int64_t i = 0; i < c->n; i++) {
    const struct tc_question *q = &c->question[i];
    out->raw += tc_choices_pick(c, q, out->nats, false) == q->label;
    out->by_length += tc_choices_pick(c, q, out->nats, true) == q->label;
  }
  return 0;
}
