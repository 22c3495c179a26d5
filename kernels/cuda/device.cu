/* device.cu - the `cuda` device: a GPU, its memory and its one stream, and the table of its
 * kernels; the module that the program loads (open.c).
 *
 * Kernels and copies run on one stream in the order of the calls, so none has to wait for
 * another; a copy with host memory is waited for, except those of streams.cu. The first error is kept until
 * it is queried. C++, but without its library: the module needs only cudart and cuBLASLt. */
#include "kernels/cuda/dev.h"

#include <stdarg.h>

/* ---- what src/base has, for this shared object ------------------------------------------------- */

extern "C" int tc_fail(struct tc_err *err, int status, const char *fmt, ...)
{
  if (!err) return status;
  va_list ap;
  va_start(ap, fmt);
  err->status = status;
  vsnprintf(err->text, sizeof err->text, fmt, ap);
  va_end(ap);
  return status;
}

extern "C" [[noreturn]] void tc_assert_fail(const char *cond, const char *file, int line)
{
  fprintf(stderr, "tercio: %s:%d: assertion failed: %s\n", file, line, cond);
  abort();
}

extern "C" void *tc_calloc(size_t n, size_t bytes)
{
  void *p = calloc(n ? n : 1, bytes ? bytes : 1);
  if (!p) tc_assert_fail("out of host memory", __FILE__, __LINE__);
  return p;
}

extern "C" size_t tc_dtype_bytes(int dtype)
{
  return dtype == TC_BF16 ? 2 : dtype == TC_F64 ? 8 : dtype == TC_U8 ? 1 : 4;
}

extern "C" const char *tc_dtype_name(int dtype)
{
  return dtype == TC_BF16 ? "bf16" : dtype == TC_F64 ? "f64" : dtype == TC_F32 ? "f32" : "integers";
}

/* ---- errors -------------------------------------------------------------------------------- */

int tc_cuda_check(struct tc_device *d, cudaError_t e, const char *where)
{
  struct tc_cuda *x = tc_cuda_of(d);
  if (e == cudaSuccess) return 0;
  if (x->error == cudaSuccess) x->error = e, x->where = where;
  return TC_EUSER;
}

static int cuda_check(struct tc_device *d, struct tc_err *err)
{
  struct tc_cuda *x = tc_cuda_of(d);
  tc_cuda_check(d, cudaGetLastError(), "an earlier call");
  if (x->error == cudaSuccess) return 0;
  return tc_fail(err, TC_EUSER, "device cuda: GPU %d (%s), %s: %s", x->index, x->name, x->where,
                 cudaGetErrorString(x->error));
}

/* ---- the device ------------------------------------------------------------------------------ */

static void cuda_close(struct tc_device *d)
{
  struct tc_cuda *x = tc_cuda_of(d);
  if (!x) return;
  if (x->stream) {
    cudaStreamSynchronize(x->stream);
    tc_cuda_lt_free(d);
    tc_cuda_library_free(d);
    tc_cuda_copies_free(d);
    tc_cuda_now_free(d);
    tc_cuda_events_free(d);
    tc_cuda_ranges_free(d);
    for (int i = 0; i < x->n_turns; i++) cudaEventDestroy(x->turns[i]);
    cudaStreamDestroy(x->stream);
  }
  free(x);
  d->priv = NULL;
}

static int open_gpu(struct tc_device *d, struct tc_err *err)
{
  struct tc_cuda *x = tc_cuda_of(d);
  cudaDeviceProp p;
  int n = 0;
  cudaError_t e = cudaGetDeviceCount(&n);
  if (e != cudaSuccess || n == 0)
    return tc_fail(err, TC_EUSER, "device cuda: no GPU that can be used: %s (is the NVIDIA driver "
                   "loaded, and did the job ask for GPUs?); or set run.device = cpu",
                   e == cudaSuccess ? "none is visible" : cudaGetErrorString(e));
  if (d->bus[0] && cudaDeviceGetByPCIBusId(&x->index, d->bus) != cudaSuccess)
    return tc_fail(err, TC_EUSER, "device cuda: the GPU at PCI bus %s is not among the %d that CUDA "
                   "sees; unset CUDA_DEVICE_ORDER, or compare CUDA_VISIBLE_DEVICES with `tercio "
                   "place`", d->bus, n);
  if (x->index >= n)
    return tc_fail(err, TC_EUSER, "device cuda: GPU %d was asked for, %d %s visible", x->index, n,
                   n == 1 ? "is" : "are");
  e = cudaSetDevice(x->index);
  if (e == cudaSuccess) e = cudaGetDeviceProperties(&p, x->index);
  if (e == cudaSuccess && 10 * p.major + p.minor < TC_CAPABILITY)
    return tc_fail(err, TC_EUSER, "device cuda: GPU %d, %s, has compute capability %d.%d; %d.%d or "
                   "later is needed", x->index, p.name, p.major, p.minor, TC_CAPABILITY / 10,
                   TC_CAPABILITY % 10);
  if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&x->stream, cudaStreamNonBlocking);
  if (e != cudaSuccess)
    return tc_fail(err, TC_EUSER, "device cuda: GPU %d: %s (is another program using it alone?)",
                   x->index, cudaGetErrorString(e));
  snprintf(x->name, sizeof x->name, "%.63s", p.name);
  x->capability = 10 * p.major + p.minor;
  x->processors = p.multiProcessorCount;
  tc_cuda_ranges_new(d);
  x->shared_bytes = (int64_t)p.sharedMemPerMultiprocessor;
  x->shared_of_block = (int64_t)p.sharedMemPerBlockOptin;
  if (tc_cuda_copies_new(d) < 0 || tc_cuda_now_new(d) < 0) return cuda_check(d, err);
  return tc_cuda_lt_new(d, err);
}

static int cuda_open(struct tc_device *d, struct tc_err *err)
{
  struct tc_cuda *x = (struct tc_cuda *)tc_calloc(1, sizeof *x);
  x->index = d->index;
  d->priv = x;
  const int rc = open_gpu(d, err);
  if (rc < 0) {
    cuda_close(d);
    cudaGetLastError();
  }
  return rc;
}

static void cuda_sync(struct tc_device *d)
{
  tc_cuda_check(d, cudaStreamSynchronize(tc_stream(d)), "kernels in flight");
}

/* Not the GPU's own: the stream must end before the host goes on. */
bool tc_cuda_is_host(const void *p)
{
  cudaPointerAttributes a;
  if (cudaPointerGetAttributes(&a, p) == cudaSuccess) return a.type != cudaMemoryTypeDevice;
  cudaGetLastError();
  return true;
}

static void cuda_fill(struct tc_device *d, void *p, int byte, int64_t bytes)
{
  if (!tc_cuda_is_host(p)) {
    tc_cuda_check(d, cudaMemsetAsync(p, byte, (size_t)bytes, tc_stream(d)), "fill");
    return;
  }
  cuda_sync(d);
  memset(p, byte, (size_t)bytes);
}

static void *cuda_alloc(struct tc_device *d, int64_t bytes)
{
  void *p = NULL;
  if (cudaMalloc(&p, (size_t)TC_MAX(bytes, 64)) != cudaSuccess) {
    cudaGetLastError();                          /* the caller says what it wanted */
    return NULL;
  }
  cuda_fill(d, p, 0, TC_MAX(bytes, 64));
  cuda_sync(d);
  return p;
}

static void cuda_free(struct tc_device *d, void *p, int64_t bytes)
{
  (void)bytes;
  cuda_sync(d);
  tc_cuda_copies_sync(d);
  tc_cuda_check(d, cudaFree(p), "free");
}

static void cuda_copy(struct tc_device *d, void *dst, const void *src, int64_t bytes)
{
  if (bytes <= 0 || dst == src) return;
  tc_cuda_check(d, cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDefault, tc_stream(d)),
               "copy");
  if (tc_cuda_is_host(dst) || tc_cuda_is_host(src)) cuda_sync(d);
}

static void cuda_copy_rows(struct tc_device *d, void *dst, int64_t dst_step, const void *src,
                           int64_t src_step, int64_t row_bytes, int64_t rows)
{
  /* One row's steps mean nothing, and CUDA takes none of 2 GiB or more. */
  if (rows == 1 || (dst_step == row_bytes && src_step == row_bytes)) {
    cuda_copy(d, dst, src, row_bytes * rows);
    return;
  }
  tc_cuda_check(d, cudaMemcpy2DAsync(dst, (size_t)dst_step, src, (size_t)src_step, (size_t)row_bytes,
                                    (size_t)rows, cudaMemcpyDefault, tc_stream(d)), "copy of rows");
  if (tc_cuda_is_host(dst) || tc_cuda_is_host(src)) cuda_sync(d);
}

static void *cuda_host_alloc(struct tc_device *d, int64_t bytes)
{
  void *p = NULL;
  (void)d;
  if (cudaHostAlloc(&p, (size_t)TC_MAX(bytes, 1), cudaHostAllocDefault) == cudaSuccess) return p;
  cudaGetLastError();
  return NULL;
}

static void cuda_host_free(struct tc_device *d, void *p)
{
  if (!p) return;
  tc_cuda_copies_sync(d);
  tc_cuda_check(d, cudaFreeHost(p), "free of host memory");
}

static void cuda_memory(struct tc_device *d, int64_t *free_bytes, int64_t *total_bytes)
{
  size_t left = 0, total = 0;
  tc_cuda_check(d, cudaMemGetInfo(&left, &total), "memory");
  *free_bytes = (int64_t)left;
  *total_bytes = (int64_t)total;
}

/* "cuBLASLt 13.0.2, cuDNN 9.19.0, NCCL 2.27.3, CUDA driver 13.0, NVIDIA H200" */
static void cuda_version(struct tc_device *d, char *text, size_t size)
{
  const struct tc_cuda *x = tc_cuda_of(d);
  const int lt = (int)tc_cuda_lt_version(), nccl = x->nccl_version, dnn = tc_cuda_library_version(d);
  char joined[40] = "", library[40] = "";
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (nccl) snprintf(joined, sizeof joined, "NCCL %d.%d.%d, ", nccl / 10000, nccl / 100 % 100, nccl % 100);
  if (dnn) snprintf(library, sizeof library, "cuDNN %d.%d.%d, ", dnn / 10000, dnn / 100 % 100, dnn % 100);
  snprintf(text, size, "cuBLASLt %d.%d.%d, %s%sCUDA driver %d.%d, %s", lt / 10000, lt / 100 % 100, lt % 100, library,
           joined, driver / 1000, driver / 10 % 100, x->name);
}

static bool cuda_has_bf16(struct tc_device *d)
{
  (void)d;
  return true;
}

void tc_cuda_load(struct tc_device *d)
{
  if (tc_cuda_of(d)->loaded) return;
#define X(file) tc_cuda_load_##file(d);
  TC_LOADS(X)
#undef X
  tc_cuda_of(d)->loaded = true;
}

/* ---- the table ---------------------------------------------------------------------------- */

/* By the rows of graph/op.def: a new op without a kernel does not compile. */
#define KERNEL_DATA { NULL, NULL, NULL, NULL }
#define KERNEL_RESHARD { NULL, NULL, NULL, NULL }
#define KERNEL_EMBED { tc_cuda_embed, NULL, NULL, NULL }
#define KERNEL_POS { tc_cuda_pos, NULL, NULL, NULL }
#define KERNEL_LAYERNORM { tc_cuda_layernorm, NULL, NULL, NULL }
#define KERNEL_MATMUL { tc_cuda_matmul, tc_cuda_matmul_scratch, tc_cuda_matmul_prepare, NULL }
#define KERNEL_BIAS { tc_cuda_bias, NULL, NULL, NULL }
#define KERNEL_ACT { tc_cuda_act, NULL, NULL, NULL }
#define KERNEL_ADD { tc_cuda_add, NULL, NULL, NULL }
#define KERNEL_CAST { tc_cuda_cast, NULL, NULL, NULL }
#define KERNEL_DROPOUT { tc_cuda_dropout, NULL, NULL, NULL }
#define KERNEL_ATTN { tc_cuda_attn, tc_cuda_attn_scratch, tc_cuda_attn_prepare, NULL }
#define KERNEL_KV { tc_cuda_kv, NULL, NULL, NULL }
#define KERNEL_KV_BWD { tc_cuda_kv_bwd, NULL, NULL, NULL }
#define KERNEL_SPREAD { tc_cuda_spread, NULL, NULL, NULL }
#define KERNEL_SPREAD_BWD { tc_cuda_spread_bwd, NULL, NULL, NULL }
#define KERNEL_ADD_PART { tc_cuda_add_part, NULL, NULL, NULL }
#define KERNEL_PART { tc_cuda_part, NULL, NULL, NULL }
#define KERNEL_ATTN_CACHE { tc_cuda_attn_cache, NULL, tc_cuda_attn_cache_prepare, NULL }
#define KERNEL_ROWMAX { tc_cuda_rowmax, NULL, NULL, NULL }
#define KERNEL_SUMEXP { tc_cuda_sumexp, NULL, NULL, NULL }
#define KERNEL_PICK { tc_cuda_pick, NULL, NULL, NULL }
#define KERNEL_NLL { tc_cuda_nll, NULL, NULL, NULL }
#define KERNEL_SUM { tc_cuda_sum, NULL, NULL, NULL }
#define KERNEL_LAYERNORM_BWD { tc_cuda_layernorm_bwd, tc_cuda_norm_bwd_scratch, NULL, NULL }
#define KERNEL_BIAS_BWD { tc_cuda_bias_bwd, tc_cuda_bias_bwd_scratch, NULL, NULL }
#define KERNEL_ACT_BWD { tc_cuda_act_bwd, NULL, NULL, NULL }
#define KERNEL_ATTN_BWD { tc_cuda_attn_bwd, tc_cuda_attn_bwd_scratch, tc_cuda_attn_prepare, NULL }
#define KERNEL_EMBED_BWD { tc_cuda_embed_bwd, tc_cuda_embed_bwd_scratch, NULL, NULL }
#define KERNEL_POS_BWD { tc_cuda_pos_bwd, tc_cuda_pos_bwd_scratch, NULL, NULL }
#define KERNEL_SUMEXP_BWD { tc_cuda_sumexp_bwd, NULL, NULL, NULL }
#define KERNEL_PICK_BWD { tc_cuda_pick_bwd, NULL, NULL, NULL }
#define KERNEL_NLL_BWD { tc_cuda_nll_bwd, NULL, NULL, NULL }
#define KERNEL_FILL { tc_cuda_fill, NULL, NULL, NULL }
#define KERNEL_ACCUM { tc_cuda_accum, NULL, NULL, NULL }
#define KERNEL_SQNORM { tc_cuda_sqnorm, tc_cuda_sqnorm_scratch, NULL, NULL }
#define KERNEL_CLIP { tc_cuda_clip, tc_cuda_clip_scratch, NULL, NULL }
#define KERNEL_ADAMW { tc_cuda_update_one, NULL, NULL, NULL }
#define KERNEL_SGD { tc_cuda_update_one, NULL, NULL, NULL }
#define KERNEL_MOMENTUM { tc_cuda_update_one, NULL, NULL, NULL }
#define KERNEL_LION { tc_cuda_update_one, NULL, NULL, NULL }
#define KERNEL_MUON { tc_cuda_muon, tc_cuda_muon_scratch, tc_cuda_muon_prepare, NULL }
#define KERNEL_NORMAL { tc_cuda_normal, NULL, NULL, NULL }
#define KERNEL_RMSNORM { tc_cuda_rmsnorm, NULL, NULL, NULL }
#define KERNEL_RMSNORM_BWD { tc_cuda_rmsnorm_bwd, tc_cuda_norm_bwd_scratch, NULL, NULL }
#define KERNEL_QKNORM { tc_cuda_qknorm, NULL, NULL, NULL }
#define KERNEL_QKNORM_BWD { tc_cuda_qknorm_bwd, tc_cuda_qknorm_bwd_scratch, NULL, NULL }
#define KERNEL_ROPE { tc_cuda_rope, NULL, NULL, NULL }
#define KERNEL_ROPE_BWD { tc_cuda_rope_bwd, NULL, NULL, NULL }
#define KERNEL_QK_SQUARES { tc_cuda_qk_squares, NULL, NULL, NULL }
#define KERNEL_QK_SQUARES_BWD { tc_cuda_qk_squares_bwd, NULL, NULL, NULL }
#define KERNEL_QK_SCALE { tc_cuda_qk_scale, NULL, NULL, NULL }
#define KERNEL_QK_SCALE_BWD { tc_cuda_qk_scale_bwd, tc_cuda_qk_scale_bwd_scratch, NULL, NULL }
#define KERNEL_SCALE { tc_cuda_scale, NULL, NULL, NULL }
#define KERNEL_SOFTCAP { tc_cuda_softcap, NULL, NULL, NULL }
#define KERNEL_SOFTCAP_BWD { tc_cuda_softcap_bwd, NULL, NULL, NULL }
#define KERNEL_GLU { tc_cuda_glu, NULL, NULL, NULL }
#define KERNEL_GLU_BWD { tc_cuda_glu_bwd, NULL, NULL, NULL }
static const struct tc_kernel kernels[TC_OPS] = {
#define OP(id, name, n_in, n_out, rule, unsplittable, flags, what) KERNEL_##id,
#include "src/graph/op.def"
#undef OP
};

/* ---- fused calls: a product or a norm's gradient with what comes before or after it, cross-entropy, or updates ----- */

static bool can_fuse(struct tc_device *d, const struct tc_call *const *part, int n)
{
  return tc_cuda_can_multiply(d, part, n) || tc_cuda_can_xent(d, part, n)
         || tc_cuda_can_update(part, n) || tc_cuda_can_norm_sums(part, n);
}

static int64_t fused_scratch(struct tc_device *d, const struct tc_call *const *part, int n)
{
  return tc_cuda_can_norm_sums(part, n) ? tc_cuda_norm_sums_scratch(d, part) : tc_cuda_multiply_scratch(d, part, n);
}

static int run_fused(struct tc_device *d, const struct tc_call *const *part, int n)
{
  const int op = part[0]->op;
  if (tc_cuda_is_update(op)) return tc_cuda_update(d, part, n);
  if (op == TC_OP_LAYERNORM_BWD || op == TC_OP_RMSNORM_BWD) return tc_cuda_norm_sums(d, part);
  if (op == TC_OP_MATMUL || op == TC_OP_BIAS_BWD) return tc_cuda_multiply(d, part, n);
  return tc_cuda_xent(d, part, n);
}

static const struct tc_fused fused = { can_fuse, fused_scratch, run_fused };

static const struct tc_device_ops ops = {
  "cuda", cuda_open, cuda_close, cuda_alloc, cuda_free, cuda_copy, cuda_sync, cuda_has_bf16,
  kernels, &fused, true, cuda_fill, cuda_copy_rows, cuda_host_alloc, cuda_host_free, cuda_memory,
  cuda_check, &tc_cuda_nccl, tc_cuda_copy_begin, tc_cuda_copy_early, tc_cuda_copy_order, tc_cuda_copy_wait,
  &tc_cuda_capture, &tc_cuda_clock, tc_cuda_tune, cuda_version, &tc_cuda_ranges,
  &tc_cuda_library,
};

extern "C" __attribute__((visibility("default"))) const struct tc_module tc_module = {
  TC_MODULE_VERSION, TC_MODULE_LAYOUT, &ops
};
