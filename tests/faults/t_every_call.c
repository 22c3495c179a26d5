/* t_every_call.c [--full] [SEED] - a save is killed at, and given an error by, every call it makes
 * on files and folders, one case each.
 *
 * A child makes the save under the shim; this process, which sees the folder as the next start
 * would, then asks:
 * - every folder step-* verifies, byte by byte;
 * - what a resume takes is the step from before, or the new one if that could be committed, and
 *   holds what was saved; a save that reported success is the new one;
 * - after an error all ranks have the same status and sentence, and the older ones are untouched;
 * - the next save works and leaves nothing lying about.
 * Short form: a sample of the cases, chosen by SEED. */
#include <signal.h>
#include <sys/wait.h>

#include "tests/faults/faults.h"
#include "tests/faults/counters.h"
#include "tests/unit/verify_step.h"

/* ---- what is saved ---------------------------------------------------------------- */

/* A folder made ready, then the save under test. salt of a step is the step, 100 + step when it
 * is saved again. */
static const struct scenario {
  const char *name;
  int ready[3];                   /* steps there before */
  int64_t step;
  int keep;
  bool litter;                    /* what earlier deaths left */
} scenarios[] = {
  { "second save", { 1 }, 2, 0, false },
  { "first save", { 0 }, 1, 0, false },
  { "keep 2, litter", { 1, 2 }, 3, 2, true },
  { "same step again", { 1, 2 }, 2, 0, false },
  { "back from a later step", { 1, 3 }, 2, 0, false },
};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* Shared with the child. */
static struct result { bool done; int status[MOST_WRITERS]; struct tc_err err[MOST_WRITERS]; }
  *result;

static uint32_t new_salt(const struct scenario *s) { return (uint32_t)(100 + s->step); }

static void make_ready(const struct scenario *s, const char *dir, int world)
{
  for (int i = 0; i < 3 && s->ready[i]; i++)
    TC_ASSERT(fx_save(dir, s->ready[i], (uint32_t)s->ready[i], world, 0) == 0);
  if (s->litter)
    sh("cd '%s' && mkdir .tmp-step-00000009-x-0-aa && echo x > .tmp-step-00000009-x-0-aa/f && "
       "cp -r step-00000001 .old-step-00000000-bb", dir);
}

static void child_saves(const struct scenario *s, const char *dir, int world)
{
  struct fx_save f = { .dir = dir, .step = s->step, .salt = new_salt(s), .world = world,
                       .keep = s->keep };
  if (!freopen("/dev/null", "w", stderr)) _exit(9);   /* hundreds of warnings */
  fx_threads(&f, fx_counted_save);
  memcpy(result->status, f.status, sizeof f.status);
  memcpy(result->err, f.err, sizeof f.err);
  result->done = true;
  _exit(0);
}

/* Runs the save in a child under the fault that is armed; its wait status. */
static int run_child(const struct scenario *s, const char *dir, int world)
{
  int status = 0;
  memset(result, 0, sizeof *result);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(600);
    child_saves(s, dir, world);
  }
  TC_ASSERT(waitpid(pid, &status, 0) == pid);
  shim_ctl()->fault = SHIM_NONE;  /* still in place, so that no fsync takes its time */
  return status;
}

/* ---- what must hold after --------------------------------------------------------- */

static char fault_text[700];      /* the case, for what goes wrong */
static int n_wrong;

static bool must(bool good, const char *what, const char *detail)
{
  if (!good && n_wrong++ < 20) printf("# %s: %s %s\n", fault_text, what, detail);
  return good;
}

static void must_verify_all(const char *dir)
{
  int64_t *steps;
  int n = tc_ckpt_list(dir, &steps, NULL);
  for (int i = 0; i < n; i++) {
    struct tc_err err = {0};
    char *path = tc_ckpt_step_path(dir, steps[i]);
    must(verify_step(path, true, &err) == 0, "a step is bad:", err.text);
    free(path);
  }
  free(steps);
}

/* The step a resume takes, with *salt what its data is (-1: not one that was saved); 0: no step. */
static int64_t resumed(const char *dir, const struct scenario *s, int64_t *salt)
{
  struct tc_comm_opts o = { .name = "world" };
  struct tc_comm *self = tc_comm_self(&o);
  struct tc_ckpt *c = NULL;
  struct tc_err err = {0};
  int64_t step = 0;
  *salt = -1;
  if (tc_ckpt_resume(&c, dir, -1, self, NULL, &err) < 0) {
    must(false, "no resume:", err.text);
    step = -1;
  }
  if (c) {
    step = tc_ckpt_meta(c)->step;
    if (fx_read_all(c, (uint32_t)step, &err) == 1) *salt = step;
    else if (step == s->step && fx_read_all(c, new_salt(s), &err) == 1) *salt = new_salt(s);
  }
  tc_ckpt_close(c);
  tc_comm_free(self);
  return step;
}

static int64_t newest_ready(const struct scenario *s)
{
  int64_t newest = 0;
  for (int i = 0; i < 3; i++) newest = TC_MAX(newest, s->ready[i]);
  return newest;
}

static bool is_there(const char *dir, int64_t step)
{
  char *path = tc_ckpt_step_path(dir, step);
  bool there = access(path, F_OK) == 0;
  free(path);
  return there;
}

static void must_hold(const struct scenario *s, const char *dir, int world, int fault)
{
  int64_t salt, step, old = newest_ready(s);
  bool reported = result->done && result->status[0] == 0;
  char text[100];
  must_verify_all(dir);
  if (result->done && !reported && fault != SHIM_READ_ONLY)
    must(fx_count(dir, ".tmp-") == 0, "what was begun is still there", "");
  step = resumed(dir, s, &salt);
  snprintf(text, sizeof text, "step %d, data %d", (int)step, (int)salt);
  bool is_new = step == s->step && salt == new_salt(s);
  bool is_old = step == old && salt == (old ? old : -1);
  /* A step that lies ahead steps aside just before the commit: then the one before is left. */
  if (old > s->step) is_old = is_old || (step == s->ready[0] && salt == step);
  must(is_new || (is_old && !reported), reported ? "reported, but there is" : "there is", text);
  for (int r = 1; r < world && result->done; r++)
    must(result->status[r] == result->status[0] &&
         strcmp(result->err[r].text, result->err[0].text) == 0, "ranks differ:",
         result->err[r].text);
  if (result->done && !reported)
    must(result->status[0] == TC_EUSER && strstr(result->err[0].text, dir), "sentence:",
         result->err[0].text);
  bool pruned = is_new && s->keep > 0;           /* then those before it may be gone */
  for (int i = 0; i < 3 && s->ready[i]; i++)
    must(pruned || s->ready[i] > s->step || is_there(dir, s->ready[i]), "an older step is gone",
         "");
  /* The next save tidies up. */
  must(fx_save(dir, 50, 50, world, 0) == 0, "the next save fails", "");
  must(fx_count(dir, ".") == 0, "litter stays after the next save", "");
  must_verify_all(dir);
  must(resumed(dir, s, &salt) == 50 && salt == 50, "the next save is not the newest", "");
}

/* ---- cases ------------------------------------------------------------------------ */

static int cases[SHIM_FAULTS], not_fired, in_time;

static void one_case(const char *root, const struct scenario *s, int world, int counter, int call,
                     int fault)
{
  struct shim *c = shim_ctl();
  char *dir = tc_sprintf("%s/ckpt", root);
  sh("rm -rf '%s' && cp -r '%s/ready' '%s'", dir, root, dir);
  shim_arm(dir, counter, call, fault);
  c->dry_sync = true;
  int status = run_child(s, dir, world);
  snprintf(fault_text, sizeof fault_text, "%s, %d ranks: %s at call %d of rank %d, %s",
           s->name, world, shim_fault_name[fault], call, counter, c->what);
  not_fired += !c->fired;
  bool killed = fault == SHIM_KILL || fault == SHIM_KILL_AFTER || fault == SHIM_KILL_MID;
  if (c->fired) {
    cases[fault]++;
    must(killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                : WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended wrongly", "");
    in_time += result->done && result->status[0] == 0;
  }
  must(c->fired, "did not strike", "");
  must_hold(s, dir, world, fault);
  free(dir);
}

/* Counts the calls of a scenario, then has a case for each call and fault: one in `one_in`. */
static void every_call(const char *root, const struct scenario *s, int world, uint32_t one_in)
{
  struct shim *c = shim_ctl();
  char *ready = tc_sprintf("%s/ready", root);
  sh("rm -rf '%s' && mkdir '%s'", ready, ready);
  make_ready(s, ready, world);
  char *dir = tc_sprintf("%s/ckpt", root);
  sh("rm -rf '%s' && cp -r '%s' '%s'", dir, ready, dir);
  shim_arm(dir, 0, 0, SHIM_NONE);
  c->dry_sync = true;
  run_child(s, dir, world);
  static uint8_t kind[SHIM_COUNTERS][SHIM_CALLS];
  int count[SHIM_COUNTERS], n_cases = 0, n_calls = 0, wrong = n_wrong;
  memcpy(kind, c->kind, sizeof kind);
  memcpy(count, c->count, sizeof count);
  snprintf(fault_text, sizeof fault_text, "%s, %d ranks: undisturbed", s->name, world);
  must(result->done && result->status[0] == 0, "fails", result->err[0].text);
  must_hold(s, dir, world, SHIM_NONE);
  for (int counter = 0; counter < SHIM_COUNTERS; counter++) {
    n_calls += count[counter];
    TC_ASSERT(count[counter] <= SHIM_CALLS);
    for (int k = 1; k <= count[counter]; k++)
      for (int fault = SHIM_KILL; fault < SHIM_FAULTS; fault++) {
        if (!shim_applies(kind[counter][k - 1], fault) || fx_random(one_in) != 0) continue;
        one_case(root, s, world, counter, k, fault);
        n_cases++;
      }
  }
  ok(n_wrong == wrong && n_cases > 0, "%s, %d ranks: %d calls, %d cases, %d wrong", s->name,
     world, n_calls, n_cases, n_wrong - wrong);
  free(dir);
  free(ready);
}

/* ---- is every call seen? ---------------------------------------------------------- */

/* The calls that change something, of one save into dir. */
static int count_changes(const char *dir)
{
  static const int kinds[] = { SHIM_MKDIR, SHIM_WRITE, SHIM_SYNC, SHIM_RENAME, SHIM_UNLINK,
                               SHIM_SIZE };
  struct shim *c = shim_ctl();
  int n = 0;
  shim_arm(dir, 0, 0, SHIM_NONE);
  c->dry_sync = false;
  run_child(&scenarios[3], dir, 2);
  for (int counter = 0; counter < SHIM_COUNTERS; counter++)
    for (int k = 0; k < c->count[counter]; k++)
      for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        n += c->kind[counter][k] == kinds[i];
  return n;
}

/* strace sees the system calls themselves: the shim must have seen as many. */
static void compare_with_strace(const char *root, const char *self)
{
  if (system("strace -o /dev/null true 2> /dev/null") != 0) {
    skip("the count of calls is not compared: strace is missing or may not trace");
    return;
  }
  char *dir = tc_sprintf("%s/traced", root);
  TC_ASSERT(mkdir(dir, 0777) == 0);
  make_ready(&scenarios[3], dir, 2);
  sh("strace -f -y -o '%s/log' -e trace=mkdir,mkdirat,write,pwrite64,writev,pwritev,pwritev2,fsync,"
     "fdatasync,syncfs,sync_file_range,rename,renameat,renameat2,unlink,unlinkat,rmdir,truncate,"
     "ftruncate,fallocate,link,linkat,symlink,symlinkat,mknod,mknodat,copy_file_range,sendfile,"
     "splice '%s' --count '%s' > '%s/count'", root, self, dir, root);
  /* Not by the whole name: strace prints names without links and "..". */
  sh("grep -v resumed '%s/log' | grep -c /traced > '%s/seen'", root, root);
  int count = 0, seen = -1;
  char *paths[] = { tc_sprintf("%s/count", root), tc_sprintf("%s/seen", root) };
  for (int i = 0; i < 2; i++) {
    FILE *f = fopen(paths[i], "r");
    TC_ASSERT(f && fscanf(f, "%d", i ? &seen : &count) == 1);
    fclose(f);
    free(paths[i]);
  }
  ok(count > 20 && count == seen, "strace sees the calls that are counted, and no others: %d, %d",
     count, seen);
  free(dir);
}

int main(int argc, char **argv)
{
  bool full = argc > 1 && strcmp(argv[1], "--full") == 0;
  const uint32_t seed = argc > 1 + full ? (uint32_t)strtoul(argv[1 + full], NULL, 10) : (uint32_t)test_seed(full);
  fx_state = seed;
  result = shared(sizeof *result);
  if (argc > 2 && strcmp(argv[1], "--count") == 0) {
    printf("%d\n", count_changes(argv[2]));
    return 0;
  }
  alarm(full ? 36000 : 1100);
  const char *root = fx_folder();
  compare_with_strace(root, argv[0]);
  for (int world = 1; world <= 2; world++)
    for (int i = 0; i < SCENARIOS; i++)
      every_call(root, &scenarios[i], world, full ? 1 : 30);
  int total = 0;
  for (int f = 0; f < SHIM_FAULTS; f++) {
    total += cases[f];
    if (cases[f]) printf("# %-11s %d cases\n", shim_fault_name[f], cases[f]);
  }
  is_int(not_fired, 0, "every fault struck");
  is_int(n_wrong, 0, "seed %u: %d cases in all; in %d the save succeeded all the same", seed, total,
         in_time);
  fx_clean();
  return done_testing();
}
