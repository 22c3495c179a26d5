/* cpu_part.c - a part of a tensor along a dimension: added to, and by itself. */
#include "kernels/cpu/cpu.h"

#include <string.h>

int tc_cpu_add_part(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *u = &c->in[1], *y = &c->out[0];
  const struct tc_runs p = tc_call_part(c, y, u);
#pragma omp parallel for num_threads(tc_cpu_threads(d, u->elems)) schedule(static)
  for (int64_t i = 0; i < p.runs; i++)
    for (int64_t j = 0; j < p.run; j += TC_BLOCK) {
      float a[TC_BLOCK], b[TC_BLOCK];
      const int64_t n = TC_MIN(TC_BLOCK, p.run - j), at = i * p.step + p.from + j;
      float *sum = tc_cpu_out(y, at, n, a, true);
      tc_cpu_plus(sum, sum, tc_cpu_in(u, i * p.run + j, n, b), n);
      tc_cpu_put(y, at, n, sum);
    }
  return 0;
}

int tc_cpu_part(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const struct tc_runs p = tc_call_part(c, x, y);
  const int64_t size = (int64_t)tc_dtype_bytes(y->dtype);
#pragma omp parallel for num_threads(tc_cpu_threads(d, y->elems)) schedule(static)
  for (int64_t i = 0; i < p.runs; i++)
    memcpy((char *)y->data + i * p.run * size, (const char *)x->data + (i * p.step + p.from) * size, (size_t)(p.run * size));
  return 0;
}
