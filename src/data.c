/* data.c - token files as one stream, and which pieces of it a step takes.
 *
 * Invariants:
 * - the files are mapped read-only and never copied; token i of the stream is in the file
 *   with first <= i < first + n_tokens;
 * - this part of the stream is [lo, hi), hi - lo >= context + 1, and every token in it is
 *   < vocab: checked once, at open, so that nothing needs to be checked in a step;
 * - sequence b of step s starts at lo + floor(x * n_starts / 2^64), where x is the first 64
 *   bits of Philox(key = seed, counter = (s, b)) and n_starts = hi - lo - context the number
 *   of places a whole sample fits at. No start's probability is off by more than 2^-64. */
#include "src/data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_INTS = 256, HEADER_BYTES = HEADER_INTS * 4, BIN_MAGIC = 20240520, BIN_VERSION = 1 };

struct token_file {
  char *name;              /* owned */
  void *map;               /* owned; NULL: not mapped */
  size_t map_bytes;
  const uint8_t *u8;       /* text: the tokens */
  const uint16_t *u16;     /* bin: the tokens, after the header */
  int64_t first;           /* place of its first token in the stream */
  int64_t n_tokens;
};

struct tc_data {
  struct token_file *file;   /* [n_files]; owned */
  int n_files;
  int64_t lo, hi;            /* the part in use, in tokens of the stream */
  int64_t context;
};

/* ---- opening ------------------------------------------------------------------------- */

/* Maps a whole regular file. */
static int map_file(struct token_file *f, struct tc_err *err)
{
  struct stat st;
  int fd = open(f->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);   /* a FIFO must not block */
  if (fd < 0) {
    if (errno == ENOENT)
      return tc_fail(err, TC_EUSER, "data file '%s' does not exist; a name is relative to the "
                     "folder the run starts in", f->name);
    return tc_fail(err, TC_EUSER, "data file '%s' can't be opened: %s; see its owner and mode",
                   f->name, strerror(errno));
  }
  int status = TC_OK;
  if (fstat(fd, &st) != 0)
    status = tc_fail(err, TC_EUSER, "data file '%s': %s", f->name, strerror(errno));
  else if (S_ISDIR(st.st_mode))
    status = tc_fail(err, TC_EUSER, "data file '%s' is a folder; name the files in it", f->name);
  else if (!S_ISREG(st.st_mode))
    status = tc_fail(err, TC_EUSER, "data file '%s' is not a regular file", f->name);
  else if (st.st_size == 0)
    status = tc_fail(err, TC_EUSER, "data file '%s' is empty; remove it from the list or fill it",
                     f->name);
  if (status == TC_OK) {
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
      status = tc_fail(err, TC_EUSER, "data file '%s' can't be mapped: %s", f->name,
                       strerror(errno));
    else {
      f->map = map;
      f->map_bytes = (size_t)st.st_size;
    }
  }
  close(fd);
  return status;
}

/* Checks llm.c's header and finds the tokens. */
static int read_header(struct token_file *f, struct tc_err *err)
{
  if (f->map_bytes < HEADER_BYTES)
    return tc_fail(err, TC_EUSER, "data file '%s' is too short for a token shard: %zu bytes, its "
                   "header alone has %d; text needs data.format = text", f->name, f->map_bytes,
                   HEADER_BYTES);
  const int32_t *header = f->map;
  if (header[0] != BIN_MAGIC)
    return tc_fail(err, TC_EUSER, "data file '%s' is not a token shard: it begins with %d, not "
                   "%d; text needs data.format = text, or `tercio data` first", f->name,
                   header[0], BIN_MAGIC);
  if (header[1] != BIN_VERSION)
    return tc_fail(err, TC_EUSER, "data file '%s' is a token shard of version %d; only version "
                   "%d (uint16 tokens) can be read", f->name, header[1], BIN_VERSION);
  size_t body = f->map_bytes - HEADER_BYTES;
  if (header[2] < 0 || (size_t)header[2] * 2 != body)
    return tc_fail(err, TC_EUSER, "data file '%s' says it has %d tokens, but its size holds %.10g: "
                   "truncated or damaged; make or copy it again", f->name, header[2],
                   (double)body / 2);
  if (header[2] == 0)
    return tc_fail(err, TC_EUSER, "data file '%s' is empty: a token shard of 0 tokens", f->name);
  f->u16 = (const uint16_t *)(header + HEADER_INTS);
  f->n_tokens = header[2];
  return TC_OK;
}

static int open_files(struct tc_data *d, char *const *files, bool bin, struct tc_err *err)
{
  int64_t first = 0;
  for (int i = 0; i < d->n_files; i++) {
    struct token_file *f = &d->file[i];
    f->name = tc_strdup(files[i]);
    TC_TRY(map_file(f, err));
    if (bin)
      TC_TRY(read_header(f, err));
    else {
      f->u8 = f->map;
      f->n_tokens = (int64_t)f->map_bytes;
    }
    f->first = first;
    first += f->n_tokens;
  }
  return TC_OK;
}

/* The place of the first token >= vocab in [from, to) of the file, or -1. A block's maximum
 * is found first: that loop runs at the speed of memory. */
static int64_t find_token(const struct token_file *f, int64_t from, int64_t to, int64_t vocab)
{
  enum { BLOCK = 1 << 15 };
  for (int64_t b = from; b < to; b += BLOCK) {
    int64_t end = TC_MIN(b + BLOCK, to);
    uint16_t max = 0;
    if (f->u16)
      for (int64_t i = b; i < end; i++) max = TC_MAX(max, f->u16[i]);
    else
      for (int64_t i = b; i < end; i++) max = TC_MAX(max, f->u8[i]);
    if (max < vocab) continue;
    for (int64_t i = b; i < end; i++)
      if ((f->u16 ? f->u16[i] : f->u8[i]) >= vocab) return i;
  }
  return -1;
}

static int check_tokens(const struct tc_data *d, int64_t vocab, struct tc_err *err)
{
  for (int i = 0; i < d->n_files; i++) {
    const struct token_file *f = &d->file[i];
    if (vocab > (f->u16 ? UINT16_MAX : UINT8_MAX)) continue;
    int64_t from = TC_MAX(d->lo - f->first, 0), to = TC_MIN(d->hi - f->first, f->n_tokens);
    int64_t at = find_token(f, from, to, vocab);
    if (at < 0) continue;
    return tc_fail(err, TC_EUSER, "data file '%s': token %d at place %lld (byte %lld) is not below "
                   "model.vocab = %lld; was the file made with another tokenizer?", f->name,
                   f->u16 ? f->u16[at] : f->u8[at], (long long)at,
                   (long long)(f->u16 ? HEADER_BYTES + 2 * at : at), (long long)vocab);
  }
  return TC_OK;
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

static int fill(struct tc_data *d, char *const *files, const char *format, int part,
                int64_t vocab, struct tc_err *err)
{
  bool bin = strcmp(format, "bin") == 0;
  if (!bin && strcmp(format, "text") != 0)
    return tc_fail(err, TC_EUSER, "data.format = %s is unknown; text and bin are known", format);
  TC_TRY(open_files(d, files, bin, err));
  TC_TRY(choose_part(d, part, err));
  return check_tokens(d, vocab, err);
}

int tc_data_open(struct tc_data **out, char *const *files, int n_files, const char *format,
                 int part, int64_t context, int64_t vocab, struct tc_err *err)
{
  *out = NULL;
  TC_ASSERT(part >= 0 && part <= 2 && context >= 1 && vocab >= 1);
  if (n_files < 1)
    return tc_fail(err, TC_EUSER, "no data files; set data.train to one or more of them");
  struct tc_data *d = tc_calloc(1, sizeof *d);
  d->file = tc_calloc((size_t)n_files, sizeof *d->file);
  d->n_files = n_files;
  d->context = context;
  int status = fill(d, files, format, part, vocab, err);
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
    if (d->file[i].map) munmap(d->file[i].map, d->file[i].map_bytes);
    free(d->file[i].name);
  }
  free(d->file);
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

/* Tokens [pos, pos + n) of the stream into out[n], over file borders. */
static void copy_tokens(const struct tc_data *d, int64_t pos, int64_t n, int32_t *out)
{
  for (int i = find_file(d, pos); n > 0; i++) {
    TC_ASSERT(i < d->n_files);
    const struct token_file *f = &d->file[i];
    int64_t from = pos - f->first, here = TC_MIN(n, f->n_tokens - from);
    if (f->u16)
      for (int64_t k = 0; k < here; k++) out[k] = f->u16[from + k];
    else
      for (int64_t k = 0; k < here; k++) out[k] = f->u8[from + k];
    out += here;
    pos += here;
    n -= here;
  }
}

/* FNV-1a (Fowler, Noll, Vo), 64 bits: over n tokens from pos, two bytes each, the low one first. */
static uint64_t hash_tokens(const struct tc_data *d, int64_t pos, int64_t n, uint64_t hash)
{
  int32_t token[512];
  for (int64_t end = pos + n; pos < end; pos += 512) {
    int64_t here = TC_MIN(end - pos, 512);
    copy_tokens(d, pos, here, token);
    for (int64_t i = 0; i < 2 * here; i++)
      hash = (hash ^ (uint64_t)(token[i / 2] >> (i % 2 * 8) & 0xff)) * UINT64_C(0x100000001b3);
  }
  return hash;
}

int tc_data_identity(struct tc_data *d, struct tc_data_identity *out, struct tc_err *err)
{
  enum { ENDS = 4096, PIECES = 64, PIECE = 64 };
  const int64_t n = tc_data_tokens(d), ends = TC_MIN(n, ENDS), piece = TC_MIN(n, PIECE);
  (void)err;
  out->tokens = n;
  out->hash = hash_tokens(d, d->lo, ends, UINT64_C(0xcbf29ce484222325));
  out->hash = hash_tokens(d, d->hi - ends, ends, out->hash);
  for (int64_t i = 0; i < PIECES; i++)
    out->hash = hash_tokens(d, d->lo + (n - piece) / (PIECES - 1) * i, piece, out->hash);
  return TC_OK;
}

/* floor(a * n / 2^64): a uniform 64-bit number to one below n. */
static uint64_t multiply_shift(uint64_t a, uint64_t n)
{
  __extension__ typedef unsigned __int128 u128;
  return (uint64_t)((u128)a * n >> 64);
}

/* One sample: context tokens from pos, and the same shifted by one. */
static void copy_sample(const struct tc_data *d, int64_t pos, int32_t *tokens, int32_t *targets)
{
  copy_tokens(d, pos, d->context, tokens);
  memcpy(targets, tokens + 1, (size_t)(d->context - 1) * sizeof *targets);
  copy_tokens(d, pos + d->context, 1, targets + d->context - 1);
}

void tc_data_train(const struct tc_data *d, uint64_t seed, int64_t step, int64_t b0, int64_t n,
                   int32_t *tokens, int32_t *targets)
{
  uint64_t n_starts = (uint64_t)(d->hi - d->lo - d->context);
  for (int64_t i = 0; i < n; i++) {
    uint32_t r[4];
    tc_philox(r, seed, (uint64_t)step, (uint64_t)(b0 + i));
    int64_t start = (int64_t)multiply_shift((uint64_t)r[1] << 32 | r[0], n_starts);
    copy_sample(d, d->lo + start, tokens + i * d->context, targets + i * d->context);
  }
}

int64_t tc_data_windows(const struct tc_data *d)
{
  return (d->hi - d->lo - 1) / d->context;
}

void tc_data_window(const struct tc_data *d, int64_t i, int32_t *tokens, int32_t *targets)
{
  TC_ASSERT(i >= 0 && i < tc_data_windows(d));
  copy_sample(d, d->lo + i * d->context, tokens, targets);
}
