/* t_digest.c - all that the planning half makes, in every field, as digests (digest.h): programs (graph,
 * actions, memory, transfers) of many layouts, schedules, transitions, models. */
#include "src/program/predict.h"
#include "src/graph/rule.h"
#include "src/model/optim.h"
#include "src/recipe/recipe.h"
#include "src/schedule/pipeline.h"
#include "src/program/setup.h"
#include "src/graph/shard_box.h"
#include "src/passes/reshard.h"
#include "src/program/collective.h"
#include "tests/unit/named.h"
#include "tests/unit/digest.h"

/* ---- fields as text -------------------------------------------------------------------- */

static void put_ints(FILE *f, const char *name, const void *at, int64_t n, size_t size)
{
  fprintf(f, " %s", name);
  for (int64_t i = 0; i < n; i++)
    fprintf(f, " %" PRId64,
            size == 8   ? ((const int64_t *)at)[i]
            : size == 4 ? ((const int32_t *)at)[i]
                        : ((const uint8_t *)at)[i]);
}
#define INTS(f, x, n) put_ints(f, #x, x, n, sizeof *(x))

/* The axes of a mesh that matter, in their order, into axis[TC_AXES]: an axis of one rank is one of these if it is always
 * shown, so that what is made here does not change with a new axis. Returns their number. */
static int shown(const struct tc_mesh *m, int axis[TC_AXES])
{
  int n = 0;
  for (int a = 0; a < TC_AXES; a++)
    if (a == TC_MB || a == TC_PP || a == TC_REST || a == TC_TP || m->size[a] > 1) axis[n++] = a;
  return n;
}

/* What x has for each of these axes. */
static void put_axes(FILE *f, const char *name, const int32_t *x, const struct tc_mesh *m)
{
  int axis[TC_AXES], n = shown(m, axis);
  fputs(name, f);
  for (int i = 0; i < n; i++) fprintf(f, " %d", x[axis[i]]);
}

/* A set as the place of its only axis among these; of several, as 100 and more. */
static int number_of(const struct tc_mesh *m, unsigned axes)
{
  int axis[TC_AXES], n = shown(m, axis);
  for (int i = 1; i < n; i++)
    if (axes == 1u << axis[i]) return i;
  return axes ? 100 + (int)axes : 0;
}

static void put_layout(FILE *f, const char *name, const struct tc_layout *l, const struct tc_mesh *m)
{
  int axis[TC_AXES], n = shown(m, axis);
  fprintf(f, " %s", name);
  for (int i = 0; i < n; i++) {
    const struct tc_place *p = &l->on[axis[i]];
    fprintf(f, " %d.%d.%d.%d", p->kind, p->dim, p->op, p->at);
  }
}

static void put_boxes(FILE *f, const char *name, const struct tc_box *b, int n, int rank)
{
  fprintf(f, " %s %d", name, n);
  for (int i = 0; i < n; i++) {
    INTS(f, b[i].start, rank);
    INTS(f, b[i].count, rank);
  }
}

static void put_tensor(FILE *f, const struct tc_graph *g, int32_t t, const struct tc_mesh *m,
                       int rank)
{
  const struct tc_tensor *x = &g->tensor[t];
  const int32_t *coord = m->coord + (size_t)rank * TC_AXES;
  struct tc_local l;
  struct tc_box box[TC_BOXES];
  fprintf(f, "tensor %d %s %d %d %d %d %lld %d %d %d %d %d %d", x->id, x->name, x->node, x->primal,
          x->overwrites, x->base, (long long)x->base_row, x->block, x->param, x->rank, x->dtype,
          x->space, x->cls);
  fprintf(f, " %d %d %d %d %lld root %d", x->state, x->saved, x->annotated, x->pad_dim,
          (long long)x->pad_to, tc_tensor_root(g, t));
  INTS(f, x->dim, x->rank);
  put_layout(f, "lay", &x->lay, m);
  put_layout(f, "want", &x->preferred, m);
  tc_tensor_local(x, m, coord, &l);
  INTS(f, l.dim, x->rank);
  INTS(f, l.off, x->rank);
  fprintf(f, " rows %lld %lld %lld %d of %lld, %lld bytes", (long long)l.row0, (long long)l.rows,
          (long long)l.elems, l.here, (long long)tc_tensor_elems(x),
          (long long)tc_tensor_local_bytes(x, m, coord));
  if (x->state) {
    put_boxes(f, "stored", box, tc_stored_boxes(x, m, rank, box), x->rank);
    put_boxes(f, "owned", box, tc_owned_boxes(x, m, rank, box), x->rank);
  }
  fprintf(f, "\n");
}

static void put_node(FILE *f, const struct tc_graph *g, const struct tc_node *n, const struct tc_mesh *m)
{
  char l[TC_RULE_MAX][TC_DIMS + 1];
  fprintf(f, "node %d %s %d %d %d %d %d %d %d %d %d %d %d", n->id, tc_op_info[n->op].name,
          n->origin, n->forward, n->unit, n->on_all_stages, n->mark, n->space, n->acc, n->acc_first,
          n->once_a_step, n->head, n->control);
  fprintf(f, " move %d %d %d %d %d %d %.9g %.9g %lld %lld", n->coll, number_of(m, n->axes), n->red, n->role,
          n->root, n->from_root, (double)n->attr.number, 0.0, (long long)n->attr.index,
          (long long)n->attr.rows);
  put_ints(f, "in", g->arg + n->in, n->n_in, 4);
  put_ints(f, "out", g->arg + n->out, n->n_out, 4);
  if (n->n_in + n->n_out <= TC_RULE_MAX)
    for (int i = tc_rule_parse(g, n, l), k = 0; k < i; k++) fprintf(f, " %s", l[k]);
  fprintf(f, "\n");
}

static void put_graph(FILE *f, const struct tc_graph *g, const struct tc_mesh *m, int rank)
{
  for (int32_t t = 0; t < g->n_tensors; t++) put_tensor(f, g, t, m, rank);
  for (int32_t i = 0; i < g->n_nodes; i++) put_node(f, g, &g->node[i], m);
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_param *p = &g->param[i];
    fprintf(f, "param %s %d %d %d %d %d %d %d %d %d %d %g %.9g %.9g %d", p->name, p->weight,
            p->master, p->state[0], p->state[1], p->acc, p->grad, p->tied_acc, p->tied_grad, p->reshard_after, p->offload,
            (double)p->decay, (double)p->init_std, (double)p->init_value, p->unit);
    put_layout(f, "store", &p->store, m);
    put_layout(f, "use", &p->use, m);
    put_layout(f, "acc", &p->acc_lay, m);
    put_layout(f, "update", &p->update, m);
    fprintf(f, "\n");
  }
  for (int32_t i = 0; i < g->n_units; i++)
    fprintf(f, "unit %s %d %d %d %d\n", g->unit[i].name, g->unit[i].parent, g->unit[i].layer,
            g->unit[i].stage, g->unit[i].at);
  for (int32_t i = 0; i < g->n_contributions; i++)
    fprintf(f, "contribution %d %d %d\n", g->contribution[i].param, g->contribution[i].node,
            g->contribution[i].out);
  INTS(f, g->order, g->n_order);
  fprintf(f, " %d %d %d %d %d %d\n", g->tokens, g->targets, g->logits, g->loss, g->grad_norm,
          g->grad_scale);
}

static void put_schedule(FILE *f, const struct tc_actions *s, const struct tc_graph *g)
{
  for (int32_t i = 0; i < s->n; i++)
    fprintf(f, "action %d %d %d\n", s->action[i].kind, s->action[i].node, s->action[i].mb);
  INTS(f, s->body, s->n_body);
  for (int32_t i = 0; i < g->n_nodes; i++) fprintf(f, " %d", tc_actions_most(s, i));
  fprintf(f, " %d %d %d %d %d\n", s->n_mb, s->opts.prefetch, s->opts.overlap, s->opts.pp, s->opts.at);
}

static void put_arena(FILE *f, const struct tc_arena *a)
{
  INTS(f, a->off, a->n);
  INTS(f, a->region, a->n);
  INTS(f, a->slots, a->n);
  INTS(f, a->slot_at, a->n);
  INTS(f, a->slot, a->n_slot);
  for (int32_t t = 0; t < a->n; t++)
    fprintf(f, " %d.%d.%d", a->last_use[t].node, a->last_use[t].wait, a->last_use[t].once);
  INTS(f, a->bytes, TC_REGIONS);
  INTS(f, a->by_class[TC_DEVICE], TC_CLASSES);
  INTS(f, a->by_class[TC_HOST], TC_CLASSES);
  fprintf(f, "\n");
}

static void put_transfers(FILE *f, const struct tc_program *p, const struct tc_mesh *m, int rank)
{
  for (int32_t i = 0; i < p->graph->n_nodes; i++) {
    const struct tc_node *n = &p->graph->node[i];
    int coord = tc_mesh_index(m, rank, n->axes);
    if (n->op != TC_OP_RESHARD || tc_coll_is_local(n->coll) || n->coll == TC_COPY) continue;
    struct tc_part *part = tc_calloc((size_t)n->n_in, sizeof *part);
    for (int k = 0; k < n->n_in; k++) {
      part[k].src = (void *)(uintptr_t)(p->arena->off[tc_in(p->graph, n, k)] + 4096);
      part[k].dst = (void *)(uintptr_t)(p->arena->off[tc_out(p->graph, n, k)] + 4096);
    }
    fprintf(f, "transfer %d %d %d", i, tc_collective_coll(n, coord), tc_collective_root(n, coord));
    for (int k = 0, pack, unpack; k < n->n_in; k++) {
      fprintf(f, " %lld", (long long)tc_collective_packs(p->graph, n, k, m, rank, &pack, &unpack));
      fprintf(f, ".%d.%d", pack, unpack);
    }
    for (int k = 0, parts = tc_collective_parts(p->graph, n, m, rank, part); k < parts; k++)
      fprintf(f, " %lld.%lld", (long long)part[k].count, (long long)part[k].block);
    fprintf(f, "\n");
    free(part);
  }
  fprintf(f, "staging %lld", (long long)tc_program_staging(p, m, rank));
  for (int a = 0; a < TC_SETS; a++) {
    struct tc_comm_counters c;
    if (!m->group[a].named) continue;
    tc_program_bytes(p, m, rank, m->group[a].axes, &c);
    for (int k = TC_FIRST_COLL; k < TC_COLLS; k++)
      fprintf(f, " %lld.%lld.%lld.%lld", (long long)c.data[k].calls, (long long)c.data[k].bytes,
              (long long)c.ctl[k].calls, (long long)c.ctl[k].bytes);
  }
  fprintf(f, "\n");
}

static void put_mesh(FILE *f, const struct tc_mesh *m)
{
  fprintf(f, "mesh %d %d %d", m->world, m->n_nodes, m->order);
  put_axes(f, " m->size", m->size, m);
  put_axes(f, " m->stride", m->stride, m);
  INTS(f, m->node, m->world);
  INTS(f, m->at, m->world);
  for (int r = 0; r < m->world; r++) put_axes(f, r ? "" : " m->coord", m->coord + (size_t)r * TC_AXES, m);
  for (int r = 0; r < m->world; r++)
    for (int a = 0; a < TC_SETS; a++) {
      int32_t group[64];
      if (!m->group[a].named) continue;
      tc_mesh_group(m, r, m->group[a].axes, group);
      INTS(f, group, m->group[a].size);
      fprintf(f, " %d", tc_mesh_group_nodes(m, r, m->group[a].axes));
    }
  fprintf(f, "\n");
}

/* ---- lines ----------------------------------------------------------------------------- */

static char *program_text(const struct tc_program *p, const struct tc_mesh *m, int rank)
{
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  put_graph(f, p->graph, m, rank);
  put_schedule(f, p->actions, p->graph);
  put_arena(f, p->arena);
  put_transfers(f, p, m, rank);
  fclose(f);
  return text;
}

/* Whether the program of a rank made beside that of rank 0, whose graph it takes, is the same. */
static bool is_same_beside(const struct tc_program *p, const struct tc_program_opts *o, const struct tc_mesh *m, int rank)
{
  struct tc_program *first = NULL, *beside = NULL;
  struct tc_err err;
  char *a = program_text(p, m, rank), *b = NULL;
  if (!tc_program_new(&first, o, m, 0, NULL, NULL, &err) && !tc_program_beside(&beside, first, o, rank, &err))
    b = program_text(beside, m, rank);
  const bool same = b && !strcmp(a, b);
  tc_program_free(beside);
  tc_program_free(first);
  free(a);
  free(b);
  return same;
}

/* The train program of a rank, and those that share its state. */
static int put_programs(FILE *f, const struct tc_program_opts *o, const struct tc_mesh *m, int rank,
                        struct tc_err *err)
{
  struct tc_program *train = NULL, *p;
  for (int kind = TC_TRAIN; kind <= TC_REFRESH; kind++) {
    struct tc_program_opts x = *o;
    x.kind = kind;
    int rc = tc_program_new(&p, &x, m, rank, train, NULL, err);
    if (rc < 0 && kind == TC_TRAIN) return rc;
    fprintf(f, "program %d of rank %d: %d %s\n", kind, rank, rc, rc < 0 ? err->text : "");
    if (rc < 0) continue;
    char *text = program_text(p, m, rank);
    fputs(text, f);
    free(text);
    if (kind == TC_TRAIN && rank > 0 && !is_same_beside(p, &x, m, rank)) fprintf(f, "rank %d beside rank 0 differs\n", rank);
    if (kind == TC_TRAIN)
      train = p;
    else
      tc_program_free(p);
  }
  tc_program_free(train);
  return 0;
}

/* CLUSTER FLAGS [| ROWS]: the programs of the first and the last rank, of many also of one between. */
static int put_layouts(FILE *f, const char *line, struct tc_err *err)
{
  char cluster[40] = "", order[10] = "block";
  struct tc_config *c = NULL;
  struct tc_mesh *m = NULL;
  struct tc_annotation *rows = NULL;
  struct tc_program_opts o;
  int64_t bytes[TC_SETS];
  int32_t *node;
  sscanf(line, "%39[^ /]/%9[a-z]", cluster, order);
  int world = tc_mesh_synthetic(cluster, order, &node, err);
  if (world < 0) return world;
  int rc = read_config(&c, line + strcspn(line, " "), err);
  if (!rc) rc = tc_setup_mesh(&m, c, world, node, 0, err);
  if (!rc) put_mesh(f, m);
  if (!rc) rc = tc_setup_program(&o, c, m, &rows, err);
  if (!rc) rc = tc_setup_traffic(bytes, c, m, err);
  if (!rc) fprintf(f, " bytes 0");
  for (int s = 0; s < TC_SETS && !rc; s++)
    if (m->group[s].named) fprintf(f, " %lld", (long long)bytes[s]);
  if (!rc) rc = put_programs(f, &o, m, 0, err);
  if (!rc && world > 1) rc = put_programs(f, &o, m, world - 1, err);
  const bool many = !rc && (m->size[TC_PP] > 2 || tc_mesh_size(m, TC_ON_DP) > 4);
  if (many) rc = put_programs(f, &o, m, world / 3, err);
  tc_annotations_free(rows);
  tc_mesh_free(m);
  tc_config_free(c);
  free(node);
  return rc;
}

/* sched NAME P V M: items, when they run with costs of each stage, transfers. */
static int put_sched(FILE *f, const char *line, struct tc_err *err)
{
  char name[20] = "";
  int p = 0, v = 0, m = 0;
  struct tc_pipeline *s;
  sscanf(line, "sched %19s %d %d %d", name, &p, &v, &m);
  TC_TRY(tc_pipeline_new(&s, schedule_named(name), p, v, m, err));
  struct tc_pipeline_cost cost[64];
  for (int i = 0; i < p * v; i++)
    cost[i] = (struct tc_pipeline_cost){ 1 + i % 3, 2 + i % 5, 1.5, 0.25 * i };
  struct tc_simulation *sim, *serial;
  struct tc_transfers *t;
  TC_TRY(tc_pipeline_transfers(&t, s, p > 2 ? cost : NULL, p > 2 ? p * v : 0, err));
  TC_TRY(tc_pipeline_simulate(&sim, s, cost, p * v, NULL, err));
  TC_TRY(tc_pipeline_simulate(&serial, s, cost, p * v, t, err));
  fprintf(f, "%d %d %d %d %.9g %.9g %.9g %.9g\n", s->p, s->v, s->m, s->split, sim->makespan,
          sim->bubble, serial->makespan, serial->bubble);
  for (int r = 0; r < p; r++) {
    fprintf(f, "rank %d %d %.9g", r, sim->peak_rank[r], sim->busy[r]);
    INTS(f, sim->peak[r], v);
    for (int i = 0; i < s->n_items[r]; i++)
      fprintf(f, " %d.%d.%d %.9g %.9g", s->item[r][i].work, s->item[r][i].virtual_stage, s->item[r][i].mb,
              sim->start[r][i], serial->end[r][i]);
    INTS(f, t->queue[r], t->n_queue[r]);
    fprintf(f, "\n");
  }
  for (int i = 0; i < t->n; i++)
    fprintf(f, "%d %d %d %d %d %d %.9g\n", t->t[i].work, t->t[i].stage_from, t->t[i].stage_to,
            t->t[i].mb, t->t[i].from, t->t[i].to, t->t[i].time);
  tc_transfers_free(t);
  tc_simulation_free(sim);
  tc_simulation_free(serial);
  tc_pipeline_free(s);
  return 0;
}

static uint32_t draw(uint32_t *x, uint32_t below)
{
  *x = *x * 1664525 + 1013904223;
  return (*x >> 8) % below;
}

/* A flat shard is on axes that have a name together: of each group of the mesh, or of one axis. */
static struct tc_layout draw_layout(const struct tc_mesh *m, uint32_t *x)
{
  struct tc_layout l = tc_layout_r();
  for (int a = TC_FIRST_AXIS; a < TC_AXES; a++) {
    if (m->size[a] == 1) continue;
    l.on[a] = (struct tc_place){ .kind = (uint8_t)draw(x, 5) };
    if (a == TC_PP) l.on[a].kind = draw(x, 2) ? TC_AT : TC_R;
    if (l.on[a].kind == TC_S) l.on[a].dim = (uint8_t)draw(x, 2);
    if (l.on[a].kind == TC_AT) l.on[a].at = (int32_t)draw(x, (uint32_t)m->size[a]);
    if (l.on[a].kind == TC_FLAT && tc_mesh_find(m, tc_layout_axes(&l, TC_FLAT)) < 0) l.on[a].kind = TC_R;
  }
  return l;
}

/* moves SEED STATE: the steps from one layout to another. */
static int put_moves(FILE *f, const char *line, struct tc_err *err)
{
  static const struct tc_mesh_want want = { .size = { [TC_SET_PP] = 2, [TC_SET_DP] = 4, [TC_SET_SHARD] = 2, [TC_SET_TP] = 2 } };
  const int32_t node[16] = { 0 };
  struct tc_mesh *m;
  uint32_t x = 0, state = 0;
  TC_TRY(tc_mesh_new(&m, 16, node, &want, err));
  sscanf(line, "moves %u %u", &x, &state);
  for (int i = 0; i < 200; i++) {
    struct tc_graph *g = tc_graph_new();
    TC_GROW(g->unit, g->n_units, g->cap_units);
    g->unit[g->n_units++] = (struct tc_unit){ "all", -1, -1, 0, -1 };
    int32_t t = tc_tensor_new(g, "x", TC_F32, 2, (int64_t[]){ 24, 24 });
    struct tc_layout from = draw_layout(m, &x), to = draw_layout(m, &x);
    g->tensor[t].lay = from;
    g->tensor[t].state = state;
    int32_t d = tc_reshard(g, m, t, &to, -1, err);
    if (d < 0) {
      tc_mesh_free(m);
      return d;
    }
    put_layout(f, "from", &from, m);
    for (int32_t k = 0; k < g->n_nodes; k++) put_node(f, g, &g->node[k], m);
    for (int32_t k = 0; k < g->n_tensors; k++) {
      const struct tc_tensor *y = &g->tensor[k];
      put_layout(f, "lay", &y->lay, m);
      fprintf(f, " %d %d %d\n", y->overwrites, y->base, y->block);
    }
    tc_graph_free(g);
  }
  tc_mesh_free(m);
  return 0;
}

/* models: the presets; rates: of learning. */
static int put_models(FILE *f)
{
  for (const struct tc_model *p = tc_presets; p->preset; p++) {
    struct tc_err err;
    struct tc_model m = { .preset = p->preset };
    int rc = tc_model_resolve(&m, &err);
    char *text = tc_model_text(&m);
    fprintf(f, "%s %d %s %lld\n", p->preset, rc, text, (long long)tc_model_params(&m));
    free(text);
  }
  return 0;
}

static int put_rates(FILE *f)
{
  for (enum tc_lr_schedule i = TC_LR_COSINE; i <= TC_LR_CONSTANT; i++)
    for (int warmup = 0; warmup <= 5; warmup += 5)
      for (int step = 1; step <= 23; step++)
        fprintf(f, "%.9g\n", tc_rate_at(&(struct tc_rate){ .schedule = i, .steps = warmup == step ? 5 : 20, .warmup = warmup,
                                                          .lr = 3e-4, .min_lr = 2e-5 }, step));
  return 0;
}

/* What a line makes, or its status and sentence; owned by the caller. */
static char *make(const char *line)
{
  char *text = NULL;
  size_t bytes = 0;
  struct tc_err err = { 0 };
  FILE *f = open_memstream(&text, &bytes);
  int rc = !strncmp(line, "sched ", 6)   ? put_sched(f, line, &err)
           : !strncmp(line, "moves ", 6) ? put_moves(f, line, &err)
           : !strcmp(line, "models")     ? put_models(f)
           : !strcmp(line, "rates")      ? put_rates(f)
                                         : put_layouts(f, line, &err);
  fclose(f);
  if (rc >= 0) return text;
  free(text);
  return tc_sprintf("status %d: %s", rc, err.text);
}

int main(int argc, char **argv) { return digests(argc, argv, "digests", make); }
