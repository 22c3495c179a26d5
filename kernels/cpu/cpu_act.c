/* cpu_act.c - activation functions, gates with them of x[N,2,F], and the cap of logits.
 *
 * Those of attr.act (enum tc_act_fn) are rows of tables. Each is a function of one block. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

/* ---- activation functions, and gates f(x) b ---------------------------------------------- */

/* n numbers x; their function, or a gate times b, goes to y. Backward g is the gradient of that; x's goes to y, b's to z. */
#define ARGS float *y, float *z, const float *g, const float *x, const float *b, int64_t n

/* Inlined into loops that are cloned. */
#define INLINE static inline __attribute__((always_inline))

/* 0.5 (1 + tanh(u)) is the sigmoid of 2u: no cancellation at either end. */
INLINE float gelu_tanh_of(float v)
{
  float u = TC_GELU_C * v * (1.f + 0.044715f * v * v);
  return v / (1.f + tc_expf(-u));
}

INLINE float gelu_tanh_slope(float v)
{
  float q = TC_MIN(v * v, 1e30f), u = TC_GELU_C * v * (1.f + 0.044715f * q);
  float e = tc_expf(-u), s = 1.f / (1.f + e);
  /* If 1 - s loses digits, s is close to 1 and the term is negligible. */
  float slope = s * (1.f - s);
  float du = TC_GELU_C * (1.f + 3.f * 0.044715f * q);
  return s + v * slope * du;
}

TC_CLONES static void gelu_tanh(ARGS)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = gelu_tanh_of(x[i]);
}

TC_CLONES static void gelu_tanh_bwd(ARGS)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = g[i] * gelu_tanh_slope(x[i]);
}

TC_CLONES static void gelu(ARGS)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * tc_normal_below(x[i], tc_expf(-0.5f * x[i] * x[i]));
}

TC_CLONES static void gelu_bwd(ARGS)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float v = x[i], e = tc_expf(-0.5f * v * v);
    y[i] = g[i] * (tc_normal_below(v, e) + 0.398942280401432678f * v * e);      /* 1 / sqrt(2 pi) */
  }
}

TC_CLONES static void relu2(ARGS)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float v = x[i] < 0.f ? 0.f : x[i];
    y[i] = v * v;
  }
}

TC_CLONES static void relu2_bwd(ARGS)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = g[i] * 2.f * (x[i] < 0.f ? 0.f : x[i]);
}

TC_CLONES static void silu_gate(ARGS)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = x[i] / (1.f + tc_expf(-x[i])) * b[i];
}

TC_CLONES static void silu_gate_bwd(ARGS)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float v = x[i], s = 1.f / (1.f + tc_expf(-v)), dy = g[i];
    y[i] = dy * b[i] * s * (1.f + v * (1.f - s));
    z[i] = dy * v * s;
  }
}

TC_CLONES static void gelu_gate(ARGS)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = gelu_tanh_of(x[i]) * b[i];
}

TC_CLONES static void gelu_gate_bwd(ARGS)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float v = x[i], dy = g[i];
    y[i] = dy * b[i] * gelu_tanh_slope(v);
    z[i] = dy * gelu_tanh_of(v);
  }
}

/* bf16: for bf16 tensors where the CPU multiplies bf16 (cpu_bf16.c); NULL: these are converted to fp32 and back. */
struct act { void (*f32)(ARGS); tc_cpu_bf16_fn *bf16; };

static int each_block(struct tc_device *d, const struct tc_call *c, const struct act *act, bool gate, bool back)
{
  const struct tc_view *g = &c->in[0], *x = &c->in[back], *y = &c->out[0];
  const int64_t F = gate ? x->dim[2] : x->elems, per_row = tc_ceil_div(F, TC_BLOCK), all = gate ? x->dim[0] * per_row : per_row;
  TC_ASSERT(y->elems * (gate && !back ? 2 : 1) == x->elems && g->elems * (gate && back ? 2 : 1) == x->elems);
  const bool bf16 = act->bf16 && tc_cpu_of(d)->bf16 && g->dtype == TC_BF16 && x->dtype == TC_BF16 && y->dtype == TC_BF16;
#pragma omp parallel for num_threads(tc_cpu_threads(d, x->elems)) schedule(static)
  for (int64_t i = 0; i < all; i++) {
    const int64_t row = i / per_row, from = i % per_row * TC_BLOCK, n = TC_MIN(TC_BLOCK, F - from);
    /* Places in what has one row for a row of x and in what has two. */
    const int64_t one = row * F + from, two = gate ? row * 2 * F + from : one, to = back ? two : one;
    if (bf16) {
      uint16_t *const py = (uint16_t *)y->data + to;
      const uint16_t *const px = (const uint16_t *)x->data + two;
      act->bf16(py, gate && back ? py + F : NULL, back ? (const uint16_t *)g->data + one : NULL, px, gate ? px + F : NULL, n);
      continue;
    }
    float buf[5][TC_BLOCK];
    float *const py = tc_cpu_out(y, to, n, buf[0], false);
    float *const pz = gate && back ? tc_cpu_out(y, to + F, n, buf[1], false) : NULL;
    act->f32(py, pz, back ? tc_cpu_in(g, one, n, buf[2]) : NULL, tc_cpu_in(x, two, n, buf[3]),
             gate ? tc_cpu_in(x, two + F, n, buf[4]) : NULL, n);
    tc_cpu_put(y, to, n, py);
    if (pz) tc_cpu_put(y, to + F, n, pz);
  }
  return 0;
}

int tc_cpu_act(struct tc_device *d, const struct tc_call *c)
{
  static const struct act act[] = { { gelu_tanh, tc_bf16_gelu_tanh }, { gelu, NULL }, { relu2, NULL } };
  return each_block(d, c, &act[c->k[2]], false, false);
}

int tc_cpu_act_bwd(struct tc_device *d, const struct tc_call *c)
{
  static const struct act act[] = { { gelu_tanh_bwd, tc_bf16_gelu_tanh_bwd }, { gelu_bwd, NULL }, { relu2_bwd, NULL } };
  return each_block(d, c, &act[c->k[2]], false, true);
}

int tc_cpu_glu(struct tc_device *d, const struct tc_call *c)
{
  static const struct act gate[] = { { silu_gate, tc_bf16_silu_gate }, { gelu_gate, tc_bf16_gelu_gate } };
  return each_block(d, c, &gate[c->k[2]], true, false);
}

int tc_cpu_glu_bwd(struct tc_device *d, const struct tc_call *c)
{
  static const struct act gate[] = { { silu_gate_bwd, tc_bf16_silu_gate_bwd }, { gelu_gate_bwd, tc_bf16_gelu_gate_bwd } };
  return each_block(d, c, &gate[c->k[2]], true, true);
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
