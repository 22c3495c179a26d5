/* time.c - the time of a step, by simulating each stage's list of actions with predicted durations.
 *
 * One rank of each pipeline stage is simulated; its neighbours on dp and tp behave in the same way. A rank
 * executes its list in order; a transfer starts when all simulated ranks that take part have issued it and
 * it is at the head of their queues on that axis; a WAIT lasts until the transfer has ended. If ranks are
 * processes on a CPU, copies compete with computation: the issuer loses a fraction (`steal`) of the
 * transfer's time.
 *
 * Invariants: a rank's clock never goes back; every queue is served in order. */
#include "src/plan/impl.h"
#include "src/program/collective.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct xfer {
  int32_t node, mb, next;        /* next: the next transfer of the same node; -1: none */
  int32_t parties, heads, left;
  double ready_s, end_s;
  bool done;
};

struct queue { int32_t *x, n, cap, at; double free_s; };

struct sim_rank {
  const struct tc_program *p;
  int rank;
  int32_t pc;
  double now_s, busy_s, wait_s[TC_AXES];
  double *run_s;                 /* [n_nodes] seconds of a node's work; < 0: not computed yet */
  double *saved_s;               /* [n_nodes] seconds less, as the last part of a fused call */
  struct tc_reshard_cost *reshard;  /* [n_nodes], of RESHARD nodes */
  double *issue_s, *unpack_s;      /* [n_nodes] packing and unpacking, on the rank's own time */
  int32_t *mine;                 /* [n_nodes] transfers in flight without another simulated rank; -1: none */
  struct queue queue[TC_AXES];
};

struct simulation {
  const struct tc_cluster *k;
  const struct tc_mesh *m;
  struct sim_rank *rank; int n;
  struct xfer *x; int32_t n_x, cap_x;
  int32_t *shared;               /* [n_nodes] transfers on pp in flight; -1: none */
};

/* ---- prices, found once per node ------------------------------------------------- */

double tc_plan_run_s(const struct tc_program *p, const struct tc_node *n, const struct tc_mesh *m,
                     int rank, const struct tc_cluster *k)
{
  struct tc_op_cost c;
  bool none;
  tc_op_cost(&c, p->graph, n, m, rank, &none);
  return none ? 0 : tc_op_seconds(&c, &k->device);
}

/* A local reshard: a view costs nothing, else the block is copied. */
static double local_s(const struct tc_program *p, const struct tc_node *n, const struct tc_mesh *m,
                      int rank, const struct tc_cluster *k)
{
  const struct tc_plan_device *d = &k->device;
  const int32_t *coord = m->coord + (size_t)rank * TC_AXES;
  double bytes = 0;
  for (int i = 0; i < n->n_in; i++) {
    const struct tc_tensor *a = &p->graph->tensor[tc_in(p->graph, n, i)];
    const struct tc_tensor *b = &p->graph->tensor[tc_out(p->graph, n, i)];
    bool same = p->arena && p->arena->off[a->id] == p->arena->off[b->id] &&
                p->arena->region[a->id] == p->arena->region[b->id];
    if (same || b->base >= 0) continue;
    bytes += (double)tc_tensor_local_bytes(b, m, coord);
  }
  if (n->coll == TC_COPY) return bytes / d->copy_bytes_per_s;
  return bytes > 0 ? d->op_s + 2 * bytes / (d->bytes_per_s * d->eff_bytes) : 0;
}

static void pack_s(const struct sim_rank *p, const struct tc_node *n, const struct simulation *g,
                   double *issue, double *unpacking)
{
  const struct tc_plan_device *d = &g->k->device;
  const int32_t *coord = g->m->coord + (size_t)p->rank * TC_AXES;
  for (int i = 0; i < n->n_in; i++) {
    int pack, unpack;
    if (!tc_collective_packs(p->p->graph, n, i, g->m, p->rank, &pack, &unpack)) continue;
    const struct tc_graph *gr = p->p->graph;
    double in = (double)tc_tensor_local_bytes(&gr->tensor[tc_in(gr, n, i)], g->m, coord);
    double out = (double)tc_tensor_local_bytes(&gr->tensor[tc_out(gr, n, i)], g->m, coord);
    if (pack >= 0) *issue += 2 * in / (d->bytes_per_s * d->eff_bytes);
    if (unpack >= 0) *unpacking += 2 * out / (d->bytes_per_s * d->eff_bytes);
  }
}

static void price(const struct simulation *g, struct sim_rank *p, const struct tc_node *n)
{
  if (p->run_s[n->id] >= 0) return;
  p->run_s[n->id] = 0;
  if (n->op != TC_OP_RESHARD) {
    p->run_s[n->id] = tc_plan_run_s(p->p, n, g->m, p->rank, g->k) - p->saved_s[n->id];
    return;
  }
  tc_reshard_cost(&p->reshard[n->id], p->p, n, g->m, p->rank, g->k);
  if (p->reshard[n->id].coll == TC_COLLS)
    p->run_s[n->id] = local_s(p->p, n, g->m, p->rank, g->k);
  else {
    p->issue_s[n->id] = g->k->device.issue_s;
    pack_s(p, n, g, &p->issue_s[n->id], &p->unpack_s[n->id]);
  }
}

/* ---- transfers ------------------------------------------------------------------- */

static struct xfer *find(struct simulation *g, int32_t head, int32_t mb)
{
  while (head >= 0 && g->x[head].mb != mb) head = g->x[head].next;
  return head < 0 ? NULL : &g->x[head];
}

/* Whether a simulated rank takes part: on pp both ends of a send, or all stages; else only the rank itself. */
static bool takes_part(const struct simulation *g, const struct sim_rank *p, const struct tc_node *n)
{
  return tc_collective_coll(n, tc_mesh_coord(g->m, p->rank, n->axis)) != TC_COLLS;
}

static int32_t count_parties(const struct simulation *g, const struct tc_node *n)
{
  int32_t c = 0;
  for (int i = 0; i < g->n; i++) c += takes_part(g, &g->rank[i], n);
  return c;
}

/* Runs the transfer at the head of p's queue, if it can start, to its end; then the next ones may start. */
static void serve_queue(struct simulation *g, struct sim_rank *p, int axis)
{
  struct queue *q = &p->queue[axis];
  while (q->at < q->n) {
    struct xfer *x = &g->x[q->x[q->at]];
    if (x->heads < x->parties) return;
    const struct tc_node *n = &p->p->graph->node[x->node];
    double start = x->ready_s, s = p->reshard[x->node].seconds;
    for (int i = 0; i < g->n; i++) {
      struct sim_rank *o = axis == TC_PP ? &g->rank[i] : p;
      if (o == p || takes_part(g, o, n)) start = TC_MAX(start, o->queue[axis].free_s);
      if (axis != TC_PP) break;
    }
    x->end_s = start + s;
    x->done = true;
    for (int i = 0; i < g->n; i++) {
      struct sim_rank *o = axis == TC_PP ? &g->rank[i] : p;
      if (o == p || takes_part(g, o, n)) {
        struct queue *oq = &o->queue[axis];
        oq->free_s = x->end_s;
        if (++oq->at < oq->n) g->x[oq->x[oq->at]].heads++;
      }
      if (axis != TC_PP) break;
    }
    for (int i = 0; axis == TC_PP && i < g->n; i++)
      if (&g->rank[i] != p && takes_part(g, &g->rank[i], n)) serve_queue(g, &g->rank[i], axis);
  }
}

static void issue(struct simulation *g, struct sim_rank *p, const struct tc_node *n, int32_t mb)
{
  bool pp = n->axis == TC_PP;
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
  struct queue *q = &p->queue[n->axis];
  TC_GROW(q->x, q->n, q->cap);
  q->x[q->n] = (int32_t)(x - g->x);
  if (q->at == q->n++) x->heads++;
  serve_queue(g, p, n->axis);
}

/* False: the transfer has not ended yet. */
static bool wait_for(struct simulation *g, struct sim_rank *p, const struct tc_node *n, int32_t mb)
{
  int32_t *head = n->axis == TC_PP ? &g->shared[n->id] : &p->mine[n->id];
  struct xfer *x = find(g, *head, mb);
  TC_ASSERT(x);
  if (!x->done) return false;
  p->wait_s[n->axis] += TC_MAX(x->end_s - p->now_s, 0);
  p->now_s = TC_MAX(p->now_s, x->end_s);
  if (--x->left == 0) {                          /* removed from the node's list */
    int32_t id = (int32_t)(x - g->x);
    while (*head != id) head = &g->x[*head].next;
    *head = x->next;
  }
  return true;
}

/* ---- the walk -------------------------------------------------------------------- */

/* Executes p's next action. Returns false if p is blocked. */
static bool run_action(struct simulation *g, struct sim_rank *p)
{
  const struct tc_action *a = &p->p->actions->action[p->pc];
  const struct tc_node *n = &p->p->graph->node[a->node];
  price(g, p, n);
  bool travels = n->op == TC_OP_RESHARD && p->reshard[n->id].coll != TC_COLLS;
  double work = a->kind == TC_WAIT ? 0 : p->run_s[n->id];
  if (travels && a->kind == TC_WAIT) {
    if (!wait_for(g, p, n, a->mb)) return false;
    work = p->unpack_s[n->id];
  } else if (travels) {
    work = p->issue_s[n->id];
  }
  p->now_s += work;
  p->busy_s += work;
  if (travels && a->kind != TC_WAIT) {
    const struct tc_reshard_cost *c = &p->reshard[n->id];
    issue(g, p, n, a->mb);
    if (c->bytes[TC_WIRE_NETWORK] <= 0) p->now_s += g->k->device.steal * c->seconds;
  }
  p->pc++;
  return true;
}

static void sim_rank_new(struct sim_rank *p, const struct tc_program *prog, int rank,
                         const struct simulation *g)
{
  size_t n = (size_t)prog->graph->n_nodes;
  *p = (struct sim_rank){ .p = prog, .rank = rank };
  p->run_s = tc_malloc(n * sizeof *p->run_s);
  p->saved_s = tc_plan_saved_s(prog, g->m, rank, &g->k->device);
  p->reshard = tc_calloc(n, sizeof *p->reshard);
  p->issue_s = tc_calloc(n, sizeof *p->issue_s);
  p->unpack_s = tc_calloc(n, sizeof *p->unpack_s);
  p->mine = tc_malloc(n * sizeof *p->mine);
  for (size_t i = 0; i < n; i++) {
    p->run_s[i] = -1;
    p->mine[i] = -1;
  }
}

static void sim_rank_free(struct sim_rank *p)
{
  free(p->run_s);
  free(p->saved_s);
  free(p->reshard);
  free(p->issue_s);
  free(p->unpack_s);
  free(p->mine);
  for (int a = 0; a < TC_AXES; a++) free(p->queue[a].x);
}

int tc_plan_walk(struct tc_plan_walk *out, struct tc_program *const *program, const int *rank,
                 int n,
                 const struct tc_mesh *m, const struct tc_cluster *k, struct tc_err *err)
{
  size_t nodes = (size_t)program[0]->graph->n_nodes;
  struct simulation g = { .k = k, .m = m, .n = n, .rank = tc_calloc((size_t)n, sizeof *g.rank),
                    .shared = tc_malloc(nodes * sizeof *g.shared) };
  for (size_t i = 0; i < nodes; i++) g.shared[i] = -1;
  for (int i = 0; i < n; i++) sim_rank_new(&g.rank[i], program[i], rank[i], &g);
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
  *out = (struct tc_plan_walk){ 0 };
  double idle = 0, all_busy = 0;
  for (int i = 0; i < n; i++) {
    const struct sim_rank *p = &g.rank[i];
    out->step_s = TC_MAX(out->step_s, p->now_s);
    all_busy += p->busy_s;
    if (p->busy_s > out->busy_s) {
      out->busy_s = p->busy_s;
      memcpy(out->wait_s, p->wait_s, sizeof out->wait_s);
    }
  }
  /* More ranks than cores: the ranks of a node share them, and fill each other's idle times. */
  double on_node = tc_ranks_on_node(m, rank[0]), cores = k->device.cores;
  if (cores > 0 && on_node > cores) out->step_s = TC_MAX(out->step_s, all_busy / n * on_node / cores);
  for (int i = 0; i < n; i++) {
    const struct sim_rank *p = &g.rank[i];
    idle += p->wait_s[TC_PP] + out->step_s - p->now_s;
  }
  out->bubble = out->step_s > 0 ? idle / n / out->step_s : 0;
  for (int i = 0; i < n; i++) sim_rank_free(&g.rank[i]);
  free(g.rank);
  free(g.x);
  free(g.shared);
  return done ? 0 : tc_fail(err, TC_ELAYOUT,
                            "a fault of Tercio's, please report it with the run file: "
                            "the plan's ranks wait for each other");
}
