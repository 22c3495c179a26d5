/* clock.cu - times of the GPU's own: events in the stream of the kernels, by number. They are
 * made as they are needed and kept. CUDA counts in half microseconds. */
#include "kernels/cuda/dev.h"

enum { MOST = 1 << 16, CHUNK = 256 };

struct tc_stamps {
  cudaEvent_t *event[MOST / CHUNK];              /* [CHUNK] each */
  int32_t made, n;
};

void tc_cuda_stamps_free(struct tc_device *d)
{
  struct tc_stamps *x = tc_cuda_of(d)->stamps;
  if (!x) return;
  for (int32_t i = 0; i < x->made; i++) cudaEventDestroy(x->event[i / CHUNK][i % CHUNK]);
  for (int32_t i = 0; i < MOST / CHUNK; i++) free(x->event[i]);
  free(x);
  tc_cuda_of(d)->stamps = NULL;
}

static cudaEvent_t *event_at(struct tc_stamps *x, int32_t i)
{
  cudaEvent_t **chunk = &x->event[i / CHUNK];
  if (!*chunk) *chunk = (cudaEvent_t *)tc_calloc(CHUNK, sizeof **chunk);
  return &(*chunk)[i % CHUNK];
}

static int32_t stamp(struct tc_device *d)
{
  struct tc_cuda *c = tc_cuda_of(d);
  if (!c->stamps) c->stamps = (struct tc_stamps *)tc_calloc(1, sizeof *c->stamps);
  struct tc_stamps *x = c->stamps;
  if (x->n == MOST) return -1;
  cudaError_t e = cudaSuccess;
  cudaEvent_t *at = event_at(x, x->n);
  if (x->n == x->made) {
    e = cudaEventCreateWithFlags(at, cudaEventDefault);
    x->made += e == cudaSuccess;
  }
  if (e == cudaSuccess) e = cudaEventRecord(*at, c->stream);
  return tc_cuda_said(d, e, "a time stamp") < 0 ? -1 : x->n++;
}

static int64_t lapse(struct tc_device *d, int32_t from, int32_t to)
{
  struct tc_stamps *x = tc_cuda_of(d)->stamps;
  float ms = 0;
  if (from < 0 || to < 0) return 0;
  TC_ASSERT(x && from < x->n && to < x->n);
  if (tc_cuda_said(d, cudaEventElapsedTime(&ms, *event_at(x, from), *event_at(x, to)),
                   "time stamps") < 0) return 0;
  return (int64_t)((double)ms * 1e6);
}

static void restart(struct tc_device *d)
{
  if (tc_cuda_of(d)->stamps) tc_cuda_of(d)->stamps->n = 0;
}

extern const struct tc_clock tc_cuda_clock = { stamp, lapse, restart };
