/* t_kernels_cuda.c - t_kernels.c's cases on the CUDA device.
 *
 * By default kernels/cuda_*.cu run on the CPU, compiled with the headers of tests/emu: the module
 * in the folder that TC_EMU_MODULES names. With TC_TEST_GPU=yes it is the real one, on a GPU. */
#define T_DEVICE "cuda"
#define T_THREADS 2              /* the same bits when the same is run again */
#define main kernels_main
#include "tests/unit/t_kernels.c"
#undef main

int main(void)
{
  const char *gpu = getenv("TC_TEST_GPU"), *folder = getenv("TC_EMU_MODULES");
  if (!gpu) {
    if (!folder || !*folder) skip_all("no C++ compiler to build the emulated kernels with");
    setenv("TERCIO_MODULES", folder, 1);
  }
  return kernels_main();
}
