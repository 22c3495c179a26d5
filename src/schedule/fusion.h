/* fusion.h - groups of actions that a device may run as one call (kernels/kernel.h).
 *
 * In: a graph and a rank's list of actions. Out: the groups that fusion.def allows, as actions of that list.
 * Pure; a group says what may be done: the device decides, by shape, alignment and measured time, whether it
 * is (exec/fused.c), and runs the parts one by one otherwise.
 *
 * A fused call runs at the place of its last action. So of each group
 * - no action between two parts touches what an earlier part writes, or writes what it reads, but for transfers among
 *   one rank in place, which do nothing;
 * - what a later part writes overlaps nothing that an earlier one reads or writes, but for what the table
 *   allows;
 * - what earlier parts read and write keeps its memory until the last part.
 * tc_fusions_new sees to the first two, tensor by tensor. The third needs the memory plan (arena.h): it keeps
 * what rules with EXTEND need, and tc_fusions_fit leaves out the groups of other rules that do not fit. So no
 * plan is larger for a group that a device may decline. */
#ifndef TC_FUSION_H
#define TC_FUSION_H

#include "src/schedule/actions.h"

struct tc_arena;

enum tc_fusion_id {
#define FUSION(id, name, ops, link, flags, what) TC_FUSE_##id,
#include "src/schedule/fusion.def"
#undef FUSION
  TC_FUSIONS
};

enum tc_fusion_link { TC_FUSION_READS, TC_FUSION_ADDS, TC_FUSION_SHARES, TC_FUSION_CHAIN, TC_FUSION_RUN };
enum tc_fusion_flags { TC_FUSION_UNREAD = 1, TC_FUSION_REPLACE = 2, TC_FUSION_EXTEND = 4 };
/* Parts of a CHAIN, READS, ADDS or SHARES; of a RUN; actions from the first part to the last, but of a RUN. */
enum { TC_FUSION_OPS = 7, TC_FUSION_MOST = 96, TC_FUSION_REACH = 16 };
struct tc_fusion_rule {
  const char *name;              /* as traces, `tercio graph` and device files have it */
  int n, op[TC_FUSION_OPS];
  int link;
  unsigned flags;
  const char *what;
};
extern const struct tc_fusion_rule tc_fusion_rule[TC_FUSIONS];

struct tc_fusion {
  int32_t rule, first, n;        /* enum tc_fusion_id; its parts: action[first .. first + n) */
  int32_t mb;                    /* of all its actions */
};
/* Groups may share actions: at most one of those is run fused, the first that the device takes. */
struct tc_fusions {
  struct tc_fusion *group; int32_t n, cap;
  int32_t *action; int32_t n_actions, cap_actions;
};

/* Part k of group i: an index in the list of actions. */
static inline int32_t tc_fusion_part(const struct tc_fusions *f, int32_t i, int32_t k)
{
  return f->action[f->group[i].first + k];
}

/* Local. The groups of rules that have all of `flags`, in the order in which a device is to be asked. The
 * graph is frozen (tc_graph_freeze). Owned by the caller. */
struct tc_fusions *tc_fusions_new(const struct tc_graph *g, const struct tc_actions *s,
                                  const struct tc_mesh *m, const int32_t coord[TC_AXES], unsigned flags);
/* Local. Leaves out the groups for which the memory of an earlier part's tensor has another use before the
 * last part has run; a RUN is divided there. */
void tc_fusions_fit(struct tc_fusions *f, const struct tc_graph *g, const struct tc_actions *s,
                    const struct tc_arena *a, const struct tc_mesh *m, const int32_t coord[TC_AXES]);
void tc_fusions_free(struct tc_fusions *f);

#endif
