/* transfer.c - counts and blocks of transitions; what one step of a program sends. */
#include "src/transfer.h"
#include "src/program.h"

#include <stdlib.h>
#include <string.h>

static const int coll_of[TC_STEPS] = {
  [TC_STEP_ALL_REDUCE] = TC_ALL_REDUCE, [TC_STEP_REDUCE_SCATTER] = TC_REDUCE_SCATTER,
  [TC_STEP_REDUCE] = TC_REDUCE, [TC_STEP_ALL_GATHER] = TC_ALL_GATHER,
  [TC_STEP_ALL_TO_ALL] = TC_ALL_TO_ALL, [TC_STEP_BROADCAST] = TC_BROADCAST,
  [TC_STEP_SCATTER] = TC_SCATTER, [TC_STEP_GATHER] = TC_GATHER
};

int tc_transfer_coll(const struct tc_node *n, int coord)
{
  if (n->step != TC_STEP_SEND) return coll_of[n->step];
  return coord == n->from_root ? TC_SEND : coord == n->root ? TC_RECV : TC_COLLS;
}

int tc_transfer_root(const struct tc_node *n, int coord)
{
  if (n->step != TC_STEP_SEND) return n->root;
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
  if (n->step == TC_STEP_ALL_TO_ALL) {           /* each has 1/n; its n blocks are 1/n of that */
    p->count /= size;
    p->block = p->count / size;
  }
}

static int by_address(const void *a, const void *b)
{
  uintptr_t x = (uintptr_t)((const struct tc_part *)a)->dst;
  uintptr_t y = (uintptr_t)((const struct tc_part *)b)->dst;
  return x < y ? -1 : x > y;
}

int tc_transfer_parts(const struct tc_graph *g, const struct tc_node *n, const struct tc_mesh *m,
                      int rank, struct tc_part *part)
{
  for (int k = 0; k < n->n_in; k++)
    count_part(&g->tensor[tc_in(g, n, k)], &g->tensor[tc_out(g, n, k)], n, m, rank, &part[k]);
  if (n->step != TC_STEP_ALL_REDUCE) return n->n_in;       /* elsewhere blocks must line up */
  size_t elem = tc_dtype_bytes(g->tensor[tc_in(g, n, 0)].dtype);
  qsort(part, (size_t)n->n_in, sizeof *part, by_address);
  int last = 0;
  for (int i = 1; i < n->n_in; i++) {
    struct tc_part *a = &part[last];
    uintptr_t bytes = (uintptr_t)a->count * elem;
    if ((uintptr_t)a->dst + bytes == (uintptr_t)part[i].dst &&
        (uintptr_t)a->src + bytes == (uintptr_t)part[i].src)
      a->count += part[i].count;
    else
      part[++last] = part[i];
  }
  for (int i = 0; i <= last; i++) part[i].block = tc_ceil_div(part[i].count, m->size[n->axis]);
  return last + 1;
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
  for (int32_t i = 0; i < p->schedule->n; i++) {
    const struct tc_action *a = &p->schedule->action[i];
    const struct tc_node *n = &g->node[a->node];
    if (a->kind != TC_ISSUE || n->axis != axis || size == 1) continue;
    int coll = tc_transfer_coll(n, coord);
    if (coll == TC_COLLS) continue;
    struct tc_part *part = tc_calloc((size_t)n->n_in, sizeof *part);
    for (int k = 0; k < n->n_in; k++) {
      part[k].src = stand_in(p->arena, tc_in(g, n, k));
      part[k].dst = stand_in(p->arena, tc_out(g, n, k));
    }
    int parts = tc_transfer_parts(g, n, m, rank, part);
    struct tc_coll_count *c = n->ctl ? &out->ctl[coll] : &out->data[coll];
    int64_t elem = (int64_t)tc_dtype_bytes(g->tensor[tc_in(g, n, 0)].dtype);
    c->calls++;
    for (int k = 0; k < parts; k++)
      c->bytes += tc_coll_bytes(coll, size, coord, tc_transfer_root(n, coord), part[k].count,
                                part[k].block, elem);
    free(part);
  }
}
