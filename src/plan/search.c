/* search.c - searches layouts for a cluster: every combination is estimated (guess.c), the best are compiled
 * (layout.c) and ranked by the time of a step. Excluded layouts are counted by family, with the reason of the
 * one that is closest to fitting. */
#include "src/plan/guess.h"
#include "src/plan/impl.h"
#include "src/schedule/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const tc_plan_key_name[TC_KEYS] = {
  "mesh.pp", "mesh.dp", "mesh.tp", "train.micro_batch", "parallel.data", "parallel.schedule",
  "parallel.virtual_stages", "parallel.sequence", "train.recompute", "parallel.offload"
};

enum { MAX_TRIES = 64 /* layouts that do not fit */ };

struct search {
  struct tc_guess g;
  struct tc_plan_found *out;     /* NULL: only find out whether anything fits */
  const struct tc_config *c;
  const struct tc_cluster *k;
  int nodes;
  unsigned fixed;
  struct tc_cand *cand; int n, cap;              /* candidates that may fit */
  int64_t fitting;
  struct tc_err wrong;           /* the first layout that is refused for a reason in the configuration; status 0: none */
};

static bool is_fixed(const struct search *s, int key) { return s->fixed >> key & 1; }

/* ---- families -------------------------------------------------------------------- */

static struct tc_plan_family *family(struct tc_plan_found *f, int key, const char *name)
{
  for (int i = 0; i < f->n_families; i++)
    if (f->family[i].key == key && !strcmp(f->family[i].name, name)) return &f->family[i];
  TC_GROW(f->family, f->n_families, f->cap_families);
  struct tc_plan_family *x = &f->family[f->n_families++];
  *x = (struct tc_plan_family){ .key = key, .least_bytes = INFINITY };
  snprintf(x->name, sizeof x->name, "%s", name);
  return x;
}

static void value_text(char *buf, size_t size, const struct tc_cand *x, int key)
{
  const int32_t n[] = { [TC_KEY_PP] = x->pp, [TC_KEY_DP] = x->dp, [TC_KEY_TP] = x->tp,
                        [TC_KEY_MICRO] = x->micro, [TC_KEY_VIRTUAL_STAGES] = x->virtual_stages };
  switch (key) {
  case TC_KEY_DATA: snprintf(buf, size, "%s", tc_word_parallel_data(x->data)); break;
  case TC_KEY_SCHEDULE:
    snprintf(buf, size, "%s", x->pp > 1 ? tc_word_parallel_schedule(x->schedule) : "none");
    break;
  case TC_KEY_SEQUENCE: snprintf(buf, size, "%s", x->sequence ? "yes" : "no"); break;
  case TC_KEY_RECOMPUTE: snprintf(buf, size, "%s", tc_word_train_recompute(x->recompute)); break;
  case TC_KEY_OFFLOAD: snprintf(buf, size, "%s", tc_word_parallel_offload(x->offload)); break;
  default: snprintf(buf, size, "%d", n[key]);
  }
}

/* Counts a layout in its families. why NULL: it is possible, with this much memory. */
static void count_layout(struct search *s, const struct tc_cand *x, const char *why, bool fits)
{
  if (!s->out) return;
  for (int key = 0; key < TC_KEYS; key++) {
    char name[48];
    value_text(name, sizeof name, x, key);
    struct tc_plan_family *f = family(s->out, key, name);
    f->n++;
    f->fit += fits;
    if (why && !*f->why) snprintf(f->why, sizeof f->why, "%.190s", why);
    if (!why) f->least_bytes = TC_MIN(f->least_bytes, x->bytes);
  }
}

/* Records that one value of one key is impossible. */
static void refuse_name(struct search *s, int key, const char *name, const char *why)
{
  if (!s->out) return;
  struct tc_plan_family *f = family(s->out, key, name);
  f->n++;
  if (!*f->why) snprintf(f->why, sizeof f->why, "%.190s", why);
}

static void refuse(struct search *s, int key, int value, const char *why)
{
  char name[48];
  snprintf(name, sizeof name, "%d", value);
  refuse_name(s, key, name, why);
}

/* ---- all combinations ------------------------------------------------------------ */

static int by_time(const void *a, const void *b)
{
  const struct tc_cand *x = a, *y = b;
  if (x->s != y->s) return x->s < y->s ? -1 : 1;
  return x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : 0;
}

/* If the host's memory is not known, what needs none of it comes first. */
static int by_host_and_time(const void *a, const void *b)
{
  const bool x = ((const struct tc_cand *)a)->host_bytes > 0, y = ((const struct tc_cand *)b)->host_bytes > 0;
  return x != y ? x - y : by_time(a, b);
}

static void add(struct search *s, struct tc_cand *x)
{
  struct tc_err err = { 0 };
  double memory = s->k->device.memory_bytes;
  /* The one of dp and pp with more traffic is the inner axis. */
  double use = s->c->train_precision == TC_BF16 ? 2 : 4;
  double on_pp = 2.0 * x->n_mb * x->micro * x->virtual_stages * use *
                 (double)(s->g.model.context * s->g.model.hidden);
  double on_dp = 8 * (s->g.layer_params * (double)s->g.model.layers / x->pp +
                      s->g.rest_params) / x->tp;
  x->near_pp = x->pp > 1 && x->dp > 1 && on_pp > on_dp;
  if (s->out) s->out->considered++;
  if (tc_guess(&s->g, x, &err) < 0) {
    if (err.status == TC_EUSER && !s->wrong.status) s->wrong = err;
    count_layout(s, x, err.text, false);
    return;
  }
  if (s->k->device.host_bytes > 0 && x->host_bytes * s->k->devices > s->k->device.host_bytes) {
    count_layout(s, x, "needs more host memory than a node has", false);
    struct tc_plan_family *f = s->out ? family(s->out, TC_KEY_OFFLOAD, tc_word_parallel_offload(x->offload)) : NULL;
    double host = x->host_bytes * s->k->devices;
    if (f) f->least_host_bytes = f->least_host_bytes > 0 ? TC_MIN(f->least_host_bytes, host) : host;
    return;
  }
  bool fits = x->bytes <= memory;
  count_layout(s, x, NULL, fits);
  s->fitting += fits;
  if (s->out) {
    s->out->possible++;
    s->out->least_bytes = TC_MIN(s->out->least_bytes, x->bytes);
  }
  if (!s->out || x->bytes > 1.04 * memory) return; /* estimates may be too high by 4 % */
  TC_GROW(s->cand, s->n, s->cap);
  s->cand[s->n++] = *x;
}

/* Adds the ways to reduce a layer's memory, for a mesh, a system and a schedule. */
static void add_memory(struct search *s, struct tc_cand *x)
{
  for (int sequence = 0; sequence < 2; sequence++) {
    if (is_fixed(s, TC_KEY_SEQUENCE) && sequence != s->c->parallel_sequence) continue;
    if (sequence && x->tp == 1) continue;        /* sequence parallelism splits over tp */
    for (enum tc_recompute r = TC_RECOMPUTE_NONE; r <= TC_RECOMPUTE_FULL; r++) {
      if (is_fixed(s, TC_KEY_RECOMPUTE) && r != s->c->train_recompute) continue;
      x->sequence = sequence;
      x->recompute = r;
      bool offload = is_fixed(s, TC_KEY_OFFLOAD);
      x->offload = offload ? s->c->parallel_offload : TC_OFFLOAD_NO;
      add(s, x);
      if (offload || x->bytes <= s->k->device.memory_bytes) continue;
      x->offload = TC_OFFLOAD_PARAMS;                    /* only if it would not fit otherwise */
      add(s, x);
    }
  }
}

/* Adds the numbers of virtual stages, for the interleaved schedule. */
static void add_virtual_stages(struct search *s, struct tc_cand *x)
{
  bool given = is_fixed(s, TC_KEY_VIRTUAL_STAGES);
  int lo = given ? (int)TC_MIN(s->c->parallel_virtual_stages, s->g.model.layers + 1) : 2;
  int hi = given ? lo : 8;
  char why[160];
  if (x->n_mb % x->pp) {
    snprintf(why, sizeof why, "needs a multiple of the stages as micro-batches: %d on %d stages do "
             "not fit", x->n_mb, x->pp);
    refuse_name(s, TC_KEY_SCHEDULE, tc_word_parallel_schedule(x->schedule), why);
    return;
  }
  for (int v = lo; v <= hi; v++) {
    if ((int64_t)x->pp * v <= s->g.model.layers) {
      x->virtual_stages = v;
      add_memory(s, x);
    } else if (given) {
      snprintf(why, sizeof why, "of %d stages exceed the model's layers, %lld",
               x->pp, (long long)s->g.model.layers);
      refuse(s, TC_KEY_VIRTUAL_STAGES, v, why);
    }
  }
}

static void add_schedules(struct search *s, struct tc_cand *x)
{
  for (enum tc_schedule i = TC_SCHEDULE_NAIVE; i <= TC_SCHEDULE_ZB; i++) {
    bool given = is_fixed(s, TC_KEY_SCHEDULE), many = i == TC_SCHEDULE_INTERLEAVED;
    if (given ? i != s->c->parallel_schedule : i == TC_SCHEDULE_NAIVE) continue;
    if (x->pp == 1 && !given && i != TC_SCHEDULE_1F1B) continue;
    /* A given number of virtual stages is fixed for every row: only interleaved has more than 1, and it has
     * at least 2. */
    int64_t virtual_stages = is_fixed(s, TC_KEY_VIRTUAL_STAGES) ? s->c->parallel_virtual_stages : 0;
    if (virtual_stages > 1 && (!many || x->pp == 1)) continue;
    if (virtual_stages == 1 && many && x->pp > 1) continue;
    x->schedule = i;
    x->virtual_stages = 1;
    if (!many || x->pp == 1) add_memory(s, x);
    else add_virtual_stages(s, x);
  }
}

static void add_systems(struct search *s, struct tc_cand *x)
{
  if (is_fixed(s, TC_KEY_DATA)) {
    x->data = s->c->parallel_data;
    add_schedules(s, x);
    return;
  }
  const enum tc_data_parallel last = x->dp > 1 ? TC_DATA_ZERO3 : TC_DATA_DDP;
  for (x->data = TC_DATA_DDP; x->data <= last; x->data++) add_schedules(s, x);
}

static void add_micro(struct search *s, struct tc_cand *x)
{
  int64_t local = s->c->train_global_batch / x->dp;
  if (is_fixed(s, TC_KEY_MICRO)) {
    int64_t micro = s->c->train_micro_batch ? s->c->train_micro_batch : local;
    if (local % micro) {
      char why[160];
      snprintf(why, sizeof why, "does not divide a rank's %lld sequences", (long long)local);
      refuse(s, TC_KEY_MICRO, (int)TC_MIN(micro, INT32_MAX), why);
      return;
    }
    x->micro = (int32_t)micro;
    x->n_mb = (int32_t)(local / micro);
    add_systems(s, x);
    return;
  }
  for (int32_t micro = 1; micro <= TC_MIN(local, 64); micro *= 2) {
    if (local % micro) continue;
    x->micro = micro;
    x->n_mb = (int32_t)(local / micro);
    add_systems(s, x);
  }
}

static void add_meshes(struct search *s)
{
  const struct tc_config *c = s->c;
  int world = s->nodes * s->k->devices;
  char why[160];
  for (int tp = 1; tp <= TC_MIN(world, 64); tp++) {
    if (is_fixed(s, TC_KEY_TP) ? tp != c->mesh_tp : tp & (tp - 1) && s->k->devices % tp) continue;
    if (s->k->devices % tp && !c->mesh_tp_across_nodes) {
      snprintf(why, sizeof why, "leaves its node of %d device%s", s->k->devices,
               s->k->devices == 1 ? "" : "s");
      refuse(s, TC_KEY_TP, tp, why);
      continue;
    }
    if (s->g.model.kv_heads % tp) {
      char heads[64];
      snprintf(why, sizeof why, "does not divide %s", tc_setup_heads(heads, sizeof heads, &s->g.model));
      refuse(s, TC_KEY_TP, tp, why);
      continue;
    }
    for (int pp = 1; pp <= TC_MIN(world / tp, s->g.model.layers); pp++) {
      if (is_fixed(s, TC_KEY_PP) ? pp != c->mesh_pp : world / tp % pp) continue;
      if (world % (pp * tp)) continue;
      int dp = world / tp / pp;
      if (is_fixed(s, TC_KEY_DP) && dp != c->mesh_dp) continue;
      if (c->train_global_batch % dp) {
        snprintf(why, sizeof why, "does not divide train.global_batch = %lld",
                 (long long)c->train_global_batch);
        refuse(s, TC_KEY_DP, dp, why);
        continue;
      }
      struct tc_cand x = { .pp = pp, .dp = dp, .tp = tp };
      add_micro(s, &x);
    }
  }
}

/* ---- the best, made -------------------------------------------------------------- */

static int by_step(const void *a, const void *b)
{
  const struct tc_plan_row *x = a, *y = b;
  if (x->host_unchecked != y->host_unchecked) return x->host_unchecked ? 1 : -1;
  double s = x->plan.time.step_s, t = y->plan.time.step_s;
  return s != t ? (s < t ? -1 : 1) : 0;
}

static bool alike(const struct tc_cand *x, const struct tc_plan_row *y)
{
  return x->pp == y->plan.pp && x->tp == y->plan.tp && x->micro == y->plan.micro &&
         x->virtual_stages == y->plan.virtual_stages && x->schedule == y->cfg.parallel_schedule &&
         x->data == y->cfg.parallel_data && fabs(x->s - y->guess_s) < 0.002 * x->s;
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

/* Fills in at most `most` rows, by time of a step. */
static void make_best(struct search *s, int most)
{
  struct tc_plan_found *f = s->out;
  struct miss miss[MISSES + 1] = { { .used = false } };
  int tries = 0;
  double least_bytes = INFINITY;
  f->row = tc_calloc((size_t)most, sizeof *f->row);
  const bool knows_host = s->k->device.host_bytes > 0;
  if (s->n) qsort(s->cand, (size_t)s->n, sizeof *s->cand, knows_host ? by_time : by_host_and_time);
  for (int i = 0; i < s->n && f->n_rows < most && tries < most + MAX_TRIES; i++) {
    struct tc_plan_row *r = &f->row[f->n_rows];
    struct tc_err err = { 0 };
    bool seen = false;
    for (int k = 0; k < f->n_rows; k++) seen |= alike(&s->cand[i], &f->row[k]);
    struct miss *was = find_miss(miss, &s->cand[i]);
    seen |= was->used && s->cand[i].bytes >= was->guess_bytes;
    if (seen) continue;                          /* differs only in options with almost no effect */
    r->cfg = tc_cand_config(s->c, &s->cand[i]);
    r->guess_s = s->cand[i].s;
    r->guess_bytes = s->cand[i].bytes;
    tries++;
    if (tc_plan_layout(&r->plan, &r->cfg, s->nodes * s->k->devices, s->k, false, &err) < 0) {
      if (!*f->why) snprintf(f->why, sizeof f->why, "%.190s", err.text);
      continue;
    }
    double bytes = (double)r->plan.cls[r->plan.worst].memory.bytes[TC_DEVICE];
    const double host = tc_plan_host_bytes(&r->plan, s->k);
    r->host_unchecked = !knows_host && host > 0;
    if (knows_host && host > s->k->device.host_bytes) continue;
    if (bytes <= s->k->device.memory_bytes) {
      tc_plan_chunk(&r->plan, &r->cfg, s->k);
      f->n_rows++;
    } else {
      least_bytes = TC_MIN(least_bytes, bytes);
      if (was < miss + MISSES)
        *was = (struct miss){ true, s->cand[i].data, s->cand[i].schedule, s->cand[i].pp > 1,
                              s->cand[i].bytes };
    }
  }
  if (!f->n_rows && isfinite(least_bytes)) f->least_bytes = least_bytes;   /* the estimates were too low */
  qsort(f->row, (size_t)f->n_rows, sizeof *f->row, by_step);
}

/* Whether anything fits on this many nodes. */
static bool fits_on(struct search *s, int nodes)
{
  s->nodes = nodes;
  s->fitting = 0;
  add_meshes(s);
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

static int contradictions(const struct search *s, struct tc_err *err)
{
  const struct tc_config *c = s->c;
  double world = (double)s->nodes * s->k->devices;
  double given = (is_fixed(s, TC_KEY_PP) ? (double)c->mesh_pp : 1) *
                 (is_fixed(s, TC_KEY_TP) ? (double)c->mesh_tp : 1) *
                 (is_fixed(s, TC_KEY_DP) ? (double)c->mesh_dp : 1);
  if (given > world || fmod(world, given) > 0)
    return tc_fail(err, TC_ELAYOUT,
                   "the given values of mesh.pp, dp and tp make %.0f ranks, which do not "
                   "divide the %d nodes x %d devices = %.0f", given, s->nodes, s->k->devices,
                       world);
  if (is_fixed(s, TC_KEY_PP) && is_fixed(s, TC_KEY_DP) && is_fixed(s, TC_KEY_TP) && given < world)
    return tc_fail(err, TC_ELAYOUT, "mesh.pp x dp x tp = %.0f ranks leave some of the %d nodes x %d "
                   "devices = %.0f without one", given, s->nodes, s->k->devices, world);
  if (is_fixed(s, TC_KEY_SEQUENCE) && c->parallel_sequence && is_fixed(s, TC_KEY_TP) && c->mesh_tp == 1)
    return tc_fail(err, TC_ELAYOUT, "parallel.sequence = yes splits over tp, and mesh.tp = 1");
  if (is_fixed(s, TC_KEY_PP) && c->mesh_pp > s->g.model.layers)
    return tc_fail(err, TC_ELAYOUT, "mesh.pp = %lld stages, but the model has %lld layers",
                   (long long)c->mesh_pp, (long long)s->g.model.layers);
  if (is_fixed(s, TC_KEY_VIRTUAL_STAGES) && c->parallel_virtual_stages > 1 && is_fixed(s, TC_KEY_PP) &&
      c->mesh_pp == 1)
    return tc_fail(err, TC_ELAYOUT, "parallel.virtual_stages = %lld divides the stages of a pipeline, and "
                   "mesh.pp = 1", (long long)c->parallel_virtual_stages);
  if (is_fixed(s, TC_KEY_VIRTUAL_STAGES) && c->parallel_virtual_stages > 1 &&
      is_fixed(s, TC_KEY_SCHEDULE) && c->parallel_schedule != TC_SCHEDULE_INTERLEAVED)
    return tc_fail(err, TC_ELAYOUT, "parallel.virtual_stages = %lld: schedule %s has none; "
                   "parallel.schedule = interleaved would fit",
                   (long long)c->parallel_virtual_stages,
                   tc_word_parallel_schedule(c->parallel_schedule));
  if (is_fixed(s, TC_KEY_SCHEDULE) && c->parallel_schedule == TC_SCHEDULE_INTERLEAVED &&
      is_fixed(s, TC_KEY_VIRTUAL_STAGES) && c->parallel_virtual_stages == 1)
    return tc_fail(err, TC_ELAYOUT, "parallel.virtual_stages = 1: schedule interleaved needs at "
                   "least 2; parallel.schedule = 1f1b would fit");
  if (c->train_precision == TC_BF16 && s->k->device.flops[TC_BF16] <= 0)
    return tc_fail(err, TC_ELAYOUT, "train.precision = bf16: %s has no bf16 products; fp32 would fit",
                   s->k->device.name);
  return 0;
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
  return 0;
}

static void search_run(struct search *s, struct tc_plan_found *out, int most)
{
  *out = (struct tc_plan_found){ .least_bytes = INFINITY };
  s->out = out;
  s->n = 0;
  s->fitting = 0;
  add_meshes(s);
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
  TC_TRY(contradictions(&s, err));
  /* For any top: estimates err, so the first row depends on how many are compiled. */
  search_run(&s, out, TC_PLAN_ROWS);
  out->n_rows = TC_MIN(out->n_rows, top);
  /* What is wrong in the configuration, such as a row of annotations, is no property of the layouts. */
  int rc = !out->possible && s.wrong.status ? tc_fail(err, TC_EUSER, "%s", s.wrong.text) : 0;
  if (rc) tc_plan_found_done(out);
  else if (!out->n_rows) out->least_nodes = sufficient_nodes(&s);
  free(s.cand);
  tc_guess_done(&s.g);
  return rc;
}

void tc_plan_found_done(struct tc_plan_found *f)
{
  free(f->row);
  free(f->family);
  f->row = NULL;
  f->family = NULL;
}
