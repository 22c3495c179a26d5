/* t_ckpt.c - checkpoints: what 1, 2 and 4 writers save, any box of it reads back; commits
 * agree, prune and replace; resume falls back. */
#include "tests/unit/ckpt_fixture.h"
#include "tests/unit/verify_step.h"

#include <hdf5.h>
#include <unistd.h>

/* ---- round trips ------------------------------------------------------------------ */

static void random_box(int t, int64_t *start, int64_t *count)
{
  for (int d = 0; d < fx_tensor[t].rank; d++) {
    uint32_t dim = (uint32_t)fx_tensor[t].dim[d];
    start[d] = fx_random(dim);
    count[d] = 1 + fx_random(dim - (uint32_t)start[d]);
  }
}

static void test_round_trip(int world)
{
  const char *dir = fx_folder();
  struct tc_err err = {0};
  struct tc_ckpt *c = NULL;
  is_int(fx_save(dir, 100, (uint32_t)world, world, 0), 0, "%d writers: saved", world);
  if (!is_int(tc_ckpt_open(&c, dir, &err), 0, "%d writers: opens the newest", world))
    printf("# %s\n", err.text);
  char *path = tc_ckpt_step_path(dir, 100);
  is_str(tc_ckpt_path(c), path, "its path");
  int wrong = 0;
  for (int i = 0; i < 400; i++) {
    int64_t start[TC_DIMS] = {0}, count[TC_DIMS] = {0};
    int t = i % FX_TENSORS;
    random_box(t, start, count);
    wrong += fx_read(c, (uint32_t)world, t, start, count, &err) != 1;
  }
  is_int(wrong, 0, "%d writers: 400 random boxes", world);
  int64_t start[TC_DIMS] = {0}, count[TC_DIMS] = {0};
  float untouched = 7;
  is_int(tc_ckpt_read(c, 0, start, count, &untouched, &err), 0, "%d writers: an empty box is read",
         world);
  ok(untouched == 7, "... into nothing");
  is_int(fx_read_all(c, (uint32_t)world, &err), 1, "%d writers: every tensor whole", world);
  is_int(fx_read_all(c, 99, &err), 0, "other values would have been noticed");
  const struct tc_ckpt_meta *m = tc_ckpt_meta(c);
  ok(m->step == 100 && m->seed == UINT64_MAX - 6 && m->tokens == 12345678901 && m->restart == 2,
     "numbers of the meta data");
  is_str(m->config, "[train]\nlr = 1e-3\n", "text of the meta data");
  is_str(m->rank_names[world - 1], world == 4 ? "rank 3 on node2" : world == 2 ? "rank 1 on node1"
         : "rank 0 on node1", "who wrote");
  is_int(tc_ckpt_n(c), FX_TENSORS, "all tensors are listed");
  is_int(tc_ckpt_find(c, "none"), -1, "and no others");
  int wrong_meta = 0;
  for (int i = 0; i < tc_ckpt_n(c); i++) {
    const struct tc_ckpt_tensor *a = tc_ckpt_at(c, i), *b = &fx_tensor[i];
    wrong_meta += a->dtype != b->dtype || a->rank != b->rank ||
                  memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) != 0;
  }
  is_int(wrong_meta, 0, "types and shapes");
  is_int(verify_step(path, true, &err), 0, "%d writers: verifies", world);
  tc_ckpt_close(c);
  free(path);
  fx_clean();
}

/* ---- what people's tools see ------------------------------------------------------ */

static bool has_tool(const char *tool)
{
  char cmd[100];
  snprintf(cmd, sizeof cmd, "command -v %s >/dev/null 2>&1", tool);
  return system(cmd) == 0;
}

/* Since 1.14.4 h5dump reads every float of two bytes as IEEE half: what that lacks becomes inf, 0 or a
 * subnormal near it. */
static bool dumped(double x, double y)
{
  const bool half = H5_VERSION_GE(1, 14, 4) && (fabs(y) < 6.2e-5 || fabs(y) > 65504);
  if (isnan(y)) return isnan(x);
  return fabs(x - y) <= 1e-6 * fabs(y) || (half && (fabs(y) < 1 ? fabs(x) <= fabs(y) + 6e-8 : isinf(x)));
}

/* The floats of a file of bf16 that HDF5 converts to doubles otherwise than want[n]. */
static int wrong_doubles(const char *path, const char *name, const uint16_t *want, int n)
{
  double *got = tc_calloc((size_t)n, sizeof *got);
  hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), set = H5Dopen2(file, name, H5P_DEFAULT);
  int wrong = H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, got) < 0;
  for (int i = 0; i < n; i++) {
    const double y = tc_bf16_to_f32(want[i]);
    wrong += isnan(y) ? !isnan(got[i]) : got[i] != y;
  }
  H5Dclose(set);
  H5Fclose(file);
  free(got);
  return wrong;
}

/* h5dump decodes a bf16 dataset: its fp32 values are ours. So does HDF5's own conversion. */
static void test_h5dump(void)
{
  enum { N = 8 * 3 * 4 * 16 };
  const char *dir = fx_folder();
  char cmd[300];
  if (!has_tool("h5dump") || !has_tool("h5ls")) {
    skip("hdf5-tools are not here");
    return;
  }
  fx_save(dir, 7, 5, 1, 0);
  snprintf(cmd, sizeof cmd, "h5ls -r %s/step-00000007/rank-00000.h5 | "
           "grep -q '^/tensors/opt/wte.weight.m *Dataset {6, 10}'", dir);
  is_int(system(cmd), 0, "h5ls lists the datasets");
  snprintf(cmd, sizeof cmd, "h5dump -y -w 1 -m '%%.9g' -d /tensors/h0.attn.qkv.weight "
           "%s/step-00000007/rank-00000.h5", dir);
  FILE *p = popen(cmd, "r");
  char line[200];
  int64_t start[TC_DIMS] = {0}, n = 0, wrong = 0;
  uint16_t *want = fx_box(5, 1, start, fx_tensor[1].dim);
  bool data = false;
  while (fgets(line, sizeof line, p)) {
    if (strstr(line, "DATA {")) data = true;
    char *end, *at = line + strspn(line, " ");
    double x = strtod(at, &end);
    if (!data || end == at || n >= N) continue;
    const double y = tc_bf16_to_f32(want[n++]);
    if (!dumped(x, y)) printf("# %.9g is dumped as %.9g\n", y, x);
    wrong += !dumped(x, y);
    if (strchr(line, '}')) data = false;
  }
  pclose(p);
  is_int(n, N, "h5dump prints every bfloat16");
  is_int(wrong, 0, "with the values that were saved");
  char *path = tc_sprintf("%s/step-00000007/rank-00000.h5", dir);
  is_int(wrong_doubles(path, "/tensors/h0.attn.qkv.weight", want, N), 0, "HDF5 converts them to doubles");
  free(path);
  free(want);
  fx_clean();
}

/* ---- one view --------------------------------------------------------------------- */

/* Tensors of the view, as HDF5 reads them, that are not what was saved with `salt`. */
static int wrong_in_view(const char *path, uint32_t salt)
{
  hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
  int wrong = 0;
  for (int t = 0; t < FX_TENSORS; t++) {
    const struct tc_ckpt_tensor *x = &fx_tensor[t];
    int64_t start[TC_DIMS] = {0}, elems = 1;
    hsize_t dim[TC_DIMS];
    char *name = tc_sprintf("/tensors/%s", x->name);
    hid_t set = H5Dopen2(file, name, H5P_DEFAULT), space = H5Dget_space(set), type =
        H5Dget_type(set);
    bool good = H5Sget_simple_extent_ndims(space) == x->rank && H5Tget_size(type) ==
        tc_dtype_bytes(x->dtype);
    if (good && x->rank) H5Sget_simple_extent_dims(space, dim, NULL);
    for (int d = 0; good && d < x->rank; d++) {
      good = dim[d] == (hsize_t)x->dim[d];
      elems *= x->dim[d];
    }
    size_t bytes = (size_t)elems * tc_dtype_bytes(x->dtype);
    void *want = fx_box(salt, t, start, x->dim), *got = tc_calloc(bytes, 1);
    good = good && H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, got) >= 0 && !memcmp(got,
                                                            want, bytes);
    if (!good) printf("# %s is not what was saved\n", x->name);
    wrong += !good;
    H5Tclose(type);
    H5Sclose(space);
    H5Dclose(set);
    free(want);
    free(got);
    free(name);
  }
  H5Fclose(file);
  return wrong;
}

/* HDF5 and h5dump read the virtual datasets whole, from the files of all writers, also after a move. */
static void test_view(void)
{
  const char *dir = fx_folder();
  struct tc_err err = {0};
  struct fx_save f = { .dir = dir, .step = 7, .salt = 5, .world = 4, .view = true };
  fx_threads(&f, fx_rank_save);
  if (!is_int(f.status[0], 0, "saved with a view")) printf("# %s\n", f.err[0].text);
  char *path = tc_ckpt_step_path(dir, 7);
  is_int(verify_step(path, true, &err), 0, "it verifies");
  char *cmd = tc_sprintf("cd / && mkdir %s/moved && mv %s %s/moved/s && ! [ -e %s ]", dir, path,
                         dir, path);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
  char *view = tc_sprintf("%s/moved/s/view.h5", dir);
  is_int(wrong_in_view(view, 5), 0, "HDF5 reads all tensors of four writers from it");
  free(view);
  int64_t start[TC_DIMS] = {0}, n = 0, wrong = 0;
  if (!has_tool("h5dump")) {
    skip("hdf5-tools are not here");
  } else {
    const int t = 5;                /* big, f32, in 2 x 2 parts */
    float *want = fx_box(5, t, start, fx_tensor[t].dim);
    cmd = tc_sprintf("h5dump -y -w 1 -m '%%.9g' -d /tensors/big %s/moved/s/view.h5", dir);
    FILE *p = popen(cmd, "r");
    char line[200];
    bool data = false;
    while (fgets(line, sizeof line, p)) {
      if (strstr(line, "DATA {")) data = true;
      char *end, *at = line + strspn(line, " ");
      float x = strtof(at, &end);
      if (!data || end == at || n >= 150 * 257) continue;
      float y = want[n++];
      wrong += isnan(y) ? !isnan(x) : x != y;
      if (strchr(line, '}')) data = false;
    }
    pclose(p);
    free(cmd);
    free(want);
    is_int(n, 150 * 257, "h5dump prints all of a tensor of four writers");
    is_int(wrong, 0, "with the values that were saved");
    cmd = tc_sprintf("h5dump -d /tensors/counter %s/moved/s/view.h5 | grep -q '(0): '", dir);
    is_int(system(cmd), 0, "a scalar too");
    free(cmd);
  }
  cmd = tc_sprintf("printf x | dd of=%s/moved/s/view.h5 bs=1 seek=90 conv=notrunc 2> /dev/null",
                   dir);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
  free(path);
  path = tc_sprintf("%s/moved/s", dir);
  is_int(verify_step(path, true, &err), TC_ECHECKSUM, "its bytes are checked");
  ok(strstr(err.text, "view.h5") != NULL, "%s", err.text);
  free(path);
  fx_clean();
}

/* ---- the attached file --------------------------------------------------------------- */

static int load_nothing(void *ctx, struct tc_ckpt *c, struct tc_err *err)
{
  (void)ctx, (void)c, (void)err;
  return 0;
}

/* What happens to the file: verify says so, and the tensors load all the same. */
static void test_spoilt(const char *dir, const char *how, int status, const char *says)
{
  struct tc_comm_opts o = { .name = "world" };
  struct tc_comm *self = tc_comm_self(&o);
  struct tc_err err = {0};
  struct tc_ckpt *c;
  char *path = tc_ckpt_step_path(dir, 2), *data = NULL;
  char *cmd = tc_sprintf("cd %s && cp attached.json kept && %s", path, how);
  char *want = tc_sprintf("%s/attached.json: %s", path, says);
  int64_t bytes = 7;
  TC_ASSERT(system(cmd) == 0);
  for (int deep = 0; deep <= 1; deep++) {
    is_int(verify_step(path, deep, &err), status, "%s: verify", how);
    is_str(err.text, want, "... in these words");
  }
  is_int(tc_ckpt_load(&c, dir, -1, load_nothing, NULL, self, NULL, &err), 0, "... its tensors load");
  is_int(tc_ckpt_meta(c)->step, 2, "... and no older ones");
  is_int(tc_ckpt_attached(c, "attached.json", &data, &bytes, &err), status, "... the file is not read");
  ok(!data && bytes == 0, "... into nothing");
  tc_ckpt_close(c);
  is_int(tc_ckpt_resume(&c, dir, 2, self, NULL, &err), status, "... and a look at every byte finds it");
  tc_comm_free(self);
  free(cmd);
  cmd = tc_sprintf("cd %s && rm -rf attached.json && mv kept attached.json", path);
  TC_ASSERT(system(cmd) == 0);
  free(want);
  free(cmd);
  free(path);
}

static void test_attached(void)
{
  const char *dir = fx_folder();
  struct tc_err err = {0};
  struct tc_ckpt *c;
  char *data = NULL;
  int64_t bytes;
  struct fx_save f = { .dir = dir, .step = 1, .salt = 1, .world = 2, .bare = true };
  fx_threads(&f, fx_rank_save);
  TC_ASSERT(tc_ckpt_open(&c, dir, &err) == 0);
  is_int(tc_ckpt_attached(c, "attached.json", &data, &bytes, &err), 0, "a checkpoint without an attached file");
  ok(!data && bytes == 0, "... has none");
  tc_ckpt_close(c);
  fx_save(dir, 2, 2, 4, 0);
  TC_ASSERT(tc_ckpt_open(&c, dir, &err) == 0);
  is_int(tc_ckpt_attached(c, "attached.json", &data, &bytes, &err), 0, "an attached file");
  ok(data && bytes == sizeof fx_attached && !memcmp(data, fx_attached, sizeof fx_attached) && !data[bytes],
     "... has the bytes that were given, and a 0 behind them");
  free(data);
  is_int(tc_ckpt_attached(c, "other.json", &data, &bytes, &err), 0, "another name");
  ok(!data, "... is none");
  tc_ckpt_close(c);
  const int n = (int)sizeof fx_attached;
  char *shorter = tc_sprintf("has %d bytes instead of %d", n - 1, n), *longer = tc_sprintf("has %d bytes instead of %d", n + 1, n);
  test_spoilt(dir, "printf N | dd of=attached.json conv=notrunc 2> /dev/null", TC_ECHECKSUM,
              "wrong checksum: it is damaged, or another file");
  test_spoilt(dir, "truncate -s -1 attached.json", TC_EINCOMPLETE, shorter);
  test_spoilt(dir, "truncate -s +1 attached.json", TC_ECHECKSUM, longer);
  test_spoilt(dir, "rm attached.json", TC_EINCOMPLETE, "is missing: the checkpoint is incomplete");
  test_spoilt(dir, "rm attached.json && mkdir attached.json", TC_ECHECKSUM, "not a file");
  free(shorter);
  free(longer);
  fx_clean();
}

/* ---- agreement -------------------------------------------------------------------- */

static void test_agree(int spoil, const char *word)
{
  const char *dir = fx_folder();
  fx_save(dir, 1, 1, 2, 0);
  struct fx_save f = { .dir = dir, .step = 2, .salt = 2, .world = 4, .spoil = spoil };
  fx_threads(&f, fx_rank_save);
  for (int i = 0; i < 4; i++) {
    is_int(f.status[i], TC_EUSER, "%s: rank %d fails", word, i);
    is_str(f.err[i].text, f.err[0].text, "with rank 0's sentence");
  }
  ok(strstr(f.err[0].text, word) != NULL, "which says why: %s", f.err[0].text);
  is_int(fx_count(dir, ".tmp-"), 0, "no temporary folder is left");
  is_int(fx_count(dir, "step-"), 1, "no new checkpoint");
  char *path = tc_ckpt_step_path(dir, 1);
  is_int(verify_step(path, true, NULL), 0, "the older one is untouched");
  free(path);
  fx_clean();
}

/* A file where the folder should be: all ranks say so. */
static void test_no_folder(void)
{
  const char *root = fx_folder();
  char *dir = tc_sprintf("%s/file/ckpt", root), *file = tc_sprintf("%s/file", root);
  fclose(fopen(file, "w"));
  struct fx_save f = { .dir = dir, .step = 2, .salt = 2, .world = 2 };
  fx_threads(&f, fx_rank_save);
  ok(f.status[0] == TC_EUSER && f.status[1] == TC_EUSER, "no folder can be made: all fail");
  ok(strstr(f.err[1].text, file) != NULL, "and name it: %s", f.err[1].text);
  free(file);
  free(dir);
  fx_clean();
}

/* ---- keeping, replacing ----------------------------------------------------------- */

static bool steps_are(const char *dir, int n, const int64_t *want)
{
  int64_t *steps;
  int got = tc_ckpt_list(dir, &steps, NULL);
  bool same = got == n && memcmp(steps, want, (size_t)n * sizeof *want) == 0;
  for (int i = 0; !same && i < got; i++) printf("#   has step %d\n", (int)steps[i]);
  free(steps);
  return same;
}

static void test_keep(void)
{
  char *dir = tc_sprintf("%s/new/folder", fx_folder());
  for (int step = 1; step <= 5; step++) fx_save(dir, step, (uint32_t)step, 2, 2);
  ok(steps_are(dir, 2, (int64_t[]){ 5, 4 }), "the newest 2 are kept, in a folder made for them");
  is_int(fx_count(dir, "."), 0, "nothing is left of the others");
  fx_save(dir, 10, 10, 1, 0);
  fx_save(dir, 20, 20, 1, 0);
  ok(steps_are(dir, 4, (int64_t[]){ 20, 10, 5, 4 }), "keep 0 removes none");
  fx_save(dir, 12, 12, 2, 3);
  ok(steps_are(dir, 3, (int64_t[]){ 12, 10, 5 }), "a save in the past becomes the newest");
  is_int(fx_count(dir, "superseded-step-00000020-"), 1, "what lay ahead is set aside, not lost");

  struct tc_err err = {0};
  struct tc_ckpt *c;
  fx_save(dir, 12, 77, 4, 3);
  ok(steps_are(dir, 3, (int64_t[]){ 12, 10, 5 }), "the same step again");
  is_int(tc_ckpt_open(&c, dir, &err), 0, "opens");
  is_int(fx_read_all(c, 77, &err), 1, "and is the new one");
  tc_ckpt_close(c);
  is_int(fx_count(dir, "."), 0, "nothing is left of the old one");
  free(dir);
  fx_clean();
}

/* ---- resume ----------------------------------------------------------------------- */

static void spoil_file(const char *dir, int64_t step, const char *file)
{
  char *path = tc_sprintf("%s/step-%08d/%s", dir, (int)step, file);
  FILE *f = fopen(path, "r+b");
  TC_ASSERT(f && fseek(f, 5000, SEEK_SET) == 0);
  int c = fgetc(f);
  fseek(f, 5000, SEEK_SET);
  fputc(c ^ 1, f);
  fclose(f);
  free(path);
}

struct resumed { int64_t want, step[MOST_WRITERS]; struct fx_save f; };

static void *rank_resume(void *arg)
{
  struct fx_rank *r = arg;
  struct resumed *x = (struct resumed *)((char *)r->save - offsetof(struct resumed, f));
  struct tc_ckpt *c = NULL;
  x->f.status[r->rank] = tc_ckpt_resume(&c, x->f.dir, x->want, r->world, NULL, &x->f.err[r->rank]);
  x->step[r->rank] = c ? tc_ckpt_meta(c)->step : -1;
  tc_ckpt_close(c);
  return NULL;
}

/* All ranks agree on a status and a step (-1: none). */
static void resumes(const char *dir, int world, int64_t want, int status, int64_t step,
                    const char *what)
{
  struct resumed x = { .want = want, .f = { .dir = dir, .world = world } };
  fx_threads(&x.f, rank_resume);
  bool good = true;
  for (int i = 0; i < world; i++)
    good = good && x.f.status[i] == status && x.step[i] == step &&
           strcmp(x.f.err[i].text, x.f.err[0].text) == 0;
  if (!ok(good, "resume, %d ranks: %s", world, what))
    printf("#   status %d, step %d: %s\n", x.f.status[0], (int)x.step[0], x.f.err[0].text);
}

static void test_resume(void)
{
  const char *dir = fx_folder();
  char *none = tc_sprintf("%s/none", dir);
  resumes(none, 2, -1, 0, -1, "a folder that isn't there is a first start");
  resumes(dir, 2, -1, 0, -1, "an empty folder is a first start");
  free(none);
  for (int step = 1; step <= 3; step++) fx_save(dir, step, (uint32_t)step, 2, 0);
  resumes(dir, 1, -1, 0, 3, "the newest");
  resumes(dir, 4, 2, 0, 2, "the one asked for");
  resumes(dir, 2, 9, TC_ENOCKPT, -1, "one that isn't there");
  spoil_file(dir, 3, "rank-00001.h5");
  resumes(dir, 2, 3, TC_ECHECKSUM, -1, "a damaged one that was asked for");
  resumes(dir, 4, -1, 0, 2, "falls back from a damaged one");
  is_int(fx_count(dir, "quarantine-step-00000003"), 1, "which is set aside");
  char *cmd = tc_sprintf("rm %s/step-00000002/manifest.json", dir);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
  resumes(dir, 2, -1, 0, 1, "and from one without a manifest");
  cmd = tc_sprintf("mv %s/step-00000001 %s/.was-step-00000001-0011aabb", dir, dir);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
  resumes(dir, 2, -1, 0, 1, "a step whose replacement was interrupted");
  cmd = tc_sprintf("mkdir %s/.tmp-step-00000009-1-1-ab %s/.old-step-00000000-ab; "
                   "touch %s/.tmp-step-00000009-1-1-ab/rank-00000.h5", dir, dir, dir);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
  resumes(dir, 2, -1, 0, 1, "beside what was left half done");
  is_int(fx_count(dir, "."), 0, "which is cleared away");
  spoil_file(dir, 1, "rank-00000.h5");
  resumes(dir, 2, -1, TC_ENOCKPT, -1, "none is good");
  cmd = tc_sprintf("mv %s/step-00000001 %s/step-00000004", dir, dir);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
  resumes(dir, 2, 4, TC_ECHECKSUM, -1, "a folder under another step's name");
  fx_clean();
}

/* ---- names ------------------------------------------------------------------------ */

static void test_names(void)
{
  static const struct { const char *name; int64_t step; } rows[] = {
    { "step-00000100", 100 }, { "step-00000000", 0 }, { "step-123456789", 123456789 },
    { "step-0000100", -1 }, { "step-000000100", -1 }, { "step-00000100x", -1 },
    { "step-", -1 }, { ".tmp-step-00000100", -1 }, { "step--0000001", -1 },
    { "step-99999999999999999999", -1 }, { "superseded-step-00000001", -1 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    is_int(tc_step_of_name(rows[i].name), rows[i].step, "step of \"%s\"", rows[i].name);
}

int main(void)
{
  close(STDIN_FILENO);                 /* files may well be descriptor 0 */
  alarm(1100);
  test_names();
  for (int world = 1; world <= 4; world *= 2) test_round_trip(world);
  test_h5dump();
  test_view();
  test_attached();
  test_agree(1, "no slice holds");
  test_agree(2, "overlap");
  test_no_folder();
  test_keep();
  test_resume();
  return done_testing();
}
