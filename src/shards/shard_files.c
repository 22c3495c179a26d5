/* shard_files.c - ids into shards: shard-00000.bin, shard-00001.bin, ... of a folder, or one file.
 *
 * A shard has its name only when it is whole and on the disk (src/files/output.h). Tokens are uint16, or, for vocabularies
 * of over 65,536, uint32 (src/data/shard.h). */
#include "src/shards/impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_TOKENS = 1 << 16 };

/* As llm.c's two kinds begin (20240520 and 20240801). */
static const struct tc_output_kind shard = { "a token shard", { "\x88\xd8\x34\x01", "\xa1\xd9\x34\x01" } };

/* ---- shards ---------------------------------------------------------------------------- */

static struct tc_output_opts options(const struct tc_shard_files *s)
{
  return (struct tc_output_opts){ .kind = &shard, .kept = s->kept, .n_kept = s->n_kept, .flag = s->single ? "-o" : NULL };
}

int tc_shard_files_check_single(const struct tc_shard_files *s, struct tc_err *err)
{
  const struct tc_output_opts o = options(s);
  return tc_output_check(s->out, &o, err);
}

/* The file of weights, if there is one. */
static const struct tc_output_kind weights = { "a file of weights", { TC_WEIGHTS_MAGIC } };

static char *shard_name(const char *dir, int number) { return tc_sprintf("%s/shard-%05d.bin", dir, number); }

/* A finished shard with the header h. */
static int check_shard(const char *path, const struct tc_shard_header *h, struct tc_err *err)
{
  int32_t want[TC_SHARD_INTS], header[TC_SHARD_INTS];
  struct stat st;
  const int fd = tc_open_stat(path, &st);
  if (fd < 0)
    return tc_fail(err, TC_EUSER, "shard '%s', which is finished according to data.json beside it, can't be opened: "
                   "%s; put it back, or remove the folder and make all shards again", path, strerror(errno));
  tc_shard_pack(h, want);
  const bool same = st.st_size == TC_SHARD_BYTES + h->n_tokens * h->width &&
                    tc_pread_all(fd, header, sizeof header, 0) && memcmp(header, want, sizeof want) == 0;
  close(fd);
  return same ? TC_OK
              : tc_fail(err, TC_EUSER, "shard '%s' is not the one that was made: it should have %lld tokens, and a "
                        "header that says so; put that back, or remove the folder and make all shards again", path,
                        (long long)h->n_tokens);
}

/* The weights of a finished shard. */
static int check_weights(const char *shard_path, int64_t n_tokens, struct tc_err *err)
{
  char header[TC_WEIGHTS_BYTES], *path = tc_weights_path(shard_path);
  struct stat st = { 0 };
  const int fd = tc_open_stat(path, &st);
  const bool there = fd >= 0 && tc_pread_all(fd, header, sizeof header, 0);
  int status = there ? tc_weights_check(header, st.st_size, n_tokens, path, err)
                     : tc_fail(err, TC_EUSER, "the weights '%s', which are finished according to data.json beside them, can't be "
                               "read; put them back, or remove the folder and make all shards again", path);
  if (fd >= 0) close(fd);
  free(path);
  return status;
}

int tc_shard_files_check(const struct tc_shard_files *s, int number, int64_t tokens, struct tc_err *err)
{
  int status = TC_OK;
  for (int i = 0; i < number && status == TC_OK; i++) {
    struct tc_shard_header h = s->header;
    char *path = shard_name(s->out, i);
    h.n_tokens = i < number - 1 ? s->shard_tokens : tokens - (number - 1) * s->shard_tokens;
    status = check_shard(path, &h, err);
    if (status == TC_OK && s->weighted) status = check_weights(path, h.n_tokens, err);
    free(path);
  }
  return status;
}

static int open_weights(struct tc_shard_files *s, const char *shard_path, struct tc_err *err)
{
  static const char empty[TC_WEIGHTS_BYTES];
  const struct tc_output_opts o = { .kind = &weights, .kept = s->kept, .n_kept = s->n_kept };
  char *path = tc_weights_path(shard_path);
  int rc = tc_output_new(&s->weights, path, &o, err);
  free(path);
  return rc < 0 ? rc : tc_output_write(s->weights, empty, sizeof empty, err);
}

static int open_shard(struct tc_shard_files *s, struct tc_err *err)
{
  static const int32_t empty[TC_SHARD_INTS];
  const struct tc_output_opts o = options(s);
  char *path = s->single ? tc_strdup(s->out) : shard_name(s->out, s->number);
  int rc = tc_output_new(&s->file, path, &o, err);
  if (rc == TC_OK && s->weighted) rc = open_weights(s, path, err);
  free(path);
  if (!s->buf) s->buf = tc_malloc(BLOCK_TOKENS * sizeof(uint32_t));
  s->header.n_tokens = 0;
  return rc < 0 ? rc : tc_output_write(s->file, empty, sizeof empty, err);
}

int64_t tc_shard_files_put(struct tc_shard_files *s, const uint32_t *id, const uint8_t *weight, int64_t n, struct tc_err *err)
{
  if (!s->file && n > 0) TC_TRY(open_shard(s, err));
  uint16_t *u16 = s->buf;
  n = TC_MIN(n, s->shard_tokens - s->header.n_tokens);
  for (int64_t at = 0; at < n;) {
    const int64_t k = TC_MIN(n - at, BLOCK_TOKENS);
    if (s->header.width == 2)
      for (int64_t i = 0; i < k; i++) u16[i] = (uint16_t)id[at + i];
    else memcpy(s->buf, id + at, (size_t)k * sizeof *id);
    TC_TRY(tc_output_write(s->file, s->buf, k * s->header.width, err));
    at += k;
  }
  if (s->weights) TC_TRY(tc_output_write(s->weights, weight, n, err));
  s->header.n_tokens += n;
  return n;
}

bool tc_shard_files_full(const struct tc_shard_files *s) { return s->file && s->header.n_tokens == s->shard_tokens; }

/* A header, in place of the zeros that were there. */
static int put_header(const struct tc_shard_files *s, const struct tc_output *f, const void *header, size_t bytes,
                      struct tc_err *err)
{
  struct tc_again again = { 0 };
  ssize_t n;
  do n = pwrite(tc_output_fd(f), header, bytes, 0);
  while (n < 0 && tc_again(&again, errno));
  if (n == (ssize_t)bytes) return TC_OK;
  return tc_fail(err, TC_EUSER, "a shard of %s can't be written: its header: %s", s->out,
                 strerror(n < 0 ? errno : ENOSPC));
}

int tc_shard_files_finish(struct tc_shard_files *s, struct tc_err *err)
{
  int32_t header[TC_SHARD_INTS];
  char of_weights[TC_WEIGHTS_BYTES];
  if (!s->file) return TC_OK;
  tc_shard_pack(&s->header, header);
  tc_weights_pack(s->header.n_tokens, of_weights);
  TC_TRY(put_header(s, s->file, header, sizeof header, err));
  if (s->weights) TC_TRY(put_header(s, s->weights, of_weights, sizeof of_weights, err));
  struct tc_output *file = s->file, *beside = s->weights;
  s->weights = NULL;
  if (beside) TC_TRY(tc_output_finish(beside, err));      /* so that a shard never lies there without them */
  s->file = NULL;
  TC_TRY(tc_output_finish(file, err));
  s->number++;
  return TC_OK;
}

void tc_shard_files_end(struct tc_shard_files *s)
{
  tc_output_abandon(s->file);
  tc_output_abandon(s->weights);
  s->file = s->weights = NULL;
  free(s->buf);
  s->buf = NULL;
}
