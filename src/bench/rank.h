/* rank.h - what a rank measures with. */
#ifndef TC_BENCH_RANK_H
#define TC_BENCH_RANK_H

#include "src/bench/bench.h"
#include "src/graph/mesh.h"
#include "src/launch/launch.h"

struct tc_device;
enum { TC_BENCH_WORLD = TC_AXES };               /* all ranks, where an axis may be named */

struct tc_bench_group { struct tc_comm *comm; int32_t *members; const char **rank_names; };   /* [size] of the group */
struct tc_bench_rank {             /* zeroed before it is opened */
  struct tc_bench_group group[2];  /* the world's; the axis', if it is not the world; owned, as all below */
  struct tc_device *device;
  struct tc_comm *native;          /* NCCL's, among the group's GPUs; NULL: through the host */
  struct tc_bench_memory memory;
  struct tc_bench *bench;
};

/* Local. "tp", "world"; ranks of it. */
const char *tc_bench_axis_name(int axis);
int tc_bench_axis_size(const struct tc_mesh *m, int axis);
/* Collective over the run. A bench among the ranks of this rank's group of the axis, on GPUs if run.comm and run.device
 * select them. To be closed even after an error. TC_EUSER: out of memory on some rank; what communicators return. */
int tc_bench_rank_open(struct tc_bench_rank *x, const struct tc_launch *l, const struct tc_mesh *m, int axis, int rank,
                       int64_t max_bytes, int iters, struct tc_err *err);
void tc_bench_rank_close(struct tc_bench_rank *x);

#endif
