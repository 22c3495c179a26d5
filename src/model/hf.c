/* hf.c - config.json of transformers' classes: which class it is, sizes, parts of layers. */
#include "src/model/hf_impl.h"
#include "src/files/files.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 20 };     /* of a config.json */

const struct tc_hf_class tc_hf_classes[] = {
#define CLASS(name, type, family_, ...) { name, type, TC_FAMILY_##family_, __VA_ARGS__ },
#include "src/model/hf.def"
};

#define SIZE(key, field, most) { key, offsetof(struct tc_model, field), most, false }
#define SIZE_OR_NULL(key, field, most) { key, offsetof(struct tc_model, field), most, true }
const struct tc_hf_size tc_hf_gpt2_sizes[] = {
  SIZE("n_layer", layers, TC_MOST_LAYERS), SIZE("n_embd", hidden, TC_MOST_HIDDEN),
  SIZE("n_positions", context, TC_MOST_CONTEXT), SIZE("vocab_size", vocab, TC_MOST_VOCAB) };
const struct tc_hf_size tc_hf_rotary_sizes[] = {
  SIZE("num_hidden_layers", layers, TC_MOST_LAYERS), SIZE("hidden_size", hidden, TC_MOST_HIDDEN),
  SIZE("num_attention_heads", heads, TC_MOST_HEADS), SIZE("intermediate_size", ffn, TC_MOST_FFN),
  SIZE("vocab_size", vocab, TC_MOST_VOCAB), SIZE_OR_NULL("num_key_value_heads", kv_heads, TC_MOST_HEADS),
  SIZE_OR_NULL("head_dim", head_dim, TC_MOST_HEAD_DIM), SIZE("max_position_embeddings", positions, TC_MOST_CONTEXT) };

const struct tc_hf_act tc_hf_acts[] = {
  { "silu", TC_ACT_SWIGLU, 0 }, { "swish", TC_ACT_SWIGLU, 0 }, { "gelu_new", 0, TC_ACT_GELU },
  { "gelu_pytorch_tanh", TC_ACT_GEGLU, TC_ACT_GELU }, { "gelu_new", TC_ACT_GEGLU, 0 }, { "gelu", 0, TC_ACT_GELU_EXACT },
  { "relu2", 0, TC_ACT_RELU2 }, { NULL, 0, 0 } };

/* ---- members ------------------------------------------------------------------------- */

static int read_sizes(const struct tc_hf_file *f, struct tc_model *m, const struct tc_hf_size *size, int n)
{
  for (int i = 0; i < n; i++) {
    const json_t *j = json_object_get(f->o, size[i].key);
    const int64_t value = (int64_t)json_integer_value(j);
    if (j && !(json_is_null(j) && size[i].may_be_null) && (value < 1 || value > size[i].most))
      return tc_fail(f->err, TC_EUSER, "%s: \"%s\" has to be a whole number from 1 to %lld", f->path,
                     size[i].key, (long long)size[i].most);
    *tc_hf_size_of(m, &size[i]) = value;
  }
  return 0;
}

/* A member that is true or false. */
static int read_bool(const struct tc_hf_file *f, const char *key, bool otherwise, bool *out)
{
  const json_t *j = json_object_get(f->o, key);
  *out = j ? json_is_true(j) : otherwise;
  if (!j || json_is_boolean(j)) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"%s\" has to be true or false", f->path, key);
}

/* The MLP's activation by its name in the file. */
static int read_act(const struct tc_hf_file *f, const char *key, bool gated, const char *otherwise, uint8_t *act)
{
  const json_t *j = json_object_get(f->o, key);
  const char *name = j ? json_string_value(j) : otherwise;
  for (const struct tc_hf_act *a = tc_hf_acts; name && a->name; a++)
    if (strcmp(a->name, name) == 0 && (gated ? a->gated : a->plain)) {
      *act = gated ? a->gated : a->plain;
      return 0;
    }
  return tc_hf_refuse(f, key, j, gated ? "\"silu\" or \"gelu_pytorch_tanh\"" : "\"gelu_new\", \"gelu\" or \"relu2\"");
}

/* ---- GPT-2 --------------------------------------------------------------------------- */

static bool other_bool(const json_t *c, const char *key, bool ours)
{
  const json_t *j = json_object_get(c, key);
  return j && !(json_is_boolean(j) && json_is_true(j) == ours);
}

static int read_gpt2(const struct tc_hf_file *f, struct tc_model *m)
{
  const json_t *c = f->o, *inner = tc_hf_member(c, "n_inner");
  const char *other = NULL;
  TC_TRY(read_sizes(f, m, tc_hf_gpt2_sizes, TC_HF_GPT2_SIZES));
  TC_TRY(tc_hf_real(f, c, "layer_norm_epsilon", 1e-5, 1e-30, 1, &m->norm_eps));
  TC_TRY(read_act(f, "activation_function", false, "gelu_new", &m->act));
  if (inner && (int64_t)json_integer_value(inner) != 4 * m->hidden) other = "n_inner";
  else if (other_bool(c, "tie_word_embeddings", true)) other = "tie_word_embeddings";
  else if (other_bool(c, "scale_attn_weights", true)) other = "scale_attn_weights";
  else if (other_bool(c, "scale_attn_by_inverse_layer_idx", false))
    other = "scale_attn_by_inverse_layer_idx";
  else if (other_bool(c, "add_cross_attention", false)) other = "add_cross_attention";
  if (other)
    return tc_fail(f->err, TC_EUSER, "%s: \"%s\" differs from this program's model: GPT-2 as "
                   "OpenAI made it (an MLP of 4 x n_embd, head tied to the embedding)", f->path, other);
  m->heads = (int64_t)json_integer_value(json_object_get(c, "n_head"));
  if (m->heads >= 1 && m->heads <= TC_MOST_HEADS) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"n_head\" is missing or invalid", f->path);
}

/* ---- models with rotary positions ------------------------------------------------------ */

static bool is_bool(const json_t *j) { return json_is_boolean(j); }
static bool is_number(const json_t *j) { return json_is_number(j); }
static bool is_real(const json_t *j) { return json_is_real(j); }
static bool is_cap(const json_t *j) { return json_is_real(j) || json_is_null(j); }
static bool is_id(const json_t *j) { return json_is_integer(j) || json_is_null(j); }
static bool is_ids(const json_t *j) { return is_id(j) || json_is_array(j); }
static bool is_type(const json_t *j)
{
  static const char *const known[] = { "float32", "float16", "bfloat16", "float64" };
  const char *name = json_string_value(j);
  for (size_t i = 0; name && i < sizeof known / sizeof *known; i++)
    if (strcmp(name, known[i]) == 0) return true;
  return json_is_null(j);
}

/* Types that the classes demand, of members that say nothing of the model, too. Null is demanded, or not, elsewhere. */
static const struct { const char *key; bool (*is)(const json_t *); const char *what; } types[] = {
  { "use_cache", is_bool, "true or false" }, { "torch_dtype", is_type, "float32 or bfloat16" },
  { "dtype", is_type, "float32 or bfloat16" }, { "initializer_range", is_number, "a number" },
  { "attention_dropout", is_number, "a number" }, { "bos_token_id", is_id, "a number, or null" },
  { "pad_token_id", is_id, "a number, or null" }, { "eos_token_id", is_ids, "a number, a list of them, or null" },
  { "rms_norm_eps", is_real, "a number with a point" }, { "attn_logit_softcapping", is_cap, "a number with a point, or null" },
  { "final_logit_softcapping", is_cap, "a number with a point, or null" } };

static int check_types(const struct tc_hf_file *f)
{
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    const json_t *j = json_object_get(f->o, types[i].key);
    if (j && !types[i].is(j)) return tc_hf_refuse(f, types[i].key, j, types[i].what);
  }
  return 0;
}

/* ---- windows, and layers without positions ---- */

/* The window. Without the member it is the class's; null: no layer has a window. */
static int read_window(const struct tc_hf_file *f, const struct tc_hf_class *k, bool on, int64_t *window)
{
  const json_t *j = json_object_get(f->o, "sliding_window");
  *window = !on ? 0 : j ? (int64_t)json_integer_value(j) : k->window;
  if (!j || json_is_null(j) || (json_is_integer(j) && json_integer_value(j) >= 1 && json_integer_value(j) <= TC_MOST_CONTEXT))
    return 0;
  return tc_hf_refuse(f, "sliding_window", j, "null or a number of tokens");
}

/* kind[layers]: 1 where layer_types says sliding. *given: it is there. */
static int read_types(const struct tc_hf_file *f, int64_t layers, char *kind, bool *given)
{
  const json_t *types = tc_hf_member(f->o, "layer_types");
  *given = types != NULL;
  if (!types) return 0;
  if (!json_is_array(types) || (int64_t)json_array_size(types) != layers)
    return tc_fail(f->err, TC_EUSER, "%s: \"layer_types\" has to be a list of one word for each of the %lld layers", f->path,
                   (long long)layers);
  for (int64_t i = 0; i < layers; i++) {
    const json_t *type = json_array_get(types, (size_t)i);
    const bool full = tc_hf_is(type, "\"full_attention\"");
    if (!full && !tc_hf_is(type, "\"sliding_attention\""))
      return tc_hf_refuse(f, "layer_types", type, "\"full_attention\" or \"sliding_attention\" for each layer");
    kind[i] = !full;
  }
  return 0;
}

/* bare[layers]: layers without positions, of a class that has such. */
static int read_bare(const struct tc_hf_file *f, const struct tc_hf_class *k, int64_t layers, char *bare)
{
  const json_t *list = k->bare ? tc_hf_member(f->o, "no_rope_layers") : NULL;
  const json_t *every = json_object_get(f->o, "no_rope_layer_interval");
  const int64_t interval = every ? (int64_t)json_integer_value(every) : 4;
  if (!k->bare) return 0;
  if (interval < 1) return tc_hf_refuse(f, "no_rope_layer_interval", every, "a number above 0");
  if (list && (!json_is_array(list) || (int64_t)json_array_size(list) != layers))
    return tc_fail(f->err, TC_EUSER, "%s: \"no_rope_layers\" has to be a list of 1 or 0 for each of the %lld layers", f->path,
                   (long long)layers);
  for (int64_t i = 0; i < layers; i++) {
    const json_t *j = json_array_get(list, (size_t)i);
    if (list && !(json_is_integer(j) && (json_integer_value(j) == 1 || json_integer_value(j) == 0)))
      return tc_hf_refuse(f, "no_rope_layers", j, "1 for a layer with rotary positions, 0 for one without");
    bare[i] = list ? tc_hf_is(j, "0") : (i + 1) % interval == 0;
  }
  return 0;
}

/* The layers that slide where layer_types does not say it. */
static int usual_types(const struct tc_hf_file *f, const struct tc_hf_class *k, int64_t layers, bool window, const char *bare,
                       char *kind)
{
  const json_t *from = json_object_get(f->o, "max_window_layers"), *period = json_object_get(f->o, "sliding_window_pattern");
  const int64_t first = from ? (int64_t)json_integer_value(from) : 28;
  const int64_t every = k->local_theta && period ? (int64_t)json_integer_value(period) : 0;
  if (k->local_theta && period && every < 1) return tc_hf_refuse(f, "sliding_window_pattern", period, "a number of layers");
  for (int64_t i = 0; i < layers; i++)
    switch (k->windows) {
    case TC_HF_WINDOW_ALL: kind[i] = window; break;
    case TC_HF_WINDOW_SWITCH: kind[i] = window && i >= first; break;
    case TC_HF_WINDOW_BARE: kind[i] = window && bare[i]; break;
    case TC_HF_WINDOW_TYPES:
      kind[i] = every ? (i + 1) % every != 0 : k->pattern[(size_t)i % strlen(k->pattern)] == 'S';
      break;
    default: kind[i] = 0;
    }
  return 0;
}

/* The pattern of sliding layers and layers without positions. */
static int set_pattern(const struct tc_hf_file *f, struct tc_model *m, const char *kind, const char *bare)
{
  static const char letters[] = "FSfs";
  char *all = tc_calloc((size_t)m->layers + 1, 1);
  for (int64_t i = 0; i < m->layers; i++) all[i] = letters[kind[i] + 2 * bare[i]];
  const int64_t period = tc_pattern_period(all, m->layers, m->layers);
  if (period <= TC_MOST_PATTERN) snprintf(m->pattern, sizeof m->pattern, "%.*s", (int)period, all);
  free(all);
  if (period <= TC_MOST_PATTERN) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: the kinds of its layers don't repeat within %d layers, which is not supported", f->path,
                 TC_MOST_PATTERN);
}

static int read_layers(const struct tc_hf_file *f, const struct tc_hf_class *k, struct tc_model *m)
{
  bool on = k->windows != TC_HF_WINDOW_NONE, given = false, any = false;
  const json_t *from = json_object_get(f->o, "max_window_layers");
  int64_t window = 0;
  const bool switched = k->windows == TC_HF_WINDOW_SWITCH || k->windows == TC_HF_WINDOW_BARE;
  if (switched) TC_TRY(read_bool(f, "use_sliding_window", false, &on));
  if (k->windows == TC_HF_WINDOW_SWITCH && from && !json_is_integer(from))
    return tc_hf_refuse(f, "max_window_layers", from, "a number of layers");
  if (k->windows != TC_HF_WINDOW_NONE)
    TC_TRY(read_window(f, k, on || k->windows == TC_HF_WINDOW_BARE, &window));
  char *kind = tc_calloc((size_t)m->layers, 2), *bare = kind + m->layers;
  int rc = read_bare(f, k, m->layers, bare);
  if (rc == 0) rc = read_types(f, m->layers, kind, &given);                 /* checked, too, by classes that don't use it */
  given &= switched || k->windows == TC_HF_WINDOW_TYPES;
  if (rc == 0 && !given) rc = usual_types(f, k, m->layers, on && window > 0, bare, kind);
  if (rc == 0) rc = set_pattern(f, m, kind, bare);
  free(kind);
  TC_TRY(rc);
  any = strpbrk(m->pattern, "Ss") != NULL;
  m->window = any ? window : -1;
  if (window > 0 || !(any || k->windows == TC_HF_WINDOW_TYPES)) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"sliding_window\"%s gives the sliding layers of \"layer_types\", or of the class, no window",
                 f->path, switched ? " or \"use_sliding_window\"" : "");
}

/* ---- the rest ---- */

static int read_biases(const struct tc_hf_file *f, const struct tc_hf_class *k, struct tc_model *m)
{
  static const uint8_t both[2][2] = { { TC_BIAS_NONE, TC_BIAS_MLP }, { TC_BIAS_ATTENTION, TC_BIAS_ALL } };
  bool attention = false, mlp = false;
  if (k->biases >= TC_HF_BIAS_ATTENTION) TC_TRY(read_bool(f, "attention_bias", false, &attention));
  if (k->biases == TC_HF_BIAS_BOTH) TC_TRY(read_bool(f, "mlp_bias", false, &mlp));
  m->bias = k->biases == TC_HF_BIAS_QKV ? TC_BIAS_QKV : both[attention][mlp];
  return 0;
}

/* A soft cap. Without the member it is the class's; null: no cap. */
static int read_cap(const struct tc_hf_file *f, const char *key, double usual, float *cap)
{
  const json_t *j = json_object_get(f->o, key);
  *cap = -1;
  if (j ? json_is_null(j) : usual == 0) return 0;
  return tc_hf_real(f, f->o, key, usual, 1e-6, 1e6, cap);
}

static int read_gemma(const struct tc_hf_file *f, const struct tc_hf_class *k, struct tc_model *m)
{
  const char *const cap = "attn_logit_softcapping", *const query = "query_pre_attn_scalar";
  const json_t *j = json_object_get(f->o, query);
  float scalar;
  if (j && !json_is_integer(j)) return tc_hf_refuse(f, query, j, "a whole number");
  TC_TRY(tc_hf_real(f, f->o, query, 256, 1e-6, 1e6, &scalar));
  m->attn_scale = scalar == (float)m->head_dim ? -1 : (float)pow((double)scalar, -0.5);
  TC_TRY(read_cap(f, "final_logit_softcapping", k->logit_cap, &m->logit_cap));
  TC_TRY(read_cap(f, cap, k->attn_cap, &m->attn_cap));
  if (k->no_attn_cap && m->attn_cap > 0) return tc_hf_refuse(f, cap, json_object_get(f->o, cap), "null: transformers ignores it");
  return 0;
}

static int read_multipliers(const struct tc_hf_file *f, struct tc_model *m)
{
  TC_TRY(tc_hf_real(f, f->o, "embedding_multiplier", 1, 1e-6, 1e6, &m->embed_scale));
  TC_TRY(tc_hf_real(f, f->o, "residual_multiplier", 1, 1e-6, 1e6, &m->residual_scale));
  TC_TRY(tc_hf_real(f, f->o, "attention_multiplier", 1, 1e-6, 1e6, &m->attn_scale));
  return tc_hf_real(f, f->o, "logits_scaling", 1, 1e-6, 1e6, &m->logit_divisor);
}

static int read_heads(const struct tc_hf_file *f, const struct tc_hf_class *k, struct tc_model *m)
{
  for (int i = 0; i < TC_HF_NEEDED; i++)
    if (!*tc_hf_size_of(m, &tc_hf_rotary_sizes[i]))
      return tc_fail(f->err, TC_EUSER, "%s: \"%s\" is missing", f->path, tc_hf_rotary_sizes[i].key);
  const json_t *kv = json_object_get(f->o, "num_key_value_heads"), *head = json_object_get(f->o, "head_dim");
  const json_t *pad = json_object_get(f->o, "pad_token_id");
  const bool missing = !kv;                                      /* null is something else to the classes */
  if (json_is_null(kv) && !k->null_kv) return tc_hf_refuse(f, "num_key_value_heads", kv, "a number");
  if (json_is_null(head) && !k->null_head_dim) return tc_hf_refuse(f, "head_dim", head, "a number, or nothing");
  if ((pad ? (int64_t)json_integer_value(pad) : k->pad) >= m->vocab)
    return tc_fail(f->err, TC_EUSER, "%s: \"pad_token_id\" is %lld%s, which has to be below \"vocab_size\" %lld; null would do",
                   f->path, pad ? (long long)json_integer_value(pad) : (long long)k->pad, pad ? "" : " where it is missing",
                   (long long)m->vocab);
  if (!m->kv_heads) m->kv_heads = k->kv_heads && missing ? k->kv_heads : m->heads;
  if (!m->head_dim) m->head_dim = k->head_dim ? k->head_dim : m->hidden / m->heads;
  if (k->divides && m->hidden % m->heads)
    return tc_fail(f->err, TC_EUSER, "%s: \"hidden_size\" %lld is not a multiple of \"num_attention_heads\" %lld, "
                   "which %s demands", f->path, (long long)m->hidden, (long long)m->heads, k->name);
  if (!m->positions) m->positions = k->positions;
  m->context = TC_MIN(m->positions, TC_HF_CONTEXT);
  return 0;
}

static int read_rotary(const struct tc_hf_file *f, const struct tc_hf_class *k, struct tc_model *m)
{
  bool tied;
  TC_TRY(check_types(f));
  TC_TRY(tc_hf_check_fixed(f, f->o, k));
  TC_TRY(read_sizes(f, m, tc_hf_rotary_sizes, TC_HF_ROTARY_SIZES));
  TC_TRY(read_heads(f, k, m));
  TC_TRY(read_act(f, k->gemma ? "hidden_activation" : "hidden_act", true, k->gemma ? "gelu_pytorch_tanh" : "silu", &m->act));
  TC_TRY(read_layers(f, k, m));
  TC_TRY(tc_hf_real(f, f->o, "rms_norm_eps", k->eps, 1e-30, 1, &m->norm_eps));
  TC_TRY(tc_hf_read_rope(f, k, m));
  TC_TRY(read_bool(f, "tie_word_embeddings", k->tied, &tied));
  m->tied = tied ? TC_ON : TC_OFF;
  if (k->gemma) TC_TRY(read_gemma(f, k, m));
  if (k->multipliers) TC_TRY(read_multipliers(f, m));
  return read_biases(f, k, m);
}

/* ---- the file ------------------------------------------------------------------------ */

/* Values that may stand in two places, of which programs and their versions read one or the other. An object of NULL is
 * the file's. "rope_scaling" and "rope_parameters" are compared as a whole (hf_rope.c), n_inner with n_embd (read_gpt2),
 * sizes with the tensors (src/foreign). */
static const struct { const char *object, *key, *other_object, *other; } twice[] = {
  { NULL, "rope_theta", "rope_scaling", "rope_theta" },
  { NULL, "rope_theta", "rope_parameters", "rope_theta" },
  { NULL, "original_max_position_embeddings", "rope_scaling", "original_max_position_embeddings" },
  { NULL, "original_max_position_embeddings", "rope_parameters", "original_max_position_embeddings" },
  { "rope_scaling", "type", "rope_scaling", "rope_type" },
  { "rope_parameters", "type", "rope_parameters", "rope_type" },
  { NULL, "n_layer", NULL, "num_hidden_layers" },
  { NULL, "n_embd", NULL, "hidden_size" },
  { NULL, "n_head", NULL, "num_attention_heads" },
  { NULL, "n_positions", NULL, "max_position_embeddings" },
  { NULL, "n_positions", NULL, "n_ctx" },
  { NULL, "n_inner", NULL, "intermediate_size" },
};

static int check_twice(const struct tc_hf_file *f)
{
  for (size_t i = 0; i < sizeof twice / sizeof *twice; i++) {
    const char *in = twice[i].object, *also = twice[i].other_object;
    const json_t *a = tc_hf_member(in ? tc_hf_member(f->o, in) : f->o, twice[i].key);
    const json_t *b = tc_hf_member(also ? tc_hf_member(f->o, also) : f->o, twice[i].other);
    if (a && b && !tc_hf_same(a, b))
      return tc_fail(f->err, TC_EUSER, "%s: \"%s\"%s%s and \"%s\"%s%s differ, though both mean the same: leave one of them",
                     f->path, twice[i].key, in ? " of " : "", in ? in : "", twice[i].other, also ? " of " : "",
                     also ? also : "");
  }
  return 0;
}

/* The class by "architectures" and that by "model_type", by which transformers loads a model, are one. */
static int check_type(const struct tc_hf_file *f, const struct tc_hf_class *k)
{
  const json_t *type = tc_hf_member(f->o, "model_type");
  const char *word = json_string_value(type);
  if (!type || (word && strcmp(word, k->type) == 0)) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"model_type\" is %.100s, but a %s is a \"%s\": leave one of them", f->path,
                 word ? word : "no text", k->name, k->type);
}

/* By "architectures", else by "model_type"; a file with neither is GPT-2's, which had none at first. */
static const struct tc_hf_class *find_class(const struct tc_hf_file *f)
{
  const json_t *list = tc_hf_member(f->o, "architectures"), *type = tc_hf_member(f->o, "model_type");
  const char *name = json_string_value(json_array_get(list, 0)), *word = json_string_value(type);
  char all[400] = "";
  if (name && strcmp(name, "GPT2Model") == 0) name = tc_hf_classes[0].name;
  for (int i = 0; i < TC_HF_CLASSES; i++) {
    const struct tc_hf_class *k = &tc_hf_classes[i];
    if (name ? strcmp(name, k->name) == 0 : word ? strcmp(word, k->type) == 0 : !list && !type) return k;
    tc_text_add(all, sizeof all, "%s%s", i == 0 ? "" : i < TC_HF_CLASSES - 1 ? ", " : " and ", k->name);
  }
  tc_fail(f->err, TC_EUSER, "%s: %s %.100s is not supported; %s are", f->path, name || list ? "architecture" : "model_type",
          name ? name : word && !list ? word : "that is no text", all);
  return NULL;
}

/* A value that says nothing. */
static bool is_empty(const json_t *v)
{
  return json_is_null(v) || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0)
         || (json_is_string(v) && !*json_string_value(v)) || (json_is_array(v) && json_array_size(v) == 0)
         || (json_is_object(v) && json_object_size(v) == 0);
}

static int check_members(const struct tc_hf_file *f)
{
  static const char *const known[] = {
#define MEMBER(name, keep) name,
#include "src/model/hf_members.def"
  };
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)f->o, key, value) {
    size_t i = 0;
    while (i < sizeof known / sizeof *known && strcmp(known[i], key)) i++;
    if (i == sizeof known / sizeof *known && !is_empty(value))
      return tc_fail(f->err, TC_EUSER, "%s: \"%.60s\" is not known, and may change what is computed: take it out if it does not",
                     f->path, key);
  }
  return 0;
}

int tc_hf_read_object(struct tc_model *m, const json_t *o, const char *path, struct tc_err *err)
{
  const struct tc_hf_file f = { o, path, err };
  const struct tc_hf_class *k = find_class(&f);
  *m = (struct tc_model){ .preset = "" };
  if (!k) return TC_EUSER;
  m->family = k->family;
  TC_TRY(check_type(&f, k));
  TC_TRY(check_twice(&f));
  TC_TRY(check_members(&f));
  return k->learned ? read_gpt2(&f, m) : read_rotary(&f, k, m);
}

int tc_hf_read(struct tc_model *m, const char *path, struct tc_err *err)
{
  json_t *o = NULL;
  *m = (struct tc_model){ .preset = "" };
  char *file = tc_is_folder(path) ? tc_sprintf("%s/config.json", path) : tc_strdup(path);
  int rc = tc_read_loose_json(&o, file, "config", MOST_BYTES, err);
  if (rc == 0) rc = tc_hf_read_object(m, o, file, err);
  json_decref(o);
  free(file);
  return rc;
}
