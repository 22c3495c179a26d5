/* cpu_muon.c - Muon's update (kernels/muon.h): products by oneDNN, what is between them by rows. X X^T and A A are symmetric: about
 * half of them is computed. A matrix that has more columns than rows is transposed before and after. */
#include "kernels/cpu/cpu.h"
#include "kernels/muon.h"

#include <stdlib.h>
#include <string.h>

/* A product's part: all of the next X; of a symmetric product rows [from, to) and columns [0, to): the rest is mirrored.
 * first: of product k of matrix i, first[i PRODUCTS + k]. */
enum { PRODUCTS = TC_MUON_PRODUCTS, MOST_PARTS = 8, LEAST_ROWS = 128, TILE = 32 };
struct part { int64_t from; struct tc_call call; struct tc_view view[3]; };
struct plan { int n, first[3 * PRODUCTS + 1]; struct part part[3 * PRODUCTS * MOST_PARTS]; };

/* Rows of a part. With more parts less is computed twice; with few rows a product is slower. Measured with oneDNN 2.6.3, one thread
 * of an EPYC with AVX-512, ms of X^T X and of A A for X of 3072 x 768, fp32 and bf16:
 *   rows   768          384          256          192          128          96           64
 *   X^T X  32.6  16.8   23.7  12.6   21.1  11.2   19.7  10.8   18.5  10.1   17.7   9.9   17.3   9.8
 *   A A     7.9   4.1    5.9   3.2    5.2   2.7    4.9   2.6    4.6   2.4    4.4   2.4    4.3   2.4 */
static int64_t part_rows(int64_t rows)
{
  return tc_round_up(tc_ceil_div(rows, TC_MAX(1, TC_MIN(MOST_PARTS, rows / LEAST_ROWS))), TILE);
}

/* What products see of a matrix: with more columns than rows its transpose, whose own product is faster. */
static struct tc_matrix tall_of(const struct tc_call *c, int i)
{
  struct tc_matrix x = tc_muon_matrix(c, i);
  const int64_t n = x.n;
  if (n < x.m) x.n = x.m, x.m = n;
  return x;
}

static void take_part(struct part *t, const struct tc_call *c, const struct tc_matrix *x, int k, int64_t from)
{
  struct tc_gemm *g = &t->call.gemm;
  tc_muon_product(&t->call, t->view, c, x, k);
  t->from = from;
  if (k == TC_MUON_NEXT) return;
  const int64_t s = g->m, to = TC_MIN(s, from + part_rows(s));
  g->ld[0] = g->ta ? s : g->k, g->ld[1] = g->tb ? g->k : s, g->ld[2] = s;
  g->m = to - from, g->n = to;
  t->view[0].elems = g->ta ? (g->k - 1) * s + g->m : g->m * g->k;
  t->view[1].elems = g->tb ? g->n * g->k : (g->k - 1) * s + g->n;
  t->view[2].elems = (g->m - 1) * s + g->n;
}

/* The parts of all products; owned by the caller. */
static struct plan *parts_of(const struct tc_call *c)
{
  struct plan *p = tc_calloc(1, sizeof *p);
  for (int i = 0; i < tc_muon_matrices(c) * PRODUCTS; i++) {
    const struct tc_matrix x = tall_of(c, i / PRODUCTS);
    const int64_t s = x.m, rows = i % PRODUCTS == TC_MUON_NEXT ? s : part_rows(s);
    for (int64_t from = 0; from < s; from += rows) take_part(&p->part[p->n++], c, &x, i % PRODUCTS, from);
    p->first[i + 1] = p->n;
  }
  return p;
}

int64_t tc_cpu_muon_scratch(struct tc_device *d, const struct tc_call *c)
{
  int64_t bytes = 0;
  if (c->out[0].elems == 0) return 0;            /* another rank's */
  struct plan *p = parts_of(c);
  for (int i = 0; i < tc_muon_matrices(c); i++) bytes = TC_MAX(bytes, tc_muon_matrix(c, i).n * (int64_t)sizeof(double));
  for (int i = 0; i < p->n; i++) bytes = TC_MAX(bytes, tc_cpu_matmul_scratch(d, &p->part[i].call));
  free(p);
  return bytes;
}

void tc_cpu_muon_unprepare(struct tc_device *d, struct tc_call *c)
{
  struct plan *p = c->plan;
  for (int i = 0; p && i < p->n; i++) tc_cpu_matmul_unprepare(d, &p->part[i].call);
  free(p);
  c->plan = NULL;
}

int tc_cpu_muon_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err)
{
  c->plan = NULL;
  if (c->out[0].elems == 0) return 0;
  struct plan *p = c->plan = parts_of(c);
  for (int i = 0; i < p->n; i++) {
    const int rc = tc_cpu_matmul_prepare(d, &p->part[i].call, err);
    if (rc < 0) return tc_cpu_muon_unprepare(d, c), rc;
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

static void begin(struct tc_device *d, const struct tc_call *c, const struct tc_matrix *x, const struct tc_view *X)
{
  const double mu = (double)c->rt->muon_momentum;
  const float rest = (float)((1 - mu) * (double)*tc_cpu_f32(&c->in[1]));
  double *part = c->scratch, squares = 0;
#pragma omp parallel for num_threads(tc_cpu_threads(d, X->elems)) schedule(static)
  for (int64_t r = 0; r < x->n; r++) part[r] = average_row(c, x, r, (float)mu, rest);
  for (int64_t r = 0; r < x->n; r++) squares += part[r];
  const double norm = sqrt(squares);             /* not a number stays one */
  const float size = (float)(1 / (norm < TC_MUON_LEAST ? TC_MUON_LEAST : norm));
#pragma omp parallel for num_threads(tc_cpu_threads(d, X->elems)) schedule(static)
  for (int64_t r = 0; r < x->n; r++) first_row(c, x, X, r, (float)mu, rest, size);
}

/* to[columns, .] = from[rows, .] transposed, of at most TILE rows: each line of memory is read once and written once. */
#define DEFINE_TURN(name, type)                                                                                        \
  TC_CLONES static void name(type *to, int64_t to_row, const type *from, int64_t from_row, int64_t rows, int64_t columns) \
  {                                                                                                                    \
    for (int64_t j = 0; j < columns; j += TILE) {                                                                      \
      type tile[TILE][TILE];                                                                                           \
      const int64_t n = TC_MIN(TILE, columns - j);                                                                     \
      for (int64_t r = 0; r < rows; r++) memcpy(tile[r], from + r * from_row + j, (size_t)n * sizeof *to);             \
      for (int64_t q = 0; q < n; q++) {                                                                                \
        _Pragma("omp simd")                                                                                            \
        for (int64_t r = 0; r < rows; r++) to[(j + q) * to_row + r] = tile[r][q];                                      \
      }                                                                                                                \
    }                                                                                                                  \
  }
DEFINE_TURN(turn_f32, float)
DEFINE_TURN(turn_bf16, uint16_t)

/* The first `columns` of rows [at, at + TILE) of a matrix of n rows and m columns become columns of y, whose rows have y_row. */
static void turn(const struct tc_view *y, int64_t y_row, const struct tc_view *x, int64_t n, int64_t m, int64_t at, int64_t columns)
{
  const int64_t rows = TC_MIN(TILE, n - at);
  if (y->dtype == TC_F32) turn_f32((float *)y->data + at, y_row, (const float *)x->data + at * m, m, rows, columns);
  else turn_bf16((uint16_t *)y->data + at, y_row, (const uint16_t *)x->data + at * m, m, rows, columns);
}

/* y[m,n] = x[n,m] transposed. */
static void transpose(struct tc_device *d, const struct tc_view *y, const struct tc_view *x, int64_t n, int64_t m)
{
#pragma omp parallel for num_threads(tc_cpu_threads(d, x->elems)) schedule(static)
  for (int64_t at = 0; at < n; at += TILE) turn(y, n, x, n, m, at, m);
}

/* Makes columns [0, to) of the bracket's row r: y, A A so far, becomes a I + b A + c y. */
static void bracket_row(const struct tc_view *y, const struct tc_view *A, int64_t s, int64_t r, int64_t to)
{
  for (int64_t j = 0; j < to; j += TC_BLOCK) {
    float a_buf[TC_BLOCK], out[TC_BLOCK];
    const int64_t n = TC_MIN(TC_BLOCK, to - j), i = r * s + j;
    float *x = tc_cpu_out(y, i, n, out, true);
    blend(x, tc_cpu_in(A, i, n, a_buf), (float)TC_MUON_B, (float)TC_MUON_C, n);
    if (r >= j && r < j + n) x[r - j] += (float)TC_MUON_A;
    tc_cpu_put(y, i, n, x);
  }
}

/* A symmetric product y[s,s], of which each part of rows is there up to its diagonal. If A is given, y is A A and becomes the
 * bracket. */
static void complete(struct tc_device *d, const struct tc_view *y, const struct tc_view *A, int64_t s)
{
#pragma omp parallel for num_threads(tc_cpu_threads(d, y->elems)) schedule(static, 1)
  for (int64_t at = 0; at < s; at += TILE) {
    for (int64_t r = at; A && r < TC_MIN(s, at + TILE); r++) bracket_row(y, A, s, r, TC_MIN(s, at + TILE));
    turn(y, s, y, s, s, at, at);
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

/* Product k of matrix i in step `step`. */
static int multiply(struct tc_device *d, const struct tc_call *c, int i, int k, int step)
{
  const struct tc_matrix x = tall_of(c, i);
  const int64_t bytes = (int64_t)tc_dtype_bytes(c->out[2].dtype);
  struct plan *p = c->plan;
  for (int at = p->first[i * PRODUCTS + k]; at < p->first[i * PRODUCTS + k + 1]; at++) {
    struct part *t = &p->part[at];
    const struct tc_gemm *g = &t->call.gemm;
    tc_muon_take(&t->call, c, &x, k, step);
    t->view[0].data = (char *)t->view[0].data + t->from * (g->ta ? 1 : g->ld[0]) * bytes;
    t->view[2].data = (char *)t->view[2].data + t->from * g->ld[2] * bytes;
    TC_TRY(tc_cpu_matmul(d, &t->call));
  }
  return 0;
}

static int update_matrix(struct tc_device *d, const struct tc_call *c, int i)
{
  const struct tc_matrix x = tc_muon_matrix(c, i);
  const double lr = (double)c->rt->lr * (double)c->f[1];
  const float keep = (float)(1 - lr * (double)c->rt->weight_decay * (double)c->f[0]);
  const float rate = (float)(lr * tc_muon_scale(&x, c->rt->muon_scale));
  const int64_t s = TC_MIN(x.n, x.m);
  const bool wide = x.n < x.m;
  const struct tc_view even = place(c, &x, 0), odd = place(c, &x, 1), A = place(c, &x, 2), y = place(c, &x, 3);
  begin(d, c, &x, wide ? &odd : &even);
  if (wide) transpose(d, &even, &odd, x.n, x.m);
  for (int k = 0; k < TC_MUON_STEPS; k++) {
    TC_TRY(multiply(d, c, i, TC_MUON_OWN, k));
    complete(d, &A, NULL, s);
    TC_TRY(multiply(d, c, i, TC_MUON_SQUARE, k));
    complete(d, &y, &A, s);
    TC_TRY(multiply(d, c, i, TC_MUON_NEXT, k));
  }
  if (wide) transpose(d, &even, &odd, x.m, x.n);
  const struct tc_view *X = wide ? &even : &odd;
#pragma omp parallel for num_threads(tc_cpu_threads(d, X->elems)) schedule(static)
  for (int64_t r = 0; r < x.n; r++) move_row(c, &x, X, r, keep, rate);
  return 0;
}

int tc_cpu_muon(struct tc_device *d, const struct tc_call *c)
{
  for (int i = 0; c->plan && i < tc_muon_matrices(c); i++) TC_TRY(update_matrix(d, c, i));
  return 0;
}
