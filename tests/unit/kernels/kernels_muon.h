/* kernels_muon.h - t_kernels.c's cases of Muon's update: shapes of all kinds of weights on each device, and singular values by
 * hand. */
#ifndef TC_KERNELS_MUON_H
#define TC_KERNELS_MUON_H

#include "kernels/muon.h"
#include "tests/unit/kernels/t_kernels.h"

#include <jansson.h>
#include <stdlib.h>

/* A weight's shape, and which of its dimensions are rows, or hold several matrices. */
struct muon_shape { int64_t dim[4]; int rank, outputs, cut; };

static struct test muon_case(const struct muon_shape *s, int grad, int state, int products, int scale)
{
  struct test t = new_test(TC_OP_MUON, "[%lld,%lld,%lld,%lld], %d outputs, cut %d, gradient %s, state %s, products %s, scale %d",
                           (long long)s->dim[0], (long long)s->dim[1], (long long)s->dim[2], (long long)s->dim[3], s->outputs,
                           s->cut, tc_dtype_name(grad), tc_dtype_name(state), tc_dtype_name(products), scale);
  int64_t dim[TC_DIMS + 1] = { 0 }, room = 0;
  memcpy(dim, s->dim, (size_t)s->rank * sizeof *dim);
  dim[s->rank] = -1;
  input(&t, grad, dim, NORMALISH);
  put(input(&t, TC_F32, SCALAR, POSITIVE), 0, 0.5);
  for (int k = 0; k < 2; k++) input(&t, k ? state : TC_F32, dim, NORMALISH);
  for (int k = 0; k < 2; k++) output(&t, k ? state : TC_F32, dim), t.over[k] = 2 + k;
  for (int i = 0; i < tc_matrices(dim, s->cut); i++) {
    const struct tc_matrix x = tc_matrix_of(dim, s->rank, s->outputs, s->cut, i);
    room = TC_MAX(room, tc_matrix_room(&x));
  }
  output(&t, products, DIMS(room));
  t.c.f[0] = 0.25f, t.c.f[1] = 0.5f;
  t.c.k[0] = 77, t.c.k[1] = s->outputs, t.c.k[2] = s->cut;
  t.rt.muon_momentum = 0.9f, t.rt.muon_scale = scale, t.rt.lr = 0.1f;
  /* Five steps enlarge what is small by up to 480, and the rounding of its input with it. */
  t.tol = products == TC_BF16 || state == TC_BF16 ? 0.2 : 2e-4;
  t.product = true;
  t.results = 2;
  return t;
}

static void muon_shapes(void)
{
  static const struct muon_shape shape[] = {
    { { 8, 24 }, 2, 1, 0 }, { { 40, 16 }, 2, 1, 0 }, { { 16, 16 }, 2, 1, 0 }, { { 1, 9 }, 2, 1, 0 }, { { 7, 1 }, 2, 1, 0 },
    { { 2, 24, 16 }, 3, 2, 1 }, { { 2, 3, 20 }, 3, 2, 1 },             /* gate and up */
    { { 4, 3, 4, 16 }, 4, 3, 2 }, { { 2, 6, 8, 24 }, 4, 3, 2 },        /* queries, key, value of groups of 1 and of 4 */
    { { 16, 4, 4 }, 3, 1, 0 }, { { 24, 2, 4, 4 }, 4, 1, 0 },           /* projections */
    { { 130, 1100 }, 2, 1, 0 }, { { 300, 260 }, 2, 1, 0 }, { { 260, 300 }, 2, 1, 0 }, { { 260, 290 }, 2, 1, 0 },
  };
  for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
    const int products = i % 3 == 2 ? TC_BF16 : TC_F32;
    struct test t = muon_case(&shape[i], i % 2 ? TC_BF16 : TC_F32, i % 4 ? TC_F32 : TC_BF16, products, (int)(i % 3));
    check(&t);
  }
}

/* A step does to each singular value what the polynomial says: of diagonal matrices these are the elements. */
static void muon_by_hand(void)
{
  enum { N = 3, M = 5 };
  static const struct muon_shape shape = { { N, M }, 2, 1, 0 };
  static const double g[N] = { 3, -0.5, 1e-3 };
  struct tc_device *d = dev(T_DEVICE, 1);
  struct test t = muon_case(&shape, TC_F32, TC_F32, TC_F32, TC_MUON_ORIGINAL);
  struct tc_view none[ARGS] = { 0 }, got[ARGS];
  for (int k = 0; k < 4; k += k ? 1 : 2)
    for (int64_t i = 0; i < t.in[k].elems; i++) put(&t.in[k], i, 0);
  double norm = 0, worst = 0, wrong = 0;
  for (int i = 0; i < N; i++) put(&t.in[0], i * M + i, 2 * g[i]), norm += g[i] * g[i];   /* times the scale, 0.5 */
  run_on(d, &t, none, false, got);
  for (int64_t i = 0; i < N * M; i++) {
    double x = i / M == i % M ? g[i / M] / sqrt(norm) : 0;
    const double m = i / M == i % M ? (1 - (double)0.9f) * g[i / M] : 0;
    for (int k = 0; k < 5; k++) x = 3.4445 * x - 4.7750 * pow(x, 3) + 2.0315 * pow(x, 5);
    worst = fmax(worst, fabs(get(&got[0], i) + (double)0.1f * 0.5 * x));
    wrong = fmax(wrong, fabs(get(&got[1], i) - m));
  }
  ok(worst < 2e-6 && wrong < 1e-7, "muon: singular values by hand: off by %.2g, the average by %.2g", worst, wrong);
  drop(got, t.c.n_out);
  drop(t.in, t.c.n_in);
  tc_device_close(d);
}

/* An update with products in bf16 beside PyTorch's (tests/oracle/torch_muon.py). */
static void muon_beside_torch(void)
{
  char path[400];
  snprintf(path, sizeof path, "%s/tests/oracle/muon.json", getenv("srcdir") ? getenv("srcdir") : ".");
  json_t *file = json_load_file(path, 0, NULL), *want;
  size_t i, k;
  json_array_foreach(json_object_get(file, "bf16"), i, want) {
    const json_t *dim = json_object_get(want, "dim"), *at = json_object_get(want, "at"), *value = json_object_get(want, "value");
    const int64_t n = json_integer_value(json_array_get(dim, 0)), m = json_integer_value(json_array_get(dim, 1));
    const struct muon_shape shape = { { n, m }, 2, 1, 0 };
    struct tc_device *d = dev(T_DEVICE, 1);
    struct test t = muon_case(&shape, TC_F32, TC_F32, TC_BF16, TC_MUON_MATCH_RMS_ADAMW);
    struct tc_view none[ARGS] = { 0 }, got[ARGS];
    double off = 0, all = 0;
    put(&t.in[1], 0, 1);
    t.c.f[0] = 0, t.c.f[1] = 1, t.rt.lr = 1, t.rt.muon_momentum = 0.95f;
    for (int64_t e = 0; e < n * m; e++) {
      uint32_t r[4];
      tc_philox(r, (uint64_t)n, (uint64_t)e, (uint64_t)m);
      put(&t.in[0], e, r[0] / 4294967296.0 - 0.5), put(&t.in[2], e, 0), put(&t.in[3], e, 0);
    }
    run_on(d, &t, none, false, got);
    for (k = 0; k < json_array_size(at); k++) {
      const double x = json_real_value(json_array_get(value, k));
      off += pow(get(&got[0], json_integer_value(json_array_get(at, k))) - x, 2), all += x * x;
    }
    ok(sqrt(off / all) < 2e-2, "muon: %lld x %lld with products in bf16: off PyTorch's by %.2g", (long long)n, (long long)m,
       sqrt(off / all));
    drop(got, t.c.n_out);
    drop(t.in, t.c.n_in);
    tc_device_close(d);
  }
  ok(json_array_size(json_object_get(file, "bf16")) > 2, "muon: PyTorch's updates");
  json_decref(file);
}

static void muon_cases(void)
{
  muon_shapes();
  if (!chosen(TC_OP_MUON)) return;
  muon_by_hand();
  muon_beside_torch();
}

#endif
