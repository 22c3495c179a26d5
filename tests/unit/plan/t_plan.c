/* t_plan.c - the planner against published figures and formulas: textbook tables, ZeRO, devices, a
 * step's time where it can be computed by hand, checkpoint intervals. */
#include "src/plan/plan.h"
#include "tests/unit/plan_config.h"

#include <unistd.h>

#define GIB (1024.0 * 1024 * 1024)

static const struct tc_model *preset(const char *name)
{
  const struct tc_model *m = tc_presets;
  while (m->preset && strcmp(m->preset, name)) m++;
  return m;
}

/* The public estimate of GPT-2 1.5B (context 1024, batch 32, fp32, Adam), in GB; and the table of
 * 16 bytes a parameter. */
static void test_tables(void)
{
  const struct { const char *name; double parameters, gb, compute; } row[] = {
    { "bert-large", 0.32e9, 5.12, 1 }, { "gpt2-1558m", 1.5e9, 24, 4.7 },
    { "turing-17b", 17.2e9, 275, 54 }, { "gpt3-175b", 175e9, 2800, 547 } };
  double first = (double)tc_model_params(preset(row[0].name));
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    double psi = (double)tc_model_params(preset(row[i].name));
    near_f(psi, row[i].parameters, 0.05, "%s: parameters", row[i].name);
    near_f(tc_textbook_states(psi) * 1e-9, row[i].gb, 0.05, "%s: GB of states", row[i].name);
    near_f(psi / first, row[i].compute, 0.05, "%s: relative compute", row[i].name);
  }
  struct tc_textbook t;
  tc_textbook(&t, preset("gpt2-1558m"), 32);
  near_f(t.weights / GIB, 6, 0.05, "GPT-2 1.5B: parameters");
  near_f(t.gradients / GIB, 6, 0.05, "GPT-2 1.5B: gradients");
  near_f(t.optimizer / GIB, 18, 0.05, "GPT-2 1.5B: optimizer");
  near_f(t.layers / 48 / GIB, 1.17, 0.05, "GPT-2 1.5B: activations of a layer");
  near_f(t.layers / GIB, 56.25, 0.001, "GPT-2 1.5B: activations of all layers");
  near_f(t.tokens / GIB, 0.19, 0.05, "GPT-2 1.5B: token embeddings");
  near_f(t.positions / GIB, 0.006, 0.05, "GPT-2 1.5B: positions");
  near_f(t.activations / GIB, 56.43, 0.05, "GPT-2 1.5B: activations");
  near_f(t.total / GIB, 87, 0.05, "GPT-2 1.5B: together");
  const double zero[] = { 120, 31.4, 16.6, 1.9 };
  for (int stage = 0; stage < 4; stage++)
    near_f(tc_textbook_zero(7.5e9, stage, 64) * 1e-9, zero[stage], 0.05, "7.5 B on 64: ZeRO-%d",
           stage);
}

static void test_devices(void)
{
  const struct { const char *name; double gb; } row[] = {
    { "a100-40", 42.3 }, { "a100-80", 85 }, { "h100", 85 }, { "h200", 150.1 }, { "cpu", 16 } };
  struct tc_cluster k;
  struct tc_err err = { 0 };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    is_int(tc_cluster_read(&k, row[i].name, &err), 0, "%s is known", row[i].name);
    near_f(k.device.memory_bytes + k.device.context_bytes, row[i].gb * 1e9, 1e-12, "... with %g GB", row[i].gb);
    ok((k.device.context_bytes > 0) == !tc_plan_is_cpu(&k.device), "... CUDA's own among them");
    tc_cluster_done(&k);
  }
  const struct { const char *gpu, *device; } name[] = {
    { "NVIDIA A100-SXM4-80GB", "a100-80" }, { "NVIDIA A100-SXM4-40GB", "a100-40" },
    { "A100-SXM-80GB", "a100-80" }, { "NVIDIA H100 80GB HBM3", "h100" }, { "NVIDIA H200", "h200" },
    { "Tesla V100-SXM2-16GB", "v100-16" }, { "Tesla V100-SXM2-32GB", "v100-32" },
    { "NVIDIA GH200 480GB", "gh200" }, { "NVIDIA GB200", NULL }, { "NVIDIA H100 SXM5 96GB", "h100-96" },
    { "NVIDIA L40S", "l40s" }, { "NVIDIA L40", NULL }, { "NVIDIA H20", "h20" }, { "NVIDIA B200", "b200" },
    { "NVIDIA B300 SXM6 AC", "b300" },
     { "NVIDIA H100 PCIe", NULL }, { "NVIDIA A100-PCIE-40GB", NULL },
    { "NVIDIA A10", NULL }, { "Quadro GV100", NULL }, { "gpu0", NULL }, { "", NULL } };
  for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
    const char *got = tc_plan_device_of(name[i].gpu);
    ok(name[i].device ? got && !strcmp(got, name[i].device) : !got, "\"%s\" is %s", name[i].gpu,
       got ? got : "none of them");
  }
  const char *const old[] = { "v100-16", "v100-32", "V100", "v100" };
  for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
    is_int(tc_cluster_read(&k, old[i], &err), TC_EUSER, "%s, which the cuda device refuses", old[i]);
    ok(strstr(err.text, "compute capability 7.0, but Tercio needs a GPU of 8.0 or later; known are a100-40, "
       "a100-80, l40s, h100-96, h100, gh200, h200, h20, b200, b300, cpu") != NULL, "... why, and what there is: %s", err.text);
  }
  const struct { const char *gpu; bool old; } gpu[] = {
    { "v100", true }, { "tesla_v100-sxm2-32gb", true }, { "Tesla V100-PCIE-16GB", true }, { "a100", false },
    { "gv100", false }, { "", false }, { "nvidia_h100", false } };
  for (size_t i = 0; i < sizeof gpu / sizeof *gpu; i++)
    ok(tc_plan_too_old(gpu[i].gpu) == gpu[i].old, "\"%s\" is %stoo old", gpu[i].gpu, gpu[i].old ? "" : "not ");
  is_int(tc_cluster_read(&k, "a100-8", &err), TC_EUSER, "an unknown device");
  ok(strstr(err.text, "did you mean a100-80?") != NULL, "... with the nearest: %s", err.text);
  is_int(tc_cluster_read(&k, "./there-is-none.txt", &err), TC_EUSER, "a file that is not there");
}

/* A file read back is what was written. */
static void test_file(void)
{
  struct tc_cluster k, b;
  struct tc_err err = { 0 };
  char path[] = "t_plan-XXXXXX";
  int fd = mkstemp(path);
  ok(fd >= 0 && tc_cluster_read(&k, "a100-40", &err) == 0, "a device");
  struct tc_op_sample s = { TC_OP_MATMUL, 2, { 128, 512, 64, 3 }, 1.25e-4 };
  k.device.sample = malloc(sizeof s);
  k.device.sample[0] = s;
  k.device.n_samples = k.device.cap_samples = 1;
  k.link[TC_WIRE_NETWORK].latency_s[TC_ALL_REDUCE] = 3e-4;
  char *name = tc_sprintf("./%s", path);
  is_int(tc_cluster_write(&k, name, NULL, &err), 0, "written");
  is_int(tc_cluster_read(&b, name, &err), 0, "read: %s", err.text);
  is_str(b.device.name, "a100-40", "name");
  near_f(b.device.memory_bytes, 42.3e9 - 0.6e9, 1e-5, "memory");
  ok(b.device.fuses == k.device.fuses && b.device.multiprocessors == 108 && b.device.capability == 80, "what terms go by");
  near_f(b.link[TC_WIRE_NODE].half_bytes[TC_ALL_REDUCE], k.link[TC_WIRE_NODE].half_bytes[TC_ALL_REDUCE], 1e-3, "half of a rate");
  near_f(b.device.flops[TC_BF16], 312e12, 1e-5, "bf16");
  near_f(b.mtbf_s, k.mtbf_s, 1e-5, "time between failures");
  near_f(b.link[TC_WIRE_NETWORK].latency_s[TC_ALL_REDUCE], 3e-4, 1e-3, "latency of one collective");
  near_f(b.link[TC_WIRE_NETWORK].latency_s[TC_SEND], 20e-6, 1e-3, "... and of another");
  is_int(b.device.n_samples, 1, "a timing");
  const struct tc_op_sample *r = b.device.sample;
  ok(r && r->op == s.op && r->ranks == s.ranks && r->seconds == s.seconds && !memcmp(r->key, s.key,
      sizeof s.key),
     "... the same");
  struct tc_op_cost c = { .op = TC_OP_MATMUL, .ranks = 2, .m = 128, .n = 512, .k = 64, .ta = true,
                          .tb = true,
                          .flops = 2.0 * 128 * 512 * 64 };
  near_f(tc_op_seconds(&c, &b.device), 1.25e-4, 1e-9, "an op of that shape takes that time");
  c.m = 256;
  c.flops *= 2;
  near_f(tc_op_seconds(&c, &b.device), 1.25e-4, 1e-9, "... of twice the size, too: a GPU's multiprocessors have a tile each");
  b.device.multiprocessors = 0;
  near_f(tc_op_seconds(&c, &b.device), 2.5e-4, 1e-3, "... twice where products have one rate");
  tc_cluster_done(&k);
  tc_cluster_done(&b);
  FILE *f = fopen(path, "w");
  fprintf(f, "device = a100-80\nmemry = 3\n");
  fclose(f);
  is_int(tc_cluster_read(&b, name, &err), TC_EUSER, "a key that is not known");
  ok(strstr(err.text, ":2: \"memry\" is not known; did you mean memory?") != NULL, "%s", err.text);
  remove(path);
  free(name);
}

/* One line after a device's name. `want`: what is wrong, NULL if nothing is. */
static void test_file_lines(void)
{
  static const struct { const char *line, *want; } row[] = {
    { "", NULL }, { "# memory = x", NULL }, { "link network all = 1e-6, 1", NULL },
    { "link network all = 0, 0.5", NULL }, { "link spine send=1e-6,2e9", NULL },
    { "link network all = 1e-6, 0", "not a latency in seconds" },
    { "link network all = -1e-6, 1", "not a latency" }, { "link network all = 1e-6, inf", "not a latency" },
    { "link network all = 1e-6", "not a latency" }, { "link network all = 1, 2e9 x", "not a latency" },
    { "link moon all = 1, 1", "is not known" },
    { "link node all_reduces = 1, 1", "is not known" }, { "links moon = x", "is not known" },
    { "op matmul 2 1 2 3 4 = 0", NULL }, { "op matmul 2 1 2 3 = 1", "is not known" },
    { "op matmul 2 1 2 3 4 = -1", "not a time" }, { "op matmul 2 1 2 3 4 = 1 s", "not a time" },
    { "op matmuls 2 1 2 3 4 = 1", "is not known" }, { "memory", "not \"key = value\"" },
    { "memory = 1 byte", "memory = 1 byte is not a number of bytes" }, { "node_mtbf = 5 x", "node_mtbf = 5 x is not a time" },
    { "eff_flops = 0.5x", "eff_flops = 0.5x is not a number" }, { "eff_flops =", "is not a number" },
    { "eff_flops = 0", "must be above 0" }, { "memory = 0", "must be above 0" },
    { "memory_rate = 0", "must be above 0" }, { "copy_rate = 0", "must be above 0" },
  };
  char path[] = "t_plan-XXXXXX";
  int fd = mkstemp(path);
  char *name = tc_sprintf("./%s", path);
  for (size_t i = 0; fd >= 0 && i < sizeof row / sizeof *row; i++) {
    struct tc_cluster k;
    struct tc_err err = { 0 };
    FILE *f = fopen(path, "w");
    fprintf(f, "device = a100-80\n%s\n", row[i].line);
    fclose(f);
    int rc = tc_cluster_read(&k, name, &err);
    ok(row[i].want ? rc == TC_EUSER && strstr(err.text, row[i].want) : rc == 0, "\"%s\" %s", row[i].line,
       err.text);
    if (!rc) tc_cluster_done(&k);
  }
  if (fd >= 0) close(fd);
  remove(path);
  free(name);
}

/* Links fitted to a line come back as that line; one by one and barriers are left alone. */
static void test_links(void)
{
  struct tc_link l = { .latency_s = { 0 } };
  struct tc_err err = { 0 };
  char path[] = "t_plan-XXXXXX";
  int fd = mkstemp(path);
  FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
  ok(f != NULL, "a file");
  fprintf(f, "[");
  for (int i = 0; i < 4; i++) {                  /* 50 us and 1e9 bytes a second, 2 ranks */
    double size = 1000 * pow(10, i);
    fprintf(f, "%s{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": %.0f, \"time_us\": %.6f},", "",
            size, 50 + size * 1e-3);
    fprintf(f, "{\"op\": \"send_recv\", \"ranks\": 2, \"size\": %.0f, \"time_us\": %.6f}%s", size,
            2 * (20 + size * 2e-3), i < 3 ? "," : "]");
  }
  fclose(f);
  is_int(tc_links_read(&l, path, &err), 0, "links: %s", err.text);
  near_f(l.latency_s[TC_ALL_REDUCE], 50e-6, 1e-3, "latency of an all-reduce");
  near_f(l.bytes_per_s[TC_ALL_REDUCE], 1e9, 1e-3, "... its rate");
  near_f(l.latency_s[TC_SEND], 20e-6, 1e-3, "latency of a send: half of a ring");
  near_f(l.bytes_per_s[TC_RECV], 0.5e9, 1e-3, "... its rate, of a receive too");
  near_f(l.bytes_per_s[TC_GATHER], 0, 0, "what was not measured is as it was");
  /* A line through these would begin at -1 s: it begins at 0 instead. */
  f = fopen(path, "w");
  fprintf(f, "[{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": 1e6, \"time_us\": 1e6},"
          "{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": 2e6, \"time_us\": 3e6}]");
  fclose(f);
  is_int(tc_links_read(&l, path, &err), 0, "times that grow faster than sizes: %s", err.text);
  near_f(l.latency_s[TC_ALL_REDUCE], 0, 0, "... have no latency");
  near_f(l.bytes_per_s[TC_ALL_REDUCE], 7e6 / 9, 1e-6, "... and a rate between them");
  f = fopen(path, "w");
  fprintf(f, "[]");
  fclose(f);
  is_int(tc_links_read(&l, path, &err), TC_EUSER, "nothing measured");
  remove(path);
}

/* One rank of a device that does nothing but multiply, at 1e9 operations a second: products and
 * attention, forward and twice that backward, no more. */
static void test_time(void)
{
  struct tc_cluster k = { .nodes = 1, .devices = 8, .disk_bytes_per_s = 1e9 };
  struct tc_plan p;
  struct tc_err err = { 0 };
  k.device = (struct tc_plan_device){ .name = "ideal", .memory_bytes = 1e12, .bytes_per_s = 1e30,
    .copy_bytes_per_s = 1e30, .eff_flops = 1, .eff_bytes = 1, .flops = { [TC_F32] = 1e9 } };
  for (int w = 0; w < TC_WIRES; w++)
    for (int c = 0; c < TC_COLLS; c++) k.link[w].bytes_per_s[c] = 1e30;
  const double L = 4, C = 64, T = 32, V = 256, tokens = 8 * T;
  double products = 6 * (12 * L * C * C + V * C) * tokens;
  double attention = 7 * tokens * T * C * L;     /* 2 products forward, 5 backward;
      half of the scores */
  struct tc_config *c = CONFIG("--model.layers=4", "--model.hidden=64", "--model.heads=4",
    "--model.context=32", "--model.vocab=256", "--train.global_batch=8", "--train.micro_batch=1");
  is_int(tc_plan_layout(&p, c, 1, &k, true, &err), 0, "one rank: %s", err.text);
  near_f(p.time.step_s, (products + attention) * 1e-9, 1e-6, "... takes its operations");
  near_f(p.time.mfu, (6.0 * (double)p.parameters + 12 * L * C * T) * tokens * 1e-9 / p.time.step_s,
         1e-6, "... and uses what the formula says");
  double alone = p.time.step_s;
  c->mesh_dp = 8;
  is_int(tc_plan_layout(&p, c, 8, &k, true, &err), 0, "eight ranks on dp: %s", err.text);
  near_f(p.time.step_s, alone / 8, 1e-6, "... and ideal wires: an eighth");
  /* A wire of 1e6 bytes a second: the gradients, less what hides behind the backward pass. */
  for (int x = 0; x < TC_COLLS; x++) k.link[TC_WIRE_NODE].bytes_per_s[x] = 1e6;
  is_int(tc_plan_layout(&p, c, 8, &k, true, &err), 0, "... over a slow wire: %s", err.text);
  double wire = 2 * 7.0 / 8 * 4 * (double)p.parameters / 1e6;
  ok(p.time.step_s > wire && p.time.step_s < wire + alone / 8, "a step takes as long as the wire: "
     "%g s, wire %g s, work %g s", p.time.step_s, wire, alone / 8);
  near_f(p.time.bytes[TC_SET_DP], wire * 1e6, 0.001, "bytes on dp");
  near_f(p.time.wire_bytes[TC_WIRE_NODE], wire * 1e6, 0.001, "... stay in the node");
  k.devices = 4;
  is_int(tc_plan_layout(&p, c, 8, &k, true, &err), 0, "on two nodes: %s", err.text);
  near_f(p.time.wire_bytes[TC_WIRE_NETWORK], 4 * (double)p.parameters * 2 * (2 - 1) / 2 / 4, 0.002,
         "... each of four ranks sends a fourth of what leaves its node");
  /* Four nodes of two below two switches: 6 of 7 peers are off the node, 4 off the switch. */
  k.devices = 2;
  k.switch_nodes = 2;
  for (int x = 0; x < TC_COLLS; x++) k.link[TC_WIRE_NODE].bytes_per_s[x] = 1e30;
  for (int x = 0; x < TC_COLLS; x++) k.link[TC_WIRE_SPINE].bytes_per_s[x] = 1e5;
  is_int(tc_plan_layout(&p, c, 8, &k, true, &err), 0, "below two switches: %s", err.text);
  double gradients = wire * 1e6;
  const double leave = 4 * (double)p.parameters * 2 * (4 - 1) / 4 / 2;
  near_f(p.time.wire_bytes[TC_WIRE_NETWORK], leave, 0.002, "... what leaves the node");
  near_f(p.time.wire_bytes[TC_WIRE_SPINE], leave * 4 / 6, 0.002, "... and its switch");
  near_f(p.time.bytes[TC_SET_DP], gradients, 0.001, "... is no more on dp");
  double spine = leave * 4 / 6 / 1e5;
  ok(p.time.step_s > spine && p.time.step_s < spine + alone / 8, "... takes as long as the spine: "
     "%g s, spine %g s", p.time.step_s, spine);
  c->mesh_pp = 2;                                /* dp within a switch: its four are half of all */
  c->mesh_dp = 4;
  c->mesh_order = TC_TP_DP_PP;
  is_int(tc_plan_layout(&p, c, 8, &k, true, &err), 0, "a stage a switch: %s", err.text);
  double sent = p.time.bytes[TC_SET_PP];
  ok(sent > 0 && p.time.wire_bytes[TC_WIRE_SPINE] <= sent, "... only the boundary passes the spine: "
     "%g of %g bytes", p.time.wire_bytes[TC_WIRE_SPINE], sent);
  c->mesh_order = TC_ORDER_AUTO;
  c->mesh_pp = 1;
  c->mesh_dp = 8;
  k.switch_nodes = 0;
  for (int x = 0; x < TC_COLLS; x++) k.link[TC_WIRE_NODE].bytes_per_s[x] = 1e6;
  k.devices = 8;
  /* A CPU that copies for itself works no less, but that much later. */
  is_int(tc_plan_layout(&p, c, 8, &k, true, &err), 0, "on one node again: %s", err.text);
  k.device.steal = 1;
  double hidden = p.time.step_s;
  is_int(tc_plan_layout(&p, c, 8, &k, true, &err), 0, "copies that take turns: %s", err.text);
  ok(p.time.step_s > hidden && p.time.step_s > wire + 0.9 * alone / 8 &&
     p.time.step_s < wire + 1.1 * alone / 8, "... hide nothing: %g s, wire %g, work %g",
     p.time.step_s, wire, alone / 8);
  k.device.steal = 0;
  for (int x = 0; x < TC_COLLS; x++) k.link[TC_WIRE_NODE].bytes_per_s[x] = 1e30;
  c->mesh_dp = 1;
  c->mesh_pp = 2;
  const struct { enum tc_schedule schedule; double bubble; } row[] = { { TC_SCHEDULE_GPIPE, 1.0 / 9 },
                                                                     { TC_SCHEDULE_1F1B, 1.0 / 9 } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    c->parallel_schedule = row[i].schedule;
    is_int(tc_plan_layout(&p, c, 2, &k, true, &err), 0, "%s: %s",
           tc_word_parallel_schedule(row[i].schedule), err.text);
    ok(p.time.simulated && p.time.bubble > row[i].bubble * 0.8 && p.time.bubble < row[i].bubble + 0.15,
       "... a bubble of %g, with even stages %g", p.time.bubble, row[i].bubble);
  }
  tc_config_free(c);
}

/* A longer pipeline by sums is near the same pipeline played. */
static void test_sums(void)
{
  struct tc_cluster k;
  struct tc_err err = { 0 };
  struct tc_plan a, b;
  const enum tc_schedule all[] = { TC_SCHEDULE_GPIPE, TC_SCHEDULE_1F1B, TC_SCHEDULE_INTERLEAVED,
                                   TC_SCHEDULE_ZB };
  tc_cluster_read(&k, "a100-80", &err);
  k.devices = 8;
  struct tc_config *c = CONFIG("--model.layers=16", "--model.hidden=1024", "--model.heads=16",
    "--model.context=1024", "--model.vocab=8192", "--train.global_batch=32",
        "--train.micro_batch=1",
    "--mesh.pp=4", "--train.precision=bf16");
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    const char *const name = tc_word_parallel_schedule(c->parallel_schedule = all[i]);
    is_int(tc_plan_layout(&a, c, 8, &k, true, &err), 0, "%s, played: %s", name, err.text);
    is_int(tc_plan_layout(&b, c, 8, &k, false, &err), 0, "... by sums: %s", err.text);
    ok(a.time.simulated && !b.time.simulated, "... one of each");
    near_f(b.time.step_s, a.time.step_s, 0.15, "... and near");
    near_f((double)b.cls[b.worst].memory.by_class[TC_DEVICE][TC_CLS_ACT],
           (double)a.cls[a.worst].memory.by_class[TC_DEVICE][TC_CLS_ACT], 1e-6,
           "... with all activations of %d micro-batches", a.n_mb);
  }
  /* Stages by hand: one in the middle has most layers, whatever stands beside it. */
  c->mesh_pp = 10;
  c->parallel_schedule = TC_SCHEDULE_1F1B;
  c->mesh_stages = "0,1,2,3-9,10,11,12,13,14,15";
  for (int i = 0; i < 2; i++) {
    is_int(tc_plan_layout(&a, c, 10, &k, i, &err), 0, "ten stages by hand: %s", err.text);
    is_int(a.cls[a.worst].pp, 3, "... the fullest has seven layers of sixteen");
    ok(a.time.compute_s > 0.4 * a.time.step_s, "... and all wait for it: %g of %g s", a.time.compute_s,
       a.time.step_s);
  }
  c->mesh_stages = "auto";
  /* As many virtual stages as a rank may have. */
  c->mesh_pp = 2;
  c->model_layers = 160;
  c->model_hidden = c->model_context = 32;
  c->parallel_schedule = TC_SCHEDULE_INTERLEAVED;
  c->parallel_virtual_stages = 80;
  is_int(tc_plan_layout(&a, c, 2, &k, true, &err), 0, "80 virtual stages, simulated: %s", err.text);
  is_int(tc_plan_layout(&b, c, 2, &k, false, &err), 0, "... by sums: %s", err.text);
  near_f(b.time.step_s, a.time.step_s, 0.3, "... and near");
  c->model_layers = 16;
  c->model_hidden = c->model_context = 1024;
  c->parallel_virtual_stages = TC_AUTO;
  /* Transfers of every micro-batch that nearly fill its work: they hide behind all of it. */
  c->mesh_pp = 1;
  c->parallel_schedule = TC_SCHEDULE_1F1B;
  c->train_global_batch = 128;
  k.devices = 4;
  for (int x = 0; x < TC_COLLS; x++) k.link[TC_WIRE_NETWORK].bytes_per_s[x] = 60e9;
  for (int i = 0; i < 2; i++) {
    c->parallel_data = i ? TC_DATA_ZERO3 : TC_DATA_ZERO2;
    is_int(tc_plan_layout(&a, c, 8, &k, true, &err), 0, "%s, played: %s",
           tc_word_parallel_data(c->parallel_data), err.text);
    is_int(tc_plan_layout(&b, c, 8, &k, false, &err), 0, "... by sums: %s", err.text);
    near_f(b.time.step_s, a.time.step_s, 0.12, "... and near: work %g, dp waits %g",
           a.time.compute_s, a.time.wait_s[TC_SET_DP]);
  }
  /* A schedule is for stages, of which there is one. */
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    const char *const name = tc_word_parallel_schedule(c->parallel_schedule = all[i]);
    is_int(tc_plan_layout(&a, c, 8, &k, false, &err), 0, "%s without a pipeline: %s", name, err.text);
    near_f(a.time.step_s, b.time.step_s, 1e-9, "... makes no difference to the time");
  }
  tc_config_free(c);
  tc_cluster_done(&k);
}

/* Young's sqrt(2 d M) is what minimises the time lost; here by trying. */
static void test_run(void)
{
  struct tc_cluster k = { .nodes = 128, .devices = 8, .disk_bytes_per_s = 10e9, .mtbf_s = 5e7 };
  struct tc_plan p = { .world = 1024, .parameters = 175000000000, .saved_bytes = 12 * 175e9, .tokens = 1 << 20,
                       .time.step_s = 20 };
  struct tc_plan_run r;
  struct tc_config *c = CONFIG("--train.steps=100", "--ckpt.mtbf_hours=1000");
  tc_plan_run(&r, &p, c, &k, 300e9, 86400, 120);
  near_f(r.ckpt_s, 210, 1e-9, "at 10 GB/s");
  near_f(r.mtbf_s, 5e7 / 128, 1e-9, "128 nodes fail 128 times as often");
  double best = 0, least = 1e9;
  for (double t = 600; t < 1e5; t *= 1.001) {
    double lost = 210 / t + t / 2 / r.mtbf_s;
    if (lost < least) least = lost, best = t;
  }
  near_f(r.interval_s + 210, best, 0.05, "the interval is the best one");
  near_f(r.steps, ceil(300e9 / (1 << 20)), 1e-9, "steps");
  double hours = r.steps * 20 / 3600;
  ok(r.hours > hours && r.hours < hours * 1.1, "%g hours, %g of them work", r.hours, hours);
  near_f(r.node_hours, r.hours * 128, 1e-9, "node hours");
  ok(r.requeues >= (int)(hours / 24) && r.requeues < 1.1 * hours / 24 + 1, "%d requeues",
     r.requeues);
  c->ckpt_mtbf_hours = 24;
  tc_plan_run(&r, &p, c, &k, 300e9, 86400, 120);
  near_f(r.mtbf_s, 86400, 1e-9, "a run fails at least as often as ckpt.mtbf_hours says");
  near_f(r.interval_s, tc_daly_s(210, 86400), 1e-9, "... which the interval follows from");
  k.mtbf_s = 0;
  tc_plan_run(&r, &p, c, &k, 300e9, 0, 120);
  near_f(r.hours, hours, 1e-9, "nothing fails: work alone");
  tc_config_free(c);
}

/* Speed ZeRO-1 > 2 > 3, memory 1 > 2 > 3, bytes 3 > 2 > 1 (without accumulation 2 = 1). */
static void test_orders(void)
{
  struct tc_cluster k;
  struct tc_err err = { 0 };
  struct tc_plan p[4];
  const char *names[4];
  tc_cluster_read(&k, "cpu", &err);
  k.devices = 1;
  for (int c = 0; c < TC_COLLS; c++) k.link[TC_WIRE_NETWORK].bytes_per_s[c] = 25e6;
  struct tc_config *c = CONFIG("--model.preset=tiny", "--train.global_batch=32", "--mesh.dp=4");
  for (int accumulate = 0; accumulate < 2; accumulate++) {
    c->train_micro_batch = accumulate ? 2 : 8;
    for (int i = 0; i < 4; i++) {
      c->parallel_data = (enum tc_data_parallel)i;
      names[i] = tc_word_parallel_data(c->parallel_data);
      is_int(tc_plan_layout(&p[i], c, 4, &k, true, &err), 0, "%s: %s", names[i], err.text);
    }
    for (int i = 1; i < 3; i++) {
      ok(p[i].cls[0].memory.bytes[TC_DEVICE] > p[i + 1].cls[0].memory.bytes[TC_DEVICE],
         "%s takes more memory than %s", names[i], names[i + 1]);
      double a = p[i].time.bytes[TC_SET_DP], b = p[i + 1].time.bytes[TC_SET_DP];
      if (i == 1 && !accumulate) near_f(b, a, 1e-9, "%s sends what %s sends", names[2], names[1]);
      else ok(a < b, "%s sends less than %s: %g, %g", names[i], names[i + 1], a, b);
      if (accumulate || i == 2)
        ok(p[i].time.step_s < p[i + 1].time.step_s, "%s is faster than %s: %g, %g s", names[i],
           names[i + 1], p[i].time.step_s, p[i + 1].time.step_s);
    }
  }
  tc_config_free(c);
}

/* The server's wire carries what DDP spreads: as N grows its step grows, DDP's hardly. */
static void test_server(void)
{
  struct tc_cluster k;
  struct tc_err err = { 0 };
  struct tc_plan p[2];
  tc_cluster_read(&k, "cpu", &err);
  k.devices = 1;
  struct tc_config *c = CONFIG("--model.preset=tiny");
  double first[2] = { 0 };
  for (int n = 2; n <= 32; n *= 4) {
    c->train_global_batch = 8 * n;
    c->mesh_dp = n;
    for (int i = 0; i < 2; i++) {
      c->parallel_data = i ? TC_DATA_SERVER : TC_DATA_DDP;
      is_int(tc_plan_layout(&p[i], c, n, &k, true, &err), 0, "%d ranks: %s", n, err.text);
      if (n == 2) first[i] = p[i].time.step_s;
    }
    near_f(p[1].time.bytes[TC_SET_DP], (n - 1) * 4.0 * (double)p[1].parameters, 0.001,
           "%d ranks: the server sends the weights to each", n);
  }
  ok(p[0].time.step_s < 1.5 * first[0], "DDP on 32 ranks: %.2f of 2", p[0].time.step_s / first[0]);
  ok(p[1].time.step_s > p[0].time.step_s, "the server is slower: %g, %g s", p[1].time.step_s,
     p[0].time.step_s);
  tc_config_free(c);
}

/* The bytes of a checkpoint by the optimizer, the states' type and what is frozen: of a GPT-2 of 2 layers of 16. */
static void test_saved(void)
{
  enum { C = 16, L = 2 };
  static const double all = L * (12.0 * C * C + 13 * C) + (256 + 32) * C + 2 * C, matrices = L * 12.0 * C * C;
  static const struct { char *flag; double bytes; } rows[] = {
    { "--train.optimizer=adamw", 12 * all }, { "--train.state_type=bf16", 8 * all }, { "--train.optimizer=sgd", 4 * all },
    { "--train.optimizer=muon", 12 * all - 4 * matrices }, { "--train.rows=* frozen=yes, ln_f.* frozen=no", 4 * all + 8 * 2 * C } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_err err = { 0 };
    struct tc_plan p;
    struct tc_config *c = CONFIG("--model.layers=2", "--model.hidden=16", "--model.heads=2", "--model.context=32",
                                 "--model.vocab=256", rows[i].flag);
    is_int(tc_plan_layout(&p, c, 1, NULL, true, &err), 0, "%s: %s", rows[i].flag, err.text);
    near_f(p.saved_bytes, rows[i].bytes, 1e-12, "... bytes of a checkpoint");
    tc_config_free(c);
  }
}

/* On 8 GPUs of a node tensor parallelism costs: measured runs of such models reach 0.67 to 1.00 (tp 2) and 0.60 to 0.90 (tp 4) of
 * what pure sharding does. */
static void test_tensor_parallel(void)
{
  static const struct { const char *layers, *hidden, *heads; } model[] = {
    { "--model.layers=32", "--model.hidden=4096", "--model.heads=32" },
    { "--model.layers=40", "--model.hidden=5120", "--model.heads=40" } };
  static const char *const tp[] = { "--mesh.tp=1", "--mesh.tp=2", "--mesh.tp=4" };
  static const double least[] = { 1, 0.67, 0.60 }, most[] = { 1, 1.00, 0.90 };
  struct tc_cluster k;
  struct tc_err err = { 0 };
  TC_ASSERT(tc_cluster_read(&k, "h100", &err) == 0);
  k.devices = 8;
  for (int m = 0; m < 2; m++)
    for (int micro = 1; micro <= 2; micro++) {
      double first = 0;
      for (int i = 0; i < 3; i++) {
        struct tc_config *c = CONFIG("--model.family=llama", "--model.vocab=32000", "--model.context=4096",
                                     "--train.global_batch=64", "--train.precision=bf16", "--parallel.data=zero3", model[m].layers, model[m].hidden,
                                     model[m].heads, tp[i], micro == 1 ? "--train.micro_batch=1" : "--train.micro_batch=2");
        struct tc_plan p;
        is_int(tc_plan_layout(&p, c, 8, &k, true, &err), 0, "%s %s, micro-batch %d %s", model[m].hidden, tp[i], micro, err.text);
        if (!i) first = p.time.tokens_per_s;
        const double part = p.time.tokens_per_s / first;
        ok(part >= least[i] && part <= most[i], "... %.2f of pure sharding", part);
        double sum = 0;
        for (int t = 0; t < TC_TERMS; t++) sum += p.time.term_s[t];
        near_f(sum, p.time.step_s, 1e-9, "... its terms are the step");
        tc_config_free(c);
      }
    }
  tc_cluster_done(&k);
}

int main(void)
{
  test_saved();
  test_tables();
  test_devices();
  test_file();
  test_file_lines();
  test_links();
  test_time();
  test_sums();
  test_run();
  test_orders();
  test_server();
  test_tensor_parallel();
  return done_testing();
}
