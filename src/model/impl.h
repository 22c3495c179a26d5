/* impl.h - what the files that make a model's program share: the program so far, and a tensor, a parameter or a node more.
 * Everything here is Local. */
#ifndef TC_MODEL_IMPL_H
#define TC_MODEL_IMPL_H

#include "src/model/transformer.h"

struct tc_build {
  struct tc_graph *g;
  const struct tc_model *m;      /* complete */
  const struct tc_build_opts *o;
  int64_t N, C, K, G, D, F, V;
  const float *freq[2];          /* of rotary positions in full and in sliding layers; NULL: positions are learned */
  int64_t pad_v;                 /* the vocabulary as stored */
  uint32_t drops;                /* dropout sites so far: the key of each one's mask */
  bool adapter;                  /* a new parameter is an adapter's */
};

/* build.c. A new tensor that a node is to make. */
int32_t tc_build_act(struct tc_build *b, const char *name, int dtype, int rank, const int64_t *dim);
/* State, named PREFIX + name, of class cls and, if param is not below 0, that parameter's. */
int32_t tc_build_state(struct tc_build *b, const char *prefix, const char *name, int dtype, int cls, int rank, const int64_t *dim,
                       int32_t param);
/* A parameter, named LAYER + name: N(0, std), or `value` where std is 0. */
int32_t tc_build_param(struct tc_build *b, const char *layer, const char *name, int rank, const int64_t *dim, float std,
                       float value);
/* A node with one output: named `name`, or LAYER + name in the working type. */
int32_t tc_build_node(struct tc_build *b, int op, int n_in, const int32_t *in, const char *name, int dtype, int rank,
                      const int64_t *dim);
int32_t tc_build_named(struct tc_build *b, int op, int n_in, const int32_t *in, const char *layer, const char *name, int rank,
                       const int64_t *dim);
static inline struct tc_node *tc_build_last(struct tc_build *b) { return &b->g->node[b->g->n_nodes - 1]; }
/* The type of row statistics. */
static inline int tc_build_stats(const struct tc_build *b) { return b->o->dtype == TC_F64 ? TC_F64 : TC_F32; }

/* The inputs of an op that depends on documents: in[n_in] and, if there are any, starts, with a rule of its own. */
struct tc_build_inputs { int n; int32_t in[3]; const char *rule; };
struct tc_build_inputs tc_build_with_starts(const struct tc_build *b, int n_in, const int32_t *in, const char *rule);

/* Shapes and index rules of a product y = x w^T and of its bias, which has w's first dimensions. */
struct tc_product {
  const char *rule, *bias_rule;
  int w_rank, b_rank, y_rank;
  int64_t w[TC_DIMS], y[TC_DIMS];
  int cut;                       /* 1 + the dimension of w that holds several matrices (graph/matrices.h); 0: none */
};
/* linear.c. A product of x [N, inputs] and a new weight, what its adapters add, and a new bias if `biased`. */
int32_t tc_build_linear(struct tc_build *b, int32_t x, const char *layer, const char *name,
                        const struct tc_product *p, bool biased, float std);

/* lora.c. y, the product of x by the matrix of this name, and what its adapters add to it: y itself if it has none. */
int32_t tc_build_adapters(struct tc_build *b, int32_t x, int32_t y, const char *layer, const char *name,
                          const struct tc_product *p);

/* What an RMS norm adds to its gain; a new gain; a norm of x [N, C]. */
static inline float tc_build_shift(const struct tc_build *b) { return b->m->norm == TC_RMS_NORM_1P ? 1 : 0; }
int32_t tc_build_gain(struct tc_build *b, const char *layer, const char *name, int rank, const int64_t *dim);
int32_t tc_build_norm(struct tc_build *b, int32_t x, const char *layer, const char *name);

/* self_attention.c. Attention's part of a layer: x [N, C] -> [N, C]. */
int32_t tc_build_attention(struct tc_build *b, struct tc_layer_kind kind, int32_t x, const char *layer, float std_out);

#endif
