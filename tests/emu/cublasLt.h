/* cublasLt.h - stands in for cuBLASLt's header: naive products of column-major matrices, called
 * as the library is. See cuda_runtime.h here. */
#ifndef TC_EMU_CUBLASLT_H
#define TC_EMU_CUBLASLT_H

#include "emu.h"

#include <algorithm>
#include <vector>

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_INVALID_VALUE = 7, CUBLAS_STATUS_NOT_SUPPORTED = 15 };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16BF = 14 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 };
enum cublasLtEpilogue_t {
  CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_BIAS = 4, CUBLASLT_EPILOGUE_GELU_AUX = 160,
  CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 164, CUBLASLT_EPILOGUE_DGELU = 192, CUBLASLT_EPILOGUE_DGELU_BGRAD = 208,
  CUBLASLT_EPILOGUE_BGRADB = 512
};
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB, CUBLASLT_MATMUL_DESC_EPILOGUE,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
};
enum { CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2, CUBLASLT_REDUCTION_SCHEME_MASK = 7 };

struct emu_desc {
  cublasComputeType_t compute;
  cublasOperation_t op[2];
  cublasLtEpilogue_t epilogue;
  void *bias, *aux;
  int bias_type;                                 /* -1: C's */
  int64_t aux_ld;
};
struct emu_layout { cudaDataType_t type; uint64_t rows, cols; int64_t ld; };
struct emu_preference { uint32_t align[4]; };
typedef struct emu_handle *cublasLtHandle_t;
typedef emu_desc *cublasLtMatmulDesc_t;
typedef emu_layout *cublasLtMatrixLayout_t;
typedef emu_preference *cublasLtMatmulPreference_t;
struct cublasLtMatmulAlgo_t { uint32_t align[4]; uintptr_t bias, aux; uint64_t number; };   /* alignments promised */
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
};

static inline cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{ *h = NULL; return CUBLAS_STATUS_SUCCESS; }
static inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

/* TC_EMU_BLASLT_VERSION: another version than 13.0.0. */
static inline size_t cublasLtGetVersion(void)
{
  const char *version = getenv("TC_EMU_BLASLT_VERSION");
  return version ? (size_t)atol(version) : 130000;
}

static inline const char *cublasLtGetStatusName(cublasStatus_t s)
{ return s == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_SUPPORTED"; }

static inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d,
                                                      cublasComputeType_t compute, cudaDataType_t)
{
  *d = new emu_desc{ compute, { CUBLAS_OP_N, CUBLAS_OP_N }, CUBLASLT_EPILOGUE_DEFAULT, NULL, NULL,
                     -1, 0 };
  return CUBLAS_STATUS_SUCCESS;
}
static inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{ delete d; return CUBLAS_STATUS_SUCCESS; }

static inline cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *p, size_t bytes)
{
  void *const field[] = { &d->op[0], &d->op[1], &d->epilogue, &d->bias, &d->bias_type, &d->aux,
                          &d->aux_ld };
  void *to = field[a];
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
 * fp32 one, fp32. A bias of one element is refused, so that what happens then is tried. The algorithm wants the
 * alignment it was asked for; what an epilogue keeps for
 * backward wants 16 bytes, in columns of a multiple of 8. */
static inline bool emu_blas_has_aux(const emu_desc *d)
{
  return d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX || d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS
         || d->epilogue == CUBLASLT_EPILOGUE_DGELU || d->epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}
static inline bool emu_blas_has_bias(const emu_desc *d)
{
  return d->epilogue == CUBLASLT_EPILOGUE_BIAS || d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS
         || d->epilogue == CUBLASLT_EPILOGUE_BGRADB || d->epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}

/* TC_EMU_BLASLT_REFUSES = plan or run: what fused calls want is not in the table, or it is and
 * fails; first: of each product, the first plan fails; bias: each with a bias does. */
static inline bool emu_blas_refuses(cublasLtMatmulDesc_t d, const char *when)
{
  const char *refuses = getenv("TC_EMU_BLASLT_REFUSES");
  return (emu_blas_has_aux(d) || d->epilogue == CUBLASLT_EPILOGUE_BGRADB) && refuses
         && strcmp(refuses, when) == 0;
}

/* TC_EMU_BLASLT_FAST: the number of the fast plan of each product, 0 to 2; a digit for each GPU, the last one for the
 * others. Then events are on a clock of their own, on which products alone take time, and no two plans have the same
 * bits: a product is the exact one times 1 + number / 2^20. With TC_EMU_BLASLT_SLOW_FUSED products with an epilogue
 * that our kernels could run are slow, and those that add another matrix than the output; =sums: those alone that sum up
 * GELU's gradient. */
enum { EMU_BLAS_PLANS = 3 };
static inline const char *emu_blas_fast(void)
{
  const char *fast = getenv("TC_EMU_BLASLT_FAST");
  const size_t n = fast ? strlen(fast) : 0, device = (size_t)emu_current_device();
  return n ? fast + (device < n ? device : n - 1) : NULL;
}
static inline int emu_blas_us(const emu_desc *d, const cublasLtMatmulAlgo_t *algo, bool adds_other)
{
  const char *fast = emu_blas_fast();
  const bool fused = emu_blas_has_aux(d) || d->epilogue == CUBLASLT_EPILOGUE_BGRADB || adds_other;
  const char *slow = getenv("TC_EMU_BLASLT_SLOW_FUSED");
  if (fused && slow && (strcmp(slow, "sums") || d->epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD)) return 5000;
  return fast && algo->number == (uint64_t)(*fast - '0') ? 1000 : 2000;
}

/* Blocks of 128 x 128 on 108 processors; a plain product is split over k, by 256 at least. */
static inline float emu_blas_waves(const emu_desc *d, const emu_layout *a, const emu_layout *c)
{
  const uint64_t blocks = ((c->rows + 127) / 128) * ((c->cols + 127) / 128);
  const uint64_t k = d->op[0] == CUBLAS_OP_T ? a->rows : a->cols, split = k > 256 ? k / 256 : 1;
  return (float)(d->epilogue == CUBLASLT_EPILOGUE_DEFAULT && blocks * split <= 108 ? blocks * split
                                                                                   : blocks) / 108;
}

static inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t p, int most,
    cublasLtMatmulHeuristicResult_t *result, int *n)
{
  const int bias = d->bias_type < 0 ? (int)c->type : d->bias_type;
  *n = 0;
  if (emu_blas_refuses(d, "plan") || a->type != b->type
      || (a->type == CUDA_R_32F && c->type != CUDA_R_32F)
      || (emu_blas_has_bias(d) && (bias != (int)c->type || !d->bias))
      || (d->epilogue == CUBLASLT_EPILOGUE_BIAS && c->rows == 1)
      || (emu_blas_has_aux(d) && (d->aux_ld % 8 || d->aux_ld < (int64_t)c->rows || !d->aux
                                  || (uintptr_t)d->aux % 16)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  *n = most < EMU_BLAS_PLANS ? most : EMU_BLAS_PLANS;
  for (int i = 0; i < *n; i++) {
    memcpy(result[i].algo.align, p->align, sizeof p->align);
    result[i].algo.bias = (uintptr_t)d->bias & -(uintptr_t)d->bias;
    result[i].algo.aux = (uintptr_t)d->aux & -(uintptr_t)d->aux;
    result[i].algo.number = (uint64_t)i;
    result[i].workspaceSize = 0;
    result[i].state = CUBLAS_STATUS_SUCCESS;
    result[i].wavesCount = emu_blas_waves(d, a, c);
  }
  return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatmulAlgoCheck(
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result)
{
  result->workspaceSize = 0;
  for (int i = 0; i < 4; i++)
    if (!algo->align[i] || (algo->align[i] & (algo->align[i] - 1))) return CUBLAS_STATUS_INVALID_VALUE;
  return algo->number < EMU_BLAS_PLANS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

static inline float emu_blas_get(cudaDataType_t t, const void *p, int64_t i)
{
  return t == CUDA_R_32F ? ((const float *)p)[i]
                         : __uint_as_float((uint32_t)((const uint16_t *)p)[i] << 16);
}
static inline void emu_blas_put(cudaDataType_t t, void *p, int64_t i, float y)
{
  const uint32_t u = __float_as_uint(y);
  if (t == CUDA_R_32F) ((float *)p)[i] = y;
  else ((uint16_t *)p)[i] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u
                                           ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/* An input as the tensor cores take it: TF32 has fp32's range and 10 bits of mantissa. */
static inline double emu_blas_input(const emu_desc *d, cudaDataType_t t, const void *p, int64_t i)
{
  const float x = emu_blas_get(t, p, i);
  if (d->compute != CUBLAS_COMPUTE_32F_FAST_TF32) return (double)x;
  return (double)__uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
}

/* The tanh form, straight from its definition, in double. */
static inline double emu_gelu(double x)
{
  return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static inline double emu_gelu_slope(double x)
{
  const double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

/* What becomes of element (i, j), of the sum y. */
static inline float emu_blas_epilogue(const emu_desc *d, const emu_layout *c, int64_t i,
                                      int64_t j, float y)
{
  const bool back = d->epilogue == CUBLASLT_EPILOGUE_DGELU || d->epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
  if (emu_blas_has_bias(d) && d->epilogue != CUBLASLT_EPILOGUE_BGRADB && !back)
    y += emu_blas_get(c->type, d->bias, i);
  if (back)
    return (float)((double)y * emu_gelu_slope((double)emu_blas_get(c->type, d->aux,
                                                                   j * d->aux_ld + i)));
  if (!emu_blas_has_aux(d)) return y;
  emu_blas_put(c->type, d->aux, j * d->aux_ld + i, y);
  return (float)emu_gelu((double)y);
}

/* All that a product is, by value: its turn may come when the caller's is long over. */
struct emu_product {
  emu_desc desc;
  emu_layout la, lb, lc;
  const void *A, *B, *C;
  void *D;
  int64_t m, n, k;
  float alpha, beta;
  int us;                                        /* on the emulated clock */
};

/* A result over an input would have the sums of before it was written: a library may take any. */
static inline void emu_blas_apart(const emu_product *p, const void *in, const emu_layout *l)
{
  const size_t esz = l->type == CUDA_R_32F ? 4 : 2, out = p->lc.type == CUDA_R_32F ? 4 : 2;
  const char *a = (const char *)in, *d = (const char *)p->D;
  if (!l->cols || !p->n) return;
  const char *a_end = a + ((l->cols - 1) * (uint64_t)l->ld + l->rows) * esz;
  const char *d_end = d + ((uint64_t)(p->n - 1) * (uint64_t)p->lc.ld + (uint64_t)p->m) * out;
  if (a < d_end && d < a_end) emu_stop("a product is written over one of its operands");
}

/* Each element of an input is read once, and then stands as a double: of A, what a sum takes at its step l side by side;
 * of B, column after column. Each sum is still taken from the first l to the last. */
static inline void emu_blas_multiply(const emu_product *p)
{
  const emu_desc *d = &p->desc;
  const emu_layout *a = &p->la, *b = &p->lb, *c = &p->lc;
  const bool ta = d->op[0] == CUBLAS_OP_T, tb = d->op[1] == CUBLAS_OP_T;
  const int64_t m = p->m, n = p->n, k = p->k;
  emu_blas_apart(p, p->A, a);
  emu_blas_apart(p, p->B, b);
  std::vector<double> A((size_t)(k * m)), B((size_t)k), sums((size_t)m), rows((size_t)m);   /* rows: of the output, summed up */
  for (int64_t l = 0; l < k; l++)
    for (int64_t i = 0; i < m; i++)
      A[(size_t)(l * m + i)] = emu_blas_input(d, a->type, p->A, ta ? i * a->ld + l : l * a->ld + i);
  for (int64_t j = 0; j < n; j++) {
    double column = 0;
    for (int64_t l = 0; l < k; l++) {
      const int64_t at = tb ? l * b->ld + j : j * b->ld + l;
      column += (double)emu_blas_get(b->type, p->B, at);
      B[(size_t)l] = emu_blas_input(d, b->type, p->B, at);
    }
    if (d->epilogue == CUBLASLT_EPILOGUE_BGRADB) emu_blas_put(c->type, d->bias, j, (float)column);
    std::fill(sums.begin(), sums.end(), 0.);
    for (int64_t l = 0; l < k; l++) {
      const double x = B[(size_t)l], *row = A.data() + l * m;
      double *sum = sums.data();
      for (int64_t i = 0; i < m; i++) sum[i] += row[i] * x;
    }
    for (int64_t i = 0; i < m; i++) {
      float y = p->alpha * (float)sums[(size_t)i];
      if (p->beta != 0) y += p->beta * emu_blas_get(c->type, p->C, j * c->ld + i);
      const float out = emu_blas_epilogue(d, c, i, j, y);
      rows[(size_t)i] += (double)out;
      emu_blas_put(c->type, p->D, j * c->ld + i, out);
    }
  }
  for (int64_t i = 0; i < m && d->epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD; i++)
    emu_blas_put(c->type, d->bias, i, (float)rows[(size_t)i]);
}

static inline cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t, cublasLtMatmulDesc_t d, const void *alpha, const void *A,
    cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta,
    const void *C, cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t,
    const cublasLtMatmulAlgo_t *algo, void *, size_t, cudaStream_t stream)
{
  const char *refuses = getenv("TC_EMU_BLASLT_REFUSES");
  if (emu_blas_refuses(d, "run") || (refuses && strcmp(refuses, "first") == 0 && algo->number == 0)
      || (refuses && strcmp(refuses, "bias") == 0 && d->epilogue == CUBLASLT_EPILOGUE_BIAS))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool ta = d->op[0] == CUBLAS_OP_T, tb = d->op[1] == CUBLAS_OP_T;
  const int64_t m = (int64_t)c->rows, n = (int64_t)c->cols, k = (int64_t)(ta ? a->rows : a->cols);
  const float al = *(const float *)alpha, be = *(const float *)beta;
  const uintptr_t at[] = { (uintptr_t)A, (uintptr_t)B, (uintptr_t)C, (uintptr_t)D };
  for (int i = 0; i < 4; i++)
    if (at[i] % algo->align[i]) return CUBLAS_STATUS_NOT_SUPPORTED;
  if ((emu_blas_has_bias(d) && (uintptr_t)d->bias % algo->bias)
      || (emu_blas_has_aux(d) && (uintptr_t)d->aux % algo->aux))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if ((int64_t)(ta ? a->cols : a->rows) != m || (int64_t)(tb ? b->cols : b->rows) != k
      || (int64_t)(tb ? b->rows : b->cols) != n || (emu_blas_has_aux(d) && (uintptr_t)d->aux % 16))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const float rounded = emu_blas_fast() ? al * (1 + (float)algo->number * 0x1p-20f) : al;
  const emu_product p = { *d, *a, *b, *c, A, B, C, D, m, n, k, rounded, be, emu_blas_us(d, algo, be != 0 && C != D) };
  emu_call(stream, [=] {
    emu_blas_multiply(&p);
    emu_worked(stream, p.us);
  });
  return CUBLAS_STATUS_SUCCESS;
}

#endif
