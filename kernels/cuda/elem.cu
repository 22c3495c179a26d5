/* elem.cu - elementwise ops: one kernel with a functor per op; gates.
 *
 * A thread has 8 neighbours. A functor gets their first index, then computes one after the
 * other, so that index computations (bias, random numbers) count up and divide only once. */
#include "kernels/cuda/dev.h"

enum { THREADS = 256 };

template <class F>
static __global__ void __launch_bounds__(THREADS)
map(int64_t n, F given, struct tc_arr a, struct tc_arr b, struct tc_arr y, bool wide, bool acc)
{
  const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
  if (i >= n) return;
  F f = given;
  float u[8], v[8], r[8];
  if (F::inputs > 0) tc_load(u, a, i, n - i, wide);
  if (F::inputs > 1) tc_load(v, b, i, n - i, wide);
  f.begin(i);
#pragma unroll
  for (int k = 0; k < 8; k++) r[k] = f(F::inputs > 0 ? u[k] : 0.f, F::inputs > 1 ? v[k] : 0.f);
  tc_add_to(y, i, n - i, wide, acc, r);
}

template <class F>
static int run_map(struct tc_device *d, const struct tc_call *c, const F &f, const char *what)
{
  const struct tc_view *y = &c->out[0], *a = F::inputs > 0 ? &c->in[0] : y;
  const struct tc_view *b = F::inputs > 1 ? &c->in[1] : a;
  if (y->elems == 0) return 0;
  TC_ASSERT(a->elems == y->elems && b->elems == y->elems);
  TC_LAUNCH(map<F>, tc_blocks(y->elems, THREADS * 8), dim3(THREADS), 0, tc_stream(d), y->elems, f,
            tc_arr_of(a), tc_arr_of(b), tc_arr_of(y), tc_wide(0, a, b, y), (c->acc & 1) != 0);
  return tc_cuda_launched(d, what);
}

struct copy {
  enum { inputs = 1 };
  __device__ void begin(int64_t) {}
  __device__ float operator()(float x, float) { return x; }
};
struct add {
  enum { inputs = 2 };
  __device__ void begin(int64_t) {}
  __device__ float operator()(float x, float z) { return x + z; }
};
struct fill {
  enum { inputs = 0 };
  float value;
  __device__ void begin(int64_t) {}
  __device__ float operator()(float, float) { return value; }
};

struct scale {
  enum { inputs = 1 };
  float by;
  __device__ void begin(int64_t) {}
  __device__ float operator()(float x, float) { return by * x; }
};

int tc_cuda_add(struct tc_device *d, const struct tc_call *c)
{
  return run_map(d, c, add(), "add");
}
int tc_cuda_cast(struct tc_device *d, const struct tc_call *c)
{
  return run_map(d, c, copy(), "cast");
}
int tc_cuda_accum(struct tc_device *d, const struct tc_call *c)
{
  return run_map(d, c, copy(), "accum");
}
int tc_cuda_fill(struct tc_device *d, const struct tc_call *c)
{
  fill f;
  f.value = c->f[0];
  return run_map(d, c, f, "fill");
}

int tc_cuda_scale(struct tc_device *d, const struct tc_call *c)
{
  scale f;
  f.by = c->f[0];
  return run_map(d, c, f, "scale");
}

/* ---- activation functions, by enum tc_act_fn: their values and slopes ------------------------ */

#define GELU_C 0.79788456080286535588f                    /* sqrt(2 / pi) */

/* 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)): no cancellation for negative x. */
struct gelu_tanh {
  static __device__ __forceinline__ float value(float x)
  {
    const float u = GELU_C * (x + 0.044715f * x * x * x);
    return u < -40.f ? 0.f : x / (1.f + expf(-2.f * u));
  }
  static __device__ __forceinline__ float slope(float x)
  {
    const float u = GELU_C * (x + 0.044715f * x * x * x);
    const float du = GELU_C * (1.f + 3 * 0.044715f * x * x);
    const float e = expf(-2.f * fabsf(u)), s = 1.f / (1.f + e);
    const float p = u < 0.f ? e * s : s;                 /* (1 + tanh(u)) / 2 */
    const float q = u < 0.f ? s : e * s;                 /* 1 - p */
    /* Past 40, q p is 0 and x du may be infinite. */
    return p + (fabsf(u) > 40.f ? 0.f : 2.f * x * p * q * du);
  }
};
/* erfc does not cancel where erf is near -1. */
struct gelu {
  static __device__ __forceinline__ float below(float x) { return 0.5f * erfcf(-0.70710678118654752f * x); }
  static __device__ __forceinline__ float value(float x) { return x * below(x); }
  static __device__ __forceinline__ float slope(float x) { return below(x) + 0.5f * GELU_C * x * expf(-0.5f * x * x); }
};
struct relu2 {
  static __device__ __forceinline__ float value(float x) { return x < 0.f ? 0.f : x * x; }
  static __device__ __forceinline__ float slope(float x) { return x < 0.f ? 0.f : 2.f * x; }
};

template <class F> struct act {
  enum { inputs = 1 };
  __device__ void begin(int64_t) {}
  __device__ float operator()(float x, float) { return F::value(x); }
};
template <class F> struct act_bwd {
  enum { inputs = 2 };
  __device__ void begin(int64_t) {}
  __device__ float operator()(float dy, float x) { return dy * F::slope(x); }
};

int tc_cuda_act(struct tc_device *d, const struct tc_call *c)
{
  if (c->k[2] == TC_FN_RELU2) return run_map(d, c, act<relu2>(), "relu2");
  if (c->k[2] == TC_FN_GELU) return run_map(d, c, act<gelu>(), "gelu");
  return run_map(d, c, act<gelu_tanh>(), "gelu by tanh");
}
int tc_cuda_act_bwd(struct tc_device *d, const struct tc_call *c)
{
  if (c->k[2] == TC_FN_RELU2) return run_map(d, c, act_bwd<relu2>(), "relu2_bwd");
  if (c->k[2] == TC_FN_GELU) return run_map(d, c, act_bwd<gelu>(), "gelu_bwd");
  return run_map(d, c, act_bwd<gelu_tanh>(), "gelu_bwd by tanh");
}

struct softcap {
  enum { inputs = 1 };
  float cap;
  __device__ void begin(int64_t) {}
  __device__ float operator()(float x, float) { return cap * tanhf(x / cap); }
};
struct softcap_bwd {
  enum { inputs = 2 };
  float cap;
  __device__ void begin(int64_t) {}
  __device__ float operator()(float dy, float y)
  {
    const float t = y / cap;
    return dy * ((1.f - t) * (1.f + t));
  }
};

int tc_cuda_softcap(struct tc_device *d, const struct tc_call *c)
{
  softcap f;
  f.cap = c->f[1];
  return run_map(d, c, f, "softcap");
}
int tc_cuda_softcap_bwd(struct tc_device *d, const struct tc_call *c)
{
  softcap_bwd f;
  f.cap = c->f[1];
  return run_map(d, c, f, "softcap_bwd");
}

/* ---- gates of x[N,2,F]: a block has columns of one row ------------------------------------- */

/* What a gate makes of a, and the gradients of its two inputs. */
struct silu {
  static __device__ float value(float a) { return a / (1.f + expf(-a)); }
  static __device__ void back(float *da, float *db, float dy, float a, float b)
  {
    const float s = 1.f / (1.f + expf(-a));
    *da = dy * b * s * (1.f + a * (1.f - s));
    *db = dy * a * s;
  }
};
struct gelu_gate {
  static __device__ float value(float a) { return gelu_tanh::value(a); }
  static __device__ void back(float *da, float *db, float dy, float a, float b)
  {
    *da = dy * b * gelu_tanh::slope(a);
    *db = dy * gelu_tanh::value(a);
  }
};

enum { GATE_THREADS = 256, GATE_COLS = GATE_THREADS * 8 };

struct gate {
  struct tc_arr y, dy, x;        /* [N,F]; [N,F]; [N,2,F]; backward y is dx */
  int64_t F;
  bool wide;
};

/* BF16: all tensors are bf16 and wide. */
template <class F, bool BF16> static __global__ void __launch_bounds__(GATE_THREADS) glu(struct gate g)
{
  const int64_t n = blockIdx.x, j = (int64_t)blockIdx.y * GATE_COLS + threadIdx.x * 8, left = g.F - j;
  struct tc_eight<BF16> gate, up;
  float a[8], b[8];
  tc_ask(gate, g.x, 2 * n * g.F + j, left, g.wide);
  tc_ask(up, g.x, (2 * n + 1) * g.F + j, left, g.wide);
  tc_take(a, gate);
  tc_take(b, up);
#pragma unroll
  for (int k = 0; k < 8; k++) a[k] = F::value(a[k]) * b[k];
  tc_store({ g.y.p, BF16 || g.y.bf16 }, n * g.F + j, left, BF16 || g.wide, a);
}

template <class F, bool BF16> static __global__ void __launch_bounds__(GATE_THREADS) glu_bwd(struct gate g)
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
  for (int k = 0; k < 8; k++) F::back(&a[k], &b[k], dy[k], a[k], b[k]);
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
  const bool bf16 = g.wide && g.y.bf16 && g.x.bf16;
  auto kernel = c->k[2] == TC_FN_GATE_SILU ? bf16 ? glu<silu, true> : glu<silu, false>
                                           : bf16 ? glu<gelu_gate, true> : glu<gelu_gate, false>;
  TC_LAUNCH(kernel, gate_grid(x), dim3(GATE_THREADS), 0, tc_stream(d), g);
  return tc_cuda_launched(d, "glu");
}

int tc_cuda_glu_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *x = &c->in[1], *dx = &c->out[0];
  struct gate g;
  g.y = tc_arr_of(dx), g.dy = tc_arr_of(dy), g.x = tc_arr_of(x), g.F = x->dim[2];
  g.wide = tc_wide(g.F, x, dx, dy);
  if (dx->elems == 0) return 0;
  const bool bf16 = g.wide && g.y.bf16 && g.dy.bf16 && g.x.bf16;
  auto kernel = c->k[2] == TC_FN_GATE_SILU ? bf16 ? glu_bwd<silu, true> : glu_bwd<silu, false>
                                           : bf16 ? glu_bwd<gelu_gate, true> : glu_bwd<gelu_gate, false>;
  TC_LAUNCH(kernel, gate_grid(x), dim3(GATE_THREADS), 0, tc_stream(d), g);
  return tc_cuda_launched(d, "glu_bwd");
}

/* ---- biases: x[rows, cols], b[cols] ------------------------------------------------------- */

struct bias {
  enum { inputs = 1 };
  struct tc_arr b;
  int64_t cols, j;
  __device__ void begin(int64_t i) { j = i % cols; }
  __device__ float operator()(float x, float)
  {
    const float y = x + tc_get(b, j);
    j = j + 1 == cols ? 0 : j + 1;
    return y;
  }
};

int tc_cuda_bias(struct tc_device *d, const struct tc_call *c)
{
  bias f;
  f.b = tc_arr_of(&c->in[1]);
  f.cols = TC_MAX(1, c->in[1].elems);
  f.j = 0;
  return run_map(d, c, f, "bias");
}

/* ---- random numbers by the global element ------------------------------------------------- */

/* tc_view_global of consecutive elements. Dimensions are padded with 1 in front, so that loops
 * have a fixed length; `flat`: the box is one run of the global tensor from `first` on. */
struct place {
  int64_t dim[TC_DIMS], off[TC_DIMS], global[TC_DIMS], first, i, at, left;
  bool flat;
  __device__ void begin(int64_t e)
  {
    i = e;
    e += first;
    if (flat) {
      at = e;
      left = INT64_MAX;
      return;
    }
    int64_t stride = 1;
    left = dim[TC_DIMS - 1] - e % dim[TC_DIMS - 1];
    at = 0;
#pragma unroll
    for (int k = TC_DIMS - 1; k >= 0; k--) {
      const int64_t here = k > 0 ? e % dim[k] : e;
      e = k > 0 ? e / dim[k] : 0;
      at += (here + off[k]) * stride;
      stride *= global[k];
    }
  }
  __device__ int64_t next(void)                /* the global index of i; then i + 1 */
  {
    const int64_t was = at;
    i++;
    if (--left > 0) at++;
    else begin(i);
    return was;
  }
};

static struct place place_of(const struct tc_view *v)
{
  struct place p;
  int64_t row = 1;
  memset(&p, 0, sizeof p);
  p.flat = true;
  for (int k = 0; k < TC_DIMS; k++) {
    const int from = k - (TC_DIMS - v->rank);
    p.dim[k] = from < 0 ? 1 : TC_MAX(v->dim[from], 1);
    p.off[k] = from < 0 ? 0 : v->off[from];
    p.global[k] = from < 0 ? 1 : v->global[from];
    if (from > 0) p.flat = p.flat && v->dim[from] == v->global[from], row *= v->dim[from];
  }
  p.first = tc_view_skip(v);
  if (p.flat && v->rank) p.first += v->off[0] * row;
  return p;
}

struct dropout {
  enum { inputs = 1 };
  struct place at;
  const struct tc_now *now;
  uint64_t stream;               /* of the step, but for its number */
  float p;
  struct tc_row_order rows;
  int64_t columns;
  __device__ void begin(int64_t i) { at.begin(i); }
  __device__ float operator()(float x, float)
  {
    uint32_t r[4];
    const int64_t g = tc_natural_element(&rows, at.next(), columns);
    tc_draw(r, now->seed, (uint64_t)g, stream | (uint32_t)now->step);
    const float u = (float)(r[0] >> 8) * 0x1p-24f;
    return u >= p ? (float)((double)x / (1.0 - (double)p)) : 0.f;
  }
};

int tc_cuda_dropout(struct tc_device *d, const struct tc_call *c)
{
  dropout f;
  f.at = place_of(&c->out[0]);
  f.now = tc_cuda_now(d, c->rt);
  f.stream = (uint64_t)(uint32_t)c->k[0] << 32;
  f.p = c->f[0];
  f.rows = c->rows, f.columns = tc_view_columns(&c->out[0]);
  return run_map(d, c, f, "dropout");
}

/* As base/base.h's tc_normal, in double; even: tc_even. */
struct normal {
  enum { inputs = 0 };
  struct place at;
  const struct tc_now *now;
  uint64_t stream;
  float std;
  int64_t live;                  /* global elements before the padding */
  bool even;
  __device__ void begin(int64_t i) { at.begin(i); }
  __device__ float operator()(float, float)
  {
    uint32_t x[4];
    const int64_t g = at.next();
    tc_draw(x, now->seed, (uint64_t)g, stream);
    if (even) return g < live ? std * (1.73205081f * (2 * ((float)(x[0] >> 8) * 0x1p-24f) - 1)) : 0.f;
    const double u1 = ((double)((uint64_t)x[0] << 21 | x[1] >> 11) + 1) * 0x1p-53;
    const double u2 = (double)((uint64_t)x[2] << 21 | x[3] >> 11) * 0x1p-53;
    const float z = (float)(sqrt(-2 * log(u1)) * cos(6.283185307179586476925 * u2));
    return g < live ? std * z : 0.f;
  }
};

int tc_cuda_normal(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *y = &c->out[0];
  normal f;
  int64_t row_elems = 1;
  for (int j = 1; j < y->rank; j++) row_elems *= y->global[j];
  f.at = place_of(y);
  f.now = tc_cuda_now(d, c->rt);
  f.stream = (uint64_t)(uint32_t)c->k[0] << 32;
  f.std = c->f[0];
  f.even = c->k[2];
  f.live = c->k[1] > 0 ? c->k[1] * row_elems : INT64_MAX;
  return run_map(d, c, f, "normal");
}

void tc_cuda_load_elem(struct tc_device *d)
{
  tc_load_kernels(d, map<copy>, map<add>, map<fill>, map<scale>, map<bias>, map<dropout>, map<normal>);
  tc_load_kernels(d, map<act<gelu_tanh>>, map<act<gelu>>, map<act<relu2>>, map<act_bwd<gelu_tanh>>, map<act_bwd<gelu>>,
                  map<act_bwd<relu2>>, map<softcap>, map<softcap_bwd>);
  tc_load_kernels(d, glu<silu, true>, glu<silu, false>, glu<gelu_gate, true>, glu<gelu_gate, false>, glu_bwd<silu, true>,
                  glu_bwd<silu, false>, glu_bwd<gelu_gate, true>, glu_bwd<gelu_gate, false>);
}
