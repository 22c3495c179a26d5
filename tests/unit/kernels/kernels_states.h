/* kernels_states.h - t_kernels.c's cases of updates whose states are in bf16: random blocks of random tensors, whose new
 * states are exact in fp32 by the choice of numbers, so that each device's bits are those of the rule in op.def alone. */
#ifndef TC_KERNELS_STATES_H
#define TC_KERNELS_STATES_H

#include "tests/unit/kernels/t_kernels.h"
#include "tests/unit/seed.h"

static int64_t states_below(int64_t n) { return TC_MIN((int64_t)(uniform() * (double)n), n - 1); }

/* A block that splits any of up to four dimensions, or rows of it. */
static struct tc_view states_block(bool whole)
{
  struct tc_view v = { .dtype = TC_BF16, .rank = (uint8_t)(1 + states_below(4)), .rows = -1, .elems = 1 };
  for (int d = 0; d < v.rank; d++) {
    v.global[d] = 1 + states_below(v.rank == 1 ? 9000 : v.rank == 2 ? 90 : 12);
    v.off[d] = whole || states_below(2) ? 0 : states_below(v.global[d]);
    v.dim[d] = whole || (d > 0 && v.off[d] == 0 && states_below(2)) ? v.global[d] : 1 + states_below(v.global[d] - v.off[d]);
    v.elems *= v.dim[d];
  }
  if (whole || states_below(2)) return v;
  const int64_t last = v.rank > 1 ? v.dim[v.rank - 1] : 1, rows = v.elems / last;
  v.row0 = states_below(rows);
  v.rows = 1 + states_below(rows - v.row0);
  v.elems = v.rows * last;
  return v;
}

/* State k of element i, from what it was and the gradient, by op.def. */
static double states_new(int op, int k, double old, double g)
{
  return op == TC_OP_MOMENTUM ? 0.5 * old + g : 0.5 * old + 0.5 * (k ? g * g : g);
}

static void states_case(int op, uint64_t number)
{
  struct test t = new_test(op, "states in bf16, %llu", (unsigned long long)number);
  const struct tc_view v = states_block(number % 4 == 0);
  const int n = tc_op_info[op].n_out;
  for (int k = 0; k < n + 2; k++) {
    struct tc_view *x = &t.in[t.c.n_in++];
    *x = v;
    x->dtype = k < 3 ? TC_F32 : TC_BF16;
    if (k == 1) *x = tensor(TC_F32, SCALAR);
    back(x);
    for (int64_t i = 0; i < x->elems; i++)
      put(x, i, k == 1 ? 1 : k == 0 ? (double)(states_below(2047) - 1023) / 1024 : k == 2 ? uniform() : 1 + (double)states_below(128) / 128);
  }
  for (int k = 0; k < n; k++) t.out[t.c.n_out] = t.in[2 + k], t.over[t.c.n_out++] = 2 + k;
  t.rt.beta1 = t.rt.beta2 = t.rt.momentum = 0.5f, t.rt.weight_decay = 0;
  t.rt.seed = number * UINT64_C(0x9e3779b97f4a7c15), t.rt.step = 1 + states_below(1 << 20);
  t.c.f[0] = t.c.f[1] = 1, t.c.k[0] = states_below(INT64_C(1) << 32);
  for (int i = 0; i < 2; i++) {
    struct tc_device *d = dev(device_name[i], 2);
    struct tc_view none[ARGS] = { 0 }, got[ARGS] = { 0 };
    int64_t wrong = !run_on(d, &t, none, false, got), up = 0;
    for (int k = 0; k < n - 1; k++)
      for (int64_t e = 0; e < v.elems; e++) {
        union { float f; uint32_t u; } x = { .f = (float)states_new(op, k, get(&t.in[3 + k], e), get(&t.in[0], e)) };
        uint32_t block[4];
        const uint64_t at = (uint64_t)tc_view_global(&v, e);
        tc_philox(block, t.rt.seed, at / 4, (uint64_t)t.c.k[0] << 32 | (uint64_t)t.rt.step);
        const uint32_t bits = k ? block[at % 4] >> 16 : block[at % 4] & 0xffffu, want = (x.u + bits) >> 16;
        wrong += ((const uint16_t *)got[1 + k].data)[e] != want;
        up += want != x.u >> 16;
      }
    ok(wrong == 0 && (v.elems < 100 || up > 0), "%s on %s: each of %lld elements by the bits of its place in the tensor, %lld up",
       t.label, device_name[i], (long long)v.elems, (long long)up);
    drop(got, n);
    tc_device_close(d);
  }
  drop(t.in, t.c.n_in);
}

/* NaN and infinity stay what they are, and 0 stays 0. */
static void states_ends(void)
{
  static const double g[] = { NAN, INFINITY, 0, -INFINITY, 1 };
  enum { N = sizeof g / sizeof *g };
  struct test t = new_test(TC_OP_MOMENTUM, "states in bf16 at the ends");
  for (int k = 0; k < 4; k++) {
    struct tc_view *x = input(&t, k < 3 ? TC_F32 : TC_BF16, k == 1 ? SCALAR : DIMS(N), NORMALISH);
    for (int64_t i = 0; i < x->elems; i++) put(x, i, k == 0 ? g[i] : k == 1);
  }
  for (int k = 0; k < 2; k++) output(&t, k ? TC_BF16 : TC_F32, DIMS(N)), t.over[k] = 2 + k;
  t.c.f[1] = 1;
  for (int i = 0; i < 2; i++) {
    struct tc_device *d = dev(device_name[i], 1);
    struct tc_view none[ARGS] = { 0 }, got[ARGS] = { 0 };
    bool same = run_on(d, &t, none, false, got);
    for (int e = 0; same && e < N; e++) same = isnan(g[e]) ? isnan(get(&got[1], e)) : get(&got[1], e) == g[e];
    ok(same, "%s on %s", t.label, device_name[i]);
    drop(got, 2);
    tc_device_close(d);
  }
  drop(t.in, 4);
}

static void states(void)
{
  static const int ops[] = { TC_OP_ADAMW, TC_OP_MOMENTUM, TC_OP_LION };
  const uint64_t seed = test_seed(false);
  for (uint64_t i = 0; i < 36; i++)
    if (chosen(ops[i % 3])) states_case(ops[i % 3], 1000 * seed + i);
  if (chosen(TC_OP_MOMENTUM)) states_ends();
}

#endif
