/* nvToolsExt.h - stands in for NVTX's header, and for a profiler: ranges are lines of the file that TC_EMU_NVTX names,
 * without which there is none. A domain's ranges must all have been ended when it is; a pop without a push aborts. */
#ifndef TC_EMU_NVTX_H
#define TC_EMU_NVTX_H

#include "emu.h"

#include <stdio.h>
#include <stdlib.h>

enum { NVTX_VERSION = 3, NVTX_MESSAGE_TYPE_ASCII = 1 };
typedef struct nvtxEventAttributes_v2 {
  uint16_t version, size;
  int32_t messageType;
  union { const char *ascii; } message;
} nvtxEventAttributes_t;
#define NVTX_EVENT_ATTRIB_STRUCT_SIZE ((uint16_t)sizeof(nvtxEventAttributes_t))
typedef struct nvtxDomainRegistration_st { int depth; char name[16]; } *nvtxDomainHandle_t;

/* A line: the domain's name, which tells ranks of one process apart by its address; what is done; how deep. */
static inline void emu_nvtx_line(nvtxDomainHandle_t d, const char *what, const char *name)
{
  std::lock_guard<std::recursive_mutex> hold(emu_lock());
  FILE *f = fopen(getenv("TC_EMU_NVTX"), "a");
  if (!f) emu_stop("TC_EMU_NVTX can't be written");
  fprintf(f, "%s@%p %d %s %s\n", d->name, (void *)d, d->depth, what, name);
  fclose(f);
}

static inline nvtxDomainHandle_t nvtxDomainCreateA(const char *name)
{
  if (!getenv("TC_EMU_NVTX")) return NULL;
  nvtxDomainHandle_t d = new nvtxDomainRegistration_st{ 0, "" };
  snprintf(d->name, sizeof d->name, "%s", name);
  return d;
}

static inline void nvtxDomainDestroy(nvtxDomainHandle_t d)
{
  if (d->depth) emu_stop("a profiler's range was not ended");
  delete d;
}

static inline int nvtxDomainRangePushEx(nvtxDomainHandle_t d, const nvtxEventAttributes_t *a)
{
  if (a->version != NVTX_VERSION || a->size != sizeof *a || a->messageType != NVTX_MESSAGE_TYPE_ASCII)
    emu_stop("a profiler's range has wrong attributes");
  emu_nvtx_line(d, "push", a->message.ascii);
  return d->depth++;
}

static inline int nvtxDomainRangePop(nvtxDomainHandle_t d)
{
  if (--d->depth < 0) emu_stop("a profiler's range is ended that was not begun");
  emu_nvtx_line(d, "pop", "");
  return d->depth;
}

#endif
