/* forward.h - a trained model that is run forward: losses of token sequences, on any layout.
 *
 * In: a checkpoint of any layout or another program's model, and sequences of tokens. Out: the loss of each token, the
 * same on all ranks. There is neither gradient nor optimizer: the state is the weights in the working precision
 * (tc_run.use). Or the model is that of a training, between its steps, on its ranks and with its state.
 *
 * Files, in reading order: forward.[ch] (the model on its ranks), questions.[ch] (files of questions
 * with several answers), answers.c (which answers the model prefers), evaluate.[ch] (the loss of whole files, and all files
 * that a command names), sample.[ch] (new tokens), prompts.c (what they follow). */
#ifndef TC_FORWARD_H
#define TC_FORWARD_H

#include "src/run/run.h"

/* One rank of a command: filled in by it, all borrowed. */
struct tc_forward_args {
  const struct tc_config *cfg;       /* of the model, with train.global_batch = sequences at once */
  const struct tc_ranks *ranks;
  char *const *rank_names;           /* [world] "rank 3 on node2" */
  int rank, threads;
  struct tc_hub *hub;
  bool mpi;
  const char *path;                  /* a checkpoint, or a folder of checkpoints; or */
  const struct tc_foreign *foreign;  /* another program's model, of which cfg has the sizes; NULL: path */
  const char *adapter;               /* adapters beside it: a checkpoint's, or ... ; NULL: none */
  const struct tc_foreign *peft;     /* ... PEFT's; NULL: a checkpoint's */
  enum tc_use use;               /* TC_TO_EVALUATE, or TC_TO_SAMPLE: then the mesh has dp = 1 */
  int64_t prefill;                   /* TC_TO_SAMPLE: tokens of a prompt at once */
  bool documents;                    /* TC_TO_EVALUATE: several texts may share a sequence */
};

struct tc_forward;

/* Collective. Makes the program and loads the weights. *out is owned by the caller, also after a failure.
 * TC_EUSER, TC_ELAYOUT, TC_ECHECKSUM, TC_EPEER. */
int tc_forward_new(struct tc_forward **out, const struct tc_forward_args *args, struct tc_err *err);
/* Local. The model of a training that has TC_TASKS, after its programs are made: *out is freed before them, by the
 * caller. Batches are micro-batches of the training's size. The training's fill function calls tc_forward_fill, with
 * *out as `ctx`, while tc_forward_losses runs. */
void tc_forward_of_training(struct tc_forward **out, const struct tc_run *training);
tc_fill_fn tc_forward_fill;
/* Collective. lost: a peer is missing, the process is about to end. */
void tc_forward_free(struct tc_forward *x, bool lost);

int64_t tc_forward_sequences(const struct tc_forward *x);  /* of a batch */
int64_t tc_forward_context(const struct tc_forward *x);    /* tokens of a sequence */
const struct tc_run *tc_forward_run(const struct tc_forward *x);

/* A batch, the same on all ranks: each array has batch * context elements. */
struct tc_forward_batch {
  const int32_t *tokens;
  const int32_t *targets;        /* below 0: counts for nothing */
  const int32_t *starts;         /* where in the sequence each token's text begins (op.def), if args.documents;
                                  * NULL: every sequence is one text */
};

/* Collective. loss[batch * context] <- the loss of each token in nats, 0 where its target is below 0. */
int tc_forward_losses(struct tc_forward *x, const struct tc_forward_batch *batch, float *loss, struct tc_err *err);

#endif
