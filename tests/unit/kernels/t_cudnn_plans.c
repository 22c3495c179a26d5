/* t_cudnn_plans.c - tercio-cudnn.so makes cuDNN's plans of attention for GPUs that are not there, from their
 * properties: the graphs are valid, cuDNN has engines for them, compiles their kernels and says what memory they take.
 * The driver is a stand-in (tests/emu/driver.c), which loads these kernels but cannot run them.
 *
 * Skipped where the module was not built, cuDNN or NVRTC is not found, or cuDNN is too old. */
#include "kernels/cudnn/attention.h"
#include "tests/unit/tap.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As cuDNN writes them. */
static const char h100[] =
  "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
  "\"multiProcessorCount\":132,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
  "\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
  "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"
  "\"supportCoopLaunch\":1,\"totalGlobalMem\":85014609920,\"smClockRateKHz\":1980000,\"memClockRateKHz\":2619000,"
  "\"l2CacheSize\":52428800,\"cudaDeviceId\":0,\"deviceVer\":900,\"driverVer\":13000,\"deviceName\":\"NVIDIA H100\"}";
static const char a100[] =
  "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
  "\"multiProcessorCount\":108,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
  "\"maxSharedMemoryPerBlockOptin\":166912,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
  "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"
  "\"supportCoopLaunch\":1,\"totalGlobalMem\":85014609920,\"smClockRateKHz\":1410000,\"memClockRateKHz\":1512000,"
  "\"l2CacheSize\":41943040,\"cudaDeviceId\":0,\"deviceVer\":800,\"driverVer\":13000,\"deviceName\":\"NVIDIA A100\"}";
static const char b200[] =
  "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
  "\"multiProcessorCount\":148,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
  "\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
  "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"
  "\"supportCoopLaunch\":1,\"totalGlobalMem\":191503138816,\"smClockRateKHz\":1965000,\"memClockRateKHz\":3996000,"
  "\"l2CacheSize\":132644864,\"cudaDeviceId\":0,\"deviceVer\":1000,\"driverVer\":13000,\"deviceName\":\"NVIDIA B200\"}";

static const struct tc_cudnn_ops *ops;

/* B sequences of T tokens, K groups of G queries of size D. The workspace of the backward pass is some fp32 gradients
 * of a graph's queries, and row sums, and in one order the gradients of its scores in bf16, of which a graph has 1 GiB at
 * most if there are several sequences or groups; of the forward, little. */
static void planned_in(struct tc_cudnn *c, bool one_order, int64_t B, int64_t K, int64_t G, int64_t T, int64_t D)
{
  const struct tc_cudnn_shape s = { B, K, G, T, D, one_order, INT64_C(1) << 30, 1 / sqrtf((float)D) };
  const double query = (double)((K > 1 && G > 1 ? 1 : B) * K * G * T * D) * 4;
  const double all = (double)(B * K * G * T * T) * 2, graph = B * K > 1 ? fmin(all, 0x1p30) : all;
  const double scores = one_order ? graph : 0;
  char why[400] = "";
  struct tc_cudnn_plan *p = ops->plan(c, &s, why, sizeof why);
  const double forward = p ? (double)ops->workspace(p, 0) : -1, backward = p ? (double)ops->workspace(p, 1) : -1;
  ok(p && forward >= 0 && forward <= 1 << 20 && backward >= 0 && backward < 4 * query + scores + (1 << 20),
     "[%d, %d, %d, %d, %d], %s order: plans, with workspaces of %.0f and %.0f bytes%s%s", (int)B, (int)K, (int)G, (int)T,
     (int)D, one_order ? "one" : "any", forward, backward, *why ? ": " : "", why);
  char at[64] = "";
  ok(!p || ops->forward(p, at, at, (float *)at, at, why, sizeof why) < 0, "... which cannot be run here: %s", why);
  if (p) ops->free_plan(p);
}

static void planned(struct tc_cudnn *c, int64_t B, int64_t K, int64_t G, int64_t T, int64_t D)
{
  for (int i = 0; i < 2; i++) planned_in(c, i == 0, B, K, G, T, D);
}

static void refused(struct tc_cudnn *c, int64_t D, const char *say)
{
  const struct tc_cudnn_shape s = { 2, 4, 1, 128, D, 1, INT64_C(1) << 30, 1 };
  char why[400] = "";
  struct tc_cudnn_plan *p = ops->plan(c, &s, why, sizeof why);
  ok(!p && strstr(why, say), "heads of %d are refused: %s", (int)D, why);
  if (p) ops->free_plan(p);
}

static void gpu(const char *name, const char *json, bool wide)
{
  char why[400] = "";
  struct tc_cudnn *c = ops->open(NULL, json, why, sizeof why);
  if (!ok(c != NULL, "%s: its properties%s%s", name, *why ? ": " : "", why)) return;
  planned(c, 64, 12, 1, 1024, 64);
  planned(c, 16, 25, 1, 1024, 64);
  planned(c, 1, 32, 1, 4096, 128);
  planned(c, 1, 8, 4, 8192, 128);
  planned(c, 1, 32, 1, 8192, 128);
  planned(c, 4, 8, 4, 2048, 64);
  planned(c, 4, 1, 4, 2048, 128);
  if (wide) {
    planned(c, 2, 4, 1, 128, 8);
    planned(c, 2, 4, 1, 128, 80);
    planned(c, 2, 4, 1, 256, 96);
    planned(c, 2, 4, 3, 128, 80);
    refused(c, 20, "multiple of 8");
  }
  ops->close(c);
}

int main(void)
{
  const char *module = getenv("TC_CUDNN_MODULE"), *driver = getenv("TC_EMU_DRIVER");
  char why[400] = "";
  if (!module || !*module || access(module, R_OK))
    skip_all("tercio-cudnn.so is not built: configure --with-cudnn-frontend");
  if (driver && *driver && !dlopen(driver, RTLD_NOW | RTLD_GLOBAL)) skip_all(dlerror());
  char path[4096];
  snprintf(path, sizeof path, "%s%s", strchr(module, '/') ? "" : "./", module);
  void *lib = dlopen(path, RTLD_NOW);
  if (!lib) skip_all(dlerror());
  ops = dlsym(lib, "tc_cudnn_attention");
  if (!ops || ops->version != TC_CUDNN_VERSION) {
    printf("Bail out! %s has another table of functions\n", module);
    return 1;
  }
  if (ops->library() < 91100) skip_all("this cuDNN makes no plans without a GPU");
  alarm(900);
  ok(!ops->open(NULL, "{}", why, sizeof why) && *why, "properties that are none: %s", why);
  gpu("H100", h100, true);
  gpu("A100", a100, false);
  gpu("B200", b200, false);
  return done_testing();
}
