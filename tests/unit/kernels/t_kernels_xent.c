/* t_kernels_xent.c - cross-entropy as the CUDA device does it, in one call forward and one backward,
 * beside ref's calls and the device's own one by one; and in one call for both, which has the bits of these two;
 * nothing else of the memory may change. See scene.h. */
#include "tests/unit/kernels/scene.h"

enum { TO_SUMEXP = 3, TO_NLL = 4 };
/* A block of V columns from `first` on, of a vocabulary of `live`; logits around `middle`; nll's z. */
struct head { int dtype; int64_t N, V, first, live; float middle, z; };

static void say(char what[100], const struct head *h, const char *parts)
{
  snprintf(what, 100, "%s, %s, [%lld,%lld] at %lld of %lld around %g%s", parts,
           tc_dtype_name(h->dtype), (long long)h->N, (long long)h->V, (long long)h->first,
           (long long)h->live, (double)h->middle, h->z > 0 ? ", z" : "");
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
      const float slope = 40 * (float)v / (float)h->V, noise = 6 * (float)uniform();
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
    const int32_t in = (int32_t)(h->first + draw(0, h->V - 1));
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

static void nll(struct scene *s, const struct head *h, struct tc_view m, struct tc_view e, struct tc_view p, struct tc_view t,
                struct tc_view l)
{
  call(s, TC_OP_NLL, 4, 1, VIEW(m, e, p, t, l))->f[0] = h->z;
}

static void nll_bwd(struct scene *s, const struct head *h, struct tc_view dl, struct tc_view e, struct tc_view t,
                    struct tc_view m, struct tc_view ds, struct tc_view dp)
{
  if (h->z > 0) call(s, TC_OP_NLL_BWD, 4, 2, VIEW(dl, e, t, m, ds, dp))->f[0] = h->z;
  else call(s, TC_OP_NLL_BWD, 3, 2, VIEW(dl, e, t, ds, dp));
}

/* n parts of rowmax, pick, sumexp, nll; 2: without pick. */
static void forward_case(struct scene *s, const struct head *h, int n)
{
  char what[100];
  clear(s);
  say(what, h, n == TO_NLL ? "rowmax to nll"
               : n == TO_SUMEXP ? "rowmax to sumexp" : "rowmax, sumexp");
  struct tc_view x = logits(s, h), t = targets(s, h), m = column(s, h), e = column(s, h);
  struct tc_view p = column(s, h), l = column(s, h);
  call(s, TC_OP_ROWMAX, 1, 1, VIEW(x, m))->k[0] = h->live;
  if (n >= TO_SUMEXP) call(s, TC_OP_PICK, 2, 1, VIEW(x, t, p));
  call(s, TC_OP_SUMEXP, 2, 1, VIEW(x, m, e))->k[0] = h->live;
  if (n == TO_NLL) nll(s, h, m, e, p, t, l);
  check_product(s, false, 1e-6, what);
}

/* The gradient, element by element: relative to the element, at the target to what cancels. */
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

static void backward_case(struct scene *s, const struct head *h, bool with_nll)
{
  char what[100];
  clear(s);
  say(what, h, with_nll ? "nll_bwd to pick_bwd" : "sumexp_bwd, pick_bwd");
  struct tc_view x = logits(s, h), t = targets(s, h), m = column(s, h), e = column(s, h);
  struct tc_view dl = column(s, h), ds = column(s, h), dp = column(s, h), dx = logits(s, h);
  for (int64_t n = 0; n < h->N; n++) {           /* s and ds of a softmax, more or less */
    put(&m, n, h->middle + (n % 3 == 0 ? 6.f : n % 3 == 1 ? 40.f : 0.f));
    put(&e, n, (float)h->V / 20 + 1);
    put(&ds, n, get(&dl, n) / get(&e, n));
  }
  if (with_nll) nll_bwd(s, h, dl, e, t, m, ds, dp);
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

/* ---- forward and backward in one call ---- */

enum { X, T, M, E, P, L, DL, DS, DP, DX, BOTH_VIEWS };

static void forward_parts(struct scene *s, const struct head *h, const struct tc_view *v)
{
  call(s, TC_OP_ROWMAX, 1, 1, VIEW(v[X], v[M]))->k[0] = h->live;
  call(s, TC_OP_PICK, 2, 1, VIEW(v[X], v[T], v[P]));
  call(s, TC_OP_SUMEXP, 2, 1, VIEW(v[X], v[M], v[E]))->k[0] = h->live;
  nll(s, h, v[M], v[E], v[P], v[T], v[L]);
}

static void backward_parts(struct scene *s, const struct head *h, const struct tc_view *v)
{
  nll_bwd(s, h, v[DL], v[E], v[T], v[M], v[DS], v[DP]);
  call(s, TC_OP_SUMEXP_BWD, 3, 1, VIEW(v[X], v[M], v[DS], v[DX]))->k[0] = h->live;
  call(s, TC_OP_PICK_BWD, 3, 1, VIEW(v[DX], v[T], v[DP], v[DX]));
}

static void both_scene(struct scene *s, const struct head *h, struct tc_view v[BOTH_VIEWS])
{
  clear(s);
  v[X] = logits(s, h), v[T] = targets(s, h);
  for (int i = 0; i < BOTH_VIEWS; i++)
    if (i != X && i != T && i != DX) v[i] = column(s, h);
  v[DX] = logits(s, h);
  forward_parts(s, h, v);
  backward_parts(s, h, v);
}

/* The memory after the parts have run, which then is the scene's. */
static bool go_on(struct scene *s)
{
  char *now = run(s, cuda, true);
  if (now) memcpy(s->at, now, POOL_BYTES);
  free(now);
  s->n = 0;
  return now != NULL;
}

/* A row as the device keeps it in shared memory: two of them, of whole 16 bytes. */
static int64_t shared_bytes = 228 << 10;         /* of a multiprocessor of an H100 */
static bool is_kept(const struct head *h)
{
  return h->V % 8 == 0 && 2 * (h->V * (int64_t)tc_dtype_bytes(h->dtype) + 1536) <= shared_bytes;
}

static void both_case(struct scene *s, const struct head *h)
{
  struct tc_view v[BOTH_VIEWS];
  char what[100], *before = malloc(POOL_BYTES);
  say(what, h, "rowmax to pick_bwd");
  both_scene(s, h, v);
  char *got = run(s, cuda, true);
  if (on_gpu() && !s->can) skip("%s: not kept in shared memory", what);
  else ok((got != NULL) == is_kept(h), "%s: %s", what, is_kept(h) ? "runs" : "not fused");
  if (got) {
    bool same = true;
    ok(rest_is_same(s, got, s->at), "%s: writes nothing else", what);
    memcpy(before, s->at, POOL_BYTES);
    s->n = 0;
    forward_parts(s, h, v);
    same = go_on(s);
    backward_parts(s, h, v);
    same &= go_on(s);
    for (int i = 0; i < BOTH_VIEWS; i++) {
      const int64_t at = (char *)v[i].data - s->at, bytes = v[i].elems * (int64_t)tc_dtype_bytes(v[i].dtype);
      if (i != DS && i != DP) same &= !memcmp(s->at + at, got + at, (size_t)bytes);
    }
    ok(same, "%s: the bits of forward and backward", what);
    memcpy(s->at, before, POOL_BYTES);
  }
  free(before);
  free(got);
}

/* Infinities and NaN; a GPU with less shared memory, which has two passes over long rows. */
static void both_elsewhere(struct scene *s)
{
  const float middle[] = { INFINITY, -INFINITY, NAN };
  struct tc_device *usual = cuda;
  struct tc_err err = { 0 };
  for (int i = 0; i < 3; i++) both_case(s, &(struct head){ TC_BF16, 5, 640, 0, 600, middle[i], 0 });
  if (on_gpu()) return;
  setenv("TC_EMU_CAPABILITY", "8", 1);
  shared_bytes = 164 << 10;
  if (ok(tc_device_open(&cuda, "cuda", 1, &err) == 0, "an A100 %s", err.text)) {
    both_case(s, &(struct head){ TC_BF16, 2, 50304, 0, 50257, 10, 0 });
    both_case(s, &(struct head){ TC_BF16, 2, 40000, 0, 40000, 10, 0 });
    tc_device_close(cuda);
  }
  unsetenv("TC_EMU_CAPABILITY");
  shared_bytes = 228 << 10;
  cuda = usual;
}

static void both_refusals(struct scene *s)
{
  const struct head h = { TC_BF16, 4, 40, 0, 40, 0, 0.1f };
  const char *const what[] = { "of other logits", "of another maximum", "of another sum", "of other targets",
                               "of another padding", "of another z", "with a square of another maximum" };
  struct tc_view v[BOTH_VIEWS];
  for (int i = 0; i < 7; i++) {
    both_scene(s, &h, v);
    const struct tc_view x = logits(s, &h), t = targets(s, &h), other = column(s, &h);
    if (i == 0) s->part[5].c.in[0] = x;
    if (i == 1) s->part[5].c.in[1] = other;
    if (i == 2) s->part[4].c.in[1] = other;
    if (i == 3) s->part[4].c.in[2] = s->part[6].c.in[1] = t;
    if (i == 4) s->part[5].c.k[0]--;
    if (i == 5) s->part[4].c.f[0] = 0.2f;
    if (i == 6) s->part[4].c.in[3] = other;
    ok(!run(s, cuda, true), "... not fused: a gradient %s", what[i]);
  }
}

/* Logits that are no numbers or infinite end as they do one by one; so does a block of padding. */
static void head_extremes(struct scene *s)
{
  const float what[] = { -INFINITY, -INFINITY, NAN, INFINITY };
  for (int64_t live = 0; live <= 40; live += 40) {
    const struct head h = { TC_F32, 4, 40, 0, live, 0, 0 };
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
  const struct head h = { TC_F32, 4, 40, 0, 40, 0, 0 };
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
    ok(!run(s, cuda, true), "... not fused: a sum %s", forward[i]);
  }
  const char *const backward[] = { "to another place", "of another loss", "of other targets" };
  for (int i = 0; i < 3; i++) {
    backward_case(s, &h, true);
    struct tc_view other = column(s, &h), x = logits(s, &h);
    if (i == 0) s->part[2].c.out[0] = x;
    if (i == 1) s->part[1].c.in[2] = other;
    if (i == 2) s->part[0].c.in[2].data = other.data;
    ok(!run(s, cuda, true), "... not fused: a gradient %s", backward[i]);
  }
}

/* Fewer columns than a thread has, more than a block reads at once, rows that can't be read 8 at a
 * time, padding, blocks that begin elsewhere or hold nothing but padding; no rows. */
static void head_cases(struct scene *s, int dtype)
{
  const struct head all[] = {
    { dtype, 9, 1, 0, 1, 0, 0 }, { dtype, 8, 5, 0, 4, 0, 0 }, { dtype, 7, 256, 0, 256, 30, 0 },
    { dtype, 4, 2043, 0, 2043, -30, 0 }, { dtype, 3, 16384, 0, 16381, 0, 0 },
    { dtype, 3, 20008, 0, 20008, 90, 0 }, { dtype, 2, 33001, 0, 32990, -90, 0 },
    { dtype, 9, 64, 64, 120, 0, 0 }, { dtype, 9, 4104, 4104, 8208, 0, 0 }, { dtype, 6, 24, 72, 60, 0, 0 },
    { dtype, 7, 264, 0, 257, 30, 0.01f }, { dtype, 9, 4104, 0, 4104, -8, 0.1f },
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    for (int n = 2; n <= TO_NLL && all[i].first < all[i].live; n++) forward_case(s, &all[i], n);
    for (int nll = 0; nll < 2; nll++) backward_case(s, &all[i], nll != 0);
    if (all[i].first < all[i].live) both_case(s, &all[i]);
  }
  both_case(s, &(struct head){ dtype, 2, 50304, 0, 50257, 10, 0 });
  both_case(s, &(struct head){ dtype, 2, 32768, 0, 32768, 10, 0 });
  both_case(s, &(struct head){ dtype, 2, 60000, 0, 60000, 10, 0 });
}

int main(void)
{
  struct scene *s = scene_new();
  head_cases(s, TC_F32);
  head_cases(s, TC_BF16);
  head_extremes(s);
  head_refusals(s);
  both_refusals(s);
  both_elsewhere(s);
  scene_free(s);
  return done_testing();
}
