/* t_keep.c - `tercio ckpt` verify with threads, prune, quarantine, and diff's tolerances:
 * what proves, removes and compares. */
#include "tests/unit/ckpt_cmd.h"

/* One byte in the middle of a file of a step becomes another. */
static void damage(const char *dir, int64_t step, const char *file)
{
  char *path = tc_sprintf("%s/step-%08lld/%s", dir, (long long)step, file), byte;
  int fd = open(path, O_RDWR);
  off_t at = lseek(fd, 0, SEEK_END) / 2;
  TC_ASSERT(fd >= 0 && pread(fd, &byte, 1, at) == 1);
  byte ^= 0x10;
  TC_ASSERT(pwrite(fd, &byte, 1, at) == 1);
  close(fd);
  free(path);
}

static void shell(const char *fmt, const char *dir)
{
  char cmd[400];
  snprintf(cmd, sizeof cmd, "cd '%s' && %s", dir, fmt);
  TC_ASSERT(system(cmd) == 0);
}

/* ---- verify ------------------------------------------------------------------------ */

static void test_verify(const char *root)
{
  char *dir = tc_sprintf("%s/verify", root), *one;
  fx_save(dir, 4, 1, 4, 0);
  for (int j = 1; j <= 5; j += 2) is_int(run("verify %s -j %d", dir, j), 0, "good, %d threads", j);
  for (int i = 1; i < 4; i++) {
    char file[20];
    snprintf(file, sizeof file, "rank-%05d.h5", i);
    damage(dir, 4, file);
  }
  is_int(run("verify %s -j 1", dir), 4, "three files damaged: wrong checksum");
  ok(says("rank-00001.h5") && says("rank-00002.h5") && says("rank-00003.h5"), "all are named");
  one = tc_strdup(out_text);
  for (int j = 2; j <= 8; j += 3) {
    is_int(run("verify %s -j%d", dir, j), 4, "with %d threads too", j);
    is_str(out_text, one, "the same words in the same order");
  }
  free(one);
  is_int(run("verify %s -j 0", dir), 2, "no threads");
  shell("rm step-00000004/rank-00003.h5", dir);
  is_int(run("verify %s --quick", dir), 3, "a file is missing: incomplete");
  fx_save(dir, 5, 1, 2, 0);
  shell("rm -r step-00000004; mv step-00000005 step-00000006", dir);
  is_int(run("verify %s", dir), 4, "a step under another's name");
  ok(says("its manifest is that of step 5"), "is found");
  free(dir);
}

/* Shares of one file: every block is read in one of them, and no share has them all. */
static void test_shares(const char *root)
{
  enum { SHARES = 2 };
  char *dir = tc_sprintf("%s/shares", root);
  int blocks = 0, twice = 0, least = 1 << 30;
  uint8_t all[64] = {0};
  fx_save(dir, 1, 1, 1, 0);
  for (int i = 0; i < SHARES; i++) {
    struct tc_ckpt *c;
    struct tc_findings f = {0};
    int mine = 0;
    TC_ASSERT(tc_ckpt_open(&c, dir, NULL) == 0);
    blocks = (int)c->first_block[c->m->n_pieces];
    TC_ASSERT(blocks <= (int)sizeof all);
    tc_ckpt_verify_files(c, true, i, SHARES, &f);
    for (int b = 0; b < blocks; b++) {
      bool read = c->checked[b / 8] >> b % 8 & 1;
      mine += read;
      twice += read && all[b]++;
    }
    least = TC_MIN(least, mine);
    tc_ckpt_close(c);
  }
  for (int b = 0; b < blocks; b++) twice += !all[b];
  ok(twice == 0 && least > 0, "%d blocks of one file, read once by %d; at least %d each", blocks,
     SHARES, least);
  free(dir);
}

/* ---- prune ------------------------------------------------------------------------- */

static void test_prune(const char *root)
{
  char *dir = tc_sprintf("%s/prune", root);
  for (int step = 1; step <= 6; step++) fx_save(dir, step, 1, 2, 0);
  damage(dir, 5, "rank-00001.h5");
  is_int(run("prune %s", dir), 2, "without --keep");
  ok(fails(run("prune %s --keep 0", dir), 2, "at least 1"), "--keep 0 would remove the last one");
  ok(fails(run("prune %s/step-00000001 --keep 1", dir), 2, "is one checkpoint"), "of one step");
  is_int(run("prune %s --keep 2 --dry-run", dir), 0, "--dry-run");
  is_int(fx_count(dir, "step-"), 6, "removes nothing");
  ok(says("step 3: would be removed") && !says("step 4: would"), "but says what would go");
  is_int(run("prune %s --keep 2 --json", dir), 0, "--keep 2");
  json_t *j = parsed();
  is_int((int64_t)json_array_size(json_object_get(j, "removed")), 3, "three are removed");
  is_int((int64_t)json_array_size(json_object_get(j, "good")), 2, "two good ones stay");
  is_int((int64_t)json_array_size(json_object_get(j, "faulty")), 1,
      "and the faulty one among them");
  json_decref(j);
  ok(fx_there(dir, "step-00000006") && fx_there(dir, "step-00000005") && fx_there(dir, "step-00000004") &&
     fx_count(dir, "step-") == 3 && fx_count(dir, ".old") == 0, "these are there, no others");
  damage(dir, 6, "rank-00000.h5");
  is_int(run("prune %s --keep 1", dir), 0, "the newest two are faulty");
  is_int(fx_count(dir, "step-"), 3, "the last good one and what is newer stay");
  damage(dir, 4, "rank-00000.h5");
  ok(fails(run("prune %s --keep 1", dir), 5, "nothing was removed"), "none is good: no usable one");
  is_int(fx_count(dir, "step-"), 3, "and all stay");
  ok(fails(run("prune %s/none --keep 1", dir), 2, "no such folder"), "no folder");
  free(dir);
}

/* ---- quarantine -------------------------------------------------------------------- */

static void test_quarantine(const char *root)
{
  char *dir = tc_sprintf("%s/quarantine", root);
  for (int step = 1; step <= 2; step++) fx_save(dir, step, 1, 2, 0);
  is_int(run("quarantine %s 2", dir), 0, "quarantine 2");
  ok(fx_there(dir, "quarantine-step-00000002") && !fx_there(dir, "step-00000002"), "it is set aside");
  is_int(run("latest %s", dir), 0, "latest");
  ok(says("step-00000001\n"), "is the one before");
  is_int(run("ls %s", dir), 0, "ls");
  ok(says("aside, quarantine-step-00000002\n") && says("  ok\n"), "lists both, and says which is set aside");
  fx_save(dir, 3, 1, 2, 1);
  ok(fx_there(dir, "quarantine-step-00000002") && !fx_there(dir, "step-00000001"),
     "a run's keep = 1 doesn't remove it");
  is_int(run("verify %s/quarantine-step-00000002", dir), 0, "it can be looked at");
  fx_save(dir, 2, 2, 1, 0);
  ok(fails(run("quarantine %s 2", dir), 2, "already"), "twice: the first one isn't lost");
  ok(fails(run("quarantine %s 2 --release", dir), 2, "already"), "nor the newer one");
  shell("rm -r step-00000002", dir);
  is_int(run("quarantine %s step-00000002 --release --json", dir), 0, "--release, by its name");
  json_t *j = parsed();
  is_int((int64_t)real(j, "step"), 2, "says its step");
  json_decref(j);
  ok(fx_there(dir, "step-00000002"), "puts it back");
  shell("mv step-00000002 quarantine-step-00000002.2", dir);
  ok(fails(run("quarantine %s 2 --release", dir), 5, "quarantine-step-00000002 does not exist"),
     "a second one that a run set aside is not meant by the step alone");
  const char *const odd[] = { "2.", "2.1", "2.x", "2.02", "2.2.2", ".2" };
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
    ok(fails(run("quarantine %s %s --release", dir, odd[i]), 2, "is not a step"), "nor by %s", odd[i]);
  ok(fails(run("quarantine %s 2.2", dir), 2, "is not a step"), "2.2 is not one to quarantine");
  is_int(run("quarantine %s 2.2 --release", dir), 0, "--release of 2.2");
  ok(fx_there(dir, "step-00000002") && !fx_there(dir, "quarantine-step-00000002.2"), "puts it back");
  ok(fails(run("quarantine %s 9", dir), 5, "step-00000009 does not exist"), "a step that isn't there");
  ok(fails(run("quarantine %s last", dir), 2, "is not a step"), "a word");
  ok(fails(run("quarantine %s -- -1", dir), 2, "--"), "a negative one");
  free(dir);
}

/* ---- diff -------------------------------------------------------------------------- */

/* A checkpoint of one f32 tensor x[n] (and of y[1, n] where wide). */
static void save_values(const char *dir, const float *x, int64_t n)
{
  const struct tc_ckpt_tensor t = { "x", TC_F32, 1, { n } };
  const struct tc_ckpt_slice s = { .tensor = 0, .count = { n }, .data = (void *)(uintptr_t)x };
  const char *const who[] = { "rank 0" };
  const struct tc_comm_opts o = { .name = "world" };
  struct tc_comm *self = tc_comm_self(&o);
  struct tc_ckpt_meta meta = { .step = 1, .model = "", .config = "", .mesh = "", .system = "",
                               .job = "", .rank_names = who };
  struct tc_err err = {0};
  if (tc_ckpt_save(dir, &meta, &t, 1, &s, 1, self, &err) < 0) printf("# %s\n", err.text);
  tc_comm_free(self);
}

static void test_diff(const char *root)
{
  static const struct { const char *what; float a[3], b[3]; const char *opts; int status; } c[] = {
    { "equal", { 1, 2, 3 }, { 1, 2, 3 }, "", 0 },
    { "NaN in both", { NAN, 2, 3 }, { NAN, 2, 3 }, "", 0 },
    { "NaN in A", { NAN, 2, 3 }, { 1, 2, 3 }, "--rtol 1e9 --atol 1e9", 1 },
    { "NaN in B", { 1, 2, 3 }, { 1, 2, NAN }, "--rtol 1e9 --atol 1e9", 1 },
    { "inf in both", { INFINITY, 2, 3 }, { INFINITY, 2, 3 }, "", 0 },
    { "inf in both hides nothing", { INFINITY, 2, 5 }, { INFINITY, 2, 3 }, "--rtol 0.1", 1 },
    { "inf and -inf", { INFINITY, 2, 3 }, { -INFINITY, 2, 3 }, "--rtol 1e9 --atol 1e9", 1 },
    { "inf in A", { INFINITY, 2, 3 }, { 1, 2, 3 }, "--rtol 1e9 --atol 1e9", 1 },
    { "inf in B", { 1, 2, 3 }, { INFINITY, 2, 3 }, "--rtol 1e9 --atol 1e9", 1 },
    { "0 and -0, bit for bit", { 0, 2, 3 }, { -0.0f, 2, 3 }, "", 1 },
    { "0 and -0, nearly", { 0, 2, 3 }, { -0.0f, 2, 3 }, "--atol 0", 0 },
    { "near zeros", { 1e-9f, 0, 0 }, { 0, 0, 0 }, "--rtol 1e-3", 1 },
    { "near zeros, absolutely", { 1e-9f, 0, 0 }, { 0, 0, 0 }, "--rtol 1e-3 --atol 1e-8", 0 },
    { "off by too much", { 1.5f, 0, 0 }, { 1, 0, 0 }, "--atol 0.25", 1 },
    { "within rtol", { 1.5f, 0, 0 }, { 1, 0, 0 }, "--rtol 0.5 --atol 0.25", 0 },
  };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    char *a = tc_sprintf("%s/diff%zu-a", root, i), *b = tc_sprintf("%s/diff%zu-b", root, i);
    save_values(a, c[i].a, 3);
    save_values(b, c[i].b, 3);
    is_int(run("diff %s %s %s", a, b, c[i].opts), c[i].status, "diff: %s", c[i].what);
    is_int(run("diff %s %s %s --json", a, b, c[i].opts), c[i].status, "diff --json");
    json_t *j = parsed();
    is_int((int64_t)real(j, "differ"), c[i].status, "says how many differ");
    json_decref(j);
    free(a);
    free(b);
  }
  is_int(run("diff %s/diff0-a %s/diff0-b --atol -1", root, root), 2, "a negative tolerance");
}

/* A tensor of one long row is read in pieces that fit. */
static void test_long_row(const char *root)
{
  enum { N = 9000000 };
  char *dir = tc_sprintf("%s/long", root);
  float *x = tc_calloc(N, sizeof *x);
  double sum = 0;
  for (int64_t i = 0; i < N; i++) sum += x[i] = (float)(i % 1000) / 8 - 20;
  x[N - 1] = 7777;
  sum += 7777 - (double)((N - 1) % 1000) / 8 + 20;
  save_values(dir, x, N);
  is_int(run("tensors %s --json", dir), 0, "tensors of 36 MB in a row");
  json_t *j = parsed(), *t = json_array_get(j, 0);
  near_f(real(t, "mean"), sum / N, 1e-8, "mean");
  near_f(real(t, "max"), 7777, 0, "the last one is among them");
  near_f(real(t, "min"), -20, 0, "and the first");
  json_decref(j);
  is_int(run("dump %s x --rows 8999998:9000000", dir), 0, "dump of the end");
  is_str(out_text, "104.75\n7777\n", "these two");
  free(x);
  free(dir);
}

int main(void)
{
  alarm(1100);
  const char *dir = fx_folder();
  snprintf(out_path, sizeof out_path, "%s/out", dir);
  test_verify(dir);
  test_shares(dir);
  test_prune(dir);
  test_quarantine(dir);
  test_diff(dir);
  test_long_row(dir);
  free(out_text);
  fx_clean();
  return done_testing();
}
