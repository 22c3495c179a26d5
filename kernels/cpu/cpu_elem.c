/* cpu_elem.c - kernels that work element by element, and biases; and what other kernels take from here: conversions
 * of blocks, sums over rows, and the driver of what works element by element: it iterates over blocks of TC_BLOCK elements
 * as fp32, and an op is a function of one block. */
#include "kernels/cpu/cpu.h"

#include <string.h>

/* ---- blocks and sums, for all kernels ---------------------------------------------------- */

TC_CLONES void tc_cpu_from_bf16(float *y, const uint16_t *x, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = tc_bf16_to_f32(x[i]);
}

TC_CLONES void tc_cpu_to_bf16(uint16_t *y, const float *x, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = tc_f32_to_bf16(x[i]);
}

TC_CLONES static void add_to(float *y, const float *x, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

void tc_cpu_accum(float *y, const float *x, int64_t n, bool acc)
{
  if (acc) add_to(y, x, n);
  else memcpy(y, x, (size_t)n * sizeof *y);
}

void tc_cpu_sum_parts(struct tc_device *d, const struct tc_view *out, bool acc,
                      const float *part, int64_t n, int64_t stride)
{
  const int64_t width = 256, cols = out->elems;
#pragma omp parallel for num_threads(tc_cpu_threads(d, n * cols)) schedule(static)
  for (int64_t j = 0; j < cols; j += width) {
    float sum[256], buf[256];
    int64_t w = TC_MIN(width, cols - j);
    for (int64_t b = 0; b < n; b++) tc_cpu_accum(sum, part + b * stride + j, w, b > 0);
    float *y = tc_cpu_out(out, j, w, buf, acc);
    tc_cpu_accum(y, sum, w, acc);
    tc_cpu_put(out, j, w, y);
  }
}

/* ---- element by element ----------------------------------------------------------------- */

int tc_cpu_each_block(struct tc_device *d, const struct tc_call *c, tc_cpu_block_fn *fn)
{
  const struct tc_view *y = &c->out[0];
  int64_t elems = y->elems;
  TC_ASSERT(c->in[0].elems == elems && (c->n_in < 2 || c->in[1].elems == elems));
#pragma omp parallel for num_threads(tc_cpu_threads(d, elems)) schedule(static)
  for (int64_t i = 0; i < elems; i += TC_BLOCK) {
    float a[TC_BLOCK], b[TC_BLOCK], out[TC_BLOCK];
    int64_t n = TC_MIN(TC_BLOCK, elems - i);
    const float *pa = tc_cpu_in(&c->in[0], i, n, a);
    const float *pb = c->n_in > 1 ? tc_cpu_in(&c->in[1], i, n, b) : NULL;
    float *py = tc_cpu_out(y, i, n, out, false);
    fn(py, pa, pb, n, c->f);
    tc_cpu_put(y, i, n, py);
  }
  return 0;
}

TC_CLONES void tc_cpu_plus(float *y, const float *a, const float *b, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

static void plus(float *y, const float *a, const float *b, int64_t n, const float *f) { tc_cpu_plus(y, a, b, n); }

TC_CLONES static void scale(float *y, const float *x, const float *b, int64_t n, const float *f)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = f[0] * x[i];
}

int tc_cpu_add(struct tc_device *d, const struct tc_call *c) { return tc_cpu_each_block(d, c, plus); }

int tc_cpu_scale(struct tc_device *d, const struct tc_call *c) { return tc_cpu_each_block(d, c, scale); }

/* y (+)= x with conversion: no copy where one of the two is fp32. */
static int convert(struct tc_device *d, const struct tc_call *c, bool acc)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  TC_ASSERT(x->elems == y->elems);
  if (x->data == y->data && x->dtype == y->dtype && !acc) return 0;
#pragma omp parallel for num_threads(tc_cpu_threads(d, y->elems)) schedule(static)
  for (int64_t i = 0; i < y->elems; i += TC_BLOCK) {
    float a[TC_BLOCK], out[TC_BLOCK];
    int64_t n = TC_MIN(TC_BLOCK, y->elems - i);
    float *py = tc_cpu_out(y, i, n, out, acc);
    if (acc) {
      tc_cpu_accum(py, tc_cpu_in(x, i, n, a), n, true);
      tc_cpu_put(y, i, n, py);
    } else if (y->dtype == TC_F32) {
      const float *px = tc_cpu_in(x, i, n, py);
      if (px != py) memcpy(py, px, (size_t)n * sizeof *py);
    } else {
      tc_cpu_put(y, i, n, tc_cpu_in(x, i, n, a));
    }
  }
  return 0;
}

int tc_cpu_cast(struct tc_device *d, const struct tc_call *c) { return convert(d, c, false); }

int tc_cpu_accumulate(struct tc_device *d, const struct tc_call *c) { return convert(d, c, c->acc & 1); }

TC_CLONES static void set(float *y, float x, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = x;
}

int tc_cpu_fill(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *y = &c->out[0];
#pragma omp parallel for num_threads(tc_cpu_threads(d, y->elems)) schedule(static)
  for (int64_t i = 0; i < y->elems; i += TC_BLOCK) {
    float buf[TC_BLOCK];
    int64_t n = TC_MIN(TC_BLOCK, y->elems - i);
    float *py = tc_cpu_out(y, i, n, buf, false);
    set(py, c->f[0], n);
    tc_cpu_put(y, i, n, py);
  }
  return 0;
}

/* ---- random numbers by global element --------------------------------------------------- */

/* The global index of element i, given that of i - 1: along a row it is the next one. */
static int64_t next_global(const struct tc_view *v, int64_t i, int64_t before)
{
  int64_t last = v->rank > 0 ? v->dim[v->rank - 1] : 1;
  return before >= 0 && i % last != 0 ? before + 1 : tc_view_global(v, i);
}

/* tc_uniform(seed, a, b, first + i) >= p for a run of elements, with tc_philox inlined so that
 * it is vectorised. */
struct stream { uint64_t seed; uint32_t a, b; float p, scale; };

TC_CLONES static void drop_run(float *y, const float *x, int64_t n, const struct stream *s,
                               uint64_t first)
{
  const uint64_t seed = s->seed;
  const uint32_t a = s->a, b = s->b;
  const float p = s->p, scale = s->scale;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    uint64_t at = first + (uint64_t)i;
    uint32_t x0 = (uint32_t)at, x1 = (uint32_t)(at >> 32), x2 = b, x3 = a;
    TC_CPU_PHILOX(x0, x1, x2, x3, seed);
    float u = (float)(int32_t)(x0 >> 8) * 0x1p-24f;
    y[i] = u >= p ? x[i] * scale : 0.f;
  }
}

int tc_cpu_dropout(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *y = &c->out[0];
  const int64_t last = y->rank > 0 ? TC_MAX(y->dim[y->rank - 1], 1) : 1;
  const struct stream s = { .seed = c->rt->seed, .a = (uint32_t)c->k[0],
                            .b = (uint32_t)c->rt->step, .p = c->f[0],
                            .scale = 1.f / (1.f - c->f[0]) };
#pragma omp parallel for num_threads(tc_cpu_threads(d, y->elems)) schedule(static)
  for (int64_t i = 0; i < y->elems; i += TC_BLOCK) {
    float a[TC_BLOCK], out[TC_BLOCK];
    int64_t n = TC_MIN(TC_BLOCK, y->elems - i), run;
    const float *x = tc_cpu_in(&c->in[0], i, n, a);
    float *py = tc_cpu_out(y, i, n, out, false);
    for (int64_t j = 0; j < n; j += run) {       /* along a row the global index is consecutive */
      run = TC_MIN(n - j, last - (i + j) % last);
      drop_run(py + j, x + j, run, &s, (uint64_t)tc_call_element(c, y, i + j));
    }
    tc_cpu_put(y, i, n, py);
  }
  return 0;
}

int tc_cpu_normal(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *y = &c->out[0];
  int64_t row_elems = 1;
  for (int j = 1; j < y->rank; j++) row_elems *= y->global[j];
#pragma omp parallel for num_threads(d->threads) schedule(static)
  for (int64_t i = 0; i < y->elems; i += TC_BLOCK) {
    float out[TC_BLOCK];
    int64_t n = TC_MIN(TC_BLOCK, y->elems - i), at = -1;
    float *py = tc_cpu_out(y, i, n, out, false);
    for (int64_t j = 0; j < n; j++) {
      at = next_global(y, i + j, at);
      bool pad = c->k[1] > 0 && at / row_elems >= c->k[1];
      const float x = c->k[2] ? tc_even(tc_uniform(c->rt->seed, (uint32_t)c->k[0], 0, (uint64_t)at))
                              : tc_normal(c->rt->seed, (uint32_t)c->k[0], 0, (uint64_t)at);
      py[j] = pad ? 0.f : c->f[0] * x;
    }
    tc_cpu_put(y, i, n, py);
  }
  return 0;
}

/* ---- biases: x[rows, cols], b[cols] ------------------------------------------------------ */

int tc_cpu_bias(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *b = &c->in[1], *y = &c->out[0];
  int64_t cols = b->elems, rows = cols ? x->elems / cols : 0;
  int64_t chunks = tc_ceil_div(cols, TC_BLOCK);
  TC_ASSERT(rows * cols == x->elems);
#pragma omp parallel for num_threads(tc_cpu_threads(d, x->elems)) schedule(static)
  for (int64_t t = 0; t < rows * chunks; t++) {
    float bufx[TC_BLOCK], bufb[TC_BLOCK], out[TC_BLOCK];
    int64_t j = t % chunks * TC_BLOCK, i = t / chunks * cols + j, n = TC_MIN(TC_BLOCK, cols - j);
    float *py = tc_cpu_out(y, i, n, out, false);
    tc_cpu_plus(py, tc_cpu_in(x, i, n, bufx), tc_cpu_in(b, j, n, bufb), n);
    tc_cpu_put(y, i, n, py);
  }
  return 0;
}

TC_CLONES static void add4(float *y, const float *a, const float *b, const float *c,
                           const float *e, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] += (a[i] + b[i]) + (c[i] + e[i]);
}

/* part[cols] = sum of the rows [r0, r1) of x. */
static void sum_rows(float *part, const struct tc_view *x, int64_t cols, int64_t r0, int64_t r1)
{
  float buf[4][TC_BLOCK];
  memset(part, 0, (size_t)cols * sizeof *part);
  for (int64_t j = 0; j < cols; j += TC_BLOCK) {
    int64_t n = TC_MIN(TC_BLOCK, cols - j), r = r0;
    for (; r + 4 <= r1; r += 4) {
      const float *row[4];
      for (int q = 0; q < 4; q++) row[q] = tc_cpu_in(x, (r + q) * cols + j, n, buf[q]);
      add4(part + j, row[0], row[1], row[2], row[3], n);
    }
    for (; r < r1; r++) tc_cpu_accum(part + j, tc_cpu_in(x, r * cols + j, n, buf[0]), n, true);
  }
}

int64_t tc_cpu_bias_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  int64_t cols = c->out[0].elems;
  return cols ? tc_cpu_row_blocks(c->in[0].elems / cols) * cols * (int64_t)sizeof(float) : 0;
}

int tc_cpu_bias_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *db = &c->out[0];
  int64_t cols = db->elems, rows = cols ? dy->elems / cols : 0, nb = tc_cpu_row_blocks(rows);
  float *part = c->scratch;
  TC_ASSERT(rows * cols == dy->elems);
#pragma omp parallel for num_threads(tc_cpu_threads(d, dy->elems)) schedule(static)
  for (int64_t b = 0; b < nb; b++)
    sum_rows(part + b * cols, dy, cols, b * rows / nb, (b + 1) * rows / nb);
  tc_cpu_sum_parts(d, db, c->acc & 1, part, nb, cols);
  return 0;
}
