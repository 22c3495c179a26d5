/* cpu_few.c - products y[m,n] = x[m,k] w[n,k]^T (+ bias[n]) of few rows: new tokens of a text that is sampled.
 *
 * Such a product takes as long as its weights take to be read. Each thread has a range of w's rows and reads it once,
 * from its beginning to its end; a row is multiplied by all rows of x while it is in L1. An element of y is computed
 * by one thread, in an order that depends on k alone. bf16 needs no instructions of its own: an element becomes fp32
 * by a shift. */
#include "kernels/cpu/cpu.h"

/* Most rows of x; columns of y that are computed before they are stored; bytes that are requested ahead: further than
 * the processor's own prefetch, which ends at a page. */
enum { ROWS = 4, COLS = 64, AHEAD = 2048 };
/* Partial sums of an element: enough independent additions, with vectors of any size, to keep up with memory. */
enum { LANES = 32 };

bool tc_cpu_is_few(const struct tc_call *c)
{
  const int type = c->in[0].dtype;
  return c->gemm.m >= 1 && c->gemm.m <= ROWS && !c->gemm.ta && c->gemm.tb && !(c->acc & 1) && !c->gemm.ld[0]
         && (type == TC_F32 || type == TC_BF16) && c->in[1].dtype == type && c->out[0].dtype == type;
}

/* x as fp32. */
int64_t tc_cpu_few_scratch(const struct tc_call *c)
{
  return c->in[0].dtype == TC_F32 ? 0 : c->gemm.m * c->gemm.k * (int64_t)sizeof(float);
}

/* sum[i][j] = row i of x, row j of w, for weights of a type: x[m,k], w[cols,k]. */
#define DEFINE_DOTS(name, type, as_f32)                                                       \
  TC_CLONES static void name(float sum[ROWS][COLS], const type *w, int64_t cols,              \
                             const float *x, int64_t m, int64_t k)                            \
  {                                                                                           \
    for (int64_t j = 0; j < cols; j++, w += k)                                                \
      for (int64_t i = 0; i < m; i++) {                                                       \
        const float *row = x + i * k;                                                         \
        float lane[LANES] = { 0 };                                                            \
        int64_t at = 0;                                                                       \
        for (; at + LANES <= k; at += LANES) {                                                \
          tc_cpu_prefetch((const char *)(w + at) + AHEAD, LANES * (int64_t)sizeof *w);        \
          _Pragma("omp simd")                                                                 \
          for (int r = 0; r < LANES; r++) lane[r] += as_f32(w[at + r]) * row[at + r];         \
        }                                                                                     \
        for (int r = 0; at + r < k; r++) lane[r] += as_f32(w[at + r]) * row[at + r];          \
        for (int half = LANES / 2; half > 0; half /= 2)                                       \
          for (int r = 0; r < half; r++) lane[r] += lane[r + half];                           \
        sum[i][j] = lane[0];                                                                  \
      }                                                                                       \
  }
#define SAME(x) (x)
DEFINE_DOTS(dots_f32, float, SAME)
DEFINE_DOTS(dots_bf16, uint16_t, tc_bf16_to_f32)

/* Columns [j, j + cols) of y; x is fp32. */
static void compute_cols(const struct tc_call *c, const float *x, int64_t j, int64_t cols)
{
  const int64_t m = c->gemm.m, n = c->gemm.n, k = c->gemm.k;
  const struct tc_view *w = &c->in[1], *y = &c->out[0];
  float sum[ROWS][COLS], bias[COLS], buf[COLS];
  if (w->dtype == TC_F32) dots_f32(sum, tc_cpu_f32(w) + j * k, cols, x, m, k);
  else dots_bf16(sum, (const uint16_t *)w->data + j * k, cols, x, m, k);
  const float *b = c->n_in > 2 ? tc_cpu_in(&c->in[2], j, cols, bias) : NULL;
  for (int64_t i = 0; i < m; i++) {
    float *to = tc_cpu_out(y, i * n + j, cols, buf, false);
    for (int64_t r = 0; r < cols; r++) to[r] = b ? sum[i][r] + b[r] : sum[i][r];
    tc_cpu_put(y, i * n + j, cols, to);
  }
}

int tc_cpu_few(struct tc_device *d, const struct tc_call *c)
{
  const int64_t n = c->gemm.n, k = c->gemm.k, parts = tc_cpu_threads(d, n * k);
  const float *x = tc_cpu_in(&c->in[0], 0, c->gemm.m * k, c->scratch);
#pragma omp parallel for num_threads((int)parts) schedule(static)
  for (int64_t p = 0; p < parts; p++) {
    const int64_t end = (p + 1) * n / parts;
    for (int64_t j = p * n / parts; j < end; j += COLS) compute_cols(c, x, j, TC_MIN((int64_t)COLS, end - j));
  }
  return 0;
}
