/* t_bins.c - windows of samples: each sample once, none over a border; how many windows there are beside the bounds, on ten
 * distributions; and 1,000,000 samples in less than 5 s of a processor. SHOW=1 prints figures. */
#include "src/base/base.h"
#include "src/data/bins.h"
#include "tests/unit/seed.h"
#include "tests/unit/tap.h"

enum { T = 4096 };

struct draw { uint64_t seed, n; };

static double uniform(struct draw *d)
{
  uint32_t r[4];
  tc_philox(r, d->seed, d->n++, 0);
  return ((double)r[0] + 0.5) / 4294967296.0;
}

static double normal(struct draw *d)
{
  const double r = sqrt(-2 * log(uniform(d)));
  return r * cos(2 * 3.14159265358979 * uniform(d));
}

/* Zipf's law with exponent 1, by the inverse of the harmonic sum's integral. */
static double zipf(struct draw *d) { return pow(T + 1.0, uniform(d)); }

static double d_all(struct draw *d) { return 1 + T * uniform(d); }
static double d_half(struct draw *d) { return 1 + T / 2 * uniform(d); }
static double d_lognormal(struct draw *d) { return T / 8 * exp(normal(d)); }
static double d_exponential(struct draw *d) { return -T / 4 * log(uniform(d)); }
static double d_bimodal(struct draw *d) { return uniform(d) < 0.5 ? T / 16 : 3 * T / 4; }
static double d_third(struct draw *d) { (void)d; return T / 3; }
static double d_over_half(struct draw *d) { (void)d; return T / 2 + 1; }
static double d_quarter(struct draw *d) { return T / 4 + T / 4 * uniform(d); }
static double d_one(struct draw *d) { (void)d; return T; }

/* Martello and Toth, "Lower bounds and reduction procedures for the bin packing problem", Discrete Appl. Math. 28, 1990: for
 * each K up to T / 2, windows for samples above T / 2, and for what is left of the others from K on. */
static int64_t lower_bound(const int32_t *size, int64_t n)
{
  static int64_t count[T + 2], sum[T + 2];      /* of samples of at least so many tokens */
  memset(count, 0, sizeof count), memset(sum, 0, sizeof sum);
  for (int64_t i = 0; i < n; i++) count[size[i]]++, sum[size[i]] += size[i];
  for (int s = T - 1; s >= 0; s--) count[s] += count[s + 1], sum[s] += sum[s + 1];
  int64_t best = tc_ceil_div(sum[0], T);
  for (int K = 0; K <= T / 2; K++) {
    const int64_t over = count[T - K + 1], middle = count[T / 2 + 1] - over, room = middle * T - (sum[T / 2 + 1] - sum[T - K + 1]);
    const int64_t small = sum[K] - sum[T / 2 + 1];
    best = TC_MAX(best, over + middle + TC_MAX(0, tc_ceil_div(TC_MAX(small - room, 0), T)));
  }
  return best;
}

/* Best fit decreasing again, in as many steps as there are samples and windows. */
static int64_t naive(const int32_t *size, int64_t n)
{
  int32_t *left = tc_malloc((size_t)n * sizeof *left);
  int64_t windows = 0;
  for (int s = T; s > 0; s--)
    for (int64_t i = 0; i < n; i++) {
      if (size[i] != s) continue;
      int64_t best = -1;
      for (int64_t w = 0; w < windows; w++)
        if (left[w] >= s && (best < 0 || left[w] < left[best])) best = w;
      if (best < 0) left[best = windows++] = T;
      left[best] -= s;
    }
  free(left);
  return windows;
}

/* Each sample is in one window, and none is too full. */
static bool is_right(const struct tc_bins *b, const int32_t *size, int64_t n)
{
  uint8_t *seen = tc_calloc((size_t)n, 1);
  bool right = b->begin[0] == 0 && b->begin[b->n] == n;
  for (int64_t w = 0; w < b->n && right; w++) {
    int64_t sum = 0;
    for (int64_t i = b->begin[w]; i < b->begin[w + 1]; i++) {
      right &= !seen[b->sample[i]]++ && (i == b->begin[w] || size[b->sample[i]] <= size[b->sample[i - 1]]);
      sum += size[b->sample[i]];
    }
    right &= sum > 0 && sum <= T;
  }
  free(seen);
  return right;
}

static const struct { const char *name; double (*draw)(struct draw *); bool bound; } distributions[] = {
  { "uniform 1..T", d_all, true }, { "uniform 1..T/2", d_half, true }, { "lognormal, median T/8", d_lognormal, true },
  { "exponential, mean T/4", d_exponential, true }, { "Zipf", zipf, true }, { "T/16 or 3T/4", d_bimodal, true },
  { "T/3", d_third, true }, { "T/2 + 1", d_over_half, true }, { "T", d_one, true }, { "uniform T/4..T/2", d_quarter, false } };
enum { DISTRIBUTIONS = sizeof distributions / sizeof *distributions };

static int32_t *draw_sizes(int which, int64_t n, uint64_t seed)
{
  struct draw d = { seed, 0 };
  int32_t *size = tc_malloc((size_t)n * sizeof *size);
  for (int64_t i = 0; i < n; i++) {
    const double x = distributions[which].draw(&d);
    size[i] = (int32_t)TC_MIN(TC_MAX(x, 1), T);
  }
  return size;
}

static void test(int which, int64_t n, uint64_t seed)
{
  int32_t *size = draw_sizes(which, n, seed);
  struct tc_bins b;
  const int64_t least = lower_bound(size, n);
  const clock_t before = clock();
  tc_bins_fill(&b, size, n, T);
  const double seconds = (double)(clock() - before) / CLOCKS_PER_SEC;
  const bool right = is_right(&b, size, n), few = (double)b.n <= 1.01 * (double)least || !distributions[which].bound;
  ok(right && few, "%lld samples, %s: %lld windows, at least %lld would be needed", (long long)n, distributions[which].name,
     (long long)b.n, (long long)least);
  if (n >= 1000000) ok(seconds < 5, "in less than 5 s of a processor");
  if (getenv("SHOW")) printf("# %.3f s, windows %.4f of the bound\n", seconds, (double)b.n / (double)least);
  if (n <= 5000) ok(b.n == naive(size, n), "as many as best fit decreasing, done naively");
  tc_bins_free(&b);
  free(size);
}

static void test_small(void)
{
  static const int32_t one[] = { 3 };
  struct tc_bins b;
  tc_bins_fill(&b, one, 1, 3);
  ok(b.n == 1 && b.sample[0] == 0 && b.begin[1] == 1, "one sample that fills its window");
  tc_bins_free(&b);
  tc_bins_fill(&b, NULL, 0, 3);
  ok(b.n == 0 && b.begin[0] == 0, "no samples, no windows");
  tc_bins_free(&b);
}

int main(void)
{
  const uint64_t seed = test_seed(false);
  test_small();
  for (int i = 0; i < DISTRIBUTIONS; i++) {
    test(i, 2000, seed);
    test(i, 100000, seed + 1);
    test(i, 1000000, seed + 2);
  }
  return done_testing();
}
