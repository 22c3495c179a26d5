/* t_shards.c - text to shards: the same shards whatever the number of threads, and however often the making was stopped and
 * went on; what is said of them; a reader or encoders that can't be started. */
#include "src/launch/stop.h"
#include "src/shards/impl.h"
#include "tests/unit/tap.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int looks, stop_at;        /* stop_at: the look at requests that finds one; -1: none does */
static int most_threads, started;

static int look(const struct tc_stop *s)
{
  (void)s;
  return looks++ == stop_at ? TC_STOP_END : TC_STOP_NONE;
}

static int start(pthread_t *thread, void *(*run)(void *), void *arg, struct tc_err *err)
{
  if (started++ == most_threads) return tc_fail(err, TC_EUSER, "no more threads than %d", most_threads);
  return tc_thread_start(thread, run, arg, err);
}

#define tc_stop_asked look
#define tc_thread_start start
#include "src/shards/shards.c"
#undef tc_stop_asked
#undef tc_thread_start

enum { TEXTS = 12, EACH = 700, SHARD = 4000, MOST = 1 << 16 };
static char *text[TEXTS + 2];     /* names: texts, and two of JSONL */
static const char *tokenizer;

/* Texts of lower case words, and the same twice as JSONL, with three lines that can't be read and an empty one. */
static void make_texts(void)
{
  FILE *lines[] = { fopen("y.jsonl", "w"), fopen("z.jsonl", "w") };
  for (int i = 0; i < TEXTS; i++) {
    char words[EACH + 1] = "";
    text[i] = tc_sprintf("text-%02d.txt", i);
    for (int k = 0; k < EACH; k++) {
      uint32_t r[4];
      tc_philox(r, 5, (uint64_t)(i * EACH + k), 0);
      words[k] = r[0] % 5 ? (char)('a' + r[1] % 26) : ' ';
    }
    FILE *f = fopen(text[i], "w");
    TC_ASSERT(fputs(words, f) >= 0 && fclose(f) == 0);
    for (int k = 0; k < 2; k++)
      fprintf(lines[k], "{\"text\": \"%s\"}\n%s", words, i % 5 == 1 ? "no JSON\n" : i == 3 ? "{\"text\": \"\"}\n" : "");
  }
  TC_ASSERT(fclose(lines[0]) == 0 && fclose(lines[1]) == 0);
  text[TEXTS] = tc_strdup("y.jsonl");
  text[TEXTS + 1] = tc_strdup("z.jsonl");
}

static struct tc_shards_opts opts(const char *out, int threads)
{
  looks = started = 0;
  stop_at = -1;
  most_threads = 100;
  return (struct tc_shards_opts){ .text = text, .n_texts = TEXTS + 2, .out = out, .tokenizer = tokenizer, .skip_bad = true,
                                  .shard_tokens = SHARD, .threads = threads };
}

/* The tokens of all shards of a folder, as in their files. Returns their number; -1: a shard is missing or has a header
 * that says something else. */
static int64_t read_shards(const char *dir, int shards, uint16_t *token)
{
  int64_t n = 0;
  for (int i = 0; i < shards; i++) {
    char *name = tc_sprintf("%s/shard-%05d.bin", dir, i);
    int32_t header[TC_SHARD_INTS];
    FILE *f = fopen(name, "rb");
    free(name);
    if (!f) return -1;
    const size_t ints = fread(header, 4, TC_SHARD_INTS, f), got = fread(token + n, 2, MOST - (size_t)n, f);
    fclose(f);
    if (ints != TC_SHARD_INTS || header[2] != (int32_t)got || (i < shards - 1 && got != SHARD)) return -1;
    n += (int64_t)got;
  }
  return n;
}

static void remove_folder(const char *dir, int shards)
{
  char *name;
  for (int i = 0; i < shards; i++) {
    unlink(name = tc_sprintf("%s/shard-%05d.bin", dir, i));
    free(name);
  }
  unlink(name = tc_sprintf("%s/" TC_SHARDS_NOTE, dir));
  free(name);
  unlink(name = tc_sprintf("%s/" TC_TOKENIZER_FILE, dir));
  free(name);
  is_int(rmdir(dir), 0, "... nothing else is in the folder");
}

static uint16_t want[MOST], got[MOST];
static struct tc_shards_made first;

/* Counts by hand; then by other numbers of threads. */
static void test_threads(void)
{
  static const int threads[] = { 1, 2, 7, 0 };
  for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
    const struct tc_shards_opts o = opts("s", threads[i]);
    struct tc_shards_made made;
    struct tc_err err = { 0 };
    is_int(tc_shards_make(&made, &o, &err), TC_OK, "%d threads %s", threads[i], err.text);
    const int64_t n = read_shards("s", made.shards, i ? got : want);
    ok(n == made.tokens && made.shards == (n + SHARD - 1) / SHARD, "... %lld tokens in %d shards", (long long)n, made.shards);
    ok(made.documents == 3 * TEXTS && made.texts == TEXTS + 2, "... %lld documents", (long long)made.documents);
    ok(made.empty == 2 && made.bad == 6 && made.invalid == 0, "... what was left out is counted");
    ok(strstr(made.first_bad.text, "text 'y.jsonl', line 3: ") != NULL, "... and the first line of it named");
    if (!i) first = made;
    ok(n == first.tokens && memcmp(i ? got : want, want, (size_t)n * sizeof *want) == 0, "... the same as of one");
    is_int(tc_shards_make(&made, &o, &err), TC_OK, "... made already");
    ok(made.tokens == first.tokens && !made.first_bad.status, "... which is all that is said");
    remove_folder("s", made.shards);
  }
}

/* A request to stop at each look: the next call goes on after the shards that are finished. */
static void test_stops(void)
{
  int stopped = 0, at = 0;
  for (bool ended = false; !ended; at += 1 + at / 4) {
    struct tc_shards_opts o = opts("s", 1 + at % 3);
    struct tc_shards_made made;
    struct tc_err err = { 0 };
    stop_at = at;
    const int rc = tc_shards_make(&made, &o, &err);
    ended = rc == TC_OK;
    stopped += !ended;
    if (!ended && (rc != TC_ENDED || !strstr(err.text, "run the same command to go on"))) ok(false, "%s", err.text);
    for (int again = at; !ended && again < 2 * at + 3; again++) {       /* stopped again, at another place */
      stop_at = again;
      looks = 0;
      if (tc_shards_make(&made, &o, &err) == TC_OK) break;
    }
    err.status = 0;
    stop_at = -1;
    if (tc_shards_make(&made, &o, &err) < 0) ok(false, "stopped at look %d: %s", at, err.text);
    const int64_t n = read_shards("s", made.shards, got);
    if (n != first.tokens || memcmp(got, want, (size_t)n * sizeof *got) != 0 || made.documents != first.documents ||
        made.bad != first.bad || made.empty != first.empty)
      ok(false, "stopped at look %d: other shards", at);
    remove_folder("s", made.shards);
  }
  ok(stopped > 2, "%d calls that were stopped, at up to look %d, gave the same shards", stopped, at);
}

/* Bytes go the same way: one file, of which nothing is left where it was stopped. */
static void test_bytes(void)
{
  struct tc_shards_opts o = opts("one.bin", 3);
  struct tc_shards_made made;
  struct tc_err err = { 0 };
  o.tokenizer = NULL;
  o.eod = "0";
  stop_at = 0;
  is_int(tc_shards_make(&made, &o, &err), TC_ENDED, "a request to stop");
  is_str(err.text, "stopped on request; run the same command to make one.bin", "... says so");
  ok(access("one.bin", F_OK) != 0, "... nothing is left");
  err.status = 0;
  o = opts("one.bin", 3);
  o.tokenizer = NULL;
  o.eod = "0";
  is_int(tc_shards_make(&made, &o, &err), TC_OK, "the same again");
  ok(made.tokens == 3 * TEXTS * (EACH + 1) && made.vocab == 256 && made.documents == 3 * TEXTS && made.bad == 6,
     "... a byte is a token: %lld", (long long)made.tokens);
  struct stat st;
  ok(stat("one.bin", &st) == 0 && st.st_size == TC_SHARD_BYTES + 2 * made.tokens, "... in one file");
  unlink("one.bin");
}

static void test_no_threads(void)
{
  for (int n = 0; n < 4; n++) {
    struct tc_shards_opts o = opts("s", 3);
    struct tc_shards_made made;
    struct tc_err err = { 0 };
    char why[40];
    most_threads = n;
    snprintf(why, sizeof why, "no more threads than %d", n);
    is_int(tc_shards_make(&made, &o, &err), TC_EUSER, "%d threads can be started, of a reader and 3", n);
    is_str(err.text, why, "... says so");
    remove_folder("s", 0);
  }
}

int main(void)
{
  char dir[] = "/tmp/t_shards-XXXXXX", *top = realpath(getenv("srcdir") ? getenv("srcdir") : ".", NULL);
  alarm(300);
  TC_ASSERT(top && mkdtemp(dir) && chdir(dir) == 0);
  tokenizer = tc_sprintf("%s/tests/oracle/tokens/gpt2.json", top);
  make_texts();
  test_threads();
  test_stops();
  test_bytes();
  test_no_threads();
  for (int i = 0; i < TEXTS + 2; i++) {
    unlink(text[i]);
    free(text[i]);
  }
  free((char *)(uintptr_t)tokenizer);
  free(top);
  return chdir("/") || rmdir(dir) || done_testing();
}
