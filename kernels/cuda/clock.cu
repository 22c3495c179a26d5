/* clock.cu - timing on the GPU: numbered events in the stream of the kernels, and ranges for a profiler.
 *
 * Events are created on demand and reused. CUDA's resolution is half a microsecond. Ranges are NVTX's, a header that
 * calls the profiler if one was attached when the device was opened, and else gives no domain. */
#include "kernels/cuda/dev.h"

#ifdef TC_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

enum { MOST = 1 << 16, CHUNK = 256 };

struct tc_events {
  cudaEvent_t *event[MOST / CHUNK];              /* [CHUNK] each */
  int32_t made, n;
};

void tc_cuda_events_free(struct tc_device *d)
{
  struct tc_events *x = tc_cuda_of(d)->events;
  if (!x) return;
  for (int32_t i = 0; i < x->made; i++) cudaEventDestroy(x->event[i / CHUNK][i % CHUNK]);
  for (int32_t i = 0; i < MOST / CHUNK; i++) free(x->event[i]);
  free(x);
  tc_cuda_of(d)->events = NULL;
}

static cudaEvent_t *event_at(struct tc_events *x, int32_t i)
{
  cudaEvent_t **chunk = &x->event[i / CHUNK];
  if (!*chunk) *chunk = (cudaEvent_t *)tc_calloc(CHUNK, sizeof **chunk);
  return &(*chunk)[i % CHUNK];
}

static int32_t record_event(struct tc_device *d)
{
  struct tc_cuda *c = tc_cuda_of(d);
  if (!c->events) c->events = (struct tc_events *)tc_calloc(1, sizeof *c->events);
  struct tc_events *x = c->events;
  if (x->n == MOST) return -1;
  cudaError_t e = cudaSuccess;
  cudaEvent_t *at = event_at(x, x->n);
  if (x->n == x->made) {
    e = cudaEventCreateWithFlags(at, cudaEventDefault);
    x->made += e == cudaSuccess;
  }
  if (e == cudaSuccess) e = cudaEventRecord(*at, c->stream);
  return tc_cuda_check(d, e, "a timing event") < 0 ? -1 : x->n++;
}

static int64_t interval(struct tc_device *d, int32_t from, int32_t to)
{
  struct tc_events *x = tc_cuda_of(d)->events;
  float ms = 0;
  if (from < 0 || to < 0) return 0;
  TC_ASSERT(x && from < x->n && to < x->n);
  if (tc_cuda_check(d, cudaEventElapsedTime(&ms, *event_at(x, from), *event_at(x, to)),
                   "timing events") < 0) return 0;
  return (int64_t)((double)ms * 1e6);
}

static void restart(struct tc_device *d)
{
  if (tc_cuda_of(d)->events) tc_cuda_of(d)->events->n = 0;
}

extern const struct tc_clock tc_cuda_clock = { record_event, interval, restart };

/* ---- ranges -------------------------------------------------------------------------------- */

#ifdef TC_NVTX

void tc_cuda_ranges_new(struct tc_device *d) { tc_cuda_of(d)->profiler = nvtxDomainCreateA("tercio"); }

void tc_cuda_ranges_free(struct tc_device *d)
{
  if (tc_cuda_of(d)->profiler) nvtxDomainDestroy(tc_cuda_of(d)->profiler);
  tc_cuda_of(d)->profiler = NULL;
}

static void push_range(struct tc_device *d, const char *name)
{
  nvtxEventAttributes_t a;
  memset(&a, 0, sizeof a);
  a.version = NVTX_VERSION, a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  a.messageType = NVTX_MESSAGE_TYPE_ASCII, a.message.ascii = name;
  nvtxDomainRangePushEx(tc_cuda_of(d)->profiler, &a);
}

static void pop_range(struct tc_device *d) { nvtxDomainRangePop(tc_cuda_of(d)->profiler); }

#else

void tc_cuda_ranges_new(struct tc_device *d) { (void)d; }
void tc_cuda_ranges_free(struct tc_device *d) { (void)d; }
static void push_range(struct tc_device *d, const char *name) { (void)d, (void)name; }
static void pop_range(struct tc_device *d) { (void)d; }

#endif

static bool has_profiler(struct tc_device *d) { return tc_cuda_of(d)->profiler != NULL; }

extern const struct tc_ranges tc_cuda_ranges = { has_profiler, push_range, pop_range };
