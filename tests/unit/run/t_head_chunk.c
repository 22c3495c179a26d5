/* t_head_chunk.c - the rows of a loss chunk where parallel.head_chunk is auto on GPUs: the largest power of two whose
 * logits take at most 2 GiB, if the layout fits; a run takes what its plan has. The device is one that tells whatever is
 * asked of it here; programs are made, none is run. */
#include <math.h>
#include <unistd.h>

#include "src/plan/plan.h"
#include "src/program/setup.h"
#include "src/run/impl.h"
#include "tests/unit/plan_config.h"

static int64_t left_bytes, total_bytes;

static void memory(struct tc_device *d, int64_t *left, int64_t *total)
{
  (void)d;
  *left = left_bytes;
  *total = total_bytes;
}

/* A row of logits is 100608 bytes. */
#define MODEL                                                                                       \
  "--model.layers=2", "--model.hidden=64", "--model.heads=4", "--model.context=1024",               \
      "--model.vocab=50304", "--run.device=cuda"
#define BF16 MODEL, "--train.precision=bf16"

/* The memory of the rank that needs most, with chunks of so many rows; 0: auto, without GPUs. */
static double bytes_of(const struct tc_config *c, int world, int64_t rows)
{
  struct tc_config x = *c;
  struct tc_plan p;
  struct tc_err err = { 0 };
  int32_t node[8] = { 0 };
  if (rows) x.parallel_head_chunk = rows;
  is_int(tc_plan_layout_on(&p, &x, world, node, world, NULL, true, &err), 0, "a plan of %lld rows %s", (long long)rows,
         err.text);
  return (double)p.cls[p.worst].memory.bytes[TC_DEVICE];
}

/* What plans say for a GPU of so many bytes. */
static void planned(const struct tc_config *c, int world, double bytes, int64_t rows, double need)
{
  struct tc_cluster k;
  struct tc_plan p;
  struct tc_err err = { 0 };
  tc_cluster_read(&k, "h100", &err);
  k.devices = world;
  k.device.memory_bytes = bytes;
  for (int exact = 0; exact < 2; exact++) {
    is_int(tc_plan_layout(&p, c, world, &k, exact, &err), 0, "planned%s %s", exact ? " in full" : "", err.text);
    is_int(p.head_chunk, rows, "... with these rows");
    if (exact || rows) near_f((double)p.cls[p.worst].memory.bytes[TC_DEVICE], need, exact ? 1e-12 : 1e-3, "... their memory");
  }
  tc_cluster_done(&k);
}

/* What the only rank of a run takes. */
static int64_t taken(struct tc_config *c, double planned_bytes, bool separate, double *need)
{
  struct tc_device_ops ops = { .name = "cuda", .separate = separate, .memory = memory };
  struct tc_device device = { .ops = &ops };
  struct tc_rank_info info = { .local_size = 1 };
  int32_t node[1] = { 0 };
  const struct tc_ranks ranks = { .world = 1, .info = &info, .node_of_rank = node };
  struct tc_err err = { 0 };
  struct tc_plan_memory m;
  struct tc_run r = { .cfg = c, .ranks = &ranks, .device = &device,
                      .world = tc_comm_self(&(struct tc_comm_opts){ 0 }) };
  int rc = tc_setup_mesh(&r.mesh, c, 1, node, 1, &err);
  if (!rc) rc = tc_setup_program(&r.opts, c, r.mesh, &r.rows, &err);
  if (!rc) rc = tc_run_head_chunk(&r, planned_bytes, &err);
  for (int i = 0; i < TC_OF_TRAINING && !rc; i++) rc = tc_program_of_run(r.prog, i, &r.opts, r.mesh, 0, &err);
  is_int(rc, 0, "a run %s", err.text);
  tc_plan_memory(&m, r.prog, TC_OF_TRAINING, 0);
  *need = (double)m.bytes[TC_DEVICE];
  for (int i = 0; i < TC_PROGRAMS; i++) tc_program_free(r.prog[i]);
  tc_annotations_free(r.rows);
  tc_mesh_free(r.mesh);
  tc_comm_free(r.world);
  return r.opts.head_chunk;
}

static void test_fits(void)
{
  struct tc_config *c = CONFIG(BF16, "--train.global_batch=64");
  const double large = bytes_of(c, 1, 16384), middle = bytes_of(c, 1, 8192), least = bytes_of(c, 1, 0);
  const struct { double bytes; int64_t rows; double need; } row[] = {
    { 1e12, 16384, large }, { ceil(large / TC_PLAN_FULL), 16384, large }, { floor(large / TC_PLAN_FULL) - 1, 8192, middle },
    { ceil(middle / TC_PLAN_FULL), 8192, middle }, { floor(middle / TC_PLAN_FULL) - 1, 0, least },
    { least, 0, least } };
  double need;
  ok(large > middle + 5e8 && middle > least + 5e8, "larger chunks take more memory");
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    planned(c, 1, row[i].bytes, row[i].rows, row[i].need);
    left_bytes = total_bytes = (int64_t)row[i].bytes + 100000000000;
    is_int(taken(c, row[i].bytes, true, &need), row[i].rows, "a run on a GPU of %.0f bytes, as it is planned", row[i].bytes);
    near_f(need, row[i].need, 1e-12, "... in the planned memory");
    left_bytes = total_bytes = (int64_t)row[i].bytes + 2 * (int64_t)(row[i].bytes / 64);
    is_int(taken(c, 0, true, &need) >= row[i].rows, 1, "... and on its own");
    total_bytes = (int64_t)row[i].bytes;
    left_bytes = total_bytes - total_bytes / 20;             /* others have a part that the rule leaves */
    is_int(taken(c, 0, true, &need), row[i].rows, "... beside the libraries");
  }
  total_bytes = 100000000000;
  left_bytes = (int64_t)large + 1000000010;
  is_int(taken(c, 0, true, &need), 16384, "others have most of a GPU: it fits beside them");
  left_bytes = (int64_t)large + 999000000;
  is_int(taken(c, 0, true, &need), 8192, "... and here half of it does");
  is_int(taken(c, 0, false, &need), 0, "a rank without a GPU");
  tc_config_free(c);
}

static void test_rows(void)
{
  const struct { const char *what; struct tc_config *c; int world; int64_t rows; } row[] = {
    { "fp32", CONFIG(MODEL, "--train.precision=fp32", "--train.global_batch=64"), 1, 0 },
    { "given", CONFIG(BF16, "--train.global_batch=64", "--parallel.head_chunk=2048"), 1, 2048 },
    { "few tokens", CONFIG(BF16, "--train.global_batch=4"), 1, 0 },
    { "more tokens", CONFIG(BF16, "--train.global_batch=6"), 1, 8192 },
    { "micro-batches of few tokens", CONFIG(BF16, "--train.global_batch=64", "--train.micro_batch=4"), 1, 0 },
    { "dp 2", CONFIG(BF16, "--train.global_batch=16", "--mesh.dp=2"), 2, 8192 },
    { "tp 2", CONFIG(BF16, "--train.global_batch=64", "--mesh.tp=2", "--mesh.dp=1"), 2, 32768 },
    { "2 stages", CONFIG(BF16, "--train.global_batch=64", "--train.micro_batch=32", "--mesh.pp=2"), 2, 16384 },
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    printf("# %s\n", row[i].what);
    planned(row[i].c, row[i].world, 1e12, row[i].rows, bytes_of(row[i].c, row[i].world, row[i].rows));
    tc_config_free(row[i].c);
  }
}

int main(void)
{
  alarm(600);
  test_fits();
  test_rows();
  return done_testing();
}
