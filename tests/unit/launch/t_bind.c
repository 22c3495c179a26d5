/* t_bind.c - which rank of a node gets which GPU and which CPUs, on made-up nodes (box.h). What is
 * given out is compared with tables, and on random nodes with the best of all assignments. */
#include "src/launch/ranks.c"
#include "tests/unit/tap.h"

#include "tests/unit/box.h"

/* ---- the assignment by itself ---------------------------------------------------------- */

/* Small numbers that depend on the seed alone. */
static int roll(uint32_t *seed, int below)
{
  *seed = *seed * 1664525u + 1013904223u;
  return (int)((*seed >> 8) % (uint32_t)below);
}

struct worth { int crowd, distance; };

/* Pairs of ranks on one GPU, and the sum of distances; -1: a rank is where it sees nothing. */
static struct worth worth_of(const int32_t *chosen, const int32_t *cost, int n, int n_gpus)
{
  struct worth w = { 0, 0 };
  for (int r = 0; r < n; r++) {
    int sees = 0;
    for (int g = 0; g < n_gpus; g++) sees += cost[r * n_gpus + g] >= 0;
    if (chosen[r] < 0 && sees == 0) continue;
    if (chosen[r] < 0 || cost[r * n_gpus + chosen[r]] < 0) return (struct worth){ -1, -1 };
    w.distance += cost[r * n_gpus + chosen[r]];
    for (int q = 0; q < r; q++) w.crowd += chosen[q] == chosen[r];
  }
  return w;
}

static struct worth best_of_all(const int32_t *cost, int n, int n_gpus)
{
  struct worth best = { INT_MAX, INT_MAX };
  int32_t chosen[6];
  int all = 1;
  for (int r = 0; r < n; r++) all *= n_gpus + 1;
  for (int code = 0; code < all; code++) {
    for (int r = 0, c = code; r < n; r++, c /= n_gpus + 1) chosen[r] = c % (n_gpus + 1) - 1;
    struct worth w = worth_of(chosen, cost, n, n_gpus);
    if (w.crowd < 0) continue;
    if (w.crowd < best.crowd || (w.crowd == best.crowd && w.distance < best.distance)) best = w;
  }
  return best;
}

static void test_best(void)
{
  int bad = 0, cases = 0;
  for (uint32_t k = 1; k <= 400; k++) {
    uint32_t seed = k;
    int32_t cost[6 * 6], chosen[6], again[6];
    const int n = 1 + roll(&seed, 5), n_gpus = 1 + roll(&seed, 5), hidden = roll(&seed, 3);
    for (int i = 0; i < n * n_gpus; i++)
      cost[i] = roll(&seed, 6) < hidden ? -1 : 50 * roll(&seed, 4 + (int)k % 3);
    tc_bind_gpus(chosen, cost, n, n_gpus);
    tc_bind_gpus(again, cost, n, n_gpus);
    struct worth got = worth_of(chosen, cost, n, n_gpus), best = best_of_all(cost, n, n_gpus);
    cases++;
    if (got.crowd == best.crowd && got.distance == best.distance &&
        !memcmp(chosen, again, (size_t)n * sizeof *chosen)) continue;
    if (bad++ == 0)
      printf("# case %u: %d ranks, %d GPUs: crowd %d, distance %d; best %d, %d\n", (unsigned)k, n,
             n_gpus, got.crowd, got.distance, best.crowd, best.distance);
  }
  is_int(bad, 0, "of %d random nodes all get the best of all assignments", cases);
}

/* Large nodes: no rank alone, and no two by a swap, would be better off. */
static void test_swaps(void)
{
  int bad = 0;
  for (uint32_t k = 1; k <= 60; k++) {
    uint32_t seed = 77 * k;
    const int n_gpus = 8 + roll(&seed, 9), n = 1 + roll(&seed, n_gpus);
    int32_t cost[16 * 16], chosen[16];
    int used[16] = { 0 };
    for (int i = 0; i < n * n_gpus; i++) cost[i] = 100 * roll(&seed, 3);
    tc_bind_gpus(chosen, cost, n, n_gpus);
    for (int r = 0; r < n; r++) bad += used[chosen[r]]++ > 0;
    for (int r = 0; r < n; r++) {
      const int32_t *c = cost + r * n_gpus;
      for (int g = 0; g < n_gpus; g++) bad += !used[g] && c[g] < c[chosen[r]];
      for (int q = 0; q < r; q++) {
        const int32_t *d = cost + q * n_gpus;
        bad += c[chosen[q]] + d[chosen[r]] < c[chosen[r]] + d[chosen[q]];
      }
    }
  }
  is_int(bad, 0, "up to 16 ranks: a GPU each, no swap brings them nearer");
}

static void test_ties(void)
{
  static const struct {
    int n, n_gpus, rank_numa[8], gpu_numa[8], want[8];
    const char *what;
  } rows[] = {
    { 4, 4, { 0, 0, 1, 1 }, { 0, 0, 1, 1 }, { 0, 1, 2, 3 }, "in order" },
    { 4, 4, { 1, 1, 0, 0 }, { 0, 0, 1, 1 }, { 2, 3, 0, 1 }, "the other way round" },
    { 4, 4, { 0, 1, 0, 1 }, { 0, 0, 1, 1 }, { 0, 2, 1, 3 }, "ranks dealt over NUMA nodes" },
    { 4, 4, { 1, 1, 1, 1 }, { 0, 0, 1, 1 }, { 0, 1, 2, 3 }, "more ranks than near GPUs" },
    { 4, 2, { 1, 1, 0, 0 }, { 0, 1 }, { 1, 1, 0, 0 }, "two ranks a GPU" },
    { 3, 2, { 0, 0, 0 }, { 0, 0 }, { 0, 1, 0 }, "three on two" },
    { 3, 1, { 0, 1, 1 }, { 0 }, { 0, 0, 0 }, "one GPU" },
    { 2, 8, { 0, 1 }, { 0, 0, 0, 0, 1, 1, 1, 1 }, { 0, 4 }, "GPUs to spare" },
    { 2, 0, { 0, 1 }, { 0 }, { -1, -1 }, "none" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int32_t cost[64], chosen[8];
    for (int r = 0; r < rows[i].n; r++)
      for (int g = 0; g < rows[i].n_gpus; g++)
        cost[r * rows[i].n_gpus + g] = rows[i].rank_numa[r] == rows[i].gpu_numa[g] ? 0 : 100;
    tc_bind_gpus(chosen, cost, rows[i].n, rows[i].n_gpus);
    for (int r = 0; r < rows[i].n; r++)
      is_int(chosen[r], rows[i].want[r], "%s: GPU of rank %d", rows[i].what, r);
  }
}

/* ---- ranks of a node ------------------------------------------------------------------- */

static const struct box dgx = { 2, 1, 4, 8, { 0, 0, 0, 0, 1, 1, 1, 1 } };
static const struct box half = { 2, 1, 4, 4, { 0, 0, 1, 1 } };
static const struct box odd = { 2, 1, 4, 3, { 1, -1, 0 } };
static const struct box lame = { 2, 1, 4, 4, { 0, 0, 0, 0 } };

/* What rank `r`, bound to cpus and with this CUDA_VISIBLE_DEVICES, would say and know. */
static void look_as(struct self *s, hwloc_topology_t topo, const char *root, const char *cpus,
                    const char *list)
{
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  memset(s, 0, sizeof *s);
  s->info.device = s->info.dev.numa = -1;
  s->topo = topo;
  hwloc_bitmap_list_sscanf(set, cpus);
  set_cpus(topo, set, &s->info);
  if (list) setenv("CUDA_VISIBLE_DEVICES", list, 1);
  else unsetenv("CUDA_VISIBLE_DEVICES");
  tc_gpus_look(&s->gpus, topo, root);
  s->info.n_visible = s->gpus.n;
  for (int i = 0; i < s->gpus.n; i++)
    s->gpus.dev[i].distance = tc_gpus_distance(topo, &s->gpus.dev[i], set);
  hwloc_bitmap_free(set);
}

static const struct {
  const struct box *box;
  int n;
  const char *cpus[8], *list[8];   /* by rank; a list NULL: all; cpus NULL: as the rank before */
  const char *bus, *index;         /* of each rank's GPU, in order */
  const char *part;                /* of its CPUs */
  const char *what;
} nodes[] = {
  { &dgx, 8, { "4-7", "0-3", "4-7", "0-3", "4-7", "4-7", "0-3", "0-3" }, { NULL },
    "50 10 60 20 70 80 30 40", "4 0 5 1 6 7 2 3", "4-7 0-3 4-7 0-3 4-7 4-7 0-3 0-3",
    "bound to sockets, in odd order" },
  { &dgx, 8, { "0-7" }, { NULL }, "10 20 30 40 50 60 70 80", "0 1 2 3 4 5 6 7", "0 1 2 3 4 5 6 7",
    "not bound" },
  { &dgx, 4, { "0-7" }, { NULL }, "10 20 30 40", "0 1 2 3", "0 1 2 3", "4 ranks on 8 GPUs, not bound" },
  { &dgx, 4, { "0-3", "0-3", "4-7", "4-7" }, { NULL }, "10 20 50 60", "0 1 4 5", "0-3 0-3 4-7 4-7",
    "4 ranks on 8 GPUs, two a socket" },
  { &half, 8, { "0-7" }, { NULL }, "10 20 30 40 10 20 30 40", "0 1 2 3 0 1 2 3", "0 1 4 5 2 3 6 7",
    "8 ranks on 4 GPUs" },
  { &half, 4, { "0-7" }, { "3,2,1,0", "3,2,1,0", "3,2,1,0", "3,2,1,0" }, "40 30 20 10", "0 1 2 3",
    "4-5 6-7 0-1 2-3", "CUDA_VISIBLE_DEVICES the other way round" },
  { &half, 4, { "0-3", "0-3", "4-7", "4-7" }, { "3,2,1,0", "3,2,1,0", "3,2,1,0", "3,2,1,0" },
    "20 10 40 30", "2 3 0 1", "0-3 0-3 4-7 4-7", "  and ranks bound" },
  { &half, 4, { "0-7" }, { "2", "0", "3", "1" }, "30 10 40 20", "0 0 0 0", "4-5 0-1 6-7 2-3",
    "each sees one" },
  { &half, 2, { "0-7" }, { "GPU-40", "GPU-20:00.0" }, "40 20", "0 0", "4-7 0-3", "each sees one, by UUID" },
  { &half, 3, { "0-7" }, { "0,1", "1", "1,2" }, "10 20 30", "0 0 1", "0-1 2-3 4-7",
    "lists that overlap" },
  { &odd, 3, { "0-3", "4-7", "4-7" }, { NULL }, "30 10 20", "2 0 1", "0-3 4-7 4-7",
    "a GPU on no NUMA node" },
  { &odd, 3, { "0-7" }, { NULL }, "10 20 30", "0 1 2", "0-1 2-4 5-7",
    "  and ranks not bound: equal parts" },
  { &lame, 4, { "0-7" }, { NULL }, "10 20 30 40", "0 1 2 3", "0 1 2 3", "all GPUs on one socket" },
  { &dgx, 2, { "0-3,5", "0-3,5" }, { NULL }, "10 20", "0 1", "0-1 2-3", "CPUs of several nodes, not all" },
  { &dgx, 3, { "0-1", "2-3", "2-7" }, { NULL }, "10 20 50", "0 1 4", "0-1 2-3 2-7",
    "sets that overlap stay as they are" },
};

static void test_nodes(void)
{
  char root[] = "/var/tmp/t_bind.XXXXXX";
  static const int order[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
  static const struct tc_ranks_request want = { .bind = true, .gpus = true };
  struct self *s = malloc(sizeof *s);
  struct blob *sent = calloc(8, sizeof *sent);
  if (!mkdtemp(root)) abort();
  for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
    const struct blob *at[8];
    const char *cpus[8];
    int32_t index[8];
    int numa[8], n = nodes[i].n;
    char bus[64] = "", dev[64] = "", part[128] = "", folder[64];
    hwloc_topology_t topo;
    snprintf(folder, sizeof folder, "%s/%zu", root, i);
    mkdir(folder, 0755);
    box_load(&topo, nodes[i].box);
    box_files(nodes[i].box, folder, order, true);
    for (int r = 0; r < n; r++) {
      cpus[r] = nodes[i].cpus[r] ? nodes[i].cpus[r] : cpus[r - 1];
      look_as(s, topo, folder, cpus[r], nodes[i].list[r]);
      sent[r].info = s->info;
      set_visible(sent[r].visible, &s->gpus);
      at[r] = &sent[r];
    }
    choose_devices(at, n, index, numa);
    for (int r = 0; r < n; r++) {
      struct tc_rank_info mine = sent[r].info;
      look_as(s, topo, folder, cpus[r], nodes[i].list[r]);
      take_own(s, &want, at, index, numa, n, r, &mine);
      snprintf(bus + strlen(bus), sizeof bus - strlen(bus), "%s%.2s", r ? " " : "", mine.dev.pci + 5);
      snprintf(dev + strlen(dev), sizeof dev - strlen(dev), "%s%d", r ? " " : "", mine.device);
      snprintf(part + strlen(part), sizeof part - strlen(part), "%s%.12s", r ? " " : "",
               mine.cpuset);
    }
    is_str(bus, nodes[i].bus, "%s: GPUs", nodes[i].what);
    is_str(dev, nodes[i].index, "  as each rank counts them");
    is_str(part, nodes[i].part, "  CPUs");
    hwloc_topology_destroy(topo);
  }
  unsetenv("CUDA_VISIBLE_DEVICES");
  free(s);
  free(sent);
  char *clean = tc_sprintf("rm -rf %s", root);
  ok(system(clean) == 0, "cleaned up");
  free(clean);
}

/* Parts of CPUs: disjoint, all used, no rank with fewer than others but for one. homes: the NUMA nodes
 * that ranks are to be near, if each has a CPU for each of its ranks. */
static void test_cpus(void)
{
  static const struct { struct box box; const char *cpus; int n, home[6],
      fewest; const char *want[6]; const char *what;
                      } rows[] = {
    { { 2, 1, 4, 0, { 0 } }, NULL, 2, { -9 }, 4, { "0-3", "4-7" }, "a socket each" },
    { { 2, 1, 4, 0, { 0 } }, NULL, 4, { -9 }, 2, { "0-1", "2-3", "4-5", "6-7" },
        "two on a socket" },
    { { 2, 1, 4, 0, { 0 } }, NULL, 3, { -9 }, 2, { "0-1", "2-4", "5-7" }, "three on two sockets" },
    { { 2, 2, 2, 0, { 0 } }, NULL, 4, { -9 }, 2, { "0-1", "2-3", "4-5", "6-7" },
        "a NUMA node each" },
    { { 1, 1, 8, 0, { 0 } }, NULL, 4, { -9 }, 0, { NULL }, "one NUMA node: left to the kernel" },
    { { 2, 1, 4, 0, { 0 } }, NULL, 1, { -9 }, 0, { NULL }, "one rank" },
    { { 2, 1, 2, 0, { 0 } }, NULL, 5, { -9 }, 0, { NULL }, "more ranks than CPUs" },
    { { 2, 1, 2, 0, { 0 } }, NULL, 4, { -9 }, 1, { "0", "1", "2", "3" }, "as many" },
    { { 2, 1, 4, 0, { 0 } }, NULL, 2, { 1, 0 }, 4, { "4-7", "0-3" }, "homes the other way round" },
    { { 2, 1, 4, 0, { 0 } }, NULL, 3, { 1, 0, 1 }, 2, { "4-5", "0-3", "6-7" },
        "homes shared by two" },
    { { 2, 1, 4, 0, { 0 } }, NULL, 4, { 0, 0, 0, 0 }, 1, { "0", "1", "2", "3" },
        "one home for all" },
    { { 2, 1, 4, 0, { 0 } }, NULL, 5, { 0, 0, 0, 0, 0 }, 1, { "0", "1-2", "3", "4-5", "6-7" },
        "a home too small" },
    { { 2, 1, 4, 0, { 0 } }, NULL, 2, { -1, 0 }, 4, { "0-3", "4-7" }, "a home that is not known" },
    { { 2, 1, 4, 0, { 0 } }, NULL, 2, { 0, 7 }, 4, { "0-3", "4-7" }, "a home that is not there" },
    { { 2, 1, 4, 0, { 0 } }, "0-4", 2, { 1, 0 }, 1, { "4", "0-3" }, "a home of one CPU" },
    { { 2, 1, 4, 0, { 0 } }, "0-4", 3, { 1, 0, 1 }, 1, { "0", "1-2", "3-4" },
        "... is too small for two" },
    { { 2, 1, 4, 0, { 0 } }, "2,5,7", 2, { -9 }, 1, { "2", "5,7" }, "some of the CPUs" },
    { { 2, 1, 4, 0, { 0 } }, "0-3", 2, { -9 }, 0, { NULL }, "CPUs of one node" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    hwloc_topology_t topo;
    hwloc_bitmap_t part[6], cpus = hwloc_bitmap_alloc();
    char text[64];
    box_load(&topo, &rows[i].box);
    hwloc_bitmap_copy(cpus, hwloc_topology_get_topology_cpuset(topo));
    if (rows[i].cpus) hwloc_bitmap_list_sscanf(cpus, rows[i].cpus);
    for (int r = 0; r < rows[i].n; r++) part[r] = hwloc_bitmap_alloc();
    is_int(tc_bind_cpus(part, topo, cpus, rows[i].home[0] == -9 ? NULL : rows[i].home, rows[i].n),
        rows[i].fewest, "%s",
           rows[i].what);
    for (int r = 0; r < rows[i].n; r++) {
      hwloc_bitmap_list_snprintf(text, sizeof text, part[r]);
      if (rows[i].want[0]) is_str(text, rows[i].want[r], "  CPUs of rank %d", r);
      hwloc_bitmap_free(part[r]);
    }
    hwloc_bitmap_free(cpus);
    hwloc_topology_destroy(topo);
  }
}

/* FNV-1a of the first that is known. */
static void test_ids(void)
{
  static const struct { const char *uuid, *pci, *name; uint64_t want; } rows[] = {
    { "", "", "", UINT64_C(0xcbf29ce484222325) }, { "", "", "a", UINT64_C(0xaf63dc4c8601ec8c) },
    { "foobar", "a", "b", UINT64_C(0x85944171f73967e8) }, { "", "foobar", "a",
        UINT64_C(0x85944171f73967e8) },
    { "", "", "foobar", UINT64_C(0x85944171f73967e8) } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_dev d = { .numa = 0 };
    snprintf(d.uuid, sizeof d.uuid, "%s", rows[i].uuid);
    snprintf(d.pci, sizeof d.pci, "%s", rows[i].pci);
    snprintf(d.name, sizeof d.name, "%s", rows[i].name);
    ok(device_id(&d) == rows[i].want, "the id of \"%s\", \"%s\", \"%s\"", d.uuid, d.pci, d.name);
  }
}

/* How a rank's CPUs are reported: a list that is too long ends with a whole entry. */
static void test_sets(void)
{
  static const struct { const char *cpus; int n, numa; } rows[] = { { "0-3", 4, 0 }, { "4,6", 2,
      1 }, { "3-4", 2, -1 },
                                                                    { "0-7", 8, -1 } };
  const struct box box = { 2, 1, 4, 0, { 0 } };
  struct tc_rank_info info = { .numa = 9 };
  hwloc_topology_t topo;
  hwloc_bitmap_t set = hwloc_bitmap_alloc();
  box_load(&topo, &box);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    hwloc_bitmap_list_sscanf(set, rows[i].cpus);
    set_cpus(topo, set, &info);
    is_str(info.cpuset, rows[i].cpus, "CPUs %s", rows[i].cpus);
    ok(info.n_cpus == rows[i].n && info.numa == rows[i].numa, "  %d of them, NUMA node %d",
        info.n_cpus, info.numa);
  }
  hwloc_bitmap_zero(set);
  for (unsigned c = 100; c < 400; c += 2) hwloc_bitmap_set(set, c);
  set_cpus(topo, set, &info);
  is_int((int64_t)strlen(info.cpuset), 251, "a list too long: 63 entries of 255 characters");
  is_str(info.cpuset + 244, "222,224", "  the last of them whole");
  is_int(info.n_cpus, 150, "  of all");
  hwloc_bitmap_zero(set);
  for (unsigned c = 1000; c < 1102; c += 2) hwloc_bitmap_set(set, c);
  set_cpus(topo, set, &info);
  is_int((int64_t)strlen(info.cpuset), 254, "a list that just fits");
  hwloc_bitmap_free(set);
  hwloc_topology_destroy(topo);
}

int main(void)
{
  static const char *const others[] = { "SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS" };
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) unsetenv(others[i]);
  test_best();
  test_swaps();
  test_ties();
  test_nodes();
  test_cpus();
  test_ids();
  test_sets();
  return done_testing();
}
