/* t_attn_tiles.c - the tiles that attention's kernels on tensor cores load (kernels/cuda/attn_fwd.cu, attn_bwd.cu): those of
 * which a row sees, or is seen by, a row of the block, and no others; with windows, documents, groups and parts of sequences.
 *
 * The emulated GPU counts the copies that kernels start (emu_copies_started). The oracle looks at each pair. */
#include "tests/unit/kernels/scene.h"

#include <dlfcn.h>

/* A call: one sequence of T tokens, one group of G heads of size D, documents of `each` tokens, 0: none; part: of cp, whose
 * queries are here (zigzag), -1: all; cap: of scores, 0: none. */
struct attended { int64_t T, W, D, G, each; int part; float cap; };
enum { CP = 2 };

/* Rows of a block and of a tile: in the natural order, and in runs or of capped scores. */
struct kernel { int rows, tile; bool keys; };
enum { KERNELS = 3 };
static const struct { int64_t D; struct kernel k[KERNELS]; } natural[] = {
  { 32, { { 128, 64, false }, { 128, 32, false }, { 128, 32, true } } },
  { 64, { { 128, 64, false }, { 128, 32, false }, { 64, 64, true } } },
  { 80, { { 64, 64, false }, { 64, 32, false }, { 64, 32, true } } },
};
static const struct kernel runs[KERNELS] = { { 64, 64, false }, { 64, 32, false }, { 64, 32, true } };

static uint64_t (*copies)(void);
static bool in_parts = true;     /* each head's gradient of keys is computed by blocks of its own: there are few of these */

/* ---- the oracle ------------------------------------------------------------------------ */

static int64_t queries_of(const struct attended *a) { return a->part < 0 ? a->T : a->T / CP; }

/* The position of query i of those here. */
static int64_t position(const struct attended *a, int64_t i)
{
  const int64_t run = a->T / (2 * CP);
  if (a->part < 0) return i;
  return i < run ? a->part * run + i : (2 * CP - 1 - a->part) * run + i - run;
}

static bool sees(const struct attended *a, int64_t query, int64_t key)
{
  return key <= query && (!a->W || query - key < a->W) && (!a->each || query / a->each == key / a->each);
}

/* Pairs of a block and a tile of `other` rows with a pair that sees; *blocks: those with any. */
static int64_t visible(const struct attended *a, const struct kernel *k, int64_t *blocks)
{
  const int64_t rows = k->keys ? a->T : queries_of(a), others = k->keys ? queries_of(a) : a->T;
  int64_t n = 0;
  for (int64_t b = 0; b < rows; b += k->rows) {
    const int64_t before = n;
    for (int64_t t = 0; t < others; t += k->tile) {
      bool any = false;
      for (int64_t i = b; i < TC_MIN(b + k->rows, rows); i++)
        for (int64_t j = t; j < TC_MIN(t + k->tile, others) && !any; j++)
          any = k->keys ? sees(a, position(a, j), i) : sees(a, position(a, i), j);
      n += any;
    }
    *blocks += n > before;
  }
  return n;
}

/* Copies of 16 bytes of the kernels from `from` to `end`: of a block its own rows, once or twice, and two operands of a
 * tile. A block of keys has the queries of all heads, others, and parts, are of one head. */
static int64_t expected(const struct attended *a, int from, int end)
{
  int64_t n = 0;
  for (int i = from; i < end; i++) {
    const struct kernel *k = &runs[i];
    for (size_t j = 0; a->part < 0 && a->cap <= 0 && j < sizeof natural / sizeof *natural; j++)
      if (natural[j].D == a->D) k = &natural[j].k[i];
    int64_t blocks = 0;
    const int64_t tiles = visible(a, k, &blocks);
    n += a->D / 8 * ((k->keys && !in_parts ? 1 : a->G) * blocks * k->rows * (i ? 2 : 1) + a->G * tiles * k->tile * 2);
  }
  return n;
}

/* ---- the calls ------------------------------------------------------------------------- */

static void add_call(struct scene *s, const struct attended *a, int op, int n_in, int n_out, const struct tc_view *v)
{
  struct tc_call *c = call(s, op, n_in, n_out, v);
  c->k[0] = a->T, c->k[2] = a->W, c->f[1] = a->cap;
  if (a->part >= 0) c->rows = (struct tc_row_order){ .T = a->T, .sequences = 1, .cp = CP, .zigzag = true };
}

/* N rows of [group, D], from the first of the part. */
static struct tc_view rows_of(struct scene *s, const struct attended *a, int64_t N, int64_t group)
{
  struct tc_view v = tensor(s, TC_BF16, N * group * a->D, a->D, false);
  v.rank = 4, v.dim[0] = N, v.dim[1] = 1, v.dim[2] = group, v.dim[3] = a->D;
  v.off[0] = N < a->T ? a->part * N : 0;
  return v;
}

/* The call forward or back, as the scene's only one. */
static void set_call(struct scene *s, const struct attended *a, bool back)
{
  const int64_t N = queries_of(a);
  struct tc_view v[8];
  int n = 0;
  clear(s);
  if (back) v[n++] = rows_of(s, a, N, a->G);
  v[n++] = rows_of(s, a, N, a->G + 2);
  if (back) v[n++] = rows_of(s, a, N, a->G), v[n++] = tensor(s, TC_F32, N * a->G, a->G, true);
  if (a->part >= 0) v[n++] = rows_of(s, a, a->T, 2);
  if (a->each) {
    struct tc_view starts = tensor(s, TC_F32, N, 1, false);
    starts.dtype = TC_I32, starts.rank = 1;
    for (int64_t i = 0; i < N; i++) ((int32_t *)starts.data)[i] = (int32_t)(position(a, i) / a->each * a->each);
    v[n++] = starts;
  }
  const int n_in = n;
  v[n++] = rows_of(s, a, N, back ? a->G + 2 : a->G);
  if (!back) v[n++] = tensor(s, TC_F32, N * a->G, a->G, false);
  else if (a->part >= 0) v[n++] = rows_of(s, a, a->T, 2);
  add_call(s, a, back ? TC_OP_ATTN_BWD : TC_OP_ATTN, n_in, n - n_in, v);
}

static void check(struct scene *s, const struct attended *a)
{
  for (int back = 0; back < 2; back++) {
    set_call(s, a, back);
    const uint64_t before = copies();
    char *result = run(s, cuda, false);
    is_int((int64_t)(copies() - before), expected(a, back ? 1 : 0, back ? KERNELS : 1),
           "T%d D%d G%d, window %d, documents of %d, part %d, cap %g, %s: copies of the visible tiles%s%s", (int)a->T, (int)a->D,
           (int)a->G, (int)a->W, (int)a->each, a->part, (double)a->cap, back ? "back" : "forward",
           in_parts ? "" : ", heads in turn", result ? "" : ", failed");
    free(result);
  }
}

int main(void)
{
  static const int64_t length[] = { 1, 64, 130, 300 }, window[] = { 0, 1, 2, 63, 64, 65, 66, 100, 128, 129, 193, 1000 };
  char *path = tc_sprintf("%s/tercio-cuda.so", getenv("TC_EMU_MODULES") ? getenv("TC_EMU_MODULES") : "");
  if (on_gpu()) skip_all("only the emulated GPU counts copies");
  struct scene *s = scene_new();
  void *module = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  free(path);
  if (module) *(void **)&copies = dlsym(module, "emu_copies_started");
  if (!ok(copies != NULL, "the emulated GPU counts copies")) return done_testing();
  for (size_t d = 0; d < sizeof natural / sizeof *natural; d++)
    for (size_t t = 0; t < sizeof length / sizeof *length; t++)
      for (size_t w = d; w < sizeof window / sizeof *window; w += length[t] < 300 ? 3 : 1)
        check(s, &(struct attended){ length[t], window[w], natural[d].D, 1, 0, -1, 0 });
  for (size_t w = 0; w < sizeof window / sizeof *window; w += 2) {
    check(s, &(struct attended){ 260, window[w], 64, 2, 70, -1, 0 });
    check(s, &(struct attended){ 260, window[w], 128, 1, 0, -1, 2 });
    for (int part = 0; part < CP; part++) check(s, &(struct attended){ 512, window[w], 64, 1 + part, 150 * part, part, 0 });
  }
  in_parts = false;
  setenv("TC_EMU_FEW_BLOCKS", "0", 1);
  for (int64_t W = 0; W < 200; W += 63) {
    check(s, &(struct attended){ 260, W, 64, 3, 70, -1, 0 });
    check(s, &(struct attended){ 512, W, 64, 2, 0, 1, 0 });
  }
  scene_free(s);
  return done_testing();
}
