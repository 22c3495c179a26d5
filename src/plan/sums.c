/* sums.c - the time of a step if a pipeline is too long to simulate every action: the times of each
 * kind of work (F, B, W) of a virtual stage are summed over its nodes, and the simulation of schedules
 * (schedule/pipeline.h) runs with these sums. Transfers of activations are exposed, those of
 * attention's keys less what is computed from issue to wait; those of weights and gradients in every
 * micro-batch overlap with that micro-batch's work; those once per step are added, less the part that overlaps with a
 * backward pass: most of the gradients', none of the updated weights'. */
#include "src/plan/impl.h"
#include "src/program/predict.h"
#include "src/schedule/pipeline.h"

#include <stdlib.h>

enum { MOST_VIRTUAL_STAGES = 1000 };          /* the maximum of parallel.virtual_stages in options.def */

/* Seconds of one rank by virtual stage and mark, and once per step. */
struct sums {
  double work[MOST_VIRTUAL_STAGES][4];           /* [virtual stage][F, B, W]: computation, and transfers of activations */
  double hidden[MOST_VIRTUAL_STAGES][4];         /* ... those of weights and gradients */
  double once_work, once_dp, last_dp, send;      /* last_dp: after the backward passes */
  double wait[TC_SETS];                          /* per micro-batch */
  double term[TC_TERMS], term_once[TC_TERMS];    /* per micro-batch, per step: what is in work, once_work */
};

/* [n_nodes] Seconds of each transfer; of one over parts of sequences those for which a micro-batch waits: they go one after
 * the other, while the rank computes what is between issue and wait. Owned by the caller. */
static double *find_seconds(const struct tc_program *p, struct tc_prices *prices)
{
  const struct tc_graph *g = p->graph;
  const unsigned others = ~(unsigned)tc_axes_of(TC_ROLE_TOKENS);
  double *seconds = tc_calloc((size_t)g->n_nodes, sizeof *seconds), *done = tc_calloc((size_t)g->n_nodes, sizeof *done);
  double now = 0, wire = 0;
  for (int32_t i = 0; i < p->actions->n; i++) {
    const struct tc_action *a = &p->actions->action[i];
    const struct tc_node *n = &g->node[a->node];
    const struct tc_node_price *price = tc_price_of(prices, n);
    if (n->op != TC_OP_RESHARD) {
      now += price->run_s;
    } else if (n->axes & others || tc_is_once(n) || tc_hides(g, n)) {
      seconds[n->id] = price->reshard.seconds;
    } else if (a->kind == TC_ISSUE) {
      done[n->id] = wire = TC_MAX(now, wire) + price->reshard.seconds;
    } else if (a->kind == TC_WAIT) {
      if (a->mb == 0) seconds[n->id] = TC_MAX(0, done[n->id] - now);
      now = TC_MAX(now, done[n->id]);
    }
  }
  free(done);
  return seconds;
}

/* Packing and local reshards are left out. */
static void add_node(struct sums *s, const struct tc_graph *g, const struct tc_node *n,
                     const struct tc_node_price *price, double seconds, const struct tc_mesh *m, const struct tc_plan_device *d)
{
  const int pp = m->size[TC_PP];
  int stage = n->unit < g->n_units ? g->unit[n->unit].stage : 0;
  int virtual_stage = TC_MIN(TC_MAX(stage, 0) / pp, MOST_VIRTUAL_STAGES - 1);
  const bool once = tc_is_once(n), hides = n->op == TC_OP_RESHARD && tc_hides(g, n);
  double *work = once ? &s->once_work : &s->work[virtual_stage][n->mark], *term = once ? s->term_once : s->term;
  if (n->op != TC_OP_RESHARD) {
    *work += price->run_s;
    term[price->term] += price->run_s;
    return;
  }
  if (price->reshard.coll == TC_COLLS) return;
  const double shown = hides ? d->exposed * seconds : 0, stolen = tc_stolen_s(d, &price->reshard);
  if (n->axes == TC_ON_PP && !once) {
    s->send = TC_MAX(s->send, seconds);
  } else if (hides) {
    *work += shown + stolen;
    term[TC_TERM_TRANSFERS] += shown + stolen;
    *(!once ? &s->hidden[virtual_stage][n->mark] : n->mark == TC_U ? &s->last_dp : &s->once_dp) += seconds * (1 - d->exposed);
  } else {
    *work += seconds;
    term[TC_TERM_TRANSFERS] += seconds;
    if (!once) s->wait[tc_mesh_find(m, n->axes)] += seconds;
  }
}

static void add_program(struct sums *s, const struct tc_program *p, const struct tc_mesh *m, int rank,
                        const struct tc_cluster *k)
{
  struct tc_prices *prices = tc_prices_new(p, m, rank, k);
  double *seconds = find_seconds(p, prices);
  for (int32_t b = 0; b < p->actions->n_body; b++) {
    const struct tc_node *n = &p->graph->node[p->actions->body[b]];
    add_node(s, p->graph, n, tc_price_of(prices, n), seconds[n->id], m, &k->device);
  }
  free(seconds);
  tc_prices_free(prices);
}

/* If a schedule has W within B, transfers of either overlap with both. */
static void merge_w(struct sums *s)
{
  for (int c = 0; c < MOST_VIRTUAL_STAGES; c++) {
    s->work[c][TC_B] += s->work[c][TC_W];
    s->hidden[c][TC_B] += s->hidden[c][TC_W];
    s->work[c][TC_W] = s->hidden[c][TC_W] = 0;
  }
}

/* What the work of a micro-batch does not hide. */
static double waits_for_hidden(const struct sums *s, int virtual_stages)
{
  double shown = 0;
  for (int c = 0; c < virtual_stages; c++)
    for (int w = 0; w < 3; w++) shown += TC_MAX(s->hidden[c][w] - s->work[c][w], 0);
  return shown;
}

int tc_plan_sums(struct tc_plan_step *out, struct tc_program *const *program, const int *rank,
                 int n,
                 enum tc_schedule schedule, int virtual_stages, int n_mb, const struct tc_mesh *m,
                 const struct tc_cluster *k, struct tc_err *err)
{
  int pp = m->size[TC_PP];
  struct sums *s = tc_calloc((size_t)n, sizeof *s);
  struct tc_pipeline_cost *cost = tc_calloc((size_t)(pp * virtual_stages), sizeof *cost);
  struct tc_pipeline *pipeline = NULL;
  struct tc_simulation *sim = NULL;
  double once = 0, busy = 0, backward = 0;
  int most = 0;
  TC_ASSERT(virtual_stages <= MOST_VIRTUAL_STAGES);
  for (int i = 0; i < n; i++) {
    add_program(&s[i], program[i], m, rank[i], k);
    if (!tc_pipeline_splits(schedule)) merge_w(&s[i]);
    double all = 0;
    for (int c = 0; c < virtual_stages; c++)
      for (int w = 0; w < 3; w++) all += TC_MAX(s[i].work[c][w], s[i].hidden[c][w]);
    if (all * n_mb + s[i].once_work > busy) {
      busy = all * n_mb + s[i].once_work;
      most = i;
    }
  }
  for (int st = 0; st < pp * virtual_stages; st++) {
    int r = st % pp, c = st / pp, i = 0;
    while (i + 1 < n && tc_mesh_index(m, rank[i + 1], TC_ON_PP) <= r) i++;
    cost[st] = (struct tc_pipeline_cost){ TC_MAX(s[i].work[c][TC_F], s[i].hidden[c][TC_F]),
                                       TC_MAX(s[i].work[c][TC_B], s[i].hidden[c][TC_B]),
                                       TC_MAX(s[i].work[c][TC_W], s[i].hidden[c][TC_W]),
                                       pp > 1 ? s[i].send : 0 };
    cost[st].f = TC_MAX(cost[st].f, 1e-9);
    cost[st].b = TC_MAX(cost[st].b, 1e-9);
  }
  int rc = tc_pipeline_new(&pipeline, schedule, pp, virtual_stages, n_mb, err);
  if (!rc) rc = tc_pipeline_simulate(&sim, pipeline, cost, pp * virtual_stages, NULL, err);
  if (!rc) {
    for (int c = 0; c < virtual_stages; c++) backward += s[most].work[c][TC_B] + s[most].work[c][TC_W];
    double layers = TC_MAX(1, program[most]->graph->n_units / pp);
    double exposed = tc_exposed_s(s[most].once_dp, backward, layers) + s[most].last_dp;
    once = s[most].once_work + exposed;
    *out = (struct tc_plan_step){ .step_s = sim->makespan + once, .busy_s = busy };
    for (int k = 0; k < TC_SETS; k++) out->wait_s[k] = s[most].wait[k] * n_mb;
    out->wait_s[TC_SET_DP] = exposed;
    for (int t = 0; t < TC_TERMS; t++) out->term_s[t] = s[most].term[t] * n_mb + s[most].term_once[t];
    out->term_s[TC_TERM_TRANSFERS] += exposed + waits_for_hidden(&s[most], virtual_stages) * n_mb;
    tc_end_terms(out);
    out->bubble = sim->bubble * sim->makespan / out->step_s;
    out->wait_s[TC_SET_PP] = out->bubble * out->step_s;
  }
  tc_simulation_free(sim);
  tc_pipeline_free(pipeline);
  TC_FREE(cost, s);
  return rc;
}

int tc_plan_unit(struct tc_plan_unit *out, const struct tc_config *c, int world,
                 const struct tc_cluster *k, struct tc_err *err)
{
  int32_t *node = tc_calloc((size_t)world, sizeof *node);
  struct tc_mesh *m = NULL;
  struct tc_program_opts o;
  struct tc_annotation *rows = NULL;
  struct tc_program *p = NULL;
  struct sums s = { .send = 0 };
  for (int i = 0; i < world; i++) node[i] = i / k->devices;
  int rc = tc_setup_mesh(&m, c, world, node, TC_MIN(world, k->devices), err);
  if (!rc) rc = tc_setup_program(&o, c, m, &rows, err);
  if (!rc) {
    o.unchecked = true;
    rc = tc_program_new(&p, &o, m, 0, NULL, NULL, err);
  }
  if (!rc) add_program(&s, p, m, 0, k);
  if (!rc)
    *out = (struct tc_plan_unit){ s.work[0][TC_F], s.work[0][TC_B], s.work[0][TC_W], s.once_work,
                                  (double)(p->arena->bytes[TC_SCRATCH] + tc_program_staging(p, m,
                                      0)) };
  tc_program_free(p);
  tc_annotations_free(rows);
  tc_mesh_free(m);
  free(node);
  return rc;
}
