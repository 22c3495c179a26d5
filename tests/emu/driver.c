/* driver.c - stands in for libcuda.so.1 where cuDNN makes plans for a GPU that is not there (t_cudnn_plans): it can
 * load what cuDNN has compiled, and nothing else. There is no GPU: whatever would run a kernel fails. */
#include <stddef.h>
#include <stdint.h>

enum { NO_DEVICE = 100, NOT_SUPPORTED = 801, VERSION = 13000 };
#define CALL(name) __attribute__((visibility("default"))) int name
CALL(cuInit)(unsigned flags) { return flags + NO_DEVICE; }
CALL(cuDriverGetVersion)(int *version) { return *version = VERSION, 0; }
CALL(cuDeviceGet)(int *device, int index) { return *device = index, 0; }
CALL(cuDeviceGetCount)(int *n) { return *n = 0, 0; }
CALL(cuCtxGetCurrent)(void **context) { return *context = NULL, 0; }
CALL(cuGetErrorName)(int error, const char **text) { return *text = error ? "an error" : "none", 0; }
CALL(cuGetErrorString)(int error, const char **text) { return *text = error ? "an error" : "none", 0; }

/* Compiled kernels: a library is the address of its code. */
CALL(cuLibraryLoadData)(const void **library, const void *code) { return *library = code, code == NULL; }
CALL(cuLibraryUnload)(const void *library) { return library == NULL; }
CALL(cuLibraryGetKernel)(const void **kernel, const void *library, const char *name)
{
  return *kernel = library, library == NULL || name == NULL;
}
CALL(cuKernelGetAttribute)(int *value, int what, const void *kernel, int device)
{
  (void)what, (void)device;
  return *value = 0, kernel == NULL;
}
CALL(cuKernelSetAttribute)(int what, int value, const void *kernel, int device)
{
  (void)what, (void)value, (void)device;
  return kernel == NULL;
}

/* Looked up with the others. */
#define NONE(name) CALL(name)(void) { return NOT_SUPPORTED; }
NONE(cuLaunchKernel) NONE(cuLaunchKernelEx) NONE(cuLaunchCooperativeKernel) NONE(cuOccupancyMaxPotentialClusterSize)
NONE(cuOccupancyMaxActiveBlocksPerMultiprocessor) NONE(cuLinkCreate) NONE(cuLinkCreate_v2) NONE(cuLinkAddData)
NONE(cuLinkAddData_v2) NONE(cuLinkAddFile_v2) NONE(cuLinkComplete) NONE(cuLinkDestroy) NONE(cuCtxPushCurrent)
NONE(cuCtxPopCurrent) NONE(cuCtxGetLimit) NONE(cuCtxGetDevice) NONE(cuStreamGetCtx) NONE(cuStreamSynchronize)
NONE(cuLibraryLoadFromFile) NONE(cuModuleLoadData) NONE(cuModuleLoadDataEx) NONE(cuModuleLoadFatBinary)
NONE(cuModuleUnload) NONE(cuModuleGetFunction) NONE(cuModuleGetGlobal_v2) NONE(cuFuncGetAttribute)
NONE(cuFuncSetAttribute) NONE(cuTensorMapEncodeTiled) NONE(cuMemcpyDtoH_v2) NONE(cuDeviceGetAttribute)
NONE(cuDevicePrimaryCtxRetain) NONE(cuDevicePrimaryCtxRelease) NONE(cuDevicePrimaryCtxReset)
