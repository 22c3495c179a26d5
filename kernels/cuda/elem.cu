/* elem.cu - elementwise ops: one kernel with a functor per op.
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

#define GELU_C 0.79788456080286535588f                    /* sqrt(2 / pi) */

/* 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)): no cancellation for negative x. */
struct gelu {
  enum { inputs = 1 };
  __device__ void begin(int64_t) {}
  __device__ float operator()(float x, float)
  {
    const float u = GELU_C * (x + 0.044715f * x * x * x);
    return u < -40.f ? 0.f : x / (1.f + expf(-2.f * u));
  }
};
struct gelu_bwd {
  enum { inputs = 2 };
  __device__ void begin(int64_t) {}
  __device__ float operator()(float dy, float x)
  {
    const float u = GELU_C * (x + 0.044715f * x * x * x);
    const float du = GELU_C * (1.f + 3 * 0.044715f * x * x);
    const float e = expf(-2.f * fabsf(u)), s = 1.f / (1.f + e);
    const float p = u < 0.f ? e * s : s;                 /* (1 + tanh(u)) / 2 */
    const float q = u < 0.f ? s : e * s;                 /* 1 - p */
    /* Past 40, q p is 0 and x du may be infinite. */
    return dy * (p + (fabsf(u) > 40.f ? 0.f : 2.f * x * p * q * du));
  }
};

int tc_cuda_act(struct tc_device *d, const struct tc_call *c)
{
  return run_map(d, c, gelu(), "gelu");
}
int tc_cuda_act_bwd(struct tc_device *d, const struct tc_call *c)
{
  return run_map(d, c, gelu_bwd(), "gelu_bwd");
}
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
  p.first = v->rows >= 0 && v->rank ? v->row0 * v->dim[v->rank - 1] : 0;
  if (p.flat && v->rank) p.first += v->off[0] * row;
  return p;
}

/* base/base.h's tc_philox, for one counter. */
static __device__ __forceinline__ void philox(uint32_t x[4], uint64_t key, uint64_t c0, uint64_t c1)
{
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  x[0] = (uint32_t)c0, x[1] = (uint32_t)(c0 >> 32);
  x[2] = (uint32_t)c1, x[3] = (uint32_t)(c1 >> 32);
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * x[0], p1 = (uint64_t)0xCD9E8D57u * x[2];
    x[0] = (uint32_t)(p1 >> 32) ^ x[1] ^ k0;
    x[2] = (uint32_t)(p0 >> 32) ^ x[3] ^ k1;
    x[1] = (uint32_t)p1;
    x[3] = (uint32_t)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
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
    philox(r, now->seed, (uint64_t)g, stream | (uint32_t)now->step);
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

/* As base/base.h's tc_normal, in double. */
struct normal {
  enum { inputs = 0 };
  struct place at;
  const struct tc_now *now;
  uint64_t stream;
  float std;
  int64_t live;                  /* global elements before the padding */
  __device__ void begin(int64_t i) { at.begin(i); }
  __device__ float operator()(float, float)
  {
    uint32_t x[4];
    const int64_t g = at.next();
    philox(x, now->seed, (uint64_t)g, stream);
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
  f.live = c->k[1] > 0 ? c->k[1] * row_elems : INT64_MAX;
  return run_map(d, c, f, "normal");
}

void tc_cuda_load_elem(struct tc_device *d)
{
  tc_load_kernels(d, map<copy>, map<add>, map<fill>, map<gelu>, map<gelu_bwd>, map<bias>, map<dropout>, map<normal>);
}
