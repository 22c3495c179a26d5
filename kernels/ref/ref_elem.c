/* ref_elem.c - naive kernels that work element by element, on bias rows and on scalars. */
#include "kernels/ref/ref.h"

#include <math.h>

int tc_ref_bias(struct tc_device *d, const struct tc_call *c)
{
  int64_t nb = c->in[1].elems;
  for (int64_t i = 0; i < c->out[0].elems; i++)
    tc_ref_put(&c->out[0], i, tc_ref_get(&c->in[0], i) + tc_ref_get(&c->in[1], i % nb));
  return 0;
}

int tc_ref_bias_bwd(struct tc_device *d, const struct tc_call *c)
{
  int64_t nb = c->out[0].elems;
  for (int64_t j = 0; j < nb; j++) {
    double sum = 0;
    for (int64_t i = j; i < c->in[0].elems; i += nb) sum += tc_ref_get(&c->in[0], i);
    tc_ref_out(c, 0, j, sum);
  }
  return 0;
}

int tc_ref_add(struct tc_device *d, const struct tc_call *c)
{
  for (int64_t i = 0; i < c->out[0].elems; i++)
    tc_ref_put(&c->out[0], i, tc_ref_get(&c->in[0], i) + tc_ref_get(&c->in[1], i));
  return 0;
}

int tc_ref_cast(struct tc_device *d, const struct tc_call *c)
{
  for (int64_t i = 0; i < c->out[0].elems; i++)
    tc_ref_put(&c->out[0], i, tc_ref_get(&c->in[0], i));
  return 0;
}

int tc_ref_scale(struct tc_device *d, const struct tc_call *c)
{
  for (int64_t i = 0; i < c->out[0].elems; i++)
    tc_ref_put(&c->out[0], i, c->f[0] * tc_ref_get(&c->in[0], i));
  return 0;
}

int tc_ref_dropout(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *y = &c->out[0];
  for (int64_t i = 0; i < y->elems; i++) {
    float u = tc_uniform(c->rt->seed, (uint32_t)c->k[0], (uint32_t)c->rt->step, (uint64_t)tc_call_element(c, y, i));
    tc_ref_put(y, i, u >= c->f[0] ? tc_ref_get(&c->in[0], i) / (1.0 - (double)c->f[0]) : 0);
  }
  return 0;
}

int tc_ref_fill(struct tc_device *d, const struct tc_call *c)
{
  for (int64_t i = 0; i < c->out[0].elems; i++) tc_ref_put(&c->out[0], i, c->f[0]);
  return 0;
}

int tc_ref_accum(struct tc_device *d, const struct tc_call *c)
{
  for (int64_t i = 0; i < c->out[0].elems; i++)
    tc_ref_out(c, 0, i, tc_ref_get(&c->in[0], i));
  return 0;
}

int tc_ref_sum(struct tc_device *d, const struct tc_call *c)
{
  double sum = 0;
  for (int64_t i = 0; i < c->in[0].elems; i++) sum += tc_ref_get(&c->in[0], i);
  tc_ref_out(c, 0, 0, c->f[0] * sum);
  return 0;
}

int tc_ref_sqnorm(struct tc_device *d, const struct tc_call *c)
{
  double sum = 0;
  for (int k = 0; k < c->n_in; k++) {
    for (int64_t i = 0; i < c->in[k].elems; i++) {
      double x = tc_ref_get(&c->in[k], i);
      sum += x * x;
    }
  }
  tc_ref_put(&c->out[0], 0, sum);
  return 0;
}

int tc_ref_clip(struct tc_device *d, const struct tc_call *c)
{
  double sum = 0, clip = c->rt->clip;
  for (int k = 0; k < c->n_in; k++) sum += tc_ref_get(&c->in[k], 0);
  const double by = tc_loss_scale(c->rt);
  double norm = by * sqrt(sum), scale = clip / (norm + 1e-6);
  if (clip == 0 || scale > 1) scale = 1;       /* a NaN norm gives a NaN scale */
  tc_ref_put(&c->out[0], 0, norm);
  tc_ref_put(&c->out[1], 0, by * scale);
  return 0;
}

/* Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019; the order of the
 * operations is torch.optim.AdamW's. */
int tc_ref_adamw(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_runtime *rt = c->rt;
  double b1 = rt->beta1, b2 = rt->beta2, lr = (double)rt->lr * c->f[1];
  double scale = tc_ref_get(&c->in[1], 0);
  double decay = 1 - lr * rt->weight_decay * c->f[0];
  double size = lr / (1 - pow(b1, (double)rt->step));
  double root = sqrt(1 - pow(b2, (double)rt->step));
  for (int64_t i = 0; i < c->out[0].elems; i++) {
    double g = tc_ref_get(&c->in[0], i) * scale;
    double w = tc_ref_get(&c->in[2], i) * decay;
    double m = b1 * tc_ref_get(&c->in[3], i) + (1 - b1) * g;
    double v = b2 * tc_ref_get(&c->in[4], i) + (1 - b2) * g * g;
    tc_ref_put(&c->out[0], i, w - size * m / (sqrt(v) / root + rt->eps));
    tc_ref_put_state(c, 0, i, m);
    tc_ref_put_state(c, 1, i, v);
  }
  return 0;
}

/* The gradient as clipped, with weight decay coupled to it as torch.optim.SGD does. */
static double decayed(const struct tc_call *c, int64_t i)
{
  const double decay = (double)c->f[0] * c->rt->weight_decay;
  return tc_ref_get(&c->in[1], 0) * tc_ref_get(&c->in[0], i) + decay * tc_ref_get(&c->in[2], i);
}

int tc_ref_sgd(struct tc_device *d, const struct tc_call *c)
{
  const double lr = (double)c->rt->lr * c->f[1];
  for (int64_t i = 0; i < c->out[0].elems; i++)
    tc_ref_put(&c->out[0], i, tc_ref_get(&c->in[2], i) - lr * decayed(c, i));
  return 0;
}

/* torch.optim.SGD with momentum, without dampening. */
int tc_ref_momentum(struct tc_device *d, const struct tc_call *c)
{
  const double lr = (double)c->rt->lr * c->f[1];
  for (int64_t i = 0; i < c->out[0].elems; i++) {
    const double w = tc_ref_get(&c->in[2], i), m = c->rt->momentum * tc_ref_get(&c->in[3], i) + decayed(c, i);
    tc_ref_put(&c->out[0], i, w - lr * m);
    tc_ref_put_state(c, 0, i, m);
  }
  return 0;
}

/* Chen et al., "Symbolic discovery of optimization algorithms", 2023. */
int tc_ref_lion(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_runtime *rt = c->rt;
  const double b1 = rt->beta1, b2 = rt->beta2, lr = (double)rt->lr * c->f[1], scale = tc_ref_get(&c->in[1], 0);
  const double keep = 1 - lr * rt->weight_decay * c->f[0];
  for (int64_t i = 0; i < c->out[0].elems; i++) {
    const double g = tc_ref_get(&c->in[0], i) * scale, m = tc_ref_get(&c->in[3], i), x = b1 * m + (1 - b1) * g;
    const double sign = x > 0 ? 1 : x < 0 ? -1 : x;          /* not a number stays one */
    tc_ref_put(&c->out[0], i, tc_ref_get(&c->in[2], i) * keep - lr * sign);
    tc_ref_put_state(c, 0, i, b2 * m + (1 - b2) * g);
  }
  return 0;
}

int tc_ref_normal(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *y = &c->out[0];
  int64_t row_elems = 1;
  for (int j = 1; j < y->rank; j++) row_elems *= y->global[j];
  for (int64_t i = 0; i < y->elems; i++) {
    int64_t at = tc_view_global(y, i);
    bool pad = c->k[1] > 0 && at / row_elems >= c->k[1];
    double x = c->k[2] ? tc_even(tc_uniform(c->rt->seed, (uint32_t)c->k[0], 0, (uint64_t)at))
                       : tc_normal(c->rt->seed, (uint32_t)c->k[0], 0, (uint64_t)at);
    tc_ref_put(y, i, pad ? 0 : c->f[0] * x);
  }
  return 0;
}
