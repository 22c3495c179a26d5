/* nccl.cu - collectives of NCCL for src/comm/nccl.c: the NCCL calls of one call of a communicator, and the streams and events
 * around them.
 *
 * libnccl is opened when a communicator is first requested, and not linked: the module must load, and one GPU or run.comm = mpi
 * must work, where it isn't installed. Only the header is needed to build; without it (no TC_NCCL) the module has no collectives
 * and reports that.
 *
 * Invariants:
 * - each communicator has a stream of its own; `begin` of a slot is recorded on the device's stream, and this stream waits for
 *   it; `end` on this stream, after the transfer;
 * - NCCL never blocks (config.blocking = 0): a call in progress is polled (`ready`), and `end` is recorded only when the work is
 *   known to be in the stream;
 * - calls on the NCCL communicator are protected by `lock`, since the worker thread polls for errors while the device's thread
 *   starts the next transfer; nccl is NULL once it was aborted;
 * - ncclCommAbort waits for the communicator's own kernels, also in one that does not block; such a kernel may be queued behind
 *   another communicator's, which is aborted next. So it has a thread, which is waited for at most CUT_MS, and without a limit
 *   only by `free`;
 * - each call first sets its GPU if another thread may make it: CUDA would give such a thread GPU 0, and take half a GB there for
 *   it;
 * - NCCL before 2.26: a transfer follows those of the device's other communicators that were started before it (streams.cu), but
 *   for the one beside it, the other way of a pipeline: each way may wait for what comes the other way;
 * - a part with equal blocks is NCCL's own collective; one with a shorter last block is grouped reductions or broadcasts, one per
 *   block. */
#include "kernels/cuda/dev.h"

extern "C" {
#include "kernels/nccl.h"
}

#ifndef TC_NCCL

extern "C" const struct tc_nccl_ops tc_cuda_nccl = {};

#else

#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>

/* ---- the library ---------------------------------------------------------------------------- */

#define CALLS(X) \
  X(GetVersion) X(GetUniqueId) X(GetErrorString) X(CommInitRankConfig) X(CommGetAsyncError) \
  X(CommFinalize) X(CommDestroy) X(CommAbort) X(GroupStart) X(GroupEnd) X(AllReduce) X(Reduce) \
  X(ReduceScatter) X(Broadcast) X(AllGather) X(Send) X(Recv)

struct library {
#define X(name) decltype(&nccl##name) name;
  CALLS(X)
#undef X
};

/* 2.14: communicators that don't block. 2.26: their kernels start in the order of the host's calls (NCCL_LAUNCH_ORDER_IMPLICIT);
 * before, those of one GPU may start in another order on another rank, and wait for each other in circles. */
enum { OLDEST = 21400, IN_ORDER = 22600 };

/* $TERCIO_NCCL and nothing else if it is set; else $NCCL_HOME/lib, then the loader's search path. pip, Spack and
 * EasyBuild install the library outside of it. err lists what was tried. */
static void *find_library(const char *name, struct tc_err *err)
{
  const char *file = getenv("TERCIO_NCCL"), *home = getenv("NCCL_HOME");
  const bool only = file && *file;
  char path[2][4096], why[2][300];
  int n = 0;
  if (only) snprintf(path[n++], sizeof *path, "%s", file);
  else if (home && *home) snprintf(path[n++], sizeof *path, "%s/lib/%s", home, name);
  if (!only) snprintf(path[n++], sizeof *path, "%s", name);
  for (int i = 0; i < n; i++) {
    void *lib = dlopen(path[i], RTLD_NOW | RTLD_LOCAL);
    if (lib) return lib;
    const char *message = dlerror();
    snprintf(why[i], sizeof *why, "%.299s", message ? message : path[i]);
  }
  tc_fail(err, TC_EUSER, "NCCL can't be loaded: %s%s%s; %s, or set run.comm = mpi", why[0], n > 1 ? "; " : "", n > 1 ? why[1] : "",
          only ? "TERCIO_NCCL must be the path of libnccl.so.2"
               : "install it, name the library with TERCIO_NCCL or the folder above its lib with "
                 "NCCL_HOME, or add its folder to LD_LIBRARY_PATH");
  return NULL;
}

/* dlopen of a library that is open already is cheap; it stays open. */
static int open_library(struct library *l, struct tc_err *err)
{
#ifdef TC_EMU
  if (getenv("TC_EMU_NO_NCCL") && !find_library("libnccl-of-no-version.so.2", err)) return TC_EUSER;
#define X(name) l->name = nccl##name;
  CALLS(X)
#undef X
#else
  void *lib = find_library("libnccl.so.2", err);
  const char *missing = NULL;
  if (!lib) return TC_EUSER;
#define X(name) \
  if (!(l->name = (decltype(&nccl##name))dlsym(lib, "nccl" #name))) missing = "nccl" #name;
  CALLS(X)
#undef X
  if (missing)
    return tc_fail(err, TC_EUSER, "libnccl.so.2 has no %s: NCCL 2.14 or later is needed; or set run.comm = mpi", missing);
#endif
  int version = 0;
  if (l->GetVersion(&version) != ncclSuccess || version < OLDEST)
    return tc_fail(err, TC_EUSER, "this libnccl is version %d; 2.14 or later is needed (%d); or set "
                   "run.comm = mpi", version, OLDEST);
  return 0;
}

struct tc_nccl {
  struct library lib;
  struct tc_device *d;
  int gpu, coord, size;
  int turn, beside;                              /* its own among the device's turns, and that of the one beside it; -1: none */
  ncclComm_t nccl;                               /* under lock, as joined */
  bool joined;                                   /* all members have */
  pthread_mutex_t lock;
  cudaStream_t stream;
  cudaEvent_t begin[TC_NCCL_SLOTS], end[TC_NCCL_SLOTS];
  float *word;                                   /* the operand of a barrier; with the next, of a meeting */
  /* Set by the one call of abort that found nccl; free is called after abort, in the order of a lock of
   * the caller's. */
  ncclComm_t dying;                              /* what `cutter` aborts */
  pthread_t cutter;
  bool has_cutter;
  int cut;                                       /* it has; atomic */
};

static int nccl_failed(struct tc_nccl *c, ncclResult_t r, const char *where, struct tc_err *err)
{
  pthread_mutex_lock(&c->lock);
  const bool joined = c->joined;
  pthread_mutex_unlock(&c->lock);
  if (!joined && (r == ncclInvalidUsage || r == ncclInvalidArgument))
    return tc_fail(err, TC_EUSER, "NCCL can't join: %s: ranks on parts of one GPU (MIG), or NCCL_ "
                   "settings that are not alike on all of them (NCCL_DEBUG=WARN says more); give each "
                   "rank a GPU of its own, or set run.comm = mpi", c->lib.GetErrorString(r));
  return tc_fail(err, TC_EPEER, "NCCL, %s: %s (NCCL_DEBUG=WARN says more)", where, c->lib.GetErrorString(r));
}

static int cuda_failed(cudaError_t e, const char *where, struct tc_err *err)
{
  return tc_fail(err, TC_EUSER, "device cuda, %s: %s", where, cudaGetErrorString(e));
}

/* ---- making and ending ------------------------------------------------------------------------ */

static int nccl_look(void *device, char gpu[64], struct tc_err *err)
{
  struct library l;
  cudaDeviceProp p;
  int rc = open_library(&l, err);
  if (rc < 0) return rc;
  const cudaError_t e = cudaGetDeviceProperties(&p, tc_cuda_of((struct tc_device *)device)->index);
  if (e != cudaSuccess) return cuda_failed(e, "properties", err);
  for (int i = 0; i < 16; i++) snprintf(gpu + 2 * i, 3, "%02x", (unsigned char)p.uuid.bytes[i]);
  return 0;
}

static int nccl_id(void *device, void *id, struct tc_err *err)
{
  struct library l;
  ncclUniqueId unique;
  (void)device;
  int rc = open_library(&l, err);
  if (rc < 0) return rc;
  const ncclResult_t r = l.GetUniqueId(&unique);
  if (r != ncclSuccess)
    return tc_fail(err, TC_EUSER, "NCCL finds no network to meet over: %s (NCCL_SOCKET_IFNAME names "
                   "one); or set run.comm = mpi", l.GetErrorString(r));
  memcpy(id, &unique, sizeof unique);
  return 0;
}

enum { LEAVE_MS = 2000, CUT_MS = 500, WORD_BYTES = 256 };        /* for the others to leave too; for an abort to end */

static void sleep_ms(void)
{
  struct timespec t = { 0, 1000000 };
  nanosleep(&t, NULL);
}

static void *cut_off(void *arg)
{
  struct tc_nccl *c = (struct tc_nccl *)arg;
  cudaSetDevice(c->gpu);
  c->lib.CommAbort(c->dying);
  __atomic_store_n(&c->cut, 1, __ATOMIC_RELEASE);
  return NULL;
}

static void nccl_abort(struct tc_nccl *c)
{
  pthread_mutex_lock(&c->lock);
  const bool mine = c->nccl != NULL;
  if (mine) c->dying = c->nccl;
  c->nccl = NULL;
  pthread_mutex_unlock(&c->lock);
  if (!mine) return;
  c->has_cutter = pthread_create(&c->cutter, NULL, cut_off, c) == 0;
  if (!c->has_cutter) cut_off(c);
  for (int ms = 0; ms < CUT_MS && !__atomic_load_n(&c->cut, __ATOMIC_ACQUIRE); ms++) sleep_ms();
}

/* If all is done, NCCL finalises with the members, within a limit; else, or beyond that, it
 * is aborted. */
static void take_leave(struct tc_nccl *c)
{
  ncclResult_t r = ncclInProgress, now = ncclInProgress;
  if (!c->nccl) return;
  r = c->lib.CommFinalize(c->nccl);
  for (int ms = 0; ms < LEAVE_MS && (r == ncclSuccess || r == ncclInProgress); ms++) {
    if (c->lib.CommGetAsyncError(c->nccl, &now) != ncclSuccess || now != ncclInProgress) break;
    sleep_ms();
  }
  if (now != ncclSuccess) return;
  c->lib.CommDestroy(c->nccl);
  c->nccl = NULL;
}

static void nccl_free(struct tc_nccl *c, bool done)
{
  if (!c) return;
  cudaSetDevice(c->gpu);
  if (done) take_leave(c);
  nccl_abort(c);
  if (c->has_cutter) pthread_join(c->cutter, NULL);
  for (int i = 0; i < TC_NCCL_SLOTS; i++) {
    if (c->begin[i]) cudaEventDestroy(c->begin[i]);
    if (c->end[i]) cudaEventDestroy(c->end[i]);
  }
  if (c->stream) cudaStreamDestroy(c->stream);
  if (c->word) cudaFree(c->word);
  pthread_mutex_destroy(&c->lock);
  free(c);
}

static cudaError_t make_events(struct tc_nccl *c)
{
  int least = 0, greatest = 0;
  cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  if (e == cudaSuccess) e = cudaStreamCreateWithPriority(&c->stream, cudaStreamNonBlocking, greatest);
  if (e == cudaSuccess) e = cudaMalloc((void **)&c->word, WORD_BYTES);
  if (e == cudaSuccess) e = cudaMemsetAsync(c->word, 0, WORD_BYTES, c->stream);
  for (int i = 0; i < TC_NCCL_SLOTS && e == cudaSuccess; i++) {
    e = cudaEventCreateWithFlags(&c->begin[i], cudaEventDisableTiming);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&c->end[i], cudaEventDisableTiming);
  }
  return e;
}

static bool nccl_in_turns(void *device)
{
  return tc_cuda_of((struct tc_device *)device)->nccl_version < IN_ORDER;
}

static int nccl_join(struct tc_nccl **out, void *device, const void *id, int coord, int size, struct tc_nccl *beside,
                     struct tc_err *err)
{
  ncclUniqueId unique;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  struct tc_nccl *c = (struct tc_nccl *)tc_calloc(1, sizeof *c);
  c->d = (struct tc_device *)device, c->gpu = tc_cuda_of(c->d)->index;
  c->coord = coord, c->size = size, c->turn = c->beside = -1;
  pthread_mutex_init(&c->lock, NULL);
  config.blocking = 0;
  memcpy(&unique, id, sizeof unique);
  tc_cuda_load(c->d);
  int rc = open_library(&c->lib, err);
  if (rc >= 0) c->lib.GetVersion(&tc_cuda_of(c->d)->nccl_version);
  cudaError_t e = rc < 0 ? cudaSuccess : make_events(c);
  if (rc >= 0 && e == cudaSuccess && nccl_in_turns(device)) e = tc_cuda_turn_new(c->d, &c->turn);
  if (c->turn >= 0 && beside) c->beside = beside->turn, beside->beside = c->turn;
  if (e != cudaSuccess) rc = cuda_failed(e, "streams for NCCL", err);
  if (rc >= 0) {
    const ncclResult_t r = c->lib.CommInitRankConfig(&c->nccl, size, unique, coord, &config);
    if (r != ncclSuccess && r != ncclInProgress) {       /* not a failure of peers, which wait */
      c->nccl = NULL;
      rc = tc_fail(err, TC_EUSER, "NCCL can't join: %s (NCCL_DEBUG=WARN says more); or set run.comm = mpi",
                   c->lib.GetErrorString(r));
    }
  }
  if (rc < 0) nccl_free(c, false);
  else *out = c;
  return rc;
}

/* ---- a call ------------------------------------------------------------------------------------ */

static ncclDataType_t type_of(int dtype)
{
  return dtype == TC_F32 ? ncclFloat32 : dtype == TC_BF16 ? ncclBfloat16
       : dtype == TC_F64 ? ncclFloat64 : dtype == TC_I32 ? ncclInt32 : ncclUint8;
}

/* The arguments of the functions below, for one part. */
struct part {
  struct tc_nccl *c;
  const struct tc_coll_args *a;
  const struct tc_part *p;
  const char *src;
  char *dst;
  int64_t elem;                                  /* bytes */
  ncclDataType_t type;
  ncclRedOp_t red;
};

static int64_t first_of(const struct part *x, int i)
{
  return tc_block_start(x->p->count, x->p->block, i, x->c->size);
}
static size_t len_of(const struct part *x, int i)
{
  return (size_t)(first_of(x, i + 1) - first_of(x, i));
}
/* Calls of a non-blocking communicator may return either. */
static bool went(ncclResult_t r) { return r == ncclSuccess || r == ncclInProgress; }
static bool even(const struct part *x) { return x->p->count == x->p->block * x->c->size; }

/* Blocks from or to one member, which may be this one. */
static ncclResult_t send_to(const struct part *x, const char *src, size_t n, int to)
{
  return n ? x->c->lib.Send(src, n, x->type, to, x->c->nccl, x->c->stream) : ncclSuccess;
}
static ncclResult_t recv_from(const struct part *x, char *dst, size_t n, int from)
{
  return n ? x->c->lib.Recv(dst, n, x->type, from, x->c->nccl, x->c->stream) : ncclSuccess;
}

static ncclResult_t reduce_scatter(const struct part *x)
{
  struct tc_nccl *c = x->c;
  ncclResult_t r = ncclSuccess;
  if (even(x)) return c->lib.ReduceScatter(x->src, x->dst, len_of(x, 0), x->type, x->red, c->nccl, c->stream);
  for (int i = 0; i < c->size && went(r); i++)
    if (len_of(x, i))
      r = c->lib.Reduce(x->src + first_of(x, i) * x->elem, x->dst, len_of(x, i), x->type, x->red, i, c->nccl, c->stream);
  return r;
}

static ncclResult_t all_gather(const struct part *x)
{
  struct tc_nccl *c = x->c;
  ncclResult_t r = ncclSuccess;
  if (even(x)) return c->lib.AllGather(x->src, x->dst, len_of(x, 0), x->type, c->nccl, c->stream);
  for (int i = 0; i < c->size && went(r); i++)
    if (len_of(x, i))
      r = c->lib.Broadcast(x->src, x->dst + first_of(x, i) * x->elem, len_of(x, i), x->type, i, c->nccl, c->stream);
  return r;
}

static ncclResult_t scatter(const struct part *x)
{
  const int me = x->c->coord;
  ncclResult_t r = ncclSuccess;
  for (int i = 0; me == x->a->root && i < x->c->size && went(r); i++)
    r = send_to(x, x->src + first_of(x, i) * x->elem, len_of(x, i), i);
  return went(r) ? recv_from(x, x->dst, len_of(x, me), x->a->root) : r;
}

static ncclResult_t gather(const struct part *x)
{
  const int me = x->c->coord;
  ncclResult_t r = ncclSuccess;
  for (int i = 0; me == x->a->root && i < x->c->size && went(r); i++)
    r = recv_from(x, x->dst + first_of(x, i) * x->elem, len_of(x, i), i);
  return went(r) ? send_to(x, x->src, len_of(x, me), x->a->root) : r;
}

static ncclResult_t all_to_all(const struct part *x)
{
  ncclResult_t r = ncclSuccess;
  for (int i = 0; i < x->c->size && went(r); i++) {
    r = send_to(x, x->src + first_of(x, i) * x->elem, len_of(x, i), i);
    if (went(r)) r = recv_from(x, x->dst + first_of(x, i) * x->elem, len_of(x, i), i);
  }
  return r;
}

static ncclResult_t start_part(const struct part *x)
{
  struct tc_nccl *c = x->c;
  const int root = x->a->root;
  const size_t n = (size_t)x->p->count;
  if (n == 0) return ncclSuccess;
  switch (x->a->coll) {
  case TC_ALL_REDUCE: return c->lib.AllReduce(x->src, x->dst, n, x->type, x->red, c->nccl, c->stream);
  case TC_REDUCE_SCATTER: return reduce_scatter(x);
  case TC_ALL_GATHER: return all_gather(x);
  case TC_BROADCAST:                             /* the root's dst must not be written */
    return c->lib.Broadcast(x->src, c->coord == root ? (char *)x->src : x->dst, n, x->type, root, c->nccl, c->stream);
  case TC_REDUCE: return c->lib.Reduce(x->src, x->dst, n, x->type, x->red, root, c->nccl, c->stream);
  case TC_SCATTER: return scatter(x);
  case TC_GATHER: return gather(x);
  case TC_ALL_TO_ALL: return all_to_all(x);
  case TC_SEND: return send_to(x, x->src, n, root);
  case TC_RECV: return recv_from(x, x->dst, n, root);
  default: TC_ASSERT(!"a collective that NCCL is not asked for"); return ncclInternalError;
  }
}

static int aborted(struct tc_err *err)
{
  return tc_fail(err, TC_EPEER, "NCCL was aborted after an earlier failure");
}

/* Makes calls as one group. */
template <class CALLS> static int grouped(struct tc_nccl *c, const char *where, struct tc_err *err, CALLS calls)
{
  pthread_mutex_lock(&c->lock);
  const bool there = c->nccl != NULL;
  ncclResult_t r = there ? c->lib.GroupStart() : ncclSuccess;
  if (there && went(r)) {
    r = calls();
    const ncclResult_t end = c->lib.GroupEnd();
    if (went(r)) r = end;
  }
  pthread_mutex_unlock(&c->lock);
  if (!there) return aborted(err);
  return went(r) ? 0 : nccl_failed(c, r, where, err);
}

static ncclResult_t start_parts(struct tc_nccl *c, const struct tc_coll_args *a)
{
  ncclResult_t r = ncclSuccess;
  if (a->coll == TC_BARRIER) return c->lib.AllReduce(c->word, c->word, 1, ncclFloat32, ncclSum, c->nccl, c->stream);
  for (int i = 0; i < a->n_parts && went(r); i++) {
    const struct tc_part *p = &a->parts[i];
    const struct part x = { c, a, p, (const char *)p->src, (char *)p->dst, (int64_t)tc_dtype_bytes(a->dtype), type_of(a->dtype),
                            a->red == TC_SUM ? ncclSum : ncclMax };
    r = start_part(&x);
  }
  return r;
}

static int nccl_start(struct tc_nccl *c, const struct tc_coll_args *a, int slot, struct tc_err *err)
{
  cudaError_t e = cudaEventRecord(c->begin[slot], tc_stream(c->d));
  if (e == cudaSuccess) e = cudaStreamWaitEvent(c->stream, c->begin[slot], 0);
  if (e == cudaSuccess) e = tc_cuda_turn_wait(c->d, c->stream, c->turn, c->beside);
  if (e != cudaSuccess) return cuda_failed(e, "a transfer's begin", err);
  return grouped(c, "starting a transfer", err, [=] { return start_parts(c, a); });
}

static int nccl_meet(struct tc_nccl *c, const int *to, int n_to, const int *from, int n_from, struct tc_err *err)
{
  TC_ASSERT(n_from < WORD_BYTES / (int)sizeof *c->word);
  return grouped(c, "first words between neighbours", err, [=] {
    ncclResult_t r = ncclSuccess;
    for (int i = 0; i < n_to && went(r); i++) r = c->lib.Send(c->word, 1, ncclFloat32, to[i], c->nccl, c->stream);
    for (int i = 0; i < n_from && went(r); i++) r = c->lib.Recv(c->word + 1 + i, 1, ncclFloat32, from[i], c->nccl, c->stream);
    return r;
  });
}

static int nccl_ready(struct tc_nccl *c, struct tc_err *err)
{
  ncclResult_t now = ncclSuccess, r = ncclSuccess;
  cudaSetDevice(c->gpu);
  pthread_mutex_lock(&c->lock);
  const bool there = c->nccl != NULL;
  if (there) r = c->lib.CommGetAsyncError(c->nccl, &now);
  if (there && r == ncclSuccess && now == ncclSuccess) c->joined = true;
  pthread_mutex_unlock(&c->lock);
  if (!there) return aborted(err);
  if (r != ncclSuccess || (now != ncclSuccess && now != ncclInProgress))
    return nccl_failed(c, r != ncclSuccess ? r : now, "a transfer", err);
  return now == ncclSuccess;
}

static int nccl_mark(struct tc_nccl *c, int slot, struct tc_err *err)
{
  cudaError_t e = cudaEventRecord(c->end[slot], c->stream);
  if (e == cudaSuccess) e = tc_cuda_turn_end(c->d, c->stream, c->turn);
  return e == cudaSuccess ? 0 : cuda_failed(e, "a transfer's end", err);
}

static int nccl_wait_for(struct tc_nccl *c, int slot, struct tc_err *err)
{
  const cudaError_t e = cudaStreamWaitEvent(tc_stream(c->d), c->end[slot], 0);
  return e == cudaSuccess ? 0 : cuda_failed(e, "waiting for a transfer", err);
}

static int nccl_test(struct tc_nccl *c, int slot, struct tc_err *err)
{
  cudaSetDevice(c->gpu);
  const cudaError_t e = cudaEventQuery(c->end[slot]);
  if (e == cudaSuccess) return TC_NCCL_DONE;
  if (e != cudaErrorNotReady) return cuda_failed(e, "a transfer", err);
  cudaGetLastError();                            /* clears "not ready", which is not an error */
  const int rc = nccl_ready(c, err);
  if (rc < 0) return rc;
  const bool begun = cudaEventQuery(c->begin[slot]) == cudaSuccess;
  if (!begun) cudaGetLastError();
  return begun ? TC_NCCL_RUNS : TC_NCCL_QUEUED;
}

extern "C" const struct tc_nccl_ops tc_cuda_nccl = {
  nccl_look, nccl_id, nccl_join, nccl_in_turns, nccl_meet, nccl_ready, nccl_start, nccl_mark, nccl_wait_for, nccl_test,
  nccl_abort, nccl_free
};

#endif
