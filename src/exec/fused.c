/* fused.c - groups of calls that the device does as one.
 *
 * The program lists the groups that are right for its order and its memory (schedule/fusion.h). Here the
 * device is asked for each, in that order, with the calls as they are run: it may decline by shape, alignment
 * or measured time. The parts of a group that it takes run at the place of the last one; all other
 * actions run by themselves. All is decided before the first step. */
#include "src/exec/impl.h"

#include <stdlib.h>

static void free_fused(struct tc_xfused *y)
{
  TC_FREE(y->node, y->call, y);
}

/* Group i as one call, if the device can: the calls are made ready for this micro-batch first. */
static void fuse(struct tc_exec *x, struct tc_xprog *p, int32_t i)
{
  struct tc_device *d = x->o.device;
  const struct tc_fusions *f = p->p->fusions;
  const int32_t n = f->group[i].n, mb = f->group[i].mb;
  struct tc_xfused *y = tc_calloc(1, sizeof *y);
  *y = (struct tc_xfused){ .name = tc_fusion_rule[f->group[i].rule].name, .from = tc_fusion_part(f, i, 0),
                           .at = tc_fusion_part(f, i, n - 1), .n = n };
  y->node = tc_calloc((size_t)n, sizeof *y->node);
  y->call = tc_calloc((size_t)n, sizeof *y->call);
  for (int32_t k = 0; k < n; k++) {
    y->node[k] = p->p->actions->action[tc_fusion_part(f, i, k)].node;
    y->call[k] = &p->node[y->node[k]].call;
    tc_exec_ready(x, p, y->node[k], mb);
  }
  const bool can = d->ops->fused->can(d, y->call, n);
  if (can) {
    int64_t *most = &x->kscratch_bytes[TC_DEVICE];
    *most = TC_MAX(*most, d->ops->fused->scratch(d, y->call, n));
  }
  for (int32_t k = 0; k < n; k++) {
    tc_exec_done(p, y->node[k], mb);
    if (can) p->fused[tc_fusion_part(f, i, k)] = y;
  }
  if (!can) free_fused(y);
}

void tc_exec_fuse(struct tc_exec *x, struct tc_xprog *p)
{
  const struct tc_fusions *f = p->p->fusions;
  p->fused = tc_calloc((size_t)p->p->actions->n + 1, sizeof *p->fused);
  if (!x->o.device->ops->fused || x->o.no_fusion) return;
  for (int32_t i = 0; i < f->n; i++) {
    bool taken = false;
    for (int32_t k = 0; k < f->group[i].n; k++) taken |= p->fused[tc_fusion_part(f, i, k)] != NULL;
    if (!taken) fuse(x, p, i);
  }
}

void tc_exec_unfuse(struct tc_xprog *p)
{
  for (int32_t k = 0; p->fused && k < p->p->actions->n; k++)
    if (p->fused[k] && p->fused[k]->at == k) free_fused(p->fused[k]);
  free(p->fused);
}

bool tc_exec_is_deferred(const struct tc_xprog *p, int32_t k, int32_t root)
{
  const struct tc_graph *g = p->p->graph;
  for (int32_t i = k + 1; i < p->p->actions->n && i <= k + TC_FUSION_REACH; i++) {
    const struct tc_xfused *y = p->fused[i];
    if (!y || y->at != i || y->from >= k) continue;
    for (int32_t m = 0; m < y->n - 1; m++)
      for (int a = 0; a < g->node[y->node[m]].n_in; a++)
        if (tc_tensor_root(g, tc_in(g, &g->node[y->node[m]], a)) == root) return true;
  }
  return false;
}

int tc_exec_run_fused(struct tc_exec *x, struct tc_xprog *p, const struct tc_xfused *f, int32_t mb,
                      struct tc_err *err)
{
  struct tc_device *d = x->o.device;
  for (int32_t i = 0; i < f->n; i++) tc_exec_ready(x, p, f->node[i], mb);
  const int rc = d->ops->fused->run(d, f->call, f->n);
  for (int32_t i = 0; i < f->n; i++) tc_exec_done(p, f->node[i], mb);
  if (rc < 0 && tc_device_check(d, err) == 0) tc_fail(err, rc, "%s failed", f->name);
  return rc;
}
