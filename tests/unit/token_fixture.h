/* token_fixture.h - tokenizers for tests: the stored ones, and small ones made here. */
#ifndef TC_TOKEN_FIXTURE_H
#define TC_TOKEN_FIXTURE_H

#include <jansson.h>

#include "src/token/token.h"
#include "tests/unit/tap.h"

/* The path of a file of tests/oracle/tokens; owned by the caller. */
static inline char *token_file(const char *name)
{
  const char *top = getenv("srcdir");
  return tc_sprintf("%s/tests/oracle/tokens/%s", top ? top : ".", name);
}

static inline struct tc_tokenizer *stored_tokenizer(const char *name)
{
  struct tc_tokenizer *t = NULL;
  struct tc_err err = { 0 };
  char *file = tc_sprintf("%s.json", name), *path = token_file(file);
  if (tc_tokenizer_load(&t, path, &err) < 0) printf("Bail out! %s\n", err.text), exit(1);
  free(path);
  free(file);
  return t;
}

/* Numbers that a seed gives. */
struct dice { uint64_t seed, n; };
static inline uint32_t roll(struct dice *d, uint32_t below)
{
  uint32_t r[4];
  tc_philox(r, d->seed, d->n++, 0);
  return r[0] % below;
}

/* Text that tokens of ids stand for, n bytes; owned by the caller. */
static inline char *decode_ids(const struct tc_tokenizer *t, const struct tc_ids *ids, size_t *n)
{
  size_t cap = 64;
  char *text = tc_malloc(cap);
  *n = 0;
  for (size_t i = 0; i < ids->n; i++) {
    size_t bytes;
    const char *s = tc_tokenizer_bytes(t, ids->id[i], &bytes);
    TC_ASSERT(s);
    if (*n + bytes > cap) text = tc_realloc(text, cap = 2 * (*n + bytes));
    memcpy(text + *n, s, bytes);
    *n += bytes;
  }
  return text;
}

static inline bool same_ids(const struct tc_ids *a, const struct tc_ids *b)
{
  return a->n == b->n && (a->n == 0 || memcmp(a->id, b->id, a->n * sizeof *a->id) == 0);
}

#endif
