/* impl.h - when objects live and where they are placed: for arena.c and arena_place.c alone.
 *
 * Local and pure. */
#ifndef TC_ARENA_IMPL_H
#define TC_ARENA_IMPL_H

#include "src/base/base.h"

/* Positions in the list, first and last, in each of the micro-batches slot, slot + step, ...
 * n = 0: no scratch of its own. */
struct tc_life { int32_t first, last; };
struct tc_live {
  int32_t t, n, slot, step;
  struct tc_life *in;            /* [n], step apart; borrowed from lives.all */
  int64_t bytes, off;
};

/* Objects with an offset, in the order of their offsets. */
struct tc_placed;
struct tc_placed *tc_placed_new(void);           /* owned by the caller */
void tc_placed_free(struct tc_placed *p);
/* The lowest offset at which l overlaps nothing that is placed and lives at the same time. */
int64_t tc_placed_lowest(struct tc_placed *p, const struct tc_live *l);
/* Puts l where its `off` says; l is borrowed. */
void tc_placed_add(struct tc_placed *p, const struct tc_live *l);
/* How many objects, and nodes above them, all searches looked at. */
int64_t tc_placed_looked(const struct tc_placed *p);

#endif
