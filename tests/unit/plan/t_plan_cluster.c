/* t_plan_cluster.c - device files and links, value by value: what is read, what is written, what
 * numbers mean. Sentences about wrong lines are transcripts/planner.txt's. */
#include "src/plan/impl.h"
#include "src/files/input.h"
#include "tests/unit/coll_bytes.h"
#include "tests/unit/tap.h"

#include <string.h>
#include <unistd.h>

static char path[] = "./t_plan_cluster.XXXXXX";

static void put(const char *text)
{
  FILE *f = fopen(path, "w");
  if (!f || fputs(text, f) < 0 || fclose(f)) abort();
}

/* ---- numbers ------------------------------------------------------------------------------- */

static void test_names(void)
{
  static const struct {
    const char *gpu, *device;
    bool old;
  } rows[] = { { "h100", "h100", false },
               { "NVIDIA H100", "h100", false },
               { "H100x", "h100", false },
               { "xH100", NULL, false },
               { "H1000", NULL, false },
               { "h1000 h100", "h100", false },
               { "a100", NULL, false },
               { "a100 80", "a100-80", false },
               { "a100 40GB", "a100-40", false },
               { "40 A100", "a100-40", false },
               { "a100 800", NULL, false },
               { "a100 PCI", NULL, false },
               { "a100-80 PCIe", NULL, false },
               { "xPCI h100", "h100", false },
               { "cpu", NULL, false },
               { "V100-16", "v100-16", true },
               { "xv100", NULL, false },
               { "v1000", NULL, false } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    is_str(tc_plan_device_of(rows[i].gpu), rows[i].device, "\"%s\" is this device", rows[i].gpu);
    is_int(tc_plan_too_old(rows[i].gpu), rows[i].old, "... too old");
  }
  static const struct { const char *gpu, *device; bool may; } pairs[] = {
    { "a100", "a100-80", true }, { "a100", "a100-40", true }, { "a100", "h100", false }, { "a100-pcie-40gb", "a100-40", true },
    { "a100-pcie-40gb", "a100-80", false }, { "A100-PCIE", "a100-80", true }, { "h100", "h100-96", true },
    { "h100-96", "h100", false },
    { "", "l40s", true }, { "gpu", "l40s", true }, { "tesla", "h20", true }, { "v100", "h20", false }, { "h200", "h20", false },
    { "h100", "ours", true }, { "cpu", "cpu", true }, { "cpu", "cpu of 4 threads", true }, { "cpu", "h100", false },
    { "cpu", "ours", false }, { "h100", "cpu", true }, { "", "cpu", true } };
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    is_int(tc_plan_may_be(pairs[i].gpu, pairs[i].device), pairs[i].may, "\"%s\" may be %s", pairs[i].gpu, pairs[i].device);
  for (int i = TC_FIRST_COLL; i < TC_COLLS; i++)
    is_int(tc_coll_named(tc_coll_name[i]), i, "%s", tc_coll_name[i]);
  is_int(tc_coll_named("all"), -1, "no collective");
}

/* ---- files --------------------------------------------------------------------------------- */

/* A device of the table, and what was not measured. */
static void test_table(void)
{
  struct tc_cluster k;
  struct tc_err err = { 0 };
  is_int(tc_cluster_read(&k, "a100-40", &err), 0, "a device of the table");
  const struct tc_plan_device *d = &k.device;
  ok(k.nodes == 1 && k.devices == 1 && k.disk_bytes_per_s == 10e9 &&
         k.mtbf_s == 5 * 365.25 * 86400 && k.switch_nodes == 0,
     "one node of one");
  ok(d->memory_bytes == 42.3e9 - 0.6e9 && d->context_bytes == 0.6e9 && d->host_bytes == 0 && d->op_s == 5e-6 && d->issue_s == 0 &&
         d->cores == 0 && d->steal == 24.0 / 108 && d->steal_network == 24.0 / 108 && d->exposed == 0 &&
         d->multiprocessors == 108 && d->pipeline_queues == 2,
     "... its memory, what an op takes to start, and NCCL of its multiprocessors");
  ok(d->attention == TC_ATTN_BY_CUDNN && d->fuses && !(d->fuses >> TC_FUSE_GELU_BWD & 1), "... its attention, what it fuses");
  for (int c = TC_FIRST_COLL; c < TC_COLLS; c++)
    ok(k.link[TC_WIRE_NODE].latency_s[c] == 10e-6 &&
           k.link[TC_WIRE_NETWORK].latency_s[c] == 20e-6 &&
           k.link[TC_WIRE_SPINE].latency_s[c] == 20e-6 &&
           k.link[TC_WIRE_SPINE].bytes_per_s[c] == k.link[TC_WIRE_NETWORK].bytes_per_s[c],
       "... %s: latencies, a spine", tc_coll_name[c]);
  tc_cluster_done(&k);
}

static const char *const written =
    "# Written by tercio plan; rates in bytes or operations per second.\nname = it\nmemory = "
    "1.5e+09\nhost_memory = 2e+10\ncontext_memory = 0\n"
    "fp32_flops = 3e+12\nbf16_flops = 0\nmemory_rate = 4e+09\ncopy_rate = 5e+09\neff_flops = "
    "0.6\neff_bytes = 0.7\n"
    "op_seconds = 8e-06\nissue_seconds = 9e-06\nmultiprocessors = 0\ncapability = 0\ncores = 10\nsteal = 0.25\n"
    "steal_network = 0\nexposed = 0\npipeline_queues = 1\ndisk_rate = "
    "1.1e+09\nnode_mtbf = 7200s\n";

static void test_write(void)
{
  struct tc_cluster k, again;
  struct tc_err err = { 0 };
  char *text, *want = NULL;
  size_t bytes;
  put("name = it\nmemory = 1.5GB\nhost_memory = 20 GB\nfp32_flops = 3e12\nbf16_flops = "
      "0\nmemory_rate = 4e9\n"
      "copy_rate=5e9  # a comment\n\n  eff_flops\t=\t0.6 \r\neff_bytes = 0.7\nop_seconds = "
      "8e-6\nissue_seconds = 9e-6\n"
      "cores = 10\nsteal = 0.25\nfuses = updates matmul+gelu\ndisk_rate = 1.1 GB/s\nnode_mtbf = 2h\nlink node all = 1e-6, 2e9\n"
      "link network all = 3e-6,4e9\nlink network send = 5e-6 , 6e9\nop move 2 3 4 5 6 = "
      "7e-3\nop gelu 2 3 4 5 6 = 0");
  is_int(tc_cluster_read(&k, path, &err), 0, "a file: %s", err.text);
  is_int(k.device.sample[0].op, TC_OP_RESHARD, "... an op by its name in version 0.1");
  is_int(k.device.n_samples, 2, "two timings, of one shape");
  for (int spine = 0; spine < 2; spine++) {
    char lines[4000] = "";
    k.switch_nodes = spine ? 3 : 0;
    if (!spine) {
      is_int(tc_cluster_write(&k, path, NULL, &err), TC_EUSER, "over a file that somebody has written: %s", err.text);
      put("");
    }
    is_int(tc_cluster_write(&k, path, NULL, &err), 0, "written");
    is_int(tc_read_text(&text, &bytes, path, "file", 1 << 20, &err), 0, "... and read");
    for (int w = 0; w < TC_WIRES - !spine; w++)
      for (int c = TC_FIRST_COLL; c < TC_BARRIER; c++)
        tc_text_add(lines, sizeof lines, "link %s %s = %s\n", tc_wire_name[w], tc_coll_name[c],
                    w == TC_WIRE_NODE ? "1e-06, 2e+09"
                    : c == TC_SEND    ? "5e-06, 6e+09"
                                      : "3e-06, 4e+09");
    tc_text_add(lines, sizeof lines, "source products = given\nsource attention = given\nsource between = given\n"
                "source update = given\nsource saves = given\nsource node = given\nsource network = given\nsource spine = given\n");
    tc_text_add(lines, sizeof lines, "op reshard 2 3 4 5 6 = 0.007\nop gelu 2 3 4 5 6 = 0\n");
    want = tc_sprintf("%sswitch_nodes = %d\nfuses = matmul+gelu updates\n%s", written, spine ? 3 : 0, lines);
    is_str(text, want, "... as it should be, with links of %d wires", TC_WIRES - !spine);
    free(want);
    free(text);
  }
  is_int(tc_cluster_read(&again, path, &err), 0, "and is read again");
  is_str(again.device.name, "it", "... its name");
  ok(again.device.fuses == (1u << TC_FUSE_GELU | 1u << TC_FUSE_UPDATES), "... what it fuses");
  ok(again.device.n_samples == 2 && again.device.sample[0].ranks == 2 &&
         again.device.sample[0].seconds == 7e-3 && again.switch_nodes == 3 &&
         again.link[TC_WIRE_SPINE].bytes_per_s[TC_SEND] == 6e9,
     "... the rest");
  tc_cluster_done(&again);
  ok(!again.device.sample && again.device.n_samples == 0 && again.device.cap_samples == 0,
     "... until it is done with");
  is_int(tc_cluster_write(&k, "./no/folder", "-o", &err), TC_EUSER, "no such folder");
  is_str(err.text, "-o ./no/folder can't be written: there is no folder ./no", "... is reported");
  is_int(tc_cluster_write(&k, "/dev/null", "-o", &err), TC_EUSER, "a device");
  is_str(err.text, "-o /dev/null is a device, not a file that can be made; give another name", "... is reported");
  tc_cluster_done(&k);
}

/* ---- links --------------------------------------------------------------------------------- */

/* Two members on each of two nodes: the rate is that of a member's bytes between nodes, which are half of the array by nodes,
 * and all of it in an exchange of each with each. */
static void test_shared_links(void)
{
  static const struct { const char *algorithm; double part; } rows[] = { { "nodes", 0.5 }, { "exchange", 1 } };
  for (int i = 0; i < 2; i++) {
    char text[600] = "[";
    struct tc_link l = { .latency_s = { 0 } };
    struct tc_err err = { 0 };
    for (int k = 1; k < 4; k++)
      tc_text_add(text, sizeof text, "%s{\"op\": \"all_reduce\", \"ranks\": 4, \"nodes\": 2, \"size\": %d, \"time_us\": %.9f, "
                  "\"algorithm\": \"%s\"}", k > 1 ? "," : "", k * 40000, 2 * 10 + rows[i].part * k * 40000 * 1e-3,
                  rows[i].algorithm);
    tc_text_add(text, sizeof text, "]");
    put(text);
    is_int(tc_links_read(&l, path, &err), 0, "all_reduce by %s, two nodes of two: %s", rows[i].algorithm, err.text);
    near_f(l.latency_s[TC_ALL_REDUCE], 10e-6, 1e-6, "... its latency");
    near_f(l.bytes_per_s[TC_ALL_REDUCE], 1e9, 1e-6, "... its rate");
  }
}

static void takes(const struct tc_link *l, double bytes, double us)
{
  const double s = tc_link_seconds(l, TC_ALL_REDUCE, 1, bytes);
  ok(fabs(s - us * 1e-6) < 1e-12, "... %g bytes take %g us: %g", bytes, us, s * 1e6);
}

/* Two ranks: 10, 20 and 40 kB in 100, 300 and 500 us; what is between, before and beyond. */
static void test_measured_sizes(void)
{
  struct tc_link l = { .latency_s = { 0 } };
  struct tc_err err = { 0 };
  put("[{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": 20000, \"time_us\": 300},"
      "{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": 40000, \"time_us\": 400},"
      "{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": 10000, \"time_us\": 100},"
      "{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": -5, \"time_us\": 100},"
      "{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": 40000, \"time_us\": 550},"
      "{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": 40000, \"time_us\": 550}]");
  is_int(tc_links_read(&l, path, &err), 0, "sizes that are on no line: %s", err.text);
  ok(l.latency_s[TC_ALL_REDUCE] == 0, "... of a line that begins at 0");
  takes(&l, 5e3, 50);
  takes(&l, 10e3, 100);
  takes(&l, 15e3, 200);
  takes(&l, 30e3, 400);
  takes(&l, 80e3, 500 + 40e9 / l.bytes_per_s[TC_ALL_REDUCE]);
  l.latency_s[TC_ALL_REDUCE] = 7e-6;
  ok(fabs(tc_link_seconds(&l, TC_ALL_REDUCE, 3, 30e3) - 421e-6) < 1e-12, "... each round takes its latency");
  put("[{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": 10000, \"time_us\": 100},"
      "{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": 20000, \"time_us\": 500},"
      "{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": 40000, \"time_us\": 400},"
      "{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": 80000, \"time_us\": 900}]");
  is_int(tc_links_read(&l, path, &err), 0, "a larger size in less time: %s", err.text);
  takes(&l, 20e3, 450);
  takes(&l, 40e3, 450);
}

/* On two nodes of two ranks each, the ring's sends leave a node in one turn, and send is within nodes. */
static void test_shared_sends(void)
{
  struct tc_link l = { .latency_s = { 0 } };
  struct tc_err err = { 0 };
  put("[{\"op\": \"send_recv\", \"ranks\": 4, \"nodes\": 2, \"size\": 20000, \"time_us\": 30},"
      "{\"op\": \"send_recv\", \"ranks\": 4, \"nodes\": 2, \"size\": 40000, \"time_us\": 50},"
      "{\"op\": \"send\", \"ranks\": 4, \"nodes\": 2, \"size\": 20000, \"time_us\": 1},"
      "{\"op\": \"send\", \"ranks\": 4, \"nodes\": 2, \"size\": 40000, \"time_us\": 2}]");
  is_int(tc_links_read(&l, path, &err), 0, "sends of two nodes of two: %s", err.text);
  near_f(l.latency_s[TC_SEND], 10e-6, 1e-6, "... their latency");
  near_f(l.bytes_per_s[TC_RECV], 1e9, 1e-6, "... their rate");
}

/* A wire that takes 10 us and 1e9 bytes a second each round; `more` beside, which must not count. */
static void test_links(void)
{
  static const struct {
    const char *op;
    int coll, ranks;
    double turns;
  } rows[] = { { "all_reduce", TC_ALL_REDUCE, 2, 1 }, { "all_reduce", TC_ALL_REDUCE, 8, 1 },
               { "all_gather", TC_ALL_GATHER, 3, 1 }, { "reduce_scatter", TC_REDUCE_SCATTER, 5, 1 },
               { "broadcast", TC_BROADCAST, 4, 1 },   { "all_to_all", TC_ALL_TO_ALL, 4, 1 },
               { "send_recv", TC_SEND, 4, 2 },        { "send_recv", TC_SEND, 5, 3 },
               { "gather", TC_GATHER, 4, 1 },        { "send", TC_SEND, 4, 1 },
               { "send", TC_SEND, 5, 1 } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char text[2000] = "[{\"op\": \"nothing\", \"ranks\": 2, \"size\": 1, \"time_us\": 1}, "
                      "{\"ranks\": 2}, 5,\n"
                      "{\"op\": \"all_reduce\", \"ranks\": 1, \"size\": 7, \"time_us\": 5000}, "
                      "{\"op\": \"all_reduce\", \"ranks\": 2, \"size\": 7, \"time_us\": 0}, "
                      "{\"op\": \"scatter\", \"ranks\": 2, \"size\": 7, \"time_us\": 3}";
    struct tc_link l = { .latency_s = { [TC_SCATTER] = 4 }, .bytes_per_s = { [TC_SCATTER] = 5 } };
    struct tc_err err = { 0 };
    const int n = rows[i].coll == TC_SEND ? 2 : rows[i].ranks;
    const double rounds = ceil(log2(n));
    for (int k = 0; k < 4; k++) {
      const double size = 1e4 * (1 + k * k);
      const double us =
          rows[i].turns * (10 * rounds + tc_coll_busiest(tc_algorithm_direct(rows[i].coll), rows[i].coll, n, n, size) * 1e-3);
      tc_text_add(text, sizeof text,
                  ",\n{\"op\": \"%s\", \"ranks\": %d, \"size\": %.0f, "
                  "\"time_us\": %.9f%s",
                  rows[i].op, rows[i].ranks, size, k == 2 ? 9e9 : us, k == 2 ? "" : "}");
      if (k == 2)
        tc_text_add(text, sizeof text, ", \"median_us\": %.9f}", us); /* which is better */
    }
    tc_text_add(text, sizeof text, "]");
    put(text);
    is_int(tc_links_read(&l, path, &err), 0, "%s of %d: %s", rows[i].op, rows[i].ranks, err.text);
    near_f(l.latency_s[rows[i].coll], 10e-6, 1e-6, "... its latency");
    near_f(l.bytes_per_s[rows[i].coll], 1e9, 1e-6, "... its rate");
    ok(l.latency_s[TC_RECV] == l.latency_s[TC_SEND] &&
           l.bytes_per_s[TC_RECV] == l.bytes_per_s[TC_SEND],
       "... a receive is as a send");
    ok(l.latency_s[TC_SCATTER] == 4 && l.bytes_per_s[TC_SCATTER] == 5,
       "... what has one size stays");
  }
  static const struct {
    const char *text, *why;
  } bad[] = {
    { "[]", " has no collective with two sizes: write it with tercio comm --op all --json" },
    { "[{\"op\": \"gather\", \"ranks\": 2, \"size\": 1, \"time_us\": 1},{\"op\": \"gather\", "
      "\"ranks\": 2, \"size\": 1, "
      "\"time_us\": 1}]",
      " has no collective with two sizes: write it with tercio comm --op all "
      "--json" },
    { "[{\"op\": \"gather\", \"ranks\": 2, \"size\": 1, \"time_us\": 9},{\"op\": \"gather\", "
      "\"ranks\": 2, \"size\": 5, "
      "\"time_us\": 2}]",
      " has no collective with two sizes: write it with tercio comm --op all "
      "--json" },
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct tc_link l = { .latency_s = { [TC_SEND] = 4 }, .bytes_per_s = { [TC_SEND] = 5 } };
    struct tc_err err = { 0 };
    put(bad[i].text);
    is_int(tc_links_read(&l, path, &err), TC_EUSER, "links that say nothing");
    char *want = tc_sprintf("%s%s", path, bad[i].why);
    is_str(err.text, want, "... are refused");
    free(want);
    ok(l.latency_s[TC_RECV] == 0 && l.bytes_per_s[TC_SEND] == 5, "... and change nothing");
  }
  put("{");
  struct tc_link l = { .latency_s = { 0 } };
  struct tc_err err = { 0 };
  is_int(tc_links_read(&l, path, &err), TC_EUSER, "no JSON");
  char *want = tc_sprintf("output of tercio comm --json %s is not JSON: line 1: ", path);
  ok(!strncmp(err.text, want, strlen(want)), "... is refused: %s", err.text);
  free(want);
}

int main(void)
{
  int fd = mkstemp(path);
  if (fd < 0) return 1;
  close(fd);
  test_names();
  test_table();
  test_write();
  test_links();
  test_shared_links();
  test_shared_sends();
  test_measured_sizes();
  unlink(path);
  return done_testing();
}
