/* questions.c - files of questions: JSON lines, and llm.c's HellaSwag. Nothing in them is trusted. */
#include "src/forward/questions.h"
#include "src/files/input.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- adding ---------------------------------------------------------------------------------- */

static void add_token(struct tc_choices *c, int32_t id)
{
  TC_APPEND(c->token, c->n_tokens, c->cap_tokens, id);
}

static struct tc_question *add_question(struct tc_choices *c)
{
  TC_GROW(c->question, c->n, c->cap);
  c->question[c->n] = (struct tc_question){ .first_answer = c->n_answers };
  return &c->question[c->n++];
}

/* `where`: "FILE:LINE" or "FILE: question N". t: whose tokens they are; NULL: not known, or bytes. */
static int check_question(const struct tc_choices *c, const struct tc_question *q, const struct tc_tokenizer *t,
                          int64_t context, int64_t vocab, const char *where, struct tc_err *err)
{
  char shown[TC_TOKEN_SHOWN];
  if (q->n_answers < 2 || q->n_answers > TC_CHOICES_MOST)
    return tc_fail(err, TC_EUSER, "%s: %d choices; 2 to %d would fit", where, q->n_answers, TC_CHOICES_MOST);
  if (q->label < 0 || q->label >= q->n_answers)
    return tc_fail(err, TC_EUSER, "%s: the label is %d, but choices are numbered 0 to %d", where, q->label,
                   q->n_answers - 1);
  if (q->context.n == 0)
    return tc_fail(err, TC_EUSER, "%s: the context has no token, so nothing predicts a choice's first one", where);
  for (int i = 0; i < q->n_answers; i++) {
    const struct tc_answer *a = &c->answer[q->first_answer + i];
    if (a->n == 0) return tc_fail(err, TC_EUSER, "%s: choice %d has no token", where, i);
    if (a->n > context)
      return tc_fail(err, TC_EUSER, "%s: choice %d has %lld tokens, more than the model's context of %lld", where, i,
                     (long long)a->n, (long long)context);
  }
  for (int64_t i = q->context.first; i < c->n_tokens; i++) {
    if (c->token[i] >= 0 && c->token[i] < vocab) continue;
    if (!t)
      return tc_fail(err, TC_EUSER, "%s: token %d, but the model's vocabulary has %lld: are these another tokenizer's "
                     "tokens?", where, c->token[i], (long long)vocab);
    return tc_fail(err, TC_EUSER, "%s: token %d, but the model's vocabulary has %lld: text without %s would fit", where,
                   c->token[i], (long long)vocab, tc_token_shown(t, (uint32_t)c->token[i], shown));
  }
  return 0;
}

/* ---- JSON lines ------------------------------------------------------------------------------ */

struct jsonl {
  struct tc_choices *c;
  const struct tc_tokenizer *tokenizer;          /* NULL: bytes */
  struct tc_encoder *encoder;
  struct tc_ids ids;
  const char *path;
  int64_t context, vocab;
};

/* The tokens of context[n] + text, from number `from` on, into the choices. */
static int add_text(struct jsonl *f, const char *context, size_t n, const char *text, size_t from, struct tc_err *err)
{
  char *whole = tc_sprintf("%.*s%s", (int)TC_MIN(n, (size_t)INT32_MAX), context, text);
  f->ids.n = 0;
  const int rc = tc_encode_begun(f->encoder, whole, strlen(whole), &f->ids, err);
  free(whole);
  for (size_t i = from; i < f->ids.n && rc == 0; i++) add_token(f->c, (int32_t)f->ids.id[i]);
  return rc;
}

static int read_line(struct jsonl *f, const json_t *j, const char *where, struct tc_err *err)
{
  struct tc_choices *c = f->c;
  const char *context = json_string_value(json_object_get(j, "context"));
  const json_t *choices = json_object_get(j, "choices"), *label = json_object_get(j, "label");
  if (!context || !json_is_array(choices) || !json_is_integer(label))
    return tc_fail(err, TC_EUSER, "%s: not {\"context\": \"...\", \"choices\": [\"...\", ...], \"label\": N}", where);
  const json_int_t number = json_integer_value(label);
  const size_t n = json_array_size(choices);
  size_t end = strlen(context);
  while (end > 0 && context[end - 1] == ' ') end--;      /* blanks belong to the answer: they begin its first token */
  struct tc_question *q = add_question(c);
  q->label = (int)TC_MAX((json_int_t)INT32_MIN, TC_MIN(number, (json_int_t)INT32_MAX));
  q->n_answers = (int)TC_MIN(n, (size_t)TC_CHOICES_MOST + 1);
  q->context.first = c->n_tokens;
  TC_TRY(add_text(f, context, end, "", 0, err));
  q->context.n = c->n_tokens - q->context.first;
  for (int i = 0; i < q->n_answers; i++) {
    const char *text = json_string_value(json_array_get(choices, (size_t)i));
    const int64_t first = c->n_tokens;
    if (!text) return tc_fail(err, TC_EUSER, "%s: choice %d is not a text", where, i);
    TC_TRY(add_text(f, context, strlen(context), text, (size_t)q->context.n, err));
    TC_APPEND(c->answer, c->n_answers, c->cap_answers, (struct tc_answer){ first, c->n_tokens - first });
  }
  return check_question(c, q, f->tokenizer, f->context, f->vocab, where, err);
}

static int read_lines(struct jsonl *f, struct tc_lines *in, struct tc_err *err)
{
  char *line;
  size_t n;
  int rc = 0, got = 0;
  for (int64_t at = 1; rc == 0 && (got = tc_lines_next(in, &line, &n, err)) == 1; at++) {
    if (strspn(line, " \t\r\n") == n) continue;
    json_error_t why;
    char *where = tc_sprintf("%s:%lld", f->path, (long long)at);
    json_t *j = json_loadb(line, n, 0, &why);
    if (!j) rc = tc_fail(err, TC_EUSER, "%s: not JSON: %s", where, why.text);
    else rc = read_line(f, j, where, err);
    json_decref(j);
    free(where);
  }
  return rc < 0 ? rc : got;
}

int tc_choices_jsonl(struct tc_choices *out, const char *path, const struct tc_tokenizer *tokenizer, int64_t context,
                     int64_t vocab, struct tc_err *err)
{
  struct jsonl f = { .c = out, .tokenizer = tokenizer, .path = path, .context = context, .vocab = vocab };
  *out = (struct tc_choices){ 0 };
  struct tc_lines *in;
  TC_TRY(tc_lines_open(&in, path, "file of questions", err));
  int rc = tokenizer ? tc_encoder_new(&f.encoder, tokenizer, err) : 0;
  if (rc == 0) rc = read_lines(&f, in, err);
  if (rc == 0 && out->n == 0) rc = tc_fail(err, TC_EUSER, "%s has no question", path);
  if (f.encoder) tc_encoder_free(f.encoder);
  tc_ids_free(&f.ids);
  tc_lines_close(in);
  return rc;
}

/* ---- llm.c's HellaSwag ----------------------------------------------------------------------- */

enum { HELLASWAG_HEADER = 256, HELLASWAG_MAGIC = 20240522, HELLASWAG_START = 65535,
       HELLASWAG_MOST = 1 << 30 };

/* The words of the file that are not read yet. */
struct words { const uint16_t *at, *end; };

static int next_word(struct words *w) { return w->at < w->end ? *w->at++ : -1; }

/* A number and so many tokens. False: the file ends before. */
static bool next_tokens(struct words *w, struct tc_choices *c, struct tc_answer *a)
{
  const int n = next_word(w);
  if (n < 0 || n > w->end - w->at) return false;
  *a = (struct tc_answer){ c->n_tokens, n };
  for (int i = 0; i < n; i++) add_token(c, *w->at++);
  return true;
}

/* START, bytes, number, label, number of answers; context; answers. */
static int read_question(struct words *w, struct tc_choices *c, int64_t context, int64_t vocab, const char *where,
                         struct tc_err *err)
{
  const uint16_t *begin = w->at;
  const bool start = next_word(w) == HELLASWAG_START;
  const int bytes = next_word(w), number = next_word(w), label = next_word(w), n = next_word(w);
  struct tc_question *q = add_question(c);
  q->label = label;
  q->n_answers = TC_MAX(n, 0);
  bool whole = start && number >= 0 && next_tokens(w, c, &q->context);
  for (int i = 0; i < n && whole; i++) {
    struct tc_answer a;
    whole = next_tokens(w, c, &a);
    if (whole) TC_APPEND(c->answer, c->n_answers, c->cap_answers, a);
  }
  if (!whole || (w->at - begin) * (int64_t)sizeof *w->at != bytes)
    return tc_fail(err, TC_EUSER, "%s is damaged: its lengths do not fit together", where);
  return check_question(c, q, NULL, context, vocab, where, err);
}

static int read_questions(struct tc_choices *c, const char *text, size_t bytes, const char *path, int64_t context,
                          int64_t vocab, struct tc_err *err)
{
  int32_t header[HELLASWAG_HEADER];
  const bool long_enough = bytes >= sizeof header;
  if (long_enough) memcpy(header, text, sizeof header);
  if (!long_enough || header[0] != HELLASWAG_MAGIC || header[1] != 1 || header[2] < 1)
    return tc_fail(err, TC_EUSER, "%s is no file of HellaSwag questions as llm.c makes them: it does not begin with "
                   "20240522, 1 and the number of questions", path);
  uint16_t *copy = tc_malloc(bytes - sizeof header + 2);       /* aligned */
  memcpy(copy, text + sizeof header, bytes - sizeof header);
  struct words w = { copy, copy + (bytes - sizeof header) / sizeof *copy };
  int rc = 0;
  for (int32_t i = 0; i < header[2] && rc == 0; i++) {
    char *where = tc_sprintf("%s: question %d", path, i);
    rc = read_question(&w, c, context, vocab, where, err);
    free(where);
  }
  if (rc == 0 && w.at != w.end)
    rc = tc_fail(err, TC_EUSER, "%s has more than the %d questions that its header says", path, header[2]);
  free(copy);
  return rc;
}

int tc_choices_hellaswag(struct tc_choices *out, const char *path, int64_t context, int64_t vocab, struct tc_err *err)
{
  char *text;
  size_t bytes;
  *out = (struct tc_choices){ 0 };
  if (!tc_is_gpt2_vocab(vocab))
    return tc_fail(err, TC_EUSER, "%s holds GPT-2's tokens, and this model's vocabulary of %lld is not GPT-2's "
                   "(50257); --choices FILE.jsonl takes text", path, (long long)vocab);
  TC_TRY(tc_read_text(&text, &bytes, path, "file of questions", HELLASWAG_MOST, err));
  const int rc = read_questions(out, text, bytes, path, context, vocab, err);
  free(text);
  return rc;
}
