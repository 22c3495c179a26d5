/* straggler.c - straggler detection.
 *
 * Times are summed over windows of steps, since single steps are noisy. A rank that was slow in two windows
 * in a row counts as a straggler until a window in which it is not slow. If that holds for all
 * ranks of a node, and there are other nodes, the warning names the node. */
#include "src/monitor/straggler.h"

#include <string.h>

#define SLOW 1.5
#define FINE 1.25
#define QUIET_NS INT64_C(60000000000)   /* minimum time between two warnings */
enum { MIN_STEPS = 20, NAMED = 4 };
#define MIN_NS INT64_C(2000000000)

struct rank_state {
  int64_t sum_ns, best_ns;        /* of this window; the smallest mean of a window so far */
  double factor;                  /* of the last window */
  int windows;                    /* consecutive windows in which it was slow */
  bool slow;
};

struct tc_straggler {
  struct tc_straggler_opts o;
  int32_t *stage, *node;
  struct rank_state *rank;
  int64_t *sort;                  /* [world] */
  int steps;
  int64_t warned_ns;
  char text[600];
};

struct tc_straggler *tc_straggler_new(const struct tc_straggler_opts *o)
{
  struct tc_straggler *s = tc_calloc(1, sizeof *s);
  size_t n = (size_t)o->world;
  s->o = *o;
  if (!s->o.min_steps) s->o.min_steps = MIN_STEPS;
  if (!s->o.min_ns) s->o.min_ns = MIN_NS;
  s->stage = memcpy(tc_malloc(n * sizeof *s->stage), o->stage, n * sizeof *s->stage);
  s->node = memcpy(tc_malloc(n * sizeof *s->node), o->node, n * sizeof *s->node);
  s->rank = tc_calloc(n, sizeof *s->rank);
  s->sort = tc_calloc(n, sizeof *s->sort);
  return s;
}

void tc_straggler_free(struct tc_straggler *s)
{
  if (!s) return;
  TC_FREE(s->stage, s->node, s->rank, s->sort, s);
}

/* The lower median of a stage's ranks; for a single rank its best window, 0 before the first. */
static int64_t stage_median(struct tc_straggler *s, const int64_t *work, int32_t stage)
{
  int n = 0, last = 0;
  for (int r = 0; r < s->o.world; r++) {
    if (s->stage[r] != stage) continue;
    s->sort[n++] = work[r];
    last = r;
  }
  if (n == 1) return s->rank[last].best_ns;
  return tc_median_i64(s->sort, n);
}

/* There are few stages with many ranks, so the median is computed once per stage, not per rank. */
static void compare_ranks(struct tc_straggler *s, const int64_t *work, struct tc_slowest *worst)
{
  double most = -1;
  *worst = (struct tc_slowest){ .rank = 0, .work_ns = work[0] };
  int32_t stages = 0;
  for (int r = 0; r < s->o.world; r++) stages = TC_MAX(stages, s->stage[r] + 1);
  for (int32_t k = 0; k < stages; k++) {
    int64_t mid = stage_median(s, work, k);
    for (int r = 0; r < s->o.world; r++) {
      if (s->stage[r] != k) continue;
      double f = s->rank[r].factor = mid > 0 ? (double)work[r] / (double)mid : 1;
      if (f <= most) continue;
      most = f;
      *worst = (struct tc_slowest){ r, work[r], mid };
    }
  }
}

/* Whether all ranks of r's node are slow, it has several, and there are other nodes. */
static bool node_is_slow(const struct tc_straggler *s, int r)
{
  int here = 0, slow = 0;
  for (int i = 0; i < s->o.world; i++) {
    here += s->node[i] == s->node[r];
    slow += s->node[i] == s->node[r] && s->rank[i].slow;
  }
  return here > 1 && slow == here && here < s->o.world;
}

static const char *node_name(const struct tc_straggler *s, int r)
{
  const char *at = strstr(s->o.rank_names[r], " on ");
  return at ? at + 4 : s->o.rank_names[r];
}

/* Appends the names of the ranks that are slow (`now`), or that were slow (in was[]) and no longer are. */
static int append_names(struct tc_straggler *s, bool now, const bool *was)
{
  int n = 0;
  for (int r = 0; r < s->o.world; r++) {
    if (now ? !s->rank[r].slow : !was[r] || s->rank[r].slow) continue;
    if (n++ >= NAMED) continue;
    tc_text_add(s->text, sizeof s->text, "%s%s", n > 1 ? ", " : "", s->o.rank_names[r]);
    if (now) tc_text_add(s->text, sizeof s->text, " (%.1f times%s%s)", s->rank[r].factor,
                 node_is_slow(s, r) ? ", like all ranks on " : "",
                 node_is_slow(s, r) ? node_name(s, r) : "");
  }
  if (n > NAMED) tc_text_add(s->text, sizeof s->text, " and %d more", n - NAMED);
  return n;
}

/* Ends a window: writes the sentence if something has changed. */
static bool end_window(struct tc_straggler *s, int64_t step)
{
  struct tc_slowest worst;
  bool more = false, less = false;
  bool *was = tc_calloc((size_t)s->o.world, sizeof *was);
  int64_t *mean = tc_malloc((size_t)s->o.world * sizeof *mean);
  for (int r = 0; r < s->o.world; r++) mean[r] = s->rank[r].sum_ns / s->steps;
  compare_ranks(s, mean, &worst);
  for (int r = 0; r < s->o.world; r++) {
    struct rank_state *x = &s->rank[r];
    x->best_ns = x->best_ns ? TC_MIN(x->best_ns, mean[r]) : mean[r];
    was[r] = x->slow;
    x->windows = x->factor > SLOW ? x->windows + 1 : 0;
    if (x->windows >= 2) x->slow = true;
    else if (x->factor < FINE) x->slow = false;
    more |= x->slow && !was[r];
    less |= !x->slow && was[r];
    x->sum_ns = 0;
  }
  int64_t now = tc_now_ns();
  s->text[0] = 0;
  if (more && s->warned_ns && now - s->warned_ns < QUIET_NS) {   /* reported later, if it persists */
    for (int r = 0; r < s->o.world; r++) s->rank[r].slow = was[r];
  } else if (more) {
    tc_text_add(s->text, sizeof s->text, "all ranks wait for ");
    append_names(s, true, was);
    tc_text_add(s->text, sizeof s->text, ": it computes that much longer than the other ranks of its stage, or "
                "than itself before, in the last two windows up to step %lld. Check the clocks, "
                "temperature and other users of its node", (long long)step);
    s->warned_ns = now;
  } else if (less) {
    append_names(s, false, was);
    tc_text_add(s->text, sizeof s->text, ": is as fast as the others again");
  }
  TC_FREE(was, mean);
  s->steps = 0;
  return s->text[0] != 0;
}

const char *tc_straggler_step(struct tc_straggler *s, int64_t step, const int64_t *work_ns,
                         struct tc_slowest *slowest)
{
  int64_t most = 0;
  compare_ranks(s, work_ns, slowest);
  for (int r = 0; r < s->o.world; r++) {
    s->rank[r].sum_ns += work_ns[r];
    most = TC_MAX(most, s->rank[r].sum_ns);
  }
  s->steps++;
  if (s->steps < s->o.min_steps || most < s->o.min_ns) return NULL;
  return end_window(s, step) ? s->text : NULL;
}
