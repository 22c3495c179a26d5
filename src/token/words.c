/* words.c - what a tokenizer holds: copies of texts, and tables: bytes to id, pair to merge, added tokens.
 *
 * Invariants: hash tables are at most half full, so that a search ends; the list of added tokens is sorted by
 * text, so those that begin with the same bytes are neighbours. */
#include "src/token/impl.h"

#include <stdlib.h>
#include <string.h>

static size_t table_size(size_t n)
{
  size_t size = 16;
  while (size < 2 * n) size *= 2;
  return size;
}

static size_t hash(struct tc_bytes text)
{
  uint64_t h = TC_HASH64;
  for (size_t i = 0; i < text.n; i++) h = tc_hash64_add(h, (unsigned char)text.s[i]);
  return (size_t)(h ^ h >> 29);
}

static bool equal(struct tc_bytes a, struct tc_bytes b)
{
  return a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
}

struct tc_bytes tc_token_keep(struct tc_tokenizer *t, const char *s, size_t n)
{
  char *copy = tc_pool_alloc(t->pool, n + 1);
  memcpy(copy, s, n);
  return (struct tc_bytes){ copy, n };
}

void tc_words_new(struct tc_words *w, size_t n)
{
  const size_t size = table_size(n);
  *w = (struct tc_words){ .slot = tc_malloc(size * sizeof *w->slot), .mask = size - 1 };
  for (size_t i = 0; i < size; i++) w->slot[i].id = TC_NO_ID;
}

/* The slot of this text, or the empty one where it belongs. */
static struct tc_word *word_slot(const struct tc_words *w, struct tc_bytes text)
{
  size_t i = hash(text) & w->mask;
  while (w->slot[i].id != TC_NO_ID && !equal(w->slot[i].text, text)) i = (i + 1) & w->mask;
  return &w->slot[i];
}

uint32_t tc_words_put(struct tc_words *w, struct tc_bytes text, uint32_t id)
{
  struct tc_word *slot = word_slot(w, text);
  const uint32_t was = slot->id;
  if (was == TC_NO_ID) {
    TC_ASSERT(2 * w->n++ <= w->mask);
    *slot = (struct tc_word){ text, id };
    w->longest = TC_MAX(w->longest, text.n);
  }
  return was;
}

uint32_t tc_words_find(const struct tc_words *w, struct tc_bytes text)
{
  return text.n > w->longest ? TC_NO_ID : word_slot(w, text)->id;
}

void tc_merges_new(struct tc_merges *m, size_t n)
{
  const size_t size = table_size(n);
  *m = (struct tc_merges){ tc_malloc(size * sizeof *m->slot), tc_calloc(size / 16, sizeof *m->some), size - 1, 64 };
  for (size_t k = size; k > 1; k /= 2) m->shift--;
  for (size_t i = 0; i < size; i++) m->slot[i].pair = TC_NO_PAIR;
}

void tc_merges_put(struct tc_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
  const uint64_t pair = (uint64_t)left << 32 | right, bit = tc_merges_bit(m, pair);
  size_t i = (size_t)(bit >> 2);
  m->some[bit >> 6] |= UINT64_C(1) << (bit & 63);
  while (m->slot[i].pair != TC_NO_PAIR && m->slot[i].pair != pair) i = (i + 1) & m->mask;
  m->slot[i] = (struct tc_merge){ pair, rank, id };       /* of two merges of one pair the last counts */
}

/* ---- added tokens ---------------------------------------------------------------------- */

void tc_added_put(struct tc_added_list *l, struct tc_added a)
{
  TC_APPEND(l->at, l->n, l->cap, a);
  l->first[(unsigned char)a.text.s[0]] = true;
}

static int order(const void *a, const void *b)
{
  const struct tc_bytes *x = &((const struct tc_added *)a)->text, *y = &((const struct tc_added *)b)->text;
  const int c = memcmp(x->s, y->s, TC_MIN(x->n, y->n));
  return c ? c : (x->n > y->n) - (x->n < y->n);
}

void tc_added_sort(struct tc_added_list *l)
{
  if (l->n) qsort(l->at, l->n, sizeof *l->at, order);
}

/* The first of those in [lo, hi), which have the same bytes before `depth`, whose byte there is not below c. */
static size_t first_not_below(const struct tc_added_list *l, size_t lo, size_t hi, size_t depth, int c)
{
  while (lo < hi) {
    const size_t mid = lo + (hi - lo) / 2;
    const struct tc_bytes *t = &l->at[mid].text;
    if ((t->n > depth ? (unsigned char)t->s[depth] : -1) < c) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

const struct tc_added *tc_added_at(const struct tc_added_list *l, const char *text, size_t n)
{
  const struct tc_added *found = NULL;
  size_t lo = 0, hi = l->n;
  for (size_t depth = 0; depth < n && lo < hi; depth++) {
    const int c = (unsigned char)text[depth];
    lo = first_not_below(l, lo, hi, depth, c);
    hi = first_not_below(l, lo, hi, depth, c + 1);
    if (lo < hi && l->at[lo].text.n == depth + 1) found = &l->at[lo];
  }
  return found;
}
