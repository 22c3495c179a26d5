/* cache.c - attention of new tokens over the keys and values of a sequence so far: memory is what limits it.
 *
 * A thread processes a (group of heads that share a key, sequence): each key and value of the cache is read once for
 * all queries of the group. Sums run over the tokens in their order, so results do not depend on threads. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Sizes of a call: N = B * S new tokens, K groups of G queries of D, a cache of M tokens. */
struct sizes { int64_t B, S, K, G, D, M; };

static struct sizes sizes_of(const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *cache = &c->in[1];
  const struct sizes s = { .B = cache->dim[0], .S = x->dim[0] / cache->dim[0], .K = x->dim[1],
                           .G = x->dim[2] - 2, .D = x->dim[3], .M = cache->dim[2] };
  TC_ASSERT(cache->dim[1] == s.K && cache->dim[3] == 2 * s.D && s.D <= TC_BLOCK);
  return s;
}

/* Of a thread: scores[G][M], queries[G][D], sums[G][D]. */
static int64_t floats_each(const struct sizes *s) { return tc_round_up(s->G * (s->M + 2 * s->D), 16); }

int64_t tc_cpu_attn_cache_scratch(struct tc_device *d, const struct tc_call *c)
{
  const struct sizes s = sizes_of(c);
  return d->threads * floats_each(&s) * (int64_t)sizeof(float);
}

TC_CLONES static float dot(const float *a, const float *b, int64_t n)
{
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

TC_CLONES static void add_scaled(float *y, float a, const float *x, int64_t n)
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

/* score[n] becomes its softmax. */
TC_CLONES static void softmax(float *score, int64_t n)
{
  float max = -INFINITY, sum = 0;
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; i++) max = score[i] > max ? score[i] : max;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += score[i] = tc_expf(score[i] - max);
  const float scale = 1.f / sum;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) score[i] *= scale;
}

/* One new token of group k: its queries over the first `seen` tokens at `rows` of the cache. */
static void attend(const struct tc_call *c, const struct sizes *s, int64_t n, int64_t k, int64_t rows, int64_t seen,
                   float *scratch)
{
  const struct tc_view *x = &c->in[0], *cache = &c->out[1];
  const int64_t D = s->D, G = s->G, at = (n * s->K + k) * (G + 2) * D, y = (n * s->K + k) * G * D;
  float *score = scratch, *q = score + G * s->M, *sum = q + G * D, buf[TC_BLOCK];
  const float scale = 1.f / sqrtf((float)D);
  for (int64_t g = 0; g < G; g++) memcpy(q + g * D, tc_cpu_in(x, at + g * D, D, buf), (size_t)D * sizeof *q);
  for (int64_t m = 0; m < seen; m++) {
    const float *key = tc_cpu_in(cache, (rows + m) * 2 * D, D, buf);
    for (int64_t g = 0; g < G; g++) score[g * s->M + m] = scale * dot(q + g * D, key, D);
  }
  for (int64_t g = 0; g < G; g++) softmax(score + g * s->M, seen);
  memset(sum, 0, (size_t)(G * D) * sizeof *sum);
  for (int64_t m = 0; m < seen; m++) {
    const float *value = tc_cpu_in(cache, ((rows + m) * 2 + 1) * D, D, buf);
    for (int64_t g = 0; g < G; g++) add_scaled(sum + g * D, score[g * s->M + m], value, D);
  }
  for (int64_t g = 0; g < G; g++) {
    float *to = tc_cpu_out(&c->out[0], y + g * D, D, buf, false);
    memcpy(to, sum + g * D, (size_t)D * sizeof *to);
    tc_cpu_put(&c->out[0], y + g * D, D, to);
  }
}

/* The key and value of new token n go to row `row` of the cache. */
static void put(const struct tc_call *c, const struct sizes *s, int64_t n, int64_t k, int64_t row)
{
  const size_t elem = tc_dtype_bytes(c->in[0].dtype), pair = (size_t)(2 * s->D) * elem;
  const char *from = c->in[0].data;
  char *to = c->out[1].data;
  memcpy(to + (size_t)row * pair, from + (size_t)((n * s->K + k) * (s->G + 2) + s->G) * (size_t)s->D * elem, pair);
}

int tc_cpu_attn_cache(struct tc_device *d, const struct tc_call *c)
{
  const struct sizes s = sizes_of(c);
  const int32_t *starts = tc_cpu_i32(&c->in[2]);
#pragma omp parallel for num_threads(d->threads) schedule(static)
  for (int64_t i = 0; i < s.K * s.B; i++) {
    const int64_t b = i / s.K, k = i % s.K, rows = i * s.M;
    float *scratch = (float *)c->scratch + omp_get_thread_num() * floats_each(&s);
    for (int64_t n = b * s.S; n < (b + 1) * s.S; n++) {
      const int64_t p = (c->in[0].off[0] + n) % c->k[0] - starts[n];
      put(c, &s, n, k, rows + p);
      attend(c, &s, n, k, rows, p + 1, scratch);
    }
  }
  return 0;
}
