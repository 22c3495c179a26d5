/* sums.c - the time of a step if a pipeline is too long to simulate every action: the times of each kind of work (F, B, W) of
 * a virtual stage are summed over its nodes, and the simulation of schedules (schedule/pipeline.h) runs with these sums.
 *
 * Transfers of activations are exposed, less what the rank computes from issue to wait; those of weights and gradients in every
 * micro-batch overlap with that micro-batch's work. Reductions of gradients once a step follow the last micro-batch of their
 * virtual stage, one after the other, while the rank goes on with other work. Where all stages agree on something before the
 * update (the norm of the gradient), the update begins with the last of them. */
#include "src/plan/impl.h"
#include "src/program/predict.h"
#include "src/schedule/pipeline.h"

#include <stdlib.h>

/* Seconds of a virtual stage: by mark, of a micro-batch; and once a step. */
struct part {
  double work[4], hidden[4];     /* F, B, W: computation, and transfers of activations; transfers of weights and gradients */
  double tail[2];                /* what is left of F, B when what they send to another stage is made */
  double reduced, taken;         /* transfers of gradients, and what they take from computation beside them */
};

/* Seconds of one rank. */
struct sums {
  struct part *part; int n_parts;                /* of its virtual stages; owned */
  double gathered, before, update, updated;      /* once a step: transfers of weights before F; work before all stages agree,
                                                  * and after; transfers of updated weights */
  double late;                   /* transfers after all else */
  bool joined;                   /* all stages agree */
  double wait[TC_SETS];                          /* per micro-batch */
  double term[TC_TERMS], term_once[TC_TERMS];    /* per micro-batch, per step: what is in the sums above */
};

/* What is summed: a program on a rank. */
struct summing {
  struct sums *s;
  const struct tc_program *p;
  const struct tc_mesh *m;
  const struct tc_plan_device *d;
  int at;                        /* on pp */
  bool agreed;                   /* all stages have agreed: the nodes that follow are after it */
};

/* Where the time of a node goes. */
static struct part *part_of(const struct summing *c, const struct tc_node *n)
{
  const struct tc_graph *g = c->p->graph;
  int stage = n->unit < g->n_units ? g->unit[n->unit].stage : 0;
  if (n->axes == TC_ON_PP && n->from_root == c->at) stage += n->mark == TC_F ? -1 : 1;       /* it sends; n is of the receiver */
  return &c->s->part[TC_MIN(TC_MAX(stage, 0) / c->m->size[TC_PP], c->s->n_parts - 1)];
}

/* An item has made what it sends. part: NULL: none. */
struct sent { struct part *part; int work; double at; };

/* Notes how much of the first micro-batch's F and B is left when what they send is made. now: when an action has ended. */
static void note_tail(const struct summing *c, struct sent *sent, const struct tc_action *a, double now)
{
  const struct tc_node *n = &c->p->graph->node[a->node];
  const struct tc_actions_opts *o = &c->p->actions->opts;
  const bool follows = n->mark == TC_W && o->pp > 1 && tc_pipeline_splits(o->schedule);
  const bool crosses = n->op == TC_OP_RESHARD && n->axes == TC_ON_PP;
  const int work = n->mark == TC_F ? TC_WORK_F : TC_WORK_B;
  if (tc_is_once(n) || n->mark > TC_W || (n->op == TC_OP_RESHARD && !crosses && a->kind == TC_ISSUE)) return;
  if (crosses && a->kind == TC_ISSUE && n->from_root == c->at && a->mb == 0) {
    *sent = (struct sent){ part_of(c, n), work, now };
    sent->part->tail[work] = 0;
  } else if (!crosses && sent->part && (a->mb || follows || work != sent->work || part_of(c, n) != sent->part)) {
    sent->part = NULL;                           /* the next item */
  } else if (!crosses && sent->part) {
    sent->part->tail[work] = now - sent->at;
  }
}

/* [n_nodes] Seconds of each transfer; of one of activations those for which a micro-batch waits: the transfers of a group go one
 * after the other, while the rank computes what is between issue and wait. Owned by the caller. */
static double *find_seconds(const struct summing *c, struct tc_prices *prices)
{
  const struct tc_graph *g = c->p->graph;
  double *seconds = tc_calloc((size_t)g->n_nodes, sizeof *seconds), *done = tc_calloc((size_t)g->n_nodes, sizeof *done);
  double now = 0, wire[TC_SETS] = { 0 };
  struct sent sent = { NULL, 0, 0 };
  for (int32_t i = 0; i < c->p->actions->n; i++) {
    const struct tc_action *a = &c->p->actions->action[i];
    const struct tc_node *n = &g->node[a->node];
    const struct tc_node_price *price = tc_price_of(prices, n);
    if (n->op != TC_OP_RESHARD || price->reshard.coll == TC_COLLS) {
      now += price->run_s;
    } else if (n->axes == TC_ON_PP || tc_is_once(n) || tc_hides(g, n)) {
      seconds[n->id] = price->reshard.seconds;
    } else if (a->kind == TC_ISSUE) {
      double *w = &wire[tc_mesh_find(c->m, n->axes)];
      done[n->id] = *w = TC_MAX(now + price->issue_s, *w) + price->reshard.seconds;
      now += price->issue_s + tc_stolen_s(c->d, &price->reshard);
    } else if (a->kind == TC_WAIT) {
      if (a->mb == 0) seconds[n->id] = TC_MAX(0, done[n->id] - now);
      now = TC_MAX(now, done[n->id]) + price->unpack_s;
    }
    note_tail(c, &sent, a, now);
  }
  free(done);
  return seconds;
}

/* Whose time it is of a micro-batch's: weight gradients of the loss head are made with B, what follows them with W. */
static int pass_of(const struct tc_node *n)
{
  if (n->mark == TC_F || n->mark == TC_U) return n->mark;
  return n->role == TC_ROLE_GRAD || n->op == TC_OP_ACCUM || (n->mark == TC_W && !n->head) ? TC_W : TC_B;
}

/* Adds time of the rank's own. */
static void add_work(const struct summing *c, const struct tc_node *n, enum tc_plan_term term, double seconds)
{
  struct sums *s = c->s;
  const bool once = tc_is_once(n);
  double *work = !once ? &part_of(c, n)->work[pass_of(n)] : n->mark == TC_U && c->agreed ? &s->update : &s->before;
  *work += seconds;
  (once ? s->term_once : s->term)[term] += seconds;
}

/* A transfer of weights or gradients, beside which the rank works. */
static void add_hidden(const struct summing *c, const struct tc_node *n, double seconds, double stolen)
{
  struct sums *s = c->s;
  struct part *part = part_of(c, n);
  const double shown = c->d->exposed * seconds, hidden = seconds - shown;
  const bool once = tc_is_once(n);
  (once ? s->term_once : s->term)[TC_TERM_TRANSFERS] += shown + stolen;
  if (!once) {
    part->work[pass_of(n)] += shown + stolen;
    part->hidden[pass_of(n)] += hidden;
    return;
  }
  s->late += shown;
  if (n->mark == TC_U) s->update += stolen, s->updated += hidden;
  else if (n->mark == TC_F) s->before += stolen, s->gathered += hidden;
  else part->taken += stolen, part->reduced += hidden;
}

static void add_node(struct summing *c, const struct tc_node *n, const struct tc_node_price *price, double seconds)
{
  const struct tc_graph *g = c->p->graph;
  const double stolen = tc_stolen_s(c->d, &price->reshard), own = price->issue_s + price->unpack_s;
  const bool once = tc_is_once(n);
  if (n->op != TC_OP_RESHARD || price->reshard.coll == TC_COLLS) {
    add_work(c, n, price->term, price->run_s);
    return;
  }
  add_work(c, n, price->term, own);
  if (n->axes == TC_ON_PP && !once) {
    add_work(c, n, TC_TERM_TRANSFERS, stolen);
  } else if (tc_hides(g, n)) {
    add_hidden(c, n, seconds, stolen);
  } else {
    add_work(c, n, TC_TERM_TRANSFERS, seconds + stolen);
    if (!once) c->s->wait[tc_mesh_find(c->m, n->axes)] += seconds;
  }
}

/* Whether all stages take part: what they do next begins with the last of them. */
static bool joins_stages(const struct tc_node *n)
{
  return n->op == TC_OP_RESHARD && n->control && n->axes >> TC_PP & 1;
}

static void add_program(struct sums *s, const struct tc_program *p, const struct tc_mesh *m, int rank,
                        const struct tc_cluster *k)
{
  struct tc_prices *prices = tc_prices_new(p, m, rank, k);
  struct summing c = { .s = s, .p = p, .m = m, .d = &k->device, .at = tc_mesh_index(m, rank, TC_ON_PP) };
  double *seconds = find_seconds(&c, prices);
  int32_t last = -1;
  for (int32_t b = 0; b < p->actions->n_body; b++)
    if (joins_stages(&p->graph->node[p->actions->body[b]])) last = b;
  s->joined = last >= 0;
  for (int32_t b = 0; b < p->actions->n_body; b++) {
    const struct tc_node *n = &p->graph->node[p->actions->body[b]];
    c.agreed = b > last;
    add_node(&c, n, tc_price_of(prices, n), seconds[n->id]);
  }
  free(seconds);
  tc_prices_free(prices);
}

/* If a schedule has W within B, transfers of either overlap with both. */
static void merge_w(struct sums *s)
{
  for (int c = 0; c < s->n_parts; c++) {
    struct part *x = &s->part[c];
    x->work[TC_B] += x->work[TC_W];
    x->hidden[TC_B] += x->hidden[TC_W];
    x->work[TC_W] = x->hidden[TC_W] = 0;
  }
}

/* ---- a pipeline ---------------------------------------------------------------------- */

/* What the work of a micro-batch does not hide. */
static double waits_for_hidden(const struct sums *s)
{
  double shown = 0;
  for (int c = 0; c < s->n_parts; c++)
    for (int w = 0; w < 3; w++) shown += TC_MAX(s->part[c].hidden[w] - s->part[c].work[w], 0);
  return shown;
}

static double work_of(const struct sums *s, int n_mb)
{
  double all = s->before + s->update;
  for (int c = 0; c < s->n_parts; c++) {
    for (int w = 0; w < 3; w++) all += n_mb * TC_MAX(s->part[c].work[w], s->part[c].hidden[w]);
    all += s->part[c].taken;
  }
  return all;
}

/* [stages] The layers of each; owned by the caller. */
static int *count_layers(const struct tc_graph *g, int stages)
{
  int *layers = tc_calloc((size_t)stages, sizeof *layers);
  for (int32_t u = 0; u < g->n_units; u++)
    if (g->unit[u].parent < 0 && g->unit[u].layer >= 0) layers[TC_MIN(TC_MAX(g->unit[u].stage, 0), stages - 1)]++;
  return layers;
}

/* The sums of a rank from those of rank `like`, which has a program: in proportion to their layers. part: owned by the caller. */
static struct sums in_proportion(const struct sums *s, const int *layers, int pp, int rank, int like)
{
  struct sums out = *s;
  double mine = 0, its = 0;
  out.part = tc_malloc((size_t)s->n_parts * sizeof *out.part);
  for (int c = 0; c < s->n_parts; c++) {
    struct part *x = &out.part[c];
    const double a = layers[c * pp + rank], b = layers[c * pp + like], by = rank == like || b <= 0 ? 1 : a / b;
    *x = s->part[c];
    for (int w = 0; w < 4; w++) x->work[w] *= by, x->hidden[w] *= by;      /* but not the tail, which is of one layer */
    x->reduced *= by, x->taken *= by;
    mine += a, its += b;
  }
  const double by = rank == like || its <= 0 ? 1 : mine / its;
  out.gathered *= by, out.before *= by, out.update *= by, out.updated *= by, out.late *= by;
  return out;
}

/* Adds what each stage sends to others in every micro-batch to its cost: neighbours may be on one node or on two. */
static void add_sends(struct tc_stage_cost *cost, const struct tc_program *p, const struct tc_mesh *m, int rank,
                      const struct tc_cluster *k)
{
  const struct tc_graph *g = p->graph;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    struct tc_reshard_cost c;
    if (n->op != TC_OP_RESHARD || n->axes != TC_ON_PP || n->coll != TC_SEND || tc_is_once(n)) continue;
    tc_reshard_cost(&c, p, n, m, tc_mesh_member(m, rank, TC_ON_PP, n->from_root), k);
    const int work = n->mark == TC_F ? TC_WORK_F : TC_WORK_B, stage = g->unit[n->unit].stage + (work == TC_WORK_F ? -1 : 1);
    if (stage >= 0) cost[stage].sent[work] += c.seconds;
  }
}

static struct tc_stage_cost cost_of(const struct part *x)
{
  struct tc_stage_cost c = { .f = TC_MAX(x->work[TC_F], x->hidden[TC_F]), .b = TC_MAX(x->work[TC_B], x->hidden[TC_B]),
                                .w = TC_MAX(x->work[TC_W], x->hidden[TC_W]), .last = x->taken };
  c.f = TC_MAX(c.f, 1e-9);
  c.b = TC_MAX(c.b, 1e-9);
  c.tail[TC_WORK_F] = TC_MIN(x->tail[TC_WORK_F], c.f);
  c.tail[TC_WORK_B] = TC_MIN(x->tail[TC_WORK_B], c.b);
  return c;
}

/* What is known of a step: its parts of each stage, and when they end. */
struct ends {
  const struct tc_pipeline *pipeline;
  const struct tc_simulation *sim;
  const int *layers;             /* [stage] */
};

/* When the last reduction of gradients of a rank ends, in the simulation: those of the layers follow each other. */
static double reduced_at(const struct ends *e, const struct sums *s, int rank)
{
  const struct tc_pipeline *p = e->pipeline;
  const int last_work = p->split ? TC_WORK_W : TC_WORK_B;
  double wire = 0;
  for (int32_t i = 0; i < p->n_items[rank]; i++) {
    const struct tc_item x = p->item[rank][i];
    if (x.work != last_work || x.mb != p->m - 1) continue;
    const double start = e->sim->start[rank][i], end = e->sim->end[rank][i], all = s->part[x.virtual_stage].reduced;
    const double layers = TC_MAX(1, e->layers[tc_pipeline_stage(p, rank, x.virtual_stage)]);
    wire = TC_MAX(TC_MAX(wire, start + (end - start) / layers) + all, end + all / layers);
  }
  return wire;
}

/* Where every rank's step ends. */
static void find_ends(struct tc_plan_step *out, const struct ends *e, const struct sums *s, int most)
{
  const int p = e->pipeline->p;
  double all_ready = 0, idle = 0, first = 0;
  double *ready = tc_calloc((size_t)p, sizeof *ready), *end = tc_calloc((size_t)p, sizeof *end);
  for (int r = 0; r < p; r++) {
    const struct sums *x = &s[r];
    const double worked = e->sim->free_at[r];
    double layers = 0;
    for (int c = 0; c < x->n_parts; c++) layers += e->layers[c * p + r];
    layers = TC_MAX(1, layers);
    first = TC_MAX(first, tc_exposed_s(x->gathered, x->part[0].work[TC_F], TC_MAX(1, e->layers[r])));
    ready[r] = TC_MAX(worked + x->before, reduced_at(e, x, r));
    all_ready = TC_MAX(all_ready, ready[r]);
    end[r] = x->update + tc_exposed_s(x->updated, x->update, layers) + x->late;
    if (r == most)
      out->wait_s[TC_SET_DP] = ready[r] - worked - x->before + end[r] - x->update - x->late;
    idle += worked - e->sim->busy[r];
  }
  for (int r = 0; r < p; r++) {
    idle += s[r].joined ? all_ready - ready[r] : 0;
    end[r] += s[r].joined ? all_ready : ready[r];
    out->step_s = TC_MAX(out->step_s, end[r]);
  }
  for (int r = 0; r < p; r++) idle += out->step_s - end[r];
  out->step_s += first;
  out->wait_s[TC_SET_DP] += first;
  out->bubble = idle / p / out->step_s;
  TC_FREE(ready, end);
}

int tc_plan_sums(struct tc_plan_step *out, struct tc_program *const *program, const int *rank,
                 int n,
                 enum tc_schedule schedule, int virtual_stages, int n_mb, const struct tc_mesh *m,
                 const struct tc_cluster *k, struct tc_err *err)
{
  const int pp = m->size[TC_PP], stages = pp * virtual_stages;
  struct sums *s = tc_calloc((size_t)pp, sizeof *s);
  struct tc_stage_cost *cost = tc_calloc((size_t)stages, sizeof *cost);
  struct tc_pipeline *pipeline = NULL;
  struct tc_transfers *transfers = NULL;
  struct tc_simulation *sim = NULL;
  const struct tc_actions_opts *o = &program[0]->actions->opts;
  const struct tc_channels channels = { .ahead = o->overlap ? o->prefetch : -1, .two_ways = !tc_plan_is_cpu(&k->device) };
  int most = 0, *layers = count_layers(program[0]->graph, stages);
  *out = (struct tc_plan_step){ 0 };
  for (int i = 0; i < n; i++) {
    struct sums x = { .part = tc_calloc((size_t)virtual_stages, sizeof *x.part), .n_parts = virtual_stages };
    const int like = tc_mesh_index(m, rank[i], TC_ON_PP), end = i + 1 < n ? tc_mesh_index(m, rank[i + 1], TC_ON_PP) : pp;
    add_program(&x, program[i], m, rank[i], k);
    if (!tc_pipeline_splits(schedule)) merge_w(&x);
    for (int r = like; r < end; r++) s[r] = in_proportion(&x, layers, pp, r, like);
    free(x.part);
  }
  for (int r = 0; r < pp; r++) {
    const double busy = work_of(&s[r], n_mb);
    if (busy > out->busy_s) out->busy_s = busy, most = r;
    for (int c = 0; c < virtual_stages; c++) cost[c * pp + r] = cost_of(&s[r].part[c]);
  }
  add_sends(cost, program[0], m, rank[0], k);
  int rc = tc_pipeline_new(&pipeline, schedule, pp, virtual_stages, n_mb, err);
  if (!rc) rc = tc_pipeline_transfers(&transfers, pipeline, NULL, 0, err);
  if (!rc) rc = tc_pipeline_play(&sim, pipeline, cost, transfers, &channels, err);
  if (!rc) {
    const struct sums *x = &s[most];
    find_ends(out, &(struct ends){ pipeline, sim, layers }, s, most);
    for (int k = 0; k < TC_SETS; k++) out->wait_s[k] += x->wait[k] * n_mb;
    for (int t = 0; t < TC_TERMS; t++) out->term_s[t] = x->term[t] * n_mb + x->term_once[t];
    out->term_s[TC_TERM_TRANSFERS] += out->wait_s[TC_SET_DP] + waits_for_hidden(x) * n_mb;
    tc_end_terms(out);
    out->wait_s[TC_SET_PP] = out->bubble * out->step_s;
  }
  tc_simulation_free(sim);
  tc_transfers_free(transfers);
  tc_pipeline_free(pipeline);
  for (int r = 0; r < pp; r++) free(s[r].part);
  TC_FREE(cost, s, layers);
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
  struct part part = { .tail = { 0 } };
  struct sums s = { .part = &part, .n_parts = 1 };
  for (int i = 0; i < world; i++) node[i] = i / k->devices;
  int rc = tc_setup_mesh(&m, c, world, node, TC_MIN(world, k->devices), err);
  if (!rc) rc = tc_setup_program(&o, c, m, &rows, err);
  if (!rc) {
    o.unchecked = true;
    rc = tc_program_new(&p, &o, m, 0, NULL, NULL, err);
  }
  if (!rc) add_program(&s, p, m, 0, k);
  if (!rc)
    *out = (struct tc_plan_unit){ part.work[TC_F], part.work[TC_B], part.work[TC_W], s.before + s.update,
                                  (double)(p->arena->bytes[TC_SCRATCH] + tc_program_staging(p, m,
                                      0)) };
  tc_program_free(p);
  tc_annotations_free(rows);
  tc_mesh_free(m);
  free(node);
  return rc;
}
