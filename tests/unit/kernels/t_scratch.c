/* t_scratch.c - how much scratch kernels of the device `cpu` ask for: exactly what they use, and no byte more. Attention in
 * bf16: packed rows take half as much, and those for sums over rows are pairs. */
#include "kernels/kernel.h"
#include "tests/unit/tap.h"

struct row {
  int op, threads;
  int64_t in[3][4], out[4]; /* dims, up to 0 */
  int64_t k, want;
};

static struct tc_view view(const int64_t dim[4])
{
  struct tc_view v = { .dtype = TC_F32, .rows = -1, .elems = 1 };
  for (; v.rank < 4 && dim[v.rank]; v.rank++) {
    v.dim[v.rank] = v.global[v.rank] = dim[v.rank];
    v.elems *= dim[v.rank];
  }
  return v;
}

/* In floats, but for the first two. */
enum { F = 4 };
static const struct row rows[] = {
  { TC_OP_EMBED_BWD, 2, { { 100 }, { 100, 8 } }, { 37, 8 }, 0, 37 * 4 + 100 * 5 },
  { TC_OP_SQNORM, 2, { { 1 }, { 1024 }, { 1025 } }, { 0 }, 0, 4 * 8 },
  { TC_OP_BIAS_BWD, 2, { { 7, 33 } }, { 33 }, 0, 33 * F },
  { TC_OP_BIAS_BWD, 2, { { 15, 33 } }, { 33 }, 0, 33 * F },
  { TC_OP_BIAS_BWD, 2, { { 16, 33 } }, { 33 }, 0, 2 * 33 * F },
  { TC_OP_BIAS_BWD, 2, { { 5000, 33 } }, { 33 }, 0, 64 * 33 * F },
  { TC_OP_LAYERNORM, 1, { { 9, 33 }, { 33 }, { 33 } }, { 9, 33 }, 0, 5 * 48 * F },
  { TC_OP_LAYERNORM, 3, { { 9, 32 }, { 32 }, { 32 } }, { 9, 32 }, 0, 11 * 32 * F },
  { TC_OP_ATTN,
    1,
    { { 14, 2, 3, 5 } },
    { 0 },
    7,
    (32 + 14 * 16 + 5 * 64 + 64 * 64 + 64 * 16 + 128) * F },
  { TC_OP_ATTN,
    3,
    { { 130, 1, 3, 20 } },
    { 0 },
    65,
    3 * (272 + 130 * 32 + 2 * 20 * 64 + 64 * 64 + 64 * 32 + 128) * F },
};

int main(void)
{
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct row *r = &rows[i];
    struct tc_device *d;
    struct tc_err err = { 0 };
    struct tc_view in[3] = { view(r->in[0]), view(r->in[1]), view(r->in[2]) }, out = view(r->out);
    struct tc_call c = { .op = r->op, .in = in, .out = &out, .n_out = 1, .k = { r->k } };
    while (c.n_in < 3 && r->in[c.n_in][0]) c.n_in++;
    if (!is_int(tc_device_open(&d, "cpu", r->threads, &err), 0, "cpu, %d threads", r->threads))
      continue;
    is_int(d->ops->kernel[r->op].scratch(d, &c), r->want, "%s, case %zu", tc_op_info[r->op].name,
           i);
    tc_device_close(d);
  }
  /* Backward passes: x, its gradient, weights, statistics. */
  for (int threads = 1; threads < 4; threads++) {
    struct tc_device *d;
    struct tc_err err = { 0 };
    struct tc_view norm[5] = { view((int64_t[4]){ 17, 33 }), view((int64_t[4]){ 17, 33 }),
                               view((int64_t[4]){ 33 }), view((int64_t[4]){ 17 }),
                               view((int64_t[4]){ 17 }) };
    struct tc_view attn[4] = { view((int64_t[4]){ 130, 1, 20 }),
                               view((int64_t[4]){ 130, 1, 3, 20 }) };
    struct tc_call c = { .op = TC_OP_LAYERNORM_BWD, .in = norm, .n_in = 5 };
    if (tc_device_open(&d, "cpu", threads, &err) < 0) return 1;
    is_int(d->ops->kernel[c.op].scratch(d, &c), (2 + 3 * threads + 2 * 2) * 48 * F,
           "layernorm_bwd, %d threads", threads);
    c = (struct tc_call){ .op = TC_OP_ATTN_BWD, .in = attn, .n_in = 4, .k = { 65 } };
    is_int(d->ops->kernel[c.op].scratch(d, &c),
           threads * (272 + 4 * 65 * 32 + 2 * 64 * 32 + 2 * 2 * 20 * 64 + 2 * 64 * 64 + 2 * 80) * F,
           "attn_bwd, %d threads", threads);
    if (!d->ops->has_bf16(d)) {
      tc_device_close(d);
      continue;
    }
    for (int i = 0; i < 4; i++) attn[i].dtype = TC_BF16;
    is_int(d->ops->kernel[c.op].scratch(d, &c),
           threads * (272 + 3 * 65 * 16 + 3 * 33 * 32 + 65 * 32 + 2 * 64 * 32 + 2 * 2 * 10 * 64 + 7 * 64 * 32 + 2 * 80) * F,
           "attn_bwd in bf16, %d threads", threads);
    c = (struct tc_call){ .op = TC_OP_ATTN, .in = attn + 1, .n_in = 1, .k = { 65 } };
    is_int(d->ops->kernel[c.op].scratch(d, &c),
           threads * (272 + 2 * 65 * 16 + 33 * 32 + 2 * 10 * 64 + 64 * 64 + 64 * 32 + 128) * F,
           "attn in bf16, %d threads", threads);
    tc_device_close(d);
  }
  return done_testing();
}
