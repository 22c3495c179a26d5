/* t_gpus.c - which GPUs a process sees and how far they are, on made-up nodes (box.h); what is
 * hidden, permuted, named by UUID or nowhere. The driver's library is not here: m_place has one. */
#include "src/launch/gpus.c"
#include "tests/unit/tap.h"

#include "tests/unit/box.h"

static const struct box dgx = { 2, 1, 4, 8, { 0, 0, 0, 0, 1, 1, 1, 1 } };
static char root[] = "/var/tmp/t_gpus.XXXXXX";

static void test_driver_file(void)
{
  static const char text[] = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 41\n"
                             "GPU UUID: \t GPU-0123abcd-1\nBus Location: \t 0000:0a:00.0\n"
                             "Device Minor: \t 5\nGPU Excluded:\t No\n";
  struct tc_dev d = { .numa = -1 };
  int minor = -1;
  char name[] = "t_gpus.XXXXXX";
  int fd = mkstemp(name);
  ok(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1, "a driver's file");
  close(fd);
  read_driver_file(name, &d, &minor);
  unlink(name);
  is_str(d.name, "NVIDIA H100 80GB HBM3", "  model");
  is_str(d.uuid, "GPU-0123abcd-1", "  UUID");
  is_int(minor, 5, "  minor");
}

static void test_driver_lines(void)
{
  static const struct { const char *text, *name, *uuid; int minor; } rows[] = {
    { "Model:X\n", "X", "", -1 }, { "Model: A: B\nModel:", "", "", -1 },
        { "Model\nDevice Minor: 0", "", "", 0 },
    { "GPU UUID: GPU-?\nDevice Minor: 12\n", "", "", 12 }, { "GPU UUID: \t GPU-1", "", "GPU-1",
        -1 },
    { "model: X\nUUID: Y\nMinor: 3\n\n: 4\n", "", "", -1 }, { "", "", "", -1 },
    { "Model: 0123456789012345678901234567890123456789012345678901234567890123\n",
      "012345678901234567890123456789012345678901234567890123456789012", "", -1 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_dev d = { .numa = 7 };
    int minor = -1;
    char name[] = "t_gpus.XXXXXX";
    int fd = mkstemp(name);
    if (fd < 0 || write(fd, rows[i].text, strlen(rows[i].text)) < 0) abort();
    close(fd);
    read_driver_file(name, &d, &minor);
    unlink(name);
    is_str(d.name, rows[i].name, "a driver's file \"%.20s\": model", rows[i].text);
    is_str(d.uuid, rows[i].uuid, "  UUID");
    is_int(minor, rows[i].minor, "  minor");
    is_int(d.numa, 7, "  and nothing else");
  }
  struct tc_dev d = { .name = "as it was", .numa = 3 };
  int minor = 5;
  read_driver_file("there/is/none", &d, &minor);
  ok(!strcmp(d.name, "as it was") && minor == 5, "no driver's file: nothing changes");
}

static void test_counts(void)
{
  static const struct { const char *list; int want; } rows[] = {
    { "", 0 }, { "0", 1 }, { "7", 1 }, { "0,1", 2 }, { "0-3", 4 }, { "3-3", 1 }, { "3-2", 1 },
        { "0-3,8", 5 },
    { "8,0-3", 5 }, { "0-63", 64 }, { "0-64", 1 }, { "1-64", 64 }, { "0-61,5", 63 }, { "0-62,5,6",
        64 },
    { "a", 1 }, { "a,b,c", 3 }, { "a-3", 1 }, { "2-a", 1 }, { ",", 1 }, { ",,", 2 }, { "4,", 1 } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    is_int(count_ids(rows[i].list), rows[i].want, "GPUs in a list \"%s\"", rows[i].list);
}

/* What an entry gives: a GPU of the two, or what is known of one that is not there. */
static void test_entries(void)
{
  const struct tc_dev gpu[3] = {
    { .name = "A", .uuid = "GPU-10ab", .pci = "0000:10:00.0", .numa = 0, .distance = -1,
        .n_links = -1 },
    { .name = "B", .uuid = "GPU-20ab", .pci = "0000:20:00.0", .numa = 1, .distance = -1,
        .n_links = -1 },
    { .name = "none of the two", .uuid = "GPU-30ab" } };
  static const struct { const char *token; bool slurm, want; const char *name,
      *uuid; int numa; } rows[] = {
    { "0", false, true, "A", "GPU-10ab", 0 }, { "1", true, true, "B", "GPU-20ab", 1 },
    { "2", false, false, "gpu2", "", -1 }, { "2", true, true, "gpu2", "", -1 },
    { "-1", true, false, "", "", -1 }, { "-0", false, true, "A", "GPU-10ab", 0 },
    { "1x", true, false, "", "", -1 }, { "x", true, false, "", "", -1 }, { "", true, false, "", "",
        -1 },
    { "GPU-", false, true, "A", "GPU-10ab", 0 }, { "GPU-2", false, true, "B", "GPU-20ab", 1 },
    { "GPU-20ab", false, true, "B", "GPU-20ab", 1 }, { "GPU-20abc", false, true, "GPU-20abc",
        "GPU-20abc", -1 },
    { "GPU-30ab", false, true, "GPU-30ab", "GPU-30ab", -1 },
    { "gpu-2", false, false, "", "", -1 }, { "MIG-2", false, true, "MIG-2", "MIG-2", -1 },
    { "NIG-2", true, false, "", "", -1 } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_dev d = { .numa = 9 };
    is_int(visible_entry(rows[i].token, gpu, 2, rows[i].slurm, &d), rows[i].want, "entry \"%s\"%s",
        rows[i].token,
           rows[i].slurm ? " under Slurm" : "");
    is_str(d.name, rows[i].name, "  name");
    is_str(d.uuid, rows[i].uuid, "  UUID");
    ok(d.numa == rows[i].numa && d.distance == -1 && d.n_links == -1 && !d.memory_bytes,
        "  the rest");
  }
}

/* Without the driver's files GPUs and device files are matched in order, if there are as many. */
static void test_by_order(void)
{
  static const struct box box = { 2, 1, 4, 3, { 0, 1, -1 } };
  static const int order[3] = { 0, 1, 4 };
  static const struct { int files; const char *sees, *name; int numa[4]; } rows[] = {
    { 3, "10 20 30", "gpu0 gpu1 gpu4", { 0, 1, -1 } },
    { 4, "- - - -", "gpu0 gpu1 gpu4 gpu9", { -1, -1, -1, -1 } } };
  char folder[64], path[128];
  hwloc_topology_t topo;
  struct tc_visible *v = malloc(sizeof *v);
  snprintf(folder, sizeof folder, "%s/order", root);
  box_load(&topo, &box);
  box_files(&box, folder, order, true);
  snprintf(path, sizeof path, "rm -r %s/proc", folder);
  ok(system(path) == 0, "no driver's files");
  unsetenv("CUDA_VISIBLE_DEVICES");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char sees[64] = "", name[64] = "";
    bool right = true;
    snprintf(path, sizeof path, "%s/dev/nvidia9", folder);
    FILE *f = rows[i].files == 4 ? fopen(path, "w") : NULL;
    if (f) fclose(f);
    tc_gpus_look(v, topo, folder);
    for (int k = 0; k < v->n; k++) {
      snprintf(sees + strlen(sees), sizeof sees - strlen(sees), "%s%.2s", k ? " " : "",
               *v->dev[k].pci ? v->dev[k].pci + 5 : "-");
      snprintf(name + strlen(name), sizeof name - strlen(name), "%s%.6s", k ? " " : "",
          v->dev[k].name);
      right &= v->dev[k].numa == rows[i].numa[k] && !*v->dev[k].uuid;
    }
    is_str(sees, rows[i].sees, "%d device files, 3 GPUs: buses", rows[i].files);
    is_str(name, rows[i].name, "  names");
    ok(right && v->n == rows[i].files && v->n_node == rows[i].files, "  NUMA nodes, number");
  }
  setenv("SLURM_GPUS_ON_NODE", "-3", 1);
  setenv("SLURM_STEP_GPUS", "0,1", 1);
  tc_gpus_look(v, topo, folder);
  is_int(v->n_node, 4, "a node has no fewer GPUs than are seen");
  setenv("CUDA_VISIBLE_DEVICES", "1,6", 1);
  tc_gpus_look(v, topo, folder);
  ok(v->n == 2 && v->n_node == 2, "two, one of them not here, of two");
  is_str(v->dev[1].name, "gpu6", "  by its index");
  char many[300] = "0";
  for (int i = 1; i < TC_GPUS_MAX + 6; i++)
    snprintf(many + strlen(many), sizeof many - strlen(many), ",%d", i);
  setenv("CUDA_VISIBLE_DEVICES", many, 1);
  tc_gpus_look(v, topo, folder);
  is_int(v->n, TC_GPUS_MAX, "of a longer list, as many as there is room for");
  setenv("CUDA_VISIBLE_DEVICES", "1,6", 1);
  unsetenv("SLURM_GPUS_ON_NODE");
  unsetenv("SLURM_STEP_GPUS");
  tc_gpus_look(v, topo, folder);
  ok(v->n == 1 && v->n_node == 4, "  which counts under Slurm alone");
  unsetenv("CUDA_VISIBLE_DEVICES");
  free(v);
  hwloc_topology_destroy(topo);
}

static void test_visible(void)
{
  static const int order[8] = { 3, 2, 1, 0, 7, 6, 5, 4 };     /* of the device files */
  static const struct { const char *list, *sees, *what; } rows[] = {
    { NULL, "10 20 30 40 50 60 70 80", "all, by bus whatever the device files' order" },
    { "0,1", "10 20", "two" },
    { "7,0,3", "80 10 40", "permuted" },
    { "2,-1,3", "30", "up to what is none" },
    { "1,8,2", "20", "up to what is not there" },
    { "GPU-30:00.0,GPU-10:00.0", "30 10", "by UUID" },
    { "GPU-4,0", "40 10", "by a prefix" },
    { "", "", "none" },
    { "NoDevFiles", "", "what Slurm says for none" },
  };
  hwloc_topology_t topo;
  struct tc_visible *v = malloc(sizeof *v);
  box_load(&topo, &dgx);
  box_files(&dgx, root, order, true);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char sees[128] = "";
    bool right = true;
    if (rows[i].list) setenv("CUDA_VISIBLE_DEVICES", rows[i].list, 1);
    else unsetenv("CUDA_VISIBLE_DEVICES");
    tc_gpus_look(v, topo, root);
    for (int k = 0; k < v->n; k++) {
      snprintf(sees + strlen(sees), sizeof sees - strlen(sees), "%s%.2s", k ? " " : "",
               v->dev[k].pci + 5);
      right &= v->dev[k].numa == (v->dev[k].pci[5] >= '5') &&
               !strcmp(v->dev[k].name, "Some GPU") && !strcmp(v->dev[k].uuid + 4, v->dev[k].pci + 5);
    }
    is_str(sees, rows[i].sees, "CUDA_VISIBLE_DEVICES: %s", rows[i].what);
    ok(right && v->n_node == 8, "  NUMA, name, UUID; 8 on the node");
  }
  /* MIG ids are taken as they are: which GPU each is a part of is unknown here. */
  setenv("CUDA_VISIBLE_DEVICES", "MIG-1234", 1);
  tc_gpus_look(v, topo, root);
  ok(v->n == 1 && !v->dev[0].pci[0] && v->dev[0].numa == -1, "a MIG id");
  is_str(v->dev[0].uuid, "MIG-1234", "  is kept");
  unsetenv("CUDA_VISIBLE_DEVICES");
  free(v);
  hwloc_topology_destroy(topo);
}

/* A cgroup lets one file be opened; root may open all, so the file is a link to nothing. */
static void test_hidden(void)
{
  char path[256];
  hwloc_topology_t topo;
  struct tc_visible *v = malloc(sizeof *v);
  box_load(&topo, &dgx);
  for (int m = 0; m < 8; m++) {
    if (m == 6) continue;                        /* GPU 5, bus 60 */
    snprintf(path, sizeof path, "%s/dev/nvidia%d", root, m);
    unlink(path);
    if (symlink("nvidia0", path) != 0) abort();  /* ELOOP or ENOENT: not to be opened */
  }
  setenv("CUDA_VISIBLE_DEVICES", "0", 1);        /* as Slurm numbers what the cgroup leaves */
  setenv("SLURM_GPUS_ON_NODE", "8", 1);
  tc_gpus_look(v, topo, root);
  is_int(v->n, 1, "a cgroup leaves one");
  is_str(v->dev[0].pci, "0000:60:00.0", "  which is index 0");
  is_int(v->n_node, 8, "  of eight");
  unsetenv("SLURM_GPUS_ON_NODE");
  static const struct { const char *step, *job; int want; } ids[] = {
    { "0-3,8", "0", 5 }, { "60-63", NULL, 4 }, { NULL, "1,3,5", 3 }, { "a100-x,7", NULL, 2 },
    { "3-1", NULL, 1 },
    { "0-63", NULL, 64 }, { "0-9999", NULL, 1 }, { "0-62,70-75", NULL, 64 }, { "", NULL, 1 } };
  for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
    if (ids[i].step) setenv("SLURM_STEP_GPUS", ids[i].step, 1);
    if (ids[i].job) setenv("SLURM_JOB_GPUS", ids[i].job, 1);
    tc_gpus_look(v, topo, root);
    is_int(v->n_node, ids[i].want, "  GPUs of the node by Slurm's list %s",
           ids[i].step ? ids[i].step : ids[i].job);
    unsetenv("SLURM_STEP_GPUS");
    unsetenv("SLURM_JOB_GPUS");
  }
  unsetenv("CUDA_VISIBLE_DEVICES");
  free(v);
  hwloc_topology_destroy(topo);
}

static void test_distance(void)
{
  static const struct {
    struct box box;
    const char *cpus;
    int want[4];
    const char *what;
  } rows[] = {
    { { 2, 1, 4, 3, { 0, 1, -1 } }, "0-3", { 0, 100, 50 }, "the first socket" },
    { { 2, 1, 4, 3, { 0, 1, -1 } }, "6", { 100, 0, 50 }, "a CPU of the second" },
    { { 2, 1, 4, 3, { 0, 1, -1 } }, "0-5", { 33, 66, 50 }, "CPUs of both" },
    { { -2, 1, 4, 2, { 0, 1 } }, "0-5", { 33, 66 }, "  where packages are of one die each" },
    { { 2, 1, 4, 3, { 0, 1, -1 } }, "0-7", { 0, 0, 0 }, "the whole machine" },
    { { 1, 1, 4, 2, { 0, -1 } }, "1", { 0, 0 }, "one NUMA node" },
    { { 2, 2, 2, 4, { 0, 1, 2, 3 } }, "0-1", { 0, 100, 200, 200 }, "two NUMA nodes a socket" },
    { { 2, 2, 2, 4, { 0, 1, 2, 3 } }, "0-3", { 50, 50, 200, 200 }, "  a whole socket" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    hwloc_topology_t topo;
    hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
    box_load(&topo, &rows[i].box);
    hwloc_bitmap_list_sscanf(cpus, rows[i].cpus);
    for (int g = 0; g < rows[i].box.n_gpus; g++) {
      struct tc_dev d = { .numa = -1 };
      box_pci(d.pci, g);
      is_int(tc_gpus_distance(topo, &d, cpus), rows[i].want[g], "%s: distance of GPU %d",
             rows[i].what, g);
    }
    hwloc_bitmap_free(cpus);
    hwloc_topology_destroy(topo);
  }
}

static void test_links(void)
{
  struct tc_dev a = { .pci = "0000:10:00.0", .n_links = 4, .peer = { 0x2000, 0x2000, 0x3000 } };
  struct tc_dev b = { .pci = "0000:20:00.0", .n_links = 2, .peer = { 0x1000, 0x1000 } };
  struct tc_dev c = { .pci = "00000000:30:00.0", .n_links = 18, .n_switched = 18 };
  struct tc_dev d = { .pci = "0000:40:00.0", .n_links = 18, .n_switched = 16 }, e = { .n_links = -1 };
  is_int((int)tc_gpus_address("00000000:1B:00.0"), 0x1b00, "an address as the driver writes it");
  is_int((int)tc_gpus_address("gpu0"), 0, "no address");
  is_int((int64_t)tc_gpus_address("000a:12:1b.5"), 0xa12dd, "an address with all its parts");
  is_int((int64_t)tc_gpus_address("12345:ff:1f.7"), 0x12345ffff, "the largest parts");
  is_int((int64_t)tc_gpus_address("00000000:1B:00"), 0, "a part is missing");
  is_int(tc_gpus_links(&a, &b), 2, "links of a pair");
  is_int(tc_gpus_links(&a, &c), 1, "one link");
  is_int(tc_gpus_links(&c, &d), 16, "through switches");
  is_int(tc_gpus_links(&b, &d), 0, "none");
  is_int(tc_gpus_links(&a, &e), -1, "unknown");
  is_int(tc_gpus_links(&e, &a), -1, "... in either order");
  struct tc_dev last = { .n_links = 1, .n_switched = 3 }, none = { .pci = "" };
  last.peer[TC_NVLINKS_MAX - 1] = 0x1000;
  is_int(tc_gpus_links(&last, &a), 1, "the last link");
  is_int(tc_gpus_links(&none, &none), 0, "none to what has no address");
}

int main(void)
{
  static const char *const others[] = { "CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE",
                                        "SLURM_STEP_GPUS", "SLURM_JOB_GPUS" };
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) unsetenv(others[i]);
  if (!mkdtemp(root)) return 1;
  test_driver_file();
  test_driver_lines();
  test_counts();
  test_entries();
  test_by_order();
  test_visible();
  test_hidden();
  test_distance();
  test_links();
  char *clean = tc_sprintf("rm -rf %s", root);
  ok(system(clean) == 0, "cleaned up");
  free(clean);
  return done_testing();
}
