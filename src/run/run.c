/* run.c - from a configuration to a mesh, program options, programs and their executor. */
#include "src/run/impl.h"
#include "src/launch/launch.h"
#include "src/program/setup.h"
#include "src/watch/watch.h"

#include <stdlib.h>
#include <string.h>

/* Adds to the sentence how to start the ranks of the layout, where there are fewer. */
static void suggest_ranks(const struct tc_run *r, struct tc_err *err)
{
  const double n = tc_setup_ranks(r->cfg);
  if (n > r->ranks->world)
    tc_text_add(err->text, sizeof err->text, "; to start %.0f ranks: mpirun -n %.0f or srun -n %.0f, or "
                "--run.ranks=%.0f for threads of one process", n, n, n, n);
}

int tc_run_layout(struct tc_run *r, struct tc_err *err)
{
  const int devices = tc_ranks_node_devices(r->ranks);
  struct tc_config c = *r->cfg;
  tc_setup_precision(&c, tc_launch_on_gpus(&c, r->ranks));
  r->stack = tc_versions_text();
  const int rc = tc_setup_mesh(&r->mesh, &c, r->ranks->world, r->ranks->node_of_rank, devices, err);
  if (rc == TC_ELAYOUT) suggest_ranks(r, err);
  if (rc < 0) return rc;
  TC_TRY(tc_setup_program(&r->opts, &c, r->mesh, &r->rows, err));
  return r->use == TC_TO_TRAIN ? tc_run_stages_layout(r, &c, devices, err) : 0;
}

int tc_run_agree(const struct tc_run *r, int rc, struct tc_err *err)
{
  return tc_comm_agree(r->world, r->rank_names, rc, err);
}

/* The device's libraries: NCCL is there by now. */
void tc_run_add_versions(struct tc_run *r)
{
  char text[200], *program;
  if (!r->device->ops->version) return;
  r->device->ops->version(r->device, text, sizeof text);
  free(r->stack);
  program = tc_versions_text();
  r->stack = tc_sprintf("%s, %s", program, text);
  free(program);
}

int tc_run_programs(struct tc_run *r, tc_fill_fn *fill, void *fill_ctx, struct tc_err *err)
{
  tc_run_add_versions(r);
  TC_TRY(tc_run_could_fit(r, err));
  const struct tc_kinds has = tc_kinds_of(r->use);
  r->opts.gpt.inference = r->use != TC_TO_TRAIN;
  for (int kind = has.first; kind < has.first + has.n; kind++) {
    tc_at_phase("making the programs");
    TC_TRY(tc_program_of_run(r->prog, kind, &r->opts, r->mesh, r->rank, err));
  }
  TC_TRY(tc_run_stages_programs(r, err));
  tc_at_phase("taking memory");
  TC_TRY(tc_run_fits(r, err));
  struct tc_exec_opts x = { .device = r->device, .host = r->host, .mesh = r->mesh,
                            .rank = r->rank, .fill = fill, .fill_ctx = fill_ctx,
                            .trace = r->trace, .no_fusion = !r->cfg->run_fuse,
                            .no_capture = !r->cfg->run_capture };
  memcpy(x.comm, r->comm, sizeof x.comm);
  memcpy(x.native, r->native, sizeof x.native);
  r->base_rss_bytes = tc_rss_bytes(false);
  struct tc_program **all;
  const int n = tc_run_all_programs(r, &all);
  const int rc = tc_exec_new(&r->exec, &x, all, n, err);
  free(all);
  if (r->n_stages) r->stage[0].opts = r->opts, memcpy(r->stage[0].prog, r->prog, sizeof r->prog);
  return rc;
}

void tc_run_programs_free(struct tc_run *r)
{
  tc_exec_free(r->exec);
  if (r->at > 0) tc_run_stage(r, 0);
  for (int i = 0; i < TC_PROGRAMS; i++) tc_program_free(r->prog[i]);
  for (int i = TC_PROGRAMS; i < r->n_stages * TC_PROGRAMS; i++)
    tc_program_free(r->stage[i / TC_PROGRAMS].prog[i % TC_PROGRAMS]);
  tc_device_close(r->device);
  tc_device_close(r->host);
}

void tc_run_free(struct tc_run *r)
{
  for (int k = 1; k < r->n_stages; k++) {
    tc_mesh_free(r->stage[k].mesh);
    tc_annotations_free(r->stage[k].rows);
  }
  tc_mesh_free(r->mesh);
  tc_annotations_free(r->rows);
  TC_FREE(r->stack, r->tuned, r->attention, r->stage, r->stages);
}
