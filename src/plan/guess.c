/* guess.c - see guess.h. Programs of one and of two layers are compiled on cp x tp ranks: their difference
 * is the price of a layer, the rest that of embedding and head. Pipelines are then estimated by formulas,
 * states by the table of systems, transfers on dp and cp by their bytes on the wire. */
#include "src/plan/guess.h"
#include "src/model/optim.h"
#include "src/program/collective.h"
#include "src/schedule/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tc_config tc_cand_config(const struct tc_config *c, const struct tc_cand *x)
{
  struct tc_config r = *c;
#define SET(id, section, key, member, rare) r.section##_##key = x->member;
  TC_PLAN_KEYS(SET, SET, SET)
  if (x->pp != c->mesh_pp) r.mesh_stages = "auto";         /* given ranges are for mesh.pp only */
  r.mesh_order = x->near_pp ? TC_TP_PP_DP : TC_TP_DP_PP;
  return r;
}

/* Bytes of a weight as it is used, of a gradient. */
static double use_bytes(const struct tc_guess *g) { return g->cfg->train_precision == TC_BF16 ? 2 : 4; }
static double grad_bytes(const struct tc_guess *g) { return g->cfg->train_grad_type == TC_BF16 ? 2 : 4; }

/* The ranks that have the same weights, and of these those that states are split on. */
static int32_t copies(const struct tc_cand *x) { return x->dp * x->cp; }
static int32_t shards(const struct tc_cand *x) { return x->shard > 0 ? x->shard * x->cp : copies(x); }

/* Layers of the rank that has most. */
static double most_layers(const struct tc_guess *g, const struct tc_cand *x)
{
  return (double)tc_ceil_div(g->model.layers, (int64_t)x->pp * x->virtual_stages) * x->virtual_stages;
}

void tc_guess_order(const struct tc_guess *g, struct tc_cand *x)
{
  const double on_pp = 2.0 * x->n_mb * x->micro * x->virtual_stages * use_bytes(g) *
                       (double)(g->model.context / x->cp * g->model.hidden);
  const double on_dp = 8 * (g->layer_params * (double)g->model.layers / x->pp + g->rest_params) / x->tp;
  x->near_pp = x->pp > 1 && x->dp > 1 && on_pp > on_dp;
}

static struct tc_layer_price price_of(const struct tc_plan_unit *u)
{
  return (struct tc_layer_price){ u->f, u->b, u->w, u->scratch_bytes };
}

static void make_price(struct tc_guess *g, struct tc_price *p, const struct tc_cand *x)
{
  struct tc_plan_unit u[2];
  struct tc_cand one = *x;
  one.pp = one.dp = one.virtual_stages = 1;
  one.near_pp = false;
  one.data = TC_DATA_DDP;
  one.shard = TC_AUTO;
  one.reduce = TC_REDUCE_AUTO;
  one.schedule = TC_SCHEDULE_1F1B;
  one.offload = TC_OFFLOAD_NO;
  for (int i = 0; i < 2 && !p->status; i++) {
    struct tc_config c = tc_cand_config(g->cfg, &one);
    c.model_layers = i + 1;
    c.train_rows = "";                           /* patterns may be of layers that this model has not: as if all trained */
    c.train_global_batch = x->micro;
    p->status = tc_plan_unit(&u[i], &c, x->cp * x->tp, g->k, &p->err);
  }
  if (p->status) return;
  struct tc_layer_price a = price_of(&u[0]), b = price_of(&u[1]);
  p->layer = (struct tc_layer_price){ b.f - a.f, b.b - a.b, b.w - a.w,
                                      TC_MAX(b.act_bytes - a.act_bytes, 0) };
  p->rest = (struct tc_layer_price){ a.f - p->layer.f, a.b - p->layer.b, a.w - p->layer.w,
                                     TC_MAX(a.act_bytes - p->layer.act_bytes, 0) };
}

static const struct tc_price *price(struct tc_guess *g, const struct tc_cand *x)
{
  for (int i = 0; i < g->n; i++) {
    const struct price_row *r = &g->row[i];
    if (r->cp == x->cp && r->tp == x->tp && r->micro == x->micro && r->sequence == x->sequence &&
        r->regather == x->regather && r->recompute == x->recompute)
      return &r->p;
  }
  TC_GROW(g->row, g->n, g->cap);
  struct price_row *r = &g->row[g->n++];
  *r = (struct price_row){ x->cp, x->tp, x->micro, x->recompute, x->sequence, x->regather, { .status = 0 } };
  make_price(g, &r->p, x);
  return &r->p;
}

/* ---- memory ---------------------------------------------------------------------- */

/* Micro-batches whose activations the first and the last rank store, as a fraction of all of their layers:
 * the slots of each of their virtual stages. */
static struct flight_row in_flight(struct tc_guess *g, const struct tc_cand *x)
{
  if (x->pp == 1 || x->schedule == TC_SCHEDULE_NAIVE) return (struct flight_row){ .first = 1, .last = 1 };
  if (x->schedule == TC_SCHEDULE_GPIPE) return (struct flight_row){ .first = x->n_mb, .last = x->n_mb };
  int m = TC_MIN(x->n_mb, 2 * x->pp);            /* more micro-batches need no more slots */
  for (int i = 0; i < g->n_flight; i++) {
    const struct flight_row *r = &g->flight[i];
    if (r->pp == x->pp && r->virtual_stages == x->virtual_stages && r->n_mb == m && r->schedule == x->schedule)
      return *r;
  }
  TC_GROW(g->flight, g->n_flight, g->cap_flight);
  struct flight_row *r = &g->flight[g->n_flight++];
  struct tc_pipeline *s;
  *r = (struct flight_row){ x->schedule, x->pp, x->virtual_stages, m, x->pp, x->pp };
  if (tc_pipeline_new(&s, x->schedule, x->pp, x->virtual_stages, m, NULL) < 0)
    return *r;
  const int end = s->split ? TC_WORK_W : TC_WORK_B;
  r->first = r->last = 0;
  for (int c = 0; c < x->virtual_stages; c++) {
    r->first += (double)tc_pipeline_peak(s, 0, c, TC_WORK_F, end) / x->virtual_stages;
    r->last += (double)tc_pipeline_peak(s, x->pp - 1, c, TC_WORK_F, end) / x->virtual_stages;
  }
  tc_pipeline_free(s);
  return *r;
}

/* The part of a weight or a gradient that a rank has at a place. */
static double share(const struct tc_system *s, int place, double n)
{
  return s->rows->place[place].kind == TC_FLAT ? 1 / n : 1;
}

/* Gradients are summed in full, and reduced once a step. */
static bool sums_in_full(const struct tc_cand *x)
{ return tc_systems[x->data].rows->place[TC_ACC].kind != TC_FLAT || x->reduce == TC_REDUCE_STEP; }

/* Whether stages may be balanced by memory, where a layout does not fit otherwise (tc_guess_stages). */
static bool may_balance(const struct tc_guess *g, const struct tc_cand *x)
{
  return x->pp > 1 && x->virtual_stages == 1 && (x->pp != g->cfg->mesh_pp || !strcmp(g->cfg->mesh_stages, "auto"));
}

/* Memory of each stage if all take as much: a layer takes so much and the activations of the micro-batches that its stage holds,
 * which grow fewer; the embedding's stage and the head's have more besides, and a layer at least. */
static double balanced(double layers, int pp, double layer, double act, struct flight_row held, double at_first, double at_last)
{
  const double first = layer + act * held.first, last = layer + act * held.last, middle = (first + last) / 2;
  const double all = (layers + at_first / first + at_last / last) / (1 / first + 1 / last + (pp - 2) / middle);
  return TC_MAX(all, TC_MAX(at_first + first, at_last + last));
}

/* Memory of the rank that needs most; *params: the parameters that it computes with. */
static double memory(struct tc_guess *g, struct tc_cand *x, const struct tc_price *p,
                     double *params)
{
  const struct tc_config *c = g->cfg;
  const struct tc_system *s = &tc_systems[x->data];
  bool bf16 = c->train_precision == TC_BF16;
  double grad = grad_bytes(g), use = use_bytes(g), n = shards(x), layers = most_layers(g, x);
  double psi = (layers * g->layer_params + g->rest_params) / x->tp;
  double store = share(s, TC_STORE, n), acc = sums_in_full(x) ? 1 : share(s, TC_ACC, n), update = share(s, TC_UPDATE, n);
  const double trained = 1 - g->frozen, state = (double)tc_dtype_bytes(c->train_state_type);
  double opt = trained * state * g->states + (bf16 || update != store ? 4 : 0);
  const int stored = s->rows->place[TC_STORE].kind;
  const bool sharded = stored != s->rows->place[TC_USE].kind;      /* weights are stored elsewhere than used */
  const double rest = opt * update + (sharded ? use * store : 0);        /* what offload moves to the host */
  double each = trained * grad * acc + (sharded ? 0 : use * store) + (x->offload == TC_OFFLOAD_NO ? rest : 0);     /* of a parameter */
  x->host_bytes = x->offload == TC_OFFLOAD_NO ? 0 : psi * rest;
  const double ends = g->model.tied == TC_ON ? g->rest_params : g->rest_params / 2;          /* embedding and head are gathered apart */
  double unit = TC_MAX(g->layer_params, ends) / x->tp;
  double besides = acc != 1 ? 2 * unit * grad : 0;         /* gradients in flight */
  if (stored == TC_FLAT) besides += 2 * unit * use;       /* gathered, one unit ahead */
  else if (sharded) each += use;                   /* a copy of all weights for the step */
  *params = psi;
  const struct flight_row held = in_flight(g, x);      /* the head is on the last rank */
  const double act = p->layer.act_bytes;
  const double bytes = psi * each + besides + TC_MAX(held.first * layers * act, held.last * layers * act + p->rest.act_bytes);
  if (bytes <= g->k->device.memory_bytes || !may_balance(g, x)) return bytes;
  const double end = each * ends / x->tp, layer = each * g->layer_params / x->tp;
  return TC_MIN(bytes, besides + balanced((double)g->model.layers, x->pp, layer, act, held, end, end + p->rest.act_bytes));
}

/* The class of a stage at an end. */
static const struct tc_plan_class *end_of(const struct tc_plan *p, int stage)
{
  for (int i = 0; i < p->n_cls; i++)
    if (p->cls[i].pp == stage) return &p->cls[i];
  return NULL;
}

/* What a stage takes without its layers, of which each takes so much. */
static double bytes_besides(const struct tc_guess *g, const struct tc_cand *x, const struct tc_plan_class *end, double each)
{
  /* A head that is the embedding's table counts as the first stage's. */
  const double rest = g->model.tied != TC_ON ? g->rest_params / 2 : end->pp == 0 ? g->rest_params : 0;
  const double layers = round(((double)end->parameters * x->tp - rest) / g->layer_params);
  return TC_MAX((double)end->memory.bytes[TC_DEVICE] - layers * each, 0);
}

char *tc_guess_stages(struct tc_guess *g, const struct tc_cand *x, const struct tc_plan *p, double *bytes)
{
  const struct tc_plan_class *first = end_of(p, 0), *last = end_of(p, x->pp - 1);
  if (!may_balance(g, x) || x->pp > g->model.layers || !first || !last) return NULL;
  const struct flight_row held = in_flight(g, x);
  const double state = (double)first->memory.state_bytes / (double)first->parameters * g->layer_params / x->tp;
  const double act = price(g, x)->layer.act_bytes;
  double *each = tc_calloc((size_t)x->pp, sizeof *each), *all = tc_calloc((size_t)x->pp, sizeof *all);
  int *layers = tc_calloc((size_t)x->pp, sizeof *layers);
  for (int i = 0; i < x->pp; i++) {              /* fewer micro-batches from stage to stage */
    each[i] = state + act * (held.first + (held.last - held.first) * i / (x->pp - 1));
    layers[i] = 1;
  }
  const double at_first = bytes_besides(g, x, first, each[0]), at_last = bytes_besides(g, x, last, each[x->pp - 1]);
  for (int i = 0; i < x->pp; i++) all[i] = each[i] + (i == 0 ? at_first : i == x->pp - 1 ? at_last : TC_MIN(at_first, at_last));
  for (int64_t left = g->model.layers - x->pp; left > 0; left--) {         /* to the stage that then has least */
    int to = 0;
    for (int i = 1; i < x->pp; i++)
      if (all[i] + each[i] < all[to] + each[to]) to = i;
    all[to] += each[to];
    layers[to]++;
  }
  const size_t size = (size_t)x->pp * 24;
  char *text = tc_calloc(size, 1);
  *bytes = 0;
  for (int i = 0, at = 0; i < x->pp; at += layers[i++]) {
    tc_text_add(text, size, layers[i] > 1 ? "%s%d-%d" : "%s%d", i ? "," : "", at, at + layers[i] - 1);
    *bytes = TC_MAX(*bytes, all[i]);
  }
  char *own = tc_pool_strdup(g->cfg->pool, text);
  TC_FREE(text, each, all, layers);
  return own;
}

/* ---- time ------------------------------------------------------------------------ */

/* The number of a group's row. */
static int group_of(struct tc_guess *g, int size, int each)
{
  for (int i = 0; i < g->n_group; i++)
    if (g->group[i].size == size && g->group[i].each == each) return i;
  TC_GROW(g->group, g->n_group, g->cap_group);
  g->group[g->n_group] = (struct group_row){ size, each, tc_members_even(size, each, 0, g->cfg->run_sums == TC_SUMS_NODES) };
  g->group[g->n_group].m.selection = g->selection;
  return g->n_group++;
}

/* What the busiest member of a group sends for each of `count` elements. */
static struct tc_busiest sent_each(struct tc_guess *g, int group, int coll, int dtype, double count)
{
  const struct tc_members *m = &g->group[group].m;
  const int algorithm = tc_coll_algorithm(coll, dtype, m, count);
  for (int i = 0; i < g->n_sent; i++) {
    const struct sent_row *r = &g->sent[i];
    if (r->group == group && r->algorithm == algorithm && r->coll == coll && r->dtype == dtype) return r->each;
  }
  TC_GROW(g->sent, g->n_sent, g->cap_sent);
  const struct tc_busiest each = tc_busiest(algorithm, coll, m, 1, (double)tc_dtype_bytes(dtype), (double)tc_dtype_bytes(tc_sum_dtype(dtype)));
  g->sent[g->n_sent++] = (struct sent_row){ group, algorithm, coll, dtype, each };
  return each;
}

/* Seconds of a collective of `coll` of `count` elements of so many bytes on the wires of a group of n ranks of dp and cp, without
 * latencies. apart: from one to the next of them. */
static double group_s(struct tc_guess *g, const struct tc_cand *x, int n, int apart, int coll, double count, double bytes)
{
  int each = TC_MAX(g->k->devices / x->tp / (x->near_pp ? x->pp : 1) / apart, 1);
  double near = g->k->switch_nodes >= 1 ? each * g->k->switch_nodes : n, s = 0, on[TC_WIRES];
  each = TC_MIN(each, n);
  struct tc_busiest b = sent_each(g, group_of(g, n, each), coll, bytes == 2 ? TC_BF16 : TC_F32, count);
  b.all *= count, b.away *= count;
  tc_wire_bytes(on, &b, n > each ? TC_MAX(n - near, 0) / (n - each) : 0);
  for (int w = 0; w < TC_WIRES; w++)
    if (on[w] > 0) s = TC_MAX(s, tc_link_seconds(&g->k->link[w], coll, 0, on[w]));
  return s;
}

static double bubble_s(const struct tc_cand *x, double f, double b, double w)
{
  double p = x->pp - 1;
  if (x->schedule == TC_SCHEDULE_NAIVE) return (f + b + w) * p * x->n_mb;
  if (x->schedule == TC_SCHEDULE_ZB) return p * TC_MAX(f + b - w, (f + b + w) / 3);
  return p * (f + b + w) / (x->schedule == TC_SCHEDULE_INTERLEAVED ? x->virtual_stages : 1);
}

void tc_guess_done(struct tc_guess *g)
{
  for (int i = 0; i < g->n_group; i++) tc_members_done(&g->group[i].m);
  tc_selection_free(g->selection);
  TC_FREE(g->row, g->flight, g->group, g->sent);
}

int tc_guess(struct tc_guess *g, struct tc_cand *x, struct tc_err *err)
{
  const struct tc_price *p = price(g, x);
  if (p->status) return tc_fail(err, p->status, "%s", p->err.text);
  const struct tc_plan_device *d = &g->k->device;
  double psi, pp = x->pp, n = shards(x), m = x->n_mb;
  x->bytes = memory(g, x, p, &psi);
  /* The first and the last stage have embedding and head in addition to layers, and fewer layers if that
   * balances the stages. */
  double even = (double)g->model.layers / pp;
  double most = most_layers(g, x);
  double rest = p->rest.f + p->rest.b + p->rest.w, one = p->layer.f + p->layer.b + p->layer.w;
  double stage = TC_MAX(even * one + rest / pp, TC_MIN(most, even + 0.5) * one);
  double f = stage * p->layer.f / one, b = stage * p->layer.b / one, w = stage * p->layer.w / one;
  double use = use_bytes(g), grad = grad_bytes(g), comm = 0, gather = 0, scatter = 0;
  const struct tc_system *s = &tc_systems[x->data];
  if (s->rows->place[TC_STORE].kind == TC_FLAT) gather = group_s(g, x, (int)n, 1, TC_ALL_GATHER, psi, use);
  if (!sums_in_full(x)) scatter = group_s(g, x, (int)n, 1, TC_REDUCE_SCATTER, psi, grad);
  else if (s->rows->place[TC_UPDATE].kind == TC_FLAT)
    comm += group_s(g, x, (int)n, 1, TC_REDUCE_SCATTER, psi, grad);
  else comm += group_s(g, x, copies(x), 1, TC_ALL_REDUCE, psi, grad);
  if (copies(x) > n) comm += group_s(g, x, copies(x) / (int)n, (int)n, TC_ALL_REDUCE, psi / n, grad);
  double update = tc_memory_s(d, psi * share(s, TC_UPDATE, n) * 28);
  if (s->rows->place[TC_UPDATE].kind == TC_FLAT && s->rows->place[TC_STORE].kind != TC_FLAT)
    update += group_s(g, x, (int)n, 1, TC_ALL_GATHER, psi, use);   /* updated weights: no work overlaps their gather */
  if (x->offload != TC_OFFLOAD_NO) update += psi * 24 / n / d->copy_bytes_per_s;
  int wire = x->near_pp && g->k->devices >= x->tp * 2 ? TC_WIRE_NODE : TC_WIRE_NETWORK;
  if (g->k->devices >= x->tp * copies(x) * x->pp) wire = TC_WIRE_NODE;
  double send = (double)x->micro * (double)g->model.context * (double)g->model.hidden * use /
                x->cp / (x->sequence ? x->tp : 1) / g->k->link[wire].bytes_per_s[TC_SEND];
  const double steal = copies(x) * x->tp > g->k->devices ? d->steal_network : d->steal, back = gather + scatter;
  x->s = m * (TC_MAX(f + steal * gather, gather) + TC_MAX(b + w + steal * back, back)) + bubble_s(x, f, b, w) +
         tc_exposed_s(comm, b + w, TC_MAX(most, 1)) + update +
         (x->pp > 1 ? 2 * (pp - 1) * send * x->virtual_stages : 0);
  return 0;
}
