/* setup.c - the configuration checked and turned into model, mesh and program options. */
#include "src/program/setup.h"
#include "src/coll/selection.h"
#include "src/model/hf.h"
#include "src/program/predict.h"
#include "src/schedule/pipeline.h"
#include "src/passes/passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MICRO_BATCHES = 1 << 20 };           /* a pipeline's schedule has items for each */

/* Elements of the largest activation and tokens of a run have to fit 64 bits; whether there is memory
 * for so many is checked later. */
static int check_counts(const struct tc_config *c, const struct tc_model *m, struct tc_err *err)
{
  const double most = 0x1p58, tokens = (double)c->train_global_batch * (double)m->context;
  const int64_t qkv = (m->heads + 2 * m->kv_heads) * m->head_dim, up = (tc_is_gated(m) ? 2 : 1) * m->ffn;
  const double wide = (double)TC_MAX(TC_MAX(m->vocab, m->hidden), TC_MAX(qkv, up));
  if (tokens * TC_MAX(wide, (double)c->train_steps) <= most) return 0;
  const double fit = most / (double)m->context / TC_MAX(wide, (double)c->train_steps);
  return tc_fail(err, TC_EUSER, "train.global_batch = %lld sequences of model.context = %lld tokens are "
                 "too many for a model of this width and %lld steps: at most %.0f",
                 (long long)c->train_global_batch, (long long)m->context,
                 (long long)c->train_steps, floor(fit));
}

/* Takes from a config.json what the options of the model leave open. */
static int take_file(const struct tc_config *c, struct tc_model *m, struct tc_err *err)
{
  struct tc_model file;
  if (*c->model_preset)
    return tc_fail(err, TC_EUSER, "model.preset = %s and model.config = %s both describe the model: give one",
                   c->model_preset, c->model_config);
  TC_TRY(tc_hf_read(&file, c->model_config, err));
  if (m->family && m->family != file.family)
    return tc_fail(err, TC_EUSER, "model.family = %s, but %s describes a %s", tc_word_model_family(m->family),
                   c->model_config, tc_word_model_family(file.family));
  tc_model_take(m, &file);
  return 0;
}

/* An option of a number that may be none: of a field's value, and back. */
static double number_of(double value) { return value == -1 ? TC_NO : value; }
static double value_of(double number) { return number == TC_AUTO ? 0 : number == TC_NO ? -1 : number; }

static char *scaling_text(struct tc_config *c, const struct tc_rope_scaling *s)
{
  char *text = tc_rope_scaling_text(s), *kept = tc_pool_strdup(c->pool, text);
  free(text);
  return kept;
}

/* Each field (field.def) as its option. */
#define FILL_SIZE(name) if (c->model_##name == 0) c->model_##name = m->name
#define FILL_WORD(name) if (!c->model_##name) c->model_##name = m->name
#define FILL_COUNT(name) if (c->model_##name == TC_AUTO) c->model_##name = (int64_t)number_of((double)m->name)
#define FILL_REAL(name) if (c->model_##name == TC_AUTO) c->model_##name = number_of(tc_shortest(m->name))
#define FILL_PATTERN(name) if (!*c->model_##name) c->model_##name = tc_pool_strdup(c->pool, m->name)
#define FILL_SCALING(name) if (!*c->model_##name) c->model_##name = scaling_text(c, &m->name)
#define SAME_SIZE(a, b) (m->a == m->b)
#define SAME_REAL(a, b) (m->a == m->b)
#define SAME_SCALING(a, b) tc_same_scaling(&m->a, &m->b)
void tc_setup_fill_model(struct tc_config *c, const struct tc_model *m)
{
  const double given[] = { c->model_rope_theta, c->model_sliding_theta };
#define FIELD(kind, name, none) FILL_##kind(name);
#define LIKE(kind, name, other) if (!SAME_##kind(name, other)) FILL_##kind(name);
#include "src/model/field.def"
  FILL_SIZE(positions);
  if (m->rope_theta < 0) c->model_rope_theta = given[0], c->model_sliding_theta = given[1];  /* no option says: learned */
}

#define TAKE_SIZE(name) m->name = c->model_##name
#define TAKE_WORD(name) m->name = (uint8_t)c->model_##name
#define TAKE_COUNT(name) m->name = (int64_t)value_of((double)c->model_##name)
#define TAKE_REAL(name) m->name = (float)value_of(c->model_##name)
#define TAKE_SCALING(name) TC_TRY(tc_rope_scaling_parse(&m->name, c->model_##name, err))
#define TAKE_PATTERN(name) \
  if (*c->model_##name) TC_TRY(tc_pattern_check(c->model_##name, err)); \
  snprintf(m->name, sizeof m->name, "%s", c->model_##name)

int tc_setup_model(const struct tc_config *c, struct tc_model *m, struct tc_err *err)
{
  *m = (struct tc_model){ .preset = c->model_preset, .positions = c->model_positions };
#define FIELD(kind, name, none) TAKE_##kind(name);
#include "src/model/field.def"
  if (*c->model_config) TC_TRY(take_file(c, m, err));
  TC_TRY(tc_model_resolve(m, err));
  if (c->data_format == TC_FORMAT_TEXT && c->data_train.n > 0 && m->vocab < 256)
    return tc_fail(err, TC_EUSER, "model.vocab = %lld is too small for data.format = text, whose "
                   "tokens are bytes: 256 would do", (long long)m->vocab);
  return check_counts(c, m, err);
}

void tc_setup_positions(struct tc_config *c)
{
  struct tc_model file;
  struct tc_err why;
  if (!*c->model_config || c->model_positions > 0) return;
  if (tc_hf_read(&file, c->model_config, &why) == 0) c->model_positions = file.positions;
}

void tc_setup_precision(struct tc_config *c, bool gpus)
{
  if (c->train_precision == TC_DTYPE_AUTO) c->train_precision = gpus ? TC_BF16 : TC_F32;
}

/* The size that mesh.NAME gives; 0: auto. */
static int32_t size_given(const struct tc_config *c, int set)
{
  char name[32];
  snprintf(name, sizeof name, "mesh.%s", tc_set_name[set]);
  const int64_t n = tc_config_int(c, name);
  return n == TC_AUTO ? 0 : (int32_t)n;
}

double tc_setup_ranks(const struct tc_config *c)
{
  double n = 1;
  for (int s = 0; s < TC_SETS; s++)
    if (tc_set_is_factor(s)) n *= TC_MAX(size_given(c, s), 1);
  return n;
}

static int make_axes(struct tc_mesh **out, const struct tc_config *c, enum tc_order order, int world,
                     const int32_t *node_of_rank, int devices_per_node, struct tc_err *err)
{
  struct tc_mesh_want want = { .order = order, .devices_per_node = devices_per_node,
                               .tp_across_nodes = c->mesh_tp_across_nodes };
  for (int s = 0; s < TC_SETS; s++)
    if (tc_set_has_option(s)) want.size[s] = size_given(c, s);
  TC_TRY(tc_mesh_new(out, world, node_of_rank, &want, err));
  (*out)->partial_sums = c->run_sums == TC_SUMS_NODES;
  const int rc = *c->run_collectives ? tc_selection_read(&(*out)->selection, c->run_collectives, err) : 0;
  if (rc < 0) {
    tc_mesh_free(*out);
    *out = NULL;
  }
  return rc;
}

int tc_setup_axes(struct tc_mesh **out, const struct tc_config *c, int world,
                  const int32_t *node_of_rank, int devices_per_node, struct tc_err *err)
{
  const enum tc_order order = c->mesh_order == TC_ORDER_AUTO ? TC_TP_DP_PP : c->mesh_order;
  return make_axes(out, c, order, world, node_of_rank, devices_per_node, err);
}

/* Sets the number of micro-batches. */
static int split_batch(struct tc_mesh *m, const struct tc_config *c, struct tc_err *err)
{
  int64_t batch = c->train_global_batch, dp = tc_mesh_size(m, TC_ON_DP), micro = c->train_micro_batch;
  if (batch % dp)
    return tc_fail(err, TC_ELAYOUT, "train.global_batch = %lld sequences do not split over dp = "
                   "%lld ranks; %lld would", (long long)batch, (long long)dp,
                   (long long)tc_round_up(batch, dp));
  if (micro && batch / dp % micro)
    return tc_fail(err, TC_ELAYOUT, "train.micro_batch = %lld does not divide a rank's %lld "
                   "sequences (global_batch / dp); 1 would", (long long)micro,
                   (long long)(batch / dp));
  m->size[TC_MB] = micro ? (int32_t)(batch / dp / micro) : 1;
  return 0;
}

int tc_setup_traffic(int64_t bytes[TC_SETS], const struct tc_config *c, const struct tc_mesh *m,
                     struct tc_err *err)
{
  struct tc_program_opts o;
  struct tc_annotation *rows;
  int rc = tc_setup_program(&o, c, m, &rows, err);
  memset(bytes, 0, TC_SETS * sizeof *bytes);
  for (int end = 0; end < 2 && !rc; end++) {
    struct tc_program *p;
    int rank = m->at[end * (m->size[TC_PP] - 1) * m->stride[TC_PP]];
    rc = tc_program_new(&p, &o, m, rank, NULL, NULL, err);
    for (int s = 0; s < TC_SETS && !rc; s++) {
      struct tc_comm_counters n;
      int64_t sum = 0;
      if (!m->group[s].named) continue;
      tc_program_bytes(p, m, rank, m->group[s].axes, &n);
      for (int k = 0; k < TC_COLLS; k++) sum += n.data[k].bytes;
      bytes[s] = TC_MAX(bytes[s], sum);
    }
    if (!rc) tc_program_free(p);
  }
  tc_annotations_free(rows);
  return rc;
}

int tc_setup_mesh(struct tc_mesh **out, const struct tc_config *c, int world,
                  const int32_t *node_of_rank, int devices_per_node, struct tc_err *err)
{
  struct tc_mesh *m;
  TC_TRY(tc_setup_axes(&m, c, world, node_of_rank, devices_per_node, err));
  int rc = split_batch(m, c, err);
  bool choose = c->mesh_order == TC_ORDER_AUTO && m->n_nodes > 1 && m->size[TC_PP] > 1 &&
                tc_mesh_size(m, TC_ON_DP) > 1;
  int64_t bytes[TC_SETS] = { 0 }, on_batch = 0;
  if (!rc && choose) rc = tc_setup_traffic(bytes, c, m, err);
  for (int s = 0; s < TC_SETS; s++)
    if (tc_set_axes[s] & tc_axes_of(TC_ROLE_BATCH)) on_batch += bytes[s];
  if (!rc && bytes[TC_SET_PP] > on_batch) {      /* the same mesh, with pp nearer than dp */
    tc_mesh_free(m);
    TC_TRY(make_axes(&m, c, TC_TP_PP_DP, world, node_of_rank, devices_per_node, err));
    rc = split_batch(m, c, err);
  }
  if (rc < 0) tc_mesh_free(m);
  else *out = m;
  return rc;
}

char *tc_setup_heads(char *buf, size_t size, const struct tc_model *m)
{
  const char *kind = m->kv_heads < m->heads ? "key and value head" : "attention head";
  if (m->kv_heads == 1) snprintf(buf, size, "the only %s", kind);
  else snprintf(buf, size, "the %lld %ss", (long long)m->kv_heads, kind);
  return buf;
}

int64_t tc_setup_key_copies(const struct tc_model *m, int64_t cp, int64_t tp)
{
  int64_t copies = 1;                            /* the fewest with which ranks have as many */
  while (copies * m->kv_heads % (cp * tp)) copies++;
  return m->heads / m->kv_heads % copies ? 0 : copies;
}

/* In how many pieces attention is computed, each with its keys and values (op.def): as many as hide most of their gathers.
 * They divide the groups of a rank, whatever axes may split those: tp, and any on which a row of a file splits something. */
static int64_t key_pieces(const struct tc_model *m, const struct tc_mesh *mesh, const struct tc_annotation *own)
{
  enum { MOST = 4 };
  unsigned axes = TC_ON_TP;
  for (; own && own->pattern; own++)
    if (own->place[own->four ? TC_USE : 0].kind == TC_S) axes |= own->axes;
  const int64_t ranks = tc_mesh_size(mesh, axes);
  return m->kv_heads % ranks ? 1 : tc_divisor(m->kv_heads / ranks, MOST);
}

/* The built-in rows of tensor parallelism split heads; the vocabulary is padded. */
static int check_split(const struct tc_config *c, const struct tc_model *model,
                       const struct tc_mesh *m, struct tc_err *err)
{
  int64_t tp = tc_mesh_size(m, TC_ON_TP), heads = model->kv_heads;
  int64_t local = c->train_global_batch / tc_mesh_size(m, TC_ON_DP) / m->size[TC_MB];
  const int64_t tokens = local * model->context / tc_mesh_size(m, TC_ON_CP);
  if (heads % tp) {
    char fit[128] = "";
    for (int64_t t = 1, n = 0; t <= heads && n < 12; t++)
      if (heads % t == 0 && model->ffn % t == 0)
        tc_text_add(fit, sizeof fit, "%s%lld", n++ ? ", " : "", (long long)t);
    char what[64];
    return tc_fail(err, TC_ELAYOUT, "mesh.tp = %lld does not divide %s; tp = %s would fit", (long long)tp,
                   tc_setup_heads(what, sizeof what, model), fit);
  }
  if (c->parallel_sequence && tokens % tp)
    return tc_fail(err, TC_ELAYOUT, "parallel.sequence: the %lld tokens of a micro-batch do not split "
                   "over tp = %lld; parallel.sequence = no would fit", (long long)tokens, (long long)tp);
  return 0;
}

/* Virtual stages per rank. An invalid schedule is an error before anything starts. */
static int setup_virtual_stages(int *out, const struct tc_config *c, const struct tc_mesh *m,
                        struct tc_err *err)
{
  int64_t virtual_stages = c->parallel_virtual_stages;
  if (virtual_stages == TC_AUTO) virtual_stages = c->parallel_schedule == TC_SCHEDULE_INTERLEAVED ? 2 : 1;
  *out = m->size[TC_PP] > 1 ? (int)virtual_stages : 1;
  if (m->size[TC_PP] == 1) return 0;
  if (m->size[TC_MB] > MOST_MICRO_BATCHES)
    return tc_fail(err, TC_ELAYOUT, "train.micro_batch = %lld makes %d micro-batches a step; %lld or "
                   "more would fit", (long long)c->train_micro_batch, m->size[TC_MB],
                   (long long)tc_ceil_div(c->train_micro_batch * m->size[TC_MB], MOST_MICRO_BATCHES));
  struct tc_pipeline *s;
  TC_TRY(tc_pipeline_new(&s, c->parallel_schedule, m->size[TC_PP], *out,
                         m->size[TC_MB], err));
  tc_pipeline_free(s);
  return 0;
}

static bool places(const struct tc_annotation *a)
{
  for (int k = 0; k < (a->four ? TC_PLACES : 1); k++)
    if (a->place[k].kind != TC_R) return true;
  return false;
}

/* Stages are not for rows, since the pipeline's schedule goes by them; at(k) must be on the axis. */
static int check_own_rows(const struct tc_annotation *a, const struct tc_mesh *m,
                          const char *file, struct tc_err *err)
{
  char names[TC_MESH_TEXT], on[TC_AXES_TEXT];
  for (; a->pattern; a++) {
    const int size = tc_mesh_size(m, a->axes);
    tc_axes_text(on, a->axes);
    if (a->axes & TC_ON_PP && m->size[TC_PP] > 1 && places(a))
      return tc_fail(err, TC_EUSER, "%.300s:%d: a row for %s, but layers are at the stage that mesh.%s and "
                     "mesh.stages give them; rows for %s would fit", file, a->line, on, tc_axis_name[TC_PP],
                     tc_mesh_placing(names, " and "));
    for (int k = 0; k < (a->four ? TC_PLACES : 1); k++)
      if (a->place[k].kind == TC_AT && a->place[k].at >= size)
        return tc_fail(err, TC_ELAYOUT, "%.300s:%d: at(%d), but %s has %d rank%s; at(0)%s%.0d%s would "
                       "fit", file, a->line, a->place[k].at, on, size, tc_plural(size), size > 1 ? " to at(" : "",
                       size > 1 ? size - 1 : 0, size > 1 ? ")" : "");
  }
  return 0;
}

static bool names_axes(const struct tc_annotation *a, unsigned axes)
{
  for (; a && a->pattern; a++)
    if (a->axes & axes) return true;
  return false;
}

/* mesh.cp: parts of a sequence are equal, and what the options make of heads is whole. by_rows: a file places on cp. */
static int check_context(const struct tc_program_opts *o, const struct tc_config *c, const struct tc_mesh *m, bool by_rows,
                         struct tc_err *err)
{
  const struct tc_model *x = &o->model;
  const int64_t cp = tc_mesh_size(m, TC_ON_CP), tp = tc_mesh_size(m, TC_ON_TP), each = o->zigzag ? 2 : 1;
  char fit[64] = "parallel.zigzag = no";
  if (x->context % (cp * each)) {
    if (!o->zigzag || x->context % cp)
      snprintf(fit, sizeof fit, "mesh.cp = %lld", (long long)tc_divisor(x->context % each ? 1 : x->context / each, cp));
    return tc_fail(err, TC_ELAYOUT, "mesh.cp = %lld makes %lld parts of a sequence%s, which do not divide model.context = %lld; "
                   "%s would fit", (long long)cp, (long long)(cp * each), o->zigzag ? " (parallel.zigzag)" : "",
                   (long long)x->context, fit);
  }
  if (!by_rows && !tc_system_has_context(o->system))
    return tc_fail(err, TC_ELAYOUT, "mesh.cp = %lld: parallel.data = %s has no place for its ranks; ddp, zero1, zero2 or zero3 "
                   "would fit, or mesh.cp = 1", (long long)cp, o->system->name);
  if (c->parallel_context == TC_CONTEXT_KEYS || tc_setup_key_copies(x, cp, tp)) return 0;
  char each_has[100] = "";
  if (x->kv_heads < x->heads)
    snprintf(each_has, sizeof each_has, " with the %lld that they share as keys and values", (long long)x->kv_heads);
  return tc_fail(err, TC_ELAYOUT, "parallel.context = heads: the %lld heads%s do not go evenly to mesh.cp x tp = %lld ranks; "
                 "parallel.context = keys would fit", (long long)x->heads, each_has, (long long)(cp * tp));
}

/* Copies of shards are for systems that split states, or for rows that say what the copies have. */
static int check_copies(const struct tc_program_opts *o, const struct tc_mesh *m, const struct tc_annotation *own,
                        struct tc_err *err)
{
  if (m->size[TC_EP] > 1)
    return tc_fail(err, TC_ELAYOUT, "mesh.ep = %d, but the model has no experts; mesh.ep = 1 would fit", m->size[TC_EP]);
  if (m->size[TC_REPLICATE] == 1 || tc_system_has_copies(o->system) || names_axes(own, TC_ON_DP)) return 0;
  return tc_fail(err, TC_ELAYOUT, "mesh.shard = %d of mesh.dp = %d: parallel.data = %s splits no states over shard; zero1, "
                 "zero2 or zero3 would fit, or mesh.shard = auto", tc_mesh_size(m, TC_ON_SHARD),
                 tc_mesh_size(m, TC_ON_DP), o->system->name);
}

/* Rows are applied in this order, later ones in place of earlier ones. A file that places tensors on
 * tp says all about tensor parallelism (with parallel.data = none any file does), unless
 * parallel.sequence asks for the built-in rows. */
static int setup_rows(struct tc_program_opts *o, const struct tc_config *c,
                      const struct tc_mesh *m, struct tc_annotation **own, struct tc_err *err)
{
  int n = 0;
  const char *file = c->parallel_annotations;
  *own = NULL;
  if (*file) {
    TC_TRY(tc_annotations_read(own, file, err));
    TC_TRY(check_own_rows(*own, m, file, err));
  }
  TC_TRY(check_copies(o, m, *own, err));
  const bool all_own = *own && (names_axes(*own, TC_ON_TP) || c->parallel_data == TC_DATA_NONE);
  if (tc_mesh_size(m, TC_ON_TP) > 1 && (c->parallel_sequence || !all_own)) {
    TC_TRY(check_split(c, &o->model, m, err));
    o->annotation[n++] = tc_rows_tensor;
    if (c->parallel_sequence) o->annotation[n++] = tc_rows_sequence;
  }
  if (tc_mesh_size(m, TC_ON_CP) > 1) {
    TC_TRY(check_context(o, c, m, names_axes(*own, TC_ON_CP), err));
    if (o->gpt.keys) o->gpt.key_pieces = key_pieces(&o->model, m, *own);
    if (tc_system_has_context(o->system))
      o->annotation[n++] = c->parallel_context == TC_CONTEXT_HEADS ? tc_rows_heads : tc_rows_keys;
  }
  if (*own) o->annotation[n++] = *own;
  return 0;
}

int tc_setup_program(struct tc_program_opts *o, const struct tc_config *c,
                     const struct tc_mesh *m, struct tc_annotation **own, struct tc_err *err)
{
  *own = NULL;
  *o = (struct tc_program_opts){
    .kind = TC_TRAIN, .system = &tc_systems[c->parallel_data],
    .update = tc_update_of(c->train_optimizer, c->train_momentum), .param_rows = c->train_rows, .momentum = c->train_momentum,
    .overlap = c->parallel_overlap,
    .reshard_after = c->parallel_keep, .reduce_once = c->parallel_reduce == TC_REDUCE_STEP,
    .offload = c->parallel_offload, .recompute = c->train_recompute, .prefetch = (int)c->parallel_prefetch,
    .regather = c->parallel_regather, .schedule = c->parallel_schedule, .stages = c->mesh_stages,
    .tasks = c->train_eval_tasks.n > 0, .zigzag = c->parallel_zigzag, .share_init = c->run_init == TC_INIT_BROADCAST,
    .head_chunk = c->parallel_head_chunk == TC_AUTO ? 0 : c->parallel_head_chunk };
  TC_TRY(tc_setup_model(c, &o->model, err));
  const enum tc_dtype precision = c->train_precision == TC_BF16 ? TC_BF16 : TC_F32;
  o->update_type = c->train_muon_type == TC_DTYPE_AUTO ? precision : c->train_muon_type;
  const bool muon = tc_update_row[o->update].matrices || strstr(c->train_rows, "optimizer=muon");
  if (o->model.mup > 0 && muon && c->train_muon_scale != TC_MUON_MATCH_RMS_ADAMW)
    return tc_fail(err, TC_EUSER, "model.mup divides rates of Muon by the root of the width's ratio, which is right for "
                   "train.muon_scale = match_rms_adamw: give that, or model.mup = no");
  const int64_t cp = tc_mesh_size(m, TC_ON_CP), tp = tc_mesh_size(m, TC_ON_TP);
  const bool keys = c->parallel_context == TC_CONTEXT_KEYS;
  o->gpt = (struct tc_build_opts){
    .batch = c->train_global_batch, .dtype = precision,
    .grad_dtype = c->train_grad_type, .state_dtype = c->train_state_type,
    .dropout = (float)c->train_dropout, .z_loss = (float)c->model_z_loss, .tp = (int)tp,
    .keys = cp > 1 && keys, .key_copies = cp == 1 || keys ? 1 : tc_setup_key_copies(&o->model, cp, tp),
    .nest = c->parallel_unit == TC_UNIT_BLOCK, .documents = c->data_documents != TC_DOCUMENTS_JOIN };
  TC_TRY(tc_setup_lora(&o->gpt.lora, c, &o->model, err));
  TC_TRY(setup_virtual_stages(&o->virtual_stages, c, m, err));
  return setup_rows(o, c, m, own, err);
}

/* ---- evaluation and sampling ------------------------------------------------------------------- */

/* A batch is one micro-batch. *dp: the ranks of that axis. */
static int find_dp(int *dp, struct tc_config *c, int world, const int32_t *node_of_rank, int devices_per_node,
                   struct tc_err *err)
{
  struct tc_mesh *m;
  c->train_micro_batch = 0;
  TC_TRY(tc_setup_axes(&m, c, world, node_of_rank, devices_per_node, err));
  *dp = tc_mesh_size(m, TC_ON_DP);
  tc_mesh_free(m);
  return 0;
}

int64_t tc_setup_prompt_at_once(int64_t longest, int64_t n)
{
  enum { MOST = 256, LEAST = 64, TOGETHER = 1024 };      /* tokens of a sequence; of all sequences */
  const int64_t most = TC_MAX(TC_MIN((int64_t)MOST, TOGETHER / n), (int64_t)LEAST);
  return tc_ceil_div(longest, tc_ceil_div(longest, most));
}

int tc_setup_evaluation(struct tc_config *c, int64_t each, int world, const int32_t *node_of_rank,
                        int devices_per_node, struct tc_err *err)
{
  enum { TOKENS_AT_ONCE = 2048 };
  int dp;
  TC_TRY(find_dp(&dp, c, world, node_of_rank, devices_per_node, err));
  c->train_global_batch = (each ? each : TC_MAX(TOKENS_AT_ONCE / c->model_context, 1)) * dp;
  return 0;
}

int tc_setup_sampling(struct tc_config *c, int64_t sequences, int world, const int32_t *node_of_rank,
                      int devices_per_node, struct tc_err *err)
{
  int dp;
  if (c->mesh_cp > 1)
    return tc_fail(err, TC_ELAYOUT, "sampling makes one token of a text at a time, of which mesh.cp = %lld ranks can't have parts; "
                   "mesh.cp = 1 would fit", (long long)c->mesh_cp);
  if (world > 1 && c->mesh_tp == 1 && c->mesh_pp == 1) {
    const int64_t heads = c->model_kv_heads ? c->model_kv_heads : c->model_heads;
    int nodes = 1;
    for (int r = 0; r < world; r++) nodes = TC_MAX(nodes, node_of_rank[r] + 1);
    int tp = world / nodes;
    while (world % tp || heads % tp) tp--;
    c->mesh_tp = tp;
    c->mesh_pp = world / tp;
  }
  c->train_global_batch = sequences;
  TC_TRY(find_dp(&dp, c, world, node_of_rank, devices_per_node, err));
  if (dp == 1) return 0;
  return tc_fail(err, TC_ELAYOUT, "sampling on %d ranks with mesh.tp = %lld and mesh.pp = %lld leaves dp = %d, whose "
                 "ranks would all do the same; mesh.tp and mesh.pp have to take all ranks", world,
                 (long long)c->mesh_tp, (long long)c->mesh_pp, dp);
}
