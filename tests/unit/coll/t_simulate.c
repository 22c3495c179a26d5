/* t_simulate.c - simulated collectives (simulate.h): times as formulas say, of trees, chains, exchanges and links that are
 * shared; messages and bytes as the flows have them, on all algorithms; who waits for whom where a member is lost. */
#include <math.h>

#include "src/coll/simulate.h"
#include "tests/unit/random.h"
#include "tests/unit/tap.h"

enum { SPREAD = -1 };                            /* each on a node of its own; else members of a node */

static struct tc_sim *make(const struct tc_sim_net *net, int size, int each, bool partial)
{
  int32_t *node = calloc((size_t)size, sizeof *node);
  for (int i = 0; i < size; i++) node[i] = each == SPREAD ? i : i / each;
  struct tc_sim *s = tc_sim_new(net, node, size, partial, NULL);
  free(node);
  return s;
}

static struct tc_coll_args args(int coll, int algorithm, const struct tc_part *part)
{
  return (struct tc_coll_args){ .coll = coll, .algorithm = algorithm, .dtype = tc_coll_adds(coll) ? TC_F32 : TC_U8,
                                .n_parts = coll != TC_BARRIER, .parts = part };
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-9 * TC_MAX(fabs(a), fabs(b)); }

/* ---- times ------------------------------------------------------------------------------------- */

struct formula { double L, o, B; int N, k, log; double S; };
static double two_ways(const struct formula *f) { return 2 * f->log * (f->L + 2 * f->o); }
static double one_way(const struct formula *f) { return f->log * (f->L + 2 * f->o + f->S / f->B); }
static double a_chain(const struct formula *f) { return (f->N - 1) * (f->L + 2 * f->o + f->S / f->B); }
static double rounds(const struct formula *f) { return f->log * (f->L + 2 * f->o); }
static double exchanged(const struct formula *f) { return (f->N - 1) * f->S / f->N / f->B + f->L; }
static double shared(const struct formula *f) { return f->k * f->k * f->S / f->N / f->B + f->L; }
static double doubled(const struct formula *f) { return f->log * f->L + (f->N - 1) * f->S / f->N / f->B; }
static double nothing(const struct formula *f) { return 0 * f->S; }

static const struct row {
  const char *name;
  int coll, algorithm, N, each;
  double L, o, B, S;
  double (*time)(const struct formula *f);
} rows[] = {
  { "a barrier up and down a tree", TC_BARRIER, TC_ALGORITHM_TREE, 64, SPREAD, 3e-6, 1e-6, 1e9, 0, two_ways },
  { "... of 16,384", TC_BARRIER, TC_ALGORITHM_TREE, 16384, SPREAD, 3e-6, 1e-6, 1e9, 0, two_ways },
  { "... without latency", TC_BARRIER, TC_ALGORITHM_TREE, 64, SPREAD, 0, 1e-6, 1e9, 0, two_ways },
  { "... of one node", TC_BARRIER, TC_ALGORITHM_TREE, 64, 64, 1e-6, 2e-6, 1e9, 0, two_ways },
  { "a broadcast down a tree", TC_BROADCAST, TC_ALGORITHM_TREE, 128, SPREAD, 5e-6, 1e-6, 1e9, 65536, one_way },
  { "a broadcast through a chain", TC_BROADCAST, TC_ALGORITHM_CHAIN, 24, SPREAD, 5e-6, 1e-6, 1e9, 8192, a_chain },
  { "a barrier by doubling", TC_BARRIER, TC_ALGORITHM_DOUBLING, 256, SPREAD, 3e-6, 1e-6, 1e9, 0, rounds },
  { "an all-gather by doubling", TC_ALL_GATHER, TC_ALGORITHM_DOUBLING, 64, SPREAD, 3e-6, 0, 1e9, 64000, doubled },
  { "an exchange of N blocks", TC_ALL_GATHER, TC_ALGORITHM_EXCHANGE, 32, SPREAD, 4e-6, 0, 1e9, 32000, exchanged },
  { "... between two nodes, whose members share a link", TC_ALL_GATHER, TC_ALGORITHM_EXCHANGE, 16, 8, 4e-6, 0, 1e9, 16000,
    shared },
  { "nothing takes no time", TC_BARRIER, TC_ALGORITHM_TREE, 64, SPREAD, 0, 0, 1e9, 0, nothing },
};

static void test_times(void)
{
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct row *r = &rows[i];
    const struct tc_sim_link link = { r->L, r->o, r->B };
    const struct tc_sim_link inside = r->each > 0 && r->each < r->N ? (struct tc_sim_link){ 0, 0, 1e30 } : link;
    const struct tc_part part = { .count = (int64_t)r->S, .block = (int64_t)r->S / r->N };
    const struct tc_coll_args a = args(r->coll, r->algorithm, &part);
    const struct formula f = { r->L, r->o, r->B, r->N, r->each, (int)lround(log2(r->N)), r->S };
    struct tc_sim *s = make(&(struct tc_sim_net){ inside, link }, r->N, r->each, false);
    tc_sim_call(s, &a);
    const struct tc_sim_sum x = tc_sim_sum(s);
    ok(near(x.last_s, r->time(&f)), "%s: %.9g s, by the formula %.9g s", r->name, x.last_s, r->time(&f));
    ok(x.mean_s <= x.last_s * (1 + 1e-12), "... on average not more");
    tc_sim_call(s, &a);
    if (r->coll == TC_BARRIER && r->algorithm == TC_ALGORITHM_DOUBLING)
      ok(near(tc_sim_sum(s).last_s, 2 * r->time(&f)), "... and twice as much for two");
    tc_sim_free(s);
  }
}

static void test_gather(void)
{
  const struct tc_sim_net net = { .network = { 4e-6, 1e-6, 1e9 }, .node = { 4e-6, 1e-6, 1e9 } };
  struct tc_sim *s = make(&net, 64, SPREAD, false);
  tc_sim_gather(s, 0);
  const struct tc_sim_sum x = tc_sim_sum(s);
  ok(near(x.last_s, 6 * 6e-6), "messages of 64 members up a tree take log2 64 times one: %.9g s", x.last_s);
  ok(x.received_messages == 6 && x.sent_messages == 1 && x.peers == 6, "... the root gets as many");
  tc_sim_meet(s, 1);
  ok(near(tc_sim_sum(s).mean_s, x.last_s + 1), "all wait for the last one, and a second");
  tc_sim_clear(s);
  tc_sim_gather(s, 10000);
  ok(near(tc_sim_sum(s).last_s, 6 * 6e-6 + 63e-5), "large ones go through the root's link as well: %.9g s", tc_sim_sum(s).last_s);
  ok(tc_sim_sum(s).received_bytes == 630000 && tc_sim_sum(s).sent_bytes == 320000, "... which gets all, half of it from one");
  tc_sim_free(s);
  s = make(&net, 11, SPREAD, false);
  tc_sim_gather(s, 10);
  ok(tc_sim_sum(s).received_bytes == 100 && tc_sim_sum(s).received_messages == 4, "of 11, too");
  tc_sim_free(s);
}

/* ---- what is sent ------------------------------------------------------------------------------- */

/* Whether the busiest member's messages and bytes are those of a prediction, and all end. */
static void test_sums(int cases)
{
  int wrong = 0, done = 0;
  for (int i = 0; i < cases; i++) {
    const int N = (int)draw(2, 40), each = (int)draw(0, 3) ? (int)draw(1, 9) : N;
    const int coll = (int)draw(TC_FIRST_COLL, TC_BARRIER), algorithm = (int)draw(0, TC_ALGORITHMS - 1);
    const int64_t block = draw(0, 1) ? draw(0, 5) : draw(0, 3000000 / N);
    const int64_t most = block * N, count = coll == TC_ALL_TO_ALL || draw(0, 1) ? most : draw(0, most);
    const struct tc_part part = { .count = count, .block = block };
    struct tc_coll_args a = args(coll, algorithm, &part);
    const struct tc_sim_net net = { { uniform(), uniform(), 1 + uniform() * 1e6 },
                                    { uniform(), uniform(), 1 + uniform() * 1e6 } };
    int64_t messages = 0, bytes = 0;
    if (coll == TC_SEND || coll == TC_RECV) continue;
    a.root = (int)draw(0, N - 1);
    for (int c = 0; c < N; c++) {
      struct tc_members m = tc_members_even(N, each, c, true);
      messages = TC_MAX(messages, tc_coll_messages(&a, &m));
      bytes = TC_MAX(bytes, tc_coll_bytes(&a, &m));
      tc_members_done(&m);
    }
    struct tc_sim *s = make(&net, N, each, true);
    tc_sim_call(s, &a);
    const struct tc_sim_sum x = tc_sim_sum(s);
    const bool good = x.sent_messages == messages && x.sent_bytes == bytes && x.mean_s <= x.last_s * (1 + 1e-9) &&
                      x.peers < N && x.node_bytes <= TC_MAX(bytes, x.received_bytes) * each;
    if (!good && !wrong++)
      printf("# case %d: %s of %d by %d: %lld messages, not %lld; %lld bytes, not %lld\n", i, tc_coll_name[coll], N, algorithm,
             (long long)x.sent_messages, (long long)messages, (long long)x.sent_bytes, (long long)bytes);
    tc_sim_free(s);
    done++;
  }
  is_int(wrong, 0, "%d drawn calls: all end, and messages and bytes are as predicted", done);
}

/* ---- a lost member ---------------------------------------------------------------------------------- */

static void test_lost(void)
{
  const struct tc_sim_net net = { { 1e-6, 1e-6, 1e9 }, { 1e-6, 1e-6, 1e9 } };
  static const struct { int N, lost, hops; } row[] = {
    { 8, 7, 5 },                 /* 3 waits for 2, it for 0, it for 4, it for 6, and it for the lost one */
    { 8, 0, 3 },                 /* 7 waits for 6, it for 4 */
    { 3, 2, 2 }, { 13, 12, 5 },  /* numbers that are no multiple of 8 */
    { 2, 1, 1 }, { 1024, 1023, 19 }, { 1024, 0, 10 }, { 1024, 1, 11 },
  };
  for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
    struct tc_sim *s = make(&net, row[i].N, SPREAD, false);
    const struct tc_coll_args a = args(TC_BARRIER, TC_ALGORITHM_TREE, NULL);
    tc_sim_call(s, &a);
    const double before = tc_sim_sum(s).last_s;
    const struct tc_sim_lost x = tc_sim_lost(s, &a, row[i].lost, 8, 64);
    is_int(x.hops, row[i].hops, "member %d of %d is lost: the farthest comes to it in so many hops", row[i].lost, row[i].N);
    is_int(x.waiting, row[i].N - 1, "... all others wait");
    ok(tc_sim_sum(s).last_s == before, "... and nothing was counted");
    tc_sim_call(s, &a);
    ok(near(tc_sim_sum(s).last_s, 2 * before) || row[i].N > 2, "... a further call goes on from there");
    if (row[i].hops > 2) is_int(tc_sim_lost(s, &a, row[i].lost, 8, 3).hops, -1, "... and not where too few are asked");
    tc_sim_free(s);
  }
}

int main(int argc, char **argv)
{
  const int cases = begin_cases(argc, argv, 1500);
  test_times();
  test_gather();
  test_sums(cases);
  test_lost();
  return done_testing();
}
