/* streams.cu - what the device's streams have beside kernels: asynchronous copies, a stream for each direction; numbered events
 * for timing; ranges for a profiler.
 *
 * A copy waits for an event in the kernels' stream, recorded after all earlier calls, unless it is an early one; another
 * event is recorded at its end. Events are reused in turn: a later copy in the same
 * direction ends later, so waiting for an event that was reused waits for too much,
 * never for too little. A copy's number encodes its direction: odd ones go to the host.
 *
 * Events are created on demand and reused. CUDA's resolution is half a microsecond. Ranges are NVTX's, a header that
 * calls the profiler if one was attached when the device was opened, and else gives no domain. */
#include "kernels/cuda/dev.h"

/* ---- copies ------------------------------------------------------------------------------ */

enum { EVENTS = 64, IN = 0, OUT = 1 };

struct tc_copies {
  cudaStream_t stream[2];
  cudaEvent_t before, done[2][EVENTS];
  int64_t n[2];
  int failed;                    /* a copy could not be started: its event is invalid */
};

int tc_cuda_copies_new(struct tc_device *d)
{
  struct tc_copies *x = (struct tc_copies *)tc_calloc(1, sizeof *x);
  tc_cuda_of(d)->copies = x;
  cudaError_t e = cudaEventCreateWithFlags(&x->before, cudaEventDisableTiming);
  for (int way = 0; way < 2; way++) {
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&x->stream[way], cudaStreamNonBlocking);
    for (int i = 0; i < EVENTS && e == cudaSuccess; i++)
      e = cudaEventCreateWithFlags(&x->done[way][i], cudaEventDisableTiming);
  }
  return tc_cuda_check(d, e, "streams for copies");
}

void tc_cuda_copies_free(struct tc_device *d)
{
  struct tc_copies *x = tc_cuda_of(d)->copies;
  if (!x) return;
  for (int way = 0; way < 2; way++) {
    if (x->stream[way]) {
      cudaStreamSynchronize(x->stream[way]);
      cudaStreamDestroy(x->stream[way]);
    }
    for (int i = 0; i < EVENTS; i++)
      if (x->done[way][i]) cudaEventDestroy(x->done[way][i]);
  }
  if (x->before) cudaEventDestroy(x->before);
  free(x);
  tc_cuda_of(d)->copies = NULL;
}

void tc_cuda_copies_sync(struct tc_device *d)
{
  const struct tc_copies *x = tc_cuda_of(d)->copies;
  for (int way = 0; way < 2; way++)
    tc_cuda_check(d, cudaStreamSynchronize(x->stream[way]), "copies in flight");
}

static int64_t copy(struct tc_device *d, void *dst, const void *src, int64_t bytes, bool early)
{
  struct tc_copies *x = tc_cuda_of(d)->copies;
  const int way = tc_cuda_is_host(dst) ? OUT : IN;
  cudaError_t e = early ? cudaSuccess : cudaEventRecord(x->before, tc_stream(d));
  if (e == cudaSuccess && !early) e = cudaStreamWaitEvent(x->stream[way], x->before, 0);
  if (e == cudaSuccess && bytes > 0)
    e = cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDefault, x->stream[way]);
  const int64_t n = ++x->n[way];
  if (e == cudaSuccess) e = cudaEventRecord(x->done[way][n % EVENTS], x->stream[way]);
  if (tc_cuda_check(d, e, "asynchronous copy") < 0)
    __atomic_store_n(&x->failed, 1, __ATOMIC_RELEASE);
  return 2 * n + way;
}

int64_t tc_cuda_copy_begin(struct tc_device *d, void *dst, const void *src, int64_t bytes)
{
  return copy(d, dst, src, bytes, false);
}

int64_t tc_cuda_copy_early(struct tc_device *d, void *dst, const void *src, int64_t bytes)
{
  return copy(d, dst, src, bytes, true);
}

void tc_cuda_copy_order(struct tc_device *d, int64_t copy)
{
  const struct tc_copies *x = tc_cuda_of(d)->copies;
  tc_cuda_check(d, cudaStreamWaitEvent(tc_stream(d), x->done[copy % 2][copy / 2 % EVENTS], 0),
               "asynchronous copy");
}

/* May be called by another thread: the device's own error is not changed, and the thread's current GPU, which is
 * GPU 0 until it is set, must be set before CUDA creates a context for it. */
int tc_cuda_copy_wait(struct tc_device *d, int64_t copy)
{
  const struct tc_copies *x = tc_cuda_of(d)->copies;
  if (__atomic_load_n(&x->failed, __ATOMIC_ACQUIRE)) return TC_EUSER;
  if (cudaSetDevice(tc_cuda_of(d)->index) != cudaSuccess) return TC_EUSER;
  return cudaEventSynchronize(x->done[copy % 2][copy / 2 % EVENTS]) == cudaSuccess ? 0 : TC_EUSER;
}

/* ---- turns: tasks of several streams, one after the other ------------------------------------ */

/* turns[t] is the end of the last task of turn t. They live as long as the device, since others wait for them. */
cudaError_t tc_cuda_turn_new(struct tc_device *d, int *turn)
{
  struct tc_cuda *x = tc_cuda_of(d);
  TC_ASSERT(x->n_turns < TC_TURNS);
  const cudaError_t e = cudaEventCreateWithFlags(&x->turns[x->n_turns], cudaEventDisableTiming);
  if (e == cudaSuccess) *turn = x->n_turns++;
  return e;
}

cudaError_t tc_cuda_turn_wait(struct tc_device *d, cudaStream_t stream, int turn, int beside)
{
  const struct tc_cuda *x = tc_cuda_of(d);
  cudaError_t e = cudaSuccess;
  for (int i = 0; i < x->n_turns && e == cudaSuccess; i++)
    if (i != turn && i != beside) e = cudaStreamWaitEvent(stream, x->turns[i], 0);
  return e;
}

cudaError_t tc_cuda_turn_end(struct tc_device *d, cudaStream_t stream, int turn)
{
  return turn < 0 ? cudaSuccess : cudaEventRecord(tc_cuda_of(d)->turns[turn], stream);
}

/* ---- timing ------------------------------------------------------------------------------- */

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
