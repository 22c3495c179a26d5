/* shards.c - ids into shards of a folder: shard-00000.bin, shard-00001.bin, ...
 *
 * A shard has its name only when it is whole and on the disk: it is written under another name, flushed and renamed.
 * Tokens are uint16, or, for vocabularies of over 65,536, uint32 (src/data/shard.h). */
#include "src/cmd/data/data.h"
#include "io/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_TOKENS = 1 << 16 };

/* ---- files ----------------------------------------------------------------------------- */

static int write_all(int fd, const void *bytes, size_t n)
{
  for (const char *p = bytes; n > 0;) {
    const ssize_t k = write(fd, p, n);
    if (k < 0 && errno != EINTR) return -1;
    if (k > 0) p += k, n -= (size_t)k;
  }
  return 0;
}

static int fail(const char *path, const char *what, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "'%s': %s failed: %s", path, what, strerror(errno));
}

int tc_data_put_file(const char *dir, const char *name, const void *bytes, size_t n, struct tc_err *err)
{
  char *path = tc_sprintf("%s/%s", dir, name), *tmp = tc_sprintf("%s.tmp", path);
  const int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool bad = fd < 0 || write_all(fd, bytes, n) < 0 || fsync(fd) < 0;
  if (fd >= 0 && close(fd) < 0) bad = true;
  if (!bad && rename(tmp, path) < 0) bad = true;
  int status = bad ? fail(path, "writing", err) : TC_OK;
  if (bad && fd >= 0) unlink(tmp);
  if (!bad) status = tc_folder_sync(dir, err);
  free(path);
  free(tmp);
  return status;
}

/* ---- shards ---------------------------------------------------------------------------- */

void tc_shards_begin(struct tc_shards *s, const char *dir, const struct tc_shard_header *header,
                     int64_t shard_tokens, int number)
{
  *s = (struct tc_shards){ .dir = dir, .header = *header, .shard_tokens = shard_tokens, .number = number, .fd = -1 };
  s->header.n_tokens = 0;
  s->buf = tc_malloc(BLOCK_TOKENS * sizeof(uint32_t));
}

static char *shard_name(const char *dir, int number) { return tc_sprintf("%s/shard-%05d.bin", dir, number); }

/* A finished shard with the header h. */
static int check_shard(const char *path, const struct tc_shard_header *h, struct tc_err *err)
{
  int32_t want[TC_SHARD_INTS], header[TC_SHARD_INTS];
  struct stat st;
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return tc_fail(err, TC_EUSER, "shard '%s', which is finished according to data.json beside it, can't be opened: "
                   "%s; put it back, or remove the folder and make all shards again", path, strerror(errno));
  tc_shard_pack(h, want);
  const bool same = fstat(fd, &st) == 0 && st.st_size == TC_SHARD_BYTES + h->n_tokens * h->width &&
                    tc_pread_all(fd, header, sizeof header, 0) && memcmp(header, want, sizeof want) == 0;
  close(fd);
  return same ? TC_OK
              : tc_fail(err, TC_EUSER, "shard '%s' is not the one that was made: it should have %lld tokens, and a "
                        "header that says so; put that back, or remove the folder and make all shards again", path,
                        (long long)h->n_tokens);
}

int tc_shards_check(const char *dir, const struct tc_shard_header *header, int64_t shard_tokens, int number,
                    int64_t tokens, struct tc_err *err)
{
  int status = TC_OK;
  for (int i = 0; i < number && status == TC_OK; i++) {
    struct tc_shard_header h = *header;
    char *path = shard_name(dir, i);
    h.n_tokens = i < number - 1 ? shard_tokens : tokens - (number - 1) * shard_tokens;
    status = check_shard(path, &h, err);
    free(path);
  }
  return status;
}

static int open_shard(struct tc_shards *s, struct tc_err *err)
{
  static const int32_t empty[TC_SHARD_INTS];
  s->path = shard_name(s->dir, s->number);
  s->tmp = tc_sprintf("%s.tmp", s->path);
  s->fd = open(s->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (s->fd < 0)
    return tc_fail(err, TC_EUSER, "shard '%s' can't be written: %s; see the folder's owner and mode", s->path,
                   strerror(errno));
  s->header.n_tokens = 0;
  return write_all(s->fd, empty, sizeof empty) < 0 ? fail(s->tmp, "writing", err) : TC_OK;
}

static void close_shard(struct tc_shards *s)
{
  if (s->fd >= 0) close(s->fd);
  s->fd = -1;
  free(s->path);
  free(s->tmp);
  s->path = s->tmp = NULL;
}

int64_t tc_shards_put(struct tc_shards *s, const uint32_t *id, int64_t n, struct tc_err *err)
{
  uint16_t *u16 = s->buf;
  if (s->fd < 0 && n > 0) TC_TRY(open_shard(s, err));
  n = TC_MIN(n, s->shard_tokens - s->header.n_tokens);
  for (int64_t at = 0; at < n;) {
    const int64_t k = TC_MIN(n - at, BLOCK_TOKENS);
    if (s->header.width == 2)
      for (int64_t i = 0; i < k; i++) u16[i] = (uint16_t)id[at + i];
    else memcpy(s->buf, id + at, (size_t)k * sizeof *id);
    if (write_all(s->fd, s->buf, (size_t)(k * s->header.width)) < 0) return fail(s->tmp, "writing", err);
    at += k;
  }
  s->header.n_tokens += n;
  return n;
}

bool tc_shards_full(const struct tc_shards *s) { return s->fd >= 0 && s->header.n_tokens == s->shard_tokens; }

int tc_shards_finish(struct tc_shards *s, struct tc_err *err)
{
  int32_t header[TC_SHARD_INTS];
  if (s->fd < 0) return TC_OK;
  tc_shard_pack(&s->header, header);
  if (lseek(s->fd, 0, SEEK_SET) < 0 || write_all(s->fd, header, sizeof header) < 0)
    return fail(s->tmp, "writing", err);
  if (fsync(s->fd) < 0) return fail(s->tmp, "flushing", err);
  const int closed = close(s->fd);
  s->fd = -1;
  if (closed < 0) return fail(s->tmp, "closing", err);
  if (rename(s->tmp, s->path) < 0) return fail(s->path, "renaming", err);
  close_shard(s);
  s->number++;
  return tc_folder_sync(s->dir, err);
}

void tc_shards_end(struct tc_shards *s)
{
  if (s->tmp) unlink(s->tmp);
  close_shard(s);
  free(s->buf);
  s->buf = NULL;
}
