/* gpt.h - the model, as a program for one device and the whole global batch.
 *
 * In: sizes. Out: the forward pass in a graph. Files in reading order: gpt.[ch]; optim.[ch], which appends
 * the update after src/passes/grad.c, and makes the programs that initialise and refresh weights.
 *
 * GPT-2 (Radford et al., 2019): learned positions, layer norm before each block, GELU (tanh),
 * the head tied to the token embedding. Tensor names follow Hugging Face's and nanoGPT's. */
#ifndef TC_GPT_H
#define TC_GPT_H

#include "src/graph/graph.h"

struct tc_model {
  const char *preset;            /* "" if only sizes are given */
  int64_t layers, hidden, heads, context, vocab;
};
extern const struct tc_model tc_presets[];           /* ends with preset NULL */

/* Local. Looks the preset up and lets sizes > 0 in `m` override it. TC_EUSER: unknown preset,
 * sizes missing, heads that don't divide hidden. */
int tc_model_resolve(struct tc_model *m, struct tc_err *err);
int64_t tc_model_params(const struct tc_model *m);   /* unpadded, head tied */
/* Canonical text, "layers 4 hidden 128 heads 4 context 128 vocab 256"; owned by the caller. */
char *tc_model_text(const struct tc_model *m);

struct tc_gpt_opts {
  int64_t batch;                 /* global batch in sequences */
  int dtype;                     /* of weights and activations in forward and backward */
  int grad_dtype;                /* of accumulators */
  float dropout;
  int tp;                        /* the vocabulary is padded to this many equal blocks */
  bool nest;                     /* attention and MLP are units within the layer's */
};

/* Local. Appends the parameters (state, layouts R) and the forward program up to g->loss, the
 * mean loss in nats per token. */
void tc_gpt_build(struct tc_graph *g, const struct tc_model *m, const struct tc_gpt_opts *o);

#endif
