/* cpu_rope.c - rotary positions of queries and keys in qkv[N,K,E,D]: of the first r elements of each.
 *
 * A call makes the cosines and sines of its positions first, in scratch: there are as many as one sequence has, and
 * each serves all heads of all sequences. Documents begin anywhere, so with them all positions are made, or, if there
 * are fewer tokens, the position of each. */
#include "kernels/cpu/cpu.h"

#include <omp.h>
#include <string.h>

/* Positions that a call needs: the rows of a sequence, or fewer. */
static int64_t positions(const struct tc_call *c) { return TC_MIN(c->in[0].dim[0], c->k[0]); }

/* Whether the table has a row for each token, since these are fewer than the positions that they may have. */
static bool by_token(const struct tc_call *c) { return tc_call_any_order(c, 1) && c->in[0].dim[0] < c->k[0]; }

/* The position of row n. */
static int64_t position(const struct tc_call *c, const int32_t *starts, int64_t n)
{
  return tc_call_row(c, &c->in[0], n) % c->k[0] - (starts ? starts[n] : 0);
}

/* [positions][r]: cosines, then sines of a position; two rows of E heads of D per thread. */
int64_t tc_cpu_rope_scratch(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0];
  return (positions(c) * tc_call_rotary(c, x->dim[3]) + 2 * d->threads * x->dim[2] * x->dim[3]) * (int64_t)sizeof(float);
}

/* y = x rotated, 2 half elements of each of the first E - 1 of E heads; the others and the last head are copied. sign -1:
 * back. */
TC_CLONES static void rotate(float *y, const float *x, const float *cosine, int64_t E, int64_t D, int64_t half, float sign)
{
  const float *sine = cosine + half;
  for (int64_t e = 0; e < E - 1; e++, x += D, y += D) {
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
      const float a = x[i], b = x[i + half], s = sign * sine[i];
      y[i] = a * cosine[i] - b * s;
      y[i + half] = b * cosine[i] + a * s;
    }
    if (2 * half < D) memcpy(y + 2 * half, x + 2 * half, (size_t)(D - 2 * half) * sizeof *y);
  }
  memcpy(y, x, (size_t)D * sizeof *y);
}

static int rope(struct tc_device *d, const struct tc_call *c, float sign)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const int64_t N = x->dim[0], K = x->dim[1], E = x->dim[2], D = x->dim[3], T = c->k[0], P = positions(c);
  const int64_t r = tc_call_rotary(c, D), half = r / 2;
  const float factor = tc_call_factor(c);
  const bool any = tc_call_any_order(c, 1);
  const int32_t *starts = tc_call_starts(c, 1);
  const bool each = by_token(c);
  const int64_t first = any ? 0 : x->off[0];     /* the position of the table's first row, unless it is by token */
  float *table = c->scratch, *rows = table + P * r;
#pragma omp parallel for num_threads(tc_cpu_threads(d, P * r)) schedule(static)
  for (int64_t p = 0; p < P; p++)
    for (int64_t i = 0; i < half; i++) {
      const float angle = (float)(each ? position(c, starts, p) : (first + p) % T) * c->freq[i];
      table[p * r + i] = factor * cosf(angle);
      table[p * r + half + i] = factor * sinf(angle);
    }
#pragma omp parallel for num_threads(tc_cpu_threads(d, N * K * E * D)) schedule(static)
  for (int64_t n = 0; n < N; n++) {
    const float *at_n = table + (any && !each ? position(c, starts, n) : n % P) * r;
    float *buf = rows + 2 * omp_get_thread_num() * E * D;
    for (int64_t k = 0; k < K; k++) {
      const int64_t at = (n * K + k) * E * D;
      const float *px = tc_cpu_in(x, at, E * D, buf);
      float *py = tc_cpu_out(y, at, E * D, buf + E * D, false);
      rotate(py, px, at_n, E, D, half, sign);
      tc_cpu_put(y, at, E * D, py);
    }
  }
  return 0;
}

int tc_cpu_rope(struct tc_device *d, const struct tc_call *c) { return rope(d, c, 1.f); }

int tc_cpu_rope_bwd(struct tc_device *d, const struct tc_call *c) { return rope(d, c, -1.f); }
