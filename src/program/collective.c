/* collective.c - counts and blocks of a RESHARD as a collective call. */
#include "src/program/collective.h"

#include <stdlib.h>
#include <string.h>

int tc_collective_coll(const struct tc_node *n, int coord)
{
  if (n->coll != TC_SEND) return n->coll;
  return coord == n->from_root ? TC_SEND : coord == n->root ? TC_RECV : TC_COLLS;
}

int tc_collective_root(const struct tc_node *n, int coord)
{
  if (n->coll != TC_SEND) return n->root;
  return coord == n->from_root ? n->root : n->from_root;
}

/* Elements of what the other axes leave of a tensor, whether or not these axes have it here. */
static int64_t whole_elems(const struct tc_tensor *t, unsigned axes, const struct tc_mesh *m,
                           const int32_t *coord, int64_t *last)
{
  struct tc_tensor x = *t;
  struct tc_local l;
  for (int a = 0; a < TC_AXES; a++)
    if (axes >> a & 1) x.lay.on[a] = (struct tc_place){ 0 };
  tc_tensor_local(&x, m, coord, &l);
  *last = x.rank > 1 ? l.dim[x.rank - 1] : 1;
  return l.elems;
}

static void count_part(const struct tc_tensor *a, const struct tc_tensor *b,
                       const struct tc_node *n, const struct tc_mesh *m, int rank,
                       struct tc_part *p)
{
  const int32_t *coord = m->coord + (size_t)rank * TC_AXES;
  const struct tc_place *from = tc_place_on(&a->lay, n->axes), *to = tc_place_on(&b->lay, n->axes);
  int size = tc_mesh_size(m, n->axes);
  int64_t last;
  p->count = whole_elems(a, n->axes, m, coord, &last);
  p->block = tc_ceil_div(p->count, size);
  if (from->kind == TC_FLAT || to->kind == TC_FLAT)
    p->block = last ? tc_ceil_div(p->count / last, size) * last : 0;
  if (n->coll == TC_ALL_TO_ALL) {           /* each has 1/n; its n blocks are 1/n of that */
    p->count /= size;
    p->block = p->count / size;
  }
}

/* Whether a tensor's block is of one size on every rank. */
static bool is_even(const struct tc_tensor *t)
{
  for (int a = 0; a < TC_AXES; a++)
    if (t->lay.on[a].kind == TC_FLAT || t->lay.on[a].kind == TC_AT) return false;
  return true;
}

/* The state tensor that follows `root` in the arena, if it does so on every rank; -1. */
static int32_t next_state(const struct tc_graph *g, int32_t root)
{
  const struct tc_tensor *x = &g->tensor[root];
  for (int32_t t = root + 1; t < g->n_tensors; t++) {
    const struct tc_tensor *y = &g->tensor[t];
    if (!y->state || y->cls != x->cls || y->space != x->space) continue;
    return is_even(x) && is_even(y) ? t : -1;
  }
  return -1;
}

static int by_root(const void *a, const void *b)
{
  const int32_t *x = a, *y = b;
  return x[0] != y[0] ? (x[0] < y[0] ? -1 : 1) : (x[1] < y[1] ? -1 : x[1] > y[1]);
}

int tc_collective_parts(const struct tc_graph *g, const struct tc_node *n, const struct tc_mesh *m,
                      int rank, struct tc_part *part)
{
  for (int k = 0; k < n->n_in; k++)
    count_part(&g->tensor[tc_in(g, n, k)], &g->tensor[tc_out(g, n, k)], n, m, rank, &part[k]);
  if (n->coll != TC_ALL_REDUCE || n->n_in == 1) return n->n_in;   /* elsewhere blocks line up */
  int32_t (*key)[2] = tc_malloc((size_t)n->n_in * sizeof *key);        /* root, part */
  struct tc_part *was = tc_malloc((size_t)n->n_in * sizeof *was);
  memcpy(was, part, (size_t)n->n_in * sizeof *was);
  for (int k = 0; k < n->n_in; k++) {
    key[k][0] = tc_tensor_root(g, tc_in(g, n, k));
    key[k][1] = k;
  }
  qsort(key, (size_t)n->n_in, sizeof *key, by_root);
  size_t elem = tc_dtype_bytes(g->tensor[tc_in(g, n, 0)].dtype);
  int last = 0;
  part[0] = was[key[0][1]];
  for (int i = 1; i < n->n_in; i++) {
    struct tc_part *a = &part[last];
    const struct tc_part *b = &was[key[i][1]];
    uintptr_t bytes = (uintptr_t)a->count * elem;
    bool adjacent = g->tensor[key[i - 1][0]].state && next_state(g, key[i - 1][0]) == key[i][0];
    if (adjacent && (uintptr_t)a->dst + bytes == (uintptr_t)b->dst &&
        (uintptr_t)a->src + bytes == (uintptr_t)b->src)
      a->count += b->count;
    else
      part[++last] = *b;
  }
  for (int i = 0; i <= last; i++) part[i].block = tc_ceil_div(part[i].count, tc_mesh_size(m, n->axes));
  TC_FREE(key, was);
  return last + 1;
}

/* The dimension along which a transfer has to pack its blocks; -1: each block is in one piece. */
static int inner_dim(const struct tc_place *p, const struct tc_local *l)
{
  int64_t before = 1;
  for (int d = 0; p->kind == TC_S && d < p->dim; d++) before *= l->dim[d];
  return p->kind == TC_S && before > 1 ? p->dim : -1;
}

int64_t tc_collective_packs(const struct tc_graph *g, const struct tc_node *n, int k,
                          const struct tc_mesh *m, int rank, int *pack_dim, int *unpack_dim)
{
  const struct tc_tensor *a = &g->tensor[tc_in(g, n, k)], *b = &g->tensor[tc_out(g, n, k)];
  struct tc_local from, to;
  *pack_dim = *unpack_dim = -1;
  if (tc_coll_is_local(n->coll) || n->coll == TC_COPY || tc_mesh_size(m, n->axes) == 1) return 0;
  const int32_t *coord = m->coord + (size_t)rank * TC_AXES;
  tc_tensor_local(a, m, coord, &from);
  tc_tensor_local(b, m, coord, &to);
  bool all = n->coll == TC_ALL_TO_ALL;
  if (all || n->coll == TC_REDUCE_SCATTER || n->coll == TC_SCATTER)
    *pack_dim = inner_dim(tc_place_on(&b->lay, n->axes), &from);
  if (all || n->coll == TC_ALL_GATHER || n->coll == TC_GATHER)
    *unpack_dim = inner_dim(tc_place_on(&a->lay, n->axes), &to);
  int64_t elems = (*pack_dim >= 0 ? from.elems : 0) + (*unpack_dim >= 0 ? to.elems : 0);
  return elems * (int64_t)tc_dtype_bytes(a->dtype);
}
