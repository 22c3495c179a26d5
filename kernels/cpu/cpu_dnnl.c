/* cpu_dnnl.c - products by oneDNN's matmul primitive; the only file that uses oneDNN, and the
 * only one that depends on the change of its C API in 3.0 (TC_DNNL_V3, set by configure).
 *
 * Bias and accumulation are part of the primitive. Primitives and memory objects are made in
 * prepare; run only sets pointers. The scratchpad is the device's, so a plan made on one thread
 * may run on another. Types that oneDNN does not multiply fast here (bf16 without AVX512_BF16
 * or AMX, mixed types) go through fp32 copies in scratch: correct, but slower.
 *
 * Measured, oneDNN 2.6.3, AVX2, GF/s fp32 of the primitive / of dnnl_sgemm, one thread:
 *   m 2048 n 1536 k 384  x W^T  95 / 91      m 1536 n 384 k 2048  dy^T x  91 / 90
 *   m 2048 n 384 k 1536  dy W   92 / 92      m 50304 n 768 k 512  dy^T x  95 / 93
 * and equal with two threads: so only the primitive is used, which includes the bias. */
#include "kernels/cpu/cpu.h"

#include <dnnl.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

struct tc_dnnl { dnnl_engine_t engine; dnnl_stream_t stream; };

/* ---- the two APIs ------------------------------------------------------------------------ */

#ifdef TC_DNNL_V3
typedef const_dnnl_memory_desc_t desc_ref;
struct desc { dnnl_memory_desc_t d; };
static desc_ref ref(const struct desc *x) { return x->d; }

static bool desc_init(struct desc *x, const dnnl_dims_t dim, dnnl_data_type_t type,
                      const dnnl_dims_t stride)
{
  return dnnl_memory_desc_create_with_strides(&x->d, 2, dim, type, stride) == dnnl_success;
}

static void desc_drop(struct desc *x)
{
  if (x->d) dnnl_memory_desc_destroy(x->d);
}

static bool sum_into(dnnl_post_ops_t ops)
{
  return dnnl_post_ops_append_sum(ops, 1.f, 0, dnnl_data_type_undef) == dnnl_success;
}

static bool pd_new(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const struct desc *a,
                   const struct desc *b, const struct desc *bias, const struct desc *c,
                   const_dnnl_primitive_attr_t attr)
{
  return dnnl_matmul_primitive_desc_create(pd, engine, a->d, b->d, bias ? bias->d : NULL, c->d,
                                           attr) == dnnl_success;
}
#else
typedef const dnnl_memory_desc_t *desc_ref;
struct desc { dnnl_memory_desc_t d; };
static desc_ref ref(const struct desc *x) { return &x->d; }

static bool desc_init(struct desc *x, const dnnl_dims_t dim, dnnl_data_type_t type,
                      const dnnl_dims_t stride)
{
  return dnnl_memory_desc_init_by_strides(&x->d, 2, dim, type, stride) == dnnl_success;
}

static void desc_drop(struct desc *x)
{
  (void)x;
}

static bool sum_into(dnnl_post_ops_t ops)
{
  return dnnl_post_ops_append_sum(ops, 1.f) == dnnl_success;
}

static bool pd_new(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, const struct desc *a,
                   const struct desc *b, const struct desc *bias, const struct desc *c,
                   const_dnnl_primitive_attr_t attr)
{
  dnnl_matmul_desc_t op;
  return dnnl_matmul_desc_init(&op, &a->d, &b->d, bias ? &bias->d : NULL, &c->d) == dnnl_success
         && dnnl_primitive_desc_create(pd, &op, attr, engine, NULL) == dnnl_success;
}
#endif

void tc_cpu_version(char *text, size_t size)
{
  const dnnl_version_t *v = dnnl_version();
  snprintf(text, size, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
}

int tc_dnnl_new(struct tc_dnnl **out, struct tc_err *err)
{
  struct tc_dnnl *x = tc_calloc(1, sizeof *x);
  *out = x;
  if (dnnl_engine_create(&x->engine, dnnl_cpu, 0) == dnnl_success
      && dnnl_stream_create(&x->stream, x->engine, dnnl_stream_default_flags) == dnnl_success)
    return 0;
  tc_dnnl_free(x);
  *out = NULL;
  return tc_fail(err, TC_EUSER, "device cpu: oneDNN can't make its CPU engine; "
                 "check the installed oneDNN (it must be built with its CPU runtime)");
}

void tc_dnnl_free(struct tc_dnnl *x)
{
  if (!x) return;
  if (x->stream) dnnl_stream_destroy(x->stream);
  if (x->engine) dnnl_engine_destroy(x->engine);
  free(x);
}

/* ---- a product's plan ---------------------------------------------------------------------- */

enum { A, B, C, BIAS, PAD, SLOTS };
static const int slot_arg[SLOTS] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS,
                                     DNNL_ARG_SCRATCHPAD };

struct plan {
  dnnl_primitive_desc_t pd;
  dnnl_primitive_t prim;
  dnnl_memory_t mem[SLOTS];
  bool via_f32;                  /* operands of other types are copied to scratch as fp32 */
  int64_t at[SLOTS], bytes;      /* of the copies and the scratchpad: offsets, sum */
};

static const struct tc_view *slot_view(const struct tc_call *c, int slot)
{
  if (slot == BIAS) return c->n_in > 2 ? &c->in[2] : NULL;
  return slot == PAD ? NULL : slot == C ? &c->out[0] : &c->in[slot];
}

/* Elements from a row of A, B or C in memory to the next, and from its first element to its last. */
static int64_t row_of(const struct tc_gemm *g, int slot)
{
  return g->ld[slot] ? g->ld[slot] : slot == A ? (g->ta ? g->m : g->k) : slot == B && g->tb ? g->k : g->n;
}
static int64_t span_of(const struct tc_gemm *g, int slot)
{
  const bool turned = slot == A ? g->ta : slot == B && g->tb;
  const int64_t rows = slot == B ? g->k : g->m, columns = slot == A ? g->k : g->n;
  return turned ? (columns - 1) * row_of(g, slot) + rows : (rows - 1) * row_of(g, slot) + columns;
}

static bool slot_desc(struct desc *x, const struct tc_call *c, int slot, bool f32)
{
  const struct tc_gemm *g = &c->gemm;
  const struct tc_view *v = slot_view(c, slot);
  dnnl_dims_t dim[] = { { g->m, g->k }, { g->k, g->n }, { g->m, g->n }, { 1, g->n } };
  const int64_t a = row_of(g, A), b = row_of(g, B);
  dnnl_dims_t stride[] = { { g->ta ? 1 : a, g->ta ? a : 1 }, { g->tb ? 1 : b, g->tb ? b : 1 }, { row_of(g, C), 1 }, { g->n, 1 } };
  return desc_init(x, dim[slot], f32 || v->dtype == TC_F32 ? dnnl_f32 : dnnl_bf16, stride[slot]);
}

static bool is_reference(dnnl_primitive_desc_t pd)
{
  const char *name = "";
  dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
  return strncmp(name, "ref", 3) == 0;
}

/* The primitive's description with operands of their own types, or all fp32. */
static bool describe(struct tc_device *d, const struct tc_call *c, bool f32,
                     dnnl_primitive_desc_t *pd)
{
  struct desc x[4] = { 0 };
  bool bias = c->n_in > 2, good = true;
  dnnl_primitive_attr_t attr = NULL;
  dnnl_post_ops_t ops = NULL;
  *pd = NULL;
  for (int s = A; s <= (bias ? BIAS : C); s++) good = good && slot_desc(&x[s], c, s, f32);
  good = good && dnnl_primitive_attr_create(&attr) == dnnl_success
         && dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user)
              == dnnl_success;
  if (good && (c->acc & 1))
    good = dnnl_post_ops_create(&ops) == dnnl_success && sum_into(ops)
           && dnnl_primitive_attr_set_post_ops(attr, ops) == dnnl_success;
  good = good && pd_new(pd, tc_cpu_of(d)->dnnl->engine, &x[A], &x[B], bias ? &x[BIAS] : NULL,
                        &x[C], attr);
  if (ops) dnnl_post_ops_destroy(ops);
  if (attr) dnnl_primitive_attr_destroy(attr);
  for (int s = A; s <= BIAS; s++) desc_drop(&x[s]);
  return good;
}

/* Fills the plan except its primitive and memory objects. False: oneDNN does not support it. */
static bool plan_init(struct plan *p, struct tc_device *d, const struct tc_call *c)
{
  bool all_f32 = true;
  memset(p, 0, sizeof *p);
  for (int s = A; s <= BIAS; s++) {
    const struct tc_view *v = slot_view(c, s);
    if (v) all_f32 = all_f32 && v->dtype == TC_F32;
  }
  /* oneDNN plans for the thread count of the calling thread. */
  omp_set_num_threads(d->threads);
  if (all_f32 || tc_cpu_of(d)->bf16) {
    if (describe(d, c, false, &p->pd) && (all_f32 || !is_reference(p->pd))) goto sizes;
    if (p->pd) dnnl_primitive_desc_destroy(p->pd);
  }
  p->via_f32 = true;
  if (all_f32 || !describe(d, c, true, &p->pd)) return false;
sizes:
  for (int s = A; s < SLOTS; s++) {
    const struct tc_view *v = slot_view(c, s);
    int64_t bytes = 0;
    if (s == PAD)
      bytes = (int64_t)dnnl_memory_desc_get_size(
          dnnl_primitive_desc_query_md(p->pd, dnnl_query_scratchpad_md, 0));
    else if (v && p->via_f32 && v->dtype != TC_F32)
      bytes = v->elems * (int64_t)sizeof(float);
    p->at[s] = p->bytes;
    p->bytes += tc_round_up(bytes, 64);
  }
  return true;
}

int64_t tc_cpu_matmul_scratch(struct tc_device *d, const struct tc_call *c)
{
  struct plan p;
  if (tc_cpu_is_few(c)) return tc_cpu_few_scratch(c);
  if (c->gemm.m == 0 || c->gemm.n == 0 || !plan_init(&p, d, c)) return 0;
  dnnl_primitive_desc_destroy(p.pd);
  return p.bytes;
}

static void plan_free(struct plan *p)
{
  for (int s = A; s < SLOTS; s++)
    if (p->mem[s]) dnnl_memory_destroy(p->mem[s]);
  if (p->prim) dnnl_primitive_destroy(p->prim);
  if (p->pd) dnnl_primitive_desc_destroy(p->pd);
  free(p);
}

int tc_cpu_matmul_prepare(struct tc_device *d, struct tc_call *c, struct tc_err *err)
{
  const struct tc_gemm *g = &c->gemm;
  c->plan = NULL;
  if (g->m == 0 || g->n == 0 || tc_cpu_is_few(c)) return 0;
  for (int s = A; s <= C; s++) TC_ASSERT(g->k == 0 || slot_view(c, s)->elems == span_of(g, s));
  struct plan *p = tc_calloc(1, sizeof *p);
  bool good = plan_init(p, d, c) && dnnl_primitive_create(&p->prim, p->pd) == dnnl_success;
  for (int s = A; good && s < SLOTS; s++) {
    struct desc x = { 0 };
    if (s != PAD && !slot_view(c, s)) continue;
    if (s != PAD) good = slot_desc(&x, c, s, p->via_f32);
    desc_ref md = s != PAD ? ref(&x)
                           : dnnl_primitive_desc_query_md(p->pd, dnnl_query_scratchpad_md, 0);
    good = good && dnnl_memory_create(&p->mem[s], md, tc_cpu_of(d)->dnnl->engine,
                                      DNNL_MEMORY_NONE) == dnnl_success;
    if (s != PAD) desc_drop(&x);
  }
  if (!good) {
    plan_free(p);
    return tc_fail(err, TC_EUSER, "device cpu: oneDNN can't make a product of %lld x %lld x %lld "
                   "(%s); set run.device = ref, or install another oneDNN", (long long)g->m,
                   (long long)g->n, (long long)g->k, tc_dtype_name(c->in[0].dtype));
  }
  c->plan = p;
  return 0;
}

void tc_cpu_matmul_unprepare(struct tc_device *d, struct tc_call *c)
{
  if (c->plan) plan_free(c->plan);
  c->plan = NULL;
}

/* ---- running it ----------------------------------------------------------------------------- */

static void as_f32(struct tc_device *d, float *y, const struct tc_view *v)
{
#pragma omp parallel for num_threads(tc_cpu_threads(d, v->elems)) schedule(static)
  for (int64_t i = 0; i < v->elems; i += TC_BLOCK)
    tc_cpu_from_bf16(y + i, (const uint16_t *)v->data + i, TC_MIN(TC_BLOCK, v->elems - i));
}

static void from_f32(struct tc_device *d, const struct tc_view *v, const float *x)
{
#pragma omp parallel for num_threads(tc_cpu_threads(d, v->elems)) schedule(static)
  for (int64_t i = 0; i < v->elems; i += TC_BLOCK)
    tc_cpu_to_bf16((uint16_t *)v->data + i, x + i, TC_MIN(TC_BLOCK, v->elems - i));
}

int tc_cpu_matmul(struct tc_device *d, const struct tc_call *c)
{
  struct plan *p = c->plan;
  if (tc_cpu_is_few(c)) return tc_cpu_few(d, c);
  if (!p) return 0;              /* nothing to compute */
  dnnl_exec_arg_t arg[SLOTS];
  int n = 0;
  char *scratch = c->scratch;
  omp_set_num_threads(d->threads);
  for (int s = A; s < SLOTS; s++) {
    const struct tc_view *v = slot_view(c, s);
    if (!p->mem[s]) continue;
    void *data = v ? v->data : scratch ? scratch + p->at[s] : NULL;
    if (v && p->via_f32 && v->dtype != TC_F32) {
      data = scratch + p->at[s];
      if (s != C || (c->acc & 1)) as_f32(d, data, v);
    }
    if (dnnl_memory_set_data_handle(p->mem[s], data) != dnnl_success) return TC_EUSER;
    arg[n++] = (dnnl_exec_arg_t){ slot_arg[s], p->mem[s] };
  }
  dnnl_stream_t stream = tc_cpu_of(d)->dnnl->stream;
  if (dnnl_primitive_execute(p->prim, stream, n, arg) != dnnl_success
      || dnnl_stream_wait(stream) != dnnl_success)
    return TC_EUSER;
  if (p->via_f32 && c->out[0].dtype != TC_F32)
    from_f32(d, &c->out[0], (const float *)(scratch + p->at[C]));
  return 0;
}
