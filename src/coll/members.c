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

static void nodes_free(struct tc_nodes *x)
{
  if (x) TC_FREE(x->size, x->at, x->row, x->column, x);
}

static struct tc_nodes *nodes_new(const int32_t *node, int size)
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
  x->at = tc_malloc((size_t)x->n * (size_t)x->most * sizeof *x->at);
  memset(x->at, -1, (size_t)x->n * (size_t)x->most * sizeof *x->at);
  for (int i = 0; i < size; i++) x->at[x->row[i] * x->most + x->column[i]] = i;
  return x;
}

struct tc_members tc_members_of(int size, int coord)
{
  return (struct tc_members){ .size = size, .coord = coord };
}

struct tc_members tc_members_on(const int32_t *node, int size, int coord, bool partial)
{
  struct tc_members m = { .size = size, .coord = coord, .partial = partial };
  for (int i = 1; node && i < size; i++) m.spread |= node[i] != node[0];
  if (!m.spread) return m;
  m.nodes = nodes_new(node, size);
  if (m.nodes->most == 1) tc_members_done(&m);
  return m;
}

struct tc_members tc_members_even(int size, int each, int coord, bool partial)
{
  int32_t *node = tc_malloc((size_t)size * sizeof *node);
  for (int i = 0; i < size; i++) node[i] = i / each;
  const struct tc_members m = tc_members_on(node, size, coord, partial);
  free(node);
  return m;
}

void tc_members_done(struct tc_members *m)
{
  nodes_free(m->nodes);
  m->nodes = NULL;
}
