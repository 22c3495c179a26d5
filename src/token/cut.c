/* cut.c - where a text may be cut so that its parts have the ids of the whole: in front of a space between two letters of
 * ASCII, if no step and no added token looks at both sides, and either a step splits there, or no merge joins a letter to
 * what takes the place of the space.
 *
 * Merges join neighbours, and the token that they make is in the vocabulary with its whole text. So two characters that
 * stand side by side in no token of a merge are never joined: a table of bits has the pairs that do. Two pairs may share
 * a bit, which then only forbids more. */
#include "src/token/impl.h"

#include <stdlib.h>
#include <string.h>

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

static bool is_text(struct tc_bytes a, struct tc_bytes b) { return a.n == b.n && memcmp(a.s, b.s, a.n) == 0; }

/* Whether a pattern of text may match one of the characters at a cut. */
static bool may_match(const struct tc_tokenizer *t, struct tc_bytes pattern)
{
  for (size_t i = 0; i < pattern.n; i++)
    if (pattern.s[i] == ' ' || is_letter(pattern.s[i])) return true;
  return t->mark.s && memmem(pattern.s, pattern.n, t->mark.s, t->mark.n);
}

/* One character that is neither a letter nor a space. */
static bool is_mark(struct tc_bytes x)
{
  size_t bytes;
  return x.n > 0 && (tc_utf8_at(x.s, &bytes), bytes == x.n) && *x.s != ' ' && !is_letter(*x.s);
}

static void note_replace(struct tc_tokenizer *t, const struct tc_step *s)
{
  const struct tc_bytes space = { " ", 1 };
  if (!s->code && !t->mark.s && is_text(s->pattern, space) && is_mark(s->content)) t->mark = s->content;
  else if (s->code || may_match(t, s->pattern)) t->whole = true;
}

/* A split by a text. */
static void note_split(struct tc_tokenizer *t, const struct tc_step *s)
{
  if (t->mark.s && is_text(s->pattern, t->mark)) {
    if (s->invert || s->behavior == TC_WITH_PREVIOUS) t->whole = true;
    else t->cuts = true;
  } else if (may_match(t, s->pattern) && !(t->mark.s && is_text(s->pattern, (struct tc_bytes){ " ", 1 }))) t->whole = true;
}

/* Nothing is put in front of a text that goes on, so nothing may be put there in the whole text. */
static void note_prepend(struct tc_tokenizer *t, const struct tc_step *s)
{
  const struct tc_bytes space = { " ", 1 };
  if (s->prepend == TC_PREPEND_FIRST) return;
  if (s->prepend == TC_PREPEND_MISSING && is_text(s->content, t->mark.s ? t->mark : space)) return;
  t->prepends = true;
  t->whole |= t->cuts;
}

void tc_note_step(struct tc_tokenizer *t, const struct tc_step *s, enum tc_cuts regex)
{
  const bool plain = s->behavior == TC_ISOLATED && !s->invert && !t->mark.s;
  switch (s->kind) {
  case TC_STEP_PREPEND: note_prepend(t, s); break;
  case TC_STEP_NFC:
  case TC_STEP_NFKC: t->whole |= t->mark.s != NULL; break;
  case TC_STEP_REPLACE: note_replace(t, s); break;
  case TC_STEP_SPLIT:
    if (!s->code) note_split(t, s);
    else if (regex == TC_CUTS && plain) t->cuts = true;
    else if (regex != TC_CUTS_NOT) t->whole = true;
  }
}

/* A token may lie across a cut, end there so that something else begins, take the space behind it, or ask for what is
 * beside it. One that begins with the mark lies behind a cut as a whole. */
void tc_note_added(struct tc_tokenizer *t, const struct tc_added *a, bool normalized)
{
  const struct tc_bytes x = a->text, *mark = &t->mark;
  size_t bytes;
  const char *found = normalized && mark->s ? memmem(x.s, x.n, mark->s, mark->n) : NULL;
  if (memchr(x.s, ' ', x.n) || ((a->rstrip || t->prepends) && is_letter(x.s[x.n - 1]))) t->whole = true;
  if (found && (found > x.s || memmem(x.s + 1, x.n - 1, mark->s, mark->n))) t->whole = true;
  if (a->single_word && normalized && mark->s && (found || tc_is_word(tc_utf8_at(mark->s, &bytes)))) t->whole = true;
}

/* ---- merges -------------------------------------------------------------------------------- */

static void note_token(struct tc_tokenizer *t, struct tc_bytes x)
{
  size_t bytes;
  uint32_t before = tc_utf8_at(x.s, &bytes);
  for (size_t at = bytes; at < x.n; at += bytes) {
    const uint32_t c = tc_utf8_at(x.s + at, &bytes), i = tc_joined_place(before, c);
    t->joined[i >> 6] |= UINT64_C(1) << (i & 63);
    before = c;
  }
}

static void note_characters(struct tc_tokenizer *t)
{
  size_t bytes;
  t->char_id = tc_malloc(TC_CHARS * sizeof *t->char_id);
  for (size_t c = 0; c < TC_CHARS; c++) t->char_id[c] = TC_NO_ID;
  for (size_t i = 0; i <= t->words.mask; i++) {
    const struct tc_word *w = &t->words.slot[i];
    if (w->id == TC_NO_ID) continue;
    const uint32_t c = tc_utf8_at(w->text.s, &bytes);
    if (bytes == w->text.n && c < TC_CHARS) t->char_id[c] = w->id;
  }
}

/* A token that stands for something else than its text, a byte or what is unknown, must not be in a merge. */
void tc_note_merges(struct tc_tokenizer *t)
{
  enum { MADE = 1, OTHER = 2 };
  const struct tc_merges *m = &t->merges;
  uint8_t *is = tc_calloc(t->n_ids + 1, 1);
  bool other = t->mark.s && !t->all_bytes && tc_words_find(&t->words, t->mark) == TC_NO_ID;
  note_characters(t);
  t->joined = tc_calloc((size_t)1 << (TC_JOINED_BITS - 6), sizeof *t->joined);
  for (int b = 0; b <= 256; b++) {
    const uint32_t id = b < 256 ? t->byte_id[b] : t->unknown;
    if (id != TC_NO_ID) is[id] |= OTHER;
  }
  for (size_t i = 0; i <= m->mask; i++) {
    if (m->slot[i].pair == TC_NO_PAIR) continue;
    other = other || ((is[m->slot[i].pair >> 32] | is[(uint32_t)m->slot[i].pair]) & OTHER);
    is[m->slot[i].id] |= MADE;
  }
  for (size_t i = 0; i <= t->words.mask; i++)
    if (t->words.slot[i].id != TC_NO_ID && is[t->words.slot[i].id] & MADE) note_token(t, t->words.slot[i].text);
  free(is);
  if (!other) return;
  free(t->joined);
  t->joined = NULL;
}

/* ---- cuts ---------------------------------------------------------------------------------- */

static bool begins_character(char c) { return ((unsigned char)c & 0xc0) != 0x80; }

size_t tc_tokenizer_cut(const struct tc_tokenizer *t, const char *text, size_t from, size_t n)
{
  size_t bytes;
  const bool merges = t->mark.s && t->joined && !t->ignore_merges;
  const uint32_t mark = merges ? tc_utf8_at(t->mark.s, &bytes) : 0;
  for (size_t p = n ? n - 1 : 0; t->anywhere && p > 0 && p >= from; p--)
    if (begins_character(text[p])) return p;
  if (!(t->cuts || merges) || t->whole) return 0;
  for (size_t p = n < 2 ? 0 : n - 2; p > 0 && p >= from; p--)
    if (text[p] == ' ' && is_letter(text[p - 1]) && is_letter(text[p + 1]) &&
        (t->cuts || tc_is_apart(t, (unsigned char)text[p - 1], mark))) return p;
  return 0;
}
