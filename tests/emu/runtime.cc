/* runtime.cc - memory, devices, streams and events of the emulated GPUs; see emu.h and
 * cuda_runtime.h here.
 *
 * As on a GPU, a stream's work ends by itself sometime: a query finds work done after a while
 * without any other call (TC_EMU_QUIET_MS, 20), not sooner. TC_EMU_DEVICES says how many GPUs
 * there are, TC_EMU_MEMORY_MB how large each is. */
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <string>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

enum { MAX_DEVICES = 64 };

static std::recursive_mutex big_lock;            /* everything */
static std::condition_variable_any changed;
static thread_local cudaError_t last_error;      /* a sticky error is a thread's own */
static thread_local int current;                 /* device */

std::recursive_mutex &emu_lock(void) { return big_lock; }

cudaError_t emu_fail(cudaError_t e)
{
  if (e != cudaSuccess) last_error = e;
  return e;
}

/* ---- device memory ----------------------------------------------------------------------- */

struct allocation { char *map; size_t map_bytes, bytes; int device; };
static std::map<char *, allocation> memory;
static bool is_open;
static int users;                                /* accesses and calls of emu_advance under way */
static size_t used_bytes[MAX_DEVICES];

static size_t total_bytes(void)
{
  const char *mb = getenv("TC_EMU_MEMORY_MB");
  return (size_t)(mb ? atol(mb) : 16384) << 20;
}

static void protect(int how)
{
  for (auto &a : memory) mprotect(a.second.map, a.second.map_bytes, how);
}

/* Memory is opened by the first task that touches it, and closed when a call's last task is done: between tasks the host
 * does nothing, and the system calls for each of them took most of a run on several GPUs. */
static void close_after_last(void)
{
  if (--users > 0 || !is_open) return;
  protect(PROT_NONE);
  is_open = false;
}

emu_access::emu_access()
{
  big_lock.lock();
  users++;
  if (!is_open) protect(PROT_READ | PROT_WRITE);
  is_open = true;
}

emu_access::~emu_access()
{
  close_after_last();
  big_lock.unlock();
}

static void spoil_capture(cudaStream_t s);

static const allocation *find(const void *p)
{
  auto next = memory.upper_bound((char *)p);
  if (next == memory.begin()) return NULL;
  --next;
  return (char *)p < next->first + next->second.bytes ? &next->second : NULL;
}

static bool passes_end(const void *p, size_t bytes)
{
  auto next = memory.upper_bound((char *)p);
  if (next == memory.begin()) return false;
  --next;
  return (char *)p < next->first + next->second.bytes
         && (char *)p + bytes > next->first + next->second.bytes;
}

int emu_device_of(const void *p)
{
  const allocation *a = find(p);
  return a ? a->device : -1;
}

/* The end lies at a page without access; what is between is poisoned under the sanitizer. */
cudaError_t cudaMalloc(void **p, size_t bytes)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  const size_t page = 4096, need = (bytes + 255) / 256 * 256;
  if (bytes == 0 || used_bytes[current] + need > total_bytes())
    return emu_fail(cudaErrorMemoryAllocation);
  allocation a = { NULL, (need + page - 1) / page * page, bytes, current };
  void *map = mmap(NULL, a.map_bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return emu_fail(cudaErrorMemoryAllocation);
  a.map = (char *)map;
  char *at = a.map + a.map_bytes - need;
  memory[at] = a;
  used_bytes[current] += need;
  mprotect(a.map, a.map_bytes, PROT_READ | PROT_WRITE);
  memset(a.map, 0xff, a.map_bytes);
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(at + bytes, need - bytes);
#endif
  if (!is_open) mprotect(a.map, a.map_bytes, PROT_NONE);
  *p = at;
  return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  if (!p) return cudaSuccess;
  auto it = memory.find((char *)p);
  if (it == memory.end()) return emu_fail(cudaErrorInvalidValue);
  const size_t need = (it->second.bytes + 255) / 256 * 256;
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(p, need);
#endif
  used_bytes[it->second.device] -= need;
  munmap(it->second.map, it->second.map_bytes + 4096);
  memory.erase(it);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
  *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *p ? cudaSuccess : emu_fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *p)
{
  free(p);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  a->type = find(p) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  if (passes_end(dst, bytes) || passes_end(src, bytes)) return emu_fail(cudaErrorInvalidValue);
  if (!find(dst) || !find(src)) spoil_capture(stream);
  emu_push(stream, [=] {
    emu_access open;
    memmove(dst, src, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream)
{
  if (width > dpitch || width > spitch || dpitch > 0x7fffffff || spitch > 0x7fffffff)   /* memPitch */
    return emu_fail(cudaErrorInvalidValue);
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  if (!find(dst) || !find(src)) spoil_capture(stream);
  emu_push(stream, [=] {
    emu_access open;
    for (size_t i = 0; i < height; i++)
      memmove((char *)dst + i * dpitch, (const char *)src + i * spitch, width);
  });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes, cudaStream_t stream)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  if (!find(dst)) emu_stop("cudaMemset of what is not device memory");
  emu_push(stream, [=] {
    emu_access open;
    memset(dst, byte, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  *total = total_bytes();
  *free_bytes = *total - used_bytes[current];
  return cudaSuccess;
}

/* ---- devices ------------------------------------------------------------------------------ */

static int n_devices(void)
{
  const char *n = getenv("TC_EMU_DEVICES");
  const int have = n ? atoi(n) : 1;
  return have < MAX_DEVICES ? have : MAX_DEVICES;
}

int emu_current_device(void) { return current; }

cudaError_t cudaGetDeviceCount(int *n)
{
  *n = n_devices();
  return *n > 0 ? cudaSuccess : emu_fail(cudaErrorNoDevice);
}
cudaError_t cudaDriverGetVersion(int *version)
{
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device)
{
  if (device < 0 || device >= n_devices()) return emu_fail(cudaErrorInvalidDevice);
  current = device;
  return cudaSuccess;
}
/* The emulated GPU i is at bus i + 1. */
cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *bus)
{
  unsigned domain, at;
  if (sscanf(bus, "%x:%x:", &domain, &at) != 2 || (int)at < 1 || (int)at > n_devices())
    return emu_fail(cudaErrorInvalidDevice);
  *device = (int)at - 1;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
  if (device < 0 || device >= n_devices()) return emu_fail(cudaErrorInvalidDevice);
  const char *major = getenv("TC_EMU_CAPABILITY");      /* 8: an A100, say, instead of an H100 */
  const size_t shared = (major && atoi(major) == 8 ? 164 : 228) << 10;
  *p = cudaDeviceProp{ "emulated GPU", { "" }, major ? atoi(major) : 9, 0, 108, shared, shared - 1024 };
  memcpy(p->uuid.bytes, "emulated", 9);
  p->uuid.bytes[15] = (char)device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError(void)
{
  cudaError_t e = last_error;
  last_error = cudaSuccess;
  return e;
}
const char *cudaGetErrorString(cudaError_t e)
{
  switch (e) {
  case cudaSuccess: return "no error";
  case cudaErrorMemoryAllocation: return "out of memory";
  case cudaErrorInvalidConfiguration: return "invalid configuration argument";
  case cudaErrorNoDevice: return "no CUDA-capable device is detected";
  case cudaErrorInvalidDevice: return "invalid device ordinal";
  case cudaErrorInvalidResourceHandle: return "invalid resource handle";
  case cudaErrorNotReady: return "device not ready";
  case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
  case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
  case cudaErrorUnknown: return "unknown error";
  default: return "invalid argument";
  }
}

/* ---- streams and events ------------------------------------------------------------------- */

struct emu_graph { int device; std::deque<std::function<bool()>> tasks; };
struct emu_stream {
  int device;
  emu_graph *capture;             /* NULL: none */
  bool spoiled;                   /* the capture */
  uint64_t pushed, done;
  bool busy;                      /* in emu_advance: waits for itself, if it is asked again */
  std::deque<std::function<bool()>> tasks;
};
struct emu_event {
  emu_stream *stream;             /* NULL: not recorded, so done */
  uint64_t at;
  bool timed;
  std::shared_ptr<int64_t> when_ns;              /* of the last record, once it is done */
};

static std::deque<emu_stream *> streams;         /* kept: events and tasks refer to them */
static int64_t last_call_ns;

static int64_t now_ns(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* With TC_EMU_BLASLT_FAST (cublasLt.h) a GPU's clock shows what its products took, whatever else this machine does. */
static int64_t worked_us[MAX_DEVICES];
void emu_worked(cudaStream_t s, int64_t us) { worked_us[s->device] += us; }
static int64_t device_ns(cudaStream_t s)
{
  return getenv("TC_EMU_BLASLT_FAST") ? worked_us[s->device] * 1000 : now_ns();
}

void emu_changed(void)
{
  last_call_ns = now_ns();
  changed.notify_all();
}

void emu_push_task(cudaStream_t s, std::function<bool()> task)
{
  if (s->capture) {
    s->capture->tasks.push_back(std::move(task));
    return;
  }
  s->tasks.push_back(std::move(task));
  s->pushed++;
  emu_changed();
}

void emu_push(cudaStream_t s, std::function<void()> body)
{
  emu_push_task(s, [=] { body(); return true; });
}

uint64_t emu_pushed(cudaStream_t s) { return s->pushed; }
int emu_stream_device(cudaStream_t s) { return s->device; }
bool emu_is_current(cudaStream_t s) { return s->device == current; }

bool emu_advance(cudaStream_t s, uint64_t to)
{
  if (s->done >= to) return true;
  if (s->busy) return false;
  s->busy = true;
  users++;
  while (s->done < to && s->tasks.front()()) {
    s->tasks.pop_front();
    s->done++;
  }
  close_after_last();
  s->busy = false;
  return s->done >= to;
}

static void complete(cudaStream_t s, uint64_t to)
{
  std::unique_lock<std::recursive_mutex> hold(big_lock);
  while (!emu_advance(s, to)) changed.wait_for(hold, std::chrono::milliseconds(20));
  emu_changed();
}

static int64_t quiet_ns(void)
{
  const char *ms = getenv("TC_EMU_QUIET_MS");
  return (ms ? atol(ms) : 20) * INT64_C(1000000);
}

/* Other streams run first, as far as they can, so that a missing wait shows. */
static cudaError_t look(cudaStream_t s, uint64_t to)
{
  if (s->done < to && now_ns() - last_call_ns > quiet_ns()) {
    for (emu_stream *other : streams)
      if (other != s && other->device == s->device) emu_advance(other, other->pushed);
    if (emu_advance(s, to)) changed.notify_all();
  }
  return s->done >= to ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  *s = new emu_stream();
  (*s)->device = current;
  streams.push_back(*s);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int)
{
  return cudaStreamCreateWithFlags(s, flags);
}
/* What can still be done is done; what waits for ever is no more. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  emu_advance(s, s->pushed);
  s->tasks.clear();
  s->done = s->pushed;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
  if (s->capture) {
    spoil_capture(s);
    return emu_fail(cudaErrorStreamCaptureUnsupported);
  }
  complete(s, s->pushed);
  return cudaSuccess;
}
void emu_call(cudaStream_t s, std::function<void()> body)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  emu_push(s, [=] {
    emu_access open;
    body();
  });
}

/* For tercio-cudnn.so (cudnn.cc), which is a library of its own. */
extern "C" __attribute__((visibility("default"))) void emu_enqueue(void *s, void (*body)(const void *),
                                                                   const void *args, size_t bytes)
{
  const std::string copy((const char *)args, bytes);
  emu_call((cudaStream_t)s, [=] { body(copy.data()); });
}
extern "C" __attribute__((visibility("default"))) void emu_leave_error(void) { emu_fail(cudaErrorInvalidValue); }
extern "C" __attribute__((visibility("default"))) int emu_device(void *s)
{
  return emu_stream_device((cudaStream_t)s);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
  *e = new emu_event();
  (*e)->timed = flags != cudaEventDisableTiming;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
  delete e;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  spoil_capture(s);               /* no error on a GPU, but not what ours are for */
  e->stream = s;
  if (e->timed) {
    auto when = e->when_ns = std::make_shared<int64_t>(0);
    emu_push(s, [=] { *when = device_ns(s); });
  }
  e->at = s->pushed;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  if (!from->when_ns || !to->when_ns) return emu_fail(cudaErrorInvalidResourceHandle);
  if (from->stream->done < from->at || to->stream->done < to->at) return emu_fail(cudaErrorNotReady);
  *ms = (float)((double)(*to->when_ns - *from->when_ns) * 1e-6);
  return cudaSuccess;
}
/* No error on a GPU, but a thread that chose no GPU would take memory of GPU 0 for its calls. */
static void check_thread(cudaEvent_t e)
{
  if (e->stream && e->stream->device != current)
    emu_stop("an event of another GPU than the thread's");
}
cudaError_t cudaEventQuery(cudaEvent_t e)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  check_thread(e);
  return e->stream ? look(e->stream, e->at) : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
  check_thread(e);
  if (e->stream) complete(e->stream, e->at);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  emu_stream *of = e->stream;
  spoil_capture(s);
  const uint64_t at = e->at;      /* as recorded now: a later record changes nothing */
  if (of && of != s) emu_push_task(s, [=] { return emu_advance(of, at); });
  return cudaSuccess;
}

/* ---- graphs ----------------------------------------------------------------------------------- */

static void spoil_capture(cudaStream_t s) { s->spoiled = s->spoiled || s->capture; }

/* For tests: how many tasks came from graphs, at the end of the process. */
static struct replays {
  uint64_t graphs, tasks;
  ~replays()
  {
    FILE *f = getenv("TC_EMU_GRAPHS") ? fopen(getenv("TC_EMU_GRAPHS"), "a") : NULL;
    if (!f) return;
    fprintf(f, "%llu %llu\n", (unsigned long long)graphs, (unsigned long long)tasks);
    fclose(f);
  }
} replays;

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  if (s->capture || getenv("TC_EMU_NO_GRAPHS")) return emu_fail(cudaErrorStreamCaptureUnsupported);
  s->capture = new emu_graph{ s->device, {} };
  s->spoiled = false;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  *g = s->capture;
  s->capture = NULL;
  if (!s->spoiled) return cudaSuccess;
  delete *g;
  *g = NULL;
  return emu_fail(cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
  *x = new emu_graph(*g);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
  std::lock_guard<std::recursive_mutex> hold(big_lock);
  if (x->device != s->device || s->device != current || s->capture)
    emu_stop("a graph of another GPU than the stream's or the thread's, or within a capture");
  replays.graphs++;
  for (auto &task : x->tasks) {
    emu_push_task(s, task);
    replays.tasks++;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
  delete g;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) { return cudaGraphDestroy(x); }
