/* flow_blocks.c - the blocks of a flow, and their elements. */
#include "src/coll/flow.h"

int tc_flow_block(const struct tc_flow *f, const struct tc_nodes *x, int turn)
{
  const int row = (f->first + turn) % x->n, column = f->column + turn / x->n * f->step;
  return column < x->size[row] ? x->at[row * x->most + column] : -1;
}

int64_t tc_blocks_elems(int64_t count, int64_t block, int size, int first, int n)
{
  const int end = first + n;
  int64_t elems = tc_block_start(count, block, TC_MIN(end, size), size) - tc_block_start(count, block, first, size);
  if (end > size) elems += tc_block_start(count, block, end - size, size);
  return elems;
}

/* Elements of blocks in turns, of which there may be thousands: nearly all are whole. */
static int64_t elems_in_turns(const struct tc_flow *f, int64_t count, int64_t block, const struct tc_members *m)
{
  const struct tc_nodes *x = m->nodes;
  const int64_t whole = TC_MIN(block ? count / block : 0, m->size - 1);
  int64_t n = 0, elems = 0;
  for (int t = 0, row = f->first, column = f->column; t < f->n; t++) {
    const int c = column < x->size[row] ? x->at[row * x->most + column] : -1;
    if (c >= 0 && c < whole) n++;
    else if (c >= 0) elems += tc_blocks_elems(count, block, m->size, c, 1);
    if (++row == x->n) row = 0;
    if (row == f->first) column += f->step;
  }
  return elems + n * block;
}

int64_t tc_flow_elems(const struct tc_flow *f, int64_t count, int64_t block, const struct tc_members *m)
{
  if (f->at == TC_AT_WHOLES) return (int64_t)f->peers * f->n * count;
  if (f->step) return elems_in_turns(f, count, block, m);
  if (f->shift == 0) return f->peers * tc_blocks_elems(count, block, m->size, f->first, f->n);
  TC_ASSERT(f->shift == 1 && f->n == 1);                       /* one after the other */
  return tc_blocks_elems(count, block, m->size, f->first, f->peers);
}
