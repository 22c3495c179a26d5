/* t_pairs.c - `tercio comm --pairs` (src/bench/pairs.c): who meets whom in which round, which nodes and pairs are called
 * slow, and which are measured again. */
#include "src/bench/pairs.h"
#include "tests/unit/tap.h"

/* Measurements of four members, of which rank 0 hears: pair a-b takes three times as long in its first slow[a][b]
 * ones. */
enum { MEMBERS = 4 };
struct tc_comm { int size; };
static int slow[MEMBERS][MEMBERS], measured[MEMBERS][MEMBERS], with, calls, fail_at;

static int my_pair(struct tc_bench *b, int peer, int64_t bytes, const char *what, int64_t *ns, struct tc_err *err)
{
  (void)b, (void)bytes;
  *ns = 1;
  with = peer;
  return ++calls == fail_at ? tc_fail(err, TC_EPEER, "%s: a fault", what) : 0;
}
static int my_all(struct tc_comm *c, const int64_t *x, int n, int64_t *all, struct tc_err *err);
static int my_max(struct tc_comm *c, int64_t *x, int n, struct tc_err *err) { (void)c, (void)x, (void)n, (void)err; return 0; }

#define tc_bench_pair my_pair
#define tc_bench_iters(b, n) ((void)(b), (void)(n))
#define tc_comm_all_i64 my_all
#define tc_comm_max_i64 my_max
#define tc_comm_size(c) ((c)->size)
#include "src/bench/pairs.c"

static int my_all(struct tc_comm *c, const int64_t *x, int n, int64_t *all, struct tc_err *err)
{
  (void)x, (void)err;
  int round = 0;
  while (opponent(MEMBERS, round, 0) != with) round++;
  memset(all, 0, (size_t)(c->size * n) * sizeof *all);
  for (int a = 0; a < MEMBERS; a++) {
    const int b = opponent(MEMBERS, round, a);
    if (a < b) all[n * a] = measured[a][b]++ < slow[a][b] ? 3000 : 1000;
  }
  return 0;
}

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
    struct tc_pair pair[10];
    struct tc_pair_member m[5] = { { 0 } };
    struct tc_pairs s = { .n = rows[i].n, .m = m, .pair = pair };
    char members[40] = "", pairs[100] = "";
    for (int a = 0; a < s.n; a++)
      for (int b = a + 1; b < s.n; b++, s.n_pairs++)
        pair[s.n_pairs] = (struct tc_pair){ .a = a, .b = b, .gbs = rows[i].gbs[s.n_pairs] };
    find_slow(&s);
    for (int k = 0; k < s.n; k++) {
      if (m[k].slow) snprintf(members + strlen(members), 8, "%s%d", *members ? " " : "", k);
      is_int(m[k].pairs, s.n - 1, "%s: pairs of %d", rows[i].what, k);
    }
    for (int k = 0; k < s.n_pairs; k++)
      if (tc_pair_is_slow(&s, &pair[k])) snprintf(pairs + strlen(pairs), 8, "%s%d-%d", *pairs ? " " : "", pair[k].a, pair[k].b);
    is_str(members, rows[i].members, "... slow members");
    is_str(pairs, rows[i].pairs, "... slow pairs");
  }
}

/* Of a sample a member may be in no pair: it has no rate, and is not slow. */
static void test_sample(void)
{
  struct tc_pair pair[] = { { .a = 0, .b = 1, .gbs = 10 } };
  struct tc_pair_member m[3] = { { 0 } };
  struct tc_pairs s = { .n = 3, .m = m, .pair = pair, .n_pairs = 1 };
  find_slow(&s);
  ok(!m[2].pairs && !m[2].slow && m[0].pairs == 1, "a member that was in no pair");
  ok(s.median_gbs > 9.9 && s.median_gbs < 10.1, "... does not count for the median");
}

static int by_members(const void *a, const void *b)
{
  const struct tc_pair *x = a, *y = b;
  return x->a * MEMBERS + x->b - y->a * MEMBERS - y->b;
}

/* Measures all pairs as rank 0; "a-b" of those that are called slow. Returns measure's status. */
static int measure_all(char *found, size_t size)
{
  static const char *const name[MEMBERS] = { "a", "b", "c", "d" };
  struct tc_ranks ranks = { .n_nodes = 1, .world = MEMBERS };
  const struct tc_launch launch = { .ranks = &ranks };
  const struct tc_pairs_opts o = { .launch = &launch, .bytes = 1000, .iters = 2 };
  struct tc_comm world = { MEMBERS };
  struct tc_pair_member m[MEMBERS] = { { 0 } };
  int64_t times[2 * MEMBERS];
  struct tc_err err = { 0 };
  for (int i = 0; i < MEMBERS; i++) {
    m[i].rank = i;
    strcpy(m[i].name, name[i]);
  }
  struct tc_pairs p = { .of = "rank", .n = MEMBERS, .rounds = rounds_of(MEMBERS), .m = m, .bytes = 1000 };
  struct state s = { .p = &p, .o = &o, .world = &world, .times = times, .start_ns = tc_now_ns() };
  memset(measured, 0, sizeof measured);
  calls = 0;
  const int rc = measure(&s, &err);
  *found = 0;
  if (!rc) find_slow(&p);
  qsort(p.pair, (size_t)p.n_pairs, sizeof *p.pair, by_members);
  for (int i = 0; !rc && i < p.n_pairs; i++)
    if (tc_pair_is_slow(&p, &p.pair[i])) tc_text_add(found, size, "%s%d-%d", *found ? " " : "", p.pair[i].a, p.pair[i].b);
  free(p.pair);
  return rc;
}

/* What is slow once is noise; what is slow each time is named. */
static void test_again(void)
{
  static const struct { const char *what; int a, b, slow, rounds; const char *found; } rows[] = {
    { "all alike", 1, 2, 0, 3, "" },
    { "a pair that is slow once", 1, 2, 1, 4, "" },
    { "... twice", 1, 2, 2, 5, "" },
    { "... in each measurement", 1, 2, 9, 5, "1-2" },
    { "... one of rank 0", 0, 3, 9, 5, "0-3" },
  };
  char found[100];
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    slow[rows[i].a][rows[i].b] = rows[i].slow;
    is_int(measure_all(found, sizeof found), 0, "%s: measured", rows[i].what);
    is_str(found, rows[i].found, "... the slow pairs");
    is_int(calls, rows[i].rounds, "... after so many rounds");
    slow[rows[i].a][rows[i].b] = 0;
  }
  slow[0][1] = slow[0][2] = 9;
  slow[0][3] = 1;
  is_int(measure_all(found, sizeof found), 0, "a member that is slow with two, and once with the third");
  is_str(found, "0-1 0-2", "... two slow pairs");
  is_int(calls, 8, "... in so many rounds");
  memset(slow, 0, sizeof slow);
  slow[1][2] = 9;
  fail_at = 5;
  is_int(measure_all(found, sizeof found), TC_EPEER, "a failure of the last measurement is the command's");
  is_int(calls, 5, "... which ends there");
}

/* Ranks of one node whose CPUs are fewer than they are. */
static void test_crowd(void)
{
  static const struct { const char *what; int nodes, cpus[4]; const char *set[4]; int crowd, of; } rows[] = {
    { "four ranks on four CPUs", 1, { 4, 4, 4, 4 }, { "0-3", "0-3", "0-3", "0-3" }, 0, 0 },
    { "on two", 1, { 2, 2, 2, 2 }, { "0-1", "0-1", "0-1", "0-1" }, 4, 2 },
    { "a CPU each", 1, { 1, 1, 1, 1 }, { "0", "1", "2", "3" }, 0, 0 },
    { "three on one of them", 1, { 1, 1, 1, 1 }, { "0", "1", "1", "1" }, 3, 1 },
    { "CPUs that are not known", 1, { 0, 0, 0, 0 }, { "", "", "", "" }, 0, 0 },
    { "several nodes", 2, { 1, 1, 1, 1 }, { "0", "0", "0", "0" }, 0, 0 },
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tc_rank_info info[4] = { { 0 } };
    struct tc_ranks ranks = { .n_nodes = rows[i].nodes, .world = 4, .info = info };
    struct tc_pairs s = { .median_gbs = 10 };
    for (int k = 0; k < 4; k++) {
      info[k].n_cpus = rows[i].cpus[k];
      strcpy(info[k].cpuset, rows[i].set[k]);
    }
    find_crowd(&s, &ranks);
    is_int(s.crowd, rows[i].crowd, "%s: ranks", rows[i].what);
    is_int(s.cpus, rows[i].of, "... CPUs");
    is_int(tc_pair_is_slow(&s, &(struct tc_pair){ .gbs = 1 }), !rows[i].crowd, "... whether a pair may be slow");
  }
}

int main(void)
{
  test_rounds();
  test_slow();
  test_sample();
  test_again();
  test_crowd();
  return done_testing();
}
