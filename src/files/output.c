/* output.c - files that the program makes.
 *
 * Invariants:
 * - what is written goes to a file that this process has made (O_EXCL, a random name), so neither another process nor a
 *   link that somebody laid there can be met;
 * - what is at PATH is looked at when the file is begun, for a sentence before the work, and again before it gets its
 *   name. A name that was free is taken by link(2), which fails if another has it by then;
 * - `unfinished` is shared by all threads and ranks of the process: a signal handler has no other way to find what is
 *   to be removed. A place of it is written by the one that took it, and read once its state is READY. */
#include "src/files/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/base.h"
#include "src/files/again.h"
#include "src/files/names.h"
#include "src/watch/watch.h"

enum { HEAD_BYTES = 64, NAME_TRIES = 20 };

struct tc_output {
  char *path, *real, *tmp;       /* owned; real: path, or what it links to */
  const struct tc_output_kind *kind;
  char *flag;                    /* owned; "" or "run.trace: " */
  int fd;
  FILE *stream;
  int stream_errno;              /* of the stream's first write that failed */
  int64_t bytes;
  int place;                     /* in `unfinished`; -1: none was free */
  bool replaces;
};

/* ---- what a signal removes ----------------------------------------------------------------- */

enum { PLACES = 32, FREE = 0, TAKEN, READY };
static struct { atomic_int state; char path[PATH_MAX]; } unfinished[PLACES];

static int remember(const char *path)
{
  for (int i = 0; i < PLACES && strlen(path) < PATH_MAX; i++) {
    int state = FREE;
    if (!atomic_compare_exchange_strong(&unfinished[i].state, &state, TAKEN)) continue;
    strcpy(unfinished[i].path, path);
    atomic_store(&unfinished[i].state, READY);
    return i;
  }
  return -1;
}

static void forget(int place)
{
  if (place >= 0) atomic_store(&unfinished[place].state, FREE);
}

void tc_output_remove_unfinished(void)
{
  for (int i = 0; i < PLACES; i++)
    if (atomic_load(&unfinished[i].state) == READY) unlink(unfinished[i].path);
}

/* ---- what is there ---------------------------------------------------------------------------- */

static bool is_of_kind(const struct tc_output_kind *k, const char *head, size_t n)
{
  for (size_t i = 0; i < sizeof k->begins / sizeof *k->begins && k->begins[i]; i++)
    if (n >= strlen(k->begins[i]) && !memcmp(head, k->begins[i], strlen(k->begins[i]))) return true;
  return false;
}

/* The first bytes of a regular file; -1 with errno. */
static int64_t read_head(const char *path, char head[HEAD_BYTES])
{
  struct tc_again again = { 0 };
  int fd;
  do fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  while (fd < 0 && tc_again(&again, errno));
  if (fd < 0) return -1;
  again = (struct tc_again){ 0 };
  ssize_t n;
  do n = pread(fd, head, HEAD_BYTES, 0);
  while (n < 0 && tc_again(&again, errno));
  const int why = errno;
  close(fd);
  errno = why;
  return n;
}

/* What an inode that is no regular file is; for sentences. */
static const char *what_is(mode_t mode)
{
  return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

/* Whether the file st may be replaced. */
static int check_file(const char *path, const struct stat *st, const struct tc_output_kind *kind, const char *flag,
                      struct tc_err *err)
{
  char head[HEAD_BYTES];
  if (!S_ISREG(st->st_mode))
    return tc_fail(err, TC_EUSER, "%s%s is %s, not a file that can be made; give another name", flag, path,
                   what_is(st->st_mode));
  if (!kind) return tc_fail(err, TC_EUSER, "%s%s exists already; remove it or give another name", flag, path);
  if (st->st_size == 0) return 0;
  const int64_t n = read_head(path, head);
  if (n < 0)
    return tc_fail(err, TC_EUSER, "%s%s exists already, and can't be read to see what it is: %s; remove it or give "
                   "another name", flag, path, strerror(errno));
  if (is_of_kind(kind, head, (size_t)n)) return 0;
  return tc_fail(err, TC_EUSER, "%s%s exists already and is not %s; remove it or give another name", flag, path,
                 kind->name);
}

/* Whether a file may be made or replaced at `path`. *real is the path without links, owned, and *replaces whether
 * something is there. */
static int check_path(const char *path, const struct tc_output_kind *kind, const char *flag, char **real,
                      bool *replaces, struct tc_err *err)
{
  struct tc_again again = { 0 };
  struct stat st;
  int rc;
  *real = NULL;
  if (!*path || path[strlen(path) - 1] == '/')
    return tc_fail(err, TC_EUSER, "%s'%s' is not the name of a file", flag, path);
  do rc = lstat(path, &st);
  while (rc < 0 && tc_again(&again, errno));
  *replaces = rc == 0;
  if (rc < 0 && errno != ENOENT)
    return tc_fail(err, TC_EUSER, "%s%s can't be written: %s", flag, path, strerror(errno));
  if (rc == 0 && S_ISLNK(st.st_mode) && !(*real = realpath(path, NULL)))
    return tc_fail(err, TC_EUSER, "%s%s is a link whose file can't be found: %s; remove it or give another name", flag,
                   path, strerror(errno));
  if (!*real) *real = tc_strdup(path);
  if (rc == 0 && stat(*real, &st) < 0)
    return tc_fail(err, TC_EUSER, "%s%s can't be written: %s", flag, path, strerror(errno));
  return rc == 0 ? check_file(path, &st, kind, flag, err) : 0;
}

/* Whether one of the files that are never replaced is at `path`. */
static int check_kept(const char *path, const struct tc_output_opts *o, const char *flag, struct tc_err *err)
{
  struct stat st, kept;
  if (stat(path, &st) < 0) return 0;
  for (int i = 0; i < o->n_kept; i++)
    if (stat(o->kept[i].path, &kept) == 0 && kept.st_dev == st.st_dev && kept.st_ino == st.st_ino)
      return tc_fail(err, TC_EUSER, "%s%s is %s; give another name", flag, path, o->kept[i].what);
  return 0;
}

static char *flag_text(const struct tc_output_opts *o)
{
  return o->flag ? tc_sprintf("%s%s", o->flag, *o->flag == '-' ? " " : ": ") : tc_strdup("");
}

static int check_all(const char *path, const struct tc_output_opts *o, const char *flag, char **real, bool *replaces,
                     struct tc_err *err)
{
  *real = NULL;
  TC_TRY(check_kept(path, o, flag, err));
  const int rc = check_path(path, o->kind, flag, real, replaces, err);
  if (rc < 0) free(*real), *real = NULL;
  return rc;
}

int tc_output_check(const char *path, const struct tc_output_opts *o, struct tc_err *err)
{
  char *flag = flag_text(o), *real;
  bool replaces;
  const int rc = check_all(path, o, flag, &real, &replaces, err);
  free(flag);
  free(real);
  return rc;
}

/* ---- making ------------------------------------------------------------------------------------ */

/* A new file beside f->real, whose name begins with that of the file that it becomes, as far as names may be long. */
static int make_unfinished(struct tc_output *f, bool executable, struct tc_err *err)
{
  struct tc_again again = { 0 };
  char *folder = tc_folder_of(f->real);
  const char *slash = strrchr(f->real, '/');
  const bool top = !strcmp(folder, "/");
  for (int i = 0; i < NAME_TRIES && f->fd < 0; i++) {
    f->tmp = tc_sprintf("%s%s.tmp-%.100s-%08x%08x", folder, top ? "" : "/", slash ? slash + 1 : f->real,
                        tc_random_name(), tc_random_name());
    f->place = remember(f->tmp);
    f->fd = open(f->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, executable ? 0777 : 0666);
    if (f->fd >= 0) break;
    const int why = errno;
    forget(f->place);
    f->place = -1;
    free(f->tmp);
    f->tmp = NULL;
    errno = why;
    if (why != EEXIST && !tc_again(&again, why)) break;
  }
  const int rc = f->fd >= 0 ? 0
    : errno == ENOENT ? tc_fail(err, TC_EUSER, "%s%s can't be written: there is no folder %s", f->flag, f->path, folder)
    : tc_fail(err, TC_EUSER, "%s%s can't be written: %s", f->flag, f->path, strerror(errno));
  free(folder);
  return rc;
}

int tc_output_new(struct tc_output **out, const char *path, const struct tc_output_opts *o, struct tc_err *err)
{
  struct tc_output *f = tc_calloc(1, sizeof *f);
  struct stat st;
  *out = NULL;
  *f = (struct tc_output){ .path = tc_strdup(path), .kind = o->kind, .flag = flag_text(o), .fd = -1, .place = -1 };
  tc_at_file("making", path);
  int rc = check_all(path, o, f->flag, &f->real, &f->replaces, err);
  if (rc == 0) rc = make_unfinished(f, o->executable, err);
  if (rc < 0) {
    tc_output_abandon(f);
    return rc;
  }
  /* Some file systems have other rules than modes (ACLs, CIFS): the file then keeps that of its making. */
  if (f->replaces && stat(f->real, &st) == 0) {
    const int unused = fchmod(f->fd, st.st_mode & 0777);
    (void)unused;
  }
  *out = f;
  return 0;
}

/* Of the stream: so that the reason of a failed write is known when it is looked at. */
static ssize_t write_stream(void *file, const char *buf, size_t n)
{
  struct tc_output *f = file;
  if (tc_write_all(f->fd, buf, (int64_t)n)) return (ssize_t)n;
  if (!f->stream_errno) f->stream_errno = errno;
  return 0;
}

FILE *tc_output_stream(struct tc_output *f)
{
  if (!f->stream) f->stream = fopencookie(f, "w", (cookie_io_functions_t){ .write = write_stream });
  if (!f->stream) tc_out_of_memory(0);
  return f->stream;
}

int tc_output_fd(const struct tc_output *f) { return f->fd; }

int64_t tc_output_bytes(const struct tc_output *f) { return f->bytes; }

int tc_output_write(struct tc_output *f, const void *data, int64_t bytes, struct tc_err *err)
{
  if (!tc_write_all(f->fd, data, bytes))
    return tc_fail(err, TC_EUSER, "%s%s: writing failed after %lld bytes: %s", f->flag, f->path, (long long)f->bytes,
                   strerror(errno));
  f->bytes += bytes;
  return 0;
}

/* The file gets its name. What was free when it was begun must still be. */
static int give_name(struct tc_output *f, struct tc_err *err)
{
  char *real;
  bool replaces;
  TC_TRY(check_path(f->path, f->kind, f->flag, &real, &replaces, err));
  int why = EPERM;
  if (!replaces) why = tc_link(AT_FDCWD, f->tmp, real);
  if (why == EPERM || why == EOPNOTSUPP || why == ENOSYS) why = tc_rename(AT_FDCWD, f->tmp, real);
  else if (why == EEXIST && f->kind) why = tc_rename(AT_FDCWD, f->tmp, real);   /* another of this kind was faster */
  free(real);
  if (why == EEXIST)
    return tc_fail(err, TC_EUSER, "%s%s was made by another process meanwhile, and stays; remove it or give another "
                   "name", f->flag, f->path);
  return why ? tc_fail(err, TC_EUSER, "%s%s can't be written: %s", f->flag, f->path, strerror(why)) : 0;
}

int tc_output_finish(struct tc_output *f, struct tc_err *err)
{
  if (f->stream) fclose(f->stream);
  f->stream = NULL;
  int why = f->stream_errno;
  tc_at_file("fsync", f->path);
  if (!why && fsync(f->fd) < 0 && errno != EINVAL) why = errno;
  if (close(f->fd) < 0 && !why) why = errno;
  f->fd = -1;
  int rc = why ? tc_fail(err, TC_EUSER, "%s%s can't be written: %s", f->flag, f->path, strerror(why))
               : give_name(f, err);
  if (rc == 0) {
    char *folder = tc_folder_of(f->real);
    rc = tc_folder_sync(folder, err);
    free(folder);
  }
  tc_output_abandon(f);
  return rc;
}

void tc_output_abandon(struct tc_output *f)
{
  if (!f) return;
  if (f->stream) fclose(f->stream);
  if (f->fd >= 0) close(f->fd);
  if (f->tmp) tc_unlink(AT_FDCWD, f->tmp);    /* gone after a rename; after a link the file has this name too */
  forget(f->place);
  free(f->path);
  free(f->real);
  free(f->tmp);
  free(f->flag);
  free(f);
}

int tc_output_text(const char *path, const struct tc_output_opts *o, const char *text, struct tc_err *err)
{
  struct tc_output *f;
  TC_TRY(tc_output_new(&f, path, o, err));
  const int rc = tc_output_write(f, text, (int64_t)strlen(text), err);
  if (rc == 0) return tc_output_finish(f, err);
  tc_output_abandon(f);
  return rc;
}
