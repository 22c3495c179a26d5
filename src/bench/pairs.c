/* pairs.c - each node with each other node, and which of them are slow.
 *
 * All ranks make the same decisions (message size, iterations, the last round), from times that all of
 * them have gathered. Rank 0 keeps the pairs, and prints.
 *
 * A node's rate is the upper median over its pairs, so that one slow peer does not make it slow, not even
 * among three nodes; the reference for all is the median of these rates. A pair that is slow is measured
 * again, since a busy CPU or switch may have made its time long, and keeps its fastest time. Where a node's ranks have
 * fewer CPUs than there are ranks, their times depend on the scheduler: none of them is called slow. */
#include "src/bench/pairs.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_ROUNDS = 3,          /* in any case: fewer can't distinguish a slow node from a slow pair */
       WANT_ROUNDS = 16,          /* a smaller message is chosen to get so many */
       MEASUREMENTS = 3,          /* of a slow pair, if the time allows */
       SHOWN = 10,                /* rows of a table */
       LOG_NS = 1000000000 };
static const double slow_below = 0.7;

enum keep { DROP, ADD, FASTEST };                          /* times of a round: new pairs, or pairs that are there */

struct pair { int a, b, round; double us, gbs; int measured; };      /* members a < b; one message one way; how often */
struct member { int rank, pairs; const char *name; double gbs; bool slow; };

struct state {
  const struct tc_pairs_opts *o;
  struct tc_bench *b;
  struct tc_comm *world;
  int rank, mine, n, rounds, all_rounds;         /* mine: this rank's member, or -1 */
  struct member *m;                              /* [n]; owned, as all below */
  char (*name)[80];
  struct pair *pair; int n_pairs, cap_pairs;     /* rank 0's */
  int64_t *times;                                /* [world][2] */
  int64_t bytes, start_ns, elapsed_ns, slowest_ns;
  int iters, crowd, cpus;                        /* one node: so many ranks share fewer CPUs; 0: none do */
  double median_gbs;
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
static void find_slow(struct state *s)
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
  for (int i = 0; i < s->n; i++) s->m[i].slow = !s->crowd && s->m[i].pairs && s->m[i].gbs < slow_below * s->median_gbs;
  free(x);
}

static bool is_slow(const struct state *s, const struct pair *p)
{
  return !s->crowd && p->gbs < slow_below * s->median_gbs;
}

static int by_rate(const void *a, const void *b)
{
  const double x = ((const struct pair *)a)->gbs, y = ((const struct pair *)b)->gbs;
  return x < y ? -1 : x > y;
}

static int members_by_rate(const void *a, const void *b)
{
  const struct member *x = a, *y = b;
  return x->gbs < y->gbs ? -1 : x->gbs > y->gbs ? 1 : x->rank - y->rank;
}

/* ---- printing ---------------------------------------------------------------------------- */

static const char *unit(const struct state *s) { return s->o->launch->ranks->n_nodes > 1 ? "node" : "rank"; }

static void print_head(const struct state *s)
{
  const struct tc_ranks *r = s->o->launch->ranks;
  printf("%s, %d ranks on %d node%s: each %s with each other %s%s; %d of %d rounds, up to %d pairs at once\n"
         "fp32, checked; %lld bytes there and back, median of up to %d iterations; GB/s of one direction\n",
         s->o->link, r->world, r->n_nodes, r->n_nodes == 1 ? "" : "s", unit(s), unit(s),
         r->n_nodes > 1 ? ", one rank of a node" : " (there is one node only)", s->rounds, s->all_rounds, s->n / 2,
         (long long)s->bytes, s->o->iters);
  if (s->rounds < s->all_rounds)
    printf("%d rounds were left out; --rounds %d measures all pairs\n", s->all_rounds - s->rounds, s->all_rounds);
}

/* The names of what is slow; pairs only if neither of their nodes is slow by itself. */
static void print_slow(const struct state *s)
{
  int found = 0;
  for (int i = 0; i < s->n; i++)
    if (s->m[i].slow && ++found)
      printf("slow %s: %s, %.4f GB/s with most others, %.2f of the median\n", unit(s), s->m[i].name, s->m[i].gbs,
             s->m[i].gbs / s->median_gbs);
  for (int i = 0; i < s->n_pairs; i++) {
    const struct pair *p = &s->pair[i];
    if (!is_slow(s, p) || s->m[p->a].slow || s->m[p->b].slow) continue;
    found++;
    printf("slow pair: %s - %s, %.4f GB/s, %.2f of the median, measured %d time%s\n", s->m[p->a].name, s->m[p->b].name,
           p->gbs, p->gbs / s->median_gbs, p->measured, p->measured == 1 ? "" : "s");
  }
  if (s->crowd)
    printf("%d ranks share %d CPU%s, so their times depend on the scheduler: none is called slow\n", s->crowd, s->cpus,
           s->cpus == 1 ? "" : "s");
  else if (s->n_pairs < 2) printf("one pair: nothing to compare it with\n");
  else if (!found) printf("no %s and no pair is below %.1f of the median\n", unit(s), slow_below);
}

static void print_table(struct state *s)
{
  struct member *m = tc_calloc((size_t)s->n, sizeof *m);
  print_head(s);
  printf("\n%-24s  %-24s  %11s  %9s  %9s  (%d slowest of %d pairs)\n", unit(s), unit(s), "time_us", "GB/s", "of median",
         TC_MIN(SHOWN, s->n_pairs), s->n_pairs);
  for (int i = 0; i < TC_MIN(SHOWN, s->n_pairs); i++) {
    const struct pair *p = &s->pair[i];
    printf("%-24s  %-24s  %11.1f  %9.4f  %9.2f\n", s->m[p->a].name, s->m[p->b].name, p->us, p->gbs,
           p->gbs / s->median_gbs);
  }
  memcpy(m, s->m, (size_t)s->n * sizeof *m);
  qsort(m, (size_t)s->n, sizeof *m, members_by_rate);
  printf("\n%-24s  %5s  %9s  %9s  (%d slowest of %d %ss, medians over their pairs)\n", unit(s), "pairs", "GB/s",
         "of median", TC_MIN(SHOWN, s->n), s->n, unit(s));
  for (int i = 0; i < TC_MIN(SHOWN, s->n); i++)
    printf("%-24s  %5d  %9.4f  %9.2f\n", m[i].name, m[i].pairs, m[i].gbs, m[i].gbs / s->median_gbs);
  printf("\nmedian of all %ss: %.4f GB/s\n", unit(s), s->median_gbs);
  print_slow(s);
  free(m);
}

static void print_json(const struct state *s)
{
  json_t *pairs = json_array(), *members = json_array();
  for (int i = 0; i < s->n_pairs; i++) {
    const struct pair *p = &s->pair[i];
    json_t *o = json_pack("{s:o, s:o, s:i, s:n, s:n, s:n, s:b, s:s}", "a", tc_text_json(s->m[p->a].name), "b",
                          tc_text_json(s->m[p->b].name), "round", p->round, "time_us", "algbw", "of_median", "slow",
                          (int)is_slow(s, p), "check", "ok");
    tc_figure(o, "time_us", p->us);
    tc_figure(o, "algbw", p->gbs);
    tc_figure(o, "of_median", p->gbs / s->median_gbs);
    json_array_append_new(pairs, o);
  }
  for (int i = 0; i < s->n; i++) {
    json_t *o = json_pack("{s:o, s:i, s:i, s:n, s:n, s:b}", "name", tc_text_json(s->m[i].name), "rank", s->m[i].rank,
                          "pairs", s->m[i].pairs, "algbw", "of_median", "slow", (int)s->m[i].slow);
    tc_figure(o, "algbw", s->m[i].gbs);
    tc_figure(o, "of_median", s->m[i].gbs / s->median_gbs);
    json_array_append_new(members, o);
  }
  json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:I, s:n, s:o, s:o}", "of", unit(s), "link", s->o->link, "rounds",
                        s->rounds, "all_rounds", s->all_rounds, "size", (json_int_t)s->bytes, "median_algbw", "pairs",
                        pairs, "members", members);
  tc_figure(o, "median_algbw", s->median_gbs);
  json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
  printf("\n");
  json_decref(o);
}

/* ---- a round ----------------------------------------------------------------------------- */

static void pair_text(const struct state *s, int a, int b, char *text, size_t size)
{
  snprintf(text, size, "%s - %s", s->m[TC_MIN(a, b)].name, s->m[TC_MAX(a, b)].name);
}

/* Which pairs this rank waits for: its own, or some of the round's. */
static void round_text(const struct state *s, int round, char *text, size_t size)
{
  const int with = s->mine < 0 ? -1 : opponent(s->n, round, s->mine);
  size_t at = (size_t)snprintf(text, size, "round %d of the pairs: ", round + 1);
  if (with >= 0) {
    pair_text(s, s->mine, with, text + at, size - at);
    return;
  }
  int shown = 0;
  for (int i = 0; i < s->n && shown < 3; i++) {
    const int k = opponent(s->n, round, i);
    if (k <= i) continue;
    at = strlen(text);
    snprintf(text + at, size - at, "%s", shown++ ? ", " : "");
    at = strlen(text);
    pair_text(s, i, k, text + at, size - at);
  }
}

static void progress(struct state *s, int round, int64_t *logged_ns)
{
  const struct pair *p = NULL;
  const int64_t now = tc_now_ns();
  const bool last = round + 1 == s->rounds;
  for (int i = s->n_pairs - 1; i >= 0 && s->pair[i].round == round + 1; i--)
    if (!p || s->pair[i].gbs < p->gbs) p = &s->pair[i];
  if (!p || (round && !last && now - *logged_ns < LOG_NS)) return;
  *logged_ns = now;
  tc_say("", "\n", "round %d of %d: slowest %s - %s, %.4f GB/s", round + 1, s->rounds, s->m[p->a].name,
         s->m[p->b].name, p->gbs);
}

static void keep_pair(struct state *s, const struct pair *p, enum keep keep)
{
  if (keep == ADD) {
    TC_GROW(s->pair, s->n_pairs, s->cap_pairs);
    s->pair[s->n_pairs++] = *p;
  }
  for (int i = 0; keep == FASTEST && i < s->n_pairs; i++)
    if (s->pair[i].a == p->a && s->pair[i].b == p->b) {
      const int measured = s->pair[i].measured + 1;
      if (p->us < s->pair[i].us) s->pair[i] = *p;
      s->pair[i].measured = measured;
    }
}

/* All pairs of a round. slowest_ns <- the longest iteration, elapsed_ns <- since the start. */
static int measure_round(struct state *s, int round, enum keep keep, struct tc_err *err)
{
  const int with = s->mine < 0 ? -1 : opponent(s->n, round, s->mine);
  char what[400];
  struct tc_err why = { 0 };
  int64_t ns = 0;
  round_text(s, round, what, sizeof what);
  tc_bench_iters(s->b, s->iters);
  int rc = tc_bench_pair(s->b, with < 0 ? -1 : s->m[with].rank, s->bytes, what, &ns, &why);
  const int64_t mine[2] = { with > s->mine ? ns : 0, tc_now_ns() - s->start_ns };
  if (!rc) rc = tc_comm_all_i64(s->world, mine, 2, s->times, &why);
  if (rc) return strstr(why.text, what) ? tc_fail(err, rc, "%s", why.text)
                                        : tc_fail(err, rc, "%s: %s", what, why.text);
  s->slowest_ns = 1;
  for (int i = 0; i < tc_comm_size(s->world); i++) {
    s->slowest_ns = TC_MAX(s->slowest_ns, s->times[2 * i]);
    s->elapsed_ns = TC_MAX(s->elapsed_ns, s->times[2 * i + 1]);
  }
  for (int i = 0; i < s->n && s->rank == 0; i++) {
    const int k = opponent(s->n, round, i);
    const double one_ns = (double)s->times[2 * s->m[i].rank] / 2;
    if (k > i) keep_pair(s, &(struct pair){ i, k, round + 1, one_ns * 1e-3, (double)s->bytes / one_ns, 1 }, keep);
  }
  return 0;
}

/* Measures each round again that has a slow pair, while the time allows; again[rounds] is memory for this. Returns the
 * number of rounds. */
static int measure_again(struct state *s, int64_t *again, struct tc_err *err)
{
  int n = 0;
  memset(again, 0, (size_t)s->rounds * sizeof *again);
  if (s->rank == 0) find_slow(s);
  for (int i = 0; i < s->n_pairs; i++)
    if (is_slow(s, &s->pair[i]) && s->pair[i].measured < MEASUREMENTS) again[s->pair[i].round - 1] = 1;
  TC_TRY(tc_comm_max_i64(s->world, again, s->rounds, err));
  for (int round = 0; round < s->rounds; round++) {
    if (!again[round] || (double)s->elapsed_ns > TC_COMM_BUDGET_S * 1e9) continue;
    TC_TRY(measure_round(s, round, FASTEST, err));
    n++;
  }
  return n;
}

/* The largest message with which enough rounds fit, from the time of a small one. */
static int choose_bytes(struct state *s, struct tc_err *err)
{
  const int64_t most = s->bytes, small = TC_MIN(most, 65536);
  s->bytes = small;
  s->iters = 1;
  TC_TRY(measure_round(s, 0, DROP, err));
  const double ns = (double)s->slowest_ns / (double)small * (TC_BENCH_WARM_UP + 1) *
                    TC_MIN(s->rounds, WANT_ROUNDS);
  for (s->bytes = most; s->bytes / 4 >= small && ns * (double)s->bytes > TC_COMM_BUDGET_S * 1e9;) s->bytes /= 4;
  return 0;
}

static int measure(struct state *s, struct tc_err *err)
{
  int64_t logged_ns = 0;
  if (s->rank == 0) tc_say("", "\n", "pairs: %d %ss, %d rounds", s->n, unit(s), s->rounds);
  if (s->o->adapt_bytes) TC_TRY(choose_bytes(s, err));
  s->iters = s->o->adapt_iters ? TC_MIN(s->o->iters, 3) : s->o->iters;
  for (int round = 0; round < s->rounds; round++) {
    const double left_ns = TC_COMM_BUDGET_S * 1e9 - (double)s->elapsed_ns;
    const int left = s->rounds - round;
    if (!s->o->rounds && left_ns < 0 && round >= LEAST_ROUNDS) s->rounds = round;
    if (round == s->rounds) break;
    if (s->o->adapt_iters && round)
      s->iters = (int)TC_MAX(1, TC_MIN((double)s->o->iters,
                                       left_ns / left / (double)s->slowest_ns - TC_BENCH_WARM_UP));
    TC_TRY(measure_round(s, round, ADD, err));
    if (s->rank == 0) progress(s, round, &logged_ns);
  }
  int64_t *again = tc_calloc((size_t)s->rounds, sizeof *again);
  int n = 1;
  while (n > 0) n = measure_again(s, again, err);         /* a median that rises makes more pairs slow */
  free(again);
  return TC_MIN(n, 0);
}

/* ---- all ----------------------------------------------------------------------------------- */

/* Of one node's ranks: whether some have fewer CPUs together than they are. */
static void find_crowd(struct state *s)
{
  const struct tc_ranks *r = s->o->launch->ranks;
  for (int i = 0; i < r->world && r->n_nodes == 1; i++) {
    int n = 0;
    for (int k = 0; k < r->world; k++) n += strcmp(r->info[k].cpuset, r->info[i].cpuset) == 0;
    if (r->info[i].n_cpus == 0 || n <= r->info[i].n_cpus || n <= s->crowd) continue;
    s->crowd = n;
    s->cpus = r->info[i].n_cpus;
  }
}

static void find_members(struct state *s)
{
  const struct tc_ranks *r = s->o->launch->ranks;
  bool *seen = tc_calloc((size_t)r->n_nodes, sizeof *seen);
  s->m = tc_calloc((size_t)r->world, sizeof *s->m);
  s->name = tc_calloc((size_t)r->world, sizeof *s->name);
  s->mine = -1;
  for (int i = 0; i < r->world; i++) {
    const int node = r->info[i].node;
    if (r->n_nodes > 1 && seen[node]) continue;
    seen[node] = true;
    if (i == s->rank) s->mine = s->n;
    if (r->n_nodes > 1) snprintf(s->name[s->n], sizeof *s->name, "%s", r->info[i].host);
    else snprintf(s->name[s->n], sizeof *s->name, "%s", s->o->launch->rank_names[i]);
    s->m[s->n] = (struct member){ .rank = i, .name = s->name[s->n] };
    s->n++;
  }
  free(seen);
}

int tc_pairs_run(const struct tc_pairs_opts *o, struct tc_bench *b, struct tc_comm *world, int rank,
                 struct tc_err *err)
{
  struct state s = { .o = o, .b = b, .world = world, .rank = rank, .bytes = o->bytes,
                     .start_ns = tc_now_ns() };
  find_members(&s);
  find_crowd(&s);
  s.all_rounds = rounds_of(s.n);
  s.rounds = o->rounds ? TC_MIN(o->rounds, s.all_rounds) : s.all_rounds;
  s.times = tc_calloc((size_t)tc_comm_size(world) * 2, sizeof *s.times);
  int rc = measure(&s, err);
  if (!rc && rank == 0) {
    find_slow(&s);
    qsort(s.pair, (size_t)s.n_pairs, sizeof *s.pair, by_rate);
    if (o->json) print_json(&s);
    else print_table(&s);
  }
  free(s.m);
  free(s.name);
  free(s.pair);
  free(s.times);
  return rc;
}
