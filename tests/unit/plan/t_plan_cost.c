/* t_plan_cost.c - what each op and transfer of a program costs on every rank (cost.c), not only
 * on those that a plan looks at, and the plan itself (layout.c, time.c, sums.c). */
#include "src/plan/impl.h"
#include "src/model/transformer.h"
#include "src/program/setup.h"
#include "tests/unit/plan_config.h"
#include "tests/unit/plan/plan_list.h"

#include <math.h>
#include <unistd.h>

/* Wires of which no two are alike, and timings of other shapes, types and numbers of ranks. */
static struct tc_op_sample samples[] = {
  { TC_OP_MATMUL, 2, { 64, 32, 32, 0 }, 5e-4 },  { TC_OP_MATMUL, 4, { 64, 128, 32, 2 }, 7e-4 },
  { TC_OP_MATMUL, 2, { 32, 64, 32, 1 }, 6e-4 },  { TC_OP_MATMUL, 1, { 64, 32, 32, 4 }, 2e-4 },
  { TC_OP_ACT, 2, { 3e4, 0, 0, 0 }, 4e-5 },     { TC_OP_ACT, 4, { 3e4, 0, 0, 0 }, 8e-5 },
  { TC_OP_ATTN, 4, { 4e4, 8e5, 0, 0 }, 3e-4 },   { TC_OP_ATTN, 2, { 4e4, 8e5, 0, 4 }, 2e-4 },
  { TC_OP_LAYERNORM, 4, { 3e4, 0, 0, 0 }, 0 },   { TC_OP_ADD, 2, { 0, 0, 0, 0 }, 1e-3 },
};

static struct tc_cluster wires(int devices, double switch_nodes)
{
  struct tc_cluster k = { .devices = devices, .switch_nodes = switch_nodes };
  k.device = (struct tc_plan_device){ .bytes_per_s = 3e9, .eff_flops = 0.5, .eff_bytes = 0.7,
                                      .copy_bytes_per_s = 1e9, .op_s = 1e-6 };
  k.device.flops[TC_F32] = 2e9;
  k.device.flops[TC_BF16] = 9e9;
  for (int w = 0; w < TC_WIRES; w++)
    for (int c = TC_FIRST_COLL; c < TC_COLLS; c++) {
      int i = c - TC_FIRST_COLL;
      k.link[w].latency_s[c] = 1e-6 * (w + 1) * (10 + i);
      k.link[w].bytes_per_s[c] = 1e9 / (w + 1) / (10 + i);
    }
  return k;
}

static void note_rank(const struct tc_program *p, const struct tc_mesh *m, int rank,
                      const struct tc_cluster *k)
{
  for (int32_t i = 0; i < p->graph->n_nodes; i++) {
    const struct tc_node *n = &p->graph->node[i];
    if (n->op == TC_OP_RESHARD) {
      struct tc_reshard_cost c;
      tc_reshard_cost(&c, p, n, m, rank, k);
      note("%d %d: %d %.9g, %.9g %.9g %.9g\n", rank, i, c.coll - TC_FIRST_COLL, c.seconds, c.bytes[0], c.bytes[1],
           c.bytes[2]);
      continue;
    }
    struct tc_op_cost c;
    double key[4];
    bool none;
    tc_op_cost(&c, p->graph, n, m, rank, &none);
    tc_op_key(&c, key);
    note("%d %d: %s %d %d, %.9g %.9g %.9g %.9g, %.9g\n", rank, i, tc_op_info[n->op].name, c.ranks,
         none, key[0], key[1], key[2], key[3], tc_op_seconds(&c, &k->device));
  }
}

/* A plan: memory, bytes and times of the ranks that it looks at. */
static void note_plan(const struct tc_plan *p)
{
  const struct tc_plan_time *t = &p->time;
  note("%d = %d x %d x %d, %d x %d, %d chunks, %lld %lld %lld, worst %d\n", p->world, p->size[TC_PP], tc_axes_size(p->size, TC_ON_DP),
       p->size[TC_TP], p->n_mb, p->micro, p->virtual_stages, (long long)p->batch, (long long)p->tokens,
       (long long)p->parameters, p->worst);
  for (int i = 0; i < p->n_cls; i++) {
    const struct tc_plan_class *c = &p->cls[i];
    note("%d %d %d: %lld, %lld %lld %lld %lld %lld\n", c->rank, c->pp, c->dp,
         (long long)c->parameters, (long long)c->memory.bytes[TC_DEVICE],
         (long long)c->memory.bytes[TC_HOST], (long long)c->memory.state_bytes,
         (long long)c->memory.scratch_bytes, (long long)c->memory.staging_bytes);
  }
  note("%.9g %.9g %.9g, bubble %.7g, works %.9g%s\n", t->step_s, t->tokens_per_s, t->mfu,
       t->bubble, t->compute_s, t->simulated ? "" : ", sums");
  static const int set[] = { TC_SET_PP, TC_SET_DP, TC_SET_TP };
  for (int i = 0; i < 3; i++)
    note("waits %.7g, sends %.9g, %.9g\n", t->wait_s[set[i]], t->bytes[set[i]], t->wire_bytes[i]);
}

static const struct {
  const char *mesh[8];
  int world, nodes, ranks, timed;
  double switch_nodes;
  uint32_t digest, plans;
} of[] = {
  { { "--mesh.pp=2", "--mesh.tp=2", "--parallel.data=zero3" },
    8, 2, 4, 0, 0, 2681282425, 2379160532 },
  { { "--mesh.pp=2", "--parallel.data=zero1", "--mesh.order=tp-pp-dp" },
    12, 6, 2, 1, 2, 48561517, 3456685758 },
  { { "--mesh.pp=2", "--parallel.data=server", "--mesh.order=tp-pp-dp" },
    8, 8, 1, 0, 3, 3115084008, 3945271219 },
  { { "--parallel.data=server", "--train.precision=bf16" },
    6, 3, 2, 1, 1, 530213602, 1704964389 },
  { { "--parallel.data=dataparallel" }, 4, 2, 2, 0, 0, 2457470784, 3539291342 },
  { { "--mesh.tp=4", "--mesh.tp_across_nodes=yes", "--parallel.sequence=yes",
      "--parallel.data=zero2" }, 8, 4, 2, 1, 2, 293207155, 2844827203 },
  { { "--mesh.pp=4", "--parallel.schedule=zb", "--train.precision=bf16" },
    8, 4, 2, 1, 0, 103660977, 486581818 },
  { { "--mesh.pp=4", "--parallel.schedule=gpipe", "--train.micro_batch=4" },
    4, 2, 2, 1, 0, 451941011, 2311785 },
  { { "--mesh.pp=2", "--parallel.schedule=interleaved", "--parallel.virtual_stages=2",
      "--mesh.tp=2", "--parallel.offload=params" }, 4, 1, 4, 0, 0, 4282961873, 3275130494 },
  { { "--mesh.pp=4", "--mesh.stages=0,1,2,3", "--parallel.schedule=naive" },
    4, 2, 2, 1, 0, 725730138, 78069298 },
  /* Attention in pieces, whose keys travel meanwhile. */
  { { "--mesh.cp=2", "--parallel.data=zero1" }, 4, 2, 2, 0, 0, 355952761, 4047389061 },
  /* The second stage, too, packs what it sends in parts. */
  { { "--mesh.pp=2", "--mesh.tp=2", "--parallel.annotations=examples/annotations/ulysses.txt" },
    8, 2, 4, 1, 0, 492871419, 460067494 },
};

/* The server alone updates weights: a node that makes nothing at a rank costs nothing there. */
static void test_nothing_to_do(void)
{
  static const int32_t node_of_rank[2] = { 0, 0 };
  struct tc_config *c = CONFIG("--model.preset=tiny", "--parallel.data=server", "--mesh.dp=2");
  struct tc_err err = { 0 };
  struct tc_mesh *m = NULL;
  struct tc_program_opts o;
  struct tc_annotation *rows = NULL;
  struct tc_program *p = NULL;
  int rc = tc_setup_mesh(&m, c, 2, node_of_rank, 0, &err);
  if (!rc) rc = tc_setup_program(&o, c, m, &rows, &err);
  if (!rc) rc = tc_program_new(&p, &o, m, 1, NULL, NULL, &err);
  is_int(rc, 0, "a program of rank 1: %s", err.text);
  int idle = 0, wrong = 0;
  for (int32_t i = 0; !rc && i < p->graph->n_nodes; i++) {
    const struct tc_node *n = &p->graph->node[i];
    struct tc_op_cost cost;
    struct tc_local y = { 0 };
    bool here = false, none;
    for (int k = 0; k < n->n_out; k++) {
      tc_tensor_local(&p->graph->tensor[tc_out(p->graph, n, k)], m, m->coord + TC_AXES, &y);
      here = here || y.here;
    }
    tc_op_cost(&cost, p->graph, n, m, 1, &none);
    wrong += none == here;
    idle += !here;
  }
  ok(idle > 0, "%d of its nodes make nothing", idle);
  is_int(wrong, 0, "... and cost nothing, but all others do");
  tc_program_free(p);
  tc_annotations_free(rows);
  tc_mesh_free(m);
  tc_config_free(c);
}

/* ---- attention --------------------------------------------------------------------------- */

/* Keys that the queries of y's block see on average, counted row by row; without a window a query's own is half of one. */
static double keys_seen(const struct tc_graph *g, const struct tc_node *n, const struct tc_local *y)
{
  const int64_t T = n->attr.sequence, window = n->attr.window;
  double sum = 0;
  for (int64_t i = 0; i < y->dim[0]; i++) {
    const int64_t at = tc_natural_row(&g->rows, y->off[0] + i) % T;
    sum += window ? (double)TC_MIN(at + 1, window) : (double)at + 0.5;
  }
  return sum / (double)y->dim[0];
}

/* Of a rank's program, all of whose attention has this window: two products of queries with keys in forward, five back. */
static void attention_of(const struct tc_program *p, const struct tc_mesh *m, int rank, int64_t window, const char *what)
{
  const struct tc_graph *g = p->graph;
  int seen = 0, wrong = 0;
  for (int32_t i = 0; i < g->n_nodes; i++) {
    struct tc_node *n = &g->node[i];
    if (n->op != TC_OP_ATTN && n->op != TC_OP_ATTN_BWD) continue;
    struct tc_op_cost cost;
    struct tc_local y;
    bool none;
    n->attr.window = window;
    tc_tensor_local(&g->tensor[n->op == TC_OP_ATTN ? tc_out(g, n, 0) : tc_in(g, n, 0)], m, m->coord + rank * TC_AXES, &y);
    tc_op_cost(&cost, g, n, m, rank, &none);
    const double products = n->op == TC_OP_ATTN ? 2 : 5;
    const double want = products * 2 * keys_seen(g, n, &y) * (double)y.elems / (double)tc_attn_pieces(g, n);
    wrong += fabs(cost.flops - want) > 1e-12 * want;
    seen++;
  }
  ok(seen > 0 && !wrong, "%s, rank %d, window %d: operations of %d of %d nodes are wrong", what, rank, (int)window, wrong, seen);
}

static void test_windows(void)
{
  static const char *const how[][2] = {
    { "--parallel.zigzag=no", "--mesh.cp=1" }, { "--parallel.zigzag=no", "--mesh.cp=3" },
    { "--parallel.zigzag=yes", "--mesh.cp=3" }, { "--parallel.context=heads", "--mesh.cp=3" } };
  static const int64_t window[] = { 0, 1, 5, 20, 29, 60, 100 };
  static const int32_t node_of_rank[3] = { 0, 0, 0 };
  for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
    struct tc_config *c = CONFIG("--model.layers=2", "--model.hidden=48", "--model.heads=6", "--model.context=60",
                                 "--model.vocab=96", "--train.global_batch=3", how[i][0], how[i][1]);
    struct tc_err err = { 0 };
    struct tc_mesh *m = NULL;
    struct tc_program_opts o;
    struct tc_annotation *rows = NULL;
    int rc = tc_setup_mesh(&m, c, 3, node_of_rank, 0, &err);
    if (!rc) rc = tc_setup_program(&o, c, m, &rows, &err);
    is_int(rc, 0, "%s %s: %s", how[i][0], how[i][1], err.text);
    for (int rank = 0; rank < 3 && !rc; rank++) {
      struct tc_program *p = NULL;
      rc = tc_program_new(&p, &o, m, rank, NULL, NULL, &err);
      is_int(rc, 0, "... a program %s", err.text);
      for (size_t w = 0; !rc && w < sizeof window / sizeof *window; w++)
        attention_of(p, m, rank, window[w], how[i][rank % 2]);
      tc_program_free(p);
    }
    tc_annotations_free(rows);
    tc_mesh_free(m);
    tc_config_free(c);
  }
}

/* A token of a text that fills the context reads the keys and values that it sees, of a cache that may have fewer rows. */
static void test_cache(void)
{
  static const int64_t window[] = { 0, 5, 60 }, cached[] = { 60, 10, 60 };
  static const int32_t node_of_rank[1] = { 0 };
  const struct tc_model model = { .layers = 1, .hidden = 48, .heads = 6, .context = 60, .vocab = 96 };
  const struct tc_build_opts o = { .batch = 2, .dtype = TC_F32, .grad_dtype = TC_F32, .tp = 1, .new_tokens = 3,
                                   .inference = true, .documents = true };
  struct tc_config *c = CONFIG("--model.preset=tiny");
  struct tc_err err = { 0 };
  struct tc_mesh *m = NULL;
  is_int(tc_setup_mesh(&m, c, 1, node_of_rank, 0, &err), 0, "one rank %s", err.text);
  for (size_t w = 0; w < sizeof window / sizeof *window; w++) {
    struct tc_graph *g = tc_graph_new();
    tc_model_build(g, &model, &o);
    struct tc_node *n = g->node;
    while (n->op != TC_OP_ATTN_CACHE) n++;
    n->attr.window = window[w];
    g->tensor[tc_in(g, n, 1)].dim[2] = g->tensor[tc_out(g, n, 1)].dim[2] = cached[w];
    double pairs = 0, seen = 0;
    for (int64_t at = 0; at < 60; at++) pairs += window[w] ? (double)TC_MIN(at + 1, window[w]) : (double)at + 0.5;
    seen = pairs / 60;
    struct tc_op_cost cost;
    bool none;
    tc_op_cost(&cost, g, n, m, 0, &none);
    const double tokens = 2 * 3, row = 2 * 48 * 4;           /* a row of all heads: a key and a value */
    near_f(cost.flops, 4 * seen * tokens * 48, 1e-12, "a cache of %d, window %d: operations", (int)cached[w], (int)window[w]);
    near_f(cost.bytes, 2 * seen * row + tokens * (3 + 1) * 48 * 4 + tokens * 4, 1e-12, "... bytes");
    tc_graph_free(g);
  }
  tc_mesh_free(m);
  tc_config_free(c);
}

/* No layout leads to this: the second stage does nothing, so the first waits for ever. */
static void test_stuck(void)
{
  static const int32_t node_of_rank[2] = { 0, 0 };
  static const int rank[2] = { 0, 1 };
  struct tc_config *c = CONFIG("--model.preset=tiny", "--mesh.pp=2");
  struct tc_err err = { 0 };
  struct tc_mesh *m = NULL;
  struct tc_program_opts o;
  struct tc_annotation *rows = NULL;
  struct tc_program *p[2] = { NULL, NULL };
  struct tc_cluster k;
  struct tc_plan_step step;
  TC_ASSERT(tc_cluster_read(&k, "cpu", &err) == 0 &&
            tc_setup_mesh(&m, c, 2, node_of_rank, 0, &err) == 0 &&
            tc_setup_program(&o, c, m, &rows, &err) == 0);
  for (int i = 0; i < 2; i++) TC_ASSERT(tc_program_new(&p[i], &o, m, i, NULL, NULL, &err) == 0);
  is_int(tc_plan_simulate(&step, p, rank, 2, m, &k, &err), 0, "two stages: %s", err.text);
  p[1]->actions->n = 0;
  is_int(tc_plan_simulate(&step, p, rank, 2, m, &k, &err), TC_ELAYOUT, "the second does nothing");
  is_str(err.text, "a fault of Tercio's, please report it with the run file: the plan's ranks wait "
         "for each other", "... which is no user's fault");
  p[0]->actions->n = 0;
  is_int(tc_plan_simulate(&step, p, rank, 2, m, &k, &err), 0, "nor does the first");
  ok(step.step_s == 0 && step.busy_s == 0 && step.bubble == 0, "... which takes no time");
  for (int i = 0; i < 2; i++) tc_program_free(p[i]);
  tc_cluster_done(&k);
  tc_annotations_free(rows);
  tc_mesh_free(m);
  tc_config_free(c);
}

/* What every node of the program of each rank costs. */
static void test_nodes(const struct tc_program_opts *o, const struct tc_mesh *m, int world,
                       const struct tc_cluster *k, uint32_t digest)
{
  list_clear();
  for (int r = 0; r < world; r++) {
    struct tc_program *p = NULL;
    struct tc_err err = { 0 };
    const int rc = tc_program_new(&p, o, m, r, NULL, NULL, &err);
    if (is_int(rc, 0, "... rank %d %s", r, err.text)) note_rank(p, m, r, k);
    tc_program_free(p);
  }
  is_list(digest, "... what each op and transfer costs");
}

static void test_plans(const struct tc_config *c, int world, const struct tc_cluster *k,
                       uint32_t digest)
{
  list_clear();
  for (int exact = 0; exact < 2; exact++) {
    struct tc_plan plan;
    struct tc_err err = { 0 };
    if (is_int(tc_plan_layout(&plan, c, world, k, exact, &err), 0, "... a plan %s", err.text))
      note_plan(&plan);
  }
  is_list(digest, "... its figures");
}

static void test_row(size_t i)
{
  const char *args[20] = { "plan", "--model.layers=4", "--model.hidden=32", "--model.heads=4",
                           "--model.context=16", "--model.vocab=96", "--train.global_batch=48",
                           "--train.micro_batch=1" };
  int n_args = 8;
  for (int a = 0; of[i].mesh[a]; a++) args[n_args++] = of[i].mesh[a];
  struct tc_config *c = config(n_args, args);
  struct tc_cluster k = wires(of[i].ranks, of[i].switch_nodes);
  struct tc_err err = { 0 };
  struct tc_mesh *m = NULL;
  struct tc_program_opts o;
  struct tc_annotation *rows = NULL;
  int32_t node[16];
  if (of[i].timed) {
    k.device.sample = samples;
    k.device.n_samples = sizeof samples / sizeof *samples;
    k.device.steal = 0.3;
    k.device.issue_s = 1e-5;
    k.device.cores = 1.5;
  }
  for (int r = 0; r < of[i].world; r++) node[r] = r / of[i].ranks;
  int rc = tc_setup_mesh(&m, c, of[i].world, node, of[i].ranks, &err);
  if (!rc) rc = tc_setup_program(&o, c, m, &rows, &err);
  if (is_int(rc, 0, "%s on %d nodes: %s", of[i].mesh[0], of[i].nodes, err.text)) {
    test_nodes(&o, m, of[i].world, &k, of[i].digest);
    test_plans(c, of[i].world, &k, of[i].plans);
  }
  tc_annotations_free(rows);
  tc_mesh_free(m);
  tc_config_free(c);
}

int main(void)
{
  const char *sources = getenv("srcdir");        /* which have the files of annotations */
  if (sources && chdir(sources)) return 1;
  for (size_t i = 0; i < sizeof of / sizeof *of; i++) test_row(i);
  test_windows();
  test_cache();
  test_nothing_to_do();
  test_stuck();
  return done_testing();
}
