/* selection.c - the algorithm of a call, by the rows of a table; the compiled table. */
#include "src/coll/selection.h"
#include "src/base/hash.h"

enum { K = 1024 };
#define ANY TC_SELECTION_ANY
#define MANY TC_SELECTION_MANY
#define ROW(least, most, place, array, each, all, algorithm) \
  { least, most, TC_PLACE_##place, TC_ALGORITHM_##algorithm, array, each, all },
#define SELECTION(coll, rows) static const struct tc_selection_row rows_of_##coll[] = { rows };
#include "src/coll/selection.def"
#undef SELECTION
const struct tc_selection tc_selection_compiled = { {
#define SELECTION(coll, rows) [TC_##coll] = { rows_of_##coll, sizeof rows_of_##coll / sizeof *rows_of_##coll },
#include "src/coll/selection.def"
#undef SELECTION
} };

static int place_of(const struct tc_members *m)
{
  return m->nodes ? TC_PLACE_NODES : m->spread ? TC_PLACE_SPREAD : TC_PLACE_ONE;
}

/* Bytes of the array, of it for each member, and that each gives. Those of all may not fit 64 bits. */
struct amount { int64_t array, each, given; };
static bool has_bytes(const struct tc_selection_row *r, const struct amount *x, int size)
{
  return x->array <= r->array && x->each <= r->each && (r->all == TC_SELECTION_ANY || x->given <= r->all / size);
}

static int select_row(const struct tc_selection_rows *rows, int coll, int64_t bytes, const struct tc_members *m)
{
  const int place = place_of(m);
  const int64_t each = bytes / m->size;
  const struct amount x = { bytes, each, tc_coll_adds(coll) ? bytes : each };
  for (int i = 0; i < rows->n; i++) {
    const struct tc_selection_row *r = &rows->row[i];
    if (m->size >= r->least && m->size <= r->most && (r->place == TC_PLACE_ANY || r->place == place) &&
        has_bytes(r, &x, m->size) && tc_algorithm_suits(r->algorithm, coll, m) &&
        tc_algorithm_has_room(r->algorithm, coll, bytes, m->size)) return r->algorithm;
  }
  TC_ASSERT(!"a collective without a row for every call");
  return TC_ALGORITHM_AUTO;
}

int tc_algorithm_of(const struct tc_coll_args *a, const struct tc_members *m)
{
  const struct tc_selection *s = m->selection ? m->selection : &tc_selection_compiled;
  int64_t bytes = 0;
  for (int i = 0; i < a->n_parts; i++) bytes += a->parts[i].count * (int64_t)tc_dtype_bytes(a->dtype);
  if (tc_algorithm_suits(a->algorithm, a->coll, m) && tc_algorithm_has_room(a->algorithm, a->coll, bytes, m->size))
    return a->algorithm;
  return select_row(&s->of[a->coll], a->coll, bytes, m);
}

uint64_t tc_selection_hash(const struct tc_selection *s, bool sums)
{
  uint64_t hash = tc_hash64("collectives");
  if (!s) s = &tc_selection_compiled;
  for (int coll = TC_FIRST_COLL; coll < TC_COLLS; coll++) {
    if (sums && !tc_coll_adds(coll)) continue;
    hash = tc_hash64_add(hash, (uint64_t)coll);
    for (int i = 0; i < s->of[coll].n; i++) {
      const struct tc_selection_row *r = &s->of[coll].row[i];
      const int64_t x[] = { r->least, r->most, r->place, r->algorithm, r->array, r->each, r->all };
      for (size_t k = 0; k < sizeof x / sizeof *x; k++) hash = tc_hash64_add(hash, (uint64_t)x[k]);
    }
  }
  return hash;
}
