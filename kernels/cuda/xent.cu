/* xent.cu - cross-entropy as fused calls, each in one pass over x[N,V]:
 *   rowmax, [pick,] sumexp [, nll]      x is read once
 *   [nll_bwd,] sumexp_bwd, pick_bwd     x is read once, its gradient written once
 *   all of these                        x is read once, its gradient written once
 * x may be a block of the vocabulary, with padding, as in head.cu.
 *
 * Forward, a block has a row. A thread keeps its largest x and the sum of exp(x - that),
 * and rescales the sum when it finds a larger one; in the end all are rescaled to the row's. (Milakov
 * and Gimelshein, "Online normalizer calculation for softmax", 2018.) Backward, a block has 8
 * columns per thread, LOADS times. Both load LOADS times 16 bytes of bf16 (32 of fp32) before they
 * use the first, and have the type as a template argument: with a branch between the loads, each
 * would be waited for.
 *
 * Both at once, a block has a row, and keeps it in shared memory: it is taken where two such blocks fit on a
 * multiprocessor, so that one reads or writes while the other computes. The bits are those of forward and backward. */
#include "kernels/cuda/ptx.h"

enum { FORWARD_THREADS = 512, BACKWARD_THREADS = 256, LOADS = 4 };

/* exp(x), off by a relative |x| 2^-24 or so, which is negligible if x <= 0 is far from 0; 0 where it is subnormal. */
static __device__ __forceinline__ float quick_exp(float x) { return tc_exp2(x * TC_LOG2_E); }

struct forward {
  struct tc_arr x;
  float *m, *s, *p, *l;          /* p, l: may be NULL */
  const int32_t *target;         /* NULL: no p */
  int64_t N, V, first;           /* the first column's place in the vocabulary */
  int32_t live;                  /* columns that count */
  float z;                       /* nll's */
  bool wide;
};

/* The maximum and the sum with 8 Q more elements; -INFINITY: none. */
template <int Q> static __device__ __forceinline__ void take_in(float *max, float *sum,
                                                                const float v[Q][8])
{
  float high = *max, add[Q], all = 0;
#pragma unroll
  for (int q = 0; q < Q; q++)
#pragma unroll
    for (int k = 0; k < 8; k++) high = fmaxf(high, v[q][k]);
  const float base = high > -INFINITY ? high : 0.f;
#pragma unroll
  for (int q = 0; q < Q; q++) {
    add[q] = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) add[q] += quick_exp(v[q][k] - base);
    all += add[q];
  }
  *sum = *sum * quick_exp(*max - base) + all;
  *max = high;
}

template <bool BF16> static __global__ void __launch_bounds__(FORWARD_THREADS)
xent_forward(struct forward a)
{
  enum { SPAN = FORWARD_THREADS * 8 };
  const struct tc_arr x = { a.x.p, BF16 };
  const int64_t n = blockIdx.x, row = n * a.V;
  const int32_t target = a.target ? a.target[n] : -1;
  float max = -INFINITY, sum = 0, picked = 0;
  int64_t j = (int64_t)threadIdx.x * 8;
  for (; a.wide && j + (LOADS - 1) * SPAN + 8 <= a.live; j += LOADS * SPAN) {
    float v[LOADS][8];
#pragma unroll
    for (int q = 0; q < LOADS; q++) tc_get8(v[q], x, row + j + q * SPAN);
    take_in<LOADS>(&max, &sum, v);
  }
  for (; j < a.live; j += SPAN) {
    float v[1][8];
    tc_load(v[0], x, row + j, a.live - j, a.wide);
#pragma unroll
    for (int k = 0; k < 8; k++) v[0][k] = j + k < a.live ? v[0][k] : -INFINITY;
    take_in<1>(&max, &sum, v);
  }
  const int64_t at = target - a.first;           /* the load of target has completed meanwhile */
  if (threadIdx.x == 0 && a.target && at >= 0 && at < a.V) picked = tc_get(x, row + at);
  const float high = tc_block_max(max);
  if (sum != 0.f) sum *= quick_exp(max - high);
  const float all = (float)tc_block_sum((double)sum);
  if (threadIdx.x != 0) return;
  a.m[n] = high, a.s[n] = all;
  if (a.p) a.p[n] = picked;
  if (a.l) a.l[n] = target < 0 ? 0.f : tc_nll(high + logf(all), picked, a.z);
}

struct backward {
  struct tc_arr dx, x;
  const float *m, *ds, *dp;      /* ds, dp: NULL if they are made of dl and s */
  const float *dl, *s;
  const int32_t *target;
  int64_t N, V, first;
  int32_t live;
  float z;
  bool wide;
};

/* Columns j .. j+7: the softmax times ds, and dp at column `at`. */
static __device__ __forceinline__ void gradient(float v[8], int32_t j, int32_t live, int32_t at,
                                                float max, float ds, float dp)
{
#pragma unroll
  for (int k = 0; k < 8; k++) v[k] = ds * quick_exp(v[k] - max);
  if (j + 8 > live) {
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = j + k < live ? v[k] : 0.f;
  }
  if (at >= j && at < j + 8) {
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] += j + k == at ? dp : 0.f;
  }
}

template <bool BF16> static __global__ void __launch_bounds__(BACKWARD_THREADS)
xent_backward(struct backward a)
{
  enum { SPAN = BACKWARD_THREADS * 8 };
  const struct tc_arr x = { a.x.p, BF16 }, dx = { a.dx.p, BF16 };
  const int64_t n = blockIdx.x, row = n * a.V;
  const int32_t target = a.target[n], V = (int32_t)a.V;
  const int32_t j0 = ((int32_t)blockIdx.y * (LOADS * BACKWARD_THREADS) + (int32_t)threadIdx.x) * 8;
  const int64_t place = target - a.first;
  const int32_t at = place >= 0 && place < V ? (int32_t)place : -8;
  const float max = a.m[n];
  float ds, dp;
  if (a.ds) {
    ds = a.ds[n], dp = a.dp[n];
  } else {
    const float g = target < 0 ? 0.f : a.dl[n];
    ds = tc_nll_slope(g, a.s[n], max, a.z), dp = -g;
  }
  if (a.wide && j0 <= V - (LOADS - 1) * SPAN - 8) {
    float v[LOADS][8];
#pragma unroll
    for (int q = 0; q < LOADS; q++) tc_get8(v[q], x, row + j0 + q * SPAN);
#pragma unroll
    for (int q = 0; q < LOADS; q++) {
      gradient(v[q], j0 + q * SPAN, a.live, at, max, ds, dp);
      tc_put8(dx, row + j0 + q * SPAN, v[q]);
    }
    return;
  }
  for (int q = 0; q < LOADS && j0 < V - q * SPAN; q++) {
    const int32_t j = j0 + q * SPAN;
    float v[8];
    tc_load(v, x, row + j, V - j, a.wide);
    gradient(v, j, a.live, at, max, ds, dp);
    tc_store(dx, row + j, V - j, a.wide, v);
  }
}

/* ---- both at once --------------------------------------------------------------------------- */

/* All groups of this thread's copies but the last `left` have arrived, or more. */
static __device__ __forceinline__ void wait_for_all_but(int32_t left)
{
  if (left >= 3) tc_copies_wait<3>();
  else if (left == 2) tc_copies_wait<2>();
  else if (left == 1) tc_copies_wait<1>();
  else tc_copies_wait<0>();
}

/* Asks for a row, to `row` in shared memory: each thread for the columns that it works on, in groups of LOADS. Returns
 * the number of groups. */
template <bool BF16>
static __device__ __forceinline__ int32_t ask_for_row(char *row, const struct forward &a, int64_t n)
{
  enum { SPAN = FORWARD_THREADS * 8, BYTES = BF16 ? 2 : 4 };
  const char *from = a.x.p + n * a.V * BYTES;
  const int32_t V = (int32_t)a.V;
  int32_t groups = 0;
  for (int32_t j = (int32_t)threadIdx.x * 8; groups * (LOADS * SPAN) < V; groups++) {
#pragma unroll
    for (int q = 0; q < LOADS; q++, j += SPAN)
#pragma unroll
      for (int i = 0; i < 8 * BYTES; i += 16)
        if (j < V) tc_copy_async(row + j * BYTES + i, from + j * BYTES + i, true);
    tc_copies_commit();
  }
  return groups;
}

/* The columns of a row in the order of xent_forward, so that the sums are the same; the gradient as xent_backward's. */
template <bool BF16> static __global__ void __launch_bounds__(FORWARD_THREADS, 2)
xent_both(struct forward a, struct backward b)
{
  enum { SPAN = FORWARD_THREADS * 8 };
  TC_DYNAMIC_SHARED(char, row);
  const struct tc_arr x = { row, BF16 }, dx = { b.dx.p, BF16 };
  const int64_t n = blockIdx.x;
  const int32_t target = a.target[n], V = (int32_t)a.V;
  const float dl = b.dl[n];
  float max = -INFINITY, sum = 0;
  int32_t j = (int32_t)threadIdx.x * 8;
  int32_t left = ask_for_row<BF16>(row, a, n);
  for (; j + (LOADS - 1) * SPAN + 8 <= a.live; j += LOADS * SPAN) {
    float v[LOADS][8];
    wait_for_all_but(--left);
#pragma unroll
    for (int q = 0; q < LOADS; q++) tc_get8(v[q], x, j + q * SPAN);
    take_in<LOADS>(&max, &sum, v);
  }
  tc_copies_wait<0>();
  for (; j < a.live; j += SPAN) {
    float v[1][8];
    tc_get8(v[0], x, j);
#pragma unroll
    for (int k = 0; k < 8; k++) v[0][k] = j + k < a.live ? v[0][k] : -INFINITY;
    take_in<1>(&max, &sum, v);
  }
  const float high = tc_block_max(max);          /* after it all of the row is there, for all threads */
  if (sum != 0.f) sum *= quick_exp(max - high);
  const float all = (float)tc_block_sum((double)sum);
  const int64_t place = target - a.first;
  const int32_t at = place >= 0 && place < V ? (int32_t)place : -8;
  if (threadIdx.x == 0) {
    const float picked = at >= 0 ? tc_get(x, at) : 0.f;
    a.m[n] = high, a.s[n] = all, a.p[n] = picked;
    a.l[n] = target < 0 ? 0.f : tc_nll(high + logf(all), picked, a.z);
  }
  const float g = target < 0 ? 0.f : dl, ds = tc_nll_slope(g, all, high, b.z);
  for (int32_t c = (int32_t)threadIdx.x * 8; c < V; c += SPAN) {
    float v[8];
    tc_get8(v, x, c);
    gradient(v, c, a.live, at, high, ds, -g);
    tc_put8(dx, n * a.V + c, v);
  }
}

/* ---- which calls ---------------------------------------------------------------------------- */

/* The parts by their ops; false if one is of none of them, or is there twice, or adds. */
enum { MAX, PICK, SUMEXP, NLL, NLL_BWD, SUMEXP_BWD, PICK_BWD, ROLES };

static bool cast_parts(const struct tc_call *const *part, int n, const struct tc_call *role[ROLES])
{
  static const int op[ROLES] = { TC_OP_ROWMAX, TC_OP_PICK, TC_OP_SUMEXP, TC_OP_NLL,
                                 TC_OP_NLL_BWD, TC_OP_SUMEXP_BWD, TC_OP_PICK_BWD };
  for (int r = 0; r < ROLES; r++) role[r] = NULL;
  for (int i = 0; i < n; i++) {
    int r = 0;
    while (r < ROLES && op[r] != part[i]->op) r++;
    if (r == ROLES || role[r] || part[i]->acc) return false;
    role[r] = part[i];
  }
  return true;
}

/* Columns that 32 bits can count, past the last load too, and no more blocks than a grid has. */
static bool in_reach(const struct tc_view *x) { return x->dim[1] < INT32_MAX / 8; }

static bool forward_of(const struct tc_call *const *part, int n, struct forward *f)
{
  const struct tc_call *c[ROLES];
  if (!cast_parts(part, n, c) || !c[MAX] || !c[SUMEXP] || (c[NLL] && !c[PICK])
      || n != 2 + (c[PICK] != NULL) + (c[NLL] != NULL))
    return false;
  const struct tc_view *x = &c[MAX]->in[0];
  if (!in_reach(x) || !tc_same(x, &c[SUMEXP]->in[0]) || c[MAX]->k[0] != c[SUMEXP]->k[0]
      || !tc_same(&c[MAX]->out[0], &c[SUMEXP]->in[1]))
    return false;
  if (c[PICK] && (!tc_same(x, &c[PICK]->in[0]) || c[PICK]->out[0].dtype != TC_F32)) return false;
  if (c[NLL] && (!tc_same(&c[NLL]->in[0], &c[MAX]->out[0])
                 || !tc_same(&c[NLL]->in[1], &c[SUMEXP]->out[0])
                 || !tc_same(&c[NLL]->in[2], &c[PICK]->out[0])
                 || !tc_same(&c[NLL]->in[3], &c[PICK]->in[1])))
    return false;
  memset(f, 0, sizeof *f);
  f->x = tc_arr_of(x), f->N = x->dim[0], f->V = x->dim[1], f->first = x->off[1];
  f->live = (int32_t)tc_live_columns(c[MAX], x), f->wide = tc_wide(f->V, x, NULL, NULL);
  f->m = tc_f32_of(&c[MAX]->out[0]), f->s = tc_f32_of(&c[SUMEXP]->out[0]);
  if (c[PICK]) f->p = tc_f32_of(&c[PICK]->out[0]), f->target = tc_i32_of(&c[PICK]->in[1]);
  if (c[NLL]) f->l = tc_f32_of(&c[NLL]->out[0]), f->z = c[NLL]->f[0];
  return true;
}

static bool backward_of(const struct tc_call *const *part, int n, struct backward *b)
{
  const struct tc_call *c[ROLES];
  if (!cast_parts(part, n, c) || !c[SUMEXP_BWD] || !c[PICK_BWD] || n != 2 + (c[NLL_BWD] != NULL))
    return false;
  const struct tc_view *x = &c[SUMEXP_BWD]->in[0], *dx = &c[PICK_BWD]->out[0];
  if (!in_reach(x) || !tc_same(dx, &c[PICK_BWD]->in[0]) || !tc_same(dx, &c[SUMEXP_BWD]->out[0])
      || x->dtype != dx->dtype)
    return false;
  if (c[NLL_BWD] && (!tc_same(&c[NLL_BWD]->out[0], &c[SUMEXP_BWD]->in[2])
                     || !tc_same(&c[NLL_BWD]->out[1], &c[PICK_BWD]->in[2])
                     || !tc_same(&c[NLL_BWD]->in[2], &c[PICK_BWD]->in[1])
                     || (c[NLL_BWD]->f[0] > 0 && !tc_same(&c[NLL_BWD]->in[3], &c[SUMEXP_BWD]->in[1]))))
    return false;
  memset(b, 0, sizeof *b);
  b->dx = tc_arr_of(dx), b->x = tc_arr_of(x);
  b->N = x->dim[0], b->V = x->dim[1], b->first = dx->off[1];
  b->live = (int32_t)tc_live_columns(c[SUMEXP_BWD], x), b->wide = tc_wide(b->V, x, dx, NULL);
  b->m = tc_f32_of(&c[SUMEXP_BWD]->in[1]), b->target = tc_i32_of(&c[PICK_BWD]->in[1]);
  if (c[NLL_BWD]) b->dl = tc_f32_of(&c[NLL_BWD]->in[0]), b->s = tc_f32_of(&c[NLL_BWD]->in[1]), b->z = c[NLL_BWD]->f[0];
  else b->ds = tc_f32_of(&c[SUMEXP_BWD]->in[2]), b->dp = tc_f32_of(&c[PICK_BWD]->in[2]);
  return true;
}

enum { TO_NLL = 4, BOTH = 7 };                   /* parts of the loss; with its gradient */

static int64_t row_bytes(const struct forward *f) { return f->V * (f->x.bf16 ? 2 : 4); }

/* Two blocks, each with the sums over a block. */
static bool is_kept(struct tc_device *d, const struct forward *f)
{
  return tc_two_blocks_fit(d, row_bytes(f) + 512);
}

static bool both_of(struct tc_device *d, const struct tc_call *const *part, int n, struct forward *f,
                    struct backward *b)
{
  if (n != BOTH || !forward_of(part, TO_NLL, f) || !backward_of(part + TO_NLL, BOTH - TO_NLL, b) || !f->l || !b->dl)
    return false;
  return f->x.p == b->x.p && f->x.bf16 == b->x.bf16
         && f->N == b->N && f->V == b->V && f->first == b->first && f->live == b->live && f->m == b->m && f->s == b->s
         && f->target == b->target && f->z == b->z && f->wide && b->wide && is_kept(d, f);
}

bool tc_cuda_can_xent(struct tc_device *d, const struct tc_call *const *part, int n)
{
  struct forward f;
  struct backward b;
  return forward_of(part, n, &f) || backward_of(part, n, &b) || both_of(d, part, n, &f, &b);
}

static void launch_both(struct tc_device *d, const struct forward *f, const struct backward *b)
{
  auto kernel = xent_both<false>;
  if (f->x.bf16) kernel = xent_both<true>;
  tc_allow_shared(d, kernel, (size_t)row_bytes(f));
  TC_LAUNCH(kernel, tc_blocks(f->N, 1), dim3(FORWARD_THREADS), (size_t)row_bytes(f), tc_stream(d), *f, *b);
}

int tc_cuda_xent(struct tc_device *d, const struct tc_call *const *part, int n)
{
  struct forward f;
  struct backward b;
  if (forward_of(part, n, &f)) {
    if (f.N == 0) return 0;
    auto kernel = xent_forward<false>;
    if (f.x.bf16) kernel = xent_forward<true>;
    TC_LAUNCH(kernel, tc_blocks(f.N, 1), dim3(FORWARD_THREADS), 0, tc_stream(d), f);
  } else if (backward_of(part, n, &b)) {
    if (b.N * b.V == 0) return 0;
    const int64_t each = (int64_t)BACKWARD_THREADS * 8 * LOADS;
    const dim3 grid((unsigned)b.N, (unsigned)tc_ceil_div(b.V, each));
    auto kernel = xent_backward<false>;
    if (b.x.bf16) kernel = xent_backward<true>;
    TC_LAUNCH(kernel, grid, dim3(BACKWARD_THREADS), 0, tc_stream(d), b);
  } else if (both_of(d, part, n, &f, &b)) {
    if (f.N > 0) launch_both(d, &f, &b);
  }
  return tc_cuda_launched(d, "cross-entropy");
}

void tc_cuda_load_xent(struct tc_device *d)
{
  tc_load_kernels(d, xent_forward<false>, xent_forward<true>, xent_backward<false>, xent_backward<true>, xent_both<false>,
                  xent_both<true>);
}
