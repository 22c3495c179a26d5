/* gemm.h - what gemm.cu and tune.cu share: the plans of products that cuBLASLt made for a device. */
#ifndef TC_CUDA_GEMM_H
#define TC_CUDA_GEMM_H

#include "kernels/cuda/dev.h"

#include <cublasLt.h>

enum { MOST_PLANS = 8, WORKSPACE_BYTES = 32 << 20 };
/* GELU_BIAS_BWD: with the sums of its columns, the gradient of the bias before it. BIAS_BWD: with those of A. */
enum epilogue { PLAIN, BIAS, GELU, GELU_BIAS, GELU_BWD, GELU_BIAS_BWD, BIAS_BWD };

/* residual: another tensor than the output is added. */
struct key {
  int64_t m, n, k;
  uint8_t ta, tb, in, out, epilogue, narrow, residual, none;
};
/* Another op than MATMUL is a part of it. */
static inline bool is_fused(const struct key *k) { return k->epilogue >= GELU || k->residual; }

static inline bool has_bias(const struct key *k)
{
  return k->epilogue == BIAS || k->epilogue == GELU_BIAS || k->epilogue >= GELU_BIAS_BWD;
}
static inline bool has_aux(const struct key *k) { return k->epilogue >= GELU && k->epilogue <= GELU_BIAS_BWD; }

/* A product with its epilogue, as the library gets it. */
struct product {
  struct key key;
  const void *a, *b;
  void *y, *aux, *bias;          /* bias: read by BIAS and GELU_BIAS, written by GELU_BIAS_BWD and BIAS_BWD */
  const void *c;                 /* beta times this is added; y, or of y's shape */
  float beta;
};

struct plan {
  struct key key;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c;                   /* a: B of the call, b: A */
  cublasLtMatmulAlgo_t algo[MOST_PLANS];            /* best first */
  int algos, now;                                   /* now: the best that was not refused */
  size_t workspace_bytes;                           /* enough for each */
  float waves;                                      /* of blocks over the GPU; 0: not known */
  bool none;                                        /* the library has no such product, or its parts are faster */
  bool used, adds;                                  /* a prepared call has it; one that adds to its output */
  bool ran;                                         /* the best has, so that its kernels are loaded */
  int64_t ns;                                       /* of the best, where it was timed (tune.cu); 0: not known */
  struct plan *next;
};

struct tc_lt { cublasLtHandle_t handle; struct plan *plans; };

/* The plan of a key; created if it is new. NULL: the library has none, or its parts are faster. */
struct plan *tc_cuda_plan_of(struct tc_device *d, const struct key *key, bool narrow);
/* Runs one algorithm of a plan. */
cublasStatus_t tc_cuda_plan_run(struct tc_device *d, struct plan *p, const cublasLtMatmulAlgo_t *algo,
                                const struct product *x, void *workspace);

#endif
