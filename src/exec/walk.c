/* walk.c - the actions of a program, one by one.
 *
 * Each is marked for the watchdog, named for a profiler and timed; what it leaves free is poisoned if that was asked for. */
#include "src/exec/impl.h"
#include "src/watch/watch.h"

/* v[n]: tokens, targets and, in programs with documents, starts. */
static void run_data(struct tc_exec *x, const struct tc_view *v, int n)
{
  struct tc_device *d = x->o.device;
  const int64_t at = x->batch_at++ * x->batch_elems, bytes = v[0].elems * (int64_t)sizeof(int32_t);
  int32_t *to[3] = { NULL }, *staged = x->batch ? x->batch + at : NULL;
  for (int i = 0; i < n; i++) to[i] = staged ? staged + i * v[0].elems : v[i].data;
  x->o.fill(x->o.fill_ctx, &x->now, v[0].off[0], v[0].dim[0], to[0], to[1], to[2]);
  if (x->arrived) d->ops->copy_order(d, d->ops->copy_early(d, x->arrived + at, staged, n * bytes));
  for (int i = 0; i < n && staged; i++) {
    if (x->arrived) d->ops->copy(d, v[i].data, x->arrived + at + i * v[0].elems, bytes);
    else d->ops->copy_order(d, d->ops->copy_begin(d, v[i].data, to[i], bytes));
  }
}

/* soon: the wait for the transfer follows at once. */
static int run_node(struct tc_exec *x, struct tc_xprog *p, int32_t id, int32_t mb, bool soon, struct tc_err *err)
{
  const struct tc_node *n = &p->p->graph->node[id];
  struct tc_xnode *xn = &p->node[id];
  int rc = 0;
  if (xn->nowhere) return 0;
  tc_exec_ready(x, p, id, mb);
  if (n->op == TC_OP_DATA) {
    run_data(x, xn->call.out, xn->call.n_out);
  } else if (n->op == TC_OP_RESHARD) {
    rc = tc_xreshard_issue(xn->reshard[mb % xn->n_reshards], soon, err);
  } else {
    struct tc_device *d = tc_exec_device_of(x, n);
    rc = d->ops->kernel[n->op].run(d, &xn->call);
    if (rc < 0 && tc_device_check(d, err) == 0)
      tc_fail(err, rc, "op %s failed", tc_op_info[n->op].name);
  }
  tc_exec_done(p, id, mb);
  return rc;
}

static void poison_after(struct tc_exec *x, struct tc_xprog *p, int32_t k, int32_t node)
{
  const struct tc_program *q = p->p;
  const struct tc_action *a = &q->actions->action[k];
  const int32_t *coord = x->o.mesh->coord + (size_t)x->o.rank * TC_AXES;
  for (const int32_t *t = p->node[node].last_used; t && *t >= 0; t++) {
    const struct tc_last_use *d = &q->arena->last_use[*t];
    if (d->wait != (a->kind == TC_WAIT) || (d->once && a->mb < q->actions->n_mb - 1)) continue;
    if (tc_exec_is_deferred(p, k, *t)) continue;
    tc_device_poison(x->o.device, tc_exec_where(x, p, *t, a->mb),
                     tc_tensor_local_bytes(&q->graph->tensor[*t], x->o.mesh, coord));
  }
}

static void poison(struct tc_exec *x, struct tc_xprog *p, int32_t k)
{
  const struct tc_xfused *f = p->fused[k];
  if (!f) poison_after(x, p, k, p->p->actions->action[k].node);
  for (int32_t i = 0; f && i < f->n; i++) poison_after(x, p, k, f->node[i]);
}

/* A few stores. */
void tc_exec_mark(const struct tc_xprog *p, int32_t k)
{
  const struct tc_graph *g = p->p->graph;
  const struct tc_action *a = &p->p->actions->action[k];
  static const char *const pass[] = { [TC_F] = "forward", [TC_B] = "backward",
                                      [TC_W] = "weight gradient", [TC_U] = "update" };
  const struct tc_node *n = &g->node[a->node];
  tc_at(pass[n->mark], n->op == TC_OP_RESHARD ? "transfer" : tc_op_info[n->op].name,
        n->unit < g->n_units ? g->unit[n->unit].name : NULL, n->once_a_step ? -1 : a->mb);
}

static int act(struct tc_exec *x, struct tc_xprog *p, int32_t k, struct tc_err *err)
{
  const struct tc_action *a = &p->p->actions->action[k];
  const struct tc_xnode *xn = &p->node[a->node];
  if (a->kind == TC_WAIT) return tc_xreshard_wait(xn->reshard[a->mb % xn->n_reshards], err);
  if (p->fused[k]) return tc_exec_run_fused(x, p, p->fused[k], a->mb, err);
  const bool soon = k + 1 < p->p->actions->n && a[1].kind == TC_WAIT && a[1].node == a->node && a[1].mb == a->mb;
  return run_node(x, p, a->node, a->mb, soon, err);
}

static void watch(struct tc_exec *x, struct tc_xprog *p, int32_t k)
{
  const struct tc_action *a = &p->p->actions->action[k];
  if (a->kind != TC_ISSUE) x->o.watch(x->o.watch_ctx, p->p->graph, &p->p->graph->node[a->node], a->mb);
}

static int run_action(struct tc_exec *x, struct tc_xprog *p, int32_t k, struct tc_err *err)
{
  const struct tc_xfused *f = p->fused[k];
  if (f && f->at != k) return 0;
  tc_exec_mark(p, k);
  const bool ranged = tc_exec_range_action(x, p, k);
  const struct tc_xwhen begin = tc_exec_time_begin(x, p, k);
  const int rc = act(x, p, k, err);
  tc_exec_range_end(x, ranged);
  if (rc < 0) return rc;
  tc_exec_time_end(x, p, k, f, begin);
  if (x->o.watch) watch(x, p, k);
  if (x->o.device->poison) poison(x, p, k);
  return 0;
}

int tc_exec_walk(struct tc_exec *x, struct tc_xprog *p, int32_t from, int32_t to,
                 struct tc_err *err)
{
  for (int32_t k = from; k < to; k++) TC_TRY(run_action(x, p, k, err));
  return 0;
}
