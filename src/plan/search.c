/* search.c - searches layouts for a cluster: every combination (space.c) is estimated (candidates.c, guess.c), the best
 * are compiled (layout.c) and ranked by the time of a step. If none fits, it finds how many nodes would do. */
#include "src/base/thread.h"
#include "src/plan/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TRIES = 64 /* layouts that do not fit */ };
#define NEARLY 1.02                              /* of a device's memory: estimates err */

/* ---- the best, made -------------------------------------------------------------- */

static int by_step(const void *a, const void *b)
{
  const struct tc_plan_row *x = a, *y = b;
  if (x->host_unchecked != y->host_unchecked) return x->host_unchecked ? 1 : -1;
  double s = x->plan.time.step_s, t = y->plan.time.step_s;
  return s != t ? (s < t ? -1 : 1) : 0;
}

/* Whether the only difference is how many ranks have a copy of a state: the faster one of them says enough. */
static bool differs_in_copies(const struct tc_cand *x, const struct tc_plan_row *y)
{
  return x->shard != y->cfg.mesh_shard && x->sequence == y->cfg.parallel_sequence && x->regather == y->cfg.parallel_regather &&
         x->recompute == y->cfg.train_recompute && x->reduce == y->cfg.parallel_reduce && x->offload == y->cfg.parallel_offload;
}

static bool alike(const struct tc_cand *x, const struct tc_plan_row *y)
{
  return x->pp == y->plan.size[TC_PP] && x->tp == tc_axes_size(y->plan.size, TC_ON_TP) &&
         x->cp == tc_axes_size(y->plan.size, TC_ON_CP) && x->micro == y->plan.micro &&
         x->virtual_stages == y->plan.virtual_stages && x->schedule == y->cfg.parallel_schedule &&
         x->data == y->cfg.parallel_data && (differs_in_copies(x, y) || fabs(x->s - y->guess_s) < 0.002 * x->s);
}

/* Estimates of one kind err alike: a layout whose estimate exceeds that of one that did not fit is skipped. */
struct miss {
  bool used;
  enum tc_data_parallel data;
  enum tc_schedule schedule;
  bool piped;
  double guess_bytes;
};
enum { MISSES = 32 };

static struct miss *find_miss(struct miss *m, const struct tc_cand *x)
{
  for (; m->used; m++)
    if (m->data == x->data && m->schedule == x->schedule && m->piped == (x->pp > 1)) break;
  return m;
}

/* Layouts that are compiled at the same time, in the order of their estimates: the result is that of one after the other. */
enum { AT_ONCE = 8 };
struct batch {
  struct search *s;
  int n, cand[AT_ONCE], status[AT_ONCE];
  struct tc_err err[AT_ONCE];
  struct tc_plan_row *row;       /* [AT_ONCE] */
};

static int compile(void *ctx, int64_t part, int thread, struct tc_err *err)
{
  struct batch *b = ctx;
  const struct search *s = b->s;
  struct tc_plan_row *r = &b->row[part];
  (void)thread, (void)err;                       /* what does not compile is no failure */
  b->err[part] = (struct tc_err){ 0 };
  b->status[part] = tc_plan_layout(&r->plan, &r->cfg, s->nodes * s->k->devices, s->k, false, &b->err[part]);
  return 0;
}

/* Whether the layout differs from those that were compiled only in options with almost no effect, or does not fit as one of them
 * did not. */
static bool is_seen(const struct search *s, const struct tc_cand *x, struct miss *miss)
{
  const struct miss *was = find_miss(miss, x);
  bool seen = was->used && x->bytes >= was->guess_bytes;
  for (int k = 0; k < s->out->n_rows; k++) seen |= alike(x, &s->out->row[k]);
  return seen;
}

/* The next layouts from *at on, compiled. */
static void next_batch(struct batch *b, int *at, int most, struct miss *miss)
{
  struct tc_err none;
  for (b->n = 0; *at < b->s->n && b->n < most; ++*at) {
    const struct tc_cand *x = &b->s->cand[*at];
    if (is_seen(b->s, x, miss)) continue;
    b->row[b->n] = (struct tc_plan_row){ .cfg = tc_cand_config(b->s->c, x), .guess_s = x->s, .guess_bytes = x->bytes };
    b->cand[b->n++] = *at;
  }
  tc_each(b->n, most, compile, b, &none);
}

/* Whether the layout that does not fit with stages balanced by time may fit with stages balanced by memory: then it is that.
 * *least_bytes: else of these, by estimate. */
static bool balance_memory(struct search *s, struct tc_plan_row *made, const struct tc_cand *x, double *least_bytes)
{
  struct tc_err unused = { 0 };
  double bytes;
  char *stages = strcmp(made->cfg.mesh_stages, "auto") ? NULL : tc_guess_stages(&s->g, x, &made->plan, &bytes);
  if (!stages) return false;
  if (bytes > NEARLY * s->k->device.memory_bytes) {
    *least_bytes = TC_MIN(*least_bytes, bytes);
    return false;
  }
  made->cfg.mesh_stages = stages;
  return tc_plan_layout(&made->plan, &made->cfg, s->nodes * s->k->devices, s->k, false, &unused) == 0;
}

/* A row that fits becomes one of the result. *least_bytes: of those that do not. */
static void take_row(struct search *s, struct tc_plan_row *made, const struct tc_cand *x, struct miss *miss, double *least_bytes)
{
  struct tc_plan_found *f = s->out;
  const double bytes = (double)made->plan.cls[made->plan.worst].memory.bytes[TC_DEVICE], host = tc_plan_host_bytes(&made->plan, s->k);
  const bool knows_host = s->k->device.host_bytes > 0;
  if (knows_host && host > s->k->device.host_bytes) return;
  if (bytes <= s->k->device.memory_bytes) {
    struct tc_plan_row *r = &f->row[f->n_rows++];
    *r = *made;
    r->host_unchecked = !knows_host && host > 0;
    return;
  }
  if (balance_memory(s, made, x, least_bytes)) {
    take_row(s, made, x, miss, least_bytes);
    return;
  }
  *least_bytes = TC_MIN(*least_bytes, bytes);
  struct miss *was = find_miss(miss, x);
  if (was < miss + MISSES) *was = (struct miss){ true, x->data, x->schedule, x->pp > 1, x->bytes };
}

/* Fills in at most `most` rows, by time of a step. */
static void make_best(struct search *s, int most)
{
  struct tc_plan_found *f = s->out;
  struct miss miss[MISSES + 1] = { { .used = false } };
  struct batch b = { .s = s, .row = tc_calloc(AT_ONCE, sizeof *b.row) };
  const int jobs = TC_MIN(tc_cpus(), AT_ONCE);
  int tries = 0, at = 0;
  double least_bytes = INFINITY;
  f->row = tc_calloc((size_t)most, sizeof *f->row);
  tc_search_sort(s);
  do {
    next_batch(&b, &at, jobs, miss);
    for (int i = 0; i < b.n && f->n_rows < most && tries < most + MAX_TRIES; i++) {
      const struct tc_cand *x = &s->cand[b.cand[i]];
      if (is_seen(s, x, miss)) continue;         /* by the ones before it in the batch */
      tries++;
      if (b.status[i] == 0) take_row(s, &b.row[i], x, miss, &least_bytes);
      else if (!*f->why) snprintf(f->why, sizeof f->why, "%.190s", b.err[i].text);
    }
  } while (b.n && f->n_rows < most && tries < most + MAX_TRIES);
  free(b.row);
  if (!f->n_rows && isfinite(least_bytes)) f->least_bytes = least_bytes;   /* the estimates were too low */
  qsort(f->row, (size_t)f->n_rows, sizeof *f->row, by_step);
}

/* Whether anything fits on this many nodes. */
static bool fits_on(struct search *s, int nodes)
{
  s->nodes = nodes;
  s->fitting = 0;
  tc_search_all(s);
  return s->fitting > 0;
}

static int find_nodes(struct search *s, int from)
{
  enum { MOST = 1 << 16 };
  int hi = from;
  s->out = NULL;
  while (hi < MOST && (double)hi * s->k->devices < 1 << 23 && !fits_on(s, hi *= 2)) { }
  if (!s->fitting) return 0;
  int lo = hi / 2;                               /* not monotone (batches must divide evenly), so only a hint */
  while (lo + 1 < hi) {
    int mid = lo + (hi - lo) / 2;
    if (fits_on(s, mid)) hi = mid;
    else lo = mid;
  }
  return hi;
}

static int search_start(struct search *s, const struct tc_config *c, const struct tc_cluster *k,
                        unsigned fixed, struct tc_err *err)
{
  /* "auto" fixes nothing. */
  if (c->mesh_tp == TC_AUTO || c->mesh_tp == 0) fixed &= ~(1u << TC_KEY_TP);
  if (c->mesh_dp == TC_AUTO || c->mesh_dp == 0) fixed &= ~(1u << TC_KEY_DP);
  if (c->parallel_virtual_stages == TC_AUTO) fixed &= ~(1u << TC_KEY_VIRTUAL_STAGES);
  *s = (struct search){ .c = c, .k = k, .nodes = k->nodes, .fixed = fixed };
  s->g.cfg = c;
  s->g.k = k;
  TC_TRY(tc_setup_model(c, &s->g.model, err));
  const double params = (double)tc_model_params(&s->g.model);
  s->g.layer_params = (double)tc_model_layer_params(&s->g.model);
  s->g.rest_params = params - s->g.layer_params * (double)s->g.model.layers;
  struct tc_parameter_sums sum;
  TC_TRY(tc_setup_parameter_sums(&sum, c, err));
  s->g.frozen = 1 - sum.trained / sum.all;
  s->g.states = sum.states / sum.trained;
  return 0;
}

/* What is wrong whatever the layout; the rest of what *s needs. */
static int search_check(struct search *s, struct tc_err *err)
{
  const struct tc_config *c = s->c;
  TC_TRY(tc_search_contradicts(s, err));
  if (*c->run_collectives) TC_TRY(tc_selection_read(&s->g.selection, c->run_collectives, err));
  const int rc = tc_setup_stages(&s->stages, c, err);
  if (rc < 0) tc_guess_done(&s->g);
  return rc;
}

static void search_run(struct search *s, struct tc_plan_found *out, int most)
{
  *out = (struct tc_plan_found){ .least_bytes = INFINITY };
  s->out = out;
  s->n = 0;
  s->fitting = 0;
  tc_search_all(s);
  out->fitting = s->fitting;
  make_best(s, most);
}

/* Estimates may be too low, so the reported number of nodes has a layout that was compiled. */
static int sufficient_nodes(struct search *s)
{
  enum { TRIES = 8 };
  const int own = s->nodes;
  int n = find_nodes(s, own);
  for (int i = 0; n > 0 && i < TRIES; i++) {
    struct tc_plan_found f;
    s->nodes = n;
    search_run(s, &f, 1);
    bool fits = f.n_rows > 0;
    tc_plan_found_done(&f);
    if (fits) return n;
    n += TC_MAX(n / 4, 1);
  }
  return 0;
}

int tc_plan_search(struct tc_plan_found *out, const struct tc_config *c, const struct tc_cluster *k,
                   unsigned fixed, int top, struct tc_err *err)
{
  struct search s;
  *out = (struct tc_plan_found){ .least_bytes = INFINITY };
  TC_TRY(search_start(&s, c, k, fixed, err));
  TC_TRY(search_check(&s, err));
  /* For any top: estimates err, so the first row depends on how many are compiled. */
  search_run(&s, out, TC_PLAN_ROWS);
  out->n_rows = TC_MIN(out->n_rows, top);
  /* What is wrong in the configuration, such as a row of annotations, is no property of the layouts. */
  int rc = !out->possible && s.wrong.status ? tc_fail(err, TC_EUSER, "%s", s.wrong.text) : 0;
  if (rc) tc_plan_found_done(out);
  else if (!out->n_rows) out->least_nodes = sufficient_nodes(&s);
  TC_FREE(s.cand, s.stages);
  tc_guess_done(&s.g);
  return rc;
}

void tc_plan_found_done(struct tc_plan_found *f)
{
  TC_FREE(f->row, f->family);
  f->row = NULL;
  f->family = NULL;
}
