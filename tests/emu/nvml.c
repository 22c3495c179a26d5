/* nvml.c - a driver's library (libnvidia-ml.so.1) for GPUs that are not there: as many links
 * between GPUs as TC_FAKE_NVML says, "switch" or "pairs" (2k and 2k+1 have four links); anything
 * else: no driver. Its GPUs are at the buses of tests/mpi/m_bind: 10, 20, 30 ... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pci {
  char bus_legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};
struct memory { unsigned long long total, free, used; };

static int is(const char *what)
{
  const char *mode = getenv("TC_FAKE_NVML");
  return mode && strcmp(mode, what) == 0;
}

int nvmlInit_v2(void);
int nvmlInit_v2(void) { return is("switch") || is("pairs") ? 0 : 9; }
int nvmlShutdown(void);
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **gpu);
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **gpu)
{
  unsigned domain, bus;
  if (sscanf(pci, "%x:%x:", &domain, &bus) != 2 || bus % 16 || bus == 0) return 6;
  *gpu = (void *)(size_t)(bus / 16);
  return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu)
{
  (void)uuid, (void)gpu;
  return 6;
}

int nvmlDeviceGetName(void *gpu, char *text, unsigned size);
int nvmlDeviceGetName(void *gpu, char *text, unsigned size)
{
  snprintf(text, size, "Fake GPU %d", (int)(size_t)gpu);
  return 0;
}

int nvmlDeviceGetUUID(void *gpu, char *text, unsigned size);
int nvmlDeviceGetUUID(void *gpu, char *text, unsigned size)
{
  snprintf(text, size, "GPU-fake-%d", (int)(size_t)gpu);
  return 0;
}

int nvmlDeviceGetMemoryInfo(void *gpu, struct memory *m);
int nvmlDeviceGetMemoryInfo(void *gpu, struct memory *m)
{
  (void)gpu;
  *m = (struct memory){ 85899345920ULL, 0, 0 };
  return 0;
}

int nvmlDeviceGetNvLinkState(void *gpu, unsigned link, int *state);
int nvmlDeviceGetNvLinkState(void *gpu, unsigned link, int *state)
{
  (void)gpu;
  if (link >= 18) return 2;
  *state = is("switch") || link < 4;
  return 0;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *gpu, unsigned link, int *type);
int nvmlDeviceGetNvLinkRemoteDeviceType(void *gpu, unsigned link, int *type)
{
  (void)gpu, (void)link;
  *type = is("switch") ? 2 : 0;
  return 0;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *gpu, unsigned link, struct pci *p);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *gpu, unsigned link, struct pci *p)
{
  const int peer = (((int)(size_t)gpu - 1) ^ 1) + 1;
  (void)link;
  memset(p, 0, sizeof *p);
  snprintf(p->bus_id, sizeof p->bus_id, "%08X:%02X:00.0", 0u, (unsigned)peer * 16);
  return 0;
}
