/* ranges.c - what runs, by name, for a profiler that is attached to the device (kernel.h).
 *
 * A run of a program is a range, and each action that is walked is one within it: named as in a trace, with the node's
 * number. A segment that the device replays is one range, named by its first and last call: the device launches its
 * kernels by itself, at no action. Names are made only while a profiler is attached. */
#include "src/exec/impl.h"

enum { NAME_BYTES = 300 };

static bool begin(const struct tc_exec *x, const char *name)
{
  x->o.device->ops->ranges->push(x->o.device, name);
  return true;
}

static bool is_on(const struct tc_exec *x)
{
  const struct tc_ranges *r = x->o.device->ops->ranges;
  return r && r->on(x->o.device);
}

/* "h.3: forward matmul+gelu h.3.mlp.gelu, mb 1, node 98". False: action k does nothing by itself. */
static bool name_of(const struct tc_exec *x, const struct tc_xprog *p, int32_t k, char name[NAME_BYTES])
{
  const struct tc_action *a = &p->p->actions->action[k];
  struct tc_event e;
  if ((p->fused[k] && p->fused[k]->at != k) || !tc_exec_event(x, p, a, p->fused[k], &e)) return false;
  snprintf(name, NAME_BYTES, "%s%s%s %s%s%s%s%s", e.unit ? e.unit : "", e.unit ? ": " : "", tc_event_kind_name[e.kind],
           e.name, e.on ? " on " : "", e.on ? e.on : "", e.tensor ? " " : "", e.tensor ? e.tensor : "");
  if (e.mb >= 0) tc_text_add(name, NAME_BYTES, ", mb %d", e.mb);
  tc_text_add(name, NAME_BYTES, ", node %d", a->node);
  return true;
}

bool tc_exec_range_run(const struct tc_exec *x, int program)
{
  static const char *const word[TC_PROGRAMS] = { [TC_TRAIN] = "train", [TC_EVAL] = "eval", [TC_INIT] = "init",
                                                 [TC_REFRESH] = "refresh", [TC_TASKS] = "tasks",
                                                 [TC_DECODE] = "decode", [TC_PREFILL] = "prefill" };
  char name[NAME_BYTES];
  if (!is_on(x)) return false;
  snprintf(name, sizeof name, "%s step %lld", word[program % TC_PROGRAMS], (long long)x->now.step);
  return begin(x, name);
}

bool tc_exec_range_action(const struct tc_exec *x, const struct tc_xprog *p, int32_t k)
{
  char name[NAME_BYTES];
  return is_on(x) && name_of(x, p, k, name) && begin(x, name);
}

bool tc_exec_range_segment(const struct tc_exec *x, const struct tc_xprog *p, const struct tc_xseg *seg)
{
  char first[NAME_BYTES] = "", last[NAME_BYTES] = "", name[2 * NAME_BYTES + 40];
  int32_t from = seg->from, to = seg->to - 1;
  if (!is_on(x)) return false;
  while (from < seg->to && !name_of(x, p, from, first)) from++;
  while (to > from && !name_of(x, p, to, last)) to--;
  snprintf(name, sizeof name, "graph of actions %d to %d: %s ... %s", seg->from, seg->to - 1, first, last);
  return begin(x, name);
}

void tc_exec_range_end(const struct tc_exec *x, bool begun)
{
  if (begun) x->o.device->ops->ranges->pop(x->o.device);
}
