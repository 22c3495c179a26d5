/* cmd_comm.c - `tercio comm`: measures every collective on an axis of the mesh over size, and
 * checks the results exactly; or each pair of nodes (src/bench/pairs.c). Needs no model.
 *
 * Ranks are threads of this process (run.ranks) or MPI processes, as in `tercio train`. Every process checks
 * the command line before either is started, and the error is printed once. Only rank 0 prints, each row
 * as soon as it is measured. */
#include "src/cmd/cmd.h"
#include "src/bench/bench.h"
#include "src/cmd/out.h"
#include "src/cmd/print_pairs.h"
#include "src/launch/launch.h"
#include "src/program/setup.h"

#include <string.h>

#define MAX_BYTES (INT64_C(64) << 30)
enum { MAX_ITERS = 10000, WORLD = TC_BENCH_WORLD, MAX_ROUNDS = 1 << 20 };
/* What to measure, and among which ranks: read-only while ranks run. */
struct job {
  struct tc_sweep_opts sweep;     /* of pairs: max_bytes, iters, and whether to adapt them */
  int axis;                       /* of enum tc_set, or WORLD */
  bool json, pairs, table;
  int rounds;                     /* of pairs; 0: as many as the time allows */
  struct tc_launch launch;        /* owned, as is mesh */
  struct tc_mesh *mesh;
};

/* ---- the command line ---------------------------------------------------------------- */

static int set_ops(void *job, const struct tc_flag *f, const char *text, struct tc_err *err)
{
  struct job *j = job;
  char all[200] = "";
  (void)f;
  memset(j->sweep.op, 0, sizeof j->sweep.op);
  for (int i = 0; i < TC_BENCH_OPS; i++) tc_text_add(all, sizeof all, "%s%s", i ? ", " : "", tc_bench_op_name[i]);
  for (const char *s = text; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) {
    int n = (int)strcspn(s, ","), found = 0;
    for (int i = 0; i < TC_BENCH_OPS; i++) {
      const char *name = tc_bench_op_name[i];
      bool is = (int)strlen(name) == n && !strncmp(s, name, (size_t)n);
      if (!is && !(n == 3 && !strncmp(s, "all", 3))) continue;
      j->sweep.op[i] = true;
      found++;
    }
    if (!found)
      return tc_fail(err, TC_EUSER, "--op = %.*s is not an operation; there are %s, and all", n, s,
                     all);
  }
  return 0;
}

static int set_algorithm(void *job, const struct tc_flag *f, const char *text, struct tc_err *err)
{
  struct job *j = job;
  (void)f, (void)err;
  j->sweep.algorithm = tc_algorithm_named(text);
  return j->sweep.algorithm < 0;
}

static int set_axis(void *job, const struct tc_flag *f, const char *text, struct tc_err *err)
{
  struct job *j = job;
  (void)f, (void)err;
  for (j->axis = 0; j->axis <= WORLD; j->axis++)
    if (!strcmp(text, tc_bench_axis_name(j->axis))) return 0;
  return 1;
}

#define A_SIZE " is not a size: give bytes from 4 to 64G, such as 4096, 64K or 16M", TC_FLAG_SIZE
#define FIELD(f) .field = offsetof(struct job, f)
const struct tc_flag tc_flags_comm[] = {
  { "--op OP,...|all", "operations to measure (default all): all_reduce, reduce+broadcast, reduce_scatter, "
    "all_gather, broadcast, one_by_one, reduce, scatter, gather, all_to_all, send_recv, send; reduce+broadcast and "
    "one_by_one, a send to each member, are baselines; send is point to point, from each even coordinate of the axis "
    "to the next; e.g. tercio comm --op send --axis pp", .kind = TC_FLAG_CALL, .set = set_ops },
  { "--axis tp|dp|pp|world", "the axis whose groups communicate, all groups at the same time; world: one group "
    "of all ranks (default world); with mesh.shard also shard and replicate, with mesh.cp also cp; e.g. --axis dp --mesh.tp=4",
    " is not an axis: give tp, dp, pp or world", TC_FLAG_CALL,
    .set = set_axis },
  { "--algorithm auto|exchange|star|doubling|tree|scattered|chain|sumtree|halving|nodes", "who sends what to whom, in "
    "operations that it can do; auto: the one that suits the size, the ranks and their nodes (default auto); sums by "
    "sumtree, halving or nodes need --run.sums=nodes, the default; e.g. --op broadcast --algorithm tree",
    " is not an algorithm: give auto, exchange, star, doubling, tree, scattered, chain, sumtree, halving or nodes",
    TC_FLAG_CALL, .set = set_algorithm },
  { "--min SIZE", "the first size of the whole array, in bytes or with K, M or G for powers of 1024 "
    "(default 1K); each later size is 4 times the one before; e.g. --min 64K",
    A_SIZE, FIELD(sweep.min_bytes), sizeof(float), MAX_BYTES },
  { "--max SIZE", "the last size, at most 64G (default 64M, or what ends in about 30 s); e.g. --max 1G", A_SIZE,
    FIELD(sweep.max_bytes), sizeof(float), MAX_BYTES },
  { "--iters N", "timed iterations per size, after two that warm up, in [1, 10000] (default 20, fewer on a slow "
    "link); e.g. --iters 100", "a number of iterations from %.0f to %.0f, such as 20", TC_FLAG_INT,
    FIELD(sweep.iters), 1, MAX_ITERS },
  { "--pairs", "measure each node with each other node, several pairs at once, and name slow nodes and pairs "
    "(slow in three measurements); one node: its ranks, if each has a CPU",
    .kind = TC_FLAG_YES, FIELD(pairs), .drops = "--op --axis --algorithm --min",
    .says = "--pairs sends messages of one size between nodes, and %s has no meaning for it: leave one; --max sets the size" },
  { "--rounds N", "rounds of --pairs (default: what ends in about 30 s); e.g. --pairs --rounds 3",
    "a number of rounds from %.0f to %.0f, such as 3",
    TC_FLAG_INT, FIELD(rounds), 1, MAX_ROUNDS, .needs = "--pairs", .says = "--rounds = %s is for --pairs: give both" },
  { "--table", "print which algorithm a collective takes, by its members, their nodes and its bytes: the compiled table, or "
    "with that of run.collectives before it, in the form of its file; e.g. --table > my.txt, then --run.collectives=my.txt",
    .kind = TC_FLAG_YES, FIELD(table), .drops = "*" },
  { "--json", "print a JSON array, one object per row, which a device file of tercio plan can read "
    "(\"links node = FILE\"); e.g. --json > links.json", .kind = TC_FLAG_YES, FIELD(json) },
  { .form = NULL }
};
static const struct tc_flags flags = TC_FLAGS_RUN(tc_flags_comm, "comm");

/* --algorithm does some of --op, among these members; NULL: among some. */
static bool can_some(const struct job *j, const struct tc_members *m)
{
  bool any = false;
  for (int i = 0; i < TC_BENCH_OPS; i++) any |= j->sweep.op[i] && tc_bench_can(i, j->sweep.algorithm, m);
  return any;
}

/* The command line into *j, and the run's options. */
static int parse(struct job *j, struct tc_config **cfg, const struct tc_args *a, struct tc_err *err)
{
  const char *min = tc_args_given(a, "--min"), *max = tc_args_given(a, "--max");
  *j = (struct job){ .axis = WORLD, .sweep = { .min_bytes = 1 << 10, .iters = 20 } };
  j->sweep.max_bytes = tc_args_given(a, "--pairs") ? 4 << 20 : 64 << 20;
  j->sweep.adapt_iters = !tc_args_given(a, "--iters");
  j->sweep.adapt_max = !max;
  for (int i = 0; i < TC_BENCH_OPS; i++) j->sweep.op[i] = true;
  TC_TRY(tc_config_new(cfg, a->argc, a->argv, err));
  TC_TRY(tc_args_set(a, j, err));
  if (j->sweep.algorithm && !j->pairs) {
    if (!can_some(j, NULL))
      return tc_fail(err, TC_EUSER, "--algorithm = %s can do none of the operations of --op: tercio comm --op all --algorithm %s "
                     "shows which it does", tc_algorithm_name[j->sweep.algorithm], tc_algorithm_name[j->sweep.algorithm]);
  }
  if (j->pairs || j->sweep.min_bytes <= j->sweep.max_bytes) return 0;
  return tc_fail(err, TC_EUSER, "--min = %s is more than --max = %s: give, say, --min 1K --max 64M", min ? min : "1K",
                 max ? max : "64M");
}

static int check_axis(const struct job *j, struct tc_err *err)
{
  char more[100] = "", sets[40] = "";
  if (tc_bench_axis_size(j->mesh, j->axis) > 1) return 0;
  if (j->mesh->world == 1)
    return tc_fail(err, TC_EUSER, "there is only one rank, so nothing can be measured: add "
                   "--run.ranks=4 (threads), or start several with mpirun or srun");
  for (int a = 0; a <= WORLD; a++)
    if ((a == WORLD || j->mesh->group[a].named) && tc_bench_axis_size(j->mesh, a) > 1)
      tc_text_add(more, sizeof more, "%s%s has %d", *more ? ", " : "", tc_bench_axis_name(a),
                  tc_bench_axis_size(j->mesh, a));
  if (tc_set_has_option(j->axis)) snprintf(sets, sizeof sets, " (mesh.%s sets its size)", tc_set_name[j->axis]);
  return tc_fail(err, TC_EUSER, "axis %s has one rank: nothing to measure; %s%s", tc_bench_axis_name(j->axis), more, sets);
}

/* ---- printing -------------------------------------------------------------------------- */

static const char row_form[] = "op=%-16s  axis=%-5s{ ranks=%d nodes=%d link=%s}  size=%11lld  count=%11lld{ iterations=%d}  "
  "time_us=%11.1f{ median_us=%g}  algbw=%9.4f  busbw=%9.4f  algorithm=%-9s  check=%s";

static const char *link_name(const struct job *j, bool native)
{
  if (j->json) return native ? "nccl" : j->launch.hub ? "thread" : "mpi";
  return native ? "NCCL" : j->launch.hub ? "threads" : "MPI";
}

static void print_head(const struct job *j, bool native)
{
  char mesh[TC_MESH_TEXT];
  int members = tc_bench_axis_size(j->mesh, j->axis), groups = j->mesh->world / members;
  if (j->json) {
    printf("[");
    return;
  }
  printf("%s, %d ranks on %d node%s: %s; axis %s: %d ranks, %d group%s\n"
         "fp32; size in bytes; time of %s%d iterations, each the slowest rank's; GB/s as nccl-tests "
         "define them\n", link_name(j, native), j->mesh->world, j->mesh->n_nodes,
         tc_plural(j->mesh->n_nodes), tc_mesh_text(mesh, j->mesh->size, " ", " x "),
         tc_bench_axis_name(j->axis), members, groups, groups == 1 ? "" : "s at once",
         j->sweep.adapt_iters ? "up to " : "", j->sweep.iters);
  tc_out_head(row_form);
  fflush(stdout);
}

static void print_row(const struct job *j, int op, const struct tc_bench_row *r, bool ok,
                      bool first, bool native)
{
  json_t *list = j->json ? json_array() : NULL;
  const char *by = native ? "library" : r->algorithm == TC_ALGORITHM_AUTO ? "mixed" : tc_algorithm_name[r->algorithm];
  tc_out_row(list, row_form, tc_bench_op_name[op], tc_bench_axis_name(j->axis), tc_bench_axis_size(j->mesh, j->axis),
             tc_bench_axis_nodes(j->mesh, j->axis), link_name(j, native), (long long)r->size_bytes, (long long)r->count, r->iters,
             r->time_us, r->median_us, r->algbw, r->busbw, by, ok ? "ok" : "wrong");
  if (list) {
    printf(first ? "\n " : ",\n ");
    json_dumpf(json_array_get(list, 0), stdout, JSON_REAL_PRECISION(6));
  }
  json_decref(list);
  fflush(stdout);
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

/* Where rows go. */
struct table { const struct job *j; bool prints, native, first; };

static void take_row(void *table, int op, const struct tc_bench_row *r, bool ok)
{
  struct table *t = table;
  if (t->prints) print_row(t->j, op, r, ok, t->first, t->native);
  t->first = false;
}

/* Collective. Some group can do some of the operations by --algorithm. */
static int check_algorithm(const struct job *j, const struct tc_bench_rank *x, struct tc_err *err)
{
  const char *name = tc_algorithm_name[j->sweep.algorithm];
  if (!j->sweep.algorithm) return 0;
  if (x->native)
    return tc_fail(err, TC_EUSER, "--algorithm = %s is for Tercio's own collectives, and NCCL does these: leave it, or set "
                   "--run.comm=mpi", name);
  struct tc_members m = *tc_comm_members(x->group[x->group[1].comm != NULL].comm);
  int64_t any = can_some(j, &m);
  TC_TRY(tc_comm_max_i64(x->group[0].comm, &any, 1, err));
  if (any) return 0;
  m.partial = true;
  if (!can_some(j, &m))
    return tc_fail(err, TC_EUSER, "--algorithm = %s needs several nodes with several of the axis' ranks on one: take another",
                   name);
  return tc_fail(err, TC_EUSER, "--algorithm = %s adds partial sums, which run.sums = coordinates excludes: take another, or "
                 "leave run.sums out", name);
}

static int measure(const struct job *j, const struct tc_bench_rank *x, int rank, struct tc_err *err)
{
  struct table table = { j, rank == 0, x->native != NULL, true };
  struct tc_sweep_opts o = j->sweep;
  struct tc_bench_row row[TC_BENCH_OPS];
  char out[TC_SWEEP_TEXT], left_out[TC_SWEEP_TEXT + 200];
  o.row = take_row;
  o.ctx = &table;
  TC_TRY(check_algorithm(j, x, err));
  if (rank == 0) print_head(j, table.native);
  const int rc = tc_sweep_run(&o, x->bench, x->group[0].comm, row, out, err);
  if (rank == 0 && j->json) printf("\n]\n");
  if (rank != 0 || rc) return rc;
  if (!j->json) {
    print_comparison(row, TC_BENCH_ALL_REDUCE, TC_BENCH_REDUCE_BROADCAST);
    print_comparison(row, TC_BENCH_BROADCAST, TC_BENCH_ONE_BY_ONE);
  }
  snprintf(left_out, sizeof left_out, "left out, to end in about %g s: sizes of %s bytes; --max 64M measures them",
           TC_BENCH_BUDGET_S, out);
  if (*out && j->json) tc_say("", "\n", "%s", left_out);
  else if (*out) printf("%s\n", left_out);
  return 0;
}

static int measure_pairs(const struct job *j, const struct tc_bench_rank *x, int rank, struct tc_err *err)
{
  const struct tc_pairs_opts o = { .launch = &j->launch, .bytes = j->sweep.max_bytes, .iters = j->sweep.iters,
                                   .rounds = j->rounds, .adapt_iters = j->sweep.adapt_iters,
                                   .adapt_bytes = j->sweep.adapt_max };
  struct tc_pairs pairs;
  const int rc = tc_pairs_run(&pairs, &o, x->bench, x->group[0].comm, rank, err);
  if (!rc && rank == 0)
    tc_pairs_print(&pairs, j->launch.ranks, link_name(j, x->native != NULL), o.iters, j->json);
  tc_pairs_done(&pairs);
  return rc;
}

static int run_rank(int rank, void *job, struct tc_err *err)
{
  const struct job *j = job;
  struct tc_bench_rank x = { 0 };
  tc_log_set_rank(rank);
  int rc = tc_bench_rank_open(&x, &j->launch, j->mesh, j->axis, rank, j->sweep.max_bytes, j->sweep.iters, err);
  if (!rc) rc = (j->pairs ? measure_pairs : measure)(j, &x, rank, err);
  tc_bench_rank_close(&x);
  return rc;
}

/* Once, whoever starts several processes. */
static int print_table(const struct tc_config *cfg, struct tc_err *err)
{
  struct tc_selection *s = NULL;
  if (*cfg->run_collectives) TC_TRY(tc_selection_read(&s, cfg->run_collectives, err));
  if (tc_launch_rank() == 0) tc_selection_print(stdout, s);
  tc_selection_free(s);
  return 0;
}

static int run_ranks(struct job *j, const struct tc_config *cfg)
{
  struct tc_err err = { 0 };
  int rc = tc_launch_find(&j->launch, cfg, &err);
  const struct tc_ranks *r = j->launch.ranks;
  if (!rc) rc = tc_setup_axes(&j->mesh, cfg, r->world, r->node_of_rank, tc_ranks_node_devices(r), &err);
  if (!rc) rc = check_axis(j, &err);
  const int status = rc < 0 ? tc_launch_say(&j->launch, rc, &err) : tc_launch_run(&j->launch, run_rank, j);
  tc_mesh_free(j->mesh);
  tc_launch_free(&j->launch);
  return status;
}

int tc_cmd_comm(int argc, char **argv)
{
  struct tc_args a;
  struct tc_err err = { 0 };
  struct tc_config *cfg = NULL;
  struct job j = { 0 };
  int rc = tc_args_find(&a, &flags, argc, argv, &err);
  if (!rc) rc = tc_args_check(&a, &err);
  if (!rc) rc = parse(&j, &cfg, &a, &err);
  tc_args_free(&a);
  if (!rc && j.table) rc = print_table(cfg, &err);
  const int status = rc < 0 ? tc_launch_say(&j.launch, rc, &err) : j.table ? 0 : run_ranks(&j, cfg);
  tc_config_free(cfg);
  return status;
}
