/* t_names - calls on names that are carried out and report an error, fail once, or fail for ever; which errors are tried
 * again, and how often.
 *
 * The C library's calls are replaced by ones that may report an error after they have done, or instead of doing, what
 * they are for. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/base/base.h"
#include "src/files/files.h"
#include "tests/unit/tap.h"

/* The next `times` calls report `error`; acts: after they were carried out. */
static struct { int error, times; bool acts; int calls; } fault;

static int with_fault(long (*call)(const void *), const void *args)
{
  fault.calls++;
  if (fault.times <= 0) return (int)call(args);
  fault.times--;
  if (fault.acts) call(args);
  errno = fault.error;
  return -1;
}

struct args { int at, to_at, flags; const char *from, *to; mode_t mode; };

static long do_rename(const void *p) { const struct args *a = p; return syscall(SYS_renameat2, a->at, a->from, a->to_at, a->to, 0); }
static long do_link(const void *p) { const struct args *a = p; return syscall(SYS_linkat, a->at, a->from, a->to_at, a->to, a->flags); }
static long do_unlink(const void *p) { const struct args *a = p; return syscall(SYS_unlinkat, a->at, a->from, a->flags); }
static long do_mkdir(const void *p) { const struct args *a = p; return syscall(SYS_mkdirat, a->at, a->from, a->mode); }

int renameat(int at, const char *from, int to_at, const char *to)
{
  return with_fault(do_rename, &(struct args){ .at = at, .from = from, .to_at = to_at, .to = to });
}

int linkat(int at, const char *from, int to_at, const char *to, int flags)
{
  return with_fault(do_link, &(struct args){ .at = at, .from = from, .to_at = to_at, .to = to, .flags = flags });
}

int unlinkat(int at, const char *name, int flags)
{
  return with_fault(do_unlink, &(struct args){ .at = at, .from = name, .flags = flags });
}

int mkdirat(int at, const char *name, mode_t mode)
{
  return with_fault(do_mkdir, &(struct args){ .at = at, .from = name, .mode = mode });
}

static void put(const char *name, const char *text)
{
  FILE *f = fopen(name, "w");
  if (f) fputs(text, f), fclose(f);
}

static bool is_there(const char *name) { return access(name, F_OK) == 0; }

/* One call of each kind on names that are as it needs them; and whether it was done. */
static int rename_one(void) { put("a", "A"); put("b", "B"); return tc_rename(AT_FDCWD, "a", "b"); }
static bool renamed(void) { return !is_there("a") && is_there("b"); }
static int link_one(void) { put("a", "A"); syscall(SYS_unlinkat, AT_FDCWD, "c", 0); return tc_link(AT_FDCWD, "a", "c"); }
static bool linked(void) { return is_there("a") && is_there("c"); }
static int unlink_one(void) { put("a", "A"); return tc_unlink(AT_FDCWD, "a"); }
static bool unlinked(void) { return !is_there("a"); }
static int mkdir_one(void) { rmdir("d"); return tc_mkdir_own(AT_FDCWD, "d"); }
static bool made(void) { return is_there("d"); }
static int rmdir_one(void) { mkdir("d", 0777); return tc_rmdir(AT_FDCWD, "d"); }
static bool removed(void) { return !is_there("d"); }

static const struct { const char *name; int (*call)(void); bool (*done)(void); } calls[] = {
  { "rename", rename_one, renamed }, { "link", link_one, linked }, { "unlink", unlink_one, unlinked },
  { "mkdir", mkdir_one, made }, { "rmdir", rmdir_one, removed } };

/* What a server's answer may be to a request that it gets twice, and errors that pass. */
static void test_calls(void)
{
  static const struct { const char *name; int error; } errors[] = {
    { "EIO", EIO }, { "ESTALE", ESTALE }, { "ENOENT", ENOENT }, { "EEXIST", EEXIST }, { "ETIMEDOUT", ETIMEDOUT } };
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
      fault.error = errors[e].error, fault.times = 1, fault.acts = true;
      is_int(calls[i].call(), 0, "%s that is done and reports %s", calls[i].name, errors[e].name);
      fault.times = 0;
      ok(calls[i].done(), "... is done");
    }
    fault.error = EIO, fault.times = 2, fault.acts = false;
    is_int(calls[i].call(), 0, "%s that fails twice by EIO", calls[i].name);
    ok(calls[i].done() && fault.times == 0, "... is done then");
    fault.error = ENOSPC, fault.times = 1, fault.calls = 0;
    is_int(calls[i].call(), ENOSPC, "%s that fails by ENOSPC", calls[i].name);
    is_int(fault.calls, 1, "... is not tried again");
    fault.times = 0;
  }
}

/* A name that another file has is not taken for the result of one's own call. */
static void test_others(void)
{
  put("a", "A");
  put("b", "B");
  is_int(tc_link(AT_FDCWD, "a", "b"), EEXIST, "a link to a name that another file has");
  mkdir("e", 0777);
  put("e/x", "X");
  is_int(tc_mkdir_own(AT_FDCWD, "e"), EEXIST, "a folder of one's own where another with files is");
  fault.error = EEXIST, fault.times = 1, fault.acts = false;
  is_int(tc_rename(AT_FDCWD, "a", "b"), EEXIST, "a rename that was not carried out");
  fault.times = 0;
  ok(is_there("a"), "... leaves the file");
  is_int(tc_unlink(AT_FDCWD, "none"), 0, "removing what is not there");
}

/* Folders that were made for something that failed are removed, others and what has files in it are not. */
static void test_made(void)
{
  struct tc_err err = { 0 };
  char *made;
  mkdir("m", 0777);
  is_int(tc_folder_make_new("m/a/b/", &made, &err), 0, "two folders");
  is_str(made ? made : "", "m/a", "... of which this is the outer one");
  tc_folder_unmake("m/a/b/", made);
  ok(!is_there("m/a") && is_there("m"), "... are removed");
  is_int(tc_folder_make_new("m", &made, &err), 0, "one that is there");
  ok(!made, "... was not made");
  tc_folder_unmake("m", made);
  ok(is_there("m"), "... and stays");
  is_int(tc_folder_make_new("m/a/b", &made, &err), 0, "two folders");
  put("m/a/x", "X");
  tc_folder_unmake("m/a/b", made);
  ok(!is_there("m/a/b") && is_there("m/a/x"), "one that has a file by now stays");
  is_int(tc_folder_make_new("m/a/x/y", &made, &err), TC_EUSER, "within a file");
  ok(!made, "... none is made");
  unlink("m/a/x");
  rmdir("m/a");
  rmdir("m");
}

static void test_again(void)
{
  struct tc_again again = { 0 };
  int n = 0;
  while (tc_again(&again, EACCES)) n++;
  is_int(n, 4, "EACCES is tried again four times");
  is_int(errno, EACCES, "... and is in errno then");
  again = (struct tc_again){ 0 };
  const int64_t before = tc_now_ns();
  for (n = 0; tc_again(&again, EIO);) n++;
  is_int(n, TC_AGAIN_TRIES, "EIO as often as may be");
  ok(tc_now_ns() - before > INT64_C(6000000000), "... for 6 s at least");
  again = (struct tc_again){ 0 };
  ok(!tc_again(&again, ENOENT) && !tc_again(&again, ENOSPC) && !tc_again(&again, EROFS), "others never");
  ok(tc_may_pass(ESTALE) && !tc_may_pass(ENOENT), "which ones is told without a pause too");
}

int main(void)
{
  char dir[] = "t_names-XXXXXX";
  if (!mkdtemp(dir) || chdir(dir)) return 1;
  test_calls();
  test_others();
  test_made();
  test_again();
  fault.times = 0;
  static const char *const left[] = { "a", "b", "c", "e/x" };
  for (size_t i = 0; i < sizeof left / sizeof *left; i++) unlink(left[i]);
  rmdir("d");
  rmdir("e");
  ok(chdir("..") == 0 && rmdir(dir) == 0, "nothing else is left");
  return done_testing();
}
