/* cpu_kv.c - what context parallelism does with attention's operands: keys and values by themselves; more groups of fewer
 * queries. Copies, and in the backward pass the sums of copies' gradients. */
#include "kernels/cpu/cpu.h"

#include <string.h>

/* Copies the key and value of each of kv's groups from qkv, or back. */
static int copy_keys(struct tc_device *d, const struct tc_call *c, const struct tc_view *x, const struct tc_view *kv,
                     bool back)
{
  const int64_t D = x->dim[3], group = x->dim[2] * D, keys = 2 * D, size = (int64_t)tc_dtype_bytes(x->dtype);
  char *behind = (char *)x->data + (group - keys) * size, *apart = kv->data;
#pragma omp parallel for num_threads(tc_cpu_threads(d, kv->elems)) schedule(static)
  for (int64_t i = 0; i < kv->dim[0] * kv->dim[1]; i++) {
    char *there = behind + tc_call_group(c, x, kv, i) * group * size, *here = apart + i * keys * size;
    memcpy(back ? there : here, back ? here : there, (size_t)(keys * size));
  }
  return 0;
}

int tc_cpu_kv(struct tc_device *d, const struct tc_call *c) { return copy_keys(d, c, &c->in[0], &c->out[0], false); }

int tc_cpu_kv_bwd(struct tc_device *d, const struct tc_call *c) { return copy_keys(d, c, &c->out[0], &c->in[1], true); }

/* x: groups of G queries; y: for each of them `copies` groups of `part` queries. */
struct spread { int64_t groups, G, D, copies, part; };

static struct spread spread_of(const struct tc_view *x, const struct tc_view *y)
{
  return (struct spread){ .groups = x->dim[0] * x->dim[1], .G = x->dim[2] - 2, .D = x->dim[3],
                          .copies = y->dim[1] / x->dim[1], .part = y->dim[2] - 2 };
}

int tc_cpu_spread(struct tc_device *d, const struct tc_call *c)
{
  const struct spread s = spread_of(&c->in[0], &c->out[0]);
  const int64_t head = s.D * (int64_t)tc_dtype_bytes(c->in[0].dtype);
#pragma omp parallel for num_threads(tc_cpu_threads(d, c->out[0].elems)) schedule(static)
  for (int64_t i = 0; i < s.groups * s.copies; i++) {
    const char *group = (const char *)c->in[0].data + i / s.copies * (s.G + 2) * head;
    char *y = (char *)c->out[0].data + i * (s.part + 2) * head;
    memcpy(y, group + i % s.copies * s.part * head, (size_t)(s.part * head));
    memcpy(y + s.part * head, group + s.G * head, (size_t)(2 * head));
  }
  return 0;
}

int tc_cpu_spread_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *dx = &c->out[0];
  const struct spread s = spread_of(dx, dy);
  const int64_t size = (int64_t)tc_dtype_bytes(dx->dtype);
#pragma omp parallel for num_threads(tc_cpu_threads(d, dy->elems)) schedule(static)
  for (int64_t i = 0; i < s.groups; i++) {
    const int64_t from = i * s.copies * (s.part + 2) * s.D, to = i * (s.G + 2) * s.D;
    for (int64_t r = 0; r < s.copies; r++)
      memcpy((char *)dx->data + (to + r * s.part * s.D) * size, (const char *)dy->data + (from + r * (s.part + 2) * s.D) * size,
             (size_t)(s.part * s.D * size));
    for (int64_t j = 0; j < 2 * s.D; j++) {
      float sum = 0, x;
      for (int64_t r = 0; r < s.copies; r++)
        sum += *tc_cpu_in(dy, from + (r * (s.part + 2) + s.part) * s.D + j, 1, &x);
      const int64_t at = to + s.G * s.D + j;
      if (dx->dtype == TC_F32) tc_cpu_f32(dx)[at] = sum;
      else tc_cpu_put(dx, at, 1, &sum);
    }
  }
  return 0;
}
