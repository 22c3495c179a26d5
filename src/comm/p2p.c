/* p2p.c - every collective over a link that sends, receives and tests.
 *
 * A call is the flows of an algorithm (coll/flow.h): a flow sends or receives the pieces of its blocks to or from one
 * peer, in order, a few in flight at a time. One loop drives them all, and knows no collective. A sum receives the terms of
 * a piece into staging and, when all have arrived, adds them directly into the result, so that adding one piece overlaps
 * with receiving the next.
 *
 * Invariants:
 *  - messages between two members match in order, per tag; the tag identifies collective and
 *    phase, so different calls never match but run into the timeout;
 *  - memory is never received into while it is being sent from: such a flow comes after that one. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "src/comm/p2p.h"

enum {
  YIELDS = 8,                     /* polls without progress that only yield the core, before the first sleep */
  POLL_NS = 100000,               /* a rank with CPUs of its own polls for so long, if nobody else takes the core: */
  GIVEN_NS = 2000,                /* then a yield takes at least this, and counts as one of YIELDS */
  SLEEP_MIN_NS = 20000, SLEEP_DOUBLINGS = 6    /* up to 1.3 ms */
};
#define SAY_NS INT64_C(250000000) /* how often a waiting call reports the ranks that it waits for */

/* ---- what goes wrong ------------------------------------------------------------- */

/* Coordinates of peers with which a message is under way, into late[MAX_NAMED]; returns how many there are. Only those
 * that sent nothing, if there are such; else all. They make another call, or none, or wait for others themselves: the
 * watchdog asks them. Messages that are not under way wait for some that are. */
static int find_late(const struct p2p *x, int *late)
{
  int n = 0;
  memset(x->open, 0, (size_t)x->m.size * sizeof *x->open);
  for (int k = 0; k < x->n_flows; k++) x->open[x->flow[k].peer] |= x->flow[k].done < x->flow[k].posted;
  for (int pass = 0; pass < 2 && n == 0; pass++)
    for (int i = 0; i < x->m.size; i++) {
      if (!x->open[i] || (pass == 0 && x->arrived[i])) continue;
      if (n++ < MAX_NAMED) late[n - 1] = i;
    }
  return n;
}

/* Reports to the watchdog the ranks that this call waits for. */
static void say_blocked(struct p2p *x, int64_t age_ns)
{
  int late[MAX_NAMED], n = find_late(x, late);
  tc_late_say(&x->late, x->a, age_ns, late, n);
}

static int fail_late(struct p2p *x, int64_t age_ns, struct tc_err *err)
{
  int late[MAX_NAMED], n = find_late(x, late);
  return tc_late_fail(&x->late, x->a, age_ns, late, n, err);
}

/* Cancels all requests: messages that peers still send are dropped. */
static void cancel_all(struct p2p *x)
{
  for (int i = 0; i < x->n_flows; i++) {
    struct flow *f = &x->flow[i];
    for (; f->done < f->posted; f->done++) x->ops->cancel(x->link, f->req[f->done % DEPTH]);
  }
}

/* ---- driving --------------------------------------------------------------------- */

/* A message has gone to a peer or come from it. */
static void meet(struct p2p *x, int peer)
{
  const uint8_t old = x->met[peer], now = (uint8_t)(old | 1 | (x->a->ctl ? 2 : 0));
  x->met[peer] = now;
  x->sent.peers += !(old & 1);
  x->sent.ctl_peers += (now & 2) && !(old & 2);
}

static int post(struct p2p *x, struct flow *f)
{
  const struct piece p = tc_p2p_piece(x, &f->walk);
  const bool sends = f->of->kind == TC_FLOW_SEND;
  int64_t bytes;
  char *buf = tc_p2p_buffer(x, f, &p, f->posted, &bytes);
  int req = x->ops->post(x->link, sends, x->late.members[f->peer], buf, bytes, f->tag);
  if (req < 0) return req;
  if (sends) x->sent.bytes += bytes, x->sent.messages++, meet(x, f->peer);
  f->req[f->posted++ % DEPTH] = req;
  return 0;
}

static bool first_are_done(const struct p2p *x, int entries)
{
  for (int i = 0; i < x->n_flows; i++)
    if (x->flow[i].of < &x->list.flow[entries] && x->flow[i].done < x->flow[i].total) return false;
  return true;
}

/* The sum has made piece `round` of the block of this turn: its walk is behind it, or at its end. */
static bool has_made(const struct flow *sum, int turn, int64_t round)
{
  const struct walk *w = &sum->walk;
  return sum->done == sum->total || round < w->round || (round == w->round && turn < w->turn);
}

/* The flow may go on with its next piece, the i-th. */
static bool is_ready(const struct p2p *x, const struct flow *f, int64_t i)
{
  const struct flow *a = f->after;
  switch (f->of->when) {
  case TC_AFTER_FIRST: return first_are_done(x, f->of->after);
  case TC_AFTER_FLOW: return a->done == a->total;
  case TC_AFTER_PIECE: return i < a->done;
  case TC_AFTER_TURN: return has_made(a, f->of->turn, i);
  case TC_AFTER_EACH:
    a = x->entry[f->of->after + f->walk.turn];
    return !a || a->done > f->walk.round;
  case TC_IN_SLOTS: return i < a->done + SLOTS;
  default: return true;
  }
}

static bool may_post(const struct p2p *x, const struct flow *f)
{
  return f->posted < f->total && f->posted - f->done < DEPTH && is_ready(x, f, f->posted);
}

/* Completes finished requests and posts new ones. 1: there was progress. */
static int advance(struct p2p *x, struct flow *f)
{
  int moved = 0;
  while (f->done < f->posted) {
    int rc = x->ops->test(x->link, f->req[f->done % DEPTH]);
    if (rc < 0) return rc;
    if (rc == 0) break;
    f->done++;
    if (f->of->kind == TC_FLOW_RECV) x->arrived[f->peer] = true, meet(x, f->peer);
    moved = 1;
  }
  while (may_post(x, f)) {
    TC_TRY(post(x, f));
    moved = 1;
  }
  return moved;
}

static bool wholes_are_there(const struct p2p *x)
{
  for (int i = 0; i < x->n_flows; i++) {
    const struct flow *f = &x->flow[i];
    if (f->of->at == TC_AT_WHOLES && f->of->kind == TC_FLOW_RECV && f->done < f->total) return false;
  }
  return true;
}

/* All that the next piece of the sum is made of has arrived, and a partial sum has a place. */
static bool may_sum(const struct p2p *x, const struct flow *sum)
{
  if (!is_ready(x, sum, sum->done)) return false;
  for (int i = 0; i < sum->n_terms; i++)
    if (sum->terms[i]->done <= sum->done) return false;
  if (sum->of->at == TC_AT_WHOLES && !wholes_are_there(x)) return false;
  const struct flow *taker = sum->of->to == TC_AT_PARTIAL ? sum->takers[sum->walk.turn] : NULL;
  return !taker || sum->walk.round < taker->done + SLOTS;
}

/* Since the last progress. */
struct idle { int64_t since_ns; int yields, sleeps; };

/* After a poll without progress: yield the core, then sleep longer and longer, or until the link has something, since polling MPI
 * over a network is expensive. A sleep makes a call of 5 us last 190: a rank with CPUs of its own yields for a while before. Where
 * ranks share them, more yields make no call faster, but keep others from their work: 12 ranks on 2 cores then often wait 10 ms. */
static void back_off(const struct p2p *x, struct idle *idle, int64_t now_ns)
{
  if (idle->yields < YIELDS && (!x->own_cpus || now_ns - idle->since_ns < POLL_NS)) {
    sched_yield();
    idle->yields += !x->own_cpus || tc_now_ns() - now_ns >= GIVEN_NS;
    return;
  }
  const int doublings = idle->sleeps++ / 4;
  const int64_t ns = (int64_t)SLEEP_MIN_NS << TC_MIN(doublings, SLEEP_DOUBLINGS);
  if (x->ops->wait) x->ops->wait(x->link, ns);
  else tc_sleep_ns(ns);
}

/* One round over all flows. 1: progress, 0: none; *open: not all flows are done. */
static int drive(struct p2p *x, bool *open, struct tc_err *err)
{
  int moved = 0;
  *open = false;
  for (int i = 0; i < x->n_flows; i++) {
    struct flow *f = &x->flow[i];
    if (f->done == f->total) continue;
    int rc = 0;
    if (f->of->kind < TC_FLOW_SUM) rc = advance(x, f);
    else if (may_sum(x, f)) tc_p2p_sum(x, f), rc = 1;
    if (rc < 0) return tc_late_gone(&x->late, x->a, f->peer, err);
    moved |= rc;
    *open |= f->done < f->total;
  }
  return moved;
}

static int p2p_run(void *impl, const struct tc_coll_args *a, const atomic_bool *stop,
                   struct tc_sent *sent, struct tc_err *err)
{
  struct p2p *x = impl;
  const int64_t deadline_ns = (int64_t)(x->late.deadline_s * 1e9);
  int64_t last_ns = tc_now_ns(), age_ns = 0, say_ns = SAY_NS;
  bool open = true;
  int rc = 0;
  tc_p2p_set_up(x, a);
  struct idle idle = { .since_ns = last_ns };
  while (open && rc >= 0) {
    rc = drive(x, &open, err);
    if (rc < 0 || !open) break;
    tc_at_again();                 /* where the rank's own thread runs the call */
    int64_t now = tc_now_ns();
    /* The time for which the process itself was stopped is not counted. */
    age_ns += TC_MIN(now - last_ns, INT64_C(1000000000));
    last_ns = now;
    if (atomic_load_explicit(stop, memory_order_relaxed))
      rc = tc_fail(err, TC_EPEER, "the communicator of axis %s was freed", x->name);
    else if (age_ns > deadline_ns)
      rc = fail_late(x, age_ns, err);
    else if (rc > 0)
      idle = (struct idle){ .since_ns = now };
    else
      back_off(x, &idle, now);
    if (age_ns > say_ns) {
      say_blocked(x, age_ns);
      say_ns = age_ns + SAY_NS;
    }
  }
  if (say_ns > SAY_NS && rc >= 0) tc_blocked_call_clear(x->late.blocked);
  if (rc < 0) cancel_all(x);
  *sent = x->sent;
  return TC_MIN(rc, 0);
}

static void p2p_free(void *impl)
{
  struct p2p *x = impl;
  x->ops->free(x->link);
  tc_p2p_done(x);
  TC_FREE(x->arrived, x->open, x->met, x->term, x->name, x->members, x);
}

struct tc_comm *tc_comm_p2p(const struct tc_link_ops *ops, void *link, int rank,
                            const int32_t *members, int size, const struct tc_comm_opts *o)
{
  static const struct tc_comm_ops p2p_ops = { .run = p2p_run, .free = p2p_free };
  int coord = 0;
  while (coord < size && members[coord] != rank) coord++;
  struct p2p *x = tc_calloc(1, sizeof *x);
  *x = (struct p2p){ .ops = ops, .link = link, .name = tc_comm_name(o), .own_cpus = o->own_cpus,
                     .m = tc_comm_among(o, size, coord),
                     .members = memcpy(tc_malloc((size_t)size * sizeof *members), members,
                                       (size_t)size * sizeof *members),
                     .arrived = tc_calloc((size_t)size, sizeof *x->arrived),
                     .open = tc_calloc((size_t)size, sizeof *x->open),
                     .met = tc_calloc((size_t)size, sizeof *x->met),
                     .term = tc_calloc((size_t)size, sizeof *x->term) };
  x->late = (struct tc_late){ .axis = x->name, .rank_names = o->rank_names, .members = x->members,
                              .blocked = size > 1 ? tc_blocked_call_new() : NULL,
                              .deadline_s = tc_comm_deadline_s(o) };
  return tc_comm_new(&p2p_ops, x, &x->m, o, x->late.blocked);
}
