/* hf.h - config.json of Hugging Face's transformers, as a description of a model. Everything here is Local.
 *
 * The classes are rows of hf.def, and transformers' own code says what a member means and what holds where it is missing.
 * A file is not trusted: sizes are within the limits of options.def; a member that would change what is computed, and can't
 * be, is refused by its name, and so is one that says otherwise than another of the same meaning.
 * Files: hf.c (which class, sizes, layers), hf_rope.c (rotary positions), hf_member.c, hf_write.c, hf_impl.h (what they share). */
#ifndef TC_HF_H
#define TC_HF_H

#include "src/model/model.h"

/* The longest context that is taken from max_position_embeddings: models with rotary positions allow far
 * more than a step can hold in memory. */
enum { TC_HF_CONTEXT = 8192 };

/* What the file says of the model, with 0 for what it does not say. PATH is config.json or its folder.
 * context: n_positions, or max_position_embeddings (which is positions) up to TC_HF_CONTEXT. */
int tc_hf_read(struct tc_model *m, const char *path, struct tc_err *err);
/* The name of the class that computes what this complete model does: its family's, else another one. NULL with the option
 * in *err that has another value in that of its family. */
const char *tc_hf_architecture(const struct tc_model *m, struct tc_err *err);
/* Whether that class, or if there is none its family's, has queries, keys and values, and gate and up, as matrices of their own. */
bool tc_hf_has_parts(const struct tc_model *m);
/* Whether it is GPT-2's: learned positions, and tensors by other names and turned. */
bool tc_hf_is_gpt2(const struct tc_model *m);
/* The tokens that begin and end a text; below 0: unknown, which is null in the file. */
struct tc_hf_ids { int64_t begin, end; };
/* config.json of a complete model that has an architecture; owned by the caller. dtype: float32 or bfloat16. */
char *tc_hf_text(const struct tc_model *m, struct tc_hf_ids ids, double dropout, const char *dtype);

#endif
