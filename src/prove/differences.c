/* differences.c - one rank's gradient in double precision beside differences of its loss, so that one rank itself is not
 * taken on faith. */
#include "src/prove/impl.h"

#include <math.h>
#include <stdlib.h>

enum { EACH = 4 };               /* elements of a parameter */

void tc_perturb(const struct tc_graph *g, const struct tc_mesh *m, int rank, struct tc_exec *x, struct tc_device *d)
{
  for (int32_t i = 0; i < g->n_params; i++) {
    const struct tc_tensor *t = &g->tensor[g->param[i].master];
    struct tc_local l;
    tc_tensor_local(t, m, m->coord + (size_t)rank * TC_AXES, &l);
    const bool f64 = t->dtype == TC_F64;
    const int64_t bytes = l.elems * (int64_t)tc_dtype_bytes(t->dtype);
    void *w = tc_malloc((size_t)bytes + 1), *there = tc_exec_tensor(x, TC_TRAIN, t->id);
    /* A product of a wide matrix is not to grow with its width. */
    const int64_t width = t->rank > 1 ? t->dim[t->rank - 1] : 1;
    const double size = (f64 ? 0.3 : 0.1) * sqrt(16.0 / (double)TC_MAX(width, INT64_C(16)));
    d->ops->copy(d, w, there, bytes);
    for (int64_t e = 0; e < l.elems; e++) {
      const int64_t k = tc_local_index(t, &l, e);
      if (k < 0) continue;
      const double by = size * tc_normal(77, (uint32_t)i, 0, (uint64_t)k);
      if (f64) ((double *)w)[e] += by;
      else if (t->dtype == TC_F32) ((float *)w)[e] += (float)by;
      else ((uint16_t *)w)[e] = tc_f32_to_bf16(tc_bf16_to_f32(((uint16_t *)w)[e]) + (float)by);
    }
    d->ops->copy(d, there, w, bytes);
    free(w);
  }
}

/* The five-point formula; its error is of the fourth order. */
static int at_element(double *out, double *w, struct tc_exec *x, int32_t loss, const struct tc_runtime *rt, struct tc_err *err)
{
  static const double h = 1e-4, at[4] = { -2, -1, 1, 2 };
  const double was = *w;
  double f[4];
  int rc = 0;
  for (int j = 0; j < 4 && !rc; j++) {
    *w = was + at[j] * h;
    rc = tc_exec_run(x, TC_EVAL, rt, err);
    f[j] = tc_exec_scalar(x, TC_EVAL, loss);
  }
  *w = was;
  if (!rc) *out = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
  return rc;
}

int tc_differentiate(struct tc_reference *r, const struct tc_graph *g, struct tc_exec *x, const struct tc_program *eval,
                     const struct tc_runtime *rt, struct tc_err *err)
{
  for (int32_t i = 0; i < g->n_params; i++) {
    if (g->param[i].frozen) continue;            /* it has no gradient */
    double *w = tc_exec_tensor(x, TC_TRAIN, g->param[i].master);
    const int64_t n = tc_tensor_elems(&g->tensor[g->param[i].master]);
    for (int e = 0; e < TC_MIN(EACH, n); e++) {
      uint32_t drawn[4];
      tc_philox(drawn, rt->seed, (uint64_t)i, (uint64_t)e);
      const int64_t k = (int64_t)(drawn[0] % (uint64_t)n);
      struct tc_difference d = { .param = i, .at = k };
      TC_TRY(at_element(&d.value, &w[k], x, eval->graph->loss, rt, err));
      TC_APPEND(r->difference, r->n_differences, r->cap_differences, d);
    }
  }
  return 0;
}
