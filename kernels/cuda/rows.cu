/* rows.cu - sums over rows, in two steps: partial sums of blocks of rows, then those added in order.
 * How many there are depends on the shape alone. */
#include "kernels/cuda/dev.h"

/* ---- the second step ---------------------------------------------------------------------- */

enum { SUM_X = 32, SUM_Y = 32 };

static __global__ void __launch_bounds__(SUM_X *SUM_Y)
sum_parts(struct tc_arr out, bool acc, const float *part, int parts, int64_t cols, int64_t stride)
{
  __shared__ float sums[SUM_Y][SUM_X + 1];
  const int64_t j = (int64_t)blockIdx.x * SUM_X + threadIdx.x;
  float sum = 0;
  if (j < cols)
    for (int p = (int)threadIdx.y; p < parts; p += SUM_Y) sum += part[p * stride + j];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || j >= cols) return;
  sum = 0;
  for (int y = 0; y < SUM_Y; y++) sum += sums[y][threadIdx.x];
  tc_put(out, j, acc ? tc_get(out, j) + sum : sum);
}

void tc_cuda_add_parts(struct tc_device *d, const struct tc_view *out, bool acc, const float *part,
                       int64_t parts, int64_t cols, int64_t stride)
{
  TC_LAUNCH(sum_parts, tc_blocks(cols, SUM_X), dim3(SUM_X, SUM_Y), 0, tc_stream(d), tc_arr_of(out),
            acc, part, (int)parts, cols, stride);
}

/* ---- bias gradients: the sums of columns --------------------------------------------------- */

enum { COLS = 256, GROUPS = 8 };                 /* a block: columns, and rows at a time */

static __global__ void __launch_bounds__(COLS)
column_sums(float *part, struct tc_arr x, int64_t rows, int64_t cols, int64_t each, bool wide)
{
  __shared__ float sums[GROUPS][COLS];
  const int lane = (int)threadIdx.x % 32, group = (int)threadIdx.x / 32;
  const int64_t j = (int64_t)blockIdx.x * COLS + lane * 8, first = (int64_t)blockIdx.y * each;
  const int64_t end = TC_MIN(first + each, rows);
  float sum[8] = { 0 }, v[8];
  for (int64_t r = first + group; r < end; r += GROUPS) {
    tc_load(v, x, r * cols + j, cols - j, wide);
#pragma unroll
    for (int k = 0; k < 8; k++) sum[k] += v[k];
  }
#pragma unroll
  for (int k = 0; k < 8; k++) sums[group][lane * 8 + k] = sum[k];
  __syncthreads();
  const int64_t col = (int64_t)blockIdx.x * COLS + threadIdx.x;
  if (col >= cols) return;
  float total = 0;
  for (int g = 0; g < GROUPS; g++) total += sums[g][threadIdx.x];
  part[(int64_t)blockIdx.y * cols + col] = total;
}

static int64_t column_parts(int64_t rows) { return TC_MAX(1, TC_MIN(256, rows / 64)); }

int64_t tc_cuda_bias_bwd_scratch(struct tc_device *d, const struct tc_call *c)
{
  (void)d;
  const int64_t cols = c->out[0].elems, rows = cols ? c->in[0].elems / cols : 0;
  return column_parts(rows) * cols * (int64_t)sizeof(float);
}

int tc_cuda_bias_bwd(struct tc_device *d, const struct tc_call *c)
{
  const int64_t cols = c->out[0].elems, rows = cols ? c->in[0].elems / cols : 0;
  const int64_t parts = column_parts(rows), each = tc_ceil_div(rows, parts);
  float *part = (float *)c->scratch;
  if (cols == 0) return 0;
  TC_LAUNCH(column_sums, dim3((unsigned)tc_ceil_div(cols, COLS), (unsigned)parts), dim3(COLS), 0,
            tc_stream(d), part, tc_arr_of(&c->in[0]), rows, cols, each,
            tc_wide(cols, &c->in[0], NULL, NULL));
  tc_cuda_add_parts(d, &c->out[0], (c->acc & 1) != 0, part, parts, cols, cols);
  return tc_cuda_launched(d, "bias_bwd");
}

void tc_cuda_load_rows(struct tc_device *d) { tc_load_kernels(d, sum_parts, column_sums); }
