/* flow.c - the table of algorithms (algorithm.def), which one a call takes, and its busiest member. */
#include "src/coll/impl.h"

#include <stdlib.h>
#include <string.h>

/* Figures measured with tests/bench/coll: AMD EPYC, 2 cores; 8 ranks on one node, 3 nodes x 4 ranks with links of 1 Gbit/s. */
enum {
  FEW = 8,                                                      /* members */
  WHOLE_BYTES = 256, ALL_WHOLES_BYTES = 8 << 10,                /* of contributions that all come together: of one; of all */
  MOST_WHOLES_BYTES = 256 << 20,                                /* where it is asked for */
  TREE_SUM_BYTES = 256 << 10, TREE_SUM_SPREAD = 32 << 10,       /* of a sum that goes up a tree: on one node; on several */
  HALVED_BYTES = 64 << 10, MOST_HALVED_BYTES = 16 << 20,        /* ... in log2 N rounds: up to so many a member; in all */
  TREE_GATHER_BYTES = 64 << 10,                                 /* of what goes up and down a tree, if there are nodes */
  STAR_BYTES = 16 << 10, SCATTER_BYTES = 512 << 10, CHAIN_BYTES = 64 << 10    /* of a broadcast; of a chain: for each member */
};

#define ON(coll) (1u << TC_##coll)
enum { NONE = 0, PARTIAL = 1, NODES = 2, PIPELINE = 4, HELD = 8 };
static const struct row {
  void (*list)(struct tc_flows *l, const struct tc_call *m);
  unsigned collectives, wholes, traits;
} rows[TC_ALGORITHMS] = {
  { NULL, 0, 0, 0 },
#define ALGORITHM(name, function, collectives, wholes, traits) { tc_list_##function, collectives, wholes, traits },
#include "src/coll/algorithm.def"
#undef ALGORITHM
};
const char *const tc_algorithm_name[TC_ALGORITHMS] = {
  "auto",
#define ALGORITHM(name, function, collectives, wholes, traits) #function,
#include "src/coll/algorithm.def"
#undef ALGORITHM
};

bool tc_algorithm_does(int algorithm, int coll) { return rows[algorithm].collectives >> coll & 1; }
bool tc_algorithm_is_pipeline(int algorithm) { return rows[algorithm].traits & PIPELINE; }

bool tc_algorithm_suits(int algorithm, int coll, const struct tc_members *m)
{
  const unsigned traits = rows[algorithm].traits;
  if (!tc_algorithm_does(algorithm, coll) || (traits & NODES && !m->nodes)) return false;
  return !(traits & PARTIAL) || m->partial || !tc_coll_adds(coll);
}

int tc_algorithm_named(const char *name)
{
  for (int a = 0; a < TC_ALGORITHMS; a++)
    if (!strcmp(tc_algorithm_name[a], name)) return a;
  return -1;
}

int tc_algorithm_direct(int coll)
{
  return tc_algorithm_does(TC_ALGORITHM_EXCHANGE, coll) ? TC_ALGORITHM_EXCHANGE : TC_ALGORITHM_STAR;
}

void tc_flows_of(struct tc_flows *out, int algorithm, int coll, const struct tc_members *m, int root)
{
  const struct tc_call call = { coll, m->size, m->coord, root, m->nodes };
  TC_ASSERT(tc_algorithm_does(algorithm, coll) && m->coord >= 0 && m->coord < m->size);
  out->n = 0;
  rows[algorithm].list(out, &call);
}

void tc_flows_done(struct tc_flows *out) { free(out->flow); }

/* ---- which one -------------------------------------------------------------------------------- */

/* What all members give comes together: so many bytes times their number. */
static bool is_small(int64_t bytes, int size) { return bytes <= WHOLE_BYTES || bytes <= ALL_WHOLES_BYTES / size; }

/* What is in one memory is not copied twice; a tree has the fewest messages; on links of their own all are busy in a chain, or
 * in a scatter, which has fewer rounds. */
static int of_broadcast(int64_t bytes, const struct tc_members *m)
{
  if (m->size <= FEW && !m->nodes && (!m->spread || bytes <= STAR_BYTES)) return TC_ALGORITHM_STAR;
  if (m->size == 2 || !m->spread || bytes < SCATTER_BYTES) return TC_ALGORITHM_TREE;
  return bytes >= CHAIN_BYTES * (int64_t)m->size ? TC_ALGORITHM_CHAIN : TC_ALGORITHM_SCATTERED;
}

/* Among few members on one node, or on nodes of their own, the direct algorithm is best, which has the fewest rounds. Else
 * what is small goes by a tree, what is large by nodes, and in between, or if there are none, in log2 N rounds. */
static int by_size(int coll, int64_t bytes, const struct tc_members *m)
{
  const bool gathers = coll == TC_ALL_GATHER;
  const int64_t given = gathers ? bytes / m->size : bytes;      /* by each member */
  if (coll == TC_BROADCAST) return of_broadcast(bytes, m);
  if (m->size <= FEW && !m->nodes) return tc_algorithm_direct(coll);
  if (bytes <= (m->spread ? TREE_SUM_SPREAD : TREE_SUM_BYTES) && tc_algorithm_suits(TC_ALGORITHM_SUMTREE, coll, m))
    return TC_ALGORITHM_SUMTREE;
  const bool small = is_small(given, m->size) || (gathers && m->nodes && bytes <= TREE_GATHER_BYTES);
  if (small && tc_algorithm_does(TC_ALGORITHM_TREE, coll)) return TC_ALGORITHM_TREE;
  if (tc_algorithm_suits(TC_ALGORITHM_NODES, coll, m)) return TC_ALGORITHM_NODES;
  const int rounds = gathers ? TC_ALGORITHM_DOUBLING : TC_ALGORITHM_HALVING;
  const bool middle = bytes / m->size <= HALVED_BYTES && bytes <= MOST_HALVED_BYTES;
  return middle && tc_algorithm_suits(rounds, coll, m) ? rounds : tc_algorithm_direct(coll);
}

int tc_algorithm_of(const struct tc_coll_args *a, const struct tc_members *m)
{
  int64_t bytes = 0;
  for (int i = 0; i < a->n_parts; i++) bytes += a->parts[i].count * (int64_t)tc_dtype_bytes(a->dtype);
  const struct row *row = &rows[a->algorithm];
  const int arrays = row->wholes >> a->coll & 1 ? m->size : row->traits & HELD ? 1 : 0;      /* in memory at once */
  const bool too_large = arrays && bytes > MOST_WHOLES_BYTES / arrays;
  return tc_algorithm_suits(a->algorithm, a->coll, m) && !too_large ? a->algorithm : by_size(a->coll, bytes, m);
}

/* ---- the busiest member ---------------------------------------------------------------------------- */

/* The part of a flow's peers that are on other nodes. */
static double part_away(const struct tc_flow *f, const struct tc_members *m)
{
  const struct tc_nodes *x = m->nodes;
  if (!x || f->peers == 0) return m->spread;
  if (f->peers == 1) return x->row[f->peer] != x->row[m->coord];
  return (double)(m->size - x->size[x->row[m->coord]]) / (m->size - 1);
}

/* The busiest member is the root or, in some lists, the last one; among nodes, one of the smallest, which works for more, or
 * the last one of the root's. Else all do as much. */
enum { LOOKED_AT = 4 };
static void look_at(const struct tc_members *m, int coord[LOOKED_AT])
{
  const struct tc_nodes *x = m->nodes;
  int small = 0;
  for (int r = 1; x && r < x->n; r++)
    if (x->size[r] < x->size[small]) small = r;
  coord[0] = 0, coord[1] = m->size - 1;
  coord[2] = x ? x->at[small * x->most] : 0;
  coord[3] = x ? x->at[x->size[0] - 1] : 0;      /* of row 0, which has member 0 */
}

struct tc_busiest tc_busiest(int algorithm, int coll, const struct tc_members *m, double count, double bytes, double wide_bytes)
{
  struct tc_busiest most = { 0 };
  struct tc_flows l = { 0 };
  int coord[LOOKED_AT];
  look_at(m, coord);
  for (int i = 0; i < LOOKED_AT; i++) {
    struct tc_members seen = *m;
    bool looked = false;
    for (int k = 0; k < i; k++) looked |= coord[k] == coord[i];
    if (looked) continue;
    seen.coord = coord[i];
    const int root = coll == TC_SEND || coll == TC_RECV ? (seen.coord + 1) % m->size : 0;
    double moved[2] = { 0 }, away[2] = { 0 };    /* [RECV], [SEND] */
    tc_flows_of(&l, algorithm, coll, &seen, root);
    for (int k = 0; k < l.n; k++) {
      const struct tc_flow *f = &l.flow[k];
      if (f->kind > TC_FLOW_SEND) continue;
      const double x = (double)tc_flow_elems(f, m->size, 1, &seen) / m->size * count * (f->wide ? wide_bytes : bytes);
      moved[f->kind] += x;
      away[f->kind] += x * part_away(f, &seen);
    }
    most.all = TC_MAX(most.all, TC_MAX(moved[0], moved[1]));
    most.away = TC_MAX(most.away, TC_MAX(away[0], away[1]));
  }
  tc_flows_done(&l);
  return most;
}
