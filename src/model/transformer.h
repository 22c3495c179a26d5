/* transformer.h - the model, as a program for one device and the whole global batch.
 *
 * Layers of attention and MLP on a residual stream, each after a norm; what norms, positions, attention and
 * MLP are made of is struct tc_model's. Tensor names follow nanoGPT's. */
#ifndef TC_TRANSFORMER_H
#define TC_TRANSFORMER_H

#include "src/graph/graph.h"
#include "src/model/model.h"

/* Adapters of low rank (lora.c). */
struct tc_lora {
  int64_t rank;                  /* 0: none */
  const char *rows;              /* patterns of names of matrices, with blanks or commas between; "": all; borrowed */
  float factor;                  /* of what they add */
  float dropout;                 /* of what they read */
  bool base_copy;                /* the weights beside them, which are frozen, are stored in fp32, too, where dtype is bf16 */
  bool saves_base;               /* those are in checkpoints */
};

struct tc_build_opts {
  int64_t batch;                 /* global batch in sequences */
  int dtype;                     /* of weights and activations in forward and backward */
  int grad_dtype;                /* of accumulators */
  int state_dtype;               /* of the optimizer's states, beside masters in fp32 */
  float dropout;
  int tp;                        /* the vocabulary is padded for so many blocks */
  bool nest;                     /* attention and MLP are units within the layer's */
  int64_t new_tokens;            /* above 0: a run takes so many new tokens of each sequence; earlier keys and values
                                  * are state, and makes logits instead of a loss; with documents */
  int64_t most_new;              /* ... of the programs that share this state the most new tokens: a sliding layer's cache has
                                  * room for them and its window */
  bool inference;                /* parameters are stored in `dtype` alone, without fp32 copies */
  float z_loss;                  /* model.z_loss */
  bool losses;                   /* g->nll, the loss of each token, is kept to the end */
  int64_t key_copies;            /* above 1: so many copies of each key and value, for as many parts of its group's queries */
  bool keys;                     /* attention has keys and values of all tokens in a tensor of their own (op.def) */
  int64_t key_pieces;            /* with keys, above 1: attention is in so many pieces (op.def), which divide the groups */
  bool documents;                /* attention within documents, positions from their beginning: the input `starts` */
  struct tc_lora lora;
};

/* Local. The rows of a vocabulary as embeddings and head store it, which `tp` ranks split. */
int64_t tc_stored_vocab(int64_t vocab, int64_t tp);

/* Local. Whether the patterns of a tc_lora choose the matrix of this name. */
bool tc_lora_has(const char *rows, const char *name);
/* Local. The names of the matrices of a layer that may have adapters, with blanks between them; m is complete. Owned by the
 * caller. */
char *tc_lora_names(const struct tc_model *m, int64_t layer);
/* Local. What is added to a matrix's name for part i of those that it holds (graph/matrices.h: cut); NULL: there are fewer. */
const char *tc_lora_part(int cut, int i);
/* Local. TC_EUSER: one of the patterns matches no matrix. */
int tc_lora_check(const struct tc_model *m, const char *rows, struct tc_err *err);

/* Local. Appends the parameters (state, layouts R) and the forward program up to g->loss, the mean loss in nats per
 * token; with new_tokens up to g->logits. */
void tc_model_build(struct tc_graph *g, const struct tc_model *m, const struct tc_build_opts *o);

#endif
