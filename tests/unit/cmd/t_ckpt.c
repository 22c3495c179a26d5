/* t_ckpt.c - `tercio ckpt`: each command in a process of its own, its output against
 * values computed here. */
#include <signal.h>

#include "tests/unit/ckpt_cmd.h"

/* ---- tests ------------------------------------------------------------------------ */

static void test_steps(const char *dir)
{
  is_int(run("ls %s", dir), 0, "ls");
  ok(says("\n1  ") && says("\n2  ") && says("zero1") && says("pp1 dp2 tp1") && says(" ok\n"),
     "lists steps, system, mesh, state");
  is_int(run("ls %s --json", dir), 0, "ls --json");
  json_t *j = parsed();
  is_int((int64_t)json_array_size(j), 2, "has both");
  is_int((int64_t)real(json_array_get(j, 1), "step"), 2, "the newest last");
  json_decref(j);
  is_int(run("show %s", dir), 0, "show");
  ok(says("18446744073709551609") && says("12345678901") && says("rank 1 on node1") &&
     says("lr = 1e-3") && says("rank-00001.h5"), "says seed, tokens, writers, run file, files");
  is_int(run("show %s --json", dir), 0, "show --json");
  j = parsed();
  is_int((int64_t)real(j, "tensors"), FX_TENSORS, "number of tensors");
  is_str(json_string_value(json_object_get(j, "job")), "77-a", "job");
  json_decref(j);
  is_int(run("latest %s", dir), 0, "latest");
  char *want = tc_sprintf("%s/step-00000002\n", dir);
  is_str(out_text, want, "prints the path alone");
  free(want);
  is_int(run("latest %s/none", dir), 5, "latest of nothing");
  is_int(run("show %s/none", dir), 2, "show of nothing");
  is_int(run("ls %s --frob", dir), 2, "an unknown option");
  is_int(run("frob %s", dir), 2, "an unknown command");
  is_int(run("diff %s", dir), 2, "an argument missing");
  is_int(run("diff --help"), 0, "help");
  ok(says("example: tercio ckpt diff") && !says("ckpt ls"), "of the one command");
}

/* Statistics of each tensor, from the values that were saved. */
static void test_tensors(const char *dir)
{
  is_int(run("tensors %s", dir), 0, "tensors");
  ok(says("opt/wte.weight.m") && says("[8, 3, 4, 16]") && says("bf16"), "names, shapes, types");
  is_int(run("tensors %s --json", dir), 0, "tensors --json");
  json_t *j = parsed();
  for (int t = 0; t < FX_TENSORS; t++) {
    const struct tc_ckpt_tensor *x = &fx_tensor[t];
    const json_t *row = json_array_get(j, (size_t)t);
    const int64_t zero[TC_DIMS] = {0};
    int64_t n = tc_box_elems(x->rank, x->dim), n_nan = 0;
    char *p = fx_box(2, t, zero, x->dim);
    double lo = INFINITY, hi = -INFINITY, sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
      double v = x->dtype == TC_F32 ? ((float *)(void *)p)[i]
               : x->dtype == TC_F64 ? ((double *)(void *)p)[i]
               : x->dtype == TC_I32 ? ((int32_t *)(void *)p)[i]
               : x->dtype == TC_U8 ? (uint8_t)p[i]
               : tc_bf16_to_f32(((uint16_t *)(void *)p)[i]);
      if (isnan(v)) {
        n_nan++;
        continue;
      }
      lo = fmin(lo, v);
      hi = fmax(hi, v);
      sum += v;
      squares += v * v;
    }
    is_str(json_string_value(json_object_get(row, "name")), x->name, "tensor %d", t);
    is_int((int64_t)real(row, "nan"), n_nan, "its NaNs");
    if (isfinite(lo) && isfinite(hi)) {
      near_f(real(row, "min"), lo, 1e-8, "its smallest");
      near_f(real(row, "max"), hi, 1e-8, "its largest");
      near_f(real(row, "mean"), sum / (double)(n - n_nan), 1e-8, "its mean");
      if (isfinite(squares)) near_f(real(row, "norm"), sqrt(squares), 1e-8, "its norm");
    }
    free(p);
  }
  json_decref(j);
}

static void test_dump(const char *dir)
{
  char want[2000] = "";
  const int64_t start[] = { 10 }, count[] = { 3 };
  unsigned char *p = fx_box(2, 4, start, count);
  snprintf(want, sizeof want, "%d\n%d\n%d\n", p[0], p[1], p[2]);
  free(p);
  is_int(run("dump %s bytes --rows 10:13", dir), 0, "dump of some rows");
  is_str(out_text, want, "are the values saved");
  is_int(run("dump %s cube --rows=4:", dir), 0, "dump of the last rows of a cube");
  int lines = 0;
  for (const char *at = out_text; *at; at++) lines += *at == '\n';
  is_int(lines, 6, "a line for each row of the last dimension");
  is_int(run("dump %s cube --json", dir), 0, "dump --json");
  json_t *j = parsed(), *values = json_object_get(j, "values");
  is_int((int64_t)json_array_size(values), 30, "as many rows");
  is_int((int64_t)json_array_size(json_array_get(values, 29)), 7, "of as many values");
  json_decref(j);
  is_int(run("dump %s counter", dir), 0, "dump of a scalar");
  is_int(run("dump %s cube --rows 4:6", dir), 2, "rows beyond the end");
  is_int(run("dump %s cube --rows 4", dir), 2, "rows that make no sense");
  is_int(run("dump %s none", dir), 2, "a tensor that isn't there");
}

static void test_pipe(const char *dir)
{
  int fd[2];
  signal(SIGPIPE, SIG_IGN);                      /* as main does for every command */
  TC_ASSERT(pipe(fd) == 0);
  close(fd[0]);
  char *line = tc_sprintf("dump %s big", dir);
  is_int(run_to(fd[1], line), 0, "a reader that has gone is no error");
  close(fd[1]);
  free(line);
  int full = open("/dev/full", O_WRONLY);
  if (full < 0) skip("no /dev/full");
  else {
    line = tc_sprintf("ls %s", dir);
    is_int(run_to(full, line), 99, "a full disk is left for main to say");
    free(line);
    close(full);
  }
}

static void harm(const char *dir, const char *what)
{
  char *cmd = tc_sprintf("cd %s/step-00000002 && %s", dir, what);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
}

static void flip_data(const char *dir, int tensor)
{
  struct tc_ckpt *c;
  TC_ASSERT(tc_ckpt_open(&c, dir, NULL) == 0);
  const struct tc_piece *p = &c->m->piece[c->m->first_piece[tensor]];
  char *path = tc_sprintf("%s/%s", c->path, c->m->file[p->file].name), byte;
  int fd = open(path, O_RDWR);
  TC_ASSERT(pread(fd, &byte, 1, p->offset) == 1);
  byte ^= 16;
  TC_ASSERT(pwrite(fd, &byte, 1, p->offset) == 1);
  close(fd);
  free(path);
  tc_ckpt_close(c);
}

static void test_verify(const char *dir)
{
  is_int(run("verify %s", dir), 0, "verify of a good folder");
  is_str(out_text, "step-00000001: ok\nstep-00000002: ok\n", "says so of each");
  is_int(run("verify %s/step-00000002/", dir), 0, "verify of one");
  is_str(out_text, "step-00000002: ok\n", "says so of that");
  flip_data(dir, 6);
  is_int(run("verify %s", dir), 4, "a flipped bit");
  ok(says("step-00000001: ok") && says("tensor cube") && says("rank-0000"),
     "names tensor and file");
  is_int(run("tensors %s", dir), 4, "tensors don't show damaged data");
  is_int(run("verify %s --quick", dir), 0, "verify --quick doesn't read the data");
  is_int(run("verify %s --json", dir), 4, "verify --json");
  json_t *j = parsed();
  ok(json_is_false(json_object_get(json_array_get(j, 1), "ok")), "says which");
  json_decref(j);
  flip_data(dir, 6);
  harm(dir, "mv rank-00001.h5 ../x");
  is_int(run("verify %s", dir), 3, "a missing file");
  ok(says("rank-00001.h5"), "is named");
  is_int(run("ls %s", dir), 0, "ls goes on");
  ok(says("incomplete: "), "and says incomplete");
  is_int(run("latest %s", dir), 0, "latest");
  ok(says("step-00000001\n"), "takes the older one");
  harm(dir, "mv ../x rank-00001.h5");
  is_int(run("verify %s", dir), 0, "put back");
  char *empty = tc_sprintf("%s/empty", dir);
  mkdir(empty, 0700);
  is_int(run("verify %s", empty), 5, "verify of an empty folder");
  is_int(run("latest %s", empty), 5, "latest of an empty folder");
  free(empty);
}

/* A checkpoint of `n` floats called name, and of one more tensor where extra is not NULL. */
static void save_floats(const char *dir, const char *name, const float *x, int64_t n,
                        const char *extra)
{
  struct tc_comm_opts o = { .name = "world" };
  struct tc_comm *self = tc_comm_self(&o);
  struct tc_ckpt_meta meta = { .step = 1, .model = "", .config = "", .mesh = "", .system = "",
                               .job = "" };
  int32_t seven = 7;
  struct tc_ckpt_tensor t[2] = { { name, TC_F32, 1, { n } }, { extra, TC_I32, 0, { 0 } } };
  struct tc_ckpt_slice s[2] = {
    { .tensor = 0, .count = { n }, .data = (void *)(uintptr_t)x },
    { .tensor = 1, .data = &seven } };
  struct tc_err err = {0};
  int k = extra ? 2 : 1;
  if (tc_ckpt_save(dir, &meta, t, k, s, k, self, &err) < 0) printf("# %s\n", err.text);
  tc_comm_free(self);
}

static void test_diff(const char *dir)
{
  char *a = tc_sprintf("%s/a", dir), *b = tc_sprintf("%s/b", dir), *c = tc_sprintf("%s/c", dir);
  const float x[] = { 3, 0, NAN, 1 }, y[] = { 3, 4, NAN, 0 }, z[] = { 0, -0.0f };
  save_floats(a, "w", x, 4, NULL);
  save_floats(b, "w", y, 4, "adam.m");
  is_int(run("diff %s %s", a, a), 0, "diff with itself, NaNs and all");
  ok(says("1 tensors, 0 differ"), "says so");
  is_int(run("diff %s %s --json", a, b), 1, "diff of two");
  json_t *j = parsed(), *rows = json_object_get(j, "tensors");
  near_f(real(json_array_get(rows, 0), "rel"), sqrt(17) / 5, 1e-8, "||a-b|| / ||b||");
  near_f(real(json_array_get(rows, 0), "max_abs"), 4, 1e-8, "max |a-b|");
  is_int((int64_t)real(json_array_get(rows, 0), "elements"), 2, "elements that differ");
  is_str(json_string_value(json_object_get(json_array_get(rows, 1), "name")), "adam.m",
         "a tensor on one side is named");
  is_str(json_string_value(json_object_get(json_array_get(rows, 1), "why")), "only in B",
         "and the side");
  json_decref(j);
  is_int(run("diff %s %s", b, a), 1, "the other way round");
  ok(says("only in A"), "the other side");
  is_int(run("diff %s %s --rtol 1", b, a), 1, "a missing tensor is above any tolerance");
  save_floats(b, "w", y, 4, NULL);
  is_int(run("diff %s %s --rtol 0.8247", a, b), 0, "a tolerance just above");
  is_int(run("diff %s %s --rtol=0.8246", a, b), 1, "and just below");
  save_floats(c, "w", x, 3, NULL);
  is_int(run("diff %s %s --rtol 1", a, c), 1, "another shape");
  ok(says("the shapes differ"), "is reported");
  save_floats(a, "w", z, 1, NULL);
  save_floats(b, "w", z + 1, 1, NULL);
  is_int(run("diff %s %s", a, b), 1, "0 and -0 are not the same bits");
  is_int(run("diff %s %s --rtol 1e-9", a, b), 0, "but close");
  is_int(run("diff %s %s --rtol x", a, b), 2, "a tolerance that is no number");
  is_int(run("diff %s %s --only w", a, b), 1, "tensors of a name");
  ok(fails(run("diff %s %s --only v", a, b), 2, "no tensor matches --only 'v'"), "... that none has");
  free(c);
  free(b);
  free(a);
}

/* ---- owners ----------------------------------------------------------------------- */

static bool same_ints(const json_t *a, const int64_t *x, int rank)
{
  bool same = (int)json_array_size(a) == rank;
  for (int d = 0; d < rank && same; d++)
    same = json_integer_value(json_array_get(a, (size_t)d)) == x[d];
  return same;
}

/* The row of this slice in a tensor's list; NULL. */
static const json_t *slice_row(const json_t *list, int rank, const struct tc_ckpt_slice *s)
{
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *row = json_array_get(list, i);
    if ((int)real(row, "rank") == rank &&
        same_ints(json_object_get(row, "start"), s->start, fx_tensor[s->tensor].rank) &&
        same_ints(json_object_get(row, "count"), s->count, fx_tensor[s->tensor].rank))
      return row;
  }
  return NULL;
}

/* All of --owners --json against the slices that were handed to the save. */
static void check_owners(const json_t *j)
{
  const json_t *tensors = json_object_get(j, "tensors"), *ranks = json_object_get(j, "ranks");
  size_t listed = 0, saved = 0;
  is_int((int64_t)json_array_size(tensors), FX_TENSORS, "all tensors");
  is_int((int64_t)json_array_size(ranks), MOST_WRITERS, "all ranks");
  for (int t = 0; t < FX_TENSORS; t++)
    listed += json_array_size(json_object_get(json_array_get(tensors, (size_t)t), "slices"));
  for (int r = 0; r < MOST_WRITERS; r++) {
    struct tc_ckpt_slice s[FX_TENSORS];
    const json_t *rank = json_array_get(ranks, (size_t)r);
    int n = fx_slices(s, 1, r, MOST_WRITERS), missing = 0;
    int64_t bytes = 0, slices = 0;
    char file[20];
    snprintf(file, sizeof file, "rank-%05d.h5", r);
    for (int i = 0; i < n; i++) {
      const struct tc_ckpt_tensor *x = &fx_tensor[s[i].tensor];
      int64_t size = tc_box_elems(x->rank, s[i].count) * (int64_t)tc_dtype_bytes(x->dtype);
      const json_t *tensor = json_array_get(tensors, (size_t)s[i].tensor);
      const json_t *row = slice_row(json_object_get(tensor, "slices"), r, &s[i]);
      const char *name = json_string_value(json_object_get(tensor, "name"));
      const char *in = json_string_value(json_object_get(row, "file"));
      const char *node = json_string_value(json_object_get(row, "node"));
      free(s[i].data);
      if (size == 0) continue;
      missing += !row || !name || strcmp(name, x->name) != 0 || !in || strcmp(in, file) != 0 ||
                 !node || strcmp(node, r < 2 ? "node1" : "node2") != 0 ||
                 (int64_t)real(row, "bytes") != size;
      bytes += size;
      slices++;
    }
    saved += (size_t)slices;
    is_int(missing, 0, "rank %d: its slices are listed, with node, file and bytes", r);
    is_int((int64_t)real(rank, "rank"), r, "its row in the summary");
    is_int((int64_t)real(rank, "slices"), slices, "number of slices");
    is_int((int64_t)real(rank, "bytes"), bytes, "their bytes");
    is_str(json_string_value(json_object_get(rank, "node")), r < 2 ? "node1" : "node2", "node");
  }
  is_int((int64_t)listed, (int64_t)saved, "and no others");
}

static char *read_text(const char *path)
{
  char *text = tc_calloc(1 << 20, 1);
  FILE *f = fopen(path, "r");
  TC_ASSERT(f && fread(text, 1, (1 << 20) - 1, f) > 0);
  fclose(f);
  return text;
}

static void write_text(const char *path, const char *text, size_t bytes)
{
  FILE *f = fopen(path, "w");
  TC_ASSERT(f && fwrite(text, 1, bytes, f) == bytes);
  fclose(f);
}

/* Manifests that are damaged, and one with a right checksum whose writers it doesn't know. */
static void test_owners_damage(const char *dir)
{
  char *path = tc_sprintf("%s/step-00000007/manifest.json", dir), *text = read_text(path);
  size_t bytes = strlen(text), sealed_bytes;
  int crashed = 0;
  for (int i = 0; i < 40; i++) {
    char *made = tc_strdup(text);
    made[fx_random((uint32_t)bytes)] ^= (char)(1 << fx_random(7));
    write_text(path, made, i % 2 ? bytes : fx_random((uint32_t)bytes));
    int rc = run("show %s --owners", dir);
    crashed += rc != -TC_ECHECKSUM && rc != -TC_EINCOMPLETE;
    free(made);
  }
  is_int(crashed, 0, "40 damaged manifests: each is refused as damaged or incomplete");
  char *who = strstr(text, "\"who\": ["), *end = strchr(who, ']');
  char *writer = strstr(text, "\"writer\": 3"), *crc = strstr(text, ",\n\"crc32c\"");
  TC_ASSERT(crc && writer > end);
  char *made = tc_sprintf("%.*s\"who\": [\"a \\u00fc\"%.*s\"writer\": 2147483647%.*s\n}\n",
                          (int)(who - text), text, (int)(writer - end), end,
                          (int)(crc - writer - 11), writer + 11);
  char *sealed = tc_manifest_seal(made, strlen(made), &sealed_bytes);
  write_text(path, sealed, sealed_bytes);
  is_int(run("show %s --owners --json", dir), 0, "writers beyond who");
  json_t *j = parsed(), *ranks = json_object_get(j, "ranks");
  is_int((int64_t)json_array_size(ranks), 4, "have their rows");
  is_int((int64_t)real(json_array_get(ranks, 3), "rank"), 2147483647, "whatever their number");
  ok(json_is_null(json_object_get(json_array_get(ranks, 3), "node")), "and no node");
  is_str(json_string_value(json_object_get(json_array_get(ranks, 0), "node")), "a \xc3\xbc",
         "another form of who is shown as it is");
  json_decref(j);
  is_int(run("show %s --owners", dir), 0, "in words too");
  ok(says("2147483647  - "), "with a dash for the node");
  free(sealed);
  free(made);
  free(text);
  free(path);
}

static void test_owners(const char *dir)
{
  char *four = tc_sprintf("%s/four", dir);
  fx_save(four, 7, 1, MOST_WRITERS, 0);
  is_int(run("show %s --owners --json", four), 0, "show --owners --json");
  json_t *j = parsed();
  is_int((int64_t)real(j, "step"), 7, "the step");
  check_owners(j);
  json_decref(j);
  is_int(run("show %s --owners --tensor=b?g", four), 0, "show --owners of some tensors");
  is_str(out_text,
         "tensor                                rank  node         file           start"
         "            count                   bytes\n"
         "big                                      0  node1        rank-00000.h5  [0, 0]"
         "           [75, 100]               30000\n"
         "big                                      1  node1        rank-00001.h5  [0, 100]"
         "         [75, 157]               47100\n"
         "big                                      2  node2        rank-00002.h5  [75, 0]"
         "          [75, 100]               30000\n"
         "big                                      3  node2        rank-00003.h5  [75, 100]"
         "        [75, 157]               47100\n\n"
         " rank  node             slices           bytes\n"
         "    0  node1                 1           30000\n"
         "    1  node1                 1           47100\n"
         "    2  node2                 1           30000\n"
         "    3  node2                 1           47100\n"
         "4 ranks, 4 slices, 154 KB\n", "a line for each slice, and the sums");
  is_int(run("show %s --owners --tensor counter", four), 0, "of a scalar");
  ok(says(" []  ") && says("4 ranks, 1 slice, "), "its box is empty brackets, its owner one");
  is_int(run("show %s --owners --tensor none", four), 2, "of no tensor");
  is_int(run("show %s --tensor big", four), 2, "--tensor alone");
  is_int(run("ls %s --owners", four), 2, "ls has no owners");
  is_int(run("show %s/none --owners", four), 2, "of nothing");
  char *cmd = tc_sprintf("rm %s/step-00000007/rank-00002.h5", four);
  TC_ASSERT(system(cmd) == 0);
  free(cmd);
  is_int(run("show %s --owners", four), 0, "a file that is lost doesn't hinder: it says whose");
  test_owners_damage(four);
  free(four);
}

int main(void)
{
  alarm(1100);
  const char *dir = fx_folder();
  snprintf(out_path, sizeof out_path, "%s/out", dir);
  fx_save(dir, 1, 1, 1, 0);
  fx_save(dir, 2, 2, 2, 0);
  test_steps(dir);
  test_tensors(dir);
  test_dump(dir);
  test_pipe(dir);
  test_verify(dir);
  test_diff(dir);
  test_owners(dir);
  free(out_text);
  fx_clean();
  return done_testing();
}
