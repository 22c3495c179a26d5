/* actions_check.c - a step's list of actions proved right, independently of how it was made (actions.c):
 * the list is walked with what is made and what is in flight. */
#include "src/schedule/impl.h"

#include <stdlib.h>
#include <string.h>

/* What is known while the list is walked. */
struct walk {
  const struct tc_graph *g;
  const struct tc_actions *s;
  uint8_t *made;                 /* [tensor][micro-batch] */
  int32_t *times;                /* tensor -> how often */
  int32_t *in_flight;               /* node -> how many are in flight */
  int32_t *writes;              /* root -> transfers in flight to there (not between stages) */
  uint8_t *ran;                  /* [node][micro-batch] */
  bool *begun;                   /* accumulator (its root) -> a contribution of this step is in it */
};

static uint8_t *made(const struct walk *w, int32_t t, int32_t mb)
{
  return &w->made[(size_t)t * (size_t)w->s->n_mb + (size_t)mb];
}

static bool is_made(const struct walk *w, int32_t t, const struct tc_node *reader, int32_t mb)
{
  int32_t maker = w->g->tensor[t].node;
  if (maker >= 0 && !reader->once_a_step && !w->g->node[maker].once_a_step) return *made(w, t, mb);
  return w->times[t] > 0;
}

/* At another stage of the pipeline: its making is not in this list. */
static bool is_elsewhere(const struct walk *w, int32_t t)
{
  const struct tc_place *p = &w->g->tensor[t].lay.on[TC_PP];
  return w->s->opts.pp > 1 && p->kind == TC_AT && p->at != w->s->opts.at;
}

static void count_writes(struct walk *w, const struct tc_node *n, int by)
{
  for (int k = 0; k < n->n_out && !tc_sends_each_mb(n); k++)
    w->writes[tc_tensor_root(w->g, tc_out(w->g, n, k))] += by;
}

static uint8_t *ran(const struct walk *w, int32_t node, int32_t mb)
{
  return &w->ran[(size_t)node * (size_t)w->s->n_mb + (size_t)mb];
}

/* Whether a node is in this rank's list: it is of its stage, of all, or a transfer from or to it. */
static bool is_here(const struct walk *w, const struct tc_node *n)
{
  const int32_t at = w->s->opts.at;
  if (w->s->opts.pp <= 1 || n->on_all_stages) return true;
  if (tc_is_stage_send(n))
    return n->root == at || n->from_root == at;
  return w->g->unit[n->unit].at == at;
}

/* The first contribution of a step is written into an accumulator, the others are added. */
static const char *accumulate(struct walk *w, const struct tc_node *n, int k, int32_t mb)
{
  const struct tc_graph *g = w->g;
  const struct tc_tensor *t = &g->tensor[tc_out(g, n, k)];
  int32_t root = tc_tensor_root(g, t->id);
  if (!g->tensor[root].state || g->tensor[root].cls != TC_CLS_GRAD || t->param < 0) return NULL;
  bool can_add = k < 8 && (n->acc >> k & 1), first = n->acc_first && g->tensor[t->overwrites].state;
  bool adds = can_add && !(first && mb == 0);
  for (int i = 0; i < n->n_in && n->op == TC_OP_RESHARD; i++)     /* the sum itself, elsewhere */
    if (tc_tensor_root(g, tc_in(g, n, i)) == root) return NULL;
  if (adds != w->begun[root])
    return adds ? "adds to what the step before left" : "writes over contributions of this step";
  w->begun[root] = true;
  return NULL;
}

static const char *fault(struct walk *w, const struct tc_action *a)
{
  const struct tc_graph *g = w->g;
  const struct tc_node *n = &g->node[a->node];
  if (a->kind == TC_WAIT) {
    if (!w->in_flight[a->node]) return "waits for what was not issued";
    w->in_flight[a->node]--;
    count_writes(w, n, -1);
    for (int k = 0; k < n->n_out && tc_sends_each_mb(n); k++) {
      *made(w, tc_out(g, n, k), a->mb) = 1;
      w->times[tc_out(g, n, k)]++;
    }
    return NULL;
  }
  if (w->in_flight[a->node] && !tc_sends_each_mb(n)) return "runs again while it is in flight";
  if ((*ran(w, n->id, a->mb))++) return "runs twice";
  for (int k = 0; k < n->n_in; k++) {
    int32_t t = tc_in(g, n, k);
    while (!w->times[t] && g->tensor[t].base >= 0) t = g->tensor[t].base;   /* rows of it */
    int32_t maker = g->tensor[t].node;
    if (maker < 0 || is_elsewhere(w, t)) continue;
    if (!w->times[t]) return "reads what is not made yet";
    if (!is_made(w, t, n, a->mb)) return "reads what another micro-batch made";
    if (n->once_a_step && !g->node[maker].once_a_step && w->times[t] != w->s->n_mb)
      return "reads what not all micro-batches made";
    if (w->writes[tc_tensor_root(g, t)]) return "reads what is in flight";
  }
  for (int k = 0; k < n->n_out; k++) {
    int32_t t = tc_out(g, n, k), base = g->tensor[t].base;
    int32_t old = g->tensor[t].overwrites;
    int32_t before = old >= 0 ? g->tensor[old].node : -1;
    if (before >= 0 && !is_elsewhere(w, old) && !is_made(w, old, n, a->mb))
      return "overwrites what is not made yet";
    if (before >= 0 && n->once_a_step && !g->node[before].once_a_step && !is_elsewhere(w, old) &&
        w->times[old] != w->s->n_mb) return "overwrites what not all micro-batches made";
    const char *what = accumulate(w, n, k, a->mb);
    if (what) return what;
    if (before >= 0 && !g->tensor[tc_tensor_root(g, old)].state)
      *made(w, old, a->mb) = 0;                  /* overwritten */
    if (tc_sends_each_mb(n)) continue;                /* made when it is complete */
    *made(w, t, a->mb) = 1;
    w->times[t]++;
    if (base >= 0) {
      *made(w, base, a->mb) = 1;
      w->times[base] = TC_MAX(w->times[base], w->times[t]);
    }
  }
  if (a->kind == TC_ISSUE) {
    w->in_flight[a->node]++;
    count_writes(w, n, 1);
  }
  return NULL;
}

/* A node that did not run, or not in every micro-batch; -1: all did. */
static int32_t left_out(const struct walk *w)
{
  const struct tc_graph *g = w->g;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    int32_t times = 0;
    for (int32_t mb = 0; mb < w->s->n_mb; mb++) times += *ran(w, n->id, mb);
    if (times != (!is_here(w, n) ? 0 : n->once_a_step ? 1 : w->s->n_mb)) return n->id;
  }
  return -1;
}

int tc_actions_check(const struct tc_actions *s, const struct tc_graph *g, struct tc_err *err)
{
  struct walk w = { .g = g, .s = s };
  w.made = tc_calloc((size_t)g->n_tensors * (size_t)s->n_mb, 1);
  w.times = tc_calloc((size_t)g->n_tensors, sizeof *w.times);
  w.in_flight = tc_calloc((size_t)g->n_nodes, sizeof *w.in_flight);
  w.writes = tc_calloc((size_t)g->n_tensors, sizeof *w.writes);
  w.ran = tc_calloc((size_t)g->n_nodes * (size_t)s->n_mb, 1);
  w.begun = tc_calloc((size_t)g->n_tensors, 1);
  int rc = 0;
  for (int32_t i = 0; i < s->n && !rc; i++) {
    const char *what = fault(&w, &s->action[i]);
    if (what)
      rc = tc_fail(err, TC_EUSER, "schedule: action %d, node %d %s, micro-batch %d: %s", i,
                   s->action[i].node, tc_op_info[g->node[s->action[i].node].op].name,
                   s->action[i].mb, what);
  }
  for (int32_t i = 0; i < g->n_nodes && !rc; i++)
    if (w.in_flight[i]) rc = tc_fail(err, TC_EUSER, "schedule: node %d is never waited for", i);
  int32_t node = rc ? -1 : left_out(&w);
  if (node >= 0)
    rc = tc_fail(err, TC_EUSER, "schedule: node %d %s does not run as often as it has to", node,
                 tc_op_info[g->node[node].op].name);
  free(w.made);
  free(w.times);
  free(w.in_flight);
  free(w.writes);
  free(w.ran);
  free(w.begun);
  return rc;
}
