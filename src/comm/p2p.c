/* p2p.c - every collective over a link that sends, receives and tests.
 *
 * A call is a set of flows: a flow sends or receives the pieces of one block (or of all blocks)
 * to or from one peer, in order, a few in flight at a time. The table `rules` lists the flows of each
 * collective; one loop drives them all. A reduction receives the peers' terms of a piece
 * into staging and, when all have arrived, adds them in coordinate order directly into dst, so
 * that adding one piece overlaps with receiving the next.
 *
 * Invariants:
 *  - both ends divide a block into the same pieces: their size depends only on the collective, the
 *    number of members and the element type;
 *  - staging is at most SLOTS * (size - 1) pieces, and at most TERM_BUDGET bytes except for very large
 *    groups; it grows as calls need and is reused;
 *  - messages between two members match in order, per tag; the tag identifies collective and
 *    phase, so different calls never match but run into the timeout;
 *  - in the first phase of a symmetric collective every member sends a message, maybe empty, to every
 *    other, so that all know which members are late;
 *  - memory is never received into while it is being sent from (GATE_SENT). */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

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
  MAX_NAMED = TC_SUSPECTS           /* members named in a message */
};
#define SAY_NS INT64_C(250000000) /* how often a waiting call reports the ranks that it waits for */

enum role { EACH, ROOT, LEAF };   /* with every peer; the root with every peer; with the root */
enum dir { TX, RX };
enum side { SRC, DST, STAGE };
enum owner { ME, PEER, ALL };     /* whose blocks are sent */
enum shape { WHOLE, PACKED };     /* the array has all blocks, or only that block */
enum gate { OPEN, GATE_SLOT, GATE_SENT, GATE_REDUCED };

/* Receives before sends. GATE_SENT: piece i may be received once piece i was sent by the flow that
 * was made just before (to the same peer). */
static const struct rule {
  uint8_t coll, role, dir, side, owner, shape, phase, gate;
} rules[] = {
  { TC_ALL_REDUCE,     EACH, RX, STAGE, ME,   WHOLE,  0, GATE_SLOT },
  { TC_ALL_REDUCE,     EACH, TX, SRC,   PEER, WHOLE,  0, OPEN },
  { TC_ALL_REDUCE,     EACH, RX, DST,   PEER, WHOLE,  1, GATE_SENT },
  { TC_ALL_REDUCE,     EACH, TX, DST,   ME,   WHOLE,  1, GATE_REDUCED },
  { TC_REDUCE_SCATTER, EACH, RX, STAGE, ME,   WHOLE,  0, GATE_SLOT },
  { TC_REDUCE_SCATTER, EACH, TX, SRC,   PEER, WHOLE,  0, OPEN },
  { TC_ALL_GATHER,     EACH, RX, DST,   PEER, WHOLE,  0, OPEN },
  { TC_ALL_GATHER,     EACH, TX, SRC,   ME,   PACKED, 0, OPEN },
  { TC_BROADCAST,      LEAF, RX, DST,   ALL,  WHOLE,  0, OPEN },
  { TC_BROADCAST,      ROOT, TX, SRC,   ALL,  WHOLE,  0, OPEN },
  { TC_REDUCE,         ROOT, RX, STAGE, ALL,  WHOLE,  0, GATE_SLOT },
  { TC_REDUCE,         LEAF, TX, SRC,   ALL,  WHOLE,  0, OPEN },
  { TC_SCATTER,        LEAF, RX, DST,   ME,   PACKED, 0, OPEN },
  { TC_SCATTER,        ROOT, TX, SRC,   PEER, WHOLE,  0, OPEN },
  { TC_GATHER,         ROOT, RX, DST,   PEER, WHOLE,  0, OPEN },
  { TC_GATHER,         LEAF, TX, SRC,   ME,   PACKED, 0, OPEN },
  { TC_ALL_TO_ALL,     EACH, RX, DST,   PEER, WHOLE,  0, OPEN },
  { TC_ALL_TO_ALL,     EACH, TX, SRC,   PEER, WHOLE,  0, OPEN },
  { TC_SEND,           LEAF, TX, SRC,   ALL,  WHOLE,  0, OPEN },
  { TC_RECV,           LEAF, RX, DST,   ALL,  WHOLE,  0, OPEN },
  { TC_BARRIER,        EACH, RX, DST,   ALL,  WHOLE,  0, OPEN },
  { TC_BARRIER,        EACH, TX, SRC,   ALL,  WHOLE,  0, OPEN },
};
enum { N_RULES = sizeof rules / sizeof *rules, MAX_RULES = 4 };

struct walk { int owner, part; int64_t at; };        /* owner -1: all; at: within the block */
struct piece { int part; int64_t first, at, n; };    /* first: within the whole; elements */

struct flow {
  const struct rule *rule;
  int peer, tag;
  struct walk walk;
  const int64_t *gate;            /* piece i may be posted once i < *gate + slack */
  int64_t slack;
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
  struct flow *flow;              /* [MAX_RULES * size] */
  bool *arrived;                  /* [size] it has sent a message in this call */
  const void **term;              /* [size] */
  char *stage; size_t stage_bytes;

  /* the current call */
  const struct tc_coll_args *a;
  int n_flows;
  int64_t elem_bytes, piece_elems, slot_bytes;
  bool reduces;
  struct walk walk;               /* of the pieces reduced here */
  int64_t reduced, to_reduce;     /* pieces */
  int64_t sent_bytes;
};

/* ---- blocks and pieces ----------------------------------------------------------- */

static void block_range(const struct p2p *x, const struct tc_part *p, int owner,
                        int64_t *lo, int64_t *hi)
{
  *lo = owner < 0 ? 0 : tc_block_start(p->count, p->block, owner, x->size);
  *hi = owner < 0 ? p->count : tc_block_start(p->count, p->block, owner + 1, x->size);
}

static int64_t count_pieces(const struct p2p *x, int owner)
{
  int64_t n = 0, lo, hi;
  for (int i = 0; i < x->a->n_parts; i++) {
    block_range(x, &x->a->parts[i], owner, &lo, &hi);
    n += tc_ceil_div(hi - lo, x->piece_elems);
  }
  return n;
}

/* Returns the next piece and advances the walk; an empty piece at the end. */
static struct piece next_piece(const struct p2p *x, struct walk *w)
{
  int64_t lo, hi;
  for (; w->part < x->a->n_parts; w->part++, w->at = 0) {
    block_range(x, &x->a->parts[w->part], w->owner, &lo, &hi);
    int64_t left = hi - lo - w->at;
    if (left <= 0) continue;
    struct piece p = { w->part, lo + w->at, w->at, TC_MIN(left, x->piece_elems) };
    w->at += p.n;
    return p;
  }
  return (struct piece) { -1, 0, 0, 0 };
}

/* The address of a piece in src or dst. */
static char *piece_at(const struct p2p *x, const struct piece *p, int side, int shape)
{
  if (p->part < 0) return NULL;
  const struct tc_part *part = &x->a->parts[p->part];
  char *base = side == SRC ? (char *)(uintptr_t)part->src : part->dst;
  return base + (shape == PACKED ? p->at : p->first) * x->elem_bytes;
}

static char *slot_at(const struct p2p *x, int64_t piece, int peer)
{
  int64_t row = peer < x->coord ? peer : peer - 1;
  return x->stage + ((piece % SLOTS) * (x->size - 1) + row) * x->slot_bytes;
}

/* ---- setting a call up ----------------------------------------------------------- */

static int owner_of(const struct p2p *x, const struct rule *r, int peer)
{
  return r->owner == ME ? x->coord : r->owner == PEER ? peer : -1;
}

static void add_flow(struct p2p *x, const struct rule *r, int peer)
{
  struct flow *f = &x->flow[x->n_flows++];
  *f = (struct flow) { .rule = r, .peer = peer };
  /* A send matches its peer's receive: both have the tag of TC_SEND. */
  f->tag = 2 * ((r->coll == TC_RECV ? TC_SEND : r->coll) - TC_FIRST_COLL) + r->phase;
  f->walk.owner = owner_of(x, r, peer);
  f->total = count_pieces(x, f->walk.owner);
  if (r->phase == 0) f->total = TC_MAX(f->total, 1);
  f->slack = r->gate == GATE_SLOT ? SLOTS : 0;
  if (r->gate == GATE_SLOT || r->gate == GATE_REDUCED) f->gate = &x->reduced;
  if (r->gate == GATE_SENT) f->gate = &f[-1].done;
  if (r->side == STAGE) {
    x->reduces = true;
    x->walk.owner = f->walk.owner;
  }
}

static bool takes_part(const struct p2p *x, const struct rule *r, int peer)
{
  if (r->role == EACH) return true;
  if (r->role == ROOT) return x->coord == x->a->root;
  return peer == x->a->root;
}

static void make_flows(struct p2p *x)
{
  int first = 0;
  while (first < N_RULES && rules[first].coll != x->a->coll) first++;
  x->n_flows = 0;
  for (int d = 1; d < x->size; d++) {
    int peer = (x->coord + d) % x->size;    /* so that not all send to the same member first */
    for (int i = first; i < N_RULES && rules[i].coll == x->a->coll; i++)
      if (takes_part(x, &rules[i], peer)) add_flow(x, &rules[i], peer);
  }
}

/* Computes the pieces of this call, and allocates their staging. */
static void size_pieces(struct p2p *x)
{
  bool terms = x->a->coll == TC_ALL_REDUCE || x->a->coll == TC_REDUCE_SCATTER ||
               x->a->coll == TC_REDUCE;
  int64_t fair = TERM_BUDGET / (SLOTS * TC_MAX(x->size - 1, 1));
  int64_t bytes = !terms ? COPY_PIECE
                         : TC_MAX(TC_MIN(fair, TERM_PIECE_MAX), TERM_PIECE_MIN);
  x->elem_bytes = x->a->coll == TC_BARRIER ? 1 : (int64_t)tc_dtype_bytes(x->a->dtype);
  x->piece_elems = bytes / 64 * 64 / x->elem_bytes;
}

static void size_staging(struct p2p *x)
{
  int64_t most = 0, lo, hi;
  for (int i = 0; i < x->a->n_parts; i++) {
    block_range(x, &x->a->parts[i], x->walk.owner, &lo, &hi);
    most = TC_MAX(most, TC_MIN(hi - lo, x->piece_elems));
  }
  x->slot_bytes = tc_round_up(most * x->elem_bytes, 64);
  size_t need = (size_t)(x->slot_bytes * SLOTS * (x->size - 1));
  if (need <= x->stage_bytes) return;
  free(x->stage);
  x->stage = tc_malloc(need);
  x->stage_bytes = need;
}

/* Copies this rank's own block, if the call copies it from src to dst. */
static void copy_own(const struct p2p *x)
{
  int from, to, coll = x->a->coll;
  if (coll == TC_ALL_GATHER) { from = PACKED; to = WHOLE; }
  else if (coll == TC_GATHER && x->coord == x->a->root) { from = PACKED; to = WHOLE; }
  else if (coll == TC_SCATTER && x->coord == x->a->root) { from = WHOLE; to = PACKED; }
  else if (coll == TC_ALL_TO_ALL) { from = WHOLE; to = WHOLE; }
  else return;
  for (int i = 0; i < x->a->n_parts; i++) {
    struct piece p = { i, 0, 0, 0 };
    int64_t end;
    block_range(x, &x->a->parts[i], x->coord, &p.first, &end);
    char *src = piece_at(x, &p, SRC, from), *dst = piece_at(x, &p, DST, to);
    if (end > p.first && src != dst) memcpy(dst, src, (size_t)((end - p.first) * x->elem_bytes));
  }
}

static void set_up(struct p2p *x, const struct tc_coll_args *a)
{
  x->a = a;
  x->sent_bytes = x->reduced = x->to_reduce = 0;
  x->reduces = x->size == 1 && (a->coll == TC_ALL_REDUCE || a->coll == TC_REDUCE_SCATTER ||
                                a->coll == TC_REDUCE);
  x->walk = (struct walk) { x->coord, 0, 0 };
  memset(x->arrived, 0, (size_t)x->size * sizeof *x->arrived);
  size_pieces(x);
  make_flows(x);
  if (x->reduces) {
    size_staging(x);
    x->to_reduce = TC_MAX(count_pieces(x, x->walk.owner), 1);
  }
  copy_own(x);
}

/* ---- what goes wrong ------------------------------------------------------------- */

/* Coordinates of peers whose flows are open, into late[MAX_NAMED]; returns how many there are.
 * Only those that sent nothing (they make another call, or none), if there are such; else all. */
static int find_late(const struct p2p *x, int *late)
{
  int n = 0;
  for (int pass = 0; pass < 2 && n == 0; pass++)
    for (int i = 0; i < x->size; i++) {
      bool open = false;
      for (int k = 0; k < x->n_flows; k++)
        open |= x->flow[k].peer == i && x->flow[k].done < x->flow[k].total;
      if (!open || (pass == 0 && x->arrived[i])) continue;
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
  int64_t bytes = p.n * x->elem_bytes;
  const struct rule *r = f->rule;
  char *buf = r->side == STAGE ? slot_at(x, f->posted, f->peer)
                               : piece_at(x, &p, r->side, r->shape);
  int req = x->ops->post(x->link, r->dir == TX, x->late.members[f->peer], buf, bytes, f->tag);
  if (req < 0) return req;
  if (r->dir == TX) x->sent_bytes += bytes;
  f->req[f->posted++ % DEPTH] = req;
  return 0;
}

static bool may_post(const struct flow *f)
{
  return f->posted < f->total && f->posted - f->done < DEPTH &&
         (!f->gate || f->posted < *f->gate + f->slack);
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
    if (f->rule->dir == RX) x->arrived[f->peer] = true;
    moved = 1;
  }
  while (may_post(f)) {
    TC_TRY(post(x, f));
    moved = 1;
  }
  return moved;
}

/* Adds the next piece if all its terms have arrived. */
static bool reduce_next(struct p2p *x)
{
  if (x->reduced == x->to_reduce) return false;
  for (int i = 0; i < x->n_flows; i++)
    if (x->flow[i].rule->side == STAGE && x->flow[i].done <= x->reduced) return false;
  struct piece p = next_piece(x, &x->walk);
  if (p.n > 0) {
    char *out = piece_at(x, &p, DST, x->a->coll == TC_REDUCE_SCATTER ? PACKED : WHOLE);
    for (int i = 0; i < x->size; i++)
      x->term[i] = i == x->coord ? piece_at(x, &p, SRC, WHOLE) : slot_at(x, x->reduced, i);
    if (x->size > 1 || x->term[0] != out)
      tc_reduce_terms(x->a->dtype, out, x->term, x->size, p.n, x->a->red);
  }
  x->reduced++;
  return true;
}

/* After `idle` polls without progress: spin, then yield, then sleep longer and longer,
 * since computation needs the core, and polling MPI over a network is expensive. */
static void back_off(int idle)
{
  if (idle < SPINS) return;
  if (idle < SPINS + YIELDS) {
    sched_yield();
    return;
  }
  int doublings = (idle - SPINS - YIELDS) / 4;
  tc_sleep_ns((int64_t)SLEEP_MIN_NS << TC_MIN(doublings, SLEEP_DOUBLINGS));
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
  moved |= reduce_next(x);
  *open |= x->reduced < x->to_reduce;
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
      back_off(idle);
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
  TC_FREE(x->flow, x->arrived, x->term, x->stage, x->name, x->members, x);
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
                     .flow = tc_calloc((size_t)size * MAX_RULES, sizeof *x->flow),
                     .arrived = tc_calloc((size_t)size, sizeof *x->arrived),
                     .term = tc_calloc((size_t)size, sizeof *x->term) };
  x->late = (struct tc_late){ .axis = x->name, .rank_names = o->rank_names, .members = x->members,
                              .blocked = size > 1 ? tc_blocked_call_new() : NULL,
                              .deadline_s = tc_comm_deadline_s(o) };
  return tc_comm_new(&p2p_ops, x, coord, size, o, x->late.blocked);
}
