/* t_kernels.c - one set of cases for every device and every op.
 *
 * The oracle is `ref` reading the same inputs and writing fp64. A device must agree with it to
 * a tolerance relative to |value| + the output's root mean square, must not write past its
 * outputs or its scratch, must not read scratch it did not write (it is filled with NaN), and
 * must give the same bits with 1 to 4 threads (but products, which are a library's).
 *
 *   t_kernels.t [--only NAME,...] [--not NAME,...]    # ops whose names have that in them */
#include <dlfcn.h>

#include "kernels/cpu/cpu.h"
#include "tests/unit/kernels/kernels_attention.h"
#include "tests/unit/kernels/kernels_documents.h"
#include "tests/unit/kernels/kernels_llama.h"
#include "tests/unit/kernels/kernels_muon.h"
#include "tests/unit/kernels/kernels_parts.h"
#include "tests/unit/kernels/kernels_row_order.h"
#include "tests/unit/kernels/kernels_states.h"
#include "tests/unit/kernels/t_kernels.h"

/* ---- element by element -------------------------------------------------------------- */

#ifndef T_TYPES
#define T_TYPES { TC_F32, TC_BF16 }
#endif
static const int types[] = T_TYPES;

static void elementwise(int dtype, int out_type, int64_t rows, int64_t cols)
{
  static const struct { int op, n_in, acc; float f0; int64_t k2; } table[] = {
    { TC_OP_ACT, 1, 0, 0, 0 }, { TC_OP_ACT_BWD, 2, 0, 0, 0 }, { TC_OP_ADD, 2, 0, 0, 0 },
    { TC_OP_CAST, 1, 0, 0, 0 }, { TC_OP_ACCUM, 1, 0, 0, 0 }, { TC_OP_ACCUM, 1, 1, 0, 0 },
    { TC_OP_FILL, 0, 0, -1.5f, 0 }, { TC_OP_DROPOUT, 1, 0, 0.3f, 0 }, { TC_OP_NORMAL, 0, 0, 0.02f, 0 },
    { TC_OP_NORMAL, 0, 0, 0.02f, 1 },
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    struct test t = new_test(table[i].op, "[%lld,%lld] %s -> %s%s", (long long)rows,
                             (long long)cols, tc_dtype_name(dtype), tc_dtype_name(out_type),
                             table[i].acc ? " acc" : "");
    for (int k = 0; k < table[i].n_in; k++) input(&t, dtype, DIMS(rows, cols), LOGITS);
    output(&t, out_type, DIMS(rows, cols));
    t.c.acc = (uint8_t)table[i].acc;
    t.c.f[0] = table[i].f0;
    t.c.k[0] = 9, t.c.k[2] = table[i].k2;
    check(&t);
  }
}

/* A block of a [12,10,7] tensor, whole or as rows of storage; random numbers must be those of
 * the whole tensor. */
static void positions(int op, bool storage)
{
  struct test whole = new_test(op, "whole");
  if (op == TC_OP_DROPOUT) input(&whole, TC_F32, DIMS(12, 10, 7), POSITIVE);
  output(&whole, TC_F32, DIMS(12, 10, 7));
  whole.c.f[0] = 0.4f, whole.c.k[0] = 5;
  whole.c.k[1] = op == TC_OP_NORMAL ? 7 : 0;
  struct test t = whole;
  snprintf(t.label, sizeof t.label, "%s of a block%s", tc_op_info[op].name,
           storage ? ", 3 rows of storage" : "");
  struct tc_view v = { .dtype = TC_F32, .rank = 3, .dim = { 4, 5, 7 }, .off = { 4, 5, 0 },
                       .global = { 12, 10, 7 }, .rows = -1, .elems = 140 };
  if (storage) v.row0 = 4, v.rows = 3, v.elems = 21;
  struct tc_view *src = op == TC_OP_DROPOUT ? &whole.in[0] : NULL, block = v, all[ARGS];
  if (src) {
    back(&block);
    for (int64_t i = 0; i < v.elems; i++) put(&block, i, get(src, tc_view_global(&v, i)));
    t.in[0] = block;
  }
  t.out[0] = v;
  struct tc_device *d = dev(T_DEVICE, 2);
  struct tc_view none[ARGS] = { 0 }, part[ARGS];
  bool same = run_on(d, &whole, none, false, all) && run_on(d, &t, none, false, part);
  int64_t zeros = 0;
  for (int64_t i = 0; same && i < v.elems; i++) {
    int64_t row = i / 7 + v.row0, at = (4 + row / 5) * 70 + (5 + row % 5) * 7 + i % 7;
    same = get(&part[0], i) == get(&all[0], at);
    zeros += get(&part[0], i) == 0;
  }
  ok(same, "%s: the numbers of the whole tensor", t.label);
  ok(zeros > 0 ? zeros < v.elems : storage, "%s: some are 0, some not", t.label);
  drop(all, 1);
  drop(part, 1);
  if (src) free(src->data);
  tc_device_close(d);
  check(&t);
}

static void biases(int dtype, int64_t rows, int64_t cols, int acc)
{
  struct test t = new_test(TC_OP_BIAS, "[%lld,%lld] %s", (long long)rows, (long long)cols,
                           tc_dtype_name(dtype));
  input(&t, dtype, DIMS(rows, cols), NORMALISH);
  input(&t, dtype, DIMS(cols), NORMALISH);
  output(&t, dtype, DIMS(rows, cols));
  check(&t);
  t = new_test(TC_OP_BIAS_BWD, "[%lld,%lld] %s%s", (long long)rows, (long long)cols,
               tc_dtype_name(dtype), acc ? " acc" : "");
  input(&t, dtype, DIMS(rows, cols / 3, 3), NORMALISH);
  output(&t, TC_F32, DIMS(cols / 3, 3));
  t.c.acc = (uint8_t)acc;
  check(&t);
}

/* Values at the ends of the range: infinities, NaN, subnormal results. */
static void extremes(void)
{
  static const float x[] = { -INFINITY, -1e30f, -200, -103, -88, -20, -1e-30f, 0, 1e-30f, 20, 88,
                             200, 1e10f, NAN };
  enum { N = sizeof x / sizeof *x };
  struct test t = new_test(TC_OP_SUMEXP_BWD, "at the ends");
  input(&t, TC_F32, DIMS(1, N), NORMALISH);
  memcpy(t.in[0].data, x, sizeof x);
  input(&t, TC_F32, DIMS(1), NORMALISH);
  input(&t, TC_F32, DIMS(1), NORMALISH);
  put(&t.in[1], 0, 0);
  put(&t.in[2], 0, 1);
  output(&t, TC_F32, DIMS(1, N));
  t.c.k[0] = N;
  struct tc_device *d = dev(T_DEVICE, 1);
  struct tc_view none[ARGS] = { 0 }, got[ARGS];
  bool good = run_on(d, &t, none, false, got);
  for (int i = 0; i < N; i++) {
    float y = (float)get(&got[0], i), e = expf(x[i]);
    bool near = isnan(x[i]) ? isnan(y) : y == e || fabsf(y - e) <= 3e-7f * e + 3e-45f;
    if (!near) printf("# exp(%g): got %.9g, want %.9g\n", (double)x[i], (double)y, (double)e);
    good = good && near;
  }
  ok(good, "exp at -inf, NaN, overflow and subnormals");
  drop(got, 1);
  t.c.op = TC_OP_ACT, t.c.n_in = 1;
  good = run_on(d, &t, none, false, got) && isnan(get(&got[0], N - 1))
         && get(&got[0], 12) == (double)1e10f && get(&got[0], 2) == 0 && get(&got[0], 7) == 0;
  ok(good, "gelu at both ends, 0 and NaN");
  drop(got, 1);
  drop(t.in, 3);
  tc_device_close(d);
}

/* ---- embedding and layer norm -------------------------------------------------------- */

static void embeds(int dtype, int64_t N, int64_t C, int64_t V, int64_t v0, int acc)
{
  struct test t = new_test(TC_OP_EMBED, "N%lld C%lld, block [%lld,%lld) %s", (long long)N,
                           (long long)C, (long long)v0, (long long)(v0 + V), tc_dtype_name(dtype));
  input(&t, TC_I32, DIMS(N), TOKENS);
  struct tc_view *w = input(&t, dtype, DIMS(V, C), NORMALISH);
  w->off[0] = v0, w->global[0] = 40;
  output(&t, dtype, DIMS(N, C));
  check(&t);
  t = new_test(TC_OP_EMBED_BWD, "N%lld C%lld, block [%lld,%lld) %s%s", (long long)N, (long long)C,
               (long long)v0, (long long)(v0 + V), tc_dtype_name(dtype), acc ? " acc" : "");
  input(&t, TC_I32, DIMS(N), TOKENS);
  input(&t, dtype, DIMS(N, C), NORMALISH);
  w = output(&t, acc ? dtype : TC_F32, DIMS(V, C));
  w->off[0] = v0, w->global[0] = 40;
  t.c.acc = (uint8_t)acc;
  check(&t);
}

static void pos(int dtype, int64_t N, int64_t C, int64_t T, int64_t n0, int acc)
{
  struct test t = new_test(TC_OP_POS, "N%lld C%lld T%lld from %lld %s", (long long)N,
                           (long long)C, (long long)T, (long long)n0, tc_dtype_name(dtype));
  input(&t, dtype, DIMS(N, C), NORMALISH)->off[0] = n0;
  input(&t, dtype, DIMS(T, C), NORMALISH);
  output(&t, dtype, DIMS(N, C))->off[0] = n0;
  check(&t);
  t = new_test(TC_OP_POS_BWD, "N%lld C%lld T%lld from %lld %s%s", (long long)N, (long long)C,
               (long long)T, (long long)n0, tc_dtype_name(dtype), acc ? " acc" : "");
  input(&t, dtype, DIMS(N, C), NORMALISH)->off[0] = n0;
  output(&t, TC_F32, DIMS(T, C));
  t.c.acc = (uint8_t)acc;
  check(&t);
}

static void norms(int dtype, int64_t N, int64_t C, int acc)
{
  struct test t = new_test(TC_OP_LAYERNORM, "N%lld C%lld %s", (long long)N, (long long)C,
                           tc_dtype_name(dtype));
  input(&t, dtype, DIMS(N, C), NORMALISH);
  for (int64_t i = 0; i < N * C; i++) put(&t.in[0], i, get(&t.in[0], i) + 0.5);
  input(&t, dtype, DIMS(C), POSITIVE);
  input(&t, dtype, DIMS(C), NORMALISH);
  output(&t, dtype, DIMS(N, C));
  output(&t, TC_F32, DIMS(N));
  output(&t, TC_F32, DIMS(N));
  t.c.f[0] = 1e-5f;
  if (C > 1024) t.tol = 5e-6;     /* a row's sums in fp32; compilers that don't vectorise add one by one */
  check(&t);
  t = new_test(TC_OP_LAYERNORM_BWD, "N%lld C%lld %s acc %d", (long long)N, (long long)C,
               tc_dtype_name(dtype), acc);
  input(&t, dtype, DIMS(N, C), NORMALISH);
  input(&t, dtype, DIMS(N, C), NORMALISH);
  input(&t, dtype, DIMS(C), POSITIVE);
  input(&t, TC_F32, DIMS(N), NORMALISH);
  input(&t, TC_F32, DIMS(N), POSITIVE);
  input(&t, dtype, DIMS(N, C), NORMALISH);       /* y, not the op's: for derive only */
  t.c.f[0] = 1e-5f;
  derive(&t, TC_OP_LAYERNORM, (int[]){ 1, 2, 2 }, 3, (int[]){ 5, 3, 4 }, 3);
  free(t.in[--t.c.n_in].data);
  output(&t, dtype, DIMS(N, C));
  output(&t, TC_F32, DIMS(C));
  output(&t, TC_F32, DIMS(C));
  t.c.acc = (uint8_t)acc;
  check(&t);
}

/* ---- products ------------------------------------------------------------------------ */

static void matmul(int in_type, int out_type, const int64_t mnk[3], int flags)
{
  bool ta = flags & 1, tb = flags & 2, bias = flags & 4;
  int64_t m = mnk[0], n = mnk[1], k = mnk[2];
  struct test t = new_test(TC_OP_MATMUL, "%lldx%lldx%lld %s%s%s%s %s -> %s", (long long)m,
                           (long long)n, (long long)k, ta ? "T" : "N", tb ? "T" : "N",
                           bias ? " bias" : "", flags & 8 ? " acc" : "", tc_dtype_name(in_type),
                           tc_dtype_name(out_type));
  /* Terms of a lone element must not cancel: bf16 terms may be rounded before they are added. */
  const enum fill kind = m * n == 1 ? POSITIVE : NORMALISH;
  input(&t, in_type, DIMS(ta ? k : m, ta ? m : k), kind);
  input(&t, in_type, DIMS(tb ? n : k, tb ? k : n), kind);
  if (bias) input(&t, in_type, DIMS(n), kind);
  output(&t, out_type, DIMS(m, n));
  t.before = kind;
  t.c.gemm = (struct tc_gemm){ .m = m, .n = n, .k = k, .ta = ta, .tb = tb, { 0 } };
  t.c.acc = flags >> 3 & 1;
  t.product = true;
  /* On an H200, cuBLASLt 13.1's kernels for rows that are not aligned to 16 bytes round before they add the bias. */
  if (bias && in_type == TC_BF16 && out_type == TC_BF16 && (m | n | k) % 8) t.tol = 1.0 / 128;
  check(&t);
}

/* ---- the loss head ------------------------------------------------------------------- */

/* x[N,V] is the block of the vocabulary from v0; `live` is the unpadded vocabulary. */
static void head(int dtype, int64_t N, int64_t V, int64_t v0, int64_t live)
{
  static const struct { int op; const char *args; bool matrix; } table[] = {
    { TC_OP_ROWMAX, "x", false }, { TC_OP_SUMEXP, "xm", false }, { TC_OP_PICK, "xt", false },
    { TC_OP_SUMEXP_BWD, "xmr", true }, { TC_OP_PICK_BWD, "xtr", true },
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    struct test t = new_test(table[i].op, "N%lld, columns [%lld,%lld) of %lld %s", (long long)N,
                             (long long)v0, (long long)(v0 + V), (long long)live,
                             tc_dtype_name(dtype));
    for (const char *a = table[i].args; *a; a++) {
      if (*a == 'x') input(&t, dtype, DIMS(N, V), LOGITS)->off[1] = v0;
      if (*a == 'm') input(&t, TC_F32, DIMS(N), POSITIVE);
      if (*a == 't') input(&t, TC_I32, DIMS(N), TOKENS);
      if (*a == 'r') input(&t, TC_F32, DIMS(N), NORMALISH);
    }
    if (table[i].matrix) output(&t, dtype, DIMS(N, V))->off[1] = v0;
    else output(&t, TC_F32, DIMS(N));
    if (table[i].op == TC_OP_PICK_BWD) t.over[0] = 0;
    t.c.k[0] = live;
    check(&t);
  }
}

static void losses(void)
{
  struct test t = new_test(TC_OP_NLL, "N37");
  for (int k = 0; k < 3; k++) input(&t, TC_F32, DIMS(37), POSITIVE);
  int32_t *target = input(&t, TC_I32, DIMS(37), TOKENS)->data;
  target[3] = target[36] = -1;                   /* ignored */
  output(&t, TC_F32, DIMS(37));
  check(&t);
  t = new_test(TC_OP_NLL_BWD, "N37");
  for (int k = 0; k < 2; k++) input(&t, TC_F32, DIMS(37), POSITIVE);
  target = input(&t, TC_I32, DIMS(37), TOKENS)->data;
  target[0] = target[20] = -1;
  for (int k = 0; k < 2; k++) output(&t, TC_F32, DIMS(37));
  check(&t);
  for (int acc = 0; acc < 2; acc++) {
    t = new_test(TC_OP_SUM, "3001%s", acc ? " acc" : "");
    input(&t, TC_F32, DIMS(3001), NORMALISH);
    output(&t, TC_F32, SCALAR);
    t.c.f[0] = 1.f / 3001, t.c.acc = (uint8_t)acc;
    check(&t);
  }
}

/* ---- update -------------------------------------------------------------------------- */

/* An update's gradient and scale; weights and states, of type `state`, which it changes in place. */
static void update_operands(struct test *t, int grad_type, int state, int64_t elems)
{
  const int n = tc_op_info[t->c.op].n_out;
  input(t, grad_type, DIMS(elems), NORMALISH);
  input(t, TC_F32, SCALAR, POSITIVE);
  for (int k = 0; k < n; k++) input(t, state, DIMS(elems), k < 2 ? NORMALISH : POSITIVE);
  for (int k = 0; k < n; k++) output(t, state, DIMS(elems)), t->over[k] = 2 + k;
  t->c.f[0] = elems % 2 ? 1 : 0.25f;
  t->c.f[1] = elems % 3 ? 1 : 0.5f;
  t->rt.momentum = 0.8f;
}

static const int update_ops[] = { TC_OP_ADAMW, TC_OP_SGD, TC_OP_MOMENTUM, TC_OP_LION };
enum { UPDATES = sizeof update_ops / sizeof *update_ops };

static void updates(int grad_type, int64_t elems, int64_t step)
{
  struct test t;
  for (int i = 0; i < UPDATES; i++) {
    t = new_test(update_ops[i], "%lld, step %lld, gradient %s", (long long)elems, (long long)step, tc_dtype_name(grad_type));
    update_operands(&t, grad_type, TC_F32, elems);
    put(&t.in[0], 0, 0);
    for (int k = 3; k < t.c.n_in; k++) put(&t.in[k], 0, 0);
    t.rt.step = step;
    check(&t);
  }
  t = new_test(TC_OP_SQNORM, "%lld + 3 + 20001 elements", (long long)elems);
  input(&t, grad_type, DIMS(elems), NORMALISH);
  input(&t, TC_F32, DIMS(3), NORMALISH);
  input(&t, TC_F32, DIMS(20001), NORMALISH);
  output(&t, TC_F32, SCALAR);
  check(&t);
}

/* Weights and moments in bf16, over several blocks; moments are rounded at random, to either neighbour. */
static void low_states(void)
{
  const int64_t elems = 5000;
  struct test t = new_test(TC_OP_ADAMW, "%lld, all in bf16", (long long)elems);
  update_operands(&t, TC_BF16, TC_BF16, elems);
  t.rt.step = 3, t.tol = 1.0 / 127;
  check(&t);
}

static void clips(float clip, double square, float loss_scale)
{
  struct test t = new_test(TC_OP_CLIP, "at %g, two parts of %g, loss scale %g", (double)clip, square, (double)loss_scale);
  for (int k = 0; k < 2; k++) put(input(&t, TC_F32, SCALAR, POSITIVE), 0, square);
  for (int k = 0; k < 2; k++) output(&t, TC_F32, SCALAR);
  t.rt.clip = clip;
  t.rt.loss_scale = loss_scale;
  check(&t);
}

/* One weight of 1.5 with a gradient of 0.25, by PyTorch's formulas, and Lion's paper, written out by hand; lr 1e-3, decay 0.1. */
struct by_hand { double p, m, v; };
static void adamw_by_hand(struct by_hand *x, double g, int step)
{
  x->p *= 1 - 1e-3 * 0.1;
  x->m += (g - x->m) * (1 - 0.9);
  x->v = x->v * 0.95 + g * g * (1 - 0.95);
  const double denom = sqrt(x->v) / sqrt(1 - pow(0.95, step)) + 1e-8;
  x->p -= 1e-3 / (1 - pow(0.9, step)) * (x->m / denom);
}

static void sgd_by_hand(struct by_hand *x, double g, int step)
{ x->p += step < 0 ? 0 : -1e-3 * (g + 0.1 * x->p); }

static void momentum_by_hand(struct by_hand *x, double g, int step)
{
  const double grad = g + 0.1 * x->p;
  x->m = step == 1 ? grad : 0.8 * x->m + grad;
  x->p -= 1e-3 * x->m;
}

static void lion_by_hand(struct by_hand *x, double g, int step)
{
  x->p -= 1e-3 * (copysign(1, 0.9 * x->m + 0.1 * g) + 0.1 * x->p);
  x->m = step == 1 ? 0.05 * g : 0.95 * x->m + 0.05 * g;
}

static void updates_by_hand(void)
{
  static void (*const by_hand[])(struct by_hand *, double, int) = { adamw_by_hand, sgd_by_hand, momentum_by_hand, lion_by_hand };
  struct tc_device *d = dev(T_DEVICE, 1);
  for (int i = 0; i < UPDATES; i++) {
    struct test t = new_test(update_ops[i], "by hand");
    struct by_hand x = { .p = 1.5 };
    struct tc_view none[ARGS] = { 0 }, got[ARGS];
    update_operands(&t, TC_F32, TC_F32, 1);
    for (int k = 3; k < t.c.n_in; k++) put(&t.in[k], 0, 0);
    put(&t.in[1], 0, 1), put(&t.in[2], 0, x.p);
    for (int step = 1; step <= 5; step++) {
      const double g = step == 4 ? -0.75 : 0.25;
      put(&t.in[0], 0, g);
      t.rt.step = step;
      run_on(d, &t, none, false, got);
      for (int k = 0; k < t.c.n_out; k++) put(&t.in[2 + k], 0, get(&got[k], 0));
      drop(got, t.c.n_out);
      by_hand[i](&x, g, step);
      near_f(get(&t.in[2], 0), x.p, 5e-7, "%s step %d gives the formula's weight", tc_op_info[update_ops[i]].name, step);
    }
    drop(t.in, t.c.n_in);
  }
  tc_device_close(d);
}

/* ---- devices ------------------------------------------------------------------------- */

static void devices(void)
{
  struct tc_err err = { 0 };
  struct tc_device *d = NULL;
  is_int(tc_device_open(&d, "abacus", 1, &err), TC_EUSER, "no such device: an error");
  ok(strstr(err.text, "abacus") && !d, "... that names it: %s", err.text);
  for (int i = 0; i < 2; i++) {
    const char *name = device_name[i];
    d = dev(name, 2);
    float *p = d->ops->alloc(d, 1000 * sizeof *p), q[6] = { 1, 2, 3, 4, 5, 6 }, y[6] = { 0 };
    ok(p && (uintptr_t)p % 64 == 0, "%s: memory is aligned", name);
    d->ops->copy(d, p, q, sizeof q);
    d->ops->copy(d, p + 6, p, 2 * sizeof *p);
    d->ops->copy(d, y, p + 6, 2 * sizeof *y);
    d->ops->sync(d);
    ok(y[0] == 1 && y[1] == 2, "%s: copies in, on the device, and out", name);
    tc_device_copy_rows(d, y, 3 * sizeof *y, p, 2 * sizeof *p, sizeof *p, 2);
    ok(y[0] == 1 && y[3] == 3 && y[1] == 2, "%s: copies rows", name);
    tc_device_poison(d, p, 4);
    d->ops->copy(d, y, p, 2 * sizeof *y);
    ok(isnan(y[0]) && y[1] == 2, "%s: poison is NaN", name);
    d->ops->free(d, p, 1000 * sizeof *p);
    p = tc_device_host_alloc(d, 4000);
    ok(p != NULL, "%s: staging memory", name);
    if (p) memset(p, 0, 4000);
    tc_device_host_free(d, p);
    for (int op = 0; op < TC_OPS; op++)
      if (op != TC_OP_DATA && op != TC_OP_RESHARD && !d->ops->kernel[op].run)
        ok(false, "%s: has %s", name, tc_op_info[op].name);
    if (!strcmp(name, T_DEVICE)) multiplies_bf16 = d->ops->has_bf16(d);
    printf("# %s multiplies bf16: %s\n", name, d->ops->has_bf16(d) ? "yes" : "no");
    is_int(tc_device_check(d, &err), 0, "%s: no errors", name);
    tc_device_close(d);
  }
  tc_device_close(NULL);
}

/* The global index of each element against coordinates that are counted up; the rows of storage may
 * may go on after the last one of the box. */
static void global_index(void)
{
  static const struct tc_view v[] = {
    { .rank = 0, .rows = -1, .elems = 1 },
    { .rank = 1, .dim = { 5 }, .off = { 3 }, .global = { 11 }, .rows = -1, .elems = 5 },
    { .rank = 1, .dim = { 5 }, .off = { 3 }, .global = { 11 }, .row0 = 2, .rows = 3, .elems = 3 },
    { .rank = 2, .dim = { 4, 3 }, .off = { 2, 6 }, .global = { 7, 9 }, .rows = -1, .elems = 12 },
    { .rank = 2, .dim = { 4, 3 }, .off = { 4, 0 }, .global = { 8, 3 }, .row0 = 2, .rows = 4,
        .elems = 12 },
    { .rank = 3, .dim = { 2, 3, 4 }, .off = { 1, 2, 3 }, .global = { 5, 6, 7 }, .rows = -1,
        .elems = 24 },
    { .rank = 3, .dim = { 2, 3, 4 }, .off = { 2, 0, 1 }, .global = { 4, 3, 9 }, .row0 = 4, .rows = 5,
        .elems = 20 },
  };
  for (size_t k = 0; k < sizeof v / sizeof *v; k++) {
    int64_t at[TC_DIMS] = { 0 }, wrong = 0;
    const int64_t skipped = v[k].rows >= 0 ? v[k].row0 * (v[k].rank > 1 ? v[k].dim[v[k].rank - 1] : 1) : 0;
    for (int64_t i = -skipped; i < v[k].elems; i++) {
      int64_t want = 0;
      for (int d = 0; d < v[k].rank; d++) want = want * v[k].global[d] + v[k].off[d] + at[d];
      wrong += i >= 0 && tc_view_global(&v[k], i) != want;
      for (int d = v[k].rank - 1; d >= 0 && ++at[d] == v[k].dim[d] && d > 0; d--) at[d] = 0;
    }
    ok(wrong == 0, "global index of each element, rank %d%s", v[k].rank, v[k].rows >= 0 ?
       ", rows of storage" : "");
  }
}

/* oneDNN's: with the user's scratchpad a product takes no memory but the call's scratch. */
static int n_attributes, n_scratchpads;
int dnnl_primitive_attr_create(void **attr);
int dnnl_primitive_attr_set_scratchpad_mode(void *attr, int mode);

int dnnl_primitive_attr_create(void **attr)
{
  union { void *at; int (*call)(void **); } real = { dlsym(RTLD_NEXT, "dnnl_primitive_attr_create") };
  n_attributes++;
  return real.call(attr);
}

int dnnl_primitive_attr_set_scratchpad_mode(void *attr, int mode)
{
  union { void *at; int (*call)(void *, int); } real =
    { dlsym(RTLD_NEXT, "dnnl_primitive_attr_set_scratchpad_mode") };
  n_scratchpads += mode == 1;                    /* dnnl_scratchpad_mode_user */
  return real.call(attr, mode);
}

/* What a CPU that multiplies no bf16 computes: by fp32 buffers. */
static void without_bf16(struct tc_device *d)
{
  if (!strcmp(d->ops->name, "cpu")) tc_cpu_of(d)->bf16 = false;
}

static void by_fp32(void)
{
  mixed_attention();
  printf("# without bf16 products\n");
  opened = without_bf16, multiplies_bf16 = false;
  elementwise(TC_BF16, TC_BF16, 13, 1801);
  attention(TC_BF16, 2, 65, 2, 80);
  grouped_attention(TC_BF16, 1, 130, 1, 4, 64);
  llama(TC_BF16);
  document_attention(TC_BF16);
  other_attention(TC_BF16);
  row_orders(TC_BF16);
}

int main(int argc, char **argv)
{
  static const int64_t shapes[][3] = { { 1, 1, 1 }, { 7, 5, 3 }, { 33, 65, 17 }, { 129, 40, 71 } };
  choose(argc, argv);
  devices();
  for (int a = 0; a < 2; a++) {
    for (int b = 0; b < 2; b++) {
      elementwise(types[a], types[b], 5, 7);
      elementwise(types[a], types[b], 13, 1801);
    }
    biases(types[a], 7, 9, 0);
    biases(types[a], 131, 1029, 1);
    embeds(types[a], 37, 33, 40, 0, 0);
    embeds(types[a], 101, 1030, 13, 11, 1);
    embeds(types[a], 700, 24, 3, 0, 0);          /* many tokens of one row */
    embeds(types[a], 2100, 8, 40, 0, 1);
    pos(types[a], 30, 33, 10, 0, 0);
    pos(types[a], 30, 1030, 20, 70, 1);
    norms(types[a], 3, 5, 0);
    norms(types[a], 37, 33, 7);
    norms(types[a], 203, 384, 6);
    norms(types[a], 5, 1500, 0);
    norms(types[a], 9, 2304, 7);
    norms(types[a], 3, 8448, 0);
    norms(types[a], 5, 17001, 7);
    attention(types[a], 3, 7, 2, 5);
    attention(types[a], 2, 64, 1, 32);
    attention(types[a], 1, 130, 3, 64);
    attention(types[a], 1, 300, 1, 64);
    attention(types[a], 1, 65, 2, 80);
    attention(types[a], 2, 33, 2, 96);
    attention(types[a], 1, 200, 1, 128);
    attention_sizes(types[a]);
    grouped_attention(types[a], 2, 7, 2, 2, 6);
    grouped_attention(types[a], 1, 130, 1, 4, 64);
    grouped_attention(types[a], 2, 65, 2, 3, 80);
    grouped_attention(types[a], 1, 200, 2, 2, 128);
    llama(types[a]);
    head(types[a], 5, 40, 0, 40);
    head(types[a], 67, 1100, 10, 1090);
    head(types[a], 9, 16, 32, 40);
    head(types[a], 3, 8, 40, 40);
    updates(types[a], 1, 1);
    updates(types[a], 12347, 1000);
    for (int b = 0; b < 2; b++)
      for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int flags = 0; flags < 16; flags++)
          if (types[a] == TC_BF16 || types[b] == TC_F32)
            matmul(types[a], types[b], shapes[i], flags);
  }
  for (int storage = 0; storage < 2; storage++) {
    positions(TC_OP_DROPOUT, storage);
    positions(TC_OP_NORMAL, storage);
  }
  ok(n_scratchpads == n_attributes && (n_attributes > 0 || !chosen(TC_OP_MATMUL) || strcmp(T_DEVICE, "cpu")),
     "every product's scratchpad is in the call's scratch, of %d", n_attributes);
  global_index();
  extremes();
  losses();
  clips(1, 0.1, 0), clips(1, 50, 0), clips(0, 50, 0);
  clips(1, 8, 2.5f), clips(1, 0.01, 2.5f), clips(0, 8, 2.5f);
  updates_by_hand();
  muon_cases();
  states();
  if (!strcmp(T_DEVICE, "cpu")) low_states();
  for (size_t a = 0; a < sizeof types / sizeof *types; a++) {
    wide_rows(types[a]);
    for (size_t i = 0; i < sizeof per_lane / sizeof *per_lane; i++) norms(types[a], 5, per_lane[i], 0);
  }
  for (size_t a = 0; a < sizeof types / sizeof *types; a++) document_attention(types[a]);
  for (size_t a = 0; a < sizeof types / sizeof *types; a++) other_attention(types[a]);
  for (size_t a = 0; a < sizeof types / sizeof *types; a++) row_orders(types[a]);
  for (int k = 0; k < 4; k++) parts(types[k / 2], types[k % 2]);
  whole_blocks();
  z_losses();
  all_ends();
  if (!strcmp(T_DEVICE, "cpu") && multiplies_bf16) by_fp32();
  return done_testing();
}
