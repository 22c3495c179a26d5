/* t_data.c - token files, the order of samples, what is refused, and files that change, fail or are many while they are in
 * use: against arrays made here. */
#include "tests/unit/data_fixture.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char warned[1000];
static int warnings;

TAP_FORMAT(1, 2)
static void warn_here(const char *fmt, ...)
{
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(warned, sizeof warned, fmt, ap);
  va_end(ap);
  warnings++;
}

#define tc_warn warn_here
#include "src/data/identity.c"
#undef tc_warn

/* `word` (and the file's name) must be in the sentence. */
static void refused(char *file, enum tc_data_format format, int64_t vocab, const char *word)
{
  struct tc_err err = { 0 };
  struct tc_data *d = NULL;
  const struct tc_data_opts o = { &file, 1, format, 0, 8, vocab, 0, false, false, false, false };
  is_int(tc_data_open(&d, &o, &err), TC_EUSER, "refused: %s", word);
  ok(d == NULL, "  nothing is open");
  says(&err, file, word);
}

/* ---- samples --------------------------------------------------------------------------- */

/* The stream: three files with borders at odd places. Bytes of a generator, so that no piece
 * of CONTEXT bytes occurs twice. */
enum { N0 = 700, N1 = 3, N2 = 1300, N = N0 + N1 + N2, CONTEXT = 16 };

static void make_stream(const char *dir, uint8_t *stream, char **text, char **bin)
{
  static const int from[] = { 0, N0, N0 + N1, N };
  uint16_t wide[N];
  uint32_t x = 1;
  for (int i = 0; i < N; i++) {
    x = x * 1664525 + 1013904223;
    wide[i] = stream[i] = (uint8_t)(x >> 24);
  }
  for (int k = 0; k < 3; k++) {
    text[k] = tc_sprintf("%s/s%d.txt", dir, k);
    put(text[k], stream + from[k], (size_t)(from[k + 1] - from[k]));
    bin[k] = tc_sprintf("%s/s%d.bin", dir, k);
    put_bin(bin[k], 20240520, 1, from[k + 1] - from[k], wide + from[k],
            (size_t)(from[k + 1] - from[k]));
  }
}

/* Where in the stream a sample comes from; -1 if it is no piece of it. */
static int find_sample(const uint8_t *stream, int lo, int hi, const int32_t *tokens,
                       const int32_t *targets)
{
  for (int s = lo; s + CONTEXT < hi; s++) {
    int i = 0;
    while (i < CONTEXT && tokens[i] == stream[s + i] && targets[i] == stream[s + i + 1]) i++;
    if (i == CONTEXT) return s;
  }
  return -1;
}

static void test_cuts(struct tc_data *d, struct tc_data *same)
{
  enum { B = 12 };
  static const int cuts[][4] = { { 12 }, { 1, 11 }, { 5, 7 }, { 3, 3, 3, 3 } };
  int32_t x[B * CONTEXT], y[B * CONTEXT], x2[B * CONTEXT], y2[B * CONTEXT];
  for (int64_t step = 1; step <= 3; step++) {
    take(d, 42, step, 0, B, x, y);
    for (int c = 0; c < 4; c++) {
      int64_t b = 0;
      for (int k = 0; k < 4 && cuts[c][k]; b += cuts[c][k++])
        take(d, 42, step, b, cuts[c][k], x2 + b * CONTEXT, y2 + b * CONTEXT);
      ok(memcmp(x, x2, sizeof x) == 0 && memcmp(y, y2, sizeof y) == 0,
         "step %d: cut %d gives the same batch", (int)step, c);
    }
    take(same, 42, step, 0, B, x2, y2);
    ok(memcmp(x, x2, sizeof x) == 0 && memcmp(y, y2, sizeof y) == 0, "text and bin are the same");
  }
  take(d, 42, 1, 0, B, x, y);
  take(d, 43, 1, 0, B, x2, y2);
  ok(memcmp(x, x2, sizeof x) != 0, "another seed, other samples");
  take(d, 42, 2, 0, B, x2, y2);
  ok(memcmp(x, x2, sizeof x) != 0, "another step, other samples");
  ok(memcmp(x, x + CONTEXT, CONTEXT * sizeof *x) != 0, "another sequence, another sample");
}

/* Every sample is a piece of [lo, hi); every start occurs; their chi-square is a uniform's. */
static void test_starts(struct tc_data *d, const uint8_t *stream, int lo, int hi,
                        const char *what)
{
  enum { BATCH = 64 };
  int n_starts = hi - lo - CONTEXT, steps = 40 * n_starts / BATCH, stray = 0, empty = 0;
  int *count = calloc((size_t)n_starts, sizeof *count);
  int32_t x[BATCH * CONTEXT], y[BATCH * CONTEXT];
  for (int step = 1; step <= steps; step++) {
    take(d, 7, step, 0, BATCH, x, y);
    for (int b = 0; b < BATCH; b++) {
      int s = find_sample(stream, lo, hi, x + b * CONTEXT, y + b * CONTEXT);
      if (s < 0) stray++;
      else count[s - lo]++;
    }
  }
  double chi = 0, expected = (double)steps * BATCH / n_starts;
  for (int i = 0; i < n_starts; i++) {
    empty += count[i] == 0;
    chi += (count[i] - expected) * (count[i] - expected) / expected;
  }
  is_int(stray, 0, "%s: each sample is a piece of the part, with the next tokens", what);
  is_int(empty, 0, "%s: all %d starts occur, the first and last too", what, n_starts);
  /* chi-square of n-1 degrees: mean n-1, variance 2(n-1); five standard deviations */
  double z = (chi - (n_starts - 1)) / sqrt(2.0 * (n_starts - 1));
  ok(fabs(z) < 5, "%s: the starts are uniform (z = %.2f)", what, z);
  free(count);
}

static void test_windows(struct tc_data *d, const uint8_t *stream, int lo, int hi,
                         const char *what)
{
  int32_t x[CONTEXT], y[CONTEXT];
  struct tc_err err = { 0 };
  int64_t n = tc_data_windows(d, 0);
  int bad = 0;
  for (int64_t w = 0; w < n; w++) {
    bad += tc_data_window(d, NULL, 0, w, &(struct tc_batch){ x, y, NULL }, &err) != 0;
    for (int i = 0; i < CONTEXT; i++) {
      int64_t at = lo + w * CONTEXT + i;
      bad += at + 1 >= hi || x[i] != stream[at] || y[i] != stream[at + 1];
    }
  }
  is_int(bad, 0, "%s: the windows are the part, in order", what);
  ok(n * CONTEXT < hi - lo && (n + 1) * CONTEXT >= hi - lo, "%s: %d whole windows cover it", what,
     (int)n);
  is_int(tc_data_tokens(d), hi - lo, "%s: tokens", what);
}

static void test_samples(const char *dir)
{
  static const char *const what[] = { "all", "train", "val" };
  uint8_t stream[N];
  char *text[3], *bin[3];
  make_stream(dir, stream, text, bin);
  int cut = N * 95 / 100;
  const int lo[] = { 0, 0, cut }, hi[] = { N, cut, N };
  for (int part = 0; part <= 2; part++) {
    struct tc_data *t = must_open(text, 3, TC_FORMAT_TEXT, part, CONTEXT, 256);
    struct tc_data *b = must_open(bin, 3, TC_FORMAT_BIN, part, CONTEXT, 256);
    test_windows(t, stream, lo[part], hi[part], what[part]);
    test_windows(b, stream, lo[part], hi[part], what[part]);
    test_starts(b, stream, lo[part], hi[part], what[part]);
    test_cuts(t, b);
    tc_data_free(t);
    tc_data_free(b);
  }
  for (int k = 0; k < 3; k++) {
    free(text[k]);
    free(bin[k]);
  }
}

/* A file of exactly context + 1 tokens has one start and one window. */
static void test_smallest(const char *dir)
{
  int32_t x[8], y[8];
  char *file = path(dir, "nine.txt");
  put(file, "abcdefghi", 9);
  struct tc_data *d = must_open(&file, 1, TC_FORMAT_TEXT, 0, 8, 256);
  is_int(tc_data_windows(d, 0), 1, "context + 1 tokens: one window");
  take(d, 1, 1, 0, 1, x, y);
  ok(x[0] == 'a' && x[7] == 'h' && y[0] == 'b' && y[7] == 'i', "  and one sample");
  tc_data_free(d);
  put(file, "abcdefghijklmnop", 16);
  d = must_open(&file, 1, TC_FORMAT_TEXT, 0, 8, 256);
  is_int(tc_data_windows(d, 0), 1, "2 * context tokens: one window, the second lacks a target");
  tc_data_free(d);
  put(file, "abcdefgh", 8);
  refused(file, TC_FORMAT_TEXT, 256, "too few tokens");
  free(file);
}

/* FNV-1a over the tokens that tc_data_identity takes, from an array. */
static uint64_t hash_here(const uint8_t *stream, int lo, int hi)
{
  int n = hi - lo, ends = TC_MIN(n, 4096), piece = TC_MIN(n, 64);
  int from[66] = { lo, hi - ends }, len[66] = { ends, ends };
  uint64_t h = UINT64_C(14695981039346656037);
  for (int i = 0; i < 64; i++) {
    from[2 + i] = lo + (n - piece) / 63 * i;
    len[2 + i] = piece;
  }
  for (int k = 0; k < 66; k++)
    for (int i = 0; i < len[k]; i++) {
      h = (h ^ stream[from[k] + i]) * UINT64_C(1099511628211);
      h *= UINT64_C(1099511628211);              /* the high byte, 0 */
    }
  return h;
}

/* Equal tokens, equal identity, however they lie in files; another token there, another hash. */
static void test_identity(const char *dir)
{
  enum { LONG = 20000 };
  struct tc_data_identity a, b;
  struct tc_err err = { 0 };
  uint8_t stream[LONG];
  uint16_t wide[LONG];
  char *one = path(dir, "one.txt"), *two = path(dir, "two.txt"), *bin = path(dir, "one.bin");
  scatter(stream, LONG);
  for (int i = 0; i < LONG; i++) wide[i] = stream[i];
  put(one, stream, 7777);
  put(two, stream + 7777, LONG - 7777);
  put_bin(bin, 20240520, 1, LONG, wide, LONG);
  for (int part = 0; part <= 2; part++) {
    int lo = part == 2 ? LONG / 100 * 95 : 0, hi = part == 1 ? LONG / 100 * 95 : LONG;
    struct tc_data *t = must_open((char *[]){ one, two }, 2, TC_FORMAT_TEXT, part, 8, 256);
    struct tc_data *s = must_open(&bin, 1, TC_FORMAT_BIN, part, 8, 256);
    ok(tc_data_identity(t, &a, &err) == 0 && tc_data_identity(s, &b, &err) == 0, "identity %d", part);
    is_int(a.tokens, hi - lo, "  the part's tokens");
    ok(a.tokens == b.tokens && a.hash == b.hash, "  one for text and bin");
    ok(a.hash == hash_here(stream, lo, hi), "  the hash is that of the tokens by hand");
    tc_data_free(t);
    tc_data_free(s);
  }
  static const int where[] = { 0, 4000, LONG - 1, LONG - 4000, (LONG - 64) / 63 * 31 + 5 };
  for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
    wide[where[i]] ^= 0x101;
    put_bin(bin, 20240520, 1, LONG, wide, LONG);
    wide[where[i]] ^= 0x101;
    struct tc_data *s = must_open(&bin, 1, TC_FORMAT_BIN, 0, 8, 1024);
    ok(tc_data_identity(s, &b, &err) == 0 && b.tokens == LONG && b.hash != hash_here(stream, 0, LONG),
       "  token %d changed: another hash", where[i]);
    tc_data_free(s);
  }
  free(one);
  free(two);
  free(bin);
}

/* ---- what is refused ------------------------------------------------------------------- */

static void test_refused(const char *dir)
{
  uint16_t tokens[100];
  char *file = path(dir, "bad");
  struct tc_err err = { 0 };
  struct tc_data *d;
  for (int i = 0; i < 100; i++) tokens[i] = (uint16_t)i;
  refused(file, TC_FORMAT_TEXT, 256, "does not exist; names are separated by blanks");
  char *empty = path(dir, "empty");
  mkdir(empty, 0755);
  refused(empty, TC_FORMAT_TEXT, 256, "has no files *.bin or *.txt");
  rmdir(empty);
  free(empty);
  put(file, "", 0);
  refused(file, TC_FORMAT_TEXT, 256, "empty");
  put(file, "plain text, plain text, plain text", 34);
  refused(file, TC_FORMAT_BIN, 256, "too short");
  put_bin(file, 20240521, 1, 100, tokens, 100);
  refused(file, TC_FORMAT_BIN, 256, "not a token shard");
  put_bin(file, 20240520, 2, 100, tokens, 100);
  refused(file, TC_FORMAT_BIN, 256, "version 2");
  put_bin(file, 20240520, 1, 100, tokens, 99);
  refused(file, TC_FORMAT_BIN, 256, "says it has 100 tokens, but its size holds 99");
  put_bin(file, 20240520, 1, 99, tokens, 100);
  refused(file, TC_FORMAT_BIN, 256, "says it has 99 tokens, but its size holds 100");
  put_bin(file, 20240520, 1, -5, tokens, 100);
  refused(file, TC_FORMAT_BIN, 256, "says it has -5 tokens");
  put_bin(file, 20240520, 1, 100, tokens, 100);
  if (truncate(file, 1024 + 199) != 0) perror("truncate");
  refused(file, TC_FORMAT_BIN, 256, "holds 99.5");
  put_bin(file, 20240520, 1, 0, tokens, 0);
  refused(file, TC_FORMAT_BIN, 256, "0 tokens");
  unlink(file);
  if (mkfifo(file, 0600) == 0) refused(file, TC_FORMAT_TEXT, 256, "not a regular file");
  unlink(file);
  const struct tc_data_opts none = { .format = TC_FORMAT_TEXT, .context = 8, .vocab = 256 };
  is_int(tc_data_open(&d, &none, &err), TC_EUSER, "no files: %s", err.text);
  if (geteuid() != 0) {
    put(file, "secret secret secret", 20);
    chmod(file, 0);
    refused(file, TC_FORMAT_TEXT, 256, "can't be opened");
    unlink(file);
  } else skip("root may read everything");
  free(file);
}

/* A token that is too large is found where it is read, by name and place, in a window of validation and in a sample
 * of training; nothing else is. */
static void test_vocab(const char *dir)
{
  enum { BIG = 100001, CTX = 8 };
  uint16_t *tokens = calloc(BIG, sizeof *tokens);
  char *file = path(dir, "big.bin"), *text = path(dir, "big.txt");
  static const int where[] = { 0, 32767, 32768, 50001, BIG - 1 };
  int32_t x[CTX], y[CTX];
  for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
    const struct tc_samples s = { TC_ORDER_PERMUTATION, 3, 1 };
    char place[80];
    int failed = 0, other = 0;
    memset(tokens, 0, BIG * sizeof *tokens);
    tokens[where[i]] = 50257;
    put_bin(file, 20240520, 1, BIG, tokens, BIG);
    snprintf(place, sizeof place, "token 50257 at place %d (byte %d) ", where[i], 1024 + 2 * where[i]);
    struct tc_data *d = must_open(&file, 1, TC_FORMAT_BIN, 0, CTX, 50257);
    for (int64_t step = 1; step <= tc_data_windows(d, 0); step++) {
      struct tc_err err = { 0 };
      const int rc = tc_data_train(d, NULL, &s, step, 0, 1, &(struct tc_batch){ x, y, NULL }, &err);
      failed += rc == TC_EUSER && strstr(err.text, place) && strstr(err.text, file) &&
                strstr(err.text, "was the file made with another tokenizer?");
      other += rc != 0;
    }
    int want = 0;
    for (int64_t w = 0; w < tc_data_windows(d, 0); w++) want += where[i] >= w * CTX && where[i] <= (w + 1) * CTX;
    is_int(failed, want, "an epoch fails at %s", place);
    is_int(other, failed, "... and nowhere else");
    tc_data_free(d);
    d = must_open(&file, 1, TC_FORMAT_BIN, 0, CTX, 50258);
    const int64_t at = TC_MIN(where[i] / CTX, tc_data_windows(d, 0) - 1);
    struct tc_err err = { 0 };
    is_int(tc_data_window(d, NULL, 0, at, &(struct tc_batch){ x, y, NULL }, &err), 0, "... a larger vocabulary takes it");
    tc_data_free(d);
  }
  put(text, "0123456789abcdefghij\xff", 21);
  char *const one = text;
  struct tc_data *d = must_open(&one, 1, TC_FORMAT_TEXT, 0, CTX, 255);
  struct tc_data_identity id;
  struct tc_err err = { 0 };
  is_int(tc_data_identity(d, &id, &err), TC_EUSER, "the identity reads both ends");
  says(&err, text, "token 255 at place 20 ");
  tc_data_free(d);
  tc_data_free(must_open(&text, 1, TC_FORMAT_TEXT, 0, CTX, 256));
  free(tokens);
  free(file);
  free(text);
}

/* ---- files that change, fail or are many while they are in use ---------------------------- */

/* Writing to it changes its time of modification then, however coarse the clock is. */
static void make_old(const char *file)
{
  const struct timespec past[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
  if (utimensat(AT_FDCWD, file, past, 0) != 0) perror(file);
}

/* Takes batches until one fails; its sentence is in *err. */
static bool fails(struct tc_data *d, struct tc_err *err)
{
  int32_t x[64 * 8], y[64 * 8];
  for (int step = 1; step <= 100; step++)
    if (draw(d, 1, step, 0, 64, x, y, err) != 0) return true;
  return false;
}

static void test_changed(const char *dir)
{
  enum { LONG = 20000 };
  uint16_t *tokens = calloc(LONG, sizeof *tokens);
  struct tc_err err = { 0 };
  char *file = path(dir, "live.bin"), *other = path(dir, "other.bin");
  put_bin(file, 20240520, 1, LONG, tokens, LONG);
  struct tc_data *d = must_open(&file, 1, TC_FORMAT_BIN, 0, 8, 50257);
  ok(tc_data_check(d, true, &err) == 0 && !fails(d, &err), "an untouched file is as it was");
  chmod(file, 0600);
  ok(tc_data_check(d, false, &err) == 0, "a change of mode is no change of contents");
  put_bin(other, 20240520, 1, LONG, tokens, LONG);
  rename(other, file);
  is_int(tc_data_check(d, true, &err), TC_EUSER, "another file of the name");
  says(&err, file, "replaced");
  ok(!fails(d, &err), "  the open one can still be read");
  unlink(file);
  is_int(tc_data_check(d, true, &err), TC_EUSER, "removed");
  says(&err, file, "removed");
  tc_data_free(d);

  put_bin(file, 20240520, 1, LONG, tokens, LONG);
  make_old(file);
  d = must_open(&file, 1, TC_FORMAT_BIN, 0, 8, 50257);
  tokens[LONG / 2] = 50257;
  put_at(file, 1024, tokens, 2 * LONG);
  is_int(tc_data_check(d, true, &err), TC_EUSER, "rewritten");
  says(&err, file, "modified");
  ok(fails(d, &err), "  the token that is too large is found in a batch");
  says(&err, file, "token 50257 at place 10000 (byte 21024)");
  if (truncate(file, 1024 + 3001) != 0) perror("truncate");
  is_int(tc_data_check(d, true, &err), TC_EUSER, "truncated");
  says(&err, file, "had 41024 bytes and has 4025");
  ok(fails(d, &err), "  a batch beyond its end is not read");
  says(&err, file, "truncated");
  tc_data_free(d);

  put_bin(file, 20240520, 1, LONG, tokens, LONG);
  make_old(file);
  d = must_open(&file, 1, TC_FORMAT_BIN, 0, 8, 50258);
  struct tc_data_identity id;
  ok(tc_data_identity(d, &id, &err) == 0, "the identity, asked for before");
  make_old(file);
  ok(tc_data_check(d, false, &err) == 0, "  a time set to what it was is no change");
  put_at(file, 1024 + 1000, "\1", 1);
  make_old(file);
  is_int(tc_data_check(d, true, &err), TC_EUSER, "rewritten, and the time set back");
  says(&err, file, "set back");
  tc_data_free(d);
  free(tokens);
  free(file);
  free(other);
}

/* More files than are kept open, and than the process may open. */
static void test_many(const char *dir)
{
  enum { FILES = 100, EACH = 50 };
  char *name[FILES], *whole = path(dir, "whole.txt");
  uint8_t all[FILES * EACH];
  struct tc_err err = { 0 };
  struct rlimit limit, few;
  int32_t x[256 * 16], y[256 * 16], x2[256 * 16], y2[256 * 16];
  scatter(all, sizeof all);
  for (int i = 0; i < FILES; i++) {
    name[i] = tc_sprintf("%s/part%03d.txt", dir, i);
    put(name[i], all + i * EACH, EACH);
    make_old(name[i]);
  }
  put(whole, all, sizeof all);
  struct tc_data *one = must_open(&whole, 1, TC_FORMAT_TEXT, 0, 16, 256);
  getrlimit(RLIMIT_NOFILE, &limit);
  few = limit;
  int next = dup(0);
  close(next);
  few.rlim_cur = (rlim_t)next + 4;
  setrlimit(RLIMIT_NOFILE, &few);
  struct tc_data *many = must_open(name, FILES, TC_FORMAT_TEXT, 0, 16, 256);
  take(one, 9, 1, 0, 256, x, y);
  take(many, 9, 1, 0, 256, x2, y2);
  setrlimit(RLIMIT_NOFILE, &limit);
  ok(memcmp(x, x2, sizeof x) == 0 && memcmp(y, y2, sizeof y) == 0,
     "%d files with 4 descriptors: the samples of one file", FILES);
  take(many, 9, 2, 0, 256, x2, y2);
  take(one, 9, 2, 0, 256, x, y);
  ok(memcmp(x, x2, sizeof x) == 0, "  and with enough of them");
  struct tc_data_identity id;
  ok(tc_data_identity(many, &id, &err) == 0, "the identity");
  for (int i = 0; i < FILES; i++) chmod(name[i], 0600);
  warnings = 0;
  ok(tc_data_check(many, true, &err) == 0 && tc_data_check(many, true, &err) == 0, "  all with another mode");
  is_int(warnings, 1, "  ... one warning: %s", warned);
  ok(strstr(warned, name[0]) && strstr(warned, "' and 99 others: "), "  ... says how many");
  for (int i = 0; i < FILES; i++) put(name[i], all, EACH);
  ok(tc_data_check(many, true, &err) != 0, "  all replaced: %s", err.text);
  take(one, 9, 3, 0, 256, x, y);
  ok(draw(many, 9, 3, 0, 256, x2, y2, &err) != 0 && strstr(err.text, "modified"),
     "  one that is opened again is looked at: %s", err.text);
  tc_data_free(one);
  tc_data_free(many);
  for (int i = 0; i < FILES; i++) free(name[i]);
  free(whole);
}

static void tests(const char *dir)
{
  test_samples(dir);
  test_smallest(dir);
  test_identity(dir);
  test_refused(dir);
  test_vocab(dir);
  test_changed(dir);
  test_many(dir);
}

int main(void)
{
  return in_folder("t_data", tests);
}
