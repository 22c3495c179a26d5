/* pieces_size.c - the pieces in which a flow's blocks are sent: how large they are, and how many.
 *
 * Their size follows from what all members know of a call alike: so both ends of a flow divide its blocks in the same way. */
#include "src/coll/selection.h"

enum {
  COPY_PIECE = 4 << 20,           /* bytes of a piece that is not reduced */
  PASSED_PIECES = 4, PASSED_PIECE_MIN = 32 << 10,       /* for each member, of an array that goes through one after the other */
  TERM_PIECE_MAX = 1 << 20, TERM_PIECE_MIN = 16 << 10,     /* of a piece that is reduced */
  TERM_BUDGET = 16 << 20          /* bytes of staging */
};

/* Places of a call for terms and partial sums, at most. */
static int64_t most_slots(const struct tc_flows *l, const struct tc_members *m)
{
  const struct tc_nodes *n = m->nodes;
  bool in_turns = false;
  for (int k = 0; k < l->n; k++) in_turns |= l->flow[k].step > 0;
  if (!in_turns) return TC_SLOTS * TC_MAX(m->size - 1, 1);
  int least = n->most;
  for (int r = 0; r < n->n; r++) least = TC_MIN(least, n->size[r]);
  return TC_SLOTS * (n->most - 1 + n->n * tc_ceil_div(n->most, least) + n->n - 1);
}

struct tc_pieces tc_pieces_of(const struct tc_coll_args *a, int algorithm, const struct tc_flows *l,
                              const struct tc_members *m)
{
  const bool barrier = a->coll == TC_BARRIER;
  const int64_t fair = TERM_BUDGET / most_slots(l, m);
  int64_t bytes = !tc_coll_adds(a->coll) ? COPY_PIECE : TC_MAX(TC_MIN(fair, TERM_PIECE_MAX), TERM_PIECE_MIN), all = 0;
  struct tc_pieces p = { .elem_bytes = barrier ? 1 : (int64_t)tc_dtype_bytes(a->dtype),
                         .wide_bytes = barrier ? 1 : (int64_t)tc_dtype_bytes(tc_sum_dtype(a->dtype)),
                         .whole_bytes = COPY_PIECE };
  for (int i = 0; i < a->n_parts; i++) all += a->parts[i].count * p.elem_bytes;
  if (tc_algorithm_is_pipeline(algorithm)) bytes = TC_MAX(TC_MIN(bytes, all / PASSED_PIECES / m->size), PASSED_PIECE_MIN);
  p.most_bytes = p.elem_bytes;
  for (int k = 0; k < l->n; k++)
    if (l->flow[k].wide) p.most_bytes = p.wide_bytes;
  p.elems = bytes / 64 * 64 / p.most_bytes;
  p.whole = tc_whole_blocks(a->parts, a->n_parts, m->size);
  for (int i = 0; i < a->n_parts; i++) p.of_whole += tc_ceil_div(a->parts[i].block, p.elems);
  return p;
}

/* ---- their number ------------------------------------------------------------------------------- */

void tc_flow_range(const struct tc_flow *f, int first, int turn, const struct tc_part *part, const struct tc_members *m,
                   int64_t *lo, int64_t *hi)
{
  int n = f->n, past = turn;
  if (f->step) {
    first = tc_flow_block(f, m->nodes, turn);
    n = first >= 0;
    past = 0;
  }
  const int end = first + n, size = m->size;
  *lo = past || n == 0 ? 0 : tc_block_start(part->count, part->block, first, size);
  *hi = n == 0 ? 0 : tc_block_start(part->count, part->block, past ? TC_MAX(end - size, 0) : TC_MIN(end, size), size);
}

static int64_t pieces_in(const struct tc_flow *f, int first, int turn, const struct tc_part *part, int n, int64_t elems,
                         const struct tc_members *m)
{
  int64_t pieces = 0, lo, hi;
  for (int i = 0; i < n; i++) {
    tc_flow_range(f, first, turn, &part[i], m, &lo, &hi);
    pieces += tc_ceil_div(TC_MAX(hi - lo, 0), elems);
  }
  return pieces;
}

/* Blocks in turns are nearly all whole, and alike. */
int64_t tc_flow_pieces(const struct tc_flow *f, int first, const struct tc_part *part, int n, int64_t elems,
                       const struct tc_members *m)
{
  if (!f->step) return pieces_in(f, first, 0, part, n, elems, m) + pieces_in(f, first, 1, part, n, elems, m);
  const int whole = tc_whole_blocks(part, n, m->size);
  struct tc_turns at = { f->first, f->column };
  int64_t pieces = 0, n_alike = 0, alike = 0;
  for (int turn = 0; turn < f->n; turn++) {
    const int block = tc_turns_next(f, m->nodes, &at);
    if (block >= whole) pieces += pieces_in(f, first, turn, part, n, elems, m);
    else if (block >= 0 && n_alike++ == 0) alike = pieces_in(f, first, turn, part, n, elems, m);
  }
  return pieces + n_alike * alike;
}

/* The first block after this one that may be of another size in one of the arrays. */
static int alike_until(int block, const struct tc_part *part, int n, int size)
{
  int64_t end = block < size - 1 ? size - 1 : size;
  for (int i = 0; i < n; i++) {
    const int64_t whole = part[i].block ? part[i].count / part[i].block : 0;
    if (whole > block) end = TC_MIN(end, whole);
    else if (whole == block) end = TC_MIN(end, whole + 1);
  }
  return (int)end;
}

int64_t tc_flow_messages(const struct tc_flow *f, const struct tc_coll_args *a, const struct tc_pieces *p,
                         const struct tc_members *m)
{
  int64_t each = 0, messages = 0;
  for (int i = 0; i < a->n_parts; i++) each += a->parts[i].count * p->elem_bytes;
  const bool wholes = f->at == TC_AT_WHOLES;
  const struct tc_part all = { .count = each * m->size, .block = each }, *part = wholes ? &all : a->parts;
  const int n = wholes ? 1 : a->n_parts, least = f->always;
  const int64_t elems = wholes ? p->whole_bytes : p->elems;
  if (f->n == 1 && !f->step && !wholes && f->shift == 0 && f->first < p->whole) return f->peers * TC_MAX(p->of_whole, least);
  if (f->shift == 0) return f->peers * TC_MAX(tc_flow_pieces(f, f->first, part, n, elems, m), least);
  TC_ASSERT(f->shift == 1 && f->n == 1);
  for (int i = 0, run; i < f->peers; i += run) {                /* a block each, one after the other */
    const int block = (f->first + i) % m->size;
    run = TC_MIN(alike_until(block, part, n, m->size) - block, f->peers - i);
    messages += run * TC_MAX(tc_flow_pieces(f, block, part, n, elems, m), least);
  }
  return messages;
}

struct tc_coll_count tc_coll_sends(const struct tc_coll_args *a, const struct tc_members *m)
{
  struct tc_flows l = { 0 };
  struct tc_coll_count sends = { .calls = 1 };
  if (m->size == 1) return sends;
  const int algorithm = tc_algorithm_of(a, m);
  tc_flows_of(&l, algorithm, a->coll, m, a->root);
  const struct tc_pieces p = tc_pieces_of(a, algorithm, &l, m);
  for (int k = 0; k < l.n; k++) {
    const struct tc_flow *f = &l.flow[k];
    if (f->kind != TC_FLOW_SEND) continue;
    for (int i = 0; i < a->n_parts; i++)
      sends.bytes += tc_flow_elems(f, a->parts[i].count, a->parts[i].block, m) * (f->wide ? p.wide_bytes : p.elem_bytes);
    sends.messages += tc_flow_messages(f, a, &p, m);
  }
  tc_flows_done(&l);
  return sends;
}

int64_t tc_coll_messages(const struct tc_coll_args *a, const struct tc_members *m) { return tc_coll_sends(a, m).messages; }
