/* prefetch.c - see prefetch.h.
 *
 * - Two batches are kept: that of this step and that of the next. Each is a list of pieces, runs of sequences
 *   as the rank takes them; memory is that of two batches of this rank, whatever the size of the data.
 * - A thread takes one sequence at a time, of this batch before the next, and writes it without the lock: a
 *   piece stays where it is while sequences of it are read.
 * - When a step is over, its batch becomes that of the step after the next, with the same pieces. */
#include "src/data/prefetch.h"
#include "src/data/impl.h"
#include "src/watch/watch.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8 };             /* with 20 ms a read: 400 sequences in a second */

struct piece {
  int64_t b0, n, begun, done;    /* sequences [b0, b0 + n); how many were begun, and read */
  struct tc_batch to;            /* owned */
  struct tc_err err;             /* status < 0: why one could not be read */
};

struct batch { int64_t key; struct piece **piece; int n, cap; };   /* key < 0: none */

struct tc_prefetch {
  const struct tc_data *d;
  tc_prefetch_fn *read;
  void *ctx;
  pthread_mutex_t lock;
  pthread_cond_t work, done;     /* there is something to read; a piece was read */
  struct batch now, next;
  bool quit;
  int n_threads, used;           /* threads that were started; that have begun */
  pthread_t thread[THREADS];
  struct tc_reader *reader[THREADS];
  struct tc_thread_status *status[THREADS];
};

/* ---- the threads ------------------------------------------------------------------------------- */

/* The next sequence that no thread reads: its batch's key, and its piece; NULL: none. */
static struct piece *find_work(struct tc_prefetch *a, int64_t *key)
{
  struct batch *const both[] = { &a->now, &a->next };
  for (int i = 0; i < 2; i++)
    for (int k = 0; both[i]->key >= 0 && k < both[i]->n; k++)
      if (both[i]->piece[k]->begun < both[i]->piece[k]->n) {
        *key = both[i]->key;
        return both[i]->piece[k];
      }
  return NULL;
}

static void read_one(struct tc_prefetch *a, struct tc_reader *r, struct piece *p, int64_t key)
{
  const int64_t row = p->begun++;
  const int64_t at = row * a->d->context;
  const struct tc_batch to = { p->to.tokens + at, p->to.targets + at, p->to.starts ? p->to.starts + at : NULL };
  struct tc_err err = { 0 };
  pthread_mutex_unlock(&a->lock);
  const int rc = a->read(a->ctx, r, key, p->b0 + row, &to, &err);
  pthread_mutex_lock(&a->lock);
  if (rc < 0 && p->err.status == 0) p->err = err;
  if (++p->done == p->begun) pthread_cond_broadcast(&a->done);
}

static void *prefetch_thread(void *arg)
{
  struct tc_prefetch *a = arg;
  pthread_mutex_lock(&a->lock);
  const int me = a->used++;
  tc_thread_status_use(a->status[me]);
  while (!a->quit) {
    int64_t key;
    struct piece *p = find_work(a, &key);
    if (p) {
      read_one(a, a->reader[me], p, key);
      continue;
    }
    tc_at_rest();
    pthread_cond_wait(&a->work, &a->lock);
  }
  tc_at_rest();
  pthread_mutex_unlock(&a->lock);
  return NULL;
}

int tc_prefetch_new(struct tc_prefetch **out, const struct tc_data *d, tc_prefetch_fn *read, void *ctx,
                    struct tc_err *err)
{
  struct tc_prefetch *a = *out = tc_calloc(1, sizeof *a);
  *a = (struct tc_prefetch){ .d = d, .read = read, .ctx = ctx, .now.key = -1, .next.key = -1 };
  pthread_mutex_init(&a->lock, NULL);
  tc_cond_init(&a->work);
  tc_cond_init(&a->done);
  for (int i = 0; i < THREADS; i++) {
    a->reader[i] = tc_reader_new(d);
    a->status[i] = tc_thread_status_new("data reader");
  }
  struct tc_err why = { 0 };
  int rc = TC_OK;
  while (a->n_threads < THREADS && rc == TC_OK) {
    rc = tc_thread_start(&a->thread[a->n_threads], prefetch_thread, a, &why);
    a->n_threads += rc == TC_OK;
  }
  if (a->n_threads) return TC_OK;            /* one can do the work of all */
  if (err) *err = why;
  tc_prefetch_free(a);
  *out = NULL;
  return rc;
}

/* ---- batches ----------------------------------------------------------------------------------- */

static void free_batch(struct batch *b)
{
  for (int i = 0; i < b->n; i++) TC_FREE(b->piece[i]->to.tokens, b->piece[i]->to.targets, b->piece[i]->to.starts, b->piece[i]);
  free(b->piece);
}

void tc_prefetch_free(struct tc_prefetch *a)
{
  if (!a) return;
  pthread_mutex_lock(&a->lock);
  a->quit = true;
  pthread_cond_broadcast(&a->work);
  pthread_mutex_unlock(&a->lock);
  for (int i = 0; i < a->n_threads; i++) pthread_join(a->thread[i], NULL);
  for (int i = 0; i < THREADS; i++) tc_reader_free(a->reader[i]);
  free_batch(&a->now);
  free_batch(&a->next);
  pthread_cond_destroy(&a->work);
  pthread_cond_destroy(&a->done);
  pthread_mutex_destroy(&a->lock);
  free(a);
}

/* The same pieces of another batch, nothing of them read yet. Waits until no thread writes to them. */
static void begin_batch(struct tc_prefetch *a, struct batch *b, int64_t key)
{
  b->key = -1;                               /* so that no sequence of it is begun */
  for (int i = 0; i < b->n; i++) {
    struct piece *p = b->piece[i];
    while (p->done < p->begun) pthread_cond_wait(&a->done, &a->lock);
    p->begun = p->done = 0;
    p->err.status = 0;
  }
  b->key = key;
}

static struct piece *find_piece(const struct batch *b, int64_t b0, int64_t n)
{
  for (int i = 0; i < b->n; i++)
    if (b->piece[i]->b0 == b0 && b->piece[i]->n == n) return b->piece[i];
  return NULL;
}

static struct piece *add_piece(struct tc_prefetch *a, struct batch *b, int64_t b0, int64_t n)
{
  const size_t bytes = (size_t)(n * a->d->context) * sizeof(int32_t);
  struct piece *p = tc_calloc(1, sizeof *p);
  *p = (struct piece){ .b0 = b0, .n = n, .to = { tc_malloc(bytes), tc_malloc(bytes),
                                                              tc_data_packed(a->d) ? tc_malloc(bytes) : NULL } };
  TC_GROW(b->piece, b->n, b->cap);
  return b->piece[b->n++] = p;
}

/* The batches of this step and the next. */
static void turn_to(struct tc_prefetch *a, int64_t key, int64_t next)
{
  if (a->now.key != key) {
    const struct batch was = a->now;
    if (a->next.key == key) {
      a->now = a->next;
      a->next = was;
      a->next.key = -1;
    } else begin_batch(a, &a->now, key);
  }
  if (a->next.key != next) begin_batch(a, &a->next, next);
}

/* Waits until a piece of the batch of this step is read. A failure is tried once more: it may be of long ago, when the
 * piece was prefetched, and gone. */
static void wait_piece(struct tc_prefetch *a, struct piece *p)
{
  while (p->done < p->n) pthread_cond_wait(&a->done, &a->lock);
  if (p->err.status == 0) return;
  p->begun = p->done = 0;
  p->err.status = 0;
  pthread_cond_broadcast(&a->work);
  while (p->done < p->n) pthread_cond_wait(&a->done, &a->lock);
}

int tc_prefetch_take(struct tc_prefetch *a, int64_t key, int64_t next, int64_t b0, int64_t n, const struct tc_batch *to,
                     struct tc_err *err)
{
  const size_t bytes = (size_t)(n * a->d->context) * sizeof(int32_t);
  pthread_mutex_lock(&a->lock);
  turn_to(a, key, next);
  struct piece *p = find_piece(&a->now, b0, n);
  if (!p) p = add_piece(a, &a->now, b0, n);
  if (next >= 0 && !find_piece(&a->next, b0, n)) add_piece(a, &a->next, b0, n);
  pthread_cond_broadcast(&a->work);
  wait_piece(a, p);
  const int rc = p->err.status;
  if (rc < 0) *err = p->err;
  pthread_mutex_unlock(&a->lock);
  if (rc < 0) return rc;
  memcpy(to->tokens, p->to.tokens, bytes);   /* which stays until the batches turn */
  memcpy(to->targets, p->to.targets, bytes);
  if (to->starts && p->to.starts) memcpy(to->starts, p->to.starts, bytes);
  return TC_OK;
}
