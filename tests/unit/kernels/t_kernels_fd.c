/* t_kernels_fd.c - `ref` in fp64: each backward op against central differences of its forward.
 *
 * The loss is a fixed random weighting of all outputs that have a gradient; the analytic
 * gradient of every input must agree with (L(x + h) - L(x - h)) / 2h to 1e-6 of its norm. */
#include "tests/unit/kernels/views.h"

enum { ARGS = 6 };
static struct tc_device *ref;
static struct tc_runtime rt = { .seed = 1, .step = 1 };

/* An owned tensor, fp64 in (-1, 1) or tokens in [0, 9). */
static struct tc_view drawn(int dtype, const int64_t *dim)
{
  struct tc_view v = owned(dtype, dim);
  for (int64_t i = 0; i < v.elems; i++) put(&v, i, dtype == TC_I32 ? 9 * uniform() : 2 * uniform() - 1);
  return v;
}
#define F(...) drawn(TC_F64, DIMS(__VA_ARGS__))
#define TOKENS(n) drawn(TC_I32, DIMS(n))

static double *data(const struct tc_view *v)
{
  return v->data;
}

static void run(int op, struct tc_view *in, int n_in, struct tc_view *out, int n_out,
                const struct tc_call *like)
{
  struct tc_call c = *like;
  c.op = op, c.in = in, c.n_in = n_in, c.out = out, c.n_out = n_out, c.rt = &rt;
  ok(ref->ops->kernel[op].run(ref, &c) == 0, "%s runs", tc_op_info[op].name);
}

/* A forward call, quiet, and its loss: sum of weight[k] * out[k]; weight[k].data NULL: none. */
struct forward {
  struct tc_call c;
  struct tc_view in[ARGS], out[ARGS], weight[ARGS];
};

static double loss(struct forward *f)
{
  double sum = 0;
  f->c.in = f->in, f->c.out = f->out, f->c.rt = &rt;
  ref->ops->kernel[f->c.op].run(ref, &f->c);
  for (int k = 0; k < f->c.n_out; k++)
    for (int64_t i = 0; f->weight[k].data && i < f->out[k].elems; i++)
      sum += data(&f->weight[k])[i] * data(&f->out[k])[i];
  return sum;
}

/* `got` against differences of input k of the forward call. */
static void compare(struct forward *f, int k, const struct tc_view *got, const char *what)
{
  const double h = 1e-4;
  double diff = 0, norm = 0, *x = data(&f->in[k]);
  for (int64_t i = 0; i < f->in[k].elems; i++) {
    /* Five points: the error is of order h^4. */
    double keep = x[i], l[4];
    static const double step[4] = { -2, -1, 1, 2 };
    for (int s = 0; s < 4; s++) {
      x[i] = keep + step[s] * h;
      l[s] = loss(f);
    }
    x[i] = keep;
    double want = (l[0] - 8 * l[1] + 8 * l[2] - l[3]) / (12 * h), e = data(got)[i] - want;
    diff += e * e;
    norm += want * want;
  }
  loss(f);
  ok(norm > 0 && sqrt(diff) <= 1e-6 * sqrt(norm), "%s: off by %.1e of its norm %.3g", what,
     sqrt(diff / norm), sqrt(norm));
}

static void done(struct forward *f, struct tc_view *grad, int n)
{
  for (int k = 0; k < ARGS; k++) {
    free(f->in[k].data);
    free(f->out[k].data);
    free(f->weight[k].data);
  }
  for (int k = 0; k < n; k++) free(grad[k].data);
}

static void test_layernorm(int64_t N, int64_t C)
{
  struct forward f = { .c = { .op = TC_OP_LAYERNORM, .n_in = 3, .n_out = 3, .f = { 1e-5f } } };
  f.in[0] = F(N, C), f.in[1] = F(C), f.in[2] = F(C);
  f.out[0] = F(N, C), f.out[1] = F(N), f.out[2] = F(N), f.weight[0] = F(N, C);
  loss(&f);
  struct tc_view grad[] = { F(N, C), F(C), F(C) };
  run(TC_OP_LAYERNORM_BWD, (struct tc_view[]){ f.weight[0], f.in[0], f.in[1], f.out[1],
      f.out[2] }, 5, grad, 3, &f.c);
  static const char *const what[] = { "layernorm dx", "layernorm dg", "layernorm db" };
  for (int k = 0; k < 3; k++) compare(&f, k, &grad[k], what[k]);
  done(&f, grad, 3);
}

/* G queries share a key. window, scale, cap: 0: not given. */
static void test_attention(int64_t B, int64_t T, int64_t K, int64_t G, int64_t D, int64_t window, float scale, float cap)
{
  struct forward f = { .c = { .op = TC_OP_ATTN, .n_in = 1, .n_out = 2, .f = { scale, cap }, .k = { T, 0, window } } };
  char what[80];
  f.in[0] = F(B * T, K, G + 2, D), f.out[0] = F(B * T, K * G, D), f.out[1] = F(B * T, K * G);
  f.weight[0] = F(B * T, K * G, D);
  loss(&f);
  struct tc_view grad = F(B * T, K, G + 2, D);
  run(TC_OP_ATTN_BWD, (struct tc_view[]){ f.weight[0], f.in[0], f.out[0], f.out[1] }, 4, &grad,
      1, &f.c);
  snprintf(what, sizeof what, "attention dqkv, window %d, scale %g, cap %g", (int)window, (double)scale, (double)cap);
  compare(&f, 0, &grad, what);
  done(&f, &grad, 1);
}

static void test_elementwise(void)
{
  static const char *const of[] = { "gelu by tanh dx", "gelu dx", "relu2 dx" };
  for (int act = TC_FN_GELU_TANH; act <= TC_FN_RELU2; act++) {
    struct forward f = { .c = { .op = TC_OP_ACT, .n_in = 1, .n_out = 1, .k = { 0, 0, act } } };
    f.in[0] = F(4, 9), f.out[0] = F(4, 9), f.weight[0] = F(4, 9);
    for (int i = 0; i < 36; i++) data(&f.in[0])[i] *= 5;
    struct tc_view grad = F(4, 9);
    run(TC_OP_ACT_BWD, (struct tc_view[]){ f.weight[0], f.in[0] }, 2, &grad, 1, &f.c);
    compare(&f, 0, &grad, of[act]);
    done(&f, &grad, 1);
  }

  struct forward f = { .c = { .op = TC_OP_SOFTCAP, .n_in = 1, .n_out = 1, .f = { 0, 2 } } };
  f.in[0] = F(4, 9), f.out[0] = F(4, 9), f.weight[0] = F(4, 9);
  for (int i = 0; i < 36; i++) data(&f.in[0])[i] *= 5;
  loss(&f);
  struct tc_view grad = F(4, 9);
  run(TC_OP_SOFTCAP_BWD, (struct tc_view[]){ f.weight[0], f.out[0] }, 2, &grad, 1, &f.c);
  compare(&f, 0, &grad, "softcap dx");
  done(&f, &grad, 1);

  f = (struct forward){ .c = { .op = TC_OP_SCALE, .n_in = 1, .n_out = 1, .f = { -2.5f } } };
  f.in[0] = F(4, 9), f.out[0] = F(4, 9), f.weight[0] = F(4, 9);
  grad = F(4, 9);
  run(TC_OP_SCALE, &f.weight[0], 1, &grad, 1, &f.c);
  compare(&f, 0, &grad, "scale dx");
  done(&f, &grad, 1);

  f = (struct forward){ .c = { .op = TC_OP_BIAS, .n_in = 2, .n_out = 1 } };
  f.in[0] = F(5, 2, 3), f.in[1] = F(2, 3), f.out[0] = F(5, 2, 3), f.weight[0] = F(5, 2, 3);
  grad = F(2, 3);
  run(TC_OP_BIAS_BWD, &f.weight[0], 1, &grad, 1, &f.c);
  compare(&f, 1, &grad, "bias db");
  done(&f, &grad, 1);
}

static void test_embedding(void)
{
  struct forward f = { .c = { .op = TC_OP_EMBED, .n_in = 2, .n_out = 1 } };
  f.in[0] = TOKENS(11), f.in[1] = F(4, 3), f.out[0] = F(11, 3), f.weight[0] = F(11, 3);
  f.in[1].off[0] = 3, f.in[1].global[0] = 9;
  struct tc_view grad = F(4, 3);
  grad.off[0] = 3, grad.global[0] = 9;
  run(TC_OP_EMBED_BWD, (struct tc_view[]){ f.in[0], f.weight[0] }, 2, &grad, 1, &f.c);
  compare(&f, 1, &grad, "embed dw, a block of the vocabulary");
  done(&f, &grad, 1);

  f = (struct forward){ .c = { .op = TC_OP_POS, .n_in = 2, .n_out = 1 } };
  f.in[0] = F(9, 3), f.in[1] = F(4, 3), f.out[0] = F(9, 3), f.weight[0] = F(9, 3);
  f.in[0].off[0] = f.weight[0].off[0] = 6;
  grad = F(4, 3);
  run(TC_OP_POS_BWD, &f.weight[0], 1, &grad, 1, &f.c);
  compare(&f, 1, &grad, "pos dw");
  done(&f, &grad, 1);
}

/* What Llama's kin have, with the parts of some of them: gains with a shift, a gate by GELU, heads that turn in part. */
static void test_llama(int act, float shift, int64_t rotary)
{
  enum { N = 5, K = 2, G = 3, D = 6, T = 5 };
  static const float freq[] = { 1, 0.3f, 0.1f };
  struct forward f = { .c = { .op = TC_OP_RMSNORM, .n_in = 2, .n_out = 2, .f = { 1e-3f, shift } } };
  f.in[0] = F(N, D), f.in[1] = F(D), f.out[0] = F(N, D), f.out[1] = F(N), f.weight[0] = F(N, D);
  loss(&f);
  struct tc_view grad[3] = { F(N, D), F(D) };
  run(TC_OP_RMSNORM_BWD, (struct tc_view[]){ f.weight[0], f.in[0], f.in[1], f.out[1] }, 4, grad, 2, &f.c);
  for (int k = 0; k < 2; k++) compare(&f, k, &grad[k], k ? "rmsnorm dg" : "rmsnorm dx");
  done(&f, grad, 2);

  f = (struct forward){ .c = { .op = TC_OP_QKNORM, .n_in = 3, .n_out = 2, .f = { 1e-3f, shift } } };
  f.in[0] = F(N, K, G + 2, D), f.in[1] = F(D), f.in[2] = F(D);
  f.out[0] = F(N, K, G + 2, D), f.out[1] = F(N, K, G + 1), f.weight[0] = F(N, K, G + 2, D);
  loss(&f);
  grad[0] = F(N, K, G + 2, D), grad[1] = F(D), grad[2] = F(D);
  run(TC_OP_QKNORM_BWD, (struct tc_view[]){ f.weight[0], f.in[0], f.in[1], f.in[2], f.out[1] }, 5, grad, 3, &f.c);
  static const char *const of[] = { "qknorm dx", "qknorm dg of queries", "qknorm dg of keys" };
  for (int k = 0; k < 3; k++) compare(&f, k, &grad[k], of[k]);
  done(&f, grad, 3);

  f = (struct forward){ .c = { .op = TC_OP_GLU, .n_in = 1, .n_out = 1, .k = { 0, 0, act } } };
  f.in[0] = F(N, 2, D), f.out[0] = F(N, D), f.weight[0] = F(N, D);
  for (int i = 0; i < N * 2 * D; i++) data(&f.in[0])[i] *= 4;
  grad[0] = F(N, 2, D);
  run(TC_OP_GLU_BWD, (struct tc_view[]){ f.weight[0], f.in[0] }, 2, grad, 1, &f.c);
  compare(&f, 0, &grad[0], act ? "gate by gelu dx" : "gate by silu dx");
  done(&f, grad, 1);

  f = (struct forward){ .c = { .op = TC_OP_ROPE, .n_in = 1, .n_out = 1, .f = { rotary ? 1.5f : 0 }, .k = { T, 0, rotary },
                               .freq = freq } };
  f.in[0] = F(N, K, G + 2, D), f.out[0] = F(N, K, G + 2, D), f.weight[0] = F(N, K, G + 2, D), grad[0] = F(N, K, G + 2, D);
  run(TC_OP_ROPE_BWD, &f.weight[0], 1, grad, 1, &f.c);
  compare(&f, 0, &grad[0], "rope dx");
  done(&f, grad, 1);
}

/* Norms of all queries and of all keys, of a block of half of the groups: each op, then both together, where the sums are of
 * the block itself. */
static void test_whole_norms(void)
{
  enum { N = 3, K = 2, G = 2, D = 3 };
  static const char *const of[] = { "qk_scale dx", "qk_scale ds", "qk_scale dg of queries", "qk_scale dg of keys" };
  const struct tc_call square = { .op = TC_OP_QK_SQUARES, .n_in = 1, .n_out = 1 };
  struct forward f = { .c = square };
  f.in[0] = F(N, K, G + 2, D), f.out[0] = F(N, 2), f.weight[0] = F(N, 2);
  struct tc_view none = F(N, K, G + 2, D), grad[4];
  memset(none.data, 0, (size_t)none.elems * 8);
  run(TC_OP_QK_SQUARES_BWD, (struct tc_view[]){ none, f.in[0], f.weight[0] }, 3, &none, 1, &square);
  compare(&f, 0, &none, "qk_squares dx");
  done(&f, &none, 1);

  f = (struct forward){ .c = { .op = TC_OP_QK_SCALE, .n_in = 4, .n_out = 1, .f = { 1e-3f, 0.5f } } };
  f.in[0] = F(N, K, G + 2, D), f.in[1] = F(N, 2), f.in[2] = F(K, G, D), f.in[3] = F(K, D);
  f.out[0] = F(N, K, G + 2, D), f.weight[0] = F(N, K, G + 2, D);
  f.in[0].global[1] = 2 * K;
  for (int i = 0; i < 2 * N; i++) data(&f.in[1])[i] = 4 + data(&f.in[1])[i];
  grad[0] = F(N, K, G + 2, D), grad[1] = F(N, 2), grad[2] = F(K, G, D), grad[3] = F(K, D);
  run(TC_OP_QK_SCALE_BWD, (struct tc_view[]){ f.weight[0], f.in[0], f.in[1], f.in[2], f.in[3] }, 5, grad, 4, &f.c);
  for (int k = 0; k < 4; k++) compare(&f, k, &grad[k], of[k]);

  struct tc_view *x = &f.in[0], *s = &f.in[1], both = F(N, K, G + 2, D);
  double diff = 0, norm = 0;
  run(TC_OP_QK_SQUARES, x, 1, s, 1, &square);
  run(TC_OP_QK_SCALE_BWD, (struct tc_view[]){ f.weight[0], *x, *s, f.in[2], f.in[3] }, 5, grad, 4, &f.c);
  run(TC_OP_QK_SQUARES_BWD, (struct tc_view[]){ grad[0], *x, grad[1] }, 3, &both, 1, &square);
  for (int64_t i = 0; i < x->elems; i++) {
    const double keep = data(x)[i], h = 1e-5;
    double l[2];
    for (int side = 0; side < 2; side++) {
      data(x)[i] = keep + (side ? h : -h);
      run(TC_OP_QK_SQUARES, x, 1, s, 1, &square);
      l[side] = loss(&f);
    }
    data(x)[i] = keep;
    const double want = (l[1] - l[0]) / (2 * h), e = data(&both)[i] - want;
    diff += e * e, norm += want * want;
  }
  ok(norm > 0 && sqrt(diff) <= 1e-6 * sqrt(norm), "qk_squares and qk_scale dx: off by %.1e", sqrt(diff / norm));
  free(both.data);
  done(&f, grad, 4);
}

/* dA = dC B^T and dB = A^T dC, as products of the stored matrices. */
static void test_matmul(bool ta, bool tb)
{
  const int64_t m = 4, n = 5, k = 3;
  struct forward f = { .c = { .op = TC_OP_MATMUL, .n_in = 3, .n_out = 1,
                              .gemm = { m, n, k, ta, tb } } };
  f.in[0] = ta ? F(k, m) : F(m, k), f.in[1] = tb ? F(n, k) : F(k, n), f.in[2] = F(n);
  f.out[0] = F(m, n), f.weight[0] = F(m, n);
  struct tc_view da = F(m * k), db = F(k * n), dc = f.weight[0], dbias = F(n);
  struct tc_call c = { 0 };
  if (ta) c.gemm = (struct tc_gemm){ k, m, n, tb, true, { 0 } };
  else c.gemm = (struct tc_gemm){ m, k, n, false, !tb, { 0 } };
  run(TC_OP_MATMUL, ta ? (struct tc_view[]){ f.in[1], dc } : (struct tc_view[]){ dc, f.in[1] }, 2,
      &da, 1, &c);
  if (tb) c.gemm = (struct tc_gemm){ n, k, m, true, ta, { 0 } };
  else c.gemm = (struct tc_gemm){ k, n, m, !ta, false, { 0 } };
  run(TC_OP_MATMUL, tb ? (struct tc_view[]){ dc, f.in[0] } : (struct tc_view[]){ f.in[0], dc }, 2,
      &db, 1, &c);
  run(TC_OP_BIAS_BWD, &dc, 1, &dbias, 1, &c);
  char what[40];
  snprintf(what, sizeof what, "matmul %c%c dA", ta ? 'T' : 'N', tb ? 'T' : 'N');
  compare(&f, 0, &da, what);
  what[strlen(what) - 1] = 'B';
  compare(&f, 1, &db, what);
  compare(&f, 2, &dbias, "matmul dbias");
  done(&f, (struct tc_view[]){ da, db, dbias }, 3);
}

/* The loss head, op by op, then as a whole: d loss / d x = (softmax - onehot) dl. */
static void test_head(void)
{
  const int64_t N = 3, V = 9;
  struct forward f = { .c = { .op = TC_OP_SUMEXP, .n_in = 2, .n_out = 1, .k = { V - 2 } } };
  f.in[0] = F(N, V), f.in[1] = F(N), f.out[0] = F(N), f.weight[0] = F(N);
  struct tc_view grad = F(N, V);
  run(TC_OP_SUMEXP_BWD, (struct tc_view[]){ f.in[0], f.in[1], f.weight[0] }, 3, &grad, 1, &f.c);
  compare(&f, 0, &grad, "sumexp dx, two columns of padding");
  done(&f, &grad, 1);

  f = (struct forward){ .c = { .op = TC_OP_PICK, .n_in = 2, .n_out = 1 } };
  f.in[0] = F(N, V), f.in[1] = TOKENS(N), f.out[0] = F(N), f.weight[0] = F(N);
  grad = F(N, V);
  memset(grad.data, 0, (size_t)(N * V) * 8);
  run(TC_OP_PICK_BWD, (struct tc_view[]){ grad, f.in[1], f.weight[0] }, 3, &grad, 1, &f.c);
  compare(&f, 0, &grad, "pick dx");
  done(&f, &grad, 1);

  for (int z = 0; z < 2; z++) {
    f = (struct forward){ .c = { .op = TC_OP_NLL, .n_in = 4, .n_out = 1, .f = { z ? 0.2f : 0 } } };
    f.in[0] = F(N), f.in[1] = F(N), f.in[2] = F(N), f.in[3] = TOKENS(N), f.out[0] = F(N), f.weight[0] = F(N);
    for (int64_t i = 0; i < N; i++) data(&f.in[1])[i] += 1.5;
    ((int32_t *)f.in[3].data)[1] = -1;           /* ignored: no loss, no gradient */
    struct tc_view two[] = { F(N), F(N) };
    run(TC_OP_NLL_BWD, (struct tc_view[]){ f.weight[0], f.in[1], f.in[3], f.in[0] }, 3 + z, two, 2, &f.c);
    compare(&f, 1, &two[0], z ? "nll with z ds" : "nll ds");
    compare(&f, 2, &two[1], "nll dp");
    ok(data(&f.out[0])[1] == 0 && data(&f.out[0])[0] != 0, "nll of an ignored target is 0");
    done(&f, two, 2);
  }
}

/* rowmax, sumexp, pick, nll, sum: the loss of logits x; statistics in out[0..3]. */
static double whole_head(const struct tc_view *x, const struct tc_view *target,
                         struct tc_view *s, float f0, float z)
{
  struct tc_call c = { .k = { x->dim[1] }, .rt = &rt };
  static const int ops[] = { TC_OP_ROWMAX, TC_OP_SUMEXP, TC_OP_PICK, TC_OP_NLL, TC_OP_SUM };
  struct tc_view in[5][4] = { { *x }, { *x, s[0] }, { *x, *target }, { s[0], s[1], s[2], *target },
                              { s[3] } };
  for (int i = 0; i < 5; i++) {
    c.op = ops[i], c.in = in[i], c.out = &s[i], c.f[0] = ops[i] == TC_OP_NLL ? z : f0;
    ref->ops->kernel[ops[i]].run(ref, &c);
  }
  return data(&s[4])[0];
}

static void test_whole_head(float z)
{
  enum { N = 4, V = 9 };
  struct tc_view x = F(N, V), target = TOKENS(N), s[5] = { F(N), F(N), F(N), F(N), F(1) };
  struct tc_view dl = F(N), ds = F(N), dp = F(N), dx = F(N, V);
  const float f0 = 1.f / N;
  const double h = 1e-5;
  for (int i = 0; i < N * V; i++) data(&x)[i] *= 4;
  whole_head(&x, &target, s, f0, z);
  struct tc_call c = { .k = { V }, .f = { f0 }, .rt = &rt };
  run(TC_OP_FILL, NULL, 0, &dl, 1, &c);
  c.f[0] = z;
  run(TC_OP_NLL_BWD, (struct tc_view[]){ dl, s[1], target, s[0] }, z > 0 ? 4 : 3, (struct tc_view[]){ ds, dp }, 2, &c);
  run(TC_OP_SUMEXP_BWD, (struct tc_view[]){ x, s[0], ds }, 3, &dx, 1, &c);
  run(TC_OP_PICK_BWD, (struct tc_view[]){ dx, target, dp }, 3, &dx, 1, &c);
  double diff = 0, norm = 0;
  for (int i = 0; i < N * V; i++) {
    double keep = data(&x)[i];
    data(&x)[i] = keep + h;
    double up = whole_head(&x, &target, s, f0, z);
    data(&x)[i] = keep - h;
    double want = (up - whole_head(&x, &target, s, f0, z)) / (2 * h), e = data(&dx)[i] - want;
    data(&x)[i] = keep;
    diff += e * e, norm += want * want;
  }
  ok(norm > 0 && sqrt(diff) <= 1e-6 * sqrt(norm), "head dx through all its ops: off by %.1e",
     sqrt(diff / norm));
  struct tc_view all[] = { x, target, s[0], s[1], s[2], s[3], s[4], dl, ds, dp, dx };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i].data);
}

int main(void)
{
  struct tc_err err = { 0 };
  if (tc_device_open(&ref, "ref", 1, &err) < 0) {
    printf("Bail out! %s\n", err.text);
    return 1;
  }
  test_layernorm(4, 7);
  test_layernorm(3, 2);
  test_attention(2, 5, 2, 1, 3, 0, 0, 0);
  test_attention(1, 7, 1, 1, 8, 0, 0, 0);
  test_attention(1, 9, 1, 2, 4, 3, 0, 0);
  test_attention(2, 6, 1, 1, 4, 0, 1.5f, 0);
  test_attention(1, 7, 1, 2, 4, 0, 0, 0.5f);
  test_attention(2, 9, 2, 2, 5, 4, 1.25f, 0.75f);
  test_elementwise();
  test_embedding();
  for (int i = 0; i < 4; i++) test_matmul(i & 1, i >> 1);
  test_head();
  test_whole_head(0);
  test_whole_head(0.1f);
  test_llama(TC_FN_GATE_SILU, 0, 0);
  test_llama(TC_FN_GATE_GELU_TANH, 1, 4);
  test_whole_norms();
  tc_device_close(ref);
  return done_testing();
}
