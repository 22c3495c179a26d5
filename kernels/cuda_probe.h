/* cuda_probe.h - a first kernel on an NVIDIA GPU: shows that the tool chain, the driver and
 * the device work, before anything is built on them. Included by C and by nvcc. */
#ifndef TC_CUDA_PROBE_H
#define TC_CUDA_PROBE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Local. Devices that can be used now; 0 if there is no driver. */
int tc_cuda_devices(void);

/* Local. y[n] <- gelu(x[n]) (tanh form) on the current device; x and y are host memory.
 * Returns 0, or -1 with CUDA's words in text[size]. */
int tc_cuda_gelu(float *y, const float *x, int64_t n, char *text, size_t size);

#ifdef __cplusplus
}
#endif

#endif
