/* rope.cu - rotary positions of queries and keys in qkv[N,K,E,D], and SwiGLU of x[N,2,F]. */
#include "kernels/cuda/dev.h"

/* ---- rotary positions: a block has a token, whose cosines and sines serve all its heads -------- */

enum { ROPE_THREADS = 128, HALF_MAX = TC_CUDA_HEAD_MAX / 2 };

struct rope {
  struct tc_arr y, x;
  const int32_t *starts;         /* [rows]; NULL: no documents */
  struct tc_row_order rows;
  int64_t first, T;              /* the first row's global number; rows of a sequence */
  int heads, E, half;            /* rows of D of a token: K groups of E; D / 2 */
  float sign;                    /* -1: back */
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
    sine[i] *= a.sign;
  }
  __syncthreads();
  for (int i = (int)threadIdx.x; i < a.heads * groups; i += ROPE_THREADS) {
    const int head = i / groups, j = i % groups * 8, left = half - j;
    const int64_t at = ((int64_t)blockIdx.x * a.heads + head) * 2 * half + j;
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

static int run_rope(struct tc_device *d, const struct tc_call *c, float sign, const char *what)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  struct rope a;
  memset(&a, 0, sizeof a);
  TC_ASSERT(x->rank == 4 && x->dim[3] <= TC_CUDA_HEAD_MAX);    /* attention's prepare refuses larger ones */
  a.y = tc_arr_of(y), a.x = tc_arr_of(x);
  a.starts = tc_call_starts(c, 1), a.rows = c->rows, a.first = x->off[0], a.T = c->k[0];
  a.heads = (int)(x->dim[1] * x->dim[2]), a.E = (int)x->dim[2], a.half = (int)(x->dim[3] / 2);
  a.sign = sign, a.wide = tc_wide(a.half, x, y, NULL);
  memcpy(a.freq, c->freq, (size_t)a.half * sizeof *a.freq);
  if (x->elems == 0) return 0;
  TC_LAUNCH(rotate, tc_blocks(x->dim[0], 1), dim3(ROPE_THREADS), 0, tc_stream(d), a);
  return tc_cuda_launched(d, what);
}

int tc_cuda_rope(struct tc_device *d, const struct tc_call *c) { return run_rope(d, c, 1.f, "rope"); }

int tc_cuda_rope_bwd(struct tc_device *d, const struct tc_call *c) { return run_rope(d, c, -1.f, "rope_bwd"); }

/* ---- SwiGLU: a block has columns of one row --------------------------------------------------- */

enum { GATE_THREADS = 256, GATE_COLS = GATE_THREADS * 8 };

struct gate {
  struct tc_arr y, dy, x;        /* [N,F]; [N,F]; [N,2,F]; backward y is dx */
  int64_t F;
  bool wide;
};

/* BF16: all tensors are bf16 and wide. */
template <bool BF16> static __global__ void __launch_bounds__(GATE_THREADS) swiglu(struct gate g)
{
  const int64_t n = blockIdx.x, j = (int64_t)blockIdx.y * GATE_COLS + threadIdx.x * 8, left = g.F - j;
  struct tc_eight<BF16> gate, up;
  float a[8], b[8];
  tc_ask(gate, g.x, 2 * n * g.F + j, left, g.wide);
  tc_ask(up, g.x, (2 * n + 1) * g.F + j, left, g.wide);
  tc_take(a, gate);
  tc_take(b, up);
#pragma unroll
  for (int k = 0; k < 8; k++) a[k] = a[k] / (1.f + expf(-a[k])) * b[k];
  tc_store({ g.y.p, BF16 || g.y.bf16 }, n * g.F + j, left, BF16 || g.wide, a);
}

template <bool BF16> static __global__ void __launch_bounds__(GATE_THREADS) swiglu_bwd(struct gate g)
{
  const int64_t n = blockIdx.x, j = (int64_t)blockIdx.y * GATE_COLS + threadIdx.x * 8, left = g.F - j;
  struct tc_eight<BF16> dout, gate, up;
  float a[8], b[8], dy[8];
  tc_ask(dout, g.dy, n * g.F + j, left, g.wide);
  tc_ask(gate, g.x, 2 * n * g.F + j, left, g.wide);
  tc_ask(up, g.x, (2 * n + 1) * g.F + j, left, g.wide);
  tc_take(dy, dout);
  tc_take(a, gate);
  tc_take(b, up);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const float v = a[k], s = 1.f / (1.f + expf(-v));
    a[k] = dy[k] * b[k] * s * (1.f + v * (1.f - s));
    b[k] = dy[k] * v * s;
  }
  const struct tc_arr dx = { g.y.p, BF16 || g.y.bf16 };
  tc_store(dx, 2 * n * g.F + j, left, BF16 || g.wide, a);
  tc_store(dx, (2 * n + 1) * g.F + j, left, BF16 || g.wide, b);
}

static dim3 gate_grid(const struct tc_view *x)
{
  return dim3(tc_blocks(x->dim[0], 1).x, tc_blocks(x->dim[2], GATE_COLS).x);
}

int tc_cuda_glu(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  struct gate g;
  memset(&g, 0, sizeof g);
  g.y = tc_arr_of(y), g.x = tc_arr_of(x), g.F = x->dim[2], g.wide = tc_wide(g.F, x, y, NULL);
  if (y->elems == 0) return 0;
  auto kernel = g.wide && g.y.bf16 && g.x.bf16 ? swiglu<true> : swiglu<false>;
  TC_LAUNCH(kernel, gate_grid(x), dim3(GATE_THREADS), 0, tc_stream(d), g);
  return tc_cuda_launched(d, "swiglu");
}

int tc_cuda_glu_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0];
  struct gate g;
  g.y = tc_arr_of(dx), g.dy = tc_arr_of(dy), g.x = tc_arr_of(x), g.F = x->dim[2];
  g.wide = tc_wide(g.F, x, dx, dy);
  if (dx->elems == 0) return 0;
  auto kernel = g.wide && g.y.bf16 && g.dy.bf16 && g.x.bf16 ? swiglu_bwd<true> : swiglu_bwd<false>;
  TC_LAUNCH(kernel, gate_grid(x), dim3(GATE_THREADS), 0, tc_stream(d), g);
  return tc_cuda_launched(d, "swiglu_bwd");
}

void tc_cuda_load_rope(struct tc_device *d)
{
  tc_load_kernels(d, rotate, swiglu<true>, swiglu<false>, swiglu_bwd<true>, swiglu_bwd<false>);
}
