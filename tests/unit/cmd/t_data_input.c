/* t_data_input.c - compressed texts of `tercio data` (input.c): several members or frames in one file, files that are
 * cut off or damaged. */
#include "src/cmd/data/data.h"
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

/* The text as two frames of zstd. Returns the bytes. */
static size_t make_zst(char *out, size_t cap)
{
  ZSTD_CCtx *c = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);       /* as the program zstd does */
  const size_t half = N / 2, a = ZSTD_compress2(c, out, cap, text, half),
               b = ZSTD_compress2(c, out + a, cap - a, text + half, N - half);
  TC_ASSERT(!ZSTD_isError(a) && !ZSTD_isError(b));
  ZSTD_freeCCtx(c);
  return a + b;
}

/* ... and as two members of gzip. */
static size_t make_gz(char *out, size_t cap)
{
  size_t n = 0;
  for (size_t k = 0; k < 2; k++) {
    z_stream z = { .next_in = (Bytef *)text + k * (N / 2), .avail_in = N / 2, .next_out = (Bytef *)out + n,
                   .avail_out = (uInt)(cap - n) };
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
  struct tc_input *in;
  char *buf = tc_malloc((size_t)piece);
  int64_t at = 0, got;
  *err = (struct tc_err){ 0 };
  if (tc_input_open(&in, name, err) == TC_OK) {
    while ((got = tc_input_read(in, buf, piece, never, NULL, err)) > 0 && at >= 0) {
      if (at + got > N || memcmp(buf, text + at, (size_t)got) != 0) at = -1;
      else at += got;
      if (got < piece) break;
    }
    ok(err->status || at == 0 || tc_input_done(in) > 0, "%s: bytes of the file are counted", name);
  }
  tc_input_free(in);
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

/* Passing over the first bytes: a plain file is not read for it, others have to be. */
static void test_seek(const char *name, int64_t bytes, int want)
{
  struct tc_input *in;
  struct tc_err err = { 0 };
  char buf[100];
  TC_ASSERT(tc_input_open(&in, name, &err) == TC_OK);
  is_int(tc_input_seek(in, bytes, &err), want, "%s: passes over %lld bytes without reading", name, (long long)bytes);
  const int64_t at = want ? bytes : 0, n = tc_input_read(in, buf, sizeof buf, never, NULL, &err);
  ok(n == TC_MIN((int64_t)sizeof buf, N - at) && memcmp(buf, text + at, (size_t)n) == 0, "... what follows is read");
  ok(tc_input_done(in) >= at + n || !strstr(name, "plain"), "... and counted");
  tc_input_free(in);
}

int main(void)
{
  enum { CAP = 2 * N };
  char dir[] = "/tmp/t_data_input-XXXXXX", *out = tc_malloc(CAP);
  struct tc_err err;
  TC_ASSERT(mkdtemp(dir) && chdir(dir) == 0);
  draw();
  put("plain", text, N);
  is_int(read_file("plain", 999, &err), N, "a plain file");
  test_seek("plain", 12345, 1);
  test_seek("plain", N, 1);
  test_seek("plain", N + 1, 0);
  unlink("plain");
  put("text.gz", out, make_gz(out, CAP));
  test_seek("text.gz", 12345, 0);
  test("text.zst", out, make_zst(out, CAP), "the .zst file is truncated");
  test("text.gz", out, make_gz(out, CAP), "the .gz file is truncated");
  put("empty.zst", out, 0);
  is_int(read_file("empty.zst", 10, &err), 0, "an empty .zst file");
  is_str(err.text, "", "... is an empty text");
  unlink("empty.zst");
  free(out);
  return chdir("/") || rmdir(dir) || done_testing();
}
