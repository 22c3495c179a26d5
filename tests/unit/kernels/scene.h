/* scene.h - calls that share tensors, for tests of what a device does as one: t_kernels_fused.c and
 * t_kernels_xent.c.
 *
 * All tensors of a case lie in one piece of memory, which exists three times: for ref, for the
 * device's single kernels and for the fused call. On the emulated GPU, or a real one with
 * TC_TEST_GPU=yes. */
#ifndef TC_TEST_SCENE_H
#define TC_TEST_SCENE_H

#include "kernels/kernel.h"
#include "tests/unit/kernels/load.h"
#include "tests/unit/random.h"
#include "tests/unit/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POOL_BYTES = 4 << 20, VIEWS = 8, PARTS = 160 };

struct part { struct tc_call c; struct tc_view v[VIEWS]; };
struct scene {
  char *at;                      /* the memory that the views are in */
  int64_t used;
  int n;
  bool can;                      /* the last run's: the device fuses these */
  bool asked;                    /* it has said so before, and is not asked again */
  struct part part[PARTS];
  struct tc_runtime rt;
};

static struct tc_device *ref, *cuda;
static float get(const struct tc_view *v, int64_t i)
{
  return v->dtype == TC_BF16 ? tc_bf16_to_f32(((uint16_t *)v->data)[i]) : ((float *)v->data)[i];
}

static void clear(struct scene *s)
{
  memset(s->at, 0x5a, POOL_BYTES);
  s->used = s->n = 0;
  s->rt = (struct tc_runtime){ .seed = 7, .step = 3, .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f,
                               .eps = 1e-8f, .weight_decay = 0.1f, .clip = 1 };
}

/* A tensor of `elems` as [elems / cols, cols], filled with numbers around 0 (or above it). */
static struct tc_view tensor(struct scene *s, int dtype, int64_t elems, int64_t cols, bool positive)
{
  struct tc_view v = { .dtype = (uint8_t)dtype, .rank = 2, .rows = -1, .elems = elems };
  v.data = s->at + s->used;
  v.dim[0] = v.global[0] = elems / cols, v.dim[1] = v.global[1] = cols;
  s->used += tc_round_up(elems * (int64_t)tc_dtype_bytes(dtype) + 64, 64);
  TC_ASSERT(s->used <= POOL_BYTES);
  for (int64_t i = 0; i < elems; i++) {
    const float x = (float)(positive ? uniform() + 0.1 : 4 * uniform() - 2);
    if (dtype == TC_BF16) ((uint16_t *)v.data)[i] = tc_f32_to_bf16(x);
    else ((float *)v.data)[i] = x;
  }
  return v;
}

/* A call of `n_in` + `n_out` views, which are given in that order. */
static struct tc_call *call(struct scene *s, int op, int n_in, int n_out, const struct tc_view *v)
{
  struct part *p = &s->part[s->n++];
  memset(p, 0, sizeof *p);
  memcpy(p->v, v, (size_t)(n_in + n_out) * sizeof *v);
  p->c = (struct tc_call){ .op = op, .n_in = n_in, .n_out = n_out, .rt = &s->rt };
  p->c.in = p->v, p->c.out = p->v + n_in;
  return &p->c;
}
#define VIEW(...) (const struct tc_view[]){ __VA_ARGS__ }

static void move_views(struct scene *s, char *from, char *to)
{
  for (int i = 0; i < s->n; i++)
    for (int k = 0; k < s->part[i].c.n_in + s->part[i].c.n_out; k++)
      s->part[i].v[k].data = to + ((char *)s->part[i].v[k].data - from);
}

/* Runs the parts on d, fused or one by one; the memory as it is then. NULL: it can't be fused. */
static char *run(struct scene *s, struct tc_device *d, bool fused)
{
  const struct tc_call *part[PARTS];
  struct tc_err err = { 0 };
  char *there = d->ops->alloc(d, POOL_BYTES), *result = malloc(POOL_BYTES), *scratch = NULL;
  int64_t scratch_bytes = 64;
  bool good = true;
  d->ops->copy(d, there, s->at, POOL_BYTES);
  move_views(s, s->at, there);
  for (int i = 0; i < s->n; i++) {
    struct tc_call *c = &s->part[i].c;
    const struct tc_kernel *k = &d->ops->kernel[c->op];
    part[i] = c;
    if (k->prepare) good &= k->prepare(d, c, &err) == 0;
    if (k->scratch) scratch_bytes = TC_MAX(scratch_bytes, k->scratch(d, c));
  }
  const bool can = s->can = !fused || s->asked || d->ops->fused->can(d, part, s->n);
  if (fused && can) scratch_bytes = TC_MAX(scratch_bytes, d->ops->fused->scratch(d, part, s->n));
  scratch = d->ops->alloc(d, scratch_bytes);
  for (int i = 0; i < s->n; i++) s->part[i].c.scratch = scratch;
  if (fused && can) good &= d->ops->fused->run(d, part, s->n) == 0;
  for (int i = 0; i < s->n && !fused; i++) good &= d->ops->kernel[part[i]->op].run(d, part[i]) == 0;
  d->ops->sync(d);
  good &= tc_device_check(d, &err) == 0;
  if (!good) printf("# %s\n", err.text);
  d->ops->copy(d, result, there, POOL_BYTES);
  for (int i = 0; i < s->n; i++)
    if (d->ops->kernel[part[i]->op].unprepare)
      d->ops->kernel[part[i]->op].unprepare(d, &s->part[i].c);
  move_views(s, there, s->at);
  d->ops->free(d, scratch, scratch_bytes);
  d->ops->free(d, there, POOL_BYTES);
  if (good && can) return result;
  free(result);
  return NULL;
}

/* The largest difference of view v between two memories, over the largest element. */
static double difference(const struct scene *s, const struct tc_view *v, char *a, char *b)
{
  struct tc_view x = *v, y = *v;
  double worst = 0, most = 1e-30;
  x.data = a + ((char *)v->data - s->at), y.data = b + ((char *)v->data - s->at);
  for (int64_t i = 0; i < v->elems; i++) {
    const double want = (double)get(&y, i), d = fabs((double)get(&x, i) - want);
    worst = d > worst || !(d == d) ? d : worst;
    most = fabs(want) > most ? fabs(want) : most;
  }
  return worst / most;
}

/* Bytes that no part writes are the same in both. */
static bool rest_is_same(const struct scene *s, const char *a, const char *b)
{
  char *mine = calloc(1, POOL_BYTES);
  bool same = true;
  for (int i = 0; i < s->n; i++)
    for (int k = 0; k < s->part[i].c.n_out; k++) {
      const struct tc_view *v = &s->part[i].c.out[k];
      memset(mine + ((char *)v->data - s->at), 1, (size_t)v->elems * tc_dtype_bytes(v->dtype));
    }
  for (int64_t i = 0; i < POOL_BYTES; i++) same &= mine[i] || a[i] == b[i];
  free(mine);
  return same;
}

static bool on_gpu(void)
{
  const char *gpu = getenv("TC_TEST_GPU");
  return gpu && *gpu;
}

/* On a GPU the library says which products it has. */
static bool is_library_s(const struct scene *s)
{
  return on_gpu() && (s->part[0].c.op == TC_OP_MATMUL || s->part[1].c.op == TC_OP_MATMUL);
}

/* Fused on the device beside ref, one by one. `unread`: an output of part 0 that may be anything. */
__attribute__((unused)) static void check_product(struct scene *s, bool unread, double tol, const char *what)
{
  char *want = run(s, ref, false), *got = run(s, cuda, true);
  if (is_library_s(s) && !s->can) {
    skip("%s: cuBLASLt has none, or one that leaves the GPU idle", what);
  } else if (ok(want && got, "%s: runs", what)) {
    double worst = 0;
    for (int i = unread; i < s->n; i++) {
      const double d = difference(s, &s->part[i].c.out[0], got, want);
      worst = d > worst || !(d == d) ? d : worst;
    }
    ok(worst <= tol, "%s: as ref's, one by one (%.1e)", what, worst);
    ok(rest_is_same(s, got, s->at), "%s: writes nothing else", what);
  }
  free(want);
  free(got);
}

/* Both devices and an empty scene; ends the test where they are not there. */
static struct scene *scene_new(void)
{
  const char *folder = getenv("TC_EMU_MODULES");
  struct tc_err err = { 0 };
  struct scene *s = calloc(1, sizeof *s);
  if (!on_gpu()) {
    if (!folder || !*folder) skip_all("no C++ compiler to build the emulated kernels with");
    setenv("TERCIO_MODULES", folder, 1);
    load_kernels();
  }
  s->at = aligned_alloc(64, POOL_BYTES);
  if (tc_device_open(&ref, "ref", 1, &err) < 0 || tc_device_open(&cuda, "cuda", 1, &err) < 0) {
    printf("Bail out! %s\n", err.text);
    exit(1);
  }
  return s;
}

static void scene_free(struct scene *s)
{
  tc_device_close(cuda);
  tc_device_close(ref);
  free(s->at);
  free(s);
}

/* A CUDA device with nothing prepared; without one the test ends. */
static inline struct tc_device *fresh_cuda(void)
{
  struct tc_device *d = NULL;
  struct tc_err err = { 0 };
  if (tc_device_open(&d, "cuda", 1, &err) < 0) {
    printf("Bail out! %s\n", err.text);
    exit(1);
  }
  return d;
}

#endif
