/* ref_muon.c - Muon's update (kernels/muon.h). What is kept between two products has the type of the call's last output. */
#include "kernels/ref/ref.h"
#include "kernels/muon.h"

/* The place of X, A or the bracket within the last output. */
static struct tc_view place(const struct tc_call *c, const struct tc_matrix *x, int k)
{
  struct tc_view v = c->out[2];
  v.data = (char *)v.data + tc_muon_place(x, k) * (int64_t)tc_dtype_bytes(v.dtype);
  return v;
}

/* The average of gradients, and X: the update divided by its norm. */
static void begin(const struct tc_call *c, const struct tc_matrix *x)
{
  const double mu = c->rt->muon_momentum, scale = tc_ref_get(&c->in[1], 0);
  const struct tc_view X = place(c, x, 0), next = place(c, x, 1);
  double squares = 0;
  for (int64_t i = 0; i < x->n * x->m; i++) {
    const int64_t at = tc_muon_row(x, i / x->m) + i % x->m;
    const double g = scale * tc_ref_get(&c->in[0], at), m = mu * tc_ref_get(&c->in[3], at) + (1 - mu) * g;
    tc_ref_put_state(c, 0, at, m);
    const double u = (1 - mu) * g + mu * tc_ref_get(&c->out[1], at);
    tc_ref_put(&next, i, u);
    squares += u * u;
  }
  const double norm = sqrt(squares);
  for (int64_t i = 0; i < x->n * x->m; i++)
    tc_ref_put(&X, i, tc_ref_get(&next, i) / (norm > TC_MUON_LEAST || !(norm == norm) ? norm : TC_MUON_LEAST));
}

/* Element (i, j) of X X^T or, where the matrix has more rows than columns, X^T X. */
static double own_product(const struct tc_matrix *x, const struct tc_view *X, int64_t i, int64_t j)
{
  double sum = 0;
  if (x->n > x->m)
    for (int64_t k = 0; k < x->n; k++) sum += tc_ref_get(X, k * x->m + i) * tc_ref_get(X, k * x->m + j);
  else
    for (int64_t k = 0; k < x->m; k++) sum += tc_ref_get(X, i * x->m + k) * tc_ref_get(X, j * x->m + k);
  return sum;
}

static void newton_schulz(const struct tc_call *c, const struct tc_matrix *x, const struct tc_view *X, const struct tc_view *next)
{
  const struct tc_view A = place(c, x, 2), bracket = place(c, x, 3);
  const int64_t s = TC_MIN(x->n, x->m);
  for (int64_t e = 0; e < s * s; e++) tc_ref_put(&A, e, own_product(x, X, e / s, e % s));
  for (int64_t e = 0; e < s * s; e++) {
    double sum = 0;
    for (int64_t k = 0; k < s; k++) sum += tc_ref_get(&A, e / s * s + k) * tc_ref_get(&A, k * s + e % s);
    tc_ref_put(&bracket, e, TC_MUON_B * tc_ref_get(&A, e) + TC_MUON_C * sum + (e / s == e % s ? TC_MUON_A : 0));
  }
  for (int64_t e = 0; e < x->n * x->m; e++) {
    const int64_t i = e / x->m, j = e % x->m;
    double sum = 0;
    for (int64_t k = 0; k < s; k++)
      sum += x->n > x->m ? tc_ref_get(X, i * s + k) * tc_ref_get(&bracket, k * s + j)
                         : tc_ref_get(&bracket, i * s + k) * tc_ref_get(X, k * x->m + j);
    tc_ref_put(next, e, sum);
  }
}

int tc_ref_muon(struct tc_device *d, const struct tc_call *c)
{
  const double lr = (double)c->rt->lr * c->f[1], keep = 1 - lr * c->rt->weight_decay * c->f[0];
  if (c->out[0].elems == 0) return 0;            /* another rank's */
  for (int i = 0; i < tc_muon_matrices(c); i++) {
    const struct tc_matrix x = tc_muon_matrix(c, i);
    const double rate = lr * tc_muon_scale(&x, c->rt->muon_scale);
    begin(c, &x);
    struct tc_view X = place(c, &x, 0), next = place(c, &x, 1);
    for (int k = 0; k < TC_MUON_STEPS; k++) {
      newton_schulz(c, &x, &X, &next);
      const struct tc_view other = X;
      X = next, next = other;
    }
    for (int64_t e = 0; e < x.n * x.m; e++) {
      const int64_t at = tc_muon_row(&x, e / x.m) + e % x.m;
      tc_ref_put(&c->out[0], at, tc_ref_get(&c->in[2], at) * keep - rate * tc_ref_get(&X, e));
    }
  }
  return 0;
}
