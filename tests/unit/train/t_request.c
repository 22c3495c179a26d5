/* t_request.c - what `tercio save` waits for: for a run, a clock and checkpoints of the test's own. */
#include "io/ckpt/ckpt.h"
#include "io/ckpt/owner.h"
#include "src/base/base.h"
#include "tests/unit/tap.h"

#include <unistd.h>

static int64_t now_ns, step_after, end_ns;
static int looks, alive_looks, owner_fails;
static bool file_there, taken_there;

static int64_t clock_ns(void) { return now_ns; }
static void sleep_ns(int64_t ns) { now_ns += ns; }
static int is_there(const char *path)
{
  const bool taken = strstr(path, "taken") != NULL;
  looks += !taken;
  return now_ns < end_ns && (taken ? taken_there : file_there);
}
static int owner(const char *folder, struct tc_err *err)
{
  TC_ASSERT(!strcmp(folder, "folder"));
  if (owner_fails) return tc_fail(err, TC_ENOCKPT, "no owner");
  return alive_looks-- > 0;
}
static int list(const char *folder, int64_t **steps, struct tc_err *err)
{
  (void)err;
  TC_ASSERT(!strcmp(folder, "folder"));
  if (step_after < 0) return (int)step_after;
  *steps = tc_calloc(3, sizeof **steps);
  (*steps)[0] = TC_MAX(step_after, 2);           /* descending, as the real one's */
  (*steps)[1] = TC_MIN(step_after, 2);
  (*steps)[2] = 1;
  return 3;
}

#define tc_now_ns clock_ns
#define tc_sleep_ns sleep_ns
#define tc_is_there is_there
#define tc_owner_alive owner
#define tc_ckpt_list_beside list
#include "src/train/request.c"

/* What waiting ends with; the run's file is there until end, the taken one if `taken`. */
static const struct {
  const char *what;
  double wait_s, end_s;
  bool file, taken, fails;
  int alive, step, status, looks;
  const char *sentence;
  double until_s;
} rows[] = {
  { "nothing is pending", 9, 0, true, true, false, 0, 7, 0, 1, "", 0 },
  { "it is answered", 9, 2.05, true, false, false, 0, 7, 0, 22, "", 2.1 },
  { "... what was taken", 9, 2.05, false, true, false, 0, 7, 0, 22, "", 2.1 },
  { "the time is over", 2, 99, true, false, false, 0, 7, TC_EUSER, 22,
    "out: no checkpoint within 2 s; the request stays, see the run's log", 2.1 },
  { "looked after once", 9, 6, true, false, false, 1, 7, 0, 61, "", 6 },
  { "the run is gone", 99, 99, true, false, false, 0, 7, TC_EUSER, 53,
    "out: no run is in progress any more; its newest checkpoint is step 7", 5.1 },
  { "... later", 99, 99, false, true, false, 1, -1, TC_EUSER, 104,
    "out: no run is in progress any more; it has no checkpoint", 10.2 },
  { "the owner can't be read", 99, 99, true, false, true, 0, 7, TC_ENOCKPT, 52, "no owner", 5.1 },
  { "none was made", 9, 1, true, false, false, 0, 5, TC_EUSER, 11,
    "out: the run ended or was started again before it made the checkpoint: request it again", 1 },
  { "there is none at all", 9, 1, true, false, false, 0, -1, TC_EUSER, 11,
    "out: the run ended or was started again before it made the checkpoint: request it again", 1 }
};

static void test_wait(void)
{
  char name[] = "folder", file[] = "file", taken[] = "taken";
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_sent_request a = { .out = "out", .newest = 5, .ckpt_dir = name, .file = file, .taken = taken };
    struct tc_err err = { 0 };
    now_ns = 1000000000000;
    end_ns = now_ns + (int64_t)(rows[i].end_s * 1e9);
    file_there = rows[i].file;
    taken_there = rows[i].taken;
    owner_fails = rows[i].fails;
    alive_looks = rows[i].alive;
    step_after = rows[i].step;
    looks = 0;
    is_int(tc_request_await(&a, rows[i].wait_s, &err), rows[i].status, "%s: status", rows[i].what);
    is_str(err.text, rows[i].sentence, "... sentence");
    is_int((now_ns - 1000000000000) / 1000000, (int64_t)(rows[i].until_s * 1e3 + 0.5), "... when");
    is_int(looks, rows[i].looks, "... looks");
  }
}

/* A request is a file of a word, which is there whole or not at all. */
static void test_put(void)
{
  char dir[] = "/tmp/t_save-XXXXXX", got[20] = "";
  struct tc_err err = { 0 };
  TC_ASSERT(mkdtemp(dir));
  char *file = tc_sprintf("%s/request", dir), *none = tc_sprintf("%s/none/request", dir);
  for (int kind = TC_ASK_NONE + 1; kind < TC_ASKS; kind++) {
    const struct tc_sent_request a = { .kind = kind, .file = file };
    is_int(put(&a, &err), 0, "a request");
    FILE *f = fopen(file, "r");
    if (f) got[fread(got, 1, sizeof got - 1, f)] = 0;
    if (f) fclose(f);
    ok(!strncmp(got, tc_request_word[kind], strlen(tc_request_word[kind])) &&
           !strcmp(got + strlen(tc_request_word[kind]), "\n"),
       "... is the word: %s", tc_request_word[kind]);
  }
  const struct tc_sent_request bad = { .kind = TC_ASK_SAVE, .file = none },
                   on_folder = { .kind = TC_ASK_SAVE, .file = dir };
  char *want = tc_sprintf("%s can't be written: there is no folder %.*s", none, (int)(strrchr(none, '/') - none), none);
  is_int(put(&bad, &err), TC_EUSER, "a folder that is not there: status");
  is_str(err.text, want, "... sentence");
  free(want);
  want = tc_sprintf("%s is a folder, not a file that can be made; wait until the run has taken it", dir);
  is_int(put(&on_folder, &err), TC_EUSER, "a folder in its place: status");
  is_str(err.text, want, "... sentence");
  free(want);
  want = tc_sprintf("%s.tmp-%ld", dir, (long)getpid());
  ok((access)(want, F_OK) != 0, "... nothing is left");
  unlink(file);
  rmdir(dir);
  free(want);
  free(file);
  free(none);
}

int main(void)
{
  test_wait();
  test_put();
  return done_testing();
}
