/* muon.h - what every device's kernel for the op MUON (op.def) computes: Jordan et al., "Muon: an optimizer for hidden layers
 * in neural networks", 2024, as torch.optim.Muon does it.
 *
 * Of each matrix U of the update, n x m, X = U / max(|U|, 1e-7), and then five times X <- a X + (b A + c A A) X with
 * A = X X^T, or, where n > m, X <- a X + X (b A + c A A) with A = X^T X. The bracket gets a on its diagonal, so that a step is
 * three products. All of it is computed in the call's last output (graph/matrices.h): X, the next X, A, and the bracket. */
#ifndef TC_MUON_H
#define TC_MUON_H

#include "src/graph/matrices.h"
#include "kernels/kernel.h"

#include <string.h>

enum { TC_MUON_STEPS = 5 };      /* odd: the last X is in place 1 */
#define TC_MUON_A 3.4445
#define TC_MUON_B (-4.7750)
#define TC_MUON_C 2.0315
#define TC_MUON_LEAST 1e-7       /* of |U| */

static inline int tc_muon_matrices(const struct tc_call *c) { return tc_matrices(c->out[0].global, c->k[2]); }
static inline struct tc_matrix tc_muon_matrix(const struct tc_call *c, int i)
{
  return tc_matrix_of(c->out[0].global, c->out[0].rank, c->k[1], c->k[2], i);
}

/* The first element of row r of a matrix in the weight. */
static inline int64_t tc_muon_row(const struct tc_matrix *x, int64_t r)
{
  return (x->first + r / x->run * x->step + r % x->run) * x->m;
}

/* Places of the last output, in elements: 0, 1: X; 2: A; 3: the bracket. */
static inline int64_t tc_muon_place(const struct tc_matrix *x, int k)
{
  const int64_t small = TC_MIN(x->n, x->m), all = x->n * x->m;
  return k < 2 ? k * all : 2 * all + (k - 2) * small * small;
}

/* What an update of this matrix is multiplied by, beside the learning rate. */
static inline double tc_muon_scale(const struct tc_matrix *x, int scale)
{
  const double n = (double)x->n, m = (double)x->m;
  switch (scale) {
  case TC_MUON_MATCH_RMS_ADAMW: return 0.2 * sqrt(TC_MAX(n, m));
  case TC_MUON_ORIGINAL: return sqrt(TC_MAX(1.0, n / m));
  default: return sqrt(n / m);
  }
}

/* The products of a step: A, A A, the next X. */
enum { TC_MUON_OWN, TC_MUON_SQUARE, TC_MUON_NEXT, TC_MUON_PRODUCTS };

/* Product k of a matrix as a call of MATMUL, with view[3] as its tensors, which have no data yet. */
static inline void tc_muon_product(struct tc_call *p, struct tc_view view[3], const struct tc_call *c, const struct tc_matrix *x,
                                   int k)
{
  const int64_t small = TC_MIN(x->n, x->m);
  const bool tall = x->n > x->m;
  memset(p, 0, sizeof *p);
  memset(view, 0, 3 * sizeof *view);
  p->op = TC_OP_MATMUL, p->node = c->node, p->n_in = 2, p->n_out = 1, p->in = view, p->out = view + 2, p->rt = c->rt;
  p->gemm.m = k == TC_MUON_NEXT ? x->n : small;
  p->gemm.n = k == TC_MUON_NEXT ? x->m : small;
  p->gemm.k = k == TC_MUON_OWN ? TC_MAX(x->n, x->m) : small;
  p->gemm.ta = k == TC_MUON_OWN && tall, p->gemm.tb = k == TC_MUON_OWN && !tall;
  const bool of_x[3] = { k == TC_MUON_OWN || (k == TC_MUON_NEXT && tall), k == TC_MUON_OWN || (k == TC_MUON_NEXT && !tall),
                         k == TC_MUON_NEXT };
  for (int i = 0; i < 3; i++) {
    view[i].dtype = c->out[2].dtype, view[i].rank = 2, view[i].rows = -1;
    view[i].elems = of_x[i] ? x->n * x->m : small * small;
  }
}

/* ... with these places of the call's last output as its tensors, in step `step`. */
static inline void tc_muon_take(struct tc_call *p, const struct tc_call *c, const struct tc_matrix *x, int k, int step)
{
  enum { A = 2, BRACKET = 3 };
  const int X = step % 2, tall = x->n > x->m, place[TC_MUON_PRODUCTS][3] = {
    { X, X, A }, { A, A, BRACKET }, { tall ? X : BRACKET, tall ? BRACKET : X, 1 - X } };
  for (int i = 0; i < 3; i++)
    (i < 2 ? &p->in[i] : &p->out[0])->data =
      (char *)c->out[2].data + tc_muon_place(x, place[k][i]) * (int64_t)tc_dtype_bytes(c->out[2].dtype);
  p->scratch = c->scratch;
}

#endif
