/* sweep.h - collectives over size: each from the smallest array to the largest. */
#ifndef TC_BENCH_SWEEP_H
#define TC_BENCH_SWEEP_H

#include "src/bench/bench.h"

enum { TC_SWEEP_TEXT = 600 };
struct tc_sweep_opts {
  bool op[TC_BENCH_OPS];
  int64_t min_bytes, max_bytes;
  int iters;
  bool adapt_iters, adapt_max;    /* fewer iterations, no large sizes: to end in about TC_BENCH_BUDGET_S */
  void (*row)(void *ctx, int op, const struct tc_bench_row *row, bool ok);   /* called as soon as one is measured */
  void *ctx;
};

/* Collective over the world, on which the bench was made. row[op] <- the largest size of each that was measured;
 * left_out <- the sizes that were not, as text. What is wrong ends it, after its row; as tc_bench_run. */
int tc_sweep_run(const struct tc_sweep_opts *o, struct tc_bench *b, struct tc_comm *world,
                 struct tc_bench_row row[TC_BENCH_OPS], char left_out[TC_SWEEP_TEXT], struct tc_err *err);

#endif
