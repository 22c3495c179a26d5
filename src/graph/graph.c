/* graph.c - the arrays of a tensor program: creating tensors and nodes, local shapes, storage.
 *
 * Invariants (tc_graph_check verifies them after each pass): ids are indices; a node's inputs are state,
 * or are made earlier in the order; one node makes a tensor; `overwrites` and `base` refer to older
 * tensors, so following them terminates. */
#include "src/graph/graph.h"

#include <stdlib.h>

const struct tc_op_info tc_op_info[TC_OPS] = {
#define OP(id, name, nin, nout, rule, unsplittable, flags, what) \
  [TC_OP_##id] = { name, nin, nout, rule, unsplittable, flags, what },
#define LINEAR TC_OPF_LINEAR
#define MAXRED TC_OPF_MAXRED
#define FLAT TC_OPF_FLAT
#define ACC TC_OPF_ACC
#define BLOCK TC_OPF_BLOCK
#define UPDATE TC_OPF_UPDATE
#define AGAIN TC_OPF_AGAIN
#include "src/graph/op.def"
#undef OP
#undef LINEAR
#undef MAXRED
#undef FLAT
#undef ACC
#undef BLOCK
#undef UPDATE
#undef AGAIN
};

const char *const tc_class_name[TC_CLASSES] = {
  "parameters", "gradients", "optimizer", "activations", "communication", "staging"
};

struct tc_graph *tc_graph_new(void)
{
  struct tc_graph *g = tc_calloc(1, sizeof *g);
  g->pool = tc_pool_new();
  g->tokens = g->targets = g->starts = g->logits = g->loss = g->nll = g->grad_norm = g->grad_scale = -1;
  return g;
}

void tc_graph_free(struct tc_graph *g)
{
  if (!g) return;
  tc_pool_free(g->pool);
  TC_FREE(g->tensor, g->node, g->arg, g->order, g->param, g->contribution, g->unit, g->root, g);
}

int32_t tc_tensor_new(struct tc_graph *g, const char *name, int dtype, int rank,
                      const int64_t *dim)
{
  TC_ASSERT(rank >= 0 && rank <= TC_DIMS && !g->root);
  TC_GROW(g->tensor, g->n_tensors, g->cap_tensors);
  struct tc_tensor *t = &g->tensor[g->n_tensors];
  *t = (struct tc_tensor){ .id = g->n_tensors, .node = -1, .primal = -1, .overwrites = -1,
                           .base = -1, .param = -1, .pad_dim = -1, .rank = (uint8_t)rank,
                           .dtype = (uint8_t)dtype, .cls = TC_CLS_ACT };
  for (int i = 0; i < rank; i++) t->dim[i] = dim[i];
  t->lay = t->preferred = tc_layout_r();
  t->name = tc_pool_strdup(g->pool, name);
  return g->n_tensors++;
}

int32_t tc_tensor_like(struct tc_graph *g, int32_t t)
{
  const struct tc_tensor x = g->tensor[t];
  int32_t id = tc_tensor_new(g, x.name, x.dtype, x.rank, x.dim);
  struct tc_tensor *y = &g->tensor[id];
  y->primal = x.primal;
  y->param = x.param;
  y->cls = x.cls;
  y->space = x.space;
  y->pad_dim = x.pad_dim;
  y->pad_to = x.pad_to;
  return id;
}

int32_t tc_tensor_clone(struct tc_graph *g, int32_t t)
{
  const int32_t id = tc_tensor_like(g, t);
  g->tensor[id] = g->tensor[t];
  g->tensor[id].id = id;
  g->tensor[id].node = -1;
  return id;
}

static int32_t push_args(struct tc_graph *g, int n, const int32_t *a)
{
  int32_t first = g->n_args;
  for (int i = 0; i < n; i++) TC_APPEND(g->arg, g->n_args, g->cap_args, a[i]);
  return first;
}

struct tc_node *tc_node_new(struct tc_graph *g, int op, int n_in, const int32_t *in,
                            int n_out, const int32_t *out)
{
  const struct tc_op_info *info = &tc_op_info[op];
  TC_ASSERT(info->n_in < 0 || info->n_in == n_in);
  TC_ASSERT(info->n_out < 0 || info->n_out == n_out);
  TC_GROW(g->node, g->n_nodes, g->cap_nodes);
  TC_GROW(g->order, g->n_order, g->cap_order);
  struct tc_node *n = &g->node[g->n_nodes];
  *n = (struct tc_node){ .id = g->n_nodes, .op = op, .origin = g->n_nodes, .forward = -1,
                         .n_in = n_in, .n_out = n_out, .unit = g->cur_unit, .mark = g->cur_mark };
  n->in = push_args(g, n_in, in);
  n->out = push_args(g, n_out, out);
  for (int i = 0; i < n_out; i++) {
    TC_ASSERT(g->tensor[out[i]].node < 0);
    g->tensor[out[i]].node = n->id;
  }
  g->order[g->n_order++] = n->id;
  g->n_nodes++;
  return n;
}

struct tc_node *tc_node_clone(struct tc_graph *g, int32_t node, const int32_t *in, const int32_t *out)
{
  const struct tc_node x = g->node[node];
  struct tc_node *n = tc_node_new(g, x.op, x.n_in, in, x.n_out, out);
  const struct tc_node own = *n;
  *n = x;
  n->id = own.id;
  n->in = own.in;
  n->out = own.out;
  return n;
}

void tc_node_rule(struct tc_graph *g, struct tc_node *n, const char *rule)
{
  n->rule = tc_pool_strdup(g->pool, rule);
}

int64_t tc_tensor_elems(const struct tc_tensor *t)
{
  int64_t e = 1;
  for (int i = 0; i < t->rank; i++) e *= t->dim[i];
  return e;
}

int64_t tc_attn_pieces(const struct tc_graph *g, const struct tc_node *n)
{
  const int qkv = n->op == TC_OP_ATTN ? 0 : 1, kv = n->op == TC_OP_ATTN ? 1 : 4;
  if (n->n_in <= kv || g->tensor[tc_in(g, n, kv)].rank == 1) return 1;
  return g->tensor[tc_in(g, n, qkv)].dim[1] / g->tensor[tc_in(g, n, kv)].dim[1];
}

/* The keys that all queries before position n see. */
static double keys_before(int64_t window, int64_t n)
{
  const double all = (double)n, few = (double)TC_MIN(window, n);
  return window > 0 ? few * (few + 1) / 2 + (all - few) * few : all * all / 2;
}

double tc_attn_keys(int64_t window, int64_t from, int64_t end)
{
  return (keys_before(window, end) - keys_before(window, from)) / (double)(end - from);
}

void tc_tensor_local(const struct tc_tensor *t, const struct tc_mesh *m,
                     const int32_t coord[TC_AXES], struct tc_local *out)
{
  *out = (struct tc_local){ .rows = -1, .here = true, .elems = 1 };
  for (int d = 0; d < t->rank; d++) out->dim[d] = tc_stored_dim(t, d);
  for (int i = 0; i < 2 * TC_AXES; i++) {        /* from the outer axes to the inner ones (tc_nests_inside) */
    const int a = i % TC_AXES;
    const struct tc_place *p = &t->lay.on[a];
    const bool late = p->kind == TC_S && p->dim > 0 && tc_axis_role[a] == TC_ROLE_TOKENS;
    if (late != (i >= TC_AXES)) continue;
    if (p->kind == TC_S) {
      TC_ASSERT(p->dim < t->rank);
      int64_t block = tc_ceil_div(out->dim[p->dim], m->size[a]);
      out->dim[p->dim] = block;
      out->off[p->dim] += coord[a] * block;
    } else if (p->kind == TC_AT && p->at != coord[a]) {
      out->here = false;
    }
  }
  for (int d = 0; d < t->rank; d++) out->elems *= out->dim[d];
  const unsigned flat = tc_layout_axes(&t->lay, TC_FLAT);
  if (flat) {
    int64_t last = t->rank > 1 ? out->dim[t->rank - 1] : 1;
    int64_t rows = out->elems / last, block = tc_ceil_div(rows, tc_mesh_size(m, flat));
    out->row0 = TC_MIN(tc_axes_index(m, coord, flat) * block, rows);
    out->rows = TC_MIN(block, rows - out->row0);
    out->elems = out->rows * last;
  }
  if (!out->here) out->elems = 0;
}

int64_t tc_local_index(const struct tc_tensor *t, const struct tc_local *l, int64_t e)
{
  int64_t last = t->rank > 1 ? l->dim[t->rank - 1] : 1, at = 0, stride = 1;
  if (l->rows >= 0) e += l->row0 * last;
  for (int d = t->rank - 1; d >= 0; d--) {
    const int64_t i = l->off[d] + e % l->dim[d];
    if (i >= t->dim[d]) return -1;
    e /= l->dim[d];
    at += i * stride;
    stride *= t->dim[d];
  }
  return at;
}

int64_t tc_tensor_local_bytes(const struct tc_tensor *t, const struct tc_mesh *m,
                              const int32_t coord[TC_AXES])
{
  struct tc_local l;
  tc_tensor_local(t, m, coord, &l);
  return l.elems * (int64_t)tc_dtype_bytes(t->dtype);
}

void tc_graph_drop(struct tc_graph *g, const bool *drop)
{
  int32_t k = 0;
  for (int32_t i = 0; i < g->n_order; i++)
    if (!drop[g->order[i]]) g->order[k++] = g->order[i];
  g->n_order = k;
}

int32_t tc_tensor_root(const struct tc_graph *g, int32_t t)
{
  if (g->root) return g->root[t];
  while (tc_shares_with(&g->tensor[t]) >= 0) t = tc_shares_with(&g->tensor[t]);
  return t;
}

int32_t *tc_graph_roots(const struct tc_graph *g)
{
  int32_t *root = tc_no_indices((size_t)g->n_tensors);
  for (int32_t t = 0; t < g->n_tensors; t++) {
    int32_t end = t;                             /* its storage, or a tensor whose root is known */
    while (root[end] < 0 && tc_shares_with(&g->tensor[end]) >= 0) end = tc_shares_with(&g->tensor[end]);
    int32_t found = root[end] >= 0 ? root[end] : end;
    for (int32_t x = t; x >= 0 && root[x] < 0; x = tc_shares_with(&g->tensor[x])) root[x] = found;
  }
  return root;
}

void tc_graph_freeze(struct tc_graph *g)
{
  int32_t *root = tc_graph_roots(g);
  free(g->root);
  g->root = root;
}
