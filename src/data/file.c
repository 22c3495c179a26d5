/* file.c - reads token files, and notices that one is not what it was at the start.
 *
 * - Tokens are read with pread, not through a memory map: a file that shrinks or fails is then
 *   a sentence, where a map would end the process with SIGBUS;
 * - a reader has at most TC_READER_FILES files open. A file that is opened again must be the one of the
 *   start. */
#include "src/data/impl.h"
#include "src/watch/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the file of the start ------------------------------------------------------------------ */

static bool same_time(const struct timespec *a, const struct timespec *b)
{
  return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Fails if the file is not that of the start. Its ctime may differ: a change of mode, owner or links
 * does not change the contents, and so may its device: a file system that is mounted again can get another. */
static int compare(const struct tc_token_file *f, const struct stat *now, struct tc_err *err)
{
  const struct stat *was = &f->was;
  if (now->st_size != was->st_size)
    return tc_fail(err, TC_EUSER, "data file '%s' changed during the run: it had %lld bytes and "
                   "has %lld", f->name, (long long)was->st_size, (long long)now->st_size);
  if (now->st_ino != was->st_ino)
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

static int fail_removed(const struct tc_token_file *f, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "data file '%s' was removed or renamed during the run", f->name);
}

static int check_kind(const struct tc_token_file *f, const struct stat *st, struct tc_err *err)
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

int tc_file_check(struct tc_token_file *f, bool *touched, struct tc_err *err)
{
  struct stat now;
  *touched = false;
  if (stat(f->name, &now) != 0)
    return errno == ENOENT ? fail_removed(f, err)
                           : tc_fail(err, TC_EUSER, "data file '%s': %s", f->name, strerror(errno));
  TC_TRY(compare(f, &now, err));
  *touched = !same_time(&now.st_ctim, &f->was.st_ctim);
  f->was.st_ctim = now.st_ctim;
  return TC_OK;
}

/* ---- open files ------------------------------------------------------------------------------ */

static struct tc_open_file *find_open(struct tc_reader *r, const struct tc_token_file *f)
{
  for (int i = 0; i < TC_READER_FILES; i++)
    if (r->open[i].file == f) return &r->open[i];
  return NULL;
}

static void close_file(struct tc_open_file *o)
{
  if (o->file) close(o->fd);
  *o = (struct tc_open_file){ 0 };
}

/* A free place, or that of the file whose last use is longest ago. */
static struct tc_open_file *find_place(struct tc_reader *r)
{
  struct tc_open_file *oldest = &r->open[0];
  for (int i = 1; i < TC_READER_FILES; i++)
    if (r->open[i].used < oldest->used) oldest = &r->open[i];
  return oldest;
}

void tc_reader_close(struct tc_reader *r)
{
  for (int i = 0; i < TC_READER_FILES; i++) close_file(&r->open[i]);
}

/* Returns the descriptor, or < 0 with errno. Where there are too many, those of this reader are closed. */
static int open_name(struct tc_reader *r, const char *name)
{
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;       /* a FIFO must not block */
  const int fd = open(name, flags);
  if (fd >= 0 || (errno != EMFILE && errno != ENFILE)) return fd;
  tc_reader_close(r);
  return open(name, flags);
}

int tc_file_open(struct tc_reader *r, struct tc_token_file *f, struct tc_err *err)
{
  struct stat st;
  const bool again = f->n_tokens > 0;
  if (find_open(r, f)) return TC_OK;
  struct tc_open_file *o = find_place(r);
  close_file(o);
  const int fd = open_name(r, f->name);
  if (fd < 0 && errno == ENOENT && again) return fail_removed(f, err);
  if (fd < 0 && errno == ENOENT)
    return tc_fail(err, TC_EUSER, "data file '%s' does not exist; names are separated by "
                   "blanks, and relative to the folder the run starts in", f->name);
  if (fd < 0)
    return tc_fail(err, TC_EUSER, "data file '%s' can't be opened: %s; see its owner and mode",
                   f->name, strerror(errno));
  int status = TC_OK;
  if (fstat(fd, &st) != 0)
    status = tc_fail(err, TC_EUSER, "data file '%s': %s", f->name, strerror(errno));
  else status = again ? compare(f, &st, err) : check_kind(f, &st, err);
  if (status != TC_OK) {
    close(fd);
    return status;
  }
  if (!again) f->was = st;
  *o = (struct tc_open_file){ f, fd, ++r->uses };
  return TC_OK;
}

int tc_file_same(struct tc_reader *r, const struct tc_token_file *f, struct tc_err *err)
{
  struct stat now;
  const struct tc_open_file *o = find_open(r, f);
  return o && fstat(o->fd, &now) == 0 ? compare(f, &now, err) : TC_OK;
}

int tc_file_read(struct tc_reader *r, struct tc_token_file *f, void *buf, int64_t bytes, int64_t offset,
                 struct tc_err *err)
{
  tc_at_file("reading", f->name);
  TC_TRY(tc_file_open(r, f, err));
  struct tc_open_file *o = find_open(r, f);
  o->used = ++r->uses;
  for (int64_t got = 0; got < bytes;) {
    ssize_t n = pread(o->fd, (char *)buf + got, (size_t)(bytes - got), (off_t)(offset + got));
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
