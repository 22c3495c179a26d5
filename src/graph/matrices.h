/* matrices.h - the matrices that a weight holds, for an update that works on whole ones (op MUON). Local and pure.
 *
 * The first `outputs` dimensions of a weight are rows, the others columns. Where dimension `cut` - 1 of the rows holds several
 * matrices (queries, key, value; gate, up) its last two are matrices by themselves, or the last one of two; the rest is one. */
#ifndef TC_MATRICES_H
#define TC_MATRICES_H

#include "src/base/base.h"

/* A matrix of n rows and m columns: `runs` times `run` rows of the weight, `step` rows from one run to the next, the first of
 * them row `first`. */
struct tc_matrix { int64_t n, m, runs, run, step, first; };

static inline int tc_matrices(const int64_t *dim, int64_t cut) { return cut > 0 ? (int)TC_MIN(dim[cut - 1], 3) : 1; }

static inline struct tc_matrix tc_matrix_of(const int64_t *dim, int rank, int64_t outputs, int64_t cut, int i)
{
  const int count = tc_matrices(dim, cut);
  const int64_t all = cut > 0 ? dim[cut - 1] : 1, rest = all - count + 1, from = i == 0 ? 0 : rest + i - 1;
  struct tc_matrix x = { 1, 1, 1, 1, 0, 0 };
  for (int d = 0; d < rank; d++)
    if (d >= outputs) x.m *= dim[d];
    else if (d < cut - 1) x.runs *= dim[d];
    else if (d != cut - 1) x.run *= dim[d];
  x.step = all * x.run;
  x.first = from * x.run;
  x.run *= i == 0 ? rest : 1;
  x.n = x.runs * x.run;
  return x;
}

/* What five steps of Newton-Schulz on it take: 10 times this many multiplications and additions. */
static inline double tc_matrix_work(const struct tc_matrix *x)
{
  const double small = (double)TC_MIN(x->n, x->m), large = (double)TC_MAX(x->n, x->m);
  return small * small * (2 * large + small);
}

/* Elements of two matrices of its size, and of two products with its own transpose: what they are computed in. */
static inline int64_t tc_matrix_room(const struct tc_matrix *x)
{
  const int64_t small = TC_MIN(x->n, x->m);
  return 2 * x->n * x->m + 2 * small * small;
}

#endif
