/* sweep.c - collectives over size, within a budget of time. */
#include "src/bench/bench.h"

#include <string.h>

enum { FACTOR = 4 /* from size to size */, LEAST_ITERS = 2 /* of a size that is measured at all */ };

/* How far the measurements are: the same on all ranks. */
struct pace {
  int64_t start_ns, now_ns;       /* now_ns: since the start, the latest rank's */
  int64_t end_ns;                 /* of this operation's share */
  int64_t iter_ns, iter_bytes;    /* of the last size that was measured; 0: none */
  char *out;                      /* what was left out, as text */
};

static int pace_meet(struct pace *p, struct tc_comm *world, struct tc_err *err)
{
  p->now_ns = tc_now_ns() - p->start_ns;
  return tc_comm_max_i64(world, &p->now_ns, 1, err);
}

/* How many iterations of this size fit into the operation's share; 0: too few. */
static int pace_iters(const struct tc_sweep_opts *j, const struct pace *p, int64_t bytes)
{
  if (!p->iter_bytes) return j->iters;
  const double ns = (double)p->iter_ns * (double)bytes / (double)p->iter_bytes;
  const double left_ns = (double)(p->end_ns - p->now_ns);
  const int least = j->adapt_iters ? LEAST_ITERS : j->iters;
  if (j->adapt_max && bytes > j->min_bytes && (least + TC_BENCH_WARM_UP) * ns > left_ns) return 0;
  if (!j->adapt_iters) return j->iters;
  return (int)TC_MAX(LEAST_ITERS, TC_MIN((double)j->iters, left_ns / 4 / ns - TC_BENCH_WARM_UP));
}

/* All sizes of an operation; what is wrong ends it, after its row. */
static int measure_op(const struct tc_sweep_opts *j, struct tc_bench *b, struct tc_comm *world, int op, struct pace *p,
                      struct tc_bench_row *row, struct tc_err *err)
{
  const bool adapt = j->adapt_iters || j->adapt_max;
  int64_t bytes = j->min_bytes;
  int rc = 0;
  p->iter_bytes = 0;
  tc_bench_algorithm(b, j->algorithm);
  if (adapt) {                                   /* one iteration of the smallest, for an estimate */
    tc_bench_iters(b, 1);
    TC_TRY(tc_bench_run(b, op, bytes, row, err));
    p->iter_ns = (int64_t)(row->time_us * 1e3) + 1;
    p->iter_bytes = bytes;
  }
  for (bool last = false; !last && !rc; bytes = TC_MIN(bytes * FACTOR, j->max_bytes)) {
    if (adapt) TC_TRY(pace_meet(p, world, err));
    const int iters = pace_iters(j, p, bytes);
    if (!iters) {
      tc_text_add(p->out, TC_SWEEP_TEXT, "%s%s from %lld", *p->out ? ", " : "", tc_bench_op_name[op], (long long)bytes);
      return 0;
    }
    if (adapt) tc_bench_iters(b, iters);
    last = bytes == j->max_bytes;
    rc = tc_bench_run(b, op, bytes, row, err);
    if (rc != TC_EPEER) j->row(j->ctx, op, row, !rc);
    if (!adapt) continue;
    p->iter_ns = (int64_t)(row->time_us * 1e3) + 1;
    p->iter_bytes = bytes;
  }
  return rc;
}

int tc_sweep_run(const struct tc_sweep_opts *j, struct tc_bench *b, struct tc_comm *world,
                 struct tc_bench_row row[TC_BENCH_OPS], char left_out[TC_SWEEP_TEXT], struct tc_err *err)
{
  struct pace p = { .start_ns = tc_now_ns(), .out = left_out };
  int left = 0;
  *left_out = 0;
  memset(row, 0, TC_BENCH_OPS * sizeof *row);
  for (int op = 0; op < TC_BENCH_OPS; op++) left += j->op[op];
  for (int op = 0; op < TC_BENCH_OPS; op++) {
    if (!j->op[op]) continue;
    p.end_ns = p.now_ns + (int64_t)(TC_BENCH_BUDGET_S * 1e9 - (double)p.now_ns) / left--;
    TC_TRY(measure_op(j, b, world, op, &p, &row[op], err));
  }
  return 0;
}
