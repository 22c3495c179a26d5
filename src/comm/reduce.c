/* reduce.c - adding terms in the order of coordinates, so that sums are the same on every run.
 *
 * Terms are added in a wider type, a tile of elements at a time, and rounded once. */
#include "src/comm/impl.h"

enum { TILE = 1024 };             /* elements added at a time: they stay in the L1 cache */

#define SAME(x) (x)
#define ADD(a, b) ((a) + (b))
#define ADD_WRAP(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))

/* A tile is read before it is written, so out may be one of the terms. */
#define REDUCER(name, type, to, wide, load, store, add)                                    \
static void name(void *out_, const void *const *term, int terms, int64_t n, int red)       \
{                                                                                          \
  to *out = out_;                                                                          \
  wide acc[TILE];                                                                         \
  for (int64_t i = 0; i < n; i += TILE) {                                                 \
    int m = (int)TC_MIN(n - i, TILE);                                                     \
    for (int t = 0; t < terms; t++) {                                                      \
      const type *restrict x = (const type *)term[t] + i;                                  \
      if (t == 0)                                                                          \
        for (int k = 0; k < m; k++) acc[k] = load(x[k]);                                   \
      else if (red == TC_SUM)                                                              \
        for (int k = 0; k < m; k++) acc[k] = add(acc[k], load(x[k]));                      \
      else                                                                                 \
        for (int k = 0; k < m; k++) {                                                      \
          wide v = load(x[k]);                                                             \
          acc[k] = v > acc[k] || v != v ? v : acc[k];                                      \
        }                                                                                  \
    }                                                                                      \
    for (int k = 0; k < m; k++) out[i + k] = store(acc[k]);                                \
  }                                                                                        \
}
REDUCER(reduce_f32, float, float, float, SAME, SAME, ADD)
REDUCER(reduce_bf16, uint16_t, uint16_t, float, tc_bf16_to_f32, tc_f32_to_bf16, ADD)
REDUCER(widen_bf16, uint16_t, float, float, tc_bf16_to_f32, SAME, ADD)
REDUCER(round_bf16, float, uint16_t, float, SAME, tc_f32_to_bf16, ADD)
REDUCER(reduce_f64, double, double, double, SAME, SAME, ADD)
REDUCER(reduce_i32, int32_t, int32_t, int32_t, SAME, SAME, ADD_WRAP)

void tc_reduce_terms(int from, int to, void *out, const void *const *term, int terms, int64_t n, int red)
{
  typedef void reduce_fn(void *out, const void *const *term, int terms, int64_t n, int red);
  static reduce_fn *const fn[TC_DTYPES][TC_DTYPES] = {
    [TC_F32] = { [TC_F32] = reduce_f32, [TC_BF16] = round_bf16 },
    [TC_BF16] = { [TC_BF16] = reduce_bf16, [TC_F32] = widen_bf16 },
    [TC_F64] = { [TC_F64] = reduce_f64 }, [TC_I32] = { [TC_I32] = reduce_i32 }
  };
  fn[from][to](out, term, terms, n, red);
}
