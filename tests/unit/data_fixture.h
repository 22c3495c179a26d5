/* data_fixture.h - what tests of token files share: files by hand, opening, batches. */
#ifndef TC_DATA_FIXTURE_H
#define TC_DATA_FIXTURE_H

#include "src/data.h"
#include "tests/unit/tap.h"

static inline char *path(const char *dir, const char *name)
{
  return tc_sprintf("%s/%s", dir, name);
}

static inline void put(const char *file, const void *bytes, size_t n)
{
  FILE *f = fopen(file, "wb");
  if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
    perror(file);
    exit(1);
  }
}

/* A shard by hand: header of 256 int32, then uint16. */
static inline void put_bin(const char *file, int32_t magic, int32_t version, int32_t count,
                    const uint16_t *tokens, size_t n)
{
  int32_t header[256] = { magic, version, count };
  char *all = malloc(sizeof header + 2 * n + 1);
  memcpy(all, header, sizeof header);
  if (n) memcpy(all + sizeof header, tokens, 2 * n);
  put(file, all, sizeof header + 2 * n);
  free(all);
}

static inline struct tc_data *must_open(char *const *files, int n, const char *format, int part,
                                 int64_t context, int64_t vocab)
{
  struct tc_err err = { 0 };
  struct tc_data *d = NULL;
  if (tc_data_open(&d, files, n, format, part, context, vocab, &err) != 0) {
    printf("Bail out! %s\n", err.text);
    exit(1);
  }
  return d;
}

/* tc_data_train, which must not fail. */
static inline void take(struct tc_data *d, uint64_t seed, int64_t step, int64_t b0, int64_t n,
                 int32_t *tokens, int32_t *targets)
{
  struct tc_err err = { 0 };
  if (tc_data_train(d, seed, step, b0, n, tokens, targets, &err) == 0) return;
  printf("Bail out! %s\n", err.text);
  exit(1);
}

#endif
