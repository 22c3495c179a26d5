/* hash.c - identifies a tokenizer: a hash of all that ids depend on.
 *
 * It is made from the tokenizer as it was read, not from the file: the same tokenizer written with other spaces, in
 * another order of keys, or by a later release of Hugging Face's library, which writes merges as pairs, has the same
 * hash. Fields of the file that no id depends on (padding, the decoder, "special") are not in it. */
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

uint64_t tc_hash_tokenizer(const struct tc_tokenizer *t)
{
  uint64_t h = TC_HASH64;
  add_words(&h, &t->words);
  add_merges(&h, &t->merges);
  add_added(&h, &t->raw);
  add_added(&h, &t->normalized);
  add_byte(&h, t->ignore_merges);
  add_byte(&h, t->nfc);
  add_number(&h, (uint64_t)t->n_steps);
  for (int i = 0; i < t->n_steps; i++) {
    add_byte(&h, t->step[i].literal);
    add_text(&h, t->step[i].pattern);
  }
  add_ids(&h, &t->begin);
  add_ids(&h, &t->end);
  return h ? h : 1;
}
