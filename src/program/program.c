/* program.c - the passes in their order, each followed by the check of the graph; the schedule
 * and the memory plan have checks of their own. */
#include "src/program/program.h"
#include "src/model/optim.h"
#include "src/passes/passes.h"
#include "src/schedule/pipeline.h"

#include <stdlib.h>
#include <string.h>

struct ctx {
  const struct tc_program_opts *o;
  const struct tc_mesh *m;
  int rank;
  const struct tc_program *with;
  struct tc_program *p;
  struct tc_err *err;
};

static int pass_build(struct ctx *c)
{
  const struct tc_mesh *m = c->m;
  const int64_t blocks = (int64_t)tc_mesh_size(m, tc_axes_of(TC_ROLE_BATCH)) * m->size[TC_MB];
  tc_model_build(c->p->graph, &c->o->model, &c->o->gpt);
  c->p->graph->rows = (struct tc_row_order){ .T = c->o->model.context, .sequences = c->o->gpt.batch / blocks,
                                             .cp = tc_mesh_size(m, tc_axes_of(TC_ROLE_TOKENS)), .zigzag = c->o->zigzag };
  return 0;
}

/* The loss head's operations go, its weights stay: they are state that other programs use. */
static void drop_head(struct tc_graph *g)
{
  const int32_t head = g->node[g->tensor[g->logits].node].unit;
  int32_t n = 0;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *x = &g->node[g->order[i]];
    if (x->unit != head) g->order[n++] = g->order[i];
    for (int k = 0; x->unit == head && k < x->n_out; k++) g->tensor[tc_out(g, x, k)].node = -1;
  }
  g->n_order = n;
  g->logits = -1;
}

/* Stages come first: they have to be alike in all programs of a run. */
static int pass_stages(struct ctx *c)
{
  struct tc_graph *g = c->p->graph;
  TC_TRY(tc_stages(g, c->m->size[TC_PP], TC_MAX(c->o->virtual_stages, 1), c->o->stages, c->err));
  if (c->o->kind == TC_PREFILL) drop_head(g);
  if (c->o->kind == TC_INIT || c->o->kind == TC_REFRESH) {   /* the parameters alone */
    g->n_order = 0;
    g->tokens = g->targets = g->starts = g->loss = g->nll = g->logits = -1;
    for (int32_t t = 0; t < g->n_tensors; t++) {
      g->tensor[t].node = -1;
      if (g->tensor[t].state && g->tensor[t].param < 0) g->tensor[t].state = false;
    }
  }
  return 0;
}

static int pass_systems(struct ctx *c)
{
  struct tc_graph *g = c->p->graph;
  tc_optim_choose(g, c->o->update);
  TC_TRY(tc_param_rows(g, c->o->param_rows ? c->o->param_rows : "", c->o->momentum, c->err));
  TC_TRY(tc_system_apply(g, c->m, c->o->system, c->o->reshard_after, c->o->reduce_once, c->err));
  for (int i = 0; i < TC_ROW_LISTS && c->o->annotation[i]; i++)
    TC_TRY(tc_annotate(g, c->m, c->o->annotation[i], c->err));
  tc_owners(g, c->m);
  return tc_offload(g, c->o->offload, c->err);
}

static int pass_grad(struct ctx *c)
{
  return c->o->kind == TC_TRAIN ? tc_grad(c->p->graph, c->o->gpt.grad_dtype, c->err) : 0;
}

static int pass_update(struct ctx *c)
{
  if (c->o->kind == TC_TRAIN) tc_optim_build(c->p->graph, c->o->gpt.dtype == TC_F64 ? TC_F64 : c->o->update_type);
  if (c->o->kind == TC_INIT) tc_optim_init(c->p->graph);
  if (c->o->kind == TC_REFRESH) tc_optim_refresh(c->p->graph);
  return 0;
}

static int pass_infer(struct ctx *c)
{
  TC_TRY(tc_infer(c->p->graph, c->m, c->o->regather, c->err));
  return c->o->kind == TC_INIT && c->o->share_init ? tc_share_init(c->p->graph, c->m, c->err) : 0;
}

static int pass_recompute(struct ctx *c)
{
  tc_recompute(c->p->graph, c->o->recompute);
  return 0;
}

/* Every chunk adds to the gradient of the head's weights, in fp32: with products in bf16, an order
 * faster, a chunk of few rows takes longer for that than for its products. */
int64_t tc_head_bytes(int dtype) { return (dtype == TC_BF16 ? INT64_C(512) : INT64_C(64)) << 20; }

static int pass_merge(struct ctx *c)
{
  tc_merge(c->p->graph, c->m->size[TC_PP] > 1 && tc_pipeline_splits(c->o->schedule));
  return 0;
}

static int pass_loss_chunks(struct ctx *c)
{
  if (c->p->graph->loss < 0) return 0;
  int64_t rows = c->o->head_chunk;
  const int64_t least = tc_loss_chunk_least(c->p->graph, c->m);
  if (rows > 0 && rows < least)
    return tc_fail(c->err, TC_ELAYOUT, "parallel.head_chunk = %lld rows of the logits would be more "
                   "than %d chunks of a micro-batch; %lld or auto would fit, or a smaller "
                   "train.micro_batch", (long long)rows, TC_LOSS_CHUNKS, (long long)least);
  const int dtype = c->p->graph->tensor[c->p->graph->logits].dtype;
  if (rows <= 0) rows = tc_loss_chunk_rows(c->p->graph, c->m, tc_head_bytes(dtype));
  tc_loss_chunks(c->p->graph, c->m, rows);
  return 0;
}

static int pass_buckets(struct ctx *c)
{
  tc_buckets(c->p->graph);
  return 0;
}

int tc_program_listable(const struct tc_graph *g, int64_t n_mb, struct tc_err *err)
{
  const int64_t most = TC_MAX(TC_ACTIONS / TC_MAX(g->n_order, 1), 1);
  if (n_mb <= most) return 0;
  return tc_fail(err, TC_ELAYOUT, "a step of %lld micro-batches of %d operations each is too long a "
                 "list; a train.micro_batch that makes %lld of them or fewer would fit", (long long)n_mb,
                 g->n_order, (long long)most);
}

/* What a check of a pass's result found is no user's mistake. */
static int check_rc(const struct ctx *c, int rc, const struct tc_err *fault)
{
  if (rc >= 0) return 0;
  return tc_fail(c->err, fault->status, "a fault of Tercio's, please report it with the run file: %s",
                 fault->text);
}

static const int32_t *coord_of(const struct ctx *c) { return c->m->coord + (size_t)c->rank * TC_AXES; }

/* How many micro-batches a run of the program takes. TC_TASKS takes the first ones of the batch, as many as fill a
 * pipeline (interleaved schedules need a multiple of its stages), since a task may be short. */
static int micro_batches(const struct ctx *c)
{
  const int32_t *size = c->m->size;
  if (c->o->kind == TC_TRAIN || c->o->kind == TC_EVAL) return size[TC_MB];
  return c->o->kind == TC_TASKS && size[TC_PP] > 1 ? TC_MIN(size[TC_MB], 2 * size[TC_PP]) : 1;
}

static int pass_schedule(struct ctx *c)
{
  if (c->o->tamper && !c->p->shares_graph) c->o->tamper(c->o->tamper_ctx, c->p->graph, c->o->kind);
  if (!c->p->shares_graph) tc_graph_freeze(c->p->graph);
  const struct tc_actions_opts o = {
    .n_mb = micro_batches(c), .overlap = c->o->overlap,
    .prefetch = c->o->overlap ? TC_MAX(c->o->prefetch, 0) : 0, .pp = c->m->size[TC_PP],
    .at = tc_mesh_index(c->m, c->rank, TC_ON_PP), .virtual_stages = c->o->virtual_stages,
    .schedule = c->o->schedule };
  TC_TRY(tc_program_listable(c->p->graph, o.n_mb, c->err));
  TC_TRY(tc_actions_new(&c->p->actions, c->p->graph, &o, c->err));
  c->p->fusions = tc_fusions_new(c->p->graph, c->p->actions, c->m, coord_of(c), 0);
  struct tc_err fault = { 0 };
  return c->o->unchecked ? 0 : check_rc(c, tc_actions_check(c->p->actions, c->p->graph, &fault), &fault);
}

static int pass_arena(struct ctx *c)
{
  struct tc_program *p = c->p;
  const struct tc_program *w = c->with;
  return tc_arena_new(&p->arena, p->graph, p->actions, p->fusions, c->m, coord_of(c), w ? w->arena : NULL,
                      w ? w->graph : NULL, c->err);
}

/* The groups for which the memory plan has room; then the plan is checked with them. */
static int pass_groups(struct ctx *c)
{
  struct tc_program *p = c->p;
  tc_fusions_fit(p->fusions, p->graph, p->actions, p->arena, c->m, coord_of(c));
  struct tc_err fault = { 0 };
  if (c->o->unchecked) return 0;
  return check_rc(c, tc_arena_check(p->arena, p->graph, p->actions, p->fusions, c->m, coord_of(c), &fault),
                  &fault);
}

/* HACKING.md says which file does each. */
#define PASSES(X) X(build) X(stages) X(systems) X(grad) X(update) X(infer) X(recompute) X(merge) X(loss_chunks) X(buckets) \
                  X(schedule) X(arena) X(groups)
#define RUN(name) pass_##name,
#define NAME(name) #name,
static int (*const pass[])(struct ctx *) = { PASSES(RUN) };
const char *const tc_pass_names[] = { PASSES(NAME) NULL };

/* The passes from number `from` on. */
static int run_passes(struct ctx *c, int from, const char *after)
{
  struct tc_err fault = { 0 };
  int rc = 0;
  for (int i = from; tc_pass_names[i] && !rc; i++) {
    rc = pass[i](c);
    if (!rc && !c->o->unchecked)
      rc = check_rc(c, tc_graph_check(c->p->graph, c->m, tc_pass_names[i], &fault), &fault);
    if (after && !strcmp(after, tc_pass_names[i])) break;
  }
  return rc;
}

int tc_program_new(struct tc_program **out, const struct tc_program_opts *o,
                   const struct tc_mesh *m, int rank, const struct tc_program *with,
                   const char *after, struct tc_err *err)
{
  struct tc_program *p = tc_calloc(1, sizeof *p);
  p->graph = tc_graph_new();
  p->mesh = m;
  struct ctx c = { o, m, rank, with, p, err };
  const int rc = run_passes(&c, 0, after);
  if (rc < 0) tc_program_free(p);
  else *out = p;
  return rc;
}

int tc_program_beside(struct tc_program **out, const struct tc_program *like, const struct tc_program_opts *o, int rank,
                      struct tc_err *err)
{
  struct tc_program *p = tc_calloc(1, sizeof *p);
  *p = (struct tc_program){ .mesh = like->mesh, .graph = like->graph, .shares_graph = true };
  struct ctx c = { o, like->mesh, rank, NULL, p, err };
  int first = 0;
  while (pass[first] != pass_schedule) first++;
  const int rc = run_passes(&c, first, NULL);
  if (rc < 0) tc_program_free(p);
  else *out = p;
  return rc;
}

void tc_program_free(struct tc_program *p)
{
  if (!p) return;
  if (!p->shares_graph) tc_graph_free(p->graph);
  tc_actions_free(p->actions);
  tc_fusions_free(p->fusions);
  tc_arena_free(p->arena);
  free(p);
}
