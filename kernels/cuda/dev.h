/* dev.h - private to the `cuda` device: shared by its kernels. Include it first in
 * the .cu files.
 *
 * The same sources run on a GPU and, compiled as C++ with the headers of tests/emu in place of
 * CUDA's (TC_EMU), on a CPU. All differences are in this file and in ptx.h.
 *
 * A tensor is fp32 or bf16, known at run time (tc_arr), so that each kernel exists once: one branch that is uniform
 * over threads costs little compared with memory access, but separates the loads before it from those after it.
 * Kernels that wait for each load are compiled for bf16 as well (tc_eight). Threads process 8 neighbours:
 * 16 bytes of bf16, twice 16 of fp32; `wide` means that addresses and rows allow that. Sums are
 * computed in an order that depends on shapes, never on the GPU (as grids may, where no sum spans blocks), and nothing is
 * atomic. */
#ifndef TC_CUDA_DEV_H
#define TC_CUDA_DEV_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define _Noreturn [[noreturn]]
extern "C" {
#include "kernels/kernel.h"
}

#define TC_LOG2_E 1.44269504088896341f      /* exp(x) = exp2(x log2 e) */

/* struct tc_runtime for kernels, in device memory: a captured call reads there the values that are valid
 * when it runs. */
struct tc_now {
  uint64_t seed, step;
  double decay, clip, loss_scale;      /* decay: learning rate times weight decay */
  float weight_decay;
  float lr, size, inv_root;      /* size, inv_root: AdamW's, with the corrections of its averages */
  float b1, b2, c1, c2, eps, momentum, muon_momentum;      /* c1 = 1 - b1 */
};

struct tc_lt;
struct tc_events;
struct tc_library_state;
enum { TC_TURNS = 64 };          /* more than the sets of axes of a mesh, two for pipelines */
struct tc_cuda {                 /* tc_device.priv */
  int index;                     /* of the GPU, among those this process may see */
  int capability;                /* 10 major + minor */
  int processors;                /* multiprocessors */
  int64_t shared_bytes, shared_of_block;   /* of a multiprocessor; the most of a block */
  int nccl_version;              /* of the library that was joined; 0: none */
  int n_turns;
  cudaEvent_t turns[TC_TURNS];   /* streams.cu: of NCCL's communicators, if their transfers take turns */
  cudaStream_t stream;           /* kernels, and copies that are in order with them */
  struct tc_copies *copies;      /* streams.cu: asynchronous copies */
  struct tc_lt *lt;              /* gemm.cu */
  struct tc_events *events;      /* streams.cu */
  struct tc_library_state *library;              /* cudnn.cu; NULL: not asked for */
  struct nvtxDomainRegistration_st *profiler;    /* streams.cu; NULL: none is attached */
  struct tc_now now, *now_at;    /* the value of *now_at, which is in device memory */
  bool capturing;
  bool loaded;                   /* all kernels are: transfers may be under way when one is launched */
  cudaError_t error;             /* the first error, kept until it is reported */
  const char *where;
  char name[64];
};
static inline struct tc_cuda *tc_cuda_of(struct tc_device *d) { return (struct tc_cuda *)d->priv; }
static inline cudaStream_t tc_stream(struct tc_device *d) { return tc_cuda_of(d)->stream; }

extern "C" const struct tc_nccl_ops tc_cuda_nccl;     /* nccl.cu; empty without NCCL */
/* streams.cu */
int tc_cuda_copies_new(struct tc_device *d);
void tc_cuda_copies_free(struct tc_device *d);
void tc_cuda_copies_sync(struct tc_device *d);
int64_t tc_cuda_copy_begin(struct tc_device *d, void *dst, const void *src, int64_t bytes);
int64_t tc_cuda_copy_early(struct tc_device *d, void *dst, const void *src, int64_t bytes);
void tc_cuda_copy_order(struct tc_device *d, int64_t copy);
int tc_cuda_copy_wait(struct tc_device *d, int64_t copy);
bool tc_cuda_is_host(const void *p);
extern const struct tc_clock tc_cuda_clock;
extern const struct tc_ranges tc_cuda_ranges;
void tc_cuda_events_free(struct tc_device *d);
void tc_cuda_ranges_new(struct tc_device *d);
void tc_cuda_ranges_free(struct tc_device *d);
/* Streams whose tasks run one after the other: each takes a turn; before a task it waits for the last tasks of all turns but its
 * own and the one beside it (-1: none), after a task it says so. turn -1 has no turn. */
cudaError_t tc_cuda_turn_new(struct tc_device *d, int *turn);
cudaError_t tc_cuda_turn_wait(struct tc_device *d, cudaStream_t stream, int turn, int beside);
cudaError_t tc_cuda_turn_end(struct tc_device *d, cudaStream_t stream, int turn);
/* capture.cu */
extern const struct tc_capture tc_cuda_capture;
int tc_cuda_now_new(struct tc_device *d);
void tc_cuda_now_free(struct tc_device *d);
/* The address from which kernels that are launched next read it. */
const struct tc_now *tc_cuda_now(struct tc_device *d, const struct tc_runtime *rt);

/* Returns 0, or TC_EUSER, and keeps the error for tc_device_ops.check. */
int tc_cuda_check(struct tc_device *d, cudaError_t e, const char *where);
static inline int tc_cuda_launched(struct tc_device *d, const char *where)
{
  return tc_cuda_check(d, cudaGetLastError(), where);
}

/* Before a launch with so many bytes of shared memory. */
template <class K> static inline void tc_allow_shared(struct tc_device *d, K kernel, size_t bytes)
{
  if (bytes > 48 << 10)
    tc_cuda_check(d, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                  "a kernel's shared memory");
}
/* A multiprocessor has room for two blocks with so many bytes of shared memory, each with CUDA's own 1 KB. */
static inline bool tc_two_blocks_fit(struct tc_device *d, int64_t bytes)
{
  return bytes <= tc_cuda_of(d)->shared_of_block && 2 * (bytes + 1024) <= tc_cuda_of(d)->shared_bytes;
}

/* Code of kernels is loaded when they are first launched, for which CUDA may wait until the GPU is idle: for ever, if a
 * transfer on it waits for another rank. So tc_cuda_load loads all, before NCCL is joined. Each file that has kernels
 * has such a function; each kernel is in one (tests/unit/kernels/load.h). */
#define TC_LOADS(X) \
  X(attn) X(attn_bwd) X(attn_fwd) X(attn_plain) X(cache) X(capture) X(elem) X(embed) X(gemm) X(head) X(muon) X(norm) X(optim) \
  X(qknorm) X(rope) X(rows) X(tune) X(xent)
#define X(file) void tc_cuda_load_##file(struct tc_device *d);
TC_LOADS(X)
#undef X
void tc_cuda_load(struct tc_device *d);
template <class... K> static inline void tc_load_kernels(struct tc_device *d, K *...kernel)
{
  cudaFuncAttributes a;
  const cudaError_t e[] = { cudaFuncGetAttributes(&a, kernel)... };
  for (size_t i = 0; i < sizeof e / sizeof *e; i++) tc_cuda_check(d, e[i], "loading kernels");
}

#ifdef TC_EMU
#define TC_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  emu_launch(stream, kernel, grid, block, shared_bytes, __VA_ARGS__)
#define TC_DYNAMIC_SHARED(type, name) type *name = (type *)emu_dynamic_shared()
#else
#define TC_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
#define TC_DYNAMIC_SHARED(type, name) \
  extern __shared__ __align__(128) unsigned char tc_dynamic_shared[]; \
  type *name = (type *)tc_dynamic_shared
#endif

/* ---- tensors of two types ---------------------------------------------------------------- */

struct tc_arr { char *p; bool bf16; };

static inline struct tc_arr tc_arr_of(const struct tc_view *v)
{
  TC_ASSERT(v->dtype == TC_F32 || v->dtype == TC_BF16);
  struct tc_arr a = { (char *)v->data, v->dtype == TC_BF16 };
  return a;
}
static inline float *tc_f32_of(const struct tc_view *v)
{
  TC_ASSERT(v->dtype == TC_F32);
  return (float *)v->data;
}
static inline const int32_t *tc_i32_of(const struct tc_view *v)
{
  TC_ASSERT(v->dtype == TC_I32);
  return (const int32_t *)v->data;
}
static inline bool tc_same(const struct tc_view *a, const struct tc_view *b)
{
  return a->data == b->data && a->elems == b->elems && a->dtype == b->dtype;
}
/* Rows of `cols` elements can be read 8 at once. */
static inline bool tc_wide(int64_t cols, const struct tc_view *a, const struct tc_view *b,
                           const struct tc_view *c)
{
  uintptr_t bits = (uintptr_t)a->data | (b ? (uintptr_t)b->data : 0) | (c ? (uintptr_t)c->data : 0);
  return cols % 8 == 0 && bits % 16 == 0;
}

static __device__ __forceinline__ float tc_from_bf16(uint32_t h)
{
  return __uint_as_float(h << 16);
}

/* Two floats, rounded to nearest even: lo in the lower half. */
static __device__ __forceinline__ uint32_t tc_pack_bf16(float lo, float hi)
{
#ifdef TC_EMU
  return (uint32_t)tc_f32_to_bf16(lo) | (uint32_t)tc_f32_to_bf16(hi) << 16;
#else
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
#endif
}

static __device__ __forceinline__ float tc_get(struct tc_arr a, int64_t i)
{
  return a.bf16 ? tc_from_bf16(((const uint16_t *)a.p)[i]) : ((const float *)a.p)[i];
}
static __device__ __forceinline__ void tc_put(struct tc_arr a, int64_t i, float x)
{
  if (a.bf16) ((uint16_t *)a.p)[i] = (uint16_t)tc_pack_bf16(x, 0.f);
  else ((float *)a.p)[i] = x;
}

static __device__ __forceinline__ void tc_unpack8(float x[8], uint4 q)
{
  const uint32_t w[4] = { q.x, q.y, q.z, q.w };
#pragma unroll
  for (int k = 0; k < 4; k++) {
    x[2 * k] = tc_from_bf16(w[k]);
    x[2 * k + 1] = __uint_as_float(w[k] & 0xffff0000u);
  }
}

static __device__ __forceinline__ void tc_get8(float x[8], struct tc_arr a, int64_t i)
{
  if (a.bf16) {
    tc_unpack8(x, *(const uint4 *)(a.p + 2 * i));
  } else {
    const float4 u = *(const float4 *)(a.p + 4 * i), v = *(const float4 *)(a.p + 4 * i + 16);
    x[0] = u.x, x[1] = u.y, x[2] = u.z, x[3] = u.w;
    x[4] = v.x, x[5] = v.y, x[6] = v.z, x[7] = v.w;
  }
}

static __device__ __forceinline__ void tc_put8(struct tc_arr a, int64_t i, const float x[8])
{
  if (a.bf16) {
    uint4 q;
    q.x = tc_pack_bf16(x[0], x[1]), q.y = tc_pack_bf16(x[2], x[3]);
    q.z = tc_pack_bf16(x[4], x[5]), q.w = tc_pack_bf16(x[6], x[7]);
    *(uint4 *)(a.p + 2 * i) = q;
  } else {
    float4 u, v;
    u.x = x[0], u.y = x[1], u.z = x[2], u.w = x[3];
    v.x = x[4], v.y = x[5], v.z = x[6], v.w = x[7];
    *(float4 *)(a.p + 4 * i) = u;
    *(float4 *)(a.p + 4 * i + 16) = v;
  }
}

/* Elements i .. i+7, of which n exist (< 1: none); the others are 0. */
static __device__ __forceinline__ void tc_load(float x[8], struct tc_arr a, int64_t i, int64_t n,
                                               bool wide)
{
  if (wide && n >= 8) {
    tc_get8(x, a, i);
  } else {
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] = k < n ? tc_get(a, i + k) : 0.f;
  }
}
static __device__ __forceinline__ void tc_store(struct tc_arr a, int64_t i, int64_t n, bool wide,
                                                const float x[8])
{
  if (wide && n >= 8) {
    tc_put8(a, i, x);
  } else {
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (k < n) tc_put(a, i + k, x[k]);
  }
}
/* The same of 4, which begin at a multiple of 4. */
static __device__ __forceinline__ void tc_load4(float x[4], struct tc_arr a, int64_t i, int64_t n, bool wide)
{
  if (!wide || n < 4) {
#pragma unroll
    for (int k = 0; k < 4; k++) x[k] = k < n ? tc_get(a, i + k) : 0.f;
  } else if (a.bf16) {
    const uint2 q = *(const uint2 *)(a.p + 2 * i);
    x[0] = tc_from_bf16(q.x), x[1] = __uint_as_float(q.x & 0xffff0000u);
    x[2] = tc_from_bf16(q.y), x[3] = __uint_as_float(q.y & 0xffff0000u);
  } else {
    const float4 u = *(const float4 *)(a.p + 4 * i);
    x[0] = u.x, x[1] = u.y, x[2] = u.z, x[3] = u.w;
  }
}
static __device__ __forceinline__ void tc_store4(struct tc_arr a, int64_t i, int64_t n, bool wide, const float x[4])
{
  if (!wide || n < 4) {
#pragma unroll
    for (int k = 0; k < 4; k++)
      if (k < n) tc_put(a, i + k, x[k]);
  } else if (a.bf16) {
    uint2 q;
    q.x = tc_pack_bf16(x[0], x[1]), q.y = tc_pack_bf16(x[2], x[3]);
    *(uint2 *)(a.p + 2 * i) = q;
  } else {
    float4 u;
    u.x = x[0], u.y = x[1], u.z = x[2], u.w = x[3];
    *(float4 *)(a.p + 4 * i) = u;
  }
}
/* 8 elements as loaded, BF16: of a bf16 array that is wide, which is known when the kernel is compiled. tc_load's
 * branches are then not there: loads that follow one another are in flight together, and a kernel that waits for
 * memory asks for all it needs before it uses the first. Otherwise as tc_load. */
template <bool BF16> struct tc_eight { float x[8]; };
template <> struct tc_eight<true> { uint4 q; };

template <bool BF16>
static __device__ __forceinline__ void tc_ask(struct tc_eight<BF16> &e, struct tc_arr a, int64_t i, int64_t n,
                                              bool wide)
{
  if constexpr (!BF16) tc_load(e.x, a, i, n, wide);
  else if (n >= 8) e.q = *(const uint4 *)(a.p + 2 * i);
  else e.q.x = e.q.y = e.q.z = e.q.w = 0;
}
template <bool BF16> static __device__ __forceinline__ void tc_take(float x[8], const struct tc_eight<BF16> &e)
{
  if constexpr (BF16) tc_unpack8(x, e.q);
  else
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] = e.x[k];
}

/* y (+)= x. */
static __device__ __forceinline__ void tc_add_to(struct tc_arr a, int64_t i, int64_t n, bool wide,
                                                 bool acc, float x[8])
{
  float old[8];
  if (acc) {
    tc_load(old, a, i, n, wide);
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] += old[k];
  }
  tc_store(a, i, n, wide, x);
}

/* ---- random numbers ----------------------------------------------------------------------- */

/* base/base.h's tc_philox, for one counter. */
static __device__ __forceinline__ void tc_draw(uint32_t x[4], uint64_t key, uint64_t c0, uint64_t c1)
{
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  x[0] = (uint32_t)c0, x[1] = (uint32_t)(c0 >> 32);
  x[2] = (uint32_t)c1, x[3] = (uint32_t)(c1 >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * x[0], p1 = (uint64_t)0xCD9E8D57u * x[2];
    x[0] = (uint32_t)(p1 >> 32) ^ x[1] ^ k0;
    x[2] = (uint32_t)(p0 >> 32) ^ x[3] ^ k1;
    x[1] = (uint32_t)p1;
    x[3] = (uint32_t)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}
/* Word i % 4 of a draw. An index would put the words into memory. */
static __device__ __forceinline__ uint32_t tc_word(const uint32_t x[4], int64_t i)
{
  return i & 2 ? (i & 1 ? x[3] : x[2]) : i & 1 ? x[1] : x[0];
}

/* ---- sums and maxima over a warp and a block ---------------------------------------------- */

/* LANES: over each so many neighbours of a warp. */
template <int LANES = 32, class T> static __device__ __forceinline__ T tc_warp_sum(T x)
{
#pragma unroll
  for (int m = LANES / 2; m > 0; m >>= 1) x += __shfl_xor_sync(0xffffffffu, x, m);
  return x;
}
static __device__ __forceinline__ float tc_warp_max(float x)
{
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, m));
  return x;
}

/* Over a one-dimensional block of up to 1024 threads in whole warps; every thread gets the result. May be
 * called again after a __syncthreads. */
static __device__ double tc_block_sum(double x)
{
  __shared__ double part[32];
  x = tc_warp_sum(x);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (unsigned w = 0; w < blockDim.x / 32; w++) x += part[w];
  return x;
}
static __device__ float tc_block_max(float x)
{
  __shared__ float part[32];
  x = tc_warp_max(x);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  x = part[0];
  for (unsigned w = 1; w < blockDim.x / 32; w++) x = fmaxf(x, part[w]);
  return x;
}

/* A token's loss, where lse is the logarithm of the sum of exponentials, and its gradient by that sum s over dl; m: the
 * largest logit, which is read if z > 0. */
static __device__ __forceinline__ float tc_nll(float lse, float picked, float z)
{
  return z > 0.f ? lse - picked + z * lse * lse : lse - picked;
}
static __device__ __forceinline__ float tc_nll_slope(float dl, float s, float m, float z)
{
  const float ds = dl / s;
  return z > 0.f ? ds * (1.f + 2.f * z * (m + logf(s))) : ds;
}

/* Number of blocks for n items, `each` per block. */
static inline dim3 tc_blocks(int64_t n, int64_t each)
{
  return dim3((unsigned)TC_MAX(1, TC_MIN(tc_ceil_div(n, each), (int64_t)0x7fffffff)));
}

/* ---- the kernels -------------------------------------------------------------------------- */

typedef int tc_cuda_fn(struct tc_device *d, const struct tc_call *c);
typedef int64_t tc_cuda_size_fn(struct tc_device *d, const struct tc_call *c);
/* elem.cu */
tc_cuda_fn tc_cuda_add, tc_cuda_cast, tc_cuda_scale, tc_cuda_dropout, tc_cuda_fill, tc_cuda_accum, tc_cuda_normal, tc_cuda_bias;
tc_cuda_fn tc_cuda_act, tc_cuda_act_bwd, tc_cuda_glu, tc_cuda_glu_bwd, tc_cuda_softcap, tc_cuda_softcap_bwd;
/* rows.cu */
tc_cuda_fn tc_cuda_bias_bwd;
tc_cuda_size_fn tc_cuda_bias_bwd_scratch;
/* out[cols] (+)= part[0][cols] + ... + part[parts-1][cols], part rows `stride` apart. */
void tc_cuda_add_parts(struct tc_device *d, const struct tc_view *out, bool acc, const float *part,
                       int64_t parts, int64_t cols, int64_t stride);
/* norm.cu */
tc_cuda_fn tc_cuda_layernorm, tc_cuda_layernorm_bwd, tc_cuda_rmsnorm, tc_cuda_rmsnorm_bwd;
tc_cuda_size_fn tc_cuda_norm_bwd_scratch;
bool tc_cuda_can_norm_sums(const struct tc_call *const *part, int n);
int64_t tc_cuda_norm_sums_scratch(struct tc_device *d, const struct tc_call *const *part);
int tc_cuda_norm_sums(struct tc_device *d, const struct tc_call *const *part);
/* qknorm.cu */
tc_cuda_fn tc_cuda_qknorm, tc_cuda_qknorm_bwd, tc_cuda_qk_squares, tc_cuda_qk_squares_bwd, tc_cuda_qk_scale, tc_cuda_qk_scale_bwd;
tc_cuda_size_fn tc_cuda_qknorm_bwd_scratch, tc_cuda_qk_scale_bwd_scratch;
/* rope.cu */
tc_cuda_fn tc_cuda_rope, tc_cuda_rope_bwd;
/* cache.cu */
tc_cuda_fn tc_cuda_attn_cache;
int tc_cuda_attn_cache_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err);
/* embed.cu */
tc_cuda_fn tc_cuda_embed, tc_cuda_embed_bwd, tc_cuda_pos, tc_cuda_pos_bwd;
tc_cuda_size_fn tc_cuda_embed_bwd_scratch, tc_cuda_pos_bwd_scratch;
/* head.cu */
tc_cuda_fn tc_cuda_rowmax, tc_cuda_sumexp, tc_cuda_sumexp_bwd, tc_cuda_pick, tc_cuda_pick_bwd;
tc_cuda_fn tc_cuda_nll, tc_cuda_nll_bwd, tc_cuda_sum;
/* xent.cu: fused cross-entropy, forward, backward or both; see there. */
bool tc_cuda_can_xent(struct tc_device *d, const struct tc_call *const *part, int n);
int tc_cuda_xent(struct tc_device *d, const struct tc_call *const *part, int n);
/* optim.cu */
tc_cuda_fn tc_cuda_sqnorm, tc_cuda_clip, tc_cuda_update_one;
tc_cuda_size_fn tc_cuda_sqnorm_scratch, tc_cuda_clip_scratch;
bool tc_cuda_is_update(int op);
/* Updates of many tensors, each with a cast after it or without. */
bool tc_cuda_can_update(const struct tc_call *const *part, int n);
int tc_cuda_update(struct tc_device *d, const struct tc_call *const *part, int n);
/* muon.cu */
tc_cuda_fn tc_cuda_muon;
tc_cuda_size_fn tc_cuda_muon_scratch;
int tc_cuda_muon_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err);
/* gemm.cu */
int tc_cuda_lt_new(struct tc_device *d, struct tc_err *err);
void tc_cuda_lt_free(struct tc_device *d);
int64_t tc_cuda_lt_version(void);                /* 130002 is 13.0.2 */
tc_cuda_fn tc_cuda_matmul;
tc_cuda_size_fn tc_cuda_matmul_scratch;
int tc_cuda_matmul_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err);
/* Fused calls as one product; see there. */
bool tc_cuda_can_multiply(struct tc_device *d, const struct tc_call *const *part, int n);
int64_t tc_cuda_multiply_scratch(struct tc_device *d, const struct tc_call *const *part, int n);
int tc_cuda_multiply(struct tc_device *d, const struct tc_call *const *part, int n);
/* tune.cu */
int tc_cuda_tune(struct tc_device *d, const char *known, bool time, void (*again)(void), char **text, int *timed,
                 struct tc_err *err);
/* attn.cu; what its kernels share is in attn.h. */
enum { TC_CUDA_HEAD_MAX = 256 };
tc_cuda_fn tc_cuda_attn, tc_cuda_attn_bwd, tc_cuda_kv, tc_cuda_kv_bwd, tc_cuda_spread, tc_cuda_spread_bwd, tc_cuda_add_part,
  tc_cuda_part;
tc_cuda_size_fn tc_cuda_attn_scratch, tc_cuda_attn_bwd_scratch;
int tc_cuda_attn_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err);
/* cudnn.cu: attention by a library. After prepare c->plan is not NULL if it may take the call; `takes`: it does. */
extern const struct tc_library tc_cuda_library;
void tc_cuda_library_prepare(struct tc_device *d, struct tc_call *c);
void tc_cuda_library_free(struct tc_device *d);
bool tc_cuda_library_takes(struct tc_device *d, const struct tc_call *c);
tc_cuda_fn tc_cuda_library_attn;                 /* both ways */
tc_cuda_size_fn tc_cuda_library_scratch;
int tc_cuda_library_version(struct tc_device *d);

#endif
