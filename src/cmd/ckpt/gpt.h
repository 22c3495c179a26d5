/* gpt.h - the model's tensors as other programs name and order them: Hugging Face's
 * GPT-2 and llm.c. Shared by `tercio ckpt export` and `import`. Everything here is Local.
 *
 * As matrices [rows, cols], y = x w^T + b, w[out, in], the weights are:
 *   ours    qkv [heads, 3, d; hidden], the others [out; in]
 *   llm.c   qkv [3, heads, d; hidden], the others the same
 *   HF      as llm.c, but those of linear layers transposed, [in; out] */
#ifndef TC_CMD_CKPT_GPT_H
#define TC_CMD_CKPT_GPT_H

#include <jansson.h>

#include "io/formats/llmc.h"
#include "src/model/transformer.h"

enum gpt_form { GPT_OURS, GPT_HF, GPT_LLMC };

struct gpt_tensor {
  char ours[48], hf[64];          /* names; hf without the "transformer." that may lead */
  int64_t rows, cols;             /* a vector has one column */
  int64_t heads;                  /* of qkv; else 0 */
  bool linear;                    /* a linear layer's weight */
  int llmc;                       /* enum tc_llmc_tensor */
  int64_t layer;                  /* 0 outside of layers */
};

/* All tensors of a model, in the order of its layers; an owned array. Returns the number. The
 * sizes must have been checked: memory is proportional to the layers. */
int gpt_tensors(struct gpt_tensor **out, const struct tc_model *m);
static inline int64_t gpt_elems(const struct gpt_tensor *t) { return t->rows * t->cols; }
/* The shape that HF gives it: dim[*rank]. */
void gpt_hf_shape(const struct gpt_tensor *t, int *rank, int64_t dim[2]);

/* The index in ours[rows * cols] of element i of the other program's order. */
int64_t gpt_place(const struct gpt_tensor *t, enum gpt_form form, int64_t i);
/* Whether both have the same order of elements. */
bool gpt_same_order(const struct gpt_tensor *t, enum gpt_form form);

/* The number that an IEEE half of these bits is. */
float gpt_half_to_f32(uint16_t h);

/* The object in a config.json into *out, owned by the caller. */
int gpt_config_read(json_t **out, const char *path, struct tc_err *err);
/* HF's config.json of a model; owned by the caller. */
json_t *gpt_config_json(const struct tc_model *m, double dropout, const char *dtype);
/* Whether a config.json describes a model that our program can compute; *heads is its number of heads. `where`
 * begins the sentence, which names the member that is different. */
int gpt_config_check(const json_t *config, int64_t *heads, const char *where, struct tc_err *err);

#endif
