/* cuda_probe.cu - GELU element by element, from and to host memory.
 *
 * No base.h here: it is C11, this is C++. Every CUDA call's status is looked at; what was
 * allocated is freed on every path. */
#include "kernels/cuda_probe.h"

#include <cuda_runtime.h>
#include <stdio.h>

enum { BLOCK_THREADS = 256, MAX_BLOCKS = 1 << 16 };

/* A grid may be smaller than n: each thread strides over it. */
__global__ static void gelu_kernel(float *y, const float *x, int64_t n)
{
  int64_t stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    float v = x[i];
    float u = 0.7978845608028654f * (v + 0.044715f * v * v * v);      /* sqrt(2/pi) */
    y[i] = 0.5f * v * (1.0f + tanhf(u));
  }
}

static cudaError_t gelu(float *y, const float *x, int64_t n, float **buf)
{
  size_t bytes = (size_t)n * sizeof(float);
  cudaError_t e = cudaMalloc((void **)buf, 2 * bytes);
  if (e != cudaSuccess) return e;
  float *dx = *buf, *dy = *buf + n;
  e = cudaMemcpy(dx, x, bytes, cudaMemcpyHostToDevice);
  if (e != cudaSuccess) return e;
  int64_t blocks = (n + BLOCK_THREADS - 1) / BLOCK_THREADS;
  gelu_kernel<<<(unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS), BLOCK_THREADS>>>(dy, dx, n);
  e = cudaGetLastError();
  if (e != cudaSuccess) return e;
  return cudaMemcpy(y, dy, bytes, cudaMemcpyDeviceToHost);
}

extern "C" int tc_cuda_devices(void)
{
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

extern "C" int tc_cuda_gelu(float *y, const float *x, int64_t n, char *text, size_t size)
{
  float *buf = NULL;
  if (n <= 0) return 0;
  cudaError_t e = gelu(y, x, n, &buf);
  cudaError_t freed = cudaFree(buf);
  if (e == cudaSuccess) e = freed;
  if (e == cudaSuccess) return 0;
  snprintf(text, size, "CUDA: %s", cudaGetErrorString(e));
  return -1;
}
