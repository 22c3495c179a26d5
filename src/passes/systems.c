/* systems.c - the table of parallel systems, and how rows place tensors. See docs/placements.md for the
 * notation. */
#include "src/passes/passes.h"

#include <fnmatch.h>
#include <string.h>

#define R { TC_R, 0, 0, 0 }
#define P { TC_P, 0, 0, 0 }
#define S(d) { TC_S, d, 0, 0 }
#define FLAT { TC_FLAT, 0, 0, 0 }
#define RANK0 { TC_AT, 0, 0, 0 }
#define ROW(pattern, set, ...) { pattern, TC_ON_##set, { __VA_ARGS__ }, false, 0, 0, true }
#define PARAMS(set, store, use, acc, update, after) \
  { "*", TC_ON_##set, { store, use, acc, update }, true, TC_AFTER_##after, 0, true }
/* What has a row of each token, or of each sequence. */
#define BATCH(set, ...) \
  ROW("tokens", set, __VA_ARGS__), ROW("targets", set, __VA_ARGS__), ROW("starts", set, __VA_ARGS__), \
  ROW("*.attn.cache", set, __VA_ARGS__)
#define END { NULL, 0, { R }, false, 0, 0, true }
#define ROWS(...) (const struct tc_annotation[]){ __VA_ARGS__, END }

/* States split over shard and cp, whose ranks use the same weights, too; copies of the shards have other sequences. */
#define COPIES PARAMS(REPLICATE, R, R, P, R, AUTO)

const struct tc_system tc_systems[TC_DATA_NONE + 1] = {
  /*                                     on     store  use acc   update after */
  [TC_DATA_DDP] = { "ddp",   ROWS(PARAMS(DP_CP, R,     R,  P,    R,     STEP),         BATCH(DP_CP, S(0))),
    "every rank has all tensors; gradients are all-reduced" },
  [TC_DATA_ZERO1] = { "zero1", ROWS(PARAMS(FSDP, R,    R,  P,    FLAT,  STEP), COPIES, BATCH(DP_CP, S(0))),
    "the optimizer's state is split" },
  [TC_DATA_ZERO2] = { "zero2", ROWS(PARAMS(FSDP, R,    R,  FLAT, FLAT,  STEP), COPIES, BATCH(DP_CP, S(0))),
    "gradients are split too, reduce-scattered as they are made" },
  [TC_DATA_ZERO3] = { "zero3", ROWS(PARAMS(FSDP, FLAT, R,  FLAT, FLAT,  USE),  COPIES, BATCH(DP_CP, S(0))),
    "weights are split too, gathered unit by unit before use (FSDP)" },
  [TC_DATA_SERVER] = { "server", ROWS(PARAMS(DP, RANK0, R, P,    RANK0, STEP),         BATCH(DP, S(0))),
    "a parameter server: rank 0 of dp has weights and optimizer" },
  /* The model's output is gathered on device 0, which computes the loss. */
  [TC_DATA_DATAPARALLEL] = { "dataparallel", ROWS(PARAMS(DP, RANK0, R, P, RANK0, MB),  BATCH(DP, RANK0),
                                                  ROW("embed", DP, S(0)), ROW("logits", DP, RANK0)),
    "device 0 scatters inputs, gathers outputs, computes loss and update" },
  [TC_DATA_NONE] = { "none", ROWS(PARAMS(DP_CP, R,     R,  R,    R,     STEP)),
    "places nothing: only annotations do" },
};

const struct tc_annotation tc_rows_tensor[] = {
  ROW("wte.weight", TP, S(0)),          ROW("lm_head.weight", TP, S(0)),
  ROW("*.attn.qkv.[wb]*", TP, S(0)),    ROW("*.attn.proj.weight", TP, S(1)),
  ROW("*.attn.cache", TP, S(1)),        ROW("*.attn.?_norm_whole.weight", TP, S(0)),
  ROW("*.mlp.fc.[wb]*", TP, S(0)),      ROW("*.mlp.gate_up.[wb]*", TP, S(1)),
  ROW("*.mlp.proj.weight", TP, S(1)),
  /* Adapters: what reads a split input or makes a split output. */
  ROW("*.attn.qkv*.lora_b", TP, S(0)),  ROW("*.mlp.fc.lora_b", TP, S(0)),
  ROW("*.mlp.gate_up*.lora_b", TP, S(1)), ROW("*.proj.lora_a", TP, S(1)), END };
const struct tc_annotation tc_rows_sequence[] = {
  ROW("embed", TP, S(0)), ROW("pos", TP, S(0)), ROW("*.residual", TP, S(0)), END };

/* Context parallelism: the rows of tokens are split on cp as they are on dp. With heads, attention has all tokens of its
 * sequences and some of its heads (Jacobs et al., DeepSpeed-Ulysses, 2023); with keys each rank attends from its own tokens
 * to all keys and values, by the rule of op ATTN. */
const struct tc_annotation tc_rows_heads[] = { ROW("*.attn.out", CP, S(1)), ROW("*.attn.proj", CP, S(0)), END };
const struct tc_annotation tc_rows_keys[] = { ROW("*.attn.kv", CP, S(0)), END };

static const struct tc_annotation rows_in_time[] = { BATCH(MB, S(0)), END };

static void annotate(struct tc_graph *g, int32_t tensor, const struct tc_layout *lay)
{
  g->tensor[tensor].lay = *lay;
  g->tensor[tensor].annotated = true;
}

void tc_place_param(struct tc_graph *g, const struct tc_param *p)
{
  annotate(g, p->master, &p->update);
  annotate(g, p->weight, &p->store);             /* last, since it may be the master */
}

/* Parameters, and keys and values of a sequence so far, are on the stages of their units. */
static void place_on_stages(struct tc_graph *g)
{
  for (int32_t i = 0; i < g->n_params; i++) {
    struct tc_param *p = &g->param[i];
    const int32_t at = g->unit[p->unit].at;
    struct tc_layout *all[] = { &p->store, &p->use, &p->acc_lay, &p->update };
    for (int k = 0; at >= 0 && k < TC_PLACES; k++) all[k]->on[TC_PP] = (struct tc_place){ TC_AT, 0, 0, at };
  }
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct tc_node *n = &g->node[i];
    const int32_t at = g->unit[n->unit].at;
    if (n->op != TC_OP_ATTN_CACHE || at < 0) continue;
    const int32_t cache[] = { tc_in(g, n, 1), tc_out(g, n, 1) };
    for (int k = 0; k < 2; k++) g->tensor[cache[k]].lay.on[TC_PP] = (struct tc_place){ TC_AT, 0, 0, at };
  }
}

int tc_system_apply(struct tc_graph *g, const struct tc_mesh *m, const struct tc_system *s,
                    enum tc_reshard_after reshard_after, bool reduce_once, struct tc_err *err)
{
  enum { MOST = 4 };
  struct tc_annotation params[MOST];
  int n = 0;
  for (; s->rows[n].four; n++) {
    TC_ASSERT(n < MOST - 1);
    params[n] = s->rows[n];
  }
  params[n] = (struct tc_annotation)END;
  struct tc_place *acc = &params[0].place[TC_ACC];
  if (reshard_after != TC_AFTER_AUTO) params[0].reshard_after = reshard_after;
  if (reduce_once && acc->kind == TC_FLAT) *acc = (struct tc_place)P;
  place_on_stages(g);
  TC_TRY(tc_annotate(g, m, params, err));
  if (g->tokens < 0) return 0;                   /* parameters alone */
  TC_TRY(tc_annotate(g, m, rows_in_time, err));
  return tc_annotate(g, m, s->rows + n, err);
}

bool tc_system_has_copies(const struct tc_system *s) { return s->rows->axes == TC_ON_FSDP; }
bool tc_system_has_context(const struct tc_system *s)
{
  return s->rows->axes & TC_ON_CP && s->rows->place[TC_ACC].kind != TC_R;
}

static int refuse(const struct tc_annotation *a, const char *name, const char *what,
                  struct tc_err *err)
{
  char line[32] = "", on[TC_AXES_TEXT];
  if (a->line) snprintf(line, sizeof line, " (line %d)", a->line);
  return tc_fail(err, TC_EUSER, "annotation %s%s on %s: %s %s", a->pattern, line,
                 tc_axes_text(on, a->axes), name, what);
}

/* Sets placement k of a tensor of `rank` dimensions on the row's axes. On an axis of one rank all placements are the same:
 * R, so that nothing is moved on it. set: the axes on which another row of the list has placed it. */
static int set_place(struct tc_layout *l, const struct tc_mesh *m, const struct tc_annotation *a, int k, unsigned set,
                     const char *name, int rank, struct tc_err *err)
{
  struct tc_place to = a->place[a->four ? k : 0];
  int32_t at = to.at;
  if (to.kind == TC_S && to.dim >= rank) {
    char text[80] = "has 1 dimension, so only S(0) would fit";
    if (rank > 1)
      snprintf(text, sizeof text, "has %d dimensions, so there is no S(%d); S(0) to S(%d) would fit", rank,
               to.dim, rank - 1);
    return refuse(a, name, text, err);
  }
  for (int x = TC_AXES - 1; x >= 0; x--) {
    if (!(a->axes >> x & 1) || x == TC_PP) continue;  /* one stage, or R: program/setup.c rejects others */
    if (x != TC_MB && m->size[x] == 1) continue;
    to.at = at % m->size[x];
    at /= m->size[x];
    if (set >> x & 1 && !tc_place_equal(&l->on[x], &to))
      return refuse(a, name, "was already placed there by another row, which contradicts this one", err);
    l->on[x] = to;
  }
  return 0;
}

/* A flat shard is cut by one set of axes. */
static int check_rows(const struct tc_graph *g, const struct tc_mesh *m, struct tc_err *err)
{
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_param *p = &g->param[i];
    const struct tc_layout *all[] = { &p->store, &p->use, &p->acc_lay, &p->update };
    for (int k = 0; k < TC_PLACES; k++) {
      char one[TC_AXES_TEXT];
      const unsigned flat = tc_layout_axes(all[k], TC_FLAT), model = flat & tc_axes_of(TC_ROLE_MODEL);
      if (!flat || tc_mesh_find(m, flat) >= 0) continue;
      if (!model) return tc_fail(err, TC_EUSER, "%s would be S(*) on %s, which is no set of axes with a name: dp or shard "
                                 "would be one", p->name, tc_axes_text(one, flat));
      return tc_fail(err, TC_EUSER, "%s would be S(*) on %s and on %s, but only one axis can be:  "
                     "the row '* dp R R P R', in place of the one for dp, would leave S(*) to %s",
                     p->name, tc_mesh_name(m, flat & ~model), tc_mesh_name(m, model), tc_mesh_name(m, model));
    }
  }
  return 0;
}

static int annotate_param_by(struct tc_graph *g, const struct tc_mesh *m, struct tc_param *p,
                             const struct tc_annotation *a, struct tc_err *err)
{
  struct tc_layout *all[] = { &p->store, &p->use, &p->acc_lay, &p->update };
  for (int k = 0; k < TC_PLACES; k++)
    TC_TRY(set_place(all[k], m, a, k, p->set_axes, p->name, g->tensor[p->weight].rank, err));
  p->set_axes |= (uint8_t)a->axes;
  const bool apart = a->four && !tc_place_equal(&a->place[TC_STORE], &a->place[TC_USE]);
  p->apart = (uint8_t)(apart ? p->apart | a->axes : p->apart & ~a->axes);
  if (a->four && a->reshard_after != TC_AFTER_AUTO) {
    if (p->reshard_after_set && p->reshard_after != a->reshard_after)
      return refuse(a, p->name, "was given another KEEP by another row, which contradicts this one", err);
    p->reshard_after = (uint8_t)a->reshard_after;
    p->reshard_after_set = true;
  }
  tc_place_param(g, p);
  return 0;
}

/* Most patterns are names, or begin with one. */
static bool matches(const char *pattern, const char *name)
{
  return (*pattern == *name || strchr("*?[\\", *pattern)) && !fnmatch(pattern, name, 0);
}

static int annotate_matching(struct tc_graph *g, const struct tc_mesh *m, const struct tc_annotation *a, struct tc_err *err)
{
  int hits = 0;
  const char *scalar = NULL;     /* a scalar, which every rank has: it has no placement */
  for (int32_t i = 0; i < g->n_params; i++) {
    if (!matches(a->pattern, g->param[i].name)) continue;
    hits++;
    TC_TRY(annotate_param_by(g, m, &g->param[i], a, err));
  }
  for (int32_t t = 0; t < g->n_tensors && !a->four; t++) {
    struct tc_tensor *x = &g->tensor[t];
    if (x->param >= 0 || !matches(a->pattern, x->name)) continue;
    if (x->rank == 0) {
      scalar = x->name;
      continue;
    }
    hits++;
    TC_TRY(set_place(&x->lay, m, a, 0, x->set_axes, x->name, x->rank, err));
    x->set_axes |= (uint8_t)a->axes;
    x->annotated = true;
  }
  if (hits) return 0;
  if (scalar) return refuse(a, scalar, "is a scalar, which every rank has: it cannot be placed", err);
  /* Programs without a forward pass have only parameters. */
  if (g->tokens < 0 || a->optional) return 0;
  return tc_fail(err, TC_EUSER, "annotation %s (line %d) matches no tensor of this model; tercio graph --after build "
                 "lists them (a row that is for other models, too, begins with -)", a->pattern, a->line);
}

int tc_annotate(struct tc_graph *g, const struct tc_mesh *m, const struct tc_annotation *a, struct tc_err *err)
{
  for (int32_t i = 0; i < g->n_params; i++) g->param[i].set_axes = g->param[i].reshard_after_set = 0;
  for (int32_t t = 0; t < g->n_tensors; t++) g->tensor[t].set_axes = 0;
  for (; a && a->pattern; a++) TC_TRY(annotate_matching(g, m, a, err));
  return check_rows(g, m, err);
}
