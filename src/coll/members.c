/* members.c - the members of a group, node by node. */
#include "src/coll/members.h"

#include <stdlib.h>
#include <string.h>

/* Numbers nodes in the order of their first members: index of each coordinate's, and how many there are. */
static int number_nodes(const int32_t *node, int size, int32_t *index)
{
  int32_t most = 0, n = 0;
  for (int i = 0; i < size; i++) most = TC_MAX(most, node[i]);
  int32_t *of = tc_malloc((size_t)(most + 1) * sizeof *of);
  memset(of, -1, (size_t)(most + 1) * sizeof *of);
  for (int i = 0; i < size; i++) {
    if (of[node[i]] < 0) of[node[i]] = n++;
    index[i] = of[node[i]];
  }
  free(of);
  return n;
}

struct tc_nodes *tc_nodes_new(const int32_t *node, int size)
{
  struct tc_nodes *x = tc_calloc(1, sizeof *x);
  x->row = tc_malloc((size_t)size * sizeof *x->row);
  x->column = tc_malloc((size_t)size * sizeof *x->column);
  x->n = number_nodes(node, size, x->row);
  x->size = tc_calloc((size_t)x->n, sizeof *x->size);
  for (int i = 0; i < size; i++) {
    x->column[i] = x->size[x->row[i]]++;
    x->most = TC_MAX(x->most, x->size[x->row[i]]);
  }
  if (x->n == 1 || x->most == 1) {
    tc_nodes_free(x);
    return NULL;
  }
  x->at = tc_malloc((size_t)x->n * (size_t)x->most * sizeof *x->at);
  memset(x->at, -1, (size_t)x->n * (size_t)x->most * sizeof *x->at);
  for (int i = 0; i < size; i++) x->at[x->row[i] * x->most + x->column[i]] = i;
  return x;
}

struct tc_nodes *tc_nodes_even(int n, int each)
{
  int32_t *node = tc_malloc((size_t)n * (size_t)each * sizeof *node);
  for (int i = 0; i < n * each; i++) node[i] = i / each;
  struct tc_nodes *x = tc_nodes_new(node, n * each);
  free(node);
  return x;
}

void tc_nodes_free(struct tc_nodes *x)
{
  if (x) TC_FREE(x->size, x->at, x->row, x->column, x);
}
