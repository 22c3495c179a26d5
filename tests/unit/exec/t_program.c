/* t_program.c - programs from model, table and mesh: what inference puts in, that checks notice
 * broken programs, and that every layout gives the one-rank run's losses. */
#include "src/program/predict.h"
#include "src/graph/rule.h"
#include "src/comm/hub.h"
#include "src/passes/reshard.h"
#include "tests/unit/exec/layout.h"
#include "tests/unit/ranks_fixture.h"
#include "tests/unit/tap.h"

static const struct tc_model toy = { .layers = 4, .hidden = 32, .heads = 4, .context = 16,
    .vocab = 64 };

#define SPLIT(d) { { TC_S, d, 0, 0 } }
#define WHOLE { { TC_R, 0, 0, 0 } }
#define ROW(pattern, place) { pattern, TC_ON_TP, place, false, 0, 0, true }
#define END { NULL, 0, { { 0, 0, 0, 0 } }, false, 0, 0, true }

static struct tc_program_opts options(const struct layout *l, int kind) { return layout_options(l, &toy, 8, kind); }

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

static int count(const struct tc_graph *g, int step, unsigned axes, int rank, int64_t dim0)
{
  int n = 0;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *x = &g->node[g->order[i]];
    const struct tc_tensor *t = x->n_in ? &g->tensor[tc_in(g, x, 0)] : NULL;
    if (x->op == TC_OP_RESHARD && x->coll == step && x->axes == axes && !x->control &&
        (rank < 0 || (t->rank == rank && t->dim[0] == dim0))) n++;
  }
  return n;
}

static void test_ddp(void)
{
  struct layout l = { .name = "ddp", .system = "ddp", .mb = 2, .dp = 4, .tp = 1 };
  struct tc_mesh *m;
  struct tc_program *p = make(&l, &m, NULL);
  is_int(count(p->graph, TC_ALL_REDUCE, TC_ON_REST, -1, 0), toy.layers + 2,
         "one all-reduce a unit: each layer, the embedding, the head");
  int issued = 0, waited = 0, f_after = 0;
  for (int32_t i = 0; i < p->actions->n; i++) {
    const struct tc_action *a = &p->actions->action[i];
    const struct tc_node *n = &p->graph->node[a->node];
    if (a->kind == TC_ISSUE && !n->control) {
      issued++;
      is_int(a->mb, 1, "issued in the last micro-batch");
    }
    if (a->kind == TC_WAIT && !n->control) waited++;
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
  struct layout l = { .name = "megatron", .system = "ddp", .mb = 1, .dp = 1, .tp = 2 };
  struct tc_mesh *m;
  struct tc_program *p = make(&l, &m, NULL);
  int64_t N = 8 * toy.context;
  /* [N, C]: two a layer forward and two backward, the embedding, the head's input gradient. */
  is_int(count(p->graph, TC_ALL_REDUCE, TC_ON_TP, 2, N), 4 * toy.layers + 2,
         "megatron: four all-reduces of [N, C] a layer, one for the embedding, one for the head");
  is_int(count(p->graph, TC_ALL_REDUCE, TC_ON_TP, 1, N), 3,
         "split cross-entropy: max, picked logit and sum of exponentials");
  is_int(count(p->graph, TC_ALL_GATHER, TC_ON_TP, -1, 0), 0, "no gathers: no logits gathered");
  tc_program_free(p);
  tc_mesh_free(m);
  l.sequence = true;
  l.name = "sequence";
  p = make(&l, &m, "buckets");
  ok(count(p->graph, TC_REDUCE_SCATTER, TC_ON_TP, 2, N) >= 4 * toy.layers,
     "sequence: reduce-scatters in place of all-reduces (%d)",
     count(p->graph, TC_REDUCE_SCATTER, TC_ON_TP, 2, N));
  ok(count(p->graph, TC_ALL_GATHER, TC_ON_TP, 2, N) >= 4 * toy.layers,
     "sequence: and all-gathers (%d)", count(p->graph, TC_ALL_GATHER, TC_ON_TP, 2, N));
  tc_program_free(p);
  tc_mesh_free(m);
}

static void test_errors(void)
{
  struct tc_err err = { 0 };
  struct tc_program *p = NULL;
  struct tc_mesh *m = fx_mesh(1, 1, 1, 3);
  struct layout l = { .name = "tp3", .system = "ddp", .mb = 1, .dp = 1, .tp = 3 };
  struct tc_program_opts o = options(&l, TC_TRAIN);
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), TC_ELAYOUT, "4 heads over 3: %s",
         err.text);
  ok(strstr(err.text, "attn.qkv") && strstr(err.text, "tp = 3"), "... names tensor and axis");
  const struct tc_annotation nothing[] = { { "nosuch*", TC_ON_TP, SPLIT(0), false, 0, 1, false }, END };   /* of a file */
  o.annotation[0] = nothing;
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), TC_EUSER, "%s", err.text);
  const struct tc_annotation twice[] = { ROW("wte*", SPLIT(0)), ROW("wte*", SPLIT(1)), END };
  o.annotation[0] = twice;
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), TC_EUSER, "%s", err.text);
  const struct tc_annotation vector[] = { ROW("*.ln_1.weight", SPLIT(1)), END };
  o.annotation[0] = vector;
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), TC_EUSER, "%s", err.text);
  ok(strstr(err.text, "only S(0) would fit"), "... says what would fit");
  const struct tc_annotation matrix[] = { ROW("wte.weight", SPLIT(2)), END };
  o.annotation[0] = matrix;
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), TC_EUSER, "%s", err.text);
  ok(strstr(err.text, "S(0) to S(1) would fit"), "... also of two dimensions");
  tc_mesh_free(m);
  m = fx_mesh(1, 1, 1, 2);
  o.gpt.tp = 2;
  const struct tc_annotation whole[] = { ROW("*.ln_1.weight", SPLIT(0)), END };
  o.annotation[0] = whole;
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), TC_ELAYOUT, "%s", err.text);
  ok(strstr(err.text, "h.0.ln_1.weight") && strstr(err.text, "layernorm"), "... names both");
  const struct tc_annotation heads[] = { ROW("h.1.attn.out", SPLIT(2)), END };
  o.annotation[0] = heads;
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), TC_ELAYOUT, "%s", err.text);
  ok(strstr(err.text, "h.1.attn.out") && strstr(err.text, "attn"), "... names both");
  /* The gradient of fc suggests a split of the columns, which those of qkv, of 3 by heads, have not. */
  const struct tc_annotation uneven[] = { { "h.*.mlp.fc.weight", TC_ON_TP,
    { { TC_S, 0, 0, 0 }, { TC_R, 0, 0, 0 }, { TC_S, 1, 0, 0 }, { TC_R, 0, 0, 0 } }, true, -1, 0, true }, END };
  o.annotation[0] = uneven;
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), 0, "a split that others have to follow unevenly "
         "is not taken over");
  tc_program_free(p);
  /* Rows of one list must not contradict each other; those of a later list replace earlier ones. */
  const struct tc_annotation later[] = { ROW("wte.weight", WHOLE), ROW("pos", WHOLE), END };
  o.annotation[0] = tc_rows_tensor;
  o.annotation[1] = tc_rows_sequence;
  o.annotation[2] = later;
  p = NULL;
  is_int(tc_program_new(&p, &o, m, 0, NULL, "systems", &err), 0, "rows in place of others' %s", err.text);
  for (int32_t t = 0, found = 0; p && t < p->graph->n_tensors; t++) {
    const struct tc_tensor *x = &p->graph->tensor[t];
    if (strcmp(x->name, "wte.weight") && strcmp(x->name, "pos")) continue;
    ok(x->lay.on[TC_TP].kind == TC_R && ++found <= 2, "... %s is where the later one says", x->name);
  }
  tc_program_free(p);
  o.annotation[0] = o.annotation[1] = o.annotation[2] = NULL;
  o.update = TC_UPDATE_SGD;
  o.offload = TC_OFFLOAD_PARAMS;
  is_int(tc_program_new(&p, &o, m, 0, NULL, NULL, &err), TC_EUSER, "%s", err.text);
  tc_mesh_free(m);
}

/* Each break must be noticed by graph_check or arena_check. */
static void test_checks(void)
{
  struct layout l = { .name = "to be broken", .system = "ddp", .mb = 2, .dp = 2, .tp = 2 };
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
  struct tc_actions *s = p->actions;
  for (int32_t i = 0; i < s->n; i++) {           /* an action left out */
    struct tc_action was = s->action[i];
    const struct tc_node *n = &g->node[was.node];
    memmove(s->action + i, s->action + i + 1, (size_t)(s->n - i - 1) * sizeof was);
    s->n--;
    tried++;
    bool seen = tc_actions_check(s, g, &err) < 0;
    noticed += seen;
    if (!seen && unseen++ < 5)
      printf("# not noticed: %s %d, micro-batch %d\n", tc_op_info[n->op].name, was.node, was.mb);
    memmove(s->action + i + 1, s->action + i, (size_t)(s->n - i) * sizeof was);
    s->action[i] = was;
    s->n++;
  }
  ok(tried > 100 && noticed == tried, "%d actions left out, %d noticed", tried, noticed);
  noticed = tried = 0;
  p->arena->bytes[TC_SCRATCH] *= 2;                  /* so that nothing lies outside */
  for (int32_t t = 0; t < g->n_tensors; t++) {   /* outputs of a node moved onto its inputs */
    const struct tc_node *n = g->tensor[t].node >= 0 ? &g->node[g->tensor[t].node] : NULL;
    if (p->arena->last_use[t].node < 0 || !n || !n->n_in || n->op == TC_OP_RESHARD) continue;
    int32_t in = tc_tensor_root(g, tc_in(g, n, 0));
    if (g->tensor[in].state || in == t) continue;
    int64_t was = p->arena->off[t];
    p->arena->off[t] = p->arena->off[in];
    tried++;
    noticed += tc_arena_check(p->arena, g, p->actions, NULL, m, coord, &err) < 0 &&
               strstr(err.text, "overlap") != NULL;
    p->arena->off[t] = was;
  }
  ok(tried > 20 && noticed == tried, "%d buffers on top of others, %d noticed", tried, noticed);
  tc_program_free(p);
  tc_mesh_free(m);
}

/* ---- running -------------------------------------------------------------------------- */

#ifdef __SANITIZE_ADDRESS__       /* two steps show what it looks for; ref has cpu's programs */
enum { STEPS = 2, REF_EACH = 4 };
#else
enum { STEPS = 4, REF_EACH = 1 };
#endif
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
                        const struct tc_comm_counters before[TC_SETS])
{
  struct run *run = r->ctx;
  int bad = 0;
  int64_t dp = 0;
  for (int a = 0; a < TC_SETS; a++) {
    if (!r->comm[a]) continue;
    struct tc_comm_counters want, now = *tc_comm_counters(r->comm[a]);
    tc_program_bytes(p, r->mesh, r->rank, r->mesh->group[a].axes, &want);
    for (int k = 0; k < TC_COLLS; k++) {
      bad += now.data[k].calls - before[a].data[k].calls != STEPS * want.data[k].calls;
      bad += now.data[k].bytes - before[a].data[k].bytes != STEPS * want.data[k].bytes;
      bad += now.ctl[k].bytes - before[a].ctl[k].bytes != STEPS * want.ctl[k].bytes;
    }
    if (a == TC_SET_DP) dp = now.data[TC_ALL_REDUCE].bytes - before[a].data[TC_ALL_REDUCE].bytes;
  }
  pthread_mutex_lock(&run->lock);
  run->miscounted += bad;
  run->dp_bytes += dp;
  pthread_mutex_unlock(&run->lock);
}

static void fill(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                 int32_t *tokens, int32_t *targets, int32_t *starts)
{
  (void)ctx;
  if (starts) fx_starts(starts, row0, rows, toy.context);
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
  struct tc_comm_counters before[TC_SETS] = { 0 };
  for (int a = 0; a < TC_SETS; a++)
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
  struct tc_mesh *m = fx_mesh(l->mb, TC_MAX(l->pp, 1), l->dp, l->tp);
  fx_run(m, device, run_rank, &run);
  tc_mesh_free(m);
  return run;
}

static const struct layout bare = { .name = "one rank", .system = "ddp", .mb = 1, .dp = 1, .tp = 1,
                                    .plain = true };
static const struct layout alone = { .name = "one rank", .system = "ddp", .mb = 1, .dp = 1, .tp = 1 };
static const struct layout documents = { .name = "one rank, documents", .system = "ddp", .mb = 1, .dp = 1, .tp = 1,
                                         .documents = true };
static const struct layout layouts[] = {
  L("head in chunks of 16 rows", "ddp", 1, 1, 1, .head_chunk = 16),
  L("4 micro-batches", "ddp", 4, 1, 1, .head_chunk = 8),
  L("dp 2", "ddp", 1, 2, 1, .serial = false),
  L("dp 4, 2 micro-batches, chunks", "ddp", 2, 4, 1, .head_chunk = 8),
  L("dp 4, no overlap", "ddp", 1, 4, 1, .serial = true),
  L("tp 2", "ddp", 1, 1, 2, .serial = false),
  L("tp 4, chunks", "ddp", 1, 1, 4, .head_chunk = 16),
  L("tp 2, sequence", "ddp", 2, 1, 2, .sequence = true),
  L("tp 2, sequence, gathered again", "ddp", 2, 1, 2, .sequence = true, .regather = true),
  L("dp 2 x tp 2, sequence", "ddp", 1, 2, 2, .sequence = true),
  L("tp 2, sequence, chunks", "ddp", 2, 1, 2, .sequence = true, .head_chunk = 16),
  L("zero3 x 2, tp 2, sequence, chunks, recompute", "zero3", 1, 2, 2, .sequence = true,
    .head_chunk = 8, .recompute = TC_RECOMPUTE_FULL),
  L("zero1 x 2", "zero1", 2, 2, 1, .serial = false),
  L("zero1 x 4", "zero1", 1, 4, 1, .head_chunk = 16),
  L("zero2 x 2", "zero2", 2, 2, 1, .head_chunk = 16),
  L("zero2 x 3", "zero2", 1, 4, 1, .serial = false),
  L("zero2 x 4, no overlap", "zero2", 2, 4, 1, .serial = true),
  L("zero3 x 2", "zero3", 2, 2, 1, .serial = false),
  L("zero3 x 4, chunks", "zero3", 2, 4, 1, .head_chunk = 8),
  L("zero3 x 2, weights kept for the step", "zero3", 2, 2, 1, .keep = 1 + TC_AFTER_STEP),
  L("zero3 x 2, weights kept for a micro-batch", "zero3", 2, 2, 1, .keep = 1 + TC_AFTER_MB),
  L("zero3 x 2, 4 ahead", "zero3", 4, 2, 1, .prefetch = 5),
  L("zero3 x 2, none ahead", "zero3", 4, 2, 1, .prefetch = 1),
  L("zero3 x 2, nested units", "zero3", 2, 2, 1, .nest = true),
  L("zero1 x 2, tp 2, sequence", "zero1", 2, 2, 2, .sequence = true),
  L("zero2 x 2, tp 2, sequence", "zero2", 2, 2, 2, .sequence = true),
  L("zero3 x 2, tp 2, sequence", "zero3", 2, 2, 2, .sequence = true),
  L("zero3 x 4, tp 2", "zero3", 1, 4, 2, .serial = false),
  L("server x 2", "server", 2, 2, 1, .serial = false),
  L("server x 4, chunks", "server", 1, 4, 1, .head_chunk = 16),
  L("dataparallel x 2", "dataparallel", 2, 2, 1, .serial = false),
  L("dataparallel x 4", "dataparallel", 1, 4, 1, .serial = false),
  L("zero3 x 2, offload params", "zero3", 2, 2, 1, .offload = TC_OFFLOAD_PARAMS),
  L("zero3 x 2, offload update", "zero3", 1, 2, 1, .offload = TC_OFFLOAD_UPDATE),
  L("pp 2, naive", "ddp", 1, 1, 1, .pp = 2, .schedule = "naive"),
  L("pp 2, naive, 2 micro-batches", "ddp", 2, 1, 1, .pp = 2, .schedule = "naive"),
  L("pp 2, gpipe", "ddp", 4, 1, 1, .pp = 2, .schedule = "gpipe"),
  L("pp 4, gpipe", "ddp", 8, 1, 1, .pp = 4, .schedule = "gpipe"),
  L("pp 2, 1f1b", "ddp", 4, 1, 1, .pp = 2, .schedule = "1f1b"),
  L("pp 4, 1f1b", "ddp", 8, 1, 1, .pp = 4, .schedule = "1f1b"),
  L("pp 4, 1f1b, no overlap", "ddp", 8, 1, 1, .pp = 4, .schedule = "1f1b", .serial = true),
  L("pp 2, interleaved", "ddp", 4, 1, 1, .pp = 2, .schedule = "interleaved", .virtual_stages = 2),
  L("pp 2, zb", "ddp", 4, 1, 1, .pp = 2, .schedule = "zb"),
  L("pp 4, zb", "ddp", 8, 1, 1, .pp = 4, .schedule = "zb"),
  L("pp 2, zb, no dropout", "ddp", 4, 1, 1, .pp = 2, .schedule = "zb", .plain = true),
  L("pp 2 x tp 2, zb, sequence, no dropout", "ddp", 4, 1, 2, .pp = 2, .schedule = "zb",
    .sequence = true, .plain = true),
  L("zero3 x 2, no dropout", "zero3", 2, 2, 1, .plain = true),
  L("zero3 x 2, tp 2, sequence, full recompute, no dropout", "zero3", 2, 2, 2, .sequence = true,
    .recompute = TC_RECOMPUTE_FULL, .plain = true),
  L("pp 4, 1f1b, no dropout", "ddp", 4, 1, 1, .pp = 4, .schedule = "1f1b", .plain = true),
  L("pp 2 x dp 2, 1f1b, zero1", "zero1", 4, 2, 1, .pp = 2, .schedule = "1f1b"),
  L("pp 2 x dp 2, zb, zero2", "zero2", 4, 2, 1, .pp = 2, .schedule = "zb"),
  L("pp 2 x dp 2, gpipe, zero3", "zero3", 2, 2, 1, .pp = 2, .schedule = "gpipe"),
  L("pp 2 x tp 2, sequence, 1f1b", "ddp", 4, 1, 2, .pp = 2, .schedule = "1f1b", .sequence = true),
  L("pp 2 x dp 2 x tp 2, interleaved, zero3, recompute", "zero3", 2, 2, 2, .pp = 2,
    .schedule = "interleaved", .virtual_stages = 2, .sequence = true, .recompute = TC_RECOMPUTE_FULL),
  L("zero3 x 2, reduced once", "zero3", 4, 2, 1, .reduce_once = true),
  L("zero2 x 4, reduced once", "zero2", 2, 4, 1, .reduce_once = true),
  L("selective recompute", "ddp", 2, 1, 1, .recompute = TC_RECOMPUTE_SELECTIVE),
  L("full recompute", "ddp", 2, 1, 1, .recompute = TC_RECOMPUTE_FULL),
  L("tp 2, sequence, full recompute", "ddp", 1, 2, 2, .sequence = true,
    .recompute = TC_RECOMPUTE_FULL),
  L("zero3 x 2, full recompute", "zero3", 2, 2, 1, .recompute = TC_RECOMPUTE_FULL),
  L("zero3 x 2, nested, full recompute, offload", "zero3", 2, 2, 1, .nest = true,
    .recompute = TC_RECOMPUTE_FULL, .offload = TC_OFFLOAD_PARAMS),
  L("ddp x 2, offload update", "ddp", 2, 2, 1, .offload = TC_OFFLOAD_UPDATE),
  L("zero3 x 2, tp 2, sequence, offload update", "zero3", 2, 2, 2, .sequence = true,
    .offload = TC_OFFLOAD_UPDATE),
  L("zero2 x 2, tp 2, sequence, offload update", "zero2", 1, 2, 2, .sequence = true,
    .offload = TC_OFFLOAD_UPDATE),
  L("zero1 x 2, offload params", "zero1", 2, 2, 1, .offload = TC_OFFLOAD_PARAMS),
  L("zero3 x 2, 2 stages, zb, offload params", "zero3", 4, 2, 1, .pp = 2, .schedule = "zb",
    .offload = TC_OFFLOAD_PARAMS),
  L("server x 2, 2 stages, tp 2, sequence, offload update", "server", 2, 2, 2, .pp = 2,
    .schedule = "1f1b", .sequence = true, .offload = TC_OFFLOAD_UPDATE),
  L("dataparallel x 2, 2 stages, full recompute, offload params", "dataparallel", 2, 2, 1, .pp = 2,
    .schedule = "gpipe", .recompute = TC_RECOMPUTE_FULL, .offload = TC_OFFLOAD_PARAMS),
#define D .documents = true
  L("documents, 4 micro-batches, chunks", "ddp", 4, 1, 1, .head_chunk = 8, D),
  L("documents, dp 4", "ddp", 2, 4, 1, D),
  L("documents, tp 2", "ddp", 1, 1, 2, D),
  L("documents, dp 2 x tp 2, sequence, gathered again", "ddp", 2, 2, 2, .sequence = true, .regather = true, D),
  L("documents, zero3 x 2, tp 2, sequence, full recompute", "zero3", 2, 2, 2, .sequence = true,
    .recompute = TC_RECOMPUTE_FULL, D),
  L("documents, zero1 x 2, selective recompute, offload update", "zero1", 2, 2, 1,
    .recompute = TC_RECOMPUTE_SELECTIVE, .offload = TC_OFFLOAD_UPDATE, D),
  L("documents, dataparallel x 2", "dataparallel", 2, 2, 1, D),
  L("documents, server x 2", "server", 2, 2, 1, D),
  L("documents, pp 2, naive", "ddp", 2, 1, 1, .pp = 2, .schedule = "naive", D),
  L("documents, pp 4, gpipe", "ddp", 8, 1, 1, .pp = 4, .schedule = "gpipe", D),
  L("documents, pp 4, 1f1b", "ddp", 8, 1, 1, .pp = 4, .schedule = "1f1b", D),
  L("documents, pp 2, interleaved, full recompute", "ddp", 4, 1, 1, .pp = 2, .schedule = "interleaved",
    .virtual_stages = 2, .recompute = TC_RECOMPUTE_FULL, D),
  L("documents, pp 2 x dp 2 x tp 2, zb, zero2, sequence", "zero2", 4, 2, 2, .pp = 2, .schedule = "zb",
    .sequence = true, D),
#undef D
};

static void test_runs(const char *device)
{
  const struct run drops = run_layout(&alone, device, false);
  struct run a = drops;
  ok(!a.failed && a.loss[0] > a.loss[STEPS - 1], "%s: one rank: loss %.6f falls to %.6f %s",
     device, a.loss[0], a.loss[STEPS - 1], a.err);
  struct run p = run_layout(&alone, device, true), c = run_layout(&bare, device, false);
  const struct run within = run_layout(&documents, device, false);
  ok(!within.failed && fabs(within.loss[0] / a.loss[0] - 1) > 1e-5, "%s: documents change the loss, to %.6f %s", device,
     within.loss[0], within.err);
  ok(!p.failed && !memcmp(a.loss, p.loss, sizeof a.loss) && a.eval == p.eval,
     "%s: freed buffers filled with NaN: the same bits", device);
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
    const struct layout *l = &layouts[i];
    if (!strcmp(device, "ref") && i % REF_EACH) continue;
    a = l->documents ? within : l->plain ? c : drops;
    struct run b = run_layout(l, device, true);
    double dl = fabs(b.eval / a.eval - 1), dn = 0;
    for (int s = 0; s < STEPS; s++) {
      double x = fabs(b.loss[s] / a.loss[s] - 1), n = fabs(b.norm[s] / a.norm[s] - 1);
      if (!(x <= dl)) dl = x;                    /* not a number stays */
      if (!(n <= dn)) dn = n;
    }
    ok(!b.failed && dl < 5e-6 && dn < 1e-5, "%s: %s: loss within %.1e, norm %.1e %s", device,
       l->name, dl, dn, b.err);
    is_int(b.miscounted, 0, "%s: %s: calls and bytes are what the program says", device, l->name);
    if (!strcmp(l->system, "ddp") && !l->head_chunk && !l->offload)   /* 2 psi (N - 1) over all ranks */
      is_int(b.dp_bytes, l->sequence && l->dp > 1 ? b.dp_bytes :
             STEPS * 2 * tc_model_params(&toy) * 4 * (l->dp - 1),
             "%s: %s: 2 psi (N-1) elements", device, l->name);
  }
}

/* bf16 with fp32 masters: near the fp32 run, and layouts near each other. */
static void test_bf16(const char *device)
{
  const struct layout row[] = {
    L("one rank", "ddp", 1, 1, 1, .dtype = TC_BF16),
    L("dp 2, 2 micro-batches, chunks", "ddp", 2, 2, 1, .head_chunk = 16, .dtype = TC_BF16),
    L("zero1 x 2", "zero1", 2, 2, 1, .dtype = TC_BF16),
    L("zero2 x 2", "zero2", 2, 2, 1, .dtype = TC_BF16),
    L("zero3 x 2, tp 2", "zero3", 1, 2, 2, .dtype = TC_BF16),
    L("server x 2", "server", 1, 2, 1, .dtype = TC_BF16),
    L("dataparallel x 2", "dataparallel", 1, 2, 1, .dtype = TC_BF16),
    L("zero1 x 2, offload update", "zero1", 2, 2, 1, .dtype = TC_BF16, .offload = TC_OFFLOAD_UPDATE),
    L("zero3 x 2, offload params", "zero3", 2, 2, 1, .dtype = TC_BF16, .offload = TC_OFFLOAD_PARAMS),
  };
  struct run a = run_layout(&alone, device, false);
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
