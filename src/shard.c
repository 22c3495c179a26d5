/* shard.c - the shard pass: from annotations to a layout for every tensor.
 *
 * Up-sweep: annotations (of outputs, and of state inputs) flow as wants to unannotated inputs.
 * Down-sweep: each node, in order, chooses on each axis one letter of its rule to be split (or
 * rows, or a coordinate, or nothing). A parameter's use beats an annotated output, which beats
 * the first operand. Inputs that differ get transitions; a contracted split letter makes the
 * output partial, which is resolved where it is produced, to its want, else to R. Partial
 * gradients of a parameter are resolved after the last contribution only. */
#include "src/shard.h"
#include "src/comm.h"

#include <stdlib.h>
#include <string.h>

struct made { int32_t from, to, mark; struct tc_layout lay; };

struct sctx {
  struct tc_graph *g;
  const struct tc_mesh *m;
  struct tc_err *err;
  int32_t *now;                  /* tensor -> what stands for it after transitions */
  int32_t *heir;                 /* tensor -> the one that overwrites it; -1 */
  int32_t n_old;                 /* tensors before the pass */
  struct made *made; int n_made, cap_made;
};

/* What a node does on an axis. */
struct choice { uint8_t kind; char letter; int32_t at; };

/* Forward and backward see a parameter where it is used; the update, where it is kept. */
static struct tc_layout seen(const struct tc_graph *g, const struct tc_node *n, int32_t t)
{
  const struct tc_tensor *x = &g->tensor[t];
  if (x->param >= 0 && g->param[x->param].weight == t && x->state && n->mark != TC_U)
    return g->param[x->param].use;
  return x->lay;
}

/* The layout an output must have: its own annotation, or that of the state it overwrites. */
static const struct tc_layout *pinned(const struct tc_graph *g, int32_t t)
{
  if (g->tensor[t].annotated) return &g->tensor[t].lay;
  int32_t root = tc_tensor_root(g, t);
  return root != t && g->tensor[root].state && g->tensor[root].annotated ? &g->tensor[root].lay
                                                                        : NULL;
}

static bool choose(const struct tc_place *p, const char *letters, struct choice *c)
{
  if (p->kind == TC_S) *c = (struct choice){ TC_S, letters[p->dim], 0 };
  else if (p->kind == TC_SROWS) *c = (struct choice){ TC_SROWS, 0, 0 };
  else if (p->kind == TC_AT) *c = (struct choice){ TC_AT, 0, p->at };
  else return false;
  return true;
}

static bool is_acc(const struct tc_node *n, int k) { return n->acc >> k & 1; }

/* ---- up-sweep ---------------------------------------------------------------------- */

static void want_node(struct sctx *s, const struct tc_node *n, int axis)
{
  struct tc_graph *g = s->g;
  char l[TC_RULE_MAX][TC_DIMS + 1];
  if (n->n_in + n->n_out > TC_RULE_MAX) return;
  tc_rule_parse(g, n, l);
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
    const struct tc_layout *pin = pinned(g, t);
    found = choose(pin ? &pin->on[axis] : &g->tensor[t].want.on[axis], l[n->n_in + k], &c);
  }
  if (!found) return;
  for (int i = 0; i < n->n_in; i++) {
    struct tc_tensor *x = &g->tensor[tc_in(g, n, i)];
    if (x->state || x->annotated || x->want.on[axis].kind != TC_R || x->rank == 0) continue;
    if (c.kind == TC_S) {
      const char *d = strchr(l[i], c.letter);
      if (d) x->want.on[axis] = (struct tc_place){ TC_S, (uint8_t)(d - l[i]), 0, 0 };
    } else if (tc_op_info[n->op].flags & TC_OPF_ROWS) {
      x->want.on[axis] = (struct tc_place){ c.kind, 0, 0, c.at };
    }
  }
}

/* ---- down-sweep -------------------------------------------------------------------- */

static int choose_axis(struct sctx *s, const struct tc_node *n, int axis,
                       char l[TC_RULE_MAX][TC_DIMS + 1], struct choice *c)
{
  struct tc_graph *g = s->g;
  const struct tc_op_info *op = &tc_op_info[n->op];
  *c = (struct choice){ TC_R, 0, 0 };
  bool found = false, hard = false;
  int total = TC_MIN(n->n_in, TC_RULE_MAX - n->n_out);
  for (int i = 0; i < total && !found; i++) {    /* a parameter's use, or other state */
    int32_t t = tc_in(g, n, i);
    if (!g->tensor[t].state) continue;
    struct tc_layout lay = seen(g, n, t);
    found = hard = choose(&lay.on[axis], l[i], c);
  }
  for (int k = 0; k < n->n_out && !found; k++) { /* an annotated output */
    int32_t t = tc_out(g, n, k);
    const struct tc_layout *pin = pinned(g, t);
    if (pin && is_acc(n, k) && pin->on[axis].kind != TC_S) pin = NULL;   /* moved afterwards */
    if (pin) found = choose(&pin->on[axis], l[n->n_in + k], c);
    else if (n->n_in == 0 && g->tensor[t].primal >= 0)
      found = choose(&g->tensor[s->now[g->tensor[t].primal]].lay.on[axis], l[k], c);
  }
  for (int i = 0; i < total && !found; i++) {    /* the first operand that is split */
    const struct tc_tensor *x = &g->tensor[s->now[tc_in(g, n, i)]];
    if (x->rank || x->lay.on[axis].kind == TC_AT) found = choose(&x->lay.on[axis], l[i], c);
  }
  bool bad = (c->kind == TC_S && strchr(op->whole, c->letter) && *op->whole) ||
             (c->kind == TC_SROWS && !(op->flags & TC_OPF_ROWS));
  if (bad && hard)
    return tc_fail(s->err, TC_ELAYOUT, "%s: an input is split on %s where the op needs it whole",
                   op->name, tc_axis_name[axis]);
  if (bad) *c = (struct choice){ TC_R, 0, 0 };
  return 0;
}

/* Whole sequences: give up splits of the first letter, innermost axis first. */
static void keep_grain(struct sctx *s, const struct tc_node *n,
                       char l[TC_RULE_MAX][TC_DIMS + 1], struct choice c[TC_AXES])
{
  if (!(tc_op_info[n->op].flags & TC_OPF_GRAIN)) return;
  for (int a = TC_AXES - 1; a >= 0; a--) {
    int64_t rows = s->g->tensor[tc_in(s->g, n, 0)].dim[0];
    for (int b = 0; b < TC_AXES; b++)
      if (c[b].kind == TC_S && c[b].letter == l[0][0]) rows /= s->m->size[b];
    if (rows % n->k[0] == 0) return;
    if (c[a].kind == TC_S && c[a].letter == l[0][0]) c[a].kind = TC_R;
  }
}

static struct tc_place placed(const struct choice *c, const char *letters, int rank)
{
  struct tc_place p = { 0 };
  if (c->kind == TC_S) {
    const char *d = strchr(letters, c->letter);
    if (d && *d) p = (struct tc_place){ TC_S, (uint8_t)(d - letters), 0, 0 };
  } else if (c->kind == TC_SROWS) {
    if (rank > 0) p.kind = TC_SROWS;
  } else if (c->kind == TC_AT) {
    p = (struct tc_place){ TC_AT, 0, 0, c->at };
  }
  return p;
}

/* A linear op keeps inputs that are all partial on an axis partial. */
static bool stays_partial(struct sctx *s, const struct tc_node *n, int axis)
{
  if (!(tc_op_info[n->op].flags & TC_OPF_LINEAR) || n->n_in == 0) return false;
  for (int i = 0; i < n->n_in; i++)
    if (s->g->tensor[s->now[tc_in(s->g, n, i)]].lay.on[axis].kind != TC_P) return false;
  return true;
}

static int move_input(struct sctx *s, int32_t node, int i, const struct tc_layout *need)
{
  struct tc_graph *g = s->g;
  int32_t t = s->now[g->arg[g->node[node].in + i]];
  if (!tc_layout_equal(&g->tensor[t].lay, need)) {
    int32_t mark = g->node[node].mark, k;
    for (k = s->n_made - 1; k >= 0; k--)
      if (s->made[k].from == t && s->made[k].mark == mark &&
          tc_layout_equal(&s->made[k].lay, need)) break;
    if (k < 0) {
      int32_t d = tc_move(g, t, need, node, s->err);
      if (d < 0) return d;
      TC_GROW(s->made, s->n_made, s->cap_made);
      k = s->n_made++;
      s->made[k] = (struct made){ t, d, mark, *need };
    }
    t = s->made[k].to;
  }
  g->arg[g->node[node].in + i] = t;
  return 0;
}

static int even(struct sctx *s, const struct tc_node *n, const struct tc_tensor *t)
{
  int64_t dim[TC_DIMS];
  for (int d = 0; d < t->rank; d++) dim[d] = d == t->pad_dim ? t->pad_to : t->dim[d];
  for (int a = 0; a < TC_AXES; a++) {
    if (t->lay.on[a].kind != TC_S) continue;
    int d = t->lay.on[a].dim;
    if (dim[d] % s->m->size[a])
      return tc_fail(s->err, TC_ELAYOUT, "%s of op %s: dimension %d has %lld elements, which %s = "
                     "%d does not divide", t->name, tc_op_info[n->op].name, d,
                     (long long)dim[d], tc_axis_name[a], s->m->size[a]);
    dim[d] /= s->m->size[a];
  }
  return 0;
}

/* The layout of output k, as the node makes it. */
static void set_output(struct sctx *s, int32_t node, int k,
                       char l[TC_RULE_MAX][TC_DIMS + 1], const struct choice c[TC_AXES],
                       const bool partial[TC_AXES])
{
  struct tc_graph *g = s->g;
  const struct tc_node *n = &g->node[node];
  struct tc_tensor *t = &g->tensor[tc_out(g, n, k)];
  const char *lo = n->n_in + k < TC_RULE_MAX ? l[n->n_in + k] : "";
  bool max = tc_op_info[n->op].flags & TC_OPF_MAXRED;
  for (int a = 0; a < TC_AXES; a++) {
    struct tc_place p = placed(&c[a], lo, t->rank);
    bool contracted = (c[a].kind == TC_S || c[a].kind == TC_SROWS) && p.kind == TC_R;
    if (contracted || partial[a])
      p = (struct tc_place){ TC_P, 0, max ? TC_MAX_OP : TC_SUM, 0 };
    if (a == TC_MB && p.kind == TC_P && is_acc(n, k)) p = (struct tc_place){ 0 };
    t->lay.on[a] = p;
  }
}

/* A contribution whose accumulator is placed otherwise: made apart, moved, then added. */
static int accumulate_apart(struct sctx *s, int32_t node, int k, const struct tc_layout *acc)
{
  struct tc_graph *g = s->g;
  struct tc_node *n = &g->node[node];
  int32_t v = tc_out(g, n, k);
  struct tc_tensor x = g->tensor[v];
  int32_t tmp = tc_tensor_new(g, x.name, x.dtype, x.rank, x.dim);
  struct tc_tensor *y = &g->tensor[tmp];
  y->lay = x.lay;
  y->lay.on[TC_MB] = (struct tc_place){ TC_P, 0, 0, 0 };
  y->pad_dim = x.pad_dim;
  y->pad_to = x.pad_to;
  y->primal = x.primal;
  y->node = node;
  n->acc &= (uint8_t)~(1u << k);
  g->arg[n->out + k] = tmp;
  struct tc_layout to = *acc;
  to.on[TC_MB] = y->lay.on[TC_MB];
  int32_t moved = tc_move(g, tmp, &to, node, s->err);
  if (moved < 0) return moved;
  g->tensor[v].node = -1;
  g->tensor[v].lay = *acc;
  struct tc_node *a = tc_node_new(g, TC_OP_ACCUM, 1, &moved, 1, &v);
  const struct tc_node *like = &g->node[node];
  a->unit = like->unit;
  a->mark = like->mark;
  a->acc = 1;
  a->acc_first = like->acc_first;
  return 0;
}

/* Partial outputs are resolved where they are produced. */
static int resolve(struct sctx *s, int32_t node, int32_t t)
{
  struct tc_graph *g = s->g;
  if (t < s->n_old && s->heir[t] >= 0) return 0;           /* another contribution follows */
  struct tc_layout to = g->tensor[t].lay;
  bool any = false;
  for (int a = 0; a < TC_AXES; a++) {
    if (to.on[a].kind != TC_P) continue;
    if (a == TC_MB)
      return tc_fail(s->err, TC_ELAYOUT, "%s of op %s is partial in time", g->tensor[t].name,
                     tc_op_info[g->node[node].op].name);
    any = true;
    to.on[a] = g->tensor[t].want.on[a];
  }
  if (!any) return 0;
  int32_t d = tc_move(g, t, &to, node, s->err);
  if (d < 0) return d;
  s->now[t] = d;
  return 0;
}

static int shard_node(struct sctx *s, int32_t node)
{
  struct tc_graph *g = s->g;
  char l[TC_RULE_MAX][TC_DIMS + 1] = { "" };
  tc_rule_parse(g, &g->node[node], l);
  struct choice c[TC_AXES];
  bool partial[TC_AXES] = { false };
  for (int a = 0; a < TC_AXES; a++) {
    TC_TRY(choose_axis(s, &g->node[node], a, l, &c[a]));
    partial[a] = c[a].kind == TC_R && stays_partial(s, &g->node[node], a);
  }
  keep_grain(s, &g->node[node], l, c);
  int n_in = g->node[node].n_in, n_out = g->node[node].n_out;
  for (int i = 0; i < n_in; i++) {
    int32_t t = s->now[tc_in(g, &g->node[node], i)];
    /* More inputs than letters: all alike (sqnorm, clip). */
    const char *li = l[TC_MIN(i, TC_RULE_MAX - 2)];
    struct tc_layout need;
    for (int a = 0; a < TC_AXES; a++)
      need.on[a] = partial[a] ? g->tensor[t].lay.on[a] : placed(&c[a], li, g->tensor[t].rank);
    TC_TRY(move_input(s, node, i, &need));
  }
  bool in_time = c[TC_MB].kind != TC_R || partial[TC_MB];
  g->node[node].once = !in_time;
  TC_GROW(g->order, g->n_order, g->cap_order);
  g->order[g->n_order++] = node;
  for (int k = 0; k < n_out; k++) {
    set_output(s, node, k, l, c, partial);
    TC_TRY(even(s, &g->node[node], &g->tensor[tc_out(g, &g->node[node], k)]));
  }
  for (int k = 0; k < n_out; k++) {
    int32_t t = tc_out(g, &g->node[node], k);
    const struct tc_layout *pin = pinned(g, t);
    if (pin && !tc_layout_equal(pin, &g->tensor[t].lay)) {
      if (!is_acc(&g->node[node], k))
        return tc_fail(s->err, TC_ELAYOUT, "op %s can't make %s where it is asked to be",
                       tc_op_info[g->node[node].op].name, g->tensor[t].name);
      TC_TRY(accumulate_apart(s, node, k, pin));
    }
    TC_TRY(resolve(s, node, t));
  }
  return 0;
}

/* Names in the graph that point at tensors follow the transitions. */
static void follow(struct sctx *s)
{
  struct tc_graph *g = s->g;
  int32_t *named[] = { &g->loss, &g->grad_norm, &g->grad_scale };
  for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
    if (*named[i] >= 0) *named[i] = s->now[*named[i]];
  for (int32_t p = 0; p < g->n_params; p++)
    if (g->param[p].grad >= 0 && g->param[p].grad != g->param[p].acc)
      g->param[p].grad = s->now[g->param[p].grad];
}

int tc_shard(struct tc_graph *g, const struct tc_mesh *m, struct tc_err *err)
{
  struct sctx s = { .g = g, .m = m, .err = err, .n_old = g->n_tensors };
  int32_t n_order = g->n_order;
  int32_t *order = tc_malloc((size_t)n_order * sizeof *order);
  memcpy(order, g->order, (size_t)n_order * sizeof *order);
  size_t bytes = (size_t)g->n_tensors * sizeof *s.now;
  s.now = tc_malloc(bytes);
  s.heir = tc_malloc(bytes);
  memset(s.heir, -1, bytes);
  for (int32_t t = 0; t < g->n_tensors; t++) {
    s.now[t] = t;
    if (g->tensor[t].overwrites >= 0) s.heir[g->tensor[t].overwrites] = t;
    const struct tc_tensor *primal = g->tensor[t].primal >= 0 ? &g->tensor[g->tensor[t].primal]
                                                              : NULL;
    if (primal && primal->annotated && !primal->state) g->tensor[t].want = primal->lay;
  }
  for (int32_t i = n_order - 1; i >= 0; i--)
    for (int a = 0; a < TC_AXES; a++) want_node(&s, &g->node[order[i]], a);
  g->n_order = 0;
  int rc = 0;
  for (int32_t i = 0; i < n_order && rc >= 0; i++) rc = shard_node(&s, order[i]);
  if (rc >= 0) follow(&s);
  free(order);
  free(s.now);
  free(s.heir);
  free(s.made);
  return rc < 0 ? rc : 0;
}
