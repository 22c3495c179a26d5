/* cpus.c - the CPUs of a rank: how many threads they carry, and keeping to them. */
#include "src/launch/ranks.h"

#include <errno.h>
#include <hwloc.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

void tc_ranks_bind(const struct tc_ranks *r, int rank)
{
  if (!r->info[rank].bound) return;
  hwloc_bitmap_t part = hwloc_bitmap_alloc();
  hwloc_bitmap_list_sscanf(part, r->info[rank].cpuset);
  const int n = hwloc_bitmap_last(part) + 1;
  cpu_set_t *set = CPU_ALLOC((size_t)n);
  if (set) {
    CPU_ZERO_S(CPU_ALLOC_SIZE((size_t)n), set);
    for (int c = hwloc_bitmap_first(part); c >= 0; c = hwloc_bitmap_next(part, c))
      CPU_SET_S((size_t)c, CPU_ALLOC_SIZE((size_t)n), set);
    if (sched_setaffinity(0, CPU_ALLOC_SIZE((size_t)n), set) != 0)
      tc_warn("rank %d stays unbound: CPUs %s: %s", rank, r->info[rank].cpuset, strerror(errno));
    CPU_FREE(set);
  }
  hwloc_bitmap_free(part);
}

/* The CPUs of a rank, each divided by the ranks of the node that may use it. */
static double share_of(const struct tc_ranks *r, int rank)
{
  TC_ASSERT(rank >= 0 && rank < r->world);
  hwloc_bitmap_t mine = hwloc_bitmap_alloc(), other = hwloc_bitmap_alloc();
  double share = 0;
  hwloc_bitmap_list_sscanf(mine, r->info[rank].cpuset);
  int n_cpus = hwloc_bitmap_last(mine) + 1;                  /* 0: none is known */
  int *users = tc_calloc((size_t)n_cpus + 1, sizeof *users);
  for (int i = 0; i < r->world; i++) {
    if (r->node_of_rank[i] != r->node_of_rank[rank]) continue;
    hwloc_bitmap_list_sscanf(other, r->info[i].cpuset);
    for (int c = 0; c < n_cpus; c++) users[c] += hwloc_bitmap_isset(other, c) != 0;
  }
  for (int c = hwloc_bitmap_first(mine); c >= 0; c = hwloc_bitmap_next(mine, c))
    share += 1.0 / users[c];
  free(users);
  hwloc_bitmap_free(mine);
  hwloc_bitmap_free(other);
  return share + 1e-6;             /* three thirds are one */
}

int tc_ranks_threads_each(const struct tc_ranks *r, int rank) { return TC_MAX((int)share_of(r, rank), 1); }

bool tc_ranks_own_cpus(const struct tc_ranks *r, int rank, int threads) { return share_of(r, rank) >= threads; }
