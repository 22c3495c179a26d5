/* arena.h - every buffer's place before anything runs: no allocation inside a step.
 *
 * Pure. Regions: state (kept across steps, shared by the programs of a run) and scratch (one
 * step; programs reuse it), each on the device and on the host. */
#ifndef TC_ARENA_H
#define TC_ARENA_H

#include "src/graph/graph.h"
#include "src/schedule/actions.h"
#include "src/schedule/fusion.h"

enum { TC_ARENA_ALIGN = 64 };
enum tc_region { TC_STATE, TC_SCRATCH, TC_HOST_STATE, TC_HOST_SCRATCH, TC_REGIONS };
extern const char *const tc_region_name[TC_REGIONS];

struct tc_arena {
  int32_t n;                     /* tensors */
  int64_t *off;                  /* in its region; -1: has no storage */
  uint8_t *region;               /* enum tc_region */
  /* A tensor of several micro-batches at once has so many slots; micro-batch mb has slot
   * mb % slots. slot[slot_at[t] + i]: what slot i adds to off. */
  int32_t *slots, *slot_at;
  int64_t *slot; int32_t n_slot, cap_slot;
  /* After which node a scratch tensor is free (-1: never, or not always after the same one), and
   * whether after the WAIT for it; once: in the last micro-batch only. */
  struct tc_last_use { int32_t node; bool wait, once; } *last_use;
  int64_t bytes[TC_REGIONS];
  int64_t looked;                /* objects looked at to place all: the work, for tests */
  /* State by class, and scratch by the class of what is live at its fullest moment; gaps between
   * buffers count as activations. */
  int64_t by_class[TC_SPACES][TC_CLASSES];
};

/* Local. Places all tensors for the rank at `coord`. Memory fits the fusions of `f` that have
 * TC_FUSION_EXTEND, run as one or part by part (f NULL: none). If `with` is given (a plan of another
 * program of the same run), state tensors sit where `with` has the one of the same name. */
int tc_arena_new(struct tc_arena **out, const struct tc_graph *g, const struct tc_actions *s,
                 const struct tc_fusions *f, const struct tc_mesh *m, const int32_t coord[TC_AXES],
                 const struct tc_arena *with, const struct tc_graph *with_graph,
                 struct tc_err *err);
void tc_arena_free(struct tc_arena *a);
/* Local. Where tensor t is in its region in micro-batch mb. */
static inline int64_t tc_arena_at(const struct tc_arena *a, int32_t t, int32_t mb)
{
  return a->off[t] + (a->slots[t] > 1 ? a->slot[a->slot_at[t] + mb % a->slots[t]] : 0);
}
/* Local. No two live tensors overlap, over the whole list of actions (a check independent of the
 * placing: it walks the list and marks which tensor holds which bytes), and none would with any of the
 * groups of `f` run as one at the place of its last action (f NULL: none). */
int tc_arena_check(const struct tc_arena *a, const struct tc_graph *g, const struct tc_actions *s,
                   const struct tc_fusions *f, const struct tc_mesh *m, const int32_t coord[TC_AXES],
                   struct tc_err *err);

#endif
