/* output.c - files that the program makes.
 *
 * Invariants:
 * - what is written goes to a file that this process has made (O_EXCL, a random name), so neither another process nor a
 *   link that somebody laid there can be met;
 * - what is at PATH is looked at when the file is begun, for a sentence before the work, and again before it gets its
 *   name. A name that was free is taken by link(2), which fails if another has it by then;
 * - `unfinished` is shared by all threads and ranks of the process: a signal handler has no other way to find what is
 *   to be removed. A place of it is written by the one that took it, and read once its state is READY; SETTLED: finished while the
 *   process ends, so that its place is not taken again. */
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

/* What sentences say, and of which kind a file is that may be replaced. */
struct words {
  const struct tc_output_kind *kind;
  const char *instead;
  char *flag;                    /* owned; "" or "run.trace: " */
  bool zeros;
  bool backup;                   /* of a link, the link is what is kept and replaced, not its file */
};

struct tc_output {
  char *path, *real, *tmp;       /* owned; real: path, or what it links to */
  struct words w;
  int fd;
  FILE *stream;
  int stream_errno;              /* of the stream's first write that failed */
  int64_t bytes;
  int place;                     /* in `unfinished`; -1: none was free */
  bool replaces, unsynced;
};

/* ---- what a signal removes ----------------------------------------------------------------- */

enum { PLACES = 32, FREE = 0, TAKEN, READY, SETTLED };
static struct { atomic_int state; char path[PATH_MAX]; } unfinished[PLACES];
static atomic_bool ending;

/* While a signal ends the process its other threads still run: they begin and finish nothing more. */
static void stand_still(void)
{
  while (atomic_load(&ending)) pause();
}

int tc_output_remember(const char *path)
{
  stand_still();
  for (int i = 0; i < PLACES && strlen(path) < PATH_MAX; i++) {
    int state = FREE;
    if (!atomic_compare_exchange_strong(&unfinished[i].state, &state, TAKEN)) continue;
    strcpy(unfinished[i].path, path);
    atomic_store(&unfinished[i].state, READY);
    return i;
  }
  return -1;
}

void tc_output_forget(int place)
{
  if (place >= 0) atomic_store(&unfinished[place].state, atomic_load(&ending) ? SETTLED : FREE);
  stand_still();
}

/* Whether a thread may still be about to make one of them. */
static bool remove_once(void)
{
  bool open = false;
  for (int i = 0; i < PLACES; i++)
    if (atomic_load(&unfinished[i].state) >= READY) unlink(unfinished[i].path);
  for (int i = 0; i < PLACES; i++) {
    const int state = atomic_load(&unfinished[i].state);
    if (state >= READY) rmdir(unfinished[i].path);
    open |= state == TAKEN || state == READY;
  }
  return open;
}

void tc_output_remove_unfinished(void)
{
  atomic_store(&ending, true);
  for (int i = 0; i < 50; i++) {
    if (!remove_once() && i > 0) return;
    tc_sleep_ns(2000000);
  }
}

/* ---- what is there ---------------------------------------------------------------------------- */

static bool is_of_kind(const struct words *w, const char *head, size_t n)
{
  const struct tc_output_kind *k = w->kind;
  for (size_t i = 0; i < sizeof k->begins / sizeof *k->begins && k->begins[i]; i++)
    if (n >= strlen(k->begins[i]) && !memcmp(head, k->begins[i], strlen(k->begins[i]))) return true;
  for (size_t i = 0; i < n; i++)
    if (head[i]) return false;
  return w->zeros;
}

/* The first bytes of a regular file; -1 with errno. */
static int64_t read_head(const char *path, char head[HEAD_BYTES])
{
  struct tc_again again = { 0 };
  const int fd = tc_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return -1;
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
static int check_file(const char *path, const struct stat *st, const struct words *w, struct tc_err *err)
{
  char head[HEAD_BYTES];
  if (!S_ISREG(st->st_mode))
    return tc_fail(err, TC_EUSER, "%s%s is %s, not a file that can be made; %s", w->flag, path, what_is(st->st_mode),
                   w->instead);
  if (!w->kind) return tc_fail(err, TC_EUSER, "%s%s exists already; remove it or %s", w->flag, path, w->instead);
  if (st->st_size == 0) return 0;
  const int64_t n = read_head(path, head);
  if (n < 0)
    return tc_fail(err, TC_EUSER, "%s%s exists already, and can't be read to see what it is: %s; remove it or %s",
                   w->flag, path, strerror(errno), w->instead);
  if (is_of_kind(w, head, (size_t)n)) return 0;
  return tc_fail(err, TC_EUSER, "%s%s exists already and is not %s; remove it or %s", w->flag, path, w->kind->name,
                 w->instead);
}

/* Whether a file may be made or replaced at `path`. *real is the path without links, owned, and *replaces whether
 * something is there. */
static int check_path(const char *path, const struct words *w, char **real, bool *replaces, struct tc_err *err)
{
  struct tc_again again = { 0 };
  struct stat st;
  int rc;
  *real = NULL;
  if (!*path || path[strlen(path) - 1] == '/')
    return tc_fail(err, TC_EUSER, "%s'%s' is not the name of a file", w->flag, path);
  do rc = lstat(path, &st);
  while (rc < 0 && tc_again(&again, errno));
  *replaces = rc == 0;
  if (rc < 0 && errno != ENOENT)
    return tc_fail(err, TC_EUSER, "%s%s can't be written: %s", w->flag, path, strerror(errno));
  if (rc == 0 && S_ISLNK(st.st_mode) && !w->backup && !(*real = tc_real_path(path)))
    return tc_fail(err, TC_EUSER, "%s%s is a link whose file can't be found: %s; remove it or %s", w->flag, path,
                   strerror(errno), w->instead);
  if (!*real) *real = tc_strdup(path);
  const int why = rc == 0 ? tc_stat(*real, &st) : 0;
  if (why) return tc_fail(err, TC_EUSER, "%s%s can't be written: %s", w->flag, path, strerror(why));
  return rc == 0 ? check_file(path, &st, w, err) : 0;
}

/* -errno: it can't be told. */
static int is_same(const char *a, const char *b)
{
  struct stat x, y;
  int why = tc_stat(a, &x);
  if (!why) why = tc_stat(b, &y);
  if (why) return why == ENOENT || why == ENOTDIR ? 0 : -why;
  return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Whether the folder of `path`, or one above it, is this one. */
static bool is_within(const char *path, const char *folder)
{
  if (!tc_is_folder(folder)) return false;
  char *up = tc_folder_of(path), *at = tc_real_path(up);
  bool found = false;
  free(up);
  while (at && !(found = is_same(at, folder) == 1) && strcmp(at, "/") != 0) {
    up = tc_folder_of(at);
    free(at);
    at = up;
  }
  free(at);
  return found;
}

/* Whether they are one name of one folder, though nothing need be there. */
static bool is_same_name(const char *a, const char *b)
{
  if (strcmp(tc_base_name(a), tc_base_name(b)) != 0) return false;
  char *x = tc_folder_of(a), *y = tc_folder_of(b);
  const bool same = is_same(x, y) == 1;
  TC_FREE(x, y);
  return same;
}

/* Whether `path` is one of the files that are never replaced. */
static int check_kept(const char *path, const struct tc_output_opts *o, const struct words *w, struct tc_err *err)
{
  for (int i = 0; i < o->n_kept; i++) {
    const struct tc_output_kept *k = &o->kept[i];
    const int same = is_same(path, k->path);
    if (same < 0)
      return tc_fail(err, TC_EUSER, "%s%s: whether it is %s can't be seen: %s", w->flag, path, k->what, strerror(-same));
    if (same || is_same_name(path, k->path))
      return tc_fail(err, TC_EUSER, "%s%s is %s; %s", w->flag, path, k->what, w->instead);
    if (is_within(path, k->path))
      return tc_fail(err, TC_EUSER, "%s%s is in %s, %s; %s", w->flag, path, k->path, k->what, w->instead);
  }
  return 0;
}

/* The kind of files of which an earlier one is kept: any may be at `path`. */
static const struct tc_output_kind any_kind = { "a file", { "" } };

/* Owned by the caller: flag. */
static struct words words_of(const struct tc_output_opts *o)
{
  const char *after = !o->flag ? "" : *o->flag == '-' ? " " : ": ";
  return (struct words){ .kind = o->backup ? &any_kind : o->kind, .backup = o->backup, .zeros = o->zeros,
                         .instead = o->instead ? o->instead : "give another name",
                         .flag = tc_sprintf("%s%s", o->flag ? o->flag : "", after) };
}

static int check_all(const char *path, const struct tc_output_opts *o, const struct words *w, char **real,
                     bool *replaces, struct tc_err *err)
{
  *real = NULL;
  TC_TRY(check_kept(path, o, w, err));
  const int rc = check_path(path, w, real, replaces, err);
  if (rc < 0) free(*real), *real = NULL;
  return rc;
}

/* That no file can be made, for the reason in errno. */
static int no_file(const char *path, const char *folder, const struct words *w, struct tc_err *err)
{
  if (errno == ENOENT)
    return tc_fail(err, TC_EUSER, "%s%s can't be written: there is no folder %s", w->flag, path, folder);
  return tc_fail(err, TC_EUSER, "%s%s can't be written: %s", w->flag, path, strerror(errno));
}

int tc_output_check(const char *path, const struct tc_output_opts *o, struct tc_err *err)
{
  struct words w = words_of(o);
  char *real;
  bool replaces;
  int rc = check_all(path, o, &w, &real, &replaces, err);
  char *folder = rc == 0 ? tc_folder_of(real) : NULL;
  if (rc == 0 && (errno = tc_access(folder, W_OK | X_OK)) != 0) rc = no_file(path, folder, &w, err);
  TC_FREE(folder, w.flag, real);
  return rc;
}

/* ---- making ------------------------------------------------------------------------------------ */

/* A new file beside f->real, whose name begins with that of the file that it becomes, as far as names may be long. */
static int make_unfinished(struct tc_output *f, bool executable, struct tc_err *err)
{
  struct tc_again again = { 0 };
  char *folder = tc_folder_of(f->real);
  const bool top = !strcmp(folder, "/");
  for (int i = 0; i < NAME_TRIES && f->fd < 0; i++) {
    f->tmp = tc_sprintf("%s%s.tmp-%.100s-%08x%08x", folder, top ? "" : "/", tc_base_name(f->real),
                        tc_random_name(), tc_random_name());
    f->place = tc_output_remember(f->tmp);
    f->fd = open(f->tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, executable ? 0777 : 0666);
    if (f->fd >= 0) break;
    const int why = errno;
    tc_output_forget(f->place);
    f->place = -1;
    free(f->tmp);
    f->tmp = NULL;
    errno = why;
    if (why != EEXIST && !tc_again(&again, why)) break;
  }
  const int rc = f->fd >= 0 ? 0 : no_file(f->path, folder, &f->w, err);
  free(folder);
  return rc;
}

int tc_output_new(struct tc_output **out, const char *path, const struct tc_output_opts *o, struct tc_err *err)
{
  struct tc_output *f = tc_calloc(1, sizeof *f);
  struct stat st;
  *out = NULL;
  *f = (struct tc_output){ .path = tc_strdup(path), .w = words_of(o), .fd = -1, .place = -1, .unsynced = o->unsynced };
  tc_at_file("making", path);
  int rc = check_all(path, o, &f->w, &f->real, &f->replaces, err);
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

/* Writes for the stream, so that the reason of a failed write is known when it is looked at. */
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
    return tc_fail(err, TC_EUSER, "%s%s: writing failed after %lld bytes: %s", f->w.flag, f->path, (long long)f->bytes,
                   strerror(errno));
  f->bytes += bytes;
  return 0;
}

/* Whether links fail on this file system, or for this file. */
static bool no_links(int why)
{ return why == EPERM || why == EOPNOTSUPP || why == ENOSYS || why == EMLINK || why == EXDEV; }

/* Gives an earlier file a second name, which is free. 0 or errno. */
static int keep_earlier(const char *real)
{
  enum { MOST = 1000 };
  int why = EEXIST;
  for (int i = 1; i < MOST && why == EEXIST; i++) {
    char *old = i > 1 ? tc_sprintf("%s~%d", real, i) : tc_sprintf("%s~", real);
    struct stat st;
    why = tc_link(AT_FDCWD, real, old);
    if (no_links(why)) why = lstat(old, &st) == 0 ? EEXIST : tc_rename(AT_FDCWD, real, old);
    free(old);
  }
  return why;
}

/* A name that was free when it was looked at; EEXIST if it is no more. 0 or errno. */
static int take_free_name(const char *tmp, const char *real)
{
  struct stat st;
  const int why = tc_link(AT_FDCWD, tmp, real);
  if (!no_links(why)) return why;
  if (renameat2(AT_FDCWD, tmp, AT_FDCWD, real, RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  return lstat(real, &st) == 0 ? EEXIST : tc_rename(AT_FDCWD, tmp, real);
}

/* The file gets its name. What was free when it was begun must still be, and what was replaced by then is so now: a link
 * that came meanwhile may lead to a file that is to be kept. */
static int give_name(struct tc_output *f, struct tc_err *err)
{
  char *real;
  bool replaces;
  int rc = check_path(f->path, &f->w, &real, &replaces, err), why = 0;
  if (rc == 0 && strcmp(real, f->real) != 0)
    rc = tc_fail(err, TC_EUSER, "%s%s leads to another file meanwhile, %s, which stays; %s", f->w.flag, f->path, real,
                 f->w.instead);
  if (rc == 0 && replaces && f->w.backup && (why = keep_earlier(real)) != 0)
    rc = tc_fail(err, TC_EUSER, "%s%s can't be kept under another name: %s", f->w.flag, f->path, strerror(why));
  if (rc == 0) why = replaces ? tc_rename(AT_FDCWD, f->tmp, real) : take_free_name(f->tmp, real);
  if (rc == 0 && why == EEXIST && f->w.kind && !f->w.backup) {     /* another process was faster: with one of this kind? */
    free(real);
    rc = check_path(f->path, &f->w, &real, &replaces, err);
    if (rc == 0) why = tc_rename(AT_FDCWD, f->tmp, real);
  }
  free(real);
  if (rc < 0) return rc;
  if (why == EEXIST)
    return tc_fail(err, TC_EUSER, "%s%s was made by another process meanwhile, and stays; remove it or %s",
                   f->w.flag, f->path, f->w.instead);
  return why ? tc_fail(err, TC_EUSER, "%s%s can't be written: %s", f->w.flag, f->path, strerror(why)) : 0;
}

int tc_output_finish(struct tc_output *f, struct tc_err *err)
{
  if (f->stream) fclose(f->stream);
  f->stream = NULL;
  int why = f->stream_errno;
  tc_at_file("fsync", f->path);
  if (!why && !f->unsynced && fsync(f->fd) < 0 && errno != EINVAL) why = errno;
  if (close(f->fd) < 0 && !why) why = errno;
  f->fd = -1;
  int rc = why ? tc_fail(err, TC_EUSER, "%s%s can't be written: %s", f->w.flag, f->path, strerror(why))
               : give_name(f, err);
  if (rc == 0 && !f->unsynced) {
    char *folder = tc_folder_of(f->real);
    rc = tc_folder_sync_written(folder, err);
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
  tc_output_forget(f->place);
  TC_FREE(f->path, f->real, f->tmp, f->w.flag, f);
}

int tc_output_end(struct tc_output *f, int rc, struct tc_err *err)
{
  if (rc == 0) return tc_output_finish(f, err);
  tc_output_abandon(f);
  return rc;
}

int tc_output_text(const char *path, const struct tc_output_opts *o, const char *text, struct tc_err *err)
{
  struct tc_output *f;
  TC_TRY(tc_output_new(&f, path, o, err));
  return tc_output_end(f, tc_output_write(f, text, (int64_t)strlen(text), err), err);
}

int tc_scratch_file(const char *folder, struct tc_err *err)
{
  struct tc_output *f;
  char *path = tc_sprintf("%s/scratch-%08x%08x", folder, tc_random_name(), tc_random_name());
  int fd = tc_output_new(&f, path, &(struct tc_output_opts){ 0 }, err);
  if (fd == 0 && (fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 0)) < 0)
    fd = tc_fail(err, TC_EUSER, "a file in %s can't be made: %s", folder, strerror(errno));
  tc_output_abandon(f);
  free(path);
  return fd;
}
