/* pipeline.c - pipeline schedules: the table of their kinds, and the items of each rank.
 *
 * Invariants: a schedule from tc_pipeline_new passes tc_pipeline_check and its simulation runs to the
 * end; a virtual stage's micro-batches come in ascending order in each kind of work.
 */
#include "src/schedule/pipeline.h"

#include <stdlib.h>
#include <string.h>

static const char work_letter[TC_WORKS] = { 'F', 'B', 'W' };

/* ---- the schedules -------------------------------------------------------------------- */

/* A kind of schedule is two numbers per rank: the forwards before its first backward, and by how many
 * backwards W lags behind B. */
struct pipeline_kind {
  bool split, virtual_stages;
  int32_t (*ahead)(const struct tc_pipeline *s, int32_t rank);
  int32_t (*lag)(const struct tc_pipeline *s, int32_t rank);    /* where `split` */
};

static int32_t ahead_naive(const struct tc_pipeline *s, int32_t rank)
{
  (void)s;
  (void)rank;
  return 0;
}

/* Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism",
 * NeurIPS 2019. There the backwards run from the last micro-batch to the first, here from the
 * first, as in all schedules: gradients add up in the same order. The bubble is the same. */
static int32_t ahead_gpipe(const struct tc_pipeline *s, int32_t rank)
{
  (void)rank;
  return s->m;
}

/* Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019,
 * with a flush at the end of the step (Fan et al., "DAPPLE", PPoPP 2021). */
static int32_t ahead_1f1b(const struct tc_pipeline *s, int32_t rank)
{
  return s->p - 1 - rank;
}

/* Narayanan et al., "Efficient large-scale language model training on GPU clusters using
 * Megatron-LM", SC 2021. */
static int32_t ahead_interleaved(const struct tc_pipeline *s, int32_t rank)
{
  return 2 * (s->p - 1 - rank) + (s->v - 1) * s->p;
}

/* ZB-H1 of Qi et al., "Zero bubble pipeline parallelism", 2023 (ICLR 2024): 1F1B in which rank r
 * delays W by r micro-batches, so that each rank has min(m, p) of them in flight. */
static int32_t lag_zb(const struct tc_pipeline *s, int32_t rank)
{
  (void)s;
  return rank;
}

static const struct pipeline_kind kinds[] = {
  [TC_SCHEDULE_NAIVE]       = { false, false, ahead_naive,       NULL },
  [TC_SCHEDULE_GPIPE]       = { false, false, ahead_gpipe,       NULL },
  [TC_SCHEDULE_1F1B]        = { false, false, ahead_1f1b,        NULL },
  [TC_SCHEDULE_INTERLEAVED] = { false, true,  ahead_interleaved, NULL },
  [TC_SCHEDULE_ZB]          = { true,  false, ahead_1f1b,        lag_zb },
};

bool tc_pipeline_splits(enum tc_schedule kind)
{
  return kinds[kind].split;
}

/* Number k of one kind of work on a rank: virtual stages take turns, p micro-batches at a time, backwards
 * from the last virtual stage. With one virtual stage it is micro-batch k. */
static void add_item(struct tc_pipeline *s, int32_t rank, int work, int32_t k)
{
  int32_t turn = k / s->p, virtual_stage = turn % s->v;
  int32_t mb = turn / s->v * s->p + k % s->p;
  if (work != TC_WORK_F) virtual_stage = s->v - 1 - virtual_stage;
  s->item[rank][s->n_items[rank]++] = (struct tc_item){ (uint8_t)work, virtual_stage, mb };
}

static void fill_rank(struct tc_pipeline *s, int32_t rank, const struct pipeline_kind *kind)
{
  int32_t n = s->v * s->m, f = 0, b = 0, w = 0;
  int32_t ahead = TC_MIN(kind->ahead(s, rank), n);
  int32_t lag = kind->split ? TC_MIN(kind->lag(s, rank), n - ahead) : 0;
  while (f < ahead) add_item(s, rank, TC_WORK_F, f++);
  while (b < n) {
    if (f < n) add_item(s, rank, TC_WORK_F, f++);
    add_item(s, rank, TC_WORK_B, b++);
    if (kind->split && b > lag) add_item(s, rank, TC_WORK_W, w++);
  }
  while (kind->split && w < n) add_item(s, rank, TC_WORK_W, w++);
}

static int check_shape(enum tc_schedule schedule, int p, int v, int m, struct tc_err *err)
{
  const struct pipeline_kind *kind = &kinds[schedule];
  const char *name = tc_word_parallel_schedule(schedule);
  const struct { const char *what; int n; } size[] = {
    { "stages", p }, { "virtual stages a rank", v }, { "micro-batches", m },
  };
  for (size_t i = 0; i < sizeof size / sizeof *size; i++)
    if (size[i].n < 1)
      return tc_fail(err, TC_ELAYOUT, "a pipeline can't have %d %s; 1 or more would fit", size[i].n,
                     size[i].what);
  if (v > 1 && !kind->virtual_stages)
    return tc_fail(err, TC_ELAYOUT, "schedule %s has no virtual stages: %d a rank do not fit; 1 would, "
                   "or schedule interleaved", name, v);
  if (v < 2 && kind->virtual_stages)
    return tc_fail(err, TC_ELAYOUT, "schedule %s needs at least 2 virtual stages a rank; 2 would fit, "
                   "or schedule 1f1b with 1", name);
  if (kind->virtual_stages && m % p) {
    char less[20] = "";
    if (m > p) snprintf(less, sizeof less, "%d or ", m / p * p);
    return tc_fail(err, TC_ELAYOUT, "schedule %s needs micro-batches in multiples of its %d stages: %d "
                   "do not fit; %s%lld would, or schedule 1f1b", name, p, m, less,
                   (long long)tc_round_up(m, p));
  }
  double items = (double)TC_WORKS * p * v * m;
  if (items > INT32_MAX)
    return tc_fail(err, TC_ELAYOUT, "%d stages x %d virtual stages x %d micro-batches are %.0f items of "
                   "work; fewer than %d would fit", p, v, m, items, INT32_MAX);
  return TC_OK;
}

int tc_pipeline_new(struct tc_pipeline **out, enum tc_schedule kind, int p, int v, int m,
                    struct tc_err *err)
{
  TC_TRY(check_shape(kind, p, v, m, err));
  struct tc_pipeline *s = tc_calloc(1, sizeof *s);
  *s = (struct tc_pipeline){ .name = tc_word_parallel_schedule(kind), .p = p, .v = v, .m = m,
                             .split = kinds[kind].split };
  size_t n = (size_t)v * (size_t)m * (s->split ? 3 : 2);
  s->n_items = tc_calloc((size_t)p, sizeof *s->n_items);
  s->item = tc_calloc((size_t)p, sizeof *s->item);
  s->item[0] = tc_malloc((size_t)p * n * sizeof **s->item);
  for (int32_t r = 0; r < p; r++) {
    s->item[r] = s->item[0] + (size_t)r * n;
    fill_rank(s, r, &kinds[kind]);
  }
  *out = s;
  return TC_OK;
}

void tc_pipeline_free(struct tc_pipeline *s)
{
  if (!s) return;
  TC_FREE(s->item[0], s->item, s->n_items, s);
}

/* ---- one rank's list by itself -------------------------------------------------------- */

/* done[work][v][m], zero at first. */
static int check_rank(const struct tc_pipeline *s, int32_t r, bool *done, struct tc_err *err)
{
  int works = s->split ? 3 : 2;
  size_t each = (size_t)s->v * (size_t)s->m;
  for (int32_t i = 0; i < s->n_items[r]; i++) {
    struct tc_item x = s->item[r][i];
    if (x.work >= works || x.virtual_stage < 0 || x.virtual_stage >= s->v || x.mb < 0 || x.mb >= s->m)
      return tc_fail(err, TC_ELAYOUT, "schedule %s, rank %d, item %d: there is no work %d of micro-batch "
                     "%d on virtual stage %d", s->name, r, i, x.work, x.mb, x.virtual_stage);
    bool *mine = &done[x.work * each + (size_t)x.virtual_stage * (size_t)s->m + (size_t)x.mb];
    const char *wrong = NULL;
    if (*mine) wrong = "a second time";
    else if (x.work == TC_WORK_B && !*(mine - each)) wrong = "before its F";
    else if (x.work == TC_WORK_W && !*(mine - each)) wrong = "before its B";
    if (wrong)
      return tc_fail(err, TC_ELAYOUT, "schedule %s, rank %d, item %d: %c of micro-batch %d on virtual stage %d "
                     "comes %s", s->name, r, i, work_letter[x.work], x.mb, x.virtual_stage, wrong);
    *mine = true;
  }
  for (size_t k = 0; k < works * each; k++)
    if (!done[k])
      return tc_fail(err, TC_ELAYOUT, "schedule %s, rank %d: %c of micro-batch %d on virtual stage %d is missing",
                     s->name, r, work_letter[k / each], (int)(k % each % (size_t)s->m),
                     (int)(k % each / (size_t)s->m));
  return TC_OK;
}

int tc_pipeline_check(const struct tc_pipeline *s, struct tc_err *err)
{
  size_t n = (size_t)s->v * (size_t)s->m * TC_WORKS;
  bool *done = tc_malloc(n * sizeof *done);
  int rc = TC_OK;
  for (int32_t r = 0; r < s->p && rc == TC_OK; r++) {
    memset(done, 0, n * sizeof *done);
    rc = check_rank(s, r, done, err);
  }
  free(done);
  return rc;
}

int32_t tc_pipeline_peak(const struct tc_pipeline *s, int32_t rank, int32_t virtual_stage, int from, int to)
{
  int32_t alive = 0, most = 0;
  for (int32_t i = 0; i < s->n_items[rank]; i++) {
    struct tc_item x = s->item[rank][i];
    if (virtual_stage >= 0 && x.virtual_stage != virtual_stage) continue;
    alive += (x.work == from) - (x.work == to);
    most = TC_MAX(most, alive);
  }
  return most;
}
