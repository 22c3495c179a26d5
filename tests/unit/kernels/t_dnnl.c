/* t_dnnl.c - products of the device `cpu` where oneDNN refuses: its calls are the test's here, which fail
 * when they are meant to. What was made is given back, and the next product works. A type that oneDNN
 * has only its reference for goes through fp32. */
#include <dlfcn.h>

#include "kernels/cpu/cpu.h"
#include "tests/unit/tap.h"

enum {
  ENGINE,
  STREAM,
  DESC,
  PRIMITIVE,
  MEMORY,
  HANDLE,
  EXECUTE,
  WAIT,
  ATTR,
  MODE,
  POST,
  SUM,
  CALLS
};
static int fails = CALLS; /* the call that does */
static int made; /* objects that are not given back yet */
static const char *kernel_name; /* what descriptions say; NULL: what they do */

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

#define CALL(kind, counts, name, params, args)                                                     \
  int name params;                                                                                 \
  int name params                                                                                  \
  {                                                                                                \
    union {                                                                                        \
      void *at;                                                                                    \
      int(*call) params;                                                                           \
    } x = { real(#name) };                                                                         \
    if (fails == (kind)) return 1; /* dnnl_out_of_memory */                                        \
    const int rc = x.call args;                                                                    \
    made += rc == 0 ? (counts) : 0;                                                                \
    return rc;                                                                                     \
  }
#define TAKEN(name) CALL(CALLS + 1, -1, name, (void *a), (a))

CALL(ENGINE, 1, dnnl_engine_create, (void **a, int b, size_t c), (a, b, c))
CALL(STREAM, 1, dnnl_stream_create, (void **a, void *b, unsigned c), (a, b, c))
/* The one before 3.0, and the one since. */
CALL(DESC, 1, dnnl_primitive_desc_create,
     (void **a, const void *b, const void *c, void *d, const void *e), (a, b, c, d, e))
CALL(DESC, 1, dnnl_matmul_primitive_desc_create,
     (void **a, void *b, const void *c, const void *d, const void *e, const void *f, const void *g),
     (a, b, c, d, e, f, g))
CALL(PRIMITIVE, 1, dnnl_primitive_create, (void **a, const void *b), (a, b))
CALL(MEMORY, 1, dnnl_memory_create, (void **a, const void *b, void *c, void *d), (a, b, c, d))
CALL(HANDLE, 0, dnnl_memory_set_data_handle, (void *a, void *b), (a, b))
CALL(EXECUTE, 0, dnnl_primitive_execute, (const void *a, void *b, int c, const void *d),
     (a, b, c, d))
CALL(WAIT, 0, dnnl_stream_wait, (void *a), (a))
CALL(ATTR, 1, dnnl_primitive_attr_create, (void **a), (a))
CALL(MODE, 0, dnnl_primitive_attr_set_scratchpad_mode, (void *a, int b), (a, b))
CALL(POST, 1, dnnl_post_ops_create, (void **a), (a))
CALL(SUM, 0, dnnl_primitive_attr_set_post_ops, (void *a, const void *b), (a, b))
TAKEN(dnnl_engine_destroy)
TAKEN(dnnl_stream_destroy)
TAKEN(dnnl_primitive_desc_destroy)
TAKEN(dnnl_primitive_destroy)
TAKEN(dnnl_memory_destroy)
TAKEN(dnnl_primitive_attr_destroy)
TAKEN(dnnl_post_ops_destroy)

int dnnl_primitive_desc_query(const void *a, int what, int i, void *result);
int dnnl_primitive_desc_query(const void *a, int what, int i, void *result)
{
  union {
    void *at;
    int (*call)(const void *, int, int, void *);
  } x = { real("dnnl_primitive_desc_query") };
  const int rc = x.call(a, what, i, result);
  if (kernel_name && what == 8) *(const char **)result = kernel_name; /* dnnl_query_impl_info_str */
  return rc;
}

/* C[2,3] (+)= A[2,4] B[4,3] + bias, of small whole numbers, which bf16 has. */
enum { M = 2, N = 3, K = 4 };
struct product {
  float f32[4][M * K + K * N];
  uint16_t bf16[4][M * K + K * N];
  struct tc_view v[4];
  struct tc_call c;
};

static float value(int s, int64_t i) { return (float)(s * 2 + i % 3 - 1); }

static void make(struct product *p, int dtype, bool acc)
{
  static const int64_t elems[] = { M * K, K * N, N, M * N };
  *p = (struct product){ .c = { .op = TC_OP_MATMUL,
                                .n_in = 3,
                                .n_out = 1,
                                .acc = acc,
                                .gemm = { M, N, K, false, false } } };
  for (int s = 0; s < 4; s++) {
    for (int64_t i = 0; i < elems[s]; i++) {
      p->f32[s][i] = value(s, i);
      p->bf16[s][i] = tc_f32_to_bf16(value(s, i));
    }
    p->v[s] = (struct tc_view){ .data = dtype == TC_F32 ? (void *)p->f32[s] : p->bf16[s],
                                .dtype = (uint8_t)dtype,
                                .rank = 1,
                                .rows = -1,
                                .dim = { elems[s] },
                                .global = { elems[s] },
                                .elems = elems[s] };
  }
  p->c.in = p->v;
  p->c.out = p->v + 3;
}

static bool right(const struct product *p, bool acc)
{
  bool good = true;
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      float want = value(2, j) + (acc ? value(3, i * N + j) : 0);
      for (int k = 0; k < K; k++) want += value(0, i * K + k) * value(1, k * N + j);
      good &= want == (p->v[3].dtype == TC_F32 ? p->f32[3][i * N + j]
                                               : tc_bf16_to_f32(p->bf16[3][i * N + j]));
    }
  return good;
}

/* Its status; what has no fault is as it should be. */
static int product(struct tc_device *d, int dtype, bool acc, struct tc_err *err)
{
  const struct tc_kernel *k = &d->ops->kernel[TC_OP_MATMUL];
  struct product p;
  make(&p, dtype, acc);
  int rc = k->prepare(d, &p.c, err);
  if (rc < 0 && p.c.plan) rc = 1;
  const int64_t bytes = rc ? 0 : k->scratch(d, &p.c);
  p.c.scratch = d->ops->alloc(d, bytes);
  if (rc == 0) rc = k->run(d, &p.c);
  k->unprepare(d, &p.c);
  if (p.c.plan) rc = 2;
  d->ops->free(d, p.c.scratch, bytes);
  return rc == 0 && !right(&p, acc) ? 3 : rc;
}

static void test_products(struct tc_device *d)
{
  static const struct {
    int call;
    bool prepares, acc;
    const char *name;
  } row[] = { { DESC, true, true, "description" },    { PRIMITIVE, true, true, "primitive" },
              { MEMORY, true, true, "memory" },       { ATTR, true, true, "attributes" },
              { MODE, true, true, "scratchpad" },     { POST, true, true, "sum" },
              { SUM, true, true, "sum's attribute" }, { POST, false, false, "no sum" },
              { HANDLE, false, true, "data" },        { EXECUTE, false, true, "execution" },
              { WAIT, false, true, "wait" },          { CALLS, false, true, "nothing" } };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++)
    for (int bf16 = 0; bf16 < 2; bf16++) {
      struct tc_err err = { 0 };
      const int before = made, dtype = bf16 ? TC_BF16 : TC_F32;
      const bool works = row[i].call == CALLS || (row[i].call == POST && !row[i].acc);
      char want[200] = "";
      fails = row[i].call;
      is_int(product(d, dtype, row[i].acc, &err), works ? 0 : TC_EUSER, "%s: %s fails",
             tc_dtype_name(dtype), row[i].name);
      fails = CALLS;
      if (row[i].prepares)
        snprintf(want, sizeof want,
                 "device cpu: oneDNN can't make a product of 2 x 3 x 4 (%s); set run.device = ref, "
                 "or install another oneDNN",
                 tc_dtype_name(dtype));
      is_str(err.text, want, "... in these words");
      is_int(made, before, "... and all that was made is given back");
    }
}

/* Neither on a CPU that does not multiply bf16, nor where oneDNN has its reference alone for it. */
static void test_bf16(struct tc_device *d)
{
  const bool has = tc_cpu_of(d)->bf16;
  static const char *const name[] = { "ref:any", "jit:avx512" };
  for (int i = 0; i < 3; i++) {
    struct tc_err err = { 0 };
    struct product p;
    const int before = made;
    make(&p, TC_BF16, true);
    tc_cpu_of(d)->bf16 = i / 2;
    kernel_name = name[i % 2];
    const int64_t bytes = d->ops->kernel[TC_OP_MATMUL].scratch(d, &p.c);
    ok(bytes >= 64 * 4, "bf16 by %s: room for copies, %lld bytes", name[i % 2], (long long)bytes);
    is_int(product(d, TC_BF16, true, &err), 0, "... and the product is right %s", err.text);
    is_int(made, before, "... and all that was made is given back");
  }
  tc_cpu_of(d)->bf16 = has;
  kernel_name = NULL;
}

static void test_empty(struct tc_device *d)
{
  const struct tc_kernel *k = &d->ops->kernel[TC_OP_MATMUL];
  for (int i = 0; i < 2; i++) {
    struct product p;
    struct tc_err err = { 0 };
    make(&p, TC_F32, false);
    if (i)
      p.c.gemm.m = p.v[0].elems = 0;
    else
      p.c.gemm.n = p.v[1].elems = p.v[2].elems = 0;
    p.v[3].elems = 0;
    fails = DESC;
    is_int(k->scratch(d, &p.c), 0, "no %s: no scratch", i ? "rows" : "columns");
    ok(k->prepare(d, &p.c, &err) == 0 && !p.c.plan && k->run(d, &p.c) == 0,
       "... no plan, nothing to do");
    fails = CALLS;
  }
}

static void test_open(void)
{
  for (int call = ENGINE; call <= STREAM; call++) {
    struct tc_device *d = NULL;
    struct tc_err err = { 0 };
    const int before = made;
    fails = call;
    is_int(tc_device_open(&d, "cpu", 1, &err), TC_EUSER, "no %s",
           call == ENGINE ? "engine" : "stream");
    fails = CALLS;
    is_str(
        err.text,
        "device cpu: oneDNN can't make its CPU engine; check the installed oneDNN (it must be built with "
        "its CPU runtime)",
        "... in these words");
    is_int(made, before, "... and what was made is given back");
  }
  tc_dnnl_free(NULL);
}

int main(void)
{
  struct tc_device *d;
  struct tc_err err = { 0 };
  test_open();
  if (!is_int(tc_device_open(&d, "cpu", 2, &err), 0, "cpu opens %s", err.text))
    return done_testing();
  is_int(made, 2, "engine and stream");
  test_products(d);
  test_bf16(d);
  test_empty(d);
  tc_device_close(d);
  is_int(made, 0, "the device gives back all it made");
  return done_testing();
}
