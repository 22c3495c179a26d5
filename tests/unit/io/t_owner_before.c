/* t_owner_before.c - whether the owner before is alive, by the test's own clock: what tells of a process, how long an owner
 * on another node is watched, who of one job is taken over. */
#include <errno.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tests/unit/ckpt_fixture.h"

static int64_t now_ns = 1000000000;
static int slept;
#define tc_now_ns() now_ns
#define tc_sleep_ns(ns) (slept++, now_ns += (ns))
#include "io/ckpt/owner_before.c"
#include "io/ckpt/owner.c"

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
  is_int(born(INT32_MAX), ENDED, "no process of this number");
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  siginfo_t info;
  TC_ASSERT(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) == 0);
  is_int(born(pid), ENDED, "one that has ended and was not waited for");
  waitpid(pid, NULL, 0);
  struct tc_process p = tc_process_here();
  char host[65] = "";
  gethostname(host, sizeof host - 1);
  is_str(p.host, host, "where this process is");
  ok(p.pid == getpid() && p.born == me, "... and which it is");
  const char *space = strchr(p.machine, ' ');
  ok(space && space - p.machine == 36 && !strncmp(space + 1, "pid:[", 5), "... on %s", p.machine);
}

/* ---- numbers ---------------------------------------------------------------------------- */

static void test_highest(void)
{
  static const char *const name[] = { ".run-00000003", ".run-00000012", ".run-00000007", ".run-15x",
                                      ".run-1000000000000" };
  static const int64_t most[] = { 3, 12, 12, 12, 1000000000000 };
  struct tc_owner *o = tc_owner_new(root, "5", 0);
  struct tc_err err;
  is_int(tc_owner_highest(o, &err), 0, "no home");
  for (int i = 0; i < 5; i++) {
    make_lease(name[i]);
    is_int(tc_owner_highest(o, &err), most[i], "with %s", name[i]);
  }
  make_lease(".run-1000000000001");
  is_int(tc_owner_highest(o, &err), TC_EUSER, "one number too high");
  make_lease(".run-1000000000002");
  is_int(tc_owner_highest(o, &err), TC_EUSER, "two");
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
  is_int(tc_owner_check(o, 41, &err), 1, "unknown at first");
  now_ns += TC_OWNER_WATCH_NS - 1;
  is_int(tc_owner_check(o, 41, &err), 1, "... and until 10 s have passed");
  put_text(".run-00000042/beat", "7\n");
  is_int(tc_owner_check(o, 42, &err), 1, "another home: unknown at first");
  now_ns += TC_OWNER_WATCH_NS - 1;
  is_int(tc_owner_check(o, 42, &err), 1, "... and for 10 s of its own");
  put_text(".run-00000042/beat", "8\n");
  is_int(tc_owner_check(o, 42, &err), TC_EUSER, "... whose beat goes on: it is alive");
  char *want = tc_sprintf("%s is in use by job 5, start 3, process 9 on far, since then: end that "
                          "run first, or give this one another ckpt.dir", root);
  is_str(err.text, want, "... in these words");
  free(want);
  put_text(".run-00000042/beat", "7\n");
  now_ns++;
  stderr_text();
  is_int(tc_owner_check(o, 42, &err), 0, "10 s without a beat: taken over");
  const char *text = stderr_text();
  want = tc_sprintf("%s: its last owner (process 9 on far) has shown no life for 10 s: taken over",
                    root);
  ok(strstr(text, want) != NULL, "... in these words: %s", text);
  free(want);
  tc_owner_free(o);
  o = tc_owner_new(root, "5", 0);
  is_int(tc_owner_check(o, 42, &err), 0, "an owner of the same job is taken over at once");
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
      rc = tc_owner_check(o, 45, &err);
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
  is_int(tc_owner_check(o, 40, &err), 0, "no home");
  make_lease(".run-00000043");
  is_int(tc_owner_check(o, 43, &err), 0, "a home whose owner ended");
  put_text(".run-00000044", "");
  is_int(tc_owner_check(o, 44, &err), 1, "a home that is a file: unknown");
  char *mine = tc_sprintf("{\"job\": \"\", \"machine\": \"%s\", \"pid\": %d, \"born\": %lld}",
                          o->me.machine, (int)getpid(), o->me.born);
  put_text(".run-00000043/owner", mine);
  is_int(tc_owner_check(o, 43, &err), TC_EUSER, "this process has it; two runs without a job are not of one job");
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
    is_int(tc_owner_check(o, 43, &err), hidden[i].want, "%s: %s", hidden[i].what, hidden[i].want ? "watched" : "taken over");
    ok(tc_owner_alone(o) == !hidden[i].want, "... and is %s", hidden[i].want ? "not known to have ended" : "gone");
    put_text(".run-00000043/beat", "2\n");
    if (hidden[i].want) is_int(tc_owner_check(o, 43, &err), TC_EUSER, "... and alive, as its heartbeat goes on");
    free(who);
  }
  char *cmd = tc_sprintf("cd '%s' && rm -r .run-*", root);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
  tc_owner_free(o);
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
  test_highest();
  test_watch();
  test_same_job();
  test_check_owner();
  fx_clean();
  return done_testing();
}
