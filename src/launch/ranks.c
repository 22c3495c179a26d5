/* ranks.c - the rank and the node of this process, and its part of the node's GPUs and CPUs.
 *
 * Invariants:
 * - every rank computes the same tc_ranks, since it is made of what was exchanged and of
 *   nothing else; a rank's own view (its node's first rank, its devices) goes through the
 *   exchange as well;
 * - devices and CPUs are given out once all ranks of a node know which devices are visible to each and
 *   how far they are from it; each rank computes the same table and takes its own row;
 * - no child process is started, and each wait has a deadline. */
#include "src/launch/ranks.h"
#include "src/base/hash.h"
#include "src/comm/comm.h"
#include "src/launch/bind.h"
#include "src/launch/meet.h"
#include "src/launch/pmix.h"

#include <errno.h>
#include <hwloc.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 4096 };

struct self {
  hwloc_topology_t topo;             /* owned; NULL: this node can't be read */
  struct tc_rank_info info;          /* what a rank knows of itself, without the others */
  struct tc_visible gpus;
};

static int env_int(const char *name, int unset)
{
  char *end;
  long v = strtol(tc_env(name), &end, 10);
  return end == tc_env(name) || v < 0 || v > INT_MAX ? unset : (int)v;
}

/* ---- this process ---------------------------------------------------------------------- */

static void set_cpus(hwloc_topology_t topo, hwloc_const_bitmap_t cpus, struct tc_rank_info *info)
{
  hwloc_bitmap_t nodes = hwloc_bitmap_alloc();
  if (hwloc_bitmap_list_snprintf(info->cpuset, sizeof info->cpuset, cpus) >=
      (int)sizeof info->cpuset) *strrchr(info->cpuset, ',') = 0;     /* cut at a whole entry */
  info->n_cpus = hwloc_bitmap_weight(cpus);
  hwloc_cpuset_to_nodeset(topo, cpus, nodes);
  info->numa = hwloc_bitmap_weight(nodes) == 1 ? hwloc_bitmap_first(nodes) : -1;
  hwloc_bitmap_free(nodes);
}

/* The CPUs this process may run on, and how far they are from its devices. */
static void look_at_cpus(struct self *s)
{
  hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
  if (hwloc_get_cpubind(s->topo, cpus, HWLOC_CPUBIND_PROCESS) != 0 || hwloc_bitmap_iszero(cpus))
    hwloc_bitmap_copy(cpus, hwloc_topology_get_allowed_cpuset(s->topo));
  set_cpus(s->topo, cpus, &s->info);
  for (int i = 0; i < s->gpus.n; i++)
    s->gpus.dev[i].distance = tc_gpus_distance(s->topo, &s->gpus.dev[i], cpus);
  hwloc_bitmap_free(cpus);
}

void tc_ranks_prepare(void)
{
  /* Slurm and the driver's tools count GPUs by bus; CUDA does if this is set before it starts. */
  setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);
  /* Streams share the GPU's queues, 8 by default: NCCL's own with ours are more, and a
   * transfer that waits for a peer would hold up another stream's work, maybe what the peer needs. */
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  /* NCCL takes its buffers when ranks join, before it is known what fits, not in a step. */
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  /* An axis has a communicator of its own. Those of one GPU may wait for each other in circles if their
   * kernels start in another order on another rank; so they start in the order of the host's calls. */
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

/* number: errno of the load, or 0. */
static int topology_failed(int number, struct tc_err *err)
{
  for (int i = 0; i < TC_TOPOLOGY_ENV; i++)
    if (*tc_env(tc_topology_env[i]))
      return tc_fail(err, TC_EUSER, "hwloc can't read this node's topology: %s = %s is set; unset or correct it",
                     tc_topology_env[i], tc_env(tc_topology_env[i]));
  return tc_fail(err, TC_EUSER, "hwloc can't read this node's topology: %s",
                 number ? strerror(number) : "lstopo may say why");
}

/* The host is known after a failure, too. */
static int look_at_self(struct self *s, struct tc_err *err)
{
  /* Plugins that open displays or drivers: slow, and not needed; PCI is read from sysfs. */
  static const char *const unwanted[] = { "pci", "opencl", "cuda", "nvml", "gl", "rsmi" };
  memset(s, 0, sizeof *s);               /* the padding too: it goes over the wire */
  tc_ranks_prepare();
  s->info.device = s->info.dev.numa = s->info.dev.distance = s->info.dev.n_links = -1;
  if (gethostname(s->info.host, sizeof s->info.host - 1) != 0) strcpy(s->info.host, "unknown");
  if (hwloc_topology_init(&s->topo) != 0) {
    s->topo = NULL;
    return tc_fail(err, TC_EUSER, "hwloc can't be started: %s", strerror(errno));
  }
  for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++)
    (void)hwloc_topology_set_components(s->topo, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                        unwanted[i]);
  hwloc_topology_set_io_types_filter(s->topo, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  /* CPUs that a cgroup keeps from us still show which GPUs they are near. */
  hwloc_topology_set_flags(s->topo, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  errno = 0;
  if (hwloc_topology_load(s->topo) != 0) {
    const int number = errno;
    hwloc_topology_destroy(s->topo);
    s->topo = NULL;
    return topology_failed(number, err);
  }
  tc_gpus_look(&s->gpus, s->topo, tc_env("TERCIO_SYSROOT"));   /* unset but in tests */
  s->info.n_visible = s->gpus.n;
  s->info.n_node_devices = s->gpus.n_node;
  look_at_cpus(s);
  return TC_OK;
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
  TC_FREE(first, count, devices);
}

/* ---- devices and CPUs of a rank --------------------------------------------------------- */

/* Devices are the same if their UUID is; else the bus; else what CUDA calls them. */
static uint64_t device_id(const struct tc_dev *d)
{
  return tc_hash64(*d->uuid ? d->uuid : *d->pci ? d->pci : d->name);
}

static void set_visible(struct visible_gpu *visible, const struct tc_visible *v)
{
  for (int i = 0; i < v->n; i++)
    visible[i] = (struct visible_gpu){ device_id(&v->dev[i]), v->dev[i].numa, v->dev[i].distance };
}

/* Devices that are visible to any of n ranks, in the order in which they first occur; their number. */
static int collect_gpus(const struct blob *const *at, int n, struct visible_gpu **out)
{
  struct visible_gpu *all = NULL;
  int n_all = 0, cap = 0;
  for (int r = 0; r < n; r++)
    for (int i = 0; i < at[r]->info.n_visible; i++) {
      int k = 0;
      while (k < n_all && all[k].id != at[r]->visible[i].id) k++;
      if (k < n_all) continue;
      TC_APPEND(all, n_all, cap, at[r]->visible[i]);
    }
  *out = all;
  return n_all;
}

/* at[n]: what the ranks of a node sent. index[n] <- the rank's own among its visible devices, or -1;
 * numa[n] <- that device's NUMA node, or -1. */
static void choose_devices(const struct blob *const *at, int n, int32_t *index, int *numa)
{
  struct visible_gpu *all;
  int n_all = collect_gpus(at, n, &all);
  int32_t *cost = tc_malloc((size_t)n * (size_t)TC_MAX(n_all, 1) * sizeof *cost);
  for (int r = 0; r < n; r++)
    for (int k = 0; k < n_all; k++) {
      int32_t *c = &cost[r * n_all + k];
      *c = -1;
      for (int i = 0; i < at[r]->info.n_visible && *c < 0; i++)
        if (at[r]->visible[i].id == all[k].id) *c = at[r]->visible[i].distance;
    }
  tc_bind_gpus(index, cost, n, n_all);
  for (int r = 0; r < n; r++) {
    int k = index[r], i = 0;
    numa[r] = k < 0 ? -1 : all[k].numa;
    if (k < 0) continue;
    while (at[r]->visible[i].id != all[k].id) i++;
    index[r] = i;
  }
  TC_FREE(cost, all);
}

/* The me-th rank's part of the CPUs it shares with others of the n of its node. */
static void divide_cpus(const struct self *s, const struct tc_ranks_request *request,
                        const struct blob *const *at, const int *numa, int n, int me,
                        struct tc_rank_info *info)
{
  hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
  hwloc_bitmap_t *part = tc_calloc((size_t)n, sizeof *part);
  int *preferred = tc_malloc((size_t)n * sizeof *preferred), sharing = 0, mine = 0;
  for (int r = 0; r < n; r++) {
    if (strcmp(at[r]->info.cpuset, at[me]->info.cpuset) != 0) continue;
    if (r == me) mine = sharing;
    part[sharing] = hwloc_bitmap_alloc();
    preferred[sharing++] = numa[r];
  }
  hwloc_bitmap_list_sscanf(cpus, at[me]->info.cpuset);
  int fewest = tc_bind_cpus(part, s->topo, cpus, request->gpus ? preferred : NULL, sharing);
  if (fewest > 0 && fewest >= request->threads) {
    set_cpus(s->topo, part[mine], info);
    info->bound = true;
    if (info->device >= 0) info->dev.distance = tc_gpus_distance(s->topo, &info->dev, part[mine]);
  }
  for (int k = 0; k < sharing; k++) hwloc_bitmap_free(part[k]);
  TC_FREE(part, preferred);
  hwloc_bitmap_free(cpus);
}

/* Fills in the device and CPUs of the me-th of a node's n ranks. */
static void take_own(const struct self *s, const struct tc_ranks_request *request,
                      const struct blob *const *at, const int32_t *index, const int *numa, int n,
                      int me, struct tc_rank_info *info)
{
  info->device = index[me];
  if (info->device >= 0) info->dev = s->gpus.dev[info->device];
  if (info->device >= 0 && request->ask) tc_gpus_ask(&info->dev, 1);
  if (request->bind) divide_cpus(s, request, at, numa, n, me, info);
}

static struct tc_ranks *ranks_make(int rank, int world, const char *launcher)
{
  struct tc_ranks *r = tc_calloc(1, sizeof *r);
  r->rank = rank;
  r->world = world;
  snprintf(r->launcher, sizeof r->launcher, "%s", launcher);
  snprintf(r->job, sizeof r->job, "%s", tc_env("SLURM_JOB_ID"));
  r->restart = env_int("SLURM_RESTART_COUNT", 0);
  r->info = tc_calloc((size_t)world, sizeof *r->info);
  r->node_of_rank = tc_calloc((size_t)world, sizeof *r->node_of_rank);
  return r;
}

/* This rank's device and CPUs, from what the ranks of its node sent. */
static void choose_own(struct tc_ranks *r, const struct self *s, const struct tc_ranks_request *request,
                   const struct blob *all)
{
  struct tc_rank_info *me = &r->info[r->rank];
  const size_t size = (size_t)me->local_size;
  const struct blob **at = tc_malloc(size * sizeof *at);
  int32_t *index = tc_malloc(size * sizeof *index);
  int *numa = tc_malloc(size * sizeof *numa), n = 0;
  for (int i = 0; i < r->world; i++)
    if (r->node_of_rank[i] == me->node) at[n++] = &all[i];
  choose_devices(at, n, index, numa);
  take_own(s, request, at, index, numa, n, me->local_rank, me);
  TC_FREE(at, index, numa);
}

/* The failure of the lowest rank whose node can't be read: the same on all ranks. */
static int all_could_read(const struct blob *all, int world, struct tc_err *err)
{
  for (int i = 0; i < world; i++)
    if (all[i].status < 0)
      return tc_fail(err, all[i].status, "rank %d on %s: %s", i, all[i].info.host, all[i].problem);
  return TC_OK;
}

/* Two exchanges: the node and the visible devices of each rank, or why it failed to find them (status and *err);
 * then its device and CPUs. */
static int exchange_all(struct tc_ranks *r, const struct self *s, int status,
                        const struct tc_ranks_request *request, struct blob *all, struct tc_err *err)
{
  struct blob *mine = tc_calloc(1, sizeof *mine);
  mine->magic = TC_BLOB_MAGIC;
  mine->status = status;
  if (status < 0) snprintf(mine->problem, sizeof mine->problem, "%.*s", TC_PROBLEM_BYTES - 1, err->text);
  mine->leader = tc_pmix_leader();
  mine->info = s->info;
  set_visible(mine->visible, &s->gpus);
  int rc = tc_ranks_exchange(r->rank, true, mine, r->world, request, all, err);
  if (!rc) rc = all_could_read(all, r->world, err);
  bool complete = !request->bind;          /* nothing more is to be exchanged */
  for (int i = 0; !rc && i < r->world; i++) {
    r->info[i] = all[i].info;
    complete &= all[i].info.n_visible == 0;
  }
  if (!rc) set_nodes(r, all);
  if (!rc && !complete) {
    choose_own(r, s, request, all);
    mine->info = r->info[r->rank];
    rc = tc_ranks_exchange(r->rank, false, mine, r->world, request, all, err);
    for (int i = 0; !rc && i < r->world; i++) r->info[i] = all[i].info;
  }
  free(mine);
  return rc;
}

static int discover_pmix(struct tc_ranks **out, const struct tc_ranks_request *request, struct tc_err *err)
{
  int rank = 0, world = 0;
  struct self *s;
  bool mpirun = *tc_env("OMPI_COMM_WORLD_SIZE") || !*tc_env("SLURM_PROCID");
  TC_TRY(tc_pmix_start(&rank, &world, err));
  /* Left over from an outer step: this step's own launcher has no PMIx. */
  int tasks = env_int("SLURM_STEP_NUM_TASKS", world);
  if (!mpirun && tasks != world)
    return tc_fail(err, TC_EUSER, "PMIx knows %d ranks, but this step has %d tasks: start with "
                   "srun --mpi=pmix", world, tasks);
  const struct tc_comm *c = request->comm;
  if (c && (tc_comm_coord(c) != rank || tc_comm_size(c) != world))
    return tc_fail(err, TC_EUSER, "MPI says rank %d of %d, PMIx %d of %d: is this Open MPI built for the launcher's PMIx?",
                   tc_comm_coord(c), tc_comm_size(c), rank, world);
  struct tc_ranks *r = ranks_make(rank, world, mpirun ? "mpirun" : "srun");
  s = tc_malloc(sizeof *s);
  struct blob *all = tc_malloc((size_t)world * sizeof *all);
  int status = look_at_self(s, err);
  status = exchange_all(r, s, status, request, all, err);      /* the others wait for this rank there */
  if (s->topo) hwloc_topology_destroy(s->topo);
  TC_FREE(s, all);
  if (status == TC_OK) *out = r;
  else tc_ranks_free(r);
  return status;
}

/* ---- public ---------------------------------------------------------------------------- */

/* A batch script has the variables of a task, but is no step: SLURM_NTASKS counts the tasks of steps to come. */
static bool in_batch_script(void)
{
  return *tc_env("SLURM_PROCID") && env_int("SLURM_PROCID", 1) == 0 && !*tc_env("SLURM_STEP_ID");
}

/* Refuses several processes that nothing joins: each would be a run of its own. */
static int check_alone(struct tc_err *err)
{
  static const char *const others[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE" };
  int tasks = env_int("SLURM_STEP_NUM_TASKS", 0);
  if (tasks == 0 && in_batch_script()) {
    if (env_int("SLURM_NTASKS", 0) > 1)
      tc_warn("one rank in the batch script of a job of %s tasks; srun --mpi=pmix starts a rank in each task",
              tc_env("SLURM_NTASKS"));
  } else if (tasks == 0 && *tc_env("SLURM_PROCID")) {
    tasks = env_int("SLURM_NTASKS", 0);
  }
  if (tasks > 1)
    return tc_fail(err, TC_EUSER, "this Slurm step has %d tasks, but no PMIx to join them: start "
                   "with srun --mpi=pmix", tasks);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (env_int(others[i], 0) > 1)
      return tc_fail(err, TC_EUSER, "%s = %s, but this launcher has no PMIx to join the ranks: "
                     "start with Open MPI's mpirun, or srun --mpi=pmix", others[i],
                     tc_env(others[i]));
  return TC_OK;
}

static const struct tc_ranks_request nothing;

int tc_ranks_discover(struct tc_ranks **out, const struct tc_ranks_request *request, struct tc_err *err)
{
  *out = NULL;
  if (tc_pmix_launched()) return discover_pmix(out, request ? request : &nothing, err);
  TC_TRY(check_alone(err));
  return tc_ranks_threads(out, 1, request, err);
}

/* n ranks, to which the devices of this process are visible. */
static void choose_of_threads(struct tc_ranks *r, const struct self *s,
                           const struct tc_ranks_request *request)
{
  const size_t n = (size_t)r->world;
  struct blob *one = tc_calloc(1, sizeof *one);
  const struct blob **at = tc_malloc(n * sizeof *at);
  int32_t *index = tc_malloc(n * sizeof *index);
  int *numa = tc_malloc(n * sizeof *numa);
  one->info = s->info;
  set_visible(one->visible, &s->gpus);
  for (size_t i = 0; i < n; i++) at[i] = one;
  choose_devices(at, r->world, index, numa);
  for (int i = 0; i < r->world; i++)
    take_own(s, request, at, index, numa, r->world, i, &r->info[i]);
  TC_FREE(one, at, index, numa);
}

int tc_ranks_threads(struct tc_ranks **out, int n, const struct tc_ranks_request *request,
                     struct tc_err *err)
{
  *out = NULL;
  if (n < 1 || n > MAX_THREADS)
    return tc_fail(err, TC_EUSER, "run.ranks = %d: give 1 to %d", n, MAX_THREADS);
  struct self *s = tc_malloc(sizeof *s);
  int rc = look_at_self(s, err);
  if (rc) {
    free(s);
    return rc;
  }
  struct tc_ranks *r = ranks_make(0, n, "alone");
  r->n_nodes = 1;
  for (int i = 0; i < n; i++) {
    r->info[i] = s->info;
    r->info[i].local_rank = i;
    r->info[i].local_size = n;
  }
  choose_of_threads(r, s, request ? request : &nothing);
  hwloc_topology_destroy(s->topo);
  free(s);
  *out = r;
  return TC_OK;
}

void tc_ranks_free(struct tc_ranks *r)
{
  if (!r) return;
  TC_FREE(r->info, r->node_of_rank, r);
}

void tc_ranks_gpu_name(const struct tc_rank_info *me, char *name, size_t size)
{
  if (me->device >= 0 && *me->dev.pci) snprintf(name, size, "cuda:%s", me->dev.pci);
  else snprintf(name, size, "cuda:%d", TC_MAX(me->device, 0));
}

bool tc_ranks_same_device(const struct tc_rank_info *a, const struct tc_rank_info *b)
{
  if (a->device < 0 || b->device < 0) return false;
  if (*a->dev.uuid && *b->dev.uuid) return strcmp(a->dev.uuid, b->dev.uuid) == 0;
  if (*a->dev.pci && *b->dev.pci) return strcmp(a->dev.pci, b->dev.pci) == 0;
  return strcmp(a->dev.name, b->dev.name) == 0;
}

char **tc_ranks_names(const struct tc_ranks *r)
{
  char **name = tc_malloc((size_t)r->world * sizeof *name);
  for (int i = 0; i < r->world; i++) name[i] = tc_sprintf("rank %d on %s", i, r->info[i].host);
  return name;
}
