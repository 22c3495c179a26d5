/* collective.c - counts and blocks of transitions; what one step of a program sends. */
#include "src/program/collective.h"
#include "src/program/program.h"

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

/* Elements of what the other axes leave of a tensor, whether or not this axis has it here. */
static int64_t whole_elems(const struct tc_tensor *t, int axis, const struct tc_mesh *m,
                           const int32_t *coord, int64_t *last)
{
  struct tc_tensor x = *t;
  struct tc_local l;
  x.lay.on[axis] = (struct tc_place){ 0 };
  tc_tensor_local(&x, m, coord, &l);
  *last = x.rank > 1 ? l.dim[x.rank - 1] : 1;
  return l.elems;
}

static void count_part(const struct tc_tensor *a, const struct tc_tensor *b,
                       const struct tc_node *n, const struct tc_mesh *m, int rank,
                       struct tc_part *p)
{
  const int32_t *coord = m->coord + (size_t)rank * TC_AXES;
  const struct tc_place *from = &a->lay.on[n->axis], *to = &b->lay.on[n->axis];
  int size = m->size[n->axis];
  int64_t last;
  p->count = whole_elems(a, n->axis, m, coord, &last);
  p->block = tc_ceil_div(p->count, size);
  if (from->kind == TC_SROWS || to->kind == TC_SROWS)
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
    if (t->lay.on[a].kind == TC_SROWS || t->lay.on[a].kind == TC_AT) return false;
  return true;
}

/* The state tensor that lies behind `root` in the arena, if it does so on every rank; -1. */
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
    bool behind = g->tensor[key[i - 1][0]].state && next_state(g, key[i - 1][0]) == key[i][0];
    if (behind && (uintptr_t)a->dst + bytes == (uintptr_t)b->dst &&
        (uintptr_t)a->src + bytes == (uintptr_t)b->src)
      a->count += b->count;
    else
      part[++last] = *b;
  }
  for (int i = 0; i <= last; i++) part[i].block = tc_ceil_div(part[i].count, m->size[n->axis]);
  free(key);
  free(was);
  return last + 1;
}

/* What a transfer along dimension d of a box needs to pack its blocks, or -1: they are in one piece. */
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
  if (tc_coll_is_local(n->coll) || n->coll == TC_COPY || m->size[n->axis] == 1) return 0;
  const int32_t *coord = m->coord + (size_t)rank * TC_AXES;
  tc_tensor_local(a, m, coord, &from);
  tc_tensor_local(b, m, coord, &to);
  bool all = n->coll == TC_ALL_TO_ALL;
  if (all || n->coll == TC_REDUCE_SCATTER || n->coll == TC_SCATTER)
    *pack_dim = inner_dim(&b->lay.on[n->axis], &from);
  if (all || n->coll == TC_ALL_GATHER || n->coll == TC_GATHER)
    *unpack_dim = inner_dim(&a->lay.on[n->axis], &to);
  int64_t elems = (*pack_dim >= 0 ? from.elems : 0) + (*unpack_dim >= 0 ? to.elems : 0);
  return elems * (int64_t)tc_dtype_bytes(a->dtype);
}

int64_t tc_program_staging(const struct tc_program *p, const struct tc_mesh *m, int rank)
{
  int64_t bytes = 0;
  const struct tc_actions *s = p->actions;
  for (int32_t i = 0; i < s->n_body; i++) {
    const struct tc_node *n = &p->graph->node[s->body[i]];
    int pack, unpack, times = n->op == TC_OP_RESHARD ? tc_actions_most(s, n->id) : 0;
    for (int k = 0; times && k < n->n_in; k++)
      bytes += times * tc_collective_packs(p->graph, n, k, m, rank, &pack, &unpack);
  }
  return bytes;
}

/* A number that stands for a tensor's address: offsets of the two regions, kept apart. */
static void *stand_in(const struct tc_arena *a, int32_t t)
{
  return (void *)(uintptr_t)(a->off[t] + ((int64_t)a->region[t] + 1) * (INT64_C(1) << 44));
}

void tc_program_bytes(const struct tc_program *p, const struct tc_mesh *m, int rank, int axis,
                      struct tc_comm_counters *out)
{
  const struct tc_graph *g = p->graph;
  memset(out, 0, sizeof *out);
  int size = m->size[axis], coord = tc_mesh_coord(m, rank, axis);
  for (int32_t i = 0; i < p->actions->n; i++) {
    const struct tc_action *a = &p->actions->action[i];
    const struct tc_node *n = &g->node[a->node];
    if (a->kind != TC_ISSUE || n->axis != axis || size == 1) continue;
    int coll = tc_collective_coll(n, coord);
    if (coll == TC_COLLS) continue;
    struct tc_part *part = tc_calloc((size_t)n->n_in, sizeof *part);
    for (int k = 0; k < n->n_in; k++) {
      part[k].src = stand_in(p->arena, tc_in(g, n, k));
      part[k].dst = stand_in(p->arena, tc_out(g, n, k));
    }
    int parts = tc_collective_parts(g, n, m, rank, part);
    struct tc_coll_count *c = n->ctl ? &out->ctl[coll] : &out->data[coll];
    int64_t elem = (int64_t)tc_dtype_bytes(g->tensor[tc_in(g, n, 0)].dtype);
    c->calls++;
    for (int k = 0; k < parts; k++)
      c->bytes += tc_coll_bytes(coll, size, coord, tc_collective_root(n, coord), part[k].count,
                                part[k].block, elem);
    free(part);
  }
}
