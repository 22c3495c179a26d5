/* comm.c - `tercio comm`: every collective on an axis of the mesh, measured over size and
 * checked exactly. Needs no model.
 *
 * Ranks are threads of this process (run.ranks) or MPI processes, as in `tercio train`. All
 * that can be wrong with the input is found before either is started, by every process alike,
 * and said once. Rank 0 alone prints, each row when it has been measured. */
#include "src/cmd/cmd.h"
#include "kernels/kernel.h"
#include "src/cmd/comm_bench.h"
#include "src/comm/nccl.h"
#include "src/launch/launch.h"
#include "src/program/setup.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (INT64_C(64) << 30)
enum { MAX_ITERS = 10000, WORLD = TC_AXES, STEP = 4 /* from size to size */ };
enum { EXTRA_OP, EXTRA_AXIS, EXTRA_MIN, EXTRA_MAX, EXTRA_ITERS, EXTRA_JSON, N_EXTRA };
static const char *const extra_flags[] = { "op=", "axis=", "min=", "max=", "iters=", "json", NULL };

/* What to measure, and among whom: read-only once ranks run. */
struct job {
  bool op[TC_BENCH_OPS];
  int axis;                       /* of enum tc_axis, or WORLD */
  int64_t min_bytes, max_bytes;
  int iters;
  bool json;
  struct tc_launch launch;        /* owned, as is mesh */
  struct tc_mesh *mesh;
};

/* ---- the command line ---------------------------------------------------------------- */

static int parse_size(const char *flag, const char *text, int64_t *bytes, struct tc_err *err)
{
  char *end = NULL;
  errno = 0;
  int64_t n = isdigit((unsigned char)*text) ? strtoll(text, &end, 10) : -1;
  int shift = 0;
  if (n >= 0 && *end) {
    const char *unit = strchr("KMG", toupper((unsigned char)*end));
    if (unit && !end[1]) shift = 10 * (int)(unit - "KMG" + 1);
    else n = -1;
  }
  if (n < 0 || errno || n > MAX_BYTES >> shift || n << shift < (int64_t)sizeof(float))
    return tc_fail(err, TC_EUSER, "--%s = %s is not a size: give bytes from 4 to 64G, such as "
                   "4096, 64K or 16M", flag, text);
  *bytes = n << shift;
  return 0;
}

static int parse_ops(struct job *j, const char *text, struct tc_err *err)
{
  char all[200] = "";
  for (int i = 0; i < TC_BENCH_OPS; i++) {
    size_t at = strlen(all);
    snprintf(all + at, sizeof all - at, "%s%s", i ? ", " : "", tc_bench_op_name[i]);
  }
  for (const char *s = text; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) {
    int n = (int)strcspn(s, ","), found = 0;
    for (int i = 0; i < TC_BENCH_OPS; i++) {
      const char *name = tc_bench_op_name[i];
      bool is = (int)strlen(name) == n && !strncmp(s, name, (size_t)n);
      if (!is && !(n == 3 && !strncmp(s, "all", 3))) continue;
      j->op[i] = true;
      found++;
    }
    if (!found)
      return tc_fail(err, TC_EUSER, "--op = %.*s is not an operation; there are %s, and all", n, s,
                     all);
  }
  return 0;
}

static const char *axis_name(int axis)
{
  return axis == WORLD ? "world" : tc_axis_name[axis];
}

static int parse(struct job *j, const char *const *extra, struct tc_err *err)
{
  const char *axis = extra[EXTRA_AXIS] ? extra[EXTRA_AXIS] : "world";
  const char *iters = extra[EXTRA_ITERS] ? extra[EXTRA_ITERS] : "20";
  char *end;
  j->json = extra[EXTRA_JSON];
  TC_TRY(parse_ops(j, extra[EXTRA_OP] ? extra[EXTRA_OP] : "all", err));
  TC_TRY(parse_size("min", extra[EXTRA_MIN] ? extra[EXTRA_MIN] : "1K", &j->min_bytes, err));
  TC_TRY(parse_size("max", extra[EXTRA_MAX] ? extra[EXTRA_MAX] : "64M", &j->max_bytes, err));
  if (j->min_bytes > j->max_bytes)
    return tc_fail(err, TC_EUSER, "--min = %s is more than --max = %s: give, say, --min 1K --max "
                   "64M",
                   extra[EXTRA_MIN] ? extra[EXTRA_MIN] : "1K",
                   extra[EXTRA_MAX] ? extra[EXTRA_MAX] : "64M");
  long n = strtol(iters, &end, 10);
  if (*end || end == iters || n < 1 || n > MAX_ITERS)
    return tc_fail(err, TC_EUSER, "--iters = %s: give a number of iterations from 1 to %d, such as "
                   "20", iters, MAX_ITERS);
  j->iters = (int)n;
  for (j->axis = TC_PP; j->axis <= WORLD; j->axis++)
    if (!strcmp(axis, axis_name(j->axis))) return 0;
  return tc_fail(err, TC_EUSER, "--axis = %s is not an axis: give tp, dp, pp or world", axis);
}

static int axis_size(const struct job *j, int axis)
{
  return axis == WORLD ? j->mesh->world : j->mesh->size[axis];
}

static int check_axis(const struct job *j, struct tc_err *err)
{
  char more[100] = "";
  if (axis_size(j, j->axis) > 1) return 0;
  if (j->mesh->world == 1)
    return tc_fail(err, TC_EUSER, "there is one rank only, and nobody to talk to: add "
                   "--run.ranks=4 (threads), or start several with mpirun or srun");
  for (int a = TC_PP; a <= WORLD; a++) {
    size_t at = strlen(more);
    if (axis_size(j, a) > 1)
      snprintf(more + at, sizeof more - at, "%s%s has %d", at ? ", " : "", axis_name(a),
               axis_size(j, a));
  }
  return tc_fail(err, TC_EUSER, "axis %s has one rank: nothing to measure; %s (mesh.%s sets its "
                 "size)", axis_name(j->axis), more, axis_name(j->axis));
}

/* ---- printing -------------------------------------------------------------------------- */

static const char *link_name(const struct job *j, bool native)
{
  return native ? "NCCL" : j->launch.hub ? "threads" : "MPI";
}

static void print_head(const struct job *j, bool native)
{
  const int32_t *size = j->mesh->size;
  int members = axis_size(j, j->axis), groups = j->mesh->world / members;
  if (j->json) {
    printf("[");
    return;
  }
  printf("%s, %d ranks on %d node%s: pp %d x dp %d x tp %d; axis %s: %d ranks, %d group%s\n"
         "fp32; size in bytes; time of %d iterations, each the slowest rank's; GB/s as nccl-tests "
         "define them\n", link_name(j, native), j->mesh->world, j->mesh->n_nodes,
         j->mesh->n_nodes == 1 ? "" : "s", size[TC_PP], size[TC_DP], size[TC_TP],
         axis_name(j->axis), members, groups, groups == 1 ? "" : "s at once", j->iters);
  printf("%-16s  %-5s  %11s  %11s  %11s  %9s  %9s  %s\n", "op", "axis", "size", "count", "time_us",
         "algbw", "busbw", "check");
  fflush(stdout);
}

static void print_row(const struct job *j, int op, const struct tc_bench_row *r, bool ok,
                      bool first, bool native)
{
  const char *check = ok ? "ok" : "wrong";
  if (!j->json) {
    printf("%-16s  %-5s  %11lld  %11lld  %11.1f  %9.4f  %9.4f  %s\n", tc_bench_op_name[op],
           axis_name(j->axis), (long long)r->size_bytes, (long long)r->count, r->time_us, r->algbw,
           r->busbw, check);
    fflush(stdout);
    return;
  }
  json_t *o = json_object();
  json_object_set_new(o, "op", json_string(tc_bench_op_name[op]));
  json_object_set_new(o, "axis", json_string(axis_name(j->axis)));
  json_object_set_new(o, "ranks", json_integer(axis_size(j, j->axis)));
  json_object_set_new(o, "link", json_string(native ? "nccl" : j->launch.hub ? "thread" : "mpi"));
  json_object_set_new(o, "size", json_integer(r->size_bytes));
  json_object_set_new(o, "count", json_integer(r->count));
  json_object_set_new(o, "time_us", json_real(r->time_us));
  json_object_set_new(o, "median_us", json_real(r->median_us));
  json_object_set_new(o, "algbw", json_real(r->algbw));
  json_object_set_new(o, "busbw", json_real(r->busbw));
  json_object_set_new(o, "check", json_string(check));
  printf(first ? "\n " : ",\n ");
  json_dumpf(o, stdout, JSON_REAL_PRECISION(6));
  fflush(stdout);
  json_decref(o);
}

/* One sentence: the collective beside doing without it, at the largest size. */
static void compare(const struct tc_bench_row *row, int op, int rival)
{
  const struct tc_bench_row *a = &row[op], *b = &row[rival];
  char size[32], a_sent[32], b_sent[32];
  if (!a->count || !b->count) return;
  double ratio = b->time_us / a->time_us;
  printf("%s is %.3g times as fast as %s at %s: %.3g ms and %.3g ms; rank 0 sends %s and %s\n",
         tc_bench_op_name[op], ratio, tc_bench_op_name[rival],
         tc_human_bytes(size, sizeof size, (double)a->size_bytes), a->time_us * 1e-3,
         b->time_us * 1e-3, tc_human_bytes(a_sent, sizeof a_sent, (double)a->sent_bytes),
         tc_human_bytes(b_sent, sizeof b_sent, (double)b->sent_bytes));
}

/* ---- a rank ------------------------------------------------------------------------------ */

struct group {
  struct tc_comm *comm;
  int32_t *members;               /* [size] world ranks; all owned */
  const char **who;
};

static int open_group(struct group *g, const struct job *j, int rank, int axis, struct tc_err *err)
{
  int n = axis_size(j, axis);
  g->members = tc_calloc((size_t)n, sizeof *g->members);
  g->who = tc_calloc((size_t)n, sizeof *g->who);
  for (int i = 0; i < n && axis == WORLD; i++) g->members[i] = i;
  if (axis != WORLD) tc_mesh_group(j->mesh, rank, axis, g->members);
  for (int i = 0; i < n; i++) g->who[i] = j->launch.who[g->members[i]];
  const struct tc_comm_opts o = { .name = axis_name(axis), .who = g->who,
                                  .deadline_s = j->launch.cfg->run_deadline };
  if (j->launch.hub) g->comm = tc_comm_thread(j->launch.hub, axis, rank, g->members, n, &o);
  else TC_TRY(tc_comm_mpi(&g->comm, axis, g->members, n, &o, err));
  return tc_comm_usable(g->comm, err);
}

static void close_group(struct group *g)
{
  free(g->members);
  free(g->who);
}

/* All sizes of all operations; what is wrong ends it, after its row. */
static int measure(const struct job *j, struct tc_bench *b, int rank, bool native,
                   struct tc_err *err)
{
  struct tc_bench_row row[TC_BENCH_OPS] = { 0 };
  bool first = true;
  int rc = 0;
  if (rank == 0) print_head(j, native);
  for (int op = 0; op < TC_BENCH_OPS && !rc; op++) {
    int64_t bytes = j->min_bytes;
    for (bool last = !j->op[op]; !last && !rc; bytes = TC_MIN(bytes * STEP, j->max_bytes)) {
      last = bytes == j->max_bytes;
      rc = tc_bench_run(b, op, bytes, &row[op], err);
      if (rank == 0 && rc != TC_EPEER) print_row(j, op, &row[op], !rc, first, native);
      first = false;
    }
  }
  if (rank == 0 && j->json) printf("\n]\n");
  if (rank == 0 && !j->json && !rc) {
    compare(row, TC_BENCH_ALL_REDUCE, TC_BENCH_REDUCE_BROADCAST);
    compare(row, TC_BENCH_BROADCAST, TC_BENCH_ONE_BY_ONE);
  }
  return rc;
}

/* ---- memory of a GPU --------------------------------------------------------------------- */

static void *gpu_alloc(void *d, int64_t bytes)
{
  return ((struct tc_device *)d)->ops->alloc(d, bytes);
}

static void gpu_free(void *d, void *p, int64_t bytes)
{
  ((struct tc_device *)d)->ops->free(d, p, bytes);
}

static void gpu_copy(void *d, void *dst, const void *src, int64_t bytes)
{
  ((struct tc_device *)d)->ops->copy(d, dst, src, bytes);
}

static void gpu_fill(void *d, void *p, int byte, int64_t bytes)
{
  tc_device_fill(d, p, byte, bytes);
}

static void gpu_sync(void *d)
{
  ((struct tc_device *)d)->ops->sync(d);
}

struct gpu {
  struct tc_device *device;       /* owned, as native */
  struct tc_comm *native;
};

/* Collective. g->native <- NCCL among the group's GPUs, if run.comm and run.device say so and the
 * GPUs can; else NULL, or the same error on all ranks. */
static int open_gpu(struct gpu *g, const struct job *j, int rank, const struct group *group,
                    struct tc_comm *world, struct tc_err *err)
{
  const struct tc_config *c = j->launch.cfg;
  const struct tc_rank_info *me = &j->launch.ranks->info[rank];
  const bool must = c->run_comm == TC_COMM_NCCL, cuda = c->run_device == TC_DEVICE_CUDA;
  const bool may = cuda || (c->run_device == TC_DEVICE_AUTO && (must || me->device >= 0));
  struct tc_err why = { 0 };
  char name[48];
  bool use = false;
  if (!must && c->run_comm != TC_COMM_AUTO) return 0;
  tc_ranks_gpu_name(me, name, sizeof name);
  if (may) tc_device_open(&g->device, name, 1, &why);
  const struct tc_nccl_ops *ops = g->device ? g->device->ops->nccl : NULL;
  TC_TRY(tc_comm_nccl_agree(&use, c->run_comm, ops, g->device, why.status ? why.text : NULL, world,
                            j->launch.who, err));
  if (!use) return 0;
  const struct tc_comm_opts o = { .name = axis_name(j->axis), .who = group->who,
                                  .deadline_s = c->run_deadline };
  const int rc = tc_comm_nccl(&g->native, ops, g->device, group->comm, NULL, group->members,
                              j->axis == TC_PP, &o, err);
  return rc == TC_EPEER ? rc : tc_comm_agree(world, j->launch.who, rc, err);   /* other groups, too */
}

static int run_rank(int rank, void *job, struct tc_err *err)
{
  const struct job *j = job;
  struct group world = { 0 }, axis = { 0 };
  struct gpu gpu = { 0 };
  struct tc_bench *b = NULL;
  tc_log_set_rank(rank);
  int rc = open_group(&world, j, rank, WORLD, err);
  if (!rc && j->axis != WORLD) rc = open_group(&axis, j, rank, j->axis, err);
  const struct group *g = j->axis == WORLD ? &world : &axis;
  if (!rc) rc = open_gpu(&gpu, j, rank, g, world.comm, err);
  const struct tc_bench_memory memory = { gpu.device, gpu_alloc, gpu_free, gpu_copy, gpu_fill,
                                          gpu_sync };
  if (!rc) {
    b = tc_bench_new(gpu.native ? gpu.native : g->comm, world.comm, g->members, rank,
                     j->max_bytes, j->iters, gpu.native ? &memory : NULL);
    int64_t missing = !b;
    rc = tc_comm_max_i64(world.comm, &missing, 1, err);
    if (!rc && missing)
      rc = tc_fail(err, TC_EUSER, "out of memory: a GPU can't hold two arrays of --max = %lld "
                   "bytes; give less", (long long)j->max_bytes);
  }
  if (!rc) rc = measure(j, b, rank, gpu.native, err);
  struct tc_comm *comm[] = { gpu.native, axis.comm, world.comm };
  if (!tc_comms_free(comm, 3)) return rc;        /* a thread hangs in a library, and uses the rest */
  close_group(&axis);
  close_group(&world);
  tc_bench_free(b);
  tc_device_close(gpu.device);
  return rc;
}

int tc_cmd_comm(int argc, char **argv)
{
  const char *extra[N_EXTRA] = { 0 };
  struct tc_err err = { 0 };
  struct tc_config *cfg = NULL;
  struct job j = { 0 };
  int rc = tc_config_new(&cfg, argc, argv, extra_flags, extra, &err);
  if (!rc) rc = parse(&j, extra, &err);
  if (!rc) rc = tc_launch_find(&j.launch, cfg, &err);
  const struct tc_ranks *r = j.launch.ranks;
  if (!rc)
    rc = tc_setup_axes(&j.mesh, cfg, r->world, r->node_of_rank, tc_ranks_node_devices(r), &err);
  if (!rc) rc = check_axis(&j, &err);
  int status = rc < 0 ? tc_launch_say(j.launch.ranks, rc, &err)
                      : tc_launch_run(&j.launch, run_rank, &j);
  tc_mesh_free(j.mesh);
  tc_launch_free(&j.launch);
  tc_config_free(cfg);
  return status;
}
