/* t_flow.c - the flows of every algorithm (flow.h), with all members at once: each block arrives, sums have the order of
 * coordinates, nothing waits for ever though no message is buffered, in place as well, and bytes are as formulas say.
 *
 * Members are simulated: a piece moves when its sender and its receiver have both come to it, and which of those that may
 * move does so first is drawn. */
#include "src/coll/flow.h"
#include "tests/unit/random.h"
#include "tests/unit/tap.h"

enum { MOST = 64, PIECE = 3, SLOTS = 2, FEW = 9, FLOWS = TC_FLOWS_MOST * MOST };

struct flow { const struct tc_flow *of; int peer; int64_t first, n, done, total; int gate; };
struct member {
  struct tc_flows list;
  struct flow flow[FLOWS];       /* sums and copies among them */
  int n_flows;
  uint32_t *src, *dst, *own;     /* [count], [count]; own block apart; src may be dst */
  uint32_t *term[MOST];          /* [count]; of contributions, each member's */
};
struct world { int coll, size, root; int64_t count, block; struct member *m; };

static uint32_t value(int coord, int64_t i) { return (uint32_t)(coord * 1009 + i * 7 + 1); }
/* A sum that shows its order. */
static uint32_t plus(uint32_t sum, uint32_t x) { return sum * 31u + x; }
static int64_t start_of(const struct world *w, int block) { return tc_block_start(w->count, w->block, block, w->size); }

/* ---- pieces ------------------------------------------------------------------------------ */

/* Element i of the array, where a flow reads or writes it: past its end it begins again. */
static uint32_t *place(const struct world *w, struct member *m, const struct flow *f, int at, int64_t i)
{
  if (at == TC_AT_WHOLES) return &m->term[i / w->count % w->size][i % w->count];
  if (i >= w->count) i -= w->count;
  switch (at) {
  case TC_AT_SRC: return &m->src[i];
  case TC_AT_DST: return &m->dst[i];
  case TC_AT_TERMS: return &m->term[f->peer][i];
  default: return &m->own[i];                    /* both blocks of its own, of which a call has one */
  }
}

static bool may_go(const struct member *m, const struct flow *f)
{
  if (f->done == f->total) return false;
  for (int i = 0; i < m->n_flows; i++) {
    const struct flow *g = &m->flow[i];
    const bool open = g->of->kind <= TC_FLOW_SEND && g->done < g->total;
    if (f->of->kind == TC_FLOW_SUM && g->of->at == TC_AT_TERMS && g->done <= f->done) return false;
    if (f->of->kind == TC_FLOW_SUM && g->of->kind == TC_FLOW_RECV && g->of->at == TC_AT_WHOLES && open) return false;
    if (f->of->when == TC_AFTER_FIRST && g->of < &m->list.flow[f->of->after] && open) return false;
  }
  if (f->of->when == TC_AFTER_FLOW) return m->flow[f->gate].done == m->flow[f->gate].total;
  return f->gate < 0 || f->done < m->flow[f->gate].done + (f->of->when == TC_IN_SLOTS ? SLOTS : 0);
}

/* What a member does by itself. */
static void work(const struct world *w, int coord, struct flow *f)
{
  struct member *m = &w->m[coord];
  for (int64_t i = f->first + f->done * PIECE; i < TC_MIN(f->first + f->n, f->first + (f->done + 1) * PIECE); i++) {
    uint32_t sum = 0;
    for (int c = 0; c < w->size && f->of->kind == TC_FLOW_SUM; c++)
      sum = plus(sum, c == coord && f->of->at == TC_AT_SRC ? *place(w, m, f, f->of->at, i) : m->term[c][i]);
    const int64_t to = f->of->to == TC_AT_WHOLES ? coord * w->count + i : i;
    *place(w, m, f, f->of->to, to) = f->of->kind == TC_FLOW_SUM ? sum : *place(w, m, f, f->of->at, i);
  }
  f->done++;
}

/* ---- members ---------------------------------------------------------------------------- */

static void add_flow(const struct world *w, struct member *m, int k, int i, int last[TC_FLOWS_MOST])
{
  const struct tc_flow *of = &m->list.flow[k];
  struct flow *f = &m->flow[m->n_flows];
  const int block = (of->first + i * of->shift) % w->size;
  *f = (struct flow){ .of = of, .peer = (of->peer + i) % w->size, .first = start_of(w, block) };
  if (of->at == TC_AT_WHOLES && of->kind < TC_FLOW_SUM) f->first = block * w->count, f->n = of->n * w->count;
  else f->n = tc_blocks_elems(w->count, w->block, w->size, block, of->n);
  if (of->to == TC_AT_WHOLES) f->first = 0, f->n = w->count;
  f->total = TC_MAX(tc_ceil_div(f->n, PIECE), of->always ? 1 : 0);
  f->gate = of->when < TC_AFTER_FLOW ? -1 : last[of->after];
  last[k] = m->n_flows++;
}

static int coll_of(const struct world *w, int coord)
{
  return w->coll != TC_SEND ? w->coll : coord == w->root ? TC_RECV : TC_SEND;
}
static bool takes_part(const struct world *w, int coord) { return w->coll != TC_SEND || coord == 0 || coord == w->root; }

/* in_place: src, or the own block, is where coll.h allows it to be. */
static void begin_member(const struct world *w, int coord, int algorithm, bool in_place)
{
  struct member *m = &w->m[coord];
  int last[TC_FLOWS_MOST];
  const size_t bytes = (size_t)(w->count + 1) * sizeof *m->src;
  const bool whole = w->coll == TC_ALL_REDUCE || w->coll == TC_REDUCE;
  memset(m, 0, sizeof *m);
  m->dst = calloc(1, bytes);
  m->src = in_place && whole ? m->dst : calloc(1, bytes);
  m->own = in_place && w->coll == TC_ALL_GATHER ? m->dst : in_place && w->coll == TC_REDUCE_SCATTER ? m->src : calloc(1, bytes);
  for (int i = 0; i < w->size; i++) m->term[i] = calloc(1, bytes);
  for (int64_t i = 0; i < w->count; i++) m->src[i] = value(coord, i);
  for (int64_t i = start_of(w, coord); i < start_of(w, coord + 1); i++) m->own[i] = value(coord, i);
  if (!takes_part(w, coord)) return;
  tc_flows_of(&m->list, algorithm, coll_of(w, coord), w->size, coord, w->coll == TC_SEND && coord ? 0 : w->root);
  for (int k = 0; k < m->list.n; k++) {
    if (m->list.flow[k].kind < TC_FLOW_SUM) continue;
    add_flow(w, m, k, 0, last);
    struct flow *f = &m->flow[m->n_flows - 1];
    while (f->of->kind == TC_FLOW_COPY && f->done < f->total) work(w, coord, f);
  }
  for (int i = 0; i < w->size; i++)
    for (int k = 0; k < m->list.n; k++)
      if (m->list.flow[k].kind < TC_FLOW_SUM && i < m->list.flow[k].peers) add_flow(w, m, k, i, last);
}

static void end_member(struct member *m, int size)
{
  if (m->own != m->dst && m->own != m->src) free(m->own);
  if (m->src != m->dst) free(m->src);
  free(m->dst);
  for (int i = 0; i < size; i++) free(m->term[i]);
}

/* The peer's flow for a send; NULL: it is not there yet. */
static struct flow *mate_of(const struct world *w, int coord, const struct flow *f)
{
  struct member *peer = &w->m[f->peer];
  for (int i = 0; i < peer->n_flows; i++) {
    struct flow *g = &peer->flow[i];
    if (g->of->kind == TC_FLOW_RECV && g->peer == coord && g->of->phase == f->of->phase)
      return may_go(peer, g) && g->done == f->done ? g : NULL;
  }
  return NULL;
}

/* False: the two do not agree on the piece. */
static bool send(const struct world *w, int coord, struct flow *f, struct flow *g)
{
  const bool alike = f->n == g->n && f->total == g->total && (f->first == g->first || w->coll == TC_ALL_TO_ALL);
  for (int64_t i = f->done * PIECE; i < TC_MIN(f->n, (f->done + 1) * PIECE); i++)
    *place(w, &w->m[f->peer], g, g->of->at, g->first + i) = *place(w, &w->m[coord], f, f->of->at, f->first + i);
  f->done++, g->done++;
  return alike;
}

/* Flow g waits, itself or through others, until f is done, or its piece. */
static bool comes_after(const struct member *m, const struct flow *g, const struct flow *f)
{
  if (g->of->when == TC_AFTER_FIRST) return f->of < &m->list.flow[g->of->after];
  return g->gate >= 0 && (&m->flow[g->gate] == f || comes_after(m, &m->flow[g->gate], f));
}

/* Pieces that may be received where something is still to be sent, by a flow that does not come after that: a link may
 * fill the memory of a receive at any time. */
static int64_t hazards(const struct world *w, struct member *m)
{
  int64_t n = 0;
  for (int i = 0; i < m->n_flows; i++)
    for (int k = 0; k < m->n_flows; k++) {
      const struct flow *f = &m->flow[i], *g = &m->flow[k];
      if (f->of->kind != TC_FLOW_RECV || g->of->kind != TC_FLOW_SEND || comes_after(m, g, f) || !may_go(m, f)) continue;
      const int64_t first = f->first + f->done * PIECE, end = TC_MIN(f->first + f->n, first + PIECE);
      const int64_t from = TC_MAX(first, g->first + g->done * PIECE), to = TC_MIN(end, g->first + g->n);
      n += from < to && place(w, m, f, f->of->at, from) == place(w, m, g, g->of->at, from);
    }
  return n;
}

/* A send in phase 2 or 3 answers what came from that member in phase 0 or 1: not before that has come. */
static bool answers_early(const struct member *m, const struct flow *f)
{
  for (int i = 0; i < m->n_flows && f->of->phase >= 2; i++) {
    const struct flow *g = &m->flow[i];
    if (g->of->kind == TC_FLOW_RECV && g->peer == f->peer && g->of->phase + 2 == f->of->phase) return g->done < g->total;
  }
  return f->of->phase >= 2;
}

/* Until all is done, or nothing can go: false, or two did not agree. Each turn goes through all flows from a drawn one on. */
static bool run(const struct world *w)
{
  bool moved = true, left = true, alike = true;       /* alike: and nothing is overwritten */
  while (moved && left) {
    moved = left = false;
    const int from = (int)draw(0, w->size - 1);
    for (int c = 0; c < w->size; c++) {
      const int coord = (from + c) % w->size;
      struct member *m = &w->m[coord];
      const int first = m->n_flows ? (int)draw(0, m->n_flows - 1) : 0;
      if (w->size <= FEW) alike &= hazards(w, m) == 0;
      for (int k = 0; k < m->n_flows; k++) {
        struct flow *f = &m->flow[(first + k) % m->n_flows], *g;
        left |= f->done < f->total;
        if (f->of->kind == TC_FLOW_RECV || !may_go(m, f)) continue;
        if (f->of->kind >= TC_FLOW_SUM) work(w, coord, f), moved = true;
        else if ((g = mate_of(w, coord, f)) != NULL) alike &= !answers_early(m, f) && send(w, coord, f, g), moved = true;
      }
    }
  }
  return !left && alike;
}

/* ---- what they have then ------------------------------------------------------------------ */

static int owner_of(const struct world *w, int64_t i)
{
  int c = 0;
  while (start_of(w, c + 1) <= i) c++;
  return c;
}

static uint32_t sum_of(const struct world *w, int64_t i)
{
  uint32_t sum = 0;
  for (int c = 0; c < w->size; c++) sum = plus(sum, value(c, i));
  return sum;
}

/* What coordinate `coord` should have of element i; false: nothing. */
static bool wanted(const struct world *w, int coord, int64_t i, uint32_t *want, uint32_t *got)
{
  const struct member *m = &w->m[coord];
  const bool mine = owner_of(w, i) == coord, root = coord == w->root;
  *got = m->dst[i];
  switch (w->coll) {
  case TC_ALL_REDUCE: *want = sum_of(w, i); return true;
  case TC_REDUCE: *want = sum_of(w, i); return root;
  case TC_REDUCE_SCATTER: *want = sum_of(w, i), *got = m->own[i]; return mine;
  case TC_ALL_GATHER: *want = value(owner_of(w, i), i); return true;
  case TC_GATHER: *want = value(owner_of(w, i), i); return root;
  case TC_SCATTER: *want = value(w->root, i), *got = m->own[i]; return mine;
  case TC_BROADCAST: *want = value(w->root, i); return !root;
  case TC_SEND: *want = value(0, i); return root;
  case TC_ALL_TO_ALL: *want = value(owner_of(w, i), coord * w->block + i % w->block); return true;
  default: return false;
  }
}

static int64_t wrong_elements(const struct world *w)
{
  int64_t wrong = 0;
  uint32_t want, got;
  for (int c = 0; c < w->size; c++)
    for (int64_t i = 0; i < w->count; i++)
      if (wanted(w, c, i, &want, &got)) wrong += want != got;
  return wrong;
}

/* Each round sends what there is to the member so far before: of the last one what it lacks. */
static int64_t doubling_formula(const struct world *w, int coord)
{
  int64_t elems = 0;
  if (w->coll == TC_ALL_REDUCE) return w->count * (w->size - 1);
  for (int have = 1; have < w->size && w->coll == TC_ALL_GATHER; have *= 2)
    for (int i = 0; i < have && i < w->size - have; i++) {
      const int block = (coord + i) % w->size;
      elems += start_of(w, block + 1) - start_of(w, block);
    }
  return elems;
}

/* A member with number n from the root on has a child for each power of two below its lowest bit. */
static int64_t tree_formula(const struct world *w, int coord)
{
  const bool rooted = w->coll == TC_BROADCAST || w->coll == TC_REDUCE;
  const int n = rooted ? (coord - w->root + w->size) % w->size : coord;
  int children = 0, all = 1;                     /* all: that hang on it */
  for (int far = 1; far < w->size && !(n & far); far *= 2) children += n + far < w->size, all = TC_MIN(2 * far, w->size - n);
  const int64_t down = children * w->count, up = n ? all * w->count : 0;
  int64_t own = 0;
  for (int i = 0; i < all && n; i++) {
    const int block = (coord + i) % w->size;
    own += start_of(w, block + 1) - start_of(w, block);
  }
  switch (w->coll) {
  case TC_BROADCAST: return down;
  case TC_REDUCE: return up;
  case TC_ALL_REDUCE: return up + down;
  case TC_ALL_GATHER: return own + down;
  default: return 0;
  }
}

static int64_t blocks_from(const struct world *w, int coord, int n)
{
  int64_t elems = 0;
  for (int i = 0; i < n; i++) {
    const int block = (coord + i) % w->size;
    elems += start_of(w, block + 1) - start_of(w, block);
  }
  return elems;
}

/* To each child what hangs on it; then its block to all but the root, of many members as by doubling. */
static int64_t scattered_formula(const struct world *w, int coord)
{
  const int n = (coord - w->root + w->size) % w->size;
  int64_t elems = 0;
  for (int far = 1; far < w->size && !(n & far); far *= 2)
    if (n + far < w->size) elems += blocks_from(w, (coord + far) % w->size, TC_MIN(far, w->size - n - far));
  if (w->size <= 32) return elems + blocks_from(w, coord, 1) * (n ? w->size - 2 : w->size - 1);
  for (int have = 1; have < w->size; have *= 2)
    if (n != have) elems += blocks_from(w, coord, TC_MIN(have, w->size - have));
  return elems;
}

/* What a member sends in elements, by the formula of its algorithm. */
static int64_t formula(const struct world *w, int algorithm, int coord)
{
  if (algorithm == TC_ALGORITHM_DOUBLING) return doubling_formula(w, coord);
  if (algorithm == TC_ALGORITHM_TREE) return tree_formula(w, coord);
  if (algorithm == TC_ALGORITHM_SCATTERED) return scattered_formula(w, coord);
  const int64_t own = start_of(w, coord + 1) - start_of(w, coord), others = w->size - 1;
  const bool root = coord == w->root;
  if (w->size == 1) return 0;
  switch (w->coll) {
  case TC_ALL_REDUCE: return w->count - own + own * others;
  case TC_REDUCE_SCATTER: case TC_ALL_TO_ALL: return w->count - own;
  case TC_ALL_GATHER: return own * others;
  case TC_BROADCAST: return root ? w->count * others : 0;
  case TC_REDUCE: return root ? 0 : w->count;
  case TC_SCATTER: return root ? w->count - own : 0;
  case TC_GATHER: return root ? 0 : own;
  case TC_SEND: return coord == 0 ? w->count : 0;
  default: return 0;
  }
}

static int64_t wrong_bytes(const struct world *w, int algorithm)
{
  int64_t wrong = 0;
  for (int c = 0; c < w->size; c++) {
    const struct tc_part part = { .count = w->count, .block = w->block };
    const struct tc_coll_args a = { .coll = coll_of(w, c), .algorithm = algorithm, .dtype = TC_BF16,
                                    .n_parts = 1, .parts = &part,
                                    .root = w->coll == TC_SEND && c ? 0 : w->root };
    if (takes_part(w, c)) wrong += tc_coll_bytes(&a, w->size, c) != 2 * formula(w, algorithm, c);
  }
  return wrong;
}

/* Simulates one call. False: something was wrong, which is printed. */
static bool one(int algorithm, int coll, int size, int root, int64_t count, int64_t block, bool in_place)
{
  struct world w = { coll, size, root, count, block, calloc((size_t)size, sizeof *w.m) };
  for (int c = 0; c < size; c++) begin_member(&w, c, algorithm, in_place);
  const bool ends = run(&w);
  const int64_t wrong = wrong_elements(&w), bytes = wrong_bytes(&w, algorithm);
  for (int c = 0; c < size; c++) end_member(&w.m[c], size);
  free(w.m);
  if (ends && !wrong && !bytes) return true;
  printf("# %s by %s, %d members, root %d, %lld elements in blocks of %lld%s: %s, %lld elements wrong, bytes of %lld\n",
       tc_coll_name[coll], tc_algorithm_name[algorithm], size, root, (long long)count, (long long)block,
       in_place ? ", in place" : "", ends ? "ends" : "does not end", (long long)wrong, (long long)bytes);
  return false;
}

/* Elements and blocks of every kind: none, fewer than members, a last block that is short, long, or empty. */
static int all_shapes(int algorithm, int coll, int size)
{
  int wrong = 0;
  for (int shape = size > 20 ? (int)draw(0, 3) : 0; shape < 7; shape += size > 20 ? 3 : 1) {
    const int64_t each = draw(1, 8), rest = draw(0, each);
    const int64_t block = shape == 1 ? 1 : each;
    int64_t count = shape == 0 ? 0 : shape == 1 ? draw(1, size) : shape == 2 ? size * each : shape == 3 ? size * each - rest
                  : shape == 4 ? size * each + rest : shape == 5 ? draw(1, each * size) : 1;
    if (coll == TC_ALL_TO_ALL) count = size * block;
    const int root = coll == TC_SEND ? (int)draw(1, size - 1) : (int)draw(0, size - 1);
    wrong += !one(algorithm, coll, size, root, count, block, draw(0, 1) == 1);
  }
  return wrong;
}

int main(int argc, char **argv)
{
  const int most = begin_cases(argc, argv, MOST);
  for (int a = TC_ALGORITHM_AUTO + 1; a < TC_ALGORITHMS; a++)
    for (int coll = TC_FIRST_COLL; coll < TC_COLLS; coll++) {
      int wrong = 0;
      if (!tc_algorithm_does(a, coll) || coll == TC_RECV) continue;
      for (int size = coll == TC_SEND ? 2 : 1; size <= most; size++) wrong += all_shapes(a, coll, size);
      is_int(wrong, 0, "%s by %s: 1 to %d members, 7 shapes of each, of many some", tc_coll_name[coll], tc_algorithm_name[a],
             most);
    }
  return done_testing();
}
