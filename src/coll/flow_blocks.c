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

int tc_whole_blocks(const struct tc_part *part, int n, int size)
{
  int64_t whole = size - 1;
  for (int i = 0; i < n; i++) whole = TC_MIN(whole, part[i].block ? part[i].count / part[i].block : 0);
  return (int)whole;
}

/* Elements of blocks in turns: nearly all are whole. */
static int64_t elems_in_turns(const struct tc_flow *f, int64_t count, int64_t block, const struct tc_members *m)
{
  const int whole = tc_whole_blocks(&(struct tc_part){ .count = count, .block = block }, 1, m->size);
  struct tc_turns at = { f->first, f->column };
  int64_t n = 0, elems = 0;
  for (int turn = 0; turn < f->n; turn++) {
    const int c = tc_turns_next(f, m->nodes, &at);
    if (c >= 0 && c < whole) n++;
    else if (c >= 0) elems += tc_blocks_elems(count, block, m->size, c, 1);
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
