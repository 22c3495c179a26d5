/* ref_llama.c - naive kernels of what Llama's kin have instead of GPT-2's parts: RMS norm, norms of queries and
 * keys, rotary positions. */
#include "kernels/ref/ref.h"

#include <math.h>

/* ---- norms ---------------------------------------------------------------------------- */

static double gain_at(const struct tc_call *c, const struct tc_view *gain, int64_t j) { return tc_ref_get(gain, j) + c->f[1]; }

/* x[C] at `at`, scaled by 1 / sqrt(mean of x^2 + eps) and a gain, into out 0; returns the scale. */
static double rms_row(const struct tc_call *c, const struct tc_view *gain, int64_t at, int64_t C)
{
  const struct tc_view *x = &c->in[0];
  double sum = 0;
  for (int64_t j = 0; j < C; j++) sum += tc_ref_get(x, at + j) * tc_ref_get(x, at + j);
  const double rstd = 1 / sqrt(sum / (double)C + c->f[0]);
  for (int64_t j = 0; j < C; j++)
    tc_ref_put(&c->out[0], at + j, tc_ref_get(x, at + j) * rstd * gain_at(c, gain, j));
  return rstd;
}

/* dx = rstd (dy g - xhat mean(dy g xhat)), xhat = x rstd, of the row at `at`. */
static void rms_bwd_row(const struct tc_call *c, const struct tc_view *gain, double rstd, int64_t at,
                        int64_t C)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1];
  double mean = 0;
  for (int64_t j = 0; j < C; j++)
    mean += tc_ref_get(dy, at + j) * gain_at(c, gain, j) * tc_ref_get(x, at + j) * rstd;
  mean /= (double)C;
  for (int64_t j = 0; j < C; j++)
    tc_ref_out(c, 0, at + j, rstd * (tc_ref_get(dy, at + j) * gain_at(c, gain, j)
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

/* ---- of all queries together, and of all keys ------------------------------------------- */

/* Whether element i of qkv x is of a query (0), a key (1) or a value (2); *gain: the place of its gain. */
static int which(const struct tc_view *x, int64_t i, int64_t *gain)
{
  const int64_t D = x->dim[3], E = x->dim[2], G = E - 2, ke = i / D % (x->dim[1] * E), e = ke % E;
  *gain = (e < G ? ke / E * G + e : ke / E) * D + i % D;
  return e < G ? 0 : e == G ? 1 : 2;
}

/* The scale of the queries (0) or keys (1) of the row that element i is in. */
static double rstd_of(const struct tc_call *c, const struct tc_view *x, const struct tc_view *s, int64_t i, int k)
{
  const int64_t n = i / (x->elems / x->dim[0]);
  return 1 / sqrt(tc_ref_get(s, 2 * n + k) / (double)tc_call_qk_elems(x, k == 1) + c->f[0]);
}

int tc_ref_qk_squares(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  const int64_t N = x->dim[0], row = N ? x->elems / N : 0;
  for (int64_t n = 0, at; n < N; n++) {
    double sum[3] = { 0 };
    for (int64_t i = n * row; i < (n + 1) * row; i++)
      sum[which(x, i, &at)] += tc_ref_get(x, i) * tc_ref_get(x, i);
    for (int k = 0; k < 2; k++) tc_ref_put(&c->out[0], 2 * n + k, sum[k]);
  }
  return 0;
}

int tc_ref_qk_scale(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  for (int64_t i = 0, at; i < x->elems; i++) {
    const int k = which(x, i, &at);
    const double scale = k == 2 ? 1 : rstd_of(c, x, &c->in[1], i, k) * gain_at(c, &c->in[2 + k], at);
    tc_ref_put(&c->out[0], i, tc_ref_get(x, i) * scale);
  }
  return 0;
}

/* With r = (s / M + eps)^(-1/2) of M elements, dr/ds = -r^3 / (2 M). */
int tc_ref_qk_scale_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *s = &c->in[2];
  const int64_t N = x->dim[0], row = N ? x->elems / N : 0;
  for (int64_t i = 0, at; i < x->elems; i++) {
    const int k = which(x, i, &at);
    const double scale = k == 2 ? 1 : rstd_of(c, x, s, i, k) * gain_at(c, &c->in[3 + k], at);
    tc_ref_out(c, 0, i, tc_ref_get(dy, i) * scale);
  }
  for (int64_t n = 0, at; n < N; n++) {
    double sum[3] = { 0 };
    for (int64_t i = n * row, k; i < (n + 1) * row; i++)
      if ((k = which(x, i, &at)) < 2) sum[k] += tc_ref_get(dy, i) * tc_ref_get(x, i) * gain_at(c, &c->in[3 + k], at);
    for (int k = 0; k < 2; k++)
      tc_ref_out(c, 1, 2 * n + k, -0.5 * sum[k] * pow(rstd_of(c, x, s, n * row, k), 3) / (double)tc_call_qk_elems(x, k == 1));
  }
  for (int64_t j = 0, at; j < row; j++) {
    double sum = 0;
    const int k = which(x, j, &at);
    for (int64_t i = j; k < 2 && i < x->elems; i += row) sum += tc_ref_get(dy, i) * tc_ref_get(x, i) * rstd_of(c, x, s, i, k);
    if (k < 2) tc_ref_out(c, 2 + k, at, sum);
  }
  return 0;
}

int tc_ref_qk_squares_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[1];
  for (int64_t i = 0, at; i < x->elems; i++) {
    const int k = which(x, i, &at);
    const double ds = k == 2 ? 0 : tc_ref_get(&c->in[2], i / (x->elems / x->dim[0]) * 2 + k);
    tc_ref_put(&c->out[0], i, tc_ref_get(&c->in[0], i) + 2 * tc_ref_get(x, i) * ds);
  }
  return 0;
}

/* ---- rotary positions ------------------------------------------------------------------ */

/* Su et al., RoFormer, 2021; pairs (i, i + r/2) of the first r elements as in Hugging Face's Llama. The angle is a product
 * of two floats there, and so it is here. way 1: forward; -1: back. */
static int rotate(const struct tc_call *c, double way)
{
  const struct tc_view *x = &c->in[0];
  const int64_t K = x->dim[1], E = x->dim[2], D = x->dim[3], T = c->k[0], half = tc_call_rotary(c, D) / 2;
  const int32_t *starts = tc_call_starts(c, 1);
  const double factor = tc_call_factor(c);
  for (int64_t i = 0; i < x->elems; i++)
    if (i % D >= 2 * half) tc_ref_put(&c->out[0], i, tc_ref_get(x, i));
  for (int64_t n = 0; n < x->dim[0]; n++)
    for (int64_t ke = 0; ke < K * E; ke++)
      for (int64_t i = 0; i < half; i++) {
        const int64_t at = (n * K * E + ke) * D + i;
        const float angle = (float)tc_ref_position(c, x, n, T, starts) * c->freq[i];
        const bool value = ke % E == E - 1;
        const double co = value ? 1 : factor * cos((double)angle), si = value ? 0 : way * factor * sin((double)angle);
        const double a = tc_ref_get(x, at), b = tc_ref_get(x, at + half);
        tc_ref_put(&c->out[0], at, a * co - b * si);
        tc_ref_put(&c->out[0], at + half, b * co + a * si);
      }
  return 0;
}

int tc_ref_rope(struct tc_device *d, const struct tc_call *c) { return rotate(c, 1); }

int tc_ref_rope_bwd(struct tc_device *d, const struct tc_call *c) { return rotate(c, -1); }
