/* bytes.c - `tercio data TEXT... -o shard.bin`: token shards from text, one token per byte.
 *
 * The shard is written under a temporary name, flushed to disk and renamed, so that it appears complete or
 * not at all. The format is llm.c's, so that its tools and shards can be used (shards.c); the header says that a token
 * is a byte. */
#include "src/base/base.h"
#include "src/cmd/data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 20 };
static const int64_t PROGRESS_NS = INT64_C(2000000000);

struct shard {
  char *path, *tmp;          /* owned */
  int fd;
  int64_t n_tokens;          /* written so far */
  int64_t total_bytes;       /* of all texts */
  int64_t started_ns, told_ns;
};

/* ---- reading --------------------------------------------------------------------------- */

/* Opens a text for reading; *bytes is its size. Returns the descriptor. */
static int open_text(const char *path, const struct shard *s, int64_t *bytes, struct tc_err *err)
{
  struct stat st, out;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);      /* a FIFO must not block */
  if (fd < 0 && errno == ENOENT)
    return tc_fail(err, TC_EUSER, "text file '%s' does not exist", path);
  if (fd < 0)
    return tc_fail(err, TC_EUSER, "text file '%s' can't be opened: %s; see its owner and mode",
                   path, strerror(errno));
  int status = TC_OK;
  if (fstat(fd, &st) != 0)
    status = tc_fail(err, TC_EUSER, "text file '%s': %s", path, strerror(errno));
  else if (S_ISDIR(st.st_mode))
    status = tc_fail(err, TC_EUSER, "text file '%s' is a folder; name the files in it", path);
  else if (!S_ISREG(st.st_mode))
    status = tc_fail(err, TC_EUSER, "text file '%s' is not a regular file", path);
  else if (st.st_size == 0)
    status = tc_fail(err, TC_EUSER, "text file '%s' is empty", path);
  else if (stat(s->path, &out) == 0 && out.st_dev == st.st_dev && out.st_ino == st.st_ino)
    status = tc_fail(err, TC_EUSER, "-o %s is the text file '%s' itself; name another file",
                     s->path, path);
  if (status != TC_OK) {
    close(fd);
    return status;
  }
  *bytes = st.st_size;
  return fd;
}

/* Checks, before anything is written, that every text can be read and that all fit into one shard. */
static int check_texts(struct shard *s, char *const *text, int n_texts, struct tc_err *err)
{
  for (int i = 0; i < n_texts; i++) {
    int64_t bytes = 0;
    int fd = open_text(text[i], s, &bytes, err);
    if (fd < 0) return fd;
    close(fd);
    s->total_bytes += bytes;
  }
  if (s->total_bytes > INT32_MAX)
    return tc_fail(err, TC_EUSER, "the texts have %lld bytes, but a shard holds at most %d tokens; "
                   "make several shards and name them all in data.train",
                   (long long)s->total_bytes, INT32_MAX);
  return TC_OK;
}

/* ---- writing --------------------------------------------------------------------------- */

static int write_fail(const struct shard *s, const char *what, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "shard '%s': %s failed: %s; nothing was left behind", s->path,
                 what, strerror(errno));
}

static int write_all(const struct shard *s, const void *buf, size_t bytes, struct tc_err *err)
{
  for (const char *p = buf; bytes > 0;) {
    ssize_t n = write(s->fd, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return write_fail(s, "writing", err);
    p += n;
    bytes -= (size_t)n;
  }
  return TC_OK;
}

static int write_header(const struct shard *s, struct tc_err *err)
{
  const struct tc_shard_header h = { .width = 2, .n_tokens = s->n_tokens, .vocab = 256, .eod = -1 };
  int32_t header[TC_SHARD_INTS];
  tc_shard_pack(&h, header);
  if (lseek(s->fd, 0, SEEK_SET) < 0) return write_fail(s, "seeking", err);
  return write_all(s, header, sizeof header, err);
}

/* A line every two seconds, so none for short work. */
static void print_progress(struct shard *s)
{
  int64_t now_ns = tc_now_ns();
  if (now_ns - s->told_ns < PROGRESS_NS) return;
  s->told_ns = now_ns;
  double seconds = (double)(now_ns - s->started_ns) * 1e-9;
  char done[32], total[32], rate[32];
  fprintf(stderr, "tercio data: %s of %s (%d %%), %s/s\n",
          tc_human_bytes(done, sizeof done, (double)s->n_tokens),
          tc_human_bytes(total, sizeof total, (double)s->total_bytes),
          (int)(100 * s->n_tokens / s->total_bytes),
          tc_human_bytes(rate, sizeof rate, (double)s->n_tokens / seconds));
}

/* Appends the tokens of one text; buf has CHUNK_BYTES bytes, tokens as many elements. */
static int append_text(struct shard *s, const char *path, uint8_t *buf, uint16_t *tokens,
                       struct tc_err *err)
{
  int64_t left = 0;
  int fd = open_text(path, s, &left, err);
  if (fd < 0) return fd;
  int status = TC_OK;
  if (s->n_tokens + left > s->total_bytes)
    status = tc_fail(err, TC_EUSER, "text file '%s' grew while it was read; run it again", path);
  while (status == TC_OK && left > 0) {
    ssize_t n = read(fd, buf, (size_t)TC_MIN(left, CHUNK_BYTES));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      status = tc_fail(err, TC_EUSER, "text file '%s': reading failed: %s", path,
                       n < 0 ? strerror(errno) : "it was truncated");
      break;
    }
    for (ssize_t i = 0; i < n; i++) tokens[i] = buf[i];
    status = write_all(s, tokens, (size_t)n * sizeof *tokens, err);
    s->n_tokens += n;
    left -= n;
    print_progress(s);
  }
  close(fd);
  return status;
}

static int append_texts(struct shard *s, char *const *text, int n_texts, struct tc_err *err)
{
  uint8_t *buf = tc_malloc(CHUNK_BYTES);
  uint16_t *tokens = tc_malloc(CHUNK_BYTES * sizeof *tokens);
  int status = TC_OK;
  for (int i = 0; status == TC_OK && i < n_texts; i++)
    status = append_text(s, text[i], buf, tokens, err);
  free(buf);
  free(tokens);
  return status;
}

/* Flushes the folder, too, to make the new name durable. */
static int sync_folder(const struct shard *s, struct tc_err *err)
{
  char *copy = tc_strdup(s->path);
  int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  free(copy);
  int rc = fd < 0 ? -1 : fsync(fd);
  int saved = errno;
  if (fd >= 0) close(fd);
  if (rc == 0 || saved == EINVAL) return TC_OK;        /* not supported by all file systems */
  return tc_fail(err, TC_EUSER, "shard '%s' is written, but its folder can't be flushed: %s",
                 s->path, strerror(saved));
}

static int write_shard(struct shard *s, char *const *text, int n_texts, struct tc_err *err)
{
  s->fd = open(s->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (s->fd < 0)
    return tc_fail(err, TC_EUSER, "shard '%s' can't be written: %s: %s; see the folder's owner "
                   "and mode", s->path, s->tmp, strerror(errno));
  s->started_ns = s->told_ns = tc_now_ns();
  int status = write_header(s, err);
  if (status == TC_OK) status = append_texts(s, text, n_texts, err);
  if (status == TC_OK) status = write_header(s, err);   /* now with the number of tokens */
  if (status == TC_OK && fsync(s->fd) != 0) status = write_fail(s, "flushing", err);
  if (close(s->fd) != 0 && status == TC_OK) status = write_fail(s, "closing", err);
  if (status == TC_OK && rename(s->tmp, s->path) != 0) status = write_fail(s, "renaming", err);
  if (status != TC_OK) {
    unlink(s->tmp);
    return status;
  }
  return sync_folder(s, err);
}

int tc_data_bytes(char *const *text, int n_texts, const char *out, struct tc_err *err)
{
  struct stat st;
  if (stat(out, &st) == 0 && !S_ISREG(st.st_mode))
    return tc_fail(err, TC_EUSER, "-o %s is not a regular file; name a file to make", out);
  struct shard s = { .path = tc_strdup(out), .fd = -1 };
  s.tmp = tc_sprintf("%s.tmp-%ld", out, (long)getpid());
  int status = check_texts(&s, text, n_texts, err);
  if (status == TC_OK) status = write_shard(&s, text, n_texts, err);
  if (status == TC_OK)
    printf("%s: %lld tokens of %d text file%s, vocabulary 256\n", s.path, (long long)s.n_tokens,
           n_texts, n_texts == 1 ? "" : "s");
  free(s.path);
  free(s.tmp);
  return status;
}
