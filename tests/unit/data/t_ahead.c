/* t_ahead.c - reading ahead when threads can't be started or a read fails: the calls are replaced here. */
#include "src/data/ahead.h"
#include "src/data/impl.h"
#include "tests/unit/data_fixture.h"

#include <pthread.h>

enum { CONTEXT = 4, B = 4, MOST = 100 };

static int most_threads = MOST, started;

static int start(pthread_t *thread, void *(*run)(void *), void *arg, struct tc_err *err)
{
  if (started == most_threads) return tc_fail(err, TC_EUSER, "no more threads than %d", started);
  started++;
  return tc_thread_start(thread, run, arg, err);
}

#define tc_thread_start start
#include "src/data/ahead.c"
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
static int take_batch(struct tc_ahead *a, int64_t key, int64_t next, struct tc_err *err)
{
  int32_t x[B * CONTEXT], y[B * CONTEXT];
  int wrong = 0;
  const int rc = tc_ahead_take(a, key, next, 0, B, &(struct tc_batch){ x, y }, err);
  for (int i = 0; i < B * CONTEXT && rc == 0; i++) wrong += x[i] != key || y[i] != key;
  is_int(wrong, 0, "batch %lld, then %lld", (long long)key, (long long)next);
  return rc;
}

static void test_threads(const struct tc_data *d)
{
  for (int n = 0; n <= THREADS; n++) {
    struct source s = { .lock = PTHREAD_MUTEX_INITIALIZER, .bad = -1 };
    struct tc_ahead *a;
    struct tc_err err = { 0 };
    most_threads = n;
    started = 0;
    is_int(tc_ahead_new(&a, d, read_keys, &s, &err), n ? 0 : TC_EUSER, "%d threads can be started", n);
    is_int(err.status, n ? 0 : TC_EUSER, "... and the error says the same");
    if (!n) {
      ok(!a, "... nothing is left");
      is_str(err.text, "no more threads than 0", "... and why");
      continue;
    }
    for (int64_t key = 1; key <= 3; key++) is_int(take_batch(a, key, key + 1, &err), 0, "... they read");
    tc_ahead_free(a);
  }
  most_threads = MOST;
  started = 0;
}

/* A batch whose reading ahead failed is read again when it is taken, once. */
static void test_again(const struct tc_data *d)
{
  for (int times = 0; times <= 4; times++) {
    struct source s = { .lock = PTHREAD_MUTEX_INITIALIZER, .bad = 2, .times = times };
    struct tc_ahead *a;
    struct tc_err err = { 0 };
    TC_ASSERT(tc_ahead_new(&a, d, read_keys, &s, &err) == 0);
    is_int(take_batch(a, 1, 2, &err), 0, "the batch before");
    is_int(take_batch(a, 2, 3, &err), times > 1 ? TC_EUSER : 0, "%d failures", times);
    if (times > 1) is_str(err.text, "batch 2", "... says which");
    is_int(s.times, TC_MAX(times - 2, 0), "... it was read again %s", times ? "once" : "not at all");
    is_int(take_batch(a, 3, -1, &err), 0, "the batch behind");
    is_int(s.reads[3], B, "... was read once");
    tc_ahead_free(a);
  }
}

static void tests(const char *dir)
{
  char *name = path(dir, "text");
  put(name, "some text of some length", 24);
  struct tc_data *d = must_open(&name, 1, TC_FORMAT_TEXT, 0, CONTEXT, 256);
  test_threads(d);
  test_again(d);
  tc_data_free(d);
  free(name);
}

int main(void)
{
  return in_folder("t_ahead", tests);
}
