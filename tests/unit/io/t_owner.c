/* t_owner - who may write into a folder of checkpoints; what a replaced owner can still do. */
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/folder.h"
#include "io/ckpt/owner.h"
#include "tests/unit/ckpt_fixture.h"

static void put(const char *dir, const char *name, const char *text)
{
  char *path = tc_sprintf("%s/%s", dir, name);
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fputs(text, f) >= 0 && fclose(f) == 0);
  free(path);
}

/* Saves as the owner of `home`, on one rank. */
static int save(const char *dir, int64_t step, const char *lease, struct tc_err *err)
{
  struct tc_comm_opts o = { .name = "world" };
  struct tc_comm *self = tc_comm_self(&o);
  float x[4] = { 1, 2, 3, 4 };
  struct tc_ckpt_tensor t = { "x", TC_F32, 1, { 4 } };
  struct tc_ckpt_slice s = { .tensor = 0, .count = { 4 }, .data = x };
  struct tc_ckpt_meta meta = { .step = step, .model = "", .config = "", .mesh = "", .system = "",
                               .job = "1", .lease = lease };
  int rc = tc_ckpt_save(dir, &meta, &t, 1, &s, 1, self, err);
  tc_comm_free(self);
  return rc;
}

/* The whole sentence about an owner that is this process. */
static void is_in_use(const char *dir, const char *lease, const struct tc_err *err, const char *job, int restart)
{
  char host[65] = "", *path = tc_sprintf("%s/%s/owner", dir, lease);
  json_t *who = json_load_file(path, 0, NULL);
  const char *since = json_string_value(json_object_get(who, "since"));
  gethostname(host, sizeof host - 1);
  char *want = tc_sprintf("%s is in use by %s, start %d, process %d on %s, since %s: end that run first, or give "
                          "this one another ckpt.dir", dir, job, restart, (int)getpid(), host, since ? since : "?");
  is_str(err->text, want, "... in these words");
  ok(since && strlen(since) == 20 && since[10] == 'T' && since[19] == 'Z', "... since %s", since ? since : "?");
  json_decref(who);
  free(want);
  free(path);
}

/* Owners of this machine: one without a job, one whose process is no more or is another of its number. */
static void test_process(void)
{
  const char *dir = fx_folder();
  struct tc_err err = { 0 };
  struct tc_owner *a = tc_owner_new(dir, "", 3), *b = tc_owner_new(dir, "", 4);
  is_int(tc_owner_take(a, &err), 0, "taken without a job");
  is_int(tc_owner_take(b, &err), TC_EUSER, "another without one is refused");
  is_in_use(dir, tc_owner_lease(a), &err, "a run without a job", 3);
  char *path = tc_sprintf("%s/%s/owner", dir, tc_owner_lease(a));
  json_t *who = json_load_file(path, 0, NULL);
  const json_int_t born = json_integer_value(json_object_get(who, "born"));
  json_object_set_new(who, "born", json_integer(born + 1));
  TC_ASSERT(json_dump_file(who, path, 0) == 0);
  is_int(tc_owner_alive(dir, &err), 0, "another process of this number has ended");
  json_object_set_new(who, "born", json_integer(born));
  json_object_set_new(who, "pid", json_integer(INT32_MAX));
  TC_ASSERT(json_dump_file(who, path, 0) == 0);
  is_int(tc_owner_alive(dir, &err), 0, "a process that is no more has ended");
  is_int(tc_owner_take(b, &err), 0, "... and its folder is taken");
  is_str(tc_owner_lease(b), ".run-00000002", "... under the next number");
  json_decref(who);
  free(path);
  tc_owner_free(a);
  tc_owner_free(b);
  fx_clean();
}

static void test_same_machine(void)
{
  const char *dir = fx_folder();
  struct tc_err err = { 0 };
  struct tc_owner *a = tc_owner_new(dir, "7", 0), *b = tc_owner_new(dir, "8", 0);
  struct tc_owner *c = tc_owner_new(dir, "7", 1);
  is_int(tc_owner_alive(dir, &err), 0, "an empty folder has no owner");
  is_int(tc_owner_take(a, &err), 0, "an empty folder is taken");
  is_int(tc_owner_alive(dir, &err), 1, "... has one");
  char *heartbeat = tc_sprintf("%s/beat", tc_owner_lease(a));
  ok(fx_there(dir, heartbeat), "... whose beat is there: it is never made anew");
  free(heartbeat);
  is_int(save(dir, 1, tc_owner_lease(a), &err), 0, "its owner saves");
  is_int(tc_owner_take(b, &err), TC_EUSER, "another job is refused");
  is_in_use(dir, tc_owner_lease(a), &err, "job 7", 0);
  char *half = tc_sprintf("%s/.tmp-step-00000009-7-0-ab", tc_owner_lease(a));
  char *path = tc_sprintf("%s/%s", dir, half);
  TC_ASSERT(mkdir(path, 0777) == 0);
  put(path, "rank-00000.h5", "half");
  is_int(tc_owner_take(c, &err), 0, "a later start of the job takes over");
  is_int(save(dir, 2, tc_owner_lease(c), &err), 0, "... and saves");
  is_int(save(dir, 1, tc_owner_lease(a), &err), TC_EUSER, "the old one can't begin a save");
  ok(tc_folder_rename(dir, half, "step-00000009", &err) == TC_EUSER, "nor rename one out: %s", err.text);
  ok(fx_there(dir, "step-00000001") && fx_there(dir, "step-00000002"), "nor set the new one's aside");
  for (int i = 0; i < 600 && !tc_owner_lost(a); i++) tc_sleep_ns(100000000);
  ok(tc_owner_lost(a), "the old one notices");
  ok(!tc_owner_lost(c), "the new one has nothing to notice");
  tc_owner_free(a);
  is_int(tc_owner_take(b, &err), TC_EUSER, "the old one's end does not free the folder");
  tc_owner_free(c);
  is_int(tc_owner_take(b, &err), 0, "the owner's end does");
  is_int(fx_count(dir, ".run-"), 1, "one home is left");
  is_int(fx_count(dir, ".gone-") + fx_count(dir, ".new-"), 0, "and nothing besides");
  ok(strcmp(tc_owner_lease(b), ".run-00000003") == 0, "numbers go on");
  tc_owner_free(b);
  is_int(tc_owner_alive(dir, &err), 0, "a folder whose owner has ended has none");
  is_int(tc_owner_alive("/nowhere/at/all", &err), 0, "nor has a folder that is not there");
  free(half);
  free(path);
  fx_clean();
}

static void test_elsewhere(void)
{
  const char *dir = fx_folder();
  struct tc_err err = { 0 };
  char *lease = tc_sprintf("%s/.run-00000041", dir);
  TC_ASSERT(mkdir(lease, 0777) == 0);
  put(lease, "owner", "{\"job\": \"5\", \"host\": \"far\", \"machine\": \"m\", \"pid\": 1, \"born\": 2}");
  put(lease, "beat", "0000000001\n");
  struct tc_owner *a = tc_owner_new(dir, "6", 0);
  is_int(tc_owner_take(a, &err), 1, "an owner elsewhere is watched");
  is_int(tc_owner_take(a, &err), 1, "... for a while");
  put(lease, "beat", "0000000002\n");
  is_int(tc_owner_take(a, &err), TC_EUSER, "a beat: refused");
  char *want = tc_sprintf("%s is in use by job 5, start 0, process 1 on far, since : end that run first, or give this "
                          "one another ckpt.dir", dir);
  is_str(err.text, want, "... with its place");
  free(want);
  tc_owner_free(a);
  put(lease, "owner", "damaged");
  a = tc_owner_new(dir, "6", 0);
  is_int(tc_owner_take(a, &err), 1, "an owner that can't be read is watched too");
  tc_owner_free(a);
  a = tc_owner_new(dir, "5", 0);
  put(lease, "owner", "{\"job\": \"5\", \"host\": \"far\", \"machine\": \"m\", \"pid\": 1, \"born\": 2}");
  is_int(tc_owner_take(a, &err), 0, "of the same job: taken over at once");
  tc_owner_free(a);
  free(lease);
  fx_clean();
}

struct beats { char *lease; atomic_bool stop; };

static void *heartbeat_on(void *arg)
{
  struct beats *b = arg;
  for (int i = 0; !atomic_load(&b->stop); i++) {
    char text[20];
    snprintf(text, sizeof text, "%010d\n", i);
    put(b->lease, "beat", text);
    tc_sleep_ns(20000000);
  }
  return NULL;
}

/* tc_owner_alive watches the heartbeat of an owner on another machine; without an owner it returns at
 * once. */
static void test_look(void)
{
  const char *dir = fx_folder();
  struct tc_err err = { 0 };
  struct beats b = { .lease = tc_sprintf("%s/.run-00000041", dir) };
  pthread_t thread;
  TC_ASSERT(mkdir(b.lease, 0777) == 0);
  put(b.lease, "owner", "{\"job\": \"5\", \"host\": \"far\", \"machine\": \"m\", \"pid\": 1, \"born\": 2}");
  TC_ASSERT(pthread_create(&thread, NULL, heartbeat_on, &b) == 0);
  is_int(tc_owner_alive(dir, &err), 1, "an owner elsewhere that beats is alive");
  atomic_store(&b.stop, true);
  pthread_join(thread, NULL);
  is_int(tc_owner_alive(dir, &err), 0, "... one that does not is dead");
  free(b.lease);
  fx_clean();
}

static void test_number(void)
{
  static const char *const name[] = { ".run-99999999999999999999", ".run-9223372036854775807" };
  for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
    const char *dir = fx_folder();
    struct tc_err err = { 0 };
    char *path = tc_sprintf("%s/%s", dir, name[i]);
    struct tc_owner *o = tc_owner_new(dir, "1", 0);
    TC_ASSERT(mkdir(path, 0777) == 0);
    is_int(tc_owner_take(o, &err), TC_EUSER, "%s: refused", name[i]);
    char *want = tc_sprintf("%s: no run made a folder of this name, and its number is too high to go on from: remove "
                            "it", path);
    is_str(err.text, want, "... by its name");
    free(want);
    is_int(tc_owner_alive(dir, &err), TC_EUSER, "... for a look too");
    tc_owner_free(o);
    free(path);
    fx_clean();
  }
}

enum { RIVALS = 8 };
struct rival { pthread_t thread; struct tc_owner *o; bool again; int rc; struct tc_err err; };

static void *rival(void *arg)
{
  struct rival *r = arg;
  /* 1: an owner that is being taken away can look as if it lived elsewhere. */
  for (int i = 0; i < 20 && (i == 0 || (r->again && r->rc == 1)); i++) {
    if (i > 0) tc_sleep_ns(TC_OWNER_LOOK_NS);
    r->rc = tc_owner_take(r->o, &r->err);
  }
  return NULL;
}

/* Of several that come at once exactly one gets the folder; of several starts of one job each does,
 * the last one for good. */
static void test_rivals(bool one_job)
{
  const char *dir = fx_folder();
  bool good = true;
  for (int round = 0; round < 20; round++) {
    struct rival r[RIVALS] = { { 0 } };
    int won = 0, newest = 0;
    for (int i = 0; i < RIVALS; i++) {
      char job[16];
      snprintf(job, sizeof job, "%d", one_job ? 7 : i);
      r[i].again = one_job;
      r[i].o = tc_owner_new(dir, job, one_job ? i : 0);
    }
    for (int i = 0; i < RIVALS; i++) TC_ASSERT(pthread_create(&r[i].thread, NULL, rival, &r[i]) == 0);
    for (int i = 0; i < RIVALS; i++) pthread_join(r[i].thread, NULL);
    for (int i = 0; i < RIVALS; i++) {
      won += r[i].rc == 0;
      newest += r[i].rc == 0 && fx_there(dir, tc_owner_lease(r[i].o));
      if (r[i].rc < 0 && one_job) printf("# round %d: %s\n", round, r[i].err.text);
    }
    good = good && won == (one_job ? RIVALS : 1) && newest == 1 && fx_count(dir, ".run-") == 1 &&
           fx_count(dir, ".new-") + fx_count(dir, ".gone-") == 0;
    if (!good) printf("# round %d: %d owners, %d homes\n", round, won, fx_count(dir, ".run-"));
    for (int i = 0; i < RIVALS; i++) tc_owner_free(r[i].o);
  }
  ok(good, "of %d that start at once %s, 20 times", RIVALS,
     one_job ? "in one job the last keeps the folder" : "one gets the folder");
  fx_clean();
}

int main(void)
{
  close(STDIN_FILENO);                 /* so that descriptor 0 is a file, which is valid */
  alarm(1100);
  test_same_machine();
  test_process();
  test_elsewhere();
  test_look();
  test_number();
  test_rivals(false);
  test_rivals(true);
  return done_testing();
}
