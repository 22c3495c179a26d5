/* names.c - names in folders. A rename is durable once the folder that holds the new name is fsynced.
 *
 * What tells whether a call that failed was carried out: a rename, that the new name is the file that the old one was,
 * and the old name is gone; a link, that both names are one file; an unlink, that the name is gone. */
#include "src/files/names.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/base.h"
#include "src/files/again.h"
#include "src/watch/watch.h"

/* ---- names ------------------------------------------------------------------------------- */

/* again: that of the call which the look is for, so that both together end in time. */
static bool look(int at, const char *name, struct stat *st, struct tc_again *again)
{
  int rc;
  do rc = fstatat(at, name, st, AT_SYMLINK_NOFOLLOW);
  while (rc < 0 && tc_again(again, errno));
  return rc == 0;
}

static bool is_same(const struct stat *a, const struct stat *b) { return a->st_dev == b->st_dev && a->st_ino == b->st_ino; }

static bool is_gone(int at, const char *name, struct tc_again *again)
{
  struct stat st;
  return !look(at, name, &st, again) && errno == ENOENT;
}

int tc_rename(int at, const char *from, const char *to)
{
  struct tc_again again = { 0 };
  struct stat was, now;
  const bool known = look(at, from, &was, &again);
  for (;;) {
    if (renameat(at, from, at, to) == 0) return 0;
    const int why = errno;
    if (known && look(at, to, &now, &again) && is_same(&was, &now) && is_gone(at, from, &again)) return 0;
    if (!tc_again(&again, why)) return why;
  }
}

int tc_link(int at, const char *from, const char *to)
{
  struct tc_again again = { 0 };
  struct stat a, b;
  for (;;) {
    if (linkat(at, from, at, to, 0) == 0) return 0;
    const int why = errno;
    if (look(at, from, &a, &again) && look(at, to, &b, &again) && is_same(&a, &b)) return 0;
    if (why == EPERM || !tc_again(&again, why)) return why;     /* EPERM: this file system has no links */
  }
}

/* flags: of unlinkat. */
static int remove_name(int at, const char *name, int flags)
{
  struct tc_again again = { 0 };
  for (;;) {
    if (unlinkat(at, name, flags) == 0) return 0;
    const int why = errno;
    if (why == ENOENT || is_gone(at, name, &again)) return 0;
    if (!tc_again(&again, why)) return why;
  }
}

int tc_unlink(int at, const char *name) { return remove_name(at, name, 0); }
int tc_rmdir(int at, const char *name) { return remove_name(at, name, AT_REMOVEDIR); }

/* Whether the folder is there and has nothing in it. */
static bool is_empty_folder(int at, const char *name)
{
  const int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *d = fd < 0 ? NULL : fdopendir(fd);
  if (!d && fd >= 0) close(fd);
  if (!d) return false;
  int n = 0;
  while (n <= 2 && readdir(d)) n++;
  closedir(d);
  return n <= 2;
}

int tc_mkdir_own(int at, const char *name)
{
  struct tc_again again = { 0 };
  for (;;) {
    if (mkdirat(at, name, 0777) == 0) return 0;
    const int why = errno;
    if (is_empty_folder(at, name)) return 0;
    if (!tc_again(&again, why)) return why;
  }
}

/* ---- looking ----------------------------------------------------------------------------- */

int tc_open(const char *path, int flags)
{
  struct tc_again again = { 0 };
  int fd;
  do fd = open(path, flags, 0666);
  while (fd < 0 && tc_again(&again, errno));
  return fd;
}

int tc_open_stat(const char *path, struct stat *st)
{
  struct tc_again again = { 0 };
  for (;;) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0 && fstat(fd, st) == 0) return fd;
    const int why = errno;
    if (fd >= 0) close(fd);
    if (!tc_again(&again, why)) return -1;
  }
}

int tc_open_read(const char *path)
{
  struct stat st;
  return tc_open_stat(path, &st);
}

int tc_stat(const char *path, struct stat *st)
{
  struct tc_again again = { 0 };
  int rc;
  do rc = stat(path, st);
  while (rc < 0 && tc_again(&again, errno));
  return rc < 0 ? errno : 0;
}

int tc_access(const char *path, int mode)
{
  struct tc_again again = { 0 };
  int rc;
  do rc = access(path, mode);
  while (rc < 0 && tc_again(&again, errno));
  return rc < 0 ? errno : 0;
}

char *tc_real_path(const char *path)
{
  struct tc_again again = { 0 };
  char *real;
  do real = realpath(path, NULL);
  while (!real && tc_again(&again, errno));
  return real;
}

int tc_is_there(const char *path)
{
  struct stat st;
  const int why = tc_stat(path, &st);
  return why == 0 ? 1 : why == ENOENT || why == ENOTDIR ? 0 : -why;
}

bool tc_is_folder(const char *path)
{
  struct stat st;
  return tc_stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* ---- folders ----------------------------------------------------------------------------- */

/* One reading of the folder. Returns the number of names, or -errno. */
static int scan(const char *dir, const char *prefix, char ***names)
{
  char **list = NULL;
  int n = 0, cap = 0;
  DIR *d = opendir(dir);
  if (!d) return -errno;
  struct dirent *e;
  while (errno = 0, (e = readdir(d))) {
    if (strncmp(e->d_name, prefix, strlen(prefix)) != 0) continue;
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    TC_APPEND(list, n, cap, tc_strdup(e->d_name));
  }
  const int why = errno;
  closedir(d);
  if (why) {
    tc_names_free(list, n);
    return -why;
  }
  *names = list;
  return n;
}

int tc_folder_scan(const char *dir, const char *prefix, char ***names, struct tc_err *err)
{
  struct tc_again again = { 0 };
  int n;
  *names = NULL;
  do n = scan(dir, prefix, names);
  while (n < 0 && tc_again(&again, -n));
  if (n == -ENOENT) return 0;
  return n < 0 ? tc_fail(err, TC_EUSER, "%s: the folder can't be read: %s", dir, strerror(-n)) : n;
}

void tc_names_free(char **names, int n)
{
  for (int i = 0; i < n; i++) free(names[i]);
  free(names);
}

int tc_folder_sync(const char *path, struct tc_err *err)
{
  struct tc_again again = { 0 };
  int rc, why = 0;
  tc_at_file("fsync", path);
  do {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    rc = fd < 0 ? -1 : fsync(fd);
    why = errno;
    if (fd >= 0) close(fd);
    if (fd >= 0) break;            /* an fsync that failed is not repeated: the second one may forget the failure */
  } while (rc < 0 && tc_again(&again, why));
  /* Some file systems can't fsync a folder; they say so and are synchronous there. */
  if (rc < 0 && why != EINVAL && why != ENOTSUP && why != ENOSYS)
    return tc_fail(err, TC_EUSER, "%s: can't be flushed to disk: %s", path, strerror(why));
  return 0;
}

int tc_folder_sync_written(const char *path, struct tc_err *err)
{
  return tc_access(path, R_OK) == EACCES ? 0 : tc_folder_sync(path, err);
}

/* 0, or errno. A folder that is there is no failure: others may make it at the same time. */
static int make_one(const char *path)
{
  struct tc_again again = { 0 };
  struct stat st;
  for (;;) {
    if (mkdir(path, 0777) == 0) return 0;
    const int why = errno;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return 0;
    if (!tc_again(&again, why)) return why;
  }
}

int tc_folder_make(const char *path, struct tc_err *err)
{
  struct stat st;
  if (stat(path, &st) == 0) {
    if (S_ISDIR(st.st_mode)) return 0;
    return tc_fail(err, TC_EUSER, "%s: there is a file of this name; a folder is needed", path);
  }
  char *up = tc_folder_of(path);
  int why = make_one(path), rc = 0;
  if (why == ENOENT && strcmp(up, path) != 0) {
    rc = tc_folder_make(up, err);
    if (rc == 0) why = make_one(path);
  }
  if (rc == 0 && why) rc = tc_fail(err, TC_EUSER, "%s: can't be made: %s", path, strerror(why));
  if (rc == 0) rc = tc_folder_sync_written(up, err);
  free(up);
  return rc;
}

int tc_folder_make_new(const char *path, char **made, struct tc_err *err)
{
  struct stat st;
  char *at = tc_strdup(path), *up;
  *made = NULL;
  while (lstat(at, &st) < 0 && errno == ENOENT) {
    up = tc_folder_of(at);
    free(*made);
    *made = at;
    at = up;
  }
  free(at);
  const int rc = tc_folder_make(path, err);
  if (rc < 0) {
    tc_folder_unmake(path, *made);
    *made = NULL;
  }
  return rc;
}

void tc_folder_unmake(const char *path, char *made)
{
  char *at = tc_strdup(path);
  while (made && strlen(at) >= strlen(made) && tc_rmdir(AT_FDCWD, at) == 0) {
    char *up = tc_folder_of(at);
    free(at);
    at = up;
  }
  TC_FREE(at, made);
}

int tc_folder_rename(const char *dir, const char *from, const char *to, struct tc_err *err)
{
  const int fd = tc_open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return tc_fail(err, TC_EUSER, "%s: %s", dir, strerror(errno));
  const int why = tc_rename(fd, from, to);
  close(fd);
  if (why)
    return tc_fail(err, TC_EUSER, "%s/%s: can't be renamed to %s: %s", dir, from, to, strerror(why));
  return tc_folder_sync(dir, err);
}

/* ---- bytes ------------------------------------------------------------------------------- */

bool tc_write_all(int fd, const void *buf, int64_t bytes)
{
  struct tc_again again = { 0 };
  const char *at = buf;
  while (bytes > 0) {
    tc_at_again();
    const ssize_t n = write(fd, at, (size_t)TC_MIN(bytes, INT64_C(1) << 30));
    /* Another error is not tried again: the file's place may have changed. */
    if (n < 0 && errno == EINTR && tc_again(&again, errno)) continue;
    if (n == 0) errno = ENOSPC;
    if (n <= 0) return false;
    again = (struct tc_again){ 0 };
    at += n;
    bytes -= n;
  }
  return true;
}

bool tc_pread_all(int fd, void *buf, int64_t bytes, int64_t offset)
{
  struct tc_again again = { 0 };
  char *at = buf;
  while (bytes > 0) {
    size_t ask = (size_t)TC_MIN(bytes, INT64_C(1) << 30);
    tc_at_again();
    ssize_t n = pread(fd, at, ask, (off_t)offset);
    if (n < 0 && tc_again(&again, errno)) continue;
    if (n == 0) errno = 0;
    if (n <= 0) return false;
    again = (struct tc_again){ 0 };
    at += n;
    bytes -= n;
    offset += n;
  }
  return true;
}
