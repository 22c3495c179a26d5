/* norm.cu - layer norm and RMS norm of rows x[N,C]: the same kernels (CENTRED: layer norm, which takes
 * the mean from a row and adds a shift to it).
 *
 * Forward: a warp, of long rows a block, has a row, in registers where it fits. Backward: a block has rows
 * r, r + blocks, ...; a thread has columns, the same in all of them, and so keeps their part of
 * dg and db in registers.
 *
 * BF16: all tensors are bf16 and wide. Such a kernel asks for all that it needs of its rows at once.
 * SUMS: as a fused call with bias_bwd, backward sums up the columns of dx as well, which it has in registers. */
#include "kernels/cuda/dev.h"

/* ---- forward -------------------------------------------------------------------------------- */

enum { NORM_ROWS = 4 };                          /* warps, and so rows, of a block */

struct norm {
  struct tc_arr y, x, g, b;
  float *mean, *rstd;
  int64_t N, C;
  float eps, more;               /* more: added to an RMS norm's gain */
  bool wide;
};

/* The sum over a row's lanes: a warp's, or all of a block, in the order of its warps; `part`: of this sum alone. */
template <int WARPS> static __device__ __forceinline__ float row_sum(float x, float part[NORM_ROWS])
{
  x = tc_warp_sum(x);
  if (WARPS == 1) return x;
  if (threadIdx.x == 0) part[threadIdx.y] = x;
  __syncthreads();
  x = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) x += part[w];
  return x;
}

/* A row, 8 columns at a time: NV groups a lane in registers, or (NV = 0) read again for each pass. WARPS of a row: 1, or
 * all of a block. */
template <int NV, bool CENTRED, bool BF16, int WARPS> static __global__ void __launch_bounds__(32 * NORM_ROWS)
norm(struct norm a)
{
  enum { KEPT = NV ? NV : 1, AT_ONCE = BF16 && NV <= 4 };   /* gains and shifts too, where registers allow it */
  enum { LANES = 32 * WARPS, STEP = 8 * LANES };
  __shared__ float part[2][NORM_ROWS];
  const int64_t n = (int64_t)blockIdx.x * (NORM_ROWS / WARPS) + threadIdx.y / WARPS, C = a.C;
  if (n >= a.N) return;                          /* of a row of several warps all of them do, or none */
  const int lane = (int)(threadIdx.x + threadIdx.y % WARPS * 32);
  const int groups = NV ? NV : (int)((C + STEP - 1) / STEP);
  struct tc_eight<BF16> x[KEPT], g[KEPT], b[KEPT];
  float v[KEPT][8], sum = 0, sq = 0, gain[8], shift[8];
#pragma unroll
  for (int q = 0; q < NV; q++) tc_ask(x[q], a.x, n * C + q * STEP + lane * 8, C - (q * STEP + lane * 8), a.wide);
#pragma unroll
  for (int q = 0; q < NV && AT_ONCE; q++) {
    const int64_t j = q * STEP + lane * 8;
    tc_ask(g[q], a.g, j, C - j, true);
    if (CENTRED) tc_ask(b[q], a.b, j, C - j, true);
  }
#pragma unroll
  for (int q = 0; q < groups; q++) {
    const int64_t j = (int64_t)q * STEP + lane * 8;
    float *at = v[NV ? q : 0];
    if (NV) tc_take(at, x[q]);
    else if (CENTRED) tc_load(at, a.x, n * C + j, C - j, a.wide);
#pragma unroll
    for (int k = 0; k < 8 && CENTRED; k++) sum += at[k];
  }
  const float mean = CENTRED ? row_sum<WARPS>(sum, part[0]) / (float)C : 0.f;
#pragma unroll
  for (int q = 0; q < groups; q++) {
    const int64_t j = (int64_t)q * STEP + lane * 8;
    float *at = v[NV ? q : 0];
    if (NV == 0) tc_load(at, a.x, n * C + j, C - j, a.wide);
#pragma unroll
    for (int k = 0; k < 8; k++) sq += j + k < C ? (at[k] - mean) * (at[k] - mean) : 0.f;
  }
  const float rstd = 1.f / sqrtf(row_sum<WARPS>(sq, part[1]) / (float)C + a.eps);
#pragma unroll
  for (int q = 0; q < groups; q++) {
    const int64_t j = (int64_t)q * STEP + lane * 8;
    float *at = v[NV ? q : 0];
    if (NV == 0) tc_load(at, a.x, n * C + j, C - j, a.wide);
    if (!AT_ONCE) tc_ask(g[NV ? q : 0], a.g, j, C - j, a.wide);
    if (CENTRED && !AT_ONCE) tc_ask(b[NV ? q : 0], a.b, j, C - j, a.wide);
    tc_take(gain, g[NV ? q : 0]);
    if (CENTRED) tc_take(shift, b[NV ? q : 0]);
#pragma unroll
    for (int k = 0; k < 8; k++)
      at[k] = CENTRED ? (at[k] - mean) * rstd * gain[k] + shift[k] : at[k] * rstd * (gain[k] + a.more);
    if (!BF16) tc_store(a.y, n * C + j, C - j, a.wide, at);
    else if (j < C) tc_put8({ a.y.p, true }, n * C + j, at);
  }
  if (lane != 0) return;
  if (CENTRED) a.mean[n] = mean;
  a.rstd[n] = rstd;
}

/* Rows of up to 1024 are a warp's, longer ones a block's. */
template <bool CENTRED, bool BF16> static void norm_launch(struct tc_device *d, const struct norm *a)
{
  enum { ALL = NORM_ROWS };
  const int64_t nv = tc_ceil_div(a->C, 256);
  const bool warp = nv <= 4;
  auto kernel = nv == 1 ? norm<1, CENTRED, BF16, 1> : nv == 2 ? norm<2, CENTRED, BF16, 1> : nv == 3 ? norm<3, CENTRED, BF16, 1>
              : nv == 4 ? norm<4, CENTRED, BF16, 1> : nv <= 2 * ALL ? norm<2, CENTRED, BF16, ALL>
              : nv <= 4 * ALL ? norm<4, CENTRED, BF16, ALL> : nv <= 8 * ALL ? norm<8, CENTRED, BF16, ALL>
              : norm<0, CENTRED, false, ALL>;
  TC_LAUNCH(kernel, tc_blocks(a->N, warp ? NORM_ROWS : 1), dim3(32, NORM_ROWS), 0, tc_stream(d), *a);
}

template <bool CENTRED> static int norm_rows(struct tc_device *d, const struct tc_call *c, const char *what)
{
  const struct tc_view *x = &c->in[0], *y = &c->out[0];
  const int64_t C = c->in[1].elems, N = c->out[1].elems;
  TC_ASSERT(x->elems == N * C && y->elems == N * C);
  if (N * C == 0) return 0;
  struct norm a;
  memset(&a, 0, sizeof a);
  a.y = tc_arr_of(y), a.x = tc_arr_of(x), a.g = tc_arr_of(&c->in[1]);
  if (CENTRED) a.b = tc_arr_of(&c->in[2]), a.mean = tc_f32_of(&c->out[1]);
  a.rstd = tc_f32_of(&c->out[CENTRED ? 2 : 1]);
  a.N = N, a.C = C, a.eps = c->f[0], a.more = c->f[1];
  a.wide = tc_wide(C, x, y, &c->in[1]) && (!CENTRED || tc_wide(C, &c->in[2], NULL, NULL));
  if (a.wide && a.y.bf16 && a.x.bf16 && a.g.bf16 && (!CENTRED || a.b.bf16)) norm_launch<CENTRED, true>(d, &a);
  else norm_launch<CENTRED, false>(d, &a);
  return tc_cuda_launched(d, what);
}

int tc_cuda_layernorm(struct tc_device *d, const struct tc_call *c)
{
  return norm_rows<true>(d, c, "layernorm");
}
int tc_cuda_rmsnorm(struct tc_device *d, const struct tc_call *c)
{
  return norm_rows<false>(d, c, "rmsnorm");
}

/* ---- backward: dx = rstd (e - mean(e) - xhat mean(e xhat)), e = dy gain; RMS norm without mean(e) ---- */

struct norm_grad {
  struct tc_arr dx, dy, x, g;
  const float *mean, *rstd;
  float *part;                   /* [blocks][outs][C]: dg; of layer norm db; the columns of dx, if they are summed up */
  int64_t N, C;
  float more;                    /* added to an RMS norm's gain */
  bool wide, acc;
};

enum { BWD_THREADS = 256, BWD_MOST = 512, BWD_WARPS = BWD_MOST / 32 };

/* The sums over a row that dx needs, from 8 columns: those of e and of e xhat. */
template <bool CENTRED> static __device__ __forceinline__ void row_sums(float s[2], const struct norm_grad &a, int64_t n,
                                                int64_t j, float mean, float rstd)
{
  const int64_t left = a.C - j;
  float e[8], x[8], gain[8];
  tc_load(e, a.dy, n * a.C + j, left, a.wide);
  tc_load(x, a.x, n * a.C + j, left, a.wide);
  tc_load(gain, a.g, j, left, a.wide);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    e[k] *= CENTRED ? gain[k] : gain[k] + a.more;
    s[0] += e[k];
    s[1] += k < left ? e[k] * (x[k] - mean) * rstd : 0.f;
  }
}

/* What a thread needs of ROWS rows from n0 on, if BF16 as loaded; zeros past the last row and column. */
template <int NV, int ROWS, bool CENTRED, bool BF16> struct rows {
  enum { R = BF16 ? ROWS : 1, V = BF16 ? NV : 1 };
  struct tc_eight<BF16> dy[R][V], x[R][V], old[R][V];     /* old: dx to add to */
  float mean[ROWS], rstd[ROWS];

  __device__ __forceinline__ void ask(const struct norm_grad &a, int64_t n0, int64_t first)
  {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int64_t n = n0 + r, left = n < a.N ? a.C : 0;
#pragma unroll
      for (int q = 0; q < NV && BF16; q++) {
        const int64_t j = first + (q * (int)blockDim.x + (int)threadIdx.x) * 8;
        tc_ask(dy[r][q], a.dy, n * a.C + j, left - j, true);
        tc_ask(x[r][q], a.x, n * a.C + j, left - j, true);
        tc_ask(old[r][q], a.dx, n * a.C + j, a.acc ? left - j : 0, true);
      }
      mean[r] = left && CENTRED ? a.mean[n] : 0.f, rstd[r] = left ? a.rstd[n] : 0.f;
    }
  }
};

/* A thread's e and xhat of those rows; added to its dg and db; s: each row's sums of e and of e xhat over the
 * warp's columns, and over those of other blocks. */
template <int NV, int ROWS, bool CENTRED, bool SHARED_ROW, bool BF16>
static __device__ __forceinline__ void use_rows(float e[ROWS][NV][8], float xhat[ROWS][NV][8], float s[ROWS][2],
                                                float dg[NV][8], float db[NV][8], const struct norm_grad &a,
                                                const struct rows<NV, ROWS, CENTRED, BF16> &in,
                                                const struct tc_eight<BF16> *g, int64_t n0, int64_t first)
{
  const int t = (int)threadIdx.x, T = (int)blockDim.x;
  const int64_t C = a.C, width = (int64_t)NV * T * 8;
  float gain[8];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const int64_t n = n0 + r;
    const bool there = n < a.N;
    s[r][0] = s[r][1] = 0;
#pragma unroll
    for (int q = 0; q < NV; q++) {
      const int64_t j = first + (q * T + t) * 8, left = there ? C - j : 0;
      if constexpr (BF16) {
        tc_take(e[r][q], in.dy[r][q]);
        tc_take(xhat[r][q], in.x[r][q]);
        tc_take(gain, g[q]);
      } else {
        tc_load(e[r][q], a.dy, n * C + j, left, a.wide);
        tc_load(xhat[r][q], a.x, n * C + j, left, a.wide);
        tc_load(gain, a.g, j, left, a.wide);
      }
#pragma unroll
      for (int k = 0; k < 8; k++) {
        xhat[r][q][k] = k < left ? (xhat[r][q][k] - in.mean[r]) * in.rstd[r] : 0.f;
        dg[q][k] += e[r][q][k] * xhat[r][q][k];
        if (CENTRED) db[q][k] += e[r][q][k];
        e[r][q][k] *= CENTRED ? gain[k] : gain[k] + a.more;
        s[r][0] += e[r][q][k];
        s[r][1] += e[r][q][k] * xhat[r][q][k];
      }
    }
    for (int64_t j = t * 8; SHARED_ROW && there && j < C; j += T * 8)
      if (j < first || j >= first + width) row_sums<CENTRED>(s[r], a, n, j, in.mean[r], in.rstd[r]);
    if (CENTRED) s[r][0] = tc_warp_sum(s[r][0]);
    s[r][1] = tc_warp_sum(s[r][1]);
  }
}

/* s: from sums over a warp to means over the row, through `sums` in shared memory. */
template <int ROWS, bool CENTRED>
static __device__ __forceinline__ void row_means(float s[ROWS][2], float *sums, int64_t C)
{
  const int t = (int)threadIdx.x, warps = (int)blockDim.x / 32;
  if (t % 32 == 0)
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      sums[(t / 32 * ROWS + r) * 2] = s[r][0];
      sums[(t / 32 * ROWS + r) * 2 + 1] = s[r][1];
    }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    float s1 = 0, s2 = 0;
    for (int w = 0; w < warps; w++) {
      if (CENTRED) s1 += sums[(w * ROWS + r) * 2];
      s2 += sums[(w * ROWS + r) * 2 + 1];
    }
    s[r][0] = s1 / (float)C, s[r][1] = s2 / (float)C;
  }
}

/* NV groups of 8 columns per thread; ROWS rows at a time, whose sums are made together. Rows that are
 * wider than a block has registers for are several blocks' (grid.y): each has its columns, and
 * reads the others for the sums alone. So dx lies over neither dy nor x. */
template <int NV, int ROWS, int THREADS, bool CENTRED, bool BF16, bool SUMS>
static __global__ void __launch_bounds__(THREADS)
norm_bwd(struct norm_grad a)
{
  TC_DYNAMIC_SHARED(float, sums);                /* [2][BWD_WARPS][ROWS][2], in turns */
  enum { SHARED_ROW = THREADS == BWD_MOST, OUTS = 1 + CENTRED + SUMS };
  enum { AHEAD = NV < 4 || !CENTRED || !SUMS };  /* the next rows are asked for before these are computed: registers allow it */
  const int t = (int)threadIdx.x, T = (int)blockDim.x;
  const int64_t C = a.C, first = SHARED_ROW ? blockIdx.y * (int64_t)NV * T * 8 : 0;
  float dg[NV][8], db[NV][8], e[ROWS][NV][8], xhat[ROWS][NV][8], s[ROWS][2], before[8];
  float column[SUMS ? NV : 1][8];                /* of dx */
  struct rows<NV, ROWS, CENTRED, BF16> in, next;
  struct tc_eight<BF16> g[BF16 ? NV : 1];
  int turn = 0;
#pragma unroll
  for (int q = 0; q < NV; q++) {
    const int64_t j = first + (q * T + t) * 8;
    if (BF16) tc_ask(g[BF16 ? q : 0], a.g, j, C - j, true);
#pragma unroll
    for (int k = 0; k < 8; k++) dg[q][k] = db[q][k] = column[SUMS ? q : 0][k] = 0;
  }
  if (AHEAD) next.ask(a, (int64_t)blockIdx.x * ROWS, first);
  for (int64_t n0 = (int64_t)blockIdx.x * ROWS; n0 < a.N; n0 += (int64_t)gridDim.x * ROWS) {
    if (AHEAD) in = next;
    else in.ask(a, n0, first);
    if (AHEAD) next.ask(a, n0 + (int64_t)gridDim.x * ROWS, first);
    use_rows<NV, ROWS, CENTRED, SHARED_ROW, BF16>(e, xhat, s, dg, db, a, in, g, n0, first);
    row_means<ROWS, CENTRED>(s, sums + turn * (BWD_WARPS * ROWS * 2), C);
    turn ^= 1;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int64_t n = n0 + r;
      if (n >= a.N) continue;
#pragma unroll
      for (int q = 0; q < NV; q++) {
        const int64_t j = first + (q * T + t) * 8;
#pragma unroll
        for (int k = 0; k < 8; k++)
          e[r][q][k] = in.rstd[r] * (e[r][q][k] - s[r][0] - xhat[r][q][k] * s[r][1]);
        if constexpr (!BF16) tc_add_to(a.dx, n * C + j, C - j, a.wide, a.acc, e[r][q]);
        else if (j < C) {
          tc_take(before, in.old[r][q]);
#pragma unroll
          for (int k = 0; k < 8; k++) e[r][q][k] = a.acc ? e[r][q][k] + before[k] : e[r][q][k];
          tc_put8({ a.dx.p, true }, n * C + j, e[r][q]);
        }
#pragma unroll
        for (int k = 0; k < 8 && SUMS; k++) column[SUMS ? q : 0][k] += e[r][q][k];
      }
    }
  }
  const struct tc_arr part = { (char *)(a.part + (int64_t)blockIdx.x * OUTS * C), false };
#pragma unroll
  for (int q = 0; q < NV; q++) {
    const int64_t j = first + (q * T + t) * 8;
    tc_store(part, j, C - j, C % 8 == 0, dg[q]);
    if (CENTRED) tc_store(part, C + j, C - j, C % 8 == 0, db[q]);
    if (SUMS) tc_store(part, (OUTS - 1) * C + j, C - j, C % 8 == 0, column[SUMS ? q : 0]);
  }
}

static int64_t norm_parts(int64_t rows) { return TC_MAX(1, TC_MIN(512, rows / 4)); }

/* out: dx, dg and, of layer norm, db. */
int64_t tc_cuda_norm_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  (void)d;
  return norm_parts(c->in[3].elems) * (c->n_out - 1) * c->in[2].elems * (int64_t)sizeof(float);
}

/* grid: blocks of rows, blocks of a row, of which there is one with SUMS. */
template <bool CENTRED, bool BF16, bool SUMS>
static void norm_bwd_launch(struct tc_device *d, const struct norm_grad *a, int threads, dim3 grid)
{
  const int64_t nv = tc_ceil_div(tc_ceil_div(a->C, 8), threads);
  auto kernel = threads > BWD_THREADS ? norm_bwd<2, 1, BWD_MOST, CENTRED, false, false>
              : nv == 1 ? norm_bwd<1, 2, BWD_THREADS, CENTRED, BF16, SUMS>
              : nv == 2 ? norm_bwd<2, 2, BWD_THREADS, CENTRED, BF16, SUMS>
              : norm_bwd<4, 1, BWD_THREADS, CENTRED, BF16, SUMS>;
  TC_LAUNCH(kernel, grid, dim3((unsigned)threads), 2 * BWD_WARPS * 2 * 2 * sizeof(float), tc_stream(d), *a);
}

/* sums: bias_bwd's call, of dx; NULL: none. */
template <bool CENTRED, bool SUMS>
static int norm_rows_bwd(struct tc_device *d, const struct tc_call *c, const struct tc_call *sums, const char *what)
{
  const struct tc_view *x = &c->in[1], *dx = &c->out[0];
  const int64_t C = c->in[2].elems, N = c->in[3].elems, parts = norm_parts(N), outs = 1 + CENTRED + SUMS;
  TC_ASSERT(x->elems == N * C && c->in[0].elems == N * C);
  if (N * C == 0) return 0;
  const int64_t groups = tc_ceil_div(C, 8);
  const int most = groups > 4 * BWD_THREADS ? BWD_MOST : BWD_THREADS;
  const int threads = (int)TC_MIN((int64_t)most, tc_round_up(groups, 32));
  const int64_t blocks = most == BWD_MOST ? tc_ceil_div(groups, 2 * BWD_MOST) : 1;   /* of a row */
  struct norm_grad a;
  a.dx = tc_arr_of(dx), a.dy = tc_arr_of(&c->in[0]), a.x = tc_arr_of(x), a.g = tc_arr_of(&c->in[2]);
  a.mean = CENTRED ? tc_f32_of(&c->in[3]) : NULL, a.rstd = tc_f32_of(&c->in[CENTRED ? 4 : 3]);
  a.part = (float *)c->scratch;
  a.N = N, a.C = C, a.more = c->f[1], a.acc = (c->acc & 1) != 0;
  a.wide = tc_wide(C, dx, &c->in[0], x) && tc_wide(C, &c->in[2], NULL, NULL);
  if (a.wide && a.dx.bf16 && a.dy.bf16 && a.x.bf16 && a.g.bf16)
    norm_bwd_launch<CENTRED, true, SUMS>(d, &a, threads, dim3((unsigned)parts, (unsigned)blocks));
  else norm_bwd_launch<CENTRED, false, SUMS>(d, &a, threads, dim3((unsigned)parts, (unsigned)blocks));
  for (int k = 0; k < outs - SUMS; k++)
    tc_cuda_add_parts(d, &c->out[1 + k], (c->acc >> (1 + k) & 1) != 0, a.part + k * C, parts, C, outs * C);
  if (SUMS) tc_cuda_add_parts(d, &sums->out[0], (sums->acc & 1) != 0, a.part + (outs - 1) * C, parts, C, outs * C);
  return tc_cuda_launched(d, what);
}

int tc_cuda_layernorm_bwd(struct tc_device *d, const struct tc_call *c)
{
  return norm_rows_bwd<true, false>(d, c, NULL, "layernorm_bwd");
}
int tc_cuda_rmsnorm_bwd(struct tc_device *d, const struct tc_call *c)
{
  return norm_rows_bwd<false, false>(d, c, NULL, "rmsnorm_bwd");
}

/* ---- fused: with the sums of dx's columns, the gradient of a bias ---------------------------- */

/* A row is one block's. */
bool tc_cuda_can_norm_sums(const struct tc_call *const *part, int n)
{
  const struct tc_call *c = part[0], *sums = part[n - 1];
  return n == 2 && (c->op == TC_OP_LAYERNORM_BWD || c->op == TC_OP_RMSNORM_BWD) && sums->op == TC_OP_BIAS_BWD
         && tc_same(&sums->in[0], &c->out[0]) && sums->out[0].elems == c->in[2].elems
         && c->in[2].elems <= 4 * BWD_THREADS * 8;
}

int64_t tc_cuda_norm_sums_scratch(struct tc_device *d, const struct tc_call *const *part)
{
  const int64_t rows = part[0]->in[3].elems, columns = part[0]->in[2].elems;
  return tc_cuda_norm_bwd_scratch(d, part[0]) + norm_parts(rows) * columns * (int64_t)sizeof(float);
}

int tc_cuda_norm_sums(struct tc_device *d, const struct tc_call *const *part)
{
  if (part[0]->op == TC_OP_LAYERNORM_BWD) return norm_rows_bwd<true, true>(d, part[0], part[1], "layernorm_bwd+bias_bwd");
  return norm_rows_bwd<false, true>(d, part[0], part[1], "rmsnorm_bwd+bias_bwd");
}

template <bool CENTRED, bool BF16> static void load_norms(struct tc_device *d)
{
  enum { ALL = NORM_ROWS };
  tc_load_kernels(d, norm<1, CENTRED, BF16, 1>, norm<2, CENTRED, BF16, 1>, norm<3, CENTRED, BF16, 1>, norm<4, CENTRED, BF16, 1>,
                  norm<2, CENTRED, BF16, ALL>, norm<4, CENTRED, BF16, ALL>, norm<8, CENTRED, BF16, ALL>,
                  norm<0, CENTRED, false, ALL>);
  tc_load_kernels(d, norm_bwd<1, 2, BWD_THREADS, CENTRED, BF16, false>, norm_bwd<2, 2, BWD_THREADS, CENTRED, BF16, false>,
                  norm_bwd<4, 1, BWD_THREADS, CENTRED, BF16, false>, norm_bwd<2, 1, BWD_MOST, CENTRED, false, false>);
  tc_load_kernels(d, norm_bwd<1, 2, BWD_THREADS, CENTRED, BF16, true>, norm_bwd<2, 2, BWD_THREADS, CENTRED, BF16, true>,
                  norm_bwd<4, 1, BWD_THREADS, CENTRED, BF16, true>);
}

void tc_cuda_load_norm(struct tc_device *d)
{
  load_norms<true, true>(d);
  load_norms<true, false>(d);
  load_norms<false, true>(d);
  load_norms<false, false>(d);
}
