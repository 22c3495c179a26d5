/* parts.h - a model's tensors as other programs name and order them: Hugging Face's classes, and llm.c's GPT-2. What is read
 * from their files (foreign.h) and what `tercio ckpt export` writes goes by these tables.
 * Everything here is Local.
 *
 * One of our tensors is one or several of theirs, by rows. As matrices [rows, cols], y = x w^T + b, w[out, in]:
 *   ours       qkv [kv_heads, group + 2, head_dim; hidden], gate_up [2, ffn; hidden], the others [out; in]
 *   llm.c      qkv [3, heads, head_dim; hidden], the others the same
 *   HF GPT-2   as llm.c, but those of linear layers transposed, [in; out]
 *   HF Llama   q [heads, head_dim; hidden], k and v [kv_heads, head_dim; hidden], gate and up [ffn; hidden]
 * A rotary position rotates elements i and i + rotary_dim / 2 of a head here and in Hugging Face's files (half),
 * 2i and 2i + 1 in files of the other order (interleaved). */
#ifndef TC_FOREIGN_PARTS_H
#define TC_FOREIGN_PARTS_H

#include "io/formats/llmc.h"
#include "src/model/model.h"

enum tc_form { TC_FORM_OURS, TC_FORM_HF, TC_FORM_LLMC, TC_FORM_PEFT };   /* PEFT: adapters alone */

/* One of their tensors, and which rows of ours it is. */
struct tc_foreign_part {
  char ours[48], hf[96];          /* names; hf without the "transformer." that may lead GPT-2's */
  int64_t rows, cols;             /* of theirs, before it is transposed; a vector has one column */
  int rank;                       /* of theirs */
  int64_t elems;                  /* of ours */
  int our_rank, row_dims;         /* of ours; its first row_dims dimensions are rows, the others columns */
  int64_t our_dim[TC_DIMS];
  char map;                       /* which rows of ours: see parts.c */
  int64_t kv_heads, group, head_dim, rotary, ffn;
  bool linear;                    /* a linear layer's weight */
  bool interleaved;               /* its rotary order */
  int llmc;                       /* enum tc_llmc_tensor */
  int64_t layer;                  /* 0 outside of layers */
  int of;                         /* of an A or a B: which of the parts of TC_FORM_HF its matrix is */
};

/* All parts of a complete model, in the order of its layers; those of one tensor are adjacent. TC_FORM_OURS: one
 * part a tensor. An owned array; returns the number. The sizes must have been checked: memory is
 * proportional to the layers. */
int tc_foreign_parts(struct tc_foreign_part **out, const struct tc_model *m, enum tc_form form, bool interleaved);
static inline int64_t tc_foreign_elems(const struct tc_foreign_part *t) { return t->rows * t->cols; }
/* The shape that HF gives it: dim[rank]. */
void tc_foreign_hf_shape(const struct tc_foreign_part *t, int64_t dim[2]);

/* The matrices A and B of the adapters that all matrices of the layers may have, in pairs, as PEFT and we name and order them. An
 * owned array; returns the number. m is complete and has a class of Hugging Face. */
int tc_adapter_parts(struct tc_foreign_part **out, const struct tc_model *m, int64_t rank);
/* The name in PEFT of the module that an A is beside: owned by the caller. */
char *tc_adapter_module(const struct tc_foreign_part *a);

/* The row of ours that this row of theirs is. */
int64_t tc_foreign_row(const struct tc_foreign_part *t, enum tc_form form, int64_t row);
/* The index in the elements of our tensor of element i of the other program's order. */
int64_t tc_foreign_place(const struct tc_foreign_part *t, enum tc_form form, int64_t i);
/* The same for one element after the other from the first; those of a row are adjacent, unless it is transposed. */
struct tc_foreign_walk { const struct tc_foreign_part *t; enum tc_form form; int64_t i, col, place; };
static inline int64_t tc_foreign_next(struct tc_foreign_walk *w)
{
  if (w->col == 0 || (w->t->linear && w->form == TC_FORM_HF)) w->place = tc_foreign_place(w->t, w->form, w->i);
  if (++w->col == w->t->cols) w->col = 0;
  w->i++;
  return w->place++;
}
/* Whether it is the whole tensor in the same order of elements. */
bool tc_foreign_same_order(const struct tc_foreign_part *t, enum tc_form form);

/* The number that an IEEE half of these bits is. */
float tc_half_to_f32(uint16_t h);

#endif
