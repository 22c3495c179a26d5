/* impl.h - one rank's figures, and the state of the threads that compare theirs with them. */
#ifndef TC_PROVE_IMPL_H
#define TC_PROVE_IMPL_H

#include "src/comm/comm.h"
#include "src/comm/hub.h"
#include "src/exec/exec.h"
#include "src/prove/prove.h"

/* ---- inputs.c ---- */

/* Tokens and targets of local rows, by the natural order of rows alone, so that no layout changes them. */
struct tc_inputs { struct tc_row_order rows; int64_t sequences, vocab; uint64_t seed; };
tc_fill_fn tc_inputs_fill;                       /* its ctx: struct tc_inputs */
/* Local. The targets that count among rows [first, first + n) of the natural order in a step. */
int64_t tc_inputs_targets(const struct tc_inputs *in, int64_t step, int64_t first, int64_t n);

/* ---- parameters.c ---- */

/* A parameter as one rank has it: whole tensors in the order of their indices. */
struct tc_kept { char *name; int class; int64_t elems; double *part[TC_PROOF_PARTS], norm[TC_PROOF_PARTS]; };
/* d loss / d element `at` of a parameter. */
struct tc_difference { int32_t param; int64_t at; double value; };

struct tc_reference {
  struct tc_kept *param;         /* [n_params] */
  int n_params, steps;
  double all[TC_PROOF_PARTS];    /* the norm of all tensors */
  double loss[TC_PROOF_STEPS + 1], norm[TC_PROOF_STEPS];
  double clip;                   /* what gradients are clipped to, so that they are; 0: the run does not */
  double of_gradient;            /* AdamW: the part GRADIENT is so many times the gradient */
  int64_t terms, layers;         /* of the longest sum (judge.c); of the model */
  bool bf16, f64;
  struct tc_difference *difference;
  int n_differences, cap_differences;
};

/* The ranks of a layout, or the only one that is the reference. */
struct tc_side {
  const struct tc_proof_run *run;
  struct tc_reference *ref;
  bool alone;                    /* *ref is being made */
  struct tc_config *own;         /* the configuration that is run, owned where it is not the run's */
  const struct tc_config *cfg;
  struct tc_mesh *mesh;
  struct tc_hub *hub;
  struct tc_breaks *breaks;      /* NULL: nothing is planted */
  struct tc_trail *trail;        /* NULL: activations are not compared; else one step is run, for them */
  struct tc_proof *out;
  /* Below the lock. */
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int arrived;                   /* ranks that have their programs, or none */
  double *off;                   /* [n_params][parts] squares of differences: the worst rank's */
  struct tc_inputs inputs;
  bool ran;                      /* a rank failed in its run, not before */
  struct tc_err err;             /* the first that is not of a peer's end */
};

/* Local. Compares what this rank stores of a part of every parameter with the reference; the only rank of the reference
 * sets it there, with the norm of its change since the call before. */
void tc_compare_part(struct tc_side *s, int part, const struct tc_graph *g, int rank, struct tc_exec *x, struct tc_device *d);
/* Element i of a tensor of floats of this type. */
double tc_float_at(const void *data, int dtype, int64_t i);
/* Relative differences and tolerances, once all ranks have ended. */
void tc_judge(struct tc_side *s);

/* ---- trail.c ---- */

/* Local. Has a rank's activations kept, where it is the only one, or compared. To be freed. */
struct tc_follower;
struct tc_follower *tc_follow(struct tc_side *s, int rank, struct tc_exec_opts *o);
/* Local. The executor, once it is there. */
void tc_follow_exec(struct tc_follower *f, struct tc_exec *x);
struct tc_trail *tc_trail_new(void);
struct tc_trail_end tc_trail_end(struct tc_trail *t);      /* frees it */

/* ---- side.c ---- */

/* Runs the side's ranks as threads. Its status, and *err. */
int tc_side_run(struct tc_side *s, struct tc_err *err);

/* ---- differences.c ---- */

/* Local, the reference in double precision, after its weights are set: five-point differences of the loss at elements of
 * each parameter, which the seed draws. TC_EUSER and what tc_exec_run returns. */
int tc_differentiate(struct tc_reference *r, const struct tc_graph *g, struct tc_exec *x, const struct tc_program *eval,
                     const struct tc_runtime *rt, struct tc_err *err);
/* Local. Weights far from their symmetric start, so that every gradient has a size; on every layout the same. */
void tc_perturb(const struct tc_graph *g, const struct tc_mesh *m, int rank, struct tc_exec *x, struct tc_device *d);

/* ---- breaks.c ---- */

/* One fault in the training programs of all ranks of a side. */
struct tc_breaks;
struct tc_breaks *tc_breaks_new(const struct tc_proof_run *run, const struct tc_mesh *m, const struct tc_inputs *in);
void tc_breaks_free(struct tc_breaks *b);
/* Local. Has the program of a rank, whose options these are, be broken. Freed by tc_broken_free. */
struct tc_broken;
struct tc_broken *tc_breaks_rank(struct tc_breaks *b, int rank, struct tc_program_opts *o);
/* Local. ... and its collectives. */
void tc_broken_exec(struct tc_broken *b, struct tc_exec_opts *o);
void tc_broken_step(struct tc_broken *b);      /* Local. Before each step */
void tc_broken_free(struct tc_broken *b);
/* Local, after the run. Sets what *p says of the fault. */
void tc_breaks_found(const struct tc_breaks *b, struct tc_proof *p);

#endif
