/* llmc.h - llm.c's model files: 256 int32 (magic 20240326, version, context, vocabulary, layers,
 * heads, hidden size, padded vocabulary), then the parameters in one fixed order, each kind
 * for all layers together. Version 3 is fp32, version 5 bf16; older ones have another order and
 * are rejected. Everything here is Local; errors in a file are TC_EUSER. */
#ifndef TC_LLMC_H
#define TC_LLMC_H

#include "src/base/base.h"

struct tc_llmc_sizes { int64_t context, vocab, layers, heads, hidden, padded_vocab; };

/* The tensors in the file's order; layers repeat those from TC_LLMC_LN1_W to TC_LLMC_PROJ_B. */
enum tc_llmc_tensor {
  TC_LLMC_WTE, TC_LLMC_WPE, TC_LLMC_LN1_W, TC_LLMC_LN1_B, TC_LLMC_QKV_W, TC_LLMC_QKV_B,
  TC_LLMC_ATT_W, TC_LLMC_ATT_B, TC_LLMC_LN2_W, TC_LLMC_LN2_B, TC_LLMC_FC_W, TC_LLMC_FC_B,
  TC_LLMC_PROJ_W, TC_LLMC_PROJ_B, TC_LLMC_LNF_W, TC_LLMC_LNF_B, TC_LLMC_TENSORS
};

/* Rows and columns of one tensor (a bias has one column): wte has padded_vocab rows. */
void tc_llmc_shape(const struct tc_llmc_sizes *s, int kind, int64_t *rows, int64_t *cols);
/* The offset of tensor `kind` of `layer`, in elements after the header; kind TC_LLMC_TENSORS: the
 * number of elements. */
int64_t tc_llmc_place(const struct tc_llmc_sizes *s, int kind, int64_t layer);

/* llm.c pads the vocabulary to a multiple of 128, with zeros. */
int64_t tc_llmc_padded(int64_t vocab);

/* ---- reading ----------------------------------------------------------------------- */
struct tc_llmc;
/* Checks that the file has exactly the bytes that its sizes need. *out is owned by the caller. */
int tc_llmc_open(struct tc_llmc **out, const char *path, struct tc_err *err);
void tc_llmc_close(struct tc_llmc *f);
const struct tc_llmc_sizes *tc_llmc_sizes(const struct tc_llmc *f);
int tc_llmc_dtype(const struct tc_llmc *f);                  /* TC_F32 or TC_BF16 */
/* Elements [from, from + n), counted as in tc_llmc_place, in the file's type. */
int tc_llmc_read(const struct tc_llmc *f, int64_t from, int64_t n, void *buf, struct tc_err *err);

/* ---- writing ----------------------------------------------------------------------- */
enum { TC_LLMC_HEADER_BYTES = 1024 };
/* Writes the header of a file of this type to head[256]. */
void tc_llmc_header(int32_t head[TC_LLMC_HEADER_BYTES / 4], const struct tc_llmc_sizes *s,
                    int dtype);

#endif
