/* check_tokens.c - whether all tokens of a set are below the vocabulary's size, and their weights are weights. */
#include "src/data/shard.h"
#include "src/files/files.h"
#include "src/shards/token_set.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t PROGRESS_NS = INT64_C(2000000000);

struct reader { struct tc_reader *r; uint32_t *token; uint8_t *weight; };    /* owned; NULL before the first block */

/* Blocks of all files are numbered through. */
struct check {
  const struct tc_token_set *s;
  const int64_t *vocab;           /* [n] of each file */
  int64_t *first;                 /* [n + 1] the first block of each file, and the number of all blocks; owned */
  atomic_llong *ends;             /* [n] the end-of-document tokens of each file; owned */
  bool *weighted;                 /* [n] weights lie beside the file; owned */
  atomic_llong tokens;            /* that were read */
  atomic_llong counted, samples;
  struct reader *reader;          /* [threads] what each reads with */
  int64_t told_ns, started_ns;    /* of progress, which thread 0 prints */
};

/* ---- blocks ------------------------------------------------------------------------------ */

/* A line every two seconds, so none for short work. */
static void say_progress(struct check *c)
{
  const int64_t now_ns = tc_now_ns(), done = atomic_load(&c->tokens), total = tc_data_tokens(c->s->d);
  if (now_ns - c->told_ns < PROGRESS_NS) return;
  c->told_ns = now_ns;
  tc_say("tercio data: ", "\n", "%.4g M of %.4g M tokens (%d %%), %.4g M/s", (double)done * 1e-6, (double)total * 1e-6,
         (int)(100 * (double)done / (double)total), (double)done * 1e3 / (double)(now_ns - c->started_ns));
}

/* The file that has the block. */
static int find_file(const struct check *c, int64_t block)
{
  int lo = 0, hi = c->s->n - 1;
  while (lo < hi) {
    const int mid = (lo + hi + 1) / 2;
    if (c->first[mid] <= block) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

/* Bytes [from, from + n) of a file; 0, or -1 with errno: 0 if it ends before. */
static int read_bytes(const char *path, int64_t from, int64_t n, uint8_t *out)
{
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : 1;
  for (; got > 0 && n > 0; out += got, from += got, n -= got) got = pread(fd, out, (size_t)n, from);
  const int why = got < 0 ? errno : 0;
  if (fd >= 0) close(fd);
  errno = why;
  return n > 0 ? -1 : 0;
}

/* The weights beside tokens [from, from + n) of a file. The header was looked at when the files were opened. */
static int check_weights(struct check *c, const char *shard, int64_t from, int64_t n, uint8_t *weight, struct tc_err *err)
{
  struct tc_again again = { 0 };
  char *path = tc_weights_path(shard);
  int64_t counted = 0, samples = 0, bad = -1;
  int rc = TC_OK;
  while ((rc = read_bytes(path, TC_WEIGHTS_BYTES + from, n, weight)) < 0 && tc_again(&again, errno)) ;
  if (rc < 0) rc = tc_fail(err, TC_EUSER, "'%s' can't be read: %s", path, errno ? strerror(errno) : "it has become shorter");
  for (int64_t i = 0; i < n && rc == TC_OK && bad < 0; i++) {
    counted += weight[i] == TC_WEIGHT_COUNTS;
    samples += (weight[i] & TC_WEIGHT_BEGINS) != 0;
    if (weight[i] > (TC_WEIGHT_COUNTS | TC_WEIGHT_BEGINS)) bad = i;
  }
  if (bad >= 0)
    rc = tc_fail(err, TC_EUSER, "'%s' has %d at place %lld; a weight is 0 or 1, and 2 or 3 where a sample begins", path,
                 weight[bad], (long long)(from + bad));
  atomic_fetch_add(&c->counted, counted);
  atomic_fetch_add(&c->samples, samples);
  free(path);
  return rc;
}

static int check_block(void *ctx, int64_t block, int thread, struct tc_err *err)
{
  struct check *c = ctx;
  struct reader *at = &c->reader[thread];
  const int i = find_file(c, block);
  const struct tc_token_set_file *f = &c->s->file[i];
  const int64_t from = (block - c->first[i]) * TC_TOKEN_BLOCK, n = TC_MIN(f->is.tokens - from, TC_TOKEN_BLOCK);
  const uint32_t end = (uint32_t)f->is.end_token;       /* below 0: above all tokens of such a file */
  uint32_t most = 0;
  int64_t ends = 0;
  if (!at->r)
    *at = (struct reader){ tc_reader_new(c->s->d), tc_malloc(TC_TOKEN_BLOCK * sizeof *at->token), tc_malloc(TC_TOKEN_BLOCK) };
  uint32_t *token = at->token;
  TC_TRY(tc_token_set_read(c->s, at->r, f, from, n, token, err));
  for (int64_t k = 0; k < n; k++) {
    most = TC_MAX(most, token[k]);
    ends += token[k] == end;
  }
  atomic_fetch_add(&c->ends[i], ends);
  atomic_fetch_add(&c->tokens, n);
  if (thread == 0) say_progress(c);
  if (c->weighted[i]) TC_TRY(check_weights(c, f->is.name, from, n, at->weight, err));
  for (int64_t k = 0; most >= c->vocab[i] && k < n; k++)
    if (token[k] >= c->vocab[i])
      return tc_fail(err, TC_EUSER, "data file '%s': token %u at place %lld (byte %lld) is not below the vocabulary's "
                     "size, %lld", f->is.name, token[k], (long long)(from + k),
                     (long long)(f->is.header + (from + k) * f->is.width), (long long)c->vocab[i]);
  return TC_OK;
}

static int check_blocks(struct check *c, int threads, struct tc_err *err)
{
  if (!threads) threads = tc_cpus();
  c->reader = tc_calloc((size_t)threads, sizeof *c->reader);
  c->told_ns = c->started_ns = tc_now_ns();
  const int status = tc_each(c->first[c->s->n], threads, check_block, c, err);
  for (int i = 0; i < threads; i++) {
    TC_FREE(c->reader[i].token, c->reader[i].weight);
    tc_reader_free(c->reader[i].r);
  }
  free(c->reader);
  return status;
}

/* ---- all of it ----------------------------------------------------------------------------- */

/* What tokens must be below: as given, the tokenizer's, or the header's. */
static int find_vocab(int64_t *vocab, const struct tc_token_set *s, struct tc_err *err)
{
  for (int i = 0; i < s->n; i++) {
    const struct tc_token_set_file *f = &s->file[i];
    vocab[i] = s->o.vocab >= 0 ? s->o.vocab : f->t ? tc_tokenizer_vocab(f->t) : f->is.marked ? f->is.vocab : -1;
    if (vocab[i] < 0)
      return tc_fail(err, TC_EUSER, "data file '%s' does not say its vocabulary's size; name it by --vocab N or "
                     "--tokenizer FILE, or give --tokenizer bytes if a token is a byte", f->is.name);
  }
  return TC_OK;
}

/* Which files have weights beside them. */
static bool find_weights(bool *weighted, const struct tc_token_set *s)
{
  bool any = false;
  for (int i = 0; i < s->n; i++) {
    char *path = tc_weights_path(s->file[i].is.name);
    weighted[i] = tc_is_there(path) == 1;       /* a failure was one when the files were opened */
    any |= weighted[i];
    free(path);
  }
  return any;
}

/* Counts documents as the files say, or by their end-of-document tokens. */
static int64_t count_documents(const struct check *c)
{
  int64_t documents = 0;
  for (int i = 0; i < c->s->n; i++) {
    const struct tc_data_file *f = &c->s->file[i].is;
    if (f->documents < 0 && f->end_token < 0) return -1;
    documents += f->documents >= 0 ? f->documents : atomic_load(&c->ends[i]);
  }
  return documents;
}

int tc_token_set_check(struct tc_token_check *out, const struct tc_token_set *s, int threads, struct tc_err *err)
{
  out->vocab = tc_calloc((size_t)s->n, sizeof *out->vocab);
  TC_TRY(find_vocab(out->vocab, s, err));
  struct check c = { .s = s, .vocab = out->vocab };
  c.first = tc_calloc((size_t)s->n + 1, sizeof *c.first);
  c.ends = tc_calloc((size_t)s->n, sizeof *c.ends);
  for (int i = 0; i < s->n; i++) c.first[i + 1] = c.first[i] + tc_ceil_div(s->file[i].is.tokens, TC_TOKEN_BLOCK);
  c.weighted = tc_calloc((size_t)s->n, sizeof *c.weighted);
  out->weighted = find_weights(c.weighted, s);
  atomic_init(&c.tokens, 0);
  atomic_init(&c.counted, 0);
  atomic_init(&c.samples, 0);
  const int status = check_blocks(&c, threads, err);
  out->documents = count_documents(&c);
  out->counted = atomic_load(&c.counted);
  out->samples = atomic_load(&c.samples);
  TC_FREE(c.first, c.ends, c.weighted);
  return status;
}
