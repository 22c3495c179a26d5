/* timing.c - when actions ran, for traces, and how long transfers were waited for.
 *
 * A device that queues its work is behind the thread that walks the list. Where it has a clock
 * (kernel.h), an action of its own is measured there: between an event before it and one after it, in
 * the order of the device's work, so a wait for a transfer between GPUs is as long as the kernels
 * waited. The times of events are known when the run is over. All else is on the host's clock; a
 * transfer through host memory is waited for from when the device has done what was called before. */
#include "src/exec/impl.h"
#include "src/program/collective.h"

static const struct tc_clock *clock_of(const struct tc_exec *x) { return x->o.device->ops->clock; }

/* The action's time is the device's. */
static bool is_on_device(const struct tc_exec *x, const struct tc_xprog *p,
                         const struct tc_action *a)
{
  const struct tc_xnode *xn = &p->node[a->node];
  if (!clock_of(x) || xn->nowhere) return false;
  return tc_exec_is_alone(x, p, a)
         || (a->kind == TC_WAIT && tc_xreshard_is_native(xn->reshard[a->mb % xn->n_reshards]));
}

/* An event on the device's clock, and the host's time at which it happened: the device is idle, so it records the event
 * between two readings of the host's clock. Of a few such pairs the closest counts, and the time is in its middle. */
static struct tc_xwhen on_both_clocks(struct tc_exec *x)
{
  enum { TRIES = 5 };
  struct tc_xwhen best = { .event = -1 };
  int64_t between = INT64_MAX;
  x->o.device->ops->sync(x->o.device);
  for (int i = 0; i < TRIES; i++) {
    const int64_t before = tc_now_ns();
    const int32_t event = clock_of(x)->event(x->o.device);
    x->o.device->ops->sync(x->o.device);
    const int64_t span = tc_now_ns() - before;
    if (span < between) between = span, best = (struct tc_xwhen){ .event = event, .ns = before + span / 2 };
  }
  return best;
}

void tc_exec_time_start(struct tc_exec *x)
{
  for (int s = 0; s < TC_SETS; s++) x->wait_ns[s] = 0;
  x->n_intervals = 0;
  x->started = (struct tc_xwhen){ .ns = tc_now_ns(), .event = -1 };
  if (!clock_of(x)) return;
  clock_of(x)->restart(x->o.device);
  if (tc_trace_on(x->o.trace)) x->started = on_both_clocks(x);
}

/* A wait for other ranks: not for the device's own kernels or copies. */
static bool is_wait(const struct tc_xprog *p, const struct tc_action *a)
{
  const struct tc_xnode *xn = &p->node[a->node];
  return a->kind == TC_WAIT && p->p->graph->node[a->node].coll != TC_COPY
         && !tc_xreshard_is_on_device(xn->reshard[a->mb % xn->n_reshards]);
}

struct tc_xwhen tc_exec_time_begin(struct tc_exec *x, const struct tc_xprog *p, int32_t k)
{
  const struct tc_action *a = &p->p->actions->action[k];
  struct tc_xwhen w = { .event = -1 };
  const bool wait = is_wait(p, a);
  w.measured = wait || tc_trace_on(x->o.trace);
  if (!w.measured) return w;
  /* What came is copied in after the kernels that were called before, whose time is no wait. */
  const struct tc_xnode *xn = &p->node[a->node];
  if (wait && tc_xreshard_is_staged(xn->reshard[a->mb % xn->n_reshards]))
    x->o.device->ops->sync(x->o.device);
  if (is_on_device(x, p, a)) w.event = clock_of(x)->event(x->o.device);
  w.ns = tc_now_ns();
  return w;
}

bool tc_exec_event(const struct tc_exec *x, const struct tc_xprog *p, const struct tc_action *a,
                   const struct tc_xfused *f, struct tc_event *out)
{
  const struct tc_graph *g = p->p->graph;
  const struct tc_node *n = &g->node[a->node];
  if (p->node[a->node].nowhere) return false;
  struct tc_event e = {
    .name = f ? f->name : tc_op_info[n->op].name, .bytes = -1,
    .tensor = n->n_out ? g->tensor[tc_out(g, n, 0)].name : NULL, .mb = n->once_a_step ? -1 : a->mb,
    .unit = n->unit < g->n_units ? g->unit[n->unit].name : NULL, .track = TC_TRACK_COMPUTE,
    .kind = n->mark == TC_F ? TC_EV_FORWARD : n->mark == TC_B ? TC_EV_BACKWARD
          : n->mark == TC_W ? TC_EV_WEIGHT : TC_EV_UPDATE };
  if (n->op == TC_OP_RESHARD) {
    bool copy = n->coll == TC_COPY;
    bool local = copy || tc_coll_is_local(n->coll) || tc_mesh_size(x->o.mesh, n->axes) == 1;
    int coll = local ? TC_COLLS
                     : tc_collective_coll(n, tc_mesh_index(x->o.mesh, x->o.rank, n->axes));
    if (a->kind == TC_WAIT && local) return false;   /* was done when it was issued */
    if (!local && coll == TC_COLLS) return false;    /* between others */
    e.name = local ? tc_coll_name[n->coll] : tc_coll_name[coll];
    e.on = copy ? NULL : tc_mesh_name(x->o.mesh, n->axes);
    if (copy) e.track = TC_TRACK_COPY;
    if (!local || copy)
      e.kind = copy ? TC_EV_COPY : a->kind == TC_WAIT ? TC_EV_WAIT : TC_EV_ISSUE;
  }
  *out = e;
  return true;
}

void tc_exec_time_end(struct tc_exec *x, const struct tc_xprog *p, int32_t k,
                      const struct tc_xfused *f, struct tc_xwhen begin)
{
  const struct tc_action *a = &p->p->actions->action[k];
  struct tc_xinterval it = { .begin = begin.event, .end = -1, .set = tc_mesh_find(x->o.mesh, p->p->graph->node[a->node].axes),
                             .wait = is_wait(p, a) };
  if (!begin.measured) return;
  if (begin.event >= 0) it.end = clock_of(x)->event(x->o.device);
  it.shown = tc_trace_on(x->o.trace) && tc_exec_event(x, p, a, f, &it.traced);
  it.traced.begin_ns = begin.ns;
  it.traced.end_ns = tc_now_ns();
  if (it.end >= 0) {
    TC_APPEND(x->interval, x->n_intervals, x->cap_intervals, it);
    return;
  }
  if (it.wait) x->wait_ns[it.set] += it.traced.end_ns - begin.ns;
  if (it.shown) tc_trace_add(x->o.trace, &it.traced);
}

void tc_exec_time_settle(struct tc_exec *x)
{
  for (int32_t i = 0; i < x->n_intervals; i++) {
    const struct tc_xinterval *it = &x->interval[i];
    struct tc_event e = it->traced;
    const int64_t ns = clock_of(x)->interval(x->o.device, it->begin, it->end);
    if (it->wait) x->wait_ns[it->set] += ns;
    if (!it->shown) continue;
    e.begin_ns = x->started.ns + clock_of(x)->interval(x->o.device, x->started.event, it->begin);
    e.end_ns = e.begin_ns + ns;
    tc_trace_add(x->o.trace, &e);
  }
  x->n_intervals = 0;
}
