/* view.c - `tercio data show|check|decode`: what is in shards. */
#include "src/cmd/data/data.h"
#include "io/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const int64_t PROGRESS_NS = INT64_C(2000000000);
enum { BLOCK = 1 << 18, FIRST = 16, BYTES = 256 };             /* tokens */
#define TC_BYTES "bytes"          /* for --tokenizer */

struct shard { char *path; struct tc_shard_header header; };

/* What a thread reads tokens with. One shard is open at a time: a folder may have more than a process may open. */
struct reader {
  const struct shard *shard;      /* the open one; NULL: none */
  int fd;
  uint32_t *token;                /* [BLOCK]; owned */
};

enum { SHOW = 1, CHECK = 2, DECODE = 4 };                       /* verbs */

struct view {
  int verb;
  struct shard *shard;            /* [n]; owned */
  int n;
  const char *tokenizer_path;     /* NULL: beside the first shard; TC_BYTES: none */
  struct tc_tokenizer *t;         /* NULL: none, or not needed */
  bool bytes;                     /* a token is a byte */
  int64_t from, count, vocab;     /* from, count: tokens of all shards, one after the other; count, vocab < 0: not given */
  int threads;
};

static void add(struct view *v, char *path)
{
  v->shard = tc_realloc(v->shard, (size_t)(v->n + 1) * sizeof *v->shard);
  v->shard[v->n++] = (struct shard){ .path = path };
}

/* A shard, or the files *.bin of a folder in their order, as data.train takes them. */
static int add_named(struct view *v, const char *name, struct tc_err *err)
{
  struct stat st;
  char **names;
  if (stat(name, &st) != 0 || !S_ISDIR(st.st_mode)) return add(v, tc_strdup(name)), TC_OK;
  const int n = tc_folder_scan(name, "", &names, err), before = v->n;
  if (n < 0) return n;
  if (n) qsort(names, (size_t)n, sizeof *names, tc_order_text);
  for (int i = 0; i < n; i++) {
    const size_t len = strlen(names[i]);
    if (names[i][0] != '.' && len > 4 && strcmp(names[i] + len - 4, ".bin") == 0) add(v, tc_sprintf("%s/%s", name, names[i]));
  }
  tc_names_free(names, n);
  return v->n > before ? TC_OK : tc_fail(err, TC_EUSER, "folder '%s' has no files *.bin", name);
}

static int open_shard(const struct shard *s, struct tc_err *err)
{
  const int fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);      /* a FIFO must not block */
  return fd >= 0 ? fd : tc_fail(err, TC_EUSER, "shard '%s' can't be opened: %s", s->path, strerror(errno));
}

static int read_header_of(int fd, struct shard *s, struct tc_err *err)
{
  int32_t header[TC_SHARD_INTS];
  struct stat st;
  if (fstat(fd, &st) != 0) return tc_fail(err, TC_EUSER, "shard '%s' can't be opened: %s", s->path, strerror(errno));
  if (!S_ISREG(st.st_mode) || st.st_size < TC_SHARD_BYTES)
    return tc_fail(err, TC_EUSER, "'%s' is not a token shard: it is shorter than a header", s->path);
  if (!tc_pread_all(fd, header, sizeof header, 0))
    return tc_fail(err, TC_EUSER, "shard '%s' can't be read: %s", s->path, strerror(errno));
  return tc_shard_unpack(&s->header, header, st.st_size, s->path, err);
}

static int read_header(struct shard *s, struct tc_err *err)
{
  const int fd = open_shard(s, err);
  if (fd < 0) return fd;
  const int status = read_header_of(fd, s, err);
  close(fd);
  return status;
}

static int number(const char *flag, const char *text, int64_t *out, struct tc_err *err)
{
  char *end;
  errno = 0;
  *out = strtoll(text, &end, 10);
  if (*end || end == text || errno || *out < 0)
    return tc_fail(err, TC_EUSER, "%s %.40s: give a whole number, 0 or more", flag, text);
  return TC_OK;
}

/* The options, and the verbs that take each. */
enum option { TOKENIZER, FROM, TOKENS, VOCAB, THREADS, OPTIONS };
static const struct { const char *name; int verbs; } options[OPTIONS] = {
  [TOKENIZER] = { "--tokenizer", SHOW | CHECK | DECODE }, [FROM] = { "--from", SHOW | DECODE },
  [TOKENS] = { "--tokens", SHOW | DECODE }, [VOCAB] = { "--vocab", CHECK }, [THREADS] = { "--threads", CHECK },
};

/* An option at argv[*i], with its value. */
static int option(struct view *v, int argc, char **argv, int *i, struct tc_err *err)
{
  const char *a = argv[*i], *value = NULL;
  int k = 0;
  for (; k < OPTIONS; k++) {
    value = tc_data_option(argc, argv, i, options[k].name, err);
    if (err->status < 0) return err->status;
    if (value) break;
  }
  if (!value || !(options[k].verbs & v->verb))
    return tc_fail(err, TC_EUSER, "tercio data %s has no option '%s'; see tercio data --help", argv[0], a);
  switch ((enum option)k) {
  case TOKENIZER: v->tokenizer_path = value; return TC_OK;
  case FROM: return number(options[k].name, value, &v->from, err);
  case TOKENS: return number(options[k].name, value, &v->count, err);
  case VOCAB: return number(options[k].name, value, &v->vocab, err);
  default: return tc_data_threads(value, &v->threads, err);
  }
}

static int64_t count_tokens(const struct view *v)
{
  int64_t tokens = 0;
  for (int i = 0; i < v->n; i++) tokens += v->shard[i].header.n_tokens;
  return tokens;
}

static int parse(struct view *v, int argc, char **argv, struct tc_err *err)
{
  bool names_only = false;
  for (int i = 1; i < argc; i++) {
    if (!names_only && strcmp(argv[i], "--") == 0) names_only = true;
    else if (names_only || argv[i][0] != '-') TC_TRY(add_named(v, argv[i], err));
    else TC_TRY(option(v, argc, argv, &i, err));
  }
  if (!v->n) return tc_fail(err, TC_EUSER, "no shards; see tercio data --help");
  for (int i = 0; i < v->n; i++) TC_TRY(read_header(&v->shard[i], err));
  if (v->from && v->from >= count_tokens(v))
    return tc_fail(err, TC_EUSER, "--from %lld: the shards have %lld tokens, counted from 0", (long long)v->from,
                   (long long)count_tokens(v));
  return TC_OK;
}

/* Whether the shard may be of the tokenizer (or of bytes) that was found: its header names no other. */
static bool may_be_of(const struct view *v, const struct tc_shard_header *h)
{
  return !h->marked || h->hash == (v->t ? tc_tokenizer_hash(v->t) : 0);
}

/* path: of the tokenizer. */
static int check_shards(const struct view *v, const char *path, struct tc_err *err)
{
  for (int i = 0; i < v->n && (v->t || v->bytes); i++) {
    const struct tc_shard_header *h = &v->shard[i].header;
    if (may_be_of(v, h)) continue;
    if (v->bytes)
      return tc_fail(err, TC_EUSER, "shard '%s' was made with a tokenizer: its tokens are not bytes", v->shard[i].path);
    return tc_fail(err, TC_EUSER, "shard '%s' was made %s '%s'", v->shard[i].path,
                   h->hash ? "with another tokenizer than" : "without a tokenizer, not with", path);
  }
  return TC_OK;
}

/* Reads the tokenizer that was named, or the one beside the first shard if it is there or needed; all shards must
 * be of it. A shard of bytes needs none. To show headers no tokenizer is needed: one that does not fit them, or lies
 * beside them and can't be read, is no error. */
static int load_tokenizer(struct view *v, struct tc_err *err)
{
  const struct tc_shard_header *first = &v->shard[0].header;
  char *dir = tc_folder_of(v->shard[0].path), *beside = tc_sprintf("%s/%s", dir, TC_DATA_TOKENIZER);
  const char *path = v->tokenizer_path ? v->tokenizer_path : beside;
  int status = TC_OK;
  v->bytes = v->tokenizer_path ? strcmp(path, TC_BYTES) == 0 : first->marked && !first->hash;
  if (!v->bytes && (v->tokenizer_path || access(beside, F_OK) == 0)) status = tc_tokenizer_load(&v->t, path, err);
  else if (!v->bytes && v->verb == DECODE)
    status = tc_fail(err, TC_EUSER, "there is no %s beside shard '%s'; name it by --tokenizer, or --tokenizer bytes if a "
                     "token is a byte", TC_DATA_TOKENIZER, v->shard[0].path);
  if (status < 0 && v->verb == SHOW && !v->tokenizer_path) {
    tc_log("%s; tokens are shown without their texts", err->text);
    *err = (struct tc_err){ 0 };
    status = TC_OK;
  }
  if (status == TC_OK && v->verb != SHOW) status = check_shards(v, path, err);
  free(beside);
  free(dir);
  return status;
}

static struct reader reader_new(void) { return (struct reader){ .token = tc_malloc(BLOCK * sizeof(uint32_t)) }; }

static void reader_close(struct reader *r)
{
  if (r->shard) close(r->fd);
  r->shard = NULL;
}

static void reader_free(struct reader *r)
{
  reader_close(r);
  free(r->token);
}

/* Tokens [from, from + n) of a shard, n <= BLOCK, into r->token. */
static int read_tokens(struct reader *r, const struct shard *s, int64_t from, int64_t n, struct tc_err *err)
{
  const int width = s->header.width;
  uint32_t *out = r->token;
  if (r->shard != s) {
    reader_close(r);
    r->fd = open_shard(s, err);
    if (r->fd < 0) return r->fd;
    r->shard = s;
  }
  uint16_t *u16 = (uint16_t *)(void *)out + (width == 2 ? n : 0);     /* the upper half of out, widened from below */
  if (!tc_pread_all(r->fd, width == 2 ? (void *)u16 : out, n * width, TC_SHARD_BYTES + from * width))
    return tc_fail(err, TC_EUSER, "shard '%s' can't be read at token %lld: %s", s->path, (long long)from,
                   errno ? strerror(errno) : "it became shorter");
  if (width == 2)
    for (int64_t i = 0; i < n; i++) out[i] = u16[i];
  return TC_OK;
}

/* The text of a token, *n bytes, which may be *byte; NULL: there is no such token. */
static const char *text_of(const struct view *v, uint32_t id, char *byte, size_t *n)
{
  if (!v->bytes) return tc_tokenizer_bytes(v->t, id, n);
  *byte = (char)id;
  *n = 1;
  return id < BYTES ? byte : NULL;
}

static void view_free(struct view *v)
{
  for (int i = 0; i < v->n; i++) free(v->shard[i].path);
  free(v->shard);
  tc_tokenizer_free(v->t);
}

/* ---- show ------------------------------------------------------------------------------ */

/* A token's text in one line, with escapes. */
static void print_token(const struct view *v, uint32_t id)
{
  char byte;
  size_t n;
  const char *s = text_of(v, id, &byte, &n);
  printf(" \"");
  for (size_t i = 0; s && i < n; i++) {
    const unsigned char c = (unsigned char)s[i];
    if (c == '\n') printf("\\n");
    else if (c == '"' || c == '\\') printf("\\%c", c);
    else if (c < 0x20 || c == 0x7f || (c >= 0x80 && tc_utf8_valid(s, n) < n)) printf("\\x%02x", c);
    else putchar(c);
  }
  printf("\"");
}

/* The header, and the first tokens from `from` on. */
static int show_shard(const struct view *v, const struct shard *s, int64_t from, struct reader *r, struct tc_err *err)
{
  const struct tc_shard_header *h = &s->header;
  const int64_t n = TC_MIN(v->count < 0 ? FIRST : TC_MIN(v->count, BLOCK), h->n_tokens - from);
  printf("%s: %lld tokens of %d bytes", s->path, (long long)h->n_tokens, h->width);
  if (h->marked && !h->hash) printf(", a token is a byte");
  else if (h->marked)
    printf(", vocabulary %lld, end of document %lld, tokenizer %016llx", (long long)h->vocab, (long long)h->eod,
           (unsigned long long)h->hash);
  printf("\n");
  if (!n) return TC_OK;
  TC_TRY(read_tokens(r, s, from, n, err));
  printf(" ");
  for (int64_t i = 0; i < n; i++) printf(" %u", r->token[i]);
  printf("\n");
  if ((v->t || v->bytes) && may_be_of(v, h)) {
    printf(" ");
    for (int64_t i = 0; i < n; i++) print_token(v, r->token[i]);
    printf("\n");
  }
  return TC_OK;
}

int tc_data_show(int argc, char **argv, struct tc_err *err)
{
  struct view v = { .verb = SHOW, .count = -1, .vocab = -1 };
  struct reader r = reader_new();
  int status = parse(&v, argc, argv, err);
  if (status == TC_OK) status = load_tokenizer(&v, err);
  int64_t skip = v.from;
  for (int i = 0; i < v.n && status == TC_OK; i++) {
    const int64_t from = TC_MIN(skip, v.shard[i].header.n_tokens);
    status = show_shard(&v, &v.shard[i], from, &r, err);
    skip -= from;
  }
  if (status == TC_OK) printf("%d shard%s, %lld tokens\n", v.n, v.n == 1 ? "" : "s", (long long)count_tokens(&v));
  reader_free(&r);
  view_free(&v);
  return status;
}

/* ---- check ----------------------------------------------------------------------------- */

/* Blocks of all shards are numbered through; each thread takes the next. */
struct check {
  const struct view *v;
  const int64_t *vocab;           /* [n] of each shard */
  int64_t *first;                 /* [n + 1] the first block of each shard, and the number of all blocks; owned */
  atomic_llong next, bad_block;   /* bad_block: the first that failed; INT64_MAX: none */
  pthread_mutex_t lock;
  struct tc_err err;              /* the sentence of bad_block */
  int64_t told_ns, started_ns;    /* of progress, which one thread prints */
};

/* The shard that has the block. */
static int find_shard(const struct check *c, int64_t block)
{
  int lo = 0, hi = c->v->n - 1;
  while (lo < hi) {
    const int mid = (lo + hi + 1) / 2;
    if (c->first[mid] <= block) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

static int check_block(const struct check *c, int64_t block, struct reader *r, struct tc_err *err)
{
  const int i = find_shard(c, block);
  const struct shard *s = &c->v->shard[i];
  const int64_t from = (block - c->first[i]) * BLOCK, n = TC_MIN(s->header.n_tokens - from, BLOCK);
  const uint32_t *buf = r->token;
  uint32_t most = 0;
  TC_TRY(read_tokens(r, s, from, n, err));
  for (int64_t k = 0; k < n; k++) most = TC_MAX(most, buf[k]);
  for (int64_t k = 0; most >= c->vocab[i] && k < n; k++)
    if (buf[k] >= c->vocab[i])
      return tc_fail(err, TC_EUSER, "shard '%s': token %u at place %lld is not below the vocabulary's size, %lld",
                     s->path, buf[k], (long long)(from + k), (long long)c->vocab[i]);
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

/* A line every two seconds, `block` being the next: short work says nothing. */
static void say_progress(struct check *c, int64_t block)
{
  const int64_t now_ns = tc_now_ns(), total = c->first[c->v->n];
  if (now_ns - c->told_ns < PROGRESS_NS) return;
  c->told_ns = now_ns;
  fprintf(stderr, "tercio data: %.4g M of %.4g M tokens (%d %%), %.4g M/s\n", (double)block * BLOCK * 1e-6,
          (double)total * BLOCK * 1e-6, (int)(100 * block / total),
          (double)block * BLOCK * 1e3 / (double)(now_ns - c->started_ns));
}

/* Blocks behind one that failed can't have the first fault. */
static void check_blocks(struct check *c, bool says)
{
  struct reader r = reader_new();
  for (int64_t block; (block = atomic_fetch_add(&c->next, 1)) < TC_MIN(c->first[c->v->n], atomic_load(&c->bad_block));) {
    struct tc_err err = { 0 };
    if (check_block(c, block, &r, &err) < 0) note_fault(c, block, &err);
    if (says) say_progress(c, block);
  }
  reader_free(&r);
}

static void *check_in_thread(void *arg)
{
  check_blocks(arg, false);
  return NULL;
}

static int check_all(const struct view *v, const int64_t *vocab, struct tc_err *err)
{
  struct check c = { .v = v, .vocab = vocab, .started_ns = tc_now_ns() };
  int n = v->threads ? v->threads : tc_data_cpus(), started = 0, status = TC_OK;
  pthread_t *thread = tc_calloc((size_t)n, sizeof *thread);
  c.told_ns = c.started_ns;
  c.first = tc_calloc((size_t)v->n + 1, sizeof *c.first);
  for (int i = 0; i < v->n; i++) c.first[i + 1] = c.first[i] + tc_ceil_div(v->shard[i].header.n_tokens, BLOCK);
  atomic_init(&c.next, 0);
  atomic_init(&c.bad_block, INT64_MAX);
  pthread_mutex_init(&c.lock, NULL);
  for (; started < n - 1 && status == TC_OK; started++)
    if ((status = tc_thread_start(&thread[started], check_in_thread, &c, err)) < 0) break;
  if (status == TC_OK) check_blocks(&c, true);
  else atomic_store(&c.bad_block, -1);                        /* the threads that run end */
  for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
  pthread_mutex_destroy(&c.lock);
  free(thread);
  free(c.first);
  if (status == TC_OK && atomic_load(&c.bad_block) < INT64_MAX) status = (*err = c.err).status;
  return status;
}

/* What tokens must be below: as given, the tokenizer's, or the header's. */
static int find_vocab(const struct view *v, int64_t *vocab, struct tc_err *err)
{
  for (int i = 0; i < v->n; i++) {
    const struct tc_shard_header *h = &v->shard[i].header;
    vocab[i] = v->vocab >= 0 ? v->vocab : v->t ? tc_tokenizer_vocab(v->t) : v->bytes ? BYTES : h->marked ? h->vocab : -1;
    if (vocab[i] < 0)
      return tc_fail(err, TC_EUSER, "shard '%s' does not say its vocabulary's size; name it by --vocab N or "
                     "--tokenizer FILE, or give --tokenizer bytes if a token is a byte", v->shard[i].path);
  }
  return TC_OK;
}

static void say_checked(const struct view *v, const int64_t *vocab)
{
  bool same = true;
  for (int i = 1; i < v->n; i++) same &= vocab[i] == vocab[0];
  for (int i = 0; i < v->n && !same; i++)
    printf("%s: %lld tokens, all below %lld\n", v->shard[i].path, (long long)v->shard[i].header.n_tokens,
           (long long)vocab[i]);
  printf("%d shard%s, %lld tokens", v->n, v->n == 1 ? "" : "s", (long long)count_tokens(v));
  if (same) printf(": all are below %lld", (long long)vocab[0]);
  printf("\n");
}

int tc_data_check_tokens(int argc, char **argv, struct tc_err *err)
{
  struct view v = { .verb = CHECK, .count = -1, .vocab = -1 };
  int64_t *vocab = NULL;
  int status = parse(&v, argc, argv, err);
  if (status == TC_OK) status = load_tokenizer(&v, err);
  if (status == TC_OK) {
    vocab = tc_calloc((size_t)v.n, sizeof *vocab);
    status = find_vocab(&v, vocab, err);
  }
  if (status == TC_OK) status = check_all(&v, vocab, err);
  if (status == TC_OK) say_checked(&v, vocab);
  free(vocab);
  view_free(&v);
  return status;
}

/* ---- decode ---------------------------------------------------------------------------- */

static int decode_tokens(const struct view *v, const struct shard *s, int64_t from, int64_t n, struct reader *r,
                         struct tc_err *err)
{
  while (n > 0) {
    const int64_t k = TC_MIN(n, BLOCK);
    TC_TRY(read_tokens(r, s, from, k, err));
    for (int64_t i = 0; i < k; i++) {
      char byte;
      size_t bytes;
      const char *text = text_of(v, r->token[i], &byte, &bytes);
      if (!text)
        return tc_fail(err, TC_EUSER, "shard '%s': %s %u, which is at place %lld", s->path,
                       v->bytes ? "no byte is" : "the tokenizer has no token", r->token[i], (long long)(from + i));
      fwrite(text, 1, bytes, stdout);
    }
    from += k;
    n -= k;
  }
  return TC_OK;
}

int tc_data_decode(int argc, char **argv, struct tc_err *err)
{
  struct view v = { .verb = DECODE, .count = -1, .vocab = -1 };
  struct reader r = reader_new();
  int status = parse(&v, argc, argv, err);
  if (status == TC_OK) status = load_tokenizer(&v, err);
  int64_t skip = v.from, left = v.count < 0 ? INT64_MAX : v.count;
  for (int i = 0; i < v.n && status == TC_OK && !ferror(stdout); i++) {
    const int64_t here = v.shard[i].header.n_tokens, from = TC_MIN(skip, here), n = TC_MIN(left, here - from);
    status = decode_tokens(&v, &v.shard[i], from, n, &r, err);
    skip -= from;
    left -= n;
  }
  reader_free(&r);
  view_free(&v);
  return status;
}
