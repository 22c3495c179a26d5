/* cpu_round.c - states of updates in bf16, rounded up or down by the bits that op.def says.
 *
 * Bits are drawn for runs of elements that follow each other in the global tensor: a Philox block is of four of them, and
 * many blocks are computed beside each other. */
#include "kernels/cpu/cpu.h"

#include <string.h>

/* word[k][n]: word k of the blocks from number `first` on, which tc_bits has one after the other. */
enum { BLOCKS = TC_BLOCK / 4 + 2 };
struct stream { uint64_t seed; uint32_t a, b; };
TC_CLONES static void draw_words(uint32_t word[4][BLOCKS], int64_t n, const struct stream *s, uint64_t first)
{
  const uint64_t seed = s->seed;
  const uint32_t a = s->a, b = s->b;
  uint32_t *w0 = word[0], *w1 = word[1], *w2 = word[2], *w3 = word[3];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const uint64_t at = first + (uint64_t)i;
    uint32_t x0 = (uint32_t)at, x1 = (uint32_t)(at >> 32), x2 = b, x3 = a;
    TC_CPU_PHILOX(x0, x1, x2, x3, seed);
    w0[i] = x0, w1[i] = x1, w2[i] = x2, w3[i] = x3;
  }
}

TC_CLONES static void in_order(uint32_t *bits, uint32_t word[4][BLOCKS], int64_t n)
{
  const uint32_t *w0 = word[0], *w1 = word[1], *w2 = word[2], *w3 = word[3];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) bits[4 * i] = w0[i], bits[4 * i + 1] = w1[i], bits[4 * i + 2] = w2[i], bits[4 * i + 3] = w3[i];
}

TC_CLONES static void round_by(uint16_t *y, const float *x, const uint32_t *bits, int half, int64_t n)
{
  const int shift = 16 * half;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = tc_f32_to_bf16_by(x[i], bits[i] >> shift);
}

/* Elements of the box after which the global index jumps. */
static int64_t run_of(const struct tc_view *v)
{
  int64_t run = 1;
  for (int d = v->rank - 1; d >= 0; d--) {
    run *= v->dim[d];
    if (v->dim[d] != v->global[d]) break;
  }
  return TC_MAX(run, 1);
}

const uint32_t *tc_cpu_draw(const struct tc_call *c, int64_t i, int64_t n, uint32_t *bits)
{
  const struct tc_view *v = &c->out[1];
  if (v->dtype != TC_BF16) return NULL;
  const struct stream s = { c->rt->seed, (uint32_t)c->k[0], (uint32_t)c->rt->step };
  const int64_t run = run_of(v), skip = tc_view_skip(v);
  for (int64_t j = 0, m; j < n; j += m) {
    uint32_t word[4][BLOCKS], part[4 * BLOCKS];
    m = TC_MIN(n - j, run - (skip + i + j) % run);
    const uint64_t at = (uint64_t)tc_view_global(v, i + j), from = at % 4;
    const int64_t blocks = tc_ceil_div((int64_t)from + m, 4);
    draw_words(word, blocks, &s, at / 4);
    in_order(part, word, blocks);
    memcpy(bits + j, part + from, (size_t)m * sizeof *bits);
  }
  return bits;
}

void tc_cpu_put_state(const struct tc_call *c, int k, int64_t i, int64_t n, const float *buf, const uint32_t *bits)
{
  const struct tc_view *v = &c->out[1 + k];
  if (bits) round_by((uint16_t *)v->data + i, buf, bits, k, n);
  else tc_cpu_put(v, i, n, buf);
}
