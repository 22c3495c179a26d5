/* text_input.c - a text as bytes: a file, which gzip or zstd may have compressed (its first bytes say so), a pipe, or
 * standard input.
 *
 * A text's first bytes are looked at before any of it is used: what is no text is refused, since the ids of a Parquet
 * file or of tokens would be ids all the same. A pipe is asked first whether it has something, so that a request to stop
 * is seen while it has nothing. */
#include "src/shards/impl.h"
#include "src/data/data.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { POLL_MS = 200 };

struct tc_text_input {
  const char *path;               /* borrowed */
  int fd;
  bool text, pipe, begun, end;    /* begun: the first bytes were looked at */
  struct tc_unpack *unpack;       /* NULL: it is not compressed */
  struct { char bytes[TC_TEXT_KIND_BYTES]; size_t at, n; } raw, first;    /* of file and text: read, not given yet */
  int64_t done;
};

/* ---- the file itself ----------------------------------------------------------------------- */

static int open_text(struct tc_text_input *in, struct tc_err *err)
{
  struct stat st;
  const bool standard = strcmp(in->path, "-") == 0;
  in->fd = standard ? dup(STDIN_FILENO) : tc_open_text(in->path, "text file", NULL, err);
  if (in->fd < 0 && standard) return tc_fail(err, TC_EUSER, "standard input can't be read: %s", strerror(errno));
  if (in->fd < 0) return in->fd;
  in->pipe = standard || (fstat(in->fd, &st) == 0 && !S_ISREG(st.st_mode));
  return TC_OK;
}

bool tc_text_input_is_pipe(const struct tc_text_input *in) { return in->pipe; }

static int fail(const struct tc_text_input *in, const char *why, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "text file '%s': reading failed: %s", in->path, why);
}

/* Up to n bytes of the file itself; 0 at its end. */
static int64_t read_file(struct tc_text_input *in, char *buf, size_t n, struct tc_err *err)
{
  struct tc_again again = { 0 };
  ssize_t got;
  do got = read(in->fd, buf, n);
  while (got < 0 && tc_again(&again, errno));
  if (got < 0) return fail(in, strerror(errno), err);
  in->done += got;
  return got;
}

/* As read_file, but what was looked at comes first. */
static int64_t read_raw(void *arg, char *buf, size_t n, struct tc_err *err)
{
  struct tc_text_input *in = arg;
  const size_t here = TC_MIN(n, in->raw.n - in->raw.at);
  if (!here) return read_file(in, buf, n, err);
  memcpy(buf, in->raw.bytes + in->raw.at, here);
  in->raw.at += here;
  return (int64_t)here;
}

/* ---- its text -------------------------------------------------------------------------------- */

static int64_t read_text(struct tc_text_input *in, char *buf, size_t n, struct tc_err *err)
{
  return in->unpack ? tc_unpack_read(in->unpack, buf, n, err) : read_raw(in, buf, n, err);
}

/* Waits until the pipe has something, or its end. False: asked to stop. */
static bool wait_for_input(const struct tc_text_input *in, bool (*stop)(void *), void *arg)
{
  struct pollfd p = { .fd = in->fd, .events = POLLIN };
  while (!stop(arg))
    if (poll(&p, 1, POLL_MS) != 0) return true;
  return false;
}

static bool never(void *arg) { return arg != NULL; }

static int check_text(const struct tc_text_input *in, struct tc_err *err)
{
  char why[TC_TEXT_KIND_TEXT];
  const enum tc_text_kind kind = tc_kind_find(why, in->first.bytes, in->first.n);
  if (kind == TC_TEXT_KIND_UTF8 || kind == TC_TEXT_KIND_NO_UTF8) return TC_OK;      /* the latter is found with its place */
  return tc_fail(err, TC_EUSER, "text file '%s' %s%s", in->path, why,
                 kind == TC_TEXT_KIND_ZERO ? "; --invalid replace or bytes takes it" : "");
}

/* Looks at the first bytes: whether the file is compressed, and whether it is text. Does nothing if asked to stop. */
static int look(struct tc_text_input *in, bool (*stop)(void *), void *arg, struct tc_err *err)
{
  int64_t got = 1;
  while (got && in->raw.n < TC_TEXT_KIND_BYTES) {
    if (in->pipe && !wait_for_input(in, stop, arg)) return TC_OK;
    got = read_file(in, in->raw.bytes + in->raw.n, TC_TEXT_KIND_BYTES - in->raw.n, err);
    if (got < 0) return (int)got;
    in->raw.n += (size_t)got;
  }
  enum tc_packing packing;
  TC_TRY(tc_unpack_find(&packing, in->path, in->raw.bytes, in->raw.n, err));
  if (packing != TC_PACKED_NOT && !in->unpack) in->unpack = tc_unpack_new(packing, in->path, read_raw, in);
  for (got = 1; got && in->first.n < TC_TEXT_KIND_BYTES; in->first.n += (size_t)got) {
    if (in->unpack && in->pipe && !wait_for_input(in, stop, arg)) return TC_OK;
    got = read_text(in, in->first.bytes + in->first.n, TC_TEXT_KIND_BYTES - in->first.n, err);
    if (got < 0) return (int)got;
  }
  in->end = got == 0;
  in->begun = true;
  return in->text ? check_text(in, err) : TC_OK;
}

int tc_text_input_open(struct tc_text_input **out, const char *path, bool text, struct tc_err *err)
{
  struct tc_text_input *in = *out = tc_calloc(1, sizeof *in);
  *in = (struct tc_text_input){ .path = path, .fd = -1, .text = text };
  int status = open_text(in, err);
  if (status == TC_OK && !in->pipe) status = look(in, never, NULL, err);
  if (status == TC_OK) return TC_OK;
  tc_text_input_free(in);
  *out = NULL;
  return status;
}

void tc_text_input_free(struct tc_text_input *in)
{
  if (!in) return;
  tc_unpack_free(in->unpack);
  if (in->fd >= 0) close(in->fd);
  free(in);
}

int64_t tc_text_input_read(struct tc_text_input *in, char *buf, int64_t bytes, bool (*stop)(void *), void *arg,
                           struct tc_err *err)
{
  if (!in->begun) TC_TRY(look(in, stop, arg, err));
  if (!in->begun) return 0;                     /* asked to stop */
  int64_t n = TC_MIN(bytes, (int64_t)(in->first.n - in->first.at));
  memcpy(buf, in->first.bytes + in->first.at, (size_t)n);
  in->first.at += (size_t)n;
  while (n < bytes && !in->end) {
    if (in->pipe && !wait_for_input(in, stop, arg)) break;
    const int64_t got = read_text(in, buf + n, (size_t)(bytes - n), err);
    if (got < 0) return got;
    in->end = got == 0;
    n += got;
  }
  return n;
}

int tc_text_input_seek(struct tc_text_input *in, int64_t bytes, struct tc_err *err)
{
  struct stat st;
  if (in->pipe || in->unpack) return 0;
  if (fstat(in->fd, &st) != 0 || (st.st_size >= bytes && lseek(in->fd, bytes, SEEK_SET) < 0))
    return fail(in, strerror(errno), err);
  if (st.st_size < bytes) return 0;
  in->first.at = in->first.n;
  in->end = false;
  in->done = bytes;
  return 1;
}

int64_t tc_text_input_done(const struct tc_text_input *in) { return in->done; }

int tc_text_input_same(const struct tc_text_input *in, const struct stat *was, struct tc_err *err)
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
