/* pairs.c - each node with each other node, and which of them are slow.
 *
 * All ranks make the same decisions (message size, iterations, the last round), from times that all of
 * them have gathered. Rank 0 keeps the pairs, and says how far they are.
 *
 * A node's rate is the upper median over its pairs, so that one slow peer does not make it slow, not even
 * among three nodes; the reference for all is the median of these rates. A pair that is slow is measured
 * again, since a busy CPU or switch may have made its time long, and keeps its fastest time. Where a node's ranks have
 * fewer CPUs than there are ranks, their times depend on the scheduler: none of them is called slow. */
#include "src/bench/pairs.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_ROUNDS = 3,          /* in any case: fewer can't distinguish a slow node from a slow pair */
       WANT_ROUNDS = 16,          /* a smaller message is chosen to get so many */
       MEASUREMENTS = 3,          /* of a slow pair, if the time allows */
       LOG_NS = 1000000000 };
enum keep { DROP, ADD, FASTEST };                          /* times of a round: new pairs, or pairs that are there */

struct state {
  struct tc_pairs *p;
  const struct tc_pairs_opts *o;
  struct tc_bench *b;
  struct tc_comm *world;
  int rank, mine;                                /* mine: this rank's member, or -1 */
  int64_t *times;                                /* [world][2]; owned */
  int64_t start_ns, elapsed_ns, slowest_ns;
  int iters;
};

/* ---- the tournament ---------------------------------------------------------------------- */

static int rounds_of(int n) { return n % 2 ? n : n - 1; }

/* The member that member i of n meets in a round (the circle method); -1: none. */
static int opponent(int n, int round, int i)
{
  const int even = n + n % 2, circle = even - 1;
  int k;
  if (i == circle) {                             /* it stays; it meets the one that would meet itself */
    for (k = 0; 2 * k % circle != round % circle; k++);
    return k;
  }
  k = ((round - i) % circle + circle) % circle;
  if (k == i) k = circle;
  return k < n ? k : -1;
}

/* ---- slow members ----------------------------------------------------------------------- */

static double upper_median(double *x, int n)
{
  qsort(x, (size_t)n, sizeof *x, tc_order_double);
  return x[n / 2];
}

/* gbs and slow of all members, and median_gbs. */
static void find_slow(struct tc_pairs *s)
{
  double *x = tc_calloc((size_t)TC_MAX(s->n_pairs, s->n), sizeof *x);
  int measured = 0;
  for (int i = 0; i < s->n; i++) {
    int n = 0;
    for (int k = 0; k < s->n_pairs; k++)
      if (s->pair[k].a == i || s->pair[k].b == i) x[n++] = s->pair[k].gbs;
    s->m[i].pairs = n;
    s->m[i].gbs = n ? upper_median(x, n) : 0;
  }
  for (int i = 0; i < s->n; i++)
    if (s->m[i].pairs) x[measured++] = s->m[i].gbs;
  s->median_gbs = upper_median(x, measured);
  for (int i = 0; i < s->n; i++)
    s->m[i].slow = !s->crowd && s->m[i].pairs && s->m[i].gbs < TC_PAIRS_SLOW * s->median_gbs;
  free(x);
}

bool tc_pair_is_slow(const struct tc_pairs *s, const struct tc_pair *p)
{
  return !s->crowd && p->gbs < TC_PAIRS_SLOW * s->median_gbs;
}

static int by_rate(const void *a, const void *b)
{
  const double x = ((const struct tc_pair *)a)->gbs, y = ((const struct tc_pair *)b)->gbs;
  return x < y ? -1 : x > y;
}

/* ---- a round ----------------------------------------------------------------------------- */

static void add_pair(const struct state *s, const char *before, int a, int b, char *text, size_t size)
{
  tc_text_add(text, size, "%s%s - %s", before, s->p->m[TC_MIN(a, b)].name, s->p->m[TC_MAX(a, b)].name);
}

/* Which pairs this rank waits for: its own, or some of the round's. */
static void round_text(const struct state *s, int round, char *text, size_t size)
{
  const int with = s->mine < 0 ? -1 : opponent(s->p->n, round, s->mine);
  snprintf(text, size, "round %d of the pairs: ", round + 1);
  if (with >= 0) add_pair(s, "", s->mine, with, text, size);
  for (int i = 0, shown = 0; i < s->p->n && with < 0 && shown < 3; i++) {
    const int k = opponent(s->p->n, round, i);
    if (k > i) add_pair(s, shown++ ? ", " : "", i, k, text, size);
  }
}

static void progress(struct state *s, int round, int64_t *logged_ns)
{
  const struct tc_pair *p = NULL;
  const int64_t now = tc_now_ns();
  const bool last = round + 1 == s->p->rounds;
  for (int i = s->p->n_pairs - 1; i >= 0 && s->p->pair[i].round == round + 1; i--)
    if (!p || s->p->pair[i].gbs < p->gbs) p = &s->p->pair[i];
  if (!p || (round && !last && now - *logged_ns < LOG_NS)) return;
  *logged_ns = now;
  tc_say("", "\n", "round %d of %d: slowest %s - %s, %.4f GB/s", round + 1, s->p->rounds, s->p->m[p->a].name,
         s->p->m[p->b].name, p->gbs);
}

static void keep_pair(struct state *s, const struct tc_pair *p, enum keep keep)
{
  if (keep == ADD) TC_APPEND(s->p->pair, s->p->n_pairs, s->p->cap_pairs, *p);
  for (int i = 0; keep == FASTEST && i < s->p->n_pairs; i++)
    if (s->p->pair[i].a == p->a && s->p->pair[i].b == p->b) {
      const int measured = s->p->pair[i].measured + 1;
      if (p->us < s->p->pair[i].us) s->p->pair[i] = *p;
      s->p->pair[i].measured = measured;
    }
}

/* All pairs of a round. slowest_ns <- the longest iteration, elapsed_ns <- since the start. */
static int measure_round(struct state *s, int round, enum keep keep, struct tc_err *err)
{
  const int with = s->mine < 0 ? -1 : opponent(s->p->n, round, s->mine);
  char what[400];
  struct tc_err why = { 0 };
  int64_t ns = 0;
  round_text(s, round, what, sizeof what);
  tc_bench_iters(s->b, s->iters);
  int rc = tc_bench_pair(s->b, with < 0 ? -1 : s->p->m[with].rank, s->p->bytes, what, &ns, &why);
  const int64_t mine[2] = { with > s->mine ? ns : 0, tc_now_ns() - s->start_ns };
  if (!rc) rc = tc_comm_all_i64(s->world, mine, 2, s->times, &why);
  if (rc) return strstr(why.text, what) ? tc_fail(err, rc, "%s", why.text)
                                        : tc_fail(err, rc, "%s: %s", what, why.text);
  s->slowest_ns = 1;
  for (int i = 0; i < tc_comm_size(s->world); i++) {
    s->slowest_ns = TC_MAX(s->slowest_ns, s->times[2 * i]);
    s->elapsed_ns = TC_MAX(s->elapsed_ns, s->times[2 * i + 1]);
  }
  for (int i = 0; i < s->p->n && s->rank == 0; i++) {
    const int k = opponent(s->p->n, round, i);
    const double one_ns = (double)s->times[2 * s->p->m[i].rank] / 2;
    if (k > i) keep_pair(s, &(struct tc_pair){ i, k, round + 1, one_ns * 1e-3, (double)s->p->bytes / one_ns, 1 }, keep);
  }
  return 0;
}

/* Measures each round again that has a slow pair, while the time allows; again[rounds] is memory for this. Returns the
 * number of rounds. */
static int measure_again(struct state *s, int64_t *again, struct tc_err *err)
{
  int n = 0;
  memset(again, 0, (size_t)s->p->rounds * sizeof *again);
  if (s->rank == 0) find_slow(s->p);
  for (int i = 0; i < s->p->n_pairs; i++)
    if (tc_pair_is_slow(s->p, &s->p->pair[i]) && s->p->pair[i].measured < MEASUREMENTS)
      again[s->p->pair[i].round - 1] = 1;
  TC_TRY(tc_comm_max_i64(s->world, again, s->p->rounds, err));
  for (int round = 0; round < s->p->rounds; round++) {
    if (!again[round] || (double)s->elapsed_ns > TC_BENCH_BUDGET_S * 1e9) continue;
    TC_TRY(measure_round(s, round, FASTEST, err));
    n++;
  }
  return n;
}

/* The largest message with which enough rounds fit, from the time of a small one. */
static int choose_bytes(struct state *s, struct tc_err *err)
{
  const int64_t most = s->p->bytes, small = TC_MIN(most, 65536);
  s->p->bytes = small;
  s->iters = 1;
  TC_TRY(measure_round(s, 0, DROP, err));
  const double ns = (double)s->slowest_ns / (double)small * (TC_BENCH_WARM_UP + 1) *
                    TC_MIN(s->p->rounds, WANT_ROUNDS);
  for (s->p->bytes = most; s->p->bytes / 4 >= small && ns * (double)s->p->bytes > TC_BENCH_BUDGET_S * 1e9;)
    s->p->bytes /= 4;
  return 0;
}

static int measure(struct state *s, struct tc_err *err)
{
  int64_t logged_ns = 0;
  if (s->rank == 0) tc_say("", "\n", "pairs: %d %ss, %d rounds", s->p->n, s->p->of, s->p->rounds);
  if (s->o->adapt_bytes) TC_TRY(choose_bytes(s, err));
  s->iters = s->o->adapt_iters ? TC_MIN(s->o->iters, 3) : s->o->iters;
  for (int round = 0; round < s->p->rounds; round++) {
    const double left_ns = TC_BENCH_BUDGET_S * 1e9 - (double)s->elapsed_ns;
    const int left = s->p->rounds - round;
    if (!s->o->rounds && left_ns < 0 && round >= LEAST_ROUNDS) s->p->rounds = round;
    if (round == s->p->rounds) break;
    if (s->o->adapt_iters && round)
      s->iters = (int)TC_MAX(1, TC_MIN((double)s->o->iters,
                                       left_ns / left / (double)s->slowest_ns - TC_BENCH_WARM_UP));
    TC_TRY(measure_round(s, round, ADD, err));
    if (s->rank == 0) progress(s, round, &logged_ns);
  }
  int64_t *again = tc_calloc((size_t)s->p->rounds, sizeof *again);
  int n = 1;
  while (n > 0) n = measure_again(s, again, err);         /* a median that rises makes more pairs slow */
  free(again);
  return TC_MIN(n, 0);
}

/* ---- all ----------------------------------------------------------------------------------- */

/* Finds whether some ranks of one node have fewer CPUs together than they are. */
static void find_crowd(struct tc_pairs *s, const struct tc_ranks *r)
{
  for (int i = 0; i < r->world && r->n_nodes == 1; i++) {
    int n = 0;
    for (int k = 0; k < r->world; k++) n += strcmp(r->info[k].cpuset, r->info[i].cpuset) == 0;
    if (r->info[i].n_cpus == 0 || n <= r->info[i].n_cpus || n <= s->crowd) continue;
    s->crowd = n;
    s->cpus = r->info[i].n_cpus;
  }
}

/* Returns this rank's member, or -1. */
static int find_members(struct tc_pairs *s, const struct tc_launch *l, int rank)
{
  const struct tc_ranks *r = l->ranks;
  bool *seen = tc_calloc((size_t)r->n_nodes, sizeof *seen);
  int mine = -1;
  s->m = tc_calloc((size_t)r->world, sizeof *s->m);
  for (int i = 0; i < r->world; i++) {
    const int node = r->info[i].node;
    if (r->n_nodes > 1 && seen[node]) continue;
    seen[node] = true;
    if (i == rank) mine = s->n;
    struct tc_pair_member *m = &s->m[s->n++];
    m->rank = i;
    snprintf(m->name, sizeof m->name, "%s", r->n_nodes > 1 ? r->info[i].host : l->rank_names[i]);
  }
  free(seen);
  return mine;
}

int tc_pairs_run(struct tc_pairs *out, const struct tc_pairs_opts *o, struct tc_bench *b, struct tc_comm *world,
                 int rank, struct tc_err *err)
{
  *out = (struct tc_pairs){ .of = o->launch->ranks->n_nodes > 1 ? "node" : "rank", .bytes = o->bytes };
  struct state s = { .p = out, .o = o, .b = b, .world = world, .rank = rank, .start_ns = tc_now_ns() };
  s.mine = find_members(out, o->launch, rank);
  find_crowd(out, o->launch->ranks);
  out->all_rounds = rounds_of(out->n);
  out->rounds = o->rounds ? TC_MIN(o->rounds, out->all_rounds) : out->all_rounds;
  s.times = tc_calloc((size_t)tc_comm_size(world) * 2, sizeof *s.times);
  const int rc = measure(&s, err);
  if (!rc && rank == 0) {
    find_slow(out);
    qsort(out->pair, (size_t)out->n_pairs, sizeof *out->pair, by_rate);
  }
  free(s.times);
  return rc;
}

void tc_pairs_done(struct tc_pairs *p)
{
  TC_FREE(p->m, p->pair);
}
