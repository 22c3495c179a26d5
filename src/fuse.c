/* fuse.c - joining and cutting nodes after placements are fixed.
 *
 * Each pass keeps the order topological. A chunk of the loss head works on views: rows of the
 * boundary tensors, so nothing is copied. */
#include "src/fuse.h"

#include <stdlib.h>
#include <string.h>

/* For each tensor: the number of nodes that read it (inputs, and overwriting), and one. */
struct uses { int32_t n, last; };

static struct uses *find_uses(const struct tc_graph *g)
{
  struct uses *u = tc_calloc((size_t)g->n_tensors, sizeof *u);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_in; k++) {
      u[tc_in(g, n, k)].n++;
      u[tc_in(g, n, k)].last = i;
    }
  }
  return u;
}

/* matmul, bias -> matmul with a bias. Only where nothing stands between them. */
static void fuse_bias(struct tc_graph *g, const struct uses *u, bool *drop)
{
  for (int32_t i = 0; i < g->n_order; i++) {
    struct tc_node *b = &g->node[g->order[i]];
    if (b->op != TC_OP_BIAS) continue;
    int32_t y = tc_in(g, b, 0), z = tc_out(g, b, 0), maker = g->tensor[y].node;
    struct tc_node *p = maker >= 0 ? &g->node[maker] : NULL;
    if (!p || p->op != TC_OP_MATMUL || p->n_in != 2 || u[y].n != 1 || p->acc) continue;
    char l[TC_RULE_MAX][TC_DIMS + 1], bl[TC_RULE_MAX][TC_DIMS + 1];
    tc_rule_parse(g, p, l);
    tc_rule_parse(g, b, bl);
    char *rule = tc_sprintf("%s,%s,%s->%s", l[0], l[1], bl[1], l[2]);
    int32_t in[3] = { tc_in(g, p, 0), tc_in(g, p, 1), tc_in(g, b, 1) };
    int32_t first = g->n_args;
    for (int k = 0; k < 3; k++) {
      TC_GROW(g->arg, g->n_args, g->cap_args);
      g->arg[g->n_args++] = in[k];
    }
    p->in = first;
    p->n_in = 3;
    g->arg[p->out] = z;
    g->tensor[z].node = p->id;
    g->tensor[y].node = -1;
    tc_node_rule(g, p, rule);
    drop[b->id] = true;
    free(rule);
  }
}

/* layernorm_bwd -> dx, add(a, dx) -> s: the layer norm adds to a, in place, where a is dead
 * afterwards. */
static void fuse_residual(struct tc_graph *g, const struct uses *u, bool *drop)
{
  int32_t *at = tc_malloc((size_t)g->n_nodes * sizeof *at);
  for (int32_t i = 0; i < g->n_order; i++) at[g->order[i]] = i;
  for (int32_t i = 0; i < g->n_order; i++) {
    struct tc_node *s = &g->node[g->order[i]];
    if (s->op != TC_OP_ADD || s->mark == TC_F) continue;
    int32_t a = tc_in(g, s, 0), d = tc_in(g, s, 1), out = tc_out(g, s, 0);
    int32_t maker = g->tensor[d].node;
    struct tc_node *n = maker >= 0 ? &g->node[maker] : NULL;
    if (!n || n->op != TC_OP_LAYERNORM_BWD || u[d].n != 1 || drop[n->id]) continue;
    if (g->tensor[a].state || g->tensor[a].node < 0 || at[g->tensor[a].node] > at[n->id]) continue;
    if (u[a].last != i || g->tensor[a].base >= 0) continue;
    bool early = true;                           /* all other readers run before n */
    for (int32_t j = at[n->id]; j < i && early; j++) {
      const struct tc_node *r = &g->node[g->order[j]];
      for (int k = 0; k < r->n_in; k++)
        if (tc_in(g, r, k) == a) early = false;
    }
    if (!early) continue;
    g->arg[n->out] = out;
    g->tensor[out].node = n->id;
    g->tensor[out].overwrites = a;
    g->tensor[d].node = -1;
    n->acc |= 1;                                 /* always adds: acc_first is for state only */
    drop[s->id] = true;
  }
  free(at);
}

void tc_fuse(struct tc_graph *g)
{
  bool *drop = tc_calloc((size_t)g->n_nodes, sizeof *drop);
  struct uses *u = find_uses(g);
  fuse_bias(g, u, drop);
  fuse_residual(g, u, drop);
  free(u);
  tc_graph_drop(g, drop);
  free(drop);
}

/* ---- the head in chunks -------------------------------------------------------------- */

int64_t tc_head_rows(const struct tc_graph *g, const struct tc_mesh *m, int64_t bytes)
{
  const int32_t zero[TC_AXES] = { 0 };
  struct tc_local l;
  tc_tensor_local(&g->tensor[g->logits], m, zero, &l);
  return TC_MAX(1, bytes / TC_MAX(1, l.dim[1] * (int64_t)tc_dtype_bytes(
                                         g->tensor[g->logits].dtype)));
}

struct cut {
  struct tc_graph *g;
  int64_t N, rows, K;            /* global rows, local rows, chunks */
  int32_t *map;                  /* tensor -> its stand-in in this chunk; -1 */
  int32_t n_old;
  bool *inside;                  /* tensors made inside the head */
  bool *outside_use;             /* ... and read outside of it */
};

static bool by_rows(const struct cut *c, const struct tc_tensor *t)
{
  return t->rank > 0 && t->dim[0] == c->N && t->param < 0;
}

/* Tensor t as chunk k sees it. */
static int32_t chunk_tensor(struct cut *c, int32_t t, int64_t k)
{
  struct tc_graph *g = c->g;
  if (c->map[t] >= 0) return c->map[t];
  struct tc_tensor x = g->tensor[t];
  if (!by_rows(c, &x) && !c->inside[t]) return t;
  int32_t d = tc_tensor_new(g, x.name, x.dtype, x.rank, x.dim);
  struct tc_tensor *y = &g->tensor[d];
  int32_t id = y->id;
  *y = x;
  y->id = id;
  y->node = -1;
  if (by_rows(c, &x)) y->dim[0] = c->N / c->K;
  if (by_rows(c, &x) && (!c->inside[t] || c->outside_use[t])) {
    y->base = t;
    y->base_row = k * (c->rows / c->K);
    y->overwrites = -1;
    if (!c->inside[t]) y->node = x.node;
  } else if (x.overwrites >= 0) {
    y->overwrites = c->map[x.overwrites] >= 0 ? c->map[x.overwrites] : x.overwrites;
  }
  return c->map[t] = d;
}

/* Node n for chunk k. Accumulators chain on: the first chunk writes, the others add. The last
 * chunk makes the original outputs of accumulation, so that what follows finds them. */
static void chunk_node(struct cut *c, int32_t id, int64_t k, int32_t *tail)
{
  struct tc_graph *g = c->g;
  struct tc_node n = g->node[id];
  int32_t in[TC_RULE_MAX], out[TC_RULE_MAX];
  for (int i = 0; i < n.n_in; i++) in[i] = chunk_tensor(c, tc_in(g, &n, i), k);
  for (int i = 0; i < n.n_out; i++) {
    int32_t t = tc_out(g, &n, i);
    if (n.acc >> i & 1) {
      int32_t prev = tail[t] >= 0 ? tail[t] : g->tensor[t].overwrites;
      if (k == c->K - 1) {
        out[i] = t;
        g->tensor[t].node = -1;
      } else {
        struct tc_tensor x = g->tensor[t];
        out[i] = tc_tensor_new(g, x.name, x.dtype, x.rank, x.dim);
        struct tc_tensor *y = &g->tensor[out[i]];
        int32_t y_id = y->id;
        *y = x;
        y->id = y_id;
        y->node = -1;
      }
      g->tensor[out[i]].overwrites = prev;
      tail[t] = out[i];
    } else {
      out[i] = chunk_tensor(c, t, k);
    }
  }
  struct tc_node *m = tc_node_new(g, n.op, n.n_in, in, n.n_out, out);
  struct tc_node made = *m;
  *m = n;
  m->id = made.id;
  m->in = made.in;
  m->out = made.out;
  if (m->acc && k > 0) m->acc_first = false;
  for (int i = 0; i < n.n_out; i++) {            /* a row view's base is made with its last row */
    int32_t t = tc_out(g, &n, i);
    if (c->outside_use[t] && by_rows(c, &g->tensor[t])) g->tensor[t].node = m->id;
  }
}

static void cut_head(struct cut *c, const int32_t *head, int32_t n_head)
{
  struct tc_graph *g = c->g;
  size_t n_old = (size_t)g->n_tensors;
  c->map = tc_malloc(n_old * sizeof *c->map);
  int32_t *tail = tc_malloc(n_old * sizeof *tail);
  memset(tail, -1, n_old * sizeof *tail);
  for (int64_t k = 0; k < c->K; k++) {
    memset(c->map, -1, n_old * sizeof *c->map);
    for (int32_t i = 0; i < n_head; i++) chunk_node(c, head[i], k, tail);
  }
  free(c->map);
  free(tail);
}

void tc_fuse_head(struct tc_graph *g, const struct tc_mesh *m, int64_t max_rows)
{
  const int32_t zero[TC_AXES] = { 0 };
  struct tc_local l;
  tc_tensor_local(&g->tensor[g->logits], m, zero, &l);
  struct cut c = { .g = g, .N = g->tensor[g->logits].dim[0], .rows = l.dim[0], .K = 1 };
  while (c.rows % c.K || c.rows / c.K > max_rows) c.K++;
  int32_t n_order = g->n_order, n_head = 0;
  int32_t *order = tc_malloc((size_t)n_order * sizeof *order);
  int32_t *head = tc_malloc((size_t)n_order * sizeof *head);
  memcpy(order, g->order, (size_t)n_order * sizeof *order);
  c.inside = tc_calloc((size_t)g->n_tensors, 1);
  c.outside_use = tc_calloc((size_t)g->n_tensors, 1);
  bool backward = false;
  for (int32_t i = 0; i < n_order; i++) {
    struct tc_node *n = &g->node[order[i]];
    if (n->mark == TC_B) backward = true;
    if (n->head && !n->once) head[n_head++] = order[i];
    for (int k = 0; n->head && !n->once && k < n->n_out; k++) c.inside[tc_out(g, n, k)] = true;
    for (int k = 0; !(n->head && !n->once) && k < n->n_in; k++)
      c.outside_use[tc_in(g, n, k)] = true;
  }
  for (int32_t i = 0; backward && i < n_order; i++) {
    struct tc_node *n = &g->node[order[i]];
    if (n->head && n->mark == TC_F) n->mark = TC_B;
  }
  if (c.K > 1) {
    g->n_order = 0;
    bool done = false;
    for (int32_t i = 0; i < n_order; i++) {
      if (!g->node[order[i]].head || g->node[order[i]].once) {
        TC_GROW(g->order, g->n_order, g->cap_order);
        g->order[g->n_order++] = order[i];
      } else if (!done) {
        cut_head(&c, head, n_head);
        done = true;
      }
    }
  }
  free(order);
  free(head);
  free(c.inside);
  free(c.outside_use);
}

/* ---- units --------------------------------------------------------------------------- */

void tc_units(struct tc_graph *g)
{
  bool *drop = tc_calloc((size_t)g->n_nodes + (size_t)g->n_order, sizeof *drop);
  int32_t *in = tc_malloc((size_t)g->n_order * sizeof *in);
  int32_t *out = tc_malloc((size_t)g->n_order * sizeof *out);
  int32_t *group = tc_malloc((size_t)g->n_order * sizeof *group);
  for (int32_t i = g->n_order - 1; i >= 0; i--) {
    struct tc_node n = g->node[g->order[i]];
    if (n.op != TC_OP_MOVE || drop[n.id] || !n.once || n.ctl || n.mark == TC_U) continue;
    int k = 0;
    for (int32_t j = 0; j <= i; j++) {           /* parts in the order they are made */
      const struct tc_node *o = &g->node[g->order[j]];
      if (o->op != TC_OP_MOVE || drop[o->id] || o->step != n.step || o->axis != n.axis ||
          o->unit != n.unit || o->mark == TC_U || o->red != n.red || o->root != n.root ||
          !o->once || o->ctl ||
          g->tensor[tc_in(g, o, 0)].dtype != g->tensor[tc_in(g, &n, 0)].dtype) continue;
      in[k] = tc_in(g, o, 0);
      out[k] = tc_out(g, o, 0);
      group[k++] = o->id;
    }
    if (k < 2) continue;
    int32_t keep = n.id, saved = g->n_order;
    for (int p = 0; p < k; p++) {
      drop[group[p]] = group[p] != keep;
      g->tensor[out[p]].node = -1;
    }
    struct tc_node *made = tc_node_new(g, TC_OP_MOVE, k, in, k, out);
    struct tc_node args = *made;
    g->n_order = saved;                          /* only its arguments are wanted */
    g->n_nodes--;
    struct tc_node *b = &g->node[keep];
    b->in = args.in;
    b->out = args.out;
    b->n_in = b->n_out = k;
    for (int p = 0; p < k; p++) g->tensor[out[p]].node = keep;
  }
  tc_graph_drop(g, drop);
  free(drop);
  free(in);
  free(out);
  free(group);
}
