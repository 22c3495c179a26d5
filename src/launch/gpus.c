/* gpus.c - which GPUs a rank may use, from device files, the driver's files in /proc, hwloc and
 * the environment.
 *
 * Invariants:
 * - no CUDA, no driver's library: this runs on every node and in every command;
 * - ranks of a node that may open the same devices and have the same environment see the same
 *   list, in the same order. */
#include "src/launch/gpus.h"

#include <errno.h>
#include <fcntl.h>
#include <hwloc.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UNKNOWN_PLACE = 50 };     /* nearer than the next level, farther than one's own */

/* "0-3,8" has five; names count one each. */
static int count_ids(const char *list)
{
  int n = 0;
  for (; *list && n < TC_GPUS_MAX; list += *list == ',') {
    char *end;
    long a = strtol(list, &end, 10), b = a;
    if (end != list && *end == '-') b = strtol(end + 1, &end, 10);
    n += a >= 0 && b >= a && b - a < TC_GPUS_MAX ? (int)(b - a) + 1 : 1;
    list += strcspn(list, ",");
  }
  return TC_MIN(n, TC_GPUS_MAX);
}

static const struct tc_dev unknown_gpu = { .numa = -1, .distance = -1, .n_links = -1 };

/* ---- device files ---------------------------------------------------------------------- */

/* The value of "key: value" lines of the driver's file about one GPU. */
static void read_driver_file(const char *path, struct tc_dev *d, int *minor)
{
  char line[256];
  FILE *f = fopen(path, "re");
  while (f && fgets(line, sizeof line, f)) {
    char *value = strchr(line, ':');
    if (!value) continue;
    *value++ = 0;
    value += strspn(value, " \t");
    value[strcspn(value, "\n")] = 0;
    if (strcmp(line, "Model") == 0)
      snprintf(d->name, sizeof d->name, "%.63s", value);
    else if (strcmp(line, "GPU UUID") == 0 && !strchr(value, '?'))   /* ?: not started yet */
      snprintf(d->uuid, sizeof d->uuid, "%.63s", value);
    else if (strcmp(line, "Device Minor") == 0)
      *minor = atoi(value);
  }
  if (f) fclose(f);
}

/* The NUMA node a PCI device hangs off; -1 unknown. */
static int pci_numa(hwloc_obj_t pci)
{
  while (pci && !pci->nodeset) pci = pci->parent;
  return pci && hwloc_bitmap_weight(pci->nodeset) == 1 ? hwloc_bitmap_first(pci->nodeset) : -1;
}

static void pci_name(hwloc_obj_t pci, char name[32])
{
  const struct hwloc_pcidev_attr_s *a = &pci->attr->pcidev;
  snprintf(name, 32, "%04x:%02x:%02x.%01x", (unsigned)a->domain, a->bus, a->dev, a->func);
}

/* Fills in what is known of the GPU behind /dev/nvidia<minor>: `nth` of `n` such files. */
static void describe_gpu(hwloc_topology_t topo, const char *root, int minor, int nth, int n,
                         struct tc_dev *d)
{
  enum { NVIDIA = 0x10de, DISPLAY = 0x03 };
  int n_gpus = 0;
  hwloc_obj_t pci = NULL, by_order = NULL;
  *d = unknown_gpu;
  snprintf(d->name, sizeof d->name, "gpu%d", minor);
  while ((pci = hwloc_get_next_pcidev(topo, pci))) {
    const struct hwloc_pcidev_attr_s *a = &pci->attr->pcidev;
    if (a->vendor_id != NVIDIA || a->class_id >> 8 != DISPLAY) continue;
    if (n_gpus++ == nth) by_order = pci;
    char path[PATH_MAX];
    struct tc_dev found = unknown_gpu;
    int its_minor = -1;
    found.numa = pci_numa(pci);
    pci_name(pci, found.pci);
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus/%s/information", root, found.pci);
    read_driver_file(path, &found, &its_minor);
    if (its_minor != minor) continue;
    *d = found;
    return;
  }
  if (!by_order || n_gpus != n) return;      /* no driver file: by order, if none is missing */
  pci_name(by_order, d->pci);
  d->numa = pci_numa(by_order);
}

static int by_bus(const void *a, const void *b)
{
  const struct tc_dev *x = a, *y = b;
  const uint64_t ax = tc_gpus_address(x->pci), ay = tc_gpus_address(y->pci);
  return (ax > ay) - (ax < ay);
}

/* The GPUs that may be opened (a cgroup forbids others) into dev[TC_GPUS_MAX], by bus; those
 * without one stay in the order of their files. */
static int usable_gpus(hwloc_topology_t topo, const char *root, struct tc_dev *dev)
{
  int minor[TC_GPUS_MAX], n_files = 0, n = 0;
  bool all_have_bus = true;
  for (int m = 0; m < TC_GPUS_MAX; m++) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/dev/nvidia%d", root, m);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) continue;
    minor[n_files++] = fd >= 0 ? m : -1;
    if (fd >= 0) close(fd);
  }
  for (int i = 0; i < n_files; i++) {
    if (minor[i] < 0) continue;
    describe_gpu(topo, root, minor[i], i, n_files, &dev[n]);
    all_have_bus &= dev[n++].pci[0] != 0;
  }
  if (all_have_bus) qsort(dev, (size_t)n, sizeof *dev, by_bus);
  return n;
}

/* ---- CUDA_VISIBLE_DEVICES -------------------------------------------------------------- */

/* One entry of it. Under Slurm an index without a GPU counts too: its GPUs may be any device
 * files. False: CUDA ignores this entry and all after it. */
static bool visible_entry(const char *token, const struct tc_dev *gpu, int n_gpus, bool slurm,
                          struct tc_dev *d)
{
  char *end;
  long index = strtol(token, &end, 10);
  *d = unknown_gpu;
  if (end != token && *end == 0) {
    if (index < 0) return false;
    snprintf(d->name, sizeof d->name, "gpu%ld", index);
    if (index < n_gpus) *d = gpu[index];
    return index < n_gpus || slurm;
  }
  if (strncmp(token, "GPU-", 4) != 0 && strncmp(token, "MIG-", 4) != 0) return false;
  for (int i = 0; i < n_gpus; i++)
    if (strncmp(gpu[i].uuid, token, strlen(token)) == 0) {      /* a prefix will do */
      *d = gpu[i];
      return true;
    }
  snprintf(d->uuid, sizeof d->uuid, "%.63s", token);
  snprintf(d->name, sizeof d->name, "%.63s", token);
  return true;
}

void tc_gpus_look(struct tc_visible *v, struct hwloc_topology *topo, const char *root)
{
  struct tc_dev *gpu = tc_calloc(TC_GPUS_MAX, sizeof *gpu);
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  int n_gpus = usable_gpus(topo, root, gpu), n = 0;
  int n_given = TC_MAX(atoi(tc_env("SLURM_GPUS_ON_NODE")), 0);
  if (n_given == 0) n_given = count_ids(tc_env("SLURM_STEP_GPUS"));
  if (n_given == 0) n_given = count_ids(tc_env("SLURM_JOB_GPUS"));
  memset(v, 0, sizeof *v);
  /* Where the driver's files are hidden (some containers), its library knows UUIDs. */
  if (list && strstr(list, "GPU-") && n_gpus > 0 && !gpu[0].uuid[0]) tc_gpus_ask(gpu, n_gpus);
  if (!list)
    for (; n < n_gpus; n++) v->dev[n] = gpu[n];
  else {
    char *copy = tc_strdup(list), *rest, *t = strtok_r(copy, ",", &rest);
    for (; t && n < TC_GPUS_MAX && visible_entry(t, gpu, n_gpus, n_given > 0, &v->dev[n]); n++)
      t = strtok_r(NULL, ",", &rest);
    free(copy);
  }
  v->n = n;
  v->n_node = TC_MAX(n, n_given > 0 ? n_given : n_gpus);
  free(gpu);
}

/* ---- where a GPU is -------------------------------------------------------------------- */

int tc_gpus_distance(struct hwloc_topology *topo, const struct tc_dev *d,
                     const struct hwloc_bitmap_s *cpus)
{
  hwloc_const_bitmap_t machine = hwloc_topology_get_topology_cpuset(topo);
  if (hwloc_bitmap_iszero(cpus) || hwloc_bitmap_isincluded(machine, cpus)) return 0;
  hwloc_obj_t at = *d->pci ? hwloc_get_pcidev_by_busidstring(topo, d->pci) : NULL;
  if (at) at = hwloc_get_non_io_ancestor_obj(topo, at);
  if (!at || hwloc_bitmap_isincluded(machine, at->cpuset))
    return hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_NUMANODE) > 1 ? UNKNOWN_PLACE : 0;
  hwloc_bitmap_t inside = hwloc_bitmap_alloc();
  int64_t sum = 0;
  int counted = 0, level = 0;
  for (; at; level++) {
    hwloc_bitmap_and(inside, cpus, at->cpuset);
    int n = hwloc_bitmap_weight(inside);
    sum += (int64_t)(n - counted) * level * 100;
    counted = n;
    hwloc_obj_t up = at->parent;           /* a level of the same CPUs does not count */
    while (up && hwloc_bitmap_isequal(up->cpuset, at->cpuset)) up = up->parent;
    at = up;
  }
  hwloc_bitmap_free(inside);
  return counted ? (int)(sum / counted) : 0;
}

int tc_gpus_links(const struct tc_dev *a, const struct tc_dev *b)
{
  if (a->n_links < 0 || b->n_links < 0) return -1;
  const uint64_t to = tc_gpus_address(b->pci);
  int n = TC_MIN(a->n_switched, b->n_switched);
  for (int i = 0; i < TC_NVLINKS_MAX; i++) n += to && a->peer[i] == to;
  return n;
}
