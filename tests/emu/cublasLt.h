/* cublasLt.h - stands in for cuBLASLt's header: naive products of column-major matrices, called
 * as the library is. See cuda_runtime.h here. */
#ifndef TC_EMU_CUBLASLT_H
#define TC_EMU_CUBLASLT_H

#include <cuda_runtime.h>

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_NOT_SUPPORTED = 15 };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16BF = 14 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68 };
enum cublasLtEpilogue_t { CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_BIAS = 4 };
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB, CUBLASLT_MATMUL_DESC_EPILOGUE,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
};
enum { CUBLASLT_REDUCTION_SCHEME_NONE = 0, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2 };

struct emu_desc { cublasOperation_t op[2]; cublasLtEpilogue_t epilogue; const void *bias;
                  int bias_type; };              /* -1: C's */
struct emu_layout { cudaDataType_t type; uint64_t rows, cols; int64_t ld; };
struct emu_preference { uint32_t align[4]; };
typedef struct emu_handle *cublasLtHandle_t;
typedef emu_desc *cublasLtMatmulDesc_t;
typedef emu_layout *cublasLtMatrixLayout_t;
typedef emu_preference *cublasLtMatmulPreference_t;
struct cublasLtMatmulAlgo_t { uint32_t align[4]; };
struct cublasLtMatmulHeuristicResult_t { cublasLtMatmulAlgo_t algo; size_t workspaceSize; };

static inline cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{ *h = NULL; return CUBLAS_STATUS_SUCCESS; }
static inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

static inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t,
                                                      cudaDataType_t)
{
  *d = new emu_desc{ { CUBLAS_OP_N, CUBLAS_OP_N }, CUBLASLT_EPILOGUE_DEFAULT, NULL, -1 };
  return CUBLAS_STATUS_SUCCESS;
}
static inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{ delete d; return CUBLAS_STATUS_SUCCESS; }

static inline cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *p, size_t bytes)
{
  void *to = a == CUBLASLT_MATMUL_DESC_TRANSA ? (void *)&d->op[0]
           : a == CUBLASLT_MATMUL_DESC_TRANSB ? (void *)&d->op[1]
           : a == CUBLASLT_MATMUL_DESC_EPILOGUE ? (void *)&d->epilogue
           : a == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE ? (void *)&d->bias_type : (void *)&d->bias;
  memcpy(to, p, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t t,
                                                        uint64_t rows, uint64_t cols, int64_t ld)
{
  *l = new emu_layout{ t, rows, cols, ld };
  return ld < (int64_t)rows ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}
static inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{ delete l; return CUBLAS_STATUS_SUCCESS; }

static inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{ *p = new emu_preference{ { 256, 256, 256, 256 } }; return CUBLAS_STATUS_SUCCESS; }
static inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{ delete p; return CUBLAS_STATUS_SUCCESS; }
static inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t a, const void *v, size_t)
{
  if (a >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
    memcpy(&p->align[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], v, 4);
  return CUBLAS_STATUS_SUCCESS;
}

/* The types that the library's table has: bf16 to bf16 with a bf16 bias, bf16 to fp32 with an
 * fp32 one, fp32. The algorithm wants the alignment it was asked for. */
static inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t p, int,
    cublasLtMatmulHeuristicResult_t *result, int *n)
{
  const int bias = d->bias_type < 0 ? (int)c->type : d->bias_type;
  *n = 0;
  if (a->type != b->type || (a->type == CUDA_R_32F && c->type != CUDA_R_32F)
      || (d->epilogue == CUBLASLT_EPILOGUE_BIAS && bias != (int)c->type))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  *n = 1;
  memcpy(result->algo.align, p->align, sizeof p->align);
  result->workspaceSize = 0;
  return CUBLAS_STATUS_SUCCESS;
}

static inline float emu_blas_get(cudaDataType_t t, const void *p, int64_t i)
{
  return t == CUDA_R_32F ? ((const float *)p)[i]
                         : __uint_as_float((uint32_t)((const uint16_t *)p)[i] << 16);
}

static inline cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha, const void *A,
    cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta,
    const void *C, cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t,
    const cublasLtMatmulAlgo_t *algo, void *, size_t, cudaStream_t stream)
{
  emu_catch_up(stream);
  emu_access open;
  const bool ta = d->op[0] == CUBLAS_OP_T, tb = d->op[1] == CUBLAS_OP_T;
  const int64_t m = (int64_t)c->rows, n = (int64_t)c->cols, k = (int64_t)(ta ? a->rows : a->cols);
  const float al = *(const float *)alpha, be = *(const float *)beta;
  const uintptr_t at[] = { (uintptr_t)A, (uintptr_t)B, (uintptr_t)C, (uintptr_t)D };
  for (int i = 0; i < 4; i++)
    if (at[i] % algo->align[i]) return CUBLAS_STATUS_NOT_SUPPORTED;
  if ((int64_t)(ta ? a->cols : a->rows) != m || (int64_t)(tb ? b->cols : b->rows) != k
      || (int64_t)(tb ? b->rows : b->cols) != n)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  for (int64_t j = 0; j < n; j++)
    for (int64_t i = 0; i < m; i++) {
      double sum = 0;
      for (int64_t l = 0; l < k; l++)
        sum += (double)emu_blas_get(a->type, A, ta ? i * a->ld + l : l * a->ld + i)
               * (double)emu_blas_get(b->type, B, tb ? l * b->ld + j : j * b->ld + l);
      float y = al * (float)sum;
      if (be != 0) y += be * emu_blas_get(c->type, C, j * c->ld + i);
      if (d->epilogue == CUBLASLT_EPILOGUE_BIAS) y += emu_blas_get(c->type, d->bias, i);
      if (c->type == CUDA_R_32F) {
        ((float *)D)[j * c->ld + i] = y;
      } else {
        uint32_t u = __float_as_uint(y);
        ((uint16_t *)D)[j * c->ld + i] =
            (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u
                                                       : (u + 0x7fffu + (u >> 16 & 1)) >> 16);
      }
    }
  return CUBLAS_STATUS_SUCCESS;
}

#endif
