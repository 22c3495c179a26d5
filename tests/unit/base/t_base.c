/* t_base.c - base: Philox against Random123's published vectors, bf16 rounding against its
 * definition, memory pools, sentences, words. */
#include "src/base/base.h"
#include "tests/unit/leak.h"
#include "tests/unit/seed.h"
#include "tests/unit/tap.h"

#include <pthread.h>
#include <unistd.h>

/* Known-answer vectors of Random123 (kat_vectors, philox 4x32 10). */
static void test_philox(void)
{
  static const struct { uint32_t ctr[4], key[2], want[4]; } kat[] = {
    { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
    { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff }, { 0xffffffff, 0xffffffff },
      { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
    { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 }, { 0xa4093822, 0x299f31d0 },
      { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
  };
  for (int i = 0; i < 3; i++) {
    uint32_t out[4];
    tc_philox(out, (uint64_t)kat[i].key[1] << 32 | kat[i].key[0],
              (uint64_t)kat[i].ctr[1] << 32 | kat[i].ctr[0],
              (uint64_t)kat[i].ctr[3] << 32 | kat[i].ctr[2]);
    ok(memcmp(out, kat[i].want, sizeof out) == 0, "Philox known answer %d", i);
  }
}

static void test_random(void)
{
  enum { N = 100000 };
  double sum = 0, cube = 0, square = 0, fourth = 0, u_sum = 0, u_square = 0, product = 0;
  bool in_range = true;
  float last = 0;
  for (uint64_t i = 0; i < N; i++) {
    double x = tc_normal(7, 1, 2, i);
    float u = tc_uniform(7, 1, 3, i);
    in_range = in_range && u >= 0 && u < 1;
    sum += x, square += x * x, cube += x * x * x, fourth += x * x * x * x;
    product += x * (double)last;
    last = (float)x;
    u_sum += (double)u, u_square += (double)u * (double)u;
  }
  /* Four standard errors of each moment at N samples. */
  ok(fabs(sum / N) < 4 / sqrt(N), "normal: mean %g", sum / N);
  ok(fabs(square / N - 1) < 4 * sqrt(2.0 / N), "normal: variance %g", square / N);
  ok(fabs(cube / N) < 4 * sqrt(15.0 / N), "normal: third moment %g", cube / N);
  ok(fabs(fourth / N - 3) < 4 * sqrt(96.0 / N), "normal: fourth moment %g", fourth / N);
  ok(fabs(product / N) < 4 / sqrt(N), "normal: neighbours are independent");
  ok(in_range, "uniform in [0, 1)");
  ok(fabs(u_sum / N - 0.5) < 4 * sqrt(1.0 / 12 / N), "uniform: mean %g", u_sum / N);
  ok(fabs(u_square / N - 1.0 / 3) < 4 * sqrt(4.0 / 45 / N), "uniform: mean square");
  ok(tc_normal(7, 1, 2, 5) == tc_normal(7, 1, 2, 5), "the same counter, the same number");
  ok(tc_normal(7, 1, 2, 5) != tc_normal(8, 1, 2, 5), "the seed counts");
  ok(tc_normal(7, 1, 2, 5) != tc_normal(7, 2, 1, 5), "the stream counts");
  ok(tc_uniform(7, 0, 0, UINT64_C(1) << 32) != tc_uniform(7, 0, 0, 0), "64 bits of counter");
}

/* The mean of a number as rounded by each of the 2^16 draws is the number, exactly; by bits that are drawn, within six
 * standard errors, of which 1000 numbers hold. */
static void test_rounded_at_random(void)
{
  enum { DRAWS = 4096 };
  static const float ends[] = { 0, -0.f, 1, 1e-40f, -3.3e38f, 1.00390625f, 0x1.fffffep-3f };
  const uint64_t seed = test_seed(false);
  int64_t off = 0, far = 0, other = 0;
  for (uint32_t i = 0; i < 1000 + sizeof ends / sizeof *ends; i++) {
    union { float f; uint32_t u; } x = { .f = i < 1000 ? tc_normal(seed, 0, 3, i) * (i % 2 ? 1e-3f : 1) : ends[i - 1000] };
    const double f = (double)x.f, down = (double)tc_bf16_to_f32((uint16_t)(x.u >> 16)), part = (x.u & 0xffff) / 0x1p16;
    const double up = part > 0 ? (double)tc_bf16_to_f32((uint16_t)((x.u >> 16) + 1)) : down;
    double all = 0, drawn = 0;
    for (uint32_t b = 0; b < 1u << 16 && (i % 50 == 0 || i >= 1000); b++) all += (double)tc_bf16_to_f32(tc_f32_to_bf16_by(x.f, b));
    if (i % 50 == 0 || i >= 1000) off += all / 0x1p16 != f;
    for (uint32_t k = 0; k < DRAWS; k++) {
      const double y = (double)tc_bf16_to_f32(tc_f32_to_bf16_by(x.f, tc_bits(seed, i, 7, k) >> 16 * (i % 2)));
      other += y != down && y != up;
      drawn += y / DRAWS;
    }
    far += fabs(drawn - f) > 6 * fabs(up - down) * sqrt(part * (1 - part) / DRAWS) + 1e-12 * fabs(f);
  }
  is_int(off, 0, "each of 2^16 draws once: the mean is the number, exactly");
  is_int(far, 0, "%d draws: the mean is the number within six standard errors", DRAWS);
  is_int(other, 0, "... and each is one of its two neighbours");
  ok(isnan(tc_bf16_to_f32(tc_f32_to_bf16_by(NAN, 0xffff))) && isinf(tc_bf16_to_f32(tc_f32_to_bf16_by(-INFINITY, 0xffff))),
     "NaN and infinity stay");
  uint32_t block[4];
  tc_philox(block, 5, 6, UINT64_C(8) << 32 | 9);
  for (uint32_t k = 0; k < 4; k++) is_int(tc_bits(5, 8, 9, 24 + k), block[k], "element %d of a block", (int)k);
}

/* The nearest bf16 by trying the two neighbours; the even one if they are as near. */
static uint16_t bf16_slow(float f)
{
  union { float f; uint32_t u; } x = { .f = f };
  uint16_t down = (uint16_t)(x.u >> 16), up = (uint16_t)(down + 1);
  double d = fabs((double)f - (double)tc_bf16_to_f32(down));
  double u = fabs((double)tc_bf16_to_f32(up) - (double)f);
  if (d == u) return down & 1 ? up : down;
  return d < u ? down : up;
}

static void test_types(void)
{
  bool same = true, back = true;
  for (uint64_t i = 0; i < 100000; i++) {
    float f = tc_normal(1, 0, 0, i) * (i % 3 ? 1e-3f : 1e20f);
    if (i % 7 == 0) {                                 /* exactly between two */
      union { float f; uint32_t u; } x = { .f = f };
      x.u = (x.u & 0xffff0000u) | 0x8000u;
      f = x.f;
    }
    same = same && tc_f32_to_bf16(f) == bf16_slow(f);
    back = back && tc_f32_to_bf16(tc_bf16_to_f32((uint16_t)(i & 0x7f7f)))
                       == (uint16_t)(i & 0x7f7f);
  }
  ok(same, "f32 to bf16 rounds to nearest, ties to even");
  ok(back, "bf16 to f32 and back");
  ok(isnan(tc_bf16_to_f32(tc_f32_to_bf16(NAN))), "NaN stays NaN");
  union { uint32_t u; float f; } low_nan = { .u = 0x7f800001u };
  ok(isnan(tc_bf16_to_f32(tc_f32_to_bf16(low_nan.f))), "a NaN of low bits only stays NaN");
  ok(isinf(tc_bf16_to_f32(tc_f32_to_bf16(INFINITY))), "infinity stays");
  test_rounded_at_random();
  static const struct { const char *name; int dtype, bytes; } want[] = {
    { "f32", TC_F32, 4 }, { "bf16", TC_BF16, 2 }, { "f64", TC_F64, 8 }, { "i32", TC_I32, 4 },
    { "u8", TC_U8, 1 },
  };
  for (int i = 0; i < TC_DTYPES; i++) {
    is_int(tc_dtype_parse(want[i].name), want[i].dtype, "parse %s", want[i].name);
    is_str(tc_dtype_name(want[i].dtype), want[i].name, "name %s", want[i].name);
    is_int((int64_t)tc_dtype_bytes(want[i].dtype), want[i].bytes, "bytes of %s", want[i].name);
  }
  is_int(tc_dtype_parse("fp16"), -1, "no such type");
}

static void test_memory(void)
{
  struct tc_pool *p = tc_pool_new();
  bool aligned = true, zero = true, apart = true;
  unsigned char *at[300];
  size_t bytes[300];
  for (int i = 0; i < 300; i++) {                     /* small, large, larger than a block */
    bytes[i] = i % 50 == 49 ? 200000 : i % 10 == 9 ? 20000 : (size_t)i;
    at[i] = tc_pool_alloc(p, bytes[i]);
    aligned = aligned && (uintptr_t)at[i] % 16 == 0;
    for (size_t k = 0; k < bytes[i]; k++) zero = zero && at[i][k] == 0;
    memset(at[i], i & 255, bytes[i]);
  }
  for (int i = 0; i < 300; i++)
    for (size_t k = 0; k < bytes[i]; k++) apart = apart && at[i][k] == (i & 255);
  ok(aligned, "pool: aligned to 16");
  ok(zero, "pool: zeroed");
  ok(apart, "pool: allocations don't overlap");
  is_str(tc_pool_strdup(p, "tercio"), "tercio", "pool: a string");
  tc_pool_free(p);
  tc_pool_free(NULL);

  char *s = tc_sprintf("%s-%05d", "step", 42);
  is_str(s, "step-00042", "tc_sprintf");
  free(s);
  int *a = NULL, n = 0, cap = 0;
  for (int i = 0; i < 1000; i++) {
    TC_GROW(a, n, cap);
    a[n++] = i;
  }
  bool kept = true;
  for (int i = 0; i < 1000; i++) kept = kept && a[i] == i;
  ok(kept, "TC_GROW keeps what is there");
  free(a);
}

static void test_median(void)
{
  double x[] = { 5, 1, 4, 2, 3, 9 };
  int64_t k[] = { 5, 1, 4, 2, 3, 9 };
  near_f(tc_median(x, 1), 5, 0, "median of one");
  near_f(tc_median(x, 5), 3, 0, "of five");
  near_f(tc_median(x, 6), 3.5, 0, "of six, the mean of two");
  is_int(tc_median_i64(k, 5), 3, "of five integers");
  is_int(tc_median_i64(k, 6), 3, "of six, the lower of two");
}

static void test_err(void)
{
  struct tc_err e = { 0 };
  is_int(tc_fail(&e, TC_EUSER, "no file %s", "x"), TC_EUSER, "tc_fail returns the status");
  is_int(e.status, TC_EUSER, "... and keeps it");
  is_str(e.text, "no file x", "... and the sentence");
  tc_fail(&e, TC_EPEER, "rank 3: %s", e.text);
  is_str(e.text, "rank 3: no file x", "a sentence may quote the one before");
  is_int(tc_fail(NULL, TC_EUSER, "unheard"), TC_EUSER, "err may be NULL");
  char *lengthy = tc_calloc(1, 3000);
  memset(lengthy, 'x', 2999);
  tc_fail(&e, TC_EUSER, "%s", lengthy);
  is_int((int64_t)strlen(e.text), (int64_t)sizeof e.text - 1, "a long sentence is cut");
  free(lengthy);
}

static void *other_rank(void *arg)
{
  int *seen = arg;
  seen[0] = tc_log_rank();
  tc_log_set_rank(5);
  seen[1] = tc_log_rank();
  return NULL;
}

/* What tc_log writes on stderr, by way of a pipe. */
static void test_log(void)
{
  int fd[2], saved = dup(STDERR_FILENO);
  if (!ok(saved >= 0 && pipe(fd) == 0, "a pipe")) return;
  dup2(fd[1], STDERR_FILENO);
  tc_log("%d steps", 3);
  tc_log_set_rank(12);
  tc_warn("slow");
  char *lengthy = tc_calloc(1, 5000);
  memset(lengthy, 'x', 4999);
  tc_log("%s", lengthy);
  dup2(saved, STDERR_FILENO);
  close(saved);
  close(fd[1]);
  FILE *f = fdopen(fd[0], "r");
  char line[8000];
  is_str(fgets(line, sizeof line, f), "tercio: 3 steps\n", "without a rank");
  is_str(fgets(line, sizeof line, f), "tercio[12]: warning: slow\n", "a rank's warning");
  ok(fgets(line, sizeof line, f) && line[strlen(line) - 1] == '\n' && strlen(line) < 2100,
     "a long line is cut and ended");
  fclose(f);
  free(lengthy);
  pthread_t t;
  int seen[2];
  pthread_create(&t, NULL, other_rank, seen);
  pthread_join(t, NULL);
  ok(seen[0] == -1 && seen[1] == 5 && tc_log_rank() == 12, "each thread has its own rank");
}

static void test_shell_word(void)
{
  static const struct { const char *text, *want; } c[] = {
    { "/a/b-1_2.txt", "/a/b-1_2.txt" }, { "my run", "'my run'" }, { "", "''" }, { "$HOME", "'$HOME'" },
    { "it's", "'it'\\''s'" }, { "~", "'~'" }, { "a;b", "'a;b'" },
    { "-e/job.sbatch", "./-e/job.sbatch" }, { "-a b", "'./-a b'" }, { "a-b", "a-b" },
  };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    char *word = tc_shell_word(c[i].text);
    is_str(word, c[i].want, "%s as a word of a shell", c[i].text);
    free(word);
  }
}

static void test_ends(void)
{
  static const struct { const char *text, *ending; bool want; } c[] = {
    { "a.bin", ".bin", true }, { ".bin", ".bin", false }, { "bin", ".bin", false }, { "a.bin.gz", ".bin", false },
    { "a.BIN", ".bin", false }, { "folder/", "/", true }, { "a", "", true }, { "", "", false } };
  for (size_t i = 0; i < sizeof c / sizeof *c; i++)
    ok(tc_ends_with(c[i].text, c[i].ending) == c[i].want, "\"%s\" %s with \"%s\"", c[i].text,
       c[i].want ? "goes on and ends" : "does not end", c[i].ending);
}

static void test_words(void)
{
  static const char *const list[] = { "train.steps", "train.seed", "train.lr", "mesh.tp" };
  static const char *const keys[] = { "ar", "lr", "br" };
  is_int(tc_nearest("train.setps", list, 4), 0, "near by two letters");
  is_int(tc_nearest("rl", keys, 3), 1, "two letters swapped are one step");
  is_int(tc_nearest("train.lrr", list, 4), 2, "one letter more");
  is_int(tc_nearest("mesh.pt", list, 4), 3, "near");
  is_int(tc_nearest("checkpoint", list, 4), -1, "nothing is near");
  is_int(tc_nearest("", list, 4), -1, "the empty word");
  is_int(tc_ceil_div(10, 3), 4, "tc_ceil_div");
  is_int(tc_round_up(10, 4), 12, "tc_round_up");
  int64_t t = tc_now_ns();
  tc_sleep_ns(3000000);
  t = tc_now_ns() - t;
  ok(t >= 3000000 && t < INT64_C(60000000000), "slept %lld ns", (long long)t);
}

/* Numbers that stay what they are: runs are resumed with them. */
static void test_numbers(void)
{
  static const struct { uint64_t seed, i; uint32_t a, b; double normal, uniform; } c[] = {
    { UINT64_C(7), UINT64_C(0), 0, 3, 0.533347964, 0.59258019924163818 },
    { UINT64_C(1), UINT64_C(5), 1, 4, 1.09597731, 0.086707592010498047 },
    { UINT64_C(81985529216486895), UINT64_C(4294967297), 2, 5, 0.71288389, 0.75531351566314697 },
  };
  for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
    near_f((double)tc_normal(c[k].seed, c[k].a, c[k].b, c[k].i), c[k].normal, 1e-6, "normal %zu", k);
    near_f((double)tc_uniform(c[k].seed, c[k].a, c[k].b, c[k].i), c[k].uniform, 0, "uniform %zu", k);
  }
}

/* All bits, by the definition: Box and Muller's formula, and 24 bits of 32. */
static void test_bits(void)
{
  int wrong = 0;
  for (uint64_t i = 0; i < 2000; i++) {
    const uint32_t a = (uint32_t)i % 5, b = (uint32_t)i % 7;
    uint32_t x[4];
    tc_philox(x, 99, i << 20, (uint64_t)a << 32 | b);
    const double u1 = (double)x[0] * 0x1p-32 + (double)(x[1] >> 11) * 0x1p-53 + 0x1p-53;
    const double u2 = (double)x[2] * 0x1p-32 + (double)(x[3] >> 11) * 0x1p-53;
    const float normal = (float)(sqrt(-2 * log(u1)) * cos(6.283185307179586476925 * u2));
    wrong += tc_normal(99, a, b, i << 20) != normal;
    wrong += tc_uniform(99, a, b, i << 20) != (float)(x[0] >> 8) / 16777216;
  }
  is_int(wrong, 0, "normal and uniform numbers are those of their definition");
}

/* A message is one line; a line of the log has at most 2047 bytes. */
static void test_lines(void)
{
  struct tc_err e;
  char all[40] = "", line[4000];
  for (int i = 0; i < 35; i++) all[i] = (char)(i + 1);
  all[35] = 127, all[36] = 126;
  tc_fail(&e, TC_EUSER, "%s", all);
  is_str(e.text, "\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007\\u0008\\u0009\\u000a\\u000b\\u000c\\u000d\\u000e"
         "\\u000f\\u0010\\u0011\\u0012\\u0013\\u0014\\u0015\\u0016\\u0017\\u0018\\u0019\\u001a\\u001b\\u001c\\u001d"
         "\\u001e\\u001f !\"#\\u007f~", "control characters are shown by their numbers");
  for (int more = 2030; more <= 2050; more++) {
    int fd[2], saved = dup(STDERR_FILENO);
    if (!ok(pipe(fd) == 0, "a pipe")) return;
    dup2(fd[1], STDERR_FILENO);
    memset(line, 'y', (size_t)more);
    line[more] = 0;
    tc_log_set_rank(-1);
    tc_log("%s", line);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(fd[1]);
    const ssize_t n = read(fd[0], line, sizeof line);
    is_int(n, TC_MIN(more + 9, 2047), "a log line for %d letters: its bytes", more);
    ok(n > 10 && !memcmp(line, "tercio: yy", 10) && line[n - 2] == 'y' && line[n - 1] == '\n',
       "... its begin and end");
    close(fd[0]);
  }
}

/* Small pieces lie side by side in a block; a large one has its own, and the first is still used. */
static void test_pool(void)
{
  struct tc_pool *p = tc_pool_new();
  char *a = tc_pool_alloc(p, 1), *b = tc_pool_alloc(p, 17);
  char *c = tc_pool_alloc(p, 0), *d = tc_pool_alloc(p, 16);
  ok(b == a + 16 && c == b + 32 && d == c + 16, "pieces of 16 bytes");
  char *large = tc_pool_alloc(p, 65536), *e = tc_pool_alloc(p, 65536 - 80);
  ok(e == d + 16 && (large >= a + 65536 || large + 65536 <= a),
     "a large piece has a block of its own");
  char *f = tc_pool_alloc(p, 16), *g = tc_pool_alloc(p, 32);
  ok(g == f + 16, "a block that is full is followed by another");
  tc_pool_free(p);
}

/* The large piece's block comes between two others. */
static void pool_of_three_blocks(void)
{
  struct tc_pool *p = tc_pool_new();
  tc_pool_alloc(p, 65536);
  tc_pool_alloc(p, 16);
  tc_pool_alloc(p, 65536);
  tc_pool_free(p);
}

static void test_order(void)
{
  static const struct { double x, y; int want; } c[] = { { 1, 2, -1 }, { 2, 1, 1 }, { 2, 2, 0 } };
  const char *a = "a", *b = "b";
  for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
    const int64_t x = (int64_t)c[i].x, y = (int64_t)c[i].y;
    is_int(tc_order_double(&c[i].x, &c[i].y), c[i].want, "order of %g and %g", c[i].x, c[i].y);
    is_int(tc_order_i64(&x, &y), c[i].want, "... as integers");
  }
  ok(tc_order_text(&a, &b) < 0 && tc_order_text(&b, &a) > 0 && !tc_order_text(&a, &a),
     "order of texts");
}

/* How far a word may be from one that is meant, and which of several is. */
static void test_far(void)
{
  static const struct { const char *word; const char *list[3]; int want; } c[] = {
    { "x", { "y", "xyz", "a" }, 0 }, { "abcd", { "abxy", "abcx", "abcy" }, 1 },
    { "abcde", { "abcxy", "zzzzz", "z" }, 0 }, { "abcd", { "abxy", "zzzz", "z" }, -1 },
    { "abcdefgh", { "abcdexyz", "zz", "z" }, 0 }, { "abcdefgh", { "abcdwxyz", "zz", "z" }, -1 },
    { "abc", { "acb", "zzzz", "z" }, 0 }, { "abc", { "cab", "zzzz", "z" }, -1 },
    { "ab", { "", "z", "zz" }, -1 } };
  char text[10] = "ab";
  for (size_t i = 0; i < sizeof c / sizeof *c; i++)
    is_int(tc_nearest(c[i].word, c[i].list, 3), c[i].want, "nearest to %s", c[i].word);
  tc_text_add(text, sizeof text, "-%d", 42);
  is_str(text, "ab-42", "text is added");
  tc_text_add(text, sizeof text, "%s", "0123456789");
  is_str(text, "ab-420123", "... as far as there is room");
}

/* The vectors that the hash's authors publish. */
static void test_hash(void)
{
  ok(tc_hash32("") == 0x811c9dc5u && tc_hash32("foobar") == 0xbf9cf968u, "FNV-1a, 32 bits");
  ok(tc_hash64("") == UINT64_C(0xcbf29ce484222325) &&
     tc_hash64("foobar") == UINT64_C(0x85944171f73967e8), "FNV-1a, 64 bits");
  ok(tc_hash64("\xff") == UINT64_C(0xaf64724c8602eb6e), "bytes have no sign");
}

int main(void)
{
  test_philox();
  test_random();
  test_types();
  test_memory();
  test_median();
  test_err();
  test_log();
  test_words();
  test_shell_word();
  test_ends();
  test_numbers();
  test_bits();
  test_lines();
  test_pool();
  leaves_nothing("a pool", pool_of_three_blocks, 20);
  test_order();
  test_far();
  test_hash();
  return done_testing();
}
