/* nfs_shim.c - a network file system in trouble, between a program and the C library; nfs_shim.so is preloaded.
 *
 *   LD_PRELOAD=nfs_shim.so TC_NFS_ROOT=DIR[:DIR...] TC_NFS_LOG=FILE [TC_NFS_KIND=KIND TC_NFS_CALL=K TC_NFS_FAULT=FAULT
 *   [TC_NFS_FOREVER=1]] [TC_NFS_LATE=TEXT TC_NFS_LOOKS=N] [TC_NFS_HURRY=N] [TC_NFS_RANK=R (of mpirun)] PROGRAM
 *
 * Counts the calls of each kind on what lies under the folders; the K-th of one kind fails with the error, and with
 * FOREVER all later ones of this kind on this path too. FAULT "done": the call is carried out, and EIO is reported all the
 * same. LATE: what has TEXT in its path is not there for the first N looks. HURRY: pauses take the N-th part of their time.
 * Appends "KIND N" for each kind to FILE at exit, and "fired KIND K PATH" when it strikes. What streams of <stdio.h> do
 * after fopen isn't seen. */
#undef _FORTIFY_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { OPEN, READ, WRITE, LOOK, LIST, RENAME, MKDIR, LINK, UNLINK, SYNC, MODE, KINDS };
static const char *const kind_name[KINDS] = {
  "open", "read", "write", "look", "list", "rename", "mkdir", "link", "unlink", "sync", "mode"
};
static const struct { const char *name; int number; } faults[] = {
  { "EIO", EIO }, { "ESTALE", ESTALE }, { "EINTR", EINTR }, { "ENOMEM", ENOMEM }, { "EACCES", EACCES }, { "EPERM", EPERM },
  { "ENOSPC", ENOSPC }, { "ENOTSUP", ENOTSUP }, { "done", EIO }
};

enum { PATH = 1024, LATES = 256 };
static char roots[4 * PATH], struck[PATH];
static int count[KINDS], kind = -1, call, error, log_fd = -1, looks, hurry = 1, fired;
static bool acts, for_ever;
static const char *late;
static struct { char path[PATH]; int n; } seen[LATES];

#define REAL(ret, name, ...) ((ret (*)(__VA_ARGS__))(uintptr_t)dlsym(RTLD_NEXT, #name))

static bool under(const char *path)
{
  for (const char *r = roots; *r;) {
    const size_t n = strcspn(r, ":");
    if (n && !strncmp(path, r, n) && (path[n] == '/' || !path[n])) return true;
    r += n + (r[n] == ':');
  }
  return false;
}

/* The path that a call means, if it is ours. */
static bool resolve(char out[PATH], int dirfd, const char *path)
{
  char base[PATH / 2] = "", link[40];
  if (log_fd < 0 || !path) return false;
  if (*path != '/' && dirfd == AT_FDCWD && !REAL(char *, getcwd, char *, size_t)(base, sizeof base)) return false;
  if (*path != '/' && dirfd != AT_FDCWD) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
    const long n = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
    if (n < 0) return false;
    base[n] = 0;
  }
  if (*path == '/') snprintf(out, PATH, "%s", path);
  else snprintf(out, PATH, "%s%s%.500s", base, *path ? "/" : "", path);
  return under(out);
}

static void write_log(const char *fmt, ...)
{
  char line[PATH + 100];
  va_list ap;
  va_start(ap, fmt);
  const int n = vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  syscall(SYS_write, log_fd, line, n);
}

/* Whether a look at the path is too early. */
static bool is_late(int k, const char *path)
{
  if (!late || (k != OPEN && k != LOOK) || !strstr(path, late)) return false;
  int i = 0;
  while (i < LATES - 1 && *seen[i].path && strcmp(seen[i].path, path)) i++;
  snprintf(seen[i].path, PATH, "%s", path);
  if (seen[i].n >= looks) return false;
  seen[i].n++;
  errno = ENOENT;
  return true;
}

/* 0: the call goes on; 1: it fails with errno; 2: it is carried out, and then fails. */
static int fate(int k, int dirfd, const char *path)
{
  char full[PATH];
  const int was = errno;
  if (!resolve(full, dirfd, path)) {
    errno = was;
    return 0;
  }
  const int n = __atomic_add_fetch(&count[k], 1, __ATOMIC_SEQ_CST);
  errno = was;
  if (is_late(k, full)) return 1;
  if (k != kind) return 0;
  if (n == call && !__atomic_exchange_n(&fired, 1, __ATOMIC_SEQ_CST)) {
    snprintf(struck, sizeof struck, "%s", full);
    write_log("fired %s %d %s\n", kind_name[k], n, full);
  } else if (!for_ever || !fired || strcmp(struck, full)) {
    errno = was;
    return 0;
  }
  errno = error;
  return acts ? 2 : 1;
}

/* A wrapper: `real` is the call. */
#define WRAP(k, dirfd, path, failure, real) do { \
    const int fate_ = fate(k, dirfd, path); \
    if (fate_ == 1) return failure; \
    if (fate_ == 0) return real; \
    (void)!(real); \
    errno = error; \
    return failure; \
  } while (0)

/* ---- opening ---- */

static mode_t mode_arg(int flags, va_list ap) { return flags & (O_CREAT | __O_TMPFILE) ? (mode_t)va_arg(ap, unsigned) : 0; }
#define OPENS(name, dirfd, ...) { va_list ap; va_start(ap, flags); const mode_t mode = mode_arg(flags, ap); va_end(ap); \
    WRAP(OPEN, dirfd, path, -1, (int)syscall(SYS_openat, dirfd, path, flags, mode)); }
int open(const char *path, int flags, ...) OPENS(open, AT_FDCWD)
int open64(const char *path, int flags, ...) OPENS(open64, AT_FDCWD)
int openat(int dirfd, const char *path, int flags, ...) OPENS(openat, dirfd)
int openat64(int dirfd, const char *path, int flags, ...) OPENS(openat64, dirfd)
int __open_2(const char *path, int flags);
int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags);
int __open64_2(const char *path, int flags) { return open(path, flags); }
FILE *fopen(const char *path, const char *how)
{ WRAP(OPEN, AT_FDCWD, path, NULL, REAL(FILE *, fopen, const char *, const char *)(path, how)); }
FILE *fopen64(const char *path, const char *how) { return fopen(path, how); }
DIR *opendir(const char *path) { WRAP(LIST, AT_FDCWD, path, NULL, REAL(DIR *, opendir, const char *)(path)); }

/* ---- reading and writing ---- */

ssize_t read(int fd, void *p, size_t n) { WRAP(READ, fd, "", -1, syscall(SYS_read, fd, p, n)); }
ssize_t pread(int fd, void *p, size_t n, off_t at) { WRAP(READ, fd, "", -1, syscall(SYS_pread64, fd, p, n, at)); }
ssize_t pread64(int fd, void *p, size_t n, off64_t at) { return pread(fd, p, n, at); }
ssize_t __read_chk(int fd, void *p, size_t n, size_t size);
ssize_t __read_chk(int fd, void *p, size_t n, size_t size) { (void)size; return read(fd, p, n); }
ssize_t __pread_chk(int fd, void *p, size_t n, off_t at, size_t size);
ssize_t __pread_chk(int fd, void *p, size_t n, off_t at, size_t size) { (void)size; return pread(fd, p, n, at); }
ssize_t __pread64_chk(int fd, void *p, size_t n, off_t at, size_t size);
ssize_t __pread64_chk(int fd, void *p, size_t n, off_t at, size_t size) { (void)size; return pread(fd, p, n, at); }
struct dirent *readdir(DIR *d)
{ WRAP(LIST, dirfd(d), "", NULL, REAL(struct dirent *, readdir, DIR *)(d)); }
struct dirent64 *readdir64(DIR *d) { return (struct dirent64 *)readdir(d); }
ssize_t write(int fd, const void *p, size_t n) { WRAP(WRITE, fd, "", -1, syscall(SYS_write, fd, p, n)); }
ssize_t pwrite(int fd, const void *p, size_t n, off_t at) { WRAP(WRITE, fd, "", -1, syscall(SYS_pwrite64, fd, p, n, at)); }
ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at) { return pwrite(fd, p, n, at); }
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at)
{ WRAP(WRITE, fd, "", -1, syscall(SYS_pwritev, fd, v, n, (long)at, 0L)); }
ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t at) { return pwritev(fd, v, n, at); }
/* Nothing is lost by a power cut here, so that the disk has other work. */
int fsync(int fd)
{
  char full[PATH];
  if (!resolve(full, fd, "")) return (int)syscall(SYS_fsync, fd);
  WRAP(SYNC, fd, "", -1, 0);
}

/* ---- looking ---- */

static int look(int dirfd, const char *path, struct stat *st, int flags)
{ WRAP(LOOK, dirfd, path, -1, (int)syscall(SYS_newfstatat, dirfd, path, st, flags)); }
int stat(const char *path, struct stat *st) { return look(AT_FDCWD, path, st, 0); }
int lstat(const char *path, struct stat *st) { return look(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW); }
int fstat(int fd, struct stat *st) { return look(fd, "", st, AT_EMPTY_PATH); }
int fstatat(int dirfd, const char *path, struct stat *st, int flags) { return look(dirfd, path, st, flags); }
int stat64(const char *path, struct stat64 *st) { return look(AT_FDCWD, path, (struct stat *)st, 0); }
int lstat64(const char *path, struct stat64 *st) { return look(AT_FDCWD, path, (struct stat *)st, AT_SYMLINK_NOFOLLOW); }
int fstat64(int fd, struct stat64 *st) { return look(fd, "", (struct stat *)st, AT_EMPTY_PATH); }
int access(const char *path, int mode)
{ WRAP(LOOK, AT_FDCWD, path, -1, (int)syscall(SYS_faccessat, AT_FDCWD, path, mode)); }

/* ---- names ---- */

int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{ WRAP(RENAME, b, to, -1, (int)syscall(SYS_renameat2, a, from, b, to, flags)); }
int renameat(int a, const char *from, int b, const char *to) { return renameat2(a, from, b, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
int mkdirat(int dirfd, const char *path, mode_t mode)
{ WRAP(MKDIR, dirfd, path, -1, (int)syscall(SYS_mkdirat, dirfd, path, mode)); }
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
int linkat(int a, const char *from, int b, const char *to, int flags)
{ WRAP(LINK, b, to, -1, (int)syscall(SYS_linkat, a, from, b, to, flags)); }
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int unlinkat(int dirfd, const char *path, int flags)
{ WRAP(UNLINK, dirfd, path, -1, (int)syscall(SYS_unlinkat, dirfd, path, flags)); }
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int fchmod(int fd, mode_t mode) { WRAP(MODE, fd, "", -1, (int)syscall(SYS_fchmod, fd, mode)); }
int fchmodat(int dirfd, const char *path, mode_t mode, int flags)
{ (void)flags; WRAP(MODE, dirfd, path, -1, (int)syscall(SYS_fchmodat, dirfd, path, mode)); }
int chmod(const char *path, mode_t mode) { return fchmodat(AT_FDCWD, path, mode, 0); }

/* ---- time ---- */

int clock_nanosleep(clockid_t id, int flags, const struct timespec *t, struct timespec *left)
{
  if (flags & TIMER_ABSTIME || hurry == 1) return syscall(SYS_clock_nanosleep, id, flags, t, left) < 0 ? errno : 0;
  const long long ns = (t->tv_sec * 1000000000LL + t->tv_nsec) / hurry;
  const struct timespec less = { ns / 1000000000, ns % 1000000000 };
  return syscall(SYS_clock_nanosleep, id, 0, &less, left) < 0 ? errno : 0;
}

__attribute__((constructor)) static void begin(void)
{
  const char *root = getenv("TC_NFS_ROOT"), *log = getenv("TC_NFS_LOG"), *name = getenv("TC_NFS_KIND");
  const char *fault = getenv("TC_NFS_FAULT"), *rank = getenv("TC_NFS_RANK"), *mine = getenv("OMPI_COMM_WORLD_RANK");
  const char *k = getenv("TC_NFS_CALL"), *n = getenv("TC_NFS_LOOKS"), *h = getenv("TC_NFS_HURRY");
  if (!root || !log || (rank && (!mine || strcmp(rank, mine)))) return;
  snprintf(roots, sizeof roots, "%s", root);
  for (int i = 0; name && fault && i < KINDS; i++)
    if (!strcmp(name, kind_name[i])) kind = i;
  for (size_t i = 0; fault && i < sizeof faults / sizeof *faults; i++)
    if (!strcmp(fault, faults[i].name)) error = faults[i].number;
  acts = fault && !strcmp(fault, "done");
  call = k ? atoi(k) : 0;
  for_ever = getenv("TC_NFS_FOREVER") != NULL;
  late = getenv("TC_NFS_LATE");
  looks = n ? atoi(n) : 0;
  hurry = h ? atoi(h) : 1;
  log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

__attribute__((destructor)) static void end(void)
{
  for (int i = 0; i < KINDS && log_fd >= 0; i++)
    if (count[i]) write_log("%s %d\n", kind_name[i], count[i]);
}
