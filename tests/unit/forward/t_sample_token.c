/* t_sample_token.c - how the next token is chosen: against a direct computation of each token's probability. */
#include "src/base/base.h"
#include "src/forward/sample.h"
#include "tests/unit/tap.h"

enum { MOST = 60, LARGE = 3000, DRAWS = 100000 };

static uint64_t numbers;
static double uniform(void)
{
  uint32_t r[4];
  tc_philox(r, 7, numbers++, 0);
  return (double)((uint64_t)r[1] << 21 | r[0] >> 11) * 0x1p-53;
}

/* Whether token a comes before b: larger logits first, of equal ones the lower id. */
static bool before(const float *logits, int a, int b)
{
  return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* p[n] <- each token's probability, order[n] <- the tokens from the most likely on. */
static void direct(const struct tc_sampling *s, const float *logits, int n, double *p, int *order)
{
  double all = 0, sum = 0, kept = 0;
  for (int i = 0; i < n; i++) {
    int rank = 0;
    for (int j = 0; j < n; j++) rank += before(logits, j, i);
    order[rank] = i;
  }
  const int most = s->top_k > 0 && s->top_k < n ? (int)s->top_k : n;
  for (int i = 0; i < n; i++) p[i] = 0;
  for (int i = 0; i < most; i++) all += exp(((double)logits[order[i]] - (double)logits[order[0]]) / s->temperature);
  for (int i = 0; i < most && (i == 0 || sum < s->top_p * all); i++) {
    p[order[i]] = exp(((double)logits[order[i]] - (double)logits[order[0]]) / s->temperature);
    sum += p[order[i]];
  }
  for (int i = 0; i < n; i++) kept += p[i];
  for (int i = 0; i < n; i++) p[i] /= kept;
}

static void test_bad(void)
{
  const float bad[] = { NAN, INFINITY };
  for (int at = 0; at < 3; at++)
    for (int i = 0; i < 2; i++) {
      float x[] = { 1, -INFINITY, 2 };
      is_int(tc_sample_bad_logit(x, 3), -1, "-inf is the probability 0");
      x[at] = bad[i];
      is_int(tc_sample_bad_logit(x, 3), at, "no probabilities of %g", (double)bad[i]);
      is_int(tc_sample_bad_logit(x, at), at == 2 || at == 1 ? -1 : 0, "... which lies beyond the vocabulary");
    }
  const float none[] = { -INFINITY, -INFINITY };
  is_int(tc_sample_bad_logit(none, 2), 0, "nor where no token is possible");
}

static void test_greedy(void)
{
  const float logits[] = { -1, 3, 2, 3, -5 }, equal[] = { 0, 0, 0 }, below[] = { -INFINITY, -9, -8 };
  const struct tc_sampling greedy = { .top_p = 1 };
  int32_t order[5];
  is_int(tc_sample_pick(&greedy, logits, 5, 0.9, order), 1, "greedy: the largest logit, of equal ones the first");
  is_int(tc_sample_pick(&greedy, equal, 3, 0.9, order), 0, "... all equal");
  is_int(tc_sample_pick(&greedy, below, 3, 0, order), 2, "... negative ones");
  is_int(tc_sample_pick(&greedy, logits, 1, 0.5, order), 0, "... one token");
  const struct tc_sampling one = { .temperature = 2, .top_k = 1, .top_p = 1 }, narrow = { .temperature = 1, .top_p = 1e-9 };
  for (int i = 0; i < 10; i++)
    ok(tc_sample_pick(&one, logits, 5, 0.1 * i, order) == 1 && tc_sample_pick(&narrow, logits, 5, 0.1 * i, order) == 1,
       "top_k = 1 and a tiny top_p are greedy, u = 0.%d", i);
  const struct tc_sampling cold = { .temperature = 1e-300, .top_p = 1 };
  const float two[] = { 1, 1.0001f, 1.0001f };
  ok(tc_sample_pick(&cold, two, 3, 0.4, order) == 1 && tc_sample_pick(&cold, two, 3, 0.6, order) == 2,
     "a tiny temperature leaves the largest, and equal ones alike");
}

/* u is just below and above each cumulated probability. */
static bool as_directly(const struct tc_sampling *s, const float *logits, int n)
{
  static double p[LARGE];
  static int by_rank[LARGE];
  int32_t order[LARGE];
  int wrong = 0;
  double sum = 0;
  direct(s, logits, n, p, by_rank);
  for (int i = 0; i < n; i++) {
    const double share = p[by_rank[i]], next = sum + share, off = 1e-3 * share;
    const double u[3] = { sum + off, (sum + next) / 2, next - off };
    const bool checked = share > 1e-8 && i % (1 + n / 200) == 0;
    for (int k = 0; k < 3 && checked; k++) wrong += tc_sample_pick(s, logits, n, u[k], order) != by_rank[i];
    sum = next;
  }
  return wrong == 0 && p[tc_sample_pick(s, logits, n, 1 - 0x1p-53, order)] > 0;
}

static void test_direct(int number)
{
  const int n = 1 + (int)(uniform() * MOST);
  const struct tc_sampling s = { .temperature = 0.1 + 2 * uniform(), .top_k = uniform() < 0.5 ? 0 : 1 + (int)(uniform() * MOST),
                                 .top_p = uniform() < 0.5 ? 1 : 0.05 + 0.95 * uniform() };
  float logits[MOST];
  for (int i = 0; i < n; i++) logits[i] = (float)(int)(8 * uniform()) - (uniform() < 0.1 ? INFINITY : 0);  /* with ties */
  logits[n / 2] = 1;
  ok(as_directly(&s, logits, n), "case %d, %d tokens, temperature %.3f, top_k %lld, top_p %.3f: as computed directly", number, n,
     s.temperature, (long long)s.top_k, s.top_p);
}

/* Logits that spread over all buckets by which they are sorted, share a few, or all share one. */
static void test_large(void)
{
  static const char *const kinds[] = { "spread", "one of -1e30", "some impossible", "three values", "all equal" };
  static const struct tc_sampling how[] = {
    { .temperature = 1, .top_k = 50, .top_p = 0.95 }, { .temperature = 0.7, .top_p = 0.9 },
    { .temperature = 5, .top_k = LARGE - 1, .top_p = 1 } };
  float logits[LARGE];
  for (int kind = 0; kind < 5; kind++)
    for (size_t h = 0; h < sizeof how / sizeof *how; h++) {
      for (int i = 0; i < LARGE; i++)
        logits[i] = kind == 4 ? 2 : kind == 3 ? (float)(int)(3 * uniform()) : (float)(12 * uniform() + 12 * uniform() - 90);
      if (kind == 1) logits[LARGE / 3] = -1e30f;
      for (int i = 0; i < LARGE && kind == 2; i += 7) logits[i] = -INFINITY;
      ok(as_directly(&how[h], logits, LARGE), "%d logits, %s, top_k %lld, top_p %.2f: as computed directly", LARGE,
         kinds[kind], (long long)how[h].top_k, how[h].top_p);
    }
}

/* Parts in which prompts are read. */
static void test_prefill(void)
{
  const struct tc_sampling plain = { .tokens = 1 }, window = { .tokens = 1, .window = true };
  struct tc_prompt many[20] = { { NULL, 300 } };
  for (int i = 1; i < 20; i++) many[i] = (struct tc_prompt){ NULL, 7 };
  is_int(tc_sample_prefill(&plain, many + 1, 1, 1024), 7, "a short prompt is read at once");
  is_int(tc_sample_prefill(&plain, many, 1, 1024), 150, "a long one in equal parts");
  is_int(tc_sample_prefill(&plain, many, 20, 1024), 60, "... in smaller ones beside many others");
  is_int(tc_sample_prefill(&window, many, 1, 100), 100, "of one that exceeds the context the rest is read");
  is_int(tc_sample_prefill(&window, many + 1, 1, 400), 200, "a window is read again by its half");
  is_int(tc_sample_prefill(&window, many + 1, 1, 1), 1, "... of one token");
}

static void test_frequencies(const char *what, const struct tc_sampling *s)
{
  const float logits[] = { 1, 0.5f, 2, -1, 2, -3, 0 };
  enum { N = sizeof logits / sizeof *logits };
  int count[N] = { 0 }, by_rank[N];
  int32_t order[N];
  double p[N];
  bool good = true;
  direct(s, logits, N, p, by_rank);
  for (int i = 0; i < DRAWS; i++) count[tc_sample_pick(s, logits, N, uniform(), order)]++;
  for (int i = 0; i < N; i++) {
    const double sigma = sqrt(p[i] * (1 - p[i]) / DRAWS), off = fabs((double)count[i] / DRAWS - p[i]);
    if (off <= 5 * sigma + 1e-12) continue;
    good = false;
    printf("# token %d: %d of %d, want %.5f\n", i, count[i], DRAWS, p[i]);
  }
  ok(good, "frequencies of %d draws, %s", DRAWS, what);
}

int main(void)
{
  test_bad();
  test_greedy();
  for (int i = 0; i < 60; i++) test_direct(i);
  test_large();
  test_prefill();
  test_frequencies("temperature 1", &(struct tc_sampling){ .temperature = 1, .top_p = 1 });
  test_frequencies("temperature 0.5", &(struct tc_sampling){ .temperature = 0.5, .top_p = 1 });
  test_frequencies("top_k 3", &(struct tc_sampling){ .temperature = 1.5, .top_k = 3, .top_p = 1 });
  test_frequencies("top_p 0.7", &(struct tc_sampling){ .temperature = 1, .top_p = 0.7 });
  test_frequencies("top_k 5 and top_p 0.9", &(struct tc_sampling){ .temperature = 2, .top_k = 5, .top_p = 0.9 });
  return done_testing();
}
