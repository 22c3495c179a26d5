/* rule.c - index rules of nodes, as subscripts of each tensor. */
#include "src/graph/rule.h"

#include <string.h>

int tc_rule_parse(const struct tc_graph *g, const struct tc_node *n,
                  char subs[TC_RULE_MAX][TC_DIMS + 1])
{
  const char *rule = n->rule ? n->rule : tc_op_info[n->op].rule;
  if (*rule == '*') {                            /* the same subscripts for every tensor */
    int total = TC_MIN(n->n_in + n->n_out, TC_RULE_MAX);
    for (int i = 0; i < total; i++) {
      int32_t t = tc_operand(g, n, i);
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

void tc_rule_on(char subs[TC_RULE_MAX][TC_DIMS + 1], int n, int axis)
{
  for (int i = 0; i < n && tc_axis_role[axis] != TC_ROLE_TOKENS; i++)
    if (subs[i][0] == 'N') subs[i][0] = 'n';
}

static bool has(const char *subs, char c) { return c && strchr(subs, c) != NULL; }

struct tc_gemm tc_rule_gemm(const struct tc_graph *g, const struct tc_node *n, const int64_t *a, const int64_t *c)
{
  char subs[TC_RULE_MAX][TC_DIMS + 1];
  tc_rule_parse(g, n, subs);
  const char *A = subs[0], *B = subs[1], *C = subs[n->n_in];
  struct tc_gemm p = { 1, 1, 1, !has(C, A[0]), has(C, B[0]), { 0 } };
  bool columns = false;
  for (int i = 0; C[i]; i++) {                   /* rows are A's subscripts, columns B's */
    const bool row = has(A, C[i]);
    TC_ASSERT(!(row && columns));                /* rows before columns */
    columns |= !row;
    *(row ? &p.m : &p.n) *= c[i];
  }
  for (int i = 0; A[i]; i++)
    if (!has(C, A[i])) p.k *= a[i];
  return p;
}
