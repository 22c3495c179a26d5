/* views.c - where tensors lie within the storage they share. */
#include "src/schedule/impl.h"

#include <stdlib.h>

static const int64_t UNKNOWN = INT64_MIN;

/* Where t, a view or a version, begins in the tensor that it is a view or a version of, in bytes. */
static int64_t link_offset(const struct tc_graph *g, int32_t t, const struct tc_mesh *m,
                           const int32_t coord[TC_AXES])
{
  const struct tc_tensor *x = &g->tensor[t];
  if (x->base < 0) return 0;
  struct tc_local a, b;
  tc_tensor_local(x, m, coord, &a);
  tc_tensor_local(&g->tensor[x->base], m, coord, &b);
  int64_t row = b.elems / TC_MAX(b.dim[0], 1);           /* elements of one index of dim 0 */
  int64_t elems = x->base_row * row;
  if (x->block)
    elems = a.rows >= 0 ? a.row0 * (x->rank > 1 ? a.dim[x->rank - 1] : 1)
                        : (a.off[0] - b.off[0]) * row;
  return elems * (int64_t)tc_dtype_bytes(x->dtype);
}

struct tc_views *tc_views_new(const struct tc_graph *g, const struct tc_mesh *m,
                              const int32_t coord[TC_AXES])
{
  const size_t n = (size_t)g->n_tensors;
  struct tc_views *v = tc_calloc(1, sizeof *v);
  int32_t *chain = tc_malloc(n * sizeof *chain);
  v->off = tc_malloc(n * sizeof *v->off);
  v->bytes = tc_malloc(n * sizeof *v->bytes);
  v->here = tc_calloc(n, sizeof *v->here);
  for (size_t t = 0; t < n; t++) v->off[t] = UNKNOWN;
  for (int32_t t = 0; t < g->n_tensors; t++) {
    int32_t k = 0, x = t;
    struct tc_local l;
    tc_tensor_local(&g->tensor[t], m, coord, &l);
    v->here[t] = l.here;
    v->bytes[t] = l.elems * (int64_t)tc_dtype_bytes(g->tensor[t].dtype);
    for (; v->off[x] == UNKNOWN && tc_shares_with(&g->tensor[x]) >= 0; x = tc_shares_with(&g->tensor[x]))
      chain[k++] = x;
    if (v->off[x] == UNKNOWN) v->off[x] = 0;
    while (k-- > 0) {
      v->off[chain[k]] = v->off[x] + link_offset(g, chain[k], m, coord);
      x = chain[k];
    }
  }
  free(chain);
  return v;
}

void tc_views_free(struct tc_views *v)
{
  if (!v) return;
  TC_FREE(v->off, v->bytes, v->here, v);
}
