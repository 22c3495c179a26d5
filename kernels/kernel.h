/* kernel.h - the interface of a device: memory, and a table of functions, one per op.
 *
 * In: calls with views of memory. Out: their results. Files in reading order: kernel.h; nccl.h (the table for NCCL);
 * device.c (what all devices share); open.c (devices by name); then a folder for each device, from
 * ref_device.c, cpu_device.c or device.cu on.
 *
 * A kernel works on local blocks. A view has the position of its block in the global tensor, so
 * that kernels whose result depends on position (positions, dropout, init, vocabulary blocks)
 * give the same result on every layout. Kernels never allocate: the memory that they need is queried
 * beforehand (`scratch`) and plans are made once (`prepare`). All are Local.
 *
 * Rules for every device:
 * - sums of floats run in an order that depends only on shapes, never on threads;
 * - out k with bit k of call->acc set is added to (dst += result), else written;
 * - inputs may be fp32 or bf16 (ref: fp64 too); sums, exp and log in fp32 at least, but exponentials whose results are
 *   rounded to bf16, or are terms of a product of bf16, may have fewer digits;
 *   row statistics (mean, rstd, m, s, p, l, lse, scalars) are fp32 (fp64 in an fp64 program). */
#ifndef TC_KERNEL_H
#define TC_KERNEL_H

#include <math.h>

#include "src/base/base.h"
#include "src/graph/row_order.h"
#include "src/graph/rule.h"

struct tc_view {
  void *data;
  uint8_t dtype, rank;
  int64_t dim[TC_DIMS];        /* the local box */
  int64_t off[TC_DIMS];        /* its corner in the global tensor */
  int64_t global[TC_DIMS];     /* the global tensor */
  int64_t row0, rows;          /* rows >= 0: only these rows of the box as [rows, last dim] */
  int64_t elems;               /* elements at data */
};

/* Elements of the box before the first one at data; those of a tensor of one dimension are rows by themselves. */
static inline int64_t tc_view_skip(const struct tc_view *v)
{ return v->rows < 0 ? 0 : v->row0 * (v->rank > 1 ? v->dim[v->rank - 1] : 1); }

/* The global index (row-major) of element i of a view. */
int64_t tc_view_global(const struct tc_view *v, int64_t i);

/* Values that change from step to step. */
struct tc_runtime {
  uint64_t seed;
  int64_t step;                /* from 1 */
  int32_t mb;                  /* micro-batch */
  float lr, beta1, beta2, momentum, eps, weight_decay, clip;
  float muon_momentum;
  int32_t muon_scale;          /* enum tc_muon_scale */
  float loss_scale;            /* tokens of the batch over those that the loss counts: what the program's loss and gradients, which
                                * are sums over all tokens, are multiplied by to be means; 0: 1 */
};
static inline double tc_loss_scale(const struct tc_runtime *rt) { return rt->loss_scale > 0 ? (double)rt->loss_scale : 1; }

struct tc_call {
  int32_t op, node;
  int32_t n_in, n_out;
  struct tc_view *in, *out;    /* in[i].data, out[i].data are set before each run */
  uint8_t acc;                 /* bit k: out[k] += result */
  struct tc_gemm gemm;         /* TC_OP_MATMUL: C (+)= op(A) op(B) (+ bias[n]) */
  float f[2];                  /* of struct tc_attr: number and other; index, second and third */
  int64_t k[3];
  struct tc_row_order rows;    /* of the tokens, in the global tensor */
  const float *freq;           /* rope: [tc_call_rotary / 2] radians from position to position; borrowed from the graph */
  const struct tc_runtime *rt;
  void *plan;                  /* made by prepare, owned by the device until unprepare */
  void *scratch;               /* scratch bytes, shared by all calls of a device */
};

/* Where documents begin (op.def): int32, the input after the n_in that the op always has; NULL: the call has none.
 * For run alone: scratch and prepare ask whether c->n_in > n_in. */
static inline const int32_t *tc_call_starts(const struct tc_call *c, int n_in)
{
  return c->n_in > n_in && c->in[n_in].dtype == TC_I32 ? (const int32_t *)c->in[n_in].data : NULL;
}

/* Attention's keys and values by themselves (op.def), the input after the n_in that it always has; NULL: they are behind the
 * queries. */
static inline const struct tc_view *tc_call_kv(const struct tc_call *c, int n_in)
{
  return c->n_in > n_in && c->in[n_in].rank > 1 ? &c->in[n_in] : NULL;
}

/* The group of qkv that is group i of kv, which has all groups or those of the call's piece (op.def). So with rows before
 * them: group i of [N,K/P] is group tc_call_group(i) of [N,K]. */
static inline int64_t tc_call_group(const struct tc_call *c, const struct tc_view *qkv, const struct tc_view *kv, int64_t i)
{
  return i * (qkv->dim[1] / kv->dim[1]) + c->k[1];
}

/* Attention's scores are products of queries and keys times this; D: a head's size. */
static inline float tc_call_scale(const struct tc_call *c, int64_t D) { return c->f[0] > 0 ? c->f[0] : 1.f / sqrtf((float)D); }

/* Rope: elements of a head of D that turn, and what cosines and sines are multiplied by. */
static inline int64_t tc_call_rotary(const struct tc_call *c, int64_t D) { return c->k[2] > 0 ? c->k[2] : D; }
static inline float tc_call_factor(const struct tc_call *c) { return c->f[0] != 0 ? c->f[0] : 1.f; }

/* Norms of all queries and of all keys, of qkv x[N,K,E,D]: how many elements those of the whole tensor are. */
static inline int64_t tc_call_qk_elems(const struct tc_view *x, bool keys)
{
  return x->global[1] * x->dim[3] * (keys ? 1 : x->dim[2] - 2);
}

/* A part of `whole` along a dimension (add_part, part): `runs` runs of `run` elements that follow each other, which begin `step`
 * elements after each other, the first of them at element `from`. */
struct tc_runs { int64_t runs, run, step, from; };
static inline struct tc_runs tc_call_part(const struct tc_call *c, const struct tc_view *whole, const struct tc_view *part)
{
  struct tc_runs p = { 1, 1, 1, 0 };
  for (int d = 0; d < c->k[1]; d++) p.runs *= whole->dim[d];
  for (int d = (int)c->k[1] + 1; d < whole->rank; d++) p.run *= whole->dim[d];
  p.from = c->k[0] * p.run, p.step = whole->dim[c->k[1]] * p.run, p.run *= part->dim[c->k[1]];
  return p;
}

/* Whether a cache of keys and values (attn_cache) has a row for each position that a call's queries see: rows for all of a
 * sequence, or, with a window, for it and the call's other new tokens, which are put there before any query reads. */
static inline bool tc_call_cache_holds(const struct tc_call *c)
{
  const int64_t rows = c->in[1].dim[2], new_tokens = c->in[0].dim[0] / c->in[1].dim[0], window = c->k[2];
  return rows >= c->k[0] || (window > 0 && rows >= window + new_tokens - 1);
}

/* sequence * T + position of row n of a block of tokens. */
static inline int64_t tc_call_row(const struct tc_call *c, const struct tc_view *x, int64_t n)
{
  return tc_natural_row(&c->rows, x->off[0] + n);
}

/* Whether tokens' positions are not those of the rows from the first one on: they have another order, or, in the input after
 * the n_in that the op always has, documents' starts. */
static inline bool tc_call_any_order(const struct tc_call *c, int n_in) { return c->n_in > n_in || c->rows.cp > 1; }

/* Elements of a row of the global tensor. */
static inline int64_t tc_view_columns(const struct tc_view *v)
{
  int64_t columns = 1;
  for (int d = 1; d < v->rank; d++) columns *= v->global[d];
  return columns;
}

/* The global index of element i of a block of tokens in the natural order: what dropout is drawn by. */
static inline int64_t tc_call_element(const struct tc_call *c, const struct tc_view *y, int64_t i)
{
  return tc_natural_element(&c->rows, tc_view_global(y, i), tc_view_columns(y));
}

/* Columns of x, the vocabulary's from x->off[1] on, before the padding, which begins at c->k[0]. */
static inline int64_t tc_live_columns(const struct tc_call *c, const struct tc_view *x)
{
  return TC_MAX(0, TC_MIN(x->dim[1], c->k[0] - x->off[1]));
}

struct tc_device;
struct tc_nccl_ops;
struct tc_kernel {
  int (*run)(struct tc_device *d, const struct tc_call *c);
  int64_t (*scratch)(struct tc_device *d, const struct tc_call *c);          /* NULL: 0 */
  /* May be NULL. Makes c->plan for the call's shapes, types and acc bits. */
  int (*prepare)(struct tc_device *d, struct tc_call *c, struct tc_err *err);
  void (*unprepare)(struct tc_device *d, struct tc_call *c);
};

/* Groups of calls that a device does as one, with fewer passes over memory (schedule/fusion.def). `part`
 * are in the order in which they would run one by one, each ready for that; what one of them writes does
 * not overlap what those before it read or wrote, but for a tensor that it overwrites. A fused call leaves
 * what its parts would (what goes from part to part is not rounded on its way; sums may be rounded to a smaller type,
 * once), but for an output that only a later part reads, whose content is undefined. */
struct tc_fused {
  bool (*can)(struct tc_device *d, const struct tc_call *const *part, int n);
  int64_t (*scratch)(struct tc_device *d, const struct tc_call *const *part, int n);
  /* The scratch is part[0]'s. */
  int (*run)(struct tc_device *d, const struct tc_call *const *part, int n);
};

/* Calls that are captured as one list in the device's order and replayed (CUDA graphs), for calls
 * without work on the host. Their views and sizes are fixed; the values of struct tc_runtime, except
 * the micro-batch, are those of each replay. */
struct tc_capture {
  /* Later calls are captured, not run, ... */
  int (*begin)(struct tc_device *d, const struct tc_runtime *rt, struct tc_err *err);
  /* ... until this. list NULL: discards them. TC_EUSER: nothing was captured, and the device is as it was
   * before begin. */
  int (*end)(struct tc_device *d, void **list, struct tc_err *err);
  int (*replay)(struct tc_device *d, void *list, const struct tc_runtime *rt);
  void (*free)(struct tc_device *d, void *list);
};

/* Timing on a device that queues its work. */
struct tc_clock {
  /* Records an event after all earlier calls; returns its number, from 0 since the last restart; -1: none. */
  int32_t (*event)(struct tc_device *d);
  /* After sync: nanoseconds between two events; 0 if one is -1. */
  int64_t (*interval)(struct tc_device *d, int32_t from, int32_t to);
  void (*restart)(struct tc_device *d);
};

/* Names for spans of time, which an attached profiler shows with the work that is called in them (NVTX). They nest;
 * each push has its pop, on the same thread. */
struct tc_ranges {
  bool (*on)(struct tc_device *d);               /* a profiler is attached */
  void (*push)(struct tc_device *d, const char *name);
  void (*pop)(struct tc_device *d);
};

/* Attention by a library (cuda: cuDNN) in place of the device's own kernels, for calls that were prepared with
 * tc_device.library set. Their row statistics (lse) have then another order, and with any_order sums may have one that
 * differs from run to run. */
struct tc_library {
  /* After the last call is prepared, with none in flight. How many shapes of attention it has plans for, 0: no call
   * is for it; -1: one of them cannot be run. text[size]: its name and version, or the reason. */
  int (*can)(struct tc_device *d, char *text, size_t size);
  /* From here on it computes these calls, or they are the device's own again, as in the beginning. Not between a
   * forward and its backward. */
  void (*use)(struct tc_device *d, bool yes);
};

struct tc_device_ops {
  const char *name;            /* "ref", "cpu", "cuda" */
  int (*open)(struct tc_device *d, struct tc_err *err);
  void (*close)(struct tc_device *d);
  void *(*alloc)(struct tc_device *d, int64_t bytes);       /* 64-byte aligned, touched; NULL */
  void (*free)(struct tc_device *d, void *p, int64_t bytes);
  /* Between any of device and host memory; complete on return if host memory is involved. */
  void (*copy)(struct tc_device *d, void *dst, const void *src, int64_t bytes);
  void (*sync)(struct tc_device *d);
  bool (*has_bf16)(struct tc_device *d);
  const struct tc_kernel *kernel;                            /* [TC_OPS] */
  const struct tc_fused *fused;                              /* NULL: none */

  /* For a device whose memory the host can't access; other devices leave all of these empty. */
  bool separate;
  void (*fill)(struct tc_device *d, void *p, int byte, int64_t bytes);
  void (*copy_rows)(struct tc_device *d, void *dst, int64_t dst_step, const void *src,
                    int64_t src_step, int64_t row_bytes, int64_t rows);
  void *(*host_alloc)(struct tc_device *d, int64_t bytes);   /* pinned; NULL */
  void (*host_free)(struct tc_device *d, void *p);
  void (*memory)(struct tc_device *d, int64_t *free_bytes, int64_t *total_bytes);
  int (*check)(struct tc_device *d, struct tc_err *err);     /* after sync: the first error */
  const struct tc_nccl_ops *nccl;                            /* collectives (comm/nccl.h) */
  /* Asynchronous copies, between device memory and host_alloc's. A copy starts when all earlier calls
   * are complete, and has a number, from 1; calls after copy_order run after
   * it; copy_wait waits for it, from any thread (TC_EUSER: the device failed).
   * copy_early: starts beside earlier calls, none of which since the last sync has used dst. May be NULL. */
  int64_t (*copy_begin)(struct tc_device *d, void *dst, const void *src, int64_t bytes);
  int64_t (*copy_early)(struct tc_device *d, void *dst, const void *src, int64_t bytes);
  void (*copy_order)(struct tc_device *d, int64_t copy);
  int (*copy_wait)(struct tc_device *d, int64_t copy);
  const struct tc_capture *capture;
  const struct tc_clock *clock;
  /* Chooses by time how the calls prepared so far are computed (cuda: which of cuBLASLt's plans a product takes), as
   * far as `known`, lines of an earlier call, does not say it; with `time` false only what it says. Choices may differ
   * in rounding: ranks and restarts of one run take the same lines. Where NCCL was joined, what is chosen is loaded, too.
   * again() is called at each product. *text: the lines of this device, owned by the caller; *timed: how many were timed,
   * -1: there was no memory for it. NULL: there is nothing to choose. Not while calls are in flight. */
  int (*tune)(struct tc_device *d, const char *known, bool time, void (*again)(void), char **text, int *timed,
              struct tc_err *err);
  /* What it computes with, and on: "cuBLASLt 13.0.2, CUDA driver 13.0, NVIDIA H200". NULL: tc_cpu_version says it. */
  void (*version)(struct tc_device *d, char *text, size_t size);
  const struct tc_ranges *ranges;                            /* NULL: no profiler can show them */
  const struct tc_library *library;                          /* NULL: none */
};

struct tc_device {
  const struct tc_device_ops *ops;
  int threads;                 /* cores this rank may use */
  int index;                   /* its number among several devices of its kind */
  char bus[32];                /* ... or its PCI bus, if known, which then takes precedence; else "" */
  bool poison;                 /* fill freed memory with NaN (tests) */
  bool tf32;                   /* cuda: fp32 products from inputs rounded to 10 bits of mantissa */
  bool library;                /* cuda: calls are prepared for tc_library too */
  bool any_order;              /* ... which may add in another order each time */
  int64_t library_bytes;       /* ... and whose calls are cut to take no more, if they can be; 0: its own limit (tests) */
  void *priv;
};

/* Local. name "ref", "cpu", or "cuda:WHICH", whose module is then loaded; WHICH is an index (default 0) or a PCI
 * bus (0000:3b:00.0), which identifies the GPU in any order of CUDA's. threads >= 1. TC_EUSER if there is none. */
int tc_device_open(struct tc_device **out, const char *name, int threads, struct tc_err *err);
void tc_device_close(struct tc_device *d);
/* Local. Fills bytes at p with NaN patterns (0xff...). */
void tc_device_poison(struct tc_device *d, void *p, int64_t bytes);
/* Local. Like the functions of these names in the table, on every device. */
void tc_device_fill(struct tc_device *d, void *p, int byte, int64_t bytes);
void tc_device_copy_rows(struct tc_device *d, void *dst, int64_t dst_step, const void *src,
                         int64_t src_step, int64_t row_bytes, int64_t rows);
void *tc_device_host_alloc(struct tc_device *d, int64_t bytes);      /* NULL: out of memory */
void tc_device_host_free(struct tc_device *d, void *p);
int tc_device_check(struct tc_device *d, struct tc_err *err);

/* Local. Functions of these names in the table of a device that computes in the host's memory, at once. */
void tc_host_free(struct tc_device *d, void *p, int64_t bytes);
void tc_host_copy(struct tc_device *d, void *dst, const void *src, int64_t bytes);
void tc_host_sync(struct tc_device *d);

/* A device in a shared object (open.c): tercio-NAME.so exports `tc_module`. It belongs to this build
 * if both numbers agree. It is self-contained: it calls no function of the program. */
enum { TC_MODULE_VERSION = 7 };
struct tc_module { uint32_t version, layout; const struct tc_device_ops *ops; };
#define TC_MODULE_LAYOUT ((uint32_t)(sizeof(struct tc_call) + 1000 * sizeof(struct tc_view) \
                                     + 100 * sizeof(struct tc_device) + 1000000 * TC_OPS \
                                     + 100000000 * sizeof(struct tc_device_ops)))

/* Local. "oneDNN 2.6.0", which the cpu device multiplies with, into text[size]. */
void tc_cpu_version(char *text, size_t size);

extern const struct tc_device_ops tc_ref_ops, tc_cpu_ops;

#endif
