/* t_documents.c - attention within documents and windows, with scales and caps: ref and cpu, forward and backward, against a
 * softmax in double over an explicit mask, on drawn shapes and patterns of documents; and the blocks that cpu multiplies:
 * those with a visible pair and no others.
 *
 *   t_documents.t [--cases N] [--seed N]         # 40 cases; the seed is SEED, or 1 */
#include "kernels/cpu/cpu.h"
#include "tests/unit/kernels/views.h"

enum { EDGE = 64 };              /* of cpu_attn.c's blocks */

struct scene {
  int64_t B, T, K, G, D, N, H, window;     /* window, scale, cap: 0: not given */
  float scale, cap;
  int32_t *document, *starts;    /* [N]: the token's document, counted; where it begins in its sequence */
  double *qkv, *y, *lse, *dy, *dqkv;       /* [N,K,G+2,D] [N,H,D] [N,H] */
  const char *pattern;
};

/* ---- documents ------------------------------------------------------------------------ */

static bool begins(int pattern, int64_t t, int64_t T)
{
  switch (pattern) {
  case 0: return false;
  case 1: return true;
  case 2: return draw(0, 3) == 0;
  case 3: return draw(0, 59) == 0;
  case 4: return t % EDGE == 0;
  case 5: return t % EDGE == EDGE - 1 || t % EDGE == 1;
  case 6: return t == T - 1;
  default: return t == T / 2;
  }
}

static void draw_documents(struct scene *s)
{
  static const char *const name[] = { "one", "of one token", "of 4", "of 60", "of a block", "beside the blocks' edges",
                                      "the last token", "halves" };
  const int n = sizeof name / sizeof *name;
  int pattern = (int)draw(0, n - 1);
  int32_t document = -1, first = 0;
  s->pattern = name[pattern];
  for (int64_t i = 0; i < s->N; i++) {
    const int64_t t = i % s->T;
    if (t == 0 || begins(pattern, t, s->T)) document++, first = (int32_t)t;
    s->document[i] = document;
    s->starts[i] = first;
  }
}

/* ---- the oracle ----------------------------------------------------------------------- */

static bool sees(const struct scene *s, int64_t query, int64_t key)
{
  return key <= query && s->document[key] == s->document[query] && (!s->window || query - key < s->window);
}

static double *part(const struct scene *s, double *x, int64_t n, int64_t k, int64_t e)
{
  return x + ((n * s->K + k) * (s->G + 2) + e) * s->D;
}

/* The score of x; *slope: its derivative. */
static double capped(const struct scene *s, double x, double *slope)
{
  *slope = 1;
  if (s->cap <= 0) return x;
  const double t = tanh(x / (double)s->cap);
  *slope = 1 - t * t;
  return (double)s->cap * t;
}

/* One head: probabilities of all pairs of a sequence from the mask, then the sums. */
static void head(struct scene *s, int64_t n0, int64_t h)
{
  const int64_t T = s->T, D = s->D, k = h / s->G, e = h % s->G;
  const double scale = s->scale > 0 ? (double)s->scale : 1 / sqrt((double)D);
  double *p = tc_calloc((size_t)T, sizeof *p), *slope = tc_calloc((size_t)T, sizeof *slope);
  for (int64_t i = n0; i < n0 + T; i++) {
    double max = -INFINITY, sum = 0, delta = 0, *q = part(s, s->qkv, i, k, e);
    double *y = s->y + (i * s->H + h) * D, *dy = s->dy + (i * s->H + h) * D, *dq = part(s, s->dqkv, i, k, e);
    for (int64_t j = n0; j < n0 + T; j++) {
      p[j - n0] = 0;
      for (int64_t d = 0; d < D; d++) p[j - n0] += q[d] * part(s, s->qkv, j, k, s->G)[d] * scale;
      p[j - n0] = capped(s, p[j - n0], &slope[j - n0]);
      if (!sees(s, i, j)) p[j - n0] = -INFINITY;
      max = fmax(max, p[j - n0]);
    }
    for (int64_t j = 0; j < T; j++) sum += exp(p[j] - max);
    s->lse[i * s->H + h] = max + log(sum);
    for (int64_t j = 0; j < T; j++) p[j] = exp(p[j] - max) / sum;
    for (int64_t j = 0; j < T; j++)
      for (int64_t d = 0; d < D; d++) y[d] += p[j] * part(s, s->qkv, n0 + j, k, s->G + 1)[d];
    for (int64_t d = 0; d < D; d++) delta += y[d] * dy[d];
    for (int64_t j = 0; j < T; j++) {
      double *dk = part(s, s->dqkv, n0 + j, k, s->G), *dv = part(s, s->dqkv, n0 + j, k, s->G + 1), ds = -delta;
      for (int64_t d = 0; d < D; d++) ds += dy[d] * part(s, s->qkv, n0 + j, k, s->G + 1)[d];
      ds *= p[j] * scale * slope[j];
      for (int64_t d = 0; d < D; d++) {
        dv[d] += p[j] * dy[d];
        dk[d] += ds * q[d];
        dq[d] += ds * part(s, s->qkv, n0 + j, k, s->G)[d];
      }
    }
  }
  TC_FREE(p, slope);
}

/* Of half of the scenes each. */
static void draw_scores(struct scene *s)
{
  if (draw(0, 1)) s->window = draw(0, 2) ? draw(1, s->T) : TC_MIN(s->T + draw(0, 1), EDGE * draw(1, 3) + draw(-1, 1));
  if (draw(0, 1)) s->scale = (float)(0.05 + uniform());
  if (draw(0, 1)) s->cap = (float)(0.3 + 2 * uniform());
}

static struct scene draw_scene(void)
{
  struct scene s = { .B = 1 + draw(0, 1), .T = 1 + draw(0, (draw(0, 1) ? 20 : 260) - 1), .K = 1 + draw(0, 1), .G = 1 + draw(0, 2),
                     .D = 1 + draw(0, 19) };
  s.N = s.B * s.T, s.H = s.K * s.G;
  const size_t x = (size_t)(s.N * s.K * (s.G + 2) * s.D), y = (size_t)(s.N * s.H * s.D), r = (size_t)(s.N * s.H);
  s.document = tc_calloc((size_t)s.N, sizeof *s.document), s.starts = tc_calloc((size_t)s.N, sizeof *s.starts);
  s.qkv = tc_calloc(x, sizeof *s.qkv), s.dqkv = tc_calloc(x, sizeof *s.qkv);
  s.y = tc_calloc(y, sizeof *s.y), s.dy = tc_calloc(y, sizeof *s.y), s.lse = tc_calloc(r, sizeof *s.lse);
  for (size_t i = 0; i < x; i++) s.qkv[i] = (double)(float)(4 * uniform() - 2);
  for (size_t i = 0; i < y; i++) s.dy[i] = (double)(float)(2 * uniform() - 1);
  draw_documents(&s);
  draw_scores(&s);
  for (int64_t b = 0; b < s.B; b++)
    for (int64_t h = 0; h < s.H; h++) head(&s, b * s.T, h);
  return s;
}

static void drop(struct scene *s)
{
  void *all[] = { s->document, s->starts, s->qkv, s->y, s->lse, s->dy, s->dqkv };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- a device ------------------------------------------------------------------------- */

/* A tensor of the device's type with these values; NULL: NaN. Owned. */
static struct tc_view view(int dtype, const double *from, const int64_t *dim)
{
  struct tc_view v = owned(dtype, dim);
  for (int64_t i = 0; from && i < v.elems; i++) put(&v, i, from[i]);
  return v;
}

static double worst(const struct tc_view *got, const double *want)
{
  double off = 0, size = 1e-300, most = 0;
  for (int64_t i = 0; i < got->elems; i++) size = fmax(size, fabs(want[i]));
  for (int64_t i = 0; i < got->elems; i++) {
    off = fabs(get(got, i) - want[i]) / size;
    if (!(off <= most)) most = off;              /* not a number stays */
  }
  return most;
}

static void call(struct tc_device *d, int op, const struct scene *s, struct tc_view *in, int n_in, struct tc_view *out,
                 int n_out)
{
  run_guarded(d, &(struct tc_call){ .op = op, .n_in = n_in, .n_out = n_out, .in = in, .out = out, .f = { s->scale, s->cap },
                                    .k = { s->T, 0, s->window } });
}

/* Forward and backward on a device; the worst differences from the oracle. */
static void run(const char *name, int dtype, struct scene *s, double off[3])
{
  struct tc_device *d = dev(name, 2);
  const int64_t x[] = { s->N, s->K, s->G + 2, s->D, -1 }, y[] = { s->N, s->H, s->D, -1 };
  struct tc_view qkv = view(dtype, s->qkv, x), dy = view(dtype, s->dy, y), dqkv = view(dtype, NULL, x);
  struct tc_view out[2] = { view(dtype, NULL, y), view(dtype, NULL, DIMS(s->N, s->H)) };
  struct tc_view starts = { .data = s->starts, .dtype = TC_I32, .rank = 1, .dim = { s->N }, .global = { s->N },
                            .rows = -1, .elems = s->N };
  call(d, TC_OP_ATTN, s, (struct tc_view[]){ qkv, starts }, 2, out, 2);
  call(d, TC_OP_ATTN_BWD, s, (struct tc_view[]){ dy, qkv, out[0], out[1], starts }, 5, &dqkv, 1);
  off[0] = worst(&out[0], s->y), off[1] = worst(&out[1], s->lse), off[2] = worst(&dqkv, s->dqkv);
  void *all[] = { qkv.data, dy.data, dqkv.data, out[0].data, out[1].data };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
  tc_device_close(d);
}

static void compare(const char *name, int dtype, struct scene *s, int number)
{
  const double tol = dtype == TC_F64 ? 1e-12 : 2e-5;
  double off[3];
  run(name, dtype, s, off);
  ok(off[0] < tol && off[1] < tol && off[2] < tol, "case %d, %s: documents %s, B%lld T%lld K%lld G%lld D%lld, window %lld, "
     "scale %.2g, cap %.2g: off by %.1e, %.1e, %.1e", number, name, s->pattern, (long long)s->B, (long long)s->T,
     (long long)s->K, (long long)s->G, (long long)s->D, (long long)s->window, (double)s->scale, (double)s->cap, off[0],
     off[1], off[2]);
}

/* ---- blocks --------------------------------------------------------------------------- */

static void (*real_tile)(const struct tc_tile *t);
static int64_t tiles;
static void count_tile(const struct tc_tile *t)
{
  tiles++;
  real_tile(t);
}

/* Pairs of blocks of a sequence in which some query sees some key. */
static int64_t visible(const struct scene *s, int64_t n0)
{
  int64_t n = 0;
  for (int64_t q = 0; q < s->T; q += EDGE)
    for (int64_t k = 0; k <= q; k += EDGE) {
      bool any = false;
      for (int64_t i = q; i < TC_MIN(q + EDGE, s->T); i++)
        for (int64_t j = k; j < TC_MIN(k + EDGE, s->T); j++) any |= sees(s, n0 + i, n0 + j);
      n += any;
    }
  return n;
}

static void count_blocks(struct scene *s)
{
  struct tc_device *d = dev("cpu", 1);
  real_tile = tc_cpu_of(d)->tile;
  tc_cpu_of(d)->tile = count_tile;
  const int64_t x[] = { s->N, s->K, s->G + 2, s->D, -1 }, y[] = { s->N, s->H, s->D, -1 };
  struct tc_view qkv = view(TC_F32, s->qkv, x), dy = view(TC_F32, s->dy, y), dqkv = view(TC_F32, NULL, x);
  struct tc_view out[2] = { view(TC_F32, NULL, y), view(TC_F32, NULL, DIMS(s->N, s->H)) };
  struct tc_view starts = { .data = s->starts, .dtype = TC_I32, .rank = 1, .dim = { s->N }, .rows = -1, .elems = s->N };
  int64_t want = 0, got[2];
  for (int64_t b = 0; b < s->B; b++) want += visible(s, b * s->T) * s->H;
  for (int back = 0; back < 2; back++) {
    tiles = 0;
    if (back) call(d, TC_OP_ATTN_BWD, s, (struct tc_view[]){ dy, qkv, out[0], out[1], starts }, 5, &dqkv, 1);
    else call(d, TC_OP_ATTN, s, (struct tc_view[]){ qkv, starts }, 2, out, 2);
    got[back] = tiles;
  }
  ok(got[0] == 2 * want && got[1] == 5 * want, "documents %s, T%lld, window %lld: %lld visible blocks, %lld and %lld products",
     s->pattern, (long long)s->T, (long long)s->window, (long long)want, (long long)got[0], (long long)got[1]);
  void *all[] = { qkv.data, dy.data, dqkv.data, out[0].data, out[1].data };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
  tc_device_close(d);
}

/* The same of a part of a sequence (graph/row_order.h) with a window: queries of two runs, of which one block has some of
 * each, and keys that none of its queries sees between them. */
static void count_of_part(int part, int64_t window)
{
  enum { T = 384, CP = 4, N = T / CP, G = 2, D = 8 };
  const struct tc_row_order order = { .T = T, .sequences = 1, .cp = CP, .zigzag = true };
  struct tc_device *d = dev("cpu", 1);
  struct tc_view in[] = { owned(TC_F32, DIMS(N, 1, G, D)), owned(TC_F32, DIMS(N, 1, G + 2, D)), owned(TC_F32, DIMS(N, G, D)),
                          owned(TC_F32, DIMS(N, G)), owned(TC_F32, DIMS(T, 1, 2, D)) };
  struct tc_view out[] = { owned(TC_F32, DIMS(N, 1, G + 2, D)), owned(TC_F32, DIMS(T, 1, 2, D)) };
  int64_t want = 0, got[2];
  for (size_t i = 0; i < sizeof in / sizeof *in; i++) {
    for (int64_t j = 0; j < in[i].elems; j++) put(&in[i], j, uniform());
    if (i < 4) in[i].off[0] = part * N;
  }
  for (int64_t q = 0; q < N; q += EDGE)
    for (int64_t k = 0; k < T; k += EDGE) {
      bool any = false;
      for (int64_t i = q; i < TC_MIN(q + EDGE, N); i++)
        for (int64_t j = k, at = tc_natural_row(&order, part * N + i); j < k + EDGE; j++)
          any |= j <= at && (!window || at - j < window);
      want += any;
    }
  real_tile = tc_cpu_of(d)->tile;
  tc_cpu_of(d)->tile = count_tile;
  for (int back = 0; back < 2; back++) {
    struct tc_call c = { .op = back ? TC_OP_ATTN_BWD : TC_OP_ATTN, .n_in = back ? 5 : 2, .n_out = 2, .k = { T, 0, window },
                         .in = back ? in : (struct tc_view[]){ in[1], in[4] }, .out = back ? out : in + 2, .rows = order };
    tiles = 0;
    run_guarded(d, &c);
    got[back] = tiles;
  }
  ok(got[0] == 2 * G * want && got[1] == 5 * G * want, "part %d of %d, window %lld: %lld visible blocks, %lld and %lld products",
     part, CP, (long long)window, (long long)want, (long long)got[0], (long long)got[1]);
  for (size_t i = 0; i < sizeof in / sizeof *in; i++) free(in[i].data);
  for (size_t i = 0; i < sizeof out / sizeof *out; i++) free(out[i].data);
  tc_device_close(d);
}

int main(int argc, char **argv)
{
  const int cases = begin_cases(argc, argv, 40);
  for (int i = 0; i < cases; i++) {
    struct scene s = draw_scene();
    compare("ref", TC_F64, &s, i);
    compare("cpu", TC_F32, &s, i);
    count_blocks(&s);
    drop(&s);
  }
  for (int part = 0; part < 4; part++)
    for (int64_t window = 0; window < 200; window += 1 + 2 * window) count_of_part(part, window);
  return done_testing();
}
