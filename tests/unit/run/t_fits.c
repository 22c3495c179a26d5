/* t_fits.c - what a run says before it takes memory that is not there (fits.c): whether it
 * begins, what needs the memory, and which other settings would fit into so much of it. The device
 * is one that tells whatever is asked of it here; programs are made, none is run. */
#include <unistd.h>

#include "src/program/setup.h"
#include "src/run/impl.h"
#include "tests/unit/plan_config.h"

enum { MOST_RANKS = 8 };
static int64_t left_bytes, total_bytes;

static void memory(struct tc_device *d, int64_t *left, int64_t *total)
{
  (void)d;
  *left = left_bytes;
  *total = total_bytes;
}

struct fixture {
  struct tc_config *cfg;
  struct tc_device_ops ops;
  struct tc_device device;
  struct tc_rank_info info[MOST_RANKS];
  struct tc_ranks ranks;
  int32_t node[MOST_RANKS];
  struct tc_run run;
};

/* A run as it is before its programs are made; cfg is owned by the fixture from then on. */
static void open_fixture(struct fixture *f, struct tc_config *cfg, int world)
{
  struct tc_err err = { 0 };
  *f = (struct fixture){ .cfg = cfg, .ops = { .name = "cuda", .memory = memory } };
  f->device.ops = &f->ops;
  for (int r = 0; r < world; r++) f->info[r].local_size = world;
  f->ranks = (struct tc_ranks){ .world = world, .info = f->info, .node_of_rank = f->node };
  f->run = (struct tc_run){ .cfg = cfg, .ranks = &f->ranks, .device = &f->device };
  int rc = tc_setup_mesh(&f->run.mesh, cfg, world, f->node, 0, &err);
  if (!rc) rc = tc_setup_program(&f->run.opts, cfg, f->run.mesh, &f->run.rows, &err);
  if (!rc) return;
  printf("Bail out! %s\n", err.text);
  exit(1);
}

static void make_programs(struct fixture *f)
{
  struct tc_err err = { 0 };
  for (int i = 0; i < TC_OF_TRAINING; i++) {
    if (tc_program_of_run(f->run.prog, i, &f->run.opts, f->run.mesh, 0, &err) == 0) continue;
    printf("Bail out! %s\n", err.text);
    exit(1);
  }
}

static void close_fixture(struct fixture *f)
{
  for (int i = 0; i < TC_PROGRAMS; i++) tc_program_free(f->run.prog[i]);
  tc_annotations_free(f->run.rows);
  tc_mesh_free(f->run.mesh);
  tc_config_free(f->cfg);
}

#define MODEL                                                                                      \
  "--model.layers=2", "--model.hidden=64", "--model.heads=4", "--model.context=32",                \
      "--model.vocab=256"

/* The advice for `bytes`: the settings that would fit, the end of the sentence, or "" if these do. */
static const char *advice(struct fixture *f, int64_t bytes, char *text, size_t size)
{
  struct tc_err err = { 0 };
  left_bytes = total_bytes = bytes;
  const int rc = tc_run_fits(&f->run, &err);
  const char *at = strstr(err.text, " GB; ");
  snprintf(text, size, "%s", rc == 0 ? "" : rc == TC_EUSER && at ? at + 5 : err.text);
  return text;
}

/* From so many bytes on, and not with one less. */
struct least {
  int64_t bytes;
  const char *advice;
};
#define NONE                                                                                       \
  "no smaller train.micro_batch, recomputation, ZeRO stage or offloading would do: use "           \
  "more ranks (mesh.tp, mesh.pp, mesh.cp), a smaller model or train.global_batch"

static void test_run(const char *name, struct tc_config *cfg, int world, const struct least *want)
{
  struct fixture f;
  char text[sizeof(struct tc_err)];
  const char *before = NONE;
  open_fixture(&f, cfg, world);
  make_programs(&f);
  is_str(advice(&f, 1000, text, sizeof text), NONE, "%s: nothing fits into 1000 bytes", name);
  for (; want->advice; want++) {
    is_str(advice(&f, want->bytes - 1, text, sizeof text), before, "%s: one byte less than %lld",
           name, (long long)want->bytes);
    is_str(advice(&f, want->bytes, text, sizeof text), want->advice, "... and %lld",
           (long long)want->bytes);
    before = want->advice;
  }
  close_fixture(&f);
}

static const struct least alone[] = {
  { 1925705, "train.micro_batch = 4 and "
             "train.recompute = full and parallel.offload = params would fit" },
  { 2110870, "train.micro_batch = 1 and train.recompute = full would fit" },
  { 2195390, "train.micro_batch = 1 and train.recompute = selective would fit" },
  { 2279651, "train.micro_batch = 1 would fit" },
  { 2632687, "train.micro_batch = 2 would fit" },
  { 3338760, "train.micro_batch = 4 would fit" },
  { 4750904, "" },
  { 0, NULL },
};

static const struct least alone_recomputes[] = {
  { 1925705, "train.micro_batch = 4 and "
             "train.recompute = full and parallel.offload = params would fit" },
  { 2068870, "train.micro_batch = 6 and "
             "train.recompute = full and parallel.offload = params would fit" },
  { 2110870, "train.micro_batch = 1 and train.recompute = full would fit" },
  { 2195390, "train.micro_batch = 1 would fit" },
  { 2464166, "train.micro_batch = 2 would fit" },
  { 2732942, "train.micro_batch = 3 would fit" },
  { 3001717, "train.micro_batch = 4 would fit" },
  { 3539269, "" },
  { 0, NULL },
};

static const struct least ddp[] = {
  { 912302, "train.micro_batch = 1 and parallel.data = zero3 and "
            "train.recompute = full and parallel.offload = params would fit" },
  { 1088235, "train.micro_batch = 2 and parallel.data = zero3 and "
             "train.recompute = full and parallel.offload = params would fit" },
  { 1254806, "train.micro_batch = 1 and parallel.data = zero3 and "
             "train.recompute = full would fit" },
  { 1327429, "train.micro_batch = 1 and parallel.data = zero3 would fit" },
  { 1449333, "train.micro_batch = 1 and parallel.data = zero2 would fit" },
  { 1557195, "train.micro_batch = 1 and parallel.data = zero1 would fit" },
  { 1910231, "train.micro_batch = 2 and parallel.data = zero1 would fit" },
  { 2110870, "train.micro_batch = 1 and train.recompute = full would fit" },
  { 2195390, "train.micro_batch = 1 and train.recompute = selective would fit" },
  { 2279651, "train.micro_batch = 1 would fit" },
  { 2632687, "train.micro_batch = 2 would fit" },
  { 3338760, "" },
  { 0, NULL },
};

static const struct least zero2[] = {
  { 912302, "train.micro_batch = 1 and parallel.data = zero3 and "
            "train.recompute = full and parallel.offload = params would fit" },
  { 1088235, "train.micro_batch = 2 and parallel.data = zero3 and "
             "train.recompute = full and parallel.offload = params would fit" },
  { 1200193, "train.micro_batch = 1 and "
             "train.recompute = full and parallel.offload = params would fit" },
  { 1254806, "train.micro_batch = 1 and parallel.data = zero3 would fit" },
  { 1388413, "train.micro_batch = 1 and parallel.data = zero1 would fit" },
  { 1441011, "train.micro_batch = 1 would fit" },
  { 1583136, "train.micro_batch = 2 would fit" },
  { 1883184, "" },
  { 0, NULL },
};

static const struct least zero3[] = {
  { 820955, "train.micro_batch = 1 and mesh.cp = 4 would fit" },
  { 873098, "train.micro_batch = 1 and mesh.cp = 2 would fit" },
  { 912302, "train.micro_batch = 1 and train.recompute = full would fit" },
  { 952222, "train.micro_batch = 1 and train.recompute = selective would fit" },
  { 1016263, "train.micro_batch = 1 would fit" },
  { 1259812, "train.micro_batch = 2 would fit" },
  { 1878893, "" },
  { 0, NULL },
};

static const struct least stages[] = {
  { 580201, "train.micro_batch = 1 and "
            "train.recompute = full and parallel.offload = params would fit" },
  { 584362, "train.micro_batch = 2 and "
            "train.recompute = full and parallel.offload = params would fit" },
  { 693134, "train.micro_batch = 1 and train.recompute = full would fit" },
  { 738905, "train.micro_batch = 1 and train.recompute = selective would fit" },
  { 772713, "train.micro_batch = 1 would fit" },
  { 969581, "train.micro_batch = 2 would fit" },
  { 1363317, "train.micro_batch = 4 would fit" },
  { 2084213, "train.micro_batch = 8 would fit" },
  { 2317230, "" },
  { 0, NULL },
};

/* Beside what the programs need a 64th of the device is left to others, 1 GB at most. */
static void test_words(void)
{
  static const struct {
    int64_t left, total;
    const char *want;
  } row[] = {
    { 2300000, 2400000,
      "out of memory: 0.004714 GB are needed (activations 0.00278, optimizer 0.0009482, "
      "gradients 0.0004742, parameters 0.0004741, kernels and libraries 3.75e-05); device cuda has "
      "0.0023 GB free of 0.0024; train.micro_batch = 1 would fit" },
    { 4000, 100000000000,
      "out of memory: 1.005 GB are needed (activations 0.00278, optimizer 0.0009482, "
      "gradients 0.0004742, parameters 0.0004741, kernels and libraries 1); device cuda has 4e-06 GB free "
      "of 100; " NONE },
    { 1005000000, 100000000000, "" },
  };
  struct fixture f;
  open_fixture(&f, CONFIG(MODEL, "--train.global_batch=8"), 1);
  make_programs(&f);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_err err = { 0 };
    left_bytes = row[i].left;
    total_bytes = row[i].total;
    is_int(tc_run_fits(&f.run, &err), *row[i].want ? TC_EUSER : 0, "%lld of %lld bytes are free",
           (long long)row[i].left, (long long)row[i].total);
    is_str(err.text, row[i].want, "... in these words");
  }
  f.ops.memory = NULL;
  struct tc_err err = { 0 };
  is_int(tc_run_fits(&f.run, &err), 0, "a device that does not know its memory is not asked");
  close_fixture(&f);
}

/* Before the programs are made: the inputs of the layers, 4 bytes an element. */
static void test_activations(void)
{
  static const struct {
    int world;
    int64_t bytes;
    const char *a, *b, *c, *text;
  } row[] = {
    { 1, 131072, "--train.global_batch=8", "--mesh.pp=1", "--mesh.tp=1",
      "0.0001311 GB are needed for the "
      "activations of the 8 sequences" },
    { 1, 98304, "--train.global_batch=12", "--train.micro_batch=6", "--mesh.tp=1",
      "9.83e-05 GB are needed for "
      "the activations of the 6 sequences" },
    { 4, 65536, "--train.global_batch=16", "--mesh.pp=1", "--mesh.tp=1",
      "6.554e-05 GB are needed for the "
      "activations of the 4 sequences" },
    { 4, 131072, "--train.global_batch=16", "--mesh.pp=1", "--mesh.tp=2",
      "0.0001311 GB are needed for the "
      "activations of the 8 sequences" },
    { 4, 65536, "--train.global_batch=16", "--parallel.sequence=yes", "--mesh.tp=2",
      "6.554e-05 GB are needed "
      "for the activations of the 8 sequences" },
    { 4, 32768, "--train.global_batch=16", "--mesh.pp=2", "--train.micro_batch=4",
      "3.277e-05 GB are needed for "
      "the activations of the 4 sequences" },
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct fixture f;
    char want[600];
    struct tc_err err = { 0 };
    open_fixture(&f, CONFIG(MODEL, row[i].a, row[i].b, row[i].c), row[i].world);
    left_bytes = row[i].bytes;
    total_bytes = 1000000;
    is_int(tc_run_could_fit(&f.run, &err), 0, "%s %s %s: %lld bytes of activations fit", row[i].a,
           row[i].b, row[i].c, (long long)row[i].bytes);
    left_bytes--;
    is_int(tc_run_could_fit(&f.run, &err), TC_EUSER, "... and not into one less");
    snprintf(want, sizeof want,
             "out of memory: at least %s of a micro-batch; device cuda has %.4g GB free of "
             "0.001; " NONE,
             row[i].text, (double)left_bytes * 1e-9);
    is_str(err.text, want, "... in these words");
    close_fixture(&f);
  }
}

/* A device without memory of its own has its rank's share of the node's: as many ranks as leave each
 * enough for the inputs of 4096 sequences, of 2 layers x 32 x 64 x 4 bytes, and one more. */
static void test_host(void)
{
  struct fixture f;
  struct tc_err err = { 0 };
  char want[300];
  const int64_t total = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE),
                ranks = total / 67108864;
  open_fixture(&f, CONFIG(MODEL, "--train.global_batch=16384"), 4);
  f.ops.name = "cpu";
  f.ops.memory = NULL;
  f.info[0].local_size = (int)ranks;
  is_int(tc_run_could_fit(&f.run, &err), 0, "a share of the host's memory is enough");
  f.info[0].local_size++;
  is_int(tc_run_could_fit(&f.run, &err), TC_EUSER, "... and a smaller one is not");
  snprintf(
      want, sizeof want,
      "out of memory: at least 0.06711 GB are needed for the activations of the 4096 sequences of "
      "a micro-batch; device cpu has %.4g GB; train.micro_batch = 128 would fit",
      (double)(total / (ranks + 1)) * 1e-9);
  is_str(err.text, want, "... in these words");
  f.info[0].local_size = 0;
  err.text[0] = 0;
  is_int(tc_run_could_fit(&f.run, &err), 0, "a node whose ranks are not known is one rank's %s",
         err.text);
  close_fixture(&f);
}

/* Of a batch with 240 divisors the first 16 that the activations leave room for are looked at, then halves. */
static void test_divisors(void)
{
  static const struct {
    int64_t left;
    const char *want;
  } row[] = { { 10000000, "train.micro_batch = 22 would fit" },
              { 40000000, "train.micro_batch = 91 would fit" },
              { 200000000, "train.micro_batch = 396 would fit" },
              { 30000, NONE } };
  struct fixture f;
  open_fixture(&f, CONFIG(MODEL, "--train.global_batch=720720"), 1);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_err err = { 0 };
    left_bytes = total_bytes = row[i].left;
    is_int(tc_run_could_fit(&f.run, &err), TC_EUSER, "720720 sequences do not fit into %lld",
           (long long)row[i].left);
    const char *at = strstr(err.text, " GB; ");
    is_str(at ? at + 5 : err.text, row[i].want, "... but");
  }
  close_fixture(&f);
}

/* The first of the 16 is the next smaller than the micro-batch that the run has. */
static void test_smaller(void)
{
  struct fixture f;
  char text[sizeof(struct tc_err)];
  open_fixture(&f, CONFIG(MODEL, "--train.global_batch=720720", "--train.micro_batch=720"), 1);
  make_programs(&f);
  is_str(advice(&f, 15000000, text, sizeof text), "train.micro_batch = 26 would fit",
         "of 720720 sequences 720 do not fit into 15 MB");
  is_str(advice(&f, 30000000, text, sizeof text), "train.micro_batch = 55 would fit",
         "... nor into 30 MB");
  close_fixture(&f);
}

int main(void)
{
  alarm(600);
  test_run("alone", CONFIG(MODEL, "--train.global_batch=8"), 1, alone);
  test_run("alone, recomputes",
           CONFIG(MODEL, "--train.global_batch=12", "--train.micro_batch=6",
                  "--train.recompute=selective"),
           1, alone_recomputes);
  test_run("ddp", CONFIG(MODEL, "--train.global_batch=16"), 4, ddp);
  test_run(
      "zero2",
      CONFIG(MODEL, "--train.global_batch=16", "--parallel.data=zero2", "--train.recompute=full"),
      4, zero2);
  test_run("zero3",
           CONFIG(MODEL, "--train.global_batch=16", "--parallel.data=zero3",
                  "--parallel.offload=params"),
           4, zero3);
  test_run("stages",
           CONFIG(MODEL, "--train.global_batch=16", "--mesh.tp=2", "--parallel.sequence=yes",
                  "--mesh.pp=2"),
           4, stages);
  test_words();
  test_activations();
  test_host();
  test_divisors();
  test_smaller();
  return done_testing();
}
