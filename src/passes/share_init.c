/* share_init.c - initial values that several ranks would compute alike are computed by one of them, and broadcast.
 *
 * The node that makes such values gets at(0) on each axis where they are replicated, and reshards lead from there to the
 * weight's placement. They work in the weight's own storage, so that no memory is taken and nothing is copied on the rank that
 * has computed them; not where a device casts values that the host keeps. Constants stay as they are: to write them is less
 * than to receive them. */
#include "src/passes/impl.h"

#include <stdlib.h>
#include <string.h>

struct sharing {
  struct tc_graph *g;
  const struct tc_mesh *m;
  struct tc_err *err;
  struct readers readers;        /* before the pass, as the next two */
  int32_t *before;               /* the order */
  bool *shared;                  /* [tensor]: is broadcast, or made from what is */
  int32_t *order, n_order, cap_order;            /* the new one */
  int32_t *share, n_share, cap_share;            /* of the present unit: its broadcasts, and what reads their results */
  int32_t *reader, n_reader, cap_reader;
};

/* l with at(0) where it is R on an axis of several ranks. Stages have parameters of their own, and time has no ranks. */
static struct tc_layout on_first(const struct tc_mesh *m, const struct tc_layout *l)
{
  struct tc_layout first = *l;
  for (int a = 0; a < TC_AXES; a++) {
    const bool ranks = tc_axis_role[a] != TC_ROLE_TIME && tc_axis_role[a] != TC_ROLE_STAGE && m->size[a] > 1;
    if (ranks && l->on[a].kind == TC_R) first.on[a] = (struct tc_place){ TC_AT, 0, 0, 0 };
  }
  return first;
}

/* Has the node make v at `first`, in the storage of v if that is kept; reshards lead from there. */
static int share(struct sharing *s, int32_t node, int32_t v, const struct tc_layout *first)
{
  struct tc_graph *g = s->g;
  const struct tc_layout to = g->tensor[v].lay;
  const bool in_place = g->tensor[tc_tensor_root(g, v)].state;
  const int32_t own = tc_tensor_like(g, v);
  struct tc_tensor *x = &g->tensor[own];
  x->lay = *first;
  x->overwrites = g->tensor[v].overwrites;
  x->node = node;
  g->arg[g->node[node].out] = own;
  const int32_t before = g->n_nodes, last = tc_reshard(g, s->m, own, &to, node, s->err);
  if (last < 0) return last;
  for (int32_t i = before; i < g->n_nodes; i++) {
    struct tc_node *n = &g->node[i];
    n->role = TC_ROLE_INITIAL;
    if (tc_out(g, n, 0) == last) {
      g->arg[n->out] = v;
      g->tensor[v].node = i;
      g->tensor[last].node = -1;
    }
    if (in_place) g->tensor[tc_out(g, n, 0)].overwrites = tc_in(g, n, 0);
    TC_APPEND(s->share, s->n_share, s->cap_share, i);
  }
  s->shared[v] = true;
  return 0;
}

/* The node that stores what node, a NORMAL, makes: itself or, where it makes it on a device for host memory alone, the copy. */
static int32_t storing_node(const struct sharing *s, int32_t node)
{
  const struct tc_graph *g = s->g;
  const int32_t t = tc_out(g, &g->node[node], 0), *first = &s->readers.first[t];
  if (g->tensor[tc_tensor_root(g, t)].state || first[1] - first[0] != 1) return node;
  const struct tc_node *n = &g->node[s->before[s->readers.at[first[0]]]];
  const bool copies = n->op == TC_OP_RESHARD && n->coll == TC_COPY && n->n_in == 1;
  return copies && g->tensor[tc_tensor_root(g, tc_out(g, n, 0))].state ? n->id : node;
}

/* Has the values of node, a NORMAL, made once and broadcast. What a copy takes to host memory is made there once, too. */
static int share_values(struct sharing *s, int32_t node)
{
  struct tc_graph *g = s->g;
  const int32_t maker = storing_node(s, node), v = tc_out(g, &g->node[maker], 0);
  const struct tc_layout first = on_first(s->m, &g->tensor[v].lay);
  if (tc_layout_equal(&first, &g->tensor[v].lay)) return 0;
  if (maker != node) g->tensor[tc_out(g, &g->node[node], 0)].lay = first;
  return share(s, maker, v, &first);
}

/* A node before the pass: what reads values that are broadcast follows all broadcasts of its unit. */
static void place_node(struct sharing *s, int32_t node)
{
  const struct tc_graph *g = s->g;
  const struct tc_node *n = &g->node[node];
  bool late = false;
  for (int k = 0; k < n->n_in; k++) late |= s->shared[tc_in(g, n, k)];
  for (int k = 0; k < n->n_out && late; k++) s->shared[tc_out(g, n, k)] = true;
  if (late) TC_APPEND(s->reader, s->n_reader, s->cap_reader, node);
  else TC_APPEND(s->order, s->n_order, s->cap_order, node);
}

static void append(struct sharing *s, int32_t **node, int32_t *n)
{
  for (int32_t i = 0; i < *n; i++) TC_APPEND(s->order, s->n_order, s->cap_order, (*node)[i]);
  *n = 0;
}

/* The broadcasts of a unit follow all that it computes for them, and precede all that needs them, so that buckets.c can join
 * them. */
static void end_unit(struct sharing *s)
{
  append(s, &s->share, &s->n_share);
  append(s, &s->reader, &s->n_reader);
}

int tc_share_init(struct tc_graph *g, const struct tc_mesh *m, struct tc_err *err)
{
  const int32_t n = g->n_order;
  struct sharing s = { .g = g, .m = m, .err = err, .readers = tc_order_readers(g) };
  s.shared = tc_calloc((size_t)g->n_tensors, sizeof *s.shared);
  s.before = tc_malloc((size_t)n * sizeof *s.before);
  memcpy(s.before, g->order, (size_t)n * sizeof *s.before);
  int rc = 0;
  for (int32_t i = 0; i < n && !rc; i++) {
    const int32_t node = s.before[i];
    if (i && g->node[node].unit != g->node[s.before[i - 1]].unit) end_unit(&s);
    place_node(&s, node);
    if (g->node[node].op == TC_OP_NORMAL) rc = share_values(&s, node);
  }
  end_unit(&s);
  if (!rc) {
    TC_ASSERT(s.n_order == g->n_order);          /* the new nodes were appended there, too */
    memcpy(g->order, s.order, (size_t)s.n_order * sizeof *s.order);
  }
  TC_FREE(s.readers.first, s.readers.at, s.shared, s.before, s.order, s.share, s.reader);
  return rc;
}
