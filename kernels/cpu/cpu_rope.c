/* cpu_rope.c - rotary positions of queries and keys in qkv[N,K,E,D], and SwiGLU of x[N,2,F].
 *
 * A call makes the cosines and sines of its positions first, in scratch: there are as many as one sequence has, and
 * each serves all heads of all sequences. Documents begin anywhere, so with them all positions are made, or, if there
 * are fewer tokens, the position of each. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

#include <omp.h>
#include <string.h>

/* ---- rotary positions ------------------------------------------------------------------ */

/* Positions that a call needs: the rows of a sequence, or fewer. */
static int64_t positions(const struct tc_call *c) { return TC_MIN(c->in[0].dim[0], c->k[0]); }

/* Whether the table has a row for each token, since these are fewer than the positions that they may have. */
static bool by_token(const struct tc_call *c) { return tc_call_any_order(c, 1) && c->in[0].dim[0] < c->k[0]; }

/* The position of row n. */
static int64_t position(const struct tc_call *c, const int32_t *starts, int64_t n)
{
  return tc_call_row(c, &c->in[0], n) % c->k[0] - (starts ? starts[n] : 0);
}

/* [positions][D]: cosines, then sines of a position; two rows of E heads of D per thread. */
int64_t tc_cpu_rope_scratch(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  return (positions(c) + 2 * d->threads * x->dim[2]) * x->dim[3] * (int64_t)sizeof(float);
}

/* y = x rotated, for the first E - 1 of E heads; the last is copied. sign -1: back. */
TC_CLONES static void rotate(float *y, const float *x, const float *cosine, int64_t E, int64_t D, float sign)
{
  const int64_t half = D / 2;
  const float *sine = cosine + half;
  for (int64_t e = 0; e < E - 1; e++, x += D, y += D) {
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
      const float a = x[i], b = x[i + half], s = sign * sine[i];
      y[i] = a * cosine[i] - b * s;
      y[i + half] = b * cosine[i] + a * s;
    }
  }
  memcpy(y, x, (size_t)D * sizeof *y);
}

static int rope(struct tc_device *d, const struct tc_call *c, float sign)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const int64_t N = x->dim[0], K = x->dim[1], E = x->dim[2], D = x->dim[3], T = c->k[0], P = positions(c);
  const bool any = tc_call_any_order(c, 1);
  const int32_t *starts = tc_call_starts(c, 1);
  const bool each = by_token(c);
  const int64_t first = any ? 0 : x->off[0];     /* the position of the table's first row, unless it is by token */
  float *table = c->scratch, *rows = table + P * D;
#pragma omp parallel for num_threads(tc_cpu_threads(d, P * D)) schedule(static)
  for (int64_t p = 0; p < P; p++)
    for (int64_t i = 0; i < D / 2; i++) {
      const float angle = (float)(each ? position(c, starts, p) : (first + p) % T) * c->freq[i];
      table[p * D + i] = cosf(angle);
      table[p * D + D / 2 + i] = sinf(angle);
    }
#pragma omp parallel for num_threads(tc_cpu_threads(d, N * K * E * D)) schedule(static)
  for (int64_t n = 0; n < N; n++) {
    const float *at_n = table + (any && !each ? position(c, starts, n) : n % P) * D;
    float *buf = rows + 2 * omp_get_thread_num() * E * D;
    for (int64_t k = 0; k < K; k++) {
      const int64_t at = (n * K + k) * E * D;
      const float *px = tc_cpu_in(x, at, E * D, buf);
      float *py = tc_cpu_out(y, at, E * D, buf + E * D, false);
      rotate(py, px, at_n, E, D, sign);
      tc_cpu_put(y, at, E * D, py);
    }
  }
  return 0;
}

int tc_cpu_rope(struct tc_device *d, const struct tc_call *c) { return rope(d, c, 1.f); }

int tc_cpu_rope_bwd(struct tc_device *d, const struct tc_call *c) { return rope(d, c, -1.f); }

/* ---- SwiGLU ---------------------------------------------------------------------------- */

TC_CLONES static void swiglu(float *y, const float *a, const float *b, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = a[i] / (1.f + tc_expf(-a[i])) * b[i];
}

TC_CLONES static void swiglu_bwd(float *da, float *db, const float *dy, const float *a, const float *b,
                                 int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float v = a[i], s = 1.f / (1.f + tc_expf(-v)), g = dy[i];
    da[i] = g * b[i] * s * (1.f + v * (1.f - s));
    db[i] = g * v * s;
  }
}

/* A block of a row: [from, from + n) of F columns of row r. */
struct piece { int64_t x, y, n; };

static int64_t pieces_per_row(int64_t F) { return tc_ceil_div(F, TC_BLOCK); }

static struct piece piece_at(int64_t i, int64_t F)
{
  const int64_t row = i / pieces_per_row(F), from = i % pieces_per_row(F) * TC_BLOCK;
  return (struct piece){ row * 2 * F + from, row * F + from, TC_MIN(TC_BLOCK, F - from) };
}

int tc_cpu_glu(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const int64_t F = x->dim[2], all = x->dim[0] * pieces_per_row(F);
#pragma omp parallel for num_threads(tc_cpu_threads(d, y->elems)) schedule(static)
  for (int64_t i = 0; i < all; i++) {
    float a[TC_BLOCK], b[TC_BLOCK], out[TC_BLOCK];
    const struct piece p = piece_at(i, F);
    float *py = tc_cpu_out(y, p.y, p.n, out, false);
    swiglu(py, tc_cpu_in(x, p.x, p.n, a), tc_cpu_in(x, p.x + F, p.n, b), p.n);
    tc_cpu_put(y, p.y, p.n, py);
  }
  return 0;
}

int tc_cpu_glu_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0];
  const int64_t F = x->dim[2], all = x->dim[0] * pieces_per_row(F);
#pragma omp parallel for num_threads(tc_cpu_threads(d, dy->elems)) schedule(static)
  for (int64_t i = 0; i < all; i++) {
    float g[TC_BLOCK], a[TC_BLOCK], b[TC_BLOCK], da[TC_BLOCK], db[TC_BLOCK];
    const struct piece p = piece_at(i, F);
    float *pa = tc_cpu_out(dx, p.x, p.n, da, false), *pb = tc_cpu_out(dx, p.x + F, p.n, db, false);
    swiglu_bwd(pa, pb, tc_cpu_in(dy, p.y, p.n, g), tc_cpu_in(x, p.x, p.n, a),
               tc_cpu_in(x, p.x + F, p.n, b), p.n);
    tc_cpu_put(dx, p.x, p.n, pa);
    tc_cpu_put(dx, p.x + F, p.n, pb);
  }
  return 0;
}
