/* cpu.h - private to the `cpu` device: shared by its kernels. Include it first.
 *
 * Loops are split over threads in blocks whose bounds depend only on shapes, and sums of
 * blocks are added in order: results are bit-identical for any number of threads. (Products
 * are oneDNN's.) SIMD: a function marked TC_CLONES is compiled for several instruction sets
 * and selected when the program is loaded; OpenMP regions stay outside of such functions, since
 * their bodies are not cloned. bf16 goes through fp32 buffers of TC_BLOCK elements, but for what cpu_bf16.c has. */
#ifndef TC_CPU_H
#define TC_CPU_H

/* Contraction gives fused multiply-adds in strict C modes; no loop here uses FP flags.
 * Before the first function, since functions of different modes are not inlined. */
#if defined __GNUC__ && !defined __clang__
#pragma GCC optimize("fp-contract=fast", "no-trapping-math")
#endif

#include "kernels/kernel.h"

#include <math.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"      /* all kernels have one type; some need no device */

#if defined __GNUC__ && !defined __clang__ && defined __x86_64__ && !defined TC_NO_CLONES
#define TC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TC_CLONES
#endif

enum { TC_BLOCK = 1024 };      /* elements per block: a buffer of one block stays in L1 */

struct tc_tile;
struct tc_cpu {                /* tc_device.priv */
  void (*tile)(const struct tc_tile *t), (*tile_bf16)(const struct tc_tile *t);
  bool bf16;                   /* the CPU has bf16 products */
  struct tc_dnnl *dnnl;
};
static inline struct tc_cpu *tc_cpu_of(struct tc_device *d) { return d->priv; }

/* Number of threads for `elems` elements: one if starting others would cost more. */
static inline int tc_cpu_threads(const struct tc_device *d, int64_t elems)
{
  return elems < 8192 ? 1 : d->threads;
}

/* Asks for memory that is read soon, where the processor does not see by itself which comes next. */
static inline __attribute__((always_inline)) void tc_cpu_prefetch(const void *p, int64_t bytes)
{
  enum { LINE = 64 };
  for (int64_t b = 0; b < bytes; b += LINE) __builtin_prefetch((const char *)p + b);
}

/* ---- blocks of elements as fp32 ------------------------------------------------------- */

void tc_cpu_from_bf16(float *y, const uint16_t *x, int64_t n);
void tc_cpu_to_bf16(uint16_t *y, const float *x, int64_t n);

/* n elements of v from i on: a pointer to them, or converted into buf[n]. */
static inline const float *tc_cpu_in(const struct tc_view *v, int64_t i, int64_t n, float *buf)
{
  if (v->dtype == TC_F32) return (const float *)v->data + i;
  TC_ASSERT(v->dtype == TC_BF16);
  tc_cpu_from_bf16(buf, (const uint16_t *)v->data + i, n);
  return buf;
}
/* Where to write them: in place, or into buf; then tc_cpu_put. With acc, buf has the old values. */
static inline float *tc_cpu_out(const struct tc_view *v, int64_t i, int64_t n, float *buf,
                                bool acc)
{
  if (v->dtype == TC_F32) return (float *)v->data + i;
  TC_ASSERT(v->dtype == TC_BF16);
  if (acc) tc_cpu_from_bf16(buf, (const uint16_t *)v->data + i, n);
  return buf;
}
static inline void tc_cpu_put(const struct tc_view *v, int64_t i, int64_t n, const float *buf)
{
  if (v->dtype == TC_BF16) tc_cpu_to_bf16((uint16_t *)v->data + i, buf, n);
}
static inline float *tc_cpu_f32(const struct tc_view *v)
{
  TC_ASSERT(v->dtype == TC_F32);
  return v->data;
}
static inline const int32_t *tc_cpu_i32(const struct tc_view *v)
{
  TC_ASSERT(v->dtype == TC_I32);
  return v->data;
}
/* An update's states (cpu_round.c): the bits by which n elements from i on are rounded, in bits[n]; NULL: none is in bf16. */
const uint32_t *tc_cpu_draw(const struct tc_call *c, int64_t i, int64_t n, uint32_t *bits);
/* State k after tc_cpu_out, as tc_cpu_put, rounded by these bits. */
void tc_cpu_put_state(const struct tc_call *c, int k, int64_t i, int64_t n, const float *buf, const uint32_t *bits);
/* y (+)= x, n elements. */
void tc_cpu_accum(float *y, const float *x, int64_t n, bool acc);
/* y = a + b, n elements; y may be one of them. */
void tc_cpu_plus(float *y, const float *a, const float *b, int64_t n);

/* Computes y[n] from a[n] and, if the op has a second input, b[n]; y may be a or b. f: the call's. */
typedef void tc_cpu_block_fn(float *y, const float *a, const float *b, int64_t n, const float *f);
/* A kernel that computes output 0 by fn, block by block. */
int tc_cpu_each_block(struct tc_device *d, const struct tc_call *c, tc_cpu_block_fn *fn);

/* tc_philox for the counter in the variables x0 to x3, in a loop over counters, which is then vectorised; a function that is
 * given their addresses would keep it from that. */
#define TC_CPU_PHILOX(x0, x1, x2, x3, key) do { \
    uint32_t k0 = (uint32_t)(key), k1 = (uint32_t)((key) >> 32); \
    _Pragma("GCC unroll 10") \
    for (int round = 0; round < 10; round++) { \
      const uint64_t p0 = (uint64_t)0xD2511F53u * x0, p1 = (uint64_t)0xCD9E8D57u * x2; \
      x0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0; \
      x2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1; \
      x1 = (uint32_t)p1; \
      x3 = (uint32_t)p0; \
      k0 += 0x9E3779B9u; \
      k1 += 0xBB67AE85u; \
    } \
  } while (0)

/* ---- sums over rows, in a fixed order -------------------------------------------------- */

/* Terms of a row's sum that are added in fp32; a wider row adds the sums of such runs in fp64. */
enum { TC_CPU_RUN = 2048 };

/* For a function that is compiled with TC_CLONES. */
static inline __attribute__((always_inline)) double tc_sum_of_squares(const float *x, int64_t n)
{
  double sum = 0;
  for (int64_t from = 0; from < n; from += TC_CPU_RUN) {
    const int64_t to = TC_MIN(from + TC_CPU_RUN, n);
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t j = from; j < to; j++) part += x[j] * x[j];
    sum += (double)part;
  }
  return sum;
}
/* Floats from one row of C to the next in scratch, so that rows start on cache lines. */
static inline int64_t tc_cpu_row_stride(int64_t C) { return tc_round_up(C, 16); }

/* Number of row blocks for a sum over rows: at least 8 rows each, at most 64 blocks. */
static inline int64_t tc_cpu_row_blocks(int64_t rows)
{
  return TC_MAX(1, TC_MIN(64, rows / 8));
}
/* out[cols] (+)= part[0] + part[1] + ..., part[n][stride]. */
void tc_cpu_sum_parts(struct tc_device *d, const struct tc_view *out, bool acc,
                      const float *part, int64_t n, int64_t stride);

/* An RMS norm's gain, input k, with its shift (f[1]): where it is, or in row. */
const float *tc_cpu_gain(const struct tc_call *c, int k, float *row);

/* ---- small products for attention (cpu_tile.c) ------------------------------------------ */

/* Parts of the product that are zero or not needed, if A or C is a block on the diagonal.
 * N: only columns <= r of row r of C are needed; K_UPTO: A's row r is 0 after k = r; K_FROM: A's row r is 0
 * before k = r. */
enum tc_tri { TC_TRI_NONE, TC_TRI_N, TC_TRI_K_UPTO, TC_TRI_K_FROM };

/* C[m,n] (+)= A[m,k] B[k,n]: A's strides are free, B's and C's rows are contiguous, n is a
 * multiple of 16. In bf16 k counts words of two numbers that follow each other along the sum; C is fp32. */
struct tc_tile {
  int64_t m, n, k;
  const float *a; int64_t a_row, a_col;
  const float *b; int64_t ldb;
  float *c; int64_t ldc;
  bool acc;
  enum tc_tri tri;
};
typedef uint32_t __attribute__((may_alias)) tc_word;
void (*tc_cpu_tile_pick(void))(const struct tc_tile *t);
void (*tc_cpu_tile_bf16(void))(const struct tc_tile *t);       /* NULL: the CPU multiplies no bf16 */

/* ---- bf16 where the CPU has instructions for it (cpu_bf16.c) ----------------------------- */

#if defined __x86_64__ && defined __GNUC__
#define TC_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")))
#define TC_BF16_SUPPORTED() \
  (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") \
   && __builtin_cpu_supports("avx512dq"))
#endif

/* n numbers x; a function of them, or a gate times b, goes to y. Backward g is the gradient of that; x's goes to y, b's to
 * z. */
typedef void tc_cpu_bf16_fn(uint16_t *y, uint16_t *z, const uint16_t *g, const uint16_t *x, const uint16_t *b, int64_t n);
tc_cpu_bf16_fn tc_bf16_gelu_tanh, tc_bf16_gelu_tanh_bwd, tc_bf16_silu_gate, tc_bf16_silu_gate_bwd, tc_bf16_gelu_gate,
  tc_bf16_gelu_gate_bwd;

/* ---- oneDNN (cpu_dnnl.c): a product as a kernel ------------------------------------------ */

int tc_dnnl_new(struct tc_dnnl **out, struct tc_err *err);
void tc_dnnl_free(struct tc_dnnl *x);
int tc_cpu_matmul(struct tc_device *d, const struct tc_call *c);
int64_t tc_cpu_matmul_scratch(struct tc_device *d, const struct tc_call *c);
int tc_cpu_matmul_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err);
void tc_cpu_matmul_unprepare(struct tc_device *d, struct tc_call *c);

/* ---- the kernels -------------------------------------------------------------------------- */

typedef int tc_cpu_fn(struct tc_device *d, const struct tc_call *c);
typedef int64_t tc_cpu_size_fn(struct tc_device *d, const struct tc_call *c);
/* Ops, and the function that runs each: K has no scratch, S has as much as tc_cpu_NAME_scratch says. */
#define TC_CPU_KERNELS(K, S) \
  /* cpu_elem.c */ \
  K(BIAS, bias) K(ADD, add) K(CAST, cast) K(SCALE, scale) K(DROPOUT, dropout) S(BIAS_BWD, bias_bwd) K(FILL, fill) \
  K(ACCUM, accumulate) K(NORMAL, normal) \
  /* cpu_act.c */ \
  K(ACT, act) K(ACT_BWD, act_bwd) K(GLU, glu) K(GLU_BWD, glu_bwd) K(SOFTCAP, softcap) K(SOFTCAP_BWD, softcap_bwd) \
  /* cpu_norm.c */ \
  S(LAYERNORM, layernorm) S(LAYERNORM_BWD, layernorm_bwd) \
  /* cpu_rms.c */ \
  S(RMSNORM, rmsnorm) S(RMSNORM_BWD, rmsnorm_bwd) S(QKNORM, qknorm) S(QKNORM_BWD, qknorm_bwd) \
  /* cpu_rope.c */ \
  S(ROPE, rope) \
  /* cpu_qk_scale.c */ \
  K(QK_SQUARES, qk_squares) K(QK_SQUARES_BWD, qk_squares_bwd) S(QK_SCALE, qk_scale) S(QK_SCALE_BWD, qk_scale_bwd) \
  /* cpu_embed.c */ \
  K(EMBED, embed) K(POS, pos) S(EMBED_BWD, embed_bwd) S(POS_BWD, pos_bwd) \
  /* cpu_head.c */ \
  K(ROWMAX, rowmax) K(SUMEXP, sumexp) K(PICK, pick) K(NLL, nll) K(SUM, sum) K(SUMEXP_BWD, sumexp_bwd) \
  K(PICK_BWD, pick_bwd) K(NLL_BWD, nll_bwd) \
  /* cpu_optim.c */ \
  S(SQNORM, sqnorm) K(CLIP, clip) K(ADAMW, adamw) K(SGD, sgd) K(MOMENTUM, momentum) K(LION, lion) \
  /* cpu_cache.c */ \
  S(ATTN_CACHE, attn_cache) \
  /* cpu_attn.c, cpu_attn_bwd.c */ \
  S(ATTN, attn) S(ATTN_BWD, attn_bwd) \
  /* cpu_kv.c */ \
  K(KV, kv) K(KV_BWD, kv_bwd) K(SPREAD, spread) K(SPREAD_BWD, spread_bwd) \
  /* cpu_part.c */ \
  K(ADD_PART, add_part) K(PART, part)

#define DECLARE(op, name) tc_cpu_fn tc_cpu_##name;
#define DECLARE_BOTH(op, name) tc_cpu_fn tc_cpu_##name; tc_cpu_size_fn tc_cpu_##name##_scratch;
TC_CPU_KERNELS(DECLARE, DECLARE_BOTH)
#undef DECLARE
#undef DECLARE_BOTH
tc_cpu_fn tc_cpu_rope_bwd;
/* cpu_muon.c */
tc_cpu_fn tc_cpu_muon;
tc_cpu_size_fn tc_cpu_muon_scratch;
int tc_cpu_muon_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err);
void tc_cpu_muon_unprepare(struct tc_device *d, struct tc_call *c);
/* cpu_few.c: products of few rows, without oneDNN */
bool tc_cpu_is_few(const struct tc_call *c);
int64_t tc_cpu_few_scratch(const struct tc_call *c);
tc_cpu_fn tc_cpu_few;

#endif
