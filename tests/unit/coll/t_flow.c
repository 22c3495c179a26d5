/* t_flow.c - the flows of every algorithm (flow.h), with all members at once: each block arrives, sums have the order that
 * is said, nothing waits for ever though no message is buffered, in place as well, and bytes are as formulas say.
 *
 * Members are simulated: a piece moves when its sender and its receiver have both come to it, and which of those that may
 * move does so first is drawn. */
#include "src/coll/selection.h"
#include "tests/unit/coll/flow_model.h"
#include "tests/unit/random.h"
#include "tests/unit/tap.h"

enum { PIECE = 3, SLOTS = 2, FEW = 9 };

/* ---- pieces ------------------------------------------------------------------------------ */

/* Element i of the array, where a flow reads or writes it: past its end it begins again. */
static uint32_t *place(const struct world *w, struct member *m, const struct flow *f, int at, int64_t i)
{
  if (at == TC_AT_WHOLES) return &m->whole[i / w->count % w->size][i % w->count];
  if (i >= w->count) i -= w->count;
  switch (at) {
  case TC_AT_SRC: return &m->src[i];
  case TC_AT_DST: return &m->dst[i];
  case TC_AT_TERMS: return &f->term[i];
  case TC_AT_WIDE: return &m->wide[i];
  case TC_AT_PARTIAL: return &m->partial[i];
  default: return &m->own[i];                    /* both blocks of its own, of which a call has one */
  }
}

/* f brings what the sum adds. */
static bool is_term(const struct member *m, const struct flow *f, const struct flow *sum)
{
  return f->term && &m->list.flow[f->of->after] == sum->of;
}
static bool is_whole(const struct flow *f, const struct flow *sum)
{
  return sum->of->kind == TC_FLOW_SUM && sum->of->at == TC_AT_WHOLES && f->of->kind == TC_FLOW_RECV && f->of->at == TC_AT_WHOLES;
}

/* Sum f has what its next piece needs, and a partial sum has a place. */
static bool may_add(const struct member *m, const struct flow *f)
{
  const struct piece *p = &f->piece[f->done];
  for (int i = 0; i < m->n_flows; i++) {
    const struct flow *g = &m->flow[i];
    if (is_term(m, g, f) && g->done <= f->done) return false;
    if (is_whole(g, f) && g->done < g->total) return false;
    const bool takes = g->of->at == TC_AT_PARTIAL && g->gate >= 0 && &m->flow[g->gate] == f && g->of->turn == p->turn;
    if (takes && p->round >= g->done + SLOTS) return false;
  }
  return true;
}

/* The sum has made that piece of that turn's block. */
static bool has_made(const struct flow *sum, int turn, int64_t round)
{
  if (sum->done == sum->total) return true;
  const struct piece *p = &sum->piece[sum->done];
  return round < p->round || (round == p->round && turn < p->turn);
}

static bool may_go(const struct member *m, const struct flow *f)
{
  if (f->done == f->total || (f->of->kind == TC_FLOW_SUM && !may_add(m, f))) return false;
  const struct flow *gate = f->gate < 0 ? NULL : &m->flow[f->gate];
  const struct piece *p = &f->piece[f->done];
  switch (f->of->when) {
  case TC_AFTER_FIRST:
    for (int i = 0; i < m->n_flows; i++)
      if (m->flow[i].of < &m->list.flow[f->of->after] && m->flow[i].done < m->flow[i].total) return false;
    return true;
  case TC_AFTER_FLOW: return gate->done == gate->total;
  case TC_AFTER_PIECE: return f->done < gate->done;
  case TC_AFTER_TURN: return has_made(gate, f->of->turn, f->done);
  case TC_AFTER_EACH: {
    const int each = m->last[f->of->after + p->turn];
    return each < 0 || m->flow[each].of->kind == TC_FLOW_COPY || p->round < m->flow[each].done;
  }
  case TC_IN_SLOTS: return f->done < gate->done + SLOTS;
  default: return true;
  }
}

/* The terms of element i of a sum, in the order of coordinates: how many. */
static int terms_of(const struct world *w, int coord, const struct flow *f, int64_t i, uint32_t term[MOST])
{
  struct member *m = &w->m[coord];
  uint32_t of[MOST];
  bool has[MOST] = { false };
  int n = 0;
  for (int c = 0; c < w->size && f->of->at == TC_AT_WHOLES; c++) term[n++] = m->whole[c][i];
  if (f->of->at == TC_AT_WHOLES) return n;
  of[coord] = *place(w, m, f, f->of->at, i), has[coord] = true;
  for (int k = 0; k < m->n_flows; k++)
    if (is_term(m, &m->flow[k], f)) of[m->flow[k].peer] = *place(w, m, &m->flow[k], TC_AT_TERMS, i), has[m->flow[k].peer] = true;
  for (int c = 0; c < w->size; c++)
    if (has[c]) term[n++] = of[c];
  return n;
}

/* What a member does by itself. */
static void work(const struct world *w, int coord, struct flow *f)
{
  struct member *m = &w->m[coord];
  uint32_t term[MOST];
  for (int64_t i = f->piece[f->done].first; i < f->piece[f->done].end; i++) {
    const int64_t to = f->of->to == TC_AT_WHOLES ? coord * w->count + i : i;
    const uint32_t x = f->of->kind == TC_FLOW_SUM ? sum_of(term, terms_of(w, coord, f, i, term)) : *place(w, m, f, f->of->at, i);
    *place(w, m, f, f->of->to, to) = x;
  }
  f->done++;
}

/* ---- members ---------------------------------------------------------------------------- */

/* The n-th piece of elements from first to end, or none. */
static bool add_piece(struct flow *f, int64_t first, int64_t end, int64_t n, int turn)
{
  const int64_t at = first + n * PIECE;
  if (at >= end) return false;
  f->piece = realloc(f->piece, (size_t)(f->total + 1) * sizeof *f->piece);
  f->piece[f->total++] = (struct piece){ at, TC_MIN(at + PIECE, end), turn, (int)n };
  return true;
}

static void add_pieces(const struct world *w, struct flow *f, int block)
{
  const struct tc_flow *of = f->of;
  bool more = true;
  if (of->step) {
    for (int64_t n = 0; more; n++) {
      more = false;
      for (int t = 0; t < of->n; t++) {
        const int c = tc_flow_block(of, w->nodes, t);
        if (c >= 0) more |= add_piece(f, start_of(w, c), start_of(w, c + 1), n, t);
      }
    }
    return;
  }
  int64_t first = start_of(w, block), n = tc_blocks_elems(w->count, w->block, w->size, block, of->n);
  if (of->at == TC_AT_WHOLES && of->kind < TC_FLOW_SUM) first = block * w->count, n = of->n * w->count;
  if (of->to == TC_AT_WHOLES) first = 0, n = w->count;
  for (int64_t i = 0; more; i++) more = add_piece(f, first, first + n, i, 0);
}

static void add_flow(const struct world *w, struct member *m, int k, int i)
{
  const struct tc_flow *of = &m->list.flow[k];
  struct flow *f = &m->flow[m->n_flows];
  *f = (struct flow){ .of = of, .peer = (of->peer + i) % w->size,
                      .gate = of->when < TC_AFTER_FLOW || of->when == TC_AFTER_EACH ? -1 : m->last[of->after] };
  if (of->kind == TC_FLOW_RECV && of->at == TC_AT_TERMS) f->term = calloc((size_t)w->count + 1, sizeof *f->term);
  add_pieces(w, f, (of->first + i * of->shift) % w->size);
  if (f->total == 0) f->piece = calloc(1, sizeof *f->piece);
  if (f->total == 0 && of->always) f->total = 1;
  m->last[k] = m->n_flows++;
}

static int coll_of(const struct world *w, int coord)
{
  return w->coll != TC_SEND ? w->coll : coord == w->root ? TC_RECV : TC_SEND;
}
static bool takes_part(const struct world *w, int coord) { return w->coll != TC_SEND || coord == 0 || coord == w->root; }

/* in_place: src, or the own block, is where coll.h allows it to be. */
static void begin_member(const struct world *w, int coord, bool in_place)
{
  struct member *m = &w->m[coord];
  const size_t bytes = (size_t)(w->count + 1) * sizeof *m->src;
  const bool whole = w->coll == TC_ALL_REDUCE || w->coll == TC_REDUCE;
  memset(m, 0, sizeof *m);
  m->dst = calloc(1, bytes), m->wide = calloc(1, bytes), m->partial = calloc(1, bytes);
  m->src = in_place && whole ? m->dst : calloc(1, bytes);
  m->own = in_place && w->coll == TC_ALL_GATHER ? m->dst : in_place && w->coll == TC_REDUCE_SCATTER ? m->src : calloc(1, bytes);
  for (int64_t i = 0; i < w->count; i++) m->src[i] = value(coord, i);
  for (int64_t i = start_of(w, coord); i < start_of(w, coord + 1); i++) m->own[i] = value(coord, i);
  if (!takes_part(w, coord)) return;
  const struct tc_members seen = seen_by(w, coord);
  tc_flows_of(&m->list, w->algorithm, coll_of(w, coord), &seen, w->coll == TC_SEND && coord ? 0 : w->root);
  int most = 0, n = 0;
  for (int k = 0; k < m->list.n; k++) n += m->list.flow[k].peers, most = TC_MAX(most, m->list.flow[k].peers);
  m->flow = calloc((size_t)n + 1, sizeof *m->flow);
  m->last = malloc((size_t)(m->list.n + 1) * sizeof *m->last);
  for (int k = 0; k < m->list.n; k++)
    for (int i = 0; i < w->size && m->list.flow[k].to == TC_AT_WHOLES; i++) m->whole[i] = calloc(1, bytes);
  for (int k = 0; k < m->list.n; k++) m->last[k] = -1;
  for (int k = 0; k < m->list.n; k++) {
    if (m->list.flow[k].kind < TC_FLOW_SUM) continue;
    add_flow(w, m, k, 0);
    struct flow *f = &m->flow[m->n_flows - 1];
    while (f->of->kind == TC_FLOW_COPY && f->done < f->total) work(w, coord, f);
  }
  for (int i = 0; i < most; i++)
    for (int k = 0; k < m->list.n; k++)
      if (m->list.flow[k].kind < TC_FLOW_SUM && i < m->list.flow[k].peers) add_flow(w, m, k, i);
}

static void end_member(struct member *m, int size)
{
  for (int i = 0; i < m->n_flows; i++) free(m->flow[i].piece), free(m->flow[i].term);
  if (m->own != m->dst && m->own != m->src) free(m->own);
  if (m->src != m->dst) free(m->src);
  free(m->dst), free(m->wide), free(m->partial), free(m->flow), free(m->last);
  for (int i = 0; i < size; i++) free(m->whole[i]);
  tc_flows_done(&m->list);
}

/* The peer's flow for a send; NULL: it is not there yet. */
static struct flow *mate_of(const struct world *w, int coord, const struct flow *f)
{
  struct member *peer = &w->m[f->peer];
  for (int i = 0; i < peer->n_flows; i++) {
    struct flow *g = &peer->flow[i];
    if (g->of->kind == TC_FLOW_RECV && g->peer == coord && g->of->phase == f->of->phase && g->total)
      return g->done == f->done && may_go(peer, g) ? g : NULL;
  }
  return NULL;
}

/* False: the two do not agree on the piece. */
static bool send(const struct world *w, int coord, struct flow *f, struct flow *g)
{
  const struct piece *p = &f->piece[f->done], *q = &g->piece[g->done];
  const bool alike = f->total == g->total && p->end - p->first == q->end - q->first && f->of->wide == g->of->wide &&
                     (p->first == q->first || w->coll == TC_ALL_TO_ALL);
  for (int64_t i = 0; i < TC_MIN(p->end - p->first, q->end - q->first); i++)
    *place(w, &w->m[f->peer], g, g->of->at, q->first + i) = *place(w, &w->m[coord], f, f->of->at, p->first + i);
  f->done++, g->done++;
  return alike;
}

/* Flow g waits, itself or through others, until f is done, or its piece. */
static bool comes_after(const struct member *m, const struct flow *g, const struct flow *f)
{
  if (g->of->when == TC_AFTER_FIRST) return f->of < &m->list.flow[g->of->after];
  for (int t = 0; t < tc_flow_turns(g->of) && g->of->when == TC_AFTER_EACH; t++)
    if (m->last[g->of->after + t] >= 0 && &m->flow[m->last[g->of->after + t]] == f) return true;
  return g->gate >= 0 && (&m->flow[g->gate] == f || comes_after(m, &m->flow[g->gate], f));
}

/* Pieces that may be received where something is still to be sent or added, by a flow that does not come after that: a link
 * may fill the memory of a receive at any time. */
static int64_t hazards(const struct world *w, struct member *m)
{
  int64_t n = 0;
  for (int i = 0; i < m->n_flows; i++)
    for (int k = 0; k < m->n_flows; k++) {
      const struct flow *f = &m->flow[i], *g = &m->flow[k];
      if (f->of->kind != TC_FLOW_RECV || (g->of->kind != TC_FLOW_SEND && g->of->kind != TC_FLOW_SUM) || !may_go(m, f)) continue;
      if (comes_after(m, g, f) || is_term(m, f, g) || is_whole(f, g)) continue;
      const struct piece *p = &f->piece[f->done];
      for (int64_t j = g->done; j < g->total; j++) {
        const int64_t from = TC_MAX(p->first, g->piece[j].first), to = TC_MIN(p->end, g->piece[j].end);
        n += from < to && place(w, m, f, f->of->at, from) == place(w, m, g, g->of->at, from);
      }
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
        if (f->done == f->total) continue;
        left = true;
        if (f->of->kind == TC_FLOW_RECV || !may_go(m, f)) continue;
        if (f->of->kind >= TC_FLOW_SUM) work(w, coord, f), moved = true;
        else if ((g = mate_of(w, coord, f)) != NULL) alike &= !answers_early(m, f) && send(w, coord, f, g), moved = true;
      }
    }
  }
  return !left && alike;
}

static int64_t wrong_bytes(const struct world *w)
{
  int64_t wrong = 0;
  for (int c = 0; c < w->size; c++) {
    const struct tc_part part = { .count = w->count, .block = w->block };
    const struct tc_members seen = seen_by(w, c);
    const struct tc_coll_args a = { .coll = coll_of(w, c), .algorithm = w->algorithm, .dtype = TC_BF16,
                                    .n_parts = 1, .parts = &part,
                                    .root = w->coll == TC_SEND && c ? 0 : w->root };
    if (takes_part(w, c)) wrong += tc_coll_bytes(&a, &seen) != formula(w, c);
  }
  return wrong;
}

/* Simulates one call. False: something was wrong, which is printed. */
static bool one(struct world *w, bool in_place)
{
  w->m = calloc((size_t)w->size, sizeof *w->m);
  for (int c = 0; c < w->size; c++) begin_member(w, c, in_place);
  const bool ends = run(w);
  const int64_t wrong = wrong_elements(w), bytes = wrong_bytes(w);
  for (int c = 0; c < w->size; c++) end_member(&w->m[c], w->size);
  free(w->m);
  if (ends && !wrong && !bytes) return true;
  printf("# %s by %s, %d members on %d nodes, root %d, %lld elements in blocks of %lld%s: %s, %lld elements wrong, bytes of %lld\n",
       tc_coll_name[w->coll], tc_algorithm_name[w->algorithm], w->size, w->nodes ? w->nodes->n : 1, w->root,
       (long long)w->count, (long long)w->block, in_place ? ", in place" : "", ends ? "ends" : "does not end",
       (long long)wrong, (long long)bytes);
  return false;
}

/* Nodes of equal size, of sizes of their own, or with members in any order. */
static struct tc_members draw_nodes(int size)
{
  int32_t node[MOST];
  const int kind = (int)draw(0, 2), n = (int)draw(2, TC_MAX(2, TC_MIN(size - 1, 6)));
  for (int i = 0, at = 0; i < size; i++) {
    if (kind == 1 && i > 0 && draw(0, 2) == 0) at++;
    node[i] = kind == 0 ? (int32_t)(i / tc_ceil_div(size, n)) : kind == 1 ? at : (int32_t)draw(0, n - 1);
  }
  return tc_members_on(node, size, 0, true);
}

/* Elements and blocks of every kind: none, fewer than members, a last block that is short, long, or empty. */
static int all_shapes(int algorithm, int coll, int size)
{
  int wrong = 0;
  for (int shape = size > 20 ? (int)draw(0, 6) : 0; shape < 7; shape += size > 20 ? 7 : 1) {
    const int64_t each = draw(1, 8), rest = draw(0, each);
    const int64_t block = shape == 1 ? 1 : each;
    int64_t count = shape == 0 ? 0 : shape == 1 ? draw(1, size) : shape == 2 ? size * each : shape == 3 ? size * each - rest
                  : shape == 4 ? size * each + rest : shape == 5 ? draw(1, each * size) : 1;
    if (coll == TC_ALL_TO_ALL) count = size * block;
    const int root = coll == TC_SEND ? (int)draw(1, size - 1) : (int)draw(0, size - 1);
    struct tc_members m = draw_nodes(size);
    struct world w = { coll, size, root, count, block, NULL, m.nodes, algorithm };
    if (tc_algorithm_suits(algorithm, coll, &m)) wrong += !one(&w, draw(0, 1) == 1);
    tc_members_done(&m);
  }
  return wrong;
}

/* With nodes alike, a node sends 2 S (M - 1) / M of an array S in fp32 that M nodes sum up, and half of it to scatter or to
 * gather it. */
static void bytes_leaving_nodes(void)
{
  enum { M = 3, EACH = 4, S = 4 * 12 * 100 };
  const struct tc_part part = { .count = S / 4, .block = S / 4 / (M * EACH) };
  for (int coll = TC_ALL_REDUCE; coll <= TC_ALL_GATHER; coll++) {
    int64_t leave = 0;
    for (int c = EACH; c < 2 * EACH; c++) {
      struct tc_members m = tc_members_even(M * EACH, EACH, c, true);
      struct tc_flows l = { 0 };
      tc_flows_of(&l, TC_ALGORITHM_NODES, coll, &m, 0);
      for (int k = 0; k < l.n; k++)
        if (l.flow[k].kind == TC_FLOW_SEND && l.flow[k].peer / EACH != 1)
          leave += 4 * tc_flow_elems(&l.flow[k], part.count, part.block, &m);
      tc_flows_done(&l);
      tc_members_done(&m);
    }
    is_int(leave, (coll == TC_ALL_REDUCE ? 2 : 1) * S * (M - 1) / M, "%s: bytes that leave a node", tc_coll_name[coll]);
  }
}

/* The most messages that a member sends, and members that it exchanges any with, of a call of so many bytes. */
static void most_messages(int coll, int size, int each, int64_t bytes, int most[2])
{
  const struct tc_part part = { .count = bytes, .block = tc_ceil_div(bytes, size) };
  const struct tc_coll_args a = { .coll = coll, .dtype = TC_U8, .n_parts = coll != TC_BARRIER, .parts = &part };
  struct tc_members m = tc_members_even(size, each, 0, true);
  struct tc_flows l = { 0 };
  bool *met = malloc((size_t)size);
  most[0] = most[1] = 0;
  for (m.coord = 0; m.coord < size; m.coord++) {
    int sends = 0, peers = 0;
    tc_flows_of(&l, tc_algorithm_of(&a, &m), coll, &m, 0);
    memset(met, 0, (size_t)size);
    for (int k = 0; k < l.n; k++)
      for (int i = 0; i < l.flow[k].peers && l.flow[k].kind <= TC_FLOW_SEND; i++) {
        bool *one = &met[(l.flow[k].peer + i) % size];
        sends += l.flow[k].kind == TC_FLOW_SEND;
        peers += !*one;
        *one = true;
      }
    most[0] = TC_MAX(most[0], sends), most[1] = TC_MAX(most[1], peers);
  }
  free(met);
  tc_flows_done(&l);
  tc_members_done(&m);
}

/* What a step and a start say to all ranks: flags, losses, norms, agreements, texts. No rank sends more than two messages for
 * each doubling of the ranks, or talks to more than as many. Large sums: to its node's ranks and its counterparts. */
static void messages_of_many(void)
{
  static const struct { int coll; int64_t bytes, each; } calls[] = {      /* bytes; more for each member */
    { TC_BARRIER, 0, 0 }, { TC_ALL_REDUCE, 8, 0 }, { TC_ALL_GATHER, 0, 8 }, { TC_ALL_GATHER, 0, 200 }, { TC_BROADCAST, 8, 0 },
    { TC_BROADCAST, 20000, 0 } };
  int most[2];
  for (int size = 64, log = 6; size <= 16384; size *= 4, log += 2) {
    int sends = 0, peers = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
      for (int each = 1; each <= 8; each += 7) {
        most_messages(calls[i].coll, size, each, calls[i].bytes + calls[i].each * size, most);
        sends = TC_MAX(sends, most[0]), peers = TC_MAX(peers, most[1]);
      }
    ok(sends <= 2 * log && peers <= 2 * log, "%d members: at most %d messages of one in a call, with %d others", size, sends,
       peers);
  }
  most_messages(TC_ALL_REDUCE, 1024, 8, INT64_C(1) << 30, most);
  ok(most[0] == 2 * (7 + 127) && most[1] == 7 + 127, "a large sum among 128 nodes x 8: %d messages, with %d others", most[0], most[1]);
}

#ifdef __SANITIZE_ADDRESS__       /* which takes forty times as long */
enum { MEMBERS = 20 };
#else
enum { MEMBERS = MOST };
#endif

int main(int argc, char **argv)
{
  const int most = begin_cases(argc, argv, MEMBERS);
  for (int a = TC_ALGORITHM_AUTO + 1; a < TC_ALGORITHMS; a++)
    for (int coll = TC_FIRST_COLL; coll < TC_COLLS; coll++) {
      int wrong = 0;
      if (!tc_algorithm_does(a, coll) || coll == TC_RECV) continue;
      for (int size = coll == TC_SEND ? 2 : 1; size <= most; size++) wrong += all_shapes(a, coll, size);
      is_int(wrong, 0, "%s by %s: 1 to %d members, 7 shapes of each, of many some", tc_coll_name[coll], tc_algorithm_name[a],
             most);
    }
  bytes_leaving_nodes();
  messages_of_many();
  return done_testing();
}
