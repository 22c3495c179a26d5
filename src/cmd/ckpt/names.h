/* names.h - a model's tensors as other programs name and order them: Hugging Face's GPT-2, Llama and
 * Qwen3, and llm.c's GPT-2. Shared by `tercio ckpt export` and `import`. Everything here is Local.
 *
 * One of our tensors is one or several of theirs, by rows. As matrices [rows, cols], y = x w^T + b, w[out, in]:
 *   ours       qkv [kv_heads, group + 2, head_dim; hidden], gate_up [2, ffn; hidden], the others [out; in]
 *   llm.c      qkv [3, heads, head_dim; hidden], the others the same
 *   HF GPT-2   as llm.c, but those of linear layers transposed, [in; out]
 *   HF Llama   q [heads, head_dim; hidden], k and v [kv_heads, head_dim; hidden], gate and up [ffn; hidden]
 * A rotary position rotates elements i and i + head_dim / 2 of a head here and in Hugging Face's files (half),
 * 2i and 2i + 1 in files of the other order (interleaved). */
#ifndef TC_CMD_CKPT_NAMES_H
#define TC_CMD_CKPT_NAMES_H

#include "io/formats/llmc.h"
#include "src/model/model.h"

enum names_form { NAMES_OURS, NAMES_HF, NAMES_LLMC };

/* One of their tensors, and which rows of ours it is. */
struct part {
  char ours[48], hf[80];          /* names; hf without the "transformer." that may lead GPT-2's */
  int64_t rows, cols;             /* of theirs, before it is transposed; a vector has one column */
  int rank;                       /* of theirs */
  int64_t first, elems;           /* of ours among all of ours, one after the other */
  char map;                       /* which rows of ours: see names.c */
  int64_t kv_heads, group, head_dim, ffn;
  bool linear;                    /* a linear layer's weight */
  bool interleaved;               /* its rotary order */
  int llmc;                       /* enum tc_llmc_tensor */
  int64_t layer;                  /* 0 outside of layers */
};

/* All parts of a complete model, in the order of its layers; those of one tensor are adjacent. NAMES_OURS: one
 * part a tensor. An owned array; returns the number. The sizes must have been checked: memory is
 * proportional to the layers. */
int names_list(struct part **out, const struct tc_model *m, enum names_form form, bool interleaved);
static inline int64_t part_elems(const struct part *t) { return t->rows * t->cols; }
/* The shape that HF gives it: dim[rank]. */
void part_hf_shape(const struct part *t, int64_t dim[2]);

/* The index in the elements of our tensor of element i of the other program's order. */
int64_t part_place(const struct part *t, enum names_form form, int64_t i);
/* The same for one element after the other from the first; those of a row are adjacent, unless it is transposed. */
struct part_walk { const struct part *t; enum names_form form; int64_t i, col, place; };
static inline int64_t part_next(struct part_walk *w)
{
  if (w->col == 0 || (w->t->linear && w->form == NAMES_HF)) w->place = part_place(w->t, w->form, w->i);
  if (++w->col == w->t->cols) w->col = 0;
  w->i++;
  return w->place++;
}
/* Whether it is the whole tensor in the same order of elements. */
bool part_same_order(const struct part *t, enum names_form form);

/* The number that an IEEE half of these bits is. */
float names_half_to_f32(uint16_t h);

#endif
