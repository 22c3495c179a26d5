/* t_data_table.c - a data set that one rank has opened, on another: drawn ones give the same samples, files are opened when
 * they are read first, and what differs there is said. */
#include "tests/unit/data_fixture.h"

#include <fcntl.h>
#include <unistd.h>

static int opens;

static int open_here(const char *name, int flags) { return opens++, open(name, flags); }

#define open(name, flags) open_here(name, flags)
#include "src/data/token_file.c"
#undef open

enum { CONTEXT = 8, FILES = 12, LEAST = 400, MOST = 3000, BATCH = 5 };

/* What another rank gets. */
static struct tc_data *elsewhere(const struct tc_data *d)
{
  void *bytes;
  int64_t n;
  struct tc_data *there = NULL;
  struct tc_err err = { 0 };
  tc_data_pack(d, &bytes, &n);
  opens = 0;
  is_int(tc_data_unpack(&there, bytes, n, 3, &err), 0, "another rank has the data set %s", err.text);
  is_int(opens, 0, "... and opens nothing");
  free(bytes);
  return there;
}

static int take_samples(struct tc_data *d, int64_t step, int32_t out[2][BATCH * CONTEXT], struct tc_err *err)
{
  const struct tc_samples s = { TC_ORDER_PERMUTATION, 7, BATCH };
  return tc_data_train(d, NULL, &s, step, 0, BATCH, &(struct tc_batch){ out[0], out[1], NULL }, err);
}

/* Files of text, shards and blends of both, in parts. */
static void test_drawn(const char *dir)
{
  uint64_t seed = 11;
  for (int trial = 0; trial < 30; trial++) {
    char *word[FILES];
    const int n = 1 + (int)(tc_hash64_add(seed, (uint64_t)trial) % FILES);
    const bool blend = trial % 3 == 0, shards = trial % 2;
    for (int i = 0; i < n; i++) {
      uint8_t bytes[MOST];
      uint16_t wide[MOST];
      const int size = LEAST + (int)(tc_hash64_add(seed, (uint64_t)(trial * FILES + i)) % (MOST - LEAST));
      char *name = tc_sprintf("%s/t%d-%d", dir, trial, i);
      scatter(bytes, sizeof bytes);
      for (int k = 0; k < size; k++) bytes[k] = (uint8_t)(bytes[k] + i), wide[k] = bytes[k];
      if (shards) put_shard(name, 0, 256, 10, wide, (size_t)size);
      else put(name, bytes, (size_t)size);
      word[i] = blend ? tc_sprintf("%d:%s", i + 1, name) : tc_strdup(name);
      free(name);
    }
    struct tc_data *d;
    struct tc_err err = { 0 };
    const struct tc_data_opts o = { .word = word, .n = n, .format = shards ? TC_FORMAT_BIN : TC_FORMAT_TEXT,
                                    .part = trial % 4 % 3, .context = CONTEXT, .vocab = 256 };
    TC_ASSERT(tc_data_open(&d, &o, &err) == 0);
    struct tc_data *there = elsewhere(d);
    int32_t want[2][BATCH * CONTEXT], got[2][BATCH * CONTEXT];
    int wrong = 0;
    for (int64_t step = 1; step <= 20; step++) {
      wrong += take_samples(d, step, want, &err) != 0 || take_samples(there, step, got, &err) != 0;
      wrong += memcmp(want, got, sizeof want) != 0;
    }
    is_int(wrong, 0, "... its samples are the same %s", err.text);
    struct tc_data_identity a, b;
    ok(tc_data_identity(d, &a, &err) == 0 && tc_data_identity(there, &b, &err) == 0 && a.tokens == b.tokens && a.hash == b.hash,
       "... and what identifies it");
    ok(tc_data_end_token(d) == tc_data_end_token(there) && tc_data_is_bytes(d) == tc_data_is_bytes(there) &&
         tc_data_samples(d, 2.5) == tc_data_samples(there, 2.5) && tc_data_sources(d) == tc_data_sources(there), "... and the rest");
    for (int i = 0; i < tc_data_sources(d); i++)
      ok(!strcmp(tc_data_source_name(d, i), tc_data_source_name(there, i)) && tc_data_files(d, i) == tc_data_files(there, i) &&
           !strcmp(tc_data_file(d, i, 0)->name, tc_data_file(there, i, 0)->name), "... source %d", i);
    tc_data_free(d);
    tc_data_free(there);
    for (int i = 0; i < n; i++) free(word[i]);
  }
}

/* Only files that are read are opened, and looked at before a save. */
static void test_few(const char *dir)
{
  enum { N = 10, EACH = 100 };
  char *name[N];
  uint8_t bytes[EACH];
  int32_t out[EACH];
  struct tc_err err = { 0 };
  scatter(bytes, sizeof bytes);
  for (int i = 0; i < N; i++) {
    name[i] = tc_sprintf("%s/few%d", dir, i);
    put(name[i], bytes, sizeof bytes);
  }
  struct tc_data *d = must_open(name, N, TC_FORMAT_TEXT, 0, CONTEXT, 256), *there = elsewhere(d);
  ok(tc_data_read(there, NULL, 0, 3 * EACH + 50, 60, out, &err) == 0 && opens == 2, "two files are read, and opened %s", err.text);
  unlink(name[0]);
  is_int(tc_data_check(there, true, &err), 0, "a file that this rank has not opened is no matter to it %s", err.text);
  is_int(tc_data_check(d, true, &err), TC_EUSER, "... but to the rank that has");
  is_int(tc_data_read(there, NULL, 0, 0, 10, out, &err), TC_EUSER, "it is read");
  says(&err, name[0], "does not exist here, but did on the node of rank 0");
  put(name[1], bytes, EACH - 1);
  is_int(tc_data_read(there, NULL, 0, EACH, 10, out, &err), TC_EUSER, "a file of another size");
  says(&err, name[1], "has 99 bytes here, and 100 on the node of rank 0");
  put(name[3], bytes, EACH - 1);
  is_int(tc_data_check(there, true, &err), TC_EUSER, "a file that it has opened");
  says(&err, name[3], "it had 100 bytes and has 99");
  tc_data_free(d);
  tc_data_free(there);
  for (int i = 0; i < N; i++) free(name[i]);
}

/* A file of the same size: the same one, written again, is noticed by the time; a copy may have another. */
static void test_written_again(const char *dir)
{
  char *file = path(dir, "again.txt"), *copy = path(dir, "a-copy.txt");
  uint8_t bytes[500];
  int32_t out[4];
  struct tc_err err = { 0 };
  scatter(bytes, sizeof bytes);
  put(file, bytes, sizeof bytes);
  put(copy, bytes, sizeof bytes);
  const struct timespec old[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
  struct tc_data *d = must_open(&file, 1, TC_FORMAT_TEXT, 0, CONTEXT, 256), *there = elsewhere(d), *too = elsewhere(d);
  utimensat(AT_FDCWD, file, old, 0);
  is_int(tc_data_read(there, NULL, 0, 0, 4, out, &err), TC_EUSER, "a file that was written since");
  says(&err, file, "was modified during the run");
  TC_ASSERT(rename(copy, file) == 0);
  is_int(tc_data_read(too, NULL, 0, 0, 4, out, &err), 0, "another file, as on another node, may be of any time %s", err.text);
  tc_data_free(d);
  tc_data_free(there);
  tc_data_free(too);
  TC_FREE(file, copy);
}

/* What another rank has found to identify the data is what a later look is compared with. */
static void test_identity(const char *dir)
{
  char *file = path(dir, "same.txt");
  uint8_t bytes[500];
  int32_t out[4];
  struct tc_err err = { 0 };
  struct tc_data_identity id;
  scatter(bytes, sizeof bytes);
  put(file, bytes, sizeof bytes);
  struct tc_data *d = must_open(&file, 1, TC_FORMAT_TEXT, 0, CONTEXT, 256), *there = elsewhere(d);
  const uint64_t inodes = tc_data_inodes(d);
  char *copy = path(dir, "copy.txt"), *kept = path(dir, "kept.txt");
  put(copy, bytes, sizeof bytes);
  is_int(tc_data_inodes(there) == inodes && inodes, 1, "both see the same file");
  TC_ASSERT(rename(file, kept) == 0);
  is_int((int64_t)tc_data_inodes(there), 0, "... none");
  TC_ASSERT(rename(copy, file) == 0);
  ok(tc_data_inodes(there) != inodes && tc_data_inodes(there) != 0, "... another one with the same bytes");
  TC_ASSERT(rename(kept, file) == 0);
  TC_FREE(copy, kept);
  TC_ASSERT(tc_data_identity(d, &id, &err) == 0 && tc_data_read(there, NULL, 0, 0, 4, out, &err) == 0);
  const struct timespec times[2] = { tc_data_file(there, 0, 0)->was.st_mtim, tc_data_file(there, 0, 0)->was.st_mtim };
  tc_data_identify(there, &id);
  put_at(file, 7, "\1\2", 2);
  utimensat(AT_FDCWD, file, times, 0);
  is_int(tc_data_check(there, true, &err), TC_EUSER, "rewritten, and the time set back");
  says(&err, file, "set back");
  tc_data_free(d);
  tc_data_free(there);
  free(file);
}

static void tests(const char *dir)
{
  test_drawn(dir);
  test_few(dir);
  test_written_again(dir);
  test_identity(dir);
}

int main(void) { return in_folder("t_data_table", tests); }
