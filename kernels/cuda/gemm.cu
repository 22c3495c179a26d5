/* gemm.cu - products by cuBLASLt, which only this file and tune.cu use.
 *
 * The library is column-major: a row-major matrix is its transpose there, so C = op(A) op(B) is
 * requested as C^T = op(B)^T op(A)^T, B first. The bias is an epilogue if the library supports its
 * type (that of C) and has one for the shape, else a kernel after the product. fp32 is fp32, unless
 * the device's tf32 is set.
 *
 * Fused calls are epilogues too, so that these cost no pass over memory of their own:
 *   matmul, add        the product is added to the other input, which is the library's C; not written by itself
 *   matmul, gelu       the product is written as well (the library's "aux"): backward reads it
 *   matmul, gelu_bwd   aux is gelu's input; the product alone is not written
 *   ... and bias_bwd   the sums of its columns too, of the product's type: as a sum of fp32 they are rounded to bf16,
 *                      once for each micro-batch. To scratch, and added up or converted by a kernel, where they must be
 *   bias_bwd, matmul   the sum over the rows of A that the product reads transposed. The library
 *                      writes it; if it must be added, it is written to scratch first
 * The library's GELU is the tanh form, as ours, with an undocumented precision: it is used
 * for bf16 and TF32, not for fp32; and on GPUs of capability 9.x alone, since on others the library is reported to
 * run it as a second kernel, slower than ours. It needs aux aligned to 16 bytes in rows of a multiple of 8,
 * and for gradients more than one term per sum (not all of its versions support one). If it has
 * no such product, or one that leaves too much of the GPU idle, the executor runs the parts one by
 * one; if it has one but then fails to run it, the parts are run here, from then on without trying.
 *
 * The choices of the heuristics are cached per shape, types, epilogue and alignment for the lifetime of the
 * device. The first is used, unless another was chosen by time (tune.cu); one that the library then refuses to run
 * is passed over from then on. A sum that is split over k is added in fp32 in a fixed order: the same bits every
 * time. The workspace is the call's scratch. */
#include "kernels/cuda/gemm.h"

enum { WIDE_BYTES = 16, THREADS = 256 };

int tc_cuda_lt_new(struct tc_device *d, struct tc_err *err)
{
  struct tc_lt *x = (struct tc_lt *)tc_calloc(1, sizeof *x);
  tc_cuda_of(d)->lt = x;
  if (cublasLtCreate(&x->handle) == CUBLAS_STATUS_SUCCESS) return 0;
  return tc_fail(err, TC_EUSER, "device cuda: cuBLASLt can't be started on GPU %d; is the driver "
                 "as new as this build's CUDA?", tc_cuda_of(d)->index);
}

int64_t tc_cuda_lt_version(void) { return (int64_t)cublasLtGetVersion(); }

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

static struct product product_of(const struct tc_call *c)
{
  struct product p;
  memset(&p, 0, sizeof p);
  struct key *k = &p.key;
  k->m = c->gemm.m, k->n = c->gemm.n, k->k = c->gemm.k, k->ta = c->gemm.ta, k->tb = c->gemm.tb;
  k->in = c->in[0].dtype, k->out = c->out[0].dtype;
  p.a = c->in[0].data, p.b = c->in[1].data, p.y = c->out[0].data;
  p.c = p.y, p.beta = c->acc & 1 ? 1.f : 0.f;
  if (c->n_in > 2 && c->in[2].dtype == c->out[0].dtype) k->epilogue = BIAS, p.bias = c->in[2].data;
  return p;
}

static bool set(struct plan *p, cublasLtMatmulDescAttributes_t what, const void *v, size_t bytes)
{
  return cublasLtMatmulDescSetAttribute(p->desc, what, v, bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool set_epilogue(struct plan *p)
{
  static const cublasLtEpilogue_t named[] = {
    CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX,
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD,
    CUBLASLT_EPILOGUE_BGRADB };
  const struct key *k = &p->key;
  const cublasLtEpilogue_t e = named[k->epilogue];
  const cudaDataType_t out = type_of(k->out);
  /* The heuristics need addresses, since they may depend on their alignment: no more than is checked later. */
  const uintptr_t somewhere = 256 + (k->narrow ? tc_dtype_bytes(k->out) : (size_t)WIDE_BYTES);
  return set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &e, sizeof e)
         && (!has_bias(k) || (set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &somewhere, sizeof somewhere)
                              && set(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &out, sizeof out)))
         && (!has_aux(k) || (set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &somewhere, sizeof somewhere)
                             && set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->n, sizeof k->n)));
}

static bool describe(struct plan *p, bool tf32)
{
  const struct key *k = &p->key;
  const cublasOperation_t op_a = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_b = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cudaDataType_t in = type_of(k->in), out = type_of(k->out);
  const cublasComputeType_t type = tf32 && k->in == TC_F32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                           : CUBLAS_COMPUTE_32F;
  /* Rows of the stored matrix are the library's columns. */
  const int64_t rows_a = k->tb ? k->k : k->n, cols_a = k->tb ? k->n : k->k;
  const int64_t rows_b = k->ta ? k->m : k->k, cols_b = k->ta ? k->k : k->m;
  return cublasLtMatmulDescCreate(&p->desc, type, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS
         && set(p, CUBLASLT_MATMUL_DESC_TRANSA, &op_a, sizeof op_a)
         && set(p, CUBLASLT_MATMUL_DESC_TRANSB, &op_b, sizeof op_b)
         && set_epilogue(p)
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
  /* Where the output is fp32 its type is that of the sums; in place, counters give the blocks an order. */
  const uint32_t schemes = p->key.out == TC_F32 ? (uint32_t)CUBLASLT_REDUCTION_SCHEME_MASK
                                                : (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const uint32_t in = p->key.narrow ? (uint32_t)tc_dtype_bytes(p->key.in) : (uint32_t)WIDE_BYTES;
  const uint32_t out = p->key.narrow ? (uint32_t)tc_dtype_bytes(p->key.out) : (uint32_t)WIDE_BYTES;
  const struct { cublasLtMatmulPreferenceAttributes_t name; const void *value; size_t bytes; }
  want[] = { { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most },
            { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes },
            { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &in, sizeof in },
            { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &in, sizeof in },
            { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof out },
            { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof out } };
  if (cublasLtMatmulPreferenceCreate(&pref) != CUBLAS_STATUS_SUCCESS) return false;
  bool good = true;
  for (size_t i = 0; i < sizeof want / sizeof *want; i++)
    good = good && cublasLtMatmulPreferenceSetAttribute(pref, want[i].name, want[i].value,
                                                        want[i].bytes) == CUBLAS_STATUS_SUCCESS;
  cublasLtMatmulHeuristicResult_t result[MOST_PLANS];
  int n = 0;
  memset(result, 0, sizeof result);
  good = good && cublasLtMatmulAlgoGetHeuristic(x->handle, p->desc, p->a, p->b, p->c, p->c, pref,
                                                MOST_PLANS, result, &n) == CUBLAS_STATUS_SUCCESS;
  cublasLtMatmulPreferenceDestroy(pref);
  for (int i = 0; good && i < n; i++) {
    if (result[i].state != CUBLAS_STATUS_SUCCESS) continue;
    if (p->algos == 0) p->waves = result[i].wavesCount;
    p->algo[p->algos++] = result[i].algo;
    p->workspace_bytes = TC_MAX(p->workspace_bytes, result[i].workspaceSize);
  }
  return p->algos > 0;
}

struct plan *tc_cuda_plan_of(struct tc_device *d, const struct key *key, bool narrow)
{
  struct tc_lt *x = tc_cuda_of(d)->lt;
  struct key k = *key;
  k.narrow = narrow;
  for (struct plan *p = x->plans; p; p = p->next)
    if (memcmp(&p->key, &k, sizeof k) == 0) return p->none ? NULL : p;
  struct plan *p = (struct plan *)tc_calloc(1, sizeof *p);
  p->key = k;
  p->none = !describe(p, d->tf32) || !choose(x, p);
  p->next = x->plans;
  x->plans = p;
  return p->none ? NULL : p;
}

static bool nothing(const struct tc_call *c) { return c->gemm.m == 0 || c->gemm.n == 0; }

/* The plan for x's addresses. If the library has none with the bias, the bias is removed from x. */
static struct plan *plan_for(struct tc_device *d, struct product *x)
{
  const uintptr_t bits = (uintptr_t)x->a | (uintptr_t)x->b | (uintptr_t)x->y | (uintptr_t)x->bias;
  struct plan *p = tc_cuda_plan_of(d, &x->key, bits % WIDE_BYTES != 0);
  if (!p) p = tc_cuda_plan_of(d, &x->key, true);
  if (p || x->key.epilogue != BIAS) return p;
  x->key.epilogue = PLAIN, x->bias = NULL;
  return plan_for(d, x);
}

/* Creates every plan that plan_for may need: a view's address may have a smaller alignment, and the library may
 * refuse to run the product with the bias. */
int64_t tc_cuda_matmul_scratch(struct tc_device *d, const struct tc_call *c)
{
  const struct product x = product_of(c);
  struct key plain = x.key;
  size_t bytes = 0;
  plain.epilogue = PLAIN;
  for (int narrow = 0; !nothing(c) && narrow < 2; narrow++) {
    const struct plan *p = tc_cuda_plan_of(d, &x.key, narrow != 0), *other = tc_cuda_plan_of(d, &plain, narrow != 0);
    if (p) bytes = TC_MAX(bytes, p->workspace_bytes);
    if (other) bytes = TC_MAX(bytes, other->workspace_bytes);
  }
  return (int64_t)bytes;
}

int tc_cuda_matmul_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err)
{
  const struct tc_gemm *g = &c->gemm;
  struct product x = product_of(c);
  struct plan *p = NULL;
  TC_ASSERT(c->in[0].elems == g->m * g->k && c->in[1].elems == g->k * g->n
            && c->out[0].elems == g->m * g->n && c->in[0].dtype == c->in[1].dtype);
  c->plan = NULL;
  if (!nothing(c)) p = plan_for(d, &x);
  if (p) p->used = true, p->adds |= x.beta != 0;
  if (p || nothing(c)) return 0;
  return tc_fail(err, TC_EUSER, "device cuda: cuBLASLt has no product of %lld x %lld x %lld "
                 "(%s to %s)", (long long)g->m, (long long)g->n, (long long)g->k,
                 tc_dtype_name(c->in[0].dtype), tc_dtype_name(c->out[0].dtype));
}

cublasStatus_t tc_cuda_plan_run(struct tc_device *d, struct plan *p, const cublasLtMatmulAlgo_t *algo,
                                const struct product *x, void *workspace)
{
  const float alpha = 1;
  if ((x->bias && !set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &x->bias, sizeof x->bias))
      || (x->aux && !set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &x->aux, sizeof x->aux)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return cublasLtMatmul(tc_cuda_of(d)->lt->handle, p->desc, &alpha, x->b, p->a, x->a, p->b, &x->beta, x->c, p->c, x->y,
                        p->c, algo, workspace, p->workspace_bytes, tc_stream(d));
}

/* If the library refuses every algorithm that its heuristics returned, the plan is marked as unusable. */
static cublasStatus_t launch(struct tc_device *d, struct plan *p, const struct product *x, void *workspace)
{
  cublasStatus_t rc = CUBLAS_STATUS_NOT_SUPPORTED;
  for (; p->now < p->algos; p->now++) {
    rc = tc_cuda_plan_run(d, p, &p->algo[p->now], x, workspace);
    if (rc != CUBLAS_STATUS_NOT_SUPPORTED && rc != CUBLAS_STATUS_INVALID_VALUE) return rc;
  }
  p->none = true;
  return rc;
}

static int multiply(struct tc_device *d, struct product *x, void *workspace)
{
  cublasStatus_t rc = CUBLAS_STATUS_NOT_SUPPORTED;
  for (struct plan *p; (p = plan_for(d, x)) != NULL;) {
    rc = launch(d, p, x, workspace);
    if (rc == CUBLAS_STATUS_SUCCESS) return 0;
    if (!p->none) break;                         /* it failed, and another will */
  }
  tc_cuda_launched(d, "matmul");                 /* CUDA's own error, if there is one, is more precise */
  return tc_cuda_check(d, cudaErrorUnknown, cublasLtGetStatusName(rc));
}

/* y[i] = y[i] + b[i mod cols], or b[i mod cols] alone. */
static __global__ void __launch_bounds__(THREADS)
add_bias(struct tc_arr y, struct tc_arr b, int64_t elems, int64_t cols, bool add)
{
  const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
  if (i < elems) tc_put(y, i, (add ? tc_get(y, i) : 0.f) + tc_get(b, i % cols));
}

int tc_cuda_matmul(struct tc_device *d, const struct tc_call *c)
{
  if (nothing(c)) return 0;
  struct product x = product_of(c);
  TC_TRY(multiply(d, &x, c->scratch));
  if (c->n_in > 2 && !x.bias)                    /* the library does not support it */
    TC_LAUNCH(add_bias, tc_blocks(c->out[0].elems, THREADS), dim3(THREADS), 0, tc_stream(d),
              tc_arr_of(&c->out[0]), tc_arr_of(&c->in[2]), c->out[0].elems, c->gemm.n, true);
  return tc_cuda_launched(d, "matmul");
}

/* ---- fused calls -------------------------------------------------------------------------- */

/* The product of two fused calls; false if they cannot be one. */
static bool product_of_two(const struct tc_call *const *part, struct product *x)
{
  const struct tc_call *one = part[0], *two = part[1];
  if (one->op == TC_OP_MATMUL && (two->op == TC_OP_ACT || two->op == TC_OP_ACT_BWD)) {
    if (two->k[2] != TC_FN_GELU_TANH) return false;        /* the library's epilogues are of no other function */
    const bool back = two->op == TC_OP_ACT_BWD;
    *x = product_of(one);
    if (one->acc || two->acc || !tc_same(&one->out[0], &two->in[0]) || (one->n_in > 2 && !x->bias)
        || (back && one->n_in > 2) || two->out[0].dtype != one->out[0].dtype
        || (back && two->in[1].dtype != one->out[0].dtype))
      return false;
    x->key.epilogue = back ? GELU_BWD : x->bias ? GELU_BIAS : GELU;
    x->aux = back ? two->in[1].data : one->out[0].data;
    x->c = x->y = two->out[0].data;
    return true;
  }
  if (one->op == TC_OP_MATMUL && two->op == TC_OP_ADD) {
    *x = product_of(one);
    x->c = two->in[0].data, x->y = two->out[0].data, x->beta = 1, x->key.residual = 1;
    return !one->acc && !two->acc && tc_same(&one->out[0], &two->in[1]) && (one->n_in == 2 || x->bias)
           && two->in[0].dtype == one->out[0].dtype && two->out[0].dtype == one->out[0].dtype
           && two->in[0].elems == one->out[0].elems;
  }
  if (one->op != TC_OP_BIAS_BWD || two->op != TC_OP_MATMUL || two->n_in != 2) return false;
  *x = product_of(two);
  x->key.epilogue = BIAS_BWD;
  x->bias = one->out[0].data;
  return tc_same(&one->in[0], &two->in[0]) && two->gemm.ta && one->out[0].elems == two->gemm.m
         && one->out[0].dtype == two->out[0].dtype;
}

/* ... of all parts: of a product with GELU's gradient the sums of columns may be one. */
static bool product_of_all(const struct tc_call *const *part, int n, struct product *x)
{
  if (!product_of_two(part, x)) return false;
  if (n == 2) return true;
  const struct tc_call *sums = part[2];
  if (n != 3 || x->key.epilogue != GELU_BWD || sums->op != TC_OP_BIAS_BWD) return false;
  x->key.epilogue = GELU_BIAS_BWD;
  x->bias = sums->out[0].data;
  return tc_same(&sums->in[0], &part[1]->out[0]) && sums->out[0].elems == x->key.n;
}

/* The part that sums up columns; NULL: none. */
static const struct tc_call *sums_of(const struct tc_call *const *part, int n)
{
  for (int i = 0; i < n; i++)
    if (part[i]->op == TC_OP_BIAS_BWD) return part[i];
  return NULL;
}

/* The library only writes sums, of the product's type. */
static bool by_scratch(const struct tc_call *sums, const struct key *k)
{
  return sums && ((sums->acc & 1) || sums->out[0].dtype != k->out);
}

/* The fraction of the GPU that is busy during a product: its last wave is as long as a full one. */
static float busy(const struct plan *p) { return p->waves > 0 ? p->waves / ceilf(p->waves) : 1; }

/* The sums come with products that are not split over k: few, long blocks where the weight is
 * small. Four fifths: what is lost by then is what the pass over memory would have taken. */
static bool pays(struct tc_device *d, const struct product *x, const struct plan *p)
{
  struct key alone = x->key;
  alone.epilogue = PLAIN;
  const struct plan *other = x->key.epilogue == BIAS_BWD ? tc_cuda_plan_of(d, &alone, false) : NULL;
  return !other || busy(p) >= 0.8f * busy(other);
}

/* The first two of three parts are what is run where the sums are faster by themselves. */
bool tc_cuda_can_multiply(struct tc_device *d, const struct tc_call *const *part, int n)
{
  struct product x;
  if (n < 2 || !product_of_all(part, n, &x) || (n > 2 && !tc_cuda_can_multiply(d, part, 2))) return false;
  if (x.key.m == 0 || x.key.n == 0 || x.key.k < 2) return false;
  const uintptr_t bits = (uintptr_t)x.a | (uintptr_t)x.b | (uintptr_t)x.y | (uintptr_t)x.bias
                         | (uintptr_t)x.aux | (uintptr_t)x.c;
  if (bits % WIDE_BYTES || (x.aux && x.key.n % 8)) return false;
  if (x.aux && ((x.key.in == TC_F32 && !d->tf32) || tc_cuda_of(d)->capability / 10 != 9)) return false;
  struct plan *p = tc_cuda_plan_of(d, &x.key, false);
  if (!p || !pays(d, &x, p)) return false;
  p->used = true, p->adds |= x.beta != 0;
  return true;
}

/* The workspace, then space for sums that are added afterwards. */
static int64_t sums_at(const struct plan *p) { return tc_round_up((int64_t)p->workspace_bytes, 256); }

/* Enough for the parts one by one, too. */
int64_t tc_cuda_multiply_scratch(struct tc_device *d, const struct tc_call *const *part, int n)
{
  struct product x;
  if (!product_of_all(part, n, &x)) return 0;
  const struct tc_call *sums = sums_of(part, n);
  const struct plan *p = tc_cuda_plan_of(d, &x.key, false);
  int64_t bytes = p ? sums_at(p) : 0;
  if (by_scratch(sums, &x.key)) bytes += sums->out[0].elems * (int64_t)tc_dtype_bytes(x.key.out);
  if (n > 2) bytes = TC_MAX(bytes, tc_cuda_multiply_scratch(d, part, 2));
  for (int i = 0; i < n; i++) {
    const struct tc_kernel *k = &d->ops->kernel[part[i]->op];
    if (k->scratch) bytes = TC_MAX(bytes, k->scratch(d, part[i]));
  }
  return bytes;
}

static int one_by_one(struct tc_device *d, const struct tc_call *const *part, int n)
{
  if (n > 2) TC_TRY(tc_cuda_multiply(d, part, 2));
  for (int i = n > 2 ? 2 : 0; i < n; i++) {
    struct tc_call c = *part[i];
    c.scratch = part[0]->scratch;
    TC_TRY(d->ops->kernel[c.op].run(d, &c));
  }
  return 0;
}

int tc_cuda_multiply(struct tc_device *d, const struct tc_call *const *part, int n)
{
  struct product x;
  TC_ASSERT(product_of_all(part, n, &x));
  const struct tc_call *sums = sums_of(part, n);
  struct plan *p = tc_cuda_plan_of(d, &x.key, false);
  if (!p) return one_by_one(d, part, n);
  const struct tc_arr at = { (char *)part[0]->scratch + sums_at(p), x.key.out == TC_BF16 };
  if (by_scratch(sums, &x.key)) x.bias = at.p;
  if (launch(d, p, &x, part[0]->scratch) != CUBLAS_STATUS_SUCCESS) {
    TC_TRY(tc_cuda_launched(d, "matmul with an epilogue"));
    p->none = true;
    return one_by_one(d, part, n);
  }
  if (by_scratch(sums, &x.key)) {
    const int64_t elems = sums->out[0].elems;
    TC_LAUNCH(add_bias, tc_blocks(elems, THREADS), dim3(THREADS), 0, tc_stream(d), tc_arr_of(&sums->out[0]), at, elems,
              elems, (sums->acc & 1) != 0);
  }
  return tc_cuda_launched(d, "matmul with an epilogue");
}

void tc_cuda_load_gemm(struct tc_device *d) { tc_load_kernels(d, add_bias); }
