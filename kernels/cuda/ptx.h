/* ptx.h - private to the `cuda` device: instructions that CUDA C++ does not offer, each in
 * one function, and products of tiles, of which attention is made. tests/emu has them in C++, after the PTX manual's
 * tables of which lane has what.
 *
 * bf16 values are packed as two in a 32-bit register, the one with the lower index in the lower half. */
#ifndef TC_CUDA_PTX_H
#define TC_CUDA_PTX_H

#include "kernels/cuda/dev.h"

/* c[16x8] += a[16x16] b[16x8], a warp's: sm_80's mma.sync, fp32 sums. */
static __device__ __forceinline__ void tc_mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#ifdef TC_EMU
  emu_mma_m16n8k16(c, a, b);
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* 2^x by one instruction, to 2 ulp; below 2^-126 it is 0. exp2f scales subnormal results, which
 * costs three more. */
static __device__ __forceinline__ float tc_exp2(float x)
{
#ifdef TC_EMU
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.f : y;
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/* tanh to 3e-7 of 1: in a score, which it caps, that is less than bf16 operands leave. */
static __device__ __forceinline__ float tc_tanh(float x)
{
  const float y = 1.f + tc_exp2(x * (2.f * TC_LOG2_E));
#ifdef TC_EMU
  return 1.f - 2.f / y;
#else
  return 1.f - __fdividef(2.f, y);
#endif
}

#ifndef TC_EMU
static __device__ __forceinline__ uint32_t tc_shared_address(const void *p)
{
  return (uint32_t)__cvta_generic_to_shared(p);
}
#endif

/* Four 8x8 matrices from shared memory; lanes 8j..8j+7 give the addresses of the rows of the
 * j-th, each 16 bytes, aligned. */
template <bool TRANS>
static __device__ __forceinline__ void tc_ldmatrix(uint32_t r[4], const uint16_t *row)
{
#ifdef TC_EMU
  emu_ldmatrix_x4(r, row, TRANS);
#else
  if (TRANS)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(tc_shared_address(row)) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(tc_shared_address(row)) : "memory");
#endif
}

/* 16 bytes into shared memory, asynchronously; zeros if !take. */
static __device__ __forceinline__ void tc_copy_async(void *to, const void *from, bool take)
{
#ifdef TC_EMU
  emu_cp_async(to, from, take);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(tc_shared_address(to)), "l"(from), "r"(take ? 16 : 0) : "memory");
#endif
}
static __device__ __forceinline__ void tc_copies_commit(void)
{
#ifdef TC_EMU
  emu_cp_async_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* All groups but the latest LEFT have arrived, as this thread sees it. */
template <int LEFT> static __device__ __forceinline__ void tc_copies_wait(void)
{
#ifdef TC_EMU
  emu_cp_async_wait(LEFT);
#else
  asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
#endif
}

/* ---- tiles of bf16 in shared memory: rows of D, LD = D + 8 apart, so that the 8 rows that
 * ldmatrix reads at once lie in different banks ---------------------------------------------- */

/* Rows [row0, row0 + ROWS) of from[rows][stride], 0 past `rows`; all THREADS take part. The number of a thread's
 * copies is constant: in a loop, their addresses are a quarter of the instructions of attention. Where a row's
 * copies divide THREADS, they are in one column, and each address follows from the last by an addition. */
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void tc_tile_fetch(uint16_t *to, const uint16_t *from,
                                                     int64_t row0, int64_t rows, int64_t stride)
{
  enum { PER_ROW = D / 8, LD = D + 8, STEP = THREADS / PER_ROW, ALL = ROWS * PER_ROW };
  const int t = (int)threadIdx.x, left = (int)TC_MIN(rows - row0, (int64_t)ROWS);
  const uint16_t *at = from + row0 * stride;
  if constexpr (THREADS % PER_ROW == 0 && ROWS % STEP == 0) {
    const int r = t / PER_ROW, j = t % PER_ROW * 8;
    at += r * stride + j;
#pragma unroll
    for (int k = 0; k < ROWS; k += STEP, at += STEP * stride)
      tc_copy_async(to + (r + k) * LD + j, r + k < left ? at : from, r + k < left);
  } else {
#pragma unroll
    for (int k = 0; k < ALL; k += THREADS) {
      const int r = (t + k) / PER_ROW, j = (t + k) % PER_ROW * 8;
      if (t + k < ALL) tc_copy_async(to + r * LD + j, r < left ? at + r * stride + j : from, r < left);
    }
  }
}

/* Address for A's fragment at (row, col), or, transposed, B's from rows of k (two columns of 8). */
template <int LD>
static __device__ __forceinline__ const uint16_t *tc_row_block(const uint16_t *tile, int row,
                                                               int col, int lane)
{
  return tile + (row + (lane / 8 % 2) * 8 + lane % 8) * LD + col + lane / 16 * 8;
}
/* Address for B's fragments from rows of n: two of 8 columns n each, 16 of k. */
template <int LD>
static __device__ __forceinline__ const uint16_t *tc_col_block(const uint16_t *tile, int n, int k,
                                                               int lane)
{
  return tile + (n + lane / 16 * 8 + lane % 8) * LD + k + (lane / 8 % 2) * 8;
}

/* ---- products of a warp: 16 M rows by tiles in shared memory; sums are fp32 ------------------------ */

template <int M, int N> static __device__ __forceinline__ void tc_clear(float acc[M][N][4])
{
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int n = 0; n < N; n++) acc[m][n][0] = acc[m][n][1] = acc[m][n][2] = acc[m][n][3] = 0;
}

/* The fragments of 16 M own rows: A operands of products. */
template <int D, int M> struct tc_own_rows { uint32_t a[M][D / 16][4]; };

template <int D, int M>
static __device__ __forceinline__ void tc_load_own(tc_own_rows<D, M> &o, const uint16_t *x, int row, int lane)
{
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++)
      tc_ldmatrix<false>(o.a[m][kk], tc_row_block<D + 8>(x, row + 16 * m, kk * 16, lane));
}

/* C[16 M][BN] = X[16 M][D] Y[BN][D]^T, Y in shared memory; X in `held`, or in shared memory too. */
template <int D, int BN, int M, bool HELD>
static __device__ __forceinline__ void tc_product(float C[M][BN / 8][4], const tc_own_rows<D, HELD ? M : 1> &held,
                                                  const uint16_t *x, int row, const uint16_t *y, int lane)
{
  tc_clear<M, BN / 8>(C);
#pragma unroll
  for (int kk = 0; kk < D / 16; kk++) {
    uint32_t a[M][4], b[4];
#pragma unroll
    for (int m = 0; m < M && !HELD; m++)
      tc_ldmatrix<false>(a[m], tc_row_block<D + 8>(x, row + 16 * m, kk * 16, lane));
#pragma unroll
    for (int n = 0; n < BN / 8; n += 2) {
      tc_ldmatrix<false>(b, tc_col_block<D + 8>(y, n * 8, kk * 16, lane));
#pragma unroll
      for (int m = 0; m < M; m++) {
        const uint32_t *own = HELD ? held.a[HELD ? m : 0][kk] : a[m];
        tc_mma(C[m][n], own, b);
        tc_mma(C[m][n + 1], own, b + 2);
      }
    }
  }
}

/* Products of queries and keys become scores: cap tanh(x scale / cap). */
template <int M, int N> static __device__ __forceinline__ void tc_cap_scores(float S[M][N][4], float scale, float cap)
{
  const float by = scale / cap;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) S[m][n][i] = cap * tc_tanh(S[m][n][i] * by);
}

/* acc[16 M][D] += W[16 M][BN] Y[BN][D]; W from registers, as bf16. */
template <int D, int BN, int M>
static __device__ __forceinline__ void tc_add_product(float acc[M][D / 8][4], const float W[M][BN / 8][4],
                                                      const uint16_t *y, int lane)
{
#pragma unroll
  for (int kk = 0; kk < BN / 16; kk++) {
    uint32_t a[M][4], b[4];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const float *w = W[m][2 * kk + r / 2] + r % 2 * 2;
        a[m][r] = tc_pack_bf16(w[0], w[1]);
      }
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      tc_ldmatrix<true>(b, tc_row_block<D + 8>(y, kk * 16, n * 8, lane));
#pragma unroll
      for (int m = 0; m < M; m++) {
        tc_mma(acc[m][n], a[m], b);
        tc_mma(acc[m][n + 1], a[m], b + 2);
      }
    }
  }
}

#endif
