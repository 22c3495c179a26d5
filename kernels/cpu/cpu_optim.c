/* cpu_optim.c - squared norms, clipping and the optimizers' updates. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

TC_CLONES static float sum_squares(const float *x, int64_t n)
{
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
  return sum;
}

/* One partial sum (double) per block of an input. */
int64_t tc_cpu_sqnorm_scratch(struct tc_device *d, const struct tc_call *c)
{
  int64_t blocks = 0;
  for (int k = 0; k < c->n_in; k++) blocks += tc_ceil_div(c->in[k].elems, TC_BLOCK);
  return blocks * (int64_t)sizeof(double);
}

int tc_cpu_sqnorm(struct tc_device *d, const struct tc_call *c)
{
  double *part = c->scratch, sum = 0;
  for (int k = 0; k < c->n_in; k++) {
    const struct tc_view *x = &c->in[k];
    int64_t blocks = tc_ceil_div(x->elems, TC_BLOCK);
#pragma omp parallel for num_threads(tc_cpu_threads(d, x->elems)) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
      float buf[TC_BLOCK];
      int64_t i = b * TC_BLOCK, n = TC_MIN(TC_BLOCK, x->elems - i);
      part[b] = sum_squares(tc_cpu_in(x, i, n, buf), n);
    }
    for (int64_t b = 0; b < blocks; b++) sum += part[b];
  }
  *tc_cpu_f32(&c->out[0]) = (float)sum;
  return 0;
}

/* torch.nn.utils.clip_grad_norm_'s formula. */
int tc_cpu_clip(struct tc_device *d, const struct tc_call *c)
{
  double sum = 0, clip = (double)c->rt->clip;
  for (int k = 0; k < c->n_in; k++) sum += (double)*tc_cpu_f32(&c->in[k]);
  const double by = tc_loss_scale(c->rt);
  double norm = by * sqrt(sum), scale = clip / (norm + 1e-6);
  if (clip == 0 || scale > 1) scale = 1;       /* a NaN norm gives a NaN scale */
  *tc_cpu_f32(&c->out[0]) = (float)norm;
  *tc_cpu_f32(&c->out[1]) = (float)(by * scale);
  return 0;
}

struct adamw { float scale, decay, b1, b2, c1, c2, size, inv_root, eps; };
struct moments { float *w, *m, *v; const float *g, *w0, *m0, *v0; };

TC_CLONES static void adamw_block(const struct moments *p, const struct adamw *a, int64_t n)
{
  float *w = p->w, *m = p->m, *v = p->v;
  const float *g = p->g, *w0 = p->w0, *m0 = p->m0, *v0 = p->v0;
  const struct adamw k = *a;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float e = g[i] * k.scale;
    float m1 = k.b1 * m0[i] + k.c1 * e, v1 = k.b2 * v0[i] + k.c2 * e * e;
    m[i] = m1;
    v[i] = v1;
    w[i] = w0[i] * k.decay - k.size * m1 / (tc_sqrtf(v1) * k.inv_root + k.eps);
  }
}

/* Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, as in
 * torch.optim.AdamW; the constants of a step are computed in double. */
int tc_cpu_adamw(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_runtime *rt = c->rt;
  const double b1 = rt->beta1, b2 = rt->beta2, lr = (double)rt->lr * (double)c->f[1], t = (double)rt->step;
  const struct adamw k = {
    .scale = *tc_cpu_f32(&c->in[1]),
    .decay = (float)(1 - lr * (double)rt->weight_decay * (double)c->f[0]),
    .b1 = rt->beta1, .b2 = rt->beta2, .c1 = (float)(1 - b1), .c2 = (float)(1 - b2),
    .size = (float)(lr / (1 - pow(b1, t))), .inv_root = (float)(1 / sqrt(1 - pow(b2, t))),
    .eps = rt->eps,
  };
  const int64_t elems = c->out[0].elems;
#pragma omp parallel for num_threads(tc_cpu_threads(d, elems)) schedule(static)
  for (int64_t i = 0; i < elems; i += TC_BLOCK) {
    float in[4][TC_BLOCK], out[3][TC_BLOCK];
    uint32_t bits[TC_BLOCK];
    int64_t n = TC_MIN(TC_BLOCK, elems - i);
    struct moments p;
    p.g = tc_cpu_in(&c->in[0], i, n, in[0]);
    p.w0 = tc_cpu_in(&c->in[2], i, n, in[1]);
    p.m0 = tc_cpu_in(&c->in[3], i, n, in[2]);
    p.v0 = tc_cpu_in(&c->in[4], i, n, in[3]);
    p.w = tc_cpu_out(&c->out[0], i, n, out[0], false);
    p.m = tc_cpu_out(&c->out[1], i, n, out[1], false);
    p.v = tc_cpu_out(&c->out[2], i, n, out[2], false);
    adamw_block(&p, &k, n);
    tc_cpu_put(&c->out[0], i, n, p.w);
    const uint32_t *by = tc_cpu_draw(c, i, n, bits);
    tc_cpu_put_state(c, 0, i, n, p.m, by);
    tc_cpu_put_state(c, 1, i, n, p.v, by);
  }
  return 0;
}

TC_CLONES static void sgd_block(float *w, const float *g, const float *w0, float rate, float decay,
                                int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) w[i] = w0[i] - (rate * g[i] + decay * w0[i]);
}

int tc_cpu_sgd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *w = &c->out[0];
  const float lr = c->rt->lr * c->f[1], rate = lr * *tc_cpu_f32(&c->in[1]);
  const float decay = lr * c->f[0] * c->rt->weight_decay;
#pragma omp parallel for num_threads(tc_cpu_threads(d, w->elems)) schedule(static)
  for (int64_t i = 0; i < w->elems; i += TC_BLOCK) {
    float a[TC_BLOCK], b[TC_BLOCK], out[TC_BLOCK];
    int64_t n = TC_MIN(TC_BLOCK, w->elems - i);
    float *py = tc_cpu_out(w, i, n, out, false);
    sgd_block(py, tc_cpu_in(&c->in[0], i, n, a), tc_cpu_in(&c->in[2], i, n, b), rate, decay, n);
    tc_cpu_put(w, i, n, py);
  }
  return 0;
}

/* ---- one state ----------------------------------------------------------------------------- */

struct one { float lr, scale, decay, keep, b1, b2, c1, c2; };
typedef void one_block(float *w, float *m, const float *g, const float *w0, const float *m0, const struct one *k, int64_t n);

/* torch.optim.SGD with momentum, without dampening. */
TC_CLONES static void momentum_block(float *w, float *m, const float *g, const float *w0, const float *m0,
                                     const struct one *one, int64_t n)
{
  const struct one k = *one;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float m1 = k.b1 * m0[i] + (k.scale * g[i] + k.decay * w0[i]);
    m[i] = m1;
    w[i] = w0[i] - k.lr * m1;
  }
}

/* Chen et al., "Symbolic discovery of optimization algorithms", 2023. */
TC_CLONES static void lion_block(float *w, float *m, const float *g, const float *w0, const float *m0,
                                 const struct one *one, int64_t n)
{
  const struct one k = *one;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float e = g[i] * k.scale, x = k.b1 * m0[i] + k.c1 * e;
    const float sign = x > 0 ? 1 : x < 0 ? -1 : x;           /* not a number stays one */
    w[i] = w0[i] * k.keep - k.lr * sign;
    m[i] = k.b2 * m0[i] + k.c2 * e;
  }
}

static int update_one(struct tc_device *d, const struct tc_call *c, one_block *block, float b1)
{
  const struct tc_runtime *rt = c->rt;
  const double lr = (double)rt->lr * (double)c->f[1], decay = (double)rt->weight_decay * (double)c->f[0];
  const struct one k = { .lr = (float)lr, .scale = *tc_cpu_f32(&c->in[1]), .decay = (float)decay, .keep = (float)(1 - lr * decay),
                         .b1 = b1, .b2 = rt->beta2, .c1 = (float)(1 - (double)b1), .c2 = (float)(1 - (double)rt->beta2) };
  const int64_t elems = c->out[0].elems;
#pragma omp parallel for num_threads(tc_cpu_threads(d, elems)) schedule(static)
  for (int64_t i = 0; i < elems; i += TC_BLOCK) {
    float in[3][TC_BLOCK], out[2][TC_BLOCK];
    uint32_t bits[TC_BLOCK];
    const int64_t n = TC_MIN(TC_BLOCK, elems - i);
    float *w = tc_cpu_out(&c->out[0], i, n, out[0], false), *m = tc_cpu_out(&c->out[1], i, n, out[1], false);
    block(w, m, tc_cpu_in(&c->in[0], i, n, in[0]), tc_cpu_in(&c->in[2], i, n, in[1]), tc_cpu_in(&c->in[3], i, n, in[2]), &k, n);
    tc_cpu_put(&c->out[0], i, n, w);
    tc_cpu_put_state(c, 0, i, n, m, tc_cpu_draw(c, i, n, bits));
  }
  return 0;
}

int tc_cpu_momentum(struct tc_device *d, const struct tc_call *c) { return update_one(d, c, momentum_block, c->rt->momentum); }
int tc_cpu_lion(struct tc_device *d, const struct tc_call *c) { return update_one(d, c, lion_block, c->rt->beta1); }
