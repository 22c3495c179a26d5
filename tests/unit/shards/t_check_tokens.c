/* t_check_tokens.c - the check of token files: the first token that is too large is named, by any number of threads; each
 * file has a vocabulary of its own; documents are counted. And token_set.c: which tokenizer a file's tokens are of. */
#include "src/data/shard.h"
#include "src/shards/token_set.h"
#include "tests/unit/data_fixture.h"

#include <unistd.h>

enum { FILES = 3, LONG = 2 * TC_TOKEN_BLOCK + 1000, END = 7 };      /* three blocks each */
static const int64_t length[FILES] = { LONG, 1, LONG };
static uint16_t *token[FILES];
static char *name[FILES];

static void put_files(void)
{
  for (int i = 0; i < FILES; i++) put_shard(name[i], 0, 256, END, token[i], (size_t)length[i]);
}

static struct tc_token_set_opts opts(enum tc_token_use use, int64_t vocab)
{
  return (struct tc_token_set_opts){ .use = use, .word = name, .n_words = FILES, .format = TC_FORMAT_AUTO, .vocab = vocab };
}

/* The check with this vocabulary (-1: what the files say), by several numbers of threads (0: as many as CPUs).
 * why: the sentence that all of them must give; NULL: none. */
static void test(int64_t vocab, const char *why, const char *what)
{
  for (int threads = 0; threads < 10; threads += 3) {
    const struct tc_token_set_opts o = opts(TC_TOKENS_CHECK, vocab);
    struct tc_token_set s;
    struct tc_token_check c = { 0 };
    struct tc_err err = { 0 };
    int rc = tc_token_set_open(&s, &o, &err);
    if (rc == TC_OK) rc = tc_token_set_check(&c, &s, threads, &err);
    is_int(rc, why ? TC_EUSER : TC_OK, "%s, %d threads", what, threads);
    if (why) ok(strstr(err.text, why) != NULL, "... %s", err.text);
    else
      ok(c.vocab[0] == (vocab < 0 ? 256 : vocab) && c.vocab[2] == c.vocab[0], "... all are below %lld",
         (long long)c.vocab[0]);
    free(c.vocab);
    tc_token_set_free(&s);
  }
}

static void test_tokens(void)
{
  test(-1, NULL, "tokens that are bytes");
  test(256, NULL, "the same with a vocabulary that is given");
  test(255, "token 255 at place ", "one that is too small");
  token[2][LONG - 1] = 300;
  put_files();
  test(300, "'two.bin': token 300 at place 525287 (byte 1051598) is not below the vocabulary's size, 300", "the last of all");
  test(301, NULL, "and one more");
  token[2][1] = token[1][0] = 299;
  token[0][TC_TOKEN_BLOCK] = 298;
  put_files();
  test(-1, "'zero.bin': token 298 at place 262144 (byte 525312) is not below", "the first of several");
  test(299, "'one.bin': token 299 at place 0 (byte 1024) is not below", "the first file that has one");
  token[2][LONG - 1] = token[2][1] = token[1][0] = token[0][TC_TOKEN_BLOCK] = 0;
  put_files();
}

/* By the tokens that end one, where the files do not say. */
static void test_documents(void)
{
  const struct tc_token_set_opts o = opts(TC_TOKENS_CHECK, -1);
  int64_t ends = 0;
  struct tc_token_set s;
  struct tc_token_check c;
  struct tc_err err = { 0 };
  for (int i = 0; i < FILES; i++)
    for (int64_t k = 0; k < length[i]; k++) ends += token[i][k] == END;
  TC_ASSERT(tc_token_set_open(&s, &o, &err) == 0 && tc_token_set_check(&c, &s, 3, &err) == 0);
  ok(ends > 100 && c.documents == ends, "%lld documents", (long long)c.documents);
  free(c.vocab);
  tc_token_set_free(&s);
}

/* Weights beside the middle file and the last one, which has three blocks. */
static void test_weights(void)
{
  enum { ALL = TC_WEIGHTS_BYTES + LONG };
  const struct tc_token_set_opts o = opts(TC_TOKENS_CHECK, -1);
  char *path[2] = { tc_weights_path(name[1]), tc_weights_path(name[2]) }, *w = tc_calloc(1, ALL);
  struct tc_token_set s;
  struct tc_token_check c;
  struct tc_err err = { 0 };
  for (int bad = 0; bad < 2; bad++) {
    tc_weights_pack(LONG, w);
    for (int i = 0; i < LONG; i++) w[TC_WEIGHTS_BYTES + i] = i % 1000 == 0 ? 3 : i % 3 == 0;
    w[TC_WEIGHTS_BYTES + LONG - 1] = (char)(bad ? 4 : 2);
    put(path[1], w, ALL);
    tc_weights_pack(1, w);
    w[TC_WEIGHTS_BYTES] = 1;
    put(path[0], w, TC_WEIGHTS_BYTES + 1);
    TC_ASSERT(tc_token_set_open(&s, &o, &err) == 0);
    is_int(tc_token_set_check(&c, &s, 3, &err), bad ? TC_EUSER : TC_OK, "files with weights: %s", err.text);
    if (bad) ok(strstr(err.text, "'two.weights.npy' has 4 at place 525287") != NULL, "... the place");
    int64_t counted = 1, samples = 1;
    for (int i = 0; i < LONG - 1; i++) counted += i % 1000 && i % 3 == 0, samples += i % 1000 == 0;
    if (!bad) ok(c.weighted && c.counted == counted && c.samples == samples, "... %lld tokens count", (long long)counted);
    free(c.vocab);
    tc_token_set_free(&s);
  }
  for (int i = 0; i < 2; i++) unlink(path[i]), free(path[i]);
  free(w);
}

static void test_tokenizers(void)
{
  static const struct { uint64_t hash; enum tc_token_use use; const char *tokenizer, *why; bool bytes; } row[] = {
    { 0, TC_TOKENS_SHOW, NULL, NULL, true }, { 0, TC_TOKENS_DECODE, NULL, NULL, true },
    { 5, TC_TOKENS_SHOW, NULL, NULL, false }, { 5, TC_TOKENS_CHECK, NULL, NULL, false },
    { 5, TC_TOKENS_DECODE, NULL, "there is no tokenizer.json beside data file", false },
    { 5, TC_TOKENS_SHOW, "bytes", NULL, false },
    { 5, TC_TOKENS_CHECK, "bytes", "was made with a tokenizer: its tokens are not", false },
    { 0, TC_TOKENS_CHECK, "bytes", NULL, true }, { 0, TC_TOKENS_SHOW, "none", "none", false } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_token_set_opts o = opts(row[i].use, -1);
    struct tc_token_set s;
    struct tc_err err = { 0 };
    o.n_words = 1;
    o.tokenizer = row[i].tokenizer;
    put_shard(name[0], row[i].hash, 256, END, token[0], 100);
    is_int(tc_token_set_open(&s, &o, &err), row[i].why ? TC_EUSER : TC_OK, "a file of tokenizer %d, use %d, --tokenizer %s",
           (int)row[i].hash, row[i].use, row[i].tokenizer ? row[i].tokenizer : "not given");
    if (row[i].why) ok(strstr(err.text, row[i].why) != NULL, "... %s", err.text);
    else {
      size_t n = 0;
      ok((s.file[0].t != NULL) == row[i].bytes && (!s.file[0].t || tc_token_is_byte(s.file[0].t)), "... its tokens are %s",
         row[i].bytes ? "bytes" : "not known");
      ok(!s.file[0].t || (*tc_tokenizer_bytes(s.file[0].t, 'x', &n) == 'x' && n == 1), "... and their texts");
    }
    tc_token_set_free(&s);
  }
}

/* A file that does not say what made it can be of any tokenizer; of a model's own one, with its vocabulary. */
static void test_unknown(char *tokenizer)
{
  struct tc_token_set_opts o = opts(TC_TOKENS_CHECK, -1);
  struct tc_token_set s;
  struct tc_token_check c;
  struct tc_err err = { 0 };
  o.n_words = 1;
  o.tokenizer = tokenizer;
  put_bin(name[0], 20240520, 1, 100, token[0], 100);
  is_int(tc_token_set_open(&s, &o, &err), TC_OK, "a file without a mark, and a tokenizer %s", err.text);
  ok(s.n == 1 && s.file[0].t && !tc_token_is_byte(s.file[0].t), "... which its tokens are of");
  TC_ASSERT(tc_token_set_check(&c, &s, 1, &err) == TC_OK);
  is_int(c.vocab[0], tc_tokenizer_vocab(s.file[0].t), "... and below the vocabulary of");
  free(c.vocab);
  tc_token_set_free(&s);
}

static void tests(const char *dir)
{
  char *top = realpath(getenv("srcdir") ? getenv("srcdir") : ".", NULL);
  char *tokenizer = tc_sprintf("%s/tests/oracle/tokens/gpt2.json", top ? top : ".");
  if (chdir(dir) != 0) exit(1);
  static const char *const names[FILES] = { "zero.bin", "one.bin", "two.bin" };
  for (int i = 0; i < FILES; i++) {
    uint8_t *bytes = tc_malloc((size_t)length[i]);
    name[i] = tc_strdup(names[i]);
    token[i] = tc_malloc((size_t)length[i] * sizeof *token[i]);
    scatter(bytes, (size_t)length[i]);
    for (int64_t k = 0; k < length[i]; k++) token[i][k] = bytes[k];
    free(bytes);
  }
  put_files();
  test_tokens();
  test_documents();
  test_weights();
  test_tokenizers();
  test_unknown(tokenizer);
  free(tokenizer);
  free(top);
  for (int i = 0; i < FILES; i++) {
    free(name[i]);
    free(token[i]);
  }
  if (chdir("..") != 0) exit(1);
}

int main(void)
{
  return in_folder("t_check_tokens", tests);
}
