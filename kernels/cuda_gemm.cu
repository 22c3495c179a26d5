/* cuda_gemm.cu - products by cuBLASLt; the only file that knows it.
 *
 * The library is column-major: a row-major matrix is its transpose there, so C = op(A) op(B) is
 * asked as C^T = op(B)^T op(A)^T, B first. The bias is an epilogue where the library takes its
 * type (that of C), else a kernel after the product. fp32 is fp32: no TF32.
 *
 * What the heuristics choose is kept per shape, types, bias and alignment for the life of the
 * device. A sum that is split over k is added in fp32 in the workspace, in a fixed order: the same
 * bits every time. The workspace is the call's scratch. */
#include "kernels/cuda_dev.h"

#include <cublasLt.h>

enum { WORKSPACE_BYTES = 32 << 20, WIDE_BYTES = 16 };

struct key {
  int64_t m, n, k;
  uint8_t ta, tb, in, out, bias, narrow, none[2];   /* bias: as an epilogue */
};

struct plan {
  struct key key;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c;                   /* a: B of the call, b: A */
  cublasLtMatmulAlgo_t algo;
  size_t workspace_bytes;
  struct plan *next;
};

struct tc_lt { cublasLtHandle_t handle; struct plan *plans; };

int tc_cuda_lt_new(struct tc_device *d, struct tc_err *err)
{
  struct tc_lt *x = (struct tc_lt *)tc_calloc(1, sizeof *x);
  tc_cuda_of(d)->lt = x;
  if (cublasLtCreate(&x->handle) == CUBLAS_STATUS_SUCCESS) return 0;
  return tc_fail(err, TC_EUSER, "device cuda: cuBLASLt can't be started on GPU %d; is the driver "
                 "as new as this build's CUDA?", tc_cuda_of(d)->index);
}

static void plan_free(struct plan *p)
{
  if (p->desc) cublasLtMatmulDescDestroy(p->desc);
  if (p->a) cublasLtMatrixLayoutDestroy(p->a);
  if (p->b) cublasLtMatrixLayoutDestroy(p->b);
  if (p->c) cublasLtMatrixLayoutDestroy(p->c);
  free(p);
}

void tc_cuda_lt_free(struct tc_device *d)
{
  struct tc_lt *x = tc_cuda_of(d)->lt;
  if (!x) return;
  for (struct plan *p = x->plans, *next; p; p = next) {
    next = p->next;
    plan_free(p);
  }
  cublasLtDestroy(x->handle);
  free(x);
  tc_cuda_of(d)->lt = NULL;
}

static cudaDataType_t type_of(int dtype) { return dtype == TC_BF16 ? CUDA_R_16BF : CUDA_R_32F; }

static struct key key_of(const struct tc_call *c, bool narrow)
{
  struct key k;
  memset(&k, 0, sizeof k);
  k.m = c->gemm.m, k.n = c->gemm.n, k.k = c->gemm.k, k.ta = c->gemm.ta, k.tb = c->gemm.tb;
  k.in = c->in[0].dtype, k.out = c->out[0].dtype;
  k.bias = c->n_in > 2 && c->in[2].dtype == c->out[0].dtype;
  k.narrow = narrow;
  return k;
}

static bool describe(struct plan *p)
{
  const struct key *k = &p->key;
  const cublasOperation_t op_a = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_b = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cudaDataType_t in = type_of(k->in), out = type_of(k->out);
  bool good = cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)
                  == CUBLAS_STATUS_SUCCESS;
  good = good && cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &op_a,
                                                sizeof op_a) == CUBLAS_STATUS_SUCCESS
         && cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &op_b,
                                           sizeof op_b) == CUBLAS_STATUS_SUCCESS;
  if (good && k->bias) {
    const cublasLtEpilogue_t e = CUBLASLT_EPILOGUE_BIAS;
    /* The heuristics want an address, and may look at how it is aligned. */
    const uintptr_t somewhere = 256 + (k->narrow ? tc_dtype_bytes(k->out) : 0);
    good = cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &somewhere,
                                          sizeof somewhere) == CUBLAS_STATUS_SUCCESS
           && cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e)
               == CUBLAS_STATUS_SUCCESS
           && cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &out,
                                             sizeof out) == CUBLAS_STATUS_SUCCESS;
  }
  /* Rows of the stored matrix are the library's columns. */
  const int64_t rows_a = k->tb ? k->k : k->n, cols_a = k->tb ? k->n : k->k;
  const int64_t rows_b = k->ta ? k->m : k->k, cols_b = k->ta ? k->k : k->m;
  return good
         && cublasLtMatrixLayoutCreate(&p->a, in, (uint64_t)rows_a, (uint64_t)cols_a, rows_a)
                == CUBLAS_STATUS_SUCCESS
         && cublasLtMatrixLayoutCreate(&p->b, in, (uint64_t)rows_b, (uint64_t)cols_b, rows_b)
                == CUBLAS_STATUS_SUCCESS
         && cublasLtMatrixLayoutCreate(&p->c, out, (uint64_t)k->n, (uint64_t)k->m, k->n)
                == CUBLAS_STATUS_SUCCESS;
}

static bool choose(struct tc_lt *x, struct plan *p)
{
  cublasLtMatmulPreference_t pref;
  const size_t most = WORKSPACE_BYTES;
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const uint32_t in = p->key.narrow ? (uint32_t)tc_dtype_bytes(p->key.in) : (uint32_t)WIDE_BYTES;
  const uint32_t out = p->key.narrow ? (uint32_t)tc_dtype_bytes(p->key.out) : (uint32_t)WIDE_BYTES;
  const struct { cublasLtMatmulPreferenceAttributes_t name; const void *value; size_t bytes; }
  set[] = { { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most },
            { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes },
            { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &in, sizeof in },
            { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &in, sizeof in },
            { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof out },
            { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof out } };
  if (cublasLtMatmulPreferenceCreate(&pref) != CUBLAS_STATUS_SUCCESS) return false;
  bool good = true;
  for (size_t i = 0; i < sizeof set / sizeof *set; i++)
    good = good && cublasLtMatmulPreferenceSetAttribute(pref, set[i].name, set[i].value,
                                                        set[i].bytes) == CUBLAS_STATUS_SUCCESS;
  cublasLtMatmulHeuristicResult_t result;
  int n = 0;
  memset(&result, 0, sizeof result);
  good = good && cublasLtMatmulAlgoGetHeuristic(x->handle, p->desc, p->a, p->b, p->c, p->c, pref, 1,
                                                &result, &n) == CUBLAS_STATUS_SUCCESS && n > 0;
  cublasLtMatmulPreferenceDestroy(pref);
  p->algo = result.algo;
  p->workspace_bytes = result.workspaceSize;
  return good;
}

/* The plan of a shape; made if it is new. NULL: the library has none. */
static struct plan *plan_of(struct tc_device *d, const struct tc_call *c, bool narrow)
{
  struct tc_lt *x = tc_cuda_of(d)->lt;
  const struct key key = key_of(c, narrow);
  for (struct plan *p = x->plans; p; p = p->next)
    if (memcmp(&p->key, &key, sizeof key) == 0) return p;
  struct plan *p = (struct plan *)tc_calloc(1, sizeof *p);
  p->key = key;
  if (!describe(p) || !choose(x, p)) {
    plan_free(p);
    return NULL;
  }
  p->next = x->plans;
  x->plans = p;
  return p;
}

static bool nothing(const struct tc_call *c) { return c->gemm.m == 0 || c->gemm.n == 0; }

int64_t tc_cuda_matmul_scratch(struct tc_device *d, const struct tc_call *c)
{
  size_t bytes = 0;
  for (int narrow = 0; !nothing(c) && narrow < 2; narrow++) {
    const struct plan *p = plan_of(d, c, narrow != 0);
    if (p) bytes = TC_MAX(bytes, p->workspace_bytes);
  }
  return (int64_t)bytes;
}

/* Both plans are there before the first run; a view's address may be a narrow one. */
int tc_cuda_matmul_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err)
{
  const struct tc_gemm *g = &c->gemm;
  TC_ASSERT(c->in[0].elems == g->m * g->k && c->in[1].elems == g->k * g->n
            && c->out[0].elems == g->m * g->n && c->in[0].dtype == c->in[1].dtype);
  c->plan = NULL;
  if (nothing(c)) return 0;
  struct plan *narrow = plan_of(d, c, true), *wide = plan_of(d, c, false);
  if (!narrow && !wide)
    return tc_fail(err, TC_EUSER, "device cuda: cuBLASLt has no product of %lld x %lld x %lld "
                   "(%s to %s)", (long long)g->m, (long long)g->n, (long long)g->k,
                   tc_dtype_name(c->in[0].dtype), tc_dtype_name(c->out[0].dtype));
  return 0;
}

/* y[n] += b[j], where the library does not take the bias. */
static __global__ void __launch_bounds__(256)
add_bias(struct tc_arr y, struct tc_arr b, int64_t elems, int64_t cols)
{
  const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
  if (i < elems) tc_put(y, i, tc_get(y, i) + tc_get(b, i % cols));
}

int tc_cuda_matmul(struct tc_device *d, const struct tc_call *c)
{
  if (nothing(c)) return 0;
  struct tc_cuda *x = tc_cuda_of(d);
  const uintptr_t bits = (uintptr_t)c->in[0].data | (uintptr_t)c->in[1].data
                         | (uintptr_t)c->out[0].data
                         | (c->n_in > 2 ? (uintptr_t)c->in[2].data : 0);
  const struct plan *p = plan_of(d, c, bits % WIDE_BYTES != 0);
  if (!p) p = plan_of(d, c, true);
  if (!p) return tc_cuda_said(d, cudaErrorInvalidValue, "matmul: no plan");
  const float alpha = 1, beta = c->acc & 1 ? 1.f : 0.f;
  void *y = c->out[0].data;
  if (p->key.bias
      && cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                        &c->in[2].data, sizeof c->in[2].data)
             != CUBLAS_STATUS_SUCCESS)
    return tc_cuda_said(d, cudaErrorInvalidValue, "matmul: bias");
  if (cublasLtMatmul(x->lt->handle, p->desc, &alpha, c->in[1].data, p->a, c->in[0].data, p->b,
                     &beta, y, p->c, y, p->c, &p->algo, c->scratch, p->workspace_bytes, x->stream)
      != CUBLAS_STATUS_SUCCESS)
    return tc_cuda_said(d, cudaErrorInvalidValue, "matmul: cuBLASLt");
  if (c->n_in > 2 && !p->key.bias)
    TC_LAUNCH(add_bias, tc_blocks(c->out[0].elems, 256), dim3(256), 0, x->stream,
              tc_arr_of(&c->out[0]), tc_arr_of(&c->in[2]), c->out[0].elems, c->gemm.n);
  return tc_cuda_launched(d, "matmul");
}
