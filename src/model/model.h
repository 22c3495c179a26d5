/* model.h - what a model is: a preset, a row of the table of families, and sizes.
 *
 * In: keys of a run file, a config.json, or the text in a checkpoint's manifest. Out: sizes from which the program
 * is built (transformer.h). Files in reading order: field.def (a row per field), family.def (a row per family), model.[ch],
 * rope.c, model_text.c (checkpoints' texts), hf.[ch] (the same from a config.json), transformer.[ch] (the forward pass) with
 * impl.h, build.c, lora.c, linear.c and self_attention.c; optim.[ch], which appends the update after
 * src/passes/grad.c, and makes the programs that initialise and refresh weights.
 *
 * Enums are those of src/config/options.def. A field that is 0 is not given: the preset's, the family's or a default
 * stands for it. */
#ifndef TC_MODEL_H
#define TC_MODEL_H

#include "src/base/base.h"
#include "src/config/choices.h"

/* Rotary frequencies f beyond the context of `original` tokens that a model was trained with first (rope.c). */
enum tc_rope_kind {
  TC_ROPE_NOT_GIVEN,
  TC_ROPE_PLAIN,                 /* as they are */
  TC_ROPE_LINEAR,                /* f / factor */
  TC_ROPE_LLAMA3,                /* f / factor of wavelengths above original / low, f below original / high, else a blend */
  TC_ROPE_YARN,                  /* f / factor of those that turn less than `low` times in `original` tokens, f of those that
                                  * turn more than `high` times, else a blend; sines and cosines times `attention` */
};
struct tc_rope_scaling {
  uint8_t kind;
  bool untruncated;              /* YARN: the blend is between real indices, not whole ones */
  float factor, low, high, attention;
  int64_t original;
};

/* The largest sizes that a model may have, wherever they come from: the limits of options.def. */
enum { TC_MOST_LAYERS = 4096, TC_MOST_HIDDEN = 1 << 20, TC_MOST_HEADS = 1 << 16, TC_MOST_HEAD_DIM = 1024,
       TC_MOST_FFN = 1 << 22, TC_MOST_CONTEXT = 1 << 24, TC_MOST_VOCAB = 1 << 24, TC_MOST_PATTERN = 256 };

#define TC_SQRT_HIDDEN -1.f      /* embed_scale of a family: sqrt(hidden) */

struct tc_model {
  const char *preset;            /* NULL or "" if sized by hand */
  int64_t layers, hidden, heads, context, vocab;
  int64_t kv_heads, head_dim, ffn;
  uint8_t family;                /* enum tc_family */
  uint8_t norm, norm_at, act;    /* enum tc_norm, enum tc_norm_at, enum tc_activation */
  uint8_t bias, qk_norm, tied;   /* enum tc_bias; enum tc_qk_norm; enum tc_switch: one matrix for embedding and head */
  float norm_eps, rope_theta;    /* rope_theta below 0: learned positions */
  struct tc_rope_scaling rope_scaling;
  char pattern[TC_MOST_PATTERN + 1];     /* a letter for each layer's kind (tc_model_layer), repeated over all */
  int64_t window;                /* the keys that a token of a sliding layer sees; -1: no layer slides */
  float sliding_theta;           /* of sliding layers */
  struct tc_rope_scaling sliding_scaling;
  int64_t rotary_dim;            /* the first so many elements of a head turn */
  float attn_scale;              /* of attention's scores; -1: 1 / sqrt(head_dim) */
  float attn_cap, logit_cap;     /* c tanh(x / c); -1: none */
  float embed_scale, residual_scale, logit_divisor;
  int64_t mup;                   /* muP: the hidden size for which rates were chosen; -1: no muP */
  int64_t positions;             /* that a config.json allows, at least the context; 0: the context. Changes
                                  * nothing that is computed and is not in tc_model_text */
};
extern const struct tc_model tc_presets[];           /* ends with preset NULL */

/* GPT-2's vocabulary, whose last token ends a text; programs pad it to a multiple of 128 at most. */
enum { TC_GPT2_VOCAB = 50257 };
static inline bool tc_is_gpt2_vocab(int64_t vocab)
{
  return vocab >= TC_GPT2_VOCAB && vocab <= tc_round_up(TC_GPT2_VOCAB, 128);
}

/* Local. Sets what is not given, from the preset, the family, defaults. TC_EUSER: unknown preset; sizes that are
 * missing, beyond their limits or don't fit each other. */
int tc_model_resolve(struct tc_model *m, struct tc_err *err);
/* Local. The same without a preset and without checks: never fails. */
struct tc_model tc_model_complete(const struct tc_model *m);
int64_t tc_model_params(const struct tc_model *m);   /* without padding; a tied head counts once */
int64_t tc_model_layer_params(const struct tc_model *m);
/* Operations of a training step per token: 6 per parameter that takes part in a product, and those of
 * attention's scores: Chowdhery et al., "PaLM", 2022, appendix B. */
double tc_model_flops(const struct tc_model *m);
/* Canonical text: "layers 4 hidden 128 heads 4 context 128 vocab 256" for GPT-2, followed by all other
 * fields for what differs from it. Owned by the caller. */
char *tc_model_text(const struct tc_model *m);
/* Whether tc_model_text is the five sizes alone: a GPT-2 without changes. */
bool tc_model_is_plain(const struct tc_model *m);
/* Local. What tc_model_text wrote, resolved. TC_EUSER: `where` (a manifest's path) holds something else. */
int tc_model_parse(struct tc_model *m, const char *text, const char *where, struct tc_err *err);

/* What a layer is, by its letter in the pattern. */
struct tc_layer_kind { bool sliding, rotary; };
struct tc_layer_kind tc_model_layer(const struct tc_model *m, int64_t layer);
/* Which products have biases. */
static inline bool tc_bias_of_qkv(const struct tc_model *m)
{ return m->bias == TC_BIAS_ALL || m->bias == TC_BIAS_QKV || m->bias == TC_BIAS_ATTENTION; }
static inline bool tc_bias_of_proj(const struct tc_model *m) { return m->bias == TC_BIAS_ALL || m->bias == TC_BIAS_ATTENTION; }
static inline bool tc_bias_of_mlp(const struct tc_model *m) { return m->bias == TC_BIAS_ALL || m->bias == TC_BIAS_MLP; }
/* muP's ratio of widths, by which the logits are divided, too; 1 without it. */
static inline float tc_model_width(const struct tc_model *m) { return m->mup > 0 ? (float)m->hidden / (float)m->mup : 1; }
/* Whether the MLP has a gate. */
static inline bool tc_is_gated(const struct tc_model *m) { return m->act == TC_ACT_SWIGLU || m->act == TC_ACT_GEGLU; }

/* freq[rotary / 2]: radians from one position to the next, in float as Hugging Face computes them. */
void tc_rope_frequencies(float *freq, int64_t rotary, float theta, const struct tc_rope_scaling *s);
/* Every field of `m` that is not given, from `from`. */
void tc_model_take(struct tc_model *m, const struct tc_model *from);
/* ... from the other field that it is like (field.def). */
void tc_model_take_like(struct tc_model *m);
/* The text of a complete model's fields, which is owned by the caller; false: it is no such text. */
char *tc_fields_text(const struct tc_model *m, bool sizes_alone);
bool tc_fields_read(struct tc_model *m, const char *text);
/* The name of the first field in which two complete models differ; NULL: none. */
const char *tc_model_other(const struct tc_model *a, const struct tc_model *b);
/* What tc_rope_scaling_parse reads; owned by the caller. */
char *tc_rope_scaling_text(const struct tc_rope_scaling *s);
/* "", which is not given, or what the option model.rope_scaling takes. TC_EUSER: anything else. */
int tc_rope_scaling_parse(struct tc_rope_scaling *s, const char *text, struct tc_err *err);
bool tc_same_scaling(const struct tc_rope_scaling *a, const struct tc_rope_scaling *b);
/* Letters of kinds of layers. TC_EUSER: others, or too many. */
int tc_pattern_check(const char *text, struct tc_err *err);
/* How many of the first of a pattern's n letters give `layers` layers the same kinds as all. */
int64_t tc_pattern_period(const char *text, int64_t n, int64_t layers);

#endif
