/* calls.c - the calls of a program's nodes: their views, sizes and the device's plans, made once, and what
 * changes from micro-batch to micro-batch. */
#include "src/exec/impl.h"
#include "src/graph/rule.h"

#include <stdlib.h>
#include <string.h>

void *tc_exec_where(const struct tc_exec *x, const struct tc_xprog *p, int32_t t, int32_t mb)
{
  const struct tc_arena *a = p->p->arena;
  if (a->off[t] < 0) return NULL;
  return x->region[a->region[t]] + tc_arena_at(a, t, mb);
}

static void make_view(const struct tc_exec *x, const struct tc_xprog *p, int32_t t,
                      struct tc_view *v, int64_t *mb_step, int8_t *mb_dim)
{
  const struct tc_tensor *te = &p->p->graph->tensor[t];
  const struct tc_mesh *m = x->o.mesh;
  struct tc_local l;
  tc_tensor_local(te, m, m->coord + (size_t)x->o.rank * TC_AXES, &l);
  *v = (struct tc_view){ .data = tc_exec_where(x, p, t, 0), .dtype = te->dtype, .rank = te->rank,
                         .row0 = l.row0, .rows = l.rows, .elems = l.elems };
  memcpy(v->dim, l.dim, sizeof v->dim);
  memcpy(v->off, l.off, sizeof v->off);
  memcpy(v->global, te->dim, sizeof v->global);
  *mb_dim = -1;
  *mb_step = 0;
  const struct tc_place *mb = &te->lay.on[TC_MB];
  if (mb->kind == TC_S) {
    *mb_dim = (int8_t)mb->dim;
    *mb_step = te->dim[mb->dim] / m->size[TC_MB];
  }
}

static int prepare(struct tc_exec *x, struct tc_device *d, struct tc_call *c, void **plan,
                   struct tc_err *err)
{
  const struct tc_kernel *k = &d->ops->kernel[c->op];
  if (!k->run)
    return tc_fail(err, TC_EUSER, "device %s has no kernel for op %s", d->ops->name,
                   tc_op_info[c->op].name);
  c->plan = NULL;
  if (k->prepare) TC_TRY(k->prepare(d, c, err));
  int64_t *most = &x->kscratch_bytes[d == x->o.device ? TC_DEVICE : TC_HOST];
  if (k->scratch) *most = TC_MAX(*most, k->scratch(d, c));
  *plan = c->plan;
  return 0;
}

static void unprepare(struct tc_device *d, struct tc_xnode *n)
{
  const struct tc_kernel *k = &d->ops->kernel[n->call.op];
  for (int i = 0; i < 2; i++) {
    n->call.plan = i ? n->plan : n->first_plan;
    bool same = i && n->plan == n->first_plan;
    if (n->call.plan && k->unprepare && !same) k->unprepare(d, &n->call);
  }
}

void tc_exec_free_node(struct tc_exec *x, struct tc_xprog *p, int32_t id)
{
  struct tc_xnode *n = &p->node[id];
  unprepare(tc_exec_device_of(x, &p->p->graph->node[id]), n);
  for (int32_t i = 0; i < n->n_reshards; i++) tc_xreshard_free(n->reshard[i], x->o.device);
  TC_FREE(n->reshard, n->call.in, n->mb_step, n->mb_dim, n->last_used);
}

/* at(k) of some axis, and this rank is not there. */
static bool is_elsewhere(const struct tc_exec *x, const struct tc_tensor *t)
{
  struct tc_local l;
  tc_tensor_local(t, x->o.mesh, x->o.mesh->coord + (size_t)x->o.rank * TC_AXES, &l);
  return !l.here;
}

int tc_exec_make_node(struct tc_exec *x, struct tc_xprog *p, int32_t id, struct tc_err *err)
{
  const struct tc_graph *g = p->p->graph;
  const struct tc_node *n = &g->node[id];
  struct tc_xnode *xn = &p->node[id];
  int total = n->n_in + n->n_out;
  struct tc_call *c = &xn->call;
  xn->mb_step = tc_calloc((size_t)total, sizeof *xn->mb_step);
  xn->mb_dim = tc_calloc((size_t)total, sizeof *xn->mb_dim);
  *c = (struct tc_call){ .op = n->op, .node = id, .n_in = n->n_in, .n_out = n->n_out,
                         .f = { n->attr.number, n->attr.other }, .k = { n->attr.index, n->attr.second, n->attr.third },
                         .rows = g->rows, .freq = n->attr.freq, .rt = &x->now };
  c->in = tc_calloc((size_t)total, sizeof *c->in);
  c->out = c->in + n->n_in;
  for (int i = 0; i < total; i++) {
    int32_t t = i < n->n_in ? tc_in(g, n, i) : tc_out(g, n, i - n->n_in);
    make_view(x, p, t, &c->in[i], &xn->mb_step[i], &xn->mb_dim[i]);
    xn->slotted |= p->p->arena->slots[t] > 1;
  }
  xn->first_acc = xn->acc = n->acc;
  xn->nowhere = n->op != TC_OP_RESHARD;
  for (int k = 0; k < n->n_out; k++) {
    const struct tc_tensor *t = &g->tensor[tc_out(g, n, k)];
    bool state = g->tensor[tc_tensor_root(g, t->id)].state;
    const uint8_t bit = k < 8 ? (uint8_t)(1u << k) : 0;      /* a reshard's many are never added to */
    if (t->overwrites < 0) xn->acc &= (uint8_t)~bit;        /* nothing there to add to */
    if (t->overwrites < 0 || (n->acc_first && state)) xn->first_acc &= (uint8_t)~bit;
    xn->nowhere &= is_elsewhere(x, t);
  }
  if (n->op == TC_OP_DATA) x->batch_elems = TC_MAX(x->batch_elems, c->n_out * c->out[0].elems);
  if (n->op == TC_OP_DATA || xn->nowhere) return 0;
  if (n->op == TC_OP_RESHARD) {
    void **ptr = tc_malloc((size_t)total * sizeof *ptr);
    for (int i = 0; i < total; i++) ptr[i] = c->in[i].data;
    int rc = 0;
    xn->n_reshards = tc_actions_most(p->p->actions, id);
    xn->reshard = tc_calloc((size_t)xn->n_reshards, sizeof *xn->reshard);
    for (int32_t i = 0; i < xn->n_reshards && !rc; i++) {
      rc = tc_xreshard_new(&xn->reshard[i], g, n, &x->o, ptr, ptr + n->n_in, err);
      if (rc == 0) x->staging_bytes += tc_xreshard_staging(xn->reshard[i]);
    }
    free(ptr);
    return rc;
  }
  if (n->op == TC_OP_MATMUL) c->gemm = tc_rule_gemm(g, n, c->in[0].dim, c->out[0].dim);
  c->acc = xn->first_acc;
  TC_TRY(prepare(x, tc_exec_device_of(x, n), c, &xn->first_plan, err));
  c->acc = xn->acc;
  xn->plan = xn->first_plan;
  return c->acc == xn->first_acc ? 0 : prepare(x, tc_exec_device_of(x, n), c, &xn->plan, err);
}

static void at_mb(struct tc_xnode *n, int32_t mb, int32_t before)
{
  int total = n->call.n_in + n->call.n_out;
  for (int i = 0; i < total; i++)
    if (n->mb_dim[i] >= 0) n->call.in[i].off[n->mb_dim[i]] += (mb - before) * n->mb_step[i];
}

static void find_slots(const struct tc_exec *x, const struct tc_xprog *p, int32_t id, int32_t mb)
{
  const struct tc_graph *g = p->p->graph;
  const struct tc_node *n = &g->node[id];
  struct tc_call *c = &p->node[id].call;
  for (int i = 0; i < n->n_in + n->n_out; i++)
    c->in[i].data = tc_exec_where(x, p, i < n->n_in ? tc_in(g, n, i) : tc_out(g, n, i - n->n_in), mb);
  for (int k = 0; n->op == TC_OP_RESHARD && k < n->n_in; k++)
    tc_xreshard_retarget(p->node[id].reshard[mb % p->node[id].n_reshards], k, c->in[k].data,
                      c->out[k].data);
}

void tc_exec_ready(struct tc_exec *x, struct tc_xprog *p, int32_t id, int32_t mb)
{
  struct tc_xnode *xn = &p->node[id];
  at_mb(xn, mb, 0);
  if (xn->slotted) find_slots(x, p, id, mb);
  xn->call.acc = mb == 0 ? xn->first_acc : xn->acc;
  xn->call.plan = mb == 0 ? xn->first_plan : xn->plan;
  x->now.mb = mb;
}

void tc_exec_done(struct tc_xprog *p, int32_t id, int32_t mb)
{
  at_mb(&p->node[id], 0, mb);
}

bool tc_exec_is_alone(const struct tc_exec *x, const struct tc_xprog *p, const struct tc_action *a)
{
  const struct tc_node *n = &p->p->graph->node[a->node];
  const struct tc_xnode *xn = &p->node[a->node];
  if (xn->nowhere) return true;
  if (n->op == TC_OP_DATA) return false;
  if (n->op == TC_OP_RESHARD) return tc_xreshard_is_on_device(xn->reshard[a->mb % xn->n_reshards]);
  return tc_exec_device_of(x, n) == x->o.device;
}
