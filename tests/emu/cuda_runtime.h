/* cuda_runtime.h - stands in for CUDA's header, so that the sources of kernels/cuda compile as C++ and run
 * on a CPU: what the tests of the CUDA device stand on where there is no GPU.
 *
 * Every thread of a block is a fiber; a block runs to its end before the next one starts. A
 * warp's collective operations (shuffles, votes, mma) and __syncthreads are places where fibers
 * wait for each other. What is stricter than on a GPU, so that mistakes show:
 * - shared memory is filled with NaN before every block, and ends where it was asked to;
 * - device memory can be touched by kernels and by cudaMemcpy alone: elsewhere it has no access;
 * - asynchronous copies into shared memory arrive when they are waited for, not before;
 * - kernels, copies and events run in streams, lazily (emu.h): a wait that is missing between two
 *   streams gives old data;
 * - a barrier that not all threads reach, or a warp operation that not all lanes do, aborts;
 * - TC_EMU_REVERSE=1 runs threads and blocks from last to first.
 * Only what our kernels use is here. */
#ifndef TC_EMU_CUDA_RUNTIME_H
#define TC_EMU_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("emu_shared")))

struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };

/* ---- what a thread sees ------------------------------------------------------------------ */

struct emu_self { uint3 thread, block; dim3 block_dim, grid_dim; unsigned lane; };
extern emu_self *emu_me;
#define threadIdx (emu_me->thread)
#define blockIdx (emu_me->block)
#define blockDim (emu_me->block_dim)
#define gridDim (emu_me->grid_dim)

void __syncthreads(void);
void *emu_dynamic_shared(void);

/* All lanes of the warp bring `bytes` (at most EMU_SLOT); when the last one has come, fn (if any)
 * works on all of them; then each lane has its own back, and may look at the others' until its
 * next warp operation. */
enum { EMU_SLOT = 64 };
typedef void emu_warp_fn(unsigned char (*slot)[EMU_SLOT], int arg);
void emu_warp_op(void *mine, size_t bytes, emu_warp_fn *fn, int arg);
const void *emu_of_lane(unsigned lane);

static inline void __syncwarp(unsigned = 0xffffffffu) { emu_warp_op(NULL, 0, NULL, 0); }
template <class T> static inline T emu_shuffle(T v, unsigned from)
{
  emu_warp_op(&v, sizeof v, NULL, 0);
  T other;
  memcpy(&other, emu_of_lane(from & 31), sizeof other);
  return other;
}
template <class T> static inline T __shfl_sync(unsigned, T v, int lane)
{ return emu_shuffle(v, (unsigned)lane); }
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int mask)
{ return emu_shuffle(v, emu_me->lane ^ (unsigned)mask); }
template <class T> static inline T __shfl_up_sync(unsigned, T v, unsigned by)
{ return emu_shuffle(v, emu_me->lane < by ? emu_me->lane : emu_me->lane - by); }

/* Tensor cores, as PTX says which lane has which element (mma.sync.m16n8k16, ldmatrix). */
void emu_mma_m16n8k16(float c[4], const uint32_t a[4], const uint32_t b[2]);
void emu_ldmatrix_x4(uint32_t r[4], const void *row, bool trans);
/* 16 bytes, zeros if !take; they arrive in emu_cp_async_wait. */
void emu_cp_async(void *dst, const void *src, bool take);
void emu_cp_async_commit(void);
void emu_cp_async_wait(int groups_left);

static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }

/* ---- launching --------------------------------------------------------------------------- */

typedef struct emu_stream *cudaStream_t;
void emu_run(cudaStream_t stream, const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
             std::function<void()> body);
template <class... P, class... A>
static void emu_launch(cudaStream_t stream, void (*kernel)(P...), dim3 grid, dim3 block,
                       size_t shared_bytes, A... args)
{
  emu_run(stream, (const void *)kernel, grid, block, shared_bytes, [=] { kernel(args...); });
}

/* ---- the runtime's calls ----------------------------------------------------------------- */

enum cudaError_t {
  cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9, cudaErrorNoDevice = 100, cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400, cudaErrorNotReady = 600,
  cudaErrorStreamCaptureUnsupported = 900, cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorUnknown = 999
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum { cudaStreamNonBlocking = 1, cudaHostAllocDefault = 0, cudaEventDefault = 0, cudaEventDisableTiming = 2 };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
struct cudaPointerAttributes { cudaMemoryType type; };
struct cudaUUID_t { char bytes[16]; };
struct cudaDeviceProp {
  char name[256]; cudaUUID_t uuid; int major, minor, multiProcessorCount;
  size_t sharedMemPerMultiprocessor, sharedMemPerBlockOptin;
};
typedef struct emu_event *cudaEvent_t;

cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *bus);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t);
cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventQuery(cudaEvent_t e);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
/* A stream that is captured keeps its work in a graph; what the host has a part in spoils it. */
typedef struct emu_graph *cudaGraph_t, *cudaGraphExec_t;
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long);
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t emu_func_shared(const void *kernel, int bytes);
template <class K>
static inline cudaError_t cudaFuncSetAttribute(K kernel, cudaFuncAttribute, int bytes)
{ return emu_func_shared((const void *)kernel, bytes); }
/* Loads the kernel. With TC_EMU_LOADED a launch of one that was not loaded before aborts. */
struct cudaFuncAttributes { int numRegs; };
cudaError_t emu_func_load(const void *kernel);
template <class K> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, K kernel)
{ return emu_func_load((const void *)kernel); }

/* Work that is no kernel (the stand-in of cuBLASLt): in its turn, with device memory open. */
void emu_call(cudaStream_t s, std::function<void()> body);

#endif
