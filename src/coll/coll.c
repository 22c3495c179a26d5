/* coll.c - names of collectives, and the bytes that one sends. */
#include "src/coll/flow.h"

#include <string.h>

const char *const tc_coll_name[TC_COLLS] = {
  "slice", "drop", "zero", "copy",
  "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter",
  "gather", "all_to_all", "send", "recv", "barrier"
};

int tc_coll_named(const char *name)
{
  for (int i = TC_FIRST_COLL; i < TC_COLLS; i++)
    if (!strcmp(tc_coll_name[i], name)) return i;
  return -1;
}

int64_t tc_coll_bytes(const struct tc_coll_args *a, int size, int coord)
{
  struct tc_flows l;
  int64_t elems = 0;
  if (size == 1) return 0;
  tc_flows_of(&l, tc_algorithm_of(a, size), a->coll, size, coord, a->root);
  for (int k = 0; k < l.n; k++)
    for (int i = 0; i < a->n_parts && l.flow[k].kind == TC_FLOW_SEND; i++)
      elems += tc_flow_elems(&l.flow[k], a->parts[i].count, a->parts[i].block, size);
  return elems * (int64_t)tc_dtype_bytes(a->dtype);
}
