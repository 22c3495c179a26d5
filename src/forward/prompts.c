/* prompts.c - text as prompts for a model: encoded by its tokenizer, within its vocabulary; or conversations, in the text of its
 * chat template. */
#include "src/forward/sample.h"
#include "src/files/files.h"
#include "src/files/input.h"
#include "src/shards/chat.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 200, MOST_BYTES = 1 << 26 };

/* What reads prompts: e NULL: a token is a byte; chat NULL: they are plain text; lines: of JSON. */
struct look {
  struct tc_prompts *out;
  const struct tc_trained *m;
  struct tc_encoder *e;
  struct tc_chat *chat;
  bool lines;
};

static long long number_of(const struct look *x) { return (long long)(x->out->n / x->out->copies); }

/* The sequences of one prompt. */
static int add_ids(const struct look *x, const struct tc_ids *ids, struct tc_err *err)
{
  char shown[TC_TOKEN_SHOWN];
  if (ids->n == 0)
    return tc_fail(err, TC_EUSER, "prompt %lld is empty: a token is predicted from at least one before it", number_of(x));
  if (x->out->n + x->out->copies > TC_PROMPTS)
    return tc_fail(err, TC_EUSER, "more than %d sequences at once; fewer prompts, or a smaller --n, would fit", TC_PROMPTS);
  for (size_t i = 0; i < ids->n; i++)
    if (ids->id[i] >= x->m->cfg->model_vocab)
      return tc_fail(err, TC_EUSER, "prompt %lld has token %u, but the model's vocabulary has %lld: text without %s would fit",
                     number_of(x), ids->id[i], (long long)x->m->cfg->model_vocab,
                     x->m->tokenizer ? tc_token_shown(x->m->tokenizer, ids->id[i], shown) : "this byte");
  for (int64_t k = 0; k < x->out->copies; k++) {
    int32_t *token = tc_malloc(ids->n * sizeof *token);
    for (size_t i = 0; i < ids->n; i++) token[i] = (int32_t)ids->id[i];
    TC_APPEND(x->out->prompt, x->out->n, x->out->cap, (struct tc_prompt){ token, (int64_t)ids->n });
  }
  return 0;
}

/* ---- conversations ------------------------------------------------------------------- */

static int encode_turns(const struct look *x, const struct tc_chat_turn *turn, size_t n, struct tc_ids *ids, struct tc_err *err)
{
  struct tc_chat_text text = { 0 };
  int rc = tc_chat_ask(x->chat, turn, n, &text, err);
  if (rc == 0) rc = tc_encode(x->e, text.s, text.n, TC_INVALID_REFUSE, ids, NULL, err);
  tc_chat_text_free(&text);
  return rc;
}

/* A line of JSON. */
static int encode_line(const struct look *x, const char *line, size_t n, struct tc_ids *ids, struct tc_err *err)
{
  struct tc_chat_line l = { .asks = true };
  json_error_t why;
  json_t *j = json_loadb(line, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &why);
  int rc = json_is_object(j) ? tc_chat_line_read(&l, j, tc_tokenizer_vocab(x->m->tokenizer), err)
    : tc_fail(err, TC_EUSER, "it is no object of JSON%s%s", j ? "" : ": ", j ? "" : why.text);
  if (rc == 0 && l.raw) rc = tc_fail(err, TC_EUSER, "it has tokens, and not turns, which --chat is for");
  if (rc == 0) rc = encode_turns(x, l.turn, l.n, ids, err);
  json_decref(j);
  tc_chat_line_free(&l);
  return rc;
}

static int encode_chat(const struct look *x, const char *text, size_t n, struct tc_ids *ids, struct tc_err *err)
{
  const struct tc_chat_turn user = { TC_CHAT_USER, false, text, n };
  if (tc_utf8_valid(text, n) < n) return tc_fail(err, TC_EUSER, "prompt %lld is not UTF-8", number_of(x));
  const int rc = x->lines ? encode_line(x, text, n, ids, err) : encode_turns(x, &user, 1, ids, err);
  if (rc == 0) return 0;
  struct tc_err why = *err;
  return tc_fail(err, why.status, "prompt %lld: %s", number_of(x), why.text);
}

/* The template of this name or, if that is "", of the tokenizer: in its folder, or as the checkpoint took it along. */
static int find_template(struct tc_chat **out, const struct tc_trained *m, const char *name, struct tc_err *err)
{
  const char *given = m->tokenizer_file;
  if (!m->tokenizer)
    return tc_fail(err, TC_EUSER, "--chat needs a tokenizer, whose tokens a chat template has, but a token of the model is a byte");
  if (!given && !m->foreign) {
    json_t *files = m->beside ? json_loads(m->beside, 0, NULL) : NULL;
    const int rc = tc_chat_beside(out, name, files, m->path, m->tokenizer, err);
    json_decref(files);
    return rc;
  }
  char *path = given ? tc_strdup(given) : tc_sprintf("%s/" TC_TOKENIZER_FILE, m->path);
  const int rc = tc_chat_new(out, name, path, m->tokenizer, err);
  free(path);
  return rc;
}

/* ---- prompts --------------------------------------------------------------------------- */

static int add_prompt(const struct look *x, const char *text, size_t n, struct tc_err *err)
{
  struct tc_ids ids = { 0 };
  int rc = x->chat ? encode_chat(x, text, n, &ids, err) : tc_encode_begun(x->e, text, n, &ids, err);
  if (rc == 0) rc = add_ids(x, &ids, err);
  tc_ids_free(&ids);
  return rc;
}

static int add_lines(const struct look *x, const char *file, struct tc_err *err)
{
  char *text;
  size_t bytes;
  TC_TRY(tc_read_text(&text, &bytes, file, "file of prompts", MOST_BYTES, err));
  int rc = 0;
  for (char *at = text; *at && rc == 0;) {
    const size_t n = strcspn(at, "\n"), cut = x->chat && n && at[n - 1] == '\r';
    const bool blank = x->chat && x->lines && strspn(at, " \t\r") >= n;
    if (!blank) rc = add_prompt(x, at, n - cut, err);
    at += n + (at[n] == '\n');
  }
  free(text);
  if (rc == 0 && x->out->n == 0) rc = tc_fail(err, TC_EUSER, "%s has no prompt", file);
  return rc;
}

static void add_end(struct tc_sampling *how, int64_t token)
{
  if (token >= 0) how->end[how->n_ends++] = (int32_t)token;
}

int tc_prompts_read(struct tc_prompts *out, struct tc_sampling *how, const struct tc_trained *m, const char *chat, const char *text,
                    const char *file, struct tc_err *err)
{
  struct look x = { .out = out, .m = m, .lines = file && tc_ends_with(file, ".jsonl") };
  if (!m->tokenizer && !tc_trained_bytes(m))
    return tc_fail(err, TC_EUSER, "the model's tokens are not bytes: give --tokenizer tokenizer.json");
  int rc = m->tokenizer ? tc_encoder_new(&x.e, m->tokenizer, err) : 0;
  if (rc == 0 && chat) rc = find_template(&x.chat, m, chat, err);
  if (rc == 0) rc = text ? add_prompt(&x, text, strlen(text), err) : add_lines(&x, file, err);
  if (m->tokenizer) add_end(how, tc_tokenizer_end_of_text(m->tokenizer));
  if (x.chat) add_end(how, tc_chat_end(x.chat, m->tokenizer));
  if (x.e) tc_encoder_free(x.e);
  tc_chat_free(x.chat);
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
