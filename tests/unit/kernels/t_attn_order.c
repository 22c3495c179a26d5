/* t_attn_order.c - the order in which attention's blocks start (kernels/attn_order.h): each block is there once, those
 * with most work come first, the keys of a section fit the cache; and what the order is worth, by a simulation of a GPU
 * that starts blocks as places become free, beside the order head by head; and in how many parts groups' gradients are made.
 *
 * A place is what one block takes of a multiprocessor, of which an H100 has 132. A block costs its tiles, and one more to
 * start and end. All places are equally fast, whatever runs beside them. */
#include "kernels/attn_order.h"
#include "src/base/base.h"
#include "tests/unit/tap.h"

#include <math.h>
#include <stdlib.h>

enum { PROCESSORS = 132 };
enum kernel { FORWARD, QUERIES, KEYS };
static const char *const names[] = { "forward", "queries", "keys" };

/* A kernel: rows of a block, rows of a tile, blocks of a multiprocessor at a time. */
struct shape { const char *model; int64_t T, D, sequences, heads, groups; enum kernel kernel; int rows, tile, at_once; };

static uint32_t parts_of(const struct shape *s)
{
  return s->kernel == KEYS ? tc_attn_parts(s->T, s->sequences, s->groups, s->heads / s->groups, TC_ATTN_FEW_BLOCKS) : 1;
}

static struct tc_attn_order order_of(const struct shape *s, uint32_t parts)
{
  return tc_attn_order_of(s->T, s->D, s->rows, s->sequences, s->kernel == KEYS ? s->groups * parts : s->heads, s->groups);
}

/* In tiles. A block of keys has the queries of all heads of its group, or of a part of them (tc_part_of_group). */
static double cost(const struct shape *s, const struct tc_attn_order *o, struct tc_attn_block b)
{
  const int64_t row = (s->kernel == KEYS ? b.turn : o->turns - 1 - b.turn) * (int64_t)s->rows;
  const int64_t end = TC_MIN(row + s->rows, s->T), parts = o->heads / s->groups, part = b.head % parts;
  const int64_t group = s->heads / s->groups, heads = (part + 1) * group / parts - part * group / parts;
  if (s->kernel != KEYS) return 1 + (double)tc_ceil_div(end, s->tile);
  return 1 + (double)((tc_ceil_div(s->T, s->tile) - row / s->tile) * heads);
}

/* Time until all places are free, over that of places which are all busy until the end. */
static double simulate(const struct shape *s, const struct tc_attn_order *o)
{
  const int places = PROCESSORS * s->at_once;
  double *free_at = tc_calloc((size_t)places, sizeof *free_at), sum = 0, last = 0;   /* a heap: the earliest first */
  for (uint32_t i = 0; i < o->turns * o->all; i++) {
    const double c = cost(s, o, tc_attn_block_of(*o, i)), end = free_at[0] + c;
    int at = 0;
    for (int child; (child = 2 * at + 1) < places; at = child) {
      child += child + 1 < places && free_at[child + 1] < free_at[child];
      if (free_at[child] >= end) break;
      free_at[at] = free_at[child];
    }
    free_at[at] = end;
    sum += c;
    last = TC_MAX(last, end);
  }
  free(free_at);
  return last / (sum / places);
}

/* The order before this one was head by head, so that a section is one head. */
static void worth(const struct shape *s, double before, double now)
{
  struct tc_attn_order o = order_of(s, 1), heads = o;
  heads.section = 1;
  const double was = simulate(s, &heads), is = simulate(s, &o);
  ok(fabs(was - before) < 0.01 && fabs(is - now) < 0.01, "%s, %s, %d rows: %.3f of the ideal time head by head, now %.3f",
     s->model, names[s->kernel], s->rows, was, is);
}

/* The figures are those for which the order was chosen. */
static void what_it_is_worth(void)
{
  static const struct { struct shape s; double before, now; } rows[] = {
    { { "124M, 64 of 1024", 1024, 64, 64, 12, 12, FORWARD, 128, 64, 2 }, 1.047, 1.008 },
    { { "124M, 64 of 1024", 1024, 64, 64, 12, 12, QUERIES, 128, 32, 2 }, 1.044, 1.005 },
    { { "124M, 64 of 1024", 1024, 64, 64, 12, 12, KEYS, 64, 64, 3 }, 1.034, 1.004 },
    { { "1558M, 16 of 1024", 1024, 64, 16, 25, 25, FORWARD, 128, 64, 2 }, 1.080, 1.020 },
    { { "1558M, 16 of 1024", 1024, 64, 16, 25, 25, KEYS, 64, 64, 3 }, 1.067, 1.014 },
    { { "Llama 8B, 8192", 8192, 128, 1, 32, 8, FORWARD, 64, 64, 2 }, 1.057, 1.001 },
    { { "Llama 8B, 8192", 8192, 128, 1, 32, 8, FORWARD, 128, 64, 2 }, 1.141, 1.002 },
    { { "Llama 8B, 8192", 8192, 128, 1, 32, 8, QUERIES, 64, 32, 3 }, 1.101, 1.005 },
    { { "Llama 8B, 8192", 8192, 128, 1, 32, 8, QUERIES, 128, 32, 2 }, 1.142, 1.003 },
    { { "Llama 8B, 8192", 8192, 128, 1, 32, 8, KEYS, 64, 32, 2 }, 1.240, 1.010 },
    { { "Llama 8B, 4096", 4096, 128, 1, 32, 8, FORWARD, 64, 64, 2 }, 1.136, 1.005 },
    { { "Llama 8B, 4096", 4096, 128, 1, 32, 8, FORWARD, 128, 64, 2 }, 1.304, 1.016 },
    { { "Llama 8B, 4096", 4096, 128, 1, 32, 8, QUERIES, 64, 32, 3 }, 1.224, 1.030 },
    { { "Llama 8B, 4096", 4096, 128, 1, 32, 8, QUERIES, 128, 32, 2 }, 1.304, 1.016 },
    { { "Llama 8B, 4096", 4096, 128, 1, 32, 8, KEYS, 64, 32, 2 }, 1.590, 1.012 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) worth(&rows[i].s, rows[i].before, rows[i].now);
}

/* Few groups, as tensor parallelism leaves them: in one part and in several. */
static void worth_of_parts(void)
{
  static const struct { struct shape s; uint32_t parts; double before, now; } rows[] = {
    { { "Llama 8B, 8192, tp 8", 8192, 128, 1, 4, 1, KEYS, 64, 32, 2 }, 4, 4.09, 1.02 },
    { { "Llama 8B, 8192, tp 4", 8192, 128, 1, 8, 2, KEYS, 64, 32, 2 }, 2, 2.05, 1.02 },
    { { "Llama 8B, 8192, tp 2", 8192, 128, 1, 16, 4, KEYS, 64, 32, 2 }, 1, 1.02, 1.02 },
    { { "Llama 8B, 4096, tp 8", 4096, 128, 1, 4, 1, KEYS, 64, 32, 2 }, 4, 8.11, 2.02 },
    { { "Llama 405B, 8192, tp 8", 8192, 128, 1, 16, 1, KEYS, 64, 32, 2 }, 4, 4.09, 1.02 },
    { { "5 heads a group", 8192, 128, 1, 15, 3, KEYS, 64, 32, 2 }, 2, 1.36, 1.06 },
    { { "one head a group", 8192, 128, 1, 1, 1, KEYS, 64, 32, 2 }, 1, 4.09, 4.09 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct shape *s = &rows[i].s;
    const uint32_t parts = parts_of(s);
    const struct tc_attn_order one = order_of(s, 1), o = order_of(s, parts);
    const double was = simulate(s, &one), is = simulate(s, &o);
    is_int(parts, rows[i].parts, "%s: parts", s->model);
    ok(fabs(was - rows[i].before) < 0.02 && fabs(is - rows[i].now) < 0.02, "... %.3f of the ideal time, in one part %.3f", is, was);
  }
}

/* Each block once; by turns within a section; a section's keys and values in the cache, or those of one group. */
static void is_an_order(int64_t T, int64_t D, int64_t sequences, int64_t heads, int64_t groups, uint32_t sections)
{
  const struct tc_attn_order o = tc_attn_order_of(T, D, 64, sequences, heads, groups);
  const uint32_t blocks = o.turns * o.all;
  bool *there = tc_calloc(blocks, sizeof *there), once = true, by_turns = true;
  uint32_t turn = 0, n = 1, done = 0;            /* of the section: its turn, which it is, heads in those before */
  for (uint32_t i = 0; i < blocks; i++) {
    const struct tc_attn_block b = tc_attn_block_of(o, i);
    const uint32_t head = b.sequence * o.heads + b.head;
    if (!(once &= b.turn < o.turns && b.head < o.heads && b.sequence < sequences)) break;
    once &= !there[head * o.turns + b.turn];
    there[head * o.turns + b.turn] = true;
    if (b.turn < turn) n++, done += o.section;
    by_turns &= head >= done && head < done + o.section;
    turn = b.turn;
  }
  free(there);
  ok(once && by_turns, "%d sequences of %d with %d heads: each block once, by turns in a section", (int)sequences, (int)T,
     (int)heads);
  is_int(n, sections, "... sections");
  const int64_t bytes = T * D * 4 * tc_ceil_div(o.section, heads / groups);
  ok(bytes <= TC_ATTN_CACHE_BYTES || o.section <= heads / groups, "... whose keys and values are %.1f MB", (double)bytes / 1e6);
}

int main(void)
{
  is_an_order(1, 64, 1, 1, 1, 1);
  is_an_order(100, 64, 3, 5, 5, 1);
  is_an_order(1024, 64, 64, 12, 12, 8);
  is_an_order(1024, 64, 16, 25, 25, 5);
  is_an_order(8192, 128, 1, 32, 8, 2);
  is_an_order(8192, 128, 3, 8, 8, 4);
  is_an_order(4096, 128, 7, 12, 4, 3);
  is_an_order(131072, 128, 1, 8, 2, 2);
  what_it_is_worth();
  worth_of_parts();
  return done_testing();
}
