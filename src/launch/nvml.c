/* nvml.c - what the NVIDIA driver's own library reports of GPUs: names, UUIDs, memory, NVLinks.
 *
 * The library belongs to the driver, so it is loaded by name and never linked: where it is not,
 * everything it would say is unknown. The declarations are the stable part of its interface. */
#include "src/launch/gpus.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { NVML_OK = 0, LINK_UP = 1, TO_GPU = 0, TO_SWITCH = 2 };

struct nvml_pci {                /* nvmlPciInfo_t */
  char bus_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

struct nvml_memory { unsigned long long total, free, used; };

struct nvml {
  int (*init)(void);
  int (*shutdown)(void);
  int (*by_pci)(const char *pci, void **gpu);
  int (*by_uuid)(const char *uuid, void **gpu);
  int (*name)(void *gpu, char *text, unsigned size);
  int (*uuid)(void *gpu, char *text, unsigned size);
  int (*memory)(void *gpu, struct nvml_memory *m);
  int (*link_state)(void *gpu, unsigned link, int *state);
  int (*link_pci)(void *gpu, unsigned link, struct nvml_pci *pci);
  int (*link_type)(void *gpu, unsigned link, int *type);
};

uint64_t tc_gpus_address(const char *pci)
{
  unsigned domain, bus, dev, func;
  if (sscanf(pci, "%x:%x:%x.%x", &domain, &bus, &dev, &func) != 4) return 0;
  return (uint64_t)domain << 16 | (bus & 255) << 8 | (dev & 31) << 3 | (func & 7);
}

/* Function pointers are copied as bytes: ISO C has no cast from what dlsym returns. */
static bool find(void *lib, const char *name, void *slot)
{
  void *p = dlsym(lib, name);
  memcpy(slot, &p, sizeof p);
  return p != NULL;
}

/* False: a library too old to be of use. link_type came later, and may be missing. */
static bool find_all(void *lib, struct nvml *m)
{
  memset(m, 0, sizeof *m);
  (void)find(lib, "nvmlDeviceGetNvLinkRemoteDeviceType", &m->link_type);
  return find(lib, "nvmlInit_v2", &m->init) && find(lib, "nvmlShutdown", &m->shutdown) &&
         find(lib, "nvmlDeviceGetHandleByPciBusId_v2", &m->by_pci) &&
         find(lib, "nvmlDeviceGetHandleByUUID", &m->by_uuid) &&
         find(lib, "nvmlDeviceGetName", &m->name) && find(lib, "nvmlDeviceGetUUID", &m->uuid) &&
         find(lib, "nvmlDeviceGetMemoryInfo", &m->memory) &&
         find(lib, "nvmlDeviceGetNvLinkState", &m->link_state) &&
         find(lib, "nvmlDeviceGetNvLinkRemotePciInfo_v2", &m->link_pci);
}

static void ask_links(const struct nvml *m, void *gpu, struct tc_dev *d)
{
  d->n_links = d->n_switched = 0;
  memset(d->peer, 0, sizeof d->peer);
  for (unsigned i = 0; i < TC_NVLINKS_MAX; i++) {
    struct nvml_pci other = { 0 };
    int state = 0, type = TO_GPU;
    if (m->link_state(gpu, i, &state) != NVML_OK || state != LINK_UP) continue;
    d->n_links++;
    if (m->link_type && m->link_type(gpu, i, &type) != NVML_OK) type = TO_GPU;
    if (type == TO_SWITCH) d->n_switched++;
    else if (type == TO_GPU && m->link_pci(gpu, i, &other) == NVML_OK) {
      other.bus_id[sizeof other.bus_id - 1] = 0;
      d->peer[i] = tc_gpus_address(other.bus_id);
    }
  }
}

static void ask_one(const struct nvml *m, struct tc_dev *d)
{
  void *gpu = NULL;
  struct nvml_memory memory = { 0 };
  char text[96];
  if ((!*d->pci || m->by_pci(d->pci, &gpu) != NVML_OK) &&
      (!*d->uuid || m->by_uuid(d->uuid, &gpu) != NVML_OK)) return;
  if (m->name(gpu, text, sizeof text) == NVML_OK)
    snprintf(d->name, sizeof d->name, "%.63s", text);
  if (!*d->uuid && m->uuid(gpu, text, sizeof text) == NVML_OK)
    snprintf(d->uuid, sizeof d->uuid, "%.63s", text);
  if (m->memory(gpu, &memory) == NVML_OK) d->memory_bytes = (int64_t)memory.total;
  ask_links(m, gpu, d);
}

bool tc_gpus_ask(struct tc_dev *dev, int n)
{
  struct nvml m;
  void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  bool there = lib && find_all(lib, &m) && m.init() == NVML_OK;
  for (int i = 0; there && i < n; i++) ask_one(&m, &dev[i]);
  if (there) m.shutdown();
  if (lib) dlclose(lib);
  return there;
}
