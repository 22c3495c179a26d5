/* t_data_cmd.c - `tercio data` without a tokenizer (bytes.c) when a call of the system fails, and on long work: each call
 * in turn, with a clock of the test's own. */
#include "src/base/base.h"
#include "tests/unit/tap.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum fault {
  NONE,
  WRITE,
  WRITE_LATE,
  INTR_WRITE,
  READ,
  SHORT,
  INTR_READ,
  SEEK,
  SEEK_LATE,
  SYNC,
  SYNC_FOLDER,
  NO_SYNC_FOLDER,
  CLOSE,
  RENAME,
  STAT,
  OPEN
};
static enum fault fault;
static int writes, reads, seeks, syncs, closes, opens;
static int64_t now_ns, tick_ns;

static int64_t clock_ns(void) { return now_ns += tick_ns; }
static int broken(int error)
{
  errno = error;
  return -1;
}
static ssize_t my_write(int fd, const void *p, size_t n)
{
  writes++;
  if (fault == INTR_WRITE && writes % 2) return broken(EINTR);
  if (fault == WRITE || (fault == WRITE_LATE && writes == 2)) return broken(ENOSPC);
  return write(fd, p, n > 1000 ? 1000 : n); /* no more at once */
}
static ssize_t my_read(int fd, void *p, size_t n)
{
  reads++;
  if (fault == INTR_READ && reads % 2) return broken(EINTR);
  if (fault == READ) return broken(EIO);
  return fault == SHORT ? 0 : read(fd, p, n > 3 ? 3 : n);
}
static off_t my_seek(int fd, off_t at, int how)
{
  if (++seeks == (fault == SEEK ? 1 : fault == SEEK_LATE ? 2 : 0)) return broken(EOVERFLOW);
  return lseek(fd, at, how);
}
static int my_sync(int fd)
{
  if (++syncs == (fault == SYNC ? 1 : fault >= SYNC_FOLDER && fault <= NO_SYNC_FOLDER ? 2 : 0))
    return broken(fault == NO_SYNC_FOLDER ? EINVAL : EDQUOT);
  return fd < 0 ? -1 : 0;
}
static int my_open(const char *path, int flags, ...)
{
  const int fd = fault == OPEN ? broken(EACCES) : open(path, flags, 0666);
  opens += fd >= 0;
  return fd;
}
static int my_close(int fd)
{
  closes++;
  const int rc = close(fd);
  return fault == CLOSE && closes == 3 ? broken(EIO) : rc;
}
static int my_rename(const char *from, const char *to)
{
  return fault == RENAME ? broken(EXDEV) : rename(from, to);
}
static int my_fstat(int fd, struct stat *st) { return fault == STAT ? broken(EIO) : fstat(fd, st); }

#define write my_write
#define read my_read
#define lseek my_seek
#define fsync my_sync
#define open my_open
#define close my_close
#define rename my_rename
#define fstat my_fstat
#define tc_now_ns clock_ns
#include "src/cmd/data/bytes.c"
#undef write
#undef read

static const struct {
  enum fault fault;
  const char *sentence;
  bool whole;
} rows[] = {
  { NONE, "", true },
  { INTR_WRITE, "", true },
  { INTR_READ, "", true },
  { NO_SYNC_FOLDER, "", true },
  { WRITE, "shard 'out': writing failed: No space left on device; nothing was left behind", false },
  { WRITE_LATE, "shard 'out': writing failed: No space left on device; nothing was left behind",
    false },
  { READ, "text file 'text': reading failed: Input/output error", false },
  { SHORT, "text file 'text': reading failed: it was truncated", false },
  { SEEK,
    "shard 'out': seeking failed: Value too large for defined data type; nothing was left behind",
    false },
  { SEEK_LATE,
    "shard 'out': seeking failed: Value too large for defined data type; nothing was left behind",
    false },
  { SYNC, "shard 'out': flushing failed: Disk quota exceeded; nothing was left behind", false },
  { CLOSE, "shard 'out': closing failed: Input/output error; nothing was left behind", false },
  { RENAME, "shard 'out': renaming failed: Invalid cross-device link; nothing was left behind",
    false },
  { SYNC_FOLDER, "shard 'out' is written, but its folder can't be flushed: Disk quota exceeded",
    true },
  { STAT, "text file 'text': Input/output error", false },
  { OPEN, "text file 'text' can't be opened: Permission denied; see its owner and mode", false }
};

static void test_faults(void)
{
  char *text[] = { "text" };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_err err = { 0 };
    char tmp[40];
    struct stat st;
    fault = rows[i].fault;
    writes = reads = seeks = syncs = closes = opens = 0;
    unlink("out");
    is_int(tc_data_bytes(text, 1, "out", &err), *rows[i].sentence ? TC_EUSER : 0, "fault %d: status",
           (int)fault);
    is_str(err.text, rows[i].sentence, "... sentence");
    is_int(stat("out", &st) == 0 ? st.st_size : -1, rows[i].whole ? 1024 + 2 * 7 : -1,
           "... the shard");
    snprintf(tmp, sizeof tmp, "out.tmp-%ld", (long)getpid());
    ok(stat(tmp, &st) != 0, "... nothing else");
    is_int(closes, opens, "... all is closed");
  }
  fault = NONE;
}

/* A text that is longer than it was. */
static void test_longer(void)
{
  struct shard s = { .path = "out", .total_bytes = 10, .n_tokens = 4, .fd = -1 };
  struct tc_err err = { 0 };
  uint8_t buf[16];
  uint16_t tokens[16];
  is_int(append_text(&s, "text", buf, tokens, &err), TC_EUSER, "a text became longer");
  is_str(err.text, "text file 'text' grew while it was read; run it again", "... it is reported");
  is_int(s.n_tokens, 4, "... nothing is read");
}

/* What is reported after two seconds, and again after two more. */
static void test_progress(void)
{
  struct shard s = { .total_bytes = 4000, .n_tokens = 1000, .started_ns = 1000, .told_ns = 1000 };
  char text[300];
  FILE *f = tmpfile();
  fflush(stderr);
  int err = dup(STDERR_FILENO);
  TC_ASSERT(f && err >= 0 && dup2(fileno(f), STDERR_FILENO) >= 0);
  static const int64_t at[] = { 1999999999, 2000000000, 3999999999, 4000000000 };
  for (int i = 0; i < 4; i++) {
    now_ns = 1000 + at[i];
    tick_ns = 0;
    if (i == 3) s.n_tokens = 3500;
    print_progress(&s);
  }
  char *names[] = { "text" };
  struct tc_err why = { 0 };
  tick_ns = 1500000000;
  const int rc = tc_data_bytes(names, 1, "out", &why);
  fflush(stderr);
  TC_ASSERT(dup2(err, STDERR_FILENO) >= 0);
  rewind(f);
  text[fread(text, 1, sizeof text - 1, f)] = 0;
  fclose(f);
  is_str(text,
         "tercio data: 1 KB of 4 KB (25 %), 500 B/s\ntercio data: 3.5 KB of 4 KB (87 %), 875 B/s\n"
         "tercio data: 6 B of 7 B (85 %), 2 B/s\n",
         "lines of progress");
  is_int(rc, 0, "... of long work");
}

int main(void)
{
  char dir[] = "/tmp/t_data_cmd-XXXXXX";
  TC_ASSERT(mkdtemp(dir) && chdir(dir) == 0);
  FILE *f = fopen("text", "w");
  TC_ASSERT(f && fputs("a text\n", f) >= 0 && fclose(f) == 0);
  test_faults();
  test_longer();
  test_progress();
  unlink("out");
  unlink("text");
  return chdir("/") || rmdir(dir) || done_testing();
}
