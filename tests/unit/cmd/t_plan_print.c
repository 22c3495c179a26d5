/* t_plan_print.c - what `tercio plan` prints of a plan, from plans whose figures are made up so that
 * each can be distinguished from the others. */
#include "src/calibrate/calibrate.h"
#include "src/cmd/plan/plan.h"
#include "tests/unit/tap.h"

#include <sys/stat.h>
#include <unistd.h>

static struct tc_config *cfg;

static struct tc_plan_job a_job(void)
{
  struct tc_plan_job j = { .cfg = cfg, .world = 8, .device_from = "--device", .nodes_from = "--nodes", .tokens = 81920, .walltime_s = 7200, .restart_s = 60 };
  j.cluster = (struct tc_cluster){ .nodes = 2, .devices = 4, .disk_bytes_per_s = 2e9, .mtbf_s = 1e6,
                                   .device = { .name = "card", .memory_bytes = 80e9, .host_bytes = 100e9 } };
  return j;
}

static struct tc_plan a_plan(void)
{
  struct tc_plan p = { .world = 8, .n_mb = 4, .size = { [TC_PP] = 2, 1, 2, 1, 1, [TC_TP] = 2 }, .micro = 3, .virtual_stages = 2,
                       .batch = 24,
                       .parameters = 1000000000, .saved_bytes = 12e9, .tokens = 1024, .n_cls = 2, .worst = 1, 
                       .model = { .layers = 2, .hidden = 32, .heads = 2, .context = 16, .vocab = 256 } };
  p.time = (struct tc_plan_time){ .step_s = 0.5, .tokens_per_s = 2048, .mfu = 0.25, .bubble = 0.125,
                                  .compute_s = 0.4, .simulated = true };
  static const int set[] = { TC_SET_PP, TC_SET_DP, TC_SET_TP };
  for (int i = 0; i < 3; i++) p.time.wait_s[set[i]] = 0.001 * (i + 2), p.time.bytes[set[i]] = 1e6 * (i + 2);
  for (int i = 0; i < TC_WIRES; i++) p.time.wire_bytes[i] = 1e9 * (i + 1);
  for (int i = 0; i < 2; i++) {
    p.cls[i] = (struct tc_plan_class){ .rank = 4 * i, .pp = i, .parameters = 5000000 * (i + 1) };
    p.cls[i].memory.bytes[TC_DEVICE] = INT64_C(30000000000) * (i + 1);
    p.cls[i].memory.bytes[TC_HOST] = INT64_C(20000000000);
    for (int k = 0; k < TC_CLASSES; k++)
      p.cls[i].memory.by_class[TC_DEVICE][k] = INT64_C(1000000000) * (10 * i + k + 1);
  }
  return p;
}

static char *printed(const struct tc_plan_job *j, const struct tc_plan *p, const struct tc_plan_found *found)
{
  char *text = NULL;
  size_t size = 0;
  FILE *f = open_memstream(&text, &size);
  if (p) tc_plan_print(f, j, p);
  else tc_plan_table_print(f, j, found);
  fclose(f);
  return text;
}

static void has(const char *text, const char *part)
{
  if (!ok(strstr(text, part) != NULL, "%.*s", (int)strcspn(part, "\n"), part)) printf("# in %s\n", text);
}

static void test_plan(void)
{
  struct tc_plan_job j = a_job();
  struct tc_plan p = a_plan();
  char *text = printed(&j, &p, NULL);
  has(text, "model      own sizes: 34.2K parameters, 2 layers, context 16 ");
  has(text, " [--model.layers, --model.hidden, --model.heads, --model.context, --model.vocab]\n");
  has(text, "batch      8 sequences = 128 tokens per step ");
  has(text, " [default, assumed]\n");
  has(text, "precision  fp32 ");
  has(text, " [--train.precision]\n");
  has(text, "device     card, 80 GB ");
  has(text, "cluster    2 nodes x 4 card ");
  has(text, " [--nodes, one device per node assumed]\n");
  has(text, "host       100 GB per node ");
  has(text, "layout     8 ranks: pp 2 x dp 2 x tp 2, ddp, interleaved of 2 virtual stages\n");
  has(text, "4 micro-batches of 3 sequences on each rank of dp; recompute none");
  has(text, "    0     0   0         5M        1.0000        2.0000");
  has(text, "    4     1   0        10M       11.0000       12.0000");
  has(text, "   30.0000   20.0000\n");
  has(text, "   60.0000   20.0000\n");
  has(text, "fits: needs 60 GB, card has 80 GB (75 %");
  has(text, "host memory suffices: a node needs 80 GB and has 100 GB");
  ok(!strstr(text, "leaves a tenth"), "75 %% is no reason for advice");
  has(text, "16 bytes per parameter 16 GB");
  has(text, "time of a step on card: 500 ms; 2048 tokens/s, MFU 25.0 %");
  has(text, "stages wait for each other 12.5 % of it on average\n"
      "the busiest rank computes 400 ms, waits for pp 2 ms, dp 3 ms, tp 4 ms; its step:\n");
  has(text, "a rank sends at most 2 MB on pp, 3 MB on dp, 4 MB on tp per step; 1 GB within its node, "
      "2 GB on the network, of it 3 GB past its leaf switch");
  /* 12 GB at 2 GB/s; two nodes of 1e6 s each. */
  has(text, "a checkpoint is 12 GB: 6 s at 2 GB/s; with a failure every 24 h (ckpt.mtbf_hours), best every 16.9 min: "
      "1.2 % of the time is lost");
  has(text, "80 steps (8.192e+04 tokens) take 40.5 s, 0.0225 node-hours; 0 requeues with a time limit of 2 h");
  free(text);

  p.worst = 0, p.size[TC_PP] = p.size[TC_TP] = p.virtual_stages = p.world = p.n_mb = 1, p.time.simulated = false;
  p.time.wire_bytes[TC_WIRE_SPINE] = 0;
  j.cluster.device.host_bytes = 15e9, j.cluster.device.memory_bytes = 20e9;
  j.cluster.mtbf_s = 0, j.walltime_s = 0;
  text = printed(&j, &p, NULL);
  has(text, "layout     1 rank: pp 1 x dp 2 x tp 1, ddp\n");
  has(text, " 1 micro-batch of 3");
  has(text, "does not fit: needs 30 GB, card has 20 GB (150 %");
  has(text, "host memory does not suffice: a node needs 20 GB and has 15 GB");
  has(text, "stages wait for each other 12.5 % of it on average (estimated from sums over each stage)");
  has(text, "2 GB on the network\n");
  has(text, "6 s at 2 GB/s\n80 steps");
  has(text, "take 40 s, 0.01111 node-hours\n");
  free(text);
  j.cluster.mtbf_s = 1, j.walltime_s = 60;
  text = printed(&j, &p, NULL);
  has(text, "never end: failures come before there is a checkpoint to resume from");
  free(text);
  j.cluster.mtbf_s = 0;
  text = printed(&j, &p, NULL);
  has(text, "; the time limit is too short to save and load");
  free(text);
}

static void test_table(void)
{
  struct tc_plan_job j = a_job();
  struct tc_plan_row row[2] = { { .cfg = *cfg, .plan = a_plan() }, { .cfg = *cfg, .plan = a_plan() } };
  struct tc_plan_family family[] = {
    { .key = TC_KEY_TP, .name = "4", .n = 3, .least_bytes = 90e9 },
    { .key = TC_KEY_DATA, .name = "ddp", .n = 3, .fit = 1, .least_bytes = 90e9 },
    { .key = TC_KEY_OFFLOAD, .name = "params", .n = 1, .least_bytes = 1e9, .least_host_bytes = 200e9 },
    { .key = TC_KEY_PP, .name = "3", .n = 1, .least_bytes = INFINITY, .why = "is too much" } };
  struct tc_plan_found found = { .row = row, .n_rows = 2, .family = family, .n_families = 4, .possible = 20,
                                 .fitting = 2, .least_bytes = 30e9 };
  row[1].plan.size[TC_PP] = row[1].plan.virtual_stages = 1, row[1].plan.worst = 0;
  char *text = printed(&j, NULL, &found);
  has(text, "cluster    2 nodes x 4 card ");
  has(text, "layouts    20 are possible, 2 fit\n");
  has(text, " 1    2     2   2 ddp    interleaved 2      3 none       no no          0.5 s  25.0%     60 GB    80 GB"
      "   12.5%      1 GB      2 GB\n");
  has(text, " 2    1     2   2 ddp    -                  3 none       no no          0.5 s  25.0%     30 GB    80 GB ");
  has(text, "\nmemory: of the rank that needs most");
  ok(!strstr(text, "node-hours") && !strstr(text, "host memory unknown"), "no costs, which were not asked for");
  has(text, "  mesh.tp = 4                              needs at least 90 GB, a device has 80 GB\n");
  has(text, "  parallel.offload = params                where it is needed: needs at least 200 GB of host memory, "
      "a node has 100 GB\n");
  has(text, "  mesh.pp = 3                              is too much\n");
  ok(!strstr(text, "parallel.data = ddp"), "nothing of what fits");
  has(text, "options of row 1: --mesh.pp=");
  free(text);
  /* With costs, with a first row that fills the device, and with host memory that is not known. */
  j.search = j.costs = true, j.cluster.device.host_bytes = 0, row[0].host_unchecked = true;
  row[0].plan.cls[1].memory.bytes[TC_DEVICE] = INT64_C(74000000000), j.own_bytes = 80e9;
  text = printed(&j, NULL, &found);
  has(text, "host       host memory unknown: offload not checked\n");
  has(text, "     74 GB   80 GB?   12.5%");
  has(text, "\n?: host memory unknown: offload not checked (--host-memory");
  has(text, "80 steps (8.192e+04 tokens) with a time limit of 2 h:\n"
      "row        hours   node-hours  requeues\n  1      0.01125       0.0225         0\n  2      0.01125");
  has(text, "of row 1 takes 93 % of the memory of a device");
  has(text, "\n--memory 72GB leaves a tenth for them.\n");
  free(text);
  j.own_bytes = 81e9;
  text = printed(&j, NULL, &found);
  ok(!strstr(text, "leaves a tenth"), "no advice where --memory is less than the device has");
  free(text);
  j.cluster.mtbf_s = 1, j.walltime_s = 60;
  text = printed(&j, NULL, &found);
  has(text, "\n  2 never ends: failures come before there is a checkpoint");
  free(text);
  j.cluster.mtbf_s = 0;
  text = printed(&j, NULL, &found);
  has(text, " the time limit is too short to save and load\n");
  free(text);
  j.costs = false;
  found.n_rows = 0, found.fitting = 0, found.least_bytes = 90e9;
  text = printed(&j, NULL, &found);
  has(text, "nothing fits. On 8 ranks a device needs at least 90 GB and has 80 GB. More nodes of this kind "
      "would not help");
  free(text);
  found.least_nodes = 5;
  text = printed(&j, NULL, &found);
  has(text, "has 80 GB. 5 nodes of 4 would suffice.\n");
  free(text);
}

/* A scontrol that fails in the ways it has. */
static void test_no_slurm(void)
{
  static const struct { const char *code, *want; } row[] = {
    { "127", "scontrol is not installed here" }, { "124", "scontrol show partition has not answered for " },
    { "1", "scontrol show partition: Unable to contact slurm controller; without Slurm give" } };
  char dir[] = "t_plan_print.XXXXXX", *path = NULL, *to = NULL;
  const char *old = getenv("PATH");
  if (mkdtemp(dir)) {
    path = tc_sprintf("%s/scontrol", dir);
    to = tc_sprintf("./%s:%s", dir, old ? old : "/usr/bin:/bin");
  }
  FILE *f = path ? fopen(path, "w") : NULL;
  if (!ok(f != NULL, "a folder")) return;
  fputs("#!/bin/sh\necho Unable to contact slurm controller\necho more\nexit $T_CODE\n", f);
  fclose(f);
  chmod(path, 0755);
  char *was = tc_strdup(old ? old : "/usr/bin:/bin");
  setenv("PATH", to, 1);
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_slurm_part part;
    struct tc_err err = { 0 };
    setenv("T_CODE", row[i].code, 1);
    int rc = tc_slurm_read(&part, &(struct tc_slurm_want){ NULL, NULL, NULL }, &err);
    ok(rc == TC_EUSER && strstr(err.text, row[i].want), "scontrol ends with %s: %s", row[i].code, err.text);
  }
  setenv("PATH", was, 1);
  remove(path);
  rmdir(dir);
  free(was);
  free(path);
  free(to);
}

static void test_calibrated(void)
{
  static const struct { struct tc_calibrated x; const char *text; } row[] = {
    { { 286, 175.4e9, 3.194e9, 2, 8 }, "a.ini: 286 shapes of ops, products at 175.4 GF/s, memory at 3.194 GB/s\n"
      "it is of ranks of 2 threads on a machine of 8 CPUs; ranks of N threads need a file of their own: --run.threads=N\n" },
    { { 7, 1e9, 2e9, 1, 1 }, "a.ini: 7 shapes of ops, products at 1 GF/s, memory at 2 GB/s\n"
      "it is of ranks of 1 thread on a machine of 1 CPUs; ranks of N threads need a file of their own: --run.threads=N\n" },
    { { 7, 9.9e14, 3.35e12, 0, 0 }, "a.ini: 7 shapes of ops, products at 9.9e+05 GF/s, memory at 3350 GB/s\n" } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    tc_plan_print_calibrated(f, "a.ini", &row[i].x);
    fclose(f);
    is_str(text, row[i].text, "what was measured, %zu", i);
    free(text);
  }
}

int main(void)
{
  char *args[] = { "plan", "--model.layers=2", "--model.hidden=32", "--model.heads=2", "--model.context=16",
                   "--model.vocab=256", "--parallel.data=ddp", "--parallel.schedule=interleaved",
                   "--train.recompute=none", "--train.precision=fp32" };
  struct tc_err err = { 0 };
  if (!is_int(tc_config_new(&cfg, 10, args, &err), 0, "configured %s", err.text)) return done_testing();
  test_plan();
  test_table();
  test_no_slurm();
  test_calibrated();
  tc_config_free(cfg);
  return done_testing();
}
