/* layout.c - plans one layout: compiles the programs of its distinct ranks as a run does, then computes their
 * memory, their bytes, and the time of a step. */
#include "src/passes/passes.h"
#include "src/plan/impl.h"
#include "src/program/predict.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* In longer pipelines only these stages are examined: both ends, the second, and those with another number of
 * layers than the one before; from such a stage on, memory only falls until the next. */
enum { STAGES_EACH = 8, STAGES_SIMULATED = 128 };      /* of an exact plan all of so many are simulated */

/* The rank of a stage that has most to do of updates of whole matrices (passes/owners.c); -1: each has all of its own. */
static int32_t busiest_owner(const struct tc_graph *g, const struct tc_mesh *m, int pp)
{
  double *load = NULL, most = 0;
  int32_t busiest = -1;
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_param *p = &g->param[i];
    int32_t at = pp * m->stride[TC_PP], owned = 0;
    for (int a = 0; a < TC_AXES && tc_update_row[p->kind].matrices && !p->frozen; a++)
      if (a != TC_PP && a != TC_MB && p->update.on[a].kind == TC_AT) at += p->update.on[a].at * m->stride[a], owned++;
    if (!owned || g->unit[p->unit].at != (m->size[TC_PP] > 1 ? pp : -1)) continue;
    if (!load) load = tc_calloc((size_t)m->world, sizeof *load);
    load[at] += tc_owner_work(g, p);
    if (load[at] > most) most = load[at], busiest = m->at[at];
  }
  free(load);
  return busiest;
}

/* On cp the last rank, whose part of a sequence is most work. g: NULL: not known yet. */
static struct tc_plan_class class_at(const struct tc_graph *g, const struct tc_mesh *m, int pp, int dp)
{
  const int32_t owner = g && dp == 0 ? busiest_owner(g, m, pp) : -1;
  if (owner >= 0) return (struct tc_plan_class){ .pp = pp, .dp = dp, .rank = owner };
  const int first = m->at[pp * m->stride[TC_PP]], of_dp = tc_mesh_member(m, first, TC_ON_DP, dp);
  return (struct tc_plan_class){ .pp = pp, .dp = dp, .rank = tc_mesh_member(m, of_dp, TC_ON_CP, tc_mesh_size(m, TC_ON_CP) - 1) };
}

/* Lists the ranks whose programs may differ from the first rank's, g: other stages and, where dp has a root,
 * a rank that is not the root. */
static void list_classes(struct tc_plan *out, const struct tc_mesh *m, const struct tc_program_opts *o,
                    const struct tc_graph *g, bool exact)
{
  int pp = m->size[TC_PP], n = 0;
  int rooted = o->system->rows->place[TC_UPDATE].kind == TC_AT && tc_mesh_size(m, TC_ON_DP) > 1;
  bool by_hand = o->stages && strcmp(o->stages, "auto"), each = pp <= STAGES_EACH && (exact || by_hand);
  int32_t *layers = tc_calloc((size_t)pp, sizeof *layers);           /* of each stage */
  for (int32_t u = 0; u < g->n_units; u++)
    if (g->unit[u].parent < 0 && g->unit[u].layer >= 0) layers[TC_MAX(g->unit[u].at, 0)]++;
  for (int s = 0; s < pp; s++) {
    bool other = s > 0 && layers[s] != layers[s - 1] && (exact || by_hand);
    bool fits = n + 2 * (rooted + 1) <= TC_PLAN_CLASSES;   /* with space for the last stage */
    if (s > 0 && s < pp - 1 && s != 1 && !((each || other) && fits)) continue;
    for (int d = 0; d <= rooted; d++, n++)
      if (n > 0) out->cls[n] = class_at(g, m, s, d);
  }
  out->n_cls = n;
  free(layers);
}

int64_t tc_plan_parameters(const struct tc_program *p, const struct tc_mesh *m, int rank)
{
  const struct tc_graph *g = p->graph;
  int64_t n = 0;
  for (int32_t i = 0; i < g->n_params; i++) {
    struct tc_tensor t = g->tensor[g->param[i].weight];
    struct tc_local l;
    t.lay = g->param[i].use;
    tc_tensor_local(&t, m, m->coord + (size_t)rank * TC_AXES, &l);
    n += l.elems;
  }
  return n;
}

/* A stage of the run after the first: its programs take memory beside those of the first, whose time is that of the plan. */
struct later { struct tc_mesh *m; struct tc_program_opts o; struct tc_annotation *rows; };
struct all_later { struct later *stage; int n; };

/* like: the TRAIN of another rank, whose graph is the same; NULL: the first one. */
static int make_class(struct tc_plan_class *c, struct tc_program **train, const struct tc_program *like,
                      const struct tc_program_opts *o, const struct tc_mesh *m, bool exact, const struct all_later *later,
                      struct tc_err *err)
{
  const int n = (later->n + 1) * TC_PROGRAMS, kinds = exact ? TC_OF_TRAINING : TC_TRAIN + 1;
  struct tc_program **p = tc_calloc((size_t)n, sizeof *p);
  int rc = 0;
  const struct tc_program_opts of_train = tc_program_opts_of(o, TC_TRAIN);
  if (like) rc = tc_program_beside(&p[TC_TRAIN], like, &of_train, c->rank, err);
  for (int i = like ? TC_TRAIN + 1 : 0; i < kinds && !rc; i++) rc = tc_program_of_run(p, i, o, m, c->rank, err);
  for (int k = 0; k < later->n; k++)
    for (int i = 0; i < kinds && !rc; i++)
      if (i != TC_INIT && i != TC_REFRESH)
        rc = tc_program_of_stage(p + (k + 1) * TC_PROGRAMS, i, p[0], &later->stage[k].o, later->stage[k].m, c->rank, err);
  if (!rc) {
    tc_plan_memory(&c->memory, p, n, c->rank);
    c->parameters = tc_plan_parameters(p[0], m, c->rank);
    *train = p[0];
  }
  for (int i = rc ? 0 : 1; i < n; i++) tc_program_free(p[i]);
  free(p);
  return rc;
}

/* The bytes that a rank sends in each of its groups and on each wire: the maximum over the classes. used: which ops it has. */
static void count_bytes(struct tc_plan *out, struct tc_program *const *program, const struct tc_mesh *m, const struct tc_cluster *k,
                        struct tc_plan_used *used)
{
  for (int i = 0; i < out->n_cls; i++) {
    double wire[TC_WIRES] = { 0 }, on[TC_SETS] = { 0 };
    const struct tc_program *p = program[i];
    for (int32_t x = 0; x < p->actions->n_body; x++) {
      const struct tc_node *n = &p->graph->node[p->actions->body[x]];
      struct tc_reshard_cost c;
      double times = n->once_a_step ? 1 : out->n_mb;
      used->op[n->op] |= n->op != TC_OP_RESHARD;
      if (n->op != TC_OP_RESHARD || n->control) continue;
      tc_reshard_cost(&c, p, n, m, out->cls[i].rank, k);
      for (int w = 0; w < TC_WIRES && c.coll != TC_RECV; w++) {
        wire[w] += times * c.bytes[w];
        if (w != TC_WIRE_SPINE) on[tc_mesh_find(m, n->axes)] += times * c.bytes[w];   /* these are part of the network's */
      }
    }
    for (int s = 0; s < TC_SETS && m->size[TC_MB] == out->n_mb; s++) {   /* the exact bytes */
      struct tc_comm_counters n;
      if (!m->group[s].named) continue;
      tc_program_bytes(p, m, out->cls[i].rank, m->group[s].axes, &n);
      on[s] = 0;
      for (int x = 0; x < TC_COLLS; x++) on[s] += (double)n.data[x].bytes;
    }
    for (int w = 0; w < TC_WIRES; w++) out->time.wire_bytes[w] = TC_MAX(out->time.wire_bytes[w], wire[w]);
    for (int s = 0; s < TC_SETS; s++) out->time.bytes[s] = TC_MAX(out->time.bytes[s], on[s]);
  }
}

/* The stages whose programs there are, or every one of a pipeline that is simulated. */
struct stages { struct tc_program *program[STAGES_SIMULATED]; int rank[STAGES_SIMULATED], n; bool own[STAGES_SIMULATED]; };

/* Takes those of the classes; if all are to be simulated, what is missing is made beside the first one. */
static int find_stages(struct stages *s, const struct tc_plan *out, struct tc_program **program, const struct tc_program_opts *o,
                       const struct tc_mesh *m, struct tc_err *err)
{
  const bool all = out->exact && m->size[TC_PP] <= STAGES_SIMULATED && m->size[TC_MB] == out->n_mb;
  const struct tc_program_opts of_train = tc_program_opts_of(o, TC_TRAIN);
  *s = (struct stages){ .n = 0 };
  for (int pp = 0, i = 0; pp < m->size[TC_PP]; pp++) {
    while (i < out->n_cls && (out->cls[i].dp || out->cls[i].pp < pp)) i++;
    const bool there = i < out->n_cls && out->cls[i].pp == pp;
    if (!there && !all) continue;
    s->rank[s->n] = there ? out->cls[i].rank : class_at(program[0]->graph, m, pp, 0).rank;
    s->program[s->n] = there ? program[i] : NULL;
    s->own[s->n] = !there;
    const int rc = there ? 0 : tc_program_beside(&s->program[s->n], program[0], &of_train, s->rank[s->n], err);
    if (rc < 0) return rc;
    s->n++;
  }
  return 0;
}

static int find_step(struct tc_plan_step *w, struct tc_plan *out, struct tc_program **program, const struct tc_program_opts *o,
                     const struct tc_mesh *m, const struct tc_cluster *k, struct tc_err *err)
{
  const bool piped = m->size[TC_PP] > 1;
  struct stages s;
  int rc = find_stages(&s, out, program, o, m, err);
  out->time.simulated = s.n == m->size[TC_PP] && m->size[TC_MB] == out->n_mb;
  if (!rc && out->time.simulated) rc = tc_plan_simulate(w, s.program, s.rank, s.n, m, k, err);
  else if (!rc)
    rc = tc_plan_sums(w, s.program, s.rank, s.n, piped ? o->schedule : TC_SCHEDULE_NAIVE, piped ? TC_MAX(o->virtual_stages, 1) : 1,
                      out->n_mb, m, k, err);
  for (int i = 0; i < s.n; i++)
    if (s.own[i]) tc_program_free(s.program[i]);
  return rc;
}

static int find_time(struct tc_plan *out, struct tc_program **program,
                     const struct tc_program_opts *o,
                     const struct tc_mesh *m, const struct tc_cluster *k, struct tc_err *err)
{
  struct tc_plan_step w;
  TC_TRY(find_step(&w, out, program, o, m, k, err));
  double peak = k->device.flops[o->gpt.dtype == TC_BF16 ? TC_BF16 : TC_F32];
  out->time.step_s = w.step_s;
  out->time.compute_s = w.busy_s;
  out->time.bubble = w.bubble;
  memcpy(out->time.wait_s, w.wait_s, sizeof w.wait_s);
  memcpy(out->time.term_s, w.term_s, sizeof w.term_s);
  out->time.tokens_per_s = (double)out->tokens / w.step_s;
  out->time.mfu = peak > 0 ? out->flops * (double)out->tokens / (w.step_s * peak * out->world) : 0;
  struct tc_plan_used used = { .op = { false } };
  count_bytes(out, program, m, k, &used);
  memcpy(used.wire_bytes, out->time.wire_bytes, sizeof used.wire_bytes);
  for (int t = 0; t < TC_TERMS; t++) out->time.source[t] = tc_plan_source(k, t, &used);
  return 0;
}

/* out->n_mb and batch are set: m may have fewer micro-batches. */
static int with_mesh(struct tc_plan *out, const struct tc_config *c, const struct tc_mesh *m,
                     const struct tc_cluster *k, bool exact, const struct all_later *later, struct tc_err *err)
{
  struct tc_program_opts o;
  struct tc_annotation *rows;
  struct tc_program *program[TC_PLAN_CLASSES] = { NULL };
  struct tc_parameter_sums sum;
  int rc = tc_setup_program(&o, c, m, &rows, err);
  if (!rc) rc = tc_setup_parameter_sums(&sum, c, err);
  if (!rc && k && o.gpt.dtype == TC_BF16 && k->device.flops[TC_BF16] <= 0)
    rc = tc_fail(err, TC_ELAYOUT, "train.precision = bf16: %s has no bf16 products; fp32 would fit",
                 k->device.name);
  if (!rc) {
    o.unchecked = !exact;
    out->world = m->world;
    memcpy(out->size, m->size, sizeof out->size);
    out->virtual_stages = TC_MAX(o.virtual_stages, 1);
    out->model = o.model;
    out->parameters = tc_model_params(&o.model);
    out->flops = tc_model_flops(&o.model) + sum.flops;
    out->saved_bytes = sum.saved_bytes + (double)tc_dtype_bytes(c->train_state_type) * sum.states;
    out->micro = (int)(out->batch / tc_mesh_size(m, TC_ON_DP) / out->n_mb);
    out->tokens = out->batch * o.model.context;
    out->cls[0] = class_at(NULL, m, 0, 0);
    out->n_cls = 1;
  }
  for (int i = 0; i < out->n_cls && !rc; i++) {
    rc = make_class(&out->cls[i], &program[i], i ? program[0] : NULL, &o, m, exact, later, err);
    const struct tc_plan_class first = rc || i ? out->cls[i] : class_at(program[0]->graph, m, 0, 0);
    if (first.rank != out->cls[i].rank) {
      tc_program_free(program[i]);
      program[i] = NULL;
      out->cls[i] = first;
      rc = make_class(&out->cls[i], &program[i], NULL, &o, m, exact, later, err);
    }
    if (!rc) rc = tc_program_listable(program[i]->graph, out->n_mb, err);
    if (!rc && out->cls[i].memory.bytes[TC_DEVICE] > out->cls[out->worst].memory.bytes[TC_DEVICE])
      out->worst = i;
    if (!rc && i == 0) list_classes(out, m, &o, program[0]->graph, exact);
  }
  if (!rc && k) rc = find_time(out, program, &o, m, k, err);
  for (int i = 0; i < out->n_cls; i++) tc_program_free(program[i]);
  tc_annotations_free(rows);
  return rc;
}

double tc_plan_host_bytes(const struct tc_plan *p, const struct tc_cluster *k)
{
  double most = 0;
  for (int i = 0; i < p->n_cls; i++) {
    const int64_t *bytes = p->cls[i].memory.bytes;
    const double own = tc_plan_is_cpu(&k->device) ? (double)bytes[TC_DEVICE] : 0;
    if (bytes[TC_HOST] > 0) most = TC_MAX(most, (double)bytes[TC_HOST] + own);
  }
  return most * TC_MIN(k->devices, p->world);
}

/* The number of micro-batches from which on a rank's memory is constant: stages store at most this many. */
static int64_t saturating_batches(const struct tc_config *c)
{
  if (c->mesh_pp <= 1) return 3;
  if (c->parallel_schedule == TC_SCHEDULE_GPIPE) return INT64_MAX;
  const int64_t sends = tc_ceil_div(TC_MAX(c->parallel_prefetch - 1, 0), c->mesh_pp);        /* in flight; whole rounds of stages */
  return ((c->parallel_schedule == TC_SCHEDULE_INTERLEAVED ? 4 : 2) + sends) * c->mesh_pp;
}

/* Memory is the same with fewer micro-batches, as many as this. */
static void few_batches(struct tc_config *c, struct tc_mesh *m)
{
  const int64_t few = saturating_batches(c), n = m->size[TC_MB];
  if (n <= few) return;
  c->train_global_batch = c->train_global_batch / n * few;
  m->size[TC_MB] = (int32_t)few;
}

/* What a run refuses. */
static int check_stages(const struct tc_config *c, struct tc_err *err)
{
  struct tc_stage *stages;
  TC_TRY(tc_setup_stages(&stages, c, err));
  free(stages);
  return 0;
}

static int make_later(struct later *l, const struct tc_config *c, int k, const struct tc_mesh *first,
                      const int32_t *node_of_rank, int devices_per_node, bool exact, struct tc_err *err)
{
  struct tc_config mine;
  struct tc_err why = { 0 };
  tc_config_at_stage(&mine, c, k);
  mine.mesh_order = first->order;
  int rc = tc_setup_mesh(&l->m, &mine, first->world, node_of_rank, devices_per_node, &why);
  if (rc == 0 && !exact) few_batches(&mine, l->m);
  if (rc == 0) rc = tc_setup_program(&l->o, &mine, l->m, &l->rows, &why);
  l->o.unchecked = !exact;
  return rc < 0 ? tc_fail(err, rc, "stage %d: %s", k + 1, why.text) : 0;
}

int tc_plan_layout_on(struct tc_plan *out, const struct tc_config *c, int world,
                      const int32_t *node_of_rank, int devices_per_node,
                      const struct tc_cluster *k, bool exact, struct tc_err *err)
{
  struct tc_mesh *m = NULL;
  struct tc_config few = *c;
  struct all_later later = { tc_calloc((size_t)c->n_stages + 1, sizeof *later.stage), c->n_stages };
  memset(out, 0, sizeof *out);
  int rc = tc_setup_mesh(&m, c, world, node_of_rank, devices_per_node, err);
  if (!rc) {
    out->n_mb = m->size[TC_MB];
    out->batch = c->train_global_batch;
    out->exact = exact;
  }
  if (!rc && later.n) rc = check_stages(c, err);
  if (!rc && !exact) few_batches(&few, m);
  for (int i = 0; i < later.n && !rc; i++)
    rc = make_later(&later.stage[i], c, i + 1, m, node_of_rank, devices_per_node, exact, err);
  if (!rc) rc = with_mesh(out, &few, m, k, exact, &later, err);
  for (int i = 0; i < later.n; i++) {
    tc_mesh_free(later.stage[i].m);
    tc_annotations_free(later.stage[i].rows);
  }
  free(later.stage);
  tc_mesh_free(m);
  return rc;
}

json_t *tc_plan_classes_json(const int64_t by_class[TC_CLASSES])
{
  json_t *o = json_object();
  for (int k = 0; k < TC_CLASSES; k++) json_object_set_new(o, tc_class_name[k], json_integer(by_class[k]));
  return o;
}

json_t *tc_plan_time_json(const struct tc_plan *p)
{
  const struct tc_plan_time *t = &p->time;
  struct tc_group group[TC_SETS];
  json_t *wait = json_object(), *bytes = json_object(), *wire = json_object(), *terms = json_object(), *from = json_object();
  tc_mesh_groups(group, p->size);
  for (int s = 0; s < TC_SETS; s++) {
    if (!group[s].named) continue;
    tc_figure(wait, tc_set_name[s], t->wait_s[s]);
    tc_figure(bytes, tc_set_name[s], t->bytes[s]);
  }
  for (int w = 0; w < TC_WIRES; w++)
    tc_figure(wire, tc_wire_name[w], t->wire_bytes[w]);
  json_t *o = json_object();
  tc_figure(o, "step_s", t->step_s);
  tc_figure(o, "tokens_per_s", t->tokens_per_s);
  tc_figure(o, "mfu", t->mfu);
  tc_figure(o, "bubble", t->bubble);
  tc_figure(o, "compute_s", t->compute_s);
  for (int x = 0; x < TC_TERMS; x++) {
    tc_figure(terms, tc_term_name[x], t->term_s[x]);
    json_object_set_new(from, tc_term_name[x], json_string(tc_source_name[t->source[x]]));
  }
  json_object_set_new(o, "terms_s", terms);
  json_object_set_new(o, "terms_from", from);
  json_object_set_new(o, "wait_s", wait);
  json_object_set_new(o, "bytes", bytes);
  json_object_set_new(o, "wire_bytes", wire);
  json_object_set_new(o, "walked", json_boolean(t->simulated));
  return o;
}
