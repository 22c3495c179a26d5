/* model.h - what a model is: a preset, a row of the table of families, and sizes.
 *
 * In: keys of a run file, a config.json, or the text in a checkpoint's manifest. Out: sizes from which the program
 * is built (transformer.h). Files in reading order: family.def (a row per family), model.[ch], hf.[ch] (the same from
 * a config.json), transformer.[ch] (the forward pass); optim.[ch], which appends the update after
 * src/passes/grad.c, and makes the programs that initialise and refresh weights.
 *
 * Enums are those of src/config/options.def. A field that is 0 is not given: the preset's, the family's or a default
 * stands for it. */
#ifndef TC_MODEL_H
#define TC_MODEL_H

#include "src/base/base.h"
#include "src/config/choices.h"

/* Rotary frequencies beyond the context that a model was trained with first. factor 0: as they are.
 * original 0: all are divided by factor; else Llama 3.1's: those of a wavelength above original / low are,
 * those below original / high are not, between them is a blend. */
struct tc_rope_scaling { float factor, low, high; int64_t original; };

/* The largest sizes that a model may have, wherever they come from: the limits of options.def. */
enum { TC_MOST_LAYERS = 4096, TC_MOST_HIDDEN = 1 << 20, TC_MOST_HEADS = 1 << 16, TC_MOST_HEAD_DIM = 1024,
       TC_MOST_FFN = 1 << 22, TC_MOST_CONTEXT = 1 << 24, TC_MOST_VOCAB = 1 << 24 };

struct tc_model {
  const char *preset;            /* NULL or "" if sized by hand */
  int64_t layers, hidden, heads, context, vocab;
  int64_t kv_heads, head_dim, ffn;
  uint8_t family;                /* enum tc_family */
  uint8_t norm, act;             /* enum tc_norm, enum tc_activation */
  uint8_t bias, qk_norm, tied;   /* enum tc_switch: biases of products; norms of queries and keys; one
                                  * matrix for embedding and head */
  float norm_eps, rope_theta;    /* rope_theta below 0: learned positions */
  struct tc_rope_scaling rope_scaling;
  int64_t positions;             /* that a config.json allows, at least the context; 0: the context. Changes
                                  * nothing that is computed and is not in tc_model_text */
  int64_t window;                /* of a config.json: contexts above it would need it; 0: none. Not in tc_model_text */
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

/* freq[head_dim / 2]: radians from one position to the next, in float as Hugging Face computes them. */
void tc_model_rope(float *freq, const struct tc_model *m);
/* Every field of `m` that is not given, from `from`. */
void tc_model_take(struct tc_model *m, const struct tc_model *from);
/* What tc_rope_scaling_parse reads; owned by the caller. */
char *tc_rope_scaling_text(const struct tc_rope_scaling *s);
/* "none", "linear:FACTOR" or "llama3:FACTOR:LOW:HIGH:ORIGINAL". TC_EUSER: anything else. */
int tc_rope_scaling_parse(struct tc_rope_scaling *s, const char *text, struct tc_err *err);

#endif
