/* cpu_muon.c - Muon's update (kernels/muon.h): products by oneDNN, what is between them by rows. */
#include "kernels/cpu/cpu.h"
#include "kernels/muon.h"

#include <stdlib.h>
#include <string.h>

enum { PRODUCTS = TC_MUON_PRODUCTS };
struct plan { int n; struct tc_call call[3 * PRODUCTS]; struct tc_view view[3 * PRODUCTS][3]; };

int64_t tc_cpu_muon_scratch(struct tc_device *d, const struct tc_call *c)
{
  int64_t bytes = 0;
  for (int i = 0; i < tc_muon_matrices(c) && c->out[0].elems > 0; i++) {
    const struct tc_matrix x = tc_muon_matrix(c, i);
    bytes = TC_MAX(bytes, x.n * (int64_t)sizeof(double));
    for (int k = 0; k < PRODUCTS; k++) {
      struct tc_view view[3];
      struct tc_call p;
      tc_muon_product(&p, view, c, &x, k);
      bytes = TC_MAX(bytes, tc_cpu_matmul_scratch(d, &p));
    }
  }
  return bytes;
}

void tc_cpu_muon_unprepare(struct tc_device *d, struct tc_call *c)
{
  struct plan *p = c->plan;
  for (int i = 0; p && i < p->n; i++) tc_cpu_matmul_unprepare(d, &p->call[i]);
  free(p);
  c->plan = NULL;
}

int tc_cpu_muon_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err)
{
  c->plan = NULL;
  if (c->out[0].elems == 0) return 0;            /* another rank's */
  struct plan *p = c->plan = tc_calloc(1, sizeof *p);
  for (int i = 0; i < tc_muon_matrices(c) * PRODUCTS; i++) {
    const struct tc_matrix x = tc_muon_matrix(c, i / PRODUCTS);
    tc_muon_product(&p->call[i], p->view[i], c, &x, i % PRODUCTS);
    const int rc = tc_cpu_matmul_prepare(d, &p->call[i], err);
    if (rc < 0) return tc_cpu_muon_unprepare(d, c), rc;
    p->n++;
  }
  return 0;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* m = mu m0 + rest g; m may be m0. */
TC_CLONES static void average(float *m, const float *m0, const float *g, float mu, float rest, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) m[i] = mu * m0[i] + rest * g[i];
}

/* u = size (mu m + rest g). */
TC_CLONES static void look_ahead(float *u, const float *m, const float *g, float mu, float rest, float size, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) u[i] = size * (mu * m[i] + rest * g[i]);
}

TC_CLONES static double squares_of(const float *x, int64_t n) { return tc_sum_of_squares(x, n); }

/* y = a x + b y. */
TC_CLONES static void blend(float *y, const float *x, float a, float b, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = a * x[i] + b * y[i];
}

/* A matrix in the call's last output. */
static struct tc_view place(const struct tc_call *c, const struct tc_matrix *x, int k)
{
  struct tc_view v = { .dtype = c->out[2].dtype, .rows = -1, .elems = tc_muon_place(x, k + 1) - tc_muon_place(x, k) };
  v.data = (char *)c->out[2].data + tc_muon_place(x, k) * (int64_t)tc_dtype_bytes(v.dtype);
  return v;
}

/* The average of gradients, of a row; returns the sum of the update's squares. */
static double average_row(const struct tc_call *c, const struct tc_matrix *x, int64_t r, float mu, float rest)
{
  double sum = 0;
  for (int64_t j = 0; j < x->m; j += TC_BLOCK) {
    float g_buf[TC_BLOCK], m_buf[TC_BLOCK], out[TC_BLOCK], u[TC_BLOCK];
    uint32_t bits[TC_BLOCK];
    const int64_t n = TC_MIN(TC_BLOCK, x->m - j), at = tc_muon_row(x, r) + j;
    const float *g = tc_cpu_in(&c->in[0], at, n, g_buf);
    float *m = tc_cpu_out(&c->out[1], at, n, out, false);
    average(m, tc_cpu_in(&c->in[3], at, n, m_buf), g, mu, rest, n);
    tc_cpu_put_state(c, 0, at, n, m, tc_cpu_draw(c, at, n, bits));
    look_ahead(u, tc_cpu_in(&c->out[1], at, n, m_buf), g, mu, rest, 1, n);
    sum += squares_of(u, n);
  }
  return sum;
}

/* X, of a row: the update by its norm. */
static void first_row(const struct tc_call *c, const struct tc_matrix *x, const struct tc_view *X, int64_t r, float mu, float rest,
                      float size)
{
  for (int64_t j = 0; j < x->m; j += TC_BLOCK) {
    float g_buf[TC_BLOCK], m_buf[TC_BLOCK], out[TC_BLOCK];
    const int64_t n = TC_MIN(TC_BLOCK, x->m - j), at = tc_muon_row(x, r) + j, i = r * x->m + j;
    float *u = tc_cpu_out(X, i, n, out, false);
    look_ahead(u, tc_cpu_in(&c->out[1], at, n, m_buf), tc_cpu_in(&c->in[0], at, n, g_buf), mu, rest, size, n);
    tc_cpu_put(X, i, n, u);
  }
}

static void begin(struct tc_device *d, const struct tc_call *c, const struct tc_matrix *x)
{
  const double mu = (double)c->rt->muon_momentum;
  const float rest = (float)((1 - mu) * (double)*tc_cpu_f32(&c->in[1]));
  const struct tc_view X = place(c, x, 0);
  double *part = c->scratch, squares = 0;
#pragma omp parallel for num_threads(tc_cpu_threads(d, X.elems)) schedule(static)
  for (int64_t r = 0; r < x->n; r++) part[r] = average_row(c, x, r, (float)mu, rest);
  for (int64_t r = 0; r < x->n; r++) squares += part[r];
  const double norm = sqrt(squares);             /* not a number stays one */
  const float size = (float)(1 / (norm < TC_MUON_LEAST ? TC_MUON_LEAST : norm));
#pragma omp parallel for num_threads(tc_cpu_threads(d, X.elems)) schedule(static)
  for (int64_t r = 0; r < x->n; r++) first_row(c, x, &X, r, (float)mu, rest, size);
}

/* The bracket: y, A A so far, becomes a I + b A + c y. */
static void bracket(struct tc_device *d, const struct tc_view *y, const struct tc_view *A, int64_t s)
{
#pragma omp parallel for num_threads(tc_cpu_threads(d, y->elems)) schedule(static)
  for (int64_t r = 0; r < s; r++) {
    for (int64_t j = 0; j < s; j += TC_BLOCK) {
      float a_buf[TC_BLOCK], out[TC_BLOCK];
      const int64_t n = TC_MIN(TC_BLOCK, s - j), i = r * s + j;
      float *to = tc_cpu_out(y, i, n, out, true);
      blend(to, tc_cpu_in(A, i, n, a_buf), (float)TC_MUON_B, (float)TC_MUON_C, n);
      if (r >= j && r < j + n) to[r - j] += (float)TC_MUON_A;
      tc_cpu_put(y, i, n, to);
    }
  }
}

static void move_row(const struct tc_call *c, const struct tc_matrix *x, const struct tc_view *X, int64_t r, float keep, float rate)
{
  for (int64_t j = 0; j < x->m; j += TC_BLOCK) {
    float x_buf[TC_BLOCK], w_buf[TC_BLOCK], out[TC_BLOCK];
    const int64_t n = TC_MIN(TC_BLOCK, x->m - j), at = tc_muon_row(x, r) + j;
    float *w = tc_cpu_out(&c->out[0], at, n, out, false);
    const float *w0 = tc_cpu_in(&c->in[2], at, n, w_buf);
    if (w != w0) memcpy(w, w0, (size_t)n * sizeof *w);
    blend(w, tc_cpu_in(X, r * x->m + j, n, x_buf), -rate, keep, n);
    tc_cpu_put(&c->out[0], at, n, w);
  }
}

static int multiply(struct tc_device *d, const struct tc_call *c, const struct tc_matrix *x, struct tc_call *product, int k, int step)
{
  tc_muon_take(&product[k], c, x, k, step);
  return tc_cpu_matmul(d, &product[k]);
}

static int update_matrix(struct tc_device *d, const struct tc_call *c, const struct tc_matrix *x, struct tc_call *product)
{
  const double lr = (double)c->rt->lr * (double)c->f[1];
  const float keep = (float)(1 - lr * (double)c->rt->weight_decay * (double)c->f[0]);
  const float rate = (float)(lr * tc_muon_scale(x, c->rt->muon_scale));
  const struct tc_view A = place(c, x, 2), y = place(c, x, 3);
  begin(d, c, x);
  for (int k = 0; k < TC_MUON_STEPS; k++) {
    TC_TRY(multiply(d, c, x, product, TC_MUON_OWN, k));
    TC_TRY(multiply(d, c, x, product, TC_MUON_SQUARE, k));
    bracket(d, &y, &A, TC_MIN(x->n, x->m));
    TC_TRY(multiply(d, c, x, product, TC_MUON_NEXT, k));
  }
  const struct tc_view X = place(c, x, TC_MUON_STEPS % 2);
#pragma omp parallel for num_threads(tc_cpu_threads(d, X.elems)) schedule(static)
  for (int64_t r = 0; r < x->n; r++) move_row(c, x, &X, r, keep, rate);
  return 0;
}

int tc_cpu_muon(struct tc_device *d, const struct tc_call *c)
{
  struct plan *p = c->plan;
  for (int i = 0; p && i < tc_muon_matrices(c); i++) {
    const struct tc_matrix x = tc_muon_matrix(c, i);
    TC_TRY(update_matrix(d, c, &x, &p->call[i * PRODUCTS]));
  }
  return 0;
}
