/* bind.h - which rank of a node gets which GPU, and which CPUs: pure functions of what all ranks
 * of the node know of each other, so that each computes the same. */
#ifndef TC_BIND_H
#define TC_BIND_H

#include "src/base/base.h"

struct hwloc_topology;
struct hwloc_bitmap_s;

/* Local. chosen[n_ranks] <- a GPU for each rank, or -1 if none is visible to it. cost[n_ranks, n_gpus]: how
 * far the GPU is from the rank, below 4096; -1: it is not visible to the rank. At most 4096 ranks. No GPU has two
 * while a free one could take one of them; of all such choices the sum of costs is least; of
 * equal ones rank i gets the GPU nearest in order to i. */
void tc_bind_gpus(int32_t *chosen, const int32_t *cost, int n_ranks, int n_gpus);

/* Local. out[n] (bitmaps of the caller's) <- a part of `cpus` for each of n ranks that share them.
 * preferred[n]: the NUMA node of each rank's GPU, or NULL. If all of these are known and have CPUs
 * enough, a part is of that node's CPUs; else of all. Parts are disjoint; those of the same CPUs
 * differ by one CPU at most; each is neighbours in the machine's order. Returns the fewest CPUs of
 * a part; 0: none were made, since CPUs of one NUMA node are all as near, or there are fewer CPUs
 * than ranks, or a single rank. */
int tc_bind_cpus(struct hwloc_bitmap_s **out, struct hwloc_topology *topo,
                 const struct hwloc_bitmap_s *cpus, const int *preferred, int n);

#endif
