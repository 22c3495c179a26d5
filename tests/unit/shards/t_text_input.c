/* t_text_input.c - the texts of `tercio data` (text_input.c, unpack.c): several members or frames in one file; files that are cut
 * off, damaged or followed by something at any byte, which is never taken for the end of the text; what is no text; each
 * kind of file that a name can be. */
#include "src/shards/impl.h"
#include "tests/unit/tap.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { N = 700000 };
static char text[N];

static bool never(void *arg) { return arg != NULL; }

/* Bytes that compress to about a half. */
static void draw(void)
{
  for (size_t i = 0; i < N; i++) {
    uint32_t r[4];
    if (i % 4 == 0) tc_philox(r, 3, i, 0);
    text[i] = (char)('a' + (r[i % 4] & 15));
  }
}

static void put(const char *name, const void *bytes, size_t n)
{
  FILE *f = fopen(name, "wb");
  TC_ASSERT(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

/* The first n bytes of the text as two frames of zstd. Returns the bytes. */
static size_t make_zst(char *out, size_t cap, size_t n)
{
  ZSTD_CCtx *c = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);       /* as the program zstd does */
  const size_t half = n / 2, a = ZSTD_compress2(c, out, cap, text, half),
               b = ZSTD_compress2(c, out + a, cap - a, text + half, n - half);
  TC_ASSERT(!ZSTD_isError(a) && !ZSTD_isError(b));
  ZSTD_freeCCtx(c);
  return a + b;
}

/* ... and as two members of gzip. */
static size_t make_gz(char *out, size_t cap, size_t size)
{
  size_t n = 0;
  for (size_t k = 0; k < 2; k++) {
    z_stream z = { .next_in = (Bytef *)text + k * (size / 2), .avail_in = (uInt)(k ? size - size / 2 : size / 2),
                   .next_out = (Bytef *)out + n, .avail_out = (uInt)(cap - n) };
    TC_ASSERT(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK &&
              deflate(&z, Z_FINISH) == Z_STREAM_END);
    n += z.total_out;
    deflateEnd(&z);
  }
  return n;
}

/* Reads the file in pieces of `piece` bytes. Returns how many are as in the text, -1 at another byte; the failure is in
 * err. */
static int64_t read_file(const char *name, int64_t piece, struct tc_err *err)
{
  struct tc_text_input *in;
  char *buf = tc_malloc((size_t)piece);
  int64_t at = 0, got;
  *err = (struct tc_err){ 0 };
  if (tc_text_input_open(&in, name, true, err) == TC_OK) {
    while ((got = tc_text_input_read(in, buf, piece, never, NULL, err)) > 0 && at >= 0) {
      if (at + got > N || memcmp(buf, text + at, (size_t)got) != 0) at = -1;
      else at += got;
      if (got < piece) break;
    }
    ok(err->status || at == 0 || tc_text_input_done(in) > 0, "%s: bytes of the file are counted", name);
  }
  tc_text_input_free(in);
  free(buf);
  return at;
}

static void test(const char *name, const char *whole, size_t n, const char *cut_off)
{
  struct tc_err err;
  char sentence[200], *copy = tc_malloc(n);
  put(name, whole, n);
  is_int(read_file(name, 1 << 20, &err), N, "%s: all of it at once", name);
  is_int(read_file(name, 1000, &err), N, "%s: in pieces", name);
  put(name, whole, n - 5);
  ok(read_file(name, 1000, &err) >= 0, "%s, cut off: what was read is right", name);
  snprintf(sentence, sizeof sentence, "text file '%s': reading failed: %s", name, cut_off);
  is_str(err.text, sentence, "... and the sentence says so");
  put(name, whole, n / 4);
  read_file(name, 1 << 20, &err);
  is_str(err.text, sentence, "... at a quarter too");
  memcpy(copy, whole, n);
  for (size_t i = n / 3; i < n / 3 + 40; i++) copy[i] ^= 0x55;
  put(name, copy, n);
  read_file(name, 1 << 20, &err);
  ok(err.status == TC_EUSER && strstr(err.text, "reading failed: "), "%s, damaged: %s", name, err.text);
  unlink(name);
  free(copy);
}

/* Each byte of a file damaged, and the file cut off after each: the whole text, or a sentence; a part of it only where a
 * member ends, which no reader can notice. */
static void test_small(const char *name, size_t (*make)(char *, size_t, size_t))
{
  enum { SIZE = 300, CAP = 2000 };
  char whole[CAP], copy[CAP];
  struct tc_err err;
  const size_t n = make(whole, CAP, SIZE);
  int wrong = 0, refused = 0, cut = 0;
  for (size_t i = 0; i < 2 * n; i++) {
    memcpy(copy, whole, n);
    copy[i / 2] ^= i % 2 ? 0x55 : 0xff;
    put(name, copy, n);
    const int64_t got = read_file(name, 64, &err);
    refused += err.status < 0;
    if (err.status == 0 && got != SIZE) printf("# %s, byte %zu damaged: %lld bytes\n", name, i / 2, (long long)got), wrong++;
  }
  is_int(wrong, 0, "%s: no damage leaves anything out silently", name);
  ok(refused > (int)(3 * n / 2), "... most of it is noticed: %d of %zu", refused, 2 * n);
  wrong = 0;
  for (size_t i = 0; i < n; i++) {
    put(name, whole, i);
    const int64_t got = read_file(name, 64, &err);
    if (err.status < 0) continue;
    if (got == SIZE / 2) cut++;
    else wrong++;
  }
  is_int(wrong, 0, "... nor does an end at any byte");
  is_int(cut, 1, "... except that of the first part");
  unlink(name);
}

static void refused(const char *name, const char *sentence)
{
  struct tc_err err;
  read_file(name, 1000, &err);
  is_str(err.text, sentence, "refused: %s", sentence);
  unlink(name);
}

/* What follows the last member. Zero bytes are padding of gzip, as gzip itself takes them. */
static void test_follows(void)
{
  enum { SIZE = 300, CAP = 400000 };
  char *file = tc_calloc(1, CAP);
  struct tc_err err;
  size_t n = make_gz(file, CAP, SIZE);
  put("padded.gz", file, CAP);
  is_int(read_file("padded.gz", 64, &err), SIZE, "zero bytes after the last member");
  is_str(err.text, "", "... are no error");
  char sentence[300];
  snprintf(sentence, sizeof sentence, "text file 'padded.gz': reading failed: from byte %d on, after 2 whole members, it "
           "is neither another one nor the end: it is damaged, or something was appended to it", CAP - 1);
  file[CAP - 1] = 'x';
  put("padded.gz", file, CAP);
  refused("padded.gz", sentence);
  snprintf(sentence, sizeof sentence, "text file 'more.gz': reading failed: from byte %zu on, after 2 whole members, it "
           "is neither another one nor the end: it is damaged, or something was appended to it", n);
  file[n] = 'x';
  put("more.gz", file, n + 1);
  refused("more.gz", sentence);
  n = make_zst(file, CAP, SIZE);
  memcpy(file + n, "more", 4);
  put("more.zst", file, n + 4);
  snprintf(sentence, sizeof sentence, "text file 'more.zst': reading failed: from byte %zu on, after 2 whole frames, it "
           "is neither another one nor the end: it is damaged, or something was appended to it", n);
  refused("more.zst", sentence);
  memcpy(file + n, "\x53\x2a\x4d\x18\3\0\0\0abc", 11);      /* a frame to be skipped, after and before */
  put("skip.zst", file, n + 11);
  is_int(read_file("skip.zst", 64, &err), SIZE, "a skippable frame after the others");
  is_str(err.text, "", "... is no error");
  memmove(file + 11, file, n);
  memcpy(file, "\x53\x2a\x4d\x18\3\0\0\0abc", 11);
  put("skip.zst", file, n + 11);
  is_int(read_file("skip.zst", 64, &err), SIZE, "... before them");
  put("skip.zst", file, n + 5);
  refused("skip.zst", "text file 'skip.zst': reading failed: the .zst file is truncated");
  free(file);
}

/* A frame of one block that is not compressed, with a window of 1 GB, as zstd --long=30 makes, and of 2 TB. */
static void test_window(void)
{
  enum { SIZE = 3000, HEAD = 9 };
  char file[HEAD + SIZE] = "\x28\xb5\x2f\xfd\0\xa0";
  struct tc_err err;
  for (int i = 0; i < 3; i++) file[6 + i] = (char)((SIZE << 3 | 1) >> 8 * i);
  memcpy(file + HEAD, text, SIZE);
  put("long.zst", file, sizeof file);
  is_int(read_file("long.zst", 64, &err), SIZE, "a long window");
  is_str(err.text, "", "... is read");
  file[5] = (char)0xf8;
  put("long.zst", file, sizeof file);
  refused("long.zst", "text file 'long.zst': reading failed: its window is too long for this machine's memory; decompress "
          "it first: zstd -d --long=31 FILE");
}

/* Whether a file is compressed is decided by its first bytes; what its name says otherwise is refused. */
static void test_names(void)
{
  static const struct { const char *name, *is; } rows[] = { { "page.gz", "gzip" }, { "page.zst", "zstd" } };
  enum { SIZE = 300, CAP = 2000 };
  char file[CAP], sentence[200];
  struct tc_err err;
  for (int i = 0; i < 2; i++)
    for (int empty = 0; empty < 2; empty++) {
      put(rows[i].name, "<html>not found</html>", empty ? 0 : 22);
      snprintf(sentence, sizeof sentence, "text file '%s' is %s, though its name says that %s compressed it: get it again, "
               "or rename it", rows[i].name, empty ? "empty" : "something else", rows[i].is);
      refused(rows[i].name, sentence);
    }
  put("text", file, make_gz(file, CAP, SIZE));
  is_int(read_file("text", 64, &err), SIZE, "gzip under another name");
  put("text", file, make_zst(file, CAP, SIZE));
  is_int(read_file("text", 64, &err), SIZE, "zstd under another name");
  put("text.gz", file, make_zst(file, CAP, SIZE));
  is_int(read_file("text.gz", 64, &err), SIZE, "zstd under the name of gzip");
  unlink("text");
  unlink("text.gz");
}

/* Formats that are no text, packed and not; each with a zero byte or invalid UTF-8 in its first bytes. */
static void test_kinds(void)
{
  static const struct { const char *bytes; int n; const char *says; } rows[] = {
    { "PAR1\x15\0\x15", 7, "is a Parquet file; write its column of text as JSONL first (docs/data.md has a recipe)" },
    { "\x93NUMPY\1\0v\0", 10, "is NumPy's .npy" },
    { "PK\3\4\x14\0", 6, "is a zip archive, as .npz and .pt are" },
    { "\x80\2}q\0", 5, "is a Python pickle" },
    { "\x89HDF\r\n\x1a\n", 8, "is an HDF5 file" },
    { "\x40\0\0\0\0\0\0\0{\"", 10, "is a safetensors file" },
    { "\x88\xd8\x34\1\1\0\0\0", 8, "is a token shard; a training reads it as it is" },
    { "\xa1\xd9\x34\1\7\0\0\0", 8, "is a token shard; a training reads it as it is" },
    { "MMIDIDX\0\0\1", 10, "is Megatron's index" },
    { "\xff\xfe" "a\0b\0", 6, "is text in UTF-16 or UTF-32; convert it first: iconv -f UTF-16 -t UTF-8" },
    { "\xfd" "7zXZ\0", 6, "is compressed by xz; decompress it first" },
    { "abc\0def", 7, "is not text: byte 3 of it is 0x00, which no text has; --invalid replace or bytes takes it" },
  };
  struct tc_err err;
  struct tc_text_input *in;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    put("kind", rows[i].bytes, (size_t)rows[i].n);
    read_file("kind", 64, &err);
    ok(strstr(err.text, rows[i].says) != NULL, "refused: %s", err.text);
    err = (struct tc_err){ 0 };
    is_int(tc_text_input_open(&in, "kind", false, &err), 0, "... and taken if bytes are asked for");
    tc_text_input_free(in);
  }
  unlink("kind");
}

/* Passing over the first bytes: a plain file is not read for it, others have to be. */
static void test_seek(const char *name, int64_t bytes, int want)
{
  struct tc_text_input *in;
  struct tc_err err = { 0 };
  char buf[100];
  TC_ASSERT(tc_text_input_open(&in, name, true, &err) == TC_OK);
  is_int(tc_text_input_seek(in, bytes, &err), want, "%s: passes over %lld bytes without reading", name, (long long)bytes);
  const int64_t at = want ? bytes : 0, n = tc_text_input_read(in, buf, sizeof buf, never, NULL, &err);
  ok(n == TC_MIN((int64_t)sizeof buf, N - at) && memcmp(buf, text + at, (size_t)n) == 0, "... what follows is read");
  ok(tc_text_input_done(in) >= at + n || !strstr(name, "plain"), "... and counted");
  tc_text_input_free(in);
}

int main(void)
{
  enum { CAP = 2 * N };
  char dir[] = "/tmp/t_text_input-XXXXXX", *out = tc_malloc(CAP);
  struct tc_err err;
  TC_ASSERT(mkdtemp(dir) && chdir(dir) == 0);
  draw();
  put("plain", text, N);
  is_int(read_file("plain", 999, &err), N, "a plain file");
  test_seek("plain", 12345, 1);
  test_seek("plain", N, 1);
  test_seek("plain", N + 1, 0);
  unlink("plain");
  put("text.gz", out, make_gz(out, CAP, N));
  test_seek("text.gz", 12345, 0);
  test("text.zst", out, make_zst(out, CAP, N), "the .zst file is truncated");
  test("text.gz", out, make_gz(out, CAP, N), "the .gz file is truncated");
  test_small("small.gz", make_gz);
  test_small("small.zst", make_zst);
  test_follows();
  test_window();
  test_names();
  test_kinds();
  free(out);
  return chdir("/") || rmdir(dir) || done_testing();
}
