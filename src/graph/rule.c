/* rule.c - index rules of nodes, as subscripts of each tensor. */
#include "src/graph/rule.h"

int tc_rule_parse(const struct tc_graph *g, const struct tc_node *n,
                  char subs[TC_RULE_MAX][TC_DIMS + 1])
{
  const char *rule = n->rule ? n->rule : tc_op_info[n->op].rule;
  if (*rule == '*') {                            /* the same subscripts for every tensor */
    int total = TC_MIN(n->n_in + n->n_out, TC_RULE_MAX);
    for (int i = 0; i < total; i++) {
      int32_t t = i < n->n_in ? tc_in(g, n, i) : tc_out(g, n, i - n->n_in);
      int r = g->tensor[t].rank;
      for (int d = 0; d < r; d++) subs[i][d] = (char)('a' + d);
      subs[i][r] = 0;
    }
    return total;
  }
  int k = 0, d = 0;
  for (const char *c = rule; *c; c++) {
    if (*c == ',' || *c == '-') {
      if (*c == '-') c++;                        /* "->" */
      if (c > rule + 1 || *c == ',') subs[k++][d] = 0;
      TC_ASSERT(k < TC_RULE_MAX);
      d = 0;
    } else {
      TC_ASSERT(d < TC_DIMS);
      subs[k][d++] = *c;
    }
  }
  subs[k++][d] = 0;
  return k;
}
