/* views.h - tensors for tests of kernels: any type read and written as double, and a guard behind the memory. */
#ifndef TC_TEST_VIEWS_H
#define TC_TEST_VIEWS_H

#include "kernels/kernel.h"
#include "tests/unit/random.h"
#include "tests/unit/tap.h"

enum { GUARD = 64 };

static void (*opened)(struct tc_device *d);      /* is called with each device; NULL: nothing is */

static inline struct tc_device *dev(const char *name, int threads)
{
  struct tc_err err = { 0 };
  struct tc_device *d = NULL;
  if (tc_device_open(&d, name, threads, &err) < 0) {
    printf("Bail out! %s\n", err.text);
    exit(1);
  }
  if (opened) opened(d);
  return d;
}

static inline double get(const struct tc_view *v, int64_t i)
{
  switch (v->dtype) {
  case TC_F32: return (double)((float *)v->data)[i];
  case TC_F64: return ((double *)v->data)[i];
  case TC_BF16: return (double)tc_bf16_to_f32(((uint16_t *)v->data)[i]);
  default: return ((int32_t *)v->data)[i];
  }
}

static inline void put(const struct tc_view *v, int64_t i, double x)
{
  switch (v->dtype) {
  case TC_F32: ((float *)v->data)[i] = (float)x; break;
  case TC_F64: ((double *)v->data)[i] = x; break;
  case TC_BF16: ((uint16_t *)v->data)[i] = tc_f32_to_bf16((float)x); break;
  default: ((int32_t *)v->data)[i] = (int32_t)x;
  }
}

/* A tensor without memory; dims end at -1. */
static inline struct tc_view tensor(int dtype, const int64_t *dim)
{
  struct tc_view v = { .dtype = (uint8_t)dtype, .rows = -1, .elems = 1 };
  for (; dim[v.rank] >= 0; v.rank++) {
    v.dim[v.rank] = v.global[v.rank] = dim[v.rank];
    v.elems *= dim[v.rank];
  }
  return v;
}
#define DIMS(...) (const int64_t[]){ __VA_ARGS__, -1 }
#define SCALAR (const int64_t[]){ -1 }

/* Gives it memory, which the caller frees: NaN, so that what is read before it is written shows; the guard behind
 * it. */
static inline void back(struct tc_view *v)
{
  size_t bytes = (size_t)v->elems * tc_dtype_bytes(v->dtype);
  v->data = aligned_alloc(64, (size_t)tc_round_up((int64_t)bytes + GUARD, 64));
  memset(v->data, 0xff, bytes);
  memset((char *)v->data + bytes, 0xa5, GUARD);
}

static inline struct tc_view owned(int dtype, const int64_t *dim)
{
  struct tc_view v = tensor(dtype, dim);
  back(&v);
  return v;
}

static inline bool guard_holds(const struct tc_view *v)
{
  const unsigned char *p = (unsigned char *)v->data + (size_t)v->elems * tc_dtype_bytes(v->dtype);
  for (int i = 0; i < GUARD; i++)
    if (p[i] != 0xa5) return false;
  return true;
}

/* Runs a call on a device of the host's memory, with scratch memory of NaN; its outputs are owned. */
static inline void run_guarded(struct tc_device *d, struct tc_call *c)
{
  const struct tc_kernel *k = &d->ops->kernel[c->op];
  struct tc_view scratch = owned(TC_U8, DIMS(k->scratch ? k->scratch(d, c) : 0));
  struct tc_err err = { 0 };
  c->scratch = scratch.data;
  bool good = (!k->prepare || k->prepare(d, c, &err) == 0) && k->run(d, c) == 0 && guard_holds(&scratch);
  if (k->unprepare) k->unprepare(d, c);
  for (int i = 0; i < c->n_out; i++) good = good && guard_holds(&c->out[i]);
  if (!good) ok(false, "%s runs, and writes nothing but its outputs and its scratch %s", tc_op_info[c->op].name, err.text);
  free(scratch.data);
}

#endif
