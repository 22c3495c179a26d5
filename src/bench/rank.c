/* rank.c - what a rank measures with: communicators of the world and of an axis, a GPU, a bench. */
#include "src/bench/bench.h"
#include "kernels/kernel.h"
#include "src/comm/nccl.h"

#include <stdlib.h>

const char *tc_bench_axis_name(int axis) { return axis == TC_BENCH_WORLD ? "world" : tc_set_name[axis]; }

int tc_bench_axis_size(const struct tc_mesh *m, int axis) { return axis == TC_BENCH_WORLD ? m->world : m->group[axis].size; }

int tc_bench_axis_nodes(const struct tc_mesh *m, int axis)
{
  int most = axis == TC_BENCH_WORLD ? m->n_nodes : 1;
  for (int r = 0; r < m->world && axis != TC_BENCH_WORLD; r++)
    if (tc_mesh_index(m, r, tc_set_axes[axis]) == 0) most = TC_MAX(most, tc_mesh_group_nodes(m, r, tc_set_axes[axis]));
  return most;
}

static int open_group(struct tc_bench_group *g, const struct tc_launch *l, const struct tc_mesh *m, int rank, int axis,
                      struct tc_err *err)
{
  const int n = tc_bench_axis_size(m, axis);
  g->members = tc_calloc((size_t)n, sizeof *g->members);
  g->rank_names = tc_calloc((size_t)n, sizeof *g->rank_names);
  for (int i = 0; i < n && axis == TC_BENCH_WORLD; i++) g->members[i] = i;
  if (axis != TC_BENCH_WORLD) tc_mesh_group(m, rank, tc_set_axes[axis], g->members);
  int32_t *node = tc_malloc((size_t)n * sizeof *node);
  for (int i = 0; i < n; i++) g->rank_names[i] = l->rank_names[g->members[i]], node[i] = m->node[g->members[i]];
  const int threads = tc_launch_threads(l->cfg, l->ranks, rank);
  const struct tc_comm_opts o = { .name = tc_bench_axis_name(axis), .rank_names = g->rank_names, .node = node,
                                  .own_cpus = tc_ranks_own_cpus(l->ranks, rank, threads),
                                  .partial_sums = m->partial_sums, .selection = m->selection,
                                  .deadline_s = l->cfg->run_deadline };
  int rc = 0;
  if (l->hub) g->comm = tc_comm_thread(l->hub, axis, rank, g->members, n, &o);
  else rc = tc_comm_mpi(&g->comm, axis, g->members, n, &o, err);
  free(node);
  return rc < 0 ? rc : tc_comm_usable(g->comm, err);
}

/* Collective. x->native <- NCCL among the group's GPUs, if run.comm and run.device select it and the
 * GPUs can; else NULL, or the same error on all ranks. */
static int open_gpu(struct tc_bench_rank *x, const struct tc_launch *l, int rank, int axis,
                    const struct tc_bench_group *group, struct tc_err *err)
{
  const struct tc_config *c = l->cfg;
  const struct tc_rank_info *me = &l->ranks->info[rank];
  const bool must = c->run_comm == TC_COMM_NCCL, cuda = c->run_device == TC_DEVICE_CUDA;
  const bool may = cuda || (c->run_device == TC_DEVICE_AUTO && (must || me->device >= 0));
  struct tc_err why = { 0 };
  char name[48];
  bool use = false;
  if (!must && c->run_comm != TC_COMM_AUTO) return 0;
  tc_ranks_gpu_name(me, name, sizeof name);
  if (may) tc_device_open(&x->device, name, 1, &why);
  const struct tc_nccl_ops *ops = x->device ? x->device->ops->nccl : NULL;
  TC_TRY(tc_comm_nccl_agree(&use, c->run_comm, ops, x->device, why.status ? why.text : NULL, x->group[0].comm,
                            l->rank_names, err));
  if (!use) return 0;
  const struct tc_comm_opts o = { .name = tc_bench_axis_name(axis), .rank_names = group->rank_names,
                                  .deadline_s = c->run_deadline };
  const int rc = tc_comm_nccl(&x->native, ops, x->device, group->comm, NULL, group->members,
                              axis == TC_SET_PP, &o, err);
  /* So that other groups fail, too. */
  return rc == TC_EPEER ? rc : tc_comm_agree(x->group[0].comm, l->rank_names, rc, err);
}

int tc_bench_rank_open(struct tc_bench_rank *x, const struct tc_launch *l, const struct tc_mesh *m, int axis, int rank,
                       int64_t max_bytes, int iters, struct tc_err *err)
{
  const bool part = axis != TC_BENCH_WORLD;
  struct tc_bench_group *world = &x->group[0], *g = &x->group[part];
  TC_TRY(open_group(world, l, m, rank, TC_BENCH_WORLD, err));
  TC_TRY(tc_comm_same_selection(world->comm, l->rank_names, m->selection, l->cfg->run_collectives, err));
  if (part) TC_TRY(open_group(g, l, m, rank, axis, err));
  TC_TRY(open_gpu(x, l, rank, axis, g, err));
  x->bench = tc_bench_new(x->native ? x->native : g->comm, world->comm, g->members, rank, max_bytes, iters,
                          x->native ? x->device : NULL);
  int64_t missing = !x->bench;
  TC_TRY(tc_comm_max_i64(world->comm, &missing, 1, err));
  return missing ? tc_fail(err, TC_EUSER, "out of memory: a GPU can't hold two arrays of --max = %lld "
                           "bytes; lower it", (long long)max_bytes) : 0;
}

void tc_bench_rank_close(struct tc_bench_rank *x)
{
  struct tc_comm *comm[] = { x->native, x->group[1].comm, x->group[0].comm };
  if (!tc_comms_free(comm, 3)) return;           /* a thread hangs in a library call and still uses the rest */
  for (int i = 0; i < 2; i++) TC_FREE(x->group[i].members, x->group[i].rank_names);
  tc_bench_free(x->bench);
  tc_device_close(x->device);
}
