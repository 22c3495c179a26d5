/* rope.cu - rotary positions of queries and keys in qkv[N,K,E,D]: of the first r elements of each. A block has a token, whose
 * cosines and sines serve all its heads. */
#include "kernels/cuda/dev.h"

enum { ROPE_THREADS = 128, HALF_MAX = TC_CUDA_HEAD_MAX / 2 };

struct rope {
  struct tc_arr y, x;
  const int32_t *starts;         /* [rows]; NULL: no documents */
  struct tc_row_order rows;
  int64_t first, T;              /* the first row's global number; rows of a sequence */
  int heads, E, D, half;         /* rows of D of a token: K groups of E; r / 2 */
  float factor, sign;            /* sign -1: back */
  bool wide;
  float freq[HALF_MAX];
};

/* The angle is a float, the product of two floats, as on other devices; sincosf reduces it exactly. */
static __global__ void __launch_bounds__(ROPE_THREADS) rotate(struct rope a)
{
  __shared__ float cosine[HALF_MAX], sine[HALF_MAX];
  const int half = a.half, groups = (half + 7) / 8;
  const float position = (float)(tc_natural_row(&a.rows, a.first + blockIdx.x) % a.T - (a.starts ? a.starts[blockIdx.x] : 0));
  for (int i = (int)threadIdx.x; i < half; i += ROPE_THREADS) {
    sincosf(position * a.freq[i], &sine[i], &cosine[i]);
    cosine[i] *= a.factor;
    sine[i] *= a.sign * a.factor;
  }
  __syncthreads();
  for (int i = (int)threadIdx.x; i < a.heads * groups; i += ROPE_THREADS) {
    const int head = i / groups, j = i % groups * 8, left = half - j;
    const int64_t at = ((int64_t)blockIdx.x * a.heads + head) * a.D + j;
    float u[8], v[8];
    tc_load(u, a.x, at, left, a.wide);
    tc_load(v, a.x, at + half, left, a.wide);
    if (head % a.E < a.E - 1) {                  /* not a value */
#pragma unroll
      for (int k = 0; k < 8; k++) {
        if (k >= left) continue;
        const float x = u[k], co = cosine[j + k], si = sine[j + k];
        u[k] = x * co - v[k] * si;
        v[k] = v[k] * co + x * si;
      }
    }
    tc_store(a.y, at, left, a.wide, u);
    tc_store(a.y, at + half, left, a.wide, v);
  }
}

/* Elements that do not turn, from 2 half on. */
static __global__ void __launch_bounds__(ROPE_THREADS) copy_others(struct rope a)
{
  const int groups = (a.D - 2 * a.half + 7) / 8;
  float u[8];
  for (int i = (int)threadIdx.x; i < a.heads * groups; i += ROPE_THREADS) {
    const int j = 2 * a.half + i % groups * 8;
    const int64_t at = ((int64_t)blockIdx.x * a.heads + i / groups) * a.D + j;
    tc_load(u, a.x, at, a.D - j, a.wide);
    tc_store(a.y, at, a.D - j, a.wide, u);
  }
}

static int run_rope(struct tc_device *d, const struct tc_call *c, float sign, const char *what)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  struct rope a;
  memset(&a, 0, sizeof a);
  TC_ASSERT(x->rank == 4 && x->dim[3] <= TC_CUDA_HEAD_MAX);    /* attention's prepare refuses larger ones */
  a.y = tc_arr_of(y), a.x = tc_arr_of(x);
  a.starts = tc_call_starts(c, 1), a.rows = c->rows, a.first = x->off[0], a.T = c->k[0];
  a.heads = (int)(x->dim[1] * x->dim[2]), a.E = (int)x->dim[2], a.D = (int)x->dim[3];
  a.half = (int)(tc_call_rotary(c, x->dim[3]) / 2), a.factor = tc_call_factor(c);
  a.sign = sign, a.wide = tc_wide(a.half, x, y, NULL) && a.D % 8 == 0;
  memcpy(a.freq, c->freq, (size_t)a.half * sizeof *a.freq);
  if (x->elems == 0) return 0;
  TC_LAUNCH(rotate, tc_blocks(x->dim[0], 1), dim3(ROPE_THREADS), 0, tc_stream(d), a);
  if (2 * a.half < a.D) TC_LAUNCH(copy_others, tc_blocks(x->dim[0], 1), dim3(ROPE_THREADS), 0, tc_stream(d), a);
  return tc_cuda_launched(d, what);
}

int tc_cuda_rope(struct tc_device *d, const struct tc_call *c) { return run_rope(d, c, 1.f, "rope"); }

int tc_cuda_rope_bwd(struct tc_device *d, const struct tc_call *c) { return run_rope(d, c, -1.f, "rope_bwd"); }

void tc_cuda_load_rope(struct tc_device *d) { tc_load_kernels(d, rotate, copy_others); }
