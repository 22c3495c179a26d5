/* p2p.c - every collective over a link that sends, receives and tests.
 *
 * A call is the flows of an algorithm (coll/flow.h): a flow sends or receives the pieces of its blocks to or from one
 * peer, in order, a few in flight at a time. One loop drives them all, and knows no collective. A sum receives the peers'
 * terms of a piece into staging and, when all have arrived, adds them in coordinate order directly into the result, so that
 * adding one piece overlaps with receiving the next.
 *
 * Invariants:
 *  - both ends divide blocks into the same pieces: their size depends only on whether the call adds, the
 *    number of members and the element type;
 *  - staging is at most SLOTS * (size - 1) pieces, and at most TERM_BUDGET bytes except for very large
 *    groups, or all members' whole contributions, of small arrays; it grows as calls need and is reused;
 *  - messages between two members match in order, per tag; the tag identifies collective and
 *    phase, so different calls never match but run into the timeout;
 *  - memory is never received into while it is being sent from: such a flow comes after that one. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "src/coll/flow.h"
#include "src/comm/impl.h"
#include "src/comm/link.h"

enum {
  DEPTH = 4,                      /* pieces of a flow in flight */
  SLOTS = 2,                      /* pieces being received for a reduction */
  COPY_PIECE = 4 << 20,           /* bytes of a piece that is not reduced */
  TERM_PIECE_MAX = 1 << 20, TERM_PIECE_MIN = 16 << 10,     /* of a piece that is reduced */
  TERM_BUDGET = 16 << 20,         /* bytes of staging */
  SPINS = 64, YIELDS = 64,        /* polls without progress before yielding the core */
  SLEEP_MIN_NS = 20000, SLEEP_DOUBLINGS = 6,   /* up to 1.3 ms */
  FLOWS = 4,                      /* a list has at most so many flows for each member, whatever algorithm and size */
  MAX_NAMED = TC_SUSPECTS           /* members named in a message */
};
#define SAY_NS INT64_C(250000000) /* how often a waiting call reports the ranks that it waits for */

struct walk { int at, first, n, part, turn; int64_t done; };      /* n blocks from `first` on, of which some may come after
                                                                     the last one: in a second turn. done: within a turn */
struct piece { int part; int64_t first, at, n; };    /* first: within the whole; elements */

struct flow {
  const struct tc_flow *of;
  int peer, tag;
  struct walk walk;
  const struct flow *after;       /* of->after's, with the same peer if it has one for each */
  int64_t total, posted, done;    /* pieces */
  int req[DEPTH];                 /* of pieces done .. posted-1, at i % DEPTH */
};

struct p2p {
  const struct tc_link_ops *ops;
  void *link;
  int coord, size;
  char *name;                     /* owned */
  int32_t *members;               /* [size] world ranks; owned */
  struct tc_late late;            /* borrows those */
  struct tc_flows list;           /* of the current call */
  struct flow *flow;              /* [FLOWS * size] of each entry and each of its peers */
  bool *arrived;                  /* [size] it has sent a message in this call */
  bool *open;                     /* [size] find_late's */
  const void **term;              /* [size] */
  char *stage; size_t stage_bytes;
  struct tc_part wholes;          /* contributions of all members in `stage`, as bytes; a block is one member's */

  /* the current call */
  const struct tc_coll_args *a;
  int n_flows;
  int64_t elem_bytes, piece_bytes, slot_bytes;
  bool sums;
  struct flow sum;                /* of the pieces summed up here, if `sums` */
  int64_t sent_bytes;
};

/* ---- blocks and pieces ----------------------------------------------------------- */

/* The array that has a flow's blocks; *elem: the bytes of its elements. */
static const struct tc_part *array_of(const struct p2p *x, int at, int *n_parts, int64_t *elem)
{
  const bool wholes = at == TC_AT_WHOLES;
  *n_parts = wholes ? 1 : x->a->n_parts;
  *elem = wholes ? 1 : x->elem_bytes;
  return wholes ? &x->wholes : x->a->parts;
}

static void block_range(const struct p2p *x, const struct tc_part *p, const struct walk *w, int64_t *lo, int64_t *hi)
{
  const int end = w->first + w->n;
  *lo = w->turn ? 0 : tc_block_start(p->count, p->block, w->first, x->size);
  *hi = tc_block_start(p->count, p->block, w->turn ? TC_MAX(end - x->size, 0) : TC_MIN(end, x->size), x->size);
}

/* Returns the next piece and advances the walk; an empty piece at the end. */
static struct piece next_piece(const struct p2p *x, struct walk *w)
{
  int n;
  int64_t lo, hi, elem;
  const struct tc_part *part = array_of(x, w->at, &n, &elem);
  for (; w->part < n; w->part += w->turn, w->turn = !w->turn, w->done = 0) {
    block_range(x, &part[w->part], w, &lo, &hi);
    const int64_t left = hi - lo - w->done;
    if (left <= 0) continue;
    struct piece p = { w->part, lo + w->done, w->done, TC_MIN(left, x->piece_bytes / elem) };
    w->done += p.n;
    return p;
  }
  return (struct piece) { -1, 0, 0, 0 };
}

static int64_t count_pieces(const struct p2p *x, const struct walk *w)
{
  int parts;
  int64_t n = 0, lo, hi, elem;
  const struct tc_part *part = array_of(x, w->at, &parts, &elem);
  struct walk turn = *w;
  for (int i = 0; i < parts; i++)
    for (turn.turn = 0; turn.turn < 2; turn.turn++) {
      block_range(x, &part[i], &turn, &lo, &hi);
      n += tc_ceil_div(hi - lo, x->piece_bytes / elem);
    }
  return n;
}

/* The address of a piece in src, dst or the contributions. */
static char *piece_at(const struct p2p *x, const struct piece *p, int at)
{
  int n;
  int64_t elem;
  if (p->part < 0) return NULL;
  const struct tc_part *part = &array_of(x, at, &n, &elem)[p->part];
  char *base = at == TC_AT_SRC || at == TC_AT_OWN_SRC ? (char *)(uintptr_t)part->src : part->dst;
  return base + (at == TC_AT_OWN_SRC || at == TC_AT_OWN_DST ? p->at : p->first) * elem;
}

/* A piece of the array in coordinate c's contribution. */
static char *whole_at(const struct p2p *x, const struct piece *p, int c)
{
  char *at = (char *)x->wholes.dst + c * x->wholes.block;
  for (int i = 0; i < p->part; i++) at += x->a->parts[i].count * x->elem_bytes;
  return at + p->first * x->elem_bytes;
}

static char *slot_at(const struct p2p *x, int64_t piece, int peer)
{
  int64_t row = peer < x->coord ? peer : peer - 1;
  return x->stage + ((piece % SLOTS) * (x->size - 1) + row) * x->slot_bytes;
}

/* ---- setting a call up ----------------------------------------------------------- */

/* Computes the pieces of this call. */
static void size_pieces(struct p2p *x)
{
  int64_t fair = TERM_BUDGET / (SLOTS * TC_MAX(x->size - 1, 1));
  int64_t bytes = !tc_coll_adds(x->a->coll) ? COPY_PIECE
                                            : TC_MAX(TC_MIN(fair, TERM_PIECE_MAX), TERM_PIECE_MIN);
  x->elem_bytes = x->a->coll == TC_BARRIER ? 1 : (int64_t)tc_dtype_bytes(x->a->dtype);
  x->piece_bytes = bytes / 64 * 64;
}

/* An entry's flow with its i-th peer. */
static struct flow new_flow(const struct p2p *x, const struct tc_flow *of, int i)
{
  struct flow f = { .of = of, .peer = (of->peer + i) % x->size };
  /* A send matches its peer's receive: both have the tag of TC_SEND. */
  f.tag = TC_PHASES * ((x->a->coll == TC_RECV ? TC_SEND : x->a->coll) - TC_FIRST_COLL) + of->phase;
  f.walk = (struct walk){ .at = of->kind == TC_FLOW_SUM ? of->to : of->at, .first = (of->first + i * of->shift) % x->size,
                          .n = of->n };
  f.total = TC_MAX(count_pieces(x, &f.walk), of->always ? 1 : 0);
  return f;
}

/* Peer by peer. */
static void make_flows(struct p2p *x)
{
  const struct flow *last[TC_FLOWS_MOST] = { NULL };   /* of each entry */
  int most = 0;
  x->n_flows = 0;
  x->sums = false;
  for (int k = 0; k < x->list.n; k++) {
    const struct tc_flow *of = &x->list.flow[k];
    if (of->kind == TC_FLOW_SUM) {
      x->sum = new_flow(x, of, 0);
      x->sums = true;
      last[k] = &x->sum;
    } else if (of->kind != TC_FLOW_COPY) {
      most = TC_MAX(most, of->peers);
    }
  }
  for (int i = 0; i < most; i++)
    for (int k = 0; k < x->list.n; k++) {
      const struct tc_flow *of = &x->list.flow[k];
      if (of->kind > TC_FLOW_SEND || i >= of->peers) continue;
      TC_ASSERT(x->n_flows < FLOWS * x->size && (of->when < TC_AFTER_FLOW || last[of->after]));
      struct flow *f = &x->flow[x->n_flows++];
      *f = new_flow(x, of, i);
      f->after = of->when < TC_AFTER_FLOW ? NULL : last[of->after];
      last[k] = f;
    }
}

static void take_staging(struct p2p *x, int64_t bytes)
{
  if ((size_t)bytes <= x->stage_bytes) return;
  free(x->stage);
  x->stage = tc_malloc((size_t)bytes);
  x->stage_bytes = (size_t)bytes;
}

/* For the terms of SLOTS pieces from each peer. */
static void stage_terms(struct p2p *x)
{
  int64_t most = 0, lo, hi;
  for (int i = 0; i < x->a->n_parts; i++) {
    block_range(x, &x->a->parts[i], &x->sum.walk, &lo, &hi);
    most = TC_MAX(most, TC_MIN(hi - lo, x->piece_bytes / x->elem_bytes));
  }
  x->slot_bytes = tc_round_up(most * x->elem_bytes, 64);
  take_staging(x, x->slot_bytes * SLOTS * (x->size - 1));
}

/* For the whole contributions of all members. */
static void stage_wholes(struct p2p *x)
{
  int64_t each = 0;
  for (int i = 0; i < x->a->n_parts; i++) each += x->a->parts[i].count * x->elem_bytes;
  take_staging(x, each * x->size);
  x->wholes = (struct tc_part){ .src = x->stage, .dst = x->stage, .count = each * x->size, .block = each };
}

static void copy_blocks(const struct p2p *x, const struct tc_flow *of)
{
  const bool whole = of->to == TC_AT_WHOLES;
  const struct walk w = { .first = whole ? 0 : of->first, .n = whole ? x->size : of->n };
  for (int i = 0; i < x->a->n_parts; i++) {
    struct piece p = { i, 0, 0, 0 };
    int64_t end;
    block_range(x, &x->a->parts[i], &w, &p.first, &end);
    char *src = piece_at(x, &p, of->at), *dst = whole ? whole_at(x, &p, x->coord) : piece_at(x, &p, of->to);
    if (end > p.first && src != dst) memcpy(dst, src, (size_t)((end - p.first) * x->elem_bytes));
  }
}

static void set_up(struct p2p *x, const struct tc_coll_args *a)
{
  x->a = a;
  x->sent_bytes = 0;
  memset(x->arrived, 0, (size_t)x->size * sizeof *x->arrived);
  tc_flows_of(&x->list, tc_algorithm_of(a, x->size), a->coll, x->size, x->coord, a->root);
  size_pieces(x);
  for (int k = 0; k < x->list.n; k++)
    if (x->list.flow[k].to == TC_AT_WHOLES) stage_wholes(x);
  make_flows(x);
  if (x->sums && x->sum.of->at == TC_AT_SRC) stage_terms(x);
  for (int k = 0; k < x->list.n; k++)
    if (x->list.flow[k].kind == TC_FLOW_COPY) copy_blocks(x, &x->list.flow[k]);
}

/* ---- what goes wrong ------------------------------------------------------------- */

/* Coordinates of peers with which a message is under way, into late[MAX_NAMED]; returns how many there are. Only those
 * that sent nothing, if there are such; else all. They make another call, or none, or wait for others themselves: the
 * watchdog asks them. Messages that are not under way wait for some that are. */
static int find_late(const struct p2p *x, int *late)
{
  int n = 0;
  memset(x->open, 0, (size_t)x->size * sizeof *x->open);
  for (int k = 0; k < x->n_flows; k++) x->open[x->flow[k].peer] |= x->flow[k].done < x->flow[k].posted;
  for (int pass = 0; pass < 2 && n == 0; pass++)
    for (int i = 0; i < x->size; i++) {
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

static int post(struct p2p *x, struct flow *f)
{
  struct piece p = next_piece(x, &f->walk);
  int64_t bytes = p.n * (f->of->at == TC_AT_WHOLES ? 1 : x->elem_bytes);
  const bool sends = f->of->kind == TC_FLOW_SEND;
  char *buf = f->of->at == TC_AT_TERMS ? slot_at(x, f->posted, f->peer) : piece_at(x, &p, f->of->at);
  int req = x->ops->post(x->link, sends, x->late.members[f->peer], buf, bytes, f->tag);
  if (req < 0) return req;
  if (sends) x->sent_bytes += bytes;
  f->req[f->posted++ % DEPTH] = req;
  return 0;
}

static bool first_are_done(const struct p2p *x, int entries)
{
  for (int i = 0; i < x->n_flows; i++)
    if (x->flow[i].of < &x->list.flow[entries] && x->flow[i].done < x->flow[i].total) return false;
  return true;
}

static bool may_post(const struct p2p *x, const struct flow *f)
{
  if (f->posted == f->total || f->posted - f->done == DEPTH) return false;
  switch (f->of->when) {
  case TC_AFTER_FIRST: return first_are_done(x, f->of->after);
  case TC_AFTER_FLOW: return f->after->done == f->after->total;
  case TC_AFTER_PIECE: return f->posted < f->after->done;
  case TC_IN_SLOTS: return f->posted < f->after->done + SLOTS;
  default: return true;
  }
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
    if (f->of->kind == TC_FLOW_RECV) x->arrived[f->peer] = true;
    moved = 1;
  }
  while (may_post(x, f)) {
    TC_TRY(post(x, f));
    moved = 1;
  }
  return moved;
}

/* All that the next piece of the sum is made of has arrived. */
static bool may_sum(const struct p2p *x)
{
  if (!x->sums || x->sum.done == x->sum.total) return false;
  for (int i = 0; i < x->n_flows; i++) {
    const struct flow *f = &x->flow[i];
    if (f->of->at == TC_AT_TERMS && f->done <= x->sum.done) return false;
    if (f->of->at == TC_AT_WHOLES && f->of->kind == TC_FLOW_RECV && f->done < f->total) return false;
  }
  return true;
}

static bool sum_next(struct p2p *x)
{
  if (!may_sum(x)) return false;
  struct piece p = next_piece(x, &x->sum.walk);
  if (p.n > 0) {
    char *out = piece_at(x, &p, x->sum.of->to);
    for (int i = 0; i < x->size; i++)
      x->term[i] = x->sum.of->at == TC_AT_WHOLES ? whole_at(x, &p, i)
                 : i == x->coord ? piece_at(x, &p, x->sum.of->at) : slot_at(x, x->sum.done, i);
    if (x->size > 1 || x->term[0] != out)
      tc_reduce_terms(x->a->dtype, out, x->term, x->size, p.n, x->a->red);
  }
  x->sum.done++;
  return true;
}

/* After `idle` polls without progress: spin, then yield, then sleep longer and longer, or until the link has something,
 * since computation needs the core, and polling MPI over a network is expensive. */
static void back_off(const struct p2p *x, int idle)
{
  if (idle < SPINS) return;
  if (idle < SPINS + YIELDS) {
    sched_yield();
    return;
  }
  int doublings = (idle - SPINS - YIELDS) / 4;
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
    int rc = advance(x, f);
    if (rc < 0) return tc_late_gone(&x->late, x->a, f->peer, err);
    moved |= rc;
    *open |= f->done < f->total;
  }
  moved |= sum_next(x);
  *open |= x->sums && x->sum.done < x->sum.total;
  return moved;
}

static int p2p_run(void *impl, const struct tc_coll_args *a, const atomic_bool *stop,
                   int64_t *bytes, struct tc_err *err)
{
  struct p2p *x = impl;
  const int64_t deadline_ns = (int64_t)(x->late.deadline_s * 1e9);
  int64_t last_ns = tc_now_ns(), age_ns = 0, say_ns = SAY_NS;
  bool open = true;
  int rc = 0;
  set_up(x, a);
  for (int idle = 0; open && rc >= 0; idle++) {
    rc = drive(x, &open, err);
    if (rc < 0 || !open) break;
    int64_t now = tc_now_ns();
    /* The time for which the process itself was stopped is not counted. */
    age_ns += TC_MIN(now - last_ns, INT64_C(1000000000));
    last_ns = now;
    if (atomic_load_explicit(stop, memory_order_relaxed))
      rc = tc_fail(err, TC_EPEER, "the communicator of axis %s was freed", x->name);
    else if (age_ns > deadline_ns)
      rc = fail_late(x, age_ns, err);
    else if (rc > 0)
      idle = 0;
    else
      back_off(x, idle);
    if (age_ns > say_ns) {
      say_blocked(x, age_ns);
      say_ns = age_ns + SAY_NS;
    }
  }
  if (say_ns > SAY_NS && rc >= 0) tc_blocked_call_clear(x->late.blocked);
  if (rc < 0) cancel_all(x);
  *bytes = x->sent_bytes;
  return TC_MIN(rc, 0);
}

static void p2p_free(void *impl)
{
  struct p2p *x = impl;
  x->ops->free(x->link);
  TC_FREE(x->flow, x->arrived, x->open, x->term, x->stage, x->name, x->members, x);
}

struct tc_comm *tc_comm_p2p(const struct tc_link_ops *ops, void *link, int rank,
                            const int32_t *members, int size, const struct tc_comm_opts *o)
{
  static const struct tc_comm_ops p2p_ops = { .run = p2p_run, .free = p2p_free };
  int coord = 0;
  while (coord < size && members[coord] != rank) coord++;
  struct p2p *x = tc_calloc(1, sizeof *x);
  *x = (struct p2p){ .ops = ops, .link = link, .coord = coord, .size = size, .name = tc_comm_name(o),
                     .members = memcpy(tc_malloc((size_t)size * sizeof *members), members,
                                       (size_t)size * sizeof *members),
                     .flow = tc_calloc((size_t)size * FLOWS, sizeof *x->flow),
                     .arrived = tc_calloc((size_t)size, sizeof *x->arrived),
                     .open = tc_calloc((size_t)size, sizeof *x->open),
                     .term = tc_calloc((size_t)size, sizeof *x->term) };
  x->late = (struct tc_late){ .axis = x->name, .rank_names = o->rank_names, .members = x->members,
                              .blocked = size > 1 ? tc_blocked_call_new() : NULL,
                              .deadline_s = tc_comm_deadline_s(o) };
  return tc_comm_new(&p2p_ops, x, coord, size, o, x->late.blocked);
}
