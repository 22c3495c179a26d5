/* exec.h - runs programs on a device and communicators. It knows nothing of the systems.
 *
 * In: programs (src/program), a device, communicators, and a function that fills batches. Out: programs that have run:
 * their scalars and state.
 *
 * Memory is taken once: one state region, shared by all programs, and one scratch region of
 * the largest need. A run walks the program's list of actions.
 *
 * Files in reading order: impl.h; exec.c (memory, and runs); calls.c (the call of each node); fused.c (groups of
 * calls); transfer.c (collectives and copies); walk.c (actions one by one); capture.c (CUDA graphs); timing.c;
 * ranges.c (names for profilers). */
#ifndef TC_EXEC_H
#define TC_EXEC_H

#include "kernels/kernel.h"
#include "src/comm/comm.h"
#include "src/program/program.h"
#include "src/monitor/trace.h"

struct tc_exec;

/* Fills the tokens and targets of local rows [row0, row0 + rows) of the global batch (rows are
 * tokens), and, unless starts is NULL, where the tokens' documents begin (op.def): programs with documents. */
typedef void tc_fill_fn(void *ctx, const struct tc_runtime *rt, int64_t row0, int64_t rows,
                        int32_t *tokens, int32_t *targets, int32_t *starts);

struct tc_exec_opts {
  struct tc_device *device;      /* borrowed */
  struct tc_device *host;        /* runs what is in host space; borrowed; NULL: the same */
  const struct tc_mesh *mesh;    /* that of a program, where it has one, goes before it; borrowed */
  int rank;
  struct tc_comm *comm[TC_SETS]; /* of each named group; borrowed; NULL where it has one rank */
  struct tc_comm *native[TC_SETS];   /* of the device's memory, beside those; borrowed; may be NULL */
  tc_fill_fn *fill;
  void *fill_ctx;
  struct tc_trace *trace;        /* borrowed; NULL: off */
  /* A test hook: called before a collective begins, of which it may change *a; 1: it is not to begin, all is done. */
  int (*tamper)(void *ctx, const struct tc_node *n, struct tc_coll_args *a, struct tc_err *err);
  void *tamper_ctx;
  /* Called when a node's outputs are there; NULL: no calls. */
  void (*watch)(void *ctx, const struct tc_graph *g, const struct tc_node *n, int32_t mb);
  void *watch_ctx;
  bool no_fusion;                /* no calls are fused (kernel.h) */
  bool no_capture;               /* no segments are captured (capture.c) */
};

struct tc_exec_memory { int64_t region[TC_REGIONS], staging, kernel_scratch; };   /* bytes */

/* Local. All programs share one state and are borrowed; they must outlive *out. NULL: none of that number. */
int tc_exec_new(struct tc_exec **out, const struct tc_exec_opts *o,
                struct tc_program *const *programs, int n, struct tc_err *err);
void tc_exec_free(struct tc_exec *x);
/* Collective over the ranks of the mesh. Runs program i once (a step). */
int tc_exec_run(struct tc_exec *x, int i, const struct tc_runtime *rt, struct tc_err *err);
/* Local. What checkpoints have is not written before this copy of it (copy_begin's) is done. */
void tc_exec_write_barrier(struct tc_exec *x, int64_t copy);
/* Local. Where tensor t of program i is (borrowed; scratch tensors only until the next run): _of, in micro-batch mb. */
void *tc_exec_tensor(struct tc_exec *x, int i, int32_t t);
void *tc_exec_tensor_of(struct tc_exec *x, int i, int32_t t, int32_t mb);
/* Local. A scalar of program i after its run, as a double. */
double tc_exec_scalar(struct tc_exec *x, int i, int32_t t);
struct tc_exec_memory tc_exec_memory(const struct tc_exec *x);
/* Local. Nanoseconds the last run spent waiting for transfers in a set's group; -1: in all. */
int64_t tc_exec_wait_ns(const struct tc_exec *x, int set);

/* transfer.c: one RESHARD, ready to run. */
struct tc_xreshard;
int tc_xreshard_new(struct tc_xreshard **out, const struct tc_graph *g, const struct tc_node *n,
                 const struct tc_exec_opts *o, void *const *in, void *const *out_ptr,
                 struct tc_err *err);
void tc_xreshard_free(struct tc_xreshard *x, struct tc_device *d);
/* Part k of a transfer is elsewhere from the next issue on. */
void tc_xreshard_retarget(struct tc_xreshard *x, int k, void *in, void *out);
int64_t tc_xreshard_staging(const struct tc_xreshard *x);     /* bytes of device memory for packing */
/* Local ones are done at once. soon: the wait is the next action. */
int tc_xreshard_issue(struct tc_xreshard *x, bool soon, struct tc_err *err);
int tc_xreshard_wait(struct tc_xreshard *x, struct tc_err *err);
/* Needs no peer and no host memory: issue and wait are work in the device's order, or none. */
bool tc_xreshard_is_on_device(const struct tc_xreshard *x);
/* Goes over a communicator of the device's memory: a wait for it is the device's. */
bool tc_xreshard_is_native(const struct tc_xreshard *x);
/* Goes through host staging: the host copies to it, and from it, when the device has done what was
 * called before. */
bool tc_xreshard_is_staged(const struct tc_xreshard *x);
/* Kernels that are called later wait for the end of a copy that copy_begin began, and the host too if it computes with
 * what is copied. *copy is then 0: none. TC_EUSER: the copy, which is `what`, failed. */
int tc_exec_end_copy(struct tc_device *d, int64_t *copy, bool host_waits, const char *what, struct tc_err *err);
/* The native communicators' calls have ended, or one has failed. */
int tc_xreshard_settle(const struct tc_exec_opts *o, struct tc_err *err);

#endif
