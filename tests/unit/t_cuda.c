/* t_cuda.c - the CUDA tool chain: a kernel's result against the same formula in double on
 * the host; without a device, that it fails with a sentence and the program goes on. */
#include "ac_config.h"
#include "tests/unit/tap.h"

#ifdef TC_CUDA
#include "kernels/cuda_probe.h"

int main(void)
{
  enum { N = 100003 };                      /* no multiple of a block */
  char text[300] = "";
  float *x = malloc(N * sizeof *x), *y = calloc(N, sizeof *y);
  for (int i = 0; i < N; i++) x[i] = (float)(i - N / 2) * 2e-4f;
  int status = tc_cuda_gelu(y, x, N, text, sizeof text);
  if (tc_cuda_devices() == 0) {
    ok(status == -1 && strncmp(text, "CUDA: ", 6) == 0, "without a device: \"%s\"", text);
    skip("no CUDA device to run the kernel on");
  } else {
    double worst = 0;
    for (int i = 0; i < N; i++) {
      double v = (double)x[i];
      double want = 0.5 * v * (1 + tanh(sqrt(2 / acos(-1)) * (v + 0.044715 * v * v * v)));
      worst = fmax(worst, fabs((double)y[i] - want) / (fabs(want) + 1e-3));
    }
    is_int(status, 0, "the kernel ran %s", text);
    ok(worst < 1e-4, "GELU of %d numbers, off by %.2g at most", N, worst);
  }
  is_int(tc_cuda_gelu(y, x, 0, text, sizeof text), 0, "no elements, nothing to do");
  free(x);
  free(y);
  return done_testing();
}

#else
int main(void)
{
  skip_all("built without CUDA");
}
#endif
