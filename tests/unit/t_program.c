/* t_program.c - programs from model, table and mesh: what inference puts in, that checks notice
 * broken programs, and that every layout gives the one-rank run's losses. */
#include "src/program.h"
#include "src/shard.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

static const struct tc_model toy = { "", 2, 32, 4, 16, 64 };

#define SPLIT(d) { TC_S, d, 0, 0 }
/* Megatron's tensor parallelism, from the weights alone; and with it sequence parallelism. */
static const struct tc_annotation megatron[] = {
  { "wte.weight", TC_TP, SPLIT(0) },        { "*.attn.qkv.*", TC_TP, SPLIT(0) },
  { "*.attn.proj.weight", TC_TP, SPLIT(1) }, { "*.mlp.fc.*", TC_TP, SPLIT(0) },
  { "*.mlp.proj.weight", TC_TP, SPLIT(1) }, { NULL, 0, { 0, 0, 0, 0 } } };
static const struct tc_annotation sequence[] = {
  { "wte.weight", TC_TP, SPLIT(0) },        { "*.attn.qkv.*", TC_TP, SPLIT(0) },
  { "*.attn.proj.weight", TC_TP, SPLIT(1) }, { "*.mlp.fc.*", TC_TP, SPLIT(0) },
  { "*.mlp.proj.weight", TC_TP, SPLIT(1) }, { "residual", TC_TP, SPLIT(0) },
  { NULL, 0, { 0, 0, 0, 0 } } };
static const struct tc_system zero3 = {
  "zero3", { TC_SROWS, 0, 0, 0 }, { TC_R, 0, 0, 0 }, { TC_SROWS, 0, 0, 0 },
  { TC_SROWS, 0, 0, 0 }, "" };

struct layout {
  const char *name;
  int mb, dp, tp;
  const struct tc_system *system;
  const struct tc_annotation *rows;
  int64_t head_rows;
  bool overlap;
  int dtype;                     /* TC_F32 is 0 */
};

static struct tc_program_opts options(const struct layout *l, int kind)
{
  return (struct tc_program_opts){
    .kind = kind, .model = toy, .gpt = { .batch = 8, .dtype = l->dtype, .grad_dtype = TC_F32,
    .dropout = 0.1f, .tp = l->tp }, .system = l->system, .annotation = l->rows, .adamw = true,
    .overlap = l->overlap, .head_rows = l->head_rows };
}

static struct tc_program *make(const struct layout *l, struct tc_mesh **m, const char *after)
{
  struct tc_program *p = NULL;
  struct tc_err err = { 0 };
  struct tc_program_opts o = options(l, TC_TRAIN);
  *m = fx_mesh(l->mb, 1, l->dp, l->tp);
  ok(tc_program_new(&p, &o, *m, 0, NULL, after, &err) == 0, "%s: the program is made %s",
     l->name, err.text);
  return p;
}

static int count(const struct tc_graph *g, int step, int axis, int rank, int64_t dim0)
{
  int n = 0;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *x = &g->node[g->order[i]];
    const struct tc_tensor *t = x->n_in ? &g->tensor[tc_in(g, x, 0)] : NULL;
    if (x->op == TC_OP_MOVE && x->step == step && x->axis == axis && !x->ctl &&
        (rank < 0 || (t->rank == rank && t->dim[0] == dim0))) n++;
  }
  return n;
}

static void test_ddp(void)
{
  struct layout l = { "ddp", 2, 4, 1, tc_system_find("ddp"), NULL, 0, true, TC_F32 };
  struct tc_mesh *m;
  struct tc_program *p = make(&l, &m, NULL);
  is_int(count(p->graph, TC_STEP_ALL_REDUCE, TC_DP, -1, 0), toy.layers + 2,
         "one all-reduce a unit: each layer, the embedding, the head");
  int issued = 0, waited = 0, f_after = 0;
  for (int32_t i = 0; i < p->schedule->n; i++) {
    const struct tc_action *a = &p->schedule->action[i];
    const struct tc_node *n = &p->graph->node[a->node];
    if (a->kind == TC_ISSUE && !n->ctl) {
      issued++;
      is_int(a->mb, 1, "issued in the last micro-batch");
    }
    if (a->kind == TC_WAIT && !n->ctl) waited++;
    if (issued && waited == 0 && a->kind == TC_RUN && n->mark != TC_U) f_after++;
  }
  is_int(issued, toy.layers + 2, "one issue a unit and step");
  ok(issued == waited, "each is waited for");
  ok(f_after > 20, "%d nodes run between the first issue and the first wait", f_after);
  tc_program_free(p);
  tc_mesh_free(m);
}

static void test_tp(void)
{
  struct layout l = { "megatron", 1, 1, 2, tc_system_find("ddp"), megatron, 0, true, TC_F32 };
  struct tc_mesh *m;
  struct tc_program *p = make(&l, &m, NULL);
  int64_t N = 8 * toy.context;
  /* [N, C]: two a layer forward and two backward, the embedding, the head's input gradient. */
  is_int(count(p->graph, TC_STEP_ALL_REDUCE, TC_TP, 2, N), 4 * toy.layers + 2,
         "megatron: four all-reduces of [N, C] a layer, one for the embedding, one for the head");
  is_int(count(p->graph, TC_STEP_ALL_REDUCE, TC_TP, 1, N), 3,
         "split cross-entropy: max, picked logit and sum of exponentials");
  is_int(count(p->graph, TC_STEP_ALL_GATHER, TC_TP, -1, 0), 0, "no gathers: no logits gathered");
  tc_program_free(p);
  tc_mesh_free(m);
  l.rows = sequence;
  l.name = "sequence";
  p = make(&l, &m, "units");
  ok(count(p->graph, TC_STEP_REDUCE_SCATTER, TC_TP, 2, N) >= 4 * toy.layers,
     "sequence: reduce-scatters in place of all-reduces (%d)",
     count(p->graph, TC_STEP_REDUCE_SCATTER, TC_TP, 2, N));
  ok(count(p->graph, TC_STEP_ALL_GATHER, TC_TP, 2, N) >= 4 * toy.layers,
     "sequence: and all-gathers (%d)", count(p->graph, TC_STEP_ALL_GATHER, TC_TP, 2, N));
  tc_program_free(p);
  tc_mesh_free(m);
}

static void test_errors(void)
{
  struct tc_err err = { 0 };
  struct tc_program *p = NULL;
  struct tc_mesh *m = fx_mesh(1, 1, 1, 3);
  struct layout l = { "tp3", 1, 1, 3, tc_system_find("ddp"), megatron, 0, true, TC_F32 };
  struct tc_program_opts o = options(&l, TC_TRAIN);
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), TC_ELAYOUT, "4 heads over 3: %s",
         err.text);
  ok(strstr(err.text, "attn.qkv") && strstr(err.text, "tp = 3"), "... names tensor and axis");
  const struct tc_annotation nothing[] = { { "nosuch*", TC_TP, SPLIT(0) },
                                           { NULL, 0, { 0, 0, 0, 0 } } };
  o.annotation = nothing;
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), TC_EUSER, "%s", err.text);
  const struct tc_annotation twice[] = { { "wte*", TC_TP, SPLIT(0) }, { "wte*", TC_TP, SPLIT(1) },
                                         { NULL, 0, { 0, 0, 0, 0 } } };
  o.annotation = twice;
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), TC_EUSER, "%s", err.text);
  const struct tc_annotation whole[] = { { "*.ln_1.weight", TC_TP, SPLIT(0) },
                                         { NULL, 0, { 0, 0, 0, 0 } } };
  tc_mesh_free(m);
  m = fx_mesh(1, 1, 1, 2);
  o.annotation = whole;
  o.gpt.tp = 2;
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), TC_ELAYOUT, "%s", err.text);
  tc_mesh_free(m);
}

/* Each break must be noticed by graph_check or arena_check. */
static void test_checks(void)
{
  struct layout l = { "to be broken", 2, 2, 2, tc_system_find("ddp"), megatron, 0, true, TC_F32 };
  struct tc_mesh *m;
  struct tc_program *p = make(&l, &m, NULL);
  struct tc_graph *g = p->graph;
  struct tc_err err = { 0 };
  ok(tc_graph_check(g, m, "test", &err) == 0, "whole: passes");
  int noticed = 0, tried = 0;
  for (int32_t i = 1; i < g->n_order; i++) {     /* swap neighbours where one feeds the other */
    const struct tc_node *b = &g->node[g->order[i]];
    bool feeds = false;
    for (int k = 0; k < b->n_in; k++)
      feeds |= g->tensor[tc_in(g, b, k)].node == g->order[i - 1];
    if (!feeds) continue;
    int32_t t = g->order[i];
    g->order[i] = g->order[i - 1];
    g->order[i - 1] = t;
    tried++;
    noticed += tc_graph_check(g, m, "test", &err) < 0;
    t = g->order[i];
    g->order[i] = g->order[i - 1];
    g->order[i - 1] = t;
  }
  ok(tried > 50 && noticed == tried, "%d swaps of maker and reader, %d noticed", tried, noticed);
  noticed = tried = 0;
  for (int32_t i = 0; i < g->n_order; i++) {     /* a placement that is not what the rule says */
    const struct tc_node *n = &g->node[g->order[i]];
    if (n->n_in + n->n_out > TC_RULE_MAX || n->op == TC_OP_DATA || n->op == TC_OP_FILL) continue;
    for (int k = 0; k < n->n_out; k++) {
      struct tc_tensor *t = &g->tensor[tc_out(g, n, k)];
      struct tc_layout was = t->lay;
      if (was.on[TC_TP].kind == TC_R) t->lay.on[TC_TP] = (struct tc_place){ TC_P, 0, 0, 0 };
      else t->lay.on[TC_TP] = (struct tc_place){ TC_R, 0, 0, 0 };
      tried++;
      noticed += tc_graph_check(g, m, "test", &err) < 0;
      t->lay = was;
    }
  }
  ok(tried > 100 && noticed == tried, "%d wrong placements, %d noticed", tried, noticed);
  noticed = tried = 0;
  const int32_t *coord = m->coord;
  noticed = tried = 0;
  int unseen = 0;
  struct tc_schedule *s = p->schedule;
  for (int32_t i = 0; i < s->n; i++) {           /* an action left out */
    struct tc_action was = s->action[i];
    const struct tc_node *n = &g->node[was.node];
    if (was.kind == TC_RUN && (n->mark == TC_U || n->op == TC_OP_EMBED_BWD ||
                               n->op == TC_OP_POS_BWD)) continue;   /* nothing reads them */
    memmove(s->action + i, s->action + i + 1, (size_t)(s->n - i - 1) * sizeof was);
    s->n--;
    tried++;
    bool seen = tc_schedule_check(s, g, &err) < 0;
    noticed += seen;
    if (!seen && unseen++ < 5)
      printf("# not noticed: %s %d, micro-batch %d\n", tc_op_info[n->op].name, was.node, was.mb);
    memmove(s->action + i + 1, s->action + i, (size_t)(s->n - i) * sizeof was);
    s->action[i] = was;
    s->n++;
  }
  ok(tried > 100 && noticed == tried, "%d actions left out, %d noticed", tried, noticed);
  noticed = tried = 0;
  p->arena->scratch_bytes *= 2;                  /* so that nothing lies outside */
  for (int32_t t = 0; t < g->n_tensors; t++) {   /* outputs of a node moved onto its inputs */
    const struct tc_node *n = g->tensor[t].node >= 0 ? &g->node[g->tensor[t].node] : NULL;
    if (p->arena->die[t] < 0 || !n || !n->n_in || n->op == TC_OP_MOVE) continue;
    int32_t in = tc_tensor_root(g, tc_in(g, n, 0));
    if (g->tensor[in].state || in == t) continue;
    int64_t was = p->arena->off[t];
    p->arena->off[t] = p->arena->off[in];
    tried++;
    noticed += tc_arena_check(p->arena, g, p->schedule, m, coord, &err) < 0 &&
               strstr(err.text, "overlap") != NULL;
    p->arena->off[t] = was;
  }
  ok(tried > 20 && noticed == tried, "%d buffers on top of others, %d noticed", tried, noticed);
  tc_program_free(p);
  tc_mesh_free(m);
}

/* ---- running -------------------------------------------------------------------------- */

enum { STEPS = 4 };
struct run {
  const struct layout *l;
  bool poison;
  double loss[STEPS], norm[STEPS], eval;
  int failed, miscounted;        /* kinds of collectives whose calls or bytes are not foretold */
  int64_t dp_bytes;              /* all ranks, all steps, all-reduces of data on dp */
  char err[300];
  pthread_mutex_t lock;
};

/* What the communicators counted since `before` against STEPS times what the program says. */
static void count_bytes(struct fx_rank *r, const struct tc_program *p,
                        const struct tc_comm_counters before[TC_AXES])
{
  struct run *run = r->ctx;
  int bad = 0;
  int64_t dp = 0;
  for (int a = TC_PP; a < TC_AXES; a++) {
    if (!r->comm[a]) continue;
    struct tc_comm_counters want, now = *tc_comm_counters(r->comm[a]);
    tc_program_bytes(p, r->mesh, r->rank, a, &want);
    for (int k = 0; k < TC_COLLS; k++) {
      bad += now.data[k].calls - before[a].data[k].calls != STEPS * want.data[k].calls;
      bad += now.data[k].bytes - before[a].data[k].bytes != STEPS * want.data[k].bytes;
      bad += now.ctl[k].bytes - before[a].ctl[k].bytes != STEPS * want.ctl[k].bytes;
    }
    if (a == TC_DP) dp = now.data[TC_ALL_REDUCE].bytes - before[a].data[TC_ALL_REDUCE].bytes;
  }
  pthread_mutex_lock(&run->lock);
  run->miscounted += bad;
  run->dp_bytes += dp;
  pthread_mutex_unlock(&run->lock);
}

static void fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets)
{
  (void)ctx;
  for (int64_t i = 0; i < rows; i++) {
    uint32_t r[4];
    tc_philox(r, 5, (uint64_t)rt->step, (uint64_t)(row0 + i));
    tokens[i] = (int32_t)(r[0] % (uint32_t)toy.vocab);
    targets[i] = (int32_t)(r[1] % 7);
  }
}

static void run_rank(struct fx_rank *r)
{
  struct run *run = r->ctx;
  struct tc_err err = { 0 };
  struct tc_program *p[3] = { NULL };
  struct tc_exec *x = NULL;
  const int kind[3] = { TC_TRAIN, TC_INIT, TC_EVAL };
  int rc = 0;
  r->device->poison = run->poison;
  for (int i = 0; i < 3 && !rc; i++) {
    struct tc_program_opts o = options(run->l, kind[i]);
    if (kind[i] == TC_EVAL) o.gpt.dropout = 0;
    rc = tc_program_new(&p[i], &o, r->mesh, r->rank, i ? p[0] : NULL, NULL, &err);
  }
  struct tc_exec_opts o = { .device = r->device, .mesh = r->mesh, .rank = r->rank, .fill = fill };
  memcpy(o.comm, r->comm, sizeof o.comm);
  if (!rc) rc = tc_exec_new(&x, &o, p, 3, &err);
  struct tc_runtime rt = { .seed = 3, .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                           .weight_decay = 0.1f, .clip = 1 };
  if (!rc) rc = tc_exec_run(x, 1, &rt, &err);
  struct tc_comm_counters before[TC_AXES] = { 0 };
  for (int a = 0; a < TC_AXES; a++)
    if (r->comm[a]) before[a] = *tc_comm_counters(r->comm[a]);
  for (int s = 0; s < STEPS && !rc; s++) {
    rt.step = s + 1;
    rc = tc_exec_run(x, 0, &rt, &err);
    if (rc || r->rank) continue;
    run->loss[s] = tc_exec_scalar(x, 0, p[0]->graph->loss);
    run->norm[s] = tc_exec_scalar(x, 0, p[0]->graph->grad_norm);
  }
  if (!rc) count_bytes(r, p[0], before);
  if (!rc) rc = tc_exec_run(x, 2, &rt, &err);
  if (!rc && !r->rank) run->eval = tc_exec_scalar(x, 2, p[2]->graph->loss);
  if (rc) {
    snprintf(run->err, sizeof run->err, "%.290s", err.text);
    run->failed = rc;
    tc_hub_leave(r->hub, r->rank);
  }
  tc_exec_free(x);
  for (int i = 0; i < 3; i++) tc_program_free(p[i]);
}

static struct run run_layout(const struct layout *l, const char *device, bool poison)
{
  struct run run = { .l = l, .poison = poison, .lock = PTHREAD_MUTEX_INITIALIZER };
  struct tc_mesh *m = fx_mesh(l->mb, 1, l->dp, l->tp);
  fx_run(m, device, run_rank, &run);
  tc_mesh_free(m);
  return run;
}

static void test_runs(const char *device)
{
  const struct tc_system *ddp = tc_system_find("ddp");
  const struct layout one = { "one rank", 1, 1, 1, ddp, NULL, 0, true, TC_F32 };
  const struct layout other[] = {
    { "head in chunks of 16 rows", 1, 1, 1, ddp, NULL, 16, true, TC_F32 },
    { "4 micro-batches", 4, 1, 1, ddp, NULL, 8, true, TC_F32 },
    { "dp 2", 1, 2, 1, ddp, NULL, 0, true, TC_F32 },
    { "dp 4, 2 micro-batches, chunks", 2, 4, 1, ddp, NULL, 8, true, TC_F32 },
    { "dp 4, no overlap", 1, 4, 1, ddp, NULL, 0, false, TC_F32 },
    { "tp 2", 1, 1, 2, ddp, megatron, 0, true, TC_F32 },
    { "tp 4, chunks", 1, 1, 4, ddp, megatron, 16, true, TC_F32 },
    { "tp 2, sequence", 2, 1, 2, ddp, sequence, 0, true, TC_F32 },
    { "dp 2 x tp 2, sequence", 1, 2, 2, ddp, sequence, 0, true, TC_F32 },
    { "zero3 x 2", 2, 2, 1, &zero3, NULL, 0, true, TC_F32 },
    { "zero3 x 4, tp 2", 1, 4, 2, &zero3, megatron, 0, true, TC_F32 },
  };
  struct run a = run_layout(&one, device, false);
  ok(!a.failed && a.loss[0] > a.loss[STEPS - 1], "%s: one rank: loss %.6f falls to %.6f %s",
     device, a.loss[0], a.loss[STEPS - 1], a.err);
  struct run p = run_layout(&one, device, true);
  ok(!p.failed && !memcmp(a.loss, p.loss, sizeof a.loss) && a.eval == p.eval,
     "%s: freed buffers filled with NaN: the same bits", device);
  for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
    struct run b = run_layout(&other[i], device, true);
    double dl = fabs(b.eval / a.eval - 1), dn = 0;
    for (int s = 0; s < STEPS; s++) {
      double l = fabs(b.loss[s] / a.loss[s] - 1), n = fabs(b.norm[s] / a.norm[s] - 1);
      if (!(l <= dl)) dl = l;                    /* not a number stays */
      if (!(n <= dn)) dn = n;
    }
    ok(!b.failed && dl < 5e-6 && dn < 1e-5, "%s: %s: loss within %.1e, norm %.1e %s", device,
       other[i].name, dl, dn, b.err);
    is_int(b.miscounted, 0, "%s: %s: calls and bytes are what the program says", device,
           other[i].name);
    if (other[i].system == ddp && !other[i].rows)            /* 2 psi (N - 1) over all ranks */
      is_int(b.dp_bytes, STEPS * 2 * tc_model_params(&toy) * 4 * (other[i].dp - 1),
             "%s: %s: 2 psi (N-1) elements", device, other[i].name);
  }
}

/* bf16 with fp32 masters: near the fp32 run, and layouts near each other. */
static void test_bf16(const char *device)
{
  const struct tc_system *ddp = tc_system_find("ddp");
  const struct layout f32 = { "fp32", 1, 1, 1, ddp, NULL, 0, true, TC_F32 };
  const struct layout row[] = {
    { "one rank", 1, 1, 1, ddp, NULL, 0, true, TC_BF16 },
    { "dp 2, 2 micro-batches, chunks", 2, 2, 1, ddp, NULL, 16, true, TC_BF16 },
    { "zero3 x 2, tp 2", 1, 2, 2, &zero3, megatron, 0, true, TC_BF16 },
  };
  struct run a = run_layout(&f32, device, false);
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    struct run b = run_layout(&row[i], device, true);
    double dl = fabs(b.eval / a.eval - 1);
    for (int s = 0; s < STEPS; s++) {
      double l = fabs(b.loss[s] / a.loss[s] - 1);
      if (!(l <= dl)) dl = l;
    }
    ok(!b.failed && dl < 1e-2 && dl > 0, "%s: bf16, %s: loss within %.1e of fp32 %s", device,
       row[i].name, dl, b.err);
    is_int(b.miscounted, 0, "%s: bf16, %s: bytes are what the program says", device, row[i].name);
  }
}

int main(void)
{
  test_ddp();
  test_tp();
  test_errors();
  test_checks();
  test_runs("ref");
  test_runs("cpu");
  test_bf16("ref");
  test_bf16("cpu");
  return done_testing();
}
