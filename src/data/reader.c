/* reader.c - token files as one stream of tokens, and samples copied out of it (order.c says which).
 *
 * Invariants:
 * - token i of the stream is in the file with first <= i < first + n_tokens;
 * - this part of the stream is [lo, hi), hi - lo >= context + 1, and every token in it is
 *   < vocab: checked at open, and again in what is read, since files may change;
 * - tokens are read with pread, not through a memory map: a file that shrinks or fails is then
 *   a sentence, where a map would end the process with SIGBUS;
 * - at most MAX_OPEN files are open. A file that is opened again must be the one of the start. */
#include "src/data/data.h"
#include "src/data/order.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HEADER_INTS = 256, HEADER_BYTES = HEADER_INTS * 4, BIN_MAGIC = 20240520, BIN_VERSION = 1 };
enum { MAX_OPEN = 8 };         /* of each list and rank */

struct token_file {
  char *name;              /* owned */
  int fd;                  /* -1: closed */
  uint64_t used;           /* the number of its last use; see file_fd */
  struct stat was;         /* when it was opened first */
  int64_t first;           /* place of its first token in the stream */
  int64_t n_tokens;
};

struct tc_data {
  struct token_file *file;   /* [n_files]; owned */
  int n_files, n_open;
  uint64_t uses;
  int width, header;         /* bytes of a token, and before the first */
  int64_t lo, hi;            /* the part in use, in tokens of the stream */
  int64_t context, vocab;
  struct tc_data_identity identity;   /* when it was first asked for; tokens 0: not yet */
  uint8_t *raw;              /* [context + 1] tokens as in the file; owned */
  int32_t *sample;           /* [context + 1]; owned */
};

/* ---- files --------------------------------------------------------------------------- */

static bool same_time(const struct timespec *a, const struct timespec *b)
{
  return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Fails if the file is not that of the start. Its ctime may differ: a change of mode, owner or links
 * does not change the contents. */
static int compare(const struct token_file *f, const struct stat *now, struct tc_err *err)
{
  const struct stat *was = &f->was;
  if (now->st_size != was->st_size)
    return tc_fail(err, TC_EUSER, "data file '%s' changed during the run: it had %lld bytes and "
                   "has %lld", f->name, (long long)was->st_size, (long long)now->st_size);
  if (now->st_dev != was->st_dev || now->st_ino != was->st_ino)
    return tc_fail(err, TC_EUSER, "data file '%s' was replaced by another file during the run",
                   f->name);
  if (!same_time(&now->st_mtim, &was->st_mtim)) {
    char at[32] = "";
    struct tm tm;
    if (localtime_r(&now->st_mtim.tv_sec, &tm)) strftime(at, sizeof at, "%Y-%m-%d %H:%M:%S", &tm);
    return tc_fail(err, TC_EUSER, "data file '%s' was modified during the run, at %s", f->name, at);
  }
  return TC_OK;
}

static int fail_removed(const struct token_file *f, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "data file '%s' was removed or renamed during the run", f->name);
}

static int check_kind(const struct token_file *f, const struct stat *st, struct tc_err *err)
{
  if (S_ISDIR(st->st_mode))
    return tc_fail(err, TC_EUSER, "data file '%s' is a folder; name the files in it", f->name);
  if (!S_ISREG(st->st_mode))
    return tc_fail(err, TC_EUSER, "data file '%s' is not a regular file", f->name);
  if (st->st_size == 0)
    return tc_fail(err, TC_EUSER, "data file '%s' is empty; remove it from the list or fill it",
                   f->name);
  return TC_OK;
}

static void close_file(struct tc_data *d, struct token_file *f)
{
  close(f->fd);
  f->fd = -1;
  d->n_open--;
}

/* Closes the file whose last use is longest ago. */
static void close_oldest(struct tc_data *d)
{
  struct token_file *oldest = NULL;
  for (int i = 0; i < d->n_files; i++) {
    struct token_file *f = &d->file[i];
    if (f->fd >= 0 && (!oldest || f->used < oldest->used)) oldest = f;
  }
  if (oldest) close_file(d, oldest);
}

static int open_file(struct tc_data *d, struct token_file *f, struct tc_err *err)
{
  struct stat st;
  const bool again = f->n_tokens > 0;
  if (d->n_open >= MAX_OPEN) close_oldest(d);
  do {
    f->fd = open(f->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);   /* a FIFO must not block */
    if (f->fd >= 0 || (errno != EMFILE && errno != ENFILE) || !d->n_open) break;
    close_oldest(d);
  } while (true);
  if (f->fd < 0 && errno == ENOENT && again)
    return fail_removed(f, err);
  if (f->fd < 0 && errno == ENOENT)
    return tc_fail(err, TC_EUSER, "data file '%s' does not exist; names are separated by "
                   "blanks, and relative to the folder the run starts in", f->name);
  if (f->fd < 0)
    return tc_fail(err, TC_EUSER, "data file '%s' can't be opened: %s; see its owner and mode",
                   f->name, strerror(errno));
  d->n_open++;
  int status = TC_OK;
  if (fstat(f->fd, &st) != 0)
    status = tc_fail(err, TC_EUSER, "data file '%s': %s", f->name, strerror(errno));
  else status = again ? compare(f, &st, err) : check_kind(f, &st, err);
  if (status != TC_OK) close_file(d, f);
  else if (!again) f->was = st;
  return status;
}

/* bytes at `offset` of a file, into buf. */
static int read_at(struct tc_data *d, struct token_file *f, void *buf, int64_t bytes,
                   int64_t offset, struct tc_err *err)
{
  if (f->fd < 0) TC_TRY(open_file(d, f, err));
  f->used = ++d->uses;
  for (int64_t got = 0; got < bytes;) {
    ssize_t n = pread(f->fd, (char *)buf + got, (size_t)(bytes - got), (off_t)(offset + got));
    if (n > 0) got += n;
    else if (n == 0)
      return tc_fail(err, TC_EUSER, "data file '%s' ends at byte %lld, but it had %lld bytes when "
                     "it was opened: it was truncated", f->name, (long long)(offset + got),
                     (long long)f->was.st_size);
    else if (errno != EINTR)
      return tc_fail(err, TC_EUSER, "data file '%s' can't be read at byte %lld: %s", f->name,
                     (long long)(offset + got), strerror(errno));
  }
  return TC_OK;
}

/* After a change of ctime alone, of which `warn` gives a warning. */
static int check_identity(struct tc_data *d, const struct token_file *f, bool warn,
                          struct tc_err *err)
{
  struct tc_data_identity was = d->identity, now;
  TC_TRY(tc_data_identity(d, &now, err));
  if (was.tokens && now.hash != was.hash)
    return tc_fail(err, TC_EUSER, "data file '%s' was modified during the run, and its time of "
                   "modification set back", f->name);
  if (warn)
    tc_warn("data file '%s': its mode, owner, name or links changed during the run; by its size "
            "and its time of modification the contents did not, so the run goes on", f->name);
  return TC_OK;
}

int tc_data_check(struct tc_data *d, bool warn, struct tc_err *err)
{
  for (int i = 0; i < d->n_files; i++) {
    struct token_file *f = &d->file[i];
    struct stat now;
    if (stat(f->name, &now) != 0)
      return errno == ENOENT ? fail_removed(f, err)
                             : tc_fail(err, TC_EUSER, "data file '%s': %s", f->name,
                                       strerror(errno));
    TC_TRY(compare(f, &now, err));
    if (!same_time(&now.st_ctim, &f->was.st_ctim)) TC_TRY(check_identity(d, f, warn, err));
    f->was.st_ctim = now.st_ctim;
  }
  return TC_OK;
}

/* ---- opening ------------------------------------------------------------------------- */

/* Checks llm.c's header and finds the number of tokens. */
static int read_header(struct tc_data *d, struct token_file *f, struct tc_err *err)
{
  int32_t header[3];
  const int64_t size = f->was.st_size;
  if (size < HEADER_BYTES)
    return tc_fail(err, TC_EUSER, "data file '%s' is too short for a token shard: %lld bytes, its "
                   "header alone has %d; text needs data.format = text", f->name, (long long)size,
                   HEADER_BYTES);
  TC_TRY(read_at(d, f, header, sizeof header, 0, err));
  if (header[0] != BIN_MAGIC)
    return tc_fail(err, TC_EUSER, "data file '%s' is not a token shard: it begins with %d, not "
                   "%d; text needs data.format = text, or `tercio data` first", f->name,
                   header[0], BIN_MAGIC);
  if (header[1] != BIN_VERSION)
    return tc_fail(err, TC_EUSER, "data file '%s' is a token shard of version %d; only version "
                   "%d (uint16 tokens) can be read", f->name, header[1], BIN_VERSION);
  if (header[2] < 0 || (int64_t)header[2] * 2 != size - HEADER_BYTES)
    return tc_fail(err, TC_EUSER, "data file '%s' says it has %d tokens, but its size holds %.10g: "
                   "truncated or damaged; make or copy it again", f->name, header[2],
                   (double)(size - HEADER_BYTES) / 2);
  if (header[2] == 0)
    return tc_fail(err, TC_EUSER, "data file '%s' is empty: a token shard of 0 tokens", f->name);
  f->n_tokens = header[2];
  return TC_OK;
}

static int open_files(struct tc_data *d, char *const *files, struct tc_err *err)
{
  int64_t first = 0;
  for (int i = 0; i < d->n_files; i++) {
    struct token_file *f = &d->file[i];
    f->name = tc_strdup(files[i]);
    TC_TRY(open_file(d, f, err));
    if (d->header) TC_TRY(read_header(d, f, err));
    else f->n_tokens = f->was.st_size;
    f->first = first;
    first += f->n_tokens;
  }
  return TC_OK;
}

/* The index of the first of n tokens at `raw` that is >= vocab, or -1. The maximum is found
 * first: that loop runs at the speed of memory. */
static int64_t find_token(const struct tc_data *d, const void *raw, int64_t n)
{
  const uint16_t *u16 = raw;
  const uint8_t *u8 = raw;
  uint16_t max = 0;
  if (d->width == 2)
    for (int64_t i = 0; i < n; i++) max = TC_MAX(max, u16[i]);
  else
    for (int64_t i = 0; i < n; i++) max = TC_MAX(max, u8[i]);
  if (max < d->vocab) return -1;
  for (int64_t i = 0; i < n; i++)
    if ((d->width == 2 ? u16[i] : u8[i]) >= d->vocab) return i;
  return -1;
}

/* Tokens [from, from + n) of a file, as they are there. `why`: what a token that is too large
 * means. */
static int read_tokens(struct tc_data *d, struct token_file *f, int64_t from, int64_t n, void *raw,
                       const char *why, struct tc_err *err)
{
  TC_TRY(read_at(d, f, raw, n * d->width, d->header + from * d->width, err));
  int64_t i = find_token(d, raw, n);
  if (i < 0) return TC_OK;
  int token = d->width == 2 ? ((uint16_t *)raw)[i] : ((uint8_t *)raw)[i];
  return tc_fail(err, TC_EUSER, "data file '%s': token %d at place %lld (byte %lld) is not below "
                 "model.vocab = %lld; %s", f->name, token, (long long)(from + i),
                 (long long)(d->header + (from + i) * d->width), (long long)d->vocab, why);
}

static int check_tokens(struct tc_data *d, struct tc_err *err)
{
  enum { BLOCK = 1 << 17 };
  if (d->vocab > (d->width == 2 ? UINT16_MAX : UINT8_MAX)) return TC_OK;
  void *raw = tc_malloc((size_t)BLOCK * 2);
  int status = TC_OK;
  for (int i = 0; i < d->n_files && status == TC_OK; i++) {
    struct token_file *f = &d->file[i];
    int64_t from = TC_MAX(d->lo - f->first, 0), to = TC_MIN(d->hi - f->first, f->n_tokens);
    for (; from < to && status == TC_OK; from += BLOCK)
      status = read_tokens(d, f, from, TC_MIN(to - from, BLOCK), raw,
                           "was the file made with another tokenizer?", err);
  }
  free(raw);
  return status;
}

static int choose_part(struct tc_data *d, int part, struct tc_err *err)
{
  static const char *const what[] = { "", " in the training part (the first 95 %)",
                                      " in the validation part (the last 5 %)" };
  const struct token_file *last = &d->file[d->n_files - 1];
  int64_t total = last->first + last->n_tokens;
  int64_t cut = total / 100 * 95 + total % 100 * 95 / 100;
  d->lo = part == 2 ? cut : 0;
  d->hi = part == 1 ? cut : total;
  if (d->hi - d->lo > d->context) return TC_OK;
  return tc_fail(err, TC_EUSER, "%s%s: too few tokens%s: %lld, but a sample of model.context = %lld "
                 "needs one more than the context; give more text or a shorter context",
                 d->file[0].name, d->n_files > 1 ? " and the files after it" : "", what[part],
                 (long long)(d->hi - d->lo), (long long)d->context);
}

static int fill(struct tc_data *d, char *const *files, enum tc_data_format format, int part,
                struct tc_err *err)
{
  const bool bin = format == TC_FORMAT_BIN;
  d->width = bin ? 2 : 1;
  d->header = bin ? HEADER_BYTES : 0;
  TC_TRY(open_files(d, files, err));
  TC_TRY(choose_part(d, part, err));
  d->raw = tc_malloc((size_t)((d->context + 1) * d->width));
  d->sample = tc_malloc((size_t)(d->context + 1) * sizeof *d->sample);
  return check_tokens(d, err);
}

int tc_data_open(struct tc_data **out, char *const *files, int n_files, enum tc_data_format format,
                 int part, int64_t context, int64_t vocab, struct tc_err *err)
{
  *out = NULL;
  TC_ASSERT(part >= 0 && part <= 2 && context >= 1 && vocab >= 1);
  if (n_files < 1)
    return tc_fail(err, TC_EUSER, "no data files; set data.train to one or more of them");
  struct tc_data *d = tc_calloc(1, sizeof *d);
  d->file = tc_calloc((size_t)n_files, sizeof *d->file);
  d->n_files = n_files;
  for (int i = 0; i < n_files; i++) d->file[i].fd = -1;
  d->context = context;
  d->vocab = vocab;
  int status = fill(d, files, format, part, err);
  if (status != TC_OK) {
    tc_data_free(d);
    return status;
  }
  *out = d;
  return TC_OK;
}

void tc_data_free(struct tc_data *d)
{
  if (!d) return;
  for (int i = 0; i < d->n_files; i++) {
    if (d->file[i].fd >= 0) close_file(d, &d->file[i]);
    free(d->file[i].name);
  }
  free(d->file);
  free(d->raw);
  free(d->sample);
  free(d);
}

int64_t tc_data_tokens(const struct tc_data *d)
{
  return d->hi - d->lo;
}

/* ---- samples ------------------------------------------------------------------------- */

/* The file that has token `pos` of the stream. */
static int find_file(const struct tc_data *d, int64_t pos)
{
  int lo = 0, hi = d->n_files - 1;
  while (lo < hi) {
    int mid = (lo + hi + 1) / 2;
    if (d->file[mid].first <= pos) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

/* Tokens [pos, pos + n) of the stream into out[n], over file borders. n <= context + 1. */
static int copy_tokens(struct tc_data *d, int64_t pos, int64_t n, int32_t *out, struct tc_err *err)
{
  for (int i = find_file(d, pos); n > 0; i++) {
    TC_ASSERT(i < d->n_files);
    struct token_file *f = &d->file[i];
    int64_t from = pos - f->first, here = TC_MIN(n, f->n_tokens - from);
    TC_TRY(read_tokens(d, f, from, here, d->raw, "the file was modified during the run", err));
    if (d->width == 2)
      for (int64_t k = 0; k < here; k++) out[k] = ((uint16_t *)(void *)d->raw)[k];
    else
      for (int64_t k = 0; k < here; k++) out[k] = d->raw[k];
    out += here;
    pos += here;
    n -= here;
  }
  return TC_OK;
}

int tc_data_read(struct tc_data *d, int64_t at, int64_t n, int32_t *out, struct tc_err *err)
{
  TC_ASSERT(at >= 0 && n >= 0 && at + n <= tc_data_tokens(d));
  for (int64_t here; n > 0; at += here, out += here, n -= here) {
    here = TC_MIN(n, d->context + 1);
    TC_TRY(copy_tokens(d, d->lo + at, here, out, err));
  }
  return TC_OK;
}

/* FNV-1a (Fowler, Noll, Vo), 64 bits: over n tokens from pos, two bytes each, the low one first. */
static int hash_tokens(struct tc_data *d, int64_t pos, int64_t n, uint64_t *hash,
                       struct tc_err *err)
{
  for (int64_t end = pos + n; pos < end; pos += d->context) {
    int64_t here = TC_MIN(end - pos, d->context);
    TC_TRY(copy_tokens(d, pos, here, d->sample, err));
    for (int64_t i = 0; i < 2 * here; i++)
      *hash = (*hash ^ (uint64_t)(d->sample[i / 2] >> (i % 2 * 8) & 0xff)) *
              UINT64_C(0x100000001b3);
  }
  return TC_OK;
}

int tc_data_identity(struct tc_data *d, struct tc_data_identity *out, struct tc_err *err)
{
  enum { ENDS = 4096, PIECES = 64, PIECE = 64 };
  const int64_t n = tc_data_tokens(d), ends = TC_MIN(n, ENDS), piece = TC_MIN(n, PIECE);
  *out = (struct tc_data_identity){ n, UINT64_C(0xcbf29ce484222325) };
  TC_TRY(hash_tokens(d, d->lo, ends, &out->hash, err));
  TC_TRY(hash_tokens(d, d->hi - ends, ends, &out->hash, err));
  for (int64_t i = 0; i < PIECES; i++)
    TC_TRY(hash_tokens(d, d->lo + (n - piece) / (PIECES - 1) * i, piece, &out->hash, err));
  if (!d->identity.tokens) d->identity = *out;
  return TC_OK;
}

/* One sample: context tokens from pos, and the same shifted by one. */
static int copy_sample(struct tc_data *d, int64_t pos, int32_t *tokens, int32_t *targets,
                       struct tc_err *err)
{
  TC_TRY(copy_tokens(d, pos, d->context + 1, d->sample, err));
  memcpy(tokens, d->sample, (size_t)d->context * sizeof *tokens);
  memcpy(targets, d->sample + 1, (size_t)d->context * sizeof *targets);
  return TC_OK;
}

int tc_data_train(struct tc_data *d, uint64_t seed, int64_t step, int64_t b0, int64_t n,
                  int32_t *tokens, int32_t *targets, struct tc_err *err)
{
  for (int64_t i = 0; i < n; i++) {
    const int64_t start = tc_order_train(seed, step, b0 + i, tc_data_tokens(d), d->context);
    TC_TRY(copy_sample(d, d->lo + start, tokens + i * d->context, targets + i * d->context, err));
  }
  return TC_OK;
}

int64_t tc_data_windows(const struct tc_data *d)
{
  return tc_order_windows(tc_data_tokens(d), d->context);
}

int tc_data_window(struct tc_data *d, int64_t i, int32_t *tokens, int32_t *targets,
                   struct tc_err *err)
{
  TC_ASSERT(i >= 0 && i < tc_data_windows(d));
  return copy_sample(d, d->lo + i * d->context, tokens, targets, err);
}
