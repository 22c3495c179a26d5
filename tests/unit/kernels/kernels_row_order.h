/* kernels_row_order.h - t_kernels.c's cases of context parallelism: keys and values by themselves, and tokens whose rows
 * have another order (graph/row_order.h).
 *
 * A case has the tokens of a block in their natural order, of which each rank takes its part by a list of rows
 * (unit/row_list.h). Each rank's call is compared with ref's, and the results of all, put together in the natural order,
 * with those of one call for all tokens, on every device. */
#ifndef TC_KERNELS_ROW_ORDER_H
#define TC_KERNELS_ROW_ORDER_H

#include "tests/unit/kernels/kernels_attention.h"
#include "tests/unit/row_list.h"

/* ---- keys and values by themselves ----------------------------------------------------- */

/* Copies of a piece's groups: to the last bit. */
static void key_copies(int dtype, int64_t N, int64_t K, int64_t G, int64_t D, int64_t pieces, int64_t piece)
{
  const int64_t group = (G + 2) * D, keys = 2 * D;
  for (int back = 0; back < 2; back++) {
    struct test t = new_test(back ? TC_OP_KV_BWD : TC_OP_KV, "N%lld K%lld G%lld D%lld %s, piece %lld of %lld", (long long)N,
                             (long long)K, (long long)G, (long long)D, tc_dtype_name(dtype), (long long)piece,
                             (long long)pieces);
    input(&t, dtype, DIMS(N, K, G + 2, D), NORMALISH);
    if (back) input(&t, dtype, DIMS(N, K / pieces, 2, D), NORMALISH);
    output(&t, dtype, back ? DIMS(N, K, G + 2, D) : DIMS(N, K / pieces, 2, D));
    if (back) t.over[0] = 0;
    t.c.k[1] = piece;
    for (int i = 0; i < 2 && chosen(t.c.op); i++) {
      struct tc_device *d = dev(device_name[i], 2);
      struct tc_view none[ARGS] = { 0 }, y;
      int64_t wrong = !run_on(d, &t, none, false, &y);
      for (int64_t at = 0; at < y.elems; at++) {
        const int64_t of = back ? at / group : at / keys * pieces + piece;
        const int64_t in_group = back ? at % group : group - keys + at % keys;
        const bool key = in_group >= group - keys && of % pieces == piece;
        const double want = back && key ? get(&t.in[1], of / pieces * keys + in_group - (group - keys))
                                        : get(&t.in[0], of * group + in_group);
        wrong += get(&y, at) != want;
      }
      is_int(wrong, 0, "%s: copies on %s", t.label, device_name[i]);
      drop(&y, 1);
      tc_device_close(d);
    }
    check(&t);
  }
}

/* A group's queries in `copies` parts, each with its key and value; back: these are summed. */
static void spreads(int dtype, int64_t N, int64_t K, int64_t part, int64_t copies, int64_t D)
{
  const int64_t G = part * copies;
  for (int back = 0; back < 2; back++) {
    struct test t = new_test(back ? TC_OP_SPREAD_BWD : TC_OP_SPREAD, "N%lld K%lld G%lld D%lld in %lld %s", (long long)N,
                             (long long)K, (long long)G, (long long)D, (long long)copies, tc_dtype_name(dtype));
    input(&t, dtype, back ? DIMS(N, K * copies, part + 2, D) : DIMS(N, K, G + 2, D), NORMALISH);
    output(&t, dtype, back ? DIMS(N, K, G + 2, D) : DIMS(N, K * copies, part + 2, D));
    for (int i = 0; i < 2 && chosen(t.c.op); i++) {
      struct tc_device *d = dev(device_name[i], 2);
      struct tc_view none[ARGS] = { 0 }, y;
      int64_t wrong = !run_on(d, &t, none, false, &y), at = 0;
      struct tc_view *whole = back ? &y : &t.in[0], *parts = back ? &t.in[0] : &y;
      for (int64_t g = 0; g < N * K; g++)
        for (int64_t e = 0; e < G + 2; e++)
          for (int64_t j = 0; j < D; j++, at++) {
            double sum = 0, big = 0;
            for (int64_t r = 0; r < copies; r++) {
              if (e < G && e / part != r) continue;
              const double x = get(parts, ((g * copies + r) * (part + 2) + (e < G ? e % part : part + e - G)) * D + j);
              if (!back) wrong += x != get(whole, at);
              sum += x, big += fabs(x);
            }
            if (back) wrong += fabs(sum - get(whole, at)) > (dtype == TC_BF16 ? 0x1p-8 : 0x1p-22) * big;
          }
      is_int(wrong, 0, "%s: %s on %s", t.label, back ? "sums" : "copies", device_name[i]);
      drop(&y, 1);
      tc_device_close(d);
    }
    check(&t);
  }
}

/* ---- a part along a dimension -------------------------------------------------------------- */

/* Indices from `first` on, n of E, of dimension 1 or 2: taken to the last bit, or added to those and to no others. */
static void slices(int dtype, int64_t N, int64_t K, int64_t E, int64_t D, int64_t first, int64_t n)
{
  for (int back = 0; back < 2; back++) {
    struct test t = new_test(back ? TC_OP_ADD_PART : TC_OP_PART, "N%lld K%lld E%lld D%lld %s, %lld from %lld", (long long)N,
                             (long long)K, (long long)E, (long long)D, tc_dtype_name(dtype), (long long)n, (long long)first);
    const bool flat = K == 1;
    input(&t, dtype, flat ? DIMS(N, E, D) : DIMS(N, K, E, D), NORMALISH);
    if (back) input(&t, dtype, flat ? DIMS(N, n, D) : DIMS(N, K, n, D), NORMALISH);
    output(&t, dtype, back ? flat ? DIMS(N, E, D) : DIMS(N, K, E, D) : flat ? DIMS(N, n, D) : DIMS(N, K, n, D));
    if (back) t.over[0] = 0;
    t.c.k[0] = first, t.c.k[1] = flat ? 1 : 2;
    for (int i = 0; i < 2 && chosen(t.c.op); i++) {
      struct tc_device *d = dev(device_name[i], 2);
      struct tc_view none[ARGS] = { 0 }, y;
      int64_t wrong = !run_on(d, &t, none, false, &y);
      for (int64_t at = 0; at < y.elems; at++) {
        const int64_t each = back ? E : n, j = at % D, e = at / D % each, row = at / D / each;
        const bool in = back && e >= first && e < first + n;
        const double x = get(&t.in[0], (row * E + (back ? e : first + e)) * D + j);
        const double u = in ? get(&t.in[1], (row * n + e - first) * D + j) : 0;
        wrong += in ? fabs(get(&y, at) - (x + u)) > (dtype == TC_BF16 ? 0x1p-8 : 0x1p-23) * (fabs(x) + fabs(u)) : get(&y, at) != x;
      }
      is_int(wrong, 0, "%s: %s on %s", t.label, back ? "sums" : "copies", device_name[i]);
      drop(&y, 1);
      tc_device_close(d);
    }
    check(&t);
  }
}

/* ---- parts ------------------------------------------------------------------------------ */

/* A block of sequences, the blocks before it, and how it is split. each: documents begin at one token in so many, 0:
 * there are none. */
struct split { int64_t sequences, T, block; int cp; bool zigzag; int64_t each; };
/* by_token: bit i for input i, OUTPUT for output 0: it has a row for each token. */
enum { ROWS_MOST = 1024, OUTPUT = 1 << ARGS };

static int64_t tokens_of(const struct split *s) { return s->sequences * s->T; }
static int64_t part_of(const struct split *s) { return tokens_of(s) / s->cp; }

static const char *words(const struct split *s)
{
  static char text[100];
  snprintf(text, sizeof text, "%lld of T%lld, block %lld, cp %d%s, documents of %lld", (long long)s->sequences,
           (long long)s->T, (long long)s->block, s->cp, s->zigzag ? " zigzag" : "", (long long)s->each);
  return text;
}

/* The tokens of x are the n from row `first` of the block on. */
static void set_rows(struct tc_view *x, const struct split *s, int64_t first, int64_t n)
{
  x->elems = x->elems / x->dim[0] * n;
  x->dim[0] = n;
  x->off[0] = s->block * tokens_of(s) + first, x->global[0] = (s->block + 1) * tokens_of(s);
}

/* n rows from `first` on, of x, which has the whole block in the natural order. Owned. */
static struct tc_view take_rows(const struct tc_view *x, const struct split *s, const int64_t *list, int64_t first,
                                int64_t n)
{
  struct tc_view y = *x;
  const int64_t columns = x->elems / x->dim[0];
  set_rows(&y, s, first, n);
  back(&y);
  for (int64_t i = 0; i < y.elems; i++) put(&y, i, get(x, list[first + i / columns] * columns + i % columns));
  return y;
}

/* The way back: sets y's rows, or adds to them. */
static void return_rows(const struct tc_view *y, const struct tc_view *x, const int64_t *list, int64_t first, bool add)
{
  const int64_t columns = x->elems / x->dim[0];
  for (int64_t i = 0; i < x->elems; i++) {
    const int64_t at = list[first + i / columns] * columns + i % columns;
    put(y, at, get(x, i) + (add ? get(y, at) : 0));
  }
}

/* The call of a rank. Its inputs are owned. */
static struct test rank_of(const struct test *whole, const struct split *s, const int64_t *list, int rank,
                           unsigned by_token)
{
  struct test t = *whole;
  const int64_t n = part_of(s), at = strlen(t.label);
  t.c.rows = (struct tc_row_order){ .T = s->T, .sequences = s->sequences, .cp = s->cp, .zigzag = s->zigzag };
  snprintf(t.label + at, sizeof t.label - (size_t)at, ", rank %d", rank);
  for (int i = 0; i < t.c.n_in; i++) {
    if (by_token >> i & 1) {
      t.in[i] = take_rows(&whole->in[i], s, list, rank * n, n);
      continue;
    }
    back(&t.in[i]);
    for (int64_t j = 0; j < t.in[i].elems; j++) put(&t.in[i], j, get(&whole->in[i], j));
  }
  if (by_token & OUTPUT) set_rows(&t.out[0], s, rank * n, n);
  return t;
}

static struct tc_view zeros(int dtype, const struct tc_view *like)
{
  struct tc_view v = *like;
  v.dtype = (uint8_t)dtype;
  back(&v);
  for (int64_t i = 0; i < v.elems; i++) put(&v, i, 0);
  return v;
}

/* Each rank's result has the rows of one call for all tokens, to the last bit; without a row for each token, the results
 * add up to the one call's. Frees the inputs. */
static void split_rows(struct test *whole, const struct split *s, unsigned by_token)
{
  int64_t list[ROWS_MOST], wrong[2] = { 0, 0 };
  const bool sums = !(by_token & OUTPUT);
  struct tc_view all[2], put_together[2], none[ARGS] = { 0 };
  struct tc_device *d[2] = { dev(device_name[0], 1), dev(device_name[1], 2) };
  TC_ASSERT(tokens_of(s) <= ROWS_MOST);
  list_rows(list, s->sequences, s->T, s->cp, s->zigzag);
  for (int i = 0; i < whole->c.n_in; i++)
    if (by_token >> i & 1) set_rows(&whole->in[i], s, 0, tokens_of(s));
  if (!sums) set_rows(&whole->out[0], s, 0, tokens_of(s));
  for (int i = 0; i < 2 && chosen(whole->c.op); i++) {
    wrong[i] += !run_on(d[i], whole, none, false, &all[i]);
    put_together[i] = zeros(TC_F64, &all[i]);
  }
  for (int rank = 0; rank < s->cp; rank++) {
    struct test t = rank_of(whole, s, list, rank, by_token);
    for (int i = 0; i < 2 && chosen(t.c.op); i++) {
      struct tc_view y;
      t.c.acc = 0;
      wrong[i] += !run_on(d[i], &t, none, false, &y);
      if (!sums) return_rows(&put_together[i], &y, list, rank * part_of(s), false);
      for (int64_t j = 0; sums && j < y.elems; j++) put(&put_together[i], j, get(&put_together[i], j) + get(&y, j));
      drop(&y, 1);
    }
    t.c.acc = sums;
    check(&t);
  }
  for (int i = 0; i < 2; i++) {
    tc_device_close(d[i]);
    if (!chosen(whole->c.op)) continue;
    for (int64_t j = 0; j < all[i].elems && !sums; j++) wrong[i] += get(&put_together[i], j) != get(&all[i], j);
    wrong[i] += sums && !close_to(&put_together[i], &all[i], 2e-6, 0);
    is_int(wrong[i], 0, "%s: the ranks have what one has, on %s", whole->label, device_name[i]);
    drop(&all[i], 1);
    drop(&put_together[i], 1);
  }
  drop(whole->in, whole->c.n_in);
}

/* [N, C]; dropout also of the second half of the columns. */
static void split_columns(int dtype, const struct split *s, int64_t C)
{
  const int64_t N = tokens_of(s);
  struct test t = new_test(TC_OP_POS, "%s, C%lld %s", words(s), (long long)C, tc_dtype_name(dtype));
  input(&t, dtype, DIMS(N, C), NORMALISH);
  input(&t, dtype, DIMS(s->T, C), NORMALISH);
  if (s->each) input_starts(&t, N, 0, s->T, s->each);
  output(&t, dtype, DIMS(N, C));
  split_rows(&t, s, 1 | (s->each ? 4 : 0) | OUTPUT);
  t = new_test(TC_OP_POS_BWD, "%s, C%lld %s", words(s), (long long)C, tc_dtype_name(dtype));
  input(&t, dtype, DIMS(N, C), NORMALISH);
  if (s->each) input_starts(&t, N, 0, s->T, s->each);
  output(&t, TC_F32, DIMS(s->T, C));
  split_rows(&t, s, 1 | (s->each ? 2 : 0));
  for (int half = 0; half < 2 && !s->each; half++) {
    t = new_test(TC_OP_DROPOUT, "%s, C%lld%s %s", words(s), (long long)C, half ? " of twice as many" : "",
                 tc_dtype_name(dtype));
    struct tc_view *x = input(&t, dtype, DIMS(N, C), POSITIVE), *y = output(&t, dtype, DIMS(N, C));
    if (half) x->off[1] = y->off[1] = C, x->global[1] = y->global[1] = 2 * C;
    t.c.f[0] = 0.4f, t.c.k[0] = 5;
    split_rows(&t, s, 1 | OUTPUT);
  }
}

static void split_heads(int dtype, const struct split *s, int64_t K, int64_t G, int64_t D)
{
  float freq[64];
  for (int64_t i = 0; i < D / 2; i++) freq[i] = 1.f / powf(500000.f, (float)(2 * i) / (float)D);
  for (int back = 0; back < 2; back++) {
    struct test t = new_test(back ? TC_OP_ROPE_BWD : TC_OP_ROPE, "%s, K%lld G%lld D%lld %s", words(s), (long long)K,
                             (long long)G, (long long)D, tc_dtype_name(dtype));
    input(&t, dtype, DIMS(tokens_of(s), K, G + 2, D), NORMALISH);
    if (s->each) input_starts(&t, tokens_of(s), 0, s->T, s->each);
    output(&t, dtype, DIMS(tokens_of(s), K, G + 2, D));
    t.c.k[0] = s->T, t.c.freq = freq;
    split_rows(&t, s, 1 | (s->each ? 2 : 0) | OUTPUT);
  }
  struct test t = new_test(TC_OP_DROPOUT, "%s, K%lld G%lld D%lld %s", words(s), (long long)K, (long long)G, (long long)D,
                           tc_dtype_name(dtype));
  input(&t, dtype, DIMS(tokens_of(s), K * G, D), POSITIVE);
  output(&t, dtype, DIMS(tokens_of(s), K * G, D));
  t.c.f[0] = 0.4f, t.c.k[0] = 5;
  split_rows(&t, s, 1 | OUTPUT);
}

/* ---- attention -------------------------------------------------------------------------- */

/* Attention over a block: operands in the natural order, what ref makes of them in one call, and what the ranks' calls
 * make of them on each device, put together in the natural order. */
struct context {
  struct split s;
  int dtype;
  int64_t K, G, D;
  bool apart;                    /* keys and values have an input of their own; else one rank has all rows */
  int64_t pieces;                /* ... in calls of so many pieces of the groups */
  struct scores how;
  int64_t list[ROWS_MOST];
  struct tc_view qkv, dy, y, lse, starts;
  struct tc_view want[3], got[2][3];       /* y, lse, dqkv */
  int64_t wrong[2];              /* of the parts: calls that fail, gradients that ought to be 0 */
  char label[200];
};

static int64_t ranks_of(const struct context *x) { return x->apart ? x->s.cp : 1; }
static int64_t rows_of(const struct context *x) { return tokens_of(&x->s) / ranks_of(x); }

static double rounding(const struct context *x, bool back)
{
  return takes_bf16(x->dtype) ? back ? x->D < 4 ? 1.0 / 16 : 1.0 / 20 : 1.0 / 32 : back ? 1e-5 : 4e-6;
}

static struct test context_test(const struct context *x, bool back, const char *who)
{
  struct test t = new_test(back ? TC_OP_ATTN_BWD : TC_OP_ATTN, "%s, %s", x->label, who);
  t.c.k[0] = x->s.T;
  set_scores(&t, &x->how);
  t.tol = rounding(x, back);
  return t;
}

/* All tokens in the natural order on one rank, by ref in fp64. */
static void context_whole(struct context *x)
{
  const int64_t N = tokens_of(&x->s), H = x->K * x->G;
  struct tc_view none[ARGS] = { 0 };
  struct tc_device *ref = dev("ref", 1);
  struct test t = context_test(x, false, "whole");
  input(&t, x->dtype, DIMS(N, x->K, x->G + 2, x->D), NORMALISH);
  for (int64_t i = 0; i < t.in[0].elems; i++) put(&t.in[0], i, 2 * get(&t.in[0], i));
  if (x->s.each) input_starts(&t, N, 0, x->s.T, x->s.each);
  output(&t, x->dtype, DIMS(N, H, x->D));
  output(&t, TC_F32, DIMS(N, H));
  for (int i = 0; i < t.c.n_in; i++) set_rows(&t.in[i], &x->s, 0, N);
  x->wrong[0] += !run_on(ref, &t, none, true, x->want);
  x->qkv = t.in[0], x->starts = t.in[1];
  x->y = owned(x->dtype, DIMS(N, H, x->D)), x->lse = owned(TC_F32, DIMS(N, H));
  for (int64_t i = 0; i < x->y.elems; i++) put(&x->y, i, get(&x->want[0], i));
  for (int64_t i = 0; i < x->lse.elems; i++) put(&x->lse, i, get(&x->want[1], i));
  t = context_test(x, true, "whole");
  x->dy = *input(&t, x->dtype, DIMS(N, H, x->D), NORMALISH);
  const struct tc_view in[] = { x->dy, x->qkv, x->y, x->lse, x->starts };
  memcpy(t.in, in, sizeof in);
  t.c.n_in = 4 + (x->s.each > 0);
  output(&t, x->dtype, DIMS(N, x->K, x->G + 2, x->D));
  x->wrong[0] += !run_on(ref, &t, none, true, &x->want[2]);
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < 3; k++) x->got[i][k] = zeros(TC_F64, &x->want[k]);
  tc_device_close(ref);
}

static void add_rows(struct test *t, const struct context *x, const struct tc_view *v, int rank)
{
  t->in[t->c.n_in++] = take_rows(v, &x->s, x->list, rank * rows_of(x), rows_of(x));
}

/* The keys and values of all tokens, in the order of their rows, of the call's piece. */
static void add_keys(struct test *t, const struct context *x)
{
  const int64_t N = tokens_of(&x->s), K = x->K / x->pieces, keys = 2 * x->D, group = (x->G + 2) * x->D;
  struct tc_view *kv = input(t, x->dtype, DIMS(N, K, 2, x->D), NORMALISH);
  set_rows(kv, &x->s, 0, N);
  for (int64_t i = 0; i < kv->elems; i++) {
    const int64_t row = i / (K * keys), k = i / keys % K * x->pieces + t->c.k[1];
    put(kv, i, get(&x->qkv, (x->list[row] * x->K + k) * group + group - keys + i % keys));
  }
}

/* What a piece finds in output k, and leaves there but for its groups. */
static void add_before(struct test *t, const struct context *x, int k, int dtype, const int64_t *dim, int rank)
{
  t->over[k] = t->c.n_in;
  set_rows(input(t, dtype, dim, NORMALISH), &x->s, rank * rows_of(x), rows_of(x));
}

/* A piece's groups of output k, each of so many elements, take their places in got[to] of device i; others are as they were. */
static void context_groups(struct context *x, int i, int to, const struct test *t, const struct tc_view *result, int k,
                           int64_t group, int64_t first)
{
  const int64_t row = x->K * group;
  for (int64_t j = 0; j < result[k].elems; j++) {
    const double y = get(&result[k], j);
    if (j / group % x->pieces == t->c.k[1]) put(&x->got[i][to], x->list[first + j / row] * row + j % row, y);
    else x->wrong[i] += y != get(&t->in[t->over[k]], j);
  }
}

/* A rank's outputs take their places in what device i made: those of the queries are set, keys' gradients added up. */
static void context_results(struct context *x, int i, const struct test *t, const struct tc_view *result, int rank)
{
  const int64_t first = rank * rows_of(x), K = x->K / x->pieces, keys = 2 * x->D, group = (x->G + 2) * x->D;
  if (t->c.op == TC_OP_ATTN) {
    context_groups(x, i, 0, t, result, 0, x->G * x->D, first);
    context_groups(x, i, 1, t, result, 1, x->G, first);
    return;
  }
  if (!x->apart) {
    context_groups(x, i, 2, t, result, 0, group, first);
    return;
  }
  for (int64_t j = 0; j < result[0].elems; j++) {
    const int64_t at = x->list[first + j / (x->K * group)] * x->K * group + j % (x->K * group);
    const bool here = j / group % x->pieces == t->c.k[1], key = j % group >= group - keys;
    if (here && !key) put(&x->got[i][2], at, get(&result[0], j));
    else x->wrong[i] += get(&result[0], j) != (here ? 0 : get(&t->in[t->over[0]], j));
  }
  for (int64_t j = 0; j < result[1].elems; j++) {
    const int64_t row = j / (K * keys), k = j / keys % K * x->pieces + t->c.k[1];
    const int64_t at = (x->list[row] * x->K + k) * group + group - keys + j % keys;
    put(&x->got[i][2], at, get(&x->got[i][2], at) + get(&result[1], j));
  }
}

/* One rank's call of one piece, forward or back, on each device, and beside ref's. */
static void context_rank(struct context *x, bool back, int rank, int64_t piece)
{
  struct tc_view none[ARGS] = { 0 }, result[2][ARGS] = { 0 };
  const int64_t N = rows_of(x), H = x->K * x->G;
  char who[60];
  snprintf(who, sizeof who, "rank %d", rank);
  if (x->pieces > 1) tc_text_add(who, sizeof who, ", piece %lld of %lld", (long long)piece, (long long)x->pieces);
  struct test t = context_test(x, back, who);
  t.c.k[1] = piece;
  t.c.rows = (struct tc_row_order){ .T = x->s.T, .sequences = x->s.sequences, .cp = x->s.cp, .zigzag = x->s.zigzag };
  if (back) add_rows(&t, x, &x->dy, rank);
  add_rows(&t, x, &x->qkv, rank);
  if (back) add_rows(&t, x, &x->y, rank), add_rows(&t, x, &x->lse, rank);
  if (x->apart) add_keys(&t, x);
  if (x->s.each) add_rows(&t, x, &x->starts, rank);
  if (x->pieces > 1) add_before(&t, x, 0, x->dtype, back ? DIMS(N, x->K, x->G + 2, x->D) : DIMS(N, H, x->D), rank);
  if (x->pieces > 1 && !back) add_before(&t, x, 1, TC_F32, DIMS(N, H), rank);
  output(&t, x->dtype, back ? DIMS(1, x->K, x->G + 2, x->D) : DIMS(1, H, x->D));
  set_rows(&t.out[0], &x->s, rank * N, N);
  if (!back) set_rows(output(&t, TC_F32, DIMS(1, H)), &x->s, rank * N, N);
  else if (x->apart) set_rows(output(&t, x->dtype, DIMS(1, x->K / x->pieces, 2, x->D)), &x->s, 0, tokens_of(&x->s));
  if (chosen(t.c.op)) compare(&t, none, result[0], result[1]);
  for (int i = 0; i < 2; i++) {
    if (result[i][0].data) context_results(x, i, &t, result[i], rank);
    drop(result[i], t.c.n_out);
  }
  drop(t.in, t.c.n_in);
}

/* pieces: 0: keys and values are behind the queries. Documents are those of the split. */
static void split_scores(int dtype, const struct split *s, int64_t K, int64_t G, int64_t D, int64_t pieces,
                         const struct scores *how)
{
  struct context x = { .s = *s, .dtype = dtype, .K = K, .G = G, .D = D, .apart = pieces > 0, .pieces = TC_MAX(1, pieces),
                       .how = *how };
  if ((!chosen(TC_OP_ATTN) && !chosen(TC_OP_ATTN_BWD)) || left_out(TC_OP_ATTN)) return;
  TC_ASSERT(tokens_of(s) <= ROWS_MOST && K % x.pieces == 0);
  snprintf(x.label, sizeof x.label, "%s%s%s, K%lld G%lld D%lld %s", score_words(how), words(s), x.apart ? "" : ", one rank",
           (long long)K, (long long)G, (long long)D, tc_dtype_name(dtype));
  list_rows(x.list, s->sequences, s->T, s->cp, s->zigzag);
  context_whole(&x);
  for (int back = 0; back < 2; back++)
    for (int64_t i = 0; i < ranks_of(&x) * x.pieces; i++) context_rank(&x, back, (int)(i / x.pieces), i % x.pieces);
  for (int i = 0; i < 2; i++) {
    bool good = x.wrong[i] == 0;
    for (int k = 0; k < 3; k++) {
      if (!chosen(k < 2 ? TC_OP_ATTN : TC_OP_ATTN_BWD)) continue;
      double tol = i == 0 ? 1e-12 : rounding(&x, k == 2);
      if (i > 0 && dtype == TC_BF16 && k != 1)   /* each rank's is rounded */
        tol = TC_MAX(tol, k == 2 ? 1.0 / 64 : 1.0 / 256);
      good = close_to(&x.got[i][k], &x.want[k], tol, k) && good;
    }
    ok(good, "attention, %s: the ranks have in %lld piece%s what one has, on %s", x.label, (long long)x.pieces,
       tc_plural(x.pieces), device_name[i]);
    drop(x.got[i], 3);
  }
  struct tc_view operands[] = { x.qkv, x.dy, x.y, x.lse, x.starts };
  drop(operands, 5);
  drop(x.want, 3);
}

static void split_attention(int dtype, const struct split *s, int64_t K, int64_t G, int64_t D, int64_t pieces)
{
  split_scores(dtype, s, K, G, D, pieces, &(struct scores){ 0 });
}

/* Parts that end within a block of 64 keys or queries, and at its end; lengths below, at and above it. */
static void context_attention(int dtype)
{
  static const struct { struct split s; int64_t K, G, D, pieces; } rows[] = {
    { { 2, 16, 0, 1, false, 0 }, 1, 4, 5, 1 },
    { { 3, 8, 1, 1, false, 0 }, 4, 1, 64, 2 },
    { { 2, 24, 0, 1, false, 6 }, 2, 2, 20, 2 },
    { { 1, 136, 0, 1, false, 0 }, 2, 2, 2, 1 },
    { { 2, 72, 2, 1, false, 20 }, 1, 2, 7, 1 },
    { { 1, 256, 1, 1, false, 0 }, 1, 1, 2, 1 },
    { { 1, 128, 0, 1, false, 40 }, 2, 1, 9, 1 },
    { { 1, 200, 0, 1, false, 2 }, 1, 3, 4, 1 },
    { { 1, 264, 1, 1, false, 70 }, 2, 1, 3, 2 },
    { { 1, 40, 0, 1, false, 7 }, 3, 2, 6, 3 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct split s = rows[i].s;
    split_attention(dtype, &s, rows[i].K, rows[i].G, rows[i].D, 1);
    for (s.cp = 2; s.cp <= 4; s.cp += 2)
      for (int zigzag = 0; zigzag < 2; zigzag++) {
        s.zigzag = zigzag;
        split_attention(dtype, &s, rows[i].K, rows[i].G, rows[i].D, rows[i].pieces);
        if ((i + (size_t)zigzag) % 2) split_attention(dtype, &s, rows[i].K, rows[i].G, rows[i].D, 0);
      }
  }
}

/* Runs of 64, whole blocks of queries, which tensor cores take. */
static void long_runs(void)
{
  split_attention(TC_BF16, &(struct split){ 1, 256, 0, 2, true, 150 }, 1, 1, 32, 1);
  split_attention(TC_BF16, &(struct split){ 2, 128, 1, 2, false, 0 }, 1, 2, 64, 1);
  split_attention(TC_BF16, &(struct split){ 2, 256, 0, 2, true, 90 }, 1, 1, 128, 0);
  split_attention(TC_BF16, &(struct split){ 1, 128, 0, 2, false, 0 }, 1, 1, 80, 1);
  split_attention(TC_BF16, &(struct split){ 1, 128, 0, 2, false, 60 }, 1, 1, 96, 1);
  split_attention(TC_BF16, &(struct split){ 1, 128, 0, 2, false, 60 }, 4, 2, 32, 2);
}

/* Windows shorter and longer than a run, which end within one, and over several. */
static void split_windows(int dtype)
{
  static const struct { struct split s; int64_t K, G, D, pieces; struct scores how; } rows[] = {
    { { 2, 16, 0, 2, true, 0 }, 1, 2, 5, 1, { 0, 1, 0, 0 } },
    { { 1, 136, 1, 4, false, 0 }, 2, 1, 4, 2, { 0, 30, 0, 0 } },
    { { 1, 256, 0, 4, true, 0 }, 1, 1, 3, 1, { 0, 9, 0, 0 } },
    { { 1, 256, 0, 2, true, 40 }, 1, 2, 2, 0, { 0, 65, 0, 0 } },
    { { 2, 72, 1, 4, true, 20 }, 2, 1, 7, 2, { 0, 11, 0.5f, 0.8f } },
    { { 1, 200, 0, 4, false, 0 }, 1, 2, 4, 1, { 0, 120, 0, 2 } },
    { { 1, 40, 0, 1, false, 7 }, 2, 2, 6, 1, { 0, 5, 0, 0 } },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    split_scores(dtype, &rows[i].s, rows[i].K, rows[i].G, rows[i].D, rows[i].pieces, &rows[i].how);
  if (dtype != TC_BF16) return;
  split_scores(TC_BF16, &(struct split){ 1, 256, 0, 2, true, 0 }, 1, 1, 32, 1, &(struct scores){ .window = 50 });
  split_scores(TC_BF16, &(struct split){ 1, 256, 0, 4, false, 90 }, 1, 2, 64, 1, &(struct scores){ .window = 65 });
  split_scores(TC_BF16, &(struct split){ 1, 256, 0, 2, true, 0 }, 2, 1, 80, 2, &(struct scores){ .window = 150 });
  split_scores(TC_BF16, &(struct split){ 1, 256, 1, 2, true, 0 }, 1, 1, 32, 0, &(struct scores){ .window = 64 });
  split_scores(TC_BF16, &(struct split){ 1, 128, 0, 2, false, 0 }, 1, 1, 64, 1, &(struct scores){ .window = 40, .cap = 1 });
}

/* ---- all -------------------------------------------------------------------------------- */

static void row_orders(int dtype)
{
  static const struct split splits[] = {
    { 1, 8, 0, 1, false, 0 }, { 2, 12, 1, 2, false, 0 }, { 2, 12, 0, 2, false, 4 }, { 3, 8, 1, 4, true, 0 },
    { 1, 48, 2, 3, true, 5 }, { 3, 100, 0, 2, true, 9 },
  };
  key_copies(dtype, 3, 1, 1, 1, 1, 0);
  key_copies(dtype, 37, 2, 3, 6, 1, 0);
  key_copies(dtype, 37, 6, 2, 5, 3, 1);
  key_copies(dtype, 130, 4, 1, 80, 2, 1);
  spreads(dtype, 3, 1, 1, 2, 1);
  spreads(dtype, 29, 2, 3, 2, 6);
  spreads(dtype, 40, 3, 2, 4, 80);
  slices(dtype, 7, 1, 2, 5, 1, 1);
  slices(dtype, 30, 2, 6, 9, 0, 4);
  slices(dtype, 41, 3, 4, 33, 3, 1);
  slices(dtype, 9, 1, 2, 1500, 0, 1);
  for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
    split_columns(dtype, &splits[i], 33);
    split_heads(dtype, &splits[i], 2, 3, 16);
  }
  split_columns(dtype, &(struct split){ 2, 16, 1, 4, true, 0 }, 1801);
  context_attention(dtype);
  split_windows(dtype);
  if (dtype == TC_BF16) long_runs();
}

#endif
