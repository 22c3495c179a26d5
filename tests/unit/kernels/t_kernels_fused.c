/* t_kernels_fused.c - calls that the CUDA device does as one, beside the same calls one by one:
 * products are compared with ref's, updates have to be the same bits as one by one; nothing else of
 * the memory may change. Copies beside the kernels, too. See scene.h; cross-entropy has a test of its
 * own. */
#include "tests/unit/kernels/scene.h"

static double tolerance(int dtype) { return dtype == TC_BF16 ? 8e-3 : cuda->tf32 ? 2e-3 : 2e-6; }

enum { M = 24, N = 40, K = 16 };

static void gelu_product(struct scene *s, int dtype, bool bias, int64_t n)
{
  clear(s);
  struct tc_view x = tensor(s, dtype, M * K, K, false), w = tensor(s, dtype, n * K, K, false);
  struct tc_view b = tensor(s, dtype, n, n, false), y = tensor(s, dtype, M * n, n, false);
  struct tc_view z = tensor(s, dtype, M * n, n, false);
  struct tc_call *c = bias ? call(s, TC_OP_MATMUL, 3, 1, VIEW(x, w, b, y))
                           : call(s, TC_OP_MATMUL, 2, 1, VIEW(x, w, y));
  c->gemm = (struct tc_gemm){ M, n, K, false, true, { 0 } };
  call(s, TC_OP_ACT, 1, 1, VIEW(y, z));
}

/* Whether this GPU takes the library's: those of capability 9.x do, and the emulated one is an H100. */
static bool gelu_of_library(struct scene *s)
{
  char *result = on_gpu() ? run(s, cuda, true) : NULL;
  const bool takes = !on_gpu() || result;
  if (!takes) printf("# not fused on this GPU\n");
  free(result);
  return takes;
}

static void gelu_case(struct scene *s, int dtype, bool bias, int64_t n)
{
  char what[100];
  snprintf(what, sizeof what, "matmul%s, gelu, %s", bias ? " and bias" : "", tc_dtype_name(dtype));
  gelu_product(s, dtype, bias, n);
  if (n % 8 || (dtype == TC_F32 && !cuda->tf32))
    ok(!run(s, cuda, true), "%s, %lld columns: not fused", what, (long long)n);
  else if (gelu_of_library(s))
    check_product(s, false, tolerance(dtype), what);
}

static void gelu_bwd_case(struct scene *s, int dtype)
{
  char what[100];
  clear(s);
  snprintf(what, sizeof what, "matmul, gelu_bwd, %s", tc_dtype_name(dtype));
  struct tc_view dy = tensor(s, dtype, M * K, K, false), w = tensor(s, dtype, K * N, N, false);
  struct tc_view dz = tensor(s, dtype, M * N, N, false), x = tensor(s, dtype, M * N, N, false);
  struct tc_view dx = tensor(s, dtype, M * N, N, false);
  call(s, TC_OP_MATMUL, 2, 1, VIEW(dy, w, dz))->gemm = (struct tc_gemm){ M, N, K, false, false, { 0 } };
  call(s, TC_OP_ACT_BWD, 2, 1, VIEW(dz, x, dx));
  if (dtype == TC_F32 && !cuda->tf32) {
    ok(!run(s, cuda, true), "%s: not fused", what);
    return;
  }
  if (!gelu_of_library(s)) return;
  check_product(s, true, tolerance(dtype), what);
  s->part[1].c.k[2] = TC_FN_RELU2;
  ok(!run(s, cuda, true), "... not another function's gradient");
  s->part[1].c.k[2] = TC_FN_GELU_TANH;
  s->part[1].c.in[0] = x, s->part[1].c.in[1] = dz;
  ok(!run(s, cuda, true), "... not where the product is gelu's input");
}

/* With the sums of its columns over m tokens, which the library rounds to the product's type: once, not on the way. */
static void gelu_bias_bwd_case(struct scene *s, int dtype, int out, int acc, int64_t m)
{
  char what[100];
  clear(s);
  snprintf(what, sizeof what, "matmul, gelu_bwd, bias_bwd%s of %d tokens, %s to %s", acc ? " +=" : "", (int)m,
           tc_dtype_name(dtype), tc_dtype_name(out));
  struct tc_view dy = tensor(s, dtype, m * K, K, false), w = tensor(s, dtype, K * N, N, false);
  struct tc_view dz = tensor(s, dtype, m * N, N, false), x = tensor(s, dtype, m * N, N, false);
  struct tc_view dx = tensor(s, dtype, m * N, N, false), db = tensor(s, out, N, N, false);
  call(s, TC_OP_MATMUL, 2, 1, VIEW(dy, w, dz))->gemm = (struct tc_gemm){ m, N, K, false, false, { 0 } };
  call(s, TC_OP_ACT_BWD, 2, 1, VIEW(dz, x, dx));
  call(s, TC_OP_BIAS_BWD, 1, 1, VIEW(dx, db))->acc = (uint8_t)acc;
  if (dtype == TC_F32 && !cuda->tf32) {
    ok(!run(s, cuda, true), "%s: not fused", what);
    return;
  }
  if (!gelu_of_library(s)) return;
  check_product(s, true, dtype == TC_BF16 ? 1.6e-2 : tolerance(dtype), what);
  s->part[2].c.in[0] = dz;
  ok(!run(s, cuda, true), "... not of another gradient");
}

/* The residual's sum, also in the residual's own place. */
static void add_case(struct scene *s, int dtype, bool bias, bool in_place)
{
  char what[100];
  clear(s);
  snprintf(what, sizeof what, "matmul%s, add%s, %s", bias ? " and bias" : "", in_place ? " in place" : "",
           tc_dtype_name(dtype));
  struct tc_view x = tensor(s, dtype, M * K, K, false), w = tensor(s, dtype, N * K, K, false);
  struct tc_view b = tensor(s, dtype, N, N, false), y = tensor(s, dtype, M * N, N, false);
  struct tc_view r = tensor(s, dtype, M * N, N, false), z = in_place ? r : tensor(s, dtype, M * N, N, false);
  struct tc_call *c = bias ? call(s, TC_OP_MATMUL, 3, 1, VIEW(x, w, b, y))
                           : call(s, TC_OP_MATMUL, 2, 1, VIEW(x, w, y));
  c->gemm = (struct tc_gemm){ M, N, K, false, true, { 0 } };
  call(s, TC_OP_ADD, 2, 1, VIEW(r, y, z));
  check_product(s, true, tolerance(dtype), what);
  s->part[1].c.in[0] = y, s->part[1].c.in[1] = r;
  ok(!run(s, cuda, true), "... not where the product is the first term");
  s->part[1].c.in[0] = r, s->part[1].c.in[1] = y;
  s->part[0].c.acc = 1;
  ok(!run(s, cuda, true), "... nor where it is added to what was there");
}

static void bias_bwd_case(struct scene *s, int in, int out, int acc_bias, int acc)
{
  char what[100];
  clear(s);
  snprintf(what, sizeof what, "bias_bwd%s, matmul%s, %s to %s", acc_bias ? " +=" : "",
           acc ? " +=" : "", tc_dtype_name(in), tc_dtype_name(out));
  struct tc_view dy = tensor(s, in, K * M, M, false), x = tensor(s, in, K * N, N, false);
  struct tc_view db = tensor(s, out, M, M, false), dw = tensor(s, out, M * N, N, false);
  struct tc_view other = tensor(s, in, K * M, M, false);
  call(s, TC_OP_BIAS_BWD, 1, 1, VIEW(dy, db))->acc = (uint8_t)acc_bias;
  struct tc_call *c = call(s, TC_OP_MATMUL, 2, 1, VIEW(dy, x, dw));
  c->acc = (uint8_t)acc;
  c->gemm = (struct tc_gemm){ M, N, K, true, false, { 0 } };
  check_product(s, false, out == TC_BF16 ? 1.6e-2 : tolerance(TC_F32), what);
  s->part[0].c.in[0] = other;
  ok(!run(s, cuda, true), "... not of another gradient");
}

/* Which not all versions of the library support. */
static void one_term_case(struct scene *s)
{
  clear(s);
  struct tc_view dy = tensor(s, TC_BF16, M, M, false), x = tensor(s, TC_BF16, N, N, false);
  struct tc_view db = tensor(s, TC_F32, M, M, false), dw = tensor(s, TC_F32, M * N, N, false);
  call(s, TC_OP_BIAS_BWD, 1, 1, VIEW(dy, db));
  call(s, TC_OP_MATMUL, 2, 1, VIEW(dy, x, dw))->gemm = (struct tc_gemm){ M, N, 1, true, false, { 0 } };
  ok(!run(s, cuda, true), "bias_bwd, matmul over one token: not fused");
}

/* A small weight's gradient over many tokens: fused, it would be a few blocks' long work. On a GPU
 * the library says how many; its tensor cores don't round their sums, but cut them off. */
static void long_sum_case(struct scene *s)
{
  enum { LONG = 4096 };
  clear(s);
  struct tc_view dy = tensor(s, TC_BF16, LONG * M, M, false), x = tensor(s, TC_BF16, LONG * N, N, false);
  struct tc_view db = tensor(s, TC_F32, M, M, false), dw = tensor(s, TC_F32, M * N, N, false);
  call(s, TC_OP_BIAS_BWD, 1, 1, VIEW(dy, db));
  call(s, TC_OP_MATMUL, 2, 1, VIEW(dy, x, dw))->gemm = (struct tc_gemm){ M, N, LONG, true, false, { 0 } };
  if (on_gpu()) check_product(s, false, 3e-5, "bias_bwd, matmul over many tokens");
  else ok(!run(s, cuda, true), "bias_bwd, matmul over %d tokens: not fused, few blocks", LONG);
}

/* A norm's gradient of x[rows, C], then the sums of its columns. */
static void norm_case(struct scene *s, int op, int dtype, int64_t rows, int64_t C, int acc, float shift)
{
  char what[100];
  const bool layer = op == TC_OP_LAYERNORM_BWD, wide = C > 8192;
  clear(s);
  snprintf(what, sizeof what, "%s, bias_bwd, %lld x %lld, %s, acc %d%s", tc_op_info[op].name, (long long)rows, (long long)C,
           tc_dtype_name(dtype), acc, shift != 0 ? ", shift" : "");
  struct tc_view dy = tensor(s, dtype, rows * C, C, false), x = tensor(s, dtype, rows * C, C, false);
  struct tc_view g = tensor(s, dtype, C, C, false), mean = tensor(s, TC_F32, rows, 1, false);
  struct tc_view rstd = tensor(s, TC_F32, rows, 1, true), dx = tensor(s, dtype, rows * C, C, false);
  struct tc_view dg = tensor(s, TC_F32, C, C, false), db = tensor(s, TC_F32, C, C, false);
  struct tc_view sums = tensor(s, TC_F32, C, C, false);
  struct tc_call *c = layer ? call(s, op, 5, 3, VIEW(dy, x, g, mean, rstd, dx, dg, db))
                            : call(s, op, 4, 2, VIEW(dy, x, g, rstd, dx, dg));
  c->acc = (uint8_t)(acc & 7), c->f[1] = shift;
  call(s, TC_OP_BIAS_BWD, 1, 1, VIEW(dx, sums))->acc = (uint8_t)(acc >> 3);
  if (wide) ok(!run(s, cuda, true), "%s: not fused, a row is not one block's", what);
  else check_product(s, false, dtype == TC_BF16 ? 1.6e-2 : 2e-5, what);
  s->part[1].c.in[0] = x;
  ok(!run(s, cuda, true), "... not of another gradient");
}

static void norm_cases(struct scene *s)
{
  static const int ops[] = { TC_OP_LAYERNORM_BWD, TC_OP_RMSNORM_BWD };
  for (int op = 0; op < 2; op++)
    for (int dtype = TC_F32, i = 0; i < 2; i++, dtype = TC_BF16) {
      norm_case(s, ops[op], dtype, 70, 96, 1, 0);
      norm_case(s, ops[op], dtype, 9, 40, 15, 0);
      norm_case(s, ops[op], dtype, 5, 37, 8, 0);
      norm_case(s, ops[op], dtype, 7, 2056, 1, 0);
      norm_case(s, ops[op], dtype, 6, 4104, 14, 0);
      norm_case(s, ops[op], dtype, 4, 8200, 0, 0);
      if (op == 1) norm_case(s, ops[op], dtype, 9, 200, 1, 1);
    }
}

/* `n` updates, every second with a cast; sizes that are no multiple of anything. */
static void update_case(struct scene *s, int op, int n, int grad, int state)
{
  clear(s);
  struct tc_view scale = tensor(s, TC_F32, 1, 1, true);
  for (int i = 0; i < n; i++) {
    const int64_t e = i == 2 ? 5000 : i == 5 ? 0 : 1 + (i * 37) % 300;
    struct tc_view g = tensor(s, grad, e, 1, false), w = tensor(s, TC_F32, e, 1, false);
    struct tc_view m = tensor(s, state, e, 1, false), v = tensor(s, state, e, 1, true);
    struct tc_view t = tensor(s, TC_BF16, e, 1, false);
    struct tc_call *c = op == TC_OP_ADAMW ? call(s, op, 5, 3, VIEW(g, scale, w, m, v, w, m, v))
                        : op == TC_OP_SGD ? call(s, op, 3, 1, VIEW(g, scale, w, w))
                                          : call(s, op, 4, 2, VIEW(g, scale, w, m, w, m));
    c->f[0] = i % 3 ? 1.f : 0.f;
    c->f[1] = i % 4 ? 1.f : 0.5f;
    c->k[0] = i;
    if (i % 2) call(s, TC_OP_CAST, 1, 1, VIEW(w, t));
  }
  char *want = run(s, cuda, false), *got = run(s, cuda, true);
  ok(want && got && memcmp(want, got, POOL_BYTES) == 0, "%d %s of %s gradients, states in %s: the same bits", n,
     tc_op_info[op].name, tc_dtype_name(grad), tc_dtype_name(state));
  ok(want && memcmp(want, s->at, POOL_BYTES), "... which are not those before");
  free(want);
  free(got);
  s->part[2].c.in[1] = tensor(s, TC_F32, 1, 1, true);
  ok(!run(s, cuda, true), "... not with two scales");
}

static void refusals(struct scene *s)
{
  gelu_case(s, TC_BF16, true, 36);
  clear(s);
  struct tc_view a = tensor(s, TC_F32, M * N, N, false), b = tensor(s, TC_F32, M * N, N, false);
  call(s, TC_OP_ACT, 1, 1, VIEW(a, b));
  call(s, TC_OP_ACT, 1, 1, VIEW(b, a));
  ok(!run(s, cuda, true), "two GELUs are not fused");
  gelu_case(s, TC_BF16, true, N);
  for (int act = TC_FN_GELU; act <= TC_FN_RELU2; act++) {
    s->part[1].c.k[2] = act;
    ok(!run(s, cuda, true), "function %d after a product: not fused", act);
  }
  s->part[1].c.k[2] = TC_FN_GELU_TANH;
  for (int k = 0; k < 2; k++) {
    struct tc_view *v = k ? &s->part[1].c.in[0] : &s->part[0].c.out[0];
    v->data = (char *)v->data + 8;
  }
  ok(!run(s, cuda, true), "what is kept for backward lies at 8 bytes: not fused");
}

/* fp32 products from rounded inputs: off by less than TF32's 10 bits allow, and by more than fp32 where
 * the rounding is known to happen: a GPU's library may take fp32 for so small a product. */
static void tf32_cases(struct scene *s)
{
  struct tc_err err = { 0 };
  struct tc_device *fp32 = cuda;
  if (tc_device_open(&cuda, "cuda", 1, &err) < 0) return;
  cuda->tf32 = true;
  clear(s);
  struct tc_view a = tensor(s, TC_F32, M * K, K, false), b = tensor(s, TC_F32, K * N, N, false);
  struct tc_view y = tensor(s, TC_F32, M * N, N, false);
  call(s, TC_OP_MATMUL, 2, 1, VIEW(a, b, y))->gemm = (struct tc_gemm){ M, N, K, false, false, { 0 } };
  char *want = run(s, ref, false), *got = run(s, cuda, false), *exact = run(s, fp32, false);
  if (ok(want && got && exact, "a product in TF32")) {
    const double off = difference(s, &y, got, want);
    ok((on_gpu() || off > 1e-5) && off < 2e-3, "... is off by %.1e", off);
    ok(difference(s, &y, exact, want) < 2e-6, "... and without, is fp32's");
  }
  free(want);
  free(got);
  free(exact);
  gelu_case(s, TC_F32, true, N);
  gelu_case(s, TC_F32, false, N);
  gelu_bwd_case(s, TC_F32);
  gelu_bias_bwd_case(s, TC_F32, TC_F32, 1, M);
  bias_bwd_case(s, TC_F32, TC_F32, 1, 1);
  tc_device_close(cuda);
  cuda = fp32;
}

/* A library that has no product with an epilogue, or says that it has and then does not do it. */
static void refusing_library(struct scene *s)
{
  static const char *const when[] = { "plan", "run", "run" };
  struct tc_device *usual = cuda;
  struct tc_err err = { 0 };
  for (int i = 0; i < 3; i++) {
    setenv("TC_EMU_BLASLT_REFUSES", when[i], 1);
    if (tc_device_open(&cuda, "cuda", 1, &err) < 0) break;
    if (i) {
      gelu_case(s, TC_BF16, true, N);
      if (i == 1) gelu_bwd_case(s, TC_BF16);
      else gelu_bias_bwd_case(s, TC_BF16, TC_F32, 1, M);
      bias_bwd_case(s, TC_BF16, TC_F32, 1, 1);
    }
    gelu_product(s, TC_BF16, true, N);
    ok(!run(s, cuda, true), "cuBLASLt refuses to %s an epilogue: %s", when[i],
       i ? "not asked again" : "not fused");
    tc_device_close(cuda);
  }
  unsetenv("TC_EMU_BLASLT_REFUSES");
  cuda = usual;
}

/* A library that refuses to run the first plan that it named, or each with a bias: another one is run. */
static void next_plan(struct scene *s)
{
  static const char *const refused[] = { "first", "bias" };
  struct tc_device *usual = cuda;
  struct tc_err err = { 0 };
  for (int i = 0; i < 2; i++) {
    setenv("TC_EMU_BLASLT_REFUSES", refused[i], 1);
    if (tc_device_open(&cuda, "cuda", 1, &err) < 0) break;
    clear(s);
    struct tc_view a = tensor(s, TC_F32, M * K, K, false), b = tensor(s, TC_F32, K * N, N, false);
    struct tc_view bias = tensor(s, TC_F32, N, N, false), y = tensor(s, TC_F32, M * N, N, false);
    call(s, TC_OP_MATMUL, 3, 1, VIEW(a, b, bias, y))->gemm = (struct tc_gemm){ M, N, K, false, false, { 0 } };
    for (int again = 0; again < 2; again++) {
      char *want = run(s, ref, false), *got = run(s, cuda, false);
      ok(want && got && difference(s, &y, got, want) < 2e-6, "cuBLASLt refuses to run %s: another plan%s",
         i ? "a bias" : "its first plan", again ? ", the next time too" : "");
      free(want);
      free(got);
    }
    add_case(s, TC_BF16, true, i != 0);
    tc_device_close(cuda);
  }
  unsetenv("TC_EMU_BLASLT_REFUSES");
  cuda = usual;
}

/* Attention, forward and backward, in heads of 128, two to a key: the result has to be freed. */
static char *attend(struct scene *s)
{
  enum { T = 150, K = 2, G = 2, D = 128, H = K * G };
  clear(s);
  random_state = 1;
  struct tc_view qkv = tensor(s, TC_BF16, T * K * (G + 2) * D, D, false), y = tensor(s, TC_BF16, T * H * D, D, false);
  struct tc_view dqkv = tensor(s, TC_BF16, T * K * (G + 2) * D, D, false), dy = tensor(s, TC_BF16, T * H * D, D, false);
  struct tc_view lse = tensor(s, TC_F32, T * H, H, false);
  const int64_t dim[4] = { T, K, G + 2, D };
  qkv.rank = dqkv.rank = 4;
  memcpy(qkv.dim, dim, sizeof dim);
  memcpy(dqkv.dim, dim, sizeof dim);
  call(s, TC_OP_ATTN, 1, 2, VIEW(qkv, y, lse))->k[0] = T;
  call(s, TC_OP_ATTN_BWD, 4, 1, VIEW(dy, qkv, y, lse, dqkv))->k[0] = T;
  return run(s, cuda, false);
}

/* GELU as an epilogue is for capability 9.x, sums of columns for all. Where fewer blocks fit, attention's are smaller. */
static void older_gpu(struct scene *s)
{
  struct tc_device *usual = cuda;
  struct tc_err err = { 0 };
  char *large = attend(s);
  setenv("TC_EMU_CAPABILITY", "8", 1);
  if (tc_device_open(&cuda, "cuda", 1, &err) == 0) {
    char *small = attend(s);
    ok(large && small && !memcmp(large, small, POOL_BYTES), "attention in heads of 128 has the same bits with less memory");
    free(small);
    gelu_product(s, TC_BF16, true, N);
    ok(!run(s, cuda, true), "matmul and gelu on a GPU of capability 8.0: not fused");
    bias_bwd_case(s, TC_BF16, TC_F32, 1, 1);
    tc_device_close(cuda);
  }
  unsetenv("TC_EMU_CAPABILITY");
  free(large);
  cuda = usual;
}

/* A copy to the host, then a kernel that writes what it reads; a copy to the device, then one that
 * reads it. The emulated GPU runs streams lazily, so that without copy_order both find the other's. */
static void copies(void)
{
  enum { ELEMS = 5000, BYTES = ELEMS * 4 };
  const struct tc_device_ops *o = cuda->ops;
  struct tc_err err = { 0 };
  float *host = tc_device_host_alloc(cuda, BYTES), one = 1;
  float *a = o->alloc(cuda, BYTES), *b = o->alloc(cuda, BYTES);
  bool first = true, second = true;
  for (int i = 0; i < ELEMS; i++) host[i] = one;
  o->copy(cuda, a, host, BYTES);
  memset(host, 0, BYTES);
  const int64_t out = o->copy_begin(cuda, host, a, BYTES);
  o->copy_order(cuda, out);
  o->fill(cuda, a, 0x7f, BYTES);
  o->sync(cuda);
  ok(o->copy_wait(cuda, out) == 0, "a copy to the host beside the kernels");
  for (int i = 0; i < ELEMS; i++) first &= host[i] == one;
  ok(first, "... has what was there when it began");
  o->copy_order(cuda, o->copy_begin(cuda, a, host, BYTES));
  o->copy(cuda, b, a, BYTES);
  o->copy(cuda, host, b, BYTES);
  for (int i = 0; i < ELEMS; i++) second &= host[i] == one;
  ok(second && tc_device_check(cuda, &err) == 0, "a copy to the device is there for what comes after");
  int64_t last = 0;
  for (int i = 0; i < 200; i++) last = o->copy_begin(cuda, host + i, a + i, 4);
  ok(o->copy_wait(cuda, last) == 0, "more copies than there are events");
  o->free(cuda, a, BYTES);
  o->free(cuda, b, BYTES);
  tc_device_host_free(cuda, host);
}

/* An early copy to the device is there for what comes after it, and does not wait for what came before: a call that
 * reads its place, as none may, finds the new content on the emulated GPU, which runs streams lazily. */
static void early_copies(void)
{
  enum { ELEMS = 5000, BYTES = ELEMS * 4 };
  const struct tc_device_ops *o = cuda->ops;
  struct tc_err err = { 0 };
  float *host = tc_device_host_alloc(cuda, BYTES), *a = o->alloc(cuda, BYTES), *b = o->alloc(cuda, BYTES);
  for (int begin = 0; begin < 2; begin++) {
    bool all = true;
    o->fill(cuda, a, 0, BYTES);
    o->sync(cuda);
    for (int i = 0; i < ELEMS; i++) host[i] = (float)i + 1;
    if (!on_gpu()) o->copy(cuda, b, a, BYTES);
    const int64_t n = begin ? o->copy_begin(cuda, a, host, BYTES) : o->copy_early(cuda, a, host, BYTES);
    if (!on_gpu()) {
      o->copy_wait(cuda, n);
    } else {
      o->copy_order(cuda, n);
      o->copy(cuda, b, a, BYTES);
    }
    o->copy(cuda, host, b, BYTES);
    for (int i = 0; i < ELEMS; i++) all &= host[i] == (begin && !on_gpu() ? 0 : (float)i + 1);
    ok(all && tc_device_check(cuda, &err) == 0, "a copy %s", begin ? "after the calls before it" : "beside them");
  }
  o->free(cuda, a, BYTES);
  o->free(cuda, b, BYTES);
  tc_device_host_free(cuda, host);
}

/* A slice along the first dimension is one row, whose step is all of the tensor: 2 GiB and more. */
static void long_rows(void)
{
  enum { BYTES = 256 };
  const struct tc_device_ops *o = cuda->ops;
  struct tc_err err = { 0 };
  char host[BYTES], *a = o->alloc(cuda, BYTES), *b = o->alloc(cuda, BYTES);
  bool same = true;
  memset(host, 1, BYTES);
  o->copy(cuda, a, host, BYTES);
  tc_device_copy_rows(cuda, b, BYTES, a, INT64_C(3) << 30, BYTES, 1);
  o->copy(cuda, host, b, BYTES);
  for (int i = 0; i < BYTES; i++) same &= host[i] == 1;
  ok(same && tc_device_check(cuda, &err) == 0, "one row, 3 GiB from the next: %s",
     *err.text ? err.text : "copied");
  o->free(cuda, a, BYTES);
  o->free(cuda, b, BYTES);
}

/* A copy that can't be begun must not look like one that is done: a checkpoint is made of it. */
static void copy_that_fails(void)
{
  struct tc_err err = { 0 };
  struct tc_device *d;
  if (tc_device_open(&d, "cuda", 1, &err) < 0) return;
  char *host = tc_device_host_alloc(d, 8192), *a = d->ops->alloc(d, 4096);
  ok(d->ops->copy_wait(d, d->ops->copy_begin(d, host, a, 4096)) == 0, "a copy beside the kernels");
  ok(d->ops->copy_wait(d, d->ops->copy_begin(d, host, a, INT64_C(1) << 40)) == TC_EUSER
         && tc_device_check(d, &err) == TC_EUSER, "... past the end of memory: %s", err.text);
  tc_device_host_free(d, host);
  d->ops->free(d, a, 4096);
  tc_device_close(d);
}

/* More sequences than a grid has: refused before anything runs. */
static void many_sequences(void)
{
  struct tc_err err = { 0 };
  struct tc_view v[3] = { { .dtype = TC_BF16, .rank = 4, .dim = { 65535 * 8, 12, 3, 64 } } };
  struct tc_call c = { .op = TC_OP_ATTN, .n_in = 1, .n_out = 2, .in = v, .out = v + 1, .k = { 8 } };
  const struct tc_kernel *k = &cuda->ops->kernel[TC_OP_ATTN];
  ok(k->prepare(cuda, &c, &err) == 0, "attention over 65535 sequences of 12 heads");
  v->dim[0] += 8;
  ok(k->prepare(cuda, &c, &err) == TC_EUSER && strstr(err.text, "train.micro_batch"),
     "... not over one more: %s", err.text);
  v->dim[0] = v->dim[1] = 40000, c.k[0] = 1;
  ok(k->prepare(cuda, &c, &err) == 0, "attention over 40000 sequences of 40000 heads");
  v->dim[0] = v->dim[1] = 50000;
  ok(k->prepare(cuda, &c, &err) == TC_EUSER && strstr(err.text, "2^31 blocks"), "... 50000 of 50000 are more blocks than a "
     "grid has: %s", err.text);
}

int main(void)
{
  struct scene *s = scene_new();
  for (int dtype = TC_F32, i = 0; i < 2; i++, dtype = TC_BF16) {
    gelu_case(s, dtype, true, N);
    gelu_case(s, dtype, false, N);
    gelu_bwd_case(s, dtype);
    for (int acc = 0; acc < 2; acc++) gelu_bias_bwd_case(s, dtype, TC_F32, acc, M);
    for (int k = 0; k < 4; k++) add_case(s, dtype, k & 1, k >> 1);
    update_case(s, TC_OP_ADAMW, 60, dtype, TC_F32);
    update_case(s, TC_OP_SGD, 7, dtype, TC_F32);
    update_case(s, TC_OP_MOMENTUM, 11, dtype, TC_F32);
    update_case(s, TC_OP_LION, 11, dtype, TC_F32);
    for (int acc = 0; acc < 4; acc++) bias_bwd_case(s, dtype, TC_F32, acc & 1, acc >> 1);
  }
  bias_bwd_case(s, TC_BF16, TC_BF16, 1, 0);
  for (int acc = 0; acc < 2; acc++) gelu_bias_bwd_case(s, TC_BF16, TC_BF16, acc, M);
  gelu_bias_bwd_case(s, TC_BF16, TC_F32, 0, on_gpu() ? 8192 : 1024);
  long_sum_case(s);
  one_term_case(s);
  norm_cases(s);
  refusals(s);
  tf32_cases(s);
  if (!on_gpu()) refusing_library(s), next_plan(s), older_gpu(s);
  copies();
  early_copies();
  long_rows();
  many_sequences();
  static const struct { int op, n; } low[] = { { TC_OP_ADAMW, 60 }, { TC_OP_MOMENTUM, 11 }, { TC_OP_LION, 11 } };
  for (int i = 0; i < 6; i++) update_case(s, low[i / 2].op, low[i / 2].n, i % 2 ? TC_BF16 : TC_F32, TC_BF16);
  copy_that_fails();
  scene_free(s);
  return done_testing();
}
