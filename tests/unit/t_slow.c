/* t_slow.c - slow ranks: named once, with their node, against their stage's median or their own
 * best; single slow steps are not; nor what a whole stage does. */
#include "src/slow.h"
#include "tests/unit/tap.h"

enum { W = 6 };

static const int32_t one_stage[W], two_stages[W] = { 0, 0, 0, 1, 1, 1 };
static const int32_t nodes[W] = { 0, 0, 1, 1, 2, 2 };
static const char *const who[W] = { "rank 0 on a", "rank 1 on a", "rank 2 on b", "rank 3 on b",
                                    "rank 4 on c", "rank 5 on c" };

static struct tc_slow *make(int world, const int32_t *stage)
{
  const struct tc_slow_opts o = { .world = world, .stage = stage, .node = nodes, .who = who,
                                  .min_steps = 4, .min_ns = 1 };
  return tc_slow_new(&o);
}

/* n steps with this work; returns how many sentences, the last into said. */
static int steps(struct tc_slow *s, int n, const int64_t *work, char *said, struct tc_slowest *w)
{
  int sentences = 0;
  for (int i = 0; i < n; i++) {
    const char *text = tc_slow_step(s, i + 1, work, w);
    if (!text) continue;
    sentences++;
    snprintf(said, 700, "%s", text);
  }
  return sentences;
}

int main(void)
{
  char said[700] = "";
  struct tc_slowest w;
  const int64_t even[W] = { 100, 110, 90, 100, 105, 95 };
  const int64_t four[W] = { 100, 110, 90, 100, 210, 95 };
  const int64_t node_c[W] = { 100, 110, 90, 100, 210, 190 };
  const int64_t staged[W] = { 100, 110, 90, 300, 310, 290 };
  const int64_t staged_slow[W] = { 100, 110, 90, 300, 310, 600 };

  struct tc_slow *s = make(W, one_stage);
  is_int(steps(s, 40, even, said, &w), 0, "ranks alike: no word");
  is_int(w.rank, 1, "... yet the slowest is known");
  is_int(w.work_ns, 110, "... and its work");
  is_int(w.median_ns, 100, "... and the (lower) median");
  is_int(steps(s, 4, four, said, &w), 0, "one slow window: no word");
  is_int(steps(s, 8, even, said, &w), 0, "... and after it none");
  is_int(steps(s, 40, four, said, &w), 1, "a rank that stays slow is named once");
  ok(strstr(said, "rank 4 on c (2.1 times)") != NULL, "... with node and factor: %s", said);
  is_int(w.rank, 4, "... and is the slowest of the step");
  is_int(steps(s, 12, even, said, &w), 1, "... its end is said once");
  ok(strstr(said, "rank 4 on c: keeps up") != NULL, "... by name: %s", said);
  is_int(steps(s, 40, four, said, &w), 0, "slow again within the minute: no more words");
  tc_slow_free(s);

  s = make(W, one_stage);
  is_int(steps(s, 20, node_c, said, &w), 1, "two slow ranks of a node: one sentence");
  ok(strstr(said, "rank 4 on c (2.1 times, as all ranks on c), rank 5") != NULL, "... %s", said);
  tc_slow_free(s);

  s = make(W, two_stages);
  is_int(steps(s, 40, staged, said, &w), 0, "a stage with more work is not slow");
  is_int(steps(s, 12, staged_slow, said, &w), 1, "... a rank of it may be");
  ok(strstr(said, "rank 5 on c (1.9 times)") != NULL, "... %s", said);
  tc_slow_free(s);

  const int32_t alone[2] = { 0, 1 };
  const int64_t at_first[2] = { 100, 300 }, later[2] = { 100, 600 };
  s = make(2, alone);
  is_int(steps(s, 20, at_first, said, &w), 0, "stages of one rank: more work is not slow");
  is_int(steps(s, 12, later, said, &w), 1, "... more than before is");
  ok(strstr(said, "rank 1 on a (2.0 times)") != NULL, "... %s", said);
  tc_slow_free(s);
  return done_testing();
}
