/* t_launch_leaks.c - communicators, traces and views of a node leave no memory and no descriptors behind,
 * however they end. */
#include "src/launch/bind.h"
#include "src/comm/impl.h"
#include "src/comm/hub.h"
#include "src/comm/nccl.h"
#include "src/launch/gpus.h"
#include "src/monitor/trace.h"
#include "tests/unit/box.h"
#include "tests/unit/leak.h"

#include <sys/stat.h>

static const struct tc_comm_opts opts = { .name = "dp", .deadline_s = 60 };
static char folder[80];

/* ---- communicators ------------------------------------------------------------------------- */

/* Two ranks, of which one starts two all-reduces and the other none. */
static void threads(void)
{
  static const int32_t members[] = { 0, 1 };
  struct tc_hub *hub = tc_hub_new(2);
  struct tc_comm *c[2];
  struct tc_err err;
  char x[100] = "", y[100];
  const struct tc_part part[2] = { { x, y, 10, 5 }, { x + 20, y + 20, 60, 30 } };
  for (int r = 0; r < 2; r++) c[r] = tc_comm_thread(hub, 0, r, members, 2, &opts);
  for (int n = 1; n <= 2; n++) {
    const struct tc_coll_args a = {
      .coll = TC_ALL_REDUCE, .dtype = TC_I32, .n_parts = 1, .parts = part
    };
    tc_comm_start(c[0], &a, NULL, &err);
  }
  tc_comms_free(c, 2);
  tc_hub_free(hub);
}

static void alone(void)
{
  float x[8] = { 0 }, y[8], z[4];
  struct tc_err err;
  const struct tc_part part[] = { { x, y, 8, 8 }, { x, z, 4, 4 } };
  struct tc_comm *c = tc_comm_self(&opts);
  for (int n = 1; n <= 2; n++)
    for (int coll = TC_FIRST_COLL; coll < TC_COLLS; coll++) {
      const struct tc_coll_args a = { .coll = coll, .dtype = TC_F32, .n_parts = n, .parts = part };
      if (coll != TC_SEND && coll != TC_RECV) tc_comm_run(c, &a, &err);
    }
  tc_comm_free(c);
}

/* A device's library, of which one call fails, or none; how many of its communicators are open. */
static int fails, joined;
static int l_look(void *device, char gpu[64], struct tc_err *err)
{
  (void)device;
  snprintf(gpu, 64, "bus");
  return fails == 1 ? tc_fail(err, TC_EUSER, "no") : 0;
}
static int l_id(void *device, void *id, struct tc_err *err)
{
  (void)device;
  memset(id, 1, TC_NCCL_ID_BYTES);
  return fails == 2 ? tc_fail(err, TC_EUSER, "no") : 0;
}
static int l_join(struct tc_nccl **out, void *device, const void *id, int coord, int size, struct tc_nccl *beside,
                  struct tc_err *err)
{
  (void)beside, (void)id, (void)coord, (void)size;
  joined++;
  *out = device;
  return fails == 3 ? tc_fail(err, TC_EUSER, "no") : 0;
}
static int l_ready(struct tc_nccl *c, struct tc_err *err)
{
  (void)c, (void)err;
  return 1;
}
static void l_abort(struct tc_nccl *c) { (void)c; }
static void l_free(struct tc_nccl *c, bool well) { joined -= c && well; }

static void device(void)
{
  static const struct tc_nccl_ops ops = {
    .look = l_look, .id = l_id, .join = l_join, .ready = l_ready, .abort = l_abort, .free = l_free
  };
  const int32_t me = 0;
  for (fails = 0; fails <= 3; fails++) {
    struct tc_comm *host = tc_comm_self(&opts), *c = NULL;
    struct tc_err err;
    bool use;
    tc_comm_nccl_agree(&use, TC_COMM_NCCL, &ops, folder, NULL, host, NULL, &err);
    if (tc_comm_nccl(&c, &ops, folder, host, NULL, &me, false, &opts, &err) == 0) tc_comm_free(c);
    tc_comm_free(host);
  }
}

/* ---- traces -------------------------------------------------------------------------------- */

/* Written or not, to a file that can be made or can't. */
static void traces(void)
{
  char *file = tc_sprintf("%s/trace", folder), *nowhere = tc_sprintf("%s/none/trace", folder);
  for (int how = 0; how < 4; how++) {
    struct tc_comm *self = tc_comm_self(&opts);
    struct tc_comm_opts o = opts;
    struct tc_err err;
    struct tc_trace *t = tc_trace_new(&(struct tc_trace_opts){
        .file = how == 2 ? nowhere : file, .process = "rank 0", .world = 1, .steps = 2 });
    const struct tc_event e = { .name = "matmul", .bytes = -1, .mb = -1, .end_ns = 3 };
    tc_trace_comm(t, "dp", &o);
    tc_trace_open(t, NULL, 0, &err);
    tc_trace_reserve(t, 100);
    tc_trace_reserve(t, 1000);
    tc_trace_sync(t, self, &err);
    tc_trace_step(t, 1);
    tc_trace_add(t, &e);
    if (how == 0 || how == 2) tc_trace_write(t, self, &err);
    tc_trace_free(t);
    tc_comm_free(self);
    TC_ASSERT(access(file, F_OK) == (how ? -1 : 0));
    unlink(file);
  }
  free(file);
  free(nowhere);
}

/* ---- a node -------------------------------------------------------------------------------- */

static hwloc_topology_t topo;
static struct tc_visible *seen;
static hwloc_bitmap_t half;

static void gpus(void)
{
  static const char *const lists[] = { NULL, "1,0", "GPU-1,7", "" };
  char *order = tc_sprintf("%s/node", folder);
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
    if (lists[i]) setenv("CUDA_VISIBLE_DEVICES", lists[i], 1);
    else unsetenv("CUDA_VISIBLE_DEVICES");
    tc_gpus_look(seen, topo, order);
    for (int k = 0; k < seen->n; k++) tc_gpus_distance(topo, &seen->dev[k], half);
  }
  unsetenv("CUDA_VISIBLE_DEVICES");
  free(order);
}

static void binds(void)
{
  const int32_t cost[] = { 0, 100, 100, 0, 50, 50 };
  static const int home[] = { 1, 0, 1 };
  hwloc_bitmap_t part[3];
  int32_t chosen[3];
  for (int i = 0; i < 3; i++) part[i] = hwloc_bitmap_alloc();
  tc_bind_gpus(chosen, cost, 3, 2);
  tc_bind_cpus(part, topo, hwloc_topology_get_topology_cpuset(topo), home, 3);
  tc_bind_cpus(part, topo, half, NULL, 3);
  for (int i = 0; i < 3; i++) hwloc_bitmap_free(part[i]);
}

static void nodes(void)
{
  static const struct box box = { 2, 1, 4, 2, { 0, 1 } };
  static const int order[] = { 0, 1 };
  char *root = tc_sprintf("%s/node", folder);
  seen = tc_calloc(1, sizeof *seen);
  half = hwloc_bitmap_alloc();
  hwloc_bitmap_list_sscanf(half, "2-5");
  box_load(&topo, &box);
  mkdir(root, 0755);
  box_files(&box, root, order, true);
  leaves_nothing("looking for GPUs", gpus, 20);
  is_int(seen->n, 0, "... an empty list has none");
  leaves_nothing("binding", binds, 20);
  hwloc_topology_destroy(topo);
  hwloc_bitmap_free(half);
  free(seen);
  free(root);
}

int main(void)
{
  const char *tmp = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%.60s/t_left.XXXXXX", tmp ? tmp : "/tmp");
  TC_ASSERT(mkdtemp(folder));
  leaves_nothing("a communicator of two threads", threads, 1000);
  leaves_nothing("a communicator of one rank", alone, 20);
  leaves_nothing("a device's communicator", device, 20);
  is_int(joined, 0, "... and frees each communicator of the library");
  leaves_nothing("a trace", traces, 20);
  nodes();
  char *clean = tc_sprintf("rm -r '%s'", folder);
  ok(system(clean) == 0, "the folder is removed");
  free(clean);
  return done_testing();
}
