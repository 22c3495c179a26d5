/* actions_check.c - a step's list of actions proved right, independently of how it was made (actions.c):
 * the list is walked with what is made and what is in flight. */
#include "src/schedule/impl.h"

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

/* Whether it is made at another stage of the pipeline, and so not in this list. */
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

/* ---- invariants ------------------------------------------------------------------------ */

/* What an action is asked about: its node, an input, an output or what an output overwrites. Inputs and what is
 * overwritten are made in this list. */
struct use {
  const struct walk *w;
  const struct tc_node *n;
  int32_t mb, t;                 /* t: the tensor; -1: the node is asked about */
  int k;                         /* of which output; else -1 */
};

static int32_t root_of(const struct use *u) { return tc_tensor_root(u->w->g, u->t); }

static bool is_not_issued(const struct use *u) { return !u->w->in_flight[u->n->id]; }

static bool is_in_flight(const struct use *u)
{
  return u->w->in_flight[u->n->id] && !tc_sends_each_mb(u->n);
}

static bool has_run(const struct use *u) { return *ran(u->w, u->n->id, u->mb); }

static bool is_never_made(const struct use *u) { return !u->w->times[u->t]; }

static bool is_not_made(const struct use *u) { return !is_made(u->w, u->t, u->n, u->mb); }

static bool is_not_made_in_all(const struct use *u)
{
  return u->n->once_a_step && !u->w->g->node[u->w->g->tensor[u->t].node].once_a_step &&
         u->w->times[u->t] != u->w->s->n_mb;
}

static bool is_written(const struct use *u) { return u->w->writes[root_of(u)] > 0; }

/* Whether the output is a contribution to an accumulator. A sum over ranks, elsewhere, is none. */
static bool contributes(const struct use *u)
{
  const struct tc_graph *g = u->w->g;
  if (g->tensor[u->t].param < 0) return false;
  const int32_t root = root_of(u);
  if (!g->tensor[root].state || g->tensor[root].cls != TC_CLS_GRAD) return false;
  for (int i = 0; i < u->n->n_in && u->n->op == TC_OP_RESHARD; i++)
    if (tc_tensor_root(g, tc_in(g, u->n, i)) == root) return false;
  return true;
}

/* The first contribution of a step is written into an accumulator, the others are added. */
static bool adds(const struct use *u)
{
  const bool first = u->n->acc_first && u->w->g->tensor[u->w->g->tensor[u->t].overwrites].state && u->mb == 0;
  return u->k < 8 && (u->n->acc >> u->k & 1) && !first;
}

static bool adds_to_old(const struct use *u)
{
  return contributes(u) && adds(u) && !u->w->begun[root_of(u)];
}

static bool writes_over(const struct use *u)
{
  return contributes(u) && !adds(u) && u->w->begun[root_of(u)];
}

enum asked { A_WAIT, A_START, AN_INPUT, THE_OLD, AN_OUTPUT };
static const struct {
  enum asked of;
  bool (*is_broken)(const struct use *u);
  const char *what;
} invariant[] = {
  { A_WAIT, is_not_issued, "waits for what was not issued" },
  { A_START, is_in_flight, "runs again while it is in flight" },
  { A_START, has_run, "runs twice" },
  { AN_INPUT, is_never_made, "reads what is not made yet" },
  { AN_INPUT, is_not_made, "reads what another micro-batch made" },
  { AN_INPUT, is_not_made_in_all, "reads what not all micro-batches made" },
  { AN_INPUT, is_written, "reads what is in flight" },
  { THE_OLD, is_not_made, "overwrites what is not made yet" },
  { THE_OLD, is_not_made_in_all, "overwrites what not all micro-batches made" },
  { AN_OUTPUT, adds_to_old, "adds to what the step before left" },
  { AN_OUTPUT, writes_over, "writes over contributions of this step" },
};
enum { INVARIANTS = sizeof invariant / sizeof *invariant };

const char *tc_actions_invariant(int i) { return i < INVARIANTS ? invariant[i].what : NULL; }

/* The first that is broken; NULL: none. */
static const char *broken(const struct use *u, enum asked of)
{
  const bool read = of == AN_INPUT || of == THE_OLD;
  if (read && (u->t < 0 || u->w->g->tensor[u->t].node < 0 || is_elsewhere(u->w, u->t))) return NULL;
  for (int i = 0; i < INVARIANTS; i++)
    if (invariant[i].of == of && invariant[i].is_broken(u)) return invariant[i].what;
  return NULL;
}

/* ---- the walk -------------------------------------------------------------------------- */

static void mark_made(struct walk *w, int32_t t, int32_t mb)
{
  const int32_t base = w->g->tensor[t].base;
  *made(w, t, mb) = 1;
  w->times[t]++;
  if (base < 0) return;
  *made(w, base, mb) = 1;
  w->times[base] = TC_MAX(w->times[base], w->times[t]);
}

static const char *wait_for(struct walk *w, const struct tc_node *n, int32_t mb)
{
  const char *what = broken(&(struct use){ w, n, mb, -1, -1 }, A_WAIT);
  if (what) return what;
  w->in_flight[n->id]--;
  count_writes(w, n, -1);
  for (int k = 0; k < n->n_out && tc_sends_each_mb(n); k++) {
    *made(w, tc_out(w->g, n, k), mb) = 1;
    w->times[tc_out(w->g, n, k)]++;
  }
  return NULL;
}

static const char *start(struct walk *w, const struct tc_node *n, int32_t mb)
{
  const struct tc_graph *g = w->g;
  const char *what = broken(&(struct use){ w, n, mb, -1, -1 }, A_START);
  (*ran(w, n->id, mb))++;
  for (int k = 0; k < n->n_in && !what; k++) {
    int32_t t = tc_in(g, n, k);
    while (!w->times[t] && g->tensor[t].base >= 0) t = g->tensor[t].base;   /* rows of it */
    what = broken(&(struct use){ w, n, mb, t, -1 }, AN_INPUT);
  }
  for (int k = 0; k < n->n_out && !what; k++) {
    const int32_t t = tc_out(g, n, k), old = g->tensor[t].overwrites;
    const struct use u = { w, n, mb, t, k };
    what = broken(&(struct use){ w, n, mb, old, k }, THE_OLD);
    if (!what) what = broken(&u, AN_OUTPUT);
    if (what) break;
    if (contributes(&u)) w->begun[root_of(&u)] = true;
    if (old >= 0 && g->tensor[old].node >= 0 && !g->tensor[tc_tensor_root(g, old)].state)
      *made(w, old, mb) = 0;                     /* overwritten */
    if (!tc_sends_each_mb(n)) mark_made(w, t, mb);       /* else when it is complete */
  }
  return what;
}

static const char *fault(struct walk *w, const struct tc_action *a)
{
  const struct tc_node *n = &w->g->node[a->node];
  if (a->kind == TC_WAIT) return wait_for(w, n, a->mb);
  const char *what = start(w, n, a->mb);
  if (!what && a->kind == TC_ISSUE) {
    w->in_flight[a->node]++;
    count_writes(w, n, 1);
  }
  return what;
}

/* A node that did not run, or not in every micro-batch; -1: all did. */
static int32_t left_out(const struct walk *w)
{
  const struct tc_graph *g = w->g;
  for (int32_t i = 0; i < g->n_order; i++) {
    const struct tc_node *n = &g->node[g->order[i]];
    int32_t times = 0;
    for (int32_t mb = 0; mb < w->s->n_mb; mb++) times += *ran(w, n->id, mb);
    if (times != (!tc_is_here(g, &w->s->opts, n) ? 0 : n->once_a_step ? 1 : w->s->n_mb)) return n->id;
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
  TC_FREE(w.made, w.times, w.in_flight, w.writes, w.ran, w.begun);
  return rc;
}
