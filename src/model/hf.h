/* hf.h - config.json of Hugging Face's transformers, as a description of a model. Everything here is Local.
 *
 * GPT2LMHeadModel, LlamaForCausalLM, Qwen3ForCausalLM and, without a window, MistralForCausalLM are known. A file is not
 * trusted: sizes are within the limits of options.def; a member that would change what is computed is refused by its
 * name, and so is one that says otherwise than another of the same meaning. */
#ifndef TC_HF_H
#define TC_HF_H

#include "src/model/model.h"

/* The longest context that is taken from max_position_embeddings: models with rotary positions allow far
 * more than a step can hold in memory. */
enum { TC_HF_CONTEXT = 8192 };

/* What the file says of the model, with 0 for what it does not say. PATH is config.json or its folder.
 * context: n_positions, or max_position_embeddings (which is positions) up to TC_HF_CONTEXT. */
int tc_hf_read(struct tc_model *m, const char *path, struct tc_err *err);
/* The name of the architecture that computes what this complete model does. NULL with the option
 * in *err that has another value there. */
const char *tc_hf_architecture(const struct tc_model *m, struct tc_err *err);
/* The tokens that begin and end a text; below 0: unknown, which is null in the file. */
struct tc_hf_ids { int64_t begin, end; };
/* config.json of a complete model that has an architecture; owned by the caller. dtype: float32 or bfloat16. */
char *tc_hf_text(const struct tc_model *m, struct tc_hf_ids ids, double dropout, const char *dtype);

#endif
