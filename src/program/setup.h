/* setup.h - from the configuration to a model, a mesh and program options: what train, graph
 * and place share. Pure. */
#ifndef TC_SETUP_H
#define TC_SETUP_H

#include "src/config/config.h"
#include "src/graph/mesh.h"
#include "src/program/program.h"

/* Local. TC_EUSER with a sentence for sizes that can't be. */
int tc_setup_model(const struct tc_config *c, struct tc_model *m, struct tc_err *err);
/* Local. Every option of the model that is not given becomes that of the complete model m. */
void tc_setup_fill_model(struct tc_config *c, const struct tc_model *m);

/* Local. Sets model.positions, if it is not given, from model.config, so that checkpoints have it when the file is
 * elsewhere. What is wrong with the file is left to tc_setup_model. */
void tc_setup_positions(struct tc_config *c);

/* Local. train.precision = auto becomes bf16 if the run will be on GPUs, else fp32, as which the functions below take
 * auto. */
void tc_setup_precision(struct tc_config *c, bool gpus);

/* Local. The mesh for `world` ranks on nodes as far as no model is needed: one micro-batch,
 * mesh.order = auto is tp-dp-pp. *out is owned by the caller. */
int tc_setup_axes(struct tc_mesh **out, const struct tc_config *c, int world,
                  const int32_t *node_of_rank, int devices_per_node, struct tc_err *err);

/* Local. The ranks that the given sizes make at least. */
double tc_setup_ranks(const struct tc_config *c);

/* Local. Bytes that a rank sends in each named group in a step: the first or the last stage's first rank,
 * whichever sends more. */
int tc_setup_traffic(int64_t bytes[TC_SETS], const struct tc_config *c, const struct tc_mesh *m,
                     struct tc_err *err);

/* Local. The mesh that trains: micro-batches included (global_batch must split over dp and
 * micro_batch; TC_ELAYOUT says what would fit). With mesh.order = auto, several nodes, pp and dp,
 * the axis that sends more is the nearer one: to know which, the programs of the first and the last
 * stage are compiled (tc_setup_traffic). *out is owned by the caller. */
int tc_setup_mesh(struct tc_mesh **out, const struct tc_config *c, int world,
                  const int32_t *node_of_rank, int devices_per_node, struct tc_err *err);

/* Local. How many copies of each key and value parallel.context = heads needs, for them to go evenly to cp x tp ranks, with
 * their queries; 1: none but itself; 0: the heads do not go evenly. */
int64_t tc_setup_key_copies(const struct tc_model *m, int64_t cp, int64_t tp);

/* Local. What tensor parallelism splits, for a sentence: "the 8 key and value heads", into buf. Returns buf. */
char *tc_setup_heads(char *buf, size_t size, const struct tc_model *m);

/* Local. Options of the train program (kind TC_TRAIN). *rows: annotations that o borrows, to be
 * freed (tc_annotations_free) after the last program is made; NULL if there are none. */
int tc_setup_program(struct tc_program_opts *o, const struct tc_config *c,
                     const struct tc_mesh *m, struct tc_annotation **rows, struct tc_err *err);

/* Local, pure. Tokens of each of n prompts that sampling reads at once, the longest of this length: equal parts of it,
 * of about the size at which products are fast, unless n is large: activations take memory. */
int64_t tc_setup_prompt_at_once(int64_t longest, int64_t n);
/* Local. The batch of an evaluation of c's complete model on these ranks: `each` sequences on each rank of dp at once;
 * 0: as many as have about 2048 tokens. TC_ELAYOUT. */
int tc_setup_evaluation(struct tc_config *c, int64_t each, int world, const int32_t *node_of_rank,
                        int devices_per_node, struct tc_err *err);
/* Local. Batch and layout of sampling so many sequences at once: without a mesh of the user's, tensor parallelism takes
 * as many ranks of a node as the heads allow, stages the others. TC_ELAYOUT: ranks are left for dp. */
int tc_setup_sampling(struct tc_config *c, int64_t sequences, int world, const int32_t *node_of_rank,
                      int devices_per_node, struct tc_err *err);

/* ---- setup_parameters.c: parameters by the optimizer and train.rows ---- */

/* Local. *out <- a graph of the model alone, whose parameters are as updates find them; owned by the caller (tc_graph_free).
 * TC_EUSER: train.rows is not valid for the model. */
int tc_setup_parameters(struct tc_graph **out, const struct tc_config *c, struct tc_err *err);
/* Adapters by the options. TC_EUSER: patterns that match nothing, options that have no effect or can't be. */
int tc_setup_lora(struct tc_lora *l, const struct tc_config *c, const struct tc_model *m, struct tc_err *err);
/* Local. train.lora_alpha, where auto is a number. c has train.lora. */
double tc_setup_lora_alpha(const struct tc_config *c);
/* Local. The options train.lora* of c become those of adapters that are there, which *has has: but where c gives another, it is
 * TC_EUSER, with the adapters' path, or stays as it is if that is NULL. Another dropout always stays. */
int tc_setup_take_lora(struct tc_config *c, const struct tc_config *has, const char *path, struct tc_err *err);
/* Elements of all parameters, of those that are not frozen, and of their states; saved_bytes: of the weights that a checkpoint
 * has; flops: what training takes of a token beside tc_model_flops, which counts a gradient of each of the model's parameters: less
 * without those of frozen ones, more for adapters. */
struct tc_parameter_sums { double all, trained, states, flops, saved_bytes; };
int tc_setup_parameter_sums(struct tc_parameter_sums *out, const struct tc_config *c, struct tc_err *err);

/* ---- setup_stages.c: the stages of a run (sections [stage N]) ---- */

/* A stage: its steps are those from `first` to the one before the first of the next. */
struct tc_stage {
  struct tc_config c;            /* of the run, with what the stage changes; borrows from it */
  int64_t context;               /* of its model */
  int64_t first;                 /* its first step, from 1 */
  int64_t tokens;                /* that the steps before it train on */
};
/* Local. *out <- c->n_stages + 1 stages, owned by the caller (free). TC_EUSER: a stage that does not begin after the one
 * before, or within train.steps, or changes what can't be changed. */
int tc_setup_stages(struct tc_stage **out, const struct tc_config *c, struct tc_err *err);
/* Local. Which stage, from 0, a step belongs to; tokens of all steps up to this one. */
int tc_stages_at(const struct tc_stage *list, int n, int64_t step);
int64_t tc_stages_tokens(const struct tc_stage *list, int n, int64_t step);

#endif
