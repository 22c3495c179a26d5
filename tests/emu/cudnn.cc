/* cudnn.cc - stands in for tercio-cudnn.so (kernels/cudnn/attention.h) on emulated GPUs: plain loops on device memory,
 * in the stream's order. Sums run from the last key to the first, so its bits are not our kernels'; lse has cuDNN's
 * order, [batch, groups, queries, length].
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
  snprintf(why, size, "the emulated cuDNN refuses [%lld, %lld, %lld, %lld, %lld]", (long long)s->batch,
           (long long)s->groups, (long long)s->queries, (long long)s->length, (long long)s->size);
  return NULL;
}
static void free_plan(tc_cudnn_plan *p) { delete p; }

/* Sums of a row each, behind as much that is not used: all of it is more than our kernels ask for. */
static int64_t rows(const tc_cudnn_shape &s) { return s.batch * s.groups * s.queries * s.length; }
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

/* Group k of sequence b. Element 0 in qkv of a token's part p: its queries, key, value; in y, of query g. */
struct group { int64_t b, k; };
static int64_t in_qkv(const tc_cudnn_shape &s, group at, int64_t t, int64_t p)
{
  return (((at.b * s.length + t) * s.groups + at.k) * (s.queries + 2) + p) * s.size;
}
static int64_t in_y(const tc_cudnn_shape &s, group at, int64_t t, int64_t g)
{
  return (((at.b * s.length + t) * s.groups + at.k) * s.queries + g) * s.size;
}
static int64_t row_of(const tc_cudnn_shape &s, group at, int64_t t, int64_t g)
{
  return ((at.b * s.groups + at.k) * s.queries + g) * s.length + t;
}
static float dot(const uint16_t *a, const uint16_t *b, int64_t n)
{
  float sum = 0;
  for (int64_t i = n; i-- > 0;) sum += get(a[i]) * get(b[i]);
  return sum;
}

template <class F> static void each_group(const tc_cudnn_shape &s, F body)
{
  for (int64_t b = 0; b < s.batch; b++)
    for (int64_t k = 0; k < s.groups; k++) body(group{ b, k });
}

/* Of query g; p [length] and y [size] are room for it. */
static void forward_of(const work &w, group at, int64_t g, std::vector<float> &p, std::vector<float> &y)
{
  const tc_cudnn_shape &s = w.s;
  for (int64_t t = 0; t < s.length; t++) {
    float most = -INFINITY, sum = 0;
    for (int64_t k = t + 1; k-- > 0;) {
      p[k] = s.scale * dot(w.qkv + in_qkv(s, at, t, g), w.qkv + in_qkv(s, at, k, s.queries), s.size);
      most = fmaxf(most, p[k]);
    }
    y.assign((size_t)s.size, 0.f);
    for (int64_t k = t + 1; k-- > 0;) {
      const float e = expf(p[k] - most);
      sum += e;
      for (int64_t i = 0; i < s.size; i++) y[i] += e * get(w.qkv[in_qkv(s, at, k, s.queries + 1) + i]);
    }
    for (int64_t i = 0; i < s.size; i++) w.out[in_y(s, at, t, g) + i] = put(y[i] / sum);
    const int64_t row = row_of(s, at, t, g);
    w.sums[row] = sum;
    w.lse[row] = most + logf(w.sums[row]);
  }
}

static void run_forward(const void *args)
{
  const work &w = *(const work *)args;
  std::vector<float> p((size_t)w.s.length), y((size_t)w.s.size);
  each_group(w.s, [&](group at) {
    for (int64_t g = 0; g < w.s.queries; g++) forward_of(w, at, g, p, y);
  });
}

/* d: gradients of a group's queries, key and value, [length, size] each; adds those of query g. */
static void backward_of(const work &w, group at, int64_t g, std::vector<std::vector<float>> &d)
{
  const tc_cudnn_shape &s = w.s;
  for (int64_t t = s.length; t-- > 0;) {
    const int64_t row = row_of(s, at, t, g);
    const uint16_t *q = w.qkv + in_qkv(s, at, t, g), *dy = w.dy + in_y(s, at, t, g);
    w.sums[row] = dot(dy, w.y + in_y(s, at, t, g), s.size);
    for (int64_t k = t + 1; k-- > 0;) {
      const uint16_t *key = w.qkv + in_qkv(s, at, k, s.queries), *value = w.qkv + in_qkv(s, at, k, s.queries + 1);
      const float p = expf(s.scale * dot(q, key, s.size) - w.lse[row]);
      const float ds = s.scale * p * (dot(dy, value, s.size) - w.sums[row]);
      for (int64_t i = 0; i < s.size; i++) {
        d[g][t * s.size + i] += ds * get(key[i]);
        d[s.queries][k * s.size + i] += ds * get(q[i]);
        d[s.queries + 1][k * s.size + i] += p * get(dy[i]);
      }
    }
  }
}

static void run_backward(const void *args)
{
  const work &w = *(const work *)args;
  const tc_cudnn_shape &s = w.s;
  each_group(s, [&](group at) {
    std::vector<std::vector<float>> d((size_t)s.queries + 2, std::vector<float>((size_t)(s.length * s.size)));
    for (int64_t g = s.queries; g-- > 0;) backward_of(w, at, g, d);
    for (int64_t t = 0; t < s.length; t++)
      for (int64_t p = 0; p < s.queries + 2; p++)
        for (int64_t i = 0; i < s.size; i++) w.out[in_qkv(s, at, t, p) + i] = put(d[p][t * s.size + i]);
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
