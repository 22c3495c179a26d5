/* exec.c - the executor: memory and calls made ready once, then runs of programs.
 *
 * Invariants: nothing is allocated in a run; a node's call is fixed but for the micro-batch's
 * offsets and the accumulation bits; a transfer's buffers are not touched between its ISSUE and
 * its WAIT (the memory plan sees to that; the poison device proves it). */
#include "src/exec/impl.h"

#include <stdlib.h>
#include <string.h>

static struct tc_device *device_of_region(const struct tc_exec *x, int region)
{
  return tc_exec_device_in(x, region >= TC_HOST_STATE ? TC_HOST : TC_DEVICE);
}

/* Lists the tensors whose memory is free after each node, for the poison device. */
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

static int64_t batches_bytes(const struct tc_exec *x)
{
  return x->n_batches * x->batch_elems * (int64_t)sizeof *x->batch;
}

/* Every batch of a run has a place of its own, so that none waits for the copy of the one before; on the device too, if it
 * copies beside its kernels, so that none waits for the kernels of the one before, which read the tensors. */
static int take_batches(struct tc_exec *x, struct tc_err *err)
{
  struct tc_device *d = x->o.device;
  int32_t most = 0;
  for (int i = 0; i < x->n_progs; i++) {
    if (!x->prog[i].p) continue;
    const struct tc_actions *s = x->prog[i].p->actions;
    int32_t n = 0;
    for (int32_t k = 0; k < s->n; k++)
      n += x->prog[i].p->graph->node[s->action[k].node].op == TC_OP_DATA;
    most = TC_MAX(most, n);
  }
  x->n_batches = most;
  x->batch = tc_device_host_alloc(d, batches_bytes(x));
  if (!x->batch) return tc_fail(err, TC_EUSER, "out of host memory for a step's tokens");
  if (!d->ops->copy_early) return 0;
  x->arrived = d->ops->alloc(d, batches_bytes(x));
  return x->arrived ? 0 : tc_fail(err, TC_EUSER, "out of memory for a step's tokens");
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

/* The programs, and the most that they need of each region. */
static void take_programs(struct tc_exec *x, struct tc_program *const *programs)
{
  for (int i = 0; i < x->n_progs; i++) {
    struct tc_xprog *p = &x->prog[i];
    p->p = programs[i];
    if (!p->p) continue;
    p->node = tc_calloc((size_t)p->p->graph->n_nodes, sizeof *p->node);
    for (int r = 0; r < TC_REGIONS; r++) x->bytes[r] = TC_MAX(x->bytes[r], p->p->arena->bytes[r]);
  }
}

/* Programs of different stages of a run have other micro-batches, and are alike in all else of their mesh. */
static void use_mesh(struct tc_exec *x, const struct tc_xprog *p)
{
  if (p->p->mesh) x->o.mesh = p->p->mesh;
}

/* Makes a program's calls, fuses some of them, and cuts its actions into segments: in this order. */
static int make_program(struct tc_exec *x, struct tc_xprog *p, struct tc_err *err)
{
  const struct tc_actions *s = p->p->actions;
  for (int32_t k = 0; k < s->n_body; k++) TC_TRY(tc_exec_make_node(x, p, s->body[k], err));
  if (x->o.device->poison) find_last_uses(p);
  tc_exec_fuse(x, p);
  find_first_write(p);
  tc_exec_cut(x, p);
  return 0;
}

/* The largest scratch that a kernel of each space needs, for all of them: they run one after the other. */
static int take_scratch(struct tc_exec *x, struct tc_err *err)
{
  for (int i = 0; i < TC_SPACES; i++) {
    struct tc_device *d = tc_exec_device_in(x, i);
    if (!x->kscratch_bytes[i]) continue;
    x->kscratch[i] = d->ops->alloc(d, x->kscratch_bytes[i]);
    if (!x->kscratch[i])
      return tc_fail(err, TC_EUSER, "out of memory: %.3g GB for the kernels' scratch; use fewer "
                     "sequences at once (train.micro_batch)", (double)x->kscratch_bytes[i] * 1e-9);
  }
  for (struct tc_xprog *p = x->prog; p < x->prog + x->n_progs; p++)
    for (int32_t k = 0; p->p && k < p->p->graph->n_nodes; k++) {
      const bool device = tc_exec_device_of(x, &p->p->graph->node[k]) == x->o.device;
      p->node[k].call.scratch = x->kscratch[device ? TC_DEVICE : TC_HOST];
    }
  return 0;
}

int tc_exec_new(struct tc_exec **out, const struct tc_exec_opts *o,
                struct tc_program *const *programs, int n, struct tc_err *err)
{
  struct tc_exec *x = tc_calloc(1, sizeof *x);
  *x = (struct tc_exec){ .o = *o, .n_progs = n, .prog = tc_calloc((size_t)n, sizeof *x->prog) };
  take_programs(x, programs);
  int rc = take_memory(x, err);
  for (int i = 0; i < n && !rc; i++)
    if (programs[i]) {
      use_mesh(x, &x->prog[i]);
      rc = make_program(x, &x->prog[i], err);
    }
  if (!rc) rc = take_scratch(x, err);
  if (!rc && o->device->ops->separate && x->batch_elems) rc = take_batches(x, err);
  if (rc < 0) tc_exec_free(x);
  else *out = x;
  return rc;
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
  if (x->arrived) d->ops->free(d, x->arrived, batches_bytes(x));
  if (x->batch) tc_device_host_free(d, x->batch);
  TC_FREE(x->interval, x->prog, x);
}

void tc_exec_write_barrier(struct tc_exec *x, int64_t copy) { x->barrier = copy; }

/* The host's own kernels write its state too. */
static int wait_barrier(struct tc_exec *x, struct tc_err *err)
{
  return tc_exec_end_copy(x->o.device, &x->barrier, x->bytes[TC_HOST_STATE] > 0,
                          "the copy of the state for a checkpoint", err);
}

static int run_program(struct tc_exec *x, struct tc_xprog *p, struct tc_err *err)
{
  /* A trace shows every action. */
  int32_t seg = p->ran && !tc_trace_on(x->o.trace) ? 0 : p->n_segs;
  for (int32_t k = 0, to; k < p->p->actions->n; k = to) {
    const bool whole = seg < p->n_segs && p->seg[seg].from == k;
    to = whole ? p->seg[seg].to : k + 1;
    if (k >= p->first_write) TC_TRY(wait_barrier(x, err));
    TC_TRY(whole ? tc_exec_segment(x, p, &p->seg[seg++], err) : tc_exec_walk(x, p, k, to, err));
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
  use_mesh(x, &x->prog[i]);
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
  if (x->arrived) m.kernel_scratch += batches_bytes(x);
  memcpy(m.region, x->bytes, sizeof m.region);
  return m;
}

int64_t tc_exec_wait_ns(const struct tc_exec *x, int set)
{
  int64_t sum = 0;
  for (int s = 0; s < TC_SETS; s++)
    if (set < 0 || s == set) sum += x->wait_ns[s];
  return sum;
}
