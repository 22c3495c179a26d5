/* ref_act.c - naive kernels of activation functions, of gates with them, and of the cap of logits. */
#include "kernels/ref/ref.h"

#include <math.h>

static const double gelu_c = 0.79788456080286535588;   /* sqrt(2 / pi) */

static double gelu_tanh(double x) { return 0.5 * x * (1 + tanh(gelu_c * (x + 0.044715 * x * x * x))); }

static double gelu_tanh_slope(double x)
{
  double t = tanh(gelu_c * (x + 0.044715 * x * x * x));
  double du = gelu_c * (1 + 3 * 0.044715 * x * x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * du;
}

/* erfc does not cancel where erf is near -1. */
static double gelu(double x) { return 0.5 * x * erfc(-x * sqrt(0.5)); }

static double gelu_slope(double x) { return 0.5 * erfc(-x * sqrt(0.5)) + 0.5 * gelu_c * x * exp(-0.5 * x * x); }

static double relu2(double x) { return x < 0 ? 0 : x * x; }

static double relu2_slope(double x) { return x < 0 ? 0 : 2 * x; }

/* By enum tc_act_fn. */
static double (*const value[])(double x) = { gelu_tanh, gelu, relu2 };
static double (*const slope[])(double x) = { gelu_tanh_slope, gelu_slope, relu2_slope };

int tc_ref_act(struct tc_device *d, const struct tc_call *c)
{
  for (int64_t i = 0; i < c->out[0].elems; i++)
    tc_ref_put(&c->out[0], i, value[c->k[2]](tc_ref_get(&c->in[0], i)));
  return 0;
}

int tc_ref_act_bwd(struct tc_device *d, const struct tc_call *c)
{
  for (int64_t i = 0; i < c->out[0].elems; i++)
    tc_ref_put(&c->out[0], i, tc_ref_get(&c->in[0], i) * slope[c->k[2]](tc_ref_get(&c->in[1], i)));
  return 0;
}

/* Shazeer, "GLU variants improve Transformer", 2020. x[N,2,F]: the gate's input, then what it scales. */
int tc_ref_glu(struct tc_device *d, const struct tc_call *c)
{
  const int64_t F = c->in[0].dim[2];
  for (int64_t i = 0; i < c->out[0].elems; i++) {
    const int64_t at = i / F * 2 * F + i % F;
    const double a = tc_ref_get(&c->in[0], at), b = tc_ref_get(&c->in[0], at + F);
    tc_ref_put(&c->out[0], i, (c->k[2] == TC_FN_GATE_SILU ? a / (1 + exp(-a)) : gelu_tanh(a)) * b);
  }
  return 0;
}

int tc_ref_glu_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[1];
  const int64_t F = x->dim[2];
  const bool silu = c->k[2] == TC_FN_GATE_SILU;
  for (int64_t i = 0; i < c->in[0].elems; i++) {
    const int64_t at = i / F * 2 * F + i % F;
    const double dy = tc_ref_get(&c->in[0], i), a = tc_ref_get(x, at), b = tc_ref_get(x, at + F);
    const double s = 1 / (1 + exp(-a));
    tc_ref_put(&c->out[0], at, silu ? dy * b * s * (1 + a * (1 - s)) : dy * b * gelu_tanh_slope(a));
    tc_ref_put(&c->out[0], at + F, silu ? dy * a * s : dy * gelu_tanh(a));
  }
  return 0;
}

int tc_ref_softcap(struct tc_device *d, const struct tc_call *c)
{
  const double cap = c->f[1];
  for (int64_t i = 0; i < c->out[0].elems; i++)
    tc_ref_put(&c->out[0], i, cap * tanh(tc_ref_get(&c->in[0], i) / cap));
  return 0;
}

int tc_ref_softcap_bwd(struct tc_device *d, const struct tc_call *c)
{
  for (int64_t i = 0; i < c->out[0].elems; i++) {
    const double t = tc_ref_get(&c->in[1], i) / c->f[1];
    tc_ref_put(&c->out[0], i, tc_ref_get(&c->in[0], i) * (1 - t * t));
  }
  return 0;
}
