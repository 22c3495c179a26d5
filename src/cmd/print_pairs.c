/* print_pairs.c - what `tercio comm --pairs` prints: the slowest pairs and nodes, as a table or as JSON. */
#include "src/cmd/print_pairs.h"
#include "src/cmd/out.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN = 10 };              /* rows of a table */

static int members_by_rate(const void *a, const void *b)
{
  const struct tc_pair_member *x = a, *y = b;
  return x->gbs < y->gbs ? -1 : x->gbs > y->gbs ? 1 : x->rank - y->rank;
}

static void print_head(const struct tc_pairs *s, const struct tc_ranks *r, const char *link, int iters)
{
  printf("%s, %d ranks on %d node%s: each %s with each other %s%s; %d of %d rounds, up to %d pairs at once\n"
         "fp32, checked; %lld bytes there and back, median of up to %d iterations; GB/s of one direction\n",
         link, r->world, r->n_nodes, tc_plural(r->n_nodes), s->of, s->of,
         r->n_nodes > 1 ? ", one rank of a node" : " (there is one node only)", s->rounds, s->all_rounds, s->n / 2,
         (long long)s->bytes, iters);
  if (s->rounds < s->all_rounds)
    printf("%d rounds were left out; --rounds %d measures all pairs\n", s->all_rounds - s->rounds, s->all_rounds);
}

/* The names of what is slow; pairs only if neither of their nodes is slow by itself. */
static void print_slow(const struct tc_pairs *s)
{
  int found = 0;
  for (int i = 0; i < s->n; i++)
    if (s->m[i].slow && ++found)
      printf("slow %s: %s, %.4f GB/s with most others, %.2f of the median\n", s->of, s->m[i].name, s->m[i].gbs,
             s->m[i].gbs / s->median_gbs);
  for (int i = 0; i < s->n_pairs; i++) {
    const struct tc_pair *p = &s->pair[i];
    if (!tc_pair_is_slow(s, p) || s->m[p->a].slow || s->m[p->b].slow) continue;
    found++;
    printf("slow pair: %s - %s, %.4f GB/s, %.2f of the median, measured %d time%s\n", s->m[p->a].name, s->m[p->b].name,
           p->gbs, p->gbs / s->median_gbs, p->measured, tc_plural(p->measured));
  }
  if (s->crowd)
    printf("%d ranks share %d CPU%s, so their times depend on the scheduler: none is called slow\n", s->crowd, s->cpus,
           tc_plural(s->cpus));
  else if (s->n_pairs < 2) printf("one pair: nothing to compare it with\n");
  else if (!found) printf("no %s and no pair is below %.1f of the median\n", s->of, TC_PAIRS_SLOW);
}

/* The pairs, in columns the slowest only. */
static void print_pairs(json_t *list, const struct tc_pairs *s)
{
  for (int i = 0; i < s->n_pairs && (list || i < SHOWN); i++) {
    const struct tc_pair *p = &s->pair[i];
    tc_out_row(list, "a=%-24s  b=%-24s{ round=%d}  time_us=%11.1f  algbw=%9.4f  of_median=%9.2f{ slow!=%d check=%s}",
               s->m[p->a].name, s->m[p->b].name, p->round, p->us, p->gbs, p->gbs / s->median_gbs,
               tc_pair_is_slow(s, p), "ok");
  }
}

static void print_members(json_t *list, const struct tc_pair_member *m, int n, double median_gbs)
{
  for (int i = 0; i < n; i++)
    tc_out_row(list, "name=%-24s{ rank=%d}  pairs=%5d  algbw=%9.4f  of_median=%9.2f{ slow!=%d}", m[i].name, m[i].rank,
               m[i].pairs, m[i].gbs, m[i].gbs / median_gbs, m[i].slow);
}

static void print_json(const struct tc_pairs *s, const char *link)
{
  json_t *pairs = json_array(), *members = json_array();
  print_pairs(pairs, s);
  print_members(members, s->m, s->n, s->median_gbs);
  tc_out_json(tc_out_object("of=%s link=%s rounds=%d all_rounds=%d size=%lld median_algbw=%g pairs=%p members=%p", s->of,
                            link, s->rounds, s->all_rounds, (long long)s->bytes, s->median_gbs, (void *)pairs,
                            (void *)members), JSON_INDENT(1) | JSON_REAL_PRECISION(6));
}

static void print_table(const struct tc_pairs *s, const struct tc_ranks *r, const char *link, int iters)
{
  struct tc_pair_member *m = tc_calloc((size_t)s->n, sizeof *m);
  print_head(s, r, link, iters);
  printf("\n%-24s  %-24s  %11s  %9s  %9s  (%d slowest of %d pairs)\n", s->of, s->of, "time_us", "GB/s", "of median",
         TC_MIN(SHOWN, s->n_pairs), s->n_pairs);
  print_pairs(NULL, s);
  memcpy(m, s->m, (size_t)s->n * sizeof *m);
  qsort(m, (size_t)s->n, sizeof *m, members_by_rate);
  printf("\n%-24s  %5s  %9s  %9s  (%d slowest of %d %ss, medians over their pairs)\n", s->of, "pairs", "GB/s",
         "of median", TC_MIN(SHOWN, s->n), s->n, s->of);
  print_members(NULL, m, TC_MIN(SHOWN, s->n), s->median_gbs);
  printf("\nmedian of all %ss: %.4f GB/s\n", s->of, s->median_gbs);
  print_slow(s);
  free(m);
}

void tc_pairs_print(const struct tc_pairs *s, const struct tc_ranks *r, const char *link, int iters, bool json)
{
  if (json) print_json(s, link);
  else print_table(s, r, link, iters);
}
