/* kernels_attention.h - t_kernels.c's cases of attention, forward and backward, and over a cache: head sizes, groups, documents,
 * windows, scales and caps. */
#ifndef TC_KERNELS_ATTENTION_H
#define TC_KERNELS_ATTENTION_H

#include "tests/unit/kernels/kernels_documents.h"

/* each > 0: a document begins at one token in so many. The others are attributes (op.def), 0: not given. */
struct scores { int64_t each, window; float scale, cap; };

static void set_scores(struct test *t, const struct scores *how)
{
  t->c.f[0] = how->scale, t->c.f[1] = how->cap, t->c.k[2] = how->window;
}

static const char *score_words(const struct scores *how)
{
  static char text[120];
  *text = 0;
  if (how->each) tc_text_add(text, sizeof text, "documents of %lld, ", (long long)how->each);
  if (how->window) tc_text_add(text, sizeof text, "window of %lld, ", (long long)how->window);
  if (how->scale > 0) tc_text_add(text, sizeof text, "scale %g, ", (double)how->scale);
  if (how->cap > 0) tc_text_add(text, sizeof text, "cap %g, ", (double)how->cap);
  return text;
}

/* Tensor cores, and CPUs that multiply bf16, take probabilities in bf16: an element of many terms is off by more than its
 * own rounding. */
static bool multiplies_bf16;             /* the device */
static bool takes_bf16(int dtype) { return dtype == TC_BF16 && multiplies_bf16; }

/* K groups of G heads that share a key and a value. few: on the emulated GPU, blocks of keys that are too few for one
 * (kernels/cuda/attn.h); -1: as on others. */
static void scored_gradient(int dtype, int64_t B, int64_t T, int64_t K, int64_t G, int64_t D, const struct scores *how, int64_t few)
{
  const int64_t N = B * T, H = K * G;
  char text[40] = "", blocks[20];
  snprintf(blocks, sizeof blocks, "%lld", (long long)few);
  if (few >= 0) snprintf(text, sizeof text, ", %s blocks are few", blocks);
  struct test t = new_test(TC_OP_ATTN_BWD, "%sB%lld T%lld H%lld K%lld D%lld %s%s", score_words(how), (long long)B, (long long)T,
                           (long long)H, (long long)K, (long long)D, tc_dtype_name(dtype), text);
  input(&t, dtype, DIMS(N, H, D), NORMALISH);
  input(&t, dtype, DIMS(N, K, G + 2, D), NORMALISH);
  input(&t, dtype, DIMS(N, H, D), NORMALISH);
  input(&t, TC_F32, DIMS(N, H), NORMALISH);
  if (how->each) input_starts(&t, N, 0, T, how->each);
  t.c.k[0] = T;
  set_scores(&t, how);
  derive(&t, TC_OP_ATTN, (int[]){ 1, 4 }, how->each ? 2 : 1, (int[]){ 2, 3 }, 2);
  output(&t, dtype, DIMS(N, K, G + 2, D));
  /* A key's gradient sums as many rounded terms as rows see it, which cancel. */
  t.tol = !takes_bf16(dtype) ? (D > 96 ? 2e-5 : 1e-5) : 1.0 / 20;
  if (few >= 0) setenv("TC_EMU_FEW_BLOCKS", blocks, 1);
  check(&t);
  unsetenv("TC_EMU_FEW_BLOCKS");
}

static void scored_attention(int dtype, int64_t B, int64_t T, int64_t K, int64_t G, int64_t D, const struct scores *how)
{
  const int64_t N = B * T, H = K * G;
  struct test t = new_test(TC_OP_ATTN, "%sB%lld T%lld H%lld K%lld D%lld %s", score_words(how), (long long)B, (long long)T,
                           (long long)H, (long long)K, (long long)D, tc_dtype_name(dtype));
  input(&t, dtype, DIMS(N, K, G + 2, D), NORMALISH);
  for (int64_t i = 0; i < t.in[0].elems; i++) put(&t.in[0], i, 2 * get(&t.in[0], i));
  if (how->each) input_starts(&t, N, 0, T, how->each);
  output(&t, dtype, DIMS(N, H, D));
  output(&t, TC_F32, DIMS(N, H));
  t.c.k[0] = T;
  set_scores(&t, how);
  /* A score's rounding, which grows with its D terms, is the probability's relative error. */
  t.tol = takes_bf16(dtype) ? 1.0 / 32 : D > 96 ? 8e-6 : 4e-6;
  check(&t);
  scored_gradient(dtype, B, T, K, G, D, how, -1);
  if (strcmp(T_DEVICE, "cuda") || getenv("TC_TEST_GPU") || !takes_bf16(dtype) || G == 1 || D < 32) return;
  scored_gradient(dtype, B, T, K, G, D, how, 0);
  if (G > 2) scored_gradient(dtype, B, T, K, G, D, how, 2 * B * K * tc_ceil_div(T, 64));
}

static void masked_attention(int dtype, int64_t B, int64_t T, int64_t K, int64_t G, int64_t D, int64_t each)
{
  scored_attention(dtype, B, T, K, G, D, &(struct scores){ .each = each });
}

static void grouped_attention(int dtype, int64_t B, int64_t T, int64_t K, int64_t G, int64_t D)
{
  masked_attention(dtype, B, T, K, G, D, 0);
}

/* Operands in bf16 but for one. */
static void mixed_attention(void)
{
  enum { N = 33, K = 1, G = 2, D = 9, DY = 0, Y = 2, DQKV = 4 };
  struct test t = new_test(TC_OP_ATTN, "bf16 to fp32");
  input(&t, TC_BF16, DIMS(N, K, G + 2, D), NORMALISH);
  output(&t, TC_F32, DIMS(N, K * G, D));
  output(&t, TC_F32, DIMS(N, K * G));
  t.c.k[0] = N, t.tol = takes_bf16(TC_BF16) ? 1.0 / 32 : 4e-6;
  check(&t);
  for (int other = DY; other <= DQKV; other += 2) {
    t = new_test(TC_OP_ATTN_BWD, "bf16, but operand %d", other);
    input(&t, other == DY ? TC_F32 : TC_BF16, DIMS(N, K * G, D), NORMALISH);
    input(&t, TC_BF16, DIMS(N, K, G + 2, D), NORMALISH);
    input(&t, other == Y ? TC_F32 : TC_BF16, DIMS(N, K * G, D), NORMALISH);
    input(&t, TC_F32, DIMS(N, K * G), NORMALISH);
    t.c.k[0] = N, t.tol = takes_bf16(TC_BF16) ? 1.0 / 20 : 1e-5;
    derive(&t, TC_OP_ATTN, (int[]){ 1 }, 1, (int[]){ 2, 3 }, 2);
    output(&t, other == DQKV ? TC_F32 : TC_BF16, DIMS(N, K, G + 2, D));
    check(&t);
  }
}

static void attention(int dtype, int64_t B, int64_t T, int64_t H, int64_t D)
{
  grouped_attention(dtype, B, T, H, 1, D);
}

/* Every head size that has kernels of its own, with sequences around their tiles of 64 rows. */
static void attention_sizes(int dtype)
{
  static const int64_t head[] = { 32, 64, 80, 96, 128 }, length[] = { 1, 63, 65 };
  if (strcmp(T_DEVICE, "cuda")) return;
  for (int d = 0; d < 5; d++)
    for (int t = 0; t < 3; t++) attention(dtype, 1, length[t], 2, head[d]);
  if (dtype == TC_BF16) attention(dtype, 1, 1000, 1, 80);
}

/* Documents longer and shorter than the kernels' tiles, and of one token; tiles that some or all queries skip. */
static void document_attention(int dtype)
{
  masked_attention(dtype, 3, 7, 2, 1, 5, 3);
  masked_attention(dtype, 1, 130, 1, 4, 64, 20);
  masked_attention(dtype, 2, 300, 1, 1, 64, 90);
  masked_attention(dtype, 1, 200, 2, 2, 128, 1);
  masked_attention(dtype, 2, 257, 1, 1, 32, 100);
  masked_attention(dtype, 1, 65, 2, 3, 80, 8);
  masked_attention(dtype, 1, 200, 1, 2, 96, 500);
  document_cases(dtype);
}

/* B sequences of T tokens, of which a cache has M rows, with S new tokens each, at drawn positions; rows that no query sees
 * are NaN. */
static void scored_cache(int dtype, int64_t B, int64_t S, int64_t M, int64_t K, int64_t G, int64_t D, int64_t T,
                         const struct scores *how)
{
  struct test t = new_test(TC_OP_ATTN_CACHE, "%sB%lld S%lld M%lld K%lld G%lld D%lld %s", score_words(how), (long long)B,
                           (long long)S, (long long)M, (long long)K, (long long)G, (long long)D, tc_dtype_name(dtype));
  input(&t, dtype, DIMS(B * S, K, G + 2, D), NORMALISH)->off[0] = 3;
  const struct tc_view *cache = input(&t, dtype, DIMS(B, K, M, 2 * D), NORMALISH);
  const struct tc_view *starts = input(&t, TC_I32, DIMS(B * S), POSITIVE);
  for (int64_t b = 0; b < B; b++) {
    const int64_t at = (int64_t)(uniform() * (double)(T - S + 1)), first = how->window ? TC_MAX(0, at + 1 - how->window) : 0;
    bool *seen = tc_calloc((size_t)M, sizeof *seen);
    for (int64_t i = 0; i < S; i++) put(starts, b * S + i, (double)((3 + b * S + i) % T - (at + i)));
    for (int64_t p = first; p < at; p++) seen[p % M] = true;
    for (int64_t i = b * K * M; i < (b + 1) * K * M; i++)
      for (int64_t j = 0; !seen[i % M] && j < 2 * D; j++) put(cache, i * 2 * D + j, (double)NAN);
    free(seen);
  }
  output(&t, dtype, DIMS(B * S, K * G, D));
  output(&t, dtype, DIMS(B, K, M, 2 * D)), t.over[1] = 1;
  t.c.k[0] = T;
  set_scores(&t, how);
  check(&t);
}

static void cached_attention(int dtype, int64_t B, int64_t S, int64_t M, int64_t K, int64_t G, int64_t D)
{
  scored_cache(dtype, B, S, M, K, G, D, M, &(struct scores){ 0 });
}

/* The last windows' caches have the fewest rows that hold them. */
static void caches(int dtype)
{
  cached_attention(dtype, 1, 1, 1, 1, 1, 1);
  cached_attention(dtype, 3, 1, 40, 2, 1, 64);
  cached_attention(dtype, 2, 5, 300, 1, 3, 80);
  cached_attention(dtype, 1, 130, 140, 2, 2, 7);
  cached_attention(dtype, 2, 1, 700, 1, 1, 256);
  scored_cache(dtype, 2, 3, 90, 2, 2, 16, 90, &(struct scores){ .window = 20, .scale = 0.3f });
  scored_cache(dtype, 3, 1, 1, 1, 2, 8, 50, &(struct scores){ .window = 1 });
  scored_cache(dtype, 3, 1, 140, 2, 1, 64, 1000, &(struct scores){ .window = 140, .cap = 0.8f });
  scored_cache(dtype, 3, 4, 13, 1, 3, 20, 200, &(struct scores){ .window = 10 });
  scored_cache(dtype, 2, 70, 139, 2, 2, 9, 900, &(struct scores){ .window = 70, .scale = 0.5f, .cap = 1.5f });
}

/* Windows below, at and above a tile's 64 keys, none of a multiple, and longer than the sequence; caps that change most
 * scores. */
static void other_attention(int dtype)
{
  static const struct { int64_t B, T, K, G, D; struct scores how; } rows[] = {
    { 2, 7, 2, 1, 5, { 0, 1, 0, 0 } },           { 1, 130, 1, 2, 64, { 0, 2, 0, 0 } },
    { 1, 200, 1, 1, 32, { 0, 63, 0, 0 } },       { 1, 193, 2, 1, 80, { 0, 64, 0, 0 } },
    { 1, 260, 1, 1, 64, { 0, 65, 0, 0 } },       { 1, 300, 1, 2, 128, { 0, 100, 0, 0 } },
    { 1, 200, 1, 1, 96, { 0, 129, 0, 0 } },      { 1, 65, 1, 1, 64, { 0, 64, 0, 0 } },
    { 1, 65, 1, 1, 64, { 0, 65, 0, 0 } },        { 1, 70, 1, 1, 32, { 0, 1000, 0, 0 } },
    { 2, 200, 1, 2, 64, { 60, 40, 0, 0 } },      { 1, 257, 1, 1, 128, { 20, 70, 0, 0 } },
    { 1, 100, 1, 2, 64, { 0, 0, 0.25f, 0 } },    { 1, 130, 2, 2, 80, { 0, 0, 0, 0.7f } },
    { 2, 70, 1, 2, 64, { 0, 0, 0.2f, 1.5f } },   { 1, 150, 1, 2, 64, { 0, 66, 0.3f, 1 } },
    { 1, 90, 2, 1, 20, { 30, 17, 0.4f, 0.5f } }, { 1, 70, 1, 1, 32, { 0, 65, 0, 1 } },
    { 1, 66, 1, 2, 96, { 30, 0, 0, 1 } },        { 1, 130, 1, 1, 128, { 0, 0, 0, 0.8f } },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    scored_attention(dtype, rows[i].B, rows[i].T, rows[i].K, rows[i].G, rows[i].D, &rows[i].how);
  caches(dtype);
}

#endif
