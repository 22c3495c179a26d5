/* infer.c - derives a layout for every tensor from annotations.
 *
 * Up-sweep: annotations (of outputs, and of state inputs) propagate as preferences to unannotated inputs.
 * Down-sweep: each node, in order, chooses on each axis one subscript of its rule to be split (or
 * a flat shard, a coordinate, or nothing). A backward node takes the choice of its forward node, an
 * update that of its parameter's row. For others the order of precedence is: a parameter's use, an
 * annotated output, the placement of the primal of a gradient, the first operand that is split; at(k) is
 * taken only if nothing is split. Inputs with another placement are resharded; a contracted split subscript
 * makes the output partial, which is resolved where it is produced: to its preferred placement, else to R.
 * Partial gradients of a parameter are resolved only after the last contribution. */
#include "src/passes/impl.h"
#include "src/graph/rule.h"

#include <string.h>

/* The layout in which a node reads a tensor; for a parameter, `use` in forward and backward, `update` in the
 * update. */
static struct tc_layout seen(const struct tc_graph *g, const struct tc_node *n, int32_t t)
{
  const struct tc_tensor *x = &g->tensor[t];
  if (x->param < 0 || !x->state) return x->lay;
  const struct tc_param *p = &g->param[x->param];
  if (n->mark == TC_U) return p->master == t ? p->update : x->lay;
  return p->weight == t ? p->use : x->lay;
}

static bool choose_split(const struct tc_place *p, const char *subs, struct choice *c)
{
  if (p->kind == TC_S) *c = (struct choice){ TC_S, subs[p->dim], 0 };
  else if (p->kind == TC_FLAT) *c = (struct choice){ TC_FLAT, 0, 0 };
  else return false;
  return true;
}

static bool choose_at(const struct tc_place *p, struct choice *c)
{
  if (p->kind != TC_AT) return false;
  *c = (struct choice){ TC_AT, 0, p->at };
  return true;
}

static bool choose(const struct tc_place *p, const char *subs, struct choice *c)
{
  return choose_split(p, subs, c) || choose_at(p, c);
}

/* A node's rule on axes that split sequences [1], and on the others [0]. */
struct rules { char on[2][TC_RULE_MAX][TC_DIMS + 1]; int n; };

static void read_rules(struct rules *r, const struct tc_graph *g, const struct tc_node *n)
{
  r->n = tc_rule_parse(g, n, r->on[0]);
  memcpy(r->on[1], r->on[0], sizeof r->on[0]);
  tc_rule_on(r->on[0], r->n, TC_MB);
}

static char (*rules_on(struct rules *r, int axis))[TC_DIMS + 1] { return r->on[tc_axis_role[axis] == TC_ROLE_TOKENS]; }

/* ---- up-sweep ---------------------------------------------------------------------- */

static void prefer_node(struct sctx *s, const struct tc_node *n, int axis)
{
  struct tc_graph *g = s->g;
  char l[TC_RULE_MAX][TC_DIMS + 1];
  if (n->n_in + n->n_out > TC_RULE_MAX) return;
  tc_rule_on(l, tc_rule_parse(g, n, l), axis);
  struct choice c = { 0 };
  bool found = false;
  for (int i = 0; i < n->n_in && !found; i++) {
    int32_t t = tc_in(g, n, i);
    if (!g->tensor[t].state) continue;
    struct tc_layout lay = seen(g, n, t);
    found = choose(&lay.on[axis], l[i], &c);
  }
  for (int k = 0; k < n->n_out && !found; k++) {
    int32_t t = tc_out(g, n, k);
    const struct tc_tensor *pin = tc_place_required(g, t);
    found = choose(pin ? &pin->lay.on[axis] : &g->tensor[t].preferred.on[axis], l[n->n_in + k], &c);
  }
  if (!found) return;
  for (int i = 0; i < n->n_in; i++) {
    struct tc_tensor *x = &g->tensor[tc_in(g, n, i)];
    if (x->state || x->annotated || x->preferred.on[axis].kind != TC_R || x->rank == 0) continue;
    if (c.kind == TC_S) {
      const char *d = strchr(l[i], c.sub);
      if (d) x->preferred.on[axis] = (struct tc_place){ TC_S, (uint8_t)(d - l[i]), 0, 0 };
    } else if (tc_op_info[n->op].flags & TC_OPF_FLAT) {
      x->preferred.on[axis] = (struct tc_place){ c.kind, 0, 0, c.at };
    }
  }
}

/* ---- down-sweep -------------------------------------------------------------------- */

/* The placement at which a node updates a parameter; NULL: it updates none. */
static const struct tc_place *update_place(const struct sctx *s, const struct tc_node *n, int axis)
{
  const struct tc_graph *g = s->g;
  const int32_t p = tc_updates(g, n);
  return p < 0 ? NULL : &g->param[p].update.on[axis];
}

/* A split that is required by a parameter's use or by an annotated output. Returns the tensor
 * that requires it, or -1. */
static int32_t required_split(const struct sctx *s, const struct tc_node *n, int axis, int total,
                           char l[TC_RULE_MAX][TC_DIMS + 1], struct choice *c)
{
  const struct tc_graph *g = s->g;
  for (int i = 0; i < total; i++) {
    int32_t t = tc_in(g, n, i);
    if (!g->tensor[t].state) continue;
    struct tc_layout lay = seen(g, n, t);
    if (choose_split(&lay.on[axis], l[i], c)) return t;
  }
  for (int k = 0; k < n->n_out; k++) {
    int32_t t = tc_out(g, n, k);
    const struct tc_tensor *pin = tc_place_required(g, t);
    if (pin && tc_is_acc(n, k) && pin->lay.on[axis].kind != TC_S) pin = NULL;   /* it is resharded afterwards */
    if (pin && choose_split(&pin->lay.on[axis], l[n->n_in + k], c)) return t;
  }
  return -1;
}

/* Whether a split on `axis` cuts all operands and results into even blocks; of an op on all elements of tensors of several
 * shapes each has to be cut. */
static bool cuts_evenly(const struct sctx *s, const struct tc_node *n, int axis,
                        char l[TC_RULE_MAX][TC_DIMS + 1], const struct choice *c)
{
  const struct tc_op_info *op = &tc_op_info[n->op];
  const bool all = op->n_in < 0 && *op->rule == '*';
  for (int i = 0; c->kind == TC_S && axis != TC_MB && i < n->n_in + n->n_out; i++) {
    const bool in = i < n->n_in;
    const struct tc_tensor *t = &s->g->tensor[in ? tc_in(s->g, n, i) : tc_out(s->g, n, i - n->n_in)];
    const char *li = in ? l[TC_MIN(i, TC_RULE_MAX - 2)] : i < TC_RULE_MAX ? l[i] : "";
    const char *at = strchr(li, c->sub);
    if (!at || at - li >= t->rank) {
      if (all && in) return false;
      continue;
    }
    if (tc_stored_dim(t, (int)(at - li)) % s->m->size[axis]) return false;
  }
  return true;
}

/* The default split: that of a gradient's primal, else that of an operand. */
static bool default_split(const struct sctx *s, const struct tc_node *n, int axis, int total,
                          char l[TC_RULE_MAX][TC_DIMS + 1], struct choice *c)
{
  const struct tc_graph *g = s->g;
  for (int k = 0; k < n->n_out; k++) {
    const struct tc_tensor *t = &g->tensor[tc_out(g, n, k)];
    if (t->primal < 0 || t->param >= 0 || tc_is_acc(n, k)) continue;
    if (choose_split(&g->tensor[s->now[t->primal]].lay.on[axis], l[n->n_in + k], c) &&
        cuts_evenly(s, n, axis, l, c)) return true;
  }
  for (int i = 0; i < total; i++) {
    const struct tc_tensor *x = &g->tensor[s->now[tc_in(g, n, i)]];
    if (x->rank && choose_split(&x->lay.on[axis], l[i], c) && cuts_evenly(s, n, axis, l, c))
      return true;
  }
  *c = (struct choice){ TC_R, 0, 0 };
  return false;
}

static void choose_coordinate(const struct sctx *s, const struct tc_node *n, int axis, int total,
                              struct choice *c)
{
  const struct tc_graph *g = s->g;
  for (int i = 0; i < total; i++) {
    int32_t t = tc_in(g, n, i);
    struct tc_layout lay = g->tensor[t].state ? seen(g, n, t) : g->tensor[s->now[t]].lay;
    if (choose_at(&lay.on[axis], c)) return;
  }
  for (int k = 0; k < n->n_out; k++) {
    const struct tc_tensor *t = &g->tensor[tc_out(g, n, k)], *pin = tc_place_required(g, t->id);
    if (pin && choose_at(&pin->lay.on[axis], c)) return;
    if (n->n_in == 0 && t->primal >= 0 && choose_at(&g->tensor[s->now[t->primal]].lay.on[axis], c))
      return;
  }
}

static int choose_axis(struct sctx *s, const struct tc_node *n, int axis,
                       char l[TC_RULE_MAX][TC_DIMS + 1], struct choice *c)
{
  struct tc_graph *g = s->g;
  const struct tc_op_info *op = &tc_op_info[n->op];
  *c = (struct choice){ TC_R, 0, 0 };
  if (axis == TC_PP) {                           /* a node runs on its stage */
    int32_t at = n->on_all_stages ? -1 : g->unit[n->unit].at;
    if (at >= 0) *c = (struct choice){ TC_AT, 0, at };
    return 0;
  }
  int total = TC_MIN(n->n_in, TC_RULE_MAX - n->n_out);
  int32_t asks = -1;
  const struct tc_place *update = update_place(s, n, axis);
  if (n->forward >= 0) {
    *c = s->choice[n->forward][axis];
  } else if (update) {
    choose(update, l[2], c);
  } else {
    asks = required_split(s, n, axis, total, l, c);
    if (asks < 0 && !default_split(s, n, axis, total, l, c)) choose_coordinate(s, n, axis, total, c);
  }
  bool bad = (c->kind == TC_S && *op->unsplittable && strchr(op->unsplittable, c->sub)) ||
             (c->kind == TC_FLAT && !(op->flags & TC_OPF_FLAT));
  if (bad && asks >= 0) {
    int32_t other = n->n_out && tc_out(g, n, 0) != asks ? tc_out(g, n, 0) : tc_in(g, n, 0);
    return tc_fail(s->err, TC_ELAYOUT, "%s is to be split on %s, but op %s, which makes it "
                   "from or into %s, cannot split that dimension", g->tensor[asks].name, tc_axis_name[axis],
                   op->name, g->tensor[other].name);
  }
  if (bad) *c = (struct choice){ TC_R, 0, 0 };
  return 0;
}

/* A flat shard is cut by one set of axes: of several ones, that of the first tensor that has one. */
static void keep_one_flat(const struct sctx *s, const struct tc_node *n, struct choice c[TC_AXES])
{
  unsigned flat = 0, keep = 0;
  for (int a = 0; a < TC_AXES; a++) flat |= (unsigned)(c[a].kind == TC_FLAT) << a;
  if (!flat || tc_mesh_find(s->m, flat) >= 0) return;
  for (int k = 0; k < n->n_in + n->n_out && !keep; k++) {
    const int32_t t = tc_operand(s->g, n, k);
    const struct tc_layout l = s->g->tensor[t].state ? seen(s->g, n, t) : s->g->tensor[s->now[t]].lay;
    keep = flat & tc_layout_axes(&l, TC_FLAT);
  }
  for (int a = 0; a < TC_AXES; a++)
    if (flat & ~keep & 1u << a) c[a].kind = TC_R;
}

/* Two axes may nest in one order in rows and in the other in columns (tc_nests_inside). A subscript that is the rows of one
 * operand and the columns of another is then split on the later axis alone. */
static void keep_one_nesting(struct rules *r, struct choice c[TC_AXES])
{
  for (int k = 0; k < TC_AXES * TC_AXES; k++) {
    const int a = k / TC_AXES, b = k % TC_AXES;
    unsigned inside = 0;
    for (int i = 0; i < r->n && b > a && c[a].kind == TC_S && c[b].kind == TC_S && c[a].sub == c[b].sub; i++) {
      const char *subs = rules_on(r, a)[i], *at = strchr(subs, c[a].sub);
      if (at) inside |= 1u << tc_nests_inside(a, b, (int)(at - subs));
    }
    if (inside == 3) c[a].kind = TC_R;
  }
}

/* Whether a node has the keys of all tokens in an input of their own (tc_rule_on). */
static bool has_all_keys(const struct rules *r)
{
  for (int i = 0; i < r->n; i++)
    if (r->on[1][i][0] == 'N') return true;
  return false;
}

/* Keeps sequences complete: removes splits of the first subscript, innermost axis first, until they are. Where there are
 * all keys, axes that split sequences (TOKENS) may split the queries'. */
static void keep_blocks(struct sctx *s, const struct tc_node *n, const struct rules *r, struct choice c[TC_AXES])
{
  const char rows_of = r->on[0][0][0];
  const unsigned free_axes = has_all_keys(r) ? tc_axes_of(TC_ROLE_TOKENS) : 0;
  if (!(tc_op_info[n->op].flags & TC_OPF_BLOCK)) return;
  /* In the order of rows under cp (row_order.h) a block of an axis inside cp has pieces of several sequences. */
  for (int a = 0; a < TC_AXES && s->g->rows.cp > 1; a++)
    if (tc_axis_role[a] == TC_ROLE_MODEL && c[a].kind == TC_S && c[a].sub == rows_of) c[a].kind = TC_R;
  for (int a = TC_AXES - 1; a >= 0; a--) {
    int64_t rows = s->g->tensor[tc_in(s->g, n, 0)].dim[0];
    bool whole = true;
    for (int b = 0; b < TC_AXES; b++)
      if (c[b].kind == TC_S && c[b].sub == rows_of && !(free_axes >> b & 1)) {
        rows /= s->m->size[b];
        whole &= tc_axis_role[b] != TC_ROLE_TOKENS || s->m->size[b] == 1;
      }
    if (whole && rows % n->attr.sequence == 0) return;
    if (c[a].kind == TC_S && c[a].sub == rows_of && !(free_axes >> a & 1)) c[a].kind = TC_R;
  }
}

static struct tc_place placed(const struct choice *c, const char *subs, int rank)
{
  struct tc_place p = { 0 };
  if (c->kind == TC_S) {
    const char *d = strchr(subs, c->sub);
    if (d && *d) p = (struct tc_place){ TC_S, (uint8_t)(d - subs), 0, 0 };
  } else if (c->kind == TC_FLAT) {
    if (rank > 0) p.kind = TC_FLAT;
  } else if (c->kind == TC_AT) {
    p = (struct tc_place){ TC_AT, 0, 0, c->at };
  }
  return p;
}

/* Whether all inputs of a linear op are partial on an axis: then its output is partial, too. */
static bool stays_partial(struct sctx *s, const struct tc_node *n, int axis)
{
  if (!(tc_op_info[n->op].flags & TC_OPF_LINEAR) || n->n_in == 0) return false;
  for (int i = 0; i < n->n_in; i++)
    if (s->g->tensor[s->now[tc_in(s->g, n, i)]].lay.on[axis].kind != TC_P) return false;
  return true;
}

/* The layout of output k, as the node makes it. */
static struct tc_layout output_layout(const struct sctx *s, int32_t node, int k, struct rules *r,
                                      const struct choice c[TC_AXES], const bool partial[TC_AXES])
{
  struct tc_graph *g = s->g;
  const struct tc_node *n = &g->node[node];
  const struct tc_tensor *t = &g->tensor[tc_out(g, n, k)];
  struct tc_layout lay;
  bool max = tc_op_info[n->op].flags & TC_OPF_MAXRED;
  for (int a = 0; a < TC_AXES; a++) {
    const char *lo = n->n_in + k < TC_RULE_MAX ? rules_on(r, a)[n->n_in + k] : "";
    struct tc_place p = placed(&c[a], lo, t->rank);
    bool contracted = tc_is_split(c[a].kind) && p.kind == TC_R;
    if (contracted || partial[a])
      p = (struct tc_place){ TC_P, 0, max ? TC_MAX_OP : TC_SUM, 0 };
    if (a == TC_MB && p.kind == TC_P && tc_is_acc(n, k)) p = (struct tc_place){ 0 };
    lay.on[a] = p;
  }
  return lay;
}

static int infer_node(struct sctx *s, int32_t node)
{
  struct tc_graph *g = s->g;
  struct rules r = { .n = 0 };
  read_rules(&r, g, &g->node[node]);
  struct choice c[TC_AXES];
  bool partial[TC_AXES] = { false };
  for (int a = 0; a < TC_AXES; a++) {
    TC_TRY(choose_axis(s, &g->node[node], a, rules_on(&r, a), &c[a]));
    partial[a] = c[a].kind == TC_R && stays_partial(s, &g->node[node], a);
  }
  keep_blocks(s, &g->node[node], &r, c);
  keep_one_nesting(&r, c);
  keep_one_flat(s, &g->node[node], c);
  memcpy(s->choice[node], c, sizeof c);
  int n_in = g->node[node].n_in, n_out = g->node[node].n_out;
  int32_t before[TC_RULE_MAX] = { 0 };
  for (int i = 0; i < n_in; i++) {
    int32_t t = s->now[tc_in(g, &g->node[node], i)];
    /* Where there are more inputs than subscripts (sqnorm, clip), the last one is that of all the others. */
    const int li = TC_MIN(i, TC_RULE_MAX - 2);
    struct tc_layout need;
    for (int a = 0; a < TC_AXES; a++)
      need.on[a] = partial[a] ? g->tensor[t].lay.on[a] : placed(&c[a], rules_on(&r, a)[li], g->tensor[t].rank);
    if (i < TC_RULE_MAX) before[i] = tc_in(g, &g->node[node], i);
    TC_TRY(tc_place_input(s, node, i, &need));
  }
  tc_place_in_place(s, node, before);
  bool in_time = c[TC_MB].kind != TC_R || partial[TC_MB];
  g->node[node].once_a_step = !in_time;
  TC_APPEND(g->order, g->n_order, g->cap_order, node);
  for (int k = 0; k < n_out; k++) {
    struct tc_tensor *t = &g->tensor[tc_out(g, &g->node[node], k)];
    const struct tc_layout asked = t->lay;
    t->lay = output_layout(s, node, k, &r, c, partial);
    t->space = g->node[node].space;
    struct sum *sum = tc_sum_of(s, node, k);
    TC_TRY(sum ? tc_sum_add(s, node, k, sum) : tc_place_output(s, node, k, &asked, before));
  }
  return 0;
}

/* Makes results that are read after a run equal on every rank. */
static int share_results(struct sctx *s)
{
  struct tc_graph *g = s->g;
  const int32_t result[] = { g->loss, g->grad_norm, g->loss < 0 ? g->logits : -1 };
  for (size_t i = 0; i < sizeof result / sizeof result[0]; i++) {
    if (result[i] < 0) continue;
    struct tc_layout r = tc_layout_r();
    if (result[i] == g->logits) r.on[TC_MB] = g->tensor[g->logits].lay.on[TC_MB];    /* the only micro-batch */
    int32_t first = g->n_nodes, t = s->now[result[i]], d = tc_reshard(g, s->m, t, &r, -1, s->err);
    if (d < 0) return d;
    s->now[result[i]] = d;
    for (int32_t j = first; j < g->n_nodes; j++) {
      g->node[j].on_all_stages = true;
      g->node[j].mark = TC_U;                    /* after all micro-batches */
    }
  }
  return 0;
}

/* Checks that the inputs and outputs of nodes are split into even blocks. */
static int check_even(struct sctx *s)
{
  const struct tc_graph *g = s->g;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; k < n->n_in; k++) TC_TRY(tc_place_even(s, n, tc_in(g, n, k)));
    for (int k = 0; k < n->n_out; k++) TC_TRY(tc_place_even(s, n, tc_out(g, n, k)));
  }
  return 0;
}

/* Updates the tensors that the graph and its parameters refer to: those after the reshards. */
static void follow_reshards(struct sctx *s)
{
  struct tc_graph *g = s->g;
  int32_t *named[] = { g->loss < 0 ? &g->logits : &g->loss, &g->grad_norm, &g->grad_scale };
  for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
    if (*named[i] >= 0) *named[i] = s->now[*named[i]];
  for (int32_t p = 0; p < g->n_params; p++)
    if (g->param[p].grad >= 0 && g->param[p].grad != g->param[p].acc)
      g->param[p].grad = s->now[g->param[p].grad];
}

/* What a node reads, and the results that are read after a run. */
static bool *find_read(const struct tc_graph *g)
{
  bool *read = tc_calloc((size_t)g->n_tensors, sizeof *read);
  const int32_t result[] = { g->loss, g->nll, g->logits, g->grad_norm };
  for (size_t i = 0; i < sizeof result / sizeof *result; i++)
    if (result[i] >= 0) read[result[i]] = true;
  for (int32_t i = 0; i < g->n_order; i++)
    for (int k = 0; k < g->node[g->order[i]].n_in; k++) read[tc_in(g, &g->node[g->order[i]], k)] = true;
  return read;
}

int tc_infer(struct tc_graph *g, const struct tc_mesh *m, bool regather, struct tc_err *err)
{
  struct sctx s = { .g = g, .m = m, .err = err, .regather = regather, .n_old = g->n_tensors };
  int32_t n_order = g->n_order;
  int32_t *order = tc_malloc((size_t)n_order * sizeof *order);
  memcpy(order, g->order, (size_t)n_order * sizeof *order);
  s.now = tc_malloc((size_t)g->n_tensors * sizeof *s.now);
  s.next_version = tc_no_indices((size_t)g->n_tensors);
  s.read = find_read(g);
  s.sum = tc_malloc((size_t)g->n_tensors * sizeof *s.sum);
  s.choice = tc_calloc((size_t)g->n_nodes, sizeof *s.choice);
  tc_sums_find(&s, order, n_order);
  for (int32_t t = 0; t < g->n_tensors; t++) {
    s.now[t] = t;
    if (g->tensor[t].overwrites >= 0) s.next_version[g->tensor[t].overwrites] = t;
    const struct tc_tensor *primal = g->tensor[t].primal >= 0 ? &g->tensor[g->tensor[t].primal]
                                                              : NULL;
    if (primal && primal->annotated && !primal->state) g->tensor[t].preferred = primal->lay;
  }
  for (int32_t i = n_order - 1; i >= 0; i--)
    for (int a = 0; a < TC_AXES; a++) prefer_node(&s, &g->node[order[i]], a);
  g->n_order = 0;
  int rc = 0;
  for (int32_t i = 0; i < n_order && rc >= 0; i++) rc = infer_node(&s, order[i]);
  if (rc >= 0) rc = share_results(&s);
  if (rc >= 0) rc = check_even(&s);
  if (rc >= 0) follow_reshards(&s);
  TC_FREE(order, s.now, s.next_version, s.read, s.sum, s.choice, s.cached);
  return rc < 0 ? rc : 0;
}
