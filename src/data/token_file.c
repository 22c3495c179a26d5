/* token_file.c - reads token files, and notices that one is not what it was at the start.
 *
 * - Tokens are read with pread, not through a memory map: a file that shrinks or fails is then
 *   a sentence, where a map would end the process with SIGBUS;
 * - the threads of a rank share open files, since a sequence may lie in any of them: opening one for each read would
 *   be hard on the server that keeps a file system's names. Those used longest ago are closed. A file that is opened
 *   again must be the one of the start;
 * - an error that may pass (src/files/again.h) is met by another try, of a read with the file opened anew: its descriptor
 *   may be stale. */
#include "src/base/hash.h"
#include "src/data/impl.h"
#include "src/files/files.h"
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

/* Fails if the file is not that of the start, or of the rank that has opened it. Its ctime may differ: a change of mode, owner
 * or links does not change the contents, and so may its device: a file system that is mounted again can get another. */
static int compare(const struct tc_data_file *f, const struct stat *now, struct tc_err *err)
{
  const struct stat *was = &f->was;
  if (f->unseen && now->st_size != was->st_size)
    return tc_fail(err, TC_EUSER, "data file '%s' has %lld bytes here, and %lld on the node of rank 0: every node needs the "
                   "same files", f->name, (long long)now->st_size, (long long)was->st_size);
  if (f->unseen && now->st_ino != was->st_ino) return TC_OK;          /* a copy */
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

static int fail_removed(const struct tc_data_file *f, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "data file '%s' was removed or renamed during the run", f->name);
}

static int check_kind(const struct tc_data_file *f, const struct stat *st, struct tc_err *err)
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

int tc_file_check(struct tc_files *x, struct tc_data_file *f, bool *touched, struct tc_err *err)
{
  struct tc_again again = { 0 };
  struct stat now;
  int rc;
  *touched = false;
  pthread_mutex_lock(&x->lock);
  const bool unseen = f->unseen;
  pthread_mutex_unlock(&x->lock);
  if (unseen) return TC_OK;
  do rc = stat(f->name, &now);
  while (rc < 0 && tc_again(&again, errno));
  if (rc < 0)
    return errno == ENOENT ? fail_removed(f, err)
                           : tc_fail(err, TC_EUSER, "data file '%s': %s", f->name, strerror(errno));
  TC_TRY(compare(f, &now, err));
  *touched = !same_time(&now.st_ctim, &f->was.st_ctim);
  f->was.st_ctim = now.st_ctim;
  return TC_OK;
}

bool tc_file_inode(const struct tc_data_file *f, uint64_t *hash)
{
  struct stat st;
  if (stat(f->name, &st) != 0) return false;
  *hash = tc_hash64_add(tc_hash64_add(*hash, (uint64_t)st.st_dev), (uint64_t)st.st_ino);
  return true;
}

/* ---- open files ------------------------------------------------------------------------------ */

struct tc_files *tc_files_new(int most)
{
  struct tc_files *x = tc_calloc(1, sizeof *x);
  pthread_mutex_init(&x->lock, NULL);
  x->open = tc_calloc((size_t)most, sizeof *x->open);
  x->most = most;
  return x;
}

/* Closes the files that no thread reads. */
static void close_idle(struct tc_files *x)
{
  for (int i = 0; i < x->most; i++) {
    if (!x->open[i].file || x->open[i].readers) continue;
    close(x->open[i].fd);
    x->open[i].file = NULL;
  }
}

void tc_files_close(struct tc_files *x)
{
  pthread_mutex_lock(&x->lock);
  close_idle(x);
  pthread_mutex_unlock(&x->lock);
}

void tc_files_free(struct tc_files *x)
{
  if (!x) return;
  close_idle(x);
  pthread_mutex_destroy(&x->lock);
  TC_FREE(x->open, x);
}

static struct tc_open_file *find_open(struct tc_files *x, const struct tc_data_file *f)
{
  for (int i = 0; i < x->most; i++)
    if (x->open[i].file == f) return &x->open[i];
  return NULL;
}

/* A free place, or that of the file whose last use is longest ago, which is closed; NULL: all are being read. */
static struct tc_open_file *find_place(struct tc_files *x)
{
  struct tc_open_file *place = NULL;
  for (int i = 0; i < x->most; i++) {
    struct tc_open_file *o = &x->open[i];
    if (o->readers) continue;
    if (!o->file) return o;
    if (!place || o->used < place->used) place = o;
  }
  if (place) close(place->fd);
  return place;
}

/* Returns the descriptor, or < 0 with errno. Where the process has too many, those that no thread reads are closed. */
static int open_name(struct tc_files *x, const char *name)
{
  struct tc_again again = { 0 };
  int fd;
  do {
    fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);      /* a FIFO must not block */
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
      const int why = errno;
      tc_files_close(x);
      errno = why;
    }
  } while (fd < 0 && tc_again(&again, errno));
  return fd;
}

/* Opens the file by its name; *st <- its state. unseen: only another rank has opened it. */
static int open_file(struct tc_files *x, const struct tc_data_file *f, bool unseen, int *out, struct stat *st,
                     struct tc_err *err)
{
  struct tc_again tries = { 0 };
  const int fd = open_name(x, f->name);
  if (fd < 0 && errno == ENOENT && unseen)
    return tc_fail(err, TC_EUSER, "data file '%s' does not exist here, but did on the node of rank 0: every node needs the "
                   "same files", f->name);
  if (fd < 0 && errno == ENOENT && f->tokens > 0) return fail_removed(f, err);
  if (fd < 0 && errno == ENOENT)
    return tc_fail(err, TC_EUSER, "data file '%s' does not exist; names are separated by "
                   "blanks (\"a b.txt\" is one), and relative to the folder the run starts in", f->name);
  if (fd < 0)
    return tc_fail(err, TC_EUSER, "data file '%s' can't be opened: %s; see its owner and mode",
                   f->name, strerror(errno));
  int rc;
  do rc = fstat(fd, st);
  while (rc < 0 && tc_again(&tries, errno));
  if (rc < 0) {
    tc_fail(err, TC_EUSER, "data file '%s': %s", f->name, strerror(errno));
    close(fd);
    return TC_EUSER;
  }
  *out = fd;
  return TC_OK;
}

/* The file just opened is that of the start; the first time, it is one to read, and becomes it. Called with the lock held:
 * several threads may open it for the first time. */
static int recognise(struct tc_data_file *f, const struct stat *st, struct tc_err *err)
{
  const bool first = f->tokens == 0 || f->unseen;
  if (first) TC_TRY(check_kind(f, st, err));
  if (f->tokens > 0) TC_TRY(compare(f, st, err));
  if (first) f->was = *st;
  f->unseen = false;
  return TC_OK;
}

/* A file for this thread to read until it gives it back. The file is opened without the lock: another thread may have
 * opened it meanwhile. place NULL: no place is free, so that the descriptor is this thread's alone. */
struct held { struct tc_open_file *place; int fd; };

static int take_file(struct tc_files *x, struct tc_data_file *f, struct held *out, struct tc_err *err)
{
  int rc = TC_OK;
  pthread_mutex_lock(&x->lock);
  struct tc_open_file *o = find_open(x, f);
  if (!o) {
    const bool unseen = f->unseen;
    struct stat st;
    int fd = -1;
    pthread_mutex_unlock(&x->lock);
    TC_TRY(open_file(x, f, unseen, &fd, &st, err));
    pthread_mutex_lock(&x->lock);
    o = find_open(x, f);
    if (!o) rc = recognise(f, &st, err);
    if (o || rc < 0) close(fd);
    else if ((o = find_place(x))) *o = (struct tc_open_file){ .file = f, .fd = fd };
    else *out = (struct held){ NULL, fd };
  }
  if (o) {
    o->readers++;
    o->used = ++x->uses;
    *out = (struct held){ o, o->fd };
  }
  pthread_mutex_unlock(&x->lock);
  return rc;
}

/* drop: the file is closed when no thread reads it, and opened anew for the next. */
static void give_back(struct tc_files *x, const struct held *h, bool drop)
{
  struct tc_open_file *o = h->place;
  if (!o) {
    close(h->fd);
    return;
  }
  pthread_mutex_lock(&x->lock);
  if (drop) o->file = NULL;
  if (--o->readers == 0 && !o->file) close(o->fd);
  pthread_mutex_unlock(&x->lock);
}

int tc_file_open(struct tc_reader *r, struct tc_data_file *f, struct tc_err *err)
{
  struct held h;
  TC_TRY(take_file(r->files, f, &h, err));
  give_back(r->files, &h, false);
  return TC_OK;
}

int tc_file_same(struct tc_reader *r, const struct tc_data_file *f, struct tc_err *err)
{
  struct stat now;
  pthread_mutex_lock(&r->files->lock);
  const struct tc_open_file *o = find_open(r->files, f);
  const bool known = o && fstat(o->fd, &now) == 0;
  pthread_mutex_unlock(&r->files->lock);
  return known ? compare(f, &now, err) : TC_OK;
}

/* *why: errno of a read that failed, or 0. */
static int read_bytes(int fd, const struct tc_data_file *f, void *buf, int64_t bytes, int64_t offset, int *why,
                      struct tc_err *err)
{
  *why = 0;
  for (int64_t got = 0; got < bytes;) {
    const ssize_t n = pread(fd, (char *)buf + got, (size_t)(bytes - got), (off_t)(offset + got));
    if (n > 0) {
      got += n;
      continue;
    }
    if (n == 0)
      return tc_fail(err, TC_EUSER, "data file '%s' ends at byte %lld, but it had %lld bytes when "
                     "it was opened: it was truncated", f->name, (long long)(offset + got),
                     (long long)f->was.st_size);
    *why = errno;
    return tc_fail(err, TC_EUSER, "data file '%s' can't be read at byte %lld: %s", f->name,
                   (long long)(offset + got), strerror(errno));
  }
  return TC_OK;
}

int tc_file_read(struct tc_reader *r, struct tc_data_file *f, void *buf, int64_t bytes, int64_t offset,
                 struct tc_err *err)
{
  struct tc_again again = { 0 };
  struct held h;
  int rc, why;
  do {
    tc_at_file("reading", f->name);
    TC_TRY(take_file(r->files, f, &h, err));
    rc = read_bytes(h.fd, f, buf, bytes, offset, &why, err);
    give_back(r->files, &h, rc < 0);           /* another try must not meet a stale descriptor */
  } while (rc < 0 && tc_again(&again, why));
  if (rc == 0 && again.tries) *err = (struct tc_err){ 0 };
  return rc;
}
