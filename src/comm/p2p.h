/* p2p.h - a call under way over a link: its flows, their pieces, and where these are (pieces.c), for p2p.c, which drives
 * them. */
#ifndef TC_P2P_H
#define TC_P2P_H

#include "src/coll/flow.h"
#include "src/comm/impl.h"
#include "src/comm/link.h"

enum {
  DEPTH = 4,                      /* pieces of a flow in flight */
  SLOTS = TC_SLOTS,
  MAX_NAMED = TC_SUSPECTS         /* members named in a message */
};

/* Where in its blocks a flow is. Blocks that do not come in turns are n from `first` on, of which some may come after the
 * last one: as a second turn. Blocks that do: a piece of each in turn; `round`: pieces of each that are behind it. */
struct piece { int part, turn; int64_t first, at, n, round; };       /* first: within the whole; elements */
struct walk {
  const struct tc_flow *of;
  int at, first, part, turn;
  int64_t done, round;            /* elements of this part and turn */
  struct piece next;              /* of blocks in turns */
};

struct flow {
  const struct tc_flow *of;
  int peer, tag;
  struct walk walk;               /* at the next piece, if there is one */
  const struct flow *after;       /* of->after's, with the same peer if it has one for each */
  int64_t total, posted, done;    /* pieces */
  int req[DEPTH];                 /* of pieces done .. posted-1, at i % DEPTH */

  /* a sum; or the terms of one, of which it is number `row` without this member's own */
  struct flow **terms;            /* [n_terms], in the order of coordinates */
  struct flow **takers;           /* of partial sums: [turns] */
  int n_terms, row;
  int64_t stage, slot_bytes;      /* where in the staging the slots are; of one */
};

struct p2p {
  const struct tc_link_ops *ops;
  void *link;
  struct tc_members m;            /* the communicator owns it */
  char *name;                     /* owned */
  int32_t *members;               /* [size] world ranks; owned */
  bool own_cpus;
  struct tc_late late;            /* borrows those */
  bool *arrived;                  /* [size] it has sent a message in this call */
  bool *open;                     /* [size] find_late's */
  uint8_t *met;                   /* [size] 1: a message has gone or come since the begin; 2: in a control call */
  const void **term;              /* [size] */
  char *stage; size_t stage_bytes;

  /* the current call */
  const struct tc_coll_args *a;
  struct tc_flows list;
  struct flow *flow; int n_flows, cap_flows;     /* of each entry and each of its peers */
  struct flow **entry; int cap_entries;          /* [list.n] its last one; NULL: none */
  struct flow **refs; int cap_refs;              /* memory of terms and takers */
  struct tc_pieces size;
  int64_t wholes_at, wide_at;     /* in the staging: contributions of all members; the array in the sums' type */
  struct tc_part wholes;          /* contributions, as bytes; a block is one member's */
  struct tc_sent sent;
};

/* Local, all. Makes the flows of a call and their staging, and does its copies. */
void tc_p2p_set_up(struct p2p *x, const struct tc_coll_args *a);
/* The next piece of a walk, which goes on behind it; empty at the end. */
struct piece tc_p2p_piece(const struct p2p *x, struct walk *w);
/* Where a flow sends or receives this piece, its i-th, and its bytes. */
char *tc_p2p_buffer(const struct p2p *x, const struct flow *f, const struct piece *p, int64_t i, int64_t *bytes);
/* Adds the next piece of a sum, whose terms are there. */
void tc_p2p_sum(struct p2p *x, struct flow *sum);
void tc_p2p_done(struct p2p *x);

#endif
