/* t_owner_parts.c - the steps of taking a folder, one by one, by the test's own clock: how long an
 * owner on another node is watched, when one that lost its home notices, what is left behind. */
#include <errno.h>
#include <sys/prctl.h>
#include <sys/wait.h>

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
#include "io/ckpt/owner.c"
#undef tc_rename

#include "tests/unit/stderr_text.h"

static const char *root;

static void put_text(const char *name, const char *text)
{
  char *path = tc_sprintf("%s/%s", root, name);
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fputs(text, f) >= 0 && fclose(f) == 0);
  free(path);
}

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

/* ---- files and processes -------------------------------------------------------------- */

static void test_first_line(void)
{
  static const struct { const char *text, *want; } c[] = {
    { "", "" }, { "\n", "" }, { "a", "a" }, { "a\n", "a" }, { "a\nb\n", "a" },
    { "1234567", "1234567" }, { "12345678", "1234567" }, { "1234567\n", "1234567" } };
  char buf[8], *path = tc_sprintf("%s/line", root);
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    put_text("line", c[i].text);
    strcpy(buf, "old");
    is_int(tc_first_line(path, buf, sizeof buf), 0, "a file of %zu bytes", strlen(c[i].text));
    is_str(buf, c[i].want, "... its first line");
  }
  unlink(path);
  strcpy(buf, "old");
  is_int(tc_first_line(path, buf, sizeof buf), ENOENT, "no file");
  is_str(buf, "", "... no line");
  free(path);
}

static void test_born(void)
{
  const long long me = born(getpid());
  ok(me > 0, "this process began at %lld", me);
  TC_ASSERT(prctl(PR_SET_NAME, "a) Z 1 (b", 0, 0, 0) == 0);
  is_int(born(getpid()), me, "... whatever its name");
  is_int(born(INT32_MAX), -1, "no process of this number");
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  siginfo_t info;
  TC_ASSERT(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) == 0);
  is_int(born(pid), -1, "one that has ended and was not waited for");
  waitpid(pid, NULL, 0);
  struct place p = here();
  char host[65] = "";
  gethostname(host, sizeof host - 1);
  is_str(p.host, host, "where this process is");
  ok(p.pid == getpid() && p.born == me, "... and which it is");
  const char *space = strchr(p.machine, ' ');
  ok(space && space - p.machine == 36 && !strncmp(space + 1, "pid:[", 5), "... on %s", p.machine);
}

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

/* ---- numbers ---------------------------------------------------------------------------- */

static void test_highest(void)
{
  static const char *const name[] = { ".run-00000003", ".run-00000012", ".run-00000007", ".run-15x",
                                      ".run-1000000000000" };
  static const int64_t most[] = { 3, 12, 12, 12, 1000000000000 };
  struct tc_owner *o = tc_owner_new(root, "5", 0);
  struct tc_err err;
  is_int(highest(o, &err), 0, "no home");
  for (int i = 0; i < 5; i++) {
    make_lease(name[i]);
    is_int(highest(o, &err), most[i], "with %s", name[i]);
  }
  make_lease(".run-1000000000001");
  is_int(highest(o, &err), TC_EUSER, "one number too high");
  make_lease(".run-1000000000002");
  is_int(highest(o, &err), TC_EUSER, "two");
  tc_owner_free(o);
  char *cmd = tc_sprintf("rmdir '%s'/.run-*", root);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
}

/* ---- owners on other nodes -------------------------------------------------------------- */

#define FAR "{\"job\": \"5\", \"host\": \"far\", \"machine\": \"m\", \"pid\": 9, \"born\": 2, \
\"restart\": 3, \"since\": \"then\"}"

/* An owner whose beat stands still is watched for 10 s; for another home they begin anew. */
static void test_watch(void)
{
  struct tc_owner *o = tc_owner_new(root, "6", 0);
  struct tc_err err = { 0 };
  make_lease(".run-00000041");
  make_lease(".run-00000042");
  put_text(".run-00000041/owner", FAR);
  put_text(".run-00000042/owner", FAR);
  put_text(".run-00000041/beat", "1\n");
  is_int(check_owner(o, 41, &err), 1, "unknown at first");
  now_ns += TC_OWNER_WATCH_NS - 1;
  is_int(check_owner(o, 41, &err), 1, "... and until 10 s have passed");
  put_text(".run-00000042/beat", "7\n");
  is_int(check_owner(o, 42, &err), 1, "another home: unknown at first");
  now_ns += TC_OWNER_WATCH_NS - 1;
  is_int(check_owner(o, 42, &err), 1, "... and for 10 s of its own");
  put_text(".run-00000042/beat", "8\n");
  is_int(check_owner(o, 42, &err), TC_EUSER, "... whose beat goes on: it is alive");
  char *want = tc_sprintf("%s is in use by job 5, start 3, process 9 on far, since then: end that "
                          "run first, or give this one another ckpt.dir", root);
  is_str(err.text, want, "... in these words");
  free(want);
  put_text(".run-00000042/beat", "7\n");
  now_ns++;
  stderr_text();
  is_int(check_owner(o, 42, &err), 0, "10 s without a beat: taken over");
  const char *text = stderr_text();
  want = tc_sprintf("%s: its last owner (process 9 on far) has shown no life for 10 s: taken over",
                    root);
  ok(strstr(text, want) != NULL, "... in these words: %s", text);
  free(want);
  tc_owner_free(o);
  o = tc_owner_new(root, "5", 0);
  is_int(check_owner(o, 42, &err), 0, "an owner of the same job is taken over at once");
  tc_owner_free(o);
  slept = 0;
  int64_t from = now_ns;
  is_int(tc_owner_alive(root, &err), 0, "tc_owner_alive finds no owner alive");
  is_int(now_ns - from, TC_OWNER_WATCH_NS, "... after 10 s");
  is_int(slept, 20, "... two looks a second");
}

/* Another process of the same job, of start 2, finds one: is the folder given, and when? */
static void test_same_job(void)
{
  static const struct { const char *what; int restart; bool here, alive, beats; int want; int64_t wait_ns; } row[] = {
    { "of the same start, here", 2, true, true, true, TC_EUSER, TC_OWNER_LEAVE_NS },
    { "of the same start, here, without a beat", 2, true, true, false, 0, TC_OWNER_WATCH_NS },
    { "of the same start, here, no more", 2, true, false, true, 0, 0 },
    { "of an earlier start, here", 1, true, true, true, 0, 0 },
    { "of a later start, here", 3, true, true, true, 0, 0 },
    { "of the same start, elsewhere", 2, false, true, true, 0, 0 },
    { "of an earlier start, elsewhere", 1, false, true, true, 0, 0 } };
  make_lease(".run-00000045");
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_owner *o = tc_owner_new(root, "5", 2);
    struct tc_err err = { 0 };
    const int64_t from = now_ns;
    int rc = 1, beat = 1;
    char *text = tc_sprintf("{\"job\": \"5\", \"restart\": %d, \"host\": \"h\", \"machine\": \"%s\", \"pid\": %d, "
                            "\"born\": %lld, \"since\": \"then\"}", row[i].restart, row[i].here ? o->me.machine : "m",
                            (int)getpid(), o->me.born + !row[i].alive);
    put_text(".run-00000045/owner", text);
    stderr_text();
    while (rc == 1) {
      char count[20];
      snprintf(count, sizeof count, "%d\n", row[i].beats ? beat++ : 7);
      put_text(".run-00000045/beat", count);
      rc = check_owner(o, 45, &err);
      now_ns += rc == 1 ? TC_OWNER_LOOK_NS : 0;
    }
    const char *said = stderr_text();
    is_int(rc, row[i].want, "%s: %s", row[i].what, row[i].want ? "refused" : "taken over");
    is_int(now_ns - from, row[i].wait_ns, "... after this time");
    char *who = tc_sprintf("taken over from start %d of this job (process %d on h, since then)", row[i].restart,
                           (int)getpid());
    if (rc < 0) ok(strstr(err.text, " is in use by job 5, start 2, process ") != NULL, "... in these words: %s", err.text);
    else ok(strstr(said, row[i].wait_ns ? "has shown no life for 10 s" : who) != NULL, "... which is said: %s", said);
    free(who);
    free(text);
    tc_owner_free(o);
  }
  char *cmd = tc_sprintf("rm -r '%s'/.run-00000045", root);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
}

/* Homes without an owner, with one that can't be read, and this process's own. */
static void test_check_owner(void)
{
  struct tc_owner *o = tc_owner_new(root, "", 0);
  struct tc_err err = { 0 };
  is_int(check_owner(o, 40, &err), 0, "no home");
  make_lease(".run-00000043");
  is_int(check_owner(o, 43, &err), 0, "a home whose owner ended");
  put_text(".run-00000044", "");
  is_int(check_owner(o, 44, &err), 1, "a home that is a file: unknown");
  char *mine = tc_sprintf("{\"job\": \"\", \"machine\": \"%s\", \"pid\": %d, \"born\": %lld}",
                          o->me.machine, (int)getpid(), o->me.born);
  put_text(".run-00000043/owner", mine);
  is_int(check_owner(o, 43, &err), TC_EUSER, "this process has it; two runs without a job are not of one job");
  free(mine);
  /* Of a process of this machine that can't be looked at, only the heartbeat tells. */
  static const struct { const char *what; long long pid, born; int want; } hidden[] = {
    { "a process that could not see itself", 0, -2, 1 }, { "one that could not, by an older program", 0, -1, 1 },
    { "one whose number is none", 1LL << 40, 7, 1 }, { "one that has ended", INT32_MAX, 7, 0 } };
  for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
    char *who = tc_sprintf("{\"job\": \"\", \"machine\": \"%s\", \"pid\": %lld, \"born\": %lld}", o->me.machine,
                           hidden[i].pid ? hidden[i].pid : (long long)getpid(), hidden[i].born);
    put_text(".run-00000043/owner", who);
    put_text(".run-00000043/beat", "1\n");
    o->watched = 0;
    is_int(check_owner(o, 43, &err), hidden[i].want, "%s: %s", hidden[i].what, hidden[i].want ? "watched" : "taken over");
    ok(tc_owner_alone(o) == !hidden[i].want, "... and is %s", hidden[i].want ? "not known to have ended" : "gone");
    put_text(".run-00000043/beat", "2\n");
    if (hidden[i].want) is_int(check_owner(o, 43, &err), TC_EUSER, "... and alive, as its heartbeat goes on");
    free(who);
  }
  char *cmd = tc_sprintf("cd '%s' && rm -r .run-*", root);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
  tc_owner_free(o);
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
  remove_all(o, ".gone-");
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
  is_int(fence(o, &err), 0, "homes below ours are renamed away");
  is_int(renames, 3, "... two, and one being prepared");
  ok(fx_there(root, ".run-00000005") && fx_there(root, ".run-00000006") &&
     fx_there(root, ".run-x") && fx_count(root, ".") == 6, "others stay, and what has no number");
  make_lease(".run-00000002");
  refused_renames = 1;
  why_refused = ENOENT;
  is_int(fence(o, &err), 0, "one that another renamed first");
  refused_renames = 1;
  why_refused = EACCES;
  is_int(fence(o, &err), TC_EUSER, "one that can't be renamed");
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
    is_int(acquire(o, 3, &err), c[i].rc, "a number that is taken, or can't be: %s", strerror(c[i].why));
    is_int(fx_count(root, "."), 0, "... nothing is left");
    is_int(o->number, 0, "... and this owner has no number");
  }
  ok(strstr(err.text, "/.new-") && strstr(err.text, ": can't be renamed: Permission denied") &&
     !strncmp(err.text, root, strlen(root)), "%s", err.text);
  make_lease(".run-00000009");
  is_int(acquire(o, 8, &err), 0, "a number below one that is in use");
  ok(fx_count(root, ".") == 1 && fx_there(root, ".run-00000009"), "... is left again");
  is_int(acquire(o, 9, &err), 1, "a home that is empty");
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
  TC_ASSERT(acquire(o, 1, &err) == 1);
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
  test_first_line();
  test_born();
  test_put_file();
  test_highest();
  test_watch();
  test_same_job();
  test_check_owner();
  test_remove();
  test_fence();
  test_acquire();
  test_heartbeat();
  fx_clean();
  return done_testing();
}
