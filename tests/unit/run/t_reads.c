/* t_reads.c - `tercio ckpt plan` against what the reader does: each rank's boxes are really
 * read, and the bytes that the process asked the system for (/proc/self/io) are those foretold. */
#include "src/config/config.h"
#include "src/program/setup.h"
#include "src/graph/shard_box.h"
#include "tests/unit/ckpt_cmd.h"

enum { MOST_SLICES = 4096 };

/* A layout as flags of the plan, and as options here. */
struct layout { const char *flags; int world; };
#define MODEL "[model]\nlayers = 4\nhidden = 48\nheads = 4\ncontext = 16\nvocab = 101\n" \
  "[train]\nglobal_batch = 12\nmicro_batch = 1\n"

struct made {
  struct tc_config *cfg;
  struct tc_mesh *mesh;
  struct tc_program_opts opts;
  struct tc_annotation *rows;
  struct tc_program *program;
};

static void make(struct made *m, const struct layout *l)
{
  char *words = tc_strdup(l->flags), *argv[20] = { (char *)(uintptr_t)"x" }, *save = NULL;
  int argc = 1;
  struct tc_err err = {0};
  int32_t node[16] = {0};
  for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) argv[argc++] = w;
  *m = (struct made){0};
  int rc = tc_config_saved(&m->cfg, MODEL, argc, argv, &err);
  if (rc == 0) rc = tc_setup_mesh(&m->mesh, m->cfg, l->world, node, 0, &err);
  if (rc == 0) rc = tc_setup_program(&m->opts, m->cfg, m->mesh, &m->rows, &err);
  if (rc == 0) rc = tc_program_new(&m->program, &m->opts, m->mesh, 0, NULL, NULL, &err);
  if (rc < 0) printf("# %s: %s\n", l->flags, err.text);
  TC_ASSERT(rc == 0);
  free(words);
}

static void unmake(struct made *m)
{
  tc_program_free(m->program);
  tc_annotations_free(m->rows);
  tc_mesh_free(m->mesh);
  tc_config_free(m->cfg);
}

/* A checkpoint as the ranks of a layout would write it: their slices, though one process writes. */
static int64_t save_as(const char *dir, const struct layout *l, int64_t block_bytes)
{
  struct made m;
  make(&m, l);
  const struct tc_graph *g = m.program->graph;
  struct tc_ckpt_tensor *tensor = tc_calloc((size_t)g->n_tensors, sizeof *tensor);
  struct tc_ckpt_slice *slice = tc_calloc(MOST_SLICES, sizeof *slice);
  int n = 0, n_slices = 0;
  int64_t bytes = 0;
  float *zero = tc_calloc(1 << 20, sizeof *zero);
  for (int32_t id = 0; id < g->n_tensors; id++) {
    const struct tc_tensor *x = &g->tensor[id];
    if (!x->state || !x->saved) continue;
    tensor[n] = (struct tc_ckpt_tensor){ .name = x->name, .dtype = x->dtype, .rank = x->rank };
    memcpy(tensor[n].dim, x->dim, sizeof x->dim);
    bytes += tc_tensor_elems(x) * 4;
    for (int r = 0; r < m.mesh->world; r++) {
      struct tc_box box[TC_BOXES];
      int k = tc_owned_boxes(x, m.mesh, r, box);
      for (int b = 0; b < k; b++, n_slices++) {
        TC_ASSERT(n_slices < MOST_SLICES);
        slice[n_slices] = (struct tc_ckpt_slice){ .tensor = n, .data = zero };
        memcpy(slice[n_slices].start, box[b].start, sizeof box[b].start);
        memcpy(slice[n_slices].count, box[b].count, sizeof box[b].count);
      }
    }
    n++;
  }
  const char *const who[] = { "rank 0" };
  const struct tc_comm_opts o = { .name = "world" };
  struct tc_comm *self = tc_comm_self(&o);
  char *model = tc_model_text(&m.opts.model), *config = tc_config_text(m.cfg);
  char *mesh = tc_sprintf("pp%d dp%d tp%d", m.mesh->size[TC_PP], tc_mesh_size(m.mesh, TC_ON_DP),
                          m.mesh->size[TC_TP]);
  struct tc_ckpt_meta meta = { .step = 1, .model = model, .config = config, .mesh = mesh,
    .system = m.opts.system->name, .job = "", .rank_names = who, .block_bytes = block_bytes };
  struct tc_err err = {0};
  int rc = tc_ckpt_save(dir, &meta, tensor, n, slice, n_slices, self, &err);
  if (rc < 0) printf("# %s\n", err.text);
  TC_ASSERT(rc == 0);
  tc_comm_free(self);
  free(model);
  free(config);
  free(mesh);
  free(zero);
  free(tensor);
  free(slice);
  unmake(&m);
  return bytes;
}

/* Bytes this process has asked read() and its like for; what asking costs itself goes into *own. */
static int64_t bytes_read(int64_t *own)
{
  char text[400];
  long long n = -1;
  FILE *f = fopen("/proc/self/io", "r");
  if (!f) return -1;
  size_t got = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  text[got] = '\0';
  sscanf(text, "rchar: %lld", &n);
  *own = (int64_t)got;
  return n;
}

/* What rank r of the layout reads of the checkpoint, really. */
static int64_t read_as(const char *dir, const struct made *m, int r, int64_t *need)
{
  struct tc_ckpt *c;
  struct tc_err err = {0};
  TC_ASSERT(tc_ckpt_open(&c, dir, &err) == 0);
  const struct tc_graph *g = m->program->graph;
  float *buf = tc_malloc((1 << 20) * sizeof *buf);
  int64_t own, last, before = bytes_read(&own);
  *need = 0;
  for (int32_t id = 0; id < g->n_tensors; id++) {
    const struct tc_tensor *x = &g->tensor[id];
    struct tc_box box[TC_BOXES];
    if (!x->state || !x->saved) continue;
    int k = tc_ckpt_find(c, x->name), n = tc_stored_boxes(x, m->mesh, r, box);
    for (int b = 0; b < n; b++) {
      TC_ASSERT(tc_ckpt_read(c, k, box[b].start, box[b].count, buf, &err) == 0);
      *need += tc_box_elems(x->rank, box[b].count) * 4;
    }
  }
  int64_t after = bytes_read(&last);
  free(buf);
  tc_ckpt_close(c);
  return before < 0 ? -1 : after - before - own;
}

static void test_pair(const char *dir, const struct layout *to, int64_t state)
{
  struct made m;
  int wrong_need = 0, wrong_read = 0, wrong_files = 0;
  int64_t total = 0, dummy;
  make(&m, to);
  is_int(run("plan %s %s --json", dir, to->flags), 0, "plan for %s", to->flags);
  json_t *j = parsed(), *ranks = json_object_get(j, "ranks");
  is_int((int64_t)json_array_size(ranks), to->world, "a row for each rank");
  for (int r = 0; r < to->world; r++) {
    int64_t need, got = read_as(dir, &m, r, &need);
    const json_t *row = json_array_get(ranks, (size_t)r);
    wrong_need += (int64_t)real(row, "need_bytes") != need;
    wrong_files += (int)real(row, "files") != (need > 0);
    if (got >= 0 && (int64_t)real(row, "read_bytes") != got && !wrong_read++)
      printf("# rank %d: foretold %.0f, read %lld\n", r, real(row, "read_bytes"), (long long)got);
    total += need;
  }
  is_int(wrong_files, 0, "each rank reads the only file, or nothing");
  is_int(wrong_need, 0, "needed bytes are those of each rank's boxes");
  if (bytes_read(&dummy) < 0) skip("no /proc/self/io: what is really read can't be seen");
  else is_int(wrong_read, 0, "read bytes are those that each rank really reads");
  is_int((int64_t)real(json_object_get(j, "total"), "need_bytes"), total, "and their sum");
  ok(total >= state, "which is the whole state or more");
  static const char *const key[] = { "need_bytes", "read_bytes", "pieces" };
  for (int k = 0; k < 3; k++) {                  /* sums and largest of the rows */
    int64_t sum = 0, most = 0;
    for (size_t r = 0; r < json_array_size(ranks); r++) {
      const int64_t x = (int64_t)real(json_array_get(ranks, r), key[k]);
      sum += x;
      most = TC_MAX(most, x);
    }
    ok((int64_t)real(json_object_get(j, "total"), key[k]) == sum &&
       (int64_t)real(json_object_get(j, "most"), key[k]) == most && most > 0, "%s in all, and at most", key[k]);
  }
  json_decref(j);
  unmake(&m);
}

static void test_impossible(const char *dir)
{
  static const struct { const char *opts; int status; const char *says; } c[] = {
    { "--tp 3", 6, "heads" }, { "--dp 5", 6, "global_batch" }, { "--pp 5", 6, "layers" },
    { "--tp 8 --simulate 2x4", 6, "tp" }, { "--dp 2 --world 3", 6, "3" },
    { "--dp auto", 2, "--world" }, { "--dp 100000", 2, "65536" }, { "--world 0", 2, "--world" },
    { "--dp x", 2, "mesh.dp" }, { "--model.hidden=96", 2, "another model" },
    { "--parallel.dat=zero3", 2, "did you mean" }, { "--parallel.data", 2, "takes a value" } };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++)
    ok(fails(run("plan %s %s", dir, c[i].opts), c[i].status, c[i].says), "plan %s", c[i].opts);
  is_int(run("plan %s --train.optimizer=sgd --dp 1 --tp 1 --pp 1", dir), 0, "without the moments");
  is_int(run("plan %s --simulate 2x4 --tp 4 --pp 1 --train.global_batch=16", dir), 0, "a cluster");
  ok(says("pp1 dp2 tp4"), "dp is what is left");
}

int main(void)
{
  static const struct layout layout[] = {
    { "--mesh.pp=1 --mesh.dp=1 --mesh.tp=1 --parallel.data=ddp", 1 },
    { "--mesh.pp=1 --mesh.dp=4 --mesh.tp=1 --parallel.data=ddp", 4 },
    { "--mesh.pp=1 --mesh.dp=4 --mesh.tp=1 --parallel.data=zero3", 4 },
    { "--mesh.pp=1 --mesh.dp=2 --mesh.tp=2 --parallel.data=zero1", 4 },
    { "--mesh.pp=2 --mesh.dp=2 --mesh.tp=2 --parallel.data=zero2 "
      "--parallel.schedule=interleaved", 8 },
    { "--mesh.pp=1 --mesh.dp=3 --mesh.tp=1 --parallel.data=zero3", 3 },
    { "--mesh.pp=1 --mesh.dp=3 --mesh.tp=1 --parallel.data=server", 3 } };
  enum { LAYOUTS = sizeof layout / sizeof *layout };
  alarm(1100);
  const char *dir = fx_folder();
  snprintf(out_path, sizeof out_path, "%s/out", dir);
  for (int i = 0; i < LAYOUTS; i++) {
    char *from = tc_sprintf("%s/from%d", dir, i);
    int64_t state = save_as(from, &layout[i], i % 2 ? 4096 : 0);
    for (int k = 0; k < LAYOUTS; k++) test_pair(from, &layout[k], state);
    free(from);
  }
  char *path = tc_sprintf("%s/from0", dir);
  test_impossible(path);
  is_int(run("plan %s/none", dir), 2, "of nothing");
  free(path);
  free(out_text);
  fx_clean();
  return done_testing();
}
