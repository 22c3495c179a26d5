/* bench.h - the network between ranks, measured: one collective at one size, timed and checked, as `tercio comm` prints
 * it.
 *
 * Elements are fp32 and contain small integers, computed from (rank, index), so that every sum is
 * exact in any order: each element of the output is compared for equality, and memory that a call
 * must not change is checked, too. The communicators' counters must grow by the prediction of
 * tc_coll_bytes.
 *
 * In: communicators and memory. Out: rows of times and rates; whoever asked judges and prints them. Files in reading
 * order: rank.c (what a rank measures with), bench.c (one collective at one size), sweep.c (over sizes), pairs.c (each
 * node with each other node). */
#ifndef TC_BENCH_H
#define TC_BENCH_H

#include "src/coll/selection.h"
#include "src/comm/comm.h"
#include "src/graph/mesh.h"
#include "src/launch/launch.h"

/* ---- bench.c: one collective at one size ---- */

/* The collectives, and two baselines, each after the collective that it is compared with. */
enum tc_bench_op {
  TC_BENCH_ALL_REDUCE, TC_BENCH_REDUCE_BROADCAST, TC_BENCH_REDUCE_SCATTER, TC_BENCH_ALL_GATHER,
  TC_BENCH_BROADCAST, TC_BENCH_ONE_BY_ONE, TC_BENCH_REDUCE, TC_BENCH_SCATTER, TC_BENCH_GATHER,
  TC_BENCH_ALL_TO_ALL, TC_BENCH_SEND_RECV, TC_BENCH_SEND, TC_BENCH_OPS
};
extern const char *const tc_bench_op_name[TC_BENCH_OPS];  /* "all_reduce", "one_by_one", ... */

struct tc_bench_row {
  int64_t size_bytes, count;      /* of the whole array; count in elements */
  double time_us;                 /* of the slowest rank, mean of all iterations */
  double median_us;               /* ... median, which depends less on other load */
  double algbw, busbw;            /* GB/s = 1e9 bytes per second */
  int64_t sent_bytes;             /* by this rank per iteration, as predicted */
  int algorithm;                  /* of enum tc_algorithm; 0: several */
  int iters;                      /* timed iterations */
};

struct tc_device;
struct tc_bench;

/* Local. Measures on `group`, with all groups of `world` at the same time. members[size] are
 * the world ranks of the group; rank is this one's. Pointers are borrowed. Free it
 * after both communicators, which send from its memory. device: in whose memory the group's data
 * are, borrowed; NULL: host memory. Returns NULL if out of memory. */
struct tc_bench *tc_bench_new(struct tc_comm *group, struct tc_comm *world,
                              const int32_t *members, int rank, int64_t max_bytes, int iters,
                              struct tc_device *device);
void tc_bench_free(struct tc_bench *b);
/* Local. Whether the algorithm of flow.h does (a part of) the operation, among these members; NULL: among some. */
bool tc_bench_can(int op, int algorithm, const struct tc_members *m);
/* Local. From now on by this algorithm of flow.h, where it does the collective; 0: by the one that suits. On all ranks. */
void tc_bench_algorithm(struct tc_bench *b, int algorithm);
/* Local. From now on so many timed iterations, at most those of tc_bench_new. The same on all ranks. */
void tc_bench_iters(struct tc_bench *b, int iters);
#define TC_BENCH_BUDGET_S 30.0    /* what a measurement takes, about, if it may choose how much to measure */
enum { TC_BENCH_WARM_UP = 2 };    /* more, before them; the first one also grows staging memory */

/* Collective over the world. bytes: of the whole array, at most max_bytes (rounded to
 * elements; for all_to_all to equal blocks). A wrong element or counter anywhere is TC_EUSER
 * with the same sentence on all ranks; *row is set even then. */
int tc_bench_run(struct tc_bench *b, int op, int64_t bytes, struct tc_bench_row *row,
                 struct tc_err *err);

/* Collective over the world, which the group has to be as well. Sends `bytes` to coordinate peer and
 * receives as many from it, one after the other; -1: this rank has no peer, and waits for the others'
 * results. what: the pair's name in errors. *ns <- the median of an iteration (there and back); 0
 * without a peer. Wrong data is TC_EUSER with the same sentence on all ranks. */
int tc_bench_pair(struct tc_bench *b, int peer, int64_t bytes, const char *what, int64_t *ns,
                  struct tc_err *err);

/* ---- rank.c: what a rank measures with ---- */

enum { TC_BENCH_WORLD = TC_SETS };               /* all ranks, where an axis may be named: enum tc_set */

struct tc_bench_group { struct tc_comm *comm; int32_t *members; const char **rank_names; };   /* [size] of the group */
struct tc_bench_rank {             /* zeroed before it is opened */
  struct tc_bench_group group[2];  /* the world's; the axis', if it is not the world; owned, as all below */
  struct tc_device *device;
  struct tc_comm *native;          /* NCCL's, among the group's GPUs; NULL: through the host */
  struct tc_bench *bench;
};

/* Local. "tp", "world"; ranks of it; nodes of that of its groups that has most. */
const char *tc_bench_axis_name(int axis);
int tc_bench_axis_size(const struct tc_mesh *m, int axis);
int tc_bench_axis_nodes(const struct tc_mesh *m, int axis);
/* Collective over the run. A bench among the ranks of this rank's group of the axis, on GPUs if run.comm and run.device
 * select them. To be closed even after an error. TC_EUSER: out of memory on some rank; what communicators return. */
int tc_bench_rank_open(struct tc_bench_rank *x, const struct tc_launch *l, const struct tc_mesh *m, int axis, int rank,
                       int64_t max_bytes, int iters, struct tc_err *err);
void tc_bench_rank_close(struct tc_bench_rank *x);

/* ---- sweep.c: collectives over size, each from the smallest array to the largest ---- */

enum { TC_SWEEP_TEXT = 600 };
struct tc_sweep_opts {
  bool op[TC_BENCH_OPS];
  int algorithm;                  /* of enum tc_algorithm; 0: the one that suits each */
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
