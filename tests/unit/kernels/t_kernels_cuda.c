/* t_kernels_cuda.c - t_kernels.c's cases on the CUDA device.
 *
 * By default the sources of kernels/cuda run on the CPU, compiled with the headers of tests/emu: the module
 * in the folder that TC_EMU_MODULES names. Everything runs twice and must give the same bits;
 * the second time blocks and their threads go from last to first, so what depends on their order
 * shows. TC_EMU_ONCE=yes runs it in one order only: for the thread sanitizer (tests/check-races), which finds races in any.
 * With TC_TEST_GPU=yes the module is the real one, on a GPU. */
#include <stdlib.h>

static int orders = 2;

#define T_DEVICE "cuda"
#define T_THREADS orders
#define T_TYPES { TC_BF16, TC_F32 }              /* what has most kernels first: check-races stops at a race */
#define T_BEFORE(threads) \
  ((threads) == 1 ? (void)unsetenv("TC_EMU_REVERSE") : (void)setenv("TC_EMU_REVERSE", "1", 1))
#define T_SAME "%s: same bits in %d orders of threads and blocks"
#define main kernels_main
#include "tests/unit/kernels/t_kernels.c"
#include "tests/unit/kernels/load.h"
#undef main

int main(int argc, char **argv)
{
  const char *gpu = getenv("TC_TEST_GPU"), *folder = getenv("TC_EMU_MODULES");
  if (!gpu || !*gpu) {
    if (!folder || !*folder) skip_all("no C++ compiler to build the emulated kernels with");
    setenv("TERCIO_MODULES", folder, 1);
  }
  if (getenv("TC_EMU_ONCE")) orders = 1;
  if (!gpu || !*gpu) load_kernels();
  return kernels_main(argc, argv);
}
