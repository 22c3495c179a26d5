/* fuse_ops.c - joining and cutting nodes after placements are fixed.
 *
 * Each pass keeps the order topological. A chunk of the loss head works on views: rows of the
 * boundary tensors, so nothing is copied. */
#include "src/passes/fuse.h"

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

int32_t *tc_fuse_positions(const struct tc_graph *g)
{
  int32_t *at = tc_malloc((size_t)g->n_nodes * sizeof *at);
  for (int32_t i = 0; i < g->n_order; i++) at[g->order[i]] = i;
  return at;
}

/* matmul, bias -> matmul with a bias, at the place of the bias (which may be gathered just
 * before). Only where no transition of the product stands between them. */
static void fuse_bias(struct tc_graph *g, const struct uses *u, bool *drop)
{
  int32_t *at = tc_fuse_positions(g);
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
    g->order[i] = p->id;
    g->order[at[p->id]] = b->id;
    drop[b->id] = true;
    free(rule);
  }
  free(at);
}

/* Where each tensor is read, in order: at[first[t]] to at[first[t + 1] - 1]. */
struct readers { int32_t *first, *at; };

static struct readers readers_of(const struct tc_graph *g)
{
  struct readers r = { tc_calloc((size_t)g->n_tensors + 2, sizeof *r.first), NULL };
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_in; k++) r.first[tc_in(g, n, k) + 2]++;
  }
  for (int32_t t = 0; t <= g->n_tensors; t++) r.first[t + 1] += r.first[t];
  r.at = tc_malloc((size_t)r.first[g->n_tensors + 1] * sizeof *r.at);
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_in; k++) r.at[r.first[tc_in(g, n, k) + 1]++] = i;
  }
  return r;
}

/* layernorm_bwd -> dx, add(a, dx) -> s: the layer norm adds to a, in place, where a is dead
 * afterwards. */
static void fuse_residual(struct tc_graph *g, const struct uses *u, bool w_apart, bool *drop)
{
  int32_t *at = tc_fuse_positions(g);
  struct readers readers = readers_of(g);
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
    for (int32_t x = readers.first[a]; x < readers.first[a + 1] && readers.at[x] < i; x++) {
      const int32_t j = readers.at[x];
      if (j >= at[n->id] || (w_apart && g->node[g->order[j]].mark == TC_W)) early = false;
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
  free(readers.first);
  free(readers.at);
}

void tc_fuse(struct tc_graph *g, bool w_apart)
{
  bool *drop = tc_calloc((size_t)g->n_nodes, sizeof *drop);
  struct uses *u = find_uses(g);
  fuse_bias(g, u, drop);
  fuse_residual(g, u, w_apart, drop);
  free(u);
  tc_graph_drop(g, drop);
  free(drop);
}

/* ---- the head in chunks -------------------------------------------------------------- */

static struct tc_local logits_of(const struct tc_graph *g, const struct tc_mesh *m)
{
  const int32_t zero[TC_AXES] = { 0 };
  struct tc_local l;
  tc_tensor_local(&g->tensor[g->logits], m, zero, &l);
  return l;
}

int64_t tc_head_least_rows(const struct tc_graph *g, const struct tc_mesh *m)
{
  return tc_ceil_div(TC_MAX(logits_of(g, m).dim[0], 1), TC_HEAD_CHUNKS);
}

int64_t tc_head_rows(const struct tc_graph *g, const struct tc_mesh *m, int64_t bytes)
{
  const struct tc_local l = logits_of(g, m);
  const int64_t row = l.dim[1] * (int64_t)tc_dtype_bytes(g->tensor[g->logits].dtype);
  return TC_MAX(tc_head_least_rows(g, m), bytes / TC_MAX(1, row));
}

/* Chunks are even. Of a number of rows with no fitting divisor they may be up to 8 times as many as
 * wanted, or, where that is too many, fewer; else the whole is taken. */
static int64_t count_chunks(int64_t rows, int64_t max_rows)
{
  const int64_t want = tc_ceil_div(rows, TC_MIN(TC_MAX(max_rows, 1), TC_MAX(rows, 1)));
  int64_t k = want;
  while (k <= 8 * want && k <= TC_HEAD_CHUNKS && rows % k) k++;
  if (k > TC_HEAD_CHUNKS)
    for (k = TC_HEAD_CHUNKS; rows % k;) k--;
  return k <= 8 * want && k <= rows ? k : 1;
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

/* Whether tensor t has the rows that the logits have. */
static bool has_their_rows(const struct cut *c, int32_t t)
{
  const struct tc_tensor *x = &c->g->tensor[t], *logits = &c->g->tensor[c->g->logits];
  for (int a = TC_DP; a < TC_AXES && by_rows(c, x); a++) {
    const struct tc_place *p = &x->lay.on[a], *q = &logits->lay.on[a];
    const bool cut = p->kind == TC_S && p->dim == 0, theirs = q->kind == TC_S && q->dim == 0;
    if (cut != theirs || (p->kind == TC_AT) != (q->kind == TC_AT) || p->kind == TC_SROWS) return false;
  }
  return true;
}

/* A chunk is the same rows of every tensor of the head, so none may be elsewhere by rows. */
static bool is_of_rows(const struct cut *c)
{
  const struct tc_graph *g = c->g;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    if (!n->head || n->once) continue;
    for (int k = 0; k < n->n_in; k++)
      if (!has_their_rows(c, tc_in(g, n, k))) return false;
    for (int k = 0; k < n->n_out; k++)
      if (!has_their_rows(c, tc_out(g, n, k))) return false;
  }
  return true;
}

/* The order with the chunks in the place of the head. What stands between its nodes goes before
 * them, or behind them if it needs what they make. */
static void place_chunks(struct cut *c, const int32_t *order, int32_t n_order,
                         const int32_t *head, int32_t n_head)
{
  struct tc_graph *g = c->g;
  bool *needs = tc_calloc((size_t)g->n_nodes, 1), done = false;
  bool *makes = tc_calloc((size_t)g->n_tensors, 1);
  for (int32_t i = 0; i < n_order; i++) {
    const struct tc_node *n = &g->node[order[i]];
    needs[n->id] = n->head && !n->once;
    for (int k = 0; k < n->n_in; k++) needs[n->id] |= makes[tc_in(g, n, k)];
    for (int k = 0; k < n->n_out; k++) {
      int32_t o = g->tensor[tc_out(g, n, k)].overwrites;
      needs[n->id] |= o >= 0 && makes[o];
    }
    for (int k = 0; k < n->n_out; k++) makes[tc_out(g, n, k)] = needs[n->id];
  }
  int32_t last = 0, n_old = n_order;
  for (int32_t i = 0; i < n_order; i++)
    if (g->node[order[i]].head && !g->node[order[i]].once) last = i;
  g->n_order = 0;
  for (int behind = 0; behind < 2; behind++) {
    for (int32_t i = 0; i < n_old; i++) {
      const struct tc_node *n = &g->node[order[i]];
      if (n->head && !n->once) continue;
      if ((i > last || needs[n->id]) != behind) continue;
      TC_GROW(g->order, g->n_order, g->cap_order);
      g->order[g->n_order++] = n->id;
    }
    if (!done) cut_head(c, head, n_head);
    done = true;
  }
  free(needs);
  free(makes);
}

void tc_fuse_head(struct tc_graph *g, const struct tc_mesh *m, int64_t max_rows)
{
  struct cut c = { .g = g, .N = g->tensor[g->logits].dim[0], .rows = logits_of(g, m).dim[0],
                   .K = 1 };
  if (is_of_rows(&c)) c.K = count_chunks(c.rows, max_rows);
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
    bool after = n->head;                        /* or needs what the head makes */
    for (int k = 0; k < n->n_in; k++) {
      int32_t maker = g->tensor[tc_in(g, n, k)].node;
      after |= maker >= 0 && g->node[maker].mark == TC_B;
    }
    if (after && n->mark == TC_F) n->mark = TC_B;
  }
  if (c.K > 1) place_chunks(&c, order, n_order, head, n_head);
  free(order);
  free(head);
  free(c.inside);
  free(c.outside_use);
}
