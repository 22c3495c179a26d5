/* comm_bench.h - one collective at one size, timed and checked: what `tercio comm` prints.
 *
 * Elements are fp32 and hold small integers, made from (rank, index), so that every sum is
 * exact in any order: each element of the output is compared for equality, and what a call
 * must not touch is looked at too. The communicators' counters must grow by what
 * tc_coll_bytes predicts. */
#ifndef TC_COMM_BENCH_H
#define TC_COMM_BENCH_H

#include "src/comm/comm.h"

/* The collectives, and two ways to do without one, each after what it stands beside. */
enum tc_bench_op {
  TC_BENCH_ALL_REDUCE, TC_BENCH_REDUCE_BROADCAST, TC_BENCH_REDUCE_SCATTER, TC_BENCH_ALL_GATHER,
  TC_BENCH_BROADCAST, TC_BENCH_ONE_BY_ONE, TC_BENCH_REDUCE, TC_BENCH_SCATTER, TC_BENCH_GATHER,
  TC_BENCH_ALL_TO_ALL, TC_BENCH_SEND_RECV, TC_BENCH_SEND, TC_BENCH_OPS
};
extern const char *const tc_bench_op_name[TC_BENCH_OPS];  /* "all_reduce", "one_by_one", ... */

struct tc_bench_row {
  int64_t size_bytes, count;      /* of the whole array; count in elements */
  double time_us;                 /* of an iteration: the slowest rank's, the mean of all */
  double median_us;               /* ... the middle one: less of what else the machine does */
  double algbw, busbw;            /* GB/s = 1e9 bytes a second */
  int64_t sent_bytes;             /* this rank's in one iteration, as predicted */
  int iters;                      /* that were timed */
};

/* Where the data is; copy is between any of it and host memory. */
struct tc_bench_memory {
  void *ctx;
  void *(*alloc)(void *ctx, int64_t bytes);      /* NULL: out of memory */
  void (*free)(void *ctx, void *p, int64_t bytes);
  void (*copy)(void *ctx, void *dst, const void *src, int64_t bytes);
  void (*fill)(void *ctx, void *p, int byte, int64_t bytes);
  void (*sync)(void *ctx);                       /* what was waited for has happened */
};

struct tc_bench;

/* Local. Measures on `group`, with all groups of `world` at the same time. members[size] are
 * the world ranks of the group; rank is this one's. All but the numbers is borrowed. Free it
 * after both communicators: they send from its memory. memory: of the group's data, borrowed;
 * NULL: the host's. NULL if there is not enough of it. */
struct tc_bench *tc_bench_new(struct tc_comm *group, struct tc_comm *world,
                              const int32_t *members, int rank, int64_t max_bytes, int iters,
                              const struct tc_bench_memory *memory);
void tc_bench_free(struct tc_bench *b);
/* Local. From now on so many timed iterations, at most those of tc_bench_new. The same on all ranks. */
void tc_bench_iters(struct tc_bench *b, int iters);
enum { TC_BENCH_WARM_UP = 2 };    /* more, before them; the first one also grows staging memory */

/* Collective over the world. bytes: of the whole array, at most max_bytes (rounded to
 * elements; for all_to_all to equal blocks). A wrong element or counter anywhere is TC_EUSER
 * with the same sentence on all ranks, and *row is filled in nevertheless. */
int tc_bench_run(struct tc_bench *b, int op, int64_t bytes, struct tc_bench_row *row,
                 struct tc_err *err);

/* Collective over the world, which the group has to be as well. Sends `bytes` to coordinate peer and
 * receives as many from it, one after the other; -1: this rank has no peer, and waits for the others'
 * results. what: the pair's name in errors. *ns <- the median of an iteration (there and back); 0
 * without a peer. Wrong data is TC_EUSER with the same sentence on all ranks. */
int tc_bench_pair(struct tc_bench *b, int peer, int64_t bytes, const char *what, int64_t *ns,
                  struct tc_err *err);

#endif
