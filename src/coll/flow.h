/* flow.h - who sends what to whom in a collective: what one member does, as a short list. Pure.
 *
 * A flow is a send, a receive or a sum of some blocks, as a row of pieces in order; several alike, with one peer after the
 * other, are one entry. From the same list come what a backend does (comm/p2p.c), the bytes that are predicted, the busiest
 * member of a plan, and the members that one waits for. */
#ifndef TC_FLOW_H
#define TC_FLOW_H

#include "src/coll/coll.h"

enum tc_algorithm {
  TC_ALGORITHM_AUTO,
#define ALGORITHM(name, function, collectives, wholes, traits, messages, bytes) TC_ALGORITHM_##name,
#include "src/coll/algorithm.def"
#undef ALGORITHM
  TC_ALGORITHMS
};
extern const char *const tc_algorithm_name[TC_ALGORITHMS];        /* "auto", "exchange", ... */
/* Local. Whether it computes the collective. */
bool tc_algorithm_does(int algorithm, int coll);
/* Local. Whether it does for these members: sums of partial sums must be allowed, and some need nodes with several each. */
bool tc_algorithm_suits(int algorithm, int coll, const struct tc_members *m);
/* Local. Whether an array of so many bytes leaves it the memory for all that it holds at once of `size` members. */
bool tc_algorithm_has_room(int algorithm, int coll, int64_t bytes, int size);
/* Local. Whether it computes the collective among any members and of any size. */
bool tc_algorithm_does_all(int algorithm, int coll);
/* Local. Formulas, for people: messages of a member; bytes that the busiest one sends. */
const char *tc_algorithm_messages(int algorithm);
const char *tc_algorithm_bytes(int algorithm);
/* Local. The algorithm of that name; -1: none. */
int tc_algorithm_named(const char *name);
/* Local. The one in which members exchange with each other, or of a rooted collective with the root. */
int tc_algorithm_direct(int coll);

enum tc_flow_kind { TC_FLOW_RECV, TC_FLOW_SEND, TC_FLOW_SUM, TC_FLOW_COPY };
/* Where blocks are. */
enum tc_flow_at {
  TC_AT_SRC, TC_AT_DST,          /* in src or dst, which has all blocks */
  TC_AT_OWN_SRC, TC_AT_OWN_DST,  /* in src or dst, which has this member's alone */
  TC_AT_TERMS,                   /* terms of a sum, of which each peer sends one */
  TC_AT_WHOLES,                  /* whole contributions: block c is all of coordinate c's src */
  TC_AT_WIDE,                    /* all blocks, in the type in which sums are made (tc_sum_dtype) */
  TC_AT_PARTIAL                  /* partial sums in that type, from the sum that makes them to the flow that takes them */
};
/* When piece i of a flow may go. */
enum tc_flow_when {
  TC_AT_ONCE,
  TC_AFTER_FIRST,                /* when the first `after` entries of the list are done */
  TC_AFTER_FLOW,                 /* when entry `after` is done */
  TC_AFTER_PIECE,                /* when its piece i has gone: of the flow with the same peer, if it has one for each */
  TC_AFTER_TURN,                 /* when its piece i of the block of turn `turn` has gone */
  TC_AFTER_EACH,                 /* for a piece of the block of turn t, when entry after + t has come so far */
  TC_IN_SLOTS                    /* when piece i - slots of the sum `after` was made, since terms wait in so few places */
};

/* A sum is of all terms in the order of coordinates: of this member's blocks at `at` and the terms that receives in the slots
 * of this sum bring, a piece when all its terms are there; or of all contributions, when all are there. Copies are made
 * before all else.
 *
 * Blocks are first, first + 1, ... modulo the size, n of them; with each further peer they begin `shift` later. Or, where
 * step > 0, they come in n turns, the first piece of each, then the second of each: among nodes in `rows` (members.h) that
 * of turn t is in row first + t, modulo rows, and column `column` + step * (t / rows), if it is anybody's. */
struct tc_flow {
  uint8_t kind, at, when;
  uint8_t to;                    /* of a sum or a copy: where the result is */
  uint8_t phase;                 /* below TC_PHASES: between two members there is at most one flow each way in each */
  bool always;                   /* at least one message, empty if there is nothing: it says that the member is there */
  bool wide;                     /* in the type in which sums are made */
  int32_t after, turn;           /* an entry that has as many peers or one, or a sum */
  int32_t peer, peers;           /* with coordinates peer, peer + 1, ... modulo the size, so many */
  int32_t first, n, shift, column, step;
};

enum { TC_PHASES = 4 };
struct tc_flows { int n, cap; struct tc_flow *flow; };

/* Local. What a member does; root: of rooted collectives, and the peer of SEND and RECV. out: zeroed or of an earlier call;
 * to be freed with tc_flows_done. */
void tc_flows_of(struct tc_flows *out, int algorithm, int coll, const struct tc_members *m, int root);
void tc_flows_done(struct tc_flows *out);

/* Local. Whether an algorithm passes an array on in small pieces, through one member after the other. */
bool tc_algorithm_is_pipeline(int algorithm);

/* The type in which terms of this type are added. */
static inline int tc_sum_dtype(int dtype) { return dtype == TC_BF16 ? TC_F32 : dtype; }

/* Turns of a flow's blocks, if they come in turns; the block of a turn, -1: nobody's. */
static inline int tc_flow_turns(const struct tc_flow *f) { return f->step ? f->n : 1; }
int tc_flow_block(const struct tc_flow *f, const struct tc_nodes *x, int turn);
/* The blocks of all turns, one after the other: begins as { f->first, f->column }. There may be thousands, so that the divisions
 * of tc_flow_block take long. */
struct tc_turns { int row, column; };
static inline int tc_turns_next(const struct tc_flow *f, const struct tc_nodes *x, struct tc_turns *t)
{
  const int block = t->column < x->size[t->row] ? x->at[t->row * x->most + t->column] : -1;
  if (++t->row == x->n) t->row = 0;
  if (t->row == f->first) t->column += f->step;
  return block;
}

/* Local. Blocks from the first on that are whole in all arrays, below the last one, which may be shorter or longer. */
int tc_whole_blocks(const struct tc_part *part, int n, int size);

/* Elements lo to hi of an array: the blocks of a flow in one of its turns, or, where blocks do not come in turns, in turn 0
 * those up to the array's end, in turn 1 those from its begin on. first: the flow's, of the peer. */
void tc_flow_range(const struct tc_flow *f, int first, int turn, const struct tc_part *part, const struct tc_members *m,
                   int64_t *lo, int64_t *hi);

/* How a call's arrays are divided into pieces, each a message: the same on all members. */
struct tc_pieces {
  int64_t elem_bytes, wide_bytes, most_bytes;    /* of an element; in the sums' type; the larger one that is sent */
  int64_t elems;                                 /* of a piece of an array */
  int64_t whole_bytes;                           /* of a piece of whole contributions */
  int whole;                                     /* blocks from the first on that are whole in all arrays, ... */
  int64_t of_whole;                              /* ... and the pieces of one of them */
};
enum { TC_SLOTS = 2 };           /* pieces being received for a sum, and partial sums of a block that wait to be taken */
/* Local. l: the flows of the call by this algorithm. Addresses are not looked at. */
struct tc_pieces tc_pieces_of(const struct tc_coll_args *a, int algorithm, const struct tc_flows *l,
                              const struct tc_members *m);
/* Local. Pieces of `elems` elements that a flow with one peer moves of the arrays part[n]; first: as above. */
int64_t tc_flow_pieces(const struct tc_flow *f, int first, const struct tc_part *part, int n, int64_t elems,
                       const struct tc_members *m);
/* Local. Messages of a flow with all its peers. */
int64_t tc_flow_messages(const struct tc_flow *f, const struct tc_coll_args *a, const struct tc_pieces *p,
                         const struct tc_members *m);

/* Local. Elements of n blocks from `first` on, modulo the size, of an array of `count` in blocks of `block`. */
int64_t tc_blocks_elems(int64_t count, int64_t block, int size, int first, int n);

/* Local. Elements that a flow moves of one array, with all its peers: of whole contributions, each is the array. */
int64_t tc_flow_elems(const struct tc_flow *f, int64_t count, int64_t block, const struct tc_members *m);

/* Local. What the busiest member sends, or receives if that is more, in bytes: in all, and to or from other nodes. `count`
 * elements of `bytes` each, in blocks of one size; m->coord does not matter. */
struct tc_busiest { double all, away; };
struct tc_busiest tc_busiest(int algorithm, int coll, const struct tc_members *m, double count, double bytes, double wide_bytes);

#endif
