/* systems.c - the table of parallel systems, and how rows place tensors. See docs/placements.md for the
 * notation. */
#include "src/passes/passes.h"

#include <fnmatch.h>
#include <string.h>

#define R { TC_R, 0, 0, 0 }
#define P { TC_P, 0, 0, 0 }
#define S(d) { TC_S, d, 0, 0 }
#define ROWS { TC_SROWS, 0, 0, 0 }
#define RANK0 { TC_AT, 0, 0, 0 }
#define ROW(pattern, axis, place) { pattern, axis, { place }, false, 0, 0, true }
#define END { NULL, 0, { R }, false, 0, 0, true }

/* The model's output is gathered on device 0, which computes the loss. */
static const struct tc_annotation rows_gathered[] = {
  ROW("embed", TC_DP, S(0)), ROW("logits", TC_DP, RANK0), END };

const struct tc_system tc_systems[TC_DATA_NONE + 1] = {
  /*                            name             store use  acc   update  reshard after  batch rows */
  [TC_DATA_DDP]          = { "ddp",          { R,    R,   P,    R },    TC_AFTER_STEP, S(0), NULL,
    "every rank has all tensors; gradients are all-reduced" },
  [TC_DATA_ZERO1]        = { "zero1",        { R,    R,   P,    ROWS }, TC_AFTER_STEP, S(0), NULL,
    "the optimizer's state is split" },
  [TC_DATA_ZERO2]        = { "zero2",        { R,    R,   ROWS, ROWS }, TC_AFTER_STEP, S(0), NULL,
    "gradients are split too, reduce-scattered as they are made" },
  [TC_DATA_ZERO3]        = { "zero3",        { ROWS, R,   ROWS, ROWS }, TC_AFTER_USE,  S(0), NULL,
    "weights are split too, gathered unit by unit before use (FSDP)" },
  [TC_DATA_SERVER]       = { "server",       { RANK0, R,   P,    RANK0 }, TC_AFTER_STEP, S(0), NULL,
    "a parameter server: rank 0 of dp has weights and optimizer" },
  [TC_DATA_DATAPARALLEL] = { "dataparallel", { RANK0, R, P,   RANK0 }, TC_AFTER_MB,   RANK0, rows_gathered,
    "device 0 scatters inputs, gathers outputs, computes loss and update" },
  [TC_DATA_NONE]         = { "none",         { R,    R,   R,    R },    TC_AFTER_STEP, R,    NULL,
    "places nothing: only annotations do" },
};

const struct tc_annotation tc_rows_tensor[] = {
  ROW("wte.weight", TC_TP, S(0)),          ROW("lm_head.weight", TC_TP, S(0)),
  ROW("*.attn.qkv.*", TC_TP, S(0)),        ROW("*.attn.proj.weight", TC_TP, S(1)),
  ROW("*.attn.cache", TC_TP, S(1)),
  ROW("*.mlp.fc.*", TC_TP, S(0)),          ROW("*.mlp.gate_up.*", TC_TP, S(1)),
  ROW("*.mlp.proj.weight", TC_TP, S(1)),   END };
const struct tc_annotation tc_rows_sequence[] = {
  ROW("embed", TC_TP, S(0)), ROW("pos", TC_TP, S(0)), ROW("*.residual", TC_TP, S(0)), END };

static void annotate(struct tc_graph *g, int32_t tensor, const struct tc_layout *lay)
{
  if (tensor < 0) return;
  g->tensor[tensor].lay = *lay;
  g->tensor[tensor].annotated = true;
}

static void annotate_param(struct tc_graph *g, const struct tc_param *p)
{
  annotate(g, p->master, &p->update);
  annotate(g, p->weight, &p->store);             /* last, since it may be the master */
}

/* Keys and values of a sequence so far are where their layer is; batch: the placement of sequences. */
static void place_caches(struct tc_graph *g, const struct tc_layout *batch)
{
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct tc_node *n = &g->node[i];
    if (n->op != TC_OP_ATTN_CACHE) continue;
    struct tc_layout lay = *batch;
    if (g->unit[n->unit].at >= 0) lay.on[TC_PP] = (struct tc_place){ TC_AT, 0, 0, g->unit[n->unit].at };
    annotate(g, tc_in(g, n, 1), &lay);
    annotate(g, tc_out(g, n, 1), &lay);
  }
}

int tc_system_apply(struct tc_graph *g, const struct tc_system *s, struct tc_err *err)
{
  for (int32_t i = 0; i < g->n_params; i++) {
    struct tc_param *p = &g->param[i];
    p->store.on[TC_DP] = s->place[TC_STORE];
    p->use.on[TC_DP] = s->place[TC_USE];
    p->acc_lay.on[TC_DP] = s->place[TC_ACC];
    p->update.on[TC_DP] = s->place[TC_UPDATE];
    p->reshard_after = (uint8_t)s->reshard_after;
    int32_t at = g->unit[p->unit].at;
    struct tc_layout *all[] = { &p->store, &p->use, &p->acc_lay, &p->update };
    for (int k = 0; at >= 0 && k < TC_PLACES; k++)
      all[k]->on[TC_PP] = (struct tc_place){ TC_AT, 0, 0, at };
    annotate_param(g, p);
  }
  if (g->tokens < 0) return 0;
  struct tc_layout batch = tc_layout_r();
  batch.on[TC_MB] = (struct tc_place){ TC_S, 0, 0, 0 };
  batch.on[TC_DP] = s->batch;
  annotate(g, g->tokens, &batch);
  annotate(g, g->targets, &batch);
  annotate(g, g->starts, &batch);
  place_caches(g, &batch);
  return tc_annotate(g, s->rows, err);
}

static int refuse(const struct tc_annotation *a, const char *name, const char *what,
                  struct tc_err *err)
{
  char line[32] = "";
  if (a->line) snprintf(line, sizeof line, " (line %d)", a->line);
  return tc_fail(err, TC_EUSER, "annotation %s%s on %s: %s %s", a->pattern, line,
                 tc_axis_name[a->axis], name, what);
}

/* Sets placement k of a tensor of `rank` dimensions on the row's axis. */
static int set_place(struct tc_layout *l, const struct tc_annotation *a, int k, bool set,
               const char *name, int rank, struct tc_err *err)
{
  const struct tc_place *was = &l->on[a->axis], *to = &a->place[a->four ? k : 0];
  if (to->kind == TC_S && to->dim >= rank) {
    char text[80] = "has 1 dimension, so only S(0) would fit";
    if (rank > 1)
      snprintf(text, sizeof text, "has %d dimensions, so there is no S(%d); S(0) to S(%d) would fit", rank,
               to->dim, rank - 1);
    return refuse(a, name, text, err);
  }
  if (a->axis == TC_PP) return 0;                /* one stage, or R: program/setup.c rejects others */
  if (set && !tc_place_equal(was, to))
    return refuse(a, name, "was already placed there by another row, which contradicts this one", err);
  l->on[a->axis] = *to;
  return 0;
}

/* A flat shard divides the block that the other axes leave, so only one axis can have one. */
static int check_rows(const struct tc_graph *g, struct tc_err *err)
{
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_param *p = &g->param[i];
    const struct tc_layout *all[] = { &p->store, &p->use, &p->acc_lay, &p->update };
    for (int k = 0; k < TC_PLACES; k++)
      if (all[k]->on[TC_DP].kind == TC_SROWS && all[k]->on[TC_TP].kind == TC_SROWS)
        return tc_fail(err, TC_EUSER, "%s would be S(*) on dp and on tp, but only one axis can be:  "
                       "the row '* dp R R P R', in place of the one for dp, would leave S(*) to tp",
                       p->name);
  }
  return 0;
}

static int annotate_param_by(struct tc_graph *g, struct tc_param *p, const struct tc_annotation *a,
                             struct tc_err *err)
{
  struct tc_layout *all[] = { &p->store, &p->use, &p->acc_lay, &p->update };
  bool set = p->set_axes >> a->axis & 1;
  for (int k = 0; k < TC_PLACES; k++)
    TC_TRY(set_place(all[k], a, k, set, p->name, g->tensor[p->weight].rank, err));
  p->set_axes |= (uint8_t)(1u << a->axis);
  if (a->four && a->reshard_after != TC_AFTER_AUTO) {
    if (p->reshard_after_set && p->reshard_after != a->reshard_after)
      return refuse(a, p->name, "was given another KEEP by another row, which contradicts this one", err);
    p->reshard_after = (uint8_t)a->reshard_after;
    p->reshard_after_set = true;
  }
  annotate_param(g, p);
  return 0;
}

static int annotate_matching(struct tc_graph *g, const struct tc_annotation *a, struct tc_err *err)
{
  int hits = 0;
  const char *scalar = NULL;     /* a scalar, which every rank has: it has no placement */
  for (int32_t i = 0; i < g->n_params; i++) {
    if (fnmatch(a->pattern, g->param[i].name, 0)) continue;
    hits++;
    TC_TRY(annotate_param_by(g, &g->param[i], a, err));
  }
  for (int32_t t = 0; t < g->n_tensors && !a->four; t++) {
    struct tc_tensor *x = &g->tensor[t];
    if (x->param >= 0 || fnmatch(a->pattern, x->name, 0)) continue;
    if (x->rank == 0) {
      scalar = x->name;
      continue;
    }
    hits++;
    TC_TRY(set_place(&x->lay, a, 0, x->set_axes >> a->axis & 1, x->name, x->rank, err));
    x->set_axes |= (uint8_t)(1u << a->axis);
    x->annotated = true;
  }
  if (hits) return 0;
  if (scalar) return refuse(a, scalar, "is a scalar, which every rank has: it cannot be placed", err);
  /* Programs without a forward pass have only parameters. */
  if (g->tokens < 0 || a->optional) return 0;
  return tc_fail(err, TC_EUSER, "annotation %s (line %d) matches no tensor of this model; tercio graph --after build "
                 "lists them (a row that is for other models, too, begins with -)", a->pattern, a->line);
}

int tc_annotate(struct tc_graph *g, const struct tc_annotation *a, struct tc_err *err)
{
  for (int32_t i = 0; i < g->n_params; i++) g->param[i].set_axes = g->param[i].reshard_after_set = 0;
  for (int32_t t = 0; t < g->n_tensors; t++) g->tensor[t].set_axes = 0;
  for (; a && a->pattern; a++) TC_TRY(annotate_matching(g, a, err));
  return check_rows(g, err);
}
