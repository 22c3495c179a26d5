/* coll.h - the enum of collectives, their arguments, counters and bytes; flow.h has their algorithms. Pure: depends on
 * src/base only.
 *
 * Data is given as parts: arrays that are transferred in one call. An element belongs to coordinate
 * min(i / block, n-1): coordinate i has the i-th block of `block` elements, and the last coordinates
 * what remains (possibly nothing). */
#ifndef TC_COLL_H
#define TC_COLL_H

#include "src/coll/members.h"

/* The collective of a reshard on its axis, and of a communicator's call. The first three are local and free:
 * R -> S, R -> at, R or at -> P. A copy is between host and device. */
enum tc_coll {
  TC_SLICE, TC_DROP, TC_ZERO, TC_COPY,
  TC_ALL_REDUCE, TC_REDUCE_SCATTER, TC_ALL_GATHER, TC_BROADCAST, TC_REDUCE, TC_SCATTER,
  TC_GATHER, TC_ALL_TO_ALL, TC_SEND, TC_RECV, TC_BARRIER, TC_COLLS,
  TC_FIRST_COLL = TC_ALL_REDUCE     /* the first one that communicates */
};
extern const char *const tc_coll_name[TC_COLLS];  /* "slice", ..., "all_reduce", ... */
/* Local. The collective of that name that communicates; -1: none. */
int tc_coll_named(const char *name);
static inline bool tc_coll_is_local(int coll) { return coll <= TC_ZERO; }
static inline bool tc_coll_adds(int coll)
{
  return coll == TC_ALL_REDUCE || coll == TC_REDUCE_SCATTER || coll == TC_REDUCE;
}

enum tc_reduce { TC_SUM, TC_MAX_OP };

/* src and dst may be equal or overlap only where the list below allows it. */
struct tc_part {
  const void *src;
  void *dst;
  int64_t count;                  /* elements of the whole array */
  int64_t block;                  /* elements of one coordinate's block */
};

/* The semantics of each collective:
 *   ALL_REDUCE      dst[count] <- reduction of all src[count];      src == dst allowed
 *   REDUCE_SCATTER  dst[my block] <- reduction of all src[count], my block of it; dst may be
 *                   src + my offset
 *   ALL_GATHER      dst[count] <- src[each coordinate's block];    src may be dst + my offset
 *   BROADCAST       dst[count] <- root's src[count];  root: src == dst allowed, dst unused; blocks are what a large one is
 *                   scattered in
 *   REDUCE          root: dst[count] <- reduction of all src[count]; src == dst allowed
 *   SCATTER         dst[my block] <- root's src[my block of count]
 *   GATHER          root: dst[count] <- src[each coordinate's block]
 *   ALL_TO_ALL      dst[block j] <- src of coordinate j, its block for me; count = n * block
 *   SEND / RECV     src[count] to / dst[count] from coordinate `peer`
 *   BARRIER         nothing */
struct tc_coll_args {
  int coll, dtype, red;
  int root;                       /* root, or peer of SEND/RECV */
  int n_parts;
  const struct tc_part *parts;    /* copied */
  int algorithm;                  /* of flow.h; 0: the one that suits the call */
  bool ctl;                       /* a control reduction: counted under "ctl" */
  bool soon;                      /* the caller waits for it next, and may run it itself */
  const char *what;               /* for the message at a timeout; borrowed until the wait */
};

struct tc_coll_count { int64_t calls, bytes, messages; };     /* bytes and messages: what this rank sent */
/* peers: members with which it has exchanged a message; ctl_peers: in control calls. */
struct tc_comm_counters { struct tc_coll_count data[TC_COLLS], ctl[TC_COLLS]; int peers, ctl_peers; };

/* The offset of coordinate i's block, in elements; i = n: the end of the last block. The last
 * coordinate has what remains, less or more than a block. */
static inline int64_t tc_block_start(int64_t count, int64_t block, int i, int n)
{
  if (i >= n) return count;
  return i > 0 && block > count / i ? count : i * block;
}

/* Local. The bytes that this member sends in such a call, by which its counter grows: those of its flows (flow.h).
 * Predictions use it. The addresses of a->parts are not looked at. */
int64_t tc_coll_bytes(const struct tc_coll_args *a, const struct tc_members *m);
/* Local. The messages that it sends, alike: each piece of its flows is one. Both at once, of one call. */
int64_t tc_coll_messages(const struct tc_coll_args *a, const struct tc_members *m);
struct tc_coll_count tc_coll_sends(const struct tc_coll_args *a, const struct tc_members *m);

#endif
