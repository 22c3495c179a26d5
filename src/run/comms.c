/* comms.c - a run's communicators: of each set of axes with a name, of the world, the checkpoint writer's; and, where
 * the device has a library for it, of each set between devices' memories. */
#include "src/run/run.h"
#include "src/comm/nccl.h"
#include "src/monitor/trace.h"
#include "src/watch/watch.h"

#include <stdlib.h>
#include <string.h>

/* id: the set, TC_SETS for the world, TC_SETS + 1 for the checkpoint writer's. */
static int make_comm(struct tc_run *r, struct tc_comm **out, int id, const char *name,
                     const int32_t *members, int size, struct tc_err *err)
{
  const char **names = r->names[id] = tc_calloc((size_t)size, sizeof *names);
  int32_t *node = tc_malloc((size_t)size * sizeof *node);
  for (int i = 0; i < size; i++) names[i] = r->rank_names[members[i]], node[i] = r->mesh->node[members[i]];
  struct tc_comm_opts o = { .name = name, .deadline_s = r->cfg->run_deadline, .rank_names = names, .node = node,
                            .own_cpus = tc_ranks_own_cpus(r->ranks, r->rank, r->threads),
                            .partial_sums = r->mesh->partial_sums, .selection = r->mesh->selection };
  int rc = 0;
  tc_trace_comm(r->trace, name, &o);
  if (size == 1) *out = tc_comm_self(&o);
  else if (r->hub) *out = tc_comm_thread(r->hub, id, r->rank, members, size, &o);
  else rc = tc_comm_mpi(out, id, members, size, &o, err);
  free(node);
  return rc < 0 ? rc : tc_comm_usable(*out, err);
}

int tc_run_comms(struct tc_run *r, struct tc_trace *trace, struct tc_err *err)
{
  r->trace = trace;
  int32_t *members = tc_calloc((size_t)r->mesh->world, sizeof *members);
  for (int i = 0; i < r->mesh->world; i++) members[i] = i;
  int rc = make_comm(r, &r->world, TC_SETS, "world", members, r->mesh->world, err);
  /* Without the world's communicator the other ranks cannot learn that they must not wait for this one. */
  if (rc < 0 && r->mpi) tc_ranks_abort(-rc, err->text);
  /* ... nor can they through it without a table in common. */
  if (!rc)
    rc = tc_comm_same_selection(r->world, r->rank_names, r->mesh->selection, r->cfg->run_collectives, err);
  if (!rc) rc = tc_run_same_options(r, err);
  if (rc < 0) {
    free(members);
    return rc;
  }
  rc = make_comm(r, &r->ckpt_comm, TC_SETS + 1, "ckpt", members, r->mesh->world, err);
  for (int s = 0; s < TC_SETS && !rc; s++) {
    const struct tc_group *x = &r->mesh->group[s];
    if (!x->named || x->size == 1) continue;
    tc_mesh_group(r->mesh, r->rank, x->axes, members);
    rc = make_comm(r, &r->comm[s], s, tc_set_name[s], members, x->size, err);
  }
  free(members);
  return tc_run_agree(r, rc, err);
}

int tc_run_native(struct tc_run *r, struct tc_err *err)
{
  const struct tc_nccl_ops *ops = r->device->ops->nccl;
  bool use = false;
  tc_at_phase("joining NCCL");
  TC_TRY(tc_comm_nccl_agree(&use, r->cfg->run_comm, ops, r->device, NULL, r->world, r->rank_names, err));
  if (!use && ops && r->rank == 0 && *err->text)
    tc_log("run.comm = auto sends through host memory: %s", err->text);
  int32_t *members = tc_calloc((size_t)r->mesh->world, sizeof *members);
  int32_t *node = tc_calloc((size_t)r->mesh->world, sizeof *node);
  int rc = 0;
  struct tc_comm *last = NULL;
  bool said = false;
  for (int s = 0; s < TC_SETS && !rc && use; s++) {
    const struct tc_group *x = &r->mesh->group[s];
    if (!x->named || x->size == 1) continue;
    struct tc_comm_opts o = { .name = tc_set_name[s], .deadline_s = r->cfg->run_deadline,
                              .rank_names = r->names[s], .node = node, .partial_sums = r->mesh->partial_sums,
                              .selection = r->mesh->selection };
    tc_trace_comm(r->trace, tc_set_name[s], &o);
    tc_mesh_group(r->mesh, r->rank, x->axes, members);
    for (int i = 0; i < x->size; i++) node[i] = r->mesh->node[members[i]];
    rc = tc_comm_nccl(&r->native[s], ops, r->device, r->comm[s], last, members, s == TC_SET_PP, &o,
                      err);
    /* One group of the set may have failed; the others must not go on to the next without it. */
    if (rc != TC_EPEER) rc = tc_run_agree(r, rc, err);
    if (!rc && last && !said && r->rank == 0 && ops->in_turns(r->device)) {
      said = true;
      tc_log("NCCL is older than 2.26: transfers of several axes run one after the other on each GPU");
    }
    last = r->native[s];
  }
  TC_FREE(members, node);
  return rc;
}

bool tc_run_comms_free(struct tc_run *r, bool keep_ckpt)
{
  struct tc_comm *comm[2 * TC_SETS + 2];
  memcpy(comm, r->native, sizeof r->native);
  memcpy(comm + TC_SETS, r->comm, sizeof r->comm);
  comm[2 * TC_SETS] = r->world;
  comm[2 * TC_SETS + 1] = keep_ckpt ? NULL : r->ckpt_comm;
  if (!tc_comms_free(comm, 2 * TC_SETS + 2)) return false;
  for (int id = 0; id < TC_COMMS - keep_ckpt; id++) free(r->names[id]);
  return true;
}
