/* comm.c - `tercio comm`: measures every collective on an axis of the mesh over size, and
 * checks the results exactly; or each pair of nodes (src/bench/pairs.c). Needs no model.
 *
 * Ranks are threads of this process (run.ranks) or MPI processes, as in `tercio train`. Every process checks
 * the command line before either is started, and the error is printed once. Only rank 0 prints, each row
 * as soon as it is measured. */
#include "src/cmd/cmd.h"
#include "kernels/kernel.h"
#include "src/bench/bench.h"
#include "src/bench/pairs.h"
#include "src/comm/nccl.h"
#include "src/launch/launch.h"
#include "src/program/setup.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (INT64_C(64) << 30)
enum { MAX_ITERS = 10000, WORLD = TC_AXES, FACTOR = 4 /* from size to size */,
       MAX_ROUNDS = 1 << 20 };
#define LEAST_ITERS 2                 /* of a size that is measured at all */
enum { EXTRA_OP, EXTRA_AXIS, EXTRA_MIN, EXTRA_MAX, EXTRA_ITERS, EXTRA_JSON, EXTRA_PAIRS, EXTRA_ROUNDS,
       N_EXTRA };
static const char *const extra_flags[] = { "op=", "axis=", "min=", "max=", "iters=", "json", "pairs",
                                           "rounds=", NULL };

/* What to measure, and among which ranks: read-only while ranks run. */
struct job {
  bool op[TC_BENCH_OPS];
  int axis;                       /* of enum tc_axis, or WORLD */
  int64_t min_bytes, max_bytes;
  int iters;
  bool adapt_iters, adapt_max;    /* fewer iterations, no large sizes: to end in about TC_COMM_BUDGET_S */
  bool json, pairs;
  int rounds;                     /* of pairs; 0: as many as the time allows */
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

static int parse_count(const char *flag, const char *text, const char *what, int most, int such, int *out,
                       struct tc_err *err)
{
  char *end;
  long n = strtol(text, &end, 10);
  if (*end || end == text || n < 1 || n > most)
    return tc_fail(err, TC_EUSER, "--%s = %s: give a number of %s from 1 to %d, such as %d", flag, text, what,
                   most, such);
  *out = (int)n;
  return 0;
}

static int parse_pairs(struct job *j, const char *const *extra, struct tc_err *err)
{
  static const struct { int flag; const char *name; } not_theirs[] = {
    { EXTRA_OP, "op" }, { EXTRA_AXIS, "axis" }, { EXTRA_MIN, "min" } };
  j->pairs = extra[EXTRA_PAIRS];
  for (int i = 0; i < 3 && j->pairs; i++)
    if (extra[not_theirs[i].flag])
      return tc_fail(err, TC_EUSER, "--pairs sends messages of one size between nodes, and --%s has no meaning "
                     "for it: leave one; --max sets the size", not_theirs[i].name);
  if (!extra[EXTRA_ROUNDS]) return 0;
  if (!j->pairs)
    return tc_fail(err, TC_EUSER, "--rounds = %s is for --pairs: give both", extra[EXTRA_ROUNDS]);
  return parse_count("rounds", extra[EXTRA_ROUNDS], "rounds", MAX_ROUNDS, 3, &j->rounds, err);
}

static int parse(struct job *j, const char *const *extra, struct tc_err *err)
{
  const char *axis = extra[EXTRA_AXIS] ? extra[EXTRA_AXIS] : "world";
  j->json = extra[EXTRA_JSON];
  j->adapt_iters = !extra[EXTRA_ITERS];
  j->adapt_max = !extra[EXTRA_MAX];
  TC_TRY(parse_pairs(j, extra, err));
  TC_TRY(parse_ops(j, extra[EXTRA_OP] ? extra[EXTRA_OP] : "all", err));
  TC_TRY(parse_size("min", extra[EXTRA_MIN] ? extra[EXTRA_MIN] : "1K", &j->min_bytes, err));
  TC_TRY(parse_size("max", extra[EXTRA_MAX] ? extra[EXTRA_MAX] : j->pairs ? "4M" : "64M",
                    &j->max_bytes, err));
  if (!j->pairs && j->min_bytes > j->max_bytes)
    return tc_fail(err, TC_EUSER, "--min = %s is more than --max = %s: give, say, --min 1K --max "
                   "64M",
                   extra[EXTRA_MIN] ? extra[EXTRA_MIN] : "1K",
                   extra[EXTRA_MAX] ? extra[EXTRA_MAX] : "64M");
  TC_TRY(parse_count("iters", extra[EXTRA_ITERS] ? extra[EXTRA_ITERS] : "20", "iterations", MAX_ITERS, 20,
                     &j->iters, err));
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
    return tc_fail(err, TC_EUSER, "there is only one rank, so nothing can be measured: add "
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

static const char *link_key(const struct job *j, bool native)
{
  return native ? "nccl" : j->launch.hub ? "thread" : "mpi";
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
         "fp32; size in bytes; time of %s%d iterations, each the slowest rank's; GB/s as nccl-tests "
         "define them\n", link_name(j, native), j->mesh->world, j->mesh->n_nodes,
         j->mesh->n_nodes == 1 ? "" : "s", size[TC_PP], size[TC_DP], size[TC_TP],
         axis_name(j->axis), members, groups, groups == 1 ? "" : "s at once",
         j->adapt_iters ? "up to " : "", j->iters);
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
  json_object_set_new(o, "link", json_string(link_key(j, native)));
  json_object_set_new(o, "size", json_integer(r->size_bytes));
  json_object_set_new(o, "count", json_integer(r->count));
  json_object_set_new(o, "iterations", json_integer(r->iters));
  tc_figure(o, "time_us", r->time_us);
  tc_figure(o, "median_us", r->median_us);
  tc_figure(o, "algbw", r->algbw);
  tc_figure(o, "busbw", r->busbw);
  json_object_set_new(o, "check", json_string(check));
  printf(first ? "\n " : ",\n ");
  json_dumpf(o, stdout, JSON_REAL_PRECISION(6));
  fflush(stdout);
  json_decref(o);
}

/* One sentence: compares the collective with its baseline, at the largest size. */
static void print_comparison(const struct tc_bench_row *row, int op, int baseline)
{
  const struct tc_bench_row *a = &row[op], *b = &row[baseline];
  char size[32], a_sent[32], b_sent[32];
  if (!a->count || !b->count || a->size_bytes != b->size_bytes) return;
  double ratio = b->time_us / a->time_us;
  printf("%s is %.3g times as fast as %s at %s: %.3g ms and %.3g ms; rank 0 sends %s and %s\n",
         tc_bench_op_name[op], ratio, tc_bench_op_name[baseline],
         tc_human_bytes(size, sizeof size, (double)a->size_bytes), a->time_us * 1e-3,
         b->time_us * 1e-3, tc_human_bytes(a_sent, sizeof a_sent, (double)a->sent_bytes),
         tc_human_bytes(b_sent, sizeof b_sent, (double)b->sent_bytes));
}

/* ---- a rank ------------------------------------------------------------------------------ */

struct group {
  struct tc_comm *comm;
  int32_t *members;               /* [size] world ranks; all owned */
  const char **rank_names;
};

static int open_group(struct group *g, const struct job *j, int rank, int axis, struct tc_err *err)
{
  int n = axis_size(j, axis);
  g->members = tc_calloc((size_t)n, sizeof *g->members);
  g->rank_names = tc_calloc((size_t)n, sizeof *g->rank_names);
  for (int i = 0; i < n && axis == WORLD; i++) g->members[i] = i;
  if (axis != WORLD) tc_mesh_group(j->mesh, rank, axis, g->members);
  for (int i = 0; i < n; i++) g->rank_names[i] = j->launch.rank_names[g->members[i]];
  const struct tc_comm_opts o = { .name = axis_name(axis), .rank_names = g->rank_names,
                                  .deadline_s = j->launch.cfg->run_deadline };
  if (j->launch.hub) g->comm = tc_comm_thread(j->launch.hub, axis, rank, g->members, n, &o);
  else TC_TRY(tc_comm_mpi(&g->comm, axis, g->members, n, &o, err));
  return tc_comm_usable(g->comm, err);
}

static void close_group(struct group *g)
{
  free(g->members);
  free(g->rank_names);
}

/* How far the measurements are: the same on all ranks. */
struct pace {
  int64_t start_ns, now_ns;       /* now_ns: since the start, the latest rank's */
  int64_t end_ns;                 /* of this operation's share */
  int64_t iter_ns, iter_bytes;    /* of the last size that was measured; 0: none */
  char out[600];                  /* what was left out, as text */
};

static int pace_meet(struct pace *p, struct tc_comm *world, struct tc_err *err)
{
  p->now_ns = tc_now_ns() - p->start_ns;
  return tc_comm_max_i64(world, &p->now_ns, 1, err);
}

/* How many iterations of this size fit into the operation's share; 0: too few. */
static int pace_iters(const struct job *j, const struct pace *p, int64_t bytes)
{
  if (!p->iter_bytes) return j->iters;
  const double ns = (double)p->iter_ns * (double)bytes / (double)p->iter_bytes;
  const double left_ns = (double)(p->end_ns - p->now_ns);
  const int least = j->adapt_iters ? LEAST_ITERS : j->iters;
  if (j->adapt_max && bytes > j->min_bytes && (least + TC_BENCH_WARM_UP) * ns > left_ns) return 0;
  if (!j->adapt_iters) return j->iters;
  return (int)TC_MAX(LEAST_ITERS, TC_MIN((double)j->iters, left_ns / 4 / ns - TC_BENCH_WARM_UP));
}

/* All sizes of an operation; what is wrong ends it, after its row. */
static int measure_op(const struct job *j, struct tc_bench *b, struct tc_comm *world, int rank, bool native,
                      int op, struct pace *p, struct tc_bench_row *row, bool *first, struct tc_err *err)
{
  const bool adapt = j->adapt_iters || j->adapt_max;
  int64_t bytes = j->min_bytes;
  int rc = 0;
  p->iter_bytes = 0;
  if (adapt) {                                   /* one iteration of the smallest, for an estimate */
    tc_bench_iters(b, 1);
    TC_TRY(tc_bench_run(b, op, bytes, row, err));
    p->iter_ns = (int64_t)(row->time_us * 1e3) + 1;
    p->iter_bytes = bytes;
  }
  for (bool last = false; !last && !rc; bytes = TC_MIN(bytes * FACTOR, j->max_bytes)) {
    if (adapt) TC_TRY(pace_meet(p, world, err));
    const int iters = pace_iters(j, p, bytes);
    if (!iters) {
      size_t at = strlen(p->out);
      snprintf(p->out + at, sizeof p->out - at, "%s%s from %lld", at ? ", " : "", tc_bench_op_name[op],
               (long long)bytes);
      return 0;
    }
    if (adapt) tc_bench_iters(b, iters);
    last = bytes == j->max_bytes;
    rc = tc_bench_run(b, op, bytes, row, err);
    if (rank == 0 && rc != TC_EPEER) print_row(j, op, row, !rc, *first, native);
    *first = false;
    if (!adapt) continue;
    p->iter_ns = (int64_t)(row->time_us * 1e3) + 1;
    p->iter_bytes = bytes;
  }
  return rc;
}

static int measure(const struct job *j, struct tc_bench *b, struct tc_comm *world, int rank, bool native,
                   struct tc_err *err)
{
  struct tc_bench_row row[TC_BENCH_OPS] = { 0 };
  struct pace p = { .start_ns = tc_now_ns() };
  bool first = true;
  int rc = 0, left = 0;
  for (int op = 0; op < TC_BENCH_OPS; op++) left += j->op[op];
  if (rank == 0) print_head(j, native);
  for (int op = 0; op < TC_BENCH_OPS && !rc; op++) {
    if (!j->op[op]) continue;
    p.end_ns = p.now_ns + (int64_t)(TC_COMM_BUDGET_S * 1e9 - (double)p.now_ns) / left--;
    rc = measure_op(j, b, world, rank, native, op, &p, &row[op], &first, err);
  }
  if (rank == 0 && j->json) printf("\n]\n");
  if (rank == 0 && !j->json && !rc) {
    print_comparison(row, TC_BENCH_ALL_REDUCE, TC_BENCH_REDUCE_BROADCAST);
    print_comparison(row, TC_BENCH_BROADCAST, TC_BENCH_ONE_BY_ONE);
  }
  char left_out[800];
  snprintf(left_out, sizeof left_out, "left out, to end in about %g s: sizes of %s bytes; --max 64M measures them",
           TC_COMM_BUDGET_S, p.out);
  if (rank == 0 && *p.out && !rc && j->json) tc_say("", "\n", "%s", left_out);
  else if (rank == 0 && *p.out && !rc) printf("%s\n", left_out);
  return rc;
}

static int measure_pairs(const struct job *j, struct tc_bench *b, struct tc_comm *world, int rank, bool native,
                         struct tc_err *err)
{
  const struct tc_pairs_opts o = { .launch = &j->launch, .bytes = j->max_bytes, .iters = j->iters,
                                   .link = j->json ? link_key(j, native) : link_name(j, native),
                                   .rounds = j->rounds, .adapt_iters = j->adapt_iters,
                                   .adapt_bytes = j->adapt_max, .json = j->json };
  return tc_pairs_run(&o, b, world, rank, err);
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

/* Collective. g->native <- NCCL among the group's GPUs, if run.comm and run.device select it and the
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
                            j->launch.rank_names, err));
  if (!use) return 0;
  const struct tc_comm_opts o = { .name = axis_name(j->axis), .rank_names = group->rank_names,
                                  .deadline_s = c->run_deadline };
  const int rc = tc_comm_nccl(&g->native, ops, g->device, group->comm, NULL, group->members,
                              j->axis == TC_PP, &o, err);
  /* So that other groups fail, too. */
  return rc == TC_EPEER ? rc : tc_comm_agree(world, j->launch.rank_names, rc, err);
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
                   "bytes; lower it", (long long)j->max_bytes);
  }
  if (!rc) rc = (j->pairs ? measure_pairs : measure)(j, b, world.comm, rank, gpu.native, err);
  struct tc_comm *comm[] = { gpu.native, axis.comm, world.comm };
  if (!tc_comms_free(comm, 3)) return rc;        /* a thread hangs in a library call and still uses the rest */
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
  int status = rc < 0 ? tc_launch_say(&j.launch, rc, &err)
                      : tc_launch_run(&j.launch, run_rank, &j);
  tc_mesh_free(j.mesh);
  tc_launch_free(&j.launch);
  tc_config_free(cfg);
  return status;
}
