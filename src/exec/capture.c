/* capture.c - actions that the device is given at once.
 *
 * To launch a kernel costs the host some microseconds; a small model's kernels take no longer. So a
 * program's list of actions is cut into segments that the host has no part in (no batch of
 * tokens, no transfer to other ranks or between host and device, nothing that the host computes),
 * and each segment is kept by the device as one list of its own. Every action has its own
 * addresses and sizes, the same in every run, so a segment's calls are the same but for what
 * struct tc_runtime says.
 *
 * A program's first run takes its actions one by one, so that all that is made on first use is there; its
 * second captures; later ones replay. A segment that the device does not capture runs action by action. The
 * state that checkpoints save is first written at the start of a segment, which can wait for a copy of it. */
#include "src/exec/impl.h"

#include <stdlib.h>

/* Calls that are not worth it, or would take too much of the device's memory in all. */
enum { FEWEST = 4, MOST_ACTIONS = 20000 };

/* A call: not a part that a fused call does, nor one without work here. */
static bool is_call(const struct tc_xprog *p, int32_t k)
{
  const struct tc_action *a = &p->p->actions->action[k];
  return a->kind == TC_RUN && !p->node[a->node].nowhere && (!p->fused[k] || p->fused[k]->at == k);
}

void tc_exec_cut(struct tc_exec *x, struct tc_xprog *p)
{
  const struct tc_actions *s = p->p->actions;
  if (!x->o.device->ops->capture || x->o.no_capture || s->n > MOST_ACTIONS) return;
  p->seg = tc_calloc((size_t)s->n + 1, sizeof *p->seg);
  for (int32_t k = 0; k < s->n;) {
    const int32_t from = k;
    int calls = 0;
    for (; k < s->n && tc_exec_is_alone(x, p, &s->action[k]); k++) {
      if (k == p->first_write && k > from) break;
      calls += is_call(p, k);
    }
    if (calls >= FEWEST) p->seg[p->n_segs++] = (struct tc_xseg){ .from = from, .to = k };
    if (k == from) k++;
  }
}

void tc_exec_uncut(struct tc_exec *x, struct tc_xprog *p)
{
  for (int32_t i = 0; i < p->n_segs; i++)
    if (p->seg[i].list) x->o.device->ops->capture->free(x->o.device, p->seg[i].list);
  free(p->seg);
}

static int capture(struct tc_exec *x, struct tc_xprog *p, struct tc_xseg *seg, struct tc_err *err)
{
  struct tc_device *d = x->o.device;
  struct tc_err why = { 0 };
  TC_TRY(d->ops->capture->begin(d, &x->now, err));
  const int rc = tc_exec_walk(x, p, seg->from, seg->to, err);
  const int end = d->ops->capture->end(d, rc < 0 ? NULL : &seg->list, &why);
  if (rc == 0 && end < 0) *err = why;
  return rc < 0 ? rc : end;
}

static int run_segment(struct tc_exec *x, struct tc_xprog *p, struct tc_xseg *seg, struct tc_err *err)
{
  struct tc_device *d = x->o.device;
  struct tc_err why = { 0 };
  if (!seg->list && !seg->refused && capture(x, p, seg, &why) < 0) {
    seg->refused = true;
    if (!x->refused)
      tc_warn("device %s: kernels can't be captured (%s); each is launched by itself (run.capture = "
              "no does not try)", d->ops->name, why.text);
    x->refused = true;
  }
  if (!seg->list) return tc_exec_walk(x, p, seg->from, seg->to, err);
  tc_exec_mark(p, seg->from);
  const int rc = d->ops->capture->replay(d, seg->list, &x->now);
  if (rc < 0 && tc_device_check(d, err) == 0) tc_fail(err, rc, "captured calls failed");
  return rc;
}

int tc_exec_segment(struct tc_exec *x, struct tc_xprog *p, struct tc_xseg *seg, struct tc_err *err)
{
  const bool ranged = !seg->refused && tc_exec_range_segment(x, p, seg);
  const int rc = run_segment(x, p, seg, err);
  tc_exec_range_end(x, ranged);
  return rc;
}
