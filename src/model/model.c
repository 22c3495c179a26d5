/* model.c - presets, families, and the sizes that follow from them. */
#include "src/model/model.h"

#include <math.h>
#include <string.h>

static const struct tc_model families[] = {
#define FAMILY(id, name, norm_, act_, bias_, qk, tied_, eps, theta) \
  [TC_FAMILY_##id] = { .family = TC_FAMILY_##id, .norm = norm_, .act = act_, .bias = bias_, .qk_norm = qk, \
    .tied = tied_, .norm_eps = eps, .rope_theta = theta },
#include "src/model/family.def"
#undef FAMILY
};

/* Llama 3.2's frequencies. */
#define LLAMA32 .rope_scaling = { 32, 1, 4, 8192 }
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
  { .preset = NULL }
};

void tc_model_take(struct tc_model *m, const struct tc_model *from)
{
#define TAKE(field) if (m->field == 0) m->field = from->field
  TAKE(family); TAKE(layers); TAKE(hidden); TAKE(heads); TAKE(context); TAKE(vocab); TAKE(kv_heads); TAKE(head_dim);
  TAKE(ffn); TAKE(norm); TAKE(act); TAKE(bias); TAKE(qk_norm); TAKE(tied); TAKE(norm_eps); TAKE(rope_theta);
  TAKE(positions);
#undef TAKE
  if (m->rope_scaling.factor == 0) m->rope_scaling = from->rope_scaling;
}

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
  if (!m.kv_heads) m.kv_heads = m.heads;
  if (!m.head_dim && m.heads) m.head_dim = m.hidden / m.heads;
  if (!m.ffn)
    m.ffn = m.act == TC_ACT_SWIGLU ? tc_round_up(tc_ceil_div(8 * m.hidden, 3), WIDTH_STEP) : 4 * m.hidden;
  return m;
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
    { "ffn", m->ffn, TC_MOST_FFN, "" },
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
  if (!(m->norm_eps > 0 && m->norm_eps <= 1))
    return tc_fail(err, TC_EUSER, "model.norm_eps = %g is not above 0 and at most 1", (double)m->norm_eps);
  if (m->rope_theta != -1 && !is_within(m->rope_theta, 1, 1e12f))
    return tc_fail(err, TC_EUSER, "model.rope_theta = %g is not from 1 to 1e12", (double)m->rope_theta);
  return 0;
}

static int check_heads(const struct tc_model *m, struct tc_err *err)
{
  if (m->heads % m->kv_heads)
    return tc_fail(err, TC_EUSER, "model.kv_heads = %lld does not divide model.heads = %lld; kv_heads = %lld "
                   "would", (long long)m->kv_heads, (long long)m->heads,
                   (long long)tc_divisor(m->heads, m->kv_heads));
  if (m->rope_theta > 0 && m->head_dim % 2)
    return tc_fail(err, TC_EUSER, "model.head_dim = %lld is odd, but rotary positions rotate pairs: %lld "
                   "would fit", (long long)m->head_dim, (long long)m->head_dim + 1);
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
  return check_heads(m, err);
}

/* ---- what follows from the sizes ------------------------------------------------------ */

int64_t tc_model_layer_params(const struct tc_model *given)
{
  const struct tc_model complete = tc_model_complete(given), *m = &complete;
  const int64_t c = m->hidden, q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
  const int64_t up = m->act == TC_ACT_SWIGLU ? 2 * m->ffn : m->ffn;
  int64_t n = c * (q + 2 * kv) + q * c + up * c + c * m->ffn;
  if (m->bias == TC_ON) n += q + 2 * kv + c + up + c;
  if (m->qk_norm == TC_ON) n += 2 * m->head_dim;
  return n + 2 * c * (m->norm == TC_LAYER_NORM ? 2 : 1);
}

int64_t tc_model_params(const struct tc_model *given)
{
  const struct tc_model m = tc_model_complete(given);
  int64_t n = m.vocab * m.hidden * (m.tied == TC_ON ? 1 : 2) + m.layers * tc_model_layer_params(&m);
  if (m.rope_theta < 0) n += m.context * m.hidden;
  return n + m.hidden * (m.norm == TC_LAYER_NORM ? 2 : 1);
}

double tc_model_flops(const struct tc_model *given)
{
  const struct tc_model m = tc_model_complete(given);
  double params = (double)tc_model_params(&m);
  if (m.tied != TC_ON) params -= (double)(m.vocab * m.hidden);          /* rows are looked up */
  return 6 * params + 12 * (double)(m.layers * m.heads * m.head_dim) * (double)m.context;
}

/* In float, and in this order, as transformers does it (modeling_rope_utils.py): an angle is a product
 * of position and frequency, and its error grows with the position. */
void tc_model_rope(float *freq, const struct tc_model *m)
{
  const struct tc_rope_scaling *s = &m->rope_scaling;
  for (int64_t i = 0; i < m->head_dim / 2; i++) {
    float f = 1.0f / powf(m->rope_theta, (float)(2 * i) / (float)m->head_dim);
    if (s->factor > 0 && s->original == 0) {
      f /= s->factor;
    } else if (s->factor > 0) {
      const float length = (float)(2 * M_PI) / f, original = (float)s->original;
      const float blend = (original / length - s->low) / (s->high - s->low);
      if (length > original / s->low) f /= s->factor;
      else if (length >= original / s->high) f = (1 - blend) * f / s->factor + blend * f;
    }
    freq[i] = f;
  }
}

/* ---- text ------------------------------------------------------------------------------ */

static bool is_factor(float x) { return is_within(x, 1e-6f, 1e6f); }

int tc_rope_scaling_parse(struct tc_rope_scaling *s, const char *text, struct tc_err *err)
{
  long long original = 0;
  int end = 0;
  *s = (struct tc_rope_scaling){ 0 };
  if (!*text) return 0;
  if (!strcmp(text, "none")) {
    s->factor = 1;
    return 0;
  }
  const bool linear = sscanf(text, "linear:%f%n", &s->factor, &end) == 1 && !text[end];
  if (!linear && (sscanf(text, "llama3:%f:%f:%f:%18lld%n", &s->factor, &s->low, &s->high, &original, &end) != 4 ||
                  text[end]))
    return tc_fail(err, TC_EUSER, "model.rope_scaling = %.100s is not known; none, linear:FACTOR or "
                   "llama3:FACTOR:LOW:HIGH:ORIGINAL would be, such as llama3:8:1:4:8192", text);
  s->original = original;
  if (is_factor(s->factor) && (linear || (is_factor(s->low) && is_factor(s->high) && s->high > s->low &&
                                          original >= 1 && original <= TC_MOST_CONTEXT))) return 0;
  return tc_fail(err, TC_EUSER, "model.rope_scaling = %.100s: FACTOR, LOW and HIGH have to be from 1e-6 to 1e6, HIGH "
                 "above LOW, ORIGINAL from 1 to %d", text, TC_MOST_CONTEXT);
}

char *tc_rope_scaling_text(const struct tc_rope_scaling *s)
{
  char f[3][32];
  if (s->factor == 0 || (s->factor == 1 && s->original == 0)) return tc_sprintf("none");
  if (s->original == 0) return tc_sprintf("linear:%s", tc_shortest_float(f[0], s->factor));
  return tc_sprintf("llama3:%s:%s:%s:%lld", tc_shortest_float(f[0], s->factor), tc_shortest_float(f[1], s->low),
                    tc_shortest_float(f[2], s->high), (long long)s->original);
}

bool tc_model_is_plain(const struct tc_model *given)
{
  const struct tc_model complete = tc_model_complete(given), *m = &complete;
  struct tc_model plain = { .layers = m->layers, .hidden = m->hidden, .heads = m->heads,
                            .context = m->context, .vocab = m->vocab };
  plain = tc_model_complete(&plain);
  return m->family == plain.family && m->kv_heads == plain.kv_heads && m->head_dim == plain.head_dim
         && m->ffn == plain.ffn && m->norm == plain.norm && m->act == plain.act && m->bias == plain.bias
         && m->qk_norm == plain.qk_norm && m->tied == plain.tied && m->norm_eps == plain.norm_eps
         && m->rope_theta == plain.rope_theta;
}

char *tc_model_text(const struct tc_model *given)
{
  const struct tc_model m = tc_model_complete(given);
  char *sizes = tc_sprintf("layers %lld hidden %lld heads %lld context %lld vocab %lld",
                           (long long)m.layers, (long long)m.hidden, (long long)m.heads,
                           (long long)m.context, (long long)m.vocab);
  if (tc_model_is_plain(&m)) return sizes;
  char *scaling = tc_rope_scaling_text(&m.rope_scaling), f[2][32];
  char *all = tc_sprintf("%s family %s kv_heads %lld head_dim %lld ffn %lld norm %s norm_eps %s act %s "
                         "rope_theta %s rope_scaling %s bias %s qk_norm %s tied %s", sizes,
                         tc_word_model_family(m.family), (long long)m.kv_heads, (long long)m.head_dim,
                         (long long)m.ffn, tc_word_model_norm(m.norm), tc_shortest_float(f[0], m.norm_eps),
                         tc_word_model_act(m.act), tc_shortest_float(f[1], m.rope_theta), scaling, tc_word_model_bias(m.bias),
                         tc_word_model_qk_norm(m.qk_norm), tc_word_model_tied(m.tied));
  TC_FREE(sizes, scaling);
  return all;
}

/* What follows the sizes of a model that is not GPT-2. */
static bool parse_rest(struct tc_model *m, const char *text)
{
  char scaling[100], words[6][16];
  const char *const option[6] = { "model.family", "model.norm", "model.act", "model.bias", "model.qk_norm",
                                  "model.tied" };
  uint8_t *const field[6] = { &m->family, &m->norm, &m->act, &m->bias, &m->qk_norm, &m->tied };
  long long kv, d, f;
  int end = 0;
  struct tc_err err;
  if (sscanf(text, " family %15s kv_heads %18lld head_dim %18lld ffn %18lld norm %15s norm_eps %f act %15s "
             "rope_theta %f rope_scaling %99s bias %15s qk_norm %15s tied %15s%n", words[0], &kv, &d, &f,
             words[1], &m->norm_eps, words[2], &m->rope_theta, scaling, words[3], words[4], words[5],
             &end) != 12 || text[end])
    return false;
  for (int i = 0; i < 6; i++) {
    int value;
    if (!tc_choice_parse(option[i], words[i], &value)) return false;
    *field[i] = (uint8_t)value;
  }
  m->kv_heads = kv;
  m->head_dim = d;
  m->ffn = f;
  return tc_rope_scaling_parse(&m->rope_scaling, scaling, &err) == 0;
}

int tc_model_parse(struct tc_model *m, const char *text, const char *where, struct tc_err *err)
{
  long long n[5];
  int end = 0;
  struct tc_err why;
  *m = (struct tc_model){ .preset = "" };
  bool good = sscanf(text, "layers %18lld hidden %18lld heads %18lld context %18lld vocab %18lld%n", &n[0],
                     &n[1], &n[2], &n[3], &n[4], &end) == 5;
  if (good && text[end]) good = parse_rest(m, text + end);
  if (!good)
    return tc_fail(err, TC_EUSER, "%s is not of a model that this version knows, but of '%.200s'", where,
                   text);
  m->layers = n[0];
  m->hidden = n[1];
  m->heads = n[2];
  m->context = n[3];
  m->vocab = n[4];
  if (tc_model_resolve(m, &why) == 0) return 0;
  return tc_fail(err, TC_EUSER, "%s is of a model that can't be: %s", where, why.text);
}
