/* t_pairs.c - `tercio comm --pairs` (comm_pairs.c): who meets whom in which round, and which nodes and
 * pairs are called slow. */
#include "src/cmd/comm_pairs.c"

#include "tests/unit/tap.h"

/* Each pair meets once, and no member meets two in a round. */
static void test_rounds(void)
{
  for (int n = 2; n <= 17; n++) {
    int wrong = 0, met[17][17] = { { 0 } };
    for (int round = 0; round < rounds_of(n); round++) {
      int idle = 0;
      for (int i = 0; i < n; i++) {
        const int k = opponent(n, round, i);
        if (k < 0) idle++;
        else if (k >= n || k == i || opponent(n, round, k) != i) wrong++;
        else met[i][k]++;
      }
      wrong += idle != n % 2;
    }
    for (int i = 0; i < n; i++)
      for (int k = 0; k < n; k++) wrong += met[i][k] != (i != k);
    is_int(wrong, 0, "%d members in %d rounds", n, rounds_of(n));
    is_int(rounds_of(n), n - 1 + n % 2, "... so many");
  }
}

/* Members, rates of the pairs 0-1, 0-2, .., 1-2, ..; which members and pairs are slow. */
static void test_slow(void)
{
  static const struct { const char *what; int n; double gbs[10]; const char *members, *pairs; } rows[] = {
    { "all alike", 3, { 10, 10, 10 }, "", "" },
    { "the first of three", 3, { 1, 1, 10 }, "0", "0-1 0-2" },
    { "the last of three", 3, { 10, 1, 1 }, "2", "0-2 1-2" },
    { "one pair of three", 3, { 10, 10, 1 }, "", "1-2" },
    { "one of four", 4, { 1, 10, 10, 1, 1, 10 }, "1", "0-1 1-2 1-3" },
    { "one pair of five", 5, { 10, 10, 10, 10, 10, 6.9, 10, 10, 10, 10 }, "", "1-3" },
    { "just fast enough", 5, { 10, 10, 10, 10, 10, 7.1, 10, 10, 10, 10 }, "", "" },
    { "one pair alone", 2, { 1 }, "", "" },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct pair pair[10];
    struct member m[5] = { { 0 } };
    struct state s = { .n = rows[i].n, .m = m, .pair = pair };
    char members[40] = "", pairs[100] = "";
    for (int a = 0; a < s.n; a++)
      for (int b = a + 1; b < s.n; b++, s.n_pairs++)
        pair[s.n_pairs] = (struct pair){ .a = a, .b = b, .gbs = rows[i].gbs[s.n_pairs] };
    find_slow(&s);
    for (int k = 0; k < s.n; k++) {
      if (m[k].slow) snprintf(members + strlen(members), 8, "%s%d", *members ? " " : "", k);
      is_int(m[k].pairs, s.n - 1, "%s: pairs of %d", rows[i].what, k);
    }
    for (int k = 0; k < s.n_pairs; k++)
      if (is_slow(&s, &pair[k])) snprintf(pairs + strlen(pairs), 8, "%s%d-%d", *pairs ? " " : "", pair[k].a, pair[k].b);
    is_str(members, rows[i].members, "... slow members");
    is_str(pairs, rows[i].pairs, "... slow pairs");
  }
}

/* Of a sample a member may be in no pair: it has no rate, and is not slow. */
static void test_sample(void)
{
  struct pair pair[] = { { .a = 0, .b = 1, .gbs = 10 } };
  struct member m[3] = { { 0 } };
  struct state s = { .n = 3, .m = m, .pair = pair, .n_pairs = 1 };
  find_slow(&s);
  ok(!m[2].pairs && !m[2].slow && m[0].pairs == 1, "a member that was in no pair");
  ok(s.median_gbs > 9.9 && s.median_gbs < 10.1, "... does not count for the median");
}

int main(void)
{
  test_rounds();
  test_slow();
  test_sample();
  return done_testing();
}
