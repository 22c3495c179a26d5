/* check_tokens.c - `tercio data check`: whether all tokens are below the vocabulary's size. */
#include "src/shards/shards.h"
#include "src/shards/token_set.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const int64_t PROGRESS_NS = INT64_C(2000000000);

/* Blocks of all files are numbered through; each thread takes the next. */
struct check {
  const struct tc_view *v;
  int64_t *vocab;                 /* [n] of each file; owned */
  int64_t *first;                 /* [n + 1] the first block of each file, and the number of all blocks; owned */
  atomic_llong *ends;             /* [n] the end-of-document tokens of each file; owned */
  atomic_llong next, bad_block;   /* bad_block: the first that failed; INT64_MAX: none */
  atomic_llong tokens;            /* that were read */
  pthread_mutex_t lock;
  struct tc_err err;              /* the sentence of bad_block */
  int64_t told_ns, started_ns;    /* of progress, which one thread prints */
};

/* ---- blocks ------------------------------------------------------------------------------ */

/* The file that has the block. */
static int find_file(const struct check *c, int64_t block)
{
  int lo = 0, hi = c->v->n - 1;
  while (lo < hi) {
    const int mid = (lo + hi + 1) / 2;
    if (c->first[mid] <= block) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

static int check_block(struct check *c, int64_t block, struct tc_reader *r, uint32_t *token, struct tc_err *err)
{
  const int i = find_file(c, block);
  const struct tc_view_file *f = &c->v->file[i];
  const int64_t from = (block - c->first[i]) * TC_VIEW_BLOCK, n = TC_MIN(f->is.tokens - from, TC_VIEW_BLOCK);
  const uint32_t end = (uint32_t)f->is.end_token;       /* below 0: above all tokens of such a file */
  uint32_t most = 0;
  int64_t ends = 0;
  TC_TRY(tc_view_read(c->v, r, f, from, n, token, err));
  for (int64_t k = 0; k < n; k++) {
    most = TC_MAX(most, token[k]);
    ends += token[k] == end;
  }
  atomic_fetch_add(&c->ends[i], ends);
  atomic_fetch_add(&c->tokens, n);
  for (int64_t k = 0; most >= c->vocab[i] && k < n; k++)
    if (token[k] >= c->vocab[i])
      return tc_fail(err, TC_EUSER, "data file '%s': token %u at place %lld (byte %lld) is not below the vocabulary's "
                     "size, %lld", f->is.name, token[k], (long long)(from + k),
                     (long long)(f->is.header + (from + k) * f->is.width), (long long)c->vocab[i]);
  return TC_OK;
}

static void note_fault(struct check *c, int64_t block, const struct tc_err *err)
{
  pthread_mutex_lock(&c->lock);
  if (block < atomic_load(&c->bad_block)) {
    atomic_store(&c->bad_block, block);
    c->err = *err;
  }
  pthread_mutex_unlock(&c->lock);
}

/* A line every two seconds, so none for short work. */
static void say_progress(struct check *c)
{
  const int64_t now_ns = tc_now_ns(), done = atomic_load(&c->tokens), total = tc_data_tokens(c->v->d);
  if (now_ns - c->told_ns < PROGRESS_NS) return;
  c->told_ns = now_ns;
  tc_say("tercio data: ", "\n", "%.4g M of %.4g M tokens (%d %%), %.4g M/s", (double)done * 1e-6, (double)total * 1e-6,
         (int)(100 * (double)done / (double)total), (double)done * 1e3 / (double)(now_ns - c->started_ns));
}

/* ---- threads ----------------------------------------------------------------------------- */

/* Blocks after one that failed can't have the first fault. */
static void check_blocks(struct check *c, bool says)
{
  struct tc_reader *r = tc_reader_new(c->v->d);
  uint32_t *token = tc_malloc(TC_VIEW_BLOCK * sizeof *token);
  for (int64_t block;
       (block = atomic_fetch_add(&c->next, 1)) < TC_MIN(c->first[c->v->n], atomic_load(&c->bad_block));) {
    struct tc_err err = { 0 };
    if (check_block(c, block, r, token, &err) < 0) note_fault(c, block, &err);
    if (says) say_progress(c);
  }
  free(token);
  tc_reader_free(r);
}

static void *check_in_thread(void *arg)
{
  check_blocks(arg, false);
  return NULL;
}

static int check_all(struct check *c, struct tc_err *err)
{
  int n = c->v->threads ? c->v->threads : tc_data_cpus(), started = 0, status = TC_OK;
  pthread_t *thread = tc_calloc((size_t)n, sizeof *thread);
  c->told_ns = c->started_ns = tc_now_ns();
  for (; started < n - 1 && status == TC_OK; started++)
    if ((status = tc_thread_start(&thread[started], check_in_thread, c, err)) < 0) break;
  if (status == TC_OK) check_blocks(c, true);
  else atomic_store(&c->bad_block, -1);                        /* the threads that run end */
  for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
  free(thread);
  if (status == TC_OK && atomic_load(&c->bad_block) < INT64_MAX) status = (*err = c->err).status;
  return status;
}

/* ---- the command --------------------------------------------------------------------------- */

/* What tokens must be below: as given, the tokenizer's, or the header's. */
static int find_vocab(struct check *c, struct tc_err *err)
{
  for (int i = 0; i < c->v->n; i++) {
    const struct tc_view_file *f = &c->v->file[i];
    c->vocab[i] = c->v->vocab >= 0 ? c->v->vocab : f->t ? tc_tokenizer_vocab(f->t) : f->bytes ? TC_VIEW_BYTES
                  : f->is.marked ? f->is.vocab : -1;
    if (c->vocab[i] < 0)
      return tc_fail(err, TC_EUSER, "data file '%s' does not say its vocabulary's size; name it by --vocab N or "
                     "--tokenizer FILE, or give --tokenizer bytes if a token is a byte", f->is.name);
  }
  return TC_OK;
}

static void say_checked(const struct check *c)
{
  const struct tc_view *v = c->v;
  bool same = true, known = true;
  int64_t documents = 0;
  for (int i = 0; i < v->n; i++) {
    const struct tc_data_file *f = &v->file[i].is;
    same &= c->vocab[i] == c->vocab[0];
    known &= f->documents >= 0 || f->end_token >= 0;
    documents += f->documents >= 0 ? f->documents : atomic_load(&c->ends[i]);
  }
  for (int i = 0; i < v->n && !same; i++)
    printf("%s: %lld tokens, all below %lld\n", v->file[i].is.name, (long long)v->file[i].is.tokens,
           (long long)c->vocab[i]);
  printf("%d file%s, %lld tokens", v->n, v->n == 1 ? "" : "s", (long long)tc_data_tokens(v->d));
  if (known) printf(", %lld document%s", (long long)documents, documents == 1 ? "" : "s");
  if (same) printf(": all are below %lld", (long long)c->vocab[0]);
  printf("\n");
}

static int check(const struct tc_view *v, struct tc_err *err)
{
  struct check c = { .v = v };
  c.vocab = tc_calloc((size_t)v->n, sizeof *c.vocab);
  c.first = tc_calloc((size_t)v->n + 1, sizeof *c.first);
  c.ends = tc_calloc((size_t)v->n, sizeof *c.ends);
  for (int i = 0; i < v->n; i++) c.first[i + 1] = c.first[i] + tc_ceil_div(v->file[i].is.tokens, TC_VIEW_BLOCK);
  atomic_init(&c.next, 0);
  atomic_init(&c.tokens, 0);
  atomic_init(&c.bad_block, INT64_MAX);
  pthread_mutex_init(&c.lock, NULL);
  int status = find_vocab(&c, err);
  if (status == TC_OK) status = check_all(&c, err);
  if (status == TC_OK) say_checked(&c);
  pthread_mutex_destroy(&c.lock);
  free(c.vocab);
  free(c.first);
  free(c.ends);
  return status;
}

int tc_data_check_tokens(int argc, char **argv, struct tc_err *err)
{
  return tc_view_run(TC_VIEW_CHECK, check, argc, argv, err);
}
