/* calls.h - the calls to the system that this program's own code makes, not those of a library that it is
 * linked with: each is written down, and one of them fails, in the way asked for. Only for the thread
 * that called trace_on. */
#ifndef TC_CALLS_H
#define TC_CALLS_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/tap.h"

enum { FAIL_EIO, FAIL_ENOENT, FAIL_EINTR, FAIL_NOTHING, FAIL_HALF, FAILURES };

static _Thread_local bool tracing;
static struct {
  int at, how, n;
  bool hit;
  FILE *out;
  uint32_t dice;
  char last[500];
} calls;
static char *opened[256]; /* path of each descriptor */

extern char __executable_start, etext;

#define OURS                                                                                       \
  (tracing && (char *)__builtin_return_address(0) > &__executable_start &&                         \
   (char *)__builtin_return_address(0) < &etext)

/* Writes a call down; whether it is the one to fail, so. `data`: it moves bytes. */
TAP_FORMAT(2, 3)
static bool call(bool data, const char *fmt, ...)
{
  char text[500];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  /* How many reads a file of HDF5's takes depends on where its version puts things. */
  if (data && strstr(text, ".h5") && !strcmp(text, calls.last)) return false;
  strcpy(calls.last, text);
  fprintf(calls.out, "  %s\n", text);
  if (++calls.n != calls.at || (!data && calls.how >= FAIL_EINTR)) return false;
  calls.hit = true;
  return true;
}

static long failed(void)
{
  static const int why[] = { EIO, ENOENT, EINTR };
  if (calls.how >= FAIL_NOTHING) return 0;
  errno = why[calls.how];
  return -1;
}

static const char *of(int fd) { return fd >= 0 && fd < 256 && opened[fd] ? opened[fd] : "?"; }

/* Whether it is one of the kernel's files, whose names have numbers of processes in them. */
static bool is_proc(const char *path) { return !strncmp(path, "/proc/", 6); }

/* Flags have other numbers on other machines. */
static const char *letters(int flags)
{
  static const struct {
    int flag;
    char letter;
  } of_flag[] = { { O_WRONLY, 'w' },   { O_RDWR, 'r' },    { O_CREAT, 'c' },
                  { O_TRUNC, 't' },    { O_EXCL, 'x' },    { O_DIRECTORY, 'd' },
                  { O_NOFOLLOW, 'n' }, { O_CLOEXEC, 'e' }, { O_NONBLOCK, 'b' } };
  static _Thread_local char text[10];
  int n = 0;
  for (size_t i = 0; i < sizeof of_flag / sizeof *of_flag; i++)
    if (flags & of_flag[i].flag) text[n++] = of_flag[i].letter;
  text[n] = 0;
  return text;
}

int open(const char *path, int flags, ...)
{
  va_list ap;
  va_start(ap, flags);
  int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
  va_end(ap);
  if (OURS && !is_proc(path) && call(false, "open %s -%s %o", path, letters(flags), (unsigned)mode))
    return (int)failed();
  int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
  if (fd >= 0 && fd < 256) {
    free(opened[fd]);
    opened[fd] = strdup(path);
  }
  return fd;
}

int close(int fd)
{
  bool bad = OURS && !is_proc(of(fd)) && call(false, "close %s", of(fd));
  int rc = (int)syscall(SYS_close, fd);
  return bad ? (int)failed() : rc;
}

int fsync(int fd)
{
  return OURS && call(false, "fsync %s", of(fd)) ? (int)failed() : 0; /* the disk has other work */
}

ssize_t write(int fd, const void *data, size_t bytes)
{
  if (fd != 2 && OURS && call(true, "write %s", of(fd))) {
    if (calls.how != FAIL_HALF) return failed();
    bytes = (bytes + 1) / 2;
  }
  return syscall(SYS_write, fd, data, bytes);
}

ssize_t pread(int fd, void *data, size_t bytes, off_t at)
{
  if (OURS && call(true, "pread %s", of(fd))) {
    if (calls.how != FAIL_HALF) return failed();
    bytes = (bytes + 1) / 2;
  }
  return syscall(SYS_pread64, fd, data, bytes, at);
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at)
{
  if (OURS && call(true, "pwritev %s %d", of(fd), n)) {
    if (calls.how != FAIL_HALF) return failed();
    return syscall(SYS_pwrite64, fd, v->iov_base, (v->iov_len + 1) / 2, at);
  }
  ssize_t done = 0;
  for (int i = 0; i < n; i++)
    done += syscall(SYS_pwrite64, fd, v[i].iov_base, v[i].iov_len, at + done);
  return done;
}

int rename(const char *from, const char *to)
{
  if (OURS && call(false, "rename %s %s", from, to)) return (int)failed();
  return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat(int a, const char *from, int b, const char *to)
{
  if (OURS && call(false, "renameat %s/%s %s/%s", of(a), from, of(b), to)) return (int)failed();
  return (int)syscall(SYS_renameat2, a, from, b, to, 0);
}

int mkdir(const char *path, mode_t mode)
{
  if (OURS && call(false, "mkdir %s %o", path, mode)) return (int)failed();
  return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int rmdir(const char *path)
{
  if (OURS && call(false, "rmdir %s", path)) return (int)failed();
  return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

int unlink(const char *path)
{
  if (OURS && call(false, "unlink %s", path)) return (int)failed();
  return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int fd, const char *path, int flags)
{
  if (OURS && call(false, "unlinkat %s/%s %d", of(fd), path, flags)) return (int)failed();
  return (int)syscall(SYS_unlinkat, fd, path, flags);
}

int access(const char *path, int mode)
{
  if (OURS && call(false, "access %s %d", path, mode)) return (int)failed();
  return (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

/* A folder's names come in their order. */
struct listing {
  struct dirent **item;
  int n, at;
  char path[200];
};

DIR *opendir(const char *path)
{
  if (OURS && call(false, "opendir %s", path)) {
    failed();
    return NULL;
  }
  struct listing *l = calloc(1, sizeof *l);
  snprintf(l->path, sizeof l->path, "%s", path);
  l->n = l ? scandir(path, &l->item, NULL, alphasort) : -1;
  if (l->n >= 0) return (DIR *)(void *)l;
  free(l);
  return NULL;
}

struct dirent *readdir(DIR *d)
{
  struct listing *l = (void *)d;
  if (l->at < l->n) return l->item[l->at++];
  if (OURS && call(false, "readdir %s", l->path)) failed();
  return NULL;
}

int closedir(DIR *d)
{
  struct listing *l = (void *)d;
  for (int i = 0; i < l->n; i++) free(l->item[i]);
  free(l->item);
  free(l);
  return 0;
}

/* Names made of chance or of the time are the same each time. */
ssize_t getrandom(void *buf, size_t bytes, unsigned flags)
{
  if (!tracing || bytes != sizeof calls.dice) return syscall(SYS_getrandom, buf, bytes, flags);
  calls.dice++;
  memcpy(buf, &calls.dice, bytes);
  return (ssize_t)bytes;
}

/* What is tried again is tried at once. */
int clock_nanosleep(clockid_t id, int flags, const struct timespec *t, struct timespec *left)
{
  if (OURS) return 0;
  return syscall(SYS_clock_nanosleep, id, flags, t, left) < 0 ? errno : 0;
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
  if (!tracing) return (int)syscall(SYS_clock_gettime, id, ts);
  *ts = (struct timespec){ .tv_sec = 1000 };
  return 0;
}

#endif
