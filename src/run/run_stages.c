/* run_stages.c - the stages of a training: meshes, options and programs of those after the first, and which of them is at hand. */
#include "src/run/impl.h"
#include "src/program/setup.h"

#include <string.h>

int tc_run_stages_layout(struct tc_run *r, const struct tc_config *c, int devices, struct tc_err *err)
{
  TC_TRY(tc_setup_stages(&r->stages, c, err));
  r->n_stages = c->n_stages + 1;
  r->stage = tc_calloc((size_t)r->n_stages, sizeof *r->stage);
  r->stage[0] = (struct tc_run_stage){ .of = &r->stages[0], .mesh = r->mesh, .opts = r->opts, .rows = r->rows };
  for (int k = 1; k < r->n_stages; k++) {
    struct tc_run_stage *s = &r->stage[k];
    struct tc_config mine = r->stages[k].c;
    struct tc_err why = { 0 };
    s->of = &r->stages[k];
    mine.mesh_order = r->mesh->order;
    int rc = tc_setup_mesh(&s->mesh, &mine, r->ranks->world, r->ranks->node_of_rank, devices, &why);
    if (rc == 0) rc = tc_setup_program(&s->opts, &mine, s->mesh, &s->rows, &why);
    if (rc < 0) return tc_fail(err, rc, "stage %d: %s", k + 1, why.text);
  }
  return 0;
}

int tc_run_stages_programs(struct tc_run *r, struct tc_err *err)
{
  for (int k = 1; k < r->n_stages; k++) {
    struct tc_run_stage *s = &r->stage[k];
    s->opts.gpt.dtype = r->opts.gpt.dtype;
    s->opts.head_chunk = r->opts.head_chunk;
    for (int kind = TC_TRAIN; kind < TC_OF_TRAINING; kind++)
      if (kind != TC_INIT && kind != TC_REFRESH)
        TC_TRY(tc_program_of_stage(s->prog, kind, r->prog[TC_TRAIN], &s->opts, s->mesh, r->rank, err));
  }
  return 0;
}

void tc_run_stage(struct tc_run *r, int k)
{
  const struct tc_run_stage *s = &r->stage[k];
  r->at = k;
  r->mesh = s->mesh;
  r->opts = s->opts;
  r->rows = s->rows;
  memcpy(r->prog, s->prog, sizeof r->prog);
}

int tc_run_all_programs(const struct tc_run *r, struct tc_program ***list)
{
  const int n = TC_MAX(r->n_stages, 1) * TC_PROGRAMS;
  *list = tc_calloc((size_t)n, sizeof **list);
  for (int k = 0; k < n; k++)
    (*list)[k] = k < TC_PROGRAMS && r->at == 0 ? r->prog[k] : r->stage[k / TC_PROGRAMS].prog[k % TC_PROGRAMS];
  return n;
}
