/* hf.c - config.json of four architectures: read, checked, written. */
#include "src/model/hf.h"
#include "src/files/files.h"

#include <jansson.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 20 };     /* of a config.json */

static const struct architecture {
  const char *name, *type;        /* members "architectures" and "model_type" */
  uint8_t family, norm, act, qk_norm;
  int64_t kv_heads, head_dim;     /* where the file does not say; 0: as many as heads, hidden / heads */
  bool windowed;                  /* always has its window */
} architectures[] = {
  { "GPT2LMHeadModel", "gpt2", TC_FAMILY_GPT2, TC_LAYER_NORM, TC_ACT_GELU, TC_OFF, 0, 0, false },
  { "LlamaForCausalLM", "llama", TC_FAMILY_LLAMA, TC_RMS_NORM, TC_ACT_SWIGLU, TC_OFF, 0, 0, false },
  { "Qwen3ForCausalLM", "qwen3", TC_FAMILY_QWEN3, TC_RMS_NORM, TC_ACT_SWIGLU, TC_ON, 32, 128, false },
  { "MistralForCausalLM", "mistral", TC_FAMILY_LLAMA, TC_RMS_NORM, TC_ACT_SWIGLU, TC_OFF, 8, 0, true },
};                                /* without a window a Mistral is a Llama, as which it is exported */
enum { N_ARCHITECTURES = sizeof architectures / sizeof *architectures };

/* Sizes and the largest of each; of rotary_sizes the first have no default. */
struct size { const char *key; size_t field; int64_t most; };
#define SIZE(key, field, most) { key, offsetof(struct tc_model, field), most }
static const struct size gpt2_sizes[] = {
  SIZE("n_layer", layers, TC_MOST_LAYERS), SIZE("n_embd", hidden, TC_MOST_HIDDEN),
  SIZE("n_positions", context, TC_MOST_CONTEXT), SIZE("vocab_size", vocab, TC_MOST_VOCAB) };
static const struct size rotary_sizes[] = {
  SIZE("num_hidden_layers", layers, TC_MOST_LAYERS), SIZE("hidden_size", hidden, TC_MOST_HIDDEN),
  SIZE("num_attention_heads", heads, TC_MOST_HEADS), SIZE("intermediate_size", ffn, TC_MOST_FFN),
  SIZE("vocab_size", vocab, TC_MOST_VOCAB), SIZE("num_key_value_heads", kv_heads, TC_MOST_HEADS),
  SIZE("head_dim", head_dim, TC_MOST_HEAD_DIM), SIZE("max_position_embeddings", positions, TC_MOST_CONTEXT) };
enum { N_NEEDED = 5, GPT2_SIZES = sizeof gpt2_sizes / sizeof *gpt2_sizes };
enum { ROTARY_SIZES = sizeof rotary_sizes / sizeof *rotary_sizes };
static int64_t *size_of(struct tc_model *m, const struct size *s)
{ return (int64_t *)(void *)((char *)m + s->field); }

/* A config.json that is being read. */
struct file { const json_t *o; const char *path; struct tc_err *err; };

/* The member; NULL where it is missing or null, which mean the same. */
static const json_t *member(const json_t *o, const char *key)
{
  const json_t *j = json_object_get(o, key);
  return json_is_null(j) ? NULL : j;
}

/* ---- GPT-2 --------------------------------------------------------------------------- */

/* Whether the member exists and differs from our model's value. */
static bool other_text(const json_t *c, const char *key, const char *ours, const char *also)
{
  const json_t *j = json_object_get(c, key);
  const char *s = json_string_value(j);
  return j && !(s && (strcmp(s, ours) == 0 || strcmp(s, also) == 0));
}

static bool other_bool(const json_t *c, const char *key, bool ours)
{
  const json_t *j = json_object_get(c, key);
  return j && !(json_is_boolean(j) && json_is_true(j) == ours);
}

static int read_sizes(const struct file *f, struct tc_model *m, const struct size *size, int n)
{
  for (int i = 0; i < n; i++) {
    const json_t *j = member(f->o, size[i].key);
    const int64_t value = (int64_t)json_integer_value(j);
    if (j && (value < 1 || value > size[i].most))
      return tc_fail(f->err, TC_EUSER, "%s: \"%s\" has to be a whole number from 1 to %lld", f->path,
                     size[i].key, (long long)size[i].most);
    *size_of(m, &size[i]) = value;
  }
  return 0;
}

/* A number above 0, or `otherwise` where it is missing. */
static int read_real(const struct file *f, const json_t *o, const char *key, double otherwise, double least,
                     double most, float *out)
{
  const json_t *j = member(o, key);
  const double x = j ? json_number_value(j) : otherwise;
  *out = (float)x;
  if ((!j || json_is_number(j)) && x >= least && x <= most && *out > 0) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"%s\" has to be a number from %g to %g", f->path, key, least, most);
}

static int read_gpt2(const struct file *f, struct tc_model *m)
{
  const json_t *c = f->o, *inner = member(c, "n_inner");
  const char *other = NULL;
  TC_TRY(read_sizes(f, m, gpt2_sizes, GPT2_SIZES));
  TC_TRY(read_real(f, c, "layer_norm_epsilon", 1e-5, 1e-30, 1, &m->norm_eps));
  if (other_text(c, "activation_function", "gelu_new", "gelu_pytorch_tanh"))
    other = "activation_function";
  else if (inner && (int64_t)json_integer_value(inner) != 4 * m->hidden) other = "n_inner";
  else if (other_bool(c, "tie_word_embeddings", true)) other = "tie_word_embeddings";
  else if (other_bool(c, "scale_attn_weights", true)) other = "scale_attn_weights";
  else if (other_bool(c, "scale_attn_by_inverse_layer_idx", false))
    other = "scale_attn_by_inverse_layer_idx";
  else if (other_bool(c, "add_cross_attention", false)) other = "add_cross_attention";
  if (other)
    return tc_fail(f->err, TC_EUSER, "%s: \"%s\" differs from this program's model: GPT-2 as "
                   "OpenAI made it (gelu_new, an MLP of 4 x n_embd, head tied to the embedding)", f->path, other);
  m->heads = (int64_t)json_integer_value(json_object_get(c, "n_head"));
  if (m->heads >= 1 && m->heads <= TC_MOST_HEADS) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"n_head\" is missing or invalid", f->path);
}

/* ---- Llama, Qwen3 -------------------------------------------------------------------- */

/* Members that change what is computed, and the only value of each that is computed here. */
static const struct { const char *key, *value; } fixed[] = {
  { "hidden_act", "\"silu\"" }, { "pretraining_tp", "1" }, { "partial_rotary_factor", "1" },
  { "use_sliding_window", "false" }, { "quantization_config", "null" },
  { "add_cross_attention", "false" },
};
enum { N_FIXED = sizeof fixed / sizeof *fixed };

static bool same_value(const json_t *a, const json_t *b)
{
  return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

static bool has_value(const json_t *j, const char *text)
{
  json_t *want = json_loads(text, JSON_DECODE_ANY, NULL);
  const bool same = same_value(j, want);
  json_decref(want);
  return same;
}

static int refuse(const struct file *f, const char *key, const json_t *j, const char *would)
{
  char *is = json_dumps(j, JSON_ENCODE_ANY | JSON_COMPACT);
  tc_fail(f->err, TC_EUSER, "%s: \"%s\" is %.100s, which is not supported; give %s", f->path,
          key, is ? is : "not readable", would);
  free(is);
  return TC_EUSER;
}

static int check_fixed(const struct file *f, const json_t *o)
{
  for (int i = 0; i < N_FIXED; i++) {
    const json_t *j = member(o, fixed[i].key);
    if (j && !has_value(j, fixed[i].value))
      return refuse(f, fixed[i].key, j, fixed[i].value);
  }
  return 0;
}

/* A window that has room for all positions is none. A Mistral always has its window, 4096 where the file says nothing. */
static int check_windows(const struct file *f, const struct architecture *a, struct tc_model *m)
{
  const json_t *window = member(f->o, "sliding_window"), *types = member(f->o, "layer_types");
  const int64_t size = (int64_t)json_integer_value(window);
  if (a->windowed && !json_object_get(f->o, "sliding_window"))
    return tc_fail(f->err, TC_EUSER, "%s: without \"sliding_window\" a Mistral's is 4096, which is not supported; give "
                   "null if it has none", f->path);
  if (window && (a->windowed || !json_is_false(member(f->o, "use_sliding_window")))) m->window = TC_MAX(size, 1);
  if (m->window && (size < m->positions || !m->positions))
    return refuse(f, "sliding_window", window, "null, or as many as \"max_position_embeddings\"");
  for (size_t i = 0; i < json_array_size(types); i++)
    if (!has_value(json_array_get(types, i), "\"full_attention\""))
      return refuse(f, "layer_types", types, "\"full_attention\" for each layer");
  return 0;
}

static int read_llama3(const struct file *f, const json_t *o, struct tc_rope_scaling *s)
{
  const char *const key = "original_max_position_embeddings";
  const json_t *original = member(o, key) ? member(o, key) : member(f->o, key);
  TC_TRY(read_real(f, o, "low_freq_factor", 0, 1e-6, 1e6, &s->low));
  TC_TRY(read_real(f, o, "high_freq_factor", 0, 1e-6, 1e6, &s->high));
  s->original = (int64_t)json_integer_value(original);
  if (s->original < 1 || s->original > TC_MOST_CONTEXT)
    return tc_fail(f->err, TC_EUSER, "%s: \"%s\" has to be a whole number from 1 to %d", f->path, key, TC_MOST_CONTEXT);
  if (s->high > s->low) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"high_freq_factor\" has to be above \"low_freq_factor\"", f->path);
}

/* Rotary positions as the object `where` describes them. */
struct rope { float theta; struct tc_rope_scaling scaling; };

static int read_rope_of(const struct file *f, const char *where, struct rope *r)
{
  const json_t *o = member(f->o, where), *type = member(o, "rope_type") ? member(o, "rope_type") : member(o, "type");
  const char *t = type ? json_string_value(type) : "default";
  *r = (struct rope){ .scaling = { .factor = 1 } };
  TC_TRY(read_real(f, member(o, "rope_theta") ? o : f->o, "rope_theta", 10000, 1, 1e12, &r->theta));
  if (!o) return 0;
  if (!json_is_object(o)) return tc_fail(f->err, TC_EUSER, "%s: \"%s\" is not an object", f->path, where);
  if (member(o, "full_attention")) return refuse(f, where, o, "one object for all layers");
  TC_TRY(check_fixed(f, o));
  if (t && strcmp(t, "default") == 0) return 0;
  if (!t || (strcmp(t, "linear") && strcmp(t, "llama3")))
    return refuse(f, "rope_type", type, "\"default\", \"linear\" or \"llama3\"");
  TC_TRY(read_real(f, o, "factor", 0, 1e-6, 1e6, &r->scaling.factor));
  return strcmp(t, "llama3") == 0 ? read_llama3(f, o, &r->scaling) : 0;
}

static bool same_rope(const struct rope *a, const struct rope *b)
{
  const struct tc_rope_scaling *x = &a->scaling, *y = &b->scaling;
  return a->theta == b->theta && x->factor == y->factor && x->low == y->low && x->high == y->high
         && x->original == y->original;
}

/* "rope_theta" and "rope_scaling", or "rope_parameters", which has both. Versions of transformers disagree on which
 * counts where a file has two that differ. */
static int read_rope(const struct file *f, struct tc_model *m)
{
  const char *const old = "rope_scaling", *const now = "rope_parameters";
  const json_t *scaling = member(f->o, old);
  const bool is_old = !member(f->o, now) || (scaling && !(json_is_object(scaling) && json_object_size(scaling) == 0));
  struct rope r, other;
  TC_TRY(read_rope_of(f, is_old ? old : now, &r));
  if (is_old && member(f->o, now)) {
    TC_TRY(read_rope_of(f, now, &other));
    if (!same_rope(&r, &other))
      return tc_fail(f->err, TC_EUSER, "%s: \"%s\" and \"%s\" describe different rotary positions: leave one of "
                     "them", f->path, old, now);
  }
  m->rope_theta = r.theta;
  m->rope_scaling = r.scaling;
  return 0;
}

/* A member that is true or false. */
static int read_bool(const struct file *f, const char *key, uint8_t *out)
{
  const json_t *j = member(f->o, key);
  *out = json_is_true(j) ? TC_ON : TC_OFF;
  if (!j || json_is_boolean(j)) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"%s\" has to be true or false", f->path, key);
}

static int read_rotary(const struct file *f, const struct architecture *a, struct tc_model *m)
{
  const bool qwen3 = a->family == TC_FAMILY_QWEN3;
  uint8_t mlp_bias;
  m->norm = a->norm;
  m->act = a->act;
  m->qk_norm = a->qk_norm;
  TC_TRY(check_fixed(f, f->o));
  TC_TRY(read_sizes(f, m, rotary_sizes, ROTARY_SIZES));
  TC_TRY(check_windows(f, a, m));
  for (int i = 0; i < N_NEEDED; i++)
    if (!*size_of(m, &rotary_sizes[i]))
      return tc_fail(f->err, TC_EUSER, "%s: \"%s\" is missing", f->path, rotary_sizes[i].key);
  const bool missing = !json_object_get(f->o, "num_key_value_heads");       /* null is something else to the classes */
  if (!m->kv_heads) m->kv_heads = a->kv_heads && missing ? a->kv_heads : m->heads;
  if (!m->head_dim) m->head_dim = a->head_dim;
  if (a->family == TC_FAMILY_LLAMA && !a->windowed && m->hidden % m->heads)
    return tc_fail(f->err, TC_EUSER, "%s: \"hidden_size\" %lld is not a multiple of \"num_attention_heads\" %lld, "
                   "which LlamaForCausalLM demands", f->path, (long long)m->hidden, (long long)m->heads);
  m->context = TC_MIN(m->positions, TC_HF_CONTEXT);
  TC_TRY(read_real(f, f->o, "rms_norm_eps", 1e-6, 1e-30, 1, &m->norm_eps));
  TC_TRY(read_rope(f, m));
  TC_TRY(read_bool(f, "tie_word_embeddings", &m->tied));
  TC_TRY(read_bool(f, "attention_bias", &m->bias));
  TC_TRY(read_bool(f, "mlp_bias", &mlp_bias));
  if (qwen3) mlp_bias = TC_OFF;                                  /* Qwen3's MLP never has any */
  if (m->bias == mlp_bias) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"attention_bias\" is %s, but %s: this program's models have biases in "
                 "all products or in none", f->path, m->bias == TC_ON ? "true" : "false",
                 qwen3 ? "a Qwen3's MLP has no biases" : mlp_bias == TC_ON ? "\"mlp_bias\" is true"
                                                                           : "\"mlp_bias\" is false");
}

/* ---- the file ------------------------------------------------------------------------ */

/* Values that may stand in two places, of which programs and their versions read one or the other. An object of NULL is
 * the file's. "rope_scaling" and "rope_parameters" are compared as a whole (read_rope), n_inner with n_embd (read_gpt2),
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

static int check_twice(const struct file *f)
{
  for (size_t i = 0; i < sizeof twice / sizeof *twice; i++) {
    const char *in = twice[i].object, *also = twice[i].other_object;
    const json_t *a = member(in ? member(f->o, in) : f->o, twice[i].key);
    const json_t *b = member(also ? member(f->o, also) : f->o, twice[i].other);
    if (a && b && !same_value(a, b))
      return tc_fail(f->err, TC_EUSER, "%s: \"%s\"%s%s and \"%s\"%s%s differ, though both mean the same: leave one of them",
                     f->path, twice[i].key, in ? " of " : "", in ? in : "", twice[i].other, also ? " of " : "",
                     also ? also : "");
  }
  return 0;
}

/* The class by "architectures" and that by "model_type", by which transformers loads a model, are one. */
static int check_type(const struct file *f, const struct architecture *a)
{
  const json_t *type = member(f->o, "model_type");
  const char *word = json_string_value(type);
  if (!type || (word && strcmp(word, a->type) == 0)) return 0;
  return tc_fail(f->err, TC_EUSER, "%s: \"model_type\" is %.100s, but a %s is a \"%s\": leave one of them", f->path,
                 word ? word : "no text", a->name, a->type);
}

/* By "architectures", else by "model_type"; a file with neither is GPT-2's, which had none at first. */
static const struct architecture *find_architecture(const struct file *f)
{
  const json_t *list = member(f->o, "architectures"), *type = member(f->o, "model_type");
  const char *name = json_string_value(json_array_get(list, 0)), *word = json_string_value(type);
  if (name && strcmp(name, "GPT2Model") == 0) name = architectures[0].name;
  for (int i = 0; i < N_ARCHITECTURES; i++) {
    const struct architecture *a = &architectures[i];
    if (name ? strcmp(name, a->name) == 0 : word ? strcmp(word, a->type) == 0 : !list && !type) return a;
  }
  tc_fail(f->err, TC_EUSER, "%s: %s %.100s is not supported; GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM and "
          "Qwen3ForCausalLM are", f->path, name || list ? "architecture" : "model_type",
          name ? name : word && !list ? word : "that is no text");
  return NULL;
}

int tc_hf_read(struct tc_model *m, const char *path, struct tc_err *err)
{
  json_t *o = NULL;
  *m = (struct tc_model){ .preset = "" };
  char *file = tc_is_folder(path) ? tc_sprintf("%s/config.json", path) : tc_strdup(path);
  int rc = tc_read_loose_json(&o, file, "config", MOST_BYTES, err);
  if (rc == 0) {
    const struct file f = { o, file, err };
    const struct architecture *a = find_architecture(&f);
    if (a) m->family = a->family;
    rc = a ? check_type(&f, a) : TC_EUSER;
    if (rc == 0) rc = check_twice(&f);
    if (rc == 0) rc = a->family == TC_FAMILY_GPT2 ? read_gpt2(&f, m) : read_rotary(&f, a, m);
    json_decref(o);
  }
  free(file);
  return rc;
}

/* ---- writing ------------------------------------------------------------------------- */

static const struct architecture *architecture_of(const struct tc_model *m)
{ return &architectures[m->rope_theta < 0 ? 0 : m->qk_norm == TC_ON ? 2 : 1]; }

const char *tc_hf_architecture(const struct tc_model *m, struct tc_err *err)
{
  const struct architecture *a = architecture_of(m);
  const bool gpt2 = a->family == TC_FAMILY_GPT2;
  struct tc_model plain = { .family = TC_FAMILY_GPT2, .hidden = m->hidden, .heads = m->heads };
  plain = tc_model_complete(&plain);
  const char *other = NULL;
  if (m->norm != a->norm) other = "norm";
  else if (m->act != a->act) other = "act";
  else if (m->qk_norm != a->qk_norm) other = "qk_norm";
  else if (gpt2 && m->bias != TC_ON) other = "bias";
  else if (a->family == TC_FAMILY_QWEN3 && m->bias == TC_ON) other = "bias";
  else if (gpt2 && m->tied != TC_ON) other = "tied";
  else if (gpt2 && m->kv_heads != m->heads) other = "kv_heads";
  else if (gpt2 && m->head_dim * m->heads != m->hidden) other = "head_dim";
  else if (gpt2 && m->ffn != plain.ffn) other = "ffn";
  if (!other && a->family == TC_FAMILY_LLAMA && m->hidden % m->heads) {
    tc_fail(err, TC_EUSER, "the model's hidden = %lld is not a multiple of its heads = %lld, which Hugging Face's %s "
            "demands", (long long)m->hidden, (long long)m->heads, a->name);
    return NULL;
  }
  if (!other) return a->name;
  tc_fail(err, TC_EUSER, "the model's %s differs from that of Hugging Face's %s", other, a->name);
  return NULL;
}

static json_t *scaling_json(const struct tc_rope_scaling *s)
{
  if (s->factor == 0 || (s->factor == 1 && s->original == 0)) return json_null();
  const bool linear = s->original == 0;
  json_t *o = json_pack("{s:s}", "rope_type", linear ? "linear" : "llama3");
  tc_figure(o, "factor", tc_shortest(s->factor));
  if (linear) return o;
  tc_figure(o, "low_freq_factor", tc_shortest(s->low));
  tc_figure(o, "high_freq_factor", tc_shortest(s->high));
  json_object_set_new(o, "original_max_position_embeddings", json_integer(s->original));
  return o;
}

static void set_ids(json_t *o, struct tc_hf_ids ids)
{
  json_object_set_new(o, "bos_token_id", ids.begin < 0 ? json_null() : json_integer(ids.begin));
  json_object_set_new(o, "eos_token_id", ids.end < 0 ? json_null() : json_integer(ids.end));
}

static json_t *rotary_json(struct tc_model *m, const struct architecture *a, struct tc_hf_ids ids, const char *dtype)
{
  json_t *o = json_pack("{s:[s], s:s}", "architectures", a->name, "model_type", a->type);
  for (int i = 0; i < ROTARY_SIZES; i++)
    json_object_set_new(o, rotary_sizes[i].key, json_integer(*size_of(m, &rotary_sizes[i])));
  json_object_set_new(o, "hidden_act", json_string("silu"));
  tc_figure(o, "rms_norm_eps", tc_shortest(m->norm_eps));
  tc_figure(o, "rope_theta", tc_shortest(m->rope_theta));
  json_object_set_new(o, "rope_scaling", scaling_json(&m->rope_scaling));
  json_object_set_new(o, "tie_word_embeddings", json_boolean(m->tied == TC_ON));
  json_object_set_new(o, "attention_bias", json_boolean(m->bias == TC_ON));
  if (a->family == TC_FAMILY_LLAMA) json_object_set_new(o, "mlp_bias", json_boolean(m->bias == TC_ON));
  tc_figure(o, "attention_dropout", 0);
  tc_figure(o, "initializer_range", 0.02);
  set_ids(o, ids);
  json_object_set_new(o, "torch_dtype", json_string(dtype));
  return o;
}

static json_t *gpt2_json(const struct tc_model *m, struct tc_hf_ids ids, double dropout, const char *dtype)
{
  json_t *o = json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:n, s:s, s:n, s:b}",
    "architectures", "GPT2LMHeadModel", "model_type", "gpt2", "n_layer", (json_int_t)m->layers,
    "n_head", (json_int_t)m->heads, "n_embd", (json_int_t)m->hidden, "n_positions",
    (json_int_t)m->context, "n_ctx", (json_int_t)m->context, "vocab_size", (json_int_t)m->vocab,
    "n_inner", "activation_function", "gelu_new", "layer_norm_epsilon",
    "tie_word_embeddings", 1);
  tc_figure(o, "layer_norm_epsilon", tc_shortest(m->norm_eps));
  set_ids(o, ids);
  tc_figure(o, "resid_pdrop", dropout);
  tc_figure(o, "embd_pdrop", dropout);
  tc_figure(o, "attn_pdrop", 0);
  tc_figure(o, "initializer_range", 0.02);
  json_object_set_new(o, "torch_dtype", json_string(dtype));
  return o;
}

char *tc_hf_text(const struct tc_model *given, struct tc_hf_ids ids, double dropout, const char *dtype)
{
  struct tc_model m = *given;
  m.positions = TC_MAX(m.positions, m.context);
  const struct architecture *a = architecture_of(&m);
  json_t *o = a->family == TC_FAMILY_GPT2 ? gpt2_json(&m, ids, dropout, dtype) : rotary_json(&m, a, ids, dtype);
  char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
  json_decref(o);
  return text;
}
