/* optim.cu - squared norms, clipping and the optimizers' updates.
 *
 * Norms and updates are of many tensors in one launch: a table of them is the kernel's argument (4
 * KB at most), and a block finds the tensor that it belongs to. A model has hundreds of small
 * tensors, whose launches one by one would take longer than their memory. How a tensor is cut into
 * blocks depends only on its size: results are bit-identical whatever the other tensors are. */
#include "kernels/cuda/dev.h"

enum { THREADS = 256, NORM_ELEMS = THREADS * 8 * 8, NORM_BLOCKS = 1024, SCALARS = 64 };
enum { NORMS = 100, UPDATES = 28, BLOCK_ELEMS = THREADS * 8 };

/* The last i of n with first[i] <= block. */
static __device__ __forceinline__ int of_block(const uint32_t *first, int n, uint32_t block)
{
  int low = 0;
  while (n > 1) {
    const int half = n / 2;
    if (first[low + half] <= block) low += half, n -= half;
    else n = half;
  }
  return low;
}

/* ---- the squared norm --------------------------------------------------------------------- */

static int64_t norm_blocks(int64_t elems)
{
  return TC_MAX(1, TC_MIN((int64_t)NORM_BLOCKS, tc_ceil_div(elems, NORM_ELEMS)));
}

struct norms {
  uint32_t first[NORMS + 1];     /* the first block of each, and of none */
  uint32_t bf16[(NORMS + 31) / 32], wide[(NORMS + 31) / 32];
  int n;
  const char *x[NORMS];
  int64_t elems[NORMS];
};
static_assert(sizeof(struct norms) < 4000, "a kernel's arguments have 4 KB");

/* part[block] = the sum over its elements; a thread's are summed in fp32, 64 at most, then fp64. */
static __global__ void __launch_bounds__(THREADS) squares(struct norms t, double *part)
{
  const int k = of_block(t.first, t.n, blockIdx.x);
  const struct tc_arr x = { (char *)t.x[k], (t.bf16[k / 32] >> k % 32 & 1) != 0 };
  const bool wide = (t.wide[k / 32] >> k % 32 & 1) != 0;
  const int64_t n = t.elems[k], block = blockIdx.x - t.first[k];
  const int64_t step = (int64_t)(t.first[k + 1] - t.first[k]) * BLOCK_ELEMS;
  double sum = 0;
  for (int64_t i = (block * THREADS + threadIdx.x) * 8; i < n; i += step) {
    float v[8], s = 0;
    tc_load(v, x, i, n - i, wide);
#pragma unroll
    for (int j = 0; j < 8; j++) s += v[j] * v[j];
    sum += (double)s;
  }
  sum = tc_block_sum(sum);
  if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS)
add_up(float *y, const double *part, int64_t n)
{
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += THREADS) sum += part[i];
  sum = tc_block_sum(sum);
  if (threadIdx.x == 0) *y = (float)sum;
}

int64_t tc_cuda_sqnorm_scratch(struct tc_device *d, const struct tc_call *c)
{
  (void)d;
  int64_t blocks = 0;
  for (int k = 0; k < c->n_in; k++) blocks += norm_blocks(c->in[k].elems);
  return blocks * (int64_t)sizeof(double);
}

int tc_cuda_sqnorm(struct tc_device *d, const struct tc_call *c)
{
  double *part = (double *)c->scratch;
  int64_t n = 0;
  for (int k = 0; k < c->n_in;) {
    struct norms t;
    memset(&t, 0, sizeof t);
    for (; k < c->n_in && t.n < NORMS; k++) {
      const struct tc_view *x = &c->in[k];
      const uint32_t bit = 1u << t.n % 32;
      if (tc_arr_of(x).bf16) t.bf16[t.n / 32] |= bit;
      if (tc_wide(0, x, NULL, NULL)) t.wide[t.n / 32] |= bit;
      t.x[t.n] = (const char *)x->data;
      t.elems[t.n] = x->elems;
      t.first[t.n + 1] = t.first[t.n] + (uint32_t)norm_blocks(x->elems);
      t.n++;
    }
    TC_LAUNCH(squares, dim3(t.first[t.n]), dim3(THREADS), 0, tc_stream(d), t, part + n);
    n += t.first[t.n];
  }
  TC_LAUNCH(add_up, dim3(1), dim3(THREADS), 0, tc_stream(d), tc_f32_of(&c->out[0]),
            (const double *)part, n);
  return tc_cuda_launched(d, "sqnorm");
}

/* ---- clipping ------------------------------------------------------------------------------ */

struct scalars { const float *p[SCALARS]; int n; bool first, last; };

/* One thread; the scalars of a launch. torch.nn.utils.clip_grad_norm_'s formula. */
static __global__ void clip(struct scalars x, double *sum, float *norm_out, float *scale_out,
                            const struct tc_now *now)
{
  double all = x.first ? 0 : *sum;
  for (int k = 0; k < x.n; k++) all += (double)*x.p[k];
  if (!x.last) {
    *sum = all;
    return;
  }
  const double norm = now->loss_scale * sqrt(all), most = now->clip;
  double scale = most / (norm + 1e-6);
  if (most == 0 || scale > 1) scale = 1;       /* a NaN norm gives a NaN scale */
  *norm_out = (float)norm;
  *scale_out = (float)(now->loss_scale * scale);
}

int64_t tc_cuda_clip_scratch(struct tc_device *d, const struct tc_call *c)
{
  (void)d;
  (void)c;
  return (int64_t)sizeof(double);
}

int tc_cuda_clip(struct tc_device *d, const struct tc_call *c)
{
  int k = 0;
  do {
    struct scalars x;
    memset(&x, 0, sizeof x);
    x.first = k == 0;
    for (; k < c->n_in && x.n < SCALARS; k++) x.p[x.n++] = tc_f32_of(&c->in[k]);
    x.last = k == c->n_in;
    TC_LAUNCH(clip, dim3(1), dim3(1), 0, tc_stream(d), x, (double *)c->scratch,
              tc_f32_of(&c->out[0]), tc_f32_of(&c->out[1]), tc_cuda_now(d, c->rt));
  } while (k < c->n_in);
  return tc_cuda_launched(d, "clip");
}

/* ---- updates -------------------------------------------------------------------------------- */

/* Where a box's elements are in the global tensor: dimensions that it has whole are one with those before them. */
enum { LEVELS = 3 };
struct box {
  int64_t skip, first;           /* elements of the box before those that are here; the global index of its corner */
  int64_t run[LEVELS], step[LEVELS];     /* from the last dimension on: so many of the box, of the tensor; run 0: no more */
};
enum { G_BF16 = 1, W_BF16 = 2, CAST_BF16 = 4, WIDE = 8, STATE_BF16 = 16 };
struct update {
  char *g, *w, *m, *v, *cast;    /* in place; m and v: the states; cast: a copy of w, may be NULL */
  int64_t n;
  float decay, lr;               /* what weight decay and learning rate are multiplied by */
  uint32_t flags, stream;        /* stream and box: states in bf16 are drawn by them */
  struct box box;
};
struct updates {
  uint32_t first[UPDATES];       /* each one's first block */
  int n;
  const float *scale;
  const struct tc_now *now;
  struct update u[UPDATES];
};
static_assert(sizeof(struct updates) < 4000, "a kernel's arguments have 4 KB");

/* A thread has two groups of 4 neighbours, so that a warp reads and writes whole lines of fp32. */
enum { GROUP = 4, GROUPS = BLOCK_ELEMS / THREADS / GROUP };
struct place { struct update u; int64_t i, left; bool wide; };       /* i: the first group; left: elements from there on */
static __device__ __forceinline__ struct place place_of(const struct updates &t)
{
  struct place p;
  const int k = of_block(t.first, t.n, blockIdx.x);
  p.u = t.u[k];
  p.i = (int64_t)(blockIdx.x - t.first[k]) * BLOCK_ELEMS + threadIdx.x * GROUP;
  p.left = p.u.n - p.i;
  p.wide = (p.u.flags & WIDE) != 0;
  return p;
}

/* The thread's elements of an array, from or to memory. */
static __device__ __forceinline__ void get_groups(float x[8], char *at, bool bf16, const struct place &p)
{
#pragma unroll
  for (int q = 0, from = 0; q < GROUPS; q++, from += THREADS * GROUP)
    tc_load4(x + q * GROUP, { at, bf16 }, p.i + from, p.left - from, p.wide);
}
static __device__ __forceinline__ void put_groups(char *at, bool bf16, const struct place &p, const float x[8])
{
#pragma unroll
  for (int q = 0, from = 0; q < GROUPS; q++, from += THREADS * GROUP)
    tc_store4({ at, bf16 }, p.i + from, p.left - from, p.wide, x + q * GROUP);
}

/* tc_view_global of element i. */
static __device__ __forceinline__ int64_t global_of(const struct box &b, int64_t i)
{
  int64_t at = b.first, step = 1, e = b.skip + i;
#pragma unroll
  for (int k = 0; k < LEVELS; k++) {
    if (b.run[k] == 0) break;
    at += e % b.run[k] * step;
    e /= b.run[k];
    step = b.step[k];
  }
  return at + e * step;
}

/* Whether the update's states are in bf16. DRAWN: some of the launch's are; the kernels are compiled for either, since drawing
 * takes registers, of which memory's speed depends. */
template <bool DRAWN> static __device__ __forceinline__ bool has_bf16_states(const struct place &p)
{
  return DRAWN && (p.u.flags & STATE_BF16) != 0;
}

/* tc_bits of the thread's elements, if its states are in bf16. A group is most often one block of Philox's. */
template <bool DRAWN>
static __device__ __forceinline__ void draw_groups(uint32_t bits[8], const struct place &p, const struct tc_now &now)
{
  if (!has_bf16_states<DRAWN>(p)) return;
  const uint64_t stream = (uint64_t)p.u.stream << 32 | (uint32_t)now.step;
#pragma unroll
  for (int q = 0; q < GROUPS; q++) {
    const int64_t i = p.i + q * THREADS * GROUP, at = global_of(p.u.box, i);
    if (at % 4 == 0 && global_of(p.u.box, i + 3) == at + 3) {
      tc_draw(bits + q * GROUP, now.seed, (uint64_t)at / 4, stream);
      continue;
    }
    for (int k = 0; k < GROUP; k++) {
      uint32_t x[4];
      const int64_t one = global_of(p.u.box, i + k);
      tc_draw(x, now.seed, (uint64_t)one / 4, stream);
      bits[q * GROUP + k] = tc_word(x, one);
    }
  }
}

template <bool DRAWN> static __device__ __forceinline__ void get_state(float x[8], char *at, const struct place &p)
{
  get_groups(x, at, has_bf16_states<DRAWN>(p), p);
}

/* State `half`; in bf16 as tc_f32_to_bf16_by: what is left is stored as it is. */
template <bool DRAWN>
static __device__ __forceinline__ void put_state(char *at, const struct place &p, float x[8], const uint32_t bits[8], int half)
{
  const bool bf16 = has_bf16_states<DRAWN>(p);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const uint32_t u = __float_as_uint(x[k]);
    if (bf16 && (u & 0x7f800000u) != 0x7f800000u) x[k] = __uint_as_float((u + (bits[k] >> 16 * half & 0xffffu)) & 0xffff0000u);
  }
  put_groups(at, bf16, p, x);
}

/* w, and its copy in another type. */
static __device__ __forceinline__ void put_weight(const struct place &p, const float w[8])
{
  put_groups(p.u.w, (p.u.flags & W_BF16) != 0, p, w);
  if (p.u.cast) put_groups(p.u.cast, (p.u.flags & CAST_BF16) != 0, p, w);
}

/* What weight decay leaves of a weight. */
static __device__ __forceinline__ float keep_of(const struct tc_now &now, const struct update &u)
{ return (float)(1 - now.decay * (double)u.lr * (double)u.decay); }

template <bool DRAWN> static __global__ void __launch_bounds__(THREADS) adamw_step(struct updates t)
{
  const struct place p = place_of(t);
  if (p.left <= 0) return;
  const struct tc_now now = *t.now;
  const float scale = *t.scale, keep = keep_of(now, p.u), size = now.size * p.u.lr;
  float g[8], w[8], m[8], v[8];
  uint32_t bits[8];
  get_groups(g, p.u.g, (p.u.flags & G_BF16) != 0, p);
  get_groups(w, p.u.w, (p.u.flags & W_BF16) != 0, p);
  get_state<DRAWN>(m, p.u.m, p);
  get_state<DRAWN>(v, p.u.v, p);
  draw_groups<DRAWN>(bits, p, now);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const float e = g[k] * scale;
    m[k] = now.b1 * m[k] + now.c1 * e;
    v[k] = now.b2 * v[k] + now.c2 * e * e;
    w[k] = w[k] * keep - size * m[k] / (sqrtf(v[k]) * now.inv_root + now.eps);
  }
  put_weight(p, w);
  put_state<DRAWN>(p.u.m, p, m, bits, 0);
  put_state<DRAWN>(p.u.v, p, v, bits, 1);
}

static __global__ void __launch_bounds__(THREADS) sgd_step(struct updates t)
{
  const struct place p = place_of(t);
  if (p.left <= 0) return;
  const float rate = t.now->lr * p.u.lr * *t.scale, decay = (float)t.now->decay * p.u.lr * p.u.decay;
  float g[8], w[8];
  get_groups(g, p.u.g, (p.u.flags & G_BF16) != 0, p);
  get_groups(w, p.u.w, (p.u.flags & W_BF16) != 0, p);
#pragma unroll
  for (int k = 0; k < 8; k++) w[k] -= rate * g[k] + decay * w[k];
  put_weight(p, w);
}

/* One state: SGD with momentum, as torch.optim.SGD without dampening, or Lion (Chen et al., 2023). */
template <bool LION, bool DRAWN> static __global__ void __launch_bounds__(THREADS) one_state_step(struct updates t)
{
  const struct place p = place_of(t);
  if (p.left <= 0) return;
  const struct tc_now now = *t.now;
  const float scale = *t.scale, lr = now.lr * p.u.lr, keep = keep_of(now, p.u), decay = now.weight_decay * p.u.decay;
  float g[8], w[8], m[8];
  uint32_t bits[8];
  get_groups(g, p.u.g, (p.u.flags & G_BF16) != 0, p);
  get_groups(w, p.u.w, (p.u.flags & W_BF16) != 0, p);
  get_state<DRAWN>(m, p.u.m, p);
  draw_groups<DRAWN>(bits, p, now);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const float e = g[k] * scale, x = now.b1 * m[k] + now.c1 * e;
    if (LION) {
      w[k] = w[k] * keep - lr * (x > 0 ? 1 : x < 0 ? -1 : x);       /* not a number stays one */
      m[k] = now.b2 * m[k] + now.c2 * e;
    } else {
      m[k] = now.momentum * m[k] + (e + decay * w[k]);
      w[k] -= lr * m[k];
    }
  }
  put_weight(p, w);
  put_state<DRAWN>(p.u.m, p, m, bits, 0);
}

static uint32_t is_bf16(const struct tc_view *v, uint32_t flag)
{
  return tc_arr_of(v).bf16 ? flag : 0;
}

static struct box box_of(const struct tc_view *v)
{
  struct box b;
  int64_t step = 1, run = 1;
  int n = 0;
  memset(&b, 0, sizeof b);
  b.skip = tc_view_skip(v);
  for (int d = v->rank - 1; d >= 0; d--) {
    b.first += v->off[d] * step;
    run *= TC_MAX(v->dim[d], 1), step *= v->global[d];
    if (d == 0 || v->dim[d] == v->global[d]) continue;
    TC_ASSERT(n < LEVELS);                       /* weights have four dimensions at most */
    b.run[n] = run, b.step[n++] = step;
    run = 1;
  }
  return b;
}

static struct update update_of(const struct tc_call *c, const struct tc_call *cast)
{
  struct update u;
  memset(&u, 0, sizeof u);
  u.n = c->out[0].elems;
  u.decay = c->f[0], u.lr = c->f[1];
  u.g = (char *)c->in[0].data, u.w = (char *)c->out[0].data;
  u.flags = is_bf16(&c->in[0], G_BF16) | is_bf16(&c->out[0], W_BF16);
  u.stream = (uint32_t)c->k[0];
  u.box = box_of(&c->out[0]);
  bool wide = tc_wide(0, &c->in[0], &c->out[0], NULL);
  char **state[] = { &u.m, &u.v };
  for (int k = 1; k < c->n_out; k++) {
    *state[k - 1] = (char *)c->out[k].data;
    u.flags |= is_bf16(&c->out[k], STATE_BF16);
    wide = wide && tc_wide(0, &c->out[k], NULL, NULL);
  }
  if (cast) {
    u.cast = (char *)cast->out[0].data;
    u.flags |= is_bf16(&cast->out[0], CAST_BF16);
    wide = wide && tc_wide(0, &cast->out[0], NULL, NULL);
  }
  if (wide) u.flags |= WIDE;
  return u;
}

static bool in_place(const struct tc_call *c)
{
  for (int k = 0; k < c->n_out; k++)
    if (c->in[2 + k].data != c->out[k].data) return false;
  return true;
}

static bool is_cast_of(const struct tc_call *cast, const struct tc_call *c)
{
  return cast->op == TC_OP_CAST && cast->in[0].data == c->out[0].data
         && cast->in[0].elems == c->out[0].elems && cast->out[0].elems == c->out[0].elems;
}

/* The kernel of an op; NULL: it is no update. drawn: some states are in bf16. */
typedef void step_kernel(struct updates t);
template <bool DRAWN> static step_kernel *kernel_of(int op)
{
  return op == TC_OP_ADAMW ? adamw_step<DRAWN> : op == TC_OP_SGD ? sgd_step : op == TC_OP_MOMENTUM ? one_state_step<false, DRAWN>
         : op == TC_OP_LION ? one_state_step<true, DRAWN> : NULL;
}
static step_kernel *step_of(int op, bool drawn) { return drawn ? kernel_of<true>(op) : kernel_of<false>(op); }

bool tc_cuda_is_update(int op) { return step_of(op, false) != NULL; }

/* Updates of one op and one scale, each followed by its weight's cast or not. */
bool tc_cuda_can_update(const struct tc_call *const *part, int n)
{
  const struct tc_call *first = part[0];
  if (!tc_cuda_is_update(first->op)) return false;
  for (int k = 0; k < n; k++) {
    const struct tc_call *c = part[k];
    const bool update = c->op == first->op && c->in[1].data == first->in[1].data && in_place(c);
    if (!update && !(k > 0 && part[k - 1]->op == first->op && is_cast_of(c, part[k - 1])))
      return false;
  }
  return true;
}

int tc_cuda_update(struct tc_device *d, const struct tc_call *const *part, int n)
{
  for (int k = 0; k < n;) {
    struct updates t;
    uint32_t blocks = 0, flags = 0;
    memset(&t, 0, sizeof t);
    t.scale = tc_f32_of(&part[0]->in[1]);
    t.now = tc_cuda_now(d, part[0]->rt);
    while (k < n && t.n < UPDATES) {
      const struct tc_call *c = part[k++];
      const struct tc_call *cast = k < n && part[k]->op == TC_OP_CAST ? part[k++] : NULL;
      const struct update u = update_of(c, cast);
      TC_ASSERT(in_place(c));
      if (u.n == 0) continue;
      t.first[t.n] = blocks;
      t.u[t.n++] = u;
      flags |= u.flags;
      blocks += tc_blocks(u.n, BLOCK_ELEMS).x;
    }
    if (t.n == 0) continue;
    TC_LAUNCH(step_of(part[0]->op, (flags & STATE_BF16) != 0), dim3(blocks), dim3(THREADS), 0, tc_stream(d), t);
  }
  return tc_cuda_launched(d, "update");
}

int tc_cuda_update_one(struct tc_device *d, const struct tc_call *c) { return tc_cuda_update(d, &c, 1); }

template <bool DRAWN> static void load_steps(struct tc_device *d)
{
  tc_load_kernels(d, adamw_step<DRAWN>, one_state_step<false, DRAWN>, one_state_step<true, DRAWN>);
}

void tc_cuda_load_optim(struct tc_device *d)
{
  tc_load_kernels(d, squares, add_up, clip, sgd_step);
  load_steps<false>(d);
  load_steps<true>(d);
}
