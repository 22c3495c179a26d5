/* t_documents.c - where documents begin, and the token that ends one: beside a naive count; from the headers of shards. */
#include "src/config/config.h"
#include "src/data/data.h"
#include "tests/unit/data_fixture.h"
#include "tests/unit/tap.h"

/* For each token the last place behind an `end`, or the sequence's beginning. */
static void test_starts(void)
{
  static const struct { const char *text; int64_t T; const char *starts; } row[] = {
    { "abcdefgh", 8, "00000000" }, { "ab.cd.ef", 8, "00033366" }, { "........", 8, "01234567" },
    { "abc.abc.", 4, "00000000" }, { ".bcd.bcd", 4, "01110111" }, { "ab.ca.cd", 4, "00030022" },
    { "abcdefg.", 8, "00000000" }, { "a", 1, "0" }, { "....", 1, "0000" } };
  for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
    const size_t n = strlen(row[k].text);
    int32_t tokens[8], starts[9];
    char got[9] = "";
    for (size_t i = 0; i < n; i++) tokens[i] = row[k].text[i];
    starts[n] = 77;
    tc_documents_starts(tokens, (int64_t)n, row[k].T, '.', starts);
    for (size_t i = 0; i < n; i++) got[i] = (char)('0' + starts[i]);
    ok(!strcmp(got, row[k].starts) && starts[n] == 77, "%s in sequences of %lld: %s", row[k].text, (long long)row[k].T, got);
  }
  int wrong = 0;
  for (int32_t end = 0; end < 40; end++) {
    enum { N = 600, T = 50 };
    int32_t tokens[N], starts[N];
    for (int64_t i = 0; i < N; i++) tokens[i] = (int32_t)((i * 7919 + end * i * i) % 23 % (end + 2));
    tc_documents_starts(tokens, N, T, end, starts);
    for (int64_t i = 0; i < N; i++) {
      int64_t from = i;
      while (from % T && tokens[from - 1] != end) from--;
      wrong += starts[i] != from % T;
    }
  }
  is_int(wrong, 0, "24,000 tokens beside a naive count");
}

static void write_shard(const char *name, bool marked, int32_t end)
{
  const uint16_t tokens[100] = { 0 };
  if (marked) put_shard(name, 7, 300, end, tokens, 100);
  else put_bin(name, 20240520, 1, 100, tokens, 100);
}

/* What tc_documents_end says of the first n files; the status into *rc. */
static int32_t end_of(char *const *name, int n, enum tc_data_format format, int64_t vocab, int64_t option, int *rc,
                      struct tc_err *err)
{
  struct tc_data *d = must_open(name, n, format, 0, 8, vocab);
  int32_t end = -1;
  *rc = tc_documents_end(&end, option, d, err);
  tc_data_free(d);
  return end;
}

static void test_end(const char *dir)
{
  char *name[3] = { path(dir, "a.bin"), path(dir, "b.bin"), path(dir, "plain.bin") }, *text = path(dir, "text");
  char *beyond = path(dir, "beyond.bin"), *bytes = path(dir, "bytes.bin");
  struct tc_err err = { 0 };
  int rc;
  write_shard(name[0], true, 256);
  write_shard(name[1], true, 257);
  write_shard(name[2], false, 0);
  put(text, "some text, of more bytes than a context", 39);
  is_int(end_of(name, 1, TC_FORMAT_AUTO, 300, TC_AUTO, &rc, &err), 256, "a shard's header says which token ends a document");
  is_int(end_of(name, 3, TC_FORMAT_BIN, 300, 5, &rc, &err), 5, "the option comes before the headers");
  is_int(end_of(&text, 1, TC_FORMAT_TEXT, 256, 10, &rc, &err), 10, "a byte ends a document of text");
  end_of(&text, 1, TC_FORMAT_AUTO, 256, TC_AUTO, &rc, &err);
  is_int(rc, TC_EUSER, "text says nothing");
  says(&err, text, "needs data.end_token for text");
  end_of(name, 2, TC_FORMAT_AUTO, 300, TC_AUTO, &rc, &err);
  is_int(rc, TC_EUSER, "shards that differ");
  says(&err, name[1], "is 257");
  end_of(name + 2, 1, TC_FORMAT_AUTO, 300, TC_AUTO, &rc, &err);
  is_int(rc, TC_EUSER, "a shard of another program");
  says(&err, name[2], "does not say");
  write_shard(beyond, true, 300);
  end_of(&beyond, 1, TC_FORMAT_AUTO, 300, TC_AUTO, &rc, &err);
  is_int(rc, TC_EUSER, "beyond the vocabulary");
  says(&err, beyond, "token 300 ");
  struct tc_data *val = must_open(name, 1, TC_FORMAT_AUTO, 0, 8, 300);
  is_int(tc_documents_same(256, TC_AUTO, val, &err), 0, "validation data with the same token");
  is_int(tc_documents_same(257, TC_AUTO, val, &err), TC_EUSER, "... with another");
  says(&err, name[0], "is 256, that of data.train 257");
  is_int(tc_documents_same(257, 257, val, &err), 0, "... the option comes before its headers");
  tc_data_free(val);
  val = must_open(name + 2, 1, TC_FORMAT_AUTO, 0, 8, 300);
  is_int(tc_documents_same(256, TC_AUTO, val, &err), TC_EUSER, "... that do not say it");
  tc_data_free(val);
  put_shard(bytes, 0, 256, -1, (const uint16_t[100]){ 0 }, 100);
  end_of(&bytes, 1, TC_FORMAT_AUTO, 300, TC_AUTO, &rc, &err);
  is_int(rc, TC_EUSER, "a shard of bytes says nothing");
  says(&err, bytes, "needs data.end_token for text");
  end_of(name, 1, TC_FORMAT_AUTO, 300, 300, &rc, &err);
  is_int(rc, TC_EUSER, "... given");
  says(&err, "data.end_token", "is not below model.vocab = 300");
  char *word[2] = { tc_sprintf("1:%s", text), tc_sprintf("1:%s", name[0]) };
  struct tc_data *d = NULL;
  const struct tc_data_opts o = { .word = word, .n = 2, .format = TC_FORMAT_AUTO, .context = 8, .vocab = 300 };
  is_int(tc_data_open(&d, &o, &err), TC_EUSER, "text in a blend with a tokenizer's shard");
  says(&err, text, "does not belong with");
  free(word[0]);
  free(word[1]);
  for (int i = 0; i < 3; i++) free(name[i]);
  free(text);
  free(beyond);
  free(bytes);
}

static void tests(const char *dir)
{
  test_starts();
  test_end(dir);
}

int main(void) { return in_folder("t_documents", tests); }
