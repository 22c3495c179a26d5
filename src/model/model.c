/* model.c - presets, families, and the sizes that follow from them. */
#include "src/model/model.h"

#include <math.h>
#include <string.h>

static const struct tc_model families[] = {
#define FAMILY(id, name, ...) [TC_FAMILY_##id] = { .family = TC_FAMILY_##id, __VA_ARGS__ },
#include "src/model/family.def"
#undef FAMILY
};

/* What holds where a family says nothing else. */
static const struct tc_model usual = {
  .norm = TC_RMS_NORM, .norm_at = TC_NORM_BEFORE, .act = TC_ACT_SWIGLU, .bias = TC_BIAS_NONE, .qk_norm = TC_QK_NONE,
  .tied = TC_OFF, .rope_scaling = { .kind = TC_ROPE_PLAIN }, .pattern = "F", .window = -1, .attn_scale = -1, .attn_cap = -1,
  .logit_cap = -1, .embed_scale = 1, .residual_scale = 1, .logit_divisor = 1, .mup = -1 };

/* Llama 3.2's frequencies. */
#define LLAMA32 .rope_scaling = { TC_ROPE_LLAMA3, .factor = 32, .low = 1, .high = 4, .original = 8192 }
const struct tc_model tc_presets[] = {
  { "tiny", 4, 128, 4, 128, 256, .family = TC_FAMILY_GPT2 },
  { "small", 6, 384, 6, 256, 256, .family = TC_FAMILY_GPT2 },
  { "gpt2-124m", 12, 768, 12, 1024, 50257, .family = TC_FAMILY_GPT2 },
  { "gpt2-350m", 24, 1024, 16, 1024, 50257, .family = TC_FAMILY_GPT2 },
  { "gpt2-774m", 36, 1280, 20, 1024, 50257, .family = TC_FAMILY_GPT2 },
  { "gpt2-1558m", 48, 1600, 25, 1024, 50257, .family = TC_FAMILY_GPT2 },
  { "gpt3-125m", 12, 768, 12, 2048, 50257, .family = TC_FAMILY_GPT2 },
  { "gpt3-350m", 24, 1024, 16, 2048, 50257, .family = TC_FAMILY_GPT2 },
  { "gpt3-760m", 24, 1536, 16, 2048, 50257, .family = TC_FAMILY_GPT2 },
  { "gpt3-1.3b", 24, 2048, 16, 2048, 50257, .family = TC_FAMILY_GPT2 },
  { "gpt3-2.7b", 32, 2560, 32, 2048, 50257, .family = TC_FAMILY_GPT2 },
  { "gpt3-6.7b", 32, 4096, 32, 2048, 50257, .family = TC_FAMILY_GPT2 },
  { "gpt3-13b", 40, 5120, 40, 2048, 50257, .family = TC_FAMILY_GPT2 },
  { "gpt3-175b", 96, 12288, 96, 2048, 50257, .family = TC_FAMILY_GPT2 },
  { "bert-large", 24, 1024, 16, 512, 30522, .family = TC_FAMILY_GPT2 },
  { "turing-17b", 78, 4256, 28, 1024, 50257, .family = TC_FAMILY_GPT2 },
  { "llama-tiny", 4, 128, 4, 128, 256, 2, 32, 352, .family = TC_FAMILY_LLAMA, .rope_theta = 10000 },
  { "smollm2-135m", 30, 576, 9, 2048, 49152, 3, 64, 1536, .family = TC_FAMILY_LLAMA, .tied = TC_ON,
    .rope_theta = 100000 },
  { "llama3.2-1b", 16, 2048, 32, 8192, 128256, 8, 64, 8192, .family = TC_FAMILY_LLAMA, .tied = TC_ON, LLAMA32 },
  { "llama3-8b", 32, 4096, 32, 8192, 128256, 8, 128, 14336, .family = TC_FAMILY_LLAMA },
  { "llama3-70b", 80, 8192, 64, 8192, 128256, 8, 128, 28672, .family = TC_FAMILY_LLAMA },
  { "llama3-405b", 126, 16384, 128, 8192, 128256, 8, 128, 53248, .family = TC_FAMILY_LLAMA },
  { "qwen3-0.6b", 28, 1024, 16, 4096, 151936, 8, 128, 3072, .family = TC_FAMILY_QWEN3, .tied = TC_ON },
  { "qwen3-8b", 36, 4096, 32, 4096, 151936, 8, 128, 12288, .family = TC_FAMILY_QWEN3 },
  { "qwen2.5-0.5b", 24, 896, 14, 4096, 151936, 2, 64, 4864, .family = TC_FAMILY_QWEN2, .tied = TC_ON },
  { "qwen2.5-7b", 28, 3584, 28, 4096, 152064, 4, 128, 18944, .family = TC_FAMILY_QWEN2 },
  { "mistral-tiny", 4, 128, 4, 128, 256, 2, 32, 352, .family = TC_FAMILY_MISTRAL, .pattern = "S", .window = 48 },
  { "mistral-7b", 32, 4096, 32, 8192, 32000, 8, 128, 14336, .family = TC_FAMILY_MISTRAL, .pattern = "S", .window = 4096 },
  { "gemma2-2b", 26, 2304, 8, 8192, 256000, 4, 256, 9216, .family = TC_FAMILY_GEMMA2 },
  { "gemma3-tiny", 4, 128, 4, 128, 256, 2, 32, 352, .family = TC_FAMILY_GEMMA3, .pattern = "SSF", .window = 48,
    .attn_scale = 0.125f },
  { "gemma3-1b", 26, 1152, 4, 8192, 262144, 1, 256, 6912, .family = TC_FAMILY_GEMMA3, .window = 512 },
  { "olmo2-1b", 16, 2048, 16, 4096, 100352, 16, 128, 8192, .family = TC_FAMILY_OLMO2 },
  { "olmo2-7b", 32, 4096, 32, 4096, 100352, 32, 128, 11008, .family = TC_FAMILY_OLMO2 },
  { "smollm3-3b", 36, 2048, 16, 8192, 128256, 4, 128, 11008, .family = TC_FAMILY_SMOLLM3, .rope_theta = 5000000 },
  { "granite3.3-2b", 40, 2048, 32, 8192, 49159, 8, 64, 8192, .family = TC_FAMILY_GRANITE, .tied = TC_ON, .norm_eps = 1e-5f,
    .rope_theta = 10000000, .embed_scale = 12, .residual_scale = 0.22f, .attn_scale = 0.015625f, .logit_divisor = 8 },
  { "phi3-mini", 32, 3072, 32, 4096, 32064, 32, 96, 8192, .family = TC_FAMILY_PHI3, .pattern = "S", .window = 2047 },
  { .preset = NULL }
};

/* Names the nearest, else all. */
static int unknown_preset(const char *name, struct tc_err *err)
{
  enum { MOST = 64 };
  const char *names[MOST];
  char all[800] = "";
  int n = 0;
  for (const struct tc_model *p = tc_presets; p->preset && n < MOST; p++) {
    tc_text_add(all, sizeof all, "%s%s", n ? ", " : "", p->preset);
    names[n++] = p->preset;
  }
  int near = tc_nearest(name, names, n);
  if (near >= 0)
    return tc_fail(err, TC_EUSER, "model.preset = %s is not known; did you mean %s?", name,
                   names[near]);
  return tc_fail(err, TC_EUSER, "model.preset = %.60s is not known; the presets are %s", name, all);
}

struct tc_model tc_model_complete(const struct tc_model *given)
{
  enum { WIDTH_STEP = 64 };      /* of an MLP with a gate, whose usual width is 8/3 of the hidden size */
  struct tc_model m = *given;
  if (!m.family) m.family = TC_FAMILY_GPT2;
  tc_model_take(&m, &families[m.family]);
  tc_model_take(&m, &usual);
  if (!m.kv_heads) m.kv_heads = m.heads;
  if (!m.head_dim && m.heads) m.head_dim = m.hidden / m.heads;
  if (!m.ffn) m.ffn = tc_is_gated(&m) ? tc_round_up(tc_ceil_div(8 * m.hidden, 3), WIDTH_STEP) : 4 * m.hidden;
  if (m.embed_scale == TC_SQRT_HIDDEN) m.embed_scale = sqrtf((float)m.hidden);
  if (!strpbrk(m.pattern, "Ss")) m.sliding_theta = 0, m.sliding_scaling.kind = TC_ROPE_NOT_GIVEN;    /* no layer has them */
  if (m.rope_theta < 0) m.rotary_dim = 0;
  tc_model_take_like(&m);
  if (m.attn_scale == 1 / sqrtf((float)m.head_dim)) m.attn_scale = -1;
  m.pattern[tc_pattern_period(m.pattern, (int64_t)strlen(m.pattern), m.layers)] = 0;
  return m;
}

struct tc_layer_kind tc_model_layer(const struct tc_model *m, int64_t layer)
{
  const char kind = m->pattern[(size_t)layer % strlen(m->pattern)];
  return (struct tc_layer_kind){ .sliding = kind == 'S' || kind == 's',
                                 .rotary = (kind == 'S' || kind == 'F') && m->rope_theta > 0 };
}

/* The sizes that have no default. */
static int check_given(const struct tc_model *m, struct tc_err *err)
{
  const struct { const char *key; int64_t v; } need[] = {
    { "layers", m->layers }, { "hidden", m->hidden }, { "heads", m->heads },
    { "context", m->context }, { "vocab", m->vocab } };
  if (m->layers <= 0 && m->hidden <= 0 && m->heads <= 0 && m->context <= 0 && m->vocab <= 0)
    return tc_fail(err, TC_EUSER, "no model is named, in a run file or by --model.preset=gpt2-124m (for example), "
                   "--model.config=FOLDER or the model's sizes");
  for (size_t i = 0; i < sizeof need / sizeof need[0]; i++)
    if (need[i].v <= 0)
      return tc_fail(err, TC_EUSER, "model.%s = %lld: give a positive number, or a model.preset",
                     need[i].key, (long long)need[i].v);
  return 0;
}

/* All sizes, of a complete model: what a text or a division made of them is not limited by options.def. */
static int check_sizes(const struct tc_model *m, struct tc_err *err)
{
  const struct { const char *key; int64_t v, most; const char *hint; } size[] = {
    { "layers", m->layers, TC_MOST_LAYERS, "" }, { "hidden", m->hidden, TC_MOST_HIDDEN, "" },
    { "heads", m->heads, TC_MOST_HEADS, "" }, { "context", m->context, TC_MOST_CONTEXT, "" },
    { "vocab", m->vocab, TC_MOST_VOCAB, "" }, { "kv_heads", m->kv_heads, TC_MOST_HEADS, "" },
    { "ffn", m->ffn, TC_MOST_FFN, "" }, { "mup", m->mup == -1 ? 1 : m->mup, TC_MOST_HIDDEN, "" },
    { "head_dim", m->head_dim, TC_MOST_HEAD_DIM, "; more heads (model.heads) make it smaller" } };
  for (size_t i = 0; i < sizeof size / sizeof size[0]; i++)
    if (size[i].v < 1 || size[i].v > size[i].most)
      return tc_fail(err, TC_EUSER, "model.%s = %lld is not from 1 to %lld%s", size[i].key, (long long)size[i].v,
                     (long long)size[i].most, size[i].hint);
  return 0;
}

/* False for a NaN, too. */
static bool is_within(float x, float least, float most) { return x >= least && x <= most; }

static int check_reals(const struct tc_model *m, struct tc_err *err)
{
  const struct { const char *key; float x; bool none; } factor[] = {
    { "attn_scale", m->attn_scale, true }, { "attn_cap", m->attn_cap, true }, { "logit_cap", m->logit_cap, true },
    { "embed_scale", m->embed_scale, false }, { "residual_scale", m->residual_scale, false },
    { "logit_divisor", m->logit_divisor, false } };
  const struct { const char *key; float x; } theta[] = {
    { "rope_theta", m->rope_theta }, { "sliding_theta", m->sliding_theta } };
  if (!(m->norm_eps > 0 && m->norm_eps <= 1))
    return tc_fail(err, TC_EUSER, "model.norm_eps = %g is not above 0 and at most 1", (double)m->norm_eps);
  for (size_t i = 0; i < sizeof theta / sizeof *theta; i++)
    if (theta[i].x != -1 && !is_within(theta[i].x, 1, 1e12f))
      return tc_fail(err, TC_EUSER, "model.%s = %g is not from 1 to 1e12", theta[i].key, (double)theta[i].x);
  for (size_t i = 0; i < sizeof factor / sizeof *factor; i++)
    if (!(factor[i].none && factor[i].x == -1) && !(factor[i].x > 0 && factor[i].x <= 1e6f))
      return tc_fail(err, TC_EUSER, "model.%s = %g is not above 0 and at most 1e6", factor[i].key, (double)factor[i].x);
  return 0;
}

static int check_heads(const struct tc_model *m, struct tc_err *err)
{
  if (m->heads % m->kv_heads)
    return tc_fail(err, TC_EUSER, "model.kv_heads = %lld does not divide model.heads = %lld; kv_heads = %lld "
                   "would", (long long)m->kv_heads, (long long)m->heads,
                   (long long)tc_divisor(m->heads, m->kv_heads));
  if (m->rope_theta > 0 && m->rotary_dim == m->head_dim && m->head_dim % 2)
    return tc_fail(err, TC_EUSER, "model.head_dim = %lld is odd, but rotary positions rotate pairs: %lld "
                   "would fit", (long long)m->head_dim, (long long)m->head_dim + 1);
  if (m->rotary_dim < 1 || m->rotary_dim > m->head_dim || (m->rope_theta > 0 && m->rotary_dim % 2))
    return tc_fail(err, TC_EUSER, "model.rotary_dim = %lld is not an even number of the %lld elements of a head "
                   "(model.head_dim)", (long long)m->rotary_dim, (long long)m->head_dim);
  return 0;
}

/* Sliding layers and their window: one without the other is a mistake, or a family's default that was changed by half. */
static int check_layers(const struct tc_model *m, struct tc_err *err)
{
  const bool sliding = strpbrk(m->pattern, "Ss") != NULL, bare = strpbrk(m->pattern, "fs") != NULL;
  TC_TRY(tc_pattern_check(m->pattern, err));
  if (sliding && m->window < 0)
    return tc_fail(err, TC_EUSER, "model.pattern = %s has sliding layers, but model.window is no: give a number of tokens, or "
                   "a pattern of F alone", m->pattern);
  if (!sliding && m->window > 0)
    return tc_fail(err, TC_EUSER, "model.window = %lld, but no layer of model.pattern = %s slides: give --model.pattern=S, for "
                   "example, or --model.window=no", (long long)m->window, m->pattern);
  if (m->rope_theta < 0 && bare)
    return tc_fail(err, TC_EUSER, "model.pattern = %s has layers without positions (f, s), but this family's positions are "
                   "learned and none of a layer's", m->pattern);
  if (m->norm == TC_LAYER_NORM && m->norm_at != TC_NORM_BEFORE)
    return tc_fail(err, TC_EUSER, "model.norm_at = %s is for RMS norms: model.norm = rmsnorm would fit",
                   tc_word_model_norm_at(m->norm_at));
  if (m->window == 0 || m->window < -1 || m->window > TC_MOST_CONTEXT)
    return tc_fail(err, TC_EUSER, "model.window = %lld is not from 1 to %d", (long long)m->window, TC_MOST_CONTEXT);
  return 0;
}

int tc_model_resolve(struct tc_model *m, struct tc_err *err)
{
  if (m->preset && *m->preset) {
    const struct tc_model *p = tc_presets;
    while (p->preset && strcmp(p->preset, m->preset)) p++;
    if (!p->preset) return unknown_preset(m->preset, err);
    if (m->heads || m->hidden) {                 /* of other sizes: what follows from them does */
      struct tc_model sized = *p;
      sized.kv_heads = sized.head_dim = sized.ffn = 0;
      tc_model_take(m, &sized);
    } else {
      tc_model_take(m, p);
    }
  }
  TC_TRY(check_given(m, err));
  if (!m->head_dim && m->hidden % m->heads)
    return tc_fail(err, TC_EUSER, "model.heads = %lld does not divide model.hidden = %lld; "
                   "heads = %lld would", (long long)m->heads, (long long)m->hidden,
                   (long long)tc_divisor(m->hidden, m->heads));
  *m = tc_model_complete(m);
  TC_TRY(check_sizes(m, err));
  TC_TRY(check_reals(m, err));
  TC_TRY(check_heads(m, err));
  return check_layers(m, err);
}

/* ---- what follows from the sizes ------------------------------------------------------ */

int64_t tc_model_layer_params(const struct tc_model *given)
{
  const struct tc_model complete = tc_model_complete(given), *m = &complete;
  const int64_t c = m->hidden, q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
  const int64_t up = tc_is_gated(m) ? 2 * m->ffn : m->ffn;
  int64_t n = c * (q + 2 * kv) + q * c + up * c + c * m->ffn;
  if (tc_bias_of_qkv(m)) n += q + 2 * kv;
  if (tc_bias_of_proj(m)) n += c;
  if (tc_bias_of_mlp(m)) n += up + c;
  if (m->qk_norm == TC_QK_HEAD) n += 2 * m->head_dim;
  if (m->qk_norm == TC_QK_WHOLE) n += q + kv;
  return n + 2 * c * (m->norm == TC_LAYER_NORM || m->norm_at == TC_NORM_BOTH ? 2 : 1);
}

int64_t tc_model_params(const struct tc_model *given)
{
  const struct tc_model m = tc_model_complete(given);
  int64_t n = m.vocab * m.hidden * (m.tied == TC_ON ? 1 : 2) + m.layers * tc_model_layer_params(&m);
  if (m.rope_theta < 0) n += m.context * m.hidden;
  return n + m.hidden * (m.norm == TC_LAYER_NORM ? 2 : 1);
}

/* The keys that count for a query: all T of a full layer, as PaLM counts; of a sliding one twice the mean of what it sees. */
static double keys_of(const struct tc_model *m, int64_t layer)
{
  const double T = (double)m->context, W = (double)m->window;
  return tc_model_layer(m, layer).sliding && W < T ? TC_MIN(T, 2 * W - W * (W - 1) / T) : T;
}

double tc_model_flops(const struct tc_model *given)
{
  const struct tc_model m = tc_model_complete(given);
  double params = (double)tc_model_params(&m), keys = 0;
  if (m.tied != TC_ON) params -= (double)(m.vocab * m.hidden);          /* rows are looked up */
  for (int64_t l = 0; l < m.layers; l++) keys += keys_of(&m, l);
  return 6 * params + 12 * (double)(m.heads * m.head_dim) * keys;
}

/* ---- text ------------------------------------------------------------------------------ */

bool tc_model_is_plain(const struct tc_model *given)
{
  const struct tc_model m = tc_model_complete(given);
  struct tc_model plain = { .layers = m.layers, .hidden = m.hidden, .heads = m.heads, .context = m.context, .vocab = m.vocab };
  plain = tc_model_complete(&plain);
  return !tc_model_other(&m, &plain);
}

char *tc_model_text(const struct tc_model *given)
{
  const struct tc_model m = tc_model_complete(given);
  return tc_fields_text(&m, tc_model_is_plain(&m));
}

int tc_model_parse(struct tc_model *m, const char *text, const char *where, struct tc_err *err)
{
  struct tc_err why;
  *m = (struct tc_model){ .preset = "" };
  if (!tc_fields_read(m, text))
    return tc_fail(err, TC_EUSER, "%s is not of a model that this version knows, but of '%.200s'", where,
                   text);
  if (tc_model_resolve(m, &why) == 0) return 0;
  return tc_fail(err, TC_EUSER, "%s is of a model that can't be: %s", where, why.text);
}
