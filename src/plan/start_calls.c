/* start_calls.c - the calls of start.def, simulated on all ranks (start.h).
 *
 * The lost rank is the last one, which is farthest from others in the tree: it does not come to a step's agreement. All others
 * come to wait in it, until run.deadline has passed since they began; then their watchdogs ask those that they wait for, and
 * those that these wait for (watch/watchdog.c). */
#include "src/plan/start.h"
#include "src/program/collective.h"
#include "src/watch/watch.h"

#include <stdlib.h>
#include <string.h>

const char *const tc_start_phase_name[TC_START_PHASES] = { "launch", "start", "step", "save", "lost" };

enum kind { FENCE, RECORDS, TABLE, ALL, ROOT, BCAST, NORM };
struct call { int phase; enum kind kind; int64_t bytes; };

/* A phase that is being simulated. */
struct doing {
  struct tc_sim *sim;
  const struct tc_start_opts *o;
  struct tc_sim_sent *before;                    /* [ranks] */
  struct tc_coll_count *on[TC_COLLS];            /* [ranks], of the collectives that were called */
  int64_t calls;                                 /* of rank 0 */
};

/* The counts of a collective, of each rank. */
static struct tc_coll_count *counts(struct doing *d, int coll)
{
  if (!d->on[coll]) d->on[coll] = tc_calloc((size_t)d->o->ranks, sizeof *d->on[coll]);
  return d->on[coll];
}

/* What a call has added is that collective's. */
static void charge(struct doing *d, int coll)
{
  struct tc_coll_count *on = counts(d, coll);
  for (int r = 0; r < d->o->ranks; r++) {
    const struct tc_sim_sent now = tc_sim_sent(d->sim, r);
    struct tc_coll_count *n = &on[r];
    n->messages += now.messages - d->before[r].messages;
    n->bytes += now.bytes - d->before[r].bytes;
    d->before[r] = now;
  }
}

static void count_call(struct doing *d, int coll, int first, int end, int calls)
{
  for (int r = first; r < end; r++) counts(d, coll)[r].calls += calls;
  if (first == 0) d->calls += calls;
}

static void run(struct doing *d, int coll, int algorithm, int dtype, int64_t count, int64_t block)
{
  const struct tc_part part = { .count = count, .block = block };
  const struct tc_coll_args a = { .coll = coll, .algorithm = algorithm, .dtype = dtype, .n_parts = 1, .parts = &part };
  tc_sim_call(d->sim, &a);
  charge(d, coll);
  count_call(d, coll, 0, d->o->ranks, 1);
}

static void make_call(struct doing *d, const struct call *c)
{
  static const int by[] = { [RECORDS] = TC_ALGORITHM_DOUBLING, [TABLE] = TC_ALGORITHM_TREE, [ALL] = TC_ALGORITHM_AUTO };
  const int64_t N = d->o->ranks, one = sizeof(int64_t);
  switch (c->kind) {
  case FENCE: tc_sim_meet(d->sim, d->o->fence_s); break;
  case RECORDS: case TABLE: case ALL: run(d, TC_ALL_GATHER, by[c->kind], TC_U8, c->bytes * N, c->bytes); break;
  case ROOT:
    run(d, TC_ALL_GATHER, 0, TC_U8, one * N, one);
    tc_sim_gather(d->sim, c->bytes);
    charge(d, TC_SEND);
    count_call(d, TC_SEND, 1, d->o->ranks, 1);
    for (int step = 1; step < N; step *= 2)
      for (int to = 0; to + step < N; to += 2 * step) count_call(d, TC_RECV, to, to + 1, 1);
    break;
  case BCAST:
    run(d, TC_BROADCAST, 0, TC_U8, one, one);
    run(d, TC_BROADCAST, 0, TC_U8, c->bytes, tc_ceil_div(c->bytes, N));
    break;
  case NORM: run(d, TC_ALL_REDUCE, TC_STEP_ALGORITHM, TC_F32, 1, 1); break;
  }
}

static void end_phase(struct doing *d, struct tc_start_phase *x)
{
  *x = (struct tc_start_phase){ .sum = tc_sim_sum(d->sim), .calls = d->calls, .hops = -1 };
  x->seconds = x->sum.last_s;
  for (int k = 0; k < TC_COLLS; k++) {
    for (int r = 0; r < d->o->ranks && d->on[k]; r++) {
      x->on[k].calls = TC_MAX(x->on[k].calls, d->on[k][r].calls);
      x->on[k].messages = TC_MAX(x->on[k].messages, d->on[k][r].messages);
      x->on[k].bytes = TC_MAX(x->on[k].bytes, d->on[k][r].bytes);
    }
    free(d->on[k]);
    d->on[k] = NULL;
  }
  memset(d->before, 0, (size_t)d->o->ranks * sizeof *d->before);
  d->calls = 0;
  tc_sim_clear(d->sim);
}

/* What a search takes: a message may wait for the next look of the watchdog that gets it, and the lost one never answers. */
static void find_lost(struct doing *d, struct tc_start_phase *x, const struct call *last)
{
  const struct tc_part part = { .count = last->bytes * d->o->ranks, .block = last->bytes };
  const struct tc_coll_args a = { .coll = TC_ALL_GATHER, .dtype = TC_U8, .n_parts = 1, .parts = &part };
  const struct tc_sim_lost lost = tc_sim_lost(d->sim, &a, d->o->ranks - 1, TC_SUSPECTS, TC_MOST_SUSPECTS);
  const double most_s = TC_WATCH_SEARCH_NS * 1e-9, on_way_s = lost.hops * (TC_WATCH_TICK_NS * 1e-9);
  *x = (struct tc_start_phase){ .calls = 1, .hops = on_way_s < most_s ? lost.hops : -1 };
  x->sum.peers = lost.asked, x->sum.sent_messages = lost.asked;
  x->seconds = d->o->deadline_s + (x->hops < 0 ? most_s : TC_MIN(on_way_s + TC_WATCH_SILENT_NS * 1e-9, most_s));
}

void tc_plan_start(struct tc_start_phase out[TC_START_PHASES], const struct tc_start_opts *o)
{
  const int64_t N = o->ranks;
  const struct call call[] = {
#define CALL(phase, kind, bytes, what) { TC_START_##phase, kind, (int64_t)(bytes) },
#include "src/plan/start.def"
#undef CALL
  };
  enum { CALLS = sizeof call / sizeof *call };
  int32_t *node = tc_malloc((size_t)N * sizeof *node);
  const struct call *agreement = NULL;
  for (int r = 0; r < N; r++) node[r] = r / o->each;
  struct doing d = { .sim = tc_sim_new(&o->net, node, o->ranks, o->partial, o->selection), .o = o,
                     .before = tc_calloc((size_t)N, sizeof *d.before) };
  for (int i = 0; i < CALLS; i++) {
    make_call(&d, &call[i]);
    if (call[i].phase == TC_START_STEP) agreement = &call[i];
    if (i + 1 == CALLS || call[i + 1].phase != call[i].phase) end_phase(&d, &out[call[i].phase]);
  }
  find_lost(&d, &out[TC_START_LOST], agreement);
  tc_sim_free(d.sim);
  TC_FREE(node, d.before);
}

static struct tc_sim_link link_of(const struct tc_link *l, double ports)
{
  const double s = l->latency_s[TC_SEND];
  return (struct tc_sim_link){ .latency_s = s / 2, .busy_s = s / 4, .bytes_per_s = l->bytes_per_s[TC_SEND] * ports };
}

struct tc_sim_net tc_plan_net(const struct tc_cluster *k, int each)
{
  return (struct tc_sim_net){ .node = link_of(&k->link[TC_WIRE_NODE], 1), .network = link_of(&k->link[TC_WIRE_NETWORK], each) };
}
