/* t_owner_take.c - the steps of taking a folder, one by one, by the test's own clock: when one that lost its home notices,
 * what is left behind. */
#include <errno.h>

#include "tests/unit/ckpt_fixture.h"

static int64_t now_ns = 1000000000;
static int slept, renames, refused_renames, why_refused;
static int rename_or_not(const char *from, const char *to)
{
  renames++;
  if (refused_renames == 0) return rename(from, to) < 0 ? errno : 0;
  refused_renames--;
  return why_refused;
}
#include "src/files/names.h"
#define tc_now_ns() now_ns
#define tc_sleep_ns(ns) (slept++, now_ns += (ns))
#define tc_rename(at, from, to) rename_or_not(from, to)
/* The heartbeat goes by the real clock. */
#define tc_cond_wait_until(c, lock, until) \
  ((tc_cond_wait_until)(c, lock, (tc_now_ns)() + HEARTBEAT_NS))
#include "io/ckpt/owner_take.c"
#include "io/ckpt/owner.c"
#undef tc_rename

#include "tests/unit/stderr_text.h"

static const char *root;

static void make_lease(const char *name)
{
  char *path = tc_sprintf("%s/%s", root, name);
  TC_ASSERT(mkdir(path, 0777) == 0);
  free(path);
}

static const char *line_of(const char *name)
{
  static char text[100];
  char *path = tc_sprintf("%s/%s", root, name);
  if (tc_first_line(path, text, sizeof text)) strcpy(text, "none");
  free(path);
  return text;
}

/* ---- files ------------------------------------------------------------------------------ */

static void test_put_file(void)
{
  struct tc_err err = { 0 };
  char *path = tc_sprintf("%s/file", root), *none = tc_sprintf("%s/none/file", root);
  is_int(put_file(path, "long text", &err), 1, "a file");
  is_int(put_file(path, "text", &err), 1, "... written again");
  is_str(line_of("file"), "text", "... is this");
  is_int(put_file(none, "text", &err), 0, "in a folder that is missing");
  is_int(put_file(root, "text", &err), TC_EUSER, "a folder");
  char *want = tc_sprintf("%s: writing failed: Is a directory", root);
  is_str(err.text, want, "... with this error");
  unlink(path);
  free(want);
  free(none);
  free(path);
}

/* ---- taking ----------------------------------------------------------------------------- */

static void test_remove(void)
{
  struct tc_owner *o = tc_owner_new(root, "6", 0);
  char *cmd = tc_sprintf("cd '%s' && mkdir -p .gone-1/sub .gone-2/sub/sub .gone-3 && "
                         "touch .gone-1/a .gone-1/sub/b .gone-2/a", root);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
  slept = 0;
  int64_t from = now_ns;
  stderr_text();
  tc_owner_remove(o, ".gone-");
  const char *text = stderr_text();
  char *want = tc_sprintf("%s/.gone-2: can't be removed: Directory not empty\n", root);
  ok(strstr(text, want) != NULL, "%s", text);
  is_int(slept, 20, "tried 20 times");
  is_int(now_ns - from, 1000000000, "... in a second");
  is_int(fx_count(root, ".gone-"), 1, "the others are removed");
  ok(fx_there(root, ".gone-2/sub/sub") && !fx_there(root, ".gone-2/a"), "... and what could be removed of it");
  free(want);
  cmd = tc_sprintf("rm -r '%s'/.gone-2", root);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
  tc_owner_free(o);
}

/* Homes of lower numbers, and those being prepared, are renamed away; others stay. */
static void test_fence(void)
{
  struct tc_owner *o = tc_owner_new(root, "6", 0);
  struct tc_err err = { 0 };
  char *cmd = tc_sprintf("cd '%s' && mkdir .run-00000001 .run-00000004 .run-00000005 .run-00000006 "
                         ".run-x .new-12345678 && touch .run-00000004/a", root);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
  o->number = 5;
  strcpy(o->lease, ".run-00000005");
  renames = 0;
  is_int(tc_owner_fence(o, &err), 0, "homes below ours are renamed away");
  is_int(renames, 3, "... two, and one being prepared");
  ok(fx_there(root, ".run-00000005") && fx_there(root, ".run-00000006") &&
     fx_there(root, ".run-x") && fx_count(root, ".") == 6, "others stay, and what has no number");
  make_lease(".run-00000002");
  refused_renames = 1;
  why_refused = ENOENT;
  is_int(tc_owner_fence(o, &err), 0, "one that another renamed first");
  refused_renames = 1;
  why_refused = EACCES;
  is_int(tc_owner_fence(o, &err), TC_EUSER, "one that can't be renamed");
  char *want = tc_sprintf("%s/.run-00000002: can't be renamed: Permission denied", root);
  is_str(err.text, want, "... in these words");
  free(want);
  o->number = 0;
  tc_owner_free(o);
  cmd = tc_sprintf("cd '%s' && rm -r .run-* .gone-*", root);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
}

static void test_acquire(void)
{
  static const struct { int why, rc; } c[] = { { EEXIST, 0 }, { ENOTEMPTY, 0 }, { ENOENT, 0 },
                                               { EACCES, TC_EUSER } };
  struct tc_owner *o = tc_owner_new(root, "6", 7);
  struct tc_err err = { 0 };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    refused_renames = 1;
    why_refused = c[i].why;
    is_int(tc_owner_acquire(o, 3, &err), c[i].rc, "a number that is taken, or can't be: %s", strerror(c[i].why));
    is_int(fx_count(root, "."), 0, "... nothing is left");
    is_int(o->number, 0, "... and this owner has no number");
  }
  ok(strstr(err.text, "/.new-") && strstr(err.text, ": can't be renamed: Permission denied") &&
     !strncmp(err.text, root, strlen(root)), "%s", err.text);
  make_lease(".run-00000009");
  is_int(tc_owner_acquire(o, 8, &err), 0, "a number below one that is in use");
  ok(fx_count(root, ".") == 1 && fx_there(root, ".run-00000009"), "... is left again");
  is_int(tc_owner_acquire(o, 9, &err), 1, "a home that is empty");
  is_int(o->number, 9, "... becomes this owner's");
  is_str(tc_owner_lease(o), ".run-00000009", "... by its name");
  is_str(line_of(".run-00000009/beat"), "0000000000", "... and has a beat");
  refused_renames = 1;
  why_refused = EACCES;
  stderr_text();
  tc_owner_free(o);
  const char *text = stderr_text();
  ok(strstr(text, "/.run-00000009/owner: can't be renamed: Permission denied"), "%s", text);
  o = tc_owner_new(root, "6", 8);
  refused_renames = 100;
  why_refused = EEXIST;
  renames = 0;
  is_int(tc_owner_take(o, &err), TC_EUSER, "others take each number first");
  is_int(renames, 20, "... 20 times");
  char *want = tc_sprintf("%s: others take this folder again and again; start one run at a time",
                          root);
  is_str(err.text, want, "... in these words");
  free(want);
  refused_renames = 0;
  is_int(tc_owner_take(o, &err), 0, "without others it is taken");
  tc_owner_free(o);
  ok(fx_there(root, ".run-00000010/ended") && !fx_there(root, ".run-00000010/owner"),
     "... and marked as ended");
  char *cmd = tc_sprintf("cd '%s' && rm -r .run-*", root);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
}

/* ---- the beat --------------------------------------------------------------------------- */

static void test_heartbeat(void)
{
  struct tc_owner *o = tc_owner_new(root, "6", 0);
  struct tc_err err = { 0 };
  char *lease = tc_sprintf("%s/.run-00000001", root), *away = tc_sprintf("%s/away", root);
  TC_ASSERT(tc_owner_acquire(o, 1, &err) == 1);
  write_heartbeat(o, 41);
  is_str(line_of(".run-00000001/beat"), "0000000041", "a beat");
  write_heartbeat(o, 7);
  is_str(line_of(".run-00000001/beat"), "0000000007", "another");
  TC_ASSERT(rename(lease, away) == 0);
  write_heartbeat(o, 8);
  write_heartbeat(o, 9);
  ok(!tc_owner_lost(o), "two beats without a home");
  TC_ASSERT(rename(away, lease) == 0);
  write_heartbeat(o, 10);
  TC_ASSERT(rename(lease, away) == 0);
  write_heartbeat(o, 11);
  write_heartbeat(o, 12);
  ok(!tc_owner_lost(o), "two more, with one between");
  write_heartbeat(o, 13);
  ok(tc_owner_lost(o), "after the third in a row the folder is lost");
  atomic_store(&o->lost, false);
  o->gone = 0;
  make_lease(".run-00000002");
  TC_ASSERT(rename(away, lease) == 0);
  write_heartbeat(o, 14);
  ok(!tc_owner_lost(o), "a later owner, but the home is still there");
  TC_ASSERT(rename(lease, away) == 0);
  write_heartbeat(o, 15);
  ok(tc_owner_lost(o), "without a home, and with a later owner, it is lost at once");
  o->number = 0;
  tc_owner_free(o);
  free(away);
  free(lease);
}

int main(void)
{
  alarm(300);
  root = fx_folder();
  char *log = tc_sprintf("%s/log", root);
  TC_ASSERT(freopen(log, "a+", stderr) != NULL);
  free(log);
  test_put_file();
  test_remove();
  test_fence();
  test_acquire();
  test_heartbeat();
  fx_clean();
  return done_testing();
}
