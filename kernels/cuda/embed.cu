/* embed.cu - token and position embeddings, and their gradients without atomics on floats.
 *
 * The gradient of a row of the table is the sum of dy over the tokens that refer to it. The tokens
 * are sorted by row, equal ones in their order: (1) in chunks of 1024, how many equal ones are
 * before each; (2) one block adds, chunk by chunk, the counts of earlier chunks; (3) it computes
 * where each row's tokens begin; (4) every token is written to its position. Then (5) each piece of PIECE
 * sorted tokens is summed; rows that begin and end inside it are written, the two that may
 * extend past its ends go to scratch, and (6) are added in order. */
#include "kernels/cuda/dev.h"

enum { THREADS = 128, CHUNK = 1024, PIECE = 32 };

/* A thread has 8 columns of a row. */
static __global__ void __launch_bounds__(THREADS)
embed(struct tc_arr y, const int32_t *token, struct tc_arr w, int64_t first, int64_t V, int64_t C,
      bool wide)
{
  const int64_t n = blockIdx.x, v = token[n] - first;
  float x[8];
  for (int64_t j = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * 8; j < C;
       j += (int64_t)gridDim.y * THREADS * 8) {
    tc_load(x, w, v * C + j, v >= 0 && v < V ? C - j : 0, wide);
    tc_store(y, n * C + j, C - j, wide, x);
  }
}

static dim3 row_grid(int64_t rows, int64_t C)
{
  return dim3((unsigned)rows, (unsigned)TC_MAX(1, TC_MIN(tc_ceil_div(C, THREADS * 8), 65535)));
}

int tc_cuda_embed(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *w = &c->in[1], *y = &c->out[0];
  const int64_t V = w->dim[0], C = w->dim[1], N = c->in[0].elems;
  if (N * C == 0) return 0;
  TC_LAUNCH(embed, row_grid(N, C), dim3(THREADS), 0, tc_stream(d), tc_arr_of(y),
            tc_i32_of(&c->in[0]), tc_arr_of(w), w->off[0], V, C, tc_wide(C, w, y, NULL));
  return tc_cuda_launched(d, "embed");
}

/* ---- the gradient: sorting ---------------------------------------------------------------- */

struct sorted {
  const int32_t *token;
  int32_t *count, *start;        /* [V], [V+1]: of each row; start[V]: all that are in the block */
  int32_t *rank;                 /* [N]: equal ones before; the top bit: the last of its chunk */
  int32_t *order, *row;          /* [N]: sorted: which token, which row */
  float *part;                   /* [pieces][2][C] */
  int64_t N, V, C, first;
};

static __device__ __forceinline__ int64_t row_of(const struct sorted &s, int64_t n)
{
  const int64_t v = n < s.N ? s.token[n] - s.first : -1;
  return v >= 0 && v < s.V ? v : -1;
}

static __global__ void __launch_bounds__(CHUNK) rank_in_chunk(struct sorted s)
{
  __shared__ int32_t key[CHUNK];
  const int t = (int)threadIdx.x;
  const int64_t n = (int64_t)blockIdx.x * CHUNK + t;
  const int32_t mine = (int32_t)row_of(s, n);
  key[t] = mine;
  __syncthreads();
  int32_t before = 0, after = 0;
  for (int k = 0; k < CHUNK; k++) {
    const int32_t same = key[k] == mine;
    before += k < t ? same : 0;
    after += k > t ? same : 0;
  }
  if (n < s.N) s.rank[n] = before | (after == 0 ? INT32_MIN : 0);
}

/* One block. Exclusive prefix sum of count[V]. */
static __device__ void scan(const struct sorted &s)
{
  __shared__ int32_t warp_sum[32], carry;
  const int t = (int)threadIdx.x, lane = t % 32;
  if (t == 0) carry = 0;
  __syncthreads();
  for (int64_t v0 = 0; v0 < s.V; v0 += CHUNK) {
    const int64_t v = v0 + t;
    const int32_t own = v < s.V ? s.count[v] : 0;
    int32_t sum = own;
    for (int k = 1; k < 32; k *= 2) {
      const int32_t left = __shfl_up_sync(0xffffffffu, sum, (unsigned)k);
      if (lane >= k) sum += left;
    }
    if (lane == 31) warp_sum[t / 32] = sum;
    __syncthreads();
    int32_t base = carry;
    for (int w = 0; w < t / 32; w++) base += warp_sum[w];
    if (v < s.V) s.start[v] = base + sum - own;
    __syncthreads();
    if (t == CHUNK - 1) carry = base + sum;
    __syncthreads();
  }
  if (t == 0) s.start[s.V] = carry;
}

static __global__ void __launch_bounds__(CHUNK) rank_over_chunks(struct sorted s)
{
  for (int64_t n0 = 0; n0 < s.N; n0 += CHUNK) {
    const int64_t n = n0 + threadIdx.x, v = row_of(s, n);
    int32_t r = 0;
    if (v >= 0) {
      r = s.rank[n];
      s.rank[n] = (r & INT32_MAX) + s.count[v];
    }
    const int32_t next = v >= 0 ? s.rank[n] + 1 : 0;
    __syncthreads();
    if (v >= 0 && r < 0) s.count[v] = next;
    __syncthreads();
  }
  scan(s);
}

static __global__ void __launch_bounds__(CHUNK) put_in_order(struct sorted s)
{
  const int64_t n = (int64_t)blockIdx.x * CHUNK + threadIdx.x, v = row_of(s, n);
  if (v < 0) return;
  const int32_t at = s.start[v] + s.rank[n];
  s.order[at] = (int32_t)n;
  s.row[at] = (int32_t)v;
}

/* ---- the gradient: summing ---------------------------------------------------------------- */

/* A block: PIECE sorted tokens, 8 columns per thread. dw's rows are initialised: 0, or added to. */
static __global__ void __launch_bounds__(THREADS)
sum_pieces(struct sorted s, struct tc_arr dw, struct tc_arr dy, bool wide)
{
  const int64_t C = s.C, j = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * 8;
  const int32_t begin = (int32_t)blockIdx.x * PIECE, all = s.start[s.V];
  const int32_t end = TC_MIN(begin + PIECE, all);
  if (j >= C) return;
  const struct tc_arr part = { (char *)(s.part + (int64_t)blockIdx.x * 2 * C), false };
  float sum[8] = { 0 }, x[8];
  for (int32_t i = begin; i < end; i++) {
    const int32_t v = s.row[i];
    tc_load(x, dy, s.order[i] * C + j, C - j, wide);
#pragma unroll
    for (int k = 0; k < 8; k++) sum[k] += x[k];
    if (i + 1 < end && s.row[i + 1] == v) continue;
    if (s.start[v] < begin) tc_store(part, j, C - j, wide, sum);
    else if (s.start[v + 1] > end) tc_store(part, C + j, C - j, wide, sum);
    else tc_add_to(dw, v * C + j, C - j, wide, true, sum);
#pragma unroll
    for (int k = 0; k < 8; k++) sum[k] = 0;
  }
}

/* The row that begins in this piece and ends in a later one. */
static __global__ void __launch_bounds__(THREADS)
join_pieces(struct sorted s, struct tc_arr dw, bool wide)
{
  const int64_t C = s.C, j = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * 8;
  const int32_t begin = (int32_t)blockIdx.x * PIECE, end = begin + PIECE;
  if (end >= s.start[s.V] || j >= C) return;
  const int32_t v = s.row[end - 1], last = s.start[v + 1];
  if (s.start[v] < begin || last <= end) return;
  struct tc_arr part = { (char *)(s.part + (int64_t)blockIdx.x * 2 * C), false };
  float sum[8], x[8];
  tc_load(sum, part, C + j, C - j, wide);
  for (int32_t q = end; q < last; q += PIECE) {
    part.p += 2 * C * sizeof(float);
    tc_load(x, part, j, C - j, wide);
#pragma unroll
    for (int k = 0; k < 8; k++) sum[k] += x[k];
  }
  tc_add_to(dw, v * C + j, C - j, wide, true, sum);
}

/* The layout of scratch for N tokens (or positions) and the table w; returns its bytes. */
static int64_t carve(struct sorted *s, const struct tc_view *w, int64_t n_tokens, void *scratch)
{
  memset(s, 0, sizeof *s);
  s->V = w->dim[0], s->C = w->dim[1], s->N = n_tokens, s->first = w->off[0];
  const int64_t V = tc_round_up(s->V + 1, 16), N = tc_round_up(s->N, 16);
  const int64_t pieces = tc_ceil_div(s->N, PIECE);
  int32_t *p = (int32_t *)scratch;
  if (p) {
    s->count = p, s->start = p + V, s->rank = p + 2 * V;
    s->order = s->rank + N, s->row = s->order + N;
    s->part = (float *)(s->row + N);
  }
  return (2 * V + 3 * N + pieces * 2 * s->C) * 4;
}

int64_t tc_cuda_embed_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  (void)d;
  struct sorted s;
  return carve(&s, &c->out[0], c->in[0].elems, NULL);
}

/* w (+)= for each row the sum of the rows of dy whose token refers to it. */
static int sum_rows(struct tc_device *d, const struct tc_view *w, const struct tc_view *dy, const int32_t *token,
                    int64_t n_tokens, void *scratch, bool acc, const char *what)
{
  struct sorted s;
  carve(&s, w, n_tokens, scratch);
  s.token = token;
  TC_ASSERT(s.N < INT32_MAX - CHUNK && s.V < INT32_MAX - CHUNK);
  cudaStream_t stream = tc_stream(d);
  cudaError_t e = cudaSuccess;
  if (!acc && w->elems)
    e = cudaMemsetAsync(w->data, 0, (size_t)w->elems * tc_dtype_bytes(w->dtype), stream);
  if (s.N == 0 || s.V == 0) return tc_cuda_check(d, e, what);
  if (e == cudaSuccess) e = cudaMemsetAsync(s.count, 0, (size_t)s.V * 4, stream);
  if (e != cudaSuccess) return tc_cuda_check(d, e, what);
  const dim3 chunks = tc_blocks(s.N, CHUNK), grid = row_grid(tc_ceil_div(s.N, PIECE), s.C);
  const bool wide = tc_wide(s.C, w, dy, NULL);
  TC_LAUNCH(rank_in_chunk, chunks, dim3(CHUNK), 0, stream, s);
  TC_LAUNCH(rank_over_chunks, dim3(1), dim3(CHUNK), 0, stream, s);
  TC_LAUNCH(put_in_order, chunks, dim3(CHUNK), 0, stream, s);
  TC_LAUNCH(sum_pieces, grid, dim3(THREADS), 0, stream, s, tc_arr_of(w), tc_arr_of(dy), wide);
  TC_LAUNCH(join_pieces, grid, dim3(THREADS), 0, stream, s, tc_arr_of(w), wide);
  return tc_cuda_launched(d, what);
}

int tc_cuda_embed_bwd(struct tc_device *d, const struct tc_call *c)
{
  return sum_rows(d, &c->out[0], &c->in[1], tc_i32_of(&c->in[0]), c->in[0].elems, c->scratch, (c->acc & 1) != 0,
                  "embed_bwd");
}

/* ---- positions ---------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS)
pos(struct tc_arr y, struct tc_arr x, struct tc_arr w, const int32_t *starts, struct tc_row_order rows, int64_t first,
    int64_t T, int64_t C, bool wide)
{
  const int64_t n = blockIdx.x, t = tc_natural_row(&rows, first + n) % T - (starts ? starts[n] : 0);
  float a[8], b[8];
  for (int64_t j = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * 8; j < C;
       j += (int64_t)gridDim.y * THREADS * 8) {
    tc_load(a, x, n * C + j, C - j, wide);
    tc_load(b, w, t * C + j, C - j, wide);
#pragma unroll
    for (int k = 0; k < 8; k++) a[k] += b[k];
    tc_store(y, n * C + j, C - j, wide, a);
  }
}

int tc_cuda_pos(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *x = &c->in[0], *w = &c->in[1], *y = &c->out[0];
  const int64_t T = w->dim[0], C = w->dim[1], N = x->dim[0];
  if (N * C == 0) return 0;
  TC_LAUNCH(pos, row_grid(N, C), dim3(THREADS), 0, tc_stream(d), tc_arr_of(y), tc_arr_of(x),
            tc_arr_of(w), tc_call_starts(c, 2), c->rows, x->off[0], T, C, tc_wide(C, x, w, y));
  return tc_cuda_launched(d, "pos");
}

static __global__ void __launch_bounds__(THREADS)
pos_bwd(struct tc_arr dw, struct tc_arr dy, int64_t off, int64_t N, int64_t T, int64_t C,
        bool wide, bool acc)
{
  const int64_t t = blockIdx.x, first = ((t - off) % T + T) % T;
  float sum[8], x[8];
  for (int64_t j = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * 8; j < C;
       j += (int64_t)gridDim.y * THREADS * 8) {
#pragma unroll
    for (int k = 0; k < 8; k++) sum[k] = 0;
    for (int64_t n = first; n < N; n += T) {
      tc_load(x, dy, n * C + j, C - j, wide);
#pragma unroll
      for (int k = 0; k < 8; k++) sum[k] += x[k];
    }
    tc_add_to(dw, t * C + j, C - j, wide, acc, sum);
  }
}

/* With documents, and where tokens are not in their natural order, many tokens, or none, are at a position: each is a row, as
 * of a vocabulary. */
static __global__ void __launch_bounds__(CHUNK)
positions(int32_t *position, const int32_t *starts, struct tc_row_order rows, int64_t off, int64_t N, int64_t T)
{
  const int64_t n = (int64_t)blockIdx.x * CHUNK + threadIdx.x;
  if (n < N) position[n] = (int32_t)(tc_natural_row(&rows, off + n) % T) - (starts ? starts[n] : 0);
}

int64_t tc_cuda_pos_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  struct sorted s;
  const int64_t N = c->in[0].dim[0];
  (void)d;
  return tc_call_any_order(c, 1) ? tc_round_up(N, 16) * 4 + carve(&s, &c->out[0], N, NULL) : 0;
}

int tc_cuda_pos_bwd(struct tc_device *d, const struct tc_call *c)
{
  const struct tc_view *dy = &c->in[0], *w = &c->out[0];
  const int64_t T = w->dim[0], C = w->dim[1], N = dy->dim[0];
  const int32_t *starts = tc_call_starts(c, 1);
  if (T * C == 0) return 0;
  if (tc_call_any_order(c, 1)) {
    int32_t *position = (int32_t *)c->scratch;
    TC_LAUNCH(positions, tc_blocks(N, CHUNK), dim3(CHUNK), 0, tc_stream(d), position, starts, c->rows, dy->off[0], N, T);
    return sum_rows(d, w, dy, position, N, position + tc_round_up(N, 16), (c->acc & 1) != 0, "pos_bwd");
  }
  TC_LAUNCH(pos_bwd, row_grid(T, C), dim3(THREADS), 0, tc_stream(d), tc_arr_of(w), tc_arr_of(dy),
            dy->off[0], N, T, C, tc_wide(C, w, dy, NULL), (c->acc & 1) != 0);
  return tc_cuda_launched(d, "pos_bwd");
}

void tc_cuda_load_embed(struct tc_device *d)
{
  tc_load_kernels(d, embed, rank_in_chunk, rank_over_chunks, put_in_order, sum_pieces, join_pieces, pos, pos_bwd,
                  positions);
}
