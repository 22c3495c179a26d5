/* cpu_tile.c - products of small matrices that are in L1 or L2, for attention.
 *
 * A tile of MR rows x two vectors of C stays in registers during the loop over k; the vectors are GCC's,
 * so that one source serves every instruction set: 4 floats (any machine), 8 (AVX2), 16 (AVX-512).
 * B's and C's rows are padded to a multiple of 16 columns, so there are no column tails. Where the CPU multiplies bf16,
 * the same tiles take words of two bf16 numbers of A and B, and add up two products at a time. */
#include "kernels/cpu/cpu.h"

#ifdef TC_BF16_TARGET
#include <immintrin.h>
#endif

#define TILE_INLINE static inline __attribute__((always_inline))

/* One tile: `rows` and `vecs` are constants where this is inlined. */
#define DEFINE_TILE(isa, attr, W, MR, PER, MADD)                                              \
  typedef float vec_##isa __attribute__((vector_size(4 * (W)), aligned(4), may_alias));       \
  TILE_INLINE attr void tile_##isa(const struct tc_tile *t, const float *a, const float *b,   \
                                   float *c, int64_t k, int rows, int vecs)                   \
  {                                                                                           \
    vec_##isa s[MR][2];                                                                       \
    const vec_##isa zero = { 0 };                                                             \
    _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                    \
      _Pragma("GCC unroll 2") for (int v = 0; v < vecs; v++)                                  \
        s[r][v] = t->acc ? *(const vec_##isa *)(c + r * t->ldc + v * (W)) : zero;             \
    for (int64_t i = 0; i < k; i++, a += t->a_col, b += t->ldb) {                             \
      vec_##isa x[2];                                                                         \
      _Pragma("GCC unroll 2") for (int v = 0; v < vecs; v++)                                  \
        x[v] = *(const vec_##isa *)(b + v * (W));                                             \
      _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                  \
        _Pragma("GCC unroll 2") for (int v = 0; v < vecs; v++)                                \
          s[r][v] = MADD(s[r][v], a + r * t->a_row, x[v]);                                    \
    }                                                                                         \
    _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                    \
      _Pragma("GCC unroll 2") for (int v = 0; v < vecs; v++)                                  \
        *(vec_##isa *)(c + r * t->ldc + v * (W)) = s[r][v];                                   \
  }                                                                                           \
  /* A strip of `rows` rows, all its columns. */                                              \
  TILE_INLINE attr void strip_##isa(const struct tc_tile *t, int64_t r, int rows)             \
  {                                                                                           \
    int64_t from = t->tri == TC_TRI_K_FROM ? TC_MIN(r / (PER), t->k) : 0;                     \
    int64_t to = t->tri == TC_TRI_K_UPTO ? tc_ceil_div(r + rows, (PER)) : t->k;               \
    int64_t k = TC_MIN(to, t->k) - from;                                                      \
    int64_t n = t->tri == TC_TRI_N ? TC_MIN(tc_round_up(r + rows, 16), t->n) : t->n, j = 0;   \
    const float *a = t->a + r * t->a_row + from * t->a_col, *b = t->b + from * t->ldb;        \
    float *c = t->c + r * t->ldc;                                                             \
    for (; j + 2 * (W) <= n; j += 2 * (W)) tile_##isa(t, a, b + j, c + j, k, rows, 2);        \
    for (; j < n; j += (W)) tile_##isa(t, a, b + j, c + j, k, rows, 1);                       \
  }                                                                                           \
  attr static void product_##isa(const struct tc_tile *t)                                     \
  {                                                                                           \
    int64_t r = 0;                                                                            \
    for (; r + (MR) <= t->m; r += (MR)) strip_##isa(t, r, (MR));                              \
    for (; r + 4 <= t->m; r += 4) strip_##isa(t, r, 4);                                       \
    for (; r < t->m; r++) strip_##isa(t, r, 1);                                               \
  }

#define MADD_F32(s, a, x) ((s) + *(a) * (x))
DEFINE_TILE(any, , 4, 4, 1, MADD_F32)
#if defined __x86_64__ && defined __GNUC__
DEFINE_TILE(avx2, __attribute__((target("avx2,fma"))), 8, 6, 1, MADD_F32)
DEFINE_TILE(avx512, __attribute__((target("avx512f,avx2,fma"))), 16, 8, 1, MADD_F32)
#endif

#ifdef TC_BF16_TARGET
#define MADD_BF16(s, a, x) \
  ((vec_bf16)_mm512_dpbf16_ps((__m512)(s), (__m512bh)_mm512_set1_epi32(*(const tc_word *)(a)), (__m512bh)(x)))
DEFINE_TILE(bf16, TC_BF16_TARGET, 16, 8, 2, MADD_BF16)
#endif

void (*tc_cpu_tile_pick(void))(const struct tc_tile *t)
{
#if defined __x86_64__ && defined __GNUC__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return product_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return product_avx2;
#endif
  return product_any;
}

void (*tc_cpu_tile_bf16(void))(const struct tc_tile *t)
{
#ifdef TC_BF16_TARGET
  __builtin_cpu_init();
  if (TC_BF16_SUPPORTED()) return product_bf16;
#endif
  return NULL;
}
