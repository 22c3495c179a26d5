/* flow.c - the table of algorithms (algorithm.def): which collectives they do among which members, and their busiest one. */
#include "src/coll/impl.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_WHOLES_BYTES = 256 << 20 };                          /* of whole arrays that are in memory together */

#define ON(coll) (1u << TC_##coll)
enum { NONE = 0, PARTIAL = 1, NODES = 2, PIPELINE = 4, HELD = 8 };
static const struct row {
  void (*list)(struct tc_flows *l, const struct tc_call *m);
  unsigned collectives, wholes, traits;
  const char *messages, *bytes;
} rows[TC_ALGORITHMS] = {
  { NULL, 0, 0, 0, NULL, NULL },
#define ALGORITHM(name, function, collectives, wholes, traits, messages, bytes) \
  { tc_list_##function, collectives, wholes, traits, messages, bytes },
#include "src/coll/algorithm.def"
#undef ALGORITHM
};
const char *const tc_algorithm_name[TC_ALGORITHMS] = {
  "auto",
#define ALGORITHM(name, function, collectives, wholes, traits, messages, bytes) #function,
#include "src/coll/algorithm.def"
#undef ALGORITHM
};

bool tc_algorithm_does(int algorithm, int coll) { return rows[algorithm].collectives >> coll & 1; }
bool tc_algorithm_is_pipeline(int algorithm) { return rows[algorithm].traits & PIPELINE; }
const char *tc_algorithm_messages(int algorithm) { return rows[algorithm].messages; }
const char *tc_algorithm_bytes(int algorithm) { return rows[algorithm].bytes; }

bool tc_algorithm_suits(int algorithm, int coll, const struct tc_members *m)
{
  const unsigned traits = rows[algorithm].traits;
  if (!tc_algorithm_does(algorithm, coll) || (traits & NODES && !m->nodes)) return false;
  return !(traits & PARTIAL) || m->partial || !tc_coll_adds(coll);
}

bool tc_algorithm_has_room(int algorithm, int coll, int64_t bytes, int size)
{
  const struct row *row = &rows[algorithm];
  const int arrays = row->wholes >> coll & 1 ? size : row->traits & HELD ? 1 : 0;      /* in memory at once */
  return !arrays || bytes <= MOST_WHOLES_BYTES / arrays;
}

bool tc_algorithm_does_all(int algorithm, int coll)
{
  const struct row *row = &rows[algorithm];
  return tc_algorithm_does(algorithm, coll) && !(row->wholes >> coll & 1) && !(row->traits & (PARTIAL | NODES | HELD));
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
