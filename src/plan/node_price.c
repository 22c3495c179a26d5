/* node_price.c - what fused calls save: of each group of a program (schedule/fusion.h) that the device file says the
 * device fuses. A fused call is launched once, and reads what goes from part to part once less. */
#include "src/plan/impl.h"

#include <stdlib.h>

/* Whether an earlier part reads or writes t; *made: it writes it. */
static bool is_known(const struct tc_program *p, int32_t group, int32_t k, int32_t t, bool *made)
{
  const struct tc_fusions *f = p->fusions;
  *made = false;
  for (int32_t e = k - 1; e >= 0; e--) {
    const struct tc_node *n = &p->graph->node[p->actions->action[tc_fusion_part(f, group, e)].node];
    for (int i = 0; i < n->n_in + n->n_out; i++) {
      if (t != tc_operand(p->graph, n, i)) continue;
      *made = i >= n->n_in;
      return true;
    }
  }
  return false;
}

/* Bytes that the parts move one by one, but not fused. */
static double saved_bytes(const struct tc_program *p, int32_t group, const int32_t coord[TC_AXES],
                          const struct tc_mesh *m)
{
  const struct tc_graph *g = p->graph;
  const struct tc_fusions *f = p->fusions;
  const bool unread = tc_fusion_rule[f->group[group].rule].flags & TC_FUSION_UNREAD;
  double bytes = 0;
  for (int32_t k = 1; k < f->group[group].n; k++) {
    const struct tc_node *n = &g->node[p->actions->action[tc_fusion_part(f, group, k)].node];
    for (int i = 0; i < n->n_in; i++) {
      const int32_t t = tc_in(g, n, i);
      bool made;
      if (is_known(p, group, k, t, &made))
        bytes += (made && unread ? 2 : 1) * (double)tc_tensor_local_bytes(&g->tensor[t], m, coord);
    }
  }
  return bytes;
}

static double saved_s(const struct tc_program *p, int32_t group, const struct tc_mesh *m, int rank,
                      const struct tc_plan_device *d)
{
  const struct tc_fusions *f = p->fusions;
  const int32_t n = f->group[group].n;
  struct tc_op_cost *part = tc_calloc((size_t)n, sizeof *part);
  bool none;
  for (int32_t k = 0; k < n; k++)
    tc_op_cost(&part[k], p->graph, &p->graph->node[p->actions->action[tc_fusion_part(f, group, k)].node], m,
               rank, &none);
  const double s = tc_fused_saves(part, n, saved_bytes(p, group, m->coord + (size_t)rank * TC_AXES, m), d);
  free(part);
  return s;
}

double *tc_plan_saved_s(const struct tc_program *p, const struct tc_mesh *m, int rank,
                        const struct tc_plan_device *d)
{
  double *saved = tc_calloc((size_t)p->graph->n_nodes + 1, sizeof *saved);
  const struct tc_fusions *f = p->fusions;
  if (!d->fuses) return saved;
  bool *taken = tc_calloc((size_t)p->actions->n + 1, sizeof *taken);
  for (int32_t i = 0; i < f->n; i++) {
    bool skip = !(d->fuses >> f->group[i].rule & 1);
    for (int32_t k = 0; k < f->group[i].n; k++) skip |= taken[tc_fusion_part(f, i, k)];
    for (int32_t k = 0; k < f->group[i].n && !skip; k++) taken[tc_fusion_part(f, i, k)] = true;
    double *s = &saved[p->actions->action[tc_fusion_part(f, i, f->group[i].n - 1)].node];
    if (!skip && *s == 0) *s = saved_s(p, i, m, rank, d);
  }
  free(taken);
  return saved;
}
