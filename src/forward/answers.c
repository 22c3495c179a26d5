/* answers.c - the losses of answers: an answer is a text, its context before it, and several of them share a
 * sequence. */
#include "src/forward/questions.h"
#include "src/forward/impl.h"

#include <math.h>
#include <stdlib.h>

void tc_choices_free(struct tc_choices *c)
{
  TC_FREE(c->question, c->answer, c->token);
  *c = (struct tc_choices){ 0 };
}

int tc_choices_pick(const struct tc_choices *c, const struct tc_question *q, const double *nats, bool by_length)
{
  int best = -1;
  double least = 0;
  for (int i = 0; i < q->n_answers; i++) {
    const int64_t a = q->first_answer + i;
    const double loss = by_length ? nats[a] / (double)c->answer[a].n : nats[a];
    if (!isfinite(loss)) return -1;
    if (i > 0 && !(loss < least)) continue;
    best = i;
    least = loss;
  }
  return best;
}

/* ---- a batch --------------------------------------------------------------------------------- */

/* Texts one after the other; a text that does not fit after the last one of a sequence begins the next sequence. */
struct pack {
  const struct tc_choices *c;
  int64_t B, T;
  int32_t *tokens, *targets, *starts;  /* [B * T] */
  int64_t *at, *n;                     /* [n_answers] of each answer: where its text is in the batch, its length */
  int64_t used;                        /* elements so far */
};

/* Elements that no text takes see nothing but themselves. */
static void pack_clear(struct pack *p)
{
  p->used = 0;
  for (int64_t i = 0; i < p->B * p->T; i++) {
    p->tokens[i] = 0;
    p->targets[i] = -1;
    p->starts[i] = (int32_t)(i % p->T);
  }
}

/* The text of answer a of question q: context and answer without its last token, whose targets are the answer's tokens.
 * What exceeds a sequence is left out at the beginning of the context. False: the batch has no room for it. */
static bool pack_add(struct pack *p, const struct tc_question *q, int64_t a)
{
  const struct tc_choices *c = p->c;
  const struct tc_answer *answer = &c->answer[a];
  const int64_t all = q->context.n + answer->n, n = TC_MIN(all - 1, p->T), skip = all - 1 - n;
  const int64_t column = p->used % p->T, at = column + n > p->T ? p->used + p->T - column : p->used;
  if (at + n > p->B * p->T) return false;
  for (int64_t i = 0; i <= n; i++) {
    const int64_t k = skip + i, in_answer = k - q->context.n;
    const int32_t id = in_answer < 0 ? c->token[q->context.first + k] : c->token[answer->first + in_answer];
    if (i < n) p->tokens[at + i] = id;
    if (i < n) p->starts[at + i] = (int32_t)(at % p->T);
    if (i > 0 && in_answer >= 0) p->targets[at + i - 1] = id;
  }
  p->at[a] = at;
  p->n[a] = n;
  p->used = at + n;
  return true;
}

/* ---- all answers ----------------------------------------------------------------------------- */

/* Fills a batch with answers from number `first` of question *q on; returns the number after the last. */
static int64_t fill(struct pack *p, int64_t first, int64_t *q)
{
  const struct tc_choices *c = p->c;
  int64_t a = first;
  pack_clear(p);
  for (; a < c->n_answers; a++) {
    while (a >= c->question[*q].first_answer + c->question[*q].n_answers) ++*q;
    if (!pack_add(p, &c->question[*q], a)) break;
  }
  TC_ASSERT(a > first);                /* a text is at most a sequence */
  return a;
}

static int score(struct tc_forward *x, struct pack *p, double *nats, const char *name, struct tc_err *err)
{
  const int64_t all = p->c->n_answers;
  struct tc_forward_progress progress = tc_forward_begin(name, "answers", all);
  const struct tc_forward_batch batch = { p->tokens, p->targets, p->starts };
  float *loss = tc_malloc((size_t)(p->B * p->T) * sizeof *loss);
  int64_t q = 0;
  int rc = 0;
  for (int64_t a = 0, end; a < all && rc == 0; a = end) {
    end = fill(p, a, &q);
    rc = tc_forward_losses(x, &batch, loss, err);
    for (int64_t i = a; i < end && rc == 0; i++) {
      nats[i] = 0;
      for (int64_t k = p->at[i]; k < p->at[i] + p->n[i]; k++) nats[i] += (double)loss[k];
    }
    if (rc == 0) tc_forward_show(x, &progress, end);
  }
  free(loss);
  return rc;
}

int tc_choices_run(struct tc_choices_result *out, struct tc_forward *x, const struct tc_choices *c, const char *name,
                   struct tc_err *err)
{
  struct pack p = { .c = c, .B = tc_forward_sequences(x), .T = tc_forward_context(x) };
  const size_t elems = (size_t)(p.B * p.T), answers = (size_t)TC_MAX(c->n_answers, 1);
  *out = (struct tc_choices_result){ .questions = c->n };
  out->nats = tc_calloc(answers, sizeof *out->nats);
  p.tokens = tc_malloc(3 * elems * sizeof *p.tokens);
  p.targets = p.tokens + elems;
  p.starts = p.targets + elems;
  p.at = tc_malloc(2 * answers * sizeof *p.at);
  p.n = p.at + answers;
  const int rc = score(x, &p, out->nats, name, err);
  for (int64_t a = 0; a < c->n_answers && rc == 0; a++) out->not_finite += !isfinite(out->nats[a]);
  for (int64_t i = 0; i < c->n && rc == 0; i++) {
    const struct tc_question *q = &c->question[i];
    out->raw += tc_choices_pick(c, q, out->nats, false) == q->label;
    out->by_length += tc_choices_pick(c, q, out->nats, true) == q->label;
  }
  TC_FREE(p.tokens, p.at);
  return rc;
}
