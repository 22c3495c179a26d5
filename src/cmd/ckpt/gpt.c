/* gpt.c - names, shapes and orders of GPT-2's tensors in three programs, as a table. */
#include "src/cmd/ckpt/gpt.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_CONFIG = 1 << 20 };    /* bytes of a config.json */

/* Sizes in units: C the hidden size, F = 4 C, Q = 3 C, V vocabulary, T context, 1. */
static const struct row {
  const char *ours, *hf;
  char rows, cols;
  bool linear;
  int llmc;
} table[] = {
  { "wte.weight", "wte.weight", 'V', 'C', false, TC_LLMC_WTE },
  { "wpe.weight", "wpe.weight", 'T', 'C', false, TC_LLMC_WPE },
  { "ln_1.weight", "ln_1.weight", 'C', '1', false, TC_LLMC_LN1_W },
  { "ln_1.bias", "ln_1.bias", 'C', '1', false, TC_LLMC_LN1_B },
  { "attn.qkv.weight", "attn.c_attn.weight", 'Q', 'C', true, TC_LLMC_QKV_W },
  { "attn.qkv.bias", "attn.c_attn.bias", 'Q', '1', false, TC_LLMC_QKV_B },
  { "attn.proj.weight", "attn.c_proj.weight", 'C', 'C', true, TC_LLMC_ATT_W },
  { "attn.proj.bias", "attn.c_proj.bias", 'C', '1', false, TC_LLMC_ATT_B },
  { "ln_2.weight", "ln_2.weight", 'C', '1', false, TC_LLMC_LN2_W },
  { "ln_2.bias", "ln_2.bias", 'C', '1', false, TC_LLMC_LN2_B },
  { "mlp.fc.weight", "mlp.c_fc.weight", 'F', 'C', true, TC_LLMC_FC_W },
  { "mlp.fc.bias", "mlp.c_fc.bias", 'F', '1', false, TC_LLMC_FC_B },
  { "mlp.proj.weight", "mlp.c_proj.weight", 'C', 'F', true, TC_LLMC_PROJ_W },
  { "mlp.proj.bias", "mlp.c_proj.bias", 'C', '1', false, TC_LLMC_PROJ_B },
  { "ln_f.weight", "ln_f.weight", 'C', '1', false, TC_LLMC_LNF_W },
  { "ln_f.bias", "ln_f.bias", 'C', '1', false, TC_LLMC_LNF_B },
};
enum { N_ROWS = sizeof table / sizeof *table };

static int64_t size_of(char unit, const struct tc_model *m)
{
  switch (unit) {
  case 'V': return m->vocab;
  case 'T': return m->context;
  case 'C': return m->hidden;
  case 'Q': return 3 * m->hidden;
  case 'F': return 4 * m->hidden;
  default: return 1;
  }
}

static void add(struct gpt_tensor *t, const struct row *r, const struct tc_model *m, int64_t layer)
{
  bool in_layer = tc_llmc_per_layer(r->llmc);
  char prefix[32] = "";
  if (in_layer) snprintf(prefix, sizeof prefix, "h.%d.", (int)layer);
  *t = (struct gpt_tensor){ .rows = size_of(r->rows, m), .cols = size_of(r->cols, m),
    .heads = r->rows == 'Q' ? m->heads : 0, .linear = r->linear, .llmc = r->llmc,
    .layer = in_layer ? layer : 0 };
  snprintf(t->ours, sizeof t->ours, "%s%s", prefix, r->ours);
  snprintf(t->hf, sizeof t->hf, "%s%s", prefix, r->hf);
}

int gpt_tensors(struct gpt_tensor **out, const struct tc_model *m)
{
  int n = 0, i = 0;
  *out = tc_calloc((size_t)(m->layers * N_ROWS + N_ROWS), sizeof **out);
  for (; !tc_llmc_per_layer(table[i].llmc); i++) add(&(*out)[n++], &table[i], m, 0);
  int first = i;
  for (int64_t l = 0; l < m->layers; l++)
    for (i = first; tc_llmc_per_layer(table[i].llmc); i++) add(&(*out)[n++], &table[i], m, l);
  for (; i < N_ROWS; i++) add(&(*out)[n++], &table[i], m, 0);
  return n;
}

void gpt_hf_shape(const struct gpt_tensor *t, int *rank, int64_t dim[2])
{
  *rank = t->cols > 1 || t->llmc <= TC_LLMC_WPE ? 2 : 1;
  dim[0] = t->linear ? t->cols : t->rows;
  dim[1] = t->linear ? t->rows : t->cols;
}

bool gpt_same_order(const struct gpt_tensor *t, enum gpt_form form)
{
  return form == GPT_OURS || (t->heads == 0 && !(form == GPT_HF && t->linear));
}

int64_t gpt_place(const struct gpt_tensor *t, enum gpt_form form, int64_t i)
{
  if (form == GPT_OURS) return i;
  bool turned = form == GPT_HF && t->linear;
  int64_t row = turned ? i % t->rows : i / t->cols, col = turned ? i / t->rows : i % t->cols;
  if (t->heads) {                               /* [3, heads, d] there, [heads, 3, d] here */
    int64_t d = t->rows / 3 / t->heads;
    int64_t e = row / (t->heads * d), h = row / d % t->heads;
    row = (h * 3 + e) * d + row % d;
  }
  return row * t->cols + col;
}

float gpt_half_to_f32(uint16_t h)
{
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 0x3ffu;
  union { uint32_t u; float f; } x;
  if (e == 0) {                                  /* zero and subnormals: m * 2^-24 */
    x.f = (float)m * 0x1p-24f;
    x.u |= sign;
  } else {
    x.u = sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13;
  }
  return x.f;
}

/* ---- config.json ------------------------------------------------------------------- */

json_t *gpt_config_json(const struct tc_model *m, double dropout, const char *dtype)
{
  json_t *o = json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:n, s:s, s:f, s:b}",
    "architectures", "GPT2LMHeadModel", "model_type", "gpt2", "n_layer", (json_int_t)m->layers,
    "n_head", (json_int_t)m->heads, "n_embd", (json_int_t)m->hidden, "n_positions",
    (json_int_t)m->context, "n_ctx", (json_int_t)m->context, "vocab_size", (json_int_t)m->vocab,
    "n_inner", "activation_function", "gelu_new", "layer_norm_epsilon", 1e-5,
    "tie_word_embeddings", 1);
  const json_int_t end_of_text = 50256;          /* GPT-2's; other vocabularies have none */
  const char *const tokens[] = { "bos_token_id", "eos_token_id" };
  for (int i = 0; i < 2; i++)
    json_object_set_new(o, tokens[i], m->vocab > end_of_text ? json_integer(end_of_text)
                                                             : json_null());
  json_object_set_new(o, "resid_pdrop", json_real(dropout));
  json_object_set_new(o, "embd_pdrop", json_real(dropout));
  json_object_set_new(o, "attn_pdrop", json_real(0));
  json_object_set_new(o, "initializer_range", json_real(0.02));
  json_object_set_new(o, "torch_dtype", json_string(dtype));
  return o;
}

int gpt_config_read(json_t **out, const char *path, struct tc_err *err)
{
  struct stat st;
  json_error_t why;
  if (stat(path, &st) == 0 && st.st_size > MOST_CONFIG)
    return tc_fail(err, TC_EUSER, "%s: too large to be a model's config.json", path);
  *out = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
  if (json_is_object(*out)) return 0;
  if (!*out) return tc_fail(err, TC_EUSER, "%s:%d: not a JSON object: %s", path, why.line, why.text);
  json_decref(*out);
  return tc_fail(err, TC_EUSER, "%s: JSON, but not an object", path);
}

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

int gpt_config_check(const json_t *config, int64_t *heads, const char *where, struct tc_err *err)
{
  const json_t *eps = json_object_get(config, "layer_norm_epsilon");
  const json_t *inner = json_object_get(config, "n_inner");
  const json_t *width = json_object_get(config, "n_embd");
  const char *other = NULL;
  double e = json_number_value(eps);
  if (other_text(config, "model_type", "gpt2", "gpt2")) other = "model_type";
  else if (other_text(config, "activation_function", "gelu_new", "gelu_pytorch_tanh"))
    other = "activation_function";
  else if (eps && !(e > 0.99e-5 && e < 1.01e-5)) other = "layer_norm_epsilon";
  else if (inner && !json_is_null(inner) &&
           json_integer_value(inner) / 4 != json_integer_value(width)) other = "n_inner";
  else if (other_bool(config, "tie_word_embeddings", true)) other = "tie_word_embeddings";
  else if (other_bool(config, "scale_attn_weights", true)) other = "scale_attn_weights";
  else if (other_bool(config, "scale_attn_by_inverse_layer_idx", false))
    other = "scale_attn_by_inverse_layer_idx";
  else if (other_bool(config, "add_cross_attention", false)) other = "add_cross_attention";
  if (other)
    return tc_fail(err, TC_EUSER, "%s: \"%s\" differs from this program's model: GPT-2 as "
                   "OpenAI made it (gelu_new, epsilon 1e-5, head tied to the embedding)", where,
                   other);
  *heads = (int64_t)json_integer_value(json_object_get(config, "n_head"));
  if (*heads < 1 || *heads > 1 << 24)
    return tc_fail(err, TC_EUSER, "%s: \"n_head\" is missing or invalid", where);
  return 0;
}
