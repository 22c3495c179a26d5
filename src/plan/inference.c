/* inference.c - plans an evaluation or sampling: the programs of one rank of each stage, as `tercio eval` and
 * `tercio sample` make them, their memory, and the time of a run of each. */
#include "src/plan/impl.h"

#include <stdlib.h>
#include <string.h>

enum { KINDS = 2 };                    /* at most, of a use */

struct stages {
  struct tc_kinds kinds;
  struct tc_program *program[KINDS][TC_PLAN_CLASSES];
  int rank[TC_PLAN_CLASSES], n;
};

static int64_t cache_bytes(const struct tc_program *p, const struct tc_mesh *m, int rank)
{
  const struct tc_graph *g = p->graph;
  int64_t bytes = 0;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (n->op != TC_OP_ATTN_CACHE) continue;
    bytes += tc_tensor_local_bytes(&g->tensor[tc_in(g, n, 1)], m, m->coord + (size_t)rank * TC_AXES);
  }
  return bytes;
}

static int plan_stage(struct tc_plan_forward *out, struct stages *s, const struct tc_program_opts *o,
                      const struct tc_mesh *m, struct tc_err *err)
{
  const int stage = s->n, rank = m->at[stage * m->stride[TC_PP]];
  struct tc_program *p[TC_PROGRAMS] = { NULL };
  s->rank[s->n++] = rank;
  for (int i = 0; i < s->kinds.n; i++) {
    TC_TRY(tc_program_of_run(p, s->kinds.first + i, o, m, rank, err));
    s->program[i][stage] = p[s->kinds.first + i];
  }
  struct tc_plan_stage *x = &out->stage[out->n_stages++];
  *x = (struct tc_plan_stage){ .rank = rank, .parameters = tc_plan_parameters(p[s->kinds.first], m, rank),
                               .cache_bytes = cache_bytes(p[s->kinds.first], m, rank) };
  tc_plan_memory(&x->memory, p + s->kinds.first, s->kinds.n, rank);
  if (x->memory.bytes[TC_DEVICE] > out->stage[out->worst].memory.bytes[TC_DEVICE]) out->worst = stage;
  return 0;
}

static int find_times(struct tc_plan_forward *out, const struct stages *s, const struct tc_mesh *m,
                      const struct tc_cluster *k, struct tc_err *err)
{
  const struct tc_plan_device *d = &k->device;
  for (int i = 0; i < s->kinds.n; i++) {
    const int kind = s->kinds.first + i;
    struct tc_plan_speed *r = kind == TC_DECODE ? &out->token : kind == TC_PREFILL ? &out->prompt : &out->batch;
    struct tc_plan_step w;
    TC_TRY(tc_plan_simulate(&w, s->program[i], s->rank, s->n, m, k, err));
    r->run_s = w.step_s;
    r->tokens_per_s = (double)(out->sequences * (kind == TC_DECODE ? 1 : out->at_once)) / w.step_s;
  }
  for (int i = 0; i < out->n_stages; i++)
    out->weights_s += tc_memory_s(d, (double)out->stage[i].memory.by_class[TC_DEVICE][TC_CLS_PARAM]);
  return 0;
}

static int with_mesh(struct tc_plan_forward *out, const struct tc_config *c, const struct tc_mesh *m,
                     const struct tc_cluster *k, struct tc_err *err)
{
  struct tc_program_opts o;
  struct tc_annotation *rows;
  struct stages s = { .kinds = tc_kinds_of(out->use) };
  int rc = tc_setup_program(&o, c, m, &rows, err);
  if (rc == 0 && m->size[TC_PP] > TC_PLAN_CLASSES)
    rc = tc_fail(err, TC_ELAYOUT, "mesh.pp = %d: an evaluation or sampling is planned on at most %d stages",
                 m->size[TC_PP], TC_PLAN_CLASSES);
  if (rc == 0 && out->use == TC_TO_EVALUATE && o.gpt.dtype == TC_BF16 && k->device.flops[TC_BF16] <= 0)
    rc = tc_fail(err, TC_ELAYOUT, "train.precision = bf16: %s has no bf16 products; fp32 would fit", k->device.name);
  o.gpt.inference = true;
  o.prefill = out->use == TC_TO_SAMPLE ? out->at_once : 0;
  for (int i = 0; i < m->size[TC_PP] && rc == 0; i++) rc = plan_stage(out, &s, &o, m, err);
  if (rc == 0) rc = find_times(out, &s, m, k, err);
  for (int i = 0; i < s.kinds.n; i++)
    for (int r = 0; r < s.n; r++) tc_program_free(s.program[i][r]);
  tc_annotations_free(rows);
  return rc;
}

int tc_plan_forward(struct tc_plan_forward *out, const struct tc_config *of, enum tc_use use, int64_t sequences,
                    int world, const struct tc_cluster *k, struct tc_err *err)
{
  struct tc_config c = *of;
  struct tc_mesh *m = NULL;
  const int each = TC_MAX(k->devices, 1);
  *out = (struct tc_plan_forward){ .use = use, .world = world };
  TC_TRY(tc_setup_model(&c, &out->model, err));
  tc_setup_fill_model(&c, &out->model);
  int32_t *node = tc_calloc((size_t)world, sizeof *node);
  for (int i = 0; i < world; i++) node[i] = i / each;
  int rc = use == TC_TO_SAMPLE ? tc_setup_sampling(&c, TC_MAX(sequences, 1), world, node, each, err)
                               : tc_setup_evaluation(&c, sequences, world, node, each, err);
  if (rc == 0) rc = tc_setup_mesh(&m, &c, world, node, each, err);
  if (rc == 0) {
    memcpy(out->size, m->size, sizeof out->size);
    out->parameters = tc_model_params(&out->model);
    out->sequences = c.train_global_batch;
    out->at_once = out->model.context;
    if (use == TC_TO_SAMPLE) out->at_once = tc_setup_prompt_at_once(out->model.context, out->sequences);
    rc = with_mesh(out, &c, m, k, err);
  }
  tc_mesh_free(m);
  free(node);
  return rc;
}
