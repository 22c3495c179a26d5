/* time.c - the time of a step, by simulating each stage's list of actions with predicted durations.
 *
 * One rank of each pipeline stage is simulated; its neighbours on dp and tp behave in the same way. A rank
 * executes its list in order; a transfer starts when all simulated ranks that take part have issued it and
 * it is at the head of their queues on that axis; a WAIT lasts until the transfer has ended. A communicator is one queue; on pp
 * it is as many as the device says (pipeline_queues), of two one for what is sent to lower coordinates (comm/nccl.c). If ranks are
 * processes on a CPU, copies compete with computation, and so do NCCL's kernels on a GPU: of what a rank computes while
 * a transfer goes on it loses a fraction (`steal`), of one that it waits for all of that at once.
 *
 * Invariants: a rank's clock never goes back; every queue is served in order. */
#include "src/plan/impl.h"
#include "src/schedule/pipeline.h"
#include "src/program/collective.h"

#include <stdlib.h>
#include <string.h>

struct xfer {
  int32_t node, mb, next;        /* next: the next transfer of the same node; -1: none */
  int32_t parties, heads, left;
  double ready_s, end_s;
  bool done;
};

enum { DOWN = TC_SETS, QUEUES };               /* of each set; on pp, of sends to lower coordinates */
struct queue { int32_t *x, n, cap, at; double free_s; };

struct sim_rank {
  const struct tc_program *p;
  int rank;
  int32_t pc;
  double now_s, busy_s, late_s, wait_s[TC_SETS], term_s[TC_TERMS];     /* late_s: transfers after all else */
  struct tc_prices *prices;
  int32_t *mine;                 /* [n_nodes] transfers in flight without another simulated rank; -1: none */
  struct queue queue[QUEUES];
  double slow_until[TC_SETS], slows[TC_SETS];    /* by transfers that it computes beside: until then, that part of it */
};

struct simulation {
  const struct tc_cluster *k;
  const struct tc_mesh *m;
  struct sim_rank *rank; int n;
  struct xfer *x; int32_t n_x, cap_x;
  int32_t *shared;               /* [n_nodes] transfers on pp in flight; -1: none */
};

/* ---- transfers ------------------------------------------------------------------- */

static struct xfer *find(struct simulation *g, int32_t head, int32_t mb)
{
  while (head >= 0 && g->x[head].mb != mb) head = g->x[head].next;
  return head < 0 ? NULL : &g->x[head];
}

/* Whether a simulated rank takes part: on pp both ends of a send, or all stages; else only the rank itself. */
static bool takes_part(const struct simulation *g, const struct sim_rank *p, const struct tc_node *n)
{
  return tc_collective_coll(n, tc_mesh_index(g->m, p->rank, n->axes)) != TC_COLLS;
}

static int32_t count_parties(const struct simulation *g, const struct tc_node *n)
{
  int32_t c = 0;
  for (int i = 0; i < g->n; i++) c += takes_part(g, &g->rank[i], n);
  return c;
}

/* The queue of a transfer, on all ranks that take part. */
static int queue_of(const struct simulation *g, const struct tc_node *n)
{
  const int set = tc_mesh_find(g->m, n->axes);
  const bool ways = set == TC_SET_PP && g->k->device.pipeline_queues > 1;
  return ways && n->coll == TC_SEND && n->root < n->from_root ? DOWN : set;
}

/* Runs the transfer at the head of p's queue, if it can start, to its end; then the next ones may start. */
static void serve_queue(struct simulation *g, struct sim_rank *p, int queue)
{
  struct queue *q = &p->queue[queue];
  const bool pp = queue == TC_SET_PP || queue == DOWN;
  const int n_ranks = pp ? g->n : 1;             /* in other groups p alone */
  while (q->at < q->n) {
    struct xfer *x = &g->x[q->x[q->at]];
    if (x->heads < x->parties) return;
    const struct tc_node *n = &p->p->graph->node[x->node];
    double start = x->ready_s, s = tc_price_of(p->prices, n)->reshard.seconds;
    s -= tc_shown_s(&g->k->device, p->p->graph, n, p->prices);
    for (int i = 0; i < n_ranks; i++) {
      struct sim_rank *o = pp ? &g->rank[i] : p;
      if (o == p || takes_part(g, o, n)) start = TC_MAX(start, o->queue[queue].free_s);
    }
    x->end_s = start + s;
    x->done = true;
    for (int i = 0; i < n_ranks; i++) {
      struct sim_rank *o = pp ? &g->rank[i] : p;
      struct queue *oq = &o->queue[queue];
      if (o != p && !takes_part(g, o, n)) continue;
      oq->free_s = x->end_s;
      if (++oq->at < oq->n) g->x[oq->x[oq->at]].heads++;
    }
    for (int i = 0; pp && i < g->n; i++)
      if (&g->rank[i] != p && takes_part(g, &g->rank[i], n)) serve_queue(g, &g->rank[i], queue);
  }
}

static void issue(struct simulation *g, struct sim_rank *p, const struct tc_node *n, int32_t mb)
{
  bool pp = n->axes == TC_ON_PP;
  int32_t *head = pp ? &g->shared[n->id] : &p->mine[n->id];
  struct xfer *x = find(g, *head, mb);
  if (!x) {
    TC_GROW(g->x, g->n_x, g->cap_x);
    x = &g->x[g->n_x];
    *x = (struct xfer){ .node = n->id, .mb = mb, .next = *head,
                        .parties = pp ? count_parties(g, n) : 1 };
    x->left = x->parties;
    *head = g->n_x++;
  }
  x->ready_s = TC_MAX(x->ready_s, p->now_s);
  const int queue = queue_of(g, n);
  struct queue *q = &p->queue[queue];
  TC_GROW(q->x, q->n, q->cap);
  q->x[q->n] = (int32_t)(x - g->x);
  if (q->at == q->n++) x->heads++;
  serve_queue(g, p, queue);
}

/* False: the transfer has not ended yet. */
static bool wait_for(struct simulation *g, struct sim_rank *p, const struct tc_node *n, int32_t mb)
{
  int32_t *head = n->axes == TC_ON_PP ? &g->shared[n->id] : &p->mine[n->id];
  struct xfer *x = find(g, *head, mb);
  TC_ASSERT(x);
  if (!x->done) return false;
  p->wait_s[tc_mesh_find(g->m, n->axes)] += TC_MAX(x->end_s - p->now_s, 0);
  p->term_s[n->axes == TC_ON_PP ? TC_TERM_BUBBLE : TC_TERM_TRANSFERS] += TC_MAX(x->end_s - p->now_s, 0);
  p->now_s = TC_MAX(p->now_s, x->end_s);
  if (--x->left == 0) {                          /* removed from the node's list */
    int32_t id = (int32_t)(x - g->x);
    while (*head != id) head = &g->x[*head].next;
    *head = x->next;
  }
  return true;
}

/* ---- a step ---------------------------------------------------------------------- */

/* What transfers beside them take from so many seconds of work. */
static double lost_of(const struct sim_rank *p, double work)
{
  double lost = 0;
  for (int s = 0; s < TC_SETS; s++) lost += tc_lost_s(work, p->slow_until[s] - p->now_s, p->slows[s]);
  return lost;
}

/* What a transfer takes from computation: one that hides while it goes on, the others at once. Returns the latter. */
static double steal(struct simulation *g, struct sim_rank *p, const struct tc_node *n, const struct tc_node_price *price)
{
  const int set = tc_mesh_find(g->m, n->axes);
  const double stolen = tc_stolen_s(&g->k->device, &price->reshard);
  if (!tc_hides(p->p->graph, n)) return stolen;
  p->slow_until[set] = p->queue[set].free_s;
  p->slows[set] = stolen > 0 ? TC_MIN(stolen / price->reshard.seconds, MOST_SLOWED) : 0;
  return 0;
}

/* Executes p's next action. Returns false if p is blocked. */
static bool run_action(struct simulation *g, struct sim_rank *p)
{
  const struct tc_action *a = &p->p->actions->action[p->pc];
  const struct tc_node *n = &p->p->graph->node[a->node];
  const struct tc_node_price *price = tc_price_of(p->prices, n);
  const bool travels = n->op == TC_OP_RESHARD && price->reshard.coll != TC_COLLS;
  double work = a->kind == TC_WAIT ? 0 : price->run_s;
  if (travels && a->kind == TC_WAIT) {
    if (!wait_for(g, p, n, a->mb)) return false;
    work = price->unpack_s;
  } else if (travels) {
    work = price->issue_s;
  }
  const double lost = lost_of(p, work);
  p->now_s += work + lost;
  p->busy_s += work + lost;
  p->term_s[price->term] += work;
  p->term_s[TC_TERM_TRANSFERS] += lost;
  if (travels && a->kind != TC_WAIT) {
    issue(g, p, n, a->mb);
    const double stolen = steal(g, p, n, price), shown = tc_shown_s(&g->k->device, p->p->graph, n, p->prices);
    *(tc_is_once(n) ? &p->late_s : &p->now_s) += shown;
    p->now_s += stolen;
    p->term_s[TC_TERM_TRANSFERS] += stolen + shown;
  }
  p->pc++;
  return true;
}

int tc_plan_simulate(struct tc_plan_step *out, struct tc_program *const *program, const int *rank,
                 int n,
                 const struct tc_mesh *m, const struct tc_cluster *k, struct tc_err *err)
{
  struct simulation g = { .k = k, .m = m, .n = n, .rank = tc_calloc((size_t)n, sizeof *g.rank),
                    .shared = tc_no_indices((size_t)program[0]->graph->n_nodes) };
  for (int i = 0; i < n; i++)
    g.rank[i] = (struct sim_rank){ .p = program[i], .rank = rank[i], .prices = tc_prices_new(program[i], m, rank[i], k),
                                   .mine = tc_no_indices((size_t)program[i]->graph->n_nodes) };
  bool progress = true, done = false;
  while (progress && !done) {
    progress = false;
    done = true;
    for (int i = 0; i < n; i++) {
      struct sim_rank *p = &g.rank[i];
      while (p->pc < p->p->actions->n && run_action(&g, p)) progress = true;
      done &= p->pc == p->p->actions->n;
    }
  }
  for (int i = 0; i < n; i++) g.rank[i].now_s += g.rank[i].late_s;
  *out = (struct tc_plan_step){ 0 };
  double idle = 0, all_busy = 0;
  for (int i = 0; i < n; i++) {
    const struct sim_rank *p = &g.rank[i];
    out->step_s = TC_MAX(out->step_s, p->now_s);
    all_busy += p->busy_s;
    if (p->busy_s > out->busy_s) {
      out->busy_s = p->busy_s;
      memcpy(out->wait_s, p->wait_s, sizeof out->wait_s);
      memcpy(out->term_s, p->term_s, sizeof out->term_s);
    }
  }
  /* More ranks than cores: the ranks of a node share them, and fill each other's idle times. */
  double on_node = tc_ranks_on_node(m, rank[0]), cores = k->device.cores;
  if (cores > 0 && on_node > cores) out->step_s = TC_MAX(out->step_s, all_busy / n * on_node / cores);
  tc_end_terms(out);
  for (int i = 0; i < n; i++) {
    const struct sim_rank *p = &g.rank[i];
    idle += p->wait_s[TC_SET_PP] + out->step_s - p->now_s;
  }
  out->bubble = out->step_s > 0 ? idle / n / out->step_s : 0;
  for (int i = 0; i < n; i++) {
    tc_prices_free(g.rank[i].prices);
    free(g.rank[i].mine);
    for (int s = 0; s < QUEUES; s++) free(g.rank[i].queue[s].x);
  }
  TC_FREE(g.rank, g.x, g.shared);
  return done ? 0 : tc_fail(err, TC_ELAYOUT,
                            "a fault of Tercio's, please report it with the run file: "
                            "the plan's ranks wait for each other");
}
