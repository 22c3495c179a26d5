/* hf_write.c - config.json of a model. A class can store a model if what is written of it reads as the same model. */
#include "src/model/hf_impl.h"
#include "src/files/files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void set_int(json_t *o, const char *key, int64_t x) { json_object_set_new(o, key, json_integer(x)); }
static void set_bool(json_t *o, const char *key, bool x) { json_object_set_new(o, key, json_boolean(x)); }
static void set_text(json_t *o, const char *key, const char *x) { json_object_set_new(o, key, json_string(x)); }
static void set_real(json_t *o, const char *key, float x) { tc_figure(o, key, tc_shortest(x)); }

/* A soft cap; null if there is no cap. */
static void set_cap(json_t *o, const char *key, float cap)
{
  json_object_set_new(o, key, json_null());
  if (cap > 0) set_real(o, key, cap);
}

/* The members that scale frequencies, in an object. */
static json_t *scaling_json(const struct tc_rope_scaling *s)
{
  static const char *const types[] = { [TC_ROPE_PLAIN] = "default", [TC_ROPE_LINEAR] = "linear", [TC_ROPE_LLAMA3] = "llama3",
                                       [TC_ROPE_YARN] = "yarn" };
  json_t *o = json_pack("{s:s}", "rope_type", types[s->kind]);
  if (s->kind >= TC_ROPE_LINEAR) set_real(o, "factor", s->factor);
  if (s->kind == TC_ROPE_LLAMA3) set_real(o, "low_freq_factor", s->low), set_real(o, "high_freq_factor", s->high);
  if (s->kind >= TC_ROPE_LLAMA3) set_int(o, "original_max_position_embeddings", s->original);
  if (s->kind == TC_ROPE_YARN) {
    set_real(o, "beta_fast", s->high), set_real(o, "beta_slow", s->low), set_real(o, "attention_factor", s->attention);
    if (s->untruncated) set_bool(o, "truncate", false);
  }
  return o;
}

static void set_rope(json_t *o, const struct tc_model *m, const struct tc_hf_class *k)
{
  const bool plain = m->rope_scaling.kind == TC_ROPE_PLAIN;
  if (k->sliding_theta > 0) {
    json_t *full = scaling_json(&m->rope_scaling), *sliding = scaling_json(&m->sliding_scaling);
    set_real(full, "rope_theta", m->rope_theta), set_real(sliding, "rope_theta", m->sliding_theta);
    json_object_set_new(o, "rope_parameters", json_pack("{s:o, s:o}", "full_attention", full, "sliding_attention", sliding));
    return;
  }
  set_real(o, "rope_theta", m->rope_theta);
  json_object_set_new(o, "rope_scaling", plain ? json_null() : scaling_json(&m->rope_scaling));
  if (!k->partial) return;
  float share = (float)((double)m->rotary_dim / (double)m->head_dim);
  while ((int64_t)((double)m->head_dim * tc_shortest(share)) < m->rotary_dim) share = nextafterf(share, 2);
  set_real(o, "partial_rotary_factor", share);
}

static void set_windows(json_t *o, const struct tc_model *m, const struct tc_hf_class *k)
{
  json_t *types = json_array(), *bare = json_array();
  for (int64_t i = 0; i < m->layers; i++) {
    const struct tc_layer_kind kind = tc_model_layer(m, i);
    json_array_append_new(types, json_string(kind.sliding ? "sliding_attention" : "full_attention"));
    json_array_append_new(bare, json_integer(kind.rotary));
  }
  const bool switched = k->windows == TC_HF_WINDOW_SWITCH || k->windows == TC_HF_WINDOW_BARE, window = m->window > 0;
  if (switched ? window : k->windows != TC_HF_WINDOW_NONE)
    json_object_set_new(o, "sliding_window", window ? json_integer(m->window)
                        : k->windows == TC_HF_WINDOW_TYPES ? json_integer(k->window) : json_null());
  if (switched && window) set_bool(o, "use_sliding_window", true);
  if (k->windows == TC_HF_WINDOW_TYPES || (switched && window)) json_object_set(o, "layer_types", types);
  if (k->bare) json_object_set(o, "no_rope_layers", bare);
  json_decref(types);
  json_decref(bare);
}

/* s of a scale that is 1 / sqrt(s): a whole number, as the class has it, if one gives the scale. */
static void set_query_scalar(json_t *o, const struct tc_model *m)
{
  const char *const key = "query_pre_attn_scalar";
  const double s = m->attn_scale > 0 ? pow((double)m->attn_scale, -2) : (double)m->head_dim, whole = round(s);
  if (m->attn_scale <= 0 || (float)pow(whole, -0.5) == m->attn_scale) set_int(o, key, (int64_t)whole);
  else set_real(o, key, (float)s);
}

static void set_parts(json_t *o, const struct tc_model *m, const struct tc_hf_class *k)
{
  if (k->biases >= TC_HF_BIAS_ATTENTION) set_bool(o, "attention_bias", tc_bias_of_proj(m));
  if (k->biases == TC_HF_BIAS_BOTH) set_bool(o, "mlp_bias", tc_bias_of_mlp(m));
  if (k->gemma) {
    set_query_scalar(o, m);
    set_cap(o, "attn_logit_softcapping", m->attn_cap), set_cap(o, "final_logit_softcapping", m->logit_cap);
  }
  if (k->multipliers) {
    set_real(o, "embedding_multiplier", m->embed_scale), set_real(o, "residual_multiplier", m->residual_scale);
    set_real(o, "attention_multiplier", m->attn_scale > 0 ? m->attn_scale : 1 / sqrtf((float)m->head_dim));
    set_real(o, "logits_scaling", m->logit_divisor);
  }
}

/* The MLP's activation; nothing if the class has none like it, which then is its own. */
static void set_act(json_t *o, const char *key, const struct tc_model *m, bool gated)
{
  const struct tc_hf_act *a = tc_hf_acts;
  while (a->name && (gated ? a->gated : a->plain) != m->act) a++;
  if (a->name) set_text(o, key, a->name);
}

static json_t *rotary_json(struct tc_model *m, const struct tc_hf_class *k)
{
  json_t *o = json_pack("{s:[s], s:s}", "architectures", k->name, "model_type", k->type);
  for (int i = 0; i < TC_HF_ROTARY_SIZES; i++)
    set_int(o, tc_hf_rotary_sizes[i].key, *tc_hf_size_of(m, &tc_hf_rotary_sizes[i]));
  set_act(o, k->gemma ? "hidden_activation" : "hidden_act", m, true);
  set_real(o, "rms_norm_eps", m->norm_eps);
  set_rope(o, m, k);
  set_bool(o, "tie_word_embeddings", m->tied == TC_ON);
  set_windows(o, m, k);
  set_parts(o, m, k);
  tc_figure(o, "attention_dropout", 0);
  if (k->pads) json_object_set_new(o, "pad_token_id", json_null());
  return o;
}

static json_t *gpt2_json(const struct tc_model *m, const struct tc_hf_class *k, double dropout)
{
  json_t *o = json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:n, s:n, s:b}",
    "architectures", k->name, "model_type", k->type, "n_layer", (json_int_t)m->layers,
    "n_head", (json_int_t)m->heads, "n_embd", (json_int_t)m->hidden, "n_positions",
    (json_int_t)m->context, "n_ctx", (json_int_t)m->context, "vocab_size", (json_int_t)m->vocab,
    "n_inner", "layer_norm_epsilon", "tie_word_embeddings", 1);
  set_act(o, "activation_function", m, false);
  set_real(o, "layer_norm_epsilon", m->norm_eps);
  tc_figure(o, "resid_pdrop", dropout);
  tc_figure(o, "embd_pdrop", dropout);
  tc_figure(o, "attn_pdrop", 0);
  return o;
}

static json_t *config_of(const struct tc_model *given, const struct tc_hf_class *k, double dropout)
{
  struct tc_model m = *given;
  m.positions = TC_MAX(m.positions, m.context);
  return k->learned ? gpt2_json(&m, k, dropout) : rotary_json(&m, k);
}

/* NULL: what the class reads of it is this model; else the field that differs, or why it reads nothing. */
static const char *differs(const struct tc_model *m, const struct tc_hf_class *k, struct tc_err *why)
{
  struct tc_model back;
  json_t *o = config_of(m, k, 0);
  const int rc = tc_hf_read_object(&back, o, "config.json", why);
  json_decref(o);
  if (rc) return "sizes";
  back.context = m->context;
  back = tc_model_complete(&back);               /* with the parts of the class's family, */
  back.family = m->family;                       /* whose name alone says nothing */
  return tc_model_other(m, &back);
}

/* The class of the model's family if it can store it, else the first that can; NULL: none. */
static const struct tc_hf_class *class_of(const struct tc_model *m, const char **other, const struct tc_hf_class **own,
                                          struct tc_err *why)
{
  struct tc_err any;
  *other = NULL, *own = NULL;
  for (int i = 0; i < TC_HF_CLASSES; i++) {
    const struct tc_hf_class *k = &tc_hf_classes[i];
    if (k->family != m->family) continue;
    *own = k;
    *other = differs(m, k, why);
    if (!*other) return k;
  }
  for (int i = 0; i < TC_HF_CLASSES; i++)
    if (tc_hf_classes[i].family != m->family && !differs(m, &tc_hf_classes[i], &any)) return &tc_hf_classes[i];
  return NULL;
}

const char *tc_hf_architecture(const struct tc_model *m, struct tc_err *err)
{
  const struct tc_hf_class *own;
  const char *other;
  struct tc_err why = { .text = "" };
  const struct tc_hf_class *k = class_of(m, &other, &own, &why);
  if (k) return k->name;
  if (*why.text) tc_fail(err, TC_EUSER, "Hugging Face's %s can't be this model: %s", own->name, why.text);
  else tc_fail(err, TC_EUSER, "the model's %s differs from that of Hugging Face's %s", other, own->name);
  return NULL;
}

static const struct tc_hf_class *the_class(const struct tc_model *m)
{
  const struct tc_hf_class *own;
  const char *other;
  struct tc_err why;
  const struct tc_hf_class *k = class_of(m, &other, &own, &why);
  return k ? k : own;
}

bool tc_hf_has_parts(const struct tc_model *m) { return !the_class(m)->learned && !the_class(m)->fused; }
bool tc_hf_is_gpt2(const struct tc_model *m) { return the_class(m)->learned; }

static void set_ids(json_t *o, struct tc_hf_ids ids)
{
  json_object_set_new(o, "bos_token_id", ids.begin < 0 ? json_null() : json_integer(ids.begin));
  json_object_set_new(o, "eos_token_id", ids.end < 0 ? json_null() : json_integer(ids.end));
}

char *tc_hf_text(const struct tc_model *m, struct tc_hf_ids ids, double dropout, const char *dtype)
{
  json_t *o = config_of(m, the_class(m), dropout);
  tc_figure(o, "initializer_range", 0.02);
  set_ids(o, ids);
  set_text(o, "torch_dtype", dtype);
  char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
  json_decref(o);
  return text;
}
