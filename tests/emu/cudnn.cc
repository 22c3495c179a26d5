/* cudnn.cc - stands in for tercio-cudnn.so (kernels/cudnn/attention.h) on emulated GPUs: plain loops on device memory,
 * in the stream's order. Sums run from the last key to the first, so its bits are not our kernels'; lse has cuDNN's
 * order, [batch, heads, length].
 *
 * TC_EMU_CUDNN: "none" refuses to open, "none1" on GPU 1 alone; "old": version 9.18.0; "refuse": there are no
 * plans, and CUDA has an error; "fail": a plan does not run; "launch": nor here, which CUDA alone says. */
#include "kernels/cudnn/attention.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

/* Of tercio-cuda.so, which has opened this one: it is in the same folder (runtime.cc). */
typedef void emu_enqueue_fn(void *stream, void (*body)(const void *), const void *args, size_t bytes);
typedef int emu_device_fn(void *stream);
typedef void emu_leave_error_fn(void);

struct tc_cudnn { void *stream; emu_enqueue_fn *enqueue; emu_leave_error_fn *leave_error; };
struct tc_cudnn_plan { tc_cudnn *of; tc_cudnn_shape shape; };

static bool is_set(const char *what)
{
  const char *env = getenv("TC_EMU_CUDNN");
  return env && !strcmp(env, what);
}

static int64_t library(void) { return is_set("old") ? 91800 : 91900; }

static void *emulator(void)
{
  Dl_info info;
  if (!dladdr((void *)&library, &info)) return NULL;
  std::string path = info.dli_fname;
  return dlopen((path.substr(0, path.rfind('/') + 1) + "tercio-cuda.so").c_str(), RTLD_NOW | RTLD_NOLOAD);
}

static tc_cudnn *open(void *stream, const char *gpu, char *why, size_t size)
{
  void *lib = emulator();
  emu_device_fn *device = lib ? (emu_device_fn *)dlsym(lib, "emu_device") : NULL;
  if (gpu || !device || is_set("none") || (is_set("none1") && device(stream) == 1)) {
    snprintf(why, size, "the emulated cuDNN is not there");
    return NULL;
  }
  return new tc_cudnn{ stream, (emu_enqueue_fn *)dlsym(lib, "emu_enqueue"),
                       (emu_leave_error_fn *)dlsym(lib, "emu_leave_error") };
}
static void close(tc_cudnn *c) { delete c; }

static tc_cudnn_plan *plan(tc_cudnn *c, const tc_cudnn_shape *s, char *why, size_t size)
{
  if (!is_set("refuse")) return new tc_cudnn_plan{ c, *s };
  c->leave_error();
  snprintf(why, size, "the emulated cuDNN refuses [%lld, %lld, %lld, %lld]", (long long)s->batch, (long long)s->heads,
           (long long)s->length, (long long)s->size);
  return NULL;
}
static void free_plan(tc_cudnn_plan *p) { delete p; }

/* Sums of a row each, behind as much that is not used: all of it is more than our kernels ask for. */
static int64_t rows(const tc_cudnn_shape &s) { return s.batch * s.heads * s.length; }
static int64_t workspace(const tc_cudnn_plan *p, int) { return 2 * rows(p->shape) * 4; }

/* ---- what it computes ---------------------------------------------------------------------- */

struct work {
  tc_cudnn_shape s;
  const uint16_t *qkv, *y, *dy;
  uint16_t *out;                 /* y, or dqkv */
  float *lse, *sums;              /* sums: in the workspace */
};

static float get(uint16_t h)
{
  const uint32_t u = (uint32_t)h << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
static uint16_t put(float f)
{
  uint32_t u;
  memcpy(&u, &f, 4);
  return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/* Element 0 of part (0: query, 1: key, 2: value) of a token's head. */
static int64_t three(const tc_cudnn_shape &s, int64_t b, int64_t t, int64_t h, int part)
{
  return (((b * s.length + t) * s.heads + h) * 3 + part) * s.size;
}
static int64_t one(const tc_cudnn_shape &s, int64_t b, int64_t t, int64_t h)
{
  return ((b * s.length + t) * s.heads + h) * s.size;
}
static float dot(const uint16_t *a, const uint16_t *b, int64_t n)
{
  float sum = 0;
  for (int64_t i = n; i-- > 0;) sum += get(a[i]) * get(b[i]);
  return sum;
}

template <class F> static void each_head(const tc_cudnn_shape &s, F body)
{
  for (int64_t b = 0; b < s.batch; b++)
    for (int64_t h = 0; h < s.heads; h++) body(b, h);
}

static void run_forward(const void *args)
{
  const work &w = *(const work *)args;
  const tc_cudnn_shape &s = w.s;
  std::vector<float> p((size_t)s.length), y((size_t)s.size);
  each_head(s, [&](int64_t b, int64_t h) {
    for (int64_t t = 0; t < s.length; t++) {
      float most = -INFINITY, sum = 0;
      for (int64_t k = t + 1; k-- > 0;) {
        p[k] = s.scale * dot(w.qkv + three(s, b, t, h, 0), w.qkv + three(s, b, k, h, 1), s.size);
        most = fmaxf(most, p[k]);
      }
      y.assign((size_t)s.size, 0.f);
      for (int64_t k = t + 1; k-- > 0;) {
        const float e = expf(p[k] - most);
        sum += e;
        for (int64_t i = 0; i < s.size; i++) y[i] += e * get(w.qkv[three(s, b, k, h, 2) + i]);
      }
      for (int64_t i = 0; i < s.size; i++) w.out[one(s, b, t, h) + i] = put(y[i] / sum);
      const int64_t row = (b * s.heads + h) * s.length + t;
      w.sums[row] = sum;
      w.lse[row] = most + logf(w.sums[row]);
    }
  });
}

static void run_backward(const void *args)
{
  const work &w = *(const work *)args;
  const tc_cudnn_shape &s = w.s;
  const size_t n = (size_t)(s.length * s.size);
  each_head(s, [&](int64_t b, int64_t h) {
    std::vector<float> d[3] = { std::vector<float>(n), std::vector<float>(n), std::vector<float>(n) };
    for (int64_t t = s.length; t-- > 0;) {
      const int64_t row = (b * s.heads + h) * s.length + t;
      w.sums[row] = dot(w.dy + one(s, b, t, h), w.y + one(s, b, t, h), s.size);
      for (int64_t k = t + 1; k-- > 0;) {
        const uint16_t *q = w.qkv + three(s, b, t, h, 0), *key = w.qkv + three(s, b, k, h, 1);
        const uint16_t *dy = w.dy + one(s, b, t, h);
        const float p = expf(s.scale * dot(q, key, s.size) - w.lse[row]);
        const float ds = s.scale * p * (dot(dy, w.qkv + three(s, b, k, h, 2), s.size) - w.sums[row]);
        for (int64_t i = 0; i < s.size; i++) {
          d[0][t * s.size + i] += ds * get(key[i]);
          d[1][k * s.size + i] += ds * get(q[i]);
          d[2][k * s.size + i] += p * get(dy[i]);
        }
      }
    }
    for (int64_t t = 0; t < s.length; t++)
      for (int part = 0; part < 3; part++)
        for (int64_t i = 0; i < s.size; i++) w.out[three(s, b, t, h, part) + i] = put(d[part][t * s.size + i]);
  });
}

/* ---- calls --------------------------------------------------------------------------------- */

static int enqueue(tc_cudnn_plan *p, void (*body)(const void *), const work &w, char *why, size_t size)
{
  if (is_set("fail")) {
    snprintf(why, size, "the emulated cuDNN fails");
    return -1;
  }
  if (is_set("launch")) p->of->leave_error();
  else p->of->enqueue(p->of->stream, body, &w, sizeof w);
  return 0;
}

static int forward(tc_cudnn_plan *p, const void *qkv, void *y, float *lse, void *workspace, char *why, size_t size)
{
  const work w = { p->shape, (const uint16_t *)qkv, NULL, NULL, (uint16_t *)y, lse,
                   (float *)workspace + rows(p->shape) };
  return enqueue(p, run_forward, w, why, size);
}

static int backward(tc_cudnn_plan *p, const void *dy, const void *qkv, const void *y, const float *lse, void *dqkv,
                    void *workspace, char *why, size_t size)
{
  const work w = { p->shape, (const uint16_t *)qkv, (const uint16_t *)y, (const uint16_t *)dy, (uint16_t *)dqkv,
                   (float *)lse, (float *)workspace + rows(p->shape) };
  return enqueue(p, run_backward, w, why, size);
}

extern "C" __attribute__((visibility("default"))) const tc_cudnn_ops tc_cudnn_attention = {
  TC_CUDNN_VERSION, library, open, close, plan, free_plan, workspace, forward, backward
};
