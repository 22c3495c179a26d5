/* coll.c - names of collectives, and the bytes that one sends. */
#include "src/coll/selection.h"

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

int64_t tc_coll_bytes(const struct tc_coll_args *a, const struct tc_members *m)
{
  struct tc_flows l = { 0 };
  int64_t bytes = 0;
  if (m->size == 1) return 0;
  tc_flows_of(&l, tc_algorithm_of(a, m), a->coll, m, a->root);
  for (int k = 0; k < l.n; k++) {
    const struct tc_flow *f = &l.flow[k];
    const int64_t each = (int64_t)tc_dtype_bytes(f->wide ? tc_sum_dtype(a->dtype) : a->dtype);
    for (int i = 0; i < a->n_parts && f->kind == TC_FLOW_SEND; i++)
      bytes += tc_flow_elems(f, a->parts[i].count, a->parts[i].block, m) * each;
  }
  tc_flows_done(&l);
  return bytes;
}
