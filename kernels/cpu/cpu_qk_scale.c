/* cpu_qk_scale.c - RMS norms of all queries together, and of all keys, in qkv[N,K,E,D] (E: G queries, a key, a value): their
 * sums of squares, and what is made with these.
 *
 * A group is processed while it is in L1. Backward makes the sums over rows in one pass, as cpu_rms.c does: each block of
 * rows (by shape alone) has its partial sums in scratch. */
#include "kernels/cpu/cpu.h"

#include <omp.h>
#include <string.h>

TC_CLONES static double squares(const float *x, int64_t n) { return tc_sum_of_squares(x, n); }

/* y = x r g. */
TC_CLONES static void times(float *y, const float *x, const float *g, int64_t n, float r)
{
#pragma omp simd
  for (int64_t j = 0; j < n; j++) y[j] = x[j] * r * g[j];
}

/* y = dx + x by. */
TC_CLONES static void add_times(float *y, const float *dx, const float *x, int64_t n, float by)
{
#pragma omp simd
  for (int64_t j = 0; j < n; j++) y[j] = dx[j] + x[j] * by;
}

/* dx (+)= dy r g, dg += dy x r; returns the sum of dy x g. */
TC_CLONES static double times_bwd(float *dx, float *dg, const float *dy, const float *x, const float *g, int64_t n, float r,
                                  bool acc)
{
  double sum = 0;
  for (int64_t from = 0; from < n; from += TC_CPU_RUN) {
    const int64_t to = TC_MIN(from + TC_CPU_RUN, n);
    float part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t j = from; j < to; j++) {
      const float e = dy[j] * g[j];
      part += e * x[j];
      dg[j] += dy[j] * x[j] * r;
      dx[j] = acc ? dx[j] + e * r : e * r;
    }
    sum += (double)part;
  }
  return sum;
}

/* The scale of row n's queries [0] and keys [1] by their sums of squares s. */
static void scales(float r[2], const struct tc_call *c, const struct tc_view *x, const float *s, int64_t n)
{
  for (int k = 0; k < 2; k++) r[k] = 1.f / sqrtf(s[2 * n + k] / (float)tc_call_qk_elems(x, k == 1) + c->f[0]);
}

/* Sizes of x[N,K,E,D]: a group has G D elements of queries, then D of a key, then D of a value. */
struct sizes { int64_t N, K, E, D, queries, group, gains; };
static struct sizes sizes_of(const struct tc_view *x)
{
  const int64_t N = x->dim[0], K = x->dim[1], E = x->dim[2], D = x->dim[3];
  return (struct sizes){ N, K, E, D, (E - 2) * D, E * D, K * (E - 1) * D };
}

/* A group of each of `operands` for each thread. */
static int64_t group_floats(const struct tc_device *d, const struct tc_view *x, int operands)
{
  return operands * d->threads * tc_cpu_row_stride(sizes_of(x).group);
}

int tc_cpu_qk_squares(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  const struct sizes z = sizes_of(x);
  float *s = tc_cpu_f32(&c->out[0]);
#pragma omp parallel for num_threads(tc_cpu_threads(d, x->elems)) schedule(static)
  for (int64_t n = 0; n < z.N; n++) {
    double sum[2] = { 0 };
    float buf[TC_BLOCK];
    for (int64_t k = 0; k < z.K; k++)
      for (int64_t j = 0, w; j < z.queries + z.D; j += w) {
        const bool key = j >= z.queries;
        w = TC_MIN(TC_BLOCK, (key ? z.queries + z.D : z.queries) - j);
        sum[key] += squares(tc_cpu_in(x, (n * z.K + k) * z.group + j, w, buf), w);
      }
    for (int k = 0; k < 2; k++) s[2 * n + k] = (float)sum[k];
  }
  return 0;
}

int tc_cpu_qk_squares_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dx = &c->in[0], *x = &c->in[1], *y = &c->out[0];
  const struct sizes z = sizes_of(x);
  const float *ds = tc_cpu_f32(&c->in[2]);
#pragma omp parallel for num_threads(tc_cpu_threads(d, x->elems)) schedule(static)
  for (int64_t i = 0; i < z.N * z.K * z.E; i++) {
    const int64_t e = i % z.E, n = i / (z.K * z.E);
    const float by = e < z.E - 1 ? 2 * ds[2 * n + (e == z.E - 2)] : 0.f;
    for (int64_t j = 0; j < z.D; j += TC_BLOCK) {
      float a[TC_BLOCK], b[TC_BLOCK], out[TC_BLOCK];
      const int64_t w = TC_MIN(TC_BLOCK, z.D - j), at = i * z.D + j;
      float *py = tc_cpu_out(y, at, w, out, false);
      add_times(py, tc_cpu_in(dx, at, w, a), tc_cpu_in(x, at, w, b), w, by);
      tc_cpu_put(y, at, w, py);
    }
  }
  return 0;
}

/* The gains of all queries, then those of all keys; two groups for each thread. */
int64_t tc_cpu_qk_scale_scratch(struct tc_device *d, const struct tc_call *c)
{
  return (sizes_of(&c->in[0]).gains + group_floats(d, &c->in[0], 2)) * (int64_t)sizeof(float);
}

int tc_cpu_qk_scale(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const struct sizes z = sizes_of(x);
  const int64_t stride = tc_cpu_row_stride(z.group);
  float *rows = c->scratch;
  const float *s = tc_cpu_f32(&c->in[1]), *q = tc_cpu_gain(c, 2, rows), *key = tc_cpu_gain(c, 3, rows + c->in[2].elems);
#pragma omp parallel for num_threads(tc_cpu_threads(d, x->elems)) schedule(static)
  for (int64_t n = 0; n < z.N; n++) {
    float r[2], *buf = rows + z.gains + 2 * omp_get_thread_num() * stride;
    scales(r, c, x, s, n);
    for (int64_t k = 0; k < z.K; k++) {
      const int64_t at = (n * z.K + k) * z.group;
      const float *px = tc_cpu_in(x, at, z.group, buf);
      float *py = tc_cpu_out(y, at, z.group, buf + stride, false);
      times(py, px, q + k * z.queries, z.queries, r[0]);
      times(py + z.queries, px + z.queries, key + k * z.D, z.D, r[1]);
      memcpy(py + z.queries + z.D, px + z.queries + z.D, (size_t)z.D * sizeof *py);
      tc_cpu_put(y, at, z.group, py);
    }
  }
  return 0;
}

/* The gains; three groups for each thread; both gains' gradients of each block of rows. */
int64_t tc_cpu_qk_scale_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  const struct sizes z = sizes_of(&c->in[1]);
  return (z.gains * (1 + tc_cpu_row_blocks(z.N)) + group_floats(d, &c->in[1], 3)) * (int64_t)sizeof(float);
}

/* A backward call with its gains, and memory of one thread for groups of dy, x and dx, `stride` apart. */
struct backward { const struct tc_call *c; struct sizes z; const float *q, *key; float *buf; int64_t stride; };

/* dx and ds of row n; dg: where its terms of both gains' gradients are added. */
static void scale_bwd_row(const struct backward *b, int64_t n, float *dg)
{
  const struct tc_call *c = b->c;
  const struct sizes z = b->z;
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0];
  float r[2], *ds = tc_cpu_f32(&c->out[1]) + 2 * n, *dgk = dg + z.K * z.queries;
  const bool acc = c->acc & 1;
  double sum[2] = { 0 };
  scales(r, c, x, tc_cpu_f32(&c->in[2]), n);
  for (int64_t k = 0; k < z.K; k++) {
    const int64_t at = (n * z.K + k) * z.group, key = z.queries, value = key + z.D;
    const float *pdy = tc_cpu_in(dy, at, z.group, b->buf), *px = tc_cpu_in(x, at, z.group, b->buf + b->stride);
    float *pdx = tc_cpu_out(dx, at, z.group, b->buf + 2 * b->stride, acc);
    sum[0] += times_bwd(pdx, dg + k * z.queries, pdy, px, b->q + k * z.queries, z.queries, r[0], acc);
    sum[1] += times_bwd(pdx + key, dgk + k * z.D, pdy + key, px + key, b->key + k * z.D, z.D, r[1], acc);
    tc_cpu_accum(pdx + value, pdy + value, z.D, acc);
    tc_cpu_put(dx, at, z.group, pdx);
  }
  for (int k = 0; k < 2; k++) {                  /* dr/ds = -r^3 / 2, over so many elements */
    const double e = -0.5 * sum[k] * (double)(r[k] * r[k] * r[k]) / (double)tc_call_qk_elems(x, k == 1);
    ds[k] = (float)(c->acc & 2 ? e + (double)ds[k] : e);
  }
}

int tc_cpu_qk_scale_bwd(struct tc_device *d, const struct tc_call *c)
{
  struct backward b = { .c = c, .z = sizes_of(&c->in[1]) };
  const struct sizes z = b.z;
  const int64_t blocks = tc_cpu_row_blocks(z.N), of_q = c->in[3].elems;
  float *gains = c->scratch, *part = gains + z.gains, *buf = part + blocks * z.gains;
  b.stride = tc_cpu_row_stride(z.group);
  b.q = tc_cpu_gain(c, 3, gains), b.key = tc_cpu_gain(c, 4, gains + of_q);
#pragma omp parallel for num_threads(tc_cpu_threads(d, c->in[1].elems)) schedule(static)
  for (int64_t k = 0; k < blocks; k++) {
    struct backward mine = b;
    mine.buf = buf + 3 * omp_get_thread_num() * b.stride;
    memset(part + k * z.gains, 0, (size_t)z.gains * sizeof *part);
    for (int64_t n = k * z.N / blocks; n < (k + 1) * z.N / blocks; n++) scale_bwd_row(&mine, n, part + k * z.gains);
  }
  tc_cpu_sum_parts(d, &c->out[2], c->acc >> 2 & 1, part, blocks, z.gains);
  tc_cpu_sum_parts(d, &c->out[3], c->acc >> 3 & 1, part + of_q, blocks, z.gains);
  return 0;
}
