/* t_straggler.c - slow ranks: named once, with their node, against their stage's median or their own
 * best; single slow steps are not; nor what a whole stage does. */
#include "src/monitor/straggler.h"
#include "tests/unit/random.h"
#include "tests/unit/tap.h"

enum { W = 6 };

static const int32_t one_stage[W], two_stages[W] = { 0, 0, 0, 1, 1, 1 };
static const int32_t nodes[W] = { 0, 0, 1, 1, 2, 2 };
static const char *const who[W] = { "rank 0 on a", "rank 1 on a", "rank 2 on b", "rank 3 on b",
                                    "rank 4 on c", "rank 5 on c" };

static struct tc_straggler *make(int world, const int32_t *stage)
{
  const struct tc_straggler_opts o = { .world = world, .stage = stage, .node = nodes, .rank_names = who,
                                  .min_steps = 4, .min_ns = 1 };
  return tc_straggler_new(&o);
}

/* n steps with this work; returns how many sentences, the last into logged. */
static int steps(struct tc_straggler *s, int n, const int64_t *work, char *logged, struct tc_slowest *w)
{
  int sentences = 0;
  for (int i = 0; i < n; i++) {
    const char *text = tc_straggler_step(s, i + 1, work, w);
    if (!text) continue;
    sentences++;
    snprintf(logged, 700, "%s", text);
  }
  return sentences;
}

/* ---- beside a naive one: random work, medians by sorting, each window by itself ---- */

static int by_size(const void *a, const void *b)
{
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

struct naive { int64_t best[W]; int run[W]; bool slow[W], logged; };

/* What rank r's work is compared with: its stage's lower median, or its own best. */
static double against(const struct naive *n, const int64_t *work, const int32_t *stage, int r)
{
  int64_t same[W];
  int k = 0;
  for (int i = 0; i < W; i++)
    if (stage[i] == stage[r]) same[k++] = work[i];
  if (k == 1) return (double)n->best[r];
  qsort(same, (size_t)k, sizeof *same, by_size);
  return (double)same[(k - 1) / 2];
}

static double times(const struct naive *n, const int64_t *work, const int32_t *stage, int r)
{
  const double x = against(n, work, stage, r);
  return x > 0 ? (double)work[r] / x : 1;
}

/* A window with these means: whether there is a warning, and which ranks it names. */
static bool naive_window(struct naive *n, const int64_t *mean, const int32_t *stage, bool *named)
{
  bool was[W], more = false, less = false;
  double f[W];
  for (int r = 0; r < W; r++) f[r] = times(n, mean, stage, r);
  for (int r = 0; r < W; r++) {
    was[r] = n->slow[r];
    if (!n->best[r] || mean[r] < n->best[r]) n->best[r] = mean[r];
    n->run[r] = f[r] > 1.5 ? n->run[r] + 1 : 0;
    if (n->run[r] >= 2) n->slow[r] = true;
    else if (f[r] < 1.25) n->slow[r] = false;
    more |= n->slow[r] && !was[r];
    less |= !n->slow[r] && was[r];
  }
  for (int r = 0; r < W; r++) named[r] = more ? n->slow[r] : was[r] && !n->slow[r];
  if (more && n->logged) memcpy(n->slow, was, sizeof was);   /* within the minute */
  bool say = more ? !n->logged : less;
  if (more && !n->logged) n->logged = true;
  return say;
}

static void test_naive(void)
{
  enum { RUNS = 200, WINDOWS = 12, STEPS = 4 };
  static const int32_t stages[3][W] = { { 0 }, { 0, 0, 0, 1, 1, 1 }, { 0, 1, 2, 2, 3, 3 } };
  int sentences = 0;
  bool same = true;
  for (int run = 0; run < RUNS && same; run++) {
    const int32_t *stage = stages[run % 3];
    struct tc_straggler *s = make(W, stage);
    struct naive n = { .logged = false };
    int hot = (int)draw(0, W - 1), from = (int)draw(0, WINDOWS - 1), end = from + (int)draw(1, 5);
    for (int w = 0; w < WINDOWS && same; w++) {
      const char *text = NULL;
      int64_t work[W], sum[W] = { 0 };
      bool named[W];
      for (int k = 0; k < STEPS; k++) {
        struct tc_slowest x;
        for (int r = 0; r < W; r++) {
          bool slow = w >= from && w < end && (r == hot || (run % 4 == 0 && r == (hot + 1) % W));
          sum[r] += work[r] = (slow ? 170 : 100) + draw(0, 60);
        }
        int top = 0;
        for (int r = 1; r < W; r++)
          if (times(&n, work, stage, r) > times(&n, work, stage, top)) top = r;
        text = tc_straggler_step(s, w * STEPS + k + 1, work, &x);
        same &= k == STEPS - 1 || !text;
        /* Where two are equal, that of the first stage is named. */
        same &= times(&n, work, stage, x.rank) == times(&n, work, stage, top) &&
                x.work_ns == work[x.rank] && (double)x.median_ns == against(&n, work, stage,
                                                            x.rank);
      }
      for (int r = 0; r < W; r++) sum[r] /= STEPS;
      same &= naive_window(&n, sum, stage, named) == (text != NULL);
      for (int r = 0; text && r < W; r++) same &= named[r] == (strstr(text, who[r]) != NULL);
      sentences += text != NULL;
      if (!same) printf("# run %d, window %d: %s\n", run, w, text ? text : "no word");
    }
    tc_straggler_free(s);
  }
  ok(same, "%d random runs: the words of a naive comparison (%d)", RUNS, sentences);
}

static void test_words(void)
{
  char logged[700] = "";
  struct tc_slowest w;
  const int64_t fast[W] = { 100, 100, 100, 100, 100, 100 };
  enum { MANY = 12 };
  static const int32_t nowhere[MANY], node[MANY] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
  static const char *const names[MANY] = { "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8",
      "r9",
                                           "r10", "r11" };
  int64_t work[MANY];
  for (int slow = 4; slow <= 6; slow++) {
    const struct tc_straggler_opts o = { .world = MANY, .stage = nowhere, .node = node, .rank_names = names,
                                    .min_steps = 1, .min_ns = 1 };
    struct tc_straggler *s = tc_straggler_new(&o);
    for (int r = 0; r < MANY; r++) work[r] = r < slow ? 200 : 100;
    steps(s, 2, work, logged, &w);
    char want[60];
    snprintf(want, sizeof want, "r3 (2.0 times)%s", slow == 5 ? " and 1 more:" : slow > 5 ?
             " and 2 more:" : ":");
    ok(strstr(logged, "wait for r0 (2.0 times), r1 (") && strstr(logged, want) && !strstr(logged, "r4"),
       "%d slow ranks: four are named: %s", slow, logged);
    ok(strstr(logged, "up to step 2.") != NULL, "... with the step");
    tc_straggler_free(s);
  }

  /* A window: 20 steps at least, and 2 s of one rank's work. */
  static const struct { int64_t ns; int step; } windows[] = {
    { 1000000000, 40 }, { 100000000, 40 }, { 80000000, 50 }, { 1, 0 },
  };
  for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
    const struct tc_straggler_opts o = { .world = W, .stage = one_stage, .node = nodes, .rank_names = who };
    struct tc_straggler *s = tc_straggler_new(&o);
    for (int r = 0; r < W; r++) work[r] = r == 2 ? windows[i].ns : windows[i].ns / 2;
    int at = 0;
    for (int k = 1; k <= 60 && !at; k++)
      if (tc_straggler_step(s, k, work, &w)) at = k;
    is_int(at, windows[i].step, "a step of %lld ns: named after two windows",
           (long long)windows[i].ns);
    tc_straggler_free(s);
  }

  struct tc_straggler *s = make(W, one_stage);
  is_int(steps(s, 8, fast, logged, &w), 0, "all alike: no word");
  ok(w.rank == 0 && w.work_ns == 100 && w.median_ns == 100, "... of equals the first is reported");
  tc_straggler_free(s);
}

int main(void)
{
  tc_straggler_free(NULL);
  test_naive();
  test_words();
  char logged[700] = "";
  struct tc_slowest w;
  const int64_t even[W] = { 100, 110, 90, 100, 105, 95 };
  const int64_t four[W] = { 100, 110, 90, 100, 210, 95 };
  const int64_t node_c[W] = { 100, 110, 90, 100, 210, 190 };
  const int64_t staged[W] = { 100, 110, 90, 300, 310, 290 };
  const int64_t staged_slow[W] = { 100, 110, 90, 300, 310, 600 };

  struct tc_straggler *s = make(W, one_stage);
  is_int(steps(s, 40, even, logged, &w), 0, "ranks alike: no word");
  is_int(w.rank, 1, "... yet the slowest is known");
  is_int(w.work_ns, 110, "... and its work");
  is_int(w.median_ns, 100, "... and the (lower) median");
  is_int(steps(s, 4, four, logged, &w), 0, "one slow window: no word");
  is_int(steps(s, 8, even, logged, &w), 0, "... and after it none");
  is_int(steps(s, 40, four, logged, &w), 1, "a rank that stays slow is named once");
  ok(strstr(logged, "rank 4 on c (2.1 times)") != NULL, "... with node and factor: %s", logged);
  is_int(w.rank, 4, "... and is the slowest of the step");
  is_int(steps(s, 12, even, logged, &w), 1, "... its end is reported once");
  ok(strstr(logged, "rank 4 on c: is as fast") != NULL, "... by name: %s", logged);
  is_int(steps(s, 40, four, logged, &w), 0, "slow again within the minute: no more words");
  tc_straggler_free(s);

  s = make(W, one_stage);
  is_int(steps(s, 20, node_c, logged, &w), 1, "two slow ranks of a node: one sentence");
  ok(strstr(logged, "rank 4 on c (2.1 times, like all ranks on c), rank 5") != NULL, "... %s", logged);
  tc_straggler_free(s);

  const int64_t node_b[W] = { 100, 110, 210, 190, 90, 100 };
  s = make(W, one_stage);
  steps(s, 20, node_b, logged, &w);
  ok(strstr(logged, "rank 2 on b (2.1 times, like all ranks on b), rank 3") != NULL, "... %s", logged);
  tc_straggler_free(s);

  s = make(W, two_stages);
  is_int(steps(s, 40, staged, logged, &w), 0, "a stage with more work is not slow");
  is_int(steps(s, 12, staged_slow, logged, &w), 1, "... a rank of it may be");
  ok(strstr(logged, "rank 5 on c (1.9 times)") != NULL, "... %s", logged);
  tc_straggler_free(s);

  const int32_t alone[2] = { 0, 1 };
  const int64_t at_first[2] = { 100, 300 }, later[2] = { 100, 600 };
  s = make(2, alone);
  is_int(steps(s, 20, at_first, logged, &w), 0, "stages of one rank: more work is not slow");
  is_int(steps(s, 12, later, logged, &w), 1, "... more than before is");
  ok(strstr(logged, "rank 1 on a (2.0 times)") != NULL, "... %s", logged);
  tc_straggler_free(s);
  return done_testing();
}
