/* shim.c - the C library's calls on files and folders, with faults and a record.
 *
 * Every wrapper asks enter() what to do with its call, makes the real system call itself (so it
 * depends on no other wrapper), and tells leave(). Calls on anything outside of the root pass
 * untouched. While recording, one lock is held over each call: the record's order is the order
 * of the effects. Large-file names are the plain ones on 64-bit machines. */
#undef _FORTIFY_SOURCE
#include "tests/faults/shim.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

const char *const shim_fault_name[SHIM_FAULTS] = {
  "none", "kill", "kill-after", "kill-mid", "eio", "enospc", "short", "short-full", "full",
  "read-only"
};

enum { FDS = 4096 };

static struct shim *ctl;
static char *fd_path[FDS];        /* what is open under the root */
static __thread int my_counter;
static int log_fd = -1;           /* shim.so: where the report goes */
static int late_ms, read_ms;      /* shim.so: what every fdatasync, and every pread in ROOT, takes besides */
static bool struck_full, struck_read_only;
static struct { bool on; int set; char path[SHIM_PATH]; off_t at; } bad;    /* shim.so: the place whose pread fails for good */

static bool recording;
static pthread_mutex_t record_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shim_record *record;
static int n_records, cap_records;

struct shim *shim_ctl(void)
{
  if (!ctl) {
    void *p = mmap(NULL, sizeof *ctl, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    ctl = p;
  }
  return ctl;
}

void shim_counter(int counter) { my_counter = counter; }

bool shim_applies(int kind, int fault)
{
  bool changes = kind != SHIM_OPEN && kind != SHIM_READ && kind != SHIM_LOOK;
  bool grows = kind == SHIM_CREATE || kind == SHIM_MKDIR || kind == SHIM_WRITE ||
               kind == SHIM_SIZE;
  switch (fault) {
  case SHIM_KILL: case SHIM_EIO: return true;
  case SHIM_KILL_AFTER: return changes;
  case SHIM_KILL_MID: case SHIM_SHORT: case SHIM_SHORT_FULL: return kind == SHIM_WRITE;
  case SHIM_ENOSPC: return changes && kind != SHIM_UNLINK;
  case SHIM_FULL: return grows || kind == SHIM_SYNC;
  case SHIM_READ_ONLY: return changes;
  default: return false;
  }
}

void shim_arm(const char *root, int counter, int call, int fault)
{
  struct shim *c = shim_ctl();
  shim_disarm();
  memset(c->count, 0, sizeof c->count);
  c->counter = counter;
  c->call = call;
  c->fault = fault;
  c->fired = 0;
  *c->what = '\0';
  struck_full = struck_read_only = false;
  snprintf(c->root, sizeof c->root, "%s", root);
}

void shim_disarm(void) { *shim_ctl()->root = '\0'; }

/* ---- which calls are ours --------------------------------------------------------- */

static bool under(const char *path)
{
  if (!ctl || !*ctl->root) return false;
  size_t n = strlen(ctl->root);
  return strncmp(path, ctl->root, n) == 0 && (path[n] == '/' || !path[n]);
}

static const char *path_of(int fd)
{
  return ctl && *ctl->root && fd >= 0 && fd < FDS ? fd_path[fd] : NULL;
}

static void learn_fd(int fd, const char *path)
{
  if (fd < 0 || fd >= FDS) return;
  free(fd_path[fd]);
  fd_path[fd] = path ? strdup(path) : NULL;
}

/* The path that a call means; false: not ours. */
static bool resolve(char out[SHIM_PATH], int dirfd, const char *path)
{
  if (!ctl || !*ctl->root || !path) return false;
  if (*path == '/') snprintf(out, SHIM_PATH, "%s", path);
  else if (dirfd == AT_FDCWD) {
    char cwd[SHIM_PATH / 2];
    if (syscall(SYS_getcwd, cwd, sizeof cwd) < 0) return false;
    snprintf(out, SHIM_PATH, "%s/%.250s", cwd, path);
  } else {
    if (!path_of(dirfd)) return false;
    snprintf(out, SHIM_PATH, "%.250s/%.250s", path_of(dirfd), path);
  }
  return under(out);
}

/* ---- a call's fate ---------------------------------------------------------------- */

struct call {
  bool fails, half, die_after;    /* fails: with errno; half: of a write is done */
};

static void die(void)
{
  syscall(SYS_kill, getpid(), SIGKILL);
  for (;;) pause();
}

static void say(const char *name, const char *path, int k)
{
  snprintf(ctl->what, sizeof ctl->what, "%s %s", name, path);
  if (log_fd < 0) return;
  char line[SHIM_PATH + 200];
  int n = snprintf(line, sizeof line, "fired %s at call %d: %s\n", shim_fault_name[ctl->fault], k,
                   ctl->what);
  syscall(SYS_write, log_fd, line, n);
}

static void strike(struct call *c, int fault)
{
  switch (fault) {
  case SHIM_KILL: die(); break;
  case SHIM_KILL_AFTER: c->die_after = true; break;
  case SHIM_KILL_MID: c->half = c->die_after = true; break;
  case SHIM_SHORT: c->half = true; break;
  case SHIM_SHORT_FULL: c->half = struck_full = true; break;
  case SHIM_FULL: struck_full = c->fails = true; errno = ENOSPC; break;
  case SHIM_READ_ONLY: struck_read_only = c->fails = true; errno = EROFS; break;
  case SHIM_ENOSPC: c->fails = true; errno = ENOSPC; break;
  default: c->fails = true; errno = EIO; break;
  }
}

/* Keeps errno unless the call is to fail. */
static struct call enter(int kind, const char *name, const char *path)
{
  struct call c = {0};
  int was = errno, counter = my_counter;
  if (recording) pthread_mutex_lock(&record_lock);
  int k = __atomic_add_fetch(&ctl->count[counter], 1, __ATOMIC_SEQ_CST);
  if (k <= SHIM_CALLS) ctl->kind[counter][k - 1] = (uint8_t)kind;
  errno = was;
  if (ctl->fault && counter == ctl->counter && k >= ctl->call && shim_applies(kind, ctl->fault) &&
      !__atomic_exchange_n(&ctl->fired, 1, __ATOMIC_SEQ_CST)) {
    say(name, path, k);
    errno = was;
    strike(&c, ctl->fault);
  } else if (struck_read_only && shim_applies(kind, SHIM_READ_ONLY) && kind != SHIM_CLOSE &&
             kind != SHIM_SYNC) {
    c.fails = true;
    errno = EROFS;
  } else if (struck_full && shim_applies(kind, SHIM_FULL) && kind != SHIM_SYNC) {
    c.fails = true;
    errno = ENOSPC;
  }
  return c;
}

static void leave(const struct call *c)
{
  if (c->die_after) die();
  if (recording) pthread_mutex_unlock(&record_lock);
}

/* ---- the record ------------------------------------------------------------------- */

void shim_record_on(bool on)
{
  if (on) n_records = 0;
  recording = on;
}

const struct shim_record *shim_records(int *n)
{
  *n = n_records;
  return record;
}

static struct shim_record *note(int op, int fd, const char *path, const char *to)
{
  static struct shim_record nothing;
  if (!recording) return &nothing;
  if (n_records == cap_records) {
    cap_records = cap_records ? 2 * cap_records : 1024;
    record = realloc(record, (size_t)cap_records * sizeof *record);
    if (!record) abort();
  }
  struct shim_record *r = &record[n_records++];
  *r = (struct shim_record){ .op = op, .fd = fd, .path = path ? strdup(path) : NULL,
                             .to = to ? strdup(to) : NULL };
  return r;
}

static void note_write(int fd, const void *data, int64_t bytes, int64_t offset)
{
  if (!recording || bytes <= 0) return;
  struct shim_record *r = note(OP_WRITE, fd, NULL, NULL);
  r->data = malloc((size_t)bytes);
  if (!r->data) abort();
  memcpy(r->data, data, (size_t)bytes);
  r->offset = offset;
  r->bytes = bytes;
}

void shim_mark(int number)
{
  pthread_mutex_lock(&record_lock);
  note(OP_MARK, number, NULL, NULL);
  pthread_mutex_unlock(&record_lock);
}

/* ---- opening and closing ---------------------------------------------------------- */

static int do_open(int dirfd, const char *path, int flags, mode_t mode)
{
  char full[SHIM_PATH];
  struct stat st;
  if (!resolve(full, dirfd, path)) return (int)syscall(SYS_openat, dirfd, path, flags, mode);
  bool fresh = flags & O_CREAT && syscall(SYS_newfstatat, AT_FDCWD, full, &st, 0) < 0;
  struct call c = enter(fresh || flags & O_TRUNC ? SHIM_CREATE : SHIM_OPEN, "open", full);
  int fd = c.fails ? -1 : (int)syscall(SYS_openat, dirfd, path, flags, mode);
  if (fd >= 0) {
    learn_fd(fd, full);
    note(fresh ? OP_CREATE : OP_OPEN, fd, full, NULL);
    if (!fresh && flags & O_TRUNC) note(OP_SIZE, fd, NULL, NULL);
  }
  leave(&c);
  return fd;
}

static mode_t mode_arg(int flags, va_list ap)
{
  return flags & (O_CREAT | __O_TMPFILE) ? (mode_t)va_arg(ap, unsigned) : 0;
}

#define OPEN(name, ...) { va_list ap; va_start(ap, flags); mode_t mode = mode_arg(flags, ap); \
    va_end(ap); return do_open(__VA_ARGS__, path, flags, mode); }
int open(const char *path, int flags, ...) OPEN(open, AT_FDCWD)
int open64(const char *path, int flags, ...) OPEN(open64, AT_FDCWD)
int openat(int dirfd, const char *path, int flags, ...) OPEN(openat, dirfd)
int openat64(int dirfd, const char *path, int flags, ...) OPEN(openat64, dirfd)
int __open_2(const char *path, int flags);
int __open_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags);
int __open64_2(const char *path, int flags) { return do_open(AT_FDCWD, path, flags, 0); }
int creat(const char *path, mode_t mode)
{ return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode)
{ return do_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int fd)
{
  const char *path = path_of(fd);
  if (!path) {
    if (fd >= 0 && fd < FDS) learn_fd(fd, NULL);
    return (int)syscall(SYS_close, fd);
  }
  struct call c = enter(SHIM_CLOSE, "close", path);
  int why = errno, rc;
  learn_fd(fd, NULL);
  note(OP_CLOSE, fd, NULL, NULL);
  rc = (int)syscall(SYS_close, fd);
  if (c.fails) {
    errno = why;
    rc = -1;
  }
  leave(&c);
  return rc;
}

/* ---- data ------------------------------------------------------------------------- */

/* offset < 0: at the file's own place. */
static ssize_t do_write(const char *name, int fd, const void *data, size_t n, off_t offset)
{
  const char *path = path_of(fd);
  long rc = -1;
  if (!path)
    return offset < 0 ? syscall(SYS_write, fd, data, n)
                      : syscall(SYS_pwrite64, fd, data, n, offset);
  struct call c = enter(SHIM_WRITE, name, path);
  if (c.half && n > 1) n /= 2;
  if (!c.fails) {
    int64_t at = offset >= 0 ? offset : syscall(SYS_lseek, fd, 0,
      syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
    rc = offset < 0 ? syscall(SYS_write, fd, data, n)
                    : syscall(SYS_pwrite64, fd, data, n, offset);
    note_write(fd, data, rc, at);
  }
  leave(&c);
  return rc;
}

/* Vectors become one piece: a call on them is one call still. */
static ssize_t do_writev(const char *name, int fd, const struct iovec *v, int n, off_t offset)
{
  size_t bytes = 0, at = 0;
  for (int i = 0; i < n; i++) bytes += v[i].iov_len;
  char *all = malloc(bytes + 1);
  if (!all) abort();
  for (int i = 0; i < n; at += v[i++].iov_len) memcpy(all + at, v[i].iov_base, v[i].iov_len);
  ssize_t rc = do_write(name, fd, all, bytes, offset);
  int why = errno;
  free(all);
  errno = why;
  return rc;
}

ssize_t write(int fd, const void *data, size_t n) { return do_write("write", fd, data, n, -1); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{ return do_write("pwrite", fd, data, n, at); }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at)
{ return do_write("pwrite", fd, data, n, at); }
ssize_t writev(int fd, const struct iovec *v, int n)
{ return path_of(fd) ? do_writev("writev", fd, v, n, -1) : syscall(SYS_writev, fd, v, n); }
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at)
{
  return path_of(fd) ? do_writev("pwritev", fd, v, n, at)
                     : syscall(SYS_pwritev, fd, v, n, (long)at, 0L);
}
ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t at) { return pwritev(fd, v, n, at); }

/* Whether a pread fails at a place where one has failed before, with errno. */
static bool fails_again(bool fails, const char *path, off_t offset)
{
  if (!bad.on || offset < 0) return fails;
  if (fails) {
    snprintf(bad.path, sizeof bad.path, "%s", path);
    bad.at = offset;
    __atomic_store_n(&bad.set, 1, __ATOMIC_RELEASE);
  } else if (__atomic_load_n(&bad.set, __ATOMIC_ACQUIRE) && bad.at == offset && !strcmp(bad.path, path)) {
    errno = EIO;
    return true;
  }
  return fails;
}

static ssize_t do_read(const char *name, int fd, void *data, size_t n, off_t offset)
{
  const char *path = path_of(fd);
  if (path && read_ms && offset >= 0) usleep((useconds_t)read_ms * 1000);
  struct call c = path ? enter(SHIM_READ, name, path) : (struct call){0};
  if (path) c.fails = fails_again(c.fails, path, offset);
  ssize_t rc = c.fails ? -1 : offset < 0 ? syscall(SYS_read, fd, data, n)
                                         : syscall(SYS_pread64, fd, data, n, offset);
  if (path) leave(&c);
  return rc;
}
ssize_t read(int fd, void *data, size_t n) { return do_read("read", fd, data, n, -1); }
ssize_t pread(int fd, void *data, size_t n, off_t at) { return do_read("pread", fd, data, n, at); }
ssize_t pread64(int fd, void *data, size_t n, off64_t at)
{ return do_read("pread", fd, data, n, at); }
ssize_t __read_chk(int fd, void *data, size_t n, size_t size);
ssize_t __read_chk(int fd, void *data, size_t n, size_t size)
{ (void)size; return do_read("read", fd, data, n, -1); }
ssize_t __pread_chk(int fd, void *data, size_t n, off_t at, size_t size);
ssize_t __pread_chk(int fd, void *data, size_t n, off_t at, size_t size)
{ (void)size; return do_read("pread", fd, data, n, at); }
ssize_t __pread64_chk(int fd, void *data, size_t n, off_t at, size_t size);
ssize_t __pread64_chk(int fd, void *data, size_t n, off_t at, size_t size)
{ (void)size; return do_read("pread", fd, data, n, at); }

static int do_sync(const char *name, long number, int fd)
{
  if (late_ms && number == SYS_fdatasync) usleep((useconds_t)late_ms * 1000);
  const char *path = path_of(fd);
  if (!path) return (int)syscall(number, fd);
  struct call c = enter(SHIM_SYNC, name, path);
  int rc = c.fails ? -1 : ctl->dry_sync ? 0 : (int)syscall(number, fd);
  if (rc == 0) note(OP_SYNC, fd, NULL, NULL);
  leave(&c);
  return rc;
}
int fsync(int fd) { return do_sync("fsync", SYS_fsync, fd); }
int fdatasync(int fd) { return do_sync("fdatasync", SYS_fdatasync, fd); }

static int do_size(const char *name, int fd, long rc_number, int mode, off_t at, off_t bytes)
{
  const char *path = path_of(fd);
  struct call c = path ? enter(SHIM_SIZE, name, path) : (struct call){0};
  int rc = -1;
  if (!c.fails)
    rc = rc_number == SYS_ftruncate ? (int)syscall(SYS_ftruncate, fd, bytes)
                                    : (int)syscall(SYS_fallocate, fd, mode, at, bytes);
  struct stat st;
  if (path && rc == 0 && syscall(SYS_fstat, fd, &st) == 0)
    note(OP_SIZE, fd, NULL, NULL)->bytes = st.st_size;
  if (path) leave(&c);
  return rc;
}
int ftruncate(int fd, off_t n) { return do_size("ftruncate", fd, SYS_ftruncate, 0, 0, n); }
int ftruncate64(int fd, off64_t n) { return do_size("ftruncate", fd, SYS_ftruncate, 0, 0, n); }
int fallocate(int fd, int mode, off_t at, off_t n)
{ return do_size("fallocate", fd, SYS_fallocate, mode, at, n); }
int fallocate64(int fd, int mode, off64_t at, off64_t n)
{ return do_size("fallocate", fd, SYS_fallocate, mode, at, n); }
int posix_fallocate(int fd, off_t at, off_t n)
{ return do_size("posix_fallocate", fd, SYS_fallocate, 0, at, n) < 0 ? errno : 0; }
int posix_fallocate64(int fd, off64_t at, off64_t n) { return posix_fallocate(fd, at, n); }

/* ---- names ------------------------------------------------------------------------ */

static int do_rename(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
  char a[SHIM_PATH], b[SHIM_PATH];
  bool ours = resolve(a, from_fd, from);
  if (!resolve(b, to_fd, to) && !ours)
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
  struct call c = enter(SHIM_RENAME, "rename", b);
  int rc = c.fails ? -1 : (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
  if (rc == 0) note(OP_RENAME, -1, a, b);
  leave(&c);
  return rc;
}
int rename(const char *from, const char *to) { return do_rename(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return do_rename(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{ return do_rename(a, from, b, to, flags); }

int mkdirat(int dirfd, const char *path, mode_t mode)
{
  char full[SHIM_PATH];
  if (!resolve(full, dirfd, path)) return (int)syscall(SYS_mkdirat, dirfd, path, mode);
  struct call c = enter(SHIM_MKDIR, "mkdir", full);
  int rc = c.fails ? -1 : (int)syscall(SYS_mkdirat, dirfd, path, mode);
  if (rc == 0) note(OP_MKDIR, -1, full, NULL);
  leave(&c);
  return rc;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int dirfd, const char *path, int flags)
{
  char full[SHIM_PATH];
  if (!resolve(full, dirfd, path)) return (int)syscall(SYS_unlinkat, dirfd, path, flags);
  struct call c = enter(SHIM_UNLINK, flags & AT_REMOVEDIR ? "rmdir" : "unlink", full);
  int rc = c.fails ? -1 : (int)syscall(SYS_unlinkat, dirfd, path, flags);
  if (rc == 0) note(flags & AT_REMOVEDIR ? OP_RMDIR : OP_UNLINK, -1, full, NULL);
  leave(&c);
  return rc;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

/* Calls that checkpoints don't need: counted and struck, but the record can't replay them. */
static int do_link(const char *name, long number, const char *from, int dirfd, const char *to)
{
  char full[SHIM_PATH];
  bool ours = resolve(full, dirfd, to);
  struct call c = ours ? enter(SHIM_CREATE, name, full) : (struct call){0};
  if (ours && recording) abort();
  int rc = c.fails ? -1 : number == SYS_symlinkat
    ? (int)syscall(SYS_symlinkat, from, dirfd, to)
    : (int)syscall(SYS_linkat, AT_FDCWD, from, dirfd, to, 0);
  if (ours) leave(&c);
  return rc;
}
int link(const char *from, const char *to)
{ return do_link("link", SYS_linkat, from, AT_FDCWD, to); }
int symlink(const char *from, const char *to)
{ return do_link("symlink", SYS_symlinkat, from, AT_FDCWD, to); }

/* ---- looking ---------------------------------------------------------------------- */

static int do_stat(const char *name, int dirfd, const char *path, struct stat *st, int flags)
{
  char full[SHIM_PATH];
  bool ours = flags & AT_EMPTY_PATH && !*path
    ? path_of(dirfd) && snprintf(full, sizeof full, "%s", path_of(dirfd)) > 0
    : resolve(full, dirfd, path);
  struct call c = ours ? enter(SHIM_LOOK, name, full) : (struct call){0};
  int rc = c.fails ? -1 : (int)syscall(SYS_newfstatat, dirfd, path, st, flags);
  if (ours) leave(&c);
  return rc;
}
int stat(const char *path, struct stat *st) { return do_stat("stat", AT_FDCWD, path, st, 0); }
int lstat(const char *path, struct stat *st)
{ return do_stat("lstat", AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW); }
int fstat(int fd, struct stat *st) { return do_stat("fstat", fd, "", st, AT_EMPTY_PATH); }
int fstatat(int dirfd, const char *path, struct stat *st, int flags)
{ return do_stat("fstatat", dirfd, path, st, flags); }
int stat64(const char *path, struct stat64 *st)
{ return do_stat("stat", AT_FDCWD, path, (struct stat *)st, 0); }
int lstat64(const char *path, struct stat64 *st)
{ return do_stat("lstat", AT_FDCWD, path, (struct stat *)st, AT_SYMLINK_NOFOLLOW); }
int fstat64(int fd, struct stat64 *st)
{ return do_stat("fstat", fd, "", (struct stat *)st, AT_EMPTY_PATH); }

int faccessat(int dirfd, const char *path, int mode, int flags)
{
  char full[SHIM_PATH];
  bool ours = resolve(full, dirfd, path);
  struct call c = ours ? enter(SHIM_LOOK, "access", full) : (struct call){0};
  (void)flags;
  int rc = c.fails ? -1 : (int)syscall(SYS_faccessat, dirfd, path, mode);
  if (ours) leave(&c);
  return rc;
}
int access(const char *path, int mode) { return faccessat(AT_FDCWD, path, mode, 0); }

/* The library's folder streams are opaque: its own functions do the work. */
#define REAL(type, name) ((type)(uintptr_t)dlsym(RTLD_NEXT, name))

DIR *opendir(const char *path)
{
  char full[SHIM_PATH];
  bool ours = resolve(full, AT_FDCWD, path);
  struct call c = ours ? enter(SHIM_LOOK, "opendir", full) : (struct call){0};
  DIR *d = c.fails ? NULL : REAL(DIR *(*)(const char *), "opendir")(path);
  if (ours && d) learn_fd(dirfd(d), full);
  if (ours) leave(&c);
  return d;
}
int closedir(DIR *d)
{
  learn_fd(dirfd(d), NULL);
  return REAL(int (*)(DIR *), "closedir")(d);
}
struct dirent *readdir(DIR *d)
{
  const char *path = path_of(dirfd(d));
  struct call c = path ? enter(SHIM_READ, "readdir", path) : (struct call){0};
  struct dirent *e = c.fails ? NULL : REAL(struct dirent *(*)(DIR *), "readdir")(d);
  if (path) leave(&c);
  return e;
}
struct dirent64 *readdir64(DIR *d) { return (struct dirent64 *)readdir(d); }

/* ---- preloaded -------------------------------------------------------------------- */

__attribute__((constructor)) static void begin(void)
{
  const char *root = getenv("TC_SHIM_ROOT"), *log = getenv("TC_SHIM_LOG");
  const char *rank = getenv("TC_SHIM_RANK"), *mine = getenv("OMPI_COMM_WORLD_RANK");
  const char *call = getenv("TC_SHIM_CALL"), *fault = getenv("TC_SHIM_FAULT");
  const char *late = getenv("TC_SHIM_LATE_MS"), *slow = getenv("TC_SHIM_READ_MS");
  if (!root || !log || (rank && (!mine || strcmp(rank, mine) != 0))) return;
  int which = SHIM_NONE;
  for (int i = 1; i < SHIM_FAULTS; i++)
    if (fault && strcmp(fault, shim_fault_name[i]) == 0) which = i;
  log_fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  shim_arm(root, 0, call ? atoi(call) : 0, which);
  ctl->dry_sync = true;
  late_ms = late ? atoi(late) : 0;
  read_ms = slow ? atoi(slow) : 0;
  bad.on = getenv("TC_SHIM_STUCK") != NULL;
}

__attribute__((destructor)) static void end(void)
{
  char line[64];
  if (log_fd < 0) return;
  int n = snprintf(line, sizeof line, "calls %d\n", ctl->count[0]);
  if (ctl->count[0] > 0) syscall(SYS_write, log_fd, line, n);
}
