/* kernels_parts.h - t_kernels.c's cases of the parts that some families of models have: other activation functions, scales,
 * caps, gains with a shift, heads that turn in part, norms of all queries together and of all keys, z-loss. */
#ifndef TC_KERNELS_PARTS_H
#define TC_KERNELS_PARTS_H

#include "tests/unit/kernels/kernels_llama.h"

static void part_elements(int dtype, int out_type, int64_t rows, int64_t cols)
{
  static const struct { int op, n_in, act; float f[2]; bool in_place; } table[] = {
    { TC_OP_ACT, 1, TC_FN_GELU, { 0 }, false }, { TC_OP_ACT, 1, TC_FN_RELU2, { 0 }, false },
    { TC_OP_ACT_BWD, 2, TC_FN_GELU, { 0 }, false }, { TC_OP_ACT_BWD, 2, TC_FN_RELU2, { 0 }, false },
    { TC_OP_SCALE, 1, 0, { -0.37f }, false }, { TC_OP_SOFTCAP, 1, 0, { 0, 5 }, false },
    { TC_OP_SOFTCAP, 1, 0, { 0, 30 }, true }, { TC_OP_SOFTCAP_BWD, 2, 0, { 0, 30 }, false },
    { TC_OP_SOFTCAP_BWD, 2, 0, { 0, 7 }, true },
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    struct test t = new_test(table[i].op, "[%lld,%lld] %s -> %s, function %d, %g%s", (long long)rows, (long long)cols,
                             tc_dtype_name(dtype), tc_dtype_name(out_type), table[i].act, (double)table[i].f[1],
                             table[i].in_place ? ", in place" : "");
    for (int k = 0; k < table[i].n_in; k++) input(&t, dtype, DIMS(rows, cols), LOGITS);
    output(&t, table[i].in_place ? dtype : out_type, DIMS(rows, cols));
    if (table[i].in_place) t.over[0] = 0;
    memcpy(t.c.f, table[i].f, sizeof t.c.f);
    t.c.k[2] = table[i].act;
    check(&t);
  }
}

/* ---- values at the ends of the range, beside libm's in fp64 ---- */

enum { ENDS = 16 };
static const float end[ENDS] = { -12, -8.5f, -5, -2, -0.7f, -0.3f, -1e-3f, -1e-20f, 1e-20f, 1e-3f, 0.3f, 0.7f, 2, 6, 1e10f, NAN };

static double gelu_of(double x) { return 0.5 * x * erfc(-x * sqrt(0.5)); }
static double gelu_slope_of(double x) { return 0.5 * erfc(-x * sqrt(0.5)) + x * exp(-0.5 * x * x) / sqrt(2 * 3.14159265358979323846); }
static double relu2_of(double x) { return x < 0 ? 0 : x * x; }
static double cap_of(double x) { return 4 * tanh(x / 4); }

/* Relative errors; an element of the tail of a normal distribution has that of its exponent, x^2 / 2, or so. */
static void part_ends(int op, int act, float cap, double (*want)(double x), const char *what)
{
  struct test t = new_test(op, "%s at the ends", what);
  const int x = op == TC_OP_ACT_BWD;
  for (int k = 0; k <= x; k++) input(&t, TC_F32, DIMS(ENDS), NORMALISH);
  for (int i = 0; i < ENDS; i++) put(&t.in[0], i, 1), put(&t.in[x], i, (double)end[i]);
  output(&t, TC_F32, DIMS(ENDS));
  t.c.k[2] = act, t.c.f[1] = cap;
  struct tc_device *d = dev(T_DEVICE, 1);
  struct tc_view none[ARGS] = { 0 }, got[ARGS];
  bool good = run_on(d, &t, none, false, got);
  for (int i = 0; i < ENDS; i++) {
    const double y = get(&got[0], i), w = want((double)end[i]), square = TC_MIN((double)end[i] * (double)end[i], 200);
    const bool near = isnan(w) ? isnan(y) : fabs(y - w) <= (1e-6 + 2e-7 * (end[i] < 0 ? square : 0)) * fabs(w) + (x && end[i] > -1 ? 1e-7 : 3e-45);
    if (!near) printf("# at %g: got %.9g, want %.9g\n", (double)end[i], y, w);
    good = good && near;
  }
  ok(good, "%s: accurate in small values, at both ends, NaN", what);
  drop(got, 1);
  drop(t.in, x + 1);
  tc_device_close(d);
}

static void all_ends(void)
{
  if (!chosen(TC_OP_ACT)) return;
  part_ends(TC_OP_ACT, TC_FN_GELU, 0, gelu_of, "gelu");
  part_ends(TC_OP_ACT_BWD, TC_FN_GELU, 0, gelu_slope_of, "gelu's slope");
  part_ends(TC_OP_ACT, TC_FN_RELU2, 0, relu2_of, "relu2");
  part_ends(TC_OP_SOFTCAP, 0, 4, cap_of, "softcap");
}

/* ---- norms of all queries together, and of all keys ---- */

struct whole { int64_t N, K, G, D, all; };       /* K groups of `all` */

static struct tc_view *whole_input(struct test *t, int dtype, const struct whole *w)
{
  struct tc_view *x = input(t, dtype, DIMS(w->N, w->K, w->G + 2, w->D), NORMALISH);
  x->global[1] = w->all, x->off[1] = w->all - w->K;
  return x;
}

static void whole_output(struct test *t, int dtype, const struct whole *w)
{
  struct tc_view *y = output(t, dtype, DIMS(w->N, w->K, w->G + 2, w->D));
  y->global[1] = w->all, y->off[1] = w->all - w->K;
}

/* Sums of squares of elements around 1, and the gains. */
static void whole_sums(struct test *t, int dtype, const struct whole *w)
{
  struct tc_view *s = input(t, TC_F32, DIMS(w->N, 2), POSITIVE);
  for (int64_t i = 0; i < 2 * w->N; i++) put(s, i, get(s, i) * (double)(w->all * w->D * (i % 2 ? 1 : w->G)));
  input(t, dtype, DIMS(w->K, w->G, w->D), POSITIVE);
  input(t, dtype, DIMS(w->K, w->D), POSITIVE);
}

static void whole_norms(int dtype, struct whole w, float shift, int acc)
{
  char what[100];
  snprintf(what, sizeof what, "N%d K%d of %d G%d D%d %s shift %g", (int)w.N, (int)w.K, (int)w.all, (int)w.G, (int)w.D,
           tc_dtype_name(dtype), (double)shift);
  struct test t = new_test(TC_OP_QK_SQUARES, "%s", what);
  whole_input(&t, dtype, &w);
  output(&t, TC_F32, DIMS(w.N, 2));
  check(&t);
  t = new_test(TC_OP_QK_SCALE, "%s", what);
  whole_input(&t, dtype, &w);
  whole_sums(&t, dtype, &w);
  whole_output(&t, dtype, &w);
  t.c.f[0] = 1e-6f, t.c.f[1] = shift;
  check(&t);
  t = new_test(TC_OP_QK_SCALE_BWD, "%s acc %d", what, acc);
  for (int k = 0; k < 2; k++) whole_input(&t, dtype, &w);
  whole_sums(&t, dtype, &w);
  whole_output(&t, dtype, &w);
  output(&t, TC_F32, DIMS(w.N, 2));
  output(&t, TC_F32, DIMS(w.K, w.G, w.D));
  output(&t, TC_F32, DIMS(w.K, w.D));
  t.c.f[0] = 1e-6f, t.c.f[1] = shift, t.c.acc = (uint8_t)acc;
  t.tol = 4e-6;
  check(&t);
  t = new_test(TC_OP_QK_SQUARES_BWD, "%s%s", what, acc ? ", apart" : "");
  for (int k = 0; k < 2; k++) whole_input(&t, dtype, &w);
  input(&t, TC_F32, DIMS(w.N, 2), NORMALISH);
  whole_output(&t, dtype, &w);
  if (!acc) t.over[0] = 0;
  check(&t);
}

/* Groups [from, from + count) of x[N,K,...] by themselves; owned. */
static struct tc_view groups_of(const struct tc_view *x, int64_t from, int64_t count)
{
  const int64_t N = x->dim[0], K = x->dim[1], group = x->elems / (N * K);
  struct tc_view y = *x;
  y.dim[1] = count, y.off[1] = from, y.elems = N * count * group;
  back(&y);
  for (int64_t i = 0; i < y.elems; i++) put(&y, i, get(x, (i / (count * group) * K + from) * group + i % (count * group)));
  return y;
}

static void run_whole(struct tc_device *d, int op, struct tc_view *in, int n_in, struct tc_view *out, int n_out)
{
  struct test t = new_test(op, "blocks");
  struct tc_view none[ARGS] = { 0 };
  memcpy(t.in, in, (size_t)n_in * sizeof *in);
  memcpy(t.out, out, (size_t)n_out * sizeof *out);
  t.c.n_in = n_in, t.c.n_out = n_out, t.c.f[0] = 1e-5f, t.c.f[1] = 1;
  ok(run_on(d, &t, none, false, out), "%s runs", t.label);
}

/* A block of groups makes the numbers of the whole tensor, and its share of the sums. */
static void whole_blocks(void)
{
  enum { N = 6, K = 5, G = 2, D = 9, SPLIT = 2 };
  if (!chosen(TC_OP_QK_SCALE)) return;
  struct tc_device *d = dev(T_DEVICE, 1);
  struct test t = new_test(TC_OP_QK_SCALE, "whole");
  const struct tc_view row = tensor(TC_F32, DIMS(N, K, G + 2, D)), sums = tensor(TC_F32, DIMS(N, 2));
  input(&t, TC_F32, DIMS(N, K, G + 2, D), NORMALISH), input(&t, TC_F32, DIMS(N, K, G + 2, D), NORMALISH);
  input(&t, TC_F32, DIMS(K, G, D), POSITIVE), input(&t, TC_F32, DIMS(K, D), POSITIVE);
  struct tc_view *x = &t.in[0], *dy = &t.in[1], s[3] = { sums, sums, sums }, ds[3], y[3], dx[3];
  double worst = 0;
  run_whole(d, TC_OP_QK_SQUARES, x, 1, &s[0], 1);
  for (int b = 0; b < 3; b++) {                  /* all, then two blocks */
    const int64_t from = b == 2 ? SPLIT : 0, count = b == 0 ? K : b == 1 ? SPLIT : K - SPLIT;
    struct tc_view in[5] = { groups_of(dy, from, count), groups_of(x, from, count), s[0], t.in[2], t.in[3] }, out[4];
    in[3].dim[0] = in[4].dim[0] = count, in[3].elems = count * G * D, in[4].elems = count * D;
    in[3].data = (float *)t.in[2].data + from * G * D, in[4].data = (float *)t.in[3].data + from * D;
    y[b] = row, y[b].dim[1] = count, y[b].off[1] = from, y[b].elems = in[1].elems;
    if (b) run_whole(d, TC_OP_QK_SQUARES, &in[1], 1, &s[b], 1);
    out[0] = y[b], out[1] = sums, out[2] = in[3], out[3] = in[4];
    run_whole(d, TC_OP_QK_SCALE, &in[1], 4, &y[b], 1);
    run_whole(d, TC_OP_QK_SCALE_BWD, in, 5, out, 4);
    dx[b] = out[0], ds[b] = out[1];
    free(in[0].data), free(in[1].data), free(out[2].data), free(out[3].data);
  }
  for (int b = 1; b < 3; b++) {
    struct tc_view want[2] = { groups_of(&y[0], y[b].off[1], y[b].dim[1]), groups_of(&dx[0], y[b].off[1], y[b].dim[1]) };
    const size_t bytes = (size_t)y[b].elems * sizeof(float);
    ok(!memcmp(want[0].data, y[b].data, bytes) && !memcmp(want[1].data, dx[b].data, bytes), "a block of groups: the whole's bits");
    drop(want, 2);
  }
  for (int64_t i = 0; i < 2 * N; i++) {
    worst = fmax(worst, fabs(get(&s[1], i) + get(&s[2], i) - get(&s[0], i)) / get(&s[0], i));
    worst = fmax(worst, fabs(get(&ds[1], i) + get(&ds[2], i) - get(&ds[0], i)) / (fabs(get(&ds[0], i)) + 0.1));
  }
  ok(worst < 1e-6, "... and its share of the sums (%.1e)", worst);
  drop(t.in, 4);
  for (int b = 0; b < 3; b++) free(s[b].data), free(ds[b].data), free(y[b].data), free(dx[b].data);
  tc_device_close(d);
}

/* ---- z-loss ---- */

static void z_losses(void)
{
  struct test t = new_test(TC_OP_NLL, "N37, z");
  for (int k = 0; k < 3; k++) input(&t, TC_F32, DIMS(37), POSITIVE);
  int32_t *target = input(&t, TC_I32, DIMS(37), TOKENS)->data;
  target[3] = target[36] = -1;                   /* ignored */
  output(&t, TC_F32, DIMS(37));
  t.c.f[0] = 0.3f;
  check(&t);
  t = new_test(TC_OP_NLL_BWD, "N37, z");
  for (int k = 0; k < 2; k++) input(&t, TC_F32, DIMS(37), POSITIVE);
  target = input(&t, TC_I32, DIMS(37), TOKENS)->data;
  input(&t, TC_F32, DIMS(37), NORMALISH);
  target[0] = target[20] = -1;
  for (int k = 0; k < 2; k++) output(&t, TC_F32, DIMS(37));
  t.c.f[0] = 0.3f;
  check(&t);
}

static void parts(int dtype, int out_type)
{
  part_elements(dtype, out_type, 5, 7);
  part_elements(dtype, out_type, 13, 1801);
  if (out_type != TC_F32) return;
  shifted_rms_norms(dtype, 37, 33, 3, 1);
  shifted_rms_norms(dtype, 203, 384, 2, 1);
  shifted_rms_norms(dtype, 9, 2304, 0, -0.5f);
  shifted_rms_norms(dtype, 3, 8448, 3, 1);
  shifted_rms_norms(dtype, 3, 17408, 1, 1);
  shifted_qk_norms(dtype, 37, 2, 4, 64, 6, 1);
  shifted_qk_norms(dtype, 13, 3, 2, 30, 7, 1);
  partial_ropes(dtype, 30, 0, 10, (int64_t[]){ 2, 3, 64 }, 16, 0);
  partial_ropes(dtype, 7, 5, 10, (int64_t[]){ 3, 1, 96 }, 72, 1.25f);
  partial_ropes(dtype, 9, 3, 12, (int64_t[]){ 1, 2, 22 }, 6, 0.5f);
  partial_ropes(dtype, 9, 3, 12, (int64_t[]){ 2, 1, 20 }, 16, 0);
  partial_ropes(dtype, 64, 960, 1024, (int64_t[]){ 2, 4, 128 }, 0, 1.375f);
  gates_of(dtype, 3, 5, TC_FN_GATE_GELU_TANH);
  gates_of(dtype, 37, 1100, TC_FN_GATE_GELU_TANH);
  gates_of(dtype, 130, 256, TC_FN_GATE_GELU_TANH);
  whole_norms(dtype, (struct whole){ 3, 1, 1, 6, 1 }, 0, 0);
  whole_norms(dtype, (struct whole){ 37, 2, 3, 13, 6 }, 1, 12);
  whole_norms(dtype, (struct whole){ 201, 4, 1, 64, 4 }, 0, 15);
  whole_norms(dtype, (struct whole){ 70, 2, 4, 128, 8 }, 1, 0);
  whole_norms(dtype, (struct whole){ 5, 1, 17, 136, 1 }, 0, 1);
}

#endif
