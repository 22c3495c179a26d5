/* bind.c - ranks to GPUs and CPUs of one node.
 *
 * GPUs are given by successive shortest paths: rank after rank comes in, and ranks that came before
 * move over where that makes the whole cheaper. Invariant: after each rank the assignment is the
 * cheapest of the ranks so far (no cycle of moves has a negative cost). A GPU's k-th rank costs k
 * times more than all distances together, which spreads ranks before it brings them near. */
#include "src/launch/bind.h"

#include <hwloc.h>

#define NONE INT64_MAX
#define CROWD (INT64_C(1) << 50)         /* above any sum of distances and of their ties */
#define DISTANCE (INT64_C(1) << 25)      /* above any sum of ties */

struct match {
  const int32_t *cost;           /* [n_ranks, n_gpus] */
  int32_t *chosen;               /* [n_ranks] */
  int n_gpus, n_in;              /* ranks 0 .. n_in-1 have their GPU */
  int64_t *edge;                 /* [n_gpus, n_gpus] what the cheapest rank's move from a to b adds */
  int32_t *mover;                /* [n_gpus, n_gpus] that rank */
  int64_t *far;                  /* [n_gpus] cheapest way for the new rank to disturb a GPU */
  int32_t *via, *users;          /* [n_gpus] the GPU before it on that way, or -1; ranks on it */
};

/* The price of rank r on GPU g; NONE: it does not see it. */
static int64_t price(const struct match *m, int r, int g)
{
  int64_t cost = m->cost[(size_t)r * m->n_gpus + g], off = r % m->n_gpus - g;
  return cost < 0 ? NONE : cost * DISTANCE + off * off;
}

static void find_moves(struct match *m)
{
  const size_t n = (size_t)m->n_gpus;
  for (size_t i = 0; i < n * n; i++) m->edge[i] = NONE;
  for (int r = 0; r < m->n_in; r++) {
    int a = m->chosen[r];
    if (a < 0) continue;
    for (int b = 0; b < m->n_gpus; b++) {
      int64_t p = price(m, r, b);
      if (p == NONE || p - price(m, r, a) >= m->edge[(size_t)a * n + b]) continue;
      m->edge[(size_t)a * n + b] = p - price(m, r, a);
      m->mover[(size_t)a * n + b] = r;
    }
  }
}

/* Bellman and Ford: the cheapest chain of moves that ends at each GPU, begun by the new rank. */
static void find_ways(struct match *m, int rank)
{
  const size_t n = (size_t)m->n_gpus;
  for (int g = 0; g < m->n_gpus; g++) {
    m->far[g] = price(m, rank, g);
    m->via[g] = -1;
  }
  for (int pass = 0; pass < m->n_gpus; pass++)
    for (int a = 0; a < m->n_gpus; a++)
      for (int b = 0; b < m->n_gpus; b++) {
        int64_t step = m->edge[(size_t)a * n + b];
        if (a == b || step == NONE || m->far[a] == NONE || m->far[a] + step >= m->far[b]) continue;
        m->far[b] = m->far[a] + step;
        m->via[b] = a;
      }
}

static void bring_in(struct match *m, int rank)
{
  int end = -1;
  int64_t least = NONE;
  find_moves(m);
  find_ways(m, rank);
  for (int g = 0; g < m->n_gpus; g++) {
    if (m->far[g] == NONE || m->far[g] + m->users[g] * CROWD >= least) continue;
    least = m->far[g] + m->users[g] * CROWD;
    end = g;
  }
  m->chosen[rank] = end;
  m->n_in++;
  if (end < 0) return;
  m->users[end]++;
  for (; m->via[end] >= 0; end = m->via[end])
    m->chosen[m->mover[(size_t)m->via[end] * m->n_gpus + end]] = end;
  m->chosen[rank] = end;
}

void tc_bind_gpus(int32_t *chosen, const int32_t *cost, int n_ranks, int n_gpus)
{
  const size_t n = (size_t)n_gpus;
  struct match m = { .cost = cost, .chosen = chosen, .n_gpus = n_gpus };
  for (int r = 0; r < n_ranks; r++) chosen[r] = -1;
  if (n_gpus < 1) return;
  m.edge = tc_malloc(n * n * sizeof *m.edge);
  m.mover = tc_malloc(n * n * sizeof *m.mover);
  m.far = tc_malloc(n * sizeof *m.far);
  m.via = tc_malloc(n * sizeof *m.via);
  m.users = tc_calloc(n, sizeof *m.users);
  for (int r = 0; r < n_ranks; r++) bring_in(&m, r);
  TC_FREE(m.edge, m.mover, m.far, m.via, m.users);
}

/* ---- CPUs ------------------------------------------------------------------------------ */

/* cpus of the NUMA node into `out`. */
static void cpus_at(hwloc_topology_t topo, hwloc_const_bitmap_t cpus, int numa, hwloc_bitmap_t out)
{
  hwloc_obj_t node = numa >= 0 ? hwloc_get_numanode_obj_by_os_index(topo, (unsigned)numa) : NULL;
  if (node) hwloc_bitmap_and(out, cpus, node->cpuset);
  else hwloc_bitmap_zero(out);
}

/* Every preferred NUMA node has a CPU for each of its ranks. */
static bool preferred_have_cpus(hwloc_topology_t topo, hwloc_const_bitmap_t cpus, const int *preferred, int n)
{
  bool good = preferred != NULL;
  hwloc_bitmap_t at = hwloc_bitmap_alloc();
  for (int i = 0; i < n && good; i++) {
    int ranks = 0, first = i;
    for (int k = 0; k < n; k++) {
      ranks += preferred[k] == preferred[i];
      if (preferred[k] == preferred[i]) first = TC_MIN(first, k);
    }
    if (first < i) continue;
    cpus_at(topo, cpus, preferred[i], at);
    good = hwloc_bitmap_weight(at) >= ranks;
  }
  hwloc_bitmap_free(at);
  return good;
}

/* The CPUs first .. end-1 of `from`, in the machine's order. */
static void slice(hwloc_topology_t topo, hwloc_const_bitmap_t from, int first, int end,
                  hwloc_bitmap_t out)
{
  hwloc_obj_t pu = NULL;
  hwloc_bitmap_zero(out);
  for (int i = 0; i < end; i++) {
    pu = hwloc_get_next_obj_inside_cpuset_by_type(topo, from, HWLOC_OBJ_PU, pu);
    if (!pu) return;
    if (i >= first) hwloc_bitmap_set(out, pu->os_index);
  }
}

int tc_bind_cpus(struct hwloc_bitmap_s **out, struct hwloc_topology *topo,
                 const struct hwloc_bitmap_s *cpus, const int *preferred, int n)
{
  hwloc_bitmap_t from = hwloc_bitmap_alloc();
  int fewest = hwloc_bitmap_weight(cpus);
  hwloc_cpuset_to_nodeset(topo, cpus, from);
  const bool useful = n > 1 && hwloc_bitmap_weight(from) > 1 && fewest >= n;
  const bool near = useful && preferred_have_cpus(topo, cpus, preferred, n);
  for (int i = 0; i < n && useful; i++) {
    int parts = n, mine = i;
    hwloc_bitmap_copy(from, cpus);
    if (near) {
      cpus_at(topo, cpus, preferred[i], from);
      parts = mine = 0;
      for (int k = 0; k < n; k++) {
        parts += preferred[k] == preferred[i];
        mine += k < i && preferred[k] == preferred[i];
      }
    }
    const int all = hwloc_bitmap_weight(from);
    slice(topo, from, all * mine / parts, all * (mine + 1) / parts, out[i]);
    fewest = TC_MIN(fewest, hwloc_bitmap_weight(out[i]));
  }
  hwloc_bitmap_free(from);
  return useful ? fewest : 0;
}
