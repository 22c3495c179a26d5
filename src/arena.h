/* arena.h - every buffer's place before anything runs: no allocation inside a step.
 *
 * Pure. Two regions: state (lives across steps, shared by the programs of a run) and scratch
 * (one step; programs reuse it). */
#ifndef TC_ARENA_H
#define TC_ARENA_H

#include "src/graph.h"
#include "src/pipe.h"

enum { TC_ARENA_ALIGN = 64 };

struct tc_arena {
  int32_t n;                     /* tensors */
  int64_t *off;                  /* in its region; -1: has no storage */
  bool *in_state;                /* region */
  int32_t *die;                  /* position in the body after which it is free; -1: never */
  int64_t state_bytes, scratch_bytes;
  int64_t by_class[TC_CLASSES];  /* state by class; scratch under activations */
};

/* Local. Places all tensors for the rank at `coord`. If `with` is given (a plan of another
 * program of the same run), state tensors sit where `with` has the one of the same name. */
int tc_arena_new(struct tc_arena **out, const struct tc_graph *g, const struct tc_schedule *s,
                 const struct tc_mesh *m, const int32_t coord[TC_AXES],
                 const struct tc_arena *with, const struct tc_graph *with_graph,
                 struct tc_err *err);
void tc_arena_free(struct tc_arena *a);
/* Local. No two live tensors overlap (a check independent of the placing). */
int tc_arena_check(const struct tc_arena *a, const struct tc_graph *g,
                   const struct tc_schedule *s, const struct tc_mesh *m,
                   const int32_t coord[TC_AXES], struct tc_err *err);

#endif
