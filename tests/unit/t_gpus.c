/* t_gpus.c - which GPUs a process sees and how far they are, on made-up nodes (box.h); what is
 * hidden, permuted, named by UUID or nowhere. The driver's library is not here: m_place has one. */
#include "src/gpus.c"
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
  /* MIG ids are taken as they are: nobody here knows whose parts they are. */
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
    { "0-3,8", "0", 5 }, { "60-63", NULL, 4 }, { NULL, "1,3,5", 3 }, { "a100-x,7", NULL, 2 }, { "3-1", NULL, 1 },
    { "0-63", NULL, 64 }, { "0-9999", NULL, 1 }, { "0-62,70-75", NULL, 64 }, { "", NULL, 1 } };
  for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
    if (ids[i].step) setenv("SLURM_STEP_GPUS", ids[i].step, 1);
    if (ids[i].job) setenv("SLURM_JOB_GPUS", ids[i].job, 1);
    tc_gpus_look(v, topo, root);
    is_int(v->n_node, ids[i].want, "  GPUs of the node by Slurm's list %s", ids[i].step ? ids[i].step : ids[i].job);
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
  is_int(tc_gpus_links(&a, &b), 2, "links of a pair");
  is_int(tc_gpus_links(&a, &c), 1, "one link");
  is_int(tc_gpus_links(&c, &d), 16, "through switches");
  is_int(tc_gpus_links(&b, &d), 0, "none");
  is_int(tc_gpus_links(&a, &e), -1, "unknown");
}

int main(void)
{
  static const char *const others[] = { "CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE",
                                        "SLURM_STEP_GPUS", "SLURM_JOB_GPUS" };
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) unsetenv(others[i]);
  if (!mkdtemp(root)) return 1;
  test_driver_file();
  test_visible();
  test_hidden();
  test_distance();
  test_links();
  char *clean = tc_sprintf("rm -rf %s", root);
  ok(system(clean) == 0, "cleaned up");
  free(clean);
  return done_testing();
}
