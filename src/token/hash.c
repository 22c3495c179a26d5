/* hash.c - identifies a tokenizer: a hash of all that ids depend on.
 *
 * It is made from the tokenizer as it was read, not from the file: the same tokenizer written with other spaces, in
 * another order of keys, or by a later release of Hugging Face's library, which writes merges as pairs, has the same
 * hash. Fields of the file that no id depends on (padding, the decoder, "special") are not in it. What only some
 * tokenizers have is added behind the rest, if it is there, so that the others keep the hashes that files have. */
#include "src/token/impl.h"

#include <stdlib.h>

static void add_byte(uint64_t *h, uint8_t byte) { *h = tc_hash64_add(*h, byte); }

static void add_number(uint64_t *h, uint64_t x)
{
  for (int i = 0; i < 8; i++) add_byte(h, (uint8_t)(x >> 8 * i));
}

/* The length comes first, so that no two lists of texts are one text of bytes. */
static void add_text(uint64_t *h, struct tc_bytes text)
{
  add_number(h, text.n);
  for (size_t i = 0; i < text.n; i++) add_byte(h, (uint8_t)text.s[i]);
}

static int by_id(const void *a, const void *b)
{
  const struct tc_word *x = a, *y = b;
  return x->id < y->id ? -1 : x->id > y->id;
}

static int by_rank(const void *a, const void *b)
{
  const struct tc_merge *x = a, *y = b;
  return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* The vocabulary by id: the tables' own order depends on their size. */
static void add_words(uint64_t *h, const struct tc_words *w)
{
  struct tc_word *word = tc_malloc((w->n + 1) * sizeof *word);
  size_t n = 0;
  for (size_t i = 0; i <= w->mask; i++)
    if (w->slot[i].id != TC_NO_ID) word[n++] = w->slot[i];
  qsort(word, n, sizeof *word, by_id);
  add_number(h, n);
  for (size_t i = 0; i < n; i++) {
    add_number(h, word[i].id);
    add_text(h, word[i].text);
  }
  free(word);
}

static void add_merges(uint64_t *h, const struct tc_merges *m)
{
  struct tc_merge *merge = tc_malloc((m->mask + 1) * sizeof *merge);
  size_t n = 0;
  for (size_t i = 0; i <= m->mask; i++)
    if (m->slot[i].pair != TC_NO_PAIR) merge[n++] = m->slot[i];
  qsort(merge, n, sizeof *merge, by_rank);
  add_number(h, n);
  for (size_t i = 0; i < n; i++) {
    add_number(h, merge[i].pair);
    add_number(h, merge[i].id);
  }
  free(merge);
}

/* The list is sorted. */
static void add_added(uint64_t *h, const struct tc_added_list *l)
{
  add_number(h, l->n);
  for (size_t i = 0; i < l->n; i++) {
    add_number(h, l->at[i].id);
    add_text(h, l->at[i].text);
    add_byte(h, (uint8_t)(l->at[i].lstrip + 2 * l->at[i].rstrip));
  }
}

static void add_ids(uint64_t *h, const struct tc_ids *ids)
{
  add_number(h, ids->n);
  for (size_t i = 0; i < ids->n; i++) add_number(h, ids->id[i]);
}

/* Whether NFC is all that a normalizer may do, in which case it is one byte. */
static bool is_nfc(const struct tc_steps *steps)
{
  for (int i = 0; i < steps->n; i++)
    if (steps->at[i].kind != TC_STEP_NFC) return false;
  return true;
}

/* Whether a step of a pre-tokenizer is known by its pattern: a split into all pieces, or the space of ByteLevel. */
static bool is_plain(const struct tc_step *s)
{
  if (s->kind == TC_STEP_PREPEND) return s->prepend == TC_PREPEND_MISSING && s->content.n == 1 && *s->content.s == ' ';
  return s->kind == TC_STEP_SPLIT && s->behavior == TC_ISOLATED && !s->invert;
}

static void add_steps(uint64_t *h, const struct tc_steps *steps)
{
  add_number(h, (uint64_t)steps->n);
  for (int i = 0; i < steps->n; i++) {
    const struct tc_step *s = &steps->at[i];
    add_byte(h, (uint8_t)s->kind);
    add_byte(h, (uint8_t)s->behavior);
    add_byte(h, (uint8_t)s->prepend);
    add_byte(h, s->invert);
    add_byte(h, s->code != NULL);
    add_text(h, s->pattern);
    add_text(h, s->content);
  }
}

static bool has_single_words(const struct tc_added_list *l)
{
  for (size_t i = 0; i < l->n; i++)
    if (l->at[i].single_word) return true;
  return false;
}

static void add_rest(uint64_t *h, const struct tc_tokenizer *t)
{
  const struct tc_added_list *const lists[] = { &t->raw, &t->normalized };
  add_steps(h, &t->normalizer);
  add_steps(h, &t->pre_tokenizer);
  add_byte(h, t->characters);
  add_byte(h, t->all_bytes);
  if (!t->all_bytes) {
    add_byte(h, (uint8_t)(t->byte_fallback + 2 * t->fuse_unknown));
    add_number(h, t->unknown);
  }
  for (int i = 0; i < 2; i++)
    for (size_t k = 0; k < lists[i]->n; k++) add_byte(h, lists[i]->at[k].single_word);
}

uint64_t tc_hash_tokenizer(const struct tc_tokenizer *t)
{
  uint64_t h = TC_HASH64;
  bool rest = t->characters || !is_nfc(&t->normalizer) || has_single_words(&t->raw) || has_single_words(&t->normalized);
  add_words(&h, &t->words);
  add_merges(&h, &t->merges);
  add_added(&h, &t->raw);
  add_added(&h, &t->normalized);
  add_byte(&h, t->ignore_merges);
  add_byte(&h, t->normalizer.n > 0 && is_nfc(&t->normalizer));
  add_number(&h, (uint64_t)t->pre_tokenizer.n);
  for (int i = 0; i < t->pre_tokenizer.n; i++) {
    const struct tc_step *s = &t->pre_tokenizer.at[i];
    rest |= !is_plain(s);
    add_byte(&h, s->pattern.s && !s->code);
    add_text(&h, s->pattern);
  }
  add_ids(&h, &t->begin);
  add_ids(&h, &t->end);
  if (rest) add_rest(&h, t);
  return h ? h : 1;
}
