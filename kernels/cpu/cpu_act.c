/* cpu_act.c - activation functions, gates with them of x[N,2,F], and the cap of logits.
 *
 * Those of attr.act (enum tc_act_fn) are rows of tables, each a function of one block. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

/* ---- activation functions --------------------------------------------------------------- */

/* 0.5 (1 + tanh(u)) is the sigmoid of 2u: no cancellation at either end. */
#define GELU_C 1.59576912160573f       /* 2 sqrt(2 / pi) */

/* Inlined into loops that are cloned. */
#define INLINE static inline __attribute__((always_inline))

INLINE float gelu_tanh_of(float v)
{
  float u = GELU_C * v * (1.f + 0.044715f * v * v);
  return v / (1.f + tc_expf(-u));
}

INLINE float gelu_tanh_slope(float v)
{
  float q = TC_MIN(v * v, 1e30f), u = GELU_C * v * (1.f + 0.044715f * q);
  float e = tc_expf(-u), s = 1.f / (1.f + e);
  /* If 1 - s loses digits, s is close to 1 and the term is negligible. */
  float slope = s * (1.f - s);
  float du = GELU_C * (1.f + 3.f * 0.044715f * q);
  return s + v * slope * du;
}

TC_CLONES static void gelu_tanh(float *y, const float *x, const float *b, int64_t n, const float *f)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = gelu_tanh_of(x[i]);
}

TC_CLONES static void gelu_tanh_bwd(float *dx, const float *dy, const float *x, int64_t n, const float *f)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * gelu_tanh_slope(x[i]);
}

TC_CLONES static void gelu(float *y, const float *x, const float *b, int64_t n, const float *f)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * tc_normal_below(x[i], tc_expf(-0.5f * x[i] * x[i]));
}

TC_CLONES static void gelu_bwd(float *dx, const float *dy, const float *x, int64_t n, const float *f)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float v = x[i], e = tc_expf(-0.5f * v * v);
    dx[i] = dy[i] * (tc_normal_below(v, e) + 0.398942280401432678f * v * e);      /* 1 / sqrt(2 pi) */
  }
}

TC_CLONES static void relu2(float *y, const float *x, const float *b, int64_t n, const float *f)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float v = x[i] < 0.f ? 0.f : x[i];
    y[i] = v * v;
  }
}

TC_CLONES static void relu2_bwd(float *dx, const float *dy, const float *x, int64_t n, const float *f)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * 2.f * (x[i] < 0.f ? 0.f : x[i]);
}

int tc_cpu_act(struct tc_device *d, const struct tc_call *c)
{
  tc_cpu_block_fn *const fn[] = { gelu_tanh, gelu, relu2 };
  return tc_cpu_each_block(d, c, fn[c->k[2]]);
}

int tc_cpu_act_bwd(struct tc_device *d, const struct tc_call *c)
{
  tc_cpu_block_fn *const fn[] = { gelu_tanh_bwd, gelu_bwd, relu2_bwd };
  return tc_cpu_each_block(d, c, fn[c->k[2]]);
}

/* ---- the cap of logits ------------------------------------------------------------------ */

TC_CLONES static void softcap(float *y, const float *x, const float *b, int64_t n, const float *f)
{
  const float cap = f[1], inverse = 1.f / cap;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = cap * tc_tanhf(x[i] * inverse);
}

TC_CLONES static void softcap_bwd(float *dx, const float *dy, const float *y, int64_t n, const float *f)
{
  const float inverse = 1.f / f[1];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float t = y[i] * inverse;
    dx[i] = dy[i] * ((1.f - t) * (1.f + t));
  }
}

int tc_cpu_softcap(struct tc_device *d, const struct tc_call *c) { return tc_cpu_each_block(d, c, softcap); }

int tc_cpu_softcap_bwd(struct tc_device *d, const struct tc_call *c) { return tc_cpu_each_block(d, c, softcap_bwd); }

/* ---- gates ------------------------------------------------------------------------------ */

TC_CLONES static void silu(float *y, const float *a, const float *b, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = a[i] / (1.f + tc_expf(-a[i])) * b[i];
}

TC_CLONES static void silu_bwd(float *da, float *db, const float *dy, const float *a, const float *b, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float v = a[i], s = 1.f / (1.f + tc_expf(-v)), g = dy[i];
    da[i] = g * b[i] * s * (1.f + v * (1.f - s));
    db[i] = g * v * s;
  }
}

TC_CLONES static void gelu_gate(float *y, const float *a, const float *b, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = gelu_tanh_of(a[i]) * b[i];
}

TC_CLONES static void gelu_gate_bwd(float *da, float *db, const float *dy, const float *a, const float *b, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float v = a[i], g = dy[i];
    da[i] = g * b[i] * gelu_tanh_slope(v);
    db[i] = g * gelu_tanh_of(v);
  }
}

/* A block of a row: [from, from + n) of F columns of row r. */
struct piece { int64_t x, y, n; };

static int64_t pieces_per_row(int64_t F) { return tc_ceil_div(F, TC_BLOCK); }

static struct piece piece_at(int64_t i, int64_t F)
{
  const int64_t row = i / pieces_per_row(F), from = i % pieces_per_row(F) * TC_BLOCK;
  return (struct piece){ row * 2 * F + from, row * F + from, TC_MIN(TC_BLOCK, F - from) };
}

int tc_cpu_glu(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const int64_t F = x->dim[2], all = x->dim[0] * pieces_per_row(F);
  void (*const gate)(float *, const float *, const float *, int64_t) = c->k[2] == TC_FN_GATE_SILU ? silu : gelu_gate;
#pragma omp parallel for num_threads(tc_cpu_threads(d, y->elems)) schedule(static)
  for (int64_t i = 0; i < all; i++) {
    float a[TC_BLOCK], b[TC_BLOCK], out[TC_BLOCK];
    const struct piece p = piece_at(i, F);
    float *py = tc_cpu_out(y, p.y, p.n, out, false);
    gate(py, tc_cpu_in(x, p.x, p.n, a), tc_cpu_in(x, p.x + F, p.n, b), p.n);
    tc_cpu_put(y, p.y, p.n, py);
  }
  return 0;
}

int tc_cpu_glu_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0];
  const int64_t F = x->dim[2], all = x->dim[0] * pieces_per_row(F);
  void (*const gate)(float *, float *, const float *, const float *, const float *, int64_t) =
    c->k[2] == TC_FN_GATE_SILU ? silu_bwd : gelu_gate_bwd;
#pragma omp parallel for num_threads(tc_cpu_threads(d, dy->elems)) schedule(static)
  for (int64_t i = 0; i < all; i++) {
    float g[TC_BLOCK], a[TC_BLOCK], b[TC_BLOCK], da[TC_BLOCK], db[TC_BLOCK];
    const struct piece p = piece_at(i, F);
    float *pa = tc_cpu_out(dx, p.x, p.n, da, false), *pb = tc_cpu_out(dx, p.x + F, p.n, db, false);
    gate(pa, pb, tc_cpu_in(dy, p.y, p.n, g), tc_cpu_in(x, p.x, p.n, a), tc_cpu_in(x, p.x + F, p.n, b), p.n);
    tc_cpu_put(dx, p.x, p.n, pa);
    tc_cpu_put(dx, p.x + F, p.n, pb);
  }
  return 0;
}
