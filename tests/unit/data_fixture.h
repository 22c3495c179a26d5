/* data_fixture.h - what tests of token files share: a folder, files by hand, opening, batches,
 * sentences. */
#ifndef TC_DATA_FIXTURE_H
#define TC_DATA_FIXTURE_H

#include "src/data/data.h"
#include "tests/unit/tap.h"

#include <stdlib.h>

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

/* Bytes of a file that is there, from `offset` on. */
static inline void put_at(const char *file, long offset, const void *bytes, size_t n)
{
  FILE *f = fopen(file, "r+b");
  if (!f || fseek(f, offset, SEEK_SET) != 0 || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
    perror(file);
    exit(1);
  }
}

/* Bytes that look random, the same in each test. */
static inline void scatter(uint8_t *bytes, size_t n)
{
  for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)((uint32_t)i * 2654435761u >> 24);
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

/* A shard as `tercio data` makes it: its header says the hash of the tokenizer (0: none, a token is a byte), the size of the
 * vocabulary and the token that ends a document. */
static inline void put_shard(const char *file, uint64_t hash, int32_t vocab, int32_t end, const uint16_t *tokens, size_t n)
{
  const int32_t mark[5] = { 0x6b746374, (int32_t)(uint32_t)hash, (int32_t)(uint32_t)(hash >> 32), vocab, end };
  put_bin(file, 20240520, 1, (int32_t)n, tokens, n);
  put_at(file, 12, mark, sizeof mark);
}

static inline struct tc_data *must_open(char *const *files, int n, enum tc_data_format format, int part,
                                        int64_t context, int64_t vocab)
{
  const struct tc_data_opts o = { files, n, format, part, context, vocab, 0, false, false, false, false };
  struct tc_err err = { 0 };
  struct tc_data *d = NULL;
  if (tc_data_open(&d, &o, &err) != 0) {
    printf("Bail out! %s\n", err.text);
    exit(1);
  }
  return d;
}

/* n sequences of a step by draws, which is the status of tc_data_train. */
static inline int draw(struct tc_data *d, uint64_t seed, int64_t step, int64_t b0, int64_t n,
                       int32_t *tokens, int32_t *targets, struct tc_err *err)
{
  const struct tc_samples s = { TC_ORDER_DRAWS, seed, b0 + n };
  return tc_data_train(d, NULL, &s, step, b0, n, &(struct tc_batch){ tokens, targets, NULL }, err);
}

/* The same, which must not fail. */
static inline void take(struct tc_data *d, uint64_t seed, int64_t step, int64_t b0, int64_t n,
                        int32_t *tokens, int32_t *targets)
{
  struct tc_err err = { 0 };
  if (draw(d, seed, step, b0, n, tokens, targets, &err) == 0) return;
  printf("Bail out! %s\n", err.text);
  exit(1);
}

/* The sentence names the file, and has `word`. */
static inline void says(const struct tc_err *err, const char *file, const char *word)
{
  ok(strstr(err->text, word) && strstr(err->text, file), "  says: %s", err->text);
}

/* Runs the tests in a new folder, which is then removed. Returns main's status. */
static inline int in_folder(const char *name, void (*tests)(const char *dir))
{
  char *dir = tc_sprintf("%s.XXXXXX", name);
  if (!mkdtemp(dir)) {
    perror(dir);
    return 1;
  }
  tests(dir);
  char *rm = tc_sprintf("rm -r %s", dir);
  if (system(rm) != 0) printf("# %s is left\n", dir);
  free(rm);
  free(dir);
  return done_testing();
}

#endif
