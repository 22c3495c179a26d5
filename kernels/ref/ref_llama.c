/* ref_llama.c - naive kernels of what Llama's kin have instead of GPT-2's parts: RMS norm, norms of queries and
 * keys, rotary positions, SwiGLU. */
#include "kernels/ref/ref.h"

#include <math.h>

/* ---- norms ---------------------------------------------------------------------------- */

/* x[C] at `at`, scaled by 1 / sqrt(mean of x^2 + eps) and a gain, into out 0; returns the scale. */
static double rms_row(const struct tc_call *c, const struct tc_view *gain, int64_t at, int64_t C)
{
  const struct tc_view *x = &c->in[0];
  double sum = 0;
  for (int64_t j = 0; j < C; j++) sum += tc_ref_get(x, at + j) * tc_ref_get(x, at + j);
  const double rstd = 1 / sqrt(sum / (double)C + c->f[0]);
  for (int64_t j = 0; j < C; j++)
    tc_ref_put(&c->out[0], at + j, tc_ref_get(x, at + j) * rstd * tc_ref_get(gain, j));
  return rstd;
}

/* dx = rstd (dy g - xhat mean(dy g xhat)), xhat = x rstd, of the row at `at`. */
static void rms_bwd_row(const struct tc_call *c, const struct tc_view *gain, double rstd, int64_t at,
                        int64_t C)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1];
  double mean = 0;
  for (int64_t j = 0; j < C; j++)
    mean += tc_ref_get(dy, at + j) * tc_ref_get(gain, j) * tc_ref_get(x, at + j) * rstd;
  mean /= (double)C;
  for (int64_t j = 0; j < C; j++)
    tc_ref_out(c, 0, at + j, rstd * (tc_ref_get(dy, at + j) * tc_ref_get(gain, j)
                                     - tc_ref_get(x, at + j) * rstd * mean));
}

int tc_ref_rmsnorm(struct tc_device *d, const struct tc_call *c)
{
  const int64_t C = c->in[1].elems;
  for (int64_t n = 0; n < c->out[1].elems; n++)
    tc_ref_put(&c->out[1], n, rms_row(c, &c->in[1], n * C, C));
  return 0;
}

int tc_ref_rmsnorm_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *gain = &c->in[2], *rstd = &c->in[3];
  const int64_t C = gain->elems, N = rstd->elems;
  for (int64_t j = 0; j < C; j++) {
    double sum = 0;
    for (int64_t n = 0; n < N; n++)
      sum += tc_ref_get(dy, n * C + j) * tc_ref_get(x, n * C + j) * tc_ref_get(rstd, n);
    tc_ref_out(c, 1, j, sum);
  }
  for (int64_t n = 0; n < N; n++) rms_bwd_row(c, gain, tc_ref_get(rstd, n), n * C, C);
  return 0;
}

/* x[N,K,E,D]: E - 2 queries, their key, their value. */
int tc_ref_qknorm(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  const int64_t E = x->dim[2], D = x->dim[3], groups = x->dim[0] * x->dim[1];
  for (int64_t k = 0; k < groups; k++)
    for (int64_t e = 0; e < E; e++) {
      const int64_t at = (k * E + e) * D;
      if (e < E - 1)
        tc_ref_put(&c->out[1], k * (E - 1) + e, rms_row(c, &c->in[e < E - 2 ? 1 : 2], at, D));
      for (int64_t j = 0; e == E - 1 && j < D; j++)
        tc_ref_put(&c->out[0], at + j, tc_ref_get(x, at + j));
    }
  return 0;
}

int tc_ref_qknorm_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *rstd = &c->in[4];
  const int64_t E = x->dim[2], D = x->dim[3], groups = x->dim[0] * x->dim[1];
  for (int64_t j = 0; j < D; j++) {
    double sum[2] = { 0 };                       /* of queries, of keys */
    for (int64_t k = 0; k < groups; k++)
      for (int64_t e = 0; e < E - 1; e++) {
        const int64_t i = (k * E + e) * D + j;
        sum[e == E - 2] += tc_ref_get(dy, i) * tc_ref_get(x, i) * tc_ref_get(rstd, k * (E - 1) + e);
      }
    tc_ref_out(c, 1, j, sum[0]);
    tc_ref_out(c, 2, j, sum[1]);
  }
  for (int64_t k = 0; k < groups; k++)
    for (int64_t e = 0; e < E; e++) {
      const int64_t at = (k * E + e) * D;
      if (e < E - 1)
        rms_bwd_row(c, &c->in[e < E - 2 ? 2 : 3], tc_ref_get(rstd, k * (E - 1) + e), at, D);
      for (int64_t j = 0; e == E - 1 && j < D; j++) tc_ref_out(c, 0, at + j, tc_ref_get(dy, at + j));
    }
  return 0;
}

/* ---- rotary positions ------------------------------------------------------------------ */

/* Su et al., RoFormer, 2021; pairs (i, i + D/2) as in Hugging Face's Llama. The angle is a product of
 * two floats there, and so it is here. way 1: forward; -1: back. */
static int rotate(const struct tc_call *c, double way)
{
  const struct tc_view *x = &c->in[0];
  const int64_t K = x->dim[1], E = x->dim[2], D = x->dim[3], T = c->k[0];
  const int32_t *starts = tc_call_starts(c, 1);
  for (int64_t n = 0; n < x->dim[0]; n++)
    for (int64_t ke = 0; ke < K * E; ke++)
      for (int64_t i = 0; i < D / 2; i++) {
        const int64_t at = (n * K * E + ke) * D + i;
        const float angle = (float)tc_ref_position(c, x, n, T, starts) * c->freq[i];
        const bool value = ke % E == E - 1;
        const double co = value ? 1 : cos((double)angle), si = value ? 0 : way * sin((double)angle);
        const double a = tc_ref_get(x, at), b = tc_ref_get(x, at + D / 2);
        tc_ref_put(&c->out[0], at, a * co - b * si);
        tc_ref_put(&c->out[0], at + D / 2, b * co + a * si);
      }
  return 0;
}

int tc_ref_rope(struct tc_device *d, const struct tc_call *c) { return rotate(c, 1); }

int tc_ref_rope_bwd(struct tc_device *d, const struct tc_call *c) { return rotate(c, -1); }

/* ---- SwiGLU ---------------------------------------------------------------------------- */

/* Shazeer, "GLU variants improve Transformer", 2020. x[N,2,F]: the gate's input, then what it scales. */
int tc_ref_glu(struct tc_device *d, const struct tc_call *c)
{
  const int64_t F = c->in[0].dim[2];
  for (int64_t i = 0; i < c->out[0].elems; i++) {
    const int64_t at = i / F * 2 * F + i % F;
    const double a = tc_ref_get(&c->in[0], at);
    tc_ref_put(&c->out[0], i, a / (1 + exp(-a)) * tc_ref_get(&c->in[0], at + F));
  }
  return 0;
}

int tc_ref_glu_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[1];
  const int64_t F = x->dim[2];
  for (int64_t i = 0; i < c->in[0].elems; i++) {
    const int64_t at = i / F * 2 * F + i % F;
    const double dy = tc_ref_get(&c->in[0], i), a = tc_ref_get(x, at), b = tc_ref_get(x, at + F);
    const double s = 1 / (1 + exp(-a));
    tc_ref_put(&c->out[0], at, dy * b * s * (1 + a * (1 - s)));
    tc_ref_put(&c->out[0], at + F, dy * a * s);
  }
  return 0;
}
