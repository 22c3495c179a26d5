/* owners.c - deals out matrices whose update is of whole ones (`matrices` in update.def).
 *
 * Where rows split such a parameter's update, one of the ranks among which they split it makes all of the update, at(k):
 * the longest goes first, each to the rank that has the least so far (Graham, "Bounds on multiprocessing timing anomalies",
 * 1969). Parameters that are split over the same axes, on one stage, are dealt out together. The deal depends on shapes and
 * placements alone, so it is the same in all programs of a run. */
#include "src/graph/matrices.h"
#include "src/model/optim.h"
#include "src/passes/passes.h"

#include <stdlib.h>

struct item { double work; int32_t param; };

/* Most work first; of equal ones the first parameter. */
static int by_work(const void *pa, const void *pb)
{
  const struct item *a = pa, *b = pb;
  if (a->work != b->work) return a->work < b->work ? 1 : -1;
  return a->param < b->param ? -1 : a->param > b->param;
}

double tc_owner_work(const struct tc_graph *g, const struct tc_param *p)
{
  const struct tc_tensor *w = &g->tensor[p->master];
  double work = 0;
  for (int i = 0; i < tc_matrices(w->dim, p->cut); i++) {
    const struct tc_matrix x = tc_matrix_of(w->dim, w->rank, p->outputs, p->cut, i);
    work += tc_matrix_work(&x);
  }
  return work;
}

/* The axes over which rows split a parameter's update, which is of whole matrices. */
static unsigned split_axes(const struct tc_param *p, const struct tc_mesh *m)
{
  unsigned axes = 0;
  for (int a = 0; a < TC_AXES && tc_update_row[p->kind].matrices && !p->frozen; a++)
    if (a != TC_MB && m->size[a] > 1 && tc_is_split(p->update.on[a].kind)) axes |= 1u << a;
  return axes;
}

/* Owner k of those on `axes`, outermost axis first. */
static void give(struct tc_graph *g, struct tc_param *p, const struct tc_mesh *m, unsigned axes, int32_t k)
{
  for (int a = TC_AXES - 1; a >= 0; a--) {
    if (!(axes >> a & 1)) continue;
    p->update.on[a] = (struct tc_place){ TC_AT, 0, 0, k % m->size[a] };
    k /= m->size[a];
  }
  tc_place_param(g, p);
}

/* Deals out n parameters among all ranks on `axes`; of more ranks than parameters those that have one are spread evenly. */
static void deal(struct tc_graph *g, const struct tc_mesh *m, unsigned axes, struct item *item, int32_t n)
{
  int64_t ranks = 1;
  for (int a = 0; a < TC_AXES; a++) ranks *= axes >> a & 1 ? m->size[a] : 1;
  const int32_t owners = (int32_t)TC_MIN(ranks, n);
  double *load = tc_calloc((size_t)owners, sizeof *load);
  qsort(item, (size_t)n, sizeof *item, by_work);
  for (int32_t i = 0; i < n; i++) {
    int32_t k = 0;
    for (int32_t o = 1; o < owners; o++)
      if (load[o] < load[k]) k = o;
    load[k] += item[i].work;
    give(g, &g->param[item[i].param], m, axes, (int32_t)(k * ranks / owners));
  }
  free(load);
}

void tc_owners(struct tc_graph *g, const struct tc_mesh *m)
{
  struct item *item = tc_malloc((size_t)g->n_params * sizeof *item);
  for (int32_t i = 0; i < g->n_params; i++) {
    const unsigned axes = split_axes(&g->param[i], m);
    int32_t n = 0;
    for (int32_t j = i; axes && j < g->n_params; j++) {
      const struct tc_param *p = &g->param[j];
      if (split_axes(p, m) == axes && p->update.on[TC_PP].at == g->param[i].update.on[TC_PP].at)
        item[n++] = (struct item){ tc_owner_work(g, p), j };
    }
    if (n) deal(g, m, axes, item, n);            /* they are split over no axes from here on */
  }
  free(item);
}
