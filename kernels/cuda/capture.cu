/* capture.cu - calls captured as CUDA graphs, and the values that change between replays.
 *
 * A graph stores its kernels' arguments. Values that change from step to step (the seed, the step, the
 * learning rate) are therefore not arguments: they are in device memory, are written there in the
 * stream's order whenever they have changed, and kernels read them. A captured stream is
 * sequential: no events, no other streams. */
#include "kernels/cuda/dev.h"

static __global__ void set_now(struct tc_now *at, struct tc_now now) { *at = now; }

int tc_cuda_now_new(struct tc_device *d)
{
  struct tc_cuda *x = tc_cuda_of(d);
  cudaError_t e = cudaMalloc((void **)&x->now_at, sizeof *x->now_at);
  if (e == cudaSuccess) e = cudaMemsetAsync(x->now_at, 0, sizeof *x->now_at, x->stream);
  return tc_cuda_check(d, e, "memory for the values of a step");
}

void tc_cuda_now_free(struct tc_device *d)
{
  if (tc_cuda_of(d)->now_at) cudaFree(tc_cuda_of(d)->now_at);
}

/* The constants of a step are computed in double. Loshchilov and Hutter, "Decoupled weight decay
 * regularization", ICLR 2019, as in torch.optim.AdamW. */
const struct tc_now *tc_cuda_now(struct tc_device *d, const struct tc_runtime *rt)
{
  struct tc_cuda *x = tc_cuda_of(d);
  const double b1 = rt->beta1, b2 = rt->beta2, step = (double)rt->step;
  struct tc_now now;
  memset(&now, 0, sizeof now);                   /* the padding between its members, too */
  now.seed = rt->seed, now.step = (uint64_t)rt->step;
  now.decay = (double)rt->lr * (double)rt->weight_decay, now.clip = (double)rt->clip;
  now.loss_scale = tc_loss_scale(rt);
  now.weight_decay = rt->weight_decay;
  now.lr = rt->lr, now.eps = rt->eps, now.momentum = rt->momentum, now.muon_momentum = rt->muon_momentum;
  now.size = (float)((double)rt->lr / (1 - pow(b1, step)));
  now.inv_root = (float)(1 / sqrt(1 - pow(b2, step)));
  now.b1 = rt->beta1, now.b2 = rt->beta2, now.c1 = (float)(1 - b1), now.c2 = (float)(1 - b2);
  if (memcmp(&now, &x->now, sizeof now)) {
    TC_ASSERT(!x->capturing);                    /* begin got other values */
    x->now = now;
    TC_LAUNCH(set_now, dim3(1), dim3(1), 0, x->stream, x->now_at, now);
  }
  return x->now_at;
}

/* ---- graphs -------------------------------------------------------------------------------- */

/* Relaxed, since other threads wait for copies at the same time, and cuBLASLt makes calls of its own. */
static int capture_begin(struct tc_device *d, const struct tc_runtime *rt, struct tc_err *err)
{
  struct tc_cuda *x = tc_cuda_of(d);
  tc_cuda_now(d, rt);
  TC_TRY(d->ops->check(d, err));
  const cudaError_t e = cudaStreamBeginCapture(x->stream, cudaStreamCaptureModeRelaxed);
  x->capturing = e == cudaSuccess;
  if (x->capturing) return 0;
  cudaGetLastError();
  return tc_fail(err, TC_EUSER, "%s", cudaGetErrorString(e));
}

static int capture_end(struct tc_device *d, void **list, struct tc_err *err)
{
  struct tc_cuda *x = tc_cuda_of(d);
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  cudaError_t e = cudaStreamEndCapture(x->stream, &graph);
  x->capturing = false;
  if (e == cudaSuccess) e = cudaGetLastError();
  if (x->error != cudaSuccess) e = x->error;     /* of a captured call: there was none before begin */
  if (e == cudaSuccess && list) e = cudaGraphInstantiateWithFlags(&exec, graph, 0);
  if (graph) cudaGraphDestroy(graph);
  if (list) *list = exec;
  if (e == cudaSuccess) return 0;
  x->error = cudaSuccess;
  cudaGetLastError();
  return tc_fail(err, TC_EUSER, "%s", cudaGetErrorString(e));
}

static int replay(struct tc_device *d, void *list, const struct tc_runtime *rt)
{
  tc_cuda_now(d, rt);
  return tc_cuda_check(d, cudaGraphLaunch((cudaGraphExec_t)list, tc_stream(d)), "captured calls");
}

static void capture_free(struct tc_device *d, void *list)
{
  d->ops->sync(d);
  tc_cuda_check(d, cudaGraphExecDestroy((cudaGraphExec_t)list), "captured calls");
}

extern const struct tc_capture tc_cuda_capture = { capture_begin, capture_end, replay,
                                                   capture_free };

void tc_cuda_load_capture(struct tc_device *d) { tc_load_kernels(d, set_now); }
