/* hf_impl.h - what the files of hf.h share: the table of classes, and a config.json that is being read. */
#ifndef TC_HF_IMPL_H
#define TC_HF_IMPL_H

#include <jansson.h>

#include "src/model/hf.h"

enum tc_hf_biases { TC_HF_BIAS_NONE, TC_HF_BIAS_QKV,     /* always, of q, k and v */
                    TC_HF_BIAS_ATTENTION,                /* attention_bias: of q, k, v and o */
                    TC_HF_BIAS_BOTH };                   /* ... and mlp_bias */
enum tc_hf_windows {
  TC_HF_WINDOW_NONE,             /* members of windows mean nothing to the class */
  TC_HF_WINDOW_ALL,              /* sliding_window: all layers or, if it is null, none */
  TC_HF_WINDOW_SWITCH,           /* with use_sliding_window the layers from max_window_layers on; layer_types wins */
  TC_HF_WINDOW_TYPES,            /* layer_types, else the class's pattern */
  TC_HF_WINDOW_BARE,             /* with use_sliding_window those without positions; layer_types wins */
};

/* A class of transformers: what holds where its config.json says nothing, and which members it has. */
struct tc_hf_class {
  const char *name, *type;       /* members "architectures" and "model_type" */
  uint8_t family;
  int64_t kv_heads, head_dim;    /* 0: as many as heads, hidden / heads */
  int64_t positions;             /* max_position_embeddings */
  double eps, theta;
  double sliding_theta;          /* above 0: rope_parameters has an object for each kind of layer */
  const char *local_theta;       /* the older member of sliding_theta */
  int64_t window;
  const char *pattern;           /* of TC_HF_WINDOW_TYPES */
  double attn_cap, logit_cap;
  uint8_t biases, windows;       /* enum tc_hf_biases, enum tc_hf_windows */
  bool learned;                  /* GPT-2's members */
  bool tied, divides;            /* tied: if tie_word_embeddings is not given; divides: heads have to divide the hidden size */
  bool gemma;                    /* hidden_activation, query_pre_attn_scalar, soft caps */
  bool no_attn_cap;              /* ... but attention's, which the class does not apply */
  bool bare;                     /* no_rope_layers: which layers have positions */
  bool multipliers;              /* Granite's */
  bool partial;                  /* partial_rotary_factor */
  bool fused;                    /* qkv_proj, gate_up_proj */
  bool pads;                     /* without pad_token_id the class has a padding token, whose embedding it does not train, ... */
  int64_t pad;                   /* ... and which this is */
  bool null_kv, null_head_dim;   /* null is as many as heads, hidden / heads; else it is refused */
};
extern const struct tc_hf_class tc_hf_classes[];
enum {
#define CLASS(name, type, ...) +1
  TC_HF_CLASSES = 0
#include "src/model/hf.def"
};

/* Sizes and the largest of each; of rotary ones the first have no default. */
struct tc_hf_size { const char *key; size_t field; int64_t most; bool may_be_null; };
enum { TC_HF_NEEDED = 5, TC_HF_GPT2_SIZES = 4, TC_HF_ROTARY_SIZES = 8 };
extern const struct tc_hf_size tc_hf_gpt2_sizes[TC_HF_GPT2_SIZES], tc_hf_rotary_sizes[TC_HF_ROTARY_SIZES];
static inline int64_t *tc_hf_size_of(struct tc_model *m, const struct tc_hf_size *s)
{ return (int64_t *)(void *)((char *)m + s->field); }

/* Names of activations, and what each is with a gate and without. */
struct tc_hf_act { const char *name; uint8_t gated, plain; };
extern const struct tc_hf_act tc_hf_acts[];      /* ends with name NULL; of several names of one the first is written */

struct tc_hf_file { const json_t *o; const char *path; struct tc_err *err; };

/* ---- hf_member.c ---- */

/* The member; NULL where it is missing or null, which mean the same to most members. */
const json_t *tc_hf_member(const json_t *o, const char *key);
bool tc_hf_same(const json_t *a, const json_t *b);
/* Whether it is the value that this JSON text has. */
bool tc_hf_is(const json_t *j, const char *text);
/* TC_EUSER: the member has this value; give `would`. */
int tc_hf_refuse(const struct tc_hf_file *f, const char *key, const json_t *j, const char *would);
/* A number from least to most, or `otherwise` where it is missing. Null is neither. */
int tc_hf_real(const struct tc_hf_file *f, const json_t *o, const char *key, double otherwise, double least, double most,
               float *out);
/* Members that change what is computed, of which only one value is supported. */
int tc_hf_check_fixed(const struct tc_hf_file *f, const json_t *o, const struct tc_hf_class *k);
/* What tc_hf_read reads, of an object; path is for sentences. */
int tc_hf_read_object(struct tc_model *m, const json_t *o, const char *path, struct tc_err *err);
/* hf_rope.c. Sets theta, scaling and share of a model whose sizes are known. */
int tc_hf_read_rope(const struct tc_hf_file *f, const struct tc_hf_class *k, struct tc_model *m);

#endif
