/* t_format.c - data sets: formats known by their headers, folders and patterns, blends, what is refused; opening a
 * terabyte. */
#include "src/data/shard.h"
#include "src/run/run.h"
#include "tests/unit/data_fixture.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONTEXT = 8, VOCAB = 100000 };

static struct tc_data_opts opts(char *const *word, int n, enum tc_data_format format)
{
  return (struct tc_data_opts){ word, n, format, 0, CONTEXT, VOCAB, 0, false, false, false, false };
}

/* ---- names and formats ---------------------------------------------------------------------- */

static void put_llmc32(const char *file, const uint32_t *tokens, int32_t n)
{
  int32_t header[256] = { 20240801, 7, n };
  char *all = malloc(sizeof header + 4 * (size_t)n);
  memcpy(all, header, sizeof header);
  memcpy(all + sizeof header, tokens, 4 * (size_t)n);
  put(file, all, sizeof header + 4 * (size_t)n);
  free(all);
}

/* Megatron's files of one sequence. */
static void put_megatron(const char *bin, const char *idx, int code, const void *tokens, int32_t n, int width)
{
  uint8_t index[34 + 4 + 8 + 16] = "MMIDIDX";
  const uint64_t version = 1, sequences = 1, documents = 2, offset = 0, document[2] = { 0, 1 };
  memcpy(index + 9, &version, 8);
  index[17] = (uint8_t)code;
  memcpy(index + 18, &sequences, 8);
  memcpy(index + 26, &documents, 8);
  memcpy(index + 34, &n, 4);
  memcpy(index + 38, &offset, 8);
  memcpy(index + 46, document, 16);
  put(bin, tokens, (size_t)n * (size_t)width);
  put(idx, index, sizeof index);
}

enum { N = 60 };

/* A folder with the same tokens in every format: a.bin, b.bin (uint32), c.bin with c.idx, d.bin with d.idx (int32),
 * and raw and text files elsewhere. */
static void make_files(void)
{
  uint16_t u16[N];
  uint32_t u32[N];
  char text[N];
  for (int i = 0; i < N; i++) u16[i] = (uint16_t)(u32[i] = (uint32_t)(text[i] = (char)('a' + i % 26)));
  mkdir("set", 0755);
  mkdir("texts", 0755);
  mkdir("raw", 0755);
  put_bin("set/a.bin", 20240520, 1, N, u16, N);
  put_llmc32("set/b.bin", u32, N);
  put_megatron("set/c.bin", "set/c.idx", 8, u16, N, 2);
  put_megatron("set/d.bin", "set/d.idx", 4, u32, N, 4);
  put("set/tokenizer.json", "{}", 2);
  put("set/chat_template.jinja", "", 0);
  mkdir("more", 0755);
  put_bin("more/x.bin", 20240520, 1, N, u16, N);
  put_bin("more/y.bin", 20240520, 1, N, u16, N);
  put("texts/x.txt", text, N);
  put("texts/y.txt", text, N);
  put("texts/.hidden.txt", text, N);
  put("raw/t.u16", u16, sizeof u16);
  put("raw/t.u32", u32, sizeof u32);
  put("raw/none.bin", u16, sizeof u16);
  put("raw/lines.jsonl", text, N);
}

static void test_opened(void)
{
  static const struct { const char *word[3]; enum tc_data_format format; int64_t tokens; int sources; } rows[] = {
    { { "set" }, TC_FORMAT_AUTO, 4 * N, 1 },
    { { "set/" }, TC_FORMAT_AUTO, 4 * N, 1 },
    { { "set/*" "in" }, TC_FORMAT_AUTO, 4 * N, 1 },
    { { "set/" "*" }, TC_FORMAT_AUTO, 4 * N, 1 },
    { { "set/[cd].*" }, TC_FORMAT_AUTO, 2 * N, 1 },
    { { "set/c.bin", "set/d.bin" }, TC_FORMAT_MEGATRON, 2 * N, 1 },
    { { "set/[ab].bin" }, TC_FORMAT_BIN, 2 * N, 1 },
    { { "texts" }, TC_FORMAT_AUTO, 2 * N, 1 },
    { { "texts/x.txt" }, TC_FORMAT_TEXT, N, 1 },
    { { "raw/t.u16" }, TC_FORMAT_UINT16, N, 1 },
    { { "raw/t.u32" }, TC_FORMAT_UINT32, N, 1 },
    { { "raw/none.bin" }, TC_FORMAT_UINT16, N, 1 },
    { { "raw/lines.jsonl" }, TC_FORMAT_TEXT, N, 1 },
    { { "0.7:set", "0.3:more" }, TC_FORMAT_AUTO, 6 * N, 2 },
    { { "2:set/a.bin", "set/b.bin", "1e0:more" }, TC_FORMAT_AUTO, 4 * N, 2 },
    { { "1:set" }, TC_FORMAT_AUTO, 4 * N, 1 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int n = 0, wrong = 0;
    while (n < 3 && rows[i].word[n]) n++;
    const struct tc_data_opts o = opts((char *const *)(uintptr_t)rows[i].word, n, rows[i].format);
    struct tc_data *d;
    struct tc_err err = { 0 };
    int32_t x[CONTEXT], y[CONTEXT];
    if (!is_int(tc_data_open(&d, &o, &err), 0, "%s as format %d %s", rows[i].word[0], rows[i].format, err.text))
      continue;
    is_int(tc_data_tokens(d), rows[i].tokens, "... its tokens");
    is_int(tc_data_sources(d), rows[i].sources, "... its sources");
    for (int64_t w = 0; w < tc_data_windows(d, 0); w++) {
      wrong += tc_data_window(d, NULL, 0, w, &(struct tc_batch){ x, y, NULL }, &err) != 0;
      for (int k = 0; k < CONTEXT; k++)
        wrong += x[k] != 'a' + (w * CONTEXT + k) % N % 26 || y[k] != 'a' + (w * CONTEXT + k + 1) % N % 26;
    }
    is_int(wrong, 0, "... read over borders of files");
    tc_data_free(d);
  }
  const char *const words[] = { "7:set/a.bin", "set/b.bin", "3:more" };
  struct tc_data_opts o = opts((char *const *)(uintptr_t)words, 3, TC_FORMAT_AUTO);
  struct tc_data *d;
  struct tc_err err;
  TC_ASSERT(tc_data_open(&d, &o, &err) == 0);
  is_str(tc_data_source_name(d, 0), "set/a.bin set/b.bin", "a source is named as the user named it");
  is_str(tc_data_source_name(d, 1), "more", "... and the other");
  ok(tc_data_source_share(d, 0) == 0.7 && tc_data_source_share(d, 1) == 0.3, "shares");
  is_int(tc_data_taken(d, 0, 1000), 700, "of 1000 samples");
  is_int(tc_data_windows(d, 0), (2 * N - 1) / CONTEXT, "windows");
  is_int(tc_data_samples(d, 2), (int64_t)(2 * ((2 * N - 1) / CONTEXT) / 0.7), "two epochs of the source used up first");
  tc_data_free(d);
}

static void test_refused(void)
{
  uint16_t few[3] = { 1, 2, 3 };
  mkdir("empty", 0755);
  put("odd.u16", "abc", 3);
  put_bin("v9.bin", 20240801, 9, 3, few, 3);
  put_megatron("m1.bin", "m1.idx", 5, few, 3, 2);
  put_megatron("m2.bin", "m2.idx", 8, few, 2, 2);
  put("m2.bin", few, 6);
  put("m3.bin", few, 6);
  put("m3.idx", "no index at all, though it is long enough", 41);
  put("m4.bin", few, 6);
  put("m4.idx", "short", 5);
  static const struct { const char *word[3]; enum tc_data_format format; const char *sentence; } rows[] = {
    { { "nowhere/*.bin" }, TC_FORMAT_AUTO, "no data file matches 'nowhere/*.bin'" },
    { { "nowhere" }, TC_FORMAT_AUTO, "data file 'nowhere' does not exist" },
    { { "empty" }, TC_FORMAT_AUTO, "data folder 'empty' has no files *.bin or *.txt" },
    { { "s*" }, TC_FORMAT_AUTO, "data file 'set' is a folder; name the files in it" },
    { { "raw/none.bin" }, TC_FORMAT_AUTO, "data file 'raw/none.bin' has no header that is known, and is not text: byte 1" },
    { { "raw/lines.jsonl" }, TC_FORMAT_AUTO, "data file 'raw/lines.jsonl' has no header that is known" },
    { { "set/a.bin", "texts" }, TC_FORMAT_AUTO, "data file 'texts/x.txt' does not belong with 'set/a.bin'" },
    { { "1:set", "1:texts" }, TC_FORMAT_AUTO, "data file 'texts/x.txt' does not belong with 'set/a.bin': one has text, the" },
    { { "1:texts", "1:set/c.bin" }, TC_FORMAT_AUTO, "data file 'set/c.bin' does not belong with 'texts/x.txt'" },
    { { "1:texts", "1:raw/t.u16" }, TC_FORMAT_AUTO, "data file 'raw/t.u16' has no header that is known, and is not text: byte" },
    { { "raw/t.u32" }, TC_FORMAT_AUTO, "is not text: byte 1 of it is 0x00, which no text has. data.format = uint16 or uint32" },
    { { "odd.u16" }, TC_FORMAT_UINT16, "data file 'odd.u16' has 3 bytes, which are no whole number of uint16 tokens" },
    { { "v9.bin" }, TC_FORMAT_AUTO, "token shard of version 9; of those that begin with 20240801 only version 7 (uint32" },
    { { "set/a.bin" }, TC_FORMAT_MEGATRON, "data file 'set/a.idx' does not exist" },
    { { "texts/x.txt" }, TC_FORMAT_MEGATRON, "Megatron's files are NAME.bin, with NAME.idx beside it" },
    { { "m1.bin" }, TC_FORMAT_AUTO, "data file 'm1.bin' has tokens of type 5 (int64); uint8, uint16 and int32 can" },
    { { "m2.bin" }, TC_FORMAT_AUTO, "data file 'm2.bin' says it has 2 tokens, but its size holds 3: truncated or" },
    { { "m3.bin" }, TC_FORMAT_AUTO, "data file 'm3.idx' is not Megatron's index of version 1, as 'm3.bin' beside it" },
    { { "m4.bin" }, TC_FORMAT_AUTO, "data file 'm4.idx' is too short for Megatron's index: 5 bytes" },
    { { "0:set" }, TC_FORMAT_AUTO, "data '0:set': a weight is a number above 0, such as 0.7:FILE" },
    { { "-1:set" }, TC_FORMAT_AUTO, "a weight is a number above 0" },
    { { "1e:set" }, TC_FORMAT_AUTO, "a weight is a number above 0" },
    { { "0.5:" }, TC_FORMAT_AUTO, "data '0.5:': a file, folder or pattern must follow the weight" },
    { { "set", "0.5:texts" }, TC_FORMAT_AUTO, "data '0.5:texts' has a weight, and 'set' before it has none" },
    { { "1:set", "1e-9:more" }, TC_FORMAT_AUTO, "less than one sample in 65536; give it a larger weight" },
    { { "1:set", "1:odd.u16" }, TC_FORMAT_AUTO, "odd.u16: too few tokens: 3, but a sample of model.context = 8" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int n = 0;
    while (n < 3 && rows[i].word[n]) n++;
    const struct tc_data_opts o = opts((char *const *)(uintptr_t)rows[i].word, n, rows[i].format);
    struct tc_data *d = NULL;
    struct tc_err err = { 0 };
    is_int(tc_data_open(&d, &o, &err), TC_EUSER, "refused: %s", rows[i].word[0]);
    ok(!d && strstr(err.text, rows[i].sentence), "... says: %s", err.text);
  }
  char *word = (char *)(uintptr_t)"texts";
  struct tc_data_opts o = opts(&word, 1, TC_FORMAT_AUTO);
  struct tc_data *d;
  struct tc_err err = { 0 };
  put("one", "a", 1);
  put("two", "ab", 2);
  int32_t token[2] = { 0 };
  for (int i = 0; i < 2; i++) {
    struct tc_data_opts s = opts((char *[]){ i ? "two" : "one" }, 1, TC_FORMAT_TEXT);
    is_int(tc_data_open(&d, &s, &err), TC_EUSER, "%d tokens are too few for samples", i + 1);
    s.shorter = true;
    is_int(tc_data_open(&d, &s, &err), i ? 0 : TC_EUSER, "... to be read");
    if (!i) says(&err, "one", "has one token, but a loss needs two");
    else ok(tc_data_read(d, NULL, 0, 0, 2, token, &err) == 0 && token[0] == 'a' && token[1] == 'b', "... they are");
    if (i) tc_data_free(d);
  }
  o.vocab = 200;
  is_int(tc_data_open(&d, &o, &err), TC_EUSER, "text with a small vocabulary");
  says(&err, "texts/x.txt", "model.vocab = 200 is too small");
}

/* A folder of which a user may not read the names, or may not open the files: no pattern leaves its files out. */
static void test_unreadable(void)
{
  static const struct { mode_t mode; const char *word; const char *sentence; } rows[] = {
    { 0700, "parts/*/*.bin", "data files 'parts/*/*.bin': data folder 'parts/b' can't be read: Permission denied" },
    { 0700, "parts/*/x.bin", "data files 'parts/*/x.bin': data file 'parts/b/x.bin' can't be read: Permission denied" },
    { 0744, "parts/*/x.bin", "data file 'parts/b/x.bin' can't be read" },
    { 0744, "parts/*/*.bin", "data file 'parts/b/x.bin' can't be" },
    { 0700, "par*/b/*.bin", "data folder 'parts/b' can't be read" },
    { 0755, "parts/*/*.bin", NULL },
    { 0755, "parts/*/x.bin", NULL } };
  uint16_t tokens[N] = { 0 };
  mkdir("parts", 0755);
  mkdir("parts/a", 0755);
  mkdir("parts/b", 0755);
  put_bin("parts/a/x.bin", 20240520, 1, N, tokens, N);
  put_bin("parts/b/x.bin", 20240520, 1, N, tokens, N);
  put("parts/file", "no folder", 9);
  if (symlink("nowhere", "parts/link") != 0) perror("symlink");
  chmod(".", 0755);
  const bool root = geteuid() == 0, other = !root || seteuid(65534) == 0;
  if (!other) {
    skip("the modes of folders do not bind this user, who cannot become another");
    return;
  }
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct tc_data_opts o = opts((char *const *)(uintptr_t)&rows[i].word, 1, TC_FORMAT_AUTO);
    struct tc_data *d = NULL;
    struct tc_err err = { 0 };
    if (root && seteuid(0) != 0) perror("seteuid");
    chmod("parts/b", root ? rows[i].mode : (rows[i].mode & 7U) << 6);
    if (root && seteuid(65534) != 0) perror("seteuid");
    is_int(tc_data_open(&d, &o, &err), rows[i].sentence ? TC_EUSER : 0, "%s with mode %o", rows[i].word, rows[i].mode);
    if (rows[i].sentence) ok(strstr(err.text, rows[i].sentence), "... says: %s", err.text);
    else is_int(tc_data_tokens(d), 2 * N, "... all files");
    tc_data_free(d);
    chmod("parts/b", 0755);
  }
  if (root && seteuid(0) != 0) perror("seteuid");
  chmod("parts/b", 0755);
}

/* ---- tokenizers --------------------------------------------------------------------------------- */

#define GPT "tokenizer 00000002540be400"
#define LLAMA "tokenizer 0000000000000009"

/* Shards of two tokenizers, of bytes, and of a program that says nothing; each beside each. */
static void test_tokenizers(void)
{
  enum { FILES = 6 };
  static const struct { const char *name; int is; } file[FILES] = {      /* is: 0 unknown, 1 bytes, 2 and 3 tokenizers */
    { "tok/gpt.bin", 2 }, { "tok/gpt2.bin", 2 }, { "tok/llama.bin", 3 }, { "tok/bytes.bin", 1 }, { "tok/plain.bin", 0 },
    { "texts/x.txt", 1 } };
  uint16_t tokens[N] = { 0 };
  struct tc_data *d[FILES], *both;
  struct tc_err err = { 0 };
  uint64_t hash;
  mkdir("tok", 0755);
  put_shard(file[0].name, UINT64_C(10000000000), 300, 0, tokens, N);
  put_shard(file[1].name, UINT64_C(10000000000), 300, 1, tokens, N);
  put_shard(file[2].name, 9, 300, 0, tokens, N);
  put_shard(file[3].name, 0, 256, -1, tokens, N);
  put_bin(file[4].name, 20240520, 1, N, tokens, N);
  for (int i = 0; i < FILES; i++)
    d[i] = must_open((char *const *)(uintptr_t)&file[i].name, 1, TC_FORMAT_AUTO, 0, CONTEXT, VOCAB);
  for (int i = 0; i < FILES; i++)
    for (int k = 0; k < FILES; k++) {
      char *word[2] = { tc_sprintf("1:%s", file[i].name), tc_sprintf("2:%s", file[k].name) };
      const struct tc_data_opts o = opts(word, 2, TC_FORMAT_AUTO);
      const bool text_beside_unknown = (i == 5 && !file[k].is) || (k == 5 && !file[i].is);
      const int want = (file[i].is && file[k].is && file[i].is != file[k].is) || text_beside_unknown ? TC_EUSER : 0;
      is_int(tc_data_same_tokenizer(d[i], d[k], &err), want, "%s beside %s", file[i].name, file[k].name);
      if (want) ok(strstr(err.text, file[i].name) && strstr(err.text, file[k].name), "... names both");
      is_int(tc_data_open(&both, &o, &err), want, "... in a blend");
      tc_data_free(both);
      free(word[0]);
      free(word[1]);
    }
  tc_data_same_tokenizer(d[0], d[2], &err);
  is_str(err.text, "data file 'tok/llama.bin' does not belong with 'tok/gpt.bin': its tokens are of " LLAMA ", those of the "
         "other file of " GPT "; `tercio data` makes shards of both with the same tokenizer.json", "two tokenizers");
  tc_data_same_tokenizer(d[2], d[5], &err);
  is_str(err.text, "data file 'texts/x.txt' does not belong with 'tok/llama.bin': its tokens are bytes, those of the shard "
         "are of " LLAMA "; `tercio data` makes shards of it with the same tokenizer.json", "text");
  is_str(tc_data_tokenizer(d[0], &hash), "tok/gpt.bin", "which file says the tokenizer");
  is_int((int64_t)hash, INT64_C(10000000000), "... its hash");
  ok(tc_data_tokenizer(d[3], &hash) && hash == 0, "bytes have none");
  ok(!tc_data_tokenizer(d[4], &hash), "a shard of another program does not say");
  for (int i = 0; i < 6; i++)
    is_int(tc_data_of_tokenizer(d[i], 0, "m", &err), 0, "%s, for a model of which it is not known", file[i].name);
  is_int(tc_data_of_tokenizer(d[1], 10000000000, "m", &err), 0, "the model's tokenizer");
  is_int(tc_data_of_tokenizer(d[4], 10000000000, "m", &err), 0, "... or not known of the data");
  is_int(tc_data_of_tokenizer(d[2], 10000000000, "m", &err), TC_EUSER, "... or another");
  is_str(err.text, "the model in m is of " GPT ", but data file 'tok/llama.bin' has tokens of " LLAMA ": make the shards with "
         "the model's tokenizer.json (tercio data --tokenizer)", "... in these words");
  is_int(tc_data_of_tokenizer(d[5], 10000000000, "m", &err), TC_EUSER, "... or text");
  is_str(err.text, "the model in m is of " GPT ", but data file 'texts/x.txt' has bytes: make the shards with "
         "the model's tokenizer.json (tercio data --tokenizer)", "... in these words");
  for (int i = 0; i < FILES; i++) tc_data_free(d[i]);
  static const struct { int a, b, status; } one[] = { { 3, 5, 0 }, { 5, 3, 0 }, { 5, 4, TC_EUSER }, { 4, 5, TC_EUSER },
                                                      { 0, 5, TC_EUSER }, { 3, 4, 0 }, { 4, 0, 0 } };
  for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
    char *word[2] = { (char *)(uintptr_t)file[one[i].a].name, (char *)(uintptr_t)file[one[i].b].name };
    const struct tc_data_opts o = opts(word, 2, TC_FORMAT_AUTO);
    is_int(tc_data_open(&both, &o, &err), one[i].status, "%s and %s in one source", word[0], word[1]);
    tc_data_free(both);
  }
}

static void test_vocabulary(void)
{
  const char *const word[] = { "tok/gpt.bin" };
  struct tc_data_opts o = opts((char *const *)(uintptr_t)word, 1, TC_FORMAT_AUTO);
  struct tc_data *d;
  struct tc_err err = { 0 };
  o.vocab = 300;
  is_int(tc_data_open(&d, &o, &err), 0, "the vocabulary of the header");
  tc_data_free(d);
  o.vocab = 299;
  is_int(tc_data_open(&d, &o, &err), 0, "... one below it, which its tokens may all be below");
  tc_data_free(d);
}

/* ---- files that are looked at one by one ---------------------------------------------------------- */

static void is_file(const struct tc_data *d, int source, int i, const struct tc_data_file *want)
{
  const struct tc_data_file f = *tc_data_file(d, source, i);
  int32_t token = -1;
  struct tc_err err = { 0 };
  is_str(f.name, want->name, "a file of source %d", source);
  ok(f.format == want->format && f.width == want->width && f.header == want->header && f.first == want->first &&
     f.tokens == want->tokens, "... its format and size");
  ok(f.documents == want->documents && f.marked == want->marked && f.vocab == want->vocab &&
     f.end_token == want->end_token && f.known == want->known && f.tokenizer == want->tokenizer, "... what it says");
  is_int(tc_data_read(d, NULL, source, f.first + f.tokens - 1, 1, &token, &err), 0, "... its last token %s", err.text);
}

/* What no training takes together: two tokenizers, bytes, what says nothing, one token alone. */
static void test_apart(void)
{
  char *word[] = { "3:tok/gpt.bin", "tok/plain.bin", "texts/x.txt", "set/c.bin", "0.5:tok/llama.bin", "0.5:one" };
  struct tc_data_opts o = opts(word, 6, TC_FORMAT_AUTO);
  struct tc_data *d = NULL;
  struct tc_err err = { 0 };
  is_int(tc_data_open(&d, &o, &err), TC_EUSER, "not one data set");
  o.separate = true;
  o.vocab = INT64_MAX;
  is_int(tc_data_open(&d, &o, &err), 0, "files apart %s", err.text);
  is_int(tc_data_sources(d), 3, "three sources");
  is_int(tc_data_files(d, 0), 4, "... of which the first has four files");
  ok(tc_data_source_weight(d, 0) == 3 && tc_data_source_share(d, 0) == 0.75, "... and a weight");
  const struct tc_data_file want[] = {
    { "tok/gpt.bin", TC_FORMAT_BIN, 2, 1024, 0, N, -1, true, 300, 0, true, UINT64_C(10000000000), { 0 }, false },
    { "tok/plain.bin", TC_FORMAT_BIN, 2, 1024, N, N, -1, false, 0, -1, false, 0, { 0 }, false },
    { "texts/x.txt", TC_FORMAT_TEXT, 1, 0, 2 * N, N, -1, false, 0, -1, true, 0, { 0 }, false },
    { "set/c.bin", TC_FORMAT_MEGATRON, 2, 0, 3 * N, N, 1, false, 0, -1, false, 0, { 0 }, false },
    { "one", TC_FORMAT_TEXT, 1, 0, 0, 1, -1, false, 0, -1, true, 0, { 0 }, false } };
  for (int i = 0; i < 5; i++) is_file(d, i < 4 ? 0 : 2, i < 4 ? i : 0, &want[i]);
  tc_data_free(d);
}

/* A header is read as it was written, by both kinds of shards. */
static void test_header(void)
{
  int32_t header[TC_SHARD_INTS];
  struct tc_err err = { 0 };
  for (int width = 2; width <= 4; width += 2) {
    const struct tc_shard_header h = { width, 7, true, UINT64_C(0xfedcba9876543210), 100000, width == 2 ? -1 : 99999 };
    struct tc_shard_header got;
    tc_shard_pack(&h, header);
    ok(tc_shard_begins(header[0]) && !tc_shard_begins(header[0] + 1), "a shard of uint%d", 8 * width);
    is_int(tc_shard_unpack(&got, header, TC_SHARD_BYTES + 7 * width, "x", &err), 0, "... %s", err.text);
    ok(got.width == h.width && got.n_tokens == 7 && got.marked && got.hash == h.hash && got.vocab == h.vocab &&
       got.eod == h.eod, "... its header");
    is_int(tc_shard_unpack(&got, header, TC_SHARD_BYTES + 7 * width + 1, "x", &err), TC_EUSER, "... of another size");
  }
}

/* ---- a large set ------------------------------------------------------------------------------- */

/* Bytes that this process has read by now; -1: not known. */
static int64_t bytes_read(void)
{
  char line[100];
  long long n = -1;
  FILE *f = fopen("/proc/self/io", "r");
  while (f && n < 0 && fgets(line, sizeof line, f))
    if (sscanf(line, "rchar: %lld", &n) != 1) n = -1;
  if (f) fclose(f);
  return n;
}

/* 500 files of 2 GB that take no space: opening them, with their identity, reads next to nothing. */
static void test_terabyte(void)
{
  enum { FILES = 500, TOKENS = 1000000000 };
  const int32_t header[3] = { 20240520, 1, TOKENS };
  mkdir("large", 0755);
  bool made = true;
  for (int i = 0; i < FILES && made; i++) {
    char name[40];
    snprintf(name, sizeof name, "large/%03d.bin", i);
    put(name, header, sizeof header);
    made = truncate(name, 1024 + INT64_C(2) * TOKENS) == 0;
  }
  if (!made || bytes_read() < 0) {
    skip("no files with holes, or no /proc/self/io");
    return;
  }
  char *word = (char *)(uintptr_t)"large";
  struct tc_data_opts o = { &word, 1, TC_FORMAT_AUTO, 1, 2048, 50257, 0, false, false, false, false };
  struct tc_data *d;
  struct tc_data_identity id;
  struct tc_err err = { 0 };
  const int64_t before = bytes_read(), rss = tc_rss_bytes(false), t0 = tc_now_ns();
  ok(tc_data_open(&d, &o, &err) == 0 && tc_data_identity(d, &id, &err) == 0, "1 TB in 500 files %s", err.text);
  const double ms = (double)(tc_now_ns() - t0) * 1e-6;
  const int64_t read = bytes_read() - before, more = tc_rss_bytes(false) - rss;
  printf("# opened in %.1f ms\n", ms);
  is_int(tc_data_tokens(d), INT64_C(475000000000), "... its first 95 %%");
  ok(read > 0 && read < 4000000, "... %lld bytes were read", (long long)read);
  ok(more < 4000000, "... and memory grew by %lld", (long long)more);
  int32_t x[2048], y[2048];
  const struct tc_samples s = { TC_ORDER_PERMUTATION, 1, 1 };
  int failed = 0;
  for (int step = 1; step <= 2000; step++)
    failed += tc_data_train(d, NULL, &s, step * INT64_C(100000), 0, 1, &(struct tc_batch){ x, y, NULL }, &err) != 0;
  is_int(failed, 0, "... samples of all of it %s", err.text);
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
  skip("sanitizers use memory of their own");
#else
  ok(tc_rss_bytes(false) - rss < 4000000, "... and memory does not grow");
#endif
  tc_data_free(d);
}

static void tests(const char *dir)
{
  if (chdir(dir) != 0) exit(1);
  make_files();
  test_opened();
  test_refused();
  test_unreadable();
  test_tokenizers();
  test_vocabulary();
  test_apart();
  test_header();
  test_terabyte();
  if (chdir("..") != 0) exit(1);
}

int main(void)
{
  return in_folder("t_format", tests);
}
