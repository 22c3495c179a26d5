/* graph.h - the tensor program: tensors, nodes, parameters, and the order in which the nodes run.
 *
 * In: the ops. Out: the data structure that src/model fills and src/passes rewrites, with its
 * checks. Files in reading order: mesh.[ch] (axes and coordinates), placement.[ch], op.def, graph.[ch],
 * rule.[ch] (index rules), shard_box.[ch] (which rank owns which box), check.[ch] with check_grad.c,
 * print.c.
 *
 * A program is written once, as if for one device and the whole global batch. Passes rewrite
 * it. All ids are int32 indices into the arrays of struct tc_graph, so that a program can be
 * printed, compared and saved. Tensors are in SSA form: one node makes each. In-place operation is
 * given by `overwrites`: the new tensor takes the storage of the old one, which no node reads afterwards.
 *
 * Everything here is Local and pure: no MPI, no device, no clock. */
#ifndef TC_GRAPH_H
#define TC_GRAPH_H

#include "src/base/base.h"
#include "src/graph/row_order.h"
#include "src/config/choices.h"
#include "src/graph/placement.h"

enum tc_op {
#define OP(id, name, nin, nout, rule, unsplittable, flags, what) TC_OP_##id,
#include "src/graph/op.def"
#undef OP
  TC_OPS
};

enum tc_op_flags { TC_OPF_LINEAR = 1, TC_OPF_MAXRED = 2, TC_OPF_FLAT = 4, TC_OPF_ACC = 8,
                   TC_OPF_BLOCK = 16, TC_OPF_UPDATE = 32, TC_OPF_AGAIN = 64 };
struct tc_op_info {
  const char *name;
  int n_in, n_out;
  const char *rule, *unsplittable;
  unsigned flags;
  const char *what;
};
extern const struct tc_op_info tc_op_info[TC_OPS];

enum tc_class { TC_CLS_PARAM, TC_CLS_GRAD, TC_CLS_OPT, TC_CLS_ACT, TC_CLS_COMM,
                TC_CLS_STAGING, TC_CLASSES };
extern const char *const tc_class_name[TC_CLASSES];
enum tc_space { TC_DEVICE, TC_HOST, TC_SPACES };
enum tc_mark { TC_F, TC_B, TC_W, TC_U };
/* What a RESHARD is for: the schedule gathers weights early, and bounds what is in flight of gradients, of what is stored, and
 * of initial values. */
enum tc_role { TC_ROLE_NONE, TC_ROLE_GATHER, TC_ROLE_GRAD, TC_ROLE_STORE, TC_ROLE_INITIAL };
/* Activation functions (op.def): of ACT, and of GLU's gate. */
enum tc_act_fn { TC_FN_GELU_TANH, TC_FN_GELU, TC_FN_RELU2, TC_FN_GATE_SILU = 0, TC_FN_GATE_GELU_TANH };

struct tc_tensor {
  int32_t id;
  int32_t node;                  /* the node that makes it; -1: state, allocated from the start */
  int32_t primal;                /* the tensor of which this is the gradient; -1: not a gradient */
  int32_t overwrites;            /* the tensor whose storage this one takes; -1: none */
  int32_t base;                  /* this tensor is a view of rows of `base`; -1: not a view */
  int64_t base_row;              /* first row of the view, in rows of the base's local block */
  bool block;                    /* instead, the view is this rank's block of the base */
  int32_t param;                 /* index in graph.param that it belongs to; -1 */
  uint8_t rank, dtype, space, cls;
  bool state;                    /* kept across steps */
  bool saved;                    /* in checkpoints */
  bool annotated;                /* `lay` was set by a row, not inferred */
  uint8_t set_axes;              /* the axes on which an annotation placed it */
  int64_t dim[TC_DIMS];          /* global, unpadded */
  int8_t pad_dim;                /* this dimension is stored padded to pad_to; -1: none */
  int64_t pad_to;
  struct tc_layout lay;
  struct tc_layout preferred;    /* where consumers prefer it (passes/infer.c); R: no preference */
  const char *name;              /* borrowed from the graph's pool */
};

/* Attributes, by op (op.def). A backward node has those of the node that it differentiates. */
struct tc_attr {
  union {
    float number;                /* any of these: kernels receive it as f[0] */
    float eps;                   /* layernorm, rmsnorm, qknorm, qk_scale */
    float rate;                  /* dropout: the fraction that becomes 0 */
    float factor;                /* sum, scale; fill: the value; rope: of sines and cosines, 0: 1 */
    float scale;                 /* attention: of scores; 0: 1 / sqrt(D) */
    float z;                     /* nll: of the square of log(sum of exponentials) */
    float decay;                 /* updates: what the weight decay is multiplied by */
    float std;                   /* normal */
  };
  union {
    float other;                 /* either of these: kernels receive it as f[1] */
    float lr;                    /* updates: what the learning rate is multiplied by */
    float shift;                 /* rmsnorm, qknorm, qk_scale: what is added to the gain */
    float cap;                   /* attention, softcap: c of c tanh(x / c); attention 0: none */
  };
  union {
    int64_t index;               /* any of these: kernels receive it as k[0] */
    int64_t sequence;            /* attention, rope: tokens per sequence */
    int64_t first;               /* part, add_part: the first index of the part */
    int64_t vocab;               /* rowmax, sumexp: columns without padding */
    int64_t site;                /* dropout: the site's number in the model */
    int64_t stream;              /* normal, updates with states in bf16: the stream of random numbers */
  };
  union {
    int64_t second;              /* either of these: kernels receive it as k[1] */
    int64_t rows;                /* normal: rows without padding; 0: all */
    int64_t piece;               /* attention, kv: which piece of the groups, from 0 */
    int64_t along;               /* part, add_part: the dimension that is divided */
    int64_t outputs;             /* muon: dimensions that are rows (graph/matrices.h) */
  };
  union {
    int64_t third;               /* any of these: kernels receive it as k[2] */
    int64_t window;              /* attention: how many keys a query sees at most, its own included; 0: all before it */
    int64_t rotary;              /* rope: the first so many elements of a head turn; 0: all */
    int64_t act;                 /* act, glu: enum tc_act_fn */
    int64_t uniform;             /* normal: 1: uniform instead, of the same deviation */
    int64_t cut;                 /* muon: 1 + the dimension that holds several matrices; 0: none */
  };
  const float *freq;             /* rope: [rotary / 2] radians from position to position; in the graph's pool */
};

struct tc_node {
  int32_t id, op;
  int32_t origin;                /* the node this was cloned from, or its own id */
  int32_t forward;               /* the node whose backward pass this is, of the same subscripts; -1 */
  int32_t in, n_in, out, n_out;  /* offsets into graph.arg */
  int32_t unit;
  bool on_all_stages;            /* at every coordinate of pp, else at that of its unit */
  uint8_t mark, space;
  uint8_t acc;                   /* bit k: output k is added to what it overwrites (if anything) */
  bool acc_first;                /* ... except in the first micro-batch of a step, where it is written */
  bool once_a_step;              /* else once per micro-batch */
  bool head;                     /* part of the loss head, cut into chunks by passes/loss_chunks.c */
  bool control;                  /* RESHARD: counted as control traffic */
  uint8_t coll, axes, red;       /* RESHARD: enum tc_coll, a set of axes (0: COPY), enum tc_reduce */
  uint8_t role;                  /* RESHARD: enum tc_role */
  struct tc_place to;            /* RESHARD of one part: the placement that it leads to, without the k of at(k) */
  int32_t root;                  /* RESHARD: the index k of at(k) in a group of `axes`; from_root for at -> at */
  int32_t from_root;
  const char *rule;              /* a rule of its own; NULL: the op's */
  struct tc_attr attr;
};

enum { TC_UPDATE_STATES = 2 };    /* of a parameter, at most */

/* A parameter has four placements; see docs/placements.md. */
struct tc_param {
  const char *name;
  int32_t weight;                /* what forward and backward use (at `use`) */
  int32_t master;                /* fp32 at `update`; == weight where nothing differs */
  int32_t state[TC_UPDATE_STATES];   /* the optimizer's, at `update` too (src/model/update.def); -1: none */
  int32_t acc;                   /* the accumulator, as it is before a step's first mb */
  int32_t grad;                  /* the final gradient: the last version of acc, at `acc_lay` */
  int32_t tied_acc, tied_grad;   /* accumulator and gradient where another stage uses the weight; -1 */
  struct tc_layout store, use, acc_lay, update;
  uint8_t reshard_after;         /* when a weight gathered for use is resharded: enum tc_reshard_after */
  uint8_t offload;               /* enum tc_offload: moments (0 none), the update too */
  uint8_t apart;                 /* the axes, also of one rank, on which rows store it elsewhere than it is used */
  uint8_t set_axes;              /* the axes on which an annotation placed it */
  bool reshard_after_set;        /* ... by an annotation */
  uint8_t kind;                  /* how it is updated: enum tc_update */
  uint8_t state_dtype;           /* of its states, if the master is fp32; else they have the master's */
  bool frozen;                   /* never: it has no gradient and no state */
  bool base;                     /* what adapters stand beside, which is frozen always */
  bool uniform;                  /* begins uniform, not normal, with the deviation init_std */
  uint8_t outputs, cut;          /* of a layer's matrices: graph/matrices.h; outputs 0: it is another parameter */
  float decay, lr;               /* what train.weight_decay and train.lr are multiplied by */
  float width;                   /* muP's ratio of widths (model.mup), 1 without it; tc_update_width says what it does to lr and decay */
  float init_std;                /* N(0, std); 0: constant init_value */
  float init_value;
  int32_t unit;
};

struct tc_unit {
  const char *name;
  int32_t parent;                /* -1: outermost */
  int32_t layer;                 /* of the model; -1: none */
  int32_t stage;                 /* virtual stage of the pipeline (passes/stages.c) */
  int32_t at;                    /* its coordinate on pp; -1: no pipeline */
};

/* What the backward pass adds to the gradient of a parameter: output `out` of a node. */
struct tc_contribution { int32_t param, node; uint8_t out; };

struct tc_graph {
  struct tc_pool *pool;
  struct tc_tensor *tensor; int32_t n_tensors, cap_tensors;
  struct tc_node *node; int32_t n_nodes, cap_nodes;
  int32_t *arg; int32_t n_args, cap_args;
  int32_t *order; int32_t n_order, cap_order;    /* node ids in the order they run */
  struct tc_param *param; int32_t n_params, cap_params;
  struct tc_contribution *contribution; int32_t n_contributions, cap_contributions;   /* passes/grad.c */
  struct tc_unit *unit; int32_t n_units, cap_units;
  int32_t cur_unit;              /* what new nodes are labelled with */
  uint8_t cur_mark;
  int32_t tokens, targets, logits, loss, grad_norm, grad_scale;   /* -1: none */
  int32_t nll;                   /* the loss of each token, if it is read after a run; else -1 */
  int32_t starts;                /* where documents begin (op.def); -1: attention is over the whole sequence */
  struct tc_row_order rows;      /* of tokens */
  int32_t *root;                 /* [n_tensors] once the graph is final (tc_graph_freeze) */
};

struct tc_graph *tc_graph_new(void);
void tc_graph_free(struct tc_graph *g);

/* A new tensor, R on every axis. name is copied. */
int32_t tc_tensor_new(struct tc_graph *g, const char *name, int dtype, int rank,
                      const int64_t *dim);
/* A new tensor of the name, type, shape, padding, space, class, parameter and primal of t; R on every axis. */
int32_t tc_tensor_like(struct tc_graph *g, int32_t t);
/* A copy of t in every field, which no node makes yet. */
int32_t tc_tensor_clone(struct tc_graph *g, int32_t t);
/* A new node at the end of the order; labelled with cur_unit and cur_mark. Outputs must be
 * tensors that no node makes yet. */
struct tc_node *tc_node_new(struct tc_graph *g, int op, int n_in, const int32_t *in,
                            int n_out, const int32_t *out);
/* A copy of a node in every field but its tensors, at the end of the order: in[] and out[] are as many as it has. */
struct tc_node *tc_node_clone(struct tc_graph *g, int32_t node, const int32_t *in, const int32_t *out);
/* Gives the node its own rule, which is copied. */
void tc_node_rule(struct tc_graph *g, struct tc_node *n, const char *rule);

static inline int32_t tc_in(const struct tc_graph *g, const struct tc_node *n, int i)
{ return g->arg[n->in + i]; }
static inline int32_t tc_out(const struct tc_graph *g, const struct tc_node *n, int i)
{ return g->arg[n->out + i]; }
/* Operand k: the inputs, then the outputs. */
static inline int32_t tc_operand(const struct tc_graph *g, const struct tc_node *n, int k)
{ return k < n->n_in ? tc_in(g, n, k) : tc_out(g, n, k - n->n_in); }

/* The size of dimension d as it is stored, with padding. */
static inline int64_t tc_stored_dim(const struct tc_tensor *t, int d)
{ return d == t->pad_dim ? t->pad_to : t->dim[d]; }

/* The tensor whose storage t shares, as a view or a version of it; -1: t owns its storage. */
static inline int32_t tc_shares_with(const struct tc_tensor *t) { return t->base >= 0 ? t->base : t->overwrites; }

/* The parameter that an optimizer node updates; -1: it is not an optimizer node. */
static inline int32_t tc_updates(const struct tc_graph *g, const struct tc_node *n)
{ return tc_op_info[n->op].flags & TC_OPF_UPDATE ? g->tensor[tc_in(g, n, 2)].param : -1; }

int64_t tc_tensor_elems(const struct tc_tensor *t);           /* global */

/* In how many pieces of its groups attention is computed, of which the node, ATTN or its gradient, is one (op.def). */
int64_t tc_attn_pieces(const struct tc_graph *g, const struct tc_node *n);
/* How many keys a query at one of the positions [from, end) of a sequence sees on average: min(p + 1, window) at position p.
 * Window 0: those before it, without its own, by the usual formula of half the square. */
double tc_attn_keys(int64_t window, int64_t from, int64_t end);

/* A rank's block of a tensor: the box that S placements leave, then the rows of a flat shard.
 * coord[TC_AXES] are the rank's coordinates (coord[TC_MB]: the micro-batch). */
struct tc_local {
  int64_t dim[TC_DIMS];          /* the box that the S(d) placements leave */
  int64_t off[TC_DIMS];          /* its corner in the global tensor */
  int64_t row0, rows;            /* flat shard: rows of the box as [rows, last dim]; else rows = -1 */
  int64_t elems;                 /* what is stored here */
  bool here;                     /* false: at(k) of another coordinate, elems = 0 */
};
void tc_tensor_local(const struct tc_tensor *t, const struct tc_mesh *m,
                     const int32_t coord[TC_AXES], struct tc_local *out);
/* The index in the whole tensor of element e of what is stored here; -1: padding. */
int64_t tc_local_index(const struct tc_tensor *t, const struct tc_local *l, int64_t e);
int64_t tc_tensor_local_bytes(const struct tc_tensor *t, const struct tc_mesh *m,
                              const int32_t coord[TC_AXES]);

/* check.c: verifies every invariant of a program after a pass; the error names pass, node and tensor. */
int tc_graph_check(const struct tc_graph *g, const struct tc_mesh *m, const char *pass,
                   struct tc_err *err);

/* print.c: the program as text or DOT: placements, and reshards with bytes. */
void tc_graph_print(FILE *f, const struct tc_graph *g, const struct tc_mesh *m, bool dot);

/* Rebuilds g->order without the nodes for which drop[id] is set. */
void tc_graph_drop(struct tc_graph *g, const bool *drop);
/* The tensor that owns the storage of t, its root: follows overwrites and base. */
int32_t tc_tensor_root(const struct tc_graph *g, int32_t t);
/* The same for all tensors, in linear time; owned by the caller. */
int32_t *tc_graph_roots(const struct tc_graph *g);
/* No pass changes the graph after this call: the roots of all tensors are computed once. A chain of
 * versions is as long as an accumulator has contributions, so following it each time would be quadratic. */
void tc_graph_freeze(struct tc_graph *g);

#endif
