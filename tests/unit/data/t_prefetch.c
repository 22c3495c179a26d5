/* t_prefetch.c - the batches of a run, read ahead or alone; prefetching when threads can't be started or a read fails, and
 * open files that threads share: the calls are replaced here. */
#include "src/data/prefetch.h"
#include "src/data/impl.h"
#include "tests/unit/data_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

enum { CONTEXT = 4, B = 4, MOST = 100 };

static int most_threads = MOST, started;

static int start(pthread_t *thread, void *(*run)(void *), void *arg, struct tc_err *err)
{
  if (started == most_threads) return tc_fail(err, TC_EUSER, "no more threads than %d", started);
  started++;
  return tc_thread_start(thread, run, arg, err);
}

#define tc_thread_start start
#include "src/data/prefetch.c"
#undef tc_thread_start

/* Sequences of which each token is the batch's key; reading sequence 1 of batch `bad` fails `times` times. */
struct source { pthread_mutex_t lock; int64_t bad; int times, reads[MOST]; };

static int read_keys(void *ctx, struct tc_reader *r, int64_t key, int64_t b, const struct tc_batch *to, struct tc_err *err)
{
  struct source *s = ctx;
  (void)r;
  pthread_mutex_lock(&s->lock);
  const bool fails = key == s->bad && b == 1 && s->times > 0;
  if (fails) s->times--;
  s->reads[key]++;
  pthread_mutex_unlock(&s->lock);
  if (fails) return tc_fail(err, TC_EUSER, "batch %lld", (long long)key);
  for (int i = 0; i < CONTEXT; i++) to->tokens[i] = to->targets[i] = (int32_t)key;
  return TC_OK;
}

/* Takes a batch; its status. The tokens must be the batch's. */
static int take_batch(struct tc_prefetch *a, int64_t key, int64_t next, struct tc_err *err)
{
  int32_t x[B * CONTEXT], y[B * CONTEXT];
  int wrong = 0;
  const int rc = tc_prefetch_take(a, key, next, 0, B, &(struct tc_batch){ x, y, NULL }, err);
  for (int i = 0; i < B * CONTEXT && rc == 0; i++) wrong += x[i] != key || y[i] != key;
  is_int(wrong, 0, "batch %lld, then %lld", (long long)key, (long long)next);
  return rc;
}

static void test_threads(const struct tc_data *d)
{
  for (int n = 0; n <= THREADS; n++) {
    struct source s = { .lock = PTHREAD_MUTEX_INITIALIZER, .bad = -1 };
    struct tc_prefetch *a;
    struct tc_err err = { 0 };
    most_threads = n;
    started = 0;
    is_int(tc_prefetch_new(&a, d, read_keys, &s, &err), n ? 0 : TC_EUSER, "%d threads can be started", n);
    is_int(err.status, n ? 0 : TC_EUSER, "... and the error says the same");
    if (!n) {
      ok(!a, "... nothing is left");
      is_str(err.text, "no more threads than 0", "... and why");
      continue;
    }
    for (int64_t key = 1; key <= 3; key++) is_int(take_batch(a, key, key + 1, &err), 0, "... they read");
    tc_prefetch_free(a);
  }
  most_threads = MOST;
  started = 0;
}

/* A batch whose prefetch failed is read again when it is taken, once. */
static void test_again(const struct tc_data *d)
{
  for (int times = 0; times <= 4; times++) {
    struct source s = { .lock = PTHREAD_MUTEX_INITIALIZER, .bad = 2, .times = times };
    struct tc_prefetch *a;
    struct tc_err err = { 0 };
    TC_ASSERT(tc_prefetch_new(&a, d, read_keys, &s, &err) == 0);
    is_int(take_batch(a, 1, 2, &err), 0, "the batch before");
    is_int(take_batch(a, 2, 3, &err), times > 1 ? TC_EUSER : 0, "%d failures", times);
    if (times > 1) is_str(err.text, "batch 2", "... says which");
    is_int(s.times, TC_MAX(times - 2, 0), "... it was read again %s", times ? "once" : "not at all");
    is_int(take_batch(a, 3, -1, &err), 0, "the batch behind");
    is_int(s.reads[3], B, "... was read once");
    tc_prefetch_free(a);
  }
}

static int opens, preads_fail;
static pthread_mutex_t count_lock = PTHREAD_MUTEX_INITIALIZER;

static int open_here(const char *name, int flags)
{
  pthread_mutex_lock(&count_lock);
  opens++;
  pthread_mutex_unlock(&count_lock);
  return open(name, flags);
}

static ssize_t pread_here(int fd, void *buf, size_t n, off_t at)
{
  pthread_mutex_lock(&count_lock);
  const bool fails = preads_fail > 0 && preads_fail--;
  pthread_mutex_unlock(&count_lock);
  return fails ? errno = ESTALE, -1 : pread(fd, buf, n, at);
}

#define open(name, flags) open_here(name, flags)
#define pread(fd, buf, n, at) pread_here(fd, buf, n, at)
#include "src/data/token_file.c"
#undef open
#undef pread

static int read_sample(void *ctx, struct tc_reader *r, int64_t key, int64_t b, const struct tc_batch *to, struct tc_err *err)
{
  const struct tc_samples s = { TC_ORDER_PERMUTATION, 5, B };
  return tc_data_train(ctx, r, &s, key, b, 1, to, err);
}

/* The data set as another rank has it. */
static void see_nothing(struct tc_data **d, int places)
{
  void *bytes;
  int64_t n;
  struct tc_err err;
  tc_data_pack(*d, &bytes, &n);
  tc_data_free(*d);
  opens = 0;
  TC_ASSERT(tc_data_unpack(d, bytes, n, places, &err) == 0);
  free(bytes);
}

/* Threads that share open files: each is opened once if there is place for all, and samples do not depend on it. */
static void test_shared(const char *dir)
{
  enum { FILES = 40, EACH = 30, STEPS = 70 };
  static const struct { int places; bool unseen; } rows[] = { { 1, false }, { 4, false }, { FILES, false }, { 0, false },
                                                              { FILES, true }, { 4, true } };
  char *name[FILES];
  uint8_t bytes[EACH];
  scatter(bytes, sizeof bytes);
  for (int i = 0; i < FILES; i++) {
    char file[20];
    snprintf(file, sizeof file, "f%02d", i);
    name[i] = path(dir, file);
    bytes[0] = (uint8_t)i;
    put(name[i], bytes, sizeof bytes);
  }
  static int32_t want[STEPS][2][B * CONTEXT];
  const struct tc_samples s = { TC_ORDER_PERMUTATION, 5, B };
  struct tc_data *d = must_open(name, FILES, TC_FORMAT_TEXT, 0, CONTEXT, 256);
  struct tc_err err = { 0 };
  for (int64_t i = 0; i < STEPS; i++)
    TC_ASSERT(tc_data_train(d, NULL, &s, i + 1, 0, B, &(struct tc_batch){ want[i][0], want[i][1], NULL }, &err) == 0);
  for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
    const int places = rows[k].places;
    const struct tc_data_opts o = { name, FILES, TC_FORMAT_TEXT, 0, CONTEXT, 256, places, false, false, false, false };
    struct tc_prefetch *a;
    int wrong = 0;
    tc_data_free(d);
    opens = 0;
    TC_ASSERT(tc_data_open(&d, &o, &err) == 0);
    if (rows[k].unseen) see_nothing(&d, places);           /* several threads open a file first at once */
    TC_ASSERT(tc_prefetch_new(&a, d, read_sample, d, &err) == 0);
    for (int64_t i = 0; i < STEPS; i++) {
      int32_t x[B * CONTEXT], y[B * CONTEXT];
      wrong += tc_prefetch_take(a, i + 1, i + 2, 0, B, &(struct tc_batch){ x, y, NULL }, &err) != 0;
      wrong += memcmp(x, want[i][0], sizeof x) != 0 || memcmp(y, want[i][1], sizeof y) != 0;
    }
    tc_prefetch_free(a);
    is_int(wrong, 0, "%d places for %d files%s: the samples of one thread %s", places, FILES,
           rows[k].unseen ? " of another rank" : "", err.text);
    if (rows[k].unseen) ok(opens >= FILES, "... they were opened");
    else ok(places == FILES ? opens == FILES : opens > FILES, "... %d were opened", opens);
  }
  int32_t x[B * CONTEXT], y[B * CONTEXT];
  const struct tc_batch to = { x, y, NULL };
  opens = 0;
  preads_fail = 1;
  is_int(tc_data_train(d, NULL, &s, 1, 0, 1, &to, &err), 0, "a stale descriptor: the file is opened anew %s", err.text);
  ok(opens >= 1 && memcmp(x, want[0][0], CONTEXT * sizeof *x) == 0, "... and read");
  tc_data_free(d);
  for (int i = 0; i < FILES; i++) free(name[i]);
}

/* ---- batches of a run ---- */

enum { WIDE = 8 };                /* of sequences */

struct source_read { struct tc_data *d; struct tc_samples s; int64_t bad; };

static int read_sample_of(void *ctx, struct tc_reader *r, int64_t key, int64_t b, const struct tc_batch *to, struct tc_err *err)
{
  const struct source_read *a = ctx;
  if (key == a->bad && b == 2) return tc_fail(err, TC_EUSER, "sequence 2 of batch %lld", (long long)key);
  return tc_data_train(a->d, r, &a->s, key, b, 1, to, err);
}

/* A run with prefetched batches, with a jump; then ten of its steps computed alone, with the files opened anew. */
static void test_run(char *const *words)
{
  enum { STEPS = 40, MANY = 6, ROW = MANY * WIDE };
  static int32_t x[STEPS][ROW], y[STEPS][ROW];
  const struct tc_data_opts o = { words, 2, TC_FORMAT_AUTO, 0, WIDE, 256, 0, false, false, false, false };
  struct source_read of = { .s = { TC_ORDER_PERMUTATION, 9, MANY }, .bad = -1 };
  struct tc_prefetch *a;
  struct tc_err err = { 0 };
  TC_ASSERT(tc_data_open(&of.d, &o, &err) == 0);
  is_int(tc_prefetch_new(&a, of.d, read_sample_of, &of, &err), 0, "threads start %s", err.text);
  int failed = 0;
  for (int i = 0; i < STEPS; i++)              /* two micro-batches; a rollback leaves out the samples of five steps */
    for (int m = 0; m < 2; m++) {
      const int at = m * ROW / 2;
      const int64_t step = i + 1 + (i >= 20 ? 5 : 0);
      const struct tc_batch to = { x[i] + at, y[i] + at, NULL };
      failed += tc_prefetch_take(a, step, step + 1, m * MANY / 2, MANY / 2, &to, &err) != 0;
    }
  is_int(failed, 0, "40 steps in two pieces each %s", err.text);
  tc_prefetch_free(a);
  tc_data_free(of.d);
  TC_ASSERT(tc_data_open(&of.d, &o, &err) == 0);
  int same = 0;
  for (int k = 0; k < 10; k++) {
    const int i = (k * 17 + 5) % STEPS;
    int32_t x1[ROW], y1[ROW];
    TC_ASSERT(tc_data_train(of.d, NULL, &of.s, i + 1 + (i >= 20 ? 5 : 0), 0, MANY, &(struct tc_batch){ x1, y1, NULL }, &err) == 0);
    same += memcmp(x1, x[i], sizeof x1) == 0 && memcmp(y1, y[i], sizeof y1) == 0;
  }
  is_int(same, 10, "ten steps computed alone are those of the run");
  tc_data_free(of.d);
}

/* A failure is said at the step it belongs to, and by the piece it belongs to. */
static void test_failure(char *const *words)
{
  const struct tc_data_opts o = { words, 1, TC_FORMAT_AUTO, 0, WIDE, 256, 0, false, false, false, false };
  struct source_read of = { .s = { TC_ORDER_PERMUTATION, 9, B }, .bad = 3 };
  struct tc_prefetch *a;
  struct tc_err err = { 0 };
  int32_t x[B * WIDE], y[B * WIDE];
  const struct tc_batch to = { x, y, NULL };
  TC_ASSERT(tc_data_open(&of.d, &o, &err) == 0 && tc_prefetch_new(&a, of.d, read_sample_of, &of, &err) == 0);
  for (int64_t step = 1; step <= 5; step++) {
    is_int(tc_prefetch_take(a, step, step + 1, 0, 2, &to, &err), 0, "step %d, sequences 0 and 1", (int)step);
    is_int(tc_prefetch_take(a, step, step + 1, 2, 2, &to, &err), step == 3 ? TC_EUSER : 0, "... 2 and 3");
    if (step == 3) is_str(err.text, "sequence 2 of batch 3", "... says which");
  }
  is_int(tc_prefetch_take(a, 9, -1, 0, 4, &to, &err), 0, "no batch follows");
  tc_prefetch_free(a);
  tc_data_free(of.d);
}

/* A folder with shards of 1000 tokens each. */
static char *put_folder(const char *dir, const char *name, int shards)
{
  char *folder = path(dir, name);
  mkdir(folder, 0777);
  for (int k = 0; k < shards; k++) {
    uint16_t tokens[1000];
    for (int i = 0; i < 1000; i++) tokens[i] = (uint16_t)((i * 31 + k * 77 + name[0]) % 251);
    char *file = tc_sprintf("%s/%d.bin", folder, k);
    put_shard(file, 0, 256, -1, tokens, 1000);
    free(file);
  }
  return folder;
}

static void tests(const char *dir)
{
  char *name = path(dir, "text"), *one = put_folder(dir, "one", 2), *other = put_folder(dir, "two", 1);
  char *two[] = { tc_sprintf("2:%s", one), tc_sprintf("1:%s", other) };
  put(name, "some text of some length", 24);
  struct tc_data *d = must_open(&name, 1, TC_FORMAT_TEXT, 0, CONTEXT, 256);
  test_threads(d);
  test_again(d);
  test_shared(dir);
  test_run(two);
  test_failure(two);
  tc_data_free(d);
  TC_FREE(name, one, other, two[0], two[1]);
}

int main(void)
{
  return in_folder("t_prefetch", tests);
}
