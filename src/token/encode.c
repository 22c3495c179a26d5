/* encode.c - the steps from text to ids, and the questions about a tokenizer.
 *
 * Text passes down through added tokens in raw text, the normalizer, added tokens in normalized text, and the
 * splits of the pre-tokenizer; each step hands on the parts it leaves, in order, so that ids are appended from left
 * to right. Only tc_encode sees invalid UTF-8: all below it has valid text. */
#include "src/token/impl.h"

#include <stdlib.h>
#include <string.h>

enum { JIT_STACK_LEAST = 32 * 1024, JIT_STACK_MOST = 64 * 1024 * 1024 };

struct tc_encoder {
  const struct tc_tokenizer *t;
  struct tc_bpe *bpe;
  pcre2_match_data *match;
  pcre2_match_context *context;
  pcre2_jit_stack *stack;                       /* NULL without JIT */
  struct tc_ids *out;
  struct tc_err *err;
};

int tc_encoder_new(struct tc_encoder **out, const struct tc_tokenizer *t, struct tc_err *err)
{
  struct tc_encoder *e = tc_calloc(1, sizeof *e);
  *out = NULL;
  e->t = t;
  e->bpe = tc_bpe_new(t);
  e->match = pcre2_match_data_create(1, NULL);
  e->context = pcre2_match_context_create(NULL);
  if (t->jit) e->stack = pcre2_jit_stack_create(JIT_STACK_LEAST, JIT_STACK_MOST, NULL);
  if (!e->match || !e->context || (t->jit && !e->stack)) {
    tc_encoder_free(e);
    return tc_fail(err, TC_EUSER, "no memory for matching by PCRE2");
  }
  if (e->stack) pcre2_jit_stack_assign(e->context, NULL, e->stack);
  pcre2_set_match_limit(e->context, UINT32_MAX);
  *out = e;
  return TC_OK;
}

void tc_encoder_free(struct tc_encoder *e)
{
  if (!e) return;
  tc_bpe_free(e->bpe);
  pcre2_match_data_free(e->match);
  pcre2_match_context_free(e->context);
  pcre2_jit_stack_free(e->stack);
  free(e);
}

/* ---- the pre-tokenizer ----------------------------------------------------------------- */

static int encode_piece(struct tc_encoder *e, const char *s, size_t n)
{
  if (n >= TC_PIECE_BYTES)
    return tc_fail(e->err, TC_EUSER, "the tokenizer leaves a piece of %.3g GB in one, which is too long: is it text?",
                   (double)n * 1e-9);
  tc_bpe_piece(e->bpe, s, n, e->out);
  return TC_OK;
}

static int match_fail(const struct tc_encoder *e, int rc)
{
  char why[200] = "";
  pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
  return tc_fail(e->err, TC_EUSER, "tokenizer '%s': matching its pre-tokenizer's regex failed: %s", e->t->name, why);
}

static int split(struct tc_encoder *e, const char *s, size_t n, int step);

/* JIT's stack has a limit that a long piece may reach; the interpreter has none. */
static int match(const struct tc_encoder *e, const pcre2_code *code, const char *s, size_t n, size_t at)
{
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (e->stack) rc = pcre2_jit_match(code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK, e->match, e->context);
  if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
  return pcre2_match(code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK | (e->stack ? PCRE2_NO_JIT : 0), e->match, e->context);
}

/* Splits by a pattern: its matches, and what is between them. */
static int split_by(struct tc_encoder *e, const pcre2_code *code, const char *s, size_t n, int step)
{
  const PCRE2_SIZE *found = pcre2_get_ovector_pointer(e->match);
  for (size_t at = 0; at < n;) {
    const int rc = match(e, code, s, n, at);
    if (rc == PCRE2_ERROR_NOMATCH) return split(e, s + at, n - at, step + 1);
    if (rc < 0) return match_fail(e, rc);
    const size_t begin = found[0], end = found[1];        /* steps below overwrite them */
    if (begin < at || end <= begin || end > n)
      return tc_fail(e->err, TC_EUSER, "tokenizer '%s': its pre-tokenizer's regex matches an empty text, which is not "
                     "supported", e->t->name);
    if (begin > at) TC_TRY(split(e, s + at, begin - at, step + 1));
    TC_TRY(split(e, s + begin, end - begin, step + 1));
    at = end;
  }
  return TC_OK;
}

/* Takes one piece through the steps from `step` on. n > 0. */
static int split(struct tc_encoder *e, const char *s, size_t n, int step)
{
  if (step == e->t->n_steps) return encode_piece(e, s, n);
  const pcre2_code *code = e->t->step[step].code;
  if (code) return split_by(e, code, s, n, step);
  if (*s == ' ') return split(e, s, n, step + 1);
  char *copy = tc_malloc(n + 1);
  copy[0] = ' ';
  memcpy(copy + 1, s, n);
  const int status = split(e, copy, n + 1, step + 1);
  free(copy);
  return status;
}

/* ---- added tokens and the normalizer --------------------------------------------------- */

static bool begins_character(char c) { return ((unsigned char)c & 0xc0) != 0x80; }

/* The bytes of white space at the end and at the front of s[n]. */
static size_t space_at_end(const char *s, size_t n)
{
  size_t end = n, bytes;
  while (end > 0) {
    size_t at = end - 1;
    while (at > 0 && !begins_character(s[at])) at--;
    if (!tc_is_space(tc_utf8_at(s + at, &bytes))) break;
    end = at;
  }
  return n - end;
}

static size_t space_at_front(const char *s, size_t n)
{
  size_t at = 0, bytes;
  while (at < n && tc_is_space(tc_utf8_at(s + at, &bytes))) at += bytes;
  return at;
}

/* Looks for the added tokens of a list, the leftmost first, of those the longest; `next` takes what is between. */
static int find_added(struct tc_encoder *e, const struct tc_added_list *l, const char *s, size_t n,
                      int (*next)(struct tc_encoder *, const char *, size_t))
{
  size_t from = 0, at = 0;
  while (l->n && at < n) {
    const struct tc_added *a = l->first[(unsigned char)s[at]] ? tc_added_at(l, s + at, n - at) : NULL;
    if (!a) {
      at++;
      continue;
    }
    size_t begin = at, end = at + a->text.n;
    at = end;
    if (a->lstrip) begin -= space_at_end(s + from, begin - from);      /* no byte is looked at for two tokens */
    if (a->rstrip) end += space_at_front(s + end, n - end);
    if (begin > from) TC_TRY(next(e, s + from, begin - from));
    TC_APPEND(e->out->id, e->out->n, e->out->cap, a->id);
    from = end;
  }
  return from < n ? next(e, s + from, n - from) : TC_OK;
}

static int encode_normal(struct tc_encoder *e, const char *s, size_t n)
{
  return split(e, s, n, 0);
}

static int normalize(struct tc_encoder *e, const char *s, size_t n)
{
  char *owned = NULL;
  if (e->t->nfc) TC_TRY(tc_nfc(s, n, &s, &n, &owned, e->err));
  const int status = find_added(e, &e->t->normalized, s, n, encode_normal);
  free(owned);
  return status;
}

/* Valid text. */
static int encode_text(struct tc_encoder *e, const char *s, size_t n)
{
  return n ? find_added(e, &e->t->raw, s, n, normalize) : TC_OK;
}

/* ---- invalid UTF-8 --------------------------------------------------------------------- */

/* The bytes of the invalid parts that text[n] begins with, one after the other; their number is added. */
static size_t invalid_run(const char *text, size_t n, int64_t *parts)
{
  size_t at = 0;
  while (at < n && tc_utf8_valid(text + at, TC_MIN(n - at, 4)) == 0) {
    at += tc_utf8_invalid(text + at, n - at);
    ++*parts;
  }
  return at;
}

/* Valid text and invalid bytes in turn: the latter are pieces of their own. */
static int encode_bytes(struct tc_encoder *e, const char *text, size_t n, int64_t *parts)
{
  for (size_t at = 0; at < n;) {
    const size_t valid = tc_utf8_valid(text + at, n - at);
    TC_TRY(encode_text(e, text + at, valid));
    at += valid;
    const size_t invalid = invalid_run(text + at, n - at, parts);
    if (invalid) TC_TRY(encode_piece(e, text + at, invalid));
    at += invalid;
  }
  return TC_OK;
}

static int encode_replaced(struct tc_encoder *e, const char *text, size_t n, int64_t *parts)
{
  size_t bytes;
  char *copy = tc_utf8_replace(text, n, &bytes, parts);
  const int status = encode_text(e, copy, bytes);
  free(copy);
  return status;
}

int tc_encode(struct tc_encoder *e, const char *text, size_t n, enum tc_invalid how, struct tc_ids *out,
              int64_t *n_invalid, struct tc_err *err)
{
  int64_t parts = 0;
  e->out = out;
  e->err = err;
  const size_t valid = tc_utf8_valid(text, n);
  if (valid < n && how == TC_INVALID_REFUSE)
    return tc_fail(err, TC_EUSER, "invalid UTF-8 at byte %zu: 0x%02x", valid, (unsigned char)text[valid]);
  const int status = valid == n ? encode_text(e, text, n)
                     : how == TC_INVALID_BYTES ? encode_bytes(e, text, n, &parts)
                                               : encode_replaced(e, text, n, &parts);
  if (n_invalid) *n_invalid += parts;
  return status;
}

/* ---- questions ------------------------------------------------------------------------- */

int64_t tc_tokenizer_vocab(const struct tc_tokenizer *t) { return t->n_ids; }
uint64_t tc_tokenizer_hash(const struct tc_tokenizer *t) { return t->hash; }
const struct tc_ids *tc_tokenizer_begin(const struct tc_tokenizer *t) { return &t->begin; }
const struct tc_ids *tc_tokenizer_end(const struct tc_tokenizer *t) { return &t->end; }

const char *tc_tokenizer_bytes(const struct tc_tokenizer *t, uint32_t id, size_t *bytes)
{
  const struct tc_bytes none = { NULL, 0 }, *x = id < t->n_ids ? &t->token[id] : &none;
  *bytes = x->n;
  return x->s;
}

int64_t tc_tokenizer_find(const struct tc_tokenizer *t, const char *text)
{
  const struct tc_bytes want = { text, strlen(text) };
  const struct tc_added_list *const lists[] = { &t->raw, &t->normalized };
  for (size_t i = 0; i < 2; i++)
    for (size_t k = 0; k < lists[i]->n; k++) {
      const struct tc_added *a = &lists[i]->at[k];
      if (t->token[a->id].n == want.n && memcmp(t->token[a->id].s, text, want.n) == 0) return a->id;
    }
  const uint32_t id = tc_words_find(&t->words, want);
  return id == TC_NO_ID ? -1 : (int64_t)id;
}

const char *tc_tokenizer_added(const struct tc_tokenizer *t, uint32_t id)
{
  const struct tc_added_list *const lists[] = { &t->raw, &t->normalized };
  for (size_t i = 0; i < 2; i++)
    for (size_t k = 0; k < lists[i]->n; k++)
      if (lists[i]->at[k].id == id) return t->token[id].s;
  return NULL;
}

int64_t tc_tokenizer_end_of_text(const struct tc_tokenizer *t)
{
  static const char *const names[] = { "<|endoftext|>", "<|end_of_text|>", "</s>" };
  int64_t id = -1;
  for (int i = 0; i < 3 && id < 0; i++) id = tc_tokenizer_find(t, names[i]);
  return id;
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

size_t tc_tokenizer_cut(const struct tc_tokenizer *t, const char *text, size_t from, size_t n)
{
  for (size_t p = n ? n - 1 : 0; t->anywhere && p > 0 && p >= from; p--)
    if (begins_character(text[p])) return p;
  if (!t->cuts || t->whole) return 0;
  for (size_t p = n < 2 ? 0 : n - 2; p > 0 && p >= from; p--)
    if (text[p] == ' ' && is_letter(text[p - 1]) && is_letter(text[p + 1])) return p;
  return 0;
}

int tc_encode_begun(struct tc_encoder *e, const char *text, size_t n, struct tc_ids *out, struct tc_err *err)
{
  const struct tc_ids none = { 0 }, *begin = e ? tc_tokenizer_begin(e->t) : &none;
  tc_ids_reserve(out, begin->n + n);
  for (size_t i = 0; i < begin->n; i++) out->id[out->n++] = begin->id[i];
  if (e) return tc_encode(e, text, n, TC_INVALID_REFUSE, out, NULL, err);
  for (size_t i = 0; i < n; i++) out->id[out->n++] = (unsigned char)text[i];
  return TC_OK;
}
