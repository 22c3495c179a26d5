/* digest.c - what identifies weights: a sum over all elements, each mixed with its tensor's name and its index, which depends on
 * no layout. */
#include "src/foreign/digest.h"

#include <inttypes.h>
#include <string.h>

/* Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014. */
static uint64_t mix(uint64_t x)
{
  x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
  return x ^ x >> 31;
}

/* The index in the tensor of element i of the box. */
static int64_t index_of(const struct tc_ckpt_tensor *t, const int64_t *start, const int64_t *count, int64_t i)
{
  int64_t at = 0, step = 1;
  for (int d = t->rank - 1; d >= 0; d--) {
    at += (start[d] + i % count[d]) * step;
    step *= t->dim[d];
    i /= count[d];
  }
  return at;
}

uint64_t tc_digest_box(const struct tc_ckpt_tensor *t, const int64_t *start, const int64_t *count, const float *value)
{
  const int64_t n = tc_box_elems(t->rank, count), row = t->rank ? count[t->rank - 1] : 1;
  const uint64_t name = tc_hash64(t->name);
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; i += row) {
    const uint64_t first = name + (uint64_t)index_of(t, start, count, i);
    for (int64_t k = 0; k < row; k++) {
      uint32_t bits;
      memcpy(&bits, &value[i + k], sizeof bits);
      sum += mix((first + (uint64_t)k) * UINT64_C(0x9E3779B97F4A7C15) ^ bits);
    }
  }
  return sum;
}

/* ---- what a checkpoint notes ------------------------------------------------------------------- */

void tc_digest_text(char text[TC_DIGEST + 1], uint64_t digest) { snprintf(text, TC_DIGEST + 1, "%016" PRIx64, digest); }

char *tc_base_note(uint64_t digest, const char *path) { return tc_sprintf("%016" PRIx64 " %s", digest, path); }

struct tc_base tc_base_noted(const struct tc_ckpt *c)
{
  const char *note = tc_ckpt_meta(c)->base, *blank = strchr(note, ' ');
  struct tc_base b = { "", blank ? blank + 1 : "", true };
  if (blank && blank - note == TC_DIGEST) memcpy(b.digest, note, TC_DIGEST);
  for (int k = 0; k < tc_ckpt_n(c) && b.elsewhere; k++) b.elsewhere = strstr(tc_ckpt_at(c, k)->name, ".lora_") != NULL;
  return b;
}

bool tc_has_adapters(const struct tc_ckpt *c)
{
  bool has = false;
  for (int k = 0; k < tc_ckpt_n(c) && !has; k++) has = tc_ends_with(tc_ckpt_at(c, k)->name, ".lora_a");
  return has;
}

int tc_base_check(const char *known, const char *adapters, uint64_t digest, const char *base, bool has_adapters,
                  struct tc_err *err)
{
  char text[TC_DIGEST + 1];
  if (!*known && !has_adapters) return 0;
  tc_digest_text(text, digest);
  if (!strcmp(known, text)) return 0;
  if (!*known)
    return tc_fail(err, TC_EUSER, "%.300s has adapters of its own, and nothing says whether those of %.300s are to be beside its "
                   "weights without them: tercio ckpt export --merge makes a model of both", base, adapters);
  return tc_fail(err, TC_EUSER, "the adapters of %.300s belong to weights of digest %s, but those of %.300s have %s: name the "
                 "checkpoint that they were trained beside", adapters, known, base, text);
}
