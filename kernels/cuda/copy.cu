/* copy.cu - asynchronous copies: a stream for each direction, and events.
 *
 * A copy waits for an event in the kernels' stream, recorded after all earlier calls, unless it is an early one; another
 * event is recorded at its end. Events are reused in turn: a later copy in the same
 * direction ends later, so waiting for an event that was reused waits for too much,
 * never for too little. A copy's number encodes its direction: odd ones go to the host. */
#include "kernels/cuda/dev.h"

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
