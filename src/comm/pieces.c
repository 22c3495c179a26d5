/* pieces.c - the flows of a call (coll/flow.h) as rows of pieces, where these are in memory, and sums.
 *
 * Invariants:
 *  - both ends divide blocks into the same pieces (coll/pieces_size.c);
 *  - staging is at most SLOTS pieces for each term of a sum and for each block of which partial sums wait to be sent, and at
 *    most 16 MiB except for very large groups; and, by some algorithms, all members' whole contributions or the
 *    array once more, of at most 256 MiB; it grows as calls need and is reused. */
#include <stdlib.h>
#include <string.h>

#include "src/coll/selection.h"
#include "src/comm/p2p.h"

/* ---- blocks and pieces ----------------------------------------------------------- */

/* The array that has a flow's blocks; *elems: of a piece. */
static const struct tc_part *array_of(const struct p2p *x, int at, int *n_parts, int64_t *elems)
{
  const bool wholes = at == TC_AT_WHOLES;
  *n_parts = wholes ? 1 : x->a->n_parts;
  *elems = wholes ? x->size.whole_bytes : x->size.elems;
  return wholes ? &x->wholes : x->a->parts;
}

static int turns(const struct walk *w) { return w->of->step ? w->of->n : 2; }

static void block_range(const struct p2p *x, const struct tc_part *p, const struct walk *w, int turn, int64_t *lo, int64_t *hi)
{
  tc_flow_range(w->of, w->first, turn, p, &x->m, lo, hi);
}

/* The i-th piece of a block in a turn; an empty one: it has no such piece. */
static struct piece piece_of_block(const struct p2p *x, const struct walk *w, int turn, int64_t i)
{
  int n;
  int64_t lo, hi, elems;
  const struct tc_part *part = array_of(x, w->at, &n, &elems);
  for (int k = 0; k < n; k++) {
    block_range(x, &part[k], w, turn, &lo, &hi);
    const int64_t pieces = tc_ceil_div(TC_MAX(hi - lo, 0), elems);
    if (i < pieces) return (struct piece){ k, turn, lo + i * elems, i * elems, TC_MIN(elems, hi - lo - i * elems), w->round };
    i -= pieces;
  }
  return (struct piece) { -1, turn, 0, 0, 0, 0 };
}

/* Goes on until there is a piece; stays where it is if no turn has one any more. */
static void find_turn(const struct p2p *x, struct walk *w)
{
  const struct walk was = *w;
  for (int tried = 0; tried < w->of->n; tried++) {
    w->next = piece_of_block(x, w, w->turn, w->round);
    if (w->next.n > 0) return;
    if (++w->turn == w->of->n) w->turn = 0, w->round++;
  }
  *w = was;
  w->next.part = -1, w->next.n = 0;
}

static struct piece next_in_turns(const struct p2p *x, struct walk *w)
{
  const struct piece p = w->next;
  if (++w->turn == w->of->n) w->turn = 0, w->round++;
  find_turn(x, w);
  return p;
}

struct piece tc_p2p_piece(const struct p2p *x, struct walk *w)
{
  int n;
  int64_t lo, hi, elems;
  const struct tc_part *part = array_of(x, w->at, &n, &elems);
  if (w->of->step) return next_in_turns(x, w);
  for (; w->part < n; w->part += w->turn, w->turn = !w->turn, w->done = 0) {
    block_range(x, &part[w->part], w, w->turn, &lo, &hi);
    const int64_t left = hi - lo - w->done;
    if (left <= 0) continue;
    struct piece p = { w->part, 0, lo + w->done, w->done, TC_MIN(left, elems), w->round++ };
    w->done += p.n;
    return p;
  }
  return (struct piece) { -1, 0, 0, 0, 0, w->round++ };
}

static int64_t count_pieces(const struct p2p *x, const struct walk *w)
{
  int parts;
  int64_t elems;
  const struct tc_part *part = array_of(x, w->at, &parts, &elems);
  return tc_flow_pieces(w->of, w->first, part, parts, elems, &x->m);
}

/* The elements of a flow's largest piece. */
static int64_t most_elems(const struct p2p *x, const struct walk *w)
{
  int64_t most = 0, lo, hi;
  for (int i = 0; i < x->a->n_parts; i++)
    for (int turn = 0; turn < turns(w); turn++) {
      block_range(x, &x->a->parts[i], w, turn, &lo, &hi);
      most = TC_MAX(most, TC_MIN(hi - lo, x->size.elems));
    }
  return most;
}

/* ---- where they are ---------------------------------------------------------------- */

/* The address of a piece in src, dst, the contributions or the array in the sums' type. */
static char *piece_at(const struct p2p *x, const struct piece *p, int at)
{
  if (p->part < 0) return NULL;
  if (at == TC_AT_WHOLES) return (char *)x->wholes.dst + p->first;
  if (at == TC_AT_WIDE) {
    int64_t before = 0;
    for (int i = 0; i < p->part; i++) before += x->a->parts[i].count;
    return x->stage + x->wide_at + (before + p->first) * x->size.wide_bytes;
  }
  const struct tc_part *part = &x->a->parts[p->part];
  char *base = at == TC_AT_SRC || at == TC_AT_OWN_SRC ? (char *)(uintptr_t)part->src : part->dst;
  return base + (at == TC_AT_OWN_SRC || at == TC_AT_OWN_DST ? p->at : p->first) * x->size.elem_bytes;
}

/* A piece of the array in coordinate c's contribution. */
static char *whole_at(const struct p2p *x, const struct piece *p, int c)
{
  char *at = (char *)x->wholes.dst + c * x->wholes.block;
  for (int i = 0; i < p->part; i++) at += x->a->parts[i].count * x->size.elem_bytes;
  return at + p->first * x->size.elem_bytes;
}

/* The slot of a term's i-th piece. */
static char *term_at(const struct p2p *x, const struct flow *f, int64_t i)
{
  const struct flow *sum = f->after;
  return x->stage + sum->stage + ((i % SLOTS) * sum->n_terms + f->row) * sum->slot_bytes;
}

/* The slot of the partial sum that is piece `round` of a turn's block; these are behind the sum's terms. */
static char *partial_at(const struct p2p *x, const struct flow *sum, int turn, int64_t round)
{
  return x->stage + sum->stage + ((int64_t)SLOTS * (sum->n_terms + turn) + round % SLOTS) * sum->slot_bytes;
}

char *tc_p2p_buffer(const struct p2p *x, const struct flow *f, const struct piece *p, int64_t i, int64_t *bytes)
{
  const int at = f->of->at;
  *bytes = p->n * (at == TC_AT_WHOLES ? 1 : f->of->wide ? x->size.wide_bytes : x->size.elem_bytes);
  if (at == TC_AT_TERMS) return term_at(x, f, i);
  if (at == TC_AT_PARTIAL) return partial_at(x, f->after, f->of->turn, i);
  return piece_at(x, p, at);
}

/* ---- setting a call up ----------------------------------------------------------- */

/* An entry's flow with its i-th peer. */
static struct flow new_flow(const struct p2p *x, const struct tc_flow *of, int i)
{
  struct flow f = { .of = of, .peer = (of->peer + i) % x->m.size };
  /* A send matches its peer's receive: both have the tag of TC_SEND. */
  f.tag = TC_PHASES * ((x->a->coll == TC_RECV ? TC_SEND : x->a->coll) - TC_FIRST_COLL) + of->phase;
  f.walk = (struct walk){ .of = of, .at = of->kind == TC_FLOW_SUM ? of->to : of->at,
                          .first = (of->first + i * of->shift) % x->m.size };
  if (of->step) find_turn(x, &f.walk);
  f.total = TC_MAX(count_pieces(x, &f.walk), of->always ? 1 : 0);
  return f;
}

static void add_flow(struct p2p *x, int k, int i)
{
  const struct tc_flow *of = &x->list.flow[k];
  struct flow *f = &x->flow[x->n_flows++];
  TC_ASSERT(x->n_flows <= x->cap_flows && (of->when < TC_AFTER_FLOW || of->when == TC_AFTER_EACH || x->entry[of->after]));
  *f = new_flow(x, of, i);
  f->after = of->when < TC_AFTER_FLOW || of->when == TC_AFTER_EACH ? NULL : x->entry[of->after];
  x->entry[k] = f;
}

/* Sums first, then peer by peer. */
static void make_flows(struct p2p *x)
{
  int most = 0, n = 0;
  for (int k = 0; k < x->list.n; k++) {
    const struct tc_flow *of = &x->list.flow[k];
    if (of->kind < TC_FLOW_SUM) most = TC_MAX(most, of->peers);
    n += of->peers;
  }
  if (n > x->cap_flows) {
    free(x->flow);
    x->flow = tc_malloc((size_t)n * sizeof *x->flow);
    x->cap_flows = n;
  }
  if (x->list.n > x->cap_entries) {
    free(x->entry);
    x->entry = tc_malloc((size_t)x->list.n * sizeof *x->entry);
    x->cap_entries = x->list.n;
  }
  for (int k = 0; k < x->list.n; k++) x->entry[k] = NULL;
  x->n_flows = 0;
  for (int k = 0; k < x->list.n; k++)
    if (x->list.flow[k].kind == TC_FLOW_SUM) add_flow(x, k, 0);
  for (int i = 0; i < most; i++)
    for (int k = 0; k < x->list.n; k++)
      if (x->list.flow[k].kind < TC_FLOW_SUM && i < x->list.flow[k].peers) add_flow(x, k, i);
}

static bool is_term(const struct flow *f) { return f->of->kind == TC_FLOW_RECV && f->of->at == TC_AT_TERMS; }
static bool takes_partial(const struct flow *f) { return f->of->at == TC_AT_PARTIAL; }

static int by_peer(const void *a, const void *b)
{
  const int x = (*(struct flow *const *)a)->peer, y = (*(struct flow *const *)b)->peer;
  return (x > y) - (x < y);
}

/* What each sum is made of, and who takes its partial sums. */
static void find_terms(struct p2p *x)
{
  int n = 0;
  for (int i = 0; i < x->n_flows; i++) {
    struct flow *f = &x->flow[i];
    if (is_term(f)) x->entry[f->after->of - x->list.flow]->n_terms++;
    n += is_term(f) + (f->of->kind == TC_FLOW_SUM && f->of->to == TC_AT_PARTIAL ? tc_flow_turns(f->of) : 0);
  }
  if (n > x->cap_refs) {
    free(x->refs);
    x->refs = tc_malloc((size_t)n * sizeof *x->refs);
    x->cap_refs = n;
  }
  for (int i = 0; i < n; i++) x->refs[i] = NULL;
  struct flow **refs = x->refs;
  for (int i = 0; i < x->n_flows && x->flow[i].of->kind == TC_FLOW_SUM; i++) {
    struct flow *sum = &x->flow[i];
    sum->terms = refs, refs += sum->n_terms;
    sum->takers = refs, refs += sum->of->to == TC_AT_PARTIAL ? tc_flow_turns(sum->of) : 0;
    sum->n_terms = 0;
  }
  for (int i = 0; i < x->n_flows; i++) {
    struct flow *f = &x->flow[i], *sum = f->after ? x->entry[f->after->of - x->list.flow] : NULL;
    if (is_term(f)) sum->terms[sum->n_terms++] = f;
    if (takes_partial(f)) sum->takers[f->of->turn] = f;
  }
  for (int i = 0; i < x->n_flows && x->flow[i].of->kind == TC_FLOW_SUM; i++) {
    struct flow *sum = &x->flow[i];
    if (sum->n_terms) qsort(sum->terms, (size_t)sum->n_terms, sizeof(struct flow *), by_peer);
    for (int k = 0; k < sum->n_terms; k++) sum->terms[k]->row = k;
  }
}

static int64_t take(int64_t *bytes, int64_t more)
{
  const int64_t at = *bytes;
  *bytes += tc_round_up(more, 64);
  return at;
}

/* Memory of the terms and partial sums, of whole contributions, and of the array in the sums' type. */
static void stage(struct p2p *x)
{
  int64_t all = 0, bytes = 0;
  bool wide = false;
  for (int i = 0; i < x->a->n_parts; i++) all += x->a->parts[i].count;
  for (int i = 0; i < x->n_flows; i++) {
    struct flow *f = &x->flow[i];
    if (f->of->kind != TC_FLOW_SUM) continue;
    const int slots = f->n_terms + (f->of->to == TC_AT_PARTIAL ? tc_flow_turns(f->of) : 0);
    f->slot_bytes = tc_round_up(most_elems(x, &f->walk) * x->size.most_bytes, 64);
    f->stage = take(&bytes, SLOTS * slots * f->slot_bytes);
  }
  for (int k = 0; k < x->list.n; k++) wide |= x->list.flow[k].kind >= TC_FLOW_SUM && x->list.flow[k].to == TC_AT_WIDE;
  if (wide) x->wide_at = take(&bytes, all * x->size.wide_bytes);
  if (x->wholes.block) x->wholes_at = take(&bytes, x->wholes.count);
  if ((size_t)bytes > x->stage_bytes) {
    free(x->stage);
    x->stage = tc_malloc((size_t)bytes);
    x->stage_bytes = (size_t)bytes;
  }
  if (x->wholes.block) x->wholes.src = x->wholes.dst = x->stage + x->wholes_at;
}

/* The whole contributions of all members, as an array of bytes. */
static void size_wholes(struct p2p *x)
{
  int64_t each = 0;
  bool any = false;
  for (int k = 0; k < x->list.n; k++) any |= x->list.flow[k].to == TC_AT_WHOLES;
  for (int i = 0; i < x->a->n_parts && any; i++) each += x->a->parts[i].count * x->size.elem_bytes;
  x->wholes = (struct tc_part){ .count = each * x->m.size, .block = each };
}

static void copy_blocks(struct p2p *x, const struct tc_flow *of)
{
  const int first = of->to == TC_AT_WHOLES ? 0 : of->first, n = of->to == TC_AT_WHOLES ? x->m.size : of->n;
  for (int i = 0; i < x->a->n_parts; i++) {
    const struct tc_part *part = &x->a->parts[i];
    struct piece p = { .part = i, .first = tc_block_start(part->count, part->block, first, x->m.size) };
    p.n = tc_block_start(part->count, part->block, TC_MIN(first + n, x->m.size), x->m.size) - p.first;
    char *src = piece_at(x, &p, of->at), *dst = of->to == TC_AT_WHOLES ? whole_at(x, &p, x->m.coord) : piece_at(x, &p, of->to);
    x->term[0] = src;
    if (p.n > 0 && of->to == TC_AT_WIDE) tc_reduce_terms(x->a->dtype, tc_sum_dtype(x->a->dtype), dst, x->term, 1, p.n, x->a->red);
    else if (p.n > 0 && src != dst) memcpy(dst, src, (size_t)(p.n * x->size.elem_bytes));
  }
}

void tc_p2p_set_up(struct p2p *x, const struct tc_coll_args *a)
{
  const int algorithm = tc_algorithm_of(a, &x->m);
  x->a = a;
  x->sent.bytes = x->sent.messages = 0;
  memset(x->arrived, 0, (size_t)x->m.size * sizeof *x->arrived);
  tc_flows_of(&x->list, algorithm, a->coll, &x->m, a->root);
  x->size = tc_pieces_of(a, algorithm, &x->list, &x->m);
  size_wholes(x);
  make_flows(x);
  find_terms(x);
  stage(x);
  for (int k = 0; k < x->list.n; k++)
    if (x->list.flow[k].kind == TC_FLOW_COPY) copy_blocks(x, &x->list.flow[k]);
}

void tc_p2p_done(struct p2p *x)
{
  tc_flows_done(&x->list);
  TC_FREE(x->flow, x->entry, x->refs, x->stage);
}

/* ---- sums -------------------------------------------------------------------------- */

/* This member's own term, a piece of src, of the array in the sums' type, or of an earlier sum. */
static const char *own_term(const struct p2p *x, const struct flow *sum, const struct piece *p)
{
  if (sum->of->at == TC_AT_PARTIAL) return partial_at(x, sum->after, sum->of->turn, sum->done);
  return piece_at(x, p, sum->of->at);
}

void tc_p2p_sum(struct p2p *x, struct flow *sum)
{
  const struct tc_flow *of = sum->of;
  const int own = x->a->dtype, wide = tc_sum_dtype(own);
  const struct piece p = tc_p2p_piece(x, &sum->walk);
  int n = 0;
  if (p.n > 0) {
    char *out = of->to == TC_AT_PARTIAL ? partial_at(x, sum, p.turn, p.round) : piece_at(x, &p, of->to);
    for (int i = 0; i < x->m.size && of->at == TC_AT_WHOLES; i++) x->term[n++] = whole_at(x, &p, i);
    for (int i = 0; i <= sum->n_terms && of->at != TC_AT_WHOLES; i++) {
      const bool mine = n == i && (i == sum->n_terms || sum->terms[i]->peer > x->m.coord);
      if (mine) x->term[n++] = own_term(x, sum, &p);
      if (i < sum->n_terms) x->term[n++] = term_at(x, sum->terms[i], sum->done);
    }
    const int from = of->at == TC_AT_WIDE || of->at == TC_AT_PARTIAL ? wide : own;
    const int to = of->to == TC_AT_WIDE || of->to == TC_AT_PARTIAL ? wide : own;
    if (n > 1 || x->term[0] != out) tc_reduce_terms(from, to, out, x->term, n, p.n, x->a->red);
  }
  sum->done++;
}
