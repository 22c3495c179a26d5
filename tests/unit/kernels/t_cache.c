/* t_cache.c - what decoding stands on, on drawn shapes: attention over a cache of keys and values, which with a window may
 * have fewer rows than a sequence has tokens (ref in fp64, cpu in fp32 and bf16), against a softmax in double and against
 * attention over the whole sequence; positions that starts below
 * 0 give; products of few rows against double.
 *
 *   t_cache.t [--cases N] [--seed N]         # 30 cases; the seed is SEED, or 1 */
#include "kernels/cpu/cpu.h"
#include "tests/unit/kernels/views.h"

static void fill(const struct tc_view *v)
{
  for (int64_t i = 0; i < v->elems; i++) put(v, i, 4 * uniform() - 2);
}

/* ---- attention over a cache ------------------------------------------------------------- */

/* B sequences of T tokens, K groups of G queries of D; a cache of M rows, which holds chunks of `most` new tokens. window,
 * scale, cap: 0: not given. */
struct scene {
  int64_t B, T, K, G, D, window, M, most;
  float scale, cap;
  struct tc_view qkv;            /* [B * T, K, G + 2, D] of the device's type */
  double *y;                     /* [B * T, K * G, D] */
};

static int64_t at_qkv(const struct scene *s, int64_t n, int64_t k, int64_t e)
{
  return ((n * s->K + k) * (s->G + 2) + e) * s->D;
}

static double dot(const struct scene *s, int64_t q, int64_t k)
{
  double sum = 0;
  for (int64_t j = 0; j < s->D; j++) sum += get(&s->qkv, q + j) * get(&s->qkv, k + j);
  sum *= s->scale > 0 ? (double)s->scale : 1 / sqrt((double)s->D);
  return s->cap > 0 ? (double)s->cap * tanh(sum / (double)s->cap) : sum;
}

/* Head h of token t of sequence b. */
static void attend(struct scene *s, int64_t b, int64_t t, int64_t h)
{
  const int64_t k = h / s->G, n = b * s->T + t, q = at_qkv(s, n, k, h % s->G);
  double *y = s->y + (n * s->K * s->G + h) * s->D, max = -INFINITY, sum = 0;
  for (int64_t m = 0; m <= t; m++)
    if (!s->window || m + s->window > t) max = fmax(max, dot(s, q, at_qkv(s, b * s->T + m, k, s->G)));
  for (int64_t m = 0; m <= t; m++) {
    if (s->window && m + s->window <= t) continue;
    const double p = exp(dot(s, q, at_qkv(s, b * s->T + m, k, s->G)) - max);
    for (int64_t j = 0; j < s->D; j++) y[j] += p * get(&s->qkv, at_qkv(s, b * s->T + m, k, s->G + 1) + j);
    sum += p;
  }
  for (int64_t j = 0; j < s->D; j++) y[j] /= sum;
}

static struct scene draw_scene(int dtype)
{
  struct scene s = { .B = draw(1, 3), .T = draw(1, draw(0, 1) ? 12 : 90), .K = draw(1, 3), .G = draw(1, 4),
                     .D = draw(1, draw(0, 1) ? 9 : 80) };
  s.M = s.most = s.T;
  if (draw(0, 1)) s.window = draw(1, s.T + 2), s.most = draw(1, s.T), s.M = TC_MIN(s.T, s.window + s.most - 1 + draw(0, 2));
  if (draw(0, 1)) s.scale = (float)(0.05 + uniform() / 2);
  if (draw(0, 1)) s.cap = (float)(0.5 + 3 * uniform());
  s.qkv = owned(dtype, DIMS(s.B * s.T, s.K, s.G + 2, s.D));
  fill(&s.qkv);
  s.y = tc_calloc((size_t)(s.B * s.T * s.K * s.G * s.D), sizeof *s.y);
  for (int64_t b = 0; b < s.B; b++)
    for (int64_t t = 0; t < s.T; t++)
      for (int64_t h = 0; h < s.K * s.G; h++) attend(&s, b, t, h);
  return s;
}

/* A cache that is filled in chunks of drawn sizes. Each sequence stands at its own position; of a chunk it keeps a
 * drawn number of tokens, so that others come to the same rows of the cache later, as after a shorter prompt. Or the last one
 * that it keeps is repeated to the chunk's end, as sampling does (src/forward/sample.c). */
struct decoding { struct tc_view cache, y; int64_t at[3]; };

static void chunk(struct scene *s, struct tc_device *d, struct decoding *x, int64_t S, const int64_t *keep)
{
  const int64_t row = (s->G + 2) * s->D * s->K, H = s->K * s->G, first = draw(0, 2 * s->T), repeats = draw(0, 1);
  struct tc_view qkv = owned(s->qkv.dtype, DIMS(s->B * S, s->K, s->G + 2, s->D));
  struct tc_view starts = owned(TC_I32, DIMS(s->B * S)), y = owned(s->qkv.dtype, DIMS(s->B * S, H, s->D));
  for (int64_t n = 0; n < s->B * S; n++) {
    const int64_t b = n / S, i = repeats ? TC_MIN(n % S, keep[b] - 1) : n % S, t = x->at[b] + i;
    for (int64_t j = 0; j < row; j++)
      put(&qkv, n * row + j, i < keep[b] ? get(&s->qkv, (b * s->T + t) * row + j) : 4 * uniform() - 2);
    ((int32_t *)starts.data)[n] = (int32_t)((first + n) % s->T - t);
  }
  qkv.off[0] = y.off[0] = starts.off[0] = first;
  struct tc_view in[3] = { qkv, x->cache, starts }, out[2] = { y, x->cache };
  run_guarded(d, &(struct tc_call){ .op = TC_OP_ATTN_CACHE, .n_in = 3, .n_out = 2, .in = in, .out = out,
                                    .f = { s->scale, s->cap }, .k = { s->T, 0, s->window } });
  for (int64_t b = 0; b < s->B; b++)
    for (int64_t i = 0; i < keep[b] * H * s->D; i++)
      put(&x->y, (b * s->T + x->at[b]) * H * s->D + i, get(&y, b * S * H * s->D + i));
  for (int64_t b = 0; b < s->B; b++) x->at[b] += keep[b];
  free(qkv.data), free(starts.data), free(y.data);
}

/* All tokens of all sequences; the chunks depend on the random numbers alone. */
static struct decoding decode(struct scene *s, const char *name, int threads)
{
  struct tc_device *d = dev(name, threads);
  struct decoding x = { .cache = owned(s->qkv.dtype, DIMS(s->B, s->K, s->M, 2 * s->D)),
                        .y = owned(s->qkv.dtype, DIMS(s->B * s->T, s->K * s->G, s->D)) };
  for (;;) {
    int64_t room = s->most, keep[3], left = 0;
    for (int64_t b = 0; b < s->B; b++) {
      left += s->T - x.at[b];
      if (x.at[b] < s->T) room = TC_MIN(room, s->T - x.at[b]);
      else x.at[b]--;                            /* a sequence that is done goes on, as an ended one does */
    }
    if (left == 0) break;
    const int64_t S = draw(0, 1) ? 1 : draw(1, room);
    for (int64_t b = 0; b < s->B; b++) keep[b] = draw(1, TC_MIN(S, s->T - x.at[b]));
    for (int64_t b = 0; b < s->B; b++) room = TC_MIN(room, s->T - x.at[b]);
    chunk(s, d, &x, TC_MIN(S, room), (int64_t[]){ TC_MIN(keep[0], room), TC_MIN(keep[1], room), TC_MIN(keep[2], room) });
  }
  tc_device_close(d);
  return x;
}

static double worst(const struct tc_view *got, const struct scene *s)
{
  double size = 0, most = 0;
  for (int64_t i = 0; i < got->elems; i++) size = fmax(size, fabs(s->y[i]));
  for (int64_t i = 0; i < got->elems; i++) {
    const double off = fabs(get(got, i) - s->y[i]) / size;
    if (!(off <= most)) most = off;              /* not a number stays */
  }
  return most;
}

/* The same by attention over the whole sequences. */
static double off_whole(struct scene *s, const struct decoding *x, const char *name)
{
  struct tc_device *d = dev(name, 2);
  const int stats = s->qkv.dtype == TC_F64 ? TC_F64 : TC_F32;
  struct tc_view in[1] = { s->qkv }, out[2] = { owned(s->qkv.dtype, DIMS(s->B * s->T, s->K * s->G, s->D)),
                                                owned(stats, DIMS(s->B * s->T, s->K * s->G)) };
  double most = 0;
  run_guarded(d, &(struct tc_call){ .op = TC_OP_ATTN, .n_in = 1, .n_out = 2, .in = in, .out = out,
                                    .f = { s->scale, s->cap }, .k = { s->T, 0, s->window } });
  for (int64_t i = 0; i < out[0].elems; i++) {
    const double off = fabs(get(&out[0], i) - get(&x->y, i)) / 2;
    if (!(off <= most)) most = off;
  }
  free(out[0].data), free(out[1].data);
  tc_device_close(d);
  return most;
}

static void test_cache(const char *name, int dtype)
{
  struct scene s = draw_scene(dtype);
  const double tol = dtype == TC_F64 ? 1e-13 : dtype == TC_F32 ? 3e-6 : 6e-3;
  const uint64_t here = random_state;
  struct decoding x = decode(&s, name, 1);
  const double off = worst(&x.y, &s), off_attn = off_whole(&s, &x, name);
  ok(off < tol && off_attn < tol, "%s %s B%lld T%lld K%lld G%lld D%lld, window %lld, a cache of %lld, scale %.2g, cap %.2g: off "
     "by %.1e from the softmax, %.1e from attention", name, tc_dtype_name(dtype), (long long)s.B, (long long)s.T,
     (long long)s.K, (long long)s.G, (long long)s.D, (long long)s.window, (long long)s.M, (double)s.scale, (double)s.cap, off,
     off_attn);
  for (int threads = 2; threads <= 4; threads++) {
    random_state = here;
    struct decoding other = decode(&s, name, threads);
    const size_t bytes = (size_t)x.y.elems * tc_dtype_bytes(dtype);
    if (memcmp(x.y.data, other.y.data, bytes)) ok(false, "%s: the same bits with %d threads", name, threads);
    free(other.cache.data), free(other.y.data);
  }
  free(s.qkv.data), free(s.y), free(x.cache.data), free(x.y.data);
}

/* ---- positions --------------------------------------------------------------------------- */

/* Rows whose starts say position[n], which may be before or behind their place in the sequence. */
static struct tc_view draw_starts(int64_t N, int64_t first, int64_t T, int64_t *position)
{
  struct tc_view v = owned(TC_I32, DIMS(N));
  v.off[0] = first;
  for (int64_t n = 0; n < N; n++) {
    position[n] = draw(0, T - 1);
    ((int32_t *)v.data)[n] = (int32_t)((first + n) % T - position[n]);
  }
  return v;
}

static void test_positions(const char *name, int dtype)
{
  const int64_t N = draw(1, 9), T = draw(1, 300), C = draw(1, 70), first = draw(0, 3 * T);
  const double tol = dtype == TC_F64 ? 1e-13 : dtype == TC_F32 ? 1e-6 : 8e-3;
  int64_t position[9];
  struct tc_device *d = dev(name, 2);
  struct tc_view starts = draw_starts(N, first, T, position);
  struct tc_view in[3] = { owned(dtype, DIMS(N, C)), owned(dtype, DIMS(T, C)), starts }, y = owned(dtype, DIMS(N, C));
  double most = 0;
  fill(&in[0]), fill(&in[1]);
  in[0].off[0] = y.off[0] = first;
  run_guarded(d, &(struct tc_call){ .op = TC_OP_POS, .n_in = 3, .n_out = 1, .in = in, .out = &y });
  for (int64_t i = 0; i < N * C; i++) {
    const double off = fabs(get(&y, i) - get(&in[0], i) - get(&in[1], position[i / C] * C + i % C)) / 4;
    if (!(off <= most)) most = off;
  }
  ok(most < tol, "%s %s: positions of N%lld T%lld C%lld from %lld are off by %.1e", name, tc_dtype_name(dtype), (long long)N,
     (long long)T, (long long)C, (long long)first, most);
  free(starts.data), free(in[0].data), free(in[1].data), free(y.data);
  tc_device_close(d);
}

static void test_rope(const char *name, int dtype)
{
  const int64_t N = draw(1, 9), T = draw(1, 300), K = draw(1, 3), G = draw(1, 3), D = 2 * draw(1, 40), first = draw(0, 3 * T);
  const double tol = dtype == TC_F64 ? 1e-5 : dtype == TC_F32 ? 2e-5 : 8e-3;      /* cosines are fp32 */
  int64_t position[9];
  float freq[40];
  struct tc_device *d = dev(name, 2);
  struct tc_view in[2] = { owned(dtype, DIMS(N, K, G + 2, D)), draw_starts(N, first, T, position) };
  struct tc_view y = owned(dtype, DIMS(N, K, G + 2, D));
  double most = 0;
  for (int64_t i = 0; i < D / 2; i++) freq[i] = 1.f / powf(10000.f, (float)(2 * i) / (float)D);
  fill(&in[0]);
  in[0].off[0] = y.off[0] = first;
  run_guarded(d, &(struct tc_call){ .op = TC_OP_ROPE, .n_in = 2, .n_out = 1, .in = in, .out = &y, .k = { T }, .freq = freq });
  for (int64_t r = 0; r < N * K * (G + 2); r++)
    for (int64_t i = 0; i < D; i++) {
      const bool low = i < D / 2, rotated = r % (G + 2) <= G;
      const double angle = rotated ? (double)position[r / (K * (G + 2))] * (double)freq[i % (D / 2)] : 0;
      const double a = get(&in[0], r * D + i), b = get(&in[0], r * D + (low ? i + D / 2 : i - D / 2));
      const double off = fabs(get(&y, r * D + i) - (a * cos(angle) + (low ? -b : b) * sin(angle))) / 4;
      if (!(off <= most)) most = off;
    }
  ok(most < tol, "%s %s: rotary positions of N%lld T%lld K%lld G%lld D%lld from %lld are off by %.1e", name,
     tc_dtype_name(dtype), (long long)N, (long long)T, (long long)K, (long long)G, (long long)D, (long long)first, most);
  free(in[0].data), free(in[1].data), free(y.data);
  tc_device_close(d);
}

/* ---- products of few rows ---------------------------------------------------------------- */

static void test_few(int dtype)
{
  const int64_t m = draw(1, 4), n = draw(1, draw(0, 1) ? 9 : 300), k = draw(1, draw(0, 1) ? 9 : 700);
  const bool bias = draw(0, 1);
  const double rounding = dtype == TC_F32 ? 0 : 1.0 / 256;        /* of the result */
  /* Terms are added one after the other, or in any other order: k roundings, which are independent, of sums that grow
   * as the square root of their number. One by one they amount to 2^-24 sqrt(k / 6) of the whole sum's size, on
   * average. */
  const double tol = 4 * 0x1p-24 * sqrt((double)k + 1);
  struct tc_view in[3] = { owned(dtype, DIMS(m, k)), owned(dtype, DIMS(n, k)), owned(dtype, DIMS(n)) };
  struct tc_view y[2] = { owned(dtype, DIMS(m, n)), owned(dtype, DIMS(m, n)) };
  bool same = true;
  double most = 0;
  for (int i = 0; i < 3; i++) fill(&in[i]);
  for (int threads = 1; threads <= 4; threads++) {
    struct tc_device *d = dev("cpu", threads);
    struct tc_call c = { .op = TC_OP_MATMUL, .n_in = bias ? 3 : 2, .n_out = 1, .in = in, .out = &y[threads > 1],
                         .gemm = { .m = m, .n = n, .k = k, .tb = true } };
    if (!tc_cpu_is_few(&c)) ok(false, "a product of %lld rows is one of few rows", (long long)m);
    run_guarded(d, &c);
    same = same && (threads == 1 || !memcmp(y[0].data, y[1].data, (size_t)(m * n) * tc_dtype_bytes(dtype)));
    tc_device_close(d);
  }
  for (int64_t i = 0; i < m * n; i++) {
    double want = bias ? get(&in[2], i % n) : 0, size = 1;
    for (int64_t j = 0; j < k; j++) {
      const double a = get(&in[0], i / n * k + j) * get(&in[1], i % n * k + j);
      want += a;
      size += a * a;
    }
    const double off = (fabs(get(&y[0], i) - want) - rounding * fabs(want)) / sqrt(size);
    if (!(off <= most)) most = off;
  }
  ok(most < tol && same, "%s m%lld n%lld k%lld%s: off by %.1e, the same bits with 1 to 4 threads: %d", tc_dtype_name(dtype),
     (long long)m, (long long)n, (long long)k, bias ? " bias" : "", most, same);
  for (int i = 0; i < 3; i++) free(in[i].data);
  free(y[0].data), free(y[1].data);
}

/* What it must leave to the library. */
static void test_not_few(void)
{
  struct tc_view in[2] = { { .dtype = TC_F32 }, { .dtype = TC_F32 } }, out = { .dtype = TC_F32 };
  const struct tc_call c = { .op = TC_OP_MATMUL, .n_in = 2, .n_out = 1, .in = in, .out = &out,
                             .gemm = { .m = 4, .n = 8, .k = 8, .tb = true } };
  struct tc_call other[5];
  ok(tc_cpu_is_few(&c), "4 rows are few");
  for (int i = 0; i < 5; i++) other[i] = c;
  other[0].gemm.m = 5, other[1].gemm.m = 0, other[2].gemm.ta = true, other[3].gemm.tb = false, other[4].acc = 1;
  for (int i = 0; i < 5; i++) ok(!tc_cpu_is_few(&other[i]), "not so %s", (const char *[]){ "5 rows", "none",
    "a transposed x", "w that is not transposed", "a product that is added" }[i]);
  in[1].dtype = TC_BF16;
  ok(!tc_cpu_is_few(&c), "... nor two types");
}

int main(int argc, char **argv)
{
  const int cases = begin_cases(argc, argv, 30);
  test_not_few();
  static const struct { const char *name; int dtype; } on[] = { { "ref", TC_F64 }, { "cpu", TC_F32 }, { "cpu", TC_BF16 } };
  for (int i = 0; i < cases; i++) {
    for (int k = 0; k < 3; k++) {
      test_cache(on[k].name, on[k].dtype);
      test_positions(on[k].name, on[k].dtype);
      test_rope(on[k].name, on[k].dtype);
    }
    test_few(TC_F32);
    test_few(TC_BF16);
  }
  return done_testing();
}
