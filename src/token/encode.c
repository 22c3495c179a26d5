/* encode.c - the steps from text to ids.
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
  struct tc_marks *marks;                       /* NULL: nobody asks */
  const char *text;                             /* the whole, for marks */
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

const struct tc_tokenizer *tc_encoder_tokenizer(const struct tc_encoder *e) { return e->t; }

/* ---- steps of the normalizer and the pre-tokenizer ---------------------------------------- */

/* A piece of the text, and where it is: at its begin; after something else; or behind a cut, or, where tokens are of
 * characters, behind invalid bytes, so that nothing is put in front of it. */
enum where { BEGINS, FOLLOWS, GOES_ON };
struct part { const char *s; size_t n; enum where where; };

/* A list of steps, and what takes the pieces that it leaves. */
struct stage { const struct tc_steps *steps; int (*next)(struct tc_encoder *, struct part); };

/* What is at [begin, end) of a part. */
static struct part part_of(struct part p, size_t begin, size_t end)
{
  return (struct part){ p.s + begin, end - begin, begin ? FOLLOWS : p.where };
}

static int match_fail(const struct tc_encoder *e, int rc)
{
  char why[200] = "";
  pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
  return tc_fail(e->err, TC_EUSER, "tokenizer '%s': matching its regex failed: %s", e->t->name, why);
}

/* JIT's stack has a limit that a long piece may reach; the interpreter has none. */
static int match(const struct tc_encoder *e, const pcre2_code *code, const char *s, size_t n, size_t at)
{
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (e->stack) rc = pcre2_jit_match(code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK, e->match, e->context);
  if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
  return pcre2_match(code, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK | (e->stack ? PCRE2_NO_JIT : 0), e->match, e->context);
}

/* The first match from `at` on. Returns 1, 0 if nothing matches, or an error. */
static int find(const struct tc_encoder *e, const struct tc_step *step, struct part p, size_t at, size_t *begin, size_t *end)
{
  if (!step->code) {
    const char *found = memmem(p.s + at, p.n - at, step->pattern.s, step->pattern.n);
    if (!found) return 0;
    *begin = (size_t)(found - p.s);
    *end = *begin + step->pattern.n;
    return 1;
  }
  const int rc = match(e, step->code, p.s, p.n, at);
  if (rc == PCRE2_ERROR_NOMATCH) return 0;
  if (rc < 0) return match_fail(e, rc);
  const PCRE2_SIZE *place = pcre2_get_ovector_pointer(e->match);
  *begin = place[0], *end = place[1];
  if (*begin >= at && *end > *begin && *end <= p.n) return 1;
  return tc_fail(e->err, TC_EUSER, "tokenizer '%s': its regex matches an empty text, which is not supported", e->t->name);
}

static int change(struct tc_encoder *e, const struct stage *g, int step, struct part p);
static int split(struct tc_encoder *e, const struct stage *g, int step, struct part p);

/* Takes a piece through the steps from `step` on. */
static inline int take(struct tc_encoder *e, const struct stage *g, int step, struct part p)
{
  if (p.n == 0) return TC_OK;
  if (step == g->steps->n) return g->next(e, p);
  return g->steps->at[step].kind == TC_STEP_SPLIT ? split(e, g, step, p) : change(e, g, step, p);
}

/* The pieces of a split: [begin, end) is the last one, which may still grow; is_match: its last part is a match. */
struct pieces { const struct stage *g; int step; struct part p; size_t begin, end; bool is_match; };

/* Adds what is at [begin, end): to the last piece, or as a new one. */
static int add_piece(struct tc_encoder *e, struct pieces *x, size_t begin, size_t end, bool is_match)
{
  const struct tc_step *step = &x->g->steps->at[x->step];
  if (step->behavior == TC_ISOLATED) return take(e, x->g, x->step + 1, part_of(x->p, begin, end));
  const bool was = x->is_match;
  bool joins = false;
  is_match ^= step->invert;
  x->is_match = is_match;
  if (begin == end) return TC_OK;
  if (step->behavior == TC_WITH_PREVIOUS) joins = is_match && !was;
  if (step->behavior == TC_WITH_NEXT) joins = !is_match && was;
  if (step->behavior == TC_CONTIGUOUS) joins = is_match == was;
  if (!joins && x->end > x->begin) TC_TRY(take(e, x->g, x->step + 1, part_of(x->p, x->begin, x->end)));
  if (!joins) x->begin = begin;
  x->end = end;
  if (step->behavior == TC_REMOVED && is_match) x->begin = end;
  return TC_OK;
}

static int split(struct tc_encoder *e, const struct stage *g, int step, struct part p)
{
  struct pieces x = { .g = g, .step = step, .p = p };
  size_t at = 0, begin = 0, end = 0;
  int rc = 0;
  while (at < p.n && (rc = find(e, &g->steps->at[step], p, at, &begin, &end)) > 0) {
    if (begin > at) TC_TRY(add_piece(e, &x, at, begin, false));
    TC_TRY(add_piece(e, &x, begin, end, true));
    at = end;
  }
  if (rc < 0) return rc;
  if (at < p.n) TC_TRY(add_piece(e, &x, at, p.n, false));
  return take(e, g, step + 1, part_of(p, x.begin, x.end));
}

/* A text that grows. */
struct text { char *s; size_t n, cap; };

static void put_text(struct text *to, const char *s, size_t n)
{
  if (to->n + n > to->cap) to->s = tc_realloc(to->s, to->cap = 2 * (to->n + n));
  if (n) memcpy(to->s + to->n, s, n);
  to->n += n;
}

/* Hugging Face's library takes a text whose first characters are replaced by others, or removed, for one that does not
 * begin there: Metaspace then puts nothing in front. */
static int replace(const struct tc_encoder *e, const struct tc_step *step, struct part *p, struct text *to)
{
  size_t at = 0, begin = 0, end = 0, first;
  int rc = 0;
  while (at < p->n && (rc = find(e, step, *p, at, &begin, &end)) > 0) {
    put_text(to, p->s + at, begin - at);
    put_text(to, step->content.s, step->content.n);
    if (begin == 0 && p->where == BEGINS && (tc_utf8_at(p->s, &first), end > first || step->content.n == 0))
      p->where = FOLLOWS;
    at = end;
  }
  if (rc < 0) return rc;
  put_text(to, p->s + at, p->n - at);
  return TC_OK;
}

static bool begins_with(struct part p, struct tc_bytes x)
{
  return p.n >= x.n && memcmp(p.s, x.s, x.n) == 0;
}

/* Whether a step that puts something in front does so here. */
static bool prepends(const struct tc_step *step, struct part p)
{
  if (p.where == GOES_ON) return false;
  if (step->prepend == TC_PREPEND_ALWAYS) return true;
  return !begins_with(p, step->content) && (step->prepend == TC_PREPEND_MISSING || p.where == BEGINS);
}

/* Changes the text of a piece: p->s is then *owned, if that is not NULL. */
static int rewrite(const struct tc_encoder *e, const struct tc_step *step, struct part *p, char **owned)
{
  struct text to = { 0 };
  int rc = TC_OK;
  *owned = NULL;
  if (step->kind == TC_STEP_NFC || step->kind == TC_STEP_NFKC)
    return tc_normal_form(p->s, p->n, step->kind == TC_STEP_NFKC, &p->s, &p->n, owned, e->err);
  if (step->kind == TC_STEP_PREPEND && !prepends(step, *p)) return TC_OK;
  to.s = tc_malloc(to.cap = p->n + p->n / 4 + step->content.n + 1);
  if (step->kind == TC_STEP_REPLACE) rc = replace(e, step, p, &to);
  else {
    put_text(&to, step->content.s, step->content.n);
    put_text(&to, p->s, p->n);
  }
  *owned = to.s;
  p->s = to.s, p->n = to.n;
  return rc;
}

/* A step that changes the text. */
static int change(struct tc_encoder *e, const struct stage *g, int step, struct part p)
{
  char *owned;
  int rc = rewrite(e, &g->steps->at[step], &p, &owned);
  if (rc == TC_OK) rc = take(e, g, step + 1, p);
  free(owned);
  return rc;
}

/* ---- pieces -------------------------------------------------------------------------------- */

/* Where no merge joins two characters, a piece is two: most are then in the cache of short ones. With ignore_merges the whole
 * piece comes first. */
static int encode_piece(struct tc_encoder *e, struct part p)
{
  size_t from = 0, bytes = 0;
  if (p.n >= TC_PIECE_BYTES)
    return tc_fail(e->err, TC_EUSER, "the tokenizer leaves a piece of %.3g GB in one, which is too long: is it text?",
                   (double)p.n * 1e-9);
  if (tc_divides(e->t)) {
    if (tc_bpe_whole(e->bpe, p.s, p.n, e->out)) return TC_OK;
    uint32_t before = tc_utf8_at(p.s, &bytes), c;
    size_t last = 0;                            /* where that one begins */
    for (size_t at = bytes; at < p.n; last = at, at += bytes, before = c) {
      c = tc_utf8_at(p.s + at, &bytes);
      if (!tc_is_apart(e->t, before, c)) continue;
      if (from == last) tc_bpe_character(e->bpe, p.s + from, at - from, e->out);
      else tc_bpe_piece(e->bpe, p.s + from, at - from, e->out);
      from = at;
    }
  }
  tc_bpe_piece(e->bpe, p.s + from, p.n - from, e->out);
  return TC_OK;
}

/* Invalid bytes are pieces of their own, or tokens of bytes. */
static int encode_invalid(struct tc_encoder *e, const char *s, size_t n)
{
  if (!e->t->characters) return encode_piece(e, (struct part){ s, n, GOES_ON });
  if (!e->t->all_bytes)
    return tc_fail(e->err, TC_EUSER, "tokenizer '%s' has no tokens of bytes, so invalid UTF-8 cannot be kept", e->t->name);
  for (size_t i = 0; i < n; i++) TC_APPEND(e->out->id, e->out->n, e->out->cap, e->t->byte_id[(unsigned char)s[i]]);
  return TC_OK;
}

/* ---- added tokens -------------------------------------------------------------------------- */

static bool begins_character(char c) { return ((unsigned char)c & 0xc0) != 0x80; }

/* Where the last character of s[n] begins. */
static size_t character_before(const char *s, size_t n)
{
  while (n > 0 && !begins_character(s[--n])) ;
  return n;
}

/* The bytes of white space at the end and at the front of s[n]. */
static size_t space_at_end(const char *s, size_t n)
{
  size_t end = n, bytes;
  while (end > 0) {
    const size_t at = character_before(s, end);
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

/* Whether what is at [begin, end) is not within a word. */
static bool is_word_alone(const char *s, size_t n, size_t begin, size_t end)
{
  size_t bytes;
  return !(begin > 0 && tc_is_word(tc_utf8_at(s + character_before(s, begin), &bytes))) &&
         !(end < n && tc_is_word(tc_utf8_at(s + end, &bytes)));
}

static void put_mark(const struct tc_encoder *e, const struct tc_added_list *l, const char *at, bool within)
{
  struct tc_marks *m = e->marks;
  if (m && l == &e->t->raw) TC_APPEND(m->at, m->n, m->cap, ((struct tc_mark){ (size_t)(at - e->text), e->out->n, within }));
}

/* Looks for the added tokens of a list, the leftmost first, of those the longest; `next` takes what is between. */
static int find_added(struct tc_encoder *e, const struct tc_added_list *l, struct part p,
                      int (*next)(struct tc_encoder *, struct part))
{
  const char *s = p.s;
  size_t from = 0, at = 0;
  while (l->n && at < p.n) {
    const struct tc_added *a = l->first[(unsigned char)s[at]] ? tc_added_at(l, s + at, p.n - at) : NULL;
    if (!a) {
      at++;
      continue;
    }
    size_t begin = at, end = at + a->text.n;
    at = end;
    if (a->single_word && !is_word_alone(s, p.n, begin, end)) continue;
    if (a->lstrip) begin -= space_at_end(s + from, begin - from);      /* no byte is looked at for two tokens */
    if (a->rstrip) end += space_at_front(s + end, p.n - end);
    if (begin > from) TC_TRY(next(e, part_of(p, from, begin)));
    put_mark(e, l, s + begin, true);
    TC_APPEND(e->out->id, e->out->n, e->out->cap, a->id);
    put_mark(e, l, s + end, false);
    from = end;
  }
  return from < p.n ? next(e, part_of(p, from, p.n)) : TC_OK;
}

static int encode_normal(struct tc_encoder *e, struct part p)
{
  return take(e, &(struct stage){ &e->t->pre_tokenizer, encode_piece }, 0, p);
}

static int find_normalized(struct tc_encoder *e, struct part p)
{
  return find_added(e, &e->t->normalized, p, encode_normal);
}

static int normalize(struct tc_encoder *e, struct part p)
{
  return take(e, &(struct stage){ &e->t->normalizer, find_normalized }, 0, p);
}

/* Valid text. */
static int encode_text(struct tc_encoder *e, const char *s, size_t n, enum where where)
{
  return n ? find_added(e, &e->t->raw, (struct part){ s, n, where }, normalize) : TC_OK;
}

int tc_encode_marked(struct tc_encoder *e, const char *text, size_t n, struct tc_ids *out, struct tc_marks *marks,
                     struct tc_err *err)
{
  e->out = out, e->err = err, e->marks = marks, e->text = text;
  const int rc = encode_text(e, text, n, BEGINS);
  e->marks = NULL;
  return rc;
}

int tc_encode_between(struct tc_encoder *e, const char *text, size_t from, size_t to, struct tc_ids *out, struct tc_err *err)
{
  e->out = out, e->err = err;
  return to > from ? normalize(e, part_of((struct part){ text, to, BEGINS }, from, to)) : TC_OK;
}

/* Takes a text through the steps of the normalizer alone. */
int tc_normalized(struct tc_tokenizer *t, const char *text, struct tc_bytes *out, struct tc_err *err)
{
  struct tc_encoder *e;
  struct part p = { text, strlen(text), BEGINS };
  char *owned = NULL, *next = NULL;
  TC_TRY(tc_encoder_new(&e, t, err));
  e->err = err;
  int rc = TC_OK;
  for (int i = 0; i < t->normalizer.n && p.n && rc == TC_OK; i++) {
    rc = rewrite(e, &t->normalizer.at[i], &p, &next);
    if (next) free(owned), owned = next;
  }
  if (rc == TC_OK) *out = tc_token_keep(t, p.s, p.n);
  free(owned);
  tc_encoder_free(e);
  return rc;
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

/* Valid text and invalid bytes in turn. */
static int encode_bytes(struct tc_encoder *e, const char *text, size_t n, enum where where, int64_t *parts)
{
  for (size_t at = 0; at < n; where = e->t->characters ? GOES_ON : FOLLOWS) {
    const size_t valid = tc_utf8_valid(text + at, n - at);
    TC_TRY(encode_text(e, text + at, valid, where));
    at += valid;
    const size_t invalid = invalid_run(text + at, n - at, parts);
    if (invalid) TC_TRY(encode_invalid(e, text + at, invalid));
    at += invalid;
  }
  return TC_OK;
}

static int encode_replaced(struct tc_encoder *e, const char *text, size_t n, enum where where, int64_t *parts)
{
  size_t bytes;
  char *copy = tc_utf8_replace(text, n, &bytes, parts);
  const int status = encode_text(e, copy, bytes, where);
  free(copy);
  return status;
}

static int encode(struct tc_encoder *e, const char *text, size_t n, enum where where, enum tc_invalid how,
                  struct tc_ids *out, int64_t *n_invalid, struct tc_err *err)
{
  int64_t parts = 0;
  e->out = out;
  e->err = err;
  const size_t valid = tc_utf8_valid(text, n);
  if (valid < n && how == TC_INVALID_REFUSE)
    return tc_fail(err, TC_EUSER, "invalid UTF-8 at byte %zu: 0x%02x", valid, (unsigned char)text[valid]);
  const int status = valid == n ? encode_text(e, text, n, where)
                     : how == TC_INVALID_BYTES ? encode_bytes(e, text, n, where, &parts)
                                               : encode_replaced(e, text, n, where, &parts);
  if (n_invalid) *n_invalid += parts;
  return status;
}

int tc_encode(struct tc_encoder *e, const char *text, size_t n, enum tc_invalid how, struct tc_ids *out,
              int64_t *n_invalid, struct tc_err *err)
{
  return encode(e, text, n, BEGINS, how, out, n_invalid, err);
}

int tc_encode_on(struct tc_encoder *e, const char *text, size_t n, enum tc_invalid how, struct tc_ids *out,
                 int64_t *n_invalid, struct tc_err *err)
{
  return encode(e, text, n, GOES_ON, how, out, n_invalid, err);
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
