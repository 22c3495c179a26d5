/* ranks.c - who and where am I: PMIx, hwloc, the GPUs this rank may see.
 *
 * Invariants:
 * - PMIx is initialised only where a launcher put PMIX_NAMESPACE and PMIX_RANK into the
 *   environment: alone it would leave MPI unable to start;
 * - every rank computes the same tc_ranks, since it is made of what was exchanged and of
 *   nothing else; a rank's own view (its node's first rank, its devices) goes through the
 *   exchange as well;
 * - a device index is chosen once all ranks of the node know each other's NUMA node;
 * - no child process is started, and each wait has a deadline. */
#include "src/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <hwloc.h>
#include <limits.h>
#include <pmix.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_DEVICES = 64, FENCE_S = 300, GET_S = 60, ABORT_S = 10, BLOB_MAGIC = 0x54435231 };

struct self {
  struct tc_rank_info info;          /* what a rank knows of itself, without the others */
  struct tc_dev dev[MAX_DEVICES];    /* the visible ones, [info.n_visible] */
};

/* What goes over the wire: one struct, so peers of another build are told by its size. */
struct blob {
  uint32_t magic;
  int32_t leader;                    /* lowest rank of the node by PMIx; -1 unknown */
  struct tc_rank_info info;
};

static const char *env(const char *name)
{
  const char *v = getenv(name);
  return v ? v : "";
}

/* A launcher with PMIx started this process. */
static bool launched(void)
{
  return *env("PMIX_NAMESPACE") && *env("PMIX_RANK");
}

static int env_int(const char *name, int unset)
{
  char *end;
  long v = strtol(env(name), &end, 10);
  return end == env(name) || v < 0 || v > INT_MAX ? unset : (int)v;
}

/* ---- GPUs ------------------------------------------------------------------------------ */

/* "0-3,8" has five; names count one each. */
static int count_ids(const char *list)
{
  int n = 0;
  for (; *list; list += *list == ',') {
    char *end;
    long a = strtol(list, &end, 10), b = a;
    if (end != list && *end == '-') b = strtol(end + 1, &end, 10);
    n += b >= a && b - a < MAX_DEVICES ? (int)(b - a) + 1 : 1;
    list += strcspn(list, ",");
  }
  return TC_MIN(n, MAX_DEVICES);
}

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
static void describe_gpu(hwloc_topology_t topo, int minor, int nth, int n, struct tc_dev *d)
{
  enum { NVIDIA = 0x10de, DISPLAY = 0x03 };
  int n_gpus = 0;
  hwloc_obj_t pci = NULL, by_order = NULL;
  snprintf(d->name, sizeof d->name, "gpu%d", minor);
  d->numa = -1;
  while ((pci = hwloc_get_next_pcidev(topo, pci))) {
    const struct hwloc_pcidev_attr_s *a = &pci->attr->pcidev;
    if (a->vendor_id != NVIDIA || a->class_id >> 8 != DISPLAY) continue;
    if (n_gpus++ == nth) by_order = pci;
    char path[96];
    struct tc_dev found = { .numa = pci_numa(pci) };
    int its_minor = -1;
    pci_name(pci, found.pci);
    snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%s/information", found.pci);
    read_driver_file(path, &found, &its_minor);
    if (its_minor != minor) continue;
    *d = found;
    return;
  }
  if (!by_order || n_gpus != n) return;      /* no driver file: by order, if none is missing */
  pci_name(by_order, d->pci);
  d->numa = pci_numa(by_order);
}

/* CUDA counts devices by bus; those without one stay in the order of their files. */
static int by_bus(const void *a, const void *b)
{
  return strcmp(((const struct tc_dev *)a)->pci, ((const struct tc_dev *)b)->pci);
}

/* The GPUs that may be opened (a cgroup forbids others) into dev[MAX_DEVICES]. */
static int usable_gpus(hwloc_topology_t topo, struct tc_dev *dev)
{
  int minor[MAX_DEVICES], n_files = 0, n = 0;
  bool all_have_bus = true;
  for (int m = 0; m < MAX_DEVICES; m++) {
    char path[32];
    snprintf(path, sizeof path, "/dev/nvidia%d", m);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) continue;
    minor[n_files++] = fd >= 0 ? m : -1;
    if (fd >= 0) close(fd);
  }
  for (int i = 0; i < n_files; i++) {
    if (minor[i] < 0) continue;
    memset(&dev[n], 0, sizeof dev[n]);
    describe_gpu(topo, minor[i], i, n_files, &dev[n]);
    all_have_bus &= dev[n++].pci[0] != 0;
  }
  if (all_have_bus) qsort(dev, (size_t)n, sizeof *dev, by_bus);
  return n;
}

/* One entry of CUDA_VISIBLE_DEVICES. Under Slurm an index without a GPU counts too: its
 * GPUs may be any device files. False: CUDA ignores this entry and all after it. */
static bool visible_entry(const char *token, const struct tc_dev *gpu, int n_gpus, bool slurm,
                          struct tc_dev *d)
{
  char *end;
  long index = strtol(token, &end, 10);
  memset(d, 0, sizeof *d);
  d->numa = -1;
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

/* Fills in s->dev, info.n_visible and info.n_node_devices. */
static void look_at_gpus(hwloc_topology_t topo, struct self *s)
{
  struct tc_dev gpu[MAX_DEVICES];
  int n_gpus = usable_gpus(topo, gpu), n_given = env_int("SLURM_GPUS_ON_NODE", 0);
  if (n_given == 0) n_given = count_ids(env("SLURM_STEP_GPUS"));
  if (n_given == 0) n_given = count_ids(env("SLURM_JOB_GPUS"));
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  int n = 0;
  if (!list)
    for (; n < n_gpus; n++) s->dev[n] = gpu[n];
  else {
    char *copy = tc_strdup(list), *rest, *t = strtok_r(copy, ",", &rest);
    for (; t && n < MAX_DEVICES && visible_entry(t, gpu, n_gpus, n_given > 0, &s->dev[n]); n++)
      t = strtok_r(NULL, ",", &rest);
    free(copy);
  }
  s->info.n_visible = n;
  s->info.n_node_devices = TC_MAX(n, n_given > 0 ? n_given : n_gpus);
}

/* The index among my visible devices for local rank `me`: ranks bound to a NUMA node take its
 * devices first, in order; the others take what is least used. All ranks of a node that see
 * the same devices compute the same table, so no device is used twice while one is free. */
static int choose_device(const struct tc_dev *dev, int n_dev, const int *numa, int n_local, int me)
{
  if (n_dev == 0) return -1;
  int used[MAX_DEVICES] = { 0 }, limit = (n_local + n_dev - 1) / n_dev;
  int *chosen = tc_malloc((size_t)n_local * sizeof *chosen);
  for (int r = 0; r < n_local; r++) chosen[r] = -1;
  for (int pass = 0; pass < 2; pass++)
    for (int r = 0; r < n_local; r++) {
      if (chosen[r] >= 0 || (pass == 0 && numa[r] < 0)) continue;
      for (int i = 0; i < n_dev; i++) {
        if (used[i] >= limit || (pass == 0 && dev[i].numa != numa[r])) continue;
        if (chosen[r] < 0 || used[i] < used[chosen[r]]) chosen[r] = i;
      }
      if (chosen[r] >= 0) used[chosen[r]]++;
    }
  int mine = chosen[me];
  free(chosen);
  return mine;
}

/* ---- this process ---------------------------------------------------------------------- */

/* The CPUs this process may run on. */
static void look_at_cpus(hwloc_topology_t topo, struct tc_rank_info *info)
{
  hwloc_bitmap_t cpus = hwloc_bitmap_alloc(), nodes = hwloc_bitmap_alloc();
  if (hwloc_get_cpubind(topo, cpus, HWLOC_CPUBIND_PROCESS) != 0 || hwloc_bitmap_iszero(cpus))
    hwloc_bitmap_copy(cpus, hwloc_topology_get_allowed_cpuset(topo));
  if (hwloc_bitmap_list_snprintf(info->cpuset, sizeof info->cpuset, cpus) >=
      (int)sizeof info->cpuset) *strrchr(info->cpuset, ',') = 0;     /* cut at a whole entry */
  info->n_cpus = hwloc_bitmap_weight(cpus);
  hwloc_cpuset_to_nodeset(topo, cpus, nodes);
  info->numa = hwloc_bitmap_weight(nodes) == 1 ? hwloc_bitmap_first(nodes) : -1;
  hwloc_bitmap_free(cpus);
  hwloc_bitmap_free(nodes);
}

static int look_at_self(struct self *s, struct tc_err *err)
{
  /* Plugins that open displays or drivers: slow, and not needed; PCI is read from sysfs. */
  static const char *const unwanted[] = { "pci", "opencl", "cuda", "nvml", "gl", "rsmi" };
  hwloc_topology_t topo;
  memset(s, 0, sizeof *s);               /* the padding too: it goes over the wire */
  s->info.device = s->info.dev.numa = -1;
  if (hwloc_topology_init(&topo) != 0)
    return tc_fail(err, TC_EUSER, "hwloc can't be started: %s", strerror(errno));
  for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++)
    (void)hwloc_topology_set_components(topo, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                        unwanted[i]);
  hwloc_topology_set_io_types_filter(topo, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(topo) != 0) {
    hwloc_topology_destroy(topo);
    return tc_fail(err, TC_EUSER, "hwloc can't read this node's topology");
  }
  if (gethostname(s->info.host, sizeof s->info.host - 1) != 0) strcpy(s->info.host, "unknown");
  look_at_cpus(topo, &s->info);
  look_at_gpus(topo, s);
  hwloc_topology_destroy(topo);
  return TC_OK;
}

/* ---- PMIx ------------------------------------------------------------------------------ */

static int pmix_fail(const char *what, pmix_status_t rc, struct tc_err *err)
{
  return tc_fail(err, TC_EPEER, "%s failed: %s; does the launcher's PMIx fit, and are all ranks "
                 "alive?", what, PMIx_Error_string(rc));
}

struct fence {
  atomic_bool done;
  pmix_status_t status;
};

static void fence_done(pmix_status_t status, void *ctx)
{
  struct fence *f = ctx;
  f->status = status;
  atomic_store(&f->done, true);
}

/* Waits for all ranks and collects what they put. After the deadline the struct is left to
 * the callback that may still come. */
static int fence_all(const pmix_proc_t *me, struct tc_err *err)
{
  struct fence *f = tc_calloc(1, sizeof *f);
  pmix_proc_t all;
  pmix_info_t info;
  bool collect = true;
  int64_t until_ns = tc_now_ns() + INT64_C(1000000000) * FENCE_S;
  PMIX_LOAD_PROCID(&all, me->nspace, PMIX_RANK_WILDCARD);
  PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
  pmix_status_t rc = PMIx_Fence_nb(&all, 1, &info, 1, fence_done, f);
  if (rc != PMIX_SUCCESS)          /* done at once, or never begun: no callback will come */
    fence_done(rc == PMIX_OPERATION_SUCCEEDED ? PMIX_SUCCESS : rc, f);
  while (!atomic_load(&f->done)) {
    if (tc_now_ns() > until_ns)
      return tc_fail(err, TC_EPEER, "not all ranks of the step have started after %d s: a rank "
                     "died or hangs before it came here; look for its message, or its node's "
                     "state", FENCE_S);
    tc_sleep_ns(500000);
  }
  rc = f->status;
  free(f);
  return rc == PMIX_SUCCESS ? TC_OK : pmix_fail("PMIx_Fence", rc, err);
}

/* Every rank's blob into all[world]. */
static int exchange(const pmix_proc_t *me, const char *key, const struct blob *mine, int world,
                    struct blob *all, struct tc_err *err)
{
  pmix_value_t value;
  pmix_byte_object_t bytes = { .bytes = (char *)(uintptr_t)mine, .size = sizeof *mine };
  PMIX_VALUE_LOAD(&value, &bytes, PMIX_BYTE_OBJECT);
  pmix_status_t rc = PMIx_Put(PMIX_GLOBAL, key, &value);
  PMIX_VALUE_DESTRUCT(&value);
  if (rc == PMIX_SUCCESS) rc = PMIx_Commit();
  if (rc != PMIX_SUCCESS) return pmix_fail("PMIx_Put", rc, err);
  TC_TRY(fence_all(me, err));
  for (int r = 0; r < world; r++) {
    pmix_proc_t peer;
    pmix_info_t info;
    pmix_value_t *got = NULL;
    int timeout_s = GET_S;
    PMIX_LOAD_PROCID(&peer, me->nspace, (pmix_rank_t)r);
    PMIX_INFO_LOAD(&info, PMIX_TIMEOUT, &timeout_s, PMIX_INT);
    rc = PMIx_Get(&peer, key, &info, 1, &got);
    if (rc != PMIX_SUCCESS)
      return tc_fail(err, TC_EPEER, "rank %d told nothing about itself: %s; does it run this same "
                     "program?", r, PMIx_Error_string(rc));
    bool same = got->type == PMIX_BYTE_OBJECT && got->data.bo.size == sizeof all[r];
    if (same) memcpy(&all[r], got->data.bo.bytes, sizeof all[r]);
    PMIX_VALUE_RELEASE(got);
    if (!same || all[r].magic != BLOB_MAGIC)
      return tc_fail(err, TC_EUSER, "rank %d runs another build of tercio than rank %d; install "
                     "the same one on all nodes", r, (int)me->rank);
  }
  return TC_OK;
}

/* The lowest rank of my node: of the node that Resolve_peers says I'm on. A peer's NODEID is
 * not to be had. -1: this launcher has no node map. */
static int find_leader(const pmix_proc_t *me)
{
  char *nodes = NULL, *rest = NULL;
  int leader = -1;
  if (PMIx_Resolve_nodes(me->nspace, &nodes) != PMIX_SUCCESS || !nodes) return -1;
  for (char *node = strtok_r(nodes, ",", &rest); node; node = strtok_r(NULL, ",", &rest)) {
    pmix_proc_t *peer = NULL;
    size_t n = 0;
    int lowest = INT_MAX, mine = 0;
    if (PMIx_Resolve_peers(node, me->nspace, &peer, &n) != PMIX_SUCCESS) continue;
    for (size_t i = 0; i < n; i++) {
      mine |= peer[i].rank == me->rank;
      lowest = TC_MIN(lowest, (int)peer[i].rank);
    }
    PMIX_PROC_FREE(peer, n);
    if (mine) leader = lowest;
  }
  free(nodes);
  return leader;
}

static int job_size(const pmix_proc_t *me, int *world, struct tc_err *err)
{
  pmix_proc_t job;
  pmix_value_t *got = NULL;
  PMIX_LOAD_PROCID(&job, me->nspace, PMIX_RANK_WILDCARD);
  pmix_status_t rc = PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &got);
  bool good = rc == PMIX_SUCCESS && got->type == PMIX_UINT32 && got->data.uint32 >= 1;
  *world = good ? (int)got->data.uint32 : 0;
  if (rc == PMIX_SUCCESS) PMIX_VALUE_RELEASE(got);
  return good ? TC_OK : pmix_fail("asking PMIx for the number of ranks", rc, err);
}

/* ---- the node map ---------------------------------------------------------------------- */

static void set_nodes(struct tc_ranks *r, const struct blob *all)
{
  bool mapped = true;            /* every rank knows its leader, and leaders lead themselves */
  int *first = tc_malloc((size_t)r->world * sizeof *first);        /* first rank of each node */
  int *count = tc_calloc((size_t)r->world, sizeof *count);
  int *devices = tc_calloc((size_t)r->world, sizeof *devices);
  for (int i = 0; i < r->world && mapped; i++)
    mapped = all[i].leader >= 0 && all[i].leader <= i &&
             all[all[i].leader].leader == all[i].leader;
  for (int i = 0; i < r->world; i++) {
    int node = r->n_nodes;
    if (mapped && all[i].leader != i)
      node = r->node_of_rank[all[i].leader];
    else if (!mapped)            /* no node map: a node is a host name */
      for (node = 0; node < r->n_nodes; node++)
        if (strcmp(all[first[node]].info.host, all[i].info.host) == 0) break;
    if (node == r->n_nodes) first[r->n_nodes++] = i;
    r->node_of_rank[i] = node;
    r->info[i].node = node;
    r->info[i].local_rank = count[node]++;
    devices[node] = TC_MAX(devices[node], r->info[i].n_node_devices);
  }
  for (int i = 0; i < r->world; i++) {
    r->info[i].local_size = count[r->info[i].node];
    r->info[i].n_node_devices = devices[r->info[i].node];
  }
  free(first);
  free(count);
  free(devices);
}

/* Chooses the device of `rank`, which may see dev[]. */
static void set_device(struct tc_ranks *r, int rank, const struct tc_dev *dev)
{
  struct tc_rank_info *me = &r->info[rank];
  int n = 0, *numa = tc_malloc((size_t)me->local_size * sizeof *numa);
  for (int i = 0; i < r->world; i++)
    if (r->node_of_rank[i] == me->node) numa[n++] = r->info[i].numa;
  me->device = choose_device(dev, me->n_visible, numa, n, me->local_rank);
  if (me->device >= 0) me->dev = dev[me->device];
  free(numa);
}

static struct tc_ranks *ranks_make(int rank, int world, const char *launcher)
{
  struct tc_ranks *r = tc_calloc(1, sizeof *r);
  r->rank = rank;
  r->world = world;
  snprintf(r->launcher, sizeof r->launcher, "%s", launcher);
  snprintf(r->job, sizeof r->job, "%s", env("SLURM_JOB_ID"));
  r->restart = env_int("SLURM_RESTART_COUNT", 0);
  r->info = tc_calloc((size_t)world, sizeof *r->info);
  r->node_of_rank = tc_calloc((size_t)world, sizeof *r->node_of_rank);
  return r;
}

/* Two exchanges: who is where; then, if there are devices, who took which. */
static int meet(struct tc_ranks *r, const pmix_proc_t *me, struct blob *all, struct tc_err *err)
{
  struct self self;
  bool devices = false;
  TC_TRY(look_at_self(&self, err));
  struct blob mine;
  memset(&mine, 0, sizeof mine);
  mine.magic = BLOB_MAGIC;
  mine.leader = find_leader(me);
  mine.info = self.info;
  TC_TRY(exchange(me, "tercio.rank", &mine, r->world, all, err));
  for (int i = 0; i < r->world; i++) {
    r->info[i] = all[i].info;
    devices |= all[i].info.n_visible > 0;
  }
  set_nodes(r, all);
  if (!devices) return TC_OK;
  set_device(r, r->rank, self.dev);
  mine.info = r->info[r->rank];
  TC_TRY(exchange(me, "tercio.device", &mine, r->world, all, err));
  for (int i = 0; i < r->world; i++) r->info[i] = all[i].info;
  return TC_OK;
}

static int discover_pmix(struct tc_ranks **out, struct tc_err *err)
{
  pmix_proc_t me;
  int world = 0;
  bool mpirun = *env("OMPI_COMM_WORLD_SIZE") || !*env("SLURM_PROCID");
  pmix_status_t rc = PMIx_Init(&me, NULL, 0);
  if (rc != PMIX_SUCCESS) {
    tc_fail(err, TC_EPEER, "the launcher can't be reached (PMIx_Init: %s, PMIX_NAMESPACE = %s): "
            "start with srun --mpi=pmix or Open MPI's mpirun, or without PMIX_* in the "
            "environment", PMIx_Error_string(rc), env("PMIX_NAMESPACE"));
    return unsetenv("PMIX_NAMESPACE"), TC_EPEER;    /* half-initialised, PMIx dies of any call */
  }
  TC_TRY(job_size(&me, &world, err));
  /* Left over from an outer step: this step's own launcher has no PMIx. */
  int tasks = env_int("SLURM_STEP_NUM_TASKS", world);
  if (!mpirun && tasks != world)
    return tc_fail(err, TC_EUSER, "PMIx knows %d ranks, but this step has %d tasks: start with "
                   "srun --mpi=pmix", world, tasks);
  struct tc_ranks *r = ranks_make((int)me.rank, world, mpirun ? "mpirun" : "srun");
  struct blob *all = tc_malloc((size_t)world * sizeof *all);
  int status = meet(r, &me, all, err);
  free(all);
  if (status == TC_OK) *out = r;
  else tc_ranks_free(r);
  return status;
}

/* ---- public ---------------------------------------------------------------------------- */

/* Refuses to be one of several that don't know of each other: each would think it is alone. */
static int check_alone(struct tc_err *err)
{
  static const char *const others[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE" };
  int tasks = env_int("SLURM_STEP_NUM_TASKS", 0);
  if (tasks == 0 && *env("SLURM_PROCID")) tasks = env_int("SLURM_NTASKS", 0);
  if (tasks > 1)
    return tc_fail(err, TC_EUSER, "this Slurm step has %d tasks, but no PMIx to join them: start "
                   "with srun --mpi=pmix", tasks);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (env_int(others[i], 0) > 1)
      return tc_fail(err, TC_EUSER, "%s = %s, but this launcher has no PMIx to join the ranks: "
                     "start with Open MPI's mpirun, or srun --mpi=pmix", others[i],
                     env(others[i]));
  return TC_OK;
}

int tc_ranks_discover(struct tc_ranks **out, struct tc_err *err)
{
  *out = NULL;
  if (launched()) return discover_pmix(out, err);
  TC_TRY(check_alone(err));
  return tc_ranks_threads(out, 1, err);
}

int tc_ranks_threads(struct tc_ranks **out, int n, struct tc_err *err)
{
  struct self self;
  *out = NULL;
  if (n < 1) return tc_fail(err, TC_EUSER, "run.ranks = %d; it must be 1 or more", n);
  TC_TRY(look_at_self(&self, err));
  struct tc_ranks *r = ranks_make(0, n, "alone");
  r->n_nodes = 1;
  for (int i = 0; i < n; i++) {
    r->info[i] = self.info;
    r->info[i].local_rank = i;
    r->info[i].local_size = n;
  }
  for (int i = 0; i < n; i++) set_device(r, i, self.dev);
  *out = r;
  return TC_OK;
}

void tc_ranks_free(struct tc_ranks *r)
{
  if (!r) return;
  free(r->info);
  free(r->node_of_rank);
  free(r);
}

void tc_ranks_finish(void)
{
  if (launched() && PMIx_Initialized()) PMIx_Finalize(NULL, 0);
}

static void *exit_late(void *exit_status)
{
  tc_sleep_ns(INT64_C(1000000000) * ABORT_S);
  _exit((int)(intptr_t)exit_status);
}

_Noreturn void tc_ranks_abort(int exit_status, const char *why)
{
  tc_warn("%s; ending all ranks with status %d", why, exit_status);
  if (launched() && PMIx_Initialized()) {
    pthread_t watchdog;          /* the launcher may be gone and never answer */
    (void)pthread_create(&watchdog, NULL, exit_late, (void *)(intptr_t)exit_status);
    PMIx_Abort(exit_status, why, NULL, 0);
  }
  _exit(exit_status);
}

char **tc_ranks_names(const struct tc_ranks *r)
{
  char **name = tc_malloc((size_t)r->world * sizeof *name);
  for (int i = 0; i < r->world; i++) name[i] = tc_sprintf("rank %d on %s", i, r->info[i].host);
  return name;
}

int tc_ranks_threads_each(const struct tc_ranks *r, int rank)
{
  TC_ASSERT(rank >= 0 && rank < r->world);
  hwloc_bitmap_t mine = hwloc_bitmap_alloc(), other = hwloc_bitmap_alloc();
  double share = 0;
  hwloc_bitmap_list_sscanf(mine, r->info[rank].cpuset);
  int n_cpus = hwloc_bitmap_last(mine) + 1;                  /* 0: none is known */
  int *users = tc_calloc((size_t)n_cpus + 1, sizeof *users);
  for (int i = 0; i < r->world; i++) {
    if (r->node_of_rank[i] != r->node_of_rank[rank]) continue;
    hwloc_bitmap_list_sscanf(other, r->info[i].cpuset);
    for (int c = 0; c < n_cpus; c++) users[c] += hwloc_bitmap_isset(other, c) != 0;
  }
  for (int c = hwloc_bitmap_first(mine); c >= 0; c = hwloc_bitmap_next(mine, c))
    share += 1.0 / users[c];
  free(users);
  hwloc_bitmap_free(mine);
  hwloc_bitmap_free(other);
  return TC_MAX((int)(share + 1e-6), 1);       /* 1e-6: three thirds are one */
}
