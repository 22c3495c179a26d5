/* t_kind.c - what data.format = auto takes for text: nothing but text, whatever the name of a file; and numbers of a
 * Megatron index that no sum holds. */
#include "src/data/data.h"
#include "tests/unit/data_fixture.h"

#include <unistd.h>

#include "src/data/impl.h"

/* The tokens that each file is said to have; 0: those that it has. */
static int64_t tokens_each;

static int find_format(struct tc_reader *r, struct tc_data_file *f, enum tc_data_format format, struct tc_err *err)
{
  const int rc = tc_format_find(r, f, format, err);
  if (rc == 0 && tokens_each) f->tokens = tokens_each;
  return rc;
}

#define tc_format_find find_format
#include "src/data/source.c"
#undef tc_format_find

enum { CONTEXT = 4, VOCAB = 300 };

/* Opens one file. Returns its status, and in *err why. */
static int open_one(const char *name, enum tc_data_format format, struct tc_err *err)
{
  char *word = (char *)(uintptr_t)name;
  const struct tc_data_opts o = { .word = &word, .n = 1, .format = format, .context = CONTEXT, .vocab = VOCAB };
  struct tc_data *d = NULL;
  *err = (struct tc_err){ 0 };
  const int rc = tc_data_open(&d, &o, err);
  tc_data_free(d);
  return rc;
}

/* Names of files that may hold tokens or other formats. */
static const char *const names[] = { "tokens", "x.u16", "x.tok", "x.dat", "x.npz", "x.pt", "x.txt", "x.bin", "x.parquet" };
enum { NAMES = sizeof names / sizeof *names };

/* The begins of files of other formats, with some bytes after them. */
static void test_formats(void)
{
  static const struct { const char *bytes; int n; const char *is; } rows[] = {
    { "PAR1\x15\0\x15\x80", 8, "is a Parquet file" }, { "ARROW1\0\0", 8, "is an Arrow file" },
    { "\x93NUMPY\1\0v\0{'descr'", 18, "is NumPy's .npy" }, { "PK\3\4\x14\0\0\0", 8, "is a zip archive, as .npz and .pt are" },
    { "\x80\2\x8a\nl\xfc\x9c", 7, "is a Python pickle" }, { "\x80\4\x95\1\0\0", 6, "is a Python pickle" },
    { "\x89HDF\r\n\x1a\n\0\0", 10, "is an HDF5 file" }, { "\x40\0\0\0\0\0\0\0{\"__meta", 15, "is a safetensors file" },
    { "\x1f\x8b\x08\0\0\0\0\0", 8, "is compressed by gzip; tercio data makes shards of it" },
    { "\x28\xb5\x2f\xfd\x04\x58", 6, "is compressed by zstd; tercio data makes shards of it" },
    { "\xfd" "7zXZ\0\0", 7, "is compressed by xz; decompress it" }, { "BZh91AY&SY\x80\0\0", 13, "is compressed by bzip2" },
    { "\x04\x22\x4d\x18\x60\xff", 6, "is compressed by lz4" }, { "MMIDIDX\0\0\1\0", 11, "is Megatron's index" },
    { "\xff\xfeh\0i\0", 6, "is text in UTF-16" }, { "\xfe\xff\0h\0i", 6, "is text in UTF-16" },
    { "\1\0\2\0\3\0\4\0", 8, "is not text: byte 1 of it is 0x00, which no text has. data.format = uint16 or uint32" },
    { "\x51\xc3\x20\x4e\x11\x27", 6, "is not text: byte 1 of it is 0xc3, which is not UTF-8. data.format = uint16" },
    { "Gr\xfc\xdf" "e aus M\xfcnchen", 16, "is not text: byte 2 of it is 0xfc, which is not UTF-8" },
  };
  struct tc_err err;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int wrong = 0;
    for (int k = 0; k < NAMES; k++) {
      put(names[k], rows[i].bytes, (size_t)rows[i].n);
      wrong += open_one(names[k], TC_FORMAT_AUTO, &err) != TC_EUSER || !strstr(err.text, rows[i].is) ||
               !strstr(err.text, names[k]);
      wrong += open_one(names[k], TC_FORMAT_TEXT, &err) != 0;
      unlink(names[k]);
    }
    is_int(wrong, 0, "under each name: %s; as text its bytes are taken", rows[i].is);
  }
  put("x.idx", "text", 4);
  ok(open_one("x.idx", TC_FORMAT_AUTO, &err) == TC_EUSER && strstr(err.text, "is Megatron's index by its name"), "x.idx");
  unlink("x.idx");
  put("tokens", "", 0);
  ok(open_one("tokens", TC_FORMAT_AUTO, &err) == TC_EUSER && strstr(err.text, "is empty"), "a file of no bytes");
  unlink("tokens");
}

/* uint16 tokens of any vocabulary are not taken for text: of no tokens but those that are text by chance, two letters
 * each. */
static void test_tokens(void)
{
  uint16_t token[2000];
  struct tc_err err;
  int taken = 0;
  for (int vocab = 64; vocab <= 65536; vocab *= 4) {
    for (uint32_t i = 0; i < 2000; i++) token[i] = (uint16_t)((i * 2654435761u >> 8) % (uint32_t)vocab);
    put("tokens", token, sizeof token);
    taken += open_one("tokens", TC_FORMAT_AUTO, &err) == 0;
  }
  is_int(taken, 0, "random tokens of vocabularies from 64 to 65,536");
  unlink("tokens");
}

/* A character may be cut at the end of the first bytes, wherever; what comes later is not looked at. */
static void test_cut(void)
{
  static const char *const character[] = { "\xc3\xbc", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xee\x80\x80" };
  char text[TC_TEXT_KIND_BYTES + 8], why[TC_TEXT_KIND_TEXT];
  struct tc_err err;
  int wrong = 0;
  for (size_t k = 0; k < 4; k++) {
    const size_t n = strlen(character[k]);
    for (size_t before = 1; before < n; before++) {
      memset(text, 'a', sizeof text);
      memcpy(text + TC_TEXT_KIND_BYTES - before, character[k], n);
      put("x.txt", text, sizeof text);
      wrong += open_one("x.txt", TC_FORMAT_AUTO, &err) != 0;
      wrong += tc_kind_find(why, text, TC_TEXT_KIND_BYTES) != TC_TEXT_KIND_UTF8;
      wrong += tc_kind_find(why, character[k], before) != TC_TEXT_KIND_UTF8;
      text[TC_TEXT_KIND_BYTES - 1 - before] = '\xff';
      wrong += tc_kind_find(why, text, TC_TEXT_KIND_BYTES) != TC_TEXT_KIND_NO_UTF8;
    }
  }
  wrong += tc_kind_find(why, "\x80", 1) != TC_TEXT_KIND_NO_UTF8 || tc_kind_find(why, "\xf5", 1) != TC_TEXT_KIND_NO_UTF8 ||
           tc_kind_find(why, "\xe0\x80", 2) != TC_TEXT_KIND_NO_UTF8 || tc_kind_find(why, "a\0\xc3", 3) != TC_TEXT_KIND_ZERO;
  is_int(wrong, 0, "characters cut off by the end of what is looked at");
  unlink("x.txt");
}

static void put_index(int64_t sequences, int64_t documents, int code, int32_t length, int64_t offset, size_t n)
{
  uint8_t index[34 + 4 + 8 + 16] = "MMIDIDX";
  index[9] = 1;
  index[17] = (uint8_t)code;
  memcpy(index + 18, &sequences, 8);
  memcpy(index + 26, &documents, 8);
  memcpy(index + 34, &length, 4);
  memcpy(index + 38, &offset, 8);
  put("m.idx", index, n);
}

/* Each number of the index at its limits: a sentence each, and no overflow. */
static void test_index(void)
{
  static const int64_t large[] = { INT64_MAX, INT64_MAX - 1, INT64_MIN, -1, INT64_C(1) << 62, UINT32_MAX, INT32_MAX };
  enum { LARGE = sizeof large / sizeof *large, SIZE = 34 + 4 + 8 + 16 };
  static const int codes[] = { 1, 4, 8 };
  const uint8_t tokens[24] = { 0 };
  struct tc_err err;
  put("m.bin", tokens, sizeof tokens);
  put_index(1, 2, 1, 24, 0, SIZE);
  is_int(open_one("m.bin", TC_FORMAT_AUTO, &err), 0, "an index %s", err.text);
  int taken = 0;
  for (int c = 0; c < 3; c++)
    for (int i = 0; i < LARGE; i++) {
      put_index(1, 2, codes[c], (int32_t)(large[i] & INT32_MAX), large[i], SIZE);
      taken += open_one("m.bin", TC_FORMAT_AUTO, &err) == 0;
      put_index(large[i], 2, codes[c], 24, 0, SIZE);
      taken += open_one("m.bin", TC_FORMAT_AUTO, &err) == 0;
      put_index(1, large[i], codes[c], 24, 0, SIZE);
      taken += open_one("m.bin", TC_FORMAT_AUTO, &err) == 0;
      put_index(large[i], large[(i + 1) % LARGE], codes[c], 24, 0, SIZE);
      taken += open_one("m.bin", TC_FORMAT_AUTO, &err) == 0;
    }
  is_int(taken, 0, "numbers at their limits are refused");
  put_index(1, 2, 1, INT32_MAX, INT64_MAX, SIZE);
  open_one("m.bin", TC_FORMAT_AUTO, &err);
  is_str(err.text, "data file 'm.bin' says it has 9.223372039e+18 tokens, but its size holds 24: truncated or damaged; make "
         "or copy it again", "... by a sentence");
  unlink("m.bin"), unlink("m.idx");
}

/* Files, and sources, whose tokens add up to more than can be counted: each has half of what can. */
static void test_sum(void)
{
  char *together[2] = { (char *)(uintptr_t)"s0", (char *)(uintptr_t)"s1" };
  char *blend[3] = { (char *)(uintptr_t)"1:s0", (char *)(uintptr_t)"1:s1", (char *)(uintptr_t)"1:s2" };
  struct tc_data_opts o = { .word = together, .n = 2, .format = TC_FORMAT_TEXT, .context = CONTEXT, .vocab = VOCAB };
  struct tc_data *d = NULL;
  struct tc_err err = { 0 };
  for (int i = 0; i < 3; i++) put(blend[i] + 2, "text", 4);
  tokens_each = INT64_MAX / 2 + 1;
  is_int(tc_data_open(&d, &o, &err), TC_EUSER, "files of more tokens than can be counted");
  is_str(err.text, "data file 's1': the files have more tokens than can be counted", "... are refused");
  o.word = blend;
  o.n = 3;
  is_int(tc_data_open(&d, &o, &err), TC_EUSER, "sources of more");
  is_str(err.text, "data 's1': the sources have more tokens than can be counted", "... are refused");
  tokens_each = 0;
  for (int i = 0; i < 3; i++) unlink(blend[i] + 2);
}

static void tests(const char *dir)
{
  if (chdir(dir) != 0) exit(1);
  test_formats();
  test_tokens();
  test_cut();
  test_index();
  test_sum();
  if (chdir("..") != 0) exit(1);
}

int main(void)
{
  return in_folder("t_kind", tests);
}
