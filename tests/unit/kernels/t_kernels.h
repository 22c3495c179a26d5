/* t_kernels.h - what t_kernels.c's cases stand on: running a call on a device, and the check of one
 * case on every device. Included once. */
#ifndef TC_T_KERNELS_H
#define TC_T_KERNELS_H

#include "tests/unit/kernels/views.h"

enum { ARGS = 7 };

/* The devices beside the oracle; t_kernels_cuda.c has the same cases for another one. */
#ifndef T_DEVICE
#define T_DEVICE "cpu"
#define T_THREADS 4
#define T_BEFORE(threads) ((void)0)
#define T_SAME "%s: same bits with 1 to %d threads"
#endif
static const char *const device_name[] = { "ref", T_DEVICE };

/* ---- random inputs ------------------------------------------------------------------- */

/* What an input is filled with. */
enum fill { NORMALISH, POSITIVE, LOGITS, TOKENS };
static void random_fill(struct tc_view *v, enum fill kind, int64_t vocab)
{
  back(v);
  for (int64_t i = 0; i < v->elems; i++) {
    double x = uniform() + uniform() + uniform() + uniform() - 2;
    if (kind == POSITIVE) x = uniform() + 0.1;
    if (kind == LOGITS) x *= 8;
    if (kind == TOKENS) x = (double)(int64_t)(uniform() * uniform() * (double)vocab);
    put(v, i, x);
  }
}

/* ---- running a call ------------------------------------------------------------------ */

/* One case: a call with inputs filled and outputs described; out k is in the memory of input over[k]. */
struct test {
  struct tc_call c;
  struct tc_view in[ARGS], out[ARGS];
  int over[ARGS];
  struct tc_runtime rt;
  double tol;
  bool product;                  /* bits may depend on threads */
  int results;                   /* outputs from this one on are memory to work in; 0: none */
  enum fill before;              /* what outputs hold before the call */
  char label[300];
};

static struct test new_test(int op, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static struct test new_test(int op, const char *fmt, ...)
{
  struct test t = { .c.op = op, .tol = 2e-6, .over = { -1, -1, -1, -1, -1, -1, -1 } };
  const char *label = t.label;
  va_list ap;
  va_start(ap, fmt);
  int n = snprintf(t.label, sizeof t.label, "%s ", tc_op_info[op].name);
  vsnprintf(t.label + n, sizeof t.label - (size_t)n, fmt, ap);
  va_end(ap);
  for (random_state = 1; *label; label++)        /* whatever came before */
    random_state = (random_state ^ (unsigned char)*label) * UINT64_C(0x100000001b3);
  t.rt = (struct tc_runtime){ .seed = 77, .step = 3, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f,
                              .eps = 1e-8f, .weight_decay = 0.1f, .clip = 1 };
  return t;
}

static struct tc_view *input(struct test *t, int dtype, const int64_t *dim, enum fill kind)
{
  struct tc_view *v = &t->in[t->c.n_in++];
  *v = tensor(dtype, dim);
  random_fill(v, kind, 40);
  return v;
}

static struct tc_view *output(struct test *t, int dtype, const int64_t *dim)
{
  t->out[t->c.n_out] = tensor(dtype, dim);
  return &t->out[t->c.n_out++];
}

/* The same bytes, guard included, in memory that the device's kernels can reach; or v itself. */
static void *to_device(struct tc_device *d, const struct tc_view *v)
{
  size_t bytes = (size_t)v->elems * tc_dtype_bytes(v->dtype) + GUARD;
  if (!d->ops->separate) return v->data;
  void *p = d->ops->alloc(d, (int64_t)bytes);
  if (p) d->ops->copy(d, p, v->data, (int64_t)bytes);
  return p;
}

static void from_device(struct tc_device *d, const struct tc_view *v, void *p)
{
  size_t bytes = (size_t)v->elems * tc_dtype_bytes(v->dtype) + GUARD;
  if (!d->ops->separate) return;
  d->ops->copy(d, v->data, p, (int64_t)bytes);
  d->ops->free(d, p, (int64_t)bytes);
}

/* The call with its views' data where the device has it; what it wrote comes back. */
static bool run_there(struct tc_device *d, struct tc_call *c, const struct tc_view *scratch)
{
  const struct tc_kernel *kernel = &d->ops->kernel[c->op];
  struct tc_view host[2 * ARGS], at[2 * ARGS];
  struct tc_err err = { 0 };
  int n = 0;
  for (int i = 0; i < c->n_in; i++) host[n++] = c->in[i];
  for (int k = 0; k < c->n_out; k++) host[n++] = c->out[k];
  for (int i = 0; i < n; i++) {
    at[i] = host[i];
    at[i].data = NULL;
    for (int j = 0; j < i && !at[i].data; j++)   /* an output in the memory of an input */
      if (host[j].data == host[i].data) at[i].data = at[j].data;
    if (!at[i].data) at[i].data = to_device(d, &host[i]);
  }
  c->in = at, c->out = at + c->n_in;
  c->scratch = to_device(d, scratch);
  bool good = !kernel->prepare || kernel->prepare(d, c, &err) == 0;
  good = good && kernel->run(d, c) == 0;
  if (kernel->unprepare) kernel->unprepare(d, c);
  d->ops->sync(d);
  if (tc_device_check(d, &err) < 0) good = false;
  if (*err.text) printf("# %s\n", err.text);
  for (int i = 0; i < n; i++) {
    bool twice = false;
    for (int j = 0; j < i; j++) twice |= host[j].data == host[i].data;
    if (!twice) from_device(d, &host[i], at[i].data);
  }
  from_device(d, scratch, c->scratch);
  return good;
}

/* Runs on device d with outputs (copied from `before`) of their own types, or all fp64. */
static bool run_on(struct tc_device *d, const struct test *t, const struct tc_view *before,
                   bool f64, struct tc_view *result)
{
  struct tc_call c = t->c;
  struct tc_view in[ARGS];
  memcpy(in, t->in, sizeof in);
  c.in = in, c.out = result, c.rt = &t->rt;
  for (int k = 0; k < c.n_out; k++) {
    result[k] = t->out[k];
    if (f64) result[k].dtype = TC_F64;
    back(&result[k]);
    for (int64_t i = 0; before[k].data && i < result[k].elems; i++)
      put(&result[k], i, get(&before[k], i));
    if (t->over[k] >= 0) {
      for (int64_t i = 0; i < result[k].elems; i++)
        put(&result[k], i, get(&t->in[t->over[k]], i));
      in[t->over[k]] = result[k];
    }
  }
  const struct tc_kernel *kernel = &d->ops->kernel[c.op];
  int64_t bytes = kernel->scratch ? kernel->scratch(d, &c) : 0;
  struct tc_view scratch = owned(TC_U8, DIMS(bytes));
  bool good = run_there(d, &c, &scratch);
  if (!guard_holds(&scratch)) good = false, printf("# wrote past its scratch\n");
  for (int k = 0; k < c.n_out; k++)
    if (!guard_holds(&result[k])) good = false, printf("# wrote past output %d\n", k);
  free(scratch.data);
  return good;
}

static bool close_to(const struct tc_view *got, const struct tc_view *want, double tol, int k)
{
  double square = 0, off = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < want->elems; i++)
    if (isfinite(get(want, i))) {
      square += get(want, i) * get(want, i), count++;
      off += (get(got, i) - get(want, i)) * (get(got, i) - get(want, i));
    }
  /* Where single elements may be further off than their own rounding, all together may not; but few ones may (tol over 1/20). */
  if (tol > 1.0 / 256 && sqrt(off) > (tol > 1.0 / 10 ? 1.0 / 32 : tol > 1.0 / 20 ? 1.0 / 160 : 1.0 / 256) * sqrt(square)) {
    printf("# output %d: off by %.3g of its norm\n", k, sqrt(off / square));
    return false;
  }
  double rms = count ? sqrt(square / (double)count) : 0;
  if (got->dtype == TC_BF16) tol = TC_MAX(tol, 1.0 / 256);
  for (int64_t i = 0; i < want->elems; i++) {
    double a = get(got, i), b = get(want, i);
    if (a == b || (isnan(a) && isnan(b))) continue;
    if (fabs(a - b) <= tol * (fabs(b) + rms) || (rms == 0 && fabs(a - b) <= tol)) continue;      /* 0: terms cancel */
    printf("# output %d, element %lld: got %.9g, want %.9g (rms %.3g)\n", k, (long long)i, a, b,
           rms);
    return false;
  }
  return true;
}

static void drop(struct tc_view *v, int n)
{
  for (int i = 0; i < n; i++) {
    free(v[i].data);
    v[i].data = NULL;
  }
}

/* --only and --not of the command line: parts of ops' names, with commas between them; NULL: not given. */
static const char *only_ops, *not_ops;

static bool in_list(const char *list, const char *name)
{
  char word[40];
  for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
    snprintf(word, sizeof word, "%.*s", (int)strcspn(at, ","), at);
    if (*word && strstr(name, word)) return true;
  }
  return false;
}

/* A list that no op is in would pass without a check. */
static void choose(int argc, char **argv)
{
  for (int i = 1; i < argc; i += 2) {
    const char **list = !strcmp(argv[i], "--only") ? &only_ops : !strcmp(argv[i], "--not") ? &not_ops : NULL;
    bool any = false;
    for (int op = 0; i + 1 < argc && op < TC_OPS; op++) any |= in_list(argv[i + 1], tc_op_info[op].name);
    if (!list || !any) {
      printf("Bail out! %s %s: give --only or --not, and parts of ops' names\n", argv[i],
             i + 1 < argc ? argv[i + 1] : "");
      exit(2);
    }
    *list = argv[i + 1];
  }
}

static bool chosen(int op)
{
  const char *name = tc_op_info[op].name;
  return (!only_ops || in_list(only_ops, name)) && !(not_ops && in_list(not_ops, name));
}

/* Under the address sanitizer, which takes up to ten times as long, one case in three of each op is enough: the others
 * differ in numbers, and run where nothing is instrumented. */
static bool left_out(int op)
{
#ifdef __SANITIZE_ADDRESS__
  static int cases[TC_OPS];
  return cases[op]++ % 3 != 0;
#else
  (void)op;
  return false;
#endif
}

/* Checks the case on every device, and frees its inputs. want: what the oracle makes in fp64, got: what the device does;
 * both are owned by the caller. */
static void compare(struct test *t, struct tc_view before[ARGS], struct tc_view want[ARGS], struct tc_view got[ARGS])
{
  struct tc_device *oracle = dev("ref", 1);
  bool good = run_on(oracle, t, before, true, want), same = true;
  for (size_t i = 0; i < 2; i++) {
    for (int threads = 1; threads <= (i == 0 ? 1 : T_THREADS); threads++) {
      struct tc_device *d = dev(device_name[i], threads);
      struct tc_view now[ARGS] = { 0 };
      T_BEFORE(threads);
      good = run_on(d, t, before, false, now) && good;
      for (int k = 0; k < (t->results ? t->results : t->c.n_out); k++) {
        good = close_to(&now[k], &want[k], t->tol, k) && good;
        size_t bytes = (size_t)now[k].elems * tc_dtype_bytes(now[k].dtype);
        if (i > 0 && threads > 1) same = same && !memcmp(now[k].data, got[k].data, bytes);
      }
      if (!good) printf("# on %s with %d threads\n", device_name[i], threads);
      if (i > 0 && threads == 1) memcpy(got, now, sizeof now);
      else drop(now, t->c.n_out);
      tc_device_close(d);
      if (!good) break;
    }
  }
  ok(good, "%s: agrees with ref in fp64", t->label);
  if (!t->product && T_THREADS > 1) ok(same, T_SAME, t->label, T_THREADS);
  tc_device_close(oracle);
}

/* ... and its results. */
static void check(struct test *t)
{
  struct tc_view before[ARGS] = { 0 }, want[ARGS] = { 0 }, got[ARGS] = { 0 };
  for (int k = 0; k < t->c.n_out; k++) {         /* also of what is left out: others' numbers stay */
    if (!(t->c.acc >> k & 1)) continue;
    before[k] = t->out[k];
    random_fill(&before[k], t->before, 0);
  }
  if (chosen(t->c.op) && !left_out(t->c.op)) compare(t, before, want, got);
  drop(t->in, t->c.n_in);
  drop(want, ARGS);
  drop(got, ARGS);
  drop(before, ARGS);
}

/* The last inputs' values become what `op` of the oracle makes of the first ones: statistics
 * that backward ops need. outs[k] is the input that gets output k. */
static void derive(struct test *t, int op, const int *ins, int n_in, const int *outs, int n_out)
{
  if (!chosen(t->c.op)) return;
  struct tc_device *d = dev("ref", 1);
  struct tc_view in[ARGS], out[ARGS];
  for (int i = 0; i < n_in; i++) in[i] = t->in[ins[i]];
  for (int k = 0; k < n_out; k++) out[k] = t->in[outs[k]];
  struct tc_call c = { .op = op, .n_in = n_in, .n_out = n_out, .in = in, .out = out,
                       .rt = &t->rt, .f = { t->c.f[0], t->c.f[1] }, .k = { t->c.k[0], t->c.k[1], t->c.k[2] } };
  d->ops->kernel[op].run(d, &c);
  tc_device_close(d);
}

#endif
