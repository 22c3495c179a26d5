/* space.c - what is searched: the keys, each with the values that are tried given those of the keys before it, and the
 * rules that refuse a value, each with its sentence. */
#include "src/plan/search.h"

#include <math.h>
#include <stdarg.h>

static int world_of(const struct search *s) { return s->nodes * s->k->devices; }

/* A rank's sequences. */
static int64_t local_of(const struct search *s, const struct tc_cand *x)
{
  return s->c->train_global_batch / x->dp;
}

/* Whether a rank has virtual stages. */
static bool has_virtual(const struct tc_cand *x)
{
  return x->schedule == TC_SCHEDULE_INTERLEAVED && x->pp > 1;
}

/* ---- keys: sets a value of *x, and says whether it is tried ------------------------ */

enum tried { TRY, SKIP, END };

static enum tried take_tp(const struct search *s, struct tc_cand *x, int64_t v)
{
  const int devices = s->k->devices;
  x->tp = (int32_t)v;
  if (v > TC_MIN(world_of(s), 64)) return END;
  return tc_is_fixed(s, TC_KEY_TP) || !(v & (v - 1)) || devices % v == 0 ? TRY : SKIP;
}

/* Parts of a sequence that cp ranks make of it. */
static int64_t parts_of(const struct search *s, int64_t cp) { return cp > 1 && s->c->parallel_zigzag ? 2 * cp : cp; }

/* Whether a system has a place for the ranks of mesh.cp; a file of annotations may give them one. */
static bool places_context(const struct search *s, enum tc_data_parallel data)
{
  return *s->c->parallel_annotations || tc_system_has_context(&tc_systems[data]);
}

static enum tried take_cp(const struct search *s, struct tc_cand *x, int64_t v)
{
  const int64_t T = s->g.model.context;
  x->cp = (int32_t)v;
  if (tc_is_fixed(s, TC_KEY_CP) || v == 1) return TRY;
  if (v > world_of(s) / x->tp || T / v < TC_CONTEXT_PART) return END;
  if (tc_is_fixed(s, TC_KEY_DATA) && !places_context(s, s->c->parallel_data)) return END;
  return !(v & (v - 1)) && T % parts_of(s, v) == 0 && world_of(s) % (v * x->tp) == 0 ? TRY : SKIP;
}

static enum tried take_pp(const struct search *s, struct tc_cand *x, int64_t v)
{
  const int world = world_of(s), within = x->cp * x->tp;
  x->pp = (int32_t)v;
  if (v > TC_MIN(world / within, s->g.model.layers)) return END;
  if (!tc_is_fixed(s, TC_KEY_PP) && world / within % v) return SKIP;
  return world % (v * within) ? SKIP : TRY;
}

/* dp is what is left of the ranks. */
static enum tried take_dp(const struct search *s, struct tc_cand *x, int64_t v)
{
  *x = (struct tc_cand){ .pp = x->pp, .dp = world_of(s) / x->tp / x->cp / x->pp, .cp = x->cp, .tp = x->tp };
  if (tc_is_fixed(s, TC_KEY_DP)) return v == x->dp ? TRY : SKIP;
  return v > 0 ? END : TRY;
}

static enum tried take_micro(const struct search *s, struct tc_cand *x, int64_t v)
{
  const int64_t local = local_of(s, x), micro = v ? v : local;
  const bool fixed = tc_is_fixed(s, TC_KEY_MICRO);
  if (!fixed && micro > TC_MIN(local, 64)) return END;
  x->micro = (int32_t)micro;
  x->n_mb = (int32_t)(local / micro);
  return fixed || local % micro == 0 ? TRY : SKIP;
}

static enum tried take_data(const struct search *s, struct tc_cand *x, int64_t v)
{
  x->data = (enum tc_data_parallel)v;
  return tc_is_fixed(s, TC_KEY_DATA) || v <= (x->dp * x->cp > 1 ? TC_DATA_ZERO3 : TC_DATA_DDP) ? TRY : END;
}

/* 1 asks for all of dp. Groups that share a step's states are whole nodes, of a power of two of ranks. */
static enum tried take_shard(const struct search *s, struct tc_cand *x, int64_t v)
{
  const int32_t near = s->k->devices / x->tp / x->cp;
  x->shard = v == 1 && !tc_is_fixed(s, TC_KEY_SHARD) ? TC_AUTO : (int32_t)v;
  if (tc_is_fixed(s, TC_KEY_SHARD) || v == 1) return TRY;
  if (v >= x->dp || !tc_system_has_copies(&tc_systems[x->data])) return END;
  return !(v & (v - 1)) && x->dp % v == 0 && v >= near ? TRY : SKIP;
}

/* Gradients that are reduced for each micro-batch, or once a step, which zero1 does where weights are not split. */
static enum tried take_reduce(const struct search *s, struct tc_cand *x, int64_t v)
{
  x->reduce = (enum tc_reduce_when)v;
  if (tc_is_fixed(s, TC_KEY_REDUCE) || v == TC_REDUCE_AUTO) return TRY;
  return v > TC_REDUCE_STEP || x->n_mb == 1 || tc_systems[x->data].rows->place[TC_STORE].kind != TC_FLAT ? END
         : v == TC_REDUCE_STEP ? TRY : SKIP;
}

/* Without a pipeline all are the same. A given number of virtual stages is fixed for every row: only interleaved has
 * more than 1, and it has at least 2. */
static enum tried take_schedule(const struct search *s, struct tc_cand *x, int64_t v)
{
  const int64_t stages = tc_is_fixed(s, TC_KEY_VIRTUAL_STAGES) ? s->c->parallel_virtual_stages : 0;
  if (v > TC_SCHEDULE_ZB) return END;
  x->schedule = (enum tc_schedule)v;
  if (!tc_is_fixed(s, TC_KEY_SCHEDULE) &&
      (v == TC_SCHEDULE_NAIVE || (x->pp == 1 && v != TC_SCHEDULE_1F1B))) return SKIP;
  return (stages > 1 && !has_virtual(x)) || (stages == 1 && has_virtual(x)) ? SKIP : TRY;
}

static enum tried take_virtual_stages(const struct search *s, struct tc_cand *x, int64_t v)
{
  const int64_t layers = s->g.model.layers;
  const bool fixed = tc_is_fixed(s, TC_KEY_VIRTUAL_STAGES), many = has_virtual(x);
  x->virtual_stages = many ? (int32_t)TC_MIN(v, layers + 1) : 1;
  if (fixed) return TRY;
  if (v > (many ? TC_MIN(8, layers / x->pp) : 1)) return END;
  return many && v == 1 ? SKIP : TRY;
}

static enum tried take_sequence(const struct search *s, struct tc_cand *x, int64_t v)
{
  (void)s;
  x->sequence = v;
  return v > 1 ? END : v && x->tp == 1 ? SKIP : TRY;       /* it splits over tp */
}

static enum tried take_regather(const struct search *s, struct tc_cand *x, int64_t v)
{
  (void)s;
  x->regather = v;
  return v > 1 ? END : v && !x->sequence ? SKIP : TRY;     /* it is of what sequence parallelism gathers */
}

static enum tried take_recompute(const struct search *s, struct tc_cand *x, int64_t v)
{
  (void)s;
  x->recompute = (enum tc_recompute)v;
  return v > TC_RECOMPUTE_FULL ? END : TRY;
}

/* Offload is tried only where the layout would not fit otherwise: then x has the bytes without it. */
static enum tried take_offload(const struct search *s, struct tc_cand *x, int64_t v)
{
  x->offload = (enum tc_offload)v;
  if (tc_is_fixed(s, TC_KEY_OFFLOAD) || v == TC_OFFLOAD_NO) return TRY;
  if (v > TC_OFFLOAD_PARAMS) return END;
  return v == TC_OFFLOAD_PARAMS && x->bytes > s->k->device.memory_bytes ? TRY : SKIP;
}

/* The keys, in the order in which they are chosen. */
static const struct {
  enum tc_plan_key key;
  int64_t first;                 /* the value that is asked first, unless the option is fixed */
  enum tried (*take)(const struct search *s, struct tc_cand *x, int64_t v);
} keys[] = {
  { TC_KEY_TP, 1, take_tp },
  { TC_KEY_CP, 1, take_cp },
  { TC_KEY_PP, 1, take_pp },
  { TC_KEY_DP, 0, take_dp },
  { TC_KEY_MICRO, 1, take_micro },
  { TC_KEY_DATA, TC_DATA_DDP, take_data },
  { TC_KEY_SHARD, 1, take_shard },
  { TC_KEY_REDUCE, TC_REDUCE_AUTO, take_reduce },
  { TC_KEY_SCHEDULE, TC_SCHEDULE_NAIVE, take_schedule },
  { TC_KEY_VIRTUAL_STAGES, 1, take_virtual_stages },
  { TC_KEY_SEQUENCE, false, take_sequence },
  { TC_KEY_REGATHER, false, take_regather },
  { TC_KEY_RECOMPUTE, TC_RECOMPUTE_NONE, take_recompute },
  { TC_KEY_OFFLOAD, TC_OFFLOAD_NO, take_offload },
};

/* ---- rules: whether one refuses a layout, and why ---------------------------------- */

enum { WHY = 250 };

/* Always true. */
__attribute__((format(printf, 2, 3))) static bool say(char *why, const char *fmt, ...)
{
  va_list a;
  va_start(a, fmt);
  vsnprintf(why, WHY, fmt, a);
  va_end(a);
  return true;
}

static bool leaves_node(const struct search *s, const struct tc_cand *x, char *why)
{
  const int n = s->k->devices;
  return n % x->tp && !s->c->mesh_tp_across_nodes &&
         say(why, "leaves its node of %d device%s", n, tc_plural(n));
}

static bool cuts_heads(const struct search *s, const struct tc_cand *x, char *why)
{
  char heads[64];
  const struct tc_model *m = &s->g.model;
  return m->kv_heads % x->tp && say(why, "does not divide %s", tc_setup_heads(heads, sizeof heads, m));
}

static bool cuts_sequences(const struct search *s, const struct tc_cand *x, char *why)
{
  const int64_t T = s->g.model.context, parts = parts_of(s, x->cp);
  return T % parts && say(why, "makes %lld parts of a sequence, which do not divide model.context = %lld",
                          (long long)parts, (long long)T);
}

static bool cuts_key_heads(const struct search *s, const struct tc_cand *x, char *why)
{
  const struct tc_model *m = &s->g.model;
  return x->cp > 1 && s->c->parallel_context == TC_CONTEXT_HEADS && !tc_setup_key_copies(m, x->cp, x->tp) &&
         say(why, "x mesh.tp = %d does not split the %lld heads evenly (parallel.context = heads)", x->tp,
             (long long)m->heads);
}

static bool cuts_batch(const struct search *s, const struct tc_cand *x, char *why)
{
  const int64_t batch = s->c->train_global_batch;
  return batch % x->dp && say(why, "does not divide train.global_batch = %lld", (long long)batch);
}

static bool cuts_copies(const struct search *s, const struct tc_cand *x, char *why)
{
  (void)s;
  return x->shard > 0 && x->dp % x->shard && say(why, "does not divide mesh.dp = %d", x->dp);
}

static bool has_no_place(const struct search *s, const struct tc_cand *x, char *why)
{
  if (*s->c->parallel_annotations) return false;           /* which may give them one */
  return x->cp > 1 && !places_context(s, x->data) && say(why, "has no place for the ranks of mesh.cp = %d", x->cp);
}

static bool has_no_copies(const struct search *s, const struct tc_cand *x, char *why)
{
  return !*s->c->parallel_annotations && x->shard > 0 && x->shard < x->dp && !tc_system_has_copies(&tc_systems[x->data]) &&
         say(why, "splits states, which %s does not", tc_word_parallel_data(x->data));
}

static bool cuts_local(const struct search *s, const struct tc_cand *x, char *why)
{
  return local_of(s, x) % x->micro &&
         say(why, "does not divide a rank's %lld sequences", (long long)local_of(s, x));
}

static bool cuts_rounds(const struct search *s, const struct tc_cand *x, char *why)
{
  (void)s;
  return has_virtual(x) && x->n_mb % x->pp &&
         say(why, "needs a multiple of the stages as micro-batches: %d on %d stages do not fit", x->n_mb, x->pp);
}

static bool exceeds_layers(const struct search *s, const struct tc_cand *x, char *why)
{
  return has_virtual(x) && (int64_t)x->pp * x->virtual_stages > s->g.model.layers &&
         say(why, "of %d stages exceed the model's layers, %lld", x->pp, (long long)s->g.model.layers);
}

/* The micro-batch of a stage: the candidate's, but where a section up to it gives one. */
static int64_t micro_of(const struct search *s, const struct tc_cand *x, int k)
{
  for (int i = 1; i <= k; i++)
    if (tc_stage_has(s->c, i + 1, "train.micro_batch")) return s->stages[k].c.train_micro_batch;
  return x->micro;
}

static bool cuts_stage(const struct search *s, const struct tc_cand *x, char *why)
{
  for (int k = 1; k <= s->c->n_stages; k++) {
    const int64_t batch = s->stages[k].c.train_global_batch, micro = micro_of(s, x, k);
    const int64_t context = s->stages[k].context;
    if (batch % x->dp) return say(why, "x mesh.dp = %d does not split stage %d's train.global_batch = %lld", x->dp, k + 1,
                                  (long long)batch);
    if (micro > 0 && batch / x->dp % micro)
      return say(why, "does not divide a rank's %lld sequences of stage %d", (long long)(batch / x->dp), k + 1);
    if (context % parts_of(s, x->cp))
      return say(why, "x mesh.cp = %d does not split stage %d's model.context = %lld", x->cp, k + 1, (long long)context);
  }
  return false;
}

static const struct {
  enum tc_plan_key key;          /* whose value is refused */
  bool (*refuses)(const struct search *s, const struct tc_cand *x, char *why);
} rules[] = {
  { TC_KEY_TP, leaves_node },
  { TC_KEY_TP, cuts_heads },
  { TC_KEY_CP, cuts_sequences },
  { TC_KEY_CP, cuts_key_heads },
  { TC_KEY_DP, cuts_batch },
  { TC_KEY_DATA, has_no_place },
  { TC_KEY_SHARD, cuts_copies },
  { TC_KEY_SHARD, has_no_copies },
  { TC_KEY_MICRO, cuts_local },
  { TC_KEY_MICRO, cuts_stage },
  { TC_KEY_SCHEDULE, cuts_rounds },
  { TC_KEY_VIRTUAL_STAGES, exceeds_layers },
};

static bool is_refused(struct search *s, const struct tc_cand *x, enum tc_plan_key key)
{
  char why[WHY];
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    if (rules[i].key != key || !rules[i].refuses(s, x, why)) continue;
    tc_search_refuse(s, x, key, why);
    return true;
  }
  return false;
}

/* ---- all combinations -------------------------------------------------------------- */

static void choose(struct search *s, struct tc_cand *x, size_t i)
{
  if (i == sizeof keys / sizeof *keys) {
    tc_search_add(s, x);
    return;
  }
  const bool fixed = tc_is_fixed(s, keys[i].key);
  int64_t v = fixed ? tc_plan_key_value(s->c, keys[i].key) : keys[i].first;
  for (enum tried t; (t = keys[i].take(s, x, v)) != END; v++) {
    if (t == TRY && !is_refused(s, x, keys[i].key)) choose(s, x, i + 1);
    if (fixed) break;
  }
}

void tc_search_all(struct search *s)
{
  struct tc_cand x = { .pp = 1 };
  choose(s, &x, 0);
}

/* ---- contradictions: whether no layout can be, and why ----------------------------- */

/* Whether an option is fixed to this value. */
static bool is_given(const struct search *s, enum tc_plan_key key, int64_t v)
{
  return tc_is_fixed(s, key) && tc_plan_key_value(s->c, key) == v;
}

int tc_search_contradicts(const struct search *s, struct tc_err *err)
{
  const struct tc_config *c = s->c;
  const bool pp = tc_is_fixed(s, TC_KEY_PP), dp = tc_is_fixed(s, TC_KEY_DP), tp = tc_is_fixed(s, TC_KEY_TP);
  const double world = (double)s->nodes * s->k->devices;
  const double cp = tc_is_fixed(s, TC_KEY_CP) ? (double)c->mesh_cp : 1;
  const double ranks = (pp ? (double)c->mesh_pp : 1) * (tp ? (double)c->mesh_tp : 1) * (dp ? (double)c->mesh_dp : 1) * cp;
  const long long stages = tc_is_fixed(s, TC_KEY_VIRTUAL_STAGES) ? c->parallel_virtual_stages : 0;
  if (ranks > world || fmod(world, ranks) > 0)
    return tc_fail(err, TC_ELAYOUT, "the given values of mesh.pp, dp, cp and tp make %.0f ranks, which do not divide the "
                   "%d nodes x %d devices = %.0f", ranks, s->nodes, s->k->devices, world);
  if (pp && dp && tp && ranks < world && (tc_is_fixed(s, TC_KEY_CP) || !tc_splits_context(s)))
    return tc_fail(err, TC_ELAYOUT, "mesh.pp x dp x cp x tp = %.0f ranks leave some of the %d nodes x %d devices = %.0f "
                   "without one", ranks, s->nodes, s->k->devices, world);
  if (is_given(s, TC_KEY_SEQUENCE, true) && is_given(s, TC_KEY_TP, 1))
    return tc_fail(err, TC_ELAYOUT, "parallel.sequence = yes splits over tp, and mesh.tp = 1");
  if (pp && c->mesh_pp > s->g.model.layers)
    return tc_fail(err, TC_ELAYOUT, "mesh.pp = %lld stages, but the model has %lld layers", (long long)c->mesh_pp,
                   (long long)s->g.model.layers);
  if (stages > 1 && is_given(s, TC_KEY_PP, 1))
    return tc_fail(err, TC_ELAYOUT, "parallel.virtual_stages = %lld divides the stages of a pipeline, and mesh.pp = 1",
                   stages);
  if (stages > 1 && tc_is_fixed(s, TC_KEY_SCHEDULE) && c->parallel_schedule != TC_SCHEDULE_INTERLEAVED)
    return tc_fail(err, TC_ELAYOUT, "parallel.virtual_stages = %lld: schedule %s has none; parallel.schedule = "
                   "interleaved would fit", stages, tc_word_parallel_schedule(c->parallel_schedule));
  if (stages == 1 && is_given(s, TC_KEY_SCHEDULE, TC_SCHEDULE_INTERLEAVED))
    return tc_fail(err, TC_ELAYOUT, "parallel.virtual_stages = 1: schedule interleaved needs at least 2; "
                   "parallel.schedule = 1f1b would fit");
  if (c->train_precision == TC_BF16 && s->k->device.flops[TC_BF16] <= 0)
    return tc_fail(err, TC_ELAYOUT, "train.precision = bf16: %s has no bf16 products; fp32 would fit",
                   s->k->device.name);
  return 0;
}
