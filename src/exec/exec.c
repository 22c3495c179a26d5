/* exec.c - the executor: calls made ready once, then a walk over the actions.
 *
 * Invariants: nothing is allocated in a run; a node's call is fixed but for the micro-batch's
 * offsets and the accumulation bits; a transfer's buffers are not touched between its ISSUE and
 * its WAIT (the memory plan sees to that; the poison device proves it). */
#include "src/exec/impl.h"
#include "src/watch/watch.h"

#include <stdlib.h>
#include <string.h>

static struct tc_device *device_of_region(const struct tc_exec *x, int region)
{
  return tc_exec_device_in(x, region >= TC_HOST_STATE ? TC_HOST : TC_DEVICE);
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

/* For the poison device: the tensors whose memory is free after each node. */
static void find_last_uses(struct tc_xprog *p)
{
  const struct tc_program *q = p->p;
  for (int32_t i = 0; i < q->actions->n_body; i++) {
    int32_t n = 0, id = q->actions->body[i];
    int32_t *last_used = tc_malloc((size_t)(q->graph->n_tensors + 1) * sizeof *last_used);
    for (int32_t t = 0; t < q->graph->n_tensors; t++)
      if (q->arena->off[t] >= 0 && q->arena->last_use[t].node == id) last_used[n++] = t;
    last_used[n] = -1;
    p->node[id].last_used = tc_realloc(last_used, (size_t)(n + 1) * sizeof *last_used);
  }
}

static int out_of_memory(const struct tc_exec *x, struct tc_device *at, int r, struct tc_err *err)
{
  int64_t left = 0, total = 0;
  char has[100] = "";
  if (at->ops->memory) {
    at->ops->memory(at, &left, &total);
    snprintf(has, sizeof has, "; device %s has %.2f GB free of %.2f", at->ops->name,
             (double)left * 1e-9, (double)total * 1e-9);
  }
  return tc_fail(err, TC_EUSER, "out of memory: %.2f GB of %s are needed (state %.2f, scratch "
                 "%.2f)%s; use fewer sequences at once (train.micro_batch), a smaller model, or "
                 "parallel.data = zero3", (double)x->bytes[r] * 1e-9, tc_region_name[r],
                 (double)x->bytes[TC_STATE] * 1e-9, (double)x->bytes[TC_SCRATCH] * 1e-9, has);
}

/* Host memory is pinned where a device copies from and to it. */
static bool pinned(const struct tc_exec *x, int region)
{
  return region >= TC_HOST_STATE && x->o.device->ops->host_alloc;
}

static int take_memory(struct tc_exec *x, struct tc_err *err)
{
  struct tc_device *d = x->o.device;
  for (int r = 0; r < TC_REGIONS; r++) {
    if (r >= TC_HOST_STATE && !x->bytes[r]) continue;
    struct tc_device *at = device_of_region(x, r);
    const int64_t bytes = TC_MAX(x->bytes[r], 64);
    x->region[r] = pinned(x, r) ? tc_device_host_alloc(d, bytes) : at->ops->alloc(at, bytes);
    if (x->region[r] && pinned(x, r)) memset(x->region[r], 0, (size_t)bytes);
    if (!x->region[r]) return out_of_memory(x, at, r, err);
    bool scratch = r == TC_SCRATCH || r == TC_HOST_SCRATCH;
    if (d->poison && scratch) tc_device_poison(at, x->region[r], x->bytes[r]);
  }
  return 0;
}

/* Every batch of a run has a place of its own, so that none waits for the copy of the one before. */
static int take_batches(struct tc_exec *x, struct tc_err *err)
{
  int64_t most = 0;
  for (int i = 0; i < x->n_progs; i++) {
    if (!x->prog[i].p) continue;
    const struct tc_actions *s = x->prog[i].p->actions;
    int64_t n = 0;
    for (int32_t k = 0; k < s->n; k++)
      n += x->prog[i].p->graph->node[s->action[k].node].op == TC_OP_DATA;
    most = TC_MAX(most, n);
  }
  x->batch = tc_device_host_alloc(x->o.device, most * x->batch_elems * (int64_t)sizeof *x->batch);
  return x->batch ? 0 : tc_fail(err, TC_EUSER, "out of host memory for a step's tokens");
}

/* The first action that writes what checkpoints hold. */
static void find_first_write(struct tc_xprog *p)
{
  const struct tc_graph *g = p->p->graph;
  const struct tc_actions *s = p->p->actions;
  for (p->first_write = 0; p->first_write < s->n; p->first_write++) {
    const struct tc_node *n = &g->node[s->action[p->first_write].node];
    for (int k = 0; k < n->n_out; k++)
      if (g->tensor[tc_tensor_root(g, tc_out(g, n, k))].saved) return;
  }
}

int tc_exec_new(struct tc_exec **out, const struct tc_exec_opts *o,
                struct tc_program *const *programs, int n, struct tc_err *err)
{
  struct tc_exec *x = tc_calloc(1, sizeof *x);
  x->o = *o;
  x->n_progs = n;
  x->prog = tc_calloc((size_t)n, sizeof *x->prog);
  for (int i = 0; i < n; i++) {
    if (!programs[i]) continue;
    x->prog[i].p = programs[i];
    x->prog[i].node = tc_calloc((size_t)programs[i]->graph->n_nodes, sizeof *x->prog[i].node);
    for (int r = 0; r < TC_REGIONS; r++)
      x->bytes[r] = TC_MAX(x->bytes[r], programs[i]->arena->bytes[r]);
  }
  int rc = take_memory(x, err);
  for (int i = 0; i < n && !rc; i++) {
    if (!programs[i]) continue;
    const struct tc_actions *s = programs[i]->actions;
    for (int32_t k = 0; k < s->n_body && !rc; k++) rc = tc_exec_make_node(x, &x->prog[i], s->body[k], err);
    if (!rc && o->device->poison) find_last_uses(&x->prog[i]);
    if (!rc) tc_exec_fuse(x, &x->prog[i]);
    find_first_write(&x->prog[i]);
    if (!rc) tc_exec_cut(x, &x->prog[i]);
  }
  for (int i = 0; i < TC_SPACES && !rc; i++) {
    struct tc_device *d = tc_exec_device_in(x, i);
    if (!x->kscratch_bytes[i]) continue;
    x->kscratch[i] = d->ops->alloc(d, x->kscratch_bytes[i]);
    if (!x->kscratch[i])
      rc = tc_fail(err, TC_EUSER, "out of memory: %.3g GB for the kernels' scratch; use fewer "
                   "sequences at once (train.micro_batch)", (double)x->kscratch_bytes[i] * 1e-9);
  }
  if (!rc && o->device->ops->separate && x->batch_elems) rc = take_batches(x, err);
  for (int i = 0; i < n && !rc; i++)
    for (int32_t k = 0; programs[i] && k < programs[i]->graph->n_nodes; k++) {
      bool device = tc_exec_device_of(x, &programs[i]->graph->node[k]) == o->device;
      x->prog[i].node[k].call.scratch = x->kscratch[device ? TC_DEVICE : TC_HOST];
    }
  if (rc < 0) {
    tc_exec_free(x);
    return rc;
  }
  *out = x;
  return 0;
}

void tc_exec_free(struct tc_exec *x)
{
  if (!x) return;
  struct tc_device *d = x->o.device;
  for (int i = 0; i < x->n_progs; i++) {
    if (!x->prog[i].p) continue;
    for (int32_t k = 0; k < x->prog[i].p->graph->n_nodes; k++) tc_exec_free_node(x, &x->prog[i], k);
    free(x->prog[i].node);
    tc_exec_unfuse(&x->prog[i]);
    tc_exec_uncut(x, &x->prog[i]);
  }
  for (int r = 0; r < TC_REGIONS; r++) {
    struct tc_device *at = device_of_region(x, r);
    if (x->region[r] && pinned(x, r)) tc_device_host_free(d, x->region[r]);
    else if (x->region[r]) at->ops->free(at, x->region[r], TC_MAX(x->bytes[r], 64));
  }
  for (int i = 0; i < TC_SPACES; i++) {
    struct tc_device *at = tc_exec_device_in(x, i);
    if (x->kscratch[i]) at->ops->free(at, x->kscratch[i], x->kscratch_bytes[i]);
  }
  if (x->batch) tc_device_host_free(d, x->batch);
  free(x->interval);
  free(x->prog);
  free(x);
}

/* v[n]: tokens, targets and, in programs with documents, starts. */
static void run_data(struct tc_exec *x, const struct tc_view *v, int n)
{
  struct tc_device *d = x->o.device;
  int32_t *to[3] = { NULL }, *staged = x->batch ? x->batch + x->batch_at++ * x->batch_elems : NULL;
  for (int i = 0; i < n; i++) to[i] = staged ? staged + i * v[0].elems : v[i].data;
  x->o.fill(x->o.fill_ctx, &x->now, v[0].off[0], v[0].dim[0], to[0], to[1], to[2]);
  for (int i = 0; i < n && staged; i++)
    d->ops->copy_order(d, d->ops->copy_begin(d, v[i].data, to[i],
                                             v[i].elems * (int64_t)sizeof *to[i]));
}

static int run_node(struct tc_exec *x, struct tc_xprog *p, int32_t id, int32_t mb,
                    struct tc_err *err)
{
  const struct tc_node *n = &p->p->graph->node[id];
  struct tc_xnode *xn = &p->node[id];
  int rc = 0;
  if (xn->nowhere) return 0;
  tc_exec_ready(x, p, id, mb);
  if (n->op == TC_OP_DATA) {
    run_data(x, xn->call.out, xn->call.n_out);
  } else if (n->op == TC_OP_RESHARD) {
    rc = tc_xreshard_issue(xn->reshard[mb % xn->n_reshards], err);
  } else {
    struct tc_device *d = tc_exec_device_of(x, n);
    rc = d->ops->kernel[n->op].run(d, &xn->call);
    if (rc < 0 && tc_device_check(d, err) == 0)
      tc_fail(err, rc, "op %s failed", tc_op_info[n->op].name);
  }
  tc_exec_done(x, p, id, mb);
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

void tc_exec_write_barrier(struct tc_exec *x, int64_t copy) { x->barrier = copy; }

/* The host's own kernels write its state too. */
static int wait_barrier(struct tc_exec *x, struct tc_err *err)
{
  struct tc_device *d = x->o.device;
  const int64_t copy = x->barrier;
  if (!copy) return 0;
  x->barrier = 0;
  d->ops->copy_order(d, copy);
  if (!x->bytes[TC_HOST_STATE] || d->ops->copy_wait(d, copy) == 0) return 0;
  return tc_fail(err, TC_EUSER, "the copy of the state for a checkpoint failed");
}

static int act(struct tc_exec *x, struct tc_xprog *p, int32_t k, struct tc_err *err)
{
  const struct tc_action *a = &p->p->actions->action[k];
  const struct tc_xnode *xn = &p->node[a->node];
  if (a->kind == TC_WAIT) return tc_xreshard_wait(xn->reshard[a->mb % xn->n_reshards], err);
  if (p->fused[k]) return tc_exec_run_fused(x, p, p->fused[k], a->mb, err);
  return run_node(x, p, a->node, a->mb, err);
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
  if (x->o.device->poison) poison(x, p, k);
  return 0;
}

int tc_exec_walk(struct tc_exec *x, struct tc_xprog *p, int32_t from, int32_t to,
                 struct tc_err *err)
{
  for (int32_t k = from; k < to; k++) TC_TRY(run_action(x, p, k, err));
  return 0;
}

static int run_program(struct tc_exec *x, struct tc_xprog *p, struct tc_err *err)
{
  /* A trace shows every action. */
  int32_t seg = p->ran && !tc_trace_on(x->o.trace) ? 0 : p->n_segs;
  for (int32_t k = 0, to; k < p->p->actions->n; k = to) {
    const bool whole = seg < p->n_segs && p->seg[seg].from == k;
    to = whole ? p->seg[seg].to : k + 1;
    if (k >= p->first_write) TC_TRY(wait_barrier(x, err));
    TC_TRY(whole ? tc_exec_segment(x, p, &p->seg[seg++], err) : run_action(x, p, k, err));
  }
  p->ran = true;
  TC_TRY(tc_xreshard_settle(&x->o, err));        /* first: this wait has a deadline and a name */
  x->o.device->ops->sync(x->o.device);
  TC_TRY(tc_device_check(x->o.device, err));
  tc_exec_time_settle(x);
  return tc_device_check(x->o.device, err);
}

int tc_exec_run(struct tc_exec *x, int i, const struct tc_runtime *rt, struct tc_err *err)
{
  x->now = *rt;
  x->batch_at = 0;
  const bool ranged = tc_exec_range_run(x, i);
  tc_exec_time_start(x);
  const int rc = run_program(x, &x->prog[i], err);
  tc_exec_range_end(x, ranged);
  return rc;
}

void *tc_exec_tensor(struct tc_exec *x, int i, int32_t t) { return tc_exec_where(x, &x->prog[i], t, 0); }

void *tc_exec_tensor_of(struct tc_exec *x, int i, int32_t t, int32_t mb)
{
  return tc_exec_where(x, &x->prog[i], t, mb);
}

double tc_exec_scalar(struct tc_exec *x, int i, int32_t t)
{
  double d = 0;
  float f = 0;
  const void *src = tc_exec_tensor(x, i, t);
  if (x->prog[i].p->graph->tensor[t].dtype == TC_F64) {
    x->o.device->ops->copy(x->o.device, &d, src, sizeof d);
    return d;
  }
  x->o.device->ops->copy(x->o.device, &f, src, sizeof f);
  return f;
}

struct tc_exec_memory tc_exec_memory(const struct tc_exec *x)
{
  struct tc_exec_memory m = { .staging = x->staging_bytes };
  for (int i = 0; i < TC_SPACES; i++) m.kernel_scratch += x->kscratch_bytes[i];
  memcpy(m.region, x->bytes, sizeof m.region);
  return m;
}

int64_t tc_exec_wait_ns(const struct tc_exec *x, int axis)
{
  int64_t sum = 0;
  for (int a = 0; a < TC_AXES; a++)
    if (axis < 0 || a == axis) sum += x->wait_ns[a];
  return sum;
}
