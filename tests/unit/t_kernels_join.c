/* t_kernels_join.c - calls that the CUDA device does as one, beside the same calls one by one.
 *
 * All tensors of a case lie in one piece of memory, which exists three times: for ref, for the
 * device's single kernels and for the joined call. Products are compared with ref's, cross-entropy
 * with ref's and the device's, updates have to be the same bits as one by one; nothing else of the
 * memory may change. As t_kernels_cuda.c, on the emulated GPU, or a real one with TC_TEST_GPU=yes. */
#include "kernels/kernel.h"
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
  struct part part[PARTS];
  struct tc_runtime rt;
};

static struct tc_device *ref, *cuda;
static double tolerance(int dtype) { return dtype == TC_BF16 ? 8e-3 : cuda->tf32 ? 2e-3 : 2e-6; }
static uint64_t lcg = 1;

static float uniform(void)
{
  lcg = lcg * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (float)(lcg >> 40) * 0x1p-24f;
}

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
    const float x = positive ? uniform() + 0.1f : 4 * uniform() - 2;
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

/* Runs the parts on d, joined or one by one; the memory as it is then. NULL: it can't be joined. */
static char *run(struct scene *s, struct tc_device *d, bool joined)
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
  const bool can = !joined || d->ops->joined->can(d, part, s->n);
  if (joined && can) scratch_bytes = TC_MAX(scratch_bytes, d->ops->joined->scratch(d, part, s->n));
  scratch = d->ops->alloc(d, scratch_bytes);
  for (int i = 0; i < s->n; i++) s->part[i].c.scratch = scratch;
  if (joined && can) good &= d->ops->joined->run(d, part, s->n) == 0;
  for (int i = 0; i < s->n && !joined; i++) good &= d->ops->kernel[part[i]->op].run(d, part[i]) == 0;
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

/* Joined on the device beside ref, one by one. `unread`: an output of part 0 that may be anything. */
static void check_product(struct scene *s, bool unread, double tol, const char *what)
{
  char *want = run(s, ref, false), *got = run(s, cuda, true);
  if (ok(want && got, "%s: runs", what)) {
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

enum { M = 24, N = 40, K = 16 };

static void gelu_case(struct scene *s, int dtype, bool bias, int64_t n)
{
  char what[100];
  clear(s);
  snprintf(what, sizeof what, "matmul%s, gelu, %s", bias ? " and bias" : "", tc_dtype_name(dtype));
  struct tc_view x = tensor(s, dtype, M * K, K, false), w = tensor(s, dtype, n * K, K, false);
  struct tc_view b = tensor(s, dtype, n, n, false), y = tensor(s, dtype, M * n, n, false);
  struct tc_view z = tensor(s, dtype, M * n, n, false);
  struct tc_call *c = bias ? call(s, TC_OP_MATMUL, 3, 1, VIEW(x, w, b, y))
                           : call(s, TC_OP_MATMUL, 2, 1, VIEW(x, w, y));
  c->gemm = (struct tc_gemm){ M, n, K, false, true };
  call(s, TC_OP_GELU, 1, 1, VIEW(y, z));
  if (n % 8 || (dtype == TC_F32 && !cuda->tf32))
    ok(!run(s, cuda, true), "%s, %lld columns: not joined", what, (long long)n);
  else
    check_product(s, false, tolerance(dtype), what);
}

static void gelu_bwd_case(struct scene *s, int dtype)
{
  char what[100];
  clear(s);
  snprintf(what, sizeof what, "matmul, gelu_bwd, %s", tc_dtype_name(dtype));
  struct tc_view dy = tensor(s, dtype, M * K, K, false), w = tensor(s, dtype, K * N, N, false);
  struct tc_view dz = tensor(s, dtype, M * N, N, false), x = tensor(s, dtype, M * N, N, false);
  struct tc_view dx = tensor(s, dtype, M * N, N, false);
  call(s, TC_OP_MATMUL, 2, 1, VIEW(dy, w, dz))->gemm = (struct tc_gemm){ M, N, K, false, false };
  call(s, TC_OP_GELU_BWD, 2, 1, VIEW(dz, x, dx));
  if (dtype == TC_F32 && !cuda->tf32) {
    ok(!run(s, cuda, true), "%s: not joined", what);
    return;
  }
  check_product(s, true, tolerance(dtype), what);
  s->part[1].c.in[0] = x, s->part[1].c.in[1] = dz;
  ok(!run(s, cuda, true), "... not where the product is gelu's input");
}

static void bias_bwd_case(struct scene *s, int in, int out, int acc_bias, int acc)
{
  char what[100];
  clear(s);
  snprintf(what, sizeof what, "bias_bwd%s, matmul%s, %s to %s", acc_bias ? " +=" : "",
           acc ? " +=" : "", tc_dtype_name(in), tc_dtype_name(out));
  struct tc_view dy = tensor(s, in, K * M, M, false), x = tensor(s, in, K * N, N, false);
  struct tc_view db = tensor(s, out, M, M, false), dw = tensor(s, out, M * N, N, false);
  struct tc_view other = tensor(s, in, K * M, M, false);
  call(s, TC_OP_BIAS_BWD, 1, 1, VIEW(dy, db))->acc = (uint8_t)acc_bias;
  struct tc_call *c = call(s, TC_OP_MATMUL, 2, 1, VIEW(dy, x, dw));
  c->acc = (uint8_t)acc;
  c->gemm = (struct tc_gemm){ M, N, K, true, false };
  check_product(s, false, out == TC_BF16 ? 1.6e-2 : tolerance(TC_F32), what);
  s->part[0].c.in[0] = other;
  ok(!run(s, cuda, true), "... not of another gradient");
}

/* `n` updates, every second with a cast; sizes that are no multiple of anything. */
static void update_case(struct scene *s, int op, int n, int grad)
{
  clear(s);
  struct tc_view scale = tensor(s, TC_F32, 1, 1, true);
  for (int i = 0; i < n; i++) {
    const int64_t e = i == 2 ? 5000 : i == 5 ? 0 : 1 + (i * 37) % 300;
    struct tc_view g = tensor(s, grad, e, 1, false), w = tensor(s, TC_F32, e, 1, false);
    struct tc_view m = tensor(s, TC_F32, e, 1, false), v = tensor(s, TC_F32, e, 1, true);
    struct tc_view t = tensor(s, TC_BF16, e, 1, false);
    struct tc_call *c = op == TC_OP_ADAMW ? call(s, op, 5, 3, VIEW(g, scale, w, m, v, w, m, v))
                                          : call(s, op, 3, 1, VIEW(g, scale, w, w));
    c->f[0] = i % 3 ? 1.f : 0.f;
    if (i % 2) call(s, TC_OP_CAST, 1, 1, VIEW(w, t));
  }
  char *want = run(s, cuda, false), *got = run(s, cuda, true);
  ok(want && got && memcmp(want, got, POOL_BYTES) == 0, "%d %s of %s gradients: the same bits", n,
     tc_op_info[op].name, tc_dtype_name(grad));
  ok(want && memcmp(want, s->at, POOL_BYTES), "... which are not those before");
  free(want);
  free(got);
  s->part[2].c.in[1] = tensor(s, TC_F32, 1, 1, true);
  ok(!run(s, cuda, true), "... not with two scales");
}

/* ---- cross-entropy --------------------------------------------------------------------------- */

enum { TO_SUMEXP = 3, TO_NLL = 4 };
/* A block of V columns from `first` on, of a vocabulary of `live`; logits around `middle`. */
struct head { int dtype; int64_t N, V, first, live; float middle; };

static void say(char what[100], const struct head *h, const char *parts)
{
  snprintf(what, 100, "%s, %s, [%lld,%lld] at %lld of %lld around %g", parts,
           tc_dtype_name(h->dtype), (long long)h->N, (long long)h->V, (long long)h->first,
           (long long)h->live, (double)h->middle);
}

static void put(const struct tc_view *v, int64_t i, float x)
{
  if (v->dtype == TC_BF16) ((uint16_t *)v->data)[i] = tc_f32_to_bf16(x);
  else ((float *)v->data)[i] = x;
}

/* Rows that rise, rows that fall, rows without order; none of them spans more than exp can. */
static struct tc_view logits(struct scene *s, const struct head *h)
{
  struct tc_view x = tensor(s, h->dtype, h->N * h->V, h->V, false);
  x.off[1] = h->first, x.global[1] = h->first + h->V;
  for (int64_t n = 0; n < h->N; n++)
    for (int64_t v = 0; v < h->V; v++) {
      const float slope = 40 * (float)v / (float)h->V, noise = 6 * uniform();
      put(&x, n * h->V + v, h->middle + (n % 3 == 0 ? noise : n % 3 == 1 ? slope : -slope));
    }
  return x;
}

/* The last column, some in the block, some before it, some behind it, some that are ignored. */
static struct tc_view targets(struct scene *s, const struct head *h)
{
  struct tc_view t = tensor(s, TC_F32, h->N, 1, false);
  t.dtype = TC_I32;
  for (int64_t n = 0; n < h->N; n++) {
    const int32_t in = (int32_t)(h->first + (int64_t)(uniform() * (float)h->V) % h->V);
    ((int32_t *)t.data)[n] = n % 7 == 3 ? -1 : n % 7 == 4 ? (int32_t)h->first - 1
                           : n % 7 == 5 ? (int32_t)(h->first + h->V) : n == 0
                           ? (int32_t)(h->first + h->V - 1) : in;
  }
  return t;
}

static struct tc_view column(struct scene *s, const struct head *h)
{
  return tensor(s, TC_F32, h->N, 1, true);
}

/* n parts of rowmax, pick, sumexp, nll; 2: without pick. */
static void forward_case(struct scene *s, const struct head *h, int n)
{
  char what[100];
  clear(s);
  say(what, h, n == TO_NLL ? "rowmax to nll" : n == TO_SUMEXP ? "rowmax to sumexp" : "rowmax, sumexp");
  struct tc_view x = logits(s, h), t = targets(s, h), m = column(s, h), e = column(s, h);
  struct tc_view p = column(s, h), l = column(s, h);
  call(s, TC_OP_ROWMAX, 1, 1, VIEW(x, m))->k[0] = h->live;
  if (n >= TO_SUMEXP) call(s, TC_OP_PICK, 2, 1, VIEW(x, t, p));
  call(s, TC_OP_SUMEXP, 2, 1, VIEW(x, m, e))->k[0] = h->live;
  if (n == TO_NLL) call(s, TC_OP_NLL, 4, 1, VIEW(m, e, p, t, l));
  check_product(s, false, 1e-6, what);
}

/* The gradient, element by element: relative to the element, at the target to what cancels there. */
static double gradient_error(const struct scene *s, const struct head *h, const struct tc_view *dx,
                             const struct tc_view *t, char *got, char *want)
{
  struct tc_view a = *dx, b = *dx;
  double worst = 0;
  a.data = got + ((char *)dx->data - s->at), b.data = want + ((char *)dx->data - s->at);
  for (int64_t n = 0; n < h->N; n++)
    for (int64_t v = 0; v < h->V; v++) {
      const int64_t at = ((int32_t *)t->data)[n] - h->first, i = n * h->V + v;
      const double x = (double)get(&b, i), floor = v == at ? 1 : 1e-30;
      const double d = fabs((double)get(&a, i) - x) / (fabs(x) + floor);
      worst = d > worst || !(d == d) ? d : worst;
    }
  return worst;
}

static void backward_case(struct scene *s, const struct head *h, bool nll)
{
  char what[100];
  clear(s);
  say(what, h, nll ? "nll_bwd to pick_bwd" : "sumexp_bwd, pick_bwd");
  struct tc_view x = logits(s, h), t = targets(s, h), m = column(s, h), e = column(s, h);
  struct tc_view dl = column(s, h), ds = column(s, h), dp = column(s, h), dx = logits(s, h);
  for (int64_t n = 0; n < h->N; n++) {           /* s and ds of a softmax, more or less */
    put(&m, n, h->middle + (n % 3 == 0 ? 6.f : n % 3 == 1 ? 40.f : 0.f));
    put(&e, n, (float)h->V / 20 + 1);
    put(&ds, n, get(&dl, n) / get(&e, n));
  }
  if (nll) call(s, TC_OP_NLL_BWD, 3, 2, VIEW(dl, e, t, ds, dp));
  call(s, TC_OP_SUMEXP_BWD, 3, 1, VIEW(x, m, ds, dx))->k[0] = h->live;
  call(s, TC_OP_PICK_BWD, 3, 1, VIEW(dx, t, dp, dx));
  char *want = run(s, ref, false), *apart = run(s, cuda, false), *got = run(s, cuda, true);
  if (ok(want && apart && got, "%s: runs", what)) {
    const double tol = h->dtype == TC_BF16 ? 8e-3 : 6e-6;
    const double by_ref = gradient_error(s, h, &dx, &t, got, want);
    const double by_self = gradient_error(s, h, &dx, &t, got, apart);
    ok(by_ref <= tol, "%s: as ref's, one by one (%.1e)", what, by_ref);
    ok(by_self <= tol, "%s: as its own, one by one (%.1e)", what, by_self);
    ok(rest_is_same(s, got, s->at), "%s: writes nothing else", what);
  }
  free(want);
  free(apart);
  free(got);
}

/* Logits that are no numbers or infinite end as they do one by one; so does a block of padding. */
static void head_extremes(struct scene *s)
{
  const float what[] = { -INFINITY, -INFINITY, NAN, INFINITY };
  for (int64_t live = 0; live <= 40; live += 40) {
    const struct head h = { TC_F32, 4, 40, 0, live, 0 };
    clear(s);
    struct tc_view x = logits(s, &h), t = targets(s, &h), m = column(s, &h), e = column(s, &h);
    struct tc_view p = column(s, &h), l = column(s, &h);
    for (int64_t n = 0; n < 4; n++)              /* most of a row, the first thread's part, one */
      for (int64_t v = 0; v < (n == 0 ? 39 : n == 1 ? 8 : 1); v++) put(&x, n * h.V + v, what[n]);
    call(s, TC_OP_ROWMAX, 1, 1, VIEW(x, m))->k[0] = live;
    call(s, TC_OP_PICK, 2, 1, VIEW(x, t, p));
    call(s, TC_OP_SUMEXP, 2, 1, VIEW(x, m, e))->k[0] = live;
    call(s, TC_OP_NLL, 4, 1, VIEW(m, e, p, t, l));
    char *want = run(s, cuda, false), *got = run(s, cuda, true);
    bool same = want && got;
    for (int i = 0; same && i < 4; i++)
      for (int64_t n = 0; n < 4; n++) {
        struct tc_view a = s->part[i].c.out[0], b = a;
        a.data = got + ((char *)a.data - s->at), b.data = want + ((char *)b.data - s->at);
        const float u = get(&a, n), v = get(&b, n);
        const bool alike = u == v || (isnan(u) && isnan(v)) || fabsf(u - v) <= 1e-6f * fabsf(v);
        if (!alike) printf("# part %d, row %lld: %g, not %g\n", i, (long long)n, (double)u, (double)v);
        same &= alike;
      }
    ok(same, "infinities and NaN among %lld logits: as one by one", (long long)live);
    free(want);
    free(got);
  }
}

/* What looks like cross-entropy and is not. */
static void head_refusals(struct scene *s)
{
  const struct head h = { TC_F32, 4, 40, 0, 40, 0 };
  const char *const forward[] = { "of other logits", "of another maximum", "of another padding",
                                  "that is added", "with a loss of another sum" };
  for (int i = 0; i < 5; i++) {
    forward_case(s, &h, TO_NLL);
    struct tc_view other = column(s, &h);
    struct tc_call *e = &s->part[2].c;
    if (i == 0) e->in[0].data = (char *)e->in[0].data + 4;
    if (i == 1) e->in[1] = other;
    if (i == 2) e->k[0]--;
    if (i == 3) e->acc = 1;
    if (i == 4) s->part[3].c.in[1] = other;
    ok(!run(s, cuda, true), "... not joined: a sum %s", forward[i]);
  }
  const char *const backward[] = { "to another place", "of another loss", "of other targets" };
  for (int i = 0; i < 3; i++) {
    backward_case(s, &h, true);
    struct tc_view other = column(s, &h), x = logits(s, &h);
    if (i == 0) s->part[2].c.out[0] = x;
    if (i == 1) s->part[1].c.in[2] = other;
    if (i == 2) s->part[0].c.in[2].data = other.data;
    ok(!run(s, cuda, true), "... not joined: a gradient %s", backward[i]);
  }
}

/* Fewer columns than a thread has, more than a block reads at once, rows that can't be read 8 at a
 * time, padding, blocks that begin elsewhere or hold nothing but padding; no rows. */
static void head_cases(struct scene *s, int dtype)
{
  const struct head all[] = {
    { dtype, 9, 1, 0, 1, 0 }, { dtype, 8, 5, 0, 4, 0 }, { dtype, 7, 256, 0, 256, 30 },
    { dtype, 4, 2043, 0, 2043, -30 }, { dtype, 3, 16384, 0, 16381, 0 },
    { dtype, 3, 20008, 0, 20008, 90 }, { dtype, 2, 33001, 0, 32990, -90 },
    { dtype, 9, 64, 64, 120, 0 }, { dtype, 9, 4104, 4104, 8208, 0 }, { dtype, 6, 24, 72, 60, 0 },
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    for (int n = 2; n <= TO_NLL && all[i].first < all[i].live; n++) forward_case(s, &all[i], n);
    for (int nll = 0; nll < 2; nll++) backward_case(s, &all[i], nll != 0);
  }
}

static void refusals(struct scene *s)
{
  gelu_case(s, TC_BF16, true, 36);
  clear(s);
  struct tc_view a = tensor(s, TC_F32, M * N, N, false), b = tensor(s, TC_F32, M * N, N, false);
  call(s, TC_OP_GELU, 1, 1, VIEW(a, b));
  call(s, TC_OP_GELU, 1, 1, VIEW(b, a));
  ok(!run(s, cuda, true), "two GELUs are not joined");
  gelu_case(s, TC_BF16, true, N);
  for (int k = 0; k < 2; k++) {
    struct tc_view *v = k ? &s->part[1].c.in[0] : &s->part[0].c.out[0];
    v->data = (char *)v->data + 8;
  }
  ok(!run(s, cuda, true), "what is kept for backward lies at 8 bytes: not joined");
}

/* fp32 products from rounded inputs: off by more than fp32, by less than TF32's 10 bits allow. */
static void tf32_cases(struct scene *s)
{
  struct tc_err err = { 0 };
  struct tc_device *fp32 = cuda;
  if (tc_device_open(&cuda, "cuda", 1, &err) < 0) return;
  cuda->tf32 = true;
  clear(s);
  struct tc_view a = tensor(s, TC_F32, M * K, K, false), b = tensor(s, TC_F32, K * N, N, false);
  struct tc_view y = tensor(s, TC_F32, M * N, N, false);
  call(s, TC_OP_MATMUL, 2, 1, VIEW(a, b, y))->gemm = (struct tc_gemm){ M, N, K, false, false };
  char *want = run(s, ref, false), *got = run(s, cuda, false), *exact = run(s, fp32, false);
  if (ok(want && got && exact, "a product in TF32")) {
    const double off = difference(s, &y, got, want);
    ok(off > 1e-5 && off < 2e-3, "... is off by %.1e", off);
    ok(difference(s, &y, exact, want) < 2e-6, "... and without, is fp32's");
  }
  free(want);
  free(got);
  free(exact);
  gelu_case(s, TC_F32, true, N);
  gelu_case(s, TC_F32, false, N);
  gelu_bwd_case(s, TC_F32);
  bias_bwd_case(s, TC_F32, TC_F32, 1, 1);
  tc_device_close(cuda);
  cuda = fp32;
}

/* A copy to the host, then a kernel that writes what it reads; a copy to the device, then one that
 * reads it. The emulated GPU runs streams lazily, so that without copy_order both find the other's. */
static void copies(void)
{
  enum { ELEMS = 5000, BYTES = ELEMS * 4 };
  const struct tc_device_ops *o = cuda->ops;
  struct tc_err err = { 0 };
  float *host = tc_device_host_alloc(cuda, BYTES), one = 1;
  float *a = o->alloc(cuda, BYTES), *b = o->alloc(cuda, BYTES);
  bool first = true, second = true;
  for (int i = 0; i < ELEMS; i++) host[i] = one;
  o->copy(cuda, a, host, BYTES);
  memset(host, 0, BYTES);
  const int64_t out = o->copy_begin(cuda, host, a, BYTES);
  o->copy_order(cuda, out);
  o->fill(cuda, a, 0x7f, BYTES);
  o->sync(cuda);
  ok(o->copy_wait(cuda, out) == 0, "a copy to the host beside the kernels");
  for (int i = 0; i < ELEMS; i++) first &= host[i] == one;
  ok(first, "... has what was there when it began");
  o->copy_order(cuda, o->copy_begin(cuda, a, host, BYTES));
  o->copy(cuda, b, a, BYTES);
  o->copy(cuda, host, b, BYTES);
  for (int i = 0; i < ELEMS; i++) second &= host[i] == one;
  ok(second && tc_device_check(cuda, &err) == 0, "a copy to the device is there for what comes after");
  int64_t last = 0;
  for (int i = 0; i < 200; i++) last = o->copy_begin(cuda, host + i, a + i, 4);
  ok(o->copy_wait(cuda, last) == 0, "more copies than there are events");
  o->free(cuda, a, BYTES);
  o->free(cuda, b, BYTES);
  tc_device_host_free(cuda, host);
}

/* A slice along the first dimension is one row, whose step is all of the tensor: 2 GiB and more. */
static void long_rows(void)
{
  enum { BYTES = 256 };
  const struct tc_device_ops *o = cuda->ops;
  struct tc_err err = { 0 };
  char host[BYTES], *a = o->alloc(cuda, BYTES), *b = o->alloc(cuda, BYTES);
  bool same = true;
  memset(host, 1, BYTES);
  o->copy(cuda, a, host, BYTES);
  tc_device_copy_rows(cuda, b, BYTES, a, INT64_C(3) << 30, BYTES, 1);
  o->copy(cuda, host, b, BYTES);
  for (int i = 0; i < BYTES; i++) same &= host[i] == 1;
  ok(same && tc_device_check(cuda, &err) == 0, "one row, 3 GiB from the next: %s",
     *err.text ? err.text : "copied");
  o->free(cuda, a, BYTES);
  o->free(cuda, b, BYTES);
}

/* A copy that can't be begun must not look like one that is done: a checkpoint is made of it. */
static void copy_that_fails(void)
{
  struct tc_err err = { 0 };
  struct tc_device *d;
  if (tc_device_open(&d, "cuda", 1, &err) < 0) return;
  char *host = tc_device_host_alloc(d, 8192), *a = d->ops->alloc(d, 4096);
  ok(d->ops->copy_wait(d, d->ops->copy_begin(d, host, a, 4096)) == 0, "a copy beside the kernels");
  ok(d->ops->copy_wait(d, d->ops->copy_begin(d, host, a, INT64_C(1) << 40)) == TC_EUSER
         && tc_device_check(d, &err) == TC_EUSER, "... past the end of memory: %s", err.text);
  tc_device_host_free(d, host);
  d->ops->free(d, a, 4096);
  tc_device_close(d);
}

/* More sequences than a grid has: refused before anything runs. */
static void many_sequences(void)
{
  struct tc_err err = { 0 };
  struct tc_view v[3] = { { .dtype = TC_BF16, .rank = 4, .dim = { 65535 * 8, 12, 3, 64 } } };
  struct tc_call c = { .op = TC_OP_ATTN, .n_in = 1, .n_out = 2, .in = v, .out = v + 1, .k = { 8 } };
  const struct tc_kernel *k = &cuda->ops->kernel[TC_OP_ATTN];
  ok(k->prepare(cuda, &c, &err) == 0, "attention over 65535 sequences of 12 heads");
  v->dim[0] += 8;
  ok(k->prepare(cuda, &c, &err) == TC_EUSER && strstr(err.text, "train.micro_batch"),
     "... not over one more: %s", err.text);
}

int main(void)
{
  const char *gpu = getenv("TC_TEST_GPU"), *folder = getenv("TC_EMU_MODULES");
  struct tc_err err = { 0 };
  struct scene *s = calloc(1, sizeof *s);
  if (!gpu || !*gpu) {
    if (!folder || !*folder) skip_all("no C++ compiler to build the emulated kernels with");
    setenv("TERCIO_MODULES", folder, 1);
  }
  s->at = aligned_alloc(64, POOL_BYTES);
  if (tc_device_open(&ref, "ref", 1, &err) < 0 || tc_device_open(&cuda, "cuda", 1, &err) < 0) {
    printf("Bail out! %s\n", err.text);
    return 1;
  }
  for (int dtype = TC_F32, i = 0; i < 2; i++, dtype = TC_BF16) {
    gelu_case(s, dtype, true, N);
    gelu_case(s, dtype, false, N);
    gelu_bwd_case(s, dtype);
    update_case(s, TC_OP_ADAMW, 60, dtype);
    update_case(s, TC_OP_SGD, 7, dtype);
    for (int acc = 0; acc < 4; acc++) bias_bwd_case(s, dtype, TC_F32, acc & 1, acc >> 1);
  }
  bias_bwd_case(s, TC_BF16, TC_BF16, 1, 0);
  head_cases(s, TC_F32);
  head_cases(s, TC_BF16);
  head_extremes(s);
  head_refusals(s);
  refusals(s);
  tf32_cases(s);
  copies();
  long_rows();
  many_sequences();
  copy_that_fails();
  tc_device_close(cuda);
  tc_device_close(ref);
  free(s->at);
  free(s);
  return done_testing();
}
