/* bpe.c - byte-pair encoding of one piece: of all neighbours that have a merge, those of the lowest rank are
 * joined, the leftmost first, until no two have one.
 *
 * Three ways, which give the same ids: short pieces come from a cache; those of up to SHORT bytes search their pairs
 * for the lowest rank again and again; longer ones keep the pairs in a heap, so that a piece of n bytes takes
 * n log n steps. */
#include "src/token/impl.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT = 64, KEY_BYTES = 22, CACHED_IDS = 10, CACHE_BITS = 15 };

/* A piece of the cache; n_bytes == 0: none. */
struct cached { uint8_t n_bytes, n_ids; char key[KEY_BYTES]; uint32_t id[CACHED_IDS]; };

/* Long pieces: tokens as a list over places, each with the rank of its pair with the next one (UINT32_MAX: none) and what
 * the merge gives; and a heap of rank << 32 | place. A pair that is no longer there is dropped when it comes up: its place has
 * another rank. */
enum { NONE = INT32_MAX, CHILDREN = 4 };
struct place { uint32_t id, rank, joined; int32_t prev, next; };

struct tc_bpe {
  const struct tc_tokenizer *t;
  struct cached *cache;          /* [1 << CACHE_BITS] */
  struct place *place;           /* [places] */
  uint64_t *heap;
  size_t places, n_heap, heap_cap;
};

struct tc_bpe *tc_bpe_new(const struct tc_tokenizer *t)
{
  struct tc_bpe *b = tc_calloc(1, sizeof *b);
  b->t = t;
  b->cache = tc_calloc((size_t)1 << CACHE_BITS, sizeof *b->cache);
  return b;
}

void tc_bpe_free(struct tc_bpe *b)
{
  if (!b) return;
  TC_FREE(b->cache, b->place, b->heap, b);
}

void tc_ids_reserve(struct tc_ids *ids, size_t more)
{
  if (ids->cap - ids->n >= more) return;
  ids->cap = TC_MAX(2 * ids->cap, ids->n + more + 64);
  ids->id = tc_realloc(ids->id, ids->cap * sizeof *ids->id);
}

void tc_ids_free(struct tc_ids *ids)
{
  free(ids->id);
  *ids = (struct tc_ids){ 0 };
}

/* ---- short pieces ---------------------------------------------------------------------- */

static uint32_t rank_of(const struct tc_tokenizer *t, const uint32_t *id, uint32_t *joined)
{
  const struct tc_merge *m = tc_merges_find(&t->merges, id[0], id[1]);
  *joined = m ? m->id : TC_NO_ID;
  return m ? m->rank : UINT32_MAX;
}

/* Joins id[n], n <= SHORT, in place. Returns how many are left. */
static size_t join_short(const struct tc_tokenizer *t, uint32_t *id, size_t n)
{
  uint32_t rank[SHORT], joined[SHORT];
  for (size_t i = 0; i + 1 < n; i++) rank[i] = rank_of(t, id + i, &joined[i]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; i++)
      if (rank[i] < rank[best]) best = i;
    if (rank[best] == UINT32_MAX) break;
    id[best] = joined[best];
    n--;
    for (size_t i = best + 1; i < n; i++) id[i] = id[i + 1];
    for (size_t i = best + 1; i + 1 < n; i++) rank[i] = rank[i + 1], joined[i] = joined[i + 1];
    if (best + 1 < n) rank[best] = rank_of(t, id + best, &joined[best]);
    if (best > 0) rank[best - 1] = rank_of(t, id + best - 1, &joined[best - 1]);
  }
  return n;
}

/* ---- long pieces ----------------------------------------------------------------------- */

static void sift_down(uint64_t *heap, size_t n, size_t i)
{
  const uint64_t x = heap[i];
  for (size_t first; (first = CHILDREN * i + 1) < n;) {
    const size_t end = TC_MIN(first + CHILDREN, n);
    size_t least = first;
    for (size_t k = first + 1; k < end; k++)
      if (heap[k] < heap[least]) least = k;
    if (x <= heap[least]) break;
    heap[i] = heap[least];
    i = least;
  }
  heap[i] = x;
}

static void heap_push(struct tc_bpe *b, uint64_t x)
{
  TC_GROW(b->heap, b->n_heap, b->heap_cap);
  size_t i = b->n_heap++;
  while (i > 0 && x < b->heap[(i - 1) / CHILDREN]) {
    b->heap[i] = b->heap[(i - 1) / CHILDREN];
    i = (i - 1) / CHILDREN;
  }
  b->heap[i] = x;
}

/* The last one takes its place; where it is the last itself, it stays, beyond the heap. */
static void heap_drop(struct tc_bpe *b)
{
  b->heap[0] = b->heap[--b->n_heap];
  sift_down(b->heap, b->n_heap, 0);
}

/* Notes the merge of the token at place i and the next one. False: they have none. */
static bool note_pair(struct tc_bpe *b, int32_t i)
{
  struct place *p = &b->place[i];
  const struct tc_merge *m = p->next == NONE ? NULL : tc_merges_find(&b->t->merges, p->id, b->place[p->next].id);
  p->rank = m ? m->rank : UINT32_MAX;
  if (m) p->joined = m->id;
  return m != NULL;
}

static uint64_t order_of(const struct tc_bpe *b, int32_t i) { return (uint64_t)b->place[i].rank << 32 | (uint32_t)i; }

/* The token at place i takes the next one in; their pair, which is the heap's first, leaves it. */
static void join(struct tc_bpe *b, int32_t i)
{
  struct place *p = &b->place[i], *gone = &b->place[p->next];
  p->id = p->joined;
  p->next = gone->next;
  gone->rank = UINT32_MAX;
  if (p->next != NONE) b->place[p->next].prev = i;
  if (note_pair(b, i)) {
    b->heap[0] = order_of(b, i);
    sift_down(b->heap, b->n_heap, 0);
  } else {
    heap_drop(b);
  }
  if (p->prev != NONE && note_pair(b, p->prev)) heap_push(b, order_of(b, p->prev));
}

/* Joins id[n] in place. Returns how many are left. */
static size_t join_long(struct tc_bpe *b, uint32_t *id, size_t n)
{
  size_t left = 0;
  if (n > b->places) b->place = tc_realloc(b->place, (b->places = n) * sizeof *b->place);
  for (size_t i = 0; i < n; i++)
    b->place[i] = (struct place){ id[i], UINT32_MAX, 0, i ? (int32_t)i - 1 : NONE, i + 1 < n ? (int32_t)i + 1 : NONE };
  b->n_heap = 0;
  for (size_t i = 0; i < n; i++)
    if (note_pair(b, (int32_t)i)) TC_APPEND(b->heap, b->n_heap, b->heap_cap, order_of(b, (int32_t)i));
  for (size_t i = (b->n_heap + CHILDREN - 2) / CHILDREN; i-- > 0;) sift_down(b->heap, b->n_heap, i);
  while (b->n_heap) {
    const int32_t i = (int32_t)(uint32_t)b->heap[0];
    if (b->heap[0] == order_of(b, i)) join(b, i);
    else heap_drop(b);
  }
  for (int32_t i = 0; i != NONE; i = b->place[i].next) id[left++] = b->place[i].id;
  return left;
}

/* ---- pieces ---------------------------------------------------------------------------- */

/* Ids of the bytes of a character; 0: some byte has none. */
static size_t bytes_of(const struct tc_tokenizer *t, const char *s, size_t n, uint32_t *id)
{
  for (size_t i = 0; i < n; i++)
    if ((id[i] = t->byte_id[(unsigned char)s[i]]) == TC_NO_ID) return 0;
  return n;
}

/* The ids of the characters of s[n], n at most. Hugging Face's library writes an unknown one when the next known one
 * comes, so after tokens of bytes that lie between. */
static size_t characters(const struct tc_tokenizer *t, const char *s, size_t n, uint32_t *id)
{
  size_t len = 0, bytes, more;
  bool unknown = false;
  for (size_t at = 0; at < n; at += bytes) {
    const uint32_t c = tc_utf8_at(s + at, &bytes), known = tc_character_id(t, c, s + at, bytes);
    if (known == TC_NO_ID && t->byte_fallback && (more = bytes_of(t, s + at, bytes, id + len)) > 0) {
      len += more;
      continue;
    }
    if (unknown && (known != TC_NO_ID || !t->fuse_unknown)) id[len++] = t->unknown, unknown = false;
    if (known != TC_NO_ID) id[len++] = known;
    else unknown = t->unknown != TC_NO_ID;
  }
  if (unknown) id[len++] = t->unknown;
  return len;
}

bool tc_bpe_whole(const struct tc_bpe *b, const char *s, size_t n, struct tc_ids *out)
{
  const uint32_t id = b->t->ignore_merges ? tc_words_find(&b->t->words, (struct tc_bytes){ s, n }) : TC_NO_ID;
  if (id == TC_NO_ID) return false;
  TC_APPEND(out->id, out->n, out->cap, id);
  return true;
}

static void encode(struct tc_bpe *b, const char *s, size_t n, struct tc_ids *out)
{
  if (!tc_divides(b->t) && tc_bpe_whole(b, s, n, out)) return;
  tc_ids_reserve(out, n);
  uint32_t *id = out->id + out->n;
  if (b->t->characters) n = characters(b->t, s, n, id);
  else for (size_t i = 0; i < n; i++) id[i] = b->t->byte_id[(unsigned char)s[i]];
  if (n) out->n += n > SHORT ? join_long(b, id, n) : join_short(b->t, id, n);
}

/* The place in the cache of a piece of up to KEY_BYTES. */
static size_t cache_index(const char *s, size_t n)
{
  uint64_t word[3] = { 0 };
  memcpy(word, s, n);
  uint64_t h = (word[0] ^ n) * UINT64_C(0x9e3779b97f4a7c15);
  h = (h ^ h >> 32 ^ word[1]) * UINT64_C(0xd6e8feb86659fd93);
  h = (h ^ h >> 32 ^ word[2]) * UINT64_C(0x9e3779b97f4a7c15);
  return (size_t)(h >> (64 - CACHE_BITS));
}

void tc_bpe_character(struct tc_bpe *b, const char *s, size_t bytes, struct tc_ids *out)
{
  tc_ids_reserve(out, 4);
  out->n += characters(b->t, s, bytes, out->id + out->n);
}

void tc_bpe_piece(struct tc_bpe *b, const char *s, size_t n, struct tc_ids *out)
{
  TC_ASSERT(n > 0 && n < TC_PIECE_BYTES);
  if (n > KEY_BYTES) {
    encode(b, s, n, out);
    return;
  }
  struct cached *c = &b->cache[cache_index(s, n)];
  if (c->n_bytes == n && memcmp(c->key, s, n) == 0) {
    tc_ids_reserve(out, CACHED_IDS);
    memcpy(out->id + out->n, c->id, sizeof c->id);
    out->n += c->n_ids;
    return;
  }
  const size_t from = out->n;
  encode(b, s, n, out);
  if (out->n - from > CACHED_IDS) return;
  c->n_bytes = (uint8_t)n;
  c->n_ids = (uint8_t)(out->n - from);
  memcpy(c->key, s, n);
  memcpy(c->id, out->id + from, c->n_ids * sizeof *c->id);
}
