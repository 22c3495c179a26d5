/* input.c - a text as bytes: a file, which gzip or zstd may have compressed (its name says so), or standard input.
 *
 * A pipe is asked first whether it has something, so that a request to stop is seen while it has nothing. */
#include "src/cmd/data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { BLOCK = 1 << 18, POLL_MS = 200 };

struct tc_input {
  const char *path;               /* borrowed */
  int fd;
  bool pipe, end;
  gzFile gz;
  ZSTD_DStream *zst;
  ZSTD_inBuffer in;               /* of what was read for zst */
  char *block;
  size_t zst_hint;                /* 0: a frame has ended */
  int64_t done;
};

static bool ends_with(const char *s, const char *end)
{
  const size_t n = strlen(s), k = strlen(end);
  return n > k && strcmp(s + n - k, end) == 0;
}

/* A file that can be read as text. */
static int check(const struct tc_input *in, struct tc_err *err)
{
  struct stat st;
  if (fstat(in->fd, &st) != 0) return tc_fail(err, TC_EUSER, "text file '%s': %s", in->path, strerror(errno));
  if (S_ISDIR(st.st_mode))
    return tc_fail(err, TC_EUSER, "text file '%s' is a folder; name the files in it", in->path);
  if (!S_ISREG(st.st_mode)) return tc_fail(err, TC_EUSER, "text file '%s' is not a regular file", in->path);
  return TC_OK;
}

static int start(struct tc_input *in, const char *path, struct tc_err *err)
{
  if (strcmp(path, "-") == 0) {
    in->fd = dup(STDIN_FILENO);
    in->pipe = true;
    return in->fd < 0 ? tc_fail(err, TC_EUSER, "standard input can't be read: %s", strerror(errno)) : TC_OK;
  }
  in->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);      /* a FIFO must not block */
  if (in->fd < 0 && errno == ENOENT) return tc_fail(err, TC_EUSER, "text file '%s' does not exist", path);
  if (in->fd < 0)
    return tc_fail(err, TC_EUSER, "text file '%s' can't be opened: %s; see its owner and mode", path,
                   strerror(errno));
  TC_TRY(check(in, err));
  if (ends_with(path, ".gz")) {
    in->gz = gzdopen(in->fd, "rb");
    if (!in->gz) tc_out_of_memory(0);
    gzbuffer(in->gz, BLOCK);
  } else if (ends_with(path, ".zst")) {
    in->zst = ZSTD_createDStream();
    if (!in->zst) tc_out_of_memory(0);
    in->block = tc_malloc(BLOCK);
    in->in.src = in->block;
  }
  return TC_OK;
}

int tc_input_open(struct tc_input **out, const char *path, struct tc_err *err)
{
  struct tc_input *in = tc_calloc(1, sizeof *in);
  in->path = path;
  in->fd = -1;
  const int status = start(in, path, err);
  *out = in;
  if (status == TC_OK) return TC_OK;
  tc_input_free(in);
  *out = NULL;
  return status;
}

void tc_input_free(struct tc_input *in)
{
  if (!in) return;
  if (in->gz) gzclose(in->gz);
  else if (in->fd >= 0) close(in->fd);
  ZSTD_freeDStream(in->zst);
  free(in->block);
  free(in);
}

static int fail(const struct tc_input *in, const char *why, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "text file '%s': reading failed: %s", in->path, why);
}

/* Up to n bytes of the file itself; 0 at its end. */
static int64_t read_plain(struct tc_input *in, char *buf, size_t n, struct tc_err *err)
{
  ssize_t got;
  do got = read(in->fd, buf, n);
  while (got < 0 && errno == EINTR);
  if (got < 0) return fail(in, strerror(errno), err);
  in->done += got;
  return got;
}

static int64_t read_gz(struct tc_input *in, char *buf, size_t n, struct tc_err *err)
{
  int code;
  const int got = gzread(in->gz, buf, (unsigned)TC_MIN(n, (size_t)1 << 30));
  const char *why = gzerror(in->gz, &code);
  if (got < 0 || code == Z_BUF_ERROR)
    return fail(in, code == Z_ERRNO ? strerror(errno) : code == Z_BUF_ERROR ? "the .gz file is truncated" : why, err);
  in->done = gzoffset(in->gz);
  return got;
}

static int64_t read_zst(struct tc_input *in, char *buf, size_t n, struct tc_err *err)
{
  ZSTD_outBuffer out = { buf, n, 0 };
  while (out.pos == 0) {
    if (in->in.pos == in->in.size) {
      const int64_t got = read_plain(in, in->block, BLOCK, err);
      if (got < 0) return got;
      if (got == 0) return in->zst_hint ? fail(in, "the .zst file is truncated", err) : 0;
      in->in.size = (size_t)got;
      in->in.pos = 0;
    }
    in->zst_hint = ZSTD_decompressStream(in->zst, &out, &in->in);
    if (ZSTD_isError(in->zst_hint)) return fail(in, ZSTD_getErrorName(in->zst_hint), err);
  }
  return (int64_t)out.pos;
}

/* Waits until the pipe has something, or its end. False: asked to stop. */
static bool wait_for_input(const struct tc_input *in, bool (*stop)(void *), void *arg)
{
  struct pollfd p = { .fd = in->fd, .events = POLLIN };
  while (!stop(arg))
    if (poll(&p, 1, POLL_MS) != 0) return true;
  return false;
}

int64_t tc_input_read(struct tc_input *in, char *buf, int64_t bytes, bool (*stop)(void *), void *arg,
                      struct tc_err *err)
{
  int64_t n = 0;
  while (n < bytes && !in->end) {
    const size_t left = (size_t)(bytes - n);
    if (in->pipe && !wait_for_input(in, stop, arg)) break;
    const int64_t got = in->gz ? read_gz(in, buf + n, left, err)
                        : in->zst ? read_zst(in, buf + n, left, err) : read_plain(in, buf + n, left, err);
    if (got < 0) return got;
    in->end = got == 0;
    n += got;
  }
  return n;
}

int tc_input_seek(struct tc_input *in, int64_t bytes, struct tc_err *err)
{
  struct stat st;
  if (in->pipe || in->gz || in->zst) return 0;
  if (fstat(in->fd, &st) != 0 || (st.st_size >= bytes && lseek(in->fd, bytes, SEEK_SET) < 0))
    return fail(in, strerror(errno), err);
  if (st.st_size < bytes) return 0;
  in->done = bytes;
  return 1;
}

int64_t tc_input_done(const struct tc_input *in) { return in->done; }

int tc_input_same(const struct tc_input *in, const struct stat *was, struct tc_err *err)
{
  struct stat now;
  if (in->pipe) return TC_OK;
  if (fstat(in->fd, &now) != 0) return fail(in, strerror(errno), err);
  if (now.st_size == was->st_size && now.st_mtim.tv_sec == was->st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == was->st_mtim.tv_nsec)
    return TC_OK;
  return tc_fail(err, TC_EUSER, "text file '%s' was changed while shards were made of it (%lld bytes, now %lld); "
                 "remove the folder of the shards and run it again", in->path, (long long)was->st_size,
                 (long long)now.st_size);
}
