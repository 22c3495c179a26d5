/* pipe_check.c - a step's list of actions proved right, independently of how it was made (pipe.c): the
 * list is walked with what is made and what is in flight. */
#include "src/pipe.h"

#include <stdlib.h>
#include <string.h>

/* From stage to stage in every micro-batch; else of a weight that two stages use, once a step. */
static bool is_crossing(const struct tc_node *n)
{
  return n->op == TC_OP_MOVE && n->step == TC_STEP_SEND && n->axis == TC_PP && !n->once;
}

/* What is known while the list is walked. */
struct walk {
  const struct tc_graph *g;
  const struct tc_schedule *s;
  uint8_t *made;                 /* [tensor][micro-batch] */
  int32_t *times;                /* tensor -> how often */
  int32_t *flying;               /* node -> how many are under way */
  int32_t *landing;              /* root -> transfers under way to there (not from stage to stage) */
};

static uint8_t *made(const struct walk *w, int32_t t, int32_t mb)
{
  return &w->made[(size_t)t * (size_t)w->s->n_mb + (size_t)mb];
}

static bool is_made(const struct walk *w, int32_t t, const struct tc_node *reader, int32_t mb)
{
  int32_t maker = w->g->tensor[t].node;
  if (maker >= 0 && !reader->once && !w->g->node[maker].once) return *made(w, t, mb);
  return w->times[t] > 0;
}

/* At another stage of the pipeline: its making is not in this list. */
static bool is_elsewhere(const struct walk *w, int32_t t)
{
  const struct tc_place *p = &w->g->tensor[t].lay.on[TC_PP];
  return w->s->opts.pp > 1 && p->kind == TC_AT && p->at != w->s->opts.at;
}

static void count_landing(struct walk *w, const struct tc_node *n, int by)
{
  for (int k = 0; k < n->n_out && !is_crossing(n); k++)
    w->landing[tc_tensor_root(w->g, tc_out(w->g, n, k))] += by;
}

static const char *fault(struct walk *w, const struct tc_action *a)
{
  const struct tc_graph *g = w->g;
  const struct tc_node *n = &g->node[a->node];
  if (a->kind == TC_WAIT) {
    if (!w->flying[a->node]) return "waits for what was not issued";
    w->flying[a->node]--;
    count_landing(w, n, -1);
    for (int k = 0; k < n->n_out && is_crossing(n); k++) {
      *made(w, tc_out(g, n, k), a->mb) = 1;
      w->times[tc_out(g, n, k)]++;
    }
    return NULL;
  }
  if (w->flying[a->node] && !is_crossing(n)) return "runs again while it is in flight";
  for (int k = 0; k < n->n_in; k++) {
    int32_t t = tc_in(g, n, k);
    while (!w->times[t] && g->tensor[t].base >= 0) t = g->tensor[t].base;   /* rows of it */
    int32_t maker = g->tensor[t].node;
    if (maker < 0 || is_elsewhere(w, t)) continue;
    if (!w->times[t]) return "reads what is not made yet";
    if (!is_made(w, t, n, a->mb)) return "reads what another micro-batch made";
    if (n->once && !g->node[maker].once && w->times[t] != w->s->n_mb)
      return "reads what not all micro-batches made";
    if (w->landing[tc_tensor_root(g, t)]) return "reads what is in flight";
  }
  for (int k = 0; k < n->n_out; k++) {
    int32_t t = tc_out(g, n, k), base = g->tensor[t].base;
    int32_t old = g->tensor[t].overwrites;
    int32_t before = old >= 0 ? g->tensor[old].node : -1;
    if (before >= 0 && !is_elsewhere(w, old) && !is_made(w, old, n, a->mb))
      return "overwrites what is not made yet";
    if (before >= 0 && !g->tensor[tc_tensor_root(g, old)].state)
      *made(w, old, a->mb) = 0;                  /* gone */
    if (is_crossing(n)) continue;                /* made when it has landed */
    *made(w, t, a->mb) = 1;
    w->times[t]++;
    if (base >= 0) {
      *made(w, base, a->mb) = 1;
      w->times[base] = TC_MAX(w->times[base], w->times[t]);
    }
  }
  if (a->kind == TC_ISSUE) {
    w->flying[a->node]++;
    count_landing(w, n, 1);
  }
  return NULL;
}

int tc_schedule_check(const struct tc_schedule *s, const struct tc_graph *g, struct tc_err *err)
{
  struct walk w = { .g = g, .s = s };
  w.made = tc_calloc((size_t)TC_MAX(g->n_tensors, 1) * (size_t)s->n_mb, 1);
  w.times = tc_calloc((size_t)TC_MAX(g->n_tensors, 1), sizeof *w.times);
  w.flying = tc_calloc((size_t)TC_MAX(g->n_nodes, 1), sizeof *w.flying);
  w.landing = tc_calloc((size_t)TC_MAX(g->n_tensors, 1), sizeof *w.landing);
  int rc = 0;
  for (int32_t i = 0; i < s->n && !rc; i++) {
    const char *what = fault(&w, &s->action[i]);
    if (what)
      rc = tc_fail(err, TC_EUSER, "schedule: action %d, node %d %s, micro-batch %d: %s", i,
                   s->action[i].node, tc_op_info[g->node[s->action[i].node].op].name,
                   s->action[i].mb, what);
  }
  for (int32_t i = 0; i < g->n_nodes && !rc; i++)
    if (w.flying[i]) rc = tc_fail(err, TC_EUSER, "schedule: node %d is never waited for", i);
  free(w.made);
  free(w.times);
  free(w.flying);
  free(w.landing);
  return rc;
}
