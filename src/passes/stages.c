/* stages.c - assigns layers to stages: contiguous ranges with the smallest possible maximum of work. */
#include "src/passes/passes.h"
#include "src/graph/rule.h"

#include <stdlib.h>
#include <string.h>

/* Operations of a forward node, over the whole batch: the product of a matmul's subscripts; attention's
 * two products of queries and the keys that they see. */
static double work(const struct tc_graph *g, const struct tc_node *n)
{
  double ops = 0;
  if (n->op == TC_OP_MATMUL) {
    char l[TC_RULE_MAX][TC_DIMS + 1], seen[TC_DIMS * 3 + 1] = "";
    tc_rule_parse(g, n, l);
    ops = 2;
    for (int i = 0; i < 2; i++)
      for (int d = 0; l[i][d]; d++) {
        if (strchr(seen, l[i][d])) continue;
        seen[strlen(seen)] = l[i][d];
        ops *= (double)g->tensor[tc_in(g, n, i)].dim[d];
      }
  } else if (n->op == TC_OP_ATTN) {
    const struct tc_tensor *y = &g->tensor[tc_out(g, n, 0)];
    ops = 4 * (double)tc_tensor_elems(y) * tc_attn_keys(n->attr.window, 0, n->attr.sequence) / (double)tc_attn_pieces(g, n);
  }
  return ops;
}

/* cost[layers]: operations of each layer; the first and last include the embedding and the head. */
static double *layer_costs(const struct tc_graph *g, int layers)
{
  double *cost = tc_calloc((size_t)layers, sizeof *cost);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    int layer = g->unit[n->unit].layer;
    cost[layer >= 0 ? layer : n->head ? layers - 1 : 0] += work(g, n);
  }
  return cost;
}

/* Divides the layers into S contiguous groups with the smallest maximal sum; first[s]: the first layer of s. */
static void balance(const double *cost, int L, int S, int *first)
{
  size_t row = (size_t)L + 1;
  double *best = tc_malloc((size_t)(S + 1) * row * sizeof *best);
  int *cut = tc_calloc((size_t)(S + 1) * row, sizeof *cut);
  for (int s = 0; s <= S; s++)
    for (int n = 0; n <= L; n++) {               /* the first n layers in s groups */
      double *b = &best[(size_t)s * row + (size_t)n];
      *b = n == 0 && s == 0 ? 0 : 1e300;
      double sum = 0;
      for (int k = n - 1; s > 0 && k >= s - 1; k--) {
        sum += cost[k];
        double x = TC_MAX(sum, best[(size_t)(s - 1) * row + (size_t)k]);
        if (x >= *b) continue;
        *b = x;
        cut[(size_t)s * row + (size_t)n] = k;
      }
    }
  first[S] = L;
  for (int s = S; s > 0; s--) first[s - 1] = cut[(size_t)s * row + (size_t)first[s]];
  TC_FREE(best, cut);
}

/* The text of S ranges of L layers, about equally long; "auto" if it does not fit into size. */
static void even_ranges(char *text, size_t size, int L, int S)
{
  size_t n = 0;
  for (int64_t s = 0; s < S && n < size; s++) {
    int lo = (int)(s * L / S), hi = (int)((s + 1) * L / S) - 1;
    n += (size_t)snprintf(text + n, size - n, lo < hi ? "%s%d-%d" : "%s%d", s ? "," : "", lo, hi);
  }
  if (n >= size) snprintf(text, size, "auto");
}

/* "0-3,4-11" or "0,1-2": the ranges follow each other and end with the last layer. */
static int read_ranges(const char *text, int L, int S, int *first, struct tc_err *err)
{
  const char *at = text;
  int next = 0, n = 0;
  bool good = true;
  for (; *at && good; n++) {
    char *end;
    long lo = strtol(at, &end, 10), hi = lo;
    if (end != at && *end == '-') {
      at = end + 1;
      hi = strtol(at, &end, 10);
    }
    good = end != at && (!*end || *end == ',') && lo == next && hi >= lo && hi < L;
    if (good && n < S) first[n] = (int)lo;
    next = (int)hi + 1;
    at = *end ? end + 1 : end;
  }
  if (good && n == S && next == L) return 0;
  char fit[200];
  even_ranges(fit, sizeof fit, L, S);
  return tc_fail(err, TC_ELAYOUT, "mesh.stages = %.200s: give %d range%s of the layers 0 to %d that follow "
                 "each other, as %s", text, S, tc_plural(S), L - 1, fit);
}

int tc_stages(struct tc_graph *g, int pp, int virtual_stages, const char *by_hand, struct tc_err *err)
{
  int L = 0, S = pp * virtual_stages;
  for (int32_t u = 0; u < g->n_units; u++) {
    g->unit[u].stage = 0;
    g->unit[u].at = -1;
    L = TC_MAX(L, g->unit[u].layer + 1);
  }
  const bool ranges = by_hand && *by_hand && strcmp(by_hand, "auto");
  if (S == 1 && !ranges) return 0;
  if (S > L)
    return tc_fail(err, TC_ELAYOUT, "mesh.pp = %d%s: %d stages for %d layers would leave some "
                   "without a layer; mesh.pp = %d would fit", pp,
                   virtual_stages > 1 ? " with virtual stages" : "", S, L, TC_MAX(L / virtual_stages, 1));
  int *first = tc_malloc((size_t)(S + 1) * sizeof *first), rc = 0;
  if (ranges) {
    rc = read_ranges(by_hand, L, S, first, err);
  } else {
    double *cost = layer_costs(g, L);
    balance(cost, L, S, first);
    free(cost);
  }
  for (int32_t u = 0; u < g->n_units && !rc; u++) {
    int layer = g->unit[u].layer, s = 0;
    while (layer >= 0 && s < S - 1 && first[s + 1] <= layer) s++;
    if (layer < 0) s = u == 0 ? 0 : S - 1;       /* the embedding is the first unit */
    g->unit[u].stage = s;
    g->unit[u].at = pp > 1 ? s % pp : -1;
  }
  free(first);
  return rc;
}
