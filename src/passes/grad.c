/* grad.c - reverse-mode differentiation of the program: one rule per op, in the table at the end.
 *
 * Visits the forward nodes in reverse order. The gradient of a tensor has its shape and type. A
 * parameter's gradients are not summed by separate nodes: each contribution is an output that overwrites
 * the previous version and is added to it (node.acc); the first one is written, in a step's first
 * micro-batch. Marks: a node that makes only parameter gradients is W, else B.
 * What leads to no weight but frozen ones has no gradient. An op that makes several gradients makes that of a frozen norm, too,
 * which nothing reads. */
#include "src/passes/passes.h"
#include "src/graph/rule.h"

#include <stdlib.h>
#include <string.h>

struct gctx {
  struct tc_graph *g;
  int grad_dtype;
  int32_t *grad, n_forward;      /* of each forward tensor; -1: none yet */
  bool *needed;                  /* whether a forward tensor is made from what trains, or is that */
  const struct tc_node *fwd;     /* the node being differentiated (borrowed copy) */
};

/* The parameter whose weight t is, if it trains; -1. */
static int32_t param_of(const struct tc_graph *g, int32_t t)
{
  int32_t p = g->tensor[t].param;
  return p >= 0 && g->param[p].weight == t && !g->param[p].frozen ? p : -1;
}

/* Finds what needs a gradient: weights that train, any other state, and what is made from them. */
static bool *find_needed(const struct tc_graph *g)
{
  bool *needed = tc_calloc((size_t)g->n_tensors, sizeof *needed);
  for (int32_t t = 0; t < g->n_tensors; t++) needed[t] = g->tensor[t].param < 0 || param_of(g, t) >= 0;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    bool any = false;
    for (int k = 0; k < n->n_in; k++) any |= needed[tc_in(g, n, k)];
    for (int k = 0; k < n->n_out; k++) needed[tc_out(g, n, k)] = any;
  }
  return needed;
}

static int32_t accumulator(struct gctx *c, int32_t p, const char *prefix, int32_t at)
{
  struct tc_graph *g = c->g;
  struct tc_tensor w = g->tensor[g->param[p].weight];
  char *name = tc_sprintf("%s%s", prefix, g->param[p].name);
  int32_t a = tc_tensor_new(g, name, c->grad_dtype, w.rank, w.dim);
  free(name);
  struct tc_tensor *t = &g->tensor[a];
  t->state = true;
  t->param = p;
  t->cls = TC_CLS_GRAD;
  t->lay = g->param[p].acc_lay;
  if (at >= 0) t->lay.on[TC_PP] = (struct tc_place){ TC_AT, 0, 0, at };
  t->annotated = true;
  t->pad_dim = w.pad_dim;
  t->pad_to = w.pad_to;
  return a;
}

/* The latest version of a parameter's accumulator on the stage of node n: its own or, for a tied weight, that
 * of another stage. */
static int32_t *latest_grad(struct gctx *c, int32_t p, const struct tc_node *n)
{
  struct tc_graph *g = c->g;
  int32_t at = g->unit[n->unit].at;
  if (at == g->unit[g->param[p].unit].at) return &g->param[p].grad;
  if (g->param[p].tied_acc < 0)
    g->param[p].tied_acc = g->param[p].tied_grad = accumulator(c, p, "tied.", at);
  TC_ASSERT(g->tensor[g->param[p].tied_acc].lay.on[TC_PP].at == at);
  return &g->param[p].tied_grad;
}

/* A new tensor for the gradient of t; for a parameter that trains, the next version of its accumulator. */
static int32_t grad_new(struct gctx *c, int32_t t)
{
  struct tc_graph *g = c->g;
  char *name = tc_sprintf("d.%s", g->tensor[t].name);
  struct tc_tensor x = g->tensor[t];
  int32_t p = param_of(c->g, t);
  int32_t d = tc_tensor_new(g, name, x.param < 0 ? x.dtype : c->grad_dtype, x.rank, x.dim);
  free(name);
  const int32_t latest = p < 0 ? -1 : *latest_grad(c, p, c->fwd);     /* may add a tensor, which moves them all */
  struct tc_tensor *y = &g->tensor[d];
  y->primal = p < 0 && x.param >= 0 ? -1 : t;
  y->pad_dim = x.pad_dim;
  y->pad_to = x.pad_to;
  if (p >= 0) {
    y->overwrites = latest;
    y->param = p;
    y->cls = TC_CLS_GRAD;
  }
  return d;
}

static struct tc_node *emit(struct gctx *c, int op, int n_in, const int32_t *in, int n_out,
                            const int32_t *out)
{
  struct tc_graph *g = c->g;
  struct tc_node *n = tc_node_new(g, op, n_in, in, n_out, out);
  n->unit = c->fwd->unit;
  n->head = c->fwd->head;
  n->forward = op == TC_OP_ADD || op == TC_OP_FILL ? -1 : c->fwd->id;    /* these have other subscripts */
  n->attr = c->fwd->attr;
  bool all_w = true;
  for (int i = 0; i < n_out; i++) {
    int32_t p = g->tensor[out[i]].param;
    if (p < 0) { all_w = false; continue; }
    int32_t *grad = latest_grad(c, p, c->fwd);
    bool first = g->tensor[*grad].state;
    TC_ASSERT(!n->acc || n->acc_first == first);
    n->acc |= (uint8_t)(1u << i);
    n->acc_first = first;
    *grad = out[i];
  }
  n->mark = all_w ? TC_W : TC_B;
  return n;
}

/* Adds d to the gradient of a forward tensor that is not a parameter. */
static void add_grad(struct gctx *c, int32_t t, int32_t d)
{
  if (c->g->tensor[t].node < 0 || !c->needed[t]) return;         /* state that is not a parameter; leads to frozen ones alone */
  if (c->grad[t] < 0) {
    c->grad[t] = d;
    return;
  }
  int32_t sum = grad_new(c, t);
  emit(c, TC_OP_ADD, 2, (int32_t[]){ c->grad[t], d }, 1, &sum);
  c->grad[t] = sum;
}

static int32_t in(const struct gctx *c, int i) { return tc_in(c->g, c->fwd, i); }
static int32_t out(const struct gctx *c, int i) { return tc_out(c->g, c->fwd, i); }

/* Appends a node with one output, the gradient of input i of the forward node, from `ins`, with `rule` unless that is NULL. -1:
 * that input needs no gradient; else the gradient. */
static int32_t emit1(struct gctx *c, int op, int i, int n_in, const int32_t *ins, const char *rule)
{
  const int32_t t = in(c, i);
  if (!c->needed[t]) return -1;
  const int32_t d = grad_new(c, t);
  struct tc_node *n = emit(c, op, n_in, ins, 1, &d);
  if (rule) tc_node_rule(c->g, n, rule);
  if (param_of(c->g, t) < 0) add_grad(c, t, d);
  return d;
}

static void grad_embed(struct gctx *c, int32_t dy)
{
  emit1(c, TC_OP_EMBED_BWD, 1, 2, (int32_t[]){ in(c, 0), dy }, NULL);
}

/* The backward op of one that may have starts as its last input: it has them too, and then the rule. */
static void emit_with_starts(struct gctx *c, int op, int i, int n_in, const int32_t *ins, int starts, const char *rule)
{
  int32_t all[TC_RULE_MAX];
  const bool has = c->fwd->n_in > starts;
  memcpy(all, ins, (size_t)n_in * sizeof *ins);
  if (has) all[n_in] = in(c, starts);
  emit1(c, op, i, n_in + has, all, has ? rule : NULL);
}

static void grad_pos(struct gctx *c, int32_t dy)
{
  emit_with_starts(c, TC_OP_POS_BWD, 1, 1, &dy, 2, "nc,n->tc");
  add_grad(c, in(c, 0), dy);
}

static void grad_layernorm(struct gctx *c, int32_t dy)
{
  int32_t o[3] = { grad_new(c, in(c, 0)), grad_new(c, in(c, 1)), grad_new(c, in(c, 2)) };
  emit(c, TC_OP_LAYERNORM_BWD, 5, (int32_t[]){ dy, in(c, 0), in(c, 1), out(c, 1), out(c, 2) },
       3, o);
  add_grad(c, in(c, 0), o[0]);
}

static void grad_rmsnorm(struct gctx *c, int32_t dy)
{
  int32_t o[2] = { grad_new(c, in(c, 0)), grad_new(c, in(c, 1)) };
  emit(c, TC_OP_RMSNORM_BWD, 4, (int32_t[]){ dy, in(c, 0), in(c, 1), out(c, 1) }, 2, o);
  add_grad(c, in(c, 0), o[0]);
}

static void grad_qknorm(struct gctx *c, int32_t dy)
{
  int32_t o[3] = { grad_new(c, in(c, 0)), grad_new(c, in(c, 1)), grad_new(c, in(c, 2)) };
  emit(c, TC_OP_QKNORM_BWD, 5, (int32_t[]){ dy, in(c, 0), in(c, 1), in(c, 2), out(c, 1) }, 3, o);
  add_grad(c, in(c, 0), o[0]);
}

/* What the sums of squares have in dx is added by their own gradient, which is made later (grad_qk_squares). */
static void grad_qk_scale(struct gctx *c, int32_t dy)
{
  int32_t o[4];
  for (int i = 0; i < 4; i++) o[i] = grad_new(c, in(c, i));
  emit(c, TC_OP_QK_SCALE_BWD, 5, (int32_t[]){ dy, in(c, 0), in(c, 1), in(c, 2), in(c, 3) }, 4, o);
  add_grad(c, in(c, 0), o[0]);
  add_grad(c, in(c, 1), o[1]);
}

/* Adds to the gradient of input 0 that a later op of the forward order has already made, in its place. */
static void add_in_place(struct gctx *c, int op, int32_t second, int32_t third)
{
  const int32_t x = in(c, 0), before = c->grad[x], d = grad_new(c, x);
  TC_ASSERT(before >= 0);
  c->g->tensor[d].overwrites = before;
  emit(c, op, third < 0 ? 2 : 3, (int32_t[]){ before, second, third }, 1, &d);
  c->grad[x] = d;
}

static void grad_qk_squares(struct gctx *c, int32_t ds) { add_in_place(c, TC_OP_QK_SQUARES_BWD, in(c, 0), ds); }

static void grad_rope(struct gctx *c, int32_t dy)
{
  emit_with_starts(c, TC_OP_ROPE_BWD, 0, 1, &dy, 1, "nked,n->nked");
}

static void grad_matmul(struct gctx *c, int32_t dy)
{
  char l[TC_RULE_MAX][TC_DIMS + 1];
  tc_rule_parse(c->g, c->fwd, l);
  TC_ASSERT(c->fwd->n_in == 2);                  /* biases are fused later */
  char *ra = tc_sprintf("%s,%s->%s", l[2], l[1], l[0]);
  char *rb = tc_sprintf("%s,%s->%s", l[2], l[0], l[1]);
  const int32_t a = in(c, 0), da = c->needed[a] ? grad_new(c, a) : -1;
  if (da >= 0) tc_node_rule(c->g, emit(c, TC_OP_MATMUL, 2, (int32_t[]){ dy, in(c, 1) }, 1, &da), ra);
  emit1(c, TC_OP_MATMUL, 1, 2, (int32_t[]){ dy, a }, rb);
  if (da >= 0) add_grad(c, a, da);
  TC_FREE(ra, rb);
}

static void grad_bias(struct gctx *c, int32_t dy)
{
  char l[TC_RULE_MAX][TC_DIMS + 1];
  tc_rule_parse(c->g, c->fwd, l);
  char *r = tc_sprintf("%s->%s", l[0], l[1]);
  emit1(c, TC_OP_BIAS_BWD, 1, 1, &dy, r);
  add_grad(c, in(c, 0), dy);
  free(r);
}

static void grad_activation(struct gctx *c, int32_t dy)
{
  emit1(c, c->fwd->op == TC_OP_ACT ? TC_OP_ACT_BWD : TC_OP_GLU_BWD, 0, 2, (int32_t[]){ dy, in(c, 0) }, NULL);
}

static void grad_add(struct gctx *c, int32_t dy)
{
  add_grad(c, in(c, 0), dy);
  add_grad(c, in(c, 1), dy);
}

/* Dropout, cast and scale are linear and their own adjoints (the mask is computed again from its key). */
static void grad_same(struct gctx *c, int32_t dy) { emit1(c, c->fwd->op, 0, 1, &dy, NULL); }

/* The last version of a forward tensor. Versions come in the order of their numbers. */
static int32_t last_version(const struct tc_graph *g, int32_t t, int32_t n_tensors)
{
  for (int32_t v = t + 1; v < n_tensors; v++)
    if (g->tensor[v].overwrites == t) t = v;
  return t;
}

/* The gradient's rule. `more` forward inputs from 1 on are inputs too; apart: the first of them is keys and values by
 * themselves; goes_on: the last input is dqkv so far. */
static void attn_rule(struct gctx *c, struct tc_node *n, int more, bool apart, bool goes_on)
{
  char l[TC_RULE_MAX][TC_DIMS + 1], with[3 * TC_DIMS + 4] = "", kv[TC_DIMS + 2] = "";
  tc_rule_parse(c->g, c->fwd, l);
  const char *x = l[0], *y = l[c->fwd->n_in], *lse = l[c->fwd->n_in + 1];
  for (int i = 0; i < more; i++) tc_text_add(with, sizeof with, ",%s", l[1 + i]);
  if (goes_on) tc_text_add(with, sizeof with, ",%s", x);
  if (apart) snprintf(kv, sizeof kv, ",%s", l[1]);
  char *r = tc_sprintf("%s,%s,%s,%s%s->%s%s", y, x, y, lse, with, x, kv);
  tc_node_rule(c->g, n, r);
  free(r);
}

/* Attention's inputs after qkv, keys and values by themselves and starts, if it has them, are those of its gradient, too. A
 * piece reads what the last piece has left of y and lse, whose gradient all pieces share, and goes on with dqkv. */
static void grad_attn(struct gctx *c, int32_t dy)
{
  const int32_t x = in(c, 0), y = out(c, 0), y_before = c->g->tensor[y].overwrites;
  const bool piece = tc_attn_pieces(c->g, c->fwd) > 1, goes_on = piece && c->grad[x] >= 0;
  const int more = c->fwd->n_in - 1 - (y_before >= 0 ? 2 : 0);
  const bool apart = more > 0 && c->g->tensor[in(c, 1)].rank > 1;
  int32_t ins[7] = { dy, x, last_version(c->g, y, c->n_forward), last_version(c->g, out(c, 1), c->n_forward) };
  int32_t n = 4, o[2] = { grad_new(c, x), -1 };
  for (int i = 0; i < more; i++) ins[n++] = in(c, 1 + i);
  if (goes_on) c->g->tensor[o[0]].overwrites = ins[n++] = c->grad[x];
  if (apart) o[1] = grad_new(c, in(c, 1));
  const int32_t id = emit(c, TC_OP_ATTN_BWD, n, ins, 1 + apart, o)->id;
  if (piece) c->grad[x] = o[0];
  else add_grad(c, x, o[0]);
  if (apart) add_grad(c, in(c, 1), o[1]);
  if (y_before >= 0) add_grad(c, y_before, dy);
  if (c->fwd->rule) attn_rule(c, &c->g->node[id], more, apart, goes_on);
}

/* Attention's backward pass, which came before, has made the gradient of the queries, with zeros for keys and values (of the
 * piece, if it is one): theirs are copied into it. */
static void grad_kv(struct gctx *c, int32_t dkv) { add_in_place(c, TC_OP_KV_BWD, dkv, -1); }

static void grad_spread(struct gctx *c, int32_t dy) { emit1(c, TC_OP_SPREAD_BWD, 0, 1, &dy, NULL); }

/* The sum's gradient is that of x, and in the part that of u. */
static void grad_add_part(struct gctx *c, int32_t dy)
{
  char l[TC_RULE_MAX][TC_DIMS + 1];
  tc_rule_parse(c->g, c->fwd, l);
  char *r = tc_sprintf("%s->%s", l[0], l[1]);
  emit1(c, TC_OP_PART, 1, 1, &dy, r);
  add_grad(c, in(c, 0), dy);
  free(r);
}

static void grad_sumexp(struct gctx *c, int32_t ds)
{
  emit1(c, TC_OP_SUMEXP_BWD, 0, 3, (int32_t[]){ in(c, 0), in(c, 1), ds }, NULL);
}

/* Sumexp, whose gradient is there, is later in the forward order. */
static void grad_pick(struct gctx *c, int32_t dp) { add_in_place(c, TC_OP_PICK_BWD, in(c, 1), dp); }

/* In place of dy, unless that is another tensor's gradient, too. */
static void grad_softcap(struct gctx *c, int32_t dy)
{
  const bool own = c->g->tensor[dy].primal == out(c, 0);
  const int32_t dx = emit1(c, TC_OP_SOFTCAP_BWD, 0, 2, (int32_t[]){ dy, out(c, 0) }, NULL);
  if (own) c->g->tensor[dx].overwrites = dy;
}

/* The loss does not depend on the max, which is subtracted and added again; with z > 0 the square's slope does. */
static void grad_nll(struct gctx *c, int32_t dl)
{
  int32_t o[2] = { grad_new(c, in(c, 1)), grad_new(c, in(c, 2)) };
  const bool square = c->fwd->attr.z > 0;
  struct tc_node *n = emit(c, TC_OP_NLL_BWD, square ? 4 : 3, (int32_t[]){ dl, in(c, 1), in(c, 3), in(c, 0) }, 2, o);
  if (square) tc_node_rule(c->g, n, "n,n,n,n->n,n");
  add_grad(c, in(c, 1), o[0]);
  add_grad(c, in(c, 2), o[1]);
}

/* The seed: d loss / d x is the factor of the sum, for all elements. */
static void grad_sum(struct gctx *c, int32_t dy)
{
  (void)dy;
  emit1(c, TC_OP_FILL, 0, 0, NULL, NULL);
}

static void (*const rule[TC_OPS])(struct gctx *c, int32_t dy) = {
  [TC_OP_EMBED] = grad_embed,   [TC_OP_POS] = grad_pos,     [TC_OP_LAYERNORM] = grad_layernorm,
  [TC_OP_MATMUL] = grad_matmul, [TC_OP_BIAS] = grad_bias,   [TC_OP_ACT] = grad_activation,
  [TC_OP_ADD] = grad_add,       [TC_OP_CAST] = grad_same,   [TC_OP_DROPOUT] = grad_same,
  [TC_OP_SCALE] = grad_same,    [TC_OP_SOFTCAP] = grad_softcap,
  [TC_OP_QK_SQUARES] = grad_qk_squares, [TC_OP_QK_SCALE] = grad_qk_scale,
  [TC_OP_ATTN] = grad_attn,     [TC_OP_KV] = grad_kv,       [TC_OP_SUMEXP] = grad_sumexp, [TC_OP_PICK] = grad_pick,
  [TC_OP_NLL] = grad_nll,       [TC_OP_SUM] = grad_sum,     [TC_OP_RMSNORM] = grad_rmsnorm,
  [TC_OP_QKNORM] = grad_qknorm, [TC_OP_ROPE] = grad_rope,   [TC_OP_GLU] = grad_activation,
  [TC_OP_SPREAD] = grad_spread, [TC_OP_ADD_PART] = grad_add_part,
};

/* Adds gradients of tied weights, which another stage has summed over the step, to the owner's. */
static void add_tied(struct tc_graph *g)
{
  for (int32_t p = 0; p < g->n_params; p++) {
    struct tc_param *x = &g->param[p];
    if (x->tied_acc < 0) continue;
    int32_t v = tc_tensor_like(g, x->grad);
    g->tensor[v].overwrites = x->grad;
    g->tensor[v].primal = -1;                    /* a sum, no gradient of one use */
    struct tc_node *n = tc_node_new(g, TC_OP_ACCUM, 1, &x->tied_grad, 1, &v);
    n->unit = x->unit;
    n->mark = TC_B;
    n->acc = 1;
    x->grad = v;
  }
}

/* Records what later passes must preserve (graph/check_grad.c): one contribution for each use of a weight. */
static void record_contributions(struct tc_graph *g, int32_t first)
{
  int32_t uses = 0;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    for (int k = 0; i < first && k < n->n_in; k++) {
      uses += param_of(g, tc_in(g, n, k)) >= 0;
    }
    for (int k = 0; i >= first && k < n->n_out && n->op != TC_OP_ACCUM; k++) {
      if (!(n->acc >> k & 1)) continue;
      TC_APPEND(g->contribution, g->n_contributions, g->cap_contributions,
                (struct tc_contribution){ g->tensor[tc_out(g, n, k)].param, n->id, (uint8_t)k });
    }
  }
  TC_ASSERT(uses == g->n_contributions);
}

int tc_grad(struct tc_graph *g, int grad_dtype, struct tc_err *err)
{
  struct gctx c = { .g = g, .grad_dtype = grad_dtype };
  for (int32_t p = 0; p < g->n_params; p++)
    if (!g->param[p].frozen) g->param[p].acc = g->param[p].grad = accumulator(&c, p, "grad.", -1);
  int32_t n_order = g->n_order;
  c.needed = find_needed(g);
  c.n_forward = g->n_tensors;
  c.grad = tc_no_indices((size_t)g->n_tensors);        /* only forward tensors have entries */
  c.grad[g->loss] = g->loss;                     /* a mark: the seed is a constant */
  int rc = 0;
  for (int32_t i = n_order - 1; i >= 0 && !rc; i--) {
    struct tc_node fwd = g->node[g->order[i]];
    if (c.grad[tc_out(g, &fwd, 0)] < 0) continue;
    if (!rule[fwd.op])
      rc = tc_fail(err, TC_EUSER, "op %s has no gradient", tc_op_info[fwd.op].name);
    c.fwd = &fwd;
    if (!rc) rule[fwd.op](&c, c.grad[tc_out(g, &fwd, 0)]);
  }
  TC_FREE(c.grad, c.needed);
  if (!rc) add_tied(g);
  if (!rc) record_contributions(g, n_order);
  return rc;
}
