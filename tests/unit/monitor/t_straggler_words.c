/* t_straggler_words.c - slow ranks at the very bounds, in whole sentences, with a clock of the test's
 * own. Random runs are t_straggler's. */
#include "src/base/base.h"
#include "tests/unit/leak.h"
#include "tests/unit/tap.h"

static int64_t now_ns = 1;
static int64_t clock_ns(void) { return now_ns; }
#define tc_now_ns clock_ns
#include "src/monitor/straggler.c"

enum { W = 8 };
#define BEHIND                                                                                                 \
  ": it computes that much longer than the other ranks of its stage, or than itself before, in the last two windows up to step %d. " \
  "Check the clocks, temperature and other users of its node"
#define AGAIN ": is as fast as the others again"

static const int32_t one[W];
static const int32_t pairs[W] = { 0, 0, 1, 1, 2, 2, 2, 2 };
static const char *const who[W] = { "r0 on a", "r1 on a", "r2 on b", "r3 on b",
                                    "r4",      "r5",      "r6",      "r7" };

/* Windows of one step; what is reported of the last of them, "" if nothing. */
static const char *run_step(struct tc_straggler *s, int64_t step, int64_t a, int64_t b, int64_t c)
{
  struct tc_slowest worst;
  int64_t work[W] = { a, b, c, 100, 100, 100, 100, 100 };
  const char *logged = tc_straggler_step(s, step, work, &worst);
  return logged ? logged : "";
}

static struct tc_straggler *make(const int32_t *node, int steps, int64_t ns)
{
  const struct tc_straggler_opts o = {
    .world = W, .stage = one, .node = node, .rank_names = who, .min_steps = steps, .min_ns = ns
  };
  return tc_straggler_new(&o);
}

static void says(const char *got, int step, const char *before, const char *after)
{
  char want[600] = "";
  if (*before) snprintf(want, sizeof want, "%s%s", before, "");
  if (*before && step) {
    char behind[300];
    snprintf(behind, sizeof behind, BEHIND, step);
    tc_text_add(want, sizeof want, "%s", behind);
  } else if (*before) {
    tc_text_add(want, sizeof want, "%s", AGAIN);
  }
  is_str(got, want, "%s", after);
}

static void test_bounds(void)
{
  static const struct {
    int64_t first, second, third;
    bool slow, ends;
  } rows[] = { { 151, 151, 124, true, true },   { 150, 150, 100, false, false },
               { 151, 150, 100, false, false }, { 150, 151, 100, false, false },
               { 151, 151, 125, true, false },  { 200, 151, 150, true, false } };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_straggler *s = make(one, 1, 1);
    char before[80];
    says(run_step(s, 1, rows[i].first, 100, 100), 0, "", "one window says nothing");
    snprintf(before, sizeof before, "all ranks wait for r0 on a (%.1f times)",
             (double)rows[i].second / 100);
    says(run_step(s, 2, rows[i].second, 100, 100), 2, rows[i].slow ? before : "",
         "... two do, if it is slow enough");
    says(run_step(s, 3, rows[i].third, 100, 100), 0, rows[i].ends ? "r0 on a" : "",
         "... until it is quick enough");
    tc_straggler_free(s);
  }
}

/* A minute between two sentences of slowness; its end is reported at once. */
static void test_quiet(void)
{
  struct tc_straggler *s = make(one, 1, 1);
  now_ns = 5;
  run_step(s, 1, 200, 100, 100);
  says(run_step(s, 2, 200, 100, 100), 2, "all ranks wait for r0 on a (2.0 times)", "a slow rank");
  says(run_step(s, 3, 200, 300, 100), 0, "", "another");
  now_ns = 5 + QUIET_NS - 1;
  says(run_step(s, 4, 200, 300, 100), 0, "", "... is not reported within the minute");
  says(run_step(s, 5, 200, 300, 100), 0, "", "... nor a bit later");
  now_ns = 5 + QUIET_NS;
  says(run_step(s, 6, 200, 300, 100), 6, "all ranks wait for r0 on a (2.0 times), r1 on a (3.0 times)",
       "... but after it");
  says(run_step(s, 7, 100, 300, 100), 0, "r0 on a", "an end is reported at once");
  says(run_step(s, 8, 100, 100, 100), 0, "r1 on a", "... each of them");
  says(run_step(s, 9, 100, 100, 100), 0, "", "... once");
  tc_straggler_free(s);
}

static void test_nodes(void)
{
  struct tc_straggler *s = make(pairs, 1, 1);
  now_ns = 5;
  run_step(s, 1, 200, 220, 260);
  says(run_step(s, 2, 200, 220, 260), 2,
       "all ranks wait for r0 on a (2.0 times, like all ranks on "
       "a), r1 on a (2.2 times, like all "
       "ranks on a), r2 on b (2.6 times)",
       "all ranks of a node, and one of two");
  tc_straggler_free(s);
  s = make(one, 1, 1);
  run_step(s, 1, 200, 220, 260);
  says(run_step(s, 2, 200, 220, 260), 2,
       "all ranks wait for r0 on a (2.0 times), r1 on a (2.2 "
       "times), r2 on b (2.6 times)",
       "one node alone is not named");
  tc_straggler_free(s);
  static const int32_t each[W] = { 0, 1, 2, 3, 4, 5, 6, 7 };
  s = make(each, 1, 1);
  run_step(s, 1, 200, 100, 100);
  says(run_step(s, 2, 200, 100, 100), 2, "all ranks wait for r0 on a (2.0 times)", "nor one of a rank");
  ok(!strcmp(node_name(s, 0), "a") && !strcmp(node_name(s, 4), "r4"),
     "a node's name, or its rank's");
  tc_straggler_free(s);
}

/* A window ends after so many steps and so much work of the one that works most. */
static void test_windows(void)
{
  struct tc_straggler *s = make(one, 3, 1000);
  now_ns = 5;
  run_step(s, 1, 400, 100, 100);
  run_step(s, 2, 500, 100, 100);
  ok(s->steps == 2, "two steps of three");
  run_step(s, 3, 99, 100, 100);
  ok(s->steps == 3 && s->rank[0].sum_ns == 999, "... three, but too little work");
  run_step(s, 4, 1, 100, 100);
  ok(s->steps == 0 && s->rank[0].sum_ns == 0 && s->rank[0].best_ns == 250 &&
         s->rank[1].best_ns == 100,
     "... enough");
  ok(s->rank[0].windows == 1 && !s->rank[0].slow && s->rank[0].factor == 2.5, "... and slow once");
  for (int i = 5; i < 8; i++) run_step(s, i, 300, 100, 100);
  is_int(s->steps, 3, "the next window");
  says(run_step(s, 8, 200, 100, 100), 8, "all ranks wait for r0 on a (2.8 times)",
       "... is slow by its mean");
  is_int(s->rank[0].best_ns, 250, "... and not the best");
  tc_straggler_free(s);
  const struct tc_straggler_opts o = { .world = W, .stage = one, .node = one, .rank_names = who };
  s = tc_straggler_new(&o);
  ok(s->o.min_steps == 20 && s->o.min_ns == 2000000000, "a window is 20 steps and 2 s unless it "
                                                        "is reported");
  tc_straggler_free(s);
}

static void windows(void)
{
  struct tc_straggler *s = make(pairs, 1, 1);
  for (int i = 1; i < 4; i++) run_step(s, i, 200, 220, 260);
  tc_straggler_free(s);
}

int main(void)
{
  test_bounds();
  test_quiet();
  test_nodes();
  test_windows();
  leaves_nothing("looking for slow ranks", windows, 20);
  return done_testing();
}
