/* ref_head.c - naive kernels of the loss head: x[N,V] may be a block of the vocabulary that
 * starts at x.off[1]; columns at or past k[0] (padding) don't count. */
#include "kernels/ref/ref.h"

#include <math.h>

int tc_ref_rowmax(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  int64_t V = x->dim[1], live = tc_live_columns(c, x);
  for (int64_t n = 0; n < x->dim[0]; n++) {
    double max = -INFINITY;
    for (int64_t v = 0; v < live; v++) {
      double e = tc_ref_get(x, n * V + v);
      if (e > max || isnan(e)) max = e;
    }
    tc_ref_put(&c->out[0], n, max);
  }
  return 0;
}

int tc_ref_sumexp(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  int64_t V = x->dim[1], live = tc_live_columns(c, x);
  for (int64_t n = 0; n < x->dim[0]; n++) {
    double m = tc_ref_get(&c->in[1], n), sum = 0;
    for (int64_t v = 0; v < live; v++) sum += exp(tc_ref_get(x, n * V + v) - m);
    tc_ref_put(&c->out[0], n, sum);
  }
  return 0;
}

int tc_ref_sumexp_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  int64_t V = x->dim[1], live = tc_live_columns(c, x);
  for (int64_t n = 0; n < x->dim[0]; n++) {
    double m = tc_ref_get(&c->in[1], n), ds = tc_ref_get(&c->in[2], n);
    for (int64_t v = 0; v < V; v++)
      tc_ref_put(&c->out[0], n * V + v, v < live ? ds * exp(tc_ref_get(x, n * V + v) - m) : 0);
  }
  return 0;
}

int tc_ref_pick(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  int64_t V = x->dim[1];
  for (int64_t n = 0; n < x->dim[0]; n++) {
    int64_t v = tc_ref_int(&c->in[1], n) - x->off[1];
    tc_ref_put(&c->out[0], n, v >= 0 && v < V ? tc_ref_get(x, n * V + v) : 0);
  }
  return 0;
}

int tc_ref_pick_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dx = &c->out[0];
  int64_t V = dx->dim[1];
  for (int64_t n = 0; n < dx->dim[0]; n++) {
    int64_t at = tc_ref_int(&c->in[1], n) - dx->off[1];
    for (int64_t v = 0; v < V; v++)
      tc_ref_put(dx, n * V + v, tc_ref_get(&c->in[0], n * V + v)
                                + (v == at ? tc_ref_get(&c->in[2], n) : 0));
  }
  return 0;
}

int tc_ref_nll(struct tc_device *d, const struct tc_call *c)
{
  const int32_t *target = c->in[3].data;
  for (int64_t n = 0; n < c->out[0].elems; n++) {
    const double lse = tc_ref_get(&c->in[0], n) + log(tc_ref_get(&c->in[1], n));
    const double l = lse - tc_ref_get(&c->in[2], n), square = c->f[0] > 0 ? c->f[0] * lse * lse : 0;
    tc_ref_put(&c->out[0], n, target[n] < 0 ? 0 : l + square);
  }
  return 0;
}

int tc_ref_nll_bwd(struct tc_device *d, const struct tc_call *c)
{
  const int32_t *target = c->in[2].data;
  for (int64_t n = 0; n < c->out[0].elems; n++) {
    const double dl = target[n] < 0 ? 0 : tc_ref_get(&c->in[0], n), s = tc_ref_get(&c->in[1], n);
    const double more = c->f[0] > 0 ? 2 * c->f[0] * (tc_ref_get(&c->in[3], n) + log(s)) : 0;
    tc_ref_put(&c->out[0], n, dl * (1 + more) / s);
    tc_ref_put(&c->out[1], n, -dl);
  }
  return 0;
}
