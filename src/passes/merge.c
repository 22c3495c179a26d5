/* merge.c - merges pairs of nodes into one, once placements are fixed.
 *
 * The order stays topological. */
#include "src/passes/impl.h"
#include "src/graph/rule.h"

#include <stdlib.h>

/* For each tensor: the number of nodes that have it as an input, and the last of them. */
struct uses { int32_t n, last; };

static struct uses *find_uses(const struct tc_graph *g)
{
  struct uses *u = tc_calloc((size_t)g->n_tensors, sizeof *u);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_in; k++) {
      u[tc_in(g, n, k)].n++;
      u[tc_in(g, n, k)].last = i;
    }
  }
  return u;
}

int32_t *tc_order_positions(const struct tc_graph *g)
{
  int32_t *at = tc_malloc((size_t)g->n_nodes * sizeof *at);
  for (int32_t i = 0; i < g->n_order; i++) at[g->order[i]] = i;
  return at;
}

/* matmul, bias -> matmul with a bias, at the position of the bias op (the bias may be gathered just
 * before). Only if no reshard of the product is between them. */
static void merge_bias(struct tc_graph *g, const struct uses *u, bool *drop)
{
  int32_t *at = tc_order_positions(g);
  for (int32_t i = 0; i < g->n_order; i++) {
    struct tc_node *b = &g->node[g->order[i]];
    if (b->op != TC_OP_BIAS) continue;
    int32_t y = tc_in(g, b, 0), z = tc_out(g, b, 0), maker = g->tensor[y].node;
    struct tc_node *p = maker >= 0 ? &g->node[maker] : NULL;
    if (!p || p->op != TC_OP_MATMUL || p->n_in != 2 || u[y].n != 1 || p->acc) continue;
    char l[TC_RULE_MAX][TC_DIMS + 1], bl[TC_RULE_MAX][TC_DIMS + 1];
    tc_rule_parse(g, p, l);
    tc_rule_parse(g, b, bl);
    char *rule = tc_sprintf("%s,%s,%s->%s", l[0], l[1], bl[1], l[2]);
    int32_t in[3] = { tc_in(g, p, 0), tc_in(g, p, 1), tc_in(g, b, 1) };
    p->in = g->n_args;
    for (int k = 0; k < 3; k++) TC_APPEND(g->arg, g->n_args, g->cap_args, in[k]);
    p->n_in = 3;
    g->arg[p->out] = z;
    g->tensor[z].node = p->id;
    g->tensor[y].node = -1;
    tc_node_rule(g, p, rule);
    g->order[i] = p->id;
    g->order[at[p->id]] = b->id;
    drop[b->id] = true;
    free(rule);
  }
  free(at);
}

struct readers tc_order_readers(const struct tc_graph *g)
{
  struct readers r = { tc_calloc((size_t)g->n_tensors + 2, sizeof *r.first), NULL };
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_in; k++) r.first[tc_in(g, n, k) + 2]++;
  }
  for (int32_t t = 0; t <= g->n_tensors; t++) r.first[t + 1] += r.first[t];
  r.at = tc_malloc((size_t)r.first[g->n_tensors + 1] * sizeof *r.at);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_in; k++) r.at[r.first[tc_in(g, n, k) + 1]++] = i;
  }
  return r;
}

/* layernorm_bwd or rmsnorm_bwd -> dx, add(a, dx) -> s: the norm adds to a, in place, if a is not read
 * afterwards. */
static void merge_residual(struct tc_graph *g, const struct uses *u, bool w_split, bool *drop)
{
  int32_t *at = tc_order_positions(g);
  struct readers readers = tc_order_readers(g);
  for (int32_t i = 0; i < g->n_order; i++) {
    struct tc_node *s = &g->node[g->order[i]];
    if (s->op != TC_OP_ADD || s->mark == TC_F) continue;
    int32_t a = tc_in(g, s, 0), d = tc_in(g, s, 1), out = tc_out(g, s, 0);
    int32_t maker = g->tensor[d].node;
    struct tc_node *n = maker >= 0 ? &g->node[maker] : NULL;
    const bool norm = n && (n->op == TC_OP_LAYERNORM_BWD || n->op == TC_OP_RMSNORM_BWD);
    if (!norm || u[d].n != 1 || drop[n->id]) continue;
    if (g->tensor[a].state || g->tensor[a].node < 0 || at[g->tensor[a].node] > at[n->id]) continue;
    if (u[a].last != i || g->tensor[a].base >= 0) continue;
    bool early = true;                           /* all other readers run before n */
    for (int32_t x = readers.first[a]; x < readers.first[a + 1] && readers.at[x] < i; x++) {
      const int32_t j = readers.at[x];
      if (j >= at[n->id] || (w_split && g->node[g->order[j]].mark == TC_W)) early = false;
    }
    if (!early) continue;
    g->arg[n->out] = out;
    g->tensor[out].node = n->id;
    g->tensor[out].overwrites = a;
    g->tensor[d].node = -1;
    n->acc |= 1;                                 /* it always adds: acc_first is for state only */
    drop[s->id] = true;
  }
  TC_FREE(at, readers.first, readers.at);
}

void tc_merge(struct tc_graph *g, bool w_split)
{
  bool *drop = tc_calloc((size_t)g->n_nodes, sizeof *drop);
  struct uses *u = find_uses(g);
  merge_bias(g, u, drop);
  merge_residual(g, u, w_split, drop);
  free(u);
  tc_graph_drop(g, drop);
  free(drop);
}
