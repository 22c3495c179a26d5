/* prompts.c - text as prompts for a model: encoded by its tokenizer, within its vocabulary. */
#include "src/forward/sample.h"
#include "src/files/input.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 200, MOST_BYTES = 1 << 26 };

struct look { struct tc_prompts *out; const struct tc_trained *m; };

/* The sequences of one prompt. */
static int add_prompt(const struct look *x, struct tc_encoder *e, const char *text, size_t n, struct tc_err *err)
{
  struct tc_ids ids = { 0 };
  char shown[TC_TOKEN_SHOWN];
  int rc = tc_encode_begun(e, text, n, &ids, err);
  if (rc == 0 && ids.n == 0)
    rc = tc_fail(err, TC_EUSER, "prompt %lld is empty: a token is predicted from at least one before it",
                 (long long)(x->out->n / x->out->copies));
  if (rc == 0 && x->out->n + x->out->copies > TC_PROMPTS)
    rc = tc_fail(err, TC_EUSER, "more than %d sequences at once; fewer prompts, or a smaller --n, would fit",
                 TC_PROMPTS);
  for (size_t i = 0; i < ids.n && rc == 0; i++)
    if (ids.id[i] >= x->m->cfg->model_vocab)
      rc = tc_fail(err, TC_EUSER, "prompt %lld has token %u, but the model's vocabulary has %lld: text without %s would fit",
                   (long long)(x->out->n / x->out->copies), ids.id[i], (long long)x->m->cfg->model_vocab,
                   x->m->tokenizer ? tc_token_shown(x->m->tokenizer, ids.id[i], shown) : "this byte");
  for (int64_t k = 0; k < x->out->copies && rc == 0; k++) {
    int32_t *token = tc_malloc(ids.n * sizeof *token);
    for (size_t i = 0; i < ids.n; i++) token[i] = (int32_t)ids.id[i];
    TC_APPEND(x->out->prompt, x->out->n, x->out->cap, (struct tc_prompt){ token, (int64_t)ids.n });
  }
  tc_ids_free(&ids);
  return rc;
}

static int add_lines(const struct look *x, struct tc_encoder *e, const char *file, struct tc_err *err)
{
  char *text;
  size_t bytes;
  TC_TRY(tc_read_text(&text, &bytes, file, "file of prompts", MOST_BYTES, err));
  int rc = 0;
  for (char *at = text; *at && rc == 0;) {
    const size_t n = strcspn(at, "\n");
    rc = add_prompt(x, e, at, n, err);
    at += n + (at[n] == '\n');
  }
  free(text);
  if (rc == 0 && x->out->n == 0) rc = tc_fail(err, TC_EUSER, "%s has no prompt", file);
  return rc;
}

int tc_prompts_read(struct tc_prompts *out, struct tc_sampling *how, const struct tc_trained *m, const char *text,
                    const char *file, struct tc_err *err)
{
  const struct look x = { out, m };
  struct tc_encoder *e = NULL;
  if (!m->tokenizer && !tc_trained_bytes(m))
    return tc_fail(err, TC_EUSER, "the model's tokens are not bytes: give --tokenizer tokenizer.json");
  if (m->tokenizer) TC_TRY(tc_encoder_new(&e, m->tokenizer, err));
  const int rc = text ? add_prompt(&x, e, text, strlen(text), err) : add_lines(&x, e, file, err);
  if (e) tc_encoder_free(e);
  how->end = m->tokenizer ? (int32_t)tc_tokenizer_end_of_text(m->tokenizer) : -1;
  if (m->tokenizer) how->known = TC_MIN(tc_tokenizer_vocab(m->tokenizer), m->cfg->model_vocab);
  int64_t room = m->cfg->model_context;
  for (int64_t i = 0; i < out->n; i++) room = TC_MIN(room, m->cfg->model_context + 1 - out->prompt[i].n);
  if (!how->tokens) how->tokens = how->window ? TOKENS : TC_MAX(TC_MIN(TOKENS, room), 1);
  return rc;
}

void tc_prompts_free(struct tc_prompts *p)
{
  for (int64_t i = 0; i < p->n; i++) free((void *)(uintptr_t)p->prompt[i].token);
  free(p->prompt);
}
