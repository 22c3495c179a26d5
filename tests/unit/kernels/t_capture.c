/* t_capture.c - calls that the CUDA device keeps as a graph: replayed in later steps they do what the
 * same calls do then, bit for bit; while they are captured nothing runs; what can't be captured is
 * refused, and the device goes on. On the emulated GPU, or a real one with TC_TEST_GPU=yes. */
#include "kernels/kernel.h"
#include "tests/unit/tap.h"

#include <stdlib.h>
#include <string.h>

enum { ELEMS = 3000, BYTES = ELEMS * 4, TENSORS = 7 };
enum { GRAD, NORM, SCALE, WEIGHT, M, V, DROPPED };     /* of the memory; NORM and SCALE have one element */

static struct tc_device *cuda;

static struct tc_runtime at_step(int64_t step)
{
  return (struct tc_runtime){ .seed = 7 + (uint64_t)step / 3, .step = step, .lr = 1e-2f / (float)step,
                              .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f,
                              .clip = step == 2 ? 3.f : 1.f, .loss_scale = step == 3 ? 2.f : 0 };
}

/* What a step is: the norm of the gradient, the clip, dropout of the gradient, the update with it. */
static int step(char *memory, void *scratch, const struct tc_runtime *rt)
{
  struct tc_view v[TENSORS];
  int rc = 0;
  for (int i = 0; i < TENSORS; i++) {
    const int64_t n = i == NORM || i == SCALE ? 1 : ELEMS;
    v[i] = (struct tc_view){ .data = memory + (int64_t)i * BYTES, .dtype = TC_F32, .rank = 1, .rows = -1,
                             .dim = { n }, .global = { n }, .elems = n };
  }
  struct call { int op, n_in, n_out; struct tc_view view[8]; } call[] = {
    { TC_OP_SQNORM, 1, 1, { v[GRAD], v[NORM] } },
    { TC_OP_CLIP, 1, 2, { v[NORM], v[NORM], v[SCALE] } },
    { TC_OP_DROPOUT, 1, 1, { v[GRAD], v[DROPPED] } },
    { TC_OP_ADAMW, 5, 3, { v[DROPPED], v[SCALE], v[WEIGHT], v[M], v[V], v[WEIGHT], v[M], v[V] } },
    { TC_OP_SGD, 3, 1, { v[DROPPED], v[SCALE], v[WEIGHT], v[WEIGHT] } },
    { TC_OP_MOMENTUM, 4, 2, { v[DROPPED], v[SCALE], v[WEIGHT], v[M], v[WEIGHT], v[M] } },
    { TC_OP_LION, 4, 2, { v[DROPPED], v[SCALE], v[WEIGHT], v[M], v[WEIGHT], v[M] } },
  };
  for (int i = 0; i < (int)(sizeof call / sizeof *call) && rc == 0; i++) {
    struct tc_call c = { .op = call[i].op, .n_in = call[i].n_in, .n_out = call[i].n_out, .rt = rt,
                         .in = call[i].view, .out = call[i].view + call[i].n_in, .scratch = scratch,
                         .f = { call[i].op == TC_OP_DROPOUT ? 0.3f : 1.f, 1.f }, .k = { 5 } };
    rc = cuda->ops->kernel[c.op].run(cuda, &c);
  }
  return rc;
}

static void fill(char *memory)
{
  float *host = calloc(TENSORS, BYTES);
  for (int i = 0; i < ELEMS; i++) {
    host[GRAD * ELEMS + i] = (float)(i % 17 - 8) / 64;
    host[WEIGHT * ELEMS + i] = (float)(i % 23 - 11) / 16;
  }
  cuda->ops->copy(cuda, memory, host, (int64_t)TENSORS * BYTES);
  free(host);
}

static bool same(const char *a, const char *b)
{
  char *host = malloc(2 * TENSORS * BYTES);
  cuda->ops->copy(cuda, host, a, (int64_t)TENSORS * BYTES);
  cuda->ops->copy(cuda, host + (size_t)TENSORS * BYTES, b, (int64_t)TENSORS * BYTES);
  const bool is = !memcmp(host, host + (size_t)TENSORS * BYTES, (size_t)TENSORS * BYTES);
  free(host);
  return is;
}

static void replays(char *walked, char *kept, char *before, void *scratch)
{
  const struct tc_capture *o = cuda->ops->capture;
  struct tc_err err = { 0 };
  void *list = NULL;
  struct tc_runtime rt = at_step(1);
  fill(walked);
  fill(kept);
  fill(before);
  ok(step(walked, scratch, &rt) == 0 && step(kept, scratch, &rt) == 0 && same(walked, kept)
         && !same(walked, before), "a step, twice");
  cuda->ops->copy(cuda, before, kept, (int64_t)TENSORS * BYTES);
  rt = at_step(2);
  ok(o->begin(cuda, &rt, &err) == 0 && step(kept, scratch, &rt) == 0
         && o->end(cuda, &list, &err) == 0 && list, "captured: %s", *err.text ? err.text : "a list");
  ok(same(kept, before), "... and not run");
  for (int s = 2; s <= 6; s++) {
    rt = at_step(s);
    ok(o->replay(cuda, list, &rt) == 0 && step(walked, scratch, &rt) == 0 && same(walked, kept)
           && !same(walked, before), "step %d: replayed, the same bits as called", s);
    cuda->ops->copy(cuda, before, walked, (int64_t)TENSORS * BYTES);
  }
  o->free(cuda, list);
  ok(tc_device_check(cuda, &err) == 0, "no errors");
}

static void refusals(char *walked, char *kept, void *scratch)
{
  const struct tc_capture *o = cuda->ops->capture;
  struct tc_err err = { 0 };
  struct tc_runtime rt = at_step(3);
  void *list = NULL;
  char host[64];
  ok(o->begin(cuda, &rt, &err) == 0, "a capture");
  step(kept, scratch, &rt);
  cuda->ops->copy(cuda, host, kept, sizeof host);
  ok(o->end(cuda, &list, &err) == TC_EUSER && !list && *err.text,
     "... with a copy to the host in it is refused: %s", err.text);
  fill(walked);
  fill(kept);
  ok(tc_device_check(cuda, &err) == 0 && step(walked, scratch, &rt) == 0
         && step(kept, scratch, &rt) == 0 && same(walked, kept), "... and the device goes on");
  cuda->ops->copy(cuda, walked, kept, (int64_t)TENSORS * BYTES);
  ok(o->begin(cuda, &rt, &err) == 0 && step(kept, scratch, &rt) == 0
         && o->end(cuda, NULL, &err) == 0 && same(walked, kept), "a capture that is forgotten");
}

int main(void)
{
  const char *gpu = getenv("TC_TEST_GPU"), *folder = getenv("TC_EMU_MODULES");
  struct tc_err err = { 0 };
  if (!gpu || !*gpu) {
    if (!folder || !*folder) skip_all("no C++ compiler to build the emulated kernels with");
    setenv("TERCIO_MODULES", folder, 1);
  }
  if (tc_device_open(&cuda, "cuda", 1, &err) < 0) {
    printf("Bail out! %s\n", err.text);
    return 1;
  }
  char *memory[3];
  for (int i = 0; i < 3; i++) memory[i] = cuda->ops->alloc(cuda, (int64_t)TENSORS * BYTES);
  void *scratch = cuda->ops->alloc(cuda, 1 << 20);
  replays(memory[0], memory[1], memory[2], scratch);
  refusals(memory[0], memory[1], scratch);
  for (int i = 0; i < 3; i++) cuda->ops->free(cuda, memory[i], (int64_t)TENSORS * BYTES);
  cuda->ops->free(cuda, scratch, 1 << 20);
  tc_device_close(cuda);
  return done_testing();
}
