/* meet.h - what the ranks of a step tell each other at their start, for ranks.c: where each is, and what it may use. */
#ifndef TC_MEET_H
#define TC_MEET_H

#include "src/launch/ranks.h"

enum { TC_BLOB_MAGIC = 0x54435234, TC_PROBLEM_BYTES = 500 };

/* A device that is visible to a rank. */
struct visible_gpu {
  uint64_t id;                       /* the same on all ranks */
  int32_t numa, distance;
};

/* What ranks send each other: one struct, so that peers of another build are recognised by its size. */
struct blob {
  uint32_t magic;
  int32_t status;                    /* < 0: this node can't be read, and of info only the host is known */
  char problem[TC_PROBLEM_BYTES];       /* the sentence then */
  int32_t leader;                    /* lowest rank of the node by PMIx; -1 unknown */
  struct tc_rank_info info;
  struct visible_gpu visible[TC_GPUS_MAX];    /* [info.n_visible] */
};

/* Collective. Every rank's blob into all[world]; the first time when all have come. TC_EPEER: one does not; TC_EUSER: one runs
 * another build. */
int tc_ranks_exchange(int rank, bool first, const struct blob *mine, int world, const struct tc_ranks_request *request,
                      struct blob *all, struct tc_err *err);

#endif
