/* node_price.c - what each node of a program takes on a rank, the same for the simulation (time.c) and the sums (sums.c):
 * an op less what fused calls save, of each group (schedule/fusion.h) that the device file says the device fuses; a
 * transfer with packing; a local reshard. A fused call is launched once, and reads what goes from part to part once
 * less. */
#include "src/plan/impl.h"
#include "src/program/collective.h"

#include <stdlib.h>

bool tc_is_once(const struct tc_node *n) { return n->once_a_step || n->mark == TC_U; }

double tc_shown_s(const struct tc_plan_device *d, const struct tc_graph *g, const struct tc_node *n, struct tc_prices *prices)
{
  return d->exposed > 0 && tc_hides(g, n) ? d->exposed * tc_price_of(prices, n)->reshard.seconds : 0;
}

/* Attention waits for others on cp. */
bool tc_hides(const struct tc_graph *g, const struct tc_node *n)
{
  const unsigned tokens = tc_axes_of(TC_ROLE_TOKENS), batch = tc_axes_of(TC_ROLE_BATCH);
  const bool of_weights = n->n_in > 0 && g->tensor[tc_in(g, n, 0)].param >= 0;
  return n->axes && !(n->axes & ~(batch | tokens)) && (of_weights || n->axes & batch);
}

void tc_end_terms(struct tc_plan_step *s)
{
  double sum = 0;
  for (int t = 0; t < TC_TERMS; t++) sum += t == TC_TERM_BUBBLE ? 0 : s->term_s[t];
  const double rest = s->step_s - sum;
  s->term_s[TC_TERM_BUBBLE] = rest > 1e-9 * s->step_s ? rest : 0;      /* sums differ by rounding */
}

/* ---- fused calls --------------------------------------------------------------- */

/* Whether an earlier part reads or writes t; *made: it is the first one, and writes it. */
static bool is_known(const struct tc_program *p, int32_t group, int32_t k, int32_t t, bool *made)
{
  const struct tc_fusions *f = p->fusions;
  *made = false;
  for (int32_t e = k - 1; e >= 0; e--) {
    const struct tc_node *n = &p->graph->node[p->actions->action[tc_fusion_part(f, group, e)].node];
    for (int i = 0; i < n->n_in + n->n_out; i++) {
      if (t != tc_operand(p->graph, n, i)) continue;
      *made = e == 0 && i >= n->n_in;
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

/* [n_nodes] Seconds that fused calls save, at the node of a group's last part; owned by the caller. */
static double *find_saved(const struct tc_program *p, const struct tc_mesh *m, int rank,
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

/* ---- nodes ----------------------------------------------------------------------- */

struct tc_prices {
  const struct tc_program *p;
  const struct tc_mesh *m;
  const struct tc_cluster *k;
  int rank;
  double *saved_s;               /* [n_nodes] */
  struct tc_node_price *of;      /* [n_nodes]; run_s < 0: not computed yet */
};

/* A local reshard: a view costs nothing, else the block is copied. */
static double local_s(const struct tc_prices *x, const struct tc_node *n)
{
  const struct tc_graph *g = x->p->graph;
  const struct tc_arena *arena = x->p->arena;
  const struct tc_plan_device *d = &x->k->device;
  double bytes = 0;
  for (int i = 0; i < n->n_in; i++) {
    const struct tc_tensor *a = &g->tensor[tc_in(g, n, i)], *b = &g->tensor[tc_out(g, n, i)];
    bool same = arena && arena->off[a->id] == arena->off[b->id] && arena->region[a->id] == arena->region[b->id];
    if (same || b->base >= 0) continue;
    bytes += (double)tc_tensor_local_bytes(b, x->m, x->m->coord + (size_t)x->rank * TC_AXES);
  }
  if (n->coll == TC_COPY) return bytes / d->copy_bytes_per_s;
  return bytes > 0 ? d->op_s + tc_memory_s(d, 2 * bytes) : 0;
}

/* Packing before a transfer and unpacking after it, on the rank's own time. */
static void add_packing(const struct tc_prices *x, const struct tc_node *n, struct tc_node_price *price)
{
  const struct tc_graph *g = x->p->graph;
  const int32_t *coord = x->m->coord + (size_t)x->rank * TC_AXES;
  for (int i = 0; i < n->n_in; i++) {
    int pack, unpack;
    if (!tc_collective_packs(g, n, i, x->m, x->rank, &pack, &unpack)) continue;
    double in = (double)tc_tensor_local_bytes(&g->tensor[tc_in(g, n, i)], x->m, coord);
    double out = (double)tc_tensor_local_bytes(&g->tensor[tc_out(g, n, i)], x->m, coord);
    if (pack >= 0) price->issue_s += tc_memory_s(&x->k->device, 2 * in);
    if (unpack >= 0) price->unpack_s += tc_memory_s(&x->k->device, 2 * out);
  }
}

static double op_s(const struct tc_prices *x, const struct tc_node *n)
{
  struct tc_op_cost c;
  bool none;
  tc_op_cost(&c, x->p->graph, n, x->m, x->rank, &none);
  return (none ? 0 : tc_op_seconds(&c, &x->k->device)) - x->saved_s[n->id];
}

const struct tc_node_price *tc_price_of(struct tc_prices *x, const struct tc_node *n)
{
  struct tc_node_price *price = &x->of[n->id];
  if (price->run_s >= 0) return price;
  *price = (struct tc_node_price){ .reshard = { .coll = TC_COLLS }, .term = n->mark == TC_U ? TC_TERM_UPDATE : tc_plan_term_of(n->op) };
  if (n->op != TC_OP_RESHARD) {
    price->run_s = op_s(x, n);
    return price;
  }
  tc_reshard_cost(&price->reshard, x->p, n, x->m, x->rank, x->k);
  if (price->reshard.coll == TC_COLLS) {
    price->run_s = local_s(x, n);
  } else {
    price->issue_s = x->k->device.issue_s;
    add_packing(x, n, price);
  }
  return price;
}

struct tc_prices *tc_prices_new(const struct tc_program *p, const struct tc_mesh *m, int rank,
                                const struct tc_cluster *k)
{
  struct tc_prices *x = tc_malloc(sizeof *x);
  *x = (struct tc_prices){ p, m, k, rank, find_saved(p, m, rank, &k->device),
                           tc_malloc((size_t)p->graph->n_nodes * sizeof *x->of) };
  for (int32_t i = 0; i < p->graph->n_nodes; i++) x->of[i].run_s = -1;
  return x;
}

void tc_prices_free(struct tc_prices *x)
{
  TC_FREE(x->saved_s, x->of, x);
}
