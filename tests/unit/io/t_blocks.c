/* t_blocks.c - data on its way to a file: the calls that write it, also where one writes less
 * than it was asked to, is interrupted, or fails; copies past the cache; folders. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "io/ckpt/blocks.h"
#include "io/crc.h"
#include "io/folder.h"
#include "tests/unit/tap.h"

/* The calls that blocks.c makes, a line of text for each. */
static struct {
  FILE *out;
  int fd;                              /* of the file that is written */
  int most;                            /* bytes a call writes at most; 0: all */
  int n, fail, why;                    /* call `fail` fails with `why`; if 0, it writes 0 bytes */
} sys;

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at)
{
  ssize_t done = 0, most = sys.most ? sys.most : 1 << 30;
  fprintf(sys.out, "write %d at %lld\n", n, (long long)at);
  if (++sys.n == sys.fail) {
    errno = sys.why;
    return sys.why ? -1 : 0;
  }
  for (int i = 0; i < n && done < most; i++) {
    size_t bytes = TC_MIN(v[i].iov_len, (size_t)(most - done));
    TC_ASSERT(syscall(SYS_pwrite64, fd, v[i].iov_base, bytes, at + done) == (long)bytes);
    done += (ssize_t)bytes;
  }
  return done;
}

int sync_file_range(int fd, off_t from, off_t bytes, unsigned flags)
{
  fprintf(sys.out, "push %lld at %lld%s\n", (long long)bytes, (long long)from,
          fd == sys.fd && flags == SYNC_FILE_RANGE_WRITE ? "" : " in another way");
  return 0;
}

enum { MOST = 700, MIB = 1 << 20 };
static char data[10 * MIB];
static struct tc_stretch s[MOST];
static uint32_t crc[10 * 256 + MOST];

/* n stretches of `bytes` with `gap` bytes between. */
static void stretches(int n, int64_t bytes, int64_t gap)
{
  for (int i = 0; i < n; i++)
    s[i] = (struct tc_stretch){ .data = data + i * bytes, .offset = 7 + i * (bytes + gap),
                                .bytes = bytes, .crc32c = crc + i };
}

/* Writes them and checks what is in the file then. Returns the lines of the calls, owned. */
static char *written(int n, int64_t block, int status, struct tc_err *err)
{
  char *text = NULL;
  size_t size;
  int wrong = 0, fd = sys.fd = open("x", O_RDWR | O_CREAT | O_TRUNC, 0600);
  sys.out = open_memstream(&text, &size);
  sys.n = 0;
  is_int(tc_blocks_write(fd, s, n, block, "x", err), status, "%d stretches", n);
  fclose(sys.out);
  for (int i = 0; status == 0 && i < n; i++) {
    char *back = tc_malloc((size_t)s[i].bytes);
    wrong += pread(fd, back, (size_t)s[i].bytes, s[i].offset) != s[i].bytes ||
             memcmp(back, s[i].data, (size_t)s[i].bytes) != 0;
    for (int64_t k = 0; k * block < s[i].bytes; k++)
      wrong += s[i].crc32c[k] != tc_crc32c(0, s[i].data + k * block,
                                           (size_t)TC_MIN(block, s[i].bytes - k * block));
    free(back);
  }
  is_int(wrong, 0, "... are in their places, with their checksums");
  close(fd);
  return text;
}

static void test_calls(void)
{
  static const struct { int n; int64_t bytes, gap, block; const char *calls; } c[] = {
    { 0, 1, 0, 4096, "" }, { 1, 10, 0, 4096, "write 1 at 7\n" },
    { 3, 10, 0, 4096, "write 3 at 7\n" },
    { 3, 10, 1, 4096, "write 1 at 7\nwrite 1 at 18\nwrite 1 at 29\n" },
    { 512, 3, 0, 4096, "write 512 at 7\n" },
    { 700, 3, 0, 4096, "write 512 at 7\nwrite 188 at 1543\n" },
    { 2, MIB - 1, 0, MIB, "write 2 at 7\n" },
    { 2, MIB, 0, MIB, "write 1 at 7\nwrite 1 at 1048583\n" },
    { 3, MIB / 2, 0, MIB, "write 2 at 7\nwrite 1 at 1048583\n" },
    { 1, 3 * MIB, 0, 2 * MIB, "write 1 at 7\nwrite 1 at 1048583\nwrite 1 at 2097159\n" },
    { 1, MIB + 5, 0, MIB / 2, "write 2 at 7\nwrite 1 at 1048583\n" },
    { 2, 4 * MIB, 0, 4 * MIB, "write 1 at 7\nwrite 1 at 1048583\nwrite 1 at 2097159\n"
      "write 1 at 3145735\npush 4194304 at 7\nwrite 1 at 4194311\nwrite 1 at 5242887\n"
      "write 1 at 6291463\nwrite 1 at 7340039\npush 4194304 at 4194311\n" },
  };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    struct tc_err err;
    stretches(c[i].n, c[i].bytes, c[i].gap);
    if (c[i].bytes > c[i].block) TC_ASSERT(c[i].n == 1);
    char *calls = written(c[i].n, c[i].block, 0, &err);
    is_str(calls, c[i].calls, "... by these calls");
    free(calls);
  }
}

/* Calls that write less than was asked for, or are interrupted, or fail. */
static void test_short(void)
{
  struct tc_err err;
  static const int most[] = { 1, 9, 10, 11, 25, 29, 30, 3000 };
  for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
    stretches(3, 10, 0);
    sys.most = most[i];
    free(written(3, 4096, 0, &err));
    stretches(600, 10, i % 2);
    free(written(600, 4096, 0, &err));
  }
  sys.most = 15;
  stretches(3, 10, 0);
  char *calls = written(3, 4096, 0, &err);
  is_str(calls, "write 3 at 7\nwrite 2 at 22\n", "three, half of them first");
  free(calls);
  static const struct { int fail, why; const char *calls, *says; } c[] = {
    { 1, EINTR, "write 3 at 7\nwrite 3 at 7\nwrite 2 at 22\n", NULL },
    { 2, EINTR, "write 3 at 7\nwrite 2 at 22\nwrite 2 at 22\n", NULL },
    { 1, EIO, "write 3 at 7\n", "x: writing failed: Input/output error" },
    { 2, EIO, "write 3 at 7\nwrite 2 at 22\n", "x: writing failed: Input/output error" },
    { 2, 0, "write 3 at 7\nwrite 2 at 22\n", "x: writing failed: No space left on device" } };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    sys.fail = c[i].fail;
    sys.why = c[i].why;
    calls = written(3, 4096, c[i].says ? TC_EUSER : 0, &err);
    is_str(calls, c[i].calls, "... by these calls, call %d fails", c[i].fail);
    if (c[i].says) is_str(err.text, c[i].says, "... in these words");
    free(calls);
  }
  stretches(3, 10, 1);                 /* each on its own: nothing is written after a failure */
  sys.fail = 2;
  sys.why = EIO;
  calls = written(3, 4096, TC_EUSER, &err);
  is_str(calls, "write 1 at 7\nwrite 1 at 18\n", "nothing after a failure");
  free(calls);
  sys.fail = sys.most = 0;
}

static void test_copy_out(void)
{
  static const size_t size[] = { 0, 1, 63, 64, 4095, 4096, 4097, 4159, 4160, 4161, 8191, 9000 };
  static char from[10000], to[10000], want[10000];
  int wrong = 0;
  for (int i = 0; i < 10000; i++) from[i] = data[i + 100];
  for (size_t i = 0; i < sizeof size / sizeof *size; i++)
    for (int at = 0; at < 70; at++)
      for (int off = 0; off < 3; off++) {
        memset(to, 1, sizeof to);
        memset(want, 1, sizeof want);
        memcpy(want + at, from + off * 7, size[i]);
        tc_copy_out(to + at, from + off * 7, size[i]);
        wrong += memcmp(to, want, sizeof to) != 0;
      }
  is_int(wrong, 0, "copies of any size to any place change nothing around them");
}

/* ---- folders ------------------------------------------------------------------------ */

static void test_folders(void)
{
  static const char *const of[][2] = { { "a", "." }, { "a/", "." }, { "a//", "." }, { "/", "/" },
    { "/a", "/" }, { "/a/", "/" }, { "a/b", "a" }, { "a/b/", "a" }, { "/a/b//", "/a" },
    { "//", "/" }, { "a//b", "a/" } };
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
    char *got = tc_folder_of(of[i][0]);
    is_str(got, of[i][1], "the folder of %s", of[i][0]);
    free(got);
  }
  static const struct { const char *name; int64_t step; } row[] = {
    { "step-0000001", -1 }, { "step-00000001", 1 },
    { "step-999999999999999999", 999999999999999999 },
    { "step-1000000000000000000", -1 }, { "step-012345678", -1 }, { "step-12345678.", -1 },
    { "Step-00000001", -1 }, { "step_00000001", -1 }, { "step-00000009", 9 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++)
    is_int(tc_step_of_name(row[i].name), row[i].step, "step of \"%s\"", row[i].name);
  struct tc_err err;
  is_int(tc_folder_make("d/e/f", &err), 0, "three folders");
  is_int(tc_folder_make("d/e", &err), 0, "... are there already");
  is_int(tc_folder_make("x", &err), TC_EUSER, "a file");
  is_str(err.text, "x: there is a file of this name; a folder is needed", "... in these words");
  is_int(tc_folder_make("x/y", &err), TC_EUSER, "in a file");
  is_str(err.text, "x/y: can't be made: Not a directory", "... in these words");
  is_int(tc_folder_make("x/y/z", &err), TC_EUSER, "in one that is in a file");
  is_str(err.text, "x/y/z: can't be made: Not a directory", "... in these words");
  is_int(tc_folder_sync("x", &err), TC_EUSER, "a file is not synchronised as a folder");
  is_str(err.text, "x: can't be flushed to disk: Not a directory", "... in these words");
  is_int(tc_folder_remove("none", &err), 0, "removing what is not there succeeds");
  is_int(tc_folder_remove("x", &err), TC_EUSER, "a file is not removed");
  is_str(err.text, "x: Not a directory", "... in these words");
  is_int(tc_folder_remove("d", &err), TC_EUSER, "a folder that has a folder is not removed");
  is_str(err.text, "d: can't be removed: Is a directory", "... in these words");
  is_int(tc_folder_rename("x", "a", "b", &err), TC_EUSER, "renamed in a file");
  is_str(err.text, "x: Not a directory", "... in these words");
  is_int(tc_folder_rename("d", "a", "b", &err), TC_EUSER, "what is not there");
  is_str(err.text, "d/a: can't be renamed to b: No such file or directory", "... in these words");
  char **names;
  is_int(tc_folder_scan("x", "", &names, &err), TC_EUSER, "names in a file");
  is_str(err.text, "x: the folder can't be read: Not a directory", "... in these words");
  ok(!names, "... none");
  TC_ASSERT(link("x", "d/ab") == 0 && link("x", "d/.a") == 0 && link("x", "d/b") == 0);
  is_int(tc_folder_scan("d", "", &names, &err), 4, "all names but . and ..");
  tc_names_free(names, 4);
  is_int(tc_folder_scan("d", "a", &names, &err), 1, "names with an a");
  is_str(names[0], "ab", "... are");
  tc_names_free(names, 1);
  TC_ASSERT(tc_folder_remove("d/e/f", &err) == 0 && tc_folder_remove("d/e", &err) == 0);
  is_int(tc_folder_remove("d", &err), 0, "a folder is removed with its files");
  ok(access("d", F_OK) < 0, "... and is not there any more");
}

int main(void)
{
  char dir[100];
  const char *tmp = getenv("TMPDIR");
  snprintf(dir, sizeof dir, "%.60s/t_blocks.XXXXXX", tmp ? tmp : "/tmp");
  TC_ASSERT(mkdtemp(dir) && chdir(dir) == 0);
  alarm(300);
  uint32_t x = 1;
  for (size_t i = 0; i < sizeof data; i++) data[i] = (char)((x = x * 1664525 + 1013904223) >> 24);
  test_calls();
  test_short();
  test_copy_out();
  test_folders();
  TC_ASSERT(unlink("x") == 0 && rmdir(dir) == 0);
  return done_testing();
}
