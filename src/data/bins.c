/* bins.c - see bins.h. Windows with the same room left are a list; which rooms have one is a set of bits, with words above it
 * that say which words are not zero. */
#include "src/data/bins.h"
#include "src/base/base.h"

#include <stdlib.h>
#include <string.h>

enum { LEVELS = 6 };              /* of 64 each: room for 2^36 */

struct set { uint64_t *word[LEVELS]; int n; };

static void set_new(struct set *s, int64_t values)
{
  do {
    values = tc_ceil_div(values, 64);
    s->word[s->n++] = tc_calloc((size_t)values, sizeof(uint64_t));
  } while (values > 1);
}

static void set_put(struct set *s, int64_t x)
{
  for (int k = 0; k < s->n; k++, x >>= 6) s->word[k][x >> 6] |= UINT64_C(1) << (x & 63);
}

static void set_drop(struct set *s, int64_t x)
{
  for (int k = 0; k < s->n; k++, x >>= 6)
    if (s->word[k][x >> 6] &= ~(UINT64_C(1) << (x & 63))) return;
}

/* The least value >= x, which is one of those the set has room for; -1: there is none. */
static int64_t set_from(const struct set *s, int64_t x, int64_t values)
{
  for (int k = 0; k < s->n; k++, x = (x >> 6) + 1) {
    if (x >> 6 >= tc_ceil_div(values, 64)) return -1;
    values = tc_ceil_div(values, 64);
    const uint64_t rest = s->word[k][x >> 6] & ~UINT64_C(0) << (x & 63);
    if (!rest) continue;
    x = (x & ~INT64_C(63)) + __builtin_ctzll(rest);
    for (; k > 0; k--) x = (x << 6) + __builtin_ctzll(s->word[k - 1][x]);
    return x;
  }
  return -1;
}

/* The numbers of the samples, the largest first. */
static int32_t *sort(const int32_t *size, int64_t n, int64_t room)
{
  int64_t *at = tc_calloc((size_t)room + 2, sizeof *at);
  int32_t *order = tc_malloc((size_t)n * sizeof *order);
  for (int64_t i = 0; i < n; i++) at[room - size[i] + 1]++;
  for (int64_t k = 0; k <= room; k++) at[k + 1] += at[k];
  for (int64_t i = 0; i < n; i++) order[at[room - size[i]]++] = (int32_t)i;
  free(at);
  return order;
}

/* The window of each sample, by its number; returns how many there are. */
static int64_t place(int32_t *window, const int32_t *order, const int32_t *size, int64_t n, int64_t room)
{
  struct set rooms = { 0 };
  int32_t *head = tc_malloc((size_t)(room + 1) * sizeof *head);      /* by room: a window; its others follow by `next` */
  int32_t *next = tc_malloc((size_t)n * sizeof *next);
  int64_t windows = 0;
  memset(head, -1, (size_t)(room + 1) * sizeof *head);
  set_new(&rooms, room + 1);
  for (int64_t i = 0; i < n; i++) {
    const int32_t want = size[order[i]];
    int64_t left = set_from(&rooms, want, room + 1);
    int32_t w = left < 0 ? (int32_t)windows++ : head[left];
    if (left >= 0 && (head[left] = next[w]) < 0) set_drop(&rooms, left);
    left = (left < 0 ? room : left) - want;
    next[w] = head[left];
    if (head[left] < 0) set_put(&rooms, left);
    head[left] = w;
    window[order[i]] = w;
  }
  for (int k = 0; k < rooms.n; k++) free(rooms.word[k]);
  TC_FREE(head, next);
  return windows;
}

void tc_bins_fill(struct tc_bins *b, const int32_t *size, int64_t n, int64_t room)
{
  int32_t *order = sort(size, n, room), *window = tc_malloc((size_t)n * sizeof *window);
  b->n = place(window, order, size, n, room);
  b->begin = tc_calloc((size_t)b->n + 2, sizeof *b->begin);
  b->sample = tc_malloc((size_t)n * sizeof *b->sample);
  for (int64_t i = 0; i < n; i++) b->begin[window[i] + 2]++;
  for (int64_t w = 2; w <= b->n; w++) b->begin[w] += b->begin[w - 1];
  for (int64_t i = 0; i < n; i++) b->sample[b->begin[window[order[i]] + 1]++] = order[i];
  TC_FREE(order, window);
}

void tc_bins_free(struct tc_bins *b)
{
  TC_FREE(b->begin, b->sample);
}
